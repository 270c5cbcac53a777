"""The TCP carrier moves data over TCP, and over Unix sockets between ranks of one machine."""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import secrets
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from tacos._core import Endpoint
from tacos._support.log import LOG
from tacos._support.variables import read
from tacos.collective import kind_of
from tacos.errors import CommunicationError
from tacos.runtime.carriers import Carrier, described
from tacos.runtime.rendezvous.addresses import listening, machine, own_address, resolve
from tacos.runtime.rendezvous.handshake import Acceptor, Refused, dial, exhausted
from tacos.runtime.rendezvous.tcp import TcpRendezvous
from tacos.runtime.rendezvous.waiting import LONGEST_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos._core import RankExecutor
    from tacos.runtime.carriers import Call, Meeting, Prepared
    from tacos.runtime.rendezvous import Rendezvous

__all__ = ["Tcp", "open_carrier"]

_HELLO = struct.Struct("!III")  # the rank that dials, the rank it dials, and the channel
_REPORT_S = 30.0
"""Seconds that a rank waits in a call before it reports for which rank; then twice as long, and so on."""
_JOINT = ("all_gather", "reduce_scatter", "all_to_all")
_LOOK_S = 0.5
"""Seconds that a rank waits for others to connect before it checks for failures."""


def open_carrier(meeting: Meeting) -> Tcp:
    """Listen, and tell the peers the address."""
    return Tcp(meeting.rendezvous, timeout=meeting.timeout, members=meeting.members)


class _Card(msgspec.Struct):
    """What a rank tells its peers before they connect."""

    machine: str
    """Equal for ranks that can use Unix sockets between each other; empty: TCP."""
    name: str
    """Of the Unix socket: random, and unlike the salt no part of the secret."""
    salt: str
    error: str = ""


