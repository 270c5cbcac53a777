"""The engine ``"auto"``: the best answer of all engines that apply, within a budget of work."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tacos.errors import InfeasibleError, TacosError, VerificationError
from tacos.execution import shares_links
from tacos.search.budget import SEARCH_TRANSFERS, WORTH_ALL, Budget, exact_limits
from tacos.search.chunk_search import ChunkSearch, EngineSearch
from tacos.search.halves import all_gather_of, both_halves, turning
from tacos.search.judging import Judge, failure, noted
from tacos.search.refine import improved
from tacos.search.watch import TimeIsUp, Watch
from tacos.synth import ENGINES, applicable
from tacos.synth.matched_ports import matched_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos._core import Collective, Schedule, Topology
    from tacos.search.judging import Answer
    from tacos.search.question import Question
    from tacos.synth.engine import Engine
    from tacos.synth.matched_ports import MatchedPorts

__all__ = ["Auto", "on_whole_network"]

_REFINED, _HOPEFUL = 3, 1.15
"""Refine at most this many answers, none slower than this factor times the best; gains differ, up to a third."""
_REFINING, _REFINING_LATENT, _PER_TRANSFER = 0.3, 0.1, 300.0
"""Shares of the work that are reserved for refining, normally and if latency dominates, and its limit in microseconds per
transfer."""
_SLICE = 0.15
"""Share of the refining work in one slice, which goes to one answer."""
_HOPS = ((10_000, 8.0), (100_000, 5.0), (math.inf, 3.0))
"""Numbers of transfers, and how many hops refinement examines per microsecond in schedules of at most that many (measured)."""
_FEWEST_HOPS = 40
"""Fewest hops per transfer in a slice; fewer hardly gain anything."""
_MATCHED, _MATCHED_IF_LARGE, _TURNS = 0.35, 0.5, 0.15
"""Shares of the work for the search with matched ports: normally, if bandwidth dominates, and if NPUs share ports."""
_HALVES, _HALVES_FIRST = 0.25, 0.6
"""Shares of the work for the all-gather that becomes both halves of an all-reduce: normally, and if it comes first."""
_BESIDE = 0.2
"""Least share of the work for other ways to all-reduce after the halves."""
_KEPT = 1.01
"""Ratio of executed to schedule time up to which the halves count as executed without loss."""
_HALVES_SUFFICE = 1.05
"""Ratio of their bound to that of an all-reduce up to which two halves are tried first."""
_OF_A_SEARCH = ("best_of", "not_tried")
"""Facts about a search, which are not facts about a schedule that is made of its answer."""
_EXECUTED = 0.9
"""Share of the work with switches, where schedules are executed, since lowering and joining them is not counted."""
_LATE = 0.75
"""An engine that needs more than this share of the work runs after the others."""
_SCOUTED = 3
"""Number of chunk counts that every engine tries before the more promising engines continue."""
_SCOUTING, _GOING_ON = 0.5, 0.8
"""Shares of the remaining work for one engine: for these first counts, and when it continues or is made for the problem."""
_SMALL = 0.1
"""Latency dominates if the bound's bandwidth part is less than this share of its latency part."""
_LATENT, _FEW_BYTES = 0.25, 0.7
"""Latency dominates the search if the bound's bandwidth part is less than the first share of the bound. Up to the second,
engines for few bytes are favoured if schedules are not executed: executed, theirs lose more than others."""
_LARGE = 20
"""Bandwidth dominates if the bound's bandwidth part is more than this many times its latency part."""
_LONGEST_S = 40 * 3600
"""Longest transfer in seconds that the core can represent (``cpp/model/time.hpp``)."""


