"""Schedules: all transfers of a collective with their order and times.

:class:`Schedule` is the one representation that engines fill, the verifier checks and everything
else reads. :func:`retime` turns an ordered list of transfers into one; it is the only code that
decides when a transfer starts, and every engine goes through it or through the constructor.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tacos._core import Routes, Schedule, Topology, fields, port_routes, shortest_routes
from tacos._core import retime as _retime
from tacos._support.columns import column
from tacos.collective import chunks_per_part
from tacos.nodes import LinkChoice, Network, Nodes, link_name, link_of, topology_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tacos._core import Collective

__all__ = [
    "COPY",
    "READ_ACC",
    "READ_INPUT",
    "REDUCE",
    "Routes",
    "Schedule",
    "moved",
    "paths",
    "retime",
    "routed",
    "routes",
    "summary",
    "uses_switches",
]

COPY, REDUCE = 0, 1
"""What a transfer does at its destination: overwrite ``acc``, or add to it."""
READ_INPUT, READ_ACC = 0, 1
"""What a transfer reads at its source: the NPU's own contribution, or its ``acc``."""

_KINDS = {"path": 0, "multicast": 1, "reduce": 2, "spread": 3}


def routes(
    topology: Network,
    *,
    pairs: tuple[ArrayLike, ArrayLike] | None = None,
    links: Sequence[Sequence[LinkChoice]] | None = None,
    kinds: str | Sequence[str] = "path",
    progress: Callable[[float], object] | None = None,
) -> Routes:
    """Return a table of routes: between pairs of NPUs, or along given links.

    Args:
        topology: The network.
        pairs: Columns (src, dst) of NPUs. Each pair gets the network's default route: the direct link, else
            dimension by dimension on products, else the fewest hops with the lowest link ids. Between the ports of
            such a path, switches choose as the network's ``routing`` says.
        links: Instead of `pairs`, the list of links of each route: numbers, or pairs of nodes.
        kinds: With ``links``: ``"path"``, ``"multicast"``, ``"reduce"`` or ``"spread"``, for all or per route.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: A pair is not connected.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> routes(ring, pairs=([0], [2])).links.tolist()  # two hops
    [0, 1]
    >>> routes(ring, links=[["npu 0-npu 1", (1, 2)]]).links.tolist()
    [0, 1]
    """
    topology = topology_of(topology)
    if (pairs is None) == (links is None):
        raise ValueError("routes() takes either pairs or links")
    if pairs is not None:
        src, dst = (_npu_numbers(topology, ends) for ends in pairs)
        ends = column("src", src, np.int32), column("dst", dst, np.int32)
        return shortest_routes(topology, *ends, progress=progress)
    assert links is not None
    names = [kinds] * len(links) if isinstance(kinds, str) else list(kinds)
    unknown = set(names) - set(_KINDS)
    if unknown or len(names) != len(links):
        raise ValueError(
            f"kinds must be one of {', '.join(_KINDS)}, for all routes or for each; got {kinds!r}"
        )
    begin = np.zeros(len(links) + 1, np.int64)
    begin[1:] = np.cumsum([len(route) for route in links])
    chosen: list[Any] = [link for route in links for link in route]
    if not all(issubclass(one, int | np.integer) for one in {type(link) for link in chosen}):
        chosen = [link_of(topology, link) for link in chosen]
    flat = column("links", chosen, np.int32)
    return Routes(topology, np.array([_KINDS[name] for name in names], np.uint8), begin, flat)


def paths(
    topology: Topology,
    pairs: tuple[ArrayLike, ArrayLike],
    *,
    progress: Callable[[float], object] | None = None,
) -> Routes:
    """Return one path for each pair of NPUs, to count links and latencies: where messages divide, the destination chooses.

    >>> import tacos
    >>> tree = tacos.topology.fat_tree(2, 2)
    >>> routes(tree, pairs=([0], [2])).links.tolist(), paths(tree, ([0], [2])).links.tolist()
    ([0, 8, 9, 14, 15, 6], [0, 8, 14, 6])
    """
    if topology.routing != "spread":
        return routes(topology, pairs=pairs, progress=progress)
    chosen = Topology(**(fields(topology) | {"routing": "destination"}))
    table = routes(chosen, pairs=pairs, progress=progress)
    return Routes(topology, table.kinds, table.link_begin, table.links)


def routed(table: Routes) -> Routes:
    """Return a table in which every path through switches is replaced by the route that switches choose between its ports.

    >>> import tacos
    >>> tree = tacos.topology.fat_tree(2, 2)
    >>> explicit = routes(tree, links=[[(0, "switch 0"), ("switch 0", "switch 2"), ("switch 2", "switch 1"), ("switch 1", 2)]])
    >>> routed(explicit).kinds.tolist()
    [3]
    """
    return port_routes(table)


def _npu_numbers(topology: Topology, given: ArrayLike) -> ArrayLike:
    """Return NPUs as numbers; only names need a lookup."""
    if np.asarray(given).dtype.kind not in "UO":
        return given
    nodes = Nodes(topology)
    return [nodes.npu(one) for one in cast("Sequence[Any]", given)]


