"""A network in one process that loses, repeats, delays and reorders packets, with restarts on demand.

It carries the packets of aggregation switches and workers, and checks what it sees: packets are examined with a reader
of their format written here, not with the core's.
"""

from __future__ import annotations

import heapq
import itertools
import random
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tacos._core import AggregationSwitch, AggregationWorker

TOKEN = b"0123456789abcdef"
HEADER = struct.Struct("<HBBIQIIHHHh")
CONTRIBUTION, RESULT, JOIN, WELCOME, NOTICE = 1, 2, 3, 4, 5


class Header(NamedTuple):
    """The first 32 bytes of a packet."""

    magic: int
    version: int
    kind: int
    job: int
    generation: int
    sequence: int
    tag: int
    slot: int
    worker: int
    elements: int
    exponent: int


def header_of(packet: bytes) -> Header:
    """The header of a packet."""
    return Header(*HEADER.unpack_from(packet))


def words_of(packet: bytes) -> np.ndarray:
    """The integers of a packet."""
    return np.frombuffer(packet, "<i4", offset=HEADER.size)


def contribution(
    generation: int,
    worker: int,
    sequence: int,
    slot: int,
    version: int,
    values: list[int],
    *,
    job: int = 0,
    tag: int = 7,
    exponent: int = -0x4000,
) -> bytes:
    """A contribution, built by hand."""
    fields = (0x7AC0, 1, CONTRIBUTION, job, generation, sequence, tag, slot | version << 15, worker)
    return HEADER.pack(*fields, len(values), exponent) + np.array(values, "<i4").tobytes()


def join(worker: int, workers: int, *, pool: int = 2, elements: int = 4, **more: Any) -> bytes:
    """A request to join, built by hand."""
    fields = {
        "token": TOKEN, "job": b"job", "members": 1 << worker, "incarnation": 100 + worker,
        "operation": 0, "elements": 8, "attempt": 1, "dtype": 8, "complete": 0, "behind": 0,
    } | more  # fmt: skip
    head = HEADER.pack(0x7AC0, 1, JOIN, 0, 0, 0, 0, 0, worker, 0, 0)
    return head + struct.pack(
        "<16s32sQQQQIHHHBBB3x",
        *(fields[name] for name in ("token", "job", "members", "incarnation", "operation")),
        *(fields["elements"], fields["attempt"], workers, pool, elements),
        *(fields["dtype"], fields["complete"], fields["behind"]),
    )


@dataclass
class Weather:
    """What the network does to packets."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_us: tuple[int, int] = (5, 50)
    straggler: float = 0.0
    """Probability that a packet takes a hundred times as long."""


@dataclass
class Host:
    """A worker and the operations it has to do."""

    machine: AggregationWorker
    address: int
    parent: int
    inputs: list[np.ndarray]
    outputs: list[np.ndarray] = field(default_factory=list)
    done: int = 0


class Network:
    """Switches and workers, and the packets between them, in virtual time."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.random = random.Random(seed)
        self.weather = weather
        self.now = 0
        self.events: list[tuple[int, int, int, int, bytes]] = []
        self.order = itertools.count()
        self.switches: dict[int, AggregationSwitch] = {}
        self.hosts: dict[int, Host] = {}
        self.watch = SlotWatch()

    def send(self, source: int, target: int, packet: bytes) -> None:
        """Put a packet on its way, or lose it, or send it twice."""
        copies = 1 + (self.random.random() < self.weather.duplication)
        for _ in range(copies):
            if self.random.random() < self.weather.loss:
                continue
            delay = self.random.randint(*self.weather.delay_us)
            if self.random.random() < self.weather.straggler:
                delay *= 100
            heapq.heappush(
                self.events, (self.now + delay, next(self.order), source, target, packet)
            )

    def start(self, host: Host) -> None:
        """Begin the host's next operation."""
        data = host.inputs[host.done]
        result = np.zeros_like(data)
        host.outputs.append(result)
        packets = host.machine.start(
            data.ctypes.data, result.ctypes.data, data.size, _dtype(data), False, self.now
        )
        self.posted(host, packets)

    def posted(self, host: Host, packets: list[bytes]) -> None:
        """Send a worker's packets, and begin the next operation if one has ended."""
        for packet in packets:
            self.send(host.address, host.parent, packet)
        if host.machine.state == "idle" and host.done < host.machine.operation:
            host.done += 1
            if host.done < len(host.inputs) and not host.machine.failure:
                self.start(host)

    def step(self) -> bool:
        """Process the next event; return False if nothing is left to do."""
        due = min((host.machine.deadline_us for host in self.hosts.values()), default=float("inf"))
        if self.events and self.events[0][0] <= due:
            self.now, _, source, target, packet = heapq.heappop(self.events)
            self.watch.arrives(target, packet, self.hosts)
            if target in self.switches:
                machine = self.switches[target]
                for address, answer in machine.receive(source, packet, self.now):
                    self.send(target, address, answer)
            elif target in self.hosts:
                host = self.hosts[target]
                self.posted(host, host.machine.receive(packet, self.now))
            return True
        if due == float("inf") or due >= 1 << 63:
            return False
        self.now = max(self.now, int(due))
        for host in self.hosts.values():
            if host.machine.deadline_us <= self.now:
                self.posted(host, host.machine.poll(self.now))
        return True

    def run(self, limit: int = 2_000_000) -> None:
        """Run until all operations have ended or failed."""
        for _ in range(limit):
            busy = any(
                host.done < len(host.inputs) and not host.machine.failure
                for host in self.hosts.values()
            )
            if not busy or not self.step():
                return
        raise AssertionError(f"not done after {limit} events, at {self.now} us")


