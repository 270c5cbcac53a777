"""Programs as workloads: the nodes that carry out each step, rank by rank.

The core lists the nodes (`_core.program_nodes`); :func:`nodes` prepares its arguments. Chakra files
(:mod:`tacos.formats.chakra`) and workloads (:mod:`tacos.workload`) both come from this function, so the
workload that is simulated is the one that is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Collective, CollectivePart, ProgramNodes, Schedule, program_nodes
from tacos.collective import kind_of
from tacos.program import ONE_SIDED, filled, lift, lower
from tacos.units import Quantity, bandwidth_Bps, format_size, size_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Program, Topology

__all__ = ["nodes", "sized"]


def nodes(
    obj: Program | Schedule,
    *,
    size: Quantity | None = None,
    topology: Topology | None = None,
    reduce_bandwidth: Quantity | None = None,
    in_place: bool | None = None,
) -> tuple[ProgramNodes, Collective]:
    """Return the nodes of a schedule or a program, and its collective with true sizes.

    Args:
        obj: A program, or a schedule, which is lowered. A program with one-sided steps is lifted
            and lowered again, since nodes only send and receive.
        size: Size of a program's collective. Not needed if the program's chunks have their own sizes, or if
            it was lowered from a schedule of a known size.
        topology: Network of a program; a schedule has its own.
        reduce_bandwidth: How fast NPUs reduce; by default the topology's reduce bandwidth or, if it has none, 1 ns per
            sum.
        in_place: Whether a lowered schedule's input and output are the same memory.

    Raises:
        ValueError: The size is needed, or leaves chunks without bytes, or nodes cannot do what
            the program does.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> program = tacos.lower(tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1)))
    >>> found, collective = nodes(program, size="8MB")
    >>> found.workload
    <tacos.Workload: 4 ranks, 32 nodes>
    >>> collective.chunk_bytes().tolist()
    [2000000, 2000000, 2000000, 2000000]
    """
    schedule: Schedule | None = None
    if isinstance(obj, Schedule):
        if size is not None:
            raise ValueError(f"size is {size}, but a schedule has its own")
        schedule, topology = obj, topology or obj.topology
    elif in_place not in (None, obj.in_place):
        raise ValueError(f"in_place is {in_place}, but the program's is {obj.in_place}")
    elif np.isin(obj.op, ONE_SIDED).any():
        schedule, in_place = lift(obj, topology, size), obj.in_place
    else:
        program = filled(obj)
        collective = sized(program, size)
    if schedule is not None:
        program, collective = lower(schedule, in_place=bool(in_place)), schedule.collective
    if topology is not None and topology.npus != program.ranks:
        raise ValueError(
            f"the topology has {topology.npus} NPUs, but the program has {program.ranks} ranks"
        )
    if reduce_bandwidth is None and topology is not None:
        reduce_bandwidth = topology.reduce_bandwidth_Bps or None
    speed = 0 if reduce_bandwidth is None else bandwidth_Bps(reduce_bandwidth)
    sizes = np.ascontiguousarray(collective.chunk_bytes(), np.int64)
    return program_nodes(program, sizes, reduce_Bps=speed, **_departures(schedule)), collective


def sized(program: Program, size: Quantity | None) -> Collective:
    """Return a program's collective with the bytes that `size` gives to each chunk.

    Args:
        program: What the ranks do.
        size: Size of the collective. Not needed if the program's chunks have their own sizes, or if it was
            lowered from a schedule of a known size.

    Raises:
        ValueError: The size is needed, or leaves chunks without bytes.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> program = tacos.lower(tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1)))
    >>> sized(program, "8MB").chunk_bytes().tolist()
    [2000000, 2000000, 2000000, 2000000]
    """
    parts = program.collective.parts
    named = [part for part in parts if kind_of(part).even]
    if not named:
        if size is not None:
            raise ValueError(f"size is {size}, but {parts[0].label} has sizes of its own")
        return program.collective
    if size is not None:
        sizes: list[Any] = [size_bytes(size)] * len(parts)
    else:
        sizes = program.part_bytes or [program.size_bytes] * len(parts)
        if len(sizes) != len(parts) or not all(sizes):
            raise ValueError("the program does not know its size; give the size of the collective")
    collective = Collective(
        program.collective.npus,
        [
            _with_size(part, size) if kind_of(part).even else part
            for part, size in zip(parts, sizes, strict=True)
        ],
    )
    if not collective.chunk_bytes().all():
        shown = ", ".join(map(format_size, sizes))
        raise ValueError(f"size is {shown}, which is too small for {collective.chunks} chunks")
    return collective


def _departures(schedule: Schedule | None) -> dict[str, NDArray[Any]]:
    """Return ends, chunk and first link of all transfers in order of their starts; nothing if threads share no link.

    Sends to different ranks that share a link, such as the port into a switch, leave in this order.
    """
    names = ("src", "dst", "chunk")
    if schedule is None or (np.diff(schedule.routes.link_begin) == 1).all():
        return {name: np.zeros(0, np.uint32 if name == "chunk" else np.int32)
                for name in (*names, "link")}  # fmt: skip
    schedule = schedule.expand()
    rows = schedule.rows()
    order = np.lexsort((rows["chunk"], rows["start_ps"]))
    first = schedule.routes.links[schedule.routes.link_begin[:-1]]
    columns = {name: np.ascontiguousarray(rows[name][order]) for name in names}
    return columns | {"link": np.ascontiguousarray(first[rows["route"]][order])}


def _with_size(part: CollectivePart, size: int) -> CollectivePart:
    return CollectivePart(part.kind, size, chunks=part.chunks, root=part.root, group=part.group)
