"""One engine's best schedule: random starts, and the search for the number of chunks if it is open."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from tacos.collective import kind_of
from tacos.execution import MOST_RUN, shares_links
from tacos.search.budget import SEARCH_TRANSFERS
from tacos.search.judging import Answer, noted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tacos._core import Collective, Schedule
    from tacos.search.budget import Budget
    from tacos.search.judging import Judge
    from tacos.search.question import Question
    from tacos.synth.engine import Engine

__all__ = ["ChunkSearch", "EngineSearch"]

_HELPS = 1.005
"""A chunk count helps if it shortens the time by at least this factor."""
_MANY_PER_LINK, _FEWER = 256, 1.01
"""Transfers per link above which fewer chunks are preferred, and the factor on the time that is accepted for them."""
_MOST_PER_LINK = 1200
"""Largest number of transfers per link for which schedules are made."""
_LARGE = 20
"""Ratio of the bound's bandwidth part to its latency part above which bandwidth dominates."""
_MORE_GAINS = {True: 1.5, False: 3.0}
"""Largest gain that more chunks are assumed to bring, as a multiple of what the last gain predicts for a pipeline: for known
algorithms, and for synthesizers, which also use links better with more chunks."""

_STEPS, _STEP = 4, 0.75
"""Synthesizers improve in steps: with fewer chunk counts, they are assumed to reach this factor of their best time."""
_SURE = 0.5
"""Share of the least loss by execution so far that schedules of more chunks are assumed to lose as well."""
_OVER = 1.25
"""Multiple of the whole work that the execution of one more schedule may reach (chosen)."""
_MOST_GAIN = 6.0
"""Largest speed-up from more chunks than the first count; rooted collectives gain more."""


class ChunkSearch:
    """Runs of engines for one question.

    Attributes:
        budget: Limits the runs after each engine's first.
        most_run: Largest number of transfers of a schedule that can be executed.
    """

    def __init__(
        self,
        question: Question,
        judge: Judge,
        budget: Budget | None = None,
        most_run: int = MOST_RUN,
    ) -> None:
        self.question, self.judge, self.budget = question, judge, budget
        self.most_run = most_run
        self._memory: dict[str, dict[str, Any]] = {}

    def answers(self, engine: Engine, options: dict[str, Any]) -> list[Answer]:
        """Return the engine's answers, best first; if the number of chunks is open, the fewest that are good enough."""
        search = EngineSearch(self, engine, options)
        search.go_on()
        return search.answers()

    def judged(self, schedule: Schedule, to_beat: float = math.inf) -> Answer:
        """Judge a schedule, and count the work if it was run."""
        answer = self.judge.judged(schedule, to_beat)
        if self.budget is not None:
            self.budget.used += self.budget.executed(answer)
        return answer

    def counted(
        self, engine: Engine, cut: Collective, options: dict[str, Any], again: bool
    ) -> Schedule:
        """Run an engine once, and count its work."""
        schedule = self.once(engine, cut, options)
        if self.budget is not None:
            self.budget.used += self.budget.run(engine, cut, again)
        return schedule

    def once(self, engine: Engine, collective: Collective, options: dict[str, Any]) -> Schedule:
        """Run an engine on a collective whose chunks are chosen; return the best of several random starts."""
        question, watch = self.question, self.question.watch
        values: dict[str, Any] = {
            "progress": watch.report,
            "seed": question.seed,
            "device": question.device,
            "within": question.sketch,
            "memory": self.memory(engine),
        } | self.patience()
        if self.judge.target != "schedule":
            values["most_transfers"] = self.most_run  # more could not be judged
        if not engine.random_starts:
            return engine(question.topology, collective, **(engine.supplied(values) | options))
        trials = options.get("trials", question.effort.trials)
        if type(trials) is not int or trials < 1:
            raise ValueError(f"trials must be a positive number; got {trials!r}")
        others = {name: value for name, value in options.items() if name != "trials"}

        def trial(seed: int) -> Schedule:
            given = engine.supplied(values | {"seed": seed}) | others
            return engine(question.topology, collective, **given)

        begin, end = watch.done, watch.next

        def runs() -> Iterator[Callable[[], Schedule]]:
            for k in range(trials):
                watch.done, watch.next = (begin + (end - begin) * (k + i) / trials for i in (0, 1))
                yield partial(trial, question.seed + k)

        best = min(watch.results(runs()), key=lambda schedule: schedule.time_ps)
        watch.done, watch.next = begin, end
        return best.with_provenance(best.provenance | {"trials": trials})

    def memory(self, engine: Engine) -> dict[str, Any]:
        """Return what the engine keeps between its runs."""
        return self._memory.setdefault(engine.name, {})

    def patience(self) -> dict[str, float]:
        """Return the time limit of one run as an option: most of the remaining time, or half if more runs may follow."""
        left_s = self.question.watch.left_s()
        if left_s is None:
            return {}
        share = 0.95 if self.question.collective.resolved else 0.5
        return {"time_limit": max(share * left_s, 0.01)}


