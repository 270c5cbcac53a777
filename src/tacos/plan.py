"""From a question to an answer: which engine, and how many chunks.

:func:`synthesize` is what most people call. It runs an engine, searches the number of chunks where
the collective leaves it open, and returns one schedule that says how it was made.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tacos._core import Collective, Topology
from tacos.bound import Bound, bound
from tacos.errors import InfeasibleError, TacosError, check_type, nearest
from tacos.refine import refine as refine_schedule
from tacos.sketch import Sketch
from tacos.synth import BASELINES, ENGINES, applicable, check_options, obstacle
from tacos.synth.forest import suited_chunks
from tacos.synth.milp import obstacle as milp_obstacle
from tacos.synth.work import stored, work

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from tacos._core import Schedule

__all__ = ["check_engine", "check_sizes", "engines", "exact_limits", "obstacles", "synthesize"]

_EFFORTS: dict[str | int, int] = {"fast": 1, "normal": 1, "high": 8}
_FAST = 0.1
_CHUNK_COUNTS = tuple(2**k for k in range(10))
_MANY_COUNTS = (1024, 2048, 4096)
"""For pipelines down trees: a broadcast's chunks are few on each link."""
_EXACT_PAIRS, _EXACT_COLUMNS, _EXACT_NODES = 600, 1500, 50
"""Of chunks and links, up to which ``"auto"`` asks the exact engine; the columns of its programs and the
nodes of its searches, about a second's work."""
_REFINED, _HOPEFUL, _REFINING, _PER_TRANSFER, _HOPS = 2, 1.1, 0.2, 300.0, 10.0
"""The best so many answers, up to so much slower than the best, are refined with so large a part of the work
each, at most so many microseconds per transfer; the last is what the search looks at in one."""
_SEARCH_TRANSFERS = 300_000
"""The chunk search stops before schedules of more transfers than this: they take seconds each."""
_GOOD_ENOUGH = 1.005
"""A few chunks that take up to this much longer than many are better; not so with more effort."""
_LARGE = 20
"""Bandwidth decides, not latency, where the bound's parts differ by this factor."""
_WORK = 10_000_000
"""Microseconds of work, about, that ``"auto"`` may spend per unit of effort."""
_MET = 0.001
"""A schedule this close to the bound has met it."""
_WORTH_ALL = 0.01
"""With this much more to gain, all of the work is worth it; with half of it, half of the work."""


def engines(topology: Topology, collective: Collective) -> list[str]:
    """Names of the engines that apply to a problem.

    >>> import tacos
    >>> topo = tacos.topology.hypercube(3)
    >>> "halving-doubling" in engines(topo, tacos.collective.all_reduce(topo, "1MB"))
    True
    """
    return applicable(topology, collective)


def obstacles(topology: Topology, collective: Collective) -> dict[str, str]:
    """The engines that do not apply to a problem, with what each of them needs.

    >>> import tacos
    >>> topo = tacos.topology.mesh(3, 3)
    >>> obstacles(topo, tacos.collective.all_gather(topo, "1MB"))["one-shot"]
    'all-reduce, not all-gather'
    """
    found = {name: obstacle(name, topology, collective) for name in ENGINES}
    return {name: needed for name, needed in found.items() if needed}


