"""Channels: the rings, chains and trees over which NCCL spreads a collective.

A ring visits the boxes in rank order, as NCCL does, and enters and leaves each of them over one NIC. With one NPU
per NIC a ring that enters at NIC r leaves over another one, so that its hops alternate between rails c and c + 1
(and c + 2 once, if the number of boxes is odd); each NIC then carries one ring in each direction. Where the links of a
box do not allow that, a ring leaves over the NIC by which it entered. Inside a box, a ring follows links that earlier
rings have left free, found by a search with a counted budget. In a single box, rings are added until no more fit.

Trees join the boxes as NCCL's double binary trees; inside a box, a chain leads from the NPU at the NIC to all others.

As in NCCL's search, all channels have one speed, and the sets compete by number times speed. All boxes agree on the
smallest number and the lowest speed, so a slow NIC slows down all channels or is left out, whichever carries more.
Speeds weigh candidates, and say how many channels a link has room for, but no choice depends on them otherwise: a
small change of a speed makes a small change of the total. The order in which a search visits NPUs is that of
:func:`search_order`, so the result does not depend on how equal NPUs are numbered.
"""

from __future__ import annotations

from collections import Counter, deque
from copy import copy
from functools import lru_cache
from itertools import islice, pairwise, product
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.schedule import paths, routes
from tacos.synth.baselines.block_trees import double_tree_parents
from tacos.synth.baselines.nccl.boxes import Layout, box_labels
from tacos.synth.baselines.nccl.order import LARGEST_SEARCH, search_order
from tacos.synth.baselines.ring_order import ring_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tacos._core import Routes, Topology

    Ints = NDArray[np.int32]
    Speeds = NDArray[np.int64] | NDArray[np.float64]

__all__ = ["Chain", "Network", "agreed", "chains", "network_of", "rings", "tree_parents"]

Chain = tuple[int, ...]
"""NPUs in the order in which a chain or a ring visits them."""

_BUDGET = 160_000
"""Budget of one search for a path: visited NPUs times the size of the box (chosen: about 0.1 s)."""
_PACKINGS = 40
"""Largest number of sets of rings tried in the first order (chosen)."""
_ORDERS = 32
"""Largest number of orders in which a search visits NPUs (chosen: an 8x8 torus needs 25)."""
_STARTS = 16
"""Largest number of NPUs from which a ring with a detour is searched (chosen)."""
_MOST_APART = 8
"""Largest distance between the rails of a ring that is tried (chosen)."""
_MOST_RINGS = 32
"""Largest number of channels of NCCL (specified)."""
_ENOUGH = 0.98
"""Share of the largest possible total at which the search for rings between boxes ends (chosen)."""
_SLACK = 0.03
"""Largest share by which a link may be too slow for a channel that uses it (chosen)."""


