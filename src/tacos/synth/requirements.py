"""What engines commonly need of a network and a collective, in words for users whose problem lacks it.

Each function returns one thing that is missing, or an empty string. An engine's obstacle is the first of those that it asks for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacos._core import Collective, CollectivePart, Topology

__all__ = ["Dims", "dimensions", "few_hops", "kind", "listed_kinds", "members", "one_part", "shape"]

Dims = Sequence[tuple[str, int]]
"""Kind and size of each dimension."""

_DIMENSIONS = frozenset({"ring", "line", "clique", "switch", "box"})
_MOST_HOPS = 2 * 10**7
"""Hops of a schedule at most: a few seconds and gigabytes."""


def kind(part: CollectivePart, allowed: Collection[str] = ()) -> str:
    """One of the kinds; any that has a group if none are given.

    >>> import tacos
    >>> kind(tacos.collective.broadcast(4, "1KB").parts[0], {"all_reduce"})
    'all-reduce, not broadcast'
    """
    if part.kind in allowed or (not allowed and len(part.group)):
        return ""
    needed = " or ".join(sorted(allowed)).replace("_", "-") or "a collective of a group"
    return f"{needed}, not {part.kind.replace('_', '-')}"


def listed_kinds(part: CollectivePart, allowed: Sequence[str]) -> str:
    """One of several kinds, listed in their order.

    >>> import tacos
    >>> listed_kinds(tacos.collective.gather(4, "1KB").parts[0], ["broadcast", "all_reduce", "reduce"])
    'broadcast, all-reduce or reduce, not gather'
    """
    if part.kind in allowed:
        return ""
    return f"{', '.join(allowed[:-1])} or {allowed[-1]}, not {part.kind}".replace("_", "-")


def few_hops(part: CollectivePart, hops: int) -> str:
    """A schedule whose transfers make few hops together.

    >>> import tacos
    >>> few_hops(tacos.collective.all_reduce(4096, "1GB", chunks=1).parts[0], 4096**3)
    'an all-reduce of fewer NPUs: 4096 take 7e+10 hops'
    """
    if hops <= _MOST_HOPS:
        return ""
    return f"an {part.kind.replace('_', '-')} of fewer NPUs: {len(part.group)} take {hops:.0e} hops"


def one_part(collective: Collective) -> str:
    """A single collective.

    >>> import tacos
    >>> one_part(tacos.collective.all_reduce(4, "1GB"))
    ''
    """
    parts = len(collective.parts)
    return "" if parts == 1 else f"one collective, not {parts} at once"


def members(topology: Topology, part: CollectivePart) -> str:
    """A group of all NPUs.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> members(ring, tacos.collective.all_reduce(ring, "1GB", group=[0, 1]).parts[0])
    'all 4 NPUs, not a group of 2'
    """
    count = len(part.group)
    return "" if count == topology.npus else f"all {topology.npus} NPUs, not a group of {count}"


def dimensions(topology: Topology, dims: Dims) -> str:
    """Known dimensions whose product is the number of NPUs.

    >>> import tacos
    >>> dimensions(tacos.topology.ring(6), [("ring", 4)])
    'dimensions (box, clique, line, ring, switch) that hold 6 NPUs, not ring 4'
    """
    known = all(name in _DIMENSIONS and size >= 1 for name, size in dims)
    if dims and known and prod(size for _, size in dims) == topology.npus:
        return ""
    kinds = ", ".join(sorted(_DIMENSIONS))
    return f"dimensions ({kinds}) that hold {topology.npus} NPUs, not {shape(dims)}"


def shape(dims: Dims) -> str:
    """The dimensions in words.

    >>> shape([("ring", 4), ("line", 2)])
    'ring 4 x line 2'
    """
    return " x ".join(f"{name} {size}" for name, size in dims) or "a network without dimensions"
