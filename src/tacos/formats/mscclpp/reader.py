"""Reading execution plans: operations become steps, what synchronizes them becomes their order.

A put, get or reduction is one step per slot range; an operation with several of them becomes several.
A signal and the wait it wakes are paired in order on their channel; barriers and semaphores become
dependencies, as far as they promise an order. Packets carry their own flags: whoever reads one waits
for whoever writes it. A switch's multicast and reduction become what they do to each rank's memory.
"""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import numpy as np

from tacos import collective as collectives
from tacos.errors import FormatError
from tacos.formats.mscclpp.plan import (
    COLLECTIVES,
    MOST_CHANNELS,
    MOST_CHANNELS_PER_OP,
    MOST_OPS,
    MOST_SEMAPHORES_PER_OP,
    Gpu,
    Op,
    Piece,
    Plan,
    Threadblock,
)
from tacos.lower import STEP_OPS, Program

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tacos._core import Collective

__all__ = ["looks_like", "read"]

_OP = {name: STEP_OPS.index(name) for name in STEP_OPS}
_BUFFERS = {"i": 0, "o": 1, "s": 2}
_NONE = (3, -1)
_KINDS = {name: kind for kind, name in COLLECTIVES.items()}
_MOST_PARTS = 64
_PUTS = {"put", "pws", "pwsf"}
_REDUCES = {"re", "res", "rre", "rres"}
_PACKET_REDUCES = {"repkt": 1, "respkt": 1, "recpkt": 2, "recspkt": 2}  # local destinations
_ORDERS = {"signal", "wait", "rlxsignal", "rlxwait"}
_NAMES = (
    {"nop", "barrier", "get", "copy", "flush", "ppkt", "rppkt", "cpkt", "upkt", "glres", "gstore"}
    | {"gstorepkt", "pipeline", "sem_acquire", "sem_release"}
    | _PUTS
    | _REDUCES
    | _ORDERS
    | _PACKET_REDUCES.keys()
)

_Place = tuple[int, int, int]  # rank, buffer, slot


def looks_like(head: str) -> bool:
    """Whether a JSON text is an execution plan, by how it begins.

    >>> looks_like('{"name": "x", "collective": "allreduce", "inplace": true, "gpus": ['), looks_like("{}")
    (True, False)
    """
    return all(word in head for word in ('"collective"', '"inplace"', '"gpus"'))


def read(path: str | os.PathLike[str]) -> Program:
    """Read a plan; provenance keeps its name, protocol, range of sizes and threads per block.

    Threadblocks that share the work of an operation cut its chunks, so the program may have more and
    smaller ones than the plan. A pipeline is read as one of its rounds: the others do the same to
    other bytes.

    Raises:
        FormatError: The file is not a plan that the executor takes; the message names GPU,
            threadblock, operation and field.
        OSError: The file cannot be opened.

    >>> read(__file__)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tacos.errors.FormatError: ...reader.py: ...JSON ...
    """
    if not Path(path).is_file() and Path(path).exists():  # opening a pipe would wait for ever
        raise FormatError(f"{path}: this is no file")
    content = Path(path).read_bytes()
    try:
        plan = _decoded(content)
        return _Reader(plan, len(content)).program()
    except (ValueError, OverflowError, RecursionError) as error:
        raise FormatError(f"{path}: {error}") from None


def _decoded(content: bytes) -> Plan:
    try:
        return msgspec.json.decode(content, type=Plan)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        problem = error
    except msgspec.DecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not a plan: it nests too deeply") from None
    # The decoder names the field but not which of many; look for the first part that fails.
    raw = msgspec.json.decode(content)
    for g, gpu in enumerate(_list(raw, "gpus")):
        for t, block in enumerate(_list(gpu, "threadblocks")):
            for o, op in enumerate(_list(block, "ops")):
                _convert(op, Op, f"gpu {g}, threadblock {t}, op {o}")
            _convert(block, Threadblock, f"gpu {g}, threadblock {t}")
        _convert(gpu, Gpu, f"gpu {g}")
    raise ValueError(_words(problem))


