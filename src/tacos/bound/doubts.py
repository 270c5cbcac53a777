"""Reasons why a bound may not be attainable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacos.bound.pairs import has_pairs
from tacos.collective import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos._core import BoundReport, Collective, CollectivePart, Topology
    from tacos.bound.pairs import Pairs

_SAME = 1 + 1e-9


def doubts_of(
    topology: Topology, collective: Collective, report: BoundReport, pairs: Pairs
) -> list[str]:
    """Return reasons why the bandwidth bound may not be attainable; none if it is known to be."""
    bandwidth_s = max(report.bandwidth_s, pairs.time_s)
    if bandwidth_s == 0:
        return []
    if all(map(has_pairs, collective.parts)):
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
