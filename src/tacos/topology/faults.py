"""The faults of a network: what edits broke, kept so that the healthy network is known.

``Topology.faults`` has the columns (dead and slow links with their healthy speeds, dropped nodes), and
``Topology.healthy()`` the network without them. The nodes and links that are left keep the order that they have in the healthy
network, so a broken network is its healthy network, the numbers of what is left, and the speeds of the links.
Edits work on these parts (:func:`parts_of`, :func:`broken`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacos._core import Faults, Topology
from tacos.nodes import Network, topology_of
from tacos.topology.links import Links, assemble, model_of
from tacos.units import format_bandwidth, format_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.integer]

__all__ = ["Faults", "Parts", "broken", "healthy", "parts_of", "repaired", "said"]


class Parts(NamedTuple):
    """A network as a part of its healthy network: the numbers there of its nodes and links, ascending."""

    healthy: Topology
    node: NDArray[np.int64]
    link: NDArray[np.int64]


def healthy(topology: Network) -> Topology:
    """Return the network without its faults: dead links back, slow ones at their speed, dropped NPUs present.

    >>> from tacos.topology import degrade, drop_links, drop_npus, ring
    >>> worn = degrade(drop_links(ring(4), (0, 1)), (1, 2), factor=0.5)
    >>> worn.faults
    <tacos.Faults: 1 dead link, 1 slow link, 0 nodes dropped>
    >>> healthy(worn) == ring(4)
    True
    """
    return topology_of(topology).healthy()


def parts_of(topology: Topology) -> Parts:
    """Return the healthy network, and the numbers there of the nodes and links that are left.

    >>> from tacos.topology import drop_links, ring
    >>> parts_of(drop_links(ring(3), (0, 1))).link.tolist()
    [1, 2, 3, 4, 5]
    """
    whole, faults = topology.healthy(), topology.faults
    node, link = np.arange(whole.nodes), np.arange(whole.links)
    if faults is None:
        return Parts(whole, node, link)
    dead = faults.link[faults.dead != 0]
    return Parts(whole, np.delete(node, faults.dropped), np.delete(link, dead))


def broken(
    whole: Topology,
    node: Ints,
    link: Ints,
    *,
    bandwidth_Bps: NDArray[np.int64],
    latency_ps: NDArray[np.int64],
    symmetric: bool = False,
) -> Topology:
    """Return what is left of a healthy network: some of its nodes and links, at new speeds; the rest are its faults.

    Args:
        whole: The healthy network.
        node, link: The numbers of what is left, ascending. Links of nodes that are gone must not be among them.
        bandwidth_Bps, latency_ps: The speeds of the links that are left.
        symmetric: Whether the result is symmetric although something is wrong with it.

    >>> from tacos.topology import ring
    >>> one_way = ring(3, bidirectional=False)
    >>> speeds = dict(bandwidth_Bps=one_way.link_bandwidth_Bps, latency_ps=one_way.link_latency_ps)
    >>> broken(one_way, np.arange(3), np.arange(3), **speeds, symmetric=True) == one_way
    True
    """
    gone, dead = np.ones(whole.nodes, bool), np.ones(whole.links, bool)
    gone[node], dead[link] = False, False
    dropped = np.flatnonzero(gone)
    changed = (bandwidth_Bps != whole.link_bandwidth_Bps[link]) | (
        latency_ps != whole.link_latency_ps[link]
    )
    touched = dead.copy()
    touched[link[changed]] = True
    rows = np.flatnonzero(touched)
    if not len(rows) and not len(dropped):
        return whole
    number = np.full(whole.nodes, -1)
    number[node] = np.arange(len(node))
    names = whole.names
    switches = node[node >= whole.npus] - whole.npus
    return assemble(
        len(node) - len(switches),
        [
            Links(
                number[whole.link_src[link]],
                number[whole.link_dst[link]],
                bandwidth_Bps,
                latency_ps,
            )
        ],
        capabilities=whole.switch_capabilities[switches],
        family=whole.family,
        dims=() if len(dropped) else whole.dims,
        symmetric=symmetric,
        names=[names[i] for i in node.tolist()] if names else (),
        faults=Faults(
            link=rows.astype(np.int32),
            dead=dead[rows].astype(np.uint8),
            src=whole.link_src[rows],
            dst=whole.link_dst[rows],
            latency_ps=whole.link_latency_ps[rows],
            bandwidth_Bps=whole.link_bandwidth_Bps[rows],
            dropped=dropped.astype(np.int32),
            capabilities=whole.switch_capabilities[dropped[dropped >= whole.npus] - whole.npus],
            names=[names[i] for i in dropped.tolist()] if names else [],
            npus=whole.npus,
            dims=whole.dims,
            symmetric=whole.symmetric,
        ),
        **model_of(whole),
    )


def repaired(topology: Topology) -> tuple[Topology, NDArray[np.int64]]:
    """Return the nodes that are left with all their healthy links, and where each of these is now: -1 if it is dead.

    This is the network that software would know which has seen NPUs go, but no link.

    >>> from tacos.topology import drop_links, drop_npus, fully_connected
    >>> repaired(drop_links(drop_npus(fully_connected(4), 3), (0, 1)))
    (<tacos.Topology fully_connected: 3 NPUs, 0 switches, 6 links>, array([-1,  0,  1,  2,  3,  4]))
    """
    whole, node, link = parts_of(topology)
    here = np.zeros(whole.nodes, bool)
    here[node] = True
    all_links = np.flatnonzero(here[whole.link_src] & here[whole.link_dst])
    now = np.full(whole.links, -1)
    now[link] = np.arange(len(link))
    known = broken(
        whole,
        node,
        all_links,
        bandwidth_Bps=whole.link_bandwidth_Bps[all_links],
        latency_ps=whole.link_latency_ps[all_links],
        symmetric=whole.symmetric and len(node) == whole.nodes,
    )
    return known, now[all_links]


def said(topology: Network, most: int = 4) -> list[str]:
    """Return the faults in words, at most some of each kind; an empty list for a healthy network.

    Nodes without names have their numbers in the healthy network.

    >>> from tacos.topology import degrade, drop_links, drop_npus, mesh
    >>> worn = drop_npus(degrade(mesh(3, 3), (0, 1), factor=0.5, both=True), 8)
    >>> said(worn)
    ['npu 8 dropped', 'link npu 0-npu 1 at 25 of 50 GB/s both ways']
    """
    topology = topology_of(topology)
    faults = topology.faults
    if faults is None:
        return []
    whole, _, link = parts_of(topology)
    found = _shortened(
        [f"{whole.node_name(node)} dropped" for node in faults.dropped.tolist()], most, "dropped"
    )
    gone = np.isin(faults.src, faults.dropped) | np.isin(faults.dst, faults.dropped)
    for flag, kind in ((1, "dead"), (0, "slow")):
        ways: dict[tuple[int, int, str], int] = {}
        for row in np.flatnonzero((faults.dead == flag) & ~gone).tolist():
            state = "dead" if flag else _slower(topology, faults, row, link)
            ends = int(faults.src[row]), int(faults.dst[row])
            key = (min(ends), max(ends), state)
            ways[key] = ways.get(key, 0) | (1 if ends[0] < ends[1] else 2)
        rows = []
        for (a, b, state), way in ways.items():
            if way == 2:  # only the way back
                a, b = b, a  # noqa: PLW2901
            both = " both ways" if way == 3 else ""
            rows.append(f"link {whole.node_name(a)}-{whole.node_name(b)} {state}{both}")
        found += _shortened(rows, most, f"links {kind}")
    return found


def _slower(topology: Topology, faults: Faults, row: int, link: NDArray[np.int64]) -> str:
    """Return how a slow link differs from the healthy one."""
    now = int(np.searchsorted(link, faults.link[row]))
    speed, before = int(topology.link_bandwidth_Bps[now]), int(faults.bandwidth_Bps[row])
    wait, waited = int(topology.link_latency_ps[now]), int(faults.latency_ps[row])
    differs = []
    if speed != before:
        a, b = format_bandwidth(speed), format_bandwidth(before)
        same = a.split(" ")[1:] == b.split(" ")[1:]
        differs.append(f"at {a.split(' ')[0] if same else a} of {b}")
    if wait != waited:
        differs.append(f"{format_time(wait * 1e-12)} instead of {format_time(waited * 1e-12)}")
    return ", ".join(differs)


def _shortened(rows: list[str], most: int, what: str) -> list[str]:
    return rows if len(rows) <= most else [*rows[:most], f"{len(rows) - most} more {what}"]
