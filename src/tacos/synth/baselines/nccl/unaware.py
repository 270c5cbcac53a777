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
from functools import wraps
from typing import TYPE_CHECKING, Any

from tacos.synth.baselines.nccl import NCCL, chunk_counts_on, nccl, solve
from tacos.synth.baselines.nccl.knowledge import Unaware, has_faults, unaware_of
from tacos.synth.engine import Engine
from tacos.topology.faults import repaired

if TYPE_CHECKING:
    from tacos._core import Collective, Schedule, Topology

__all__ = ["NCCL_UNAWARE", "nccl_unaware"]

_FAILOVER = "NCCL_IB_RESILIENCY_PORT_FAILOVER=1"


@wraps(nccl, assigned=(), updated=())  # which has the options
def nccl_unaware(topology: Topology, collective: Collective, **options: Any) -> Schedule:
    """Return the algorithm that NCCL would run on the healthy network, executed on the broken one.

    The options are those of :func:`~tacos.synth.baselines.nccl.nccl`. In the provenance,
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
    schedule = solve(network, collective, **options)
    facts: dict[str, Any] = {"engine": NCCL_UNAWARE.name}
    if network.avoided:
        facts["rerouted"] = len(network.avoided)
    if "port" in network.avoided.values():
        facts["needs"] = _FAILOVER
    return schedule.with_provenance(schedule.provenance | facts)


def _obstacle(topology: Topology, collective: Collective) -> str:
    if topology.faults is None:
        return "a network with dead or slow links that are known as its faults"
    if not has_faults(topology):
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
    name=Unaware.name,
    solve=nccl_unaware,
    baseline=True,
    obstacle=_obstacle,
    chunk_counts=_chunk_counts,
    reference=1,
    unaware=NCCL.name,
)
