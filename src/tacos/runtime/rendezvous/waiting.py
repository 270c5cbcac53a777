"""How ranks wait for each other: when to poll again, when to time out, and which ranks to name."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from tacos._support.log import LOG
from tacos.errors import CommunicationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LONGEST_S", "Doubt", "Patience", "named", "pause"]

LONGEST_S = 2e6
"""Longest wait of a socket in seconds: its milliseconds have 31 bits."""


class Doubt:
    """Decides whether to keep waiting for ranks that another channel reports as failed.

    Their earlier messages may still be in flight, so the wait ends only if the report persists.

    >>> doubt = Doubt(patience=0.0)
    >>> doubt.hear("")
    >>> doubt.hear("rank 1 closed its connection")
    Traceback (most recent call last):
    tacos._core.CommunicationError: rank 1 closed its connection
    """

    def __init__(self, patience: float = 1.5) -> None:
        self._patience = patience
        self._since: float | None = None

    def hear(self, why: str) -> None:
        """Record a reason, or an empty string; raise CommunicationError if a reason has persisted."""
        now = time.monotonic()
        if not why:
            self._since = None
            return
        if self._since is None:
            self._since = now
        if now - self._since >= self._patience:
            raise CommunicationError(why)


class Patience:
    """Logs the ranks that others wait for, at growing intervals: after 30 s, 60 s, 120 s, …

    >>> Patience("settings").look(lambda: [1])
    False
    """

    def __init__(self, name: str, first_s: float = 30.0) -> None:
        self._name, self._since, self._next_s = name, time.monotonic(), first_s

    def look(self, missing: Callable[[], list[int]]) -> bool:
        """Log the missing ranks if it is time; return whether it was."""
        if time.monotonic() - self._since < self._next_s:
            return False
        if ranks := missing():
            LOG.warning(
                "still waiting for %s to exchange %r, %.0f s",
                named(ranks),
                self._name,
                self._next_s,
            )
        self._next_s *= 2
        return True


def pause(rounds: int, spins: int = 1000) -> None:
    """Yield the core after `rounds` rounds of polling without success.

    The first `spins` rounds only yield to runnable threads; later ones sleep longer and longer, up to a millisecond.
    """
    if rounds < spins:
        os.sched_yield()
    else:
        time.sleep(min(1e-3, 1e-6 * (rounds - spins + 1)))


def named(numbers: list[int]) -> str:
    """Name ranks in words.

    >>> named([1]), named([1, 2])
    ('rank 1', 'ranks 1, 2')
    """
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}"
