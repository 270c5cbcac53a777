"""Channels: the rings, chains and trees over which NCCL spreads a collective.

A ring visits the boxes in rank order, as NCCL does, and enters and leaves each of them over one NIC. With one NPU
per NIC a ring that enters at NIC r leaves over another one, so that its hops alternate between rails c and c + 1
(and c + 2 once, if the number of boxes is odd); each NIC then carries one ring in each direction. Where the links of a
box do not allow that, a ring leaves over the NIC by which it entered. Inside a box, a ring follows links that earlier
rings have left free, found by a search with a counted budget. In a single box, rings are added until no more fit; as
in NCCL's search, several bandwidths per ring are tried and the largest total wins.

Trees join the boxes as NCCL's double binary trees; inside a box, a chain leads from the NPU at the NIC to all others.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.schedule import routes
from tacos.synth.baselines.block_trees import double_tree_parents
from tacos.synth.baselines.nccl.boxes import box_labels
from tacos.synth.baselines.ring_order import ring_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tacos._core import Topology
    from tacos.synth.baselines.nccl.boxes import Layout

    Speeds = NDArray[np.int64] | NDArray[np.float64]

__all__ = ["Chain", "Network", "chains", "network_of", "rings", "tree_parents"]

Chain = tuple[int, ...]
"""NPUs in the order in which a chain or a ring visits them."""

_LARGEST_SEARCH = 72
"""Largest number of NPUs of a box whose links are searched for rings: one NVLink domain (chosen)."""
_BUDGET = 160_000
"""Budget of one search for a path: visited NPUs times the size of the box (chosen: about 0.1 s)."""
_PACKINGS = 40
"""Largest number of sets of rings tried for one bandwidth (chosen)."""
_MOST_APART = 8
"""Largest distance between the rails of a ring that is tried (chosen)."""
_MOST_RINGS = 32
"""Largest number of channels of NCCL (specified)."""


class Network:
    """A topology, the routes of hops on it and the channels of groups, each found once.

    Threads may share a network: results depend on the topology alone, and are stored when they are complete.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.label = box_labels(topology)
        self.known: dict[tuple[int, int], tuple[int, ...]] = {}
        self.near: dict[tuple[int, int], bool] = {}
        self.found: dict[tuple[str, Layout], Any] = {}
        self.paths: dict[tuple[int, int], tuple[int, ...]] = {}
        self.leaving: list[list[int]] = []
        self.circles: dict[Chain, list[int]] = {}
        self.inside: dict[Chain, dict[int, list[int]]] = {}

    def route(self, a: int, b: int) -> tuple[int, ...]:
        """Return the links from a to b."""
        if (a, b) not in self.known:
            self.look_up([(a, b)])
        return self.known[a, b]

    def look_up(self, hops: list[tuple[int, int]]) -> None:
        """Find many routes at once."""
        new = [hop for hop in dict.fromkeys(hops) if hop not in self.known]
        if new:
            table = routes(self.topology, pairs=([a for a, _ in new], [b for _, b in new]))
            begin, links = table.link_begin.tolist(), table.links.tolist()
            npus, ends = self.topology.npus, self.topology.link_dst.tolist()
            for i, (a, b) in enumerate(new):
                path = tuple(links[begin[i] : begin[i + 1]])
                relayed = any(ends[link] < npus for link in path[:-1])
                inside = all(self.label[ends[link]] == self.label[a] for link in path)
                if relayed and self.label[a] != self.label[b]:
                    # A ring leaves a box over the NIC of its last NPU.
                    path = self.path(a, b) or path
                # The order matters: another thread may read while this one writes.
                self.near[a, b] = inside and not relayed
                self.known[a, b] = path

    def direct(self, a: int, b: int) -> bool:
        """Return whether the route from a to b stays in their box and passes no other NPU."""
        self.route(a, b)
        return self.near[a, b]

    def path(self, a: int, b: int) -> tuple[int, ...]:
        """Return the links of a shortest path from a to b through switches only; empty if there is none."""
        if (a, b) not in self.paths:
            self.paths[a, b] = self._shortest(a, b)
        return self.paths[a, b]

    def _shortest(self, a: int, b: int) -> tuple[int, ...]:
        if not self.leaving:
            leaving: list[list[int]] = [[] for _ in range(self.topology.nodes)]
            for i, src in enumerate(self.topology.link_src.tolist()):
                leaving[src].append(i)
            self.leaving = leaving
        came: dict[int, int] = {a: -1}
        queue = deque([a])
        while queue and b not in came:
            for link in self.leaving[queue.popleft()]:
                to = int(self.topology.link_dst[link])
                if to not in came and (to >= self.topology.npus or to == b):
                    came[to] = link
                    queue.append(to)
        found: list[int] = []
        node = b
        while node != a and node in came:
            found.append(came[node])
            node = int(self.topology.link_src[came[node]])
        return tuple(reversed(found))

    def bandwidth(self, circles: list[Chain], speeds: Speeds | None = None) -> float:
        """Return the total bytes per second of equally loaded rings, over links of the given speeds or their own."""
        speed = self.topology.link_bandwidth_Bps if speeds is None else np.asarray(speeds)
        crossed = [link for circle in circles for link in self._crossed(circle)]
        if not crossed:
            return 0.0
        uses = np.bincount(crossed)
        used = np.flatnonzero(uses)
        return len(circles) * float((speed[used] / uses[used]).min())

    def _crossed(self, circle: Chain) -> list[int]:
        """Return the links of a ring, hop by hop."""
        if circle not in self.circles:
            hops = zip(circle, circle[1:] + circle[:1], strict=True)
            self.circles[circle] = [link for a, b in hops for link in self.route(a, b)]
        return self.circles[circle]

    def neighbours(self, box: Chain) -> dict[int, list[int]]:
        """Return, for each NPU of a box, the NPUs that it reaches inside the box without passing another."""
        if box not in self.inside:
            self.look_up([(a, b) for a in box for b in box if a != b])
            self.inside[box] = {a: [b for b in box if a != b and self.near[a, b]] for a in box}
        return self.inside[box]


