"""Edge lists in CSV: one directed link per row, ``src,dst,latency,bandwidth``.

A header may name the columns in any order, with units: ``Latency (ns)``, ``bandwidth_GBps``; other
columns are ignored. Without units, numbers are seconds and bytes per second, or each field has its own
(``500ns``). A first line with a single number gives the number of NPUs. Nodes are numbers or names; a
name with ``switch`` in it is a switch. A million rows are read in seconds, without an object per row.

The file holds only links, neither the capabilities of switches nor the link model.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacos._support.files import Location, replacing
from tacos.errors import FormatError
from tacos.formats import text_columns
from tacos.formats.source import about, bytes_of, quoted
from tacos.topology.links import Links, assemble, raise_if_disconnected, whole_number
from tacos.units import Quantity, bandwidth_Bps, bandwidth_text, time_ps, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["read", "write"]

_COLUMNS = {
    "src": ("src", "source", "from", "srcid"),
    "dst": ("dst", "dest", "destination", "target", "to", "destid"),
    "latency": ("latency", "alpha"),
    "bandwidth": ("bandwidth", "bw"),
}
_SWITCHES = ("*switch*",)
_SKIPPED = re.compile(rb"(?:[ \t]*(?:#[^\n]*|\r?)\n)*")
_NPUS_LINE = re.compile(rb"[ \t]*([0-9]{1,9})[ \t]*\r?\n")
_BATCH = 1 << 16


def read(
    path: Location,
    *,
    npus: int | None = None,
    switches: str | Sequence[str] = _SWITCHES,
    both: bool = False,
    bandwidth: Quantity | None = None,
    latency: Quantity | None = None,
) -> Topology:
    """Read a topology from an edge list.

    Args:
        path: The file.
        npus: Number of nodes that are NPUs, if nodes have numbers; all by default.
        switches: Patterns of the names of switches, if nodes have names.
        both: Whether a row also describes the link back.
        bandwidth, latency: Values for all links, if the file has no such column.

    Raises:
        FormatError: The file is not an edge list; the message names line and column.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "net.csv")
    ...     _ = file.write_text("src,dst,latency,bandwidth\\n0,1,500ns,50GB/s\\n1,0,1us,25GB/s")
    ...     read(file)
    <tacos.Topology custom: 2 NPUs, 0 switches, 2 links>
    """
    patterns = [switches] if isinstance(switches, str) else list(switches)
    with about(path):
        if npus is not None:
            whole_number("npus", npus)
        body = _body(bytes_of(path))
        given = npus if npus is not None else body.npus
        rows = text_columns.split(body.data, b",", body.width, body.line)
        if not rows.lines.size:
            raise ValueError("there are no links")
        src, dst, n, names = _nodes(body, rows, given, patterns)
        speeds = [
            _speed(body, rows, name, default, convert)
            for name, default, convert in (
                ("bandwidth", bandwidth, bandwidth_Bps),
                ("latency", latency, time_ps),
            )
        ]
        loops = np.flatnonzero(src == dst)
        if loops.size:
            raise ValueError(f"line {rows.lines[loops[0]]}: src and dst are the same node")
        nodes = len(names) or int(max(src.max(), dst.max(), n - 1)) + 1
        blocks = [Links(src, dst, *speeds)] + ([Links(dst, src, *speeds)] if both else [])
        topology = assemble(n, blocks, capabilities=[0] * (nodes - n), names=names)
        return raise_if_disconnected(topology)


class _Body(NamedTuple):
    """The position of the rows, and the meaning of their columns."""

    data: bytes
    line: int
    npus: int | None
    place: dict[str, int]
    unit: dict[str, str]
    width: int


def _body(data: bytes) -> _Body:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b'"' in data:
        line = data[: data.index(b'"')].count(b"\n") + 1
        raise ValueError(f"line {line}: quotes are not supported")
    before = _SKIPPED.match(data)
    assert before is not None  # it also matches an empty text
    line, data = 1 + before[0].count(b"\n"), data[before.end() :]
    npus = None
    if first := _NPUS_LINE.match(data):
        npus, data = int(first[1]), data[first.end() :]
        if npus < 1:
            raise ValueError(f"line {line}: the number of NPUs is 0; it must be at least 1")
        line += 1
    head, _, rest = data.partition(b"\n")
    words = [word.strip() for word in head.decode("utf-8", "replace").split(",")]
    if len(words) > 64:
        raise ValueError(f"line {line}: there are {len(words)} columns; the limit is 64")
    place: dict[str, int] = {}
    unit: dict[str, str] = {}
    for i, word in enumerate(words):
        match = re.fullmatch(r"([A-Za-z]+)[ _]*[(\[]?([A-Za-z/]*)[)\]]?", word)
        found = match and next(
            (name for name, others in _COLUMNS.items() if match[1].lower() in others), None
        )
        if match and found:
            if found in place:
                raise ValueError(f"line {line}: there are two columns for {found}")
            place[found], unit[found] = i, match[2]
    if not place:
        if len(words) != 4:
            raise ValueError(
                f"line {line}: there are {len(words)} columns and no header; "
                "without one they must be src,dst,latency,bandwidth"
            )
        return _Body(data, line, npus, {name: i for i, name in enumerate(_COLUMNS)}, {}, 4)
    for name in ("src", "dst"):
        if name not in place:
            raise ValueError(f"line {line}: the header has no column {name}")
    return _Body(rest, line + 1, npus, place, unit, len(words))


def _nodes(
    body: _Body, rows: text_columns.Table, npus: int | None, patterns: list[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int, list[str]]:
    """Return the numbers of both ends, the number of NPUs, and the names of nodes if there are any."""
    ends = [rows.columns[body.place[name]] for name in ("src", "dst")]
    if all(map(text_columns.are_whole, ends)):
        src, dst = (
            text_columns.whole_numbers(column, name, rows.lines)
            for column, name in zip(ends, ("src", "dst"), strict=True)
        )
        largest = int(max(src.max(), dst.max()))
        if largest > 2 * len(src):
            row = int(np.flatnonzero((src == largest) | (dst == largest))[0])
            raise ValueError(
                f"line {rows.lines[row]}: node {largest} is too large; "
                f"{len(src)} links cannot connect it with all nodes before it"
            )
        if npus is not None and npus > largest + 1:
            raise ValueError(f"npus is {npus}, but the last node is {largest}")
        return src, dst, largest + 1 if npus is None else npus, []
    width = max(column.dtype.itemsize for column in ends)
    both = np.concatenate([column.astype(f"S{width}") for column in ends])
    distinct, which = np.unique(both, return_inverse=True)
    try:
        words = [label.decode() for label in distinct.tolist()]
    except UnicodeDecodeError:
        raise ValueError("the name of a node is not UTF-8 text") from None
    if "" in words:
        row = int(np.flatnonzero(both == b"")[0]) % rows.lines.size
        raise ValueError(f"line {rows.lines[row]}: a node has no name")
    switch = [any(fnmatch.fnmatchcase(word.lower(), p.lower()) for p in patterns) for word in words]
    order = sorted(range(len(words)), key=lambda i: (switch[i], _natural(words[i])))
    number = np.empty(len(words), np.int64)
    number[order] = np.arange(len(words))
    n = len(words) - sum(switch)
    if n == 0:
        raise ValueError(f"all nodes are switches by their names, such as {quoted(words[0])}")
    if npus not in (None, n):
        raise ValueError(f"npus is {npus}, but {n} nodes do not have the name of a switch")
    src, dst = number[which.ravel()].reshape(2, -1)
    return src, dst, n, [words[i] for i in order]


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts gpu10 after gpu2."""
    parts = re.split(r"([0-9]{1,18})", name)
    return [(1, int(part), "") if i % 2 else (0, 0, part) for i, part in enumerate(parts)]


