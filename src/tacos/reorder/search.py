"""Search for an order, and lower bounds for all orders. The loops and the theory are in ``cpp/order``.

Costs are converted to integers of up to 13 digits, so that sums are exact and equal on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import OrderProblem, assignment_bound, one_tree_bound, tour_search
from tacos.schedule import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tacos.reorder.costs import Costs
    from tacos.reorder.patterns import Term

    Ints = NDArray[np.int64]

__all__ = ["Found", "OrderingProblem", "cost_of", "solve"]

_DIGITS = 13
_EXACT_HOSTS = 12
_EXACT_NODES = 20_000_000
"""Nodes of branch and bound: about 5 s."""
_TOUR_WORK, _TOUR_WORK_PER_HOST = 20_000_000, 60_000
"""Hops that a tour search examines, about 2 ns each (measured)."""
_PLACE_WORK = 60_000_000
"""Messages that a search by swaps examines, about 15 ns each (measured)."""
_SHORT = 0.005
"""Share of the effort for finding an initial order for branch and bound."""
_TREE_STEPS, _LEAST_ROUNDS, _MOST_ROUNDS = 6 * 10**8, 400, 10_000
"""Pairs that the one-trees of a bound examine, and the least and the largest number of rounds."""
_MOST_GROUPS, _MOST_PARTS = 12, 8
"""Most different steps whose subsets a bound enumerates, and most partitions of the hosts."""
_POWER = 4
_TIGHTENINGS = 6
_TURNS_TRIED = 1024


@dataclass(frozen=True)
class OrderingProblem:
    """The problem: find the order of hosts in which some terms are fastest."""

    costs: Costs
    terms: list[Term]
    latency: bool
    """Whether latencies count."""
    turns: bool
    """Whether rotating an order does not change its time."""


@dataclass(frozen=True)
class Found:
    """An order of hosts, its cost and its bound in seconds."""

    order: tuple[int, ...]
    cost: float
    cost_before: float
    lower_bound: float

    def unchanged(self) -> Found:
        """Return the given order with its cost, instead of the one found."""
        return replace(self, order=tuple(range(len(self.order))), cost=self.cost_before)


def solve(
    problem: OrderingProblem,
    *,
    seed: int,
    effort: float,
    progress: Callable[[float], object] | None,
) -> Found:
    """Return the best order found, never worse than the given one."""
    model = _Model(problem)
    given = np.arange(model.n, dtype=np.int32)
    before = model.problem.cost(given)
    proven = False
    if model.n <= _EXACT_HOSTS:
        start, _ = model.search(seed, effort * _SHORT, progress)
        nodes = int(_EXACT_NODES * effort)
        best, cost, proven = model.problem.exact(
            start, fixed=problem.turns, nodes=nodes, progress=progress
        )
    if not proven:
        found, least = model.search(seed, effort, progress)
        if model.n > _EXACT_HOSTS or least < cost:
            best, cost = found, least
    bound = cost if proven else min(model.lower_bound(progress), cost)
    if before <= cost:
        best, cost = given, before
    elif problem.turns:  # rank 0 stays where it is
        best = np.roll(best, -int(np.flatnonzero(np.asarray(best) == 0)[0]))
        other = np.ascontiguousarray(np.roll(best[::-1], 1))
        if other[1] < best[1] and model.problem.cost(other) == cost:
            best = other
    return Found(
        tuple(np.asarray(best).tolist()),
        cost * model.unit,
        before * model.unit,
        bound * model.unit,
    )


def cost_of(problem: OrderingProblem, order: Sequence[int]) -> float:
    """Return the seconds of an order of the hosts."""
    model = _Model(problem)
    return model.problem.cost(np.array(order, np.int32)) * model.unit


class _Model:
    """A problem with integer costs."""

    def __init__(self, problem: OrderingProblem) -> None:
        costs, self.terms = problem.costs, problem.terms
        self.turns = problem.turns
        self.n = n = len(costs.names)
        sizes = sorted({term.bytes for term in self.terms})
        latency = costs.latency_s if problem.latency else np.zeros((n, n))
        byte_s = costs.byte_s if costs.byte_s is not None else np.zeros((n, n))
        largest = float(latency.max()) + sizes[-1] * float(byte_s.max())
        # Scale by a power of ten, which keeps round numbers round.
        self.unit = 10.0 ** (math.ceil(math.log10(max(largest, 1e-290))) - _DIGITS)
        self.latency = self._whole(latency)
        self.bytes = [self._whole(byte_s * size) for size in sizes]
        self.size_class = [sizes.index(term.bytes) for term in self.terms]
        self.pair = self.bytes
        route_begin, route_links = np.zeros(0, np.int64), np.zeros(0, np.int32)
        link_bytes: list[Ints] = []
        if costs.network is not None and sizes[-1] > 0:
            route_begin, route_links, once, expected = self._routes(costs)
            link_bytes = [self._whole(once * size) for size in sizes]
            self.pair = [self._whole(expected * size) for size in sizes]
        self.problem = OrderProblem(
            n,
            src=np.concatenate([term.src for term in self.terms]).astype(np.int32),
            dst=np.concatenate([term.dst for term in self.terms]).astype(np.int32),
            term_begin=np.cumsum([0, *(len(term.src) for term in self.terms)]).astype(np.int64),
            size_class=np.array(self.size_class, np.int32),
            weight=np.array([term.weight for term in self.terms], np.int64),
            ring=np.array([term.ring for term in self.terms], np.uint8),
            latency_counts=np.array([term.latency for term in self.terms], np.uint8),
            latency=self.latency.ravel(),
            bytes=[row.ravel() for row in self.bytes],
            route_begin=route_begin,
            route_links=route_links,
            link_bytes=link_bytes,
        )

    def _whole(self, seconds: NDArray[np.float64]) -> Ints:
        return np.ascontiguousarray(np.rint(seconds / self.unit), np.int64)

    def _routes(self, costs: Costs) -> tuple[Ints, NDArray[np.int32], Any, Any]:
        """Return the routes between all hosts, and the seconds per byte of each link and of each pair in a random order.

        In a random order, a link carries a share of n simultaneous messages: the share of all pairs that pass it.
        """
        network, n = costs.network, self.n
        assert network is not None
        npus = np.array(costs.npus, np.int32)
        i, j = np.nonzero(~np.eye(n, dtype=bool))
        table = paths(network, (npus[i], npus[j]))
        lengths = np.zeros(n * n, np.int64)
        lengths[i * n + j] = np.diff(table.link_begin)
        begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        links = np.ascontiguousarray(table.links, np.int32)
        once = 1 / network.link_bandwidth_Bps.astype(float)
        load = np.maximum(np.bincount(links, minlength=network.links) / (n - 1), 1)
        expected = np.zeros((n, n))
        expected[i, j] = np.maximum.reduceat((once * load)[links], table.link_begin[:-1])
        return begin, links, once, expected

    def hop(self, term: int, pair: list[Ints]) -> Ints:
        """Return the time of a term's message, from host to host."""
        bytes_ = pair[self.size_class[term]]
        return bytes_ + self.latency if self.terms[term].latency else bytes_

    # --- search

    def search(
        self, seed: int, effort: float, progress: Callable[[float], object] | None
    ) -> tuple[NDArray[np.int32], int]:
        """Return the best of the given order, tours, and their improvements by swaps."""
        self._best = np.arange(self.n, dtype=np.int32)
        self._cost = self.problem.cost(self._best)
        if self.n < 3:
            if self.n == 2:
                self._consider(self._best[::-1])
            return self._best, self._cost
        tours = self._tours(seed, effort, progress)
        if all(term.ring for term in self.terms):
            self._tighten(seed, effort, progress)
            return self._best, self._cost
        for tour in tours:
            step = max(1, self.n // _TURNS_TRIED)
            for turn in range(0, self.n, step):
                for way in (1, -1):
                    self._consider(np.roll(tour, -turn)[::way])
        work = int(_PLACE_WORK * effort / 2)
        for start in (self._best, np.arange(self.n, dtype=np.int32)):
            self._consider(
                self.problem.place_search(
                    [row.ravel() for row in self.pair],
                    np.ascontiguousarray(start, np.int32),
                    seed=seed,
                    work=work,
                    progress=progress,
                )
            )
        return self._best, self._cost

    def _consider(self, order: NDArray[np.int32]) -> bool:
        order = np.ascontiguousarray(order, np.int32)
        cost = self.problem.cost(order)
        if cost >= self._cost:
            return False
        self._best, self._cost = order, cost
        return True

    def _tours(
        self, seed: int, effort: float, progress: Callable[[float], object] | None
    ) -> list[NDArray[np.int32]]:
        """Return short closed tours, by the sum of hops and by a sum that emphasizes long hops."""
        heaviest = max(range(len(self.terms)), key=lambda k: self.terms[k].bytes)
        hop = self.hop(heaviest, self.pair)
        if self.terms[heaviest].ring and len(self.terms[heaviest].src) == 2 * self.n:
            hop = hop + hop.T
        self.tour_hop = hop
        scaled = np.minimum(hop * 16 // max(int(hop[hop > 0].min(initial=10**_DIGITS)), 1), 2**12)
        # If only the mean of the hops counts, the plain sum suffices.
        weights = [hop] if self.terms[heaviest].bytes == 0 else [hop, scaled**_POWER]
        tours = []
        for weight in weights:
            tours.append(self._tour(weight, seed, effort / len(weights), progress))
            self._consider(tours[-1])
        return tours

    def _tour(
        self,
        weight: Ints,
        seed: int,
        effort: float,
        progress: Callable[[float], object] | None,
        start: NDArray[np.int32] | None = None,
    ) -> NDArray[np.int32]:
        work = int((_TOUR_WORK + _TOUR_WORK_PER_HOST * self.n) * effort)
        begin = _nearest_neighbours(weight) if start is None else start
        return tour_search(
            np.ascontiguousarray(weight).ravel(), begin, seed=seed, work=work, progress=progress
        )

    def _tighten(
        self, seed: int, effort: float, progress: Callable[[float], object] | None
    ) -> None:
        """Forbid the slowest hop, and all that are as slow, as long as this gives a faster order."""
        for _ in range(_TIGHTENINGS):
            bytes_ = self.pair[self.size_class[0]]
            limit = int(bytes_[self._best, np.roll(self._best, -1)].max())
            mean = self.tour_hop[self._best, np.roll(self._best, -1)].mean()
            if limit <= mean or limit == 0:
                return  # the mean decides, which the tours have minimized
            forbidden = np.where(bytes_ >= limit, int(self.tour_hop.max()) * 16, self.tour_hop)
            tour = self._tour(forbidden, seed, effort / 10, progress, self._best)
            if not self._consider(tour):
                return

    # --- bounds

    def lower_bound(self, progress: Callable[[float], object] | None) -> int:
        """Return a lower bound in integer units: the best of bounds per term and over all steps of a host."""
        each = sum(term.weight * self._term_bound(k, progress) for k, term in enumerate(self.terms))
        return max(each, self._partners_bound(), self._parts_bound(progress))

    def _term_bound(self, k: int, progress: Callable[[float], object] | None) -> int:
        term = self.terms[k]
        hop = self.hop(k, self.bytes)
        if term.ring:
            return self._ring_bound(k, hop, progress)
        off = hop[~np.eye(self.n, dtype=bool)]
        # With this many different pairs in use, at least one of them is this slow.
        least = int(np.partition(off, min(len(term.src), len(off)) - 1)[len(term.src) - 1])
        far = np.where(np.eye(self.n, dtype=bool), np.iinfo(np.int64).max, hop)
        if len(np.unique(term.src)) == self.n:
            least = max(least, int(far.min(axis=1).max()))
        if len(np.unique(term.dst)) == self.n:
            least = max(least, int(far.min(axis=0).max()))
        if _connected(term, self.n):
            least = max(least, _widest_edge(np.minimum(hop, hop.T)))
        return least

    def _ring_bound(self, k: int, hop: Ints, progress: Callable[[float], object] | None) -> int:
        bytes_ = self.bytes[self.size_class[k]]
        both = len(self.terms[k].src) == 2 * self.n
        way = hop + hop.T if both else hop
        order = self._best
        upper = int(way[order, np.roll(order, -1)].sum())
        flat = np.ascontiguousarray(way).ravel()
        total = 0.0
        if self.n > 2:
            rounds = min(max(_TREE_STEPS // self.n**2, _LEAST_ROUNDS), _MOST_ROUNDS)
            tree = one_tree_bound(flat, self.n, upper=upper, rounds=rounds, progress=progress)
            total = max(tree * (1 - 1e-9), assignment_bound(flat, self.n, progress=progress))
        else:
            total = int(way[0, 1] + way[1, 0])
        far = np.where(np.eye(self.n, dtype=bool), np.iinfo(np.int64).max, bytes_)
        widest = max(
            int(far.min(axis=1).max()),
            int(far.min(axis=0).max()),
            _widest_edge(np.minimum(bytes_, bytes_.T)),
        )
        return max(int(total // len(self.terms[k].src)), widest)

    def _parts_bound(self, progress: Callable[[float], object] | None) -> int:
        """Return a bound from partitions: steps inside parts cannot join more places than the largest part has hosts.

        The parts are the components of a minimum spanning tree without its longest edges. Whichever steps stay inside
        parts, all others have a message between parts, which costs at least the cheapest such message.
        """
        joined: dict[bytes, list[int]] = {}
        for k, term in enumerate(self.terms):
            edges = np.unique(np.sort(np.stack([term.src, term.dst], 1), axis=1), axis=0)
            joined.setdefault(edges.tobytes(), []).append(k)
        groups = list(joined.values())
        if len(groups) > _MOST_GROUPS:
            return 0
        base = [self._term_bound(k, progress) for k in range(len(self.terms))]
        sizes = self._joined_sizes(groups)
        heaviest = max(range(len(self.terms)), key=lambda k: self.terms[k].bytes)
        best = 0
        for part in _parts(self.hop(heaviest, self.bytes)):
            largest = int(np.bincount(part).max())
            apart = part[:, None] != part
            cross = [max(base[k], self._crossing(k, apart)) for k in range(len(self.terms))]
            gain = [sum(self.terms[k].weight * (cross[k] - base[k]) for k in g) for g in groups]
            extra = min(
                sum(gain[g] for g in range(len(groups)) if not inside >> g & 1)
                for inside, size in enumerate(sizes)
                if size <= largest
            )
            whole = sum(self.terms[k].weight * base[k] for k in range(len(self.terms)))
            best = max(best, whole + extra)
        return best

    def _crossing(self, k: int, apart: NDArray[np.bool_]) -> int:
        """Return the least time of a term with a message between parts."""
        if self.terms[k].ring:
            return 0
        return int(self.hop(k, self.bytes)[apart].min())

    def _joined_sizes(self, groups: list[list[int]]) -> list[int]:
        """Return, for every set of groups of terms, the number of places in the largest joined part."""
        sizes = []
        for inside in range(1 << len(groups)):
            label = np.arange(self.n)
            chosen = [self.terms[g[0]] for i, g in enumerate(groups) if inside >> i & 1]
            if chosen:
                src = np.concatenate([term.src for term in chosen])
                dst = np.concatenate([term.dst for term in chosen])
                label = _labels(src, dst, self.n)
            sizes.append(int(np.bincount(label).max()))
        return sizes

    def _partners_bound(self) -> int:
        """Return a bound from the partners of a host, which differ in the steps of an exchange.

        By the rearrangement inequality, the sum is least if the largest messages go to the nearest partners.
        """
        steps = [
            (k, term)
            for k, term in enumerate(self.terms)
            if not term.ring and term.latency and len(np.unique(term.src)) == self.n
        ]
        partners = [
            dict(zip(term.src.tolist(), term.dst.tolist(), strict=True)) for _, term in steps
        ]
        once = all(len(term.src) == self.n for _, term in steps)
        if not steps or not once or len(steps) >= self.n:
            return 0
        if any(len({p[place] for p in partners}) < len(partners) for place in range(self.n)):
            return 0
        steps.sort(key=lambda one: -self.terms[one[0]].bytes)
        off = ~np.eye(self.n, dtype=bool)
        total = np.zeros(self.n, np.int64)
        latencies = np.sort(self.latency[off].reshape(self.n, -1), axis=1)
        for rank, (k, term) in enumerate(steps):
            bytes_ = np.sort(self.bytes[self.size_class[k]][off].reshape(self.n, -1), axis=1)
            total += term.weight * (bytes_[:, rank] + latencies[:, rank])
        weights = {term.weight for _, term in steps}
        return int(total.max()) if len(weights) == 1 else 0


def _nearest_neighbours(weight: Ints) -> NDArray[np.int32]:
    """Return the tour from host 0 that always continues to the nearest unvisited host."""
    n = len(weight)
    tour, free = [0], np.ones(n, bool)
    for _ in range(n - 1):
        free[tour[-1]] = False
        tour.append(int(np.where(free, weight[tour[-1]], np.iinfo(np.int64).max).argmin()))
    return np.array(tour, np.int32)


def _connected(term: Term, n: int) -> bool:
    """Return whether the messages of a term connect all places."""
    return bool((_labels(term.src, term.dst, n) == 0).all())


def _labels(src: NDArray[np.int32], dst: NDArray[np.int32], n: int) -> NDArray[np.int64]:
    """Return, per place, the lowest place that edges connect it with."""
    label = np.arange(n)
    while True:
        lower = np.minimum(label[src], label[dst])
        before = label.copy()
        np.minimum.at(label, src, lower)
        np.minimum.at(label, dst, lower)
        label = label[label]
        if (label == before).all():
            return label


def _parts(cost: Ints) -> Iterator[NDArray[np.int64]]:
    """Yield partitions of the hosts by the longest edges of a minimum spanning tree; the clearest gaps first."""
    cost = np.minimum(cost, cost.T)
    n = len(cost)
    nearest, parent = cost[0].copy(), np.zeros(n, np.int64)
    free = np.ones(n, bool)
    free[0] = False
    edges = []
    for _ in range(n - 1):
        host = int(np.where(free, nearest, np.iinfo(np.int64).max).argmin())
        edges.append((int(nearest[host]), host, int(parent[host])))
        free[host] = False
        closer = cost[host] < nearest
        nearest, parent = np.where(closer, cost[host], nearest), np.where(closer, host, parent)
    edges.sort()
    lengths = np.array([length for length, _, _ in edges])
    cuts = np.flatnonzero(np.diff(lengths) > 0) + 1
    cuts = cuts[np.argsort(-(lengths[cuts] - lengths[cuts - 1]))][:_MOST_PARTS]
    for cut in cuts.tolist():
        kept = np.array([(a, b) for _, a, b in edges[:cut]], np.int32).reshape(-1, 2)
        label = _labels(kept[:, 0], kept[:, 1], n)
        yield np.unique(label, return_inverse=True)[1].ravel()


def _widest_edge(cost: Ints) -> int:
    """Return the longest edge of a minimum spanning tree; every connected graph of all hosts has one as long."""
    n = len(cost)
    nearest = cost[0].copy()
    free = np.ones(n, bool)
    free[0] = False
    widest = 0
    for _ in range(n - 1):
        next_ = int(np.where(free, nearest, np.iinfo(np.int64).max).argmin())
        widest = max(widest, int(nearest[next_]))
        free[next_] = False
        nearest = np.minimum(nearest, cost[next_])
    return widest
