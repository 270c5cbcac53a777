"""The ``.tacos`` file: one schedule with its topology, collective, routes and provenance.

A file is a sequence of blocks: a header, then one block per column. A block is its payload, zeros, and
the CRC-32 of both, and is a multiple of 64 bytes long, so every byte of a file is covered by a
checksum. The header's payload is a signature, the version, and JSON with all single values and the
table of sections; a section's payload is a column in little-endian order. Columns go from memory to
the file and back without a copy. ``docs/guide/file-format.md`` has every byte.

Any deviation is refused: an unknown field or section, extra bytes, a value that the constructors refuse.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import BufferedReader, BytesIO
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta, Struct

from _tacos import __version__
from tacos._core import (
    Collective,
    CollectivePart,
    Faults,
    Routes,
    Schedule,
    Topology,
    crc32,
    fields,
)
from tacos._support.files import Location, Stream, replacing
from tacos.errors import FormatError, TacosError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["VERSION", "looks_like", "peek", "read", "write"]

VERSION = 1
"""The version of the format. Any change of the fields, the sections or their meaning increases it; released versions
stay readable.

The model of time is part of that meaning: a file is refused if its transfers do not end at the time that its header states.
"""

# Like PNG's: a first byte that is not text, and line endings that a text-mode transfer would change.
_MAGIC = b"\x89TCS\r\n\x1a\n"
_PREAMBLE = len(_MAGIC) + 8
_ALIGNMENT = 64
_CRC_BYTES = 4
_STEP = 1 << 20  # large enough for the disk, small enough to stay in the cache for the checksum

# In the order of the file, which is also the order in which the objects can be built.
_SECTIONS = {
    "topology.switch_capabilities": "|u1",
    "topology.link_src": "<i4",
    "topology.link_dst": "<i4",
    "topology.link_latency_ps": "<i8",
    "topology.link_bandwidth_Bps": "<i8",
    "topology.names": "|u1",
    "collective.group": "<i4",
    "collective.bytes": "<i8",
    "collective.inputs": "<i4",
    "collective.outputs": "<i4",
    "collective.input_begin": "<i8",
    "collective.output_begin": "<i8",
    "collective.reduces": "|u1",
    "routes.kinds": "|u1",
    "routes.link_begin": "<i8",
    "routes.links": "<i4",
    "schedule.lane_route": "<i4",
    "schedule.lane_op": "|u1",
    "schedule.lane_reads": "|u1",
    "schedule.lane_begin": "<i8",
    "schedule.node_image": "<i4",
    "schedule.link_image": "<i4",
    "schedule.chunk": "<u4",
    "schedule.start": "<u4",
}

_Columns: TypeAlias = dict[str, Any]  # field -> array
_Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Count: TypeAlias = Annotated[int, Meta(ge=0)]
_Time: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Faults(Struct, forbid_unknown_fields=True):
    """What the healthy network has and the topology lacks; lists of equal length, one entry per dead or slow link."""

    link: list[_Int32]
    dead: list[Annotated[int, Meta(ge=0, le=1)]]
    src: list[_Int32]
    dst: list[_Int32]
    latency_ps: list[_Int64]
    bandwidth_Bps: list[_Int64]
    dropped: list[_Int32]
    capabilities: list[Annotated[int, Meta(ge=0, le=255)]]
    names: list[str]
    npus: _Int32
    dims: list[tuple[str, _Int32]]
    symmetric: bool


_FAULTS = {
    **dict.fromkeys(("link", "src", "dst", "dropped"), np.int32),
    **dict.fromkeys(("dead", "capabilities"), np.uint8),
    **dict.fromkeys(("latency_ps", "bandwidth_Bps"), np.int64),
}
"""The types of the columns of faults."""


class _Topology(Struct, forbid_unknown_fields=True, omit_defaults=True):
    npus: _Int32
    link_model: str
    forwarding: str
    reduce_bandwidth_Bps: _Int64
    family: str
    dims: list[tuple[str, _Int32]]
    symmetric: bool
    routing: str | None = None  # "spread"
    faults: _Faults | None = None


class _Entries(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Number of entries of each ``collective`` section that belong to a part."""

    group: _Count = 0
    bytes: _Count = 0
    inputs: _Count = 0
    outputs: _Count = 0
    input_begin: _Count = 0
    output_begin: _Count = 0
    reduces: _Count = 0


