"""The problem of one call of :func:`tacos.search.synthesis.synthesize`, as all parts of the search see it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tacos.bound import Bound
from tacos.bound import bound as bound_of
from tacos.search.effort import LIMITS, Effort
from tacos.search.watch import TimeIsUp, Watch

if TYPE_CHECKING:
    from tacos._core import Collective, Topology
    from tacos.sketch import Sketch

__all__ = ["Question"]


@dataclass(slots=True)
class Question:
    """A problem and how hard to try.

    Attributes:
        topology: The network to search on.
        collective: The collective; its number of chunks may be open.
        seed: Random seed for engines that use one.
        effort: How hard to try.
        watch: The caller's time limit and progress.
        known_bound: The problem's bound, if it is known already.
        sketch: What the schedule may use.
        device: Where the verifier, and engines that can use a GPU, run.
        bounded: Whether no execution beats the bound. Programs whose messages share links do where schedules block them.
    """

    topology: Topology
    collective: Collective
    seed: int = 0
    effort: Effort = field(default_factory=lambda: Effort.of("normal"))
    watch: Watch = field(default_factory=lambda: Watch(None, None))
    known_bound: Bound | None = None
    sketch: Sketch | None = None
    device: str = "cpu"
    bounded: bool = True

    def __post_init__(self) -> None:
        if type(self.seed) is not int or not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be 0 to 2^63 - 1; got {self.seed!r}")

    @property
    def checks_on(self) -> str:
        """The device for the verifier: a GPU may find a schedule that it cannot check."""
        return "cpu" if self.device == "cpu" else "auto"

    @property
    def bound(self) -> Bound:
        """The time that no schedule of this problem beats, computed once; a quick one if the time limit passes meanwhile."""
        if self.known_bound is None:
            try:
                self.known_bound = bound_of(
                    self.topology, self.collective, progress=lambda _: self.watch.report(0.0)
                )
            except TimeIsUp:
                self.known_bound = bound_of(
                    self.topology,
                    self.collective,
                    quick=True,
                    progress=lambda _: self.watch.repeat(),
                )
        return self.known_bound

    def gap(self, time_ps: float) -> float:
        """Return the gap between a time and the bound, as a share of the time; 1 if the bound does not hold for executions."""
        if not self.bounded:
            return 1.0
        return 1 - self.bound.time_ps / max(time_ps, 1)

    def met(self, time_ps: float) -> bool:
        """Return whether a time counts as the bound's."""
        return time_ps < math.inf and self.gap(time_ps) <= LIMITS.met
