"""A reference that runs programs in slow, plain Python, in a random order.

A slot holds a multiset of contributions (rank, chunk), or None until it is written. Threads take turns
at random, even within a step, which reads and writes its slots one by one, in any order. A step that
must wait is tried again later. A correct program ends with the correct outputs in every order, so that
a race or a missing dependency shows up sooner or later.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tacos.program import BUFFERS, STEP_OPS

if TYPE_CHECKING:
    from collections.abc import Iterator


def run(program, random):
    """Run all steps in some order; return what is wrong in the end, as sentences."""
    collective = program.collective
    memory = [_buffers(program, rank) for rank in range(program.ranks)]
    begin = program.thread_begin.tolist()
    position = begin[:-1].copy()
    done = [False] * program.steps
    missing, waiting = _waits(program)
    messages: dict[int, list[Counter | None]] = {}
    running: dict[int, Iterator[None]] = {}  # the steps that threads have begun
    while True:
        ready = [
            t
            for t in range(program.threads)
            if t in running or (position[t] < begin[t + 1] and not missing[position[t]])
        ]
        if not ready:
            break
        thread = random.choice(ready)
        step, rank = position[thread], int(program.thread_rank[thread])
        if thread not in running:
            running[thread] = _execute(program, step, rank, memory, messages, random)
        if next(running[thread], "done") == "done":
            del running[thread]
            done[step] = True
            position[thread] += 1
            for other in waiting[step]:
                missing[other] -= 1
    wrong = [f"{program.describe(i)} never runs" for i in range(program.steps) if not done[i]]
    for rank in range(program.ranks):
        for slot, chunk in enumerate(program.output_chunks(rank).tolist()):
            inputs = collective.inputs(chunk)
            want = [Counter((npu, chunk) for npu in inputs)]
            if not collective.reduces(chunk):
                want = [Counter([(npu, chunk)]) for npu in inputs]
            if memory[rank]["output"][slot] not in want:
                found = memory[rank]["output"][slot]
                wrong.append(f"rank {rank}: output slot {slot} has {found} instead of {want[0]}")
    return wrong


def _buffers(program, rank):
    inputs = [Counter([(rank, chunk)]) for chunk in program.input_chunks(rank).tolist()]
    buffers: dict[str, list] = {
        "input": inputs,
        "output": [None] * len(program.output_chunks(rank)),
        "scratch": [None] * int(program.scratch_slots[rank]),
    }
    if program.in_place:
        outputs = program.output_chunks(rank).tolist()
        alias = {
            slot: outputs.index(chunk)
            for slot, chunk in enumerate(program.input_chunks(rank).tolist())
            if chunk in outputs
        }
        for slot, output in alias.items():
            buffers["output"][output] = inputs[slot]
        buffers["input"] = _Aliased(inputs, buffers["output"], alias)
    return buffers


class _Aliased(list):
    """An input buffer of which some slots are slots of the output."""

    def __init__(self, inputs, outputs, alias):
        super().__init__(inputs)
        self.outputs, self.alias = outputs, alias

    def __getitem__(self, slot):
        return self.outputs[self.alias[slot]] if slot in self.alias else super().__getitem__(slot)

    def __setitem__(self, slot, value):
        if slot in self.alias:
            self.outputs[self.alias[slot]] = value
        else:
            super().__setitem__(slot, value)


def _waits(program):
    """For each step, how many steps it waits for, and the steps that wait for it."""
    missing = [0] * program.steps
    waiting: list[list[int]] = [[] for _ in range(program.steps)]
    for step, (code, origin) in enumerate(
        zip(program.op.tolist(), program.comes_from.tolist(), strict=True)
    ):
        needed = program.dep[program.dep_begin[step] : program.dep_begin[step + 1]].tolist()
        if "recv" in STEP_OPS[code] or STEP_OPS[code] == "wait":
            needed.append(origin)
        missing[step] = len(needed)
        for other in needed:
            if other >= 0:  # otherwise it never comes
                waiting[other].append(step)
    return missing, waiting


def _execute(program, step, rank, memory, messages, random):
    """Execute a step, with a pause between any two accesses to memory."""
    op = STEP_OPS[program.op[step]]
    reader = int(program.peer[step]) if op in ("get", "get_reduce") else rank
    writer = int(program.peer[step]) if op == "put" else rank
    source = memory[reader].get(BUFFERS[program.src_buffer[step]])
    into = memory[writer].get(BUFFERS[program.dst_buffer[step]])
    first_read, first_written = int(program.src_slot[step]), int(program.dst_slot[step])
    count = int(program.count[step])
    arrived = messages.pop(int(program.comes_from[step]), []) if "recv" in op else []
    arrived += [None] * (count - len(arrived))
    values = [None] * count
    waiting: list[int] = list(range(count))
    read: list[int] = []
    while waiting or read:
        i = random.choice(waiting + read)
        if i in waiting:
            values[i] = arrived[i] if "recv" in op else source[first_read + i]
            if op.startswith("recv_reduce"):
                values[i] = _sum(values[i], source[first_read + i])
            elif op in ("reduce", "get_reduce"):
                values[i] = _sum(values[i], into[first_written + i])
            waiting.remove(i)
            read.append(i)
        else:
            if into is not None:
                into[first_written + i] = values[i]
            read.remove(i)
        yield
    if op.endswith("send") or op == "recv_reduce_forward":
        messages[step] = values


def _sum(a, b):
    return None if a is None or b is None else a + b


def races(program):
    """All pairs of steps that touch a slot, one of them writing, and may run in either order."""
    steps = range(program.steps)
    thread = [t for t in range(program.threads) for _ in range(*program.thread_begin[t : t + 2])]
    first = set(program.thread_begin.tolist())
    waits_for = [
        {*({i - 1} - {-1} if i not in first else ()), *({int(program.comes_from[i])} - {-1})}
        | set(program.dep[program.dep_begin[i] : program.dep_begin[i + 1]].tolist())
        for i in steps
    ]
    behind: list[int | None] = [None] * program.steps  # a bit for every step before this one
    pending = list(steps)
    while pending:
        later = []
        for i in pending:
            if any(behind[p] is None for p in waits_for[i]):
                later.append(i)
                continue
            behind[i] = 0
            for p in waits_for[i]:
                behind[i] |= behind[p] | 1 << p
        pending = later
    touched: dict[tuple, dict[int, bool]] = {}
    for i in steps:
        rank = int(program.thread_rank[thread[i]])
        for place, writes in _touched(program, i, rank):
            by = touched.setdefault(place, {})
            by[i] = by.get(i, False) or writes
    return {
        (a, b)
        for by in touched.values()
        for a in by
        for b in by
        if a < b
        and (by[a] or by[b])
        and not ((behind[b] or 0) >> a & 1 or (behind[a] or 0) >> b & 1)
    }


def _touched(program, step, rank):
    op = STEP_OPS[program.op[step]]
    reader = int(program.peer[step]) if op in ("get", "get_reduce") else rank
    writer = int(program.peer[step]) if op == "put" else rank
    for owner, buffer, slot, writes in (
        (reader, program.src_buffer[step], int(program.src_slot[step]), False),
        (writer, program.dst_buffer[step], int(program.dst_slot[step]), True),
    ):
        name = BUFFERS[buffer] if buffer < len(BUFFERS) else None
        for k in range(int(program.count[step]) if name in ("input", "output", "scratch") else 0):
            place = (owner, name, slot + k)
            if program.in_place and name == "input":
                outputs = program.output_chunks(owner).tolist()
                chunk = int(program.input_chunks(owner)[slot + k])
                place = (owner, "output", outputs.index(chunk)) if chunk in outputs else place
            yield place, writes
