"""One engine on one variant of a question: the schedules that it finds for increasing numbers of chunks.

More chunks pipeline better until latencies outweigh it, so a task ends after some counts that hardly help (the engine's
patience), at the bound, or where the engine cannot gain any more. Costs outside the model favour few chunks. A task works
within an allowance, and goes on where it was when it gets a larger one. What it finds does not depend on other tasks: they
only tell it which schedules need not be executed, because they have lost already.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tacos._core import Meter
from tacos.errors import WorkIsUp
from tacos.execution import MOST_RUN
from tacos.search.effort import LIMITS
from tacos.search.judging import Answer, noted
from tacos.synth.sizes import least_transfers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacos._core import Collective, Schedule
    from tacos.search.judging import Judge
    from tacos.search.variants import Variant
    from tacos.synth.engine import Engine

__all__ = ["Task"]


class _Point(NamedTuple):
    """What is kept of every schedule that was found."""

    chunks: int
    work: int
    """Units of work to find this one and all before it, without executing them, which depends on other tasks."""
    time_ps: int
    """The schedule's own time."""
    load_ps: int
    """How long its busiest link is busy."""


class Task:
    """One engine on one variant.

    Attributes:
        engine, variant: What is run on what.
        trial: The number of the random start.
        answers: The executed answers so far.
        used: Units of work that led to these answers.
        needed: Units of work that the next schedule is known or expected to need.
        end: Why the task is over, in a few words; empty while it may go on.
        refusal: Why answers were refused last, such as for NPUs with different bits.
    """

    def __init__(
        self,
        judge: Judge,
        engine: Engine,
        variant: Variant,
        options: dict[str, Any] | None = None,
        trial: int = 0,
    ) -> None:
        self.judge, self.question = judge, judge.question
        self.engine, self.variant, self.trial = engine, variant, trial
        self.answers: list[Answer] = []
        self.used = 0
        self.end = self.refusal = ""
        self._options = options or {}
        self._memory: dict[str, Any] = {}
        self._counts = self._collectives()
        self._fresh: Answer | None = None  # not yet executed
        self._points: list[_Point] = []
        self._failures = self._finding = 0
        self._execution = 0.0  # units of work per transfer of the last execution
        self._next: Collective | None = None
        asked = variant.collective
        self.needed = self._least(asked if asked.resolved else asked.with_chunks(1))

    @property
    def found(self) -> bool:
        """Whether the engine has found a schedule that was executed, or that has lost."""
        return bool(self._points)

    def go_on(self, allowance: int, to_beat_ps: float = math.inf) -> bool:
        """Work until the allowance is used up or the task is over, and return whether there are new answers.

        Args:
            allowance: Units of work in all, from the beginning of the task.
            to_beat_ps: The time of another task's answer. A task that cannot get faster is over, and schedules that are
                hopelessly slower are not executed.
        """
        before = len(self.answers)
        if self.needed > allowance:
            return False
        if self._next is None and not self.end:
            self._advance()
        while not self.end and self.needed <= allowance:
            if max(self.floor_ps(), self._expected_ps()) >= to_beat_ps:
                self.end = "lost, cannot get faster than the best"
                break
            meter = Meter(limit=max(allowance - self.used, 0), report=self._report)
            finds = self._fresh is None
            try:
                if self._fresh is None:
                    self._find(meter)
                else:
                    self._execute(self._fresh, to_beat_ps, meter)
            except WorkIsUp:
                self.needed = self.used + meter.wanted
                break
            self.used += meter.used
            if finds:
                self._finding += meter.used
            elif not self.end:
                self._advance()
        return len(self.answers) > before

    def _report(self, share: float) -> None:
        """Report progress, which ends the work at the deadline, unless the engine ends itself and keeps its best answer."""
        watch = self.question.watch
        if self.engine.supplied({"time_limit": 0.0}) and watch.time_limit is not None:
            watch.repeat()
        else:
            watch.report(share)

    def _find(self, meter: Meter) -> None:
        """Find the next schedule."""
        assert self._next is not None
        inner = self._run(self._next, meter)
        schedule = self.variant.lift(inner, meter)
        self._fresh = Answer(schedule, schedule.time_ps, known=False, inner=inner)

    def _execute(self, fresh: Answer, to_beat_ps: float, meter: Meter) -> None:
        """Execute the schedule that was found, unless it is hopelessly slow."""
        limit_ps = min(LIMITS.hopeful * to_beat_ps, self.best_ps())
        expected = self._execution * fresh.schedule.transfers
        if expected > (meter.left or 0) and fresh.time_ps < min(limit_ps, to_beat_ps):
            meter.reserve(expected)  # ends the work before an execution that would not end
        begun = meter.used
        answer = self.judge.judged(fresh.schedule, limit_ps, meter, worth_ps=to_beat_ps)
        if answer.known:
            self.answers.append(answer._replace(inner=fresh.inner))
        if used := meter.used - begun:
            self._execution = used / fresh.schedule.transfers
        self._fresh = None
        schedule = fresh.schedule
        helped = schedule.time_ps * LIMITS.helps < self.least_ps()
        self._failures = 0 if helped else self._failures + 1
        chunks, load_ps = schedule.collective.parts[0].chunks, _load_ps(schedule)
        self._points.append(_Point(chunks, self._finding, schedule.time_ps, load_ps))
        if answer.refused:  # more chunks take more of what a target has too little of
            self.end = (
                f"ended, the target does not take {chunks} {'chunk' if chunks == 1 else 'chunks'}"
            )

    def _run(self, collective: Collective, meter: Meter) -> Schedule:
        """Run the engine once."""
        question = self.question
        values: dict[str, Any] = {
            "progress": meter,
            "seed": question.seed + self.trial,
            "device": question.device,
            "within": question.sketch,
            "memory": self._memory,
        }
        if (left_s := question.watch.left_s()) is not None:
            values["time_limit"] = max(LIMITS.clock * left_s, 0.01)
        if self.judge.target != "schedule":
            values["most_transfers"] = MOST_RUN
        given = self.engine.supplied(values) | self._options
        return self.engine(self.variant.topology, collective, **given)

    def _advance(self) -> None:
        """Take the next number of chunks, if more may help, and expect that work grows linearly with it."""
        self._next = next(self._counts, None)
        best_ps = self.best_ps()
        if (
            self._next is None
            or self._failures >= self.engine.patience
            or self.question.met(best_ps)
            or self.floor_ps() >= best_ps
        ):
            self.end = "finished"
        elif len(self._points) > 1:
            # No chunks take no work; what an engine prepares once then counts against the slope, so that little is expected.
            before, last, now = [_Point(0, 0, 0, 0), *self._points][-3:]
            work, slope = now.work - last.work, now.work - 2 * last.work + before.work
            more = self._next.parts[0].chunks - now.chunks
            work += max(slope * more // max(now.chunks - last.chunks, 1), -work)
            self.needed = self.used + work
        if self._next is not None:
            self.needed = max(self.needed, self.used + self._least(self._next))

    def _least(self, collective: Collective) -> int:
        """Return the work of listing a schedule's transfers; 0 if the engine may store less."""
        if not self.engine.lists:
            return 0
        return int(Meter.TRANSFER * least_transfers(self.variant.topology, collective))

    def _collectives(self) -> Iterator[Collective]:
        """Yield the collective in each number of chunks to try."""
        topology, collective = self.variant.topology, self.variant.collective
        if collective.resolved:
            yield collective
            return
        # Options may make an engine applicable that does not apply by itself.
        applies = self.engine.applies(topology, collective)
        for count in self.engine.chunk_counts(topology, collective, LIMITS.counts, self._memory):
            cut = collective.with_chunks(count)
            if applies and not self.engine.applies(topology, cut):
                return
            yield cut

    def floor_ps(self) -> float:
        """Return a time below which more chunks cannot get; 0 if none is known, as where executions may be faster than schedules."""
        if not self.judge.adds:
            return 0.0
        topology, collective = self.variant.topology, self.variant.collective
        limit_s = 0.0
        if not collective.resolved:
            limit_s = self.engine.limit_s(topology, collective, self._memory)
        floor_ps = self.variant.times * limit_s * 1e12
        if self.engine.baseline and len(self._points) > 1:
            last, now = self._points[-2:]
            # The chunks of a known algorithm take the same routes, unless more of them relieve the busiest link, which rounding does not.
            if now.load_ps >= (1 - LIMITS.met) * last.load_ps:
                floor_ps = max(floor_ps, float(now.load_ps))
            # Its gains halve from count to count, so all that follow are together at most twice the last one.
            gain = last.time_ps - now.time_ps
            if len(self._points) > 2 and gain <= self._points[-3].time_ps - last.time_ps:
                floor_ps = max(floor_ps, now.time_ps - 2 * max(gain, 0))
        return floor_ps

    def _expected_ps(self) -> float:
        """Return a time that schedules in more chunks will not get below, if each gains no more than the last few gained."""
        patience = self.engine.patience
        if not self.judge.adds or len(self._points) <= patience:
            return 0.0
        last = self._points[-patience - 1 :]
        most_ps = max(0, *(a.time_ps - b.time_ps for a, b in pairwise(last)))
        left = sum(count > last[-1].chunks for count in LIMITS.counts)
        return float(self.least_ps() - left * most_ps)

    def refuse(self, why: str) -> None:
        """Forget the answers so far; those in more chunks may do."""
        self.answers.clear()
        self.refusal = why

    def unexecuted(self) -> Answer | None:
        """Return a schedule that was found but not executed, with an estimate of its time."""
        if self._fresh is None:
            return None
        return self.judge.guessed(self._fresh.schedule)._replace(inner=self._fresh.inner)

    def least_ps(self) -> float:
        """Return the least time of the schedules themselves, which executions only lengthen."""
        return min((point.time_ps for point in self._points), default=math.inf)

    def best_ps(self) -> float:
        """Return the least executed time so far."""
        return min((one.time_ps for one in self.answers), default=math.inf)

    def candidates(self) -> list[Answer]:
        """Return the answers so far, the best first: the one with the fewest chunks of those about as fast as the fastest."""
        if len(self._points) < 2 or not self.answers:
            return list(self.answers)
        enough_ps = LIMITS.enough * self.best_ps()
        if self.question.met(self.best_ps()):
            enough_ps = max(self.best_ps(), self.question.bound.time_ps / (1 - LIMITS.met))
        best = min(
            (one for one in self.answers if one.time_ps <= enough_ps),
            key=lambda one: one.schedule.collective.parts[0].chunks,
        )
        tried = [point.chunks for point in self._points]
        rest = sorted((one for one in self.answers if one is not best), key=lambda one: one.time_ps)
        return [noted(one, {"chunk_counts_tried": tried}) for one in (best, *rest)]


def _load_ps(schedule: Schedule) -> int:
    """Return how long the busiest link is busy."""
    if not schedule.topology.links:
        return 0
    seconds = schedule.link_bytes() / schedule.topology.link_bandwidth_Bps
    return int(seconds.max() * 1e12)
