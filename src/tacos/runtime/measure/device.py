"""How fast a GPU computes, measured with torch: matrix products, memory, attention, and the start of kernels.

The result is plain rows, from which :func:`tacos.training.device_file.fitted` makes a device. This file needs torch and nothing of
the package, so that it can be copied to a machine that has nothing else::

    python device.py > rows.json
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["SHAPES", "measure"]

SHAPES: tuple[tuple[int, int, int], ...] = (
    # Squares, from what a few multiprocessors do to what fills all of them many times.
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384),
    # Layers of language models with and without tensor parallelism: tokens, outputs, inputs.
    (2048, 8192, 1024), (2048, 1024, 8192), (4096, 4096, 512), (4096, 12288, 4096), (4096, 4096, 14336),
    (8192, 7168, 4096), (8192, 4096, 3584), (8192, 1280, 8192), (8192, 8192, 1024), (8192, 57344, 8192),
    # Few tokens, limited by memory.
    (16, 8192, 8192), (128, 8192, 8192), (512, 8192, 8192),
)  # fmt: skip
"""Matrix products that are measured: rows and columns of the result, and the inner dimension."""

_ATTENTION = ((4, 32, 2048, 128), (2, 32, 4096, 128), (1, 32, 8192, 128))
"""Attention that is measured: sequences, heads, length, and elements of a head."""
_STREAMED = (1 << 26, 1 << 28, 1 << 29)
"""Elements of 16 bits that kernels without products go through."""
_BATCHES = 3
_TINY = 200
"""Kernels that do nothing, one after the other."""


def measure(
    where: str = "cuda",
    *,
    seconds: float = 40.0,
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
    attention: Sequence[tuple[int, int, int, int]] = _ATTENTION,
    streamed: Sequence[int] = _STREAMED,
    progress: Callable[[float], object] | None = None,
) -> dict[str, Any]:
    """Measure a device; the result can be written as JSON.

    ==============  =====================================================================================================
    ``name``        what the device calls itself
    ``memory``      bytes of memory
    ``gemm``        rows of dtype, m, n, k and seconds
    ``stream``      rows of bytes read and written, and seconds
    ``attention``   rows of kernel, sequences, heads, length, head, seconds forward and seconds backward; causal, 16 bits
    ``kernel_s``    seconds between two kernels on the device
    ``dispatch_s``  seconds that the host needs to start a kernel
    ==============  =====================================================================================================

    Args:
        where: A device of torch.
        seconds: About how long all measurements take; each one repeats its kernel for its share of the time, so that
            the clock has settled where the device holds it.
        shapes: Matrix products.
        attention: Attention: sequences, heads, length, elements of a head.
        streamed: Elements that streaming kernels go through.
        progress: Called from time to time with the share of the work done.

    Raises:
        RuntimeError: torch is missing, or finds no such device.
    """
    torch = _torch(where)
    meter = _Meter(torch, where)
    tasks = list(_tasks(torch, where, shapes, attention, streamed))
    found: dict[str, Any] = {
        "name": torch.cuda.get_device_name(where) if meter.cuda else "cpu",
        "memory": torch.cuda.get_device_properties(where).total_memory if meter.cuda else 0,
        "torch": torch.__version__,
        "gemm": [],
        "stream": [],
        "attention": [],
    }
    each = seconds / max(len(tasks) + 2, 1)
    found["kernel_s"], found["dispatch_s"] = _starts(torch, where, meter)
    for done, (table, row, build) in enumerate(tasks):
        try:
            kernels = build()
            for name, kernel in kernels.items():
                row[name] = meter.seconds(kernel, each / len(kernels))
            found[table].append(row)
        except (RuntimeError, NotImplementedError) as error:
            # A type or a kernel that this device, or this torch, does not have.
            found.setdefault("skipped", []).append(
                row | {"why": (str(error).splitlines() or ["?"])[0][:200]}
            )
        kernels = {}  # its tensors are freed before the next ones are made
        if meter.cuda:
            torch.cuda.empty_cache()
        if progress is not None:
            progress((done + 1) / len(tasks))
    return found


def _torch(where: str) -> Any:
    try:
        import torch
    except ImportError:
        raise RuntimeError(
            "measuring a device needs torch, which is not installed: pip install 'tacos-ccl[torch]'"
        ) from None
    if where.startswith("cuda") and not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU on this machine: run it where there is one")
    return torch


class _Meter:
    """Times kernels on a device."""

    def __init__(self, torch: Any, where: str) -> None:
        self.torch, self.cuda = torch, where.startswith("cuda")

    def seconds(self, kernel: Callable[[], object], budget: float) -> float:
        """Seconds of one run: the median over batches that last `budget` together."""
        kernel()  # choosing an algorithm and allocating happen here
        one = max(self._batch(kernel, 1), 1e-7)
        repeat = max(1, min(int(budget / _BATCHES / one), 1000))
        return statistics.median(self._batch(kernel, repeat) for _ in range(_BATCHES))

    def _batch(self, kernel: Callable[[], object], repeat: int) -> float:
        if not self.cuda:
            begin = time.perf_counter()
            for _ in range(repeat):
                kernel()
            return (time.perf_counter() - begin) / repeat
        cuda = self.torch.cuda
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        # The device waits a little, so that the host is ahead and its own time does not count.
        cuda._sleep(2_000_000 + 20_000 * min(repeat, 200))
        first.record()
        for _ in range(repeat):
            kernel()
        last.record()
        cuda.synchronize()
        return float(first.elapsed_time(last)) * 1e-3 / repeat


def _starts(torch: Any, where: str, meter: _Meter) -> tuple[float, float]:
    """Seconds between two kernels on the device, and between two on the host."""
    one = torch.zeros(1, device=where)

    def tiny() -> None:
        for _ in range(_TINY):
            one.add_(1.0)

    tiny()
    if meter.cuda:
        torch.cuda.synchronize()
    kernel = statistics.median(meter._batch(tiny, 1) for _ in range(_BATCHES)) / _TINY
    begin = time.perf_counter()
    tiny()
    dispatch = (time.perf_counter() - begin) / _TINY
    if meter.cuda:
        torch.cuda.synchronize()
    return kernel, dispatch


_Task = tuple[str, dict[str, Any], "Callable[[], dict[str, Callable[[], object]]]"]


def _tasks(
    torch: Any,
    where: str,
    shapes: Sequence[tuple[int, int, int]],
    attention: Sequence[tuple[int, int, int, int]],
    streamed: Sequence[int],
) -> Iterator[_Task]:
    """What is measured: its table, its row, and a function that makes its kernels by the name of their column."""
    for size in streamed:
        for kind, moved in (("copy", 4), ("add", 6)):
            yield "stream", {"kind": kind, "bytes": moved * size}, _stream(torch, where, size, kind)
    types = ("fp32", "tf32", "fp16", "bf16", "fp8") if where.startswith("cuda") else ("fp32",)
    for dtype in types:
        for m, n, k in shapes:
            if dtype == "fp32" and m * n * k > 2**39:
                continue  # a second each
            row = {"dtype": dtype, "m": m, "n": n, "k": k}
            yield "gemm", row, _gemm(torch, where, dtype, m, n, k)
    for kernel in ("best", "flash"):
        for shape in attention:
            row = dict(
                zip(("sequences", "heads", "length", "head"), shape, strict=True), kernel=kernel
            )
            yield "attention", row, _attention(torch, where, shape, kernel)


def _stream(
    torch: Any, where: str, size: int, kind: str
) -> Callable[[], dict[str, Callable[[], object]]]:
    def build() -> dict[str, Callable[[], object]]:
        a = torch.ones(size, dtype=torch.bfloat16, device=where)
        out = torch.empty_like(a)
        if kind == "copy":
            return {"seconds": lambda: out.copy_(a)}
        b = torch.ones_like(a)
        return {"seconds": lambda: torch.add(a, b, out=out)}

    return build


def _gemm(
    torch: Any, where: str, dtype: str, m: int, n: int, k: int
) -> Callable[[], dict[str, Callable[[], object]]]:
    def build() -> dict[str, Callable[[], object]]:
        # Random numbers: zeros take less power, and clocks rise.
        if dtype == "fp8":
            eight = torch.float8_e4m3fn
            a = torch.randn(m, k, dtype=torch.bfloat16, device=where).to(eight)
            b = torch.randn(n, k, dtype=torch.bfloat16, device=where).to(eight).t()
            one = torch.ones((), device=where)
            return {
                "seconds": lambda: torch._scaled_mm(
                    a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
                )
            }
        kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(dtype, torch.float32)
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        a = torch.randn(m, k, dtype=kind, device=where)
        b = torch.randn(k, n, dtype=kind, device=where)
        out = torch.empty(m, n, dtype=kind, device=where)
        return {"seconds": lambda: torch.mm(a, b, out=out)}

    return build


def _attention(
    torch: Any, where: str, shape: tuple[int, int, int, int], kernel: str
) -> Callable[[], dict[str, Callable[[], object]]]:
    """Fused attention as torch does it: with cuDNN's kernel, or with FlashAttention 2."""

    def build() -> dict[str, Callable[[], object]]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        chosen = [SDPBackend.FLASH_ATTENTION]
        if kernel == "best" and where.startswith("cuda"):
            chosen = [SDPBackend.CUDNN_ATTENTION]
        q, k, v = (
            torch.randn(*shape, dtype=torch.bfloat16, device=where, requires_grad=True)
            for _ in range(3)
        )

        def forward() -> Any:
            with sdpa_kernel(chosen):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        out = forward()
        gradient = torch.randn_like(out)

        def backward() -> None:
            torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

        return {"forward": forward, "backward": backward}

    return build


if __name__ == "__main__":
    try:
        json.dump(measure(*sys.argv[1:2]), sys.stdout, indent=1)
    except RuntimeError as error:
        sys.exit(str(error))
