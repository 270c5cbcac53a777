"""The NCCL carrier moves data between GPUs: NCCL moves batches of messages, and torch adds them up; needs torch.

Every rank needs its own GPU. NCCL hangs if ranks make different calls, and does not detect that a
rank has died. So each call begins with a few bytes between hosts, with which the ranks compare their
calls, and while the GPU works, its rank checks on its peers. Those bytes use a carrier of
host memory, which is opened with the first program; the program's data use NCCL only.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from tacos import collective as collectives
from tacos import topology
from tacos.errors import CommunicationError, TacosError
from tacos.program import STEP_OPS, lower
from tacos.runtime.carriers import CARRIERS, DTYPES, OPS, Call, Carrier, Unavailable, described
from tacos.runtime.carriers.waves import GpuAlgorithm
from tacos.runtime.rendezvous.addresses import own_address
from tacos.runtime.rendezvous.store import StoreRendezvous
from tacos.runtime.rendezvous.waiting import pause
from tacos.search.synthesis import synthesize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.distributed import Store

    from tacos._core import Program, RankExecutor
    from tacos.runtime.carriers import Meeting, Prepared

__all__ = ["Nccl", "Visible", "open_carrier", "reason_against"]

_LOOK_S = 0.1
"""Seconds between checks of the peers while a rank waits for its GPU."""
_GRACE_S = 5.0
"""Seconds for a peer's last messages to arrive after it has left."""
_TYPES = sorted(DTYPES)


class Visible(msgspec.Struct):
    """The GPUs that a rank sees, by their ids, and the one that it has chosen."""

    gpus: list[str] = []
    current: str = ""

    @classmethod
    def here(cls) -> Visible:
        """Return the GPUs of this process."""
        if not dist.is_nccl_available() or not torch.cuda.is_available():
            return cls()
        ids = [
            str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())
        ]
        return cls(ids, ids[torch.cuda.current_device()])


def reason_against(ranks: Sequence[Visible]) -> str:
    """Return why not every rank can have its own GPU, as NCCL requires; empty if all can.

    >>> reason_against([Visible(["a", "b"]), Visible(["a", "b"])])
    ''
    >>> reason_against([Visible(["a"]), Visible(["a"])])
    'rank 1 has no GPU of its own'
    """
    owner: dict[str, int] = {}

    def settle(rank: int, tried: set[str]) -> bool:
        """Find a GPU for a rank; its owner may have to take another."""
        for gpu in ranks[rank].gpus:
            if gpu not in tried:
                tried.add(gpu)
                if gpu not in owner or settle(owner[gpu], tried):
                    owner[gpu] = rank
                    return True
        return False

    for rank, visible in enumerate(ranks):
        if not visible.gpus:
            return f"rank {rank} sees no GPU"
        if not settle(rank, set()):
            return f"rank {rank} has no GPU of its own"
    return ""


def open_carrier(meeting: Meeting) -> Nccl:
    """Connect the GPUs of all ranks.

    Raises:
        Unavailable: Not every rank has its own GPU; raised on all ranks.
    """
    answers = meeting.exchange("gpus", msgspec.json.encode(Visible.here()))
    ranks = [msgspec.json.decode(answer, type=Visible) for answer in answers]
    if why := reason_against(ranks):
        raise Unavailable(why)
    store = _store(meeting)
    all_chosen = len({visible.current for visible in ranks}) == len(ranks)
    return Nccl(meeting, _backend(meeting, store, "tacos-nccl"), store, all_chosen=all_chosen)


def _store(meeting: Meeting) -> Store:
    """Return the store of the ranks' rendezvous, or a new one at rank 0."""
    if isinstance(meeting.rendezvous, StoreRendezvous) and meeting.rendezvous.store is not None:
        return meeting.rendezvous.store
    limit = timedelta(seconds=meeting.timeout)
    own, place = None, ""
    if meeting.rank == 0:
        host = own_address()
        own = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=limit)
        place = f"{host} {own.port}"
    host, port = meeting.exchange("NCCL's store", place.encode())[0].decode().split()
    return own or dist.TCPStore(host, int(port), timeout=limit)


def _backend(meeting: Meeting, store: Store, name: str) -> dist.ProcessGroupNCCL:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(
        seconds=2 * meeting.timeout
    )  # ours is over first, and ends no process
    return dist.ProcessGroupNCCL(dist.PrefixStore(name, store), meeting.rank, meeting.size, options)


