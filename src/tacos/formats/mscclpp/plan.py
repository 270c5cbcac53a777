"""The words of an execution plan, and what its executor can hold.

Tuples rather than lists: a plan has many empty ones, and one serves them all.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

MOST_OPS = 64
"""Operations of a threadblock; a pipeline counts as one and those within it."""
MOST_CHANNELS = 16
"""Channels, and remote buffers, of each kind of a threadblock."""
MOST_CHANNELS_PER_OP = 8
MOST_SEMAPHORES_PER_OP = 16
MOST_BARRIERS = 16
ALIGNMENT = 16
LARGEST_SIZE = 2**64 - 1

COLLECTIVES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_to_all": "alltoall",
}
"""Those of which a plan says who must end with what."""

_Whole = Annotated[int, Meta(ge=0, lt=2**31)]
_Positive = Annotated[int, Meta(ge=1, lt=2**31)]
_Bytes = Annotated[int, Meta(ge=0)]
_BufferType = Literal["i", "o", "s"]
_ChannelType = Literal["memory", "port", "switch"]
_AccessType = Literal["memory", "port"]


class Piece(Struct, gc=False):
    """Slots that an operation reads or writes: of a buffer of its own, a peer's, or a switch's."""

    index: _Whole
    size: _Positive
    type: _BufferType | None = None
    buffer_id: _Whole | None = None
    switch_channel_id: _Whole | None = None


class Group(Struct, gc=False):
    """Which part of the slots a threadblock of a group takes on."""

    tb_id: _Whole
    tbg_size: _Positive


class Loop(Struct, gc=False):
    """How a pipeline cuts its chunks."""

    unit_size: _Positive
    num_chunks: _Positive


class Op(Struct, gc=False):
    """An operation of a threadblock."""

    name: str
    channel_type: Literal["memory", "port", "switch", "none"] | None = None
    channel_ids: tuple[_Whole, ...] = ()
    src_buff: tuple[Piece, ...] = ()
    dst_buff: tuple[Piece, ...] = ()
    reduce_op: Literal["sum", "min", "max"] = "sum"
    barrier_id: Annotated[int, Meta(ge=0, lt=MOST_BARRIERS)] | None = None
    num_threadblocks: _Whole | None = None
    semaphore_ids: tuple[_Whole, ...] = ()
    tbg_info: Group | None = None
    iter_context: Loop | None = None
    ops: tuple[Op, ...] = ()


class BlockChannels(Struct, gc=False):
    """The GPU's channels that a threadblock uses."""

    channel_type: _ChannelType
    channel_ids: tuple[_Whole, ...]


class BlockBuffers(Struct, gc=False):
    """The GPU's remote buffers that a threadblock uses."""

    access_channel_type: _AccessType
    remote_buffer_ids: tuple[_Whole, ...]


class Threadblock(Struct, gc=False):
    """Operations in order."""

    id: _Whole
    ops: tuple[Op, ...]
    channels: tuple[BlockChannels, ...] = ()
    remote_buffer_refs: tuple[BlockBuffers, ...] = ()


class RankGroup(Struct, gc=False):
    """The ranks behind a switch channel."""

    size: _Whole
    ranks: tuple[_Whole, ...]


class Channel(Struct, gc=False):
    """Channels of one kind to several peers, or a switch's to groups of ranks."""

    channel_type: _ChannelType
    connected_to: tuple[_Whole, ...] = ()
    buffer_type: _BufferType | None = None
    buff: _BufferType | None = None  # what older plans call buffer_type
    rank_groups: tuple[RankGroup, ...] = ()


class RemoteBuffer(Struct, gc=False):
    """A peer's buffer."""

    rank: _Whole
    type: _BufferType
    access_channel_types: tuple[_AccessType, ...]


class Semaphore(Struct, gc=False):
    """What orders two threadblocks of a GPU."""

    init_value: Annotated[int, Meta(ge=0, lt=2**31)]


class Gpu(Struct, gc=False):
    """A rank."""

    id: _Whole
    input_chunks: _Whole
    output_chunks: _Whole
    scratch_chunks: _Whole
    threadblocks: tuple[Threadblock, ...]
    channels: tuple[Channel, ...] = ()
    remote_buffers: tuple[RemoteBuffer, ...] = ()
    semaphores: tuple[Semaphore, ...] = ()


class Plan(Struct, gc=False):
    """A whole file."""

    name: str
    collective: str
    protocol: Literal["Simple", "LL"]
    inplace: bool
    gpus: tuple[Gpu, ...]
    reuse_resources: bool = False
    num_threads_per_block: _Positive = 1024
    use_double_scratch_buffer: bool = False
    buffer_alignment: _Positive = ALIGNMENT
    min_message_size: _Bytes = 0
    max_message_size: _Bytes = LARGEST_SIZE
