"""The data of the viewer's page: columns of limited size, for runs of any size.

The load of every link and the progress of every NPU cover all transfers, in equal intervals of
time. Individual transfers are kept for every n-th chunk, as many as fit, each with
its whole tree; the notes say which.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacos import units
from tacos.collective import kind_of
from tacos.errors import TacosError
from tacos.execution import execution
from tacos.schedule import summary
from tacos.simulate import simulate
from tacos.simulate.faults import fault_links, fault_words, straggler_words
from tacos.topology.faults import said
from tacos.view.curves import curves
from tacos.view.draw import caption, link_classes
from tacos.view.excerpt import excerpt
from tacos.view.layout import place

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Collective, Schedule, Topology
    from tacos.simulate import Trace

__all__ = ["DETAIL", "Record", "record"]

DETAIL = 2_000_000
"""Most transfers that a page shows individually; larger schedules show every n-th chunk."""
_BINS = 480
_MOST_CELLS = 8_000_000
_LARGEST = 2**32 - 1
_BYTES_PER_TRANSFER = 170
"""Peak memory per transfer of making a page."""
START, DATA, LINK, SLACK = 0, 1, 2, 3
"""Why a transfer of the critical path began when it did: at once, its data, a link, the schedule."""


_PICTURE_FACTS = (
    "title", "subtitle", "npus", "nodes", "links", "names", "pipelined", "whole_chunks", "radius", "width", "gap", "frames", "elastic",
    "classes", "boxes",
)  # fmt: skip
_PICTURE_COLUMNS = (
    "link_src", "link_dst", "link_bandwidth", "link_latency", "link_class", "link_box", "link_wide", "drawn_node", "node_xy",
    "node_half", "drawn_link", "link_points", "link_kind",
)  # fmt: skip


class Record(NamedTuple):
    """Plain values for JSON, and columns."""

    facts: dict[str, Any]
    columns: dict[str, NDArray[Any]]


def record(
    schedule: Schedule,
    trace: Trace | None = None,
    *,
    name: str = "",
    detail: int = DETAIL,
    like: Record | None = None,
    memory_limit: units.Quantity = "16GiB",
    progress: Callable[[float], object] | None = None,
) -> Record:
    """Return the data of a page for a schedule, or for its simulated trace.

    Args:
        schedule: The schedule.
        trace: The trace of a simulation; None for the schedule's own times.
        name: Name of the schedule.
        detail: The largest number of transfers that are kept individually.
        like: A record of the same schedule, whose picture of the network and executed times are reused.
        memory_limit: Raise an error instead of using more memory.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: The schedule's own times contradict each other.
        TacosError: It would use more memory than `memory_limit`.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(topo, "4MB", chunks=1)
    >>> found = record(tacos.synthesize(topo, coll, engine="ring"))
    >>> found.facts["transfers"], found.columns["chunk"].tolist()[:3]
    (12, [0, 3, 2])
    """
    need = schedule.transfers * _BYTES_PER_TRANSFER
    if need > (limit := units.size_bytes(memory_limit, what="memory_limit")):
        raise TacosError(
            f"a page of {schedule.transfers:,} transfers takes about {units.format_size(need)} of "
            f"memory, memory_limit is {units.format_size(limit)}"
        )
    packed = schedule.expand()
    if trace is None:
        trace = simulate(packed, timing="schedule", progress=progress)
    network = trace.topology
    tick = max(1, -(-trace.time_ps // _LARGEST))
    kept, every = _kept(packed, detail)
    notes = []
    if every > 1:
        notes.append(
            f"Of {packed.transfers:,} transfers {int(kept.sum()):,} can be looked at one by one: those "
            f"of every {_ordinal(every)} chunk. Colours, heat map, histogram and progress count all."
        )
    if like is None:
        if broken := said(network):
            notes.append(f"Faults: {'; '.join(broken)}.")
        facts, columns = _picture(network, notes)
        executed = execution(schedule)
        facts["executed"] = None if executed is None else executed.rows()
    else:
        facts = {name: like.facts[name] for name in (*_PICTURE_FACTS, "executed")}
        columns = {name: like.columns[name] for name in _PICTURE_COLUMNS}
        notes = list(like.facts["notes"])
    columns |= _overview(trace)
    columns |= _transfers(packed, trace, kept, tick)
    columns |= _chunks(packed.collective)
    columns |= _critical(packed, trace, tick)
    bins = len(columns["received_median"])
    leading = _leading(trace)
    facts |= summary(schedule) | {
        "name": name,
        "time_s": trace.time_s,
        "leading": leading,
        "leading_s": trace.time_s if leading == "simulated" else schedule.executed_s,
        "simulated": trace.timing != "schedule",
        "banner": _banner(trace),
        "disturbances": [list(pair) for pair in _disturbances(trace)],
        "faults": _faults(trace, tick),
        "bound_s": None if schedule.bound_ps is None else schedule.bound_ps * 1e-12,
        "tick_s": tick * 1e-12,
        "bins": bins,
        "every": every,
        "chosen": f"every {_ordinal(every)} chunk",
        "reducing": all(kind_of(part).reduces for part in packed.collective.parts),
        "notes": notes,
    }
    return Record(facts, columns)


def _kept(schedule: Schedule, detail: int) -> tuple[NDArray[np.bool_], int]:
    """Return which transfers are kept, and the step between kept chunks."""
    count = schedule.transfers
    if count <= detail:
        return np.ones(count, bool), 1
    chunks = schedule.collective.chunks
    every = min(chunks, -(-count // detail))
    wanted = np.arange(chunks) % every == 0
    return wanted[schedule.chunk], every


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 // 10 != 1 else 0, "th")
    return f"{number}{ending}"


def _picture(network: Topology, notes: list[str]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the positions of nodes and links, of the whole network or of an excerpt."""
    part = excerpt(network)
    if part.note:
        notes.append(part.note)
    layout = place(part.topology)
    ways = curves(part.topology, layout)
    title, subtitle = caption(network)
    classes, kind = link_classes(network)
    box = np.full(network.nodes, -1, np.int64)
    if len(layout.box):
        box[part.nodes] = layout.box
    inside = (box[network.link_src] == box[network.link_dst]) & (box[network.link_src] >= 0)
    facts: dict[str, Any] = {
        "title": title,
        "subtitle": subtitle,
        "npus": network.npus,
        "nodes": network.nodes,
        "links": network.links,
        "names": network.names,
        "pipelined": network.link_model == "pipelined",
        "whole_chunks": network.forwarding == "store_and_forward",
        "radius": ways.radius,
        "width": ways.width,
        "gap": layout.gap(),
        "frames": [[f.left, f.top, f.right, f.bottom, f.label] for f in layout.frames],
        "elastic": layout.elastic,
        "classes": [one.text for one in classes],
        "boxes": [layout.box_name(b) for b in range(int(layout.box.max(initial=-1)) + 1)],
    }
    columns: dict[str, NDArray[Any]] = {
        "link_src": network.link_src,
        "link_dst": network.link_dst,
        "link_bandwidth": network.link_bandwidth_Bps.astype(np.float64),
        "link_latency": network.link_latency_ps * 1e-12,
        "link_class": kind.astype(np.uint8),
        "link_box": np.where(inside, box[network.link_src], -1).astype(np.int32),
        "link_wide": _widths(network).astype(np.float32),
        "drawn_node": part.nodes.astype(np.uint32),
        "node_xy": layout.xy.astype(np.float32).ravel(),
        "node_half": layout.half.astype(np.float32),
        "drawn_link": part.links.astype(np.uint32),
        "link_points": ways.points.ravel(),
        "link_kind": ways.kind,
    }
    return facts, columns


