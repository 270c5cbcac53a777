"""Workloads: what each rank does, as nodes that wait for one another.

A :class:`Workload` is what a set of Chakra execution traces says, as columns: sends, receives,
computations and collectives, with the attributes that ASTRA-sim reads. It carries no times; who
starts when is for :mod:`tacos.simulate.astra` to find out.

========  ===========================================================================
``SEND``  `bytes` to rank `peer`; meets the receive with the same tag, ranks and size
``RECV``  `bytes` from rank `peer`
``COMP``  takes `duration_us`, or 1 ns where that is 0
``COLL``  the collective `comm` of all ranks, or of a group, made by the system
========  ===========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacos import traces
from tacos._core import ChakraTraces, Workload
from tacos._support.columns import column
from tacos.errors import FormatError
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
    "RECV",
    "SEND",
    "Workload",
    "collective",
    "from_chakra",
    "from_nodes",
    "from_program",
    "from_schedule",
    "ring_all_gather",
]

SEND, RECV, COMP, COLL = range(4)
"""Kinds of nodes."""

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
"""Chakra's numbers of the kinds of collectives."""

EVERY_DIM = 255


def from_chakra(
    path: str | os.PathLike[str], *, groups: Mapping[int, Sequence[int]] | None = None
) -> Workload:
    """The workload that Chakra traces say.

    Args:
        path: The prefix of the files ``<prefix>.<rank>.et``, or one of them.
        groups: Ranks of each group that the traces' collectives name, as in `from_nodes`.

    Raises:
        FormatError: A file is missing or damaged; the message names byte and node.

    >>> import tempfile, tacos
    >>> topo = tacos.topology.ring(4)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MiB", chunks=1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tacos.save(schedule, f"{folder}/ag", format="chakra")
    ...     from_chakra(f"{folder}/ag.workload").kind.tolist() == [COLL] * 4
    True
    """
    found = traces.read(path)
    try:
        return _from_traces(found, groups)
    except ValueError as error:
        raise FormatError(f"{traces.prefix_of(path)}: {error}") from None


def from_schedule(schedule: Schedule, *, in_place: bool = False) -> Workload:
    """The workload that carries out a schedule: the nodes that its Chakra export writes.

    Args:
        schedule: Without trees through switches that multicast or reduce.
        in_place: Whether input and output are the same memory.

    Raises:
        ValueError: A trace cannot say what the schedule does.

    >>> import tacos
    >>> topo = tacos.topology.ring(4, bidirectional=False)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MiB", chunks=1))
    >>> from_schedule(schedule)
    <tacos.Workload: 4 ranks, 36 nodes>
    """
    return _from_export(traces.export(schedule, in_place=in_place))


def from_program(
    program: Program, size: Quantity | None = None, topology: Topology | None = None
) -> Workload:
    """The workload that carries out a program: the nodes that its Chakra export writes.

    Args:
        program: What the ranks do, in steps.
        size: Size of the collective, where the program does not have one.
        topology: The network, whose reduce bandwidth says how long sums take.

    Raises:
        ValueError: The size is missing, or a trace cannot say what the program does.

    >>> import tacos
    >>> topo = tacos.topology.ring(4, bidirectional=False)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MiB", chunks=1))
    >>> from_program(tacos.lower(schedule), "8MiB")
    <tacos.Workload: 4 ranks, 36 nodes>
    """
    return _from_export(traces.export(program, size=size, topology=topology))


def _from_export(export: traces.Export) -> Workload:
    # Written and read again, in memory: the nodes are those of the files by construction.
    found = ChakraTraces()
    for rank in range(export.program.ranks):
        found.add(export.writer.file(rank, ""))
    return _from_traces(found, None)


def _from_traces(found: ChakraTraces, groups: Mapping[int, Sequence[int]] | None) -> Workload:
    columns = ("rank", "kind", "peer", "bytes", "tag", "duration_us", "comm", "id", "on_cpu",
               "group", "priority", "dims", "dep_begin", "dep")  # fmt: skip
    return Workload(
        npus=found.ranks,
        groups=[(number, list(members)) for number, members in (groups or {}).items()],
        **{name: getattr(found, name) for name in columns},
    )


