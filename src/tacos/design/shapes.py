"""Shapes: all ways to build a network of N NPUs from rings, cliques and switches, and the best for each budget.

Time and cost follow :func:`tacos.design.bandwidths.optimize`, but here the kind of a dimension affects the time too:

- a hop takes the latency of a link; a ring of n takes n // 2 hops, a clique one, a switch two;
- an all-to-all sends its bytes over several links of a ring: ``n**2 // 4`` of n parts instead of n - 1;
- a group with only some of a dimension's NPUs has only some of its links: part of a ring is a line, with half the bandwidth, or
  a sparse ring that shares links with other groups; k of a clique's n NPUs have k - 1 of n - 1 links.

If only the cost C is limited, the least time is ``F + G / C``. F and bounds of G are computed for thousands of shapes at once. So for each
budget only the shapes that may win are solved exactly, the most promising first, until no other shape can win.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product as combinations
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tacos import units
from tacos.design.constraints import dollars
from tacos.design.convex import LeastTime
from tacos.design.dimensions import TIERS, Dimension, cost_model, link_speeds, ports_of, prices
from tacos.design.finalists import Finalist, evaluated
from tacos.design.jobs import (
    Call,
    Group,
    TrainingJob,
    crossed,
    messages,
    serial_timing,
    spread,
    strides_of,
)
from tacos.design.models import ModelJob
from tacos.design.workloads import jobs_of
from tacos.workers import Dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from numpy.typing import NDArray

    from tacos.design.convex import Timing
    from tacos.design.dimensions import Cost, Price
    from tacos.design.jobs import Overlap
    from tacos.design.workloads import Work

    Floats: TypeAlias = NDArray[np.float64]

__all__ = ["NetworkFront", "Shape", "shapes"]

EXTENTS: Mapping[str, float] = {
    "InterChiplet": 4,
    "InterPackage": 32,
    "InterNode": 128,
    "InterPod": math.inf,
}
"""Most NPUs of a package, a node, a pod and a cluster, from LIBRA's network of 4,096 NPUs."""
_POINTS = 13
"""Default number of budgets: from 1/16 of the largest to the largest, three per doubling."""
_SPAN = 16.0
_PASSES = 60
"""Multiplicative updates for the bounds of all shapes."""
_MOST_SHAPES = 2_000_000
_KINDS = ("ring", "clique", "switch")


@dataclass(frozen=True, slots=True)
class Shape:
    """The best network at one budget.

    Attributes:
        dims: Its dimensions, the innermost first.
        bandwidths_Bps: Bandwidth of each dimension, per NPU.
        cost: Cost in dollars.
        time_s: Total time of all jobs, by the model.
        lower_bound_s: Lower bound of the time of any shape within the limits at this cost.
        synthesized_s: Total time with the executed times of synthesized collectives, or of training steps for models; None if
            it was not requested.
        nccl_s: Time of the training steps with stock NCCL; None if it was not requested, or if jobs do not train models.
        note: Why such times are missing.
    """

    dims: tuple[Dimension, ...]
    bandwidths_Bps: tuple[float, ...]
    cost: float
    time_s: float
    lower_bound_s: float
    synthesized_s: float | None = None
    nccl_s: float | None = None
    note: str = ""

    @property
    def spec(self) -> str:
        """The network as a spec with its speeds, for ``tacos topo``."""
        return "*".join(
            f"{'fc' if one.kind == 'clique' else one.kind}:{one.size}@{link / 1e9:.6g}GB/s"
            for one, link in zip(
                self.dims, link_speeds(self.dims, self.bandwidths_Bps), strict=True
            )
        )

    @property
    def label(self) -> str:
        """The kinds and sizes without speeds."""
        return "*".join(
            f"{'fc' if one.kind == 'clique' else one.kind}:{one.size}" for one in self.dims
        )


