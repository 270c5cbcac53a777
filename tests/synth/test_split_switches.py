"""Networks whose switches are replaced by links from port to port, and schedules found on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import topology as tp
from tacos.execution import execution
from tacos.synth.split_switches import split_switches


def boxes(count):
    return tp.dgx_h100(count, nvls=False)


def split(topology):
    found = split_switches(topology)
    assert found is not None
    return found


@st.composite
def worn_boxes(draw):
    """Boxes with dead NICs, slow links and missing GPUs."""
    topology = boxes(draw(st.integers(2, 3)))
    fabric = topology.nodes - 1
    dead = draw(st.sets(st.integers(0, 7), max_size=3))
    topology = tp.drop_links(topology, *((npu, fabric) for npu in dead), both=True)
    for _ in range(draw(st.integers(0, 2))):
        link = draw(st.integers(0, topology.links - 1))
        ends = int(topology.link_src[link]), int(topology.link_dst[link])
        factor = draw(st.sampled_from([0.25, 0.5, 0.75]))
        topology = tp.degrade(topology, ends, factor=factor, both=True)
    if draw(st.booleans()):
        topology = tp.drop_npus(topology, 12)
    return topology


@settings(max_examples=30, deadline=None)
@given(topology=worn_boxes(), shared=st.booleans())
def test_paths_lead_from_port_to_port_and_fit_into_the_network(topology, shared):
    found = split_switches(topology, shared=shared)
    if not shared:
        assume(found is not None)  # a ring without shared ports may leave a slow NPU out
    assert found is not None
    assert found.topology.switches == 0
    carried = np.zeros(topology.links, np.int64)
    for link in range(found.topology.links):
        path = found.links[found.link_begin[link] : found.link_begin[link + 1]]
        assert topology.link_src[path[0]] == found.topology.link_src[link]
        assert topology.link_dst[path[-1]] == found.topology.link_dst[link]
        assert (topology.link_dst[path[:-1]] == topology.link_src[path[1:]]).all()
        assert topology.link_latency_ps[path].sum() == found.topology.link_latency_ps[link]
        carried[path] += found.topology.link_bandwidth_Bps[link]
    assert (carried <= topology.link_bandwidth_Bps).all()
    assert not (found.shared and not shared)


@settings(max_examples=30, deadline=None)
@given(
    topology=worn_boxes(),
    shared=st.booleans(),
    kind=st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]),
    size=st.integers(10_000, 3_000_000_000),
    chunks=st.integers(1, 3),
)
def test_schedules_are_right_on_the_whole_network(topology, shared, kind, size, chunks):
    found = split_switches(topology, shared=shared)
    if not shared:
        assume(found is not None)  # a ring without shared ports may leave a slow NPU out
    assert found is not None
    collective = tacos.collective.named(kind, topology, size, chunks=chunks)
    back = found.returned(tacos.synthesize(found.topology, collective, engine="greedy"))
    assert back.topology == topology
    assert tacos.verify(back).ok


def test_a_dead_nic_costs_its_box_one_port_and_no_message_meets_another():
    topology = tp.drop_links(boxes(2), "npu 0-switch 2", both=True)
    found = split(topology)
    between = found.topology.link_src // 8 != found.topology.link_dst // 8
    assert not found.shared
    assert between.sum() == 14
    assert (found.topology.link_bandwidth_Bps[between] == 50 * 10**9).all()
    collective = tacos.collective.all_gather(topology, "1GB", chunks=16)
    there = tacos.synthesize(found.topology, collective, engine="greedy")
    ran = execution(found.returned(there))
    assert ran is not None
    assert {ran.order_ps, ran.first_come_ps, ran.shared_ps} == {there.time_ps}
    assert there.time_s < 1.02 * tacos.bound(topology, collective).time_s


def test_slow_ports_share_peers_with_their_neighbours():
    """NPU 0 takes in half of what NPU 7 sends, and the other half goes past it to NPU 1."""
    topology = tp.degrade(boxes(1), (0, 8), factor=0.5, both=True)
    found = split(topology)
    pairs = zip(found.topology.link_src.tolist(), found.topology.link_dst.tolist(), strict=True)
    speeds = dict(zip(pairs, (found.topology.link_bandwidth_Bps / 1e9).tolist(), strict=True))
    assert speeds[7, 0] == speeds[7, 1] == speeds[0, 1] == 225
    assert speeds[1, 2] == speeds[6, 7] == 450


@pytest.mark.parametrize(
    "network",
    [
        tp.torus(4, 4),
        tp.switch(1),
        tp.switch(8, multicast=True, reduce=True),
        tp.switch(8, link_model="blocking"),
        tp.switch(8, forwarding="store_and_forward"),
    ],
)
def test_networks_without_switches_to_split(network):
    assert split_switches(network) is None


def test_data_between_bridges_passes_the_gpus_of_each():
    """Each box has two PCIe switches of four GPUs, joined with each other and each with a NIC: no bandwidth is lost."""
    links = []
    for npu in range(16):
        links += [(npu, 16 + npu // 4, 25e9, 0), (16 + npu // 4, npu, 25e9, 0)]
    for bridge in range(16, 20):
        links += [(bridge, bridge ^ 1, 20e9, 0), (bridge, 20, 12.5e9, 0), (20, bridge, 12.5e9, 0)]
    network = tp.from_links(16, links, switches=5)
    found = split(network)
    whole, rings = (
        tacos.bound(one, tacos.collective.all_gather(one, "1GB")).time_s
        for one in (network, found.topology)
    )
    assert rings < 1.001 * whole


def test_links_that_no_message_would_take_are_left_out():
    """Box 1 has a port more than box 0, and programs would send between its NPUs over NVSwitch."""
    topology = tp.drop_links(boxes(2), "npu 0-switch 2", both=True)
    found = split(topology)
    inside = found.topology.link_src // 8 == found.topology.link_dst // 8
    assert (found.topology.link_bandwidth_Bps[inside] == 450 * 10**9).all()


def test_auto_splits_switches_where_boxes_differ():
    topology = tp.drop_links(boxes(2), "npu 0-switch 2", both=True)
    collective = tacos.collective.all_reduce(topology, "64MB")
    best = tacos.synthesize(topology, collective, effort="fast")
    assert best.provenance["ports"] == "split"
    assert best.executed_s < 1.1 * tacos.bound(topology, collective).time_s
