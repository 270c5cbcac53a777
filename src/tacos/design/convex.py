"""The least time of a step over bandwidths with linear limits: cutting planes, a Newton step, and a proof.

The time is ``sum_w max_p (c[w, p] + n[w, p] @ t)`` with ``t[k] = max_d m[k, d] / x[d]``: convex in the bandwidths x.
With ``u[d] >= 1 / x[d]`` all else is linear, and each 1/x is the supremum of its tangents. So a linear program
over a few tangents bounds the optimum from below, its own x bounds it from above, and tangents there close the gap.

A linear program finds which limits bind, but x only to the root of its tolerance. Newton's method on the equations of the
binding limits then gives x and the multipliers to rounding. The multipliers prove the result without the solver: for
``a[d] = sum_k l[k, d] m[k, d]`` and ``q = A.T @ mu``, no x has a time below ``sum p c + 2 sum_d sqrt(a[d] q[d]) - mu @ b``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tacos._support.solver import LinearProgram, Session
from tacos.errors import TacosError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]

__all__ = ["Optimum", "Program", "Timing"]

_ENOUGH = 1e-6
"""Relative gap at which the binding limits are known well enough for Newton's method (chosen)."""
_GAP = 1e-10
"""Relative gap at which cutting planes stop where Newton's method does not apply (chosen; the solver's tolerance)."""
_PROVEN = 1e-12
"""Relative gap that Newton's method must prove (chosen; rounding is 1e-15)."""
_ROUNDS = 200
"""Linear programs for one optimum at most; a dozen is usual."""
_FIRST = 2.0 ** np.arange(-6, 7)
"""Where the first tangents touch, in units of an even share."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one step as a function of the bandwidths.

    Attributes:
        messages: Bytes that each operation moves per NPU in each dimension; an operation takes ``max(messages / x)``.
        fixed: Seconds of each path through the step that no bandwidth changes.
        counts: How often each path has each operation. The step takes as long as its longest path.
    """

    messages: Floats
    fixed: Floats
    counts: Floats

    def seconds(self, bandwidths: Floats) -> float:
        """Return the time at these bandwidths; infinite where a used dimension has none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(self.messages > 0, self.messages / bandwidths, 0.0)
        times = each.max(axis=1, initial=0.0)
        with np.errstate(invalid="ignore"):
            loads = np.where(self.counts > 0, self.counts * times, 0.0)
        return float((self.fixed + loads.sum(axis=1)).max())


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best bandwidths, and a proof of how good they are.

    Attributes:
        bandwidths: In bytes per second.
        time_s: The time at these bandwidths.
        lower_s: No bandwidths within the limits have a shorter time.
        prices: By how much the time falls per unit by which each row's limit is relaxed upwards; negative where it rises.
        worth: By how much the time falls per byte per second that each dimension gets for nothing.
    """

    bandwidths: Floats
    time_s: float
    lower_s: float
    prices: Floats
    worth: Floats


