"""Engines: ways to make a schedule.

``ENGINES`` holds them by name: the symmetric, forest, greedy and milp synthesizers, and the baselines, the
algorithms everybody knows. :func:`applicable` says which of them suit a network and a collective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos.synth import baselines
from tacos.synth.baselines import BASELINES
from tacos.synth.forest import forest
from tacos.synth.forest import obstacle as forest_obstacle
from tacos.synth.greedy import greedy
from tacos.synth.milp import milp
from tacos.synth.milp import obstacle as milp_obstacle
from tacos.synth.symmetric import obstacle as symmetric_obstacle
from tacos.synth.symmetric import symmetric

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Schedule, Topology

__all__ = ["BASELINES", "ENGINES", "applicable", "obstacle"]

ENGINES: dict[str, Callable[..., Schedule]] = {
    "symmetric": symmetric,
    "forest": forest,
    "greedy": greedy,
    "milp": milp,
    **BASELINES,
}


def applicable(topology: Topology, collective: Collective) -> list[str]:
    """Names of the engines that apply, the synthesizers first; without milp, which has to be named.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(5)
    >>> applicable(topo, tacos.collective.send_recv(topo, [(0, 1, "1KB")]))
    ['greedy', 'nccl', 'direct']
    """
    return [name for name in ENGINES if not obstacle(name, topology, collective)]


def obstacle(engine: str, topology: Topology, collective: Collective) -> str:
    """What an engine needs and does not find, or nothing.

    >>> import tacos
    >>> topo = tacos.topology.mesh(3, 3)
    >>> obstacle("one-shot", topo, tacos.collective.broadcast(topo, "1KB"))
    'all-reduce, not broadcast'
    """
    if engine == "symmetric":
        return symmetric_obstacle(topology, collective)
    if engine == "forest":
        return forest_obstacle(topology, collective)
    if engine == "milp":
        # Nobody wants to wait for it without having asked.
        return milp_obstacle(topology, collective) or "to be named: it takes all the time it gets"
    if engine in BASELINES:
        return baselines.obstacle(engine, topology, collective)
    return ""
