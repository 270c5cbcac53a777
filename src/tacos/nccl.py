"""Stock NCCL on a network: what it would choose, and how long nccl-tests would say it takes.

:func:`estimate` models NCCL's channels, tuner and protocols with published constants and few fitted parameters
(``tacos.synth.baselines.nccl.parameters``); the engine ``"nccl"`` makes the schedule of the algorithm that NCCL would choose.

>>> import tacos
>>> topo = tacos.topology.dgx_h100(2)
>>> coll = tacos.collective.all_reduce(topo, "1GB")
>>> found = tacos.nccl.estimate(topo, coll)
>>> found.algorithm, found.protocol, found.channels
('ring', 'Simple', 16)
"""

from __future__ import annotations

from tacos.synth.baselines.nccl.parameters import GENERATIONS, Generation
from tacos.synth.baselines.nccl.tuner import ALGORITHMS, Candidate, Estimate, estimate

__all__ = ["ALGORITHMS", "GENERATIONS", "Candidate", "Estimate", "Generation", "estimate"]
