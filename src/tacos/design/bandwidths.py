"""How to spend bandwidth over the dimensions of a network: :func:`optimize`.

The time of a step is convex in the bandwidths (:mod:`tacos.design.convex`), so the optimum is found and proven. Time times
cost is not convex. But the least time T(C) of a network that costs at most C is a convex, falling function of C. So
each evaluated point gives a line below T, and two neighbouring lines give a lower bound of ``C T(C)`` between their points. The search
continues where this bound is least, until the gap is closed. This works with any constraints; the problem is also a
geometric program, but only if the budget is the only equality.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from tacos import units
from tacos._support.solver import LinearProgram, solve
from tacos.design.constraints import Limits, dollars, limits
from tacos.design.convex import LEAST, LeastTime
from tacos.design.dimensions import dimensions, prices
from tacos.design.workloads import jobs_of
from tacos.errors import TacosError, check_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from tacos.design.convex import Optimum, Timing
    from tacos.design.dimensions import Cost, Dimension, Dimensions
    from tacos.design.jobs import Overlap, Timed
    from tacos.design.workloads import Work

    Floats: TypeAlias = NDArray[np.float64]

__all__ = ["Design", "Sensitivity", "optimize"]

Objective: TypeAlias = Literal["time", "time*cost"]

_GAP = 1e-9
"""Relative gap at which the search over the cost stops (chosen)."""
_POINTS = 120
"""Most costs that the search evaluates; 20 to 60 are usual."""
_FALSE_POSITIONS = 30
"""Most costs that are evaluated to find where the slope of the product is zero; six are usual."""
_EVEN = 1e-9
"""Relative surplus of a bandwidth that counts as zero."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The time that a little more bandwidth or money saves, in seconds of the summed time, to first order.

    Attributes:
        dimensions: Seconds saved by one more GB/s in each dimension, at no cost.
        dollars: Seconds saved by one more dollar spent in each dimension.
        constraints: Seconds saved by raising the right-hand side of each constraint by one GB/s, or by one dollar
            if it limits the cost; negative if that takes more time.
    """

    dimensions: dict[str, float]
    dollars: dict[str, float]
    constraints: dict[str, float]

    @property
    def best(self) -> str:
        """The dimension in which a dollar saves the most time."""
        return max(self.dollars, key=lambda name: self.dollars[name])


@dataclass(frozen=True, slots=True)
class Design:
    """The best bandwidths for some jobs.

    Attributes:
        dims: Dimensions of the network.
        bandwidths_Bps: Bandwidth of each dimension, per NPU, in bytes per second.
        time_s: Total time of all jobs, multiplied by their weights.
        cost: Cost of the network in dollars.
        objective: ``"time"`` or ``"time*cost"``.
        lower_bound: Lower bound of the objective within the constraints.
        sensitivity: The time that more bandwidth or money would save.
        times: Seconds of each job.
        even: Time and cost of the same total bandwidth spread evenly; None if there is no such total, or it breaks a constraint.
    """

    dims: tuple[Dimension, ...]
    bandwidths_Bps: tuple[float, ...]
    time_s: float
    cost: float
    objective: Objective
    lower_bound: float
    sensitivity: Sensitivity
    times: dict[str, float]
    even: tuple[float, float] | None

    @property
    def value(self) -> float:
        """Value of the objective: seconds, or seconds times dollars."""
        return self.time_s * (self.cost if self.objective == "time*cost" else 1.0)

    @property
    def gap(self) -> float:
        """Relative distance of the lower bound from the value."""
        return max(1 - self.lower_bound / self.value, 0.0) if self.value else 0.0

    @property
    def speed_up(self) -> float | None:
        """Speedup over the even spread."""
        return None if self.even is None else self.even[0] / self.time_s

    @property
    def gain(self) -> float | None:
        """Factor by which time times cost is lower than that of the even spread."""
        return None if self.even is None else math.prod(self.even) / (self.time_s * self.cost)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of plain values per dimension, for tables, CSV and JSON.

        >>> from tacos.design import Call, TrainingJob
        >>> best = optimize("ring:4*switch:8", [TrainingJob((Call("all-reduce", 10**9),))], budget="100GB/s")
        >>> [(row["dimension"], round(row["bandwidth_Bps"] / 1e9, 2)) for row in best.rows()]
        [('d0', 77.42), ('d1', 22.58)]
        """
        return [
            {
                "dimension": one.name,
                "kind": one.kind,
                "size": one.size,
                "tier": one.tier,
                "bandwidth_Bps": bandwidth,
                "saved_s_per_GBps": self.sensitivity.dimensions[one.name],
                "saved_s_per_dollar": _finite(self.sensitivity.dollars[one.name]),
            }
            for one, bandwidth in zip(self.dims, self.bandwidths_Bps, strict=True)
        ]


