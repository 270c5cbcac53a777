"""The leaders engine: collectives of few bytes that meet at a few NPUs, chunk by chunk, without waiting for each other.

A chunk is collected at its leaders, exchanged between them, and spread from there. One leader takes twice the network's radius; two
neighbours in the middle take one hop less, and hardly more bytes. Between boxes, one leader in each box lets a chunk
cross their narrow ports once; several leaders and receivers near all members let it cross sooner, but more often. This module chooses sets of leaders. The core (``cpp/synth/leaders.hpp`` has the method) places
one chunk after another in the gaps that are left, and then places late ones again. All-gathers and reduce-scatters work
in the same way; the only leader of a block is the member that starts or ends with it.
"""

from __future__ import annotations

import json
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacos._core import Meter, meet_at_leaders
from tacos.collective import kind_of
from tacos.errors import InfeasibleError
from tacos.synth import requirements
from tacos.synth.engine import Engine
from tacos.synth.phases import in_phases
from tacos.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from tacos._core import Collective, CollectivePart, Schedule, Topology

__all__ = ["ENGINE", "leaders"]

_MOST_MEMBERS, _MOST_SUMMING = 64, 32
"""Largest number of members, and of members of an all-reduce without receivers: for more, sets of leaders take too long to try."""
_MOST_BYTES = 256_000
"""Largest buffer in bytes. Larger ones take long to plan, and their time depends on bandwidth more than on hops."""
_MOST_NEIGHBOURS = 6
"""Average number of neighbours of a member. Beyond it, two leaders in a unit are hardly nearer to the others than one."""
_MANY = 32
"""Number of members beyond which only leaders use switches, if the others have links to each other."""
_MOST_SETS = 48
"""Most sets of leaders in one list."""
_LEVELS, _RECEIVERS, _CHEAP = 3, 2, 1.1
"""Sets with receivers: number of sums of distances, of receivers per set of leaders, and the highest factor on the least cost."""
_WIDE = 1.25
"""Sets of leaders may take this many times as long as the best in an idle network, since more sets share the load."""
_KEPT, _HOPEFUL, _MIXED, _HOPELESS = 2, 1.06, 1.1, 1.2
"""Number of lists with which late chunks are placed again, and factors on the best time: beyond the first a list is not kept,
beyond the second it is not mixed with the best one, beyond the third the core gives it up."""
_HOPS, _HOPS_ACROSS = 1_000_000, 2_000_000
"""Hops that the core examines to place late chunks again, per list of leaders (0.1 to 0.25 s), and for sets with receivers."""


_PASSES = 12
"""How often the ways over one member more read the table of times between members, in all."""


class _Set(NamedTuple):
    """A set of leaders.

    Attributes:
        leaders: The NPUs.
        stages: The sizes of the groups in which they exchange, stage by stage.
        receivers: If there are any, the NPUs that all leaders send their sums to instead, and that spread the full sum.
        straight: Whether only leaders and receivers use switches.
    """

    leaders: list[int]
    stages: list[int]
    receivers: list[int]
    straight: bool


class _Sets(NamedTuple):
    """Sets of leaders to choose from.

    Attributes:
        first: The sets with which chunks are placed at first.
        more: Further sets with which late chunks are placed again.
    """

    first: list[_Set]
    more: list[_Set]


