"""Rings: every block goes round all members, in one direction or half of the way in both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos.collective import kind_of
from tacos.synth import requirements
from tacos.synth.baselines import block_trees
from tacos.synth.baselines.ring_order import ring_order
from tacos.synth.engine import Engine
from tacos.synth.moves import Moves, by_parts, named_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tacos._core import Collective, CollectivePart, Schedule, Topology
    from tacos.synth.baselines.ring_order import Order
    from tacos.synth.moves import BlockTrees

    Progress = Callable[[float], object] | None

__all__ = ["BIDIRECTIONAL_RING", "RING", "bidirectional_ring", "ring"]


def ring(
    topology: Topology,
    collective: Collective,
    *,
    order: Order = "search",
    progress: Progress = None,
) -> Schedule:
    """Blocks go round a ring in one direction.

    Args:
        topology, collective: The problem.
        order: ``"search"`` for a good order of the group, ``"rank"``, or the NPUs in ring order.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> topo = tacos.topology.ring(4, bandwidth="1GB/s", latency="1us")
    >>> ring(topo, tacos.collective.all_gather(topo, "4KB")).time_s      # 3 (1 us + 1 us)
    6e-06
    """
    return _around(RING, topology, collective, block_trees.one_way_ring, order, progress)


def bidirectional_ring(
    topology: Topology,
    collective: Collective,
    *,
    order: Order = "search",
    progress: Progress = None,
) -> Schedule:
    """Every block goes round a ring in both directions, half of the way in each.

    Args:
        topology, collective, order, progress: As for :func:`ring`.

    >>> import tacos
    >>> topo = tacos.topology.ring(5, bandwidth="1GB/s", latency="1us")
    >>> bidirectional_ring(topo, tacos.collective.all_gather(topo, "5KB")).time_s
    4e-06
    """
    return _around(
        BIDIRECTIONAL_RING, topology, collective, block_trees.two_way_ring, order, progress
    )


def _obstacle(_topology: Topology, collective: Collective) -> str:
    for part in collective.parts:
        # A block between two members passes half of the others on average.
        hops = len(part.group) ** 3 if kind_of(part).per_pair else 0
        if needed := requirements.kind(part) or requirements.few_hops(part, hops):
            return needed
    return ""


def _around(
    engine: Engine,
    topology: Topology,
    collective: Collective,
    algorithm: Callable[[int], Sequence[BlockTrees]],
    order: Order,
    progress: Progress,
) -> Schedule:
    origins: set[str] = set()

    def moves(part: CollectivePart) -> Moves:
        npus, origin = ring_order(
            topology,
            part.group,
            order,
            block_bytes=-(-part.size // len(part.group)),
            both_ways=engine is BIDIRECTIONAL_RING,
            progress=progress,
        )
        origins.add(origin)
        return named_part(part, algorithm(len(npus)), npus, progress=progress)

    schedule = by_parts(engine, topology, collective, moves, progress)
    return schedule.with_provenance({**schedule.provenance, "order": ", ".join(sorted(origins))})


RING = Engine(
    name="ring",
    solve=ring,
    baseline=True,
    obstacle=_obstacle,
    reference=2,
    nccl_names=dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"), "ring"
    ),
    blind_options={"order": "rank"},
)
BIDIRECTIONAL_RING = Engine(
    name="bidirectional-ring",
    solve=bidirectional_ring,
    baseline=True,
    obstacle=_obstacle,
    blind_options={"order": "rank"},
)
