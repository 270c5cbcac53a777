"""Switches and workers as Python objects: addresses, tokens, arrays."""

from __future__ import annotations

import hashlib
import json
import secrets
import socket
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tacos._core import UdpSwitch, UdpWorker, aggregation_encodes
from tacos._support.variables import read
from tacos.errors import CommunicationError
from tacos.runtime.aggregation.xdp import XdpProgram, address_of, possible_cpus
from tacos.synth.baselines.in_network import packet_elements

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import ArrayLike

__all__ = ["DEFAULT_PORT", "Switch", "SwitchLost", "SwitchWorker", "connect"]

DEFAULT_PORT = 48864
"""0xBEE0, the first UDP port of SwitchML."""
_LOOPBACK = "127.0.0.1"
_TIMER_S = 0.02
"""Seconds until a packet is retransmitted, before a round trip has been measured (chosen)."""
_LEAST_TIMER_S = 0.005
"""Smallest value of that timer; a smaller one would retransmit packets that a busy machine has not handled yet (chosen)."""


class SwitchLost(CommunicationError):
    """The switch no longer answers.

    Attributes:
        has_results: Whether this worker had all results of the operation when that happened.
    """

    has_results = False


def digest(token: str) -> bytes:
    """Return the digest of a token that packets carry."""
    if not token:
        raise ValueError("the token is empty; set TACOS_SWITCH_TOKEN or pass one")
    return hashlib.sha256(b"tacos switch\0" + token.encode()).digest()[:16]


def resolved(address: str, what: str = "address") -> tuple[str, int]:
    """Split ``host:port`` and return an IPv4 address and a port.

    >>> resolved("127.0.0.1:5000"), resolved("localhost")
    (('127.0.0.1', 5000), ('127.0.0.1', 48864))
    >>> resolved("127.0.0.1:x")
    Traceback (most recent call last):
    ValueError: address must be HOST:PORT with a port of 1 to 65535; got '127.0.0.1:x'
    """
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, str(DEFAULT_PORT)
    if not port.isdecimal() or not 0 < int(port) < 1 << 16 or not host:
        raise ValueError(f"{what} must be HOST:PORT with a port of 1 to 65535; got {address!r}")
    return _ipv4(host, what), int(port)


def _ipv4(host: str, what: str) -> str:
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_DGRAM)
    except OSError as error:
        raise ValueError(
            f"{what} is {host!r}, which has no IPv4 address: {error.strerror or error}"
        ) from None
    return str(found[0][4][0])


