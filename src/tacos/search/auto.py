"""The engine ``"auto"``: the best answer of all engines that apply, within a budget of work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos.errors import InfeasibleError, TacosError, VerificationError
from tacos.search.budget import NORMAL_WORK, SEARCH_TRANSFERS, WORTH_ALL, Budget, exact_limits
from tacos.search.judging import failure, noted
from tacos.search.refine import refine as refine_schedule
from tacos.search.watch import TimeIsUp
from tacos.synth import ENGINES, applicable

if TYPE_CHECKING:
    from tacos._core import Collective, Schedule, Topology
    from tacos.search.chunk_search import ChunkSearch
    from tacos.search.judging import Answer
    from tacos.synth.engine import Engine

__all__ = ["Auto"]

_REFINED, _HOPEFUL = 2, 1.1
"""Answers that are refined at most, none slower than this times the best."""
_REFINING, _PER_TRANSFER = 0.2, 300.0
"""Share of the work for refining one answer, and microseconds per transfer at most."""
_HOPS = 10.0
"""Hops that refinement looks at in a microsecond."""
_LONGEST_S = 40 * 3600
"""Seconds that the core can count for one transfer (``cpp/model/time.hpp``)."""


class Auto:
    """All engines on one question, cheap ones first, while the work is worth it."""

    def __init__(self, runs: ChunkSearch) -> None:
        self.runs, self.judge, self.question = runs, runs.judge, runs.question
        self.watch, self.budget = self.question.watch, Budget(self.question)
        self.left_out: list[str] = []

    def best(self, *, refines: bool = True) -> Schedule:
        """Return the best schedule of all engines, refined with the work that is left."""
        results = self.answers()
        results = self.refined(results) if refines else results
        times = {one.schedule.provenance["engine"]: one.time_ps * 1e-12 for one in results}
        return noted(results[0], {"best_of": times, "not_tried": self.left_out}).schedule

    def answers(self) -> list[Answer]:
        """Return the answers of the engines that are worth their work, the fastest first.

        A schedule is verified before it becomes the best: a wrong one could seem too good for the others to be tried.
        """
        topology, collective = self.question.topology, self.question.collective
        names = applicable(topology, collective)
        expected = {name: self.budget.expected(ENGINES[name]) for name in names}
        results: list[Answer] = []
        best: Answer | None = None
        errors: list[Exception] = []

        def late(name: str) -> bool:
            # Synthesizers come nearest to the bound, so they are first; not where one would use up all the work.
            return ENGINES[name].baseline or expected[name] > self.budget.total

        for i, name in enumerate(sorted(names, key=lambda name: (late(name), expected[name]))):
            self.watch.done, self.watch.next = i / len(names), (i + 1) / len(names)
            worth = self.budget.worth(None if best is None else best.time_ps)
            if self.watch.cut_short or self.budget.used + expected[name] > worth:
                self.left_out.append(name)
                continue
            try:
                answer = self._answer(ENGINES[name], best)
            except TimeIsUp:
                self.watch.cut_short = True
                if best is None:
                    raise
                self.left_out.append(name)
                continue
            except (TacosError, MemoryError) as error:
                errors.append(error)
                continue
            except (ValueError, OverflowError) as error:
                if self.watch.stopped:
                    raise
                if _may_take_too_long(topology, collective):
                    errors.append(error)
                    continue
                # The engine applies and has no options: the error is its own.
                failed = failure(name, self.question, error)
                self.judge.reject(failed)
                errors.append(VerificationError(failed))
                continue
            self.budget.used += self.budget.spent(answer.schedule)
            results.append(answer)
            if best is None or answer.time_ps < best.time_ps:
                best = answer
                self.judge.to_beat = best.time_ps
        if best is None:
            return self._within_sketch(errors)
        if self.budget.used < self.budget.worth(best.time_ps):
            results += self._exact(best)
        return sorted(results, key=lambda answer: answer.time_ps)

    def refined(self, results: list[Answer]) -> list[Answer]:
        """Return the results, the fastest first, of which the fastest are refined with the work that is left."""
        better = list(results)
        for i, answer in enumerate(results[:_REFINED]):
            left = self.budget.worth(better[0].time_ps) - self.budget.used
            hopeful = answer.time_ps <= _HOPEFUL * better[0].time_ps
            if self.watch.cut_short or left <= 0 or not hopeful:
                break
            transfers = answer.schedule.transfers
            if transfers > SEARCH_TRANSFERS:
                continue
            work = min(left, self.budget.total * _REFINING, _PER_TRANSFER * transfers)
            try:
                found = self.judge.judged(
                    refine_schedule(
                        answer.schedule,
                        work=int(work * _HOPS),
                        seed=self.question.seed,
                        progress=self.watch.report,
                    )
                )
                # The first has passed the verifier before, and refinement keeps what it had.
                if i > 0 and found.time_ps < better[0].time_ps:
                    found = self.judge.first_right([found])
            except TimeIsUp:
                self.watch.cut_short = True
                break
            except TacosError:
                continue
            # A shorter schedule may take longer to execute.
            better[i] = min(answer, found, key=lambda answer: answer.time_ps)
            self.budget.used += work
        return sorted(better, key=lambda answer: answer.time_ps)

    def _answer(self, engine: Engine, best: Answer | None) -> Answer:
        """Return the engine's best answer, verified if it is better than the best so far."""
        self.watch.report(0.0)
        found = self.runs.answers(engine, {})
        answer = found[0]
        if best is None or answer.time_ps < best.time_ps:
            answer = self.judge.first_right(found)
        self.judge.check_sketch(answer.schedule)
        return answer

    def _exact(self, best: Answer) -> list[Answer]:
        """Return optimal schedules for the best's chunks, where that is a small problem with something to gain."""
        topology, collective = self.question.topology, best.schedule.collective
        if self.question.gap(best.time_ps) < WORTH_ALL or self.budget.total < NORMAL_WORK:
            return []
        results: list[Answer] = []
        for engine in ENGINES.values():
            if engine.exact is None or not engine.exact.fits(topology, collective):
                continue
            if self.watch.cut_short or engine.obstacle(topology, collective):
                continue
            try:
                limits = exact_limits(engine.name, self.question.effort.given)
                found = self.judge.judged(self.runs.once(engine, collective, limits))
                found = self.judge.first_right([found])
                self.judge.check_sketch(found.schedule)
            except TimeIsUp:
                self.watch.cut_short = True
            except TacosError:
                continue
            else:
                results.append(found)
        return results

    def _within_sketch(self, errors: list[Exception]) -> list[Answer]:
        """Return the answer of an engine that keeps to sketches, where no other engine's schedule does.

        Raises:
            InfeasibleError: No engine applies, or an NPU cannot be reached.
            TacosError: What the first engine failed with, if there is no sketch.
        """
        topology, collective = self.question.topology, self.question.collective
        unreachable = any(isinstance(error, InfeasibleError) for error in errors)
        if self.question.sketch is not None and not unreachable:
            for engine in ENGINES.values():
                if engine.keeps_sketches and not engine.obstacle(topology, collective):
                    return [self.judge.first_right(self.runs.answers(engine, {}))]
        if errors:
            raise errors[0]
        raise InfeasibleError(f"no engine applies to {collective!r} on {topology!r}")


def _may_take_too_long(topology: Topology, collective: Collective) -> bool:
    """Whether some schedule might exceed the longest times that the core can count, which is not a bug of an engine."""
    if not topology.links:
        return False
    sizes = collective.chunk_bytes() if collective.resolved else [p.size for p in collective.parts]
    sent_s = topology.npus * sum(map(int, sizes)) / int(topology.link_bandwidth_Bps.min())
    return sent_s + topology.nodes * int(topology.link_latency_ps.max()) * 1e-12 > _LONGEST_S
