"""Common requirements of engines on a network and a collective, in words for users.

Each function returns a requirement that is not met, or an empty string. An engine's obstacle is the first of its
requirements that is not met.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from tacos.collective import kind_of, labels

if TYPE_CHECKING:
    from tacos._core import Collective, CollectivePart, Topology
    from tacos.collective import Kind

__all__ = [
    "Dims",
    "boxed",
    "dimensions",
    "few_hops",
    "kind",
    "listed_kinds",
    "members",
    "one_part",
    "shape",
]

Dims = Sequence[tuple[str, int]]
"""Kind and size of each dimension."""

_DIMENSIONS = frozenset({"ring", "line", "clique", "switch", "box"})
_MOST_HOPS = 2 * 10**7
"""Largest number of hops of a schedule: a few seconds and gigabytes."""


def kind(part: CollectivePart, serves: Callable[[Kind], bool] = lambda _: True) -> str:
    """Require one of the kinds of collectives that the engine serves, on a group.

    >>> import tacos
    >>> kind(tacos.collective.broadcast(4, "1KB").parts[0], lambda kind: kind.two_phases)
    'all-reduce, not broadcast'
    """
    if not serves(kind_of(part)):
        return f"{' or '.join(sorted(labels(serves)))}, not {part.label}"
    return "" if len(part.group) else f"a collective of a group, not {part.label}"


def listed_kinds(part: CollectivePart, serves: Callable[[Kind], bool]) -> str:
    """Require one of these kinds, listed in the order of the table of kinds, with or without a group.

    >>> import tacos
    >>> listed_kinds(tacos.collective.gather(4, "1KB").parts[0], lambda kind: kind.spreads)
    'all-gather, reduce-scatter, all-reduce, broadcast or reduce, not gather'
    """
    if serves(kind_of(part)):
        return ""
    *names, last = labels(serves)
    return f"{', '.join(names)} or {last}, not {part.label}"


def few_hops(part: CollectivePart, hops: int) -> str:
    """Require a schedule with few hops in total.

    >>> import tacos
    >>> few_hops(tacos.collective.all_reduce(4096, "1GB", chunks=1).parts[0], 4096**3)
    'an all-reduce of fewer NPUs: 4096 take 7e+10 hops'
    """
    if hops <= _MOST_HOPS:
        return ""
    return f"an {part.label} of fewer NPUs: {len(part.group)} take {hops:.0e} hops"


def one_part(collective: Collective) -> str:
    """Require a single collective.

    >>> import tacos
    >>> one_part(tacos.collective.all_reduce(4, "1GB"))
    ''
    """
    parts = len(collective.parts)
    return "" if parts == 1 else f"one collective, not {parts} at once"


def members(topology: Topology, part: CollectivePart) -> str:
    """Require a group of all NPUs.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> members(ring, tacos.collective.all_reduce(ring, "1GB", group=[0, 1]).parts[0])
    'all 4 NPUs, not a group of 2'
    """
    count = len(part.group)
    return "" if count == topology.npus else f"all {topology.npus} NPUs, not a group of {count}"


def dimensions(topology: Topology, dims: Dims) -> str:
    """Require known dimensions whose product is the number of NPUs.

    >>> import tacos
    >>> dimensions(tacos.topology.ring(6), [("ring", 4)])
    'dimensions (box, clique, line, ring, switch) that hold 6 NPUs, not ring 4'
    """
    known = all(name in _DIMENSIONS and size >= 1 for name, size in dims)
    if dims and known and prod(size for _, size in dims) == topology.npus:
        return ""
    kinds = ", ".join(sorted(_DIMENSIONS))
    return f"dimensions ({kinds}) that hold {topology.npus} NPUs, not {shape(dims)}"


def boxed(topology: Topology) -> Dims:
    """Return the topology's dimensions or, if it has none, those implied by the names of its NPUs: equal boxes, one after another.

    >>> import tacos
    >>> names = ["a/gpu0", "a/gpu1", "b/gpu0", "b/gpu1", "tor"]
    >>> rows = [(npu, 4, "50GB/s", "1us") for npu in range(4)] + [(4, npu, "50GB/s", "1us") for npu in range(4)]
    >>> boxed(tacos.topology.from_links(4, rows, switches=1, names=names))
    [('box', 2), ('switch', 2)]
    """
    if topology.dims or not topology.names:
        return topology.dims
    homes = [name.rpartition("/")[0] for name in topology.names[: topology.npus]]
    order = list(dict.fromkeys(homes))
    size = topology.npus // len(order)
    if len(order) < 2 or "" in order or homes != [home for home in order for _ in range(size)]:
        return topology.dims
    return [("box", size), ("switch" if topology.switches else "box", len(order))]


def shape(dims: Dims) -> str:
    """Return the dimensions in words.

    >>> shape([("ring", 4), ("line", 2)])
    'ring 4 x line 2'
    """
    return " x ".join(f"{name} {size}" for name, size in dims) or "a network without dimensions"
