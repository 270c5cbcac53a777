"""Executed times: how long a schedule takes when an executor runs it on a real network.

A schedule fixes the order on every link. The program that carries it out keeps only the order of each thread and the
dependencies between steps, and a network lets concurrent messages share a link. :func:`execution` lowers a
schedule, runs the program under three rules for links and reports the times. :func:`tacos.targets.targets` lists the executors;
each says by which rules it is judged.

Large symmetric schedules are executed by orbit: the steps of one rank of each orbit of ranks run on a network whose links are orbits of
links. All images of a message behave alike, so the times are those of the whole program. They may differ where several messages
become ready for one link at the same moment, since the whole program takes them in the order of its steps, which depends
on the numbers of the ranks, and by a rounding where chunks differ by a byte: all count as the largest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import (
    Meter,
    Program,
    Routes,
    Schedule,
    channel_routes,
    folded,
    lower_paced,
    message_routes,
    paced_by_orbit,
    shortest_routes,
)
from tacos.errors import check_type
from tacos.nodes import Network, link_name, topology_of
from tacos.program import lower
from tacos.schedule import retime
from tacos.simulate import Trace, simulate
from tacos.simulate.programs import program_transfers
from tacos.simulate.trace import RECORDED as _RECORDED
from tacos.targets import RULES, target_of
from tacos.units import format_size, size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Collective
    from tacos.targets import Rule
    from tacos.units import Quantity

__all__ = [
    "MOST_RUN",
    "Execution",
    "at_size",
    "executed",
    "executed_ps",
    "execution",
    "for_target",
    "shares_links",
    "slowdown",
]

MOST_RUN = 1_000_000
"""Largest number of transfers that are executed one by one where links are shared; more would take many seconds, and 400 bytes each."""
_WORTH_ORBITS = 100_000
"""Number of transfers from which on symmetric schedules are executed by orbit; fewer take a fraction of a second one by one (chosen)."""

_EXPORTING = 100
"""Steps in Python that writing a transfer to a file and reading it back takes (60 to 160, measured)."""
_FAR = 1.1
"""Ratio of executed to ideal time from which on it is explained (chosen)."""
_EXPLAINED = 20_000
"""Largest number of transfers for which it is explained; the trace of more takes seconds."""


@dataclass(frozen=True, slots=True)
class Execution:
    """How long a program takes under each rule for links.

    Attributes:
        order_ps: Every link serves its messages in the schedule's order; where messages take other routes than the
            schedule's transfers, as early as it can. For a program, which has no such order, this is `first_come_ps`.
        first_come_ps: Every link serves one message at a time, first come, first served.
        shared_ps: Concurrent messages share every link fairly.
        ordered: Whether there is such an order, as in a schedule.
        runs: Number of simulations that this took.
    """

    order_ps: int
    first_come_ps: int
    shared_ps: int
    ordered: bool = True
    runs: int = field(default=0, compare=False)

    def time_ps(self, target: str | None = None) -> int:
        """Return the time under the target's rule or, without a target, the time under the slowest rule.

        >>> Execution(10, 12, 13).time_ps("schedule"), Execution(10, 12, 13).time_ps()
        (10, 13)
        """
        times = dict(zip(RULES, (self.order_ps, self.first_come_ps, self.shared_ps), strict=True))
        return max(times[rule] for rule in target_of(target).rules)

    def rows(self, target: str | None = None) -> dict[str, float]:
        """Return the times in seconds, for tables and JSON: for the target, then under each rule.

        A program has no row for the schedule's order.

        >>> Execution(10**6, 12 * 10**5, 13 * 10**5).rows("tcp")["executed_s"]
        1.3e-06
        """
        in_order = {"executed_order_s": self.order_ps * 1e-12} if self.ordered else {}
        return {
            "executed_s": self.time_ps(target) * 1e-12,
            **in_order,
            "executed_first_come_s": self.first_come_ps * 1e-12,
            "executed_shared_s": self.shared_ps * 1e-12,
        }


def execution(
    what: Schedule | Program,
    topology: Network | None = None,
    *,
    size: Quantity | None = None,
    target: str | None = None,
    to_beat_ps: int | None = None,
    progress: Callable[[float], object] | None = None,
) -> Execution | None:
    """Return how long a schedule or program takes when it is executed, under each rule.

    A schedule is lowered first (:func:`tacos.program.lower`). Its program runs thread by thread over the network's default
    routes. From 100,000 transfers on, a symmetric schedule of any size is executed by orbit. Where switches multicast or reduce,
    which a program cannot express, the schedule itself is run.

    Args:
        what: A schedule, or a program together with its topology.
        topology: The network of a program.
        size: Size of a program's collective, if the program does not have one.
        target: What executes the schedule, one of :func:`tacos.targets.targets`. If it is a format, such as ``"msccl"``, the program
            is the one that :func:`tacos.formats.save` would write.
        to_beat_ps: Times from this value on need not be exact: a schedule that is known to take at least this long
            under some rule is not run any further. Only without a target, when the slowest rule counts.
        progress: Called from time to time with the share of the work done.

    Returns:
        The times; None for a schedule of more than a million transfers (`MOST_RUN`) whose messages share links and that no
        symmetry of the network maps to itself.

    Raises:
        LimitError: The schedule exceeds the limits of the target.
        ValueError: A program without a topology, or a schedule with a topology.

    >>> import tacos
    >>> topo = tacos.topology.ring(4, bandwidth="50GB/s", latency="500ns")
    >>> ring = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1), engine="ring")
    >>> execution(ring).time_ps() == ring.time_ps
    True
    """
    if topology is not None:
        topology = topology_of(topology)
    check_type("what", what, Schedule, Program)
    if isinstance(what, Program):
        if topology is None:
            raise ValueError("a program needs a topology to run on")
        first_come, shared = (
            simulate(
                what, topology, size=size, timing=rule, record=False, progress=progress
            ).time_ps
            for rule in RULES[1:]
        )
        return Execution(first_come, first_come, shared, ordered=False, runs=len(RULES[1:]))
    if topology is not None or size is not None:
        raise ValueError("a schedule has its own topology and size")
    if chosen := target_of(target).format:
        meter = Meter.of(progress)
        meter.reserve(_EXPORTING * Meter.STEP * what.transfers)
        program, size = _exported(what, chosen), what.collective.size_bytes
        return execution(program, what.topology, size=size, progress=meter)
    if not shares_links(what):
        # Every link belongs to one thread, which keeps the schedule's order, so no message is late.
        return Execution(what.time_ps, what.time_ps, what.time_ps)
    limit = to_beat_ps if target_of(target).rules == RULES else None
    if what.transfers >= _WORTH_ORBITS and _takes_usual_routes(what):
        orbit = what if what.form == "orbit" else folded(what, progress)
        if orbit is not None and (times := paced_by_orbit(orbit, limit=limit, progress=progress)):
            return Execution(what.time_ps, *times[:2], runs=times[2])
    if what.transfers > MOST_RUN:
        return None
    schedule = what.expand()
    usual = target == "schedule" or _takes_usual_routes(schedule)
    in_order = schedule.time_ps if usual else _over_usual_routes(schedule).time_ps
    try:
        _, _, first_come, shared, runs = lower_paced(
            schedule, timed=True, limit=limit, progress=progress
        )
    except ValueError:  # switches that multicast or reduce
        runs = len(RULES[1:])
        first_come, shared = (
            simulate(schedule, timing=rule, record=False, progress=progress).time_ps
            for rule in RULES[1:]
        )
    return Execution(in_order, first_come, shared, runs=runs)


def _takes_usual_routes(schedule: Schedule) -> bool:
    """Return whether a schedule's transfers take the routes that messages take; links that keep its order then keep its times."""
    table = schedule.routes
    used = np.unique(schedule.lane_route)
    begin, lengths = table.link_begin[used], np.diff(table.link_begin)[used]
    end = np.cumsum(lengths)
    place = np.repeat(begin - end + lengths, lengths) + np.arange(lengths.sum())
    taken = Routes(
        schedule.topology, table.kinds[used], np.append(0, end), table.links[place].astype(np.int32)
    )
    return np.array_equal(message_routes(taken).links, taken.links)


