"""Algorithms with a logarithmic number of steps, in each of which members send everything they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos.synth import requirements
from tacos.synth.baselines import block_trees
from tacos.synth.engine import Engine
from tacos.synth.moves import Moves, by_parts, named_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, CollectivePart, Schedule, Topology

    Progress = Callable[[float], object] | None

__all__ = ["BRUCK", "HALVING_DOUBLING", "bruck", "halving_doubling"]


def halving_doubling(
    topology: Topology, collective: Collective, *, progress: Progress = None
) -> Schedule:
    """Partners exchange all their data, which doubles in each step; broadcasts are binomial.

    >>> import tacos
    >>> topo = tacos.topology.hypercube(2, bandwidth="1GB/s", latency="1us")
    >>> halving_doubling(topo, tacos.collective.all_gather(topo, "4KB")).time_s
    4e-06
    """

    def moves(part: CollectivePart) -> Moves:
        return named_part(part, block_trees.halving_doubling(len(part.group)), progress=progress)

    return by_parts(HALVING_DOUBLING, topology, collective, moves, progress)


def bruck(topology: Topology, collective: Collective, *, progress: Progress = None) -> Schedule:
    """Take ⌈lg n⌉ steps for any n: every member sends to the members 1, 2, 4, … places ahead, in turn.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(4, bandwidth="1GB/s", latency="1us")
    >>> bruck(topo, tacos.collective.all_gather(topo, "4KB")).time_s
    4e-06
    """

    def moves(part: CollectivePart) -> Moves:
        return named_part(part, block_trees.bruck(len(part.group)), progress=progress)

    return by_parts(BRUCK, topology, collective, moves, progress)


def _obstacle(_topology: Topology, collective: Collective) -> str:
    return next(filter(None, map(requirements.kind, collective.parts)), "")


HALVING_DOUBLING = Engine(
    name="halving-doubling", solve=halving_doubling, baseline=True, obstacle=_obstacle
)
BRUCK = Engine(name="bruck", solve=bruck, baseline=True, obstacle=_obstacle)