class SlotWatch:
    """Finds slots that are reused too early.

    When a contribution for the next use of a version is first seen, every worker must have received the result of the use
    that it overwrites.
    """

    def __init__(self) -> None:
        self.pool = 0
        self.newest: dict[tuple[int, int], int] = {}
        self.received: dict[tuple[int, int], dict[int, int]] = {}
        self.early: list[str] = []

    def arrives(self, target: int, packet: bytes, hosts: dict[int, Host]) -> None:
        """Look at a packet before a switch or a worker does."""
        if len(packet) < HEADER.size:
            return
        head = header_of(packet)
        use = (head.generation, head.slot)
        if head.kind == RESULT and target in hosts:
            got = self.received.setdefault(use, {})
            got[target] = max(got.get(target, -1), head.sequence)
        if head.kind == CONTRIBUTION and head.sequence > self.newest.get(use, -1):
            self.newest[use] = head.sequence
            before = head.sequence - (2 if head.slot & 0x7FFF == self.pool else 2 * self.pool)
            got = self.received.get(use, {})
            behind = [host for host in hosts if got.get(host, -1) < before]
            if before >= 0 and behind:
                self.early.append(f"slot {head.slot}, sequence {head.sequence}: {behind}")


def star(
    seed: int,
    weather: Weather,
    inputs: list[list[np.ndarray]],
    *,
    pool: int = 4,
    packet_elements: int = 8,
    **timing: float,
) -> Network:
    """Workers around one switch, each with a list of arrays to add up, started."""
    network = Network(seed, weather)
    network.switches[1 << 16] = AggregationSwitch([TOKEN], seed + 1)
    network.watch.pool = pool
    for worker, arrays in enumerate(inputs):
        add_host(network, worker, len(inputs), arrays, 1 << 16, pool, packet_elements, **timing)
    return network


def add_host(
    network: Network,
    worker: int,
    workers: int,
    arrays: list[np.ndarray],
    parent: int,
    pool: int,
    packet_elements: int,
    **timing: float,
) -> Host:
    """A worker that begins with its first array."""
    machine = AggregationWorker(
        TOKEN, "job", worker, workers, pool, packet_elements, network.random.getrandbits(63),
        **({"silence_s": 1e6, "timeout_s": 1e6} | timing),
    )  # fmt: skip
    host = Host(machine, (100 + worker) << 16, parent, arrays)
    network.hosts[host.address] = host
    network.start(host)
    return host


def _dtype(data: np.ndarray) -> str:
    return "bfloat16" if data.dtype == np.dtype("V2") else data.dtype.name
