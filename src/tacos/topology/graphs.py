"""Topologies as networkx graphs, and back. networkx is imported where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from tacos.errors import keywords
from tacos.nodes import Network, topology_of
from tacos.topology.links import Model, from_links

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable

    import networkx as nx

    from tacos._core import Topology
    from tacos.units import Quantity

__all__ = ["from_networkx", "to_networkx"]


@keywords(*Model.__annotations__)
def from_networkx(
    graph: nx.Graph[Any],
    *,
    bandwidth: str = "bandwidth",
    latency: str = "latency",
    switches: Collection[Hashable] | None = None,
    default_bandwidth: Quantity | None = None,
    default_latency: Quantity | None = None,
    **model: Unpack[Model],
) -> Topology:
    """Return a topology from a networkx graph; an undirected edge is two links.

    NPUs are numbered in the order of the graph's nodes, switches after them.

    Args:
        graph: A Graph, DiGraph, MultiGraph or MultiDiGraph.
        bandwidth, latency: Names of the edges' attributes: numbers in B/s and s, or strings.
        switches: The nodes that are switches; by default those whose attribute ``kind`` is
            ``"switch"``. Their attributes ``multicast`` and ``reduce`` say what they can do.
        default_bandwidth, default_latency: Values for edges without the attribute.
        model: how links, switches and NPUs behave; see `Model`.

    Raises:
        ValueError: An edge lacks an attribute or has a wrong one, or the graph is not connected.

    >>> import networkx as nx
    >>> cube = nx.hypercube_graph(3)
    >>> from_networkx(cube, default_bandwidth="50GB/s", default_latency="500ns")
    <tacos.Topology custom: 8 NPUs, 0 switches, 24 links>
    """
    if switches is None:
        kinds = {node: str(data.get("kind", "npu")) for node, data in graph.nodes(data=True)}
        for node, kind in kinds.items():
            if kind not in ("npu", "gpu", "switch"):
                raise ValueError(f'node {node!r}: kind must be npu or switch; got "{kind}"')
        inner = {node for node, kind in kinds.items() if kind == "switch"}
    else:
        inner = set(switches)
        for node in switches:
            if node not in graph:
                raise ValueError(f"switches has {node!r}, but there is no such node")
    nodes = [node for node in graph if node not in inner]
    npus = len(nodes)
    nodes += [node for node in graph if node in inner]
    number = {node: i for i, node in enumerate(nodes)}
    rows = []
    for a, b, data in graph.edges(data=True):
        speed = [
            data.get(key, default)
            for key, default in ((bandwidth, default_bandwidth), (latency, default_latency))
        ]
        for key, value in zip((bandwidth, latency), speed, strict=True):
            if value is None:
                raise ValueError(f"the edge from {a!r} to {b!r} has no attribute {key}")
        rows.append((number[a], number[b], *speed))
        if not graph.is_directed():
            rows.append((number[b], number[a], *speed))
    names = [str(data.get("name", node)) for node, data in ((v, graph.nodes[v]) for v in nodes)]
    able = [
        "+".join(word for word in ("multicast", "reduce") if graph.nodes[node].get(word))
        for node in nodes[npus:]
    ]
    plain = names == [str(i) for i in range(len(names))]
    return from_links(npus, rows, switches=able, names=() if plain else names, **model)


def to_networkx(topology: Network) -> nx.MultiDiGraph[int]:
    """Return a topology as a networkx MultiDiGraph, which `from_networkx` reads back.

    Nodes are numbers with ``kind`` and, where they have them, ``name``, ``multicast`` and ``reduce``; edges
    have ``bandwidth`` in B/s and ``latency`` in s, and the link's id as their key.

    Raises:
        ValueError: networkx is not installed.

    >>> from tacos.topology import ring
    >>> to_networkx(ring(3)).edges[0, 1, 0]
    {'bandwidth': 50000000000, 'latency': 5e-07}
    """
    topology = topology_of(topology)
    try:
        import networkx as nx
    except ImportError:
        raise ValueError("this needs networkx: pip install networkx") from None
    graph = nx.MultiDiGraph()
    names, bits = topology.names, topology.switch_capabilities.tolist()
    for node in range(topology.nodes):
        of_switch = bits[node - topology.npus] if node >= topology.npus else 0
        able = {word: True for bit, word in ((1, "multicast"), (2, "reduce")) if of_switch & bit}
        name = {"name": names[node]} if names else {}
        graph.add_node(node, kind="npu" if node < topology.npus else "switch", **name, **able)
    columns = (
        topology.link_src,
        topology.link_dst,
        topology.link_bandwidth_Bps,
        topology.link_latency_ps,
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for link, (src, dst, fast, wait) in enumerate(rows):
        graph.add_edge(src, dst, key=link, bandwidth=fast, latency=float(f"{wait}e-12"))
    return graph
