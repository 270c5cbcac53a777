"""Training steps: how long a step of a model takes on a network, and where the time goes.

>>> import tacos.training
>>> tacos.training.model("llama3-8b").parameters
8030261248
"""

from __future__ import annotations

from tacos.training.catalog import MODELS, from_hugging_face, model, transformer
from tacos.training.models import Experts, LatentAttention, Layer, Model, Stack, Transformer

__all__ = [
    "MODELS",
    "Experts",
    "LatentAttention",
    "Layer",
    "Model",
    "Stack",
    "Transformer",
    "from_hugging_face",
    "model",
    "transformer",
]
