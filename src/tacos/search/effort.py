"""How hard a search tries: the work that each of its tasks may do, and the numbers that steer it.

Work is counted while it is done (``tacos._core.Meter``), in units of about a nanosecond of one core, never measured
or estimated. So a search has the same result on any machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacos.synth import ENGINES

if TYPE_CHECKING:
    from tacos._core import Topology
    from tacos.synth.engine import Engine

__all__ = ["LIMITS", "Effort", "Limits", "allowance", "exact_limits", "work"]

_EFFORTS: dict[str | int, float] = {"fast": 0.5, "normal": 1.0, "high": 32.0}
"""The named efforts as multiples of the normal one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers that steer a search; ``python -m benchmarks.answers`` chose them, for answers of about two seconds.

    Attributes:
        work: Units of work that each task gets at normal effort on up to `few` NPUs.
        few, many: Between these numbers of NPUs, work grows with their number; that of known algorithms, which are simple and many, with
            its square root.
        rounds: The work of the first rounds as powers of two, where that of normal effort is 1; from there on it doubles.
        latent: Ports are not matched if the bound's bandwidth part is less than this share of its latency part.
        first: The work of the first answer to a large problem, as a multiple of that of listing its transfers.
        refining: The work of refining after a round, as a multiple of a task's.
        refined: Number of answers that are refined after a round, none `hopeful` times as slow as the best.
        promising: An engine goes on with a variant in which its schedules are at most this many times as long as the best answer takes.
        met: Relative gap at which an answer counts as having reached the bound.
        near: The same on networks of more than `few` NPUs, up to normal effort, since each engine may take many seconds there.
        enough: Factor on an engine's best time within which it prefers fewer chunks, whose costs are partly outside the model.
        helps: A chunk count helps if it shortens the schedule by at least this factor.
        exact: Gap to the bound from which on engines that prove optima are asked.
        counts: The chunk counts to try.
        hop: Units of work per hop that refinement examines (``python -m benchmarks.work``).
        clock: Share of the remaining time for an engine that ends by the clock, so that its answer is there in time
            (``python -m benchmarks.deadlines``).
    """

    work: int = 500_000_000
    few: int = 64
    many: int = 2048
    rounds: tuple[int, ...] = (-11, -5, -1)
    latent: float = 0.1
    first: float = 4.0
    refining: float = 1.0
    refined: int = 4
    hopeful: float = 1.1
    promising: float = 1.3
    met: float = 0.001
    near: float = 0.005
    enough: float = 1.005
    helps: float = 1.005
    exact: float = 0.01
    counts: tuple[int, ...] = tuple(2**k for k in range(12))
    hop: int = 150
    clock: float = 0.8


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Effort:
    """An effort and what it allows. A larger effort does all that a smaller one does, and goes on.

    Attributes:
        given: The caller's value.
        doublings: How often work doubles after the round of normal effort; −1 for half of it.
    """

    given: str | int
    doublings: int

    @classmethod
    def of(cls, effort: str | int) -> Effort:
        """Read an effort: a name or a positive number, of which the largest power of two counts.

        >>> Effort.of("fast").doublings, Effort.of(1).doublings, Effort.of(5).units
        (-1, 0, 4.0)
        """
        units = _EFFORTS.get(effort, 0) if isinstance(effort, str) else effort
        if type(units) not in (int, float) or (not isinstance(effort, str) and units < 1):
            units = 0
        if not units or type(effort) is bool:
            names = ", ".join(str(name) for name in _EFFORTS)
            raise ValueError(f"effort must be one of {names}, or a positive number; got {effort!r}")
        return cls(effort, int(math.log2(units)))

    @property
    def units(self) -> float:
        """Work as a multiple of normal work."""
        return 2.0**self.doublings

    @property
    def trials(self) -> int:
        """Number of random starts."""
        return 1 << max(self.doublings, 0)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds of a search, as powers of two of normal work.

        >>> Effort.of("fast").rounds, Effort.of(4).rounds
        ((-11, -5, -1), (-11, -5, -1, 0, 1, 2))
        """
        return LIMITS.rounds + tuple(range(self.doublings + 1))


def work(topology: Topology, doublings: int) -> int:
    """Return the work that a task may do in a round.

    >>> import tacos
    >>> few, many = tacos.topology.ring(64), tacos.topology.ring(256)
    >>> work(many, 0) == 4 * work(few, 0) == 8 * work(few, -1)
    True
    """
    return int(LIMITS.work * _larger(topology) * 2.0**doublings)


def _larger(topology: Topology) -> float:
    return min(max(topology.npus, LIMITS.few), LIMITS.many) / LIMITS.few


def allowance(engine: Engine, topology: Topology, doublings: int, trial: int = 0) -> int:
    """Return the work that an engine's task may do in a round; less for known algorithms, and for random starts after the first.

    >>> import tacos
    >>> ring = tacos.topology.ring(8)
    >>> allowance(ENGINES["greedy"], ring, 2) > allowance(ENGINES["greedy"], ring, 2, trial=1)
    True
    """
    units = work(topology, min(doublings, 0) if trial else doublings)
    return int(units * _larger(topology) ** -0.5) if engine.baseline else units


def exact_limits(engine: str, effort: str | int) -> dict[str, Any]:
    """Return the options that limit an exact engine's work to an effort; none for other engines.

    >>> exact_limits("milp", "normal")
    {'columns': 1500, 'nodes': 50}
    """
    exact = ENGINES[engine].exact
    return {} if exact is None else exact.limits(min(Effort.of(effort).units, 8.0))
