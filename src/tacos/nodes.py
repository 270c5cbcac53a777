"""Find nodes and links by number or by name.

Every function, option and file field that takes an NPU, a node or a link resolves it here. A node is given by
number (``3``), by name (``"box0/npu0"``), or in the form in which tacos prints nodes without a name (``"npu 3"``,
``"switch 0"``). A link is given by number, or by the two nodes that it joins: a pair in Python, and
``0-1``, ``box0/npu0-fabric`` or ``box0/npu0->fabric`` in text. Two nodes stand for all parallel links
from the first to the second.
"""

from __future__ import annotations

import fnmatch
import os
import re
from functools import cached_property
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Topology, find_network
from tacos.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["LinkChoice", "Network", "Node", "Nodes", "link_name", "link_of", "topology_of"]

Network = Topology | str | os.PathLike[str]
"""A topology, a spec such as ``"torus:4x4"``, or the path of a topology file."""

Node = int | str
"""A node's number, or its name."""
LinkChoice = int | str | tuple[Node, Node]
"""A link's number, a pair (src, dst) of nodes, or both as text: ``"4"``, ``"0-1"``, ``"a/gpu0->tor"``."""

_SAMPLES = 3  # names shown in a message
_SEARCHED = 10_000  # largest number of names that are searched for a suggestion


def topology_of(given: Network, *, what: str = "topology") -> Topology:
    """Return the topology that an argument stands for; `what` is the argument's name in messages.

    Raises:
        TypeError: It is neither a topology nor a string.
        SpecError: There is no such spec or file.

    >>> topology_of("ring:4").npus
    4
    >>> topology_of(4)
    Traceback (most recent call last):
    TypeError: topology must be a Topology, a spec such as "torus:4x4", or a file; got 4
    """
    if isinstance(given, Topology):
        return given
    if isinstance(given, str | os.PathLike):
        return find_network(os.fspath(given))
    raise TypeError(
        f'{what} must be a Topology, a spec such as "torus:4x4", or a file; got {shortened(given)}'
    )


