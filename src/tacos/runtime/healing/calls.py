"""Collectives that survive network faults: they avoid slow and dead links until these recover.

A :class:`Healer` makes the calls of one communicator. When a rank notices that a link has become slow, it sets a flag in its next
messages. The flag spreads with the data of that call, so all ranks have it when the call ends, and then synchronize. Each reports
its measurements, and all draw the same conclusion (:mod:`tacos.runtime.healing.diagnosis`). From the next call on they use algorithms
that rank 0 synthesizes for the remaining network. Algorithms for the whole network are kept until
:mod:`tacos.runtime.healing.probes` notices that the links have recovered. A dead link ends the current call; the ranks synchronize,
reconnect, and repeat the call from its inputs.
"""

from __future__ import annotations

import ctypes
import logging
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tacos._support.variables import read
from tacos.errors import CommunicationError
from tacos.runtime.carriers import Call
from tacos.runtime.carriers.tcp import Tcp
from tacos.runtime.flight import bytes_of
from tacos.runtime.healing.diagnosis import (
    AVOIDED,
    WELL,
    Belief,
    Pair,
    RankReport,
    diagnosed,
    left,
    links_of,
)
from tacos.runtime.healing.notices import LOG, Notice, tell
from tacos.runtime.healing.probes import BETTER, Prober
from tacos.runtime.rendezvous.addresses import own_address

if TYPE_CHECKING:
    from tacos._core import Topology
    from tacos.runtime.algorithm import Algorithm
    from tacos.runtime.dispatch.algorithms import Algorithms

__all__ = ["Healer", "Request"]

_LOOK_S = 0.25
"""Seconds between checks of the speeds of degraded links."""


class Request(NamedTuple):
    """A collective that was requested."""

    kind: str
    size_bytes: int
    in_place: bool
    root: int
    ordered: bool
    source: int
    target: int
    elements: int
    dtype: str
    op: str


class _Kept:
    """A copy of a rank's input to a call, so that the call can be repeated."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self._memory = bytearray()
        self._bytes = 0

    def keep(self, request: Request, size: int) -> None:
        """Copy the input."""
        if len(self._memory) < size:
            self._memory = bytearray(size)
        if size:
            ctypes.memmove(self.address, request.source, size)
        self.request, self._bytes = request, size

    @property
    def address(self) -> int:
        """Return the address of the copy."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) if self._memory else 0

    def put_back(self) -> None:
        """Restore the caller's memory from the copy, since a call in place has overwritten it."""
        request = self.request
        assert request is not None
        if self._bytes:
            ctypes.memmove(request.source, self.address, self._bytes)


