"""The work that a search may spend, counted in microseconds of one slow core.

Work is estimated from the problem (:mod:`tacos.synth.estimates`), never measured, so that a search has the same result on any
machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacos.synth import ENGINES

if TYPE_CHECKING:
    from tacos.search.judging import Answer
    from tacos.search.question import Question
    from tacos.synth.engine import Engine

__all__ = [
    "MET",
    "NORMAL_WORK",
    "SEARCH_TRANSFERS",
    "WORTH_ALL",
    "Budget",
    "Effort",
    "exact_limits",
]

_EFFORTS: dict[str | int, int] = {"fast": 1, "normal": 1, "high": 8}
_FAST = 0.1
"""Share of normal effort that ``"fast"`` is."""
_CHUNK_COUNTS = tuple(2**k for k in range(10))
NORMAL_WORK = 10_000_000
"""Microseconds of work, about, that ``"auto"`` may spend per unit of effort."""
SEARCH_TRANSFERS = 300_000
"""The chunk search stops before schedules of more transfers than this, which take seconds each."""
MET = 0.001
"""A schedule this close to the bound has met it."""
WORTH_ALL = 0.01
"""With this much more to gain, all of the work is worth it; with half of it, half of the work."""
_GOOD_ENOUGH = 1.005
"""Few chunks that take up to this much longer than many are better; not so with more effort."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What an effort stands for.

    Attributes:
        given: As the caller gave it.
        trials: Random starts.
        work: Microseconds of work.
        counts: The chunk counts to search.
        enough: Times the best time, within which fewer chunks are preferred.
    """

    given: str | int
    trials: int
    work: float
    counts: tuple[int, ...]
    enough: float

    @classmethod
    def of(cls, effort: str | int) -> Effort:
        """Read an effort: a name or a positive number.

        >>> Effort.of("fast").work
        1000000.0
        """
        trials = _EFFORTS.get(effort, effort) if isinstance(effort, str) else effort
        if type(trials) is not int or trials < 1:
            names = ", ".join(str(name) for name in _EFFORTS)
            raise ValueError(f"effort must be one of {names}, or a positive number; got {effort!r}")
        fast = effort == "fast"
        return cls(
            given=effort,
            trials=trials,
            work=NORMAL_WORK * trials * (_FAST if fast else 1.0),
            counts=_CHUNK_COUNTS[::2] if fast else _CHUNK_COUNTS,
            enough=_GOOD_ENOUGH if trials == 1 else 1 + MET,
        )


def exact_limits(engine: str, effort: str | int) -> dict[str, Any]:
    """Return the options that limit an exact engine's work to an effort; none for other engines.

    >>> exact_limits("milp", "normal")
    {'columns': 1500, 'nodes': 50}
    """
    exact = ENGINES[engine].exact
    return {} if exact is None else exact.limits(Effort.of(effort).work / NORMAL_WORK)


class Budget:
    """The work of one search: what engines will take, what they took, and what the answer is worth.

    Attributes:
        total: What may be spent.
        used: What was spent.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.total = question.effort.work
        self.used = 0.0

    def expected(self, engine: Engine) -> float:
        """Return the work of an engine that tries all chunk counts it may try."""
        topology, collective = self.question.topology, self.question.collective
        repeats = self.question.effort.trials if engine.random_starts else 1
        if collective.resolved:
            return repeats * engine.work(topology, collective, False)
        total = 0.0
        for count in self.question.effort.counts:
            cut = collective.with_chunks(count)
            total += repeats * engine.work(topology, cut, total > 0)
            if 2 * engine.stored(topology, cut) > SEARCH_TRANSFERS:
                break
        return total

    def spent(self, answer: Answer) -> float:
        """Return the work behind an engine's answer."""
        engine, collective = ENGINES[answer.schedule.engine], self.question.collective
        repeats = self.question.effort.trials if engine.random_starts else 1
        cuts = map(collective.with_chunks, answer.counts) if answer.counts else [collective]
        return sum(
            repeats * engine.work(self.question.topology, cut, i > 0) for i, cut in enumerate(cuts)
        )

    def worth(self, best_ps: int | None) -> float:
        """Return the work that may be spent in all: the closer the best time is to the bound, the less."""
        if best_ps is None:
            return math.inf
        return self.total * min(max((self.question.gap(best_ps) - MET) / WORTH_ALL, 0.0), 1.0)
