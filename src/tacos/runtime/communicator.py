"""Communicators: ranks that have met, and the algorithms they run together."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import select
import socket
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from tacos._core import Endpoint, Execution, Program, Schedule
from tacos.errors import CommunicationError, VerificationError
from tacos.lower import lower
from tacos.pickling import FIELDS
from tacos.runtime.rendezvous import from_environment
from tacos.verify import verify as verify_algorithm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from tacos._core import Collective
    from tacos.runtime.rendezvous import Rendezvous

__all__ = ["Algorithm", "Communicator", "connect", "fingerprint"]

_HELLO = struct.Struct("!16sIII")


def connect(
    rendezvous: Rendezvous | None = None,
    *,
    timeout: float = 300.0,
    members: Sequence[int] | None = None,
) -> Communicator:
    """Meet the other ranks of the job.

    Args:
        rendezvous: How the ranks find each other. Default: what the environment says, see
            :func:`tacos.runtime.from_environment`.
        timeout: Seconds that the ranks wait for each other, now and whenever a call makes no
            progress.
        members: The ranks' numbers in the whole job, which ``TACOS_ADDRESSES`` goes by, where these
            are a part of it.

    Raises:
        TimeoutError: Some ranks did not come; the message names them.

    >>> with connect() as comm:
    ...     comm.rank, comm.size
    (0, 1)
    """
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout} s, it must be positive")
    return Communicator(
        rendezvous or from_environment(timeout=timeout), timeout=timeout, members=members
    )


class Communicator:
    """Ranks that have met. All of them must prepare and run the same algorithms in the same order.

    Data take TCP connections, and Unix sockets between ranks of one machine. ``TACOS_HOST`` is the
    address or name to listen at and be reached at (default: all, and the host's); where machines have
    several networks, ``TACOS_ADDRESSES`` (JSON, or a file of it) says where this rank reaches its
    peers, channel by channel: ``{"1": ["10.0.0.2", "10.1.0.2"]}``. Either of them means TCP.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        *,
        timeout: float = 300.0,
        members: Sequence[int] | None = None,
    ) -> None:
        self.rank, self.size = rendezvous.rank, rendezvous.size
        self.timeout = timeout
        self._rendezvous = rendezvous
        self._endpoint = Endpoint(self.rank, timeout)
        self._lock = threading.Lock()
        self._prepared = 0
        routes = _addresses(os.environ.get("TACOS_ADDRESSES"))
        numbers = range(self.size) if members is None else members
        self._routes = {i: routes[peer] for i, peer in enumerate(numbers) if peer in routes}
        host = os.environ.get("TACOS_HOST", "")
        token = secrets.token_hex(16)
        self._listeners = [socket.socket(socket.AF_INET, socket.SOCK_STREAM)]
        try:
            self._listeners[0].bind(("" if self._routes else host, 0))
            card = {
                "host": host or _own_address(),
                "port": self._listeners[0].getsockname()[1],
                "machine": "" if host or self._routes else _machine(),
                "token": token,
            }
            if card["machine"]:  # ranks of one machine spare themselves half of the kernel's work
                self._listeners.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                self._listeners[1].bind(_local_name(token))
            for listener in self._listeners:
                listener.listen(4096)
            cards = rendezvous.exchange("addresses", json.dumps(card).encode())
        except BaseException:
            self._close_listeners()
            raise
        self._cards: list[dict[str, Any]] = [json.loads(text) for text in cards]
        self._token = bytes.fromhex(self._cards[0]["token"])  # keeps strangers out

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not isinstance(error, CommunicationError):
            self._endpoint.abort(f"rank {self.rank} failed: {type(error).__name__}: {error}")
        self.close()

    def __repr__(self) -> str:
        return f"<tacos.Communicator rank {self.rank} of {self.size}>"

    @property
    def failure(self) -> str | None:
        """Why the communicator cannot be used any more, or None."""
        return self._endpoint.failure or None

    def prepare(self, algorithm: Schedule | Program, *, verify: bool = True) -> Algorithm:
        """Compile this rank's share of an algorithm and connect the ranks that talk in it.

        All ranks must call this together, with the same algorithm.

        Args:
            algorithm: A schedule, or a program; its ranks are those of the communicator.
            verify: Whether rank 0 checks first that the algorithm is right.

        Raises:
            ValueError: The algorithm is for another number of ranks, or not the same on all.
            VerificationError: It is wrong.
            CommunicationError: A rank failed or did not come.
        """
        if self.failure:
            raise CommunicationError(self.failure)
        number = self._prepared
        self._prepared += 1
        report: dict[str, Any] = {"fingerprint": "", "error": "", "wrong": ""}
        execution = program = None
        try:
            program = self._program(algorithm)
            report["fingerprint"] = fingerprint(program)
            if verify and self.rank == 0:
                verify_algorithm(program).raise_if_failed()
            execution = Execution(program, self.rank)
        except VerificationError as error:
            report["wrong"] = str(error)
        except ValueError as error:
            report["error"] = str(error)
        self._agree(number, report)
        assert execution is not None  # else the ranks would not have agreed
        assert program is not None
        self._open_connections(execution)
        return Algorithm(self, number, program, execution)

    def close(self) -> None:
        """Close all connections. Peers that still run a call with this rank fail."""
        self._endpoint.close()
        self._close_listeners()
        self._rendezvous.close()

    def barrier(self, name: str) -> None:
        """Wait for all ranks; each name serves once."""
        self._rendezvous.exchange(f"barrier {name}", b"")

    def exchange(self, name: str, value: bytes) -> list[bytes]:
        """Small values of all ranks, in their order; each name serves once."""
        return self._rendezvous.exchange(name, value)

    def address(self, peer: int, channel: int = 0) -> str:
        """The host at which this rank reaches another."""
        if peer in self._routes:
            return self._routes[peer][channel % len(self._routes[peer])]
        return "127.0.0.1" if self._shares_machine(peer) else str(self._cards[peer]["host"])

    def _shares_machine(self, peer: int) -> bool:
        own = self._cards[self.rank]["machine"]
        return bool(own) and own == self._cards[peer]["machine"]

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

    def _agree(self, number: int, report: dict[str, Any]) -> None:
        """Exchange the reports of all ranks, and raise on all if one has an error."""
        answers = self._rendezvous.exchange(f"algorithm {number}", json.dumps(report).encode())
        reports = [json.loads(text) for text in answers]
        for rank, theirs in enumerate(reports):
            if theirs["wrong"]:
                raise VerificationError(theirs["wrong"])
            if theirs["error"]:
                raise ValueError(
                    theirs["error"] if rank == self.rank else f"rank {rank}: {theirs['error']}"
                )
        others = [
            r
            for r, theirs in enumerate(reports)
            if theirs["fingerprint"] != reports[0]["fingerprint"]
        ]
        if others:
            raise ValueError(
                f"algorithm {number} is not the same on all ranks: "
                f"rank {others[0]} has another one than rank 0"
            )

    def _open_connections(self, execution: Execution) -> None:
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
            left = max(0.0, deadline - time.monotonic())
            callers = select.poll()  # unlike select(), for any number of open files
            for listener in self._listeners:
                callers.register(listener, select.POLLIN)
            ready = [number for number, _ in callers.poll(left * 1e3)]
            if not ready:
                peer, channel = min(missing)
                self._give_up(
                    f"rank {peer} did not connect to rank {self.rank} (channel {channel}) "
                    f"within {self.timeout:g} s"
                )
            [listener] = [one for one in self._listeners if one.fileno() == ready[0]]
            connection, _ = listener.accept()
            connection.settimeout(max(0.001, min(5.0, deadline - time.monotonic())))
            with contextlib.suppress(OSError, struct.error):
                hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
                token, peer, me, channel = _HELLO.unpack(hello)
                if token == self._token and me == self.rank:
                    return peer, channel, connection
            connection.close()

    def _give_up(self, why: str) -> NoReturn:
        self._endpoint.abort(why)
        raise CommunicationError(why)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()


