"""Logs of benchmarks and of NCCL: measurements, and the rings that NCCL used.

:func:`read_log` knows nccl-tests and rccl-tests (text and JSON), the OSU benchmarks and ``tacos run`` (table and JSON), and picks
up what ``NCCL_DEBUG=INFO`` says in between. A file of ``NCCL_GRAPH_DUMP_FILE`` is read too. A kind of log is one entry of
:data:`READERS`.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tacos.errors import FormatError
from tacos.formats.source import about, text_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["READERS", "Log", "Measured", "Reader", "read_log"]

_LARGEST_LOG = 1 << 30


class Measured(NamedTuple):
    """The measurement of one size."""

    size_bytes: int
    """Size as nccl-tests counts it; sizes of OSU benchmarks are converted."""
    time_s: float
    """Of the faster one of in-place and out-of-place."""


@dataclass(frozen=True)
class Log:
    """The contents of a log.

    Attributes:
        source: The file.
        tool: What wrote it.
        kind: The collective, as ``tacos.collective`` names it, or empty.
        rows: The measurements by size.
        ranks: How many ranks took part, 0 if unknown.
        hosts: The host of each rank, if known.
        rings: The ranks of NCCL's rings, one for each channel; of a graph dump, devices of one host.
        local: Whether the rings are those of one host.
        nics: The NICs that channels use on some host, at most.
        nics_found: The NICs that NCCL found, 0 if unknown.
        bus_factor: busbw / algbw, 0 if unknown; from printed tables that of the fastest row, which has the most digits.
        reduces: Whether a reduction was given, None if unknown.
        per_rank: Whether sizes are those of one rank's part, as in some OSU benchmarks.
    """

    source: str
    tool: str = ""
    kind: str = ""
    rows: tuple[Measured, ...] = ()
    ranks: int = 0
    hosts: tuple[str, ...] = ()
    rings: tuple[tuple[int, ...], ...] = ()
    local: bool = False
    nics: int = 0
    nics_found: int = 0
    bus_factor: float = 0.0
    reduces: bool | None = None
    per_rank: bool = field(default=False)


class Reader(NamedTuple):
    """A kind of log."""

    name: str
    fits: Callable[[str], bool]
    read: Callable[[str, Log], Log]


def read_log(path: str | os.PathLike[str]) -> Log:
    """Read a log.

    Raises:
        FormatError: The file holds neither results nor rings.

    >>> import tempfile
    >>> text = '''# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1048576
    ... #  Rank  0 Group  0 Pid   6899 on node0 device  0 [0x04] NVIDIA H100
    ... #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    ...      1048576        262144     float     sum      -1    27.76   37.78   66.11       0    27.49   38.15   66.76       0
    ... '''
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "all_reduce_perf.log").write_text(text)
    ...     log = read_log(Path(folder, "all_reduce_perf.log"))
    >>> log.tool, log.kind, log.rows[0].size_bytes, round(log.rows[0].time_s * 1e6, 2)
    ('nccl-tests', 'all_reduce', 1048576, 27.49)
    """
    place = Path(path)
    try:
        with about(str(path)):
            text = _without_prefixes(text_of(place, _LARGEST_LOG))
    except OSError as error:
        raise FormatError(f"{place}: {error.strerror}") from None
    found = Log(str(path), kind=_kind_in(f"{place.name}\n{text}"))
    for reader in READERS:
        if reader.fits(text):
            try:
                found = reader.read(text, replace(found, tool=found.tool or reader.name))
            except (KeyError, TypeError, ValueError, IndexError, ET.ParseError) as error:
                raise FormatError(f"{path}: not a complete {reader.name} log: {error}") from None
    if not found.rows and not found.rings:
        raise FormatError(
            f"{path} has no results; expected output of nccl-tests, rccl-tests, an OSU benchmark or tacos run, or "
            "a log of NCCL_DEBUG=INFO"
        )
    return replace(found, rows=tuple(sorted(found.rows)))


_PREFIX = re.compile(r"^(\[\d+,\d+\]<std(?:out|err)>:?\s?|\s*\d+:\s)", re.MULTILINE)


def _without_prefixes(text: str) -> str:
    """Return the text without the prefixes of mpirun --tag-output and srun --label."""
    lines = text.splitlines()
    marked = sum(1 for line in lines if _PREFIX.match(line))
    return _PREFIX.sub("", text) if marked > len(lines) / 2 else text


_PROGRAMS = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoallv?|broadcast|reduce|gather|scatter|sendrecv|hypercube)_perf"
)
_KINDS = {"alltoall": "all_to_all", "sendrecv": "", "hypercube": "", "alltoallv": ""}


def _kind_in(text: str) -> str:
    match = _PROGRAMS.search(text)
    return "" if match is None else _KINDS.get(match[1], match[1])


# --- benchmarks -----------------------------------------------------------------------------------

_HEAD = re.compile(r"^#?\s*size\s+count\s+type.*$", re.MULTILINE)
_RANK = re.compile(r"^#?\s*Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device", re.MULTILINE)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _nccl_tests(text: str, log: Log) -> Log:
    """Read the table of nccl-tests: words, then two groups of time, algbw, busbw and errors."""
    head = _HEAD.search(text)
    assert head is not None
    rooted = "root" in head[0]
    rows, factor, fastest, reduces = [], 0.0, 1.0, None
    for line in text[head.end() :].splitlines():
        words = line.split()
        if len(words) < 7 or not words[0].isdecimal() or not words[1].isdecimal():
            continue
        at = 2
        while at < len(words) and _number(words[at]) is None and words[at] != "N/A":
            at += 1
        reduces = words[3] != "none" if at > 3 else False
        at += rooted and at > 3
        times = []
        for first in (at, at + 4):
            some = [_number(word) for word in words[first : first + 3]]
            if len(some) == 3 and None not in some:
                time, algbw, busbw = (float(value or 0) for value in some)
                times.append(time)
                if algbw > fastest:
                    factor, fastest = busbw / algbw, algbw
        if times and int(words[0]) > 0 and min(times) > 0:
            rows.append(Measured(int(words[0]), min(times) * 1e-6))
    hosts = {int(rank): host for rank, host in _RANK.findall(text)}
    return replace(
        log,
        rows=tuple(rows),
        ranks=len(hosts),
        hosts=tuple(hosts[rank] for rank in sorted(hosts)),
        bus_factor=factor,
        reduces=reduces,
    )


def _is_json(text: str, *keys: str) -> bool:
    start = text.lstrip()[:1]
    return start in ("{", "[") and all(f'"{key}"' in text for key in keys)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a JSON value that hold measurements."""
    if isinstance(value, dict):
        if "out_of_place" in value or "in_place" in value:
            yield value
        else:
            for inner in value.values():
                yield from _objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner)


