"""Find the best algorithm for each size of a range, and write the files that serve them.

:func:`tune` synthesizes at several sizes, then finds the range of sizes that each winner serves. An algorithm is what
``synthesize`` returns at a size; it is executed at other sizes, as its users do, and serves as many as it can within a tolerance of
the best. The sizes at which one algorithm takes over from another are searched, not only sampled.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tacos import collective as collectives
from tacos import units
from tacos.errors import TacosError
from tacos.execution import at_size
from tacos.nodes import Network, topology_of
from tacos.search.synthesis import synthesize
from tacos.synth import ENGINES
from tacos.targets import bound_for, check_held
from tacos.workers import Dispatch

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterator, Sequence
    from concurrent.futures import Executor

    from tacos._core import Collective, Schedule, Topology
    from tacos.bound import Bound
    from tacos.nodes import Node

__all__ = ["Range", "Tuning", "check_formats", "tune"]

_FACTOR = 4
"""Default factor between samples."""
_NEAR = 1.03
"""Ratio below which two sizes count as equal."""


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes that one algorithm serves.

    Attributes:
        min_bytes: The first size.
        max_bytes: The last size.
        engine: The engine that made it.
        chunks: Number of chunks per part, as in :mod:`tacos.collective`.
        schedule: What :func:`~tacos.search.synthesis.synthesize` returns at one of the sizes.
        figures: Samples within the range: the size, the executed time of this algorithm there, and a time that no
            schedule beats.
    """

    min_bytes: int
    max_bytes: int
    engine: str
    chunks: int
    schedule: Schedule
    figures: tuple[tuple[int, float, float], ...]

    @property
    def efficiency(self) -> float:
        """The lowest efficiency (bound over time) of the samples."""
        # In whole picoseconds, so that the share is that of Schedule.efficiency to the last digit.
        shares = (
            round(bound_s * 1e12) / round(time_s * 1e12)
            for _, time_s, bound_s in self.figures
            if time_s
        )
        return min(shares, default=1.0)


