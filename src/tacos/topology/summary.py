"""Summarize a topology in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np

from tacos.nodes import Network, topology_of
from tacos.topology.faults import said

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["Interval", "LinkClass", "Summary", "describe"]

_SAMPLES = 256
_STEPS = 10**8  # nodes and links visited per second (measured)


class Interval(TypedDict):
    """A quantity over all NPUs."""

    min: int
    max: int
    total: int


class LinkClass(TypedDict):
    """Links of one bandwidth and latency."""

    bandwidth_Bps: int
    latency_s: float
    count: int


class Summary(TypedDict):
    """The result of `describe`, in plain values for JSON."""

    family: str
    npus: int
    switches: int
    multicasting_switches: int
    reducing_switches: int
    links: int
    dims: list[tuple[str, int]]
    symmetric: bool
    link_model: str
    forwarding: str
    routing: str
    reduce_bandwidth_Bps: int
    out_degree: Interval
    in_degree: Interval
    bandwidth_out_Bps: Interval
    bandwidth_in_Bps: Interval
    diameter_hops: int | None  # None: some NPU cannot reach another
    diameter_sampled: bool  # the diameter is then a lower bound
    link_classes: list[LinkClass]
    faults: list[str]  # in words


def describe(topology: Network) -> Summary:
    """Summarize a topology: counts, degrees, diameter, bandwidths and classes of links. Ranges are over the NPUs.

    The diameter counts links, including those through switches. In a network that is not symmetric it is measured
    from at most 256 NPUs (fewer in huge networks); `diameter_sampled` tells whether some were left out.

    >>> from tacos.topology import dgx_h100
    >>> summary = describe(dgx_h100(2))
    >>> summary["diameter_hops"], summary["bandwidth_out_Bps"]["max"] / 1e9
    (2, 500.0)
    >>> summary["link_classes"][0]
    {'bandwidth_Bps': 450000000000, 'latency_s': 3.5e-07, 'count': 32}
    >>> summary["switches"], summary["reducing_switches"]                   # NVSwitch; the fabric only forwards
    (3, 2)
    """
    topology = topology_of(topology)
    effort = max(1, _STEPS // (topology.nodes + topology.links))
    samples = 1 if topology.symmetric else min(_SAMPLES, effort)
    diameter = topology.diameter(samples)
    bandwidth = topology.link_bandwidth_Bps
    one = np.ones_like(bandwidth)
    return Summary(
        family=topology.family,
        npus=topology.npus,
        switches=topology.switches,
        multicasting_switches=int(np.count_nonzero(topology.switch_capabilities & 1)),
        reducing_switches=int(np.count_nonzero(topology.switch_capabilities & 2)),
        links=topology.links,
        dims=topology.dims,
        symmetric=topology.symmetric,
        link_model=topology.link_model,
        forwarding=topology.forwarding,
        routing=topology.routing,
        reduce_bandwidth_Bps=topology.reduce_bandwidth_Bps,
        out_degree=_range(topology, topology.link_src, one),
        in_degree=_range(topology, topology.link_dst, one),
        bandwidth_out_Bps=_range(topology, topology.link_src, bandwidth),
        bandwidth_in_Bps=_range(topology, topology.link_dst, bandwidth),
        diameter_hops=None if diameter < 0 else diameter,
        diameter_sampled=not topology.symmetric and topology.npus > samples,
        link_classes=_link_classes(topology),
        faults=said(topology),
    )


def _range(topology: Topology, ends: NDArray[np.int32], amount: NDArray[np.int64]) -> Interval:
    """Return the smallest, largest and total amount over the NPUs, where each link adds its amount to the NPU at its end."""
    per_node = np.zeros(topology.nodes, np.int64)
    np.add.at(per_node, ends, amount)
    per_npu = per_node[: topology.npus]
    total = sum(per_npu.tolist()) if per_npu.max() > 2**32 else int(per_npu.sum())
    return Interval(min=int(per_npu.min()), max=int(per_npu.max()), total=total)


def _link_classes(topology: Topology) -> list[LinkClass]:
    """Return the classes of links, fastest first."""
    speeds = np.stack([topology.link_bandwidth_Bps, -topology.link_latency_ps])
    classes, counts = np.unique(speeds, axis=1, return_counts=True)
    return [
        LinkClass(bandwidth_Bps=int(bandwidth), latency_s=int(-latency) / 10**12, count=int(count))
        for (bandwidth, latency), count in zip(classes.T[::-1], counts[::-1], strict=True)
    ]