@dataclass(frozen=True, slots=True)
class NetworkFront:
    """The best networks from the cheapest to the fastest.

    Attributes:
        points: One for each budget.
        shapes: Number of shapes within the limits.
        solved: Number of shapes, summed over budgets, whose bandwidths were computed; bounds exclude the others.
        runners_up: The next best shapes at the largest budget.
    """

    points: tuple[Shape, ...]
    shapes: int
    solved: int
    runners_up: tuple[Shape, ...] = field(default=())

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of plain values per point, for tables, CSV and JSON."""
        return [_row(point) for point in self.points]


def _row(point: Shape) -> dict[str, Any]:
    return {
        "cost": point.cost,
        "time_s": point.time_s,
        "nccl_s": point.nccl_s,
        "synthesized_s": point.synthesized_s,
        "gap": max(1 - point.lower_bound_s / point.time_s, 0.0),
        "shape": point.label,
        "bandwidths_Bps": list(point.bandwidths_Bps),
        "spec": point.spec,
    }


def shapes(
    npus: int,
    workloads: Work | Iterable[Work],
    *,
    budget: str,
    points: int = _POINTS,
    max_dims: int = 4,
    kinds: Iterable[str] = _KINDS,
    ports: int | None = None,
    radix: int | None = None,
    bandwidth: units.Quantity | None = None,
    cost: Cost = None,
    extents: Mapping[str, float] = EXTENTS,
    latency: units.Quantity = "500ns",
    overlap: Overlap = "none",
    finalists: int = 0,
    executor: Executor | None = None,
    progress: Callable[[float], object] | None = None,
) -> NetworkFront:
    """Find the best dimensions, their kinds and their bandwidths for budgets up to a largest one.

    Args:
        npus: Number of NPUs.
        workloads: Jobs, as for :func:`tacos.design.bandwidths.optimize`, whose groups are sizes with strides.
        budget: The largest budget, such as ``"$20M"``; the front begins at a sixteenth of it.
        points: Number of budgets, in equal ratios.
        max_dims: Largest number of dimensions.
        kinds: Kinds of dimensions: ``"ring"``, ``"clique"``, ``"switch"``.
        ports: Most links of one NPU: two for a ring, n - 1 for a clique, one for a switch.
        radix: Most NPUs at one switch.
        bandwidth: Largest total bandwidth of one NPU, over all dimensions.
        cost: Prices by tier, or LIBRA's cost file; LIBRA's prices by default.
        extents: Most NPUs of each tier; a dimension belongs to the first tier that holds it and all dimensions inside it.
        latency: Latency of one link.
        overlap: As for :func:`tacos.design.bandwidths.optimize`.
        finalists: Number of the best networks at the largest budget for which collectives are synthesized. For jobs that train
            models, :func:`tacos.training.step` predicts a step, with NCCL's collectives and with synthesized ones.
        executor: Where budgets are searched and finalists synthesized: any executor, such as one from
            :func:`tacos.workers.opened`; by default this process. It is not closed.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: An argument is wrong, or no shape is within the limits.

    >>> from tacos.design import Call, Group, TrainingJob
    >>> step = TrainingJob((Call("all-reduce", 10**9, Group(8)), Call("all-to-all", 10**8)))
    >>> front = shapes(32, step, budget="$100k", points=3, max_dims=2)
    >>> front.points[-1].label, len(front.points)
    ('fc:4*ring:8', 3)
    """
    kinds = tuple(dict.fromkeys(kinds))
    _check(npus, kinds, points, max_dims, ports, radix)
    largest = dollars(budget)
    table = cost_model(cost)
    given = jobs_of(workloads)
    jobs = _checked([one.on(npus) if isinstance(one, ModelJob) else one for one in given])
    space = _Space(npus, jobs, table, dict(extents), units.time_ps(latency, what="latency") / 1e12)
    space.fill(max_dims, kinds, ports, radix)
    most = None if bandwidth is None else float(units.bandwidth_Bps(bandwidth, bare=False))
    budgets = (
        largest / _SPAN ** np.linspace(1.0, 0.0, points) if points > 1 else np.array([largest])
    )
    steps = points + 2 * finalists
    asked = [
        _AtBudget(space, at, most, overlap, 1 if i < points - 1 else max(finalists, 1))
        for i, at in enumerate(budgets.tolist())
    ]
    answers = list(_each(_best_at, asked, space, executor, progress, 0.0, points / steps))
    found, solved = [best for best, _ in answers], sum(tried for _, tried in answers)
    ranked = found[-1]
    asked_of = [
        one if isinstance(one, ModelJob) else job for one, job in zip(given, jobs, strict=True)
    ]
    last = [Finalist(shape, asked_of, space.latency_s, overlap) for shape in ranked[:finalists]]
    ranked[: len(last)] = _each(evaluated, last, asked_of, executor, progress, points / steps, 1.0)
    return NetworkFront(tuple(one[0] for one in found), len(space.fixed), solved, tuple(ranked[1:]))


def _check(
    npus: int,
    kinds: Sequence[str],
    points: int,
    max_dims: int,
    ports: int | None,
    radix: int | None,
) -> None:
    for name, value, least in (
        ("npus", npus, 2),
        ("points", points, 1),
        ("max_dims", max_dims, 1),
        ("ports", ports, 1),
        ("radix", radix, 2),
    ):
        if value is not None and (type(value) is not int or value < least):
            raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}")
    for kind in kinds:
        if kind not in _KINDS:
            raise ValueError(f"kinds must be among {', '.join(_KINDS)}; got {kind!r}")
    if not kinds:
        raise ValueError("kinds is empty; name ring, clique or switch")


def _checked(given: Sequence[Any]) -> list[TrainingJob]:
    """Check that the groups of jobs fit any shape."""
    jobs: list[TrainingJob] = []
    for one in given:
        if not isinstance(one, TrainingJob):
            what = "a search over shapes needs jobs with groups of sizes and strides"
            raise ValueError(f"{what}; got {one!r:.60}")  # noqa: TRY004
        for call in one.calls:
            if call.group is not None and not isinstance(call.group, Group):
                raise ValueError(
                    f"{one.name}: a group is given by ranks or by dimensions; a search over shapes needs its size and stride"
                )
        jobs.append(one)
    return jobs


# --- the shapes ----------------------------------------------------------------------------------


def _factorizations(n: int, most: int, least: int = 2) -> Iterator[tuple[int, ...]]:
    """Yield ordered factorizations of n with at most `most` factors."""
    yield (n,)
    if most > 1:
        for first in range(least, n // least + 1):
            if n % first == 0:
                for rest in _factorizations(n // first, most - 1, least):
                    yield (first, *rest)


def _hops(kind: str, n: int) -> int:
    return {"ring": n // 2, "clique": 1, "switch": 2}[kind]


@lru_cache(maxsize=1 << 16)
def _slowdown(kind: str, size: int, used: int, stride: int, pairs: bool) -> float:
    """Return the factor by which a dimension carries more bytes than the messages alone."""
    if used == 1:
        return 1.0
    factor = 1.0
    if kind == "ring":
        if (
            used < size
        ):  # a line has one link at its ends; a sparse ring shares its links with its siblings
            factor = 2.0 if stride == 1 and size > 2 else float(stride)
        if pairs:
            factor *= (used * used // 4) / (used - 1)
    elif kind == "clique" and used < size:
        factor = (size - 1) / (used - 1)
    return factor


class _Space:
    """All shapes within the limits, as columns."""

    def __init__(
        self,
        npus: int,
        jobs: Sequence[TrainingJob],
        table: Mapping[str, Price],
        extents: dict[str, float],
        latency_s: float,
    ) -> None:
        self.npus, self.jobs = npus, jobs
        # Bounds only count sums, so equal calls are merged.
        counts: dict[Call, float] = {}
        for job in jobs:
            for call in job.calls:
                one = replace(call, count=1, background=False)
                counts[one] = counts.get(one, 0) + call.count
        self.calls = [replace(call, count=count) for call, count in counts.items()]
        self.table, self.latency_s = table, latency_s
        self.tiers = [(tier, extents[tier]) for tier in TIERS if tier in extents]
        if not self.tiers or set(extents) - set(TIERS):
            raise ValueError(f"extents must be among {', '.join(TIERS)}; got {', '.join(extents)}")
        for tier, _ in self.tiers:
            if tier not in table:
                raise ValueError(f"the cost model has no prices for {tier}")
        self.compute_s = sum(job.compute_s for job in jobs)
        self.dims: list[tuple[Dimension, ...]] = []

    def fill(
        self, max_dims: int, kinds: Sequence[str], ports: int | None, radix: int | None
    ) -> None:
        """List the shapes and compute their fixed times and bounds."""
        messages, price, fixed = [], [], []
        reason = ""
        for sizes in _factorizations(self.npus, max_dims):
            plain = tuple(Dimension("switch", size) for size in sizes)
            try:
                moved = [_Moved.of(call, plain) for call in self.calls]
            except ValueError as error:
                reason = str(error)
                continue
            for chosen in combinations(*(self._allowed(size, kinds, radix) for size in sizes)):
                if ports is not None and sum(map(ports_of, chosen, sizes)) > ports:
                    continue
                dims = self._dimensions(chosen, sizes)
                if any(
                    one.kind == "switch" and self.table[one.tier].switch is None for one in dims
                ):
                    continue  # a tier without a price for switches has none
                self.dims.append(dims)
                if len(self.dims) > _MOST_SHAPES:
                    raise ValueError(f"there are more than {_MOST_SHAPES:,} shapes; lower max_dims")
                row = np.zeros((len(self.calls), max_dims))
                for k, one in enumerate(moved):
                    row[k, : len(sizes)] = one.bytes(chosen) * self.calls[k].count
                messages.append(row)
                price.append([*(prices(dims, self.table)), *[1e-300] * (max_dims - len(sizes))])
                waits = sum(
                    one.hops(chosen) * call.count
                    for one, call in zip(moved, self.calls, strict=True)
                )
                fixed.append(self.compute_s + waits * self.latency_s)
        if not self.dims:
            raise ValueError(
                f"no shape of {self.npus:,} NPUs is within the limits"
                + (f": {reason}" if reason else "; relax ports or radix")
            )
        self.fixed = np.array(fixed)
        self.messages, self.price = np.array(messages), np.array(price)
        self.loads = self.messages.sum(axis=1)
        self.per_dollar = _bounds(self.messages, self.price)
        self.per_byte = _bounds(self.messages, np.where(self.price > 1e-200, 1.0, 1e-300))

    @staticmethod
    def _allowed(size: int, kinds: Sequence[str], radix: int | None) -> list[str]:
        """Return kinds that differ: a ring of two or three NPUs is a clique."""
        same = size <= 3 and "ring" in kinds
        return [
            kind
            for kind in kinds
            if not (kind == "clique" and same)
            and not (kind == "switch" and radix is not None and size > radix)
        ]

    def _dimensions(self, kinds: Sequence[str], sizes: Sequence[int]) -> tuple[Dimension, ...]:
        found, inside = [], 1
        for d, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
            inside *= size
            tier = next((tier for tier, most in self.tiers if inside <= most), self.tiers[-1][0])
            found.append(Dimension(kind, size, f"d{d}", tier))
        return tuple(found)

    def timings(self, dims: Sequence[Dimension], overlap: Overlap) -> list[Timing]:
        chosen = [one.kind for one in dims]

        def moved(call: Call) -> tuple[Floats, float]:
            one = _Moved.of(call, dims)
            return one.bytes(chosen), one.hops(chosen) * self.latency_s

        return [serial_timing(job.steps, dims, overlap, job.name, moved) for job in self.jobs]

    def lower(self, budget: float, most: float | None, overlap: Overlap) -> Floats:
        """Return lower bounds on the times of the shapes at a budget."""
        if overlap == "none":
            rest = self.per_dollar / budget
            if most is not None:
                rest = np.maximum(rest, self.per_byte / most)
            return np.asarray(self.fixed + rest)
        # The busiest dimension is busy for at least the mean, weighted by what each costs.
        busy = (self.loads * self.price).sum(axis=1) / budget
        if most is not None:
            busy = np.maximum(busy, self.loads.sum(axis=1) / most)
        return np.asarray(np.maximum(self.compute_s, busy))


@dataclass(frozen=True, slots=True)
class _Moved:
    """A call on some sizes: its messages on switches, and what the kinds need to know."""

    plain: Floats
    sizes: tuple[int, ...]
    used: tuple[int, ...]
    strides: tuple[int, ...]
    pairs: bool
    passes: int

    @classmethod
    def of(cls, call: Call, dims: Sequence[Dimension]) -> _Moved:
        sizes = tuple(one.size for one in dims)
        group = call.group if isinstance(call.group, Group) else None
        passes = 2 if call.collective == "all-reduce" else 1
        return cls(
            messages(call, dims),
            sizes,
            (crossed if call.collective == "send" else spread)(call.group, dims),
            tuple(strides_of(group, sizes)),
            call.collective == "all-to-all",
            passes,
        )

    def bytes(self, kinds: Sequence[str]) -> Floats:
        slow = [
            _slowdown(kind, size, used, stride, self.pairs)
            for kind, size, used, stride in zip(
                kinds, self.sizes, self.used, self.strides, strict=True
            )
        ]
        return np.asarray(self.plain * np.array(slow))

    def hops(self, kinds: Sequence[str]) -> int:
        return self.passes * sum(
            _hops(kind, used) for kind, used in zip(kinds, self.used, strict=True) if used > 1
        )


def _bounds(messages: Floats, price: Floats) -> Floats:
    """Lower bounds of ``min sum_k max_d m[k, d] / x[d]`` under ``price @ x = 1``, for all shapes.

    Any multipliers l with ``sum_d l[k, d] = 1`` prove ``(sum_d sqrt(price[d] a[d]))**2`` with ``a[d] = sum_k l[k, d] m[k, d]``.
    They move towards the dimensions in which an operation takes longest.
    """
    best = np.zeros(len(messages))
    share = np.where(messages > 0, messages * price[:, None, :], 0.0)
    share /= np.maximum(share.sum(axis=2, keepdims=True), 1e-300)
    for _ in range(_PASSES):
        loads = (share * messages).sum(axis=1)
        best = np.maximum(best, np.sqrt(price * loads).sum(axis=1) ** 2)
        x = np.sqrt(loads / price)
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.where(messages > 0, messages / np.maximum(x, 1e-300)[:, None, :], 0.0)
        longest = np.maximum(times.max(axis=2, keepdims=True), 1e-300)
        share *= times / longest
        share /= np.maximum(share.sum(axis=2, keepdims=True), 1e-300)
    return best


class _AtBudget(NamedTuple):
    """One budget: all that another process needs to know."""

    space: _Space
    budget: float
    most: float | None
    overlap: Overlap
    finalists: int


def _each(
    work: Callable[[Any], Any],
    tasks: Sequence[Any],
    shared: object,
    executor: Executor | None,
    progress: Callable[[float], object] | None,
    begin: float,
    end: float,
) -> Iterator[Any]:
    """Yield the result of each task in order, computed here or on the executor."""

    def report(share: float) -> None:
        if progress:
            progress(begin + (end - begin) * share)

    if executor is not None:
        yield from Dispatch(executor, work, tasks, shared=(shared,), progress=report).in_order()
        return
    for i, task in enumerate(tasks):
        yield work(task)
        report((i + 1) / len(tasks))


def _best_at(asked: _AtBudget) -> tuple[list[Shape], int]:
    """Return the best shapes at a budget, proven: try the most promising first, until no other can be among them."""
    space, budget, most, overlap, count = asked
    lower = space.lower(budget, most, overlap)
    order = np.argsort(lower, kind="stable")
    best: list[Shape] = []
    solved = 0
    for s in order.tolist():
        if len(best) == count and lower[s] >= best[-1].time_s:
            break
        best.append(_solved(space, s, budget, most, overlap))
        solved += 1
        best = sorted(best, key=lambda shape: (shape.time_s, shape.label))[:count]
    if solved < len(order):  # the most promising of those that were not solved
        floor = min(best[0].lower_bound_s, float(lower[order[solved]]))
        best[0] = replace(best[0], lower_bound_s=floor)
    return best, solved


def _solved(space: _Space, s: int, budget: float, most: float | None, overlap: Overlap) -> Shape:
    dims = space.dims[s]
    price, timings = space.price[s, : len(dims)], space.timings(dims, overlap)
    rows, upper = [price], [budget]
    if most is not None:
        rows.append(np.ones(len(dims)))
        upper.append(most)
    even = budget / (len(dims) * price)
    if most is not None:
        even *= min(1.0, most / even.sum())
    program = LeastTime(timings, np.array(rows), np.full(len(rows), -np.inf), np.array(upper), even)
    found = program.solve()
    x = found.bandwidths
    return Shape(dims, tuple(x.tolist()), float(price @ x), found.time_s, found.lower_s)
