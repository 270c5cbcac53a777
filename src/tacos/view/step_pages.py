"""The viewer's page of a training step: the timeline of its workload, and its collectives."""

from __future__ import annotations

from dataclasses import fields, replace
from math import log2
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._support.files import replacing
from tacos.errors import TacosError
from tacos.simulate.timeline import Timeline
from tacos.training.models import Transformer
from tacos.training.step import step as predict
from tacos.units import format_size, format_time
from tacos.view.page import Page
from tacos.view.record import Record, record
from tacos.view.spans import collective_key, span_columns, span_record
from tacos.workload import COLL, COMMS, COMP, RECV, SEND

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Schedule, Workload
    from tacos.training.step import Step

__all__ = ["step_page", "step_timeline", "write_step_page"]

_GRAPH = 300_000
"""Most nodes of a step that is shown node by node; larger steps show the passes of one rank per stage."""
_VIEWS = 6
"""Most collectives of a step with views of their own; those that take the most time come first."""
_LONGEST = 100_000
"""Most transfers of a collective with a view."""
_APART = 0.01
"""Relative difference between timeline and prediction above which the page mentions it."""
_COMM_NAMES = {number: name for name, number in COMMS.items()}
_PASSES = ("forward", "backward", "weights")


def step_page(
    step: Step, *, title: str = "", progress: Callable[[float], object] | None = None
) -> str:
    """Return the viewer's page of a training step as HTML text: its timeline, and its collectives one click away.

    The timeline shows every rank or, for a large step, the passes of one rank per pipeline stage. The collectives
    that take the most time have their own views: the algorithm of one group, on the links available to it.

    Args:
        step: The result of :func:`tacos.training.step.step`.
        title: Title of the page.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: The step is the result of a search, which keeps only figures.

    >>> import tacos
    >>> from tacos import training
    >>> model = training.Transformer(name="small", layers=2, hidden=1024, heads=16, ffn=4096, vocabulary=32000, sequence=512)
    >>> step = training.step(model, training.Parallelism(tp=4, batch=2), tacos.topology.ring(4))
    >>> "tp all-reduce" in step_page(step)
    True
    """
    name = (
        title or f"training step of {step.model.name} on {step.parallel.npus:,} {step.device.name}"
    )
    made = Page()
    made.add_view("step")
    opened: dict[tuple[str, int, int], int] = {}
    long = _is_long(step)
    line = None if long else step_timeline(step)
    for keys, schedule in _schedules(step, line or step_timeline(_shortened(step)), progress):
        family, comm, _ = keys[0]
        words = f"{family} {_COMM_NAMES[comm].replace('_', '-')}"
        run = made.add_run(record(schedule, name=words))
        size = format_size(schedule.collective.size_bytes)
        view = made.add_view(f"{words}, {size}", runs=[run])
        opened |= dict.fromkeys(keys, view)
    spans = (
        _pass_spans(step, name)
        if line is None
        else span_columns(line, name, _summary(step), opened)
    )
    notes = list(spans.facts["notes"])
    if abs(spans.facts["time_s"] / step.time_s - 1) > _APART:
        ends = format_time(spans.facts["time_s"])
        notes.append(
            f"This timeline, with every operation simulated, ends at {ends}; the prediction, which "
            f"counts by stage, is {format_time(step.time_s)}."
        )
    titles = [[view, made.views[view]["title"]] for view in dict.fromkeys(opened.values())]
    made.views[0]["timeline"] = made.add_timeline(
        Record(spans.facts | {"opens": titles, "notes": notes}, spans.columns)
    )
    return made.html()


def write_step_page(
    path: str | os.PathLike[str],
    step: Step,
    *,
    title: str = "",
    progress: Callable[[float], object] | None = None,
) -> None:
    """Write the page of a training step to a file, atomically; the options are those of `step_page`.

    >>> import tacos, tempfile, pathlib
    >>> from tacos import training
    >>> model = training.Transformer(name="small", layers=2, hidden=1024, heads=16, ffn=4096, vocabulary=32000, sequence=512)
    >>> step = training.step(model, training.Parallelism(tp=4, batch=2), tacos.topology.ring(4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_step_page(f"{folder}/step.html", step)
    ...     pathlib.Path(folder, "step.html").stat().st_size > 1000
    True
    """
    text = step_page(step, title=title, progress=progress)
    with replacing(path) as out:
        out.write(text.encode())


# --- when the nodes of a step run -----------------------------------------------------------------