class Healer:
    """Make the calls of a communicator over TCP; all ranks need a healer, and make the same calls in the same order.

    Args:
        algorithms: The algorithm for each call; must have the network's topology.

    Attributes:
        belief: Slow and dead links as far as known; empty if there are none.

    Raises:
        ValueError: The topology is unknown, or the data do not go over TCP.
    """

    def __init__(self, algorithms: Algorithms) -> None:
        self._algorithms, self._communicator = algorithms, algorithms.communicator
        network = algorithms.settings.topology
        if network is None:
            raise ValueError("TACOS_ADAPT needs TACOS_TOPOLOGY, the network to synthesize for")
        if self._communicator.carrier != "tcp":
            raise ValueError(
                f"TACOS_ADAPT needs the carrier tcp, not {self._communicator.carrier}: others do not watch links"
            )
        self._network: Topology = network
        self.belief = Belief()
        self._meetings = 0
        self._finished = 0
        self._last, self._this = _Kept(), _Kept()
        self._again = False
        self._slow_ranks: list[int] = []
        self._looked = 0.0
        self._heard: dict[Pair, int] = {}
        # Probes use the same paths as data.
        everywhere = read("TACOS_ADDRESSES") and not self._carrier.local
        host = "127.0.0.1" if self._carrier.local else own_address()
        self._prober = Prober("" if everywhere else host, self._want_meeting)
        card = msgspec.json.encode([self._prober.port, self._prober.token.hex()])
        try:
            cards = self._communicator.exchange("probes", card)
            self._cards = [msgspec.json.decode(text, type=tuple[int, str]) for text in cards]
        except BaseException:
            self._prober.close()
            raise
        self._endpoint = self._carrier.endpoint
        self._endpoint.heal()

    def close(self) -> None:
        """Stop the threads that probe links."""
        self._prober.close()

    def run(self, request: Request) -> None:
        """Run a collective, and route around dead links.

        Raises:
            CommunicationError: A rank failed, or the call could not be repeated; the message is the same on all ranks.
        """
        again = False
        while True:
            try:
                if self._again:
                    self._repeat_last()
                algorithm = self._algorithm(request)
                if again:
                    self._this.put_back()
                else:
                    self._this.keep(request, self._input_bytes(algorithm, request))
                self._run(algorithm, request, request.source, request.target)
                break
            except CommunicationError as error:
                if self._carrier.broken is None:
                    raise
                again = self._this.request is request
                self._repair(str(error))
        self._finished += 1
        self._last, self._this = self._this, self._last
        self._this.request = None
        if self._communicator.meeting:
            self._meet()
        elif self.belief.shares:
            self._look()

    # --- calls

    @property
    def _carrier(self) -> Tcp:
        carrier = self._communicator.open("tcp")
        assert isinstance(carrier, Tcp)
        return carrier

    def _algorithm(self, request: Request) -> Algorithm:
        return self._algorithms.get(
            request.kind, request.size_bytes, request.in_place, request.root, request.ordered, "tcp"
        )

    def _input_bytes(self, algorithm: Algorithm, request: Request) -> int:
        """Return the bytes of input to keep; 0 if all ranks share a machine, where no link can fail."""
        if not request.source or self._carrier.local:
            return 0
        elements, _ = algorithm.buffer_elements(request.elements)
        return elements * _width(request)

    def _run(self, algorithm: Algorithm, request: Request, source: int, target: int) -> None:
        algorithm.run_at(source, target, request.elements, request.dtype, request.op)

    def _repeat_last(self) -> None:
        """Repeat the previous call for ranks that have not finished it; its result is discarded on this rank."""
        request = self._last.request
        assert request is not None
        algorithm = self._algorithm(request)
        inputs, outputs = algorithm.buffer_elements(request.elements)
        scratch = bytearray(max(1, outputs * _width(request)))
        target = ctypes.addressof(ctypes.c_char.from_buffer(scratch)) if outputs else 0
        self._run(algorithm, request, self._last.address if inputs else 0, target)
        self._again = False
        if self._communicator.meeting:  # the other ranks meet after this call
            self._meet()

    # --- meetings

    def _want_meeting(self) -> None:
        self._endpoint.call_meeting()  # of the carrier that is open now

    def _report(self) -> RankReport:
        me = self._communicator.rank
        speeds = [
            (
                *((me, link["peer"]) if link["outgoing"] else (link["peer"], me)),
                *(link["channel"], link["rate"], link["usual"], link["state"]),
            )
            for link in self._carrier.figures()["links"]
            if link["usual"] > 0
        ]
        probes = [(*pair, speed) for pair, speed in dict(self._prober.news).items()]
        return RankReport(speeds, probes)

    def _exchanged(self, what: str, report: RankReport) -> list[RankReport]:
        self._meetings += 1
        name = f"{what} {self._meetings}"
        answers = self._communicator.exchange(name, msgspec.json.encode(report))
        return [msgspec.json.decode(answer, type=RankReport) for answer in answers]

    def _meet(self) -> None:
        """Agree on the state of the network, and change algorithms if it has changed."""
        self._communicator.meeting = False
        self._follow(self._exchanged("healing", self._report()))

    def _follow(self, reports: list[RankReport]) -> None:
        diagnosis = diagnosed(self._network, self._algorithms.npus, self.belief, reports)
        self._prober.forget()
        if diagnosis.slow_ranks != self._slow_ranks:
            self._slow_ranks = diagnosis.slow_ranks
            for rank in diagnosis.slow_ranks:
                number = self._number(rank)
                text = f"rank {number} is slow: all its links are, and so they are not avoided"
                tell(Notice("slow rank", text, number, number), self._level)
        for pair in diagnosis.unexplained:
            LOG.info("%s is slow, but all links on its way serve others well", self._named(pair))
        if dict(diagnosis.belief.shares) == dict(self.belief.shares):
            return
        self._switch(diagnosis.belief)

    def _switch(self, belief: Belief) -> None:
        """From the next call on, use algorithms for the remaining network."""
        shares = belief.shares
        try:
            rest = left(self._network, shares)
        except ValueError as error:
            raise CommunicationError(f"there is no way around the dead links: {error}") from None
        before, self.belief = self.belief, belief
        unused = {link for link, share in shares.items() if share <= AVOIDED}
        npus = self._algorithms.npus

        def no_way(src: int, dst: int, channel: int) -> bool:
            return not unused.isdisjoint(links_of(self._network, npus, Pair(src, dst, channel)))

        self._algorithms.serve(rest.network, rest.links, no_way if unused else None)
        me = self._communicator.rank
        for link, pair in {**before.pairs, **belief.pairs}.items():
            if me in (pair.src, pair.dst):
                share = shares.get(link)
                rate = belief.usual.get(pair, 0.0) * (share or 0.0)
                peer, out = (pair.dst, True) if pair.src == me else (pair.src, False)
                self._endpoint.expect(peer, pair.channel, out, rate, known=rate > 0)
        self._aim()
        if not shares:
            text = "all links have recovered: the algorithms for the whole network serve again"
            tell(Notice("restored", text), self._level)
            return
        parts = [
            f"the link from {self._named(belief.pairs[link])} "
            + (f"has {100 * share:.2g} % of its bandwidth" if share else "is dead")
            for link, share in sorted(shares.items())
        ]
        text = f"{', '.join(parts)}: algorithms for what is left serve from now on"
        first = belief.pairs[min(shares)]
        tell(Notice("adapted", text, self._number(first.src), self._number(first.dst)), self._level)

    def _aim(self) -> None:
        """Probe the degraded links of this rank."""
        me, belief = self._communicator.rank, self.belief
        targets = []
        for link, pair in belief.pairs.items():
            if pair.src == me:
                port, token = self._cards[pair.dst]
                host = self._carrier.address(pair.dst, pair.channel)
                usual = belief.usual.get(pair, 0.0)
                held = usual * belief.shares[link]
                # A link that is nearly well can never be much better: that it is well is news, too.
                news = min(BETTER * held, WELL * usual)
                targets.append((pair, host, port, bytes.fromhex(token), held, news))
        if belief.shares:
            self._prober.start()
        self._prober.aim(targets)

    def _look(self) -> None:
        """Find the degraded links that carry data, which need not be probed."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        me = self._communicator.rank
        busy = set()
        for link in self._carrier.figures()["links"]:
            pair = Pair(me, link["peer"], link["channel"])
            if link["outgoing"] and link["messages"] != self._heard.get(pair, 0):
                self._heard[pair] = link["messages"]
                busy.add(pair)
        self._prober.spare(busy)

    # --- dead links

    def _repair(self, why: str) -> None:
        """Meet the other ranks, reconnect without the dead link, and agree on the call to repeat.

        Raises:
            CommunicationError: This is impossible; the message is the same on all ranks.
        """
        carrier = self._carrier
        broken = carrier.broken
        assert broken is not None
        number = tuple(map(self._number, broken))
        text = f"the link from rank {number[0]} to rank {number[1]} is dead; the call is repeated without it"
        tell(Notice("dead link", text, *number), self._level)
        LOG.info("%s", why)
        report = self._report()
        report.broken = [broken]
        report.finished = self._finished
        report.prepared = self._communicator.prepared
        self._communicator.let_go("tcp")
        reports = self._exchanged("repair", report)
        ends = [one.finished for one in reports]
        first, last = min(ends), max(ends)
        if last - first > 1:
            slow, fast = ends.index(first), ends.index(last)
            raise CommunicationError(
                f"{why}; the calls cannot be repeated: rank {self._number(fast)} has finished "
                f"{last - first} more than rank {self._number(slow)}"
            )
        self._communicator.prepared = max(one.prepared for one in reports)
        self._algorithms.forget("tcp")
        self._endpoint = self._carrier.endpoint  # of the carrier that this opens
        self._endpoint.heal()
        self._again = self._finished > first
        self._heard.clear()
        self._communicator.meeting = False
        self._follow(reports)

    # --- words

    @property
    def _level(self) -> int:
        """Return the log level: all ranks decide the same, so only one logs it visibly."""
        return logging.WARNING if self._communicator.rank == 0 else logging.INFO

    def _number(self, rank: int) -> int:
        members = self._communicator.members
        return rank if members is None else members[rank]

    def _named(self, pair: Pair) -> str:
        return f"rank {self._number(pair.src)} to rank {self._number(pair.dst)}"


def _width(request: Request) -> int:
    return bytes_of(Call(0, 0, 1, request.dtype, request.op))
