"""All-reduces in two halves: an all-gather, preceded by the same all-gather backwards in time.

Where every link has a twin in the opposite direction, an all-gather that runs backwards over the twins is a reduce-scatter of
the same time. So a search for an all-gather, which has half the transfers, finds both halves of an all-reduce at once, and
refining one of them refines both. Links between boxes may form a ring without twins; then the boxes of the reduce-scatter
are taken in the opposite order (:func:`turning`).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacos._core import Collective, CollectivePart, Meter, Routes, Schedule, fields
from tacos.collective import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["Turning", "all_gather_of", "both_halves", "turning"]


class Turning(NamedTuple):
    """Images of nodes and links under which a network equals itself with all links reversed.

    Attributes:
        node: The image of each node.
        link: For each link from a to b, an equally fast link from the image of b to the image of a.
    """

    node: NDArray[np.int32]
    link: NDArray[np.int32]


def all_gather_of(collective: Collective) -> Collective | None:
    """Return the all-gather that spreads the sums of an all-reduce; None for other collectives.

    >>> import tacos
    >>> all_gather_of(tacos.collective.all_reduce(4, "4MB", chunks=2)).chunks
    8
    """
    if len(collective.parts) != 1 or not kind_of(collective.parts[0]).two_phases:
        return None
    (part,) = collective.parts
    half = CollectivePart("all_gather", part.size, chunks=part.chunks, group=part.group)
    return Collective(collective.npus, [half])


def both_halves(
    gather: Schedule,
    collective: Collective,
    turned: Turning,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Return the all-reduce that runs an all-gather backwards and then forwards.

    Args:
        gather: A schedule of :func:`all_gather_of`, over paths.
        collective: The all-reduce.
        turned: The :func:`turning` of the network.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: Some chunks of the all-reduce have no bytes, some routes are trees, the images of the members are others,
            or chunks of different sizes would change places.

    >>> import tacos
    >>> ring = tacos.topology.ring(4, bandwidth="1GB/s", latency="1us")
    >>> coll = tacos.collective.all_reduce(ring, "4KB", chunks=1)
    >>> gather = tacos.synthesize(ring, all_gather_of(coll))
    >>> whole = both_halves(gather, coll, turning(ring))
    >>> whole.time_ps == 2 * gather.time_ps, tacos.verify(whole).ok
    (True, True)
    """
    meter = Meter.of(progress)
    meter.reserve(2 * Meter.TRANSFER * gather.transfers)
    forwards = gather.expand()
    table, (part,) = forwards.routes, forwards.collective.parts
    if np.isin(table.kinds, (1, 2)).any():
        raise ValueError("only schedules without trees can be turned round")
    place = np.full(forwards.topology.nodes, -1, np.int64)
    place[part.group] = np.arange(len(part.group))
    owner = place[turned.node[part.group]]
    if (owner < 0).any():
        raise ValueError("the images of the members are not members")
    resolved, sizes = collective.with_chunks(part.chunks), forwards.collective.chunk_bytes()
    image = (owner[:, None] * part.chunks + np.arange(part.chunks)).ravel()
    # Where the chunks of an all-reduce have other sizes than those of an all-gather, starts are adapted anyway.
    if (sizes[image] != sizes).any() and np.array_equal(sizes, resolved.chunk_bytes()):
        raise ValueError("chunks of different sizes would change places")
    changed = {
        "routes": Routes(
            forwards.topology.reversed(), table.kinds, table.link_begin, turned.link[table.links]
        ),
        "chunk": image[forwards.chunk].astype(np.uint32),
        "bound_ps": None,
        "executed_ps": None,
    }
    backwards = Schedule(**(fields(forwards) | changed)).reverse(progress=meter)
    whole = backwards.then(forwards, resolved, progress=meter)
    return whole.with_facts(matched_ports=gather.matched_ports)


def turning(topology: Topology, boxes: int = 0) -> Turning | None:
    """Return images under which a network equals itself with all links reversed, if they can be found easily.

    Args:
        topology: The network.
        boxes: The number of equal boxes, if the network's dimensions do not tell.

    >>> import tacos
    >>> turning(tacos.topology.ring(3)).link.tolist()
    [4, 5, 3, 2, 0, 1]
    >>> links = [(0, 1, "1GB/s", 0), (1, 2, "1GB/s", 0), (2, 0, "1GB/s", 0)]
    >>> turning(tacos.topology.from_links(3, links), boxes=3).node.tolist()
    [0, 2, 1]
    """
    dims = topology.dims
    boxes = boxes or (dims[-1][1] if prod(size for _, size in dims) == topology.npus else 1)
    for npus in _images(topology, boxes):
        node = _with_switches(topology, npus)
        if node is not None and (link := _link_images(topology, node)) is not None:
            return Turning(node, link)
    return None


def _images(topology: Topology, boxes: int) -> Iterator[NDArray[np.int32]]:
    """Yield images of the NPUs to try: themselves, then the boxes in the opposite order."""
    every = np.arange(topology.npus, dtype=np.int32)
    yield every
    if boxes > 2 and topology.npus % boxes == 0:
        each = topology.npus // boxes
        yield (-(every // each) % boxes * each + every % each).astype(np.int32)


def _with_switches(topology: Topology, npus: NDArray[np.int32]) -> NDArray[np.int32] | None:
    """Return images of all nodes, given those of the NPUs; switches are told apart by their NPUs."""
    count = topology.npus
    around: list[list[int]] = [[] for _ in range(topology.nodes)]
    for a, b in zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True):
        around[a].append(b)
    known: dict[tuple[int, ...], list[int]] = {}
    for switch in range(count, topology.nodes):
        known.setdefault(tuple(sorted(n for n in around[switch] if n < count)), []).append(switch)
    node = np.arange(topology.nodes, dtype=np.int32)
    node[:count] = npus
    for there, switches in known.items():
        images = known.get(tuple(sorted(int(npus[n]) for n in there)), [])
        if len(images) != len(switches):
            return None
        node[switches] = images
    return node


def _link_images(topology: Topology, node: NDArray[np.int32]) -> NDArray[np.int32] | None:
    """Return an image of each link, all different; None if some link has none."""
    src, dst = topology.link_src, topology.link_dst
    speed, latency = topology.link_bandwidth_Bps, topology.link_latency_ps
    start, end = node[dst], node[src]
    there = np.lexsort((latency, speed, end, start))
    back = np.lexsort((latency, speed, dst, src))
    pairs = ((start, src), (end, dst), (speed, speed), (latency, latency))
    if not all(np.array_equal(one[there], other[back]) for one, other in pairs):
        return None
    image = np.empty(topology.links, np.int32)
    image[there] = back
    return image
