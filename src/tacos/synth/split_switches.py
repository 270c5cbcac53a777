"""Networks whose switches are replaced by links from port to port, each port with as few peers as possible.

A switch lets each port send to all others. Engines that use this freely find schedules that are fast ideally, but whose messages
meet at the ports when they are executed, in an order that no executor keeps. Often the same bandwidth is reached if each port
sends to one other port and receives from one: data goes round such a ring of ports, and whatever is slow or missing only makes the
ring shorter. :func:`split_switches` replaces one switch after the other in this way (*splitting off*, as in ForestColl, but with few
links). Unlike :func:`tacos.synth.matched_ports.matched_ports` it does not ask for equal boxes, so it suits broken and mixed networks.

The ring of a switch. Its ports lie on a circle, each as an arc as long as its bandwidth, in both directions. What a port sends
goes to the ports whose arcs lie one longest arc further. Ports of equal bandwidth so have one peer each; a slower one shares a peer with
its neighbour. Around a switch between boxes, ports of different boxes follow each other, in an order that differs from port to port, so that
every two boxes are close.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacos._core import Routes, Schedule, channel_routes, fields, shortest_routes
from tacos.topology.links import Links, assemble, model_of, raise_if_disconnected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["SplitSwitches", "split_switches"]

_LATEST = np.iinfo(np.uint32).max
_MOST = 4096
"""Largest number of NPUs, since links are listed in Python (chosen)."""


@dataclass(frozen=True, slots=True)
class SplitSwitches:
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

    @property
    def shared(self) -> bool:
        """Whether messages of several links meet at a port."""
        return len(np.unique(self.links)) < len(self.links)

    def returned(self, schedule: Schedule) -> Schedule:
        """Convert a schedule of `topology` to one of the real network.

        Times stay the same, unless ports are shared: their transfers then take turns, in the order of the schedule.

        >>> import tacos
        >>> two = tacos.topology.dgx_a100(2)
        >>> found = split_switches(tacos.topology.drop_links(two, "npu 3-switch 2", both=True))
        >>> coll = tacos.collective.all_reduce(found.topology, "64MB", chunks=8)
        >>> there = tacos.synthesize(found.topology, coll, engine="greedy")
        >>> back = found.returned(there)
        >>> back.topology == found.whole, back.time_ps == there.time_ps, tacos.verify(back).ok
        (True, True, True)
        """
        listed = schedule.expand()
        old = listed.routes
        lengths = np.diff(self.link_begin)[old.links]
        begin = np.concatenate([[0], np.cumsum(lengths)])
        place = np.repeat(self.link_begin[old.links] - begin[:-1], lengths) + np.arange(begin[-1])
        table = Routes(self.whole, old.kinds, begin[old.link_begin], self.links[place])
        start, quantum = listed.start, listed.quantum_ps
        if self.shared:
            # Later starts may need a larger quantum to fit.
            while (times := self._in_order(listed, table, quantum)).max(initial=0) > _LATEST:
                quantum *= 2
            start = times.astype(np.uint32)
        changed = {"routes": table, "start": start, "quantum_ps": quantum}
        forgotten = {"bound_ps": None, "executed_ps": None}
        return Schedule(**(fields(listed) | changed | forgotten))

    def _in_order(self, schedule: Schedule, table: Routes, quantum: int) -> NDArray[np.int64]:
        """Return the earliest starts, in quanta, at which every link serves the transfers in the order of the schedule.

        A transfer reads what has arrived when it starts in the schedule, and no transfer overtakes an earlier one.
        """
        network = self.whole
        route = np.repeat(schedule.lane_route, np.diff(schedule.lane_begin)).tolist()
        chunk = schedule.chunk.tolist()
        planned = schedule.start.astype(np.int64) * schedule.quantum_ps
        size = schedule.collective.chunk_bytes().tolist()
        paths = [_Path.of(network, path) for path in _rows(table)]
        before = [_Path.of(self.topology, path) for path in _rows(schedule.routes)]
        free = [0] * network.links
        there: dict[tuple[int, int], int] = {}  # when a chunk is at an NPU
        coming: list[tuple[int, tuple[int, int], int]] = []
        starts = np.zeros(len(chunk), np.int64)
        for one in np.argsort(planned, kind="stable").tolist():
            path, amount = paths[route[one]], size[chunk[one]]
            while coming and coming[0][0] <= planned[one]:
                _, place, arrival = heappop(coming)
                there[place] = max(there.get(place, 0), arrival)
            start = there.get((path.src, chunk[one]), 0)
            for link, offset in zip(path.links, path.offsets, strict=True):
                start = max(start, free[link] - offset)
            start = -(-start // quantum) * quantum
            starts[one] = start
            sending = path.sending(amount)
            for link, offset, busy in zip(path.links, path.offsets, sending, strict=True):
                free[link] = start + offset + busy
            old = before[route[one]]
            due = int(planned[one]) + old.latency_ps + max(old.sending(amount))
            place = path.dst, chunk[one]
            heappush(coming, (due, place, start + path.latency_ps + max(sending)))
        return starts // quantum


class _Path(NamedTuple):
    """A route as a path of links."""

    src: int
    dst: int
    links: list[int]
    offsets: list[int]
    """When the head of a message reaches each link."""
    speeds: list[int]
    latency_ps: int

    @classmethod
    def of(cls, topology: Topology, links: NDArray[np.int32]) -> _Path:
        """Return the path over some links of a network."""
        latency = topology.link_latency_ps[links]
        return cls(
            int(topology.link_src[links[0]]),
            int(topology.link_dst[links[-1]]),
            links.tolist(),
            (np.cumsum(latency) - latency).tolist(),
            topology.link_bandwidth_Bps[links].tolist(),
            int(latency.sum()),
        )

    def sending(self, amount: int) -> list[int]:
        """Return how long each link is busy with some bytes."""
        return [-(-amount * 10**12 // speed) for speed in self.speeds]


def _rows(table: Routes) -> list[NDArray[np.int32]]:
    return [table.links[begin:end] for begin, end in pairwise(table.link_begin.tolist())]


class _Link(NamedTuple):
    """A link, or a path that replaces links."""

    src: int
    dst: int
    bandwidth_Bps: int
    latency_ps: int
    path: tuple[int, ...]


class _Port(NamedTuple):
    """A link into a switch and one out of it, of the same neighbour where that is possible."""

    into: _Link
    out: _Link

    @property
    def bandwidth_Bps(self) -> int:
        """What the port carries in both directions."""
        return min(self.into.bandwidth_Bps, self.out.bandwidth_Bps)


def split_switches(topology: Topology, *, shared: bool = True) -> SplitSwitches | None:
    """Return the network with links from port to port for switches; None if no switch can be replaced.

    Switches that multicast or reduce stay, and so do those whose ports are of too different bandwidths to form a ring.

    Args:
        topology: Any network.
        shared: Whether ports of unequal bandwidth share peers. If not, some of their bandwidth is lost, but no two messages ever meet
            at a port.

    >>> import tacos
    >>> two = tacos.topology.dgx_h100(2, nvls=False)
    >>> broken = tacos.topology.drop_links(two, "npu 0-switch 2", both=True)
    >>> split_switches(broken).topology
    <tacos.Topology custom: 16 NPUs, 0 switches, 30 links>
    >>> split_switches(tacos.topology.ring(4)) is None
    True
    """
    # A blocking link is busy during its latency as well: one link would be busy longer than the two that it replaces.
    if topology.forwarding != "cut_through" or topology.link_model != "pipelined":
        return None
    if topology.npus > _MOST or not topology.switches:
        return None
    links = [
        _Link(*row, (k,))
        for k, row in enumerate(
            zip(
                topology.link_src.tolist(),
                topology.link_dst.tolist(),
                topology.link_bandwidth_Bps.tolist(),
                topology.link_latency_ps.tolist(),
                strict=True,
            )
        )
    ]
    gone: set[int] = set()
    for switch in _in_order(topology):
        ports, rest = _ports(switch, links)
        if (ring := _ring(_around(topology, switch, ports), shared=shared)) is not None:
            gone.add(switch)
            links = rest + ring
    links = _usual(topology, links)
    if not gone:
        return None
    number_of = np.cumsum([node not in gone for node in range(topology.nodes)]) - 1
    columns = np.array([one[:4] for one in links], np.int64).reshape(-1, 4).T
    network = assemble(
        topology.npus,
        [Links(number_of[columns[0]], number_of[columns[1]], columns[2], columns[3])],
        capabilities=np.delete(
            topology.switch_capabilities, np.array(sorted(gone)) - topology.npus
        ),
        **model_of(topology),
    )
    begin = np.cumsum([0, *(len(one.path) for one in links)])
    paths = np.array([link for one in links for link in one.path], np.int32)
    try:
        raise_if_disconnected(network)
    except ValueError:  # a ring has left something out
        return None
    return SplitSwitches(network, topology, begin, paths)


def _usual(topology: Topology, links: list[_Link]) -> list[_Link]:
    """Return the links without those between NPUs whose messages take another route by default: programs name ranks, not paths."""
    long = [k for k, one in enumerate(links) if max(one[:2]) < topology.npus and len(one.path) > 1]
    ends = (np.array([links[k][end] for k in long], np.int32) for end in (0, 1))
    table = shortest_routes(topology, *ends)
    usual = [tuple(path.tolist()) for path in _rows(table)]
    strange = {
        k
        for k, path in zip(long, usual, strict=True)
        if links[k].path != path
        and list(links[k].path) not in channel_routes(topology, links[k].src, links[k].dst)
    }
    return [one for k, one in enumerate(links) if k not in strange]


def _in_order(topology: Topology) -> list[int]:
    """Return the switches that only forward: those without NPUs first, then those with slow ports."""
    fastest, near = np.zeros(topology.nodes, np.int64), np.zeros(topology.nodes, bool)
    for ends, others in (
        (topology.link_src, topology.link_dst),
        (topology.link_dst, topology.link_src),
    ):
        np.maximum.at(fastest, ends, topology.link_bandwidth_Bps)
        near[ends[others < topology.npus]] = True
    plain = [
        topology.npus + k for k, can in enumerate(topology.switch_capabilities.tolist()) if not can
    ]
    return sorted(plain, key=lambda one: (near[one], fastest[one], one))


def _ports(switch: int, links: list[_Link]) -> tuple[list[_Port], list[_Link]]:
    """Return the ports of a switch, and the links of others."""
    into, out = ([one for one in links if one[end] == switch] for end in (1, 0))
    rest = [one for one in links if switch not in one[:2]]
    leaving: dict[int, deque[_Link]] = {}
    for one in out:
        leaving.setdefault(one.dst, deque()).append(one)
    ports, alone = [], []
    for one in into:
        if leaving.get(one.src):
            ports.append(_Port(one, leaving[one.src].popleft()))
        else:
            alone.append(one)
    unused = [one for queue in leaving.values() for one in queue]
    return ports + [_Port(*pair) for pair in zip(alone, unused, strict=False)], rest


def _around(topology: Topology, switch: int, ports: list[_Port]) -> list[_Port]:
    """Return the ports in the order of the circle.

    Ports of different boxes alternate, in an order that changes from round to round. Ports to other switches lie between those of NPUs.
    """
    near = [port for port in ports if port.into.src < topology.npus and len(port.into.path) == 1]
    if 0 < len(near) < len(ports):
        # What comes from elsewhere goes to an NPU of this switch next, and from another one away again.
        far = [port for port in ports if port not in near]
        found = list(near)
        for i in reversed(range(len(far))):
            found.insert((2 * i + 1) * len(near) // (2 * len(far)) + 1, far[i])
        return found
    box = _boxes(topology, switch)
    groups: dict[int, list[_Port]] = {}
    for port in ports:
        groups.setdefault(box[port.into.path[-1]], []).append(port)
    boxes = list(groups.values())
    if len(boxes) == 1:
        return ports
    most = max(len(group) for group in boxes)
    found = []
    for row in range(most):
        for one in _walk(len(boxes), row % (len(boxes) - 1) + 1):
            # Smaller groups are spread over the rounds.
            group = boxes[one]
            place = (row * len(group)) // most
            if row == 0 or place != ((row - 1) * len(group)) // most:
                found.append(group[place])
    return found


def _walk(count: int, stride: int) -> Iterator[int]:
    """Yield all numbers below `count` in steps of `stride`."""
    seen = set[int]()
    for first in range(count):
        at = first
        while at not in seen:
            seen.add(at)
            yield at
            at = (at + stride) % count


def _boxes(topology: Topology, switch: int) -> dict[int, int]:
    """Return a number for each link into a switch, the same for those that come from one box.

    Boxes are the parts that stay connected without the switch or, if that leaves all connected, without all switches that are as slow.
    """
    into = np.flatnonzero(topology.link_dst == switch)
    speed = np.zeros(topology.nodes, np.int64)
    for ends in (topology.link_src, topology.link_dst):
        np.maximum.at(speed, ends, topology.link_bandwidth_Bps)
    slow = np.flatnonzero(speed <= speed[switch])
    for without in ({switch}, {switch, *slow[slow >= topology.npus].tolist()}):
        first = _parts(topology, without)
        found = {int(link): first[int(topology.link_src[link])] for link in into}
        if len(set(found.values())) > 1:
            break
    return found


def _parts(topology: Topology, without: set[int]) -> list[int]:
    """Return the first node that each node is connected to without some switches; those are alone."""
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
    return [root(node) for node in range(topology.nodes)]


def _ring(ports: list[_Port], *, shared: bool) -> list[_Link] | None:
    """Return links from port to port; None if one port has more bandwidth than all others."""
    if len(ports) < 2:
        return None
    widths = [port.bandwidth_Bps for port in ports]
    longest, total = max(widths), sum(widths)
    if 2 * longest > total:
        return None
    begin = np.concatenate([[0], np.cumsum(widths)])
    edges = sorted(
        {int(at) for at in begin[:-1]} | {int(at - longest) % total for at in begin[:-1]}
    )
    shares: dict[tuple[int, int], int] = {}
    for low, high in pairwise([*edges, total]):
        sender, receiver = (
            int(np.searchsorted(begin, at % total, side="right")) - 1 for at in (low, low + longest)
        )
        shares[sender, receiver] = shares.get((sender, receiver), 0) + high - low
    found = []
    sending, receiving = set[int](), set[int]()
    for (sender, receiver), width in sorted(shares.items(), key=lambda one: (-one[1], one[0])):
        if not shared and (sender in sending or receiver in receiving):
            continue
        sending.add(sender)
        receiving.add(receiver)
        one, other = ports[sender].into, ports[receiver].out
        if one.src != other.dst:
            latency_ps = one.latency_ps + other.latency_ps
            found.append(_Link(one.src, other.dst, width, latency_ps, one.path + other.path))
    return found
