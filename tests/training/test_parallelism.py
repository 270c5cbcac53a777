"""Parallelism: groups on NPUs, layers on stages, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tacos import training
from tacos.training import Parallelism


def test_groups_by_hand():
    """Eight NPUs as tp 2, dp 2, pp 2: neighbours share tensors, the far half is the second stage."""
    groups = Parallelism(tp=2, dp=2, pp=2).groups()
    assert groups.tp.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups.dp.tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups.pp.tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_another_order_moves_the_pipeline_next_to_each_other():
    groups = Parallelism(tp=2, dp=2, pp=2, order="pp-tp-cp-ep-dp").groups()
    assert groups.pp.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups.tp.tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_experts_are_spread_over_neighbours_among_the_replicas():
    """ep 2 of dp 4 with tp 2: NPUs 0 and 2 share experts, 0 and 4 hold the same ones."""
    groups = Parallelism(tp=2, dp=4, ep=2).groups()
    assert groups.ep.tolist()[0] == [0, 2]
    assert groups.edp.tolist()[0] == [0, 4]


def test_replicas_and_parts_of_sequences_hold_the_same_parameters():
    groups = Parallelism(tp=2, cp=2, dp=2).groups()
    assert groups.cp.tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups.dp.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


degrees = st.integers(1, 4)


@given(degrees, degrees, degrees, degrees, st.permutations(["tp", "cp", "ep", "dp", "pp"]))
def test_every_npu_is_in_one_group_of_each_kind(tp, cp, dp, pp, order):
    parallel = Parallelism(tp=tp, cp=cp, dp=dp, pp=pp, ep=dp, order="-".join(order))
    groups = parallel.groups()
    for kind in ("tp", "cp", "ep", "dp", "edp", "pp"):
        members = getattr(groups, kind)
        assert sorted(members.ravel().tolist()) == list(range(parallel.npus))
    # All NPUs of a tensor-parallel group are in the same stage of the pipeline.
    for row in groups.tp:
        assert len(np.unique(np.argwhere(np.isin(groups.pp, row))[:, 1])) == 1


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 200), st.booleans())
def test_layers_are_dealt_out_evenly(pp, vp, layers, counted):
    parallel = Parallelism(pp=pp, vp=vp if pp > 1 else 1, count_embedding=counted)
    stages = pp * parallel.vp
    assume(stages <= layers)
    dealt = parallel.stage_layers(layers)
    assert sum(dealt) == layers
    work = list(dealt)
    if counted:
        work[0] += 1
        work[-1] += 1
    assert max(work) - min(work) <= 1


def test_llama_405b_as_it_was_trained():
    """126 layers, embedding and output on 8 x 8 virtual stages: two layers each, and one less at both ends."""
    dealt = Parallelism(pp=8, vp=8, count_embedding=True).stage_layers(126)
    assert dealt == (1, *[2] * 62, 1)


def test_dp_follows_from_the_network():
    assert Parallelism(tp=8, pp=4).on(256).dp == 8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tp": 0}, "tp must be a positive number; got 0"),
        ({"dp": 3, "microbatch": 2, "batch": 10}, "batch must be a multiple of dp · microbatch"),
        ({"recompute": "some"}, "recompute must be one of none, selective, alternate, full"),
        ({"schedule": "2f2b"}, "schedule must be one of 1f1b, gpipe"),
        ({"zero": 4}, "zero must be one of 0, 1, 2, 3; got 4"),
        ({"order": "tp-pp"}, "order must name each of tp-cp-ep-dp-pp once"),
        ({"vp": 2}, "vp must be 1 without a pipeline"),
        ({"pp": 2, "vp": 2, "schedule": "zero-bubble"}, "vp must be 1 with the schedule"),
        ({"pp": 2, "layers": (1, 2, 3)}, "layers must have an entry for each of 2 virtual stages"),
        ({"dp": 4, "ep": 3}, "ep must divide dp · cp = 4; got 3"),
    ],
)
def test_what_no_step_can_have(wrong, message):
    with pytest.raises(ValueError, match=message):
        Parallelism(**wrong)


@pytest.mark.parametrize(
    ("model", "wrong", "message"),
    [
        ("llama3-8b", {"tp": 64}, "tp must divide the 32 heads of llama3-8b; got 64"),
        ("llama3-8b", {"pp": 64}, "pp · vp = 64 must be at most the 32 layers of llama3-8b"),
        ("llama3-8b", {"cp": 3}, "cp must divide the sequence length 8192"),
        ("llama3-8b", {"dp": 2, "ep": 2}, "ep must be 1 for llama3-8b, which has no experts"),
        ("mixtral-8x7b", {"dp": 16, "ep": 16}, "ep must divide the 8 experts of mixtral-8x7b"),
        ("resnet50", {"tp": 2}, "tp must be 1 for resnet50, which is not a transformer"),
        ("llama3-8b", {"pp": 2, "layers": (10, 10)}, "layers must add up to the 32 layers"),
    ],
)
def test_what_cannot_be_done_with_a_model(model, wrong, message):
    with pytest.raises(ValueError, match=message):
        Parallelism(**wrong).check(training.model(model))


def test_degrees_that_do_not_multiply_to_the_network():
    with pytest.raises(ValueError, match="= 24, but the network has 16 NPUs"):
        Parallelism(tp=8, dp=3).on(16)
    with pytest.raises(ValueError, match="does not divide the network's 12 NPUs"):
        Parallelism(tp=8).on(12)
