"""NCCL that does not know of a network's faults: hand-computed times, dead links, names, and its place in comparisons."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.nccl import estimate
from tacos.synth import ENGINES
from tacos.view import remarks
from tests.synth.test_nccl_laws import BOXES, TORI, collective_on, collectives
from tests.synth.test_nccl_model import cluster

unaware, nccl = ENGINES["nccl-unaware"], ENGINES["nccl"]
FAST, SLOW = ("50GB/s", 0), ("25GB/s", 0)


def both_ways(*links):
    return [way for a, b, speed in links for way in ((a, b, *speed), (b, a, *speed))]


# --- times by hand ------------------------------------------------------------------------------


def test_a_slow_link_of_a_ring_serves_all_blocks_at_half_speed():
    """Of four blocks, three pass each link one after the other: 3 τ, or 3 · 2 τ over the slow link, where the last one ends."""
    healthy = tp.ring(4, bandwidth="1GB/s", latency="0ns", bidirectional=False)
    worn = tp.degrade(healthy, (1, 2), factor=0.5)
    gather = co.all_gather(healthy, "4MB", chunks=1)  # τ = 1 ms
    assert nccl(healthy, gather).time_ps == 3 * 10**9
    assert unaware(worn, gather).time_ps == 6 * 10**9


@pytest.mark.parametrize("npu", range(32))
def test_any_slow_nic_of_four_boxes_costs_the_same(npu):
    """A ring all-reduce sends 2 · 31/32 of 1 GB through every NIC, an eighth on each of 8 rings; the slow one takes twice as long."""
    box = tp.dgx_h100(4, nvls=False)
    worn = tp.degrade(box, (npu, box.nodes - 1), factor=0.5, both=True)
    coll = co.all_reduce(box, "1GB", chunks=8)
    found, again = unaware(worn, coll), nccl(worn, coll)
    wire_s = 2 * 31 / 32 * 1e9 / 8 / 25e9
    assert wire_s == pytest.approx(9.6875e-3)
    assert wire_s < found.time_s < 1.001 * wire_s
    first = tp.degrade(box, (0, box.nodes - 1), factor=0.5, both=True)
    assert (found.time_ps, again.time_ps) == (
        unaware(first, coll).time_ps,
        nccl(first, coll).time_ps,
    )


def planes(slow_at=SLOW):
    """Two NPUs, each with a port in both of two planes, switches 2 and 3; the second is slower."""
    return tp.from_links(
        2, both_ways((0, 2, FAST), (1, 2, FAST), (0, 3, slow_at), (1, 3, slow_at)), switches=2
    )


def test_a_dead_port_fails_over_to_the_other_plane_where_a_setting_allows_it():
    worn = tp.drop_links(planes(), (0, 2))
    found = unaware(worn, co.all_gather(worn, "1GB", chunks=1))
    assert found.time_s == pytest.approx(0.5e9 / 25e9)  # 20 ms instead of 10
    assert found.provenance["needs"] == "NCCL_IB_RESILIENCY_PORT_FAILOVER=1"
    assert found.provenance["rerouted"] == 1
    healthy = nccl(planes(), co.all_gather(worn, "1GB", chunks=1))
    assert healthy.time_s == pytest.approx(0.5e9 / 50e9)


def spines():
    """Two NPUs on each of two leaves, 4 and 5, which two spines, 6 and 7, join; the second spine is slower."""
    hosts = [(npu, 4 + npu // 2, FAST) for npu in range(4)]
    ups = [(leaf, spine, speed) for spine, speed in ((6, FAST), (7, SLOW)) for leaf in (4, 5)]
    return tp.from_links(4, both_ways(*hosts, *ups), switches=4)


def test_a_fabric_routes_around_a_dead_cable_between_its_switches():
    """The ring crosses once in each direction; the way over the slower spine takes twice as long."""
    worn = tp.drop_links(spines(), (4, 6))
    gather = co.all_gather(worn, "4MB", chunks=1)  # blocks of 1 MB: 20 µs, or 40 µs
    found = unaware(worn, gather)
    assert nccl(spines(), gather).time_ps == 60 * 10**6
    assert found.time_ps == 120 * 10**6
    assert "needs" not in found.provenance
    assert found.provenance["rerouted"] == 1


@pytest.mark.parametrize(
    ("network", "dead", "named"),
    [
        (tp.dgx_h100(2, nvls=False), (3, 18), "link npu 3-switch 2"),
        (tp.dgx1(), (0, 1), "link npu 0-npu 1"),
        (tp.torus(4, 4), (0, 1), "link npu 0-npu 1"),
    ],
)
def test_nccl_fails_where_no_other_port_exists(network, dead, named):
    worn = tp.drop_links(network, dead)
    with pytest.raises(
        tacos.InfeasibleError, match=f"NCCL fails: it would send over {named}, which is dead"
    ):
        unaware(worn, co.all_reduce(worn, "1GB"))
    nccl(worn, co.all_reduce(worn, "1GB"))  # searched again


# --- what it applies to -------------------------------------------------------------------------


def test_only_networks_with_dead_or_slow_links_have_it():
    box = tp.dgx_h100(2, nvls=False)
    coll = co.all_reduce(box, "1MB")
    with pytest.raises(ValueError, match="nccl-unaware needs a network with dead or slow links"):
        unaware(box, coll)
    assert "nccl-unaware" not in tacos.engines(box, coll)
    left = tp.drop_npus(box, 3)
    with pytest.raises(ValueError, match="needs dead or slow links between NPUs that are left"):
        unaware(left, co.all_reduce(left, "1MB"))
    # A communicator has only ranks that exist: links of NPUs that are gone do not count.
    worn = tp.degrade(left, (4, left.nodes - 1), factor=0.5, both=True)
    known = unaware(worn, co.all_reduce(worn, "1MB"))
    assert known.time_ps >= nccl(left, co.all_reduce(left, "1MB")).time_ps


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "reduce", "all_to_all", "gather"])
@pytest.mark.parametrize("network", [tp.dgx_h100(2, nvls=True), tp.dgx1(2), tp.torus(3, 3)])
def test_every_algorithm_moves_to_the_broken_network(kind, network):
    """Sums in switches, chains, direct sends: at most as many times slower as the link is."""
    for link in (0, network.links - 1):
        worn = tp.degrade(network, link, factor=0.25)
        coll = co.named(kind, network, 72 * 840_000, chunks=4)
        found, before = unaware(worn, coll), nccl(network, coll)
        assert tacos.verify(found).ok
        assert found.transfers == before.transfers
        assert 0.999 * before.time_ps <= found.time_ps <= 4.001 * before.time_ps


# --- times of nccl-tests ------------------------------------------------------------------------


def test_the_estimate_is_of_the_faster_reference():
    """Half of one NIC: unaware, eight rings at half speed, so twice the time of the wire; searched again, seven rings at full speed."""
    box = tp.dgx_h100(4, nvls=False)
    worn = tp.degrade(box, (3, box.nodes - 1), factor=0.5, both=True)
    coll = co.all_gather(box, "8GB")
    healthy, again, before = (
        estimate(network, coll, aware=aware)
        for network, aware in ((box, None), (worn, True), (worn, False))
    )
    assert (healthy.engine, again.engine, before.engine) == ("nccl", "nccl", "nccl-unaware")
    assert before.time_s == pytest.approx(2 * healthy.time_s, rel=0.01)
    assert again.time_s == pytest.approx(8 / 7 * healthy.time_s, rel=0.01)
    assert estimate(worn, coll) == again
    # NCCL's tuner does not know of the fault either.
    assert before.candidates[0].cost_s == healthy.candidates[0].cost_s


def test_a_dead_link_that_nccl_does_not_know_of_leaves_one_estimate():
    worn = tp.drop_links(tp.dgx_h100(2), (3, 18), both=True)
    coll = co.all_reduce(worn, "64MB")
    assert estimate(worn, coll).engine == "nccl"
    with pytest.raises(tacos.InfeasibleError, match="NCCL fails: it would send over link npu 3-"):
        estimate(worn, coll, aware=False)


def test_a_slow_nvlink_does_not_make_a_gpu_an_older_one():
    """Sums in switches run at the speed of the slowest port; the GPUs remain H100 and keep NVLS."""
    box = tp.dgx_h100()
    worn = tp.degrade(box, (3, 8), factor=0.5, both=True)
    coll = co.all_reduce(box, "8GB")
    for aware in (True, False):
        found = estimate(worn, coll, aware=aware)
        assert (found.generation, found.algorithm) == ("H100", "nvls")
        assert found.time_s == pytest.approx(2 * estimate(box, coll).time_s, rel=0.01)


# --- laws ---------------------------------------------------------------------------------------


@st.composite
def worn_machines(draw, most=3):
    """A healthy network, and the same with some links slow."""
    build = draw(st.sampled_from(["switch", "rail", "box", "torus"]))
    if build in ("box", "torus"):
        healthy = draw(st.sampled_from(BOXES if build == "box" else TORI))
    else:
        sizes = [draw(st.integers(1, 5))] * draw(st.integers(2, 4))
        healthy = cluster(sizes, rail=build == "rail")
    worn = healthy
    for _ in range(draw(st.integers(1, most))):
        link = draw(st.integers(0, healthy.links - 1))
        worn = tp.degrade(worn, link, factor=draw(st.sampled_from([0.9, 0.55, 0.3])))
    return healthy, worn


@settings(max_examples=60)
@given(worn_machines(), collectives())
def test_a_broken_network_is_not_faster_than_the_healthy_one(machines, what):
    """Queues may lose a few per cent on either; rings have none to speak of."""
    healthy, worn = machines
    coll = collective_on(healthy, what)
    before = nccl(healthy, coll, algorithm="ring")
    assert (
        unaware(worn, coll.with_chunks(8), algorithm="ring").time_ps
        >= 0.999 * nccl(healthy, coll.with_chunks(8), algorithm="ring").time_ps
    )
    assert before.time_ps > 0


@settings(max_examples=60)
@given(worn_machines(most=1), collectives(), st.randoms(use_true_random=False))
def test_numbers_of_equal_npus_do_not_matter(machines, what, random):
    """Which of equal NPUs comes first follows the faults: on a clique, rings use some of its links only."""
    healthy, worn = machines
    assume(worn.faults is not None)
    order = list(range(healthy.npus))
    random.shuffle(order)
    turned = tp.renumber(worn, order)
    times = [
        unaware(one, collective_on(one, what), algorithm="ring").time_ps for one in (worn, turned)
    ]
    assert times[0] == times[1]


@settings(max_examples=40)
@given(worn_machines(), collectives())
def test_estimates_of_what_does_not_know_of_faults_are_not_faster_than_healthy(machines, what):
    healthy, worn = machines
    coll = collective_on(healthy, what)
    whole, broken = (estimate(one, coll, aware=False, generation="H100") for one in (healthy, worn))
    for before, after in zip(whole.candidates, broken.candidates, strict=True):
        assert (before.algorithm, before.protocol) == (after.algorithm, after.protocol)
        assert after.cost_s == before.cost_s
        assert after.time_s >= 0.999 * before.time_s


# --- comparisons --------------------------------------------------------------------------------


def test_comparisons_have_both_and_speed_ups_are_over_the_faster():
    box = tp.dgx_h100(2, nvls=False)
    worn = tp.degrade(box, (3, 18), factor=0.5, both=True)
    coll = co.all_reduce(box, "64MB", chunks=8)
    found = tacos.compare(worn, coll, engines="ring,nccl")
    times = {one.engine: one.figures.counted_s for one in found.solved}
    assert {"nccl", "nccl-unaware"} <= times.keys()
    faster = min("nccl", "nccl-unaware", key=times.get)
    assert found.reference == faster
    best = found.solved[0].figures.counted_s
    assert found.speed_up() == times[faster] / best
    assert [one.engine for one in tacos.compare(box, coll, engines="nccl").candidates] == ["nccl"]


def test_sweeps_measure_each_size_over_the_faster():
    box = tp.ring(4, bandwidth="1GB/s", latency="1us")
    worn = tp.degrade(box, (0, 1), factor=0.9, both=True)
    sizes = [co.all_reduce(box, size) for size in ("8KB", "8MB")]
    found = tacos.compare(worn, sizes, engines="bidirectional-ring,nccl")
    assert found.reference in ("nccl", "nccl-unaware")
    assert found.speed_ups() == [one.speed_up() for one in found.comparisons]
    assert np.all([one.reference.startswith("nccl") for one in found.comparisons])


def test_sweeps_name_both_references_where_each_is_the_faster_at_some_size():
    worn = tp.degrade(tp.dgx_h100(4), (3, 32), factor=0.5, both=True)
    sizes = [co.all_reduce(worn, size) for size in ("64KB", "64MB")]
    found = tacos.compare(worn, sizes, engines="nccl")
    assert [one.reference for one in found.comparisons] == ["nccl-unaware", "nccl"]
    assert found.compared_with == "nccl or nccl-unaware"


def test_where_nccl_fails_only_the_search_counts():
    worn = tp.drop_links(tp.dgx_h100(2, nvls=False), (3, 18), both=True)
    found = tacos.compare(worn, co.all_reduce(worn, "64MB", chunks=8), engines="nccl")
    assert found.reference == "nccl"
    failed = next(one for one in found.candidates if one.engine == "nccl-unaware")
    assert not failed.ok
    assert not failed.wrong
    assert failed.note.startswith("NCCL fails:")


def test_both_references_are_printed_with_their_rings():
    box = tp.dgx_h100(2, nvls=False)
    worn = tp.degrade(box, (3, 18), factor=0.5, both=True)
    coll = co.all_reduce(box, "64MB", chunks=8)
    again, before = tacos.nccl.rings(worn), tacos.nccl.rings(worn, aware=False)
    assert (len(again), len(before)) == (7, 8)
    assert tacos.nccl.rings(box, aware=False) == tacos.nccl.rings(box)
    text = "\n".join(remarks(tacos.compare(worn, coll, engines="nccl")))
    for rings, words in (
        (again, "nccl searched again: 7 rings, "),
        (before, "unaware does not know of the faults: 8 rings, "),
    ):
        assert words + "; ".join("-".join(map(str, ring)) for ring in rings) in text
    assert "rings" not in "\n".join(remarks(tacos.compare(box, coll, engines="nccl")))


def test_the_setting_that_lets_nccl_fail_over_is_printed():
    worn = tp.drop_links(
        tp.from_links(
            4,
            both_ways(*[(npu, 4, FAST) for npu in range(4)], *[(npu, 5, SLOW) for npu in range(4)]),
            switches=2,
        ),
        (0, 4),
        both=True,
    )
    text = remarks(tacos.compare(worn, co.all_gather(worn, "4MB", chunks=1), engines="nccl"))
    assert any(
        "It needs NCCL_IB_RESILIENCY_PORT_FAILOVER=1, without which it fails." in one
        for one in text
    )


def test_auto_is_not_slower_than_either():
    worn = tp.degrade(tp.ring(4, bandwidth="1GB/s"), (0, 1), factor=0.5, both=True)
    coll = co.all_reduce(worn, "4MB")
    best = tacos.synthesize(worn, coll).executed_s
    for engine in ("nccl", "nccl-unaware"):
        assert best <= tacos.synthesize(worn, coll, engine=engine).executed_s
