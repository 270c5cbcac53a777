"""The viewer's page of flight records: the last collectives of each rank, and which rank fell behind first.

Each group of ranks has its own timeline. A call that other ranks have entered but a rank has not is drawn on that
rank as never started. A rank without a record has one span that says so.
"""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacos._support.files import replacing
from tacos.errors import FormatError
from tacos.runtime.flight import Finding, call_words, postmortem, ranks_named
from tacos.units import format_time
from tacos.view.page import Page
from tacos.view.spans import span_record, tracks

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from tacos.view.record import Record

__all__ = ["flight_page", "write_flight_page"]

_MOST = 60_000
"""Most calls of a timeline; larger groups show the last calls of each rank."""
_GROUPS = 24
"""Most groups of ranks with a timeline; those with a rank that fell behind come first."""
_ROWS = 40
"""Most ranks that the panel describes; the one that fell behind comes first."""
_LONGEST_S = 1e7
"""Longest time in seconds between the first and the last event of a page."""
_NEVER, _ABSENT = "never started", "no record"
_STATES = {"running": "under way"}
_LOOKS = {
    "done": ("a", False),
    "under way": ("b", False),
    "failed": ("fault", False),
    _NEVER: ("fault", True),
    _ABSENT: ("soft", True),
}
"""Per state: its colour of the theme, and whether it is hatched."""


class _Span(NamedTuple):
    rank: int
    seq: int
    begin_s: float
    end_s: float
    label: str
    state: str
    bytes: int
    peers: list[int]
    details: list[tuple[str, str]]


def flight_page(dumps: Sequence[Mapping[str, Any]]) -> str:
    """Return the viewer's page of flight records as HTML text: ranks over time, with the state of each collective.

    Args:
        dumps: The results of :func:`tacos.formats.flight_record.load` for the files of a job's ranks.

    Raises:
        FormatError: The records contain no collective, or their times cannot belong to one job.

    >>> call = {"seq": 1, "kind": "all-reduce", "algorithm": "ring", "bytes": 4000, "dtype": "float32", "op": "sum",
    ...         "begin_s": 1.0, "end_s": 0.0, "state": "running", "error": "", "waited_s": {"1": 2.0}, "needs": [[1, ""]]}
    >>> dumps = [{"rank": rank, "host": "a", "why": "", "clock_offset_s": 0.0, "written_s": 9.0,
    ...           "groups": [{"rank": rank, "members": [0, 1], "calls": [call] * (1 - rank)}]} for rank in (0, 1)]
    >>> "Rank 1 fell behind first" in flight_page(dumps)
    True
    """
    findings = sorted(postmortem(dumps), key=lambda one: (one.culprit is None, -len(one.members)))
    made = Page()
    for finding in findings[:_GROUPS]:
        if any(row["call"] for row in finding.rows):
            line = made.add_timeline(_timeline(finding, dumps, len(findings) - _GROUPS))
            made.add_view(_group_name(finding.members), timeline=line)
    if not made.views:
        raise FormatError("the flight records contain no collective, so there is nothing to show")
    return made.html()


def write_flight_page(path: str | os.PathLike[str], dumps: Sequence[Mapping[str, Any]]) -> None:
    """Write the page of flight records to a file, atomically; see `flight_page`.

    >>> import tempfile, pathlib
    >>> call = {"seq": 1, "kind": "broadcast", "algorithm": "ring", "bytes": 4000, "dtype": "float32", "op": "sum",
    ...         "begin_s": 1.0, "end_s": 1.5, "state": "done", "error": "", "waited_s": {}, "needs": []}
    >>> group = {"rank": 0, "members": [0], "calls": [call]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_flight_page(f"{folder}/flight.html", [
    ...         {"rank": 0, "host": "a", "why": "", "clock_offset_s": 0.0, "written_s": 9.0, "groups": [group]}])
    ...     pathlib.Path(folder, "flight.html").stat().st_size > 1000
    True
    """
    text = flight_page(dumps)
    with replacing(path) as out:
        out.write(text.encode())


