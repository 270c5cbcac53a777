"""The symmetric engine: one NPU's schedule, translated to all others.

On a network that looks the same from every NPU, solving the problem for one NPU is enough. The schedule is an
orbit, of size O(N) instead of O(N²): 1,000,000 NPUs take a fraction of a second.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tacos._core import synthesize_symmetric
from tacos.synth import requirements
from tacos.synth.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Schedule, Topology

__all__ = ["ENGINE", "obstacle", "symmetric"]


def symmetric(
    topology: Topology,
    collective: Collective,
    *,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Solve a collective for one NPU of a symmetric network, and translate the answer.

    Args:
        topology: A ring, torus, hypercube, clique or switch, or a product of them, unedited.
        collective: An all-gather, reduce-scatter, all-reduce or all-to-all of all NPUs. If it does not divide
            evenly, chunks that are a byte smaller take the time of the others.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: A requirement is not met; the message names it.

    >>> import tacos
    >>> topo = tacos.topology.torus(200, 200, link_model="blocking")
    >>> coll = tacos.collective.all_gather(topo, 40_000 * 2**20, chunks=1)
    >>> schedule = symmetric(topo, coll)
    >>> schedule
    <tacos.Schedule orbit: 1599960000 transfers, ideal 214715.200000 us>
    >>> schedule.time_ps / (500_000 + 20_971_520)  # hops, where 39,999 / 4 links is a bound
    10000.0
    >>> schedule.memory_bytes < 2**22, tacos.verify(schedule).ok
    (True, True)
    """
    ENGINE.check(topology, collective)
    resolved = collective if collective.resolved else collective.with_chunks(1)
    provenance = json.dumps({"engine": ENGINE.name})
    return synthesize_symmetric(topology, resolved, provenance, progress=progress)


def obstacle(topology: Topology, collective: Collective) -> str:
    """Return the requirement of the engine that is not met; empty if all are met.

    >>> import tacos
    >>> torus = tacos.topology.torus(3, 3)
    >>> obstacle(torus, tacos.collective.all_gather(torus, "9MB"))
    ''
    >>> obstacle(torus, tacos.collective.all_gather(torus, "8B", chunks=1))
    'a byte for each of 9 chunks, not 8'
    """
    if not topology.symmetric:
        what = topology.family or "custom"
        return (
            "a network that looks the same from every NPU (as tori, cliques and switches do), "
            f"which this {what} topology does not claim"
        )
    if needed := requirements.one_part(collective):
        return needed
    part = collective.parts[0]
    if needed := requirements.listed_kinds(part, lambda kind: kind.uniform):
        return needed
    if needed := requirements.members(topology, part):
        return needed
    if part.size < (chunks := topology.npus * max(part.chunks, 1)):
        return f"a byte for each of {chunks} chunks, not {part.size}"
    return ""


ENGINE = Engine(
    name="symmetric",
    lists=False,
    solve=symmetric,
    obstacle=obstacle,
)