def _list(raw: Any, field: str) -> list[Any]:
    found = raw.get(field) if isinstance(raw, dict) else None
    return found if isinstance(found, list) else []


def _convert(raw: Any, kind: Any, where: str) -> None:
    try:
        msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {_words(error)}") from None


def _words(error: Exception) -> str:
    return str(error).replace(" - at `$.", ", field `").replace(" - at `$`", "")


class _Reader:
    """A plan on its way to the columns of a program."""

    def __init__(self, plan: Plan, file_bytes: int) -> None:
        self.plan = plan
        self.ranks = len(plan.gpus)
        self.at: tuple[int, ...] = ()
        self.parts = self._parts()
        self._check_sizes(file_bytes)
        self.goal = self._collective()
        self.rows = array(
            "i"
        )  # thread, op, src buffer, src slot, dst buffer, dst slot, count, peer
        self.steps = 0
        self.thread_rank = array("i")
        self.came = array("i")  # pairs: step, where it comes from
        self.deps = array("i")  # pairs: step, on which it depends
        self.signals: dict[tuple[int, str, int], list[int]] = defaultdict(list)
        self.waits: dict[tuple[int, str, int], list[int]] = defaultdict(list)
        self.releases: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(dict)
        self.acquires: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(dict)
        self.barriers: dict[tuple[int, int], dict[int, list[tuple[int, int, str]]]] = {}
        self.packets: dict[_Place, int] = {}  # which step wrote what is there
        self.packet_reads: list[tuple[int, _Place, int, str]] = []
        self.arrivals: dict[tuple[int, int], int] = {}
        self.extra_scratch = [0] * self.ranks

    @property
    def where(self) -> str:
        words = ("gpu", "threadblock", "op", "inner op")
        return ", ".join(f"{word} {i}" for word, i in zip(words, self.at, strict=False))

    def fail(self, what: str) -> NoReturn:
        raise ValueError(f"{self.where}: {what}" if self.where else what)

    # What the plan is about.

    def _parts(self) -> int:
        """Into how many slots a chunk is cut so that each threadblock of a group has whole ones."""
        parts = 1
        for gpu in self.plan.gpus:
            for block in gpu.threadblocks:
                for op in block.ops:
                    for inner in (op, *op.ops):
                        if inner.tbg_info is not None:
                            parts = lcm(parts, inner.tbg_info.tbg_size)
                            if parts > _MOST_PARTS:
                                self.fail(
                                    f"the fields tbg_size cut a chunk into {parts} or more parts, "
                                    f"allowed are {_MOST_PARTS}"
                                )
        return parts

    def _check_sizes(self, file_bytes: int) -> None:
        total = 0
        for rank, gpu in enumerate(self.plan.gpus):
            if gpu.id != rank:
                self.fail(f"gpu {rank}: the field id is {gpu.id}, expected is {rank}")
            total += gpu.input_chunks + gpu.output_chunks + gpu.scratch_chunks
            for t, block in enumerate(gpu.threadblocks):
                if block.id != t:
                    self.fail(
                        f"gpu {rank}, threadblock {t}: the field id is {block.id}, expected is {t}"
                    )
                ops = sum(1 + len(op.ops) for op in block.ops)
                if ops > MOST_OPS:
                    self.fail(
                        f"gpu {rank}, threadblock {t}: {ops} operations, "
                        f"the executor takes at most {MOST_OPS}"
                    )
        if total * self.parts > 16 * file_bytes:
            self.fail(f"the gpus have {total} chunks, far more than the operations can fill")
        if not self.ranks:
            self.fail("the field gpus has no entries")

    def _collective(self) -> Collective:
        plan, n = self.plan, self.ranks
        kind = _KINDS.get(plan.collective)
        if kind is None:
            self.fail(
                f'the field collective is "{plan.collective[:40]}", allowed are {", ".join(_KINDS)}'
            )
        if kind == "all_to_all" and plan.inplace:
            self.fail("the field inplace is true, which a program cannot say of an alltoall")
        gathers, scatters = kind == "all_gather", kind == "reduce_scatter"
        chunks = max(
            max(g.input_chunks * (n if gathers else 1), g.output_chunks * (n if scatters else 1))
            for g in plan.gpus
        )
        if chunks < 1 or (kind != "all_reduce" and chunks % n):
            self.fail(f"the gpus have {chunks} chunks, {plan.collective} needs a multiple of {n}")
        wanted = (chunks // n if gathers else chunks, chunks // n if scatters else chunks)
        for rank, gpu in enumerate(plan.gpus):
            for field, found, want in (
                ("input_chunks", gpu.input_chunks, wanted[0]),
                ("output_chunks", gpu.output_chunks, wanted[1]),
            ):
                if found not in (0, want):
                    self.fail(f"gpu {rank}: the field {field} is {found}, allowed are 0 and {want}")
        self.piece = chunks // n * self.parts  # of one rank
        total = (
            chunks * self.parts
        )  # of an all-reduce, pieces beyond have no bytes: nobody wants them
        return collectives.named(kind, n, total, chunks=-(-total // n))

    # What the operations name.

    def _local(self, rank: int, piece: Piece, field: str) -> _Place:
        if piece.type is None:
            self.fail(f'the {field} has no field "type"')
        return rank, _BUFFERS[piece.type], piece.index * self.parts

    def _remote(self, piece: Piece, op: Op, field: str) -> _Place:
        if piece.buffer_id is None:
            self.fail(f'the {field} has no field "buffer_id"')
        known = self.remote[op.channel_type] if op.channel_type in ("memory", "port") else None
        if known is None:
            self.fail(f"the field channel_type is {op.channel_type}, allowed are memory and port")
        if piece.buffer_id >= len(known):
            self.fail(f"the field buffer_id is {piece.buffer_id}, the threadblock has {len(known)}")
        peer, buffer = known[piece.buffer_id]
        return peer, buffer, piece.index * self.parts

    def _channel(self, op: Op, i: int) -> tuple[str, int, int]:
        """Kind, number within the GPU, and peer of an operation's i-th channel."""
        kind = op.channel_type
        if kind not in ("memory", "port"):
            self.fail(f"the field channel_type is {kind}, allowed are memory and port")
        if i >= len(op.channel_ids):
            self.fail(
                f"the field channel_ids has {len(op.channel_ids)} entries, needed are {i + 1}"
            )
        known = self.channels[kind]
        if op.channel_ids[i] >= len(known):
            self.fail(
                f"the field channel_ids has {op.channel_ids[i]}, the threadblock has {len(known)}"
            )
        number = known[op.channel_ids[i]]
        return kind, number, self.peers[kind][number]

    def _switch(self, piece: Piece) -> tuple[Sequence[int], int, int]:
        """Ranks, buffer and slot behind a switch channel."""
        number = piece.switch_channel_id
        if number is None:
            self.fail('the buffer has no field "switch_channel_id"')
        known = self.channels["switch"]
        if number >= len(known):
            self.fail(f"the field switch_channel_id is {number}, the threadblock has {len(known)}")
        ranks, buffer = self.groups[known[number]]
        return ranks, buffer, piece.index * self.parts

    def _share(self, op: Op, piece: Piece) -> tuple[int, int]:
        """First slot and number of slots, within a piece, that this threadblock works on."""
        slots = piece.size * self.parts
        if op.tbg_info is None:
            return 0, slots
        part, parts = op.tbg_info.tb_id, op.tbg_info.tbg_size
        if part >= parts:
            self.fail(f"the field tb_id is {part}, tbg_size is {parts}")
        return part * slots // parts, slots // parts

    # Steps.

    def add(
        self,
        op: str,
        src: tuple[int, int] = _NONE,
        dst: tuple[int, int] = _NONE,
        count: int = 0,
        peer: int = -1,
        thread: int | None = None,
    ) -> int:
        at = self.thread if thread is None else thread
        self.rows.extend((at, _OP[op], *src, *dst, count, peer))
        self.steps += 1
        return self.steps - 1

    def copy(self, src: _Place, dst: _Place, count: int) -> int:
        """From anywhere to anywhere, as long as this rank has one of the two."""
        if src[0] == self.rank:
            if dst[0] == self.rank:
                return self.add("copy", src[1:], dst[1:], count)
            return self.add("put", src[1:], dst[1:], count, dst[0])
        return self.add("get", src[1:], dst[1:], count, src[0])

    def reduce(self, sources: list[_Place], dst: _Place, count: int) -> int:
        """The sum of the sources, of which the first is this rank's, into a slot of this rank."""
        same = [s for s in sources if self._memory(s) == self._memory(dst)]
        base = same[0] if same else sources[0]
        last = -1
        if not same:
            last = self.copy(base, dst, count)
        rest = list(sources)
        rest.remove(base)
        for src in rest:
            if src[0] == self.rank:
                last = self.add("reduce", src[1:], dst[1:], count)
            else:
                last = self.add("get_reduce", src[1:], dst[1:], count, src[0])
        return last

    def _memory(self, place: _Place) -> _Place:
        """One name for each slot: in place, some have two."""
        rank, buffer, slot = place
        if not self.plan.inplace or buffer == _BUFFERS["s"]:
            return place
        kind = self.goal.kind
        if kind == "all_gather" and buffer == _BUFFERS["i"]:
            slot += rank * self.piece
        if kind == "reduce_scatter" and buffer == _BUFFERS["o"]:
            slot += rank * self.piece
        return rank, 0, slot

    def packet(self, step: int, place: _Place, count: int) -> None:
        """A step wrote packets; if to a peer, they arrive there in the order of this thread."""
        rank = place[0]
        if rank != self.rank:
            key = self.thread, rank
            if key not in self.arrivals:
                self.arrivals[key] = self._new_thread(rank)
            signal = self.add("signal", peer=rank)
            step = self.add("wait", peer=self.rank, thread=self.arrivals[key])
            self.came.extend((step, signal))
        for i in range(count):
            self.packets.setdefault((*place[:2], place[2] + i), step)

    def awaits_packets(self, place: _Place, count: int) -> None:
        self.packet_reads.append((self.add("nop"), place, count, self.where))

    def _new_thread(self, rank: int) -> int:
        self.thread_rank.append(rank)
        return len(self.thread_rank) - 1

    def program(self) -> Program:
        for rank, gpu in enumerate(self.plan.gpus):
            self.rank = rank
            self._enter_gpu(gpu)
            for t, block in enumerate(gpu.threadblocks):
                self.at = rank, t
                self.thread = self._new_thread(rank)
                self._enter_block(block)
                for o, op in enumerate(block.ops):
                    self.at = rank, t, o
                    self._op(op)
                    for i, inner in enumerate(op.ops):
                        self.at = rank, t, o, i
                        if inner.name == "pipeline":
                            self.fail("a pipeline within a pipeline")
                        self._op(inner)
        self.at = ()
        self._pair_channels()
        self._pair_semaphores()
        self._join_barriers()
        self._join_packets()
        return self._columns()

    def _enter_gpu(self, gpu: Gpu) -> None:
        self.at = (self.rank,)
        self.peers: dict[str, list[int]] = {"memory": [], "port": []}
        self.groups: list[tuple[Sequence[int], int]] = []
        for channel in gpu.channels:
            if channel.channel_type == "switch":
                buffer = channel.buffer_type or channel.buff
                if buffer is None:
                    self.fail('a switch channel has no field "buffer_type"')
                for group in channel.rank_groups:
                    self._check_ranks("ranks", group.ranks, own=True)
                    self.groups.append((group.ranks, _BUFFERS[buffer]))
            else:
                self._check_ranks("connected_to", channel.connected_to, own=False)
                self.peers[channel.channel_type] += channel.connected_to
        self._check_ranks("rank", [buffer.rank for buffer in gpu.remote_buffers], own=False)

    def _check_ranks(self, field: str, ranks: Sequence[int], *, own: bool) -> None:
        for peer in ranks:
            if peer >= self.ranks or (peer == self.rank and not own):
                self.fail(f"the field {field} has {peer}, it must be another of {self.ranks} gpus")
        if own and (self.rank not in ranks or len(set(ranks)) != len(ranks)):
            self.fail(f"the field {field} must have gpu {self.rank} and each gpu once")

    def _enter_block(self, block: Threadblock) -> None:
        gpu = self.plan.gpus[self.rank]
        self.channels: dict[str, list[int]] = {"memory": [], "port": [], "switch": []}
        there = {"switch": len(self.groups), **{k: len(v) for k, v in self.peers.items()}}
        for channel in block.channels:
            kind = channel.channel_type
            for number in channel.channel_ids:
                if number >= there[kind]:
                    self.fail(
                        f"the field channel_ids has {number}, the gpu has {there[kind]} {kind}"
                    )
            self.channels[kind] += channel.channel_ids
        self.remote: dict[str, list[tuple[int, int]]] = {"memory": [], "port": []}
        for refs in block.remote_buffer_refs:
            for number in refs.remote_buffer_ids:
                if number >= len(gpu.remote_buffers):
                    self.fail(
                        f"the field remote_buffer_ids has {number}, "
                        f"the gpu has {len(gpu.remote_buffers)}"
                    )
                buffer = gpu.remote_buffers[number]
                if refs.access_channel_type not in buffer.access_channel_types:
                    self.fail(
                        f"remote buffer {number} is used by {refs.access_channel_type} channels, "
                        f"its access_channel_types are {', '.join(buffer.access_channel_types)}"
                    )
                self.remote[refs.access_channel_type].append((buffer.rank, _BUFFERS[buffer.type]))
        sizes = [(word, len(ids)) for word, ids in self.channels.items()]
        for word, size in sizes + [(word, len(ids)) for word, ids in self.remote.items()]:
            if size > MOST_CHANNELS:
                self.fail(
                    f"{size} {word} channels or remote buffers, "
                    f"the executor takes at most {MOST_CHANNELS}"
                )

    # One operation.

    def _op(self, op: Op) -> None:
        name = op.name
        if name == "nop":
            return
        if name not in _NAMES:
            self.fail(f'the field name is "{name[:40]}", allowed are {", ".join(sorted(_NAMES))}')
        if len(op.channel_ids) > MOST_CHANNELS_PER_OP:
            self.fail(
                f"the field channel_ids has {len(op.channel_ids)} entries, "
                f"the executor takes at most {MOST_CHANNELS_PER_OP}"
            )
        if name in _ORDERS:
            self._order(op)
        elif name in _PUTS or name in ("get", "copy", "cpkt", "upkt", "ppkt"):
            self._move(op)
        elif name in _REDUCES or name in _PACKET_REDUCES:
            self._reduce(op)
        elif name == "rppkt":
            self._pass_on(op)
        elif name in ("glres", "gstore", "gstorepkt"):
            self._through_switch(op)
        elif name in ("sem_acquire", "sem_release"):
            self._semaphore(op)
        elif name == "barrier":
            self._barrier(op)
        elif name == "pipeline":
            self._check_pipeline(op)

    def _order(self, op: Op) -> None:
        signals = op.name.endswith("signal")
        for i in range(len(op.channel_ids)):
            kind, number, peer = self._channel(op, i)
            step = self.add("signal" if signals else "wait", peer=peer)
            (self.signals if signals else self.waits)[self.rank, kind, number].append(step)

    def _pairs(self, op: Op) -> list[tuple[Piece, Piece]]:
        if len(op.src_buff) != len(op.dst_buff) or not op.src_buff:
            self.fail(
                f"the fields src_buff and dst_buff have {len(op.src_buff)} and {len(op.dst_buff)} "
                "entries, they need equally many"
            )
        for src, dst in zip(op.src_buff, op.dst_buff, strict=True):
            if src.size != dst.size:
                self.fail(f"the field size is {src.size} in src_buff and {dst.size} in dst_buff")
        return list(zip(op.src_buff, op.dst_buff, strict=True))

    def _move(self, op: Op) -> None:
        name = op.name
        for i, (src_piece, dst_piece) in enumerate(self._pairs(op)):
            first, count = self._share(op, src_piece)
            if name == "get":
                src = self._remote(src_piece, op, "src_buff")
            else:
                src = self._local(self.rank, src_piece, "src_buff")
            if name in _PUTS or name == "ppkt":
                dst = self._remote(dst_piece, op, "dst_buff")
            else:
                dst = self._local(self.rank, dst_piece, "dst_buff")
            src, dst = _moved(src, first), _moved(dst, first)
            if name == "upkt":
                self.awaits_packets(src, count)
            step = self.copy(src, dst, count)
            if name in ("ppkt", "cpkt"):
                self.packet(step, dst, count)
            if name in ("pws", "pwsf"):
                kind, number, peer = self._channel(op, i)
                self.signals[self.rank, kind, number].append(self.add("signal", peer=peer))

    def _reduce(self, op: Op) -> None:
        name = op.name
        packets = name in _PACKET_REDUCES
        locals_ = _PACKET_REDUCES.get(name, 1)
        if len(op.src_buff) < 2 or len(op.dst_buff) < locals_:
            self.fail(
                f"the fields src_buff and dst_buff have {len(op.src_buff)} and {len(op.dst_buff)} "
                f"entries, needed are 2 and {locals_}"
            )
        if len({piece.size for piece in (*op.src_buff, *op.dst_buff)}) != 1:
            self.fail("the field size differs between the buffers of a reduction")
        first, count = self._share(op, op.src_buff[0])
        sources = [self._local(self.rank, op.src_buff[0], "src_buff")]
        for piece in op.src_buff[1:]:
            if name in ("rre", "rres"):
                sources.append(self._remote(piece, op, "src_buff"))
            else:
                sources.append(self._local(self.rank, piece, "src_buff"))
        sources = [_moved(place, first) for place in sources]
        if packets:
            for place in sources[1:]:
                self.awaits_packets(place, count)
        dst = _moved(self._local(self.rank, op.dst_buff[0], "dst_buff"), first)
        self.reduce(sources, dst, count)
        if locals_ == 2:
            also = _moved(self._local(self.rank, op.dst_buff[1], "dst_buff"), first)
            self.packet(self.copy(dst, also, count), also, count)
        for piece in op.dst_buff[locals_:]:
            there = _moved(self._remote(piece, op, "dst_buff"), first)
            step = self.copy(dst, there, count)
            if packets:
                self.packet(step, there, count)

    def _pass_on(self, op: Op) -> None:
        if len(op.src_buff) != 1:
            self.fail(f"the field src_buff has {len(op.src_buff)} entries, needed is 1")
        first, count = self._share(op, op.src_buff[0])
        src = _moved(self._local(self.rank, op.src_buff[0], "src_buff"), first)
        self.awaits_packets(src, count)
        for piece in op.dst_buff:
            if piece.size != op.src_buff[0].size:
                self.fail(
                    f"the field size is {op.src_buff[0].size} in src_buff, {piece.size} in dst_buff"
                )
            dst = _moved(self._remote(piece, op, "dst_buff"), first)
            self.packet(self.copy(src, dst, count), dst, count)

    def _through_switch(self, op: Op) -> None:
        ((src_piece, dst_piece),) = self._pairs(op)[:1]
        first, count = self._share(op, src_piece)
        if op.name == "glres":
            ranks, buffer, slot = self._switch(src_piece)
            # The switch sums on its way: here in scratch slots of its own.
            src = (self.rank, 2, self._scratch(self.rank) + self.extra_scratch[self.rank])
            self.extra_scratch[self.rank] += count
            self.copy((self.rank, buffer, slot + first), src, count)
            for rank in ranks:
                if rank != self.rank:
                    self.add("get_reduce", (buffer, slot + first), src[1:], count, rank)
        else:
            src = _moved(self._local(self.rank, src_piece, "src_buff"), first)
        packets = op.name == "gstorepkt"
        if packets:
            self.awaits_packets(src, count)
        ranks, buffer, slot = self._switch(dst_piece)
        for rank in ranks:
            dst = (rank, buffer, slot + first)
            if self._memory(dst) != self._memory(src):
                step = self.copy(src, dst, count)
                if packets:
                    self.packet(step, dst, count)

    def _scratch(self, rank: int) -> int:
        return self.plan.gpus[rank].scratch_chunks * self.parts

    def _semaphore(self, op: Op) -> None:
        there = len(self.plan.gpus[self.rank].semaphores)
        if len(op.semaphore_ids) > MOST_SEMAPHORES_PER_OP:
            self.fail(
                f"the field semaphore_ids has {len(op.semaphore_ids)} entries, "
                f"the executor takes at most {MOST_SEMAPHORES_PER_OP}"
            )
        known = self.acquires if op.name == "sem_acquire" else self.releases
        for number in op.semaphore_ids:
            if number >= there:
                self.fail(f"the field semaphore_ids has {number}, the gpu has {there} semaphores")
            known[self.rank, number].setdefault(self.thread, []).append(self.add("nop"))

    def _barrier(self, op: Op) -> None:
        if op.barrier_id is None or op.num_threadblocks is None:
            self.fail("a barrier needs the fields barrier_id and num_threadblocks")
        comings = self.barriers.setdefault((self.rank, op.barrier_id), {})
        self.add("nop")  # arrives
        leaves = self.add("nop")
        comings.setdefault(self.thread, []).append((leaves, op.num_threadblocks, self.where))

    def _check_pipeline(self, op: Op) -> None:
        if op.iter_context is None:
            self.fail('the pipeline has no field "iter_context"')
        for inner in op.ops:
            for piece in (*inner.src_buff, *inner.dst_buff):
                if piece.size != op.iter_context.num_chunks:
                    self.fail(
                        f"an operation of the pipeline has size {piece.size}, "
                        f"its num_chunks is {op.iter_context.num_chunks}"
                    )

    # What orders them.

    def _pair_channels(self) -> None:
        """The k-th channel of a kind to a peer is the peer's k-th back; so are signals and waits."""
        ends: dict[tuple[str, int, int], list[tuple[int, str, int]]] = defaultdict(list)
        for rank, gpu in enumerate(self.plan.gpus):
            seen = {"memory": 0, "port": 0}
            for channel in gpu.channels:
                word = channel.channel_type
                for peer in channel.connected_to if word != "switch" else ():
                    ends[word, rank, peer].append((rank, word, seen[word]))
                    seen[word] += 1
        for (kind, rank, peer), channels in ends.items():
            for here, there in zip(channels, ends.get((kind, peer, rank), ()), strict=False):
                for wait, signal in zip(
                    self.waits.get(here, ()), self.signals.get(there, ()), strict=False
                ):
                    self.came.extend((wait, signal))

    def _pair_semaphores(self) -> None:
        """Whoever has acquired a semaphore j times knows of as many releases, less its first value.

        Which thread released is known as far as the others cannot have done it alone.
        """
        for (rank, number), acquirers in self.acquires.items():
            start = self.plan.gpus[rank].semaphores[number].init_value
            released = self.releases.get((rank, number), {})
            total = sum(map(len, released.values()))
            wanted = sum(map(len, acquirers.values()))
            if wanted - start > total:
                self.fail(
                    f"gpu {rank}: semaphore {number} is acquired {wanted} times, but starts at {start} "
                    f"and is released {total} times"
                )
            for acquires in acquirers.values():
                for j, step in enumerate(acquires, 1):
                    for steps in released.values():
                        sure = j - start - (total - len(steps))
                        if sure > 0:
                            self.deps.extend((step, steps[sure - 1]))

    def _join_barriers(self) -> None:
        for (rank, number), comings in self.barriers.items():
            for rounds in range(max(map(len, comings.values()))):
                present = [steps[rounds] for steps in comings.values() if len(steps) > rounds]
                for leaves, expected, where in present:
                    if expected != len(present):
                        raise ValueError(
                            f"{where}: the field num_threadblocks is {expected}, "
                            f"but {len(present)} threadblocks come to barrier {number} of gpu {rank}"
                        )
                    for other, _, _ in present:
                        if other != leaves:
                            self.deps.extend((leaves, other - 1))

    def _join_packets(self) -> None:
        for step, place, count, where in self.packet_reads:
            for i in range(count):
                slot = (*place[:2], place[2] + i)
                if slot not in self.packets:
                    raise ValueError(f"{where}: reads packets that nobody writes")
                if self.packets[slot] != step:
                    self.deps.extend((step, self.packets[slot]))

    def _columns(self) -> Program:
        rows = np.frombuffer(self.rows, np.int32).reshape(-1, 8)
        ranks = np.frombuffer(self.thread_rank, np.int32)
        order = np.argsort(
            ranks, kind="stable"
        )  # threads for packets come after their rank's others
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        thread = place[rows[:, 0]]
        steps = np.argsort(thread, kind="stable")
        new = np.empty(len(steps), np.int32)
        new[steps] = np.arange(len(steps), dtype=np.int32)
        begin = np.zeros(len(ranks) + 1, np.int64)
        np.cumsum(np.bincount(thread, minlength=len(ranks)), out=begin[1:])
        comes_from = np.full(len(steps), -1, np.int32)
        came = new[np.frombuffer(self.came, np.int32)].reshape(-1, 2)
        comes_from[came[:, 0]] = came[:, 1]
        deps = np.unique(new[np.frombuffer(self.deps, np.int32)].reshape(-1, 2), axis=0)
        dep_begin = np.zeros(len(steps) + 1, np.int64)
        np.cumsum(np.bincount(deps[:, 0], minlength=len(steps)), out=dep_begin[1:])
        op, src_buffer, src_slot, dst_buffer, dst_slot, count, peer = rows[steps, 1:].T
        plan = self.plan
        scratch = [self._scratch(r) + self.extra_scratch[r] for r in range(self.ranks)]
        none = np.full(len(ranks), -1, np.int32)
        return Program(
            collective=self.goal,
            in_place=plan.inplace,
            scratch_slots=np.array(scratch, np.int32),
            thread_rank=np.ascontiguousarray(ranks[order]),
            thread_channel=np.zeros(len(ranks), np.int32),
            thread_send_peer=none,
            thread_recv_peer=none,
            thread_begin=begin,
            op=op.astype(np.uint8),
            src_buffer=src_buffer.astype(np.uint8),
            src_slot=src_slot.copy(),
            dst_buffer=dst_buffer.astype(np.uint8),
            dst_slot=dst_slot.copy(),
            count=count.copy(),
            peer=peer.copy(),
            comes_from=comes_from,
            dep_begin=dep_begin,
            dep=deps[:, 1].copy(),
            provenance=json.dumps(
                {
                    "format": "mscclpp",
                    "name": plan.name,
                    "protocol": plan.protocol,
                    "min_bytes": plan.min_message_size,
                    "max_bytes": plan.max_message_size,
                    "threads_per_block": plan.num_threads_per_block,
                }
            ),
        )


def _moved(place: _Place, slots: int) -> _Place:
    return place[0], place[1], place[2] + slots
