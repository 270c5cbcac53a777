"""Switches that sum and multicast: NVLink SHARP in boxes, SHARP between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacos._core import Topology
    from tacos.synth.nccl.boxes import Layout
    from tacos.synth.nccl.channels import Chain, Network

__all__ = ["box_hubs", "rail_hubs"]

_SUMS_AND_COPIES = 3
"""Capabilities of a switch that multicasts and reduces."""


def box_hubs(network: Network, box: Chain) -> list[int]:
    """The switches of a box, with links to and from all members, that sum and multicast.

    >>> import tacos
    >>> from tacos.synth.nccl.channels import Network
    >>> box_hubs(Network(tacos.topology.dgx_h100(nvls=True)), (0, 1, 2, 3))
    [8]
    >>> box_hubs(Network(tacos.topology.dgx_h100()), (0, 1, 2, 3))
    []
    """
    if len(box) < 2:
        return []
    inside = [hub for hub in _able(network.topology) if network.label[hub] == network.label[box[0]]]
    return [
        hub
        for hub in inside
        if all(len(network.way(npu, hub)) == len(network.way(hub, npu)) == 1 for npu in box)
    ]


def rail_hubs(network: Network, layout: Layout) -> list[int]:
    """Of each rail, a switch outside boxes that sums and multicasts between its NICs; empty if one lacks it.

    >>> import numpy as np, tacos
    >>> from tacos.synth.nccl.boxes import layout
    >>> from tacos.synth.nccl.channels import Network
    >>> topo = tacos.topology.dgx_h100(2)
    >>> rail_hubs(Network(topo), layout(topo, np.arange(16, dtype=np.int32)))
    []
    """
    if len(layout.boxes) < 2:
        return []
    topology, label = network.topology, network.label
    homes = {int(label[box[0]]) for box in layout.boxes}
    able = [hub for hub in _able(topology) if int(label[hub]) not in homes]
    found = []
    for rail in range(layout.rails):
        heads = [nics[rail][0] for nics in layout.nics]
        for hub in able:
            if all(network.way(head, hub) and network.way(hub, head) for head in heads):
                found.append(hub)
                break
        else:
            return []
    return found


def _able(topology: Topology) -> list[int]:
    bits = topology.switch_capabilities.tolist()
    return [topology.npus + i for i, able in enumerate(bits) if able == _SUMS_AND_COPIES]
