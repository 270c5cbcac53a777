"""A reference for shared links and for programs: slow event loops in plain Python, with fractions.

Rates are recomputed at every event by progressive filling over all messages, as exact fractions; only
ends are rounded up, to whole picoseconds. No code is shared with the library: routes are walked by
`tests.support.oracle`, and what a schedule's transfers wait for comes from `tests.support.simulator`.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from math import ceil
from typing import Any

from tacos.program import STEP_OPS
from tests.support.oracle import REDUCE, cross, route_links, sending_time, shares, transfers_of
from tests.support.simulator import NEVER, waiting_lists

PS = 10**12


def max_min(
    flows: dict[Any, dict[int, Fraction]], capacity: dict[int, Fraction]
) -> dict[Any, Fraction]:
    """The max-min fair rate of every flow, given as its shares of its links, by progressive filling."""
    left = dict(capacity)
    rates: dict[Any, Fraction] = {}
    while len(rates) < len(flows):
        users: dict[int, list[Any]] = defaultdict(list)
        for flow, links in flows.items():
            if flow not in rates:
                for link in links:
                    users[link].append(flow)
        rate, link = min(
            (left[link] / sum(flows[flow][link] for flow in them), link)
            for link, them in users.items()
        )
        for flow in users[link]:
            rates[flow] = rate
            for other, share in flows[flow].items():
                left[other] -= share * rate
    return rates


class Leg:
    """A part of a route that is reserved at once: its links, latencies, and how a chunk occupies them."""

    def __init__(self, topology, kind, links, size, number):
        whole, empty = (cross(topology, kind, links, s) for s in (size, 0))
        self.windows = [(w[0], w[2]) for w in whole.windows if w[1] == number]
        of_link = dict(zip(links, shares(topology, kind, links), strict=True))
        self.shares = {link: of_link[link] for link, _ in self.windows}
        last = number + 1 == len(whole.leg_ends)
        ends = [c.arrivals if last else [c.leg_ends[number]] for c in (whole, empty)]
        slowest = max(
            sending_time(ceil(size * share), int(topology.link_bandwidth_Bps[x]))
            for x, share in self.shares.items()
        )
        tree = kind != 0 and topology.forwarding == "store_and_forward"
        self.latencies = [
            max(alone, all_ - slowest) if tree else alone for all_, alone in zip(*ends, strict=True)
        ]
        blocking = topology.link_model == "blocking"
        alpha = [int(topology.link_latency_ps[link]) for link in self.shares]
        self.holds = alpha if blocking else [0] * len(alpha)


class Network:
    """Messages in flight. `submit` lets one start; the three `on_` functions are callbacks."""

    def __init__(self, topology, faults=None, limit=0):
        self.topology, self.faults, self.limit = topology, faults or {}, limit
        self.now = 0
        self.messages: dict[Any, tuple[Any, list[Leg], int, tuple[int, int]]] = {}
        self.queue: dict[Any, list[Any]] = defaultdict(list)  # per connection and leg
        self.busy: dict[Any, Any] = {}  # per connection and leg: the message that holds it
        self.flows: dict[Any, list[Any]] = {}  # (connection, leg) -> [bytes left, started]
        self.events: list[tuple[int, int, str, Any]] = []
        self.waiting: list[tuple[int, Any]] = []
        self.leaving: dict[int, int] = defaultdict(int)
        self.coming: dict[int, int] = defaultdict(int)
        self.intervals: list[tuple[int, int, int, Any]] = []
        self.on_start: Any = None  # (message, leg)
        self.on_sent: Any = None  # (message, leg)
        self.on_arrival: Any = None  # (message, end)
        self.delay: Any = None  # (message, leg, end)

    def add(self, message, connection, kind, links, size, ends=(0, 0)):
        """Announce a message; it does not start yet."""
        count = len(cross(self.topology, kind, links, size).leg_ends)
        legs = [Leg(self.topology, kind, links, size, n) for n in range(count)]
        self.messages[message] = (connection, legs, size, ends)

    def submit(self, message, time):
        self.at(max(time, self.now), "ready", message)

    def at(self, time, what, which):
        self.events.append((time, len(self.events), what, which))

    def capacity(self, link):
        speed = Fraction(int(self.topology.link_bandwidth_Bps[link]))
        for begin, end, factor in self.faults.get(link, []):
            if begin <= self.now < end:
                speed = Fraction(0) if factor == NEVER else speed / Fraction(factor)
        return speed

    def enter(self, server, message):
        self.queue[server].append(message)
        self.serve(server)

    def serve(self, server):
        if server in self.busy or not self.queue[server]:
            return
        message = self.queue[server].pop(0)
        self.busy[server] = message
        self.flows[server] = [Fraction(self.messages[message][2]), self.now]
        self.on_start(message, server[1])

    def sent(self, server):
        message, started = self.busy[server], self.flows.pop(server)[1]
        _, legs, _, (src, dst) = self.messages[message]
        leg = legs[server[1]]
        for (link, enter), hold in zip(leg.windows, leg.holds, strict=True):
            self.intervals.append((started + enter, self.now + enter + hold, link, message))
        for end, latency in enumerate(leg.latencies):
            late = self.delay(message, server[1], end)
            what = (message, server[1], end)
            self.at(self.now + latency + late, "arrived", what)
        if server[1] == 0:
            self.leaving[src] -= 1
        if server[1] + 1 == len(legs):
            self.coming[dst] -= 1
        self.at(self.now + max(leg.holds), "free", server)
        self.on_sent(message, server[1])

    def happen(self, what, which):
        if what == "ready":
            self.waiting.append((self.now, which))
        elif what == "free":
            del self.busy[which]
            self.serve(which)
        else:
            message, leg, end = which
            connection, legs, _, _ = self.messages[message]
            if leg + 1 < len(legs):
                self.enter((connection, leg + 1), message)
            else:
                self.on_arrival(message, end)

    def settle(self):
        """Do everything that becomes possible at this moment."""
        while True:
            due = sorted(e for e in self.events if e[0] <= self.now)
            empty = [s for s, (left, _) in self.flows.items() if left == 0]
            if due:
                self.events = [e for e in self.events if e[0] > self.now]
                for _, _, what, which in due:
                    self.happen(what, which)
            elif empty:
                for server in empty:
                    self.sent(server)
            else:
                before = len(self.waiting)
                for entry in sorted(self.waiting):
                    connection, _, _, (src, dst) = self.messages[entry[1]]
                    full = self.leaving[src] >= self.limit or self.coming[dst] >= self.limit
                    if self.limit and full:
                        continue
                    self.leaving[src] += 1
                    self.coming[dst] += 1
                    self.waiting.remove(entry)
                    self.enter((connection, 0), entry[1])
                if len(self.waiting) == before:
                    return

    def run(self):
        while True:
            self.settle()
            links = {s: self.messages[self.busy[s]][1][s[1]].shares for s in self.flows}
            used = {link for those in links.values() for link in those}
            rates = max_min(links, {link: self.capacity(link) for link in used})
            ends = {
                s: -(-(left * PS / rates[s] + self.now) // 1)
                for s, (left, _) in self.flows.items()
                if rates[s]
            }
            edges = [e for w in self.faults.values() for a, b, _ in w for e in (a, b)]
            edges = [e for e in edges if e > self.now and e != NEVER] if self.flows else []
            times = [*ends.values(), *(e[0] for e in self.events), *edges]
            if not times:
                return
            then = int(min(times))
            for server, flow in self.flows.items():
                flow[0] -= rates[server] * (then - self.now) / PS
            self.now = then
            for server in [s for s, end in ends.items() if end == then]:
                self.sent(server)


def run_schedule(schedule, topology=None, *, faults=None, late=None):
    """Return when each write took effect, and the intervals (begin, end, link, transfer)."""
    topology, late = topology or schedule.topology, late or {}
    network = Network(topology, faults)
    transfers = transfers_of(schedule)
    waits = waiting_lists(transfers)
    sizes, paths = schedule.collective.chunk_bytes().tolist(), route_links(schedule.routes)
    done: set[Any] = set()
    placed: dict[tuple[int, int], int] = {}
    held: list[tuple[int, int]] = []
    lines: dict[Any, list[int]] = defaultdict(list)  # per connection, in the order of starts
    lane = [
        n
        for n in range(len(schedule.lane_route))
        for _ in range(schedule.lane_begin[n], schedule.lane_begin[n + 1])
    ]
    route = [int(schedule.lane_route[n]) for n in lane]
    for i in sorted(range(len(transfers)), key=lambda i: (transfers[i].starts[0], i)):
        kind, links = int(schedule.routes.kinds[route[i]]), paths[route[i]]
        network.add(i, (kind, *links), kind, links, sizes[transfers[i].chunk])
        lines[kind, *links].append(i)
    offered: set[int] = set()

    def look():
        changed = True
        while changed:
            changed = False
            for i, end in list(held):
                if waits["write", i, end] <= done:
                    held.remove((i, end))
                    placed[i, end] = network.now
                    done.add(("write", i, end))
                    changed = True
        for line in lines.values():
            if line and line[0] not in offered and waits["start", line[0]] <= done:
                offered.add(line[0])
                sources = transfers[line[0]].crossing.sources
                network.submit(line[0], max(late.get(node, 0) for node in sources))

    def on_start(i, leg):
        if leg == 0:
            done.add(("start", i))
            look()

    def on_sent(i, leg):
        if leg == 0:
            lines[network.messages[i][0]].remove(i)
            look()

    def on_arrival(i, end):
        held.append((i, end))
        look()

    def delay(i, leg, end):
        rate, last = topology.reduce_bandwidth_Bps, leg + 1 == len(network.messages[i][1])
        reduces = last and rate and transfers[i].op == REDUCE
        return sending_time(sizes[transfers[i].chunk], rate) if reduces else 0

    network.on_start, network.on_sent = on_start, on_sent
    network.on_arrival, network.delay = on_arrival, delay
    look()
    network.run()
    assert len(placed) == sum(len(t.arrivals) for t in transfers)
    return placed, network.intervals


# --- programs -----------------------------------------------------------------------------------

SENDING = {"send", "recv_send", "recv_reduce_forward", "recv_reduce_send"}
RECEIVING = {"recv", "recv_send", "recv_reduce", "recv_reduce_forward", "recv_reduce_send"}
PULLING = {"get", "get_reduce"}
REDUCING = {"reduce", "recv_reduce", "recv_reduce_forward", "recv_reduce_send", "get_reduce"}
MESSAGES = SENDING | PULLING | {"put", "signal"}


class Steps:
    """What a program's steps wait for, in which order they can run, and how many bytes they move."""

    def __init__(self, program, chunk_bytes):
        self.op = [STEP_OPS[op] for op in program.op]
        self.thread = [
            t
            for t in range(program.threads)
            for _ in range(program.thread_begin[t], program.thread_begin[t + 1])
        ]
        self.rank = [int(program.thread_rank[t]) for t in self.thread]
        self.complete: list[set[int]] = []  # steps that must be complete
        self.arrived: list[set[int]] = []  # messages that must have arrived
        for i, op in enumerate(self.op):
            before = set(program.dep[program.dep_begin[i] : program.dep_begin[i + 1]].tolist())
            if i > program.thread_begin[self.thread[i]]:
                before.add(i - 1)
            self.complete.append(before)
            comes = op in RECEIVING or op == "wait"
            self.arrived.append({int(program.comes_from[i])} if comes else set())
        self.order = self.walk()
        self.bytes = self.follow(program, chunk_bytes)

    def walk(self):
        """Return the steps in first-in, first-out order, from those that wait for nothing."""
        waits = [len(c) + len(a) for c, a in zip(self.complete, self.arrived, strict=True)]
        order = [i for i, n in enumerate(waits) if n == 0]
        for step in order:
            for after in range(len(waits)):
                for before in (self.complete[after], self.arrived[after]):
                    if step in before:
                        waits[after] -= 1
                        if waits[after] == 0:
                            order.append(after)
        return order

    def follow(self, program, chunk_bytes):
        slots: dict[tuple[int, str, int], int] = {}

        def place(rank, buffer, slot):
            if program.in_place and buffer == 0:
                chunk, outputs = program.input_chunks(rank)[slot], program.output_chunks(rank)
                found = [k for k, c in enumerate(outputs.tolist()) if c == chunk]
                if found:
                    return (rank, 1, found[0])
            return (rank, buffer, slot)

        for rank in range(program.ranks):
            for slot, chunk in enumerate(program.input_chunks(rank).tolist()):
                slots[place(rank, 0, slot)] = chunk
        carried: dict[int, list[int]] = {}
        for i in self.order:
            op, rank, peer = self.op[i], self.rank[i], int(program.peer[i])
            chunks: list[int] = []
            for k in range(int(program.count[i]) if op not in ("nop", "signal", "wait") else 0):
                if op in RECEIVING:
                    chunk = carried[int(program.comes_from[i])][k]
                else:
                    where = peer if op in PULLING else rank
                    at = place(where, int(program.src_buffer[i]), int(program.src_slot[i]) + k)
                    chunk = slots[at]
                if program.dst_slot[i] >= 0:
                    where = peer if op == "put" else rank
                    at = place(where, int(program.dst_buffer[i]), int(program.dst_slot[i]) + k)
                    slots[at] = chunk
                chunks.append(chunk)
            carried[i] = chunks
        return [sum(chunk_bytes[c] for c in carried.get(i, [])) for i in range(len(self.op))]


