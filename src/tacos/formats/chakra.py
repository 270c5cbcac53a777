"""Chakra execution traces: the nodes of a workload, or of a program, as ASTRA-sim runs them.

A set of traces is a file ``<prefix>.<rank>.et`` for every rank: a note about the file, then nodes that wait
for one another. :func:`read_workload` and :func:`write_workload` take any nodes (:class:`tacos.workload.Workload`).
:func:`read` and :func:`write` take programs; :func:`write` adds what ASTRA-sim needs to run one
(:mod:`tacos.formats.astra_inputs`).

Traces record what is sent, not what it means. Traces written by tacos also record the meaning, in attributes that other
readers skip, so :func:`read` returns the program that was written. A program from other traces has the collective
``send_recv``: each message is a separate chunk that its sender holds, and a computation is a step that only waits. Such a
program can be checked for messages without a partner and for deadlocks, run and converted; the meaning of the data is not
known.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Struct

from tacos._core import (
    ChakraTraces,
    Collective,
    CollectivePart,
    Program,
    Schedule,
    Workload,
    chakra_file,
    chakra_program_file,
)
from tacos._support.files import replacing_all
from tacos.errors import FormatError
from tacos.formats import astra_inputs
from tacos.formats.source import bytes_of
from tacos.program import FACTS, facts_in
from tacos.program_nodes import nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tacos._core import ProgramNodes, Topology
    from tacos.units import Quantity

__all__ = ["algorithm_files", "prefix_of", "read", "read_workload", "write", "write_workload"]

_VERSION = 1
_Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_COLUMNS = {
    "group": np.int32,
    "bytes": np.int64,
    "inputs": np.int32,
    "outputs": np.int32,
    "input_begin": np.int64,
    "output_begin": np.int64,
    "reduces": np.uint8,
}


class _Part(Struct, omit_defaults=True):
    kind: str
    size: _Int64
    chunks: _Int32
    root: _Int32 = -1
    group: list[_Int32] = []
    bytes: list[_Int64] = []
    inputs: list[_Int32] = []
    outputs: list[_Int32] = []
    input_begin: list[_Int64] = []
    output_begin: list[_Int64] = []
    reduces: list[Annotated[int, Meta(ge=0, le=1)]] = []


class _Whole(Struct):
    """Facts about all ranks, stored in the file of rank 0."""

    in_place: bool
    collective: list[_Part]
    # Stored as text within the JSON, since some Python values, such as an infinite bound, are not valid JSON.
    provenance: str


class _ProcessGroup(Struct):
    """A process group of PyTorch; without a list of ranks it has all ranks."""

    pg_name: str
    ranks: list[_Int32] = []


class _About(Struct, omit_defaults=True):
    """The note in the metadata of a file."""

    version: int
    rank: int
    ranks: int
    nodes: int
    scratch_slots: _Int32
    send_peer: list[_Int32]
    recv_peer: list[_Int32]
    channel: list[_Int32]
    program: _Whole | None = None


def write(
    obj: Program | Schedule | Workload,
    path: str | os.PathLike[str],
    *,
    size: Quantity | None = None,
    topology: Topology | None = None,
    reduce_bandwidth: Quantity | None = None,
    in_place: bool | None = None,
) -> None:
    """Write traces and the files with which ASTRA-sim runs them, all or none.

    ========================  ==========================================================
    ``<prefix>.<rank>.et``    the algorithm
    ``….workload.<rank>.et``  a workload of one collective, which the algorithm carries out
    ``….system.json``         the system, with the algorithm's absolute prefix
    ``….memory.json``         no memory beyond the NPU's own
    ``….network.yml``         the network, if ASTRA-sim's format can describe it
    ========================  ==========================================================

    Args:
        obj: A program, or a schedule, which is lowered. A program with one-sided steps is lifted
            and lowered again, since traces have only messages. A workload is written unchanged by
            :func:`write_workload`, and takes no options.
        path: The prefix.
        size: Size of a program's collective; a schedule has its own.
        topology: Network of a program; a schedule has its own.
        reduce_bandwidth: How fast NPUs reduce; by default the topology's reduce bandwidth. A reduction takes whole
            microseconds, or 1 ns if it takes no time.
        in_place: Whether a lowered schedule's input and output are the same memory.

    Raises:
        FormatError: A file cannot be written, or would be mixed up with files of another export.
        ValueError: The size is missing, or a trace cannot express what the program does.

    >>> import os, tempfile, tacos
    >>> topo = tacos.topology.ring(4, bandwidth="50GiB/s", latency="500ns")
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MiB", chunks=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(schedule, f"{folder}/ag")
    ...     print(*sorted(os.listdir(folder))[:5])
    ...     read(f"{folder}/ag") == tacos.lower(schedule)
    ag.0.et ag.1.et ag.2.et ag.3.et ag.memory.json
    True
    """
    if isinstance(obj, Workload):
        if (size, topology, reduce_bandwidth, in_place) != (None,) * 4:
            raise ValueError("a workload is written without options")
        write_workload(obj, path)
        return
    prefix = prefix_of(path)
    if isinstance(obj, Schedule):
        topology = topology or obj.topology
    found, collective = nodes(
        obj, size=size, topology=topology, reduce_bandwidth=reduce_bandwidth, in_place=in_place
    )
    beside = astra_inputs.beside(prefix, found.program, collective, topology)
    _put(prefix, found.program.ranks, algorithm_files(found, collective), beside)


def algorithm_files(found: ProgramNodes, collective: Collective) -> Callable[[int], bytes]:
    """Return a function that returns the trace of each rank of an algorithm, from which the program can be restored.

    Args:
        found: The algorithm's nodes, as :func:`tacos.program_nodes.nodes` lists them.
        collective: The algorithm's collective, with true sizes.
    """
    program = found.program
    counts = np.bincount(found.workload.rank, minlength=program.ranks)
    begin = np.searchsorted(program.thread_rank, np.arange(program.ranks + 1))

    def file(rank: int) -> bytes:
        own = slice(begin[rank], begin[rank + 1])
        about = _About(
            version=_VERSION,
            rank=rank,
            ranks=program.ranks,
            nodes=int(counts[rank]),
            scratch_slots=int(program.scratch_slots[rank]),
            send_peer=program.thread_send_peer[own].tolist(),
            recv_peer=program.thread_recv_peer[own].tolist(),
            channel=program.thread_channel[own].tolist(),
            program=_whole(program, collective) if rank == 0 else None,
        )
        return chakra_program_file(found, rank, msgspec.json.encode(about).decode())

    return file


def read(
    path: str | os.PathLike[str],
    *,
    groups: Mapping[int, Sequence[int]] | str | os.PathLike[str] | None = None,
) -> Program | Workload:
    """Read the traces of all ranks: a program if they are an algorithm, else a workload.

    Traces are an algorithm if tacos wrote them as one, or if they only send and receive, with computations that have no
    number of operations; see above for what the program holds. Collectives, loads, stores and computations with
    a number of operations make them a workload. :func:`tacos.workload.load` reads any traces as a workload.

    Args:
        path: The prefix, or the file of any rank.
        groups: As in :func:`tacos.workload.load`; the traces are then read as a workload.

    Raises:
        FormatError: A file is missing or damaged, a send has no receive, or nodes wait for each
            other; the message names file and byte, or rank and node.

    >>> read("missing.0.et")
    Traceback (most recent call last):
    tacos.errors.FormatError: missing.0.et: No such file or directory
    """
    found = _traces(path)
    prefix = prefix_of(path)
    if groups is not None or not found.is_program:
        return _workload(found, prefix, groups)
    notes = found.about
    try:
        if not notes[0]:
            return found.derived(json.dumps({"format": "chakra"}))
        return _restored(found, [_decoded(note, rank) for rank, note in enumerate(notes)])
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{prefix}: {error}") from None


def read_workload(
    path: str | os.PathLike[str],
    *,
    groups: Mapping[int, Sequence[int]] | str | os.PathLike[str] | None = None,
    chain_streams: bool = True,
) -> Workload:
    """Read the traces of all ranks as one workload; see :func:`tacos.workload.load`.

    >>> read_workload("missing")
    Traceback (most recent call last):
    tacos.errors.FormatError: missing.0.et: No such file or directory
    """
    return _workload(_traces(path, chain_streams), prefix_of(path), groups)


def _workload(
    found: ChakraTraces,
    prefix: Path,
    groups: Mapping[int, Sequence[int]] | str | os.PathLike[str] | None,
) -> Workload:
    if groups is None:
        beside = prefix.with_name(f"{prefix.name}.json")
        groups = beside if beside.is_file() and _lists_groups(beside) else {}
    if isinstance(groups, str | os.PathLike):
        groups = _read_groups(Path(groups))
    try:
        listed, named = _named_groups(found, groups)
        return found.workload(listed, named)
    except ValueError as error:
        hint = "; name the file that lists the groups" if "is not defined" in str(error) else ""
        raise FormatError(f"{prefix}: {error}{hint}") from None


def _named_groups(
    found: ChakraTraces, groups: Mapping[int, Sequence[int]]
) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """Return all groups by number, and the number of each group that nodes refer to by name.

    Traces of PyTorch list their process groups in metadata nodes; a file of groups takes precedence.
    """
    listed = {number: list(members) for number, members in groups.items()}
    everyone = list(range(found.ranks))
    by_name: dict[str, list[int]] = {}
    for text in found.process_groups:
        for name, ranks in _process_groups(text.decode("utf-8", "replace")):
            members = sorted(ranks) or everyone
            if by_name.setdefault(name, members) != members:
                raise ValueError(f"process group {name!r} has different ranks in different traces")
    for name, members in by_name.items():
        if name.isdecimal() and 0 < int(name) < 2**31:
            listed.setdefault(int(name), members)
    named = []
    for name in (word.decode("utf-8", "replace") for word in found.group_names):
        if name not in by_name:
            raise ValueError(
                f"pg_name is {name[:40]!r}, which is neither a number nor a process group that the traces list"
            )
        if by_name[name] == everyone:
            named.append(0)
            continue
        number = max(listed, default=0) + 1
        listed[number] = by_name[name]
        named.append(number)
    return list(listed.items()), named


def _process_groups(text: str) -> list[tuple[str, list[int]]]:
    """Return the groups in a metadata node's inputs, a list with one JSON text; [] for other metadata."""
    try:
        fields = msgspec.json.decode(text[2:-2], type=list[_ProcessGroup])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    return [(group.pg_name, group.ranks) for group in fields]


