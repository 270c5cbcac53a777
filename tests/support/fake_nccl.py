"""A stand-in for NCCL between threads of one process, and the carrier ``nccl`` on it.

It has the part of ``ProcessGroupNCCL`` that the carrier uses, with the rules of NCCL's groups: messages have no tags,
those between two ranks pair in the order in which they were posted, both ends must have the same size, and nothing is
buffered. So a batch is complete when all its messages have met their other ends, and ranks whose batches do not
match time out, where NCCL would wait forever.

The host's memory stands in for a GPU's.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any

import torch

from tacos.runtime.carriers import CarrierKind
from tacos.runtime.carriers.nccl import Nccl

KIND = CarrierKind("fake-nccl", __name__, memory="cuda")


class _Message:
    """One end of a message."""

    def __init__(self, tensor: Any, words: str) -> None:
        assert tensor.is_contiguous()
        self.tensor, self.words = tensor, words
        self.moved = False
        self.error = ""


class Switchboard:
    """Matches the sends and the receives of all ranks."""

    def __init__(self, timeout: float = 20.0) -> None:
        self.timeout = timeout
        self.changed = threading.Condition()
        self._sends: Any = defaultdict(deque)
        self._receives: Any = defaultdict(deque)

    def post(self, src: int, dst: int, message: _Message, *, sends: bool) -> None:
        """Post one end; move the data if the other end is there."""
        with self.changed:
            (self._sends if sends else self._receives)[src, dst].append(message)
            if self._sends[src, dst] and self._receives[src, dst]:
                sent, wanted = self._sends[src, dst].popleft(), self._receives[src, dst].popleft()
                if sent.tensor.nbytes != wanted.tensor.nbytes:  # NCCL would write past the end
                    sent.error = wanted.error = (
                        f"rank {src} sends {sent.tensor.nbytes} bytes to rank {dst}, which expects "
                        f"{wanted.tensor.nbytes}"
                    )
                else:
                    wanted.tensor.view(torch.uint8).copy_(sent.tensor.view(torch.uint8))
                    sent.moved = wanted.moved = True
                self.changed.notify_all()


class FakeNccl:
    """One rank's end. `hangs` makes its batches never arrive, which only the GPU's stream notices."""

    def __init__(self, board: Switchboard, rank: int = 0, *, hangs: bool = False) -> None:
        self._board, self._rank, self.hangs = board, rank, hangs
        self._batch: list[tuple[int, int, _Message, bool]] | None = None
        self.batches: list[list[str]] = []
        self.aborted = self.ended = False

    def rank(self) -> int:
        return self._rank

    def _start_coalescing(self) -> None:
        assert self._batch is None
        self._batch = []

    def send(self, tensors: list[Any], peer: int, tag: int) -> None:
        self._add(tensors, (self._rank, peer), f"to {peer}", sends=True)

    def recv(self, tensors: list[Any], peer: int, tag: int) -> None:
        self._add(tensors, (peer, self._rank), f"from {peer}", sends=False)

    def _add(self, tensors: list[Any], pair: tuple[int, int], words: str, *, sends: bool) -> None:
        assert self._batch is not None
        [tensor] = tensors
        self._batch.append((*pair, _Message(tensor, words), sends))

    def _end_coalescing(self) -> Any:
        batch, self._batch = self._batch, None
        assert batch
        self.batches.append([message.words for _, _, message, _ in batch])
        if self.hangs:
            return SimpleNamespace(wait=lambda *_: True)
        for src, dst, message, sends in batch:
            self._board.post(src, dst, message, sends=sends)
        messages = [message for _, _, message, _ in batch]
        return SimpleNamespace(
            wait=lambda *_: self._wait(messages),
            is_completed=lambda: all(message.moved for message in messages),
        )

    def _wait(self, messages: list[_Message]) -> bool:
        """The host waits as the stream would."""
        end = time.monotonic() + self._board.timeout
        with self._board.changed:
            while left := [message for message in messages if not message.moved]:
                if errors := [message.error for message in left if message.error]:
                    raise RuntimeError(errors[0])
                if self.aborted:
                    raise RuntimeError("NCCL communicator was aborted")
                if not self._board.changed.wait(end - time.monotonic()):
                    waits = ", ".join(message.words for message in left)
                    raise RuntimeError(f"deadlock: messages of rank {self._rank} wait: {waits}")
        return True

    def abort(self) -> None:
        with self._board.changed:
            self.aborted = True
            self._board.changed.notify_all()

    def shutdown(self) -> None:
        self.ended = True


class FakeCarrier(Nccl):
    """The carrier on the host's memory, with streams whose work is done unless `hold` is set."""

    def __init__(self, meeting: Any, backend: FakeNccl) -> None:
        super().__init__(meeting, backend)
        self.hold = threading.Event()

    def tensor(self, address: int, elements: int, dtype: Any) -> Any:
        if not elements:
            return torch.empty(0, dtype=dtype)
        memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype)

    def event(self, device: Any) -> Any:
        return SimpleNamespace(query=lambda: not self.hold.is_set())


_BOARDS: dict[str, Switchboard] = {}
_NUMBERS = itertools.count()


def open_carrier(meeting: Any) -> FakeCarrier:
    """Let the ranks of one meeting share a switchboard."""
    mine = f"{next(_NUMBERS)}"
    name = meeting.exchange("fake NCCL", mine.encode())[0].decode()
    board = _BOARDS.setdefault(name, Switchboard(timeout=min(meeting.timeout, 20.0)))
    return FakeCarrier(meeting, FakeNccl(board, meeting.rank))
