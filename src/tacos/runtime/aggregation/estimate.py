"""How long a sum through a switch takes: packets, their headers, and the pool that keeps them on their way."""

from __future__ import annotations

from tacos.runtime.aggregation.endpoints import packet_elements

__all__ = ["estimate", "wire_bytes"]

_WIDTHS = {
    "float32": (4, 1), "float16": (2, 1), "bfloat16": (2, 1), "int8": (1, 1), "uint8": (1, 1),
    "int16": (2, 1), "uint16": (2, 1), "int32": (4, 1), "uint32": (4, 1), "int64": (8, 3), "uint64": (8, 3),
}  # fmt: skip
"""Bytes of an element in memory, and 32-bit words on the wire."""
_HEADERS = 74
"""Bytes of a frame beside its integers: Ethernet 14, IPv4 20, UDP 8, our own 32."""


def _packets(size_bytes: int, dtype: str, mtu: int, pool: int) -> tuple[int, int, int]:
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
    """Return the seconds that a sum takes through one switch, whatever the number of workers.

    Args:
        size_bytes: Size of each worker's buffer.
        wire_Bps: Bytes per second that a worker's link carries, headers included.
        round_trip_s: From a worker to the switch and back, for a packet without integers.
        dtype: Type of the elements.
        mtu: The largest packet.
        pool: Packets on their way at once. If they do not fill the link, the round trips take the time.

    >>> fast = estimate(4 << 20, wire_Bps=1.25e9, round_trip_s=20e-6)
    >>> slow = estimate(4 << 20, wire_Bps=1.25e9, round_trip_s=20e-6, pool=1)
    >>> round(fast * 1e6), slow > 5 * fast
    (3578, True)
    """
    words, blocks, leading = _packets(size_bytes, dtype, mtu, pool)
    packets = blocks + leading
    frame = (4 * words + _HEADERS * packets) / max(packets, 1)
    # A packet is stored whole before it is added, and its result before it is read.
    trip = round_trip_s + 2 * (4 * words / max(blocks, 1) + _HEADERS) / wire_Bps
    rate = min(wire_Bps, pool * frame / trip) if packets else wire_Bps
    return packets * frame / rate + trip + round_trip_s
