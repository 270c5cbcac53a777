"""GraphML, the XML of graph tools: networkx, Gephi, yEd and igraph read and write it.

Nodes may have ``kind`` (``npu``, the default, or ``switch``), ``multicast``, ``reduce`` and ``name``; edges have
``bandwidth`` and ``latency``, as numbers in B/s and s or as strings with a unit. The graph may have
``family``, ``link_model``, ``forwarding`` and ``reduce_bandwidth``. Other data is ignored. An undirected edge is
two links. Edges are read one after the other, without an object for each.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from tacos.files import replacing
from tacos.formats import xml_events
from tacos.formats.source import about, bytes_of, quantity, quoted
from tacos.topology.links import Links, assemble, raise_if_disconnected
from tacos.units import Quantity, bandwidth_Bps, time_ps

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["read", "write"]

_KINDS = {"npu": False, "gpu": False, "": False, "switch": True}
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}
_BATCH = 1 << 14
# What an element of the graph may say, and its type in GraphML.
_KEYS = {
    "graph": {"family": "string", "link_model": "string", "forwarding": "string",
              "reduce_bandwidth": "long"},
    "node": {"name": "string", "kind": "string", "multicast": "boolean", "reduce": "boolean"},
    "edge": {"bandwidth": "long", "latency": "double"},
}  # fmt: skip
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def read(
    path: str | os.PathLike[str],
    *,
    bandwidth: Quantity | None = None,
    latency: Quantity | None = None,
) -> Topology:
    """Read a topology from GraphML.

    NPUs are numbered in the order of the file, switches after them.

    Args:
        path: The file.
        bandwidth, latency: Of edges that do not have their own.

    Raises:
        FormatError: The file is no such graph; the message names the line and the attribute.

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
        reader = _Reader()
        xml_events.parse(bytes_of(path), reader.start, reader.end, reader.text)
        return reader.topology(bandwidth, latency)


