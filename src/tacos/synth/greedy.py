"""The greedy engine: link-chunk matching over time, on any network, for any collective.

The core (``cpp/synth/greedy.hpp`` has the theory) solves problems that only copy. What sums is such a
problem seen from the end: a chunk's sum at its owner is its spread from the owner on the reversed
network, turned around. So a collective is solved in up to two phases, *collect* to the owners and
*spread* from them, each chunk spreading as soon as its sum is complete.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import Collective, CollectivePart
from tacos._core import greedy as _greedy
from tacos.errors import TacosError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Schedule, Topology

__all__ = ["greedy"]

_SUMS = {"reduce_scatter", "reduce"}
_SHARE_OF_MEMORY = 0.9
_MOST_PAIRS = 10**7  # of chunks and NPUs that are worth listing in Python


def greedy(
    topology: Topology,
    collective: Collective,
    *,
    seed: int = 0,
    threads: int = 0,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Match chunks to links moment by moment.

    Args:
        topology: Any network.
        collective: Any collective, with its number of chunks chosen.
        seed: Varies the order in which links choose; 0 has the fixed order that suits regular
            networks.
        threads: 0 uses all cores. The result does not depend on it.
        progress: Called with the share done, now and then.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached; the message names the pair.

    >>> import tacos
    >>> topo = tacos.topology.torus(8, 8, bandwidth="50GB/s", latency="500ns", link_model="blocking")
    >>> coll = tacos.collective.all_gather(topo, "64MB", chunks=1)
    >>> round(greedy(topo, coll).time_s / 20.5e-6)  # steps; 63 chunks over 4 links need 16
    16
    """
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed!r}, allowed are 0 to 2^63 - 1")
    _check_memory(topology, collective)

    def solve(network: Topology, problem: Collective) -> Schedule:
        provenance = json.dumps({"engine": "greedy", "seed": seed})
        return _greedy(
            network, problem, seed=seed, threads=threads, provenance=provenance, progress=progress
        )

    return _solve(topology, collective, solve)


def _check_memory(topology: Topology, collective: Collective) -> None:
    """Refuse at once what cannot fit, instead of after minutes of swapping."""
    pairs = sum(
        1.0 * part.chunks * len(part.group) ** 2
        for part in collective.parts
        if part.kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    )
    alike = topology.switches == 0 and all(
        len(column) and column.min() == column.max()
        for column in (topology.link_bandwidth_Bps, topology.link_latency_ps)
    )
    # The step-synchronous way writes 9 bytes per transfer; events, queues and lists take more.
    regular = alike and all(part.kind == "all_gather" for part in collective.parts)
    needed = pairs * (9 if regular else 60) + topology.npus * float(collective.chunks) / 4
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > _SHARE_OF_MEMORY * present:
        raise TacosError(
            f"the greedy engine needs about {needed / 2**30:.0f} GiB for {pairs:.1e} transfers, this "
            f"machine has {present / 2**30:.0f} GiB"
        )


def _solve(
    topology: Topology,
    collective: Collective,
    solve: Callable[[Topology, Collective], Schedule],
) -> Schedule:
    kinds = {part.kind for part in collective.parts}
    custom_sums = any(part.kind == "custom" and part.reduces.any() for part in collective.parts)
    if not custom_sums and not kinds & (_SUMS | {"all_reduce"}):
        return solve(topology, collective)
    if kinds <= _SUMS:
        return solve(topology.reversed(), collective.reversed()).reverse()
    gather = _all_gathers(collective) if kinds == {"all_reduce"} else None
    if gather is not None:
        collect = solve(topology.reversed(), gather).reverse()
        return collect.then(solve(topology, gather), collective)
    before, after = _phases(collective)
    return solve(topology.reversed(), before).reverse().then(solve(topology, after), collective)


def _all_gathers(collective: Collective) -> Collective | None:
    """The all-gathers that spread the sums of all-reduces, if they cut the buffers alike.

    Where sizes do not divide, the last byte of a piece may be in the next one; that costs the times
    (they are computed again), so only what is too large to list chunk by chunk accepts it.
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


def _phases(collective: Collective) -> tuple[Collective, Collective]:
    """Collecting, seen from the end, and spreading: chunk by chunk, with the same numbers.

    A sum is made at one of its contributors, so that nobody on the way there has it complete; if
    possible at one that needs it, chunk after chunk at another one.
    """
    holders, contributors, finals = [], [], []
    for chunk in range(collective.chunks):
        inputs, outputs = collective.inputs(chunk), collective.outputs(chunk)
        sums = collective.reduces(chunk) and bool(outputs)
        able = sorted(set(inputs) & set(outputs)) or inputs
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
