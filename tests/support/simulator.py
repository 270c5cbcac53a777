"""A reference simulation: a slow event loop in plain Python, for the tests to compare with.

It reads the columns of a schedule through `tests.support.oracle`, shares no code with the library, and finds
each next start by examining all waiting legs.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

from tests.support.oracle import (
    COPY,
    READ_ACC,
    REDUCE,
    cross,
    route_links,
    sending_time,
    transfers_of,
)

NEVER = float("inf")


def waiting_lists(transfers):
    """What each read and each write waits for: sets of ("start", i) and ("write", i, end).

    The accesses of a cell (chunk and node) keep the order of the schedule: a read comes after all
    writes before it, a write after all reads before it, and a copy comes after and before all.
    """
    cells: dict[Any, list[Any]] = defaultdict(list)
    for i, t in enumerate(transfers):
        if t.reads == READ_ACC:
            for node in t.crossing.sources:
                cells[t.chunk, node].append((t.starts[0], 1, ("start", i), None))
        for end, node in enumerate(t.crossing.destinations):
            cells[t.chunk, node].append((t.arrivals[end], 0, ("write", i, end), t.op))
    waits: dict[Any, set[Any]] = defaultdict(set)
    for accesses in cells.values():
        accesses.sort(key=lambda a: a[:2])
        for k, (_, reads, what, op) in enumerate(accesses):
            for _, read_before, before, op_before in accesses[:k]:
                if reads and read_before:
                    continue
                if not reads and not read_before and COPY not in (op, op_before):
                    continue
                waits[what].add(before)
    return waits


def transmission(work, begin, windows):
    """Return when `work` picoseconds of sending from `begin` on end; windows are (from, to, factor)."""
    left, now = Fraction(work), begin
    edges = sorted({e for a, b, _ in windows for e in (a, b) if e > begin and e != NEVER})
    for edge in [*edges, NEVER]:
        speed = Fraction(1)
        for a, b, factor in windows:
            if a <= now < b:
                speed = Fraction(0) if factor == NEVER else speed / Fraction(factor)
        if speed and (edge == NEVER or now + left / speed <= edge):
            done = now + left / speed
            return -(-done.numerator // done.denominator)
        if edge == NEVER:
            return None
        left -= (edge - now) * speed
        now = edge
    return None


def run(schedule, topology=None, *, timing="first-come", congestion=True, faults=None, late=None):
    """Return the starts per transfer and leg, and when each write took effect.

    `faults` maps a link to its windows (from, to, factor); `late` an NPU to its first start.
    """
    topology, faults, late = topology or schedule.topology, faults or {}, late or {}
    transfers = transfers_of(schedule)
    waits = waiting_lists(transfers)
    sizes, paths = schedule.collective.chunk_bytes().tolist(), route_links(schedule.routes)
    lanes = [
        int(schedule.lane_route[lane])
        for lane in range(len(schedule.lane_route))
        for _ in range(schedule.lane_begin[lane], schedule.lane_begin[lane + 1])
    ]
    crossings = [
        cross(topology, int(schedule.routes.kinds[r]), paths[r], sizes[t.chunk])
        for r, t in zip(lanes, transfers, strict=True)
    ]
    # Priorities: by the schedule's starts, then by number.
    rank = {
        i: k for k, (_, i) in enumerate(sorted((t.starts[0], i) for i, t in enumerate(transfers)))
    }
    queues: dict[int, list[tuple[int, int]]] = defaultdict(list)
    if timing == "order":
        # On a link by the starts of the legs, then by when they reach it.
        legs = [
            (t.starts[leg], enter, rank[i], i, leg, link)
            for i, t in enumerate(transfers)
            for link, leg, enter, _ in crossings[i].windows
        ]
        for _, _, _, i, leg, link in sorted(legs):
            queues[link].append((i, leg))
    starts = [[-1] * len(c.leg_ends) for c in crossings]
    placed: dict[tuple[int, int], int] = {}
    done: set[Any] = set()
    ready: dict[tuple[int, int], int] = {}
    here = {(i, 0) for i in range(len(transfers))}  # legs whose chunk is at their first node
    held: dict[tuple[int, int], int] = {}  # writes that have arrived
    arrivals: list[tuple[int, int, int, int]] = []  # (when, transfer, leg, end)
    free: dict[int, int] = defaultdict(int)
    now = 0

    def settle():
        """Do everything that becomes possible at this moment."""
        changed = True
        while changed:
            changed = False
            for i, end in list(held):
                if waits["write", i, end] <= done:
                    placed[i, end] = now
                    del held[i, end]
                    done.add(("write", i, end))
                    changed = True
        for i, leg in list(here):
            if leg == 0 and not waits["start", i] <= done:
                continue
            mine = [link for link, at, _, _ in crossings[i].windows if at == leg]
            if timing == "order" and any(queues[link][0] != (i, leg) for link in mine):
                continue
            here.remove((i, leg))
            since = now
            if leg == 0:
                since = max([now, *(late.get(n, 0) for n in crossings[i].sources)])
            if timing == "schedule":
                since = max(since, transfers[i].starts[leg])
            ready[i, leg] = since

    settle()
    while ready or arrivals:
        candidates = []
        for (i, leg), since in ready.items():
            windows = [w for w in crossings[i].windows if w[1] == leg]
            when = since
            if congestion and timing != "schedule":
                when = max([since, now, *(free[link] - enter for link, _, enter, _ in windows)])
            candidates.append((when, since, rank[i], leg, i, windows))
        chosen = min(candidates, default=None)
        if arrivals and (chosen is None or min(arrivals)[0] <= chosen[0]):
            now = min(arrivals)[0]
            for event in [a for a in arrivals if a[0] == now]:
                arrivals.remove(event)
                _, i, leg, end = event
                if leg + 1 < len(starts[i]):
                    here.add((i, leg + 1))
                else:
                    held[i, end] = now
            settle()
            continue
        assert chosen is not None
        now, _, _, leg, i, windows = chosen
        del ready[i, leg]
        starts[i][leg] = now
        delays = {}
        for link, _, enter, leave in windows:
            blocking = topology.link_model == "blocking"
            work = leave - enter - (int(topology.link_latency_ps[link]) if blocking else 0)
            end = transmission(work, now + enter, faults.get(link, []))
            if end is None:
                raise ValueError("never")
            delays[link] = end - (now + enter) - work
            free[link] = now + leave + delays[link]
            if timing == "order":
                queues[link].pop(0)
        done.add(("start", i)) if leg == 0 else None
        last = leg + 1 == len(starts[i])
        ends = crossings[i].arrivals if last else [crossings[i].leg_ends[leg]]
        rate = topology.reduce_bandwidth_Bps
        extra = (
            sending_time(sizes[transfers[i].chunk], rate)
            if last and rate and transfers[i].op == REDUCE
            else 0
        )
        for end, time in enumerate(ends):
            on_the_way = delays
            if last and len(ends) > 1:
                on_the_way = {}
                node = crossings[i].destinations[end]
                for link in reversed(paths[lanes[i]]):
                    if int(topology.link_dst[link]) == node:
                        on_the_way[link] = delays[link]
                        node = int(topology.link_src[link])
            arrivals.append((now + time + max(on_the_way.values()) + extra, i, leg, end))
        settle()
    return starts, placed
