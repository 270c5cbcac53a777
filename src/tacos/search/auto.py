"""The engine ``"auto"``: the best answer of all engines that apply, within a budget of work."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tacos.errors import InfeasibleError, TacosError, VerificationError
from tacos.search.budget import NORMAL_WORK, SEARCH_TRANSFERS, WORTH_ALL, Budget, exact_limits
from tacos.search.chunk_search import ChunkSearch
from tacos.search.judging import Judge, failure, noted
from tacos.search.refine import refine as refine_schedule
from tacos.search.watch import TimeIsUp, Watch
from tacos.synth import ENGINES, applicable
from tacos.synth.matched_ports import matched_ports

if TYPE_CHECKING:
    from tacos._core import Collective, Schedule, Topology
    from tacos.search.judging import Answer
    from tacos.synth.engine import Engine
    from tacos.synth.matched_ports import MatchedPorts

__all__ = ["Auto", "on_whole_network"]

_REFINED, _HOPEFUL = 2, 1.1
"""Answers that are refined at most, none slower than this times the best."""
_REFINING, _PER_TRANSFER = 0.2, 300.0
"""Share of the work for refining one answer, and microseconds per transfer at most."""
_HOPS = 10.0
"""Hops that refinement looks at in a microsecond."""
_LEAST_SHARE = 0.1
"""Share of the work that must be left for a second search with matched ports."""
_LONGEST_S = 40 * 3600
"""Seconds that the core can count for one transfer (``cpp/model/time.hpp``)."""


class Auto:
    """All engines on one question, cheap ones first, while the work is worth it."""

    def __init__(self, runs: ChunkSearch) -> None:
        self.runs, self.judge, self.question = runs, runs.judge, runs.question
        self.watch, self.budget = self.question.watch, Budget(self.question)
        self.left_out: list[str] = []

    def best(self, *, refines: bool, matches: bool) -> Schedule:
        """Return the best schedule of all engines.

        Args:
            refines: Whether to refine it with the work that is left.
            matches: Whether to look at matched ports, too.
        """
        matching = matched_ports(self.question.topology) if matches else None
        results = self.answers(0.5 if matching else 1.0)
        if matching:
            self.watch.done, self.watch.next = 0.5, 1.0
            results += self._with_matched_ports(matching, results[0])
            results.sort(key=lambda answer: answer.time_ps)
        results = self.refined(results) if refines else results
        times: dict[str, float] = {}
        for one in results:
            times.setdefault(one.schedule.engine, one.time_ps * 1e-12)
        return noted(results[0], {"best_of": times, "not_tried": self.left_out}).schedule

    def answers(self, share: float) -> list[Answer]:
        """Return the answers of the engines that are worth their work, the fastest first; this is a share of the progress.

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
            self.watch.done, self.watch.next = (share * (i + k) / len(names) for k in (0, 1))
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
            self.budget.used += self.budget.spent(answer)
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
                        hops=int(work * _HOPS),
                        seed=self.question.seed,
                        target=self.judge.target,
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
            better[i] = min(answer, found, key=lambda answer: answer.time_ps)
            self.budget.used += work
        return sorted(better, key=lambda answer: answer.time_ps)

    def _with_matched_ports(self, matching: MatchedPorts, best: Answer) -> list[Answer]:
        """Return the best answers with one peer for each port, if there is work left that they are worth."""
        left = self.budget.worth(best.time_ps) - self.budget.used
        if self.watch.cut_short or left < _LEAST_SHARE * self.budget.total:
            return []
        watch = Watch(None, self.watch.report)
        watch.end = self.watch.end
        question = replace(
            self.question,
            topology=matching.topology,
            watch=watch,
            known_bound=self.question.bound,
        )
        judge = Judge(
            question,
            target=self.judge.target,
            verifies=self.judge.verifies,
            consistent=self.judge.consistent,
        )
        judge.to_beat, judge.rejected = self.judge.to_beat, self.judge.rejected
        inner = Auto(ChunkSearch(question, judge))
        inner.budget.total = left
        answers: list[Answer] = []
        try:
            for one in inner.answers(1.0)[:_REFINED]:
                found = self.judge.judged(on_whole_network(matching, one.schedule))
                if found.time_ps < best.time_ps:
                    found = best = self.judge.first_right([found])
                answers.append(found)
        except TimeIsUp:
            self.watch.cut_short = True
        except (TacosError, MemoryError):
            pass  # matched ports only add candidates: `best` stands without them
        self.watch.cut_short |= watch.cut_short
        self.budget.used += inner.budget.used
        return answers

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


def on_whole_network(matching: MatchedPorts, schedule: Schedule) -> Schedule:
    """Return a schedule with matched ports as one of the whole network."""
    found = matching.returned(schedule)
    facts = found.provenance | {"ports": "matched"}
    return found.with_provenance(facts).with_facts(matched_ports=True)


def _may_take_too_long(topology: Topology, collective: Collective) -> bool:
    """Whether some schedule might exceed the longest times that the core can count, which is not a bug of an engine."""
    if not topology.links:
        return False
    sizes = collective.chunk_bytes() if collective.resolved else [p.size for p in collective.parts]
    sent_s = topology.npus * sum(map(int, sizes)) / int(topology.link_bandwidth_Bps.min())
    return sent_s + topology.nodes * int(topology.link_latency_ps.max()) * 1e-12 > _LONGEST_S
