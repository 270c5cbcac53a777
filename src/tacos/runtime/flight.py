"""The flight recorder writes the last collectives of a rank to a file when something goes wrong, and analyses such files.

Every communicator keeps its last calls in a ring buffer. ``TACOS_FLIGHT`` names a directory, to which a rank writes
``rank<n>.flight.json`` when a call fails or times out, and whenever it receives the signal ``SIGUSR2``.
``tacos info DIRECTORY`` reads the files of all ranks and reports which rank fell behind first.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacos._support.files import replacing
from tacos._support.log import LOG as TACOS
from tacos.errors import FormatError
from tacos.formats.flight_record import FORMAT
from tacos.runtime.carriers import Call
from tacos.units import format_size, format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "Entry",
    "Finding",
    "Recorder",
    "call_words",
    "dump",
    "postmortem",
    "ranks_named",
    "record_to",
]

LOG = TACOS.getChild("flight")
_KEPT = 256
_NAMES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8, "bool": 1}
_OPEN: weakref.WeakSet[Recorder] = weakref.WeakSet()
_folder: Path | None = None
_lock = threading.RLock()
"""Reentrant, because a signal may request a dump in the thread that is writing one."""
_heeds_signal = False


def bytes_of(call: Call) -> int:
    """Return the size of a call in bytes, as nccl-tests counts it.

    >>> from tacos.runtime.carriers import Call
    >>> bytes_of(Call(0, 0, 100, "int16", "sum"))
    200
    """
    width = _NAMES.get(call.dtype) or int("".join(filter(str.isdigit, call.dtype))) // 8
    return call.elements * width


Entry = list[Any]
"""A call: the algorithm's number, the call, when it began and ended by the monotonic clock, and what went wrong."""


