"""Compute: how long the operators of a layer take on a device.

Matrix products follow :meth:`Device.gemm_s <tacos.training.devices.Device.gemm_s>` with the shapes on one NPU. Attention is a
fused kernel, or two batches of products with the softmax in memory between them. All other operators count by memory traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tacos.training.devices import DTYPES

if TYPE_CHECKING:
    from tacos.training.devices import Device, Software
    from tacos.training.models import Layer, Transformer
    from tacos.training.parallelism import Parallelism

__all__ = [
    "LayerTimes",
    "embedding_times",
    "layer_times",
    "optimizer_s",
    "output_times",
    "stack_times",
]

_ADAM_BYTES = 34.0
"""Bytes that Adam moves per parameter: gradient (4) read, fp32 weight and two moments read and written (24), the 16-bit
weight written (2), and the gradient's norm and zeroing (4)."""


@dataclass(frozen=True)
class LayerTimes:
    """How long one NPU computes for one layer and micro-batch, in seconds.

    Attributes:
        forward: The forward pass.
        inputs: The part of the backward pass for gradients of inputs, and for elementwise operators.
        weights: The part of the backward pass that only computes gradients of weights.
        attention: The part of the forward pass that attention itself takes (scores, softmax, values).
        products: The part of the forward pass that matrix products of layers take.
        enter: Products of the forward pass that follow a gather of tensor parallelism.
        leave: Products of the forward pass that a reduction of tensor parallelism follows.
        operators: Operators that the host starts in the forward pass.
    """

    forward: float
    inputs: float
    weights: float
    attention: float = 0.0
    products: float = 0.0
    enter: tuple[float, ...] = ()
    leave: tuple[float, ...] = ()
    operators: float = 0.0

    @property
    def backward(self) -> float:
        """The whole backward pass without recomputation."""
        return self.inputs + self.weights


class _Sum:
    """Sums the times of products and traffic, forward and backward."""

    def __init__(self, device: Device, dtype: str) -> None:
        self.device, self.dtype = device, dtype
        self.forward = self.inputs = self.weights = self.products = 0.0

    def product(
        self, m: float, n: float, k: float, *, dtype: str = "", count: float = 1.0
    ) -> float:
        """Add a linear layer of m tokens, n outputs and k inputs; return its forward time."""
        chosen = dtype or self.dtype
        forward = self.device.gemm_s(m, n, k, chosen, count)
        self.forward += forward
        self.products += forward
        self.inputs += self.device.gemm_s(m, k, n, chosen, count)
        self.weights += self.device.gemm_s(k, n, m, chosen, count)
        return forward

    def traffic(self, size: float, kernels: float = 1.0, *, backward: float = 2.0) -> float:
        """Add operators that move `size` bytes forward, and `backward` times that backward."""
        forward = self.device.stream_s(size, kernels)
        self.forward += forward
        self.inputs += self.device.stream_s(size * backward, kernels * backward)
        return forward


def layer_times(
    model: Transformer,
    parallel: Parallelism,
    device: Device,
    software: Software,
    dtype: str,
    *,
    experts: bool,
) -> LayerTimes:
    """Return how long one NPU computes for one layer of a transformer and one micro-batch.

    >>> import tacos.training as t
    >>> from tacos.training.devices import device, software
    >>> times = layer_times(t.model("llama3-8b"), t.Parallelism(tp=2), device("h100"), software("current"), "bf16", experts=False)
    >>> 1e-3 < times.forward < times.backward < 10e-3
    True
    """
    total = _Sum(device, dtype)
    tp = parallel.tp
    tokens = parallel.microbatch * model.sequence / parallel.cp
    # Norms, dropout and residual additions work on whole rows, or on a share of the sequence.
    spread = tokens / tp if parallel.sequence_parallel else tokens
    rows = model.hidden * spread * 2.0
    # Models whose norms have biases also have biases and dropout elsewhere.
    passes = software.passes * (1.5 if model.bias else 1.0)
    outer = passes * 0.5
    total.traffic(rows * outer, kernels=3.0)
    attention = _attention(total, model, parallel, software, tokens)
    inner = 2.0 * tokens * (passes - outer) / 4.0
    enter, leave = [attention[1]], [attention[2]]
    if experts and model.experts is not None:
        one = model.experts
        width = one.ffn / tp
        each = tokens * one.active / (one.count / parallel.ep) * 1.0
        # Tokens of all NPUs of the expert group go to the experts that this NPU holds.
        total.product(tokens, one.count, model.hidden, dtype=_wide(device))
        held = one.count / parallel.ep
        meets = each  # tokens per held expert: ep · tokens · active / count
        up = total.product(meets, width * (model.matrices - 1), model.hidden, count=held)
        down = total.product(meets, model.hidden, width, count=held)
        total.traffic(inner * one.active * (one.ffn / tp) * (model.matrices - 1))
        # Tokens are sorted by expert, and back.
        total.traffic(8.0 * tokens * one.active * model.hidden, kernels=4.0)
        if one.shared:
            shared = one.shared * width
            up += total.product(tokens, shared * (model.matrices - 1), model.hidden)
            down += total.product(tokens, model.hidden, shared)
    else:
        width = model.ffn / tp
        up = total.product(tokens, width * (model.matrices - 1), model.hidden)
        down = total.product(tokens, model.hidden, width)
        total.traffic(inner * width * (model.matrices - 1))
    if DTYPES[dtype] < 2:
        # Inputs of products are scaled and stored as 8 bits or fewer, gradients too.
        total.traffic(
            3.0
            * tokens
            * (2 * model.hidden / (tp if parallel.sequence_parallel else 1) + 2 * width)
        )
    enter.append(up)
    leave.append(down)
    return LayerTimes(
        forward=total.forward,
        inputs=total.inputs,
        weights=total.weights,
        attention=attention[0],
        products=total.products,
        enter=tuple(enter),
        leave=tuple(leave),
        operators=software.operators,
    )


