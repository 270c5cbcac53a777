"""Programs in waves, for transports that move messages in batches: torch adds up what they bring.

A wave is one batch of sends and receives, as NCCL groups them, then the sums and copies that each rank makes by
itself. On a GPU all of it is enqueued on the stream, and the host does not wait. Ranks go through the waves in
one order, so that they meet without a deadlock.

One process may play several ranks, which is how a single GPU runs a program of many.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tacos._core import lay_out, waves
from tacos.program import STEP_OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch.distributed import ProcessGroupNCCL

    from tacos._core import Program, RankLayout, Waves

__all__ = ["GpuAlgorithm"]

_SENDS = frozenset(i for i, name in enumerate(STEP_OPS) if "send" in name or "forward" in name)
_COPY, _REDUCE, _SEND, _FORWARD = (
    STEP_OPS.index(name) for name in ("copy", "reduce", "send", "recv_reduce_forward")
)
_SUMS = frozenset(i for i, name in enumerate(STEP_OPS) if "reduce" in name) - {_REDUCE}
_COMBINE: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
_INPUT = 0
"""How the core numbers the input among the buffers."""
_KEPT_LAYOUTS = 8


@dataclass(frozen=True)
class _Wave:
    """What one rank does in a wave, as steps of the program; messages with the step that sends them."""

    sends: list[tuple[int, int, int]]  # the step that sends, the peer, the step here
    receives: list[tuple[int, int, int]]
    alone: list[tuple[int, bool]]  # a step, and whether it stores what arrived or acts


class GpuAlgorithm:
    """A program, ready to run on the tensors of a GPU.

    Args:
        program: A right one, of two-sided steps.
        backend: The backend of a process group, such as ``ProcessGroupNCCL``: it has ``send``, ``recv`` and batches.
        ranks: Which ranks of the program this process plays; its own by default.
        peers: The rank in ``backend`` that plays each rank of the program, if not the same.
    """

    def __init__(
        self,
        program: Program,
        backend: ProcessGroupNCCL,
        *,
        ranks: Sequence[int] | None = None,
        peers: Mapping[int, int] | None = None,
    ) -> None:
        self.program = program
        self.ranks = [backend.rank()] if ranks is None else list(ranks)
        self._backend = backend
        self._peers = dict(peers) if peers is not None else {r: r for r in range(program.ranks)}
        cut = waves(program)
        self._waves = _waves_of(program, cut, self.ranks)
        self._aside = cut.aside
        self._shared = [_shared_slots(program, rank) for rank in self.ranks]
        self._layouts: dict[int, list[RankLayout]] = {}

    def run(
        self,
        sources: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        count: int,
        op: str = "sum",
    ) -> None:
        """Enqueue the collective on the current stream.

        Args:
            sources: The input of each rank that this process plays: contiguous, of one type.
            targets: Their outputs; in place if they share memory with the inputs as NCCL has it.
            count: Elements of the whole buffer, as nccl-tests counts it.
            op: sum, avg, product, min, max, band, bor or bxor.
        """
        layouts = self._laid_out(count)
        memories = [
            _Memory(self.program, layout, shared, self._aside, source, target, _COMBINE[op])
            for layout, shared, source, target in zip(
                layouts, self._shared, sources, targets, strict=True
            )
        ]
        for wave in self._waves:
            self._exchange(wave, memories)
            for one, memory in zip(wave, memories, strict=True):
                for step, stores in one.alone:
                    memory.absorb(step) if stores else memory.act(step)
        for memory in memories:
            memory.finish(len(self.program.collective.parts[0].group) if op == "avg" else 1)

    def _laid_out(self, count: int) -> list[RankLayout]:
        if count not in self._layouts:
            if len(self._layouts) == _KEPT_LAYOUTS:
                self._layouts.pop(next(iter(self._layouts)))
            self._layouts[count] = [lay_out(self.program, rank, count) for rank in self.ranks]
        return self._layouts[count]

    def _exchange(self, wave: list[_Wave], memories: list[_Memory]) -> None:
        """All messages of a wave in one batch; ranks of one process meet in it too."""
        sends: list[tuple[int, torch.Tensor, int]] = []
        receives: list[tuple[int, torch.Tensor, int]] = []
        for one, memory in zip(wave, memories, strict=True):
            for found, steps, data in (
                (sends, one.sends, memory.outgoing),
                (receives, one.receives, memory.incoming),
            ):
                for message, peer, step in steps:
                    if (tensor := data(step)).numel():  # both ends know what is empty
                        found.append((message, tensor, self._peers[peer]))
        if not sends and not receives:
            return
        # NCCL pairs the messages of two processes in order.
        sends.sort(key=lambda item: item[0])
        receives.sort(key=lambda item: item[0])
        self._backend._start_coalescing()
        for _, tensor, peer in sends:
            self._backend.send([tensor], peer, 0)
        for _, tensor, peer in receives:
            self._backend.recv([tensor], peer, 0)
        self._backend._end_coalescing().wait()  # the stream waits, not the host


class _Memory:
    """The buffers of one rank during a call."""

    def __init__(
        self,
        program: Program,
        layout: RankLayout,
        shared: list[_Slots],
        aside: NDArray[np.uint8],
        source: torch.Tensor,
        target: torch.Tensor,
        combine: Callable[..., torch.Tensor],
    ) -> None:
        self._layout, self._combine = layout, combine
        self._op, self._aside = program.op, aside
        self._target = target.view(-1)
        given = source.view(-1)[: int(layout.given_input[-1])]
        if layout.padded:  # slots of one size, so the caller's data are copied in and out
            self._input = target.new_empty(int(layout.input_offset[-1]))
            self._output = target.new_empty(int(layout.output_offset[-1]))
            _spread(given, layout.given_input, self._input, layout.input_offset)
        else:
            kept = _overlap(given, self._target[: int(layout.given_output[-1])], layout, shared)
            writes = bool((layout.dst_buffer == _INPUT).any())
            aliased = kept is _Overlap.OTHER or (writes and kept is not _Overlap.AS_IN_PLACE)
            self._input = given.clone() if aliased else given
            self._output = self._target
        for slots in shared:  # as an out-of-place program would
            own = _run(self._input, layout.input_offset, slots.first, slots.length)
            out = _run(self._output, layout.output_offset, slots.same, slots.length)
            if own.numel() and own.data_ptr() != out.data_ptr():
                out.copy_(own)
        scratch = target.new_empty(layout.scratch_elements)
        self._buffers = [self._input, self._output, scratch]
        self._arrived: dict[int, torch.Tensor] = {}  # not yet added, or still in one piece
        self._passing: dict[int, torch.Tensor] = {}  # sums that are sent on and not stored

    def outgoing(self, step: int) -> torch.Tensor:
        """What a step sends, in one piece."""
        if self._op[step] == _FORWARD:
            return self._passing.pop(step)
        return self._joined(self._pieces(step, of_source=self._op[step] == _SEND))

    def incoming(self, step: int) -> torch.Tensor:
        """Where what a step receives goes for now."""
        pieces = self._pieces(step, of_source=self._op[step] == _FORWARD)
        if len(pieces) == 1 and self._op[step] not in _SUMS and not self._aside[step]:
            return pieces[0]
        self._arrived[step] = self._output.new_empty(sum(piece.numel() for piece in pieces))
        return self._arrived[step]

    def absorb(self, step: int) -> None:
        """Add what arrived, or put it where it belongs."""
        if step not in self._arrived:
            return
        arrived = self._arrived.pop(step)
        if self._op[step] == _FORWARD:
            own = self._joined(self._pieces(step, of_source=True))
            self._passing[step] = self._combine(own, arrived)
            return
        begin = 0
        stored = self._pieces(step, of_source=False)
        mine = self._pieces(step, of_source=True) if self._op[step] in _SUMS else stored
        for piece, own in zip(stored, mine, strict=True):
            part = arrived[begin : begin + piece.numel()]
            if self._op[step] in _SUMS:
                self._combine(own, part, out=piece)
            else:
                piece.copy_(part)
            begin += piece.numel()

    def act(self, step: int) -> None:
        """A copy or a sum within the rank."""
        pairs = zip(
            self._pieces(step, of_source=True), self._pieces(step, of_source=False), strict=True
        )
        for source, target in pairs:
            if self._op[step] == _COPY:
                target.copy_(source)
            else:
                self._combine(target, source, out=target)

    def finish(self, divide_by: int) -> None:
        """The mean, where it is asked for; and the caller's output, where it is elsewhere."""
        if divide_by > 1:
            mode = None if self._output.is_floating_point() else "trunc"
            held = self._output[: int(self._layout.output_offset[-1])]  # a tensor may be longer
            held.div_(divide_by, rounding_mode=mode)
        if self._layout.padded:
            _spread(
                self._output, self._layout.output_offset, self._target, self._layout.given_output
            )

    def _joined(self, pieces: list[torch.Tensor]) -> torch.Tensor:
        if len(pieces) == 1:
            return pieces[0]
        return torch.cat(pieces) if pieces else self._output.new_empty(0)

    def _pieces(self, step: int, *, of_source: bool) -> list[torch.Tensor]:
        layout = self._layout
        index = step - layout.first_step
        buffer, offset = (
            (layout.src_buffer, layout.src_offset)
            if of_source
            else (layout.dst_buffer, layout.dst_offset)
        )
        return [
            self._buffers[buffer[i]].narrow(0, int(offset[i]), int(layout.elements[i]))
            for i in range(int(layout.begin[index]), int(layout.begin[index + 1]))
        ]


