"""Forests against an oracle that knows only links and trees, against the bound, and on machines."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos._core import pack_orbits, pack_two_way, team_exchange
from tacos.synth.forest import Packing, forest, obstacle, packing
from tests.support.strategies import topologies

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")

# GB/s of an all-gather, as published or computed by others, and the trees' height where it matters.
MACHINES = {
    "dgx-a100:1": (342.857, 1),
    "dgx-a100:2": (346.667, 2),
    "dgx-a100:4": (266.667, 2),
    "dgx-h100-plain:1": (514.286, 1),
    "dgx-h100-plain:2": (533.333, 2),
    "dgx-h100-plain:4": (516.129, 2),
    "dgx-h100-plain:8": (457.143, 2),
    "dgx-h100-plain:16": (426.667, 2),
    "mi250:1": (342.857, None),
    "mi250:2": (354.133, None),
    "mi300x:1": (512.0, 1),
    "mi300x:2": (531.2, 2),
    "mi300x:4": (514.065, 2),
    "nvl72-plain:1": (912.676, 1),
    "nvl72-plain:2": (956.643, 2),
    "switch:16@900GB/s": (960.0, 1),
    "torus:4x4@1GB/s": (4.26667, 4),
    "torus:4x4x4@1GB/s": (6.09524, 6),
    "mesh:4x4@1GB/s": (2.13333, None),
    "dgx-1:1": (171.429, None),
    "ndv2:2": (25.0, None),
    "dgx-h100-plain:128": (403.150, 2),
}


def images(topology, found):
    """Return the images of nodes and links under each element of the symmetry, at least the identity."""
    nodes, links = np.arange(topology.switches + topology.npus), np.arange(topology.links)
    generators = list(
        zip(
            found.trees.node_image.reshape(-1, len(nodes)),
            found.trees.link_image.reshape(-1, len(links)),
            strict=True,
        )
    )
    elements = {tuple(nodes): (nodes, links)}
    queue = list(elements.values())
    for node, link in queue:
        for node_image, link_image in generators:
            image = node_image[node], link_image[link]
            if tuple(image[0]) not in elements:
                elements[tuple(image[0])] = image
                queue.append(image)
    return queue


def check_trees(topology, found):
    """Every tree spans the members from its root, and all together stay within the bandwidths."""
    trees = found.trees
    begin, links = trees.routes.link_begin, trees.routes.links
    weights: Counter[int] = Counter()
    loads = np.zeros(topology.links, object)
    members = set(found.members.tolist())
    moves = images(topology, found)
    for number, (root, weight) in enumerate(zip(trees.root, trees.weight, strict=True)):
        reached = {int(root)}
        assert weight > 0
        for hop in trees.hop[trees.hop_begin[number] : trees.hop_begin[number + 1]]:
            path = links[begin[hop] : begin[hop + 1]]
            source, end = topology.link_src[path[0]], topology.link_dst[path[-1]]
            assert source in reached
            assert end not in reached
            assert (topology.link_dst[path[:-1]] == topology.link_src[path[1:]]).all()
            assert not members & set(topology.link_dst[path[:-1]].tolist())
            reached.add(int(end))
            for _, image in moves:
                np.add.at(loads, image[path], int(weight))
        assert reached == members
        for node, _ in moves:
            weights[int(node[root])] += int(weight)
    assert weights == dict.fromkeys(found.roots.tolist(), trees.demand_weight)
    unit = Fraction(trees.unit_Bps, trees.unit_parts) * Fraction(trees.rate)
    for load, bandwidth in zip(loads, topology.link_bandwidth_Bps.tolist(), strict=True):
        assert load * unit <= bandwidth * (1 + Fraction(1, 10**12))


def balanced(topology, members):
    """Return whether all nodes that only forward have equal bandwidths in and out."""
    flow = np.zeros(topology.npus + topology.switches, object)
    np.add.at(flow, topology.link_src, topology.link_bandwidth_Bps.astype(object))
    np.add.at(flow, topology.link_dst, -topology.link_bandwidth_Bps.astype(object))
    return all(flow[node] == 0 for node in range(len(flow)) if node not in members)


@pytest.mark.parametrize("spec", MACHINES)
def test_machines_reach_their_optimum_with_shallow_trees(spec):
    topology = tp.parse(spec)
    optimum, height = MACHINES[spec]
    found = packing(topology)
    assert found.algbw_Bps / 1e9 == pytest.approx(optimum, rel=1e-5)
    assert found.trees.rate == 1
    if height is not None:
        assert found.height <= height
    if topology.npus <= 64:
        check_trees(topology, found)


@pytest.mark.parametrize("spec", ["dgx-1", "mi250", "ndv2:2", "ndv2:4", "dgx-1:2"])
def test_boxes_repeat_their_trees(spec):
    """Not all NPUs are alike, but boxes are, and the halves of some."""
    topology = tp.parse(spec)
    everybody = np.arange(topology.npus, dtype=np.int32)
    trees = pack_orbits(topology)
    assert trees is not None
    found = Packing(trees, everybody, everybody, 1.0)
    assert len(set(trees.root.tolist())) <= topology.npus // 2
    check_trees(topology, found)
    size = 10**12 * topology.npus
    best = tacos.bound(topology, co.all_gather(topology, size))
    assert size / found.algbw_Bps == pytest.approx(best.bandwidth_s, rel=1e-9)


@st.composite
def networks(draw, even):
    """Random NPUs and switches, whose messages do not divide; with `even`, every link has another of its speed back."""
    npus, switches = draw(st.integers(2, 6)), draw(st.integers(0, 2))
    nodes = npus + switches
    order = draw(st.permutations(range(nodes)))
    ends = list(zip(order, [*order[1:], order[0]], strict=True))
    node = st.integers(0, nodes - 1)
    ends += draw(st.lists(st.tuples(node, node).filter(lambda e: e[0] != e[1]), max_size=8))
    rows = []
    for a, b in ends:
        speed = f"{draw(st.sampled_from([1, 2, 3, 5, 8, 12.5]))}GB/s"
        latency = draw(st.sampled_from(["0ns", "500ns", "1us"]))
        rows += (
            [(a, b, speed, latency), (b, a, speed, latency)] if even else [(a, b, speed, latency)]
        )
    return tp.from_links(npus, rows, switches=[""] * switches, routing="first")


@given(st.data(), networks(even=True))
@settings(max_examples=60)
def test_even_networks_are_filled_up_to_the_bound(data, topology):
    group = data.draw(st.permutations(range(topology.npus)))
    group = group[: data.draw(st.integers(2, topology.npus))]
    found = packing(topology, group=group)
    check_trees(topology, found)
    assert found.trees.rate == 1
    size = 10**12 * len(group)
    best = tacos.bound(topology, co.all_gather(topology, size, group=group))
    assert size / found.algbw_Bps == pytest.approx(best.bandwidth_s, rel=1e-9)
    one = packing(topology, group=group, root=group[0])
    check_trees(topology, one)
    best = tacos.bound(topology, co.broadcast(topology, size, group=group, root=group[0]))
    assert size / one.algbw_Bps == pytest.approx(best.bandwidth_s, rel=1e-9)


def test_other_networks_are_never_overfilled():
    """Where each switch has equal bandwidths in and out, they are filled up to the bound."""
    done: Counter[bool] = Counter()

    @given(networks(even=False))
    @settings(max_examples=60, derandomize=True)  # the same ones every time, since they are counted
    def check(topology):
        found = packing(topology)
        check_trees(topology, found)
        size = 10**12 * topology.npus
        best = tacos.bound(topology, co.all_gather(topology, size))
        assert size / found.algbw_Bps >= best.bandwidth_s * (1 - 1e-9)
        filled = balanced(topology, range(topology.npus))
        done[filled] += 1
        if filled:
            assert size / found.algbw_Bps == pytest.approx(best.bandwidth_s, rel=1e-9)

    check()
    assert done[True] > 0.3 * done.total()
    assert done[False] > 0.3 * done.total()


UNEVEN = [(2, 1, 2e9, 0), (3, 2, 2e9, 0), (3, 0, 2e9, 0), (1, 3, 2e9, 0), (0, 3, 1e9, 0)]


def test_what_passes_an_uneven_switch_is_optimized():
    """3 GB/s enter the switch. Trees of 0, 1 and 2 pass it once, twice and once: 3/4 GB/s each, while every
    cut would let 1 GB/s pass."""
    topology = tp.from_links(3, UNEVEN, switches=1)
    found = packing(topology)
    check_trees(topology, found)
    assert found.rate_Bps == pytest.approx(0.75e9, rel=1e-3)
    assert found.cut_Bps == 1e9
    schedule = forest(topology, co.all_gather(topology, "3MB", chunks=8))
    assert tacos.verify(schedule).ok
    assert schedule.provenance["rate"] == pytest.approx(0.75, rel=1e-3)


def test_beyond_the_linear_program_trees_are_sought_at_lower_rates(monkeypatch):
    monkeypatch.setattr("tacos.synth.forest.logical._MOST_PATHS", 0)
    topology = tp.from_links(3, UNEVEN, switches=1)
    found = packing(topology)
    check_trees(topology, found)
    assert 0.7e9 < found.rate_Bps <= 0.75e9


def test_a_program_that_leaves_out_the_only_way_is_not_followed():
    """All but one link are far slower than that one; the switch has more bandwidth out than in."""
    slow = [(4, 3), (0, 1), (3, 0), (1, 5), (5, 2), (5, 4)]
    links = [*((a, b, 1e3, 0) for a, b in slow), (2, 1, 1e12, 0)]
    topology = tp.from_links(5, links, switches=1)
    found = packing(topology)
    check_trees(topology, found)
    assert 0 < found.rate_Bps <= found.cut_Bps


def test_ways_of_less_than_a_byte_per_second_are_none():
    topology = tp.from_links(3, [(a, b, bw / 1e9, 0) for a, b, bw, _ in UNEVEN], switches=1)
    check_trees(topology, packing(topology))


def test_what_leaves_a_switch_only_to_meet_its_route_is_no_part_of_it():
    """Seen backwards, 3 sends to switch 6, from there to 5, and to 7, which nothing leaves but what 5 has."""
    ends = [(4, 8), (8, 7), (7, 5), (5, 6), (2, 4), (7, 2), (0, 1), (6, 3), (1, 7), (3, 0)]
    links = [(a, b, 1e9, 1e-3) for a, b in ends]
    topology = tp.from_links(5, links, switches=["", "", "reduce", "reduce"])
    schedule = forest(topology, co.reduce(topology, 7, chunks=1, group=[3, 1, 0, 2], root=3))
    assert tacos.verify(schedule).ok


@given(st.data(), topologies())
@settings(max_examples=150)
def test_schedules_are_right_and_no_faster_than_the_bound(data, topology):
    kind = data.draw(st.sampled_from(KINDS))
    group = data.draw(st.permutations(range(topology.npus)))
    group = group[: data.draw(st.integers(1, topology.npus))]
    root = {"root": data.draw(st.sampled_from(group))} if kind in ("broadcast", "reduce") else {}
    size, chunks = data.draw(st.sampled_from([1, 7, 1000, 1001])), data.draw(st.integers(1, 4))
    collective = co.named(kind, topology, size, chunks=chunks, group=group, **root)
    schedule = forest(topology, collective)
    assert tacos.verify(schedule).ok
    assert schedule.time_ps >= tacos.bound(topology, collective).time_ps


@pytest.mark.parametrize(
    "spec",
    ["dgx-a100:2", "dgx-h100-plain:4", "mi300x:2", "torus:4x4x4", "dgx-1", "ndv2:4", "mesh:3x4"],
)
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_a_gigabyte_comes_close_to_the_bound(spec, kind):
    """In the schedule's own time, not when executed."""
    topology = tp.parse(spec)
    collective = co.named(kind, topology, "1GB")
    schedule = tacos.synthesize(topology, collective, engine="forest", target="schedule")
    assert tacos.verify(schedule).ok
    assert (schedule.efficiency or 0) > 0.98


