"""The bound of messages between pairs, such as an all-to-all: bytes times distance against the capacity of all links.

If every pair of NPUs has its own bytes, these use capacity in proportion to their distance, for any lengths of the
links. A linear program finds the lengths that give the best bound. On large networks some lengths are tried, and
lengths that rise with the load (``cpp/bound/rising_lengths.hpp``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos import units
from tacos._core import Collective, Topology, distance_sum, rising_lengths
from tacos._support.solver import LinearProgram, solve
from tacos.collective import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tacos._core import BoundReport, CollectivePart

_LP_COLUMNS = 8_000
"""Largest linear program, in flows (sources times links); a larger one takes more than a second."""
_LP_LENGTHS = 10**9
_DISTANCES = 50_000_000
"""Largest product of NPUs and links for which distances are summed; this takes a few seconds."""
_RISING, _FEWEST_ROUNDS, _MOST_ROUNDS = 30_000_000, 50, 150
"""Product of senders, links and rounds in which lengths rise with the load (about 0.6 s), and the fewest and most rounds."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The bound from bytes times distance."""

    time_s: float = 0.0
    exact: bool = False
    why: str = ""
    doubt: str = "only some lengths of the links were tried"


def has_pairs(part: CollectivePart) -> bool:
    """Return whether all chunks are messages between two NPUs, and no NPU is an end of all of them."""
    return kind_of(part).per_pair or part.kind == "send_recv"


def of_pairs(
    topology: Topology,
    collective: Collective,
    report: BoundReport,
    progress: Callable[[float], object] | None,
    *,
    quick: bool,
) -> Pairs:
    """Return the bound of all pairs' bytes, or one of zero if no part of the collective is made of pairs."""
    pairs = [has_pairs(part) for part in collective.parts]
    if not any(pairs) or not topology.links:
        return Pairs()
    if report.lines:
        what = f"all pairs' bytes times hops fill the links of dimension {report.line}"
        doubt = "a dimension has links of several speeds"
        return Pairs(report.line_s, report.even_lines, what, doubt)
    if topology.npus * topology.links > _DISTANCES:
        return Pairs(doubt="the network is too large to measure distances")
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
        return Pairs(time_s, exact, "all pairs' bytes fill the links, however they are routed")
    times = {
        what: _distance_bound(topology, collective, length, progress) for what, length in candidates
    }
    for length in () if quick else _risen(topology, collective, progress):
        times["the busiest links"] = _distance_bound(topology, collective, length, progress)
    what = max(times, key=lambda name: times[name])
    return Pairs(times[what], False, f"all pairs' bytes times distance fill {what}", doubt)


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
        if has_pairs(part)
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


def limiting_lengths(
    topology: Topology, collective: Collective, cuts_s: float
) -> Iterator[NDArray[np.int64]]:
    """Yield link lengths that may limit the traffic between pairs; `cuts_s` is the time that cuts alone take."""
    small = topology.npus * topology.links <= _LP_COLUMNS
    if small and all(has_pairs(part) for part in collective.parts):
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
