"""Drawings of topologies as SVG.

`draw` turns a network into shapes: it groups links into strands (a link and its twin are one
line; a link without a twin gets an arrow head), colours them by bandwidth, bends them around nodes,
and adds labels and the legend. `layout` chooses the positions of nodes, `excerpt` the nodes to draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from tacos.nodes import Network, topology_of
from tacos.topology.faults import repaired, said
from tacos.units import format_bandwidth, format_time
from tacos.view import svg
from tacos.view.excerpt import excerpt, times
from tacos.view.layout import Floats, Ints, Layout, place
from tacos.view.svg import COLOURS, GREY, INK, MARGIN, PAPER

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from tacos._core import Topology

__all__ = ["caption", "draw", "link_classes"]

Labels: TypeAlias = Literal["auto", "ids", "names", "none"]

_DETAILED = 300  # up to this number of nodes, every node and link has its own shape and tooltip
_MOST_LINES = 20_000
_DEAD = "#c0392b"


def draw(
    topology: Network,
    path: str | os.PathLike[str] | None = None,
    *,
    labels: Labels = "auto",
    width: int = 900,
) -> str:
    """Draw a topology and return the picture as SVG text.

    Args:
        topology: The network. Above 5,000 nodes, only an excerpt is drawn, which the caption describes.
        path: Also write the picture there, as SVG or, with the extra ``plot``, as PNG.
        labels: Labels of nodes; ``"auto"`` uses names if they fit, otherwise ids if they fit, otherwise
            none.
        width: Width of the picture in pixels; the height follows from the layout.

    >>> import tacos.topology
    >>> picture = draw(tacos.topology.torus(4, 4))
    >>> picture.startswith("<svg ") and "16 NPUs" in picture
    True
    """
    topology = topology_of(topology)
    if labels not in ("auto", "ids", "names", "none"):
        raise ValueError(f'labels must be one of "auto", "ids", "names", "none"; got {labels!r}')
    if not 100 <= width <= 20_000:
        raise ValueError(f"width must be between 100 and 20000 pixels; got {width!r}")
    target = None if path is None else svg.checked(path)
    picture = _Picture.of(topology, labels, width).svg()
    if target is not None:
        svg.save(picture, target)
    return picture


# Links as strands: one line for a link and its twin.


class _Class(NamedTuple):
    """A class of links that are drawn in the same way."""

    text: str
    links: int
    colour: str
    width: float
    dash: str = ""

    @property
    def dashes(self) -> str:
        return f' stroke-dasharray="{self.dash}"' if self.dash else ""


class _Strands(NamedTuple):
    """Columns of lines to draw, `a` < `b`."""

    a: Ints
    b: Ints
    kind: Ints  # index into the classes
    way: Ints  # 0 both ways, 1 only from a to b, -1 only from b to a
    links: Ints  # parallel links drawn as this one line
    shift: Floats  # sideways, in line pitches, so that parallel lines lie side by side


def link_classes(topology: Topology) -> tuple[list[_Class], Ints]:
    """Return the classes of links, the fastest first, and the class of every link."""
    speed, latency = topology.link_bandwidth_Bps, topology.link_latency_ps
    pairs, kind, counts = np.unique(
        np.stack([-speed, latency]), axis=1, return_inverse=True, return_counts=True
    )
    kind = kind.ravel().astype(np.int64)
    if len(counts) <= len(COLOURS):
        texts = [f"{format_bandwidth(-fast)}, {format_time(wait / 1e12)}" for fast, wait in pairs.T]
        peak = [-int(fast) for fast in pairs[0]]
    else:  # too many to tell apart: use ranges of bandwidth
        cuts = np.unique(
            np.quantile(speed, np.linspace(0, 1, len(COLOURS) + 1)[1:-1], method="nearest")
        )
        band = len(cuts) - np.searchsorted(cuts, speed, side="left")
        _, kind = np.unique(band, return_inverse=True)
        counts = np.bincount(kind)
        ranges = [speed[kind == k] for k in range(len(counts))]
        texts = [_range(int(s.min()), int(s.max())) for s in ranges]
        peak = [int(s.max()) for s in ranges]
    low, high = np.log(min(peak, default=1)), np.log(max(peak, default=1))
    return [
        _Class(texts[k], int(counts[k]), COLOURS[k], 1.0 + 2.6 * _share(np.log(peak[k]), low, high))
        for k in range(len(counts))
    ], kind


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high - low < 1e-9 else float((value - low) / (high - low))


def _range(low: int, high: int) -> str:
    return (
        format_bandwidth(low)
        if low == high
        else f"{format_bandwidth(low)} to {format_bandwidth(high)}"
    )


def _strands(topology: Topology, kind: Ints) -> _Strands:
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    low, high = np.minimum(src, dst), np.maximum(src, dst)
    exact = np.stack([low, high, kind, topology.link_bandwidth_Bps, topology.link_latency_ps])
    groups, which = np.unique(exact, axis=1, return_inverse=True)
    forth = np.bincount(which.ravel(), src < dst, groups.shape[1]).astype(np.int64)
    back = np.bincount(which.ravel(), src > dst, groups.shape[1]).astype(np.int64)
    both = np.minimum(forth, back)
    columns = np.concatenate(
        [
            np.stack([*groups[:3], np.full_like(both, way), count])[:, count > 0]
            for way, count in ((0, both), (1, forth - both), (-1, back - both))
        ],
        axis=1,
    )
    columns = columns[:, np.lexsort(columns[[3, 2, 1, 0]])]
    # A few parallel links are drawn separately; many are one line with a number.
    few = np.where(columns[4] <= 4, columns[4], 1)
    columns = np.repeat(columns, few, axis=1)
    count = np.where(columns[4] <= 4, 1, columns[4])
    _, first, size = np.unique(
        columns[0] * topology.nodes + columns[1], return_index=True, return_counts=True
    )
    place_in_pair = np.arange(columns.shape[1]) - np.repeat(first, size)
    shift = place_in_pair - (np.repeat(size, size) - 1) / 2
    return _Strands(columns[0], columns[1], columns[2], columns[3], count, shift)


# Shapes. Coordinates are pixels from here on.


@dataclass
class _Picture:
    whole: Topology
    topology: Topology  # the network or an excerpt of it
    nodes: Ints  # ids of its nodes in the whole network
    classes: list[_Class]
    strands: _Strands
    notes: list[str]
    labels: Labels
    width: int
    layout: Layout
    xy: Floats
    height: float  # height of the drawing without legend and notes
    scale: float  # pixels per unit
    offset: Floats  # position of the layout's origin
    radius: float
    bar: float  # height of a bar

    @classmethod
    def of(cls, whole: Topology, labels: Labels, width: int) -> _Picture:
        classes, kind = link_classes(whole)
        shown = whole
        if whole.faults is not None:
            shown, now = repaired(whole)
            dead = int((now < 0).sum())
            kind = np.where(now >= 0, kind[now] if whole.links else -1, len(classes))
            classes += [_Class("dead", dead, _DEAD, 1.6, "5 4")] if dead else []
        part = excerpt(shown)
        topology, layout = part.topology, place(part.topology)
        strands = _strands(topology, kind[part.links])
        notes = [part.note] if part.note else []
        notes += [f"Fault: {one}." for one in said(whole)]
        total = len(strands.a)
        if total > _MOST_LINES:
            keep = np.arange(_MOST_LINES) * total // _MOST_LINES
            strands = _Strands(*(column[keep] for column in strands))  # type: ignore[arg-type]
            notes.append(f"{_MOST_LINES:,} of {total:,} lines are drawn, evenly chosen.")
        gap = layout.gap()
        sides = np.column_stack([layout.half, np.zeros(topology.nodes)]) + 0.45 * gap
        low = (layout.xy - sides).min(axis=0)
        high = (layout.xy + sides).max(axis=0)
        for frame in layout.frames:
            low = np.minimum(low, (frame.left, frame.top))
            high = np.maximum(high, (frame.right, frame.bottom + 0.5))
        between = len(layout.rise) and not np.isnan(layout.rise[0])
        for a, b in zip(strands.a.tolist(), strands.b.tolist(), strict=True) if between else ():
            if (way := layout.corners(a, b)) is not None:
                low, high = np.minimum(low, way.min(axis=0)), np.maximum(high, way.max(axis=0))
        extent = np.maximum(high - low, 1e-6)
        scale = min((width - 2 * MARGIN) / extent[0], 0.8 * width / extent[1], 140.0 / gap)
        small = topology.nodes <= _DETAILED
        top = 74.0
        # Flat pictures of boxes are stretched, to make room for labels below nodes.
        tall = min(0.55 * width / (scale * extent[1]), layout.elastic, 1.5)
        stretch = np.array([1.0, max(tall, 1.0)])
        layout = layout.stretched(stretch)
        low, high, extent = low * stretch, high * stretch, extent * stretch
        offset = np.array([width / 2 - scale * (low[0] + high[0]) / 2, top - scale * low[1]])
        return cls(
            whole=whole,
            topology=topology,
            nodes=part.nodes,
            classes=classes,
            strands=strands,
            notes=notes,
            labels=labels,
            width=width,
            layout=layout,
            xy=layout.xy * scale + offset,
            height=top + scale * extent[1],
            scale=scale,
            offset=offset,
            radius=float(np.clip((0.3 if small else 0.2) * gap * scale, 0.8, 20.0)),
            bar=float(np.clip(0.36 * scale, 13.0 if small else 2.0, 20.0)),
        )

    @property
    def detailed(self) -> bool:
        return self.topology.nodes <= _DETAILED

    def svg(self) -> str:
        title, subtitle = caption(self.whole)
        legend, height = self._legend()
        shapes = [
            svg.text(MARGIN, 34, title, size=19, more='font-weight="bold"'),
            svg.text(MARGIN, 54, subtitle, size=12.5, more=f'fill="{GREY}"'),
            *self._frames(),
            *self._links(),
            *self._nodes(),
            *legend,
        ]
        return svg.document(shapes, self.width, height, f"{title}: {subtitle}")

    def _frames(self) -> Iterator[str]:
        offset, size = self.offset, float(np.clip(0.3 * self.scale, 10, 13))
        for frame in self.layout.frames:
            x, y = offset + self.scale * np.array([frame.left, frame.top])
            wide, high = (
                self.scale * (frame.right - frame.left),
                self.scale * (frame.bottom - frame.top),
            )
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" '
                f'rx="{min(8, 0.2 * self.scale):.1f}" fill="#f5f7fa" stroke="#cbd2d9"/>'
            )
            if _width(frame.label, size) <= wide + 0.4 * self.scale:
                # Below the frame, where there are no links and no switches.
                yield svg.text(
                    x + 2, y + high + 1.1 * size, frame.label, size=size, more=f'fill="{GREY}"'
                )

    # Links.

    def _links(self) -> Iterator[str]:
        bow, thin = self._bows(), self._thinness()
        for k, one in reversed(list(enumerate(self.classes))):  # the fastest on top
            lines = np.flatnonzero(self.strands.kind == k)
            shapes = [self._shape(int(i), float(bow[i])) for i in lines]
            yield (
                f'<g fill="none" stroke="{one.colour}" stroke-width="{one.width * thin:.2f}" '
                f'stroke-opacity="{0.9 if thin == 1 else 0.6}"{one.dashes}>'
            )
            if len(lines) > 2_000:
                yield f'<path d="{"".join(shape.path for shape in shapes)}"/>'
            else:
                for i, shape in zip(lines, shapes, strict=True):
                    tip = svg.escaped(self._link_text(int(i), one))
                    yield f'<path d="{shape.path}"><title>{tip}</title></path>'
            yield "</g>"
            yield from self._arrows(lines, shapes, one)

    def _thinness(self) -> float:
        """Return the factor for line widths that keeps lines from covering too much of the picture."""
        width = np.array([one.width for one in self.classes])[self.strands.kind]
        length = np.hypot(*(self.xy[self.strands.a] - self.xy[self.strands.b]).T)
        paper = np.prod(np.ptp(self.xy, axis=0) + 4 * self.radius)
        return float(np.clip(0.3 * paper / max((width * length).sum(), 1e-9), 0.15, 1.0))

    def _arrows(self, lines: Ints, shapes: list[_Shape], one: _Class) -> Iterator[str]:
        strands = self.strands
        size = float(np.clip(0.55 * self.radius, 2.5, 7.0))
        for i, shape in zip(lines, shapes, strict=True):
            if strands.way[i] != 0:
                along = shape.along * strands.way[i] * size
                across = np.array([-along[1], along[0]]) * 0.62
                # Past the middle, so that it does not touch the arrow head of a neighbouring line.
                tip, tail = shape.middle + 2.2 * along, shape.middle + 0.5 * along
                corners = " ".join(
                    f"{x:.1f},{y:.1f}" for x, y in (tip, tail + across, tail - across)
                )
                yield f'<polygon points="{corners}" fill="{one.colour}"/>'
            if strands.links[i] > 1 and self.radius >= 5:
                x, y = shape.middle
                yield svg.text(x, y, f"×{strands.links[i]}", size=10, more=_HALO)

    def _link_text(self, i: int, one: _Class) -> str:
        strands = self.strands
        a, b = (self._full_name(int(end[i])) for end in (strands.a, strands.b))
        ends = {0: f"{a} ↔ {b}", 1: f"{a} → {b}", -1: f"{b} → {a}"}[int(strands.way[i])]
        times = f" ×{strands.links[i]}" if strands.links[i] > 1 else ""
        return f"{ends}: {one.text}{times}"

    def _bows(self) -> Floats:
        """Return how far each line bends, in pixels; 0 unless a node is in its way."""
        strands = self.strands
        bow = np.zeros(len(strands.a))
        plain = self.layout.half == 0
        far = np.hypot(*(self.xy[strands.a] - self.xy[strands.b]).T) > 4 * self.radius
        lines = np.flatnonzero(plain[strands.a] & plain[strands.b] & far)
        if len(lines) * len(self.xy) > 10**7:
            return bow
        for part in np.array_split(lines, max(1, len(lines) * len(self.xy) // 10**6)):
            a, b = self.xy[strands.a[part]], self.xy[strands.b[part]]
            length = np.maximum(np.hypot(*(b - a).T), 1e-9)
            unit = (b - a) / length[:, None]
            delta = self.xy[None, :, :] - a[:, None, :]
            along = (delta * unit[:, None]).sum(axis=2)
            aside = np.abs(delta[..., 0] * unit[:, 1, None] - delta[..., 1] * unit[:, 0, None])
            hit = (aside < 0.8 * self.radius) & (along > 1e-3) & (along < length[:, None] - 1e-3)
            hit[np.arange(len(part)), strands.a[part]] = False
            hit[np.arange(len(part)), strands.b[part]] = False
            bow[part] = np.where(hit.any(axis=1), 1.5 * self.radius, 0.0)
        return bow

    def _shape(self, i: int, bow: float) -> _Shape:
        a, b = int(self.strands.a[i]), int(self.strands.b[i])
        half = self.layout.half * self.scale
        start, end = self.xy[a].copy(), self.xy[b].copy()
        aside = self.strands.shift[i] * max(2.5, 0.28 * self.radius)
        if (way := self.layout.corners(a, b)) is not None:
            return _corners(way * self.scale + self.offset + [aside, 0])
        if half[a] or half[b]:
            for npu, bar in ((a, b), (b, a)):
                detour = (
                    self.layout.detours[npu, int(self.xy[bar, 1] > self.xy[npu, 1])] * self.scale
                )
                if detour and half[bar]:
                    return _elbow(self.xy[npu], self.xy[bar, 1], detour + aside, turned=npu == b)
            # Vertical from the middle of the narrower one if the wider one is above it, otherwise slanted.
            narrow, wide = (a, b) if half[a] <= half[b] else (b, a)
            apart = abs(start[0] - end[0])
            if apart <= half[wide]:
                start[0] = end[0] = self.xy[narrow, 0]
            else:
                toward = np.sign(end[0] - start[0])
                start[0] += toward * min(0.5 * half[a], apart)
                end[0] -= toward * min(0.5 * half[b], apart)
        return _line(start, end, aside, bow)

    # Nodes.

    def _nodes(self) -> Iterator[str]:
        outline = min(1.2, 0.15 * self.radius)
        yield f'<g fill="#e4eef6" stroke="{INK}" stroke-width="{outline:.2f}">'
        for node in range(self.topology.npus):
            x, y = self.xy[node]
            yield self._with_tip(f'circle cx="{x:.1f}" cy="{y:.1f}" r="{self.radius:.1f}"', node)
        yield "</g>"
        yield f'<g fill="#3e4c59" stroke="{PAPER}" stroke-width="0.8">'
        for node in range(self.topology.npus, self.topology.nodes):
            x, y = self.xy[node]
            half = max(self.layout.half[node] * self.scale, self.radius)
            high = self.bar if self.layout.half[node] else 2 * self.radius
            yield self._with_tip(
                f'rect x="{x - half:.1f}" y="{y - high / 2:.1f}" width="{2 * half:.1f}" '
                f'height="{high:.1f}" rx="{0.25 * high:.1f}"',
                node,
            )
        yield "</g>"
        yield from self._labels()

    def _with_tip(self, shape: str, node: int) -> str:
        if not self.detailed:
            return f"<{shape}/>"
        tag = shape.partition(" ")[0]
        return f"<{shape}><title>{svg.escaped(self._full_name(node))}</title></{tag}>"

    def _full_name(self, node: int) -> str:
        if self.topology.names:
            return self.topology.names[node]
        return (
            f"NPU {self.nodes[node]}"
            if node < self.topology.npus
            else f"switch {self._number(node)}"
        )

    def _number(self, node: int) -> int:
        """Return a node's number among the NPUs or the switches of the whole network."""
        return int(self.nodes[node]) - (self.whole.npus if node >= self.topology.npus else 0)

    def _labels(self) -> Iterator[str]:
        if self.labels == "none" or (self.labels == "auto" and not self.detailed):
            return
        npus = range(self.topology.npus)
        numbers = [str(self._number(npu)) for npu in npus]
        texts, names = numbers, [self._short(npu) for npu in npus] if self.topology.names else []
        inside, apart = 1.75 * self.radius, self.layout.gap() * self.scale
        below = False
        if names and self.labels != "ids":
            below = _fitting(names, inside) < _SMALLEST
            if self.labels == "names" or not below or self._have_room(names):
                texts = names
            below = below and texts is names
        size = min(12.0, 0.9 * inside, _fitting(texts, inside))
        if texts is numbers and size < _SMALLEST:
            room = apart - 2 * self.radius >= 1.2 * _SMALLEST
            fits = room and _fitting(texts, 0.9 * apart) >= _SMALLEST
            below = self.labels == "ids" or fits  # under the nodes
        for (x, y), text in zip(self.xy, texts, strict=False):
            if below:
                yield svg.text(x, y + self.radius + 11, text, size=_SMALLEST, more=_HALO)
            elif size >= _SMALLEST - 1e-9:
                yield svg.text(x, y + 0.35 * size, text, size=size, more=_MIDDLE)
        for switch in range(self.topology.npus, self.topology.nodes):
            yield from self._switch_label(switch)

    def _have_room(self, names: list[str]) -> bool:
        """Return whether names below the NPUs touch neither each other nor another NPU."""
        xy = self.xy[: len(names)]
        reach = np.array([_width(name, _SMALLEST) for name in names]) / 2
        across, down = (xy[:, None, k] - xy[None, :, k] for k in (0, 1))
        other = ~np.eye(len(names), dtype=bool)
        texts = (np.abs(across) < reach[:, None] + reach) & (np.abs(down) < 1.1 * _SMALLEST)
        middle = self.radius + 0.7 * _SMALLEST  # of a name, below its NPU
        nodes = (np.abs(across) < reach[:, None] + self.radius) & (
            np.abs(down + middle) < self.radius + 0.5 * _SMALLEST
        )
        return not ((texts | nodes) & other).any()

    def _short(self, node: int) -> str:
        """Return a node's name, without its box if a frame shows that."""
        name: str = self.topology.names[node]
        owner, _, rest = name.rpartition("/")
        return rest if any(frame.label == owner for frame in self.layout.frames) else name

    def _switch_label(self, switch: int) -> Iterator[str]:
        wide = max(2 * self.layout.half[switch] * self.scale, 2 * self.radius) - 3
        high = self.bar if self.layout.half[switch] else 2 * self.radius
        number = str(self._number(switch))
        full = self._full_name(switch) if self.labels != "ids" else number
        if self.topology.names and self.labels != "ids":
            full = self._short(switch)
        x, y = self.xy[switch]
        for text in (full, number):
            size = min(12.0, 0.8 * high, _fitting([text], wide))
            if size >= _SMALLEST - 1e-9:
                style = f'{_MIDDLE} fill="{PAPER}"'
                yield svg.text(x, y + 0.35 * size, text, size=size, more=style)
                return
            if text is full and self.topology.names and not self.layout.half[switch]:
                yield svg.text(x, y + self.radius + 11, text, size=_SMALLEST, more=_HALO)
                return

    # Legend and notes.

    def _legend(self) -> tuple[list[str], float]:
        """Return the legend's shapes, and the height of the whole picture."""
        entries = [(_NPU_SIGN, "NPU")]
        capabilities = self.topology.switch_capabilities
        if len(capabilities):
            able = [
                name
                for bit, name in ((1, "multicasts"), (2, "reduces"))
                if (capabilities & bit).any()
            ]
            entries.append((_SWITCH_SIGN, "switch" + (f" ({' and '.join(able)})" if able else "")))
        for one in self.classes:
            sign = f'<path d="M0 -4H26" stroke="{one.colour}" stroke-width="{one.width + 0.6:.1f}"{one.dashes}/>'
            entries.append((sign, f"{one.text} ({one.links:,} links)"))
        if self.strands.way.any():
            entries.append((_ARROW_SIGN, "one way, or its twin differs"))
        shapes, x, y = [], MARGIN, self.height + 30
        for sign, text in entries:
            wide = 34 + 6.6 * len(text) + 20
            if x + wide > self.width - MARGIN / 2 and x > MARGIN:
                x, y = MARGIN, y + 22
            shapes.append(
                f'<g transform="translate({x:.1f} {y:.1f})">{sign}{svg.text(34, 0, text, size=12)}</g>'
            )
            x += wide
        for note in self.notes:
            y += 22
            shapes.append(
                svg.text(MARGIN, y, note, size=12, more=f'fill="{GREY}" font-style="italic"')
            )
        return shapes, y + 20


