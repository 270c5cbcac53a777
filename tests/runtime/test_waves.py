"""Programs in waves: the driver for GPUs, with a stand-in for NCCL; one process runs all ranks.

NCCL itself needs a GPU: benchmarks/gpu.py runs the same checks there.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos._core import fields, waves
from tacos.program import STEP_OPS
from tests.support.rank_jobs import expected, shared

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tacos-ccl[torch]'")

from tacos.runtime.carriers.waves import GpuAlgorithm
from tests.support.fake_nccl import FakeNccl, Switchboard

pytestmark = pytest.mark.unsanitized

NETWORKS = ["ring:4", "mesh:2x3", "fc:4", "switch:5", "dgx-h100-plain:1"]
KINDS = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"]


def made(
    network: str, kind: str, chunks: int, engine: str = "auto", *, in_place: bool = False
) -> tacos.Program:
    topo = tacos.topology.parse(network)
    root = {"root": 1} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
    wanted = tacos.collective.named(kind.replace("_", "-"), topo, "1MB", chunks=chunks, **root)
    schedule = tacos.synthesize(topo, wanted, engine=engine, effort="fast")
    return tacos.lower(schedule, in_place=in_place)


def run(program: tacos.Program, count: int, dtype: str = "float32", op: str = "sum") -> None:
    """Run all ranks in one process, out of place, and compare with NumPy."""
    [part] = program.collective.parts
    pairs = [expected(part, rank, count, dtype, op, 0) for rank in range(program.ranks)]
    sources = [torch.from_numpy(source.copy()) for source, _ in pairs]
    targets = [torch.full((len(want),), 77, dtype=sources[0].dtype) for _, want in pairs]
    ranks = range(program.ranks)
    algorithm = GpuAlgorithm(
        program, FakeNccl(Switchboard()), ranks=ranks, peers=dict.fromkeys(ranks, 0)
    )
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


@pytest.mark.parametrize("kind", [*KINDS, "gather", "scatter"])
@pytest.mark.parametrize("count", [3, 1000])
def test_programs_in_place_run_out_of_place_and_in_place(kind, count):
    """In place as NCCL defines it: the input of an all-gather is a part of its output, and so on."""
    program = made("mesh:2x3", kind, chunks=2, in_place=True)
    run(program, count)
    [part] = program.collective.parts
    ranks = range(program.ranks)
    pairs = [expected(part, rank, count, "float32", "sum", 1) for rank in ranks]
    memory = [
        shared(part, rank, count, pairs[rank][0].copy(), np.zeros_like(pairs[rank][1]))
        for rank in ranks
    ]
    sources, targets = ([torch.from_numpy(two[i]) for two in memory] for i in range(2))
    algorithm = GpuAlgorithm(
        program, FakeNccl(Switchboard()), ranks=ranks, peers=dict.fromkeys(ranks, 0)
    )
    algorithm.run(sources, targets, count)
    for (_, want), got in zip(pairs, targets, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


def test_buffers_that_overlap_otherwise_are_kept_apart():
    """The input of an all-gather is the part of its output that belongs to another rank."""
    program = made("ring:4", "all_gather", 1, in_place=True)
    ranks = range(4)
    targets = [torch.zeros(8) for _ in ranks]
    sources = [target[2 * ((r + 1) % 4) :][:2] for r, target in zip(ranks, targets, strict=True)]
    for rank, source in enumerate(sources):
        source.fill_(rank + 1)
    algorithm = GpuAlgorithm(
        program, FakeNccl(Switchboard()), ranks=ranks, peers=dict.fromkeys(ranks, 0)
    )
    algorithm.run(sources, targets, 8)
    for target in targets:
        assert target.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


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
@pytest.mark.parametrize("network", ["fc:5", "switch:6", "dgx-h100-plain:1"])
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
    algorithm = GpuAlgorithm(
        program, FakeNccl(Switchboard()), ranks=ranks, peers=dict.fromkeys(ranks, 0)
    )
    algorithm.run(sources, targets, 999)
    for target in targets:
        assert torch.equal(target, targets[0])


def test_a_mean_leaves_the_tensors_of_others_alone():
    """Every rank passes a tensor to a reduce; only the root's is written."""
    program = made("ring:4", "reduce", 1)
    ranks = range(4)
    algorithm = GpuAlgorithm(
        program, FakeNccl(Switchboard()), ranks=ranks, peers=dict.fromkeys(ranks, 0)
    )
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
