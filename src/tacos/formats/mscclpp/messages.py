"""From sends and receives to puts: where each message may land.

A put writes into its receiver's memory at any time. So it may write directly to the receiver's destination slot only if
the receiver has finished all earlier accesses of that slot by then. Otherwise the message lands in separate scratch
memory, from which the receiver copies or reduces it. Like a buffered send, such a put never waits, so it cannot cause a
deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos.program import STEP_OPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos.program import Program

__all__ = ["Order", "landings", "order_of"]

_SCRATCH = 2
SENDS = np.array(["send" in op or op == "recv_reduce_forward" for op in STEP_OPS])
RECEIVES = np.array([op.startswith("recv") for op in STEP_OPS])
STORES_ARRIVAL = np.array([op in ("recv", "recv_send") for op in STEP_OPS])
_GETS = np.array([op in ("get", "get_reduce") for op in STEP_OPS])
_PUTS = np.array([op == "put" for op in STEP_OPS])


@dataclass(frozen=True)
class Order:
    """The thread, rank and level of each step.

    Attributes:
        thread: Thread of each step.
        rank: Rank of each step.
        level: Level of each step; steps wait only for steps of smaller levels.
        receiver: For each step that sends or signals, the step that receives; else -1.
        waiter: The step that waits in each dependency; ``program.dep`` is the step that it waits for.
    """

    thread: NDArray[np.int64]
    rank: NDArray[np.int32]
    level: NDArray[np.int64]
    receiver: NDArray[np.int64]
    waiter: NDArray[np.int64]


def order_of(program: Program) -> Order:
    """Return an order in which the steps of a program can run.

    Raises:
        ValueError: Steps wait for each other in a cycle, or a message has no partner.
    """
    steps = program.steps
    thread = np.repeat(np.arange(program.threads), np.diff(program.thread_begin))
    waiter = np.repeat(np.arange(steps), np.diff(program.dep_begin))
    came = np.flatnonzero(program.comes_from >= 0)
    receiver = np.full(steps, -1, np.int64)
    receiver[program.comes_from[came]] = came
    talks = SENDS | (np.array(STEP_OPS) == "signal")
    hears = RECEIVES | (np.array(STEP_OPS) == "wait")
    for alone, word in (
        (talks[program.op] & (receiver < 0), "sends a message that no rank receives"),
        (hears[program.op] & (program.comes_from < 0), "receives a message that no rank sends"),
    ):
        if alone.any():
            where = program.describe(int(np.flatnonzero(alone)[0]))
            raise ValueError(f"{where} {word}; run tacos verify for details")
    inner = np.flatnonzero(thread[1:] == thread[:-1]) if steps else np.zeros(0, np.int64)
    before = np.concatenate([inner, program.comes_from[came], program.dep])
    after = np.concatenate([inner + 1, came, waiter])
    return Order(
        thread,
        program.thread_rank[thread],
        _levels(steps, before.astype(np.int64), after),
        receiver,
        waiter,
    )


def _levels(steps: int, before: NDArray[np.int64], after: NDArray[np.int64]) -> NDArray[np.int64]:
    by_before = np.argsort(before, kind="stable")
    after = after[by_before]
    begin = np.searchsorted(before[by_before], np.arange(steps + 1))
    waits = np.bincount(after, minlength=steps)
    level = np.full(steps, -1, np.int64)
    front = np.flatnonzero(waits == 0)
    number = 0
    while len(front):
        level[front] = number
        number += 1
        counts = begin[front + 1] - begin[front]
        ends = np.cumsum(counts)
        edges = np.arange(ends[-1]) + np.repeat(begin[front] - ends + counts, counts)
        reached, times = np.unique(after[edges], return_counts=True)
        waits[reached] -= times
        front = reached[waits[reached] == 0]
    if (level < 0).any():
        raise ValueError("steps of the program wait for each other; run tacos verify to see which")
    return level


def landings(
    program: Program, order: Order
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32]]:
    """Return the buffer and slot where each received message lands, and the scratch slots of each rank."""
    received = np.flatnonzero(RECEIVES[program.op])
    straight = np.zeros(program.steps, bool)
    straight[received] = STORES_ARRIVAL[program.op[received]]
    _keep_safe(program, order, straight)
    buffer = program.dst_buffer.copy()
    slot = program.dst_slot.astype(np.int64)
    scratch = program.scratch_slots.copy()
    staged = received[~straight[received]]
    staged = staged[np.argsort(order.rank[staged], kind="stable")]
    counts = program.count[staged].astype(np.int64)
    ends = np.cumsum(counts)
    per_rank = np.bincount(order.rank[staged], counts, program.ranks).astype(np.int64)
    first = np.concatenate([[0], np.cumsum(per_rank)[:-1]])
    buffer[staged] = _SCRATCH
    slot[staged] = ends - counts - first[order.rank[staged]] + scratch[order.rank[staged]]
    return buffer, slot, (scratch + per_rank).astype(np.int32)


def _keep_safe(program: Program, order: Order, straight: NDArray[np.bool_]) -> None:
    """Withdraw direct writes to slots that the receiver may still be using when the message arrives."""
    touches = _Touches(program, order)
    wanted = np.flatnonzero(straight)
    row = touches.of_write[wanted]
    memory, step, reads = touches.memory, touches.step, touches.is_read
    count = program.count[wanted]

    def same(rows: NDArray[np.int64], back: int) -> NDArray[np.bool_]:
        return np.asarray((rows >= back) & (memory[np.maximum(rows - back, 0)] == memory[rows]))

    fresh = ~same(row, 1)
    many = wanted[count > 1]
    fresh[count > 1] = touches.all_fresh(many, program.count[many])
    # The only read since the last write is a send: does its data flow into this message?
    one_read = same(row, 1) & reads[row - 1] & ~(same(row, 2) & reads[np.maximum(row - 2, 0)])
    last = step[np.maximum(row - 1, 0)]
    chased = np.flatnonzero(~fresh & (count == 1) & one_read & SENDS[program.op[last]])
    fresh[chased] = touches.reaches(last[chased], program.comes_from[wanted[chased]], program.ranks)
    straight[wanted[~fresh]] = False


class _Touches:
    """The accesses of steps to memory, sorted by memory and order."""

    def __init__(self, program: Program, order: Order) -> None:
        self.program, self.order = program, order
        base, aliases = _memory(program)
        parts = []
        gets, puts = _GETS[program.op], _PUTS[program.op]
        for writes, slot, buffer, away in (
            (False, program.src_slot, program.src_buffer, gets),
            (True, program.dst_slot, program.dst_buffer, puts),
        ):
            used = np.flatnonzero(slot >= 0)
            rank = np.where(away, program.peer, order.rank)[used]
            counts = program.count[used].astype(np.int64)
            ends = np.cumsum(counts)
            within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
            memory = np.repeat(base[rank, buffer[used]] + slot[used], counts) + within
            parts.append(
                (aliases[memory], np.repeat(used, counts), np.full(len(memory), not writes))
            )
        memory, step, is_read = (np.concatenate(column) for column in zip(*parts, strict=True))
        by_order = np.lexsort((~is_read, order.level[step], memory))
        self.memory, self.step, self.is_read = memory[by_order], step[by_order], is_read[by_order]
        self.of_write = np.full(program.steps, -1, np.int64)
        written = np.flatnonzero(~self.is_read)
        self.of_write[self.step[written[::-1]]] = written[::-1]
        # For each access, the next send from the same memory.
        sends = np.where(
            self.is_read & SENDS[program.op[self.step]], np.arange(len(step)), len(step)
        )
        self.next_send = np.minimum.accumulate(sends[::-1])[::-1] if len(step) else sends

    def all_fresh(self, steps: NDArray[np.int64], counts: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether the steps are the first to touch each of their slots."""
        first = np.ones(len(self.step), bool)
        first[1:] = self.memory[1:] != self.memory[:-1]
        many = np.bincount(self.step[first & ~self.is_read], minlength=self.program.steps)
        return np.asarray(many[steps] == counts)

    def reaches(
        self, start: NDArray[np.int32], goal: NDArray[np.int32], ranks: int
    ) -> NDArray[np.bool_]:
        """Return whether the sends `goal` read what the sends `start` sent, summed or not."""
        program, order = self.program, self.order
        found = np.zeros(len(start), bool)
        goal_row = np.full(program.steps, -1, np.int64)
        read = np.flatnonzero(self.is_read)
        goal_row[self.step[read]] = read
        active = np.arange(len(start))
        current = start.astype(np.int64)
        for _ in range(2 * ranks):
            if not len(active):
                break
            arrival = order.receiver[current]
            row, target = self.of_write[arrival], goal[active]
            wanted = goal_row[target]
            there = (row >= 0) & (wanted >= 0) & (self.memory[wanted] == self.memory[row])
            there &= order.level[target] > order.level[arrival]
            there |= target == arrival
            found[active[there]] = True
            onward = SENDS[program.op[arrival]]
            next_row = np.where(row >= 0, self.next_send[np.maximum(row, 0)], len(self.step))
            inside = next_row < len(self.step)
            next_row = np.minimum(next_row, len(self.step) - 1)
            inside &= self.memory[next_row] == self.memory[np.maximum(row, 0)]
            current = np.where(onward, arrival, self.step[next_row])
            keep = ~there & (onward | inside)
            active, current = active[keep], current[keep]
        return found


def _memory(program: Program) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first number of each rank's buffers; slots in the same memory have the same number."""
    slots = np.array(
        [
            [
                len(program.input_chunks(r)),
                len(program.output_chunks(r)),
                program.scratch_slots[r],
                0,
            ]
            for r in range(program.ranks)
        ],
        np.int64,
    )
    ends = np.cumsum(slots).reshape(slots.shape)
    base = ends - slots
    aliases = np.arange(ends[-1, -1])
    if program.in_place:
        for rank in range(program.ranks):
            _, mine, theirs = np.intersect1d(
                program.input_chunks(rank), program.output_chunks(rank), return_indices=True
            )
            aliases[base[rank, 0] + mine] = base[rank, 1] + theirs
    return base, aliases