def partitions(nodes):
    """All ways to divide nodes into sets, as the number of the set of each."""
    if not nodes:
        yield []
        return
    for rest in partitions(nodes[:-1]):
        for number in range(max(rest, default=-1) + 2):
            yield [*rest, number]


@given(networks(even=True))
@settings(max_examples=20)
def test_trees_both_ways_fill_the_narrowest_partition(topology):
    """Tutte and Nash-Williams: trees carry at most the bandwidth between p sets over p - 1."""
    group = np.arange(topology.npus, dtype=np.int32)
    pair = pack_two_way(topology, group, 200)
    assert pair is not None
    up, down = pair
    found = Packing(down, group, group[:1], 1.0)
    begin, links = down.routes.link_begin, down.routes.links
    loads = np.zeros(topology.links, np.int64)
    for tree in range(200):
        reached = {int(down.root[tree])}
        for i in range(down.hop_begin[tree], down.hop_begin[tree + 1]):
            path = links[begin[down.hop[i]] : begin[down.hop[i] + 1]]
            first, last = up.routes.link_begin[[up.hop[i], up.hop[i] + 1]]
            back = up.routes.links[first:last]
            assert topology.link_src[path].tolist() == topology.link_dst[back].tolist()
            assert topology.link_dst[path].tolist() == topology.link_src[back].tolist()
            assert int(topology.link_src[path[0]]) in reached
            reached.add(int(topology.link_dst[path[-1]]))
            np.add.at(loads, path, 1)
            np.add.at(loads, back, 1)
        assert reached == set(group.tolist())
    assert (loads / 200 * found.algbw_Bps <= topology.link_bandwidth_Bps * (1 + 1e-9)).all()
    if topology.switches:
        return
    best = min(
        topology.link_bandwidth_Bps[
            np.array(sets)[topology.link_src] != np.array(sets)[topology.link_dst]
        ].sum()
        / 2
        / max(sets)
        for sets in partitions(list(range(topology.npus)))
        if max(sets) > 0
    )
    assert 0.95 * best <= found.algbw_Bps <= best * (1 + 1e-9)


