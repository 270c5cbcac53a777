"""The forest engine: spanning trees that use a network as fully as possible, and chunks down them.

ForestColl's theory (arXiv 2402.06787): an all-gather is as fast as its narrowest cut allows if every NPU
spreads its part over several trees of the right weights. The core (``cpp/synth/forest/packing.hpp`` has
the method) finds such trees, shallow ones first; chunks go down them in proportion to their weights. Sums
go up trees that were grown on the reversed network (:mod:`tacos.synth.phases`). Where the network is the same
from every NPU, the trees of one are enough (``cpp/synth/forest/translations.hpp``). An all-reduce may also go up
and down trees of its own, and through switches that sum (``cpp/synth/forest/two_way.hpp``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from math import lcm, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import (
    all_alike,
    pack_forest,
    pack_orbits,
    pack_two_way,
    schedule_all_reduce,
    schedule_forest,
    schedule_orbits,
    team_exchange,
)
from tacos.collective import kind_of, labels
from tacos.synth.logical import forest_through_program
from tacos.synth.moves import check_memory
from tacos.synth.phases import in_phases

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Collective, CollectivePart, Forest, Schedule, Topology

__all__ = ["Packed", "Packing", "forest", "obstacle", "packing", "suited_chunks"]

_MOST_GROWN = 128
"""NPUs of a network without symmetry: half a minute's worth."""
_MOST_ALIKE = 2048
_MOST_REPEATED = 64
"""NPUs for which trees are grown for a part of them and repeated, or grown although all are alike."""
_MOST_BOTH = 200_000
"""Transfers up to which trees with and without symmetry are compared."""
_MANY = 30_000
"""Transfers from which on a pipeline is long enough to show how well its hops can be arranged."""
_FAR, _LATENT = 1.03, 1.5
"""Times the time of a fluid: schedules between these leave gaps, slower ones wait for latencies."""
_SLACK = 0.15
"""Share of the bandwidth between switches that is left unused where gaps remain."""
_TRIAL = 512
"""Trees that show what trees both ways reach."""
_MOST_EXCHANGED = 40_000
"""Transfers of an exchange: it is for few bytes, which nobody wants to wait for."""
_SUMS_AND_COPIES = 3
"""Capabilities of a switch as in NVLS."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Trees from roots to all members of a group, with the rates they carry.

    Attributes:
        trees: The trees as columns. If they have a ``node_image``, they are those of NPU 0, and the
            others' trees are their images.
        members: Whom they reach.
        roots: Where they start.
        cut_Bps: What the narrowest cut lets every root send, in bytes per second.
    """

    trees: Forest
    members: NDArray[np.int32]
    roots: NDArray[np.int32]
    cut_Bps: float

    @property
    def rate_Bps(self) -> float:
        """What every root sends, in bytes per second."""
        return _rate_Bps(self.trees) * self.trees.rate

    @property
    def algbw_Bps(self) -> float:
        """Size over time of an all-gather (of one root: a broadcast) that is large."""
        return self.rate_Bps * len(self.roots)

    @property
    def height(self) -> int:
        """Hops from a root to a leaf at most."""
        return int(self.trees.depth.max(initial=0))


def packing(
    topology: Topology,
    *,
    group: NDArray[Any] | list[int] | None = None,
    root: int | None = None,
    progress: Callable[[float], object] | None = None,
) -> Packing:
    """Trees that carry as much as the narrowest cut lets anybody carry.

    Args:
        topology: Any network.
        group: The NPUs that take part; all if not given. Others only relay.
        root: The only NPU that sends; all members send at one rate if not given.
        progress: Called with the share done, now and then.

    Raises:
        InfeasibleError: A member cannot be reached; the message names it.
        ValueError: The root is no member.

    >>> import tacos
    >>> found = packing(tacos.topology.switch(16, bandwidth="900GB/s"))
    >>> found.algbw_Bps / 1e9, found.height
    (960.0, 1)
    """
    members: NDArray[np.int32] = np.asarray(
        np.arange(topology.npus) if group is None else group, np.int32
    )
    roots = members if root is None else np.array([root], np.int32)
    everybody = len(np.unique(members)) == topology.npus == len(members)
    if root is None and everybody and all_alike(topology):
        trees = pack_orbits(topology, progress)
        if trees is not None:
            return Packing(trees, members, roots, _rate_Bps(trees))
    return _general(topology, members, roots, 0.0, progress)


