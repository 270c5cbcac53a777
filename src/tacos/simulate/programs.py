"""Simulation of programs on a network, thread by thread and step by step.

A schedule fixes when each link carries which transfer; a program keeps only the order of each thread and the
dependencies between steps. :func:`run` computes how long that takes. :func:`program_routes` and
:func:`program_order` take routes and positions from the schedule that the program was lowered from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacos._core import departures, run_program
from tacos._support.columns import column
from tacos.program import STEP_OPS, filled
from tacos.program_nodes import sized
from tacos.simulate.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tacos._core import Program, Schedule, Topology
    from tacos.units import Quantity

__all__ = ["program_order", "program_routes", "program_transfers", "run"]

_SENDS = [i for i, op in enumerate(STEP_OPS) if "send" in op or "forward" in op]
_MOVES = [*_SENDS, *(STEP_OPS.index(op) for op in ("put", "get", "get_reduce"))]


def run(
    program: Program,
    topology: Topology,
    size: Quantity | None = None,
    *,
    timing: Literal["first-come", "order", "shared"] = "first-come",
    routes: Sequence[Sequence[int] | None] | None = None,
    order: ArrayLike | None = None,
    connections: int | None = None,
    record: bool = True,
    progress: Callable[[float], object] | None = None,
) -> Trace:
    """Run a program thread by thread on a network; :func:`tacos.simulate` calls this for programs.

    Args:
        program: What the ranks do.
        topology: The network, with one NPU per rank.
        size: Size of the collective, if the program does not have one.
        timing: How links serve messages, see :func:`tacos.simulate`.
        routes: The links of each thread's route, or None for the default route; see
            :func:`program_routes`.
        order: The position of each step's message, for links that serve in order and for ties; see
            :func:`program_order`. Default: an order in which the steps could run.
        connections: With ``timing="shared"``: the most messages that an NPU sends at a time, and the
            most that it receives. Default: no limit.
        record: Whether the trace has every interval and arrival.
        progress: Called from time to time with the share of the work done.

    Returns:
        The trace. Its transfers are numbered by the steps that send them, and an NPU is done when
        its last step is complete.

    Raises:
        InfeasibleError: The program deadlocks; the message names a step.
        ValueError: An argument is out of range.

    >>> import tacos
    >>> topo = tacos.topology.ring(4, bandwidth="50GB/s", latency="500ns")
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1), engine="ring")
    >>> run(tacos.lower(schedule), topo, timing="shared").time_ps == schedule.time_ps
    True
    """
    program = filled(program)
    if connections is None:
        limit = 0
    elif timing != "shared":
        raise ValueError(f'connections is {connections}, but only timing "shared" has a limit')
    elif not 1 <= connections < 2**31:
        raise ValueError(f"connections is {connections}; it must be a whole number of at least 1")
    else:
        limit = connections
    begin, links = _columns(routes)
    columns: dict[str, Any] = run_program(
        program,
        np.ascontiguousarray(sized(program, size).chunk_bytes(), np.int64),
        topology,
        timing=timing,
        record=record,
        limit=limit,
        link_begin=begin,
        links=links,
        position=column("order", [] if order is None else order, np.int64),
        progress=progress,
    )
    clean_ps = int(columns["npu_finish_ps"].max(initial=0))
    provenance: dict[str, Any] = {
        "simulator": "tacos",
        "timing": timing,
        "program": True,
        "transfers": int(np.isin(program.op, _MOVES).sum()),
        "clean_time_ps": clean_ps,
        "schedule": program.provenance,
    }
    if limit:
        provenance["connections"] = limit
    return Trace(
        topology,
        simulator="tacos",
        timing=timing,
        clean_time_ps=clean_ps,
        provenance=provenance,
        **columns,
    )


def program_routes(schedule: Schedule, program: Program) -> list[list[int] | None]:
    """Return the route of each thread of a program that a schedule was lowered to.

    A lowered schedule has a channel per route between two NPUs. A program that was packed afterwards has other
    channels: then a thread's route is known if the schedule uses a single route between its NPUs; otherwise it is
    None, the default route.

    Args:
        schedule: The schedule that the program was lowered from.
        program: The program, packed or not.

    Returns:
        For each thread, its links from the source to the destination; None for the default route, as where messages
        divide over several paths.

    >>> import tacos
    >>> topo = tacos.topology.switch(4)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1), engine="ring")
    >>> program = tacos.lower(schedule)
    >>> [route for route in program_routes(schedule, program) if route][:2]
    [[0, 5], [1, 6]]
    """
    schedule = schedule.expand()
    rows = departures(schedule)
    known, first = np.unique(_keys(rows["src"], rows["dst"], rows["channel"]), return_index=True)
    wanted = _keys(program.thread_rank, program.thread_send_peer, program.thread_channel)
    sends = program.thread_send_peer >= 0
    route = np.full(program.threads, -1)
    if len(known):
        of_known = rows["route"][first]
        if np.array_equal(np.unique(wanted[sends]), known):  # lowered, with the same channels
            route[sends] = of_known[np.searchsorted(known, wanted[sends])]
        else:
            ends, least = np.unique(known >> _CHANNEL_BITS, return_index=True)
            lowest, highest = (f.reduceat(of_known, least) for f in (np.minimum, np.maximum))
            at = np.minimum(np.searchsorted(ends, wanted >> _CHANNEL_BITS), len(ends) - 1)
            only = sends & (ends[at] == wanted >> _CHANNEL_BITS) & (lowest[at] == highest[at])
            route[only] = lowest[at[only]]
    begin, links = schedule.routes.link_begin.tolist(), schedule.routes.links.tolist()
    known_paths = np.append(schedule.routes.kinds == 0, False)
    route[~known_paths[route]] = -1  # messages divide as the network routes them
    return [None if r < 0 else links[begin[r] : begin[r + 1]] for r in route.tolist()]


def program_order(schedule: Schedule, program: Program) -> NDArray[np.int64]:
    """Return the position of each step's message on the links, by the starts of the schedule.

    Args:
        schedule: The schedule that the program was lowered from.
        program: The program as :func:`tacos.program.lower` made it, not packed.

    Returns:
        For each step, the start of its transfer in picoseconds; 0 for steps that send nothing.

    Raises:
        ValueError: The program does not send the schedule's transfers.

    >>> import tacos
    >>> topo = tacos.topology.ring(3, bidirectional=False)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "3MB", chunks=1), engine="ring")
    >>> order = program_order(schedule, tacos.lower(schedule))
    >>> int(order.max()) == int(schedule.rows()["start_ps"].max())
    True
    """
    rows, steps, departure = _departed(schedule.expand(), program)
    position = np.zeros(program.steps, np.int64)
    position[steps] = rows["start_ps"][departure]
    return position


def program_transfers(schedule: Schedule, program: Program) -> NDArray[np.int64]:
    """Return the schedule's transfer that each step of a program sends.

    Args:
        schedule: The schedule that the program was lowered from.
        program: The program as :func:`tacos.program.lower` made it, not packed.

    Returns:
        For each step, the number of a transfer; -1 for steps that send nothing.

    Raises:
        ValueError: The program does not send the schedule's transfers.

    >>> import tacos
    >>> topo = tacos.topology.ring(3, bidirectional=False)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "3MB", chunks=1), engine="ring")
    >>> sent = program_transfers(schedule, tacos.lower(schedule))
    >>> sorted(sent[sent >= 0].tolist()) == list(range(schedule.transfers))
    True
    """
    packed = schedule.expand()
    rows, steps, departure = _departed(packed, program)
    timed = packed.rows()
    start = np.zeros(packed.transfers, np.int64)
    start[timed["transfer"]] = timed["start_ps"]
    route = np.repeat(packed.lane_route, np.diff(packed.lane_begin))
    # One route starts one transfer at a time.
    of_row = np.empty(len(route), np.int64)
    of_row[np.lexsort((rows["start_ps"], rows["route"]))] = np.lexsort((start, route))
    found = np.full(program.steps, -1, np.int64)
    found[steps] = of_row[departure]
    return found


def _departed(
    schedule: Schedule, program: Program
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64], NDArray[np.int64]]:
    """Return the departures of a schedule, the program's steps that send, and the departure of each."""
    rows = departures(schedule)
    steps = np.flatnonzero(np.isin(program.op, _SENDS))
    thread = np.repeat(np.arange(program.threads), np.diff(program.thread_begin))[steps]
    theirs = _keys(program.thread_rank, program.thread_send_peer, program.thread_channel)[thread]
    ours = _keys(rows["src"], rows["dst"], rows["channel"])
    by_step, by_row = np.argsort(theirs, kind="stable"), np.argsort(ours, kind="stable")
    if not np.array_equal(theirs[by_step], ours[by_row]):
        raise ValueError(
            "the program's messages are not the schedule's transfers; pass the program that lower() "
            "made of this schedule"
        )
    return rows, steps[by_step], by_row


_CHANNEL_BITS = 20


def _keys(src: NDArray[Any], dst: NDArray[Any], channel: NDArray[Any]) -> NDArray[np.int64]:
    """Return a number per (src, dst, channel), in their order; channels beyond a million share one."""
    pair = src.astype(np.int64) << 22 | np.maximum(dst, 0)
    keys: NDArray[np.int64] = pair << _CHANNEL_BITS | np.minimum(channel, (1 << _CHANNEL_BITS) - 1)
    return keys


def _columns(
    routes: Sequence[Sequence[int] | None] | None,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    if routes is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    begin = np.zeros(len(routes) + 1, np.int64)
    np.cumsum([len(route or ()) for route in routes], out=begin[1:])
    flat = [link for route in routes for link in route or ()]
    return begin, column("routes", flat, np.int32)