def _attention(
    total: _Sum, model: Transformer, parallel: Parallelism, software: Software, tokens: float
) -> tuple[float, float, float]:
    """Return the forward times of attention itself, of the projections before it, and of the one after it."""
    tp, device = parallel.tp, total.device
    heads = model.heads / tp
    if (latent := model.latent) is None:
        pairs = max(model.kv_heads / tp, 1.0)
        before = total.product(tokens, (heads + 2 * pairs) * model.head, model.hidden)
        key, value = model.head, model.head
    else:
        key, value = latent.content + latent.position, latent.value
        narrow = latent.query + latent.key_value + latent.position
        before = total.product(tokens, narrow, model.hidden)
        before += total.product(tokens, heads * key, latent.query)
        before += total.product(tokens, heads * (latent.content + value), latent.key_value)
    if model.positions == "rotary":
        total.traffic(4.0 * tokens * (heads * key + heads * value))
    if software.fused_attention:
        flops = 2.0 * tokens * model.sequence * heads * (key + value)
        if model.causal:
            flops /= 2.0
        peak = device.peak[_wide(device)] * software.attention
        if not software.native:
            peak *= device.legacy
        core = flops / (peak * device.attention) + device.kernel_s
        # The backward pass computes the scores again: five products instead of two.
        total.forward += core
        total.inputs += 2.5 * flops / (peak * device.attention_backward) + 2 * device.kernel_s
    else:
        wide = _wide(device)
        count = parallel.microbatch * heads
        queries = model.sequence / parallel.cp
        core = device.gemm_s(queries, model.sequence, key, wide, count)
        core += device.gemm_s(queries, value, model.sequence, wide, count)
        total.forward += core
        total.inputs += 2 * core
        core += total.traffic(
            2.0 * count * queries * model.sequence * software.score_passes,
            kernels=3.0,
            backward=1.5,
        )
    after = total.product(tokens, model.hidden, heads * value)
    return core, before, after


def output_times(model: Transformer, parallel: Parallelism, device: Device) -> LayerTimes:
    """Return how long the output layer and the loss take: 16-bit products, and logits in fp32.

    >>> import tacos.training as t
    >>> from tacos.training.devices import device
    >>> output_times(t.model("llama3-8b"), t.Parallelism(), device("h100")).forward > 0
    True
    """
    total = _Sum(device, _wide(device))
    tokens = parallel.microbatch * model.sequence / parallel.cp
    columns = model.vocabulary / parallel.tp
    total.product(tokens, columns, model.hidden)
    # Logits are converted to fp32, and read for the maximum, the sum and the loss.
    total.traffic(tokens * columns * 14.0, kernels=5.0, backward=0.7)
    return LayerTimes(
        forward=total.forward, inputs=total.inputs, weights=total.weights, operators=12.0
    )


def embedding_times(model: Transformer, parallel: Parallelism, device: Device) -> LayerTimes:
    """Return how long the embedding takes: rows are read, and their gradients added up.

    >>> import tacos.training as t
    >>> from tacos.training.devices import device
    >>> embedding_times(t.model("llama3-8b"), t.Parallelism(), device("h100")).weights
    0.0
    """
    total = _Sum(device, _wide(device))
    tokens = parallel.microbatch * model.sequence / parallel.cp
    total.traffic(tokens * model.hidden * 8.0, kernels=4.0)
    return LayerTimes(forward=total.forward, inputs=total.inputs, weights=0.0, operators=8.0)


def stack_times(layer: Layer, samples: float, device: Device, dtype: str) -> LayerTimes:
    """Return how long one layer of a model that is not a transformer takes.

    Its FLOPs run at the device's share for large products, or its activations and parameters pass through memory.

    >>> import tacos.training as t
    >>> from tacos.training.devices import device
    >>> layer = t.model("resnet50").layer_list[0]
    >>> stack_times(layer, 32, device("a100-80gb"), "fp16").forward > 0
    True
    """
    flops = layer.flops * samples
    size = max(DTYPES[dtype], 2.0)
    moved = (
        layer.parameters * (0.0 if layer.sharded else size)
        + 3.0 * samples * layer.activations * size
    )
    rate = device.peak[dtype] * device.share[dtype]
    forward = device.kernel_s + max(flops / rate, device.stream_s(moved, 0.0))
    return LayerTimes(forward=forward, inputs=forward, weights=forward, operators=4.0)


def optimizer_s(parameters: float, device: Device) -> float:
    """Return how long Adam takes to update this many parameters on one NPU, in seconds.

    >>> from tacos.training.devices import device
    >>> optimizer_s(1e9, device("a100-80gb")) > 34e9 / 2.039e12
    True
    """
    return device.stream_s(_ADAM_BYTES * parameters) if parameters else 0.0


def _wide(device: Device) -> str:
    """Return the device's 16-bit type, for computations that 8 bits are too few for."""
    return "bf16" if "bf16" in device.peak else "fp16"
