"""The baseline ``nccl``: what stock NCCL would do on a network.

NCCL finds the boxes and NICs of a machine (:mod:`~tacos.synth.baselines.nccl.boxes`), lays channels on its links
(:mod:`~tacos.synth.baselines.nccl.channels`), chooses algorithm and protocol by size
(:mod:`~tacos.synth.baselines.nccl.tuner`) and runs rings, double binary trees, or sums in switches
(:mod:`~tacos.synth.baselines.nccl.schedule`). The engine does the same and returns a schedule, whose time is that of
the algorithm on an ideal network, without protocol overheads. The time that nccl-tests would measure is a different
number (:func:`~tacos.synth.baselines.nccl.tuner.estimate`), which the provenance holds.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Meter
from tacos.collective import kind_of
from tacos.errors import InfeasibleError
from tacos.synth.baselines import block_trees
from tacos.synth.baselines.nccl.channels import network_of
from tacos.synth.baselines.nccl.group import Group
from tacos.synth.baselines.nccl.order import LARGEST_SEARCH
from tacos.synth.baselines.nccl.schedule import ring_moves, through_switches, tree_moves
from tacos.synth.baselines.nccl.tuner import SWITCHED, choose, generation_named, in_doubt
from tacos.synth.engine import Engine
from tacos.synth.moves import listed, named_part, to_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Schedule, Topology
    from tacos.synth.baselines.nccl.channels import Network
    from tacos.synth.baselines.nccl.parameters import Generation
    from tacos.synth.baselines.nccl.tuner import Estimate
    from tacos.synth.moves import Moves

    Progress = Callable[[float], object] | None

__all__ = ["NCCL", "chunk_counts_on", "nccl", "solve", "suited_counts"]

_MOST_CHUNKS = 512
"""Largest number of chunks of a block if their number is open (chosen)."""
_LEAST_CHUNKS = 4
"""Least number of chunks of a block in rings, so that links need not wait for the latency of each step (chosen)."""
_MANY = 128
"""Number of members from which on rings have as few chunks as fill them (chosen)."""
_FINER = 16
"""Factor on the squared number of chunks where links are pipelined, so that a chunk more changes little (chosen)."""


def nccl(
    topology: Topology,
    collective: Collective,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    channels: int | None = None,
    generation: str | Generation | None = None,
    progress: Progress = None,
) -> Schedule:
    """Return the algorithm that stock NCCL would run: multi-channel rings, double binary trees, NVLS, CollNet or direct sends.

    The time of the schedule is that of an ideal network. The provenance has NCCL's ``algorithm``, ``protocol`` and
    ``channels``, the number of ``boxes``, and the time that nccl-tests would report, ``estimate_s``. If NCCL's costs of
    several algorithms are almost the same, ``in_doubt`` lists them, and the schedule is the fastest of theirs.

    Args:
        topology, collective: The problem; any collective but a custom one.
        algorithm: ``"ring"``, ``"tree"``, ``"nvls"``, ``"nvls-tree"`` or ``"collnet"`` instead of NCCL's choice.
        protocol: ``"LL"``, ``"LL128"`` or ``"Simple"`` instead of NCCL's choice; it changes only the estimate.
        channels: Largest number of rings or trees to use.
        generation: The GPU generation whose parameters to use, such as ``"H100"``; inferred from bandwidths by default.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> topo = tacos.topology.dgx_a100(2)
    >>> coll = tacos.collective.all_reduce(topo, "1GB", chunks=8)
    >>> schedule = nccl(topo, coll)
    >>> schedule.provenance["algorithm"], round(schedule.busbw_Bps / 1e9)        # eight NICs of 25 GB/s
    ('ring', 200)
    """
    NCCL.check(topology, collective)
    return solve(
        network_of(topology),
        collective,
        algorithm=algorithm,
        protocol=protocol,
        channels=channels,
        generation=generation,
        progress=progress,
    )


def solve(
    network: Network,
    collective: Collective,
    *,
    algorithm: str | None = None,
    protocol: str | None = None,
    channels: int | None = None,
    generation: str | Generation | None = None,
    progress: Progress = None,
) -> Schedule:
    """Return NCCL's algorithm for a network, on the links that carry it out; the options are those of :func:`nccl`.

    >>> import tacos
    >>> topo = tacos.topology.dgx1()
    >>> coll = tacos.collective.all_gather(topo, "1MB", chunks=6)
    >>> solve(network_of(topo), coll).time_ps == nccl(topo, coll).time_ps
    True
    """
    given = generation_named(generation)
    meter = Meter.of(progress)
    groups = [Group(network, part, given, lambda _: meter(0.0)) for part in collective.parts]
    found = [choose(group, algorithm, protocol, channels) for group in groups]
    close = in_doubt(found[0]) if len(found) == 1 and algorithm is protocol is None else []
    if len(close) > 1:
        tried, failure = [], None
        for one in sorted(close, key=lambda one: one != found[0].algorithm):
            try:
                tried.append(
                    solve(
                        network,
                        collective,
                        algorithm=one,
                        channels=channels,
                        generation=generation,
                        progress=progress,
                    )
                )
            except InfeasibleError as error:  # it would use a link that is dead
                failure = error
        if failure is not None and not tried:
            raise failure
        # Those that do not send over a dead link are left of NCCL's choices.
        fastest = min(tried, key=lambda one: one.time_ps)
        facts: dict[str, Any] = {"in_doubt": close}
        if not found[0].fails:
            facts["estimate_s"] = found[0].time_s
        protocol = fastest.provenance["protocol"]
        fastest = fastest.with_provenance({**fastest.provenance, **facts})
        return fastest.with_facts(protocol=protocol)
    switched = [one.algorithm in SWITCHED for one in found]
    if any(switched) and not all(switched):
        # A schedule has one table of routes: if only some collectives go through switches, those use rings.
        found = [
            choose(group, "ring", None, channels) if through else one
            for group, one, through in zip(groups, found, switched, strict=True)
        ]
    resolved = collective if collective.resolved else collective.with_chunks(_chunks(groups, found))
    groups = [group.of(part) for group, part in zip(groups, resolved.parts, strict=True)]
    slowest = max(found, key=lambda one: one.time_s)
    facts = {
        "engine": NCCL.name,
        "algorithm": slowest.algorithm,
        "protocol": slowest.protocol,
        "channels": slowest.channels,
        "boxes": slowest.boxes,
        "generation": slowest.generation,
        "estimate_s": slowest.time_s,
    }
    if all(one.algorithm in SWITCHED for one in found):
        chosen = [(group, one.algorithm) for group, one in zip(groups, found, strict=True)]
        schedule = through_switches(
            network, resolved, chosen, channels, provenance=facts, progress=progress
        )
        return schedule.with_facts(protocol=slowest.protocol)
    if all(part.kind == "reduce" for part in resolved.parts):
        # Reverse a broadcast, whose pipeline is even; sums that all start at once would delay each other.
        spread = [
            ring_moves(group.of(part), part, channels, backwards=True)
            for group, part in zip(groups, resolved.reversed().parts, strict=True)
        ]
        schedule = to_schedule(
            network.executed.reversed(),
            resolved.reversed(),
            spread,
            provenance=facts,
            progress=progress,
            links=lambda a, b: network.laid(network.route(b, a))[::-1],
        )
        schedule = schedule.reverse(progress).with_provenance(facts)
        return schedule.with_facts(protocol=slowest.protocol)
    moves = [
        _moves(group, one, channels, progress) for group, one in zip(groups, found, strict=True)
    ]
    # Direct sends take the shortest routes, which may cross a box to the NIC of the destination's rail.
    alone = all(one.algorithm != "direct" for one in found)
    schedule = to_schedule(
        network.executed,
        resolved,
        moves,
        provenance=facts,
        progress=progress,
        links=(lambda a, b: network.laid(network.route(a, b))) if alone else network.sends(),
    )
    return schedule.with_facts(protocol=slowest.protocol)


def suited_counts(
    topology: Topology, collective: Collective, counts: tuple[int, ...]
) -> tuple[int, ...]:
    """Return numbers of chunks that fill all rings evenly if NCCL would use rings; otherwise the given numbers.

    >>> import tacos
    >>> topo = tacos.topology.dgx1()                     # six rings
    >>> suited_counts(topo, tacos.collective.all_gather(topo, "1MB"), (1, 2, 4, 8, 16, 32))
    (6, 12, 24)
    """
    network = network_of(topology)
    groups = [Group(network, part) for part in collective.parts]
    found = [len(group.rings) for group in groups if "ring" in in_doubt(choose(group))]
    most = max(found, default=1)
    return tuple(most * count for count in counts if most * count <= max(counts[-1], most))


def _moves(group: Group, chosen: Estimate, most: int | None, progress: Progress) -> Moves:
    """Return the moves of one collective between NPUs."""
    part = group.part
    if kind_of(part).listed:
        return listed(part, group.network.topology.npus)
    if chosen.algorithm == "direct":
        return _by_distance(
            group, named_part(part, block_trees.star(len(part.group)), progress=progress)
        )
    if chosen.algorithm == "tree":
        return tree_moves(group, part, most)
    return ring_moves(group, part, most)


def _by_distance(group: Group, moves: Moves) -> Moves:
    """Return direct sends in rounds, as NCCL starts them: to the next member, to the one after it, and so on.

    Members come in the order of the search, so that the rounds do not depend on ranks; in the order of ranks where messages pass other
    NPUs of a single box, as on a torus, whose rank order suits these rounds.
    """
    order, box = group.order, group.used.boxes[0]
    if (order == group.part.group).all():
        return moves
    if group.boxes == 1 and (
        group.n > LARGEST_SEARCH
        or any(len(near) < group.n - 1 for near in group.network.neighbours(box).values())
    ):
        return moves
    place = np.zeros(int(order.max()) + 1, np.int64)
    place[order] = np.arange(len(order))
    src, dst = (place[np.asarray(ends).ravel()[moves.route]] for ends in moves.pairs)
    return moves.only(np.lexsort((src, (dst - src) % len(order))))


def _chunks(groups: list[Group], found: list[Estimate]) -> int:
    """Return a number of chunks that uses all channels and minimizes the time of pipelined chains."""
    chunks = 1
    for group, one in zip(groups, found, strict=True):
        if group.n < 2 or one.algorithm == "direct":
            continue
        part, topology = group.part, group.network.topology
        count = len(group.rings)
        if one.algorithm != "ring" or part.root >= 0:
            latency = max(float(np.median(topology.link_latency_ps)), 1.0) / 1e12
            if topology.link_model == "pipelined":
                latency /= _FINER
            rate = count * float(np.median(topology.link_bandwidth_Bps))
            # A ring of a broadcast carries k chunks; each of a channel's two trees, k chunks of n/2 blocks.
            depth, blocks = group.n, 1.0
            if part.root < 0:
                depth = 2 * (int(group.per_box) + group.boxes.bit_length())
                blocks = group.n / 2
            # (d + k) (α + S / kB) is as small for k as for k + 1 where k (k + 1) = d S / αB.
            count *= max(
                1, ceil(sqrt(depth * part.size / (rate * latency) / blocks**2 + 0.25) - 0.5)
            )
        elif group.n <= _MANY:
            count *= -(-_LEAST_CHUNKS // count)
        chunks = max(chunks, min(count, _MOST_CHUNKS))
    return chunks


def _obstacle(_topology: Topology, collective: Collective) -> str:
    for part in collective.parts:
        if kind_of(part).listed and part.kind != "send_recv":
            return f"a collective that NCCL has, not {part.label}"
    return ""


def chunk_counts_on(
    topology: Topology,
    collective: Collective,
    counts: tuple[int, ...],
    _memory: dict[str, Any],
) -> tuple[int, ...]:
    """Return numbers of chunks to search on a network, as an engine's record does."""
    applies = not _obstacle(topology, collective)
    return suited_counts(topology, collective, counts) if applies else counts


NCCL = Engine(
    name="nccl",
    solve=nccl,
    baseline=True,
    obstacle=_obstacle,
    chunk_counts=chunk_counts_on,
    reference=1,
)