def run_program(program, topology, chunk_bytes, path, *, timing, order=None, limit=0):
    """Return when each step is complete, and the intervals; `path(thread, src, dst)` returns links."""
    steps = Steps(program, list(chunk_bytes))
    position = {step: k for k, step in enumerate(steps.order)}
    if order is not None:
        position = {s: k for k, s in enumerate(sorted(position, key=lambda s: (order[s], s)))}
    network: Any = Served(topology, timing)
    if timing == "shared":
        network = Network(topology, limit=limit)
    done: dict[int, int] = {}
    arrived: dict[int, int] = {}
    begun: set[int] = set()
    rate = topology.reduce_bandwidth_Bps
    step_at = {}
    for step in sorted(position, key=position.get):
        op = steps.op[step]
        if op not in MESSAGES:
            continue
        peer = int(program.thread_send_peer[steps.thread[step]])
        other = peer if op in SENDING else int(program.peer[step])
        ends = (steps.rank[step], other)
        src, dst = ends[::-1] if op in PULLING else ends
        kind, links = path(steps.thread[step], src, dst)
        step_at[position[step]] = step
        connection = (steps.thread[step], src, dst)
        network.add(position[step], connection, kind, links, steps.bytes[step], (src, dst))

    def reduce_time(step):
        return sending_time(steps.bytes[step], rate) if rate and steps.op[step] in REDUCING else 0

    def look():
        for step in range(len(steps.op)):
            if step in begun or not steps.complete[step] <= done.keys():
                continue
            if not steps.arrived[step] <= arrived.keys():
                continue
            begun.add(step)
            since = max(
                [0, *(done[s] for s in steps.complete[step])]
                + [arrived[s] for s in steps.arrived[step]]
            )
            if steps.op[step] in MESSAGES:
                first = 0 if steps.op[step] in PULLING else reduce_time(step)
                network.submit(position[step], since + first)
            else:
                done[step] = since + reduce_time(step)
                return look()
        return None

    def on_sent(message, leg, time=None):
        if leg == 0 and steps.op[step_at[message]] not in PULLING:
            done[step_at[message]] = network.now if time is None else time
            look()

    def on_arrival(message, end):
        step = step_at[message]
        arrived[step] = network.now
        if steps.op[step] in PULLING:
            done[step] = network.now + reduce_time(step)
        look()

    network.on_start = lambda message, leg: None
    network.on_sent, network.on_arrival = on_sent, on_arrival
    network.delay = lambda message, leg, end: 0
    look()
    network.run()
    return done, [(a, b, link, step_at[m]) for a, b, link, m in network.intervals]