class Network:
    """A topology, the routes of hops on it and the channels of groups, each found once.

    Threads may share a network: results depend on the topology alone, and are stored when they are complete.

    Attributes:
        name: The engine that knows the network in this way.
        searched: The network on which channels are laid; their times may be those on another network.
    """

    name = "nccl"

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.executed = topology
        self.searched: Network = self
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
            table = paths(self.topology, ([a for a, _ in new], [b for _, b in new]))
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

    def laid(self, links: tuple[int, ...], kind: str = "path") -> tuple[int, ...]:  # noqa: ARG002
        """Return the links of `executed`, the network that carries out the schedule, on which a route lies."""
        return links

    def marks(self, links: list[int]) -> tuple[int, ...]:  # noqa: ARG002
        """Return what tells links from others that are alike to NCCL, so that the numbers of nodes need not."""
        return ()

    def marks_at(self, nodes: Chain) -> tuple[int, ...]:  # noqa: ARG002
        """Return the marks of all links of some nodes."""
        return ()

    @property
    def carrier(self) -> Network:
        """The network as it is, with the routes that were chosen on this one; this one if NCCL knows all of it."""
        return self

    def table(
        self, src: Ints, dst: Ints, progress: Callable[[float], object] | None = None
    ) -> Routes:
        """Return the routes of direct sends."""
        return routes(self.topology, pairs=(src, dst), progress=progress)

    def sends(self) -> Callable[[int, int], tuple[int, ...]] | None:
        """Return what gives the links of a direct send; None for the default routes of `executed`."""
        return None

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
        if not any(len(circle) > 1 for circle in circles):
            return 0.0
        return self.totals([self._crossed(circle) for circle in circles], speeds)[-1]

    def totals(self, crossed: list[list[int]], speeds: Speeds | None = None) -> list[float]:
        """Return the total bytes per second of the first channel, the first two, and so on, which cross these links."""
        speed = self.topology.link_bandwidth_Bps if speeds is None else np.asarray(speeds)
        uses, found = np.zeros(len(speed), np.int64), []
        for count, links in enumerate(crossed, 1):
            np.add.at(uses, links, 1)
            used = np.flatnonzero(uses)
            found.append(count * float((speed[used] / uses[used]).min()) if len(used) else np.inf)
        return found

    def best_first(self, circles: list[Chain]) -> list[Chain]:
        """Return as many of the first rings as carry most together."""
        return circles[: _best(self.totals([self._crossed(circle) for circle in circles]))]

    def _crossed(self, circle: Chain) -> list[int]:
        """Return the links of a ring, hop by hop."""
        if circle not in self.circles:
            hops = zip(circle, circle[1:] + circle[:1], strict=True)
            self.circles[circle] = [link for a, b in hops for link in self.route(a, b)]
        return self.circles[circle]

    def links_of(self, circle: Chain) -> int:
        """Return the number of links that a ring crosses."""
        return len(self._crossed(circle))

    def crossed(self, channel: list[Chain]) -> list[int]:
        """Return the links of a channel's chains."""
        return [link for box in channel for a, b in pairwise(box) for link in self.route(a, b)]

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
        return _in_one_box(network, agreed(network, layout).boxes[0])
    return _over_boxes(network, layout)[1]


def agreed(network: Network, layout: Layout) -> Layout:
    """Return the boxes as channels use them: in the order of the search, with the NICs on whose number all boxes agree.

    >>> import tacos
    >>> from tacos.synth.baselines.nccl.boxes import layout
    >>> topo = tacos.topology.dgx_h100(2)
    >>> slow = tacos.topology.degrade(topo, "npu 3-switch 2", factor=0.5)
    >>> agreed(Network(slow), layout(slow, np.arange(16, dtype=np.int32))).rails
    7
    """
    if layout.ranks <= 2:
        return layout
    if len(layout.boxes) > 1:
        return _over_boxes(network, layout)[0]
    key = "order", layout
    if key not in network.found:
        order = search_order(network, layout.boxes[0], [1] * network.topology.links)
        network.found[key] = Layout((order,), (((order[0],),),), layout.uplinks)
    known: Layout = network.found[key]
    return known


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
    layout = agreed(network, layout)
    best, carried = list[list[Chain]](), 0.0
    for left in _rooms(network, layout):
        found = [
            [
                _path(left, box, nics[c][0], None)
                for box, nics in zip(layout.boxes, layout.nics, strict=True)
            ]
            for c in range(layout.rails)
        ]
        inside = network.totals([network.crossed(channel) for channel in found])
        totals = [min(most, c * _unit(layout)) for c, most in enumerate(inside, 1)]
        count = _best(totals)
        if totals[count - 1] > carried * (1 + 1e-9):
            best, carried = found[:count], totals[count - 1]
    return best


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

    def __init__(self, network: Network, unit: float, round_up: float) -> None:
        self.network = network
        speed = network.topology.link_bandwidth_Bps
        self.left: list[int] = (speed / max(unit, 1.0) + round_up).astype(np.int64).tolist()

    def copy(self) -> _Free:
        other = copy(self)
        other.left = self.left.copy()
        return other

    def fits(self, a: int, b: int) -> bool:
        return self.network.direct(a, b) and all(
            self.left[link] > 0 for link in self.network.route(a, b)
        )

    def onward(self, box: Chain) -> Chain:
        """Return, for each NPU of a box, the places in it that free links reach, as bits of a number."""
        near, known = self.network.neighbours(box), self.network.known
        place = {npu: i for i, npu in enumerate(box)}
        taken = {link for link, left in enumerate(self.left) if left <= 0}
        return tuple(
            sum(1 << place[b] for b in near[a] if taken.isdisjoint(known[a, b])) for a in box
        )

    def use(self, chain: Chain, times: int = 1, *, closed: bool = False) -> None:
        for a, b in zip(chain, chain[1:] + chain[:1], strict=True):
            if closed or b != chain[0]:
                for link in self.network.route(a, b):
                    self.left[link] -= times


