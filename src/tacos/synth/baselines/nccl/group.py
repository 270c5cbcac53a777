"""What NCCL finds out about a group before it chooses: boxes, channels, switches that sum, bandwidths and latencies."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tacos.collective import kind_of
from tacos.synth.baselines.nccl import parameters as p
from tacos.synth.baselines.nccl.boxes import layout
from tacos.synth.baselines.nccl.channels import agreed, chains, rings
from tacos.synth.baselines.nccl.sharp import box_switches, rail_switches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tacos._core import CollectivePart
    from tacos.synth.baselines.nccl.boxes import Layout
    from tacos.synth.baselines.nccl.channels import Chain, Network
    from tacos.synth.baselines.nccl.parameters import Generation

__all__ = ["Group", "Seconds"]

_US = 1e-6

Seconds: TypeAlias = "NDArray[np.float64]"
"""Two times: as NCCL's tuner takes it, and on this network."""


class Group:
    """A collective's group on a network: its boxes, channels and their bandwidths, found when they are needed."""

    def __init__(
        self,
        network: Network,
        part: CollectivePart,
        generation: Generation | None = None,
        report: Callable[[float], object] | None = None,
    ) -> None:
        if kind_of(part).listed and part.kind != "send_recv":
            raise ValueError(f"nccl needs a collective that NCCL has, not {part.label}")
        self.network, self.part = network, part
        # Called from time to time; weighing algorithms does not count as work.
        self.report = report
        members = part.group
        if part.kind == "send_recv":
            members = np.unique(np.concatenate([part.inputs, part.outputs])).astype(np.int32)
        self.layout: Layout = layout(network.searched.topology, members)
        self.given = generation

    def of(self, part: CollectivePart) -> Group:
        """Return the group for a part that differs only in its chunks."""
        self.part = part
        self.executed.part = part
        return self

    @cached_property
    def executed(self) -> Group:
        """The group on the links as they are; this group itself if NCCL knows them."""
        carrier = self.network.carrier
        if carrier is self.network:
            return self
        return Group(carrier, self.part, self.generation, self.report)

    @property
    def n(self) -> int:
        """Number of members."""
        return self.layout.ranks

    @property
    def boxes(self) -> int:
        """Number of boxes."""
        return len(self.layout.boxes)

    @property
    def per_box(self) -> float:
        """Members of a box, on average."""
        return self.n / self.boxes

    @property
    def bucket(self) -> int:
        """Index into triples: one box, two, or more."""
        return min(self.boxes, 3) - 1

    @cached_property
    def used(self) -> Layout:
        """The boxes in the order of the search, with the NICs that channels use."""
        return agreed(self.network.searched, self.layout)

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """All members in the order of the search; in healthy boxes on NVSwitches, rank order."""
        return np.array([npu for box in self.used.boxes for npu in box], np.int32)

    @cached_property
    def rings(self) -> list[Chain]:
        """The rings, all different."""
        return rings(self.network.searched, self.layout)

    @cached_property
    def chains(self) -> list[list[Chain]]:
        """For each channel and box, the chain of a tree."""
        return chains(self.network.searched, self.layout)

    @cached_property
    def box_switches(self) -> list[list[int]]:
        """For each box, the switches that can sum and multicast for all its members."""
        return [box_switches(self.network, box) for box in self.used.boxes]

    @cached_property
    def rail_switches(self) -> list[int]:
        """For each rail, a switch between boxes that can sum and multicast; empty if a rail has none."""
        return rail_switches(self.network, self.used)

    @property
    def nvls(self) -> bool:
        """Whether switches in all boxes sum and multicast."""
        return all(
            switches or len(box) == 1
            for switches, box in zip(self.box_switches, self.used.boxes, strict=True)
        ) and any(self.box_switches)

    @property
    def port_Bps(self) -> float:
        """Bandwidth of the links by which the slowest member sends in its box; 0 in boxes of one."""
        return float(min(self._ports, default=0.0))

    @cached_property
    def _ports(self) -> NDArray[np.float64]:
        """For each member of a larger box, the bandwidth of the links by which it sends there."""
        topology, inside = self.network.topology, self.inside
        speed = topology.link_bandwidth_Bps
        ports = np.bincount(topology.link_src[inside], speed[inside], topology.nodes)
        # With links in one direction only, a path may have to leave the box and return.
        ports = np.where(ports, ports, np.bincount(topology.link_src, speed, topology.nodes))
        mates = [npu for box in self.layout.boxes if len(box) > 1 for npu in box]
        return np.asarray(ports[mates], float)

    @cached_property
    def nic_Bps(self) -> float:
        """Bandwidth of the slowest hop of rings between boxes; 0 in one box."""
        speed = self.network.topology.link_bandwidth_Bps
        return min((float(speed[list(links)].min()) for links in self._hops(False)), default=0.0)

    @cached_property
    def generation(self) -> Generation:
        """Given, or inferred from the bandwidths of most members: a slow link does not make a GPU an older one."""
        if self.given:
            return self.given
        speed = self.network.topology.link_bandwidth_Bps
        nics = [float(speed[list(links)].min()) for links in self._hops(False)]
        return p.inferred(
            *(float(np.median(all_Bps or [0.0])) for all_Bps in (self._ports.tolist(), nics))
        )

    @property
    def hopper(self) -> bool:
        """Whether the GPUs are Hopper or later."""
        return self.generation.nvls_efficiency > 0

    @cached_property
    def ring_Bps(self) -> float:
        """Bus bandwidth of the rings with the Simple protocol."""
        return self.network.bandwidth(self.rings, self.speeds)

    @cached_property
    def chain_Bps(self) -> float:
        """Bandwidth of the chains of all channels inside boxes."""
        crossed = [self.network.crossed(channel) for channel in self.chains]
        return self.network.totals(crossed, self.speeds)[-1]

    @cached_property
    def box_Bps(self) -> float:
        """Bus bandwidth of rings inside a box."""
        return self.port_Bps * self.generation.link_efficiency

    @property
    def net_Bps(self) -> float:
        """Bandwidth of all NICs of a box together."""
        return self.used.rails * self.nic_Bps * p.NIC_EFFICIENCY

    def hop_s(self, algorithm: str, protocol: int, *, inside: bool) -> Seconds:
        """Return the latency of a hop: NCCL's, which the tuner uses, and the topology's if that is longer."""
        table = p.BOX_HOP_US if inside else p.NET_HOP_US
        known = table[algorithm][protocol] * _US
        return np.array([known, max(known, self.latency_s[inside])])

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """For each link, whether it is part of a box."""
        topology, label = self.network.topology, self.network.label
        inside: NDArray[np.bool_] = label[topology.link_src] == label[topology.link_dst]
        return inside

    @cached_property
    def latency_s(self) -> dict[bool, float]:
        """Longest latency of a ring's hop between boxes (False) and inside them (True), in seconds."""
        latency = self.network.topology.link_latency_ps
        return {
            inside: max(
                (int(latency[list(links)].sum()) for links in self._hops(inside)), default=0
            )
            / 1e12
            for inside in (False, True)
        }

    @cached_property
    def speeds(self) -> NDArray[np.float64]:
        """Bandwidth of the links with the Simple protocol."""
        topology = self.network.topology
        share = np.where(self.inside, self.generation.link_efficiency, p.NIC_EFFICIENCY)
        return topology.link_bandwidth_Bps.astype(float) * share

    def _hops(self, inside: bool) -> Iterator[tuple[int, ...]]:
        """Yield the routes of the rings' hops, either within boxes or between them."""
        if self.n < 2:
            return
        label = self.network.label
        for ring in self.rings:
            for a, b in zip(ring, ring[1:] + ring[:1], strict=True):
                if (label[a] == label[b]) == inside:
                    yield self.network.route(a, b)
