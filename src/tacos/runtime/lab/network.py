"""The parts of a lab network: the devices, addresses, routes and rates that reproduce a topology.

Nothing here needs privileges or touches the machine: :func:`blueprint` turns a topology into lines for ``ip``
and ``tc``, namespace by namespace.

- A namespace per NPU and per switch. Switches forward like routers do.
- A cable (a veth pair) for each pair of opposite links between two nodes; parallel
  links are parallel cables. At either end, the device's egress is shaped to the link's bandwidth. A link
  without an opposite link gets a cable whose other direction carries only acknowledgements,
  which TCP needs.
- Two addresses for each cable, one per end, and one address for each NPU, on its loopback device, which
  the others reach over the routes of :func:`tacos.schedule.routes`.
- A bridge that joins all NPUs, without limits, for traffic that is not measured: rendezvous and control.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacos.schedule import paths

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacos._core import Topology

__all__ = ["MTU", "Aggregator", "Blueprint", "Cable", "blueprint", "cables"]

MTU = 9000
_WIRE_SHARE = 1.012
"""Bytes on the wire per byte of data: headers of 66 bytes in 9,014, and acknowledgements the other way."""
_ACKNOWLEDGEMENTS = 0.05
"""Rate of the reverse direction of a one-way link, as a share of its rate."""
_BURST_S = 0.0013
"""Burst in seconds: a larger one makes the link faster, a smaller one needs better timers."""
_QUEUE = "8mb"  # longer than TCP's windows, so nothing is ever dropped
_CABLES, _NPUS, _MANAGEMENT = (
    int(IPv4Address(first)) for first in ("10.0.0.0", "10.200.0.1", "10.254.0.1")
)
_MOST_NODES = 1000
_SETTINGS = {
    "ipv4/ip_forward": "1",
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_congestion_control": "reno",  # without losses, it neither slows down nor probes
    "ipv4/tcp_no_metrics_save": "1",
    "ipv4/conf/all/rp_filter": "0",  # answers may take another path
    "ipv4/conf/default/rp_filter": "0",
    "ipv6/conf/all/disable_ipv6": "1",  # its background traffic would use bandwidth
    "ipv6/conf/default/disable_ipv6": "1",
}


class Cable(NamedTuple):
    """A veth pair: the link from `a` to `b`, and the link back or -1."""

    a: int
    b: int
    there: int
    back: int


def cables(topology: Topology) -> list[Cable]:
    """Return the cables that carry a topology's links, with each link in exactly one cable.

    >>> import tacos
    >>> [tuple(cable) for cable in cables(tacos.topology.ring(3))]
    [(0, 1, 0, 4), (1, 2, 1, 5), (2, 0, 2, 3)]
    >>> [tuple(cable) for cable in cables(tacos.topology.ring(3, bidirectional=False))]
    [(0, 1, 0, -1), (1, 2, 1, -1), (2, 0, 2, -1)]
    """
    ways: dict[tuple[int, int], list[int]] = defaultdict(list)
    for link, ends in enumerate(
        zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    ):
        ways[ends].append(link)
    found = []
    for (a, b), there in ways.items():
        back = ways.get((b, a), [])
        if back and back[0] < there[0]:
            continue  # seen from the other end
        for out, home in zip_longest(there, back, fillvalue=-1):
            found.append(Cable(a, b, out, home) if out >= 0 else Cable(b, a, home, -1))
    return found


@dataclass(frozen=True)
class Blueprint:
    """A lab network, ready to be built.

    Namespace 0 holds the bridge, namespace n + 1 is node n.
    """

    script: list[tuple[int, str, list[str]]]
    """Lines for ``ip -batch`` or ``tc -batch``, with their namespaces; ``{ns[3]}`` is a namespace's path."""
    namespaces: int
    settings: dict[str, str]
    """Values of ``/proc/sys/net``, the same in all namespaces."""
    npu: list[str]
    """Address of each NPU, reached over the topology's links."""
    management: list[str]
    """Address of each NPU on the bridge."""
    reach: list[dict[int, list[str]]]
    """Per NPU and peer, an address for each path to the peer."""
    devices: dict[int, tuple[int, str]]
    """Per link, its source and the device there."""
    aggregators: list[Aggregator]
    """The aggregating switches, upper ones first; empty if they cannot serve all NPUs."""
    aggregator: list[str]
    """Address at which each NPU reaches its aggregating switch."""