def write_workload(
    workload: Workload, path: str | os.PathLike[str], beside: Mapping[str, bytes] | None = None
) -> None:
    """Write the traces of all ranks, all files or none; see :func:`tacos.workload.save`.

    Args:
        workload: What to write.
        path: The prefix.
        beside: Further files, keyed by the part of their names after the prefix and a dot.
    """
    prefix = prefix_of(path)
    files = dict(beside or {})
    if workload.groups:
        lines = [f'  "{number}": {json.dumps(ranks)}' for number, ranks in workload.groups]
        files["json"] = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
    _put(prefix, workload.npus, lambda rank: chakra_file(workload, rank), files)


def prefix_of(path: str | os.PathLike[str]) -> Path:
    """Return the common part of the files' names.

    >>> [str(prefix_of(name)) for name in ("out/ag", "out/ag.et", "out/ag.12.et")]
    ['out/ag', 'out/ag', 'out/ag']
    """
    folder, name = os.path.split(os.fspath(path))
    return Path(folder, re.sub(r"(\.[0-9]+)?\.et$", "", name))


def _put(
    prefix: Path, ranks: int, file: Callable[[int], bytes], beside: Mapping[str, bytes]
) -> None:
    """Write the trace of every rank, and further files, keyed by the part of their names after the prefix."""
    extra = _file(prefix, ranks)
    if extra.exists():  # a reader would take it for part of this export
        raise FormatError(
            f"{extra}: the file exists, but there are only {ranks} ranks; remove it or choose another "
            "prefix"
        )
    with replacing_all() as put, ThreadPoolExecutor(os.cpu_count()) as pool:

        def put_rank(rank: int) -> None:
            put(_file(prefix, rank), file(rank))

        deque(pool.map(put_rank, range(ranks)), maxlen=0)  # raises the exception of a rank
        for ending, text in beside.items():
            put(prefix.with_name(f"{prefix.name}.{ending}"), text)


