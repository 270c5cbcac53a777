"""Judge candidates: which schedules may be returned, and which executes fastest."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from tacos.errors import LimitError, TacosError, VerificationError, WrongScheduleWarning
from tacos.execution import execution, shares_links
from tacos.synth import ENGINES
from tacos.targets import target_of
from tacos.verify import verify as verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Schedule
    from tacos.search.question import Question
    from tacos.verify import Report

__all__ = ["Answer", "Judge", "failure", "inconsistent", "noted", "violation"]

_UNKNOWN_LOSS = 2.0
"""Ratio of executed to schedule time, assumed for schedules that are too large to be run (the largest measured)."""
_TOO_LARGE = 2**62
"""The executed time of a schedule that the target refuses, in picoseconds."""


class Answer(NamedTuple):
    """A schedule and the time by which it is ranked: its executed time for the target."""

    schedule: Schedule
    time_ps: int
    known: bool
    """Whether this is the executed time, or an estimate for a schedule too large to be run; otherwise the answer has lost."""
    executed: bool = True
    """Whether this is the executed time."""
    inner: Schedule | None = None
    """The schedule of the variant, of which the answer was made."""

    @property
    def refused(self) -> bool:
        """Whether the target does not take the schedule."""
        return self.time_ps == _TOO_LARGE


def noted(answer: Answer, facts: dict[str, Any]) -> Answer:
    """Return the answer with facts in its schedule's provenance."""
    schedule = answer.schedule
    return answer._replace(schedule=schedule.with_provenance(schedule.provenance | facts))


class Judge:
    """Times schedules by execution, and accepts only correct ones.

    Attributes:
        target: What will execute the schedule.
        adds: Whether executions only add to a schedule's own time. Where messages share links, another order may be faster.
        verifies: Whether answers go through the verifier.
        consistent: Whether all NPUs must add up each chunk in the same order.
        rejected: Faults of schedules and engines so far, one sentence each.
    """

    def __init__(
        self,
        question: Question,
        *,
        target: str | None = None,
        verifies: bool = True,
        consistent: bool = False,
    ) -> None:
        self.question, self.target = question, target
        self.adds = "order" in target_of(target).rules
        question.bounded = self.adds or question.topology.link_model == "pipelined"
        self.verifies, self.consistent = verifies, consistent
        self.rejected: list[str] = []
        self._refusal = ""  # why the target takes no schedule

    def judged(
        self,
        schedule: Schedule,
        to_beat_ps: float = math.inf,
        progress: Callable[[float], object] | None = None,
        worth_ps: float = math.inf,
    ) -> Answer:
        """Return the schedule with its executed time; a schedule that is too large to be run gets a pessimistic estimate.

        A schedule whose own time is not below the time to beat is not run if execution only adds to it; it has lost, as
        has one whose executed time turns out not to be below. From `worth_ps` on, a schedule is timed only if no messages share
        links, which takes no run.
        """
        if self.target == "schedule":
            return Answer(schedule, schedule.time_ps, known=True)
        hopeless = schedule.time_ps >= to_beat_ps
        if self.adds and (hopeless or (schedule.time_ps >= worth_ps and shares_links(schedule))):
            return Answer(schedule, schedule.time_ps, known=False)
        try:
            found = execution(
                schedule,
                target=self.target,
                to_beat_ps=None if to_beat_ps == math.inf else int(to_beat_ps),
                progress=progress,
            )
        except (LimitError, ValueError) as error:  # such as chunks without bytes
            if self.question.watch.stopped or not (
                isinstance(error, LimitError) or target_of(self.target).format
            ):
                raise
            self._refusal = self._refusal or str(error)
            return Answer(schedule, _TOO_LARGE, known=True, executed=False)
        if found is None:
            guess = self.guessed(schedule)
            return guess._replace(known=guess.time_ps < to_beat_ps)
        time_ps = found.time_ps(self.target)
        return Answer(schedule, time_ps, known=time_ps < to_beat_ps)

    @staticmethod
    def guessed(schedule: Schedule) -> Answer:
        """Return the schedule with a pessimistic estimate of its executed time."""
        return Answer(schedule, int(_UNKNOWN_LOSS * schedule.time_ps), known=True, executed=False)

    def first_right(self, candidates: list[Answer]) -> Answer:
        """Return the first candidate that the verifier accepts, and report each one that it rejects.

        Candidates that add up chunks in different orders on different NPUs are skipped if `consistent`. An answer is verified or
        it is not returned.

        Raises:
            TacosError: The target takes none of them, or all may leave NPUs with different bits.
            TimeIsUp: Verifying would take until long after the time limit.
            VerificationError: All of them are wrong.
        """
        if not self.verifies:
            return candidates[0]
        first_error = difference = ""
        if all(answer.refused for answer in candidates):
            raise TacosError(f"no schedule fits the target {self.target}: {self._refusal}")
        watch = self.question.watch
        for answer in candidates:
            schedule = answer.schedule
            report = verify_schedule(
                schedule, device=self.question.checks_on, progress=lambda _: watch.verifying()
            )
            if report.ok and report.consistent:
                return answer
            if report.ok and not self.consistent:
                marked = noted(answer, {"consistent": False})
                return marked._replace(schedule=marked.schedule.with_facts(consistent=False))
            if report.ok:
                difference = difference or report.difference
                continue
            wrong = violation(schedule, report, self.question.seed)
            first_error = first_error or wrong
            self.reject(wrong)
        if not first_error:
            raise TacosError(inconsistent(candidates[0].schedule, difference))
        raise VerificationError(first_error)

    def reject(self, wrong: str) -> None:
        """Report a bug of an engine, now and in the provenance."""
        self.rejected.append(wrong)
        warnings.warn(wrong, WrongScheduleWarning, stacklevel=5)

    def check_sketch(self, schedule: Schedule) -> None:
        """Refuse a schedule that violates the sketch.

        Raises:
            TacosError: The schedule violates the sketch.
        """
        sketch = self.question.sketch
        if sketch is not None and (wrong := sketch.violation(schedule)):
            used = schedule.engine
            keeping = [engine.name for engine in ENGINES.values() if engine.keeps_sketches]
            hint = f"; {' or '.join(keeping)} does" if keeping and used not in keeping else ""
            raise TacosError(f"the engine {used} does not keep to the sketch: {wrong}{hint}")


def violation(schedule: Schedule, report: Report, seed: int) -> str:
    """Report why a schedule is wrong, with what is needed to reproduce it."""
    goal = schedule.collective
    more = f" (and {report.found - 1} more)" if report.found > 1 else ""
    return (
        f"the engine {schedule.engine} returned a wrong schedule of {goal!r} in "
        f"{goal.parts[0].chunks} chunks on {schedule.topology!r}, seed {seed}: "
        f"{report.violations[0].message}{more}; this is a bug in tacos, please report it with the topology"
    )


def failure(engine: str, question: Question, error: Exception) -> str:
    """Report the error of an engine that applies, with what is needed to reproduce it."""
    collective = question.collective
    chunks = collective.parts[0].chunks or "any number of"
    return (
        f"the engine {engine} failed on {collective!r} in {chunks} chunks on {question.topology!r}, "
        f"seed {question.seed}: {error}; this is a bug in tacos, please report it with the topology"
    )


def inconsistent(schedule: Schedule, difference: str) -> str:
    """Return why ``"auto"`` does not return a correct schedule."""
    return (
        f"the schedules of engine {schedule.engine} may leave NPUs with different bits of a sum: "
        f"{difference}; pass consistent=False to accept them"
    )
