"""Communicators: connected ranks, which prepare and run algorithms together over one or several carriers."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tacos._core import Collective, Program, RankExecutor, Schedule, fields
from tacos._support.log import set_level
from tacos._support.variables import read
from tacos.errors import CommunicationError, VerificationError
from tacos.program import FACTS, lower
from tacos.runtime.algorithm import Algorithm
from tacos.runtime.carriers import chosen, described, named
from tacos.runtime.flight import Recorder, record_to
from tacos.runtime.healing.notices import Notices, tell
from tacos.runtime.metrics import local_rank, serve, watched
from tacos.runtime.rendezvous import from_environment
from tacos.verify import verify as verify_algorithm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from tacos.runtime.carriers import Carrier, CarrierKind, Prepared
    from tacos.runtime.rendezvous import Rendezvous

__all__ = ["Communicator", "connect", "fingerprint"]


def connect(
    rendezvous: Rendezvous | None = None,
    *,
    timeout: float = 300.0,
    members: Sequence[int] | None = None,
    carrier: str | None = None,
) -> Communicator:
    """Connect to the other ranks of the job.

    Args:
        rendezvous: How the ranks find each other. Default: from the environment, see
            :func:`tacos.runtime.rendezvous.environment.from_environment`.
        timeout: Seconds that the ranks wait for each other, now and whenever a call makes no
            progress.
        members: The ranks' numbers in the whole job, if they are only a part of it; ``TACOS_ADDRESSES``
            uses these numbers.
        carrier: The name of the carrier that moves the data, one of :data:`tacos.runtime.carriers.CARRIERS`.
            Default: ``TACOS_CARRIER``, or ``tcp``.

    Raises:
        TimeoutError: Some ranks did not connect; the message names them.
        ValueError: There is no such carrier, or it cannot serve these ranks.

    >>> with connect() as comm:
    ...     comm.rank, comm.size, comm.carrier
    (0, 1, 'tcp')
    """
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout} s; it must be positive")
    kind = chosen() if carrier is None else named(carrier)
    meeting = rendezvous or from_environment(timeout=timeout)
    try:
        communicator = Communicator(meeting, timeout=timeout, members=members, carrier=kind.name)
    except BaseException:
        meeting.close()
        raise
    try:
        communicator.open()
    except BaseException:
        communicator.close()
        raise
    return communicator


class Communicator:
    """Connected ranks. All of them must prepare and run the same algorithms in the same order.

    :func:`connect` and :func:`tacos.runtime.mpi.connect` make communicators. A communicator opens a carrier when
    an algorithm first needs it.

    Args:
        rendezvous: How the ranks find each other.
        timeout: Seconds without progress after which a call fails.
        members: The ranks' numbers in the whole job, see :func:`connect`.
        carrier: The default carrier of algorithms. Default:
            ``TACOS_CARRIER`` if it moves host memory, or ``tcp``.
        opened: Carriers that are already open, by name.

    Attributes:
        carrier: The name of the default carrier.
        flight: The last calls.
        lock: Held during a call, since calls of several threads take turns.
        meeting: Whether a call has ended after which the ranks are to meet, see :mod:`tacos.runtime.healing`.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        *,
        timeout: float = 300.0,
        members: Sequence[int] | None = None,
        carrier: str | None = None,
        opened: Mapping[str, Carrier] | None = None,
    ) -> None:
        self.rank, self.size = rendezvous.rank, rendezvous.size
        self.timeout, self.members = timeout, members
        self.rendezvous = rendezvous
        self.carrier = chosen("host").name if carrier is None else named(carrier).name
        self._open: dict[str, Carrier] = dict(opened or {})
        rendezvous.while_waiting = self._look_around
        self.lock = threading.RLock()
        self._prepared = 0
        self._doing = ""
        self._ended = ""
        self.meeting = False
        numbers = list(range(self.size)) if members is None else list(members)
        self._notices = Notices(self.rank, numbers)
        self.flight = Recorder(self.rank, numbers, self.figures)
        set_level()
        if folder := read("TACOS_FLIGHT"):
            record_to(folder)
        watched(self)
        if where := read("TACOS_METRICS"):
            serve(where, local_rank())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, CommunicationError):
            self.give_up(f"rank {self.rank} failed: {type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return f"<tacos.Communicator rank {self.rank} of {self.size}>"

    @property
    def failure(self) -> str | None:
        """Why the communicator can no longer be used, or None."""
        failures = (carrier.failure for carrier in self._open.values())
        return next(filter(None, failures), self._ended) or None

    def open(self, name: str | None = None) -> Carrier:
        """Open the carrier with this name, by default ``carrier``; all ranks must call this together.

        Raises:
            ValueError: There is no such carrier, or a package that it needs is missing.
            tacos.runtime.carriers.Unavailable: It cannot serve these ranks.
        """
        kind = named(name or self.carrier)
        with self.lock:
            if kind.name not in self._open:
                if self.failure:
                    raise CommunicationError(self.failure)
                opened = self._open[kind.name] = kind.open(self)
                opened.on_news = partial(self._hear, opened)
                if self._ended:  # another thread closed it meanwhile
                    opened.interrupt(self._ended)
            return self._open[kind.name]

    def let_go(self, name: str) -> None:
        """Drop a carrier that a dead link has ended on all ranks, so that they can open it again.

        Algorithms that were prepared with it can no longer be run.
        """
        with self.lock:
            if self._ended:
                raise CommunicationError(self._ended)
            carrier = self._open.pop(name)
            self.flight.keep(carrier.figures())
            carrier.close()

    @property
    def prepared(self) -> int:
        """Number of algorithms prepared so far, which must be equal on all ranks."""
        return self._prepared

    @prepared.setter
    def prepared(self, count: int) -> None:
        self._prepared = count

    def figures(self) -> list[dict[str, Any]]:
        """Return the counters of each open carrier; may be called from any thread."""
        return [carrier.figures() for carrier in list(self._open.values())]

    def _hear(self, carrier: Carrier, news: int) -> None:
        """Handle a report of a carrier: it observed something (1), or the ranks are to meet (2)."""
        if news & 1:
            for notice in self._notices.observe(carrier.figures()):
                tell(notice, logging.INFO if "recovered" in notice.kind else logging.WARNING)
        if news & 2:
            self.meeting = True

    def prepare(
        self,
        algorithm: Schedule | Program,
        *,
        verify: bool = True,
        carrier: str | None = None,
        label: str = "",
    ) -> Algorithm:
        """Compile this rank's share of an algorithm and connect the ranks that communicate in it.

        All ranks must call this together, with the same algorithm.

        Args:
            algorithm: A schedule or a program, for as many ranks as the communicator has.
            verify: Whether rank 0 verifies the algorithm first.
            carrier: The name of the carrier, by default ``carrier``.
            label: Its purpose in words, for messages to ranks that prepare something else. Default: its collective.

        Raises:
            ValueError: The algorithm is for another number of ranks, or differs between ranks.
            VerificationError: The algorithm is wrong.
            CommunicationError: A rank failed or did not take part.
        """
        kind = named(carrier or self.carrier)
        with self.lock:
            return self._prepare(algorithm, kind, verify=verify, label=label)

    def on_host(self, program: Program) -> Prepared:
        """Prepare a program on a carrier of host memory, whichever carrier moves the data."""
        usual = named(self.carrier)
        host = usual if usual.memory == "host" else chosen("host")
        algorithm = self.prepare(program, carrier=host.name)
        self.open(host.name).hide(algorithm.number)
        return algorithm.prepared

    def _prepare(
        self, algorithm: Schedule | Program, carrier: CarrierKind, *, verify: bool, label: str
    ) -> Algorithm:
        number = self._prepared
        report = {
            "kind": "",
            "carrier": carrier.name,
            "fingerprint": "",
            "error": "",
            "wrong": "",
            "difference": "",
        }
        execution = None
        try:
            program = self._program(algorithm)
            report["kind"] = label or described(program.collective)
            report["fingerprint"] = fingerprint(program)
            if verify and self.rank == 0:
                checked = verify_algorithm(program)
                checked.raise_if_failed()
                report["difference"] = checked.difference
            execution = RankExecutor(program, self.rank)
        except VerificationError as error:
            report["wrong"] = str(error)
        except ValueError as error:
            report["error"] = str(error)
        difference = self._agree(number, report)
        assert execution is not None  # otherwise, the ranks would not have agreed
        opened = self.open(carrier.name)
        prepared = opened.prepare(execution, number)
        engine = str(program.provenance.get("engine") or program.provenance.get("source") or "")
        self.flight.name(number, program.collective.label, engine, carrier.name)
        return Algorithm(
            self, carrier, number, execution, prepared, difference, recorded=opened.records
        )

    def interrupt(self, why: str) -> None:
        """End the current call and all later ones, here and then on all ranks; may be called from any thread."""
        self._interrupt(f"rank {self.rank} gave up: {why}")

    def give_up(self, why: str) -> None:
        """Tell all ranks why this one gives up; no call may be running here."""
        with self.lock:
            self._ended = self._ended or why
            for carrier in self._open.values():
                carrier.abort(why)

    def abort(self, why: str) -> None:
        """Tell all ranks that this one gives up, and close; a running call fails."""
        self.interrupt(why)
        with self.lock:
            self.give_up(f"rank {self.rank} gave up: {why}")
            self.close()

    def close(self) -> None:
        """Close all connections. Calls that run on this rank, or on peers with this rank, fail."""
        self._interrupt("the communicator is closed")
        with self.lock:
            for carrier in self._open.values():
                carrier.close()
            self.rendezvous.close()

    def _interrupt(self, why: str) -> None:
        self._ended = self._ended or why
        for carrier in list(self._open.values()):  # another thread may open one
            carrier.interrupt(why)

    def barrier(self, name: str) -> None:
        """Wait for all ranks."""
        self._meet(f"barrier {name}", b"", f"waits at barrier {name}")

    def exchange(self, name: str, value: bytes) -> list[bytes]:
        """Exchange small values and return those of all ranks, in rank order.

        Raises:
            TimeoutError: A rank did not take part.
            CommunicationError: A rank failed, exchanges something else, or runs a call.
        """
        return self._meet(name, value, f"exchanges {name}")

    def watch(self) -> str:
        """Return, between calls, a message about a peer that has left, or an empty string.

        Raises:
            CommunicationError: A rank has failed.
        """
        with self.lock:
            return self._watch(0, "still has work with it")

    def address(self, peer: int, channel: int = 0) -> str:
        """Return the host at which this rank reaches another."""
        return self.open().address(peer, channel)

    def _program(self, algorithm: Schedule | Program) -> Program:
        if isinstance(algorithm, Schedule):
            self._check_ranks(algorithm.topology.npus)
            return lower(algorithm, in_place=True)
        self._check_ranks(algorithm.ranks)
        return algorithm

    def _check_ranks(self, ranks: int) -> None:
        if ranks != self.size:
            raise ValueError(
                f"the algorithm is for {ranks} ranks, the communicator has {self.size}"
            )

    def _look_around(self) -> str:
        return self._watch(self._prepared, self._doing)

    def _watch(self, number: int, doing: str) -> str:
        said = (carrier.watch(number, doing) for carrier in self._open.values())
        return next(filter(None, said), "")

    def _meet(self, name: str, value: bytes, doing: str) -> list[bytes]:
        """Exchange values; a rank that fails here also tells the ranks that run a call."""
        with self.lock:
            if self.failure:
                raise CommunicationError(self.failure)
            self._doing = doing
            try:
                return self.rendezvous.exchange(name, value)
            except (CommunicationError, TimeoutError) as error:
                self.give_up(str(error))
                raise

    def _agree(self, number: int, report: dict[str, str]) -> str:
        """Exchange the reports of all ranks, and raise on all if one has an error.

        Returns:
            Which ranks add up a chunk in different orders, as found by rank 0.
        """
        kind = report["kind"] or "one that is wrong"
        doing = f"prepares {kind}"
        answers = self._meet(f"algorithm {number}", json.dumps(report).encode(), doing)
        self._prepared += 1
        reports = [json.loads(text) for text in answers]
        for rank, theirs in enumerate(reports):
            if theirs["wrong"]:
                raise VerificationError(theirs["wrong"])
            if theirs["error"]:
                raise ValueError(
                    theirs["error"] if rank == self.rank else f"rank {rank}: {theirs['error']}"
                )
        for rank, theirs in enumerate(reports):
            if theirs["carrier"] != reports[0]["carrier"]:
                raise ValueError(
                    f"algorithm {number} does not have the same carrier on all ranks: rank {rank} "
                    f"has {theirs['carrier']}, rank 0 {reports[0]['carrier']}"
                )
        others = [
            r
            for r, theirs in enumerate(reports)
            if theirs["fingerprint"] != reports[0]["fingerprint"]
        ]
        if others:
            theirs, first = reports[others[0]]["kind"], reports[0]["kind"]
            if theirs != first:
                raise ValueError(
                    f"the ranks do not agree: rank {others[0]} prepares {theirs}, rank 0 prepares {first}"
                )
            raise ValueError(
                f"the ranks do not have the same algorithm for {first}: that of rank {others[0]} is not "
                "that of rank 0"
            )
        difference: str = reports[0]["difference"]
        return difference


def fingerprint(program: Program) -> str:
    """Return a digest of a program's contents, which is equal for equal programs on any machine.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> ring = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1))
    >>> fingerprint(tacos.lower(ring)) == fingerprint(tacos.lower(ring))
    True
    """
    digest = hashlib.sha256()

    def add(item: Any) -> None:
        for name, value in fields(item).items():
            if name in ("provenance", *FACTS):
                continue
            digest.update(name.encode())
            if isinstance(value, np.ndarray):
                digest.update(f"{len(value)}".encode() + value.tobytes())
            elif isinstance(value, Collective):
                add(value)
            elif isinstance(value, list | tuple):
                for part in value:
                    add(part)
            else:
                digest.update(repr(value).encode())

    add(program)
    return digest.hexdigest()
