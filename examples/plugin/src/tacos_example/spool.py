"""A carrier through files: every message is a file in a directory that all ranks see, and its name says who waits for it.

It is slow, but works wherever ranks share a file system, and needs neither a network nor a package.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tacos.errors import CommunicationError
from tacos.runtime.carriers import Call, Carrier, Meeting, Prepared

if TYPE_CHECKING:
    from tacos._core import RankExecutor

_PAUSE_S = 0.001
"""Time between two looks for files."""


def open_carrier(meeting: Meeting) -> Spool:
    """Let rank 0 make a directory, and tell the others its name."""
    mine = tempfile.mkdtemp(prefix="tacos-spool-") if meeting.rank == 0 else ""
    folder = meeting.exchange("directory", mine.encode())[0].decode()
    return Spool(Path(folder), meeting.rank, meeting.timeout)


class Spool(Carrier):
    """One rank's view of the directory."""

    def __init__(self, folder: Path, rank: int, timeout: float) -> None:
        self.folder, self.rank, self.timeout = folder, rank, timeout
        self.calls = 0

    def prepare(self, share: RankExecutor, number: int) -> Prepared:  # noqa: ARG002
        """Programs need no preparation."""
        return _Program(self, share)

    def file(self, source: int, target: int, message: int) -> Path:
        """Return the file of a message of the current call."""
        return self.folder / f"{self.calls}-{source}-{target}-{message}"

    def wait(self, files: list[Path]) -> Path:
        """Return a file that has arrived."""
        end = time.monotonic() + self.timeout
        while True:
            for file in files:
                if file.exists():
                    return file
            if time.monotonic() > end:
                raise CommunicationError(
                    f"rank {self.rank} has waited {self.timeout:g} s for {files[0]}"
                )
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Remove the directory if it is empty: the last rank has read the last message."""
        with suppress(OSError):
            self.folder.rmdir()


class _Program:
    def __init__(self, carrier: Spool, share: RankExecutor) -> None:
        self._carrier, self._share = carrier, share

    def run(self, call: Call) -> None:
        """Carry the messages that may move, until the share is finished."""
        carrier, share = self._carrier, self._share
        carrier.calls += 1
        share.start(*call)
        wanted: dict[Path, int] = {}  # the step that receives each message
        while True:
            columns = (column.tolist() for column in share.ready())
            for receives, step, peer, _, message, _ in zip(*columns, strict=True):
                if receives:
                    wanted[carrier.file(peer, carrier.rank, message)] = step
                else:
                    self._send(carrier.file(carrier.rank, peer, message), share.outgoing(step))
                    share.sent(step)
            if wanted:
                file = carrier.wait(list(wanted))
                step = wanted.pop(file)
                data = np.fromfile(file, np.uint8)
                file.unlink()
                share.take(step, data.ctypes.data, data.nbytes)
                share.received(step)
            elif share.finished:
                break
        share.finish()

    def _send(self, file: Path, pieces: list[tuple[int, int]]) -> None:
        """Write a message under another name first: a file that exists is complete."""
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_bytes(b"".join(ctypes.string_at(*piece) for piece in pieces))
        unfinished.rename(file)