class EngineSearch:
    """The answers of one engine for increasing numbers of chunks, if that number is open.

    More chunks pipeline better until latencies outweigh it, so the search ends at the bound, or after some counts
    that hardly helped (the engine's patience). Costs outside the model (the work per transfer) favour few chunks. The
    search can be paused, and continued when other engines have found a time to beat.

    Attributes:
        engine: The engine.
        results: An answer for each count so far.
        ended: Whether more chunks are not worth trying.
    """

    def __init__(self, runs: ChunkSearch, engine: Engine, options: dict[str, Any]) -> None:
        self.engine, self.results, self.ended = engine, list[Answer](), False
        self._runs, self._question, self._judge = runs, runs.question, runs.judge
        self._options, self._fastest, self._failures = options, 0, 0
        self._allowance = self._end = math.inf
        self._schedules = self._question.watch.results(self._counts())

    def go_on(self, most: int | None = None, share: float = 1.0) -> None:
        """Try at most `most` more chunk counts, within a share of the remaining work."""
        watch, budget = self._question.watch, self._runs.budget
        if budget is not None:
            self._allowance = budget.allowance(self._judge.to_beat, share)
        begin, self._end = watch.done, watch.next
        tried = 0
        while not self.ended and tried != most:
            schedule = next(self._schedules, None)
            if schedule is None:
                self.ended = True
                break
            self._take(schedule)
            tried += 1
        watch.done, watch.next = begin, self._end

    def answers(self) -> list[Answer]:
        """Return the answers so far, the best first."""
        if self._question.collective.resolved:
            return self.results
        best = self._fewest_chunks()
        tried = [answer.schedule.collective.parts[0].chunks for answer in self.results]
        others = (one for one in self.results if one is not best)
        return [
            noted(answer, {"chunk_counts_tried": tried})._replace(counts=tuple(tried))
            for answer in (best, *sorted(others, key=lambda one: one.time_ps))
        ]

    def least_ps(self) -> float:
        """Return the least time so far."""
        return self.results[self._fastest].time_ps if self.results else math.inf

    def hoped_ps(self) -> float:
        """Return the time that more chunks may reach.

        The time that a pipeline loses while it fills is proportional to the size of a chunk, so the last gain
        predicts the gains that remain.
        """
        limit_ps = self.limit_ps()
        sure_loss = 1 + _SURE * (self.least_loss() - 1)
        return max(self._trusted_ps(limit_ps > 0), limit_ps) * sure_loss

    def limit_ps(self) -> float:
        """Return the time that many chunks approach; 0 if the engine does not know."""
        question, memory = self._question, self._runs.memory(self.engine)
        limit_s = self.engine.limit_s(question.topology, question.collective, memory)
        return limit_s * 1e12

    def promised_ps(self) -> float:
        """Return a time that tells how promising the engine is: its limit, or else the least time so far."""
        return self.limit_ps() * self.least_loss() or self.least_ps()

    def least_loss(self) -> float:
        """Return the least factor so far by which execution took longer than the schedule."""
        runs = (one for one in self.results if one.runs)
        return min((one.time_ps / one.schedule.time_ps for one in runs), default=1.0)

    def _trusted_ps(self, limited: bool) -> float:
        """Return the time that the results so far promise; `limited` if the engine's limit is known."""
        if limited and 0 < len(self.results) <= _STEPS:
            return 0.0
        if not self.engine.baseline and 0 < len(self.results) < _STEPS:
            return self.least_ps() * _STEP
        if len(self.results) < 2:
            rooted = any(kind_of(part).rooted for part in self._question.collective.parts)
            gain = math.inf if rooted or not self.results else _MOST_GAIN
            return self.least_ps() / gain
        before, last = (one.schedule for one in self.results[-2:])
        grows = last.collective.chunks / max(before.collective.chunks, 1)
        left_ps = max(before.time_ps - last.time_ps, 0) / max(grows - 1, 0.5)
        return last.time_ps - _MORE_GAINS[self.engine.baseline] * left_ps

    def _take(self, schedule: Schedule) -> None:
        """Judge the next schedule, and decide whether there should be more."""
        results, question = self.results, self._question
        results.append(self._runs.judged(schedule, self.least_ps()))
        helped = results[-1].time_ps * _HELPS < results[self._fastest].time_ps
        self._failures = 0 if helped or len(results) == 1 else self._failures + 1
        if results[-1].time_ps < results[self._fastest].time_ps:
            self._fastest = len(results) - 1
        self.ended = (
            question.collective.resolved
            or not results[-1].known  # schedules of more chunks cannot be run either
            or self._failures == self._patience()
            or self.hoped_ps() > self._judge.to_beat
            or self.least_ps() <= question.effort.enough * question.bound.time_ps
        )

    def _counts(self) -> Iterator[Callable[[], Schedule]]:
        """Yield a run for each chunk count to try."""
        question, watch, engine = self._question, self._question.watch, self.engine
        topology, collective, runs = question.topology, question.collective, self._runs
        if collective.resolved:
            yield partial(runs.counted, engine, collective, self._options, False)
            return
        applies = engine.applies(
            topology, collective
        )  # false if only its options make it applicable
        memory = runs.memory(engine)
        for count in engine.chunk_counts(topology, collective, question.effort.counts, memory):
            cut = collective.with_chunks(count)
            if applies and not engine.applies(topology, cut):
                return
            if self.results and not self._worth_running(cut):
                return
            watch.next = (watch.done + self._end) / 2  # the number of runs is not known
            yield partial(runs.counted, engine, cut, self._options, bool(self.results))
            watch.done = watch.next

    def _worth_running(self, cut: Collective) -> bool:
        """Return whether the budget and the limits on size allow a schedule with more chunks."""
        last, budget = self.results[-1].schedule, self._runs.budget
        grows = cut.chunks / max(last.collective.chunks, 1)
        links = max(self._question.topology.links, 1)
        if grows * last.transfers > _MOST_PER_LINK * links:
            return False
        if grows * last.stored_transfers > (self.engine.search_transfers or SEARCH_TRANSFERS):
            return False
        executes = self._judge.target != "schedule" and shares_links(last)
        if executes and grows * last.transfers > self._runs.most_run:
            return False  # it could not be judged
        if budget is None:
            return True
        after = budget.used + budget.run(self.engine, cut, True)
        executing = grows * budget.executed(self.results[-1]) if executes else 0.0
        return after <= self._allowance and after + executing <= _OVER * budget.total

    def _patience(self) -> int:
        """Return the number of chunk counts in a row that may fail to help."""
        if not self.engine.patience_if_large:
            return self.engine.patience
        bound = self._question.bound
        large = bound.bandwidth_s > _LARGE * bound.latency_s
        return self.engine.patience_if_large if large else self.engine.patience

    def _fewest_chunks(self) -> Answer:
        """Return the first answer, in the order of chunk counts, that is about as fast as the fastest."""
        enough, links = self._question.effort.enough, self._question.topology.links
        fastest = self.results[self._fastest]
        if fastest.schedule.transfers / max(links, 1) > _MANY_PER_LINK:
            enough = max(enough, _FEWER)
        limit = fastest.time_ps * enough
        return next(answer for answer in self.results if answer.time_ps <= limit)