class _Shape(NamedTuple):
    path: str
    middle: Floats
    along: Floats  # direction at the middle, of length 1


def _line(start: Floats, end: Floats, aside: float, bow: float) -> _Shape:
    """Return a straight line shifted by `aside`, or a curve that bends by `bow`."""
    length = max(float(np.hypot(*(end - start))), 1e-9)
    along = (end - start) / length
    across = np.array([along[1], -along[0]])
    if along[0] < -1e-9 or (abs(along[0]) <= 1e-9 and along[1] < 0):
        across = -across  # rows bend up and columns right, whichever end comes first
    middle = (start + end) / 2 + across * (aside + bow)
    start, end = start + across * aside, end + across * aside
    if not bow:
        return _Shape(f"M{_at(start)}L{_at(end)}", middle, along)
    reach = across * bow * 4 / 3  # a curve's middle is three quarters of the way to its handles
    return _Shape(
        f"M{_at(start)}C{_at(start + reach)} {_at(end + reach)} {_at(end)}", middle, along
    )


def _corners(way: Floats) -> _Shape:
    """Return straight segments through the given points."""
    long = int(np.argmax(np.hypot(*np.diff(way, axis=0).T)))
    along = way[long + 1] - way[long]
    path = "L".join(_at(point) for point in way)
    middle = (way[long] + way[long + 1]) / 2
    return _Shape(f"M{path}", middle, along / max(float(np.hypot(*along)), 1e-9))