class Auto:
    """Runs all engines on one problem, cheap ones first, while more work is worthwhile.

    Attributes:
        fastest: The best answer so far.
        left_out: The engines that were not run.
        reached: Engines whose schedules come near the bound and lose nothing when they are executed.
        reserve: Additional work that may be spent if there are such engines.
        proven: Engines that do so with matched ports; with any ports they could only be slower.
        halved: Whether the halves of an all-reduce were searched, which takes less work with some engines.
    """

    def __init__(self, runs: ChunkSearch) -> None:
        self.runs, self.judge, self.question = runs, runs.judge, runs.question
        self.watch, self.budget = self.question.watch, Budget(self.question)
        if self.judge.target != "schedule" and self.question.topology.switches:
            self.budget.total *= _EXECUTED
        runs.budget = self.budget
        self.left_out: list[str] = []
        self.fastest: Answer | None = None
        self.proven: set[str] = set()
        self.reached: set[str] = set()
        self.reserve = 0.0
        self.halved = False

    def best(self, *, refines: bool, matches: bool) -> Schedule:
        """Return the best schedule of all engines.

        Args:
            refines: Whether to refine it with the work that is left.
            matches: Whether to search with matched ports as well.
        """
        if (quick := self._near_enough()) is not None:
            only = {quick.schedule.engine: quick.time_ps * 1e-12}
            return noted(quick, {"best_of": only, "not_tried": self.left_out}).schedule
        half = self._half()
        first = half is not None and self._halves_come_first(half)
        known: list[Answer] = []
        if half is not None and first:
            known = self._in_halves(half, math.inf, refines=refines, matches=matches)
        # Executed, both halves may lose time that neither of them loses alone.
        self.halved = any(one.time_ps <= _KEPT * one.schedule.time_ps for one in known)
        whole = self.budget.total
        self._reserve(refines=refines)
        matching = matched_ports(self.question.topology) if matches else None
        if self.halved and any(one.schedule.matched_ports for one in known):
            matching = None  # the halves show what matched ports can reach
        if matching and not self._worth_matching(matching):
            matching = None
        # Messages that do not share ports lose nothing in execution, so such answers are hard to beat.
        known += self._with_matched_ports(matching) if matching else []
        self.watch.done = 0.5 if known else 0.0
        results = self.answers(sorted(known, key=lambda one: one.time_ps), self.watch.done)
        self.budget.total = whole
        if half is not None and not first and ENGINES[results[0].schedule.engine].halves:
            best = results[0].time_ps
            results += self._in_halves(half, best, refines=refines, matches=matches)
            results.sort(key=lambda answer: answer.time_ps)
        results = self.refined(results) if refines else results
        times: dict[str, float] = {}
        for one in results:
            times.setdefault(one.schedule.engine, one.time_ps * 1e-12)
        # An engine that was run with matched ports only may have been left out after that.
        not_tried = [name for name in self.left_out if name not in times]
        return noted(results[0], {"best_of": times, "not_tried": not_tried}).schedule

    def _halves_come_first(self, half: Question) -> bool:
        """Return whether to look for the halves of an all-reduce first.

        If bandwidth dominates, an all-reduce is hardly faster than its halves, which take less work to find. A time limit
        could end the search before the halves are joined, so they come last then.
        """
        return self.watch.end is None and self._large() and self._halves_suffice(half)

    def _reserve(self, *, refines: bool) -> None:
        """Reduce the work by what is reserved for refining, and leave some for other ways to all-reduce after the halves."""
        whole = self.budget.total
        if refines:
            self.budget.total *= 1 - (_REFINING_LATENT if self._latent() else _REFINING)
        if self.halved:
            self.budget.total = max(self.budget.total, self.budget.used + _BESIDE * whole)
        else:
            self.budget.used = 0.0  # halves that are of no use do not count

    def _near_enough(self) -> Answer | None:
        """Return the answer of an engine that suffices by itself if it is close enough to the bound; otherwise None."""
        question = self.question
        names = applicable(question.topology, question.collective)
        alone = [name for name in names if ENGINES[name].enough > 0]
        if not alone or question.effort.units > 1 or question.sketch is not None:
            return None
        name = alone[0]
        found: dict[str, Answer] = {}
        # The exact bound may take longer than the engine. A quick one suffices if the answer is close enough to it.
        quick = question.use_quick_bound()
        asked = self._go_on(EngineSearch(self.runs, ENGINES[name], {}), _SCOUTED, found, [])
        if asked and question.gap(found[name].time_ps) <= ENGINES[name].enough:
            self.left_out = [other for other in names if other != name]
            return found[name]
        if quick:
            question.known_bound = None
        self.fastest, self.judge.to_beat = None, math.inf
        return None

    def answers(self, known: Sequence[Answer] = (), done: float = 0.0) -> list[Answer]:
        """Run the engines that are worth their work; return their answers and the known ones, the fastest first.

        A schedule is verified before it becomes the best, since a wrong one could keep other engines from running.

        Args:
            known: Answers that have passed the verifier, the fastest first.
            done: The share of the progress that was made before.
        """
        names = applicable(self.question.topology, self.question.collective)
        expected = {name: self.budget.expected(ENGINES[name]) for name in names}
        self.fastest = known[0] if known else None
        found: dict[str, Answer] = {}
        errors: list[Exception] = []

        def late(name: str) -> bool:
            # Synthesizers come closest to the bound, so they run first, unless one would use up most of the work.
            return ENGINES[name].baseline or expected[name] > _LATE * self.budget.total

        def order(name: str) -> tuple[bool, bool, float]:
            return late(name), not self._favours(ENGINES[name]), expected[name]

        searches: list[EngineSearch] = []
        for i, name in enumerate(sorted(names, key=order)):
            self._begin(done, i, 2 * len(names))
            worth = self.budget.worth(self.judge.to_beat)
            if (
                self.watch.cut_short
                or name in self.proven
                or self.budget.used + expected[name] > worth
            ):
                self.left_out.append(name)
                continue
            search = EngineSearch(self.runs, ENGINES[name], {})
            if not self._go_on(search, _SCOUTED, found, errors):
                continue
            if not search.ended:
                searches.append(search)
            if self._proves(search):
                self.reached.add(name)
        if self.reached:
            self.budget.total += self.reserve  # a search with any ports can hardly gain more
        # The first chunk counts show which engines may become the fastest.
        searches.sort(key=lambda search: search.promised_ps())
        for i, search in enumerate(searches):
            self._begin(done, len(names) + i, 2 * len(names))
            done_before = self.halved and search.engine.halves
            if (
                not done_before
                and not self.watch.cut_short
                and search.hoped_ps() < self.judge.to_beat
            ):
                self._go_on(search, None, found, errors)
        if self.fastest is None:
            return self._within_sketch(errors)
        results = [*known, *found.values()]
        if self.budget.used < self.budget.worth(self.fastest.time_ps):
            results += self._exact(self.fastest)
        return sorted(results, key=lambda answer: answer.time_ps)

    def _proves(self, search: EngineSearch) -> bool:
        """Return whether bandwidth dominates, many chunks come near the bound, and execution takes no longer."""
        near = 0 < search.limit_ps() <= (1 + WORTH_ALL) * self.question.bound.time_ps
        return (
            self._large() and near and not any(shares_links(one.schedule) for one in search.results)
        )

    def _large(self) -> bool:
        """Return whether bandwidth dominates, not latency."""
        bound = self.question.bound
        return bound.bandwidth_s > _LARGE * bound.latency_s

    def _latent(self) -> bool:
        """Return whether latency dominates, not bandwidth."""
        return self.question.bound.bandwidth_s < _LATENT * self.question.bound.time_s

    def _favours(self, engine: Engine) -> bool:
        """Return whether an engine is made for so few bytes."""
        bound = self.question.bound
        share = _FEW_BYTES if self.judge.target == "schedule" else _LATENT
        return engine.few_bytes and bound.bandwidth_s < share * bound.time_s

    def _worth_matching(self, matching: MatchedPorts) -> bool:
        """Return whether matched ports may help: latency and, if NPUs share them, the ports are not the bottleneck."""
        bound = self.question.bound
        if self._latent():
            return False
        if not matching.shared:
            return bound.bandwidth_s > _SMALL * bound.latency_s
        inside = np.zeros(matching.whole.nodes, bool)
        inside[list(self.question.bound.cut)] = True
        port = matching.port[matching.port >= 0]
        ends = (matching.whole.link_src[port], matching.whole.link_dst[port])
        return self._large() and not (inside[ends[0]] != inside[ends[1]]).any()

    def _begin(self, done: float, part: int, parts: int) -> None:
        """Tell the watch which part of the progress is next."""
        self.watch.done, self.watch.next = (done + (1 - done) * (part + k) / parts for k in (0, 1))

    def _go_on(
        self,
        search: EngineSearch,
        most: int | None,
        found: dict[str, Answer],
        errors: list[Exception],
    ) -> bool:
        """Let an engine try more chunk counts, and keep its best answer, verified if it is the best of all.

        Returns:
            Whether the engine succeeded; if it failed, its error is added to `errors`.
        """
        name = search.engine.name
        try:
            self.watch.report(0.0)
            scouts = most and not self._favours(search.engine)
            search.go_on(most, _SCOUTING if scouts else _GOING_ON)
            answers = search.answers()
            answer = answers[0]
            if self.fastest is None or answer.time_ps < self.fastest.time_ps:
                answer = self.judge.first_right(answers)
            self.judge.check_sketch(answer.schedule)
        except TimeIsUp:
            self.watch.cut_short = True
            if self.fastest is None:
                raise
            if name not in found:
                self.left_out.append(name)
            return False
        except (TacosError, MemoryError) as error:
            errors.append(error)
            return False
        except (ValueError, OverflowError) as error:
            if self.watch.stopped:
                raise
            if _may_take_too_long(self.question.topology, self.question.collective):
                errors.append(error)
                return False
            # The engine applies and has no options, so the error is a bug in the engine.
            failed = failure(name, self.question, error)
            self.judge.reject(failed)
            errors.append(VerificationError(failed))
            return False
        found[name] = answer
        if self.fastest is None or answer.time_ps < self.fastest.time_ps:
            self.fastest = answer
            self.judge.to_beat = answer.time_ps
        return True

    def refined(self, results: list[Answer]) -> list[Answer]:
        """Refine the most promising results with the remaining work, and return all results, the fastest first.

        The gain depends on the shape of a schedule, and decreases with every slice. So the work is spent in
        slices, each on the answer that would become the fastest if it gained as much as in its last slice.
        """
        better, hoped = list(results), dict[int, float]()
        for i, one in enumerate(results[:_REFINED]):
            shared = self.judge.target != "schedule" and shares_links(one.schedule)
            # A schedule that shares links and was not worth executing before is not worth it now.
            if one.time_ps <= _HOPEFUL * results[0].time_ps and (i == 0 or one.runs or not shared):
                hoped[i] = float(i - len(results))  # all of them once, in this order
        best = results[0].time_ps
        whole = self.budget.worth(best) - self.budget.used
        while hoped and not self.watch.cut_short:
            i = min(hoped, key=lambda i: hoped[i])
            left = self.budget.worth(best) - self.budget.used
            least = _FEWEST_HOPS / _hops_per_us(better[i]) * better[i].schedule.transfers
            work = left if len(hoped) == 1 else min(left, max(_SLICE * whole, least))
            if work <= 0:
                break
            before = better[i].time_ps
            better[i], spent = self._improved(better[i], work, best)
            best = min(best, better[i].time_ps)
            hoped[i] = 2.0 * better[i].time_ps - before
            if spent or len(hoped) == 1:
                hoped.pop(i)
            hoped = {i: time_ps for i, time_ps in hoped.items() if time_ps < best}
        # A slice may have been too short to gain anything.
        i = min(range(len(better)), key=lambda i: better[i].time_ps)
        left = self.budget.worth(best) - self.budget.used
        if left > _SLICE * whole and i < _REFINED and not self.watch.cut_short:
            better[i], _ = self._improved(better[i], left, best)
        return sorted(better, key=lambda answer: answer.time_ps)

    def _improved(self, answer: Answer, work: float, to_beat: int) -> tuple[Answer, bool]:
        """Refine an answer with this work; return the better of the two, and whether more work is useless."""
        transfers = answer.schedule.transfers
        most, rate = min(work, _PER_TRANSFER * transfers), _hops_per_us(answer)
        if transfers > SEARCH_TRANSFERS:
            return answer, True
        try:
            found, hops = improved(
                answer.schedule,
                int(most * rate),
                seed=self.question.seed,
                target=self.judge.target,
                executed_ps=answer.time_ps if answer.known else None,
                progress=self.watch.report,
            )
            self.budget.used += hops / rate
            if found is None:
                return answer, True
            judged = self.judge.judged(found)
            if judged.time_ps < to_beat:
                judged = self.judge.first_right([judged])
        except TimeIsUp:
            self.watch.cut_short = True
            return answer, True
        except TacosError:
            return answer, True
        better = min(answer, judged, key=lambda one: one.time_ps)
        return better, better is answer or most < work or hops < most * rate

    def _half(self) -> Question | None:
        """Return the all-gather of an all-reduce for which bandwidth matters more than latency, as a question."""
        question = self.question
        gather = all_gather_of(question.collective)
        if gather is None or question.sketch is not None:
            return None
        # The halves of a symmetric network are symmetric, and joining them would list what symmetry describes.
        members = len(gather.parts[0].group)
        if question.topology.symmetric or members * (members - 1) > SEARCH_TRANSFERS:
            return None
        if question.bound.bandwidth_s <= question.bound.latency_s:
            return None
        if turning(question.topology) is None:
            return None
        return replace(question, collective=gather, watch=self._part_of_watch(), known_bound=None)

    def _halves_suffice(self, half: Question) -> bool:
        """Return whether two halves may come as close to the bound as any all-reduce."""
        return 2 * half.bound.time_ps <= _HALVES_SUFFICE * self.question.bound.time_ps

    def _in_halves(
        self, half: Question, best_ps: float, *, refines: bool, matches: bool
    ) -> list[Answer]:
        """Return the all-reduce that is made of the best all-gather, if it may be faster than the best so far."""
        first = best_ps == math.inf
        judge = Judge(half, target=self.judge.target, verifies=self.judge.verifies)
        judge.rejected = self.judge.rejected
        inner = Auto(ChunkSearch(half, judge, most_run=self.runs.most_run // 2))
        if first:
            inner.budget.total *= _HALVES_FIRST
        else:
            left = max(self.budget.total - self.budget.used, 0.0)
            inner.budget.total = min(_HALVES * self.budget.worth(best_ps), left)
        if self.watch.cut_short or not inner.budget.total:
            return []
        try:
            if 2 * half.bound.time_ps >= best_ps:
                return []
            found = inner.best(refines=refines, matches=matches)
            self.budget.used += inner.budget.used
            if 2 * found.time_ps >= _HOPEFUL * best_ps:
                return []
            whole = self._joined(found)
            facts = {key: one for key, one in found.provenance.items() if key not in _OF_A_SEARCH}
            answer = self.judge.judged(whole.with_provenance(facts | {"halves": True}))
            if answer.time_ps < best_ps:
                answer = self.judge.first_right([answer])
        except TimeIsUp:
            if first:
                raise
            self.watch.cut_short = True
            return []
        except (TacosError, MemoryError, ValueError):
            if self.watch.stopped:
                raise
            return []  # halves only add a candidate
        self.watch.cut_short |= half.watch.cut_short
        self.judge.to_beat = min(self.judge.to_beat, answer.time_ps)
        return [answer]

    def _part_of_watch(self) -> Watch:
        """Return a watch for a search that is a part of this one."""
        watch = Watch(None, lambda share: self.watch.report(share / 2))
        watch.end = self.watch.end
        return watch

    def _joined(self, gather: Schedule) -> Schedule:
        """Return the all-reduce of an all-gather; with one peer for each port if the all-gather has one."""
        topology, collective = self.question.topology, self.question.collective
        matching = matched_ports(topology) if gather.matched_ports else None
        there = matching.taken(gather) if matching else None
        if matching and there:
            boxes = topology.dims[-1][1] if topology.dims else 0
            if (turned := turning(matching.topology, boxes)) is not None:
                return on_whole_network(matching, both_halves(there, collective, turned))
        if (turned := turning(topology)) is None:
            raise TacosError("the network differs from itself with all links reversed")
        return both_halves(gather, collective, turned)

    def _with_matched_ports(self, matching: MatchedPorts) -> list[Answer]:
        """Return the best answers with one peer for each port, the fastest first, for a share of the work."""
        watch = self._part_of_watch()
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
        judge.rejected = self.judge.rejected
        inner = Auto(ChunkSearch(question, judge, most_run=self.runs.most_run))
        judge.to_beat, inner.halved = self.judge.to_beat, self.halved
        share = _MATCHED_IF_LARGE if self._large() else _MATCHED
        inner.budget.total = self.budget.total * (_TURNS if matching.shared else share)
        inner.reserve = self.budget.total - inner.budget.total
        answers: list[Answer] = []
        try:
            for one in inner.answers()[:_REFINED]:
                answers += [self.judge.judged(on_whole_network(matching, one.schedule))]
            answers = self._right(answers)
        except TimeIsUp:
            self.watch.cut_short = True
        except (TacosError, MemoryError):
            answers = []  # matched ports only add candidates
        self.watch.cut_short |= watch.cut_short
        self.budget.used += inner.budget.used
        if answers:
            self.judge.to_beat = min(self.judge.to_beat, answers[0].time_ps)
            self.proven = inner.reached
        return answers

    def _right(self, answers: list[Answer]) -> list[Answer]:
        """Return the answers, the fastest first, beginning with the first that passes the verifier."""
        answers.sort(key=lambda answer: answer.time_ps)
        first = self.judge.first_right(answers)
        return [first, *(one for one in answers if one.time_ps > first.time_ps)]

    def _exact(self, best: Answer) -> list[Answer]:
        """Return optimal schedules with the chunks of the best answer, if the problem is small and there is a gap."""
        topology, collective = self.question.topology, best.schedule.collective
        if self.question.gap(best.time_ps) < WORTH_ALL or self.question.effort.units < 1:
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
        """Return the answer of an engine that obeys sketches, if no other engine's schedule does.

        Raises:
            InfeasibleError: No engine applies, or an NPU cannot be reached.
            TacosError: The error of the first engine that failed.
            TimeIsUp: The time limit ended the search before an engine ran.
        """
        topology, collective = self.question.topology, self.question.collective
        unreachable = any(isinstance(error, InfeasibleError) for error in errors)
        if self.question.sketch is not None and not unreachable:
            for engine in ENGINES.values():
                if engine.keeps_sketches and not engine.obstacle(topology, collective):
                    return [self.judge.first_right(self.runs.answers(engine, {}))]
        if errors:
            raise errors[0]
        if self.watch.cut_short:
            raise TimeIsUp
        raise InfeasibleError(f"no engine applies to {collective!r} on {topology!r}")


def _hops_per_us(answer: Answer) -> float:
    """Return the number of hops that refinement of an answer examines in a microsecond."""
    return next(rate for most, rate in _HOPS if answer.schedule.transfers <= most)


def on_whole_network(matching: MatchedPorts, schedule: Schedule) -> Schedule:
    """Convert a schedule with matched ports to the whole network."""
    found = matching.returned(schedule)
    facts = found.provenance | {"ports": "matched"}
    return found.with_provenance(facts).with_facts(matched_ports=True)


def _may_take_too_long(topology: Topology, collective: Collective) -> bool:
    """Return whether a schedule might take longer than the core can represent, which is not an engine's bug."""
    if not topology.links:
        return False
    sizes = collective.chunk_bytes() if collective.resolved else [p.size for p in collective.parts]
    sent_s = topology.npus * sum(map(int, sizes)) / int(topology.link_bandwidth_Bps.min())
    return sent_s + topology.nodes * int(topology.link_latency_ps.max()) * 1e-12 > _LONGEST_S