class Switch:
    """A switch in user space: it adds up the packets of workers over UDP, on its own threads.

    Args:
        host: The address to listen at. The default is reachable only from this machine.
        port: The first UDP port; each further core uses the next one. 0: any free port.
        token: The token that jobs must present, or several, one per job. Default: ``TACOS_SWITCH_TOKEN``, or a new one.
        cores: Number of threads, each with a range of every job's slots.
        slots: Total number of slots for all jobs.
        mtu: The largest packet that it accepts.
        jobs: Largest number of jobs at once.
        parent: ``host:port`` of the switch above, if this is the switch of a rack.
        members: Numbers of the workers below this switch, if it has a parent.
        loss: Probability of dropping a packet on purpose, independently on arrival and on departure.
        seed: Random seed for losses and generations; 0: random.
        xdp: An interface at which the kernel adds up packets of up to 360 integers (an MTU of 1500), of jobs without racks
            below or above. Needs root, clang, and Linux 6.6. Other packets are added in user space. The switch then listens
            at the interface's address, unless `host` is given.

    Attributes:
        token: The first token.
        address: ``host:port``, as workers need it.

    Raises:
        TacosError: The port is in use, the address does not belong to this machine, or XDP cannot be used.

    >>> with Switch() as switch:
    ...     switch.stats()["packets"]
    0
    """

    def __init__(
        self,
        host: str = _LOOPBACK,
        port: int = 0,
        *,
        token: str | Sequence[str] | None = None,
        cores: int = 1,
        slots: int = 8192,
        mtu: int = 9000,
        jobs: int = 64,
        parent: str | None = None,
        members: Collection[int] = (),
        loss: float = 0.0,
        seed: int = 0,
        xdp: str | None = None,
    ) -> None:
        tokens = [token] if isinstance(token, str) else list(token or ())
        tokens = tokens or [read("TACOS_SWITCH_TOKEN") or secrets.token_hex(16)]
        if not 0 <= loss < 1:
            raise ValueError(f"loss must be a probability below 1; got {loss:g}")
        if not 0 <= port < 1 << 16:
            raise ValueError(f"port must be 0 to 65535; got {port}")
        if bool(parent) != bool(members):
            raise ValueError("parent and members go together: the switch of a rack needs both")
        for name, value, most in (
            ("cores", cores, 64),
            ("slots", slots, 1 << 20),
            ("jobs", jobs, 4096),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"{name} must be 1 to {most:,}; got {value}")
        if any(not 0 <= worker < 64 for worker in members):
            raise ValueError(f"members must be workers from 0 to 63; got {sorted(members)}")
        above = resolved(parent, "parent") if parent else ("", 0)
        if xdp == "":
            raise ValueError("xdp is empty; it must be an interface, such as eth0")
        if xdp and (cores != 1 or parent):
            raise ValueError(
                "a switch with XDP has one core, as the kernel uses all, and no parent"
            )
        if xdp and host == _LOOPBACK:
            host = address_of(xdp)
        self.host = _ipv4(host, "host")
        self.token = tokens[0]
        self._core = UdpSwitch(
            self.host, port, cores, [digest(one) for one in tokens], slots, packet_elements(mtu), jobs,
            *above, sum(1 << worker for worker in set(members)), loss, loss, seed, False,
        )  # fmt: skip
        self.port = self._core.port
        self.xdp = xdp
        self._kernel = XdpProgram(slots, jobs) if xdp else None
        if xdp and self._kernel:
            try:
                # Each job has an additional closing slot.
                self._core.use_kernel(xdp, *self._kernel.maps, jobs, slots + jobs, possible_cpus())
                self._kernel.attach(xdp, self.host, self.port, loss)
            except BaseException:
                self._kernel.close()  # otherwise, a part would stay attached
                raise

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def mode(self) -> str:
        """Where packets are added up: ``user``, or in the kernel, ``native`` (in the driver) or ``generic``."""
        return self._kernel.mode if self._kernel else "user"

    @property
    def busy_s(self) -> float:
        """Processor time of the threads so far, in seconds."""
        return self._core.busy_s

    @property
    def failure(self) -> str:
        """Why a thread has failed, or empty."""
        return self._core.failure

    def start(self) -> None:
        """Start the threads."""
        self._core.start()

    def close(self) -> None:
        """End the threads; later packets are lost."""
        self._core.stop()
        if self._kernel:
            self._kernel.close()

    def stats(self) -> dict[str, Any]:
        """Return the counters and the jobs, like :func:`tacos.runtime.aggregation.stats` does over the network."""
        found: dict[str, Any] = json.loads(self._core.stats())
        return found

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    address: str,
    *,
    worker: int,
    workers: int,
    token: str | None = None,
    job: str = "job",
    pool: int = 64,
    mtu: int = 1500,
    source: str = "",
    silence: float = 3.0,
    timeout: float = 60.0,
) -> SwitchWorker:
    """Become a worker of a switch. Packets are exchanged when the first operation begins.

    Args:
        address: ``host:port`` of the switch.
        worker: The number of this worker, from 0.
        workers: Number of workers of the job, at most 64.
        token: The job's token. Default: ``TACOS_SWITCH_TOKEN``.
        job: Name of the job; jobs of one switch do not mix.
        pool: Most packets in flight. Their bytes should be twice the bandwidth times the round-trip time.
        mtu: The largest packet that the network carries; the same on all workers.
        source: The address of this machine to send from, if it has several.
        silence: Seconds without any answer after which the switch is considered dead.
        timeout: Seconds without progress after which an operation fails.

    Raises:
        ValueError: An argument is out of range.
    """
    host, port = resolved(address)
    if not (silence > 0 and timeout > 0):
        raise ValueError(f"silence and timeout must be positive; got {silence:g} and {timeout:g}")
    if token is None:
        token = read("TACOS_SWITCH_TOKEN")
    for name, value in (("worker", worker), ("workers", workers), ("pool", pool)):
        if not 0 <= value < 1 << 16:
            raise ValueError(f"{name} is {value}; it must be 0 to 65535")
    bind = _ipv4(source, "source") if source else ""
    return SwitchWorker(
        UdpWorker(
            host, port, bind, digest(token), job, worker, workers, pool, packet_elements(mtu),
            secrets.randbits(63), _TIMER_S, _LEAST_TIMER_S, silence, timeout,
        ),
        address, worker, workers,
    )  # fmt: skip