def _best(totals: list[float]) -> int:
    """Return the number of channels that carry most together; of equal ones, the smallest."""
    most = max(totals) * (1 - 1e-9)
    return next(count for count, total in enumerate(totals, 1) if total >= most)


def _unit(layout: Layout) -> float:
    """Return the bandwidth of the slowest NIC."""
    return float(min(speed for uplinks in layout.uplinks for _, speed in uplinks))


def _over_boxes(network: Network, layout: Layout) -> tuple[Layout, list[Chain]]:
    """Return the NICs of each box that channels use, and one ring for each of them, as far as the links allow."""
    key = "channels", layout
    if key not in network.found:
        best, found, carried = layout, list[Chain](), 0.0
        for limit, part in _choices(_ordered(network, layout)):
            if found and limit <= carried * (1 + 1e-9):
                break
            circles = _between(network, part)
            if not found or network.bandwidth(circles) > carried * (1 + 1e-9):
                best, found, carried = part, circles, network.bandwidth(circles)
        network.found[key] = best, found
    known: tuple[Layout, list[Chain]] = network.found[key]
    return known


def _ordered(network: Network, layout: Layout) -> Layout:
    """Return the layout with boxes, their NPUs and their NICs in the order of the search."""
    rows = list(zip(layout.boxes, layout.nics, layout.uplinks, strict=True))
    at: dict[int, list[int]] = {}
    for _, _, uplinks in rows:
        for node, Bps in uplinks:
            at.setdefault(node, []).append(Bps)
    # NCCL visits boxes in rank order. Boxes that are joined alike could have any ranks.
    if all({node for node, _ in row[2]} == set(at) for row in rows):
        rows.sort(key=lambda row: _kind(network, row[0], [Bps for _, Bps in row[2]]))
    median = float(np.median([Bps for every in at.values() for Bps in every]))
    room = _Free(network, median, round_up=0.5).left
    place: dict[int, int] = {}
    found = []
    # The last boxes have the most slow links, and say in which order the others visit the same switches.
    for box, nics, uplinks in reversed(rows):
        rank = {npu: i for i, npu in enumerate(box)}
        behind = {
            npu: (place.get(node, len(place)), [*sorted(at[node]), *network.marks_at((node,))], Bps)
            for nic, (node, Bps) in zip(nics, uplinks, strict=True)
            for npu in nic
        }
        mark = {npu: network.marks_at((npu,)) for npu in box}
        alike = sorted(
            box,
            key=lambda npu: (behind[npu][0] if npu in behind else -1, mark[npu], rank[npu]),
        )
        kind = {npu: (Bps, *speeds, *mark[npu]) for npu, (_, speeds, Bps) in behind.items()}
        order = search_order(network, tuple(alike), room, kind)
        turn = {npu: i for i, npu in enumerate(order)}
        rows_of_nics = sorted(
            (tuple(sorted(nic, key=turn.__getitem__)), uplink)
            for nic, uplink in zip(nics, uplinks, strict=True)
        )
        rows_of_nics.sort(key=lambda row: turn[row[0][0]])
        for _, (node, _) in rows_of_nics:
            place.setdefault(node, len(place))
        found.append((order, *map(tuple, zip(*rows_of_nics, strict=True))))
    return Layout(*zip(*reversed(found), strict=True))


