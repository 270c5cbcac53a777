"""Changes to a topology: dead links, missing NPUs, slower cables, new numbers.

NPUs, switches and links are given by number or by name, as :mod:`tacos.nodes` reads them.
Every function takes a topology and returns a new one, so calls can be chained. Changes that keep the NPUs'
numbers keep `dims`, as a hint for layouts; a result that is not regular is not `symmetric`. Links keep
their order. The result must be connected.

`drop_links`, `degrade` and `drop_npus` break a network: the result keeps what they broke as its faults
(:mod:`tacos.topology.faults`). `scale`, `forwarding_only`, `subset` and `renumber` change a network together with the healthy
network that it comes from. `reweighted` makes another network, which has no faults.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.errors import keywords
from tacos.nodes import LinkChoice, Network, Node, Nodes, topology_of
from tacos.topology.faults import broken, parts_of
from tacos.topology.links import Links, assemble, columns_of, model_of, raise_if_disconnected
from tacos.units import Quantity, time_ps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["degrade", "drop_links", "drop_npus", "forwarding_only", "renumber", "scale", "subset"]


@keywords()
def drop_links(topology: Network, *links: LinkChoice, both: bool = False) -> Topology:
    """Return the topology without some links.

    Args:
        topology: the topology to change.
        links: link numbers, or pairs (src, dst) of nodes, each for one direction.
        both: whether to drop the links back too, as with a dead cable.

    Raises:
        ValueError: a link that does not exist, or an NPU that can no longer be reached.

    >>> from tacos.topology import ring
    >>> drop_links(ring(4), (0, 1), (2, 3)).links
    6
    >>> drop_links(ring(4), "npu 0-npu 1", both=True).links
    6
    """
    topology = topology_of(topology)
    keep = ~chosen_links(topology, links, both)
    whole, node, link = parts_of(topology)
    return raise_if_disconnected(
        broken(
            whole,
            node,
            link[keep],
            bandwidth_Bps=topology.link_bandwidth_Bps[keep],
            latency_ps=topology.link_latency_ps[keep],
            symmetric=bool(topology.symmetric and keep.all()),
        )
    )


@keywords()
def degrade(
    topology: Network,
    *links: LinkChoice,
    factor: float = 1,
    latency: Quantity | None = None,
    both: bool = False,
) -> Topology:
    """Return the topology with some links slower.

    Args:
        topology: the topology to change.
        links: link numbers, or pairs (src, dst) of nodes.
        factor: share of the bandwidth that remains, above 0 and at most 1.
        latency: the links' new latency; unchanged by default.
        both: whether to degrade the links back too.

    Raises:
        ValueError: a link that does not exist, or a factor out of range.

    >>> from tacos.topology import ring
    >>> degrade(ring(4), (0, 1), factor=0.5, latency="2us").link_bandwidth_Bps[:2].tolist()
    [25000000000, 50000000000]
    """
    topology = topology_of(topology)
    if not 0 < factor <= 1:
        raise ValueError(f"factor must be above 0 and at most 1; got {factor!r}")
    chosen = chosen_links(topology, links, both)
    bandwidth, latency_ps = topology.link_bandwidth_Bps, topology.link_latency_ps
    bandwidth = np.where(chosen, _scaled(bandwidth, factor, least=1), bandwidth)
    if latency is not None:
        latency_ps = np.where(chosen, time_ps(latency, what="latency", bare=False), latency_ps)
    return broken(
        *parts_of(topology),
        bandwidth_Bps=bandwidth,
        latency_ps=latency_ps,
        symmetric=bool(topology.symmetric and (chosen.all() or not chosen.any())),
    )


@keywords()
def scale(topology: Network, *, bandwidth: float = 1, latency: float = 1) -> Topology:
    """Return the topology with all bandwidths and latencies multiplied by factors.

    >>> from tacos.topology import ring
    >>> scale(ring(4, bandwidth="50GB/s"), bandwidth=2) == ring(4, bandwidth="100GB/s")
    True
    """
    topology = topology_of(topology)
    if not 0 < bandwidth < np.inf:
        raise ValueError(f"the factor of bandwidth must be positive; got {bandwidth!r}")
    if not 0 <= latency < np.inf:
        raise ValueError(f"the factor of latency must be 0 or more; got {latency!r}")

    def scaled(one: Topology) -> Topology:
        links = columns_of(one)._replace(
            bandwidth_Bps=_scaled(one.link_bandwidth_Bps, bandwidth, least=1),
            latency_ps=_scaled(one.link_latency_ps, latency, least=0),
        )
        return _with_links(one, links)

    return changed_alike(topology, scaled)


@keywords()
def forwarding_only(topology: Network) -> Topology:
    """Return the topology with switches that only forward: none multicasts or reduces.

    Its bound is the bound of algorithms that move data between NPUs without sums in switches. A topology whose switches only
    forward is returned unchanged.

    >>> from tacos.topology import switch
    >>> forwarding_only(switch(4, multicast=True, reduce=True)) == switch(4)
    True
    """
    topology = topology_of(topology)
    if not topology.healthy().switch_capabilities.any():
        return topology
    return changed_alike(topology, partial(_with_links, capable=False))


def renamed(topology: Topology, family: str) -> Topology:
    """Return the topology as one of another family.

    >>> from tacos.topology import ring
    >>> renamed(ring(4), "loop").family
    'loop'
    """
    return changed_alike(topology, partial(_with_links, family=family))


def changed_alike(topology: Topology, change: Callable[[Topology], Topology]) -> Topology:
    """Change a network, and the healthy network that it comes from, in a way that keeps nodes and links."""
    found = change(topology)
    if topology.faults is None:
        return found
    whole, node, link = parts_of(topology)
    return broken(
        change(whole),
        node,
        link,
        bandwidth_Bps=found.link_bandwidth_Bps,
        latency_ps=found.link_latency_ps,
        symmetric=found.symmetric,
    )


def reweighted(
    topology: Topology, *, bandwidth_Bps: NDArray[np.int64], latency_ps: NDArray[np.int64]
) -> Topology:
    """Return the topology with other bandwidths and latencies, one entry per link; it has no faults.

    >>> from tacos.topology import ring
    >>> topo = ring(4)
    >>> reweighted(topo, bandwidth_Bps=topo.link_bandwidth_Bps, latency_ps=topo.link_latency_ps) == topo
    False
    """
    links = columns_of(topology)._replace(bandwidth_Bps=bandwidth_Bps, latency_ps=latency_ps)
    return _with_links(topology, links, regular=False)


@keywords()
def subset(topology: Network, npus: Iterable[Node]) -> Topology:
    """Return the network of some NPUs and of the switches around them.

    Switches with fewer than two remaining neighbours are removed too, repeatedly.

    Args:
        topology: the whole network.
        npus: the NPUs to keep; the first becomes NPU 0, the second NPU 1, and so on.

    Raises:
        ValueError: an NPU that does not exist or is named twice, or NPUs that are not connected.

    >>> from tacos.topology import mesh
    >>> subset(mesh(4, 4), range(8))
    <tacos.Topology mesh: 8 NPUs, 0 switches, 20 links>
    """
    topology = topology_of(topology)
    order = np.array(Nodes(topology).npus(npus), np.int64)
    if not order.size:
        raise ValueError("npus is empty; a topology needs at least one NPU")
    return _selected(topology, order)


@keywords()
def drop_npus(topology: Network, *npus: Node) -> Topology:
    """Return the topology without some NPUs; the numbers of later NPUs move up.

    Raises:
        ValueError: an NPU that does not exist, or NPUs that are no longer connected.

    >>> from tacos.topology import dgx_h100
    >>> drop_npus(dgx_h100(2), 3)
    <tacos.Topology dgx_h100: 15 NPUs, 3 switches, 60 links>
    """
    topology = topology_of(topology)
    gone = np.array(Nodes(topology).npus(npus), np.int64)
    if not gone.size:
        return topology
    if len(np.unique(gone)) == topology.npus:
        raise ValueError("npus names all NPUs; a topology needs at least one")
    alive = np.ones(topology.nodes, bool)
    alive[gone] = False
    alive = _without_dead_ends(topology, alive)
    keep = alive[topology.link_src] & alive[topology.link_dst]
    whole, node, link = parts_of(topology)
    return raise_if_disconnected(
        broken(
            whole,
            node[alive],
            link[keep],
            bandwidth_Bps=topology.link_bandwidth_Bps[keep],
            latency_ps=topology.link_latency_ps[keep],
        )
    )


@keywords()
def renumber(topology: Network, permutation: Sequence[Node]) -> Topology:
    """Return the network with its NPUs renumbered: NPU i becomes NPU permutation[i].

    A name in `permutation` stands for the current number of the NPU with that name.

    Raises:
        ValueError: `permutation` does not name every NPU once.

    >>> from tacos.topology import ring
    >>> renumber(ring(3, bidirectional=False), [1, 0, 2]).link_dst
    array([0, 2, 1], dtype=int32)
    """
    topology = topology_of(topology)
    new = np.array(Nodes(topology).npus(permutation, what="permutation"), np.int64)
    if new.size != topology.npus:
        raise ValueError(f"permutation has {new.size} numbers for {topology.npus} NPUs")
    return _selected(topology, np.argsort(new), keep_all=True)


def chosen_links(
    topology: Topology, links: Sequence[LinkChoice], both: bool = False
) -> NDArray[np.bool_]:
    """Return the chosen links as a mask over all links.

    >>> from tacos.topology import ring
    >>> chosen_links(ring(3), [(0, 1), 4]).tolist()
    [True, False, False, False, True, False]
    """
    nodes, chosen = Nodes(topology), np.zeros(topology.links, bool)
    for choice in links:
        chosen[nodes.links(choice, both=both)] = True
    return chosen


def _scaled(values: Any, factor: float, least: int) -> NDArray[np.int64]:
    scaled = np.rint(np.asarray(values) * float(factor))
    if scaled.size and scaled.max() >= 2**63:
        raise ValueError(f"a factor of {factor!r} gives values that are too large")
    return np.maximum(scaled.astype(np.int64), least)


def _with_links(
    topology: Topology,
    links: Links | None = None,
    *,
    regular: bool = True,
    capable: bool = True,
    family: str | None = None,
) -> Topology:
    """Return the same nodes with other links, without faults."""
    capabilities = topology.switch_capabilities
    changed = assemble(
        topology.npus,
        [columns_of(topology) if links is None else links],
        capabilities=capabilities if capable else np.zeros_like(capabilities),
        family=topology.family if family is None else family,
        dims=topology.dims,
        symmetric=bool(topology.symmetric and regular),
        names=topology.names,
        **model_of(topology),
    )
    return raise_if_disconnected(changed) if links is not None else changed


def _without_dead_ends(topology: Topology, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return `alive` without the switches that cannot lead from one remaining node to another."""
    src, dst = topology.link_src, topology.link_dst
    while True:
        live = alive[src] & alive[dst]
        s, d = src[live], dst[live]
        enters, leaves = np.zeros(topology.nodes, bool), np.zeros(topology.nodes, bool)
        enters[d], leaves[s] = True, True
        # A switch with a single neighbour could only send data back.
        low, high = np.full(topology.nodes, topology.nodes), np.full(topology.nodes, -1)
        for node, neighbour in ((s, d), (d, s)):
            np.minimum.at(low, node, neighbour)
            np.maximum.at(high, node, neighbour)
        useful = alive & enters & leaves & (low < high)
        useful[: topology.npus] = alive[: topology.npus]
        if (useful == alive).all():
            return alive
        alive = useful


