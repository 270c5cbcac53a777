"""Simulation of schedules and programs on a network.

The core is event-driven and serves transfers by the rule that times schedules: the transfer that is ready first
goes first, and a link carries one transfer at a time. :func:`simulate` returns a
:class:`~tacos.simulate.trace.Trace`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from tacos import units
from tacos._core import Program, Routes, Schedule, Topology, Workload
from tacos._core import simulate as _simulate
from tacos._core import unchanged_run as _unchanged_run
from tacos.errors import InfeasibleError, TacosError, check_type
from tacos.nodes import Network, topology_of
from tacos.simulate import programs
from tacos.simulate.faults import Fault, Straggler, disturbances
from tacos.simulate.programs import program_order, program_routes
from tacos.simulate.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Fault", "Straggler", "Trace", "program_order", "program_routes", "simulate"]

_BYTES_PER_TRANSFER = 60
"""Memory of a run, per transfer."""
_BYTES_PER_ARRIVAL, _BYTES_PER_INTERVAL = 30, 50
"""Memory of the trace, per arrival and per interval; intervals may have to be sorted."""


_Kind = TypeVar("_Kind", Fault, Straggler)


def _all_of(name: str, given: Any, kind: type[_Kind]) -> tuple[_Kind, ...]:
    """Return the faults or stragglers as a tuple; refuse other types, such as texts."""
    found = tuple(given) if isinstance(given, Iterable) else (None,)
    if isinstance(given, (str, Mapping)) or not all(isinstance(one, kind) for one in found):
        one = kind.__name__
        raise TypeError(f"{name} must be a list of tacos.{one}; got {shortened(given)}")
    return found


class _Undisturbed:
    """Times of undisturbed runs, kept while their schedules live: a study of disturbances runs one schedule many times."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Schedule], dict[tuple[str, bool], int]]] = {}

    def of(self, schedule: Schedule) -> dict[tuple[str, bool], int]:
        """Return the times in picoseconds, by timing and congestion. Schedules are compared by identity."""
        key = id(schedule)
        if key not in self._found:
            forget = weakref.ref(schedule, lambda _: self._found.pop(key, None))
            self._found[key] = (forget, {})
        return self._found[key][1]


_UNDISTURBED = _Undisturbed()


