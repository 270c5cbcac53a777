"""Algorithms for networks with dimensions, which take one dimension after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacos.synth import requirements
from tacos.synth.baselines import block_trees
from tacos.synth.engine import Engine
from tacos.synth.moves import Moves, by_parts, cut, named_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tacos._core import Collective, CollectivePart, Schedule, Topology
    from tacos.collective import Kind
    from tacos.synth.moves import BlockTrees
    from tacos.synth.requirements import Dims

    Progress = Callable[[float], object] | None

__all__ = [
    "HIERARCHICAL",
    "SWING",
    "TWO_D_RING",
    "grid_obstacle",
    "hierarchical",
    "swing",
    "two_d_ring",
]


def hierarchical(
    topology: Topology,
    collective: Collective,
    *,
    dims: Dims | None = None,
    order: Sequence[int] | None = None,
    progress: Progress = None,
) -> Schedule:
    """Dimension by dimension: reduce-scatter along the first, …, all-gather back.

    Rings are used in both directions if the network has both, and so are lines. In all other dimensions (cliques,
    switches, boxes) chunks go directly.

    Args:
        topology, collective, progress: As for :func:`ring`; the group must be all NPUs.
        dims: Kind and size of each dimension, instead of the topology's own. A topology without dimensions is treated
            as boxes on a switch if the names of its NPUs suggest equal boxes (``a/gpu0``, ``a/gpu1``, ``b/gpu0``, …).
        order: The order in which sums go through the dimensions; ``[0, 1, …]`` by default.

    >>> import tacos
    >>> topo = tacos.topology.torus(3, 3, bandwidth="1GB/s", latency="1us")
    >>> coll = tacos.collective.all_reduce(topo, "9KB")
    >>> hierarchical(topo, coll).time_ps // 10**6           # 4 us and 2 us, there and back
    10
    """
    shape = list(requirements.boxed(topology) if dims is None else dims)
    turns = list(range(len(shape)) if order is None else order)
    if sorted(turns) != list(range(len(shape))):
        raise ValueError(f"order is {turns}; it must name each of the {len(shape)} dimensions once")
    strides = np.cumprod([1, *(size for _, size in shape)]).tolist()

    def moves(part: CollectivePart) -> Moves:
        # Copies spread in the opposite order of the sums.
        sides = [(*shape[d], strides[d]) for d in reversed(turns) if shape[d][1] > 1]
        inside = [_inside(topology, *side) for side in sides]
        grids = [
            block_trees.grid(
                [
                    (size, stride, found[k % len(found)])
                    for (_, size, stride), found in zip(sides, inside, strict=True)
                ]
            )
            for k in range(max(map(len, inside), default=1))
        ]
        return named_part(part, grids, np.arange(topology.npus, dtype=np.int32), progress=progress)

    return by_parts(HIERARCHICAL, topology, collective, moves, progress, dims=shape, order=turns)


def two_d_ring(
    topology: Topology, collective: Collective, *, progress: Progress = None
) -> Schedule:
    """All-reduce along the rings of one dimension, then of the other: few steps, but twice the data.

    Half of the blocks begin with each dimension, and all use both directions.

    >>> import tacos
    >>> topo = tacos.topology.torus(3, 3, bandwidth="1GB/s", latency="1us")
    >>> coll = tacos.collective.all_reduce(topo, "9KB")
    >>> two_d_ring(topo, coll).time_ps // 10**6          # hierarchical: 10
    11
    """
    strides = np.cumprod([1, *(size for _, size in topology.dims)]).tolist()
    sides = [(*dim, at) for dim, at in zip(topology.dims, strides, strict=False) if dim[1] > 1]

    def moves(part: CollectivePart) -> Moves:
        inside = [_inside(topology, *side) for side in sides]
        whole = []
        for k in range(2 * max(map(len, inside))):
            turn = [
                (size, stride, found[k // 2 % len(found)])
                for (_, size, stride), found in zip(sides, inside, strict=True)
            ]
            whole.append(block_trees.side_by_side(turn[:: -1 if k % 2 else 1], part.group))
        return cut(whole[: part.chunks], part.chunks)

    return by_parts(TWO_D_RING, topology, collective, moves, progress)


def swing(topology: Topology, collective: Collective, *, progress: Progress = None) -> Schedule:
    """Halving-doubling for tori, with partners 1, 1, 3, 5, 11, … away in turn along the dimensions.

    Chunks start with different dimensions and directions in turn, so 2·D chunks per NPU use all D dimensions.

    >>> import tacos
    >>> topo = tacos.topology.ring(8, bandwidth="1GB/s", latency="1us")
    >>> swing(topo, tacos.collective.all_reduce(topo, "8KB", chunks=2)).transfers
    224
    """

    def moves(part: CollectivePart) -> Moves:
        sizes = [size for _, size in topology.dims]
        return named_part(
            part,
            block_trees.swing(sizes),
            np.arange(topology.npus, dtype=np.int32),
            progress=progress,
        )

    return by_parts(SWING, topology, collective, moves, progress)


def grid_obstacle(
    topology: Topology,
    collective: Collective,
    dims: Dims | None = None,
    *,
    serves: Callable[[Kind], bool] = lambda _: True,
) -> str:
    """Return the requirement of a dimension-wise algorithm that is not met; empty if all are met.

    Args:
        topology, collective: The problem.
        dims: The dimensions, if not the topology's own.
        serves: Selects the kinds of collective that the algorithm supports; by default all that have a group.

    >>> import tacos
    >>> mesh = tacos.topology.mesh(3, 3)
    >>> grid_obstacle(mesh, tacos.collective.all_reduce(mesh, "1MB", group=[0, 1]))
    'all 9 NPUs, not a group of 2'
    """
    for part in collective.parts:
        if needed := requirements.kind(part, serves) or requirements.members(topology, part):
            return needed
    return requirements.dimensions(topology, topology.dims if dims is None else dims)


def _boxed_obstacle(topology: Topology, collective: Collective, dims: Dims | None = None) -> str:
    return grid_obstacle(
        topology, collective, requirements.boxed(topology) if dims is None else dims
    )


def _two_d_obstacle(topology: Topology, collective: Collective) -> str:
    if needed := grid_obstacle(topology, collective, serves=lambda kind: kind.two_phases):
        return needed
    lines = [kind in {"ring", "line"} for kind, size in topology.dims if size > 1]
    if lines == [True, True]:
        return ""
    return f"a torus or mesh of two dimensions, not {requirements.shape(topology.dims)}"


def _swing_obstacle(topology: Topology, collective: Collective) -> str:
    if needed := grid_obstacle(topology, collective):
        return needed
    if all(kind == "ring" and not size & (size - 1) for kind, size in topology.dims):
        return ""
    return f"a torus whose sizes are powers of two, not {requirements.shape(topology.dims)}"


def _inside(topology: Topology, kind: str, size: int, stride: int) -> list[BlockTrees]:
    """Return the algorithm that the hierarchical engine uses along one dimension."""
    if kind == "line":
        return block_trees.line(size)
    if kind != "ring":
        return block_trees.star(size)
    backwards = (topology.link_src == stride) & (topology.link_dst == 0)
    return block_trees.two_way_ring(size) if backwards.any() else block_trees.one_way_ring(size)


TWO_D_RING = Engine(name="2d-ring", solve=two_d_ring, baseline=True, obstacle=_two_d_obstacle)
HIERARCHICAL = Engine(
    name="hierarchical", solve=hierarchical, baseline=True, obstacle=_boxed_obstacle
)
SWING = Engine(name="swing", solve=swing, baseline=True, obstacle=_swing_obstacle)
