"""Find the best algorithm for each size of a range, and write the files that serve them.

:func:`tune` synthesizes at a row of sizes, then finds out how far each winner carries: an algorithm is an engine
and a number of chunks, and serves as many sizes as it can within a tolerance of the best. Where one algorithm
takes over from another is searched, not only sampled.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tacos import collective as collectives
from tacos import units
from tacos.bound import Bound, bound
from tacos.errors import TacosError
from tacos.execution import check_target, execution
from tacos.nodes import Network, topology_of
from tacos.search.budget import exact_limits
from tacos.search.refine import refine
from tacos.search.synthesis import synthesize
from tacos.synth import ENGINES

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Sequence

    from tacos._core import Collective, Schedule, Topology
    from tacos.nodes import Node

__all__ = ["Range", "Tuning", "check_formats", "tune"]

_FACTOR = 4
"""Between samples, if none is asked for."""
_NEAR = 1.03
"""Two sizes this close need not be told apart."""
_REFINING, _MOST_REFINING = 3_000, 20_000_000
"""Hops that refinement looks at: per transfer, and at most (two seconds)."""


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes that one algorithm serves.

    Attributes:
        min_bytes: The first size.
        max_bytes: The last one.
        engine: The engine that made it.
        chunks: How it cuts the buffer, counted as in :mod:`tacos.collective`.
        schedule: The algorithm at a size in the middle, refined.
        figures: Samples within the range: the size, the time before refinement, and a time that no
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
        """The bound over the time, at the sample where that is least."""
        return min((bound_s / time_s for _, time_s, bound_s in self.figures if time_s), default=1.0)


@dataclass(frozen=True, slots=True)
class Tuning:
    """A table of algorithms by size.

    Attributes:
        topology: The network.
        ranges: Without gaps, the smallest sizes first.
        nccl: Which of NCCL's own algorithms suits which sizes best: the first and the last size, and
            the algorithm and protocol by NCCL's names; empty for collectives that its tuners do not know.
        cut_short: Whether the time limit ended the search; larger sizes are then served by the last.
    """

    topology: Topology
    ranges: tuple[Range, ...]
    nccl: tuple[tuple[int, int, str, str], ...] = ()
    cut_short: bool = False

    def rows(self) -> list[dict[str, Any]]:
        """One plain dictionary per range, for tables and JSON; units are in the names."""
        return [
            {
                "min_bytes": one.min_bytes,
                "max_bytes": one.max_bytes,
                "engine": one.engine,
                "chunks": one.chunks,
                "size_bytes": one.schedule.collective.size_bytes,
                "time_s": one.schedule.time_s,
                "busbw_Bps": one.schedule.busbw_Bps,
                "efficiency": one.efficiency,
            }
            for one in self.ranges
        ]

    def save(
        self, folder: str | os.PathLike[str], *, to: Collection[str] = (), **options: Any
    ) -> list[str]:
        """Write a plan directory: schedules, ``plans.json``, ``tuner.csv``, and files of other formats.

        All files appear, or none. The first algorithm serves all smaller sizes too, the last all larger
        ones. Plans for the same collective, group and network that the directory had are replaced. What
        a format cannot hold is written with fewer chunks, or not at all.

        Args:
            folder: Made if it is not there.
            to: Formats that an executor runs, such as ``"msccl"``: a file for each range, with its sizes in it.
            options: For the writers of these formats.

        Returns:
            What could not be written, a sentence each.

        Raises:
            FormatError: The disk refuses.
            ValueError: An unknown format.
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
    progress: Callable[[float], object] | None = None,
) -> Tuning:
    """Find the best algorithm for each size of a range.

    Args:
        topology: The network.
        kind: Such as ``"all_reduce"``.
        sizes: ``"LOW:HIGH"``, sampled at every fourth power of two, or ``"LOW:HIGH:FACTOR"``.
        group, root: As for :func:`tacos.collective.named`.
        tolerance: An algorithm may serve a size if it takes at most this share longer than the best.
        seed, effort: As for :func:`~tacos.search.synthesis.synthesize`, at each size.
        time_limit: Seconds after which the sizes tried so far are the result.
        consistent: As for :func:`~tacos.search.synthesis.synthesize`: only algorithms that leave all NPUs with identical bits.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached.
        TacosError: The time limit passed before the first size was done.
        ValueError: The kind or a size is not understood.

    >>> import tacos
    >>> table = tune(tacos.topology.ring(4), "all_reduce", "1KB:64KB", effort="fast")
    >>> [(row.min_bytes, row.engine) for row in table.ranges][0]
    (1000, 'one-shot')
    >>> all(a.max_bytes + 1 == b.min_bytes for a, b in zip(table.ranges, table.ranges[1:]))
    True
    """
    topology = topology_of(topology)
    check_target(target)
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be between 0 and 1; got {tolerance!r}")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit must be positive; got {time_limit!r}")
    text = f"{sizes}:{_FACTOR}" if sizes.count(":") == 1 else sizes
    samples = units.size_range(text)
    end = math.inf if time_limit is None else time.monotonic() + time_limit
    search = _Search(topology, kind, group, root, seed, effort, end, progress)
    search.consistent = consistent
    search.target = target
    found = search.winners(samples)
    spans = search.covered(samples[: len(found)], found, tolerance)
    ranges = search.ranges(spans, samples[: len(found)], samples[-1])
    nccl = search.nccl(samples[: len(found)])
    return Tuning(topology, tuple(ranges), tuple(nccl), search.cut_short)


