"""Networks in which each port has one peer, and schedules found on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import topology as tp
from tacos.execution import execution
from tacos.synth.matched_ports import matched_ports


def executed(schedule):
    found = execution(schedule)
    assert found is not None
    return found


def matched(topology):
    found = matched_ports(topology)
    assert found is not None
    return found


def users_of_ports(schedule):
    """Per link of a switch that is used, the pairs of NPUs whose messages cross it."""
    table, topology = schedule.routes, schedule.topology
    users: dict[int, set[tuple[int, int]]] = {}
    for route in np.unique(schedule.lane_route):
        path = table.links[table.link_begin[route] : table.link_begin[route + 1]]
        for link in path[:: max(1, len(path) - 1)] if len(path) > 1 else []:
            ends = int(topology.link_src[path[0]]), int(topology.link_dst[path[-1]])
            users.setdefault(int(link), set()).add(ends)
    return users


@given(boxes=st.integers(2, 5), fabric=st.sampled_from(["switch", "rail"]))
def test_every_port_has_one_peer_and_boxes_stay_connected(boxes, fabric):
    whole = tp.mi300x(boxes, fabric=fabric)
    found = matched(whole)
    assert found.topology.switches == 0
    between = found.topology.link_src // 8 != found.topology.link_dst // 8
    for ends in (found.topology.link_src, found.topology.link_dst):
        assert (np.bincount(ends[between], minlength=whole.npus) == 1).all()
    assert (found.topology.link_src[between] % 8 == found.topology.link_dst[between] % 8).all()
    assert tacos.bound(found.topology, tacos.collective.all_gather(found.topology, "1MB")).time_s


@pytest.mark.parametrize(
    "network",
    [
        tp.torus(4, 4),
        tp.switch(8),  # nothing else joins its NPUs
        tp.dgx2(2, relay=True),  # an NPU that sends over a NIC does not receive over it
        tp.mi300x(1),
        tp.mi300x(2, forwarding="store_and_forward"),
        tp.dgx_h100(
            2, nvls=False, link_model="blocking"
        ),  # a link would be busy for the latencies of two
        tp.dgx_h100(2, nic_bandwidth="450GB/s"),  # no slower than within a box
    ],
)
def test_networks_whose_ports_cannot_be_matched(network):
    assert matched_ports(network) is None


def test_uneven_boxes_cannot_be_matched():
    links = [(a, b, 400e9, 1e-6) for a, b in [(0, 1), (1, 0), (2, 3), (3, 2), (3, 4), (4, 3)]]
    for npu in range(5):
        links += [(npu, 5, 50e9, 1e-6), (5, npu, 50e9, 1e-6)]
    assert matched_ports(tp.from_links(5, links, switches=1)) is None


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "all_to_all"])
@pytest.mark.parametrize("spec", ["mi300x:2", "dgx-h100-plain:3"])
def test_schedules_with_matched_ports_are_right_on_the_whole_network(spec, kind):
    whole = tp.parse(spec)
    collective = tacos.collective.named(kind, whole, "6MB", chunks=2)
    schedule = tacos.synthesize(whole, collective, engine="greedy", ports="matched")
    assert schedule.topology == whole
    assert tacos.verify(schedule).ok
    assert schedule.provenance["ports"] == "matched"
    assert schedule.provenance["bound_s"] == tacos.bound(whole, collective).time_s
    slow = whole.link_bandwidth_Bps < whole.link_bandwidth_Bps.max()
    users = users_of_ports(schedule)
    assert all(len(pairs) == 1 for link, pairs in users.items() if slow[link])


def test_a_schedule_with_matched_ports_is_executed_in_its_own_time():
    """Every link belongs to one connection, which the simulated program confirms."""
    whole = tp.mi250(2)
    collective = tacos.collective.all_gather(whole, "64MB", chunks=4)
    schedule = tacos.synthesize(whole, collective, engine="forest", ports="matched")
    found = executed(schedule)
    assert {found.order_ps, found.first_come_ps, found.shared_ps} == {schedule.time_ps}
    program = tacos.lower(schedule)
    for rule in ("first-come", "shared"):
        assert tacos.simulate(program, whole, timing=rule, record=False).time_ps == schedule.time_ps
    other = tacos.synthesize(whole, collective, engine="forest", ports="any")
    assert executed(other).time_ps() > 1.1 * other.time_ps


def test_a_longer_way_round_is_not_taken_for_the_default_route():
    """A program would send over the direct link, so its execution has to be simulated."""
    links = [(0, 1, 10e9, 1e-6), (1, 0, 10e9, 1e-6)]
    for npu in range(2):
        links += [(npu, 2, 10e9, 5e-6), (2, npu, 10e9, 5e-6)]
    network = tp.from_links(2, links, switches=1)
    collective = tacos.collective.send_recv(network, [(0, 1, "1MB")])
    table = tacos.schedule.Routes(
        network, np.zeros(1, np.uint8), np.array([0, 2]), np.array([2, 5], np.int32)
    )
    schedule = tacos.Schedule(
        collective=collective.with_chunks(1),
        routes=table,
        lane_route=np.zeros(1, np.int32),
        lane_op=np.zeros(1, np.uint8),
        lane_reads=np.zeros(1, np.uint8),
        lane_begin=np.array([0, 1]),
        chunk=np.zeros(1, np.uint32),
        start=np.zeros(1, np.uint32),
        quantum_ps=1,
    )
    assert tacos.verify(schedule).ok
    assert schedule.time_ps == 110_000_000  # 100 us, and twice 5 us
    assert executed(schedule).shared_ps == 101_000_000


@pytest.mark.parametrize(("whole", "sharing"), [(tp.dgx2(3), 2), (tp.ndv2(3), 8)])
def test_npus_that_share_a_port_get_a_share_of_it(whole, sharing):
    found = matched(whole)
    assert found.shared
    between = found.port >= 0
    for ends in (found.topology.link_src, found.topology.link_dst):
        assert (np.bincount(ends[between], minlength=whole.npus) == 1).all()
    nic = whole.link_bandwidth_Bps.min()
    speeds = set((found.topology.link_bandwidth_Bps[between] / nic * sharing).round(3).tolist())
    assert speeds == {1.0}
    ports, users = np.unique(found.port[between], return_counts=True)
    assert len(ports) == whole.npus // sharing
    assert (users == sharing).all()
    # What leaves over one NIC enters over one NIC.
    into = found.links[found.link_begin[1:] - 2]
    assert len(set(zip(found.port[between], into[between], strict=True))) == len(ports)


def test_npus_take_turns_at_a_shared_port():
    """Of 248 chunks that enter an NPU of a DGX-2, 11 come over half a NIC: 237 times 31.25 us, and a latency."""
    whole = tp.dgx2(2)
    for kind, phases in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        collective = tacos.collective.named(kind, whole, "1GB", chunks=8)
        schedule = tacos.synthesize(whole, collective, engine="greedy", ports="matched")
        assert tacos.verify(schedule).ok
        assert schedule.time_s == pytest.approx(phases * 7406.95e-6, rel=1e-7)
        assert executed(schedule).time_ps() <= schedule.time_ps


@settings(max_examples=20)
@given(size=st.integers(10_000_000, 3_000_000_000), chunks=st.integers(1, 5))
def test_turns_at_a_port_are_kept_at_any_size(size, chunks):
    """Chunks differ by a byte, and times are rounded."""
    whole = tp.ndv2(2)
    collective = tacos.collective.all_gather(whole, size, chunks=chunks)
    there = tacos.synthesize(matched(whole).topology, collective, engine="greedy")
    found = matched(whole).returned(there)
    assert tacos.verify(found).ok
    assert found.time_ps <= there.time_ps


def test_chunks_that_are_too_unequal_for_turns_are_refused():
    """NPUs 0 to 3 have two bytes each, the others one; the others would wait too long for their turn."""
    whole = tp.ndv2(2)
    collective = tacos.collective.all_gather(whole, 20, chunks=1)
    with pytest.raises(tacos.TacosError, match="cannot take turns at a shared port in time"):
        tacos.synthesize(whole, collective, engine="greedy", ports="matched")


@pytest.mark.unsanitized
def test_auto_lets_npus_take_turns_where_that_is_faster():
    """Over NVSwitch alone, 30 of 32 parts take 7.5 ms."""
    whole = tp.dgx2(2)
    collective = tacos.collective.reduce_scatter(whole, "1GB", chunks=8)
    best = tacos.synthesize(whole, collective, refine=False, effort="fast")
    assert best.provenance["ports"] == "matched"
    assert executed(best).time_ps() < 7_410_000_000


@pytest.mark.unsanitized
def test_auto_finds_ports_that_are_worth_matching():
    whole = tp.mi250(2)
    collective = tacos.collective.all_gather(whole, "64MB", chunks=8)
    best = tacos.synthesize(whole, collective, refine=False)
    any_peer = tacos.synthesize(whole, collective, refine=False, ports="any")
    assert best.provenance["ports"] == "matched"
    assert "ports" not in any_peer.provenance
    assert executed(best).time_ps() < 0.9 * executed(any_peer).time_ps()


def test_matched_ports_survive_another_number_of_chunks():
    from tacos.search.synthesis import with_chunks

    whole = tp.mi300x(2)
    collective = tacos.collective.all_gather(whole, "16MB", chunks=2)
    schedule = tacos.synthesize(whole, collective, engine="forest", ports="matched")
    assert with_chunks(schedule, 1).provenance["ports"] == "matched"


def test_what_cannot_be_matched_is_refused():
    ring = tp.ring(4)
    collective = tacos.collective.all_gather(ring, "4MB")
    with pytest.raises(ValueError, match='ports is "matched", but no switch of this network'):
        tacos.synthesize(ring, collective, ports="matched")
    with pytest.raises(ValueError, match="ports must be one of auto, any, matched; got 'all'"):
        tacos.synthesize(ring, collective, ports="all")
    with pytest.raises(ValueError, match="cannot be combined with a sketch"):
        tacos.synthesize(ring, collective, ports="matched", sketch=tacos.Sketch())


def test_a_switch_with_several_links_to_one_npu_is_left_as_it_is():
    """Links from three NPUs into switch 4, and out of it two to one NPU and one to another."""
    links = [(0, 4), (1, 4), (2, 4), (4, 0), (4, 0), (4, 1)]
    network = tp.from_links(4, [(a, b, "1GB/s", 0) for a, b in links], switches=1, connected=False)
    assert matched_ports(network) is None