def _kind(network: Network, box: Chain, nic_Bps: list[int]) -> tuple[Any, ...]:
    """Return what tells a box from others: its size and the bandwidths of its NICs and links, healthy boxes first.

    Small differences come last, so that they do not change the order of boxes with large ones.
    """
    topology, home = network.topology, network.label[box[0]]
    inside = (network.label[topology.link_src] == home) & (network.label[topology.link_dst] == home)
    exact = [np.sort(-np.array(nic_Bps)), np.sort(-topology.link_bandwidth_Bps[inside])]
    rough = [np.rint(-5 * np.log2(-Bps)).tolist() for Bps in exact]
    return (
        len(box),
        rough,
        [Bps.tolist() for Bps in exact],
        [-mark for mark in network.marks_at(box)],
    )


def _choices(layout: Layout) -> list[tuple[float, Layout]]:
    """Return layouts with fewer and fewer, but faster NICs, and what they carry at most; those that carry most come first.

    A channel uses one NIC of each box: the fastest, or the fastest that leads to the same switch outside.
    """
    found: dict[Layout, float] = {}
    for same_switch in (True, False):
        groups: list[dict[int, list[int]]] = []
        for uplinks in layout.uplinks:
            group: dict[int, list[int]] = {}
            for i in sorted(range(len(uplinks)), key=lambda i: -uplinks[i][1]):
                group.setdefault(uplinks[i][0] if same_switch else 0, []).append(i)
            groups.append(group)
        channels = [
            (min(up[i][1] for up, i in zip(layout.uplinks, nics, strict=True)), nics)
            for node in groups[0]
            for nics in zip(*(group.get(node, []) for group in groups), strict=False)
        ]
        channels.sort(key=lambda channel: -channel[0])
        for count in range(1, min(len(channels), _MOST_RINGS) + 1):
            speed, kept = channels[count - 1][0], sorted(nics for _, nics in channels[:count])
            part = Layout(
                layout.boxes,
                *(
                    tuple(tuple(row[nics[b]] for nics in kept) for b, row in enumerate(rows))
                    for rows in (layout.nics, layout.uplinks)
                ),
            )
            found.setdefault(part, count * float(speed))
    return sorted(((limit, part) for part, limit in found.items()), key=lambda one: -one[0])


def _between(network: Network, layout: Layout) -> list[Chain]:
    """Return rings over all NICs of a layout, as far as the links in boxes allow."""
    alone = any(
        len(nic) == 1 < len(box)
        for box, nics in zip(layout.boxes, layout.nics, strict=True)
        for nic in nics
    )
    # With 0 apart, a ring returns to the NPU at which it entered a box, and leaves from there.
    distances = (*range(1, min(layout.rails, _MOST_APART + 1)), 0) if alone else (0,)
    enough = _ENOUGH * min(layout.rails * _unit(layout), _through(network, layout))
    best: list[Chain] = []
    for apart, room in product(distances, _rooms(network, layout)):
        found = network.best_first(_alternating(layout, apart, room.copy()))
        if not best or network.bandwidth(found) > network.bandwidth(best) * (1 + 1e-9):
            best = found
        if network.bandwidth(best) >= enough:
            break
    return best


def _through(network: Network, layout: Layout) -> float:
    """Return the most that rings can carry through a box, where all NPUs but one send inside it."""
    topology, label = network.topology, network.label
    inside = label[topology.link_src] == label[topology.link_dst]
    ports = np.bincount(
        topology.link_src[inside], topology.link_bandwidth_Bps[inside], topology.nodes
    )
    large = [box for box in layout.boxes if len(box) > 1]
    return min((float(ports[list(box)].sum()) / (len(box) - 1) for box in large), default=np.inf)


def _rooms(network: Network, layout: Layout) -> list[_Free]:
    """Return for how many channels links have room: as often as their speed allows, and to the nearest number."""
    inside = network.label[network.topology.link_src] == network.label[network.topology.link_dst]
    fastest = float(network.topology.link_bandwidth_Bps[inside].max(initial=1))
    found = [_Free(network, min(_unit(layout), fastest), round_up) for round_up in (_SLACK, 0.5)]
    return found if found[0].left != found[1].left else found[:1]


