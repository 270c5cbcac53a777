"""How much work an engine has, before it starts.

Work is counted in units of about a microsecond of one slow core. It follows from the problem alone, so that
whoever budgets with it gets the same result on any machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacos._core import all_alike
from tacos.collective import kind_of

if TYPE_CHECKING:
    from tacos._core import Collective, CollectivePart, Topology

__all__ = ["stored", "transfers", "work"]

_NEAR = {
    "nccl",
    "ring",
    "bidirectional-ring",
    "2d-ring",
    "hierarchical",
    "swing",
    "themis",
    "multitree",
}
"""Baselines whose transfers mostly cross one link; the others send across the network."""
_RATES = {
    "nccl": 0.5,
    "themis": 0.1,
    "ring": 0.5,
    "bidirectional-ring": 0.5,
    "direct": 1.0,
    "multitree": 1.0,
    "c-cube": 0.7,
}
_RATE = 0.4
_CHANNELS = 50_000.0
"""Microseconds to find NCCL's channels (measured on tori and boxes of up to 72 NPUs)."""
_GROWING = 7.0
"""Times the cube of the NPUs: trees of a network without symmetry."""


def work(engine: str, topology: Topology, collective: Collective, *, again: bool = False) -> float:
    """About how many microseconds an engine takes for a collective whose chunks are chosen.

    `again` is for further chunk counts: the forest engine has its trees then.

    >>> import tacos
    >>> mesh = tacos.topology.mesh(16, 16)
    >>> coll = tacos.collective.all_reduce(mesh, "1GB", chunks=1)
    >>> work("greedy", mesh, coll) < 1e6 < 1e8 < work("one-shot", mesh, coll)
    True
    """
    moved = transfers(engine, topology, collective)
    pairs = not all(kind_of(part).spreads for part in collective.parts)
    if engine == "nccl" and pairs:  # direct sends
        return work("direct", topology, collective)
    if engine == "symmetric":
        return moved / topology.npus
    if engine == "forest":
        if all_alike(topology):
            return 0.1 * moved
        return 2 * moved + (0.0 if again else _GROWING * topology.npus**3)
    if engine == "greedy":
        return moved * (5.0 if pairs else 1.5 if topology.switches else 0.7)
    far = 1.0 if engine in _NEAR else _hops(topology)
    setup = _CHANNELS if engine == "nccl" and not again else 0.0
    return _RATES.get(engine, _RATE) * moved * far + setup


def transfers(engine: str, topology: Topology, collective: Collective) -> float:
    """About how many transfers an engine's schedule has.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> transfers("ring", ring, tacos.collective.all_gather(ring, "1MB", chunks=2))
    32.0
    """
    factor = float(topology.npus) / 2 if engine == "one-shot" else 1.0
    return factor * sum(_moved(engine, topology, part) for part in collective.parts)


def stored(engine: str, topology: Topology, collective: Collective) -> float:
    """About how many of them are stored: of an orbit, one NPU's.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> stored("symmetric", ring, tacos.collective.all_gather(ring, "1MB", chunks=2))
    8.0
    """
    moved = transfers(engine, topology, collective)
    return moved / topology.npus if engine == "symmetric" else moved


def _moved(engine: str, topology: Topology, part: CollectivePart) -> float:
    """Between pairs, half the network's diameter each, or half way round a ring."""
    n, c, kind = float(len(part.group)), float(part.chunks), kind_of(part)
    if kind.spreads:
        return n * c * (1 if kind.rooted else n) * (2 if kind.two_phases else 1)
    if kind.listed and len(part.input_begin):
        return c * float(len(part.outputs) + len(part.inputs))
    if kind.even:
        pairs = n * n if kind.per_pair else n
    else:
        pairs = float(np.count_nonzero(part.bytes))
    return pairs * c * max(n / 2 if engine.endswith("ring") else _hops(topology), 1.0)


def _hops(topology: Topology) -> float:
    return max(topology.diameter(4) / 2, 1.0)
