"""The MPI carrier sends data as MPI messages, without copies; needs mpi4py.

MPI makes progress only while it is called, so a call polls. Everything else is as over TCP.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from mpi4py import MPI

from tacos.errors import CommunicationError
from tacos.program import STEP_OPS
from tacos.runtime.carriers import Carrier, Unavailable, described
from tacos.runtime.carriers.mpi_control import (
    LONGEST_TEXT,
    Announced,
    ControlMessage,
    ControlMessages,
    Kind,
)
from tacos.runtime.rendezvous.mpi import MpiRendezvous
from tacos.runtime.rendezvous.waiting import pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import RankExecutor
    from tacos.runtime.carriers import Call, Meeting, Prepared

__all__ = ["Mpi", "open_carrier"]

_PIECE = 1 << 30  # MPI counts bytes in 32 bits
_PATIENT = 100  # rounds of polling before messages are received that no step waits for (chosen)
_KEPT = 64  # most blocks for sums that are kept for reuse
_FAREWELL_S = 1.0
_CURIOUS_S = 1.0
_CLOSED = "the communicator is closed"
_PUT = STEP_OPS.index("put")


def open_carrier(meeting: Meeting) -> Mpi:
    """Duplicate the ranks' communicator, or make one from their ranks in MPI_COMM_WORLD."""
    if isinstance(meeting.rendezvous, MpiRendezvous):
        return Mpi(meeting.rendezvous.communicator, timeout=meeting.timeout)
    world = MPI.COMM_WORLD
    answers = meeting.exchange("MPI ranks", str(world.Get_rank()).encode())
    places = [int(answer) for answer in answers]
    if len(set(places)) < len(places):
        raise Unavailable("the carrier mpi needs ranks that mpiexec has started")
    group = world.Create_group(world.Get_group().Incl(places))
    try:
        return Mpi(group, timeout=meeting.timeout)
    finally:
        group.Free()


@dataclass(slots=True)
class _Early:
    """A message that arrived before its step was ready."""

    data: np.ndarray[Any, Any]
    whole: bool = False
    taker: tuple[int, int] | None = None  # step and message, once the step is ready


class _Steps(NamedTuple):
    """The data for the tags of a program's messages."""

    first: list[int]  # step of each rank, then their number
    puts: frozenset[int]  # messages whose senders wait for an acknowledgement

    def tag(self, message: int, sender: int, receiver: int) -> int:
        """Return twice the step's number within its rank, plus one for the reply to a get.

        A message is named after a step of its sender, the reply to a get after a step of its receiver.
        """
        reply = not self.first[sender] <= message < self.first[sender + 1]
        return 2 * (message - self.first[receiver if reply else sender]) + reply


@dataclass(frozen=True, slots=True)
class _Tagged:
    """A program, with the data for its tags."""

    carrier: Mpi
    share: RankExecutor
    number: int
    steps: _Steps

    def run(self, call: Call) -> None:
        """Run one call."""
        self.carrier._run(self.share, self.number, self.steps, call)


@dataclass(slots=True)
class _Call:
    """The state of a call."""

    execution: RankExecutor
    own: Announced
    steps: _Steps
    unheard: set[int]  # peers that have not announced the call yet
    # Receives from these peers.
    held: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    left: int = 0  # requests that must complete before it ends
    progress: float = field(default_factory=time.monotonic)
    curious: bool = False  # whether the awaited peers were asked where they are
    asked: float | None = None
    silent: set[int] = field(default_factory=set)

    def progressed(self) -> None:
        self.progress, self.asked, self.curious = time.monotonic(), None, False


@dataclass(slots=True)
class _Posted:
    """What to do when a request completes."""

    then: Callable[[], None]
    receives: bool
    counts: bool  # whether the call waits for it


