"""Sums through a switch. When the switch fails, the ranks use another algorithm until it is back.

=====================  ==========================================================================
TACOS_SWITCH           ``host:port`` of the switch, and options: ``host:port,mtu=9000,pool=256,least=64KB``
TACOS_SWITCH_TOKEN     the token that the switch accepts
=====================  ==========================================================================
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacos._support.variables import read
from tacos.errors import CommunicationError
from tacos.runtime.aggregation.endpoints import SwitchWorker, connect, resolved
from tacos.runtime.aggregation.figures import stats
from tacos.units import size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tacos.runtime.communicator import Communicator

__all__ = ["Place", "SwitchedSums", "from_environment"]

_START_S = 10.0
"""Seconds that ranks wait for a switch that has not started yet."""
_LOOK_S = 0.2
"""Seconds that a rank waits for an answer of a switch that had failed."""
_FIRST_LOOK, _RARELY = 16, 1024
"""Calls without the switch before it is checked again: at first, and at most (chosen)."""
_MOST_WORKERS = 64
_LEAST_BYTES = 32 << 10
"""Smaller buffers use another algorithm (chosen: even the smallest sum through a switch takes three round trips)."""


@dataclass(frozen=True, slots=True)
class Place:
    """A switch, and how to use it.

    Attributes:
        address: ``host:port``.
        mtu: The largest packet on the path to the switch.
        pool: Most packets in flight.
        least: The smallest buffer to sum through the switch, in bytes.

    >>> Place.parse("10.0.0.9:48864,mtu=9000,least=1MB")
    Place(address='10.0.0.9:48864', mtu=9000, pool=128, least=1000000)
    """

    address: str
    mtu: int = 1500
    pool: int = 128
    least: int = _LEAST_BYTES

    @classmethod
    def parse(cls, text: str, what: str = "TACOS_SWITCH") -> Place:
        """Parse ``host:port,mtu=9000,pool=256,least=64KB``; everything except the host is optional."""
        address, *options = text.split(",")
        resolved(address, what)
        values: dict[str, int] = {}
        for option in options:
            name, equals, value = option.partition("=")
            if name not in ("mtu", "pool", "least") or not equals:
                raise ValueError(f"{what} has {option!r}; expected mtu=, pool= or least=")
            try:
                values[name] = size_bytes(value) if name == "least" else int(value)
            except ValueError as error:
                raise ValueError(f"{what} has {option!r}: {error}") from None
        return cls(address, **values)


def from_environment(
    communicator: Communicator, variables: Mapping[str, str] | None = None
) -> SwitchedSums | None:
    """Return the switch that ``TACOS_SWITCH`` names on all ranks, or None; all ranks must call this together.

    Raises:
        ValueError: The variable is wrong, or set on some ranks only.
    """
    text = read("TACOS_SWITCH", variables)
    return opened(communicator, text, read("TACOS_SWITCH_TOKEN", variables))


def opened(communicator: Communicator, text: str, token: str) -> SwitchedSums | None:
    """Return the switch that `text` names on all ranks, or None if it is empty."""
    why, place = "", None
    if text:
        try:
            place = Place.parse(text)
            if not token:
                why = "TACOS_SWITCH_TOKEN is not set; tacos switch prints it"
        except ValueError as error:
            why = str(error)
    settings = [place.mtu, place.pool, place.least] if place else []
    absent = _absence(place, token) if place and not why else ""
    mine = json.dumps([bool(text), why, secrets.token_hex(8), settings, absent])
    rows = [json.loads(row) for row in communicator.exchange("switch", mine.encode())]
    if not any(row[0] for row in rows):
        return None
    for rank, row in enumerate(rows):
        if row[1]:
            raise ValueError(row[1] if rank == communicator.rank else f"rank {rank}: {row[1]}")
        if not row[0]:
            raise ValueError(f"TACOS_SWITCH is not set on rank {rank}, but on others")
        if row[3] != rows[0][3]:
            raise ValueError(
                f"TACOS_SWITCH has mtu, pool and least {row[3]} on rank {rank}, {rows[0][3]} on rank 0"
            )
    assert place is not None
    absences = [row[4] for row in rows if row[4]]
    if absences:
        if communicator.rank == 0:
            sys.stderr.write(f"tacos: sums do not go through a switch: {absences[0]}\n")
        return None
    if communicator.size > _MOST_WORKERS and communicator.rank == 0:
        sys.stderr.write(
            f"tacos: sums do not go through a switch: it serves {_MOST_WORKERS} workers, and there are {communicator.size} "
            "ranks; use a switch for each group of ranks\n"
        )
    if not 1 < communicator.size <= _MOST_WORKERS:
        return None
    return SwitchedSums(communicator, place, token, rows[0][2])


def _absence(place: Place, token: str) -> str:
    """Return why the switch cannot be used now, or an empty string; wait a while for a switch that is starting."""
    end = time.monotonic() + _START_S
    while True:
        try:
            stats(place.address, token, timeout=0.5)
        except CommunicationError as error:
            if time.monotonic() > end:
                return str(error)
            time.sleep(0.05)
        else:
            return ""


class SwitchedSums:
    """All-reduces of a communicator through a switch, while the switch works.

    After a failure, the ranks check for the switch again after a number of calls, and use it when all of them reach it.

    Args:
        communicator: The ranks, which use it to agree on what to do when the switch fails.
        place: The switch, and the smallest size for which it is used.
        token: A token that it accepts.
        job: Name of the job, the same on all ranks.

    Attributes:
        worker: This rank as a worker of the switch.
        ended: Why the switch is not used now, or empty.
        sums: Number of operations through the switch.
    """

    def __init__(self, communicator: Communicator, place: Place, token: str, job: str) -> None:
        self.communicator, self.place, self._token = communicator, place, token
        self.ended = ""
        self.sums = 0
        self._without, self._patience = 0, _FIRST_LOOK
        self.worker = self._joined(job)

    def _joined(self, job: str) -> SwitchWorker:
        return connect(
            self.place.address,
            worker=self.communicator.rank,
            workers=self.communicator.size,
            token=self._token,
            job=job,
            pool=self.place.pool,
            mtu=self.place.mtu,
            timeout=self.communicator.timeout / 2,  # so that all ranks agree before one times out
        )

    def serves(self, size: int, dtype: str, op: str) -> bool:
        """Return whether a buffer of this many bytes goes through the switch; the same on all ranks.

        All ranks must ask about the same buffers in the same order, once for each.
        """
        if size < self.place.least or not SwitchWorker.adds(dtype, op):
            return False
        if self.ended:
            self._look()
        return not self.ended

    def _look(self) -> None:
        """Check from time to time whether the switch is back; then all ranks use it from this operation on."""
        self._without += 1
        if self._without < self._patience:
            return
        # The sooner it failed again, the less often it is checked.
        self._without, self._patience = 0, min(2 * self._patience, _RARELY)
        try:
            stats(self.place.address, self._token, timeout=_LOOK_S)
        except CommunicationError:
            here = False
        else:
            here = True
        mine = json.dumps([here, secrets.token_hex(8)]).encode()
        rows = [json.loads(row) for row in self.communicator.exchange("switch back", mine)]
        if all(row[0] for row in rows):
            self.worker = self._joined(rows[0][1])
            self.ended = ""
            if self.communicator.rank == 0:
                sys.stderr.write("tacos: sums go through the switch again\n")

    def run_at(
        self,
        source: int,
        target: int,
        count: int,
        dtype: str,
        op: str,
        otherwise: Callable[[], None],
    ) -> None:
        """Sum memory over all ranks; ``otherwise`` does it without the switch.

        If the switch fails during the operation, the ranks exchange how far they are. If one of them lacks results, all
        repeat the operation from its inputs, without the switch. They do the same if a value is not finite, which all
        ranks see.
        """
        try:
            self.worker.all_reduce_at(source, target, count, dtype, average=op == "avg")
        except CommunicationError as error:
            if self._complete(str(error)):
                return
        else:
            self.sums += 1
            if not self.worker.non_finite:
                return
        if source == target:
            self.worker.restore()
        otherwise()

    def _complete(self, why: str) -> bool:
        """Return whether all ranks have the results of the failed operation."""
        self.ended = why
        core = self.worker._core
        mine = json.dumps([self.worker.operation, core.has_results, why]).encode()
        rows = [json.loads(row) for row in self.communicator.exchange("switch lost", mine)]
        if self.communicator.rank == 0:
            sys.stderr.write(
                f"tacos: sums take another way until the switch is back: {rows[0][2]}\n"
            )
        furthest = max(row[0] for row in rows)
        # A rank begins the next operation only when all ranks have the results of the previous one.
        if self.worker.operation < furthest:
            return True
        return all(row[0] == furthest and row[1] for row in rows)

    def close(self) -> None:
        """Leave the job."""
        if not self.ended:
            self.worker.close()
