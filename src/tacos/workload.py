"""Workloads: what each rank does, as nodes that wait for one another.

A :class:`Workload` has one row per node, stored as columns; times are in picoseconds. It does not contain start
times; a simulator computes them (:mod:`tacos.simulate.astra`).

=========  ==========================================================================================
``SEND``   `bytes` to rank `peer`; matches the receive with the same tag, ranks and size
``RECV``   `bytes` from rank `peer`
``COMP``   takes `duration_ps`, or does `flops` operations over `bytes` of memory
``COLL``   the collective `comm` over `bytes`, by all ranks or by a group
``LOAD``   `bytes` from a memory outside of the NPU
``STORE``  `bytes` to a memory outside of the NPU
=========  ==========================================================================================

:func:`load` and :func:`save` read and write files; :func:`from_nodes` takes columns, and :func:`from_program` and
:func:`from_schedule` convert programs and schedules.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Workload
from tacos._support.columns import column
from tacos.errors import FormatError
from tacos.program_nodes import nodes as _nodes
from tacos.units import Quantity, size_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tacos._core import Program, Schedule, Topology

__all__ = [
    "COLL",
    "COMMS",
    "COMP",
    "KINDS",
    "LOAD",
    "RECV",
    "SEND",
    "STORE",
    "Workload",
    "collective",
    "from_nodes",
    "from_program",
    "from_schedule",
    "load",
    "ring_all_gather",
    "save",
    "summary",
]

SEND, RECV, COMP, COLL, LOAD, STORE = range(6)
"""Kinds of nodes."""
KINDS = ("send", "recv", "comp", "coll", "load", "store")
"""The names of the kinds."""

COMMS = {
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "gather": 3,
    "scatter": 4,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
    "reduce_scatter_block": 8,
    "barrier": 9,
}
"""Kinds of collectives by name, with their numbers in Chakra."""

EVERY_DIM = 255
"""`dims` of a collective that uses all dimensions."""


def load(
    path: str | os.PathLike[str],
    *,
    groups: Mapping[int, Sequence[int]] | str | os.PathLike[str] | None = None,
    dims: Sequence[int] | None = None,
    passes: int | None = None,
    chain_streams: bool | None = None,
    format: str | None = None,
) -> Workload:
    """Read a workload from files.

    ================  ==================================================================================
    ``chakra``        Chakra traces of any producer, ``<prefix>.<rank>.et`` for every rank
    ``astra-layers``  a text file of ASTRA-sim 1.0, a line per layer
    ``libra``         a text file of LIBRA, a line per layer
    ================  ==================================================================================

    Args:
        path: The prefix of traces, or the file of any rank; or the text file.
        groups: For traces: ranks of each group that the collectives name (``pg_name``), as in `from_nodes`, or a
            JSON file that lists them; by default the file ``<prefix>.json``, if it exists, and the groups that PyTorch
            traces contain. For LIBRA: the file of communicators, by default ``communicator.yml`` in the same directory.
        dims: For text files: NPUs of each dimension of the network; the first varies fastest.
        passes: For ``astra-layers``: number of training steps, 1 by default.
        chain_streams: For traces whose nodes name a device and a stream: whether kernels of one stream run one after
            another, even without dependencies between them. True by default.
        format: One of the names above, if extension and content do not identify it.

    Raises:
        FormatError: A file is missing or damaged, or its nodes are not a valid workload; the message names
            file and byte, or rank and node, or line and column.
        ValueError: The format does not take an argument that was given.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(collective(4, "all_reduce", "1MiB"), f"{folder}/step")
    ...     load(f"{folder}/step")
    <tacos.Workload: 4 ranks, 4 nodes>
    """
    from tacos import formats
    from tacos.formats import chakra

    if format is None and not Path(path).is_file():
        name = "chakra"  # a prefix, or a missing file
    else:
        name = formats.name_of(path, format=format)
    given: dict[str, Any] = {
        "groups": groups,
        "dims": dims,
        "passes": passes,
        "chain_streams": chain_streams,
    }
    options = {key: value for key, value in given.items() if value is not None}
    if name == "chakra":
        for key in ("dims", "passes"):
            if key in options:
                raise ValueError(f"{key} is for text files; traces do not need it")
        return chakra.read_workload(path, **options)
    if formats.FORMATS[name].kind is not Workload:
        raise FormatError(f"{path} is not a workload; its format is {name}")
    found: Workload = formats.load(path, format=name, **options)
    return found


def save(workload: Workload, path: str | os.PathLike[str]) -> None:
    """Write a workload as Chakra traces, all files or none.

    ======================  ===================================================
    ``<prefix>.<rank>.et``  the nodes of each rank
    ``<prefix>.json``       the groups, where there are any, as ASTRA-sim reads them
    ======================  ===================================================

    Durations in traces are whole microseconds. Other durations are rounded for other readers; :func:`load`
    restores them exactly.

    Args:
        workload: What to write.
        path: The prefix; existing files are replaced.

    Raises:
        FormatError: A file cannot be written, or would be mixed up with those of another workload.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(from_nodes(2, rank=[0, 1], kind=COLL, group=1, bytes=8, groups={1: [0, 1]}), f"{folder}/w")
    ...     sorted(os.listdir(folder))
    ['w.0.et', 'w.1.et', 'w.json']
    """
    from tacos.formats import chakra

    chakra.write_workload(workload, path)


def from_schedule(schedule: Schedule, *, in_place: bool = False) -> Workload:
    """Return the workload that carries out a schedule: the nodes that its Chakra export writes.

    Args:
        schedule: Without trees through switches that multicast or reduce.
        in_place: Whether input and output are the same memory.

    Raises:
        ValueError: Nodes cannot do what the schedule does.

    >>> import tacos
    >>> topo = tacos.topology.ring(4, bidirectional=False)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MiB", chunks=1))
    >>> from_schedule(schedule)
    <tacos.Workload: 4 ranks, 36 nodes>
    """
    return _nodes(schedule, in_place=in_place)[0].workload


def from_program(
    program: Program, size: Quantity | None = None, topology: Topology | None = None
) -> Workload:
    """Return the workload that carries out a program: the nodes that its Chakra export writes.

    Args:
        program: What the ranks do, in steps.
        size: Size of the collective, if the program does not have one.
        topology: The network, whose reduce bandwidth determines the time of sums, in whole microseconds as in
            the export.

    Raises:
        ValueError: The size is missing, or nodes cannot do what the program does.

    >>> import tacos
    >>> topo = tacos.topology.ring(4, bidirectional=False)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MiB", chunks=1))
    >>> from_program(tacos.lower(schedule), "8MiB")
    <tacos.Workload: 4 ranks, 36 nodes>
    """
    return _nodes(program, size=size, topology=topology)[0].workload


def from_nodes(
    npus: int,
    *,
    rank: ArrayLike,
    kind: ArrayLike,
    peer: ArrayLike = -1,
    bytes: ArrayLike = 0,
    tag: ArrayLike = 0,
    duration_ps: ArrayLike = 0,
    flops: ArrayLike = 0,
    comm: ArrayLike = 0,
    id: ArrayLike | None = None,
    on_cpu: ArrayLike = 0,
    group: ArrayLike = 0,
    priority: ArrayLike = 0,
    dims: ArrayLike = EVERY_DIM,
    names: str | Sequence[str] = "",
    dep_begin: ArrayLike | None = None,
    dep: ArrayLike = (),
    groups: Mapping[int, Sequence[int]] | None = None,
) -> Workload:
    """Build a workload from columns, one entry per node; a number stands for a whole column.

    Rows may come in any order; the workload sorts them by rank.

    Args:
        npus: Number of ranks.
        rank, kind: Where each node runs, and its kind (`SEND`, `RECV`, `COMP`, `COLL`, `LOAD`, `STORE`).
        peer, tag: The other rank of a send or receive, and its tag.
        bytes: Size of a message or collective, or bytes that a computation, load or store moves. As in
            ASTRA-sim, the size of an all-gather is one rank's part; that of other collectives is the whole buffer.
        duration_ps: Duration of a computation in picoseconds; 0 if it follows from `flops` and `bytes`.
        flops: Floating-point operations of a computation.
        comm: Kind of a collective, see `COMMS`.
        id: The node's number within its rank; by default its position there. Lower ids go first.
        on_cpu: 1 for computations that leave the NPU free.
        group: Group of a collective: 0 for all ranks, or a number in `groups`.
        priority: Priority of a collective under the policy "explicit".
        dims: Dimensions of a collective, one bit each.
        names: Name of each node, or one name for all.
        dep_begin, dep: Rows that row i waits for: ``dep[dep_begin[i]:dep_begin[i + 1]]``.
        groups: Ranks of each group, ascending, by the group's number, from 1 on.

    Raises:
        ValueError: A value is out of range, a rank has no nodes, or nodes wait for each other in a cycle.

    >>> pair = from_nodes(2, rank=[0, 1], kind=[SEND, RECV], peer=[1, 0], bytes=1024)
    >>> pair
    <tacos.Workload: 2 ranks, 2 nodes>
    """
    ranks = column("rank", rank, np.int32)
    rows = len(ranks)
    order = np.argsort(ranks, kind="stable")

    def spread(name: str, values: ArrayLike, dtype: type[np.integer[Any]]) -> NDArray[Any]:
        array = np.asarray(values)
        if array.dtype == bool:
            array = array.astype(np.uint8)
        whole = column(name, np.full(rows, array) if array.ndim == 0 else array, dtype)
        return whole[order] if len(whole) == rows else whole

    sorted_ranks = ranks[order]
    begin = np.zeros(rows + 1, np.int64)
    deps = column("dep", dep, np.int64)
    if dep_begin is not None:
        given = column("dep_begin", dep_begin, np.int64)
        begin, deps = _reordered(given, deps, order)
    if id is None:
        numbers = np.arange(rows) - np.searchsorted(sorted_ranks, sorted_ranks)
    else:
        numbers = spread("id", id, np.int64)
    numbers_of: dict[str, int] = {}
    given_names = [names] * rows if isinstance(names, str) else names
    name = np.array([numbers_of.setdefault(n, len(numbers_of)) for n in given_names], np.int32)
    return Workload(
        npus=npus,
        rank=sorted_ranks,
        kind=spread("kind", kind, np.uint8),
        peer=spread("peer", peer, np.int32),
        bytes=spread("bytes", bytes, np.int64),
        tag=spread("tag", tag, np.int32),
        duration_ps=spread("duration_ps", duration_ps, np.int64),
        flops=spread("flops", flops, np.int64),
        comm=spread("comm", comm, np.uint8),
        id=numbers,
        on_cpu=spread("on_cpu", on_cpu, np.uint8),
        group=spread("group", group, np.int32),
        priority=spread("priority", priority, np.int32),
        dims=spread("dims", dims, np.uint8),
        name=name[order] if len(name) == rows else name,
        names=list(numbers_of) or [""],
        dep_begin=begin,
        dep=deps,
        groups=[(number, list(members)) for number, members in (groups or {}).items()],
    )


def _reordered(
    begin: NDArray[np.int64], dep: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Reorder the dependencies with the rows."""
    rows = len(order)
    in_range = ((dep >= 0) & (dep < rows)).all()
    ascends = len(begin) == rows + 1 and begin[0] == 0 and (np.diff(begin) >= 0).all()
    if not ascends or begin[-1] != len(dep) or not in_range:
        return begin, dep  # the constructor will refuse it
    place = np.empty(rows, np.int64)
    place[order] = np.arange(rows)
    counts = np.diff(begin)[order]
    moved = np.concatenate(([0], np.cumsum(counts)))
    first = np.repeat(begin[order] - moved[:-1], counts)
    return moved, place[dep[first + np.arange(len(dep))]]