@lru_cache(maxsize=4)
def network_of(topology: Topology) -> Network:
    """Return a network with its cached results, since engines are called again for other numbers of chunks.

    >>> import tacos
    >>> network_of(tacos.topology.ring(4)) is network_of(tacos.topology.ring(4))
    True
    """
    return Network(topology)


def rings(network: Network, layout: Layout) -> list[Chain]:
    """Return the rings of a group, all different.

    >>> import tacos
    >>> from tacos.synth.baselines.nccl.boxes import layout
    >>> topo = tacos.topology.dgx_h100(2)
    >>> found = rings(Network(topo), layout(topo, np.arange(16, dtype=np.int32)))
    >>> len(found), found[0]
    (8, (1, 2, 3, 4, 5, 6, 7, 0, 8, 15, 14, 13, 12, 11, 10, 9))
    """
    key = "rings", layout
    if key not in network.found:
        network.found[key] = _rings(network, layout)
    known: list[Chain] = network.found[key]
    return known


def _rings(network: Network, layout: Layout) -> list[Chain]:
    if layout.ranks <= 2:
        return [tuple(npu for box in layout.boxes for npu in box)]
    if len(layout.boxes) == 1:
        return _in_one_box(network, layout.boxes[0])
    return _over_boxes(network, layout)[:_MOST_RINGS]


def chains(network: Network, layout: Layout) -> list[list[Chain]]:
    """Return, for each channel and box, the chain that begins at the channel's NIC.

    >>> import tacos
    >>> from tacos.synth.baselines.nccl.boxes import layout
    >>> topo = tacos.topology.dgx_h100(2)
    >>> chains(Network(topo), layout(topo, np.arange(16, dtype=np.int32)))[1][1]
    (9, 10, 11, 12, 13, 14, 15, 8)
    """
    key = "chains", layout
    if key not in network.found:
        network.found[key] = _chains(network, layout)
    known: list[list[Chain]] = network.found[key]
    return known


def _chains(network: Network, layout: Layout) -> list[list[Chain]]:
    if len(layout.boxes) == 1:
        return [[ring] for ring in rings(network, layout)]
    left = _Free(network, _nic_speed(network, layout))
    found: list[list[Chain]] = []
    for c in range(layout.rails):
        paths = [
            _path(left, box, nics[c][0], None)
            for box, nics in zip(layout.boxes, layout.nics, strict=True)
        ]
        if found and left.exceeded:
            break
        found.append(paths)
    return found


