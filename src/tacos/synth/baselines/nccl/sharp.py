"""Switches that sum and multicast: NVLink SHARP in boxes, SHARP between them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tacos._core import Topology
    from tacos.synth.baselines.nccl.boxes import Layout
    from tacos.synth.baselines.nccl.channels import Chain, Network

__all__ = ["box_switches", "rail_switches", "switch_tree"]

_COPIES, _SUMS = 1, 2
_SUMS_AND_COPIES = _COPIES | _SUMS
"""Capabilities of a switch that multicasts and reduces."""


def box_switches(network: Network, box: Chain) -> list[int]:
    """Return the switches of a box, with links to and from all members, that sum and multicast.

    >>> import tacos
    >>> from tacos.synth.baselines.nccl.channels import Network
    >>> box_switches(Network(tacos.topology.dgx_h100()), (0, 1, 2, 3))
    [8]
    >>> box_switches(Network(tacos.topology.dgx_h100(nvls=False)), (0, 1, 2, 3))
    []
    """
    if len(box) < 2:
        return []
    inside = [
        switch
        for switch in _able(network.topology)
        if network.label[switch] == network.label[box[0]]
    ]
    return [
        switch
        for switch in inside
        if all(len(network.path(npu, switch)) == len(network.path(switch, npu)) == 1 for npu in box)
    ]


def rail_switches(network: Network, layout: Layout) -> list[int]:
    """Return, for each rail, a switch outside boxes that sums and multicasts between its NICs; empty if a rail has none.

    >>> import numpy as np, tacos
    >>> from tacos.synth.baselines.nccl.boxes import layout
    >>> from tacos.synth.baselines.nccl.channels import Network
    >>> topo = tacos.topology.dgx_h100(2, nvls=False)
    >>> rail_switches(Network(topo), layout(topo, np.arange(16, dtype=np.int32)))
    []
    """
    if len(layout.boxes) < 2:
        return []
    topology, label = network.topology, network.label
    homes = {int(label[box[0]]) for box in layout.boxes}
    able = [switch for switch in _able(topology) if int(label[switch]) not in homes]
    found = []
    for rail in range(layout.rails):
        heads = [nics[rail][0] for nics in layout.nics]
        for switch in able:
            if _joins(network, switch, heads):
                found.append(switch)
                break
        else:
            return []
    return found


def switch_tree(
    network: Network, root: int, switch: int, ends: Iterable[int], *, sums: bool
) -> tuple[int, ...]:
    """Return the links of one transfer through a switch, in the order of :func:`tacos.routes`; empty if there is none.

    It goes from the root to the ends or, if it `sums`, from the ends to the root. A path that would return to a switch
    on its way to or from the switch turns around there.

    >>> import tacos
    >>> from tacos.synth.baselines.nccl.channels import Network
    >>> topo = tacos.topology.switch(3, multicast=True, reduce=True)
    >>> tree = switch_tree(Network(topo), 0, 3, [1, 2], sums=True)
    >>> [(int(topo.link_src[link]), int(topo.link_dst[link])) for link in tree]
    [(2, 3), (1, 3), (3, 0)]
    """
    topology = network.topology
    near, far = topology.link_src, topology.link_dst
    if sums:
        near, far = far, near
    reached, parts = {root}, []
    for end in ends:
        legs = ((end, switch), (switch, root)) if sums else ((root, switch), (switch, end))
        paths = [network.path(*leg) for leg in legs]
        if not all(paths):
            return ()
        # Walk from the end to the root. Of two links at a node, the one nearer to the root skips the loop.
        links = [link for path in paths for link in path]
        came = {int(far[link]): link for link in (links if sums else reversed(links))}
        new, node = [], end
        while node not in reached:
            new.append(came[node])
            node = int(near[came[node]])
        reached.update(int(far[link]) for link in new)
        parts.append(new if sums else new[::-1])
    tree = [link for part in (reversed(parts) if sums else parts) for link in part]
    branches = Counter(int(near[link]) for link in tree)
    needed = _SUMS if sums else _COPIES
    able = all(
        node >= topology.npus and topology.switch_capabilities[node - topology.npus] & needed
        for node, count in branches.items()
        if count > 1
    )
    return tuple(tree) if able else ()


def _joins(network: Network, switch: int, heads: list[int]) -> bool:
    """Return whether every head can receive the sum of all members through the switch, and send to all of them."""
    return all(
        switch_tree(network, root, switch, [head for head in heads if head != root], sums=sums)
        for root in heads
        for sums in (True, False)
    )


def _able(topology: Topology) -> list[int]:
    bits = topology.switch_capabilities.tolist()
    return [topology.npus + i for i, able in enumerate(bits) if able == _SUMS_AND_COPIES]
