"""What NCCL's software costs inside a box, by device and library: the time that its tuner does not know.

The tuner (:mod:`tacos.synth.baselines.nccl.tuner`) says what NCCL chooses; a :class:`Software` says how long the choice takes
in a box. Each of its mechanisms has a few parameters with a physical meaning, fitted to whole curves of nccl-tests by
``python -m benchmarks.reality --fit``, for one device and library at a time. Library versions of the measurements are labels
of the machine images that ran them.

All times are microseconds. Rates are shares of the bandwidth that NCCL's tuner counts with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = [
    "LINE_BYTES",
    "SOFTWARE",
    "WIDE_BYTES",
    "Packets",
    "Pairs",
    "Software",
    "Stages",
    "Switched",
    "numbers",
    "of",
]

Number: TypeAlias = "float | NDArray[np.float64]"

WIDE_BYTES = 1 << 20
"""Least message that uses all channels between two GPUs, in bytes (measured: a jump on all devices up to version 2.28)."""

LINE_BYTES = 2048.0
"""Bytes of a step at which a hop of LL or LL128 takes half of its additional time (chosen)."""


@dataclass(frozen=True, slots=True)
class Packets:
    """Rings with the protocols LL and LL128, whose packets carry their own flags.

    Attributes:
        base_us: A kernel from its launch to its end, without steps.
        hop_us: A step with a few bytes.
        fill_us: Additional time of a step that fills its packets.
        window_bytes: Bytes of a step that are in flight at once, over all channels; a longer step waits for its rest.
        share: Share of the rings' bandwidth that carries data.
    """

    base_us: float
    hop_us: float
    fill_us: float
    window_bytes: float
    share: float

    def us(
        self, npus: Number, steps: Number, size: Number, rate: Number, hop_us: Number = 0.0
    ) -> tuple[Number, Number]:
        """Return the microseconds of latencies and of bytes.

        Args:
            npus: GPUs of the ring.
            steps: Steps of the ring.
            size: Bytes of the collective.
            rate: Bandwidth of all rings in bytes per microsecond.
            hop_us: Latency of the network's hop, if it is longer.
        """
        step = size / npus
        hop = np.maximum(self.hop_us, hop_us) + self.fill_us * step / (step + LINE_BYTES)
        rest = np.maximum(0.0, step - self.window_bytes)
        return self.base_us + steps * hop, (steps + 1) * rest / (rate * self.share)


@dataclass(frozen=True, slots=True)
class Stages:
    """Rings with the protocol Simple, which synchronizes after each chunk.

    Attributes:
        base_us: A kernel from its launch to its end, without steps.
        hop_us: A step with few bytes. Steps overlap with the transfer of other chunks: their sum and the time of
            bytes are combined as the sides of a right triangle.
        share: Share of the rings' bandwidth that is reached.
        copy_share: Duration of the last step, which only copies a chunk out of its buffer, in steps that also send.
        ramp_us: Time that large collectives lose until chunks have their full size.
        ramp_bytes: Size at which half of that is lost.
    """

    base_us: float
    hop_us: float
    share: float
    copy_share: float
    ramp_us: float
    ramp_bytes: float

    def us(
        self, npus: Number, steps: Number, size: Number, rate: Number, hop_us: Number = 0.0
    ) -> tuple[Number, Number]:
        """Return the microseconds of latencies and of bytes; arguments are those of `Packets.us`."""
        sent = (steps + self.copy_share) * size / npus / (rate * self.share)
        hops = steps * np.maximum(self.hop_us, hop_us)
        ramp = self.ramp_us * size / (size + self.ramp_bytes)
        return self.base_us + np.hypot(hops, sent) - sent + ramp, sent


@dataclass(frozen=True, slots=True)
class Switched:
    """NVLS: switches sum and multicast.

    Attributes:
        base_us: A kernel from its launch to its end.
        npu_us: Additional time per GPU.
        share: Share of the rings' bandwidth that the switch's sums reach.
        own: Share of a GPU's own part of the result that its port carries in addition.
        gather_share: The same for all-gathers and reduce-scatters.
        ramp_us: Time per GPU that large collectives lose until chunks have their full size.
        ramp_bytes: Size at which half of that is lost.
    """

    base_us: float
    npu_us: float
    share: float
    own: float
    gather_share: float
    ramp_us: float
    ramp_bytes: float

    def us(self, npus: Number, phases: Number, size: Number, rate: Number) -> tuple[Number, Number]:
        """Return the microseconds of latencies and of bytes; an all-reduce has two phases.

        The other arguments are those of `Packets.us`.
        """
        ramp = self.ramp_us * npus * size / (size + self.ramp_bytes)
        sums = size * (1 + self.own / npus) / (rate * self.share)
        gathers = size * (1 - 1 / npus) / (rate * self.gather_share)
        sent = np.where(np.equal(phases, 2), sums, gathers)
        return self.base_us + self.npu_us * npus + ramp, sent


@dataclass(frozen=True, slots=True)
class Pairs:
    """Direct messages: all-to-all, gather, scatter, send-receive.

    Attributes:
        base_us: A kernel from its launch to its end.
        peer_us: Additional time per peer.
        peers_us: Additional time per square of the number of peers.
        chunk_us: Additional time of messages that are longer than a chunk.
        chunk_bytes: Length of a message that costs half of that.
        share: Share of a port's nominal bandwidth that is reached.
        copy_share: Duration of a rank's copy of its own message, in messages that are sent.
        narrow_GBps: What a rank sends while messages are short, which then use few channels.
        ramp_us: Time that large collectives lose until all channels have full chunks.
        ramp_bytes: Size at which half of that is lost.
    """

    base_us: float
    peer_us: float
    peers_us: float
    chunk_us: float
    chunk_bytes: float
    share: float
    copy_share: float
    narrow_GBps: float
    ramp_us: float
    ramp_bytes: float

    def us(
        self, peers: Number, message: Number, sent_us: Number, hop_us: Number = 0.0
    ) -> tuple[Number, Number]:
        """Return the microseconds of latencies and of bytes.

        Args:
            peers: Messages that the busiest rank sends or receives.
            message: Bytes of the longest message.
            sent_us: Time of the busiest link at its nominal bandwidth.
            hop_us: Latency of the network, if it is longer.
        """
        base = np.maximum(self.base_us + self.peer_us * peers + self.peers_us * peers**2, hop_us)
        chunk = self.chunk_us * message / (message + self.chunk_bytes)
        size = message * (peers + 1)
        ramp = self.ramp_us * size / (size + self.ramp_bytes)
        sent = sent_us * (1 + self.copy_share / peers) / self.share
        before = base + chunk + ramp
        narrow = np.hypot(before, message * peers / (self.narrow_GBps * 1e3)) - before
        return before, np.where(message < WIDE_BYTES, np.maximum(sent, narrow), sent)


@dataclass(frozen=True, slots=True)
class Software:
    """Costs of a library on a device.

    Attributes:
        device: Such as ``"H200"``.
        version: The oldest library version that the record is for, such as ``"2.29"``.
        npus: Most GPUs of a group that were measured.
        wide: Whether NCCL's tuner counts with LL128's whole share of the bandwidth, as versions before 2.29 seem to, which
            keep LL128 at larger sizes on Blackwell; newer ones also limit each channel.
        ll: Rings with LL.
        ll128: Rings with LL128.
        simple: Rings with Simple.
        switched: NVLS; None if the device lacks it.
        pairs: Direct messages.
        lent: Mechanisms that NCCL chose on no measured row, whose parameters are those of another record.
    """

    device: str
    version: str
    npus: int
    wide: bool
    ll: Packets
    ll128: Packets
    simple: Stages
    switched: Switched | None
    pairs: Pairs
    lent: tuple[str, ...] = ()


def of(device: str, version: str, npus: int = 1) -> Software | None:
    """Return the record for a device, version and group: the newest that is not newer, and was measured with such a group.

    The oldest record serves older versions, and the record with the largest groups serves larger groups; None if the
    device was not measured.

    >>> of("H200", "2.29.3").version, of("GB200", "2.29", 72).version, of("V100", "2.29")
    ('2.29', '2.27', None)
    """
    known = [one for one in SOFTWARE if one.device == device]
    large = [one for one in known if one.npus >= min(npus, max(two.npus for two in known))]
    fitting = [one for one in large if numbers(one.version) <= numbers(version)]
    return fitting[-1] if fitting else large[0] if large else None


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version.

    >>> numbers("2.29.2")
    (2, 29, 2)
    """
    found = tuple(int(part) for part in version.split(".") if part.isdigit())
    if len(found) != version.count(".") + 1 or not 2 <= len(found) <= 3:
        raise ValueError(f"version must be a version of NCCL such as '2.29'; got {version!r}")
    return found


