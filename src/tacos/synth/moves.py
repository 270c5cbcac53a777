"""Moves: an algorithm as an ordered list, before it has times.

The known algorithms are described as all-gathers. An all-gather is one tree per block: over which members, and in
which step, the block spreads from its home to all members. A :data:`BlockTrees` function returns these trees, and
every other named collective is derived from them:

=====================  =======================================================================
broadcast              the root's tree
reduce-scatter         every tree reversed, with sums instead of copies
reduce                 the root's tree reversed
all-reduce             reduce-scatter, then all-gather
gather                 the path of every tree that leads to the root
scatter                the path of the root's tree to each member, for that member's block
all-to-all             the path of every tree to each member, for that pair's block
=====================  =======================================================================

So halving-doubling's all-gather gives the binomial broadcast, and Bruck's gives Bruck's all-to-all.
Columns are int32 where that is enough: a ring of 4,096 NPUs has 16.8 million moves.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tacos._core import Collective, Meter
from tacos.errors import TacosError
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE, retime, routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tacos._core import CollectivePart, Schedule, Topology
    from tacos.synth.engine import Engine

    Ints = NDArray[np.int32]

__all__ = [
    "BlockTrees",
    "Moves",
    "by_parts",
    "check_memory",
    "concatenate",
    "cut",
    "listed",
    "named_part",
    "to_schedule",
]


_BYTES_PER_MOVE = 120  # for moves and their timing (measured)
_SHARE_OF_MEMORY = 0.9


@dataclass(frozen=True, slots=True)
class Moves:
    """Moves of chunks in the order of their steps.

    Attributes:
        pairs: Columns (src, dst): the routes.
        route: For each move, an index into the pairs.
        chunk, step, op, reads: As in :func:`tacos.schedule.retime`.
    """

    pairs: tuple[Ints, Ints]
    route: Ints
    chunk: NDArray[np.uint32]
    step: Ints
    op: NDArray[np.uint8]
    reads: NDArray[np.uint8]

    @classmethod
    def of(
        cls,
        pairs: tuple[NDArray[Any], NDArray[Any]],
        route: NDArray[Any],
        chunk: NDArray[Any],
        step: NDArray[Any] | int,
        *,
        op: int = COPY,
        reads: int = READ_ACC,
    ) -> Moves:
        """Return moves with one op that all read the same; the columns are broadcast to one shape."""
        shape = np.broadcast_shapes(route.shape, chunk.shape, np.shape(step))
        return cls(
            pairs=(pairs[0].astype(np.int32).ravel(), pairs[1].astype(np.int32).ravel()),
            route=np.broadcast_to(route.astype(np.int32, copy=False), shape).ravel(),
            chunk=np.broadcast_to(chunk.astype(np.uint32, copy=False), shape).ravel(),
            step=np.broadcast_to(np.asarray(step, np.int32), shape).ravel(),
            op=_constant(op, int(np.prod(shape))),
            reads=_constant(reads, int(np.prod(shape))),
        )

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.step.max(initial=-1)) + 1

    def after(self, step: int) -> Moves:
        """Return the moves `step` steps later."""
        return replace(self, step=self.step + np.int32(step))

    def between(self, npus: NDArray[Any]) -> Moves:
        """Return the moves between `npus[i]` instead of i."""
        return replace(self, pairs=(npus[self.pairs[0]], npus[self.pairs[1]]))

    def turned(self) -> Moves:
        """Reverse every move and their order, and add instead of copying."""
        count, steps = len(self.route), self.steps
        return Moves(
            pairs=(self.pairs[1], self.pairs[0]),
            route=self.route[::-1],
            chunk=self.chunk[::-1],
            step=np.int32(steps - 1) - self.step[::-1],
            op=_constant(REDUCE, count),
            # In a single step no member forwards what it received: all send their own contribution.
            reads=_constant(READ_INPUT if steps == 1 else READ_ACC, count),
        )

    def piece(self, k: int, of: int) -> Moves:
        """Return the moves of piece k of every chunk, where each chunk is cut into `of` pieces."""
        return self if of == 1 else replace(self, chunk=self.chunk * np.uint32(of) + np.uint32(k))

    def rounds(self, count: int, pieces: int) -> Moves:
        """Repeat the moves `count` times, each time with chunk numbers increased by `pieces`."""
        first = np.arange(count, dtype=np.uint32)[:, None] * np.uint32(pieces)
        return Moves(
            pairs=self.pairs,
            route=np.tile(self.route, count),
            chunk=(self.chunk + first).ravel(),
            step=np.tile(self.step, count),
            op=np.tile(self.op, count),
            reads=np.tile(self.reads, count),
        )

    def only(self, which: NDArray[Any] | slice) -> Moves:
        """Return the moves that `which` (a mask, positions or a slice) selects."""
        return Moves(
            pairs=self.pairs,
            route=self.route[which],
            chunk=self.chunk[which],
            step=self.step[which],
            op=self.op[which],
            reads=self.reads[which],
        )

    def paths(self, block: NDArray[Any], end: NDArray[Any], meter: Meter) -> Moves:
        """Return the path to `end[i]` in the tree of chunk `block[i]`, as moves of chunk i.

        Raises:
            WorkIsUp: The meter's limit does not allow to list the moves.
        """
        places = 1 + max(int(column.max()) for column in self.pairs)
        arrival = np.full((int(self.chunk.max()) + 1, places), -1)  # the move that brings it
        arrival[self.chunk, self.pairs[1][self.route]] = np.arange(len(self.route))
        found, listed = [], 0
        chunk = np.arange(len(block), dtype=np.uint32)
        while len(chunk):
            meter(0.0)
            move = arrival[block, end]
            on_the_way = move >= 0
            move, chunk, block = move[on_the_way], chunk[on_the_way], block[on_the_way]
            found.append((move, chunk))
            # The caller counts the moves that it lists. More of them than it may list are not followed to their ends.
            listed += len(move)
            if meter.left is not None and listed * Meter.TRANSFER > meter.left:
                meter.reserve(listed * Meter.TRANSFER)
            end = self.pairs[0][self.route[move]]
        # Paths are found from their ends; reversed, the longest one leaves first.
        moves, chunk = (np.concatenate(column) for column in zip(*reversed(found), strict=True))
        meter(0.0)
        order = np.argsort(moves, kind="stable")
        return replace(self.only(moves[order]), chunk=chunk[order])


BlockTrees: TypeAlias = "Callable[[Ints, bool], Moves]"
"""An all-gather algorithm over places 0 … n-1: ``trees(homes, inward)`` returns the tree along which the block
at each home spreads to all places, as moves of chunk i for home i. `inward` trees will be reversed, which matters
to a ring in one direction."""


def concatenate(parts: Sequence[Moves]) -> Moves:
    """Concatenate lists of moves.

    >>> hop = Moves.of((np.array([0]), np.array([1])), np.array([0]), np.array([5]), 0)
    >>> concatenate([hop, hop.turned()]).pairs[0].tolist()
    [0, 1]
    """
    if len(parts) == 1:
        return parts[0]
    tables = {id(part.pairs): part.pairs for part in parts}  # pieces share their routes
    first = np.cumsum([0, *(len(src) for src, _ in tables.values())], dtype=np.int32)
    offset = dict(zip(tables, first, strict=False))
    return Moves(
        pairs=(
            np.concatenate([src for src, _ in tables.values()]),
            np.concatenate([dst for _, dst in tables.values()]),
        ),
        route=np.concatenate([part.route + offset[id(part.pairs)] for part in parts]),
        chunk=np.concatenate([part.chunk for part in parts]),
        step=np.concatenate([part.step for part in parts]),
        op=np.concatenate([part.op for part in parts]),
        reads=np.concatenate([part.reads for part in parts]),
    )


def named_part(
    part: CollectivePart,
    algorithm: Sequence[BlockTrees],
    npus: Ints | None = None,
    *,
    progress: Callable[[float], object] | None = None,
) -> Moves:
    """Return the moves of one named collective; piece k of every block takes ``algorithm[k % len(algorithm)]``.

    Args:
        part: A part of any kind but send_recv and custom, with its chunks chosen.
        algorithm: Functions for the trees of a block; pieces use them in turn.
        npus: The group in the order of the algorithm's places; rank order by default. With two axes, one order
            for each of the algorithm's functions.
        progress: Called from time to time.

    >>> from tacos import collective
    >>> from tacos.synth.baselines import block_trees
    >>> part = collective.broadcast(4, "1KB", root=1, chunks=1).parts[0]
    >>> moves = named_part(part, block_trees.one_way_ring(4))
    >>> [(int(moves.pairs[0][r]), int(moves.pairs[1][r])) for r in moves.route]
    [(1, 2), (2, 3), (3, 0)]
    """
    if len(part.group) == 1:
        return _nothing()
    meter = Meter.of(progress)
    orders = np.atleast_2d(part.group if npus is None else npus)
    whole = []
    for k, trees in enumerate(algorithm[: part.chunks]):
        order = orders[k % len(orders)]
        by_npu = np.argsort(order, kind="stable")
        homes = by_npu[np.searchsorted(order, part.group, sorter=by_npu)].astype(np.int32)
        moves = _one_piece(part, trees, homes, meter)
        whole.append(moves if len(orders) == 1 else moves.between(order))
    pieces = cut(whole, part.chunks)
    return pieces.between(orders[0]) if len(orders) == 1 else pieces


def cut(whole: Sequence[Moves], pieces: int) -> Moves:
    """Return the moves of all pieces of every chunk; piece k moves as ``whole[k % len(whole)]`` does.

    Moves are ordered by piece, since in a pipeline the first pieces should leave first.

    >>> hop = Moves.of((np.array([0]), np.array([1])), np.array([0]), np.array([5]), 0)
    >>> cut([hop], 3).chunk.tolist()
    [15, 16, 17]
    """
    rounds, rest = divmod(pieces, len(whole))
    one_round = concatenate([moves.piece(k, pieces) for k, moves in enumerate(whole)])
    count = rounds * len(one_round.route) + sum(len(moves.route) for moves in whole[:rest])
    check_memory(count)
    return one_round.rounds(rounds + (rest > 0), len(whole)).only(slice(count))


def to_schedule(
    topology: Topology,
    collective: Collective,
    parts: Iterable[Moves],
    *,
    provenance: Mapping[str, Any],
    progress: Callable[[float], object] | None = None,
    links: Callable[[int, int], Sequence[int]] | None = None,
) -> Schedule:
    """Route and time the moves of a collective's parts, given in the order of the parts.

    Moves between two NPUs take the shortest route, or the links that `links` gives for them.

    >>> from tacos import collective, topology
    >>> hop = Moves.of((np.array([0]), np.array([1])), np.array([0]), np.array([0]), 0)
    >>> ring = topology.ring(4, bandwidth="1GB/s", latency="1us")
    >>> message = collective.send_recv(ring, [(0, 1, "1KB")], chunks=1)
    >>> to_schedule(ring, message, [hop], provenance={"engine": "mine"}).time_s
    2e-06
    """
    meter = Meter.of(progress)
    shifted, first = [], 0
    for part, moves in zip(collective.parts, parts, strict=True):
        shifted.append(replace(moves, chunk=moves.chunk + np.uint32(first)) if first else moves)
        first += Collective(collective.npus, [part]).chunks
    moves = concatenate(shifted)
    meter.spend(len(moves.route) * Meter.TRANSFER)
    used = np.zeros(len(moves.pairs[0]), bool)
    used[moves.route] = True
    number = (np.cumsum(used) - 1).astype(np.int32)
    ends = moves.pairs[0][used], moves.pairs[1][used]
    if links is None:
        table = routes(topology, pairs=ends, progress=meter)
    else:
        pairs = zip(*(column.tolist() for column in ends), strict=True)
        table = routes(topology, links=[links(a, b) for a, b in pairs])
    return retime(
        collective,
        table,
        route=moves.route if used.all() else number[moves.route],
        chunk=moves.chunk,
        step=moves.step,
        op=moves.op,
        reads=moves.reads,
        provenance=provenance,
        progress=meter,
    )


def by_parts(
    engine: Engine,
    topology: Topology,
    collective: Collective,
    moves: Callable[[CollectivePart], Moves],
    progress: Callable[[float], object] | None,
    **options: object,
) -> Schedule:
    """Check that an engine applies, then build its schedule from the moves of each part.

    The options are stored in the provenance.

    >>> from tacos import collective, topology
    >>> from tacos.synth.baselines import block_trees
    >>> ring = topology.ring(4, bandwidth="1GB/s", latency="1us")
    >>> gather = collective.all_gather(ring, "4KB")
    >>> from tacos.synth.baselines.doubling import BRUCK
    >>> by_parts(BRUCK, ring, gather, lambda part: named_part(part, block_trees.bruck(4)), None).transfers
    12
    """
    engine.check(topology, collective, **options)
    resolved = collective if collective.resolved else collective.with_chunks(1)
    meter = Meter.of(progress)
    parts = []
    for part in resolved.parts:
        meter(0.0)
        parts.append(moves(part))
        meter.spend(len(parts[-1].route) * Meter.TRANSFER)
    provenance = {"engine": engine.name, **options}
    return to_schedule(topology, resolved, parts, provenance=provenance, progress=meter)


def check_memory(moves: int) -> None:
    """Refuse a problem that cannot fit into memory, instead of swapping for minutes.

    >>> check_memory(10**12)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    tacos._core.TacosError: 1.0e+12 transfers need about 111759 GiB, ...
    """
    needed = moves * _BYTES_PER_MOVE
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > _SHARE_OF_MEMORY * present:
        raise TacosError(
            f"{moves:.1e} transfers need about {needed / 2**30:.0f} GiB, but this machine has "
            f"{present / 2**30:.0f} GiB; fewer chunks make fewer transfers"
        )


def listed(part: CollectivePart, npus: int) -> Moves:
    """Return direct moves of a send-recv or custom collective, whose chunks list their sources and destinations.

    >>> from tacos import collective
    >>> listed(collective.send_recv(4, [(0, 2, "1KB")], chunks=2).parts[0], 4).chunk.tolist()
    [0, 1]
    """
    if not len(part.input_begin):
        rows = np.arange(len(part.inputs))
        moves = _straight(part.inputs, part.outputs, rows, npus)
        return _in_pieces(moves, part.chunks)
    chunks = np.arange(len(part.bytes))
    of_input = np.repeat(chunks, np.diff(part.input_begin))
    of_output = np.repeat(chunks, np.diff(part.output_begin))
    holds = np.isin(of_output * npus + part.outputs, of_input * npus + part.inputs)
    adds = part.reduces.astype(bool)

    # Chunks that are copied: replicas serve the outputs in turn.
    lacks = ~holds & ~adds[of_output]
    chunk = of_output[lacks]
    turn = np.flatnonzero(lacks) - part.output_begin[chunk]
    replica = part.input_begin[chunk] + turn % np.diff(part.input_begin)[chunk]
    copies = _straight(part.inputs[replica], part.outputs[lacks], chunk, npus)

    # Sums are formed at one output, preferably one that contributes itself, and spread from there.
    preferred = np.lexsort((~holds, of_output))
    summed, first = np.unique(of_output[preferred], return_index=True)
    owner = np.full(len(chunks), -1)
    owner[summed] = part.outputs[preferred[first]]
    gives = adds[of_input] & (owner[of_input] >= 0) & (owner[of_input] != part.inputs)
    takes = adds[of_output] & (owner[of_output] != part.outputs)
    chunk = of_input[gives]
    sums = _straight(part.inputs[gives], owner[chunk], chunk, npus, op=REDUCE, reads=READ_INPUT)
    chunk = of_output[takes]
    results = _straight(owner[chunk], part.outputs[takes], chunk, npus).after(1)
    return _in_pieces(concatenate([copies, sums, results]), part.chunks)


def _in_pieces(moves: Moves, pieces: int) -> Moves:
    """Return the moves of whole blocks, piece by piece."""
    check_memory(len(moves.chunk) * pieces)
    return moves if pieces == 1 else moves.piece(0, pieces).rounds(pieces, 1)


def _one_piece(part: CollectivePart, trees: BlockTrees, homes: Ints, meter: Meter) -> Moves:
    """Return the part's moves as if every unit were one chunk."""
    n, root = len(homes), homes[part.root : part.root + 1]
    ranks = np.arange(n)
    match part.kind:
        case "all_gather":
            return trees(homes, False)
        case "broadcast":
            return trees(root, False)
        case "reduce_scatter":
            return trees(homes, True).turned()
        case "reduce":
            return trees(root, True).turned()
        case "all_reduce":
            sums = trees(homes, True).turned()
            return concatenate([sums, trees(homes, False).after(sums.steps)])
        case "gather":
            return trees(homes, False).paths(ranks, np.repeat(root, n), meter)
        case "scatter":
            return trees(root, False).paths(np.zeros_like(ranks), homes, meter)
        case "all_to_all" | "all_to_all_v":
            return trees(homes, False).paths(np.repeat(ranks, n), np.tile(homes, n), meter)
    raise ValueError(f"a {part.label} has no group, so no algorithm over ranks applies")


def _straight(
    src: NDArray[Any],
    dst: NDArray[Any],
    chunk: NDArray[Any],
    npus: int,
    *,
    op: int = COPY,
    reads: int = READ_ACC,
) -> Moves:
    """Move each chunk from src to dst directly; every NPU serves the next NPU first."""
    turn = np.argsort((dst - src) % npus, kind="stable")
    pairs, route = np.unique(src[turn] * np.int64(npus) + dst[turn], return_inverse=True)
    return Moves.of((pairs // npus, pairs % npus), route, chunk[turn], 0, op=op, reads=reads)


def _constant(value: int, count: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.uint8(value), count)


def _nothing() -> Moves:
    none = np.zeros(0, np.int32)
    return Moves.of((none, none), none, none, none)