def retime(
    collective: Collective,
    routes: Routes,
    *,
    route: ArrayLike,
    chunk: ArrayLike,
    step: ArrayLike,
    op: ArrayLike = COPY,
    reads: ArrayLike = READ_ACC,
    provenance: Mapping[str, Any] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Give an ordered list of transfers the earliest start times under the topology's model.

    A transfer reads what transfers of earlier steps have written at its source. It starts as soon as that has
    arrived and its links are free. Steps order reads and writes; they are not barriers. A scalar stands for a
    whole column.

    Args:
        collective: A collective whose number of chunks is chosen.
        routes: The table of routes that ``route`` indexes.
        route, chunk, step, op, reads: One entry per transfer.
        provenance: How the list was made; stored in the schedule.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> topo = tacos.topology.ring(3, bandwidth="1GB/s", latency="1us", bidirectional=False)
    >>> coll = tacos.collective.broadcast(topo, "1KB", chunks=1)
    >>> table = routes(topo, pairs=([0, 1], [1, 2]))
    >>> retime(coll, table, route=[0, 1], chunk=0, step=[0, 1]).time_s  # twice 1 us + 1 us
    4e-06
    """
    rows = column("route", route, np.int32)

    def like(name: str, values: ArrayLike, dtype: type[np.integer[Any]]) -> NDArray[Any]:
        array = column(name, np.atleast_1d(np.asarray(values)), dtype)
        if array.size not in (1, rows.size):
            raise ValueError(f"{name} has {array.size} entries for {rows.size} transfers")
        return np.ascontiguousarray(np.broadcast_to(array, rows.shape))

    return _retime(
        collective,
        routes,
        rows,
        like("chunk", chunk, np.uint32),
        like("step", step, np.int32),
        like("op", op, np.uint8),
        like("reads", reads, np.uint8),
        provenance=json.dumps(dict(provenance or {})),
        progress=progress,
    )


def moved(schedule: Schedule, topology: Topology) -> Schedule:
    """Return a schedule on a network with the same nodes and links, such as one whose switches can do more.

    >>> import tacos
    >>> box, plain = tacos.topology.switch(4, multicast=True), tacos.topology.switch(4)
    >>> found = tacos.synthesize(plain, tacos.collective.all_gather(plain, "4MB"), engine="ring")
    >>> moved(found, box).topology == box, moved(found, box).time_ps == found.time_ps
    (True, True)
    """
    old = schedule.routes
    table = Routes(topology, old.kinds, old.link_begin, old.links)
    kept = fields(schedule) | {"routes": table}
    return Schedule(**kept).with_provenance(schedule.provenance)


def uses_switches(schedule: Schedule) -> bool:
    """Return whether a schedule multicasts or reduces in switches, which messages between NPUs cannot do.

    >>> import tacos
    >>> box = tacos.topology.switch(4, multicast=True, reduce=True)
    >>> found = tacos.synthesize(box, tacos.collective.all_reduce(box, "64MB"))
    >>> uses_switches(found)
    True
    """
    table, topology = schedule.routes, schedule.topology
    used = np.unique(schedule.lane_route)
    begin, end = table.link_begin[used], table.link_begin[used + 1]
    ends = np.stack(
        [topology.link_src[table.links[begin]], topology.link_dst[table.links[end - 1]]]
    )
    trees = np.isin(table.kinds[used], (_KINDS["multicast"], _KINDS["reduce"]))
    return bool(trees.any() or (ends >= topology.npus).any())


def summary(schedule: Schedule) -> dict[str, Any]:
    """Summarize a schedule in plain values, for JSON; the names give the units.

    ``chunks`` is the number of chunks per part, as ``chunks=`` takes it; ``total_chunks`` counts all.
    A schedule of the engine ``nccl`` also has ``nccl_tests_s``, the time that nccl-tests would report for stock NCCL. One for a
    target without sums in switches has ``in_switch_bound_s``, the bound with them, if they lower it. What follows ``ideal_s``
    is of the schedule's own routes and times.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(topo, "4MB", chunks=1)
    >>> facts = summary(tacos.synthesize(topo, coll, engine="ring"))
    >>> facts["transfers"], facts["link_bytes_max"], facts["executed_s"]
    (12, 3000000, 6.15e-05)
    """
    collective, provenance = schedule.collective, schedule.provenance
    used, carried = schedule.link_utilisation(), schedule.link_bytes()
    # NCCL does not refine its algorithms.
    stock = "estimate_s" in provenance and "refined_from_s" not in provenance
    measured = {"nccl_tests_s": provenance["estimate_s"]} if stock else {}
    least = schedule.in_switch_bound_ps
    missed = {} if least is None else {"in_switch_bound_s": least * 1e-12}
    busiest = (
        {"busiest_link": link_name(schedule.topology, int(used.argmax()))} if len(used) else {}
    )
    return {
        "topology": repr(schedule.topology)[len("<tacos.Topology ") : -1],
        "collective": collective.label,
        "size_bytes": collective.size_bytes,
        "engine": schedule.engine or None,
        "seed": provenance.get("seed"),
        "chunks": chunks_per_part(collective),
        "total_chunks": collective.chunks,
        "transfers": schedule.transfers,
        **({} if schedule.target is None else {"target": schedule.target}),
        "executed_s": schedule.executed_s,
        **measured,
        "algbw_Bps": schedule.algbw_Bps,
        "busbw_Bps": schedule.busbw_Bps,
        "efficiency": schedule.efficiency,
        **missed,
        "ideal_s": schedule.time_s,
        "utilisation_mean": float(used.mean()) if len(used) else 0.0,
        "utilisation_max": float(used.max(initial=0)),
        **busiest,
        "link_bytes_max": int(carried.max(initial=0)),
        "link_bytes_total": int(carried.sum()),
    }
