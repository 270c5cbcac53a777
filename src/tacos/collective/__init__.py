"""Collectives: which NPU holds which chunk before, and which must have it after.

Each function builds a :class:`Collective` for a network, given as a topology, a spec such as ``"torus:4x4"``, or a
number of NPUs. ``size`` is as in nccl-tests, the whole buffer (all-reduce, broadcast, reduce: every
NPU's buffer; all-gather and gather: the gathered output; reduce-scatter and scatter: the input;
all-to-all: each NPU's send buffer). ``group`` restricts the collective to some NPUs, in rank order;
the others may relay. NPUs are numbers or, where a topology is given, names. ``chunks`` is the number of
chunks per part, where a part is one NPU's part, one pair's block or the root's buffer; with ``"auto"``
the engine chooses it. :func:`chunks_per_part` returns it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacos import units
from tacos._core import Collective, CollectivePart, Topology
from tacos._support.columns import column
from tacos.collective.kind import Kind, Row
from tacos.collective.kinds import KINDS, kind_of, labels, parse, register
from tacos.errors import keywords
from tacos.nodes import Network, Node, Nodes, topology_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from tacos.units import Quantity

__all__ = [
    "KINDS",
    "NAMED",
    "Chunks",
    "Collective",
    "Kind",
    "Row",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "broadcast",
    "chunks_per_part",
    "custom",
    "gather",
    "kind_of",
    "labels",
    "named",
    "parse",
    "reduce",
    "reduce_scatter",
    "register",
    "scatter",
    "send_recv",
    "together",
]

Chunks = int | Literal["auto"]
"""The number of chunks per part, or ``"auto"``: the engine chooses."""
_LARGEST_SIZE = 2**50
NAMED = tuple(kind.name for kind in KINDS.values() if kind.even)
"""The kinds that a group and a size define."""


@keywords()
def named(
    kind: str,
    npus: Network | int,
    size: Quantity,
    *,
    group: Iterable[Node] | None = None,
    chunks: Chunks = "auto",
    root: Node | None = None,
) -> Collective:
    """Return a collective by name, written with ``-`` or ``_``; `KINDS` lists the names.

    >>> named("all-gather", 4, "1MB", chunks=2)
    <tacos.Collective all_gather of 1000000 B on 4 NPUs, 8 chunks>
    """
    npus = _given(npus)
    found = parse(kind)
    if root is not None and not found.rooted:
        raise ValueError(f"{found.label} has no root; omit root (got {root})")
    count = _count(npus)
    members = _group(npus, group)
    position = -1
    if found.rooted:
        wanted = int(members[0]) if root is None else _npu(npus, root, "root")
        there = np.flatnonzero(members == wanted)
        if not len(there):
            raise ValueError(f"root is {root}, which is not in the group")
        position = int(there[0])
    whole = units.size_bytes(size)
    if found.rows is not None:
        first = int(members[position]) if found.rooted else -1
        columns = zip(*found.rows(members.tolist(), whole, first), strict=True)
        part = _listed(found.name, npus, *columns, size=whole, chunks=_chunks(chunks))
        return Collective(count, [part])
    part = CollectivePart(found.name, whole, chunks=_chunks(chunks), root=position, group=members)
    return Collective(count, [part])


@keywords()
def all_gather(
    npus: Network | int,
    size: Quantity,
    *,
    group: Iterable[Node] | None = None,
    chunks: Chunks = "auto",
) -> Collective:
    """Return an all-gather: every member ends with every member's part.

    >>> all_gather(4, "64MB", chunks=1)
    <tacos.Collective all_gather of 64000000 B on 4 NPUs, 4 chunks>
    """
    return named("all_gather", npus, size, group=group, chunks=chunks)


@keywords()
def reduce_scatter(
    npus: Network | int,
    size: Quantity,
    *,
    group: Iterable[Node] | None = None,
    chunks: Chunks = "auto",
) -> Collective:
    """Return a reduce-scatter: member i ends with the sum of part i of all members.

    >>> reduce_scatter(4, "64MB", chunks=1).outputs(2)
    [2]
    """
    return named("reduce_scatter", npus, size, group=group, chunks=chunks)


@keywords()
def all_reduce(
    npus: Network | int,
    size: Quantity,
    *,
    group: Iterable[Node] | None = None,
    chunks: Chunks = "auto",
) -> Collective:
    """Return an all-reduce: every member ends with the sum of all buffers.

    >>> all_reduce(8, "64MB", group=[0, 2, 4, 6], chunks=1).outputs(0)
    [0, 2, 4, 6]
    """
    return named("all_reduce", npus, size, group=group, chunks=chunks)


@keywords()
def all_to_all(
    npus: Network | int,
    size: Quantity,
    *,
    group: Iterable[Node] | None = None,
    chunks: Chunks = "auto",
) -> Collective:
    """Return an all-to-all: member j ends with block j of every member's send buffer.

    >>> c = all_to_all(4, "64MB", chunks=1)
    >>> c.inputs(1 * 4 + 3), c.outputs(1 * 4 + 3)
    ([1], [3])
    """
    return named("all_to_all", npus, size, group=group, chunks=chunks)


@keywords()
def all_to_all_v(
    npus: Network | int,
    sizes: ArrayLike,
    *,
    group: Iterable[Node] | None = None,
    chunks: Chunks = "auto",
) -> Collective:
    """Return an all-to-all of uneven blocks: member i sends ``sizes[i][j]`` bytes to member j.

    Its size is the largest send buffer, the largest row sum.

    >>> all_to_all_v(2, [[0, 300], [100, 0]], chunks=1).chunk_bytes().tolist()
    [0, 300, 100, 0]
    """
    npus = _given(npus)
    count = _count(npus)
    members = _group(npus, group)
    n = len(members)
    try:
        matrix = np.asarray(sizes)
    except ValueError:
        raise ValueError("sizes must be a matrix, with rows of equal length") from None
    if matrix.shape != (n, n):
        raise ValueError(f"sizes has the shape {matrix.shape}; the group needs ({n}, {n})")
    flat = column("sizes", matrix.ravel(), np.int64)
    if flat.min() < 0:
        raise ValueError(f"sizes has the negative entry {flat.min()}")
    size = max(sum(row) for row in flat.reshape(n, n).tolist())  # Python's integers do not overflow
    if size <= 0:
        raise ValueError("sizes has no positive entry, so there is nothing to send")
    if size > _LARGEST_SIZE:
        raise ValueError(f"a row of sizes must be at most 2^50 bytes; got {size}")
    part = CollectivePart("all_to_all_v", size, chunks=_chunks(chunks), group=members, bytes=flat)
    return Collective(count, [part])


@keywords()
def broadcast(
    npus: Network | int,
    size: Quantity,
    *,
    root: Node | None = None,
    group: Iterable[Node] | None = None,
    chunks: Chunks = "auto",
) -> Collective:
    """Return a broadcast: every member ends with the root's buffer. The default root is the group's first member.

    >>> broadcast(4, "1MB", root=2, chunks=1).inputs(0)
    [2]
    """
    return named("broadcast", npus, size, group=group, chunks=chunks, root=root)


@keywords()
def reduce(
    npus: Network | int,
    size: Quantity,
    *,
    root: Node | None = None,
    group: Iterable[Node] | None = None,
    chunks: Chunks = "auto",
) -> Collective:
    """Return a reduce: the root ends with the sum of all buffers.

    >>> reduce(4, "1MB", root=2, chunks=1).outputs(0)
    [2]
    """
    return named("reduce", npus, size, group=group, chunks=chunks, root=root)


@keywords()
def gather(
    npus: Network | int,
    size: Quantity,
    *,
    root: Node | None = None,
    group: Iterable[Node] | None = None,
    chunks: Chunks = "auto",
) -> Collective:
    """Return a gather: the root ends with every member's part; ``size`` is the root's output.

    >>> gather(4, "1MB", chunks=1).outputs(3)
    [0]
    """
    return named("gather", npus, size, group=group, chunks=chunks, root=root)


@keywords()
def scatter(
    npus: Network | int,
    size: Quantity,
    *,
    root: Node | None = None,
    group: Iterable[Node] | None = None,
    chunks: Chunks = "auto",
) -> Collective:
    """Return a scatter: member i ends with part i of the root's buffer; ``size`` is the root's input.

    >>> scatter(4, "1MB", chunks=1).outputs(3)
    [3]
    """
    return named("scatter", npus, size, group=group, chunks=chunks, root=root)


@keywords()
def send_recv(
    npus: Network | int,
    messages: Iterable[tuple[Node, Node, Quantity]],
    *,
    chunks: Chunks = "auto",
) -> Collective:
    """Return independent messages ``(src, dst, size)``, with no barrier between them.

    Its size is the largest message.

    >>> shift = send_recv(3, [(0, 1, "1MB"), (1, 2, "1MB"), (2, 0, "1MB")], chunks=1)
    >>> shift.inputs(2), shift.outputs(2)
    ([2], [0])
    """
    npus = _given(npus)
    rows = [
        (
            _npu(npus, src, f"messages[{i}]"),
            _npu(npus, dst, f"messages[{i}]"),
            units.size_bytes(size),
        )
        for i, (src, dst, size) in enumerate(messages)
    ]
    if not rows:
        raise ValueError("messages is empty, so there is nothing to send")
    for src, dst, _ in rows:
        if src == dst:
            raise ValueError(f"NPU {src} sends a message to itself")
    sources, destinations, sizes = zip(*rows, strict=True)
    part = CollectivePart(
        "send_recv",
        max(sizes),
        chunks=_chunks(chunks),
        bytes=column("sizes", sizes, np.int64),
        inputs=column("src", sources, np.int32),
        outputs=column("dst", destinations, np.int32),
    )
    return Collective(_count(npus), [part])


@keywords()
def custom(
    npus: Network | int,
    sizes: Sequence[Quantity],
    before: Sequence[Iterable[Node]],
    after: Sequence[Iterable[Node]],
    *,
    reduces: bool | Sequence[bool] = False,
) -> Collective:
    """Return a collective with any pre- and postcondition: each chunk's size, the NPUs that hold it before, and those that need it after.

    The value of a chunk that reduces is the sum of all holders' contributions; otherwise the holders have
    equal replicas. The collective's size is the total size of the chunks.

    >>> c = custom(4, ["1KB", "2KB"], before=[[0], [1, 2]], after=[[3], [0]], reduces=[False, True])
    >>> c.reduces(1), c.inputs(1), c.outputs(1)
    (True, [1, 2], [0])
    """
    npus = _given(npus)
    bytes_ = np.array([units.size_bytes(size) for size in sizes], np.int64)
    flags = [reduces] * len(bytes_) if isinstance(reduces, bool) else list(reduces)
    for name, entries in (("before", before), ("after", after), ("reduces", flags)):
        if len(entries) != len(bytes_):
            raise ValueError(f"{name} has {len(entries)} entries for {len(bytes_)} chunks")
    if not len(bytes_):
        raise ValueError("sizes is empty; a collective needs at least one chunk")
    if (total := sum(bytes_.tolist())) > _LARGEST_SIZE:
        raise ValueError(f"sizes must sum to at most 2^50 bytes; got {total}")
    part = _listed("custom", npus, bytes_, before, after, flags, size=total, chunks=1)
    return Collective(_count(npus), [part])


def together(*collectives: Collective) -> Collective:
    """Combine several collectives that run at once and share the network; chunk ids follow the given order.

    >>> halves = [all_reduce(8, "1MB", group=g, chunks=1) for g in ([0, 1, 2, 3], [4, 5, 6, 7])]
    >>> together(*halves).chunks
    8
    """
    if not collectives:
        raise ValueError("together() needs at least one collective")
    npus = {collective.npus for collective in collectives}
    if len(npus) > 1:
        raise ValueError(f"the collectives are for networks of different sizes: {sorted(npus)}")
    return Collective(npus.pop(), [part for c in collectives for part in c.parts])


def chunks_per_part(collective: Collective) -> int | None:
    """Return the number of chunks per part, the number that ``chunks=`` and ``--chunks`` take.

    None if the engine has yet to choose it, or if several collectives run at once with different numbers.
    `Collective.chunks` counts all chunks instead.

    >>> cut = all_gather(4, "64MB", chunks=2)
    >>> chunks_per_part(cut), cut.chunks
    (2, 8)
    """
    counts = {part.chunks for part in collective.parts}
    return counts.pop() or None if len(counts) == 1 else None


def _given(npus: Network | int) -> Topology | int:
    return topology_of(npus) if isinstance(npus, str | os.PathLike) else npus


def _count(npus: Topology | int) -> int:
    count = npus.npus if isinstance(npus, Topology) else npus
    if type(count) is not int or not 1 <= count < 2**31:  # True is not a number of NPUs
        raise ValueError(f"npus must be a topology, a spec or a number of NPUs; got {npus!r}")
    return count


def _chunks(chunks: Chunks) -> int:
    if chunks == "auto":
        return 0
    count: object = chunks  # callers may pass any type
    whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if not whole or not 1 <= int(chunks) < 2**31:
        raise ValueError(
            f'chunks must be "auto" or a whole number from 1 to 2^31 - 1; got {chunks!r}'
        )
    return int(chunks)


def _npu(npus: Topology | int, given: Node, what: str) -> int:
    """Return the number of an NPU, given by number or, on a topology, by name."""
    if isinstance(npus, Topology):
        return Nodes(npus).npu(given, what=what)
    count, number = _count(npus), given
    whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if isinstance(number, str):
        raise ValueError(f"{what} is {given!r}, but names need a topology, not a number of NPUs")  # noqa: TRY004, as for a name that is not there
    if not whole:
        raise ValueError(f"{what} is {given!r}; it must be an NPU")
    if not 0 <= number < count:
        raise ValueError(f"{what} is {given!r}, but there is no such NPU; {_span(count)}")
    return int(number)


def _span(count: int) -> str:
    return f"the NPUs are 0 to {count - 1}"


def _numbers(npus: Topology | int, given: Iterable[Node], what: str) -> list[Any]:
    """Return NPUs as numbers; only names need a lookup."""
    items = list(given)
    if not any(isinstance(item, str) for item in items):
        return items
    if isinstance(npus, Topology):
        nodes = Nodes(npus)
        return [nodes.npu(item, what=what) for item in items]
    return [_npu(npus, item, what) for item in items]


def _group(npus: Topology | int, group: Iterable[Node] | None) -> NDArray[np.int32]:
    count = _count(npus)
    if group is None:
        return np.arange(count, dtype=np.int32)
    if isinstance(group, str):
        group = (
            Nodes(npus).members(group)
            if isinstance(npus, Topology)
            else [_npu(npus, group, "group")]
        )
    if not isinstance(group, Iterable):
        raise TypeError(f"group must be a list of NPUs; got {group!r}")
    members = column("group", _numbers(npus, group, "group"), np.int32)
    for npu in members[(members < 0) | (members >= count)].tolist():
        raise ValueError(f"group has {npu}, but there is no such NPU; {_span(count)}")
    return members


def _listed(
    kind: str,
    npus: Topology | int,
    sizes: ArrayLike,
    before: Sequence[Iterable[Node]],
    after: Sequence[Iterable[Node]],
    sums: ArrayLike,
    *,
    size: int,
    chunks: int,
) -> CollectivePart:
    input_begin, inputs = _lists("before", before, npus)
    output_begin, outputs = _lists("after", after, npus)
    return CollectivePart(
        kind,
        size,
        chunks=chunks,
        bytes=np.array(sizes, np.int64),
        inputs=inputs,
        outputs=outputs,
        input_begin=input_begin,
        output_begin=output_begin,
        reduces=np.array(sums, np.uint8),
    )


def _lists(
    name: str, lists: Sequence[Iterable[Node]], npus: Topology | int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    rows = [sorted(_numbers(npus, row, name)) for row in lists]
    begin = np.zeros(len(rows) + 1, np.int64)
    begin[1:] = np.cumsum([len(row) for row in rows])
    return begin, column(name, [npu for row in rows for npu in row], np.int32)
