"""The curve of every link in the viewer's picture, one per direction, as columns.

A link and its twin run side by side, each on the right of its direction of travel, so that chunks
on one are not mistaken for chunks on the other. Lengths are in units of the layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from tacos._core import Topology
    from tacos.view.layout import Floats, Ints, Layout

__all__ = ["ELBOW", "LINE", "Curves", "curves"]

LINE, CURVE, ELBOW = 0, 1, 2
_DETAILED = 300  # up to this number, nodes are drawn large
_MOST_TESTS = 50_000_000  # most pairs of a long link and a node to test for overlap


class Curves(NamedTuple):
    """Per link: start, two handles and end, with the kind of its curve."""

    points: npt.NDArray[np.float32]  # (links, 4, 2)
    kind: npt.NDArray[np.uint8]  # LINE, CURVE (Bézier), or ELBOW (corners at the handles)
    radius: float  # of an NPU
    width: float  # that a link may have


def curves(topology: Topology, layout: Layout) -> Curves:
    """Return the curves of all links.

    >>> import tacos.topology
    >>> from tacos.view.layout import place
    >>> line = tacos.topology.mesh(2)
    >>> found = curves(line, place(line))
    >>> [bool(y > 0) for y in found.points[:, 0, 1]]  # there below the axis, back above it
    [True, False]
    """
    xy, half = layout.xy, layout.half
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    radius = (0.3 if topology.nodes <= _DETAILED else 0.22) * layout.gap()
    start, end = _ends(xy, half, src, dst)
    shift = _shifts(topology, radius)
    way = end - start
    length = np.maximum(np.hypot(way[:, 0], way[:, 1]), 1e-9)
    right = np.column_stack([-way[:, 1], way[:, 0]]) / length[:, None]
    start, end = start + right * shift[:, None], end + right * shift[:, None]
    bow = _bows(layout, src, dst, radius)
    # Rows bend up and columns right, whichever end comes first, so twins stay side by side.
    turned = (way[:, 0] < -1e-9) | ((np.abs(way[:, 0]) <= 1e-9) & (way[:, 1] < 0))
    handle = -right * np.where(turned, -1.0, 1.0)[:, None] * (bow * 4 / 3)[:, None]
    points = np.stack([start, start + handle, end + handle, end], axis=1)
    kind = np.where(bow > 0, CURVE, LINE).astype(np.uint8)
    pitch = _bend(points, kind, layout, src, dst, radius)
    _leave_boxes(points, kind, layout, src, dst, shift)
    return Curves(points.astype(np.float32), kind, radius, min(0.17 * radius, 0.6 * pitch))


def _ends(xy: Floats, half: Floats, src: Ints, dst: Ints) -> tuple[Floats, Floats]:
    """Return where links begin and end: a link to a bar is vertical if the bar is wide enough."""
    start, end = xy[src].copy(), xy[dst].copy()
    apart = np.abs(start[:, 0] - end[:, 0])
    wide = np.maximum(half[src], half[dst])
    upright = (wide > 0) & (apart <= wide)
    x = np.where(half[src] <= half[dst], start[:, 0], end[:, 0])
    toward = np.sign(end[:, 0] - start[:, 0])
    # Slanted lines leave a bar well inside its end, so that they pass above the next bar.
    start[:, 0] = np.where(upright, x, start[:, 0] + toward * np.minimum(0.5 * half[src], apart))
    end[:, 0] = np.where(upright, x, end[:, 0] - toward * np.minimum(0.5 * half[dst], apart))
    return start, end


def _shifts(topology: Topology, radius: float) -> Floats:
    """Return how far each link is shifted to the right of its direction."""
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    there, back = src * topology.nodes + dst, dst * topology.nodes + src
    order = np.argsort(there, kind="stable")
    ordered = there[order]
    rank = np.empty(len(there), np.int64)
    rank[order] = np.arange(len(there)) - np.searchsorted(ordered, ordered)
    alike, twins = (
        np.searchsorted(ordered, keys, side="right") - np.searchsorted(ordered, keys)
        for keys in (there, back)
    )
    pitch = np.minimum(0.62 * radius, 0.9 * radius / np.maximum(np.maximum(alike, twins), 1))
    aside: Floats = np.where(twins > 0, rank + 0.5, rank - (alike - 1) / 2) * pitch
    return aside


def _bows(layout: Layout, src: Ints, dst: Ints, radius: float) -> Floats:
    """Return how far each link bends; 0 unless a node is in its way."""
    xy, plain = layout.xy, layout.half == 0
    bow = np.zeros(len(src))
    length = np.hypot(*(xy[src] - xy[dst]).T)
    long = np.flatnonzero(plain[src] & plain[dst] & (length > 1.5 * layout.gap()))
    if len(long) * len(xy) > _MOST_TESTS:
        return bow
    for part in np.array_split(long, max(1, len(long) * len(xy) // 10**6)):
        a, b = xy[src[part]], xy[dst[part]]
        unit = (b - a) / length[part, None]
        delta = xy[None] - a[:, None]
        along = (delta * unit[:, None]).sum(axis=2)
        aside = np.abs(delta[..., 0] * unit[:, 1, None] - delta[..., 1] * unit[:, 0, None])
        hit = (aside < 0.8 * radius) & (along > 1e-3) & (along < length[part, None] - 1e-3)
        hit[np.arange(len(part)), src[part]] = False
        hit[np.arange(len(part)), dst[part]] = False
        bow[part] = np.where(hit.any(axis=1), 1.5 * radius, 0.0)
    return bow


def _bend(
    points: Floats, kind: npt.NDArray[np.uint8], layout: Layout, src: Ints, dst: Ints, radius: float
) -> float:
    """Bend links between a bar and a node in a row behind others: sideways into a detour, then vertically.

    Links that share a detour run side by side in it, those from far away on the outside. Return their distance.
    """
    xy, half = layout.xy, layout.half
    out = half[dst] > 0
    npu, bar = np.where(out, src, dst), np.where(out, dst, src)
    below = (xy[bar, 1] > xy[npu, 1]).astype(np.int64)
    detour = np.where((half[bar] > 0) & (half[npu] == 0), layout.detours[npu, below], 0.0)
    bent = np.flatnonzero(detour != 0)
    if not len(bent):
        return radius
    npu, bar, out, detour = npu[bent], bar[bent], out[bent], detour[bent]
    x, y = xy[npu, 0] + detour, xy[npu, 1]
    away = np.abs(xy[bar, 1] - y)
    _, group = np.unique(np.stack([np.round(1000 * x), below[bent]]), axis=1, return_inverse=True)
    group = group.ravel()
    order = np.lexsort((out, bar, away, group))
    count = np.bincount(group)
    place = np.empty(len(bent))
    place[order] = np.arange(len(bent)) - np.repeat(np.cumsum(count) - count, count)
    middle = (count[group] - 1) / 2
    pitch = min(0.1, 0.3 / int(count.max()))
    x = x + np.sign(detour) * (place - middle) * pitch
    y = y + np.where(out, -0.25, 0.25) * radius
    near, corner, far = (
        np.column_stack([a, b]) for a, b in ((xy[npu, 0], y), (x, y), (x, xy[bar, 1]))
    )
    points[bent, 0] = np.where(out[:, None], near, far)
    points[bent, 1] = points[bent, 2] = corner
    points[bent, 3] = np.where(out[:, None], far, near)
    kind[bent] = ELBOW
    return pitch


def _leave_boxes(
    points: Floats, kind: npt.NDArray[np.uint8], layout: Layout, src: Ints, dst: Ints, shift: Floats
) -> None:
    """Bend links between boxes, or to a switch that is not directly above: vertically, then slanted."""
    if not len(layout.rise):
        return
    for link in np.flatnonzero(layout.box[src] != layout.box[dst]).tolist():
        way = layout.corners(int(src[link]), int(dst[link]))
        if way is None:
            continue
        up = 1.0 if way[-1, 1] <= way[0, 1] else -1.0
        points[link] = way + np.array([up * shift[link], 0.0])
        kind[link] = ELBOW
