"""Programs: what the ranks do, step by step, to carry out a schedule.

:class:`Program` connects the schedules of this package with everything that runs or describes algorithms
rank by rank: MSCCL, MSCCL++ and Chakra files, and the runtime. :func:`lower` converts a schedule to a
program, and :func:`lift` converts it back.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos import topology as topologies
from tacos import units
from tacos._core import Collective, CollectivePart, Program, Schedule, lower_paced
from tacos._core import lift as _lift
from tacos._core import lower as _lower
from tacos.collective import chunks_per_part, kind_of
from tacos.errors import check_type
from tacos.nodes import Network, topology_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike

    from tacos.units import Quantity

__all__ = [
    "BUFFERS",
    "FACTS",
    "ONE_SIDED",
    "STEP_OPS",
    "Program",
    "describe",
    "facts_in",
    "filled",
    "lift",
    "lower",
    "replaced",
]

STEP_OPS = (
    "nop",
    "copy",
    "reduce",
    "send",
    "recv",
    "recv_send",
    "recv_reduce",
    "recv_reduce_forward",
    "recv_reduce_send",
    "put",
    "get",
    "get_reduce",
    "signal",
    "wait",
)
"""What a step can do; ``Program.op`` indexes this."""
ONE_SIDED = [STEP_OPS.index(op) for op in ("put", "get", "get_reduce", "signal", "wait")]
"""Steps that access a peer's memory, or synchronize such accesses, instead of exchanging messages."""
BUFFERS = ("input", "output", "scratch", "none")
"""Where a slot can be; ``Program.src_buffer`` and ``dst_buffer`` index this."""
_DEFAULT_SIZE = 10**6
FACTS = (
    "size_bytes", "part_bytes", "window", "engine", "name", "format", "dialect", "protocol", "min_bytes", "max_bytes",
    "threads_per_block", "either_place",
)  # fmt: skip
"""Typed fields of a program besides its columns."""


def lower(
    schedule: Schedule,
    *,
    in_place: bool = False,
    rank: int | None = None,
    window: int | None = None,
    reuse_scratch: bool = True,
    progress: Callable[[float], object] | None = None,
) -> Program:
    """Return the program that carries out a schedule.

    Every transfer becomes a send and a receive; partial sums and forwarded chunks are kept in output or
    scratch slots. Each thread runs in the order of the schedule's times. Dependencies order threads that
    touch the same slot. The program cannot deadlock.

    Args:
        schedule: Without trees through switches that multicast or reduce.
        in_place: Whether the input and output slot of a chunk are the same memory.
        rank: Lower only this rank, which for a symmetric schedule costs one rank's share. The other
            ranks then have no steps.
        window: Largest number of a rank's messages in flight over a link that limits them, such as the port of a
            switch: 1 keeps the schedule's order there, 0 lets all messages share the link. Default: the window with
            the best worst case of shared links and first-come links, which is recorded in the provenance; 0 with `rank`.
        reuse_scratch: Whether a scratch slot is reused once its chunk has been sent. False takes more memory, but then no
            receive waits for a send, which helps executors whose connections hold few messages.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: A program cannot express what the schedule does.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1))
    >>> program = lower(schedule)
    >>> program
    <tacos.Program all_gather: 4 ranks, 20 threads, 28 steps>
    >>> [STEP_OPS[op] for op in program.op[:3]]
    ['copy', 'recv', 'recv']
    """
    check_type("schedule", schedule, Schedule)
    program: Program | None = None
    if window is None and rank is None:
        program, window, *_ = lower_paced(schedule, in_place=in_place, progress=progress)
    if program is None or not reuse_scratch:
        program = _lower(
            schedule,
            in_place=in_place,
            rank=rank,
            window=window or 0,
            reuse_scratch=reuse_scratch,
            progress=progress,
        )
    facts: dict[str, Any] = {"size_bytes": program.size_bytes}
    if program.part_bytes:
        facts["part_bytes"] = program.part_bytes
    if program.window:
        facts["window"] = program.window
    return program.with_provenance(program.provenance | facts)


