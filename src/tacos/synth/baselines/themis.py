"""Themis: every chunk goes through the dimensions in its own order, so that all dimensions are busy.

S. Rashidi et al., ISCA 2022. A hierarchical collective that takes all chunks through the dimensions in the
same order loads the first dimensions most. Themis tracks the load of each dimension and sends the next chunk,
whose first hops are its largest, through the least loaded dimension first.

Here a *bundle* is Themis's chunk: two pieces of every block, which go round rings in opposite
directions (or one piece, if no ring can be used in both directions). A *phase* takes a bundle
through one dimension. A dimension serves one phase at a time, in the order in which they become
ready (``"fifo"``), or the smallest ready phase first (``"scf"``).

The network looks the same from every NPU, and all NPUs do the same at the same time. So phases are timed
once for all NPUs, and the schedule is an orbit: the transfers that leave NPU 0.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacos._core import Meter, Schedule, translations
from tacos.schedule import COPY, READ_ACC, REDUCE, paths, routes
from tacos.synth import requirements
from tacos.synth.baselines.grids import grid_obstacle
from tacos.synth.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tacos._core import Collective, Topology

__all__ = ["THEMIS", "themis"]

_SCHEDULING = ("fifo", "scf")
_PHASE = 200
"""Steps of Python per phase of a bundle (benchmarks/work.py)."""
_FREE = -1  # in place of a bundle's number: a side may have become free


def themis(
    topology: Topology,
    collective: Collective,
    *,
    scheduling: str = "scf",
    order: Sequence[int] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Reduce-scatter and all-gather each chunk through the dimensions in its own order.

    Args:
        topology: A product of rings, cliques and switches, unedited.
        collective: One all-gather, reduce-scatter or all-reduce of all NPUs. If it does not divide evenly, chunks
            that are a byte smaller take the time of the others.
        scheduling: Which of the chunks that wait for a dimension goes first: ``"fifo"``, the first to
            arrive, or ``"scf"``, the smallest.
        order: The same order for the sums of all chunks, such as ``[0, 1, …]``: the baseline of the Themis
            paper.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> topo = tacos.topology.torus(4, 4, 4, bandwidth=("100GB/s", "50GB/s", "50GB/s"), latency=0)
    >>> coll = tacos.collective.all_reduce(topo, 64 * 64 * 1024, chunks=64)
    >>> fixed = themis(topo, coll, order=[0, 1, 2]).time_s
    >>> round(fixed / themis(topo, coll).time_s, 2)
    1.48
    """
    THEMIS.check(topology, collective)
    if scheduling not in _SCHEDULING:
        raise ValueError(f'scheduling must be "fifo" or "scf"; got {scheduling!r}')
    resolved = collective if collective.resolved else collective.with_chunks(1)
    (part,) = resolved.parts
    sizes = [size for _, size in topology.dims]
    turns = None if order is None else list(order)
    if turns is not None and sorted(turns) != list(range(len(sizes))):
        raise ValueError(f"order is {turns}; it must name each of the {len(sizes)} dimensions once")
    options = {"scheduling": scheduling} | ({} if turns is None else {"order": turns})
    provenance = json.dumps({"engine": THEMIS.name, **options})

    block = -(-part.size // (topology.npus * part.chunks))
    meter = Meter.of(progress)
    bundles = _Bundles(topology, part.kind, part.chunks, block, turns, scheduling == "scf")
    phases = sum(map(len, bundles.phases))
    meter.spend(_PHASE * phases * Meter.STEP)
    return bundles.orbit(resolved, provenance, meter)


def _obstacle(topology: Topology, collective: Collective) -> str:
    if needed := grid_obstacle(
        topology, collective, serves=lambda kind: kind.spreads and not kind.rooted
    ):
        return needed
    if not topology.symmetric:
        return "a network that is the same from every NPU: rings, cliques, switches and products"
    if needed := requirements.one_part(collective):
        return needed
    part = collective.parts[0]
    chunks = topology.npus * max(part.chunks, 1)
    return f"a byte for each of {chunks} chunks, not {part.size}" if part.size < chunks else ""


@dataclass(frozen=True, slots=True)
class _Side:
    """A dimension of more than one NPU, and the times of one block along it.

    Attributes:
        number, size, stride: Number, size and stride of the dimension.
        kind: ``"ring"``, ``"clique"`` or ``"switch"``; two NPUs are a clique.
        directions: 2 for a ring whose two directions can carry a piece each, otherwise 1.
        busy, legs, delay: Picoseconds that a link is busy, that each leg of a hop takes, and that a
            reduction takes.
        bandwidth: Bandwidth of an NPU, over all its links along this dimension.
    """

    number: int
    size: int
    stride: int
    kind: str
    directions: int
    busy: int
    legs: tuple[int, ...]
    delay: int
    bandwidth: int

    def line(self, pieces: int, blocks: int) -> int:
        """Return the number of blocks that leave one after another in a step."""
        in_turn = self.size - 1 if self.kind == "switch" else 1
        return in_turn * blocks * (1 if self.directions == 2 else pieces)

    def arrival(self, op: int) -> int:
        """Return the time from the start of a hop until its block can be read."""
        return sum(self.legs) + (self.delay if op == REDUCE else 0)

    def period(self, pieces: int, blocks: int, op: int) -> int:
        """Return the time between steps: a block moves on when it has arrived and the link is free."""
        return max(self.line(pieces, blocks) * self.busy, self.arrival(op))

    def taken(self, pieces: int, blocks: int, op: int) -> int:
        """Return how long a phase occupies the dimension."""
        steps = self.size - 1 if self.kind == "ring" else 1
        last = self.line(pieces, blocks) * self.busy
        return (steps - 1) * self.period(pieces, blocks, op) + last


class _Phase(NamedTuple):
    side: int
    op: int
    spread: tuple[int, ...]  # sides along which the NPUs that hold parts of one sum differ
    blocks: int  # number of blocks of each piece in a message: one per such NPU


class _Hops(NamedTuple):
    """The hops of one piece in a phase, seen from NPU 0, one after another, each with all blocks."""

    to: NDArray[np.int64]
    owner: NDArray[np.int64]  # [hop, block]: the block's owner
    step: NDArray[np.int64]
    line: NDArray[np.int64]  # place among the hops that share a link in one step


class _Bundles:
    """The phases of all bundles, their times, and the transfers that they consist of."""

    def __init__(
        self,
        topology: Topology,
        kind: str,
        pieces: int,
        block: int,
        order: Sequence[int] | None,
        smallest_first: bool,
    ) -> None:
        self.topology, self.pieces, self.smallest_first = topology, pieces, smallest_first
        quantum = 1
        while True:
            self.sides = list(_sides(topology, block, quantum))
            self.width = max((side.directions for side in self.sides), default=1)
            self.bundles = -(-pieces // self.width)
            self.phases = [self._phases(kind, turns) for turns in self._orders(block, order)]
            self.starts, end = self._timetable()
            times = (time for side in self.sides for time in (side.busy, side.delay, *side.legs))
            if end < 2**32 * max(gcd(*times), 1):
                break
            quantum = (end >> 31) + 1  # so that starts, sums of rounded durations, fit into 31 bits

    def _in_bundle(self, bundle: int) -> int:
        return min(self.width, self.pieces - bundle * self.width)

    def _orders(self, block: int, order: Sequence[int] | None) -> Iterator[list[int]]:
        """Yield, for each bundle, the sides in the order in which its sums go through them."""
        sides = self.sides
        if order is not None:
            place = {side.number: i for i, side in enumerate(sides)}
            for _ in range(self.bundles):
                yield [place[number] for number in order if number in place]
            return
        load = [0] * len(sides)
        for bundle in range(self.bundles):
            pieces = self._in_bundle(bundle)
            turns = sorted(range(len(sides)), key=lambda i: (load[i], i))
            # A difference below a sixteenth of the bundle does not justify another order.
            bytes_ = self.topology.npus * pieces * block
            if sides and 16 * (max(load) - min(load)) < bytes_ * 10**12 // sides[0].bandwidth:
                turns.sort()
            for phase in self._phases("reduce_scatter", turns):
                load[phase.side] += sides[phase.side].taken(pieces, phase.blocks, REDUCE)
            yield turns

    def _phases(self, kind: str, turns: Sequence[int]) -> list[_Phase]:
        sums = []
        for i, side in enumerate(turns):
            spread = tuple(sorted(turns[i + 1 :]))
            sums.append(_Phase(side, REDUCE, spread, prod(self.sides[s].size for s in spread)))
        copies = [phase._replace(op=COPY) for phase in reversed(sums)]
        return {"reduce_scatter": sums, "all_gather": copies, "all_reduce": sums + copies}[kind]

    def _timetable(self) -> tuple[list[list[int]], int]:
        """Return when each phase of each bundle starts, and when everything is done."""
        starts = [[0] * len(phases) for phases in self.phases]
        waiting: list[list[tuple[int, int, int, int]]] = [[] for _ in self.sides]
        free = [0] * len(self.sides)
        agenda = [(0, bundle, 0) for bundle in range(self.bundles)]  # when phases become ready
        now = 0
        while agenda:
            now = agenda[0][0]
            while agenda and agenda[0][0] == now:
                _, bundle, i = heapq.heappop(agenda)
                if bundle == _FREE or i == len(self.phases[bundle]):
                    continue
                phase = self.phases[bundle][i]
                work = phase.blocks * self._in_bundle(bundle) if self.smallest_first else 0
                heapq.heappush(waiting[phase.side], (work, now, bundle, i))
            for number, side in enumerate(self.sides):
                if not waiting[number] or free[number] > now:
                    continue
                _, _, bundle, i = heapq.heappop(waiting[number])
                starts[bundle][i] = now
                phase = self.phases[bundle][i]
                free[number] = now + side.taken(self._in_bundle(bundle), phase.blocks, phase.op)
                arrival = free[number] - side.busy + side.arrival(phase.op)
                heapq.heappush(agenda, (free[number], _FREE, 0))
                heapq.heappush(agenda, (arrival, bundle, i + 1))
        return starts, now

    def orbit(self, collective: Collective, provenance: str, meter: Meter) -> Schedule:
        """Return the schedule: the transfers that leave NPU 0, and the translations."""
        rank = np.argsort(collective.parts[0].group)
        hops = lru_cache(None)(self._hops)
        found = []
        for bundle, phases in enumerate(self.phases):
            meter(bundle / self.bundles)
            pieces = self._in_bundle(bundle)
            for phase, begin in zip(phases, self.starts[bundle], strict=True):
                side = self.sides[phase.side]
                period = side.period(pieces, phase.blocks, phase.op)
                for piece in range(pieces):
                    hop = hops(phase, back=side.directions == 2 and piece == 1)
                    line = hop.line if side.directions == 2 else hop.line * pieces + piece
                    place = line[:, None] * phase.blocks + np.arange(phase.blocks)
                    start = begin + hop.step[:, None] * period + place * side.busy
                    chunk = rank[hop.owner] * self.pieces + bundle * self.width + piece
                    lane = np.broadcast_to(2 * hop.to[:, None] + phase.op, chunk.shape)
                    found.append(np.stack([lane, start, chunk]).reshape(3, -1))
                    meter.spend(2 * chunk.size * Meter.TRANSFER)
        rows = np.concatenate([np.zeros((3, 0), np.int64), *found], axis=1)
        return self._packed(collective, rows[:, np.lexsort(rows[::-1])], provenance)

    def _hops(self, phase: _Phase, *, back: bool) -> _Hops:
        side = self.sides[phase.side]
        turn = np.arange(side.size - 1)
        step = turn if side.kind == "ring" else 0 * turn
        line = turn if side.kind == "switch" else 0 * turn
        # Start and end of hops along the side, with the block's owner at 0.
        if side.kind == "ring":
            src, dst = (turn, turn + 1) if phase.op == COPY else (turn + 1, turn + 2)
            src, dst = (-src, -dst) if back else (src, dst)
        else:
            src, dst = (0 * turn, turn + 1) if phase.op == COPY else (turn + 1, 0 * turn)
        owner = (-src % side.size * side.stride)[:, None]
        for other in (self.sides[i] for i in phase.spread):
            along = np.arange(other.size) * other.stride
            owner = (owner[:, :, None] + along).reshape(len(turn), -1)
        return _Hops((dst - src) % side.size * side.stride, owner, step, line)

    def _packed(self, collective: Collective, rows: NDArray[Any], provenance: str) -> Schedule:
        lane, start, chunk = rows
        lanes, first = np.unique(lane, return_index=True)
        to, route = np.unique(lanes // 2, return_inverse=True)
        begin = np.append(first, len(lane)).astype(np.int64)
        starts = []
        for number, (low, high) in zip(lanes.tolist(), pairwise(begin.tolist()), strict=True):
            legs = next(s.legs for s in self.sides if number // 2 // s.stride % s.size)
            starts += [start[low:high] + sum(legs[:leg]) for leg in range(len(legs))]
        times = np.concatenate([np.zeros(0, np.int64), *starts])
        quantum = max(int(np.gcd.reduce(times)), 1) if len(times) else 1
        orders, node_image, link_image = translations(self.topology)
        return Schedule(
            collective=collective,
            routes=routes(self.topology, pairs=(np.zeros_like(to), to)),
            lane_route=route.astype(np.int32),
            lane_op=(lanes % 2).astype(np.uint8),
            lane_reads=np.full(len(lanes), READ_ACC, np.uint8),
            lane_begin=begin,
            chunk=chunk.astype(np.uint32),
            start=(times // quantum).astype(np.uint32),
            quantum_ps=quantum,
            orders=orders,
            node_image=node_image,
            link_image=link_image,
            provenance=provenance,
        )


def _sides(topology: Topology, block: int, quantum: int) -> Iterator[_Side]:
    """Yield the dimensions of more than one NPU, with durations rounded up to multiples of the quantum."""
    blocking = topology.link_model == "blocking"
    whole = topology.forwarding == "store_and_forward"

    def up(time: int) -> int:
        return -(-time // quantum) * quantum

    stride = 1
    for number, (kind, size) in enumerate(topology.dims):
        if size > 1:
            path = paths(topology, ([0], [stride])).links
            latency = [int(x) for x in topology.link_latency_ps[path]]
            sending = [-(-block * 10**12 // int(x)) for x in topology.link_bandwidth_Bps[path]]
            hop = [alpha + time for alpha, time in zip(latency, sending, strict=True)]
            backwards = (topology.link_src == stride) & (topology.link_dst == 0)
            directions = 2 if kind == "ring" and size > 2 and backwards.any() else 1
            adding = topology.reduce_bandwidth_Bps
            links = size - 1 if kind == "clique" else directions
            yield _Side(
                number=number,
                size=size,
                stride=stride,
                kind="clique" if size == 2 and kind == "ring" else kind,
                directions=directions,
                busy=up(max(hop if blocking else sending)),
                legs=tuple(map(up, hop)) if whole else (up(sum(latency) + max(sending)),),
                delay=up(-(-block * 10**12 // adding)) if adding else 0,
                bandwidth=links * int(topology.link_bandwidth_Bps[path].min()),
            )
        stride *= size


THEMIS = Engine(
    name="themis",
    lists=False,
    solve=themis,
    baseline=True,
    obstacle=_obstacle,
)