def tree_parents(channel: list[Chain], npus: int) -> list[NDArray[np.int32]]:
    """Return the parents of all NPUs (-1: none) in a channel's two trees, which join the first NPUs of its chains.

    >>> [tree.tolist() for tree in tree_parents([(0, 1), (2, 3), (4, 5)], 6)]
    [[-1, 0, 4, 2, 0, 4], [2, 0, -1, 2, 0, 4]]
    """
    found = []
    trees = double_tree_parents(len(channel)) if len(channel) > 1 else [np.array([-1], np.int32)]
    for over_boxes in trees:
        parent = np.full(npus, -1, np.int32)
        for box, up in zip(channel, over_boxes.tolist(), strict=True):
            for a, b in pairwise(box):
                parent[b] = a
            if up >= 0:
                parent[box[0]] = channel[up][0]
        found.append(parent)
    return found


class _Free:
    """How often each link can still be used by a channel of some bandwidth; negative if it is used too often."""

    def __init__(self, network: Network, unit: float) -> None:
        self.network = network
        speed = network.topology.link_bandwidth_Bps
        self.left: list[int] = (speed / max(unit, 1.0) * (1 + 1e-9)).astype(np.int64).tolist()

    def fits(self, a: int, b: int) -> bool:
        return self.network.direct(a, b) and all(
            self.left[link] > 0 for link in self.network.route(a, b)
        )

    @property
    def exceeded(self) -> bool:
        """Whether a link is used too often."""
        return min(self.left, default=0) < 0

    def use(self, chain: Chain, times: int = 1, *, closed: bool = False) -> None:
        for a, b in zip(chain, chain[1:] + chain[:1], strict=True):
            if closed or b != chain[0]:
                for link in self.network.route(a, b):
                    self.left[link] -= times


def _nic_speed(network: Network, layout: Layout) -> float:
    """Return the bandwidth of the slowest path between the first NICs of boxes, in bytes per second."""
    heads = [nics[0][0] for nics in layout.nics]
    network.look_up(list(zip(heads, heads[1:] + heads[:1], strict=True)))
    speed = network.topology.link_bandwidth_Bps
    return min(
        float(speed[list(network.route(a, b))].min())
        for a, b in zip(heads, heads[1:] + heads[:1], strict=True)
    )


def _over_boxes(network: Network, layout: Layout) -> list[Chain]:
    """Return one ring for each NIC that all boxes have, as far as the links in boxes allow."""
    alone = any(
        len(nic) == 1 < len(box)
        for box, nics in zip(layout.boxes, layout.nics, strict=True)
        for nic in nics
    )
    if not alone or layout.rails == 1:
        return _alternating(network, layout, 0)
    topology, head = network.topology, layout.boxes[0][0]
    inside = (topology.link_src == head) & (network.label[topology.link_dst] == network.label[head])
    port = float(topology.link_bandwidth_Bps[inside].sum())
    enough = 0.99 * min(port, min(layout.rails, _MOST_RINGS) * _nic_speed(network, layout))
    best: list[Chain] = []
    # With 0 apart, a ring returns to the NPU at which it entered a box, and leaves from there.
    for apart in (*range(1, min(layout.rails, _MOST_APART + 1)), 0):
        found = _alternating(network, layout, apart)
        if not best or network.bandwidth(found) > network.bandwidth(best) * (1 + 1e-9):
            best = found
        if network.bandwidth(best) >= enough:
            break
    return best


def _alternating(network: Network, layout: Layout, apart: int) -> list[Chain]:
    """Return rings whose hops between boxes alternate between rails that are `apart`."""
    count, rails = len(layout.boxes), layout.rails
    left = _Free(network, _nic_speed(network, layout))
    found: list[Chain] = []
    for c in range(rails):
        rail = [(c + apart * (b % 2)) % rails for b in range(count)]
        if count % 2:
            rail[-1] = (c + 2 * apart) % rails
        ring: list[int] = []
        for b, (box, nics) in enumerate(zip(layout.boxes, layout.nics, strict=True)):
            first, last = nics[rail[b - 1]][0], nics[rail[b]][-1]
            ring += _path(left, box, first, last if last != first else None)
        more = [*found, tuple(ring)]
        if tuple(ring) in found or network.bandwidth(more) <= network.bandwidth(found):
            break
        found = more
    return found