SOFTWARE: Sequence[Software] = (
    Software(
        device="A100",
        version="2.27",
        npus=8,
        wide=False,
        ll=Packets(base_us=9.07, hop_us=0.571, fill_us=1.02, window_bytes=28600.0, share=0.459),
        ll128=Packets(base_us=14.5, hop_us=1.27, fill_us=0.118, window_bytes=22300.0, share=0.703),
        simple=Stages(
            base_us=21.8,
            hop_us=9.49,
            share=0.941,
            copy_share=0.32,
            ramp_us=101.0,
            ramp_bytes=61800000.0,
        ),
        switched=None,
        pairs=Pairs(
            base_us=9.66,
            peer_us=0.746,
            peers_us=0.00365,
            chunk_us=3.48,
            chunk_bytes=7060.0,
            share=0.72,
            copy_share=0.271,
            narrow_GBps=300.0,
            ramp_us=40.8,
            ramp_bytes=10000000.0,
        ),
        lent=(),
    ),
    Software(
        device="H100",
        version="2.23",
        npus=8,
        wide=False,
        ll=Packets(base_us=5.86, hop_us=0.694, fill_us=0.468, window_bytes=1110.0, share=0.551),
        ll128=Packets(base_us=7.53, hop_us=1.23, fill_us=0.767, window_bytes=0.685, share=0.937),
        simple=Stages(
            base_us=9.72,
            hop_us=7.58,
            share=0.975,
            copy_share=0.397,
            ramp_us=44.8,
            ramp_bytes=41000000.0,
        ),
        switched=Switched(
            base_us=11.2,
            npu_us=1.47,
            share=0.856,
            own=1.21,
            gather_share=0.9,
            ramp_us=10.6,
            ramp_bytes=21600000.0,
        ),
        pairs=Pairs(
            base_us=6.33,
            peer_us=0.63,
            peers_us=0.0115,
            chunk_us=4.59,
            chunk_bytes=206000.0,
            share=0.764,
            copy_share=0.0574,
            narrow_GBps=300.0,
            ramp_us=54.1,
            ramp_bytes=40400000.0,
        ),
        lent=("switched",),
    ),
    Software(
        device="H100",
        version="2.29",
        npus=8,
        wide=False,
        ll=Packets(base_us=5.08, hop_us=0.667, fill_us=0.436, window_bytes=46800.0, share=0.525),
        ll128=Packets(
            base_us=11.9, hop_us=0.833, fill_us=0.0884, window_bytes=22200.0, share=0.887
        ),
        simple=Stages(
            base_us=11.4,
            hop_us=6.26,
            share=1.02,
            copy_share=0.427,
            ramp_us=46.3,
            ramp_bytes=49100000.0,
        ),
        switched=Switched(
            base_us=11.2,
            npu_us=1.47,
            share=0.856,
            own=1.21,
            gather_share=0.9,
            ramp_us=10.6,
            ramp_bytes=21600000.0,
        ),
        pairs=Pairs(
            base_us=5.96,
            peer_us=0.187,
            peers_us=0.0118,
            chunk_us=6.6,
            chunk_bytes=20000.0,
            share=0.745,
            copy_share=0.108,
            narrow_GBps=300.0,
            ramp_us=53.3,
            ramp_bytes=86000000.0,
        ),
        lent=(),
    ),
    Software(
        device="H200",
        version="2.23",
        npus=8,
        wide=False,
        ll=Packets(base_us=5.76, hop_us=0.692, fill_us=0.675, window_bytes=51900.0, share=0.505),
        ll128=Packets(base_us=8.28, hop_us=1.14, fill_us=0.451, window_bytes=0.371, share=0.919),
        simple=Stages(
            base_us=14.2,
            hop_us=5.44,
            share=0.997,
            copy_share=0.42,
            ramp_us=42.0,
            ramp_bytes=70900000.0,
        ),
        switched=Switched(
            base_us=8.26,
            npu_us=1.75,
            share=0.889,
            own=1.29,
            gather_share=0.9,
            ramp_us=11.3,
            ramp_bytes=22500000.0,
        ),
        pairs=Pairs(
            base_us=6.09,
            peer_us=0.835,
            peers_us=3.82e-06,
            chunk_us=2.45,
            chunk_bytes=20600.0,
            share=0.75,
            copy_share=0.143,
            narrow_GBps=300.0,
            ramp_us=29.9,
            ramp_bytes=25400000.0,
        ),
        lent=("switched",),
    ),
    Software(
        device="H200",
        version="2.29",
        npus=8,
        wide=False,
        ll=Packets(base_us=4.62, hop_us=0.782, fill_us=0.495, window_bytes=51200.0, share=0.508),
        ll128=Packets(base_us=12.1, hop_us=0.813, fill_us=0.245, window_bytes=10100.0, share=0.957),
        simple=Stages(
            base_us=9.82,
            hop_us=6.88,
            share=1.01,
            copy_share=0.389,
            ramp_us=39.2,
            ramp_bytes=47000000.0,
        ),
        switched=Switched(
            base_us=8.26,
            npu_us=1.75,
            share=0.889,
            own=1.29,
            gather_share=0.9,
            ramp_us=11.3,
            ramp_bytes=22500000.0,
        ),
        pairs=Pairs(
            base_us=6.03,
            peer_us=0.232,
            peers_us=0.0289,
            chunk_us=6.04,
            chunk_bytes=20600.0,
            share=0.749,
            copy_share=0.0343,
            narrow_GBps=300.0,
            ramp_us=68.0,
            ramp_bytes=131000000.0,
        ),
        lent=(),
    ),
    Software(
        device="B200",
        version="2.27",
        npus=8,
        wide=True,
        ll=Packets(base_us=7.63, hop_us=1.26, fill_us=0.262, window_bytes=247.0, share=0.425),
        ll128=Packets(base_us=5.08, hop_us=1.3, fill_us=0.614, window_bytes=69600.0, share=0.647),
        simple=Stages(
            base_us=15.7,
            hop_us=11.0,
            share=0.925,
            copy_share=0.576,
            ramp_us=8.99,
            ramp_bytes=112000000.0,
        ),
        switched=Switched(
            base_us=17.8,
            npu_us=2.53e-05,
            share=0.6,
            own=0.0846,
            gather_share=0.9,
            ramp_us=8.72,
            ramp_bytes=18900000.0,
        ),
        pairs=Pairs(
            base_us=8.92,
            peer_us=0.378,
            peers_us=6.01e-07,
            chunk_us=2.13,
            chunk_bytes=8130.0,
            share=0.69,
            copy_share=0.955,
            narrow_GBps=300.0,
            ramp_us=15.7,
            ramp_bytes=6320000.0,
        ),
        lent=(),
    ),
    Software(
        device="B200",
        version="2.29",
        npus=8,
        wide=False,
        ll=Packets(base_us=7.67, hop_us=1.24, fill_us=0.192, window_bytes=127.0, share=0.461),
        ll128=Packets(base_us=5.08, hop_us=1.3, fill_us=0.614, window_bytes=69600.0, share=0.647),
        simple=Stages(
            base_us=13.7,
            hop_us=11.4,
            share=0.946,
            copy_share=0.628,
            ramp_us=1.84,
            ramp_bytes=14200000.0,
        ),
        switched=Switched(
            base_us=38.4,
            npu_us=9.65e-07,
            share=0.597,
            own=2.02e-06,
            gather_share=0.9,
            ramp_us=8.44,
            ramp_bytes=32300000.0,
        ),
        pairs=Pairs(
            base_us=8.31,
            peer_us=0.417,
            peers_us=0.00615,
            chunk_us=6.86,
            chunk_bytes=24700.0,
            share=0.746,
            copy_share=0.908,
            narrow_GBps=300.0,
            ramp_us=30.9,
            ramp_bytes=83200000.0,
        ),
        lent=("ll128",),
    ),
    Software(
        device="B300",
        version="2.29",
        npus=8,
        wide=False,
        ll=Packets(base_us=7.27, hop_us=1.18, fill_us=0.422, window_bytes=120000.0, share=0.428),
        ll128=Packets(base_us=5.08, hop_us=1.3, fill_us=0.614, window_bytes=69600.0, share=0.647),
        simple=Stages(
            base_us=12.3,
            hop_us=11.7,
            share=0.957,
            copy_share=0.621,
            ramp_us=15.7,
            ramp_bytes=270000000.0,
        ),
        switched=Switched(
            base_us=39.2,
            npu_us=0.0085,
            share=0.619,
            own=9.22e-07,
            gather_share=0.9,
            ramp_us=9.31,
            ramp_bytes=39000000.0,
        ),
        pairs=Pairs(
            base_us=8.72,
            peer_us=0.178,
            peers_us=0.039,
            chunk_us=6.32,
            chunk_bytes=22000.0,
            share=0.771,
            copy_share=0.914,
            narrow_GBps=300.0,
            ramp_us=32.5,
            ramp_bytes=99900000.0,
        ),
        lent=("ll128",),
    ),
    Software(
        device="GB200",
        version="2.27",
        npus=72,
        wide=True,
        ll=Packets(base_us=10.6, hop_us=1.26, fill_us=0.159, window_bytes=115000.0, share=0.403),
        ll128=Packets(base_us=15.4, hop_us=0.829, fill_us=0.368, window_bytes=6570.0, share=0.896),
        simple=Stages(
            base_us=32.3,
            hop_us=5.75,
            share=0.952,
            copy_share=0.197,
            ramp_us=360.0,
            ramp_bytes=5130000000.0,
        ),
        switched=Switched(
            base_us=38.9,
            npu_us=0.271,
            share=0.629,
            own=0.0625,
            gather_share=1.74,
            ramp_us=8.31,
            ramp_bytes=74300000.0,
        ),
        pairs=Pairs(
            base_us=10.8,
            peer_us=7.15e-07,
            peers_us=0.00998,
            chunk_us=9.81,
            chunk_bytes=172000.0,
            share=0.708,
            copy_share=0.0895,
            narrow_GBps=126.0,
            ramp_us=35.2,
            ramp_bytes=49800000.0,
        ),
        lent=(),
    ),
    Software(
        device="GB200",
        version="2.29",
        npus=4,
        wide=False,
        ll=Packets(base_us=8.39, hop_us=1.06, fill_us=0.544, window_bytes=148000.0, share=0.424),
        ll128=Packets(base_us=15.4, hop_us=0.829, fill_us=0.368, window_bytes=6570.0, share=0.896),
        simple=Stages(
            base_us=13.5,
            hop_us=12.3,
            share=0.919,
            copy_share=0.61,
            ramp_us=0.613,
            ramp_bytes=41400000.0,
        ),
        switched=Switched(
            base_us=51.6,
            npu_us=0.111,
            share=0.765,
            own=0.459,
            gather_share=0.9,
            ramp_us=6.51,
            ramp_bytes=13100000.0,
        ),
        pairs=Pairs(
            base_us=9.11,
            peer_us=0.439,
            peers_us=0.015,
            chunk_us=6.77,
            chunk_bytes=24100.0,
            share=0.728,
            copy_share=0.795,
            narrow_GBps=300.0,
            ramp_us=30.9,
            ramp_bytes=133000000.0,
        ),
        lent=("ll128",),
    ),
    Software(
        device="GB300",
        version="2.27",
        npus=72,
        wide=True,
        ll=Packets(base_us=10.6, hop_us=1.26, fill_us=0.159, window_bytes=115000.0, share=0.403),
        ll128=Packets(base_us=15.4, hop_us=0.829, fill_us=0.368, window_bytes=6570.0, share=0.896),
        simple=Stages(
            base_us=32.3,
            hop_us=5.75,
            share=0.952,
            copy_share=0.197,
            ramp_us=360.0,
            ramp_bytes=5130000000.0,
        ),
        switched=Switched(
            base_us=38.9,
            npu_us=0.271,
            share=0.629,
            own=0.0625,
            gather_share=1.74,
            ramp_us=8.31,
            ramp_bytes=74300000.0,
        ),
        pairs=Pairs(
            base_us=10.8,
            peer_us=7.15e-07,
            peers_us=0.00998,
            chunk_us=9.81,
            chunk_bytes=172000.0,
            share=0.708,
            copy_share=0.0895,
            narrow_GBps=126.0,
            ramp_us=35.2,
            ramp_bytes=49800000.0,
        ),
        lent=(),
    ),
    Software(
        device="GB300",
        version="2.29",
        npus=4,
        wide=False,
        ll=Packets(base_us=7.8, hop_us=1.06, fill_us=0.584, window_bytes=99100.0, share=0.455),
        ll128=Packets(base_us=15.4, hop_us=0.829, fill_us=0.368, window_bytes=6570.0, share=0.896),
        simple=Stages(
            base_us=13.5,
            hop_us=11.9,
            share=0.953,
            copy_share=0.589,
            ramp_us=5.75,
            ramp_bytes=177000000.0,
        ),
        switched=Switched(
            base_us=51.0,
            npu_us=0.521,
            share=0.763,
            own=0.675,
            gather_share=0.9,
            ramp_us=4.42,
            ramp_bytes=12900000.0,
        ),
        pairs=Pairs(
            base_us=9.25,
            peer_us=0.352,
            peers_us=6.29e-07,
            chunk_us=6.28,
            chunk_bytes=25100.0,
            share=0.758,
            copy_share=0.863,
            narrow_GBps=300.0,
            ramp_us=29.3,
            ramp_bytes=149000000.0,
        ),
        lent=("ll128",),
    ),
)
"""The records, for each device the oldest first."""
