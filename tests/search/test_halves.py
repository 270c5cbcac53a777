"""All-reduces in two halves: an all-gather backwards and forwards."""

from __future__ import annotations

import numpy as np
import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import retime, routes
from tacos.search.halves import all_gather_of, both_halves, turning
from tacos.synth import ENGINES
from tacos.synth.matched_ports import matched_ports


def images_are_links(topology, turned):
    """Every link has another image, equally fast, between the images of its ends in the opposite order."""
    ends = np.stack([turned.node[topology.link_dst], turned.node[topology.link_src]])
    assert sorted(turned.link.tolist()) == list(range(topology.links))
    for column, wanted in ((topology.link_src, ends[0]), (topology.link_dst, ends[1])):
        assert np.array_equal(column[turned.link], wanted)
    for column in (topology.link_bandwidth_Bps, topology.link_latency_ps):
        assert np.array_equal(column[turned.link], column)
    return True


@pytest.mark.parametrize(
    "spec", ["mesh:3x3", "dgx-1:2", "dgx-h100-plain:3", "mi250:1", "torus:4x4"]
)
def test_two_way_networks_are_their_own_image(spec):
    topology = tp.parse(spec)
    turned = turning(topology)
    assert turned is not None
    assert np.array_equal(turned.node, np.arange(topology.nodes))
    assert images_are_links(topology, turned)