def _nccl_tests_json(text: str, log: Log) -> Log:
    """Read the JSON of nccl-tests -J: microseconds and GB/s."""
    meaning = json.loads(text)
    rows, factor, fastest, reduces = [], 0.0, 1.0, None
    for row in _objects(meaning):
        figures = [row[key] for key in ("out_of_place", "in_place") if row.get(key)]
        times = [float(one.get("time", one.get("cpu_time", 0))) for one in figures]
        for one in figures:
            if one.get("alg_bw", 0) > fastest:
                factor, fastest = one["bus_bw"] / one["alg_bw"], one["alg_bw"]
        reduces = str(row.get("redop", "none")) not in ("none", "")
        if min(times, default=0) > 0 and int(row["size"]) > 0:
            rows.append(Measured(int(row["size"]), min(times) * 1e-6))
    config = meaning.get("config", {})
    devices = config.get("devices", meaning.get("devices", []))
    named = " ".join(map(str, meaning.get("args", [])))
    return replace(
        log,
        kind=log.kind or _kind_in(named),
        rows=tuple(rows),
        ranks=len(devices),
        hosts=tuple(str(one["hostname"]) for one in devices if "hostname" in one),
        bus_factor=factor,
        reduces=reduces,
    )


def _tacos_json(text: str, log: Log) -> Log:
    """Read the output of tacos run --json."""
    rows, factor, reduces = [], 0.0, None
    for row in json.loads(text):
        figures = [one for one in (row["out_of_place"], row["in_place"]) if one]
        if figures[0]["algbw_Bps"]:
            factor = figures[0]["busbw_Bps"] / figures[0]["algbw_Bps"]
        reduces = row["op"] != "none"
        rows.append(Measured(int(row["size_bytes"]), min(one["time_s"] for one in figures)))
    return replace(log, rows=tuple(rows), bus_factor=factor, reduces=reduces)


_OSU = re.compile(r"^# OSU \S+ (.+?) (?:Latency )?Test", re.MULTILINE)
_OSU_KINDS = {  # their titles, our names, and whether a size is that of one rank's part
    "allreduce": ("all_reduce", False),
    "allgather": ("all_gather", True),
    "reduce_scatter": ("reduce_scatter", False),
    "all-to-all personalized exchange": ("all_to_all", True),
    "alltoall": ("all_to_all", True),
    "broadcast": ("broadcast", False),
    "bcast": ("broadcast", False),
    "reduce": ("reduce", False),
    "gather": ("gather", True),
    "scatter": ("scatter", True),
}


