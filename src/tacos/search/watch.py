"""The caller's view of a search: a time limit that cuts it short, and the share done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tacos.errors import TacosError

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["TimeIsUp", "Watch"]


_OVER = (0.1, 0.25)
"""How long verifying may go on after the time limit: a share of it and seconds, half of what the answer may be late, since other
steps may be late as well (``python -m benchmarks.deadlines``)."""


class TimeIsUp(Exception):
    """Not an error: it ends a search that may have found something."""


class Watch:
    """A time limit and a progress callback for all runs of a search.

    Attributes:
        time_limit: The seconds that the caller allows, or None.
        end: The deadline by ``time.monotonic()``, or None.
        done, next: The shares of the whole search at which the current run begins and ends.
        cut_short: Whether the time limit ended something.
        stopped: Whether the caller's progress callback raised an exception.

    >>> shares = []
    >>> watch = Watch(None, shares.append)
    >>> watch.done, watch.next = 0.5, 1.0
    >>> watch.report(0.5)
    >>> shares
    [0.75]
    """

    def __init__(
        self, time_limit: float | None, progress: Callable[[float], object] | None
    ) -> None:
        limit: Any = time_limit
        if limit is not None and not (isinstance(limit, (int, float)) and limit > 0):
            raise ValueError(f"time_limit must be positive; got {time_limit!r}")
        self.time_limit = time_limit
        self.end = None if time_limit is None else time.monotonic() + time_limit
        self.done, self.next = 0.0, 1.0
        self.cut_short = self.stopped = False
        self._progress, self._told = progress, 0.0

    def report(self, share: float) -> None:
        """Tell the caller that this share of the current run is done.

        Raises:
            TimeIsUp: The time limit is over.
        """
        if self.end is not None and time.monotonic() > self.end:
            raise TimeIsUp
        # An engine with several passes starts each at zero.
        self._told = max(self._told, self.done + (self.next - self.done) * share)
        self.repeat()

    def repeat(self) -> None:
        """Report the last progress again, so that the caller can stop work that reports none."""
        if self._progress is not None:
            try:
                self._progress(self._told)
            except BaseException:
                self.stopped = True
                raise

    def verifying(self) -> None:
        """Report the last progress again while an answer is verified, which may end soon after the time limit.

        Raises:
            TimeIsUp: The answer would be too late.
        """
        if self.end is not None and self.time_limit is not None:
            share, more_s = _OVER
            if time.monotonic() > self.end + share * self.time_limit + more_s:
                raise TimeIsUp
        self.repeat()

    def afford(self, units: int) -> None:
        """Refuse a step that cannot be ended, and whose units of work, of about a nanosecond each, take longer than what is left.

        Raises:
            TacosError: Too little time is left; other steps may still fit.
        """
        left_s = self.left_s()
        if left_s is not None and units * 1e-9 > left_s:
            self.cut_short = True
            raise TacosError("too little time is left")

    def left_s(self) -> float | None:
        """Return the seconds that are left, or None without a time limit."""
        return None if self.end is None else self.end - time.monotonic()
