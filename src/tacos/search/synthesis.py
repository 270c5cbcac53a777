"""From a question to an answer: which engine, and how many chunks.

:func:`synthesize` is what most people call. It runs an engine, searches the number of chunks where
the collective leaves it open, and returns one schedule that says how it was made.
"""

from __future__ import annotations

import math
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tacos._core import Collective, Topology
from tacos.bound import Bound, bound
from tacos.collective import kind_of
from tacos.errors import (
    InfeasibleError,
    LimitError,
    TacosError,
    VerificationError,
    WrongScheduleWarning,
    check_type,
    nearest,
)
from tacos.execution import check_target, execution
from tacos.search.refine import refine as refine_schedule
from tacos.sketch import Sketch
from tacos.synth import BASELINES, ENGINES, applicable, check_options, obstacle
from tacos.synth.baselines.nccl import suited_counts
from tacos.synth.forest import suited_chunks
from tacos.synth.matched_ports import MatchedPorts, matched_ports
from tacos.synth.milp import obstacle as milp_obstacle
from tacos.synth.work import stored, work
from tacos.verify import verify as verify_schedule

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from tacos._core import Schedule
    from tacos.verify import Report

__all__ = [
    "check_engine",
    "check_sizes",
    "engines",
    "exact_limits",
    "obstacles",
    "synthesize",
    "with_chunks",
]

_PORTS = ("auto", "any", "matched")
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
_MANY_PER_LINK, _FEWER = 1000, 1.015
"""Transfers per link that are more than executors take at once; to avoid them, this much longer is good enough."""
_UNKNOWN_LOSS = 2.0
"""Executed time over the schedule's, assumed for schedules too large to be run (the most that was measured)."""
_TOO_LARGE = 2**62
"""The executed time of a schedule that the target refuses."""
_LARGE = 20
"""Bandwidth decides, not latency, where the bound's parts differ by this factor."""
_WORK = 10_000_000
"""Microseconds of work, about, that ``"auto"`` may spend per unit of effort."""
_LONGEST_S = 40 * 3600
"""Seconds that the core can count for one transfer (``cpp/model/time.hpp``)."""
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
    verify: bool = True,
    target: str | None = None,
    consistent: bool = True,
    ports: str = "auto",
    **options: Any,
) -> Schedule:
    """Find a schedule of a collective on a network, and verify it.

    The result depends on the arguments alone, but for a time limit that cuts the search short.

    Every answer passes :func:`tacos.verify` before it is returned. A schedule that fails is a bug of its engine: it is
    reported as a :class:`~tacos.errors.WrongScheduleWarning` that says how to reproduce it, and the next best schedule
    is returned, with the failure under ``"rejected"`` in its provenance. So is an engine that applies and fails with a
    ValueError while ``"auto"`` asks it.

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
        verify: Whether to verify the answer. Without, its provenance has ``"unverified"``.
        target: What will execute the schedule: ``"tcp"``, ``"msccl"``, ``"mscclpp"`` or ``"nccl"``, whose messages share
            links, or ``"schedule"``, which keeps the order on every link. Schedules are compared by their
            executed time under the target's rule; without a target, by the slowest of the three rules
            (:func:`tacos.execution.execution`).
        consistent: Whether ``"auto"`` returns only schedules in which all NPUs add up each chunk in the same order, so
            that they end with identical bits (``Report.consistent`` of :func:`tacos.verify`). False suffices for integers
            and for simulation. A schedule without this property has ``"consistent": False`` in its provenance.
        ports: ``"matched"`` gives each port of a switch between boxes one peer, so that no two messages share it
            (:mod:`tacos.synth.matched_ports`); ``"any"`` lets NPUs send to all that a port leads to. By default
            ``"auto"`` tries both, and a named engine uses any. The provenance says ``"ports": "matched"``.
        options: Passed on to the engine, such as ``order="rank"`` for rings; ``trials=`` says the
            number of greedy's random starts by itself.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached.
        TacosError: The time limit passed before there was any schedule, or the engine's does not keep
            to the sketch.
        TypeError: An option that the engine does not take.
        VerificationError: Every schedule that was found is wrong.
        ValueError: The engine is unknown, or does not apply to this problem; or no ports can be matched.

    >>> import tacos
    >>> topo = tacos.topology.ring(8, bandwidth="50GB/s", latency="500ns")
    >>> coll = tacos.collective.all_reduce(topo, "64MB")
    >>> best = synthesize(topo, coll)
    >>> best.provenance["engine"]
    'symmetric'
    """
    check_sizes(topology, collective)
    check_target(target)
    if engine != "auto":
        check_engine(engine, "auto")
    check_options(engine, options, _OWN_ARGUMENTS)
    limits = (seed, effort, time_limit, progress)
    if ports not in _PORTS:
        raise ValueError(f"ports must be one of {', '.join(_PORTS)}; got {ports!r}")
    if sketch is not None and ports == "matched":
        raise ValueError('ports is "matched", which a sketch does not know: use one of the two')
    if sketch is not None:
        found = _sketched(
            topology, collective, sketch, engine, known_bound, limits, verify, target, options
        )
        if consistent and engine == "auto" and found.provenance.get("consistent") is False:
            raise TacosError(_inconsistent(found, verify_schedule(found).difference))
        return found
    matching = matched_ports(topology) if ports == "matched" else None
    if ports == "matched" and matching is None:
        raise ValueError(
            'ports is "matched", but no switch of this network joins equal boxes by slower ports: leave ports out'
        )
    if matching is not None:
        known_bound = known_bound or bound(topology, collective)
        topology = matching.topology
    search = _Search(topology, collective, *limits, known_bound)
    search.refines, search.verifies, search.target = refine, verify, target
    search.consistent = consistent and engine == "auto"
    search.matches = ports == "auto"
    found = search.answer(engine, options)
    return found if matching is None else _back(matching, found)


