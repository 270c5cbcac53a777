"""Networks of many switches or groups: fat trees, rails, dragonflies.

NPUs are numbered group by group (the innermost index varies fastest), and `dims` holds the sizes from the
inside out. Switches are numbered level by level from the NPUs upwards. So are links, with the links up
before the links down in each level. Links between groups come last, port by port.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from tacos.errors import keywords
from tacos.topology.builders import BANDWIDTH, LATENCY, product, switch
from tacos.topology.links import (
    Links,
    Model,
    all_pairs,
    assemble,
    check_count,
    columns_of,
    duplex,
    raise_if_disconnected,
    speed,
    whole_number,
)
from tacos.units import Quantity, bandwidth_Bps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["dragonfly", "dragonfly_plus", "fat_tree", "rail"]


@keywords(*Model.__annotations__)
def fat_tree(
    *sizes: int,
    uplinks: int | tuple[int, int] | None = None,
    oversubscription: float = 1,
    bandwidth: Quantity = BANDWIDTH,
    latency: Quantity = LATENCY,
    **model: Unpack[Model],
) -> Topology:
    """Return a tree of switches with NPUs under its leaves, of two or three levels.

    With two sizes, each leaf has one link to every spine. With three, each pod is such a tree, and upper
    switch i of every pod has links to the i-th set of core switches.

    Args:
        sizes: from the top down: (leaves, NPUs per leaf) or (pods, leaves per pod, NPUs per leaf).
        uplinks: links up from each leaf, and from each upper switch of a pod: the number of spines (per
            pod), and of core switches per upper switch. By default the number of links down, as in the
            classical fat tree of equal switches.
        oversubscription: bandwidth into a leaf from below over its bandwidth upwards; levels
            above are not oversubscribed.
        bandwidth, latency: of the NPUs' links. Links above have the same latency, and a bandwidth that
            follows from `uplinks` and `oversubscription`.
        model: how links, switches and NPUs behave; see `Model`.

    >>> fat_tree(4, 8)
    <tacos.Topology fat_tree: 32 NPUs, 12 switches, 128 links>
    >>> fat_tree(4, 2, 2)        # the 4-ary fat tree: 16 NPUs, 8 + 8 + 4 switches of 4 ports
    <tacos.Topology fat_tree: 16 NPUs, 20 switches, 96 links>
    >>> fat_tree(4, 8, uplinks=1, oversubscription=4).link_bandwidth_Bps[-1].item()
    100000000000
    """
    if len(sizes) not in (2, 3):
        raise ValueError(
            "a fat tree takes (leaves, NPUs per leaf) or (pods, leaves per pod, NPUs per leaf), "
            f"not {sizes}"
        )
    pods, leaves, per_leaf = (1, *sizes)[-3:]
    for what, size in (("pods", pods), ("leaves", leaves), ("npus_per_leaf", per_leaf)):
        whole_number(what, size)
    up, core_up = (per_leaf, leaves)
    if isinstance(uplinks, tuple) and len(uplinks) == 2:
        up, core_up = (whole_number("uplinks", links) for links in uplinks)
    elif uplinks is not None:
        up = whole_number("uplinks", uplinks)
    if not oversubscription > 0:
        raise ValueError(f"oversubscription must be positive; got {oversubscription!r}")
    npus, all_leaves, spines = prod(sizes), pods * leaves, pods * up
    check_count(2 * (npus + all_leaves * up + spines * core_up))
    uplink = bandwidth_Bps(bandwidth, bare=False) * per_leaf / (up * oversubscription)
    first_leaf, first_spine = npus, npus + all_leaves
    blocks = duplex(np.arange(npus), first_leaf + np.arange(npus) // per_leaf, bandwidth, latency)
    leaf, spine = all_pairs(all_leaves, up)
    blocks += duplex(
        first_leaf + leaf, first_spine + leaf // leaves * up + spine, f"{uplink}B/s", latency
    )
    cores = 0
    if len(sizes) == 3:
        cores = up * core_up
        above, core = all_pairs(spines, core_up)
        core += first_spine + spines + above % up * core_up
        blocks += duplex(first_spine + above, core, f"{uplink * leaves / core_up}B/s", latency)
    return assemble(
        npus,
        blocks,
        capabilities=[0] * (all_leaves + spines + cores),
        family="fat_tree",
        dims=[("switch", size) for size in reversed(sizes)],
        **model,
    )


@keywords(*Model.__annotations__)
def rail(
    boxes: int,
    npus_per_box: int,
    *,
    bandwidth: Quantity = "450GB/s",
    latency: Quantity = "350ns",
    rail_bandwidth: Quantity = "50GB/s",
    rail_latency: Quantity = "1.3us",
    spine: bool = False,
    oversubscription: float = 1,
    **model: Unpack[Model],
) -> Topology:
    """Return a rail-optimized cluster: a switch in each box, and one switch per rail.

    Rail i joins NPU i of all boxes. Without a spine this is the product of two switches.

    Args:
        boxes, npus_per_box: NPU i of box b has the number b·npus_per_box + i.
        bandwidth, latency: of the links inside a box.
        rail_bandwidth, rail_latency: of the links to the rails, and above them to the spine.
        spine: whether one more switch joins the rails.
        oversubscription: bandwidth of a rail's NPUs over the bandwidth to the spine.
        model: how links, switches and NPUs behave; see `Model`.

    >>> rail(4, 8), rail(4, 8, spine=True).switches
    (<tacos.Topology rail: 32 NPUs, 12 switches, 128 links>, 13)
    """
    rails = product(
        switch(npus_per_box, bandwidth=bandwidth, latency=latency),
        switch(boxes, bandwidth=rail_bandwidth, latency=rail_latency),
    )
    blocks = [columns_of(rails)]
    if spine:
        if not oversubscription > 0:
            raise ValueError(f"oversubscription must be positive; got {oversubscription!r}")
        up = bandwidth_Bps(rail_bandwidth, bare=False) * boxes / oversubscription
        first_rail = rails.npus + boxes
        blocks += duplex(
            first_rail + np.arange(npus_per_box), rails.nodes, f"{up}B/s", rail_latency
        )
    return assemble(
        rails.npus,
        blocks,
        capabilities=[0] * (rails.switches + spine),
        family="rail",
        dims=rails.dims,
        symmetric=not spine,
        **model,
    )


@keywords(*Model.__annotations__)
def dragonfly(
    groups: int,
    npus_per_group: int,
    *,
    global_links: int = 1,
    bandwidth: Quantity = BANDWIDTH,
    latency: Quantity = LATENCY,
    global_bandwidth: Quantity | None = None,
    global_latency: Quantity | None = None,
    **model: Unpack[Model],
) -> Topology:
    """Return a direct dragonfly: cliques of NPUs, joined by global links spread evenly over the groups.

    Args:
        groups, npus_per_group: NPU i of group g has the number g·npus_per_group + i.
        global_links: global links of each NPU; a group has global_links·npus_per_group of them.
        bandwidth, latency: of the links inside a group.
        global_bandwidth, global_latency: of the links between groups; by default the same.
        model: how links, switches and NPUs behave; see `Model`.

    Raises:
        ValueError: an argument is out of range, or there are too few global links to join the groups.

    >>> dragonfly(5, 4)          # every two groups are joined once
    <tacos.Topology dragonfly: 20 NPUs, 0 switches, 80 links>
    """
    a = whole_number("npus_per_group", npus_per_group)
    npus = whole_number("groups", groups) * a
    check_count(npus * (a - 1 + whole_number("global_links", global_links, least=0)))
    group, (v, w) = np.arange(groups)[:, None] * a, all_pairs(a, a)
    v, w = v[v != w], w[v != w]
    src, dst = _global_cables(groups, a, global_links)
    blocks = [
        Links((group + v).ravel(), (group + w).ravel(), *speed(bandwidth, latency)),
        Links(src, dst, *speed(_or(global_bandwidth, bandwidth), _or(global_latency, latency))),
    ]
    dims = [("clique", a), ("box", groups)]
    return raise_if_disconnected(assemble(npus, blocks, family="dragonfly", dims=dims, **model))


@keywords(*Model.__annotations__)
def dragonfly_plus(
    groups: int,
    leaves: int,
    npus_per_leaf: int,
    *,
    spines: int | None = None,
    global_links: int = 1,
    bandwidth: Quantity = BANDWIDTH,
    latency: Quantity = LATENCY,
    global_bandwidth: Quantity | None = None,
    global_latency: Quantity | None = None,
    **model: Unpack[Model],
) -> Topology:
    """Return a dragonfly+: groups are two-level trees whose spines are joined by global links.

    Args:
        groups, leaves, npus_per_leaf: groups, leaf switches per group, and NPUs under each leaf.
        spines: spine switches per group, each linked to all its leaves; by default one per leaf.
        global_links: links of each spine to spines of other groups, spread evenly over the groups.
        bandwidth, latency: of the links inside a group.
        global_bandwidth, global_latency: of the links between groups; by default the same.
        model: how links, switches and NPUs behave; see `Model`.

    Raises:
        ValueError: an argument is out of range, or there are too few global links to join the groups.

    >>> dragonfly_plus(3, 2, 4)
    <tacos.Topology dragonfly_plus: 24 NPUs, 12 switches, 78 links>
    """
    whole_number("groups", groups)
    whole_number("leaves", leaves)
    whole_number("npus_per_leaf", npus_per_leaf)
    spines = whole_number("spines", leaves if spines is None else spines)
    npus, all_leaves, all_spines = groups * leaves * npus_per_leaf, groups * leaves, groups * spines
    whole_number("global_links", global_links, least=0)
    check_count(2 * (npus + all_leaves * spines) + all_spines * global_links)
    first_leaf, first_spine = npus, npus + all_leaves
    v, (leaf, spine) = np.arange(npus), all_pairs(all_leaves, spines)
    src, dst = _global_cables(groups, spines, global_links)
    far = speed(_or(global_bandwidth, bandwidth), _or(global_latency, latency))
    blocks = [
        *duplex(v, first_leaf + v // npus_per_leaf, bandwidth, latency),
        *duplex(
            first_leaf + leaf, first_spine + leaf // leaves * spines + spine, bandwidth, latency
        ),
        Links(first_spine + src, first_spine + dst, *far),
    ]
    return raise_if_disconnected(
        assemble(
            npus,
            blocks,
            capabilities=[0] * (all_leaves + all_spines),
            family="dragonfly_plus",
            dims=[("switch", npus_per_leaf), ("switch", leaves), ("box", groups)],
            **model,
        )
    )


def _or(value: Quantity | None, default: Quantity) -> Quantity:
    return default if value is None else value


def _global_cables(
    groups: int, routers: int, per_router: int
) -> tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]:
    """Return the ends of the links between groups: router r of group g is g·routers + r.

    A group has routers·per_router ports. Port p of group g leads to group g + offset[p], to the port with
    the opposite offset. A round of groups - 1 ports reaches every other group once. The remaining ports
    take offsets in pairs (d, -d), so each has its counterpart.
    """
    ports = routers * per_router if groups > 1 else 0
    rounds, rest = divmod(ports, max(groups - 1, 1))
    tail = [d for k in range(1, rest // 2 + 1) for d in (k, groups - k)]
    if rest % 2 and groups % 2 == 0:
        tail.append(groups // 2)  # it is its own opposite
    offset = np.concatenate([np.tile(np.arange(1, groups), rounds), np.array(tail, dtype=np.int64)])
    there = np.arange(offset.size)
    full = rounds * (groups - 1)
    back = np.where(there < full, there + groups - 2 * offset, full + ((there - full) ^ 1))
    if len(tail) % 2:
        back[-1] = there[-1]
    group = np.arange(groups)
    src = group * routers + there[:, None] // per_router
    dst = (group + offset[:, None]) % groups * routers + back[:, None] // per_router
    return src.ravel(), dst.ravel()
