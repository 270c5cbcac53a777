"""Make schedules faster by local search.

Engines build a schedule in one pass. :func:`refine` improves an existing schedule, a few chunks at a time: it removes some
of the chunks that arrive last, and reinserts each over the hops that arrive first, into the gaps that the others leave
(``cpp/synth/refine.hpp`` has the method). Reductions are refined backwards in time, where collecting becomes spreading.
Whenever that gains nothing, and at the beginning if no route passes a switch, all transfers are moved in time over the same routes,
first as late and then as early as possible (``cpp/synth/justify.hpp``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import Meter, Schedule, justify
from tacos._core import refine as _refine
from tacos.bound import bound
from tacos.collective import kind_of
from tacos.errors import InfeasibleError, LimitError, check_type
from tacos.execution import execution, shares_links
from tacos.search.effort import LIMITS
from tacos.synth.matched_ports import matched_ports
from tacos.synth.phases import only_collects
from tacos.targets import check_held, usable
from tacos.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["improved", "refine"]

_EFFORTS = {"fast": 0.1, "normal": 1.0, "high": 8.0}
_HOPS = 100_000_000
"""Hops examined per unit of effort: about 10 s."""
_SLICE, _SLICE_PER_TRANSFER = 400_000, 8
"""Least number of hops in a slice, in total and per transfer."""
_START_PER_TRANSFER = 4
"""Cost of starting a slice, per transfer, in hops that could be examined in that time."""
_JUSTIFY_PER_TRANSFER = 12
"""Cost of moving all transfers in time, per transfer, in hops that could be examined in that time."""
_MOST_TRANSFERS = 10_000_000
_MOST_HOPS = 500_000
_RUN_PER_TRANSFER = 100
"""Cost of the first execution, per transfer, in hops that could be examined in that time; later ones cost what the last one did."""
_NEWS = 0.995
"""A schedule is executed if its time is below this factor of the last executed one's."""
_NEVER = 2**62
_PATIENCE, _GAIN = 3, 0.9998
"""The search stops after this many slices per direction that do not shorten the schedule to this factor."""
_LOST = 1.1
"""Ratio to the fastest execution beyond which the current schedule is too slow to win."""


