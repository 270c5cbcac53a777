"""The order in which a ring visits its NPUs, which decides how fast the ring is.

The cost of a hop is the time of one block: the latencies of its route plus bytes / bandwidth, where a link is
shared among all hops of the ring that use it. A ring is as fast as its longest hop; among equals, the sum of
all hops decides. The candidates are

- rank order;
- on grids, a Hamiltonian cycle of neighbours (a snake with a free lane for the return), if there is one;
- for groups of up to 512, a tour improved by 2-opt, from rank order and from nearest neighbours.

The cheapest one is chosen, so a search is never worse than rank order by this measure. All sums are
integers, so the result is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Meter
from tacos.nodes import Node, Nodes
from tacos.schedule import paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["Order", "hamiltonian_cycle", "ring_cost", "ring_order"]

Order = str | Sequence[Node]
"""How to order a ring: ``"search"``, ``"rank"``, or the NPUs in their order."""

CYCLIC = frozenset({"ring", "clique", "switch"})
LARGEST_SEARCH = 512
SWAPS_TRIED = 2**28
_PASSES = 12
"""How often a round of 2-opt reads its table of reversals."""


def ring_order(
    topology: Topology,
    group: NDArray[np.int32],
    order: Order = "search",
    *,
    block_bytes: int,
    both_ways: bool = False,
    progress: Callable[[float], object] | None = None,
) -> tuple[NDArray[np.int32], str]:
    """Return the group in ring order, and where that order comes from.

    Args:
        topology: The network.
        group: The NPUs in rank order.
        order: The order that the user asked for.
        block_bytes: Bytes that a hop carries at a time.
        both_ways: Whether data goes round in both directions.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> npus, origin = ring_order(tacos.topology.mesh(3, 2), np.arange(6), block_bytes=1000)
    >>> npus.tolist(), origin
    ([0, 1, 2, 5, 4, 3], 'hamiltonian cycle')
    """
    if not isinstance(order, str):
        nodes = Nodes(topology)
        given = [nodes.npu(npu, what="order") for npu in order]
        if len(given) != len(group) or set(given) != set(group.tolist()):
            raise ValueError(f"order is {order!r}; it must name each NPU of the group once")
        return np.array(given, np.int32), "given"
    if order not in {"search", "rank"}:
        raise ValueError(f'order must be one of "search", "rank" or a list of NPUs; got {order!r}')
    if order == "rank":
        return group, "rank"

    def cost(candidate: tuple[NDArray[np.int32], str]) -> tuple[int, int]:
        return ring_cost(topology, candidate[0], block_bytes=block_bytes, both_ways=both_ways)

    candidates = [(group, "rank")]
    if len(group) == topology.npus and (cycle := hamiltonian_cycle(topology.dims)) is not None:
        candidates.append((cycle, "hamiltonian cycle"))
    best = min(candidates, key=cost)
    cheapest = int(_link_costs(topology, block_bytes).min(initial=2**46))
    if len(group) > LARGEST_SEARCH or cost(best)[1] <= (1 + both_ways) * len(group) * cheapest:
        return best
    meter = Meter.of(progress)
    weight = _pairwise_weight(topology, group, block_bytes, meter)
    starts = np.arange(len(group)), _nearest_neighbours(weight)
    candidates += [(group[_two_opt(weight, start, meter)], "2-opt") for start in starts]
    return min(candidates, key=cost)


def ring_cost(
    topology: Topology, npus: NDArray[np.int32], *, block_bytes: int, both_ways: bool = False
) -> tuple[int, int]:
    """Return the picoseconds of the ring's longest hop and of all hops together, with shared links counted.

    >>> import tacos
    >>> ring = tacos.topology.ring(4, bandwidth="1GB/s", latency="1us")
    >>> ring_cost(ring, np.array([0, 1, 2, 3]), block_bytes=1000)       # 1 us + 1 us
    (2000000, 8000000)
    >>> ring_cost(ring, np.array([0, 2, 1, 3]), block_bytes=1000)[0]    # 0 -> 2 shares with 1 -> 3
    4000000
    """
    if len(npus) == 1:
        return 0, 0
    src, dst = npus, np.roll(npus, -1)
    if both_ways:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    cost = _hop_costs(topology, src, dst, block_bytes, shared=True)
    return int(cost.max()), int(cost.sum())


def hamiltonian_cycle(dims: Sequence[tuple[str, int]]) -> NDArray[np.int32] | None:
    """Return a cycle through all NPUs of a grid along its dimensions, or None if there is none.

    A path that snakes through all dimensions but one makes the grid two-dimensional. With an even
    side, snake through all columns but the first and come back along that one. With odd sides,
    a side that closes on itself lets the last row end next to the first column.

    >>> hamiltonian_cycle([("line", 3), ("line", 2)]).tolist()
    [0, 1, 2, 5, 4, 3]
    >>> hamiltonian_cycle([("line", 3), ("line", 3)]) is None
    True
    """
    stride = np.cumprod([1, *(size for _, size in dims)])
    sides = [(kind, size, int(at)) for (kind, size), at in zip(dims, stride, strict=False)]
    sides = [side for side in sides if side[1] > 1]
    if any(kind not in CYCLIC and kind != "line" for kind, _, _ in sides) or not sides:
        return None
    closing = [s for s in sides if s[1] % 2 == 0] or [s for s in sides if s[0] in CYCLIC]
    if len(sides) == 1:
        kind, size, _ = sides[0]
        return np.arange(size, dtype=np.int32) if kind in CYCLIC or size == 2 else None
    if not closing:
        return None
    # Choose the last, so that a ring crosses the outermost dimension least often.
    last = closing[-1]
    path = _snake([side for side in sides if side is not last])
    if last[1] % 2:
        rows, columns = path, np.arange(last[1]) * last[2]
    else:
        rows, columns = np.arange(last[1]) * last[2], path
    grid = rows[:, None] + columns
    inner = grid[:, 1:].copy()
    inner[1::2] = inner[1::2, ::-1]
    return np.concatenate([grid[:1, 0], inner.ravel(), grid[:0:-1, 0]]).astype(np.int32)


def _snake(sides: Sequence[tuple[str, int, int]]) -> NDArray[Any]:
    """Return a path through all places of a grid, one step along one side at a time."""
    path = np.zeros(1, np.int64)
    for _, size, stride in sides:
        rows = np.tile(path, (size, 1))
        rows[1::2] = rows[1::2, ::-1]
        path = (rows + np.arange(size)[:, None] * stride).ravel()
    return path


def _link_costs(topology: Topology, block_bytes: int, load: NDArray[Any] | int = 1) -> NDArray[Any]:
    """Return the picoseconds of a block on each link, which `load` blocks share."""
    time = np.ceil(np.float64(block_bytes) * 1e12 * load / topology.link_bandwidth_Bps)
    return np.minimum(time, 2.0**46).astype(np.int64) + topology.link_latency_ps


def _hop_costs(
    topology: Topology, src: NDArray[Any], dst: NDArray[Any], block_bytes: int, *, shared: bool
) -> NDArray[Any]:
    table = paths(topology, (src, dst))
    load = np.bincount(table.links, minlength=topology.links) if shared else 1
    latency = topology.link_latency_ps[table.links]
    transmission = _link_costs(topology, block_bytes, load)[table.links] - latency
    first = table.link_begin[:-1]
    return np.add.reduceat(latency, first) + np.maximum.reduceat(transmission, first)


def _pairwise_weight(
    topology: Topology, group: NDArray[Any], block_bytes: int, meter: Meter
) -> NDArray[Any]:
    """Return the weight of a hop from i to j in the sum that 2-opt minimizes.

    The fourth power lets one long hop outweigh several short ones.
    """
    n = len(group)
    meter.spend(n**2 * Meter.TRANSFER)
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    cost = _hop_costs(topology, group[i], group[j], block_bytes, shared=False)
    weight = np.zeros((n, n), np.int64)
    weight[i, j] = np.minimum(cost * 16 // max(int(cost.min()), 1), 2**12) ** 4
    return weight


def _nearest_neighbours(weight: NDArray[Any]) -> NDArray[Any]:
    """Return the nearest-neighbour tour from place 0."""
    n = len(weight)
    tour, free = [0], np.ones(n, bool)
    for _ in range(n - 1):
        free[tour[-1]] = False
        tour.append(int(np.where(free, weight[tour[-1]], 2**62).argmin()))
    return np.array(tour)


def _two_opt(weight: NDArray[Any], tour: NDArray[Any], meter: Meter) -> NDArray[Any]:
    """Reverse the section of the tour that gains most, until no reversal gains anything."""
    n = len(tour)
    stretch = np.triu(np.ones((n, n), bool), 1)
    stretch[0] = False
    rounds = max(1, SWAPS_TRIED // n**2)
    for turn in range(rounds):
        meter(turn / rounds)
        meter.spend(_PASSES * n**2 * Meter.CELL + 100 * Meter.STEP)
        after = np.roll(tour, -1)
        ahead = np.cumsum(np.append(0, weight[tour, after]))
        back = np.cumsum(np.append(0, weight[after, tour]))
        # Reversing places i … j gives new hops (i-1 → j) and (i → j+1), and reverses those between.
        before = np.roll(tour, 1)
        change = weight[before[:, None], tour] + weight[tour[:, None], after]
        change -= ahead[1:] - np.append(0, ahead[: n - 1])[:, None]
        change += back[:n] - back[:n, None]
        change[~stretch] = 0
        i, j = divmod(int(change.argmin()), n)
        if change[i, j] >= 0:
            break
        tour = np.concatenate([tour[:i], tour[i : j + 1][::-1], tour[j + 1 :]])
    return tour
