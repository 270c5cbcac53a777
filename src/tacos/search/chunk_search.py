"""One engine's best schedule: its random starts, and the number of chunks where that is open."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from tacos.search.budget import SEARCH_TRANSFERS
from tacos.search.judging import noted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tacos._core import Collective, Schedule
    from tacos.search.judging import Answer, Judge
    from tacos.search.question import Question
    from tacos.synth.engine import Engine

__all__ = ["ChunkSearch"]

_HELPS = 1.005
"""A chunk count helps if it makes the time shorter by at least this factor."""
_MANY_PER_LINK, _FEWER = 1000, 1.015
"""Transfers per link that are more than executors take at once; to avoid them, this much longer is good enough."""
_LARGE = 20
"""Bandwidth decides, not latency, where the bound's parts differ by this factor."""


class ChunkSearch:
    """Runs of engines for one question."""

    def __init__(self, question: Question, judge: Judge) -> None:
        self.question, self.judge = question, judge
        self._memory: dict[str, dict[str, Any]] = {}

    def answers(self, engine: Engine, options: dict[str, Any]) -> list[Answer]:
        """Return the engine's answers, the best first; where the number of chunks is open, the fewest that are good enough.

        More chunks pipeline better until latencies outweigh it, so the search ends at the bound, or after some counts
        that hardly helped (the engine's patience). What the model does not count (the work per transfer) speaks for few.
        """
        question, watch, judge = self.question, self.question.watch, self.judge
        if question.collective.resolved:
            return [judge.judged(self.once(engine, question.collective, options))]
        begin, end = watch.done, watch.next
        results: list[Answer] = []
        patience = self._patience(engine)
        most = SEARCH_TRANSFERS * engine.size_factor(question.collective)
        fastest = failures = 0
        for schedule in watch.results(self._runs(engine, options, end)):
            to_beat = results[fastest].time_ps if results else math.inf
            results.append(judge.judged(schedule, to_beat))
            helped = results[-1].time_ps * _HELPS < results[fastest].time_ps
            failures = 0 if helped or len(results) == 1 else failures + 1
            if results[-1].time_ps < results[fastest].time_ps:
                fastest = len(results) - 1
            if failures == patience or 2 * schedule.stored_transfers > most:
                break
            if not results[-1].known:  # nor will those of more chunks be
                break
            if results[fastest].time_ps <= question.effort.enough * question.bound.time_ps:
                break
        watch.done, watch.next = begin, end
        best = self._fewest_chunks(results, results[fastest])
        tried = [answer.schedule.collective.parts[0].chunks for answer in results]
        others = sorted((one for one in results if one is not best), key=lambda one: one.time_ps)
        return [
            noted(answer, {"chunk_counts_tried": tried})._replace(counts=tuple(tried))
            for answer in (best, *others)
        ]

    def once(self, engine: Engine, collective: Collective, options: dict[str, Any]) -> Schedule:
        """Run an engine on a collective whose chunks are chosen; of several random starts, return the best."""
        question, watch = self.question, self.question.watch
        values: dict[str, Any] = {
            "progress": watch.report,
            "seed": question.seed,
            "device": question.device,
            "within": question.sketch,
            "memory": self._memory.setdefault(engine.name, {}),
        } | self.patience()
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

    def patience(self) -> dict[str, float]:
        """Return the time that one run gets, as an option: most of what is left, half where more may follow."""
        left_s = self.question.watch.left_s()
        if left_s is None:
            return {}
        share = 0.95 if self.question.collective.resolved else 0.5
        return {"time_limit": max(share * left_s, 0.01)}

    def _runs(
        self, engine: Engine, options: dict[str, Any], end: float
    ) -> Iterator[Callable[[], Schedule]]:
        """Yield a run for each chunk count to try."""
        question, watch = self.question, self.question.watch
        topology, collective = question.topology, question.collective
        applies = engine.applies(topology, collective)  # not if only by its options
        memory = self._memory.setdefault(engine.name, {})
        for count in engine.chunk_counts(topology, collective, question.effort.counts, memory):
            cut = collective.with_chunks(count)
            if applies and not engine.applies(topology, cut):
                return
            watch.next = (watch.done + end) / 2  # the number of runs is not known
            yield partial(self.once, engine, cut, options)
            watch.done = watch.next

    def _patience(self, engine: Engine) -> int:
        """Return the number of chunk counts in a row that may fail to help."""
        if not engine.patience_if_large:
            return engine.patience
        bound = self.question.bound
        large = bound.bandwidth_s > _LARGE * bound.latency_s
        return engine.patience_if_large if large else engine.patience

    def _fewest_chunks(self, results: list[Answer], fastest: Answer) -> Answer:
        """Return the first answer, in the order of chunk counts, that is about as fast as the fastest."""
        enough, links = self.question.effort.enough, self.question.topology.links
        if fastest.schedule.transfers / max(links, 1) > _MANY_PER_LINK:
            enough = max(enough, _FEWER)
        limit = fastest.time_ps * enough
        return next(answer for answer in results if answer.time_ps <= limit)
