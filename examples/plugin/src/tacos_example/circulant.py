"""Circulant networks: NPU i has links to i + s for each stride s, around a ring. ``circulant:16x1x3`` has strides 1 and 3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import tacos
from tacos.topology import Model, Spec

if TYPE_CHECKING:
    from tacos.units import Quantity


def circulant(
    npus: int,
    *strides: int,
    bandwidth: Quantity = "50GB/s",
    latency: Quantity = "500ns",
    **model: Unpack[Model],
) -> tacos.Topology:
    """Return a circulant network; links lead both ways."""
    wrong = [stride for stride in strides if not 0 < 2 * stride < npus]
    if wrong or len(set(strides)) < len(strides):
        raise ValueError(
            f"strides must differ and be below half of {npus} NPUs; got {'x'.join(map(str, strides))}"
        )
    ways = [
        (npu, (npu + step) % npus, bandwidth, latency)
        for npu in range(npus)
        for stride in strides
        for step in (stride, -stride)
    ]
    return tacos.topology.from_links(npus, ways, family="circulant", **model)


CIRCULANT = Spec(circulant, ":NxSTRIDExSTRIDE…", 2, 9, "a ring with chords")
