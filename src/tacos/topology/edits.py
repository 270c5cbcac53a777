"""Changes to a topology: dead links, missing NPUs, slower cables, new numbers.

NPUs, switches and links are given by number or by name, as :mod:`tacos.nodes` reads them.
Every function takes a topology and returns a new one, so calls can be chained. Changes that keep the NPUs'
numbers keep `dims`, as a hint for layouts; a result that is not regular is not `symmetric`. Links keep
their order. The result must be connected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.errors import keywords
from tacos.nodes import LinkChoice, Network, Node, Nodes, topology_of
from tacos.topology.links import Links, assemble, columns_of, model_of, raise_if_disconnected
from tacos.units import Quantity, time_ps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    columns = columns_of(topology)
    return _with_links(
        topology, Links(*(np.asarray(column)[keep] for column in columns)), bool(keep.all())
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
    old = columns_of(topology)
    bandwidth = np.where(chosen, _scaled(old.bandwidth_Bps, factor, least=1), old.bandwidth_Bps)
    latency_ps = (
        old.latency_ps
        if latency is None
        else np.where(chosen, time_ps(latency, what="latency", bare=False), old.latency_ps)
    )
    return _with_links(
        topology,
        Links(old.src, old.dst, bandwidth, latency_ps),
        regular=bool(chosen.all()) or not chosen.any(),
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
    old = columns_of(topology)
    links = old._replace(
        bandwidth_Bps=_scaled(old.bandwidth_Bps, bandwidth, least=1),
        latency_ps=_scaled(old.latency_ps, latency, least=0),
    )
    return _with_links(topology, links, regular=True)


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
    if not topology.switch_capabilities.any():
        return topology
    return assemble(
        topology.npus,
        [columns_of(topology)],
        capabilities=np.zeros(topology.switches, np.uint8),
        family=topology.family,
        dims=topology.dims,
        symmetric=topology.symmetric,
        names=topology.names,
        **model_of(topology),
    )


def reweighted(
    topology: Topology, *, bandwidth_Bps: NDArray[np.int64], latency_ps: NDArray[np.int64]
) -> Topology:
    """Return the topology with other bandwidths and latencies, one entry per link.

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
    alive = np.zeros(topology.nodes, bool)
    alive[order] = True
    alive[topology.npus :] = True
    return _selected(topology, order, _without_dead_ends(topology, alive))


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
    return subset(topology, np.setdiff1d(np.arange(topology.npus), gone).tolist())


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
    return _selected(topology, np.argsort(new), np.ones(topology.nodes, bool))


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


def _with_links(topology: Topology, links: Links, regular: bool) -> Topology:
    """Return the same nodes with other links."""
    changed = assemble(
        topology.npus,
        [links],
        capabilities=topology.switch_capabilities,
        family=topology.family,
        dims=topology.dims,
        symmetric=bool(topology.symmetric and regular),
        names=topology.names,
        **model_of(topology),
    )
    return raise_if_disconnected(changed)


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


def _selected(topology: Topology, order: NDArray[np.int64], alive: NDArray[np.bool_]) -> Topology:
    """Return the NPUs in `order`, the remaining switches, and the links between them."""
    switches = np.flatnonzero(alive[topology.npus :])
    new_id = np.full(topology.nodes, -1)
    new_id[order] = np.arange(order.size)
    new_id[topology.npus + switches] = order.size + np.arange(switches.size)
    src, dst = new_id[topology.link_src], new_id[topology.link_dst]
    keep = (src >= 0) & (dst >= 0)
    nodes = [*order.tolist(), *(topology.npus + switches).tolist()]
    changed = assemble(
        order.size,
        [
            Links(
                src[keep],
                dst[keep],
                topology.link_bandwidth_Bps[keep],
                topology.link_latency_ps[keep],
            )
        ],
        capabilities=topology.switch_capabilities[switches],
        family=topology.family,
        names=[topology.names[node] for node in nodes] if topology.names else (),
        **model_of(topology),
    )
    return raise_if_disconnected(changed)
