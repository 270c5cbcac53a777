"""Schedules made shorter by local search.

Engines build a schedule once, from the start to the end. :func:`refine` takes one that exists and tries to do better,
a few chunks at a time: it takes out some of those that arrive last, and puts each back over the hops that arrive
first, into the gaps that the others leave (``cpp/synth/refine.hpp`` has the method). Sums are searched backwards in
time, where collecting is spreading.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tacos._core import Schedule
from tacos._core import refine as _refine
from tacos.bound import bound
from tacos.collective import kind_of
from tacos.errors import InfeasibleError, check_type
from tacos.synth.phases import only_collects
from tacos.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["refine"]

_EFFORTS = {"fast": 0.1, "normal": 1.0, "high": 8.0}
_WORK = 100_000_000
"""Hops looked at per unit of effort: about 10 s."""
_SLICE = 1_000_000
_SLICE_PER_TRANSFER = 20
_MOST_TRANSFERS = 10_000_000
_MOST_HOPS = 500_000
_PATIENCE = 4
"""Slices of the work without any gain after which there is hope no more."""


def refine(
    schedule: Schedule,
    *,
    effort: str | int = "normal",
    time_limit: float | None = None,
    seed: int = 0,
    work: int | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Look for a shorter schedule of the same collective with the same chunks; never a longer one.

    The result depends on the arguments alone, but for a time limit that cuts the search short. It passes the
    verifier; its provenance has the time before (``"refined_from_s"``). A schedule that cannot be changed
    comes back as it is: one with multicast or reduce routes, with routes on which chunks wait, with sums
    that take time, or whose sums are made at several NPUs each; and one of more than ten million transfers, or
    on switches that join more than 700 NPUs, for which a search would be too slow to gain anything.

    Args:
        schedule: Whoever made it. An orbit is expanded.
        effort: ``"fast"`` (about 1 s), ``"normal"`` (10 s), ``"high"`` (80 s), or a number of times 10 s. The
            search ends sooner where the bound is met, or where it no longer gains.
        time_limit: Seconds after which the best so far is returned.
        seed: Which chunks are tried in which order.
        work: How many hops may be looked at, instead of an effort.
        progress: Called with the share done, now and then.

    Raises:
        ValueError: A wrong budget.

    >>> import tacos
    >>> box = tacos.topology.mi250(1)
    >>> first = tacos.synthesize(box, tacos.collective.all_gather(box, "16MB", chunks=4), engine="greedy")
    >>> better = refine(first, effort="fast")
    >>> better.time_s < 0.95 * first.time_s, tacos.verify(better).ok
    (True, True)
    """
    check_type("schedule", schedule, Schedule)
    units = _EFFORTS.get(effort) if isinstance(effort, str) else effort
    if units is None or type(units) is bool or not units > 0:
        names = ", ".join(_EFFORTS)
        raise ValueError(f"effort must be one of {names}, or a positive number; got {effort!r}")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit is {time_limit!r}, it must be positive")
    if type(seed) is not int or not 0 <= seed < 2**62:
        raise ValueError(f"seed must be 0 to 2^62 - 1; got {seed!r}")
    total = int(units * _WORK) if work is None else work
    end = None if time_limit is None else time.monotonic() + time_limit
    best = _searched(schedule, total, end, seed, progress)
    if best.time_ps >= schedule.time_ps:
        return schedule
    report = verify(best)
    if not report.ok or (not report.consistent and verify(schedule).consistent):
        return schedule
    facts = schedule.provenance | {"refined_from_s": schedule.time_s}
    return best.with_provenance(facts)


def _searched(
    schedule: Schedule,
    total: int,
    end: float | None,
    seed: int,
    progress: Callable[[float], object] | None,
) -> Schedule:
    """The search in slices, forwards and backwards in turn where there are sums."""
    goal = bound(schedule.topology, schedule.collective).time_ps
    step = max(_SLICE, _SLICE_PER_TRANSFER * schedule.transfers)
    ways = _ways(schedule)
    best, failures, done = schedule, 0, 0

    def report(share: float) -> None:
        if progress is not None:
            progress(min((done + share * step) / total, 1.0))

    while ways and done < total and failures < _PATIENCE * len(ways) and best.time_ps > goal:
        if end is not None and time.monotonic() > end:
            break
        backwards = ways[(done // step) % len(ways)]
        budget = min(step, total - done)
        try:
            start = best.reverse(report) if backwards else best
            found = _refine(
                start, seed=seed + done // step, work=budget, goal_ps=goal, progress=report
            )
            if backwards:
                found = found.reverse(report)
        except InfeasibleError:
            break
        failures = 0 if found.time_ps < best.time_ps else failures + 1
        if found.time_ps <= best.time_ps:
            best = found
        done += step
    return best


def _ways(schedule: Schedule) -> list[bool]:
    """The directions of time in which something can be spread; none where it would take too long."""
    hops = schedule.topology.npus**2 if schedule.topology.switches else schedule.topology.links
    if schedule.transfers > _MOST_TRANSFERS or hops > _MOST_HOPS:
        return []
    kinds = [kind_of(part) for part in schedule.collective.parts]
    if only_collects(schedule.collective):
        ways = [True]
    elif any(kind.two_phases for kind in kinds):
        ways = [False, True]
    else:
        ways = [False]
    summing = any(part.sums for part in schedule.collective.parts)
    return [] if summing and schedule.topology.reduce_bandwidth_Bps else ways
