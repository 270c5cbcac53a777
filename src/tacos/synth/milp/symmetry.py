"""Symmetry: parts of a problem that can be treated in the same way, which makes its program smaller.

A permutation of the nodes that maps links onto equal links, and the collective onto itself, maps schedules
onto schedules. Restricting the search to invariant schedules makes the program smaller by the order of the group,
but may exclude all good schedules: if there is no solution, nothing is proven. Only groups in which no element but
the identity fixes an NPU are used; with others, a chunk would have to reach its NPU over two links at once.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import translations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tacos._core import Collective, Topology
    from tacos.synth.milp.problem import Bools, Hops, Ints

__all__ = ["Orbits", "automorphisms", "orbits", "rotation"]

_MOST_NODES = 80
_TRIES = 20_000  # largest number of candidates in the search for one automorphism


@dataclass(frozen=True)
class Orbits:
    """The representative of the orbit of every pair (chunk, hop), every pair (chunk, NPU) and every link."""

    order: int
    pair_chunk: Ints
    pair_hop: Ints
    pair_leads: Bools
    npu_chunk: Ints
    npu_npu: Ints
    npu_leads: Bools
    link_leads: Bools


def rotation(npus: int, offset: int, size: int) -> list[int]:
    """Return TACCL's symmetry: ranks are rotated by `offset` within each block of `size` ranks.

    >>> rotation(8, 1, 4)
    [1, 2, 3, 0, 5, 6, 7, 4]
    """
    return [r // size * size + (r % size + offset) % size for r in range(npus)]


def orbits(
    topology: Topology, collective: Collective, hops: Hops, images: Sequence[Sequence[int]]
) -> Orbits:
    """Return the orbits under permutations of the nodes.

    Args:
        topology, collective, hops: The problem.
        images: The image of each node under each generator.

    Raises:
        ValueError: A generator is not a symmetry.

    >>> import tacos
    >>> from tacos.synth.milp.problem import hops_of
    >>> ring = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(ring, 4, chunks=1)
    >>> orbits(ring, coll, hops_of(ring), [[1, 2, 3, 0]]).pair_leads.sum()     # of 4 x 8
    np.int64(8)
    >>> orbits(ring, coll, hops_of(ring), [[1, 0, 2, 3]])
    Traceback (most recent call last):
    ValueError: there is no link from npu 0 to npu 2 that equals the one from npu 1 to npu 2
    """
    chunk_maps, hop_maps, link_maps = [], [], []
    for image in images:
        links = _link_image(topology, image)
        chunk_maps.append(_chunk_image(collective, image))
        hop_maps.append(_hop_image(hops, links))
        link_maps.append(links)
    npu_maps = [np.asarray(image)[: topology.npus] for image in images]
    pair, npu = (
        _leaders(collective.chunks * width, [c[:, None] * width + m for c, m in zip(chunk_maps, maps, strict=True)])
        for width, maps in ((len(hops), hop_maps), (topology.npus, npu_maps))
    )  # fmt: skip
    link = _leaders(topology.links, link_maps)
    wide, high = (collective.chunks, len(hops)), (collective.chunks, topology.npus)
    return Orbits(
        order=len(_group(npu_maps)) if images else 1,
        pair_chunk=(pair // max(len(hops), 1)).reshape(wide),
        pair_hop=(pair % max(len(hops), 1)).reshape(wide),
        pair_leads=(pair == np.arange(len(pair))).reshape(wide),
        npu_chunk=(npu // topology.npus).reshape(high),
        npu_npu=(npu % topology.npus).reshape(high),
        npu_leads=(npu == np.arange(len(npu))).reshape(high),
        link_leads=link == np.arange(len(link)),
    )


def automorphisms(topology: Topology) -> list[list[int]]:
    """Return generators of a group of symmetries in which no NPU stays in place, as images of all nodes.

    >>> import tacos
    >>> automorphisms(tacos.topology.ring(4))
    [[1, 2, 3, 0]]
    >>> [image[0] for image in automorphisms(tacos.topology.dgx1())]     # where each takes GPU 0
    [2, 4]
    """
    if topology.symmetric:
        orders, images, _ = translations(topology)
        moved = images.reshape(len(orders), topology.nodes)
        return [image.tolist() for image, order in zip(moved, orders, strict=True) if order > 1]
    if topology.nodes > _MOST_NODES:
        return []
    npus = topology.npus
    generators: list[list[int]] = []
    members: list[Ints] = [np.arange(npus)]
    for target in range(1, npus):
        if any(member[0] == target for member in members):
            continue
        for image in _search(topology, {0: target}):
            grown = _group([np.array(g)[:npus] for g in [*generators, image]], most=npus)
            if grown and all((m != np.arange(npus)).all() or not m[0] for m in grown):
                generators.append(image)
                members = grown
                break
    return generators


def extended(topology: Topology, npus: Sequence[int]) -> list[int] | None:
    """Return a permutation of the NPUs with its images of the switches, if it is an automorphism."""
    return next(_search(topology, dict(enumerate(npus))), None)


def _search(topology: Topology, fixed: dict[int, int]) -> Iterator[list[int]]:
    """Search by backtracking for automorphisms that map nodes as `fixed` says; stop after `_TRIES` candidates."""
    npus, nodes = topology.npus, topology.nodes
    code = _codes(topology)
    color = [
        (node < npus, tuple(sorted(code[node].tolist())), tuple(sorted(code[:, node].tolist())))
        for node in range(nodes)
    ]  # fmt: skip
    bits = [0] * npus + topology.switch_capabilities.tolist()
    order = list(fixed)
    seen = set(order)
    for node in order:  # neighbours of placed nodes come next, since they fail early
        for other in np.flatnonzero((code[node] > 0) | (code[:, node] > 0)).tolist():
            if other not in seen:
                seen.add(other)
                order.append(other)
    image = np.full(nodes, -1)
    taken = np.zeros(nodes, bool)
    tries = _TRIES

    def fits(depth: int, target: int) -> bool:
        node, placed = order[depth], order[:depth]
        if taken[target] or color[node] != color[target] or bits[node] != bits[target]:
            return False
        there = image[placed]
        return bool(
            (code[node, placed] == code[target, there]).all()
            and (code[placed, node] == code[there, target]).all()
        )

    def targets(node: int) -> Iterable[int]:
        if node >= npus:
            return range(npus, nodes)
        # Try the same offset as the first node's, so that rotations are found first.
        ahead = node + fixed[order[0]] - order[0]
        return ((ahead + k) % npus for k in range(npus))

    def place(depth: int) -> Iterator[list[int]]:
        nonlocal tries
        if depth == nodes:
            yield image.tolist()
            return
        node = order[depth]
        for target in [fixed[node]] if node in fixed else targets(node):
            tries -= 1
            if tries < 0:
                return
            if fits(depth, target):
                image[node], taken[target] = target, True
                yield from place(depth + 1)
                taken[target] = False

    if len(order) == nodes:
        yield from place(0)


def _codes(topology: Topology) -> Ints:
    """Return the matrix [src, dst] of a number for the links between two nodes; 0 means none."""
    between: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    columns = (
        topology.link_src, topology.link_dst, topology.link_bandwidth_Bps, topology.link_latency_ps,
    )  # fmt: skip
    for src, dst, speed, latency in zip(*(column.tolist() for column in columns), strict=True):
        between[src, dst].append((speed, latency))
    known: dict[tuple[tuple[int, int], ...], int] = {}
    code = np.zeros((topology.nodes, topology.nodes), np.int64)
    for ends, cables in between.items():
        code[ends] = known.setdefault(tuple(sorted(cables)), len(known) + 1)
    return code


def _link_image(topology: Topology, image: Sequence[int]) -> Ints:
    """Return the image of each link: the link at the same position among the equal links of the image."""
    columns = (
        topology.link_src, topology.link_dst, topology.link_bandwidth_Bps, topology.link_latency_ps,
    )  # fmt: skip
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    for link, row in enumerate(rows):
        alike[row].append(link)
    result = np.zeros(topology.links, np.int64)
    for (src, dst, *speed), mine in alike.items():
        theirs = alike.get((image[src], image[dst], *speed), [])
        if len(theirs) != len(mine):
            ends = [topology.node_name(node) for node in (image[src], image[dst], src, dst)]
            raise ValueError(
                f"there is no link from {ends[0]} to {ends[1]} that equals the one "
                f"from {ends[2]} to {ends[3]}"
            )
        result[mine] = theirs
    return result


def _chunk_image(collective: Collective, image: Sequence[int]) -> Ints:
    """Return the image of each chunk: the chunk at the same position among those with the image's conditions."""
    sizes = collective.chunk_bytes().tolist()
    conditions = [
        (collective.inputs(chunk), collective.outputs(chunk), sizes[chunk])
        for chunk in range(collective.chunks)
    ]
    alike: dict[tuple[frozenset[int], frozenset[int], int], list[int]] = defaultdict(list)
    for chunk, (before, after, size) in enumerate(conditions):
        alike[frozenset(before), frozenset(after), size].append(chunk)
    result = np.zeros(collective.chunks, np.int64)
    for (inputs, outputs, size), mine in alike.items():
        moved = (frozenset(image[n] for n in inputs), frozenset(image[n] for n in outputs), size)
        theirs = alike.get(moved, [])
        if len(theirs) != len(mine):
            raise ValueError(
                f"there is no chunk from NPU {_first(moved[0])} to {_first(moved[1])} that equals the one "
                f"from {_first(inputs)} to {_first(outputs)}"
            )
        result[mine] = theirs
    return result


