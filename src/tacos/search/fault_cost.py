"""What the faults of a network cost a collective: the time when healthy, now, by NCCL, and the least that is possible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos.collective import kind_of, named
from tacos.errors import TacosError
from tacos.search.synthesis import synthesize
from tacos.synth import obstacle, with_unaware
from tacos.targets import bound_for
from tacos.topology.faults import parts_of
from tacos.units import format_time

if TYPE_CHECKING:
    from tacos._core import Collective, Schedule

__all__ = ["FaultCost", "fault_cost"]


@dataclass(frozen=True, slots=True)
class FaultCost:
    """What faults cost a collective, in seconds.

    Attributes:
        executed_s: The executed time on the network as it is.
        healthy_bound_s: A time that no schedule beats on the healthy network.
        bound_s: A time that no schedule beats on the network as it is.
        nccl_s: What NCCL would take, the faster of the one that knows of the faults and the one that does not; None if neither works.
    """

    executed_s: float
    healthy_bound_s: float
    bound_s: float
    nccl_s: float | None

    def __str__(self) -> str:
        """Return the cost in words.

        >>> print(FaultCost(246e-6, 235e-6, 242e-6, None))
        246 us, healthy at least 235 us; now at least 242 us for any algorithm, NCCL fails
        """
        now, healthy, least = map(
            format_time, (self.executed_s, self.healthy_bound_s, self.bound_s)
        )
        nccl = "NCCL fails" if self.nccl_s is None else f"{format_time(self.nccl_s)} for NCCL"
        return f"{now}, healthy at least {healthy}; now at least {least} for any algorithm, {nccl}"


def fault_cost(schedule: Schedule) -> FaultCost | None:
    """Return what the faults of a schedule's network cost; None if it has none, or for a collective of several parts.

    The healthy network is judged by its bound, which takes less than a second search would. If all NPUs take part, those that were
    dropped take part there, too.

    >>> import tacos
    >>> from tacos.topology import degrade, ring
    >>> worn = degrade(ring(4, bandwidth="1GB/s", latency="1us"), (0, 1), factor=0.5, both=True)
    >>> cost = fault_cost(tacos.synthesize(worn, tacos.collective.all_gather(worn, "4MB")))
    >>> cost.healthy_bound_s < cost.bound_s <= cost.executed_s
    True
    """
    topology, collective = schedule.topology, schedule.collective
    listed = len(collective.parts) != 1 or kind_of(collective.parts[0]).listed
    if topology.faults is None or listed:
        return None
    executed_s = schedule.executed_s
    found = [_reference_s(schedule, name) for name in with_unaware(["nccl"], topology)]
    return FaultCost(
        executed_s,
        bound_for(topology.healthy(), _when_healthy(schedule), schedule.target).time_s,
        bound_for(topology, _asked(schedule), schedule.target).time_s
        if schedule.bound_ps is None
        else schedule.bound_ps * 1e-12,
        min((one for one in found if one is not None), default=None),
    )


def _when_healthy(schedule: Schedule) -> Collective:
    """Return the same collective on the healthy network."""
    topology = schedule.topology
    (part,) = schedule.collective.parts
    whole, node, _ = parts_of(topology)
    group = node[part.group]
    if len(part.group) == topology.npus:
        group = np.concatenate([group, np.setdiff1d(np.arange(whole.npus), group)])
    root = int(node[part.group[part.root]]) if kind_of(part).rooted else None
    return named(part.kind, whole, part.size, group=group.tolist(), root=root)


def _asked(schedule: Schedule) -> Collective:
    """Return the collective with an open number of chunks."""
    (part,) = schedule.collective.parts
    root = int(part.group[part.root]) if kind_of(part).rooted else None
    return named(part.kind, schedule.topology, part.size, group=part.group.tolist(), root=root)


def _reference_s(schedule: Schedule, name: str) -> float | None:
    """Return the executed time of one of NCCL's models; None if it fails."""
    topology, collective = schedule.topology, _asked(schedule)
    if obstacle(name, topology, collective):
        return None
    try:
        return synthesize(topology, collective, engine=name, target=schedule.target).executed_s
    except TacosError:
        return None
