"""Networks in which every port between boxes has one peer, so that no two messages share it.

A switch lets each NPU send to many others through one port. Messages to several peers then share the sender's port, and
messages from several senders share the receiver's port, in an order that no executor keeps. Often the same bandwidth can
be reached with one peer for each port: NPU j of a box sends to NPU j of another. :func:`matched_ports` replaces such switches by
links from port to port. A schedule found there can be run on the real network, and each link belongs to one connection.

Where some NPUs of a box share a port, each of them gets an equal share of it. In the real network they take turns: chunks of
equal size that are served whole, in the order in which they are ready, all arrive in the time that a share would take.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacos._core import Routes, Schedule, fields
from tacos.errors import TacosError
from tacos.topology.links import Links, assemble, columns_of, model_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["MatchedPorts", "matched_ports"]

_SPARE = 4096
"""A shared port leaves 1/4096 of its bandwidth unused, for times that are rounded up and for chunks a byte longer."""


@dataclass(frozen=True, slots=True)
class MatchedPorts:
    """A network with links from port to port, and their paths in the real network.

    Attributes:
        topology: The network to search on.
        whole: The real network.
        link_begin, links: Link k of `topology` is the path ``links[link_begin[k]:link_begin[k + 1]]`` of `whole`.
        port: Per link of `topology`, the port that several NPUs share, as a link of `whole`; -1 if it has no such port.
    """

    topology: Topology
    whole: Topology
    link_begin: NDArray[np.int64]
    links: NDArray[np.int32]
    port: NDArray[np.int32]

    @property
    def shared(self) -> bool:
        """Whether NPUs take turns at a port."""
        return bool((self.port >= 0).any())

    def returned(self, schedule: Schedule) -> Schedule:
        """Convert a schedule of `topology` to one of the real network.

        Times stay the same, except that NPUs that share a port take turns at it.

        Raises:
            TacosError: The chunks are too small, or differ too much, for NPUs to take turns in time.

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
        start = self._in_turn(whole) if self.shared else whole.start
        return _over(whole, table, whole.lane_route, start)

    def _in_turn(self, schedule: Schedule) -> NDArray[np.uint32]:
        """Return the starts of a schedule of `topology` if NPUs that share a port take turns, first come, first served.

        With k NPUs at a port, a chunk waits for at most one chunk of each other NPU. So it arrives within k times its
        own sending time, the time that it would take on a k-th of the port.
        """
        table, quantum = schedule.routes, schedule.quantum_ps
        stops = self.topology.link_dst < self.topology.npus  # where a leg of a route ends
        starts = np.array(schedule.start, np.int64)
        used: list[NDArray[np.int64]] = []  # which start, over which link, of which chunk
        end = 0
        for lane, route in enumerate(schedule.lane_route.tolist()):
            chunks = schedule.chunk[schedule.lane_begin[lane] : schedule.lane_begin[lane + 1]]
            path = table.links[table.link_begin[route] : table.link_begin[route + 1]]
            for link in path[stops[path]].tolist():
                begin, end = end, end + len(chunks)
                if self.port[link] >= 0:
                    rows = np.arange(begin, end)
                    used.append(np.stack([rows, np.full(len(rows), link), chunks]))
        if not used:
            return schedule.start
        row, link, chunk = np.concatenate(used, axis=1)
        order = np.lexsort((link, starts[row], self.port[link]))
        row, link, port = row[order], link[order], self.port[link[order]]
        size = schedule.collective.chunk_bytes()[chunk[order]]
        alone, share = (
            _sending_ps(size, speed[link])
            for speed in (self._speeds_alone(), self.topology.link_bandwidth_Bps)
        )
        taken = -(-alone // quantum)
        late = np.zeros(len(row), np.int64)
        for one in np.unique(port):
            mine = np.flatnonzero(port == one)
            ready = starts[row[mine]]
            before = np.cumsum(taken[mine]) - taken[mine]
            late[mine] = before + np.maximum.accumulate(ready - before) - ready
        starts[row] += late
        if (late * quantum + alone > share).any() or int(starts.max()) > np.iinfo(np.uint32).max:
            raise TacosError(
                "NPUs cannot take turns at a shared port in time, since the chunks are too small or too unequal: "
                "choose fewer chunks, or leave ports out"
            )
        return starts.astype(np.uint32)

    def _speeds_alone(self) -> NDArray[np.int64]:
        """Return the bandwidth of each link of `topology` for an NPU that has its port to itself."""
        speeds = self.whole.link_bandwidth_Bps[self.links]
        return np.minimum.reduceat(speeds, self.link_begin[:-1])

    def taken(self, schedule: Schedule) -> Schedule | None:
        """Convert a schedule of the real network to one of `topology`; None if it uses a port for several peers or NPUs.

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
        if self.shared:
            return None
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
        return _over(whole, table, lane_route.astype(np.int32), whole.start)

    def _paths(self) -> list[list[int]]:
        begin, links = self.link_begin.tolist(), self.links.tolist()
        return [links[a:b] for a, b in pairwise(begin)]


def _over(
    schedule: Schedule, routes: Routes, lane_route: NDArray[np.int32], start: NDArray[np.uint32]
) -> Schedule:
    """Return the schedule with other routes and starts."""
    changed = {"routes": routes, "lane_route": lane_route, "start": start}
    forgotten = {"bound_ps": None, "matched_ports": False, "executed_ps": None}
    return Schedule(**(fields(schedule) | changed | forgotten))


def _sending_ps(size: NDArray[np.int64], speed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how long it takes to send, rounded up; there are few different sizes and speeds."""
    pairs, place = np.unique(np.stack([size, speed]), axis=1, return_inverse=True)
    times = [-(-size * 10**12 // speed) for size, speed in pairs.T.tolist()]
    return np.array(times, np.int64)[place.ravel()]


def matched_ports(topology: Topology) -> MatchedPorts | None:
    """Return the network with one peer for each port between boxes; None if no switch can be replaced in this way.

    A switch is replaced if it joins the NPUs at the same places of several boxes, with one port per NPU and direction, and
    is slower than an NPU's links within its box. Boxes are the parts that stay connected without these switches. The
    port of place j leads j mod (boxes − 1) + 1 boxes further, so any two boxes are close over some of their ports.
    NPUs may share a port through a switch of their own, whose links are all as fast as the port.

    >>> import tacos
    >>> found = matched_ports(tacos.topology.dgx_h100(2))
    >>> found.topology
    <tacos.Topology custom: 16 NPUs, 2 switches, 48 links>
    >>> matched_ports(tacos.topology.dgx2(2)).topology      # two NPUs share a NIC
    <tacos.Topology custom: 32 NPUs, 2 switches, 96 links>
    >>> matched_ports(tacos.topology.switch(8)) is None
    True
    """
    # A blocking link is busy during its latency as well: one link would be busy longer than the two that it replaces.
    if topology.forwarding != "cut_through" or topology.link_model != "pipelined":
        return None
    fabrics = _between_boxes(topology) if topology.switches else []
    if not fabrics:
        return None
    gone = sorted({switch for fabric in fabrics for switch in fabric.switches})
    box = _boxes(topology, set(gone))
    boxes = int(box.max()) + 1
    place = np.zeros(topology.npus, np.int64)
    for one in range(boxes):
        place[box == one] = np.arange(np.count_nonzero(box == one))
    if boxes < 2:
        return None
    rows: list[tuple[int, int, int, int]] = []
    paths: list[list[int]] = []
    ports: list[int] = []
    for fabric in fabrics:
        at = {(int(box[npu]), int(place[npu])): npu for npu in fabric.ways}
        places = sorted({j for _, j in at})
        if len(at) != boxes * len(places):
            return None
        for (one, j), npu in sorted(at.items()):
            sharing = fabric.ways[npu].sharing
            number = min(int(place[other]) for other in sharing) // len(sharing)
            peer = at[(one + 1 + number % (boxes - 1)) % boxes, j]
            if {int(place[n]) for n in sharing} != {
                int(place[n]) for n in fabric.ways[peer].sharing
            }:
                return None
            path = [*fabric.ways[npu].out, *fabric.ways[peer].into]
            speed = int(topology.link_bandwidth_Bps[path].min())
            if len(sharing) > 1:
                speed = speed // len(sharing) * (_SPARE - 1) // _SPARE
            rows.append((npu, peer, speed, int(topology.link_latency_ps[path].sum())))
            paths.append(path)
            ports.append(path[1] if len(sharing) > 1 else -1)
    number_of = np.cumsum([node not in gone for node in range(topology.nodes)]) - 1
    kept = ~np.isin(topology.link_src, gone) & ~np.isin(topology.link_dst, gone)
    src, dst, bandwidth, latency = (np.asarray(column)[kept] for column in columns_of(topology))
    columns = np.array(rows, np.int64).T
    network = assemble(
        topology.npus,
        [Links(number_of[src], number_of[dst], bandwidth, latency), Links(*columns)],
        capabilities=np.delete(topology.switch_capabilities, np.array(gone) - topology.npus),
        **model_of(topology),
    )
    direct = np.flatnonzero(kept)
    links = np.concatenate([direct, *paths]).astype(np.int32)
    lengths = [1] * len(direct) + [len(path) for path in paths]
    port = np.array([-1] * len(direct) + ports, np.int32)
    return MatchedPorts(network, topology, np.cumsum([0, *lengths]), links, port)


class _Way(NamedTuple):
    """How an NPU reaches a switch between boxes.

    Attributes:
        out, into: The links to the switch, and those from it.
        sharing: The NPUs that share the port, itself among them.
    """

    out: list[int]
    into: list[int]
    sharing: list[int]


class _Fabric(NamedTuple):
    """A switch that can be replaced, the switches through which NPUs share its ports, and the NPUs that it joins."""

    switches: list[int]
    ways: dict[int, _Way]


def _between_boxes(topology: Topology) -> list[_Fabric]:
    """Return the switches that can be replaced."""
    speed, npus = topology.link_bandwidth_Bps, topology.npus
    fastest = np.zeros(topology.nodes, np.int64)
    np.maximum.at(fastest, topology.link_src, speed)
    ends = {switch: _neighbours(topology, switch) for switch in range(npus, topology.nodes)}
    found: list[_Fabric] = []
    for switch, around in ends.items():
        if len(around) < 2:
            continue
        ways: dict[int, _Way] = {}
        below = [node for node in around if node >= npus]
        for node, (to_switch, from_switch) in around.items():
            if node < npus:
                ways[node] = _Way([to_switch], [from_switch], [node])
                continue
            sharing = {npu: links for npu, links in ends[node].items() if npu != switch}
            used = [link for links in ends[node].values() for link in links]
            if not sharing or max(sharing) >= npus or len(set(speed[used].tolist())) > 1:
                break
            for npu, (up, down) in sharing.items():
                ways[npu] = _Way([up, to_switch], [from_switch, down], list(sharing))
        else:
            slow = all(speed[way.out[0]] < fastest[npu] for npu, way in ways.items())
            if slow and len(below) in (0, len(around)):
                found.append(_Fabric([switch, *below], ways))
    return found


def _neighbours(topology: Topology, switch: int) -> dict[int, tuple[int, int]]:
    """Return the links from and to each neighbour of a switch that only forwards; empty unless each has one of both."""
    if topology.switch_capabilities[switch - topology.npus]:
        return {}
    into, out = (np.flatnonzero(ends == switch) for ends in (topology.link_dst, topology.link_src))
    arriving = dict(zip(topology.link_src[into].tolist(), into.tolist(), strict=True))
    leaving = dict(zip(topology.link_dst[out].tolist(), out.tolist(), strict=True))
    if not len(into) == len(out) == len(arriving) == len(leaving) or set(arriving) != set(leaving):
        return {}
    return {node: (link, leaving[node]) for node, link in sorted(arriving.items())}


def _boxes(topology: Topology, without: set[int]) -> NDArray[np.int64]:
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
