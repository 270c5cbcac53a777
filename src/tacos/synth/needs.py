"""What each baseline needs of a network and a collective, in words for people who lack it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tacos.collective import kind_of, labels
from tacos.schedule import routes

if TYPE_CHECKING:
    from tacos._core import Collective, CollectivePart, Topology
    from tacos.collective import Kind

__all__ = ["Dims", "check", "obstacle"]

Dims = Sequence[tuple[str, int]]
"""Kind and size of each dimension."""

DIMENSIONS = frozenset({"ring", "line", "clique", "switch", "box"})
_KINDS: dict[str, Callable[[Kind], bool]] = {
    "one-shot": lambda kind: kind.two_phases,
    "double-binary-tree": lambda kind: kind.spreads and (kind.rooted or kind.two_phases),
    "c-cube": lambda kind: kind.spreads and (kind.rooted or kind.two_phases),
    "2d-ring": lambda kind: kind.two_phases,
    "parameter-server": lambda kind: kind.two_phases,
    "themis": lambda kind: kind.spreads and not kind.rooted,
    "multitree": lambda kind: kind.spreads,
}
_ON_GRIDS = {"hierarchical", "swing", "themis", "2d-ring"}
_MOST_HOPS = 2 * 10**7  # a few seconds' and gigabytes' worth
_MOST_TREES = 1024  # two seconds' worth on a torus, ten through a switch


def obstacle(
    name: str, topology: Topology, collective: Collective, dims: Dims | None = None
) -> str:
    """What the baseline needs and does not find, or nothing; `dims` in place of the topology's.

    >>> import tacos
    >>> topo = tacos.topology.ring(6)
    >>> obstacle("swing", topo, tacos.collective.all_reduce(topo, "1MB"))
    'a torus whose sizes are powers of two, not ring 6'
    """
    dims = topology.dims if dims is None else dims
    for part in collective.parts:
        members, kind = len(part.group), part.label
        if name == "nccl":
            if kind_of(part).listed and part.kind != "send_recv":
                return f"a collective that NCCL has, not {kind}"
            continue
        if (serves := _KINDS.get(name)) is not None and not serves(kind_of(part)):
            return f"{' or '.join(sorted(labels(serves)))}, not {kind}"
        if not members and name != "direct":
            return f"a collective of a group, not {kind}"
        if (hops := _hops(name, topology, part)) > _MOST_HOPS:
            return f"an {kind} of fewer NPUs: {members} take {hops:.0e} hops"
        if name == "multitree" and members > _MOST_TREES:
            return f"a group of at most {_MOST_TREES} NPUs, not {members}"
        if name in _ON_GRIDS and members != topology.npus:
            return f"all {topology.npus} NPUs, not a group of {members}"
    if name in _ON_GRIDS and (
        not dims
        or any(kind not in DIMENSIONS or size < 1 for kind, size in dims)
        or prod(size for _, size in dims) != topology.npus
    ):
        kinds = ", ".join(sorted(DIMENSIONS))
        return f"dimensions ({kinds}) that hold {topology.npus} NPUs, not {_shape(dims)}"
    if name == "swing" and any(kind != "ring" or size & (size - 1) for kind, size in dims):
        return f"a torus whose sizes are powers of two, not {_shape(dims)}"
    if name == "2d-ring":
        lines = [kind in {"ring", "line"} for kind, size in dims if size > 1]
        return (
            ""
            if lines == [True, True]
            else f"a torus or mesh of two dimensions, not {_shape(dims)}"
        )
    return _themis_obstacle(topology, collective) if name == "themis" else ""


def _shape(dims: Dims) -> str:
    return " x ".join(f"{kind} {size}" for kind, size in dims) or "a network without dimensions"


def _hops(name: str, topology: Topology, part: CollectivePart) -> int:
    """How many hops the transfers make together, of those that may be too many."""
    members, chunks = len(part.group), max(part.chunks, 1)
    if name in {"ring", "bidirectional-ring"} and kind_of(part).per_pair:
        return members**3
    if name == "one-shot":
        return members**3 * chunks
    if name == "parameter-server" and members > 1:
        ways = routes(topology, pairs=(part.group[1:], np.repeat(part.group[:1], members - 1)))
        return 2 * members * chunks * len(ways.links)
    return 0


def _themis_obstacle(topology: Topology, collective: Collective) -> str:
    if not topology.symmetric:
        return "a network that is the same from every NPU: rings, cliques, switches and products"
    if len(collective.parts) != 1:
        return f"one collective, not {len(collective.parts)} at once"
    part = collective.parts[0]
    chunks = topology.npus * max(part.chunks, 1)
    return f"a byte for each of {chunks} chunks, not {part.size}" if part.size < chunks else ""


def check(name: str, topology: Topology, collective: Collective, dims: Dims | None = None) -> None:
    """Refuse what the baseline cannot do.

    Raises:
        ValueError: One sentence that says what is missing.

    >>> import tacos
    >>> check("bruck", tacos.topology.ring(6), tacos.collective.all_gather(8, "1MB"))
    Traceback (most recent call last):
        ...
    ValueError: the collective is for 8 NPUs, the topology has 6
    """
    if collective.npus != topology.npus:
        raise ValueError(
            f"the collective is for {collective.npus} NPUs, the topology has {topology.npus}"
        )
    if needed := obstacle(name, topology, collective, dims):
        raise ValueError(f"{name} needs {needed}")