class _Slots(NamedTuple):
    """Input slots that are output slots, too, where a program is in place: both follow each other."""

    first: int
    same: int
    length: int


class _Overlap(enum.Enum):
    """How the memory of a call's input and output overlaps."""

    NONE = enum.auto()
    AS_IN_PLACE = enum.auto()  # just as the program shares slots
    OTHER = enum.auto()


def _shared_slots(program: Program, rank: int) -> list[_Slots]:
    """Slots of a rank; an input slot is the output slot that holds the same chunk."""
    if not program.in_place:
        return []
    inputs, outputs = program.input_chunks(rank).tolist(), program.output_chunks(rank).tolist()
    position = {chunk: slot for slot, chunk in enumerate(outputs)}
    found: list[_Slots] = []
    for slot, chunk in enumerate(inputs):
        if (same := position.get(chunk)) is None:
            continue
        last = found[-1] if found else None
        if last and (last.first + last.length, last.same + last.length) == (slot, same):
            found[-1] = last._replace(length=last.length + 1)
        else:
            found.append(_Slots(slot, same, 1))
    return found


def _overlap(
    source: torch.Tensor, target: torch.Tensor, layout: RankLayout, shared: list[_Slots]
) -> _Overlap:
    if not source.numel() or not target.numel() or not _meet(source, target):
        return _Overlap.NONE
    slots, begins = len(layout.given_input) - 1, layout.given_input
    at = 0
    for one in [*shared, _Slots(slots, 0, 0)]:
        if _meet(_run(source, begins, at, one.first - at), target):  # not shared by the program
            return _Overlap.OTHER
        own = _run(source, begins, one.first, one.length)
        out = _run(target, layout.given_output, one.same, one.length)
        if own.numel() and own.data_ptr() != out.data_ptr():
            return _Overlap.OTHER
        at = one.first + one.length
    return _Overlap.AS_IN_PLACE if shared else _Overlap.OTHER


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two pieces of contiguous memory overlap."""
    return bool(one.numel() and other.numel()) and (
        one.data_ptr() < other.data_ptr() + other.nbytes
        and other.data_ptr() < one.data_ptr() + one.nbytes
    )


def _run(buffer: torch.Tensor, begins: NDArray[np.int64], first: int, count: int) -> torch.Tensor:
    """Slots of a buffer that follow each other."""
    return buffer[int(begins[first]) : int(begins[first + count])]


def _spread(
    source: torch.Tensor, begins: NDArray[np.int64], target: torch.Tensor, places: NDArray[np.int64]
) -> None:
    """Copy slot by slot between buffers whose slots begin elsewhere."""
    for i in range(len(begins) - 1):
        length = int(min(begins[i + 1] - begins[i], places[i + 1] - places[i]))
        target.narrow(0, int(places[i]), length).copy_(source.narrow(0, int(begins[i]), length))


def _waves_of(program: Program, cut: Waves, ranks: Sequence[int]) -> list[list[_Wave]]:
    """Per wave and rank played, what there is to do."""
    result = [[_Wave([], [], []) for _ in ranks] for _ in range(cut.count)]
    position = {rank: i for i, rank in enumerate(ranks)}
    thread_of = np.repeat(np.arange(program.threads), np.diff(program.thread_begin))
    for event in cut.order.tolist():
        step, acts = divmod(event, 2)
        thread = int(thread_of[step])
        here = position.get(int(program.thread_rank[thread]))
        if here is None:
            continue
        op = int(program.op[step])
        if not acts:
            peer = int(program.thread_recv_peer[thread])
            message = (int(program.comes_from[step]), peer, step)
            result[cut.receive[step]][here].receives.append(message)
            result[cut.store[step]][here].alone.append((step, True))
        elif op in _SENDS:
            peer = int(program.thread_send_peer[thread])
            result[cut.act[step]][here].sends.append((step, peer, step))
        elif op in (_COPY, _REDUCE):
            result[cut.act[step]][here].alone.append((step, False))
    return result
