"""The graph of a GraphML file as columns, read element by element or mostly in bulk.

Large files are long runs of similar elements. :func:`scan` extracts these with one regular expression, thousands at a
time, and leaves the rest to the parser; it keeps no object per edge. It refuses anything that it cannot be sure of, and
the file is then read element by element.
"""

from __future__ import annotations

import re
from array import array
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos.formats import xml_events
from tacos.formats.source import quantity, quoted
from tacos.topology.links import Links, assemble, raise_if_disconnected
from tacos.units import Quantity, bandwidth_Bps, time_ps

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["GraphmlGraph", "scan"]

_KINDS = {"npu": False, "gpu": False, "": False, "switch": True}
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}

# ASCII characters that need no escape within quotes, and between tags.
_QUOTED = rb"[ !#-%'-;=-~]*"
_TEXT = rb"[ \t\n!-%'-;=-\\^-~]*"
_DATA = re.compile(rb'<data key="(%s)">(%s)</data>' % (_QUOTED, _TEXT))
_REGULAR = re.compile(
    rb'<node id="(Q)" ?/>|<edge(?: id="Q")? source="(Q)" target="(Q)" ?(?:/>|'
    rb'>((?:S*<data key="Q">T</data>)*)S*</edge>)'.replace(b"Q", _QUOTED)
    .replace(b">T<", b">%s<" % _TEXT)
    .replace(b"S*", rb"[ \t\n]*")
)
_GROUPS = 4
_OTHER_ENCODING = re.compile(
    rb"\s*<\?xml[^>]*encoding\s*=\s*[\"'](?!(?:utf-8|us-ascii|iso-8859-1)[\"'])", re.IGNORECASE
)
_WINDOW = 1 << 17
_MOST_BODIES = 1 << 16
_HERE = "tacos-here"


def scan(data: bytes) -> GraphmlGraph:
    """Return the graph of a text; runs of similar elements are read as rows.

    Raises:
        ValueError: Something is wrong, or so unusual that it has to be read element by element.

    >>> graph = scan(b'<graphml><graph><node id="a"/><node id="b"/><edge source="a" target="b"/></graph></graphml>')
    >>> graph.topology("50GB/s", "500ns")
    <tacos.Topology custom: 2 NPUs, 0 switches, 2 links>
    """
    if _OTHER_ENCODING.match(data):
        raise ValueError("the encoding may give other meanings to ASCII")
    graph = GraphmlGraph()
    here: list[str] = []
    parser = xml_events.Parser(
        graph.start, graph.end, graph.text, lambda target, data: here.append(target + data)
    )
    at = 0
    while at < len(data):
        end = min(at + _WINDOW, len(data))
        end = _after(b"</edge>", data, at, end) or _after(b">", data, at, end) or end
        parts: list[Any] = _REGULAR.split(data[at:end])
        gaps, rows = parts[:: _GROUPS + 1], [parts[k :: _GROUPS + 1] for k in range(1, 5)]
        first = 0
        for i in _odd(gaps):
            if first < i:
                # The parser sees this marker only if the elements stand where elements may be, and
                # not, for example, within a comment.
                here.clear()
                parser.feed(f"<?{_HERE}?>".encode())
                if here != [_HERE] or graph.open != ["graphml", "graph"]:
                    raise ValueError("elements where none should be")
                graph.extend(*(row[first:i] for row in rows))
                first = i
            if gaps[i]:
                parser.feed(gaps[i])
                graph.forget_bodies()
        at = end
    parser.feed(b"", last=True)
    return graph


def _after(tag: bytes, data: bytes, begin: int, end: int) -> int:
    """Return the end of the last tag in the text, or 0."""
    found = data.rfind(tag, begin, end)
    return found + len(tag) if found >= 0 else 0


def _odd(gaps: list[bytes]) -> list[int]:
    """Return the indices of the gaps between regular elements that are not white space, and of the last gap."""
    last = len(gaps) - 1
    if not b"".join(gaps[:-1]).strip():
        return [last]
    return [i for i, gap in enumerate(gaps) if i == last or gap.strip()]


class _Lookup(dict[Any, int]):
    """Numbers of texts; a new text gets the next number."""

    def __init__(self, number: Callable[[Any], int]) -> None:
        self._number = number

    def __missing__(self, text: Any) -> int:
        number = self[text] = self._number(text)
        return number