class SwitchWorker:
    """A worker of a switch, from :func:`connect`. All workers of a job must make the same calls in the same order."""

    def __init__(self, core: UdpWorker, address: str, worker: int, workers: int) -> None:
        self._core = core
        self.address, self.worker, self.workers = address, worker, workers

    @staticmethod
    def adds(dtype: str, op: str = "sum") -> bool:
        """Return whether a switch can reduce this type with this operation.

        >>> SwitchWorker.adds("float32", "avg"), SwitchWorker.adds("int64"), SwitchWorker.adds("float64"), SwitchWorker.adds("int32", "max")
        (True, True, False, False)
        """
        return aggregation_encodes(dtype) and (op == "sum" or (op == "avg" and "float" in dtype))

    def all_reduce(
        self, source: ArrayLike, target: np.ndarray[Any, Any] | None = None, op: str = "sum"
    ) -> np.ndarray[Any, Any]:
        """Sum an array over all workers.

        Integers are exact and wrap around. Floating-point sums have an error of at most n² 2^(e-1) / (2^31 - 1) for
        n workers, where 2^e is the least power of two above all magnitudes in a packet, and the rounding to the type. All
        workers get the same bits. A block with a value that is not finite is returned as nan.

        Args:
            source: A contiguous array of integers, float32 or float16.
            target: The array for the sums; by default a new array. It may be the source.
            op: ``sum``, or ``avg`` of floating-point numbers.

        Raises:
            ValueError: A switch does not support the type or the operation.
            SwitchLost: The switch no longer answers; if the target is the source, it is unchanged.
            CommunicationError: A worker is missing, or runs another operation.
        """
        data = np.asarray(source)
        if not self.adds(data.dtype.name, op):
            raise ValueError(
                f"a switch cannot compute the {op} of {data.dtype.name}; it adds integers, float32 and float16"
            )
        result = np.empty_like(data) if target is None else target
        if not (data.flags.c_contiguous and result.flags.c_contiguous and result.flags.writeable):
            raise ValueError("source and target must be contiguous, and target writeable")
        if result.dtype != data.dtype or result.shape != data.shape:
            raise ValueError(
                f"target has {result.dtype.name} {result.shape}, the source {data.dtype.name} {data.shape}"
            )
        self.all_reduce_at(
            data.ctypes.data, result.ctypes.data, data.size, data.dtype.name, average=op == "avg"
        )
        return result

    def all_reduce_at(
        self, source: int, target: int, count: int, dtype: str, *, average: bool = False
    ) -> None:
        """Sum memory at addresses, like `all_reduce`; also supports ``bfloat16``."""
        try:
            self._core.all_reduce(source, target, count, dtype, average)
        except CommunicationError as error:
            if not self._core.lost:
                raise
            lost = SwitchLost(f"worker {self.worker}, switch {self.address}: {error}")
            lost.has_results = self._core.has_results
            raise lost from None

    def restore(self) -> None:
        """Restore the inputs of a failed operation that ran in place and had all results."""
        self._core.restore()

    @property
    def non_finite(self) -> bool:
        """Whether the last operation contained inf or nan; the same on all workers."""
        return self._core.non_finite

    @property
    def operation(self) -> int:
        """Number of the next operation; a worker that replaces another one starts there."""
        return self._core.operation

    @operation.setter
    def operation(self, number: int) -> None:
        self._core.operation = number

    @property
    def packets(self) -> int:
        """Packets of the last operation, each counted once."""
        return self._core.packets

    @property
    def counters(self) -> dict[str, int]:
        """Counters of packets sent and received so far."""
        return self._core.counters

    def close(self) -> None:
        """Leave the job."""
        self._core.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