@dataclass(frozen=True, slots=True)
class Tuning:
    """A table of algorithms by size.

    Attributes:
        topology: The network.
        ranges: The ranges without gaps, smallest sizes first.
        nccl: The best of NCCL's own algorithms by size: first and last size, and NCCL's names of the
            algorithm and protocol; empty for collectives that its tuners do not know.
        cut_short: Whether the time limit ended the search; the last range then serves all larger sizes.
    """

    topology: Topology
    ranges: tuple[Range, ...]
    nccl: tuple[tuple[int, int, str, str], ...] = ()
    cut_short: bool = False

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per range, for tables and JSON; units are in the names."""
        return [
            {
                "min_bytes": one.min_bytes,
                "max_bytes": one.max_bytes,
                "engine": one.engine,
                "chunks": one.chunks,
                "size_bytes": one.schedule.collective.size_bytes,
                "executed_s": one.schedule.executed_s,
                "busbw_Bps": one.schedule.busbw_Bps,
                "efficiency": one.schedule.efficiency,
                "least_efficiency": one.efficiency,
            }
            for one in self.ranges
        ]

    def save(
        self, folder: str | os.PathLike[str], *, to: Collection[str] = (), **options: object
    ) -> list[str]:
        """Write a plan directory: schedules, ``plans.json``, ``tuner.csv``, and files of other formats.

        Either all files are written or none. The first algorithm also serves all smaller sizes, the last all larger
        ones. Existing plans for the same collective, group and network are replaced. An algorithm that a format cannot
        hold is written with fewer chunks, or left out.

        Args:
            folder: The plan directory, which is created if necessary.
            to: Formats that an executor runs, such as ``"msccl"``: a file for each range, with its sizes in it.
            options: Options for the writers of these formats.

        Returns:
            One sentence for each file that could not be written.

        Raises:
            FormatError: A file cannot be written.
            ValueError: A format is unknown.
        """
        from tacos.search.tuned_files import write

        check_formats(to)
        return write(self, folder, to, options)


def tune(
    topology: Network,
    kind: str,
    sizes: str = "1KB:4GB",
    *,
    group: Sequence[Node] | None = None,
    root: Node | None = None,
    tolerance: float = 0.02,
    seed: int = 0,
    effort: str | int = "normal",
    time_limit: float | None = None,
    consistent: bool = True,
    target: str | None = None,
    executor: Executor | None = None,
    progress: Callable[[float], object] | None = None,
) -> Tuning:
    """Find the best algorithm for each size of a range.

    Args:
        topology: The network.
        kind: Kind of the collective, such as ``"all_reduce"``.
        sizes: ``"LOW:HIGH"``, sampled by a factor of 4, or ``"LOW:HIGH:FACTOR"``.
        group, root: As for :func:`tacos.collective.named`.
        tolerance: An algorithm may serve a size if it takes at most this share longer than the best.
        seed, effort: As for :func:`~tacos.search.synthesis.synthesize`, at each size.
        time_limit: Seconds after which the sizes tried so far are the result.
        consistent, target: As for :func:`~tacos.search.synthesis.synthesize`.
        executor: Where the work is done: what :func:`tacos.workers.opened` opens by name, or any executor; by default
            this process, one size after another. It stays open.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached.
        TacosError: The time limit passed before the first size was done.
        ValueError: The kind or a size is wrong.

    >>> import tacos
    >>> table = tune(tacos.topology.ring(4), "all_reduce", "1KB:64KB", effort="fast")
    >>> [(row.min_bytes, row.engine) for row in table.ranges][0]
    (1000, 'exchange')
    >>> all(a.max_bytes + 1 == b.min_bytes for a, b in zip(table.ranges, table.ranges[1:]))
    True
    """
    topology = topology_of(topology)
    check_held(collectives.named(kind, topology, 1 << 20, group=group, root=root), target)
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be between 0 and 1; got {tolerance!r}")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit must be positive; got {time_limit!r}")
    text = f"{sizes}:{_FACTOR}" if sizes.count(":") == 1 else sizes
    samples = units.size_range(text)
    end = math.inf if time_limit is None else time.monotonic() + time_limit
    members = None if group is None else tuple(group)
    problem = _TuningProblem(topology, kind, members, root, seed, effort, consistent, target)
    search = _Search(problem, end, progress, executor)
    found = search.winners(samples)
    spans = search.covered(found, tolerance)
    ranges = search.ranges(spans, found, samples[-1])
    nccl = search.nccl(samples[: len(found)])
    return Tuning(topology, tuple(ranges), tuple(nccl), search.cut_short)


def check_formats(names: Collection[str]) -> None:
    """Raise a ValueError for a format that has no files for ranges of sizes.

    >>> check_formats(["nccl"])
    Traceback (most recent call last):
    ValueError: to must be one of msccl, mscclpp; got "nccl"
    """
    from tacos.formats import FORMATS

    executed = sorted(name for name, format in FORMATS.items() if format.executor)
    for name in names:
        if name not in executed:
            raise ValueError(f'to must be one of {", ".join(executed)}; got "{name}"')


class _Span(NamedTuple):
    """Samples that the answer to one of them serves: its number, the first sample, and the one after the last."""

    answer: int
    begin: int
    end: int


class _TuningProblem(NamedTuple):
    """A tuning problem, with everything that another process needs."""

    topology: Topology
    kind: str
    group: tuple[Node, ...] | None
    root: Node | None
    seed: int
    effort: str | int
    consistent: bool
    target: str | None


class _Task(NamedTuple):
    """A method of the search and its arguments."""

    problem: _TuningProblem
    method: str
    arguments: tuple[Any, ...]


def _answer(task: _Task) -> Any:
    return getattr(_Search(task.problem), task.method)(*task.arguments)


class _Search:
    """Times of algorithms at sizes, each computed once."""

    def __init__(
        self,
        problem: _TuningProblem,
        end: float = math.inf,
        progress: Callable[[float], object] | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.problem = problem
        self.topology, self.kind, self.group, self.root = problem[:4]
        self.seed, self.effort, self.consistent, self.target = problem[4:]
        self.end, self.progress, self.executor = end, progress, executor
        self.done, self.next = 0.0, 0.0  # the share of the progress that the current run covers
        self.cut_short = False
        self.times: dict[tuple[str, int], float] = {}
        self.bounds: dict[int, Bound] = {}

    def asked(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return a method's result, or its exception, for each tuple of arguments, from the executor."""
        assert self.executor is not None
        tasks = [_Task(self.problem, method, one) for one in arguments]
        shared = (self.topology, self.problem)
        work = Dispatch(self.executor, _answer, tasks, shared=shared, progress=self.report)
        return [one for _, one in sorted(work, key=lambda pair: pair[0])]

    def report(self, share: float) -> None:
        if self.progress is not None:
            self.progress(self.done + (self.next - self.done) * share)

    def wanted(self, size: int) -> Collective:
        return collectives.named(self.kind, self.topology, size, group=self.group, root=self.root)

    def bound(self, size: int) -> Bound:
        if size not in self.bounds:
            self.bounds[size] = bound_for(self.topology, self.wanted(size), self.target)
        return self.bounds[size]

    def winner(self, size: int, limit_s: float | None) -> Schedule:
        """Return the best algorithm of a size: what ``synthesize`` returns."""
        return synthesize(
            self.topology,
            self.wanted(size),
            seed=self.seed,
            effort=self.effort,
            time_limit=limit_s,
            consistent=self.consistent,
            progress=self.report,
            known_bound=self.bound(size),
            target=self.target,
        )

    def winner_until(self, size: int, end: float) -> Schedule:
        """Return the best algorithm of a size, found before the wall-clock time `end`, which other machines share."""
        left = end - time.time()
        if left <= 0:
            raise TacosError("the time is up")
        return self.winner(size, None if left == math.inf else left)

    def outcomes(self, samples: list[int]) -> Iterator[Any]:
        """Yield the winner of each size, or the exception that was raised, until the time is up."""
        if self.executor is not None:
            self.next = 0.8
            end = time.time() + (self.end - time.monotonic())
            yield from self.asked("winner_until", [(size, end) for size in samples])
            return
        for i, size in enumerate(samples):
            self.done, self.next = (0.8 * (i + k) / len(samples) for k in (0, 1))
            left = self.end - time.monotonic()
            if i > 0 and left <= 0:
                yield TacosError("the time is up")
                return
            try:
                yield self.winner(size, None if left == math.inf else max(left, 1e-3))
            except TacosError as error:
                yield error

    def winners(self, samples: list[int]) -> list[Schedule]:
        """Return the best algorithm of each size, until the time is up."""
        found: list[Schedule] = []
        for outcome in self.outcomes(samples):
            if isinstance(outcome, BaseException):
                limited = isinstance(outcome, TacosError) and self.end < math.inf
                if not found or not limited:
                    raise outcome
                self.cut_short = True
                break
            self.cut_short |= outcome.cut_short
            found.append(outcome)
        self.done = self.next = 0.8
        return found

    def covered(self, found: list[Schedule], tolerance: float) -> list[_Span]:
        """Cover all samples with few algorithms, each serving as many consecutive samples as it can, its own among them."""

        def reach(answer: int, begin: int) -> int:
            for i in range(begin, len(found)):
                best_s = found[i].executed_s
                if (
                    self.at(found[answer], found[i].collective.size_bytes)
                    > (1 + tolerance) * best_s
                ):
                    return i
            return len(found)

        spans: list[_Span] = []
        while not spans or spans[-1].end < len(found):
            begin = spans[-1].end if spans else 0
            # Winners of larger sizes may serve this size too, and more sizes beyond it.
            reached = {one: reach(one, begin) for one in range(begin, min(begin + 3, len(found)))}
            serving = [one for one, end in reached.items() if end > one]
            chosen = max(serving, key=lambda one: (reached[one], -_chunks(found[one])))
            spans.append(_Span(chosen, begin, reached[chosen]))
        return spans

    def at(self, schedule: Schedule, size: int) -> float:
        """Return the executed time of an algorithm at a size; infinity if the size is too small for its chunks."""
        try:
            return at_size(schedule, size).executed_s
        except (TacosError, ValueError, MemoryError):
            return math.inf

    def ranges(self, spans: list[_Span], found: list[Schedule], last: int) -> list[Range]:
        samples = [one.collective.size_bytes for one in found]
        edges = [samples[0] - 1]
        for one, after in pairwise(spans):
            first, second = (partial(self.at, found[span.answer]) for span in (one, after))
            edges.append(_crossover(first, second, samples[one.end - 1], samples[after.begin]))
        edges.append(max(last, samples[0]))
        result = []
        for span, (low, high) in zip(spans, pairwise(edges), strict=True):
            schedule = found[span.answer]
            figures = tuple(
                (size, self.at(schedule, size), self.bound(size).time_s)
                for size in samples[span.begin : span.end]
            )
            chunks = _chunks(schedule)
            result.append(Range(low + 1, high, schedule.engine, chunks, schedule, figures))
        return result

    def time(self, engine: str, size: int) -> float:
        """Return the executed time of an engine's own answer at a size; infinity if it has none."""
        if (engine, size) not in self.times:
            try:
                seconds = synthesize(
                    self.topology,
                    self.wanted(size),
                    engine=engine,
                    seed=self.seed,
                    effort=self.effort,
                    progress=self.report,
                    known_bound=self.bound(size),
                    target=self.target,
                ).executed_s
            except (TacosError, ValueError, MemoryError):
                seconds = math.inf
            self.times[engine, size] = seconds
        return self.times[engine, size]

    def nccl(self, samples: list[int]) -> list[tuple[int, int, str, str]]:
        """Return NCCL's best algorithm and protocol for every size."""
        kind = collectives.parse(self.kind).name
        known = [engine for engine in ENGINES.values() if kind in engine.nccl_names]
        if not known or self.group is not None:
            return []
        # The first serves all sizes; another may be faster for small ones.
        usual = quick = known[0].name
        switch = samples[0] - 1
        for engine in known[1:]:
            self.done = self.next = 0.95
            other = engine.name
            better = [size for size in samples if self.time(other, size) < self.time(usual, size)]
            if not better:
                continue
            above = [size for size in samples if size > better[-1]]
            first, second = (partial(self.time, name) for name in (other, usual))
            last = _crossover(first, second, better[-1], above[0]) if above else samples[-1]
            if last > switch:
                quick, switch = other, last
        edges = {samples[0] - 1, samples[-1]}
        edges |= {edge for edge in (switch, *self.protocols()) if samples[0] <= edge < samples[-1]}
        ordered = sorted(edges)
        names = [ENGINES[one].nccl_names[kind] for one in (usual, quick)]
        return [
            (low + 1, high, names[high <= switch], self.protocol(high))
            for low, high in pairwise(ordered)
        ]

    def protocols(self) -> tuple[int, int]:
        """Return the largest sizes for LL, which doubles the bytes, and for LL128, which adds a sixteenth.

        They save a wait per hop, so they pay off while latency outweighs the bytes that they add.
        """
        small, large = self.bound(self.topology.npus), self.bound(1 << 30)
        level = small.latency_s / max(large.bandwidth_s, 1e-15) * (1 << 30)
        return round(level), round(16 * level)

    def protocol(self, size: int) -> str:
        low, middle = self.protocols()
        return "ll" if size <= low else "ll128" if size <= middle else "simple"


def _chunks(schedule: Schedule) -> int:
    return schedule.collective.parts[0].chunks


def _crossover(
    first: Callable[[int], float], second: Callable[[int], float], low: int, high: int
) -> int:
    """Return the largest size at which the first of two neighbouring algorithms is the better one, given the times of both."""
    while high > _NEAR * low + 1:
        middle = round(math.sqrt(low * high))
        if first(middle) <= second(middle):
            low = middle
        else:
            high = middle
    return low
