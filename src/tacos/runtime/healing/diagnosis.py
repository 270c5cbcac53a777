"""Judge from the ranks' reports which links are slow, dead or recovered. No I/O.

Every rank reports the speed of data from and to its peers, compared with the usual speed. If both ends report a
connection, the receiver's report counts: it has measured messages, while the sender has only its kernel's figures. All
ranks apply the same rules to the same reports, so they reach the same diagnosis without further messages. A slow pair of
ranks is attributed to a link of its route that no fast pair uses. A rank whose pairs are all slow is slow itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tacos import topology as topologies
from tacos._core import channel_routes
from tacos.schedule import paths

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacos._core import Topology

__all__ = ["Belief", "Diagnosis", "Pair", "RankReport", "diagnosed", "left", "links_of"]

WELL = 0.8
"""Share of its bandwidth from which a link counts as healthy."""
AVOIDED = 0.2
"""Share of its bandwidth up to which a link is not used, because all ranks would wait for it."""
NEWS = 1.25
"""Smallest factor by which a share must change to be reported."""


class Pair(NamedTuple):
    """A connection from one rank to another."""

    src: int
    dst: int
    channel: int = 0


class RankReport(msgspec.Struct):
    """The report of one rank: speeds of its connections, dead links, and the calls that it has finished."""

    speeds: list[tuple[int, int, int, float, float, str]] = []
    """Source, destination, channel, bytes per second now and usually, and the state of its watch."""
    probes: list[tuple[int, int, int, float]] = []
    """Avoided connections from this rank, and their present speed."""
    broken: list[tuple[int, int]] = []
    """Links that were found dead, by source and destination."""
    finished: int = 0
    """Calls that this rank has finished."""
    prepared: int = 0
    """Algorithms that it has prepared."""


@dataclass(frozen=True)
class Belief:
    """The state of the network as the ranks know it."""

    shares: Mapping[int, float] = field(default_factory=dict)
    """Remaining share of the bandwidth of degraded links; 0: dead."""
    usual: Mapping[Pair, float] = field(default_factory=dict)
    """The speed of connections over such links when they were healthy."""
    pairs: Mapping[int, Pair] = field(default_factory=dict)
    """A connection over each such link, for probes."""


class Diagnosis(NamedTuple):
    """The conclusion from all reports."""

    belief: Belief
    slow_ranks: list[int]
    unexplained: list[Pair]
    """Slow connections whose links all serve fast connections too."""


class Left(NamedTuple):
    """What is left of a network."""

    network: Topology
    links: list[int]
    """The number that each of its links has in the whole network."""


def left(network: Topology, shares: Mapping[int, float]) -> Left:
    """Return a network without its dead links, and without links that are too slow to be useful unless it needs them.

    Raises:
        ValueError: The dead links split the network.

    >>> import tacos
    >>> ring = tacos.topology.ring(4, bandwidth="1GB/s")
    >>> left(ring, {0: 0.5}).network.link_bandwidth_Bps[:2].tolist(), left(ring, {0: 0.1}).links
    ([500000000, 1000000000], [1, 2, 3, 4, 5, 6, 7])
    >>> left(ring, {}).network is ring
    True
    """
    slow = network
    for link, share in shares.items():
        if share > 0:
            slow = topologies.degrade(slow, link, factor=share)

    def without(least: float) -> Left:
        dropped = [link for link, share in shares.items() if share <= least]
        links = [link for link in range(network.links) if link not in dropped]
        return Left(topologies.drop_links(slow, *dropped) if dropped else slow, links)

    try:
        return without(AVOIDED)
    except ValueError:
        return without(0)


def links_of(network: Topology, npus: Sequence[int], pair: Pair) -> list[int]:
    """Return the links of a connection: those of its channel's route, else of the usual one.

    >>> import tacos
    >>> links_of(tacos.topology.ring(4), [0, 1, 2, 3], Pair(0, 1)), links_of(tacos.topology.ring(4), [0, 1, 2, 3], Pair(0, 2))
    ([0], [0, 1])
    """
    src, dst = npus[pair.src], npus[pair.dst]
    if ways := channel_routes(network, src, dst):
        return ways[pair.channel % len(ways)]
    return [int(link) for link in paths(network, ([src], [dst])).links]


def diagnosed(
    network: Topology, npus: Sequence[int], before: Belief, reports: Sequence[RankReport]
) -> Diagnosis:
    """Return the new state of the network.

    Args:
        network: The network without faults.
        npus: The NPU of each rank.
        before: The state so far.
        reports: The reports of all ranks, in rank order.
    """
    shares, usual, pairs = dict(before.shares), dict(before.usual), dict(before.pairs)
    rows: dict[Pair, tuple[float, float, str]] = {}
    for of_receiver in (False, True):
        for rank, report in enumerate(reports):
            for src, dst, channel, rate, normal, state in report.speeds:
                if normal > 0 and (dst == rank) == of_receiver:
                    rows[Pair(src, dst, channel)] = rate, normal, state
    route = {pair: links_of(network, npus, pair) for pair in rows}
    slow = {pair for pair, (_, _, state) in rows.items() if state == "slow"}
    ranks = [rank for rank in range(len(npus)) if _is_slow(rank, rows, slow, route)]
    slow -= {pair for pair in slow if pair.src in ranks or pair.dst in ranks}
    quick = {link for pair in rows if pair not in slow for link in route[pair]}
    unexplained = sorted(pair for pair in slow if all(link in quick for link in route[pair]))
    slow -= set(unexplained)

    def settle(link: int, pair: Pair, share: float, normal: float) -> None:
        held = shares.get(link, 1.0)
        if share >= WELL:
            shares.pop(link, None)
            pairs.pop(link, None)
        elif not held or max(share, held) > NEWS * min(share, held):
            shares[link] = float(f"{share:.2g}")
            pairs[link] = pair
            usual.setdefault(pair, normal)

    while slow:
        # The link that explains most slow pairs; the first of equals.
        counts = Counter(link for pair in sorted(slow) for link in route[pair] if link not in quick)
        link = min(counts, key=lambda one: (-counts[one], one))
        over = sorted(pair for pair in slow if link in route[pair])
        share = max(rows[pair][0] / rows[pair][1] for pair in over)
        # Connections that share the link have been slower than it is, and a probe has it to itself: the quickest of them
        # says most about the link.
        quickest = max(over, key=lambda pair: rows[pair][1])
        # What a connection is compared with is, over a link that is not well, what is left of it.
        held = shares.get(link, 1.0) or 1.0
        settle(link, quickest, held * share, rows[quickest][1] / held)
        slow -= set(over)
    for pair, (rate, normal, state) in sorted(rows.items()):
        for link in route[pair] if state == "fast" else ():
            if shares.get(link):
                settle(link, pair, min(1.0, shares[link] * rate / normal), normal / shares[link])
    for src, dst, channel, rate in (probe for report in reports for probe in report.probes):
        pair = Pair(src, dst, channel)
        for link in links_of(network, npus, pair):
            if link in shares:
                normal = usual.get(pair, 0.0)
                settle(link, pair, min(1.0, rate / normal) if normal else 1.0, normal)
    for src, dst in sorted({tuple(link) for report in reports for link in report.broken}):
        # A disconnected cable carries neither direction.
        for pair in (Pair(src, dst), Pair(dst, src)):
            for link in links_of(network, npus, pair):
                shares[link], pairs[link] = 0.0, pair
                if pair in rows:
                    usual.setdefault(pair, rows[pair][1])
    kept = set(pairs.values())
    usual = {pair: rate for pair, rate in usual.items() if pair in kept}
    return Diagnosis(Belief(shares, usual, pairs), ranks, unexplained)


def _is_slow(
    rank: int,
    rows: Mapping[Pair, tuple[float, float, str]],
    slow: set[Pair],
    route: Mapping[Pair, list[int]],
) -> bool:
    """Return whether all data to and from a rank are slow, or all in one direction and no shared link explains it."""
    into = [pair for pair in rows if pair.dst == rank]
    out = [pair for pair in rows if pair.src == rank]

    def hit(pairs: list[Pair]) -> bool:
        ends = {(pair.src, pair.dst) for pair in pairs}
        return len(ends) > 1 and all(pair in slow for pair in pairs)

    def shared(pairs: list[Pair]) -> bool:
        return bool(set.intersection(*(set(route[pair]) for pair in pairs)))

    if hit(into) and hit(out):
        return True
    return any(hit(pairs) and not shared(pairs) for pairs in (into, out))
