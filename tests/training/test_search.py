"""Searching parallelisms, and what-if questions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tacos
from tacos import training
from tacos.errors import SpecError

LLAMA = training.model("llama3-8b")
TWO = tacos.topology.dgx_h100(2, nvls=False)


def test_candidates_are_all_that_go_with_model_and_network():
    found = training.parallelisms(LLAMA, TWO, batch=32, recompute="none", vp=1, microbatch=1, cp=1)
    degrees = {(one.tp, one.pp, one.dp, one.zero) for one in found}
    # By hand: tp within a box of 8, pp up to 16 of 32 layers, a batch of 32 that dp divides.
    wanted = {
        (tp, pp, 16 // (tp * pp), zero)
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4, 8, 16)
        if 16 % (tp * pp) == 0
        for zero in ((1, 3) if pp == 1 else (1,))
    }
    assert degrees == wanted
    assert len(found) == len(wanted)
    assert all(one.npus == 16 and one.batch == 32 for one in found)
    assert all(one.sequence_parallel == (one.tp > 1) for one in found)


def test_experts_are_spread_where_there_are_some():
    mixtral = training.model("mixtral-8x7b")
    found = training.parallelisms(mixtral, TWO, batch=32, tp=1, pp=1, cp=1, microbatch=1)
    assert {one.ep for one in found} == {1, 2, 4, 8}
    assert {one.ep for one in training.parallelisms(LLAMA, TWO, batch=32)} == {1}


def test_ranking_is_by_time_and_counts_what_does_not_fit():
    ranking = training.search(LLAMA, TWO, batch=32, pp=1, cp=1, microbatch=(1, 8))
    times = [one.time_s for one in ranking]
    assert times == sorted(times)
    assert len(ranking) + ranking.too_large == ranking.tried
    assert ranking.too_large > 0
    assert "largest terms" in ranking.refused
    best = ranking[0]
    again = training.step(LLAMA, best.parallel, TWO)
    assert again.time_s == best.time_s
    with pytest.raises(ValueError, match=r"predict it again with step\(\)$"):
        _ = best.workload
    assert ranking.rows()[0]["time_s"] == best.time_s


def test_an_executor_gives_the_same_ranking_and_progress():
    told: list[float] = []
    choices = {"batch": 32, "pp": (1, 2), "vp": 1, "recompute": "none"}
    here = training.search(LLAMA, TWO, **choices)
    with ThreadPoolExecutor(2) as pool:
        there = training.search(LLAMA, TWO, **choices, executor=pool, progress=told.append)
    assert [one.summary() for one in here] == [one.summary() for one in there]
    assert told[-1] == 1
    assert told == sorted(told)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"batch": 33}, r"^no parallelism fits llama3-8b, 16 NPUs and a batch of 33: "),
        ({"batch": 32, "tp": 3}, r"does not divide 16 NPUs$"),
        ({"batch": 32, "ttp": 3}, r"^'ttp' is not a field of Parallelism"),
    ],
)
def test_searches_without_candidates_say_why(choices, message):
    with pytest.raises(ValueError, match=message):
        training.search(LLAMA, TWO, pp=1, cp=1, microbatch=1, **choices)


def test_changes_scale_what_they_name():
    between = TWO.link_bandwidth_Bps < 100e9
    for text, factor in (
        ("nic=2x", np.where(between, 2, 1)),
        ("box=0.5x", np.where(between, 1, 0.5)),
    ):
        network, _ = training.changed(TWO, "h100", text)
        assert (network.link_bandwidth_Bps == TWO.link_bandwidth_Bps * factor).all()
    network, _ = training.changed(TWO, "h100", "latency=0.5x, links=3x")
    assert (network.link_bandwidth_Bps == 3 * TWO.link_bandwidth_Bps).all()
    assert (2 * network.link_latency_ps == TWO.link_latency_ps).all()
    link = int(np.flatnonzero(TWO.link_src == 0)[0])
    ends = f"{TWO.link_src[link]}-{TWO.link_dst[link]}"
    network, _ = training.changed(TWO, "h100", f"{ends}=0.1x")
    assert (network.link_bandwidth_Bps != TWO.link_bandwidth_Bps).sum() == 2
    _, device = training.changed(TWO, "h100", "device=h200,compute=2x,memory=1.5x")
    h200 = training.DEVICES["h200"]
    assert device.peak["bf16"] == 2 * h200.peak["bf16"]
    assert device.memory_Bps == 1.5 * h200.memory_Bps
    assert training.changed(TWO, "h100", "")[0] == TWO


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nic", r"^a change is nic=2x, .*; got 'nic'$"),
        ("nic=fast", r"^the factor of a change is a positive number such as 2x; got 'nic=fast'$"),
        ("nic=0x", r"positive number"),
        ("nics=2x", r"^a change is nic=2x, .*; got 'nics=2x'$"),
        ("device=h1000", r"unknown device 'h1000'"),
    ],
)
def test_changes_that_cannot_be_read(text, message):
    with pytest.raises(SpecError, match=message):
        training.changed(TWO, "h100", text)


def test_a_change_that_changes_nothing_is_an_error():
    with pytest.raises(SpecError, match=r"the network has no links between boxes$"):
        training.changed(tacos.topology.dgx_h100(1, nvls=False), "h100", "nic=2x")