def _widths(network: Topology) -> NDArray[np.float64]:
    """Return the drawn width of each link: 1 for the fastest, by the logarithm of its bandwidth."""
    speed = np.log2(network.link_bandwidth_Bps)
    below = speed.max(initial=0.0) - speed
    return np.asarray(np.maximum(1 - 0.25 * below, 0.25))


def _banner(trace: Trace) -> str:
    """Return a description of the simulation; empty for the schedule's own times."""
    if trace.timing == "schedule" and not trace.disturbed:
        return ""
    if trace.provenance.get("program"):
        return f"executed as a program: {trace.rule}"
    said = [words for _, words in _disturbances(trace)]
    return f"simulated: {'; '.join(said) or trace.rule}"


def _leading(trace: Trace) -> str:
    """Return which time counts: the executed one, unless users simulated something themselves."""
    ours = trace.timing == "schedule" or trace.provenance.get("program")
    return "executed" if ours and not trace.disturbed else "simulated"


def _disturbances(trace: Trace) -> list[tuple[str, str]]:
    """Return what was simulated to go wrong: kinds and words."""
    network = trace.topology
    said = [("fault", fault_words(network, fault)) for fault in trace.faults]
    said += [("straggler", straggler_words(network, one)) for one in trace.stragglers]
    if trace.jitter_ps:
        late = units.format_time(trace.jitter_ps * 1e-12)
        said.append(("jitter", f"deliveries up to {late} late"))
    return said


