"""The links of a topology as lists, and as a graph of networkx."""

from __future__ import annotations

import networkx as nx

GB = 10**9


def link_ends(topology):
    return list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))


def speeds(topology):
    columns = topology.link_bandwidth_Bps.tolist(), topology.link_latency_ps.tolist()
    return list(zip(*columns, strict=True))


def graph(topology):
    result = nx.DiGraph()
    result.add_nodes_from(range(topology.nodes))
    result.add_edges_from(link_ends(topology))
    return result