def simulate(
    schedule: Schedule | Program | str | os.PathLike[str],
    topology: Network | None = None,
    *,
    size: units.Quantity | None = None,
    timing: Literal["first-come", "order", "schedule", "shared"] = "first-come",
    congestion: bool = True,
    faults: Iterable[Fault] = (),
    jitter: units.Quantity = 0,
    stragglers: Iterable[Straggler] = (),
    seed: int = 0,
    profile: str | None = None,
    routes: Sequence[Sequence[int] | None] | None = None,
    order: ArrayLike | None = None,
    connections: int | None = None,
    record: bool = True,
    memory_limit: units.Quantity = "16GiB",
    progress: Callable[[float], object] | None = None,
) -> Trace:
    """Run a schedule on a network and record what every link and NPU does.

    Every transfer reads the same values as in the schedule, so a run computes the same results at other
    times. `timing` says how the schedule's start times are used:

    - ``"first-come"``: not at all. A transfer is ready when its data have arrived, and every link serves
      transfers first come, first served: by ready time, then by position in the schedule. This is how a
      network runs a schedule without its times.
    - ``"order"``: as an order. Every link serves its transfers one after the other in the
      schedule's order, like an executor with one queue per link: a transfer that waits for data delays
      those behind it.
    - ``"schedule"``: exactly. Every transfer starts at its own time, or the run ends with an error
      that gives the reason.
    - ``"shared"``: as the order in which each connection (source, destination and route) sends.
      A transfer starts when its data have arrived and the one before it on its connection has left.
      Transfers in flight share every link max-min fairly, as the flows of a real network do.

    A program has no start times: its threads run their steps in order, and ``timing`` says how links
    serve the messages: one at a time by (ready time, position), one at a time by position, or shared.

    Args:
        schedule: What to run, or the path of a file that holds it. An orbit is expanded first. A program needs a
            topology. A workload runs on a simulated system: see :func:`tacos.simulate.astra.run`.
        topology: The network to run on, if not the schedule's own: it must have the same nodes, and may have
            links of other speeds, or fewer links.
        size: Size of a program's collective, if the program does not have one.
        timing: See above.
        congestion: Whether transfers wait for busy links. If not, a transfer waits only for its data, and
            takes its latency and transmission times.
        faults: Links or NPUs that are down or slow for a time. A transfer on a link that goes down
            stops and resumes when the link is up. Its delay is that of the link on its route that lost the
            most time.
        jitter: Upper limit of a uniform random delay of each delivery (at the end of each leg of a route). The delay
            depends only on the seed, the transfer, the leg and the destination.
        stragglers: NPUs that start late or are slower than the others.
        seed: Random seed of the jitter.
        profile: Another simulator to imitate, ``"astra-sim-aware"`` or ``"astra-sim-unaware"``: short for
            :func:`tacos.simulate.astra.trace`. Faults, stragglers, jitter, timing, congestion and record
            must then be left out.
        routes: For a program: the links of each thread's route, or None for the direct link or
            else the route that :func:`tacos.schedule.routes` finds. :func:`~tacos.simulate.programs.program_routes` takes them
            from the schedule that the program was lowered from.
        order: For a program: a position for each step, by which links serve messages under
            ``timing="order"``, and which decides ties otherwise; see :func:`~tacos.simulate.programs.program_order`.
        connections: For a program under ``timing="shared"``: the most messages that an NPU sends at a
            time, and the most that it receives. Default: no limit.
        record: Whether the trace has every interval and arrival, about 60 bytes per transfer. If not, it tells only
            when each NPU finished and how long each link was busy. A run that follows the schedule
            exactly, as most do on their own network, then takes almost no memory.
        memory_limit: Refuse a run that would take more memory.
        progress: Called from time to time with the share of the work done.

    Returns:
        The trace. If the run has faults, stragglers or jitter, `trace.loss` compares it with an undisturbed run
        on the schedule's own topology.

    Raises:
        InfeasibleError: A transfer can never start or never finish, or a program deadlocks.
        ValueError: An argument is out of range, or `topology` is not the same network.

    >>> import tacos
    >>> topo = tacos.topology.ring(4, bandwidth="50GB/s", latency="500ns")
    >>> coll = tacos.collective.all_gather(topo, "4MB", chunks=1)
    >>> schedule = tacos.synthesize(topo, coll, engine="ring")
    >>> trace = simulate(schedule)
    >>> trace.time_s == schedule.time_s
    True
    >>> cut = Fault(link=(0, 1), begin="10us", end="30us")
    >>> f"{simulate(schedule, faults=[cut]).loss:.1%}"
    '32.5%'
    >>> program = tacos.lower(schedule)
    >>> simulate(program, topo, timing="shared", record=False).time_ps == schedule.time_ps
    True
    """
    if topology is not None:
        topology = topology_of(topology)
    if isinstance(schedule, Workload):
        raise TypeError("a workload runs on a simulated system: use tacos.simulate.astra.run")
    check_type("schedule", schedule, Schedule, Program, str, os.PathLike)
    faults = _all_of("faults", faults, Fault)
    stragglers = _all_of("stragglers", stragglers, Straggler)
    jitter_ps = units.time_ps(jitter, what="jitter", bare=False)
    if profile is not None:
        ours = timing != "first-come" or not congestion or not record
        if routes is not None or order is not None or connections is not None:
            raise ValueError("routes, order and connections are for programs without a profile")
        if faults or stragglers or jitter_ps or ours:
            raise ValueError(
                f"profile {profile!r} does not take timing, congestion, record or disturbances"
            )
        from tacos.simulate import astra

        return astra.trace(schedule, topology, profile=profile, size=size, progress=progress)
    if isinstance(schedule, str | os.PathLike):
        schedule = _loaded(schedule)
    if isinstance(schedule, Program):
        if topology is None:
            raise ValueError("a program needs a topology to run on")
        if faults or stragglers or jitter_ps or not congestion or seed:
            raise ValueError(
                "a program does not take faults, stragglers, jitter, seed or congestion=False"
            )
        return programs.run(
            schedule,
            topology,
            size,
            timing=timing,  # type: ignore[arg-type]  # the core refuses "schedule"
            routes=routes,
            order=order,
            connections=connections,
            record=record,
            progress=progress,
        )
    if size is not None:
        raise ValueError(f"size is {size}, but only a program takes a size")
    if routes is not None or order is not None or connections is not None:
        raise ValueError("routes, order and connections are for programs without a profile")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be 0 to 2^64 - 1; got {seed}")
    limit = units.size_bytes(memory_limit, what="memory_limit")
    disturbed = bool(faults or stragglers or jitter_ps or topology is not None)

    def undisturbed() -> dict[str, NDArray[Any]] | None:
        """Return the run on the schedule's own network if it follows the schedule; this check needs no memory."""
        if timing == "shared" or not congestion or packed.form != "packed":
            return None
        return _unchanged_run(packed, _lane_routes(packed, None), progress)

    def run(over: Routes, whole: bool, jitter: int, **columns: Any) -> dict[str, NDArray[Any]]:
        return _simulate(
            packed,
            over,
            timing=timing,
            congestion=congestion,
            record=whole,
            jitter_ps=jitter,
            seed=seed,
            progress=progress,
            **columns,
        )

    packed, network = schedule, schedule.topology if topology is None else topology
    columns = None if record or disturbed else undisturbed()
    if columns is None:
        packed = _packed(schedule, limit, record)
        lanes = _lane_routes(packed, topology)
        columns = run(lanes, record, jitter_ps, **disturbances(network, faults, stragglers))
    clean_ps = int(columns["npu_finish_ps"].max(initial=0))
    if disturbed:
        known = _UNDISTURBED.of(schedule)
        if (timing, congestion) not in known:
            clean = undisturbed()
            if clean is None:
                own = _lane_routes(packed, None)
                clean = run(own, False, 0, **disturbances(own.topology, (), ()))
            known[timing, congestion] = int(clean["npu_finish_ps"].max(initial=0))
        clean_ps = known[timing, congestion]
    provenance: dict[str, Any] = {
        "simulator": "tacos",
        "timing": timing,
        "congestion": congestion,
        "transfers": packed.transfers,
        "schedule_time_ps": schedule.time_ps,
        "clean_time_ps": clean_ps,
        "schedule": schedule.provenance,
    }
    if disturbed:
        provenance |= {
            "faults": [repr(fault) for fault in faults],
            "stragglers": [repr(straggler) for straggler in stragglers],
            "jitter_ps": jitter_ps,
            "seed": seed,
            "other_topology": topology is not None,
        }
    return Trace(
        network,
        simulator="tacos",
        timing=timing,
        clean_time_ps=clean_ps,
        schedule_time_ps=schedule.time_ps,
        disturbed=disturbed,
        faults=faults,
        stragglers=stragglers,
        jitter_ps=jitter_ps,
        provenance=provenance,
        chunk=packed.chunk,
        **columns,
    )


