"""Programs: what the ranks do, step by step, to carry out a schedule.

:class:`Program` stands between the schedules of this package and everything that runs or describes
algorithms rank by rank: MSCCL, MSCCL++ and Chakra files, and the runtime. :func:`lower` makes one
from a schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos._core import Program
from tacos._core import lower as _lower

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Schedule

__all__ = ["BUFFERS", "STEP_OPS", "Program", "lower"]

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
BUFFERS = ("input", "output", "scratch", "none")
"""Where a slot can be; ``Program.src_buffer`` and ``dst_buffer`` index this."""


def lower(
    schedule: Schedule,
    *,
    in_place: bool = False,
    rank: int | None = None,
    progress: Callable[[float], object] | None = None,
) -> Program:
    """The program that carries out a schedule.

    Every transfer becomes a send and a receive; sums and chunks on their way live in output or
    scratch slots. The order of each thread is that of the schedule's times, and dependencies keep
    threads from overtaking each other where they touch the same slot, so that the program cannot
    deadlock.

    Args:
        schedule: Without trees through switches that multicast or reduce.
        in_place: Whether the input and output slot of a chunk are the same memory.
        rank: Lower this rank alone; of a symmetric schedule that costs one rank's share. The other
            ranks have no steps then.
        progress: Called with the share done, now and then.

    Raises:
        ValueError: A program cannot say what the schedule does.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1))
    >>> program = lower(schedule)
    >>> program
    <tacos.Program all_gather: 4 ranks, 20 threads, 28 steps>
    >>> [STEP_OPS[op] for op in program.op[:3]]
    ['copy', 'recv', 'recv']
    """
    return _lower(schedule, in_place=in_place, rank=rank, progress=progress)