Packed = dict[str, Packing | None]
"""Trees by their use: "spread" or "collect", with " slack", or with " orbit" as images of a few;
"both ways" for all-reduces. None where there are none."""


def _general(
    topology: Topology,
    members: NDArray[np.int32],
    roots: NDArray[np.int32],
    slack: float,
    progress: Callable[[float], object] | None,
) -> Packing:
    """Trees of all roots, whatever the network."""
    amounts = np.ones(len(roots), np.int64)

    def pack(network: Topology) -> Forest:
        return pack_forest(network, members, roots, amounts, slack, progress)

    trees = pack(topology)
    found = Packing(trees, members, roots, _rate_Bps(trees))
    if trees.rate < 1 and (better := forest_through_program(topology, members, roots, pack)):
        other = Packing(better, members, roots, found.cut_Bps)
        return max(found, other, key=lambda one: one.rate_Bps)
    return found


def _rate_Bps(trees: Forest) -> float:
    """What a root sends, if the trees carry all of it."""
    return trees.demand_weight * trees.unit_Bps / trees.unit_parts


def forest(
    topology: Topology,
    collective: Collective,
    *,
    packed: Packed | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Pipeline chunks down throughput-optimal trees.

    Sums of an all-reduce are made evenly at all members, each part then spread from there; or, where that carries
    more, go up and down trees whose roots are wherever it suits. The provenance says which (``"trees"``), how
    far the trees are below the narrowest cut where not all NPUs are alike (``"rate"``, 1 if not at all: so
    it is wherever every switch, and every NPU outside the group, has as much bandwidth out as in), and by
    how much bandwidths were rounded (``"tolerance"``).

    Args:
        topology: Any network.
        collective: An all-gather, reduce-scatter, all-reduce, broadcast or reduce.
        packed: Trees found before, for this network, group and kind; new ones are added. For callers
            who try several numbers of chunks.
        progress: Called with the share done, now and then.

    Raises:
        InfeasibleError: A member cannot be reached; the message names it.
        ValueError: The collective is of another kind.

    >>> import tacos
    >>> topo = tacos.topology.dgx_h100(2)
    >>> coll = tacos.collective.all_gather(topo, "1GB", chunks=64)
    >>> schedule = forest(topo, coll)
    >>> tacos.bound(topo, coll).time_s / schedule.time_s > 0.99
    True
    """
    if needed := obstacle(topology, collective):
        raise ValueError(f"forest needs {needed}")
    resolved = collective if collective.resolved else collective.with_chunks(1)
    known: Packed = {} if packed is None else packed
    orbit = _orbits(topology, resolved, known, progress)
    (part,) = resolved.parts
    transfers = len(part.group) ** 2 * part.chunks
    found = [] if orbit is None else [orbit]
    if orbit is not None and (transfers > _MOST_BOTH or all_alike(topology)):
        if part.kind == "all_reduce" and (topology.switch_capabilities == _SUMS_AND_COPIES).any():
            found += _both_ways(topology, resolved, known, orbit.time_s, progress)
        if part.kind == "all_reduce":
            found += _exchanges(topology, resolved, min(one.time_s for one in found), progress)
        return min(found, key=lambda schedule: schedule.time_ps)
    slack = bool(_used(known, " slack"))  # it was better before
    found.append(_in_phases(topology, resolved, known, slack, progress))
    fluid_s = sum(part.size / trees.algbw_Bps for trees in _used(known, ""))
    gaps = _FAR * fluid_s < min(one.time_s for one in found) < _LATENT * fluid_s
    untried = "spread slack" not in known and transfers >= _MANY and _has_chains(topology)
    if gaps and untried and not slack:
        found.append(_in_phases(topology, resolved, known, True, progress))
        if found[-1].time_ps > found[-2].time_ps:
            known |= {"spread slack": None, "collect slack": None}
    if part.kind == "all_reduce":
        found += _both_ways(topology, resolved, known, fluid_s, progress)
        found += _exchanges(topology, resolved, min(one.time_s for one in found), progress)
    return min(found, key=lambda schedule: schedule.time_ps)


def suited_chunks(chunks: int, packed: Packed) -> int:
    """A number of chunks like the given one of which every tree gets its exact share.

    Args:
        chunks: About how many.
        packed: The trees that :func:`forest` has found.

    >>> import tacos
    >>> packed: Packed = {}
    >>> topo = tacos.topology.dgx1()    # some trees carry a sixth of what their root sends
    >>> _ = forest(topo, tacos.collective.all_gather(topo, "1MB", chunks=1), packed=packed)
    >>> [suited_chunks(chunks, packed) for chunks in (1, 4, 16)]
    [1, 6, 18]
    """
    whole = 1
    for found in _used(packed, " slack") or _used(packed, ""):
        trees = found.trees
        whole = lcm(whole, trees.demand_weight // int(np.gcd.reduce(trees.weight)))
    return -(-chunks // whole) * whole if 3 * chunks >= 2 * whole else chunks


def _used(known: Packed, way: str) -> list[Packing]:
    """The trees of one way, for spreading and collecting as far as there are any."""
    found = (known.get(f"{what}{way}") for what in ("spread", "collect"))
    return [one for one in found if one is not None]


def _facts(known: Packed, way: str) -> dict[str, Any]:
    """What the provenance says of trees."""
    found, best = _used(known, way), _used(known, "") or _used(known, way)
    rates = [one.rate_Bps / whole.cut_Bps for one, whole in zip(found, best, strict=True)]
    return {
        "engine": "forest",
        "rate": min(1.0, 1.0, *rates),
        "tolerance": max((one.trees.tolerance for one in found), default=0.0),
    }


def obstacle(topology: Topology, collective: Collective) -> str:
    """What the engine needs and does not find, or nothing.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> obstacle(topo, tacos.collective.all_to_all(topo, "1MB"))
    'all-gather, reduce-scatter, all-reduce, broadcast or reduce, not all-to-all'
    """
    if len(collective.parts) != 1:
        return f"one collective, not {len(collective.parts)} at once"
    part = collective.parts[0]
    if not kind_of(part).spreads:
        *names, last = labels(lambda kind: kind.spreads)
        return f"{', '.join(names)} or {last}, not {part.label}"
    if topology.npus <= _MOST_REPEATED:
        return ""
    everybody = not kind_of(part).rooted and len(part.group) == topology.npus
    if not everybody or topology.npus > _MOST_ALIKE or not all_alike(topology):
        most = f"at most {_MOST_GROWN} NPUs, or {_MOST_ALIKE} that are all alike and take part"
        fits = topology.npus <= _MOST_GROWN
        return "" if fits else f"{most}, not {len(part.group)} of {topology.npus}"
    if part.size < (chunks := topology.npus * max(part.chunks, 1)):
        return f"a byte for each of {chunks} chunks, not {part.size}"
    if topology.switches and topology.forwarding != "cut_through":
        return f"switches that cut through where there are more than {_MOST_REPEATED} NPUs"
    if part.sums and (topology.reduce_bandwidth_Bps or not _one_speed(topology)):
        return f"one speed per switch, and sums that take no time, for over {_MOST_REPEATED} NPUs"
    return ""


def _one_speed(topology: Topology) -> bool:
    """Whether all links of every switch are equally fast."""
    speeds = topology.link_bandwidth_Bps
    least = np.full(topology.npus + topology.switches, np.iinfo(np.int64).max)
    most = np.zeros_like(least)
    for ends in (topology.link_src, topology.link_dst):
        np.minimum.at(least, ends, speeds)
        np.maximum.at(most, ends, speeds)
    return bool((least[topology.npus :] == most[topology.npus :]).all())


def _has_chains(topology: Topology) -> bool:
    """Whether a switch is next to a switch."""
    return bool(((topology.link_src >= topology.npus) & (topology.link_dst >= topology.npus)).any())


def _orbits(
    topology: Topology,
    collective: Collective,
    known: Packed,
    progress: Callable[[float], object] | None,
) -> Schedule | None:
    """The schedule by some NPUs' trees and their images, if the network has such a symmetry."""
    (part,) = collective.parts
    if len(part.group) != topology.npus or kind_of(part).rooted:
        return None
    if part.size % (len(part.group) * part.chunks):  # it will be expanded
        check_memory(topology.npus**2 * part.chunks)
    if all_alike(topology):
        # Balanced for these chunks, which may be a little below what the cuts allow.
        facts = json.dumps({"engine": "forest"})
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
            known[use] = Packing(found, part.group, part.group, _rate_Bps(found)) if found else None
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
    """Sums to their owners, then results from them."""
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
    """Every chunk from its holder down a tree to whoever needs it."""
    (part,) = problem.parts
    holder, members = _holders(part)
    use = ("spread" if network is home else "collect") + (" slack" if slack else "")
    if (found := known.get(use)) is None:
        unused = _SLACK if slack else 0.0
        known[use] = found = _general(network, members, np.unique(holder), unused, progress)
    check_memory(len(holder) * (len(members) - 1))
    return schedule_forest(found.trees, holder, problem, progress=progress)


def _both_ways(
    topology: Topology,
    collective: Collective,
    known: Packed,
    fluid_s: float,
    progress: Callable[[float], object] | None,
) -> list[Schedule]:
    """An all-reduce up and down one tree for each chunk, where that may be faster than `fluid_s`."""
    (part,) = collective.parts
    if "both ways" not in known:
        pair = pack_two_way(topology, part.group, _TRIAL, progress)
        known["both ways"] = (
            Packing(pair[1], part.group, part.group[:1], _rate_Bps(pair[1])) if pair else None
        )
    trial = known["both ways"]
    transfers = 2 * len(part.group) * collective.chunks
    if trial is None or (transfers >= _MANY and part.size > trial.algbw_Bps * fluid_s):
        return []
    check_memory(transfers)
    pair = pack_two_way(topology, part.group, collective.chunks, progress)
    if pair is None:
        return []
    facts = json.dumps({"engine": "forest", "trees": "both ways"})
    roots = pair[1].root
    return [schedule_all_reduce(pair[0], pair[1], roots, collective, facts, progress)]


def _exchanges(
    topology: Topology,
    collective: Collective,
    limit_s: float,
    progress: Callable[[float], object] | None,
) -> list[Schedule]:
    """All-reduces of few bytes that cross the network once, where that may take less than `limit_s`."""
    (part,) = collective.parts
    members, dims = len(part.group), topology.dims
    teams = {1}
    if members == topology.npus and len(dims) > 1 and members == prod(size for _, size in dims):
        teams.add(members // dims[-1][1])
    ingress = np.bincount(topology.link_dst, topology.link_bandwidth_Bps, topology.nodes)
    least_s = part.size / max(float(ingress[part.group].min()), 1.0)
    found = []
    for team in sorted(teams):
        # What enters an owner: a share of its team's inputs, and of the other teams' sums.
        copies = (team - 1 + members // team - 1) / team
        each = 2 * (members - members // team) + members // team * (members // team - 1)
        # Owners wait for each other, so that bytes alone never take all the time.
        if 2 * least_s * copies > limit_s or each * collective.chunks > _MOST_EXCHANGED:
            continue
        facts = json.dumps({"engine": "forest", "trees": "exchange"})
        order = np.sort(part.group)
        one = team_exchange(topology, order, team, collective, facts, progress)
        found += [one] if one is not None else []
    return found


def _holders(part: CollectivePart) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Where each chunk is, and who needs it."""
    if part.kind == "all_gather":
        return np.repeat(part.group, part.chunks), part.group
    if part.kind == "broadcast":
        return np.repeat(part.group[part.root :][:1], part.chunks), part.group
    # What is left of an all-reduce after collecting: every chunk from its owner to all.
    needed = np.repeat(part.bytes > 0, np.diff(part.output_begin))
    members = np.unique(part.outputs[needed])
    return np.where(part.bytes, part.inputs[part.input_begin[:-1]], members[0]), members
