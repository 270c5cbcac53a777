"""A rendezvous at rank 0, over TCP."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from tacos.errors import CommunicationError
from tacos.runtime.rendezvous.addresses import listening
from tacos.runtime.rendezvous.handshake import Acceptor, Refused, dial
from tacos.runtime.rendezvous.waiting import LONGEST_S, Doubt, Patience, named

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TcpRendezvous"]

_HEAD = struct.Struct("!4sIII")
_MAGIC, _FAILURE = b"tcs1", b"tcs!"
_HELLO = struct.Struct("!II")  # rank and number of ranks
_LARGEST = 1 << 28
"""Most bytes of a rank's value."""
_LONGEST_NAME = 1 << 12
_REFUSED_S = 1.0
"""Seconds for which a rank retries after a wrong token, since another job may have listened there."""
_STALE_S = 90.0
"""The same if the token is in a file: network file systems may show old contents for up to a minute."""
_LOOK_S = 0.5
"""Seconds that a rank waits for others before it checks for failures."""


class TcpRendezvous:
    """A rendezvous at rank 0, which listens at a known address.

    Args:
        rank: This process's number.
        size: The number of ranks.
        host: Host of rank 0.
        port: Port at which rank 0 listens.
        timeout: Seconds to wait for the others.
        listener: The socket that rank 0 listens on, if the caller has one.
        token: A secret that only the ranks of this job know; or a function
            that returns it, called whenever this rank connects.

    Attributes:
        secret: The token with which the ranks connected; a job of one rank needs none.

    Raises:
        TimeoutError: Some ranks did not connect; the message names them.

    >>> alone = TcpRendezvous(0, 1, "127.0.0.1", 0)
    >>> alone.exchange("greeting", b"hello")
    [b'hello']
    >>> alone.close()
    """

    def __init__(
        self,
        rank: int,
        size: int,
        host: str,
        port: int,
        *,
        timeout: float = 300.0,
        listener: socket.socket | None = None,
        token: str | Callable[[], str] = "",
    ) -> None:
        if size < 1 or not 0 <= rank < size:
            raise ValueError(f"rank is {rank} of {size}; it must be 0 to size - 1")
        self.rank, self.size = rank, size
        self.while_waiting: Callable[[], str] = str
        self._timeout = min(timeout, LONGEST_S)
        self._token = token if callable(token) else lambda: token
        self._doubt_s = _STALE_S if callable(token) else _REFUSED_S
        self.secret = ""
        self._peers: dict[int, socket.socket] = {}
        if size == 1:
            if listener is not None:
                listener.close()
        elif rank == 0:
            try:
                self._welcome(listener or _listening(host, port))
            except BaseException:
                self.close()
                raise
        else:
            self._peers[0] = self._arrive(host, port)

    def exchange(self, name: str, value: bytes) -> list[bytes]:
        """Return the values of all ranks, in rank order."""
        if self.size == 1:
            return [value]
        deadline = time.monotonic() + self._timeout
        if self.rank != 0:
            deadline += 1.0  # wait longer than rank 0, which knows the missing ranks
            _send(self._peers[0], name, [value], deadline)
            with selectors.DefaultSelector() as selector:
                selector.register(self._peers[0], selectors.EVENT_READ)
                self._ready(selector, deadline)
            return self._receive(0, name, deadline)
        try:
            everything = self._gather(name, value, deadline)
        except (TimeoutError, CommunicationError) as error:
            for connection in self._peers.values():
                _send(connection, name, [str(error).encode()], deadline + 1.0, _FAILURE)
            raise
        for connection in self._peers.values():
            _send(connection, name, everything, deadline)
        return everything

    def _gather(self, name: str, value: bytes, deadline: float) -> list[bytes]:
        values: list[bytes | None] = [value] + [None] * (self.size - 1)
        with selectors.DefaultSelector() as selector:
            for peer, connection in self._peers.items():
                selector.register(connection, selectors.EVENT_READ, peer)
            patience = Patience(name)
            while missing := [peer for peer in self._peers if values[peer] is None]:
                ready = self._ready(
                    selector, deadline, partial(patience.look, partial(list, missing))
                )
                if not ready:
                    raise TimeoutError(
                        f"{named(missing)} did not come to exchange {name!r} "
                        f"within {self._timeout:g} s"
                    )
                for key, _ in ready:
                    [values[key.data]] = self._receive(key.data, name, deadline)
                    selector.unregister(key.fileobj)
        return [v for v in values if v is not None]

    def _ready(
        self,
        selector: selectors.BaseSelector,
        deadline: float,
        report: Callable[[], object] = bool,
    ) -> list[Any]:
        """Return the connections with input; none on timeout."""
        doubt = Doubt()
        while True:
            left = max(0.0, deadline - time.monotonic())
            ready = selector.select(min(left, _LOOK_S))
            if ready or left == 0:
                return ready
            doubt.hear(self.while_waiting())
            report()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._peers.values():
            connection.close()
        self._peers.clear()

    def _welcome(self, listener: socket.socket) -> None:
        deadline = time.monotonic() + self._timeout
        refused = ""
        self.secret = self._token()
        with Acceptor([listener], self.secret.encode(), _HELLO.size) as acceptor:
            while len(self._peers) < self.size - 1:
                accepted = acceptor.wait(max(0.0, deadline - time.monotonic()))
                if accepted is None:
                    missing = [r for r in range(1, self.size) if r not in self._peers]
                    raise TimeoutError(
                        f"{named(missing)} did not come to rank 0 within {self._timeout:g} s{refused}"
                    )
                peer, size = _HELLO.unpack(accepted.said)
                connection = accepted.connection
                connection.setblocking(True)
                if size == self.size and 0 < peer < self.size and peer not in self._peers:
                    self._peers[peer] = connection
                    continue
                again = ", for the second time" if peer in self._peers else ""
                why = f"rank {peer} of {size} came to rank 0 of {self.size}{again}"
                _send(connection, "", [why.encode()], time.monotonic() + 1.0, _FAILURE)
                connection.close()
                refused = f"; {why}"

    def _arrive(self, host: str, port: int) -> socket.socket:
        """Connect to rank 0, which may not have started yet; another job may listen there meanwhile."""
        deadline = time.monotonic() + self._timeout
        pause, refused = 0.01, Doubt(self._doubt_s)
        while True:
            connection = None
            try:
                connection = socket.create_connection((host, port), timeout=5.0)
                if connection.getsockname() == connection.getpeername():
                    raise ConnectionError("met itself, by chance")
                words = _HELLO.pack(self.rank, self.size)
                self.secret = self._token()
                dial(connection, self.secret.encode(), words, deadline)
            except OSError as error:
                if connection is not None:
                    connection.close()
                why = f"rank 0 at {host}:{port} refused rank {self.rank}: {error}"
                refused.hear(why if isinstance(error, Refused) else "")
                if time.monotonic() + pause > deadline:
                    raise TimeoutError(
                        f"rank 0 did not answer at {host}:{port} within {self._timeout:g} s ({error})"
                    ) from None
                time.sleep(pause)
                pause = min(0.5, pause * 1.5)
            else:
                return connection

    def _receive(self, peer: int, name: str, deadline: float) -> list[bytes]:
        connection = self._peers[peer]
        try:
            magic, length, count, _ = _HEAD.unpack(_read(connection, _HEAD.size, deadline))
            if magic not in (_MAGIC, _FAILURE) or length > _LONGEST_NAME or count > self.size:
                raise CommunicationError(f"rank {peer} sent a malformed message")
            theirs = _read(connection, length, deadline).decode()
            lengths = struct.unpack(f"!{count}I", _read(connection, 4 * count, deadline))
            if sum(lengths) > _LARGEST * (1 if self.rank == 0 else self.size):
                raise CommunicationError(
                    f"rank {peer} sent a message of {sum(lengths)} bytes, which is too large"
                )
            values = [_read(connection, n, deadline) for n in lengths]
        except TimeoutError:
            raise TimeoutError(
                f"rank {peer} did not exchange {name!r} within {self._timeout:g} s"
            ) from None
        except OSError as error:
            raise CommunicationError(
                f"rank {peer} left while {name!r} was exchanged: {error}"
            ) from None
        if magic == _FAILURE:
            raise CommunicationError(values[0].decode())
        if theirs != name:
            raise CommunicationError(
                f"the ranks do not agree: rank {peer} exchanges {theirs!r}, rank {self.rank} {name!r}"
            )
        return values


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at that address or, if it does not belong to this machine, at all addresses."""
    try:
        try:
            return listening(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
            return listening("", port)
    except OSError as error:
        raise CommunicationError(f"rank 0 cannot listen at port {port}: {error}") from None


def _send(
    connection: socket.socket,
    name: str,
    values: list[bytes],
    deadline: float,
    magic: bytes = _MAGIC,
) -> None:
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    label = name.encode()
    lengths = struct.pack(f"!{len(values)}I", *map(len, values))
    with contextlib.suppress(OSError):  # the next read reports the error
        connection.sendall(
            b"".join([_HEAD.pack(magic, len(label), len(values), 0), label, lengths, *values])
        )


def _read(connection: socket.socket, length: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < length:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        piece = connection.recv(min(length - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("the connection was closed")
        data += piece
    return bytes(data)