def _path(left: _Free, box: Chain, first: int, last: int | None) -> Chain:
    """Return a path through all of a box from `first` to `last`, over free links if possible, and take its links."""
    if len(box) == 1:
        return box
    at = box.index(first)
    # Rotated, as NCCL does on NVSwitch, where all orders are equally good.
    turned = [npu for npu in box[at:] + box[:at] if npu != last]
    if last is not None and box[(at - 1) % len(box)] != last:
        turned[1:] = turned[:0:-1]
    order = (*turned, last) if last is not None else tuple(turned)
    fits = all(left.fits(a, b) for a, b in pairwise(order))
    if not fits and len(box) <= _LARGEST_SEARCH:
        order = next(_paths(left, box, first, last, _budget(box)), order)
    left.use(order)
    return order


def _budget(box: Chain, share: int = 1) -> list[int]:
    """Return the number of NPUs that a search may still visit; a step costs more in a larger box."""
    return [_BUDGET // (len(box) * share)]


def _paths(
    left: _Free,
    box: Chain,
    first: int,
    last: int | None,
    budget: list[int],
    *,
    closed: bool = False,
) -> Iterator[Chain]:
    """Yield Hamiltonian paths of a box over free links; closed ones return to their first NPU."""
    near = left.network.neighbours(box)
    ahead = {a: [b for b in near[a] if left.fits(a, b)] for a in box}
    path, seen = [first], {first}

    def extend() -> Iterator[Chain]:
        if len(path) == len(box):
            if not closed or first in ahead[path[-1]]:
                yield tuple(path)
            return
        budget[0] -= 1
        if budget[0] < 0:
            return
        near = [
            b for b in ahead[path[-1]] if b not in seen and (b != last or len(path) == len(box) - 1)
        ]
        # The NPU with the fewest free links comes first, since it is easily cut off.
        near.sort(key=lambda b: sum(c not in seen for c in ahead[b]))
        for b in near:
            path.append(b)
            seen.add(b)
            yield from extend()
            path.pop()
            seen.discard(b)

    yield from extend()


def _in_one_box(network: Network, box: Chain) -> list[Chain]:
    """Search for rings that fill a box's links."""
    if len(box) > _LARGEST_SEARCH:
        return _one_order(network, box)
    network.look_up([(a, b) for a in box for b in box if a != b])
    near = [(a, b) for a in box for b in box if a != b and network.direct(a, b)]
    speed = network.topology.link_bandwidth_Bps
    slowest = [int(speed[list(network.route(a, b))].min()) for a, b in near]
    best, carried = [], 0.0
    for unit in sorted(set(slowest), reverse=True)[:8]:
        found = _packed(network, box, float(unit))
        if found and (total := network.bandwidth(found)) > carried * (1 + 1e-9):
            best, carried = found, total
    one = _one_order(network, box)
    return best if carried >= network.bandwidth(one) else one


def _packed(network: Network, box: Chain, unit: float) -> list[Chain]:
    """Try some sets of different rings of one bandwidth, and return the largest."""
    out = Counter[int]()
    free = _Free(network, unit)
    for link, times in enumerate(free.left):
        out[int(network.topology.link_src[link])] += times
    most = min(_MOST_RINGS, *(out[npu] for npu in box))
    budget = _budget(box)
    best: list[Chain] = []
    for tries, first in enumerate(_paths(free, box, box[0], None, budget, closed=True)):
        found: list[Chain] = []
        left, circle = _Free(network, unit), first
        while True:
            for turn in (circle, (circle[0], *circle[:0:-1])):
                if turn not in found and all(
                    left.fits(a, b) for a, b in zip(turn, turn[1:] + turn[:1], strict=True)
                ):
                    left.use(turn, closed=True)
                    found.append(turn)
            again = next(_paths(left, box, box[0], None, _budget(box, 4), closed=True), None)
            if again is None or again in found or len(found) >= most:
                break
            circle = again
        best = max(best, found, key=len)
        if len(best) >= most or tries + 1 == _PACKINGS:
            break
    return best


def _one_order(network: Network, box: Chain) -> list[Chain]:
    """Return one ring in a good order, and its reverse if both together carry more."""
    order, _ = ring_order(network.topology, np.array(box, np.int32), block_bytes=1 << 20)
    ring = tuple(order.tolist())
    network.look_up(list(zip(ring, ring[1:] + ring[:1], strict=True)))
    both = [ring, (ring[0], *ring[:0:-1])]
    network.look_up(list(zip(both[1], both[1][1:] + both[1][:1], strict=True)))
    return both if network.bandwidth(both) > 1.5 * network.bandwidth([ring]) else [ring]
