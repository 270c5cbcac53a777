"""A carrier between threads of one process, as an example: messages in memory, in random order.

This is all that a carrier needs: a class with ``prepare``, an object with ``run``, and ``open_carrier``.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.errors import CommunicationError
from tacos.runtime.carriers import Call, Carrier, CarrierKind, Meeting

if TYPE_CHECKING:
    from tacos._core import RankExecutor

KIND = CarrierKind("memory", __name__, label="memory")

_ROOMS: dict[str, _Room] = {}
_NUMBERS = itertools.count()


class _Room:
    """The memory that the ranks of one meeting share: the messages that have arrived for each rank."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.mail: Any = defaultdict(dict)  # rank -> (call, sender, step that sends) -> bytes


class Memory(Carrier):
    """One rank's access to the room."""

    def __init__(self, room: _Room, rank: int, timeout: float) -> None:
        self.room, self.rank, self.timeout = room, rank, timeout
        self.calls = 0

    def prepare(self, share: RankExecutor, number: int) -> _Prepared:
        return _Prepared(self, share)


class _Prepared:
    def __init__(self, carrier: Memory, share: RankExecutor) -> None:
        self._carrier, self._share = carrier, share
        self._order = random.Random(carrier.rank)

    def run(self, call: Call) -> None:
        room, share, rank = self._carrier.room, self._share, self._carrier.rank
        share.start(*call)
        self._carrier.calls += 1
        number = self._carrier.calls
        wanted: dict[tuple[int, int, int], int] = {}  # the step that receives each message
        while True:
            columns = zip(*(column.tolist() for column in share.ready()), strict=True)
            for receives, step, peer, _, message, _ in columns:
                if receives:
                    wanted[number, peer, message] = step
                    continue
                data = [_view(*piece).copy() for piece in share.outgoing(step)]
                with room.changed:
                    room.mail[peer][number, rank, message] = data
                    room.changed.notify_all()
                share.sent(step)
            if share.finished and not wanted:
                break
            if wanted:
                key, data = self._next(wanted)
                step = wanted.pop(key)
                for piece in data:
                    share.take(step, piece.ctypes.data, piece.nbytes)
                share.received(step)
        share.finish()

    def _next(self, wanted: dict[tuple[int, int, int], int]) -> tuple[tuple[int, int, int], Any]:
        """Return any message that a step waits for."""
        room, mail = self._carrier.room, self._carrier.room.mail[self._carrier.rank]
        end = time.monotonic() + self._carrier.timeout
        with room.changed:
            while not (here := [key for key in wanted if key in mail]):
                if not room.changed.wait(end - time.monotonic()):
                    raise CommunicationError(f"rank {self._carrier.rank} waits for messages")
            key = self._order.choice(here)
            return key, mail.pop(key)


def _view(address: int, size: int) -> Any:
    memory: Any = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memory, np.uint8)


def open_carrier(meeting: Meeting) -> Memory:
    """Let the ranks of one meeting share a room."""
    mine = str(next(_NUMBERS))
    name = meeting.exchange("room", mine.encode())[0].decode()
    return Memory(_ROOMS.setdefault(name, _Room()), meeting.rank, meeting.timeout)
