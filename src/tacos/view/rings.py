"""Drawings of rings on a topology, and charts of measured bandwidths against the bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from tacos.schedule import paths
from tacos.units import format_bandwidth
from tacos.view import svg
from tacos.view.axes import Axis
from tacos.view.charts import Series, lines
from tacos.view.curves import ELBOW, LINE, curves
from tacos.view.layout import place
from tacos.view.svg import COLOURS, GREY, INK, MARGIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos._core import Topology
    from tacos.judgement import Judgement
    from tacos.view.layout import Floats, Layout

__all__ = ["judgement_picture", "ring_links", "ring_picture"]

_COLOURS = (*COLOURS, "#999933", "#882255")
_WIDE, _TOP = 900, 52.0


def ring_picture(
    topology: Topology, rings: Sequence[Sequence[int]], *, title: str = "", most: int = 8
) -> str:
    """Draw rings through the NPUs of a topology as SVG text, one colour for each ring.

    A ring follows the links of its hops, slightly shifted from the other rings.

    Args:
        topology: The network; its links are grey.
        rings: The NPUs of each ring in order.
        title: Text above the picture.
        most: Draw at most this many rings; the title says how many there are.

    >>> import tacos.topology
    >>> picture = ring_picture(tacos.topology.ring(4), [(0, 1, 2, 3)], title="one ring")
    >>> picture.startswith("<svg ") and picture.count('class="ring"') == 1
    True
    """
    layout = place(topology)
    low, high = layout.xy.min(axis=0), layout.xy.max(axis=0)
    sides = np.column_stack([layout.half, np.zeros(len(layout.half))])
    low, high = (
        np.minimum(low, (layout.xy - sides).min(axis=0)),
        np.maximum(high, (layout.xy + sides).max(axis=0)),
    )
    for frame in layout.frames:
        low = np.minimum(low, (frame.left, frame.top))
        high = np.maximum(high, (frame.right, frame.bottom))
    low, high = low - 0.5, high + 0.5
    span = high - low
    scale = min((_WIDE - 2 * MARGIN) / float(span[0]), 560 / float(span[1]), 150.0)
    tall = min(max(1.0, 300 / (scale * float(span[1]))), 1.6, layout.elastic)
    by = np.array([scale, scale * tall])
    offset = np.array([(_WIDE - scale * (low[0] + high[0])) / 2, _TOP + 30 - by[1] * low[1]])
    ways = curves(topology, layout)
    radius = float(np.clip(ways.radius * scale, 3.0, 16.0))
    shown = list(rings)[:most]
    words = title if len(shown) == len(rings) else f"{title} ({len(shown)} of {len(rings)} drawn)"
    parts = [svg.text(MARGIN, 34, words, size=17, more='font-weight="bold"')]
    for frame in layout.frames:
        x, y = np.array([frame.left, frame.top]) * by + offset
        wide, deep = np.array([frame.right - frame.left, frame.bottom - frame.top]) * by
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{deep:.1f}" rx="6" '
            'fill="#f5f7fa" stroke="#cbd2d9"/>'
        )
        label = svg.text(x + 2, y + deep + 12, frame.label, size=11, more=f'fill="{GREY}"')
        parts.append(label)
    points = ways.points.astype(float) * by + offset
    plain = "".join(_way(points[k], int(ways.kind[k])) for k in range(topology.links))
    parts.append(f'<path d="{plain}" fill="none" stroke="#cccccc"/>')
    pitch = min(2.6, 12 / max(len(shown), 1))
    for number, ring in enumerate(shown):
        aside = (number - (len(shown) - 1) / 2) * pitch
        way = "".join(
            _way(points[k] + aside, int(ways.kind[k])) for k in ring_links(topology, ring)
        )
        stroke = f'stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-width="1.8"'
        order = " → ".join(topology.node_name(int(npu)) for npu in ring)
        tip = f"<title>{svg.escaped(f'ring {number}: {order}')}</title>"
        parts.append(f'<path class="ring" d="{way}" fill="none" {stroke}>{tip}</path>')
    parts += _nodes(topology, layout, layout.xy * by + offset, scale, radius)
    bottom = float(high[1] * by[1] + offset[1]) + 54
    for number in range(len(shown)):
        x = MARGIN + 92 * (number % 9)
        y = bottom + 20 * (number // 9)
        colour = _COLOURS[number % len(_COLOURS)]
        sign = f'<path d="M{x:.0f} {y - 4:.0f}h24" stroke="{colour}" stroke-width="2.4"/>'
        parts += [sign, svg.text(x + 30, y, f"ring {number}", size=12)]
    tall_all = bottom + 20 * ((len(shown) - 1) // 9) + 24
    return svg.document(parts, _WIDE, tall_all, words or "rings")


def _way(points: Floats, kind: int) -> str:
    a, b, c, d = (f"{x:.1f} {y:.1f}" for x, y in points)
    if kind == LINE:
        return f"M{a}L{d}"
    return f"M{a}L{b}L{c}L{d}" if kind == ELBOW else f"M{a}C{b} {c} {d}"


def _nodes(
    topology: Topology, layout: Layout, at: Floats, scale: float, radius: float
) -> list[str]:
    """Draw NPUs with their numbers, and switches."""
    shapes = []
    for node in range(topology.nodes):
        x, y = at[node]
        if node >= topology.npus:
            half = max(float(layout.half[node]) * scale, radius)
            shapes.append(
                f'<rect x="{x - half:.1f}" y="{y - 7:.1f}" width="{2 * half:.1f}" height="14" rx="3" '
                'fill="#3e4c59"/>'
            )
            continue
        shapes.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#e4eef6" stroke="{INK}"/>'
        )
        if radius >= 8:
            more = 'text-anchor="middle"'
            shapes.append(svg.text(x, y + 3.6, str(node), size=10, more=more))
    return shapes


def ring_links(topology: Topology, ring: Sequence[int]) -> list[int]:
    """Return the links of a ring's hops in order, with a shortest route for each hop.

    >>> import tacos.topology
    >>> ring_links(tacos.topology.ring(4, bidirectional=False), (0, 1, 2, 3))
    [0, 1, 2, 3]
    """
    stops = np.array(ring, np.int32)
    found: list[int] = paths(topology, (stops, np.roll(stops, -1))).links.tolist()
    return found


def judgement_picture(found: Judgement) -> str:
    """Draw measured busbw over size, with the bound, the best algorithm and the model of NCCL, as SVG text.

    Raises:
        ValueError: The judgement has no sizes.
    """
    if not found.rows:
        raise ValueError(f"{found.source} has no results to draw")
    sizes = [float(row.size_bytes) for row in found.rows]
    factor = [row.busbw_Bps * row.time_s for row in found.rows]
    curves = {
        "measured": [row.busbw_Bps for row in found.rows],
        "bound": [f / row.bound_s for f, row in zip(factor, found.rows, strict=True)],
        "best algorithm": [
            f / row.best_s if row.best_s else np.nan
            for f, row in zip(factor, found.rows, strict=True)
        ],
        "NCCL, by its model": [
            f / row.nccl_s if row.nccl_s else np.nan
            for f, row in zip(factor, found.rows, strict=True)
        ],
    }
    roles: dict[str, Literal["plain", "strong", "ceiling"]] = {
        "measured": "strong",
        "bound": "ceiling",
    }
    series = [
        Series(name, values, sizes, roles.get(name, "plain"))
        for name, values in curves.items()
        if not all(np.isnan(values))
    ]
    top = format_bandwidth(max(curves["measured"]))
    title = f"{found.collective} of {found.ranks} ranks: at most {top} measured"
    return lines(series, Axis("size", "size", log=True), Axis("busbw", "bandwidth"), title=title)
