"""A first schedule that has a sketch's symmetry, where the integer program may not find one in time.

Each orbit of chunks has one representative, whose tree is grown by earliest arrival. A hop costs its delay plus the load of its
links, and the images of a hop load their links equally. All images of a transfer are adjacent in the order that is then
timed. Only the identity fixes an NPU, so no hop shares a link with its images. A link and its image therefore serve
images of the same transfers in the same order, and the times are symmetric too.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from tacos.schedule import retime, routes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Collective, Schedule, Topology
    from tacos.synth.milp.problem import Ints, Problem
    from tacos.synth.milp.symmetry import Orbits

__all__ = ["symmetric_start"]


def symmetric_start(
    topology: Topology, collective: Collective, problem: Problem, orbits: Orbits
) -> Schedule | None:
    """Return a schedule whose transfers are mapped onto each other by the symmetries, at the same times.

    Args:
        topology, collective: The network, and a collective that only copies.
        problem: The same problem in epochs of one picosecond.
        orbits: The symmetries; none may fix a chunk.

    Returns:
        The schedule; None where a symmetry fixes a chunk, or an NPU cannot be reached.

    >>> import tacos
    >>> from tacos.synth.milp.problem import hops_of, in_epochs
    >>> from tacos.synth.milp.symmetry import orbits
    >>> ring = tacos.topology.ring(6, bandwidth="1GB/s", latency=0)
    >>> coll = tacos.collective.all_gather(ring, "6KB", chunks=1)
    >>> hops = hops_of(ring)
    >>> turned = orbits(ring, coll, hops, [[1, 2, 3, 4, 5, 0]])
    >>> symmetric_start(ring, coll, in_epochs(ring, coll, hops, 1), turned).time_s  # five chunks over two links
    3e-06
    """
    hops = problem.hops
    representative = orbits.pair_chunk * len(hops) + orbits.pair_hop
    if np.count_nonzero(orbits.pair_leads) * orbits.order != representative.size:
        return None
    by_representative = np.argsort(representative, axis=None, kind="stable")
    sorted_representative = representative.ravel()[by_representative]
    links = [hops.links(hop) for hop in range(len(hops))]
    leaving = [np.flatnonzero(hops.src == npu).tolist() for npu in range(problem.npus)]
    load = np.zeros(topology.links)
    found: list[tuple[int, int, int, int]] = []  # minus the depth below, position, chunk, hop
    for chunk in np.flatnonzero(orbits.pair_leads.all(axis=1)).tolist():

        def carry(hop: int, chunk: int = chunk) -> None:
            first = int(np.searchsorted(sorted_representative, chunk * len(hops) + hop))
            for pair in by_representative[first : first + orbits.order].tolist():
                load[links[pair % len(hops)]] += float(problem.delay[problem.kind[chunk], hop])

        tree = _tree(problem, chunk, leaving, links, load, carry)
        if tree is None:
            return None
        below: dict[int, int] = {}
        for hop in reversed(tree):  # leaves first, so that the depth below is known
            src, dst = int(hops.src[hop]), int(hops.dst[hop])
            below[src] = max(below.get(src, 0), below.get(dst, 0) + 1)
        for hop in tree:
            found.append((-below.get(int(hops.dst[hop]), 0), len(found), chunk, hop))
    found.sort()
    return _timed(topology, collective, problem, representative, [pair[2:] for pair in found])


def _tree(
    problem: Problem,
    chunk: int,
    leaving: list[list[int]],
    links: list[list[int]],
    load: NDArray[np.float64],
    carry: Callable[[int], None],
) -> list[int] | None:
    """Return the hops of a chunk's tree, from its holders to all NPUs that need it, parents first."""
    hops, delay = problem.hops, problem.delay[problem.kind[chunk]]
    queue: list[tuple[float, int]] = []
    reached = {int(npu): 0.0 for npu in np.flatnonzero(problem.holds[chunk])}
    order: list[int] = []

    def arrival(hop: int) -> float:
        waits: float = load[links[hop]].max()
        return max(reached[int(hops.src[hop])], waits) + float(delay[hop])

    def offer(npu: int) -> None:
        for hop in leaving[npu]:
            if problem.allowed[chunk, hop] and int(hops.dst[hop]) not in reached:
                heappush(queue, (arrival(hop), hop))

    for npu in list(reached):
        offer(npu)
    while queue:
        at, hop = heappop(queue)
        npu = int(hops.dst[hop])
        if npu in reached:
            continue
        if (now := arrival(hop)) > at:  # the load of its links has grown since
            heappush(queue, (now, hop))
            continue
        reached[npu] = at
        order.append(hop)
        carry(hop)
        offer(npu)
    wanted = set(np.flatnonzero(problem.wants[chunk]).tolist())
    if not wanted <= set(reached):
        return None
    kept = []
    for hop in reversed(order):
        if int(hops.dst[hop]) in wanted:
            kept.append(hop)
            wanted.add(int(hops.src[hop]))
    return kept[::-1]


def _timed(
    topology: Topology,
    collective: Collective,
    problem: Problem,
    representative: Ints,
    leads: list[tuple[int, int]],
) -> Schedule:
    """Time all images of the pairs (chunk, hop) as early as possible; the images of a pair are adjacent."""
    width = len(problem.hops)
    place = np.full(representative.size, -1)
    place[[chunk * width + hop for chunk, hop in leads]] = np.arange(len(leads))
    rank = place[representative.ravel()]
    pairs = np.flatnonzero(rank >= 0)
    pairs = pairs[np.argsort(rank[pairs], kind="stable")]
    chunk, hop = pairs // width, pairs % width
    depth = np.zeros((problem.chunks, problem.npus), np.int64)
    step = np.zeros(len(pairs), np.int64)
    for _ in range(problem.npus):  # a hop follows the one that brought the chunk
        step = depth[chunk, problem.hops.src[hop]]
        depth[chunk, problem.hops.dst[hop]] = step + 1
    used, route = np.unique(hop, return_inverse=True)
    return retime(
        collective,
        routes(topology, links=[problem.hops.links(int(one)) for one in used]),
        route=route.ravel().astype(np.int32),
        chunk=chunk,
        step=step,
    )
