"""Shape programs for MSCCL's executors: pack them, copy them, insert nops, and order their threads.

Every function takes a program and returns an equivalent one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos import topology as topologies
from tacos._core import Collective, CollectivePart, keep_order, pack, run_program, stuck
from tacos.collective import kind_of
from tacos.errors import LimitError
from tacos.formats.msccl.dialect import (
    DIALECTS,
    IN_FLIGHT,
    LAST_AWAITED,
    MOST_COUNT,
    MOST_PEERS,
    MOST_STEPS,
    first_thread,
    limits_exceeded,
)
from tacos.program import STEP_OPS, Program, filled, replaced
from tacos.program_nodes import sized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["finished", "packed"]

_NOP = STEP_OPS.index("nop")
_FUSING_CHANNELS = 8
_SCRATCH, _NONE = 2, 3
_NO_LOSS = 1.005
"""Largest slowdown of a program that is accepted for fused steps."""
_CHUNK, _LARGEST = 1 << 20, 1 << 50
"""Bytes per chunk of a program of unknown size, and the largest size that counts as known."""


def packed(
    programs: Iterable[Program],
    dialect: str,
    channels: int | None,
    most: int,
    instances: int,
    topology: Topology | None,
) -> Program:
    """Return a program whose `instances` copies fit the executors' limits, on at most `channels` or else `most` channels.

    `programs` are equivalent programs. The search stops at the first that fits unchanged; if there is none, it returns the
    fastest that fits after packing.

    Fused steps, which receive and forward, save an executor work, but a threadblock that waits to receive does not send. So
    they are used if the program takes no longer with them, on the topology or else on a fully connected one. Otherwise each
    connection gets a threadblock per direction, which keeps the schedule's order. If too many threadblocks are awaited, some
    sends no longer keep the order of their port; if there are too many threadblocks, some send to one peer and receive from
    another.
    """

    def fits(shaped: Program) -> bool:
        final = finished(shaped, instances)
        exceeded = next(limits_exceeded(final, DIALECTS[dialect]), None)
        return exceeded is None and stuck(final, IN_FLIGHT["Simple"]) < 0

    refusal, unfit = "", list[Program]()
    fused: list[Program] = []
    ordered: list[Program] = []
    for program in programs:
        cut = _cut(program, 1 if instances > 1 else MOST_COUNT)
        keep = partial(keep_order, channels=channels or most, steps=MOST_STEPS, peers=MOST_PEERS)
        whole = partial(keep, cut)
        # How much a program loses when it is packed depends on the program.
        ways: list[tuple[Callable[[], Program], list[Program]]] = [
            (whole, ordered),
            (partial(keep, cut, awaited=(LAST_AWAITED + 1) // instances), ordered),
        ]
        if not ordered:
            ways += [
                (partial(keep, cut, join=True), ordered),
                (partial(_fused, program, channels or most, instances, fits), fused),
            ]
        kept = False
        for shape, fitting in ways:
            if kept and fitting is ordered:
                continue
            try:
                shaped = shape()
            except ValueError as error:  # too many channels
                refusal = str(error)
                continue
            if fits(shaped):
                fitting.append(shaped)
                kept |= shape is whole
            else:
                unfit.append(shaped)
        if kept:
            break
    found = fused + ordered
    if not found and not unfit:
        raise LimitError(refusal)
    if len(found) < 2:
        return found[0] if found else unfit[-1]
    network = topologies.fully_connected(found[0].ranks) if topology is None else topology
    times = [_executed(shaped, network) for shaped in found]
    # Fused programs come first.
    return next(
        shaped for shaped, time in zip(found, times, strict=True) if time <= _NO_LOSS * min(times)
    )


def finished(program: Program, instances: int) -> Program:
    """Return a packed program as it is written: copied, with one dependency per step, and awaited threads first."""
    return awaited_first(with_nops(copies(program, instances)))


def _fused(
    program: Program, channels: int, instances: int, fits: Callable[[Program], bool]
) -> Program:
    """Pack a program into fewer, larger steps, of which as many as possible receive and forward."""
    program = _cut(program if instances == 1 else _within_units(program), MOST_COUNT)
    # Fewer channels need fewer threadblocks, and few_threads needs the fewest; without fusing (0 channels),
    # threadblocks wait less.
    attempts = [min(fusing, channels) for fusing in (_FUSING_CHANNELS, 4, 2, 1)]
    for fusing, few_threads in [*((f, False) for f in [*attempts, 0]), (1, True)]:
        result = pack(
            program,
            channels=channels,
            fusing_channels=fusing,
            steps=MOST_STEPS,
            count=MOST_COUNT,
            peers=MOST_PEERS,
            few_threads=few_threads,
            unit=_unit(program) if instances > 1 else 0,
        )
        if fits(result):
            break
    return result


def _executed(program: Program, topology: Topology) -> float:
    """Return the slower of the executed times on first-come and on shared links."""
    known = program.size_bytes
    size = known if 0 < known <= _LARGEST else program.collective.size_bytes * _CHUNK
    program = filled(program)
    sizes = np.ascontiguousarray(sized(program, size).chunk_bytes(), np.int64)
    none = np.zeros(0, np.int64)
    finished = [
        run_program(
            program,
            sizes,
            topology,
            timing=rule,
            record=False,
            limit=0,
            link_begin=none,
            links=none.astype(np.int32),
            position=none,
        )["npu_finish_ps"]
        for rule in ("first-come", "shared")
    ]
    return max(float(times.max(initial=0)) for times in finished)


def copies(program: Program, instances: int) -> Program:
    """Return copies of a program side by side, each with its share of every unit of chunks."""
    if instances == 1:
        return program
    program = _within_units(program)
    part, unit = program.collective.parts[0], _unit(program)
    steps = np.diff(program.thread_begin)
    thread = np.repeat(np.arange(program.threads), instances)
    copy = np.tile(np.arange(instances), program.threads)
    # The copies of a thread are consecutive; a step's copy is offset like its thread's.
    length = steps[thread]
    begin = np.concatenate([[0], np.cumsum(length)])
    step = np.repeat(program.thread_begin[thread] - begin[:-1], length) + np.arange(begin[-1])
    which = np.repeat(copy, length)
    owner = np.repeat(np.arange(program.threads), steps)

    def moved(old: NDArray[Any], copies: NDArray[Any]) -> NDArray[np.int64]:
        of = owner[old]
        now: NDArray[np.int64] = begin[of * instances + copies] + old - program.thread_begin[of]
        return now

    def slots(buffer: NDArray[Any], slot: NDArray[Any]) -> NDArray[np.int64]:
        rank = program.thread_rank[owner[step]]
        inside = slot // unit * unit * instances + which * unit + slot % unit
        scratch = which * program.scratch_slots[rank] + slot
        return np.where(slot < 0, -1, np.where(buffer == _SCRATCH, scratch, inside))

    came = program.comes_from[step]
    waits = np.diff(program.dep_begin)[step]
    dep_begin = np.concatenate([[0], np.cumsum(waits)])
    row = np.repeat(program.dep_begin[step] - dep_begin[:-1], waits) + np.arange(dep_begin[-1])
    dep = program.dep[row]
    channels = int(program.thread_channel.max(initial=-1)) + 1
    goal = CollectivePart(
        part.kind,
        part.size * instances,
        chunks=part.chunks * instances,
        root=part.root,
        group=part.group,
    )
    return replaced(
        program,
        collective=Collective(program.collective.npus, [goal]),
        scratch_slots=program.scratch_slots * instances,
        thread_rank=program.thread_rank[thread],
        thread_channel=program.thread_channel[thread] + copy * channels,
        thread_send_peer=program.thread_send_peer[thread],
        thread_recv_peer=program.thread_recv_peer[thread],
        thread_begin=begin,
        op=program.op[step],
        src_buffer=program.src_buffer[step],
        dst_buffer=program.dst_buffer[step],
        src_slot=slots(program.src_buffer[step], program.src_slot[step]),
        dst_slot=slots(program.dst_buffer[step], program.dst_slot[step]),
        count=program.count[step],
        peer=program.peer[step],
        comes_from=np.where(came < 0, -1, moved(came, which)),
        dep_begin=dep_begin,
        dep=moved(dep, np.repeat(which, waits)),
    )


def with_nops(program: Program) -> Program:
    """Give each step at most one dependency; nops before it take the others.

    Executors require that a step after nops has their last dependency, so a step without one repeats it.
    """
    waits, dep = np.diff(program.dep_begin), program.dep
    number = np.arange(program.steps)
    start = np.repeat(program.thread_begin[:-1], np.diff(program.thread_begin))
    idle = program.op == _NOP
    waiting = np.maximum.accumulate(np.where(waits > 0, number, -1))
    acting = np.maximum.accumulate(np.where(idle, -1, number))
    before = np.maximum(number - 1, 0)
    nop = waiting[before]  # the last step that waits, if it is one of the nops just before
    bare = ~idle & (waits == 0) & (number > start) & (nop >= start) & (nop > acting[before])
    if (waits <= 1).all() and not bare.any():
        return program
    repeated = dep[program.dep_begin[1:][nop[bare]] - 1]
    dep = np.insert(dep, program.dep_begin[:-1][bare], repeated)
    waits = np.where(bare, 1, waits)
    rows = np.maximum(1, waits)
    end = np.cumsum(rows)
    step = np.repeat(number, rows)
    real = np.zeros(len(step), bool)
    real[end - 1] = True
    dep_begin = np.zeros(len(step) + 1, np.int64)
    np.cumsum(waits[step] > 0, out=dep_begin[1:])

    def kept(values: NDArray[Any], other: int) -> NDArray[Any]:
        return np.where(real, values[step], other)

    came = program.comes_from[step]
    return replaced(
        program,
        thread_begin=np.concatenate([[0], end])[program.thread_begin],
        op=kept(program.op, _NOP),
        src_buffer=kept(program.src_buffer, _NONE),
        dst_buffer=kept(program.dst_buffer, _NONE),
        src_slot=kept(program.src_slot, -1),
        dst_slot=kept(program.dst_slot, -1),
        count=kept(program.count, 0),
        peer=kept(program.peer, -1),
        comes_from=np.where(real & (came >= 0), (end - 1)[came], -1),
        dep_begin=dep_begin,
        dep=(end - 1)[dep],
    )


def awaited_first(program: Program) -> Program:
    """Move threads that others wait for to the front, since depid is limited."""
    owner = np.repeat(np.arange(program.threads), np.diff(program.thread_begin))
    block = np.arange(program.threads) - first_thread(program)[program.thread_rank]
    awaited = np.zeros(program.threads, bool)
    awaited[owner[program.dep]] = True
    if not (block[awaited] > LAST_AWAITED).any():
        return program
    thread = np.lexsort((block, ~awaited, program.thread_rank))
    length = np.diff(program.thread_begin)[thread]
    begin = np.concatenate([[0], np.cumsum(length)])
    step = np.repeat(program.thread_begin[thread] - begin[:-1], length) + np.arange(program.steps)
    new = np.empty(program.steps, np.int64)
    new[step] = np.arange(program.steps)
    waits = np.diff(program.dep_begin)[step]
    dep_begin = np.concatenate([[0], np.cumsum(waits)])
    dep = np.repeat(program.dep_begin[step] - dep_begin[:-1], waits) + np.arange(dep_begin[-1])
    came = program.comes_from[step]
    moved = {name: getattr(program, name)[thread] for name in _THREAD_COLUMNS}
    moved |= {name: getattr(program, name)[step] for name in _STEP_COLUMNS}
    return replaced(
        program,
        thread_begin=begin,
        comes_from=np.where(came < 0, -1, new[came]),
        dep_begin=dep_begin,
        dep=new[program.dep[dep]],
        **moved,
    )


def _unit(program: Program) -> int:
    """Return the number of input and output slots that belong together."""
    part = program.collective.parts[0]
    return len(program.output_chunks(0)) if kind_of(part).unit == "share" else int(part.chunks)


def _within_units(program: Program) -> Program:
    """Return the program with steps of one slot each, if some step touches several units."""
    unit = _unit(program)
    for buffer, slot in (
        (program.src_buffer, program.src_slot),
        (program.dst_buffer, program.dst_slot),
    ):
        if ((buffer < _SCRATCH) & (slot // unit != (slot + program.count - 1) // unit)).any():
            return _cut(program, 1)
    return program


def _cut(program: Program, most: int) -> Program:
    """Return the program in steps of at most `most` slots; the last piece may be smaller."""
    if not (program.count > most).any():
        return program
    pieces = np.maximum(1, -(-program.count // most))
    first = np.zeros(program.steps + 1, np.int64)
    np.cumsum(pieces, out=first[1:])
    step = np.repeat(np.arange(program.steps), pieces)
    piece = np.arange(len(step)) - first[step]
    offset = (piece * most).astype(np.int32)
    came = program.comes_from[step]
    # Both ends of a message are cut in the same way.
    same = np.where(came >= 0, program.count[came] == program.count[step], True)
    if not same.all():
        raise ValueError(
            f"{program.describe(int(step[~same][0]))} receives a different count than is sent"
        )
    waits = np.where(piece == 0, np.diff(program.dep_begin)[step], 0)
    dep_begin = np.zeros(len(step) + 1, np.int64)
    np.cumsum(waits, out=dep_begin[1:])
    return replaced(
        program,
        thread_begin=first[program.thread_begin],
        op=program.op[step],
        src_buffer=program.src_buffer[step],
        dst_buffer=program.dst_buffer[step],
        src_slot=np.where(program.src_slot[step] < 0, -1, program.src_slot[step] + offset),
        dst_slot=np.where(program.dst_slot[step] < 0, -1, program.dst_slot[step] + offset),
        count=np.where(program.count[step] == 0, 0, np.minimum(most, program.count[step] - offset)),
        peer=program.peer[step],
        comes_from=np.where(came < 0, -1, first[came] + piece),
        dep_begin=dep_begin,
        dep=first[program.dep + 1] - 1,  # a step is complete with its last piece
    )


_THREAD_COLUMNS = ("thread_rank", "thread_channel", "thread_send_peer", "thread_recv_peer")
_STEP_COLUMNS = ("op", "src_buffer", "src_slot", "dst_buffer", "dst_slot", "count", "peer")