def leaders(
    topology: Topology,
    collective: Collective,
    *,
    seed: int = 0,
    memory: dict[str, Any] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Collect every chunk at a few NPUs, exchange there, and spread it.

    Args:
        topology: Any network; for a group of some of its NPUs, one without links between NPUs.
        collective: An all-gather, reduce-scatter or all-reduce of at most 256 KB among at most 64 NPUs; an all-reduce
            among at most 32, if the network does not have both switches and links between NPUs.
        seed: Varies the order in which chunks are placed again.
        memory: Sets of leaders found before, for this network, group and size, of which the best is kept, and the times of those that
            were tried before work was ended.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> line = tacos.topology.mesh(4, bandwidth="1GB/s", latency="1us")
    >>> schedule = leaders(line, tacos.collective.all_reduce(line, "4B", chunks=1))
    >>> schedule.time_ps // 10**6     # one hop to the middle, one between NPUs 1 and 2, and one back
    3
    """
    ENGINE.check(topology, collective)
    resolved = collective if collective.resolved else collective.with_chunks(1)
    (part,) = resolved.parts
    known = {} if memory is None else memory
    meter = Meter.of(progress)

    def solve(
        network: Topology, problem: Collective, sets: _Sets, hops: int, most_ps: int = 0
    ) -> Schedule:
        provenance = {"engine": ENGINE.name, "seed": seed}
        first = sets.first[0]
        if first.leaders:
            provenance |= {"leaders": len(first.leaders), "stages": first.stages}
        if first.receivers:
            provenance["receivers"] = len(first.receivers)
        return meet_at_leaders(
            network,
            problem,
            sets.first + sets.more,
            first=len(sets.first),
            seed=seed,
            hops=hops,
            most_ps=most_ps,
            provenance=json.dumps(provenance),
            progress=meter,
        )

    if not kind_of(part).two_phases:
        # The leader is the member that starts or ends with a block.
        sets = [_Set([], [], [], only) for only in {False, *_modes(topology, 1)}]

        def spread(network: Topology, problem: Collective) -> Schedule:
            return solve(network, problem, _Sets(sets, []), _HOPS)

        return in_phases(topology, resolved, spread, progress=meter)

    def tried(sets: _Sets, hops: int, most_ps: int = 0) -> Schedule | None:
        try:
            return solve(topology, resolved, sets, hops, most_ps)
        except InfeasibleError:
            return (
                None  # leaders without hops to each other, too slow, or times that cannot be kept
            )

    if "families" not in known:
        known["families"] = _fastest(
            _families(topology, part, meter),
            lambda sets, most: tried(_Sets(sets, []), 0, most),
            known.setdefault("times", []),
        ) or [_Sets([_Set([npu], [], [], False) for npu in part.group.tolist()[:_MOST_SETS]], [])]
    hops = _HOPS_ACROSS if _reaches_across(topology) else _HOPS
    found = [(one, sets) for sets in known["families"] if (one := tried(sets, hops)) is not None]
    if not found:
        raise InfeasibleError(
            "the leaders engine found no schedule: the members do not reach each other over members and switches, "
            "or the network is so slow that times do not fit a schedule to the picosecond; use another engine"
        )
    schedule, sets = min(found, key=lambda one: one[0].time_ps)
    known["families"] = [sets]
    return schedule


def _fastest(
    families: Iterable[list[_Set]],
    tried: Callable[[list[_Set], int], Schedule | None],
    times: list[int | None],
) -> list[_Sets]:
    """Return the lists that give the fastest schedules, with the sets of others that are hardly slower.

    Sets that cross between units at other times, though more often, fill the gaps that the best ones leave. Sets of one leader are
    mixed with such sets only, since a sum that is made at one NPU can be refined.

    Args:
        families: The lists.
        tried: Gives a list's schedule; may give up beyond a time in picoseconds, if it is not 0.
        times: The times of the lists that were tried before work was ended, None for those that were given up; others are added.
    """
    met: list[tuple[int, int]] = []
    seen: list[list[_Set]] = []
    best = 0
    for sets in families:
        if sets in seen:
            continue
        seen.append(sets)
        if len(seen) > len(times):
            schedule = tried(sets, int(_HOPELESS * best))
            times.append(None if schedule is None else schedule.time_ps)
        if (time_ps := times[len(seen) - 1]) is not None:
            met.append((time_ps, len(seen) - 1))
            best = min(met)[0]
    met.sort()
    found = []
    for time_ps, i in met[:_KEPT]:
        if time_ps <= _HOPEFUL * best:
            others = [one for time, k in met if time <= _MIXED * best for one in seen[k]]
            if len(seen[i][0].leaders) == 1:
                others = [one for one in others if len(one.leaders) == 1]
            more = [one for k, one in enumerate(others) if one not in seen[i] + others[:k]]
            found.append(_Sets(seen[i], _some(more)))
    return found


def _families(topology: Topology, part: CollectivePart, meter: Meter) -> Iterator[list[_Set]]:
    """Yield lists of similar sets of leaders: the fastest in an idle network, and wider lists."""
    group = part.group
    hop, latency, straight = _hops(topology, group, max(part.size // len(group), 1), meter)
    meter.spend(_PASSES * len(group) ** 3 * Meter.CELL)
    far, near = _ways(hop), _ways(np.where(straight, hop, np.inf))
    modes = _modes(topology, len(group))
    for units, most in _units(latency):
        if len(units) > 1:
            yield from _across(topology, part, units, _ways(np.where(straight, latency, np.inf)))
        inside = latency[np.ix_(units[0], units[0])] <= most
        for choices, stages in _choices(units, inside & inside.T):
            meeting = [_meeting_ps(hop[np.ix_(one, one)], stages) for one in choices]
            found: list[tuple[float, _Set]] = []
            for ways, only_leaders in ((far, False), (near, True)):
                if only_leaders not in modes:
                    continue
                found += [
                    (
                        float(ways[:, one].min(axis=1).max() + ways[one].min(axis=0).max() + more),
                        _Set(group[one].tolist(), list(stages), [], only_leaders),
                    )
                    for one, more in zip(choices, meeting, strict=True)
                ]
            yield from _near(found)


def _across(
    topology: Topology, part: CollectivePart, units: NDArray[np.int64], far: NDArray[np.float64]
) -> Iterator[list[_Set]]:
    """Yield sets whose leaders and receivers are close to all members of their unit.

    The nearer they are, the more of them a unit needs, and the more messages cross between units. Sets whose distances
    have the same sum take equally long without load, but use the ports at different times, so a list has all of them.

    Args:
        topology: The network.
        part: The all-reduce.
        units: Rows of members.
        far: Latencies between members over links that join them.
    """
    group, between = part.group, len(units)
    inside = far[np.ix_(units[0], units[0])]
    port = np.isin(topology.link_src, group[units[0]]) & (topology.link_dst >= topology.npus)
    if not np.isfinite(inside).all() or not port.any():
        return
    crossing_ps = part.size * (between - 1) * 1e12 / topology.link_bandwidth_Bps[port].sum()
    steps = np.unique(inside)
    covers = [_covers(inside <= most) for most in steps]
    # Costs by the sum of distances: if leaders and receivers use all ports of a unit, and if only these sets use ports.
    levels: dict[float, list[tuple[float, list[_Set]]]] = {}
    spread: dict[float, list[tuple[float, list[_Set]]]] = {}
    for i, leaders in enumerate(covers):
        for j, receivers in enumerate(covers):
            waits = float(steps[i] + steps[j])
            sets = []
            for one in leaders:
                places = group[units[:, one].ravel()].tolist()
                near = sorted(receivers, key=lambda other: -len({*one} & {*other}))
                sets += [
                    _Set(places, [], group[units[:, other].ravel()].tolist(), True)
                    for other in near[:_RECEIVERS]
                ]
            crossing = len(leaders[0]) * len(receivers[0]) * crossing_ps
            levels.setdefault(waits, []).append((waits + crossing, sets))
            used = min(len({*chain(*leaders)}), len({*chain(*receivers)})) / len(inside)
            spread.setdefault(waits, []).append((waits + crossing / used, sets))
    order = sorted(spread, key=lambda waits: (min(spread[waits])[0], waits))
    for waits in order[:_LEVELS]:
        for costs in (levels[waits], spread[waits]):
            most = _CHEAP * min(costs)[0]
            yield _some([one for cost, sets in costs if cost <= most for one in sets])


def _some(sets: list[_Set]) -> list[_Set]:
    """Return at most a few dozen of the sets, evenly chosen."""
    return sets[:: -(-len(sets) // _MOST_SETS) or 1]


def _modes(topology: Topology, members: int) -> tuple[bool, ...]:
    """Return whether to try that only leaders use switches: False without other links, True for many members, or both."""
    if not _reaches_across(topology):
        return (False,)
    return (True,) if members > _MANY else (False, True)


def _reaches_across(topology: Topology) -> bool:
    """Return whether there are links between NPUs as well as switches, so that some sets have receivers."""
    joined = (topology.link_src < topology.npus) & (topology.link_dst < topology.npus)
    return bool(topology.switches and joined.any())


def _near(found: list[tuple[float, _Set]]) -> Iterator[list[_Set]]:
    """Yield the fastest sets, and wider lists: of all sets, and of those in which only leaders use switches."""
    last: list[_Set] = []
    for some in (found, [one for one in found if one[1].straight]):
        least = min((time for time, _ in some), default=np.inf)
        for limit in (1.0001, _WIDE):
            near = [one for time, one in some if time <= limit * least < np.inf]
            near = _some(near)
            if near and near != last:
                last = near
                yield near


def _ways(hop: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the times of the fastest paths between members, hop after hop."""
    far = hop.copy()
    np.fill_diagonal(far, 0)
    for k in range(len(far)):
        far = np.minimum(far, far[:, k, None] + far[None, k])
    return far


def _hops(
    topology: Topology, group: NDArray[np.int32], bytes_: int, meter: Meter
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return times and latencies of the fastest hops between members (inf: none), and whether a link joins them.

    A hop goes over a link or through switches.
    """
    leaving: list[list[tuple[int, int, int]]] = [[] for _ in range(topology.nodes)]
    columns = (
        topology.link_src,
        topology.link_dst,
        topology.link_latency_ps,
        topology.link_bandwidth_Bps,
    )
    for start, end, latency, speed in zip(*(column.tolist() for column in columns), strict=True):
        leaving[start].append((end, latency, bytes_ * 10**12 // speed))
    number = {npu: i for i, npu in enumerate(group.tolist())}
    times, latencies = (np.full((len(number),) * 2, np.inf) for _ in range(2))
    straight = np.zeros(times.shape, bool)
    for npu, i in number.items():
        straight[i, [number[end] for end, *_ in leaving[npu] if end in number]] = True
        seen = set[int]()
        looked_at = 1
        queue = [(0, 0, 0, npu)]
        while queue:
            time, latency, slowest, node = heappop(queue)
            if node in seen:
                continue
            seen.add(node)
            if node in number:
                times[i, number[node]], latencies[i, number[node]] = time, latency
            if node < topology.npus and node != npu:
                continue
            looked_at += len(leaving[node])
            for end, more, busy in leaving[node]:
                if end not in seen:
                    slower = max(slowest, busy)
                    heappush(queue, (latency + more + slower, latency + more, slower, end))
        meter.spend(2 * looked_at * Meter.STEP)
    return times, latencies, straight


def _units(latency: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.int64], float]]:
    """Yield the members as rows of equal length within some latency of each other: boxes, racks, all members."""
    n = last = len(latency)
    for most in np.unique(latency[np.isfinite(latency)]).tolist():
        near = (latency <= most) | (most >= latency.T)
        label = np.arange(n)
        while True:
            lower = np.where(near, label, n).min(axis=1)
            if (lower == label).all():
                break
            label = lower
        labels, counts = np.unique(label, return_counts=True)
        if len(labels) < last and (counts == counts[0]).all():
            last = len(labels)
            yield np.array([np.flatnonzero(label == one) for one in labels]), most


def _choices(
    units: NDArray[np.int64], joined: NDArray[np.bool_]
) -> Iterator[tuple[list[NDArray[np.int64]], tuple[int, ...]]]:
    """Yield sets of leaders at the same places of all units, and the stages in which they exchange, within units first.

    Args:
        units: Rows of members.
        joined: Which of the first unit's members have hops to each other.
    """
    between, size = units.shape
    outer = (between,) if between > 1 else ()
    yield list(units.T), outer
    if between > 2:  # the leader of any unit may add up
        yield [np.roll(places, -first) for places in units.T for first in range(between)], ()
    if joined.sum() - size > _MOST_NEIGHBOURS * size:
        return
    pairs = [[i, j] for i in range(size) for j in range(i + 1, size) if joined[i, j]]
    yield [units[:, pair].ravel() for pair in pairs], (2, *outer)
    if between > 1:
        yield [units[:, pair].ravel() for pair in pairs], (2 * between,)
    squares = [
        [i, j, k, end]
        for i, j in pairs
        for k in range(j + 1, size)
        for end in range(i + 1, size)
        if joined[i, k] and joined[j, end] and joined[k, end] and end not in (j, k)
    ]
    yield [units[:, square].ravel() for square in squares], (2, 2, *outer)
    covers = _covers(joined)
    if len(covers[0]) > 1:
        yield [units[:, cover].ravel() for cover in covers], (len(covers[0]) * between,)


def _covers(joined: NDArray[np.bool_]) -> list[list[int]]:
    """Return small sets of members that all others of a unit have hops to, as different as possible."""
    near = joined | np.eye(len(joined), dtype=bool)
    used = np.zeros(len(near))
    covers = []
    for first in range(len(near)):
        cover, left = [first], ~near[first]
        while left.any():
            gain = (near & left).sum(axis=1)
            cover.append(int(np.lexsort((used, -gain))[0]))
            left &= ~near[cover[-1]]
        used[cover] += 1
        covers.append(cover)
    least = min(map(len, covers))
    return [cover for cover in covers if len(cover) == least]


def _meeting_ps(hop: NDArray[np.float64], stages: tuple[int, ...]) -> float:
    """Return the time in which leaders with these hops exchange: stage by stage or, without stages, at the first leader."""
    if not stages:
        return float(hop[1:, 0].max(initial=0) + hop[0, 1:].max(initial=0))
    number, time, stride = np.arange(len(hop)), 0.0, 1
    for size in stages:
        alike = number - number // stride % size * stride  # the first of the group
        time += float(hop[alike[:, None] == alike].max())
        stride *= size
    return time


def _too_many(topology: Topology, part: CollectivePart) -> bool:
    """Return whether to try one chunk count only: with many members, sets with receivers take long to place."""
    return _reaches_across(topology) and kind_of(part).two_phases and len(part.group) > _MANY


def _chunk_counts(
    topology: Topology, collective: Collective, counts: tuple[int, ...], _memory: dict[str, Any]
) -> Iterable[int]:
    return counts[:1] if _too_many(topology, collective.parts[0]) else counts


def _connected(topology: Topology, group: NDArray[np.int32]) -> bool:
    """Return whether links join all members with each other over members and switches, in some direction."""
    usable = np.arange(topology.nodes) >= topology.npus
    usable[group] = True
    ends = np.stack([topology.link_src, topology.link_dst])
    ends = ends[:, usable[ends].all(axis=0)]
    label = np.arange(topology.nodes)
    while True:
        lower = label.copy()
        for a, b in (ends, ends[::-1]):
            np.minimum.at(lower, b, label[a])
        if (lower == label).all():
            return bool((label[group] == label[group[0]]).all())
        label = lower


def _obstacle(topology: Topology, collective: Collective) -> str:
    if needed := requirements.one_part(collective):
        return needed
    (part,) = collective.parts
    if needed := requirements.listed_kinds(part, lambda kind: kind.spreads and not kind.rooted):
        return needed
    few = kind_of(part).two_phases and not _reaches_across(topology)
    most = _MOST_SUMMING if few else _MOST_MEMBERS
    if not 2 <= len(part.group) <= most:
        return f"2 to {most} members, not {len(part.group)}"
    if part.size > _MOST_BYTES:
        return f"at most {format_size(_MOST_BYTES)}, not {format_size(part.size)}"
    joined = (topology.link_src < topology.npus) & (topology.link_dst < topology.npus)
    if len(part.group) < topology.npus and joined.any():
        return f"all {topology.npus} NPUs as members, or switches between all of them"
    if len(part.group) < topology.npus and not _connected(topology, part.group):
        return "members that reach each other over members and switches"
    if topology.switches and topology.forwarding != "cut_through":
        return "cut-through switches, on which no chunk waits"
    return "sums that take no time" if topology.reduce_bandwidth_Bps else ""


ENGINE = Engine(
    name="leaders",
    solve=leaders,
    obstacle=_obstacle,
    chunk_counts=_chunk_counts,
)
