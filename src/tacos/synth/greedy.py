"""The greedy engine: link-chunk matching over time, on any network, for any collective.

The core (``cpp/synth/greedy.hpp`` has the theory) solves problems that only copy; sums are made of
them in :mod:`tacos.synth.phases`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from tacos._core import greedy as _greedy
from tacos.errors import TacosError
from tacos.synth.phases import in_phases

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Schedule, Topology

__all__ = ["greedy"]

_SHARE_OF_MEMORY = 0.9


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

    return in_phases(topology, collective, solve)


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
