"""The greedy engine: link-chunk matching over time, on any network, for any collective.

The core (``cpp/synth/greedy.hpp`` has the theory) solves problems that only copy; :mod:`tacos.synth.phases`
builds reductions from them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tacos._core import greedy as _greedy
from tacos._core import greedy_stepwise
from tacos._cuda import check_device
from tacos._cuda import greedy as on_gpu
from tacos.errors import TacosError
from tacos.synth.engine import Engine
from tacos.synth.phases import in_phases, sums
from tacos.synth.sizes import check_memory, transfers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Schedule, Topology

__all__ = ["ENGINE", "greedy"]


def greedy(
    topology: Topology,
    collective: Collective,
    *,
    seed: int = 0,
    threads: int = 0,
    device: str = "cpu",
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Match chunks to links, moment by moment.

    Args:
        topology: Any network.
        collective: Any collective, with its number of chunks chosen.
        seed: Varies the order in which links choose; 0 is a fixed order that suits regular networks.
        threads: Number of threads; 0 uses all cores. The result does not depend on it.
        device: ``"cuda"`` matches on a GPU, and ``"auto"`` does so if possible; the result is the same.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached; the message names the pair.

    >>> import tacos
    >>> topo = tacos.topology.torus(8, 8, bandwidth="50GB/s", latency="500ns", link_model="blocking")
    >>> coll = tacos.collective.all_gather(topo, "64MB", chunks=1)
    >>> round(greedy(topo, coll).time_s / 20.5e-6)  # steps; 63 chunks over 4 links need 16
    16
    """
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be 0 to 2^63 - 1; got {seed!r}")
    if type(threads) is not int or not 0 <= threads < 2**31:
        raise ValueError(f"threads must be 0 (all cores) or a positive number; got {threads!r}")
    check_device(device)
    _check_memory(topology, collective)

    def solve(network: Topology, problem: Collective) -> Schedule:
        provenance = json.dumps({"engine": ENGINE.name, "seed": seed})
        if device != "cpu":
            missing = on_gpu.obstacle(network, problem)
            if missing and device == "cuda":
                raise TacosError(f'device "cuda" cannot be used: {missing}')
            if not missing:
                found = on_gpu.solve(
                    network, problem, seed=seed, provenance=provenance, progress=progress
                )
                if found is not None:
                    return found
            # The CPU solves it, or reports which NPU cannot be reached.
        return _greedy(
            network,
            problem,
            seed=seed,
            threads=threads,
            backwards=network is not topology,
            provenance=provenance,
            progress=progress,
        )

    return in_phases(topology, collective, solve, progress=progress)


def _check_memory(topology: Topology, collective: Collective) -> None:
    """Refuse a problem that cannot fit into memory, instead of swapping for minutes."""
    moved = transfers(topology, collective)
    to_all = all(
        part.kind == "all_gather" and len(part.group) == topology.npus for part in collective.parts
    )
    # Bytes per transfer (measured); reductions are reversed and joined, and working step by step takes the least.
    each = 50 if to_all else 100
    if sums(collective):
        each = 70
    elif to_all and greedy_stepwise(topology, collective):
        each = 9
    paths = topology.npus**2 if topology.switches and to_all else 0
    bits = topology.npus * float(collective.chunks)
    needed = moved * each + paths * 350.0 + bits / 4
    check_memory("greedy", moved, needed)


ENGINE = Engine(
    name="greedy",
    solve=greedy,
    patience=4,  # finer chunks may help matching
    random_starts=True,
)
