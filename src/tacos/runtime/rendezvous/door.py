"""A door at which strangers may knock: connections are let in once they have said who they are."""

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

__all__ = ["Door", "Guest"]

_PATIENCE_S = 10.0
"""For a greeting, which a rank sends as soon as it is connected."""
_CROWD = 4096


class Guest(NamedTuple):
    """A connection and its greeting."""

    connection: socket.socket
    greeting: bytes


class _Knocking:
    """A connection that has not said all of its greeting."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.said = b""
        self.since = time.monotonic()


class Door:
    """Accept connections; one that is silent, or sends too little, does not delay the others.

    Args:
        listeners: Sockets that listen. They are closed with the door.
        length: Bytes of a greeting.

    >>> listener = socket.create_server(("127.0.0.1", 0))
    >>> with Door([listener], 5) as door, socket.create_connection(listener.getsockname()) as caller:
    ...     caller.sendall(b"hello, here I am")
    ...     guest = door.wait(10.0)
    >>> guest.greeting, guest.connection.close()
    (b'hello', None)
    """

    def __init__(self, listeners: Sequence[socket.socket], length: int) -> None:
        self._length = length
        self._selector = selectors.DefaultSelector()
        self._knocking: dict[socket.socket, _Knocking] = {}
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

    def wait(self, seconds: float) -> Guest | None:
        """The next that has said its whole greeting; None if there is none within so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready = self._selector.select(min(left, _PATIENCE_S))
            for key, _ in ready:
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if found not in self._knocking:
                    self._open(found)
                elif self._listen(self._knocking[found]):
                    guest = self._knocking[found]
                    self._forget(found)
                    return Guest(found, guest.said)
            if left == 0.0 and not ready:
                return None

    def close(self) -> None:
        """Close the listeners and whatever still knocks."""
        self._selector.close()
        for one in (*self._listeners, *self._knocking):
            one.close()
        self._knocking.clear()

    def _open(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has gone again
            connection, _ = listener.accept()
            connection.setblocking(False)
            self._knocking[connection] = _Knocking(connection)
            self._selector.register(connection, selectors.EVENT_READ)
        latest = time.monotonic() - _PATIENCE_S
        tired = [one for one, guest in self._knocking.items() if guest.since < latest]
        for one in tired if len(self._knocking) <= _CROWD else list(self._knocking):
            self._turn_away(one)

    def _listen(self, guest: _Knocking) -> bool:
        """Take in more of a greeting; whether that is all."""
        try:
            said = guest.connection.recv(self._length - len(guest.said))
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        if not said:
            self._turn_away(guest.connection)
        guest.said += said
        return len(guest.said) == self._length

    def _turn_away(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._knocking[connection]
