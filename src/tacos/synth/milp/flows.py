"""Exchanges between pairs as a flow: a linear program distributes bytes over paths, which chunks then follow.

If every chunk goes from one NPU to one other, copies do not help. Without latencies and with divisible chunks,
the best routing is then a concurrent flow, a linear program with one commodity per source. The chunks take, one
by one, the widest path through the rest of their source's flow.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from tacos._support.solver import LinearProgram, solve
from tacos.schedule import retime, routes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Collective, Schedule, Topology
    from tacos.synth.milp.problem import Hops, Ints

    Floats = NDArray[np.float64]

__all__ = ["concurrent_flow", "pairs_by_flow"]

_MOST_COLUMNS = 60_000
_MOST_CHUNKS = 20_000


def pairs_by_flow(topology: Topology, collective: Collective, hops: Hops) -> Schedule | None:
    """Return a schedule of an exchange between pairs; None for other collectives and if the problem is too large.

    >>> import tacos
    >>> from tacos.synth.milp.problem import hops_of
    >>> box = tacos.topology.dgx1(latency="0s")
    >>> coll = tacos.collective.all_to_all(box, "8MB", chunks=2)
    >>> tacos.verify(pairs_by_flow(box, coll, hops_of(box))).ok
    True
    """
    if collective.chunks > _MOST_CHUNKS:
        return None
    ends = [(collective.inputs(c), collective.outputs(c)) for c in range(collective.chunks)]
    if any(len(before) != 1 or len(after) > 1 for before, after in ends):
        return None
    chunk = np.array([c for c, (a, b) in enumerate(ends) if b and a != b], np.int64)
    if not len(chunk):
        return None
    src = np.array([ends[c][0][0] for c in chunk])
    dst = np.array([ends[c][1][0] for c in chunk])
    size = collective.chunk_bytes()[chunk]
    demand = np.zeros((topology.npus, topology.npus))
    np.add.at(demand, (src, dst), size)
    if np.count_nonzero(demand.sum(axis=1)) * len(hops) > _MOST_COLUMNS:
        return None
    flow = concurrent_flow(topology, hops, demand)
    if flow is None:
        return None
    paths = _rounded(hops, flow, src, dst, size)
    rows = np.array(
        [
            (hop, chunk[i], step, len(path) - step)
            for i, path in enumerate(paths)
            for step, hop in enumerate(path)
        ]
    )
    rows = rows[np.lexsort((rows[:, 1], -rows[:, 3], rows[:, 2]))]  # the longest path first
    used, route = np.unique(rows[:, 0], return_inverse=True)
    table = routes(topology, links=[hops.links(int(hop)) for hop in used])
    return retime(collective, table, route=route.ravel(), chunk=rows[:, 1], step=rows[:, 2])


def concurrent_flow(topology: Topology, hops: Hops, demand: Floats) -> Floats | None:
    """Return the matrix [source, hop] of bytes over each hop that minimizes the time.

    None if the solver gives up.

    >>> import tacos
    >>> from tacos.synth.milp.problem import hops_of
    >>> ring = tacos.topology.ring(4)
    >>> concurrent_flow(ring, hops_of(ring), np.ones((4, 4)) - np.eye(4)).sum(axis=1)
    array([4., 4., 4., 4.])
    """
    npus, count = topology.npus, len(hops)
    sources = np.flatnonzero(demand.sum(axis=1))
    scale = float(demand.max()) or 1.0
    slowest = float(topology.link_bandwidth_Bps.min())
    share = slowest / topology.link_bandwidth_Bps
    k, h = (grid.ravel() for grid in np.indices((len(sources), count)))
    ku, u = (grid.ravel() for grid in np.indices((len(sources), len(hops.use_hop))))
    first_link = len(sources) * npus
    row = np.concatenate(
        [k * npus + hops.dst[h], k * npus + hops.src[h], first_link + hops.use_link[u],
         first_link + np.arange(topology.links)]
    )  # fmt: skip
    column = np.concatenate(
        [k * count + h, k * count + h, ku * count + hops.use_hop[u],
         np.full(topology.links, len(sources) * count)]
    )  # fmt: skip
    value = np.concatenate(
        [
            np.ones(len(k)),
            np.full(len(k), -1.0),
            share[hops.use_link[u]],
            np.full(topology.links, -1.0),
        ]
    )
    wanted = demand[sources] / scale
    wanted[np.arange(len(sources)), sources] -= wanted.sum(axis=1)
    columns = len(sources) * count + 1
    cost = np.full(columns, 1e-6)  # prefer, among the fastest flows, few hops and no cycles
    cost[-1] = 1.0
    found = solve(
        LinearProgram(
            cost=cost,
            entries=(row, column, value),
            row_lower=np.append(wanted.ravel(), np.full(topology.links, -np.inf)),
            row_upper=np.append(wanted.ravel(), np.zeros(topology.links)),
        )
    )
    if found.status != "optimal" or found.values is None:
        return None
    flow = np.zeros((npus, count))
    flow[sources] = found.values[:-1].reshape(len(sources), count)
    return flow * scale


def _rounded(hops: Hops, flow: Floats, src: Ints, dst: Ints, size: Ints) -> list[list[int]]:
    """Return a path for each chunk, and subtract its bytes from the flow of its source."""
    leaving: list[list[tuple[int, int]]] = [[] for _ in range(flow.shape[0])]
    for hop, (a, b) in enumerate(zip(hops.src.tolist(), hops.dst.tolist(), strict=True)):
        leaving[a].append((hop, b))
    left = flow.copy()
    paths = []
    # Pairs take turns, so that rounding errors spread.
    for i in range(len(src)):
        path = _widest(leaving, left[src[i]], int(src[i]), int(dst[i]))
        left[src[i], path] -= size[i]
        paths.append(path)
    return paths


def _widest(leaving: list[list[tuple[int, int]]], left: Floats, src: int, dst: int) -> list[int]:
    """Return the path with the largest remaining bottleneck; of several, the one with the fewest hops."""
    best: dict[int, tuple[float, int]] = {}
    back: dict[int, tuple[int, int]] = {}
    heap = [(-np.inf, 0, src, -1, -1)]
    while heap:
        narrow, steps, node, hop, before = heapq.heappop(heap)
        if node in best:
            continue
        best[node] = narrow, steps
        back[node] = hop, before
        if node == dst:
            break
        for link, end in leaving[node]:
            if end not in best:
                heapq.heappush(heap, (max(narrow, -float(left[link])), steps + 1, end, link, node))
    path = []
    node = dst
    while node != src:
        hop, node = back[node]
        path.append(hop)
    return path[::-1]