class _Part(Struct, forbid_unknown_fields=True):
    kind: str
    size_bytes: _Int64
    chunks: _Int32
    root: _Int32
    entries: _Entries


class _File(Struct, forbid_unknown_fields=True):
    """The file that the schedule was lifted from."""

    name: str
    dialect: str
    protocol: str
    min_bytes: _Count
    max_bytes: _Count
    threads_per_block: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class _Facts(Struct, forbid_unknown_fields=True):
    engine: str
    bound_ps: _Int64 | None
    in_switch_bound_ps: _Int64 | None
    consistent: bool
    cut_short: bool
    matched_ports: bool
    rejected: list[str]
    executed_ps: _Time | None
    target: str | None
    file: _File


class _Schedule(Struct, forbid_unknown_fields=True):
    quantum_ps: _Int64
    orders: list[_Int32]
    time_ps: _Int64
    provenance: str
    facts: _Facts


class _Section(Struct, forbid_unknown_fields=True):
    name: str
    dtype: str
    count: _Count


class _Header(Struct, forbid_unknown_fields=True):
    writer: dict[str, str]
    topology: _Topology
    collective: list[_Part]
    schedule: _Schedule
    sections: list[_Section]

    def count(self, name: str) -> int:
        return next(section.count for section in self.sections if section.name == name)


def looks_like(head: str) -> bool:
    """Return whether a file has this format, judged by its beginning.

    >>> looks_like(_MAGIC.decode(errors="replace")), looks_like("npus: 4")
    (True, False)
    """
    return head.startswith(_MAGIC.decode(errors="replace"))


def write(schedule: Schedule, path: Location) -> None:
    """Write a schedule to a ``.tacos`` file, atomically.

    Equal schedules give equal bytes.

    Raises:
        FormatError: ``path`` exists and is not a regular file.
        OSError: The file cannot be written.

    >>> import tempfile, tacos
    >>> topo = tacos.topology.ring(2, bandwidth="1GB/s", latency="1us")
    >>> coll = tacos.collective.broadcast(topo, "1KB", chunks=1)
    >>> table = tacos.schedule.routes(topo, pairs=([0], [1]))
    >>> schedule = tacos.retime(coll, table, route=[0], chunk=0, step=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(schedule, Path(folder, "one.tacos"))
    ...     read(Path(folder, "one.tacos")) == schedule
    True
    """
    columns = {name: _column(schedule, name) for name in _SECTIONS}
    text = msgspec.json.encode(_header_of(schedule, columns))
    preamble = _MAGIC + VERSION.to_bytes(4, "little") + len(text).to_bytes(4, "little")
    with replacing(path) as out:
        _write_block(out, memoryview(preamble + text))
        for name, dtype in _SECTIONS.items():
            _write_block(out, _bytes_of(columns[name].astype(dtype, copy=False)))


def read(path: Location, *, mapped: bool = False) -> Schedule:
    """Read a schedule from a ``.tacos`` file; takes little more memory than the schedule.

    Args:
        path: The file, or a binary file object.
        mapped: Leave the transfers in the file and read them from there each time that they are needed, for schedules
            larger than the memory. The file must not be modified in the meantime; replacing it by another file, as
            saving does, is safe.

    Raises:
        FormatError: The file is damaged, of a newer version, or does not hold a valid schedule.
        OSError: The file cannot be opened.

    >>> read(__file__)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tacos.errors.FormatError: ...native.py: not a .tacos file: it lacks the signature
    """
    with _opened(path) as (file, header):
        topology = _topology(header.topology, _read_columns(file, header, "topology"))
        columns = _read_columns(file, header, "collective")
        collective = Collective(topology.npus, _parts(header.collective, columns))
        routes = Routes(topology, **_read_columns(file, header, "routes"))
        schedule = Schedule(
            collective=collective,
            routes=routes,
            **_read_columns(file, header, "schedule", mapped=mapped),
            quantum_ps=header.schedule.quantum_ps,
            orders=header.schedule.orders,
            provenance=header.schedule.provenance,
            **_facts(header.schedule),
            given_away=True,
        )
        if schedule.time_ps != header.schedule.time_ps:
            raise ValueError(
                f"time_ps is {header.schedule.time_ps}, but the transfers end at {schedule.time_ps} ps"
            )
        return schedule


