"""A reference for identical bits: how values are added up, as trees of Python tuples.

An expression is an NPU's number (its input), or a sorted tuple of the operands of a sum. Addition commutes, so
two values have the same bits if their expressions are equal.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tacos import topology as tp
from tacos.program import BUFFERS, STEP_OPS
from tacos.schedule import COPY, READ_INPUT, retime, routes
from tests.support.oracle import READ_ACC, REDUCE, transfers_of


def scheduled(goal, rows):
    """Schedule all chunks by the same rows (src, dst, op, reads), one after the other."""
    network = tp.fully_connected(goal.npus, bandwidth="1GB/s", latency="1us")
    ends = list(zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True))
    table = routes(network, links=[[ends.index((src, dst))] for src, dst, *_ in rows])
    pairs = [(chunk, i) for i in range(len(rows)) for chunk in range(goal.chunks)]
    return retime(
        goal,
        table,
        route=[i for _, i in pairs],
        chunk=[chunk for chunk, _ in pairs],
        step=[i for _, i in pairs],
        op=[rows[i][2] for _, i in pairs],
        reads=[rows[i][3] for _, i in pairs],
    )


def two_orders(npus):
    """Rows of a correct sum: the last two NPUs add the others to their own sum, the others add up all at once."""
    one, two, others = npus - 1, npus - 2, range(npus - 2)
    return [
        (two, one, REDUCE, READ_INPUT),
        (one, two, COPY, READ_ACC),
        *((src, dst, REDUCE, READ_INPUT) for src in others for dst in (one, two)),
        *((src, dst, REDUCE, READ_INPUT) for dst in others for src in range(npus) if src != dst),
    ]


def total(operands):
    """The expression of a sum."""
    return operands[0] if len(operands) == 1 else tuple(sorted(operands, key=repr))


def of_schedule(schedule):
    """The expressions that the outputs of each chunk end with: ``[chunk][npu]``, of a packed schedule.

    The values that an NPU adds between two reads of its sum form one sum of many operands.
    """
    chunks: dict[int, list[Any]] = defaultdict(list)
    for i, transfer in enumerate(transfers_of(schedule)):
        chunks[transfer.chunk].append((i, transfer))
    return [
        _followed(schedule.collective, chunk, chunks[chunk])
        for chunk in range(schedule.collective.chunks)
    ]


def _followed(collective, chunk, transfers):
    operands: dict[int, list[Any]] = defaultdict(list)  # of the sum that each NPU has begun
    for npu in collective.inputs(chunk):
        operands[npu] = [npu]
    events = []
    for i, t in transfers:
        events.append((t.starts[0], 2, i, 0, t))
        events += [(when, t.op == REDUCE, i, end, t) for end, when in enumerate(t.arrivals)]
    carried: dict[int, Any] = {}
    for _, order, i, end, t in sorted(events, key=lambda event: event[:4]):
        if order == 2:
            read = []
            for node in t.crossing.sources:
                if t.reads == READ_ACC:
                    operands[node] = [total(operands[node])]
                read.append(operands[node][0] if t.reads == READ_ACC else node)
            # The order inside a switch is unknown.
            carried[i] = (f"switch {i}", total(read)) if len(read) > 2 else total(read)
            continue
        node = t.crossing.destinations[end]
        operands[node] = [*operands[node], carried[i]] if t.op == REDUCE else [carried[i]]
    return {npu: total(operands[npu]) for npu in collective.outputs(chunk)}


def of_program(program):
    """The expressions that the outputs of each chunk end with: ``[chunk][rank]``, as the steps compute them."""
    place = _Places(program)
    memory: dict[Any, Any] = {}
    for rank in range(program.ranks):
        for slot, _ in enumerate(program.input_chunks(rank).tolist()):
            memory[place(rank, "input", slot)] = rank
    begin = program.thread_begin.tolist()
    position = begin[:-1].copy()
    done: set[int] = set()
    messages: dict[int, list[Any]] = {}
    moved = True
    while moved:
        moved = False
        for thread in range(program.threads):
            while position[thread] < begin[thread + 1]:
                step = position[thread]
                first, last = program.dep_begin[step : step + 2].tolist()
                waits_for = {*program.dep[first:last].tolist(), int(program.comes_from[step])}
                if not waits_for - {-1} <= done:
                    break
                _run(program, step, int(program.thread_rank[thread]), memory, messages, place)
                done.add(step)
                position[thread] += 1
                moved = True
    assert len(done) == program.steps
    ends: list[dict[int, Any]] = [{} for _ in range(program.collective.chunks)]
    for rank in range(program.ranks):
        for slot, chunk in enumerate(program.output_chunks(rank).tolist()):
            ends[chunk][rank] = memory[place(rank, "output", slot)]
    return ends


class _Places:
    """Where a slot is; in place, the input and the output slot of a chunk are one."""

    def __init__(self, program):
        self.shared = {}
        for rank in range(program.ranks if program.in_place else 0):
            outputs = program.output_chunks(rank).tolist()
            for slot, chunk in enumerate(program.input_chunks(rank).tolist()):
                if chunk in outputs:
                    self.shared[rank, "input", slot] = (rank, "output", outputs.index(chunk))

    def __call__(self, rank, buffer, slot):
        return self.shared.get((rank, buffer, slot), (rank, buffer, slot))


def _run(program, step, rank, memory, messages, place):
    op, count = STEP_OPS[program.op[step]], int(program.count[step])
    peer = int(program.peer[step])
    arrived = messages.pop(int(program.comes_from[step]), None)
    reader = peer if op in ("get", "get_reduce") else rank
    writer = peer if op == "put" else rank
    sent = []
    for k in range(count):
        operands = [] if arrived is None or "recv" not in op else [arrived[k]]
        if program.src_slot[step] >= 0:
            source = BUFFERS[program.src_buffer[step]]
            operands.append(memory[place(reader, source, int(program.src_slot[step]) + k)])
        into = None
        if program.dst_slot[step] >= 0:
            into = place(writer, BUFFERS[program.dst_buffer[step]], int(program.dst_slot[step]) + k)
        if op in ("reduce", "get_reduce"):
            operands.append(memory[into])
        if not operands:
            continue
        value = total(operands)
        if into is not None:
            memory[into] = value
        sent.append(value)
    if "send" in op or "forward" in op:
        messages[step] = sent


def agree(ends, collective):
    """Whether all outputs of each chunk that is summed up have one expression."""
    return all(
        len({repr(value) for value in values.values()}) <= 1
        for chunk, values in enumerate(ends)
        if collective.reduces(chunk)
    )
