"""Replace switches and relays by paths between members, with capacities from a linear program.

In a network of members only, trees can fill every cut (Edmonds). A switch or relay with as much bandwidth out as in
can be split off without loss; otherwise it matters which of its inputs is joined to which output. The linear program
gives every path between two members a capacity that the links can carry, and maximizes the common rate at which all
roots reach every member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacos._core import reroute_forest
from tacos._support.solver import LinearProgram, solve
from tacos.errors import InfeasibleError
from tacos.topology import from_links

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tacos._core import Forest, Topology

__all__ = ["forest_through_program"]

_MOST_PATHS = 2000
_MOST_FLOWS = 6000
"""Largest linear program; larger ones take more than a few seconds."""
_LEAST = 1e-4
"""Smallest capacity of a path relative to the fastest link; slower paths are left out."""


def forest_through_program(
    topology: Topology,
    members: NDArray[np.int32],
    roots: NDArray[np.int32],
    pack: Callable[[Topology], Forest],
) -> Forest | None:
    """Return trees over paths whose capacities were optimized; None if that is not possible.

    It fails if the network is too large, or if a member can be reached only over paths that are left out as slow.

    Args:
        topology: The network.
        members: The NPUs that the trees reach.
        roots: The NPUs where the trees start.
        pack: Packs trees that fill a network of members only.

    >>> import tacos
    >>> from tacos.synth.forest import packing
    >>> links = [(0, 3, 2e9, 0), (1, 3, 1e9, 0), (2, 3, 1e9, 0)]         # 4 GB/s into a switch,
    >>> links += [(3, 0, 1e9, 0), (3, 1, 1e9, 0), (3, 2, 1e9, 0)]        # 3 GB/s out of it
    >>> network = tacos.topology.from_links(3, links, switches=1)
    >>> packing(network).algbw_Bps                                       # 2/3 enter every NPU
    1500000000.0
    """
    paths: list[list[int]] = []
    for path in _paths(topology, set(members.tolist())):
        paths.append(path)
        if len(paths) > _MOST_PATHS:
            return None
    ends = [(int(topology.link_src[path[0]]), int(topology.link_dst[path[-1]])) for path in paths]
    pairs = sorted(set(ends))
    if len(pairs) * len(members) > _MOST_FLOWS:
        return None
    capacity = _capacities(topology, members, roots, paths, ends, pairs)
    if capacity is None:
        return None
    rows, links, begin = [], [], [0]
    for path, (source, end), bandwidth in zip(paths, ends, capacity.tolist(), strict=True):
        if bandwidth < max(1, _LEAST * int(topology.link_bandwidth_Bps.max())):
            continue
        latency = int(topology.link_latency_ps[path].sum()) / 1e12
        rows.append((source, end, int(bandwidth), latency))
        links += path
        begin.append(len(links))
    logical = from_links(topology.npus, rows, connected=False)
    try:
        trees = pack(logical)
    except InfeasibleError:  # the only path was left out as too slow
        return None
    return reroute_forest(trees, topology, np.array(begin, np.int64), np.array(links, np.int32))


def _paths(topology: Topology, members: set[int]) -> Iterator[list[int]]:
    """Yield all paths between two members that pass no node twice and no other member."""
    leaving: list[list[int]] = [[] for _ in range(topology.nodes)]
    for link, source in enumerate(topology.link_src.tolist()):
        leaving[source].append(link)
    ends = topology.link_dst.tolist()

    def longer(path: list[int], passed: set[int]) -> Iterator[list[int]]:
        node = ends[path[-1]]
        if node in members:
            yield path
            return
        for link in leaving[node]:
            if ends[link] not in passed:
                yield from longer([*path, link], passed | {ends[link]})

    for member in sorted(members):
        for link in leaving[member]:
            if ends[link] != member:
                yield from longer([link], {member, ends[link]})


def _capacities(
    topology: Topology,
    members: NDArray[np.int32],
    roots: NDArray[np.int32],
    paths: list[list[int]],
    ends: list[tuple[int, int]],
    pairs: list[tuple[int, int]],
) -> NDArray[np.float64] | None:
    """Return the bytes per second on each path that maximize the rate.

    The columns are the capacities of the paths, the flow to each member over each pair, and the rate.
    """
    number = {pair: k for k, pair in enumerate(pairs)}
    sinks = members.tolist()
    first, rate = len(paths), len(paths) + len(pairs) * len(sinks)
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []

    def enter(row: int, column: int, value: float) -> None:
        rows.append(row)
        columns.append(column)
        values.append(value)

    scale = float(topology.link_bandwidth_Bps.max())
    upper = (topology.link_bandwidth_Bps / scale).tolist()
    lower = [-np.inf] * topology.links
    for k, path in enumerate(paths):
        for link in path:
            enter(link, k, 1.0)
    for i in range(len(sinks)):
        base = len(upper)
        upper += [0.0] * len(pairs)  # a flow is at most the capacity of its paths
        lower += [-np.inf] * len(pairs)
        for k in range(len(pairs)):
            enter(base + k, first + i * len(pairs) + k, 1.0)
        for k, pair in enumerate(ends):
            enter(base + number[pair], k, -1.0)
    for i, sink in enumerate(sinks):
        base = len(upper)
        upper += [0.0] * len(sinks)  # conservation: outflow is inflow plus the member's rate
        lower += [0.0] * len(sinks)
        place = {member: base + k for k, member in enumerate(sinks)}
        for k, (source, end) in enumerate(pairs):
            for node, sign in ((source, 1.0), (end, -1.0)):
                if node != sink:
                    enter(place[node], first + i * len(pairs) + k, sign)
        for root in roots.tolist():
            if root != sink:
                enter(place[root], rate, -1.0)
    found = solve(
        LinearProgram(
            cost=np.append(np.zeros(rate), -1.0),
            entries=(rows, columns, values),
            row_lower=lower,
            row_upper=upper,
        )
    )
    if found.status != "optimal" or found.values is None:
        return None
    return found.values[: len(paths)] * scale
