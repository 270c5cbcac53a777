"""Lower bounds: a time that no schedule can beat, and the reason for it.

These arguments bound every schedule. *Paths*: a chunk has to travel from where it is to where it is
needed. *Cuts*: what must leave a set of nodes has to cross the links out of it; the narrowest cut is found by
maximum flows, which for an all-gather gives the optimum of ForestColl's theory. *Cuts in time*: what crosses a
cut has to travel before and after it, and can be summed and copied on the way only as far as the latencies
leave time for it (``cpp/bound/timed_cuts.hpp`` and ``weighted_cut.hpp`` have the proofs). *Sets*: every byte of an all-reduce among p
disjoint sets of nodes crosses their borders 2(p - 1) times. If every pair of NPUs has its own bytes
(all-to-all), these use capacity in proportion to their distance, and a linear program finds the link lengths
that give the best bound; on large networks, lengths that rise with the load come near it
(``cpp/bound/rising_lengths.hpp``). *Crowds*: neighbouring members of a group compete for the links between them
(``cpp/bound/crowd.hpp``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos import units
from tacos._core import Collective, Topology, distance_sum, rising_lengths
from tacos._core import bound as _search
from tacos._support.solver import LinearProgram, solve
from tacos.collective import kind_of
from tacos.errors import check_type
from tacos.nodes import Network, topology_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tacos._core import BoundReport, CollectivePart

__all__ = ["Binding", "Bound", "binding", "bound"]

_LP_COLUMNS = 8_000
"""Largest linear program, in flows (sources times links); a larger one takes more than a second."""
_LP_LENGTHS = 10**9
_DISTANCES = 50_000_000
"""Largest product of NPUs and links for which distances are summed; this takes a few seconds."""
_RISING, _FEWEST_ROUNDS, _MOST_ROUNDS = 30_000_000, 50, 150
"""Product of senders, links and rounds in which lengths rise with the load (about 0.6 s), and the fewest and most rounds."""
_SAME = 1 + 1e-9
_LATENT = 1.05
"""Latency counts as part of the limit if the bound exceeds the bandwidth time by this factor (chosen)."""
_UNITS = {"nvl72": "rack", "fat_tree": "leaf", "dragonfly": "group", "rail": "box"} | dict.fromkeys(
    (
        "dgx1",
        "dgx2",
        "dgx_a100",
        "dgx_b200",
        "dgx_h100",
        "mi250",
        "mi300x",
        "mi355x",
        "ndv2",
        "trn2",
    ),
    "box",
)
"""Name of the innermost part of a network, by its family."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A time that no schedule beats.

    Attributes:
        time_ps: The largest valid bound, in picoseconds, rounded down.
        latency_s: Time of the longest path that some chunk has to travel, with its serialization.
        bandwidth_s: Time in which the bytes cross the narrowest cut, as a fluid.
        exact: Whether ``bandwidth_s`` is known to be reached by large buffers in many chunks.
        why: What limits the time, and why the bound may not be attainable.
        cut: Nodes around which the narrowest cut runs (of several sets, the first); empty if the
            bound does not come from a cut.
    """

    time_ps: int
    latency_s: float
    bandwidth_s: float
    exact: bool
    why: str
    cut: tuple[int, ...]

    @property
    def time_s(self) -> float:
        """The largest valid bound in seconds."""
        return self.time_ps / 1e12

    def __str__(self) -> str:
        """Return the bound and its reason in a sentence.

        >>> import tacos
        >>> print(bound("ring:4", tacos.collective.all_gather(4, "4MB")))
        at least 30.5 us: 3 MB must enter npu 0 over 2 links with 100 GB/s in total; attainable
        """
        return f"at least {units.format_time(self.time_s)}: {self.why}"


def bound(
    topology: Network,
    collective: Collective,
    *,
    quick: bool = False,
    progress: Callable[[float], object] | None = None,
) -> Bound:
    """Return a time that no schedule of a collective on a network can beat.

    It is the largest of several bounds: the longest path; the narrowest cut, with the latencies of its links and of the
    paths before and after it; and, if the number of chunks is chosen, the time in which these whole chunks cross
    the cut under the topology's link model. With ``chunks="auto"`` the buffer counts as a fluid.
    Traffic between pairs (such as all-to-all) is solved exactly by a linear program if the network is small, else bounded
    by cuts and distances.

    Args:
        topology: The network.
        collective: The collective.
        quick: Whether to bound the traffic between pairs by cuts and distances only, in milliseconds. The bound is valid, but may be lower.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached.
        ValueError: The collective is for a different number of NPUs.

    >>> import tacos
    >>> topo = tacos.topology.dgx_h100(16)
    >>> best = bound(topo, tacos.collective.all_gather(topo, "1GB"))
    >>> best.bandwidth_s, best.exact  # 15/16 of a gigabyte into a box of 8 NICs
    (0.00234375, True)
    >>> best.why
    '937.5 MB must enter box 0 over 8 NICs with 400 GB/s in total; attainable'
    """
    topology = topology_of(topology)
    check_type("collective", collective, Collective)
    if collective.npus != topology.npus:
        raise ValueError(
            f"the collective is for {collective.npus} NPUs, but the topology has {topology.npus}"
        )
    report = _search(topology, collective, progress)
    pairs = _pairs(topology, collective, report, progress, quick=quick)
    doubts = _doubts(topology, collective, report, pairs)
    bandwidth_s = max(report.bandwidth_s, pairs.time_s)
    # Sums of distances are floating point: 1e-12 is more than their rounding.
    time_ps = max(report.time_ps, int(pairs.time_s * (1 - 1e-12) * 1e12))
    return Bound(
        time_ps=time_ps,
        latency_s=report.latency_ps / 1e12,
        bandwidth_s=bandwidth_s,
        exact=not doubts,
        why=_why(topology, report, pairs, time_ps, doubts, collective),
        cut=() if pairs.time_s > report.bandwidth_s else tuple(report.bottleneck.nodes),
    )


@dataclass(frozen=True, slots=True)
class Binding:
    """The limit of a collective's bandwidth: no schedule is faster than ``bytes / (weights @ link_bandwidth_Bps)``.

    This holds for any bandwidths of the links, so it shows what more bandwidth would be worth.

    Attributes:
        bytes: Bytes that must cross a cut or, for pairs, bytes times link lengths.
        weights: Weight of each link's bandwidth.
        latency_s: Latency of the longest path that some chunk has to travel.
    """

    bytes: float
    weights: NDArray[np.float64]
    latency_s: float


def binding(topology: Network, collective: Collective) -> Binding:
    """Return what limits the bandwidth of a collective: the narrowest cut or, for pairs, prices of links.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached.

    >>> import tacos
    >>> box = tacos.topology.switch(4, bandwidth="50GB/s")
    >>> found = binding(box, tacos.collective.all_gather(box, "4GB"))
    >>> round(found.bytes / float(found.weights @ box.link_bandwidth_Bps), 9)
    0.06
    """
    topology = topology_of(topology)
    report = _search(topology, collective, None)
    rates = topology.link_bandwidth_Bps.astype(float)
    cut, weights, bytes_ = report.bottleneck, np.zeros(topology.links), 0.0
    if cut.nodes and cut.bandwidth_Bps:
        there, back = (topology.link_src, topology.link_dst)[:: 1 if cut.leaving else -1]
        if cut.set_of:
            sets = np.array(cut.set_of)
            weights = ((sets[there] >= 0) & (sets[there] != sets[back])).astype(float)
        else:
            inside = np.zeros(topology.nodes, bool)
            inside[cut.nodes] = True
            weights = (inside[there] & ~inside[back]).astype(float)
            weights *= cut.bandwidth_Bps / float(weights @ rates)  # the first set represents all
        bytes_ = cut.bytes
    if any(_has_pairs(part) for part in collective.parts) and topology.links:
        for lengths in _pair_lengths(topology, collective, report.bandwidth_s):
            passing = distance_sum(topology, collective, lengths, None)
            capacity = float(lengths.astype(float) @ rates)
            if capacity and passing / capacity > bytes_ / max(float(weights @ rates), 1e-300):
                bytes_, weights = passing, lengths.astype(float)
    return Binding(bytes_, weights, report.latency_ps / 1e12)


def _pair_lengths(
    topology: Topology, collective: Collective, cuts_s: float
) -> Iterator[NDArray[np.int64]]:
    """Yield link lengths that may limit the traffic between pairs; `cuts_s` is the time that cuts alone take."""
    small = topology.npus * topology.links <= _LP_COLUMNS
    if small and all(_has_pairs(part) for part in collective.parts):
        yield _concurrent_flow(topology, collective, cuts_s)[1]
        return
    if topology.npus * topology.links > _DISTANCES:
        return
    yield np.ones(topology.links, np.int64)
    kinds, which = np.unique(
        np.stack([topology.link_bandwidth_Bps, topology.link_latency_ps]),
        axis=1,
        return_inverse=True,
    )
    for kind in range(kinds.shape[1] if kinds.shape[1] <= 16 else 0):
        yield (which.ravel() == kind).astype(np.int64)
    yield from _risen(topology, collective, None)


# --- pairs: all-to-all and messages --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The bound from bytes times distance."""

    time_s: float = 0.0
    exact: bool = False
    why: str = ""
    doubt: str = "only some lengths of the links were tried"


