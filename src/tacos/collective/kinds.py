"""The one table of kinds of collectives.

To add a kind, write a module in this package with a function that lists its blocks, and add an entry to ``_LISTED``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tacos._core import collective_kinds
from tacos.collective.kind import Kind
from tacos.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import CollectivePart

__all__ = ["KINDS", "kind_of", "labels", "parse", "register"]

_LISTED: tuple[Kind, ...] = ()
"""The kinds that list their blocks."""

KINDS: dict[str, Kind] = {row["name"]: Kind(**row) for row in collective_kinds()} | {
    kind.name: kind for kind in _LISTED
}
"""All kinds by name."""


def register(kind: Kind) -> Kind:
    """Add a kind that lists its blocks; it works in Python and on the command line from then on.

    Raises:
        ValueError: The name is taken or has other characters than lowercase letters, digits and ``_``, or the kind has no ``rows``.

    >>> from tacos.collective import Row
    >>> def rows(members, size, root):    # every member sends its buffer to the next one
    ...     return [Row(size, [a], [b]) for a, b in zip(members, [*members[1:], members[0]])]
    >>> shift = register(Kind(name="shift", rows=rows))
    >>> from tacos import collective
    >>> collective.named("shift", 4, "1MB", chunks=2)
    <tacos.Collective shift of 1000000 B, 8 chunks>
    >>> del KINDS["shift"]
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", kind.name):
        raise ValueError(
            f"the name of a kind must have at most 64 lowercase letters, digits and _; got {kind.name!r}"
        )
    if kind.rows is None or not kind.listed:
        raise ValueError(f"the kind {kind.name} needs rows, a function that lists its blocks")
    if _squeezed(kind.name) in {_squeezed(name) for name in KINDS}:
        raise ValueError(f"the kind {kind.name} exists already")
    KINDS[kind.name] = kind
    return kind


def parse(text: str) -> Kind:
    """Return the kind that a text names, with ``-``, ``_`` or neither.

    Raises:
        ValueError: There is no such kind, or it takes more than a group and a size.

    >>> parse("all-reduce").name, parse("AllReduce").name, parse("reduce_scatter").label
    ('all_reduce', 'all_reduce', 'reduce-scatter')
    """
    wanted = _squeezed(text)
    for kind in KINDS.values():
        if _squeezed(kind.name) == wanted and _by_name(kind):
            return kind
    names = labels()
    close = nearest(text.replace("_", "-").lower(), names)
    hint = f'did you mean "{close}"? It must be' if close else "expected"
    raise ValueError(f'unknown collective "{text}"; {hint} one of {", ".join(names)}')


def labels(which: Callable[[Kind], bool] = lambda _: True) -> list[str]:
    """Return the labels of the kinds that :func:`parse` knows and that `which` selects.

    >>> labels(lambda kind: kind.reduces)
    ['reduce-scatter', 'all-reduce', 'reduce']
    """
    return [kind.label for kind in KINDS.values() if _by_name(kind) and which(kind)]


def kind_of(part: CollectivePart) -> Kind:
    """Return the record of a part's kind.

    A file may hold a kind that is not in the table; its part lists all blocks, so it is treated as a custom one.

    >>> from tacos import collective
    >>> kind_of(collective.broadcast(4, "1MB").parts[0]).rooted
    True
    """
    return KINDS.get(part.kind) or replace(KINDS["custom"], name=part.kind)


def _by_name(kind: Kind) -> bool:
    """Return whether a group, a size and perhaps a root define the collective."""
    return kind.even or kind.rows is not None


def _squeezed(text: str) -> str:
    return re.sub(r"[-_ ]", "", text.lower())