def refine(
    schedule: Schedule,
    *,
    effort: str | int = "normal",
    time_limit: float | None = None,
    seed: int = 0,
    hops: int | None = None,
    target: str | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Search for a faster schedule of the same collective with the same chunks; never return a slower one.

    A shorter schedule may take longer when it is executed. So schedules are compared by their executed time for the
    target, and the fastest is returned. A schedule that gives each port of a switch between boxes one
    peer keeps that (``tacos.synth.matched_ports``), unless the target is ``"schedule"``.

    The result depends only on the arguments, unless a time limit ends the search early. It passes the
    verifier; its provenance has the time before (``"refined_from_s"``). A schedule that cannot be changed
    is returned unchanged: one with multicast or reduce routes, with routes on which chunks wait, with sums
    that take time, or whose sums are made at several NPUs each; and one of more than ten million transfers, or
    on switches that join more than 700 NPUs, for which a search would be too slow to gain anything.

    Args:
        schedule: A schedule from any engine or file. An orbit is expanded.
        effort: ``"fast"`` (about 1 s), ``"normal"`` (10 s), ``"high"`` (80 s), or a number of times 10 s. The
            search ends sooner where the bound is met, or where it no longer gains.
        time_limit: Seconds after which the best so far is returned.
        seed: Random seed for the order in which chunks are tried.
        hops: Number of hops to examine, instead of an effort; about 100 ns each.
        target: What will execute the schedule, as for :func:`tacos.search.synthesis.synthesize`. By default the slowest of the three
            rules for links counts. A schedule that is too large to be run, or beyond the target's limits, is
            compared by its own time.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: The budget is out of range, or the target is unknown.
        VerificationError: The schedule is wrong.

    >>> import tacos
    >>> box = tacos.topology.mi250(1)
    >>> first = tacos.synthesize(box, tacos.collective.all_gather(box, "16MB", chunks=4), engine="greedy")
    >>> better = refine(first, effort="fast")
    >>> better.time_s < 0.95 * first.time_s, tacos.verify(better).ok
    (True, True)
    """
    check_type("schedule", schedule, Schedule)
    check_held(schedule.collective, target)
    units = _EFFORTS.get(effort) if isinstance(effort, str) else effort
    if units is None or type(units) is bool or not units > 0:
        names = ", ".join(_EFFORTS)
        raise ValueError(f"effort must be one of {names}, or a positive number; got {effort!r}")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit must be positive; got {time_limit!r}")
    if type(seed) is not int or not 0 <= seed < 2**62:
        raise ValueError(f"seed must be 0 to 2^62 - 1; got {seed!r}")
    total = int(units * _HOPS) if hops is None else hops
    end = None if time_limit is None else time.monotonic() + time_limit
    verify(schedule).raise_if_failed()
    found, _ = improved(schedule, total, seed=seed, target=target, end=end, progress=progress)
    return found or schedule


def improved(
    schedule: Schedule,
    hops: int,
    *,
    seed: int,
    target: str | None,
    executed_ps: int | None = None,
    end: float | None = None,
    progress: Callable[[float], object] | None = None,
) -> tuple[Schedule | None, int]:
    """Return a faster schedule, if one is found, and the number of hops examined.

    Args:
        schedule: The schedule.
        hops: Number of hops to examine.
        seed: Random seed.
        target: What will execute the schedule.
        executed_ps: The schedule's executed time, if it is known.
        end: When to stop, by ``time.monotonic()``.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> best = tacos.synthesize(ring, tacos.collective.all_gather(ring, "4MB"))
    >>> improved(best, 1000, seed=0, target=None)
    (None, 0)
    """
    if not _directions(schedule):
        return None, 0
    matching = None if target == "schedule" else matched_ports(schedule.topology)
    start = matching.taken(schedule) if matching else None
    search = _Search(start or schedule, target, end, seed, progress)
    best = search.run(hops, executed_ps)
    if best is None:
        return None, search.done
    if matching and start:
        best = matching.returned(best)
    report = verify(best)
    if not report.ok or (not report.consistent and verify(schedule).consistent):
        return None, search.done
    best = best.with_provenance(schedule.provenance | {"refined_from_s": schedule.time_s})
    best = best.with_facts(
        bound_ps=schedule.bound_ps,
        consistent=report.consistent,
        matched_ports=schedule.matched_ports,
    )
    return best, search.done


class _Search:
    """A search in slices, alternately forwards and backwards if there are reductions.

    The search goes on from the shortest schedule, and remembers the one that is executed fastest.
    """

    def __init__(
        self,
        schedule: Schedule,
        target: str | None,
        end: float | None,
        seed: int,
        progress: Callable[[float], object] | None,
    ) -> None:
        self.schedule, self.target, self.end, self.seed = schedule, target, end, seed
        self.progress = progress
        self.runs = target != "schedule"  # whether executed times are known
        at_once = target is None and not shares_links(schedule)
        self.run_hops = 0 if at_once or not self.runs else _RUN_PER_TRANSFER * schedule.transfers
        self.done = 0  # hops
        self.share = 0.0

    def run(self, total: int, executed_ps: int | None) -> Schedule | None:
        """Return the best schedule found, if it is better than the given one, whose executed time may be known."""
        schedule = self.schedule
        goal = bound(usable(schedule.topology, self.target), schedule.collective).time_ps
        step = max(_SLICE, _SLICE_PER_TRANSFER * schedule.transfers)
        directions = _directions(schedule)
        shortest, failures, slices = schedule, 0, 0
        fastest: Schedule | None = None
        lost = False
        if executed_ps is None and self.run_hops > total:
            return None
        least, judged = executed_ps or self.executed(schedule), schedule

        def report(share: float) -> None:
            self.share = min((self.done + share * step) / total, 1.0)
            self.still()

        def judge() -> None:
            nonlocal fastest, least, judged, lost
            judged = shortest
            # Execution only adds to a schedule's time.
            time_ps = self.executed(shortest, least) if shortest.time_ps < least else least
            lost = time_ps > _LOST * least
            if time_ps < least:
                fastest, least = shortest, time_ps

        while (
            directions
            and self.done + self.run_hops < total  # what is found must be executed
            and failures < _PATIENCE * len(directions)
            and shortest.time_ps > goal
            and not lost
        ):
            if self.end is not None and time.monotonic() > self.end:
                break
            backwards = directions[slices % len(directions)]
            budget = min(step, total - self.done - self.run_hops)
            try:
                # Transfers are justified in the direction in which they will be spread.
                start = shortest.reverse(report) if backwards else shortest
                if slices == 0 and _over_single_links(start):
                    start = self.justified(start, total, report)
                found = _refine(
                    start, seed=self.seed + slices, hops=budget, goal_ps=goal, progress=report
                )
                self.done += budget + _START_PER_TRANSFER * schedule.transfers
                if found.time_ps >= _GAIN * shortest.time_ps:
                    found = self.justified(found, total, report)
                if backwards:
                    found = found.reverse(report)
            except InfeasibleError:
                break
            failures = 0 if found.time_ps < _GAIN * shortest.time_ps else failures + 1
            if found.time_ps <= shortest.time_ps:
                shortest = found
            slices += 1
            report(0.0)  # a slice may be too short to report by itself
            if shortest.time_ps < _NEWS * judged.time_ps:
                judge()
        if shortest.time_ps < judged.time_ps:
            judge()
        return fastest

    def still(self, _share: float = 0.0) -> None:
        """Report the share of the whole search that was done last."""
        if self.progress is not None:
            self.progress(self.share)

    def justified(
        self, schedule: Schedule, total: int, progress: Callable[[float], object]
    ) -> Schedule:
        """Move transfers in time while that shortens the schedule and enough hops are left; not where sums take time."""
        cost = _JUSTIFY_PER_TRANSFER * schedule.transfers
        total -= self.run_hops
        while not schedule.topology.reduce_bandwidth_Bps and self.done + cost <= total:
            found = justify(schedule, progress=progress)
            self.done += cost
            if found.time_ps >= _GAIN * schedule.time_ps:
                return found
            schedule = found
        return schedule

    def executed(self, schedule: Schedule, to_beat_ps: int | None = None) -> int:
        """Return the key by which schedules are compared; one that cannot be executed loses to one that was."""
        if not self.runs:
            return schedule.time_ps
        meter = Meter(report=self.still)
        try:
            found = execution(schedule, target=self.target, to_beat_ps=to_beat_ps, progress=meter)
        except LimitError:
            found = None
        if meter.used:
            self.run_hops = meter.used // LIMITS.hop
            self.done += self.run_hops
        if found is not None:
            return found.time_ps(self.target)
        if schedule is not self.schedule:
            return _NEVER
        self.runs, self.run_hops = False, 0
        return schedule.time_ps


def _over_single_links(schedule: Schedule) -> bool:
    """Return whether no route passes a switch; then links can serve in the order of urgency, which gains most at the beginning."""
    return bool((np.diff(schedule.routes.link_begin) == 1).all())


def _directions(schedule: Schedule) -> list[bool]:
    """Return the directions of time in which transfers can be spread; none if that would take too long."""
    hops = schedule.topology.npus**2 if schedule.topology.switches else schedule.topology.links
    if schedule.transfers > _MOST_TRANSFERS or hops > _MOST_HOPS:
        return []
    kinds = [kind_of(part) for part in schedule.collective.parts]
    if only_collects(schedule.collective):
        directions = [True]
    elif any(kind.two_phases for kind in kinds):
        directions = [False, True]
    else:
        directions = [False]
    summing = any(part.sums for part in schedule.collective.parts)
    return [] if summing and schedule.topology.reduce_bandwidth_Bps else directions