_OWN_ARGUMENTS = tuple(synthesize.__kwdefaults__ or ())


def _back(matching: MatchedPorts, schedule: Schedule) -> Schedule:
    """A schedule with matched ports as one of the whole network."""
    found = matching.returned(schedule)
    return found.with_provenance(found.provenance | {"ports": "matched"})


def with_chunks(schedule: Schedule, chunks: int) -> Schedule:
    """Return what the schedule's engine makes of its problem with another number of chunks.

    Args:
        schedule: One of a single named collective, made by :func:`synthesize`.
        chunks: Chunks per part.

    Raises:
        TacosError: The schedule does not say which engine made it, or ranks might end with different bits where
            they do not with the given one.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> many = synthesize(ring, tacos.collective.all_gather(ring, "4MB", chunks=8), engine="ring")
    >>> with_chunks(many, 2).transfers, many.transfers
    (24, 96)
    """
    part, engine = schedule.collective.parts[0], schedule.provenance.get("engine")
    if chunks == part.chunks:
        return schedule
    if engine not in ENGINES or len(schedule.collective.parts) > 1:
        raise TacosError("only a schedule of one collective and a known engine can be cut anew")
    wanted = Collective(
        schedule.topology.npus,
        [type(part)(part.kind, part.size, chunks=chunks, group=part.group, root=part.root)],
    )
    ports = schedule.provenance.get("ports", "any")
    found = synthesize(schedule.topology, wanted, engine=engine, ports=ports)
    consistent = [one.provenance.get("consistent") is not False for one in (schedule, found)]
    if consistent == [True, False]:
        raise TacosError(f"{engine} in {chunks} chunks may leave ranks with different bits")
    return found


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
    verify: bool,
    target: str | None,
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
    search.refines = False  # it does not know sketches
    search.verifies = False  # the schedule is verified once it is on the whole network
    search.sketch, search.target = sketch, target
    try:
        found = search.answer(engine, options)
    except InfeasibleError as error:
        raise InfeasibleError(f"with the links that the sketch allows, {error}") from None
    search.check_sketch(found)
    schedule = sketch.returned(found, topology, links)
    full = known_bound or bound(topology, schedule.collective)
    facts = schedule.provenance | {"bound_s": full.time_s, "sketch": True}
    if verify:
        del facts["unverified"]
        report = verify_schedule(schedule, progress=limits[3])
        if not report.ok:
            raise VerificationError(_violation(schedule, report, limits[0]))
        if not report.consistent:
            facts["consistent"] = False
    return schedule.with_provenance(facts)


