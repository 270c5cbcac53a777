"""Programs in waves: the driver for GPUs, with a batch of messages carried out in memory.

NCCL itself needs a GPU: benchmarks/gpu.py runs the same checks there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos._core import fields, waves
from tacos.program import STEP_OPS
from tests.support.rank_jobs import expected

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tacos-ccl[torch]'")

from tacos.runtime.carriers.nccl import GpuAlgorithm

NETWORKS = ["ring:4", "mesh:2x3", "fc:4", "switch:5", "dgx-h100:1"]
KINDS = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"]


class Loopback:
    """A process group of one process: what it sends in a batch, it receives in the same order."""

    def __init__(self) -> None:
        self.batches = 0
        self._sent: list[Any] = []
        self._wanted: list[Any] = []

    def rank(self) -> int:
        return 0

    def _start_coalescing(self) -> None:
        self._sent, self._wanted = [], []

    def send(self, tensors: list[Any], peer: int, tag: int) -> None:
        assert peer == tag == 0
        assert tensors[0].is_contiguous()
        self._sent.append(tensors[0].clone())

    def recv(self, tensors: list[Any], peer: int, tag: int) -> None:
        assert peer == tag == 0
        assert tensors[0].is_contiguous()
        self._wanted.append(tensors[0])

    def _end_coalescing(self) -> Loopback:
        for sent, wanted in zip(self._sent, self._wanted, strict=True):
            assert sent.shape == wanted.shape  # NCCL would hang or write past the end
            wanted.copy_(sent)
        self.batches += 1
        return self

    def wait(self) -> None: ...


def made(network: str, kind: str, chunks: int, engine: str = "auto") -> tacos.Program:
    topo = tacos.topology.parse(network)
    root = {"root": 1} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
    wanted = tacos.collective.named(kind.replace("_", "-"), topo, "1MB", chunks=chunks, **root)
    return tacos.lower(tacos.synthesize(topo, wanted, engine=engine, effort="fast"))


def run(program: tacos.Program, count: int, dtype: str = "float32", op: str = "sum") -> None:
    """Run all ranks in one process and compare with NumPy."""
    [part] = program.collective.parts
    pairs = [expected(part, rank, count, dtype, op, 0) for rank in range(program.ranks)]
    sources = [torch.from_numpy(source.copy()) for source, _ in pairs]
    targets = [torch.full((len(want),), 77, dtype=sources[0].dtype) for _, want in pairs]
    ranks = range(program.ranks)
    algorithm = GpuAlgorithm(program, Loopback(), ranks=ranks, peers=dict.fromkeys(ranks, 0))
    for _ in range(2):  # a second call uses what the first has kept
        algorithm.run(sources, targets, count, op)
    for (source, want), kept, got in zip(pairs, sources, targets, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)
        np.testing.assert_array_equal(kept.numpy(), source)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_collective_gives_what_numpy_gives(network, kind):
    program = made(network, kind, chunks=2)
    for count in (0, 3, 1000):
        run(program, count)


@settings(max_examples=30)
@given(
    engine=st.sampled_from(["ring", "bidirectional-ring", "direct", "greedy"]),
    count=st.integers(0, 200),
    chunks=st.integers(1, 4),
    op=st.sampled_from(["sum", "product", "min", "max", "avg"]),
    dtype=st.sampled_from(["float32", "float64", "int32"]),
)
def test_types_and_operations(engine, count, chunks, op, dtype):
    run(made("ring:4", "all_reduce", chunks, engine), count, dtype, op)


@pytest.mark.parametrize("engine", ["one-shot", "forest"])
@pytest.mark.parametrize("network", ["fc:5", "switch:6", "dgx-h100:1"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_all_ranks_get_identical_bits(network, engine, dtype):
    program = made(network, "all_reduce", 1, engine)
    ranks = range(program.ranks)
    generator = torch.Generator().manual_seed(0)
    scales = [2.0 ** torch.randint(-6, 7, (999,), generator=generator) for _ in ranks]
    sources = [
        (torch.randn(999, generator=generator) * scale).to(getattr(torch, dtype))
        for scale in scales
    ]
    targets = [torch.empty_like(source) for source in sources]
    algorithm = GpuAlgorithm(program, Loopback(), ranks=ranks, peers=dict.fromkeys(ranks, 0))
    algorithm.run(sources, targets, 999)
    for target in targets:
        assert torch.equal(target, targets[0])


def test_a_mean_leaves_the_tensors_of_others_alone():
    """Everybody passes a tensor to a reduce; only the root's is written."""
    program = made("ring:4", "reduce", 1)
    ranks = range(4)
    algorithm = GpuAlgorithm(program, Loopback(), ranks=ranks, peers=dict.fromkeys(ranks, 0))
    sources = [torch.full((8,), float(rank)) for rank in ranks]
    targets = [torch.full((8,), 5.0) for _ in ranks]
    algorithm.run(sources, targets, 8, "avg")
    assert [target.tolist() for target in targets] == [[1.5 if r == 1 else 5.0] * 8 for r in ranks]


def test_waves_keep_the_order_of_threads_and_messages():
    """A ring of n in one direction: every rank sends once in each of 2 (n - 1) waves."""
    program = made("ring:5", "all_reduce", 1, "ring")
    cut = waves(program)
    assert cut.count == 1 + 2 * 4
    for step in range(program.steps):
        if cut.receive[step] >= 0:
            assert cut.receive[step] == cut.act[program.comes_from[step]]
    sending = [STEP_OPS[op] in ("send", "recv_send", "recv_reduce_send") for op in program.op]
    owner = np.repeat(program.thread_rank, np.diff(program.thread_begin))
    seen = set(zip(owner[sending].tolist(), cut.act[sending].tolist(), strict=True))
    assert seen == {(rank, wave) for rank in range(5) for wave in range(1, 9)}


def test_an_order_that_cannot_run_is_refused():
    """Two ranks that both receive before they send."""
    program = made("ring:2", "all_to_all", 1, "direct")
    columns = {name: value for name, value in fields(program).items() if name != "provenance"}
    turned = columns["comes_from"].copy()
    turned[turned >= 0] = -1
    with pytest.raises(ValueError, match="waits for ever"):
        waves(tacos.Program(**columns | {"comes_from": turned}))
