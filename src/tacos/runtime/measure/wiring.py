"""Infer the wiring of a network from measurements.

Ranks can only measure messages between each other, alone and concurrently. Two messages
that slow each other down share something. The search begins with sharing at one end:

- If a → c and a → b share, and a → c and b → c share, but a → b and c → b do not, then a → c is relayed by b:
  there is no link from a to c.
- Messages from a that share, and are not relayed, leave a through one port; the same holds for messages that
  arrive. A switch lies between the ports, or a link if there is one port on each side. If some messages of a port
  are slower than others, they have further, slower ports behind it.
- If messages between different ports of one switch slow each other down, whatever their other ends
  are, these ports share a wire, such as the NIC of a host. If that holds for all
  ports on both sides, the switch has a trunk inside.
- If, while all ranks send, messages between some ranks are as fast as alone and those to others are not, then these ranks are in
  one rack, whose uplink carries less than its ranks.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from tacos import topology as topologies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tacos._core import Topology

__all__ = [
    "Meter",
    "Pair",
    "Port",
    "Rack",
    "Shared",
    "Spread",
    "Switch",
    "Together",
    "Wiring",
    "find_wiring",
]

SHARES = 1.2
"""Messages share a link if they take this many times as long together as alone (chosen)."""
_APART = 1.1
"""Messages share no link if they take less than this many times as long together as alone (chosen)."""
_ALIKE = 1.35
"""Bandwidths that differ by less than this factor belong to one port (chosen)."""
_LEAST_TRIES, _TRIES = 3, 6
"""Number of pairs of messages that decide whether two ports share a link."""
_LEAST_RACKED, _FEW_RELAYED, _UNEQUAL = 6, 0.1, 2.0
"""Fewest ranks among which racks are searched; also, few pairs may be relayed, and all must be about equally fast alone."""
_MIXINGS, _FEW_RACKED = 3, 12
"""Rounds in which all pairs send, to find racks; twice as many for few ranks, whose messages collide less often."""
_FIRST_ROUNDS = 6
"""Rounds of pairs after which a switch without bottlenecks is recognized; a third of them for many ranks."""
_NEAR = 1.4
"""Messages inside a rack take less than this many times as long while all ranks send (chosen)."""
_DENSE = 0.8
"""Share of the pairs inside a rack that must be this fast."""
_STRAY = 0.1
"""Share of the pairs across racks that may be this fast."""
_FEW = 8
"""Up to this many ranks, all pairs of messages with a common end are measured, one by one."""


class Spread(NamedTuple):
    """Several measurements of one quantity."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values."""
        return cls(min(values), float(np.median(values)), max(values))


@dataclass(frozen=True, slots=True)
class Pair:
    """Messages from one rank to another, with nothing else on the network."""

    src: int
    dst: int
    latency_s: Spread
    bandwidth_Bps: Spread
    relayed_by: int | None = None


class Together(NamedTuple):
    """Concurrent messages: how much longer than alone they took, and the total bytes per second."""

    slowdown: float
    bandwidth_Bps: float


class Meter(Protocol):
    """The source of measurements; all ranks request the same ones in the same order."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def alone(self, a: int, b: int) -> tuple[Pair, Pair]:
        """Measure messages in both directions."""

    def together(self, messages: Sequence[Pair]) -> Together:
        """Measure concurrent messages, with sizes that take equally long alone."""

    def each(self, messages: Sequence[Pair]) -> list[float]:
        """Return how much longer than alone each of some concurrent messages from different ranks takes."""


@dataclass(frozen=True, slots=True)
class Port:
    """The port at which messages of a rank to (or from) some others leave (or arrive).

    Ports of a rank with the same number ``behind`` share another port, next to the rank, with the bandwidth
    ``behind_Bps``.
    """

    rank: int
    out: bool
    peers: tuple[int, ...]
    bandwidth_Bps: float
    latency_s: float
    behind: int | None = None
    behind_Bps: float = 0.0


class Shared(NamedTuple):
    """Ports of a switch, by position, that share a wire, and the bandwidth of the wire."""

    ports: tuple[int, ...]
    bandwidth_Bps: float


class Rack(NamedTuple):
    """Ranks whose messages to each other are not limited, and that share a wire to and from all others."""

    ranks: tuple[int, ...]
    up_Bps: float
    down_Bps: float


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch between ports; with a trunk if it carries less than the ports do."""

    ports: tuple[Port, ...]
    trunk_Bps: float | None = None
    shared: tuple[Shared, ...] = ()
    racks: tuple[Rack, ...] = ()