def _violation(schedule: Schedule, report: Report, seed: int) -> str:
    """Why a wrong schedule must not be returned, with what is needed to reproduce it."""
    facts, goal = schedule.provenance, schedule.collective
    more = f" (and {report.found - 1} more)" if report.found > 1 else ""
    return (
        f"the engine {facts.get('engine')} returned a wrong schedule of {goal!r} in "
        f"{goal.parts[0].chunks} chunks on {schedule.topology!r}, seed {seed}: "
        f"{report.violations[0].message}{more}; this is a bug in tacos, please report it with the topology"
    )


def _failure(
    engine: str, topology: Topology, collective: Collective, error: Exception, seed: int
) -> str:
    """What an engine that applies failed with, with what is needed to reproduce it."""
    chunks = collective.parts[0].chunks or "any number of"
    return (
        f"the engine {engine} failed on {collective!r} in {chunks} chunks on {topology!r}, seed {seed}: "
        f"{error}; this is a bug in tacos, please report it with the topology"
    )


def _may_take_too_long(topology: Topology, collective: Collective) -> bool:
    """Whether some schedule might exceed the longest times that the core can count, which is no bug of an engine."""
    if not topology.links:
        return False
    sizes = collective.chunk_bytes() if collective.resolved else [p.size for p in collective.parts]
    sent_s = topology.npus * sum(map(int, sizes)) / int(topology.link_bandwidth_Bps.min())
    return sent_s + topology.nodes * int(topology.link_latency_ps.max()) * 1e-12 > _LONGEST_S


def _inconsistent(schedule: Schedule, difference: str) -> str:
    """Why "auto" does not return a right schedule."""
    return (
        f"the schedules of engine {schedule.provenance.get('engine')} may leave NPUs with different bits of a sum: "
        f"{difference}; pass consistent=False to accept them"
    )


