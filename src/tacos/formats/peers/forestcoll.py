"""Results of ForestColl: an XML file of spanning trees, one per chunk of each GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn
from xml.parsers import expat

from tacos.errors import FormatError
from tacos.formats.peers.results import Result, reading
from tacos.formats.source import about, bytes_of

if TYPE_CHECKING:
    from tacos._core import Schedule, Topology
    from tacos._support.files import Location
    from tacos.units import Quantity

__all__ = ["read"]

# A node's name has commas only within parentheses.
_NODE = re.compile(r"\([^()]*\)|[^,()]+")


def read(
    path: Location, *, topology: Topology | None = None, size: Quantity | None = None
) -> Schedule:
    """Read trees of ForestColl as the all-gather that sends every chunk down its tree.

    GPUs are the nodes that trees send from and to, numbered in the order of their names
    (``provenance["gpus"]``); other nodes of paths are switches.

    Args:
        path: The file.
        topology: The network; by default one made of the links that the paths use.
        size: Size of the collective; by default 1 MiB per chunk.

    Raises:
        FormatError: The file is not such a result; the message names line, field and value.
        OSError: The file cannot be opened.
    """
    trees = _Trees(path)
    trees.parse()
    with reading(path):
        result, names = trees.result()
        return result.schedule(topology, size, engine="forestcoll", gpus=names)


class _Trees:
    """Collects the elements of one file."""

    def __init__(self, path: Location) -> None:
        self.path = path
        self.chunks = 0
        self.trees: list[tuple[str, int]] = []  # root, chunks
        self.sends: list[tuple[int, list[str], int]] = []  # tree, path, line
        self.open: list[str] = []
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.StartDoctypeDeclHandler = self.refuse_doctype

    def parse(self) -> None:
        with about(self.path):
            content = bytes_of(self.path)
        try:
            self.parser.Parse(content, True)
        except expat.ExpatError as error:
            self.fail(f"not XML: {expat.ErrorString(error.code)}", error.lineno)
        except (UnicodeDecodeError, LookupError) as error:
            self.fail(f"not XML: {error}")

    def fail(self, what: str, line: int | None = None) -> NoReturn:
        line = self.parser.CurrentLineNumber if line is None else line
        raise FormatError(f"{self.path}: line {line}: {what}") from None

    def refuse_doctype(self, *_: Any) -> NoReturn:
        self.fail("a document type declaration is not supported")

    def start(self, name: str, fields: dict[str, str]) -> None:
        level = len(self.open)
        if level > 2 or name != ("Algo", "tree", "send")[level]:
            self.fail(
                f"unexpected element {name[:40]}; it must be {('Algo', 'tree', 'send')[min(level, 2)]}"
            )
        self.open.append(name)
        if name == "Algo":
            self.chunks = self.whole(fields, "nchunkspernode")
        elif name == "tree":
            self.trees.append((self.word(fields, "root"), self.whole(fields, "nchunks")))
        else:
            src, dst = self.word(fields, "src"), self.word(fields, "dst")
            way = _NODE.findall(fields.get("path", f"{src},{dst}"))
            if len(way) < 2 or (way[0], way[-1]) != (src, dst):
                self.fail(f'the send\'s field path must go from "{src[:40]}" to "{dst[:40]}"')
            self.sends.append((len(self.trees) - 1, way, self.parser.CurrentLineNumber))

    def end(self, _: str) -> None:
        self.open.pop()

    def word(self, fields: dict[str, str], name: str) -> str:
        if not fields.get(name):
            self.fail(f'the {self.open[-1]} has no field "{name}"')
        return fields[name]

    def whole(self, fields: dict[str, str], name: str) -> int:
        text = self.word(fields, name)
        if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
            self.fail(
                f'the {self.open[-1]}\'s field {name} is "{text[:40]}"; it must be a positive number'
            )
        return int(text)

    def result(self) -> tuple[Result, list[str]]:
        gpus = {root for root, _ in self.trees}
        for _, way, _ in self.sends:
            gpus |= {way[0], way[-1]}
        names = sorted(gpus, key=_natural)
        number = {name: i for i, name in enumerate(names)}
        inner = {node for _, way, _ in self.sends for node in way[1:-1]}
        both = sorted(inner & gpus, key=_natural)
        if both:
            raise ValueError(f'the node "{both[0]}" is a GPU and lies inside a path')
        switch = {name: i for i, name in enumerate(sorted(inner, key=_natural))}
        if len(names) < 2:
            raise ValueError("the trees join fewer than 2 GPUs")
        taken = dict.fromkeys(names, 0)
        first = []
        for root, chunks in self.trees:
            first.append(number[root] * self.chunks + taken[root])
            taken[root] += chunks
        for name, chunks in taken.items():
            if chunks != self.chunks:
                raise ValueError(
                    f'the trees of "{name}" have {chunks} chunks, but nchunkspernode is {self.chunks}'
                )
        total = self.chunks * len(names)
        moved = sum(self.trees[tree][1] for tree, _, _ in self.sends)
        if max(total, moved) > 64 * (len(self.sends) + 64):
            raise ValueError(f"the trees move {moved} chunks, far more than they have sends")
        everyone = set(range(len(names)))
        result = Result(len(names), [{c // self.chunks} for c in range(total)], [everyone] * total)
        depth: list[dict[str, int]] = [{root: 0} for root, _ in self.trees]
        for tree, way, line in self.sends:
            if way[0] not in depth[tree] or way[-1] in depth[tree]:
                self.fail(f'the send to "{way[-1]}" does not extend its tree', line)
            step = depth[tree][way[0]]
            depth[tree][way[-1]] = step + 1
            via = tuple(switch[node] for node in way[1:-1])
            for chunk in range(first[tree], first[tree] + self.trees[tree][1]):
                result.hops.append((step, chunk, number[way[0]], number[way[-1]], via))
        return result, names


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which node 10 comes after node 9."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
