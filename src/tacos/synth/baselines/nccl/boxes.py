"""Boxes and NICs of a network, as NCCL sees hosts, found from the links alone.

Links fall into classes of bandwidth, wherever two neighbouring values differ by a factor of 1.5 or more. NPUs that
are joined by the faster classes, directly or through switches, are a box; slower links lead to other boxes. Where
several classes could separate boxes, the widest gap does. Slower links that join NPUs directly count as part of a
box (NVLink bundles and xGMI have several widths) unless they are four times slower. Where bandwidths do not tell
boxes apart, NPUs joined by direct links are a box; without direct links, NPUs on switches are one box if their ports
have 100 GB/s or more, and otherwise boxes of one NPU each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos.schedule import routes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["Layout", "box_labels", "layout"]

_GAP = 1.5
"""Least factor between two classes of bandwidth (chosen)."""
_DIRECT_GAP = 4.0
"""Least factor between two classes where slow links join NPUs directly (chosen)."""
_BOX_PORT_BPS = 100e9
"""Least bandwidth of a port that makes a switch an NVSwitch in a network of one class, in bytes/s (chosen)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The boxes of a group.

    Attributes:
        boxes: The members of each box in rank order, boxes in the order of their first ranks.
        nics: For each box, the NPUs at each NIC that the box can use at once.
    """

    boxes: tuple[tuple[int, ...], ...]
    nics: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def ranks(self) -> int:
        """Number of members."""
        return sum(map(len, self.boxes))

    @property
    def rails(self) -> int:
        """Number of NICs that every box has."""
        return min(map(len, self.nics))


def layout(topology: Topology, group: NDArray[np.int32]) -> Layout:
    """Return the boxes of a group of NPUs and their NICs.

    >>> import tacos
    >>> found = layout(tacos.topology.dgx1(2), np.arange(16, dtype=np.int32))
    >>> found.boxes[1], found.nics[0]
    ((8, 9, 10, 11, 12, 13, 14, 15), ((0, 1), (2, 3), (4, 5), (6, 7)))
    """
    label = box_labels(topology)
    found: dict[int, list[int]] = {}
    for npu in group.tolist():
        found.setdefault(int(label[npu]), []).append(npu)
    boxes = tuple(map(tuple, found.values()))
    if len(boxes) == 1:
        return Layout(boxes, (((boxes[0][0],),),))
    return Layout(boxes, _nics(topology, boxes, label))


def box_labels(topology: Topology) -> NDArray[np.int64]:
    """Return the box of each node; a switch outside boxes is a box of its own.

    >>> import tacos
    >>> box_labels(tacos.topology.fat_tree(2, 2, bandwidth="25GB/s")).tolist()[:4]
    [0, 1, 2, 3]
    """
    everything, alone = np.zeros(topology.nodes, np.int64), np.arange(topology.nodes)
    if not topology.links:
        return alone
    speeds = np.unique(topology.link_bandwidth_Bps).astype(float)
    breaks = np.flatnonzero(speeds[1:] >= _GAP * speeds[:-1])
    best, best_gap = None, 0.0
    for k in breaks.tolist():
        gap = float(speeds[k + 1] / speeds[k])
        label = _components(topology, topology.link_bandwidth_Bps > speeds[k])
        sizes = np.unique(label[: topology.npus], return_counts=True)[1]
        if len(sizes) == 1 or sizes.max() == 1:
            continue
        between = label[topology.link_src] != label[topology.link_dst]
        direct = (topology.link_src < topology.npus) & (topology.link_dst < topology.npus)
        if (between & direct).any() and gap < _DIRECT_GAP:
            continue
        if gap > best_gap:
            best, best_gap = label, gap
    if best is not None:
        return best
    between_npus = (topology.link_src < topology.npus) & (topology.link_dst < topology.npus)
    if between_npus.any():
        return _components(topology, between_npus)
    ports = np.bincount(topology.link_src, topology.link_bandwidth_Bps, topology.nodes)
    return everything if ports[: topology.npus].min() >= _BOX_PORT_BPS else alone


def _components(topology: Topology, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Number the components that the kept links connect, in either direction."""
    src = topology.link_src[kept].astype(np.int64)
    dst = topology.link_dst[kept].astype(np.int64)
    label = np.arange(topology.nodes)
    while True:
        lower = np.minimum(label[src], label[dst])
        before = label.copy()
        np.minimum.at(label, label[src], lower)
        np.minimum.at(label, label[dst], lower)
        label = label[label]
        if (label == before).all():
            return label


def _nics(
    topology: Topology, boxes: tuple[tuple[int, ...], ...], label: NDArray[np.int64]
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return the members at each NIC of every box, found on the paths to the next box."""
    neighbours: dict[int, set[int]] = {}
    for a, b in zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True):
        if a < topology.npus <= b:
            neighbours.setdefault(b, set()).add(int(label[a]))
    whole = [np.flatnonzero(label[: topology.npus] == label[box[0]]).tolist() for box in boxes]
    found = []
    for box, mine, after in zip(boxes, whole, whole[1:] + whole[:1], strict=True):
        by_nic: dict[tuple[str, int], list[int]] = {}
        missing = list(box)
        # Prefer the path to the NPU at the same place; if it passes other NPUs, try the others.
        for shift in range(len(after)):
            ends = [after[(mine.index(npu) + shift) % len(after)] for npu in missing]
            table = routes(topology, pairs=(missing, ends))
            paths = np.split(table.links, table.link_begin[1:-1])
            keys = [_nic(topology, links.tolist(), label, neighbours) for links in paths]
            for npu, key in zip(missing, keys, strict=True):
                if key is not None:
                    by_nic.setdefault(key, []).append(npu)
            missing = [npu for npu, key in zip(missing, keys, strict=True) if key is None]
            if not missing:
                break
        rank = {npu: i for i, npu in enumerate(box)}
        nics = sorted(
            (sorted(nic, key=rank.__getitem__) for nic in by_nic.values()),
            key=lambda nic: rank[nic[0]],
        )
        found.append(tuple(map(tuple, nics)) or ((box[0],),))
    return tuple(found)


def _nic(
    topology: Topology,
    links: list[int],
    label: NDArray[np.int64],
    neighbours: dict[int, set[int]],
) -> tuple[str, int] | None:
    """Return where a path leaves a box: a NIC that the box shares, or a link; None if it goes through another NPU."""
    home = label[topology.link_src[links[0]]]
    for link in links:
        to = int(topology.link_dst[link])
        if label[to] != home:
            shared = to >= topology.npus and neighbours.get(to) == {int(home)}
            return ("switch", to) if shared else ("link", link)
        if to < topology.npus:
            return None
    return None
