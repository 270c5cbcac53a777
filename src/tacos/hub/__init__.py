"""An optimizer service: sums gradients, runs the optimizer on the sums, and returns new weights.

``tacos hub`` or :class:`~tacos.hub.server.Server` runs one. Workers use it in three ways: :class:`~tacos.hub.training.Optimizer` takes the place of a torch
optimizer in a training loop, :func:`~tacos.hub.worker.connect` gives push and pull with timestamps, and HTTP with JSON controls sessions,
health, metrics and checkpoints.

>>> import numpy as np
>>> job = Job("example", {"w": 2}, "sgd", [optimizer("sgd", lr=0.1)])
>>> with Server() as server, connect(job, server.address) as worker:
...     worker.put("w", np.ones(2, np.float32))
...     weights = np.empty(2, np.float32)
...     worker.wait(worker.push_pull("w", np.array([5, 0], np.float32), weights))
...     weights
array([0.5, 1. ], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacos.hub.job import Job, optimizer
from tacos.hub.server import Server
from tacos.hub.tenants import Tenant, Tenants
from tacos.hub.worker import Control, Worker, connect

if TYPE_CHECKING:
    from tacos.hub.relay import Relay
    from tacos.hub.training import DiLoCo as DiLoCo
    from tacos.hub.training import Optimizer as Optimizer

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


def __getattr__(name: str) -> Any:
    """Import on first use the classes that need torch or the whole runtime."""
    if name in ("DiLoCo", "Optimizer"):
        try:
            from tacos.hub import training
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ImportError(
                f"tacos.hub.{name} needs torch: pip install 'tacos-ccl[torch]'"
            ) from None
        return getattr(training, name)
    if name == "Relay":
        from tacos.hub.relay import Relay

        return Relay
    raise AttributeError(f"module 'tacos.hub' has no attribute {name!r}")