def _over_usual_routes(schedule: Schedule) -> Schedule:
    """Return the same transfers in the same order over the routes that messages take."""
    return _in_turn(schedule, message_routes(schedule.routes), schedule.collective)


def _in_turn(schedule: Schedule, table: Routes, collective: Collective) -> Schedule:
    """Return the same transfers for a collective of another size, or over other routes, as early as they can begin."""
    rows = schedule.rows()
    return retime(
        collective,
        table,
        route=rows["route"],
        chunk=rows["chunk"],
        step=np.unique(rows["start_ps"], return_inverse=True)[1].ravel().astype(np.int32),
        op=rows["op"],
        reads=rows["reads"],
    )


def executed_ps(schedule: Schedule) -> int | None:
    """Return the executed time of a schedule for its own target, as ``Schedule.executed_s`` has it; None if it is too large to be run.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> schedule = tacos.synthesize(ring, tacos.collective.all_gather(ring, "4MB"), target="tcp")
    >>> schedule.target, executed_ps(schedule) == schedule.executed_ps
    ('tcp', True)
    """
    found = execution(schedule, target=schedule.target)
    return None if found is None else found.time_ps(schedule.target)


def for_target(schedule: Schedule, target: str | None) -> Schedule:
    """Return the same schedule with its executed time for a target.

    An unknown time is computed here; after a search that a time limit cut short, it is computed on first use.

    Raises:
        LimitError: The schedule exceeds the limits of the target.

    >>> import tacos
    >>> switch = tacos.topology.switch(4)
    >>> found = tacos.synthesize(switch, tacos.collective.all_to_all(switch, "4MB"))
    >>> for_target(found, "schedule").executed_s == found.time_s
    True
    """
    target_of(target)
    if schedule.target == target and (schedule.executed_ps is not None or schedule.cut_short):
        return schedule
    if target == "schedule":  # links that keep the schedule's order keep its times
        return schedule.with_executed(schedule.time_ps, target)
    schedule = schedule.with_executed(None, target)
    return schedule.with_executed(executed_ps(schedule), target)


