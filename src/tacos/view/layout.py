"""Positions of a topology's nodes in a drawing.

`place` chooses the layout. Dimensions that the builder recorded (`dims`) give circles, grids, projected cubes and
nestings of them. Networks with switches become boxes below rows of switches. A switch that is alone in its row
is a bar, so that links to it are vertical. Several switches stand side by side; links leave
their boxes vertically before they slant, so that no line crosses a box or a switch. All other networks are laid
out by distances (stress majorization), without randomness. The unit is about one node pitch; y grows downwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos._core import Topology

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Dims: TypeAlias = "Sequence[tuple[str, int]]"

_GRID_KINDS = ("ring", "line")
_PIVOTS = 300  # pivot nodes, whose distances to all others determine a layout; smaller networks use all nodes
_ROUNDS = 150
_LOOSE = 1.3  # most stretch of an irregular network, whose parallel links are slanted
_UPRIGHT = 1.9  # most stretch of boxes below switches, whose links are vertical
_ROW = 24  # most boxes side by side below switches; more are wrapped
_LONGEST_ROW = 32  # most NPUs of a one-dimensional mesh before it is folded


@dataclass(frozen=True, slots=True)
class Frame:
    """A labelled rounded rectangle around the nodes of one box."""

    left: float
    top: float
    right: float
    bottom: float
    label: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Centres of all nodes, and further data for drawing."""

    xy: Floats
    half: Floats  # half the width of switches drawn as bars; 0: a node is a point
    detours: Floats  # per node: sideways step before a link goes up or down; 0: straight
    frames: list[Frame] = field(default_factory=list)
    box: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # per node: its box, or -1
    rise: Floats = field(default_factory=lambda: np.zeros(0))
    """Per node, the height up to which links out of its box are vertical; empty: no boxes."""
    names: list[str] = field(default_factory=list)  # of the boxes
    elastic: float = 1.0  # largest factor by which one direction may be stretched

    def corners(self, a: int, b: int) -> Floats | None:
        """Return the path of a link that leaves a box: vertical to above the boxes, then slanted or horizontal.

        Returns:
            Four points from `a` to `b`; None if a straight line, or a vertical one to a bar, suffices.
        """
        if not len(self.rise) or self.box[a] == self.box[b]:
            return None
        if self.box[a] < 0:
            found = self.corners(b, a)
            return None if found is None else found[::-1]
        (x, y), (far, high) = self.xy[a], self.xy[b]
        if np.isnan(self.rise[a]):
            return None
        if self.box[b] < 0:
            up = x + self.detours[a, 0] + _within(0.02 * (far - x), 0.8 * self.half[a])
            if abs(x - far) <= self.half[b] or abs(up - far) <= self.half[b]:
                return None
            end = far + _within(0.1 * (up - far), 0.7 * self.half[b])
            below = 0.1 if self.half[b] else 0.0  # so that no line touches the next switch
            return np.array([[x, y], [up, y], [up, self.rise[a]], [end, high + below]])
        level = self.rise[a] - 0.3 * min(abs(int(self.box[a] - self.box[b])), 8)
        level -= 0.07 * ((a + b) % 4)
        there, back = (
            self.xy[n, 0] + _within(0.02 * (other - self.xy[n, 0]), 0.8 * self.half[n])
            for n, other in ((a, far), (b, x))
        )
        return np.array([[there, y], [there, level], [back, level], [back, high]])

    def stretched(self, by: Floats) -> Layout:
        """Return the same layout with all heights and widths multiplied."""
        frames = [
            Frame(f.left * by[0], f.top * by[1], f.right * by[0], f.bottom * by[1], f.label)
            for f in self.frames
        ]
        return replace(
            self,
            xy=self.xy * by,
            half=self.half * by[0],
            detours=self.detours * by[0],
            frames=frames,
            rise=self.rise * by[1],
        )

    def box_name(self, box: int) -> str:
        """Return the label of a box's frame, or its number."""
        return self.names[box] if box < len(self.names) else f"box {box}"

    def gap(self) -> float:
        """Return the smallest distance between two points."""
        points = self.xy[self.half == 0]
        best = np.inf
        for part in np.array_split(np.arange(len(points)), max(1, len(points) // 200)):
            delta = np.abs(points[part, None] - points[None]).astype(np.float32)
            distance = np.hypot(delta[..., 0], delta[..., 1])
            distance[np.arange(len(part)), part] = np.inf
            best = min(best, float(distance.min(initial=np.inf)))
        return float(np.clip(best, 0.05, 1.0)) if np.isfinite(best) else 1.0


def _within(value: float, most: float) -> float:
    return float(np.clip(value, -most, most))


def place(topology: Topology) -> Layout:
    """Choose and compute the layout of a topology.

    >>> import numpy as np
    >>> from tacos._core import Topology
    >>> at = np.array([0, 1, 2], dtype=np.int32)
    >>> fast = np.full(3, 50_000_000_000, dtype=np.int64)
    >>> ring = Topology(npus=3, switch_capabilities=np.zeros(0, dtype=np.uint8), link_src=at,
    ...                 link_dst=(at + 1) % 3, link_latency_ps=fast * 0, link_bandwidth_Bps=fast,
    ...                 family="ring", dims=[("ring", 3)])
    >>> place(ring).xy.round(2).tolist()  # a circle, the first NPU on top
    [[0.0, -0.58], [0.5, 0.29], [-0.5, 0.29]]
    """
    if topology.switches == 0:
        if topology.dims:
            return _points(_nest(topology.dims))
        return _points(_by_distance(topology), elastic=_LOOSE)
    if topology.switches == 1 and topology.family == "switch":
        return _points(np.vstack([_circle(topology.npus), [[0.0, 0.0]]]))
    boxes = _boxes(topology)
    if boxes is None:
        return _points(_by_distance(topology), elastic=_LOOSE)
    box, inside, outside = boxes
    return _Racks(topology, box, _box_names(topology)).layout(inside, outside)


def _points(xy: Floats, *, elastic: float = 1.0) -> Layout:
    return Layout(xy, np.zeros(len(xy)), np.zeros((len(xy), 2)), elastic=elastic)


# Nesting: each dimension arranges copies of the layout of the dimensions before it.


def _circle(count: int, turn: float = 0.0) -> Floats:
    """Return points on a circle, clockwise from the top, with neighbours one unit apart."""
    if count == 1:
        return np.zeros((1, 2))
    angle = 2 * np.pi * (np.arange(count) / count + turn)
    radius = 0.5 / float(np.sin(np.pi / count))
    return radius * np.column_stack([np.sin(angle), -np.cos(angle)])


def _row(count: int) -> Floats:
    """Return points in a row, folded back and forth if it is long."""
    index = np.arange(count)
    length = _LONGEST_ROW if count > _LONGEST_ROW else max(count, 1)
    y, x = np.divmod(index, length)
    return np.column_stack([np.where(y % 2 == 0, x, length - 1 - x), y]).astype(np.float64)


def _grid(sizes: Sequence[int]) -> Floats:
    """Return the points of a grid of two or three dimensions, with the third drawn at an angle."""
    x, y, z = (
        np.arange(int(np.prod(sizes))) // int(np.prod(sizes[:k])) % (*sizes, 1)[k] for k in range(3)
    )
    depth = 1 / (*sizes, 1)[2]  # keeps the third dimension within one cell
    return np.column_stack([x + 0.84 * depth * z, y - 0.56 * depth * z])


def _arrange(dims: Dims) -> Floats:
    """Arrange one to three dimensions that belong together, with pitch 1."""
    if dims[0][0] in _GRID_KINDS and len(dims) > 1:
        return _grid([size for _, size in dims])
    kind, size = dims[0]
    if kind == "line" or size == 2 or (kind == "switch" and size <= 8):
        return _row(size)
    return _circle(size)


def _runs(dims: Dims) -> list[Dims]:
    """Group consecutive ring and line dimensions: three at first, then two; other dimensions stay alone."""
    runs: list[list[tuple[str, int]]] = []
    for dim in dims:
        last = runs[-1] if runs else []
        room = 3 if len(runs) == 1 else 2
        if dim[0] in _GRID_KINDS and last and last[0][0] in _GRID_KINDS and len(last) < room:
            last.append(dim)
        else:
            runs.append([dim])
    return list(runs)


def _nest(dims: Dims) -> Floats:
    """Return the positions of NPUs with the given dimensions, the fastest-running one innermost."""
    xy = np.zeros((1, 2))
    for run in _runs([dim for dim in dims if dim[1] > 1]):
        pitch = np.ptp(xy, axis=0) + (1.0 if len(xy) == 1 else 1.4)
        copies = _arrange(run)
        if len(xy) > 1 and run[0][0] in _GRID_KINDS:
            copies = copies + 0.14 * copies[:, ::-1] * [1, -1]  # keeps links from lining up
        if run[0][0] not in _GRID_KINDS or len(run) == 1:
            pitch[:] = pitch.max()  # a circle of blocks needs the same room all around
        xy = (copies[:, None] * pitch + xy[None]).reshape(-1, 2)
    return xy


# Boxes of NPUs below rows of switches.


def _boxes(topology: Topology) -> tuple[Ints, Dims, Dims] | None:
    """Return the box of every NPU, the dimensions inside a box, and those of the boxes.

    Return None if a drawing of boxes would not help.
    """
    npus = np.arange(topology.npus)
    dims = topology.dims
    if names := _box_names(topology):
        return np.array([names.index(_owner(name)) for name in topology.names[: len(npus)]]), [], []
    if any(kind == "switch" for kind, _ in dims):
        last = max(k for k, (kind, _) in enumerate(dims) if kind == "switch")
        cut = last + 1 if last + 1 < len(dims) or len(dims) == 1 else last
        per_box = int(np.prod([size for _, size in dims[:cut]]))
        return npus // per_box, dims[:cut], dims[cut:]
    if len(dims) > 1:
        return npus // (topology.npus // dims[-1][1]), dims[:-1], dims[-1:]
    between_npus = np.maximum(topology.link_src, topology.link_dst) < topology.npus
    box = _joined_by_faster_links(topology)
    if box is None and not between_npus.any():
        box = np.zeros(topology.npus, dtype=np.int64)
    return None if box is None else (box, [], [])


def _owner(name: str) -> str:
    """Return the name of a node's box: the part of its name before the last slash, or the whole name."""
    return name.rpartition("/")[0] or name


def _box_names(topology: Topology) -> list[str]:
    """Return the boxes in the names of NPUs, in order; empty if no name contains one."""
    names = topology.names[: topology.npus]
    return list(dict.fromkeys(map(_owner, names))) if any("/" in name for name in names) else []


def _joined_by_faster_links(topology: Topology) -> Ints | None:
    """Return boxes of a network without names: the NPUs that faster links join."""
    found = None
    for bandwidth in np.unique(topology.link_bandwidth_Bps)[::-1][:8]:
        fast = topology.link_bandwidth_Bps >= bandwidth
        box = _components(topology.nodes, topology.link_src[fast], topology.link_dst[fast])
        _, numbers = np.unique(box[: topology.npus], return_inverse=True)
        if numbers.max() == 0:
            break
        if numbers.max() < topology.npus - 1:
            found = numbers.astype(np.int64)
    return found


def _components(nodes: int, a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> Ints:
    """Return, per node, the lowest node of its component."""
    label = np.arange(nodes, dtype=np.int64)
    while True:
        before = label.copy()
        lowest = np.minimum(label[a], label[b])
        np.minimum.at(label, a, lowest)
        np.minimum.at(label, b, lowest)
        label = label[label]
        if np.array_equal(label, before):
            return label


@dataclass
class _Neighbours:
    """The undirected neighbours of every node."""

    begin: Ints
    nodes: Ints

    @classmethod
    def of(cls, topology: Topology) -> _Neighbours:
        a = np.concatenate([topology.link_src, topology.link_dst]).astype(np.int64)
        b = np.concatenate([topology.link_dst, topology.link_src]).astype(np.int64)
        a, b = np.divmod(np.unique(a * topology.nodes + b), topology.nodes)
        return cls(np.searchsorted(a, np.arange(topology.nodes + 1)), b)

    def __getitem__(self, node: int) -> Ints:
        return self.nodes[self.begin[node] : self.begin[node + 1]]


def _tiers(topology: Topology, near: _Neighbours) -> Ints:
    """Return the hops of every node to the nearest NPU; unreachable switches count as the first tier."""
    tier = np.full(topology.nodes, -1, dtype=np.int64)
    tier[: topology.npus] = 0
    edge = list(range(topology.npus))
    while edge:
        nearby = np.unique(np.concatenate([near[node] for node in edge]))
        edge = [int(node) for node in nearby[tier[nearby] < 0]]
        tier[edge] = tier.max() + 1
    tier[tier < 0] = 1
    return tier


def _columns(per_box: int, boxes: int, levels: int) -> tuple[int, int]:
    """Return the columns of NPUs in a box and the boxes side by side that make nodes largest."""

    def pitch(shape: tuple[int, int]) -> float:
        columns, across = shape
        rows, down = -(-per_box // columns), -(-boxes // across)
        wide, high = across * (columns + 1.2), down * (rows + 2.4) + levels
        uneven = 6 * (per_box % columns > 0) + 6 * (boxes % across > 0)
        return min(900 / wide, 560 / high, 52) - 4 * math.sqrt(rows - 1) - 6 * (down - 1) - uneven

    side_by_side = sorted({-(-boxes // down) for down in range(1, 9)})
    return max(((c, a) for c in range(1, per_box + 1) for a in side_by_side), key=pitch)


def _columns_in_a_row(per_box: int, boxes: int) -> int:
    """Return the columns of NPUs in a box if all boxes stand side by side."""

    def pitch(columns: int) -> float:
        rows = -(-per_box // columns)
        scale = min(900 / (boxes * (columns + 1.2)), 560 / (rows + 4.4), 52)
        return scale - 4 * math.sqrt(rows - 1) - 6 * (per_box % columns > 0)

    return max(range(1, per_box + 1), key=pitch)


class _Racks:
    """Boxes side by side with their own switches, and the switches between boxes on top."""

    def __init__(self, topology: Topology, box: Ints, names: list[str]) -> None:
        self.npus, self.boxes = topology.npus, int(box.max()) + 1
        self.names = names
        self.lone = {name for name in topology.names[: topology.npus] if "/" not in name}
        self.near = _Neighbours.of(topology)
        self.tier = _tiers(topology, self.near)
        self.xy = np.zeros((topology.nodes, 2))
        self.half = np.zeros(topology.nodes)
        self.detours = np.zeros((topology.nodes, 2))
        self.members = [np.flatnonzero(box == b) for b in range(self.boxes)]
        self.own: list[list[int]] = [[] for _ in range(self.boxes)]
        self.outer: list[int] = []
        self.home = home = np.concatenate([box, np.full(topology.switches, -1)])
        for switch in (self.npus + np.argsort(self.tier[self.npus :], kind="stable")).tolist():
            homes = {int(home[node]) for node in self._lower(switch)}
            home[switch] = homes.pop() if len(homes) == 1 else -1
            if names:  # the names define the boxes
                box_name, slash, _ = topology.names[switch].rpartition("/")
                home[switch] = names.index(box_name) if slash and box_name in names else -1
            (self.outer if home[switch] < 0 else self.own[home[switch]]).append(switch)
        src, dst = topology.link_src, topology.link_dst
        within = (home[src] == home[dst]) & (np.maximum(src, dst) < self.npus)
        # Boxes with links between NPUs.
        self.circles = np.isin(np.arange(self.boxes), home[src[within]])
        self.direct = bool(self.circles.any())

    def layout(self, inside: Dims, outside: Dims) -> Layout:
        columns, across = self._columns_and_boxes_across()
        parts = [self._box(b, inside, columns) for b in range(self.boxes)]
        top = min(part[1] for part in parts)
        seats = self._seats(parts, across, outside)
        frames = []
        in_a_row = not seats[:, 1].any()
        rise = np.full(len(self.xy), top - 0.15 if in_a_row or self.outer else np.nan)
        word = "group" if outside and outside[-1][0] != "switch" else "box"
        for b, (left, upper, right, lower) in enumerate(parts):
            nodes = [*self.members[b], *self.own[b]]
            self.xy[nodes] += seats[b] - ((left + right) / 2, 0)
            if self.outer and seats[b, 1] > 0:  # links to the top pass between columns
                self.detours[self.members[b], 0] = 0.5
            if self._is_framed(b):
                (x, y), reach = seats[b], (right - left) / 2
                label = self.names[b] if self.names else f"{word} {b}"
                frames.append(Frame(x - reach, y + upper, x + reach, y + lower, label))
        self._stack(self.outer, top - 0.2)
        labels = self.names or [f"{word} {b}" for b in range(self.boxes)]
        return Layout(self.xy, self.half, self.detours, frames, self.home, rise, labels, _UPRIGHT)

    def _seats(
        self, parts: list[tuple[float, float, float, float]], across: int, outside: Dims
    ) -> Floats:
        """Return the positions of the boxes."""
        wide = np.array([right - left for left, _, right, _ in parts])
        tall = max(part[3] for part in parts) - min(part[1] for part in parts)
        above = any(self._has_uplink(switch) for own in self.own for switch in own)
        if not self.outer and outside and not above:
            room = np.array([wide.max(), tall]) + 1.5
            grid = outside[0][0] in _GRID_KINDS and len(outside) > 1
            return _nest(outside) * (room if grid else room.max())
        if across >= self.boxes:  # one row, each box as wide as it is
            x = np.cumsum(wide + 0.9) - wide / 2
            return np.column_stack([x, np.zeros(self.boxes)])
        rows, columns = np.divmod(np.arange(self.boxes), across)
        pitch = np.array([float(wide.max()) + 0.9, tall + 0.9])
        seats: Floats = np.column_stack([columns, rows]) * pitch
        return seats

    def _lower(self, switch: int) -> Ints:
        """Return the neighbours of a switch that are nearer to the NPUs."""
        near = self.near[switch]
        lower: Ints = near[self.tier[near] < self.tier[switch]]
        return lower

    def _has_uplink(self, switch: int) -> bool:
        return bool((self.near[switch] >= self.npus).any())

    def _is_framed(self, box: int) -> bool:
        if self.names:  # a box of one NPU needs no frame
            return self.names[box] not in self.lone
        return self.boxes > 1 and not self._is_leaf_group(box)

    def _is_leaf_group(self, box: int) -> bool:
        """Return whether a box is only the NPUs below one leaf switch of a larger fabric."""
        own = self.own[box]
        return len(own) == 1 and self._has_uplink(own[0]) and not self.direct

    def _columns_and_boxes_across(self) -> tuple[int, int]:
        largest = max(map(len, self.members))
        if any(self._has_uplink(switch) for own in self.own for switch in own):
            return largest, self.boxes  # leaf switches: one row, so that none hides another
        if self.direct:  # circles
            row = self.boxes if self.boxes <= (_ROW if self.outer else 6) else 0
            return largest, row or math.ceil(self.boxes**0.5)
        columns, across = _columns(largest, self.boxes, 2 * bool(self.outer))
        if self.outer and self.boxes <= _ROW:  # no line to the top runs through another box
            across = self.boxes
            columns = _columns_in_a_row(largest, self.boxes)
        return columns, across

    def _box(self, box: int, inside: Dims, columns: int) -> tuple[float, float, float, float]:
        """Place a box around x = 0 with its top row at y = 0; return left, top, right and bottom."""
        xy, members, own = self.xy, self.members[box], self.own[box]
        if self.circles[box]:
            # A circle with an even number of NPUs is turned a little, so that no two are above each other.
            regular = len(inside) > 1 or (inside and inside[0][0] in _GRID_KINDS)
            turn = 0.0 if len(members) % 2 else 0.25 / len(members)
            local = _nest(inside) if regular else _circle(len(members), turn)
            xy[members] = local - [(local[:, 0].min() + local[:, 0].max()) / 2, local[:, 1].min()]
            if regular:  # links to switches pass between columns
                self.detours[members, 0] = np.where(xy[members, 1] > 0.6, 0.5, 0.0)
        else:
            if self.direct:  # about as wide as the circles beside it
                columns = math.ceil(len(members) / np.pi)
            row, column = np.divmod(np.arange(len(members)), columns)
            xy[members] = np.column_stack([column - (min(columns, len(members)) - 1) / 2, row])
            self.detours[members, 0] = np.where(row > 0, 0.5, 0.0)
            self.detours[members, 1] = np.where(row < row.max(), -0.5, 0.0)
        left, right = float(xy[members, 0].min()) - 0.5, float(xy[members, 0].max()) + 0.5
        right += 0.25 * bool(self.detours[members].any())
        above = [switch for switch in own if self._has_uplink(switch)]
        below = [switch for switch in own if not self._has_uplink(switch)]
        if self.boxes == 1 and not above and len(members) <= columns:
            half = -(-len(below) // 2)  # so that fewer lines pass behind another switch
            below, above = below[:half], below[half:]
        bottom = self._stack(below, float(xy[members, 1].max()), down=True)
        top = self._stack(above, 0.0)
        if own:
            left = min(left, float((xy[own, 0] - self.half[own]).min()) - 0.2)
            right = max(right, float((xy[own, 0] + self.half[own]).max()) + 0.2)
        return left, top - (1.0 if above else 0.75), right, bottom + 0.55

    def _stack(self, switches: list[int], height: float, *, down: bool = False) -> float:
        """Place switches tier by tier above (or below) the nodes that they join; return the last height.

        Switches with NPUs, and switches alone in their tier, are bars over all nodes that they join, unless bars
        would overlap between boxes. Others stand side by side.
        """
        step = 1.0 if down else -1.0
        for level in sorted({int(self.tier[switch]) for switch in switches}):
            tier = [switch for switch in switches if self.tier[switch] == level]
            spans = {switch: self._span(switch, down) for switch in tier}
            inner = level == 1 and (down or switches is not self.outer)
            if inner or len(tier) == 1 or (level == 1 and not _overlap(list(spans.values()))):
                height += step * (0.75 if level == 1 else 1.5)
                height = self._bars(spans, height, 0.55 * step)
            else:
                left, right = min(a for a, _ in spans.values()), max(b for _, b in spans.values())
                height += step * min(max(1.4, 0.12 * (right - left)), 5.0)
                pitch = max((right - left) / len(tier), 0.9)
                first = (left + right - pitch * (len(tier) - 1)) / 2
                for i, switch in enumerate(sorted(tier, key=lambda s: (sum(spans[s]), s))):
                    self.xy[switch] = first + pitch * i, height
                    self.half[switch] = min(0.4 * pitch, 0.8)
        return height

    def _bars(self, spans: dict[int, tuple[float, float]], height: float, step: float) -> float:
        """Place bars, with overlapping ones above each other; return the last height."""
        ends: list[float] = []  # where the last bar of each row ends
        for switch, (left, right) in sorted(spans.items(), key=lambda item: (item[1][0], item[0])):
            free = (row for row, end in enumerate(ends) if end < left - 0.15)
            row = next(free, len(ends))
            ends[row : row + 1] = [right]
            self.xy[switch] = (left + right) / 2, height + step * row
            self.half[switch] = (right - left) / 2
        return height + step * (len(ends) - 1)

    def _span(self, switch: int, down: bool) -> tuple[float, float]:
        """Return the x-range of a bar over all nodes that a switch joins, with the detours of its links."""
        nodes = self._lower(switch)
        if self.home[switch] < 0:
            near = self.near[switch]
            nodes = np.union1d(nodes, near[self.home[near] >= 0])
        if len(nodes) == 0:
            return -0.4, 0.4
        x, detour, half = self.xy[nodes, 0], self.detours[nodes, int(down)], self.half[nodes]
        left, right = np.minimum(x - half, x + detour).min(), np.maximum(x + half, x + detour).max()
        return float(left) - 0.3, float(right) + 0.3


def _overlap(spans: list[tuple[float, float]]) -> bool:
    """Whether two of some ranges overlap."""
    ordered = sorted(spans)
    return any(a[1] > b[0] - 0.15 for a, b in pairwise(ordered))


# All other networks: positions whose distances resemble the hops between nodes.


def _by_distance(topology: Topology) -> Floats:
    """Pivot MDS (Brandes and Pich) refined by stress majorization against the same pivots."""
    count = topology.nodes
    if count <= 2:
        return np.column_stack([np.arange(count), np.zeros(count)]).astype(np.float64)
    pivots = (
        np.arange(count) if count <= _PIVOTS else np.arange(_PIVOTS // 3) * count // (_PIVOTS // 3)
    )
    hops = _hops(topology, pivots)
    if hops.max() <= 2 and topology.switches == 0 and count <= _PIVOTS:
        return _circle(count)  # so dense that distances are uninformative
    far = hops**2
    centred = far - far.mean(axis=0) - far.mean(axis=1, keepdims=True) + far.mean()
    _, vectors = np.linalg.eigh(centred @ centred.T)
    xy = centred.T @ vectors[:, -1:-3:-1]
    xy *= 0.5 * hops.max() / max(float(np.abs(xy).max()), 1e-9)
    # Nodes with the same neighbours coincide so far: separate them along a golden spiral.
    angle = np.arange(count) * 2.399963
    xy += 0.3 * np.column_stack([np.cos(angle), np.sin(angle)])
    return _majorized(xy, topology, pivots, hops)


def _hops(topology: Topology, sources: Ints) -> Floats:
    """Return undirected hops from each source to every node; a large number if there is no path."""
    a = np.concatenate([topology.link_src, topology.link_dst])
    b = np.concatenate([topology.link_dst, topology.link_src])
    order = np.argsort(b, kind="stable")
    ends, first = np.unique(b[order], return_index=True)
    hops = np.full((len(sources), topology.nodes), np.inf)
    hops[np.arange(len(sources)), sources] = 0
    edge = hops == 0
    for step in range(1, topology.nodes if len(ends) else 0):
        near = np.zeros_like(edge)
        near[:, ends] = np.logical_or.reduceat(edge[:, a[order]], first, axis=1)
        edge = near & np.isinf(hops)
        if not edge.any():
            break
        hops[edge] = step
    return np.where(np.isfinite(hops), hops, hops[np.isfinite(hops)].max() + 2)


def _majorized(xy: Floats, topology: Topology, pivots: Ints, hops: Floats) -> Floats:
    """Lower the stress Σ (|xi - xj| - hops)² / hops², over links and pairs with a pivot."""
    share = topology.nodes / len(pivots)  # a pivot represents this many nodes
    weight = share / np.maximum(hops, 1) ** 2 * (hops > 0)
    a = np.concatenate([topology.link_src, topology.link_dst])
    b = np.concatenate([topology.link_dst, topology.link_src])
    total = weight.sum(axis=0) + np.bincount(a, minlength=topology.nodes)
    for _ in range(_ROUNDS):
        delta = xy[None] - xy[pivots, None]
        pull = weight * (hops / np.maximum(np.hypot(delta[..., 0], delta[..., 1]), 1e-9) - 1)
        move = (pull[..., None] * delta).sum(axis=0)
        along = xy[a] - xy[b]
        pull = 1 / np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-9) - 1
        for axis in (0, 1):
            move[:, axis] += np.bincount(a, pull * along[:, axis], topology.nodes)
        xy = xy + move / total[:, None]
    return xy
