"""Probe avoided links with short messages until they recover.

Every rank that heals listens for probes, and probes its own links in a thread. A message is long enough to measure a link's speed
and short enough not to disturb other traffic. Its receiver measures the speed and sends it back.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from tacos.runtime.rendezvous.addresses import listening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tacos.runtime.healing.diagnosis import Pair

__all__ = ["BETTER", "Prober"]

_HELLO = struct.Struct("!16sI")
_ANSWER = struct.Struct("!d")
_SIZES = (64 << 10, 256 << 10)
"""Sizes of probes in bytes: a short one for slow links."""
_UNTIMED = 3 / 8
"""First bytes of a probe that are not measured, since a link's buffer may pass them at once."""
_SHORT_S = 0.05
BETTER = 1.5
"""Factor over a link's last known speed from which the ranks are to meet."""
_PATIENCE_S = 2.0
_PAUSE_S = 0.5
_EAGER = 120
"""Number of rounds in quick succession before they become rare."""
_SELDOM = 10
"""Number of later rounds in which each link is probed once."""
_SPARING = 4
"""Number of later rounds in which a link that carries data is probed once."""
_GUESTS = 64
"""Most probes that are measured at once; a probe that had to wait would seem faster than its link."""


class Prober:
    """Answer other ranks' probes, and probe this rank's own links.

    Args:
        host: Address to listen at; empty for all addresses.
        found: Called in the prober's thread when the speed of some link has changed, see ``news``.

    Attributes:
        port: Port that it listens at.
        token: What a probe must begin with.
        news: Speeds that probes have shown, in bytes per second.
    """

    def __init__(self, host: str, found: Callable[[], None]) -> None:
        self._listener = listening(host)
        self._listener.settimeout(0.5)
        self.port: int = self._listener.getsockname()[1]
        self.token = secrets.token_bytes(16)
        self.news: dict[Pair, float] = {}
        self._found = found
        self._targets: dict[Pair, tuple[str, int, bytes, float, float]] = {}
        self._busy: set[Pair] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._room = threading.Semaphore(_GUESTS)
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start answering probes of other ranks."""
        if not self._threads:
            self._run(self._answer)
            self._run(self._probe)

    def aim(self, targets: Iterable[tuple[Pair, str, int, bytes, float, float]]) -> None:
        """Probe only these links: each with its peer's host, port and token, its last known speed, and what would be news."""
        with self._lock:
            self._targets = {pair: rest for pair, *rest in targets}  # type: ignore[misc]
            self.news.clear()

    def forget(self) -> None:
        """Forget the speeds that probes have shown, since the ranks have heard of them."""
        with self._lock:
            self.news.clear()

    def spare(self, busy: set[Pair]) -> None:
        """Probe these links less often, since data move over them."""
        self._busy = busy

    def close(self) -> None:
        """Stop the threads."""
        self._closed.set()
        self._listener.close()
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    def _run(self, what: Callable[[], None]) -> None:
        thread = threading.Thread(target=what, name="tacos probes", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _answer(self) -> None:
        while not self._closed.is_set():
            try:
                guest, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # closed
                return
            if not self._room.acquire(blocking=False):
                guest.close()
                continue
            threading.Thread(
                target=self._serve, args=(guest,), name="tacos probe", daemon=True
            ).start()

    def _serve(self, guest: socket.socket) -> None:
        try:
            with guest, contextlib.suppress(OSError):
                self._measure(guest)
        finally:
            self._room.release()

    def _measure(self, guest: socket.socket) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        token, size = _HELLO.unpack(_taken(guest, _HELLO.size, deadline))
        if not secrets.compare_digest(token, self.token) or size not in _SIZES:
            return
        deadline += _PATIENCE_S  # time to send, then time to wait
        first = int(size * _UNTIMED)
        _taken(guest, first, deadline)
        begin = time.perf_counter()
        _taken(guest, size - first, deadline)
        guest.sendall(_ANSWER.pack((size - first) / (time.perf_counter() - begin)))

    def _probe(self) -> None:
        rounds = 0
        while not self._closed.wait(_PAUSE_S):
            with self._lock:
                targets = dict(self._targets)
            rounds = rounds + 1 if targets else 0
            for pair, (host, port, token, held, news) in targets.items():
                often = _SPARING if pair in self._busy else 1
                if rounds % (often if rounds < _EAGER else _SELDOM):
                    continue
                size = _SIZES[held * _SHORT_S > _SIZES[0] or not held]
                speed = _tried(host, port, token, size)
                if speed > news:
                    with self._lock:
                        if pair not in self._targets:
                            continue
                        self.news[pair] = speed
                    self._found()


def _tried(host: str, port: int, token: bytes, size: int) -> float:
    """Return the speed of the path to a rank; 0 if there is no path."""
    try:
        with socket.create_connection((host, port), timeout=_PAUSE_S) as way:
            way.settimeout(_PATIENCE_S)
            way.sendall(_HELLO.pack(token, size) + bytes(size))
            deadline = time.monotonic() + _PATIENCE_S
            (speed,) = _ANSWER.unpack(_taken(way, _ANSWER.size, deadline))
            return (
                float(speed) if math.isfinite(speed) else 0.0
            )  # another process may listen there now
    except OSError:
        return 0.0


def _taken(guest: socket.socket, size: int, deadline: float) -> bytes:
    """Read this many bytes, until a deadline by ``time.monotonic()``."""
    data = bytearray()
    while len(data) < size:
        guest.settimeout(max(0.001, deadline - time.monotonic()))
        piece = guest.recv(min(size - len(data), 1 << 16))
        if not piece:
            raise ConnectionError
        data += piece
    return bytes(data)
