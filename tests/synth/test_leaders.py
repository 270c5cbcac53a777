"""The leaders engine: times by hand, pipelines through narrow ports, one order of sums."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos._core import meet_at_leaders
from tacos.synth import ENGINES
from tests.support import strategies

leaders = ENGINES["leaders"]


def checked(network, coll):
    schedule = leaders(network, coll)
    report = tacos.verify(schedule)
    assert report.ok, report.lines()
    assert report.consistent
    assert schedule.time_ps >= tacos.bound(network, coll).time_ps
    return schedule


def test_two_leaders_in_the_middle_of_a_line():
    """Six NPUs in a line, 1 us: two hops to NPUs 2 and 3, one between them, two back; one leader would take six.

    The six blocks of 1 B at 1 GB/s follow each other over the links in the middle, within their 5 us + 5·1 ns.
    """
    line = tp.mesh(6, bandwidth="1GB/s", latency="1us")
    schedule = checked(line, co.all_reduce(line, "6B", chunks=1))
    assert schedule.provenance["leaders"] == 2
    assert 5_005_000 <= schedule.time_ps <= 5_010_000 + 5_000


def test_a_clique_has_one_leader_or_pairs():
    """Every NPU of a clique is next to all others: one leader is enough, and has no other leader to exchange with."""
    clique = tp.fully_connected(6)
    checked(clique, co.all_reduce(clique, "256KB", chunks=2))


def test_chunks_do_not_wait_for_each_other():
    """Two boxes of two, 8 KB. In a box 10 GB/s without latency; between boxes one port of 1 GB/s and 1 us.

    The port takes 8 us for the bytes, and 1 us of latency. Only the first chunk's 250 B are summed before that and only
    the last one's are copied after it, in 25 ns each: the others are summed and copied while the port is busy.
    """
    boxes = [(0, 1), (2, 3)]
    links = [(a, b, "10GB/s", 0) for box in boxes for a, b in (box, box[::-1])]
    links += [(a, 4, "10GB/s", 0) for a in boxes[0]] + [(4, a, "10GB/s", 0) for a in boxes[0]]
    links += [(a, 5, "10GB/s", 0) for a in boxes[1]] + [(5, a, "10GB/s", 0) for a in boxes[1]]
    links += [(4, 5, "1GB/s", "1us"), (5, 4, "1GB/s", "1us")]
    pair = tp.from_links(4, links, switches=2)
    schedule = checked(pair, co.all_reduce(pair, "8KB", chunks=8))
    assert schedule.time_ps == 9_050_000


@pytest.mark.parametrize(
    ("spec", "size", "most"),
    [("mi250:1", "16KB", 1.1), ("ndv2:2", "16KB", 1.15), ("mi250:2", "64KB", 1.25)],
)
def test_machines(spec, size, most):
    """Near the bound where exchanges of all members take up to 1.6 times as long."""
    network = tp.parse(spec)
    coll = co.all_reduce(network, size)
    schedule = checked(network, co.all_reduce(network, size, chunks=2))
    assert schedule.time_s < most * tacos.bound(network, coll).time_s


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_blocks_enter_a_box_where_they_are_spread_soonest(kind):
    """64 KB on two MI250 boxes: some blocks enter a box once and spread there, others enter it often."""
    boxes = tp.mi250(2)
    coll = co.named(kind, boxes, "64KB", chunks=1)
    assert checked(boxes, coll).time_s < 1.15 * tacos.bound(boxes, coll).time_s


@pytest.mark.parametrize("size", ["1KB", "4KB", "16KB"])
def test_sums_go_to_receivers(size):
    """Four MI250 boxes: leaders that are near to all members send to receivers that are near to all, over NICs of 16 GB/s."""
    boxes = tp.mi250(4)
    schedule = checked(boxes, co.all_reduce(boxes, size, chunks=1))
    assert schedule.provenance["leaders"] > 4  # more than one in each box
    assert schedule.provenance["receivers"] >= 4
    assert schedule.time_s < 1.25 * tacos.bound(boxes, co.all_reduce(boxes, size)).time_s


@settings(max_examples=20)
@given(st.data())
def test_boxes_of_any_kind(data):
    """Correct for boxes with any wiring, ports of any speed, and messages that members pass on."""
    size = data.draw(st.integers(2, 5))
    boxes = data.draw(st.integers(2, 3))
    wires = {(data.draw(st.integers(0, i - 1)), i) for i in range(1, size)}
    wires |= set(data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)))))
    pairs = sorted({pair for a, b in wires if a != b for pair in ((a, b), (b, a))})
    inside = [(a, b, data.draw(st.sampled_from(["5GB/s", "50GB/s"])), "1us") for a, b in pairs]
    links = [
        (a + size * box, b + size * box, *rest) for box in range(boxes) for a, b, *rest in inside
    ]
    npus, port = size * boxes, ("2GB/s", data.draw(st.sampled_from(["500ns", "2us"])))
    links += [(a, b, *port) for npu in range(npus) for a, b in ((npu, npus), (npus, npu))]
    network = tp.from_links(npus, links, switches=1)
    bytes_ = data.draw(st.sampled_from([100, 3_000, 60_000]))
    checked(network, co.all_reduce(network, bytes_, chunks=data.draw(st.integers(1, 2))))


def test_late_chunks_may_have_other_leaders():
    """Four NPUs in a line, 1 us and 1 B per ns: NPU 0 as the leader takes three hops there and three back, NPUs 1 and 2 take three in all.

    At first chunks may have only the first set; then the only chunk is late, and gets the other set.
    """
    line = tp.mesh(4, bandwidth="1GB/s", latency="1us")
    chunk = co.all_reduce(line, "1B", chunks=1)
    sets: list[tuple[list[int], list[int], list[int], bool]]
    sets = [([0], [], [], False), ([1, 2], [2], [], False)]

    def time_ps(hops, first):
        schedule = meet_at_leaders(line, chunk, sets, hops=hops, first=first)
        assert tacos.verify(schedule).ok
        return schedule.time_ps

    assert time_ps(hops=0, first=1) == 6 * 1_001_000
    assert time_ps(hops=1000, first=1) == 3 * 1_001_000
    assert time_ps(hops=0, first=2) == 3 * 1_001_000
    with pytest.raises(ValueError, match="fewer sets of leaders"):
        time_ps(hops=0, first=3)


def test_the_ports_of_two_boxes_are_used_early_and_late():
    """Two DGX-1, 64 KB. Chunks with one leader per box cross after two hops, and two hops remain: 6.8 us with such chunks only.

    Some chunks cross after one hop or before the last one, though with more messages, and make way for the others.
    """
    boxes = tp.dgx1(2)
    schedule = checked(boxes, co.all_reduce(boxes, "64KB", chunks=4))
    assert schedule.time_s < 6.75e-6


def test_ranks_in_any_order():
    """Cliques of 5 whose NPUs have a switch for each place; the ranks are in no order, so boxes have no places in common."""
    network = tp.product(
        tp.fully_connected(5, latency=0), tp.switch(8, bandwidth="1GB/s", latency="500ns")
    )
    group = [21, 3, 2, 15, 23, 27, 22, 28, 14, 1, 7, 12, 0, 19, 5, 38, 4, 8, 29, 31]
    group += [34, 26, 24, 39, 11, 10, 37, 9, 25, 33, 30, 18, 36, 16, 6, 20, 32, 13, 17, 35]
    checked(network, co.all_reduce(network, "19B", group=group, chunks=1))


def test_what_it_needs():
    ring = tp.ring(4)
    with pytest.raises(ValueError, match="at most 256 kB, not "):
        leaders(ring, co.all_reduce(ring, "2MB"))
    with pytest.raises(ValueError, match="all 4 NPUs as members"):
        leaders(ring, co.all_reduce(ring, "1KB", group=[0, 2]))
    with pytest.raises(ValueError, match="all-reduce"):
        leaders(ring, co.broadcast(ring, "1KB"))
    # NPU 1 is the only way between two switches, and not a member.
    ports = [(0, 3), (1, 3), (1, 4), (2, 4)]
    links = [(a, b, "1GB/s", "1us") for a, b in [*ports, *((b, a) for a, b in ports)]]
    apart = tp.from_links(3, links, switches=2)
    with pytest.raises(ValueError, match="reach each other over members and switches"):
        leaders(apart, co.all_reduce(apart, "1KB", group=[0, 2]))


def test_any_network_and_group():
    """Correct on every network, not below the bound, and the same in every run."""
    done: Counter[bool] = Counter()

    @settings(max_examples=40, derandomize=True)  # the same ones every time, since they are counted
    @given(strategies.random_topologies(max_npus=6), st.data())
    def check(network, data):
        group = data.draw(st.permutations(range(network.npus)))
        if data.draw(st.booleans()):
            group = group[: data.draw(st.integers(2, 6))]
        chunks = data.draw(st.integers(1, 3))
        kind = data.draw(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]))
        coll = co.named(kind, network, 1000, group=group, chunks=chunks)
        able = not leaders.obstacle(network, coll)
        done[able] += 1
        if able:
            assert checked(network, coll) == leaders(network, coll)

    check()
    assert done[True] > 0.5 * done.total()


@pytest.mark.parametrize("chunks", [1, 2])
def test_slow_networks(chunks):
    """Times beyond 4.3 ms are not stored to the picosecond; rounding must not change what a leader has summed."""
    line = tp.mesh(5, bandwidth="12.5MB/s", latency="100us")
    checked(line, co.all_reduce(line, "255001B", chunks=chunks))


def test_chunks_wait_for_slow_links_however_fast_others_are():
    """Boxes of six NPUs, joined by links on which a chunk takes 10^5 times as long as inside of a box.

    A chunk that cannot start for long, measured in times of the fastest link, is laid after all others. If its leaders were given
    up instead, the remaining sets of leaders would take 80 us per chunk and not 16.
    """
    npus, box, leaf = 30, 6, 35
    inside = [(npu, npus + npu // box, "450GB/s", 0) for npu in range(npus)]
    outside = [(npu, leaf + npu // 15, "1GB/s", "350ns") for npu in range(npus)]
    spine = [(leaf + side, leaf + 2, "1GB/s", "1.2us") for side in range(2)]
    links = inside + outside + spine
    back = [(b, a, *rest) for a, b, *rest in links]
    network = tp.from_links(npus, links + back, switches=8, link_model="blocking")
    assert checked(network, co.all_reduce(network, 256, chunks=8)).time_s < 20e-6 * 8
