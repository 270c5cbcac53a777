"""A rendezvous through MPI; needs mpi4py when it is used."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tacos.errors import CommunicationError
from tacos.runtime.rendezvous.waiting import Doubt, named, pause

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py import MPI

__all__ = ["MpiRendezvous"]

_TO_ROOT, _FROM_ROOT = 2, 3  # tags


class MpiRendezvous:
    """A rendezvous through MPI.

    Args:
        communicator: An mpi4py communicator that nothing else uses. Default: a duplicate of the world.
        timeout: Seconds to wait for the others.
    """

    def __init__(
        self, communicator: MPI.Intracomm | None = None, *, timeout: float = 300.0
    ) -> None:
        if communicator is None:
            try:
                from mpi4py import MPI
            except ImportError:
                raise ValueError(
                    "this process was started by mpirun, but mpi4py is not installed: "
                    "pip install 'tacos-ccl[mpi]'"
                ) from None
            communicator = MPI.COMM_WORLD.Dup()
        self.communicator = communicator
        self.while_waiting: Callable[[], str] = str
        self._timeout = timeout
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()

    def exchange(self, name: str, value: bytes) -> list[bytes]:
        """Return the values of all ranks, in rank order."""
        deadline = time.monotonic() + self._timeout
        if self.rank != 0:
            sent = self.communicator.isend((name, value), 0, _TO_ROOT)
            answer = self._await(
                0, _FROM_ROOT, deadline + 1.0
            )  # rank 0 knows which ranks are missing
            if answer is None:
                raise TimeoutError(f"rank 0 did not exchange {name!r} within {self._timeout:g} s")
            sent.wait()
            values, failure = answer[1]
            if failure:
                raise CommunicationError(failure)
            return list(values)
        try:
            everything = self._gather(name, value, deadline)
        except (TimeoutError, CommunicationError) as error:
            self._reply(([], str(error)), deadline)
            raise
        self._reply((everything, ""), deadline)
        return everything

    def _gather(self, name: str, value: bytes, deadline: float) -> list[bytes]:
        values: dict[int, bytes] = {0: value}
        while len(values) < self.size:
            arrived = self._await(None, _TO_ROOT, deadline)
            if arrived is None:
                missing = [rank for rank in range(self.size) if rank not in values]
                raise TimeoutError(
                    f"{named(missing)} did not come to exchange {name!r} within {self._timeout:g} s"
                )
            rank, (theirs, values[rank]) = arrived
            if theirs != name:
                raise CommunicationError(
                    f"the ranks do not agree: rank {rank} exchanges {theirs!r}, rank 0 {name!r}"
                )
        return [values[rank] for rank in range(self.size)]

    def _reply(self, answer: tuple[list[bytes], str], deadline: float) -> None:
        """Send the answer to all ranks that receive it in time, including late ones."""
        left = [self.communicator.isend(answer, r, _FROM_ROOT) for r in range(1, self.size)]
        rounds = 0
        while left and time.monotonic() < deadline + 1.0:
            left = [request for request in left if not request.test()[0]]
            rounds += 1
            pause(rounds)

    def _await(self, source: int | None, tag: int, deadline: float) -> tuple[int, Any] | None:
        """Return the next message and its sender; None on timeout."""
        from mpi4py import MPI

        status, rounds, doubt = MPI.Status(), 0, Doubt()
        while True:
            message = self.communicator.improbe(
                MPI.ANY_SOURCE if source is None else source, tag, status
            )
            if message is not None:
                return status.Get_source(), message.recv()
            if time.monotonic() > deadline:
                return None
            rounds += 1
            pause(rounds)
            doubt.hear(self.while_waiting())

    def close(self) -> None:
        """Do nothing: MPI ends with the process."""
