"""The part of a network that is drawn if the whole is too large."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tacos._core import Topology

Ints = npt.NDArray[np.int64]

LARGEST = 5_000  # most nodes that are drawn; larger networks become excerpts
_NPUS = 256  # most NPUs of an excerpt, and most switches


class Part(NamedTuple):
    """The part of a network that is drawn, and a sentence that describes it."""

    topology: Topology
    nodes: Ints  # its nodes and links in the whole network
    links: Ints
    note: str = ""


def excerpt(topology: Topology) -> Part:
    """Return the whole network or, if it is large, the corners of its dimensions.

    >>> from tacos.topology import torus
    >>> excerpt(torus(4, 4)).note, excerpt(torus(100, 100)).topology.npus
    ('', 256)
    """
    if topology.nodes <= LARGEST:
        return Part(topology, np.arange(topology.nodes), np.arange(topology.links))
    dims = topology.dims or [("box", topology.npus)]
    sizes = _shrunk([size for _, size in dims], _NPUS)
    ids, stride = np.zeros(1, dtype=np.int64), 1
    for (_, size), kept in zip(dims, sizes, strict=True):
        first = np.arange(kept - kept // 2)
        coordinate = np.concatenate([first, size - kept // 2 + np.arange(kept // 2)])
        ids = (coordinate[:, None] * stride + ids).ravel()
        stride *= size
    ids = np.concatenate([ids, _switches_between(topology, ids)])
    new = np.full(topology.nodes, -1, dtype=np.int32)
    new[ids] = np.arange(len(ids), dtype=np.int32)
    src, dst = new[topology.link_src], new[topology.link_dst]
    kept_links = np.flatnonzero((src >= 0) & (dst >= 0))
    npus = int(np.prod(sizes))
    names = topology.names
    part = Topology(
        npus=npus,
        switch_capabilities=topology.switch_capabilities[ids[npus:] - topology.npus],
        link_src=src[kept_links],
        link_dst=dst[kept_links],
        link_latency_ps=topology.link_latency_ps[kept_links],
        link_bandwidth_Bps=topology.link_bandwidth_Bps[kept_links],
        family=topology.family,
        dims=[(kind, size) for (kind, _), size in zip(dims, sizes, strict=True)]
        if topology.dims
        else [],
        names=[names[i] for i in ids] if names else [],
    )
    note = (
        f"Excerpt: the first and last NPUs of every dimension, {times(sizes)} of "
        f"{times([size for _, size in dims])}, and the links between them."
    )
    return Part(part, ids, kept_links, note)


def _shrunk(sizes: list[int], most: int) -> list[int]:
    """Reduce sizes, the largest first, until their product is at most `most`."""
    sizes = list(sizes)
    while np.prod(sizes, dtype=np.float64) > most:
        largest = sizes.index(max(sizes))
        rest = np.prod([s for i, s in enumerate(sizes) if i != largest], dtype=np.float64)
        second = max((s for i, s in enumerate(sizes) if i != largest), default=1)
        sizes[largest] = max(int(most / rest), min(second, sizes[largest] - 1), 1)
    return sizes


def _switches_between(topology: Topology, npus: Ints) -> Ints:
    """Return at most _NPUS switches that join the given NPUs, directly or through other switches."""
    inside = np.zeros(topology.nodes, dtype=bool)
    inside[npus] = True
    while True:
        touched = np.concatenate(
            [
                topology.link_dst[inside[topology.link_src]],
                topology.link_src[inside[topology.link_dst]],
            ]
        )
        new = np.unique(touched[(touched >= topology.npus) & ~inside[touched]])
        room = _NPUS - int(inside[topology.npus :].sum())
        if len(new) == 0 or room <= 0:
            return topology.npus + np.flatnonzero(inside[topology.npus :])
        inside[new[:room]] = True


def times(sizes: list[int]) -> str:
    """Format sizes as a product.

    >>> times([4, 8])
    '4×8'
    """
    return "×".join(map(str, sizes))