def peek(path: Location) -> dict[str, Any]:
    """Return the header of a ``.tacos`` file without reading its columns.

    Raises:
        FormatError: The header is damaged, of a newer version, or does not fit the file's size.
        OSError: The file cannot be opened.

    >>> import tempfile, tacos
    >>> topo = tacos.topology.ring(2, bandwidth="1GB/s", latency="1us")
    >>> coll = tacos.collective.broadcast(topo, "1KB", chunks=1)
    >>> table = tacos.schedule.routes(topo, pairs=([0], [1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "one.tacos")
    ...     write(tacos.retime(coll, table, route=[0], chunk=0, step=0), file)
    ...     found = peek(file)
    >>> found["time_s"], found["transfers"], found["collective"][0]["kind"]
    (2e-06, 1, 'broadcast')
    """
    with _opened(path) as (file, header):
        topology, schedule = header.topology, header.schedule
        provenance = json.loads(schedule.provenance)
        stored = header.count("schedule.chunk")
        return {
            "version": VERSION,
            "writer": header.writer,
            "file_bytes": _size(file),
            "topology": {
                "family": topology.family,
                "npus": topology.npus,
                "switches": header.count("topology.switch_capabilities"),
                "links": header.count("topology.link_src"),
                "dims": topology.dims,
                "link_model": topology.link_model,
                "forwarding": topology.forwarding,
                "routing": topology.routing or "spread",
            },
            "collective": [
                {
                    "kind": part.kind,
                    "size_bytes": part.size_bytes,
                    "members": part.entries.group,
                    "chunks": part.chunks,
                }
                for part in header.collective
            ],
            "form": "orbit" if schedule.orders else "packed",
            "routes": header.count("routes.kinds"),
            "transfers": stored * prod(schedule.orders),
            "stored_transfers": stored,
            "time_s": schedule.time_ps * 1e-12,
            "engine": schedule.facts.engine or None,
            "provenance": provenance,
        }


# From a schedule to header and columns, and back.


def _column(schedule: Schedule, name: str) -> np.ndarray[Any, Any]:
    noun, _, field = name.partition(".")
    if name == "topology.names":
        names = schedule.topology.names
        return np.frombuffer(msgspec.json.encode(names) if names else b"", np.uint8)
    if noun == "collective":
        columns = [getattr(part, field) for part in schedule.collective.parts]
        return columns[0] if len(columns) == 1 else np.concatenate(columns)
    owner = schedule if noun == "schedule" else getattr(schedule, noun)
    column: np.ndarray[Any, Any] = getattr(owner, field)
    return column


def _header_of(schedule: Schedule, columns: _Columns) -> _Header:
    topology = schedule.topology
    return _Header(
        writer={"tacos": __version__},
        topology=_topology_header(topology),
        collective=[
            _Part(
                kind=part.kind,
                size_bytes=part.size,
                chunks=part.chunks,
                root=part.root,
                entries=_Entries(**{f: len(getattr(part, f)) for f in _Entries.__struct_fields__}),
            )
            for part in schedule.collective.parts
        ],
        schedule=_Schedule(
            quantum_ps=schedule.quantum_ps,
            orders=schedule.orders,
            time_ps=schedule.time_ps,
            # Stored as text within the JSON, since some Python values, such as an infinite bound, are not valid JSON.
            provenance=json.dumps(schedule.provenance),
            facts=_Facts(
                engine=schedule.engine,
                bound_ps=schedule.bound_ps,
                in_switch_bound_ps=schedule.in_switch_bound_ps,
                consistent=schedule.consistent,
                cut_short=schedule.cut_short,
                matched_ports=schedule.matched_ports,
                rejected=schedule.rejected,
                executed_ps=schedule.executed_ps,
                target=schedule.target,
                file=_File(**{f: getattr(schedule, f) for f in _File.__struct_fields__}),
            ),
        ),
        sections=[_Section(name, dtype, len(columns[name])) for name, dtype in _SECTIONS.items()],
    )