@dataclass(frozen=True, slots=True)
class Wiring:
    """A network as it was measured."""

    names: tuple[str, ...]
    pairs: tuple[Pair, ...]
    switches: tuple[Switch, ...] = field(default=())

    def topology(self) -> Topology:
        """Return the network as a topology of the links, ports and trunks that were found."""
        ranks = len(self.names)
        names, rows = list(self.names), []
        links = {(p.src, p.dst): p for p in self.pairs}
        nodes: dict[tuple[int, bool, int], int] = {}

        def new_switch() -> int:
            names.append(f"switch{len(names) - ranks}")
            return len(names) - 1

        def end(port: Port) -> int:
            """Return the node of a port: its rank, or the port that it shares with others."""
            if port.behind is None:
                return port.rank
            key = (port.rank, port.out, port.behind)
            if key not in nodes:
                nodes[key] = new_switch()
                ends = (port.rank, nodes[key])
                rows.append((*(ends if port.out else ends[::-1]), port.behind_Bps, 0.0))
            return nodes[key]

        for switch in self.switches:
            outs = [port for port in switch.ports if port.out]
            ins = [port for port in switch.ports if not port.out]
            if len(outs) == len(ins) == 1:
                pair = links[outs[0].rank, ins[0].rank]
                rate, latency = pair.bandwidth_Bps.median, pair.latency_s.median
                rows.append((end(outs[0]), end(ins[0]), rate, latency))
                continue
            first = last = new_switch()
            if switch.trunk_Bps is not None:
                last = new_switch()
                rows.append((first, last, switch.trunk_Bps, 0.0))
            inner = [first if port.out else last for port in switch.ports]
            for rack in switch.racks:
                top = new_switch()
                rows += [(top, first, rack.up_Bps, 0.0), (first, top, rack.down_Bps, 0.0)]
                for i, port in enumerate(switch.ports):
                    if port.rank in rack.ranks:
                        inner[i] = top
            for group in switch.shared:
                wire = new_switch()
                port = switch.ports[group.ports[0]]
                ends = (wire, first) if port.out else (last, wire)
                rows.append((*ends, group.bandwidth_Bps, 0.0))
                for i in group.ports:
                    inner[i] = wire
            for port, node in zip(switch.ports, inner, strict=True):
                ends = (end(port), node) if port.out else (node, end(port))
                rows.append((*ends, port.bandwidth_Bps, port.latency_s / 2))
        rounded = [(src, dst, _short(rate), _short(latency)) for src, dst, rate, latency in rows]
        try:
            return topologies.from_links(ranks, rounded, switches=len(names) - ranks, names=names)
        except ValueError:
            # On a busy machine, pairs may seem relayed in a cycle: then each gets its own link.
            direct = [
                (p.src, p.dst, _short(p.bandwidth_Bps.median), _short(p.latency_s.median))
                for p in self.pairs
            ]
            return topologies.from_links(ranks, direct, names=list(self.names))

    def to_json(self) -> dict[str, Any]:
        """Return the measurements and results as plain values."""
        spread = {"latency_s": Spread._asdict, "bandwidth_Bps": Spread._asdict}
        return {
            "names": list(self.names),
            "pairs": [
                {k: spread[k](v) if k in spread else v for k, v in _plain(pair).items()}
                for pair in self.pairs
            ],
            "switches": [asdict(switch) for switch in self.switches],
        }


def _short(value: float) -> float:
    """Round to four digits: a measurement is not more precise."""
    return float(f"{value:.4g}")


def _plain(pair: Pair) -> dict[str, Any]:
    return {name: getattr(pair, name) for name in Pair.__slots__}


def find_wiring(meter: Meter, names: Sequence[str]) -> Wiring:
    """Measure a network and infer its wiring.

    Args:
        meter: The source of measurements.
        names: Names of the ranks.
    """
    ranks = range(meter.size)
    pairs: dict[tuple[int, int], Pair] = {}
    for a, b in itertools.combinations(ranks, 2):
        for pair in meter.alone(a, b):
            pairs[pair.src, pair.dst] = pair
    leaving = {a: _End(meter, [pairs[a, b] for b in ranks if b != a], out=True) for a in ranks}
    arriving = {a: _End(meter, [pairs[b, a] for b in ranks if b != a], out=False) for a in ranks}

    for (a, c), pair in list(pairs.items()):
        for b in ranks:
            if b in (a, c) or not leaving[a].share(b, c) or not arriving[c].share(a, b):
                continue
            if arriving[b].apart(a, c):
                pairs[a, c] = Pair(a, c, pair.latency_s, pair.bandwidth_Bps, relayed_by=b)
                break
    if racks := _find_racks(meter, pairs):
        found = tuple(pairs[key] for key in sorted(pairs))
        return Wiring(tuple(names), found, (_racked(racks, pairs, ranks),))
    direct = [pair for pair in pairs.values() if pair.relayed_by is None]
    ports = [
        port
        for ends in (leaving, arriving)
        for rank in ranks
        for port in ends[rank].ports(
            [p for p in direct if (p.src if ends is leaving else p.dst) == rank]
        )
    ]
    return Wiring(
        tuple(names),
        tuple(pairs[key] for key in sorted(pairs)),
        tuple(_Crossing(meter, found, pairs).switch() for found in _joined(ports)),
    )


