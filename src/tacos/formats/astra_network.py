"""Networks of ASTRA-sim: the analytical back end's YAML, and topology files of its ns-3 back end.

The YAML has a building block for each dimension; the first varies fastest::

    topology: [Ring, FullyConnected, Switch]
    npus_count: [4, 8, 4]
    bandwidth: [200.0, 100.0, 50.0]      # GB/s of a link, and here a GB is 2^30 bytes
    latency: [50.0, 500.0, 2000.0]       # ns

An ns-3 file has a line ``nodes switches links``, a line with the numbers of the switches, and then one cable
``src dst rate delay error`` per line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from tacos._support.files import Location, replacing
from tacos.formats import markup, text_columns
from tacos.formats.source import about, bytes_of, fields_of, quoted
from tacos.topology import Topology, fully_connected, product, ring, switch
from tacos.topology.links import Links, assemble, columns_of, raise_if_disconnected
from tacos.units import bandwidth_Bps, time_ps

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Dimensions",
    "dimensions",
    "looks_like",
    "looks_like_ns3",
    "one_block",
    "read",
    "read_ns3",
    "write",
]

_GB = 2**30
_BLOCKS: dict[str, Callable[..., Topology]] = {
    "Ring": ring,
    "FullyConnected": fully_connected,
    "Switch": switch,
}
_OF_KIND = {"ring": "Ring", "clique": "FullyConnected", "switch": "Switch"}


class Dimensions(Struct, forbid_unknown_fields=True):
    """The fields of the YAML: block, NPUs, GB/s and ns of each dimension."""

    topology: list[str]
    npus_count: list[int]
    bandwidth: list[float]
    latency: list[float]

    @property
    def text(self) -> str:
        """The YAML."""
        rows = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return "".join(f"{name}: [{', '.join(map(str, row))}]\n" for name, row in rows)


def looks_like(head: str) -> bool:
    """Return whether a YAML text is a network of ASTRA-sim.

    >>> looks_like("topology: [ Ring ]\\nnpus_count: [ 4 ]"), looks_like("tacos: 1")
    (True, False)
    """
    return re.search(r"^[ \t]*npus_count[ \t]*:", head, re.MULTILINE) is not None


def looks_like_ns3(head: str) -> bool:
    """Return whether a text begins with three numbers, as topology files of ns-3 do.

    >>> looks_like_ns3("3 1 2\\n2\\n0 2 400Gbps 0.0005ms 0"), looks_like_ns3("GPU0 GPU1")
    (True, False)
    """
    return re.match(r"\s*[0-9]+[ \t]+[0-9]+[ \t]+[0-9]+[ \t]*\r?\n", head) is not None


def read(path: Location) -> Topology:
    """Read a network of the analytical back end.

    Raises:
        FormatError: The file is not such a network; the message names the field.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "net.yml")
    ...     _ = file.write_text(
    ...         "topology: [Ring, Switch]\\nnpus_count: [4, 2]\\nbandwidth: [50, 25]\\nlatency: [500, 1000]")
    ...     read(file)
    <tacos.Topology product: 8 NPUs, 4 switches, 32 links>
    """
    with about(path):
        return _built(fields_of(markup.load(path), Dimensions))


def _built(fields: Dimensions) -> Topology:
    count = len(fields.topology)
    for name in ("npus_count", "bandwidth", "latency"):
        if len(getattr(fields, name)) != count:
            found = len(getattr(fields, name))
            raise ValueError(f"{name} has {found} entries, but topology has {count}")
    factors = []
    for i in range(count):
        block, npus = fields.topology[i], fields.npus_count[i]
        if block not in _BLOCKS:
            allowed = ", ".join(_BLOCKS)
            raise ValueError(f"topology[{i}] is {quoted(block)}; it must be one of {allowed}")
        if npus < 2:
            raise ValueError(f"npus_count[{i}] is {npus}; it must be at least 2")
        factors.append(
            _BLOCKS[block](
                npus,
                bandwidth=f"{bandwidth_Bps(fields.bandwidth[i] * _GB, what=f'bandwidth[{i}]')}B/s",
                latency=f"{time_ps(fields.latency[i] * 1e-9, what=f'latency[{i}]')}ps",
            )
        )
    if not factors:
        raise ValueError("topology is empty; it needs at least one dimension")
    return factors[0] if count == 1 else product(*factors)


def write(topology: Topology, path: Location) -> None:
    """Write a product of rings, cliques and switches as a network of ASTRA-sim.

    Raises:
        FormatError: ASTRA-sim's format cannot describe this network; the message says why.

    >>> import tempfile, tacos
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(tacos.topology.torus(4, 4, bandwidth=50 * 2**30), Path(folder, "net.yml"))
    ...     print(Path(folder, "net.yml").read_text(), end="")
    topology: [Ring, Ring]
    npus_count: [4, 4]
    bandwidth: [50.0, 50.0]
    latency: [500.0, 500.0]
    >>> write(tacos.topology.dgx1(), "net.yml")
    Traceback (most recent call last):
    tacos.errors.FormatError: net.yml: ASTRA-sim has Ring, FullyConnected and Switch, not the kind "box"
    """
    with about(path):
        text = dimensions(topology).text
    with replacing(path) as out:
        out.write(text.encode())


def one_block(block: str, npus: int, bandwidth_Bps: int, latency_ps: int) -> Dimensions:
    """Return a network of a single dimension.

    >>> one_block("Ring", 4, 50 * 2**30, 500_000).bandwidth
    [50.0]
    """
    return Dimensions([block], [npus], [bandwidth_Bps / _GB], [latency_ps / 1000])


def dimensions(topology: Topology) -> Dimensions:
    """Return a product of rings, cliques and switches in ASTRA-sim's terms.

    Raises:
        ValueError: ASTRA-sim's format cannot describe the network; the message gives the reason.

    >>> import tacos
    >>> dimensions(tacos.topology.torus(4, 2)).topology
    ['Ring', 'FullyConnected']
    """
    if not topology.dims:
        raise ValueError("ASTRA-sim's networks are products of dimensions, but this one has none")
    fields = Dimensions([], [], [], [])
    at = 0
    for kind, size in topology.dims:
        if size == 1:
            continue
        # Two NPUs in a ring or a line are a clique; ASTRA-sim does not run a ring of two.
        known = "FullyConnected" if size == 2 and kind in ("ring", "line") else _OF_KIND.get(kind)
        if known is None:
            allowed = "Ring, FullyConnected and Switch"
            raise ValueError(f'ASTRA-sim has {allowed}, not the kind "{kind}"')
        if at >= topology.links:
            break
        fields.topology.append(known)
        fields.npus_count.append(size)
        fields.bandwidth.append(int(topology.link_bandwidth_Bps[at]) / _GB)
        fields.latency.append(int(topology.link_latency_ps[at]) / 1000)
        per_npu = {"Ring": 2, "FullyConnected": size - 1, "Switch": 2}[known]
        at += topology.npus * per_npu
    if not fields.topology:
        raise ValueError("the network has a single NPU, but ASTRA-sim's dimensions have at least 2")
    said = _built(fields)
    same = (
        said.npus == topology.npus
        and said.links == topology.links
        and all(
            np.array_equal(a, b)
            for a, b in zip(columns_of(said), columns_of(topology), strict=True)
        )
    )
    if not same:
        raise ValueError(
            "ASTRA-sim's format cannot describe this network: in each dimension all links must "
            "exist, in both directions, and be equal"
        )
    if topology.switch_capabilities.any():
        raise ValueError("ASTRA-sim's switches can neither multicast nor reduce")
    return fields


def read_ns3(path: Location) -> Topology:
    """Read a topology file of the ns-3 back end; a cable is two directed links.

    Nodes that are not switches are NPUs and keep their order; the error rate is ignored.

    Raises:
        FormatError: The file is not such a topology; the message names line and field.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "topology.txt")
    ...     _ = file.write_text("3 1 2\\n0\\n0 1 400Gbps 0.0005ms 0\\n0 2 400Gbps 0.0005ms 0\\n")
    ...     read_ns3(file)
    <tacos.Topology ns3: 2 NPUs, 1 switch, 4 links>
    """
    with about(path):
        data = bytes_of(path).replace(b"\r\n", b"\n")
        head, _, rest = data.partition(b"\n")
        numbers = _numbers(head, 1)
        if len(numbers) != 3:
            raise ValueError(f"line 1: there are {len(numbers)} numbers, not nodes switches links")
        nodes, switches, links = numbers
        listed, _, rest = rest.partition(b"\n")
        ids = _numbers(listed, 2)
        if len(ids) != switches or len(set(ids)) != switches or any(i >= nodes for i in ids):
            raise ValueError(f"line 2: it must name {switches} different switches below {nodes}")
        rows = text_columns.split(rest, b" ", 5, first_line=3)
        if rows.lines.size != links:
            raise ValueError(f"there are {rows.lines.size} links, but the first line says {links}")
        if switches >= nodes or nodes > 2 * links + 1:
            raise ValueError(
                f"line 1: {nodes} nodes, {switches} switches and {links} links cannot form a network"
            )
        src, dst = (
            text_columns.whole_numbers(rows.columns[k], what, rows.lines)
            for k, what in enumerate(("src", "dst"))
        )
        for what, ends in (("src", src), ("dst", dst)):
            wrong = np.flatnonzero((ends >= nodes) | (src == dst))
            if wrong.size:
                line, node = rows.lines[wrong[0]], ends[wrong[0]]
                raise ValueError(
                    f"line {line}: {what} is {node}; it must be another node below {nodes}"
                )
        is_switch = np.zeros(nodes, bool)
        is_switch[ids] = True
        number = np.empty(nodes, np.int64)
        number[np.argsort(is_switch, kind="stable")] = np.arange(nodes)
        fast = text_columns.quantities(rows.columns[2], "rate", rows.lines, bandwidth_Bps)
        wait = text_columns.quantities(rows.columns[3], "delay", rows.lines, time_ps)
        a, b = number[src], number[dst]
        blocks = [Links(a, b, fast, wait), Links(b, a, fast, wait)]
        topology = assemble(nodes - switches, blocks, capabilities=[0] * switches, family="ns3")
        return raise_if_disconnected(topology)


def _numbers(text: bytes, line: int) -> list[int]:
    words = text.decode("utf-8", "replace").split()
    for word in words:
        if not re.fullmatch("[0-9]{1,9}", word):
            raise ValueError(f"line {line}: {quoted(word)} must be a whole number")
    return list(map(int, words))