class Algorithm:
    """An algorithm that all ranks of a communicator have prepared; made by Communicator.prepare."""

    def __init__(
        self, communicator: Communicator, number: int, program: Program, execution: Execution
    ) -> None:
        self.communicator = communicator
        self.number = number
        self.program = program
        self._execution = execution

    @property
    def collective(self) -> Collective:
        """What the algorithm achieves; its sizes are proportions."""
        return self.program.collective

    def __repr__(self) -> str:
        kind = self.collective.kind.replace("_", "-")
        return f"<tacos.Algorithm {self.number}: {kind}, {self.program.ranks} ranks>"

    def buffer_elements(self, count: int) -> tuple[int, int]:
        """Elements of this rank's input and output buffer, for a whole of count elements."""
        return self._execution.buffer_elements(count)

    def run(
        self, source: Any, target: Any = None, op: str = "sum", *, count: int | None = None
    ) -> np.ndarray[Any, Any]:
        """Run the collective on arrays; all ranks must call this together.

        Args:
            source: What this rank brings: a contiguous array, or what NumPy can view as one. A rank
                that brings nothing may pass anything.
            target: Where the result goes. In place if it shares memory with the source as NCCL has it.
                Default: a new array.
            op: ``sum``, ``product``, ``min``, ``max``, ``avg``, or ``band``, ``bor``, ``bxor`` for integers.
            count: Elements of the whole buffer as nccl-tests counts it, where the arrays do not tell.

        Returns:
            The target.

        Raises:
            ValueError: The arrays do not fit the collective.
            CommunicationError: A rank failed, hangs, or called with something else.
        """
        given = None if source is None else _array(source, "source")
        result = None if target is None else _array(target, "target")
        if given is None and result is None:
            raise ValueError("source and target are both missing")
        first = given if given is not None else result
        assert first is not None
        if count is None:
            count = self._count(given, result)
        inputs, outputs = self.buffer_elements(count)
        if result is None:
            result = np.empty(outputs, first.dtype)
        _check(given, "source", inputs, result.dtype)
        _check(result, "target", outputs, result.dtype)
        if outputs and not result.flags.writeable:
            raise ValueError("target cannot be written to")
        self.run_at(
            0 if given is None or not inputs else given.ctypes.data,
            result.ctypes.data if outputs else 0,
            count,
            result.dtype.name,
            op,
        )
        return result

    def run_at(self, source: int, target: int, count: int, dtype: str, op: str = "sum") -> None:
        """Run the collective on the memory at two addresses, without the GIL.

        ``buffer_elements(count)`` says how many elements are there; ``count`` is the whole buffer as
        nccl-tests counts it. ``dtype`` is NumPy's name of the type, or ``bfloat16``.
        """
        comm = self.communicator
        with comm._lock:
            comm._endpoint.run(self._execution, self.number, source, target, count, dtype, op)

    def _count(
        self, source: np.ndarray[Any, Any] | None, target: np.ndarray[Any, Any] | None
    ) -> int:
        """The whole buffer's elements, from what this rank has of it."""
        collective = self.collective
        kind = collective.kind
        sizes = (None if source is None else source.size, None if target is None else target.size)
        if len(collective.parts) == 1:
            part = collective.parts[0]
            n = len(part.group)
            root = part.root >= 0 and int(part.group[part.root]) == self.communicator.rank
            whole, share = {
                "all_reduce": (sizes, None),
                "all_to_all": (sizes, None),
                "reduce": (sizes, None),
                "broadcast": (sizes[::-1], None),
                "reduce_scatter": ((sizes[0],), sizes[1]),
                "all_gather": ((sizes[1],), sizes[0]),
                "gather": ((sizes[1],) if root else (), sizes[0]),
                "scatter": ((sizes[0],) if root else (), sizes[1]),
            }.get(kind, ((), None))
            for size in whole:
                if size is not None:
                    return size
            if share is not None:
                return share * n
        raise ValueError(f"count must be given: the arrays of a {kind} do not tell it here")