@pytest.mark.parametrize("spec", ["dgx-h100-plain:3", "mi250:4", "mi300x:4"])
def test_boxes_in_a_ring_turn_round(spec):
    """Matched ports lead from each box to the next ones, so the boxes are taken in the opposite order."""
    whole = tp.parse(spec)
    matching = matched_ports(whole)
    assert matching is not None
    boxes = whole.dims[-1][1]
    turned = turning(matching.topology, boxes)
    assert turned is not None
    assert images_are_links(matching.topology, turned)
    each = whole.npus // boxes
    images = [int(turned.node[box * each]) // each for box in range(boxes)]
    assert images == [-box % boxes for box in range(boxes)]


def test_a_network_that_cannot_be_turned_round():
    rows = [(0, 1, "1GB/s", 0), (1, 2, "1GB/s", 0), (2, 0, "2GB/s", 0), (0, 2, "1GB/s", 0)]
    assert turning(tp.from_links(3, rows)) is None


def test_only_all_reduces_have_halves():
    assert all_gather_of(co.all_gather(4, "1MB")) is None
    assert all_gather_of(co.reduce_scatter(4, "1MB")) is None
    half = all_gather_of(co.all_reduce(4, "1MB", group=[0, 2], chunks=3))
    assert half == co.all_gather(4, "1MB", group=[0, 2], chunks=3)


@pytest.mark.parametrize("size", [960_000, 1_000_003])
@pytest.mark.parametrize(
    ("spec", "engine", "chunks"),
    [("mi250:1", "forest", 4), ("mesh:3x4", "greedy", 3), ("dgx-1:2", "hierarchical", 2)],
)
def test_both_halves_take_at_most_twice_the_time(spec, engine, chunks, size):
    """Sizes that do not divide evenly cut an all-reduce and an all-gather differently, by a byte."""
    topology = tp.parse(spec)
    collective = co.all_reduce(topology, size, chunks=chunks)
    gather = ENGINES[engine](topology, all_gather_of(collective))
    turned = turning(topology)
    assert turned is not None
    whole = both_halves(gather, collective, turned)
    report = tacos.verify(whole)
    assert report.ok, report.violations
    assert report.consistent
    assert whole.collective == collective
    byte_ps = 10**12 // int(topology.link_bandwidth_Bps.min())
    assert whole.time_ps <= 2 * gather.time_ps + 10 * byte_ps


def test_both_halves_over_boxes_in_a_ring():
    """Chunks change owners with the boxes; one of 1,000,003 B may then be a byte longer."""
    whole = tp.parse("mi250:4")
    matching = matched_ports(whole)
    assert matching is not None
    turned = turning(matching.topology, 4)
    assert turned is not None
    collective = co.all_reduce(whole, 1_000_003, chunks=2)
    gather = ENGINES["forest"](matching.topology, all_gather_of(collective))
    found = both_halves(gather, collective, turned)
    assert tacos.verify(found).ok
    assert tacos.verify(matching.returned(found)).ok
    assert found.time_ps <= 1.001 * 2 * gather.time_ps


def test_chunks_of_different_sizes_do_not_change_places():
    """5 B over 3 NPUs in a ring are cut into 2, 2 and 1 B, both in an all-gather and in an all-reduce."""
    ring = tp.ring(3, bidirectional=False)
    turned = turning(ring, 3)
    assert turned is not None
    collective = co.all_reduce(ring, 5, chunks=1)
    gather = ENGINES["greedy"](ring, all_gather_of(collective))
    with pytest.raises(ValueError, match="chunks of different sizes would change places"):
        both_halves(gather, collective, turned)


def test_trees_cannot_be_turned_round():
    """Each NPU sends its part to the two others through one multicast."""
    switch = tp.switch(3, multicast=True)
    ends = list(zip(switch.link_src.tolist(), switch.link_dst.tolist(), strict=True))
    trees = [
        [ends.index((npu, 3)), *(ends.index((3, other)) for other in range(3) if other != npu)]
        for npu in range(3)
    ]
    table = routes(switch, links=trees, kinds=["multicast"] * 3)
    collective = co.all_reduce(switch, 3000, chunks=1)
    half = all_gather_of(collective)
    gather = retime(half, table, route=[0, 1, 2], chunk=[0, 1, 2], step=0)
    assert tacos.verify(gather).ok
    turned = turning(switch)
    assert turned is not None
    with pytest.raises(ValueError, match="only schedules without trees"):
        both_halves(gather, collective, turned)


def test_members_whose_images_are_others():
    ring = tp.ring(3, bidirectional=False)
    turned = turning(ring, 3)
    assert turned is not None
    collective = co.all_reduce(ring, "3KB", group=[0, 1], chunks=1)
    gather = tacos.synthesize(ring, all_gather_of(collective), engine="greedy")
    with pytest.raises(ValueError, match="images of the members are not members"):
        both_halves(gather, collective, turned)


@pytest.mark.unsanitized
@pytest.mark.parametrize(("spec", "size"), [("dgx-1:1", "64MB"), ("mesh:4x4", "64MB")])
def test_an_all_reduce_is_not_slower_than_its_halves(spec, size):
    topology = tp.parse(spec)
    times = {
        kind: tacos.synthesize(topology, co.named(kind, topology, size), target="schedule").time_ps
        for kind in ("all_gather", "reduce_scatter", "all_reduce")
    }
    assert times["all_reduce"] <= times["all_gather"] + times["reduce_scatter"]


def test_a_symmetric_schedule_stays_compact():
    """Joining halves would list 2,095,104 transfers that one NPU's transfers and the symmetry describe."""
    torus = tp.torus(32, 32)
    schedule = tacos.synthesize(torus, co.all_reduce(torus, "1GiB"))
    assert schedule.transfers > 2_000_000
    assert schedule.stored_transfers < 10_000
    assert "halves" not in schedule.provenance


@pytest.mark.unsanitized
def test_a_time_limit_keeps_what_was_found():
    """The halves come last under a time limit, so that the first engine's answer is never lost with them."""
    boxes = tp.dgx_h100(4, nvls=False)
    coll = co.all_reduce(boxes, "1GB")
    schedule = tacos.synthesize(boxes, coll, time_limit=600)
    assert next(iter(schedule.provenance["best_of"])) == schedule.engine
    assert not any("failed" in end for end in schedule.provenance["ends"].values())
