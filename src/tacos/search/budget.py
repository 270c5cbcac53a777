"""The work that a search may spend, counted in microseconds of one slow core.

Work is estimated from the problem (:mod:`tacos.synth.estimates`), never measured, so that a search has the same result on any
machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacos.collective import kind_of
from tacos.synth import ENGINES

if TYPE_CHECKING:
    from tacos._core import Collective
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

_EFFORTS: dict[str | int, tuple[int, float]] = {
    "fast": (1, 0.4),
    "normal": (1, 1.0),
    "high": (8, 40.0),
}
"""The named efforts: random starts, and work as a multiple of normal work. A number sets both."""
_CHUNK_COUNTS = tuple(2**k for k in range(10))
NORMAL_WORK = 2_000_000
"""Approximate microseconds of work that ``"auto"`` may spend per unit of effort on up to 64 NPUs."""
_SMALL, _MOST_FACTOR = 64, 5.0
"""Above this number of NPUs, work grows with the square of their number, by at most this factor."""
SEARCH_TRANSFERS = 300_000
"""The chunk search stops before schedules of more transfers than this, which take seconds each."""
MET = 0.001
"""Relative gap at which a schedule counts as having reached the bound."""
WORTH_ALL = 0.01
"""Possible gain for which all of the work is spent; smaller gains get proportionally less."""
_GOOD_ENOUGH = 1.005
"""Factor on the best time within which fewer chunks are preferred, at normal effort."""
_REVERSED, _JOINED, _PLAIN = 1.6, 2.0, 0.5
"""Factors on the time of an engine and of executions for sums, for sums that are also spread, and without switches (measured)."""
_RUN_US = 1.5
"""Microseconds per transfer to execute a schedule once, under one rule (measured)."""


@dataclass(frozen=True, slots=True)
class Effort:
    """An effort and what it allows.

    Attributes:
        given: The caller's value.
        trials: Number of random starts.
        units: Work as a multiple of normal work.
        counts: The chunk counts to search.
        enough: Factor on the best time within which fewer chunks are preferred.
    """

    given: str | int
    trials: int
    units: float
    counts: tuple[int, ...]
    enough: float

    @classmethod
    def of(cls, effort: str | int) -> Effort:
        """Read an effort: a name or a positive number.

        >>> Effort.of("fast").units
        0.4
        """
        trials, units = (
            _EFFORTS.get(effort, (effort, effort)) if isinstance(effort, str) else (effort, effort)
        )
        if type(trials) is not int or trials < 1:
            names = ", ".join(str(name) for name in _EFFORTS)
            raise ValueError(f"effort must be one of {names}, or a positive number; got {effort!r}")
        return cls(
            given=effort,
            trials=trials,
            units=float(units),
            counts=_CHUNK_COUNTS[::2] if effort == "fast" else _CHUNK_COUNTS,
            enough=_GOOD_ENOUGH if trials == 1 else 1 + MET,
        )


def exact_limits(engine: str, effort: str | int) -> dict[str, Any]:
    """Return the options that limit an exact engine's work to an effort; none for other engines.

    >>> exact_limits("milp", "normal")
    {'columns': 1500, 'nodes': 50}
    """
    exact = ENGINES[engine].exact
    wanted = Effort.of(effort)
    return {} if exact is None else exact.limits(min(wanted.units, wanted.trials))


class Budget:
    """The work of one search: estimates of runs, the work spent, and the work that may be spent.

    Attributes:
        total: Work that may be spent.
        used: Work that was spent.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        larger = min(max((question.topology.npus / _SMALL) ** 2, 1.0), _MOST_FACTOR)
        self.total = question.effort.units * NORMAL_WORK * larger
        self.used = 0.0
        parts = question.collective.parts
        joined = any(kind_of(part).two_phases for part in parts)
        self._rate = _JOINED if joined else _REVERSED if any(part.sums for part in parts) else 1.0
        self._rate *= 1.0 if question.topology.switches else _PLAIN

    def run(self, engine: Engine, cut: Collective, again: bool) -> float:
        """Return the work of one run of an engine; `again` if it has run before with other chunks."""
        repeats = self.question.effort.trials if engine.random_starts else 1
        return repeats * self._rate * engine.work(self.question.topology, cut, again)

    def expected(self, engine: Engine) -> float:
        """Return the work after which a chunk search knows whether the engine is hopeless."""
        collective = self.question.collective
        if collective.resolved:
            return self.run(engine, collective, False)
        first = self.run(engine, collective.with_chunks(1), False)
        return first + self.run(engine, collective.with_chunks(2), True)

    def allowance(self, best_ps: float, share: float) -> float:
        """Return the amount of used work up to which one engine may continue, given its share of the rest."""
        return self.used + share * (min(self.worth(best_ps), self.total) - self.used)

    def executed(self, answer: Answer) -> float:
        """Return the work of the executions of a schedule."""
        return _RUN_US * answer.runs * answer.schedule.transfers

    def worth(self, best_ps: float) -> float:
        """Return the work that may be spent in all: the closer the best time is to the bound, the less."""
        if best_ps == math.inf:
            return math.inf
        return self.total * min(max((self.question.gap(best_ps) - MET) / WORTH_ALL, 0.0), 1.0)