def _loaded(path: str | os.PathLike[str]) -> Schedule | Program:
    """Return the content of a file."""
    from tacos import formats

    found = formats.load(path)
    if isinstance(found, Topology | Workload):
        raise ValueError(  # noqa: TRY004, the type is right, the file is not
            f"{path} holds a {type(found).__name__.lower()}; simulate() needs a schedule or a program"
        )
    return found


def _packed(schedule: Schedule, limit: int, record: bool) -> Schedule:
    need = schedule.transfers * _BYTES_PER_TRANSFER
    if record:
        links = float(np.diff(schedule.routes.link_begin).mean()) if schedule.routes.count else 1.0
        need = int(need + schedule.transfers * (_BYTES_PER_ARRIVAL + _BYTES_PER_INTERVAL * links))
    if schedule.form == "orbit":
        need += schedule.expanded_bytes
    if need > limit:
        raise TacosError(
            f"simulating {schedule.transfers:,} transfers takes about {units.format_size(need)} of "
            f"memory, but memory_limit is {units.format_size(limit)}"
        )
    return schedule.expand()


def _lane_routes(schedule: Schedule, topology: Topology | None) -> Routes:
    """Return the route of every lane, on the schedule's topology or on another with the same nodes."""
    table, lane_route = schedule.routes, schedule.lane_route
    counts = np.diff(table.link_begin)[lane_route]
    begin = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=begin[1:])
    at = np.repeat(table.link_begin[lane_route] - begin[:-1], counts) + np.arange(begin[-1])
    links = table.links[at]
    if topology is None:
        topology = schedule.topology
    else:
        links = _moved_links(schedule, topology)[links]
        lost = np.flatnonzero(links < 0)
        if lost.size:
            gone = int(table.links[at[lost[0]]])
            lane = int(np.searchsorted(begin, lost[0], side="right")) - 1
            used = schedule.lane_begin[lane]
            raise InfeasibleError(
                f"transfer {used} can never finish: it crosses {_described(schedule, gone)}, "
                "which the topology does not have"
            )
    return Routes(topology, table.kinds[lane_route], begin, np.ascontiguousarray(links, np.int32))


def _described(schedule: Schedule, link: int) -> str:
    topology = schedule.topology
    ends = (topology.link_src[link], topology.link_dst[link])
    return f"link {link} ({' -> '.join(topology.node_name(int(end)) for end in ends)})"


def _moved_links(schedule: Schedule, topology: Topology) -> NDArray[np.int64]:
    """Return, for each link of the schedule's topology, the same link of another topology, or -1.

    Links are the same if they join the same nodes; parallel links are matched in order of id.
    """
    old = schedule.topology
    if (topology.npus, topology.nodes) != (old.npus, old.nodes):
        raise ValueError(
            f"topology has {topology.npus} NPUs and {topology.nodes - topology.npus} switches, but the "
            f"schedule's has {old.npus} and {old.nodes - old.npus}"
        )
    keys, ranks = _numbered(old)
    new_keys, new_ranks = _numbered(topology)
    order = np.lexsort((new_ranks, new_keys))
    width = int(max(ranks.max(initial=0), new_ranks.max(initial=0))) + 1
    found = np.searchsorted((new_keys * width + new_ranks)[order], keys * width + ranks)
    found = np.minimum(found, len(order) - 1)
    moved: NDArray[np.int64] = order[found] if len(order) else np.full(len(keys), -1)
    if len(order):
        same = (new_keys[moved] == keys) & (new_ranks[moved] == ranks)
        moved = np.where(same, moved, -1)
    return moved


def _numbered(topology: Topology) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each link, a number for its pair of ends, and the number of earlier links of that pair."""
    keys = topology.link_src.astype(np.int64) * topology.nodes + topology.link_dst
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.searchsorted(ordered, ordered, side="left")
    ranks = np.empty(len(keys), np.int64)
    ranks[order] = np.arange(len(keys)) - first
    return keys, ranks
