"""The algorithms everybody knows, for comparison and for the networks they were made for.

With n members, buffers of S bytes, latency α and β seconds per byte, an all-reduce costs

====================  =======================================  ====================================
ring                  2(n-1)α + 2(n-1)/n Sβ                    Patarasuk and Yuan, 2009
bidirectional-ring    2⌊n/2⌋α + (n-1)/n Sβ                     every block half way round both ways
direct                2α + 2/n Sβ with a link to everybody,    reduce-scatter, then all-gather
                      2α + 2(n-1)/n Sβ through one port
one-shot              α + Sβ or α + (n-1)Sβ, likewise          everybody sends everything
halving-doubling      2 lg n α + 2(n-1)/n Sβ                   Rabenseifner, 2004
double-binary-tree    (2d + K)(α + Sβ/K) per tree, depth d,    Sanders, Speck and Träff, 2009; NCCL
                      K chunks, S half of the buffer
c-cube                the same with a link for each edge       C-Cube: Cho et al., 2023
bruck                 2⌈lg n⌉α + 2(n-1)/n Sβ                   Bruck et al., 1997
2d-ring               2⌊n₀/2⌋α + (n₀-1)/n₀ Sβ/2, and with n₁   rings of rows, then of columns
hierarchical          Σ 2(nᵢ-1)αᵢ + 2(nᵢ-1)/nᵢ S/(n₀…nᵢ₋₁)βᵢ   BlueConnect: Cho et al., 2019
swing                 as halving-doubling, with short hops     Swing: De Sensi et al., 2024
themis                2(n-1)/n S / Σ 1/βᵢ with many chunks     Themis: Rashidi et al., 2022
multitree             2(n-1)/n Sβ / links per NPU, nearly      MultiTree: Huang et al., 2021
parameter-server      2α + (n+1)Sβ at a central server         k servers share the work
nccl                  rings over all NICs, trees or NVLS       what stock NCCL chooses
====================  =======================================  ====================================

if members wait for each other after every step. Nothing waits here, so times can be shorter, and
with several chunks they overlap. Most algorithms are in :mod:`tacos.synth.baselines.ways`, the collectives
derived from each in :mod:`tacos.synth.moves`; the larger ones have modules of their own. Routes are those of someone who does not know the
network. An open chunk count becomes 1; to search for a better one is up to the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacos.collective import kind_of
from tacos.schedule import READ_INPUT, REDUCE
from tacos.synth.baselines import ways
from tacos.synth.baselines.multitree import multitree
from tacos.synth.baselines.nccl import nccl
from tacos.synth.baselines.ring_order import ring_order
from tacos.synth.baselines.servers import parameter_server
from tacos.synth.baselines.themis import themis
from tacos.synth.baselines.trees import c_cube, double_binary_tree
from tacos.synth.moves import Moves, by_parts, cut, listed, named_part
from tacos.synth.needs import obstacle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tacos._core import Collective, CollectivePart, Schedule, Topology
    from tacos.synth.baselines.ring_order import Order
    from tacos.synth.moves import Way
    from tacos.synth.needs import Dims

    Progress = Callable[[float], object] | None

__all__ = ["BASELINES", "applicable", "obstacle"]


def ring(
    topology: Topology,
    collective: Collective,
    *,
    order: Order = "search",
    progress: Progress = None,
) -> Schedule:
    """Blocks go round a ring in one direction.

    Args:
        topology, collective: Where, and what to do.
        order: ``"search"`` for a good order of the group, ``"rank"``, or the NPUs in ring order.
        progress: Called with the share done, now and then.

    >>> import tacos
    >>> topo = tacos.topology.ring(4, bandwidth="1GB/s", latency="1us")
    >>> ring(topo, tacos.collective.all_gather(topo, "4KB")).time_s      # 3 (1 us + 1 us)
    6e-06
    """
    return _ring("ring", topology, collective, ways.one_way_ring, order, progress)


def bidirectional_ring(
    topology: Topology,
    collective: Collective,
    *,
    order: Order = "search",
    progress: Progress = None,
) -> Schedule:
    """Every block goes round a ring in both directions, half of the way in each.

    Args:
        topology, collective, order, progress: As for :func:`ring`.

    >>> import tacos
    >>> topo = tacos.topology.ring(5, bandwidth="1GB/s", latency="1us")
    >>> bidirectional_ring(topo, tacos.collective.all_gather(topo, "5KB")).time_s
    4e-06
    """
    return _ring("bidirectional-ring", topology, collective, ways.two_way_ring, order, progress)


def direct(topology: Topology, collective: Collective, *, progress: Progress = None) -> Schedule:
    """Every chunk straight from its holder to each destination; sums straight to their owner.

    It takes every collective.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(4, bandwidth="1GB/s", latency="1us")
    >>> direct(topo, tacos.collective.all_reduce(topo, "4KB")).time_s    # twice 1 us + 1 us
    4e-06
    """

    def moves(part: CollectivePart) -> Moves:
        if kind_of(part).listed:
            return listed(part, topology.npus)
        return named_part(part, ways.star(len(part.group)))

    return by_parts("direct", topology, collective, moves, progress)


def one_shot(topology: Topology, collective: Collective, *, progress: Progress = None) -> Schedule:
    """All-reduce where everybody sends its whole input to everybody.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(4, bandwidth="1GB/s", latency="1us")
    >>> one_shot(topo, tacos.collective.all_reduce(topo, "4KB")).time_ps // 10**6  # 1 us + 4 us
    5
    """

    def moves(part: CollectivePart) -> Moves:
        n = len(part.group)
        src = np.arange(n, dtype=np.int32)
        offset = np.arange(1, n, dtype=np.int32)[:, None]
        pairs = np.broadcast_arrays(part.group, part.group[(src + offset) % n])
        route = ((offset - 1) * n + src)[:, :, None]
        chunk = np.arange(n * part.chunks)
        return Moves.of((pairs[0], pairs[1]), route, chunk, 0, op=REDUCE, reads=READ_INPUT)

    return by_parts("one-shot", topology, collective, moves, progress)


def halving_doubling(
    topology: Topology, collective: Collective, *, progress: Progress = None
) -> Schedule:
    """Partners exchange what they have, twice as much each time; broadcasts are binomial.

    >>> import tacos
    >>> topo = tacos.topology.hypercube(2, bandwidth="1GB/s", latency="1us")
    >>> halving_doubling(topo, tacos.collective.all_gather(topo, "4KB")).time_s
    4e-06
    """

    def moves(part: CollectivePart) -> Moves:
        return named_part(part, ways.halving_doubling(len(part.group)))

    return by_parts("halving-doubling", topology, collective, moves, progress)


def bruck(topology: Topology, collective: Collective, *, progress: Progress = None) -> Schedule:
    """⌈lg n⌉ steps for any n: everybody sends to the member 1, 2, 4, … ahead.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(4, bandwidth="1GB/s", latency="1us")
    >>> bruck(topo, tacos.collective.all_gather(topo, "4KB")).time_s
    4e-06
    """

    def moves(part: CollectivePart) -> Moves:
        return named_part(part, ways.bruck(len(part.group)))

    return by_parts("bruck", topology, collective, moves, progress)


def hierarchical(
    topology: Topology,
    collective: Collective,
    *,
    dims: Dims | None = None,
    order: Sequence[int] | None = None,
    progress: Progress = None,
) -> Schedule:
    """Dimension by dimension: reduce-scatter along the first, …, all-gather back.

    Rings are used both ways where the network has both directions, lines both ways, and in
    everything else (cliques, switches, boxes) chunks go direct.

    Args:
        topology, collective, progress: As for :func:`ring`; the group must be all NPUs.
        dims: Kind and size of each dimension, instead of the topology's own.
        order: In which order sums go through the dimensions; ``[0, 1, …]`` if not given.

    >>> import tacos
    >>> topo = tacos.topology.torus(3, 3, bandwidth="1GB/s", latency="1us")
    >>> coll = tacos.collective.all_reduce(topo, "9KB")
    >>> hierarchical(topo, coll).time_ps // 10**6           # 4 us and 2 us, there and back
    10
    """
    shape = list(topology.dims if dims is None else dims)
    turns = list(range(len(shape)) if order is None else order)
    if sorted(turns) != list(range(len(shape))):
        raise ValueError(f"order is {turns}, it must name each of {len(shape)} dimensions once")
    strides = np.cumprod([1, *(size for _, size in shape)]).tolist()

    def moves(part: CollectivePart) -> Moves:
        # Copies spread in the opposite order of the sums.
        sides = [(*shape[d], strides[d]) for d in reversed(turns) if shape[d][1] > 1]
        inside = [_inside(topology, *side) for side in sides]
        grids = [
            ways.grid(
                [
                    (size, stride, found[k % len(found)])
                    for (_, size, stride), found in zip(sides, inside, strict=True)
                ]
            )
            for k in range(max(map(len, inside), default=1))
        ]
        return named_part(part, grids, np.arange(topology.npus, dtype=np.int32))

    return by_parts("hierarchical", topology, collective, moves, progress, dims=shape, order=turns)


def two_d_ring(
    topology: Topology, collective: Collective, *, progress: Progress = None
) -> Schedule:
    """All-reduce round the rings of one dimension, then of the other: few steps, twice the data.

    Half of the blocks begin with each dimension, and all go both ways.

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
            whole.append(ways.side_by_side(turn[:: -1 if k % 2 else 1], part.group))
        return cut(whole[: part.chunks], part.chunks)

    return by_parts("2d-ring", topology, collective, moves, progress)


