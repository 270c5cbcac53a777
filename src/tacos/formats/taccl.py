"""Topology and sketch files of TACCL: profiles of one node in JSON, and the routes that a search may use.

A topology file gives costs in microseconds for sending one buffer of some size: α and β of the links in
a node and between nodes. The number of βs determines the kind of node: one β is a switch for all GPUs (DGX-2), two are the
cube mesh of an NDv2, and matrices ``links[dst][src]`` and ``betas[dst][src]`` describe it link by link. A sketch gives the
number of nodes and the allowed links; `read` with a sketch returns the topology restricted to these. `read_sketch` returns
the sketch itself, whose other fields (relays, symmetries, chunks) are hints for a search.

Between two nodes, a sender has a link to each of its receivers. With more nodes, the ports of senders and receivers are
shared, which is modelled as a switch. As in TACCL, the NICs of a node share their bandwidth evenly among the links that
leave it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct

from tacos.formats import markup
from tacos.formats.source import about, fields_of, quoted
from tacos.topology import builders, machines
from tacos.topology.links import (
    Links,
    assemble,
    check_count,
    columns_of,
    raise_if_disconnected,
    whole_number,
)
from tacos.units import Quantity, size_bytes

if TYPE_CHECKING:
    import os

    from tacos._core import Topology
    from tacos._support.files import Location

__all__ = ["Internode", "Intranode", "TacclSketch", "looks_like", "read", "read_sketch"]

_MOST_GPUS = 512


class _Profile(Struct):
    """The fields of a topology file; times are microseconds."""

    name: str
    gpus_per_node: int
    alpha: float
    nics_per_node: int = 0
    node_betas_list: list[float] = []
    links: list[list[float]] = []
    betas: list[list[float]] = []
    remote_alpha: float = 0.0
    remote_beta: float = 0.0


class Intranode(Struct, frozen=True):
    """Which links of a node may be used."""

    strategy: Literal["switch", "minmax", "maxmin", "none"]
    switches: list[list[int]] = []
    """GPUs that communicate through a common switch; a set that is listed n times has n switches."""
    switch_hyperedge_strategy: list[Literal["uc-min", "uc-max"]] = []
    """Whether few or many connections through a switch are better."""


class Internode(Struct, frozen=True):
    """Which GPUs send to which GPUs of other nodes."""

    strategy: Literal["relay"]
    internode_conn: dict[str, list[int]] | Literal["fully-connected", "direct-map"]
    gpus_to_sender_rev_map: dict[str, list[int]] = {}
    """For each sender, the GPUs whose data it sends."""
    enforce_ordering: bool = False
    """Whether a sender's own chunks go first."""


class TacclSketch(Struct, frozen=True):
    """The fields of a sketch file."""

    nnodes: int
    intranode_sketch: Intranode
    internode_sketch: Internode | None = None
    symmetry_offsets: list[tuple[int, int]] = []
    """(offset, size): the algorithm must not change if ranks are rotated by offset within each block of this size."""
    hyperparameters: dict[str, int] = {}
    """``input_chunkup`` is the number of chunks per GPU."""


def looks_like(head: str) -> bool:
    """Return whether a JSON text is a topology or a sketch of TACCL.

    >>> looks_like('{"name": "NDv2", "gpus_per_node": 8'), looks_like('{"tacos": 1}')
    (True, False)
    """
    return re.search(r'"(gpus_per_node|intranode_sketch)"\s*:', head) is not None


def read_sketch(path: Location) -> TacclSketch:
    """Read a sketch.

    Raises:
        FormatError: The file is not a sketch; the message names the field.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "sketch.json")
    ...     _ = file.write_text('{"nnodes": 2, "intranode_sketch": {"strategy": "none"}}')
    ...     read_sketch(file).nnodes
    2
    """
    with about(path):
        sketch: TacclSketch = fields_of(markup.load(path), TacclSketch)
        whole_number("nnodes", sketch.nnodes)
        return sketch


def read(
    path: Location,
    *,
    sketch: str | os.PathLike[str] | TacclSketch | None = None,
    size: Quantity | None = None,
    scale: float = 1,
) -> Topology:
    """Read a topology file: one node, or the nodes of a sketch with the links that it allows.

    Args:
        path: The topology file.
        sketch: The sketch or its file.
        size: The buffer size that the costs are for; by default taken from the end of the name, as in
            ``NDv2_1MB``, else 1 MB.
        scale: The factor by which the costs were multiplied, to protect their digits from TACCL's rounding.

    Raises:
        FormatError: A file is malformed, or the sketch does not fit the topology.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "topo.json")
    ...     _ = file.write_text('''{"name": "DGX2_1MB", "gpus_per_node": 16, "nics_per_node": 8,
    ...         "alpha": 0.3, "node_betas_list": [8], "node_invbws_list": [8],
    ...         "remote_alpha": 2.6, "remote_beta": 105, "remote_invbw": 107}''')
    ...     box = read(file)
    >>> box, box.link_bandwidth_Bps[0] // 10**9
    (<tacos.Topology DGX2_1MB: 16 NPUs, 1 switch, 32 links>, np.int64(125))
    """
    if sketch is not None and not isinstance(sketch, TacclSketch):
        sketch = read_sketch(sketch)
    with about(path):
        data = markup.load(path)
        if isinstance(data, dict) and "intranode_sketch" in data:
            raise ValueError("this is a sketch; load the topology with sketch= and this file")
        profile: _Profile = fields_of(data, _Profile)
        if not 1 <= profile.gpus_per_node <= _MOST_GPUS:
            raise ValueError(
                f"gpus_per_node is {profile.gpus_per_node}; it must be 1 to {_MOST_GPUS}"
            )
        if not 0 < scale < 1e9:
            raise ValueError(f"scale is {scale!r}; it must be positive")
        costs = _Costs(_size_of(profile.name, size) * scale, scale)
        node = _node(profile, costs)
        if sketch is None:
            return raise_if_disconnected(node)
        node = _allowed(node, sketch.intranode_sketch, profile, costs)
        return raise_if_disconnected(_cluster(node, sketch, profile, costs))


