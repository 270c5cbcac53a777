"""The two families of MSCCL executors: their names for things, and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import stuck
from tacos.collective import KINDS, kind_of
from tacos.program import STEP_OPS, Program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tacos._core import Collective

__all__ = [
    "DIALECTS",
    "PROTOCOLS",
    "TYPES",
    "Dialect",
    "exceeded",
    "first_thread",
    "hangs",
    "limits_exceeded",
    "obstacle",
]

PROTOCOLS = ("Simple", "LL", "LL128")
TYPES = {
    "nop": "nop",
    "cpy": "copy",
    "re": "reduce",
    "s": "send",
    "r": "recv",
    "rcs": "recv_send",
    "rrc": "recv_reduce",
    "rrs": "recv_reduce_forward",
    "rrcs": "recv_reduce_send",
}
"""The types of steps in a file, and their names in programs."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One family of executors.

    Attributes:
        collectives: Its names for the collectives that it supports.
        threadblocks: Largest number of threadblocks of a GPU.
        unlimited: The value of ``maxBytes`` that means no limit.
    """

    collectives: dict[str, str]
    threadblocks: int
    unlimited: int


_COMMON = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "all_to_all": "alltoall",
}
DIALECTS = {
    # Without maxBytes, this executor silently leaves buffers above 128 MiB to NCCL.
    "msccl": Dialect(_COMMON | {"reduce_scatter": "reduce_scatter"}, 216, 1 << 40),
    "azure": Dialect(
        _COMMON | {"reduce_scatter": "reducescatter", "gather": "gather", "scatter": "scatter"},
        1024,
        0,
    ),
}
MOST_STEPS = 256
MOST_CHANNELS = 32
MOST_PEERS = 32  # per channel and direction
MOST_COUNT = 71
LAST_AWAITED = 127  # depid is a signed byte
LAST_OFFSET = 2**15 - 1
LONGEST_NAME = 63
IN_FLIGHT = {"Simple": 2, "LL": 8, "LL128": 8}
"""Messages that a connection can hold before they are received, by protocol."""

SENDS = np.array(["send" in op or op.endswith("forward") for op in STEP_OPS])
RECEIVES = np.array(["recv" in op for op in STEP_OPS])


def obstacle(collective: Collective, dialect: str = "msccl") -> str:
    """Return why a file of a dialect cannot hold a collective; empty if it can.

    >>> from tacos import collective
    >>> obstacle(collective.gather(4, "1MB"), "azure")
    ''
    >>> obstacle(collective.all_gather(4, "1MB", group=[0, 1]))
    'MSCCL files are for all ranks in order, but this all-gather has its own group'
    """
    parts = collective.parts
    kinds = " and ".join(kind_of(part).label for part in parts)
    known = DIALECTS[dialect].collectives
    if len(parts) != 1 or parts[0].kind not in known:
        held = ", ".join(KINDS[name].label for name in known)
        return f"MSCCL files of the dialect {dialect} hold one of {held}, not {kinds}"
    group = parts[0].group
    # The blocks of an all-reduce do not belong to ranks, so their order does not matter.
    in_order = parts[0].kind == "all_reduce" or bool((np.diff(group) == 1).all())
    if len(group) != collective.npus or not in_order:
        return f"MSCCL files are for all ranks in order, but this {kinds} has its own group"
    return ""


def exceeded(program: Program, dialect: str | None = None) -> list[str]:
    """Return the limits of a dialect's executors that a program exceeds, one sentence each.

    The program is judged as it is; writing it may split or merge its steps first. The default dialect is that of the file
    that it was read from, or ``"msccl"``.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(4)
    >>> program = tacos.lower(tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB")))
    >>> exceeded(program)
    []
    """
    protocol = program.protocol if program.protocol in PROTOCOLS else PROTOCOLS[0]
    hanging = hangs(program, protocol)
    if dialect is None:
        dialect = program.dialect if program.dialect in DIALECTS else "msccl"
    return [*limits_exceeded(program, DIALECTS[dialect]), *([hanging] if hanging else [])]


def limits_exceeded(program: Program, limits: Dialect) -> Iterator[str]:
    """Yield the limits that a program exceeds, one sentence each."""

    def where(threads: NDArray[np.bool_] | NDArray[np.intp]) -> str:
        thread = int(np.flatnonzero(threads)[0])
        rank = int(program.thread_rank[thread])
        return f"gpu {rank}, tb {thread - int(first_thread(program)[rank])}"

    steps = np.diff(program.thread_begin)
    if (many := steps > MOST_STEPS).any():
        yield f"{where(many)} has {int(steps[many][0])} steps; the limit is {MOST_STEPS}"
    blocks = np.bincount(program.thread_rank, minlength=program.ranks)
    if (over := blocks > limits.threadblocks).any():
        gpu = int(np.flatnonzero(over)[0])
        yield f"gpu {gpu} has {int(blocks[gpu])} threadblocks; the limit is {limits.threadblocks}"
    if (high := program.thread_channel >= MOST_CHANNELS).any():
        channel = int(program.thread_channel[high][0])
        yield f"{where(high)} has channel {channel}; the highest is {MOST_CHANNELS - 1}"
    for peers, verb in (
        (program.thread_send_peer, "sends to"),
        (program.thread_recv_peer, "receives from"),
    ):
        talks = peers >= 0
        key = program.thread_rank[talks].astype(np.int64) << 32 | program.thread_channel[talks]
        keys, count = np.unique(key, return_counts=True)
        if (count > MOST_PEERS).any():
            place = int((count > MOST_PEERS).argmax())
            first = int(keys[place])
            yield (
                f"gpu {first >> 32} {verb} {int(count[place])} peers on channel "
                f"{first & 0xFFFFFFFF}; the limit is {MOST_PEERS}"
            )
    owner = np.repeat(np.arange(program.threads), steps)

    def step(of: NDArray[np.bool_]) -> str:
        thread = int(owner[of][0])
        number = int(np.flatnonzero(of)[0] - program.thread_begin[thread])
        return f"{where(np.arange(program.threads) == thread)}, step {number}"

    if (big := program.count > MOST_COUNT).any():
        yield f"{step(big)} has the cnt {int(program.count[big][0])}; the limit is {MOST_COUNT}"
    for name, slot in (("srcoff", program.src_slot), ("dstoff", program.dst_slot)):
        if (far := slot > LAST_OFFSET).any():
            yield f"{step(far)} has the {name} {int(slot[far][0])}; the limit is {LAST_OFFSET}"
    waits = np.repeat(np.arange(program.steps), np.diff(program.dep_begin))
    block = owner[program.dep] - first_thread(program)[program.thread_rank[owner[program.dep]]]
    if (late := block > LAST_AWAITED).any():
        chosen = np.arange(program.steps) == waits[late][0]
        yield f"{step(chosen)} has the depid {int(block[late][0])}; the limit is {LAST_AWAITED}"


def hangs(program: Program, protocol: str) -> str | None:
    """Return a sentence about the step that waits forever because a connection holds a limited number of messages.

    A program that deadlocks even with unlimited connections is simply wrong, and not reported here.
    """
    if stuck(program, program.steps + 1) >= 0 or (step := stuck(program, IN_FLIGHT[protocol])) < 0:
        return None
    where = program.describe(step).replace("rank", "gpu").replace("thread", "tb")
    return (
        f"{where} would wait forever, since a connection of the executors holds "
        f"{IN_FLIGHT[protocol]} messages"
    )


def first_thread(program: Program) -> NDArray[np.intp]:
    """Return the first thread of each rank."""
    return np.searchsorted(program.thread_rank, np.arange(program.ranks))
