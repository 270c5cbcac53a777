"""The head of an execution plan, and the executor's limits; the core reads the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Raw, Struct

from tacos._core import (
    MSCCLPP_MOST_CHANNELS,
    MSCCLPP_MOST_CHANNELS_PER_OP,
    MSCCLPP_MOST_OPS,
    MSCCLPP_MOST_SEMAPHORES_PER_OP,
)
from tacos.collective import KINDS, kind_of

if TYPE_CHECKING:
    from tacos._core import Collective

MOST_OPS = MSCCLPP_MOST_OPS
"""Largest number of operations of a threadblock; a pipeline counts as one plus those within it."""
MOST_CHANNELS = MSCCLPP_MOST_CHANNELS
"""Largest number of channels, and of remote buffers, of each kind in a threadblock."""
MOST_CHANNELS_PER_OP = MSCCLPP_MOST_CHANNELS_PER_OP
MOST_SEMAPHORES_PER_OP = MSCCLPP_MOST_SEMAPHORES_PER_OP
ALIGNMENT = 16
LARGEST_SIZE = 2**64 - 1

COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
}
"""The collectives whose result a plan defines, with their names in plans."""


def obstacle(collective: Collective) -> str:
    """Return why a plan cannot hold a collective; empty if it can.

    >>> from tacos import collective
    >>> obstacle(collective.all_reduce(4, "1MB")), obstacle(collective.all_gather(4, "1MB", group=[0, 1]))
    ('', 'execution plans are for all NPUs in order, but this all-gather has its own group')
    """
    parts = collective.parts
    kinds = " and ".join(kind_of(part).label for part in parts)
    if len(parts) != 1 or parts[0].kind not in COLLECTIVES:
        held = ", ".join(KINDS[name].label for name in COLLECTIVES)
        return f"execution plans hold one of {held}, not {kinds}"
    if parts[0].group.tolist() != list(range(collective.npus)):
        return f"execution plans are for all NPUs in order, but this {kinds} has its own group"
    return ""


_Positive = Annotated[int, Meta(ge=1, lt=2**31)]
_Bytes = Annotated[int, Meta(ge=0)]


class ExecutionPlan(Struct, gc=False):
    """A whole file; the GPUs as text."""

    name: str
    collective: str
    protocol: Literal["Simple", "LL"]
    inplace: bool
    gpus: Raw
    reuse_resources: bool = False
    num_threads_per_block: _Positive = 1024
    use_double_scratch_buffer: bool = False
    buffer_alignment: _Positive = ALIGNMENT
    min_message_size: _Bytes = 0
    max_message_size: _Bytes = LARGEST_SIZE