def _file(prefix: Path, rank: int) -> Path:
    return prefix.with_name(f"{prefix.name}.{rank}.et")


def _files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the traces that belong to a prefix, or to one of its files, in order of ranks."""
    prefix = prefix_of(path)
    name = re.compile(re.escape(prefix.name) + r"\.(0|[1-9][0-9]{0,8})\.et")
    try:
        matches = [name.fullmatch(entry.name) for entry in prefix.parent.iterdir()]
    except OSError:
        matches = []
    ranks = sorted(int(match[1]) for match in matches if match)
    last = ranks[-1] if ranks else 0
    missing = next((rank for rank, found in enumerate(ranks) if rank != found), None)
    if missing is not None:
        raise FormatError(
            f"{_file(prefix, missing)}: No such file or directory, though {prefix.name}.{last}.et exists"
        )
    if not ranks:
        raise FormatError(f"{_file(prefix, 0)}: No such file or directory")
    return [_file(prefix, rank) for rank in ranks]


def _traces(path: str | os.PathLike[str], chain_streams: bool = True) -> ChakraTraces:
    """Return the nodes of all ranks."""
    traces = ChakraTraces(chain_streams)
    for file in _files(path):
        if not file.is_file():  # opening a pipe would block forever
            raise FormatError(f"{file}: not a regular file")
        try:
            traces.add(file.read_bytes())
        except OSError as error:
            raise FormatError(f"{file}: {error.strerror or error}") from None
        except ValueError as error:
            raise FormatError(f"{file}: {error}") from None
    try:
        traces.check_peers()
    except ValueError as error:
        raise FormatError(f"{prefix_of(path)}: {error}") from None
    return traces


def _lists_groups(file: Path) -> bool:
    """Return whether a file with the prefix holds groups, and not an algorithm in another format."""
    try:
        fields = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return True  # the reader reports what is wrong
    return isinstance(fields, dict) and all(name.isdecimal() for name in fields)


def _read_groups(file: Path) -> dict[int, list[int]]:
    """Return the groups of ASTRA-sim's file: ``{"1": [0, 1], "2": [2, 3]}``."""
    try:
        return msgspec.json.decode(bytes_of(file), type=dict[_Int32, list[_Int32]], strict=False)
    except OSError as error:
        raise FormatError(f"{file}: {error.strerror or error}") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise FormatError(f"{file}: {error}") from None