def test_a_meshs_all_reduce_goes_both_ways():
    """16 NPUs with 24 pairs of links: 24 / 15 of a link, where halves reach only 16 / 15."""
    topology = tp.mesh(4, 4, bandwidth="1GB/s", latency="0s")
    schedule = forest(topology, co.all_reduce(topology, "1GB", chunks=64))
    assert tacos.verify(schedule).ok
    assert schedule.provenance["trees"] == "both ways"
    assert 0.625 < schedule.time_s < 0.65


@pytest.mark.parametrize("boxes", [1, 2])
def test_sums_and_results_meet_in_switches_that_can(boxes):
    """With NVLS, an NPU sends and receives the buffer once, not 2 (N - 1) / N times."""
    topology = tp.dgx_h100(boxes)
    schedule = tacos.synthesize(topology, co.all_reduce(topology, "1GB"), engine="forest")
    assert tacos.verify(schedule).ok
    assert (schedule.efficiency or 0) > 0.98
    plain = tacos.bound(tp.dgx_h100(boxes, nvls=False), co.all_reduce(topology, "1GB"))
    assert schedule.time_s < plain.time_s


def test_sums_and_results_in_a_switch_by_hand():
    """4 NPUs at 1 GB/s, 4 chunks of 1 MB, 1 us to the switch: a sum is collected in 1 ms + 2 us and spread
    in as long; the last is spread after all are collected."""
    topology = tp.switch(4, multicast=True, reduce=True, bandwidth="1GB/s", latency="1us")
    schedule = forest(topology, co.all_reduce(topology, "4MB", chunks=1))
    assert tacos.verify(schedule).ok
    assert schedule.transfers == 8
    assert schedule.time_s == pytest.approx(5e-3 + 4e-6)


