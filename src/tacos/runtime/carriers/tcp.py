"""Carries data over TCP, and over Unix sockets between ranks of one machine."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tacos._core import Endpoint
from tacos.collective import kind_of
from tacos.errors import CommunicationError
from tacos.runtime.carriers import Carrier
from tacos.runtime.rendezvous.door import Door
from tacos.runtime.rendezvous.waiting import LONGEST_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos._core import RankExecutor
    from tacos.runtime.carriers import Call, Meeting, Prepared
    from tacos.runtime.rendezvous import Rendezvous

__all__ = ["Tcp", "open_carrier"]

_HELLO = struct.Struct("!16sIII")
_JOINT = ("all_gather", "reduce_scatter", "all_to_all")
_LOOK_S = 0.5
"""How long a rank waits for others to connect before it looks around."""


def open_carrier(meeting: Meeting) -> Tcp:
    """Listen, and tell the peers where."""
    return Tcp(meeting.rendezvous, timeout=meeting.timeout, members=meeting.members)


class Tcp(Carrier):
    """A rank's connections; the core moves the data.

    ``TACOS_HOST`` is the address or name to listen at and be reached at (default: all, and the
    host's); where machines have several networks, ``TACOS_ADDRESSES`` (JSON, or a file of it) says
    where this rank reaches its peers, channel by channel: ``{"1": ["10.0.0.2", "10.1.0.2"]}``. Either
    of them means TCP; without them, ranks of one machine use Unix sockets.
    """

    def __init__(
        self, rendezvous: Rendezvous, *, timeout: float, members: Sequence[int] | None = None
    ) -> None:
        self.rank, self.size = rendezvous.rank, rendezvous.size
        self.timeout = min(timeout, LONGEST_S)
        self._endpoint = Endpoint(self.rank, self.timeout)
        routes = _addresses(os.environ.get("TACOS_ADDRESSES"))
        numbers = range(self.size) if members is None else members
        self._routes = {i: routes[peer] for i, peer in enumerate(numbers) if peer in routes}
        host = os.environ.get("TACOS_HOST", "")
        token = secrets.token_hex(16)
        listeners = [socket.socket(socket.AF_INET, socket.SOCK_STREAM)]
        try:
            listeners[0].bind(("" if self._routes else host, 0))
            card = {
                "host": host or own_address(),
                "port": listeners[0].getsockname()[1],
                "machine": "" if host or self._routes else _machine(),
                "token": token,
            }
            if card["machine"]:  # ranks of one machine spare themselves half of the kernel's work
                listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                listeners[1].bind(_local_name(token))
            for listener in listeners:
                listener.listen(4096)
            cards = rendezvous.exchange("addresses", json.dumps(card).encode())
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        self._door = Door(listeners, _HELLO.size)
        self._cards: list[dict[str, Any]] = [json.loads(text) for text in cards]
        self._token = bytes.fromhex(self._cards[0]["token"])  # keeps strangers out

    @property
    def failure(self) -> str | None:
        """Why there is no way to the peers any more, or None."""
        return self._endpoint.failure or None

    def prepare(self, share: RankExecutor, number: int) -> Prepared:
        """Connect to all peers of a program that are not connected yet."""
        self._connect(share)
        return _Connected(self, share, number)

    def watch(self, number: int, doing: str) -> str:
        """Why some rank will not come to prepare an algorithm, or nothing."""
        return self._endpoint.watch(number, doing)

    def figures(self) -> dict[str, Any]:
        """What the endpoint counts."""
        endpoint = self._endpoint
        return {
            "links": endpoint.links(),
            "peers": endpoint.peers(),
            "calls": endpoint.calls(),
            "away_s": endpoint.away_s,
        }

    @property
    def broken(self) -> tuple[int, int] | None:
        """The dead link that has ended a call, from one rank to another."""
        src, dst = self._endpoint.broken
        return None if src < 0 else (src, dst)

    @property
    def local(self) -> bool:
        """Whether all ranks share this machine, and need no network."""
        return all(self._shares_machine(peer) for peer in range(self.size))

    @property
    def endpoint(self) -> Endpoint:
        """The rank's connections, in the core."""
        return self._endpoint

    def interrupt(self, why: str) -> None:
        """End the call that runs and all later ones; from any thread."""
        self._endpoint.interrupt(why)

    def abort(self, why: str) -> None:
        """Tell all connected peers that this rank gives up."""
        self._endpoint.abort(why)

    def close(self) -> None:
        """Close all connections."""
        self._endpoint.close()
        self._door.close()

    def address(self, peer: int, channel: int = 0) -> str:
        """The host at which this rank reaches another."""
        if peer in self._routes:
            return self._routes[peer][channel % len(self._routes[peer])]
        return "127.0.0.1" if self._shares_machine(peer) else str(self._cards[peer]["host"])

    def _shares_machine(self, peer: int) -> bool:
        own = self._cards[self.rank]["machine"]
        return bool(own) and own == self._cards[peer]["machine"]

    def _connect(self, execution: RankExecutor) -> None:
        """Connect to all this rank sends to, then wait for those it receives from.

        The kernel completes connections to a listening socket by itself, so no rank waits in a circle.
        """
        deadline = time.monotonic() + self.timeout
        for peer, channel in execution.sends_to:
            if not self._endpoint.has(peer, channel, outgoing=True):
                connection = self._dial(peer, channel, deadline)
                self._endpoint.add(peer, channel, True, connection.detach())
        missing = {
            port
            for port in execution.receives_from
            if not self._endpoint.has(*port, outgoing=False)
        }
        while missing:
            peer, channel, connection = self._answer(missing, deadline)
            self._endpoint.add(peer, channel, False, connection.detach())
            missing.discard((peer, channel))

    def _dial(self, peer: int, channel: int, deadline: float) -> socket.socket:
        card = self._cards[peer]
        local = bool(card["machine"]) and card["machine"] == self._cards[self.rank]["machine"]
        host = (
            self._routes[peer][channel % len(self._routes[peer])]
            if peer in self._routes
            else card["host"]
        )
        address = _local_name(card["token"]) if local else (host, card["port"])
        connection = socket.socket(socket.AF_UNIX if local else socket.AF_INET, socket.SOCK_STREAM)
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection.connect(address)
            connection.sendall(_HELLO.pack(self._token, self.rank, peer, channel))
        except OSError as error:
            connection.close()
            where = "on this machine" if local else f"at {host}:{card['port']}"
            self._give_up(f"rank {self.rank} cannot reach rank {peer} {where}: {error}")
        return connection

    def _answer(
        self, missing: set[tuple[int, int]], deadline: float
    ) -> tuple[int, int, socket.socket]:
        while True:
            left = deadline - time.monotonic()
            guest = self._door.wait(max(0.0, min(left, _LOOK_S)))
            if guest is not None:
                token, peer, me, channel = _HELLO.unpack(guest.greeting)
                if secrets.compare_digest(token, self._token) and me == self.rank:
                    return peer, channel, guest.connection
                guest.connection.close()
            elif left <= 0:
                peer, channel = min(missing)
                self._give_up(
                    f"rank {peer} did not connect to rank {self.rank} (channel {channel}) "
                    f"within {self.timeout:g} s"
                )
            else:
                self._endpoint.watch(0, "waits for others to connect")  # raises if one has failed

    def _give_up(self, why: str) -> NoReturn:
        self._endpoint.abort(why)
        raise CommunicationError(why)


class _Connected:
    """A program whose peers are connected."""

    def __init__(self, carrier: Tcp, share: RankExecutor, number: int) -> None:
        self._carrier, self._endpoint = carrier, carrier.endpoint
        self._share, self._number = share, number
        parts = share.program.collective.parts
        whole = len(parts) == 1 and len(parts[0].group) == share.program.ranks
        kind = kind_of(parts[0]).name if whole else ""
        # In these, what a rank gets depends on what every rank gives; the last three if no rank's part is empty.
        self._all_reduces = kind == "all_reduce"
        self._ranks = share.program.ranks if kind in _JOINT else 0

    def run(self, call: Call) -> None:
        """Run one call, without the GIL."""
        joint = self._all_reduces or (self._ranks > 0 and call.elements % self._ranks == 0)
        news = self._endpoint.run(self._share, self._number, *call, joint)
        if news and self._carrier.on_news is not None:
            self._carrier.on_news(news)


def _addresses(text: str | None) -> dict[int, list[str]]:
    """TACOS_ADDRESSES: where to reach each peer, channel by channel."""
    if not text:
        return {}
    try:
        if not text.lstrip().startswith("{"):
            text = Path(text).read_text()
        return {
            int(peer): [str(host) for host in hosts] for peer, hosts in json.loads(text).items()
        }
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"TACOS_ADDRESSES is {text[:80]!r}, it must be JSON such as "
            f'{{"1": ["10.0.0.2"]}} or a file of it ({error})'
        ) from None


def _local_name(token: str) -> str:
    """The address of a rank for those of its machine: a name that no file system has to hold."""
    return f"\0tacos-{token}"


@functools.cache
def _machine() -> str:
    """The same for processes that share a machine and its network namespace, or empty."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/net').stat().st_ino}"
    except OSError:
        return ""


def own_address() -> str:
    """An address at which other machines are likely to reach this one."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(name)
        if not address.startswith("127."):
            return address
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; asks for the route
        return str(probe.getsockname()[0])
    return "127.0.0.1"
