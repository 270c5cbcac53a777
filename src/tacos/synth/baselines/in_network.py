"""All-reduces through switches that reduce packets, as ``tacos switch`` does on a real network.

A worker's data go up once and the sums come down once, in packets with headers. A pool of packets is in flight; the result
of one packet lets the next begin. :func:`estimate` computes the time through one switch from these figures. The engine
builds schedules with them: trees through the switches, at the rate that headers and pool allow. A measurement can then be
compared with ``schedule.time_s``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacos._core import Routes, Schedule, pack_two_way, schedule_all_reduce
from tacos.errors import InfeasibleError
from tacos.synth import requirements
from tacos.synth.engine import Engine
from tacos.topology.edits import reweighted

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Topology

__all__ = ["IN_NETWORK", "estimate", "in_network", "packet_elements", "wire_bytes"]

_WIDTHS = {
    "float32": (4, 1), "float16": (2, 1), "bfloat16": (2, 1), "int8": (1, 1), "uint8": (1, 1),
    "int16": (2, 1), "uint16": (2, 1), "int32": (4, 1), "uint32": (4, 1), "int64": (8, 3), "uint64": (8, 3),
}  # fmt: skip
"""Bytes of an element in memory, and its 32-bit words on the wire."""
_IN_MTU = 60
"""Bytes of a packet besides its integers: IPv4 20, UDP 8, our own header 32."""
_HEADERS = 14 + _IN_MTU
"""Bytes of a frame besides its integers, with Ethernet's header."""
_MOST_ELEMENTS = 16_000
_FEWEST = 2
_SUMS_AND_COPIES = 3
"""Capabilities of a switch that adds up and multicasts."""
_CHUNKS = 128
"""Chunks of a schedule if their number is open: filling and draining the tree then take 1 % (chosen)."""


