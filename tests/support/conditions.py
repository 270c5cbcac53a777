"""Wait for what must happen, however long the machine takes."""

from __future__ import annotations

import fcntl
import struct
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 300.0
"""Seconds after which a test gives up. It only ends a hang: with seven jobs per core, the longest wait was 80 s."""
_PAUSE_S = 0.01

Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str, patience: float = PATIENCE_S) -> Found:
    """Call a condition until it holds, and return its value.

    Raises:
        AssertionError: It did not come true in `patience` seconds; `what` says what was waited for.
    """
    end = time.monotonic() + patience
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience:g} s in vain: {what}")
        time.sleep(_PAUSE_S)
    return found


def ended(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def data_waits() -> bool:
    """Return whether data that this process has not read wait in one of its sockets."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            counted = fcntl.ioctl(int(entry.name), termios.FIONREAD, bytes(4))
        except OSError:  # it was closed, or listens
            continue
        if struct.unpack("i", counted)[0]:
            return True
    return False