def lift(
    program: Program,
    topology: Network | None = None,
    size: Quantity | None = None,
    *,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Return the schedule that a program carries out, with times.

    Every slot of every message becomes a transfer, over the direct link between the two NPUs, or else
    over the route that :func:`tacos.schedule.routes` finds. Times are the earliest that the order of the
    program's reads and writes allows, see :func:`tacos.schedule.retime`. An all-reduce whose number of
    chunks is not a multiple of the number of ranks is lifted in finer chunks, see :func:`filled`.

    Args:
        program: A correct program (see :func:`tacos.verify.verify`). If it has races, one outcome is lifted.
        topology: The network to run on. Default: a fully connected one; the schedule's provenance notes
            this.
        size: In bytes, as nccl-tests counts; the chunks keep the program's proportions. Default: the
            size the program was lowered from or, where that is unknown, 1 MB.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: A schedule cannot express what the program does, for example because a rank forwards a
            sum that it does not keep; the message names the step.
        InfeasibleError: Two ranks that exchange a message are not connected.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_reduce(topo, "4MB", chunks=1))
    >>> lift(lower(schedule), topo).time_s == schedule.time_s
    True
    >>> lift(lower(schedule)).provenance["topology"]
    'fully connected, since no topology was given'
    """
    if topology is not None:
        topology = topology_of(topology)
    check_type("program", program, Program)
    provenance = program.provenance
    # These facts hold for another network, another size, or a file with other steps.
    for name in ("size_bytes", "part_bytes", "bound_s", "format", "inplace", "outofplace"):
        provenance.pop(name, None)
    if size is None:
        size = program.size_bytes or _DEFAULT_SIZE
    if topology is None:
        topology = topologies.fully_connected(program.ranks)
        provenance["topology"] = "fully connected, since no topology was given"
    return _lift(
        filled(program),
        topology,
        units.size_bytes(size),
        provenance=json.dumps(provenance | {"lifted": True}),
        progress=progress,
    )


def filled(program: Program) -> Program:
    """Return an equivalent program in which every chunk has bytes, whatever the size.

    The number of chunks of a named all-reduce is a multiple of the number of NPUs. A program may have another
    number (an MSCCL file can have any), and then its last chunks are empty. Here each slot is split, so that
    the number of slots is such a multiple; the steps stay the same.

    Raises:
        ValueError: A collective other than an all-reduce has empty chunks.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> program = lower(tacos.synthesize(ring, tacos.collective.all_gather(ring, "4MB", chunks=1)))
    >>> filled(program) == program
    True
    """
    goal = program.collective
    empty = np.flatnonzero(goal.chunk_bytes() == 0)
    if not len(empty) or not any(kind_of(part).even for part in goal.parts):
        return program  # the chunks of uneven collectives may be empty: nothing moves them
    part = goal.parts[0]
    if len(goal.parts) > 1 or part.kind != "all_reduce" or part.size == 0:
        raise ValueError(f"chunk {empty[0]} of {goal.chunks} has no bytes; choose fewer chunks")
    members, slots = len(part.group), int(part.size)
    pieces = math.lcm(members, slots) // slots
    if max(slots, int(program.scratch_slots.max())) * pieces >= 2**31:
        raise ValueError(f"{slots} chunks of {members} NPUs need slots beyond 2^31 to be divided")
    chunks = slots * pieces // members
    whole = CollectivePart(part.kind, slots * pieces, chunks=chunks, group=part.group)
    slot = {n: getattr(program, n).astype(np.int64) for n in ("src_slot", "dst_slot")}
    return replaced(
        program,
        collective=Collective(goal.npus, [whole]),
        scratch_slots=program.scratch_slots * pieces,
        count=program.count * pieces,
        **{n: np.where(values < 0, -1, values * pieces) for n, values in slot.items()},
    )


_BYTE_COLUMNS = ("op", "src_buffer", "dst_buffer")
_LONG_COLUMNS = ("thread_begin", "dep_begin")
_INT_COLUMNS = (
    *("scratch_slots", "thread_rank", "thread_channel", "thread_send_peer", "thread_recv_peer"),
    *("src_slot", "dst_slot", "count", "peer", "comes_from", "dep"),
)


def replaced(
    program: Program, *, collective: Collective | None = None, **columns: ArrayLike
) -> Program:
    """Return the program with another collective or some columns replaced.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> program = lower(tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1)))
    >>> replaced(program, thread_channel=program.thread_channel + 1).thread_channel[0]
    np.int32(1)
    """
    kinds = dict.fromkeys(_BYTE_COLUMNS, np.uint8) | dict.fromkeys(_LONG_COLUMNS, np.int64)
    values: dict[str, Any] = {
        name: np.ascontiguousarray(
            columns.get(name, getattr(program, name)), kinds.get(name, np.int32)
        )
        for name in (*_BYTE_COLUMNS, *_LONG_COLUMNS, *_INT_COLUMNS)
    }
    return Program(
        collective=program.collective if collective is None else collective,
        in_place=program.in_place,
        provenance=json.dumps(program.provenance),
        **{name: getattr(program, name) for name in FACTS},
        **values,
    )


def facts_in(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the program fields that a file stores in its provenance, for lack of another place in the format.

    A file may hold anything there, so values of the wrong type are left out.

    >>> facts_in({"size_bytes": 4000000, "name": 7, "engine": "ring"})
    {'size_bytes': 4000000, 'engine': 'ring'}
    """
    kinds: dict[str, type] = {
        "size_bytes": int, "part_bytes": list, "window": int, "engine": str, "name": str, "format": str, "dialect": str,
        "protocol": str, "min_bytes": int, "max_bytes": int, "threads_per_block": int,
    }  # fmt: skip
    found = {
        name: provenance[name] for name, kind in kinds.items() if type(provenance.get(name)) is kind
    }
    limits = {"size_bytes": 2**50, "window": 2**31 - 1, "threads_per_block": 2**31 - 1}
    limits |= {"min_bytes": 2**64 - 1, "max_bytes": 2**64 - 2}  # a larger value means no limit
    for name, most in limits.items():
        if not 0 <= found.get(name, 0) <= most:
            del found[name]
    sizes = found.get("part_bytes", [])
    if not all(type(size) is int and 0 < size <= 2**50 for size in sizes):
        del found["part_bytes"]
    if provenance.get("inplace") is True and provenance.get("outofplace") is True:
        found["either_place"] = True
    return found