def synthesize(
    topology: Topology,
    collective: Collective,
    *,
    engine: str = "auto",
    seed: int = 0,
    effort: str | int = "normal",
    time_limit: float | None = None,
    progress: Callable[[float], object] | None = None,
    known_bound: Bound | None = None,
    refine: bool = True,
    sketch: Sketch | str | os.PathLike[str] | None = None,
    **options: Any,
) -> Schedule:
    """Find a schedule of a collective on a network.

    The result depends on the arguments alone, but for a time limit that cuts the search short.

    Args:
        topology: The network.
        collective: What is to be achieved. Where its number of chunks is ``"auto"``, the best of
            1, 2, 4, … is searched.
        engine: A name from :func:`engines`, or ``"auto"`` for the best of all that apply:
            synthesizers and cheap ones first, until the bound is met within 0.1 %, or the work that the effort allows
            is done. ``"best_of"`` in the provenance has the times of all that were tried, the
            fastest first, and ``"not_tried"`` those that were not worth it. Small problems that are
            still 1 % or more above the bound go to the exact engine as well.
        seed: For engines that draw at random; goes into the provenance.
        effort: How many random starts the greedy engine gets, and how many times 10 s of work
            ``"auto"`` may spend: ``"normal"`` (1), ``"high"`` (8), or a number; ``"fast"`` is a tenth
            of normal, with fewer chunk counts. Work is counted, not measured.
        time_limit: Seconds after which the best so far is returned, with ``"cut_short"`` in its
            provenance.
        progress: Called with the share done, now and then.
        known_bound: The problem's bound, for callers that have it already.
        refine: Whether ``"auto"`` spends what work is left on refining its best (:func:`tacos.refine`).
        sketch: What the schedule may use, or the file that says so.
        options: Passed on to the engine, such as ``order="rank"`` for rings; ``trials=`` says the
            number of greedy's random starts by itself.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached.
        TacosError: The time limit passed before there was any schedule, or the engine's does not keep
            to the sketch.
        TypeError: An option that the engine does not take.
        ValueError: The engine is unknown, or does not apply to this problem.

    >>> import tacos
    >>> topo = tacos.topology.ring(8, bandwidth="50GB/s", latency="500ns")
    >>> coll = tacos.collective.all_reduce(topo, "64MB")
    >>> best = synthesize(topo, coll)
    >>> best.provenance["engine"]
    'symmetric'
    """
    check_sizes(topology, collective)
    if engine != "auto":
        check_engine(engine, "auto")
    check_options(engine, options, _OWN_ARGUMENTS)
    limits = (seed, effort, time_limit, progress)
    if sketch is not None:
        return _sketched(topology, collective, sketch, engine, known_bound, limits, options)
    search = _Search(topology, collective, *limits, known_bound)
    search.refines = refine
    return search.answer(engine, options)


_OWN_ARGUMENTS = tuple(synthesize.__kwdefaults__ or ())


def exact_limits(effort: str | int) -> dict[str, int]:
    """What the exact engine may spend within an effort for ``"auto"``: options of its that know no clock.

    >>> exact_limits("normal")
    {'columns': 1500, 'nodes': 50}
    """
    _, budget = _effort(effort)
    return {"columns": int(_EXACT_COLUMNS * budget / _WORK), "nodes": _EXACT_NODES}


def _effort(effort: str | int) -> tuple[int, float]:
    """The random starts and the work that an effort stands for."""
    trials = _EFFORTS.get(effort, effort) if isinstance(effort, str) else effort
    if type(trials) is not int or trials < 1:
        names = ", ".join(str(name) for name in _EFFORTS)
        raise ValueError(f"effort must be one of {names}, or a positive number; got {effort!r}")
    return trials, _WORK * trials * (_FAST if effort == "fast" else 1.0)


def _sketched(
    topology: Topology,
    collective: Collective,
    sketch: Sketch | str | os.PathLike[str],
    engine: str,
    known_bound: Bound | None,
    limits: tuple[int, str | int, float | None, Callable[[float], object] | None],
    options: dict[str, Any],
) -> Schedule:
    """Synthesize on the links that a sketch allows; the schedule is one of the whole network."""
    if not isinstance(sketch, Sketch):
        from tacos.formats import sketch_file

        sketch = sketch_file.read(sketch, topology.npus)
    sketch = sketch.numbered(topology)
    sketch.check(topology.npus)
    if not collective.resolved and sketch.chunks is not None:
        collective = collective.with_chunks(sketch.chunks)
    network, links = sketch.restrict(topology)
    search = _Search(network, collective, *limits, None)
    search.refines = False  # it knows no sketches
    search.sketch = sketch
    try:
        found = search.answer(engine, options)
    except InfeasibleError as error:
        raise InfeasibleError(f"with the links that the sketch allows, {error}") from None
    search.check_sketch(found)
    schedule = sketch.returned(found, topology, links)
    full = known_bound or bound(topology, schedule.collective)
    return schedule.with_provenance(schedule.provenance | {"bound_s": full.time_s, "sketch": True})


class _TimeIsUp(Exception):
    """No error: it ends a search that may have found something."""


