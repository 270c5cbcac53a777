"""Connections between processes that prove to each other that they know a secret.

The listener sends a random challenge. The connecting process answers with its own challenge, its message, and a keyed digest
of all of this; the listener replies with another digest. The secret is never sent, and a recorded handshake
cannot be replayed. Between processes of one machine, both also check the peer's user id.

A thread accepts connections continuously, so that no queue of the kernel fills up between preparations. Silent connections are
closed after some seconds, or sooner if there are many. They do not delay other connections.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import queue
import resource
import secrets
import selectors
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from tacos.errors import CommunicationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["Accepted", "Acceptor", "Refused", "dial", "exhausted"]

_MAGIC = b"tcs2"
_NONCE = 16
"""Bytes of a challenge."""
_PROOF = 32
"""Bytes of a digest, SHA-256."""
_PATIENCE_S = 10.0
"""Seconds for the answer to a challenge, which a rank sends immediately."""
_PENDING = 512
"""Most connections without an answer, and at most an eighth of the descriptors; one more closes the oldest."""
_BATCH = 64
"""Connections that are accepted in a row before answers are read."""
_REFUSAL = bytes(_PROOF)
"""Sent instead of a proof if the other end has answered wrongly. If a connection is just closed, the peer may retry."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)
_NO_MEMORY = (errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 0.05
"""Seconds to wait after an accept failed for lack of descriptors or memory, since the kernel would report it again at once."""
_CREDENTIALS = struct.Struct("iII")


class Accepted(NamedTuple):
    """A connection whose other end knows the secret."""

    connection: socket.socket
    said: bytes


class Refused(ConnectionError):
    """The other end does not know the secret, or belongs to another user."""


class _Pending:
    """A connection that has not answered its challenge."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.challenge = secrets.token_bytes(_NONCE)
        self.received = b""
        self.since = time.monotonic()


class Acceptor:
    """Accept connections in a thread, and keep those whose other end knows the secret.

    Args:
        listeners: Sockets that listen. They are closed with the acceptor.
        key: The secret.
        length: Length of the message of a connecting process in bytes, equal for all.

    >>> listener = socket.create_server(("127.0.0.1", 0))
    >>> with Acceptor([listener], b"secret", 5) as acceptor:
    ...     caller = socket.create_connection(listener.getsockname())
    ...     dial(caller, b"secret", b"hello", time.monotonic() + 10.0)
    ...     accepted = acceptor.wait(10.0)
    >>> accepted.said, accepted.connection.close(), caller.close()
    (b'hello', None, None)
    """

    def __init__(self, listeners: Sequence[socket.socket], key: bytes, length: int) -> None:
        self._key, self._length = key, length
        self._listeners = list(listeners)
        self._pending: dict[socket.socket, _Pending] = {}
        self._accepted: queue.SimpleQueue[Accepted | None] = queue.SimpleQueue()
        self._failure = ""
        self._closed = False
        self._process = os.getpid()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = _PENDING if limit < 0 else max(8, min(_PENDING, limit // 8))
        self._selector = selectors.PollSelector()  # unlike epoll, it needs no descriptor
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="tacos accept", daemon=True)
        if self._listeners:
            self._thread.start()

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
        """Return the next accepted connection, or None if there is none within that time.

        Raises:
            CommunicationError: The process has run out of file descriptors.
        """
        try:
            found = self._accepted.get(timeout=max(0.0, seconds))
        except queue.Empty:
            found = None
        if found is None and self._failure:
            why, self._failure = self._failure, ""
            raise CommunicationError(why)
        return found

    def close(self) -> None:
        """Close the listeners and all connections that nothing has asked for."""
        self._closed = True
        if os.getpid() == self._process:  # a forked process has the sockets but not the thread
            for listener in self._listeners:
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
            if self._thread.is_alive():
                self._thread.join()
        for one in (*self._listeners, *self._pending):
            one.close()
        self._pending.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                found = self._accepted.get_nowait()
                if found is not None:
                    found.connection.close()

    def _serve(self) -> None:
        while not self._closed:
            ready = self._selector.select(1.0 if self._pending else None)
            if self._closed:
                return
            for key, _ in ready:
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if found in self._pending:
                    self._hear(self._pending[found])
                elif any(found is listener for listener in self._listeners):
                    for _ in range(_BATCH):
                        if not self._accept(found):
                            break
            latest = time.monotonic() - _PATIENCE_S
            for one in [one for one, it in self._pending.items() if it.since < latest]:
                self._drop(one)

    def _accept(self, listener: socket.socket) -> bool:
        """Accept a connection; return False if there was none."""
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._make_room()
            elif error.errno in _NO_MEMORY:
                time.sleep(_PAUSE_S)
            return False  # none, or the other end has closed it again
        if not _same_user(connection):
            connection.close()
            return True
        connection.setblocking(False)
        pending = self._pending[connection] = _Pending(connection)
        self._selector.register(connection, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            connection.send(_MAGIC + pending.challenge)
        if len(self._pending) > self._most:
            # Ranks answer at once, so the connection that was silent longest is unlikely to be a rank.
            self._drop(next(iter(self._pending)))
        return True

    def _make_room(self) -> None:
        """Close silent connections; if there are none, record the error."""
        if self._pending:
            self._drop(next(iter(self._pending)))
            return
        self._failure = exhausted("accept a connection")
        self._accepted.put(None)
        time.sleep(_PAUSE_S)

    def _hear(self, pending: _Pending) -> None:
        wanted = len(_MAGIC) + _NONCE + self._length + _PROOF
        try:
            piece = pending.connection.recv(wanted - len(pending.received))
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        pending.received += piece
        if not piece or not _MAGIC.startswith(pending.received[: len(_MAGIC)]):
            self._drop(pending.connection)
        elif len(pending.received) == wanted:
            self._check(pending)

    def _check(self, pending: _Pending) -> None:
        proof = pending.received[-_PROOF:]
        content = pending.challenge + pending.received[len(_MAGIC) : -_PROOF]
        if not hmac.compare_digest(proof, _digest(self._key, b"dial", content)):
            with contextlib.suppress(OSError):
                pending.connection.send(_REFUSAL)
            self._drop(pending.connection)
            return
        self._selector.unregister(pending.connection)
        del self._pending[pending.connection]
        try:
            pending.connection.send(_digest(self._key, b"accept", content))
        except OSError:  # it has closed the connection
            pending.connection.close()
            return
        self._accepted.put(Accepted(pending.connection, content[2 * _NONCE :]))

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._pending[connection]
        connection.close()


def dial(connection: socket.socket, key: bytes, words: bytes, deadline: float) -> None:
    """Make the handshake on a connected socket, as the connecting process.

    Args:
        connection: The socket; it is left blocking, without a timeout.
        key: The secret.
        words: The message to the listener.
        deadline: When to give up, by ``time.monotonic()``.

    Raises:
        Refused: The other end does not know the secret, or belongs to another user.
        ConnectionError: The other end closed the connection, as it does if too many are pending.
        OSError: Another error of the network, or the deadline has passed.
    """
    if not _same_user(connection):
        raise Refused("the socket belongs to another user")
    greeting = _read(connection, len(_MAGIC) + _NONCE, deadline)
    if not greeting.startswith(_MAGIC):
        raise Refused("what listens there is not a rank of this version of TACOS")
    own = secrets.token_bytes(_NONCE)
    content = greeting[len(_MAGIC) :] + own + words
    connection.sendall(_MAGIC + own + words + _digest(key, b"dial", content))
    proof = _read(connection, _PROOF, deadline)
    if not hmac.compare_digest(proof, _digest(key, b"accept", content)):
        raise Refused("the ranks do not have the same TACOS_TOKEN")
    connection.settimeout(None)


def exhausted(doing: str) -> str:
    """Return the sentence for a process that has run out of file descriptors."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"this process has no file descriptors left to {doing}: its limit is {limit}; raise it with "
        "ulimit -n"
    )


def _same_user(connection: socket.socket) -> bool:
    """Return whether the other end of a Unix socket belongs to the same user; True for all other sockets."""
    if connection.family != socket.AF_UNIX:
        return True
    try:
        answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return False
    return bool(_CREDENTIALS.unpack(answer)[1] == os.geteuid())


def _digest(key: bytes, purpose: bytes, content: bytes) -> bytes:
    return hmac.digest(key, purpose + content, "sha256")


def _read(connection: socket.socket, length: int, deadline: float) -> bytes:
    data = b""
    while len(data) < length:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        piece = connection.recv(length - len(data))
        if not piece:
            raise ConnectionError("it closed the connection before the handshake was complete")
        data += piece
    return data
