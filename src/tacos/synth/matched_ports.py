"""Networks in which every port between boxes has one peer, so that no two messages share it.

A switch lets each NPU send to many others through one port. Messages to several peers then share the sender's port, and
messages from several senders share the receiver's port, in an order that no executor keeps. Often the same bandwidth can
be reached with one peer for each port: NPU j of a box sends to NPU j of another. :func:`matched_ports` replaces such switches by
links from port to port. A schedule found there is one of the real network, and its links belong to one connection each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Routes, Schedule, fields
from tacos.topology.links import Links, assemble, columns_of, model_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["MatchedPorts", "matched_ports"]


@dataclass(frozen=True, slots=True)
class MatchedPorts:
    """A network with links from port to port, and their paths in the real network.

    Attributes:
        topology: The network to search on.
        whole: The real network.
        link_begin, links: Link k of `topology` is the path ``links[link_begin[k]:link_begin[k + 1]]`` of `whole`.
    """

    topology: Topology
    whole: Topology
    link_begin: NDArray[np.int64]
    links: NDArray[np.int32]

    def returned(self, schedule: Schedule) -> Schedule:
        """Convert a schedule of `topology` to one of the real network, with the same times.

        >>> import tacos
        >>> found = matched_ports(tacos.topology.mi250(2))
        >>> coll = tacos.collective.all_gather(found.topology, "32MB", chunks=1)
        >>> there = tacos.synthesize(found.topology, coll, engine="forest")
        >>> back = found.returned(there)
        >>> back.topology == found.whole, back.time_ps == there.time_ps, tacos.verify(back).ok
        (True, True, True)
        """
        whole = schedule.expand() if schedule.form == "orbit" else schedule
        old = whole.routes
        lengths = np.diff(self.link_begin)[old.links]
        begin = np.concatenate([[0], np.cumsum(lengths)])
        place = np.repeat(self.link_begin[old.links] - begin[:-1], lengths) + np.arange(begin[-1])
        table = Routes(self.whole, old.kinds, begin[old.link_begin], self.links[place])
        return _over(whole, table, whole.lane_route)

    def taken(self, schedule: Schedule) -> Schedule | None:
        """Convert a schedule of the real network to one of `topology`; None if it uses a port for several peers.

        >>> import tacos
        >>> topo = tacos.topology.mi300x(2)
        >>> coll = tacos.collective.all_gather(topo, "16MB", chunks=1)
        >>> found = matched_ports(topo)
        >>> there = found.taken(tacos.synthesize(topo, coll, engine="forest", ports="matched"))
        >>> there.topology == found.topology
        True
        >>> found.taken(tacos.synthesize(topo, coll, engine="greedy")) is None
        True
        """
        whole = schedule.expand() if schedule.form == "orbit" else schedule
        old = whole.routes
        used, lane_route = np.unique(whole.lane_route, return_inverse=True)
        number = {tuple(path): k for k, path in enumerate(self._paths())}
        begin, links = [0], []
        for route in used.tolist():
            path = old.links[old.link_begin[route] : old.link_begin[route + 1]].tolist()
            while path:
                step = 1 if (path[0],) in number else 2
                if (link := number.get(tuple(path[:step]))) is None:
                    return None
                links.append(link)
                path = path[step:]
            begin.append(len(links))
        table = Routes(
            self.topology, old.kinds[used], np.array(begin, np.int64), np.array(links, np.int32)
        )
        return _over(whole, table, lane_route.astype(np.int32))

    def _paths(self) -> list[list[int]]:
        begin, links = self.link_begin.tolist(), self.links.tolist()
        return [links[a:b] for a, b in pairwise(begin)]


def _over(schedule: Schedule, routes: Routes, lane_route: NDArray[np.int32]) -> Schedule:
    """Return the transfers at the same times over other routes."""
    changed = {"routes": routes, "lane_route": lane_route, "bound_ps": None, "matched_ports": False}
    return Schedule(**(fields(schedule) | changed))


def matched_ports(topology: Topology) -> MatchedPorts | None:
    """Return the network with one peer for each port between boxes; None if no switch can be replaced in this way.

    A switch is replaced if it joins the NPUs at the same places of several boxes, with one port per NPU and direction, and
    is slower than an NPU's links within its box. Boxes are the parts that stay connected without these switches. The
    port of place j leads j mod (boxes − 1) + 1 boxes further, so any two boxes are close over some of their ports.

    >>> import tacos
    >>> found = matched_ports(tacos.topology.dgx_h100(2))
    >>> found.topology
    <tacos.Topology custom: 16 NPUs, 2 switches, 48 links>
    >>> matched_ports(tacos.topology.switch(8)) is None
    True
    """
    # A blocking link is busy during its latency as well: one link would be busy longer than the two that it stands for.
    if topology.forwarding != "cut_through" or topology.link_model != "pipelined":
        return None
    replaced = _between_boxes(topology) if topology.switches else {}
    if not replaced:
        return None
    box = _boxes(topology, replaced)
    boxes = int(box.max()) + 1
    place = np.zeros(topology.npus, np.int64)
    for one in range(boxes):
        place[box == one] = np.arange(np.count_nonzero(box == one))
    if boxes < 2:
        return None
    rows: list[tuple[int, int, int, int]] = []
    paths: list[list[int]] = []
    for into, out in replaced.values():
        at = {(int(box[npu]), int(place[npu])): npu for npu in into}
        places = sorted({j for _, j in at})
        if len(at) != boxes * len(places):
            return None
        for (one, j), npu in sorted(at.items()):
            peer = at[(one + 1 + j % (boxes - 1)) % boxes, j]
            path = [into[npu], out[peer]]
            slowest = int(topology.link_bandwidth_Bps[path].min())
            rows.append((npu, peer, slowest, int(topology.link_latency_ps[path].sum())))
            paths.append(path)
    number = np.cumsum([node not in replaced for node in range(topology.nodes)]) - 1
    gone = list(replaced)
    kept = ~np.isin(topology.link_src, gone) & ~np.isin(topology.link_dst, gone)
    src, dst, bandwidth, latency = (np.asarray(column)[kept] for column in columns_of(topology))
    columns = np.array(rows, np.int64).T
    network = assemble(
        topology.npus,
        [Links(number[src], number[dst], bandwidth, latency), Links(*columns)],
        capabilities=np.delete(topology.switch_capabilities, np.array(gone) - topology.npus),
        **model_of(topology),
    )
    direct = np.flatnonzero(kept)
    links = np.concatenate([direct, np.ravel(paths)]).astype(np.int32)
    begin = np.concatenate([np.arange(len(direct)), len(direct) + 2 * np.arange(len(paths) + 1)])
    return MatchedPorts(network, topology, begin, links)


def _between_boxes(topology: Topology) -> dict[int, tuple[dict[int, int], dict[int, int]]]:
    """Return the switches that can be replaced, with the links into them and out of them by NPU."""
    speed, npus = topology.link_bandwidth_Bps, topology.npus
    fastest = np.zeros(topology.nodes, np.int64)
    np.maximum.at(fastest, topology.link_src, speed)
    found: dict[int, tuple[dict[int, int], dict[int, int]]] = {}
    for switch in range(npus, topology.nodes):
        if topology.switch_capabilities[switch - npus]:
            continue
        into, out = (
            np.flatnonzero(ends == switch) for ends in (topology.link_dst, topology.link_src)
        )
        sources, ends = topology.link_src[into], topology.link_dst[out]
        joined = np.unique(sources)
        one_each = len(joined) == len(into) == len(out) and np.array_equal(joined, np.unique(ends))
        if not one_each or len(joined) < 2 or joined.max() >= npus:
            continue
        if (speed[into] < fastest[sources]).all():
            found[switch] = (
                dict(zip(sources.tolist(), into.tolist(), strict=True)),
                dict(zip(ends.tolist(), out.tolist(), strict=True)),
            )
    return found


def _boxes(topology: Topology, without: dict[int, Any]) -> NDArray[np.int64]:
    """Return the box of each NPU: boxes stay connected without some switches, and are numbered by their first NPU."""
    first = list(range(topology.nodes))

    def root(node: int) -> int:
        while first[node] != node:
            first[node] = first[first[node]]
            node = first[node]
        return node

    for a, b in zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True):
        if a not in without and b not in without:
            low, high = sorted((root(a), root(b)))
            first[high] = low
    boxes: NDArray[np.int64] = np.unique(
        [root(npu) for npu in range(topology.npus)], return_inverse=True
    )[1].astype(np.int64)
    return boxes
