"""Training steps: how long a step of a model takes on a network, and where the time goes.

>>> import tacos
>>> from tacos import training
>>> parallel = training.Parallelism(tp=8, pp=4, batch=64, sequence_parallel=True, zero=1)
>>> found = training.step(training.model("llama3-70b"), parallel, tacos.topology.dgx_h100(8), device="h100", dtype="fp8")
>>> found.time_s < 20
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos._support.deferred import gather

if TYPE_CHECKING:
    from tacos.training.astra import export
    from tacos.training.catalog import MODELS, from_hugging_face, model
    from tacos.training.devices import DEVICES, DTYPES, SOFTWARE, Device, Software
    from tacos.training.memory import Memory
    from tacos.training.models import Experts, LatentAttention, Layer, Model, Stack, Transformer
    from tacos.training.parallelism import ORDER, Groups, Parallelism
    from tacos.training.search import Ranking, parallelisms, search
    from tacos.training.step import MemoryExceededError, Step, step
    from tacos.training.what_if import changed, disturbed

__all__ = [
    "DEVICES",
    "DTYPES",
    "MODELS",
    "ORDER",
    "SOFTWARE",
    "Device",
    "Experts",
    "Groups",
    "LatentAttention",
    "Layer",
    "Memory",
    "MemoryExceededError",
    "Model",
    "Parallelism",
    "Ranking",
    "Software",
    "Stack",
    "Step",
    "Transformer",
    "changed",
    "disturbed",
    "export",
    "from_hugging_face",
    "model",
    "parallelisms",
    "search",
    "step",
]

gather(
    __name__,
    {
        "astra": ("export",),
        "catalog": ("MODELS", "from_hugging_face", "model"),
        "devices": ("DEVICES", "DTYPES", "SOFTWARE", "Device", "Software"),
        "memory": ("Memory",),
        "models": ("Experts", "LatentAttention", "Layer", "Model", "Stack", "Transformer"),
        "parallelism": ("ORDER", "Groups", "Parallelism"),
        "search": ("Ranking", "parallelisms", "search"),
        "step": ("MemoryExceededError", "Step", "step"),
        "what_if": ("changed", "disturbed"),
    },
)