def describe(program: Program) -> dict[str, Any]:
    """Summarize a program in plain values, for JSON.

    ``chunks`` is the number of chunks per part, as ``chunks=`` of a collective takes it; None if the chunks
    do not divide evenly into parts. ``total_chunks`` counts all chunks.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> facts = describe(lower(tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1))))
    >>> facts["collective"], facts["ranks"], facts["steps_by_kind"]
    ('all-gather', 4, {'copy': 4, 'send': 12, 'recv': 12})
    """
    counts = np.bincount(program.op, minlength=len(STEP_OPS)).tolist()
    lengths = np.diff(program.thread_begin)
    slots = np.repeat(program.op, program.count)
    sending = [i for i, name in enumerate(STEP_OPS) if "send" in name or "forward" in name]
    one_sided = [STEP_OPS.index(name) for name in ("put", "get", "get_reduce")]
    used = int(np.count_nonzero(program.collective.chunk_bytes()))
    return {
        "name": program.name or None,
        "collective": program.collective.label,
        "chunks": chunks_per_part(program.collective)
        if used == program.collective.chunks
        else None,
        "total_chunks": used,
        "in_place": program.in_place,
        "ranks": program.ranks,
        "threads": program.threads,
        "threads_per_rank": int(np.bincount(program.thread_rank, minlength=1).max()),
        "channels": len(np.unique(program.thread_channel)),
        "steps": program.steps,
        "steps_per_thread": int(lengths.max(initial=0)),
        "steps_by_kind": {name: n for name, n in zip(STEP_OPS, counts, strict=True) if n},
        "transfers": int(np.isin(slots, sending + one_sided).sum()),
        "dependencies": len(program.dep),
        "scratch_slots": int(program.scratch_slots.max(initial=0)),
    }
