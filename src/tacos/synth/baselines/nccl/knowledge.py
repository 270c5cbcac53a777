"""What NCCL knows of a network: its faults, or only the network with all links healthy.

NCCL searches when a communicator is made. A link that fails or slows down later leaves its channels and its choices as they were.
Dropped NPUs are known, since a communicator has only ranks that exist.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tacos.errors import InfeasibleError
from tacos.schedule import paths, routes
from tacos.synth.baselines.nccl.channels import Network, network_of
from tacos.topology.faults import repaired

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Routes, Topology

    Ints = NDArray[np.int32]

__all__ = ["Laid", "Unaware", "has_faults", "known_networks", "unaware_of"]


def known_networks(topology: Topology, *, aware: bool | None = None) -> list[Network]:
    """Return what NCCL may know of a network: each has the name of the engine that knows it.

    Without faults of links that are left, there is nothing to be unaware of.

    Args:
        topology: The network.
        aware: Whether NCCL searched with knowledge of the faults; None for both.

    >>> from tacos.topology import degrade, ring
    >>> [known.name for known in known_networks(degrade(ring(4), (0, 1), factor=0.5))]
    ['nccl', 'nccl-unaware']
    """
    if not has_faults(topology):
        aware = True
    found = list[Network]()
    if aware is not False:
        found.append(network_of(topology))
    if aware is not True:
        found.append(unaware_of(topology))
    return found


def has_faults(topology: Topology) -> bool:
    """Return whether links between nodes that are left are dead or slow.

    >>> from tacos.topology import drop_npus, mesh
    >>> has_faults(drop_npus(mesh(3, 3), 8))
    False
    """
    faults = topology.faults
    if faults is None:
        return False
    gone = np.isin(faults.src, faults.dropped) | np.isin(faults.dst, faults.dropped)
    return not bool(gone.all())


class Unaware(Network):
    """The network that NCCL knows: all links are healthy. What it lays there is executed on the broken network."""

    name = "nccl-unaware"

    def __init__(self, broken: Topology) -> None:
        known, self.now = repaired(broken)
        super().__init__(known)
        self.executed = broken
        alive = self.now >= 0
        self.speeds = np.zeros((2, known.links), np.int64)  # dead links have none
        self.speeds[0, alive] = broken.link_bandwidth_Bps[self.now[alive]]
        self.speeds[1, alive] = broken.link_latency_ps[self.now[alive]]
        self.rows: dict[int, list[tuple[int, ...]]] = {}
        self.avoided: dict[tuple[int, ...], str] = {}

    def marks(self, links: list[int]) -> tuple[int, ...]:
        """Return the speeds that links have now, which orders equal NPUs in the same way whatever their numbers."""
        return tuple(self.speeds[:, links][:, np.lexsort(self.speeds[:, links])].ravel().tolist())

    def marks_at(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the speeds that all links of some nodes have now."""
        ends = np.isin(self.topology.link_src, nodes) | np.isin(self.topology.link_dst, nodes)
        return self.marks(np.flatnonzero(ends).tolist())

    @cached_property
    def carrier(self) -> Laid:
        """The broken network, on which the routes of the healthy one lie."""
        return Laid(self)

    def sends(self) -> Callable[[int, int], tuple[int, ...]]:
        """Return what gives the links of a direct send: the default routes of the healthy network."""
        return lambda a, b: self.laid(self.default(a, b))

    def default(self, a: int, b: int) -> tuple[int, ...]:
        """Return the default route of the healthy network."""
        if a not in self.rows:
            every = np.arange(self.topology.npus)
            others = every[every != a]
            table = paths(self.topology, (np.full_like(others, a), others))
            found = [tuple(part.tolist()) for part in np.split(table.links, table.link_begin[1:-1])]
            self.rows[a] = [*found[:a], (), *found[a:]]
        return self.rows[a][b]

    def laid(self, links: tuple[int, ...], kind: str = "path") -> tuple[int, ...]:
        """Return the links that a route of the healthy network takes in the broken one."""
        way, avoided = self.lay(links, kind)
        if avoided:
            self.avoided[links] = avoided
        return way

    def lay(self, links: tuple[int, ...], kind: str = "path") -> tuple[tuple[int, ...], str]:
        """Return the links that a route takes now, and what it avoids: ``"fabric"`` or ``"port"`` if one of its links is dead.

        Raises:
            InfeasibleError: A link is dead, and no other way exists.
        """
        now: NDArray[np.int64] = self.now[list(links)]
        if (now >= 0).all():
            return tuple(now.tolist()), ""
        dead = [link for link, place in zip(links, now.tolist(), strict=True) if place < 0]
        way: tuple[int, ...] = ()
        if kind == "path" and all(self._leaves(link) for link in dead):
            ends = int(self.topology.link_src[links[0]]), int(self.topology.link_dst[links[-1]])
            way = network_of(self.executed).path(*ends)
        if not way:
            src, dst = int(self.topology.link_src[dead[0]]), int(self.topology.link_dst[dead[0]])
            ends_named = f"{self.topology.node_name(src)}-{self.topology.node_name(dst)}"
            raise InfeasibleError(
                f"NCCL fails: it would send over link {ends_named}, which is dead, and has no other port "
                "to fail over to"
            )
        npus = self.topology.npus
        fabric = all(
            min(self.topology.link_src[k], self.topology.link_dst[k]) >= npus for k in dead
        )
        return way, "fabric" if fabric else "port"

    def _leaves(self, link: int) -> bool:
        """Return whether a link leads out of a box, or joins switches outside of boxes."""
        src, dst = int(self.topology.link_src[link]), int(self.topology.link_dst[link])
        return bool(self.label[src] != self.label[dst])


class Laid(Network):
    """The broken network, with the boxes and routes of the network that NCCL knows; what NCCL chose takes its time here."""

    def __init__(self, known: Unaware) -> None:
        super().__init__(known.executed)
        self.chosen, self.searched, self.label = known, known, known.label

    def look_up(self, hops: list[tuple[int, int]]) -> None:
        """Find many routes at once.

        Raises:
            InfeasibleError: NCCL would send over a dead link, and fail.
        """
        self.searched.look_up(hops)
        for hop in hops:
            links, _ = self.chosen.lay(self.chosen.known[hop])
            self.near[hop] = self.chosen.near[hop]
            self.known[hop] = links

    def path(self, a: int, b: int) -> tuple[int, ...]:
        """Return the links of a path through switches that sum or multicast, which has no other way."""
        return self.chosen.lay(self.chosen.path(a, b), "multicast")[0]

    def table(
        self, src: Ints, dst: Ints, progress: Callable[[float], object] | None = None
    ) -> Routes:
        """Return the routes of direct sends."""
        ways = [
            self.chosen.lay(self.chosen.default(*hop))[0]
            for hop in zip(src.tolist(), dst.tolist(), strict=True)
        ]
        return routes(self.topology, links=[list(way) for way in ways], progress=progress)


@lru_cache(maxsize=4)
def unaware_of(broken: Topology) -> Unaware:
    """Return the network that NCCL knows, with what was found on it before.

    >>> from tacos.topology import degrade, ring
    >>> unaware_of(degrade(ring(4), (0, 1), factor=0.5)).topology == ring(4)
    True
    """
    return Unaware(broken)