def test_a_switch_that_can_multicast_spreads_a_broadcast_at_once():
    topology = tp.switch(4, multicast=True, bandwidth="1GB/s", latency="1us")
    schedule = forest(topology, co.broadcast(topology, "4MB", chunks=4))
    assert tacos.verify(schedule).ok
    assert schedule.transfers == 4
    assert schedule.time_s == pytest.approx(4e-3 + 2e-6)
    back = forest(
        tp.switch(4, reduce=True, bandwidth="1GB/s", latency="1us"),
        co.reduce(topology, "4MB", chunks=4),
    )
    assert tacos.verify(back).ok
    assert (back.transfers, back.time_ps) == (4, schedule.time_ps)


def test_few_bytes_cross_boxes_once():
    """Within a box 0.7 us, across 2.6 us. 64 B go straight to all; 64 KB: sums, across, results."""
    topology = tp.dgx_h100(2, nvls=False)
    tiny = forest(topology, co.all_reduce(topology, "64B", chunks=1))
    assert tacos.verify(tiny).ok
    assert tiny.provenance["trees"] == "exchange"
    assert 2.6e-6 < tiny.time_s < 2.65e-6
    small = forest(topology, co.all_reduce(topology, "64KB", chunks=4))
    assert tacos.verify(small).ok
    assert small.provenance["trees"] == "exchange"
    assert 4.0e-6 < small.time_s < 4.3e-6