def _group_name(members: list[int]) -> str:
    if len(members) == 1:
        return f"rank {members[0]}"
    if members == list(range(members[0], members[-1] + 1)):
        return f"ranks {members[0]} to {members[-1]}"
    named = ", ".join(map(str, members[:6]))
    return f"ranks {named}" + (", …" if len(members) > 6 else "")


def _timeline(finding: Finding, dumps: Sequence[Mapping[str, Any]], left_out: int) -> Record:
    members = finding.members
    kept = max(1, _MOST // len(members))
    spans = _recorded(members, dumps, kept)
    last = max(span.end_s for span in spans)
    first = min(span.begin_s for span in spans)
    if not last - first < _LONGEST_S:  # true for NaN too
        raise FormatError(
            f"the flight records span {last - first:.3g} s; give those of one job and one time"
        )
    spans += _never_started(finding, spans, last)
    spans += [
        _Span(rank, 0, first, last, "left no record", _ABSENT, 0, [], [])
        for rank in finding.missing
    ]
    begin, end = (
        np.array([round((t - first) * 1e12) for t in times], np.int64)
        for times in ([s.begin_s for s in spans], [s.end_s for s in spans])
    )
    end = np.maximum(begin, end)
    rank = np.array([span.rank for span in spans], np.int64)
    track, names = tracks(rank, [""] * len(spans), begin, end)
    order = np.lexsort((begin, track, rank)).tolist()
    ordered = [spans[k] for k in order]
    notes = _notes(finding, dumps, spans, kept, left_out)
    when = datetime.fromtimestamp(first, UTC) if 0 <= first < 4e9 else None
    summary = _summary(finding)
    if when is not None:
        summary.insert(0, ("begins", f"{when:%Y-%m-%d %H:%M:%S} UTC"))
    return span_record(
        f"flight records of {len(members)} rank{'s' * (len(members) > 1)}",
        summary,
        notes,
        ranks=max(members) + 1,
        shown=np.array(members),
        streams=[name.strip() for name in names],
        rank=rank[order],
        stream=track[order],
        begin_ps=begin[order],
        end_ps=end[order],
        labels=[span.label for span in ordered],
        categories=[span.state for span in ordered],
        bytes=np.array([span.bytes for span in ordered]),
        members=np.full(len(order), len(members)),
        after=_waited_for(ordered, finding),
        views=np.full(len(order), -1),
        time_ps=max(int(end.max()), 1),
        headline=finding.verdict[:1].upper() + finding.verdict[1:],
        looks=_LOOKS,
        marked=[] if finding.culprit is None else [finding.culprit],
        details=[span.details for span in ordered],
    )


def _recorded(members: list[int], dumps: Sequence[Mapping[str, Any]], kept: int) -> list[_Span]:
    """Return the calls that the ranks of a group have recorded, by the hosts' clocks."""
    spans = []
    for dump in dumps:
        offset = dump["clock_offset_s"]
        for group in [one for one in dump["groups"] if one["members"] == members][-1:]:
            for call in group["calls"][-kept:]:
                begin = call["begin_s"] + offset
                end = call["end_s"] + offset if call["end_s"] else dump.get("written_s", begin)
                if not (isfinite(begin) and isfinite(end)):
                    raise FormatError(f"rank {dump['rank']} records a time that is not finite")
                waited = {members[int(p)]: s for p, s in call["waited_s"].items()}
                longest = sorted(waited, key=lambda peer: -waited[peer])
                needed = dict.fromkeys(members[peer] for peer, _ in call["needs"])
                spans.append(
                    _Span(
                        members[group["rank"]],
                        call["seq"],
                        begin,
                        max(begin, end),
                        f"call {call['seq']}, {call_words(call)}",
                        _STATES.get(call["state"], call["state"]),
                        call["bytes"],
                        [*needed, *longest],
                        _details(call, waited, dump),
                    )
                )
    return spans


def _details(
    call: Mapping[str, Any], waited: Mapping[int, float], dump: Mapping[str, Any]
) -> list[tuple[str, str]]:
    said = [("state", _STATES.get(call["state"], call["state"])), ("host", dump["host"])]
    if call["algorithm"]:
        said.append(("algorithm", call["algorithm"]))
    if call["error"]:
        said.append(("error", call["error"]))
    longest = sorted((seconds, peer) for peer, seconds in waited.items() if seconds > 0)[::-1]
    said += [("waited", f"{format_time(took)} for rank {peer}") for took, peer in longest[:4]]
    said += [("needs", text) for _, text in call["needs"][:4] if text]
    return said


def _never_started(finding: Finding, spans: list[_Span], last: float) -> list[_Span]:
    """Return spans for calls that some ranks have entered, and other ranks with a record have not."""
    entered: dict[int, tuple[float, str, int]] = {}
    for span in spans:
        before = entered.get(span.seq)
        if before is None or span.begin_s < before[0]:
            entered[span.seq] = span.begin_s, span.label, span.bytes
    calls = sorted(entered)
    found = []
    for row in finding.rows:
        missed = [seq for seq in calls if seq > row["call"]]
        if row["state"] not in ("done", ""):  # the call that it is in, or failed in, is drawn
            continue
        mine = max((s.end_s for s in spans if s.rank == row["rank"]), default=-np.inf)
        ends = [*(entered[seq][0] for seq in missed[1:]), last]
        for seq, end in zip(missed, ends, strict=False):
            begin, label, size = entered[seq]
            begin = max(begin, mine)
            if begin < end:
                why = [("state", _NEVER), ("host", row["host"])]
                if row["why"]:
                    why.append(("record written", f"because {row['why']}"))
                found.append(_Span(row["rank"], seq, begin, end, label, _NEVER, size, [], why))
    return found


def _waited_for(spans: list[_Span], finding: Finding) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return, per span, the span in the same call of the rank that it waited for longest; or -1."""
    place = {(span.rank, span.seq): k for k, span in enumerate(spans)}
    absent = {span.rank: k for k, span in enumerate(spans) if span.state == _ABSENT}
    found = np.full(len(spans), -1, np.int64)
    for k, span in enumerate(spans):
        peers = span.peers
        if not peers and span.state in ("under way", "failed") and finding.culprit is not None:
            peers = [finding.culprit]
        for peer in peers:
            other = place.get((peer, span.seq), absent.get(peer, k))
            if other != k:
                found[k] = other
                break
    return found


def _summary(finding: Finding) -> list[tuple[str, str]]:
    rows = sorted(finding.rows, key=lambda row: row["rank"] != finding.culprit)
    said = []
    for row in rows[:_ROWS]:
        state = _STATES.get(row["state"], row["state"]) or "idle"
        waits = ranks_named(row["waits_for"])
        words = f"call {row['call']}, {row['what']}, {state}" if row["call"] else row["what"]
        said.append((f"rank {row['rank']}", words + (f", waits for {waits}" if waits else "")))
    if len(rows) > _ROWS:
        said.append(("", f"and {len(rows) - _ROWS} more ranks"))
    said += [(f"rank {rank}", "left no record") for rank in finding.missing[:_ROWS]]
    if finding.waited:
        longest = [f"{format_time(seconds)} for rank {rank}" for rank, seconds in finding.waited]
        said.append(("waited", ", ".join(longest[:8]) + " (all ranks together, in ended waits)"))
    return said


def _notes(
    finding: Finding,
    dumps: Sequence[Mapping[str, Any]],
    spans: list[_Span],
    kept: int,
    left_out: int,
) -> list[str]:
    notes = []
    if any(row["call"] > kept for row in finding.rows) and len(spans) >= kept:
        count = max(sum(span.rank == row["rank"] for span in spans) for row in finding.rows[:1])
        notes.append(f"Each rank shows its last {count:,} calls.")
    if len({dump["host"] for dump in dumps}) > 1:
        notes.append("Times are read from each host's own clock; clocks of hosts may differ.")
    if left_out > 0:
        notes.append(f"{left_out:,} more groups of ranks are not shown.")
    return notes
