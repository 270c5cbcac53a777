"""Steps: pipelines and overlap by hand, parts that add up, and what must not get worse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import training
from tacos._core import pipeline
from tacos.errors import SpecError
from tacos.training import DEVICES, SOFTWARE, Parallelism
from tacos.training.communication import LAUNCH_S, Communication, communication

GPIPE, ONE_EACH, ZERO_BUBBLE = 0, 1, 2
SMALL = training.Transformer(
    layers=8, hidden=1024, heads=16, ffn=4096, vocabulary=32000, sequence=1024, tied=False
)
QUIET = replace(SOFTWARE["current"], step_s=0.0, interference=0.0)


def simulated(rule, stages, chunks, microbatches, forward=100, backward=200, weight=0, **others):
    """The passes of a pipeline whose stages are equal; times in picoseconds."""

    def column(value):
        return np.full(stages * chunks, value, np.int64)

    given_ = {"send": 0, "blocking": False, "ready_start": 0, "ready_end": 0} | others
    return pipeline(
        rule=rule,
        stages=stages,
        chunks=chunks,
        microbatches=microbatches,
        blocking=given_["blocking"],
        forward=column(forward),
        backward=column(backward),
        weight=column(weight),
        send_forward=column(given_["send"]),
        send_backward=column(given_["send"]),
        ready_start=column(given_["ready_start"]),
        ready_end=column(given_["ready_end"]),
        stretch_ppm=np.zeros(0, np.int64),
    )


@pytest.mark.parametrize("rule", [GPIPE, ONE_EACH])
@given(st.integers(1, 8), st.integers(1, 20))
def test_equal_stages_wait_for_all_but_one_other_stage(rule, stages, microbatches):
    """(m + p - 1) passes of each direction: a bubble of (p - 1) / m."""
    times = simulated(rule, stages, 1, microbatches)
    assert times.end_ps.max() == (microbatches + stages - 1) * 300


@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 4))
def test_virtual_stages_divide_the_bubble(stages, chunks, rounds):
    """(m v + p - 1) passes of 1/v of the length: a bubble of (p - 1) / (v m)."""
    times = simulated(ONE_EACH, stages, chunks, rounds * stages)
    assert times.end_ps.max() == (rounds * stages * chunks + stages - 1) * 300


@given(st.integers(2, 8), st.integers(1, 5), st.integers(1, 25))
def test_any_number_of_microbatches_finishes(stages, chunks, microbatches):
    times = simulated(ONE_EACH, stages, chunks, microbatches)
    assert len(times.stage) == 2 * stages * chunks * microbatches
    assert times.end_ps.max() >= (microbatches * chunks + stages - 1) * 300


@given(st.integers(2, 8), st.integers(0, 12))
def test_gradients_of_weights_fill_the_bubble(stages, more):
    """Three equal parts (forward, inputs, weights): ZB-H1 leaves (p - 1) of 3 (p - 1) parts of the bubble."""
    microbatches = stages + more
    times = simulated(ZERO_BUBBLE, stages, 1, microbatches, 100, 200, 100)
    assert times.end_ps.max() == microbatches * 300 + (stages - 1) * 100
    plain = simulated(ONE_EACH, stages, 1, microbatches)
    assert times.in_flight.tolist() == plain.in_flight.tolist()


@given(st.integers(2, 8), st.integers(1, 12), st.integers(1, 3), st.booleans())
def test_passes_of_a_stage_do_not_overlap_and_follow_their_inputs(stages, groups, chunks, blocking):
    times = simulated(ONE_EACH, stages, chunks, groups * stages, send=30, blocking=blocking)
    end = {}
    for s, c, b, kind, begin, done in zip(
        times.stage.tolist(),
        times.chunk.tolist(),
        times.microbatch.tolist(),
        times.kind.tolist(),
        times.start_ps.tolist(),
        times.end_ps.tolist(),
        strict=True,
    ):
        end[c * stages + s, b, kind] = (begin, done)
    last = stages * chunks - 1
    for (place, b, kind), (begin, _) in end.items():
        if kind == 0 and place > 0:
            assert begin >= end[place - 1, b, 0][1] + 30
        if kind == 1:
            assert begin >= (end[place + 1, b, 1][1] + 30 if place < last else end[place, b, 0][1])
    per_stage = times.start_ps.reshape(stages, -1)
    assert (per_stage[:, 1:] >= times.end_ps.reshape(stages, -1)[:, :-1]).all()


def test_one_microbatch_and_two_stages_by_hand():
    """Forward 100, send 30, forward 100, backward 200, send 30, backward 200."""
    times = simulated(ONE_EACH, 2, 1, 1, send=30)
    assert times.end_ps.max() == 660


def test_a_pipeline_with_columns_of_the_wrong_length_is_refused():
    one = np.ones(1, np.int64)
    with pytest.raises(ValueError, match="has 1 entries; the pipeline has 2 virtual stages"):
        pipeline(
            rule=1, stages=2, chunks=1, microbatches=1, blocking=False, forward=one, backward=one,
            weight=one, send_forward=one, send_backward=one, ready_start=one, ready_end=one,
            stretch_ppm=np.zeros(0, np.int64),
        )  # fmt: skip


# Communication.


def test_a_group_alone_takes_what_nccl_takes():
    """The time of nccl-tests, without what its host adds between two kernels."""
    topology = tacos.topology.dgx_h100(4, nvls=False)
    collective = tacos.collective.all_reduce(topology, 2**30)
    alone = Communication(topology).of(np.arange(32, dtype=np.int32)[None])
    assert alone.seconds("all_reduce", 2**30) == pytest.approx(
        tacos.nccl.estimate(topology, collective).time_s, rel=0.01
    )


def test_groups_on_rails_do_not_share_links():
    """Eight groups of one NPU per box have a NIC each: as fast as one of them alone."""
    topology = tacos.topology.dgx_h100(4, nvls=False)
    costs = Communication(topology)
    rails = np.arange(32, dtype=np.int32).reshape(4, 8).T.copy()
    together = costs.of(rails).seconds("all_reduce", 2**28)
    assert together == pytest.approx(costs.of(rails[:1].copy()).seconds("all_reduce", 2**28))


def test_groups_share_the_links_between_switches():
    """Two leaves with one uplink of 25 GB/s each: four pairs across take four times as long as one."""
    topology = tacos.topology.fat_tree(
        2, 4, bandwidth="25GB/s", oversubscription=4, routing="first"
    )
    costs = Communication(topology)
    pairs = np.array([[i, i + 4] for i in range(4)], np.int32)
    one = costs.of(pairs[:1].copy()).seconds("all_reduce", 2**30)
    assert costs.of(pairs).seconds("all_reduce", 2**30) == pytest.approx(4 * one, rel=0.01)


def test_a_slow_link_slows_its_collective():
    topology = tacos.topology.dgx_h100(2, nvls=False)
    nic = next(
        (int(a), int(b))
        for a, b, speed in zip(
            topology.link_src, topology.link_dst, topology.link_bandwidth_Bps, strict=True
        )
        if a == 3 and speed == 50e9
    )
    worn = tacos.topology.degrade(topology, nic, factor=0.5, both=True)
    rails = np.arange(16, dtype=np.int32).reshape(2, 8).T.copy()
    healthy, halved = (
        Communication(one).of(rails).seconds("all_reduce", 2**30) for one in (topology, worn)
    )
    assert 1.8 < halved / healthy < 2.1


def test_nccl_is_the_faster_of_both_on_a_network_with_faults():
    """An NVLink at half speed: NCCL that does not know of it keeps its trees, which beat the NVLS trees of a new search."""
    worn = tacos.topology.degrade(tacos.topology.dgx_h100(4), (3, 32), factor=0.5, both=True)
    everyone = Communication(worn).of(np.arange(32, dtype=np.int32)[None])
    coll = tacos.collective.all_reduce(worn, 4 << 20)
    again, unaware = (
        tacos.nccl.estimate(worn, coll, aware=aware).candidates[0] for aware in (True, False)
    )
    assert unaware.time_s < again.time_s
    wire_s, engine = everyone.reference("all_reduce", 4 << 20)
    assert engine == "nccl-unaware"
    assert wire_s == everyone.seconds("all_reduce", 4 << 20)
    assert wire_s == pytest.approx(LAUNCH_S + unaware.bytes_s + unaware.steps_s)
    assert everyone.schedule("all_reduce", 4 << 20).engine == "nccl-unaware"


def test_messages_of_all_pairs_share_links():
    """All NPUs of a box send over their own NICs: 1 GB at 0.96 · 50 GB/s."""
    topology = tacos.topology.dgx_h100(2, nvls=False)
    first = np.arange(8, dtype=np.int32)
    seconds = communication(topology).messages(first, first + 8, 1e9)
    assert seconds == pytest.approx([1e9 / (0.96 * 50e9)] * 8, rel=0.01)


@pytest.mark.slow
def test_synthesized_collectives_never_cost_more_than_nccl():
    topology = tacos.topology.dgx_h100(2, nvls=False)
    groups = np.arange(16, dtype=np.int32).reshape(2, 8)
    for kind in ("all_gather", "all_reduce"):
        nccl = Communication(topology, "nccl").of(groups).seconds(kind, 2**26)
        assert Communication(topology, "forest").of(groups).seconds(kind, 2**26) <= nccl


@pytest.mark.parametrize("collectives", ["nccl", "ring", "auto"])
def test_the_slowest_group_decides(collectives):
    """The NIC of NPU 3 in the first box is half as fast. All-gathers over the rails end when the slowest does."""
    boxes = tacos.topology.dgx_h100(2, nvls=False)
    rails = np.ascontiguousarray(np.arange(16, dtype=np.int32).reshape(2, 8).T)
    slow = training.disturbed(boxes, ["nic=3,slowdown=2"])
    usual, slower = (
        Communication(network, collectives).of(rails).seconds("all_gather", 2**30)
        for network in (boxes, slow)
    )
    assert slower == pytest.approx(2 * usual, rel=0.03)


def test_a_library_of_tuned_algorithms(tmp_path):
    from tacos.library import add

    topology = tacos.topology.dgx_h100(1, nvls=False)
    schedule = tacos.synthesize(
        topology, tacos.collective.all_reduce(topology, "64MB", chunks=1), engine="ring"
    )
    add(tmp_path, schedule)
    costs = Communication(topology, str(tmp_path))
    group = np.arange(8, dtype=np.int32)[None]
    nccl = Communication(topology, "nccl").of(group)
    assert costs.of(group).seconds("all_reduce", 2**26) <= nccl.seconds("all_reduce", 2**26)
    # There is no plan for an all-gather.
    assert costs.of(group).seconds("all_gather", 2**26) == nccl.seconds("all_gather", 2**26)
    # All ranks can be simulated with the same algorithms.
    nodes, sized = costs.of(group).algorithm("all_reduce", 2**27)
    assert (nodes.program.ranks, sized.size_bytes) == (8, 2**27)
    model, split = training.model("mpt-125m"), training.Parallelism(tp=1, dp=8, batch=8)
    step = training.step(model, split, topology, collectives=str(tmp_path), fidelity="exact")
    assert step.exposed_s > 0


# Steps.


def test_parts_add_up():
    topology = tacos.topology.dgx_h100(2, nvls=False)
    for parallel in (
        Parallelism(tp=2, pp=2, batch=64, zero=1),
        Parallelism(tp=2, pp=2, vp=2, batch=64, sequence_parallel=True, overlap_tensor=True,
                    overlap_gradients=True, overlap_parameters=True, zero=1),
        Parallelism(zero=3, batch=64),
        Parallelism(zero=2, batch=64, overlap_gradients=True, overlap_parameters=True),
        Parallelism(pp=4, batch=64, schedule="zero-bubble"),
        Parallelism(pp=4, batch=64, schedule="gpipe", recompute="full"),
        Parallelism(cp=2, pp=2, batch=64, recompute="selective"),
    ):  # fmt: skip
        for software in SOFTWARE:
            found = training.step(SMALL, parallel, topology, software=software)
            assert sum(found.parts.values()) == pytest.approx(found.time_s, rel=1e-12)
            assert min(found.parts.values()) >= 0
            assert found.exposed_s == pytest.approx(sum(found.exposed.values()))
            shown = {name for name in found.exposed if found.exposed[name] > 0}
            assert shown <= set(found.communication_s)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "selective", "alternate", "full"]),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(["1f1b", "gpipe", "zero-bubble"]),
)
def test_any_parallelism_has_parts_that_add_up(
    tp, pp, cp, micro, recompute, zero, overlap, schedule
):
    parallel = Parallelism(
        tp=tp, pp=pp, cp=cp, microbatch=micro, batch=64, recompute=recompute, zero=zero, schedule=schedule,
        sequence_parallel=overlap, overlap_tensor=overlap, overlap_gradients=overlap,
        overlap_parameters=overlap,
    )  # fmt: skip
    found = training.step(
        SMALL, parallel, tacos.topology.dgx_h100(4, nvls=False), oversubscribe=True
    )
    assert sum(found.parts.values()) == pytest.approx(found.time_s, rel=1e-12)
    assert min(found.parts.values()) >= 0
    assert 0 < found.mfu < 1


def test_a_step_without_communication_by_hand():
    """One NPU: micro-batches, the optimizer, nothing else."""
    one = tacos.topology.subset(tacos.topology.dgx_h100(1, nvls=False), [0])
    found = training.step(SMALL, Parallelism(batch=4), one, software=QUIET)
    assert found.exposed == {}
    assert found.bubble_s == 0
    h100 = DEVICES["h100"]
    update = 34 * SMALL.parameters / (h100.memory_Bps * h100.memory_share) + h100.kernel_s
    twice = training.step(SMALL, Parallelism(batch=8), one, software=QUIET)
    assert twice.time_s - update == pytest.approx(2 * (found.time_s - update))


def test_gradients_are_summed_in_what_nccl_takes():
    """Data parallelism without overlap: an all-reduce of four bytes per parameter after the backward pass."""
    topology = tacos.topology.dgx_h100(1, nvls=False)
    found = training.step(SMALL, Parallelism(dp=8), topology, software=QUIET)
    family = communication(topology).of(np.arange(8, dtype=np.int32)[None])
    assert found.exposed["dp all-reduce"] == pytest.approx(
        family.seconds("all_reduce", 4.0 * SMALL.parameters)
    )


def test_overlapped_gradients_leave_the_last_bucket():
    """If buckets are summed faster than layers are computed, only the last one is exposed."""
    topology = tacos.topology.dgx_h100(1, nvls=False)
    parallel = Parallelism(dp=8, microbatch=8, overlap_gradients=True)
    found = training.step(SMALL, parallel, topology, software=QUIET, oversubscribe=True)
    family = communication(topology).of(np.arange(8, dtype=np.int32)[None])
    bucket = family.seconds("all_reduce", 4.0 * SMALL.parameters / SMALL.layers)
    assert found.exposed["dp all-reduce"] == pytest.approx(bucket)


def test_a_pipeline_waits_for_its_bubble():
    """Four equal stages and eight micro-batches: a bubble of 3/8 of the passes."""
    topology = tacos.topology.scale(
        tacos.topology.dgx_h100(1, nvls=False), bandwidth=1000, latency=0
    )
    model = training.Transformer(
        layers=64, hidden=2048, heads=16, ffn=8192, vocabulary=64, sequence=2048, tied=False
    )
    parallel = Parallelism(pp=4, dp=2, batch=16)
    found = training.step(model, parallel, topology, software=QUIET, oversubscribe=True)
    passes = found.compute_s + found.idle_s
    assert found.bubble_s / passes == pytest.approx(3 / 8, rel=0.05)


def test_what_must_not_make_a_step_slower():
    topology = tacos.topology.dgx_h100(2, nvls=False)
    base = Parallelism(tp=4, dp=4, batch=64, sequence_parallel=True, zero=1)

    def time_s(parallel=base, network=topology, **others):
        return training.step(SMALL, parallel, network, oversubscribe=True, **others).time_s

    usual = time_s()
    assert time_s(replace(base, overlap_tensor=True)) <= usual
    assert time_s(replace(base, overlap_gradients=True)) <= usual
    assert time_s(replace(base, overlap_parameters=True)) <= usual
    assert time_s(network=tacos.topology.scale(topology, bandwidth=2)) < usual
    assert time_s(device="h200") <= usual
    assert time_s(dtype="fp8") < usual
    # And what must make it slower.
    assert time_s(replace(base, recompute="selective")) > usual
    assert time_s(replace(base, recompute="full")) > time_s(replace(base, recompute="selective"))
    assert time_s(stragglers={5: 1.5}) > usual
    assert time_s(network=tacos.topology.scale(topology, bandwidth=0.5)) > usual


def test_a_straggler_slows_its_stage_alone():
    """A stage that computes half as fast sets the pace: its passes take twice as long."""
    topology = tacos.topology.dgx_h100(1, nvls=False)
    parallel = Parallelism(pp=4, dp=2, batch=64)
    usual, slow = (
        training.step(
            training.model("llama2-7b"), parallel, topology, stragglers=who, oversubscribe=True
        )
        for who in (None, {4: 2.0})
    )
    assert 1.4 < slow.time_s / usual.time_s < 2.0
    with pytest.raises(ValueError, match="stragglers names NPU 8; the network has 8 NPUs"):
        training.step(SMALL, parallel, topology, stragglers={8: 2.0})


def test_jitter_depends_on_the_seed_alone():
    topology = tacos.topology.dgx_h100(1, nvls=False)
    parallel = Parallelism(pp=4, dp=2, batch=64)
    times = [
        training.step(SMALL, parallel, topology, jitter=0.1, seed=seed, oversubscribe=True).time_s
        for seed in (1, 1, 2)
    ]
    assert times[0] == times[1] != times[2]


def test_free_communication_bounds_every_other():
    topology = tacos.topology.dgx_h100(2, nvls=False)
    parallel = Parallelism(tp=2, pp=2, batch=64, zero=1)
    free, nccl = (
        training.step(SMALL, parallel, topology, collectives=one) for one in ("free", "nccl")
    )
    assert free.exposed_s == 0
    assert free.compute_s == pytest.approx(nccl.compute_s)
    assert free.time_s < nccl.time_s


def test_experts_exchange_tokens():
    found = training.step(
        training.model("mixtral-8x7b"), Parallelism(dp=16, ep=8, zero=1), tacos.topology.dgx_h100(2, nvls=False),
        oversubscribe=True,
    )  # fmt: skip
    assert found.exposed["ep all-to-all"] > 0


@pytest.mark.parametrize("name", ["resnet50", "gnmt", "dlrm", "bert-large"])
def test_other_models(name):
    found = training.step(
        training.model(name), Parallelism(dp=8, microbatch=32), tacos.topology.dgx_a100(1),
        device="a100-80gb", dtype="fp16",
    )  # fmt: skip
    assert found.tokens_per_s > 0


def test_any_network_will_do():
    for topology in (
        tacos.topology.torus(4, 4),
        tacos.topology.drop_links(tacos.topology.torus(4, 4), (0, 1), both=True),
        tacos.topology.fat_tree(4, 4, bandwidth="25GB/s"),
        tacos.topology.mi300x(2),
    ):
        found = training.step(
            SMALL, Parallelism(tp=2, pp=2, batch=16), topology, oversubscribe=True
        )
        assert found.time_s > 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "h1000"}, SpecError, "unknown device"),
        ({"dtype": "fp4"}, ValueError, "dtype must be one of .* on h100; got 'fp4'"),
        ({"software": "new"}, SpecError, "unknown software"),
        ({"collectives": "rng"}, ValueError, "rng"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        training.step(SMALL, Parallelism(tp=8), tacos.topology.dgx_h100(1, nvls=False), **options)