def swing(topology: Topology, collective: Collective, *, progress: Progress = None) -> Schedule:
    """Halving-doubling for tori, with partners 1, 1, 3, 5, 11, … away in turn along the dimensions.

    Chunks take turns to start with each dimension and direction: D dimensions are all in use
    from 2·D chunks per NPU on.

    >>> import tacos
    >>> topo = tacos.topology.ring(8, bandwidth="1GB/s", latency="1us")
    >>> swing(topo, tacos.collective.all_reduce(topo, "8KB", chunks=2)).transfers
    224
    """

    def moves(part: CollectivePart) -> Moves:
        sizes = [size for _, size in topology.dims]
        return named_part(part, ways.swing(sizes), np.arange(topology.npus, dtype=np.int32))

    return by_parts("swing", topology, collective, moves, progress)


BASELINES: dict[str, Callable[..., Schedule]] = {
    "nccl": nccl,
    "ring": ring,
    "bidirectional-ring": bidirectional_ring,
    "direct": direct,
    "one-shot": one_shot,
    "halving-doubling": halving_doubling,
    "double-binary-tree": double_binary_tree,
    "c-cube": c_cube,
    "bruck": bruck,
    "2d-ring": two_d_ring,
    "hierarchical": hierarchical,
    "swing": swing,
    "themis": themis,
    "multitree": multitree,
    "parameter-server": parameter_server,
}
"""The baselines by name: functions of a topology and a collective, with options by keyword."""


