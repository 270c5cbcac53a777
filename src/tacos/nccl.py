"""Stock NCCL on a network: which algorithm it would choose, and the time that nccl-tests would report.

:func:`estimate` models NCCL's channels, tuner and protocols with published constants and a few fitted parameters
(``tacos.synth.baselines.nccl.parameters``); the engine ``"nccl"`` returns a schedule of the algorithm that NCCL would choose.

>>> import tacos
>>> topo = tacos.topology.dgx_h100(2)
>>> coll = tacos.collective.all_reduce(topo, "1GB")
>>> found = tacos.nccl.estimate(topo, coll)
>>> found.algorithm, found.protocol, found.channels
('nvls-tree', 'Simple', 16)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacos.synth.baselines.nccl.boxes import layout
from tacos.synth.baselines.nccl.channels import rings as _rings
from tacos.synth.baselines.nccl.knowledge import known_networks
from tacos.synth.baselines.nccl.parameters import GENERATIONS, Generation
from tacos.synth.baselines.nccl.tuner import ALGORITHMS, Candidate, Estimate, estimate

if TYPE_CHECKING:
    from tacos._core import Topology

__all__ = ["ALGORITHMS", "GENERATIONS", "Candidate", "Estimate", "Generation", "estimate", "rings"]


def rings(topology: Topology, *, aware: bool = True) -> list[tuple[int, ...]]:
    """Return the different rings that NCCL would build through all NPUs of a network.

    Args:
        topology: The network.
        aware: Whether NCCL searches with knowledge of the network's faults; otherwise it searches on the network with all links
            healthy, and keeps these rings on the broken one.

    >>> import tacos
    >>> rings(tacos.topology.dgx_h100(2))[0]
    (1, 2, 3, 4, 5, 6, 7, 0, 8, 15, 14, 13, 12, 11, 10, 9)
    """
    members = np.arange(topology.npus, dtype=np.int32)
    (network,) = known_networks(topology, aware=aware)
    return list(_rings(network, layout(network.topology, members)))