def at_size(schedule: Schedule, size: Quantity) -> Schedule:
    """Return the same transfers for another size of the collective, with their executed time.

    Transfers keep their routes and their order, and begin as early as they can.

    Raises:
        LimitError: The schedule exceeds the limits of its target.
        ValueError: The size is too small for the number of chunks.

    >>> import tacos
    >>> ring = tacos.topology.ring(4, bandwidth="1GB/s", latency="1us")
    >>> found = tacos.synthesize(ring, tacos.collective.all_gather(ring, "4KB", chunks=1), engine="ring", order="rank")
    >>> [at_size(found, size).executed_s for size in ("4KB", "8KB")]  # three steps
    [6e-06, 9e-06]
    """
    whole = size_bytes(size)
    if whole == schedule.collective.size_bytes:
        return schedule
    collective = schedule.collective.resized(whole)
    listed = schedule.expand()
    found = _in_turn(listed, listed.routes, collective)
    kept = found.with_facts(
        engine=schedule.engine,
        consistent=schedule.consistent,
        matched_ports=schedule.matched_ports,
    )
    return for_target(kept, schedule.target)


def executed(schedule: Schedule, rule: Rule) -> Trace:
    """Return a trace of a schedule's program when it is executed under a rule.

    The trace's transfers are the schedule's, so that it can be shown beside the schedule. Its time is that of
    :func:`execution` under the rule.

    >>> import tacos
    >>> switch = tacos.topology.switch(4)
    >>> schedule = tacos.synthesize(switch, tacos.collective.all_to_all(switch, "4MB"))
    >>> executed(schedule, "shared").time_ps == execution(schedule).shared_ps
    True
    """
    packed = schedule.expand()
    if rule == "order" or not shares_links(schedule):
        return simulate(packed, timing="schedule" if rule == "order" else rule)
    try:
        program = lower(packed)
        sent = program_transfers(packed, program)
        raw = simulate(program, packed.topology, timing=rule)
    except ValueError:  # switches that multicast or reduce
        return simulate(packed, timing=rule)
    columns = {name: getattr(raw, name) for name in _RECORDED}
    for name in ("transfer", "arrival_transfer"):
        columns[name] = sent[columns[name]]
    return Trace(
        packed.topology,
        npu_finish_ps=raw.npu_finish_ps,
        simulator=raw.simulator,
        timing=raw.timing,
        schedule_time_ps=schedule.time_ps,
        clean_time_ps=raw.clean_time_ps,
        chunk=packed.chunk,
        provenance=raw.provenance,
        **columns,
    )


