"""GraphML, the XML of graph tools: networkx, Gephi, yEd and igraph read and write it.

Nodes may have ``kind`` (``npu``, the default, or ``switch``), ``multicast``, ``reduce`` and ``name``; edges have
``bandwidth`` and ``latency``, as numbers in B/s and s or as strings with a unit. The graph may have
``family``, ``link_model``, ``forwarding``, ``routing`` and ``reduce_bandwidth``. Other data is ignored. An undirected edge is
two links.
"""

from __future__ import annotations

import re
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._support.files import Location, replacing
from tacos.formats import xml_events
from tacos.formats.graphml_graph import GraphmlGraph, scan
from tacos.formats.source import about, bytes_of, quoted

if TYPE_CHECKING:
    from tacos._core import Topology
    from tacos.units import Quantity

__all__ = ["read", "write"]

_BATCH = 1 << 14
# Attributes of the graph's elements, and their types in GraphML.
_KEYS = {
    "graph": {"family": "string", "link_model": "string", "forwarding": "string",
              "routing": "string", "reduce_bandwidth": "long"},
    "node": {"name": "string", "kind": "string", "multicast": "boolean", "reduce": "boolean"},
    "edge": {"bandwidth": "long", "latency": "double"},
}  # fmt: skip
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def read(
    path: Location,
    *,
    bandwidth: Quantity | None = None,
    latency: Quantity | None = None,
) -> Topology:
    """Read a topology from GraphML.

    NPUs are numbered in the order of the file, switches after them.

    Args:
        path: The file.
        bandwidth, latency: Defaults for edges that do not have their own.

    Raises:
        FormatError: The file is not such a graph; the message names the line and the attribute.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "pair.graphml")
    ...     _ = file.write_text('''<graphml><graph edgedefault="undirected">
    ...         <node id="a"/><node id="b"/><edge source="a" target="b"/></graph></graphml>''')
    ...     read(file, bandwidth="50GB/s", latency="500ns")
    <tacos.Topology custom: 2 NPUs, 0 switches, 2 links>
    """
    with about(path):
        data = bytes_of(path)
        # The fast reader gives up on anything wrong or unusual; the slow one then reports what it is.
        with suppress(ValueError):
            return scan(data).topology(bandwidth, latency)
        graph = GraphmlGraph()
        xml_events.parse(data, graph.start, graph.end, graph.text)
        return graph.topology(bandwidth, latency)


def write(topology: Topology, path: Location) -> None:
    """Write a topology as GraphML, atomically, without dimensions and symmetry.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tacos
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(tacos.topology.switch(2, multicast=True), Path(folder, "net.graphml"))
    ...     print(*Path(folder, "net.graphml").read_text().splitlines()[13:19], sep="\\n")
      <graph edgedefault="directed">
        <data key="family">switch</data>
        <node id="0"/>
        <node id="1"/>
        <node id="2"><data key="kind">switch</data><data key="multicast">true</data></node>
        <edge source="0" target="2"><data key="bandwidth">50000000000</data><data key="latency">5e-07</data></edge>
    """
    with about(path):
        for text in (topology.family, *topology.names):
            if _UNWRITABLE.search(text):
                raise ValueError(f"the name {quoted(text)} has characters that XML cannot hold")
    speeds, speed_of = np.unique(topology.link_bandwidth_Bps, return_inverse=True)
    waits, wait_of = np.unique(topology.link_latency_ps, return_inverse=True)
    fast = [_data(bandwidth=speed) for speed in speeds.tolist()]
    wait = [_data(latency=float(f"{ps}e-12")) for ps in waits.tolist()]
    columns: list[Any] = [topology.link_src, topology.link_dst, speed_of, wait_of]
    with replacing(path) as out:
        out.write(_head(topology).encode())
        for at in range(0, topology.nodes, _BATCH):
            nodes = range(at, min(at + _BATCH, topology.nodes))
            out.write("".join(_node(topology, topology.names, i) for i in nodes).encode())
        for at in range(0, topology.links, _BATCH):
            rows = zip(*(column[at : at + _BATCH].tolist() for column in columns), strict=True)
            text = "".join(
                f'    <edge source="{src}" target="{dst}">{fast[i]}{wait[k]}</edge>\n'
                for src, dst, i, k in rows
            )
            out.write(text.encode())
        out.write(b"  </graph>\n</graphml>\n")


def _head(topology: Topology) -> str:
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
        *(
            f'  <key id="{name}" for="{owner}" attr.name="{name}" attr.type="{kind}"/>'
            for owner, keys in _KEYS.items()
            for name, kind in keys.items()
        ),
        '  <graph edgedefault="directed">',
    ]
    of_graph = {
        "family": topology.family,
        "link_model": "" if topology.link_model == "pipelined" else topology.link_model,
        "forwarding": "" if topology.forwarding == "cut_through" else topology.forwarding,
        "routing": "" if topology.routing == "spread" else topology.routing,
        "reduce_bandwidth": topology.reduce_bandwidth_Bps,
    }
    lines += [f"    {_data(**{key: value})}" for key, value in of_graph.items() if value]
    return "\n".join(lines) + "\n"


def _node(topology: Topology, names: list[str], node: int) -> str:
    name = {"name": names[node]} if names else {}
    if node < topology.npus:
        inside = _data(**name)
    else:
        bits = int(topology.switch_capabilities[node - topology.npus])
        able = {word: "true" for bit, word in ((1, "multicast"), (2, "reduce")) if bits & bit}
        inside = _data(**name, kind="switch", **able)
    identifier = xml_events.attribute(str(node))
    return (
        f"    <node id={identifier}>{inside}</node>\n"
        if inside
        else f"    <node id={identifier}/>\n"
    )


def _data(**values: object) -> str:
    return "".join(
        f'<data key="{key}">{escape(str(one), quote=False)}</data>' for key, one in values.items()
    )