def _faults(trace: Trace, tick: int) -> list[dict[str, Any]]:
    """Return the times in which links are down or slow, in ticks."""
    rows = []
    for fault in trace.faults:
        begin, end = fault.window_ps()
        last = trace.time_ps if end is None else min(end, trace.time_ps)
        if begin < last:
            links = fault_links(trace.topology, fault)
            down = math.isinf(fault.slowdown)
            words = fault_words(trace.topology, fault)
            rows.append({"links": links, "begin": begin // tick, "end": last // tick})
            rows[-1] |= {"down": down, "words": words}
    return rows


def _overview(trace: Trace) -> dict[str, NDArray[Any]]:
    """Return the load of links and the progress of NPUs over time, for all transfers."""
    rows = max(trace.topology.links, trace.topology.npus, 1)
    bins = int(np.clip(_MOST_CELLS // rows, 8, _BINS))
    busy = np.clip(trace.utilisation_over_time(bins)[1], 0, 1)
    got = trace.npu_progress(bins)[1]
    share = got / np.maximum(got[:, -1:], 1)
    taking_part = share[got[:, -1] > 0] if (got[:, -1] > 0).any() else share
    return {
        "busy": np.rint(busy * 255).astype(np.uint8).ravel(),
        "utilisation": busy.mean(axis=1).astype(np.float32),
        "received": np.rint(share * 255).astype(np.uint8).ravel(),
        "received_bytes": got[:, -1].astype(np.float64),
        "received_least": taking_part.min(axis=0).astype(np.float32),
        "received_median": np.median(taking_part, axis=0).astype(np.float32),
        "received_most": taking_part.max(axis=0).astype(np.float32),
    }


def _transfers(
    schedule: Schedule, trace: Trace, kept: NDArray[np.bool_], tick: int
) -> dict[str, NDArray[Any]]:
    """Return transfers, with their intervals grouped by link and their arrivals grouped by NPU."""
    number = np.cumsum(kept, dtype=np.int64) - 1
    lane = np.repeat(np.arange(len(schedule.lane_route)), np.diff(schedule.lane_begin))
    table = schedule.routes
    counts = np.diff(table.link_begin)[schedule.lane_route]
    first = np.repeat(table.link_begin[schedule.lane_route], counts)
    within = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)

    mine = np.flatnonzero(kept[trace.transfer])
    mine = mine[np.argsort(trace.link[mine], kind="stable")]
    begin = trace.begin_ps[mine] // tick
    here = np.flatnonzero(kept[trace.arrival_transfer])
    here = here[np.argsort(trace.arrival_npu[here], kind="stable")]
    return {
        "lane_count": np.bincount(lane[kept], minlength=len(schedule.lane_route)).astype(np.uint32),
        "lane_op": schedule.lane_op,
        "lane_reads": schedule.lane_reads,
        "lane_kind": table.kinds[schedule.lane_route],
        "lane_links": counts.astype(np.uint32),
        "lane_link": table.links[first + within].astype(np.uint32),
        "chunk": schedule.chunk[kept],
        "link_count": np.bincount(trace.link[mine], minlength=trace.topology.links).astype(
            np.uint32
        ),
        "busy_transfer": number[trace.transfer[mine]].astype(np.uint32),
        "busy_begin": begin.astype(np.uint32),
        "busy_length": (trace.end_ps[mine] // tick - begin).astype(np.uint32),
        "npu_count": np.bincount(trace.arrival_npu[here], minlength=trace.topology.npus).astype(
            np.uint32
        ),
        "arrival_transfer": number[trace.arrival_transfer[here]].astype(np.uint32),
        "arrival_time": (trace.arrival_ps[here] // tick).astype(np.uint32),
    }


def _chunks(collective: Collective) -> dict[str, NDArray[Any]]:
    """Return, per chunk, its size and the NPU that holds it at the start; -1 if several contribute."""
    sizes = collective.chunk_bytes()
    source = np.full(collective.chunks, -1, np.int32)
    if not all(kind_of(part).reduces for part in collective.parts):
        chunk, npu = collective.precondition()
        holders = np.bincount(chunk, minlength=collective.chunks)
        single = holders[chunk] == 1
        source[chunk[single]] = npu[single]
    if len(sizes) and (sizes == sizes[0]).all():
        sizes = sizes[:1]
    return {"chunk_bytes": sizes.astype(np.float64), "chunk_source": source}


def _critical(schedule: Schedule, trace: Trace, tick: int) -> dict[str, NDArray[Any]]:
    """Return the critical path: the chain of transfers that ends last, in order."""
    chain, why = _chain(trace)
    lane = np.searchsorted(schedule.lane_begin, chain, side="right") - 1
    begin = np.diff(schedule.routes.link_begin)
    route = schedule.lane_route[lane]
    start, arrival = _first_and_last(trace)
    links = [
        schedule.routes.links[a : a + n]
        for a, n in zip(schedule.routes.link_begin[route], begin[route], strict=True)
    ]
    flat = np.concatenate(links) if links else np.zeros(0, np.int32)
    return {
        "path_chunk": schedule.chunk[chain],
        "path_begin": (start[chain] // tick).astype(np.uint32),
        "path_end": (arrival[chain] // tick).astype(np.uint32),
        "path_why": why,
        "path_links": begin[route].astype(np.uint32),
        "path_link": flat.astype(np.uint32),
    }


def _first_and_last(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when each transfer took its first link, and when it had arrived at all destinations."""
    count = int(trace.transfer.max(initial=-1)) + 1
    start = np.zeros(count, np.int64)
    start[trace.transfer[::-1]] = trace.begin_ps[::-1]  # intervals begin in order of time
    arrival = start.copy()
    arrival[trace.arrival_transfer] = trace.arrival_ps
    return start, arrival


def _chain(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return the transfers of the critical path, and what each waited for.

    Go back from the last arrival. The predecessor of a transfer is the one whose data arrived, or that left a
    link, most recently before it began.
    """
    if not len(trace.arrival_ps) or (trace.cause is None and trace.chunk is None):
        return np.zeros(0, np.int64), np.zeros(0, np.uint8)
    start, arrival = _first_and_last(trace)
    cause = trace.cause if trace.cause is not None else _last_data(trace, start)
    by_link = np.argsort(trace.link, kind="stable")
    place_of = np.empty(len(by_link), np.int64)
    place_of[by_link] = np.arange(len(by_link))
    by_transfer = np.argsort(trace.transfer, kind="stable")
    first = np.searchsorted(trace.transfer[by_transfer], np.arange(len(start) + 1))
    chain, why = [int(trace.arrival_transfer[-1])], []
    while len(chain) <= len(start):
        at = chain[-1]
        before, reason, wait = -1, START, math.inf
        if (data := int(cause[at])) >= 0 and start[data] < start[at]:
            before, reason, wait = data, DATA, max(int(start[at] - arrival[data]), 0)
        for interval in by_transfer[first[at] : first[at + 1]].tolist():
            place = int(place_of[interval])
            last = int(by_link[place - 1]) if place else interval
            if last != interval and trace.link[last] == trace.link[interval]:
                free = int(trace.begin_ps[interval] - trace.end_ps[last])
                if 0 <= free < wait and start[trace.transfer[last]] < start[at]:
                    before, reason, wait = int(trace.transfer[last]), LINK, free
        if before < 0:
            why.append(SLACK if start[at] > 0 else START)
            break
        why.append(SLACK if wait > 0 else reason)
        chain.append(before)
    return np.array(chain[::-1], np.int64), np.array(why[::-1], np.uint8)


def _last_data(trace: Trace, start: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, per transfer, the last one that brought its chunk to its source before it started; -1: none."""
    assert trace.chunk is not None
    source = np.zeros(len(start), np.int64)
    source[trace.transfer[::-1]] = trace.topology.link_src[trace.link[::-1]]
    chunks = trace.chunk[: len(start)].astype(np.int64)
    key = trace.arrival_npu.astype(np.int64) << 32 | chunks[trace.arrival_transfer]
    order = np.lexsort((trace.arrival_ps, key))
    # Sort keys and times together: the entry before a start is the last arrival that is not later.
    pairs = np.stack([key[order], trace.arrival_ps[order]])
    wanted = np.stack([source << 32 | chunks, start])
    joined = np.concatenate([pairs, wanted], axis=1)
    late = np.concatenate([np.zeros(len(order), np.int64), np.ones(len(start), np.int64)])
    ranked = np.lexsort((late, joined[1], joined[0]))
    seen = np.maximum.accumulate(np.where(ranked < len(order), ranked, -1))
    at = np.empty(joined.shape[1], np.int64)
    at[ranked] = seen
    found = at[len(order) :]
    same = (found >= 0) & (pairs[0, found] == wanted[0])
    return np.where(same, trace.arrival_transfer[order[found]], -1)