def fingerprint(program: Program) -> str:
    """A digest of what a program does, the same for equal programs on any machine.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> ring = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1))
    >>> fingerprint(tacos.lower(ring)) == fingerprint(tacos.lower(ring))
    True
    """
    digest = hashlib.sha256()

    def add(item: Any) -> None:
        for name in FIELDS[type(item)]:
            value = getattr(item, name)
            if name == "provenance":
                continue
            digest.update(name.encode())
            if isinstance(value, np.ndarray):
                digest.update(f"{len(value)}".encode() + value.tobytes())
            elif type(value) in FIELDS:
                add(value)
            elif isinstance(value, list | tuple):
                for part in value:
                    add(part)
            else:
                digest.update(repr(value).encode())

    add(program)
    return digest.hexdigest()


def _array(value: Any, name: str) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__array_interface__") or not hasattr(value, "__dlpack__"):
        try:
            array = np.asarray(memoryview(value))
        except TypeError:
            raise ValueError(f"{name} is a {type(value).__name__}, it must be an array") from None
    else:
        array = np.from_dlpack(value)
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise ValueError(f"{name} is not contiguous in memory")
    return array


def _check(
    array: np.ndarray[Any, Any] | None, name: str, elements: int, dtype: np.dtype[Any]
) -> None:
    if elements == 0:
        return
    if array is None:
        raise ValueError(f"{name} is missing, this rank needs {elements} elements of it")
    if array.size != elements:
        raise ValueError(f"{name} has {array.size} elements, this rank needs {elements}")
    if array.dtype != dtype:
        raise ValueError(f"{name} is of {array.dtype.name}, but target of {dtype.name}")


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


def _own_address() -> str:
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
