"""How the ranks of a job find each other: an all-gather of small byte strings.

A rendezvous has ``rank``, ``size``, ``exchange(name, value)`` and ``close()``. It is used when ranks connect
and prepare algorithms, never while data move. While it waits, it calls ``while_waiting()`` from time to time to find out
whether waiting is useless, because a rank moves data instead.
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
    """The interface with which a communicator finds its peers."""

    while_waiting: Callable[[], str]
    """Returns why waiting cannot succeed, or an empty string; it may raise."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def exchange(self, name: str, value: bytes) -> list[bytes]:
        """Exchange a value and return those of all ranks, in rank order; all ranks use the same names."""

    def close(self) -> None:
        """Close the connections to the peers."""
