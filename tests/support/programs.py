"""Programs by hand, and correct programs with one fault."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacos import collective as co
from tacos.program import FACTS, STEP_OPS, Program

COLUMNS = [
    name
    for name, value in vars(Program).items()
    if isinstance(value, property)
    and name not in ("collective", "in_place", "provenance", "ranks", "threads", "steps", *FACTS)
]
INPUT, OUTPUT, SCRATCH, NONE = range(4)


def changed(program, **columns):
    """The program with some columns replaced, or patched by a function."""
    values = {name: getattr(program, name).copy() for name in COLUMNS}
    for name, change in columns.items():
        values[name] = change(values[name]) if callable(change) else change
    return Program(collective=program.collective, in_place=program.in_place, **values)


def made(collective, threads, *, in_place=False, scratch=0):
    """A program from rows: threads are (rank, send peer, recv peer, steps), a step is
    (op, src buffer, src slot, dst buffer, dst slot, comes_from, dependencies, peer) or shorter."""
    nothing: tuple[Any, ...] = (None, NONE, -1, NONE, -1, -1, [], -1)
    filled = [
        (STEP_OPS.index(step[0]), *(
            default if value is None else value
            for value, default in zip((*step[1:], *(None,) * (8 - len(step))), nothing[1:], strict=True)
        ))
        for thread in threads for step in thread[3]
    ]  # fmt: skip

    def column(i, dtype):
        return np.array([row[i] for row in filled], dtype)

    return Program(
        collective=collective,
        in_place=in_place,
        scratch_slots=np.full(collective.npus, scratch, np.int32),
        thread_rank=np.array([t[0] for t in threads], np.int32),
        thread_channel=np.zeros(len(threads), np.int32),
        thread_send_peer=np.array([t[1] for t in threads], np.int32),
        thread_recv_peer=np.array([t[2] for t in threads], np.int32),
        thread_begin=np.cumsum([0, *(len(t[3]) for t in threads)]).astype(np.int64),
        op=column(0, np.uint8),
        src_buffer=column(1, np.uint8),
        src_slot=column(2, np.int32),
        dst_buffer=column(3, np.uint8),
        dst_slot=column(4, np.int32),
        count=np.ones(len(filled), np.int32),
        peer=column(7, np.int32),
        comes_from=column(5, np.int32),
        dep_begin=np.cumsum([0, *(len(row[6]) for row in filled)]).astype(np.int64),
        dep=np.array([d for row in filled for d in row[6]], np.int32),
    )


# --- one fault -------------------------------------------------------------------------------------


def without(program, step):
    """The program without a step; dependencies on it and messages from it are removed."""
    kept = np.delete(np.arange(program.steps), step)
    renumbered = np.full(program.steps, -1, np.int32)
    renumbered[kept] = np.arange(len(kept))
    owner = np.repeat(np.arange(program.steps), np.diff(program.dep_begin))
    stays = (owner != step) & (program.dep != step)
    count = np.bincount(owner[stays], minlength=program.steps)[kept]
    columns = {
        name: getattr(program, name)[kept]
        for name in ("op", "src_buffer", "src_slot", "dst_buffer", "dst_slot", "count", "peer")
    }
    origin = program.comes_from[kept]
    return changed(
        program,
        **columns,
        comes_from=np.where(origin < 0, -1, renumbered[origin]).astype(np.int32),
        dep_begin=np.concatenate([[0], np.cumsum(count)]).astype(np.int64),
        dep=renumbered[program.dep[stays]],
        thread_begin=program.thread_begin - (program.thread_begin > step),
    )


def depending(program, step, before):
    """The program with one more dependency."""
    end = int(program.dep_begin[step + 1])
    begin = program.dep_begin.copy()
    begin[step + 1 :] += 1
    return changed(program, dep=np.insert(program.dep, end, before), dep_begin=begin)


def independent(program, position):
    """The program without one of its dependencies."""
    begin = program.dep_begin.copy()
    begin[np.searchsorted(begin, position, side="right") :] -= 1
    return changed(program, dep=np.delete(program.dep, position), dep_begin=begin)


def with_entries(program, step, **entries):
    """The program with other entries in a step's row."""
    columns = {}
    for name, value in entries.items():
        columns[name] = getattr(program, name).copy()
        columns[name][step] = value
    return changed(program, **columns)


def one_sided(order):
    """Rank 0 puts its chunk into rank 1's output, signals, and gets rank 1's; rank 1 reads it."""
    send = {
        "put": ("put", INPUT, 0, OUTPUT, 0, None, None, 1),
        "signal": ("signal", None, None, None, None, None, None, 1),
    }
    first = [("copy", INPUT, 0, OUTPUT, 0), *(send[op] for op in order)]
    first.append(("get", INPUT, 0, OUTPUT, 1, None, None, 1))
    second = [
        ("copy", INPUT, 0, OUTPUT, 1),
        ("wait", None, None, None, None, 1 + order.index("signal"), None, 0),
        ("copy", OUTPUT, 0, SCRATCH, 0),
    ]
    return made(
        co.all_gather(2, "2B", chunks=1), [(0, -1, -1, first), (1, -1, -1, second)], scratch=1
    )


def put_and_passed_on():
    """Rank 0 puts its chunk at rank 2 and signals rank 1, which signals rank 2."""
    return made(
        co.broadcast(3, "1B", chunks=1, root=0),
        [
            (0, -1, -1, [
                ("copy", INPUT, 0, OUTPUT, 0),
                ("put", INPUT, 0, OUTPUT, 0, None, None, 1),
                ("put", INPUT, 0, SCRATCH, 0, None, None, 2),
                ("signal", None, None, None, None, None, None, 1),
            ]),
            (1, -1, -1, [
                ("wait", None, None, None, None, 3, None, 0),
                ("signal", None, None, None, None, None, None, 2),
            ]),
            (2, -1, -1, [
                ("wait", None, None, None, None, 5, None, 1),
                ("copy", SCRATCH, 0, OUTPUT, 0),
            ]),
        ],
        scratch=1,
    )  # fmt: skip
