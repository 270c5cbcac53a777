"""The order in which searches for channels visit the NPUs of a box.

A search with a budget depends on the order of its candidates. So that its result does not depend on how equal NPUs
are numbered, the order is found from the links: NPUs are told apart by their links, then by the links of their
neighbours, and so on. Where NPUs remain that are alike, one of them is put first, and all others are compared again.

What tells NPUs apart is first the number of channels that links have room for, which small changes of speeds leave
alone, then the exact speeds and latencies and their NICs, and only then the ranks. On an NVSwitch the order is that of the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tacos.synth.baselines.nccl.channels import Chain, Network

    Colors = NDArray[np.int64]

__all__ = ["LARGEST_SEARCH", "search_order"]

LARGEST_SEARCH = 72
"""Largest number of NPUs of a box whose links are searched for rings: one NVLink domain (chosen)."""


def search_order(
    network: Network,
    box: Chain,
    room: Sequence[int],
    nics: Mapping[int, tuple[int, ...]] | None = None,
) -> Chain:
    """Return the NPUs of a box in the order in which a search visits them.

    Args:
        network: The network.
        box: The NPUs in the order that decides where links do not.
        room: For each link, the number of channels that it has room for.
        nics: For NPUs at a NIC, what tells it from others; the best NICs compare as the largest.

    >>> import tacos
    >>> from tacos.synth.baselines.nccl.channels import Network
    >>> ring = tacos.topology.renumber(tacos.topology.ring(5), [0, 2, 4, 1, 3])
    >>> search_order(Network(ring), (0, 1, 2, 3, 4), [1] * 10)              # far from NPU 0, then near
    (0, 1, 4, 2, 3)
    """
    if not 2 < len(box) <= LARGEST_SEARCH:
        return box
    topology, near = network.topology, network.neighbours(box)
    speed, latency = topology.link_bandwidth_Bps, topology.link_latency_ps
    rooms: dict[tuple[int, int], tuple[int, ...]] = {}
    exact: dict[tuple[int, int], tuple[int, ...]] = {}
    for i, a in enumerate(box):
        for b in near[a]:
            links = list(network.route(a, b))
            hop = i, box.index(b)
            rooms[hop] = (min(room[link] for link in links),)
            exact[hop] = (
                -int(speed[links].min()),
                int(latency[links].sum()),
                *network.marks(links),
            )
    kinds = [(nics or {}).get(npu, ()) for npu in box]
    ranked = sorted(set(kinds), reverse=True)
    color = np.array([ranked.index(kind) for kind in kinds])
    if len(exact) == len(box) * (len(box) - 1) and len(set(exact.values())) == 1:
        return tuple(box[i] for i in np.argsort(color, kind="stable"))
    coarse_code, fine_code = _codes(rooms, len(box)), _codes(exact, len(box))
    coarse = _refined(np.zeros(len(box), np.int64), coarse_code)
    fine = _refined(color, fine_code)
    while coarse.max() < len(box) - 1:
        cell = np.flatnonzero(coarse == np.flatnonzero(np.bincount(coarse) > 1)[0])
        first = int(cell[fine[cell].argmin()])
        coarse = _refined(_put_first(coarse, first), coarse_code)
        fine = _refined(_put_first(fine, first), fine_code)
    return tuple(box[i] for i in np.argsort(coarse))


def _codes(values: Mapping[tuple[int, int], tuple[int, ...]], n: int) -> Colors:
    """Return the matrix of the values' places among all values; 0 where there is none."""
    place = {value: k for k, value in enumerate(sorted(set(values.values())), 1)}
    code = np.zeros((n, n), np.int64)
    for hop, value in values.items():
        code[hop] = place[value]
    return code


def _put_first(color: Colors, one: int) -> Colors:
    """Give one NPU a color of its own, before those that were like it."""
    apart = 2 * color + 1
    apart[one] -= 1
    return apart


def _refined(color: Colors, code: Colors) -> Colors:
    """Tell NPUs apart by the colors of their neighbours, until that tells no more apart; keep the order of the colors."""
    both = code * (code.max() + 1) + code.T
    count = -1
    while True:
        color = np.unique(color, return_inverse=True)[1]
        if color.max() == count:
            return color
        count = int(color.max())
        seen = np.sort(both * (count + 1) + color, axis=1)
        color = np.unique(np.column_stack([color, seen]), axis=0, return_inverse=True)[1].ravel()
