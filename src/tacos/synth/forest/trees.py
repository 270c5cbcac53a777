"""Trees that carry as much as the narrowest cut allows, found by the core or through a linear program."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import all_alike, pack_forest, pack_orbits
from tacos.synth.forest.logical import forest_through_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Forest, Topology

__all__ = [
    "Packed",
    "Packing",
    "general_packing",
    "packing",
    "root_rate_Bps",
    "suited_chunks",
    "used",
]


@dataclass(frozen=True, slots=True)
class Packing:
    """Trees from roots to all members of a group, with the rates they carry.

    Attributes:
        trees: The trees as columns. If they have a ``node_image``, they are those of NPU 0, and the trees of
            other NPUs are their images.
        members: The NPUs that the trees reach.
        roots: The NPUs where the trees start.
        cut_Bps: The rate that the narrowest cut allows every root, in bytes per second.
    """

    trees: Forest
    members: NDArray[np.int32]
    roots: NDArray[np.int32]
    cut_Bps: float

    @property
    def rate_Bps(self) -> float:
        """The rate of every root, in bytes per second."""
        return root_rate_Bps(self.trees) * self.trees.rate

    @property
    def algbw_Bps(self) -> float:
        """Size over time of a large all-gather (or broadcast, with one root)."""
        return self.rate_Bps * len(self.roots)

    @property
    def height(self) -> int:
        """Largest number of hops from a root to a leaf."""
        return int(self.trees.depth.max(initial=0))


def packing(
    topology: Topology,
    *,
    group: NDArray[Any] | list[int] | None = None,
    root: int | None = None,
    progress: Callable[[float], object] | None = None,
) -> Packing:
    """Return trees that carry as much as the narrowest cut allows.

    Args:
        topology: Any network.
        group: The NPUs that take part; all if not given. Others only relay.
        root: The only NPU that sends; by default all members send at the same rate.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: A member cannot be reached; the message names it.
        ValueError: The root is not a member.

    >>> import tacos
    >>> found = packing(tacos.topology.switch(16, bandwidth="900GB/s"))
    >>> found.algbw_Bps / 1e9, found.height
    (960.0, 1)
    """
    members: NDArray[np.int32] = np.asarray(
        np.arange(topology.npus) if group is None else group, np.int32
    )
    roots = members if root is None else np.array([root], np.int32)
    all_npus = len(np.unique(members)) == topology.npus == len(members)
    if root is None and all_npus and all_alike(topology):
        trees = pack_orbits(topology, progress)
        if trees is not None:
            return Packing(trees, members, roots, root_rate_Bps(trees))
    return general_packing(topology, members, roots, 0.0, progress)


Packed = dict[str, Packing | None]
"""Trees by their use: "spread" or "collect", plain, with " slack", or with " orbit" (images of a few trees);
"both ways" for all-reduces. None if there are none."""


def general_packing(
    topology: Topology,
    members: NDArray[np.int32],
    roots: NDArray[np.int32],
    slack: float,
    progress: Callable[[float], object] | None,
) -> Packing:
    """Return trees of all roots in any network."""
    amounts = np.ones(len(roots), np.int64)

    def pack(network: Topology) -> Forest:
        return pack_forest(network, members, roots, amounts, slack, progress)

    trees = pack(topology)
    found = Packing(trees, members, roots, root_rate_Bps(trees))
    if trees.rate < 1 and (better := forest_through_program(topology, members, roots, pack)):
        other = Packing(better, members, roots, found.cut_Bps)
        return max(found, other, key=lambda one: one.rate_Bps)
    return found


def root_rate_Bps(trees: Forest) -> float:
    """Return the bytes per second that a root sends if the trees carry all of it."""
    return trees.demand_weight * trees.unit_Bps / trees.unit_parts


def suited_chunks(chunks: int, packed: Packed) -> int:
    """Return a number of chunks near the given one that gives every tree exactly its share.

    Args:
        chunks: Approximate number of chunks.
        packed: The trees that :func:`forest` has found.

    >>> import tacos
    >>> from tacos.synth.forest import forest
    >>> packed: Packed = {}
    >>> topo = tacos.topology.dgx1()    # some trees carry a sixth of what their root sends
    >>> _ = forest(topo, tacos.collective.all_gather(topo, "1MB", chunks=1), memory=packed)
    >>> [suited_chunks(chunks, packed) for chunks in (1, 4, 16)]
    [1, 6, 18]
    """
    whole = 1
    for found in used(packed, " slack") or used(packed, ""):
        trees = found.trees
        whole = lcm(whole, trees.demand_weight // int(np.gcd.reduce(trees.weight)))
    return -(-chunks // whole) * whole if 3 * chunks >= 2 * whole else chunks


def used(known: Packed, way: str) -> list[Packing]:
    """Return the packings of one kind that exist: for spreading, and for collecting."""
    found = (known.get(f"{what}{way}") for what in ("spread", "collect"))
    return [one for one in found if one is not None]