def from_nodes(
    npus: int,
    *,
    rank: ArrayLike,
    kind: ArrayLike,
    peer: ArrayLike = -1,
    bytes: ArrayLike = 0,
    tag: ArrayLike = 0,
    duration_us: ArrayLike = 0,
    comm: ArrayLike = 0,
    id: ArrayLike | None = None,
    on_cpu: ArrayLike = 0,
    group: ArrayLike = 0,
    priority: ArrayLike = 0,
    dims: ArrayLike = EVERY_DIM,
    dep_begin: ArrayLike | None = None,
    dep: ArrayLike = (),
    groups: Mapping[int, Sequence[int]] | None = None,
) -> Workload:
    """A workload from columns, one entry per node; a number stands for a whole column.

    Rows may come in any order; the workload has them by rank.

    Args:
        npus: How many ranks.
        rank, kind: Where each node runs, and what it is (`SEND`, `RECV`, `COMP`, `COLL`).
        peer, bytes, tag: Of sends and receives; `bytes` also of collectives.
        duration_us: Of computations, in whole microseconds; 0 stands for 1 ns.
        comm: Of collectives, see `COMMS`. As in ASTRA-sim, the size of an all-gather is one rank's
            part, that of the others the whole buffer.
        id: The node's number within its rank; by default its position there. Lower ids go first.
        on_cpu: 1 for computations that leave the NPU free.
        group, priority: Of collectives: 0 for all ranks or a number in `groups`; and a priority,
            which counts under the policy "explicit".
        dims: Of collectives: bit d says whether dimension d takes part.
        dep_begin, dep: Rows that row i waits for: ``dep[dep_begin[i]:dep_begin[i + 1]]``.
        groups: Ranks of each group, ascending, by a number from 1 on.

    Raises:
        ValueError: A value out of range, a rank without nodes, or nodes that wait for each other.

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
    return Workload(
        npus=npus,
        rank=sorted_ranks,
        kind=spread("kind", kind, np.uint8),
        peer=spread("peer", peer, np.int32),
        bytes=spread("bytes", bytes, np.int64),
        tag=spread("tag", tag, np.int32),
        duration_us=spread("duration_us", duration_us, np.int64),
        comm=spread("comm", comm, np.uint8),
        id=numbers,
        on_cpu=spread("on_cpu", on_cpu, np.uint8),
        group=spread("group", group, np.int32),
        priority=spread("priority", priority, np.int32),
        dims=spread("dims", dims, np.uint8),
        dep_begin=begin,
        dep=deps,
        groups=[(number, list(members)) for number, members in (groups or {}).items()],
    )


def _reordered(
    begin: NDArray[np.int64], dep: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The dependencies of rows that are put into a new order."""
    rows = len(order)
    in_range = ((dep >= 0) & (dep < rows)).all()
    ascends = len(begin) == rows + 1 and begin[0] == 0 and (np.diff(begin) >= 0).all()
    if not ascends or begin[-1] != len(dep) or not in_range:
        return begin, dep  # for the constructor to refuse
    place = np.empty(rows, np.int64)
    place[order] = np.arange(rows)
    counts = np.diff(begin)[order]
    moved = np.concatenate(([0], np.cumsum(counts)))
    first = np.repeat(begin[order] - moved[:-1], counts)
    return moved, place[dep[first + np.arange(len(dep))]]


def ring_all_gather(npus: int, shard: Quantity) -> Workload:
    """The ring all-gather: each rank passes on to the next what it got from the one before.

    Args:
        npus: How many ranks.
        shard: What each rank contributes.

    >>> ring_all_gather(4, "1MiB").nodes
    24
    """
    if npus < 2:
        raise ValueError(f"npus is {npus}, a ring needs at least 2")
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
    """One collective of all ranks, made by the simulated system.

    Args:
        npus: How many ranks.
        comm: Its kind, a key of `COMMS`.
        size: As ASTRA-sim counts: of an all-gather one rank's part, else the whole buffer.

    >>> collective(8, "all_reduce", "1MiB")
    <tacos.Workload: 8 ranks, 8 nodes>
    """
    if comm not in COMMS:
        raise ValueError(f"comm is {comm!r}; it must be one of {', '.join(COMMS)}")
    return from_nodes(
        npus, rank=np.arange(npus), kind=COLL, comm=COMMS[comm], bytes=size_bytes(size)
    )
