"""The steiner engine: collectives of process groups, over trees through any NPUs of the network.

Sums are formed, and results are copied, wherever branches of a tree meet, also at NPUs outside of the group
(``cpp/synth/steiner/`` has the method). Several collectives at once share the links.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import steiner_schedule
from tacos.collective import kind_of
from tacos.synth import requirements
from tacos.synth.engine import Engine
from tacos.synth.sizes import check_memory
from tacos.synth.sizes import hops as hops_across

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tacos._core import Collective, CollectivePart, Schedule, Topology

__all__ = ["ENGINE", "obstacle", "steiner"]

_MOST_VISITS = 10**8
"""Largest product of trees and links, if each root has one tree: about ten seconds (measured)."""
_TERMINALS = 16
"""With switches, terminals that are joined in the time that a tree takes without them (measured)."""
_TRANSFER_BYTES = 100
"""Bytes per transfer that the core needs at its peak, at least (as the greedy engine without steps)."""
_FEWEST_CHUNKS = 8
"""Fewest chunks per part to search: other engines are faster with fewer, since the trees are deep."""
_SKIPS, _QUICK = 4, 50_000
"""Factor to the second chunk count, and the most transfers per chunk for which it is tried."""
_APART = 0.75
"""Hops from a member to its tree, as a multiple of the root of the NPUs per member (measured on tori)."""


def steiner(
    topology: Topology,
    collective: Collective,
    *,
    memory: dict[str, Any] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Send chunks over trees that connect the members of a group through any NPUs.

    An all-reduce goes up a tree and down again, with a root anywhere, so that a member sends and receives little more
    than its own chunks. Deep trees pay off only with many chunks.

    Args:
        topology: A network with links between NPUs; for an all-reduce, with an opposite link for each link.
        collective: One or several all-gathers, reduce-scatters, all-reduces, broadcasts or reduces, not all of them of all NPUs.
        memory: Gets the time that many chunks approach. For callers that try several numbers of chunks.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: A member cannot be reached; the message names it.
        TacosError: The schedule would not fit into memory.
        ValueError: A requirement is not met, or there would be too many transfers; the message names it.

    >>> import tacos
    >>> torus = tacos.topology.torus(6, 6)
    >>> coll = tacos.collective.all_reduce(torus, "64MB", group=[0, 8, 15, 22, 29], chunks=32)
    >>> steiner(torus, coll).time_s < 0.85 * tacos.synthesize(torus, coll, engine="greedy").time_s
    True
    """
    ENGINE.check(topology, collective)
    resolved = collective if collective.resolved else collective.with_chunks(1)
    moved = _transfers(topology, resolved)
    check_memory(ENGINE.name, moved, _TRANSFER_BYTES * moved)
    facts = json.dumps({"engine": ENGINE.name})
    schedule = steiner_schedule(topology, resolved, facts, progress)
    if memory is not None:
        memory["transfers"] = schedule.transfers
        memory["limit_s"] = min(_busiest_s(schedule), memory.get("limit_s", math.inf))
    return schedule


def _busiest_s(schedule: Schedule) -> float:
    """Return the time that the most loaded link takes for its bytes."""
    if not schedule.transfers:
        return 0.0
    sizes = np.append(schedule.collective.chunk_bytes()[schedule.chunk], 0)
    routes, topology = schedule.routes, schedule.topology
    carried = np.zeros(routes.count)
    filled = np.diff(schedule.lane_begin) > 0
    lanes = np.add.reduceat(sizes, schedule.lane_begin[:-1])
    np.add.at(carried, schedule.lane_route[filled], lanes[filled])
    each = np.repeat(carried, np.diff(routes.link_begin))
    load = np.bincount(routes.links, each, topology.links)
    return float((load / topology.link_bandwidth_Bps).max())


def obstacle(topology: Topology, collective: Collective) -> str:
    """Return the requirement of the engine that is not met; empty if all are met.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> obstacle(topo, tacos.collective.all_reduce(topo, "1MB"))
    'a group of fewer than all 4 NPUs'
    """
    for part in collective.parts:
        if needed := requirements.listed_kinds(part, lambda kind: kind.spreads):
            return needed
    if all(len(part.group) == topology.npus for part in collective.parts):
        return f"a group of fewer than all {topology.npus} NPUs"
    if any(part.kind == "all_reduce" for part in collective.parts) and not _paired(topology):
        return "an opposite link of the same bandwidth for each link"
    if topology.npus > 1 and not _joins_npus(topology):
        return "links between NPUs; trees through switches alone gain nothing from other NPUs"
    searches = sum(_roots(part) * _searches(topology, part) for part in collective.parts)
    if searches * topology.links > _MOST_VISITS:
        most = int(_MOST_VISITS / max(topology.links, 1))
        return f"trees that take at most {most} searches of all links, not {searches:.0f}"
    return ""


def _joins_npus(topology: Topology) -> bool:
    return bool(((topology.link_src < topology.npus) & (topology.link_dst < topology.npus)).any())


def _searches(topology: Topology, part: CollectivePart) -> float:
    """Return how often all links are visited for a tree; through switches, once for each terminal."""
    return max(len(part.group) / _TERMINALS, 1.0) if topology.switches else 1.0


def _transfers(topology: Topology, collective: Collective) -> float:
    """Estimate the number of transfers: members are joined to the tree over all NPUs between them."""
    moved = 0.0
    for part in collective.parts:
        members, kind = float(len(part.group)), kind_of(part)
        apart = _APART * max(topology.npus / members, 1.0) ** 0.5
        hops = min(max(apart, 1.0), hops_across(topology))
        trees = part.chunks * (1 if kind.rooted else members)
        moved += trees * members * hops * (2 if kind.two_phases else 1)
    return moved


def _roots(part: CollectivePart) -> int:
    kind = kind_of(part)
    return 1 if kind.rooted or kind.two_phases else len(part.group)


def _paired(topology: Topology) -> bool:
    """Return whether every link has an opposite link of the same bandwidth."""
    bandwidths, sources, ends = topology.link_bandwidth_Bps, topology.link_src, topology.link_dst
    there = np.lexsort((bandwidths, ends, sources))
    back = np.lexsort((bandwidths, sources, ends))
    return (
        np.array_equal(sources[there], ends[back])
        and np.array_equal(ends[there], sources[back])
        and np.array_equal(bandwidths[there], bandwidths[back])
    )


def _chunk_counts(
    _topology: Topology,
    _collective: Collective,
    counts: tuple[int, ...],
    memory: dict[str, Any],
) -> Iterator[int]:
    last = 0
    for count in counts:
        # The trees are deep, so few chunks are known to be slow, and large steps save time while schedules are small.
        quick = last and memory.get("transfers", 0) // last <= _QUICK
        if count >= _FEWEST_CHUNKS and not (quick and count < _SKIPS * _FEWEST_CHUNKS):
            yield count
            last = count


def _limit_s(_topology: Topology, _collective: Collective, memory: dict[str, Any]) -> float:
    return float(memory.get("limit_s", 0.0))


ENGINE = Engine(
    name="steiner",
    solve=steiner,
    obstacle=obstacle,
    chunk_counts=_chunk_counts,
    limit_s=_limit_s,
)