def ring_all_gather(npus: int, shard: Quantity) -> Workload:
    """Build the ring all-gather: each rank forwards to the next what it received from the previous one.

    Args:
        npus: Number of ranks.
        shard: Size of each rank's contribution.

    >>> ring_all_gather(4, "1MiB").nodes
    24
    """
    if npus < 2:
        raise ValueError(f"npus must be at least 2; got {npus}")
    rank, step = (part.ravel() for part in np.mgrid[:npus, : npus - 1])
    # Rows of rank r: its sends, step by step, then its receives.
    send = rank * 2 * (npus - 1) + step
    waits = step > 0
    node = np.concatenate((send, send + npus - 1))
    order = np.argsort(node)
    dep_counts = np.concatenate((waits, np.zeros_like(waits)))[order]
    before = np.concatenate((send + npus - 2, send))[order]

    def both(of_send: NDArray[Any], of_recv: NDArray[Any]) -> NDArray[Any]:
        joined: NDArray[Any] = np.concatenate((of_send, of_recv))[order]
        return joined

    return from_nodes(
        npus,
        rank=both(rank, rank),
        kind=both(np.full_like(rank, SEND), np.full_like(rank, RECV)),
        peer=both((rank + 1) % npus, (rank - 1) % npus),
        bytes=size_bytes(shard, what="shard"),
        tag=both((rank - step) % npus, (rank - 1 - step) % npus),
        dep_begin=np.concatenate(([0], np.cumsum(dep_counts))),
        dep=before[dep_counts],
    )


