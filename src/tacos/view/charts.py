"""Charts as SVG text: curves, bars and heat maps, with axes in the units of the field.

The functions choose limits, ticks, labels in bytes, seconds or bytes per second, the legend, and colours that
people with any colour vision can tell apart, with markers and dashes in addition. They take
plain numbers and return a picture that :func:`tacos.view.save` writes as SVG or PNG.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

import numpy as np

from tacos.view import svg
from tacos.view.axes import CENTRE, RIGHT, TEXTS, Axis, Frame, Scale, fitted
from tacos.view.svg import COLOURS, GREY, INK, MARGIN, PAPER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Axis", "Series", "bars", "heat_map", "lines", "stack", "stacked_bars"]

_SHADE, _EDGE = "#f0f2f5", "#9aa5b1"
_BEYOND = {"ceiling": "faster than any schedule", "floor": "faster than any schedule"}
"""Meaning of the shaded region, by role of the limit."""
_REJECTED = "rejected"
_DASHES = ("", "7 3", "2 3")
_SHAPES = (  # filled ones first, in a box of 8 by 8 about the origin
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "M-3.6 -3.6H3.6V3.6H-3.6Z",
    "M0 -4.6L4.4 3.4H-4.4Z",
    "M0 -4.8L4.8 0L0 4.8L-4.8 0Z",
    "M0 4.6L4.4 -3.4H-4.4Z",
)
_HALO = f'paint-order="stroke" stroke="{PAPER}" stroke-width="3"'


@dataclass(frozen=True, slots=True)
class Series:
    """A curve, or one bar in every group.

    Attributes:
        name: For the legend.
        y: The values; NaN for missing ones.
        x: Their positions. A series of bars has none; its values belong to the groups in order.
        role: A ``"strong"`` curve is drawn thicker. A ``"ceiling"`` is an upper limit and a
            ``"floor"`` a lower one: dashed, with the region beyond it shaded and explained in the legend.
        rejected: Rejected points, each with its position, value and reason, drawn as crosses. A value of
            NaN puts the cross on the axis.
    """

    name: str
    y: Sequence[float]
    x: Sequence[float] = ()
    role: Literal["plain", "strong", "ceiling", "floor"] = "plain"
    rejected: Sequence[tuple[float, float, str]] = ()

    @property
    def limit(self) -> bool:
        return self.role in ("ceiling", "floor")


def lines(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    title: str = "",
    remarks: Sequence[str] = (),
    width: int = 900,
) -> str:
    """Draw curves over a common axis.

    Args:
        series: The curves.
        x: The horizontal axis.
        y: The vertical axis.
        title: Text above the picture.
        remarks: Sentences below the picture.
        width: Width in pixels.

    Raises:
        ValueError: There is nothing to draw, or a value cannot be drawn on a logarithmic axis.

    >>> size, speed = [1e3, 1e6, 1e9], [1e8, 5e10, 9e10]
    >>> chart = lines([Series("ring", speed, size)], Axis("size", "size", log=True),
    ...               Axis("busbw", "bandwidth"), title="ring of 8")
    >>> "ring of 8" in chart, "10 MB" in chart, "80 GB/s" in chart
    (True, True, True)
    """
    _check(series, x, y, width)
    styles = _styles(series)
    names = [one.name for one in series]
    names += [_BEYOND[one.role] for one in series if one.limit] + [_REJECTED] * _crosses(series)
    legend = max(map(len, names)) * 7.0 + 50
    away = [point for one in series for point in one.rejected]
    xs = np.concatenate([np.asarray(one.x, float)[_drawn(one)] for one in series])
    ys = np.concatenate([np.asarray(one.y, float)[_drawn(one)] for one in series])
    xs = np.append(xs, [at for at, _, _ in away])
    ys = np.append(ys, [value for _, value, _ in away if math.isfinite(value)])
    top, height = (58.0 if title else 28.0), 300.0
    up = fitted(y, ys, top + height, top)
    left = MARGIN + 16 + max(10, *(len(words) for _, words in up.ticks(34))) * 6.4
    along = fitted(x, xs, left + 10, width - legend - 14, tight=True)
    frame = Frame(left, top, width - legend - left, height)
    shapes = [*_heading(title), frame.below(x.label), frame.beside(y.label, MARGIN - 8)]
    shapes += [shade for one in series if one.limit for shade in _shade(one, along, up, frame)]
    shapes += frame.axes(along, up)
    for one, style in sorted(
        zip(series, styles, strict=True), key=lambda pair: pair[0].role == "strong"
    ):
        shapes += _curve(one, style, along, up)
        shapes += _crossed(one, style, along, up)
    entries = []
    for one, style in zip(series, styles, strict=True):
        gone = not _drawn(one).any()
        sign = f'<path d="M0 -4H26" {style.stroke}/>{style.mark(13, -4)}'
        sign = style.cross(13, -4) if gone else sign
        more = f'fill="{GREY}" text-decoration="line-through"' if gone else ""
        entries.append(sign + svg.text(34, 0, one.name, size=12, more=more))
        if one.limit:
            box = f'<rect y="-11" width="26" height="13" fill="{_SHADE}" stroke="{_EDGE}"/>'
            entries.append(box + svg.text(34, 0, _BEYOND[one.role], size=12))
    if _crosses(series):
        cross = _Style(INK, "", 1.6, "").cross(13, -4)
        entries.append(cross + svg.text(34, 0, _REJECTED, size=12))
    for k, entry in enumerate(entries):
        at = f"translate({width - legend + 14:.1f} {top + 10 + 21 * k:.1f})"
        shapes.append(f'<g transform="{at}">{entry}</g>')
    bottom = max(top + height + 62, top + 21 * len(entries) + 20)
    said, bottom = _remarks(remarks, bottom, width)
    return svg.document([*shapes, *said], width, bottom, title or f"{y.label} over {x.label}")


def bars(
    groups: Sequence[str],
    series: Sequence[Series],
    x: Axis,
    *,
    title: str = "",
    mark: tuple[float, str] | None = None,
    notes: Sequence[str] = (),
    remarks: Sequence[str] = (),
    width: int = 900,
) -> str:
    """Draw bars side by side in groups, each with its value.

    Args:
        groups: A label for each group.
        series: Each series has one bar per group; a single series needs no legend.
        x: The axis of the bars' lengths.
        title: Text above the picture.
        mark: A value at which to draw a line, such as a bound, and its name.
        notes: Texts after the bars of the first series, such as their share of a bound.
        remarks: Sentences below the picture.
        width: Width in pixels.

    >>> chart = bars(["ring", "direct"], [Series("busbw", [40e9, 90e9])], Axis("busbw", "bandwidth"),
    ...              mark=(100e9, "bound"), notes=["40 %", "90 %"])
    >>> "90 GB/s, 90 %" in chart
    True
    """
    flat = [Series(one.name, one.y, range(len(groups)), one.role) for one in series]
    _check(flat, Axis(""), x, width)
    thick = 22.0 if len(series) == 1 else 15.0
    step = thick * len(series) + (9 if len(series) == 1 else 16)
    legend = 24.0 if len(series) > 1 else 0.0
    top = (52.0 if title else 22.0) + (22 if mark else 0)
    left = MARGIN + max(len(name) for name in groups) * 6.7 + 8
    values = [value for one in series for value in one.y if math.isfinite(value)]
    words = max((len(note) for note in notes), default=0) * 6.2
    scale = fitted(x, [*values, mark[0]] if mark else values, left, width - 90 - words)
    frame = Frame(left, top, width - MARGIN - left, step * len(groups) + 6)
    shapes = [*_heading(title), *_patterns(len(series)), *frame.ticks(scale)]
    said_last: list[str] = []
    for g, group in enumerate(groups):
        begin = top + 3 + step * g + (step - thick * len(series)) / 2
        middle = begin + thick * len(series) / 2 + 4.2
        shapes.append(svg.text(left - 8, middle, group, size=12.5, more=RIGHT))
        for k, one in enumerate(series):
            if not math.isfinite(one.y[g]):
                continue
            end, y = scale(one.y[g]), begin + thick * k
            said = TEXTS[x.unit](one.y[g])
            shapes.append(
                f'<rect x="{left:.1f}" y="{y + 1:.1f}" width="{max(end - left, 0.5):.1f}" '
                f'height="{thick - 2:.1f}" fill="{_fill(k)}">'
                f"<title>{svg.escaped(f'{group}, {one.name}: {said}')}</title></rect>"
            )
            if k == 0 and g < len(notes) and notes[g]:
                said = f"{said}, {notes[g]}"
            size = min(11.5, thick - 3)
            said_last.append(svg.text(end + 5, y + thick / 2 + 3.8, said, size=size, more=_HALO))
    if mark:
        at = scale(mark[0])
        shapes.append(
            f'<path d="M{at:.1f} {top - 4:.1f}V{top + frame.height:.1f}" stroke="{INK}" '
            'stroke-width="1.6" stroke-dasharray="7 4"/>'
        )
        said = f"{mark[1]} {TEXTS[x.unit](mark[0])}"
        anchor = RIGHT if at > width - 7 * len(said) / 2 - MARGIN else CENTRE
        shapes.append(svg.text(at, top - 10, said, size=12, more=anchor))
    shapes += [*said_last, frame.below(x.label)]
    bottom = top + frame.height + 56 + legend
    if legend:
        signs = [f'<rect y="-11" width="26" height="12" fill="{_fill(k)}"/>' for k in range(99)]
        rows, bottom = _row_legend(zip(signs, series, strict=False), width, bottom - 4)
        shapes += rows
    said_below, bottom = _remarks(remarks, bottom, width)
    return svg.document([*shapes, *said_below], width, bottom, title or x.label)


def stacked_bars(
    groups: Sequence[str],
    series: Sequence[Series],
    x: Axis,
    *,
    title: str = "",
    notes: Sequence[str] = (),
    width: int = 900,
) -> str:
    """Draw one bar per group, with one piece per series, to show how a whole is composed.

    Args:
        groups: A label for each bar.
        series: The pieces, from the left; each has a value per group, 0 or more.
        x: The axis of the lengths.
        title: Text above the picture.
        notes: Texts after each bar and its sum.
        width: Width in pixels.

    >>> chart = stacked_bars(["nccl", "auto"], [Series("compute", [3, 3]), Series("wait", [2, 1])], Axis("step", "time"))
    >>> "nccl, wait: 2 s" in chart, "5 s" in chart
    (True, True)
    """
    flat = [Series(one.name, one.y, range(len(groups)), one.role) for one in series]
    _check(flat, Axis(""), x, width)
    thick, gap = 26.0, 12.0
    top = 52.0 if title else 22.0
    left = MARGIN + max(len(name) for name in groups) * 6.7 + 8
    sums = [sum(one.y[g] for one in series) for g in range(len(groups))]
    words = max((len(note) for note in notes), default=0) * 6.2
    scale = fitted(x, sums, left, width - 90 - words)
    frame = Frame(left, top, width - MARGIN - left, (thick + gap) * len(groups) + 6)
    shapes = [*_heading(title), *_patterns(len(series)), *frame.ticks(scale)]
    for g, group in enumerate(groups):
        y = top + 3 + (thick + gap) * g + gap / 2
        shapes.append(svg.text(left - 8, y + thick / 2 + 4.2, group, size=12.5, more=RIGHT))
        done = 0.0
        for k, one in enumerate(series):
            begin, end = scale(done), scale(done + one.y[g])
            done += one.y[g]
            if end > begin:
                said = f"{group}, {one.name}: {TEXTS[x.unit](one.y[g])}"
                shapes.append(
                    f'<rect x="{begin:.1f}" y="{y:.1f}" width="{end - begin:.1f}" height="{thick:.1f}" '
                    f'fill="{_fill(k)}"><title>{svg.escaped(said)}</title></rect>'
                )
        said = TEXTS[x.unit](sums[g]) + (f", {notes[g]}" if g < len(notes) and notes[g] else "")
        shapes.append(svg.text(scale(done) + 6, y + thick / 2 + 4, said, size=11.5, more=_HALO))
    shapes.append(frame.below(x.label))
    signs = [
        f'<rect y="-11" width="26" height="12" fill="{_fill(k)}"/>' for k in range(len(series))
    ]
    rows, bottom = _row_legend(zip(signs, series, strict=True), width, top + frame.height + 56 + 20)
    return svg.document([*shapes, *rows], width, bottom, title or x.label)


def heat_map(
    values: ArrayLike,
    x: Axis,
    extent: tuple[float, float],
    *,
    row_labels: Sequence[str] = (),
    y_label: str = "",
    scale: Axis | None = None,
    high: float | None = None,
    title: str = "",
    width: int = 900,
) -> str:
    """Draw a table of numbers as colours: rows from the top, columns over an axis.

    Args:
        values: A two-dimensional table; if it has more rows or columns than pixels, they are averaged.
        x: The axis of the columns, which are equally wide.
        extent: The start of the first column and the end of the last one.
        row_labels: One label per row; those that fit are shown.
        y_label: What a row represents.
        scale: What the colours represent; by default shares of 1.
        high: The value of the brightest colour; by default the largest value, or 1 for shares.
        title: Text above the picture.
        width: Width in pixels.

    Raises:
        ValueError: There is nothing to draw, a value is negative, or the number of labels is wrong.

    >>> chart = heat_map([[0, 0.5], [1, 1]], Axis("time", "time"), (0, 2e-6),
    ...                  row_labels=["0 → 1", "1 → 0"], title="utilisation")
    >>> "0 → 1" in chart, "2 us" in chart
    (True, True)
    """
    table = np.asarray(values, dtype=float)
    meaning = scale or Axis("busy", "share")
    if table.ndim != 2 or not table.size:
        raise ValueError(f"values has the shape {table.shape}; it must have rows and columns")
    if len(row_labels) not in (0, len(table)):
        raise ValueError(f"row_labels has {len(row_labels)} entries, values {len(table)} rows")
    if not extent[0] < extent[1]:
        raise ValueError(f"extent is {extent}; it must go from a lower to a higher value")
    if not (table >= 0).all():
        raise ValueError("values has a negative number or NaN, which have no colour")
    brightest = high or (1.0 if meaning.unit == "share" else float(table.max()) or 1.0)
    top, shown = (58.0 if title else 28.0), min(len(table), 600)
    tall = float(np.clip(22 * len(table), 60, 420))
    labels = _spread(list(row_labels), int(tall // 13))
    left = MARGIN + max((len(words) for _, words in labels), default=0) * 6.2 + 10
    left += 18 if y_label else 0
    frame = Frame(left, top, width - MARGIN - 92 - left, tall)
    along = Scale(x, *extent, left, left + frame.width)
    pixels = _averaged(_averaged(table, shown, 0), min(table.shape[1], int(frame.width)), 1)
    levels = np.clip(np.rint(255 * pixels / brightest), 0, 255).astype(np.uint8)
    place = f'x="{left:.1f}" y="{top:.1f}" width="{frame.width:.1f}" height="{tall:.1f}"'
    shapes = [*_heading(title), _image(levels, place), *frame.ticks(along, grid=False)]
    shapes += [
        svg.text(left - 7, top + tall * share + 3.8, words, size=11, more=RIGHT)
        for share, words in labels
    ]
    shapes += [frame.below(x.label), *([frame.beside(y_label, MARGIN - 4)] if y_label else [])]
    shapes += _colour_bar(width - MARGIN - 72, top, min(tall, 160), meaning, brightest)
    return svg.document(shapes, width, top + tall + 62, title or meaning.label)


def stack(pictures: Sequence[str]) -> str:
    """Combine pictures into one, one below the other.

    >>> chart = bars(["a"], [Series("b", [1])], Axis("c"))
    >>> stack([chart, chart]).count("<svg ")
    3
    """
    sizes = [_size(picture) for picture in pictures]
    tops = np.cumsum([0, *(height for _, height in sizes)])
    inner = [
        picture.rstrip().replace("<svg ", f'<svg y="{top:.0f}" ', 1)
        for picture, top in zip(pictures, tops, strict=False)
    ]
    titles = [picture.partition("<title>")[2].partition("</title>")[0] for picture in pictures]
    whole = svg.document(inner, max(width for width, _ in sizes), tops[-1], "")
    return whole.replace("<title></title>", f"<title>{'; '.join(titles)}</title>", 1)


def _size(picture: str) -> tuple[float, float]:
    head = picture.partition(">")[0]
    wide, high = (head.partition(f' {side}="')[2].partition('"')[0] for side in ("width", "height"))
    return float(wide), float(high)


# Marks.


@dataclass(frozen=True, slots=True)
class _Style:
    colour: str
    dash: str
    thick: float
    shape: str

    @property
    def stroke(self) -> str:
        dash = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        return f'fill="none" stroke="{self.colour}" stroke-width="{self.thick}"{dash}'

    def cross(self, x: float, y: float, tip: str = "") -> str:
        """Mark a rejected point."""
        title = f"<title>{svg.escaped(tip)}</title>" if tip else ""
        shape = f'd="M-5 -5L5 5M-5 5L5 -5" fill="none" stroke="{self.colour}" stroke-width="2.2"'
        return f'<path class="cross" transform="translate({x:.1f} {y:.1f})" {shape}>{title}</path>'

    def mark(self, x: float, y: float, tip: str = "") -> str:
        if not self.shape:
            return ""
        title = f"<title>{svg.escaped(tip)}</title>" if tip else ""
        return (
            f'<path class="mark" transform="translate({x:.1f} {y:.1f})" d="{self.shape}" '
            f'fill="{self.colour}" stroke="{PAPER}" stroke-width="0.8">{title}</path>'
        )


def _styles(series: Sequence[Series]) -> list[_Style]:
    """Return a style per series: the first thirty differ, and neighbours differ in both shape and colour."""
    styles, k = [], 0
    for one in series:
        if one.limit:
            styles.append(_Style(INK, "9 4", 1.8, ""))
            continue
        thick = 3.0 if one.role == "strong" else 1.6
        dash = _DASHES[k // len(COLOURS) % len(_DASHES)]
        styles.append(_Style(COLOURS[k % len(COLOURS)], dash, thick, _SHAPES[k % len(_SHAPES)]))
        k += 1
    return styles


def _curve(one: Series, style: _Style, x: Scale, y: Scale) -> list[str]:
    path, marks = "", []
    drawn = _drawn(one)
    each = max(1, len(drawn) // 40)  # few markers, so that they do not hide the curve
    for i, (at, value) in enumerate(zip(one.x, one.y, strict=True)):
        if drawn[i]:
            joined = i > 0 and drawn[i - 1]
            path += f"{'L' if joined else 'M'}{x(at):.1f} {y(value):.1f}"
            if i % each == 0:
                tip = f"{one.name}: {TEXTS[x.axis.unit](at)}, {TEXTS[y.axis.unit](value)}"
                marks.append(style.mark(x(at), y(value), tip))
    return [f'<path class="curve" d="{path}" {style.stroke} stroke-linejoin="round"/>', *marks]


def _crossed(one: Series, style: _Style, x: Scale, y: Scale) -> list[str]:
    return [
        style.cross(x(at), y(value) if math.isfinite(value) else y.begin - 6, f"{one.name}: {why}")
        for at, value, why in one.rejected
    ]


def _crosses(series: Sequence[Series]) -> bool:
    return any(one.rejected or not _drawn(one).any() for one in series)


def _remarks(words: Sequence[str], top: float, width: float) -> tuple[list[str], float]:
    """Return sentences as lines below a picture, and the height at which they end."""
    shapes: list[str] = []
    for line in (part for one in words for part in wrap(one, int((width - 2 * MARGIN) / 5.6))):
        top += 16
        shapes.append(svg.text(MARGIN, top - 8, line, size=11, more=f'fill="{GREY}"'))
    return shapes, top


def _shade(one: Series, x: Scale, y: Scale, frame: Frame) -> list[str]:
    """Shade the region beyond a limit."""
    points = [(x(a), y(b)) for a, b, is_in in zip(one.x, one.y, _drawn(one), strict=True) if is_in]
    edge = frame.top if one.role == "ceiling" else frame.top + frame.height
    corners = [(frame.left, points[0][1]), *points, (frame.left + frame.width, points[-1][1])]
    outline = "L".join(f"{a:.1f} {b:.1f}" for a, b in corners)
    shape = f"M{frame.left:.1f} {edge:.1f}L{outline}V{edge:.1f}Z"
    return [f'<path d="{shape}" fill="{_SHADE}"/>']


def _drawn(one: Series) -> NDArray[np.bool_]:
    drawn: NDArray[np.bool_] = np.isfinite(np.asarray(one.y, dtype=float))
    return drawn


def _fill(k: int) -> str:
    colour = COLOURS[k % len(COLOURS)]
    return colour if k < len(COLOURS) else f"url(#hatch{k % len(COLOURS)})"


def _patterns(count: int) -> list[str]:
    """Hatches for bars, once the colours are used up."""
    return [
        f'<pattern id="hatch{k}" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{PAPER}"/>'
        f'<rect width="3.5" height="6" fill="{COLOURS[k]}"/></pattern>'
        for k in range(min(count - len(COLOURS), len(COLOURS)))
    ]


def _row_legend(
    entries: Iterable[tuple[str, Series]], width: float, y: float
) -> tuple[list[str], float]:
    """Return signs and names in rows, and the height at which they end."""
    shapes, x = [], MARGIN
    for sign, one in entries:
        wide = 34 + 7.2 * len(one.name) + 16
        if x + wide > width - MARGIN / 2 and x > MARGIN:
            x, y = MARGIN, y + 22
        words = svg.text(34, 0, one.name, size=12)
        shapes.append(f'<g transform="translate({x:.1f} {y:.1f})">{sign}{words}</g>')
        x += wide
    return shapes, y + 20


def _heading(title: str) -> list[str]:
    return [svg.text(MARGIN, 34, title, size=17, more='font-weight="bold"')] if title else []


# Heat maps. The colours go from dark blue to light yellow with evenly increasing lightness.

_STOPS = (
    (12, 16, 54),
    (52, 48, 130),
    (112, 72, 150),
    (188, 96, 120),
    (240, 150, 76),
    (253, 240, 150),
)


def _palette() -> NDArray[np.uint8]:
    at = np.linspace(0, len(_STOPS) - 1, 256)
    columns = [np.interp(at, range(len(_STOPS)), stop) for stop in zip(*_STOPS, strict=True)]
    palette: NDArray[np.uint8] = np.rint(np.stack(columns, axis=1)).astype(np.uint8)
    return palette


def _image(levels: NDArray[np.uint8], place: str) -> str:
    """Embed the levels as an image: one byte each, instead of about a hundred as a shape."""
    rows, columns = levels.shape
    raw = np.concatenate([np.zeros((rows, 1), np.uint8), levels], axis=1).tobytes()
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        (b"PLTE", _palette().tobytes()),
        (b"IDAT", zlib.compress(raw, 9)),
        (b"IEND", b""),
    )
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )
    sharp = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
    return f'<image {place} {sharp} href="data:image/png;base64,{base64.b64encode(png).decode()}"/>'


def _averaged(table: NDArray[np.float64], count: int, axis: int) -> NDArray[np.float64]:
    """At most `count` rows or columns, each the mean of its neighbours."""
    have = table.shape[axis]
    if have <= count:
        return table
    begin = np.arange(count) * have // count
    size = np.diff([*begin, have])
    sums = np.add.reduceat(table, begin, axis=axis)
    return sums / (size[:, None] if axis == 0 else size)


def _spread(labels: list[str], room: int) -> list[tuple[float, str]]:
    """Return the labels that fit, each with its position as a share of the height."""
    each = -(-len(labels) // max(room, 1)) or 1
    return [((i + 0.5) / len(labels), labels[i]) for i in range(0, len(labels), each)]


def _colour_bar(x: float, top: float, tall: float, meaning: Axis, high: float) -> list[str]:
    ramp = np.arange(255, -1, -1, dtype=np.uint8)[:, None]
    place = f'x="{x:.1f}" y="{top:.1f}" width="14" height="{tall:.1f}"'
    scale = Scale(Axis("", meaning.unit), 0.0, high, top + tall, top)
    shapes = [_image(ramp, place)]
    shapes += [
        svg.text(x + 19, scale(value) + 4, words, size=11) for value, words in scale.ticks(30)
    ]
    return [*shapes, svg.text(x, top - 8, meaning.label, size=11, more=f'fill="{GREY}"')]


def _check(series: Sequence[Series], x: Axis, y: Axis, width: int) -> None:
    """Raise an error that names what cannot be drawn."""
    if not 300 <= width <= 20_000:
        raise ValueError(f"width must be between 300 and 20000 pixels; got {width!r}")
    for one in series:
        if len(one.x) != len(one.y):
            raise ValueError(f'series "{one.name}" has {len(one.x)} places and {len(one.y)} values')
        for axis, values in ((x, np.asarray(one.x, float)), (y, np.asarray(one.y, float))):
            if axis.log and (values[_drawn(one)] <= 0).any():
                raise ValueError(
                    f'series "{one.name}" has {values[_drawn(one)].min():g} on the logarithmic '
                    f"axis {axis.label}, which takes positive values only"
                )
    if not any(_drawn(one).any() for one in series):
        raise ValueError("there is nothing to draw: no series has a value")
