"""Timelines for the viewer's page: the nodes of each rank of a workload over time.

Spans are sorted by rank, stream and time. The collectives of each family (``tp``, ``dp``) have their own stream, and
overlapping spans of one stream are put into several rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._support.files import replacing
from tacos.simulate.timeline import STREAMS, Timeline
from tacos.view.page import Page
from tacos.view.record import Record
from tacos.workload import COLL, COMMS, RECV, SEND

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tacos._core import Workload

__all__ = [
    "collective_key",
    "span_columns",
    "span_record",
    "timeline_page",
    "tracks",
    "write_timeline_page",
]

_MOST = 400_000
"""Most spans of a page; longer timelines show evenly chosen ranks."""
_CATEGORIES = 10
"""Number of colours; categories that take the least time share the last one."""
_LARGEST = 2**32 - 1


def timeline_page(
    line: Timeline, *, title: str = "timeline", summary: Sequence[tuple[str, str]] = ()
) -> str:
    """Return the viewer's page of a timeline as HTML text: ranks and their streams over time.

    Args:
        line: When each node ran.
        title: Title of the page.
        summary: Names and values to show beside the timeline.

    >>> from tacos.workload import COMP, from_nodes
    >>> one = from_nodes(1, rank=[0], kind=COMP, duration_ps=5000)
    >>> "<!doctype html>" in timeline_page(Timeline(one, np.array([0]), np.array([5000])))
    True
    """
    made = Page()
    made.add_view("timeline", timeline=made.add_timeline(span_columns(line, title, summary, {})))
    return made.html()


def write_timeline_page(
    path: str | os.PathLike[str],
    line: Timeline,
    *,
    title: str = "timeline",
    summary: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the page of a timeline to a file, atomically; the options are those of `timeline_page`.

    >>> import tempfile, pathlib
    >>> from tacos.workload import COMP, from_nodes
    >>> line = Timeline(from_nodes(1, rank=[0], kind=COMP, duration_ps=5000), np.array([0]), np.array([5000]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_timeline_page(f"{folder}/line.html", line)
    ...     pathlib.Path(folder, "line.html").stat().st_size > 1000
    True
    """
    text = timeline_page(line, title=title, summary=summary)
    with replacing(path) as out:
        out.write(text.encode())


# --- columns --------------------------------------------------------------------------------------