def _size_of(name: str, size: Quantity | None) -> int:
    if size is not None:
        return size_bytes(size)
    end = re.search(r"([0-9]{1,6}[kKMG]B)$", name)
    return size_bytes(end[1]) if end else 10**6


class _Costs:
    """Converts microseconds of the file to bandwidths and latencies."""

    def __init__(self, scaled_size: float, scale: float) -> None:
        self.scaled_size, self.scale = scaled_size, scale

    def bandwidth(self, field: str, beta: float) -> int:
        found = self.scaled_size / beta * 1e6 if beta > 0 else 0.0
        if not 1 <= found < 2**62:
            raise ValueError(f"{field} is {beta!r}; it must be a time in microseconds above 0")
        return round(found)

    def latency(self, field: str, alpha: float) -> int:
        if not 0 <= alpha < 1e12:
            raise ValueError(f"{field} is {alpha!r}; it must be a time in microseconds")
        return round(alpha * 10**6 / self.scale)


def _node(profile: _Profile, costs: _Costs) -> Topology:
    """Return one node with all its links."""
    gpus, betas = profile.gpus_per_node, profile.node_betas_list
    alpha = costs.latency("alpha", profile.alpha)
    if profile.links:
        return _custom(profile, costs, alpha)
    fast = [costs.bandwidth(f"node_betas_list[{i}]", beta) for i, beta in enumerate(betas)]
    if len(fast) == 1:
        # α is the latency of the whole path through the switch.
        box = builders.switch(gpus, bandwidth=f"{fast[0]}B/s", latency=f"{alpha // 2}ps")
        return _named(profile, gpus, [columns_of(box)], [0])
    if len(fast) == 2:
        if gpus != 8:
            raise ValueError(f"gpus_per_node is {gpus}; with two betas it must be 8 (an NDv2)")
        wiring = columns_of(machines.dgx1(bandwidth="1B/s"))  # a pair of cables is a link of 2 B/s
        speed = np.where(np.asarray(wiring.bandwidth_Bps) == 2, fast[0], fast[1])
        return _named(profile, gpus, [wiring._replace(bandwidth_Bps=speed, latency_ps=alpha)], [])
    raise ValueError(
        f"node_betas_list has {len(fast)} entries; it must have 1 or 2 unless links is given"
    )


def _custom(profile: _Profile, costs: _Costs, alpha: int) -> Topology:
    gpus = profile.gpus_per_node
    for field, matrix in (("links", profile.links), ("betas", profile.betas)):
        if len(matrix) != gpus or any(len(row) != gpus for row in matrix):
            raise ValueError(f"{field} must be a matrix of {gpus} rows and columns")
    rows = [
        (src, dst, costs.bandwidth(f"betas[{dst}][{src}]", profile.betas[dst][src]))
        for src in range(gpus)
        for dst in range(gpus)
        if profile.links[dst][src] and src != dst
    ]
    src, dst, fast = np.array(rows, np.int64).reshape(-1, 3).T
    return _named(profile, gpus, [Links(src, dst, fast, alpha)], [])


def _named(profile: _Profile, gpus: int, blocks: list[Links], capabilities: Any) -> Topology:
    return assemble(
        gpus,
        blocks,
        capabilities=capabilities,
        family=profile.name[:60],
        dims=[("box", profile.gpus_per_node)],
    )