def _osu(text: str, log: Log) -> Log:
    title = _OSU.search(text)
    assert title is not None
    name = title[1].lower().removeprefix("non-blocking ").strip()
    if name not in _OSU_KINDS:
        raise ValueError(f"the benchmark is {title[1]!r}, which is not a collective")
    kind, per_rank = _OSU_KINDS[name]
    rows = []
    for line in text[title.end() :].splitlines():
        words = [_number(word) for word in line.split()]
        if line.startswith("# OSU"):
            break  # another benchmark
        if len(words) >= 2 and words[0] and words[1] and words[0].is_integer():
            rows.append(Measured(int(words[0]), words[1] * 1e-6))
    return replace(log, kind=kind, rows=tuple(rows), per_rank=per_rank)


# --- NCCL -----------------------------------------------------------------------------------------

_CHANNEL = re.compile(r"NCCL INFO Channel (\d+)/\d+\s*:((?:\s+\d+)+)\s*$", re.MULTILINE)
_PLACE = re.compile(r"NCCL INFO Ring (\d+) : (\d+) -> (\d+) -> (\d+)\s*$", re.MULTILINE)
_WORLD = re.compile(r"NCCL INFO comm \S+ rank (\d+) n[rR]anks (\d+)")
_NIC = re.compile(
    r"^(\S+?):.*NCCL INFO (?:Channel|Ring) .*\[send\] via NET/(\S+?)/(\d+)", re.MULTILINE
)
_USING = re.compile(r"NCCL INFO NET/IB\s*: Using ((?:\[\d+\]\S+\s*)+)")


def _nccl_info(text: str, log: Log) -> Log:
    """Return the rings printed by rank 0 or, where those lines are truncated, the rings made of each rank's neighbours."""
    world = max((int(count) for _, count in _WORLD.findall(text)), default=0)
    listed = {
        int(channel): tuple(int(rank) for rank in ranks.split())
        for channel, ranks in _CHANNEL.findall(text)
    }
    after: dict[int, dict[int, int]] = {}
    for channel, _, rank, following in _PLACE.findall(text):
        after.setdefault(int(channel), {})[int(rank)] = int(following)
    for channel, successor in after.items():
        ring = [min(successor)]
        while successor.get(ring[-1], ring[0]) != ring[0] and len(ring) <= len(successor):
            ring.append(successor[ring[-1]])
        if len(ring) > len(listed.get(channel, ())):
            listed[channel] = tuple(ring)
    longest = max((len(ring) for ring in listed.values()), default=0)
    world = world or longest
    rings = tuple(ring for _, ring in sorted(listed.items()) if sorted(ring) == list(range(world)))
    used: dict[str, set[str]] = {}
    for host, kind, number in _NIC.findall(text):
        used.setdefault(host, set()).add(f"{kind}/{number}")
    using = _USING.search(text)
    return replace(
        log,
        tool=log.tool,
        ranks=log.ranks or world,
        rings=rings,
        nics=max(map(len, used.values()), default=0),
        nics_found=0 if using is None else len(re.findall(r"\[\d+\]", using[1])),
    )


def _graph_dump(text: str, log: Log) -> Log:
    """Return the rings of one host, as NCCL_GRAPH_DUMP_FILE writes them."""
    rings: list[tuple[int, ...]] = []
    nics: set[int] = set()
    for graph in ET.fromstring(text).iter("graph"):
        if graph.get("id") != "0":
            continue
        for channel in graph.iter("channel"):
            rings.append(tuple(int(gpu.get("dev", "0"), 16) for gpu in channel.iter("gpu")))
            nics.update(int(net.get("dev", "0"), 16) for net in channel.iter("net"))
    devices = sorted({device for ring in rings for device in ring})
    numbered = tuple(tuple(devices.index(device) for device in ring) for ring in rings)
    return replace(log, rings=numbered, local=True, nics=len(nics))


READERS: Sequence[Reader] = (
    Reader("tacos run", lambda text: _is_json(text, "out_of_place", "algbw_Bps"), _tacos_json),
    Reader("nccl-tests", lambda text: _is_json(text, "bus_bw"), _nccl_tests_json),
    Reader(
        "nccl-tests",
        lambda text: text.lstrip()[:1] not in ("{", "[") and bool(_HEAD.search(text)),
        _nccl_tests,
    ),
    Reader("OSU", lambda text: _OSU.search(text) is not None, _osu),
    Reader("NCCL", lambda text: "NCCL INFO" in text, _nccl_info),
    Reader("NCCL graph", lambda text: text.lstrip().startswith("<graphs"), _graph_dump),
)
"""The kinds of logs; a file may be of several."""