def _topology_header(topology: Topology) -> _Topology:
    values = {field: getattr(topology, field) for field in _Topology.__struct_fields__}
    if topology.routing == "spread":
        values["routing"] = None
    if topology.faults is not None:
        columns = fields(topology.faults)
        values["faults"] = _Faults(
            **{f: v.tolist() if isinstance(v, np.ndarray) else v for f, v in columns.items()}
        )
    return _Topology(**values)


def _facts(header: _Schedule) -> dict[str, Any]:
    """Return the schedule's typed fields."""
    facts = msgspec.structs.asdict(header.facts)
    return facts | msgspec.structs.asdict(facts.pop("file"))


def _topology(header: _Topology, columns: _Columns) -> Topology:
    text = columns.pop("names").tobytes()
    names = _decoded(text, list[str], "topology.names") if text else []
    values, faults = msgspec.structs.asdict(header), header.faults
    values["routing"] = header.routing or "spread"
    if faults is not None:
        given = msgspec.structs.asdict(faults)
        values["faults"] = Faults(**given | {f: np.array(given[f], t) for f, t in _FAULTS.items()})
    return Topology(**values, **columns, names=names)


def _parts(parts: list[_Part], columns: _Columns) -> list[CollectivePart]:
    """Split the columns into those of the parts, which are consecutive."""
    pieces: dict[str, Iterator[np.ndarray[Any, Any]]] = {}
    for field, column in columns.items():
        ends = np.cumsum([0, *(getattr(part.entries, field) for part in parts)], dtype=object)
        if ends[-1] != len(column):
            raise ValueError(
                f"section collective.{field} has {len(column)} entries, but the parts have {ends[-1]}"
            )
        pieces[field] = iter(np.split(column, ends[1:].astype(np.int64)))
    return [
        CollectivePart(
            part.kind,
            part.size_bytes,
            chunks=part.chunks,
            root=part.root,
            **{field: next(piece) for field, piece in pieces.items()},
        )
        for part in parts
    ]


# The container.


@contextmanager
def _opened(path: Location) -> Iterator[tuple[BinaryIO, _Header]]:
    """Open a file and read its header; the file is then positioned after it. Errors name the file."""
    with _binary(path) as file:
        try:
            yield file, _read_header(file)
        except (ValueError, OverflowError, TacosError) as error:
            raise FormatError(f"{path}: {error}") from None


def _binary(path: Location) -> AbstractContextManager[BinaryIO]:
    if isinstance(path, Stream):
        # Columns are found by their position in the file.
        whole = path.file.seekable() and path.file.tell() == 0
        return nullcontext(path.file if whole else BytesIO(path.file.read()))
    if not Path(path).is_file() and Path(path).exists():  # opening a pipe would block forever
        raise FormatError(f"{path}: not a regular file")
    return Path(path).open("rb")


def _size(file: BinaryIO) -> int:
    """Return the size of a file in bytes, and keep its position."""
    here = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(here)
    return size


def _read_header(file: BinaryIO) -> _Header:
    size = _size(file)
    preamble = file.read(_PREAMBLE)
    if not preamble:
        raise ValueError("the file is empty")
    if not preamble.startswith(_MAGIC):
        if preamble.startswith(_MAGIC[:4]):
            raise ValueError(
                "the signature is damaged: the file was transferred in text mode or is cut short"
            )
        raise ValueError("not a .tacos file: it lacks the signature")
    if len(preamble) < _PREAMBLE:
        raise ValueError(f"the file has {size} bytes: it is cut short")
    version = int.from_bytes(preamble[8:12], "little")
    if version > VERSION:
        raise ValueError(
            f"version is {version}, but this version of tacos reads up to {VERSION}; upgrade it"
        )
    if version < 1:
        raise ValueError(f"version is {version}; it must be {VERSION}")
    length = _PREAMBLE + int.from_bytes(preamble[12:16], "little")
    if _block_bytes(length) > size:
        raise ValueError(
            f"the header ends at byte {length}, but the file has {size}: it is cut short"
        )
    payload = bytearray(length)
    file.seek(0)
    _read_block(file, memoryview(payload), "the header")
    header: _Header = _decoded(memoryview(payload)[_PREAMBLE:], _Header, "the header")
    _check(header, _block_bytes(length), size)
    return header