class Aggregator(NamedTuple):
    """An aggregating switch: its node, the NPUs below it, and the address of the switch above it, or an empty string."""

    node: int
    members: list[int]
    parent: str


def blueprint(topology: Topology, *, delays: bool = False, mtu: int = MTU) -> Blueprint:
    """Return the lab network of a topology, with the topology's rates.

    Args:
        topology: A topology with at most 1,000 nodes.
        delays: Whether to enforce latencies, which needs a kernel with netem.
        mtu: Largest packet of all cables, in bytes.

    Raises:
        ValueError: The topology has too many nodes.
        InfeasibleError: Two NPUs are not connected.

    >>> import tacos
    >>> net = blueprint(tacos.topology.ring(4, bandwidth="100Mbit/s"))
    >>> net.npu[2], net.management[2], net.reach[0]
    ('10.200.0.3', '10.254.0.3', {1: ['10.0.0.1'], 2: ['10.200.0.3'], 3: ['10.0.0.6']})
    """
    if topology.nodes > _MOST_NODES:
        raise ValueError(
            f"the topology has {topology.nodes:,} nodes, a lab has at most {_MOST_NODES:,}"
        )
    return _Architect(topology, delays, mtu).drawn()


class _Port(NamedTuple):
    """The device and addresses of a link."""

    device: str
    own: str
    peer: str


class _Way(NamedTuple):
    """A port of an NPU and its rank among the paths of others: fewer links first, then faster ones."""

    address: str
    worth: dict[int, tuple[int, int]]