class _End:
    """Finds which messages from (or to) a rank share something there."""

    def __init__(self, meter: Meter, pairs: list[Pair], *, out: bool) -> None:
        self._peer: Callable[[Pair], int] = (lambda p: p.dst) if out else (lambda p: p.src)
        self._out = out
        self._found: dict[frozenset[int], Together] = {}  # unless they do not slow each other down
        self._shared: set[frozenset[int]] = set()
        self.total: Together | None = None
        if len(pairs) < 2:
            return
        self.total = meter.together(pairs)
        if self.total.slowdown < SHARES:
            return
        rates = [pair.bandwidth_Bps.median for pair in pairs]
        one_port = max(rates) < _ALIKE * min(rates) and self.total.bandwidth_Bps < 1.1 * max(rates)
        if not one_port and 2 < len(pairs) < _FEW:
            for one, other in itertools.combinations(pairs, 2):
                self._found[frozenset((self._peer(one), self._peer(other)))] = meter.together(
                    [one, other]
                )
        self._shared = {two for two, found in self._found.items() if found.slowdown > SHARES}
        if not self._shared and self.total.slowdown > _ALIKE:
            # All together exceed what any two of them may use.
            peers = [self._peer(pair) for pair in pairs]
            self._shared = {frozenset(two) for two in itertools.combinations(peers, 2)}

    def share(self, one: int, other: int) -> bool:
        """Return whether the messages to (or from) these two slow each other down."""
        return frozenset((one, other)) in self._shared

    def apart(self, one: int, other: int) -> bool:
        """Return whether they certainly do not; if neither holds, it is unknown."""
        two = frozenset((one, other))
        return two not in self._shared and (
            two not in self._found or self._found[two].slowdown < _APART
        )

    def ports(self, pairs: list[Pair]) -> list[Port]:
        """Return the ports of these messages."""
        rate = {self._peer(pair): pair.bandwidth_Bps.median for pair in pairs}
        shared = [two for two in self._shared if two <= rate.keys()]
        alike = [
            two
            for two in shared
            if max(rate[peer] for peer in two) < _ALIKE * min(rate[peer] for peer in two)
        ]
        groups = _components(sorted(rate), shared)
        found = []
        for number, group in enumerate(groups):
            parts = _components(group, [two for two in alike if two <= set(group)])
            whole = self._carried(group, rate, everything=len(groups) == 1)
            for part in parts:
                own = [pair for pair in pairs if self._peer(pair) in part]
                several = len(parts) > 1
                found.append(
                    Port(
                        rank=own[0].src if self._out else own[0].dst,
                        out=self._out,
                        peers=tuple(part),
                        bandwidth_Bps=self._carried(part, rate) if several else whole,
                        latency_s=float(np.median([pair.latency_s.median for pair in own])),
                        behind=number if several else None,
                        behind_Bps=whole if several else 0.0,
                    )
                )
        return found

    def _carried(
        self, peers: list[int], rate: dict[int, float], *, everything: bool = False
    ) -> float:
        """Return the largest bandwidth that was measured to (or from) these peers."""
        rates = [rate[peer] for peer in peers]
        rates += [
            self._found[two].bandwidth_Bps
            for two in self._shared & self._found.keys()
            if two <= set(peers)
        ]
        if everything and len(peers) > 1 and self.total is not None:
            rates.append(self.total.bandwidth_Bps)
        return max(rates)


def _joined(ports: list[Port]) -> list[list[Port]]:
    """Group ports by the switch that joins them."""
    at = {(port.rank, port.out, peer): i for i, port in enumerate(ports) for peer in port.peers}
    edges = [
        frozenset((i, at[peer, False, port.rank]))
        for i, port in enumerate(ports)
        if port.out
        for peer in port.peers
    ]
    return [[ports[i] for i in group] for group in _components(range(len(ports)), edges)]