def _whole(program: Program, collective: Collective) -> _Whole:
    # The format has no other place for typed fields.
    facts = {name: value for name in FACTS if (value := getattr(program, name))}
    if facts.pop("either_place", False):
        facts |= {"inplace": True, "outofplace": True}
    provenance = program.provenance | facts | {"format": "chakra"}
    provenance["size_bytes"] = collective.size_bytes
    if len(collective.parts) > 1:
        provenance["part_bytes"] = [part.size for part in collective.parts]
    return _Whole(
        in_place=program.in_place,
        collective=[
            _Part(
                kind=part.kind,
                size=part.size,
                chunks=part.chunks,
                root=part.root,
                **{name: getattr(part, name).tolist() for name in _COLUMNS},
            )
            for part in program.collective.parts
        ],
        provenance=json.dumps(provenance),
    )


def _decoded(note: bytes, rank: int) -> _About:
    try:
        about = msgspec.json.decode(note, type=_About)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"rank {rank}: metadata attribute tacos: {error}") from None
    if about.version != _VERSION:
        raise ValueError(
            f"rank {rank}: version is {about.version}; this version of tacos reads {_VERSION}"
        )
    if about.rank != rank:
        raise ValueError(f"rank {rank}: the file was written for rank {about.rank}")
    if not len(about.send_peer) == len(about.recv_peer) == len(about.channel):
        raise ValueError(f"rank {rank}: send_peer, recv_peer and channel differ in length")
    return about


def _restored(found: ChakraTraces, notes: list[_About]) -> Program:
    whole = notes[0].program
    if whole is None:
        raise ValueError("rank 0: metadata attribute tacos: the program is missing")
    if notes[0].ranks != found.ranks:
        raise ValueError(f"there are traces of {found.ranks} ranks, but ranks is {notes[0].ranks}")
    counts = np.bincount(found.rank, minlength=found.ranks)
    for rank, note in enumerate(notes):
        if note.nodes != counts[rank]:
            raise ValueError(
                f"rank {rank}: there are {counts[rank]} nodes, but nodes is {note.nodes}"
            )
    try:
        is_object = isinstance(json.loads(whole.provenance), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ValueError("rank 0: provenance must be the text of a JSON object")

    collective = Collective(found.ranks, [_part(part) for part in whole.collective])
    # A large number in a small file must not fill the memory.
    most = max(2**20, 100 * found.nodes)
    slots = max(note.scratch_slots for note in notes)
    if collective.resolved and (count := max(collective.chunks, slots)) > most:
        raise ValueError(
            f"there are {count} chunks or scratch slots; {found.nodes} nodes can use at most {most}"
        )

    def joined(lists: list[list[int]]) -> np.ndarray[Any, Any]:
        return np.array([value for values in lists for value in values], np.int32)

    return found.restored(
        collective=collective,
        in_place=whole.in_place,
        scratch_slots=np.array([note.scratch_slots for note in notes], np.int32),
        thread_rank=np.repeat(
            np.arange(found.ranks, dtype=np.int32), [len(note.channel) for note in notes]
        ),
        send_peer=joined([note.send_peer for note in notes]),
        recv_peer=joined([note.recv_peer for note in notes]),
        channel=joined([note.channel for note in notes]),
        provenance=whole.provenance,
    ).with_facts(**facts_in(json.loads(whole.provenance)))


def _part(part: _Part) -> CollectivePart:
    columns = {name: np.array(getattr(part, name), dtype) for name, dtype in _COLUMNS.items()}
    return CollectivePart(part.kind, part.size, chunks=part.chunks, root=part.root, **columns)