class _Architect:
    def __init__(self, topology: Topology, delays: bool, mtu: int) -> None:
        self.topology, self.delays, self.mtu = topology, delays, mtu
        self.src, self.dst = topology.link_src.tolist(), topology.link_dst.tolist()
        self.ip: dict[int, list[str]] = defaultdict(list)
        self.tc: dict[int, list[str]] = defaultdict(list)
        self.ports: dict[int, _Port] = {}  # of each link, at its source
        self.npu = [_address(_NPUS, npu) for npu in range(topology.npus)]
        self.management = [_address(_MANAGEMENT, npu) for npu in range(topology.npus)]

    def drawn(self) -> Blueprint:
        veths = [*self._lay_cables(), *self._bridge()]
        for node in range(self.topology.nodes):
            self.ip[node].append("link set lo up")
        for npu, address in enumerate(self.npu):
            self.ip[npu].append(f"addr add {address}/32 dev lo")
        self._route_npus()
        ways = self._route_ports()
        script = [(0, "ip", veths)]
        for program, batches in (("ip", self.ip), ("tc", self.tc)):
            script += [(node + 1, program, lines) for node, lines in batches.items()]
        return Blueprint(
            script,
            self.topology.nodes,
            _SETTINGS,
            self.npu,
            self.management,
            [self._reach(npu, ways) for npu in range(self.topology.npus)],
            {link: (self.src[link], port.device) for link, port in self.ports.items()},
            *self._aggregation(),
        )

    def _aggregation(self) -> tuple[list[Aggregator], list[str]]:
        """Return the switches that reduce, as a tree of at most two levels above the NPUs."""
        npus = self.topology.npus
        able = {npus + i for i, bits in enumerate(self.topology.switch_capabilities) if bits & 2}
        below: dict[int, list[int]] = defaultdict(list)
        addresses: dict[int, str] = {}
        over: dict[int, dict[int, str]] = defaultdict(dict)  # by the upper switch
        for link, (src, dst) in enumerate(zip(self.src, self.dst, strict=True)):
            if dst not in able or link not in self.ports:
                continue
            if src < npus and src not in addresses:
                addresses[src] = self.ports[link].peer
                below[dst].append(src)
            elif src in able:
                over[dst].setdefault(src, self.ports[link].peer)
        if len(addresses) < npus:
            return [], []
        where = [addresses[npu] for npu in range(npus)]
        if len(below) == 1:
            ((node, members),) = below.items()
            return [Aggregator(node, members, "")], where
        for top, racks in sorted(over.items()):
            if top not in below and below.keys() <= racks.keys():
                found = [Aggregator(rack, members, racks[rack]) for rack, members in below.items()]
                return [Aggregator(top, [], ""), *found], where
        return [], []

    def _lay_cables(self) -> Iterator[str]:
        """Yield lines that create the veth pairs; add their addresses and rates to the lines of the nodes."""
        parallel: Counter[frozenset[int]] = Counter()
        for number, cable in enumerate(cables(self.topology)):
            k = parallel[frozenset(cable[:2])]
            parallel[frozenset(cable[:2])] += 1
            names = [f"to{peer}" + (f".{k}" if k else "") for peer in (cable.b, cable.a)]
            addresses = [_address(_CABLES, 2 * number + end) for end in (0, 1)]
            yield (
                f"link add name {names[0]} mtu {self.mtu} netns {{ns[{cable.a + 1}]}} type veth "
                f"peer name {names[1]} mtu {self.mtu} netns {{ns[{cable.b + 1}]}}"
            )
            for end, link in enumerate((cable.there, cable.back)):
                node, device = cable[end], names[end]
                self.ip[node].append(f"addr add {addresses[end]}/31 dev {device}")
                self.ip[node].append(f"link set {device} up")
                self.tc[node] += self._shape(device, link, cable.there)
                if link >= 0:
                    self.ports[link] = _Port(device, addresses[end], addresses[1 - end])

    def _shape(self, device: str, link: int, there: int) -> Iterator[str]:
        """Yield lines that limit a device to its link's rate and delay."""
        topology = self.topology
        share = 1.0 if link >= 0 else _ACKNOWLEDGEMENTS
        bytes_per_second = float(topology.link_bandwidth_Bps[there if link < 0 else link]) * share
        delay_us = int(topology.link_latency_ps[max(link, there)]) // 10**6 if self.delays else 0
        yield limit("add", device, bytes_per_second, self.mtu)
        if delay_us:
            yield f"qdisc add dev {device} parent 1:1 netem delay {delay_us}us limit 100000"

    def _bridge(self) -> Iterator[str]:
        yield from ("link set lo up", "link add name bridge type bridge", "link set bridge up")
        for npu, address in enumerate(self.management):
            yield (
                f"link add name npu{npu} mtu {self.mtu} type veth "
                f"peer name management mtu {self.mtu} netns {{ns[{npu + 1}]}}"
            )
            yield f"link set npu{npu} master bridge up"
            self.ip[npu] += [f"addr add {address}/16 dev management", "link set management up"]

    def _route_npus(self) -> None:
        """Add routes to the NPUs' addresses, which are the same as the package's routes.

        A packet's next hop depends on its destination and, if routes meet and separate again, on
        its source: then rules send the rarer sources to a table with their next hop.
        """
        npus = self.topology.npus
        src, dst = (column.ravel() for column in np.indices((npus, npus)))
        other = src != dst
        table = paths(self.topology, (src[other], dst[other]))
        begin, links = table.link_begin.tolist(), table.links.tolist()
        next_link: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for r, (s, d) in enumerate(zip(src[other].tolist(), dst[other].tolist(), strict=True)):
            for link in links[begin[r] : begin[r + 1]]:
                next_link[self.src[link], d][s] = link
        tables: set[int] = set()
        for (node, d), by_source in next_link.items():
            usual = by_source.get(node, Counter(by_source.values()).most_common(1)[0][0])
            self.ip[node].append(f"route add {self.npu[d]} {self._via(usual)}{self._from(node)}")
            for s, link in by_source.items():
                if link != usual:
                    if link not in tables:
                        tables.add(link)
                        self.ip[node].append(
                            f"route add default {self._via(link)} table {1000 + link}"
                        )
                    rule = f"from {self.npu[s]} to {self.npu[d]} lookup {1000 + link}"
                    self.ip[node].append(f"rule add {rule}")

    def _via(self, link: int) -> str:
        return f"via {self.ports[link].peer} dev {self.ports[link].device}"

    def _from(self, node: int) -> str:
        return f" src {self.npu[node]}" if node < self.topology.npus else ""

    def _route_ports(self) -> dict[int, list[_Way]]:
        """Add routes from NPUs through switches to each port of an NPU, over the fewest links.

        So an NPU with several ports has several addresses, each with its own path. Return
        the ports of each NPU, ranked for the NPUs that reach them.
        """
        into: dict[int, list[int]] = defaultdict(list)
        for link, node in enumerate(self.dst):
            into[node].append(link)
        found: dict[int, list[_Way]] = defaultdict(list)
        rate = self.topology.link_bandwidth_Bps.tolist()
        for npu in range(self.topology.npus):
            last = [link for link in into[npu] if self.src[link] >= self.topology.npus]
            for k, port in enumerate(last):
                worth = {self.src[port]: (0, rate[port])}
                for node, choices in self._ways_to(self.src[port], into).items():
                    # Ports of the destination take equally good links in turn.
                    link = choices[k % len(choices)]
                    hops, slowest = worth[self.dst[link]]
                    worth[node] = hops - 1, min(slowest, rate[link])
                    if node != npu:
                        line = f"route add {self.ports[port].peer} {self._via(link)}"
                        self.ip[node].append(line + self._from(node))
                found[npu].append(_Way(self.ports[port].peer, worth))
        return found

    def _ways_to(self, switch: int, into: dict[int, list[int]]) -> dict[int, list[int]]:
        """Return the next links of each node that reaches `switch` through switches, nearest first."""
        distance, queue = {switch: 0}, [switch]
        choices: dict[int, list[int]] = {}
        for node in queue:
            for link in into[node] if node >= self.topology.npus else ():
                before = self.src[link]
                if before not in distance:
                    distance[before] = distance[node] + 1
                    choices[before] = []
                    queue.append(before)
                if distance[before] == distance[node] + 1:
                    choices[before].append(link)
        return {node: sorted(links) for node, links in choices.items()}

    def _reach(self, npu: int, ways: dict[int, list[_Way]]) -> dict[int, list[str]]:
        """Return the addresses of each peer: over direct links, otherwise its best ports, otherwise its own address."""
        direct: dict[int, list[str]] = defaultdict(list)
        for link, (src, dst) in enumerate(zip(self.src, self.dst, strict=True)):
            if src == npu and dst < self.topology.npus:
                direct[dst].append(self.ports[link].peer)
        found = {}
        for peer in range(self.topology.npus):
            if peer == npu:
                continue
            open_ways = [way for way in ways[peer] if npu in way.worth]
            most = max((way.worth[npu] for way in open_ways), default=None)
            best = [way.address for way in open_ways if way.worth[npu] == most]
            found[peer] = direct.get(peer) or (best if len(best) > 1 else [self.npu[peer]])
        return found


def limit(verb: str, device: str, bytes_per_second: float, mtu: int) -> str:
    """Return the line for ``tc`` that limits a device to a rate."""
    rate = max(round(8 * bytes_per_second * _WIRE_SHARE), 8000)
    burst = round(min(max(bytes_per_second * _BURST_S, 2 * (mtu + 14)), 65_536))
    return (
        f"qdisc {verb} dev {device} root handle 1: tbf rate {rate}bit burst {burst} limit {_QUEUE}"
    )


def _address(first: int, number: int) -> str:
    return str(IPv4Address(first + number))
