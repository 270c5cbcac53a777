"""The baseline ``nccl-unaware``: what stock NCCL does on a broken network if it does not know of the faults.

NCCL searches when a communicator is made. A link that fails or slows down later leaves its algorithm as it was: that of
the network with all its links healthy, executed on the links as they are. Dropped NPUs are known, since a communicator has
only ranks that exist.

A transfer over a dead link is one of three cases:

- A dead cable between switches of the fabric, which routes around it: NCCL sees only that messages take longer.
- A dead link of a NIC, where both NPUs have another way through switches. With ``NCCL_IB_RESILIENCY_PORT_FAILOVER=1``
  (NCCL 2.30 has it, off by default, for ports that it has fused into one NIC) the traffic takes that way; otherwise NCCL fails.
- Any other: a link inside a box, or the only NIC of an NPU. NCCL fails, whatever its settings.
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.errors import InfeasibleError
from tacos.schedule import routes
from tacos.synth.baselines.nccl import NCCL, chunk_counts_on, solve
from tacos.synth.baselines.nccl.channels import Network, network_of
from tacos.synth.engine import Engine
from tacos.topology.faults import repaired

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Collective, Schedule, Topology
    from tacos.synth.baselines.nccl.parameters import Generation

__all__ = ["NCCL_UNAWARE", "Unaware", "nccl_unaware", "unaware_of"]

_FAILOVER = "NCCL_IB_RESILIENCY_PORT_FAILOVER=1"


class Unaware(Network):
    """The network that NCCL knows: all links are healthy. What it lays there is executed on the broken network."""

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

    def sends(self) -> Callable[[int, int], tuple[int, ...]]:
        """Return what gives the links of a direct send: the default routes of the healthy network."""
        return lambda a, b: self.laid(self._default(a, b))

    def _default(self, a: int, b: int) -> tuple[int, ...]:
        if a not in self.rows:
            every = np.arange(self.topology.npus)
            others = every[every != a]
            table = routes(self.topology, pairs=(np.full_like(others, a), others))
            found = [tuple(part.tolist()) for part in np.split(table.links, table.link_begin[1:-1])]
            self.rows[a] = [*found[:a], (), *found[a:]]
        return self.rows[a][b]

    def laid(self, links: tuple[int, ...], kind: str = "path") -> tuple[int, ...]:
        """Return the links that a route of the healthy network takes in the broken one."""
        now: NDArray[np.int64] = self.now[list(links)]
        if (now >= 0).all():
            return tuple(now.tolist())
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
        self.avoided[links] = "fabric" if fabric else "port"
        return way

    def _leaves(self, link: int) -> bool:
        """Return whether a link leads out of a box, or joins switches outside of boxes."""
        src, dst = int(self.topology.link_src[link]), int(self.topology.link_dst[link])
        return bool(self.label[src] != self.label[dst])


@lru_cache(maxsize=4)
def unaware_of(broken: Topology) -> Unaware:
    """Return the network that NCCL knows, with what was found on it before.

    >>> from tacos.topology import degrade, ring
    >>> unaware_of(degrade(ring(4), (0, 1), factor=0.5)).topology == ring(4)
    True
    """
    return Unaware(broken)


def nccl_unaware(
    topology: Topology,
    collective: Collective,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    channels: int | None = None,
    generation: str | Generation | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Return the algorithm that NCCL would run on the healthy network, executed on the broken one.

    The options are those of :func:`~tacos.synth.baselines.nccl.nccl`. ``estimate_s`` in the provenance is for the healthy network.
    ``rerouted`` counts the routes of which a link is dead, and ``needs`` names the setting without which NCCL would fail there.

    Raises:
        InfeasibleError: NCCL would send over a dead link, and fail.

    >>> import tacos
    >>> box = tacos.topology.dgx_h100(2, nvls=False)
    >>> slow = tacos.topology.degrade(box, (3, 18), factor=0.5, both=True)     # a NIC at half speed
    >>> coll = tacos.collective.all_reduce(box, "1GB", chunks=8)
    >>> known, unaware = tacos.synthesize(box, coll, engine="nccl"), nccl_unaware(slow, coll)
    >>> round(unaware.time_s / known.time_s, 1)
    2.0
    """
    NCCL_UNAWARE.check(topology, collective)
    network = copy(unaware_of(topology))  # which shares what was found for other numbers of chunks
    network.avoided = {}
    schedule = solve(
        network,
        collective,
        algorithm=algorithm,
        protocol=protocol,
        channels=channels,
        generation=generation,
        progress=progress,
    )
    facts: dict[str, Any] = {"engine": NCCL_UNAWARE.name}
    if network.avoided:
        facts["rerouted"] = len(network.avoided)
    if "port" in network.avoided.values():
        facts["needs"] = _FAILOVER
    return schedule.with_provenance(schedule.provenance | facts)


def _obstacle(topology: Topology, collective: Collective) -> str:
    faults = topology.faults
    if faults is None:
        return "a network with dead or slow links that are known as its faults"
    left = ~(np.isin(faults.src, faults.dropped) | np.isin(faults.dst, faults.dropped))
    if not left.any():
        return "dead or slow links between NPUs that are left"
    return NCCL.obstacle(topology, collective)


def _chunk_counts(
    topology: Topology,
    collective: Collective,
    counts: tuple[int, ...],
    memory: dict[str, Any],
) -> tuple[int, ...]:
    return chunk_counts_on(repaired(topology)[0], collective, counts, memory)


NCCL_UNAWARE = Engine(
    name="nccl-unaware",
    solve=nccl_unaware,
    baseline=True,
    obstacle=_obstacle,
    chunk_counts=_chunk_counts,
    reference=1,
    unaware=NCCL.name,
)
