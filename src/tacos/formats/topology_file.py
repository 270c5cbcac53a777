"""Topology files that people write, in YAML or JSON.

A file starts from a spec and edits it, or lists NPUs, switches, links and repeated boxes::

    tacos: 1
    boxes:
      count: 4
      npus: 8
      switches: [nvswitch]
      links: [{src: "npu*", dst: nvswitch, bandwidth: 450GB/s, latency: 350ns}]
    switches: [fabric]
    links:
      - {src: "box*/npu*", dst: fabric, bandwidth: 50GB/s, latency: 1.3us}

``formats/markup.py`` handles the syntax, ``topology_fields`` the fields and their JSON Schema. This module
handles their meaning: nodes by number, by name, by a range ``"0..7"``, by a pattern such as ``"box*/npu0"``, or a
list of these; boxes of one or several kinds that repeat; racks; edits of a base. A wrong file gets one FormatError that
names file, field and value.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from tacos import topology as build
from tacos._support.files import Location, Stream, location, replacing
from tacos.errors import FormatError
from tacos.formats import markup
from tacos.formats.topology_fields import (
    VERSION,
    Boxes,
    Faults,
    File,
    Link,
    Scale,
    Slow,
    Switch,
    decoded,
    schema,
)
from tacos.topology.edits import chosen_links, renamed
from tacos.topology.faults import broken, parts_of
from tacos.topology.links import (
    Links,
    assemble,
    columns_of,
    duplex,
    raise_if_disconnected,
)
from tacos.units import bandwidth_Bps, bandwidth_text, format_bandwidth, time_ps, time_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tacos._core import Topology
    from tacos.formats.topology_fields import Choices, Edit, Racks
    from tacos.nodes import LinkChoice

__all__ = ["read", "schema", "write"]

_MOST_NODES = 10**7
_MOST_LINKS = 2 * 10**7
_WITH_BASE = ("tacos", "name", "faults", "link_model", "forwarding", "routing", "reduce_bandwidth")

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

_ENDINGS = (".yaml", ".yml", ".json")
_DEEPEST = 8  # longest chain of files that are bases of one another


def read(path: Location) -> Topology:
    """Read a topology from a YAML or JSON file, by its extension.

    Raises:
        FormatError: The file is not a topology; the message names the field and the value.
        OSError: The file cannot be opened.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "pair.yaml")
    ...     _ = file.write_text(
    ...         "tacos: 1\\nnpus: 2\\nlinks: [{src: 0, dst: 1, bandwidth: 50GB/s, latency: 1us}]")
    ...     read(file)
    <tacos.Topology custom: 2 NPUs, 0 switches, 2 links>
    """
    return _read(location(path), 0)


def _read(file: Path | Stream, depth: int) -> Topology:
    try:
        return _Reader(decoded(markup.load(file)), file.parent, depth).topology()
    except _TooDeepError as error:
        if depth:  # name only the first file of the chain
            raise
        raise FormatError(f"{file}: {error}") from None
    except ValueError as error:
        raise FormatError(f"{file}: {error}") from None


class _TooDeepError(ValueError):
    """A file's base has a base, and so on, for too many files."""


def write(topology: Topology, path: Location) -> None:
    """Write a topology as YAML or JSON, atomically; `read` gives the same topology.

    >>> import tempfile
    >>> from pathlib import Path
    >>> ring = build.ring(3, bidirectional=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(ring, Path(folder, "ring.yaml"))
    ...     print(Path(folder, "ring.yaml").read_text(), end="")
    ...     read(Path(folder, "ring.yaml")) == ring
    tacos: 1
    name: ring
    npus: 3
    dims: [[ring, 3]]
    symmetric: true
    defaults: {bandwidth: 50GB/s, latency: 500ns}
    directed: [[0, 1], [1, 2], [2, 0]]
    True
    """
    file = location(path)
    suffix = file.suffix.lower()
    if suffix not in _ENDINGS:
        raise ValueError(f'path must end in .yaml, .yml or .json; got "{file}"')
    fields = _fields(topology)
    text = markup.as_json(fields) if suffix == ".json" else markup.as_yaml(fields)
    with replacing(file) as out:
        out.write(text.encode())