def optimize(
    dims: Dimensions,
    workloads: Work | Iterable[Work],
    *,
    budget: units.Quantity | None = None,
    objective: Objective = "time",
    cost: Cost = None,
    constraints: Iterable[str] = (),
    overlap: Overlap = "none",
    weights: Sequence[float] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Design:
    """Find the bandwidth of each dimension that makes some jobs fastest, or fastest per dollar.

    Args:
        dims: The network: a spec such as ``ring:4*fc:8*switch:32``, LIBRA's network file, a topology with
            dimensions, or a list of :class:`~tacos.design.dimensions.Dimension` or (kind, size), the innermost first.
        workloads: One or several: jobs (:class:`~tacos.design.jobs.TrainingJob`, :func:`~tacos.design.libra.libra`, a job file), `tacos.Workload`, prefixes of Chakra traces,
            training steps. Their times are added up.
        budget: Total bandwidth per NPU, such as ``"1000GB/s"``, which is spent in full; or the largest cost, such as ``"$20M"``.
        objective: ``"time"`` or ``"time*cost"``.
        cost: Prices: LIBRA's cost file, prices by tier, or dollars per GB/s for each dimension; by default LIBRA's.
        constraints: Such as ``"d0 >= d1"``, ``"d2 + d3 == 200GB/s"``, ``"cost <= $20M"``.
        overlap: Whether computation hides communication: ``"none"`` (LIBRA), ``"background"`` or ``"full"``, see
            :meth:`~tacos.design.jobs.TrainingJob.timing`.
        weights: Number of runs of each job; 1 by default.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: The constraints contradict each other; the message names the smallest set that does.
        ValueError: An argument is wrong, or nothing limits the bandwidth.

    >>> from tacos.design import Call, Compute, TrainingJob
    >>> step = TrainingJob((Compute(10e-3), Call("all-reduce", 10**9)))
    >>> best = optimize("ring:4*switch:8", step, budget="100GB/s", constraints=["d0 <= 2 * d1"])
    >>> [round(x / 1e9, 2) for x in best.bandwidths_Bps], round(best.time_s * 1e3, 3)
    ([66.67, 33.33], 32.5)
    """
    if objective not in ("time", "time*cost"):
        raise ValueError(f'objective must be "time" or "time*cost"; got {objective!r}')
    network = dimensions(dims)
    jobs = jobs_of(workloads)
    price = prices(network, cost)
    timings: list[Timing] = []
    names: list[str] = []
    for i, one in enumerate(jobs):
        timing, often = one.timing(network, overlap=overlap), _weight(weights, i, len(jobs))
        timings.append(_weighted(timing, often))
        names.append(_name(one, names))
    rows = limits(_texts(budget, constraints), network, price)
    search = _Search(network, timings, rows, price, progress)
    found = search.least_time() if objective == "time" else search.least_product()
    best, lower_bound = found
    x = best.bandwidths
    return Design(
        dims=network,
        bandwidths_Bps=tuple(x.tolist()),
        time_s=search.program.seconds(x),
        cost=float(price @ x),
        objective=objective,
        lower_bound=lower_bound,
        sensitivity=_sensitivity(network, rows, price, best),
        times={
            name: timing.seconds(x) / _weight(weights, i, len(jobs))
            for i, (name, timing) in enumerate(zip(names, timings, strict=True))
        },
        even=search.even(budget),
    )


def _finite(value: float) -> float | None:
    """Return the value, or None if it is infinite, since JSON has no infinity."""
    return value if math.isfinite(value) else None


def _name(one: Timed, before: Sequence[str]) -> str:
    name = base = str(getattr(one, "name", "job"))
    number = 2
    while name in before:
        name, number = f"{base} {number}", number + 1
    return name


def _weight(weights: Sequence[float] | None, i: int, count: int) -> float:
    if weights is None:
        return 1.0
    if len(weights) != count:
        raise ValueError(f"weights has {len(weights)} entries for {count} jobs")
    if not 0 < weights[i] < math.inf:
        raise ValueError(f"weights[{i}] must be positive; got {weights[i]!r}")
    return float(weights[i])


def _weighted(timing: Timing, often: float) -> Timing:
    from tacos.design.convex import Timing

    return Timing(timing.messages, timing.fixed * often, timing.counts * often)


def _texts(budget: units.Quantity | None, constraints: Iterable[str]) -> list[str]:
    texts = [constraints] if isinstance(constraints, str) else [*constraints]
    for text in texts:
        check_type("a constraint", text, str)
    if budget is None:
        return texts
    if isinstance(budget, str) and budget.strip().startswith("$"):
        dollars(budget)
        return [f"cost <= {budget.strip()}", *texts]
    total = units.bandwidth_Bps(budget, what="budget", bare=False)
    return [f"total == {units.bandwidth_text(total)}", *texts]


def _sensitivity(
    network: Sequence[Dimension], rows: Limits, price: Floats, best: Optimum
) -> Sensitivity:
    raised: dict[str, float] = {}
    for text, value in zip(rows.texts, best.prices, strict=False):
        raised[text] = raised.get(text, 0.0) + float(value) * (1.0 if "cost" in text else 1e9)
    return Sensitivity(
        {one.name: float(w * 1e9) for one, w in zip(network, best.worth, strict=True)},
        {
            one.name: float(w / c) if c else math.inf if w else 0.0
            for one, w, c in zip(network, best.worth, price, strict=True)
        },
        {text: value + 0.0 for text, value in raised.items()},
    )


class _Search:
    """The bandwidths of one problem."""

    def __init__(
        self,
        network: Sequence[Dimension],
        timings: Sequence[Timing],
        rows: Limits,
        price: Floats,
        progress: Callable[[float], object] | None,
    ) -> None:
        self.network, self.rows, self.price, self.timings = network, rows, price, timings
        self.progress = progress or (lambda _: None)
        used = np.zeros(len(network))
        for timing in timings:
            used[(timing.messages > 0).any(axis=0)] = 1.0
        if not used.any():
            raise ValueError(
                "the jobs communicate in no dimension, so no bandwidth makes them faster"
            )
        self.used = used
        # The cost as a row, in its own units, for the search over the cost.
        self.matrix = np.concatenate([rows.rows, price[None, :]])
        self.low = np.append(rows.lower, -np.inf)
        self.high = np.append(rows.upper, np.inf)
        conflict = rows.conflict(used)
        if conflict is not None:
            raise conflict
        self.program = LeastTime(timings, self.matrix, self.low, self.high, self._start())

    def _start(self) -> Floats:
        """Return bandwidths within the limits whose smallest value is as large as possible."""
        most = self._linear(-self.used)
        if most is None:
            free = [one.name for d, one in enumerate(self.network) if self.used[d]]
            raise ValueError(
                f"nothing limits the bandwidth of {' and '.join(free)} together; give a budget such as 1000GB/s or $20M"
            )
        fair = self._fair()
        for d in np.flatnonzero(self.used).tolist():
            if fair[d] <= 0:
                raise ValueError(
                    f"the constraints leave no bandwidth for {self.network[d].name}, which the jobs use; relax them"
                )
        positive = fair[fair > 0]
        return np.where(fair > 0, fair, positive.min() if len(positive) else 1.0)

    def _scale(self) -> tuple[Floats, float]:
        scale = np.maximum(np.abs(self.matrix).max(axis=1), 1e-300)
        ends = np.concatenate([self.low / scale, self.high / scale])
        ends = np.abs(ends[np.isfinite(ends)])
        return scale, float(ends.max(initial=0.0)) or 1.0

    def _linear(self, cost: Floats, least: Floats | float = 0.0) -> Floats | None:
        """Return the x that minimizes ``cost @ x`` within the limits and is at least `least`; None if there is no minimum."""
        scale, unit = self._scale()
        at, column = np.nonzero(self.matrix)
        found = solve(
            LinearProgram(
                cost=cost / max(float(np.abs(cost).max()), 1e-300),
                entries=(at, column, self.matrix[at, column] / scale[at]),
                row_lower=self.low / scale / unit,
                row_upper=self.high / scale / unit,
                lower=np.broadcast_to(least, len(cost)) / unit,
            ),
            tolerance=1e-10,
        )
        if found.status == "unbounded":
            return None
        if found.values is None:
            raise TacosError(f"the linear solver gave up on the constraints: {found.status}")
        return found.values * unit

    def _fair(self) -> Floats:
        """Return the x that maximizes the smallest used bandwidth, then the sum."""
        scale, unit = self._scale()
        dims = len(self.network)
        at, column = np.nonzero(self.matrix)
        used = np.flatnonzero(self.used)
        first = len(self.matrix)
        found = solve(
            LinearProgram(
                cost=np.append(np.zeros(dims), -1.0),
                entries=(
                    np.concatenate(
                        [at, first + np.arange(len(used)), first + np.arange(len(used))]
                    ),
                    np.concatenate([column, used, np.full(len(used), dims)]),
                    np.concatenate(
                        [
                            self.matrix[at, column] / scale[at],
                            np.ones(len(used)),
                            -np.ones(len(used)),
                        ]
                    ),
                ),
                row_lower=np.append(self.low / scale / unit, np.zeros(len(used))),
                row_upper=np.append(self.high / scale / unit, np.full(len(used), np.inf)),
                upper=np.append(np.full(dims, np.inf), 1e12),
            ),
            tolerance=1e-10,
        )
        if found.values is None:
            raise TacosError(f"the linear solver gave up on the constraints: {found.status}")
        values = found.values[:dims] * unit
        values[values < 1e-9 * values.max(initial=0.0)] = 0.0
        return values

    def even(self, budget: units.Quantity | None) -> tuple[float, float] | None:
        """Return time and cost if the budget is spread evenly."""
        if budget is None or (isinstance(budget, str) and budget.strip().startswith("$")):
            return None
        x = np.full(len(self.network), units.bandwidth_Bps(budget) / len(self.network))
        return self.program.seconds(x), float(self.price @ x)

    def least_time(self) -> tuple[Optimum, float]:
        best = self.program.solve()
        self.progress(1.0)
        return self._cheapest(best), best.lower_s

    def _cheapest(self, best: Optimum) -> Optimum:
        """Keep the times at the least cost: move bandwidth that no operation needs to where it is cheapest."""
        x, need = best.bandwidths, np.zeros(len(best.bandwidths))
        for timing in self.timings:
            with np.errstate(divide="ignore", invalid="ignore"):
                times = np.where(timing.messages > 0, timing.messages / x, 0.0).max(
                    axis=1, initial=0.0
                )
                needs = np.where(timing.messages > 0, timing.messages / times[:, None], 0.0)
            need = np.maximum(need, needs.max(axis=0, initial=0.0))
        if (x <= need * (1 + _EVEN)).all():
            return best
        moved = self._linear(self.price, np.minimum(need, x) * (1 - 1e-13))
        if moved is None or self.price @ moved >= (self.price @ x) * (1 - 1e-12):
            return best
        moved = np.maximum(moved, need)
        if self.program.seconds(moved) > best.time_s * (1 + 1e-12):
            return best
        return type(best)(moved, self.program.seconds(moved), best.lower_s, best.prices, best.worth)

    def least_product(self) -> tuple[Optimum, float]:
        """Minimise time times cost: branch on the cost, with bounds from the lines of evaluated points."""
        cheapest = self._linear(self.price, LEAST * self.used * self.program.unit)
        floor = 0.0 if cheapest is None else float(self.price @ cheapest)
        top = self._cheapest(self.program.solve())
        ceiling = float(self.price @ top.bandwidths)
        if floor <= 1e-7 * ceiling:
            raise ValueError(
                "time*cost has no minimum where a network may have almost no bandwidth: give a total bandwidth as "
                "budget, or a constraint such as total >= 100GB/s"
            )
        row = len(self.matrix) - 1
        points: list[_Point] = []

        def evaluate(at: float) -> _Point:
            self.program.limit(row, at)
            found = self.program.solve()
            point = _Point(at, found, max(float(found.prices[row]), 0.0))
            points.append(point)
            points.sort(key=lambda one: one.cost)
            return point

        evaluate(ceiling)
        bound = 0.0
        for _ in range(_POINTS):
            where, bound = _least_of_lines(points, floor)
            best = min(points, key=lambda point: point.value)
            gap = max(1 - bound / best.value, 0.0)
            if gap <= _GAP:
                break
            self.progress(min(1.0, math.log(max(gap, _GAP)) / math.log(_GAP)))
            if where <= floor * (1 + 1e-12):  # a dimension may have no bandwidth left there
                where = floor + 0.5 * (points[0].cost - floor)
            if min(abs(where - point.cost) for point in points) <= 1e-13 * ceiling:
                break  # the lines are as close as rounding allows
            try:
                evaluate(where)
            except TacosError:  # next to the lowest cost, rounding decides what can be built
                break
        self._descend(points, evaluate)
        best = min(points, key=lambda point: point.value)
        bound = max(bound, _least_of_lines(points, floor)[1])
        self.progress(1.0)
        return self._cheapest(best.found), min(bound, best.value)

    @staticmethod
    def _descend(points: list[_Point], evaluate: Callable[[float], _Point]) -> None:
        """Find the cost at which the slope of the product is zero; closing the gap alone gives it less precisely.

        The slope is monotonic next to the minimum, so use false position between the neighbours, with the Illinois rule.
        """
        at = points.index(min(points, key=lambda point: point.value))
        low, high = points[max(at - 1, 0)], points[min(at + 1, len(points) - 1)]
        a, b = low.slope, high.slope
        if not a < 0 < b:
            return
        side = 0
        for _ in range(_FALSE_POSITIONS):
            where = (low.cost * b - high.cost * a) / (b - a)
            if not low.cost < where < high.cost or high.cost - low.cost <= 1e-12 * high.cost:
                return
            point = evaluate(where)
            if abs(point.slope) <= 1e-12 * point.found.time_s:
                return
            if point.slope < 0:
                low, a, b = point, point.slope, b / 2 if side < 0 else b
                side = -1
            else:
                high, b, a = point, point.slope, a / 2 if side > 0 else a
                side = 1


@dataclass(frozen=True, slots=True)
class _Point:
    """The least time of a network that costs at most `cost`, and the seconds that each further dollar saves (`price`)."""

    cost: float
    found: Optimum
    price: float

    @property
    def value(self) -> float:
        return self.cost * self.found.time_s

    @property
    def slope(self) -> float:
        """Derivative of cost times time by the cost."""
        return self.found.time_s - self.cost * self.price

    def line(self, cost: float) -> float:
        """Return a lower bound of the time at this cost, since the time is convex in the cost."""
        return self.found.lower_s - self.price * (cost - self.cost)


def _least_of_lines(points: Sequence[_Point], floor: float) -> tuple[float, float]:
    """Return the cost that minimizes cost times the largest line, and the minimum.

    A cost times a falling line is concave, so the minimum is at the lowest cost, at a point, or where two neighbouring lines meet.
    """
    candidates = [(floor * max(points[0].line(floor), 0.0), floor)]
    for left, right in itertools.pairwise(points):
        steep, meet = left.price - right.price, 0.5 * (left.cost + right.cost)
        if steep > 0:
            difference = left.line(left.cost) - right.line(left.cost)
            meet = min(max(left.cost + difference / steep, left.cost), right.cost)
        candidates.append((meet * max(left.line(meet), right.line(meet)), meet))
    candidates += [(point.cost * point.found.lower_s, point.cost) for point in points]
    value, where = min(candidates)
    return where, value