class _Reader:
    """Follows the elements of one file and keeps columns."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, str], str] = {}  # (for, id) -> name
        self.open: list[str] = []
        self.data: list[str] = []
        self.key: tuple[str, str] | None = None
        self.values: dict[str, str] = {}
        self.of_graph: dict[str, str] = {}
        self.default_key = ("", "", "")
        self.defaults: dict[str, dict[str, str]] = {"node": {}, "edge": {}, "graph": {}}
        self.ids: dict[str, int] = {}
        self.lines = array("q")  # of the nodes' elements; 0: named by an edge only
        self.labels: list[str] = []
        self.bits: list[int] = []  # -1: an NPU; otherwise a switch and what it can do
        self.ends = array("q")
        self.speeds = array("q")
        self.speed_codes: dict[tuple[str, str], int] = {}
        self.speed_lines: list[int] = []
        self.both = bytearray()
        self.undirected = False
        self.graphs = 0

    def start(self, name: str, attributes: dict[str, str], line: int) -> None:
        if not self.open and name != "graphml":
            raise ValueError(f"line {line}: the root is <{name}>, it must be <graphml>")
        self.open.append(name)
        self.line = line
        if name == "key":
            kind = attributes.get("for", "all")
            word = attributes.get("attr.name", "").strip().lower()
            self.default_key = (kind, attributes.get("id", ""), word)
            for one in ("graph", "node", "edge") if kind == "all" else (kind,):
                self.keys[one, attributes.get("id", "")] = word
        elif name == "graph":
            self.graphs += 1
            if self.graphs > 1:
                raise ValueError(f"line {line}: a second or nested <graph>, there must be one")
            self.undirected = attributes.get("edgedefault", "undirected") != "directed"
        elif name == "node":
            self.node = self._number(self._attribute("id", attributes, name))
            if self.lines[self.node]:
                raise ValueError(f"line {line}: two nodes have the id {quoted(attributes['id'])}")
            self.lines[self.node] = line
            self.values = dict(self.defaults["node"])
        elif name == "edge":
            for end in ("source", "target"):
                self.ends.append(self._number(self._attribute(end, attributes, name)))
            if self.ends[-1] == self.ends[-2]:
                raise ValueError(
                    f"line {line}: an edge joins {quoted(attributes['source'])} to itself"
                )
            directed = attributes.get("directed", "")
            if directed not in _FLAGS:
                raise ValueError(f"line {line}: directed of <edge> is {quoted(directed)}")
            self.both.append(self.undirected if not directed else not _FLAGS[directed])
            self.values = dict(self.defaults["edge"])
        elif name == "data":
            owner = self.open[-2]
            self.key = (owner, self._attribute("key", attributes, name))
            self.data.clear()
        elif name == "default":
            self.data.clear()
        elif name == "hyperedge":
            raise ValueError(f"line {line}: <hyperedge> is not supported")

    def text(self, characters: str) -> None:
        if self.open and self.open[-1] in ("data", "default"):
            self.data.append(characters)

    def end(self, name: str) -> None:
        self.open.pop()
        if name == "data" and self.key is not None:
            word = self.keys.get(self.key)
            if word:
                target = self.of_graph if self.key[0] == "graph" else self.values
                target[word] = "".join(self.data).strip()
            self.key = None
        elif name == "default":
            kind, _, word = self.default_key
            for one in self.defaults if kind == "all" else {kind} & set(self.defaults):
                self.defaults[one][word] = "".join(self.data).strip()
        elif name == "node":
            self._end_node()
        elif name == "edge":
            speed = self.values.get("bandwidth", ""), self.values.get("latency", "")
            code = self.speed_codes.setdefault(speed, len(self.speed_codes))
            if code == len(self.speed_lines):
                self.speed_lines.append(self.line)
            self.speeds.append(code)

    def _attribute(self, name: str, attributes: dict[str, str], element: str) -> str:
        if name not in attributes:
            raise ValueError(f"line {self.line}: <{element}> has no {name}")
        return attributes[name]

    def _number(self, identifier: str) -> int:
        number = self.ids.setdefault(identifier, len(self.labels))
        if number == len(self.labels):
            self.labels.append(identifier)
            self.lines.append(0)
            self.bits.append(-1)
        return number

    def _end_node(self) -> None:
        kind = self.values.get("kind", "").lower()
        if kind not in _KINDS:
            raise ValueError(
                f"line {self.line}: kind of <node> is {quoted(kind)}, allowed are npu and switch"
            )
        flags = []
        for word in ("multicast", "reduce"):
            flag = self.values.get(word, "").lower()
            if flag not in _FLAGS:
                raise ValueError(f"line {self.line}: {word} of <node> is {quoted(flag)}")
            flags.append(_FLAGS[flag])
        if _KINDS[kind]:
            self.bits[self.node] = flags[0] + 2 * flags[1]
        elif any(flags):
            raise ValueError(f"line {self.line}: a <node> multicasts or reduces and is no switch")
        self.labels[self.node] = self.values.get("name") or self.labels[self.node]

    def topology(self, bandwidth: Quantity | None, latency: Quantity | None) -> Topology:
        if not self.labels:
            raise ValueError("the graph has no nodes")
        for node, line in enumerate(self.lines):
            if not line:
                raise ValueError(
                    f"an edge names {quoted(self.labels[node])}, there is no such node"
                )
        bits = np.array(self.bits, np.int64)
        order = np.argsort(bits >= 0, kind="stable")
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        npus = int((bits < 0).sum())
        if npus == 0:
            raise ValueError("all nodes of the graph are switches")
        codes = np.array(self.speeds, np.int64)
        fast = self._speed("bandwidth", 0, bandwidth, bandwidth_Bps)[codes]
        wait = self._speed("latency", 1, latency, time_ps)[codes]
        src, dst = number[np.array(self.ends, np.int64).reshape(-1, 2).T]
        # The link back comes right after its twin.
        repeats = np.frombuffer(bytes(self.both), np.uint8) + 1
        row = np.repeat(np.arange(codes.size), repeats)
        back = np.append(False, row[1:] == row[:-1]) if row.size else np.empty(0, bool)
        links = Links(
            np.where(back, dst[row], src[row]),
            np.where(back, src[row], dst[row]),
            fast[row],
            wait[row],
        )
        names = [self.labels[node] for node in order]
        if names == [str(i) for i in range(len(names))]:
            names = []
        topology = assemble(
            npus,
            [links],
            capabilities=bits[order[npus:]].astype(np.uint8),
            family=self.of_graph.get("family", ""),
            names=names,
            link_model=self.of_graph.get("link_model") or "pipelined",
            forwarding=self.of_graph.get("forwarding") or "cut_through",
            reduce_bandwidth=quantity(self.of_graph.get("reduce_bandwidth", "")) or None,
        )
        return raise_if_disconnected(topology)

    def _speed(
        self, what: str, place: int, default: Quantity | None, convert: Callable[..., int]
    ) -> NDArray[np.int64]:
        values = []
        for speed, line in zip(self.speed_codes, self.speed_lines, strict=True):
            value: Quantity | None = quantity(speed[place]) if speed[place] else default
            if value is None:
                raise ValueError(
                    f"line {line}: <edge> has no {what}, and no argument {what} is given"
                )
            values.append(convert(value, what=f"line {line}: {what} of <edge>"))
        return np.array(values, np.int64)


def write(topology: Topology, path: str | os.PathLike[str]) -> None:
    """Write a topology as GraphML, whole or not at all; dimensions and symmetry are not in it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tacos
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(tacos.topology.switch(2, multicast=True), Path(folder, "net.graphml"))
    ...     print(*Path(folder, "net.graphml").read_text().splitlines()[12:18], sep="\\n")
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
    identifier = quoteattr(str(node))
    return (
        f"    <node id={identifier}>{inside}</node>\n"
        if inside
        else f"    <node id={identifier}/>\n"
    )


def _data(**values: object) -> str:
    return "".join(f'<data key="{key}">{escape(str(one))}</data>' for key, one in values.items())