def _selected(topology: Topology, order: NDArray[np.int64], *, keep_all: bool = False) -> Topology:
    """Return the NPUs in `order`, the switches that they use or all, and the links between them."""
    found, node, link = _part(topology, order, keep_all)
    raise_if_disconnected(found)
    if topology.faults is None:
        return found
    # The same NPUs of the healthy network, of which all that is left here is a part. Dropped NPUs keep their numbers
    # if all others are renumbered.
    parts = parts_of(topology)
    chosen = parts.node[order]
    if keep_all:
        whole_order = np.arange(parts.healthy.npus)
        whole_order[parts.node[: topology.npus]] = chosen
        chosen = whole_order
    whole, whole_node, whole_link = _part(parts.healthy, chosen, keep_all)
    place = np.full(parts.healthy.nodes, -1)
    place[whole_node] = np.arange(len(whole_node))
    return broken(
        whole,
        place[parts.node[node]],
        np.searchsorted(whole_link, parts.link[link]),
        bandwidth_Bps=found.link_bandwidth_Bps,
        latency_ps=found.link_latency_ps,
    )


def _part(
    topology: Topology, order: NDArray[np.int64], keep_all: bool
) -> tuple[Topology, NDArray[np.int64], NDArray[np.int64]]:
    """Return a part of a network without faults, and which nodes and links it has."""
    alive = np.zeros(topology.nodes, bool)
    alive[order] = True
    alive[topology.npus :] = True
    if not keep_all:
        alive = _without_dead_ends(topology, alive)
    switches = np.flatnonzero(alive[topology.npus :])
    node = np.concatenate([order, topology.npus + switches])
    new_id = np.full(topology.nodes, -1)
    new_id[node] = np.arange(len(node))
    src, dst = new_id[topology.link_src], new_id[topology.link_dst]
    link = np.flatnonzero((src >= 0) & (dst >= 0))
    changed = assemble(
        order.size,
        [
            Links(
                src[link],
                dst[link],
                topology.link_bandwidth_Bps[link],
                topology.link_latency_ps[link],
            )
        ],
        capabilities=topology.switch_capabilities[switches],
        family=topology.family,
        names=[topology.names[one] for one in node.tolist()] if topology.names else (),
        **model_of(topology),
    )
    return changed, node, link