@st.composite
def joined(draw):
    """Two to eight NPUs that reach each other directly, or through any of one or two switches."""
    npus, switches = draw(st.integers(2, 8)), draw(st.integers(0, 2))
    pairs = (
        [(npu, npus + switch) for npu in range(npus) for switch in range(switches)]
        if switches
        else list(combinations(range(npus), 2))
    )
    speed = st.sampled_from([("1GB/s", "1us"), ("7GB/s", "350ns"), ("50GB/s", 0), (333, "1ns")])
    links = [(*ends, *draw(speed)) for a, b in pairs for ends in ((a, b), (b, a))]
    model = draw(st.sampled_from(["pipelined", "blocking"]))
    return tp.from_links(npus, links, switches=switches, link_model=model)


@given(st.data(), joined(), st.sampled_from([1000, 1001]))
@settings(max_examples=60)
def test_exchanges_are_right(data, topology, size):
    """Teams of one NPU always have one; larger teams are refused if a sum would arrive too late to be sent on."""
    collective = co.all_reduce(topology, size, chunks=data.draw(st.integers(1, 3)))
    teams = [n for n in range(1, topology.npus + 1) if topology.npus % n == 0]
    everybody = np.arange(topology.npus, dtype=np.int32)
    team = data.draw(st.sampled_from(teams))
    schedule = team_exchange(topology, everybody, team, collective)
    assert schedule is not None or team > 1
    if schedule is not None:
        assert tacos.verify(schedule).ok


def test_exchanges_on_any_network_are_right_or_refused():
    done: Counter[bool] = Counter()

    @given(st.data(), topologies())
    @settings(
        max_examples=150, derandomize=True
    )  # the same ones every time, since they are counted
    def check(data, topology):
        size = data.draw(st.sampled_from([1000, 1001]))
        collective = co.all_reduce(topology, size, chunks=data.draw(st.integers(1, 3)))
        teams = [n for n in range(1, topology.npus + 1) if topology.npus % n == 0]
        everybody = np.arange(topology.npus, dtype=np.int32)
        schedule = team_exchange(topology, everybody, data.draw(st.sampled_from(teams)), collective)
        done[schedule is not None] += 1
        if schedule is not None:
            assert tacos.verify(schedule).ok

    check()
    assert done[True] > 0.08 * done.total()  # most teams are refused