def check_formats(names: Collection[str]) -> None:
    """A ValueError if a range of sizes has no file of such a format.

    >>> check_formats(["nccl"])
    Traceback (most recent call last):
    ValueError: to must be one of msccl, mscclpp; got "nccl"
    """
    from tacos.formats import FORMATS

    executed = sorted(name for name, format in FORMATS.items() if format.executor)
    for name in names:
        if name not in executed:
            raise ValueError(f'to must be one of {", ".join(executed)}; got "{name}"')


class _Algorithm(NamedTuple):
    """An engine, how it cuts (None where it chooses), and whether the ports between boxes have one peer each."""

    engine: str
    chunks: int | None
    ports: str = "any"


class _Span(NamedTuple):
    """Samples that one algorithm serves: the first, and the one after the last."""

    algorithm: _Algorithm
    begin: int
    end: int


class _Search:
    """Times of algorithms at sizes, each computed once."""

    def __init__(
        self,
        topology: Topology,
        kind: str,
        group: Sequence[Node] | None,
        root: Node | None,
        seed: int,
        effort: str | int,
        end: float,
        progress: Callable[[float], object] | None,
    ) -> None:
        self.topology, self.kind, self.group, self.root = topology, kind, group, root
        self.seed, self.effort, self.end = seed, effort, end
        self.progress = progress
        self.done, self.next = 0.0, 0.0  # the part of the whole that the present run is
        self.cut_short, self.consistent = False, True
        self.target: str | None = None
        self.times: dict[tuple[_Algorithm, int], float] = {}
        self.bounds: dict[int, Bound] = {}

    def report(self, share: float) -> None:
        if self.progress is not None:
            self.progress(self.done + (self.next - self.done) * share)

    def wanted(self, size: int, chunks: int | None = None) -> Collective:
        return collectives.named(
            self.kind,
            self.topology,
            size,
            group=self.group,
            root=self.root,
            chunks="auto" if chunks is None else chunks,
        )

    def bound(self, size: int) -> Bound:
        if size not in self.bounds:
            self.bounds[size] = bound(self.topology, self.wanted(size))
        return self.bounds[size]

    def synthesized(self, algorithm: _Algorithm, size: int) -> Schedule:
        found = synthesize(
            self.topology,
            self.wanted(size, algorithm.chunks),
            engine=algorithm.engine,
            ports=algorithm.ports,
            seed=self.seed,
            effort=self.effort,
            progress=self.report,
            known_bound=self.bound(size),
            target=self.target,
            **exact_limits(algorithm.engine, self.effort),
        )
        if self.consistent and not found.consistent:
            raise TacosError(f"{algorithm.engine} adds up {size} B in several orders")
        return found

    def near(self, size: int, algorithm: _Algorithm, low: int, high: int) -> Schedule:
        """An algorithm at about a size of a range; within it if possible, as plans go by their sizes."""
        below = self.even(size, algorithm, up=False)
        for one in (below, self.even(size, algorithm, up=True), size):
            if low <= one <= high:
                try:
                    return self.synthesized(algorithm, one)
                except (TacosError, ValueError):
                    continue
        return self.synthesized(algorithm, below)

    def time(self, algorithm: _Algorithm, size: int) -> float:
        """How long an algorithm takes at a size; for ever if it cannot cut it."""
        if (algorithm, size) not in self.times:
            try:
                # A little more than the size is never faster.
                schedule = self.synthesized(algorithm, self.even(size, algorithm, up=True))
                seconds = self.executed(schedule)
            except (TacosError, ValueError, MemoryError):
                seconds = math.inf
            self.times[algorithm, size] = seconds
        return self.times[algorithm, size]

    def executed(self, schedule: Schedule) -> float:
        """How long a schedule takes when it is executed; its own time if it is too large to be run."""
        found = execution(schedule, target=self.target)
        return schedule.time_s if found is None else found.time_ps(self.target) * 1e-12

    def even(self, size: int, algorithm: _Algorithm, *, up: bool) -> int:
        """The nearest size, above or below, that gives equal chunks, which some engines need."""
        cuts = len(self.group or range(self.topology.npus)) * (algorithm.chunks or 1)
        return size if size < cuts else (size + (cuts - 1 if up else 0)) // cuts * cuts

    def winners(self, samples: list[int]) -> list[_Algorithm]:
        """The best algorithm of each size, until the time is up."""
        found: list[_Algorithm] = []
        for i, size in enumerate(samples):
            self.done, self.next = (0.8 * (i + k) / len(samples) for k in (0, 1))
            left = self.end - time.monotonic()
            if found and left <= 0:
                self.cut_short = True
                break
            try:
                best = synthesize(
                    self.topology,
                    self.wanted(size),
                    seed=self.seed,
                    effort=self.effort,
                    time_limit=None if left == math.inf else max(left, 1e-3),
                    refine=False,
                    consistent=self.consistent,
                    progress=self.report,
                    known_bound=self.bound(size),
                    target=self.target,
                )
            except TacosError:
                if not found or left == math.inf:
                    raise
                self.cut_short = True
                break
            self.cut_short |= best.cut_short
            ports = "matched" if best.matched_ports else "any"
            algorithm = _Algorithm(best.engine, best.collective.parts[0].chunks, ports)
            self.times[algorithm, size] = self.executed(best)
            found.append(algorithm)
        self.done = self.next = 0.8
        return found

    def covered(self, samples: list[int], found: list[_Algorithm], tolerance: float) -> list[_Span]:
        """Few algorithms that serve all samples, each as many in a row as it can."""

        def reach(algorithm: _Algorithm, begin: int) -> int:
            for i in range(begin, len(samples)):
                best = self.times[found[i], samples[i]]
                if self.time(algorithm, samples[i]) > (1 + tolerance) * best:
                    return i
            return len(samples)

        spans: list[_Span] = []
        while not spans or spans[-1].end < len(samples):
            begin = spans[-1].end if spans else 0
            # Winners of larger sizes may serve this one too, and carry further.
            candidates = dict.fromkeys(found[begin : begin + 3])
            chosen = max(candidates, key=lambda one: (reach(one, begin), -(one.chunks or 0)))
            spans.append(_Span(chosen, begin, reach(chosen, begin)))
        return spans

    def crossover(self, first: _Algorithm, second: _Algorithm, low: int, high: int) -> int:
        """The last size that the first algorithm serves, where the second is to serve the higher one."""
        while high > _NEAR * low + 1:
            middle = round(math.sqrt(low * high))
            if self.time(first, middle) <= self.time(second, middle):
                low = middle
            else:
                high = middle
        return low

    def ranges(self, spans: list[_Span], samples: list[int], last: int) -> list[Range]:
        edges = [samples[0] - 1]
        for k, (one, after) in enumerate(pairwise(spans)):
            self.done = self.next = 0.8 + 0.1 * k / len(spans)
            low, high = samples[one.end - 1], samples[after.begin]
            edges.append(self.crossover(one.algorithm, after.algorithm, low, high))
        edges.append(max(last, samples[0]))
        result = []
        for one, low, high in zip(spans, edges, edges[1:], strict=False):
            served = samples[one.begin : one.end]
            schedule = self.near(served[len(served) // 2], one.algorithm, low + 1, high)
            hops = min(_REFINING * schedule.transfers, _MOST_REFINING)
            schedule = refine(schedule, hops=hops, seed=self.seed, target=self.target)
            figures = tuple(
                (size, self.time(one.algorithm, size), self.bound(size).time_s) for size in served
            )
            chunks = schedule.collective.parts[0].chunks
            result.append(Range(low + 1, high, one.algorithm.engine, chunks, schedule, figures))
        return result

    def nccl(self, samples: list[int]) -> list[tuple[int, int, str, str]]:
        """NCCL's own choices: one of its algorithms, and a protocol, for every size."""
        kind = collectives.parse(self.kind).name
        known = [engine for engine in ENGINES.values() if kind in engine.nccl_names]
        if not known or self.group is not None:
            return []
        # The first serves all sizes; another one may be quicker for small ones.
        usual = quick = _Algorithm(known[0].name, None)
        switch = samples[0] - 1
        for engine in known[1:]:
            self.done = self.next = 0.95
            other = _Algorithm(engine.name, None)
            better = [size for size in samples if self.time(other, size) < self.time(usual, size)]
            if not better:
                continue
            above = [size for size in samples if size > better[-1]]
            last = self.crossover(other, usual, better[-1], above[0]) if above else samples[-1]
            if last > switch:
                quick, switch = other, last
        edges = {samples[0] - 1, samples[-1]}
        edges |= {edge for edge in (switch, *self.protocols()) if samples[0] <= edge < samples[-1]}
        ordered = sorted(edges)
        names = [ENGINES[one.engine].nccl_names[kind] for one in (usual, quick)]
        return [
            (low + 1, high, names[high <= switch], self.protocol(high))
            for low, high in pairwise(ordered)
        ]

    def protocols(self) -> tuple[int, int]:
        """The largest sizes for LL, which doubles the bytes, and for LL128, which adds a sixteenth.

        They save a wait per hop, so they pay off while latency outweighs what they add.
        """
        small, large = self.bound(self.topology.npus), self.bound(1 << 30)
        level = small.latency_s / max(large.bandwidth_s, 1e-15) * (1 << 30)
        return round(level), round(16 * level)

    def protocol(self, size: int) -> str:
        low, middle = self.protocols()
        return "ll" if size <= low else "ll128" if size <= middle else "simple"