def _components(nodes: Iterable[int], edges: Iterable[frozenset[int]]) -> list[list[int]]:
    """Return connected components, each sorted, in the order of their lowest nodes."""
    root = {node: node for node in nodes}

    def find(node: int) -> int:
        while root[node] != node:
            node = root[node]
        return node

    for edge in edges:
        low, high = sorted(find(node) for node in (min(edge), max(edge)))
        root[high] = low
    groups: dict[int, list[int]] = {}
    for node in root:
        groups.setdefault(find(node), []).append(node)
    return [sorted(groups[key]) for key in sorted(groups)]


def _find_racks(meter: Meter, pairs: dict[tuple[int, int], Pair]) -> list[Rack]:
    """Find racks: messages across racks are slow while many ranks send, and messages inside are not.

    Ranks are paired at random, every pair several times, and one rank of each pair sends. This loads the racks' wires
    for any order of ranks, and no rank waits for another rank's message.
    """
    ranks = list(range(meter.size))
    n = len(ranks)
    rates = [pair.bandwidth_Bps.median for pair in pairs.values()]
    relayed = sum(pair.relayed_by is not None for pair in pairs.values())
    slow_rate, fast_rate = np.quantile(rates, [0.1, 0.9])
    # If pairs differ alone, or ranks relay, ports are more informative than concurrent messages.
    if n < _LEAST_RACKED or relayed > _FEW_RELAYED * len(pairs) or fast_rate > _UNEQUAL * slow_rate:
        return []
    random = Random(n)
    slow: dict[frozenset[int], list[float]] = {}
    few = n <= _FEW_RACKED
    rounds = [
        met
        for _ in range(2 * _MIXINGS if few else _MIXINGS)
        for met in _rounds_of_pairs(random.sample(ranks, n))
    ]
    for number, met in enumerate(rounds, 1):
        mixed = [pair if random.random() < 0.5 else pair[::-1] for pair in met]
        for ends in (mixed, [pair[::-1] for pair in mixed]):
            found = meter.each([pairs[pair] for pair in ends])
            for pair, value in zip(ends, found, strict=True):
                slow.setdefault(frozenset(pair), []).append(value)
        # A switch without bottlenecks is recognized soon.
        if (
            number == (_FIRST_ROUNDS if few else _FIRST_ROUNDS // 3)
            and max(max(some) for some in slow.values()) <= SHARES
        ):
            return []
    # A message across racks may meet no other by chance, and one inside may meet noise, so one value may differ.
    near = {pair for pair, some in slow.items() if sorted(some)[-2] < _NEAR}
    # Chance and noise make some pairs wrong, so ranks with mostly the same near ranks are put into one rack.
    around = {a: {b for b in ranks if a == b or frozenset((a, b)) in near} for a in ranks}
    alike = [
        frozenset((a, b))
        for a, b in itertools.combinations(ranks, 2)
        if 2 * len(around[a] & around[b]) > len(around[a] | around[b])
    ]
    parts = _components(ranks, alike)
    together = {frozenset(pair) for part in parts for pair in itertools.combinations(part, 2)}
    if len(parts) < 2 or not together or len(near & together) < _DENSE * len(together):
        return []
    if len(near - together) > _STRAY * (len(slow) - len(together)):
        return []
    found_racks = []
    for part in parts:
        if len(part) > 1:
            up, down = (_uplink(meter, pairs, part, parts, out=out) for out in (True, False))
            found_racks.append(Rack(tuple(part), up, down))
    return found_racks


def _uplink(
    meter: Meter,
    pairs: dict[tuple[int, int], Pair],
    part: list[int],
    parts: list[list[int]],
    *,
    out: bool,
) -> float:
    """Measure the bytes per second between a rack and all others, whose ranks are taken rack by rack in turn."""
    columns = itertools.zip_longest(*(other for other in parts if other is not part))
    others = [rank for column in columns for rank in column if rank is not None]
    ends = list(zip(part, others, strict=False))
    messages = [pairs[pair if out else pair[::-1]] for pair in ends]
    return meter.together(messages).bandwidth_Bps


def _racked(racks: list[Rack], pairs: dict[tuple[int, int], Pair], ranks: range) -> Switch:
    """Return a switch with one port per rank and direction, and the racks."""
    ports = []
    for out in (True, False):
        for rank in ranks:
            mine = [p for p in pairs.values() if (p.src if out else p.dst) == rank]
            rate = float(np.median([p.bandwidth_Bps.median for p in mine]))
            latency = float(np.median([p.latency_s.median for p in mine]))
            peers = tuple(other for other in ranks if other != rank)
            ports.append(Port(rank, out, peers, rate, latency))
    return Switch(tuple(ports), racks=tuple(racks))


def _rounds_of_pairs(ranks: list[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of pairs in which every two ranks meet once; with an odd number of ranks, one pauses.

    >>> [sorted(map(sorted, pairs)) for pairs in _rounds_of_pairs([0, 1, 2, 3])]
    [[[0, 3], [1, 2]], [[0, 2], [1, 3]], [[0, 1], [2, 3]]]
    """
    places = [*ranks, None] if len(ranks) % 2 else list[int | None](ranks)
    half = len(places) // 2
    for _ in range(len(places) - 1):
        both = zip(places[:half], reversed(places[half:]), strict=True)
        yield [(a, b) for a, b in both if a is not None and b is not None]
        places = [places[0], places[-1], *places[1:-1]]


class _Crossing:
    """Finds what the ports of one switch share."""

    def __init__(self, meter: Meter, ports: list[Port], pairs: dict[tuple[int, int], Pair]) -> None:
        self._meter, self._ports, self._pairs = meter, ports, pairs
        self._at = {(p.rank, p.out, peer): i for i, p in enumerate(ports) for peer in p.peers}

    def switch(self) -> Switch:
        """Send messages between all ports at once, and return the switch between them."""
        ports = self._ports
        messages = self._apart([i for i, port in enumerate(ports) if port.out])
        if len(messages) < 2:
            return Switch(tuple(ports))
        found = self._meter.together(messages)
        if found.slowdown > SHARES:  # a busy machine is slow only now and then
            found = min(found, self._meter.together(messages))
        if found.slowdown <= SHARES:
            return Switch(tuple(ports))
        sides = [self._groups(out=out) for out in (True, False)]
        if all(len(groups) == 1 for groups in sides):
            return Switch(tuple(ports), found.bandwidth_Bps)
        shared = [
            Shared(tuple(group), self._meter.together(self._apart(group)).bandwidth_Bps)
            for groups in sides
            for group in groups
            if len(group) > 1
        ]
        explained = max((self._load(one, messages) for one in shared), default=1.0)
        trunk = found.bandwidth_Bps if found.slowdown > SHARES * max(explained, 1.0) else None
        return Switch(tuple(ports), trunk, tuple(shared))

    def _groups(self, *, out: bool) -> list[list[int]]:
        """Group the ports of one side that share a wire."""
        groups: list[list[int]] = []
        for i, port in enumerate(self._ports):
            if port.out != out:
                continue
            home = next((group for group in groups if self._share(group[0], i)), None)
            if home is None:
                groups.append([i])
            else:
                home.append(i)
        return groups

    def _share(self, one: int, other: int) -> bool:
        """Return whether messages through two ports slow each other down, whatever their other ends are."""
        ports = self._ports
        ends = [
            (a, b)
            for a in ports[one].peers
            for b in ports[other].peers
            if a != b and a != ports[other].rank and b != ports[one].rank
        ]
        # Ranks of one host usually have neighbouring numbers, so ranks that are far apart come first.
        ends.sort(key=lambda two: -abs(two[0] - two[1]))
        tries = min(max(len(ends), _LEAST_TRIES), _TRIES)
        return bool(ends) and all(
            self._meter.together([self._message(one, a), self._message(other, b)]).slowdown > SHARES
            for a, b in itertools.islice(itertools.cycle(ends), tries)
        )

    def _apart(self, group: list[int]) -> list[Pair]:
        """Return a message through each of some ports, with different other ends."""
        free = [port.rank for port in self._ports if port.out != self._ports[group[0]].out]
        chosen: list[Pair] = []
        for i in group:
            port = self._ports[i]
            # The next rank after its own, so that no end is used twice and none sends to itself.
            able = sorted((p for p in port.peers if p in free), key=lambda p: (p < port.rank, p))
            if able:
                free.remove(able[0])
                chosen.append(self._message(i, able[0]))
        return chosen

    def _message(self, port: int, peer: int) -> Pair:
        rank = self._ports[port].rank
        return self._pairs[(rank, peer) if self._ports[port].out else (peer, rank)]

    def _load(self, shared: Shared, messages: list[Pair]) -> float:
        """Return the slowdown of some messages by what their ports share."""
        used = [
            m.bandwidth_Bps.median
            for m in messages
            if self._at[m.src, True, m.dst] in shared.ports
            or self._at[m.dst, False, m.src] in shared.ports
        ]
        return sum(used) / shared.bandwidth_Bps