class GraphmlGraph:
    """Collects the elements of one file as columns."""

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
        self.lines = array("q")  # line of each node's element; 0: only an edge names it
        self.labels: list[str] = []
        self.bits: list[int] = []  # -1: an NPU; otherwise the capabilities of a switch
        self.ends = array("q")
        self.speeds = array("q")
        self.speed_codes: dict[tuple[str, str], int] = {}
        self.speed_lines: list[int] = []
        self.both = bytearray()
        self.undirected = False
        self.graphs = 0
        self._numbers = _Lookup(lambda text: self._number(text.decode("ascii")))
        self._bodies = _Lookup(self._body_code)

    def start(self, name: str, attributes: dict[str, str], line: int) -> None:
        if not self.open and name != "graphml":
            raise ValueError(f"line {line}: the root is <{name}>; it must be <graphml>")
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
                raise ValueError(f"line {line}: a second or nested <graph>; there must be only one")
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
            self.speeds.append(self._speed_code())

    def extend(
        self,
        nodes: list[bytes | None],
        sources: list[bytes],
        targets: list[bytes],
        bodies: list[bytes | None],
    ) -> None:
        """Add elements in order: nodes without data or, where `nodes` has None, edges."""
        if nodes.count(None) == len(nodes):
            return self._add_edges(sources, targets, bodies)
        at = 0
        for is_edge, some in groupby(nodes, lambda node: node is None):
            run = slice(at, at := at + len(list(some)))
            if is_edge:
                self._add_edges(sources[run], targets[run], bodies[run])
            else:
                self._add_nodes([node for node in nodes[run] if node is not None])
        return None

    def _add_nodes(self, nodes: list[bytes]) -> None:
        if self.defaults["node"]:
            raise ValueError("nodes have defaults")
        first = len(self.labels)
        labels = b"\n".join(nodes).decode("ascii").split("\n")
        self.ids.update(zip(labels, range(first, first + len(nodes)), strict=True))
        if len(self.ids) < first + len(nodes):
            raise ValueError("a node appears twice, or an edge names it before it appears")
        self._numbers.update(zip(nodes, range(first, first + len(nodes)), strict=True))
        self.labels += labels
        self.lines.extend([1] * len(nodes))
        self.bits += [-1] * len(nodes)

    def _add_edges(
        self, sources: list[bytes], targets: list[bytes], bodies: list[bytes | None]
    ) -> None:
        texts = [b""] * (2 * len(sources))
        texts[::2], texts[1::2] = sources, targets
        ends = np.fromiter(map(self._numbers.__getitem__, texts), np.int64, len(texts))
        if (ends[::2] == ends[1::2]).any():
            raise ValueError("an edge joins a node to itself")
        codes = np.fromiter(map(self._bodies.__getitem__, bodies), np.int64, len(bodies))
        self.ends.frombytes(ends.tobytes())
        self.speeds.frombytes(codes.tobytes())
        self.both.extend((b"\1" if self.undirected else b"\0") * len(bodies))
        if len(self._bodies) > _MOST_BODIES:
            self._bodies.clear()

    def forget_bodies(self) -> None:
        """Forget the codes of edge bodies, since new keys may change the meaning of data."""
        self._bodies.clear()

    def _body_code(self, body: bytes | None) -> int:
        self.values = dict(self.defaults["edge"])
        for key, text in _DATA.findall(body or b""):
            word = self.keys.get(("edge", key.decode("ascii")))
            if word:
                self.values[word] = text.decode("ascii").strip()
        return self._speed_code()

    def _speed_code(self) -> int:
        speed = self.values.get("bandwidth", ""), self.values.get("latency", "")
        code = self.speed_codes.setdefault(speed, len(self.speed_codes))
        if code == len(self.speed_lines):
            self.speed_lines.append(self.line)
        return code

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
                f"line {self.line}: kind of <node> is {quoted(kind)}; it must be npu or switch"
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
            raise ValueError(
                f"line {self.line}: a <node> multicasts or reduces and is not a switch"
            )
        self.labels[self.node] = self.values.get("name") or self.labels[self.node]

    def topology(self, bandwidth: Quantity | None, latency: Quantity | None) -> Topology:
        if not self.labels:
            raise ValueError("the graph has no nodes")
        for node, line in enumerate(self.lines):
            if not line:
                raise ValueError(
                    f"an edge names {quoted(self.labels[node])}, but there is no such node"
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
        # The link back follows its link.
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
            routing=self.of_graph.get("routing") or "spread",
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
