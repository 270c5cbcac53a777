"""Rings drawn on a topology, and measured bandwidths compared with what a network allows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal

import numpy as np

from tacos.units import format_bandwidth
from tacos.view.axes import Axis
from tacos.view.charts import Series, lines
from tacos.view.layout import place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos._core import Topology
    from tacos.judgement import Judgement

__all__ = ["judgement_picture", "ring_picture"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#882255")
_WIDE, _MARGIN = 900, 60


def ring_picture(
    topology: Topology, rings: Sequence[Sequence[int]], *, title: str = "", most: int = 8
) -> str:
    """Draw rings through the NPUs of a topology as SVG text, one colour for each ring.

    Args:
        topology: The network; its links are grey.
        rings: The NPUs of each ring in order.
        title: What stands above.
        most: Draw at most this many rings; the title says how many there are.

    >>> import tacos.topology
    >>> picture = ring_picture(tacos.topology.ring(4), [(0, 1, 2, 3)], title="one ring")
    >>> picture.startswith("<svg ") and picture.count('class="ring"') == 1
    True
    """
    xy = np.array(place(topology).xy, float)
    low, span = xy.min(axis=0), np.maximum(np.ptp(xy, axis=0), 1e-9)
    scale = (_WIDE - 2 * _MARGIN) / max(span[0], span[1] / 2)
    at = (xy - low) * scale + _MARGIN
    at[:, 1] += 0.1 * float(np.ptp(at[:, 0]))  # long hops along a row bow above and below it
    tall = float(at[:, 1].max()) + _MARGIN + 0.1 * float(np.ptp(at[:, 0]))
    shown = list(rings)[:most]
    words = title if len(shown) == len(rings) else f"{title} ({len(shown)} of {len(rings)} drawn)"
    size = f'width="{_WIDE}" height="{tall:.0f}" viewBox="0 0 {_WIDE} {tall:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">',
        f'<rect width="{_WIDE}" height="{tall:.0f}" fill="white"/>',
        f'<text x="20" y="28" font-size="16">{_escaped(words)}</text>',
    ]
    for src, dst in zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True):
        if src < dst:
            parts.append(
                f'<line x1="{at[src, 0]:.1f}" y1="{at[src, 1]:.1f}" x2="{at[dst, 0]:.1f}" '
                f'y2="{at[dst, 1]:.1f}" stroke="#cccccc"/>'
            )
    for number, ring in enumerate(shown):
        stops = [*ring, ring[0]]
        way = f"M{at[stops[0], 0]:.1f} {at[stops[0], 1]:.1f}"
        for a, b in itertools.pairwise(stops):
            # Hops bow to one side, each ring a little further, so that those along a row stay apart.
            along = at[b] - at[a]
            bow = 0.18 + 0.05 * number
            middle = (at[a] + at[b]) / 2 + bow * np.array([along[1], -along[0]])
            way += f"Q{middle[0]:.1f} {middle[1]:.1f} {at[b, 0]:.1f} {at[b, 1]:.1f}"
        stroke = f'stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-width="1.6"'
        parts.append(f'<path class="ring" d="{way}" fill="none" {stroke}/>')
    for node in range(topology.nodes):
        npu = node < topology.npus
        shape = f'cx="{at[node, 0]:.1f}" cy="{at[node, 1]:.1f}" r="{9 if npu else 5}"'
        parts.append(f'<circle {shape} fill="{"#ffffff" if npu else "#888888"}" stroke="#333333"/>')
        if npu:
            parts.append(
                f'<text x="{at[node, 0]:.1f}" y="{at[node, 1] + 3.5:.1f}" font-size="10" '
                f'text-anchor="middle">{node}</text>'
            )
    return "\n".join([*parts, "</svg>"])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def judgement_picture(found: Judgement) -> str:
    """Measured busbw over size, beside the bound, the best algorithm and the model of NCCL, as SVG text.

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
