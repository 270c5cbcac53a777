"""Accept connections and return each after its handshake."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["Accepted", "Acceptor"]

_PATIENCE_S = 10.0
"""Seconds for a greeting, which a rank sends as soon as it is connected (chosen)."""
_CROWD = 4096
"""Connections without a complete greeting; beyond this many, all of them are closed (chosen)."""


class Accepted(NamedTuple):
    """A connection and its greeting."""

    connection: socket.socket
    greeting: bytes


class _Pending:
    """A connection whose greeting is not complete."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.since = time.monotonic()


class Acceptor:
    """Accept connections; a connection that sends nothing or too little does not delay the others.

    Args:
        listeners: Sockets that listen. They are closed with the acceptor.
        length: Bytes of a greeting.

    >>> listener = socket.create_server(("127.0.0.1", 0))
    >>> with Acceptor([listener], 5) as acceptor, socket.create_connection(listener.getsockname()) as caller:
    ...     caller.sendall(b"hello, here I am")
    ...     accepted = acceptor.wait(10.0)
    >>> accepted.greeting, accepted.connection.close()
    (b'hello', None)
    """

    def __init__(self, listeners: Sequence[socket.socket], length: int) -> None:
        self._length = length
        self._selector = selectors.DefaultSelector()
        self._pending: dict[socket.socket, _Pending] = {}
        self._listeners = list(listeners)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def wait(self, seconds: float) -> Accepted | None:
        """Return the next connection whose greeting is complete, or None after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready = self._selector.select(min(left, _PATIENCE_S))
            for key, _ in ready:
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if found not in self._pending:
                    self._accept(found)
                elif self._receive(self._pending[found]):
                    pending = self._pending[found]
                    self._forget(found)
                    return Accepted(found, pending.received)
            if left == 0.0 and not ready:
                return None

    def close(self) -> None:
        """Close the listeners and all connections without a complete greeting."""
        self._selector.close()
        for one in (*self._listeners, *self._pending):
            one.close()
        self._pending.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the peer has closed it again
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._pending[connection] = _Pending(connection)
            self._selector.register(connection, selectors.EVENT_READ)
        latest = time.monotonic() - _PATIENCE_S
        expired = [one for one, pending in self._pending.items() if pending.since < latest]
        for one in expired if len(self._pending) <= _CROWD else list(self._pending):
            self._close(one)

    def _receive(self, pending: _Pending) -> bool:
        """Read more of a greeting; return whether it is complete."""
        try:
            data = pending.connection.recv(self._length - len(pending.received))
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(pending.connection)
        pending.received += data
        return len(pending.received) == self._length

    def _close(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._pending[connection]
