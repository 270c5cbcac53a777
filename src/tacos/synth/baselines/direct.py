"""Direct sends from each holder to each destination: in two phases, or with all inputs to all members at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacos.collective import kind_of
from tacos.schedule import READ_INPUT, REDUCE
from tacos.synth import requirements
from tacos.synth.baselines import block_trees
from tacos.synth.engine import Engine
from tacos.synth.moves import Moves, by_parts, listed, named_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, CollectivePart, Schedule, Topology
    from tacos.collective import Kind

    Progress = Callable[[float], object] | None

__all__ = ["DIRECT", "ONE_SHOT", "direct", "one_shot"]


def direct(topology: Topology, collective: Collective, *, progress: Progress = None) -> Schedule:
    """Send every chunk directly from its holder to each destination, and contributions directly to their owner.

    Applies to every collective.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(4, bandwidth="1GB/s", latency="1us")
    >>> direct(topo, tacos.collective.all_reduce(topo, "4KB")).time_s    # twice 1 us + 1 us
    4e-06
    """

    def moves(part: CollectivePart) -> Moves:
        if kind_of(part).listed:
            return listed(part, topology.npus)
        return named_part(part, block_trees.star(len(part.group)), progress=progress)

    return by_parts(DIRECT, topology, collective, moves, progress)


def one_shot(topology: Topology, collective: Collective, *, progress: Progress = None) -> Schedule:
    """All-reduce in which every NPU sends its whole input to all others.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(4, bandwidth="1GB/s", latency="1us")
    >>> one_shot(topo, tacos.collective.all_reduce(topo, "4KB")).time_ps // 10**6  # 1 us + 4 us
    5
    """

    def moves(part: CollectivePart) -> Moves:
        n = len(part.group)
        src = np.arange(n, dtype=np.int32)
        offset = np.arange(1, n, dtype=np.int32)[:, None]
        pairs = np.broadcast_arrays(part.group, part.group[(src + offset) % n])
        route = ((offset - 1) * n + src)[:, :, None]
        chunk = np.arange(n * part.chunks)
        return Moves.of((pairs[0], pairs[1]), route, chunk, 0, op=REDUCE, reads=READ_INPUT)

    return by_parts(ONE_SHOT, topology, collective, moves, progress)


def _sums_and_spreads(kind: Kind) -> bool:
    return kind.two_phases


def _one_shot_obstacle(_topology: Topology, collective: Collective) -> str:
    for part in collective.parts:
        hops = len(part.group) ** 3 * max(part.chunks, 1)
        if needed := requirements.kind(part, _sums_and_spreads) or requirements.few_hops(
            part, hops
        ):
            return needed
    return ""


DIRECT = Engine(name="direct", solve=direct, baseline=True)
ONE_SHOT = Engine(
    name="one-shot",
    solve=one_shot,
    baseline=True,
    obstacle=_one_shot_obstacle,
)