def _alternating(layout: Layout, apart: int, left: _Free) -> list[Chain]:
    """Return rings whose hops between boxes alternate between rails that are `apart`."""
    count, rails = len(layout.boxes), layout.rails
    found: list[Chain] = []
    for c in range(rails):
        rail = [(c + apart * (b % 2)) % rails for b in range(count)]
        if count % 2:
            rail[-1] = (c + 2 * apart) % rails
        ring: list[int] = []
        for b, (box, nics) in enumerate(zip(layout.boxes, layout.nics, strict=True)):
            first, last = nics[rail[b - 1]][0], nics[rail[b]][-1]
            ring += _path(left, box, first, last if last != first else None)
        if tuple(ring) not in found:
            found.append(tuple(ring))
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
    if not fits and len(box) <= LARGEST_SEARCH:
        end = None if last is None else box.index(last)
        if path := _first_walk(left.onward(box), at, end, _budget(box)):
            order = tuple(box[place] for place in path)
    left.use(order)
    return order


def _budget(box: Chain, share: int = 1) -> int:
    """Return the number of NPUs that a search may visit; a step costs more in a larger box."""
    return _BUDGET // (len(box) * share)


def _paths(
    left: _Free,
    box: Chain,
    first: int,
    last: int | None,
    budget: int,
    *,
    closed: bool = False,
) -> Iterator[Chain]:
    """Yield Hamiltonian paths of a box over free links; closed ones return to their first NPU."""
    end = None if last is None else box.index(last)
    for path in _walks(left.onward(box), box.index(first), end, budget, closed=closed):
        yield tuple(box[place] for place in path)


@lru_cache(maxsize=4096)
def _first_walk(onward: Chain, first: int, last: int | None, budget: int) -> Chain | None:
    """Return the first path, remembered, since many boxes are equal and most searches for one fail."""
    return next(_walks(onward, first, last, budget), None)


def _walks(
    onward: Chain, first: int, last: int | None, budget: int, *, closed: bool = False
) -> Iterator[Chain]:
    """Yield Hamiltonian paths of places, given the set of places that follow each one, as bits of a number."""
    ahead = [[b for b in range(len(onward)) if places >> b & 1] for places in onward]
    end = 0 if last is None else 1 << last
    path, free = list[int](), (1 << len(onward)) - 1
    choices = [[first]]  # the best last
    while choices:
        if not choices[-1]:
            choices.pop()
            free |= 1 << path.pop() if path else 0
            continue
        at = choices[-1].pop()
        path.append(at)
        free ^= 1 << at
        if not free:
            if not closed or onward[at] >> first & 1:
                yield tuple(path)
            free = 1 << path.pop()
            continue
        budget -= 1
        if budget < 0:
            return
        allowed = free if free == end else free & ~end
        more = [b for b in ahead[at] if allowed >> b & 1]
        # The place with the fewest free ones after it comes first, since it is easily cut off.
        more.sort(key=lambda b: (onward[b] & free).bit_count())
        choices.append(more[::-1])


def _in_one_box(network: Network, box: Chain) -> list[Chain]:
    """Search for rings that fill a box's links."""
    if len(box) > LARGEST_SEARCH:
        return _one_order(network, box)
    near = network.neighbours(box)
    speed = network.topology.link_bandwidth_Bps
    slowest = {int(speed[list(network.route(a, b))].min()) for a in box for b in near[a]}
    units: list[int] = []
    for one in sorted(slowest, reverse=True):
        if not units or units[-1] * (1 - _SLACK) > one:
            units.append(one)
    tried = set[tuple[int, ...]]()
    ports = np.bincount(network.topology.link_src, speed, network.topology.nodes)[list(box)]
    best, carried = list[Chain](), 0.0
    # A slow link is left out, or slows down the channels that use it. Last, all links have room for one channel.
    rooms = [_Free(network, float(one), up) for one, up in product(units[:8], (_SLACK, 0.5))]
    for room in rooms[:1]:
        rooms.append(room.copy())
        rooms[-1].left = [1] * len(room.left)
    for room in rooms:
        if tuple(room.left) in tried or carried >= (1 - 1e-9) * ports.min():
            continue
        tried.add(tuple(room.left))
        order = search_order(network, box, room.left)
        found = _packed(room, order)
        if found and (total := network.bandwidth(found)) > carried * (1 + 1e-9):
            best, carried = found, total
    simple = _one_order(network, box)
    if not best:  # no ring over links alone exists
        around = _around(rooms[-1], search_order(network, box, rooms[-1].left)) if rooms else None
        return _shortest_of(network, [around, simple] if around else [simple])
    return _fastest_first(network, best) if carried >= network.bandwidth(simple) else simple