# Meaning.


class _NodeNames:
    """Nodes by number, name, range or pattern."""

    def __init__(self, names: Sequence[str], place: str = "") -> None:
        self.names = names
        self.ids: dict[str, int] = {}
        for node, name in enumerate(names):
            if self.ids.setdefault(name, node) != node:
                raise ValueError(f'{place}two nodes are named "{name}"')

    def find(self, ref: int | str | list[int | str], place: str) -> list[int]:
        """Return the nodes that a reference names."""
        if isinstance(ref, list):
            return [node for i, one in enumerate(ref) for node in self.find(one, f"{place}[{i}]")]
        if isinstance(ref, int):
            if 0 <= ref < len(self.names):
                return [ref]
            raise ValueError(f"{place} is {ref}; the nodes are 0 to {len(self.names) - 1}")
        if ref in self.ids:
            return [self.ids[ref]]
        bounds = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", ref)
        if bounds:
            first, last = int(bounds[1]), int(bounds[2])
            if first <= last < len(self.names):
                return list(range(first, last + 1))
            raise ValueError(f'{place} is "{ref}"; the nodes are 0 to {len(self.names) - 1}')
        matching = self._matching(ref) if re.search(r"[*?\[]", ref) else []
        if matching:
            return matching
        close = difflib.get_close_matches(ref, self.names[:10_000], n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f'{place} is "{ref}", but there is no such node{hint}')

    def _matching(self, pattern: str) -> list[int]:
        match = re.compile(fnmatch.translate(pattern)).match
        return [node for node, name in enumerate(self.names) if match(name)]


def _names(kind: str, given: int | list[Any]) -> list[str]:
    if isinstance(given, int):
        return [f"{kind}{i}" for i in range(given)]
    named = [one if isinstance(one, str) else one.name for one in given]
    return [f"{kind}{i}" if name is None else name for i, name in enumerate(named)]


def _length(given: int | list[Any]) -> int:
    return given if isinstance(given, int) else len(given)


def _bits(switches: int | list[str | Switch]) -> list[int]:
    if isinstance(switches, int):
        return [0] * switches
    return [0 if isinstance(s, str) else s.multicast + 2 * s.reduce for s in switches]


@dataclass(frozen=True, slots=True)
class _BoxKind:
    """Boxes of one kind, and the content of one box."""

    place: str
    name: str
    count: int
    npus: int
    inner: list[str]
    bits: list[int]
    links: list[Link]
    machine: Topology | None = None

    @property
    def switches(self) -> int:
        return len(self.inner) - self.npus

    def named(self, begin: int, end: int) -> list[str]:
        """Return the names of the nodes `begin` to `end` of every box."""
        return [
            f"{self.name}{b}/{name}" for b in range(self.count) for name in self.inner[begin:end]
        ]

    def ids(self, first_npu: int, first_switch: int) -> Ints:
        """Return the numbers of each box's nodes, one row per box."""
        local, box = np.arange(len(self.inner)), np.arange(self.count)[:, None]
        return np.where(
            local < self.npus,
            first_npu + box * self.npus + local,
            first_switch + box * self.switches + local - self.npus,
        )


