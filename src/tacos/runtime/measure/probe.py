"""Measure the network between the ranks of a job, with the transport that algorithms will use.

Every pair of ranks is measured alone: round trips of small messages for the latency, and large messages with
a byte in reply for the bandwidth of each direction. Then messages run concurrently, to find shared links, see
:mod:`tacos.runtime.measure.wiring`. Each message takes milliseconds, all together take some seconds.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos import collective as collectives
from tacos import units
from tacos.program import STEP_OPS, Program
from tacos.runtime.dispatch.placement import here
from tacos.runtime.measure.wiring import Pair, Spread, Together, Wiring, find_wiring

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tacos.runtime.algorithm import Algorithm
    from tacos.runtime.communicator import Communicator
    from tacos.runtime.measure.wiring import Port

__all__ = ["probe", "report"]

_LATENCY_ROUNDS = 40
_ROUNDS = 5
_FIRST_BYTES = 1 << 17
_LARGEST_BYTES = 1 << 28
_SHORTEST_S, _LONGEST_S = 0.004, 0.06


def probe(comm: Communicator, *, seconds: float = 10.0) -> Wiring:
    """Measure the network between the ranks; all must call this together.

    Args:
        comm: The ranks, over TCP or MPI.
        seconds: Approximate total time of all messages; many ranks need more.

    Returns:
        Latency and bandwidth of every pair, and what they share; ``.topology()`` returns the network.

    Raises:
        ValueError: There is only one rank.
        CommunicationError: A rank failed.
    """
    if comm.size < 2:
        raise ValueError("there is one rank only, a network has at least two")
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; it must be positive")
    return find_wiring(_Meter(comm, seconds), _names(comm))


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages that run at once, and a byte in reply from each receiver when it has received all."""

    there: Algorithm
    back: Algorithm
    senders: tuple[int, ...]
    largest: int


