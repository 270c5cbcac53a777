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
from tacos._core import Collective, distance_sum
from tacos._core import bound as _search
from tacos.bound.doubts import doubts_of
from tacos.bound.pairs import has_pairs, limiting_lengths, of_pairs
from tacos.bound.words import reason
from tacos.errors import check_type
from tacos.nodes import Network, topology_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Binding", "Bound", "binding", "bound"]


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
        in_switch_ps: The lower bound that sums in switches would have, in picoseconds, if this is a bound for a target without
            them (:func:`tacos.targets.bound_for`); else None.
    """

    time_ps: int
    latency_s: float
    bandwidth_s: float
    exact: bool
    why: str
    cut: tuple[int, ...]
    in_switch_ps: int | None = None

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
    pairs = of_pairs(topology, collective, report, progress, quick=quick)
    doubts = doubts_of(topology, collective, report, pairs)
    bandwidth_s = max(report.bandwidth_s, pairs.time_s)
    # Sums of distances are floating point: 1e-12 is more than their rounding.
    time_ps = max(report.time_ps, int(pairs.time_s * (1 - 1e-12) * 1e12))
    return Bound(
        time_ps=time_ps,
        latency_s=report.latency_ps / 1e12,
        bandwidth_s=bandwidth_s,
        exact=not doubts,
        why=reason(topology, report, pairs, time_ps, doubts, collective),
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
    if any(has_pairs(part) for part in collective.parts) and topology.links:
        for lengths in limiting_lengths(topology, collective, report.bandwidth_s):
            passing = distance_sum(topology, collective, lengths, None)
            capacity = float(lengths.astype(float) @ rates)
            if capacity and passing / capacity > bytes_ / max(float(weights @ rates), 1e-300):
                bytes_, weights = passing, lengths.astype(float)
    return Binding(bytes_, weights, report.latency_ps / 1e12)
