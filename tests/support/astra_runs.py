"""Small workloads, and their times by ASTRA-sim's rules."""

from __future__ import annotations

import numpy as np

from tacos.simulate.astra import AstraSystem, run
from tacos.workload import COMP, RECV, SEND, collective, from_nodes

MIB = 2**20
SPEED = {"bandwidth": "50GiB/s", "latency": "500ns"}  # what ASTRA-sim's files call 50 and 500
HOP = 20031  # floor(500 + 2^20 / 53.687…)


def messages(npus, pairs, size=MIB):
    """A workload of one message per pair, all ready at once; idle ranks compute for 1 ns."""
    src, dst = np.array(pairs).T
    number = np.arange(len(src))
    idle = np.setdiff1d(np.arange(npus), np.concatenate((src, dst)))
    none = np.zeros_like(idle)
    return from_nodes(
        npus,
        rank=np.concatenate((src, dst, idle)),
        kind=[SEND] * len(src) + [RECV] * len(src) + [COMP] * len(idle),
        peer=np.concatenate((dst, src, none - 1)),
        bytes=size,
        tag=np.concatenate((number, number, none)),
    )


def time_of(workload, topology, **options):
    return run(workload, topology, **options).time_ns


def native(topology, comm, *, aware=True, **system):
    workload = collective(topology.npus, comm, MIB)
    return time_of(workload, topology, aware=aware, as_custom=False, system=AstraSystem(**system))