def collective(npus: int, comm: str, size: Quantity) -> Workload:
    """Build one collective of all ranks.

    Args:
        npus: Number of ranks.
        comm: Kind of the collective, a key of `COMMS`.
        size: Size of the whole buffer, or of one rank's part of an all-gather, as ASTRA-sim counts.

    >>> collective(8, "all_reduce", "1MiB")
    <tacos.Workload: 8 ranks, 8 nodes>
    """
    if comm not in COMMS:
        raise ValueError(f"comm is {comm!r}; it must be one of {', '.join(COMMS)}")
    return from_nodes(
        npus,
        rank=np.arange(npus),
        kind=COLL,
        comm=COMMS[comm],
        bytes=size_bytes(size),
        names="collective",
    )


def summary(workload: Workload) -> dict[str, Any]:
    """Summarize a workload in plain values; empty entries are left out.

    ===================  ===============================================================================
    ``ranks, nodes``     the number of each
    ``computations``     nodes, their ``flops`` and ``memory_bytes``, and ``compute_s``: the durations of the rank
                         that computes longest
    ``collectives``      a list: kind, size of the groups, number of groups, nodes, and their total bytes
    ``messages``         sends, and ``message_bytes``
    ``loads, stores``    nodes, and ``remote_bytes``
    ===================  ===============================================================================

    >>> facts = summary(collective(8, "all_reduce", "1MiB"))
    >>> facts["nodes"], facts["collectives"]
    (8, [{'kind': 'all_reduce', 'ranks': 8, 'groups': 1, 'nodes': 8, 'bytes': 8388608}])
    """
    facts: dict[str, Any] = {"ranks": workload.npus, "nodes": workload.nodes}
    kinds = np.bincount(workload.kind, minlength=6)

    def total(kind: int, column: NDArray[np.int64]) -> int:
        return int(column[workload.kind == kind].sum(dtype=object) or 0)

    if kinds[COMP]:
        comps = workload.kind == COMP
        seconds = np.bincount(workload.rank[comps], workload.duration_ps[comps] / 1e12)
        facts |= {
            "computations": int(kinds[COMP]),
            "flops": total(COMP, workload.flops),
            "memory_bytes": total(COMP, workload.bytes),
            "compute_s": float(seconds.max()),
        }
    if kinds[COLL]:
        facts["collectives"] = _collectives(workload)
    if kinds[SEND] or kinds[RECV]:
        facts |= {
            "messages": int(kinds[SEND]),
            "receives": int(kinds[RECV]),
            "message_bytes": total(SEND, workload.bytes),
        }
    if kinds[LOAD] or kinds[STORE]:
        facts |= {
            "loads": int(kinds[LOAD]),
            "stores": int(kinds[STORE]),
            "remote_bytes": total(LOAD, workload.bytes) + total(STORE, workload.bytes),
        }
    return facts


def _collectives(workload: Workload) -> list[dict[str, Any]]:
    """Count collectives by kind and by the size of their groups."""
    members = {0: workload.npus} | {number: len(ranks) for number, ranks in workload.groups}
    names = list(COMMS)
    rows = workload.kind == COLL
    sizes = np.array([members[int(group)] for group in workload.group[rows]])
    comm, group, size = workload.comm[rows], workload.group[rows], workload.bytes[rows]
    found = []
    for kind, ranks in sorted(set(zip(comm.tolist(), sizes.tolist(), strict=True))):
        these = (comm == kind) & (sizes == ranks)
        found.append(
            {
                "kind": names[kind],
                "ranks": ranks,
                "groups": len(np.unique(group[these])),
                "nodes": int(these.sum()),
                "bytes": int(size[these].sum(dtype=object)),
            }
        )
    return found
