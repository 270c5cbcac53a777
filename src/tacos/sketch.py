"""Communication sketches: what a person knows about a good algorithm, to guide a search.

A sketch says which transfers are allowed: over which links, between which NPUs, which NPUs may relay, and
through which NPUs data leave a box. Every engine obeys it: the engine works on the network without the
forbidden links, and its schedule is checked. A sketch may also ask for symmetry, for sending a sender's own chunks
first, and for few or many connections through switches, which the milp engine takes into account. The idea is TACCL's
(Shah et al., NSDI 2023), whose files load as sketches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from tacos._core import Routes, Schedule, Topology, fields
from tacos.nodes import LinkChoice, Node, Nodes
from tacos.topology.edits import chosen_links
from tacos.topology.links import Links, assemble, columns_of, model_of, whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tacos._core import Collective

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

__all__ = ["Sketch"]

_WORDS = ("fully-connected", "direct-map", "none")


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """The transfers that an algorithm may use, and properties that it should have. By default, everything is allowed.

    Args:
        box: Number of NPUs in a box; places are positions within a box. 0: all NPUs are one box.
        drop: Links that must not be used: numbers, or pairs (src, dst) of nodes.
        within: Sets of places that may communicate within a box; all by default.
        between: Which place sends to which places of other boxes in one hop: by sender, or
            ``"fully-connected"``, ``"direct-map"`` (to the same place) or ``"none"``; all by default.
        relays: NPUs (numbers or names) that may forward chunks of others; all by default.
        senders: For each sending place, the places whose chunks leave the box through it. Only for collectives
            that copy: a sum does not belong to one NPU.
        symmetry: Pairs (offset, size): rotating the ranks by `offset` within each block of `size` ranks must not
            change the algorithm.
        chunks: The number of chunks per part, if the collective leaves it open.
        own_first: Whether a sender's own chunks go first over hops between boxes.
        connections: ``"uc-min"`` for few pairs of NPUs that communicate through switches, ``"uc-max"`` for many.

    >>> import tacos
    >>> box = tacos.topology.dgx1()
    >>> sketch = Sketch(drop=[(0, 1), (1, 0)])
    >>> coll = tacos.collective.all_gather(box, "8MB", chunks=1)
    >>> schedule = tacos.synthesize(box, coll, engine="greedy", sketch=sketch)
    >>> schedule.topology == box, schedule.link_bytes()[0]
    (True, np.int64(0))
    """

    box: int = 0
    drop: Sequence[LinkChoice] = ()
    within: Sequence[Sequence[int]] | None = None
    between: (
        Mapping[int, Sequence[int]] | Literal["fully-connected", "direct-map", "none"] | None
    ) = None
    relays: Sequence[Node] | None = None
    senders: Mapping[int, Sequence[int]] = field(default_factory=dict)
    symmetry: Sequence[tuple[int, int]] = ()
    chunks: int | None = None
    own_first: bool = False
    connections: Literal["uc-min", "uc-max"] | None = None

    def __post_init__(self) -> None:
        whole_number("box", self.box, least=0)
        if self.chunks is not None:
            whole_number("chunks", self.chunks)
        if self.connections not in (None, "uc-min", "uc-max"):
            raise ValueError(f"connections must be uc-min or uc-max; got {self.connections!r}")
        if isinstance(self.between, str) and self.between not in _WORDS:
            raise ValueError(f"between must be one of {', '.join(_WORDS)}; got {self.between!r}")
        for offset, size in self.symmetry:
            whole_number("symmetry's size", size)
            whole_number("symmetry's offset", offset, least=0)

    def numbered(self, topology: Topology) -> Sketch:
        """Return the sketch with NPU names replaced by numbers.

        >>> import tacos
        >>> Sketch(relays=["npu 2"]).numbered(tacos.topology.ring(4)).relays
        [2]
        """
        if self.relays is None:
            return self
        nodes = Nodes(topology)
        return replace(self, relays=[nodes.npu(npu, what="relays") for npu in self.relays])

    def check(self, npus: int) -> None:
        """Raise a ValueError if the sketch does not fit a network of `npus` NPUs.

        >>> Sketch(box=8, symmetry=[(8, 32)]).check(16)
        Traceback (most recent call last):
        ValueError: symmetry has the size 32, which does not divide the 16 NPUs
        """
        self.pairs(npus)
        self._npus("relays", [npu for npu in self.relays or () if not isinstance(npu, str)], npus)
        none = np.zeros(0, np.int64)
        self._leaves_by_its_sender(npus, none, none, none)
        for _, size in self.symmetry:
            if npus % size:
                raise ValueError(
                    f"symmetry has the size {size}, which does not divide the {npus} NPUs"
                )

    @property
    def restricts_chunks(self) -> bool:
        """Whether the sketch restricts which chunks may take a hop."""
        return self.relays is not None or bool(self.senders) or bool(self.symmetry)

    def pairs(self, npus: int) -> Bools:
        """Return the matrix [i, j] of whether NPU i may send to NPU j in one hop.

        >>> Sketch(box=2, between={0: [1]}).pairs(4).astype(int)
        array([[1, 1, 0, 1],
               [1, 1, 0, 0],
               [0, 1, 1, 1],
               [0, 0, 1, 1]])
        """
        size = self._box(npus)
        inside, across = np.ones((size, size), bool), np.ones((size, size), bool)
        if self.within is not None:
            inside[:] = False
            for group in self.within:
                self._check_places("within", group, size)
                inside[np.ix_(list(group), list(group))] = True
        if self.between == "direct-map":
            across = np.eye(size, dtype=bool)
        elif self.between == "none":
            across[:] = False
        elif self.between is not None and not isinstance(self.between, str):
            across[:] = False
            for sender, receivers in self.between.items():
                self._check_places("between", [sender, *receivers], size)
                across[sender, list(receivers)] = True
        place, box = np.arange(npus) % size, np.arange(npus) // size
        same = box[:, None] == box
        return np.where(same, inside[place[:, None], place], across[place[:, None], place])

    def restrict(self, topology: Topology) -> tuple[Topology, Ints]:
        """Return the network of the allowed links, and their ids in the whole network.

        A link to or from switches is allowed if it is part of an allowed hop; if these switches join boxes, the
        hop must be one between boxes.

        >>> import tacos
        >>> network, links = Sketch(box=8, between={0: [1]}).restrict(tacos.topology.dgx_h100(2))
        >>> tacos.topology.dgx_h100(2).links - network.links     # of 32 into and out of the fabric
        28
        """
        keep = ~chosen_links(topology, list(self.drop))
        src, dst = (ends.astype(np.int64) for ends in (topology.link_src, topology.link_dst))
        npus = topology.npus
        pairs = self.pairs(npus)
        ahead = self._beyond(topology, src, dst, keep)
        behind = self._beyond(topology, dst, src, keep)
        boxes = np.arange(npus) // self._box(npus)
        for link in np.flatnonzero(keep & ((src < npus) | (dst < npus))).tolist():
            a, b = int(src[link]), int(dst[link])
            if a < npus and b < npus:
                keep[link] = pairs[a, b]
                continue
            npu, met, mine = (a, ahead[b], pairs[a]) if a < npus else (b, behind[a], pairs[:, b])
            elsewhere = met & (boxes != boxes[npu])
            keep[link] = (mine & (elsewhere if elsewhere.any() else met)).any()
        links = np.flatnonzero(keep)
        if len(links) == topology.links:
            return topology, links
        network = assemble(
            npus,
            [Links(*(np.asarray(column)[keep] for column in columns_of(topology)))],
            capabilities=topology.switch_capabilities,
            family=topology.family,
            dims=topology.dims,
            names=topology.names,
            **model_of(topology),
        )
        return network, links

    def allowed(
        self, collective: Collective, holds: Bools, src: Ints, dst: Ints, *, backwards: bool
    ) -> Bools:
        """Return the matrix [chunk, hop] of which chunk may take which hop.

        Args:
            collective: A collective that only copies.
            holds: Matrix [chunk, NPU] of which NPU holds which chunk at the beginning.
            src, dst: Ends of the hops.
            backwards: Whether the hops are those of the reversed network.

        >>> import tacos
        >>> coll = tacos.collective.all_gather(3, 3, chunks=1)
        >>> ends = np.array([0, 1]), np.array([1, 2])
        >>> Sketch(relays=[]).allowed(coll, np.eye(3, dtype=bool), *ends, backwards=False).tolist()
        [[True, False], [False, True], [False, False]]
        """
        npus = collective.npus
        pairs = self.pairs(npus)
        fits = pairs[dst, src] if backwards else pairs[src, dst]
        result = np.broadcast_to(fits, (collective.chunks, len(src))).copy()
        if self.relays is not None:
            relays = np.zeros(npus, bool)
            relays[self._npus("relays", self.relays, npus)] = True
            result &= holds[:, src] | relays[src]
        if self.senders and not backwards:
            home = np.where(holds.sum(axis=1) == 1, holds.argmax(axis=1), -1)
            result &= self._leaves_by_its_sender(npus, home[:, None], src, dst)
        return result

    def crosses(self, npus: int, src: Ints, dst: Ints) -> Bools:
        """Return which hops go from one box to another."""
        size = self._box(npus)
        return np.asarray(src // size != dst // size)

    def returned(self, schedule: Schedule, topology: Topology, links: Ints) -> Schedule:
        """Convert a schedule of a restricted network to one of the whole network.

        >>> import tacos
        >>> ring = tacos.topology.ring(4)
        >>> part, links = Sketch(drop=[0]).restrict(ring)
        >>> found = tacos.synthesize(part, tacos.collective.all_gather(part, 4), engine="greedy")
        >>> Sketch(drop=[0]).returned(found, ring, links).topology == ring
        True
        """
        if schedule.topology is topology or schedule.topology == topology:
            return schedule
        packed = schedule.expand() if schedule.form == "orbit" else schedule
        old = packed.routes
        table = Routes(topology, old.kinds, old.link_begin, links[old.links].astype(np.int32))
        changed = {"routes": table, "bound_ps": None, "executed_ps": None}
        return Schedule(**(fields(packed) | changed))

    def violation(self, schedule: Schedule) -> str:
        """Return in words the first transfer that is not allowed; empty if there is none.

        >>> import tacos
        >>> ring = tacos.topology.ring(4)
        >>> coll = tacos.collective.all_gather(ring, "4KB", chunks=1)
        >>> Sketch(relays=[0]).violation(tacos.synthesize(ring, coll, engine="ring"))
        'npu 1 forwards chunk 0, but is not a relay'
        """
        whole = schedule.expand() if schedule.form == "orbit" else schedule
        topology, npus = whole.topology, whole.topology.npus
        lane = np.repeat(np.arange(len(whole.lane_route)), np.diff(whole.lane_begin))
        route, chunk, copies = whole.lane_route[lane], whole.chunk, whole.lane_op[lane] == 0
        segments, start, end = _segments(whole.routes)
        wrong = np.flatnonzero(~self.pairs(npus)[start, end])
        used = np.isin(segments[wrong], route)
        if used.any():
            i = wrong[used][0]
            names = [topology.node_name(int(n)) for n in (start[i], end[i])]
            return f"{names[0]} sends to {names[1]}, which the sketch does not allow"
        holds = np.zeros((whole.collective.chunks, npus), bool)
        holds[whole.collective.precondition()] = True
        for i in range(len(start)):
            mine = copies & (route == segments[i])
            which = chunk[mine]
            if self.relays is not None and start[i] not in set(self.relays):
                passed = which[~holds[which, start[i]]]
                if len(passed):
                    name = topology.node_name(int(start[i]))
                    return f"{name} forwards chunk {passed[0]}, but is not a relay"
            if self.senders and len(which):
                home = np.where(holds[which].sum(axis=1) == 1, holds[which].argmax(axis=1), -1)
                fits = self._leaves_by_its_sender(npus, home, start[i], end[i])
                if not fits.all():
                    name = topology.node_name(int(start[i]))
                    return f"chunk {which[~fits][0]} leaves its box through {name}, not through its sender"
        return ""

    def _leaves_by_its_sender(self, npus: int, home: Ints, src: Ints, dst: Ints) -> Bools:
        size = self._box(npus)
        sender = np.full(size, -1)
        for by, places in self.senders.items():
            self._check_places("senders", [by, *places], size)
            sender[list(places)] = by
        leaves = (home >= 0) & (src // size == home // size) & (dst // size != src // size)
        mine = sender[home % size]
        return np.asarray(~leaves | (mine < 0) | (mine == src % size))

    def _beyond(self, topology: Topology, src: Ints, dst: Ints, keep: Bools) -> Bools:
        """Return the matrix [node, NPU] of which NPUs each node reaches through switches alone."""
        npus = topology.npus
        reach = np.zeros((topology.nodes, npus), bool)
        reach[np.arange(npus), np.arange(npus)] = True
        a, b = src[keep & (src >= npus)], dst[keep & (src >= npus)]
        while len(a):
            before = reach.sum()
            np.logical_or.at(reach, a, reach[b])
            if reach.sum() == before:
                break
        return reach

    def _box(self, npus: int) -> int:
        size = self.box or npus
        if npus % size:
            raise ValueError(f"box is {size}, which does not divide the {npus} NPUs")
        return size

    @staticmethod
    def _check_places(name: str, places: Sequence[int], size: int) -> None:
        for place in places:
            if type(place) is not int or not 0 <= place < size:
                raise ValueError(f"{name} has {place!r}; the places in a box are 0 to {size - 1}")

    @staticmethod
    def _npus(name: str, npus: Sequence[Node], count: int) -> list[int]:
        found = []
        for npu in npus:
            if type(npu) is not int or not 0 <= npu < count:
                raise ValueError(f"{name} has {npu!r}; the NPUs are 0 to {count - 1}")
            found.append(npu)
        return found


def _segments(routes: Routes) -> tuple[Ints, Ints, Ints]:
    """Return columns (route, from, to) of the parts of routes between NPUs."""
    topology = routes.topology
    of = np.repeat(np.arange(routes.count), np.diff(routes.link_begin))
    start, end = topology.link_src[routes.links], topology.link_dst[routes.links]
    path = routes.kinds[of] == 0
    begins, ends = path & (start < topology.npus), path & (end < topology.npus)
    rows = [np.stack([of[begins], start[begins], end[ends]])]
    for route in np.flatnonzero(routes.kinds != 0).tolist():
        for a in routes.sources(route):
            rows += [
                np.array([[route], [a], [b]])
                for b in routes.destinations(route)
                if a < topology.npus and b < topology.npus
            ]
    found = np.concatenate(rows, axis=1).astype(np.int64)
    return found[0], found[1], found[2]
