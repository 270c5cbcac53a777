"""What the faults of a network cost: the line of tacos synth, and bounds of broken networks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import topology as tp
from tacos.cli import main
from tacos.search.fault_cost import fault_cost


@st.composite
def worn(draw):
    network = draw(
        st.sampled_from([tp.dgx_a100(2), tp.mesh(4, 4), tp.rail(3, 4), tp.fully_connected(6)])
    )
    for _ in range(draw(st.integers(1, 4))):
        link = draw(st.integers(0, network.links - 1))
        ends = int(network.link_src[link]), int(network.link_dst[link])
        if draw(st.booleans()):
            factor = draw(st.sampled_from([0.25, 0.5, 0.75]))
            network = tp.degrade(network, ends, factor=factor, both=draw(st.booleans()))
            continue
        try:
            network = tp.drop_links(network, ends, both=draw(st.booleans()))
        except ValueError:  # it would cut off an NPU
            continue
    return network


@settings(max_examples=40, deadline=None)
@given(
    network=worn(),
    kind=st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast"]),
    size=st.sampled_from(["1KB", "1MB", "1GB"]),
)
def test_a_broken_network_has_no_better_bound_than_the_healthy_one(network, kind, size):
    healthy, broken = (
        tacos.bound(one, tacos.collective.named(kind, one, size)).time_ps
        for one in (network.healthy(), network)
    )
    assert healthy <= broken


def test_costs_are_those_of_the_answers():
    topology = tp.drop_links(tp.dgx_h100(2, nvls=False), "npu 0-switch 2", both=True)
    collective = tacos.collective.all_reduce(topology, "64MB")
    schedule = tacos.synthesize(topology, collective, effort="fast")
    cost = fault_cost(schedule)
    assert cost is not None
    assert cost.executed_s == schedule.executed_s
    assert cost.nccl_s == tacos.synthesize(topology, collective, engine="nccl").executed_s
    assert cost.bound_s == tacos.bound(topology, collective).time_s
    healthy = tp.dgx_h100(2, nvls=False)
    assert cost.healthy_bound_s == tacos.bound(healthy, collective).time_s
    assert cost.healthy_bound_s < cost.bound_s < cost.executed_s < cost.nccl_s


def test_npus_that_were_dropped_take_part_when_healthy():
    topology = tp.drop_npus(tp.mesh(3, 3), 4)
    for group, members in ((None, 9), ([0, 5], 2)):
        collective = tacos.collective.all_gather(topology, "9MB", group=group)
        cost = fault_cost(tacos.synthesize(topology, collective, effort="fast"))
        healthy = tacos.collective.all_gather(
            tp.mesh(3, 3), "9MB", group=None if members == 9 else [0, 6]
        )
        assert cost is not None
        assert cost.healthy_bound_s == tacos.bound(tp.mesh(3, 3), healthy).time_s


def test_healthy_networks_have_no_such_cost():
    ring = tp.ring(4)
    assert fault_cost(tacos.synthesize(ring, tacos.collective.all_gather(ring, "1MB"))) is None


def test_synth_says_what_the_faults_cost(tmp_path, capsys):
    file = tmp_path / "worn.yaml"
    worn = tp.drop_links(tp.fully_connected(4), (0, 1), both=True)
    tacos.save(worn, file)
    asked = ["synth", str(file), "all-reduce", "64MB", "--effort", "fast"]
    assert main(asked) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count(" faults ") == 1
    assert shown.count("healthy") == 1
    assert main([*asked, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    healthy = tacos.bound(worn.healthy(), tacos.collective.all_reduce(4, "64MB")).time_s
    assert facts["healthy_bound_s"] == pytest.approx(healthy)
    assert facts["executed_s"] < facts["nccl_s"]
    assert main(["synth", "fc:4", "all-reduce", "64MB", "--json"]) == 0
    assert "faults" not in json.loads(capsys.readouterr().out)