def _check(header: _Header, header_bytes: int, size: int) -> None:
    """Refuse a header that would allocate more memory than the file can fill, or that contradicts the file."""
    if len(header.sections) != len(_SECTIONS):
        raise ValueError(
            f"there are {len(header.sections)} sections; version {VERSION} has {len(_SECTIONS)}"
        )
    for section, (name, dtype) in zip(header.sections, _SECTIONS.items(), strict=True):
        if (section.name, section.dtype) != (name, dtype):
            found = f'"{section.name}" with dtype "{section.dtype}"'
            raise ValueError(f'section {found}; it must be "{name}" with "{dtype}"')
    payloads = (section.count * np.dtype(section.dtype).itemsize for section in header.sections)
    expected = header_bytes + sum(_block_bytes(payload) for payload in payloads)
    if size < expected:
        raise ValueError(f"the file has {size} bytes of {expected}: it is cut short")
    if size > expected:
        raise ValueError(f"{size - expected} bytes follow the end of the schedule")
    # An NPU without links takes memory, but no space in the file.
    if header.topology.npus > size:
        raise ValueError(f"npus is {header.topology.npus}, more than the file has bytes")
    file = header.schedule.facts.file
    if (most := max(file.min_bytes, file.max_bytes)) >= 2**64:
        raise ValueError(f"min_bytes and max_bytes must be below 2^64; got {most}")
    if not _is_object(header.schedule.provenance):
        raise ValueError("provenance must be the text of a JSON object")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _decoded(text: bytes | memoryview, kind: Any, what: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{what}: {error}") from None


def _read_columns(file: BinaryIO, header: _Header, noun: str, mapped: bool = False) -> _Columns:
    """Return the next sections of the file, those of one object."""
    columns = {}
    for section in header.sections:
        owner, _, field = section.name.partition(".")
        if owner == noun:
            column = _mapped(file, section) if mapped else None
            if column is None:
                column = np.empty(section.count, section.dtype)
                _read_block(file, _bytes_of(column), f"section {section.name}")
            columns[field] = column.astype(column.dtype.newbyteorder("="), copy=False)
    return columns


def _mapped(file: BinaryIO, section: _Section) -> np.ndarray[Any, Any] | None:
    """Map a section into memory and check it; None for small sections and for streams."""
    size = section.count * np.dtype(section.dtype).itemsize
    if size < _STEP or not isinstance(file, BufferedReader):
        return None
    begin = file.tell()
    column = np.memmap(file, section.dtype, "r", begin, (section.count,))
    crc = 0
    for piece in _pieces(_bytes_of(column)):
        crc = crc32(piece, crc)
    file.seek(begin + size)
    _check_end(file, _padding(size), crc, f"section {section.name}")
    return np.asarray(column)


def _bytes_of(column: np.ndarray[Any, Any]) -> memoryview:
    return column.view(np.uint8).data


def _block_bytes(payload: int) -> int:
    return payload + _CRC_BYTES + _padding(payload)


def _padding(payload: int) -> int:
    return -(payload + _CRC_BYTES) % _ALIGNMENT


def _write_block(out: BinaryIO, payload: memoryview) -> None:
    crc = 0
    for piece in _pieces(payload):
        crc = crc32(piece, crc)
        out.write(piece)
    padding = bytes(_padding(len(payload)))
    out.write(padding + crc32(padding, crc).to_bytes(_CRC_BYTES, "little"))


def _read_block(file: BinaryIO, payload: memoryview, what: str) -> None:
    crc = 0
    for piece in _pieces(payload):
        file.readinto(piece)  # type: ignore[attr-defined]  # binary files of the standard library have it
        crc = crc32(piece, crc)
    _check_end(file, _padding(len(payload)), crc, what)


def _check_end(file: BinaryIO, zeros: int, crc: int, what: str) -> None:
    """Read what follows a payload: padding, and the checksum of both."""
    padding = file.read(zeros)
    crc = crc32(padding, crc)
    if file.read(_CRC_BYTES) != crc.to_bytes(_CRC_BYTES, "little"):
        raise ValueError(f"{what} is damaged: its checksum does not match")
    if any(padding):
        raise ValueError(f"{what} has fewer entries than the file holds for it")


def _pieces(payload: memoryview) -> Iterator[memoryview]:
    return (payload[at : at + _STEP] for at in range(0, len(payload), _STEP))