class _Search:
    """Runs of engines for one problem, under one budget of work and time."""

    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        seed: int,
        effort: str | int,
        time_limit: float | None,
        progress: Callable[[float], object] | None,
        known_bound: Bound | None,
    ) -> None:
        trials, self.budget = _effort(effort)
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise ValueError(f"seed must be 0 to 2^63 - 1; got {seed!r}")
        limit: Any = time_limit
        if limit is not None and not (isinstance(limit, (int, float)) and limit > 0):
            raise ValueError(f"time_limit must be positive; got {time_limit!r}")
        self.topology, self.collective = topology, collective
        self.seed, self.effort, self.trials = seed, effort, trials
        self.known_bound = known_bound
        self.counts = _CHUNK_COUNTS[::2] if effort == "fast" else _CHUNK_COUNTS
        self.enough = _GOOD_ENOUGH if trials == 1 else 1 + _MET
        self.time_limit = time_limit
        self.end = None if time_limit is None else time.monotonic() + time_limit
        self.progress, self.told = progress, 0.0
        self.done, self.next = 0.0, 1.0  # the part of the whole that the present run is
        self.cut_short, self.refines = False, True
        self.sketch: Sketch | None = None
        self.packed: dict[
            Any, Any
        ] = {}  # trees of the forest engine, whatever the number of chunks

    def answer(self, engine: str, options: dict[str, Any]) -> Schedule:
        """What :func:`synthesize` returns."""
        try:
            schedule = self.all_engines() if engine == "auto" else self.engine(engine, options)
        except _TimeIsUp:
            message = f"time_limit is {self.time_limit} s, too short to find any schedule"
            raise TacosError(message) from None
        facts = {"seed": self.seed, "effort": self.effort, "bound_s": self.bound.time_s}
        if self.cut_short:
            facts["cut_short"] = True
        return schedule.with_provenance(facts | schedule.provenance)

    def check_sketch(self, schedule: Schedule) -> None:
        """A TacosError if the schedule does what the sketch forbids."""
        if self.sketch is not None and (wrong := self.sketch.violation(schedule)):
            used = schedule.provenance.get("engine")
            hint = "" if used == "milp" else "; milp does"
            raise TacosError(f"the engine {used} does not keep to the sketch: {wrong}{hint}")

    def report(self, share: float) -> None:
        if self.end is not None and time.monotonic() > self.end:
            raise _TimeIsUp
        if self.progress is not None:
            # An engine with several passes starts each at zero.
            self.told = max(self.told, self.done + (self.next - self.done) * share)
            self.progress(self.told)

    @property
    def bound(self) -> Bound:
        """The time that no schedule of this problem beats, computed once."""
        if self.known_bound is None:
            self.known_bound = bound(
                self.topology, self.collective, progress=lambda _: self.report(0.0)
            )
        return self.known_bound

    def found(self, runs: Iterable[Callable[[], Schedule]]) -> Iterator[Schedule]:
        """The runs' results until the time is up; at least one."""
        first = True
        for run in runs:
            try:
                self.report(0.0)
                schedule = run()
            except _TimeIsUp:
                self.cut_short = True
                if first:
                    raise
                return
            first = False
            yield schedule

    def once(self, engine: str, collective: Collective, options: dict[str, Any]) -> Schedule:
        """An engine on a collective whose chunks are chosen; of several trials the best."""
        if engine == "forest":
            options = {"packed": self.packed, **options}
        if engine == "milp":
            options = {"seed": self.seed, "within": self.sketch} | self.patience() | options
        if engine != "greedy":
            return ENGINES[engine](self.topology, collective, progress=self.report, **options)
        trials = options.get("trials", self.trials)
        if type(trials) is not int or trials < 1:
            raise ValueError(f"trials must be a positive number; got {trials!r}")
        others = {name: value for name, value in options.items() if name != "trials"}

        def trial(seed: int) -> Schedule:
            return ENGINES["greedy"](
                self.topology, collective, seed=seed, progress=self.report, **others
            )

        begin, end = self.done, self.next

        def runs() -> Iterator[Callable[[], Schedule]]:
            for k in range(trials):
                self.done, self.next = (begin + (end - begin) * (k + i) / trials for i in (0, 1))
                yield partial(trial, self.seed + k)

        best = min(self.found(runs()), key=lambda schedule: schedule.time_ps)
        self.done, self.next = begin, end
        return best.with_provenance(best.provenance | {"trials": trials})

    def patience(self) -> dict[str, float]:
        """The time that one exact solution gets: most of what is left, half where more may follow."""
        if self.end is None:
            return {}
        share = 0.95 if self.collective.resolved else 0.5
        return {"time_limit": max(share * (self.end - time.monotonic()), 0.01)}

    def engine(self, name: str, options: dict[str, Any]) -> Schedule:
        """The engine's best; where the number of chunks is open, the fewest that are good enough.

        More chunks pipeline better until latencies outweigh it, so the search ends at the bound, or
        after two counts that hardly helped; greedy, whose matching may gain from finer chunks where
        bandwidth decides, gets five, and forest, whose trees' weights do not suit every count, four.
        What the model does not count (the work per transfer) speaks for few.
        """
        check_engine(name, "auto")
        if self.collective.resolved:
            return self.once(name, self.collective, options)
        applies = name in applicable(self.topology, self.collective)  # not if only by its options
        begin, end = self.done, self.next
        results: list[Schedule] = []
        counts = self.counts + (_MANY_COUNTS if name == "forest" else ())

        def runs() -> Iterator[Callable[[], Schedule]]:
            for chunks in counts:
                count = suited_chunks(chunks, self.packed) if name == "forest" else chunks
                cut = self.collective.with_chunks(count)
                if applies and name not in applicable(self.topology, cut):
                    return
                self.next = (self.done + end) / 2  # nobody knows how many there will be
                yield partial(self.once, name, cut, options)
                self.done = self.next

        coarse = name == "greedy" and self.bound.bandwidth_s > _LARGE * self.bound.latency_s
        patience = 5 if coarse else 4 if name == "forest" else 2
        phases = len(self.collective.parts) + sum(
            p.kind == "all_reduce" for p in self.collective.parts
        )
        most = _SEARCH_TRANSFERS * (2 * phases if name == "forest" else 1)
        fastest = failures = 0
        for schedule in self.found(runs()):
            results.append(schedule)
            helped = schedule.time_ps * _GOOD_ENOUGH < results[fastest].time_ps
            failures = 0 if helped or len(results) == 1 else failures + 1
            if schedule.time_ps < results[fastest].time_ps:
                fastest = len(results) - 1
            if failures == patience or 2 * schedule.stored_transfers > most:
                break
            if results[fastest].time_ps <= self.enough * self.bound.time_ps:
                break
        self.done, self.next = begin, end
        enough = results[fastest].time_ps * self.enough
        best = next(schedule for schedule in results if schedule.time_ps <= enough)
        tried = [schedule.collective.parts[0].chunks for schedule in results]
        return best.with_provenance(best.provenance | {"chunk_counts_tried": tried})

    def expected(self, name: str) -> float:
        """The work of an engine that tries all chunk counts it may try."""
        repeats = self.trials if name == "greedy" else 1
        if self.collective.resolved:
            return repeats * work(name, self.topology, self.collective)
        total = 0.0
        for count in self.counts:
            cut = self.collective.with_chunks(count)
            total += repeats * work(name, self.topology, cut, again=total > 0)
            if 2 * stored(name, self.topology, cut) > _SEARCH_TRANSFERS:
                break
        return total

    def spent(self, schedule: Schedule) -> float:
        """The work behind an engine's answer."""
        facts = schedule.provenance
        repeats: int = facts.get("trials", 1)
        tried = facts.get("chunk_counts_tried")
        cuts = [self.collective] if tried is None else map(self.collective.with_chunks, tried)
        return sum(
            repeats * work(facts["engine"], self.topology, cut, again=i > 0)
            for i, cut in enumerate(cuts)
        )

    def worth(self, best: Schedule | None) -> float:
        """The work that may be spent in all: the closer the best is to the bound, the less."""
        if best is None:
            return math.inf
        gap = 1 - self.bound.time_ps / max(best.time_ps, 1)
        return self.budget * min(max((gap - _MET) / _WORTH_ALL, 0.0), 1.0)

    def exact(self, best: Schedule) -> Schedule | None:
        """The optimum for the best's chunks, where that is a small program with something to gain."""
        gap = 1 - self.bound.time_ps / max(best.time_ps, 1)
        pairs = best.collective.chunks * self.topology.links
        if gap < _WORTH_ALL or pairs > _EXACT_PAIRS or self.cut_short or self.budget < _WORK:
            return None
        if milp_obstacle(self.topology, best.collective):
            return None
        try:
            found = self.once("milp", best.collective, exact_limits(self.effort) | self.patience())
            self.check_sketch(found)
        except _TimeIsUp:
            self.cut_short = True
            return None
        except TacosError:
            return None
        return found

    def all_engines(self) -> Schedule:
        """The best of the engines that apply, cheap ones first, while the work is worth it."""
        names = engines(self.topology, self.collective)
        expected = {name: self.expected(name) for name in names}
        results: list[Schedule] = []
        best: Schedule | None = None
        errors: list[TacosError | MemoryError] = []
        left_out: list[str] = []
        spent = 0.0
        # The synthesizers first, which come nearest to the bound; not where one would eat it all.
        dear = {name for name in names if name in BASELINES or expected[name] > self.budget}
        for i, name in enumerate(sorted(names, key=lambda name: (name in dear, expected[name]))):
            self.done, self.next = i / len(names), (i + 1) / len(names)
            if self.cut_short or spent + expected[name] > self.worth(best):
                left_out.append(name)
                continue
            try:
                self.report(0.0)
                schedule = self.engine(name, {})
                self.check_sketch(schedule)
            except _TimeIsUp:
                self.cut_short = True
                if best is None:
                    raise
                left_out.append(name)
                continue
            except (TacosError, MemoryError) as error:
                errors.append(error)
                continue
            spent += self.spent(schedule)
            results.append(schedule)
            if best is None or schedule.time_ps < best.time_ps:
                best = schedule
        if best is None:
            knows_sketches = not milp_obstacle(self.topology, self.collective)
            if self.sketch is not None and knows_sketches and not _infeasible(errors):
                return self.engine("milp", {})
            if errors:
                raise errors[0]
            raise InfeasibleError(f"no engine applies to {self.collective!r} on {self.topology!r}")
        exact = self.exact(best) if spent < self.worth(best) else None
        if exact is not None:
            results.append(exact)
        results.sort(key=lambda schedule: schedule.time_ps)
        results = self.refined(results, spent) if self.refines else results
        times = {schedule.provenance["engine"]: schedule.time_s for schedule in results}
        facts: dict[str, Any] = {"best_of": times, "not_tried": left_out}
        return results[0].with_provenance(results[0].provenance | facts)

    def refined(self, results: list[Schedule], spent: float) -> list[Schedule]:
        """The results, the fastest first, of which the fastest are refined with the work that is left."""
        better = list(results)
        for i, schedule in enumerate(results[:_REFINED]):
            left = self.worth(better[0]) - spent
            if self.cut_short or left <= 0 or schedule.time_ps > _HOPEFUL * better[0].time_ps:
                break
            if schedule.transfers > _SEARCH_TRANSFERS:
                continue
            work = min(left, self.budget * _REFINING, _PER_TRANSFER * schedule.transfers)
            try:
                found = refine_schedule(
                    schedule, work=int(work * _HOPS), seed=self.seed, progress=self.report
                )
            except _TimeIsUp:
                self.cut_short = True
                break
            better[i] = found
            spent += work
        return sorted(better, key=lambda schedule: schedule.time_ps)


def _infeasible(errors: list[TacosError | MemoryError]) -> bool:
    """Whether somebody cannot be reached, whatever the engine."""
    return any(isinstance(error, InfeasibleError) for error in errors)


def check_sizes(topology: Topology, collective: Collective) -> None:
    """A TypeError if these are something else, a ValueError if their numbers of NPUs differ."""
    check_type("topology", topology, Topology)
    check_type("collective", collective, Collective)
    if collective.npus != topology.npus:
        raise ValueError(
            f"the collective is for {collective.npus} NPUs, the topology has {topology.npus}"
        )


def check_engine(name: str, *others: str) -> None:
    """A ValueError if there is no engine of that name; `others` are names that would do besides."""
    if name not in ENGINES:
        known = [*others, *ENGINES]
        close = nearest(name, known)
        hint = f'did you mean "{close}"? It must be' if close else "expected"
        raise ValueError(f'unknown engine "{name}"; {hint} one of {", ".join(known)}')
