"""Writing execution plans: programs as puts, signals and waits, within the executor's limits."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos import units
from tacos._core import Schedule
from tacos._support.files import Location, replacing
from tacos.collective import kind_of
from tacos.errors import LimitError
from tacos.formats.mscclpp.blocks import Block, Needs, divide, group_threads
from tacos.formats.mscclpp.execution_plan import (
    ALIGNMENT,
    COLLECTIVES,
    LARGEST_SIZE,
    MOST_SEMAPHORES_PER_OP,
    obstacle,
)
from tacos.formats.mscclpp.messages import RECEIVES, SENDS, landings, order_of
from tacos.formats.mscclpp.ops import NOP, Ops, Place, away, local, orders
from tacos.program import STEP_OPS, Program, lower

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tacos.units import Quantity

__all__ = ["write"]

_LETTERS = "ios"
_LINES = ",\n  "
_OFFSETS = 2**32  # the executor counts bytes of a buffer in 32 bits


def write(
    obj: Program | Schedule,
    path: Location,
    *,
    channel: str = "memory",
    box: int | None = None,
    in_place: bool | None = None,
    threadblocks: int = 108,
    threads_per_block: int | None = None,
    pipeline: Quantity | None = None,
    min_bytes: Quantity | None = None,
    max_bytes: Quantity | None = None,
    name: str | None = None,
) -> None:
    """Write an algorithm for MSCCL++'s executor, atomically.

    Every message becomes a put and a signal, and a wait at the receiver. It lands in the receiver's destination, or in
    scratch memory if the receiver may still be using that. Before the first put over a channel the receiver signals that
    it has started. Each connection has a threadblock for each direction, ordered by
    semaphores; threads that depend on each other share one where there would be too many.

    Args:
        obj: An all-reduce, all-gather, reduce-scatter or all-to-all of all NPUs.
        path: The file.
        channel: ``"memory"`` (default; peers write each other's memory) or ``"port"`` (a proxy or NIC
            moves the data).
        box: Number of GPUs of a box; channels between boxes are port channels.
        in_place: How to lower a schedule; by default out of place.
        threadblocks: Largest number of threadblocks of a GPU; all run at once, so it is the number of multiprocessors.
        threads_per_block: Number of threads of a threadblock, 1024 by default.
        pipeline: Move chunks in pieces of this many bytes, a multiple of 16, so that dependent steps start with a
            chunk's first piece; by default chunks move as a whole.
        min_bytes: The smallest message to use the plan for; by default any.
        max_bytes: The largest message; by default as large as the executor's 32-bit offsets allow.
        name: The plan's name; by default that of the file a program was read from, or the collective.

    Raises:
        LimitError: The plan would exceed a limit of the executor; the message names it.
        ValueError: An option is wrong.

    >>> import tempfile, tacos
    >>> from pathlib import Path
    >>> topo = tacos.topology.ring(2)
    >>> coll = tacos.collective.all_gather(topo, "2MB", chunks=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(tacos.synthesize(topo, coll), f"{folder}/ag.json", name="two")
    ...     plan = json.loads(Path(folder, "ag.json").read_text())
    >>> [op["name"] for op in plan["gpus"][0]["threadblocks"][2]["ops"]]
    ['rlxwait', 'nop', 'put', 'nop', 'signal']
    """
    program = _lowered(obj, in_place)
    if channel not in ("memory", "port"):
        raise ValueError(f'channel must be memory or port; got "{channel}"')
    for option, value in (
        ("box", box),
        ("threadblocks", threadblocks),
        ("threads_per_block", threads_per_block),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{option} must be a positive number; got {value}")
    if box is not None and program.ranks % box:
        raise ValueError(f"box must divide the {program.ranks} GPUs; got {box}")
    unit = None if pipeline is None else units.size_bytes(pipeline)
    if unit is not None and (unit < ALIGNMENT or unit % ALIGNMENT or unit >= 2**31):
        raise ValueError(f"pipeline is {unit} B; it must be a multiple of 16 below 2^31")
    writer = _Writer(program, channel, box, threadblocks, unit)
    head = _head(program, writer.scratch, threads_per_block, min_bytes, max_bytes, name)
    with replacing(path) as out:
        out.write(f'{json.dumps(head)[:-1]}, "gpus": [\n'.encode())
        for rank in range(program.ranks):
            out.write((writer.gpu(rank) + (",\n" if rank + 1 < program.ranks else "\n")).encode())
        out.write(b"]}\n")


def _lowered(obj: Program | Schedule, in_place: bool | None) -> Program:
    program = lower(obj, in_place=bool(in_place)) if isinstance(obj, Schedule) else obj
    if in_place is not None and in_place != program.in_place:
        raise ValueError(
            f"in_place is {in_place}, but the program was made with {program.in_place}"
        )
    if why := obstacle(program.collective):
        raise ValueError(why)
    if kind_of(program.collective.parts[0]).per_pair and program.in_place:
        raise ValueError("a plan cannot express an all_to_all in place")
    return program


def _head(
    program: Program,
    scratch: Iterable[int],
    threads: int | None,
    min_bytes: Quantity | None,
    max_bytes: Quantity | None,
    name: str | None,
) -> dict[str, Any]:
    kind = program.collective.parts[0].kind
    slots = max(len(program.input_chunks(0)), len(program.output_chunks(0)))
    reach = (_OFFSETS - 1) // max(slots, *scratch) // ALIGNMENT * ALIGNMENT * slots
    least, most = program.min_bytes, program.max_bytes
    if min_bytes is not None:
        least = 0 if min_bytes in (0, "0") else units.size_bytes(min_bytes, what="min_bytes")
    most = (
        most or LARGEST_SIZE if max_bytes is None else units.size_bytes(max_bytes, what="max_bytes")
    )
    if least > most:
        raise ValueError(f"min_bytes is {least}; it must be below max_bytes, which is {most}")
    return {
        "name": name or program.name or f"tacos {COLLECTIVES[kind]}",
        "collective": COLLECTIVES[kind],
        "protocol": "Simple",
        "inplace": program.in_place,
        "reuse_resources": False,
        "num_threads_per_block": threads or program.threads_per_block or 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT,
        "min_message_size": least,
        "max_message_size": min(most, reach),
    }


class _Writer:
    """A program with its channels, buffers, threadblocks and semaphores."""

    def __init__(
        self, program: Program, channel: str, box: int | None, threadblocks: int, unit: int | None
    ) -> None:
        self.program, self.unit = program, unit
        self.order = order = order_of(program)
        buffer, slot, scratch = landings(program, order)
        self.scratch: list[int] = scratch.tolist()
        self.op: list[int] = program.op.tolist()
        self.name = [STEP_OPS[op] for op in self.op]
        self.count: list[int] = program.count.tolist()
        self.src = list(zip(program.src_buffer.tolist(), program.src_slot.tolist(), strict=True))
        self.dst = list(zip(program.dst_buffer.tolist(), program.dst_slot.tolist(), strict=True))
        self.landing = list(zip(buffer.tolist(), slot.tolist(), strict=True))
        self.rank: list[int] = order.rank.tolist()
        self.receiver: list[int] = order.receiver.tolist()
        self.moves = ((program.src_slot >= 0) | (program.dst_slot >= 0)).tolist()
        self.receives: list[bool] = RECEIVES[program.op].tolist()
        self.sends: list[bool] = SENDS[program.op].tolist()
        self._connect(channel, box)
        self._name_buffers(channel, box)
        straight = (buffer == program.dst_buffer) & (slot == program.dst_slot)
        self.blocks = self._divided(straight, threadblocks)
        self._place_semaphores()
        self.chunks = self._chunks_per_step() if unit is not None else 0

    def _divided(self, straight: NDArray[np.bool_], most: int) -> list[list[Block]]:
        """Return the threadblocks of each rank: one per thread, merged where they would be too many.

        A threadblock that waits for a message sends nothing in the meantime. So threads that only receive are kept separate
        from those that send, if there are enough threadblocks.
        """
        program, order = self.program, self.order

        def blocks(group: NDArray[np.int64], most: int) -> list[list[Block]]:
            across = group[order.thread[program.dep]] != group[order.thread[order.waiter]]
            costs = self._costs(
                straight,
                np.bincount(order.waiter[across], minlength=program.steps),
                np.bincount(program.dep[across], minlength=program.steps),
            )
            return divide(program, order, group, costs, *self._uses(), most)

        try:
            apart = blocks(np.arange(program.threads), program.steps + 1)
        except LimitError:  # a step waits for too many others
            pass
        else:
            if all(len(of_rank) <= most for of_rank in apart):
                return apart
        return blocks(group_threads(program, order), most)

    def _chunks_per_step(self) -> int:
        """Return the chunks per step; a pipeline cuts all ordered steps alike, so it must be the same for all."""
        counts = {
            self.count[step]
            for rank, blocks in enumerate(self.blocks)
            for number, block in enumerate(blocks)
            if self._is_ordered(rank, number)
            for step in block.steps
            if self.moves[step]
        }
        if len(counts) > 1:
            raise ValueError(
                f"pipeline is {self.unit} B, but steps move {min(counts)} to {max(counts)} chunks at once"
            )
        return max(counts, default=1)

    def _is_ordered(self, rank: int, number: int) -> bool:
        block = self.blocks[rank][number]
        return (
            any(block.channels.values())
            or (rank, number) in self.hands_on
            or (rank, number + 1) in self.hands_on
            or any(step in self.acquires or step in self.releases for step in block.steps)
        )

    # Channels and buffers.

    def _kind(self, channel: str, box: int | None, a: int, b: int) -> str:
        return "port" if box is not None and a // box != b // box else channel

    def _connect(self, channel: str, box: int | None) -> None:
        """Add a channel for each pair of threads that communicate; its two ends have the same position in both lists."""
        thread = self.order.thread.tolist()
        self.peers: list[dict[str, list[int]]] = [
            {"memory": [], "port": []} for _ in range(self.program.ranks)
        ]
        self.kind: list[str] = [channel] * len(self.op)  # of a step's messages
        self.out_channel, self.in_channel = [-1] * len(self.op), [-1] * len(self.op)
        # Whether a step uses a channel for messages, which needs a handshake.
        self.shakes = [False] * len(self.op)
        known: dict[tuple[int, int], tuple[str, int, int]] = {}
        last: dict[tuple[int, int], int] = {}
        for step, receiver in enumerate(self.receiver):
            if receiver < 0:
                continue
            key = thread[step], thread[receiver]
            a, b = self.rank[step], self.rank[receiver]
            if key not in known:
                kind = self._kind(channel, box, a, b)
                known[key] = kind, len(self.peers[a][kind]), len(self.peers[b][kind])
                self.peers[a][kind].append(b)
                self.peers[b][kind].append(a)
            if last.get(key, -1) > receiver:
                where = self.program.describe(step)
                raise ValueError(f"{where} is received before an earlier message of its thread")
            last[key] = receiver
            kind, self.out_channel[step], self.in_channel[receiver] = known[key]
            self.kind[step] = kind
            if self.name[step] != "signal":
                self.shakes[step] = self.shakes[receiver] = True
        self.in_kind = [
            self.kind[came] if came >= 0 else channel for came in self.program.comes_from.tolist()
        ]

    def _name_buffers(self, channel: str, box: int | None) -> None:
        """Find the peers' buffers that each rank uses, and the one that each step uses."""
        self.remote: list[dict[tuple[int, int, str], int]] = [{} for _ in range(self.program.ranks)]
        self.buffer = [-1] * len(self.op)
        peers = self.program.peer.tolist()
        for step, op in enumerate(self.op):
            rank = self.rank[step]
            if SENDS[op]:
                receiver = self.receiver[step]
                key = self.rank[receiver], self.landing[receiver][0], self.kind[step]
            elif self.name[step] in ("put", "get", "get_reduce"):
                peer = peers[step]
                kind = self.kind[step] = self._kind(channel, box, rank, peer)
                if kind == "port":
                    where = self.program.describe(step)
                    raise ValueError(
                        f"{where} is a {self.name[step]}: such steps need memory channels"
                    )
                key = peer, (self.dst if self.name[step] == "put" else self.src)[step][0], kind
            else:
                continue
            self.buffer[step] = self.remote[rank].setdefault(key, len(self.remote[rank]))

    def _uses(self) -> tuple[list[int], list[Needs]]:
        """Return the channels and buffers that steps need, and which of them each step uses."""
        known: dict[tuple[Any, ...], int] = {}
        rows = zip(
            self.in_kind, self.in_channel, self.kind, self.out_channel, self.buffer, strict=True
        )
        uses = [known.setdefault(row, len(known)) for row in rows]
        needs: list[Needs] = []
        for in_kind, arrives, kind, leaves, buffer in known:
            some = ((in_kind, arrives, -1),) if arrives >= 0 else ()
            needs.append((*some, (kind, leaves, buffer)) if leaves >= 0 or buffer >= 0 else some)
        return uses, needs

    def _costs(
        self, straight: NDArray[np.bool_], waits: NDArray[np.int64], wakes: NDArray[np.int64]
    ) -> list[int]:
        """Return the largest number of operations that each step becomes; data, signals and releases may need a nop each."""
        op = self.program.op
        receives, sends = RECEIVES[op], SENDS[op]
        idle = np.isin(op, [STEP_OPS.index("nop"), STEP_OPS.index("wait")])
        cost = np.where(
            receives, np.where(straight, 1, 3), np.where(sends, 0, np.where(idle, 1, 2))
        )
        cost += 4 * sends - (-waits // MOST_SEMAPHORES_PER_OP)
        cost += np.where(wakes > 0, 1 - (-wakes // MOST_SEMAPHORES_PER_OP), 0)
        found: list[int] = cost.tolist()
        return found

    # Semaphores.

    def _place_semaphores(self) -> None:
        """Add a semaphore for each pair of threadblocks of which one waits for the other or continues it."""
        steps = len(self.op)
        block, place = [-1] * steps, [-1] * steps
        for blocks in self.blocks:
            for number, found in enumerate(blocks):
                for i, step in enumerate(found.steps):
                    block[step], place[step] = number, i
        self.semaphores = [0] * self.program.ranks
        self.acquires: dict[int, list[int]] = defaultdict(list)
        self.releases: dict[int, list[int]] = defaultdict(list)
        self.hands_on: dict[tuple[int, int], int] = {}
        for rank, blocks in enumerate(self.blocks):
            for number, found in enumerate(blocks):
                if found.follows is not None:
                    self.hands_on[rank, number] = self.semaphores[rank]
                    self.semaphores[rank] += 1
        start: dict[tuple[int, int], int] = {}  # the first of the blocks that continue each other
        for rank, blocks in enumerate(self.blocks):
            for number, found in enumerate(blocks):
                first = number if found.follows is None else start[rank, found.follows]
                start[rank, number] = first
        known: dict[tuple[int, int, int], tuple[int, int]] = {}
        for after, before in self._across(block, place, start):
            rank = self.rank[after]
            key = rank, block[before], block[after]
            semaphore, done = known.get(key, (-1, -1))
            if semaphore < 0:
                semaphore = self.semaphores[rank]
                self.semaphores[rank] += 1
            if place[before] > done:
                done = place[before]
                self.acquires[after].append(semaphore)
                self.releases[before].append(semaphore)
            known[key] = semaphore, done

    def _across(
        self, block: list[int], place: list[int], start: dict[tuple[int, int], int]
    ) -> Iterable[tuple[int, int]]:
        """Return the waits between chains of threadblocks that continue each other, in the order of the waiting steps.

        Waiting for the last of several steps of a threadblock makes the other waits unnecessary.
        """
        after, before = self.order.waiter, self.program.dep
        blocks, places = np.array(block), np.array(place)
        row = np.array(
            [start[at] for at in zip(self.rank, block, strict=True)], np.int64
        )  # unique within a rank: steps wait only for steps of their rank
        apart = row[after] != row[before]
        after, before = after[apart], before[apart]
        order = np.lexsort((before, after, -places[before], places[after], blocks[after]))
        return zip(after[order].tolist(), before[order].tolist(), strict=True)

    # Text.

    def gpu(self, rank: int) -> str:
        program = self.program
        channels = [
            f'{{"channel_type":"{kind}","connected_to":{peers}}}'
            for kind, peers in self.peers[rank].items()
            if peers
        ]
        buffers = [
            f'{{"rank":{peer},"type":"{_LETTERS[buffer]}","access_channel_types":["{kind}"]}}'
            for peer, buffer, kind in self.remote[rank]
        ]
        started: set[tuple[str, int]] = set()
        blocks = [
            self._block(rank, number, block, started)
            for number, block in enumerate(self.blocks[rank])
        ]
        semaphores = ",".join(['{"init_value":0}'] * self.semaphores[rank])
        return (
            f'{{"id":{rank},"input_chunks":{len(program.input_chunks(rank))},'
            f'"output_chunks":{len(program.output_chunks(rank))},'
            f'"scratch_chunks":{self.scratch[rank]},\n "channels":[{",".join(channels)}],\n'
            f' "remote_buffers":[{",".join(buffers)}],\n "semaphores":[{semaphores}],\n'
            f' "threadblocks":[\n  {_LINES.join(blocks)}]}}'
        )

    def _block(self, rank: int, number: int, block: Block, started: set[tuple[str, int]]) -> str:
        ops = Ops(careful=self.program.in_place)
        follows = self.hands_on.get((rank, number))
        goes_on = self.hands_on.get((rank, number + 1))
        if follows is not None:
            ops.acquire([follows])
        for step in block.steps:
            self._step(ops, block, step)
        if goes_on is not None:
            ops.release([goes_on])
        text = self._handshakes(block, started)
        if self.unit is None or not self._is_ordered(rank, number):
            text += ops.text
        else:
            text.append(
                f'{{"name":"pipeline","iter_context":{{"unit_size":{self.unit},'
                f'"num_chunks":{self.chunks}}},"ops":[{",".join(ops.text)}]}}'
            )
        channels = [
            f'{{"channel_type":"{kind}","channel_ids":{list(ids)}}}'
            for kind, ids in block.channels.items()
            if ids
        ]
        buffers = [
            f'{{"access_channel_type":"{kind}","remote_buffer_ids":{list(ids)}}}'
            for kind, ids in block.buffers.items()
            if ids
        ]
        return (
            f'{{"id":{number},"channels":[{",".join(channels)}],'
            f'"remote_buffer_refs":[{",".join(buffers)}],\n  "ops":[{_LINES.join(text)}]}}'
        )

    def _handshakes(self, block: Block, started: set[tuple[str, int]]) -> list[str]:
        """Return the handshakes: receivers signal that they have started; senders wait for it before anything else."""
        keys = [(kind, channel) for kind, ids in block.channels.items() for channel in ids]
        if started.issuperset(keys):
            return []
        says: dict[str, list[int]] = {"memory": [], "port": []}
        hears: dict[str, list[int]] = {"memory": [], "port": []}
        for step in block.steps:
            if not self.shakes[step]:
                continue
            for kind, channel, lists, talks in (
                (self.in_kind[step], self.in_channel[step], says, self.receives[step]),
                (self.kind[step], self.out_channel[step], hears, self.sends[step]),
            ):
                if talks and channel >= 0 and (kind, channel) not in started:
                    started.add((kind, channel))
                    lists[kind].append(block.channels[kind][channel])
        text = []
        for word, lists in (("rlxsignal", says), ("rlxwait", hears)):
            for kind, ids in lists.items():
                text += orders(word, kind, ids)
        if any(hears.values()):
            text.append(NOP)
        return text

    def _step(self, ops: Ops, block: Block, step: int) -> None:
        name, n = self.name[step], self.count[step]
        src, dst, landing = self.src[step], self.dst[step], self.landing[step]
        receives, sends = self.receives[step], self.sends[step]
        if receives or name == "wait":
            kind = self.in_kind[step]
            ops.wait(kind, block.channels[kind][self.in_channel[step]])
        if step in self.acquires:
            ops.acquire(self.acquires[step])
        held = dst
        if name in ("recv_reduce", "recv_reduce_send", "recv_reduce_forward"):
            held = dst if name != "recv_reduce_forward" else landing
            base, other = (landing, src) if held == landing else (src, landing)
            sources = f"{local(base, n)},{local(other, n)}"
            ops.data("re", sources, local(held, n), (src, landing), (held,), n)
        elif receives:
            if landing != dst:
                ops.data("copy", local(landing, n), local(dst, n), (landing,), (dst,), n)
        elif name == "copy":
            ops.data("copy", local(src, n), local(dst, n), (src,), (dst,), n)
        elif name == "reduce":
            sources = f"{local(dst, n)},{local(src, n)}"
            ops.data("re", sources, local(dst, n), (src, dst), (dst,), n)
        elif name == "get":
            there = self._away(block, step, src)
            ops.data("get", there, local(dst, n), (), (dst,), n, memory=True)
        elif name == "get_reduce":
            sources = f"{local(dst, n)},{self._away(block, step, src)}"
            ops.data("rre", sources, local(dst, n), (dst,), (dst,), n, memory=True)
        if sends or name == "put":
            source = held if receives else src
            there = self._away(block, step, self.landing[self.receiver[step]] if sends else dst)
            kind = self.kind[step]
            channel = block.channels[kind][self.out_channel[step]] if sends else -1
            ops.put(kind, channel, source, there, n)
        elif name == "signal":
            kind = self.kind[step]
            ops.signal(kind, block.channels[kind][self.out_channel[step]])
        if step in self.releases:
            ops.release(self.releases[step])

    def _away(self, block: Block, step: int, place: Place) -> str:
        buffer = block.buffers[self.kind[step]][self.buffer[step]]
        return away(buffer, place[1], self.count[step])
