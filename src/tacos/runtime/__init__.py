"""Run algorithms on real data: ranks, their connections, and collectives over them.

>>> import numpy as np, tacos, tacos.runtime
>>> with tacos.runtime.connect() as comm:  # a job of one rank, unless a launcher says otherwise
...     topo = tacos.topology.ring(comm.size)
...     ring = tacos.synthesize(topo, tacos.collective.all_reduce(topo, "1MB", chunks=1))
...     algorithm = comm.prepare(ring)
...     data = np.arange(4.0)
...     algorithm.run(data, data)
array([0., 1., 2., 3.])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos._support.deferred import gather
from tacos.errors import CommunicationError

if TYPE_CHECKING:
    from tacos.runtime.algorithm import Algorithm
    from tacos.runtime.communicator import Communicator, connect
    from tacos.runtime.launch import LocalRanks, launch
    from tacos.runtime.measure.bench import Figure, Row, measure, table
    from tacos.runtime.rendezvous import (
        Rendezvous,
        TcpRendezvous,
        from_environment,
        in_job,
    )
    from tacos.runtime.rendezvous.mpi import MpiRendezvous
    from tacos.runtime.rendezvous.store import StoreRendezvous

__all__ = [
    "Algorithm",
    "CommunicationError",
    "Communicator",
    "Figure",
    "LocalRanks",
    "MpiRendezvous",
    "Rendezvous",
    "Row",
    "StoreRendezvous",
    "TcpRendezvous",
    "connect",
    "from_environment",
    "in_job",
    "launch",
    "measure",
    "table",
]

gather(
    __name__,
    {
        "algorithm": ("Algorithm",),
        "communicator": ("Communicator", "connect"),
        "launch": ("LocalRanks", "launch"),
        "measure.bench": ("Figure", "Row", "measure", "table"),
        "rendezvous": ("Rendezvous", "TcpRendezvous", "from_environment", "in_job"),
        "rendezvous.mpi": ("MpiRendezvous",),
        "rendezvous.store": ("StoreRendezvous",),
    },
)
