"""The engine ``"auto"``: the best answer of all engines that apply, in all variants of the question.

Every task, an engine on a variant, gets the same small allowance of work first. Then allowances double, round by round, up to
that of the effort, for the tasks that may still win. The best answers are refined after a round. A named engine
gets the allowance that its task gets here, so ``"auto"`` is as fast as any engine that a user could have named, up to the
share of the bound at which it stops. And a larger effort begins with the rounds of a smaller one, so that it is never worse.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tacos._core import Meter
from tacos.errors import InfeasibleError, TacosError, VerificationError
from tacos.search.effort import LIMITS, allowance, exact_limits, work
from tacos.search.judging import Answer, failure, noted
from tacos.search.refine import improved
from tacos.search.task import Task
from tacos.search.variants import as_asked, listing_work, variants
from tacos.search.watch import TimeIsUp
from tacos.synth import ENGINES, concerned, obstacle
from tacos.units import format_time

if TYPE_CHECKING:
    from tacos._core import Collective, Topology
    from tacos.search.judging import Judge
    from tacos.search.variants import Variant
    from tacos.synth.engine import Engine

__all__ = ["Auto", "named"]

_LONGEST_S = 40 * 3600
"""Longest transfer in seconds that the core can represent (``cpp/model/time.hpp``)."""


def named(judge: Judge, engine: Engine, options: dict[str, Any]) -> Answer:
    """Return the answer of one engine, with the allowance that its task gets in ``"auto"``.

    An engine that has found nothing by then gets more, since nobody else will answer.
    """
    question = judge.question
    variant = as_asked(question.topology, question.collective)
    trials = question.effort.trials if engine.random_starts else 1
    if engine.random_starts and "trials" in options:
        trials = options["trials"]
        if type(trials) is not int or trials < 1:
            raise ValueError(f"trials must be a positive number; got {trials!r}")
        options = {name: value for name, value in options.items() if name != "trials"}
    doublings = question.effort.doublings
    watch, tasks = question.watch, list[Task]()
    try:
        for trial in range(trials):
            watch.done, watch.next = trial / trials, (trial + 1) / trials
            task = Task(judge, engine, variant, options, trial)
            tasks.append(task)
            watch.report(0.0)
            units = allowance(engine, question.topology, doublings, trial)
            task.go_on(units)
            while not tasks[0].found and not task.end:
                units = max(2 * units, task.needed)
                task.go_on(units)
    except TimeIsUp:
        watch.cut_short = True
        if not any(task.answers for task in tasks):
            if (left := tasks[0].unexecuted()) is None:
                raise
            return judge.first_right([left])
    groups = [task.candidates() for task in tasks if task.answers]
    best = min(groups, key=lambda found: found[0].time_ps)
    found = judge.first_right(best)
    return noted(found, {"trials": trials}) if engine.random_starts else found


class Auto:
    """All tasks of one question, the best answer so far, and why tasks ended.

    Attributes:
        best: The best answer so far; it has passed the verifier.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge, self.question = judge, judge.question
        self.watch = self.question.watch
        self.best: Answer | None = None
        self._tasks: list[Task] = []
        self._found: dict[tuple[str, str, int], Answer] = {}
        self._spent: set[tuple[str, str, int]] = set()
        self._ends: dict[str, str] = {}
        self._errors: list[Exception] = []
        self._gap = LIMITS.met

    def answer(self, *, refines: bool, matches: bool) -> Answer:
        """Return the best answer of all tasks.

        Args:
            refines: Whether the best answers are refined.
            matches: Whether to search with matched ports as well.

        Raises:
            InfeasibleError: No engine applies, or an NPU cannot be reached.
            TacosError: The error of the first engine that failed, if none succeeded.
            TimeIsUp: The time limit ended the search before anything was found.
        """
        try:
            self._ask(as_asked(self.question.topology, self.question.collective))
            self._begin()
            self._rounds(refines=refines, matches=matches)
            self._within_sketch()
        except TimeIsUp:
            self.watch.cut_short = True
            self._rescue()
        if self.best is None:
            raise self._nothing()
        times: dict[str, float] = {}
        for one in sorted(self._found.values(), key=lambda one: one.time_ps):
            if one.known and not one.refused:
                times.setdefault(one.schedule.engine, one.time_ps * 1e-12)
        first = {self.best.schedule.engine: self.best.time_ps * 1e-12}
        return noted(self.best, {"best_of": first | times, "ends": self._told()})

    def _ask(self, variant: Variant) -> None:
        """Make the tasks of a variant: synthesizers in all variants, known algorithms on the question as it is."""
        known = concerned(variant.topology)
        for name, engine in ENGINES.items():
            if name not in known or (variant.name and engine.baseline):
                continue
            needed = obstacle(name, variant.topology, variant.collective)
            if not needed:
                self._add(engine, variant)
            elif not variant.name:
                self._ends[name] = f"does not apply: it needs {needed}"

    def _add(self, engine: Engine, variant: Variant, trial: int = 0) -> None:
        self._tasks.append(Task(self.judge, engine, variant, trial=trial))

    def _begin(self) -> None:
        """Find a schedule of a large problem, which the first rounds might not; time may be short.

        Engines that may store less than all transfers come first, with the work of listing them; then the cheapest known algorithm.
        """
        tasks = [task for task in self._tasks if not task.end]
        listing = [task.needed for task in tasks if task.engine.lists]
        if not listing or min(listing) <= work(self.question.topology, LIMITS.rounds[0]):
            return
        known = [task for task in tasks if task.engine.lists and task.engine.baseline]
        # The model of NCCL weighs several algorithms, so it comes last.
        known.sort(key=lambda one: (one.engine.reference == 1, one.needed))
        for task in [task for task in tasks if not task.engine.lists] + known:
            self.watch.report(0.0)
            self._run(task, int(LIMITS.first * task.needed) or min(listing))
            if task.found or task.unexecuted() is not None:
                return

    def _rounds(self, *, refines: bool, matches: bool) -> None:
        """Run the tasks, with more work in each round, until the bound is met or the effort is done."""
        topology, rounds = self.question.topology, list(self.question.effort.rounds)
        changed = False
        for i, doublings in enumerate(rounds):
            large = topology.npus > LIMITS.few and doublings <= 0
            self._gap = LIMITS.near if large else LIMITS.met
            if self._met():
                continue
            if doublings > 0:
                self._more_trials(1 << doublings)
            # What the cheapest tasks found may suffice. Every effort adds a variant in the same round.
            if i and not changed and listing_work(self.question) <= work(topology, doublings):
                changed = True
                for variant in variants(self.question, matches=matches):
                    self._ask(variant)
            self._round(doublings, min(i / (len(rounds) + 1), 1.0))
            if self.best is not None and doublings >= LIMITS.rounds[-1]:
                if refines and not self._met():
                    self._refine(int(LIMITS.refining * work(topology, doublings)))
                if doublings >= 0 and not self._met():
                    self._prove(2**doublings)
            if (
                doublings == rounds[-1]
                and self.best is None
                and not all(task.end for task in self._tasks)
            ):
                rounds.append(doublings + 1)  # nobody else will answer

    def _within_sketch(self) -> None:
        """Ask an engine that obeys sketches, if no other engine's schedule does."""
        question = self.question
        unreachable = any(isinstance(error, InfeasibleError) for error in self._errors)
        if question.sketch is None or self.best is not None or unreachable:
            return
        for engine in ENGINES.values():
            if engine.keeps_sketches and not engine.obstacle(
                question.topology, question.collective
            ):
                self._tasks = [
                    Task(self.judge, engine, as_asked(question.topology, question.collective))
                ]
                self._tasks[0].go_on(2**62)
                self._offer(self._tasks[0])
                return

    def _met(self) -> bool:
        """Return whether the best answer is near enough to the bound; its own time counts if it is too large to be executed."""
        if self.best is None:
            return False
        time_ps = self.best.time_ps if self.best.executed else self.best.schedule.time_ps
        return self.question.gap(time_ps) <= self._gap

    def _more_trials(self, trials: int) -> None:
        """Add the random starts of a larger effort."""
        for name, engine in ENGINES.items():
            mine = [task for task in self._tasks if task.engine.name == name]
            if engine.random_starts and mine:
                for trial in range(max(task.trial for task in mine) + 1, trials):
                    self._add(engine, mine[0].variant, trial)

    def _round(self, doublings: int, done: float) -> None:
        """Give every task that may still win the allowance of a round."""
        # Synthesizers come first, since they set the mark; a task that was stopped tells what it needs at least.
        tasks = sorted(
            (task for task in self._tasks if not task.end),
            key=lambda one: (one.engine.baseline, one.needed),
        )
        for i, task in enumerate(tasks):
            if self._met():
                return
            self.watch.done = min(done + (1 - done) * i / (2 * len(tasks)), 1.0)
            self.watch.next = self.watch.done
            self.watch.report(0.0)
            if not self._promising(task):
                continue
            topology = self.question.topology
            self._run(task, allowance(task.engine, topology, doublings, task.trial))

    def _promising(self, task: Task) -> bool:
        """Return whether a task may win, to judge a changed question by the schedules that were found there."""
        hopeless = task.least_ps() > LIMITS.promising * self._to_beat()
        return not (task.variant.name and task.found and hopeless)

    def _to_beat(self) -> float:
        return math.inf if self.best is None else self.best.time_ps

    def _run(self, task: Task, units: int) -> None:
        """Let a task work, and keep its best answer, at the deadline too; an engine that fails is out."""
        try:
            try:
                found = task.go_on(units, self._to_beat())
            except TimeIsUp:
                self._offer(task)
                raise
            if found:
                self._offer(task)
        except (TacosError, MemoryError) as error:
            self._failed(task, error)
        except (ValueError, OverflowError) as error:
            if self.watch.stopped:
                raise
            if task.variant.name or _may_take_too_long(
                task.variant.topology, task.variant.collective
            ):
                self._failed(task, error)
                return
            # The engine applies and has no options, so the error is a bug in the engine.
            wrong = failure(task.engine.name, self.question, error)
            self.judge.reject(wrong)
            self._failed(task, VerificationError(wrong))

    def _failed(self, task: Task, error: Exception) -> None:
        task.end = f"failed: {error}" if str(error) else "failed: not enough memory"
        if not task.variant.name:
            self._errors.append(error)

    def _offer(self, task: Task) -> None:
        """Keep the best answer of a task, verified if it is the best of all, since a wrong one would end the search."""
        if not task.answers:
            return
        candidates = task.candidates()
        answer = candidates[0]
        if answer.known and answer.time_ps < self._to_beat():
            try:
                answer = self.judge.first_right([one for one in candidates if one.known])
                self.judge.check_sketch(answer.schedule)
            except VerificationError:
                raise
            except TacosError as error:  # more chunks may do
                task.refuse(str(error))
                self._errors += [] if task.variant.name else [error]
                return
            if answer.time_ps < self._to_beat():
                self.best = answer
        # A refined answer may still be faster than new ones.
        refined = self._found.get(_key(task))
        if refined is None or (answer.known and answer.time_ps < refined.time_ps):
            self._found[_key(task)] = answer

    def _refine(self, work: int) -> None:
        """Refine the most promising answers with this work, in equal shares."""
        assert self.best is not None
        keys = sorted(
            (key for key, one in self._found.items() if one.known and key not in self._spent),
            key=lambda key: self._found[key].time_ps,
        )
        most_ps = LIMITS.hopeful * self.best.time_ps
        keys = [key for key in keys if self._found[key].time_ps <= most_ps][: LIMITS.refined]
        tasks = {_key(task): task for task in self._tasks}
        for i, key in enumerate(keys):
            if self._met():
                return
            answer = self._found[key]
            if (hops := int(work / (len(keys) - i) / LIMITS.hop)) <= 0:
                return
            found, used = self._improved(answer, tasks[key].variant, hops)
            work -= used * LIMITS.hop
            if used < hops or found is None:
                self._spent.add(key)
            if found is not None:
                self._found[key] = found
                if found.time_ps < self._to_beat():
                    self.best = found

    def _improved(self, answer: Answer, variant: Variant, hops: int) -> tuple[Answer | None, int]:
        """Return a better answer, if refining finds one, and the hops that were examined."""
        inner = answer.inner or answer.schedule
        try:
            found, used = improved(
                inner,
                hops,
                seed=self.question.seed,
                target=self.judge.target,
                executed_ps=answer.time_ps if answer.executed and not variant.name else None,
                progress=self.watch.report,
            )
            if found is None:
                return None, used
            meter = Meter(report=self.watch.report)
            judged = self.judge.judged(variant.lift(found, meter), answer.time_ps, meter)
            if not judged.known or judged.time_ps >= answer.time_ps:
                return None, used
            return self.judge.first_right([judged._replace(inner=found)]), used
        except TacosError:
            return None, hops

    def _prove(self, units: float) -> None:
        """Ask engines that find optimal schedules, if the problem is small and there is a gap."""
        assert self.best is not None
        topology, collective = self.question.topology, self.best.schedule.collective
        for name, engine in ENGINES.items():
            if self.question.gap(self.best.time_ps) < LIMITS.exact:
                return
            if engine.exact is None or not engine.exact.fits(topology, collective):
                continue
            if engine.obstacle(topology, collective):
                continue
            effort = max(int(units), 1)
            task = Task(
                self.judge, engine, as_asked(topology, collective), exact_limits(name, effort)
            )
            try:
                task.go_on(2**62, self._to_beat())
                self._offer(task)
            except TacosError:
                continue
            self._tasks.append(task)

    def _rescue(self) -> None:
        """After the time limit, take an answer that was found but not executed, if there is no other."""
        if self.best is not None:
            return
        left = [one for task in self._tasks if (one := task.unexecuted()) is not None]
        if left:
            self.best = self.judge.first_right(sorted(left, key=lambda one: one.time_ps))

    def _nothing(self) -> Exception:
        """Return why there is no answer."""
        if self._errors:
            return self._errors[0]
        if self.watch.cut_short:
            return TimeIsUp()
        topology, collective = self.question.topology, self.question.collective
        return InfeasibleError(f"no engine applies to {collective!r} on {topology!r}")

    def _told(self) -> dict[str, str]:
        """Return how each engine ended, in a line: it finished, lost, failed, was cut, was not needed, or does not apply."""
        lines: dict[str, list[str]] = {name: [] for name in ENGINES}
        for task in self._tasks:
            named = [task.variant.name] if task.variant.name else []
            named += [f"start {task.trial}"] if task.trial else []
            where = f"{' '.join(named)}: " if named else ""
            lines[task.engine.name].append(where + self._end(task))
        told = {name: "; ".join(said) for name, said in lines.items() if said}
        return {
            name: told.get(name) or self._ends[name]
            for name in lines
            if name in told or name in self._ends
        }

    def _end(self, task: Task) -> str:
        """Return how a task ended."""
        known = [one.time_ps for one in task.answers if one.known and not one.refused]
        if known:
            found = format_time(min(known) * 1e-12)
        else:
            found = "slower than the best" if task.found else "found nothing"
            found = f"refused: {task.refusal}" if task.refusal else found
        if not task.end:
            return f"cut, {found}" if task.used or not self._met() else "not needed"
        if task.end == "finished" and known:
            return f"finished, {found}"
        if task.end == "finished":
            return f"lost, {found}"
        return f"{task.end}, {found}" if known else task.end


def _key(task: Task) -> tuple[str, str, int]:
    return task.engine.name, task.variant.name, task.trial


def _may_take_too_long(topology: Topology, collective: Collective) -> bool:
    """Return whether a schedule might take longer than the core can represent, which is not an engine's bug."""
    if not topology.links:
        return False
    sizes = collective.chunk_bytes() if collective.resolved else [p.size for p in collective.parts]
    sent_s = topology.npus * sum(map(int, sizes)) / int(topology.link_bandwidth_Bps.min())
    return sent_s + topology.nodes * int(topology.link_latency_ps.max()) * 1e-12 > _LONGEST_S
