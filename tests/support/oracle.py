"""A reference for the meaning of schedules, in slow, plain Python, for the tests to compare with.

`examine` is a second verifier and `earliest_starts` a second `retime`. Both read only the columns
of the data classes. They share no code with the library: routes are walked here, times computed
here in exact integers, values followed as multisets of contributions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

PATH, SPREAD = 0, 3
COPY, REDUCE = 0, 1
READ_ACC = 1
STARTS = -1  # instead of an end: a transfer starts, it does not arrive


@dataclass
class Crossing:
    """How a chunk of some size crosses a route; times count from the start of their leg."""

    sources: list[int]
    destinations: list[int]
    windows: list[tuple[int, int, int, int]]  # (link, leg, entered at, left at)
    arrivals: list[int]  # per destination, from the start of the last leg
    leg_ends: list[int]


def sending_time(size: int, bandwidth: int) -> int:
    """Picoseconds that `size` bytes take at `bandwidth` bytes per second, rounded up."""
    return -(-size * 10**12 // bandwidth)


def shares(topology: Any, kind: int, links: list[int]) -> list[Fraction]:
    """The share of a chunk that each link of a route carries: a spread route divides it evenly over its paths."""
    if kind != SPREAD:
        return [Fraction(1)] * len(links)
    src, dst = topology.link_src.tolist(), topology.link_dst.tolist()
    end, found = dst[links[-1]], []

    def follow(path: list[int]) -> None:
        if dst[path[-1]] == end:
            found.append(path)
        for link in links:
            if src[link] == dst[path[-1]]:
                follow([*path, link])

    for link in links:
        if src[link] == src[links[0]]:
            follow([link])
    return [Fraction(sum(link in path for path in found), len(found)) for link in links]


def cross(topology: Any, kind: int, links: list[int], size: int) -> Crossing:
    """Follow a chunk along a route, link by link."""
    src, dst = topology.link_src.tolist(), topology.link_dst.tolist()
    latency = topology.link_latency_ps.tolist()
    bandwidth = topology.link_bandwidth_Bps.tolist()
    whole = topology.forwarding == "store_and_forward"
    leg, leg_ends, windows = 0, [0], []
    # Per node: when the head of its last input arrives, the slowest link so far, when all has arrived.
    head: dict[int, int] = defaultdict(int)
    slow: dict[int, int] = defaultdict(int)
    arrived: dict[int, int] = defaultdict(int)
    share = shares(topology, kind, links)
    for i, link in enumerate(links):
        here, there = src[link], dst[link]
        if kind == PATH and i > 0 and (here < topology.npus or whole):
            leg, head, slow, arrived = leg + 1, defaultdict(int), defaultdict(int), defaultdict(int)
            leg_ends.append(0)
        send = sending_time(ceil(size * share[i]), bandwidth[link])
        enter = arrived[here] if whole else head[here]
        slowest = send if whole else max(send, slow[here])
        busy = send + (latency[link] if topology.link_model == "blocking" else 0)
        windows.append((link, leg, enter, enter + busy))
        head[there] = max(head[there], enter + latency[link])
        slow[there] = max(slow[there], slowest)
        arrived[there] = max(arrived[there], enter + latency[link] + slowest)
        if kind != SPREAD or there == dst[links[-1]]:
            leg_ends[leg] = max(leg_ends[leg], arrived[there])
    if kind == PATH:
        sources, destinations = [src[links[0]]], [dst[links[-1]]]
    else:
        entered, left = {dst[link] for link in links}, {src[link] for link in links}
        sources = list(dict.fromkeys(src[link] for link in links if src[link] not in entered))
        destinations = list(dict.fromkeys(dst[link] for link in links if dst[link] not in left))
    arrivals = [arrived[node] for node in destinations]
    return Crossing(sources, destinations, windows, arrivals, leg_ends)


def route_links(routes: Any) -> list[list[int]]:
    """The links of every route."""
    links = routes.links.tolist()
    return [links[a:b] for a, b in pairwise(routes.link_begin.tolist())]


@dataclass
class Transfer:
    """One stored transfer with everything that follows from it."""

    chunk: int
    op: int
    reads: int
    starts: list[int]  # per leg
    crossing: Crossing
    arrivals: list[int]  # per destination


def transfers_of(schedule: Any) -> list[Transfer]:
    """The rows of a packed schedule, in the order of their ids."""
    topology, routes = schedule.topology, schedule.routes
    sizes, paths = schedule.collective.chunk_bytes().tolist(), route_links(routes)
    starts, chunks = schedule.start.tolist(), schedule.chunk.tolist()
    found: list[Transfer] = []
    at = 0  # where the lane's starts begin
    for lane, (first, last) in enumerate(pairwise(schedule.lane_begin.tolist())):
        route, op = int(schedule.lane_route[lane]), int(schedule.lane_op[lane])
        for chunk in chunks[first:last]:
            crossing = cross(topology, int(routes.kinds[route]), paths[route], sizes[chunk])
            row, rows = len(found) - first, last - first
            mine = [
                starts[at + leg * rows + row] * schedule.quantum_ps
                for leg in range(len(crossing.leg_ends))
            ]
            rate = topology.reduce_bandwidth_Bps
            extra = sending_time(sizes[chunk], rate) if op == REDUCE and rate else 0
            arrivals = [mine[-1] + arrival + extra for arrival in crossing.arrivals]
            found.append(
                Transfer(chunk, op, int(schedule.lane_reads[lane]), mine, crossing, arrivals)
            )
        if last > first:
            at += (last - first) * len(found[-1].starts)
    return found


def examine(schedule: Any, *, allow_unneeded: bool = False) -> set[tuple[Any, ...]]:
    """Everything that is wrong with a packed schedule, as (rule, …) rows."""
    transfers = transfers_of(schedule)
    findings = _capacity(transfers) | _legs(transfers)
    for chunk in range(schedule.collective.chunks):
        mine = [(i, t) for i, t in enumerate(transfers) if t.chunk == chunk]
        findings |= _values(schedule.collective, chunk, mine, allow_unneeded)
    return findings


def rules(findings: set[tuple[Any, ...]]) -> set[str]:
    """Which rules are broken."""
    return {rule for rule, *_ in findings}


def _capacity(transfers: list[Transfer]) -> set[tuple[Any, ...]]:
    taken: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for i, t in enumerate(transfers):
        for link, leg, enter, leave in t.crossing.windows:
            taken[link].append((t.starts[leg] + enter, t.starts[leg] + leave, i))
    return {
        ("capacity", link, *sorted((a[2], b[2])))
        for link, windows in taken.items()
        for k, a in enumerate(windows)
        for b in windows[:k]
        if a[0] < b[1] and b[0] < a[1]
    }


def _legs(transfers: list[Transfer]) -> set[tuple[Any, ...]]:
    return {
        ("causality", i, leg)
        for i, t in enumerate(transfers)
        for leg in range(1, len(t.starts))
        if t.starts[leg] < t.starts[leg - 1] + t.crossing.leg_ends[leg - 1]
    }


_STARTS = 2  # after the arrivals of the same moment


def _values(
    collective: Any, chunk: int, mine: list[tuple[int, Transfer]], allow_unneeded: bool
) -> set[tuple[Any, ...]]:
    findings: set[tuple[Any, ...]] = set()
    sums = collective.reduces(chunk)
    # Replicas are one contribution, so that adding a copy shows as two of it.
    own = {npu: Counter([npu if sums else "value"]) for npu in collective.inputs(chunk)}
    complete = Counter(own.keys()) if sums else Counter(["value"])
    acc = dict(own)
    # Arrivals at t are visible to starts at t; of arrivals at one moment, copies come before sums.
    events = []
    for i, t in mine:
        events.append((t.starts[0], _STARTS, i, 0, t))
        rank = 1 if t.op == REDUCE else 0
        events += [(when, rank, i, end, t) for end, when in enumerate(t.arrivals)]
    events.sort(key=lambda event: event[:4])
    carried: dict[int, Counter[Any]] = defaultdict(Counter)  # broken legs may arrive unstarted
    changed = set()  # deliveries that changed the value
    for _, rank, i, end, t in events:
        if rank == _STARTS:
            held = acc if t.reads == READ_ACC else own
            for node in t.crossing.sources:
                if node not in held:
                    findings.add(("causality", i, node))
                carried[i] += held.get(node, Counter())
            continue
        node = t.crossing.destinations[end]
        value = carried[i] + (acc.get(node, Counter()) if t.op == REDUCE else Counter())
        if t.op == REDUCE or acc.get(node) != value:
            changed.add((i, end))
        acc[node] = value
    for npu in collective.outputs(chunk):
        if npu not in acc:
            findings.add(("postcondition", chunk, npu))
        elif acc[npu] != complete:
            findings.add(("contribution", chunk, npu))
    if not allow_unneeded:
        findings |= _unneeded(set(collective.outputs(chunk)), mine, events, changed)
    return findings


def _unneeded(
    wanted: set[int], mine: list[tuple[int, Transfer]], events: list[Any], changed: set[Any]
) -> set[tuple[Any, ...]]:
    """Go backwards in time: a delivery is needed if it changes a value that is read or wanted later."""
    useful: set[int] = set()
    for _, rank, i, end, t in reversed(events):
        if rank == _STARTS:
            if i in useful and t.reads == READ_ACC:
                wanted |= set(t.crossing.sources)
        elif (i, end) in changed and t.crossing.destinations[end] in wanted:
            useful.add(i)
            if t.op == COPY:
                wanted.discard(t.crossing.destinations[end])
    return {("unneeded", i) for i, _ in mine if i not in useful}


def earliest_starts(
    collective: Any, routes: Any, order: list[tuple[int, int, int, int, int]]
) -> list[list[int]]:
    """Return the starts per transfer and leg of an order, given as rows (route, chunk, step, op, reads).

    The rows must be sorted by step. Each next start is found by examining every waiting leg.
    """
    topology, paths, sizes = routes.topology, route_links(routes), collective.chunk_bytes().tolist()
    crossings = [cross(topology, int(routes.kinds[r]), paths[r], sizes[c]) for r, c, *_ in order]
    gangs = _gangs(order, crossings)
    # What a gang waits for: ("start" or "arrival", transfer, end).
    waits: dict[int, set[tuple[str, int, int]]] = {gang: set() for gang in gangs.values()}
    for i in range(len(order)):
        waits[gangs[i]] |= _waits(i, order, crossings)
    starts = [[-1] * len(crossing.leg_ends) for crossing in crossings]
    free: dict[int, int] = defaultdict(int)
    ready = {(gang, 0): 0 for gang in waits if not waits[gang]}
    arrivals: list[tuple[int, int, int, int]] = []  # (when, transfer, leg, end)

    def met(what: tuple[str, int, int], now: int) -> None:
        for gang, missing in waits.items():
            if what in missing:
                missing.remove(what)
                if not missing:
                    ready[gang, 0] = now

    while ready or arrivals:
        candidates = []
        for (item, leg), since in ready.items():
            members = [i for i in gangs if gangs[i] == item] if leg == 0 else [item]
            rate = topology.reduce_bandwidth_Bps
            adding = [
                sending_time(sizes[order[i][1]], rate) if order[i][3] == REDUCE and rate else 0
                for i in members
            ]
            windows, delays = _one_after_the_other([crossings[i] for i in members], leg, adding)
            when = max([since, *(free[link] - enter for link, enter, _ in windows)])
            candidates.append((when, since, item, leg, members, windows, delays))
        chosen = min(candidates, default=None)
        if arrivals and (chosen is None or min(arrivals)[0] <= chosen[0]):
            now, i, leg, end = min(arrivals)
            arrivals.remove((now, i, leg, end))
            if end == STARTS:
                met(("start", i, 0), now)
            elif leg + 1 < len(starts[i]):
                ready[i, leg + 1] = now
            else:
                met(("arrival", i, end), now)
            continue
        assert chosen is not None
        begin, _, item, leg, members, windows, delays = chosen
        del ready[item, leg]
        for link, _, leave in windows:
            free[link] = max(free[link], begin + leave)
        for i, delay in zip(members, delays, strict=True):
            starts[i][leg] = now = begin + delay
            _, chunk, _, op, _ = order[i]
            if leg + 1 < len(starts[i]):
                arrivals.append((now + crossings[i].leg_ends[leg], i, leg, 0))
                ends = []
            else:
                ends = crossings[i].arrivals
            rate = topology.reduce_bandwidth_Bps
            extra = sending_time(sizes[chunk], rate) if op == REDUCE and rate else 0
            arrivals += [(now + time + extra, i, leg, end) for end, time in enumerate(ends)]
            if leg == 0 and delay:
                arrivals.append((now, i, leg, STARTS))
            elif leg == 0:
                met(("start", i, 0), now)
    return starts


def _one_after_the_other(
    crossings: list[Crossing], leg: int, adding: list[int]
) -> tuple[list[Any], list[int]]:
    """Windows (link, enter, leave) of a gang, and by how much each member starts after the first.

    A member that shares a link with an earlier one starts when that one has left the link. Members whose
    head reaches its last link first come first, and those whose sum would arrive before it may are
    delayed. If four attempts fail, the order is reversed. `adding` is the time of each member's reduction.
    """
    own = [[(link, *w) for link, at, *w in crossing.windows if at == leg] for crossing in crossings]
    everyone = range(len(own))
    for attempt in range(8):
        if attempt % 4 == 0:
            least = [0] * len(own)
        sign = 1 if attempt < 4 else -1
        windows: list[tuple[int, int, int]] = []
        delays = [0] * len(own)
        for i in sorted(everyone, key=lambda i: sign * max(w[1] for w in own[i])):
            until = [(t, e) for link, e, _ in own[i] for other, _, t in windows if other == link]
            delays[i] = max([least[i], *(t - enter for t, enter in until)])
            windows += [(link, a + delays[i], b + delays[i]) for link, a, b in own[i]]
        early = False
        for w in everyone:
            arrivals = zip(crossings[w].arrivals, crossings[w].destinations, strict=True)
            for time, end in arrivals:
                whole = sum(crossings[w].leg_ends[:-1]) + time + adding[w]
                last = [delays[r] for r in everyone if end in crossings[r].sources]
                if last and delays[w] + whole <= max(last):
                    least[w] = max(least[w], max(last) + 1 - whole)
                    early = True
        if not early:
            break
    return windows, delays


def _waits(i: int, order: list[Any], crossings: list[Crossing]) -> set[tuple[str, int, int]]:
    _, chunk, step, op, reads = order[i]
    before = [j for j, row in enumerate(order) if row[1] == chunk and row[2] < step]

    def writers(node: int) -> set[tuple[str, int, int]]:
        ends = ((j, e, n) for j in before for e, n in enumerate(crossings[j].destinations))
        return {("arrival", j, e) for j, e, n in ends if n == node}

    waits = set()
    for node in crossings[i].sources if reads == READ_ACC else []:
        waits |= writers(node)
    for node in crossings[i].destinations:
        waits |= {
            ("start", j, 0)
            for j in before
            if order[j][4] == READ_ACC and node in crossings[j].sources
        }
        if op == COPY or any(order[j][3] == COPY for _, j, _ in writers(node)):
            waits |= writers(node)
    return waits


def _gangs(order: list[Any], crossings: list[Crossing]) -> dict[int, int]:
    """Map each transfer to the first of those that must start together with it."""
    gang = {i: i for i in range(len(order))}
    for i, writer in enumerate(order):
        for j, reader in enumerate(order):
            together = writer[1:3] == reader[1:3] and reader[4] == READ_ACC
            if together and set(crossings[i].destinations) & set(crossings[j].sources):
                low, high = sorted((gang[i], gang[j]))
                gang = {k: low if g == high else g for k, g in gang.items()}
    return gang
