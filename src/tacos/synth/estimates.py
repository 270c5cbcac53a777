"""Estimates of an engine's work, made from the problem before the engine starts.

Work is counted in units of about a microsecond of one slow core. It depends on the problem alone, so a budget of
work gives the same result on any machine.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tacos.collective import kind_of
from tacos.errors import TacosError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, CollectivePart, Topology

__all__ = ["between_pairs", "check_memory", "hops", "per_transfer", "transfers"]

_SHARE_OF_MEMORY = 0.9
"""Share of the machine's memory that an engine may need (chosen)."""


def per_transfer(
    rate_us: float,
    *,
    near: bool = False,
    stored: Callable[[Topology, Collective], float] | None = None,
) -> Callable[[Topology, Collective, bool], float]:
    """Return an estimate of work: microseconds per transfer and hop.

    Args:
        rate_us: The microseconds (measured).
        near: Whether transfers mostly cross one link and not the whole network.
        stored: The number of transfers, if it differs from :func:`transfers`.

    >>> import tacos
    >>> mesh = tacos.topology.mesh(4, 4)                     # on average three hops
    >>> per_transfer(0.5)(mesh, tacos.collective.all_gather(mesh, "1MB", chunks=1), False)
    384.0
    """

    def work(topology: Topology, collective: Collective, _again: bool) -> float:
        moved = (transfers if stored is None else stored)(topology, collective)
        return rate_us * moved * (1.0 if near else hops(topology))

    return work


def transfers(topology: Topology, collective: Collective, *, around: bool = False) -> float:
    """Estimate the number of transfers of a schedule in which each NPU receives a chunk at most once.

    Blocks between pairs cross half the network's diameter, or go half way `around` a ring.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> transfers(ring, tacos.collective.all_gather(ring, "1MB", chunks=2))
    32.0
    """
    return sum(map(partial(_moved, topology, around=around), collective.parts), 0.0)


def between_pairs(collective: Collective) -> bool:
    """Return whether some chunks go from one NPU to one other.

    >>> import tacos
    >>> between_pairs(tacos.collective.all_to_all(4, "1MB"))
    True
    """
    return not all(kind_of(part).spreads for part in collective.parts)


def hops(topology: Topology) -> float:
    """Estimate the number of links that a transfer across the network crosses.

    >>> import tacos
    >>> hops(tacos.topology.ring(8))
    2.0
    """
    return max(topology.diameter(4) / 2, 1.0)


def _moved(topology: Topology, part: CollectivePart, *, around: bool) -> float:
    n, c, kind = float(len(part.group)), float(part.chunks), kind_of(part)
    if kind.spreads:
        return n * c * (1 if kind.rooted else n) * (2 if kind.two_phases else 1)
    if kind.listed and len(part.input_begin):
        return c * float(len(part.outputs) + len(part.inputs))
    pairs = (n * n if kind.per_pair else n) if kind.even else float(np.count_nonzero(part.bytes))
    return pairs * c * max(n / 2 if around else hops(topology), 1.0)


def check_memory(engine: str, moved: float, needed: float) -> None:
    """Refuse a problem whose transfers cannot fit into memory, instead of swapping for minutes.

    Args:
        engine: The engine's name.
        moved: The number of transfers.
        needed: The bytes that the engine needs.

    Raises:
        TacosError: The machine has less memory.

    >>> check_memory("greedy", 1e6, 1e8)
    """
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > _SHARE_OF_MEMORY * present:
        raise TacosError(
            f"the {engine} engine needs about {needed / 2**30:.0f} GiB for {moved:.1e} transfers, "
            f"but this machine has {present / 2**30:.0f} GiB"
        )
