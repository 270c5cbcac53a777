"""In-network aggregation: a switch adds up what its workers send, and each sends and receives every byte once.

:class:`Switch` is a switch in user space, :func:`connect` makes this process a worker of one. Packets, slots and
restarts are described in ``cpp/aggregation``.

>>> import numpy as np
>>> with Switch(token="secret") as switch:
...     with connect(switch.address, worker=0, workers=1, token="secret") as worker:
...         worker.all_reduce(np.arange(4, dtype=np.int32))
array([0, 1, 2, 3], dtype=int32)
"""

from __future__ import annotations

from tacos.runtime.aggregation.endpoints import (
    DEFAULT_PORT,
    Switch,
    SwitchLost,
    SwitchWorker,
    connect,
)
from tacos.runtime.aggregation.figures import prometheus, stats
from tacos.synth.baselines.in_network import estimate, packet_elements, wire_bytes

__all__ = [
    "DEFAULT_PORT",
    "Switch",
    "SwitchLost",
    "SwitchWorker",
    "connect",
    "estimate",
    "packet_elements",
    "prometheus",
    "stats",
    "wire_bytes",
]