def _allowed(node: Topology, sketch: Intranode, profile: _Profile, costs: _Costs) -> Topology:
    """Return the node with the links that its part of a sketch allows."""
    if sketch.strategy != "switch":
        return node
    gpus = node.npus
    sets = [tuple(sorted(set(group))) for group in sketch.switches]
    seen: dict[int, tuple[int, ...]] = {}
    for i, group in enumerate(sets):
        place = f"sketch: intranode_sketch.switches[{i}]"
        if not group or group[0] < 0 or group[-1] >= gpus:
            raise ValueError(f"{place} must name GPUs from 0 to {gpus - 1}")
        for gpu in group:
            if seen.setdefault(gpu, group) != group:
                raise ValueError(
                    f"{place} shares GPU {gpu} with another set; sets must be equal or disjoint"
                )
    if node.switches:
        port = costs.bandwidth("node_betas_list[0]", profile.node_betas_list[0])
        half = costs.latency("alpha", profile.alpha) // 2
        blocks = []
        distinct = Counter(sets)
        for i, (group, count) in enumerate(distinct.items()):
            members, fast = np.array(group), port * count
            at = np.full_like(members, gpus + i)
            blocks += [Links(members, at, fast, half), Links(at, members, fast, half)]
        return _named(profile, gpus, blocks, [0] * len(distinct))
    group_of = np.full(gpus, -1)
    for i, group in enumerate(dict.fromkeys(sets)):
        group_of[list(group)] = i
    src, dst = node.link_src, node.link_dst
    kept = (group_of[src] == group_of[dst]) & (group_of[src] >= 0)
    return _named(
        profile,
        gpus,
        [Links(*(np.asarray(column)[kept] for column in columns_of(node)))],
        [],
    )


def _cluster(node: Topology, sketch: TacclSketch, profile: _Profile, costs: _Costs) -> Topology:
    """Return copies of the node, joined as the sketch describes."""
    nodes, gpus = sketch.nnodes, node.npus
    if nodes == 1:
        return node
    if sketch.internode_sketch is None:
        raise ValueError(f"sketch: nnodes is {nodes}, but there is no internode_sketch")
    if profile.nics_per_node < 1:
        raise ValueError(f"nics_per_node is {profile.nics_per_node}; several nodes need at least 1")
    pairs = _pairs(sketch.internode_sketch.internode_conn, gpus)
    check_count(nodes * (node.links + 2 * len(pairs)))
    share = profile.remote_beta * len(pairs) / profile.nics_per_node
    fast = costs.bandwidth("remote_beta", share)
    alpha = costs.latency("remote_alpha", profile.remote_alpha)
    n = nodes * gpus
    blocks = builders.copies(node, 1, nodes, first_switch=n)
    first = n + nodes * node.switches
    senders, receivers = np.array(pairs, np.int64).T
    fabrics = 0
    if nodes == 2:
        for a, b in ((0, gpus), (gpus, 0)):
            blocks.append(Links(senders + a, receivers + b, fast, alpha))
    else:
        # Senders and receivers that belong together share a switch.
        fabric = _components(pairs)
        fabrics = max(fabric.values()) + 1
        box = np.arange(nodes)[:, None] * gpus
        for ends, outward in ((sorted(set(senders.tolist())), True),
                              (sorted(set(receivers.tolist())), False)):  # fmt: skip
            at = first + np.array([fabric[gpu, outward] for gpu in ends])
            port = (box + np.array(ends)).ravel()
            middle = np.tile(at, nodes)
            src, dst = (port, middle) if outward else (middle, port)
            blocks.append(Links(src, dst, fast, alpha // 2))
    bits = np.zeros(nodes * node.switches + fabrics, np.uint8)
    return assemble(
        n,
        blocks,
        capabilities=bits,
        family=profile.name[:60],
        dims=[("box", gpus), ("switch", nodes)],
    )


def _pairs(conn: dict[str, list[int]] | str, gpus: int) -> list[tuple[int, int]]:
    """Return all pairs (sender, receiver), as places within a node."""
    field = "sketch: internode_sketch.internode_conn"
    if conn == "fully-connected":
        return [(src, dst) for src in range(gpus) for dst in range(gpus)]
    if conn == "direct-map":
        return [(gpu, gpu) for gpu in range(gpus)]
    assert isinstance(conn, dict)  # as its type says
    pairs = []
    for sender, receivers in conn.items():
        if not re.fullmatch("[0-9]{1,6}", sender) or int(sender) >= gpus:
            raise ValueError(f"{field} has the sender {quoted(sender)}; GPUs are 0 to {gpus - 1}")
        for receiver in receivers:
            if not 0 <= receiver < gpus:
                raise ValueError(f"{field}.{sender} has {receiver}; GPUs are 0 to {gpus - 1}")
            pairs.append((int(sender), receiver))
    if not pairs or len(set(pairs)) != len(pairs):
        raise ValueError(f"{field} must name at least one pair, and none twice")
    if len({len(receivers) for receivers in conn.values()}) > 1:
        raise ValueError(f"{field} must give every sender the same number of receivers")
    return pairs


def _components(pairs: list[tuple[int, int]]) -> dict[tuple[int, bool], int]:
    """Return a number for every sender (gpu, True) and receiver (gpu, False); ends that a pair joins share it."""
    above: dict[tuple[int, bool], tuple[int, bool]] = {}

    def top(end: tuple[int, bool]) -> tuple[int, bool]:
        while above.setdefault(end, end) != end:
            above[end] = above[above[end]]
            end = above[end]
        return end

    for src, dst in pairs:
        above[top((dst, False))] = top((src, True))
    numbers: dict[tuple[int, bool], int] = {}
    return {end: numbers.setdefault(top(end), len(numbers)) for end in sorted(above)}
