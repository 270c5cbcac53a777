"""The moves of NCCL's algorithms: rings, trees, or sums and copies in switches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.schedule import COPY, READ_ACC, REDUCE, retime, routed, routes
from tacos.synth.baselines import block_trees
from tacos.synth.baselines.nccl.channels import tree_parents
from tacos.synth.baselines.nccl.sharp import switch_tree
from tacos.synth.moves import Moves, check_memory, concatenate, named_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from tacos._core import Collective, CollectivePart, Schedule
    from tacos.synth.baselines.nccl.channels import Network
    from tacos.synth.baselines.nccl.group import Group
    from tacos.synth.moves import BlockTrees, Ints

    Progress = Callable[[float], object] | None

__all__ = ["ring_moves", "through_switches", "tree_moves"]


def ring_moves(
    group: Group, part: CollectivePart, most: int | None, *, backwards: bool = False
) -> Moves:
    """Send piece k of every block round ring k, or `backwards` round it; a broadcast goes down the ring.

    >>> import tacos
    >>> from tacos.synth.baselines.nccl.channels import Network
    >>> from tacos.synth.baselines.nccl.group import Group
    >>> topo = tacos.topology.dgx_a100(2)
    >>> part = tacos.collective.all_gather(topo, "1MB", chunks=8).parts[0]
    >>> ring_moves(Group(Network(topo), part), part, None).steps
    15
    """
    orders = np.array(group.rings[:most], np.int32)
    orders = orders[:, ::-1] if backwards else orders
    moves = named_part(part, block_trees.one_way_ring(group.n) * len(orders), orders)
    if len(part.group) == 1 or (group.order == part.group).all():
        return moves
    # Of moves that are ready at once the first goes first, and a block may be larger than others by a byte.
    # Neither may depend on ranks.
    place = np.argsort(group.order)[np.searchsorted(np.sort(group.order), part.group)]
    block, piece = np.divmod(moves.chunk, np.uint32(part.chunks))
    at = place[block % len(place)]
    if part.kind == "all_reduce":
        moves = replace(moves, chunk=at.astype(np.uint32) * np.uint32(part.chunks) + piece)
    return moves.only(np.lexsort((at, moves.step, piece)))


def tree_moves(group: Group, part: CollectivePart, most: int | None) -> Moves:
    """Distribute the chunks of an all-reduce over both trees of all channels, in turn.

    >>> import tacos
    >>> from tacos.synth.baselines.nccl.channels import Network
    >>> from tacos.synth.baselines.nccl.group import Group
    >>> topo = tacos.topology.dgx_a100(2)
    >>> part = tacos.collective.all_reduce(topo, "1MB", chunks=1).parts[0]
    >>> tree_moves(Group(Network(topo), part), part, None).steps      # 8 up, 8 down
    16
    """
    members = group.order
    place = np.full(int(members.max()) + 1, -1, np.int32)
    place[members] = np.arange(len(members), dtype=np.int32)
    trees = [
        [tuple(int(place[npu]) for npu in box) for box in channel]
        for channel in group.chains[:most]
    ]
    # The two trees of a channel are far apart in this list, so that even few chunks use many NICs.
    parents = [
        tree
        for both in zip(*(tree_parents(t, group.n) for t in trees), strict=True)
        for tree in both
    ]

    def one(homes: Ints, _: bool, piece: int) -> Moves:
        chunk = np.arange(len(homes)) * part.chunks + piece
        return concatenate(
            [_down(up, np.flatnonzero(chunk % len(parents) == t)) for t, up in enumerate(parents)]
        )

    pieces: list[BlockTrees] = [
        partial(one, piece=k) for k in range(min(part.chunks, len(parents)))
    ]
    return named_part(part, pieces, members)


def _down(parent: Ints, blocks: NDArray[np.intp]) -> Moves:
    """Send the blocks from the root of a tree to all places."""
    depth = _depths(parent)
    below = np.argsort(depth, kind="stable")[1:]
    route = np.arange(len(below))[:, None]
    return Moves.of((parent[below], below), route, blocks, depth[below][:, None] - 1)


def _depths(parent: Ints) -> Ints:
    depth, at = np.zeros_like(parent), parent
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, parent[at], -1)
    return depth


class _Transfers:
    """The transfers of one chunk, over routes that may sum or multicast in switches.

    A row is a transfer: kind and links of its route, step, and op.
    """

    def __init__(self, group: Group, *, switches: bool) -> None:
        self.group, self.switches, self.step = group, switches, 0
        self.rows: list[tuple[tuple[str, tuple[int, ...]], int, int]] = []

    def path(self, a: int, b: int, op: int) -> None:
        """Add a transfer from a to b."""
        self.rows.append((("path", self.group.network.route(a, b)), self.step, op))

    def tree(self, root: int, switch: int, ends: Iterable[int], op: int) -> None:
        """Add a transfer from the ends to the root, summed on the way, or from the root to the ends."""
        others = [end for end in ends if end != root]
        if others:
            sums = op == REDUCE
            links = switch_tree(self.group.network, root, switch, others, sums=sums)
            self.rows.append((("reduce" if sums else "multicast", links), self.step, op))

    def in_boxes(self, heads: list[int], op: int, turn: int) -> None:
        """Add the sums of boxes to their heads, or the results from the heads to their boxes."""
        for b, (box, head) in enumerate(zip(self.group.used.boxes, heads, strict=True)):
            switches = self.group.box_switches[b] if self.switches else []
            if switches:
                self.tree(head, switches[turn % len(switches)], box, op)
                continue
            for member in box:
                if member != head:
                    self.path(*((member, head) if op == REDUCE else (head, member)), op)
        self.step += 1

    def over_tree(self, heads: list[int], parent: Ints, op: int) -> None:
        """Add the sums of boxes up a tree over boxes, or the results down."""
        depth = _depths(parent)
        levels = range(int(depth.max()), 0, -1) if op == REDUCE else range(1, int(depth.max()) + 1)
        for level in levels:
            for b in np.flatnonzero(depth == level).tolist():
                ends = heads[b], heads[int(parent[b])]
                self.path(*(ends if op == REDUCE else ends[::-1]), op)
            self.step += 1

    def over_switch(self, heads: list[int], switch: int, root: int, op: int) -> None:
        """Add the sums of boxes to one head through a switch of the network, or the results from it."""
        self.tree(root, switch, heads, op)
        self.step += 1


def through_switches(
    network: Network,
    collective: Collective,
    chosen: list[tuple[Group, str]],
    most: int | None,
    *,
    provenance: Mapping[str, Any],
    progress: Progress = None,
) -> Schedule:
    """Return a schedule of a collective through switches that reduce and multicast.

    In one box the owner of a block gets its sum from the switch and multicasts the result. Over several boxes a
    chunk belongs to a rail: in each box the NPU at that rail's NIC gets the sum of its box, from the switch or from
    the members; sums of boxes are joined by double binary trees or by a switch of the network.

    Args:
        network, collective: The problem, with its number of chunks chosen.
        chosen: For each part, its group, and the algorithm: ``"nvls"``, ``"nvls-tree"`` or ``"collnet"``.
        most: Largest number of rails or switches to use.
        provenance: Stored in the schedule.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> from tacos.synth.baselines.nccl.channels import Network
    >>> from tacos.synth.baselines.nccl.group import Group
    >>> topo = tacos.topology.dgx_h100()
    >>> coll = tacos.collective.all_reduce(topo, "1MB", chunks=1)
    >>> network = Network(topo)
    >>> chosen = [(Group(network, coll.parts[0]), "nvls")]
    >>> through_switches(network, coll, chosen, None, provenance={}).transfers  # a sum and a copy per block
    16
    """
    table: dict[tuple[str, tuple[int, ...]], int] = {}
    columns: list[tuple[Any, ...]] = []
    first = 0
    for group, algorithm in chosen:
        part = group.part
        for moves, chunks in _by_chunk(group, algorithm, most):
            check_memory(len(moves.rows) * len(chunks))
            for row, (route, step, op) in enumerate(moves.rows):
                number = table.setdefault(route, len(table))
                # Neighbours take turns: the owners of blocks in one box, and the rails between boxes.
                order = chunks
                if group.boxes == 1:
                    order = (chunks % part.chunks) * len(part.group) + chunks // part.chunks
                same = np.ones_like(chunks)
                columns.append(
                    (first + chunks, order, row * same, number * same, step * same, op * same)
                )
        first += len(part.group) * part.chunks
    if not columns:
        columns = [(np.zeros(0, np.int64),) * 6]
    chunk, orders, rows, route_of, step_of, op_of = (
        np.concatenate(c) for c in zip(*columns, strict=True)
    )
    turn = np.lexsort((rows, orders))
    return retime(
        collective,
        routed(
            routes(
                network.executed,
                links=[list(network.laid(links, kind)) for kind, links in table],
                kinds=[kind for kind, _ in table],
            )
        ),
        route=route_of[turn],
        chunk=chunk[turn],
        step=step_of[turn],
        op=op_of[turn],
        reads=READ_ACC,
        provenance=provenance,
        progress=progress,
    )


def _by_chunk(
    group: Group, algorithm: str, most: int | None
) -> Iterator[tuple[_Transfers, NDArray[np.int64]]]:
    """Yield the distinct sequences of transfers, each with the chunks that take it."""
    part = group.part
    chunk = np.arange(len(part.group) * part.chunks)
    if group.n == 1:
        return
    if group.boxes == 1:
        box, switches = group.layout.boxes[0], group.box_switches[0][:most]
        owners = group.order if part.kind == "all_reduce" else part.group
        for block, owner in enumerate(owners.tolist()):
            for k, switch in enumerate(switches):
                moves = _Transfers(group, switches=True)
                if part.kind != "all_gather":
                    moves.tree(owner, switch, box, REDUCE)
                    moves.step += 1
                if part.kind != "reduce_scatter":
                    moves.tree(owner, switch, box, COPY)
                yield moves, chunk[(chunk // part.chunks == block) & (chunk % len(switches) == k)]
        return
    rails = group.used.rails if most is None else min(most, group.used.rails)
    trees = block_trees.double_tree_parents(group.boxes)
    ways_on = len(trees) if algorithm == "nvls-tree" else group.boxes
    for rail in range(rails):
        heads = [nics[rail][0] for nics in group.used.nics]
        for turn in range(ways_on):
            moves = _Transfers(group, switches=algorithm != "collnet")
            moves.in_boxes(heads, REDUCE, rail)
            for op in (REDUCE, COPY):
                if algorithm == "nvls-tree":
                    moves.over_tree(heads, trees[turn], op)
                else:
                    moves.over_switch(heads, group.rail_switches[rail], heads[turn], op)
            moves.in_boxes(heads, COPY, rail)
            yield moves, chunk[(chunk % rails == rail) & (chunk // rails % ways_on == turn)]
