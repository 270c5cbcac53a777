"""The forest engine: packs spanning trees that use a network as fully as possible, and pipelines chunks down them.

ForestColl's theory (arXiv 2402.06787): an all-gather is as fast as its narrowest cut allows if every NPU
spreads its part over several trees with the right weights. The core (``cpp/synth/forest/packing.hpp`` has
the method) finds such trees, shallow ones first; chunks go down them in proportion to their weights. Sums
go up trees that were grown on the reversed network (:mod:`tacos.synth.phases`). Where the network looks the same
from every NPU, the trees of one NPU are enough (``cpp/synth/forest/translations.hpp``). An all-reduce may also go up
and down trees of its own, and through switches that sum (``cpp/synth/forest/two_way.hpp``).
"""

from __future__ import annotations

import json
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import (
    all_alike,
    pack_orbits,
    pack_two_way,
    schedule_all_reduce,
    schedule_forest,
    schedule_orbits,
    team_exchange,
)
from tacos.collective import kind_of
from tacos.synth import requirements
from tacos.synth.engine import Engine
from tacos.synth.forest.trees import (
    Packed,
    Packing,
    general_packing,
    packing,
    root_rate_Bps,
    suited_chunks,
    used,
)
from tacos.synth.moves import check_memory
from tacos.synth.phases import in_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tacos._core import Collective, CollectivePart, Forest, Schedule, Topology

__all__ = ["ENGINE", "Packed", "Packing", "forest", "obstacle", "packing", "suited_chunks"]

_MOST_GROWN = 128
"""Largest number of NPUs of a network without symmetry: about a second of work."""
_MOST_ALIKE = 2048
_MOST_REPEATED = 64
"""Largest number of NPUs for which trees of some NPUs are grown and repeated, or grown despite a symmetry."""
_MOST_BOTH = 200_000
"""Largest number of transfers for which trees with and without symmetry are compared."""
_MANY = 30_000
"""Smallest number of transfers for which a pipeline shows how well its hops can be arranged."""
_FAR, _LATENT = 1.03, 1.5
"""Range of ratios to the fluid time in which gaps explain the delay; above it, latencies do."""
_SLACK = 0.15
"""Share of the bandwidth between switches that is left unused if gaps remain."""
_TRIAL = 512
"""Number of trees that suffices to see what two-way trees reach."""
_MOST_EXCHANGED = 40_000
"""Largest number of transfers of an exchange; it is for small sizes, where a long synthesis is not worthwhile."""
_SUMS_AND_COPIES = 3
"""Capabilities of a switch that NVLS needs."""
_MANY_COUNTS = (1024, 2048, 4096)
"""Chunk counts to search beyond the default ones, since each link carries few of a broadcast's chunks."""
_COARSE, _SKIPS, _LONG = 16, 4, 2.0
"""Up to `_COARSE`, chunk counts grow by the factor `_SKIPS` if bytes take over `_LONG` times as long as latencies."""


