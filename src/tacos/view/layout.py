"""Positions of a topology's nodes in a drawing.

`place` hides the choice: what the builder knew (`dims`) gives circles, grids, projected cubes and
nestings of them; networks with switches become boxes below rows of switches, which are drawn as
bars so that links to them are upright lines; the rest is laid out by its distances (stress
majorization), without randomness. Lengths are in units of about one node pitch, y grows downwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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
_PIVOTS = 300  # nodes whose distances to all others shape a layout; all nodes up to here
_ROUNDS = 150
_LONGEST_ROW = 32  # NPUs of a one-dimensional mesh before it is folded


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
    """Centres of all nodes, and what else a picture needs to know."""

    xy: Floats
    half: Floats  # half the width of switches that are bars; 0: a node is a point
    lanes: Floats  # per node: sideways step before a link goes up, or down; 0: straight
    frames: list[Frame] = field(default_factory=list)

    def gap(self) -> float:
        """The smallest distance between two points."""
        points = self.xy[self.half == 0]
        best = np.inf
        for part in np.array_split(np.arange(len(points)), max(1, len(points) // 200)):
            delta = np.abs(points[part, None] - points[None]).astype(np.float32)
            distance = np.hypot(delta[..., 0], delta[..., 1])
            distance[np.arange(len(part)), part] = np.inf
            best = min(best, float(distance.min(initial=np.inf)))
        return float(np.clip(best, 0.05, 1.0)) if np.isfinite(best) else 1.0


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
        return _points(_nest(topology.dims) if topology.dims else _by_distance(topology))
    if topology.switches == 1 and topology.family == "switch":
        return _points(np.vstack([_circle(topology.npus), [[0.0, 0.0]]]))
    boxes = _boxes(topology)
    if boxes is None:
        return _points(_by_distance(topology))
    box, inside, outside = boxes
    return _Racks(topology, box).layout(inside, outside)


def _points(xy: Floats) -> Layout:
    return Layout(xy, np.zeros(len(xy)), np.zeros((len(xy), 2)))


# Nesting: each dimension arranges copies of what the dimensions before it made.


def _circle(count: int, turn: float = 0.0) -> Floats:
    """Points on a circle, neighbours one unit apart, the first on top, clockwise."""
    if count == 1:
        return np.zeros((1, 2))
    angle = 2 * np.pi * (np.arange(count) / count + turn)
    radius = 0.5 / float(np.sin(np.pi / count))
    return radius * np.column_stack([np.sin(angle), -np.cos(angle)])


def _row(count: int) -> Floats:
    """Points in a row, folded to and fro when it is long."""
    index = np.arange(count)
    length = _LONGEST_ROW if count > _LONGEST_ROW else max(count, 1)
    y, x = np.divmod(index, length)
    return np.column_stack([np.where(y % 2 == 0, x, length - 1 - x), y]).astype(np.float64)


def _grid(sizes: Sequence[int]) -> Floats:
    """Points of a grid of two or three dimensions, the third going back at an angle."""
    x, y, z = (
        np.arange(int(np.prod(sizes))) // int(np.prod(sizes[:k])) % (*sizes, 1)[k] for k in range(3)
    )
    depth = 1 / (*sizes, 1)[2]  # all of the third dimension stays within one cell
    return np.column_stack([x + 0.84 * depth * z, y - 0.56 * depth * z])


def _arrange(dims: Dims) -> Floats:
    """One to three dimensions that belong together, pitch 1."""
    if dims[0][0] in _GRID_KINDS and len(dims) > 1:
        return _grid([size for _, size in dims])
    kind, size = dims[0]
    if kind == "line" or size == 2 or (kind == "switch" and size <= 8):
        return _row(size)
    return _circle(size)


def _runs(dims: Dims) -> list[Dims]:
    """Ring and line dimensions in a row go together: three at first, then two; others alone."""
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
    """Positions of the NPUs with the given dimensions, the fastest innermost."""
    xy = np.zeros((1, 2))
    for run in _runs([dim for dim in dims if dim[1] > 1]):
        pitch = np.ptp(xy, axis=0) + (1.0 if len(xy) == 1 else 1.4)
        copies = _arrange(run)
        if len(xy) > 1 and run[0][0] in _GRID_KINDS:
            copies = copies + 0.14 * copies[:, ::-1] * [1, -1]  # so that links do not line up
        if run[0][0] not in _GRID_KINDS or len(run) == 1:
            pitch[:] = pitch.max()  # a circle of blocks needs the same room all around
        xy = (copies[:, None] * pitch + xy[None]).reshape(-1, 2)
    return xy


# Boxes of NPUs below rows of switches.


def _boxes(topology: Topology) -> tuple[Ints, Dims, Dims] | None:
    """Which box every NPU belongs to, the dimensions inside it, and those of the boxes.

    None where a picture of boxes would not help.
    """
    npus = np.arange(topology.npus)
    dims = topology.dims
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


def _joined_by_faster_links(topology: Topology) -> Ints | None:
    """Boxes of a network without names: what the faster links hold together."""
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
    """The lowest node each node is joined to."""
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
    """Hops of every node from the nearest NPU; unreachable switches count as the first tier."""
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
    """Columns of NPUs in a box and boxes side by side, such that nodes come out large."""

    def pitch(shape: tuple[int, int]) -> float:
        columns, across = shape
        rows, down = -(-per_box // columns), -(-boxes // across)
        wide, high = across * (columns + 1.2), down * (rows + 2.4) + levels
        uneven = 6 * (per_box % columns > 0) + 6 * (boxes % across > 0)
        return min(900 / wide, 560 / high, 52) - 4 * math.sqrt(rows - 1) - 6 * (down - 1) - uneven

    side_by_side = sorted({-(-boxes // down) for down in range(1, 9)})
    return max(((c, a) for c in range(1, per_box + 1) for a in side_by_side), key=pitch)


class _Racks:
    """Boxes side by side with their own switches, and the switches between boxes on top."""

    def __init__(self, topology: Topology, box: Ints) -> None:
        self.npus, self.boxes = topology.npus, int(box.max()) + 1
        self.near = _Neighbours.of(topology)
        self.tier = _tiers(topology, self.near)
        self.xy = np.zeros((topology.nodes, 2))
        self.half = np.zeros(topology.nodes)
        self.lanes = np.zeros((topology.nodes, 2))
        self.members = [np.flatnonzero(box == b) for b in range(self.boxes)]
        self.own: list[list[int]] = [[] for _ in range(self.boxes)]
        self.outer: list[int] = []
        home = np.concatenate([box, np.full(topology.switches, -1)])
        for switch in (self.npus + np.argsort(self.tier[self.npus :], kind="stable")).tolist():
            homes = {int(home[node]) for node in self._lower(switch)}
            home[switch] = homes.pop() if len(homes) == 1 else -1
            (self.outer if home[switch] < 0 else self.own[home[switch]]).append(switch)
        src, dst = topology.link_src, topology.link_dst
        self.direct = bool(((home[src] == home[dst]) & (np.maximum(src, dst) < self.npus)).any())

    def layout(self, inside: Dims, outside: Dims) -> Layout:
        columns, across = self._columns_and_boxes_across()
        parts = [self._box(b, inside, columns) for b in range(self.boxes)]
        wide = max(right - left for left, _, right, _ in parts)
        top, bottom = min(part[1] for part in parts), max(part[3] for part in parts)
        if self.outer or not outside:
            rows, columns_of_boxes = np.divmod(np.arange(self.boxes), across)
            seats = np.column_stack([columns_of_boxes, rows]) * (wide + 0.9, bottom - top + 0.9)
        else:
            room = np.array([wide, bottom - top]) + 1.5
            grid = outside[0][0] in _GRID_KINDS and len(outside) > 1
            seats = _nest(outside) * (room if grid else room.max())
        frames = []
        word = "group" if outside and outside[-1][0] != "switch" else "box"
        for b, (left, upper, right, lower) in enumerate(parts):
            self.xy[[*self.members[b], *self.own[b]]] += seats[b] - ((left + right) / 2, 0)
            if self.outer and seats[b, 1] > 0:  # links to the top pass between columns
                self.lanes[self.members[b], 0] = 0.5
            if self.boxes > 1 and not self._is_leaf_group(b):
                (x, y), reach = seats[b], (right - left) / 2
                frames.append(Frame(x - reach, y + upper, x + reach, y + lower, f"{word} {b}"))
        self._stack(self.outer, top - 0.2)
        return Layout(self.xy, self.half, self.lanes, frames)

    def _lower(self, switch: int) -> Ints:
        """What a switch joins: its neighbours nearer to the NPUs."""
        near = self.near[switch]
        lower: Ints = near[self.tier[near] < self.tier[switch]]
        return lower

    def _has_uplink(self, switch: int) -> bool:
        return bool((self.near[switch] >= self.npus).any())

    def _is_leaf_group(self, box: int) -> bool:
        """Whether a box is only the NPUs under one leaf switch of a larger fabric."""
        own = self.own[box]
        return len(own) == 1 and self._has_uplink(own[0])

    def _columns_and_boxes_across(self) -> tuple[int, int]:
        largest = max(map(len, self.members))
        if any(self._has_uplink(switch) for own in self.own for switch in own):
            return largest, self.boxes  # leaf switches: one row, so that none hides another
        if self.direct:  # circles
            return largest, self.boxes if self.boxes <= 6 else math.ceil(self.boxes**0.5)
        bars = sum(int(self.tier[switch]) == 1 for switch in self.outer)
        return _columns(largest, self.boxes, min(bars, 16))

    def _box(self, box: int, inside: Dims, columns: int) -> tuple[float, float, float, float]:
        """Place a box around x = 0, its top row at y = 0; returns left, top, right and bottom."""
        xy, members, own = self.xy, self.members[box], self.own[box]
        if self.direct:
            # Turned a little, so that no two NPUs of a circle are above one another.
            regular = len(inside) > 1 or (inside and inside[0][0] in _GRID_KINDS)
            local = _nest(inside) if regular else _circle(len(members), 0.25 / len(members))
            xy[members] = local - [(local[:, 0].min() + local[:, 0].max()) / 2, local[:, 1].min()]
        else:
            row, column = np.divmod(np.arange(len(members)), columns)
            xy[members] = np.column_stack([column - (min(columns, len(members)) - 1) / 2, row])
            self.lanes[members, 0] = np.where(row > 0, 0.5, 0.0)
            self.lanes[members, 1] = np.where(row < row.max(), -0.5, 0.0)
        left, right = float(xy[members, 0].min()) - 0.5, float(xy[members, 0].max()) + 0.5
        above = [switch for switch in own if self._has_uplink(switch)]
        below = [switch for switch in own if not self._has_uplink(switch)]
        bottom = self._stack(below, float(xy[members, 1].max()), down=True)
        top = self._stack(above, 0.0)
        if own:
            left = min(left, float((xy[own, 0] - self.half[own]).min()) - 0.2)
            right = max(right, float((xy[own, 0] + self.half[own]).max()) + 0.2)
        return left, top - (1.0 if above else 0.75), right, bottom + 0.55

    def _stack(self, switches: list[int], height: float, *, down: bool = False) -> float:
        """Place switches tier by tier above (or below) what they join; returns the last height.

        Switches that NPUs plug into, and those alone in their tier, are bars over all they join;
        others stand side by side.
        """
        step = 1.0 if down else -1.0
        for level in sorted({int(self.tier[switch]) for switch in switches}):
            tier = [switch for switch in switches if self.tier[switch] == level]
            spans = {switch: self._span(switch, down) for switch in tier}
            if level == 1 or len(tier) == 1:
                height += step * (0.75 if level == 1 else 1.5)
                height = self._bars(spans, height, 0.55 * step)
            else:
                left, right = min(a for a, _ in spans.values()), max(b for _, b in spans.values())
                height += step * max(1.4, 0.12 * (right - left))
                pitch = max((right - left) / len(tier), 0.9)
                first = (left + right - pitch * (len(tier) - 1)) / 2
                for i, switch in enumerate(sorted(tier, key=lambda s: (sum(spans[s]), s))):
                    self.xy[switch] = first + pitch * i, height
                    self.half[switch] = min(0.4 * pitch, 0.8)
        return height

    def _bars(self, spans: dict[int, tuple[float, float]], height: float, step: float) -> float:
        """Place bars, those that would overlap one above the other; returns the last height."""
        ends: list[float] = []  # where the last bar of each row ends
        for switch, (left, right) in sorted(spans.items(), key=lambda item: (item[1][0], item[0])):
            free = (row for row, end in enumerate(ends) if end < left - 0.15)
            row = next(free, len(ends))
            ends[row : row + 1] = [right]
            self.xy[switch] = (left + right) / 2, height + step * row
            self.half[switch] = (right - left) / 2
        return height + step * (len(ends) - 1)

    def _span(self, switch: int, down: bool) -> tuple[float, float]:
        """The x-range of a bar over all a switch joins, and the lanes in which links arrive."""
        nodes = self._lower(switch)
        if len(nodes) == 0:
            return -0.4, 0.4
        x, lane, half = self.xy[nodes, 0], self.lanes[nodes, int(down)], self.half[nodes]
        left, right = np.minimum(x - half, x + lane).min(), np.maximum(x + half, x + lane).max()
        return float(left) - 0.3, float(right) + 0.3


# Anything else: positions whose distances resemble the hops between nodes.


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
        return _circle(count)  # so dense that distances say little
    far = hops**2
    centred = far - far.mean(axis=0) - far.mean(axis=1, keepdims=True) + far.mean()
    _, vectors = np.linalg.eigh(centred @ centred.T)
    xy = centred.T @ vectors[:, -1:-3:-1]
    xy *= 0.5 * hops.max() / max(float(np.abs(xy).max()), 1e-9)
    # Nodes with the same neighbours coincide so far: part them along a golden spiral.
    angle = np.arange(count) * 2.399963
    xy += 0.3 * np.column_stack([np.cos(angle), np.sin(angle)])
    return _majorized(xy, topology, pivots, hops)


def _hops(topology: Topology, sources: Ints) -> Floats:
    """Undirected hops from each source to every node; far apart where there is no way."""
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
    share = topology.nodes / len(pivots)  # a pivot speaks for that many nodes
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
