"""Switches that sum and multicast: NVLink SHARP in boxes, SHARP between them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacos._core import Topology
    from tacos.synth.nccl.boxes import Layout
    from tacos.synth.nccl.channels import Chain, Network

__all__ = ["box_hubs", "link_between", "rail_hubs", "way"]

_SUMS_AND_COPIES = 3
"""Capabilities of a switch that multicasts and reduces."""


def link_between(topology: Topology) -> dict[tuple[int, int], int]:
    """The fastest link between each two nodes.

    >>> import tacos
    >>> link_between(tacos.topology.ring(3))[2, 0]
    2
    """
    found: dict[tuple[int, int], int] = {}
    speed = topology.link_bandwidth_Bps
    for i, ends in enumerate(
        zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    ):
        if ends not in found or speed[i] > speed[found[ends]]:
            found[ends] = i
    return found


def box_hubs(topology: Topology, box: Chain) -> list[int]:
    """The switches with links to and from all members of a box that sum and multicast.

    >>> import tacos
    >>> box_hubs(tacos.topology.dgx_h100(nvls=True), (0, 1, 2, 3)), box_hubs(tacos.topology.dgx_h100(), (0, 1))
    ([8], [])
    """
    if len(box) < 2:
        return []
    links = link_between(topology)
    return [
        hub
        for hub in _able(topology)
        if all((npu, hub) in links and (hub, npu) in links for npu in box)
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
            if all(way(topology, head, hub) and way(topology, hub, head) for head in heads):
                found.append(hub)
                break
        else:
            return []
    return found


def way(topology: Topology, a: int, b: int) -> tuple[int, ...]:
    """The links of a shortest way from a to b through switches only; empty if there is none.

    >>> import tacos
    >>> topo = tacos.topology.ndv2(2)
    >>> [topo.node_name(topo.link_dst[link]) for link in way(topo, 0, topo.nodes - 1)]
    ['switch 0', 'switch 2']
    """
    leaving: dict[int, list[int]] = {}
    for i, src in enumerate(topology.link_src.tolist()):
        leaving.setdefault(src, []).append(i)
    came: dict[int, int] = {a: -1}
    queue = deque([a])
    while queue and b not in came:
        node = queue.popleft()
        for link in leaving.get(node, ()):
            to = int(topology.link_dst[link])
            if to not in came and (to >= topology.npus or to == b):
                came[to] = link
                queue.append(to)
    found: list[int] = []
    node = b
    while node != a and node in came:
        found.append(came[node])
        node = int(topology.link_src[came[node]])
    return tuple(reversed(found))


def _able(topology: Topology) -> list[int]:
    bits = topology.switch_capabilities.tolist()
    return [topology.npus + i for i, able in enumerate(bits) if able == _SUMS_AND_COPIES]