class _Answer(NamedTuple):
    """A schedule and what it is compared by: its executed time for the target."""

    schedule: Schedule
    time_ps: int
    known: bool  # whether it was run


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
        self.cut_short, self.refines, self.verifies = False, True, True
        self.matches = False  # whether "auto" looks at matched ports, too
        self.consistent = False  # whether only schedules whose sums have one order will do
        self.rejected: list[str] = []
        self.stopped = False  # whether the caller's progress raised an exception
        self.target: str | None = None
        self.refusal = ""  # why the target takes no schedule
        self.used = 0.0  # work of all engines and refinements
        self.to_beat = math.inf  # the executed time of the best answer so far
        self.sketch: Sketch | None = None
        self.packed: dict[
            Any, Any
        ] = {}  # trees of the forest engine, whatever the number of chunks

    def answer(self, engine: str, options: dict[str, Any]) -> Schedule:
        """What :func:`synthesize` returns."""
        try:
            schedule = (
                self.all_engines()
                if engine == "auto"
                else self.first_right(self.engine(engine, options)).schedule
            )
        except _TimeIsUp:
            message = f"time_limit is {self.time_limit} s, too short to find any schedule"
            raise TacosError(message) from None
        facts: dict[str, Any] = {"seed": self.seed, "effort": self.effort}
        facts["bound_s"] = self.bound.time_s
        if self.cut_short:
            facts["cut_short"] = True
        if self.rejected:
            facts["rejected"] = self.rejected
        if not self.verifies:
            facts["unverified"] = True
        return schedule.with_provenance(facts | schedule.provenance)

    def judged(self, schedule: Schedule, to_beat: float = math.inf) -> _Answer:
        """The schedule with its executed time; one that is too large to be run is taken to lose much.

        A schedule that takes as long as what it has to beat is not run: execution only adds to its time.
        """
        if schedule.time_ps >= min(to_beat, self.to_beat):
            return _Answer(schedule, schedule.time_ps, known=True)
        try:
            found = execution(schedule, target=self.target, progress=lambda _: self.report(0.0))
        except LimitError as error:
            self.refusal = self.refusal or str(error)
            return _Answer(schedule, _TOO_LARGE, known=False)
        lost = int(_UNKNOWN_LOSS * schedule.time_ps)
        return _Answer(schedule, found.time_ps(self.target) if found else lost, found is not None)

    def first_right(self, candidates: list[_Answer]) -> _Answer:
        """The first candidate that the verifier accepts; each one that it rejects is reported.

        Candidates whose sums have different orders on different NPUs are passed over where that matters.
        There is no time limit here: an answer is verified or it is not returned.
        """
        if not self.verifies:
            return candidates[0]
        first_error = difference = ""
        if all(answer.time_ps == _TOO_LARGE for answer in candidates):
            raise TacosError(f"no schedule fits the target {self.target}: {self.refusal}")
        for answer in candidates:
            schedule = answer.schedule
            report = verify_schedule(schedule, progress=lambda _: self.told_again())
            if report.ok and report.consistent:
                return answer
            if report.ok and not self.consistent:
                return _noted(answer, {"consistent": False})
            if report.ok:
                difference = difference or report.difference
                continue
            wrong = _violation(schedule, report, self.seed)
            first_error = first_error or wrong
            self.reject(wrong)
        if not first_error:
            raise TacosError(_inconsistent(candidates[0].schedule, difference))
        raise VerificationError(first_error)

    def reject(self, wrong: str) -> None:
        """Report what is a bug of an engine, now and in the provenance."""
        self.rejected.append(wrong)
        warnings.warn(wrong, WrongScheduleWarning, stacklevel=5)

    def told_again(self) -> None:
        """Tell the caller the last progress, also in a verification, which it can thus stop."""
        if self.progress is not None:
            try:
                self.progress(self.told)
            except BaseException:
                self.stopped = True
                raise

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
            self.told_again()

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

    def engine(self, name: str, options: dict[str, Any]) -> list[_Answer]:
        """The engine's answers, the best first; where the number of chunks is open, the fewest that are good enough.

        More chunks pipeline better until latencies outweigh it, so the search ends at the bound, or
        after two counts that hardly helped; greedy, whose matching may gain from finer chunks where
        bandwidth decides, gets five, and forest, whose trees' weights do not suit every count, four.
        What the model does not count (the work per transfer) speaks for few.
        """
        check_engine(name, "auto")
        if self.collective.resolved:
            return [self.judged(self.once(name, self.collective, options))]
        applies = name in applicable(self.topology, self.collective)  # not if only by its options
        begin, end = self.done, self.next
        results: list[_Answer] = []
        counts = self.counts + (_MANY_COUNTS if name == "forest" else ())
        if name == "nccl" and applies:
            counts = suited_counts(self.topology, self.collective, counts)

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
            kind_of(p).two_phases for p in self.collective.parts
        )
        most = _SEARCH_TRANSFERS * (2 * phases if name == "forest" else 1)
        fastest = failures = 0
        for schedule in self.found(runs()):
            results.append(self.judged(schedule, results[fastest].time_ps if results else math.inf))
            helped = results[-1].time_ps * _GOOD_ENOUGH < results[fastest].time_ps
            failures = 0 if helped or len(results) == 1 else failures + 1
            if results[-1].time_ps < results[fastest].time_ps:
                fastest = len(results) - 1
            if failures == patience or 2 * schedule.stored_transfers > most:
                break
            if not results[-1].known:  # nor will those of more chunks be
                break
            if results[fastest].time_ps <= self.enough * self.bound.time_ps:
                break
        self.done, self.next = begin, end
        per_link = results[fastest].schedule.transfers / max(self.topology.links, 1)
        spare = self.enough if per_link <= _MANY_PER_LINK else max(self.enough, _FEWER)
        enough = results[fastest].time_ps * spare
        best = next(answer for answer in results if answer.time_ps <= enough)
        tried = [answer.schedule.collective.parts[0].chunks for answer in results]
        others = sorted((one for one in results if one is not best), key=lambda one: one.time_ps)
        return [_noted(answer, {"chunk_counts_tried": tried}) for answer in (best, *others)]

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

    def worth(self, best: _Answer | None) -> float:
        """The work that may be spent in all: the closer the best is to the bound, the less."""
        if best is None:
            return math.inf
        gap = 1 - self.bound.time_ps / max(best.time_ps, 1)
        return self.budget * min(max((gap - _MET) / _WORTH_ALL, 0.0), 1.0)

    def exact(self, best: _Answer) -> _Answer | None:
        """The optimum for the best's chunks, where that is a small program with something to gain."""
        gap = 1 - self.bound.time_ps / max(best.time_ps, 1)
        collective = best.schedule.collective
        pairs = collective.chunks * self.topology.links
        if gap < _WORTH_ALL or pairs > _EXACT_PAIRS or self.cut_short or self.budget < _WORK:
            return None
        if milp_obstacle(self.topology, collective):
            return None
        try:
            limits = exact_limits(self.effort) | self.patience()
            found = self.first_right([self.judged(self.once("milp", collective, limits))])
            self.check_sketch(found.schedule)
        except _TimeIsUp:
            self.cut_short = True
            return None
        except TacosError:
            return None
        return found

    def all_engines(self) -> Schedule:
        """The best of the engines that apply, also with matched ports, refined with the work that is left."""
        matching = matched_ports(self.topology) if self.matches and self.sketch is None else None
        results, left_out = self.tried(0.5 if matching else 1.0)
        if matching:
            self.done, self.next = 0.5, 1.0
            results += self.with_matched_ports(matching, results[0])
            results.sort(key=lambda answer: answer.time_ps)
        results = self.refined(results) if self.refines else results
        times: dict[str, float] = {}
        for one in results:
            times.setdefault(one.schedule.provenance["engine"], one.time_ps * 1e-12)
        return _noted(results[0], {"best_of": times, "not_tried": left_out}).schedule

    def tried(self, part: float) -> tuple[list[_Answer], list[str]]:
        """The answers of the engines that apply, the fastest first, and who was not asked; cheap ones come first.

        Engines are asked while the work is worth it. A schedule is verified before it becomes the best: a wrong one could seem too good for the others to be tried.
        """
        names = engines(self.topology, self.collective)
        expected = {name: self.expected(name) for name in names}
        results: list[_Answer] = []
        best: _Answer | None = None
        errors: list[Exception] = []
        left_out: list[str] = []
        # The synthesizers first, which come nearest to the bound; not where one would eat it all.
        dear = {name for name in names if name in BASELINES or expected[name] > self.budget}
        for i, name in enumerate(sorted(names, key=lambda name: (name in dear, expected[name]))):
            self.done, self.next = (part * (i + k) / len(names) for k in (0, 1))
            if self.cut_short or self.used + expected[name] > self.worth(best):
                left_out.append(name)
                continue
            try:
                self.report(0.0)
                found = self.engine(name, {})
                answer = found[0]
                if best is None or answer.time_ps < best.time_ps:
                    answer = self.first_right(found)
                self.check_sketch(answer.schedule)
            except _TimeIsUp:
                self.cut_short = True
                if best is None:
                    raise
                left_out.append(name)
                continue
            except (TacosError, MemoryError) as error:
                errors.append(error)
                continue
            except (ValueError, OverflowError) as error:
                if self.stopped:
                    raise
                if _may_take_too_long(self.topology, self.collective):
                    errors.append(error)
                    continue
                # The engine applies and has no options: the error is its own.
                failed = _failure(name, self.topology, self.collective, error, self.seed)
                self.reject(failed)
                errors.append(VerificationError(failed))
                continue
            self.used += self.spent(answer.schedule)
            results.append(answer)
            if best is None or answer.time_ps < best.time_ps:
                best = answer
                self.to_beat = best.time_ps
        if best is None:
            knows_sketches = not milp_obstacle(self.topology, self.collective)
            if self.sketch is not None and knows_sketches and not _infeasible(errors):
                return [self.first_right(self.engine("milp", {}))], left_out
            if errors:
                raise errors[0]
            raise InfeasibleError(f"no engine applies to {self.collective!r} on {self.topology!r}")
        exact = self.exact(best) if self.used < self.worth(best) else None
        if exact is not None:
            results.append(exact)
        return sorted(results, key=lambda answer: answer.time_ps), left_out

    def with_matched_ports(self, matching: MatchedPorts, best: _Answer) -> list[_Answer]:
        """The best answers with one peer for each port, if there is work left that they are worth."""
        left = self.worth(best) - self.used
        if self.cut_short or left < _FAST * self.budget:
            return []
        limits = (self.seed, self.effort, None, self.report, self.bound)
        inner = _Search(matching.topology, self.collective, *limits)
        inner.budget, inner.end, inner.rejected = left, self.end, self.rejected
        inner.verifies, inner.to_beat = self.verifies, self.to_beat
        inner.consistent, inner.target = self.consistent, self.target
        answers: list[_Answer] = []
        try:
            for one in inner.tried(1.0)[0][:_REFINED]:
                found = self.judged(_back(matching, one.schedule))
                if found.time_ps < best.time_ps:
                    found = best = self.first_right([found])
                answers.append(found)
        except _TimeIsUp:
            self.cut_short = True
        except (TacosError, MemoryError):
            pass  # there is an answer already
        self.cut_short |= inner.cut_short
        self.used += inner.used
        return answers

    def refined(self, results: list[_Answer]) -> list[_Answer]:
        """The results, the fastest first, of which the fastest are refined with the work that is left."""
        better = list(results)
        for i, answer in enumerate(results[:_REFINED]):
            left = self.worth(better[0]) - self.used
            if self.cut_short or left <= 0 or answer.time_ps > _HOPEFUL * better[0].time_ps:
                break
            if answer.schedule.transfers > _SEARCH_TRANSFERS:
                continue
            work = min(left, self.budget * _REFINING, _PER_TRANSFER * answer.schedule.transfers)
            try:
                found = self.judged(
                    refine_schedule(
                        answer.schedule,
                        work=int(work * _HOPS),
                        seed=self.seed,
                        target=self.target,
                        progress=self.report,
                    )
                )
                # The first has passed the verifier before, and refinement keeps what it had.
                if i > 0 and found.time_ps < better[0].time_ps:
                    found = self.first_right([found])
            except _TimeIsUp:
                self.cut_short = True
                break
            except TacosError:
                continue
            better[i] = min(answer, found, key=lambda answer: answer.time_ps)
            self.used += work
        return sorted(better, key=lambda answer: answer.time_ps)


def _noted(answer: _Answer, facts: dict[str, Any]) -> _Answer:
    """The answer with facts in its schedule's provenance."""
    schedule = answer.schedule
    return answer._replace(schedule=schedule.with_provenance(schedule.provenance | facts))


def _infeasible(errors: list[Exception]) -> bool:
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
