"""Devices: how fast a GPU or TPU computes, and the software that runs on it.

A :class:`Device` is a short table. Peaks, bandwidths and capacities are from data sheets. The shares of them that
kernels reach are *measured* on the device (``tacos probe device``) or *fitted* on published training steps, one value per
device and data type; :doc:`/explanation/training` says on which steps. A :class:`Software` says how a framework uses the
device: whether attention is one kernel, how often activations pass through memory, how long the host needs to start
an operator.

A matrix product of m × k and k × n elements takes

    2 (m·n + fill) (k + depth) / (peak · share)    or    its bytes / (bandwidth · share),

whichever is longer. `fill` stands for the last wave of tiles, which leaves multiprocessors idle, and `depth` for the start of
a tile, before its pipeline is full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tacos.errors import SpecError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["DEVICES", "DTYPES", "SOFTWARE", "Device", "Software", "device", "software"]

DTYPES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "fp4": 0.5}
"""Data types of matrix products, and the bytes of an element."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """The speed and memory of a GPU or TPU.

    Attributes:
        name: Such as ``"h100"``.
        peak: Dense FLOP/s by data type (data sheet); a missing type is not supported.
        memory_Bps: Memory bandwidth in bytes per second (data sheet).
        memory_bytes: Memory capacity in bytes (data sheet).
        share: Share of the peak that large matrix products reach, by data type.
        attention: Share of the 16-bit peak that a fused attention kernel reaches going forward.
        attention_backward: The same for the backward pass.
        legacy: Factor on these shares for attention kernels that were written for an earlier generation.
        memory_share: Share of the memory bandwidth that kernels without matrix products reach.
        fill: Elements of the result by which the last wave of tiles is short, on average.
        depth: Elements of the inner dimension that the start of a tile costs.
        kernel_s: Time between two kernels on the device, in seconds.
        source: Where the shares come from.
    """

    name: str
    peak: Mapping[str, float] = field(repr=False)
    memory_Bps: float
    memory_bytes: int
    share: Mapping[str, float] = field(repr=False)
    attention: float
    attention_backward: float
    legacy: float
    memory_share: float
    fill: float
    depth: float
    kernel_s: float
    source: str = field(repr=False, default="")

    def gemm_s(self, m: float, n: float, k: float, dtype: str, count: float = 1.0) -> float:
        """Return the time of `count` products of an m × k by a k × n matrix, in seconds.

        >>> a100 = device("a100-80gb")
        >>> time = a100.gemm_s(8192, 8192, 8192, "bf16")
        >>> 0.6 < 2 * 8192**3 / time / a100.peak["bf16"] < 0.9
        True
        """
        compute = 2.0 * (count * m * n + self.fill) * (k + self.depth)
        size = DTYPES[dtype]
        # Inputs have the type of the product, the result 16 bits or more.
        moved = count * ((m * k + k * n) * size + m * n * max(size, 2.0))
        return self.kernel_s + max(
            compute / (self.peak[dtype] * self.share[dtype]),
            moved / (self.memory_Bps * self.memory_share),
        )

    def stream_s(self, size: float, kernels: float = 1.0) -> float:
        """Return the time that kernels without matrix products take to move `size` bytes, in seconds.

        >>> device("h100").stream_s(3.35e9) > 1e-3
        True
        """
        return size / (self.memory_Bps * self.memory_share) + kernels * self.kernel_s


@dataclass(frozen=True, kw_only=True)
class Software:
    """How a framework uses a device.

    Attributes:
        name: Such as ``"current"``.
        fused_attention: Whether attention is one kernel that keeps its scores on the chip and skips what is masked.
        attention: Speed of this software's attention kernels relative to good ones on the same device.
        native: Whether its attention kernels use the instructions of the device's generation.
        passes: How often an element of the residual stream is read or written by kernels other than matrix products,
            in one layer's forward pass; half as often again in models with biases and dropout.
        score_passes: The same for an attention score, where attention is not fused.
        operators: Operators that the host starts for one layer's forward pass; the backward pass has twice that.
        dispatch_s: Time that the host needs to start an operator, in seconds. A pass cannot take less than its
            operators' dispatch.
        pass_s: Time that the host adds to every pass of a stage, in seconds: it prepares the micro-batch.
        message_s: Time that the host adds to a pass that receives from or sends to another stage, in seconds.
        step_s: Time that the host adds to every step, in seconds: checks of gradients, logs, and the next batch.
        interference: Seconds that a second of hidden communication costs: its kernels take multiprocessors and memory bandwidth
            from computation.
        blocking_sends: Whether a pipeline stage waits while its output is sent.
        gradient_bytes: Bytes of a gradient when gradients are summed between ranks.
    """

    name: str
    fused_attention: bool
    attention: float
    native: bool
    passes: float
    score_passes: float
    operators: float
    dispatch_s: float
    pass_s: float
    message_s: float
    step_s: float
    interference: float
    blocking_sends: bool
    gradient_bytes: float


SOFTWARE: Mapping[str, Software] = {
    one.name: one
    for one in (
        # Megatron-LM and DeepSpeed before fused attention and CUDA graphs.
        Software(
            name="megatron-2021",
            fused_attention=False,
            attention=0.0,
            native=True,
            passes=12.0,
            score_passes=8.0,
            operators=38.5,
            dispatch_s=21.2e-6,
            pass_s=0.3e-3,
            message_s=0.4e-3,
            step_s=0.0,
            interference=0.33,
            blocking_sends=True,
            gradient_bytes=2.0,
        ),
        Software(
            name="current",
            fused_attention=True,
            attention=1.0,
            native=True,
            passes=18.0,
            score_passes=0.0,
            operators=20.0,
            dispatch_s=5e-6,
            pass_s=0.0,
            message_s=0.0,
            step_s=0.1,
            interference=0.33,
            blocking_sends=False,
            gradient_bytes=4.0,
        ),
        # torch.compile and FlashAttention 2, as torchtitan uses them.
        Software(
            name="compiled",
            fused_attention=True,
            attention=1.0,
            native=False,
            passes=18.0,
            score_passes=0.0,
            operators=30.0,
            dispatch_s=8e-6,
            pass_s=0.0,
            message_s=0.0,
            step_s=0.0,
            interference=0.33,
            blocking_sends=False,
            gradient_bytes=4.0,
        ),
        # torch without a compiler: every operator is a kernel.
        Software(
            name="eager",
            fused_attention=True,
            attention=0.54,
            native=False,
            passes=38.0,
            score_passes=0.0,
            operators=45.0,
            dispatch_s=8e-6,
            pass_s=0.0,
            message_s=0.0,
            step_s=0.0,
            interference=0.33,
            blocking_sends=False,
            gradient_bytes=4.0,
        ),
    )
}
"""The software stacks that have a name."""


def _device(
    name: str,
    *,
    tflops: Mapping[str, float],
    memory_GBps: float,
    memory_GB: float,
    share: Mapping[str, float],
    attention: float = 0.65,
    attention_backward: float = 0.55,
    legacy: float = 1.0,
    memory_share: float = 0.85,
    fill: float = 1.0e6,
    depth: float = 128.0,
    kernel_us: float = 2.0,
    source: str,
) -> Device:
    return Device(
        name=name,
        peak={dtype: value * 1e12 for dtype, value in tflops.items()},
        memory_Bps=memory_GBps * 1e9,
        memory_bytes=int(memory_GB * 1e9),
        share=share,
        attention=attention,
        attention_backward=attention_backward,
        legacy=legacy,
        memory_share=memory_share,
        fill=fill,
        depth=depth,
        kernel_s=kernel_us * 1e-6,
        source=source,
    )


_A100 = {"fp32": 19.5, "tf32": 156.0, "fp16": 312.0, "bf16": 312.0}
_A100_SHARE = {"fp32": 0.9, "tf32": 0.80, "fp16": 0.83, "bf16": 0.83}
_HOPPER = {"fp32": 67.0, "tf32": 494.5, "fp16": 989.0, "bf16": 989.0, "fp8": 1979.0}
_HOPPER_SHARE = {"fp32": 0.9, "tf32": 0.75, "fp16": 0.78, "bf16": 0.78, "fp8": 0.72}
_BLACKWELL_SHARE = {"fp32": 0.9, "tf32": 0.70, "fp16": 0.70, "bf16": 0.70, "fp8": 0.55, "fp4": 0.43}

DEVICES: Mapping[str, Device] = {
    one.name: one
    for one in (
        _device(
            "a100-40gb",
            tflops=_A100,
            memory_GBps=1555.0,
            memory_GB=42.9,  # 40 GiB
            share=_A100_SHARE,
            memory_share=0.9,
            fill=1.35e6,
            depth=90.0,
            kernel_us=8.0,
            source="fitted on MPT's steps on A100 40 GB",
        ),
        _device(
            "a100-80gb",
            tflops=_A100,
            memory_GBps=2039.0,
            memory_GB=85.9,  # 80 GiB
            share=_A100_SHARE,
            memory_share=0.9,
            fill=1.35e6,
            depth=90.0,
            kernel_us=8.0,
            source="fitted on vTrain's and Megatron's steps on A100 80 GB",
        ),
        _device(
            "h100",
            tflops=_HOPPER,
            memory_GBps=3350.0,
            memory_GB=85.9,
            share=_HOPPER_SHARE,
            legacy=0.6,
            fill=1.1e7,
            source="fitted on MLPerf's and MPT's steps on H100",
        ),
        _device(
            "h200",
            tflops=_HOPPER,
            memory_GBps=4800.0,
            memory_GB=141.0,
            share=_HOPPER_SHARE,
            legacy=0.6,
            fill=1.1e7,
            source="shares of h100",
        ),
        _device(
            "b200",
            tflops={
                "fp32": 75.0,
                "tf32": 1125.0,
                "fp16": 2250.0,
                "bf16": 2250.0,
                "fp8": 4500.0,
                "fp4": 9000.0,
            },
            memory_GBps=8000.0,
            memory_GB=180.0,
            share=_BLACKWELL_SHARE,
            legacy=0.3,
            fill=1.1e7,
            source="fitted on Megatron-Bridge's steps on B200",
        ),
        _device(
            "gb200",
            tflops={
                "fp32": 80.0,
                "tf32": 1250.0,
                "fp16": 2500.0,
                "bf16": 2500.0,
                "fp8": 5000.0,
                "fp4": 10000.0,
            },
            memory_GBps=8000.0,
            memory_GB=186.0,
            share=_BLACKWELL_SHARE,
            legacy=0.3,
            fill=1.1e7,
            source="fitted on MLPerf's and Megatron-Bridge's steps on GB200",
        ),
        _device(
            "mi250",
            # One of the two dies (GCDs) of a package, which is what a rank drives.
            tflops={"fp32": 45.3, "fp16": 181.0, "bf16": 181.0},
            memory_GBps=1600.0,
            memory_GB=64.0,
            share={"fp32": 0.7, "fp16": 0.6, "bf16": 0.6},
            source="shares assumed, not measured",
        ),
        _device(
            "mi300x",
            tflops={"fp32": 163.4, "tf32": 653.7, "fp16": 1307.4, "bf16": 1307.4, "fp8": 2614.9},
            memory_GBps=5300.0,
            memory_GB=192.0,
            share={"fp32": 0.7, "tf32": 0.5, "fp16": 0.5, "bf16": 0.5, "fp8": 0.45},
            source="shares assumed, not measured",
        ),
        _device(
            "tpu-v5p",
            tflops={"bf16": 459.0},
            memory_GBps=2765.0,
            memory_GB=95.0,
            share={"bf16": 0.85},
            source="shares assumed, not measured",
        ),
    )
}
"""The devices that have a name."""


def device(name: str | Device) -> Device:
    """Return a device by name, or from a file (:mod:`tacos.training.device_file`).

    >>> device("h100").memory_Bps
    3350000000000.0

    Raises:
        SpecError: The name is unknown; the message suggests the nearest one.
        FormatError: A file that does not hold a device.
    """
    if isinstance(name, Device):
        return name
    if name.lower().endswith((".yaml", ".yml", ".json")):
        from tacos.training.device_file import load_device

        return load_device(name)
    if name not in DEVICES:
        raise SpecError(f"unknown device {name!r}; {_hint(name, DEVICES)}")
    return DEVICES[name]


def software(name: str | Software) -> Software:
    """Return a software stack by name.

    >>> software("current").fused_attention
    True

    Raises:
        SpecError: The name is unknown; the message suggests the nearest one.
    """
    if isinstance(name, Software):
        return name
    if name not in SOFTWARE:
        raise SpecError(f"unknown software {name!r}; {_hint(name, SOFTWARE)}")
    return SOFTWARE[name]


def _hint(name: str, known: Iterable[str]) -> str:
    close = nearest(name, list(known))
    return f"did you mean {close!r}?" if close else f"use one of {', '.join(known)}"
