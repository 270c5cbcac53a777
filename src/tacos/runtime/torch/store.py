"""How the ranks of a process group meet, at the store that torch made for them."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from tacos.errors import CommunicationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GroupRendezvous"]

_PAUSE = timedelta(seconds=1)
"""How long a rank waits for the store before it looks around."""
_PIECE = 4 << 20
"""Stores refuse values of more than a few megabytes."""


class GroupRendezvous:
    """Ranks that meet at a store: rank 0 collects and hands out, so that the work is O(ranks).

    Args:
        store: One that all ranks see, with keys of its own.
        rank: This process's number.
        size: The number of ranks.
        timeout: Seconds to wait for the others.

    >>> alone = GroupRendezvous(dist.HashStore(), 0, 1)
    >>> alone.exchange("greeting", b"hello")
    [b'hello']
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: float = 300.0) -> None:
        self.rank, self.size = rank, size
        self.while_waiting: Callable[[], None] | None = None
        """Called about once a second while others are waited for; what it raises ends the wait."""
        self._store = store
        self._timeout = timeout
        self._count = 0

    def exchange(self, name: str, value: bytes) -> list[bytes]:
        """The values of all ranks, in their order.

        Raises:
            TimeoutError: Some ranks did not come; the message names them.
            CommunicationError: The store is lost.
        """
        if self.size == 1:
            return [value]
        self._count += 1
        key = f"{name}/{self._count}"
        keys = [f"{key}/{rank}" for rank in range(self.size)]
        self._put(keys[self.rank], value)
        if self.rank:
            self._wait(name, [f"{key}/all"], keys)
            return _unpacked(self._take(f"{key}/all"))
        self._wait(name, keys, keys)
        values = [self._take(one) for one in keys]
        self._put(f"{key}/all", _packed(values))
        return values

    def close(self) -> None:
        """Nothing to do: the store belongs to torch."""

    def _put(self, key: str, value: bytes) -> None:
        """Store a value in pieces, which stores limit, and then how many there are."""
        pieces = [value[at : at + _PIECE] for at in range(0, len(value), _PIECE)]
        for i, piece in enumerate(pieces[1:], 1):
            self._store.set(f"{key}/{i}", piece)
        self._store.set(key, b"%d;" % len(pieces) + b"".join(pieces[:1]))

    def _take(self, key: str) -> bytes:
        count, _, first = bytes(self._store.get(key)).partition(b";")
        others = [bytes(self._store.get(f"{key}/{i}")) for i in range(1, int(count))]
        return b"".join([first, *others])

    def _wait(self, name: str, wanted: list[str], keys: list[str]) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            left = timedelta(seconds=max(deadline - time.monotonic(), 0.01))
            try:
                self._store.wait(wanted, min(left, _PAUSE))
            except dist.DistNetworkError as error:
                raise CommunicationError(f"the store of the group is lost: {error}") from None
            except RuntimeError:  # some stores say DistStoreError
                if self.while_waiting is not None:
                    self.while_waiting()
                if time.monotonic() < deadline:
                    continue
            else:
                return
            missing = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
            raise TimeoutError(
                f"rank {', '.join(missing or ['0'])} did not come to exchange {name!r} within "
                f"{self._timeout:g} s"
            )


def _packed(values: list[bytes]) -> bytes:
    lengths = ",".join(str(len(value)) for value in values)
    return b"".join([lengths.encode(), b";", *values])


def _unpacked(packed: bytes) -> list[bytes]:
    """The values of :func:`_packed`.

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
