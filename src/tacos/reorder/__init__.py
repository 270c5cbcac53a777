"""The order of ranks that makes a job's collectives fastest, without new software in the job.

Libraries build rings and trees along rank numbers, and clouds assign machines in any order. :func:`reorder` finds
the order of hosts in which a pattern of messages is fastest, and a lower bound on the time of any order.
:func:`tacos.reorder.files.write` writes files with which launchers use the order.

>>> import numpy as np, tacos
>>> near = np.kron(np.eye(2), np.ones((2, 2)))[:, [0, 2, 1, 3]][[0, 2, 1, 3]]   # racks {0, 2} and {1, 3}
>>> found = tacos.reorder(np.where(near, 1.0, 5.0))
>>> found.cost, found.cost_before, found.exact
(18.0, 30.0, True)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacos import units
from tacos._core import Program
from tacos.errors import nearest
from tacos.reorder.patterns import PATTERNS, of_program
from tacos.reorder.search import Found, OrderingProblem, solve
from tacos.reorder.sources import costs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tacos.reorder.costs import Costs
    from tacos.reorder.patterns import Term
    from tacos.units import Quantity

__all__ = ["Order", "reorder"]

_DEFAULT_SIZE = "64MB"
_LARGE = 10**9
"""Size of the buffer in bytes if only bandwidths count."""


@dataclass(frozen=True)
class Order:
    """An order of ranks, and its predicted gain.

    Attributes:
        order: The old rank (or NPU) of each new rank.
        hosts: The hosts in their new order.
        cost: Seconds that the pattern takes in this order.
        cost_before: Seconds in the original order.
        lower_bound: Lower bound on the seconds of any order.
        exact: Whether the order is proven optimal.
        pattern: The pattern that was optimized; for ``"nccl"``, the faster of its choices.
        size: ``"latency"``, ``"bandwidth"``, or the buffer's size in words.
        shared: Whether links that several messages share were counted.
        ranks: The old ranks of each host, in the new order.
    """

    order: tuple[int, ...]
    hosts: tuple[str, ...]
    cost: float
    cost_before: float
    lower_bound: float
    exact: bool
    pattern: str
    size: str
    shared: bool
    ranks: tuple[tuple[int, ...], ...]

    @property
    def gap(self) -> float:
        """Largest share by which the order can be slower than the best one."""
        return 1 - self.lower_bound / self.cost if self.cost else 0.0

    @property
    def speedup(self) -> float:
        """Speedup over the original order."""
        return self.cost_before / self.cost if self.cost else 1.0

    def to_json(self) -> dict[str, Any]:
        """The order as plain values."""
        return {
            "order": list(self.order),
            "hosts": list(self.hosts),
            "pattern": self.pattern,
            "size": self.size,
            "cost_s": self.cost,
            "cost_before_s": self.cost_before,
            "lower_bound_s": self.lower_bound,
            "gap": self.gap,
            "speedup": self.speedup,
            "exact": self.exact,
            "shared_links": self.shared,
        }


def reorder(
    costs: object,
    pattern: str | Program = "ring",
    *,
    size: Quantity | None = None,
    bandwidth: object = None,
    hosts: Sequence[str] | None = None,
    npus_per_host: int | None = None,
    seed: int = 0,
    effort: float = 1.0,
    progress: Callable[[float], object] | None = None,
) -> Order:
    """Find the order of ranks in which a pattern of messages is fastest.

    Hosts with several ranks, named ``host:number``, keep them together and in their order. Up to 12 hosts the best order is
    found, as a rule; beyond, local search finds a good one. It is never slower than the order given.

    Args:
        costs: A square matrix of latencies in seconds (or of any costs), a topology, or a file: a matrix or table of pairs
            (CSV), ``tacos probe --json``, a topology of Slurm, topograph or EC2, or any topology file or spec.
        pattern: ``"ring"``, ``"two-way-ring"``, ``"halving-doubling"``, ``"double-binary-tree"``, ``"bcube"``,
            ``"hierarchical"``, ``"nccl"``, or a program.
        size: A buffer such as ``"64MB"``; ``"latency"`` counts latencies only, ``"bandwidth"`` bytes only. Default: 64 MB, or
            latency where no bandwidths are known.
        bandwidth: A matrix of bandwidths in B/s beside a matrix of latencies.
        hosts: The hosts of the job in their present order, if not all.
        npus_per_host: Number of consecutive NPUs of a topology that form a host, unless its names are ``host:number``.
        seed: Random seed; other seeds may give different, equally good orders.
        effort: How much to search; 2 searches twice as long.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: An argument is wrong, a matrix is not square or has gaps, or a host is unknown.
        FormatError: A file cannot be read.

    >>> import tacos
    >>> cluster = tacos.topology.fat_tree(2, 4, uplinks=1, oversubscription=4)
    >>> shuffled = tacos.topology.renumber(cluster, [0, 2, 4, 6, 1, 3, 5, 7])
    >>> found = reorder(shuffled, size="64MB")
    >>> round(found.speedup, 1), found.exact
    (4.0, True)
    """
    known = costs_of(costs, bandwidth, npus_per_host)
    if hosts is not None:
        known = known.only(list(hosts))
    wanted = _size(size, known)
    if not effort > 0:
        raise ValueError(f"effort must be positive; got {effort:g}")
    found: list[tuple[Found, str]] = []
    for name, terms in _patterns(pattern, len(known.names), wanted[0]):
        problem = OrderingProblem(known, terms, latency=wanted[2], turns=_turns(name))
        found.append((solve(problem, seed=seed, effort=effort, progress=progress), name))
    best, name = min(found, key=lambda one: one[0].cost)
    before = min(one.cost_before for one, _ in found)
    bound = min(one.lower_bound for one, _ in found)
    if best.cost >= before:  # never worse; unchanged if there is no gain
        best = next(one for one, _ in found if one.cost_before == before).unchanged()
    order = best.order
    return Order(
        order=tuple(rank for host in order for rank in known.ranks[host]),
        hosts=tuple(known.names[host] for host in order),
        cost=best.cost,
        cost_before=before,
        lower_bound=min(bound, best.cost),
        exact=bound >= best.cost * (1 - 1e-9),
        pattern=name,
        size=wanted[1],
        shared=known.network is not None and wanted[0] > 0,
        ranks=tuple(known.ranks[host] for host in order),
    )


def _patterns(pattern: str | Program, hosts: int, size: float) -> list[tuple[str, list[Term]]]:
    if isinstance(pattern, Program):
        if pattern.ranks != hosts:
            raise ValueError(
                f"the program is for {pattern.ranks} ranks, but there are {hosts} hosts"
            )
        return [(pattern.name or "program", of_program(pattern, size))]
    if pattern not in PATTERNS:
        close = nearest(str(pattern), PATTERNS)
        meant = f" (did you mean {close}?)" if close else ""
        raise ValueError(
            f"unknown pattern {pattern!r}{meant}; expected one of {', '.join(PATTERNS)}"
        )
    result = []
    for name in PATTERNS[pattern].choices or (pattern,):
        record = PATTERNS[name]
        if obstacle := record.obstacle(hosts):
            raise ValueError(f"pattern {name} does not suit {hosts} hosts: it {obstacle}")
        result.append((name, record.terms(hosts, size)))
    return result


def _turns(name: str) -> bool:
    return name in PATTERNS and PATTERNS[name].turns


def _size(size: Quantity | None, costs: Costs) -> tuple[float, str, bool]:
    """Return the bytes of the buffer, the size in words, and whether latencies count."""
    if size is None:
        size = "latency" if costs.byte_s is None else _DEFAULT_SIZE
    if size == "latency":
        return 0.0, "latency", True
    count = _LARGE if size == "bandwidth" else units.size_bytes(size)
    if costs.byte_s is None:
        raise ValueError(
            f"size {size} needs bandwidths, but {costs.source} has only latencies; use size latency"
        )
    if size == "bandwidth":
        return float(count), "bandwidth", False
    return float(count), units.format_size(count), True
