"""Boxes and NICs of a network, as NCCL sees hosts, found from the links alone.

Links fall into classes of bandwidth, wherever two neighbouring values differ by a factor of 1.5 or more, or at all
where the faster ones have 100 GB/s and the slower ones lead from NPUs to switches. NPUs that are joined by the faster classes, directly or through switches, are a
box; slower links lead to other boxes. Where several classes could separate boxes, the widest gap does. Slower links
that join NPUs directly count as part of a box (NVLink bundles and xGMI have several widths) unless they are four times
slower. So do slow links to the switch of a box, which are broken. Where bandwidths do not tell boxes apart, NPUs joined
by direct links are a box; without direct links, NPUs on switches are one box if half of them have ports of 100 GB/s or
more, and otherwise boxes of one NPU each.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tacos.schedule import paths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["Layout", "box_labels", "layout"]

_GAP = 1.5
"""Least factor between two classes of bandwidth (chosen)."""
_DIRECT_GAP = 4.0
"""Least factor between two classes where slow links join NPUs directly (chosen)."""
_BOX_PORT_BPS = 100e9
"""Least bandwidth of a port that makes a switch an NVSwitch, in bytes/s (chosen)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The boxes of a group.

    Attributes:
        boxes: The members of each box in rank order, boxes in the order of their first ranks.
        nics: For each box, the NPUs at each NIC that the box can use at once.
        uplinks: For each box and NIC, the first node that other boxes may reach too, and the NIC's bytes per second.
    """

    boxes: tuple[tuple[int, ...], ...]
    nics: tuple[tuple[tuple[int, ...], ...], ...]
    uplinks: tuple[tuple[tuple[int, int], ...], ...]

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
        return Layout(boxes, (((boxes[0][0],),),), (((boxes[0][0], 0),),))
    return Layout(boxes, *_nics(topology, boxes, label))


def box_labels(topology: Topology) -> NDArray[np.int64]:
    """Return the box of each node; a switch outside boxes is a box of its own.

    >>> import tacos
    >>> box_labels(tacos.topology.fat_tree(2, 2, bandwidth="25GB/s")).tolist()[:4]
    [0, 1, 2, 3]
    """
    everything, alone = np.zeros(topology.nodes, np.int64), np.arange(topology.nodes)
    if not topology.links:
        return alone
    src, dst, npus = topology.link_src, topology.link_dst, topology.npus
    direct = (src < npus) & (dst < npus)
    speeds = np.unique(topology.link_bandwidth_Bps).astype(float)
    best, best_gap = None, 0.0
    for slow, fast in pairwise(speeds.tolist()):
        gap = fast / slow
        if gap < _GAP and fast < _BOX_PORT_BPS:
            continue
        kept = topology.link_bandwidth_Bps > slow
        label = _components(topology, kept)
        occupied = np.isin(label, label[:npus])
        # A slow link to the switch of a box is a broken one.
        label = _components(topology, kept | ((src < npus) & (dst >= npus) & occupied[dst]))
        sizes = np.unique(label[:npus], return_counts=True)[1]
        if len(sizes) == 1 or sizes.max() == 1:
            continue
        out = (label[src] != label[dst]) & np.isin(label[src], label[:npus])
        if ((out & direct).any() and gap < _DIRECT_GAP) or (
            (out & (src >= npus)).any() and gap < _GAP
        ):
            continue
        if gap > best_gap:
            best, best_gap = label, gap
    if best is not None:
        return best
    if direct.any():
        return _components(topology, direct)
    ports = np.bincount(src, topology.link_bandwidth_Bps, topology.nodes)
    return everything if np.median(ports[:npus]) >= _BOX_PORT_BPS else alone


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
) -> tuple[tuple[tuple[tuple[int, ...], ...], ...], tuple[tuple[tuple[int, int], ...], ...]]:
    """Return the members at each NIC of every box, found on the paths to the next box, and the NICs' uplinks."""
    neighbours: dict[int, set[int]] = {}
    for a, b in zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True):
        if a < topology.npus <= b:
            neighbours.setdefault(b, set()).add(int(label[a]))
    whole = [np.flatnonzero(label[: topology.npus] == label[box[0]]).tolist() for box in boxes]
    nics, uplinks = [], []
    for box, mine, after in zip(boxes, whole, whole[1:] + whole[:1], strict=True):
        by_nic: dict[tuple[str, int], list[int]] = {}
        uplink: dict[tuple[str, int], tuple[int, int]] = {}
        missing = list(box)
        # Prefer the path to the NPU at the same place; if it passes other NPUs, try the others.
        for shift in range(len(after)):
            ends = [after[(mine.index(npu) + shift) % len(after)] for npu in missing]
            there, back = _paths(topology, missing, ends), _paths(topology, ends, missing)
            keys = [_nic(topology, links, label, neighbours) for links in there]
            for npu, key, out, into in zip(missing, keys, there, back, strict=True):
                if key is not None:
                    by_nic.setdefault(key, []).append(npu)
                    node, speed = _uplink(topology, out, into, label, neighbours)
                    uplink[key] = node, min(speed, uplink.get(key, (node, speed))[1])
            missing = [npu for npu, key in zip(missing, keys, strict=True) if key is None]
            if not missing:
                break
        rank = {npu: i for i, npu in enumerate(box)}
        found = sorted(
            (
                (tuple(sorted(nic, key=rank.__getitem__)), uplink[key])
                for key, nic in by_nic.items()
            ),
            key=lambda nic: rank[nic[0][0]],
        )
        nics.append(tuple(nic for nic, _ in found) or ((box[0],),))
        uplinks.append(tuple(up for _, up in found) or ((box[0], 1),))
    return tuple(nics), tuple(uplinks)


def _paths(topology: Topology, src: list[int], dst: list[int]) -> list[list[int]]:
    table = paths(topology, (src, dst))
    return [links.tolist() for links in np.split(table.links, table.link_begin[1:-1])]


def _uplink(
    topology: Topology,
    out: list[int],
    into: list[int],
    label: NDArray[np.int64],
    neighbours: dict[int, set[int]],
) -> tuple[int, int]:
    """Return the first node on a way out that other boxes may reach too, and the bandwidth of the ways there and back."""
    home = label[topology.link_src[out[0]]]

    def last(links: list[int], ends: NDArray[np.int32]) -> int:
        """Return how many links lead to the first node outside that is not a NIC of the box."""
        for count, link in enumerate(links, 1):
            node = int(ends[link])
            if label[node] != home and neighbours.get(node) != {int(home)}:
                return count
        return len(links)

    sent = out[: last(out, topology.link_dst)]
    received = into[-last(into[::-1], topology.link_src) :]
    speed = topology.link_bandwidth_Bps[[*sent, *received]].min()
    return int(topology.link_dst[sent[-1]]), int(speed)


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
