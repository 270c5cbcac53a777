"""Messages between ranks over MPI besides the data: that a call begins, that a rank fails, which ranks are present."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import NamedTuple

from mpi4py import MPI

__all__ = ["LONGEST_TEXT", "Announced", "ControlMessage", "ControlMessages", "Kind"]

_TAG = 1
"""Tag of control messages on their communicator; the rendezvous uses other tags."""
_HEAD = struct.Struct("<BiIiq16s8s")
LONGEST_TEXT = 500  # characters


class Kind(enum.IntEnum):
    """The kind of a control message."""

    CALL = 0
    ABORT = 1
    ASK = 2
    ANSWER = 3
    STORED = 4


@dataclass(frozen=True, slots=True)
class Announced:
    """A rank's announcement of a call that it begins."""

    call: int
    algorithm: int
    count: int
    dtype: str
    op: str

    def __str__(self) -> str:
        return f"{self.count} elements of {self.dtype} ({self.op})"


class ControlMessage(NamedTuple):
    """A control message of a peer, with its call."""

    kind: Kind
    peer: int
    about: Announced
    text: str


class ControlMessages:
    """Control messages from and to all ranks of a communicator.

    Args:
        comm: An mpi4py communicator on which nothing else uses the tag.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self._rank = comm, comm.Get_rank()
        self._expect()

    def _expect(self) -> None:
        self._data = bytearray(_HEAD.size + 4 * LONGEST_TEXT)
        self.receive = self._comm.Irecv([self._data, MPI.BYTE], MPI.ANY_SOURCE, _TAG)

    def next(self) -> ControlMessage | None:
        """Return a control message that has arrived, or None."""
        if not self.receive.Test():
            return None
        data = self._data
        self._expect()
        kind, peer, call, algorithm, count, dtype, op = _HEAD.unpack_from(data)
        about = Announced(call, algorithm, count, _text(dtype), _text(op))
        return ControlMessage(Kind(kind), peer, about, _text(bytes(data[_HEAD.size :])))

    def send(self, peer: int, kind: Kind, about: Announced, text: str = "") -> MPI.Request:
        """Send a control message to a peer; return the request, which must complete."""
        head = _HEAD.pack(
            kind,
            self._rank,
            about.call,
            about.algorithm,
            about.count,
            about.dtype.encode(),
            about.op.encode(),
        )
        return self._comm.Isend([head + text.encode(), MPI.BYTE], peer, _TAG)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode()