class Program:
    """The bandwidths of least time under linear limits, which may be moved and asked again.

    Args:
        timings: Steps whose times are added up.
        rows: Coefficients of the limits, one row each: ``lower <= rows @ x <= upper``.
        lower, upper: Limits of the rows.
        start: Positive bandwidths of about the right size.

    >>> step = Timing(np.array([[6.0, 3.0]]), np.array([1.0]), np.array([[1.0]]))
    >>> best = Program([step], np.array([[1.0, 1.0]]), np.array([9.0]), np.array([9.0]), np.array([4.0, 4.0])).solve()
    >>> best.bandwidths.tolist(), best.time_s, best.prices.round(9).tolist()
    ([6.0, 3.0], 2.0, [0.111111111])
    """

    def __init__(
        self, timings: Sequence[Timing], rows: Floats, lower: Floats, upper: Floats, start: Floats
    ) -> None:
        self.timings, self.rows = list(timings), rows
        self.lower, self.upper = lower.copy(), upper.copy()
        self.unit = start
        self.second = max(self.seconds(start), 1e-300)
        used = np.zeros(len(start), bool)
        for timing in self.timings:
            used |= (timing.messages > 0).any(axis=0)
        self.used: NDArray[np.intp] = np.flatnonzero(used)
        self._row_scale = np.maximum(np.abs(rows * start).max(axis=1, initial=0.0), 1e-300)
        self._layout()
        self._session = Session(self._linear_program(), tolerance=1e-10)
        self._least = np.full(len(start), _FIRST[0])

    def seconds(self, bandwidths: Floats) -> float:
        """Return the sum of the steps' times."""
        return sum(timing.seconds(bandwidths) for timing in self.timings)

    def limit(self, row: int, upper: float) -> None:
        """Move the upper limit of a row."""
        self.upper[row] = upper
        scale = self._row_scale[row]
        low = float(self.lower[row] / scale)
        self._session.limit_row(self._first_limit + row, low, float(upper / scale))

    def solve(self) -> Optimum:
        """Return the optimum.

        Raises:
            TacosError: The solver gave up.
        """
        best_x, best_s, lower, duals = self.unit, math.inf, -math.inf, np.zeros(0)
        for round_ in range(_ROUNDS):
            found = self._session.solve()
            if found.status != "optimal" or found.values is None or found.duals is None:
                raise TacosError(f"the linear solver gave up on the bandwidths: {found.status}")
            duals = found.duals
            x = np.maximum(found.values[: len(self.unit)], 0.0) * self.unit
            lower = max(lower, found.objective * self.second)
            if (at := self.seconds(x)) < best_s:
                best_x, best_s = x, at
            gap = (best_s - lower) / best_s if math.isfinite(best_s) else math.inf
            if gap <= _ENOUGH or round_ % 8 == 7:
                polished = self._polished(found.values, duals)
                if polished is not None:
                    return polished
            if gap <= _GAP:
                break
            self._touch(x / self.unit)
        multipliers = self._multipliers(duals)
        proven = self._proof(*multipliers)
        return Optimum(
            best_x, best_s, max(lower, proven), multipliers[2], self._worth(best_x, multipliers[0])
        )

    # The linear program: columns x, u, t of all operations, and the steps' times.

    def _layout(self) -> None:
        self._operations = np.cumsum([0, *(len(timing.messages) for timing in self.timings)])
        dims = len(self.unit)
        self._t, self._T = 2 * dims, 2 * dims + int(self._operations[-1])
        self._columns = self._T + len(self.timings)
        self._pairs = [
            (k, d, w, i)
            for w, timing in enumerate(self.timings)
            for i, k in enumerate(range(self._operations[w], self._operations[w + 1]))
            for d in np.flatnonzero(timing.messages[i]).tolist()
        ]
        self._paths = [
            (w, p) for w, timing in enumerate(self.timings) for p in range(len(timing.fixed))
        ]
        self._first_path = len(self._pairs)
        self._first_limit = self._first_path + len(self._paths)

    def _scaled(self, w: int, i: int, d: int) -> float:
        return float(self.timings[w].messages[i, d] / self.unit[d] / self.second)

    def _linear_program(self) -> LinearProgram:
        dims = len(self.unit)
        entries: list[tuple[int, int, float]] = []
        lower: list[float] = []
        for r, (k, d, w, i) in enumerate(self._pairs):  # t >= m u
            entries += [(r, self._t + k, 1.0), (r, dims + d, -self._scaled(w, i, d))]
            lower.append(0.0)
        for r, (w, p) in enumerate(self._paths, self._first_path):  # T >= c + n t
            timing, first = self.timings[w], int(self._operations[w])
            entries.append((r, self._T + w, 1.0))
            entries += [
                (r, self._t + first + i, -float(timing.counts[p, i]))
                for i in np.flatnonzero(timing.counts[p]).tolist()
            ]
            lower.append(float(timing.fixed[p] / self.second))
        upper = [math.inf] * len(lower)
        for r, row in enumerate(self.rows):
            at, scale = self._first_limit + r, self._row_scale[r]
            entries += [
                (at, d, row[d] * self.unit[d] / scale) for d in np.flatnonzero(row).tolist()
            ]
            lower.append(float(self.lower[r] / scale))
            upper.append(float(self.upper[r] / scale))
        for d in self.used.tolist():
            for point in _FIRST.tolist():
                entries += [(len(lower), d, 1 / point**2), (len(lower), dims + d, 1.0)]
                lower.append(2 / point)
                upper.append(math.inf)
        rows, columns, numbers = zip(*entries, strict=True)
        cost = np.zeros(self._columns)
        cost[self._T :] = 1.0
        return LinearProgram(
            cost=cost, entries=(rows, columns, numbers), row_lower=lower, row_upper=upper
        )

    def _touch(self, x: Floats) -> None:
        """Add tangents ``u >= (2 p - x) / p**2`` where the last solution was."""
        points = np.where(x > self._least / 4, x, self._least / 4)
        self._least = np.minimum(self._least, points)
        p = points[self.used]
        row = np.arange(len(p))
        self._session.add_rows(
            (
                np.concatenate([row, row]),
                np.concatenate([self.used, self.used + len(x)]),
                np.concatenate([1 / p**2, np.ones(len(p))]),
            ),
            row_lower=2 / p,
        )

    # Multipliers, in seconds per second for operations and paths, and per unit of a row for the limits.

    def _multipliers(self, duals: Floats) -> tuple[Floats, Floats, Floats]:
        pairs = np.maximum(duals[: self._first_path], 0.0)
        paths = np.maximum(duals[self._first_path : self._first_limit], 0.0)
        limits = duals[self._first_limit : self._first_limit + len(self.rows)]
        return pairs, paths, -limits * self.second / self._row_scale

    def _loads(self, pairs: Floats) -> Floats:
        """Bytes that count in each dimension: a[d], the messages weighted by their multipliers."""
        loads = np.zeros(len(self.unit))
        for value, (_, d, w, i) in zip(pairs, self._pairs, strict=True):
            loads[d] += value * self.timings[w].messages[i, d]
        return loads

    def _worth(self, x: Floats, pairs: Floats) -> Floats:
        loads, worth = self._loads(pairs), np.zeros(len(x))
        busy = loads > 0
        worth[busy] = loads[busy] / x[busy] ** 2
        return worth

    def _proof(self, pairs: Floats, paths: Floats, prices: Floats) -> float:
        """A lower bound by weak duality, in plain arithmetic; minus infinity if the multipliers prove nothing."""
        pairs, paths = pairs.copy(), paths.copy()
        for w in range(len(self.timings)):  # the multipliers of a step's paths sum to one
            mine = [r for r, path in enumerate(self._paths) if path[0] == w]
            if (total := paths[mine].sum()) <= 0:
                return -math.inf
            paths[mine] /= total
        asked = np.zeros(
            int(self._operations[-1])
        )  # and those of an operation to how often it is on them
        for value, (w, p) in zip(paths, self._paths, strict=True):
            asked[self._operations[w] : self._operations[w + 1]] += (
                value * self.timings[w].counts[p]
            )
        given = np.zeros_like(asked)
        owner = np.array([k for k, *_ in self._pairs], np.intp)
        np.add.at(given, owner, pairs)
        scale = np.divide(asked, given, out=np.zeros_like(asked), where=given > 0)
        loads = self._loads(pairs * scale[owner])
        with np.errstate(invalid="ignore"):
            slack = np.where(prices >= 0, self.upper, self.lower)
            paid = np.where(prices == 0, 0.0, prices * slack)
        if not np.isfinite(paid).all():
            return -math.inf
        slope = self.rows.T @ prices
        noise = 1e-13 * (np.abs(self.rows).T @ np.abs(prices))
        if (slope < -noise).any():
            return -math.inf
        fixed = sum(
            value * float(self.timings[w].fixed[p])
            for value, (w, p) in zip(paths, self._paths, strict=True)
        )
        return float(fixed + 2 * np.sqrt(loads * np.maximum(slope, 0.0)).sum() - paid.sum())

    def _polished(self, values: Floats, duals: Floats) -> Optimum | None:
        """The optimum to rounding, by Newton's method on the equations of the limits that bind; None if it fails.

        Unknowns are x and t and the steps' times, then the multipliers of the binding pairs, paths and limits.
        """
        pairs, paths, prices = self._multipliers(duals)
        on_pair = np.flatnonzero(pairs > 1e-7 * max(float(pairs.max(initial=0.0)), 1e-300))
        on_path = np.flatnonzero(paths > 1e-9)
        scaled_price = np.abs(prices) * self._row_scale / self.second
        fixed_row = self.lower == self.upper
        on_row = np.flatnonzero(fixed_row | (scaled_price > 1e-9))
        dims, n = len(self.unit), self._columns - len(self.unit)  # x, t and T; u is 1 / x
        z = np.concatenate([values[:dims], values[self._t :]])
        lam, pi = pairs[on_pair], paths[on_path]
        mu = (prices * self._row_scale / self.second)[on_row]
        z[:dims] = np.maximum(z[:dims], 1e-12)
        m = np.array([self._scaled(w, i, d) for _, d, w, i in (self._pairs[r] for r in on_pair)])
        at_d = np.array([self._pairs[r][1] for r in on_pair], np.intp)
        at_t = np.array([self._pairs[r][0] for r in on_pair], np.intp) + dims
        sign = np.where(self.lower[on_row] == self.upper[on_row], self.upper[on_row], 0.0)
        sign = np.where(mu > 0, self.upper[on_row], np.where(mu < 0, self.lower[on_row], sign))
        if not np.isfinite(sign).all():
            return None
        right = sign / self._row_scale[on_row]
        a = self.rows[on_row] * self.unit / self._row_scale[on_row, None]
        g = np.zeros((len(on_path), n))  # of the paths: c + n t - T
        c = np.zeros(len(on_path))
        for r, (w, p) in enumerate(self._paths[q] for q in on_path.tolist()):
            first = dims + int(self._operations[w])
            g[r, first : first + len(self.timings[w].messages)] = self.timings[w].counts[p]
            g[r, dims + int(self._operations[-1]) + w] = -1.0
            c[r] = self.timings[w].fixed[p] / self.second
        gradient = np.zeros(n)
        gradient[dims + int(self._operations[-1]) :] = 1.0
        rows_p = np.arange(len(on_pair))
        for _ in range(12):
            jp = np.zeros((len(on_pair), n))
            xd = z[at_d]
            jp[rows_p, at_d] = -m / xd**2
            jp[rows_p, at_t] = -1.0
            jr = np.zeros((len(on_row), n))
            jr[:, :dims] = a
            hessian = np.zeros((n, n))
            np.add.at(hessian, (at_d, at_d), 2 * lam * m / xd**3)
            jacobian = np.concatenate([jp, g, jr])
            residual = np.concatenate(
                [
                    gradient + jp.T @ lam + g.T @ pi + jr.T @ mu,
                    m / xd - z[at_t],
                    c + g @ z,
                    a @ z[:dims] - right,
                ]
            )
            if np.abs(residual).max() < 1e-14:
                break
            count = len(jacobian)
            system = np.block([[hessian, jacobian.T], [jacobian, np.zeros((count, count))]])
            try:
                step = np.linalg.lstsq(system, -residual, rcond=1e-13)[0]
            except np.linalg.LinAlgError:
                return None
            share = 1.0
            falling = step[:dims] < 0
            if falling.any():
                share = min(
                    1.0, float((-0.9 * z[:dims] / np.minimum(step[:dims], -1e-300))[falling].min())
                )
            z += share * step[:n]
            moved = share * step[n:]
            lam += moved[: len(lam)]
            pi += moved[len(lam) : len(lam) + len(pi)]
            mu += moved[len(lam) + len(pi) :]
        return self._accepted(z[:dims] * self.unit, (on_pair, lam), (on_path, pi), (on_row, mu))

    def _accepted(
        self,
        x: Floats,
        pairs: tuple[NDArray[np.intp], Floats],
        paths: tuple[NDArray[np.intp], Floats],
        rows: tuple[NDArray[np.intp], Floats],
    ) -> Optimum | None:
        """What Newton's method found, if it is within the limits and proven."""
        if (
            not np.isfinite(x).all()
            or min(pairs[1].min(initial=0.0), paths[1].min(initial=0.0)) < -1e-9
        ):
            return None
        x = np.maximum(x, 0.0)
        room = 1e-12 * self._row_scale
        sums = self.rows @ x
        if (sums < self.lower - room).any() or (sums > self.upper + room).any():
            return None
        lam, pi, prices = (
            np.zeros(len(self._pairs)),
            np.zeros(len(self._paths)),
            np.zeros(len(self.rows)),
        )
        lam[pairs[0]], pi[paths[0]] = np.maximum(pairs[1], 0.0), np.maximum(paths[1], 0.0)
        scaled = np.where(np.abs(rows[1]) > _PROVEN, rows[1], 0.0)  # the rest is rounding
        prices[rows[0]] = scaled * self.second / self._row_scale[rows[0]]
        time_s, lower = self.seconds(x), self._proof(lam, pi, prices)
        if not time_s - lower <= _PROVEN * time_s:
            return None
        return Optimum(x, time_s, min(lower, time_s), prices, self._worth(x, lam))