class Nccl(Carrier):
    """NCCL between the GPUs of all ranks.

    Args:
        meeting: The ranks.
        backend: NCCL's backend of torch's process groups.
        store: The store for further communicators of NCCL.
        all_chosen: Whether all ranks have chosen a GPU, and no two the same.

    Attributes:
        backend: The same, for other code that sends messages between GPUs.
    """

    def __init__(
        self,
        meeting: Meeting,
        backend: dist.ProcessGroupNCCL,
        store: Store | None = None,
        *,
        all_chosen: bool = False,
    ) -> None:
        self.backend = backend
        self.all_chosen = all_chosen
        self._meeting, self._store = meeting, store
        self._notes: Prepared | None = None
        self._names: dict[int, str] = {}  # of algorithms, for messages
        self._failure = self._interruption = ""

    @property
    def failure(self) -> str | None:
        """Why the carrier can no longer be used, or None."""
        return self._failure or None

    def prepare(self, share: RankExecutor, number: int) -> Prepared:
        """Divide a program into waves; for the first program, also connect the hosts."""
        self._names[number] = described(share.program.collective)
        prepared = _OnGpu(self, share, number)
        if self._notes is None and self._meeting.size > 1:
            self._notes = self._meeting.on_host(_all_gather(self._meeting.size))
        return prepared

    def another(self, name: str) -> dist.ProcessGroupNCCL:
        """Return another communicator of NCCL between all ranks, on the GPUs that they have chosen."""
        backend = _backend(self._meeting, self._store, name)
        backend.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
        return backend

    def interrupt(self, why: str) -> None:
        """End the current call and all later ones; may be called from any thread."""
        self._interruption = self._interruption or why

    def abort(self, why: str) -> None:
        """End messages to and from ranks that will not take part."""
        if not self._failure:
            self._failure = why
            self.backend.abort()

    def close(self) -> None:
        """Close the connections to the peers."""
        self._failure = self._failure or "the communicator is closed"
        self.backend.shutdown()

    def tensor(self, address: int, elements: int, dtype: torch.dtype) -> Tensor:
        """Return the memory of the current GPU at an address as a tensor."""
        if not elements:
            return torch.empty(0, dtype=dtype, device="cuda")
        return torch.as_tensor(_Memory(address, elements * dtype.itemsize), device="cuda").view(
            dtype
        )

    def event(self, device: torch.device) -> torch.cuda.Event:
        """Return an event that the GPU reaches after all work enqueued so far."""
        return torch.cuda.current_stream(device).record_event()

    def compare(self, number: int, call: Call) -> None:
        """Compare calls with all ranks: if they differed, NCCL would hang or write out of bounds.

        This also detects a rank that has failed.
        """
        self._check_usable()
        if self._notes is None:
            return
        mine = np.array(
            [number, call.elements, _TYPES.index(call.dtype), OPS.index(call.op)], np.int64
        )
        rows = np.empty((self._meeting.size, len(mine)), np.int64)
        self._notes.run(Call(mine.ctypes.data, rows.ctypes.data, rows.nbytes, "uint8", "sum"))
        said = [
            f"{self._names.get(number, f'algorithm {number}')} of {count} elements of {_TYPES[dtype]} "
            f"({OPS[op]}){'' if number == rows[0][0] else f' by algorithm {number}'}"
            for number, count, dtype, op in rows.tolist()
        ]
        for rank, theirs in enumerate(said):
            if theirs != said[0]:
                raise CommunicationError(
                    f"the ranks do not agree: rank {rank} runs {theirs}, rank 0 runs {said[0]}"
                )

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Wait for the GPU, and check on the peers, since NCCL does not detect that one has died."""
        begin = looked = time.monotonic()
        left: tuple[float, str] | None = None
        rounds = 0
        while not event.query():
            rounds += 1
            pause(rounds)
            now = time.monotonic()
            if now - looked < _LOOK_S:
                continue
            looked = now
            self._check_usable()
            why = self._meeting.watch()
            if why and left is None:
                left = (now, why)  # perhaps because it has finished
            if left is not None and now - left[0] > _GRACE_S:
                raise CommunicationError(left[1])
            if now - begin > self._meeting.timeout:
                raise CommunicationError(
                    f"the GPU of rank {self._meeting.rank} waits for more than "
                    f"{self._meeting.timeout:g} s"
                )

    def give_up(self, error: Exception) -> None:
        """Tell all ranks that this one failed."""
        self._meeting.give_up(f"rank {self._meeting.rank} failed: {error}")

    def _check_usable(self) -> None:
        if why := self._failure or self._interruption:
            raise CommunicationError(why)


class _OnGpu:
    """A program in waves."""

    def __init__(self, carrier: Nccl, share: RankExecutor, number: int) -> None:
        self._carrier, self._share, self._number = carrier, share, number
        self._waves = GpuAlgorithm(share.program, carrier.backend)
        self._reduces = any("reduce" in STEP_OPS[op] for op in np.unique(share.program.op))

    def run(self, call: Call) -> None:
        """Run one call on the current stream."""
        if self._reduces and not CARRIERS["nccl"].reduces(call.dtype, call.op):
            raise ValueError(f"NCCL's carrier cannot reduce {call.dtype} with {call.op}")
        inputs, outputs = self._share.buffer_elements(call.elements)
        dtype = getattr(torch, call.dtype)
        self._carrier.compare(self._number, call)
        try:
            source = self._carrier.tensor(call.source, inputs, dtype)
            target = self._carrier.tensor(call.target, outputs, dtype)
            self._waves.run([source], [target], call.elements, call.op)
            self._carrier.wait_for(self._carrier.event(target.device))
        except (RuntimeError, TacosError) as error:  # NCCL's errors are the former
            self._carrier.give_up(error)
            raise CommunicationError(str(error)) from None


class _Memory:
    """Memory of a GPU, in a form that torch and others accept without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def _all_gather(ranks: int) -> Program:
    """Return a program for a barrier of a few bytes, with few hops."""
    network = topology.fully_connected(ranks)
    wanted = collectives.all_gather(network, 1 << 20, chunks=1)
    return lower(synthesize(network, wanted, engine="halving-doubling"), in_place=True)