def slowdown(schedule: Schedule) -> str:
    """Return why a schedule takes much longer when it is executed than ideally; empty if it does not, or if it is too large.

    The sentence names the link that is busy the longest when the schedule is executed.

    >>> import tacos
    >>> topo = tacos.topology.fat_tree(2, 2, routing="first")
    >>> paths = tacos.routes(topo, links=[[(0, 4), (4, 6), (6, 5), (5, 2)], [(1, 4), (4, 7), (7, 5), (5, 3)]])
    >>> coll = tacos.collective.send_recv(topo, [(0, 2, "64MB"), (1, 3, "64MB")], chunks=1)
    >>> over_both = tacos.retime(coll, paths, route=[0, 1], chunk=[0, 1], step=0)
    >>> print(slowdown(over_both).partition(";")[0])
    executed 2.0 times as long as ideal: switch 0 -> switch 2 carries 128 MB, which takes 100 % of the time
    """
    ratio = schedule.executed_s / schedule.time_s if schedule.time_ps else 1.0
    if ratio < _FAR or schedule.transfers > _EXPLAINED:
        return ""
    packed = schedule.expand()
    rules = target_of(schedule.target).rules
    trace = max((executed(packed, rule) for rule in rules), key=lambda trace: trace.time_ps)
    network, taken = packed.topology, message_routes(packed.routes)
    sizes = packed.collective.chunk_bytes()[packed.chunk]
    route = np.repeat(packed.lane_route, np.diff(packed.lane_begin))
    sent = np.bincount(route, weights=sizes, minlength=taken.count)
    per_link = np.repeat(sent, np.diff(taken.link_begin)) * taken.shares
    carried = np.bincount(taken.links, weights=per_link, minlength=network.links)
    takes_s = carried / network.link_bandwidth_Bps
    link = int(takes_s.argmax())
    busy = f"{100 * takes_s[link] / trace.time_s:.0f} %"
    words = (
        f"executed {ratio:.1f} times as long as ideal: {link_name(network, link)} carries "
        f"{format_size(round(carried[link]))}, which takes {busy} of the time"
    )
    planned = int(packed.link_bytes()[link])
    if carried[link] > _FAR * planned:
        return (
            f"{words}; the schedule sends {format_size(planned)} over it, but programs name ranks and not "
            "paths, so their messages take the network's default routes"
        )
    return f"{words}; messages that share links wait for each other, as programs do not keep the schedule's order"


def _exported(schedule: Schedule, format: str) -> Program:
    """Return the program of the file that an executor would read."""
    from io import BytesIO

    from tacos import formats

    data = BytesIO()
    formats.save(schedule, data, format=format)
    data.seek(0)
    program = formats.load(data, format=format)
    assert isinstance(program, Program)
    return program


def shares_links(schedule: Schedule) -> bool:
    """Return whether messages of several connections may cross one link, or take other routes than the schedule's.

    A route of one link never shares it. A longer route shares no link if no other route uses any of its links; a program
    takes it if it is the network's default route, or one that channels take in turn.

    >>> import tacos
    >>> ring, switch = tacos.topology.ring(4), tacos.topology.switch(4)
    >>> [shares_links(tacos.synthesize(t, tacos.collective.all_to_all(t, "4MB"))) for t in (ring, switch)]
    [False, True]
    """
    table = schedule.routes
    used = np.flatnonzero(np.bincount(schedule.lane_route, minlength=len(table.kinds)))
    if not (np.diff(table.link_begin)[used] > 1).any():
        return False
    if schedule.form == "orbit" or table.kinds[used].any():
        return True
    if _ends_differ(schedule, used):
        return True
    # A table may list a route more than once.
    paths = {
        tuple(table.links[table.link_begin[r] : table.link_begin[r + 1]].tolist()) for r in used
    }
    crossed = [link for path in paths for link in path]
    if len(set(crossed)) < len(crossed):
        return True
    topology, ordered = schedule.topology, sorted(path for path in paths if len(path) > 1)
    source = topology.link_src[[path[0] for path in ordered]]
    end = topology.link_dst[[path[-1] for path in ordered]]
    default = shortest_routes(topology, source, end)
    usual = np.split(default.links, default.link_begin[1:-1])
    return any(
        list(path) not in (channel_routes(topology, src, dst) or [links.tolist()])
        for path, links, src, dst in zip(ordered, usual, source.tolist(), end.tolist(), strict=True)
    )


def _ends_differ(schedule: Schedule, used: NDArray[np.intp]) -> bool:
    """Return whether some link is crossed by paths that begin or end at different nodes."""
    table, topology = schedule.routes, schedule.topology
    begin, end = table.link_begin[used], table.link_begin[used + 1]
    ends = topology.link_src[table.links[begin]].astype(np.int64) * topology.nodes
    ends += topology.link_dst[table.links[end - 1]]
    length = end - begin
    place = np.repeat(begin - np.cumsum(length) + length, length) + np.arange(length.sum())
    links, ends = table.links[place], np.repeat(ends, length)
    one = np.zeros(topology.links, np.int64)
    one[links] = ends
    return bool((one[links] != ends).any())