def _has_pairs(part: CollectivePart) -> bool:
    """Return whether all chunks are messages between two NPUs, and no NPU is an end of all of them."""
    return kind_of(part).per_pair or part.kind == "send_recv"


def _pairs(
    topology: Topology,
    collective: Collective,
    report: BoundReport,
    progress: Callable[[float], object] | None,
    *,
    quick: bool,
) -> _Pairs:
    pairs = [_has_pairs(part) for part in collective.parts]
    if not any(pairs) or not topology.links:
        return _Pairs()
    if report.lines:
        what = f"all pairs' bytes times hops fill the links of dimension {report.line}"
        doubt = "a dimension has links of several speeds"
        return _Pairs(report.line_s, report.even_lines, what, doubt)
    if topology.npus * topology.links > _DISTANCES:
        return _Pairs(doubt="the network is too large to measure distances")
    if not all(pairs):
        candidates, doubt = _lengths(topology), "other collectives share the network"
    elif topology.npus * topology.links > _LP_COLUMNS:
        candidates, doubt = _lengths(topology), "the network is too large for a linear program"
    elif quick:
        candidates, doubt = _lengths(topology), "no linear program was solved"
    else:
        flow_s, lengths = _concurrent_flow(topology, collective, report.bandwidth_s)
        time_s = _distance_bound(topology, collective, lengths, progress)
        exact = time_s * (1 + 1e-6) >= flow_s
        for _, length in () if exact else _lengths(topology):
            time_s = max(time_s, _distance_bound(topology, collective, length, progress))
        return _Pairs(time_s, exact, "all pairs' bytes fill the links, however they are routed")
    times = {
        what: _distance_bound(topology, collective, length, progress) for what, length in candidates
    }
    for length in () if quick else _risen(topology, collective, progress):
        times["the busiest links"] = _distance_bound(topology, collective, length, progress)
    what = max(times, key=lambda name: times[name])
    return _Pairs(times[what], False, f"all pairs' bytes times distance fill {what}", doubt)