def step_timeline(step: Step) -> Timeline:
    """Return when each node of a step's workload runs, with the step's costs of collectives.

    A node begins when its dependencies have ended, a collective when it can begin on all ranks of its group, and a
    receive ends when the message has been sent. A step that was simulated node by node keeps its own times.

    >>> import tacos
    >>> from tacos import training
    >>> model = training.Transformer(name="small", layers=2, hidden=1024, heads=16, ffn=4096, vocabulary=32000, sequence=512)
    >>> step = training.step(model, training.Parallelism(tp=2, pp=2, batch=4), tacos.topology.ring(4))
    >>> line = step_timeline(step)
    >>> abs(int(line.end_ps.max()) * 1e-12 / step.time_s - 1) < 0.05
    True
    """
    ran: Timeline | None = getattr(step, "ran", None)
    if ran is not None:
        return ran
    workload = step.workload
    unit, lasts = _units(workload), np.where(workload.kind == COMP, workload.duration_ps, 0)
    for rows in _alike(workload, workload.kind == COLL):
        lasts[rows] = round(_collective_s(step, workload, int(rows[0])) * 1e12)
    lasts = lasts + _message_ps(step, workload)
    begin, end = _longest(workload, unit, lasts)
    return Timeline(workload, begin, end)


def _tables(step: Step) -> dict[str, NDArray[np.int32]]:
    """Return all groups of each family, by the first word of its collectives' names."""
    assert step.folded is not None
    groups = step.folded.groups
    found = {one.name: getattr(groups, one.name) for one in fields(groups)}
    return found | {"embedding": np.ascontiguousarray(groups.pp[:, [0, -1]])}


def _whole(key: tuple[str, int, int], members: int) -> int:
    """Return the size of a collective's whole buffer."""
    _, comm, size = key
    return size * members if _COMM_NAMES[comm] == "all_gather" else size


def _collective_s(step: Step, workload: Workload, row: int) -> float:
    assert step.folded is not None
    family, comm, _ = key = collective_key(workload, row)
    table = _tables(step)[family]
    costs = step.folded.costs.of(table)
    return costs.seconds(_COMM_NAMES[comm], _whole(key, table.shape[1]))