def _first(npus: Iterable[int]) -> str:
    return str(min(npus, default="none"))


def _hop_image(hops: Hops, links: Ints) -> Ints:
    number = {tuple(hops.links(hop)): hop for hop in range(len(hops))}
    result = np.zeros(len(hops), np.int64)
    for path, hop in number.items():
        moved = number.get(tuple(links[list(path)].tolist()))
        if moved is None:
            raise ValueError(f"the path of hop {hop} has no image among the hops")
        result[hop] = moved
    return result


def _group(generators: Sequence[Ints], most: int = 10**6) -> list[Ints]:
    """Return all products of permutations, or nothing if there are more than `most`."""
    identity = np.arange(len(generators[0])) if generators else np.zeros(0, np.int64)
    known = {identity.tobytes(): identity}
    queue = [identity]
    for member in queue:
        for generator in generators:
            product = generator[member]
            if product.tobytes() not in known:
                known[product.tobytes()] = product
                queue.append(product)
                if len(queue) > most:
                    return []
    return queue


def _leaders(count: int, maps: Sequence[Ints]) -> Ints:
    """Return the smallest member of each element's orbit."""
    representative = np.arange(count)
    while True:
        before = representative.copy()
        for image in maps:
            target = image.ravel()
            low = np.minimum(representative, representative[target])
            representative = low
            np.minimum.at(representative, target, low)
        if np.array_equal(representative, before):
            return representative
