"""An optimizer service: sums gradients, runs the optimizer on the sums, and returns new weights.

``tacos hub`` or :class:`~tacos.hub.server.Server` runs one. Workers use it in three ways: :class:`~tacos.hub.training.Optimizer` takes the place of a torch
optimizer in a training loop, :func:`~tacos.hub.worker.connect` gives push and pull with timestamps, and HTTP with JSON controls sessions,
health, metrics and checkpoints.

>>> import numpy as np
>>> from tacos.hub import Job, Server, connect, optimizer
>>> job = Job("example", {"w": 2}, "sgd", [optimizer("sgd", lr=0.1)])
>>> with Server() as server, connect(job, server.address) as worker:
...     worker.put("w", np.ones(2, np.float32))
...     weights = np.empty(2, np.float32)
...     worker.wait(worker.push_pull("w", np.array([5, 0], np.float32), weights))
...     weights
array([0.5, 1. ], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos._support.deferred import gather

if TYPE_CHECKING:
    from tacos.hub.job import Job, optimizer
    from tacos.hub.relay import Relay
    from tacos.hub.server import Server
    from tacos.hub.tenants import Tenant, Tenants
    from tacos.hub.training import DiLoCo as DiLoCo
    from tacos.hub.training import Optimizer as Optimizer
    from tacos.hub.worker import Control, Worker, connect

# DiLoCo and Optimizer are not listed: they need torch, and a star import must work without it.
__all__ = [
    "Control",
    "Job",
    "Relay",
    "Server",
    "Tenant",
    "Tenants",
    "Worker",
    "connect",
    "optimizer",
]

gather(
    __name__,
    {
        "job": ("Job", "optimizer"),
        "relay": ("Relay",),
        "server": ("Server",),
        "tenants": ("Tenant", "Tenants"),
        "training": ("DiLoCo", "Optimizer"),
        "worker": ("Control", "Worker", "connect"),
    },
)