class _Meter:
    def __init__(self, comm: Communicator, seconds: float) -> None:
        self.comm, self.size = comm, comm.size
        share = seconds / (2 * self.size * (self.size - 1) * _ROUNDS)
        self._time = min(max(share, _SHORTEST_S), _LONGEST_S)
        self._names = itertools.count()
        self._source = np.zeros(0, np.uint8)
        self._target = np.zeros(0, np.uint8)

    def alone(self, a: int, b: int) -> tuple[Pair, Pair]:
        """Measure messages in both directions."""
        there = self._prepare([(a, b, 1)])
        back = _Messages(there.back, there.there, (b,), 1)
        # A round trip measures only the sum of both directions.
        trips = self._run(there, 1, _LATENCY_ROUNDS)
        latency = Spread.of([trip / 2 for trip in trips])
        return self._one_way(there, a, b, latency), self._one_way(back, b, a, latency)

    def _one_way(self, messages: _Messages, src: int, dst: int, latency: Spread) -> Pair:
        size = _FIRST_BYTES
        while True:  # until the message is large enough
            took = min(self._run(messages, size, 2))
            enough = size * self._time / took
            if took > self._time / 4 or size == _LARGEST_BYTES:
                break
            size = min(_LARGEST_BYTES, round(min(enough, 16 * size)))
        size = min(_LARGEST_BYTES, max(_FIRST_BYTES // 4, round(enough)))
        rounds = self._run(messages, size, _ROUNDS)
        rates = [size / max(took - 2 * latency.median, took / 10) for took in rounds]
        return Pair(src, dst, latency, Spread.of(rates))

    def together(self, messages: Sequence[Pair]) -> Together:
        """Measure concurrent messages, with sizes that take equally long alone."""
        rows = [
            (p.src, p.dst, min(_LARGEST_BYTES, max(1, round(p.bandwidth_Bps.median * self._time))))
            for p in messages
        ]
        prepared = self._prepare(rows)
        overhead = 2 * max(p.latency_s.median for p in messages)
        # The fastest round counts: a busy machine is slow at times, but shared links always slow messages down.
        took = min(self._run(prepared, prepared.largest, _ROUNDS - 2)) - overhead
        alone = max(
            size / p.bandwidth_Bps.median for (_, _, size), p in zip(rows, messages, strict=True)
        )
        took = max(took, alone / 10)
        return Together(took / alone, sum(size for _, _, size in rows) / took)

    def each(self, messages: Sequence[Pair]) -> list[float]:
        """Return how much longer each of some concurrent messages takes than alone."""
        sizes = [
            min(_LARGEST_BYTES, max(1, round(p.bandwidth_Bps.median * self._time)))
            for p in messages
        ]
        prepared = self._prepare(
            [(p.src, p.dst, size) for p, size in zip(messages, sizes, strict=True)]
        )
        rows = self._rounds(prepared, prepared.largest, _ROUNDS - 2)
        result = []
        for pair, size in zip(messages, sizes, strict=True):
            took = min(rows[pair.src]) - 2 * pair.latency_s.median
            result.append(max(took, 0.0) / (size / pair.bandwidth_Bps.median))
        return result

    def _prepare(self, messages: list[tuple[int, int, int]]) -> _Messages:
        backwards = [(dst, src, 1) for src, dst, _ in messages]
        there, back = (
            self.comm.prepare(_program(self.size, rows), verify=False)
            for rows in (messages, backwards)
        )
        senders = tuple(sorted({src for src, _, _ in messages}))
        return _Messages(there, back, senders, max(size for _, _, size in messages))

    def _run(self, messages: _Messages, size: int, rounds: int) -> list[float]:
        """Return the seconds of each round, for the slowest sender."""
        rows = self._rounds(messages, size, rounds)
        return [max(column) for column in zip(*rows.values(), strict=True)]

    def _rounds(self, messages: _Messages, size: int, rounds: int) -> dict[int, list[float]]:
        """Return the seconds of each round by sender, without the first round."""
        given, got = messages.there.buffer_elements(size)
        if given > len(self._source):
            self._source = np.zeros(given, np.uint8)
        if got > len(self._target):
            self._target = np.zeros(got, np.uint8)
        source, target = self._source.ctypes.data, self._target.ctypes.data
        self.comm.barrier(f"probe {next(self._names)}")
        times = []
        for _ in range(rounds + 1):
            begin = time.perf_counter()
            messages.there.run_at(source, target, size, "uint8")
            messages.back.run_at(source, target, 1, "uint8")
            times.append(time.perf_counter() - begin)
        value = json.dumps(times if self.comm.rank in messages.senders else []).encode()
        rows = self.comm.exchange(f"probe {next(self._names)}", value)
        return {rank: json.loads(rows[rank])[1:] for rank in messages.senders}


def _program(ranks: int, messages: list[tuple[int, int, int]]) -> Program:
    """Return a program in which each message has a thread at both ends, so that none waits for another."""
    ends = [(m[0], True, i) for i, m in enumerate(messages)]
    ends += [(m[1], False, i) for i, m in enumerate(messages)]
    ends.sort()
    step_of_send = {i: step for step, (_, sends, i) in enumerate(ends) if sends}
    slots: Counter[tuple[int, bool]] = Counter()
    slot = []
    for rank, sends, _ in ends:
        slot.append(slots[rank, sends])
        slots[rank, sends] += 1
    sending = np.array([sends for _, sends, _ in ends])
    peer = np.array([messages[i][1 if sent else 0] for _, sent, i in ends], np.int32)
    steps = len(ends)
    none = np.int32(-1)
    return Program(
        collective=collectives.send_recv(ranks, messages, chunks=1),
        in_place=False,
        scratch_slots=np.zeros(ranks, np.int32),
        thread_rank=np.array([rank for rank, _, _ in ends], np.int32),
        thread_channel=np.zeros(steps, np.int32),
        thread_send_peer=np.where(sending, peer, none),
        thread_recv_peer=np.where(sending, none, peer),
        thread_begin=np.arange(steps + 1, dtype=np.int64),
        op=np.where(sending, STEP_OPS.index("send"), STEP_OPS.index("recv")).astype(np.uint8),
        src_buffer=np.where(sending, 0, 3).astype(np.uint8),
        src_slot=np.where(sending, slot, -1).astype(np.int32),
        dst_buffer=np.where(sending, 3, 1).astype(np.uint8),
        dst_slot=np.where(sending, -1, slot).astype(np.int32),
        count=np.ones(steps, np.int32),
        peer=np.full(steps, none),
        comes_from=np.array([-1 if sent else step_of_send[i] for _, sent, i in ends], np.int32),
        dep_begin=np.zeros(steps + 1, np.int64),
        dep=np.zeros(0, np.int32),
    )


def _names(comm: Communicator) -> list[str]:
    """Return host:local_rank of every rank; local ranks are counted if the launcher does not provide them."""
    rows = [json.loads(row) for row in comm.exchange("probe names", json.dumps(here()).encode())]
    names = [f"{host}:{number}" for host, number in rows]
    if len(set(names)) == len(names) and all(number for _, number in rows):
        return names
    counts: Counter[str] = Counter()
    names = []
    for host, _ in rows:
        names.append(f"{host}:{counts[host]}")
        counts[host] += 1
    return names


def report(wiring: Wiring) -> Iterator[str]:
    """Yield lines of text: every pair alone, with the spread, and what is shared."""
    width = max(4, *(len(name) for name in wiring.names))
    yield f"{'from':>{width}}    {'to':<{width}}  {'latency (min to max)':<34}  bandwidth (min to max)"
    for pair in wiring.pairs:
        low, middle, high = (units.format_time(s) for s in pair.latency_s)
        slow, usual, fast = (units.format_bandwidth(b) for b in pair.bandwidth_Bps)
        latency, bandwidth = f"{middle} ({low} to {high})", f"{usual} ({slow} to {fast})"
        by = "" if pair.relayed_by is None else f"  by way of {wiring.names[pair.relayed_by]}"
        src, dst = wiring.names[pair.src], wiring.names[pair.dst]
        yield f"{src:>{width}} -> {dst:<{width}}  {latency:<34}  {bandwidth}{by}"
    ports = [port for switch in wiring.switches for port in switch.ports]
    shared = {(p.rank, p.out, p.peers): p.bandwidth_Bps for p in ports if len(p.peers) > 1}
    for port in ports:
        if port.behind is not None:
            beside = [p for p in ports if _behind(p) == _behind(port)]
            together = sorted(peer for p in beside for peer in p.peers)
            shared[port.rank, port.out, tuple(together)] = port.behind_Bps
    for (rank, out, peers), rate in sorted(shared.items()):
        listed = ", ".join(wiring.names[peer] for peer in peers)
        way = "to" if out else "from"
        yield f"{wiring.names[rank]} shares {units.format_bandwidth(rate)} {way} {listed}"
    for switch in wiring.switches:
        for one in switch.shared:
            members = [switch.ports[i] for i in one.ports]
            listed = ", ".join(wiring.names[port.rank] for port in members)
            way = "out" if members[0].out else "in"
            yield f"{listed} share {units.format_bandwidth(one.bandwidth_Bps)} on the way {way}"
        for rack in switch.racks:
            listed = ", ".join(wiring.names[rank] for rank in rack.ranks)
            up, down = (units.format_bandwidth(rate) for rate in (rack.up_Bps, rack.down_Bps))
            yield f"{listed} are in one rack, with {up} out of it and {down} into it"
        if switch.trunk_Bps is not None:
            listed = ", ".join(wiring.names[port.rank] for port in switch.ports if port.out)
            yield f"{listed} share {units.format_bandwidth(switch.trunk_Bps)} on their way"


def _behind(port: Port) -> tuple[int, bool, int | None]:
    return port.rank, port.out, port.behind
