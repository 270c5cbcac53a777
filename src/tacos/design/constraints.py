"""Linear constraints on bandwidths and cost as text: ``d0 >= d1``, ``d2 + d3 == 200GB/s``, ``cost <= $20M``.

A constraint compares sums of terms with ``==``, ``<=`` and ``>=``. A term is a dimension, ``total`` (all of them), ``cost``, or a
constant: a bandwidth with its unit, or dollars. A dimension may have a factor: ``2 * d0``, ``d0 / 4``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tacos._support.solver import LinearProgram, solve
from tacos.errors import InfeasibleError, nearest
from tacos.units import bandwidth_Bps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tacos.design.dimensions import Dimension

    Floats: TypeAlias = NDArray[np.float64]

__all__ = ["Limits", "dollars", "limits"]

_TOKEN = re.compile(
    r"\s*(?:(?P<relation>==|<=|>=|=|<|>)|(?P<sign>[-+*/])|(?P<money>\$\s*[0-9][0-9.,]*(?:[eE][+-]?[0-9]+)?\s*[kKmMbB]?)"
    r"|(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(?P<unit>\s*[kKMGTP]?i?[bB](?:ps|/s|it/s))?"
    r"|(?P<name>[A-Za-z_][A-Za-z_0-9]*))"
)
_THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}


@dataclass(frozen=True)
class Limits:
    """Rows ``lower <= rows @ x <= upper``, with their texts."""

    texts: tuple[str, ...]
    rows: Floats
    lower: Floats
    upper: Floats

    def conflict(self, used: Floats) -> InfeasibleError | None:
        """Return an error that names a smallest set of constraints that cannot hold together; None if all can.

        The set is minimal: without any one of its constraints, the others can hold.
        """
        if self._feasible(range(len(self.rows)), used):
            return None
        kept = [*range(len(self.rows))]
        for text in dict.fromkeys(self.texts):
            fewer = [r for r in kept if self.texts[r] != text]
            if not self._feasible(fewer, used):
                kept = fewer
        names = [f'"{text}"' for text in dict.fromkeys(self.texts[r] for r in kept)]
        if len(names) == 1:
            return InfeasibleError(
                f"the constraint {names[0]} cannot hold with positive bandwidths"
            )
        listed = ", ".join(names[:-1]) + f" and {names[-1]}"
        return InfeasibleError(f"the constraints {listed} cannot hold together; remove one of them")

    def _feasible(self, chosen: Sequence[int] | range, used: Floats) -> bool:
        rows = [*chosen]
        if not rows:
            return True
        scale = np.maximum(np.abs(self.rows[rows]).max(axis=1), 1e-300)
        size = np.abs(np.where(np.isfinite(self.upper), self.upper, self.lower)[rows] / scale).max()
        size = size or 1.0
        at, column = np.nonzero(self.rows[rows])
        program = LinearProgram(
            cost=-used,
            entries=(at, column, self.rows[rows][at, column] / scale[at]),
            row_lower=self.lower[rows] / scale / size,
            row_upper=self.upper[rows] / scale / size,
            upper=1e6,
        )
        return solve(program).status != "infeasible"


def limits(constraints: Sequence[str], dims: Sequence[Dimension], cost: Floats) -> Limits:
    """Read constraints.

    Args:
        constraints: Texts, as described above.
        dims: The dimensions that the names refer to.
        cost: Dollars per byte per second of each dimension.

    Raises:
        ValueError: A constraint is not understood; the message quotes it and explains the error.

    >>> from tacos.design import dimensions
    >>> network = dimensions("ring:4*switch:2")
    >>> found = limits(["d0 >= 2 * d1", "total == 200GB/s"], network, np.ones(2))
    >>> found.rows.tolist(), found.lower.tolist()
    ([[1.0, -2.0], [1.0, 1.0]], [0.0, 200000000000.0])
    >>> limits(["d0 >= d7"], network, np.ones(2))
    Traceback (most recent call last):
    ValueError: constraint "d0 >= d7": there is no dimension d7; the dimensions are d0 and d1
    """
    texts: list[str] = []
    rows: list[Floats] = []
    lower: list[float] = []
    upper: list[float] = []
    for text in constraints:
        try:
            found = _Reader(text, dims, cost).relations()
        except ValueError as error:
            raise ValueError(f'constraint "{text}": {error}') from None
        for row, low, high in found:
            texts.append(text)
            rows.append(row)
            lower.append(low)
            upper.append(high)
    matrix = np.array(rows).reshape(len(rows), len(dims))
    return Limits(tuple(texts), matrix, np.array(lower), np.array(upper))


def dollars(text: str, *, what: str = "budget") -> float:
    """Read an amount of money.

    >>> dollars("$20M"), dollars("$1,500"), dollars("$2.5k")
    (20000000.0, 1500.0, 2500.0)
    """
    match = re.fullmatch(r"\s*\$\s*([0-9][0-9.,]*(?:[eE][+-]?[0-9]+)?)\s*([kKmMbB]?)\s*", text)
    if match is None:
        raise ValueError(f'{what} {text!r} is not understood; write for example "$20M"')
    try:
        amount = float(match[1].replace(",", "")) * _THOUSANDS[match[2].lower()]
    except ValueError:
        raise ValueError(f'{what} {text!r} is not understood; write for example "$20M"') from None
    if not 0 < amount < np.inf:
        raise ValueError(f'{what} {text!r} must be positive; write for example "$20M"')
    return amount


class _Sum:
    """A linear expression: the factor of each dimension, a constant, and the unit."""

    def __init__(self, dims: int) -> None:
        self.row = np.zeros(dims)
        self.constant = 0.0
        self.measures = ""  # bandwidth or dollars, once a term determines it

    def measure(self, what: str) -> None:
        if self.measures and self.measures != what:
            raise ValueError("bandwidths and dollars cannot be added or compared")
        self.measures = what


class _Reader:
    """Reads one constraint."""

    def __init__(self, text: str, dims: Sequence[Dimension], cost: Floats) -> None:
        self.cost = cost
        self.names = {one.name: d for d, one in enumerate(dims)}
        self.names |= {f"d{d}": d for d in range(len(dims))}
        self.dims = len(dims)
        self.tokens: list[tuple[str, str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"{text[at:].strip()[:12]!r} is not understood")
            kind = match.lastgroup or ""
            kind = "number" if kind == "unit" else kind
            self.tokens.append((kind, (match[kind] or "").strip(), (match["unit"] or "").strip()))
            at = match.end()
        self.at = 0

    def relations(self) -> list[tuple[Floats, float, float]]:
        sums, signs = [self._sum()], []
        while self.at < len(self.tokens):
            kind, word, _ = self.tokens[self.at]
            if kind != "relation":
                raise ValueError(f"{word!r} is not expected here")
            if word not in ("==", "<=", ">="):
                raise ValueError(f"{word!r} is not a relation; use ==, <= or >=")
            self.at += 1
            signs.append(word)
            sums.append(self._sum())
        if not signs:
            raise ValueError("a relation is missing; use ==, <= or >=")
        for one in sums[1:]:
            if one.measures and sums[0].measures:
                sums[0].measure(one.measures)
        found = []
        for left, sign, right in zip(sums, signs, sums[1:], strict=False):
            row, value = left.row - right.row, right.constant - left.constant
            if not row.any():
                raise ValueError("it says nothing about a dimension, total or cost")
            low, high = {"==": (value, value), "<=": (-np.inf, value), ">=": (value, np.inf)}[sign]
            found.append((row, low, high))
        return found

    def _sum(self) -> _Sum:
        total, sign, first = _Sum(self.dims), 1.0, True
        while True:
            kind, word, _ = self.tokens[self.at] if self.at < len(self.tokens) else ("", "", "")
            if kind == "sign" and word in "+-":
                sign = 1.0 if word == "+" else -1.0
                self.at += 1
            elif not first:
                return total
            self._term(total, sign)
            sign, first = 1.0, False

    def _term(self, total: _Sum, sign: float) -> None:
        factor, name, constant, unit = sign, "", 0.0, ""
        divide = False
        while True:
            if self.at == len(self.tokens):
                raise ValueError("it ends where a dimension or a number should be")
            kind, word, of = self.tokens[self.at]
            self.at += 1
            if kind == "name" and not name and not divide:
                name = word
            elif kind == "number" and of and not unit and not divide:
                constant, unit = (
                    float(bandwidth_Bps(word + of)) if float(word) else 0.0,
                    "bandwidth",
                )
            elif kind == "money" and not unit and not divide:
                constant, unit = dollars(word, what="amount"), "dollars"
            elif kind == "number" and not of:
                factor = factor / float(word) if divide else factor * float(word)
            else:
                raise ValueError(f"{word!r} is not expected here")
            following = self.tokens[self.at] if self.at < len(self.tokens) else ("", "", "")
            if following[0] == "sign" and following[1] in "*/":
                divide = following[1] == "/"
                self.at += 1
            elif following[0] == "name" and not name and not unit:  # as in 2 d0
                divide = False
            else:
                break
        if name and unit:
            raise ValueError(f"{name} cannot be multiplied by a quantity with a unit")
        if name:
            self._add(total, name, factor)
        elif unit:
            total.measure(unit)
            total.constant += factor * constant
        elif factor:
            raise ValueError(
                f'{abs(factor):g} needs a unit: "{abs(factor):g}GB/s", or "${abs(factor):g}"'
            )

    def _add(self, total: _Sum, name: str, factor: float) -> None:
        if name == "cost":
            total.measure("dollars")
            total.row += factor * self.cost
            return
        total.measure("bandwidth")
        if name == "total":
            total.row += factor
        elif name in self.names:
            total.row[self.names[name]] += factor
        else:
            known = [*dict.fromkeys(self.names)]
            close = nearest(name, [*known, "total", "cost"])
            listed = " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)
            hint = f"; did you mean {close}?" if close and close[:1] != "d" else ""
            raise ValueError(f"there is no dimension {name}; the dimensions are {listed}{hint}")
