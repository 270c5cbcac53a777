"""Count work instead of seconds, which measure the machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


def calls(action: Callable[[], Result]) -> tuple[int, Result]:
    """Return how many functions an action calls in this thread, in Python and in C, and what it returns."""
    count = 0

    def heed(_frame: object, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(heed)
    try:
        result = action()
    finally:
        sys.setprofile(before)
    return count, result


class Clock:
    """A stand-in for the module ``time`` whose clock goes on by a second each time that it is looked at."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 1.0
        return self._now
