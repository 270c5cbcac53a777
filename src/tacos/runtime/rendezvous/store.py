"""A rendezvous through a key-value store, such as the one that torch.distributed makes for a job."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from typing import TYPE_CHECKING, cast

from tacos.errors import CommunicationError
from tacos.runtime.rendezvous.waiting import Doubt, Patience, named

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import Store

__all__ = ["StoreRendezvous"]

_LOOK_S = 0.5
"""Seconds that a rank waits for the store before it checks for failures."""
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.1
"""Seconds between two queries of the store."""
_PIECE = 4 << 20
"""Largest piece of a value in bytes; stores refuse values of more than a few megabytes."""


class StoreRendezvous:
    """A rendezvous through a store: rank 0 collects and distributes the values, so the work is O(ranks).

    Args:
        store: A store that all ranks share, with ``set(key, bytes)``, ``get(key)`` and ``check(keys)``.
        rank: This process's number.
        size: The number of ranks.
        prefix: Prefix of the keys, for jobs that share a store.
        timeout: Seconds to wait for the others.

    >>> alone = StoreRendezvous(None, 0, 1)
    >>> alone.exchange("greeting", b"hello")
    [b'hello']
    """

    def __init__(
        self,
        store: Store | None,
        rank: int,
        size: int,
        prefix: str = "tacos",
        *,
        timeout: float = 300.0,
    ) -> None:
        self.rank, self.size = rank, size
        self.while_waiting: Callable[[], str] = str
        self.store, self._prefix, self._timeout = store, prefix, timeout
        self._shared = cast("Store", store)  # a single rank shares nothing
        self._count = 0

    @classmethod
    def of_torchrun(
        cls, rank: int, size: int, *, restarts: str = "0", timeout: float = 300.0
    ) -> StoreRendezvous:
        """Use the store that torchrun's variables name; all ranks must call this equally often."""
        store, meetings = _store_of_job(rank, size, timeout)
        return cls(store, rank, size, f"tacos/{restarts}/{next(meetings)}", timeout=timeout)

    def exchange(self, name: str, value: bytes) -> list[bytes]:
        """Return the values of all ranks, in rank order.

        Raises:
            TimeoutError: Some ranks did not take part; the message names them.
            CommunicationError: Other ranks exchange something else, or the store is lost.
        """
        if self.size == 1:
            return [value]
        self._count += 1
        key = f"{self._prefix}/{self._count}"
        keys = [f"{key}/{rank}" for rank in range(self.size)]
        deadline = time.monotonic() + self._timeout
        try:
            self._put(keys[self.rank], _packed([name.encode(), value]))
            if self.rank:
                # Wait a little longer than rank 0, which knows the missing ranks.
                self._wait(name, [f"{key}/all"], keys, deadline + 1.0)
                failure, *values = _unpacked(self._take(f"{key}/all"))
                if failure:
                    raise CommunicationError(failure.decode())
                return values
            try:
                values = self._gathered(name, keys, deadline)
            except (TimeoutError, CommunicationError) as error:
                self._put(f"{key}/all", _packed([str(error).encode()]))
                raise
            self._put(f"{key}/all", _packed([b"", *values]))
        except RuntimeError as error:  # torch's DistNetworkError among them
            if isinstance(error, CommunicationError):
                raise
            raise CommunicationError(f"the store of the job is lost: {error}") from None
        return values

    def close(self) -> None:
        """Do nothing: the store belongs to the job."""

    def _gathered(self, name: str, keys: list[str], deadline: float) -> list[bytes]:
        self._wait(name, keys, keys, deadline)
        values = []
        for rank, key in enumerate(keys):
            theirs, value = _unpacked(self._take(key))
            if theirs != name.encode():
                raise CommunicationError(
                    f"the ranks do not agree: rank {rank} exchanges {theirs.decode()!r}, "
                    f"rank 0 {name!r}"
                )
            values.append(value)
        return values

    def _put(self, key: str, value: bytes) -> None:
        """Store a value in pieces of limited size, then their number."""
        pieces = [value[at : at + _PIECE] for at in range(0, len(value), _PIECE)]
        for i, piece in enumerate(pieces[1:], 1):
            self._shared.set(f"{key}/{i}", piece)
        self._shared.set(key, b"%d;" % len(pieces) + b"".join(pieces[:1]))

    def _take(self, key: str) -> bytes:
        count, _, first = bytes(self._shared.get(key)).partition(b";")
        others = [bytes(self._shared.get(f"{key}/{i}")) for i in range(1, int(count))]
        return b"".join([first, *others])

    def _wait(self, name: str, wanted: list[str], keys: list[str], deadline: float) -> None:
        # Not by store.wait: torch logs two warnings whenever it times out.
        doubt, pause = Doubt(), _SHORTEST_PAUSE_S
        patience = Patience(name)
        look = time.monotonic() + _LOOK_S
        while not self._shared.check(wanted):
            now = time.monotonic()
            if now >= deadline:
                raise TimeoutError(
                    f"{named(self._missing(keys) or [0])} did not come to exchange {name!r} within "
                    f"{self._timeout:g} s"
                )
            if now >= look:
                look = now + _LOOK_S
                doubt.hear(self.while_waiting())
                patience.look(lambda: self._missing(keys))
            time.sleep(min(pause, deadline - now))
            pause = min(1.5 * pause, _LONGEST_PAUSE_S)

    def _missing(self, keys: list[str]) -> list[int]:
        return [rank for rank, key in enumerate(keys) if not self._shared.check([key])]


_OPENED: dict[tuple[int, int], tuple[Store, itertools.count[int]]] = {}


def _store_of_job(rank: int, size: int, timeout: float) -> tuple[Store, itertools.count[int]]:
    """Return the job's store, which a process can open only once, and a counter of its uses.

    A store that is open serves all later meetings, whatever their timeouts: keys of two counters would collide.
    """
    if (rank, size) in _OPENED:
        return _OPENED[rank, size]
    try:
        from torch.distributed import rendezvous
    except ImportError:
        raise ValueError(
            "RANK and MASTER_ADDR are set as torchrun does, but torch is not installed: "
            "pip install 'tacos-ccl[torch]'"
        ) from None
    store, _, _ = next(rendezvous("env://", rank, size, timeout=dt.timedelta(seconds=timeout)))
    return _OPENED.setdefault((rank, size), (store, itertools.count()))


def _packed(values: list[bytes]) -> bytes:
    lengths = ",".join(str(len(value)) for value in values)
    return b"".join([lengths.encode(), b";", *values])


def _unpacked(packed: bytes) -> list[bytes]:
    """Return the values that :func:`_packed` has joined.

    >>> _unpacked(_packed([b"a", b"", b"bc;"]))
    [b'a', b'', b'bc;']
    """
    lengths, _, content = bytes(packed).partition(b";")
    values: list[bytes] = []
    begin = 0
    for length in map(int, lengths.split(b",")):
        values.append(content[begin : begin + length])
        begin += length
    return values
