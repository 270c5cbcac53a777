"""Memory: what one NPU stores during a training step.

Activations follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), generalized to grouped
attention, gated feed-forward networks, experts and fused attention. Sizes are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacos.training.models import Stack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos.training.devices import Device, Software
    from tacos.training.models import Model, Transformer
    from tacos.training.parallelism import Parallelism

__all__ = [
    "Memory",
    "StageParameters",
    "activation_bytes",
    "memory_of",
    "over_capacity",
    "parameters_of",
]

_STATES = 12.0
"""Bytes of Adam's states per parameter: weight, mean and variance in fp32."""
_WEIGHT = 2.0
"""Bytes of a parameter that computes: 16 bits."""
_GRADIENT = 4.0
"""Bytes of a gradient while micro-batches add to it: fp32."""


@dataclass(frozen=True)
class Memory:
    """Memory of the NPU that stores the most, in bytes.

    Attributes:
        parameters: Parameters in 16 bits, or the share of them that is held.
        gradients: Gradients.
        optimizer: States of the optimizer.
        activations: Activations that forward passes keep for backward passes.
        logits: Logits and their gradients.
        buffers: Parameters that are gathered for a short time, a layer that is computed again, and messages.
        stage: The pipeline stage that stores most.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    stage: int = 0

    @property
    def total(self) -> int:
        """The sum of all terms."""
        return round(sum(self.terms.values()))

    @property
    def terms(self) -> dict[str, float]:
        """The terms by name, the largest first.

        >>> list(Memory(1.0, 2.0, 6.0, 3.0, 0.0, 0.0).terms)[:2]
        ['optimizer', 'activations']
        """
        found = {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
            "logits": self.logits,
            "buffers": self.buffers,
        }
        return dict(sorted(found.items(), key=lambda item: -item[1]))


@dataclass(frozen=True)
class StageParameters:
    """Parameters that one NPU of a stage works with, before replicas share them.

    Attributes:
        dense: Parameters whose replicas are the `dp` groups.
        experts: Parameters of experts, whose replicas are the `edp` groups.
        largest: Parameters of the largest layer.
    """

    dense: float
    experts: float
    largest: float


def parameters_of(model: Model, parallel: Parallelism, stage: int) -> StageParameters:
    """Return the parameters of one NPU of a pipeline stage.

    >>> import tacos.training as t
    >>> parameters_of(t.model("gpt-22b"), t.Parallelism(tp=8), 0).dense * 8 / 1e9
    22.07...
    """
    counts = parallel.stage_layers(model.layers)
    places = [chunk * parallel.pp + stage for chunk in range(parallel.vp)]
    own = [(sum(counts[:place]), counts[place]) for place in places]
    if isinstance(model, Stack):
        layers = [one for begin, count in own for one in model.layer_list[begin : begin + count]]
        spread = [
            one.parameters / parallel.dp if one.sharded else float(one.parameters) for one in layers
        ]
        return StageParameters(sum(spread), 0.0, max(spread, default=0.0))
    dense = experts = largest = 0.0
    plain = model.layers if model.experts is None else model.experts.dense
    for begin, count in own:
        before = min(max(plain - begin, 0), count)
        for number, first, routed in (
            (before, begin, 0.0),
            (count - before, begin + before, _routed(model)),
        ):
            if number:
                rest = (model.layer_parameters(first) - routed) / parallel.tp
                held = routed / (parallel.tp * parallel.ep)
                dense += number * rest
                experts += number * held
                largest = max(largest, rest + held)
    if stage == 0:
        dense += model.embedding_parameters / parallel.tp
        largest = max(largest, model.embedding_parameters / parallel.tp)
    if stage == parallel.pp - 1:
        dense += model.output_parameters / parallel.tp
        if model.tied and parallel.pp > 1:
            # The last stage has a copy of the embedding.
            dense += model.vocabulary * model.hidden / parallel.tp
    return StageParameters(dense, experts, largest)


def _routed(model: Transformer) -> float:
    """Return the number of parameters of all routed experts of a layer."""
    return 0.0 if model.experts is None else float(model.experts.count * model.expert_parameters)


def activation_bytes(
    model: Transformer,
    parallel: Parallelism,
    *,
    experts: bool = False,
    fused: bool = False,
    recompute: str | None = None,
) -> float:
    """Return the bytes that one layer's forward pass leaves for the backward pass, on one NPU.

    For a plain GPT without recomputation this is s·b·h·(10 + 24/t + 5·a·s/(h·t)), and s·b·h/t·(34 + 5·a·s/h) with sequence parallelism
    (Korthikanti et al., equations 2 and 4).

    >>> import tacos.training as t
    >>> gpt = t.Transformer(layers=1, hidden=64, heads=4, ffn=256, vocabulary=100, sequence=32)
    >>> activation_bytes(gpt, t.Parallelism(tp=2, sequence_parallel=True)) == 32 * 64 / 2 * (34 + 5 * 4 * 32 / 64)
    True
    """
    tp = parallel.tp
    again = parallel.recompute if recompute is None else recompute
    tokens = parallel.microbatch * model.sequence / parallel.cp
    rows = tokens * model.hidden
    shared = tp if parallel.sequence_parallel else 1
    if again == "full":
        # The input of the layer; without sequence parallelism every NPU keeps all of it.
        return 2.0 * rows / shared
    dropout = 0.0 if model.norm == "rms" else 1.0
    # Inputs of two norms (4), of the two products that enter (4), and two dropout masks.
    outside = rows * (8.0 + 2.0 * dropout) / shared
    queries = tokens * model.heads * model.head
    pairs = 2.0 * tokens * model.kv_heads * model.head
    inside = (
        2.0 * (queries + pairs) + 2.0 * queries
    )  # queries, keys, values; input of the product after
    if experts and model.experts is not None:
        one = model.experts
        passed = tokens * (one.active + one.shared)
        # Tokens in the order of experts, then inside each expert.
        inside += passed * (2.0 * model.hidden + 2.0 * one.ffn * (4.0 if model.gated else 2.0))
    else:
        inside += tokens * model.ffn * (6.0 if model.gated else 4.0)
    scores = 0.0
    if not fused and again == "none":
        scores = (
            (4.0 + dropout) * parallel.microbatch * model.heads * model.sequence**2 / parallel.cp
        )
    if again == "alternate":
        # One of every two products' results is kept, and that of attention; norms and activations are recomputed.
        return 4.0 * rows / shared + 0.5 * inside / tp
    return outside + (inside + scores) / tp


def memory_of(
    model: Model,
    parallel: Parallelism,
    software: Software,
    in_flight: tuple[int, ...],
    parts: Sequence[StageParameters] | None = None,
) -> Memory:
    """Return the memory of the NPU that stores the most.

    Args:
        model, parallel: What is trained, and how it is split.
        software: Whether attention is fused.
        in_flight: For each pipeline stage, the largest number of forward passes of a chunk whose backward pass has not run.
        parts: The parameters of each stage, if they are known.
    """
    if parts is None:
        parts = [parameters_of(model, parallel, stage) for stage in range(parallel.pp)]
    found = [
        _stage(model, parallel, software, stage, passes, parts[stage])
        for stage, passes in enumerate(in_flight)
    ]
    return max(found, key=lambda one: one.total)


def _stage(
    model: Model,
    parallel: Parallelism,
    software: Software,
    stage: int,
    passes: int,
    parts: StageParameters,
) -> Memory:
    dense_shared = parallel.dp * parallel.cp
    expert_shared = dense_shared // parallel.ep

    def held(share: bool) -> float:
        if not share:
            return parts.dense + parts.experts
        return parts.dense / dense_shared + parts.experts / expert_shared

    logits = buffers = 0.0
    if isinstance(model, Stack):
        samples = parallel.microbatch
        each = 2.0 * samples * sum(layer.activations for layer in model.layer_list) / parallel.pp
        activations = each * passes
    else:
        layers = parallel.stage_layers(model.layers)
        mine = [layers[chunk * parallel.pp + stage] for chunk in range(parallel.vp)]
        sparse = model.experts is not None
        each = activation_bytes(model, parallel, experts=sparse, fused=software.fused_attention)
        # Chunks are of almost equal size, so their mean is used for each.
        activations = each * passes * sum(mine) / parallel.vp
        if parallel.recompute == "full":
            # One layer at a time is recomputed.
            buffers += activation_bytes(
                model, parallel, experts=sparse, fused=software.fused_attention, recompute="none"
            )
        tokens = parallel.microbatch * model.sequence / parallel.cp
        shared = parallel.tp if parallel.sequence_parallel else 1
        if stage == 0 and model.norm == "layer":
            # Dropout after the embedding, for each micro-batch in flight of the first chunk.
            activations += tokens * model.hidden / shared * max(1.0, passes / parallel.vp)
        if stage == parallel.pp - 1:
            logits = tokens * (4.0 * model.hidden / shared + 4.0 * model.vocabulary / parallel.tp)
            if software.fused_attention:
                logits += 2.0 * tokens * model.vocabulary / parallel.tp
        buffers += 2.0 * tokens * model.hidden * (2.0 if parallel.pp > 1 else 0.0)
    if parallel.zero == 3:
        buffers += parts.largest * (_WEIGHT * (1 + parallel.prefetch) + _GRADIENT)
    elif parallel.zero == 2 and parallel.overlap_gradients:
        buffers += parts.largest * _GRADIENT
    return Memory(
        parameters=_WEIGHT * held(parallel.zero >= 3),
        gradients=_GRADIENT * held(parallel.zero >= 2),
        optimizer=_STATES * held(parallel.zero >= 1),
        activations=activations,
        logits=logits,
        buffers=buffers,
        stage=stage,
    )


def over_capacity(memory: Memory, device: Device) -> str:
    """Return a sentence that says by how much a device's memory is exceeded; empty if it is not.

    >>> from tacos.training.devices import device
    >>> over_capacity(Memory(1e9, 0.0, 0.0, 0.0, 0.0, 0.0), device("h100"))
    ''
    """
    if memory.total <= device.memory_bytes:
        return ""
    largest = ", ".join(
        f"{name} {size / 1e9:.1f} GB" for name, size in list(memory.terms.items())[:3]
    )
    return (
        f"a step needs {memory.total / 1e9:.1f} GB on an NPU of stage {memory.stage},"
        f" but the device {device.name} has {device.memory_bytes / 1e9:.1f} GB; the largest terms are {largest}"
    )
