"""The files that ASTRA-sim needs besides an algorithm's traces: workload, system, memory, network.

ASTRA-sim runs an algorithm as the custom implementation of a collective. The workload then has this collective as its
only node; the sizes are those of the algorithm's traces.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import Workload, chakra_file
from tacos.collective import KINDS, kind_of
from tacos.formats.astra_network import Dimensions, dimensions, one_block

if TYPE_CHECKING:
    from pathlib import Path

    from tacos._core import Collective, Program
    from tacos.topology import Topology

__all__ = ["beside", "network"]

_COMMS = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}
"""Collectives for which ASTRA-sim takes a custom implementation, with their numbers in Chakra."""


def beside(
    prefix: Path, program: Program, collective: Collective, topology: Topology | None
) -> dict[str, bytes]:
    """Return the files, keyed by the part of their names after the prefix.

    A collective for which ASTRA-sim has no custom implementations, such as a broadcast, is called an all-gather, or an
    all-to-all if every pair has a block: ASTRA-sim does not look at the data.

    Args:
        prefix: Prefix of the algorithm's traces.
        program: The program in the traces.
        collective: The program's collective, with true sizes.
        topology: The network, if it is known.
    """
    kinds = {part.kind: kind_of(part) for part in collective.parts}
    name, kind = next(iter(kinds.items()))
    if len(kinds) > 1 or name not in _COMMS:
        name = "all_to_all" if len(kinds) == 1 and kind.per_pair else "all_gather"
    size = collective.size_bytes
    shard = -(-size // collective.npus) if name == "all_gather" else size
    one = Workload(
        npus=1,
        rank=np.zeros(1, np.int32),
        kind=np.full(1, 3, np.uint8),
        comm=np.full(1, _COMMS[name], np.uint8),
        bytes=np.full(1, shard),
        names=["collective"],
    )
    files = dict.fromkeys(
        (f"workload.{rank}.et" for rank in range(program.ranks)), chakra_file(one, 0)
    )
    system = {
        "scheduling-policy": "FIFO",
        "preferred-dataset-splits": 1,  # ASTRA-sim never completes a custom collective in pieces
        f"{KINDS[name].label}-implementation-custom": [str(prefix.absolute())],
    }
    files["system.json"] = json.dumps(system, indent=2).encode() + b"\n"
    files["memory.json"] = b'{"memory-type": "NO_MEMORY_EXPANSION"}\n'
    text = None if topology is None else network(topology, program)
    if text is not None:
        files["network.yml"] = text.encode()
    return files


def network(topology: Topology, program: Program) -> str | None:
    """Return ASTRA-sim's description of a network on which it runs a program, or None.

    One ring, clique or switch is described as it is. On other networks of equal links, a program that only sends to
    neighbours takes the same time on a clique, where each pair has its own link. A clique works with both analytical
    backends; the congestion-aware one takes a single dimension. Other products of rings, cliques and switches are
    described dimension by dimension.

    >>> import tacos
    >>> topo = tacos.topology.ring(4, bandwidth="50GiB/s", latency="500ns")
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MiB", chunks=1))
    >>> print(network(topo, tacos.lower(schedule)), end="")
    topology: [Ring]
    npus_count: [4]
    bandwidth: [50.0]
    latency: [500.0]
    """
    found: Dimensions | None = None
    with suppress(ValueError):
        found = dimensions(topology)
    single = found is not None and len(found.topology) == 1
    if not single and _between_equal_neighbours(topology, program):
        speed = int(topology.link_bandwidth_Bps[0]), int(topology.link_latency_ps[0])
        found = one_block("FullyConnected", topology.npus, *speed)
    return None if found is None else found.text


def _between_equal_neighbours(topology: Topology, program: Program) -> bool:
    if not topology.links or topology.npus < 2:
        return False
    if any(np.ptp(c) for c in (topology.link_bandwidth_Bps, topology.link_latency_ps)):
        return False
    links = topology.link_src.astype(np.int64) * topology.nodes + topology.link_dst
    if len(np.unique(links)) < len(links):
        return False  # parallel links would be merged
    talks = program.thread_send_peer >= 0
    pairs = program.thread_rank[talks].astype(np.int64) * topology.nodes
    return bool(np.isin(pairs + program.thread_send_peer[talks], links).all())
