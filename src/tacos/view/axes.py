"""Axes: convert values to pixels, with ticks and labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from tacos.units import format_bandwidth, format_dollars, format_size, format_time
from tacos.view import svg
from tacos.view.svg import INK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["CENTRE", "RIGHT", "TEXTS", "Axis", "Frame", "Scale", "fitted"]

Unit: TypeAlias = Literal["number", "share", "size", "time", "bandwidth", "dollars"]

TEXTS: dict[Unit, Callable[[float], str]] = {
    "number": lambda value: f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}",
    "share": lambda value: f"{100 * value:.3g} %",
    "size": format_size,
    "time": format_time,
    "bandwidth": format_bandwidth,
    "dollars": format_dollars,
}
"""Functions that format a number for people, by unit."""
RIGHT, CENTRE = 'text-anchor="end"', 'text-anchor="middle"'
_GRID = "#e4e7eb"


@dataclass(frozen=True, slots=True)
class Axis:
    """The quantity that an axis shows.

    Attributes:
        label: Its name, without the unit.
        unit: Unit of the values: bytes, seconds, bytes per second, dollars, shares of 1, or plain numbers.
        log: Whether the axis is logarithmic.
    """

    label: str
    unit: Unit = "number"
    log: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """A mapping of values to pixels: `low` to the pixel `begin`, `high` to `end`."""

    axis: Axis
    low: float
    high: float
    begin: float
    end: float
    binary: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.axis.log:
            low, high, at = math.log(low), math.log(high), math.log(value)
        return self.begin + (self.end - self.begin) * (at - low) / (high - low)

    def ticks(self, apart: float) -> list[tuple[float, str]]:
        """Round values at least `apart` pixels apart, with their labels."""
        room = max(2, int(abs(self.end - self.begin) / apart))
        values = _log_ticks(self, room) if self.axis.log else []
        if len(values) < 2:
            values = _even_ticks(self.low, self.high, room)
        return [(value, TEXTS[self.axis.unit](value) if value else "0") for value in values]


def _log_ticks(on: Scale, room: int) -> list[float]:
    slack = 1 + 1e-9
    base = 2 if on.binary else 10
    first = math.floor(math.log(on.low, base))
    powers = range(first, math.ceil(math.log(on.high, base)) + 1)
    ladders: list[list[float]] = [] if on.binary else [[1, 2, 5], [1, 3]]
    candidates = [[float(base) ** k * step for k in powers for step in steps] for steps in ladders]
    # Powers of two with exponents 10, 15, 20 are 1 KiB, 32 KiB, 1 MiB.
    strides = (1, 2, 5, 10) if on.binary else (1, 2, 3, 6)
    candidates += [[float(base) ** k for k in powers if k % s == 0] for s in strides]
    for values in candidates:
        inside = [v for v in values if on.low / slack <= v <= on.high * slack]
        if len(inside) <= room:
            return inside
    return inside


def _even_ticks(low: float, high: float, room: int) -> list[float]:
    rough = (high - low) / room
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def fitted(
    axis: Axis, values: Iterable[float], begin: float, end: float, *, tight: bool = False
) -> Scale:
    """Return a scale that holds all values: from zero on a linear axis, with a small margin unless tight.

    >>> [words for _, words in fitted(Axis("size", "size"), [3e6, 4e6], 0, 200).ticks(50)]
    ['0', '2 MB', '4 MB']
    """
    found = [float(value) for value in values]
    low, high = min(found), max(found)
    binary = axis.unit == "size" and all(value % 1024 == 0 for value in found)
    if axis.log:
        air = 1.0 if tight and low < high else max((high / low) ** 0.04, 1.15)
        return Scale(axis, low / air, high * air, begin, end, binary)
    if not tight or low == high:
        low, high = min(low, 0.0), (high * 1.04 if high > 0 else 1.0)
    return Scale(axis, low, high, begin, end)


@dataclass(frozen=True, slots=True)
class Frame:
    """The rectangle of a plot, in pixels, and the text around it."""

    left: float
    top: float
    width: float
    height: float

    def below(self, label: str) -> str:
        return svg.text(
            self.left + self.width / 2, self.top + self.height + 42, label, size=13, more=CENTRE
        )

    def beside(self, label: str, x: float) -> str:
        y = self.top + self.height / 2
        turn = f'{CENTRE} transform="rotate(-90 {x:.1f} {y:.1f})"'
        return svg.text(x, y, label, size=13, more=turn)

    def axes(self, x: Scale, y: Scale) -> list[str]:
        shapes = self.ticks(x)
        for value, words in y.ticks(34):
            at = y(value)
            shapes.append(
                f'<path d="M{self.left:.1f} {at:.1f}h{self.width:.1f}" stroke="{_GRID}"/>'
            )
            shapes.append(svg.text(self.left - 7, at + 4, words, size=11.5, more=RIGHT))
        return [*shapes, self.outline()]

    def ticks(self, x: Scale, *, grid: bool = True) -> list[str]:
        shapes, bottom = [], self.top + self.height
        for value, words in x.ticks(72):
            at = x(value)
            begin, colour = (self.top, _GRID) if grid else (bottom, INK)
            shapes.append(f'<path d="M{at:.1f} {begin:.1f}V{bottom + 4:.1f}" stroke="{colour}"/>')
            shapes.append(svg.text(at, bottom + 19, words, size=11.5, more=CENTRE))
        return [*shapes, *([] if grid else [self.outline()])]

    def outline(self) -> str:
        return (
            f'<rect x="{self.left:.1f}" y="{self.top:.1f}" width="{self.width:.1f}" '
            f'height="{self.height:.1f}" fill="none" stroke="#9aa5b1" class="plot"/>'
        )