class Recorder:
    """The last calls of one communicator.

    Some carriers record their calls themselves, which costs less; a dump asks them for their records.

    Attributes:
        ring: The last calls that carriers do not record.
        failures: Number of calls that failed.

    Args:
        rank: This rank's number in the communicator.
        members: The numbers that its ranks have in the whole job.
        details: Returns the carriers' last calls and links; called when a dump is written.
    """

    def __init__(
        self, rank: int, members: Sequence[int], details: Callable[[], list[dict[str, Any]]]
    ) -> None:
        self.rank, self.members = rank, list(members)
        self.failures = 0
        self._details = details
        self._names: dict[int, tuple[str, str, str]] = {}
        self.ring: deque[Entry] = deque(maxlen=_KEPT)
        self._kept: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._count = 0
        self._errors: dict[float, tuple[str, float]] = {}  # by when the carrier's call began
        _OPEN.add(self)

    @property
    def count(self) -> int:
        """Number of calls so far."""
        return self._counted(self._details())

    def _counted(self, carriers: list[dict[str, Any]]) -> int:
        return self._count + sum(int(carrier.get("count", 0)) for carrier in carriers)

    def name(self, number: int, kind: str, algorithm: str, carrier: str) -> None:
        """Set the name of an algorithm."""
        self._names[number] = kind, algorithm, carrier

    def begin(self, number: int, call: Call) -> Entry:
        """Record the begin of a call that the carrier does not record."""
        self._count += 1
        entry: Entry = [number, call, time.monotonic(), 0.0, ""]
        self.ring.append(entry)
        return entry

    def end(self, entry: Entry) -> None:
        """Record the end of a call."""
        entry[3] = time.monotonic()

    def fail(self, number: int, call: Call, error: BaseException, entry: Entry | None) -> None:
        """Record that the call failed, and write a dump if ``TACOS_FLIGHT`` is set.

        ``entry`` is None if the carrier records the call.
        """
        self.failures += 1
        now, text = time.monotonic(), f"{type(error).__name__}: {error}"
        if entry is None and (began := self._running()) is not None:
            self._errors[began] = text, now
            if len(self._errors) > _KEPT:
                del self._errors[next(iter(self._errors))]
        else:  # a carrier that failed before does not begin the call
            entry = entry or self.begin(number, call)
            entry[3], entry[4] = now, text
        if _folder is not None:
            dump(str(error) or type(error).__name__)

    def _running(self) -> float | None:
        """Return when the last recorded call of a carrier began, if it has not ended."""
        rows = [row for carrier in self._details() for row in carrier.get("calls", ())]
        began = [row["begin_s"] for row in rows if row["listed"] and not row["end_s"]]
        return max((time for time in began if time not in self._errors), default=None)

    def keep(self, figures: Mapping[str, Any]) -> None:
        """Keep the calls of a carrier that is dropped."""
        self._kept.extend(self._recorded([figures]))
        self._count += int(figures.get("count", 0))

    def content(self) -> dict[str, Any]:
        """Return the contents of a dump."""
        carriers = self._details()
        rows = [row for carrier in carriers for row in carrier.get("calls", ())]
        calls = [*self._kept, *self._recorded(carriers)]
        for number, call, begin, end, error in list(self.ring):
            # Observations of the carrier during the call.
            within = [r for r in rows if begin <= r["begin_s"] and (not end or r["begin_s"] <= end)]
            calls.append(self._row(number, call, begin, end, error, within))
        calls.sort(key=lambda one: one["begin_s"])
        del calls[:-_KEPT]
        first = self._counted(carriers) - len(calls) + 1
        calls = [{"seq": first + i, **one} for i, one in enumerate(calls)]
        return {
            "rank": self.rank,
            "members": self.members,
            "calls": calls,
            "links": [link for carrier in carriers for link in carrier.get("links", ())],
            "peers": [peer for carrier in carriers for peer in carrier.get("peers", ())],
        }

    def _recorded(self, carriers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the calls that carriers have recorded."""
        calls = []
        for row in (row for carrier in carriers for row in carrier.get("calls", ())):
            if row["listed"]:
                begin = row["begin_s"]
                error, ended = self._errors.get(begin, ("", row["end_s"]))
                call = Call(0, 0, row["elements"], row["dtype"], row["op"])
                calls.append(self._row(row["algorithm"], call, begin, ended, error, [row]))
        return calls

    def _row(
        self,
        number: int,
        call: Call,
        begin: float,
        end: float,
        error: str,
        within: Sequence[Mapping[str, Any]],
    ) -> dict[str, Any]:
        kind, algorithm, carrier = self._names.get(number, ("", "", ""))
        return {
            "kind": kind,
            "algorithm": algorithm,
            "carrier": carrier,
            "bytes": bytes_of(call),
            "elements": call.elements,
            "dtype": call.dtype,
            "op": call.op,
            "begin_s": begin,
            "end_s": end,
            "state": "failed" if error else "done" if end else "running",
            "error": error,
            "waited_s": {str(k): v for r in within for k, v in r["waited_s"].items()},
            "needs": [list(need) for r in within for need in r["needs"]],
        }


def record_to(folder: str | None) -> None:
    """Write dumps to this directory from now on, also on ``SIGUSR2``; None disables them.

    Raises:
        ValueError: The directory cannot be created.
    """
    global _folder, _heeds_signal  # noqa: PLW0603, one folder and one handler for the process
    if not folder:
        _folder = None
        return
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"TACOS_FLIGHT is {folder!r}, which cannot be made: {error}") from None
    _folder = path
    if not _heeds_signal and threading.current_thread() is threading.main_thread():
        _heeds_signal = True
        before = signal.getsignal(signal.SIGUSR2)

        def at_signal(number: int, frame: Any) -> None:
            dump("the rank got SIGUSR2")
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGUSR2, at_signal)


def dump(why: str, path: Path | None = None) -> Path | None:
    """Write the records of all communicators of this process, by default to the directory of ``TACOS_FLIGHT``.

    Returns:
        The file; None if there is no directory or it cannot be written to, which is logged.
    """
    groups = [recorder.content() for recorder in sorted(_OPEN, key=lambda r: -len(r.members))]
    if not groups or (path is None and _folder is None):
        return None
    rank = groups[0]["members"][groups[0]["rank"]]
    target = path or Path(_folder or ".") / f"rank{rank}.flight.json"
    content = {
        "format": FORMAT,
        "version": 1,
        "rank": rank,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "why": why,
        "written_s": time.time(),
        "clock_offset_s": time.time() - time.monotonic(),
        "groups": groups,
    }
    try:
        with _lock, replacing(target) as file:
            file.write(json.dumps(content).encode())
    except (OSError, FormatError) as error:
        LOG.warning("rank %d cannot write its flight record to %s: %s", rank, target, error)
        return None
    LOG.warning("rank %d has written its flight record to %s: %s", rank, target, why)
    return target


# --- analysis -----------------------------------------------------------------------------------


@dataclass
class Finding:
    """The conclusions from the dumps of one group of ranks."""

    members: list[int]
    """The ranks' numbers in the whole job, which all other fields use too."""
    verdict: str
    """The verdict in one sentence."""
    culprit: int | None
    """The rank that fell behind first, or that disagrees; None if there is none."""
    missing: list[int]
    """Members without a dump."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The position of each rank, in rank order."""
    waited: list[tuple[int, float]] = field(default_factory=list)
    """Ranks that others have waited for, with the total seconds; the longest first."""


def postmortem(dumps: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return what went wrong in each group of ranks, with the largest groups first.

    The rank that fell behind first has entered the fewest collectives. If several ranks are in the earliest call, it is
    the one that did not answer; or that others wait for while it waits for none; or that most ranks wait for; or that entered last.
    """
    groups: dict[tuple[int, ...], dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for one in dumps:
        for group in one["groups"]:
            members = tuple(group["members"])
            groups.setdefault(members, {})[members[group["rank"]]] = one, group
    found = sorted(groups.items(), key=lambda item: (-len(item[0]), item[0]))
    return [_finding(list(members), ranks) for members, ranks in found]


def _finding(
    members: list[int], ranks: Mapping[int, tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> Finding:
    missing = [rank for rank in members if rank not in ranks]
    last = {rank: group["calls"][-1] for rank, (_, group) in ranks.items() if group["calls"]}
    waited = dict.fromkeys(members, 0.0)
    for _, group in ranks.values():
        for call in group["calls"]:
            for peer, seconds in call["waited_s"].items():
                waited[members[int(peer)]] += seconds
    rows = []
    for rank in sorted(ranks):
        one, _ = ranks[rank]
        call = last.get(rank)
        rows.append(
            {
                "rank": rank,
                "host": one["host"],
                "call": call["seq"] if call else 0,
                "what": call_words(call) if call else "no collective yet",
                "state": call["state"] if call else "",
                "entered_s": call["begin_s"] + one["clock_offset_s"] if call else 0.0,
                "waits_for": sorted({members[peer] for peer, _ in call["needs"]}) if call else [],
                "why": one["why"],
            }
        )
    verdict, culprit = _verdict(ranks, last, missing, rows)
    longest = sorted(waited.items(), key=lambda item: -item[1])
    return Finding(members, verdict, culprit, missing, rows, [w for w in longest if w[1] > 0])


def _verdict(
    ranks: Mapping[int, tuple[Mapping[str, Any], Mapping[str, Any]]],
    last: Mapping[int, Mapping[str, Any]],
    missing: list[int],
    rows: list[dict[str, Any]],
) -> tuple[str, int | None]:
    if other := _disagreement(ranks):
        return other
    entered = {rank: last[rank]["seq"] if rank in last else 0 for rank in ranks}
    ahead = max(entered, key=lambda rank: (entered[rank], -rank))
    fewest = min(entered.values())
    slowest = sorted(rank for rank in entered if entered[rank] == fewest)
    held = [rank for rank in slowest if rank in last and last[rank]["state"] != "done"]
    where = f"call {fewest}" + (f", {call_words(last[slowest[0]])}" if slowest[0] in last else "")
    behind = [rank for rank in slowest if rank not in held] or slowest
    if fewest < entered[ahead] and (behind[0] not in held or (len(behind) == 1 and not missing)):
        late = behind[0]
        whole = next(c for c in ranks[ahead][1]["calls"] if c["seq"] >= fewest + 1)
        did = f"its last was {where}, {last[late]['state']}" if late in last else "it has made none"
        missed = f"call {whole['seq']}, {call_words(whole)}, which rank {ahead} has"
        return f"rank {late} fell behind first: it has not entered {missed}; {did}", late
    if missing:
        return (
            f"{ranks_named(missing)} left no record and may have died; the others were in {where}",
            missing[0],
        )
    if not held:
        return f"no rank is behind: all have ended {where}", None
    # Ranks that have ended the earliest call need nothing more, so the others wait for one of themselves, or for a link.
    late, silent = _awaited(ranks, held, rows)
    why = "it did not answer" if silent else "others wait for it"
    ended = ranks_named(sorted(set(ranks) - set(held)))
    rest = f"; {ended} ended that call" if ended else ""
    return f"rank {late} fell behind first, in {where}: {why}{rest}", late


def ranks_named(ranks: Sequence[int]) -> str:
    """Name ranks in words; empty for none.

    >>> ranks_named([3]), ranks_named([0, 2]), ranks_named([])
    ('rank 3', 'ranks 0, 2', '')
    """
    return f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))}" if ranks else ""


def _awaited(
    ranks: Mapping[int, tuple[Mapping[str, Any], Mapping[str, Any]]],
    among: Sequence[int],
    rows: list[dict[str, Any]],
) -> tuple[int, bool]:
    """Return the rank that delays the others, and whether errors say that it did not answer.

    In this order: the rank that errors name; the one that others wait for while it waits for none; the one that most ranks wait
    for; the one that entered last.
    """
    errors = [group["calls"][-1]["error"] for _, group in ranks.values() if group["calls"]]
    found = [re.search(r"\brank (\d+) did not answer", error) for error in errors]
    named = [int(one[1]) for one in found if one]
    members = next(iter(ranks.values()))[1]["members"]
    silent = [members[rank] for rank in named if rank < len(members) and members[rank] in among]
    if silent:
        return max(sorted(set(silent)), key=silent.count), True
    waits = {row["rank"]: [r for r in row["waits_for"] if r in among] for row in rows}
    votes = {rank: sum(rank in waits[other] for other in among) for rank in among}
    if free := [rank for rank in among if votes[rank] and not waits[rank]]:
        return free[0], False
    entered = {row["rank"]: row["entered_s"] for row in rows}
    return max(among, key=lambda rank: (votes[rank], entered[rank])), False


def _disagreement(
    ranks: Mapping[int, tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> tuple[str, int] | None:
    """Return the first call on which ranks disagree, and a rank of the minority."""
    calls: dict[int, dict[int, str]] = {}
    for rank, (_, group) in ranks.items():
        for call in group["calls"]:
            calls.setdefault(call["seq"], {})[rank] = call_words(call)
    for seq in sorted(calls):
        said = calls[seq]
        if len(set(said.values())) > 1:
            count = {what: list(said.values()).count(what) for what in said.values()}
            odd = min(sorted(said), key=lambda rank: count[said[rank]])
            other = next(r for r in sorted(said) if said[r] != said[odd])
            return (
                f"the ranks disagree on call {seq}: rank {odd} makes {said[odd]}, rank {other} {said[other]}",
                odd,
            )
    return None


def call_words(call: Mapping[str, Any]) -> str:
    """Describe a recorded call: kind, size, type and operation."""
    op = f" ({call['op']})" if "reduce" in call["kind"].replace("-", "_") else ""
    return f"{call['kind'] or 'a collective'} of {format_size(call['bytes'])} {call['dtype']}{op}"


def lines(finding: Finding) -> list[str]:
    """Return a finding as lines of text."""
    who = f"group of {len(finding.members)} ranks"
    text = [f"{who}: {finding.verdict}"]
    start = min((row["entered_s"] for row in finding.rows if row["entered_s"]), default=0.0)
    for row in finding.rows:
        waits = ranks_named(row["waits_for"])
        after = (
            f", entered {format_time(row['entered_s'] - start)} after the first rank"
            if row["entered_s"]
            else ""
        )
        text.append(
            f"  rank {row['rank']} on {row['host']}: call {row['call']}, {row['what']}, {row['state'] or 'idle'}"
            f"{after}" + (f", waits for {waits}" if waits else "")
        )
    if finding.waited:
        longest = ", ".join(f"{format_time(s)} for rank {r}" for r, s in finding.waited[:3])
        text.append(f"  waited in the recorded calls: {longest}")
    return text