class Nodes:
    """Finds nodes and links of a topology by number or name.

    >>> from tacos.topology import ring
    >>> nodes = Nodes(ring(4))
    >>> nodes.node("npu 2"), nodes.npu(3), nodes.links("0-1"), nodes.links((0, 1), both=True)
    (2, 3, array([0]), array([0, 5]))
    >>> nodes.npu("gpu9", what="--npu")
    Traceback (most recent call last):
    ValueError: --npu is 'gpu9', but there is no such NPU; the NPUs are 0 to 3
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    @cached_property
    def _names(self) -> dict[str, int]:
        return {name: node for node, name in enumerate(self._topology.names)}

    def node(self, given: object, *, what: str = "node") -> int:
        """Return the number of a node; `what` is the field's name in messages, here and below.

        Raises:
            ValueError: There is no such node; the message suggests the nearest name.
        """
        found = self._find(given, what)
        if found is None:
            raise ValueError(self._unknown(given, what, "node", self._topology.nodes))
        return found

    def npu(self, given: object, *, what: str = "npu", listed: bool = False) -> int:
        """Return the number of an NPU; `listed` words the message for an entry of a list.

        Raises:
            ValueError: There is no such node, or it is a switch.
        """
        found = self._find(given, what)
        if found is None or (found >= self._topology.npus and isinstance(given, int | np.integer)):
            raise ValueError(self._unknown(given, what, "NPU", self._topology.npus, listed=listed))
        if found >= self._topology.npus:
            raise ValueError(f"{what} is {given!r}, which is a switch, not an NPU")
        return found

    def npus(self, given: Iterable[object], *, what: str = "npus") -> list[int]:
        """Return the numbers of several NPUs, which must differ."""
        found = [self.npu(one, what=f"{what}[{i}]") for i, one in enumerate(given)]
        seen: set[int] = set()
        for npu in found:
            if npu in seen:
                raise ValueError(f"{what} has NPU {self._called(npu)} twice")
            seen.add(npu)
        return found

    def members(self, text: str, *, what: str = "group") -> list[int]:
        """Return the NPUs of a list such as ``0,2,4-7``, ``a/gpu0,a/gpu1`` or ``a/*``.

        >>> from tacos.topology import ring
        >>> Nodes(ring(8)).members("0,4-6")
        [0, 4, 5, 6]
        """
        found: list[int] = []
        for item in text.split(","):
            span = re.fullmatch(r"(\d{1,9})-(\d{1,9})", item)
            if item in self._names or (span is None and not re.search(r"[*?\[]", item)):
                found.append(self.npu(item, what=what, listed=True))
            elif span is not None:
                low, high = int(span[1]), int(span[2])
                if low > high:
                    raise ValueError(
                        f"{what} has {item!r}; a range goes from the lower to the higher NPU"
                    )
                found += range(low, self.npu(high, what=what, listed=True) + 1)
            else:
                match = re.compile(fnmatch.translate(item)).match
                names = list(self._names)[: self._topology.npus]
                matching = [npu for npu, name in enumerate(names) if match(name)]
                if not matching:
                    raise ValueError(self._unknown(item, what, "NPU", self._topology.npus))
                found += matching
        return found

    def links(self, given: object, *, both: bool = False, what: str = "link") -> NDArray[np.int64]:
        """Return the numbers of the links that a choice names.

        Args:
            given: A link's number, or two nodes, which stand for all parallel links between them.
            both: Whether to include the links back. The link back of a numbered link is the one at the same
                position among the parallel links back.
            what: The field's name in messages.

        Raises:
            ValueError: There is no such node or link, or a text can be read in two ways.
        """
        choice = self._choice(given, what)
        if isinstance(choice, int):
            found = [choice, self._back(choice, what)] if both else [choice]
            return np.array(found, np.int64)
        src, dst = choice
        ways = [self._between(src, dst)] + ([self._between(dst, src)] if both else [])
        for way, (a, b) in zip(ways, ((src, dst), (dst, src)), strict=False):
            if not way.size:
                raise ValueError(self._no_link(a, b))
        return np.concatenate(ways)

    # Parsing of texts and pairs.

    def _find(self, given: object, what: str) -> int | None:
        """Return the node that a number or a text names, or None."""
        topology = self._topology
        if isinstance(given, int | np.integer) and not isinstance(given, bool):
            return int(given) if 0 <= given < topology.nodes else None
        if not isinstance(given, str):
            raise ValueError(f"{what} is {given!r}; it must be a node's number or name")  # noqa: TRY004, one kind of error for values from files, commands and calls
        text = given.strip()
        named = self._names.get(given, self._names.get(text))
        number = int(text) if re.fullmatch(r"0|[1-9][0-9]{0,9}", text) else None
        if number is not None and number >= topology.nodes:
            number = None
        if None not in (named, number) and named != number:
            raise ValueError(
                f"{what} is {given!r}, the name of node {named} and the number of node {number}; "
                f'write "#{named}" or "#{number}"'
            )
        if named is not None or number is not None:
            return named if named is not None else number
        printed = re.fullmatch(r"(#|npu ?|switch ?)([0-9]{1,10})", text)
        if printed is None or (printed[1] != "#" and self._names):
            return None
        switch = printed[1].startswith("switch")
        node = int(printed[2]) + (topology.npus if switch else 0)
        end = topology.npus if printed[1].startswith("npu") else topology.nodes
        return node if node < end else None

    def _choice(self, given: object, what: str) -> int | tuple[int, int]:
        count = self._topology.links
        if isinstance(given, tuple | list) and len(given) == 2:
            return self._end(given, 0, what), self._end(given, 1, what)
        number = given
        if isinstance(given, str):
            if not given.strip().isdecimal():
                return self._pair(given, what)
            number = int(given)
        if not isinstance(number, int | np.integer) or isinstance(number, bool):
            raise ValueError(f"{what} is {given!r}; it must be {_FORMS}")  # noqa: TRY004, as above
        if not 0 <= number < count:
            raise ValueError(f"{what} is {given!r}, but there is no such link; {_span(count)}")
        return int(number)

    def _end(self, pair: Any, place: int, what: str) -> int:
        found = self._find(pair[place], what)
        if found is None:
            count = self._topology.nodes
            raise ValueError(self._unknown(pair[place], what, "node", count, inside=pair))
        return found

    def _pair(self, text: str, what: str) -> tuple[int, int]:
        """Return the two nodes of a text, whose names may have dashes in them."""
        halves: list[tuple[str, str]] = []
        found: list[tuple[int | None, int | None]] = []
        pairs: set[tuple[int, int]] = set()
        for joint in ("->", "-"):
            if pairs:
                break
            splits = [match.span() for match in re.finditer(joint, text)]
            halves = [(text[:begin], text[end:]) for begin, end in splits] or halves
            found = [(self._find(a, what), self._find(b, what)) for a, b in halves]
            pairs = {(a, b) for a, b in found if a is not None and b is not None}
        if len(pairs) > 1:  # only one of them may have a link
            pairs = {pair for pair in pairs if self._between(*pair).size} or pairs
        if len(pairs) > 1:
            ways = " or ".join(f'"{self._called(a)}->{self._called(b)}"' for a, b in sorted(pairs))
            raise ValueError(f"{what} is {text!r}, which can be read in two ways; write {ways}")
        if pairs:
            return pairs.pop()
        for (a, b), (src, dst) in zip(halves, found, strict=True):
            if src is not None or dst is not None or len(halves) == 1:
                unknown = b if src is not None else a
                count = self._topology.nodes
                raise ValueError(self._unknown(unknown, what, "node", count, inside=text))
        raise ValueError(f"{what} is {text!r}; it must be {_FORMS}")

    # Lookup.

    def _between(self, src: int, dst: int) -> NDArray[np.int64]:
        topology = self._topology
        return np.flatnonzero((topology.link_src == src) & (topology.link_dst == dst))

    def _back(self, link: int, what: str) -> int:
        """Return the link back that belongs to a link."""
        src, dst = (int(c[link]) for c in (self._topology.link_src, self._topology.link_dst))
        place = int(np.searchsorted(self._between(src, dst), link))
        back = self._between(dst, src)
        if place >= len(back):
            raise ValueError(f"{what} is {link}, but it has no link back")
        return int(back[place])

    # Messages.

    def _called(self, node: int) -> str:
        return self._topology.names[node] if self._names else str(node)

    def _no_link(self, src: int, dst: int) -> str:
        topology = self._topology
        name = topology.node_name
        others = np.unique(topology.link_dst[topology.link_src == src])[: _SAMPLES + 1].tolist()
        some = ", ".join(name(other) for other in others[:_SAMPLES])
        more = ", …" if len(others) > _SAMPLES else ""
        hint = f"; {name(src)} has links to {some}{more}" if others else ""
        return f"there is no link from {name(src)} to {name(dst)}{hint}"

    def _unknown(
        self,
        given: object,
        what: str,
        kind: str,
        count: int,
        *,
        inside: object = None,
        listed: bool = False,
    ) -> str:
        sentence = f"{what} is {given!r}, but there is no such {kind}"
        if inside is not None:
            sentence = f"{what} is {inside!r}, but there is no {kind} {given!r}"
        names = list(self._names)[:count]
        close = nearest(given, names[:_SEARCHED]) if isinstance(given, str) else None
        if close is not None:
            return f"{sentence}; did you mean {close!r}?"
        sentence = f"{what} names {kind} {given!r}, but" if listed else f"{sentence};"
        # Three names are enough to show the pattern.
        shown = ", ".join(names[: _SAMPLES if len(names) > _SAMPLES + 1 else len(names)])
        more = ", …" if len(names) > _SAMPLES + 1 else ""
        hint = f", or by name {shown}{more}" if names else ""
        return f"{sentence} the {kind}s are 0 to {count - 1}{hint}"


_FORMS = "a link's number, or two nodes as in 0-1 or box0/npu0-fabric"


def _span(links: int) -> str:
    return f"the links are 0 to {links - 1}" if links else "the topology has no links"


def link_name(topology: Topology, link: int) -> str:
    """Format a link for people, by the nodes that it joins.

    >>> from tacos.topology import ring
    >>> link_name(ring(4), 1)
    'npu 1 -> npu 2'
    """
    ends = (int(topology.link_src[link]), int(topology.link_dst[link]))
    return " -> ".join(topology.node_name(end) for end in ends)


def link_of(topology: Topology, given: object, *, what: str = "link") -> int:
    """Return the number of one link.

    Raises:
        ValueError: There is no such link, or there are several between those nodes.

    >>> from tacos.topology import ring
    >>> link_of(ring(4), ("npu 1", 2))
    1
    """
    found = Nodes(topology).links(given, what=what).tolist()
    if len(found) > 1:
        numbers = ", ".join(map(str, found))
        raise ValueError(
            f"{what} is {given!r}, which stands for {len(found)} links; choose one: {numbers}"
        )
    return int(found[0])
