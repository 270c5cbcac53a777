"""The graph of a step, and the exact simulation compared with the folded one."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

import tacos
from tacos import training
from tacos._core import run_workload
from tacos.simulate import Fault, astra
from tacos.workload import COLL, COMP, RECV, SEND

ONE, TWO = tacos.topology.dgx_h100(1, nvls=False), tacos.topology.dgx_h100(2, nvls=False)


def small(**shape):
    usual = {
        "layers": 2,
        "hidden": 4096,
        "heads": 32,
        "ffn": 16384,
        "vocabulary": 32000,
        "sequence": 2048,
    }
    return training.Transformer(name="small", **usual | shape)


def run(routes, nodes, messages, pairs):
    """Run nodes (rank, kind, duration, message, waits for) and messages (bytes, connection)."""
    rank, kind, duration, message, waits = zip(*nodes, strict=True)
    return run_workload(
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


def test_a_workload_by_hand():
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
    start, end = run(routes, nodes, [(1000, 0), (1000, 1)], pairs)
    assert (end[:5] / us).tolist() == [1, 3, 3, 4, 4]
    assert (start[5:] / us).tolist() == [4, 0, 0]
    assert (end[5:] / us).tolist() == [9, 2, 3]
    # Over one connection they follow one another.
    _, end = run(routes, nodes, [(1000, 0), (1000, 0)], pairs)
    assert (end[:6] / us).tolist() == [1, 2, 3, 3, 4, 9]


def test_jobs_that_never_end_and_broken_columns_are_errors():
    routes = tacos.routes(ONE, pairs=([0], [1]))
    with pytest.raises(ValueError, match=r"^message 0 lacks a send or a receive$"):
        run(routes, [(0, 0, 0, 0, [])], [(1, 0)], [(0, 1)])
    with pytest.raises(ValueError, match=r"^dep has a value out of range$"):
        run(routes, [(0, 2, 1, -1, [7])], [], [(0, 1)])
    with pytest.raises(ValueError, match=r"^node 0 has message -1$"):
        run(routes, [(0, 0, 0, -1, [])], [], [(0, 1)])


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


# The simulation of links does not slow computation down while links are busy.
PLAIN = replace(training.SOFTWARE["compiled"], interference=0.0, dispatch_s=0.0)


def compared(numbers):
    how = {"collectives": "ring", "oversubscribe": True, "software": PLAIN}
    for number in numbers:
        model, split, net = random_case(number)
        rough = training.step(model, split, net, **how)
        fine = training.step(model, split, net, **how, fidelity="exact")
        # If much of the step is communication, small differences between the costs of collectives show.
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


def test_overlap_of_tensor_and_expert_parallelism_is_in_the_graph():
    """Parts of tensors circulate while matrix products run; exchanges with experts overlap with a layer."""
    how = {"collectives": "ring", "oversubscribe": True, "software": PLAIN}
    some = training.Experts(count=16, active=2, ffn=4096)
    for model, split, flag in (
        (small(sequence=8192), training.Parallelism(tp=8, sequence_parallel=True, batch=2), "overlap_tensor"),
        (small(sequence=8192), training.Parallelism(tp=8, batch=2), "overlap_tensor"),
        (small(sequence=4096, experts=some), training.Parallelism(dp=8, ep=8, batch=8), "overlap_experts"),
    ):  # fmt: skip
        plain, overlapped = split, replace(split, **{flag: True})
        rough, fine = (
            [
                training.step(model, one, ONE, **how, fidelity=fidelity)
                for one in (plain, overlapped)
            ]
            for fidelity in ("folded", "exact")
        )
        assert fine[1].time_s < 0.97 * fine[0].time_s
        assert fine[1].time_s == pytest.approx(rough[1].time_s, rel=0.03)
        assert fine[1].compute_s == pytest.approx(fine[0].compute_s, rel=1e-6)
        assert fine[1].exposed_s == pytest.approx(rough[1].exposed_s, rel=0.3)


def test_unknown_fidelities_are_refused():
    with pytest.raises(
        ValueError, match=r"^fidelity must be one of folded, exact, astra; got 'exactly'$"
    ):
        training.step(*random_case(0), fidelity="exactly")


def test_a_straggler_and_jitter_stretch_the_computations_of_their_ranks():
    model, split = small(), training.Parallelism(tp=2, dp=4, batch=4)
    how = {"collectives": "ring", "software": PLAIN, "fidelity": "exact"}
    usual = training.step(model, split, ONE, **how)
    slow = training.step(model, split, ONE, **how, stragglers={3: 2.0})
    w = slow.workload
    lasts = np.bincount(w.rank, w.duration_ps)
    assert lasts[3] == pytest.approx(2 * lasts[0], rel=1e-6)
    # All ranks wait for it, in every layer or at the end: the step is longer by its extra computation.
    assert slow.time_s == pytest.approx(usual.time_s + lasts[0] * 1e-12, rel=0.02)
    rough = training.step(model, split, ONE, **how | {"fidelity": "folded"}, stragglers={3: 2.0})
    assert slow.time_s == pytest.approx(rough.time_s, rel=0.02)
    noisy = [training.step(model, split, ONE, **how, jitter=0.2, seed=seed) for seed in (1, 1, 2)]
    assert noisy[0].time_s == noisy[1].time_s != noisy[2].time_s
    spread = np.bincount(noisy[0].workload.rank, noisy[0].workload.duration_ps)
    assert len(set(spread.tolist())) == 8
    # The host's part of a step does not count as computation of any rank.
    hosts = training.step(model, split, ONE, **how | {"software": "current"}, stragglers={3: 2.0})
    assert hosts.idle_s == pytest.approx(0.1)


def test_slow_and_dead_links_make_the_step_longer():
    """The other NICs of a box carry the traffic of a dead NIC; a slow NIC keeps its own. In all fidelities."""
    model, split = small(), training.Parallelism(tp=8, dp=2, batch=2)
    for fidelity in ("folded", "exact", "astra"):
        how = {"collectives": "nccl", "software": PLAIN, "fidelity": fidelity}
        usual = training.step(model, split, TWO, **how).time_s
        for fault in ("nic=3", "nic=3,slowdown=4", "link=3-18,slowdown=4"):
            assert training.step(model, split, TWO, **how, faults=[fault]).time_s > 1.01 * usual, (
                fidelity,
                fault,
            )
    slow = training.disturbed(TWO, [Fault(npu=1, slowdown=2), "link=0-16,slowdown=2,both=yes"])
    assert (slow.link_bandwidth_Bps != TWO.link_bandwidth_Bps).sum() == 4 + 2
    with pytest.raises(ValueError, match="lasts for the whole step"):
        training.disturbed(TWO, ["nic=3,begin=1ms"])
    with pytest.raises(ValueError, match="no link of its own"):
        training.disturbed(ONE, ["nic=3"])


def test_groups_whose_members_are_no_neighbours():
    """On a torus, members of a group may reach each other only through other NPUs."""
    torus = tacos.topology.torus(4, 4, bandwidth="100GB/s")
    split = training.Parallelism(tp=2, pp=2, dp=4, batch=8)
    rough = training.step(small(), split, torus, collectives="ring", software=PLAIN)
    fine = training.step(
        small(), split, torus, collectives="ring", software=PLAIN, fidelity="exact"
    )
    assert fine.time_s == pytest.approx(rough.time_s, rel=0.15)
    assert min(rough.exposed_s, fine.exposed_s) > 0


def test_timelines_of_both_fidelities(tmp_path):
    model, split = (
        small(layers=4),
        training.Parallelism(tp=4, pp=2, batch=4, zero=1, overlap_parameters=True),
    )
    rough = training.step(model, split, ONE, collectives="ring", software=PLAIN)
    line = rough.timeline
    assert line.workload.npus == 2
    assert line.end_ps.max() == pytest.approx(rough.time_s * 1e12, rel=1e-9)
    names = [line.label(row) for row in range(line.workload.nodes)]
    assert names.count("forward 0") == 2
    assert names.count("optimizer") == 2
    passes = np.bincount(line.stream)
    assert passes[0] == 2 * (4 * 2 + 1)
    fine = training.step(model, split, ONE, collectives="ring", software=PLAIN, fidelity="exact")
    assert fine.timeline.workload is fine.workload
    assert fine.timeline.end_ps.max() == fine.time_s * 1e12
    for step in (rough, fine):
        step.timeline.save(tmp_path / "step.json")
        events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
        assert {event["pid"] for event in events} == set(range(step.timeline.workload.npus))
