"""Laws of the baseline nccl: equal nodes may have any numbers, small changes are small, and faster links are not slower.

Of NCCL's choices only those of its tuner may jump, so times are compared for the same algorithm.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.nccl import estimate
from tacos.synth import ENGINES
from tacos.synth.baselines.nccl.boxes import box_labels
from tacos.topology.edits import reweighted
from tests.synth.test_nccl_model import cluster

pytestmark = pytest.mark.unsanitized

nccl = ENGINES["nccl"]

BOXES = [
    tp.dgx1(),
    tp.mi250(),
    tp.mi300x(),
    tp.dgx_h100(nvls=False),
    tp.fully_connected(6),
    tp.hypercube(3),
]
TORI = [tp.torus(*dims, latency="700ns") for dims in ((3, 3), (2, 4), (3, 4), (4, 4), (2, 2, 3))]
SMALL, TREES, NOISE = 0.06, 0.2, 0.1
"""Largest relative change after a change of 1 %, for trees, whose queues are uneven, and largest loss on a faster network."""


@st.composite
def machines(draw):
    """A box, a torus or a cluster, with at most one slow cable."""
    build = draw(st.sampled_from(["switch", "rail", "box", "torus"]))
    if build in ("box", "torus"):
        topology = draw(st.sampled_from(BOXES if build == "box" else TORI))
    else:
        sizes = [draw(st.integers(1, 5))] * draw(st.integers(2, 4))
        topology = cluster(sizes, rail=build == "rail")
    if draw(st.booleans()):
        link = draw(st.integers(0, topology.links - 1))
        ends = int(topology.link_src[link]), int(topology.link_dst[link])
        factor = draw(st.sampled_from([0.9, 0.7, 0.55, 0.3]))
        topology = tp.degrade(topology, ends, factor=factor, both=draw(st.booleans()))
    return topology


def changed(topology, chosen, *, bandwidth=1.0, latency=1.0):
    """Return the network with the bandwidths and latencies of some links multiplied."""
    return reweighted(
        topology,
        bandwidth_Bps=np.where(
            chosen, topology.link_bandwidth_Bps * bandwidth, topology.link_bandwidth_Bps
        ).astype(np.int64),
        latency_ps=np.where(
            chosen, topology.link_latency_ps * latency, topology.link_latency_ps
        ).astype(np.int64),
    )


def collectives():
    """Kinds, with sizes of which every block and chunk is whole."""
    kinds = st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"])
    return st.tuples(kinds, st.sampled_from([840 * 8, 840 * 2**10, 840 * 2**15]))


def collective_on(topology, what):
    kind, block = what
    return co.named(kind, topology, block * topology.npus)


def same_links(draw, topology, *kinds):
    """All links, those in boxes, those between boxes, or some, as `kinds` says."""
    label = box_labels(topology)
    inside = label[topology.link_src] == label[topology.link_dst]
    some = np.isin(
        np.arange(topology.links), list(draw(st.sets(st.integers(0, topology.links - 1))))
    )
    return {"all": some | True, "inside": inside, "between": ~inside, "some": some}[
        draw(st.sampled_from(kinds))
    ]


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.95, 0.5, 0.1])
@pytest.mark.parametrize("size", ["64KB", "1MB", "1GB"])
def test_any_of_32_equal_nics_may_be_slow(size, factor):
    """A box of four has one slow NIC. It slows down all rings or is left out, so the loss is at most an eighth."""
    healthy = tp.dgx_h100(4, nvls=False)
    nics = healthy.link_bandwidth_Bps == healthy.link_bandwidth_Bps.min()
    times = set()
    for npu in range(healthy.npus):
        cable = (healthy.link_src == npu) | (healthy.link_dst == npu)
        broken = changed(healthy, nics & cable, bandwidth=factor)
        found = nccl(broken, co.all_reduce(broken, size))
        times.add((found.time_ps, found.provenance["algorithm"], found.provenance["estimate_s"]))
    assert len(times) == 1
    before = nccl(healthy, co.all_reduce(healthy, size)).time_ps
    assert before < min(times)[0] < 1.15 * before


@pytest.mark.parametrize(("dims", "link"), [((4, 4), (0, 1)), ((4, 4), (0, 4)), ((3, 5), (0, 3))])
def test_any_equal_cable_of_a_torus_may_be_slow(dims, link):
    """Translations of a torus move a cable to all others of its direction."""
    topology = tp.torus(*dims)
    place = np.arange(topology.npus).reshape(dims[::-1])
    times = set()
    for shift in np.ndindex(*dims[::-1]):
        moved = np.roll(place, shift, (0, 1)).ravel()
        broken = tp.degrade(topology, tuple(moved[list(link)].tolist()), factor=0.5, both=True)
        times.add(nccl(broken, co.all_reduce(broken, topology.npus * 840000)).time_ps)
    assert len(times) == 1
    assert min(times) > nccl(topology, co.all_reduce(topology, topology.npus * 840000)).time_ps


@settings(max_examples=60)
@given(machines(), collectives(), st.randoms(use_true_random=False))
def test_numbers_of_equal_nodes_do_not_matter(topology, what, random):
    order = list(range(topology.npus))
    random.shuffle(order)
    renamed = tp.renumber(topology, order)
    before, after = (nccl(one, collective_on(one, what)) for one in (topology, renamed))
    assert before.time_ps == after.time_ps
    for name in ("algorithm", "channels", "estimate_s"):
        assert before.provenance[name] == after.provenance[name]


@pytest.mark.parametrize(
    "healthy",
    [tp.dgx_h100(2), tp.dgx_a100(3), tp.mi300x(2), cluster([4] * 3, rail=True)],
    ids=["dgx-h100:2", "dgx-a100:3", "mi300x:2", "rails"],
)
def test_numbers_of_equal_nodes_do_not_matter_to_direct_sends(healthy):
    """Rounds of an all-to-all follow the order of the search: ranks in another order took up to a quarter longer."""
    collective = co.all_to_all(healthy, healthy.npus * 840 * 2**10)
    before = nccl(healthy, collective).time_ps
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(healthy.npus).tolist()
        renamed = tp.renumber(healthy, order)
        assert nccl(renamed, collective).time_ps == before


@pytest.mark.parametrize("dims", [(4, 4), (4, 4, 4), (4, 6)])
def test_a_torus_of_even_sides_without_one_npu_has_a_ring_with_one_detour(dims):
    """An odd number of its NPUs has no cycle over links alone. All hops but one are links; ring and reverse have full speed."""
    healthy = tp.torus(*dims, latency="0ns")
    times = set()
    for npu in (0, 5, healthy.npus - 1):
        broken = tp.drop_npus(healthy, npu)
        n = broken.npus
        rings = tacos.nccl.rings(broken)
        for ring in rings:
            table = tacos.routes(broken, pairs=(ring, np.roll(ring, -1)))
            assert sorted(np.diff(table.link_begin))[-2:] == [1, 2]
        found = nccl(broken, co.all_reduce(broken, n * 840_000 * 32, chunks=8))
        times.add(found.time_ps)
        wire_s = 2 * (n - 1) * 840_000 * 32 / (2 * 50e9)
        assert wire_s < found.time_s < 1.01 * wire_s
    assert len(times) == 1


# --- small changes ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data(), machines(), collectives())
def test_one_per_cent_changes_little(data, topology, what):
    factor = data.draw(st.sampled_from([0.99, 1.01]))
    which = data.draw(st.sampled_from(["bandwidth", "latency"]))
    near = changed(
        topology,
        same_links(data.draw, topology, "all", "inside", "between", "some"),
        **{which: factor},
    )
    first, second = (
        estimate(one, collective_on(one, what), generation="H100") for one in (topology, near)
    )
    costs, nearly = (
        {(one.algorithm, one.protocol): one for one in found.candidates}
        for found in (first, second)
    )
    assert costs.keys() == nearly.keys()
    for name, one in costs.items():
        assert nearly[name].cost_s == pytest.approx(one.cost_s, rel=SMALL)
        assert nearly[name].time_s == pytest.approx(one.time_s, rel=SMALL)
    for algorithm in {algorithm for algorithm, _ in costs}:
        before, after = (
            nccl(one, collective_on(one, what), algorithm=algorithm, generation="H100")
            for one in (topology, near)
        )
        rel = SMALL if algorithm == "ring" else TREES
        assert after.time_ps == pytest.approx(before.time_ps, rel=rel)
    if which == "latency":
        # NCCL does not know latencies, so its choice does not depend on them.
        before, after = (
            nccl(one, collective_on(one, what), generation="H100") for one in (topology, near)
        )
        assert after.time_ps == pytest.approx(before.time_ps, rel=TREES)


@pytest.mark.parametrize("size", [10**5, 6 * 10**6])
def test_time_grows_evenly_with_latency(size):
    """At 6 MB the costs of rings and trees are almost equal, and both are in doubt at every latency."""
    times = []
    for latency in range(500, 1001, 50):
        topology = tp.torus(8, 8, latency=f"{latency}ns")
        times.append(nccl(topology, co.all_reduce(topology, size)).time_ps)
    steps = np.array(times[1:]) / np.array(times[:-1])
    assert steps.min() >= 1
    assert 1 < steps.max() < 1.1


def test_time_falls_evenly_with_the_speed_of_one_nic():
    """Eight rings until seven without the slow NIC carry more: at 7/8 of its speed."""
    healthy = tp.dgx_h100(2, nvls=False)
    cable = (healthy.link_src == 5) & (healthy.link_bandwidth_Bps == 50e9)
    assert cable.sum() == 1
    times = []
    for factor in np.linspace(0.1, 1, 46):
        broken = changed(healthy, cable, bandwidth=factor)
        times.append(nccl(broken, co.all_reduce(broken, "1GB")).time_ps)
    steps = np.array(times[1:]) / np.array(times[:-1])
    assert steps.min() > 0.96
    assert steps.max() < 1.01
    assert times[0] == pytest.approx(8 / 7 * times[-1], rel=0.01)


# --- faster networks ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data(), machines(), collectives())
def test_faster_links_are_not_slower(data, topology, what):
    fast = changed(
        topology, same_links(data.draw, topology, "all", "inside", "between"), bandwidth=2.0
    )
    if (box_labels(fast) != box_labels(topology)).any():
        return  # what counts as a box follows from bandwidths
    algorithms = {
        one.algorithm for one in estimate(topology, collective_on(topology, what)).candidates
    }
    for algorithm in algorithms:
        before, after = (
            nccl(one, collective_on(one, what), algorithm=algorithm) for one in (topology, fast)
        )
        assert after.time_ps <= (1 + NOISE) * before.time_ps


@pytest.mark.parametrize("size", ["64KB", "1GB"])
def test_faster_nics_are_not_slower(size):
    """Up to the speed of NVLink, where a fabric and boxes become one."""
    healthy = tp.dgx_h100(4, nvls=False)
    nics = healthy.link_bandwidth_Bps == 50e9
    times = []
    for factor in (0.5, 0.8, 1, 1.2, 1.4, 1.6, 2, 3, 4, 6, 7, 8):
        fast = changed(healthy, nics, bandwidth=factor)
        found = nccl(fast, co.all_reduce(fast, size))
        assert found.provenance["boxes"] == 4
        times.append(found.time_ps)
    assert all(after <= 1.01 * before for before, after in pairwise(times))
    assert times[-1] < times[0]


def test_a_slow_nvlink_does_not_leave_its_box():
    """Down to a tenth of the speed of a NIC, the GPU stays where it is."""
    for boxes in (1, 2):
        healthy = tp.dgx_h100(boxes, nvls=False)
        for speed in (0.9, 0.5, 0.1, 0.01):
            port = (healthy.link_src == 3) | (healthy.link_dst == 3)
            port &= healthy.link_bandwidth_Bps == 450e9
            broken = changed(healthy, port, bandwidth=speed)
            found = nccl(broken, co.all_reduce(broken, "64MB"))
            assert found.provenance["boxes"] == boxes
            tacos.verify(found).raise_if_failed()


def test_close_costs_are_in_doubt():
    """The schedule is the fastest of the algorithms that NCCL might choose, and says which they are."""
    topology = tp.dgx_h100(4, nvls=False)
    collective = co.all_reduce(topology, "16MB")
    found = nccl(topology, collective)
    assert found.provenance["in_doubt"] == ["tree", "ring"]
    alone = {name: nccl(topology, collective, algorithm=name).time_ps for name in ("ring", "tree")}
    assert found.time_ps == min(alone.values()) < max(alone.values())
    assert found.provenance["estimate_s"] == estimate(topology, collective).time_s