def forest(
    topology: Topology,
    collective: Collective,
    *,
    memory: Packed | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Pipeline chunks down throughput-optimal trees.

    The sums of an all-reduce are formed evenly at all members, and each part is then spread from its member. Or, where
    that is faster, chunks go up and down trees with any roots. The provenance tells which (``"trees"``); the rate of
    the trees relative to the narrowest cut, where NPUs differ (``"rate"``: 1 if every switch, and every NPU outside the
    group, has as much bandwidth out as in); and by how much bandwidths were rounded (``"tolerance"``).

    Args:
        topology: Any network.
        collective: An all-gather, reduce-scatter, all-reduce, broadcast or reduce.
        memory: Trees found before for this network, group and kind; new ones are added. For callers that
            try several numbers of chunks.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: A member cannot be reached; the message names it.
        ValueError: The collective is of a different kind.

    >>> import tacos
    >>> topo = tacos.topology.dgx_h100(2)
    >>> coll = tacos.collective.all_gather(topo, "1GB", chunks=64)
    >>> schedule = forest(topo, coll)
    >>> tacos.bound(topo, coll).time_s / schedule.time_s > 0.99
    True
    """
    ENGINE.check(topology, collective)
    resolved = collective if collective.resolved else collective.with_chunks(1)
    known: Packed = {} if memory is None else memory
    orbit = _orbits(topology, resolved, known, progress)
    (part,) = resolved.parts
    transfers = len(part.group) ** 2 * part.chunks
    found = [] if orbit is None else [orbit]
    if orbit is not None and (transfers > _MOST_BOTH or all_alike(topology)):
        if part.kind == "all_reduce" and (topology.switch_capabilities == _SUMS_AND_COPIES).any():
            found += _both_ways(topology, resolved, known, orbit.time_s, progress)
        if part.kind == "all_reduce":
            found += _team_exchanges(topology, resolved, min(one.time_s for one in found), progress)
        return min(found, key=lambda schedule: schedule.time_ps)
    slack = bool(used(known, " slack"))  # slack was better before
    found.append(_in_phases(topology, resolved, known, slack, progress))
    fluid_s = sum(part.size / trees.algbw_Bps for trees in used(known, ""))
    gaps = _FAR * fluid_s < min(one.time_s for one in found) < _LATENT * fluid_s
    untried = "spread slack" not in known and transfers >= _MANY and _has_chains(topology)
    if gaps and untried and not slack:
        tried = dict(known)  # trees whose use was not seen, since work ended, are not known
        found.append(_in_phases(topology, resolved, tried, True, progress))
        better = found[-1].time_ps <= found[-2].time_ps
        for use in ("spread slack", "collect slack"):
            known[use] = tried.get(use) if better else None
    if part.kind == "all_reduce":
        found += _both_ways(topology, resolved, known, fluid_s, progress)
        found += _team_exchanges(topology, resolved, min(one.time_s for one in found), progress)
    return min(found, key=lambda schedule: schedule.time_ps)


def _facts(known: Packed, way: str) -> dict[str, Any]:
    """Return the provenance of trees."""
    found = used(known, way)
    rates = [
        one.rate_Bps / (known.get(what) or one).cut_Bps
        for what in ("spread", "collect")
        if (one := known.get(what + way)) is not None
    ]
    return {
        "engine": ENGINE.name,
        "rate": min(1.0, 1.0, *rates),
        "tolerance": max((one.trees.tolerance for one in found), default=0.0),
    }


def obstacle(topology: Topology, collective: Collective) -> str:
    """Return the requirement of the engine that is not met; empty if all are met.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> obstacle(topo, tacos.collective.all_to_all(topo, "1MB"))
    'all-gather, reduce-scatter, all-reduce, broadcast or reduce, not all-to-all'
    """
    if needed := requirements.one_part(collective):
        return needed
    part = collective.parts[0]
    if needed := requirements.listed_kinds(part, lambda kind: kind.spreads):
        return needed
    if topology.npus <= _MOST_REPEATED:
        return ""
    all_npus = not kind_of(part).rooted and len(part.group) == topology.npus
    if not all_npus or topology.npus > _MOST_ALIKE or not all_alike(topology):
        most = f"at most {_MOST_GROWN} NPUs, or {_MOST_ALIKE} of a symmetric network that all take part"
        fits = topology.npus <= _MOST_GROWN
        return "" if fits else f"{most}, not {len(part.group)} of {topology.npus}"
    if part.size < (chunks := topology.npus * max(part.chunks, 1)):
        return f"a byte for each of {chunks} chunks, not {part.size}"
    if topology.switches and topology.forwarding != "cut_through":
        return f"cut-through switches for more than {_MOST_REPEATED} NPUs"
    if part.sums and (topology.reduce_bandwidth_Bps or not _one_speed(topology)):
        return f"one speed per switch, and reductions that take no time, for more than {_MOST_REPEATED} NPUs"
    return ""


def _one_speed(topology: Topology) -> bool:
    """Return whether all links of each switch have the same bandwidth."""
    speeds = topology.link_bandwidth_Bps
    least = np.full(topology.npus + topology.switches, np.iinfo(np.int64).max)
    most = np.zeros_like(least)
    for ends in (topology.link_src, topology.link_dst):
        np.minimum.at(least, ends, speeds)
        np.maximum.at(most, ends, speeds)
    return bool((least[topology.npus :] == most[topology.npus :]).all())


def _has_chains(topology: Topology) -> bool:
    """Return whether two switches are linked."""
    return bool(((topology.link_src >= topology.npus) & (topology.link_dst >= topology.npus)).any())


def _orbits(
    topology: Topology,
    collective: Collective,
    known: Packed,
    progress: Callable[[float], object] | None,
) -> Schedule | None:
    """Return the schedule made of some NPUs' trees and their images, if the network is symmetric enough."""
    (part,) = collective.parts
    if len(part.group) != topology.npus or kind_of(part).rooted:
        return None
    if all_alike(topology):
        # The trees are balanced for these chunks, which may cost a little bandwidth.
        facts = json.dumps({"engine": ENGINE.name})
        return schedule_orbits(topology, collective, provenance=facts, progress=progress)
    if topology.npus > _MOST_REPEATED:
        return None
    trees: list[Forest | None] = [None, None]
    for backwards, use in enumerate(("spread orbit", "collect orbit")):
        if part.kind == ("reduce_scatter", "all_gather")[backwards]:
            continue
        if use not in known:
            network = topology.reversed() if backwards else topology
            found = pack_orbits(network, progress)
            known[use] = (
                Packing(found, part.group, part.group, root_rate_Bps(found)) if found else None
            )
        if (repeated := known[use]) is None:
            return None
        trees[backwards] = repeated.trees
    facts = json.dumps(_facts(known, " orbit"))
    return schedule_orbits(topology, collective, trees[0], trees[1], facts, progress)


def _in_phases(
    topology: Topology,
    collective: Collective,
    known: Packed,
    slack: bool,
    progress: Callable[[float], object] | None,
) -> Schedule:
    """Return a schedule that reduces chunks at their owners and then spreads the results."""
    solve = partial(_spread, home=topology, known=known, slack=slack, progress=progress)
    schedule = in_phases(topology, collective, solve, progress=progress)
    return schedule.with_provenance(_facts(known, " slack" if slack else ""))


def _spread(
    network: Topology,
    problem: Collective,
    home: Topology,
    known: Packed,
    slack: bool,
    progress: Callable[[float], object] | None,
) -> Schedule:
    """Return a schedule that sends every chunk from its holder down a tree to the NPUs that need it."""
    (part,) = problem.parts
    holder, members = _holders(part)
    use = ("spread" if network is home else "collect") + (" slack" if slack else "")
    if (found := known.get(use)) is None:
        unused = _SLACK if slack else 0.0
        known[use] = found = general_packing(network, members, np.unique(holder), unused, progress)
    check_memory(len(holder) * (len(members) - 1))
    return schedule_forest(found.trees, holder, problem, progress=progress)


def _both_ways(
    topology: Topology,
    collective: Collective,
    known: Packed,
    fluid_s: float,
    progress: Callable[[float], object] | None,
) -> list[Schedule]:
    """Return an all-reduce up and down one tree per chunk, if that may be faster than `fluid_s`."""
    (part,) = collective.parts
    if "both ways" not in known:
        pair = pack_two_way(topology, part.group, _TRIAL, progress)
        known["both ways"] = (
            Packing(pair[1], part.group, part.group[:1], root_rate_Bps(pair[1])) if pair else None
        )
    trial = known["both ways"]
    transfers = 2 * len(part.group) * collective.chunks
    if trial is None or (transfers >= _MANY and part.size > trial.algbw_Bps * fluid_s):
        return []
    check_memory(transfers)
    pair = pack_two_way(topology, part.group, collective.chunks, progress)
    if pair is None:
        return []
    facts = json.dumps({"engine": ENGINE.name, "trees": "both ways"})
    roots = pair[1].root
    return [schedule_all_reduce(pair[0], pair[1], roots, collective, facts, progress)]


def _team_exchanges(
    topology: Topology,
    collective: Collective,
    limit_s: float,
    progress: Callable[[float], object] | None,
) -> list[Schedule]:
    """Return all-reduces for small sizes that cross the network once, if they may take less than `limit_s`."""
    (part,) = collective.parts
    members, dims = len(part.group), topology.dims
    teams = {1}
    if members == topology.npus and len(dims) > 1 and members == prod(size for _, size in dims):
        teams.add(members // dims[-1][1])
    ingress = np.bincount(topology.link_dst, topology.link_bandwidth_Bps, topology.nodes)
    least_s = part.size / max(float(ingress[part.group].min()), 1.0)
    found = []
    for team in sorted(teams):
        # An owner receives a share of its team's inputs and of the other teams' sums.
        copies = (team - 1 + members // team - 1) / team
        each = 2 * (members - members // team) + members // team * (members // team - 1)
        # Owners wait for each other, so the time is more than that of the bytes.
        if 2 * least_s * copies > limit_s or each * collective.chunks > _MOST_EXCHANGED:
            continue
        facts = json.dumps({"engine": ENGINE.name, "trees": "exchange"})
        order = np.sort(part.group)
        one = team_exchange(topology, order, team, collective, facts, progress)
        found += [one] if one is not None else []
    return found


def _holders(part: CollectivePart) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return where each chunk is, and which NPUs need it."""
    if part.kind == "all_gather":
        return np.repeat(part.group, part.chunks), part.group
    if part.kind == "broadcast":
        return np.repeat(part.group[part.root :][:1], part.chunks), part.group
    # The second half of an all-reduce: every chunk goes from its owner to all.
    needed = np.repeat(part.bytes > 0, np.diff(part.output_begin))
    members = np.unique(part.outputs[needed])
    return np.where(part.bytes, part.inputs[part.input_begin[:-1]], members[0]), members


def _chunk_counts(
    topology: Topology,
    collective: Collective,
    counts: tuple[int, ...],
    memory: dict[str, Any],
) -> Iterator[int]:
    tried = 0
    for chunks in (*counts, *_MANY_COUNTS):
        # Tall trees need many chunks to reach their rate, so trying small numbers is useless.
        coarse = (
            chunks <= _COARSE and chunks < _SKIPS * tried and _fills(topology, collective, memory)
        )
        if not coarse:
            tried = chunks
            yield suited_chunks(chunks, memory)


def _fills(topology: Topology, collective: Collective, memory: Packed) -> bool:
    """Return whether the rate of the trees determines the time, and not their latency."""
    height = max((trees.height for trees in used(memory, "")), default=0)
    latency_s = int(topology.link_latency_ps.max(initial=0)) * 1e-12
    return _fluid_s(collective, memory) > _LONG * height * latency_s > 0


def _limit_s(_topology: Topology, collective: Collective, memory: Packed) -> float:
    """Return a time that more chunks do not get below; 0 while none is known."""
    if collective.parts[0].kind == "all_reduce" and "both ways" not in memory:
        return 0.0  # such trees may be faster, and are tried in larger chunk counts
    return _fluid_s(collective, memory)


def _fluid_s(collective: Collective, memory: Packed) -> float:
    """Return the time of a fluid down the trees found so far; 0 if there are none yet."""
    (part,) = collective.parts
    fluid_s = sum(part.size / trees.algbw_Bps for trees in used(memory, ""))
    both_ways = memory.get("both ways")
    return min(fluid_s, part.size / both_ways.algbw_Bps) if both_ways else fluid_s


ENGINE = Engine(
    name="forest",
    lists=False,
    solve=forest,
    obstacle=obstacle,
    chunk_counts=_chunk_counts,
    limit_s=_limit_s,
    patience=4,  # some chunk counts do not match the weights of trees
)