class Served:
    """Links that serve one message at a time: by (ready time, position), or by position alone."""

    def __init__(self, topology, timing):
        self.topology, self.in_order = topology, timing == "order"
        self.now = 0
        self.turn: dict[int, int] = {}  # per link: when its last message started
        self.crossings: dict[int, tuple[Any, int]] = {}
        self.ready: dict[tuple[int, int], int] = {}  # (message, leg) -> since
        self.free: dict[int, int] = defaultdict(int)
        self.queues: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.arrivals: list[tuple[int, int, int]] = []
        self.intervals: list[tuple[int, int, int, int]] = []
        self.on_start: Any = None
        self.on_sent: Any = None  # (message, leg, time)
        self.on_arrival: Any = None  # (message, end)
        self.delay: Any = None

    def add(self, message, connection, kind, links, size, ends):
        crossing = cross(self.topology, kind, links, size)
        first = sending_time(size, int(self.topology.link_bandwidth_Bps[links[0]]))
        self.crossings[message] = (crossing, first)
        for link, leg, _, _ in crossing.windows:
            self.queues[link].append((message, leg))

    def submit(self, message, time):
        self.ready[message, 0] = time

    def run(self):
        while self.ready or self.arrivals:
            chosen = None
            for (message, leg), since in self.ready.items():
                crossing = self.crossings[message][0]
                mine = [w for w in crossing.windows if w[1] == leg]
                if self.in_order and any(self.queues[w[0]][0] != (message, leg) for w in mine):
                    continue
                # A leg that had to wait for its turn on a link is ready when the turn comes.
                turn = since
                if self.in_order:
                    turn = max([since, *(self.turn.get(w[0], 0) for w in mine)])
                when = max([turn, self.now, *(self.free[w[0]] - w[2] for w in mine)])
                found = (when, turn, message, leg, mine)
                chosen = found if chosen is None else min(chosen, found)
            if self.arrivals and (chosen is None or min(self.arrivals)[0] <= chosen[0]):
                self.now = min(self.arrivals)[0]
                for event in sorted(a for a in self.arrivals if a[0] == self.now):
                    self.arrivals.remove(event)
                    _, message, leg = event
                    if leg + 1 < len(self.crossings[message][0].leg_ends):
                        self.ready[message, leg + 1] = self.now
                    else:
                        self.on_arrival(message, 0)
                continue
            if chosen is None:
                return
            self.now, _, message, leg, mine = chosen
            del self.ready[message, leg]
            crossing, first = self.crossings[message]
            for link, _, enter, leave in mine:
                self.free[link] = self.now + leave
                self.intervals.append((self.now + enter, self.now + leave, link, message))
                if self.in_order:
                    self.queues[link].pop(0)
                    self.turn[link] = self.now
            self.arrivals.append((self.now + crossing.leg_ends[leg], message, leg))
            if leg == 0:
                self.on_sent(message, 0, self.now + first)