def packet_elements(mtu: int) -> int:
    """Return the number of 32-bit integers in a packet that fits an MTU.

    >>> packet_elements(1500), packet_elements(9000)
    (360, 2232)
    """
    if mtu < _IN_MTU + 12:
        raise ValueError(f"mtu must be at least {_IN_MTU + 12} bytes; got {mtu}")
    # A multiple of 8, so that the integers of a packet fill whole vectors of the processor.
    return min((mtu - _IN_MTU) // 4 // 8 * 8 or 3, _MOST_ELEMENTS)


def _packets(size_bytes: int, dtype: str, mtu: int, pool: int) -> tuple[int, int, int]:
    """Return the numbers of words, of packets with data, and of leading packets with exponents only."""
    if dtype not in _WIDTHS:
        raise ValueError(f"a switch cannot add {dtype}; expected one of {', '.join(_WIDTHS)}")
    width, words = _WIDTHS[dtype]
    elements = -(-size_bytes // width)
    blocks = -(-elements // (packet_elements(mtu) // words))
    leading = min(pool, blocks) if "float" in dtype else 0
    return elements * words, blocks, leading


def wire_bytes(size_bytes: int, *, dtype: str = "float32", mtu: int = 1500, pool: int = 128) -> int:
    """Return the bytes that each worker sends, and receives, for a sum: frames without preamble and checksum.

    >>> wire_bytes(1440, mtu=1500), wire_bytes(4 * 360 * 1000, dtype="int32", mtu=1500)
    (1662, 1514074)
    """
    words, blocks, leading = _packets(size_bytes, dtype, mtu, pool)
    return 4 * words + _HEADERS * (blocks + leading + 1)


def estimate(
    size_bytes: int,
    *,
    wire_Bps: float,
    round_trip_s: float,
    dtype: str = "float32",
    mtu: int = 1500,
    pool: int = 128,
) -> float:
    """Return the seconds that a sum takes through one switch; the number of workers does not matter.

    Args:
        size_bytes: Size of each worker's buffer.
        wire_Bps: Bytes per second that a worker's link carries, headers included.
        round_trip_s: Round-trip time from a worker to the switch and back, for a packet without integers.
        dtype: Type of the elements.
        mtu: The largest packet.
        pool: Packets in flight at once. If they do not fill the link, round trips determine the time.

    >>> fast = estimate(4 << 20, wire_Bps=1.25e9, round_trip_s=20e-6)
    >>> slow = estimate(4 << 20, wire_Bps=1.25e9, round_trip_s=20e-6, pool=1)
    >>> round(fast * 1e6), slow > 5 * fast
    (3578, True)
    """
    stream_s, trip_s = _stream(size_bytes, wire_Bps, round_trip_s, dtype, mtu, pool)
    return stream_s + trip_s + round_trip_s


def _stream(
    size_bytes: int, wire_Bps: float, round_trip_s: float, dtype: str, mtu: int, pool: int
) -> tuple[float, float]:
    """Return the seconds to send all packets of a worker, and the round-trip time of one packet."""
    words, blocks, leading = _packets(size_bytes, dtype, mtu, pool)
    packets = blocks + leading
    frame = (4 * words + _HEADERS * packets) / max(packets, 1)
    # A packet is stored whole before it is added, and its result before it is read.
    trip = round_trip_s + 2 * (4 * words / max(blocks, 1) + _HEADERS) / wire_Bps
    rate = min(wire_Bps, pool * frame / trip) if packets else wire_Bps
    return packets * frame / rate, trip


def in_network(
    topology: Topology,
    collective: Collective,
    *,
    mtu: int = 1500,
    pool: int = 128,
    dtype: str = "float32",
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """All-reduce through switches that reduce, at the rate that packet headers and a pool of slots allow.

    Chunks go up and down trees through the switches, with the times that they take on links of that rate.
    :func:`tacos.simulate` keeps these times with ``timing="schedule"``.

    Args:
        topology: A switch that reduces and multicasts, or racks of them under a core.
        collective: An all-reduce.
        mtu: The largest packet.
        pool: Packets in flight at once.
        dtype: Type of the elements.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> star = tacos.topology.switch(8, multicast=True, reduce=True, bandwidth="20Mbit/s", latency="50us")
    >>> coll = tacos.collective.all_reduce(star, "2MB")
    >>> print(f"{in_network(star, coll).time_s:.2f} s, without headers {tacos.bound(star, coll).time_s:.2f} s")
    0.85 s, without headers 0.80 s
    """
    IN_NETWORK.check(topology, collective)
    if pool < 1:
        raise ValueError(f"pool must be at least 1; got {pool}")
    (part,) = collective.parts
    size = int(part.size)
    _, blocks, _ = _packets(size, dtype, mtu, pool)
    members = len(part.group)
    chosen = collective
    if not collective.resolved:
        chosen = collective.with_chunks(max(1, min(_CHUNKS, blocks) // members))
    link_Bps = float(topology.link_bandwidth_Bps.min())
    round_trip_s = 2e-12 * float(topology.link_latency_ps.max())
    stream_s, _ = _stream(size, link_Bps, round_trip_s, dtype, mtu, pool)
    share = min(1.0, size / link_Bps / stream_s) if stream_s else 1.0
    # Workers send when results arrive, so every link runs at the rate of the slowest.
    pace = np.full(topology.links, max(1, int(link_Bps * share)), np.int64)
    slower = reweighted(topology, bandwidth_Bps=pace, latency_ps=topology.link_latency_ps)
    pair = pack_two_way(slower, part.group, chosen.chunks, progress)
    if pair is None:
        raise InfeasibleError("no switch that reduces and multicasts connects all members")
    found = schedule_all_reduce(*pair, pair[1].root, chosen, "{}", progress)
    table = found.routes
    return Schedule(
        collective=found.collective,
        routes=Routes(topology, table.kinds, table.link_begin, table.links),
        lane_route=found.lane_route, lane_op=found.lane_op, lane_reads=found.lane_reads,
        lane_begin=found.lane_begin, chunk=found.chunk, start=found.start, quantum_ps=found.quantum_ps,
        consistent=found.consistent,
    )  # fmt: skip


def _obstacle(topology: Topology, collective: Collective) -> str:
    if len(collective.parts) != 1:
        return "one all-reduce"
    if needed := requirements.kind(collective.parts[0], lambda kind: kind.two_phases):
        return needed
    if len(collective.parts[0].group) < _FEWEST:
        return "two members"
    able = topology.switches and np.all(topology.switch_capabilities == _SUMS_AND_COPIES)
    # A connected network with this number of links is a tree.
    ends = np.bincount(topology.link_src, minlength=topology.nodes)[: topology.npus]
    if not able or topology.links != 2 * (topology.nodes - 1) or np.any(ends != 1):
        return "a tree of switches that reduce and multicast, with the NPUs as leaves"
    return ""


IN_NETWORK = Engine(
    name="in-network",
    solve=in_network,
    baseline=True,
    obstacle=_obstacle,
    only_if_named="to be named: it models the headers and the pool of tacos switch",
)