class Tcp(Carrier):
    """A rank's connections; the core moves the data.

    ``TACOS_HOST`` is the address, host name or interface to listen at and be reached at; where machines have
    several networks, ``TACOS_ADDRESSES`` (JSON, or a file of it) says where this rank reaches its peers, channel by
    channel: ``{"1": ["10.0.0.2", "10.1.0.2"]}``. Either of them means TCP; without them, ranks of one machine and user use
    Unix sockets, and where all ranks do, none listens on a network.
    """

    def __init__(
        self, rendezvous: Rendezvous, *, timeout: float, members: Sequence[int] | None = None
    ) -> None:
        self.rank, self.size = rendezvous.rank, rendezvous.size
        self.timeout = min(timeout, LONGEST_S)
        self._endpoint = Endpoint(
            self.rank, self.size, self.timeout, _REPORT_S, _say_who_is_missing
        )
        mine = _Card("", f"tacos-{secrets.token_hex(16)}", secrets.token_hex(16))
        self._routes: dict[int, list[str]] = {}
        self._ways_back: list[list[str]] = []  # where each peer reaches this rank
        host, listeners = "", []
        try:
            try:
                routes = _addresses(read("TACOS_ADDRESSES"))
                numbers = range(self.size) if members is None else members
                self._routes = {i: routes[peer] for i, peer in enumerate(numbers) if peer in routes}
                if self.size > 1:
                    host = own_address()
                if self.size > 1 and not read("TACOS_HOST") and not self._routes:
                    mine.machine = machine()
                if mine.machine:  # ranks of one machine spare themselves half of the kernel's work
                    listeners.append(_listening_locally(mine.name))
            except (OSError, ValueError) as error:
                mine.error = str(error)
            answers = rendezvous.exchange("machines", msgspec.json.encode(mine))
            self._cards = [msgspec.json.decode(text, type=_Card) for text in answers]
            self._check_cards()
            self._places = self._listen(rendezvous, host, listeners)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        # With a secret, it does not help to read what the ranks tell each other at the rendezvous.
        token = rendezvous.secret if isinstance(rendezvous, TcpRendezvous) else read("TACOS_TOKEN")
        salts = "".join(card.salt for card in self._cards)
        self._key = hmac.digest(token.encode(), salts.encode(), "sha256")
        self._acceptor = Acceptor(listeners, self._key, _HELLO.size)

    def _check_cards(self) -> None:
        for rank, card in enumerate(self._cards):
            if card.error:
                raise ValueError(card.error if rank == self.rank else f"rank {rank}: {card.error}")

    def _listen(
        self, rendezvous: Rendezvous, host: str, listeners: list[socket.socket]
    ) -> list[tuple[str, int]]:
        """Listen on a network if there are ranks on other machines; returns where all ranks do."""
        machines = {card.machine for card in self._cards}
        if self.size == 1 or (len(machines) == 1 and "" not in machines):
            return []
        place, error = ("", 0), ""
        try:
            # Peers with routes of their own reach this rank at several addresses.
            listeners.append(listening("" if self._routes else host))
            place = (host, listeners[-1].getsockname()[1])
        except OSError as failed:
            error = f"cannot listen at {host}: {failed}"
        mine = [*place, error, self._routes]
        answers = rendezvous.exchange("addresses", msgspec.json.encode(mine))
        places = []
        for rank, answer in enumerate(answers):
            peer_host, port, error, routes = msgspec.json.decode(
                answer, type=tuple[str, int, str, dict[int, list[str]]]
            )
            if error:
                raise CommunicationError(f"rank {rank} {error}")
            places.append((peer_host, port))
            self._ways_back.append(routes.get(self.rank, []))
        return places

    @property
    def failure(self) -> str | None:
        """Why there is no way to the peers any more, or None."""
        return self._endpoint.failure or None

    def prepare(self, share: RankExecutor, number: int) -> Prepared:
        """Connect to all peers of a program that are not connected yet."""
        self._endpoint.describe(number, described(share.program.collective))
        self._connect(share)
        return _Connected(self, share, number)

    records = True

    def hide(self, number: int) -> None:
        """Count no calls of the algorithm with this number."""
        self._endpoint.hide(number)

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
            "count": endpoint.listed,
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
        self._acceptor.close()

    def address(self, peer: int, channel: int = 0) -> str:
        """The host at which this rank reaches another."""
        if peer in self._routes:
            return self._routes[peer][channel % len(self._routes[peer])]
        return "127.0.0.1" if self._shares_machine(peer) else self._places[peer][0]

    def _shares_machine(self, peer: int) -> bool:
        own = self._cards[self.rank].machine
        return self.size == 1 or (bool(own) and own == self._cards[peer].machine)

    def _connect(self, execution: RankExecutor) -> None:
        """Connect to all peers with a greater number, then wait for the others.

        A connection serves both ways. Every rank accepts in a thread of its own, so none waits in a circle.
        """
        deadline = time.monotonic() + self.timeout
        ports = {*execution.sends_to, *execution.receives_from}
        missing = {port for port in ports if not self._endpoint.has(*port)}
        for peer, channel in sorted(port for port in missing if port[0] > self.rank):
            connection = self._dial(peer, channel, deadline)
            self._endpoint.add(peer, channel, connection.detach())
            missing.discard((peer, channel))
        while missing:
            peer, channel, connection = self._answer(missing, deadline)
            self._endpoint.add(peer, channel, connection.detach())
            missing.discard((peer, channel))

    def _dial(self, peer: int, channel: int, deadline: float) -> socket.socket:
        local = self._shares_machine(peer)
        if local:
            family: int = socket.AF_UNIX
            address: Any = f"\0{self._cards[peer].name}"
            where = "on this machine"
        else:
            host, port = self.address(peer, channel), self._places[peer][1]
            where = f"at {host} port {port}"
            try:
                family, address = resolve(host, port)
            except OSError as error:
                self._give_up(f"rank {self.rank} cannot reach rank {peer} {where}: {error}")
        words = _HELLO.pack(self.rank, peer, channel)
        pause = 0.001
        while True:
            connection = None
            try:
                connection = socket.socket(family, socket.SOCK_STREAM)
                if not local:
                    self._bind(connection, peer, channel)
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                connection.connect(address)
                dial(connection, self._key, words, deadline)
            except OSError as error:
                if connection is not None:
                    connection.close()
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._give_up(f"rank {self.rank}: {exhausted(f'connect to rank {peer}')}")
                # A rank that has too many silent connections closes some of them.
                again = isinstance(error, ConnectionError | BlockingIOError)
                again = again and not isinstance(error, Refused)
                if not again or time.monotonic() + pause > deadline or not self._retry(error):
                    self._give_up(f"rank {self.rank} cannot reach rank {peer} {where}: {error}")
                time.sleep(pause)
                pause = min(0.1, 2 * pause)
            else:
                return connection

    def _bind(self, connection: socket.socket, peer: int, channel: int) -> None:
        """Begin at the address at which the peer would reach this rank, so that its data take the way it has chosen."""
        hosts = self._ways_back[peer] or [read("TACOS_HOST") and self._places[self.rank][0]]
        if host := hosts[channel % len(hosts)]:
            with contextlib.suppress(OSError):  # not an address of this machine: any will do
                family, address = resolve(host, 0)
                if family == connection.family:
                    connection.bind(address)

    def _retry(self, error: OSError) -> bool:
        """Whether to dial again: not where nothing listens, and not if a rank has failed."""
        self._endpoint.watch(0, "connects to others")  # raises if one has failed
        return error.errno not in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)

    def _answer(
        self, missing: set[tuple[int, int]], deadline: float
    ) -> tuple[int, int, socket.socket]:
        while True:
            left = deadline - time.monotonic()
            try:
                accepted = self._acceptor.wait(max(0.0, min(left, _LOOK_S)))
            except CommunicationError as error:
                self._give_up(f"rank {self.rank}: {error}")
            if accepted is not None:
                peer, me, channel = _HELLO.unpack(accepted.said)
                if me == self.rank:
                    return peer, channel, accepted.connection
                accepted.connection.close()
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
        # Without elements there are no messages that could tell of a meeting.
        self._all_reduces = kind == "all_reduce"
        self._ranks = share.program.ranks if kind in _JOINT else 0

    def run(self, call: Call) -> None:
        """Run one call, without the GIL."""
        joint = self._all_reduces or (self._ranks > 0 and call.elements % self._ranks == 0)
        joint = joint and call.elements > 0
        news = self._endpoint.run(self._share, self._number, *call, joint)
        if news and self._carrier.on_news is not None:
            self._carrier.on_news(news)


def _addresses(text: str) -> dict[int, list[str]]:
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
            f"TACOS_ADDRESSES is {text[:80]!r}; it must be JSON such as "
            f'{{"1": ["10.0.0.2"]}} or a file of it ({error})'
        ) from None


def _say_who_is_missing(peer: int, collective: str, seconds: float) -> None:
    LOG.warning("still waiting for rank %d in %s, %.0f s", peer, collective, seconds)


def _listening_locally(name: str) -> socket.socket:
    """A Unix socket that no file system has to hold."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{name}")
        listener.listen(4096)
    except BaseException:
        listener.close()
        raise
    return listener