def span_columns(
    line: Timeline,
    title: str,
    summary: Sequence[tuple[str, str]],
    opened: dict[tuple[str, int, int], int],
) -> Record:
    """Return the columns of a timeline."""
    w = line.workload
    ranks = np.arange(w.npus)
    notes = []
    rows = np.arange(w.nodes)
    if w.nodes > _MOST:
        every = -(-w.nodes // _MOST)
        ranks = ranks[::every]
        rows = np.flatnonzero(np.isin(w.rank, ranks))
        notes.append(f"{len(ranks):,} of {w.npus:,} ranks are shown, evenly chosen.")
    labels = [line.label(row) for row in rows.tolist()]
    streams = _streams(line, rows, labels)
    category = _categories(line, rows, labels)
    after = _after(line)
    track, names = tracks(w.rank[rows], streams, line.begin_ps[rows], line.end_ps[rows])
    order = np.lexsort((line.begin_ps[rows], track, w.rank[rows]))
    place = np.full(w.nodes + 1, -1, np.int64)
    place[rows[order]] = np.arange(len(order))
    members = {0: w.npus} | {number: len(group) for number, group in w.groups}
    colls = w.kind[rows] == COLL
    views = [opened.get(collective_key(w, row), -1) if coll and opened else -1
             for row, coll in zip(rows.tolist(), colls.tolist(), strict=True)]  # fmt: skip
    group = [members.get(number, 0) if coll else 0
             for number, coll in zip(w.group[rows].tolist(), colls.tolist(), strict=True)]  # fmt: skip
    return span_record(
        title,
        summary,
        notes,
        ranks=w.npus,
        shown=ranks,
        streams=names,
        rank=w.rank[rows][order],
        stream=track[order],
        begin_ps=line.begin_ps[rows][order],
        end_ps=line.end_ps[rows][order],
        labels=[labels[k] for k in order.tolist()],
        categories=[category[k] for k in order.tolist()],
        bytes=w.bytes[rows][order],
        members=np.array(group, np.int64)[order],
        after=place[after[rows][order]],
        views=np.array(views, np.int64)[order],
        time_ps=int(line.end_ps.max(initial=0)),
    )


def _streams(line: Timeline, rows: NDArray[np.int64], labels: list[str]) -> list[str]:
    """Return the stream of each node; collectives get that of their family, if their names contain one."""
    found = [STREAMS[k] for k in line.stream[rows].tolist()]
    for k, row in enumerate(rows.tolist()):
        if line.workload.kind[row] == COLL:
            family, _, rest = labels[k].partition(" ")
            if rest.replace("-", "_") in COMMS:
                found[k] = family
        elif line.workload.kind[row] == SEND:
            found[k] = "send"
    return found


def _categories(line: Timeline, rows: NDArray[np.int64], labels: list[str]) -> list[str]:
    """Return each node's category: a computation's first word, or another node's name without numbers."""
    kinds = line.workload.kind
    found = []
    for row, label in zip(rows.tolist(), labels, strict=True):
        if kinds[row] == SEND:
            found.append("send")
        elif kinds[row] == RECV:
            found.append("receive")
        elif kinds[row] == COLL:
            found.append(label)
        else:
            found.append(label.partition(" ")[0])
    return found


def _after(line: Timeline) -> NDArray[np.int64]:
    """Return, per node, the dependency that ended last; -1 if it has none."""
    w = line.workload
    waiting = np.repeat(np.arange(w.nodes), np.diff(w.dep_begin))
    order = np.lexsort((line.end_ps[w.dep], waiting))
    last = np.full(w.nodes, -1, np.int64)
    last[waiting[order]] = w.dep[order]  # the latest comes last
    return last


def tracks(
    rank: NDArray[Any], streams: list[str], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the row of each span within its rank, and the names of the rows; spans of a row do not overlap."""
    first = {name: k for k, name in enumerate(STREAMS[:1])}
    for name in sorted(set(streams) - set(first)):
        first.setdefault(name, len(first))
    number = np.array([first[name] for name in streams], np.int64)
    free: dict[tuple[int, int], list[int]] = {}
    track = np.zeros(len(streams), np.int64)
    for k in np.argsort(begin, kind="stable").tolist():
        ends = free.setdefault((int(rank[k]), int(number[k])), [])
        row = next((i for i, until in enumerate(ends) if until <= begin[k]), len(ends))
        row = min(row, 3)
        ends[row : row + 1] = [int(end[k])]
        track[k] = 4 * number[k] + row
    used = np.unique(track)
    words = list(first)
    names = [words[k // 4] + (f" {k % 4 + 1}" if k % 4 else "") for k in used.tolist()]
    return np.searchsorted(used, track), names


def span_record(
    title: str,
    summary: Sequence[tuple[str, str]],
    notes: list[str],
    *,
    ranks: int,
    shown: NDArray[Any],
    streams: list[str],
    rank: NDArray[Any],
    stream: NDArray[Any],
    begin_ps: NDArray[np.int64],
    end_ps: NDArray[np.int64],
    labels: list[str],
    categories: list[str],
    bytes: NDArray[Any],
    members: NDArray[np.int64],
    after: NDArray[np.int64],
    views: NDArray[np.int64],
    time_ps: int,
    headline: str = "",
    looks: Mapping[str, tuple[str, bool]] | None = None,
    marked: Sequence[int] = (),
    details: Sequence[Sequence[tuple[str, str]]] = (),
) -> Record:
    """Return the columns of spans that are sorted by rank, stream and time.

    Args:
        title: Title of the timeline.
        summary: Names and values for the panel.
        notes: Sentences above the picture.
        ranks: The number of ranks of the job.
        shown: The ranks in the picture.
        streams: The names of the rows of a rank.
        rank: Per span, its rank.
        stream: Per span, its row.
        begin_ps: Per span, when it begins.
        end_ps: Per span, when it ends.
        labels: Per span, its name.
        categories: Per span, the meaning of its colour.
        bytes: Per span, its size; 0 for none.
        members: Per span, the number of ranks in its group; 0 for none.
        after: Per span, the last span that it waited for, or -1.
        views: Per span, the view that shows its collective, or -1.
        time_ps: The end of the picture.
        headline: The first sentence of the page.
        looks: Per category, a colour of the theme and whether it is hatched; by default colours in order.
        marked: Ranks whose rows stand out.
        details: Per span, further names and values for the panel.
    """
    tick = max(1, -(-time_ps // _LARGEST))
    names = {name: k for k, name in enumerate(dict.fromkeys(labels))}
    busy: dict[str, int] = {}
    for name, took in zip(categories, (end_ps - begin_ps).tolist(), strict=True):
        busy[name] = busy.get(name, 0) + took
    kept = sorted(busy, key=lambda name: -busy[name])
    if len(kept) > _CATEGORIES:
        kept = [*kept[: _CATEGORIES - 1], "other"]
    if looks is not None:  # in the order of the looks, not by time
        kept = [name for name in looks if name in busy]
    colour = {name: k for k, name in enumerate(kept)}
    begin = begin_ps // tick
    said: dict[tuple[tuple[str, str], ...], int] = {}
    detail = [said.setdefault(tuple(one), len(said)) for one in details]
    facts = {
        "title": title,
        "time_s": time_ps * 1e-12,
        "tick_s": tick * 1e-12,
        "ranks": ranks,
        "shown": shown.tolist(),
        "streams": streams,
        "names": list(names),
        "categories": kept,
        "summary": [list(pair) for pair in summary],
        "opens": [],
        "notes": notes,
        "headline": headline,
        "looks": [list(looks[name]) for name in kept] if looks else [],
        "marked": list(marked),
        "details": [[list(pair) for pair in one] for one in said],
    }
    columns: dict[str, NDArray[Any]] = {
        "span_rank": rank.astype(np.uint32),
        "span_stream": stream.astype(np.uint8),
        "span_begin": begin.astype(np.uint32),
        "span_length": (end_ps // tick - begin).astype(np.uint32),
        "span_name": np.array([names[label] for label in labels], np.uint32),
        "span_category": np.array([colour.get(c, len(kept) - 1) for c in categories], np.uint8),
        "span_bytes": bytes.astype(np.float64),
        "span_members": members.astype(np.uint32),
        "span_after": after.astype(np.int32),
        "span_view": views.astype(np.int32),
    }
    if detail:
        columns["span_detail"] = np.array(detail, np.uint32)
    return Record(facts, columns)


def collective_key(workload: Workload, row: int) -> tuple[str, int, int]:
    """Return the family, kind and size of a collective of a training step."""
    family = str(workload.names[workload.name[row]]).partition(" ")[0]
    return family, int(workload.comm[row]), int(workload.bytes[row])
