"""How the ranks of a job find each other: an all-gather of small byte strings.

A rendezvous has ``rank``, ``size``, ``exchange(name, value)`` and ``close()``. It is used when ranks meet
and prepare algorithms, never while data move. While it waits it asks ``while_waiting()`` now and then whether
there is any use: a rank that moves data will not come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tacos.runtime.rendezvous.environment import from_environment, in_job
from tacos.runtime.rendezvous.store import StoreRendezvous
from tacos.runtime.rendezvous.tcp import TcpRendezvous

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Rendezvous", "StoreRendezvous", "TcpRendezvous", "from_environment", "in_job"]


class Rendezvous(Protocol):
    """What a communicator needs to meet its peers."""

    while_waiting: Callable[[], str]
    """Return why a wait cannot succeed, or nothing; it may raise."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def exchange(self, name: str, value: bytes) -> list[bytes]:
        """Give a value and get those of all ranks, in their order; all ranks use the same names."""

    def close(self) -> None:
        """Let the peers go."""
