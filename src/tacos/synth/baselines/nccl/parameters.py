"""Parameters of the NCCL model, each with its unit and where it comes from.

Sources:

- *specified*: a constant of NCCL's tuner, read in the source of NCCL 2.30.7 (``src/graph/tuning.cc``,
  ``src/graph/topo.h``, ``src/include/comm.h``, ``src/include/device.h``).
- *logged*: what NCCL 2.27.5 printed for DGX H100 clusters, as recorded in AutoParallel's cost model
  (meta-pytorch/autoparallel, ``cost_models/nccl_cost_model.py``).
- *measured*: published by others: vTrain's tables of nccl-tests on V100 and A100 boxes (VIA-Research/vTrain,
  ``trace/``) and AutoParallel's figures of nccl-tests on H100 boxes.
- *fitted*: chosen here so that the model meets those measurements; one value per GPU generation.

Triples are for one, two, and three or more boxes. Protocols are in the order LL, LL128, Simple.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GENERATIONS", "PROTOCOLS", "Generation", "inferred"]

PROTOCOLS = ("LL", "LL128", "Simple")

Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Generation:
    """The model's parameters of a GPU generation.

    Attributes:
        name: Such as ``"H100"``.
        port_GBps: Nominal NVLink bandwidth of a GPU in one direction, in GB/s (specified by NVIDIA); the generation
            of a topology is inferred from it.
        nic_GBps: Bandwidth of the NIC that usually comes with it, in GB/s; used if a box is a single GPU.
        link_efficiency: Share of the nominal NVLink bandwidth that a ring reaches with the Simple protocol (fitted;
            NCCL's own constants are 0.80, 0.80, 0.824 and 0.802).
        copy_share: Duration of the last step of a ring, which only copies a received chunk out of its buffer, in
            steps that also send (fitted).
        overhead_us: Time between two kernels in microseconds, part of what nccl-tests reports (fitted).
        launch_us: Time that a single host process needs to launch a collective on one GPU, in microseconds (fitted:
            nccl-tests with one process cannot start collectives faster than this times the number of GPUs).
        channels: Channels in a box (logged for H100; A100 and V100: NCCL's search on DGX boxes).
        ll_GBps: Most that the LL protocol carries in a box, in GB/s of bus bandwidth (specified).
        ring_ll128_GBps: Most that a channel of a ring carries with LL128, in GB/s (specified).
        tree_ll128_GBps: Most that a channel of a tree carries with LL128, in GB/s (specified).
        tree_GBps: Most that a channel of a tree carries, in GB/s (specified).
        nvls_tree_GBps: Most that a channel of NVLS-tree carries, in GB/s (specified).
        nvls_efficiency: Share of the ring's bandwidth that NVLS reaches (specified); 0 if the GPUs lack it.
        pairs_efficiency: Share of the nominal NVLink bandwidth that an all-to-all reaches in a box (H100: measured;
            others: 0.7 of what a ring reaches, AutoParallel's correction).
        plateau: Factor on the latency of large all-reduces over rings of several boxes (specified).
    """

    name: str
    port_GBps: float
    nic_GBps: float
    link_efficiency: float
    copy_share: float
    overhead_us: float
    launch_us: float
    channels: int
    ll_GBps: float
    ring_ll128_GBps: float
    tree_ll128_GBps: Triple
    tree_GBps: Triple
    nvls_tree_GBps: Triple
    nvls_efficiency: float
    pairs_efficiency: float
    plateau: float


_FAMILIES = {
    one.name: one
    for one in (
        Generation(
            name="V100",
            port_GBps=150.0,
            nic_GBps=12.5,
            link_efficiency=0.90,
            copy_share=0.0,
            overhead_us=25.0,
            launch_us=10.0,
            channels=12,
            ll_GBps=39.0,
            ring_ll128_GBps=20.0,
            tree_ll128_GBps=(20.0, 20.0, 20.0),
            tree_GBps=(26.5, 18.5, 10.0),
            nvls_tree_GBps=(0.0, 0.0, 0.0),
            nvls_efficiency=0.0,
            pairs_efficiency=0.63,
            plateau=1.9,
        ),
        Generation(
            name="A100",
            port_GBps=300.0,
            nic_GBps=25.0,
            link_efficiency=0.80,
            copy_share=1 / 3,
            overhead_us=25.0,
            launch_us=11.5,
            channels=24,
            ll_GBps=87.7,
            ring_ll128_GBps=20.0,
            tree_ll128_GBps=(20.0, 20.0, 20.0),
            tree_GBps=(24.0, 23.6, 17.8),
            nvls_tree_GBps=(0.0, 0.0, 0.0),
            nvls_efficiency=0.0,
            pairs_efficiency=0.56,
            plateau=1.4,
        ),
        Generation(
            name="H100",
            port_GBps=450.0,
            nic_GBps=50.0,
            link_efficiency=0.81,
            copy_share=1 / 3,
            overhead_us=1.5,
            launch_us=3.8,
            channels=24,
            ll_GBps=141.0,
            ring_ll128_GBps=36.7,
            tree_ll128_GBps=(36.7, 36.7, 29.0),
            tree_GBps=(38.7, 41.4, 36.0),
            nvls_tree_GBps=(0.0, 57.7, 45.5),
            nvls_efficiency=0.85,
            pairs_efficiency=0.84,
            plateau=1.4,
        ),
        # No such measurements of B200 are public, so fitted values are those of H100.
        Generation(
            name="B200",
            port_GBps=900.0,
            nic_GBps=100.0,
            link_efficiency=0.81,
            copy_share=1 / 3,
            overhead_us=1.5,
            launch_us=3.8,
            channels=24,
            ll_GBps=282.0,
            ring_ll128_GBps=40.0,
            tree_ll128_GBps=(55.6, 31.67, 20.0),
            tree_GBps=(70.0, 42.8, 24.0),
            nvls_tree_GBps=(0.0, 96.0, 80.0),
            nvls_efficiency=0.74,
            pairs_efficiency=0.84,
            plateau=1.4,
        ),
    )
}
"""The generations by name, the oldest first."""

_TUNED_AS = {"H200": "H100", "B300": "B200", "GB200": "B200", "GB300": "B200"}
"""Devices for which NCCL's tuner has the constants of another."""

GENERATIONS: Mapping[str, Generation] = _FAMILIES | {
    name: replace(_FAMILIES[family], name=name) for name, family in _TUNED_AS.items()
}
"""All devices by name."""

BASE_US: Mapping[str, Triple] = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
"""Microseconds that every collective takes, by algorithm and protocol (specified); 0 for other algorithms."""

BOX_HOP_US: Mapping[str, Triple] = {
    "ring": (0.6, 1.9, 3.4),
    "tree": (0.6, 1.25, 4.0),
    "collnet": (0.0, 0.0, 2.8),
    "collnet-direct": (0.0, 0.0, 3.7),
    "nvls": (0.0, 0.0, 25.0),
    "nvls-tree": (0.0, 0.0, 25.0),
}
"""Microseconds per hop over NVLink, by algorithm and protocol (specified)."""

NET_HOP_US: Mapping[str, Triple] = {
    "ring": (2.7, 4.0, 14.0),
    "tree": (5.0, 8.5, 14.0),
    "collnet": (0.0, 0.0, 30.0),
    "collnet-direct": (0.0, 0.0, 31.0),
    "nvls": (0.0, 0.0, 18.0),
    "nvls-tree": (0.0, 0.0, 20.9),
}
"""Microseconds per hop over the network, by algorithm and protocol (specified)."""

NET_POST_US: Triple = (1.0, 1.0, 3.0)
"""Least microseconds per step of a ring over several boxes, by protocol (specified, for Intel CPUs)."""

ARITY_US = 0.4
"""Microseconds per GPU of a box that CollNet-direct takes for its fan-out (specified)."""

NIC_EFFICIENCY = 0.96
"""Share of a NIC's nominal bandwidth that channels reach (specified: 48 of 50 GB/s in the search's steps)."""

NVLS_NIC_EFFICIENCY = 0.80
"""Share of a NIC's nominal bandwidth that NVLS-tree reaches (logged: 16 channels of 20 GB/s over eight NICs of 50 GB/s)."""

RING_PAYLOAD: Triple = (0.5, 0.92, 1.0)
"""Share of the bandwidth that carries data, by protocol (specified)."""

TREE_EFFICIENCY = 0.92
"""Share of the bandwidth that trees reach (specified)."""

TREE_PATTERN = 0.85
"""Factor on trees whose heads receive and send over one NIC (specified; logged as used on H100 boxes)."""

TREE_LL = 1 / 3.8
"""Share of a tree's bandwidth with LL (specified)."""

TREE_LL128 = (7 / 9, 120 / 128)
"""Share of a tree's bandwidth with LL128, in one box and in several (specified)."""

NET_LL_GBps: Triple = (0.0, 39.0, 20.4)
"""Most that LL carries over several boxes, in GB/s of bus bandwidth (specified, for Intel CPUs)."""

COLLNET_HOPPER = 0.85
"""Factor on CollNet's bandwidth from Hopper on (specified)."""

TREE_BY_SIZE: tuple[tuple[float, ...], ...] = (
    (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
)  # fmt: skip
"""Factor on a tree's bandwidth by protocol, for 64 bytes, 128 bytes, … (specified)."""

DOUBT = 1.05
"""Largest ratio of costs at which NCCL's choice is in doubt, since versions and settings change costs by more (chosen)."""

THREADS = (512, 640, 512)
"""Threads of a channel, by protocol (specified)."""

THREAD_BYTES = (8, 8, 64)
"""Least bytes per thread before a channel is used, by protocol (specified); for LL rings, times the ranks."""

DOUBLED_GBps = (25.0, 50.0)
"""Least bandwidth at which channels between boxes are doubled, in GB/s: few or old channels, others (specified)."""

FEW_CHANNELS = 4
"""Largest number of channels that counts as few (specified)."""

NVLS_CHANNELS = 16
"""Channels of NVLS (logged)."""

NVLS_ARITY = 32
"""Most GPUs of an all-gather or reduce-scatter with NVLS (specified)."""

HOST_GPUS = 8
"""Most GPUs that one host process drives (chosen: the GPUs of a DGX box)."""

PAIRS_BOX_US = 50.0
"""Latency of an all-to-all in one box, in microseconds (measured on H100)."""

PAIRS_US: tuple[tuple[int, float], ...] = (
    (1, 37.0),
    (2, 37.0),
    (4, 42.0),
    (8, 60.0),
    (16, 98.0),
    (32, 290.0),
)
"""Latency of an all-to-all in microseconds, by the number of boxes (measured on H100 from two boxes on)."""

PAIRS_NIC_LOSS = 0.44
"""An all-to-all over N boxes reaches 1 - this/N of its NICs' bandwidth (measured on H100)."""


def inferred(port_Bps: float, nic_Bps: float) -> Generation:
    """Return the generation whose NVLink, or for boxes of one GPU whose NIC, is nearest to a bandwidth.

    >>> inferred(450e9, 50e9).name, inferred(0, 25e9).name
    ('H100', 'A100')
    """

    def distance(one: Generation) -> float:
        if port_Bps > 0:
            return abs(log(port_Bps / (one.port_GBps * 1e9)))
        return abs(log(max(nic_Bps, 1.0) / (one.nic_GBps * 1e9)))

    return min(_FAMILIES.values(), key=distance)