def _elbow(node: Floats, height: float, detour: float, *, turned: bool) -> _Shape:
    """Return a line that goes sideways into a detour, then up or down to a bar."""
    x = node[0] + detour
    along = np.array([0.0, np.sign(height - node[1])]) * (-1 if turned else 1)
    return _Shape(
        f"M{_at(node)}H{x:.1f}V{height:.1f}", np.array([x, (node[1] + height) / 2]), along
    )


def _at(point: Floats) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


_HALO = f'paint-order="stroke" stroke="{PAPER}" stroke-width="3" text-anchor="middle"'
_SMALLEST = 10.0
"""Smallest font in pixels; smaller labels are omitted."""
_MIDDLE = 'text-anchor="middle"'
_NPU_SIGN = f'<circle cx="13" cy="-4" r="6" fill="#e4eef6" stroke="{INK}"/>'
_SWITCH_SIGN = '<rect x="3" y="-10" width="22" height="12" rx="3" fill="#3e4c59"/>'
_ARROW_SIGN = f'<path d="M0 -4H26" stroke="{INK}"/><polygon points="18,-4 9,-8.5 9,0.5"/>'


def _width(words: str, size: float) -> float:
    """Return the approximate width of a text."""
    return 0.6 * size * len(words)


def _fitting(texts: list[str], width: float) -> float:
    """Return the font size at which the longest of the texts is `width` wide."""
    return width / (0.6 * max(1, *map(len, texts)))


def caption(topology: Topology) -> tuple[str, str]:
    """Return the name of a network and a summary of its parts.

    >>> import tacos.topology
    >>> caption(tacos.topology.torus(4, 4))[0]
    'torus 4×4'
    """
    return _title(topology), _subtitle(topology)


def _title(topology: Topology) -> str:
    dims, family = topology.dims, topology.family or "custom topology"
    if family == "product":
        return "product " + " × ".join(f"{kind} {size}" for kind, size in dims)
    if not family.isidentifier():  # a name that a user gave
        return family
    sizes = times([size for _, size in dims])
    if len(dims) > 3 and {size for _, size in dims} == {2}:
        sizes = f"2^{len(dims)}"
    return f"{family.replace('_', ' ')} {sizes}".strip()


def _subtitle(topology: Topology) -> str:
    counts = [f"{topology.npus:,} NPU{'s' * (topology.npus != 1)}"]
    if topology.switches:
        counts.append(f"{topology.switches:,} switch{'es' * (topology.switches != 1)}")
    counts.append(f"{topology.links:,} directed links")
    forwarding = topology.forwarding.replace("_", "-")
    return f"{', '.join(counts)}, {topology.link_model} links, {forwarding} forwarding"
