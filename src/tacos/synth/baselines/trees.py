"""Two binary trees that share the work: NCCL's, and trees fitted to the network as in C-Cube.

Half of the chunks go up and down each tree, and every NPU is a leaf of one of them. Chunks follow
each other: a tree's root sends a sum down as soon as it has it, while later chunks are still on
their way up. That overlap takes K chunks through a tree of depth d in about (2d + K)(α + Sβ/K),
where finishing the way up before going down would take 2(d + K)(α + Sβ/K).

This needs separate links for the edges of both trees, in both directions. C-Cube (S. Cho et al.,
HPCA 2023) lays the trees out in this way on a DGX-1, with detours through other GPUs where there is no link.
Here a search (``cpp/synth/tree_layout.hpp``) finds the layout: which NPU has which place in each tree.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import lay_out_trees
from tacos.collective import kind_of
from tacos.schedule import routes
from tacos.synth import requirements
from tacos.synth.baselines import block_trees
from tacos.synth.engine import Engine
from tacos.synth.moves import Moves, by_parts, named_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Collective, CollectivePart, Schedule, Topology
    from tacos.collective import Kind

    Progress = Callable[[float], object] | None

__all__ = ["C_CUBE", "DOUBLE_BINARY_TREE", "c_cube", "double_binary_tree"]

LARGEST_SEARCH = 256
TRIALS = 2**17
_MOST_WEIGHT = 64
_MOST_CHUNKS = 2**12


def double_binary_tree(
    topology: Topology, collective: Collective, *, progress: Progress = None
) -> Schedule:
    """All-reduce, broadcast and reduce over two trees in rank order, half of the chunks on each.

    If the number of chunks is open, it grows with the bytes per latency.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(4, bandwidth="1GB/s", latency="1us")
    >>> coll = tacos.collective.broadcast(topo, "2KB", chunks=2)
    >>> double_binary_tree(topo, coll).time_ps // 10**6      # three levels
    6
    """

    def moves(part: CollectivePart) -> Moves:
        return named_part(
            part, block_trees.double_tree(len(part.group), rooted=part.root >= 0), progress=progress
        )

    cut = _pipelined(topology, collective)
    return by_parts(DOUBLE_BINARY_TREE, topology, cut, moves, progress)


def c_cube(
    topology: Topology,
    collective: Collective,
    *,
    memory: dict[tuple[bytes, int], list[NDArray[np.int32]]] | None = None,
    progress: Progress = None,
) -> Schedule:
    """Use two trees that are laid out on the network, with a link for each edge.

    A search finds the layout for groups of up to 256 NPUs; larger groups use trees in rank order. The `memory` keeps
    layouts for other numbers of chunks.

    >>> import tacos
    >>> topo = tacos.topology.dgx1()
    >>> coll = tacos.collective.all_reduce(topo, "64MB", chunks=8)
    >>> double_binary_tree(topo, coll).time_s > 1.9 * c_cube(topo, coll).time_s
    True
    """

    known = {} if memory is None else memory

    def moves(part: CollectivePart) -> Moves:
        use = (part.group.tobytes(), part.root)
        if use not in known:
            known[use] = _layout(topology, part.group, part.root, progress)
        return named_part(part, block_trees.two_trees(known[use]), progress=progress)

    return by_parts(C_CUBE, topology, _pipelined(topology, collective), moves, progress)


def _obstacle(_topology: Topology, collective: Collective) -> str:
    found = (requirements.kind(part, _has_roots) for part in collective.parts)
    return next(filter(None, found), "")


def _has_roots(kind: Kind) -> bool:
    return kind.spreads and (kind.rooted or kind.two_phases)


def _pipelined(topology: Topology, collective: Collective) -> Collective:
    """Return the collective with an open number of chunks chosen so that (d + K)(α + Sβ/K) is smallest."""
    if collective.resolved or not collective.parts or not topology.links:
        return collective
    latency = max(int(np.median(topology.link_latency_ps)), 1)
    rate = int(np.median(topology.link_bandwidth_Bps))
    chunks = 1
    for part in collective.parts:
        depth = 2 * len(part.group).bit_length()
        best = 2 * isqrt(depth * part.size * 10**12 // (2 * rate) // latency)
        units = 1 if kind_of(part).unit == "buffer" else len(part.group)
        chunks = max(chunks, min(best, _MOST_CHUNKS) // units)
    return collective.with_chunks(chunks)


def _layout(
    topology: Topology, group: NDArray[np.int32], root: int, progress: Progress
) -> list[NDArray[np.int32]]:
    """Return the parents of all ranks in two trees that share few links."""
    n, parent = len(group), block_trees.tree_parents(len(group))
    ranks = np.roll(np.arange(n, dtype=np.int32), -max(root, 0))
    # The other tree is shifted by one except at the root, so leaves become inner nodes.
    place = np.concatenate([ranks, ranks[:1], np.roll(ranks[1:], -1)])
    if 2 < n <= LARGEST_SEARCH:
        src, dst = np.repeat(group, n), np.tile(group, n)
        # No rank sends to itself, so any route can fill these places of the table.
        dst[:: n + 1] = np.roll(group, 1)
        speed = topology.link_bandwidth_Bps
        place = lay_out_trees(
            parent,
            place,
            routes(topology, pairs=(src, dst)),
            np.minimum(2 * int(speed.max()) // speed, _MOST_WEIGHT),
            fixed_root=root >= 0,
            trials=TRIALS,
            progress=progress,
        )
    trees = []
    for ranks in place.reshape(2, n):
        up = np.full(n, -1, np.int32)
        up[ranks[1:]] = ranks[parent[1:]]
        trees.append(up)
    return trees


DOUBLE_BINARY_TREE = Engine(
    name="double-binary-tree",
    solve=double_binary_tree,
    baseline=True,
    obstacle=_obstacle,
    nccl_names={"all_reduce": "tree"},
)
C_CUBE = Engine(
    name="c-cube",
    solve=c_cube,
    baseline=True,
    obstacle=_obstacle,
)