def applicable(topology: Topology, collective: Collective) -> list[str]:
    """Names of the baselines that can do the collective on the network.

    >>> import tacos
    >>> topo = tacos.topology.mesh(3, 3)
    >>> applicable(topo, tacos.collective.all_to_all(topo, "1MB", group=[0, 1, 2]))
    ['nccl', 'ring', 'bidirectional-ring', 'direct', 'halving-doubling', 'bruck']
    """
    return [name for name in BASELINES if not obstacle(name, topology, collective)]


def _ring(
    name: str,
    topology: Topology,
    collective: Collective,
    algorithm: Callable[[int], Sequence[Way]],
    order: Order,
    progress: Progress,
) -> Schedule:
    origins: set[str] = set()

    def moves(part: CollectivePart) -> Moves:
        npus, origin = ring_order(
            topology,
            part.group,
            order,
            block_bytes=-(-part.size // len(part.group)),
            both_ways=name == "bidirectional-ring",
        )
        origins.add(origin)
        return named_part(part, algorithm(len(npus)), npus)

    schedule = by_parts(name, topology, collective, moves, progress)
    return schedule.with_provenance({**schedule.provenance, "order": ", ".join(sorted(origins))})


def _inside(topology: Topology, kind: str, size: int, stride: int) -> list[Way]:
    """How the hierarchical algorithm goes along one dimension."""
    if kind == "line":
        return ways.line(size)
    if kind != "ring":
        return ways.star(size)
    backwards = (topology.link_src == stride) & (topology.link_dst == 0)
    return ways.two_way_ring(size) if backwards.any() else ways.one_way_ring(size)
