"""Results of a comparison: the figures of each engine, the ranking, and a verdict in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tacos._core import Schedule, to_html
from tacos._support import frames
from tacos.errors import InfeasibleError
from tacos.synth import ENGINES, references
from tacos.units import format_size, format_time

if TYPE_CHECKING:
    from pandas import DataFrame

    from tacos._core import Collective, Topology

__all__ = ["Candidate", "Comparison", "Figures", "Sweep"]


@dataclass(frozen=True, slots=True)
class Figures:
    """A schedule in numbers, as nccl-tests counts them.

    Attributes:
        executed_s: How long the schedule takes when it is executed (:func:`tacos.execution.execution`); None where it
            has too many transfers to be run.
        ideal_s: The schedule's own time, on links that keep its order.
        algbw_Bps: Size over the executed time, or the own time if that is all that is known.
        busbw_Bps: Bus bandwidth: `algbw_Bps` times nccl-tests' factor for the collective; 0 if that is not defined.
        chunks: The number of chunks per part, as ``chunks=`` takes it; None where parts differ.
        transfers: The number of transfers.
        utilisation: Share of the ideal time that the links are busy, on average.
        cut_short: Whether the time limit ended the search.
        total_chunks: The number of all chunks.
        slowdown: Why the executed time is far above the ideal one (:func:`tacos.execution.slowdown`); empty if it is not.
    """

    executed_s: float | None
    ideal_s: float
    algbw_Bps: float
    busbw_Bps: float
    chunks: int | None
    transfers: int
    utilisation: float
    cut_short: bool
    total_chunks: int = 0
    slowdown: str = ""

    @property
    def counted_s(self) -> float:
        """The time by which engines are compared: the executed time if it is known."""
        return self.ideal_s if self.executed_s is None else self.executed_s


@dataclass(frozen=True, slots=True)
class Candidate:
    """One engine's answer.

    Attributes:
        engine: Its name.
        schedule: What it returned. None if it failed; in a sweep, also if another one is better.
        ok: Whether the verifier found nothing wrong.
        note: Why there is no schedule, or which of its schedules were rejected; empty if all is well.
        seconds: How long the synthesis and the verification took.
        figures: The schedule in numbers; None if it failed.
        wrong: Whether the verifier rejected a schedule of this engine, which is a bug, or an algorithm that
            was passed in.
        consistent: Whether all NPUs end with identical bits, see :func:`tacos.verify`.
        found_by: The engine that made the schedule, which differs from `engine` for ``"auto"``; empty if it failed.
        beyond_target: Whether it uses sums in switches that the target cannot express, as the reference may.
    """

    engine: str
    schedule: Schedule | None
    ok: bool
    note: str
    seconds: float
    figures: Figures | None = None
    wrong: bool = False
    consistent: bool = True
    found_by: str = ""
    beyond_target: bool = False

    @property
    def name(self) -> str:
        """The engine's name in tables; that of ``"auto"`` names the engine that made its schedule.

        >>> Candidate("auto", None, True, "", 0.1, found_by="greedy").name
        'auto (greedy)'
        """
        return (
            self.engine
            if self.found_by in ("", self.engine)
            else f"{self.engine} ({self.found_by})"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of engines on one problem.

    Attributes:
        topology: The network.
        collective: The collective.
        candidates: The fastest first, then those that failed.
        bound_s: A time that no schedule beats.
        left_out: The engines that do not apply, each with what it needs.
        in_switch_bound_s: The bound that sums in switches would have, if the target cannot express them and they lower it.
    """

    topology: Topology
    collective: Collective
    candidates: tuple[Candidate, ...]
    bound_s: float = 0.0
    left_out: tuple[tuple[str, str], ...] = ()
    in_switch_bound_s: float | None = None

    @property
    def solved(self) -> tuple[Candidate, ...]:
        """The candidates whose schedules the verifier accepts, the fastest first."""
        return tuple(candidate for candidate in self.candidates if candidate.ok)

    @property
    def best(self) -> Schedule:
        """The fastest schedule that the verifier accepts."""
        for candidate in self.solved:
            if candidate.schedule is not None:
                return candidate.schedule
        raise InfeasibleError(f"no engine solved {self.collective!r}")

    def bound_of(self, candidate: Candidate) -> float:
        """Return the bound of what a candidate may use, in seconds: with sums in switches only if it uses them."""
        least_s = self.in_switch_bound_s
        return self.bound_s if least_s is None or not candidate.beyond_target else least_s

    def efficiency(self, candidate: Candidate) -> float | None:
        """Return the bound divided by the candidate's executed time (its own time if that is unknown); None if either is missing.

        The bound is that of what the candidate may use, see :meth:`bound_of`.
        """
        bound_s = self.bound_of(candidate)
        if candidate.figures is None or not bound_s or not candidate.figures.counted_s:
            return None
        # In whole picoseconds, so that the share is that of Schedule.efficiency to the last digit.
        return round(bound_s * 1e12) / round(candidate.figures.counted_s * 1e12)

    @property
    def reference(self) -> str:
        """The engine that represents what users run today: the first of :func:`tacos.synth.references` that solved the problem.

        On a network with faults, it is the faster of NCCL that searched again and NCCL that does not know of the faults.
        """
        solved = [candidate.engine for candidate in self.solved if candidate.engine in references()]
        rank = {name: ENGINES[name].reference for name in solved}
        return min(solved, key=lambda name: rank[name], default=references()[-1])

    def speed_up(self, over: str | None = None) -> float | None:
        """Return the speed of the best candidate relative to another engine; None if that engine was not compared.

        Args:
            over: The other engine; the :attr:`reference` if not given. Both times are of an ideal network, without
                NCCL's protocol overheads, which is in NCCL's favour.
        """
        over = self.reference if over is None else over
        other = next((c.figures for c in self.solved if c.engine == over), None)
        best = self.solved[0].figures if self.solved else None
        return other.counted_s / best.counted_s if other and best and best.counted_s else None

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per candidate, for tables, JSON and CSV; units are in the names."""
        return [
            {
                "collective": self.collective.label,
                "size_bytes": self.collective.size_bytes,
                "engine": candidate.engine,
                "ok": candidate.ok,
                "wrong": candidate.wrong,
                "consistent": candidate.consistent,
                "found_by": candidate.found_by,
                "note": candidate.note,
                "synthesis_s": candidate.seconds,
                "bound_s": self.bound_of(candidate),
                "efficiency": self.efficiency(candidate),
            }
            | (asdict(candidate.figures) if candidate.figures else {})
            for candidate in self.candidates
        ]

    def to_pandas(self) -> DataFrame:
        """Return a pandas DataFrame with the columns of :meth:`rows`, the fastest engine first; needs pandas."""
        return frames.from_rows(self.rows())

    def __str__(self) -> str:
        """Return the engines with their times, the fastest first, and the verdict.

        >>> import tacos
        >>> topo = tacos.topology.ring(4, bandwidth="1GB/s", latency="0ns")
        >>> coll = tacos.collective.all_gather(topo, "4MB", chunks=2)
        >>> print(tacos.compare(topo, coll, engines=["ring", "bidirectional-ring"]))
        all-gather of 4 MB on ring: 4 NPUs, 0 switches, 8 links
          bidirectional-ring   1.5 ms     100.0 % of the bound
          ring                 3 ms       50.0 % of the bound
        bidirectional-ring is the fastest: 1.5 ms, 100.0 % of the bound, 2.00 times as fast as ring.
        """
        size = format_size(self.collective.size_bytes)
        network = repr(self.topology).removeprefix("<tacos.Topology ").removesuffix(">")
        lines = [f"{self.collective.label} of {size} on {network}"]
        wide = max((len(candidate.name) for candidate in self.candidates), default=0)
        for candidate in self.candidates:
            took = candidate.note or "failed"
            if candidate.figures is not None:
                took = f"{format_time(candidate.figures.counted_s):<11}"
                if share := self.efficiency(candidate):
                    took += f"{100 * share:.1f} % of the bound"
            lines.append(f"  {candidate.name:<{wide}}   {took}".rstrip())
        return "\n".join([*lines, self.verdict()])

    def _repr_html_(self) -> str:
        return to_html(self)

    def verdict(self) -> str:
        """Return a sentence that names the fastest engine and its lead; if the target cannot express its sums in switches, one more.

        >>> import tacos
        >>> topo = tacos.topology.ring(4, bandwidth="1GB/s", latency="0ns")
        >>> coll = tacos.collective.all_gather(topo, "4MB", chunks=2)
        >>> print(tacos.compare(topo, coll, engines=["ring", "bidirectional-ring"]).verdict())
        bidirectional-ring is the fastest: 1.5 ms, 100.0 % of the bound, 2.00 times as fast as ring.
        """
        if not self.solved or self.solved[0].figures is None:
            size = format_size(self.collective.size_bytes)
            return f"No engine solved the {self.collective.label} of {size}."
        best = self.solved[0]
        words = [f"{best.name} is the fastest: {self._time_of(best)}"]
        if best.engine != self.reference and (factor := self.speed_up()):
            words.append(_times_as_fast(factor, factor, self.reference))
        sentence = ", ".join(words) + "."
        within = next((one for one in self.solved if not one.beyond_target), best)
        if within is best:
            return sentence
        return f"{sentence} {within.name} is the fastest for the target: {self._time_of(within)}."

    def _time_of(self, candidate: Candidate) -> str:
        """Return a candidate's time and its share of the bound, in words."""
        assert candidate.figures is not None
        took = format_time(candidate.figures.counted_s)
        if not (efficiency := self.efficiency(candidate)):
            return took
        with_sums = " with sums in switches" if candidate.beyond_target else ""
        return f"{took}, {100 * efficiency:.1f} % of the bound{with_sums}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A comparison of engines over several sizes; for each size, only the best schedule is kept."""

    topology: Topology
    comparisons: tuple[Comparison, ...]

    @property
    def engines(self) -> tuple[str, ...]:
        """All engines that solved some size, those that win most often first."""
        first = [name for _, _, name in self.winners()]
        names = dict.fromkeys(sorted(first, key=lambda name: -first.count(name)))
        return tuple(
            names | dict.fromkeys(c.engine for one in self.comparisons for c in one.solved)
        )

    @property
    def reference(self) -> str:
        """What users run today, as :attr:`Comparison.reference`, if it was compared at all sizes.

        Where that is the faster of two engines, and each is faster at some size, it is the first of them.
        """
        names = {one.reference for one in self.comparisons}
        ranks = {ENGINES[name].reference for name in names}
        return min(names, key=references().index) if len(ranks) == 1 else references()[-1]

    def speed_ups(self) -> list[float | None]:
        """Return :meth:`Comparison.speed_up` at each size; over the faster engine where two are the reference."""
        return [
            one.speed_up(over) for one, over in zip(self.comparisons, self._over(), strict=True)
        ]

    @property
    def compared_with(self) -> str:
        """The engine that :meth:`speed_ups` are over, or the engines where several are the fastest reference at some size."""
        names = set(self._over()) or {self.reference}
        return " or ".join(sorted(names, key=references().index))

    def _over(self) -> list[str]:
        rank = ENGINES[self.reference].reference
        return [
            one.reference if ENGINES[one.reference].reference == rank else self.reference
            for one in self.comparisons
        ]

    def winners(self) -> list[tuple[int, int, str]]:
        """Return ranges of sizes (the first, the last) in which one engine is the fastest.

        >>> import tacos
        >>> topo = tacos.topology.ring(8)
        >>> sizes = [tacos.collective.all_reduce(topo, size) for size in ("8KB", "80KB", "8MB")]
        >>> tacos.compare(topo, sizes, engines=["direct", "ring"]).winners()
        [(8000, 80000, 'direct'), (8000000, 8000000, 'ring')]
        """
        best = [(c.collective.size_bytes, c.solved[0].engine) for c in self.comparisons if c.solved]
        spans = [list(span) for _, span in groupby(best, key=lambda pair: pair[1])]
        return [(span[0][0], span[-1][0], span[0][1]) for span in spans]

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain dictionary per size and candidate, for tables, JSON and CSV."""
        return [row for comparison in self.comparisons for row in comparison.rows()]

    def to_pandas(self) -> DataFrame:
        """Return a pandas DataFrame with the columns of :meth:`rows`, size by size; needs pandas."""
        return frames.from_rows(self.rows())

    def __str__(self) -> str:
        """Return the fastest engine at each size, and the verdict."""
        if not self.comparisons:
            return self.verdict()
        lines = [f"{self.comparisons[0].collective.label}, {len(self.comparisons)} sizes"]
        for one in self.comparisons:
            best = one.solved[0] if one.solved else None
            words = f"  {format_size(one.collective.size_bytes):<10}"
            if best is None or best.figures is None:
                lines.append(f"{words}no engine solved it")
                continue
            words += f"{format_time(best.figures.counted_s):<10}{best.name}"
            share = one.efficiency(best)
            lines.append(words + (f", {100 * share:.1f} % of the bound" if share else ""))
        return "\n".join([*lines, self.verdict()])

    def _repr_html_(self) -> str:
        return to_html(self)

    def verdict(self) -> str:
        """Return the fastest engine at each size, in a sentence or two."""
        if not self.winners():
            return "No engine solved any of the sizes."
        spans = [
            f"{engine} at {format_size(low)}" + (f" to {format_size(high)}" if low < high else "")
            for low, high, engine in self.winners()
        ]
        words = f"The fastest: {', '.join(spans)}."
        factors = [factor for factor in self.speed_ups() if factor]
        if not factors or max(factors) == 1:
            return words
        ratio = _times_as_fast(min(factors), max(factors), self.compared_with)
        return f"{words} {ratio[0].upper()}{ratio[1:]}."


def _times_as_fast(low: float, high: float, reference: str) -> str:
    """Return a speed-up, or a range of them, in words.

    >>> _times_as_fast(1.001, 1.001, "nccl"), _times_as_fast(1.0, 2.5, "nccl")
    ('as fast as nccl', '1.00 to 2.50 times as fast as nccl')
    """
    texts = list(dict.fromkeys(f"{factor:.2f}" for factor in (low, high)))
    if texts == ["1.00"]:
        return f"as fast as {reference}"
    return f"{' to '.join(texts)} times as fast as {reference}"
