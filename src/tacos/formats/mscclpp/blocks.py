"""Dividing the steps of a program among threadblocks.

A threadblock runs its steps in the order of their levels, so threadblocks never wait for each other in a cycle.
Receiving costs a threadblock of MSCCL++ only a wait. So a thread that receives is merged with the thread that forwards
what it received, or else with one that sends to the same peer. If a threadblock's operations or channels do not
suffice, another threadblock continues when the first is done.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tacos.errors import LimitError
from tacos.formats.mscclpp.execution_plan import MOST_CHANNELS, MOST_CHANNELS_PER_OP, MOST_OPS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos.formats.mscclpp.messages import Order
    from tacos.program import Program

__all__ = ["Block", "Needs", "divide", "group_threads"]

Needs = tuple[tuple[str, int, int], ...]
"""Kind and number of channels, and numbers of remote buffers (-1: none)."""

# Operations for a pipeline, for continuing another threadblock and for being continued, each after a nop.
_RESERVED = 5
_MOST_RESERVED = _RESERVED + 9  # also for handshakes over all channels


@dataclass
class Block:
    """A threadblock: its steps in order, and the channels and remote buffers that they use."""

    rank: int
    steps: list[int]
    follows: int | None = None  # the block of its rank that it continues
    channels: dict[str, dict[int, int]] = field(default_factory=lambda: {"memory": {}, "port": {}})
    buffers: dict[str, dict[int, int]] = field(default_factory=lambda: {"memory": {}, "port": {}})


def divide(
    program: Program,
    order: Order,
    group: NDArray[np.int64],
    costs: list[int],
    uses: list[int],
    needs: list[Needs],
    most: int,
) -> list[list[Block]]:
    """Return the threadblocks of each rank.

    Args:
        program: The program to divide.
        order: An order of its steps.
        group: For each thread, a thread that it is grouped with.
        costs: Largest number of operations that each step becomes.
        uses: Index of each step into `needs`.
        needs: Channels and remote buffers that steps use.
        most: Largest number of threadblocks of a rank.

    Raises:
        LimitError: There are not enough threadblocks.
    """
    if max(costs, default=0) > MOST_OPS - _MOST_RESERVED:
        where = program.describe(costs.index(max(costs)))
        raise LimitError(f"{where} waits for, or is awaited by, too many steps for one threadblock")
    by_level = np.lexsort((np.arange(program.steps), order.level))
    members: list[dict[int, list[int]]] = [{} for _ in range(program.ranks)]
    rank, home = order.rank.tolist(), group[order.thread].tolist()
    for step in by_level.tolist():
        members[rank[step]].setdefault(home[step], []).append(step)
    result = []
    for r, groups in enumerate(members):
        filled = [groups[thread] for thread in sorted(groups)]
        bins = min(len(filled), most)
        while True:
            blocks = _filled(order, r, filled, bins, costs, uses, needs)
            if len(blocks) <= most:
                break
            if bins <= 1:
                raise LimitError(
                    f"rank {r} needs {len(blocks)} threadblocks of {MOST_OPS} operations; "
                    f"the limit is {most}: use fewer chunks, or more threadblocks"
                )
            bins //= 2
        result.append(blocks)
    return result


def group_threads(program: Program, order: Order) -> NDArray[np.int64]:
    """Return, for each thread, the thread whose threadblock it should share; its own number if there is none."""
    send, recv = program.thread_send_peer.tolist(), program.thread_recv_peer.tolist()
    ranks = program.thread_rank.tolist()
    votes: dict[int, Counter[int]] = {}
    edges = np.stack([order.thread[program.dep], order.thread[order.waiter]], axis=1)
    pairs, times = np.unique(edges, axis=0, return_counts=True)
    for (a, b), count in zip(pairs.tolist(), times.tolist(), strict=True):
        if recv[a] >= 0 > send[a] and send[b] >= 0:
            votes.setdefault(a, Counter())[b] += count
    by_peer = {(ranks[t], send[t]): t for t in reversed(range(len(ranks))) if send[t] >= 0}
    home = list(range(len(ranks)))
    for t in range(len(ranks)):
        if recv[t] >= 0 > send[t]:
            if t in votes:
                home[t] = min(votes[t], key=lambda b: (-votes[t][b], b))
            else:
                home[t] = by_peer.get((ranks[t], recv[t]), t)
    return np.array(home, np.int64)


def _filled(
    order: Order,
    rank: int,
    groups: list[list[int]],
    bins: int,
    costs: list[int],
    uses: list[int],
    needs: list[Needs],
) -> list[Block]:
    if bins < len(groups):
        joined: list[list[int]] = [[] for _ in range(bins)]
        for i, steps in enumerate(groups):
            joined[i % bins] += steps
        groups = [sorted(steps, key=lambda s: (order.level[s], s)) for steps in joined]
    blocks: list[Block] = []
    for steps in groups:
        block: Block | None = None
        met: set[int] = set()  # needs that the block satisfies
        ops = 0
        for step in steps:
            ops += costs[step]
            here = uses[step]
            if block is not None and here in met and ops <= MOST_OPS - _MOST_RESERVED:
                block.steps.append(step)
                continue
            if block is None or not _fits(block, ops, needs[here]):
                follows = None if block is None else len(blocks) - 1
                block = Block(rank, [], follows)
                blocks.append(block)
                ops = costs[step]
                met = set()
            block.steps.append(step)
            met.add(here)
            for kind, channel, buffer in needs[here]:
                if channel >= 0:
                    block.channels[kind].setdefault(channel, len(block.channels[kind]))
                if buffer >= 0:
                    block.buffers[kind].setdefault(buffer, len(block.buffers[kind]))
    return blocks


def _fits(block: Block, ops: int, needs: Needs) -> bool:
    if ops > MOST_OPS - _MOST_RESERVED:
        handshakes = sum(-(-(len(c) + 1) // MOST_CHANNELS_PER_OP) for c in block.channels.values())
        if ops > MOST_OPS - _RESERVED - 1 - 2 * handshakes:
            return False
    for kind, channel, buffer in needs:
        for known, new in ((block.channels[kind], channel), (block.buffers[kind], buffer)):
            if new >= 0 and new not in known and len(known) + len(needs) > MOST_CHANNELS:
                return False
    return True
