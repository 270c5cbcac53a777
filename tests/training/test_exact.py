"""The graph of a step, and the exact simulation against the folded one."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import tacos
from tacos import training
from tacos._core import run_job
from tacos.simulate import astra
from tacos.workload import COLL, COMP, RECV, SEND

ONE, TWO = tacos.topology.dgx_h100(1), tacos.topology.dgx_h100(2)


def small(**shape):
    usual = {
        "layers": 2,
        "hidden": 4096,
        "heads": 32,
        "ffn": 16384,
        "vocabulary": 32000,
        "sequence": 2048,
    }
    return training.transformer(name="small", **usual | shape)


def job(routes, nodes, messages, pairs):
    """Run nodes (rank, kind, duration, message, waits for) and messages (bytes, connection)."""
    rank, kind, duration, message, waits = zip(*nodes, strict=True)
    return run_job(
        routes,
        rank=np.array(rank, np.int32),
        kind=np.array(kind, np.uint8),
        duration_ps=np.array(duration, np.int64),
        message=np.array(message, np.int32),
        dep_begin=np.cumsum([0, *map(len, waits)]).astype(np.int64),
        dep=np.array([one for each in waits for one in each], np.int64),
        bytes=np.array([size for size, _ in messages], np.int64),
        connection=np.array([place for _, place in messages], np.int32),
        connection_route=np.arange(len(pairs), dtype=np.int32),
    )


def test_a_job_by_hand():
    """Rank 0 computes 1 us and sends two messages of 1000 B at 1 GB/s, which share the link: both take 2 us and 1 us on
    the way. Rank 1 waits for them and computes."""
    topology = tacos.topology.from_links(2, [(0, 1, 1e9, 1e-6), (1, 0, 1e9, 1e-6)])
    pairs = [(0, 1), (0, 1)]
    routes = tacos.routes(topology, pairs=([0, 0], [1, 1]))
    us = 10**6
    nodes = [
        (0, 2, 1 * us, -1, []),
        (0, 0, 0, 0, [0]),
        (0, 0, 0, 1, [0]),
        (1, 1, 0, 0, []),
        (1, 1, 0, 1, []),
        (1, 2, 5 * us, -1, [3, 4]),
        (1, 3, 2 * us, -1, []),  # a pause does not keep the rank from computing
        (1, 2, 3 * us, -1, []),
    ]
    start, end = job(routes, nodes, [(1000, 0), (1000, 1)], pairs)
    assert (end[:5] / us).tolist() == [1, 3, 3, 4, 4]
    assert (start[5:] / us).tolist() == [4, 0, 0]
    assert (end[5:] / us).tolist() == [9, 2, 3]
    # Over one connection they follow one another.
    _, end = job(routes, nodes, [(1000, 0), (1000, 0)], pairs)
    assert (end[:6] / us).tolist() == [1, 2, 3, 3, 4, 9]


def test_jobs_that_never_end_and_broken_columns_are_errors():
    routes = tacos.routes(ONE, pairs=([0], [1]))
    with pytest.raises(ValueError, match=r"^message 0 lacks a send or a receive$"):
        job(routes, [(0, 0, 0, 0, [])], [(1, 0)], [(0, 1)])
    with pytest.raises(ValueError, match=r"^dep has a value out of range$"):
        job(routes, [(0, 2, 1, -1, [7])], [], [(0, 1)])
    with pytest.raises(ValueError, match=r"^node 0 has message -1$"):
        job(routes, [(0, 0, 0, -1, [])], [], [(0, 1)])


def test_the_graph_has_what_every_rank_does():
    model, split = small(layers=4), training.Parallelism(tp=2, pp=2, dp=4, batch=8)
    step = training.step(model, split, TWO)
    w = step.workload
    assert w.npus == 16
    # Two micro-batches, two layers per stage, two all-reduces per layer and pass, and one for the embedding or the output.
    sums = [(w.kind == COLL) & (w.rank == rank) for rank in range(16)]
    names = np.array(w.names)[w.name]
    assert [int((names[one] == "tp all-reduce").sum()) for one in sums] == [
        2 * (2 * 2 * 2 + 1)
    ] * 16
    assert [int((names[one] == "dp all-reduce").sum()) for one in sums] == [1] * 16
    for kind in (SEND, RECV):
        assert ((w.kind == kind) & (w.rank == 0)).sum() == 2
    computed = np.bincount(w.rank[w.kind == COMP], w.duration_ps[w.kind == COMP])
    # The update's node has the host's time as well, which a step counts as idle.
    host_s = training.SOFTWARE["current"].step_s
    assert computed.sum() / 16 * 1e-12 == pytest.approx(step.compute_s + host_s, rel=1e-6)
    assert (
        astra.run(w, tacos.topology.fully_connected(16), aware=False, as_custom=False).time_ns > 0
    )


def test_gradients_are_summed_layer_by_layer_where_they_overlap():
    for zero, kind in ((0, "dp all-reduce"), (1, "dp reduce-scatter")):
        split = training.Parallelism(tp=4, dp=2, batch=4, zero=zero, overlap_gradients=True)
        w = training.step(small(layers=3), split, ONE).workload
        names = np.array(w.names)[w.name]
        assert ((names == kind) & (w.rank == 0)).sum() == 3


def random_case(number):
    rng = random.Random(number)
    net = rng.choice([ONE, TWO])
    tp, pp = rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4])
    while net.npus % (tp * pp):
        pp //= 2
    dp, vp = net.npus // (tp * pp), rng.choice([1, 2]) if pp > 1 else 1
    micro, many = rng.choice([1, 2]), rng.choice([1, 2]) * pp
    model = small(layers=pp * vp, sequence=rng.choice([2048, 4096]))
    split = training.Parallelism(
        tp=tp, pp=pp, dp=dp, vp=vp, microbatch=micro, batch=dp * micro * many, zero=rng.choice([0, 1]),
        schedule="1f1b" if vp > 1 else rng.choice(["1f1b", "gpipe", "zero-bubble"]),
        recompute=rng.choice(["none", "selective", "full"]), sequence_parallel=tp > 1 and rng.random() < 0.5,
        overlap_gradients=rng.random() < 0.5, overlap_parameters=rng.random() < 0.5,
    )  # fmt: skip
    return model, split, net


# Links take nothing from computation in a simulation of links.
PLAIN = replace(training.SOFTWARE["compiled"], interference=0.0, dispatch_s=0.0)


def compared(numbers):
    how = {"collectives": "ring", "oversubscribe": True, "software": PLAIN}
    for number in numbers:
        model, split, net = random_case(number)
        rough = training.step(model, split, net, **how)
        fine = training.step(model, split, net, **how, fidelity="exact")
        # Where communication is most of the step, what little the costs of collectives differ by shows.
        near = 0.02 if rough.exposed_s < 0.2 * rough.time_s else 0.15
        assert fine.time_s == pytest.approx(rough.time_s, rel=near), (number, split)
        assert sum(fine.parts.values()) == pytest.approx(fine.time_s, rel=1e-9)
        assert fine.compute_s == pytest.approx(rough.compute_s, rel=1e-6)
        assert fine.fidelity == "exact"


def test_folded_and_exact_agree():
    compared(range(3))


@pytest.mark.slow
def test_folded_and_exact_agree_on_many_steps():
    compared(range(3, 35))


def test_exact_refuses_what_only_folded_knows():
    model, split, net = random_case(0)
    with pytest.raises(ValueError, match=r"^fidelity must be folded or exact; got 'exactly'$"):
        training.step(model, split, net, fidelity="exactly")
    with pytest.raises(
        ValueError, match=r"^stragglers and jitter go with the fidelity folded only$"
    ):
        training.step(model, split, net, oversubscribe=True, fidelity="exact", jitter=0.1)