def _speed(
    body: _Body,
    rows: text_columns.Table,
    name: str,
    default: Quantity | None,
    convert: Callable[..., int],
) -> int | NDArray[np.int64]:
    if name not in body.place:
        if default is None:
            raise ValueError(f"there is no column {name}, and no argument {name} for all links")
        return convert(default, what=name)
    unit = body.unit.get(name, "")
    scale = None
    if unit:
        try:
            scale = float(convert(f"1{unit}"))
        except ValueError:
            raise ValueError(f"the column {name} has the unit {quoted(unit)}") from None
    return text_columns.quantities(rows.columns[body.place[name]], name, rows.lines, convert, scale)


def write(topology: Topology, path: Location) -> None:
    """Write the links of a topology as an edge list, atomically.

    Nodes keep their names if `read` can tell NPUs and switches apart by them; otherwise NPUs have numbers, or are
    called npu0, npu1, … if there are switches, which are then called switch0, switch1, ….

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tacos
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(tacos.topology.switch(2), Path(folder, "net.csv"))
    ...     print(Path(folder, "net.csv").read_text(), end="")
    src,dst,latency,bandwidth
    npu0,switch0,500ns,50GB/s
    npu1,switch0,500ns,50GB/s
    switch0,npu0,500ns,50GB/s
    switch0,npu1,500ns,50GB/s
    """
    if not topology.links:
        raise FormatError(f"{path}: the topology has no links, so an edge list would be empty")
    labels = _labels(topology)
    waits, wait_of = np.unique(topology.link_latency_ps, return_inverse=True)
    speeds, speed_of = np.unique(topology.link_bandwidth_Bps, return_inverse=True)
    wait, fast = [*map(time_text, waits.tolist())], [*map(bandwidth_text, speeds.tolist())]
    columns: list[Any] = [topology.link_src, topology.link_dst, wait_of, speed_of]
    with replacing(path) as out:
        out.write(b"src,dst,latency,bandwidth\n")
        for at in range(0, topology.links, _BATCH):
            rows = zip(*(column[at : at + _BATCH].tolist() for column in columns), strict=True)
            text = "".join(
                f"{labels[src]},{labels[dst]},{wait[i]},{fast[k]}\n" for src, dst, i, k in rows
            )
            out.write(text.encode())


def _labels(topology: Topology) -> Sequence[int | str]:
    names = topology.names
    if names and all(re.fullmatch(r'[^\s,"#]+(?: [^\s,"#]+)*', name) for name in names):
        said = [fnmatch.fnmatchcase(name.lower(), _SWITCHES[0]) for name in names]
        true = [i >= topology.npus for i in range(topology.nodes)]
        short = all(len(name.encode()) <= 64 for name in names)
        if said == true and short and not all(name.isdigit() for name in names):
            return names
    if not topology.switches:
        return range(topology.npus)
    return [f"npu{i}" for i in range(topology.npus)] + [
        f"switch{i}" for i in range(topology.switches)
    ]