def racks(core="100GB/s"):
    """Two racks of two boxes of four NPUs: a switch in each box, a leaf in each rack, and a core switch."""
    boxes = [(npu, 16 + npu // 4, "450GB/s", "350ns") for npu in range(16)]
    leaves = [(npu, 20 + npu // 8, "50GB/s", "1.2us") for npu in range(16)]
    cores = [(20, 22, core, "600ns"), (21, 22, core, "600ns")]
    links = [*boxes, *leaves, *cores]
    both = [*links, *((b, a, *speed) for a, b, *speed in links)]
    return tp.from_links(16, both, switches=7, dims=[("box", 4), ("switch", 4)])


@pytest.mark.parametrize(
    ("core", "most"), [("50GB/s", 8000), ("100GB/s", 32000), ("200GB/s", 64000)]
)
@pytest.mark.parametrize("size", [1000, 8000, 32000, 64000])
def test_exchanges_between_racks_are_right(core, most, size):
    """Owners of a rack reach each other sooner than owners of the other rack: 2.4 us, not 3.6 us.

    Up to 8 KB an all-reduce is 0.7 us in the box, 3.6 us across, 0.7 us in the box, and some bytes.
    """
    topology = racks(core)
    for chunks in (1, 2, 4):
        collective = co.all_reduce(topology, size, chunks=chunks)
        found = team_exchange(topology, np.arange(16, dtype=np.int32), 4, collective)
        assert (found is not None) == (size <= most)  # beyond, a sum would arrive too late
        assert found is None or tacos.verify(found).ok
        if size <= 8000:
            assert found is not None
            assert 5e-6 < found.time_s < 5.7e-6
            program = tacos.lower(found)
            assert tacos.verify(program).ok
            assert tacos.verify(tacos.lift(program, topology)).ok
        assert tacos.verify(forest(topology, collective)).ok


def test_exchanges_of_near_and_far_teams_can_be_lifted():
    """Teams of three in two boxes of six: a sum is 2 ns and 53 ns away in the box, 700 ns and 53 ns outside.

    Each owner sends two sums outside, 53 ns each, before the one from its box may arrive.
    """
    cables = [(npu, 12 + npu // 6, "25GB/s", "1ns") for npu in range(12)]
    cables += [(npu, 14, "25GB/s", "350ns") for npu in range(12)]
    links = [link for a, b, *speed in cables for link in ((a, b, *speed), (b, a, *speed))]
    topology = tp.from_links(12, links, switches=3)
    collective = co.all_reduce(topology, 16_000, chunks=1)
    schedule = team_exchange(topology, np.arange(12, dtype=np.int32), 3, collective)
    assert schedule is not None
    program = tacos.lower(schedule)
    assert tacos.verify(program).ok
    assert tacos.verify(tacos.lift(program, topology)).ok


def test_ways_that_pass_a_switch_twice_are_cut_short():
    """Two leaves sum and multicast, the third leaf and the core do not do both: a tree may go to a leaf and back."""
    rings = [(5 * box + i, 5 * box + (i + 1) % 5) for box in range(3) for i in range(5)]
    cables = [(a, b, "333333333B/s", "700ns") for a, b in rings]
    cables += [(15 + leaf, 18, "450GB/s", "1ns") for leaf in range(3)]
    cables += [(npu, 15 + npu // 5, "25GB/s", "500ns") for npu in range(15)]
    links = [link for a, b, *speed in cables for link in ((a, b, *speed), (b, a, *speed))]
    switches = ["multicast+reduce", "multicast+reduce", "", "multicast"]
    topology = tp.from_links(15, links, switches=switches, link_model="blocking")
    group = [8, 2, 13, 3, 12, 6, 9, 7, 11, 5, 14, 1, 0, 4, 10]
    schedule = forest(topology, co.all_reduce(topology, 186, group=group, chunks=5))
    assert tacos.verify(schedule).ok


def test_networks_without_ways_back_have_no_trees_both_ways():
    links = [(0, 1, "2GB/s", "1us"), (1, 0, "1GB/s", "1us")]
    group = np.arange(2, dtype=np.int32)
    assert pack_two_way(tp.from_links(2, links), group, 4) is None
    with pytest.raises(ValueError, match="NPU 9 is not one of the topology's 4"):
        pack_two_way(tp.ring(4), np.array([0, 9], np.int32), 4)


def test_full_chains_of_switches_are_left_some_room():
    """Two DGX-2: hops through NIC, fabric and NIC, all full, would leave gaps of an eighth."""
    topology = tp.dgx2(2)
    schedule = forest(topology, co.all_gather(topology, "1GB", chunks=70))
    assert tacos.verify(schedule).ok
    assert schedule.provenance["rate"] == pytest.approx((125 + 0.85 * 12.5) / 137.5)
    assert tacos.bound(topology, schedule.collective).bandwidth_s > 0.96 * schedule.time_s


def test_a_boxs_forest_by_hand():
    """4 NPUs on a switch, ports of 3 GB/s: each sends 1 GB/s straight to the 3 others."""
    found = packing(tp.switch(4, bandwidth="3GB/s"))
    assert found.rate_Bps == 1e9
    assert found.height == 1


def test_bandwidths_of_odd_ratios_are_rounded_and_it_says_so():
    speeds = ["43478260869B/s", "9523809523B/s", "21739130434B/s"]
    links = [(a, (a + 1) % 3, speeds[a], "1us") for a in range(3)]
    links += [(b, a, speed, latency) for a, b, speed, latency in links]
    topology = tp.from_links(3, links)
    found = packing(topology)
    check_trees(topology, found)
    assert 0 < found.trees.tolerance <= 1e-4
    best = tacos.bound(topology, co.all_gather(topology, 3 * 10**12))
    assert 3e12 / found.algbw_Bps == pytest.approx(best.bandwidth_s, rel=1e-4)
    collective = co.all_gather(topology, "3MB", chunks=4)
    assert forest(topology, collective).provenance["tolerance"] == found.trees.tolerance


def test_what_it_cannot_do():
    topology = tp.ring(4)
    with pytest.raises(
        ValueError,
        match="forest needs all-gather, reduce-scatter, all-reduce, broadcast or reduce, not",
    ):
        forest(topology, co.all_to_all(topology, "1MB", chunks=1))
    assert "one collective, not 2" in obstacle(
        topology,
        co.together(co.all_gather(4, "1KB", group=[0, 1]), co.all_gather(4, "1KB", group=[2, 3])),
    )
    boxes = tp.dgx_h100(32, nvls=False)
    assert obstacle(boxes, co.all_gather(boxes, "1MB")) == ""
    assert "a byte for each of 256 chunks" in obstacle(boxes, co.all_gather(boxes, 100))
    assert "at most 128 NPUs" in obstacle(boxes, co.broadcast(boxes, "1MB"))
    cut = tp.drop_links(boxes, (0, 256), both=True)
    assert "not 256 of 256" in obstacle(cut, co.all_gather(cut, "1MB"))
    with pytest.raises(ValueError, match="npu 3 is a root, but not a member"):
        packing(topology, group=[0, 1], root=3)
    with pytest.raises(ValueError, match="NPU 9 is not one of the topology's 4"):
        packing(topology, group=[0, 9])
    links = [(0, 1, "1GB/s", "1us"), (1, 0, "1GB/s", "1us"), (2, 0, "1GB/s", "1us")]
    cut = tp.from_links(3, links, connected=False)
    with pytest.raises(tacos.InfeasibleError, match="npu 0 cannot reach npu 2"):
        packing(cut)


def test_a_long_transfer_that_starts_at_once_needs_no_quantum():
    """Two NPUs exchange 0.68 s of data: every start is 0, whatever the units of time."""
    topology = tp.hypercube(1, bandwidth="333333333B/s", latency="500ns")
    collective = co.all_gather(topology, 453_491_039, chunks=1)
    schedule = tacos.synthesize(topology, collective, engine="forest")
    assert schedule.time_s == pytest.approx(226_745_520 / 333_333_333 + 500e-9)
