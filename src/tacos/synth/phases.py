"""Reductions built from copies: collect every chunk at an owner, then spread it from there.

Collecting a sum at its owner is the time reversal of spreading it from the owner on the reversed network. So
a synthesizer that can only copy solves any collective in up to two phases, *collect* and *spread*. Each chunk
spreads as soon as its sum is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacos._core import Collective, CollectivePart
from tacos.collective import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tacos._core import Schedule, Topology

__all__ = ["in_phases", "only_collects", "sums"]

_MOST_PAIRS = 10**7  # largest number of pairs (chunk, NPU) to list in Python (chosen)


def in_phases(
    topology: Topology,
    collective: Collective,
    solve: Callable[[Topology, Collective], Schedule],
    *,
    owners: Collection[int] = (),
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Return the schedule of a collective, made with a synthesizer for collectives that only copy.

    Args:
        topology, collective: The problem.
        solve: Returns a schedule of a collective that only copies; the network may be the reversed one.
        owners: The NPUs at which the sums of an all-reduce are formed, in turn; all members by default.
        progress: Called while schedules are reversed and joined; `solve` reports its own progress.

    >>> import tacos
    >>> from tacos.synth import ENGINES
    >>> ring = tacos.topology.ring(4, bandwidth="1GB/s", latency="1us")
    >>> coll = tacos.collective.all_reduce(ring, "4KB", chunks=1)
    >>> in_phases(ring, coll, ENGINES["bidirectional-ring"]).time_s    # twice 2 (1 us + 1 us)
    8e-06
    """
    if not sums(collective):
        return solve(topology, collective)
    if only_collects(collective):
        return solve(topology.reversed(), collective.reversed()).reverse(progress)
    everything = all(kind_of(part).two_phases for part in collective.parts)
    gather = _all_gathers(collective) if everything and not owners else None
    before, after = (gather, gather) if gather is not None else _phases(collective, owners)
    collect = solve(topology.reversed(), before).reverse(progress)
    return collect.then(solve(topology, after), collective, progress)


def sums(collective: Collective) -> bool:
    """Return whether any chunk is a sum.

    >>> import tacos
    >>> sums(tacos.collective.reduce(4, "1MB")), sums(tacos.collective.gather(4, "1MB"))
    (True, False)
    """
    return any(part.sums for part in collective.parts)


def only_collects(collective: Collective) -> bool:
    """Return whether each chunk is a sum that ends at one NPU: the reverse of a collective that only copies.

    >>> import tacos
    >>> only_collects(tacos.collective.reduce(4, "1MB")), only_collects(tacos.collective.all_reduce(4, "1MB"))
    (True, False)
    """
    kinds = map(kind_of, collective.parts)
    return all(kind.reduces and not kind.two_phases and not kind.listed for kind in kinds)


def _all_gathers(collective: Collective) -> Collective | None:
    """Return the all-gathers that spread the sums of all-reduces, if both cut the buffers in the same way.

    If sizes do not divide evenly, the last byte of a piece may belong to the next one. Times must then be computed
    again, so this is accepted only for collectives that are too large to list chunk by chunk.
    """
    parts = [
        CollectivePart("all_gather", part.size, chunks=part.chunks, group=part.group)
        for part in collective.parts
    ]
    gather = Collective(collective.npus, parts)
    pairs = sum(part.chunks * len(part.group) ** 2 for part in collective.parts)
    mine, theirs = gather.chunk_bytes(), collective.chunk_bytes()
    alike = (
        np.array_equal(mine, theirs)
        if pairs < _MOST_PAIRS
        else not (mine != theirs)[mine * theirs == 0].any()
    )
    return gather if alike else None


def _phases(collective: Collective, owners: Collection[int]) -> tuple[Collective, Collective]:
    """Return the collectives of collecting (reversed in time) and of spreading, with the same chunk numbers.

    A sum is formed at one of its contributors, so that no NPU on the way has the complete sum. If possible it is one
    that needs the sum; chunks take turns.
    """
    holders, contributors, finals = [], [], []
    for chunk in range(collective.chunks):
        inputs, outputs = collective.inputs(chunk), collective.outputs(chunk)
        sums = collective.reduces(chunk) and bool(outputs)
        able = sorted(set(inputs) & set(outputs)) or inputs
        able = [npu for npu in owners if npu in able] or able
        owner = [able[chunk % len(able)]] if sums else inputs or [0]
        holders.append(owner)
        contributors.append(inputs if sums else owner[:1])
        finals.append(outputs)
    size = collective.size_bytes

    def spread(outputs: list[list[int]], begin: list[list[int]]) -> Collective:
        part = CollectivePart(
            "custom",
            size,
            chunks=1,
            bytes=collective.chunk_bytes(),
            inputs=np.array([npu for row in begin for npu in row], np.int32),
            input_begin=_begin(begin),
            outputs=np.array([npu for row in outputs for npu in row], np.int32),
            output_begin=_begin(outputs),
            reduces=np.zeros(collective.chunks, np.uint8),
        )
        return Collective(collective.npus, [part])

    collecting = spread(contributors, [owner[:1] for owner in holders])
    return collecting, spread(finals, holders)


def _begin(rows: list[list[int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)
