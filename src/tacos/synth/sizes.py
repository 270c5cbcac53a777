"""The sizes of schedules, estimated from the problem, to refuse those that do not fit into memory before an engine starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import greedy_stepwise
from tacos.collective import kind_of
from tacos.errors import TacosError
from tacos.synth import ENGINES

if TYPE_CHECKING:
    from tacos._core import Collective, CollectivePart, Topology

__all__ = ["check_fits", "check_memory", "hops", "least_transfers", "transfers"]

_SHARE_OF_MEMORY = 0.9
"""Share of the machine's memory that an engine may need (chosen)."""
_PAIR_BYTES = 350
"""Bytes per least transfer of an all-to-all, whose routes all differ: 381 or more with any engine on six networks (measured)."""
_SHARED_BYTES = 45
"""Bytes per least transfer of other collectives: 48 or more with the greedy engine (measured); known algorithms refuse 120 and more."""
_STEPWISE_BYTES = 9
"""Bytes per transfer of an all-gather that the greedy engine solves step by step (measured)."""


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


def check_fits(topology: Topology, collective: Collective, engine: str = "auto") -> None:
    """Refuse a problem before a search, if no engine that may solve it could hold the least transfers in memory.

    An engine that may store the transfers of one NPU and a symmetry is not refused.

    Args:
        topology: The network.
        collective: The collective; an open number of chunks counts as 1.
        engine: The engine that was asked for.

    Raises:
        TacosError: The machine has less memory.

    >>> import tacos
    >>> check_fits(ring := tacos.topology.ring(8), tacos.collective.all_to_all(ring, "1MB"))
    """
    resolved = collective if collective.resolved else collective.with_chunks(1)
    moved, present = least_transfers(topology, resolved), _present()
    pairs = any(kind_of(part).per_pair for part in resolved.parts)
    each = _PAIR_BYTES if pairs else _SHARED_BYTES
    if moved * each <= _SHARE_OF_MEMORY * present:
        return
    gathers = all(part.kind == "all_gather" for part in resolved.parts)
    if gathers and greedy_stepwise(topology, resolved):
        each = _STEPWISE_BYTES
    if moved * each <= _SHARE_OF_MEMORY * present:
        return
    if engine != "auto" and not ENGINES[engine].lists:
        return
    if engine == "auto" and any(
        not one.lists and one.applies(topology, collective) for one in ENGINES.values()
    ):
        return
    chunks = max(part.chunks for part in resolved.parts)
    fewer = "fewer chunks, fewer NPUs" if chunks > 1 else "fewer NPUs"
    raise TacosError(
        f"{resolved.label} among {max(len(part.group) for part in resolved.parts):,} NPUs takes at least "
        f"{moved:.1e} transfers, which need about {moved * each / 2**30:.1f} GiB, more than {100 * _SHARE_OF_MEMORY:.0f} % of "
        f"this machine's {present / 2**30:.1f} GiB; choose {fewer} or a machine with more memory"
    )


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
    present = _present()
    if needed > _SHARE_OF_MEMORY * present:
        raise TacosError(
            f"the {engine} engine needs about {needed / 2**30:.0f} GiB for {moved:.1e} transfers, "
            f"but this machine has {present / 2**30:.0f} GiB"
        )


def _present() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
