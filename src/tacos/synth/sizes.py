"""The sizes of schedules, estimated from the problem, to refuse those that do not fit into memory before an engine starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from tacos.collective import kind_of
from tacos.errors import TacosError

if TYPE_CHECKING:
    from tacos._core import Collective, CollectivePart, Topology

__all__ = ["check_memory", "hops", "least_transfers", "transfers"]

_SHARE_OF_MEMORY = 0.9
"""Share of the machine's memory that an engine may need (chosen)."""


def transfers(topology: Topology, collective: Collective) -> float:
    """Estimate the number of transfers of a schedule in which each NPU receives a chunk at most once.

    Blocks between pairs cross half the network's diameter.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> transfers(ring, tacos.collective.all_gather(ring, "1MB", chunks=2))
    32.0
    """
    return sum((_moved(topology, part) for part in collective.parts), 0.0)


def least_transfers(topology: Topology, collective: Collective) -> int:
    """Return a number of transfers below which no schedule can be, unless it stores those of one NPU and a symmetry.

    Each NPU must receive each chunk that it lacks. Where switches multicast or reduce, one transfer serves many NPUs.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> least_transfers(ring, tacos.collective.all_gather(ring, "1MB", chunks=2))
    24
    """
    shared = bool(topology.switch_capabilities.any())
    return sum(_least(part, shared=shared) for part in collective.parts)


def _least(part: CollectivePart, *, shared: bool) -> int:
    n, c, kind = len(part.group), part.chunks, kind_of(part)
    if n < 2 or kind.listed or not kind.even:
        return 0
    if shared and kind.spreads:
        return c * (1 if kind.rooted else n)
    blocks = 1 if kind.rooted or not (kind.spreads or kind.per_pair) else n
    return blocks * (n - 1) * c * (2 if kind.two_phases else 1)


def hops(topology: Topology) -> float:
    """Estimate the number of links that a transfer across the network crosses.

    >>> import tacos
    >>> hops(tacos.topology.ring(8))
    2.0
    """
    return max(topology.diameter(4) / 2, 1.0)


def _moved(topology: Topology, part: CollectivePart) -> float:
    n, c, kind = float(len(part.group)), float(part.chunks), kind_of(part)
    if kind.spreads:
        return n * c * (1 if kind.rooted else n) * (2 if kind.two_phases else 1)
    if kind.listed and len(part.input_begin):
        return c * float(len(part.outputs) + len(part.inputs))
    pairs = (n * n if kind.per_pair else n) if kind.even else float(np.count_nonzero(part.bytes))
    return pairs * c * hops(topology)


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