def _alike(workload: Workload, these: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Group rows with the same name, kind and size."""
    rows = np.flatnonzero(these)
    if not len(rows):
        return []
    columns = np.stack([workload.name[rows], workload.comm[rows], workload.bytes[rows]])
    _, group = np.unique(columns, axis=1, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    return np.split(rows[order], np.cumsum(np.bincount(group.ravel()))[:-1])


def _message_ps(step: Step, workload: Workload) -> NDArray[np.int64]:
    """Return how long each message takes; 0 for all other nodes."""
    assert step.folded is not None
    lasts = np.zeros(workload.nodes, np.int64)
    rows = np.flatnonzero((workload.kind == SEND) & (workload.rank != workload.peer))
    for size in np.unique(workload.bytes[rows]).tolist():
        these = rows[workload.bytes[rows] == size]
        ends = np.stack([workload.rank[these], workload.peer[these]], 1)
        pairs, which = np.unique(ends, axis=0, return_inverse=True)
        sources, targets = (np.ascontiguousarray(pairs[:, k], np.int32) for k in (0, 1))
        took = step.folded.costs.messages(sources, targets, float(size))
        lasts[these] = np.rint(took * 1e12).astype(np.int64)[which.ravel()]
    return lasts


def _units(workload: Workload) -> NDArray[np.int64]:
    """Return a number per node that is equal for nodes that run together: a collective's ranks, a message's ends."""
    w = workload
    unit = np.arange(w.nodes)
    colls = np.flatnonzero(w.kind == COLL)
    order = colls[np.lexsort((colls, w.rank[colls], w.group[colls]))]
    turn = _turns(np.stack([w.group[order], w.rank[order]]))
    unit[order] = _firsts(np.stack([w.group[order], turn]), order)
    ends = []
    for kind, source, target in ((SEND, w.rank, w.peer), (RECV, w.peer, w.rank)):
        rows = np.flatnonzero(w.kind == kind)
        ends.append(
            rows[np.lexsort((rows, w.bytes[rows], w.tag[rows], target[rows], source[rows]))]
        )
    if len(ends[0]) == len(ends[1]):
        unit[ends[1]] = ends[0]
    return unit


def _turns(keys: NDArray[Any]) -> NDArray[np.int64]:
    """Return, per column of sorted keys, the number of equal columns before it."""
    count = keys.shape[1]
    fresh = np.r_[True, (keys[:, 1:] != keys[:, :-1]).any(axis=0)][:count]
    first = np.maximum.accumulate(np.where(fresh, np.arange(count), 0))
    return np.arange(count) - first


def _firsts(keys: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, per column, the first row with the same keys."""
    if not len(rows):
        return rows
    _, which = np.unique(keys, axis=1, return_inverse=True)
    first = np.full(int(which.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, which.ravel(), rows)
    return first[which.ravel()]


def _longest(
    workload: Workload, unit: NDArray[np.int64], lasts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the begin and end of every node: a unit begins when all dependencies of its nodes have ended."""
    count = workload.nodes
    source = unit[workload.dep]
    target = unit[np.repeat(np.arange(count), np.diff(workload.dep_begin))]
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], np.arange(count + 1)).tolist()
    after = target[order].tolist()
    waits = np.bincount(target, minlength=count).tolist()
    long = np.zeros(count, np.int64)
    np.maximum.at(long, unit, lasts)
    length, ready = long.tolist(), [0] * count
    queue = [u for u in np.unique(unit).tolist() if not waits[u]]
    for one in queue:  # the loop appends to it
        done = ready[one] + length[one]
        for place in range(first[one], first[one + 1]):
            then = after[place]
            ready[then] = max(ready[then], done)
            waits[then] -= 1
            if not waits[then]:
                queue.append(then)
    begin = np.array(ready, np.int64)[unit]
    return begin, begin + long[unit]


# --- steps ----------------------------------------------------------------------------------------


def _summary(step: Step) -> list[tuple[str, str]]:
    rows = [
        ("step", format_time(step.time_s)),
        ("MFU", f"{100 * step.mfu:.1f} %"),
        ("memory", f"{format_size(step.memory_bytes)} per NPU"),
        ("collectives", step.collectives),
    ]
    for name, seconds in step.parts.items():
        if seconds > 0:
            rows.append((name, f"{format_time(seconds)}, {100 * seconds / step.time_s:.1f} %"))
    return rows


def _is_long(step: Step) -> bool:
    """Return whether a step's graph has too many nodes for a page, by an estimate without the graph."""
    if getattr(step, "ran", None) is not None:
        return False
    split = step.parallel
    layers = step.model.layers / split.pp
    return split.npus * split.microbatches * layers * 12 > _GRAPH


def _pass_spans(step: Step, title: str) -> Record:
    """Return the passes of a step's pipeline for one rank per stage."""
    times = step.passes
    if times is None:
        raise ValueError("a step of a search has no timeline: predict it again with step()")
    order = np.lexsort((times.start_ps, times.stage))
    stage, kind = times.stage[order], times.kind[order]
    assert step.folded is not None
    rank = step.folded.groups.pp[0][stage]
    batch, chunk = times.microbatch[order].tolist(), times.chunk[order].tolist()
    many = step.parallel.vp > 1
    labels = [
        f"{_PASSES[k]} {b}" + (f", part {c}" if many else "")
        for k, b, c in zip(kind.tolist(), batch, chunk, strict=True)
    ]
    none = np.full(len(order), -1)
    spans = span_record(
        title,
        _summary(step),
        ["One rank of each pipeline stage; each span is a pass with its exposed communication."],
        ranks=step.parallel.npus,
        shown=np.unique(rank),
        streams=["passes"],
        rank=rank,
        stream=np.zeros(len(order), np.uint8),
        begin_ps=times.start_ps[order],
        end_ps=times.end_ps[order],
        labels=labels,
        categories=[_PASSES[k] for k in kind.tolist()],
        bytes=np.zeros(len(order)),
        members=np.zeros(len(order), np.int64),
        after=none,
        views=none,
        time_ps=max(int(times.end_ps.max()), round(step.time_s * 1e12)),
    )
    by_rank = np.argsort(spans.columns["span_rank"], kind="stable")
    return Record(spans.facts, {name: column[by_rank] for name, column in spans.columns.items()})


def _shortened(step: Step) -> Step:
    """Return the step with one layer per stage and one micro-batch, which has the same collectives."""
    split = step.parallel
    assert step.folded is not None
    layers = split.pp * split.vp
    model = (
        replace(step.model, layers=layers) if isinstance(step.model, Transformer) else step.model
    )
    batch = split.microbatch * split.dp * (split.pp if split.vp > 1 else 1)
    return predict(
        model,
        replace(split, batch=batch, count_embedding=False),
        step.folded.topology,
        device=step.device,
        dtype=step.dtype,
        collectives=step.collectives,
        oversubscribe=True,
    )


def _schedules(
    step: Step, line: Timeline, progress: Callable[[float], object] | None
) -> list[tuple[list[tuple[str, int, int]], Schedule]]:
    """Return the algorithms of the step's longest collectives, one for each group of similar sizes."""
    if step.collectives == "free" or step.folded is None:
        return []
    w = line.workload
    took: dict[tuple[str, int, int], int] = {}
    alike: dict[tuple[str, int, int], list[tuple[str, int, int]]] = {}
    for rows in _alike(w, w.kind == COLL):
        family, comm, size = key = collective_key(w, int(rows[0]))
        about = family, comm, round(16 * log2(max(size, 1)))
        alike.setdefault(about, []).append(key)
        took[about] = took.get(about, 0) + int((line.end_ps[rows] - line.begin_ps[rows]).sum())
    chosen = sorted(took, key=lambda about: -took[about])[:_VIEWS]
    found = []
    for done, about in enumerate(chosen):
        family, comm, _ = key = max(alike[about])
        table = _tables(step)[family]
        try:
            costs = step.folded.costs.of(table)
            schedule = costs.schedule(_COMM_NAMES[comm], _whole(key, table.shape[1]))
        except (TacosError, ValueError):  # tuned algorithms, or a kind without a schedule
            continue
        if schedule.transfers <= _LONGEST:
            found.append((alike[about], schedule))
        if progress is not None:
            progress((done + 1) / len(chosen))
    return found