class _Reader:
    """Turns the fields of one file into a topology."""

    def __init__(self, file: File, folder: Path, depth: int) -> None:
        self.file, self.folder, self.depth = file, folder, depth
        self.blocks: list[Links] = []
        self.links = 0
        self.bandwidth = lru_cache(maxsize=1 << 16)(partial(bandwidth_Bps, bare=False))
        self.latency = lru_cache(maxsize=1 << 16)(partial(time_ps, bare=False))

    def topology(self) -> Topology:
        file = self.file
        if file.base is None:
            if file.edits:
                raise ValueError("edits needs a base to edit")
            return self._with_faults(self._listed())
        for field in File.__struct_fields__:
            described = field not in (*_WITH_BASE, "base", "edits", "defaults", "connected")
            if described and getattr(file, field):
                raise ValueError(f"{field} cannot be combined with base")
        return self._with_faults(self._edited(file.base))

    def _model(self) -> build.Model:
        file, model = self.file, build.Model()
        if file.link_model is not None:
            model["link_model"] = file.link_model
        if file.forwarding is not None:
            model["forwarding"] = file.forwarding
        if file.routing is not None:
            model["routing"] = file.routing
        if file.reduce_bandwidth is not None:
            speed = self._quantity(self.bandwidth, file.reduce_bandwidth, "reduce_bandwidth")
            model["reduce_bandwidth"] = f"{speed}B/s"
        return model

    def _quantity(self, convert: Callable[..., int], value: Any, place: str) -> int:
        try:
            return convert(value)
        except ValueError:
            return convert(value, what=place)  # raises again, with the field's name

    # A base and its edits.

    def _edited(self, base: str) -> Topology:
        topology = self._base(base)
        for i, edit in enumerate(self.file.edits):
            change = self._change(topology, edit, f"edits[{i}]")
            try:
                topology = change(topology)
            except ValueError as error:
                raise ValueError(f"edits[{i}]: {error}") from None
        if self.file.name is None:
            return topology
        return renamed(topology, self.file.name)

    def _base(self, base: str) -> Topology:
        """Return the topology of a spec, or of another file of this format."""
        model = self._model()
        if not base.lower().endswith(_ENDINGS):
            return build.parse(base, **model)
        if model:
            raise ValueError(f"{next(iter(model))} cannot be combined with a base that is a file")
        if self.depth == _DEEPEST:
            raise _TooDeepError(
                f"more than {_DEEPEST} files in a row name a base, the last one {base}; check for a cycle"
            )
        try:
            return _read(self.folder / base, self.depth + 1)
        except OSError as error:
            raise ValueError(f"base is {base}: {error.strerror}") from None

    def _change(self, topology: Topology, edit: Edit, place: str) -> Callable[[Topology], Topology]:
        kinds = ("drop_links", "drop_npus", "subset", "degrade", "scale")
        given = [kind for kind in kinds if getattr(edit, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"{place} has {len(given)} changes; it must have one of {', '.join(kinds)}"
            )
        nodes = _nodes_of(topology)
        if edit.drop_links is not None:
            gone = _choices(nodes, edit.drop_links, f"{place}.drop_links")
            return lambda topology: build.drop_links(topology, *gone, both=edit.both)
        if edit.drop_npus is not None:
            dead = nodes.find(edit.drop_npus, f"{place}.drop_npus")
            return lambda topology: build.drop_npus(topology, *dead)
        if edit.subset is not None:
            kept = nodes.find(edit.subset, f"{place}.subset")
            return lambda topology: build.subset(topology, kept)
        if (slower := edit.degrade) is not None:
            slow = _choices(nodes, slower.links, f"{place}.degrade.links")
            return lambda topology: build.degrade(
                topology, *slow, factor=slower.factor, latency=slower.latency, both=edit.both
            )
        factors = edit.scale or Scale()
        return lambda topology: build.scale(
            topology, bandwidth=factors.bandwidth, latency=factors.latency
        )

    def _with_faults(self, topology: Topology) -> Topology:
        """Break the network as the field `faults` says."""
        faults = self.file.faults
        if faults is None:
            return topology
        nodes, here = _nodes_of(topology), np.ones(topology.nodes, bool)
        keep = ~_chosen(topology, nodes, faults.dead, "faults.dead")
        for i, ref in enumerate(faults.dropped):
            here[nodes.find(ref, f"faults.dropped[{i}]")] = False
        if not here[: topology.npus].any():
            raise ValueError("faults.dropped names all NPUs; a topology needs at least one")
        keep &= here[topology.link_src] & here[topology.link_dst]
        bandwidth, latency = topology.link_bandwidth_Bps.copy(), topology.link_latency_ps.copy()
        whole, node, link = parts_of(topology)
        known_Bps = whole.link_bandwidth_Bps[link]
        entry = np.full(topology.links, -1)  # that describes a link
        for i, slow in enumerate(faults.slow):
            place = f"faults.slow[{i}]"
            if slow.bandwidth is None and slow.latency is None:
                raise ValueError(
                    f"{place} needs the bandwidth or the latency that the links have now"
                )
            chosen = _chosen(topology, nodes, slow.links, f"{place}.links")
            for one in np.flatnonzero(chosen & ~keep)[:1]:
                raise ValueError(f"{place}.links names link {one}, which is dead or dropped")
            for one in np.flatnonzero(chosen & (entry >= 0))[:1]:
                raise ValueError(
                    f"{place}.links names link {one}, which faults.slow[{entry[one]}] describes already; "
                    "give its bandwidth and latency in one entry"
                )
            entry[chosen] = i
            if slow.bandwidth is not None:
                bandwidth[chosen] = self._quantity(
                    self.bandwidth, slow.bandwidth, f"{place}.bandwidth"
                )
                for one in np.flatnonzero(chosen & (bandwidth > known_Bps))[:1]:
                    before = format_bandwidth(int(known_Bps[one]))
                    raise ValueError(
                        f"{place}.bandwidth {slow.bandwidth} is above the {before} of the healthy "
                        f"link {one}; describe faster links in the network itself"
                    )
            if slow.latency is not None:
                latency[chosen] = self._quantity(self.latency, slow.latency, f"{place}.latency")
        found = broken(
            whole,
            node[here],
            link[keep],
            bandwidth_Bps=bandwidth[keep],
            latency_ps=latency[keep],
            symmetric=topology.symmetric and faults.symmetric and bool(here.all() and keep.all()),
        )
        return raise_if_disconnected(found) if self.file.connected else found

    # Nodes and links one by one.

    def _listed(self) -> Topology:
        file = self.file
        kinds = [self._box_kind(boxes, place) for boxes, place in self._all_boxes()]
        own_npus, own_switches = _length(file.npus), _length(file.switches)
        racked = self._racks(kinds)
        boxed = sum(kind.count * kind.npus for kind in kinds)
        npus = boxed + own_npus
        switches = sum(kind.count * kind.switches for kind in kinds) + own_switches + len(racked)
        if npus == 0:
            raise ValueError("the topology has no NPUs; it needs npus, boxes or a base")
        if npus + switches > _MOST_NODES:
            raise ValueError(
                f"the topology has {npus + switches} nodes; the limit is {_MOST_NODES}"
            )

        plain = _names("npu", file.npus) + _names("switch", file.switches)
        names, bits = [name for kind in kinds for name in kind.named(0, kind.npus)], []
        names += plain[:own_npus]
        first_npu, first_switch = 0, npus
        for kind in kinds:
            names += kind.named(kind.npus, kind.npus + kind.switches)
            bits += kind.bits * kind.count
            ids = kind.ids(first_npu, first_switch)
            if kind.machine is not None:
                self._add_machine(kind.machine, ids)
            self._add_links(
                kind.links, _NodeNames(kind.inner, f"{kind.place}: "), f"{kind.place}.links", ids
            )
            first_npu += kind.count * kind.npus
            first_switch += kind.count * kind.switches
        names += plain[own_npus:] + racked
        bits += _bits(file.switches) + [0] * len(racked)
        nodes = _NodeNames(names)
        if file.racks is not None:
            self._add_racks(file.racks, kinds, npus + switches - len(racked))
        self._add_links(file.links, nodes, "links", np.arange(npus + switches)[None])
        self._add_directed(nodes)
        return self._assembled(
            npus, bits, names if self._named() else [], self._dims(kinds, own_npus)
        )

    def _all_boxes(self) -> list[tuple[Boxes, str]]:
        boxes = self.file.boxes
        if boxes is None:
            return []
        if isinstance(boxes, Boxes):
            return [(boxes, "boxes")]
        if not boxes:
            raise ValueError("boxes is an empty list; it needs at least one kind of boxes")
        return [(one, f"boxes[{i}]") for i, one in enumerate(boxes)]

    def _box_kind(self, boxes: Boxes, place: str) -> _BoxKind:
        if boxes.machine is None:
            if _length(boxes.npus) == 0:
                what = "an empty list" if isinstance(boxes.npus, list) else "missing"
                raise ValueError(f"{place}.npus is {what}; a box needs at least one NPU")
            inner = _names("npu", boxes.npus) + _names("switch", boxes.switches)
            return _BoxKind(
                place,
                boxes.name,
                boxes.count,
                _length(boxes.npus),
                inner,
                _bits(boxes.switches),
                boxes.links,
            )
        for field in ("npus", "switches"):
            if getattr(boxes, field):
                raise ValueError(
                    f"{place}.{field} cannot be combined with machine, which has its own"
                )
        try:
            machine = build.parse(boxes.machine, **self._model())
        except ValueError as error:
            raise ValueError(f"{place}.machine: {error}") from None
        inner = _names("npu", machine.npus) + _names("switch", machine.switches)
        bits = machine.switch_capabilities.tolist()
        return _BoxKind(
            place, boxes.name, boxes.count, machine.npus, inner, bits, boxes.links, machine
        )

    def _add_machine(self, machine: Topology, ids: Ints) -> None:
        """Add the links of a machine, once for each row of `ids`."""
        self._make_room(len(ids) * machine.links)
        block = columns_of(machine)
        self.blocks += [block._replace(src=row[block.src], dst=row[block.dst]) for row in ids]

    def _racks(self, kinds: list[_BoxKind]) -> list[str]:
        """Return the names of the racks' switches, and of the spine if there are several."""
        if self.file.racks is None:
            return []
        boxes = sum(kind.count for kind in kinds)
        if boxes == 0:
            raise ValueError("racks needs boxes to put into racks")
        racks = -(-boxes // self.file.racks.boxes)
        return [*(f"rack{r}" for r in range(racks)), *(["spine"] if racks > 1 else [])]

    def _add_racks(self, racks: Racks, kinds: list[_BoxKind], first: int) -> None:
        """Add links from each NPU to its rack's switch (number `first` in rack 0), and from there to the spine."""
        link = Link(bandwidth=racks.bandwidth, latency=racks.latency)
        bandwidth, latency = self._speed(link, "racks")
        sizes = np.concatenate([np.full(kind.count, kind.npus) for kind in kinds])
        rack = np.repeat(np.arange(len(sizes)) // racks.boxes, sizes)
        npus = np.arange(len(rack))
        self._make_room(2 * (len(npus) + int(rack.max()) + 1))
        blocks = duplex(npus, first + rack, f"{bandwidth}B/s", f"{latency}ps")
        below = np.bincount(rack) * bandwidth
        if len(below) > 1:
            up = np.maximum(np.rint(below / racks.oversubscription), 1).astype(np.int64)
            at, spine = first + np.arange(len(below)), np.full(len(below), first + len(below))
            blocks += [Links(at, spine, up, latency), Links(spine, at, up, latency)]
        self.blocks += blocks

    def _dims(self, kinds: list[_BoxKind], own_npus: int) -> list[tuple[str, int]]:
        """Return the dimensions that boxes of one size have; none where boxes differ."""
        dims, racks = list(self.file.dims), self.file.racks
        if not kinds or own_npus or dims or len({kind.npus for kind in kinds}) > 1:
            return dims
        count, joined = sum(kind.count for kind in kinds), bool(_length(self.file.switches))
        if racks is None:
            return [("box", kinds[0].npus), ("switch" if joined else "box", count)]
        if count % racks.boxes:
            return [("box", kinds[0].npus), ("switch", count)]
        return [("box", kinds[0].npus), ("switch", racks.boxes), ("switch", count // racks.boxes)]

    def _named(self) -> bool:
        """Return whether the file names any node; otherwise nodes have numbers only."""
        switches = self.file.switches
        return (
            self.file.boxes is not None
            or isinstance(self.file.npus, list)
            or (
                isinstance(switches, list)
                and any(isinstance(s, str) or s.name is not None for s in switches)
            )
        )

    def _add_links(self, links: list[Link], nodes: _NodeNames, field: str, ids: Ints) -> None:
        """Add the links between the given nodes, once for each row of `ids`, which numbers them."""
        local: list[Links] = []
        for i, link in enumerate(links):
            place = f"{field}[{i}]"
            pairs = _ends(link, nodes, place)
            self._make_room(len(ids) * len(pairs) * link.count * (1 + link.both))
            if link.both:
                pairs = np.stack([pairs, pairs[:, ::-1]], axis=1).reshape(-1, 2)
            pairs = np.tile(pairs, (link.count, 1))
            local.append(Links(pairs[:, 0], pairs[:, 1], *self._speed(link, place)))
        for number in ids:
            self.blocks += [
                block._replace(src=number[block.src], dst=number[block.dst]) for block in local
            ]

    def _add_directed(self, nodes: _NodeNames) -> None:
        rows = self.file.directed
        self._make_room(len(rows))
        link = Link(src=0, dst=0)
        columns = np.empty((4, len(rows)), dtype=np.int64)
        for i, row in enumerate(rows):
            if not 2 <= len(row) <= 4:
                raise ValueError(
                    f"directed[{i}] has {len(row)} entries; "
                    "it must be [src, dst, bandwidth, latency]"
                )
            for end in (0, 1):
                node = row[end]
                if isinstance(node, int) and 0 <= node < len(nodes.names):  # saves most calls
                    columns[end, i] = node
                    continue
                found = (
                    nodes.find(node, f"directed[{i}][{end}]") if not isinstance(node, float) else []
                )
                if len(found) != 1:
                    raise ValueError(f"directed[{i}][{end}] is {node!r}; it must be one node")
                columns[end, i] = found[0]
            if columns[0, i] == columns[1, i]:
                raise ValueError(f"directed[{i}] joins {nodes.names[columns[0, i]]} to itself")
            link.bandwidth, link.latency = (*row[2:], None, None)[:2]
            columns[2:, i] = self._speed(link, f"directed[{i}]")
        self.blocks.append(Links(*columns))

    def _make_room(self, links: int) -> None:
        self.links += links
        if self.links > _MOST_LINKS:
            raise ValueError(f"the topology has {self.links} links; the limit is {_MOST_LINKS}")

    def _speed(self, link: Link, place: str) -> tuple[int, int]:
        """Return a link's own bandwidth and latency, or the defaults."""
        speed = []
        for field, convert in (("bandwidth", self.bandwidth), ("latency", self.latency)):
            value, source = getattr(link, field), f"{place}.{field}"
            if value is None:
                value, source = getattr(self.file.defaults, field), f"defaults.{field}"
            if value is None:
                raise ValueError(f"{place} has no {field}, and there is no {source}")
            speed.append(self._quantity(convert, value, source))
        return speed[0], speed[1]

    def _assembled(
        self, npus: int, bits: list[int], names: list[str], dims: list[tuple[str, int]]
    ) -> Topology:
        topology = assemble(
            npus,
            self.blocks,
            capabilities=bits,
            family=self.file.name or "",
            dims=dims,
            symmetric=self.file.symmetric,
            names=names,
            **self._model(),
        )
        if self.file.symmetric:
            _check_symmetric(topology)
        return raise_if_disconnected(topology) if self.file.connected else topology


def _ends(link: Link, nodes: _NodeNames, place: str) -> Ints:
    """Return the pairs of nodes that a link joins."""
    if link.among is not None:
        if link.src is not None or link.dst is not None:
            raise ValueError(f"{place} has among, so it must have neither src nor dst")
        group = np.array(nodes.find(link.among, f"{place}.among"), dtype=np.int64)
        if len(group) ** 2 > _MOST_LINKS:
            raise ValueError(f"{place}.among names {len(group)} nodes, which is too many")
        i, j = np.triu_indices(len(group), 1)
        pairs = np.column_stack([group[i], group[j]])
    else:
        if link.src is None or link.dst is None:
            raise ValueError(f"{place} has no {'dst' if link.dst is None else 'src'}")
        src, dst = nodes.find(link.src, f"{place}.src"), nodes.find(link.dst, f"{place}.dst")
        if len(src) != len(dst) and 1 not in (len(src), len(dst)):
            raise ValueError(
                f"{place} has {len(src)} nodes in src and {len(dst)} in dst; "
                "use equal numbers, or a single node on one side"
            )
        if not src or not dst:
            raise ValueError(f"{place} has an empty list of nodes")
        pairs = np.column_stack(np.broadcast_arrays(np.array(src), np.array(dst)))
    for a in pairs[pairs[:, 0] == pairs[:, 1], 0][:1]:
        raise ValueError(f"{place} joins {nodes.names[a]} to itself")
    return pairs


def _nodes_of(topology: Topology) -> _NodeNames:
    """Return the names of a network's nodes."""
    npus, switches = _names("npu", topology.npus), _names("switch", topology.switches)
    return _NodeNames(topology.names or npus + switches)


def _chosen(topology: Topology, nodes: _NodeNames, given: Choices, place: str) -> Mask:
    """Return links as a mask over all links; the error for a link that does not exist names the field."""
    try:
        return chosen_links(topology, _choices(nodes, given, place))
    except ValueError as error:
        message = str(error)
        raise ValueError(message if message.startswith(place) else f"{place}: {message}") from None


def _choices(nodes: _NodeNames, given: Choices, place: str) -> list[LinkChoice]:
    """Return links in the form that the editing functions take; patterns in pairs are replaced by nodes."""
    found: list[LinkChoice] = []
    for i, choice in enumerate(given):
        if isinstance(choice, int | str):
            found.append(choice)
            continue
        link = Link(src=choice[0], dst=choice[1])
        found += [(int(a), int(b)) for a, b in _ends(link, nodes, f"{place}[{i}]")]
    return found


def _check_symmetric(topology: Topology) -> None:
    """Refuse a claim of symmetry that a shift along a dimension disproves."""
    if not topology.dims:
        raise ValueError("symmetric is true, but dims is missing")
    npus = np.arange(topology.npus)
    stride = 1
    before = _links_by_npu(topology, npus)
    for k, (_, size) in enumerate(topology.dims):
        last = npus // stride % size == size - 1
        shifted = npus + np.where(last, stride - stride * size, stride)
        if _links_by_npu(topology, shifted) != before:
            raise ValueError(f"symmetric is true, but a shift along dims[{k}] changes the network")
        stride *= size


def _links_by_npu(topology: Topology, number: Ints) -> tuple[bytes, Counter[Any]]:
    """Return all links in a canonical order, with the NPUs renumbered; equal for networks that differ only in order.

    A switch is identified by its links, so they must all lead to NPUs.
    """
    ends = np.stack([topology.link_src, topology.link_dst]).astype(np.int64)
    speed = np.stack([topology.link_bandwidth_Bps, topology.link_latency_ps])
    is_switch = ends >= topology.npus
    if is_switch.all(axis=0).any():
        raise ValueError("symmetric is true, which is not supported if switches join switches")
    direct = ~is_switch.any(axis=0)
    rows = np.concatenate([number[ends[:, direct]], speed[:, direct]])
    ports: list[list[Any]] = [[int(bits)] for bits in topology.switch_capabilities]
    for link in np.flatnonzero(~direct):
        way = int(is_switch[0, link])
        switch, npu = ends[1 - way, link] - topology.npus, number[ends[way, link]]
        ports[switch].append((int(npu), way, *speed[:, link].tolist()))
    switches = Counter((port[0], *sorted(port[1:])) for port in ports)
    return rows[:, np.lexsort(rows)].tobytes(), switches


# Writing.


def _fields(topology: Topology) -> dict[str, Any]:
    if topology.faults is not None:
        return _fields(topology.healthy()) | _fault_fields(topology)
    names = topology.names
    npus, bits = topology.npus, topology.switch_capabilities.tolist()
    fields: dict[str, Any] = {"tacos": VERSION}
    if topology.family:
        fields["name"] = topology.family
    if topology.link_model != "pipelined":
        fields["link_model"] = topology.link_model
    if topology.forwarding != "cut_through":
        fields["forwarding"] = topology.forwarding
    if topology.routing != "spread":
        fields["routing"] = topology.routing
    if topology.reduce_bandwidth_Bps:
        fields["reduce_bandwidth"] = bandwidth_text(topology.reduce_bandwidth_Bps)
    fields["npus"] = names[:npus] or npus
    if bits and (names or any(bits)):
        switches = [
            Switch(names[npus + i] if names else None, bool(able & 1), bool(able & 2))
            for i, able in enumerate(bits)
        ]
        fields["switches"] = [
            s.name if s.name is not None and not bits[i] else msgspec.to_builtins(s)
            for i, s in enumerate(switches)
        ]
    elif bits:
        fields["switches"] = len(bits)
    if topology.dims:
        fields["dims"] = [list(dim) for dim in topology.dims]
    if topology.symmetric:
        fields["symmetric"] = True
    if topology.unreachable_pair() is not None:
        fields["connected"] = False
    return fields | (_link_fields(topology) if topology.links else {})


def _link_fields(topology: Topology) -> dict[str, Any]:
    """Return links as short rows; the most common values become defaults."""
    speeds, which, counts = np.unique(
        np.stack([topology.link_bandwidth_Bps, topology.link_latency_ps]),
        axis=1,
        return_inverse=True,
        return_counts=True,
    )
    texts = [[bandwidth_text(int(fast)), time_text(int(wait))] for fast, wait in speeds.T]
    usual = texts[int(counts.argmax())]
    ends = [[] if text == usual else text[:1] if text[1] == usual[1] else text for text in texts]
    label: Sequence[int | str] = topology.names or range(topology.nodes)
    rows = [
        [label[src], label[dst], *ends[kind]]
        for src, dst, kind in zip(
            topology.link_src.tolist(),
            topology.link_dst.tolist(),
            which.ravel().tolist(),
            strict=True,
        )
    ]
    return {"defaults": {"bandwidth": usual[0], "latency": usual[1]}, "directed": rows}


def _fault_fields(topology: Topology) -> dict[str, Any]:
    """Return what is wrong with a network that its file describes as healthy; equally slow links share an entry."""
    whole, _, link = parts_of(topology)
    faults, slow = topology.faults, dict[tuple[str | None, str | None], list[int]]()
    if faults is None:
        return {}
    gone = np.isin(faults.src, faults.dropped) | np.isin(faults.dst, faults.dropped)
    bandwidth = topology.link_bandwidth_Bps
    for row in np.flatnonzero(faults.dead == 0).tolist():
        at = int(np.searchsorted(link, faults.link[row]))
        speed, wait = int(bandwidth[at]), int(topology.link_latency_ps[at])
        state = (
            None if speed == faults.bandwidth_Bps[row] else bandwidth_text(speed),
            None if wait == faults.latency_ps[row] else time_text(wait),
        )
        slow.setdefault(state, []).append(int(faults.link[row]))
    fields = Faults(
        dead=faults.link[(faults.dead != 0) & ~gone].tolist(),
        slow=[Slow(links, speed, wait) for (speed, wait), links in slow.items()],  # type: ignore[arg-type]  # numbers are choices
        dropped=[whole.names[i] if whole.names else i for i in faults.dropped.tolist()],
        symmetric=topology.symmetric,
    )
    # The healthy network may be connected where this one is not.
    connected = {} if topology.unreachable_pair() is None else {"connected": False}
    return connected | {"faults": msgspec.to_builtins(fields)}