def _distance_bound(
    topology: Topology,
    collective: Collective,
    length: NDArray[np.int64],
    progress: Callable[[float], object] | None,
) -> float:
    capacity = float(length.astype(float) @ topology.link_bandwidth_Bps.astype(float))
    return distance_sum(topology, collective, length, progress) / capacity if capacity else 0.0


def _lengths(topology: Topology) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Yield lengths of links that give good bounds: all equal, or only the links of one speed."""
    yield "all links", np.ones(topology.links, np.int64)
    speeds, kind = np.unique(topology.link_bandwidth_Bps, return_inverse=True)
    if 1 < len(speeds) <= 4:
        for i, speed in enumerate(speeds.tolist()):
            name = f"the links of {units.format_bandwidth(speed)}"
            yield name, (kind.ravel() == i).astype(np.int64)


def _risen(
    topology: Topology, collective: Collective, progress: Callable[[float], object] | None
) -> Iterator[NDArray[np.int64]]:
    """Yield lengths that rise with the load of the links, if there is time for enough rounds.

    Between boxes and in cliques, where ports limit the traffic, cuts give the same bound sooner.
    """
    ends = [
        part.inputs if part.kind == "send_recv" else part.group
        for part in collective.parts
        if _has_pairs(part)
    ]
    visits = np.unique(np.concatenate(ends)).size * topology.links
    rounds = min(_RISING // max(visits, 1), _MOST_ROUNDS)
    if rounds >= _FEWEST_ROUNDS and not topology.switches and topology.diameter(4) > 1:
        yield rising_lengths(topology, collective, rounds, progress)


def _demands(topology: Topology, collective: Collective) -> NDArray[np.float64]:
    """Return the bytes from every NPU to every other."""
    result = np.zeros((topology.npus, topology.npus))
    for part in collective.parts:
        if part.kind == "send_recv":
            np.add.at(result, (part.inputs, part.outputs), part.bytes)
            continue
        n = len(part.group)
        each = part.size // n + (np.arange(n) < part.size % n)
        block = np.tile(each, (n, 1)) if kind_of(part).even else part.bytes.reshape(n, n)
        result[np.ix_(part.group, part.group)] += block
    np.fill_diagonal(result, 0)
    return result


def _concurrent_flow(
    topology: Topology, collective: Collective, cuts_s: float
) -> tuple[float, NDArray[np.int64]]:
    """Return the least time in which all pairs' bytes flow, and the link lengths that prove it.

    If the solver gives up, the time is infinite and all lengths are 1. The variables are the time and, for each source s and
    link e, the bytes of s on e. At each node, inflow minus outflow is the source's demand there; a link carries at most
    its bandwidth times the time.

    Args:
        topology: The network.
        collective: Messages between pairs.
        cuts_s: The time that the narrowest cut takes.
    """
    demand = _demands(topology, collective)
    sources = np.flatnonzero(demand.sum(axis=1))
    nodes, links = topology.nodes, topology.links
    # The units are the largest demand and the time of the narrowest cut, which the result exceeds by a small factor at most.
    # Each row is divided by its largest entry. So a link counts as free or closed only if it is faster or slower by nine
    # orders of magnitude; in units of the fastest or the slowest link, this would happen to links that matter.
    scale = float(demand.max()) or 1.0
    unit_s = cuts_s or scale / float(topology.link_bandwidth_Bps.min())
    filled = scale / (
        topology.link_bandwidth_Bps * unit_s
    )  # the share of the unit of time that the unit of demand takes on a link
    share, time = np.minimum(filled, 1), np.minimum(1 / filled, 1)
    k, e = np.meshgrid(np.arange(len(sources)), np.arange(links), indexing="ij")
    column = k * links + e
    rows = np.concatenate(
        [
            k * nodes + topology.link_dst[e],
            k * nodes + topology.link_src[e],
            e + len(sources) * nodes,
        ]
    )
    columns = np.concatenate([column] * 3).ravel()
    values = np.concatenate([np.ones(column.size), np.full(column.size, -1.0), share[e.ravel()]])
    capacity_rows = len(sources) * nodes + np.arange(links)
    rows = np.append(rows.ravel(), capacity_rows)
    columns = np.append(columns, np.full(links, len(sources) * links))
    values = np.append(values, -time)
    wanted = np.zeros((len(sources), nodes))
    wanted[:, : topology.npus] = demand[sources] / scale
    wanted[np.arange(len(sources)), sources] = -wanted.sum(axis=1)
    lower = np.append(wanted.ravel(), np.full(links, -np.inf))
    upper = np.append(wanted.ravel(), np.zeros(links))

    found = solve(
        LinearProgram(
            cost=np.append(np.zeros(len(sources) * links), 1.0),
            entries=(rows, columns, values),
            row_lower=lower,
            row_upper=upper,
        )
    )
    if found.status != "optimal" or found.duals is None:
        return np.inf, np.ones(links, np.int64)
    prices = np.maximum(-found.duals[capacity_rows], 0) * share
    prices /= max(float(prices.max(initial=0)), 1e-300)
    return found.objective * unit_s, np.round(prices * _LP_LENGTHS).astype(np.int64)


# --- whether the bound is attainable --------------------------------------------------------------


def _doubts(
    topology: Topology, collective: Collective, report: BoundReport, pairs: _Pairs
) -> list[str]:
    """Return reasons why the bandwidth bound may not be attainable; none if it is known to be."""
    bandwidth_s = max(report.bandwidth_s, pairs.time_s)
    if bandwidth_s == 0:
        return []
    if all(map(_has_pairs, collective.parts)):
        solved = pairs.exact or (report.all_cuts and _one_end(collective.parts))
        return [] if solved else [pairs.doubt]
    if len(collective.parts) > 1:
        return ["several collectives share the network"]
    part = collective.parts[0]
    kind = kind_of(part)
    if kind.two_phases and _star_s(topology, part) <= bandwidth_s * _SAME:
        return []
    if _ports_suffice(topology, part, report):
        return []
    doubts = [] if report.all_cuts else ["only some cuts were searched"]
    if kind.listed:
        return [*doubts, "custom conditions are not analysed"]
    if not kind.spreads:  # one node sends or receives everything
        return doubts
    if kind.two_phases and not report.two_halves:
        doubts.append("a reduce-scatter and an all-gather take longer")
    if topology.switches or len(part.group) < topology.npus:
        doubts += _unbalanced(topology, len(part.group) < topology.npus)
    return doubts


def _unbalanced(topology: Topology, relays: bool) -> list[str]:
    """Describe a node whose bandwidths in and out differ, since the bound may then not be attainable."""
    rates = topology.link_bandwidth_Bps.astype(float)
    excess = np.bincount(topology.link_dst, rates, topology.nodes)
    excess -= np.bincount(topology.link_src, rates, topology.nodes)
    uneven = np.flatnonzero(excess)
    if not len(uneven):
        return []
    through = "relays" if relays else "switches"
    name = topology.node_name(int(uneven[0]))
    return [f"it is routed through {through}, and {name} is unbalanced (in and out differ)"]


def _one_end(parts: Sequence[CollectivePart]) -> bool:
    """Return whether all messages have one source or one destination: then a flow is optimal."""
    if any(part.kind != "send_recv" for part in parts):
        return False
    ends = [
        np.concatenate(column)
        for column in zip(*((p.inputs, p.outputs) for p in parts), strict=True)
    ]
    return any((column == column[0]).all() for column in ends)


def _star_s(topology: Topology, part: CollectivePart) -> float:
    """Return the time of an all-reduce in one switch that reduces and multicasts, as NVLS does."""
    best = float("inf")
    for i in np.flatnonzero(topology.switch_capabilities == 3).tolist():
        node = topology.npus + i
        rates = topology.link_bandwidth_Bps.astype(float)
        up, down = topology.link_dst == node, topology.link_src == node
        at_members = [
            np.bincount(topology.link_src[up], rates[up], topology.nodes)[part.group],
            np.bincount(topology.link_dst[down], rates[down], topology.nodes)[part.group],
        ]
        narrowest = float(np.min(at_members))
        if narrowest > 0:
            best = min(best, part.size / narrowest)
    return best


def _ports_suffice(topology: Topology, part: CollectivePart, report: BoundReport) -> bool:
    """Return whether the links of one NPU are the limit of a symmetric network of equal links.

    In a connected vertex-transitive network without parallel links, no cut is narrower than that of one NPU
    (Mader, Hamidoune). A single switch that joins all NPUs is not an obstacle.
    """
    cut = report.bottleneck
    if not (topology.symmetric and len(cut.nodes) == 1 and kind_of(part).spreads):
        return False
    if kind_of(part).two_phases and cut.sets < topology.npus:
        return False
    rates = topology.link_bandwidth_Bps
    if len(part.group) < topology.npus or rates.min() != rates.max():
        return False
    if topology.switches:
        return topology.switches == 1 and topology.links == 2 * topology.npus
    first = topology.link_dst[topology.link_src == 0]
    return len(np.unique(first)) == len(first)


# --- words ---------------------------------------------------------------------------------------


def _why(
    topology: Topology,
    report: BoundReport,
    pairs: _Pairs,
    time_ps: int,
    doubts: list[str],
    collective: Collective,
) -> str:
    if time_ps == 0:
        return "nothing has to move"
    binds = pairs.why
    if report.bandwidth_s >= pairs.time_s:
        binds = _bottleneck(topology, report, collective)
    if report.latency_ps == time_ps:
        far = f"{topology.node_name(report.src)} to {topology.node_name(report.dst)}"
        rest = f", longer than the bandwidth limit ({binds})" if binds else ""
        return f"a chunk takes {units.format_time(time_ps / 1e12)} from {far}{rest}"
    bandwidth_s = max(report.bandwidth_s, pairs.time_s)
    if report.timed_ps == time_ps and time_ps > _LATENT * bandwidth_s * 1e12:
        rest = f"; bandwidth alone takes {units.format_time(bandwidth_s)} ({binds})"
        return _in_time(topology, report) + (rest if binds else "")
    if report.in_chunks and time_ps == report.time_ps:
        binds += ", in whole chunks"
    if not report.all_distances:
        doubts = [*doubts, "only some paths were measured"]
    return f"{binds}; " + (
        f"perhaps not attainable: {', '.join(doubts)}" if doubts else "attainable"
    )


def _bottleneck(topology: Topology, report: BoundReport, collective: Collective) -> str:
    cut = report.bottleneck
    if not cut.nodes:
        return ""
    name, links = _named(topology, cut.nodes)
    over = _over(cut.links, links, cut.bandwidth_Bps)
    does = "leave" if cut.leaving else "enter"
    if cut.sets == 1:
        return f"{units.format_size(cut.bytes)} must {does} {name} over {over}"
    times = 2 * (cut.sets - 1)
    sort = "NPUs" if len(cut.nodes) == 1 else _PLURALS.get(name.split()[0], "sets of NPUs")
    which = f"the {cut.sets} {sort} ({name}, …)"
    nodes = np.bincount([index for index in cut.set_of if index >= 0], minlength=1)  # of each set
    if cut.set_of and nodes.max() > 1 and (np.sort(nodes)[:-1] == 1).all():
        others = cut.sets - 2  # without this member and the rest
        more = f" and {others} more member{'s'[: others - 1]}, each alone," if others else ""
        which = f"{name}{more} and the rest of the network"
    if len(collective.parts) > 1:  # each byte passes the sets of its own group
        return f"{units.format_size(cut.bytes)} must {does} {which} in all, over {over}"
    verb = "send" if cut.leaving else "receive"
    return f"{which} together must {verb} every byte {times} times, over {over}"


def _over(count: int, links: str, bandwidth_Bps: float) -> str:
    together = units.format_bandwidth(bandwidth_Bps)
    return (
        f"{count} {links}s with {together} in total" if count > 1 else f"one {links} of {together}"
    )


def _in_time(topology: Topology, report: BoundReport) -> str:
    """Describe the limit if latency and bandwidth bind together."""
    inside = np.zeros(topology.nodes, bool)
    inside[report.timed_nodes] = True
    there, back = (topology.link_src, topology.link_dst)[:: 1 if report.timed_leaving else -1]
    passed = inside[there] & ~inside[back]
    name, links = _named(topology, report.timed_nodes)
    does = "leave" if report.timed_leaving else "enter"
    over = _over(int(passed.sum()), links, float(topology.link_bandwidth_Bps[passed].sum()))
    return f"all data that {does} {name} cross {over}, plus the latency before and after them"


_PLURALS = {"box": "boxes", "rack": "racks", "leaf": "leaves", "group": "groups"}


def _named(topology: Topology, nodes: Sequence[int]) -> tuple[str, str]:
    """Return names of a set of nodes and of the links around it."""
    npus = np.array([node for node in nodes if node < topology.npus])
    if len(npus) <= 1:
        return topology.node_name(int(npus[0]) if len(npus) else nodes[0]), "link"
    first, count = int(npus[0]), len(npus)
    if npus[-1] == first + count - 1:
        unit = _UNITS.get(topology.family)
        if unit and first % count == 0 and _is_unit(topology, count):
            nic = unit in ("box", "rack") and topology.family != "rail"
            return f"{unit} {first // count}", "NIC" if nic else "link"
        return f"NPUs {first} to {first + count - 1}", "link"
    return _slab(topology, npus) or _listed(topology, npus.tolist()), "link"


def _is_unit(topology: Topology, count: int) -> bool:
    """Return whether this many NPUs are one box: all but the outermost dimension, or one leaf's NPUs."""
    sizes = [size for _, size in topology.dims] or [0]
    inner = sizes[0] if topology.family == "fat_tree" else int(np.prod(sizes[:-1]))
    return count == inner < topology.npus


def _slab(topology: Topology, npus: NDArray[np.int64]) -> str:
    """Describe NPUs that form a range in one dimension and span all others; return an empty string for other sets."""
    step, ranges, count = 1, [], 1
    for d, (_, size) in enumerate(topology.dims):
        at = np.unique(npus // step % size)
        step, count = step * size, count * len(at)
        if len(at) < size and at[-1] - at[0] == len(at) - 1:
            ranges.append(f"{at[0]} to {at[-1]} in dimension {d}")
    return f"the NPUs at {ranges[0]}" if len(ranges) == 1 and count == len(npus) else ""


def _listed(topology: Topology, npus: list[int]) -> str:
    some = ", ".join(topology.node_name(npu) for npu in npus[:3])
    return some + (f" and {len(npus) - 3} more NPUs" if len(npus) > 3 else "")
