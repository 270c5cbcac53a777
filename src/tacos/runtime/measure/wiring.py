"""What measurements of a network say about its wiring.

Ranks can time messages between each other, one alone and several at once, and nothing else. Two messages
that slow each other down share something. Sharing at one end is looked for first:

- If a → c and a → b share, and a → c and b → c share, but a → b and c → b do not, then a → c is relayed by b:
  there is no link from a to c.
- Messages from a that share, and are not relayed, leave a through one port; so do messages that
  arrive. What lies between ports is a switch, or a link if it is one port and one port. Where some of
  them are slower than others, something slow follows the port: they have ports of their own behind it.
- If messages between different ports of one switch slow each other down, wherever else they come from or
  go to, these ports have something in common, as the ranks of a host have its NIC. If that holds for all
  ports on both sides, the switch has a trunk inside.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from tacos import topology as topologies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tacos._core import Topology

__all__ = [
    "Meter",
    "Pair",
    "Port",
    "Shared",
    "Spread",
    "Switch",
    "Together",
    "Wiring",
    "find_wiring",
]

SHARES = 1.2
"""Messages that take so many times longer together than alone share something."""
_APART = 1.1
"""Messages that take less than so many times longer do not."""
_ALIKE = 1.35
"""Bandwidths that differ by less are those of one port."""
_LEAST_TRIES, _TRIES = 3, 6
"""So many pairs of messages tell whether what two ports share is theirs."""
_FEW = 8
"""Up to so many ranks, all pairs of messages with a common end are looked at, one by one."""


class Spread(NamedTuple):
    """Several measurements of one thing."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values."""
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
    """Messages at the same time: how much longer than alone they took, and bytes per second in all."""

    slowdown: float
    bandwidth_Bps: float


class Meter(Protocol):
    """Where measurements come from; all ranks ask for the same ones in the same order."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def alone(self, a: int, b: int) -> tuple[Pair, Pair]:
        """Messages there, and messages back."""

    def together(self, messages: Sequence[Pair]) -> Together:
        """Messages at the same time, each of a size that takes equally long alone."""


@dataclass(frozen=True, slots=True)
class Port:
    """Where messages of a rank to (or from) some others leave (or arrive).

    ``behind`` numbers the ports of a rank that share a further one, next to the rank, and ``behind_Bps``
    is what that carries.
    """

    rank: int
    out: bool
    peers: tuple[int, ...]
    bandwidth_Bps: float
    latency_s: float
    behind: int | None = None
    behind_Bps: float = 0.0


class Shared(NamedTuple):
    """Ports of a switch, by their position there, that have a wire in common, and what that carries."""

    ports: tuple[int, ...]
    bandwidth_Bps: float


@dataclass(frozen=True, slots=True)
class Switch:
    """What lies between some ports; with a trunk if it carries less than they do."""

    ports: tuple[Port, ...]
    trunk_Bps: float | None = None
    shared: tuple[Shared, ...] = ()


@dataclass(frozen=True, slots=True)
class Wiring:
    """A network as it was measured."""

    names: tuple[str, ...]
    pairs: tuple[Pair, ...]
    switches: tuple[Switch, ...] = field(default=())

    def topology(self) -> Topology:
        """The network as a topology: links, ports and trunks that were found."""
        ranks = len(self.names)
        names, rows = list(self.names), []
        links = {(p.src, p.dst): p for p in self.pairs}
        nodes: dict[tuple[int, bool, int], int] = {}

        def new_switch() -> int:
            names.append(f"switch{len(names) - ranks}")
            return len(names) - 1

        def end(port: Port) -> int:
            """The node at which a port is: its rank, or what it shares with others."""
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
            # On a busy machine pairs may look relayed in a circle: then each has a link of its own.
            direct = [
                (p.src, p.dst, _short(p.bandwidth_Bps.median), _short(p.latency_s.median))
                for p in self.pairs
            ]
            return topologies.from_links(ranks, direct, names=list(self.names))

    def to_json(self) -> dict[str, Any]:
        """The measurements and what was found, as plain values."""
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
    """Measure a network and find out how it is wired.

    Args:
        meter: Where measurements come from.
        names: Of the ranks.
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
    """Which of the messages that begin, or end, at a rank share something there."""

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
            # All together are too much for what any two may use.
            peers = [self._peer(pair) for pair in pairs]
            self._shared = {frozenset(two) for two in itertools.combinations(peers, 2)}

    def share(self, one: int, other: int) -> bool:
        """Whether the messages to, or from, these two slow each other down."""
        return frozenset((one, other)) in self._shared

    def apart(self, one: int, other: int) -> bool:
        """Whether they certainly do not; between the two it is unknown."""
        two = frozenset((one, other))
        return two not in self._shared and (
            two not in self._found or self._found[two].slowdown < _APART
        )

    def ports(self, pairs: list[Pair]) -> list[Port]:
        """The ports that these messages take."""
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
        """The most that was seen on the way to, or from, these peers."""
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
    """The ports that messages go between, switch by switch."""
    at = {(port.rank, port.out, peer): i for i, port in enumerate(ports) for peer in port.peers}
    edges = [
        frozenset((i, at[peer, False, port.rank]))
        for i, port in enumerate(ports)
        if port.out
        for peer in port.peers
    ]
    return [[ports[i] for i in group] for group in _components(range(len(ports)), edges)]


def _components(nodes: Iterable[int], edges: Iterable[frozenset[int]]) -> list[list[int]]:
    """Connected components, each sorted, by their lowest node."""
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


class _Crossing:
    """What the ports between which messages go have in common."""

    def __init__(self, meter: Meter, ports: list[Port], pairs: dict[tuple[int, int], Pair]) -> None:
        self._meter, self._ports, self._pairs = meter, ports, pairs
        self._at = {(p.rank, p.out, peer): i for i, p in enumerate(ports) for peer in p.peers}

    def switch(self) -> Switch:
        """The switch between the ports, after sending messages between all of them at once."""
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
        """The ports of one side, those together that share a wire."""
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
        """Whether messages through two ports slow each other down, whatever their other ends are."""
        ports = self._ports
        ends = [
            (a, b)
            for a in ports[one].peers
            for b in ports[other].peers
            if a != b and a != ports[other].rank and b != ports[one].rank
        ]
        # Ranks of one host have neighbouring numbers, as a rule: those far apart come first.
        ends.sort(key=lambda two: -abs(two[0] - two[1]))
        tries = min(max(len(ends), _LEAST_TRIES), _TRIES)
        return bool(ends) and all(
            self._meter.together([self._message(one, a), self._message(other, b)]).slowdown > SHARES
            for a, b in itertools.islice(itertools.cycle(ends), tries)
        )

    def _apart(self, group: list[int]) -> list[Pair]:
        """A message through each of some ports, with different other ends."""
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
        """How many times longer some messages take for what ports share."""
        used = [
            m.bandwidth_Bps.median
            for m in messages
            if self._at[m.src, True, m.dst] in shared.ports
            or self._at[m.dst, False, m.src] in shared.ports
        ]
        return sum(used) / shared.bandwidth_Bps