class Mpi(Carrier):
    """A carrier that sends data as MPI messages.

    A message's tag identifies the step that sent it. In addition to the data, every rank announces each call to the
    ranks that it sends to, so that disagreements are detected. Receives are posted as soon as their step may
    write. A message whose step may not write yet is left with MPI, unless nothing else makes progress. Then it is
    received into memory, so that ranks cannot deadlock on each other's memory.
    """

    def __init__(self, comm: MPI.Intracomm, *, timeout: float) -> None:
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.timeout = timeout
        self._failure: str | None = None
        self._interruption = ""
        self.data, self._control = comm.Dup(), comm.Dup()
        for duplicate in (self.data, self._control):
            duplicate.Set_errhandler(MPI.ERRORS_RETURN)  # mpi4py raises them
        # If there are more ranks than cores, a polling rank keeps others from working.
        machine = comm.Split_type(MPI.COMM_TYPE_SHARED)
        self._spins = 1000 if machine.Get_size() <= len(os.sched_getaffinity(0)) else 2
        machine.Free()
        largest = self.data.Get_attr(MPI.TAG_UB)
        assert isinstance(largest, int)  # every MPI sets this attribute
        self._largest_tag = largest
        self._calls = 0
        self._names: dict[int, str] = {}  # names of algorithms for messages
        self._call: _Call | None = None
        self._early: dict[tuple[int, int], deque[_Early]] = defaultdict(deque)
        self._announced: dict[tuple[int, int], Announced] = {}  # by peer and call
        self._spare: dict[int, list[np.ndarray[Any, Any]]] = defaultdict(list)
        self._requests: list[MPI.Request] = []
        self._posted: list[_Posted] = []
        self._control_messages = ControlMessages(self._control)
        self.rendezvous = MpiRendezvous(self._control, timeout=timeout)

    @property
    def failure(self) -> str | None:
        """Why the carrier can no longer be used, or None."""
        return self._failure

    def prepare(self, share: RankExecutor, number: int) -> Prepared:
        """Check that MPI has tags for all messages; it connects ranks by itself."""
        self._names[number] = described(share.program.collective)
        steps = _steps_of(share)
        most = int(np.diff(steps.first).max(initial=0))
        if 2 * most > self._largest_tag:
            raise ValueError(
                f"a rank of the program has {most} steps, "
                f"MPI's tags here allow {self._largest_tag // 2}"
            )
        return _Tagged(self, share, number, steps)

    def _run(self, execution: RankExecutor, number: int, steps: _Steps, given: Call) -> None:
        self._check_usable()
        execution.start(*given)
        self._calls += 1
        own = Announced(self._calls, number, given.elements, given.dtype, given.op)
        froms = {peer for peer, _ in execution.receives_from}
        call = self._call = _Call(execution, own, steps, froms)
        try:
            for peer in sorted({peer for peer, _ in execution.sends_to}):
                self._notify(peer, Kind.CALL)
            known = {p: theirs for (p, c), theirs in self._announced.items() if c == own.call}
            for peer in known:
                del self._announced[peer, own.call]
            for peer in sorted(froms & known.keys()):
                self._compare(peer, known[peer])
            self._carry_out(call)
            idle = 0
            while call.left or call.unheard or not execution.finished:
                self._check_usable()
                idle = 0 if self._advance() else idle + 1
                if idle:
                    pause(idle, self._spins)
                if idle > _PATIENT:
                    self._take_early()
                    self._check_progress(call)
        except CommunicationError:
            raise
        except MPI.Exception as error:
            self._explain(call, error)
        except BaseException:
            self.abort(f"rank {self.rank} was interrupted")
            raise
        finally:
            self._call = None
        if sum(len(spare) for spare in self._spare.values()) > _KEPT:
            self._spare.clear()
        execution.finish()

    def watch(self, number: int, doing: str) -> str:
        """Return why some rank will not prepare an algorithm, or an empty string."""
        self._check_usable()
        self._listen()
        for (peer, call), theirs in self._announced.items():
            # A peer that runs this algorithm has prepared it and is only ahead.
            if call == self._calls + 1 and theirs.algorithm < number:
                return (
                    f"the ranks do not agree on call {call}: rank {peer} runs {self._what(theirs)}, "
                    f"rank {self.rank} {doing}"
                )
        return ""

    def interrupt(self, why: str) -> None:
        """End the current call and all later ones; may be called from any thread."""
        self._interruption = why

    def abort(self, why: str) -> None:
        """Tell all ranks that this one gives up."""
        if self._failure:
            return
        self._failure = why[:LONGEST_TEXT]
        self._drop(
            [self._say(p, Kind.ABORT, self._failure) for p in range(self.size) if p != self.rank]
        )

    def close(self) -> None:
        """Free the communicators; not after a failure, since messages may be in flight."""
        if MPI.Is_finalized() or self._failure == _CLOSED:
            return
        self._drop([])
        if self._failure is None:
            self.data.Free()
            self._control.Free()
            self._failure = _CLOSED

    def address(self, peer: int, channel: int = 0) -> str:
        """Raise an error: MPI does not reveal addresses."""
        raise ValueError(f"channel {channel} to rank {peer} is MPI's, which tells no address")

    # --- data

    def _carry_out(self, call: _Call) -> None:
        """Post all sends and receives that may start."""
        execution = call.execution
        while True:
            columns = execution.ready()
            if not len(columns[0]):
                return
            for receives, step, peer, _, message, size in zip(
                *(column.tolist() for column in columns), strict=True
            ):
                if not receives:
                    tag = call.steps.tag(message, self.rank, peer)
                    pieces = _buffer(execution.outgoing(step))
                    self._post(
                        self.data.Isend(pieces, peer, tag), partial(self._sent, step, pieces)
                    )
                    continue
                if peer in call.unheard:  # its message may have another size
                    call.held.setdefault(peer, []).append((step, message, size))
                else:
                    self._expect(call, step, message, size, peer)

    def _expect(self, call: _Call, step: int, message: int, size: int, peer: int) -> None:
        """Receive a message, which may already have arrived."""
        key = (peer, call.steps.tag(message, peer, self.rank))
        if queue := self._early.get(key):
            # A later message of the same tag belongs to a later call.
            queue[0].taker = (step, message)
            self._take_in(key)
        else:
            self._receive(call.execution, step, message, size, *key)

    def _receive(
        self, execution: RankExecutor, step: int, message: int, size: int, peer: int, tag: int
    ) -> None:
        if execution.reduces(step):
            spare = self._spare[size]
            block = spare.pop() if spare else np.empty(size, np.uint8)
            request = self.data.Irecv([block, MPI.BYTE], peer, tag)
            self._post(request, partial(self._arrived, step, message, peer, block), receives=True)
        else:
            pieces = _buffer(execution.incoming(step) if size else [])
            request = self.data.Irecv(pieces, peer, tag)
            then = partial(self._stored, step, message, peer, pieces)
            self._post(request, then, receives=True)

    def _post(
        self,
        request: MPI.Request,
        then: Callable[[], None],
        *,
        receives: bool = False,
        counts: bool = True,
    ) -> None:
        counts = counts and self._call is not None
        self._requests.append(request)
        self._posted.append(_Posted(then, receives, counts))
        if counts and self._call is not None:
            self._call.left += 1

    def _advance(self) -> bool:
        """Handle completed requests; return whether there were any."""
        heard = self._listen()
        done = MPI.Request.Testsome(self._requests)
        if not done and not heard:
            return False
        done = done or []
        completed = [self._posted[index] for index in done]
        for index in sorted(done, reverse=True):
            self._requests[index], self._posted[index] = self._requests[-1], self._posted[-1]
            self._requests.pop()
            self._posted.pop()
        for posted in completed:
            if posted.counts and self._call is not None:
                self._call.left -= 1
            posted.then()
        if self._call is not None:
            self._carry_out(self._call)
        return True

    def _sent(self, step: int, pieces: list[Any]) -> None:
        _free(pieces)
        if self._call is not None:
            self._call.progressed()
            self._call.execution.sent(step)

    def _arrived(self, step: int, message: int, peer: int, block: np.ndarray[Any, Any]) -> None:
        """Add or store data that arrived in a block of memory."""
        if self._call is not None:
            self._call.execution.take(step, block.ctypes.data, block.nbytes)
            self._spare[block.nbytes].append(block)
            self._stored(step, message, peer)

    def _stored(self, step: int, message: int, peer: int, pieces: list[Any] | None = None) -> None:
        if pieces is not None:
            _free(pieces)
        if self._call is not None:
            self._call.progressed()
            self._call.execution.received(step)
            if message in self._call.steps.puts:
                self._notify(peer, Kind.STORED)

    def _take_early(self) -> None:
        """Receive a message that no step waits for yet, since its sender may wait for this."""
        status = MPI.Status()
        arriving = self.data.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        if arriving is None:
            return
        early = _Early(np.empty(status.Get_count(MPI.BYTE), np.uint8))
        key = (status.Get_source(), status.Get_tag())
        self._early[key].append(early)

        def whole() -> None:
            early.whole = True
            self._take_in(key)

        self._post(arriving.Irecv([early.data, MPI.BYTE]), whole, receives=True, counts=False)

    def _take_in(self, key: tuple[int, int]) -> None:
        """Pass the first message of a sender and a tag to its step, if both are ready."""
        queue = self._early[key]
        early = queue[0]
        if early.whole and early.taker is not None:
            queue.popleft()
            if not queue:
                del self._early[key]
            self._arrived(*early.taker, key[0], early.data)

    # --- control messages

    def _listen(self) -> bool:
        """Handle all control messages that have arrived; return whether there were any."""
        if self._failure:
            raise CommunicationError(self._failure)
        heard = False
        while message := self._control_messages.next():
            heard = True
            self._heed(message)
        return heard

    def _say(self, peer: int, kind: Kind, text: str = "") -> MPI.Request:
        own = self._call.own if self._call is not None else Announced(self._calls, -1, 0, "", "")
        return self._control_messages.send(peer, kind, own, text)

    def _notify(self, peer: int, kind: Kind) -> None:
        self._post(self._say(peer, kind), _nothing)

    def _heed(self, message: ControlMessage) -> None:
        kind, peer, theirs, text = message
        if kind == Kind.ABORT:
            self._failure = self._failure or text
            self._drop([])
            raise CommunicationError(self._failure)
        now = self._call
        later = theirs.call > self._calls
        if later and kind in (Kind.CALL, Kind.ASK):
            self._announced[peer, theirs.call] = theirs
        if now is None:
            return  # this rank is not in the call, so the peer rightly waits for it
        if kind == Kind.CALL and not later:
            self._compare(peer, theirs)
        elif kind == Kind.ASK:
            self._notify(peer, Kind.ANSWER)
        elif kind == Kind.ANSWER:
            now.silent.discard(peer)
        elif kind == Kind.STORED and theirs.call == now.own.call:
            now.execution.stored(peer)

    def _compare(self, peer: int, theirs: Announced) -> None:
        """Fail unless the peer makes the same call."""
        assert self._call is not None
        own = self._call.own
        self._call.unheard.discard(peer)
        if theirs != own:
            one, other = self._what(theirs), self._what(own)
            if one == other:
                one += f" by algorithm {theirs.algorithm}"
                other += f" by algorithm {own.algorithm}"
            self._fail(
                f"the ranks do not agree on call {own.call}: rank {peer} runs {one}, "
                f"rank {self.rank} runs {other}"
            )
        for receive in self._call.held.pop(peer, []):
            self._expect(self._call, *receive, peer)
        self._carry_out(self._call)

    def _what(self, call: Announced) -> str:
        """Describe a call: ``all-reduce of 40 elements of float32 (sum)``."""
        return f"{self._names.get(call.algorithm, f'algorithm {call.algorithm}')} of {call}"

    # --- failure

    def _check_usable(self) -> None:
        if self._interruption:
            self._fail(self._interruption)
        if self._failure:
            raise CommunicationError(self._failure)

    def _check_progress(self, call: _Call) -> None:
        """After too long without progress, ask the awaited ranks whether they are alive.

        A rank within a call answers, because it waits for another rank. A rank that does not answer is named.
        Long before, they are asked once so that a rank which prepares another call hears of this one.
        """
        now = time.monotonic()
        quiet = now - call.progress
        if quiet < min(self.timeout, _CURIOUS_S) or (quiet < self.timeout and call.curious):
            return
        awaited = call.execution.waiting()
        awaited += [(p, f"rank {self.rank} waits for its call") for p in sorted(call.unheard)]
        if quiet < self.timeout:
            call.curious = True
            for peer in {peer for peer, _ in awaited}:
                self._notify(peer, Kind.ASK)
            return
        if call.asked is None:
            call.asked, call.silent = now, {peer for peer, _ in awaited}
            for peer in sorted(call.silent):
                self._notify(peer, Kind.ASK)
            return
        grace = min(max(self.timeout / 4, 1.0), 5.0)
        if now - call.asked < grace:
            return
        given_up = quiet > 2 * self.timeout + grace
        for peer, what in awaited:
            if peer in call.silent or (given_up and not call.silent):
                self._fail(
                    f"rank {peer} did not answer for {quiet:.0f} s: {what}, call {call.own.call}"
                )
        call.asked = None  # all are there: ask again

    def _explain(self, call: _Call, error: MPI.Exception) -> NoReturn:
        """A message may be longer than expected because its sender's call is another one."""
        end, idle = time.monotonic() + _FAREWELL_S, 0
        while call.unheard and time.monotonic() < end:
            self._listen()
            idle += 1
            pause(idle, self._spins)
        self._fail(f"rank {self.rank}: MPI reports an error, call {call.own.call}: {error}")

    def _fail(self, why: str) -> NoReturn:
        self.abort(why)
        raise CommunicationError(self._failure or why)

    def _drop(self, last: list[Any]) -> None:
        """Wait a little for what was sent, and withdraw the receives: their memory is the caller's."""
        receives = [r for r, p in zip(self._requests, self._posted, strict=True) if p.receives]
        requests = [self._control_messages.receive, *self._requests, *last]
        self._requests, self._posted = [], []
        end, idle = time.monotonic() + _FAREWELL_S, 0
        with contextlib.suppress(MPI.Exception):
            for request in [self._control_messages.receive, *receives]:
                if request != MPI.REQUEST_NULL:
                    request.Cancel()
            while not MPI.Request.Testall(requests) and time.monotonic() < end:
                idle += 1
                pause(idle, self._spins)


def _nothing() -> None:
    """A control message has left."""


def _steps_of(execution: RankExecutor) -> _Steps:
    program = execution.program
    threads = np.searchsorted(program.thread_rank, np.arange(program.ranks + 1))
    first: list[int] = program.thread_begin[threads].tolist()
    return _Steps(first, frozenset(np.flatnonzero(program.op == _PUT).tolist()))


def _buffer(pieces: list[tuple[int, int]]) -> list[Any]:
    """Return memory in the form that MPI takes: one piece as it is, several as a derived datatype."""
    if not pieces:
        return [None, 0, MPI.BYTE]
    if len(pieces) == 1:
        return [MPI.buffer.fromaddress(*pieces[0]), MPI.BYTE]
    cut = [
        (address + at, min(_PIECE, size - at))
        for address, size in pieces
        for at in range(0, size, _PIECE)
    ]
    kind = MPI.BYTE.Create_hindexed([size for _, size in cut], [address for address, _ in cut])
    return [MPI.BOTTOM, 1, kind.Commit()]


def _free(pieces: list[Any]) -> None:
    if pieces[-1] != MPI.BYTE:
        pieces[-1].Free()