def _fastest_first(network: Network, circles: list[Chain]) -> list[Chain]:
    """Return the rings in an order in which few of them carry much, since small collectives use only the first."""
    left, found = list(circles), list[Chain]()
    while left:
        found.append(max(left, key=lambda circle: network.bandwidth([*found, circle])))
        left.remove(found[-1])
    return found


def _packed(free: _Free, box: Chain) -> list[Chain]:
    """Try some sets of different rings, and return the largest."""
    out = Counter[int]()
    for link, times in enumerate(free.left):
        out[int(free.network.topology.link_src[link])] += times
    most = min(_MOST_RINGS, *(out[npu] for npu in box))
    best: list[Chain] = []
    for turn in range(_ORDERS):
        # Other orders than the first are random, but the same for all numberings of equal NPUs.
        order = tuple(Random(turn).sample(box, len(box))) if turn else box
        tries = _PACKINGS if turn == 0 else 1
        best = max(best, _packed_in_order(free, order, most, tries), key=len)
        if len(best) >= most:
            break
    return best


def _packed_in_order(free: _Free, box: Chain, most: int, tries: int) -> list[Chain]:
    """Try some sets of rings, each beginning with another ring."""
    best: list[Chain] = []
    firsts = _paths(free, box, box[0], None, _budget(box), closed=True)
    for first in islice(firsts, tries):
        found: list[Chain] = []
        left, circle = free.copy(), first
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
        if len(best) >= most:
            break
    return best


def _shortest_of(network: Network, candidates: list[list[Chain]]) -> list[Chain]:
    """Return the rings that carry most; of equal ones, those that cross the fewest links."""
    most = max(map(network.bandwidth, candidates)) * (1 - 1e-9)
    return min(
        (one for one in candidates if network.bandwidth(one) >= most),
        key=lambda circles: sum(map(network.links_of, circles)) / len(circles),
    )


def _around(room: _Free, box: Chain) -> list[Chain]:
    """Return a ring, and its reverse if both carry more, whose last hop passes other NPUs of the box, as NCCL allows."""
    network, best, carried = room.network, list[Chain](), 0.0
    most = 0.0
    for first in box[:_STARTS]:
        for path in islice(_paths(room, box, first, None, _budget(box)), _PACKINGS):
            found = _both_ways(network, path)
            inside = network.crossed([path])
            most = max(most, len(found) * float(network.topology.link_bandwidth_Bps[inside].min()))
            if (total := network.bandwidth(found)) > carried * (1 + 1e-9):
                best, carried = found, total
        if best and carried >= (1 - 1e-9) * most:
            break
    return best


def _both_ways(network: Network, ring: Chain) -> list[Chain]:
    """Return a ring, and its reverse if both together carry more."""
    both = [ring, (ring[0], *ring[:0:-1])]
    for one in both:
        network.look_up(list(zip(one, one[1:] + one[:1], strict=True)))
    return both if network.bandwidth(both) > 1.5 * network.bandwidth([ring]) else [ring]


def _one_order(network: Network, box: Chain) -> list[Chain]:
    """Return one ring in a good order, and its reverse if both together carry more."""
    order, _ = ring_order(network.topology, np.array(box, np.int32), block_bytes=1 << 20)
    return _both_ways(network, tuple(order.tolist()))
