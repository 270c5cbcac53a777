"""The milp engine: optimal where the optimum is known, never worse than greedy, with a gap where it is not proven."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos._support import solver
from tacos.synth.greedy import greedy
from tacos.synth.milp import milp, obstacle
from tacos.synth.milp.flows import pairs_by_flow
from tacos.synth.milp.problem import epoch_choices, hops_of, in_epochs
from tacos.synth.milp.search import own_symmetry
from tacos.synth.milp.symmetry import automorphisms, orbits
from tests.support.conditions import PATIENCE_S, until
from tests.support.strategies import collectives, quick_topologies

UNIT = {"bandwidth": "1GB/s", "latency": "0s"}  # 1 KB takes 1 us
KINDS = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"]


def fewest_epochs(topology, collective):
    """Search all sets of held chunks breadth first, with one chunk per link and epoch."""
    links = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    chunks = range(collective.chunks)
    begin = frozenset((c, n) for c in chunks for n in collective.inputs(c))
    goal = {(c, n) for c in chunks for n in collective.outputs(c)}
    layer, seen, epochs = {begin}, {begin}, 0
    while not any(goal <= state for state in layer):
        following = set()
        for state in layer:
            useful = [
                [c for c in chunks if (c, a) in state and (c, b) not in state] or [-1]
                for a, b in links
            ]
            for choice in itertools.product(*useful):
                moved = {(c, b) for c, (_, b) in zip(choice, links, strict=True) if c >= 0}
                following.add(state | moved)
        layer = following - seen
        seen |= layer
        epochs += 1
    return epochs


TINY = [
    tp.ring(3, bidirectional=False, **UNIT),
    tp.ring(4, bidirectional=False, **UNIT),
    tp.mesh(3, **UNIT),
    tp.from_links(3, [(0, 1, 1e9, 0), (1, 0, 1e9, 0), (1, 2, 1e9, 0), (2, 1, 1e9, 0), (0, 2, 1e9, 0)]),
]  # fmt: skip


@pytest.mark.parametrize("topology", TINY, ids=lambda t: f"{t.family}{t.links}")
@pytest.mark.parametrize("kind", ["all_gather", "broadcast", "scatter", "gather", "all_to_all"])
def test_it_is_as_good_as_trying_everything(topology, kind):
    if kind == "all_to_all" and topology.npus > 3:
        pytest.skip("too many states to try")
    size = 1000 if kind == "broadcast" else 1000 * topology.npus
    collective = co.named(kind, topology, size, chunks=1)
    best = milp(topology, collective)
    assert tacos.verify(best).violations == ()
    assert best.provenance["proven"]
    assert best.provenance["exact_epochs"]
    assert best.time_ps == fewest_epochs(topology, collective) * 10**6


@pytest.mark.parametrize(
    ("spec", "chunks", "epochs"),
    [
        ("mesh:3x3", 1, 4),  # a corner has two links for eight chunks
        ("torus:3x3", 1, 2),  # four links for eight chunks
        ("hypercube:3", 1, 3),  # three links for seven, and three hops
        ("hypercube:3", 3, 7),
        ("fc:5", 2, 2),
        ("ring:5", 1, 2),
    ],
)
def test_known_optima_of_all_gathers(spec, chunks, epochs):
    topology = tp.parse(f"{spec}@1GB/s,0s")
    collective = co.all_gather(topology, 1000 * chunks * topology.npus, chunks=chunks)
    best = milp(topology, collective, time_limit=PATIENCE_S)
    assert tacos.verify(best).ok
    assert (best.time_ps, best.provenance["proven"]) == (epochs * 10**6, True)
    assert best.provenance["gap"] == 0


def test_dgx1_takes_three_epochs():
    """Seven chunks over six NVLinks, of which two times two form a fast link: 3 epochs, greedy takes 4."""
    box = tp.dgx1(latency="0s")
    collective = co.all_gather(box, "8MB", chunks=1)
    assert greedy(box, collective).time_s == pytest.approx(80e-6)
    assert milp(box, collective).time_s == pytest.approx(60e-6)
    both = milp(box, co.all_reduce(box, "8MB", chunks=1))
    assert both.time_s == pytest.approx(120e-6)
    assert tacos.verify(both).ok


def test_a_slow_link_takes_several_epochs():
    """From 0 to 1 and 2, 1 ms over the slow link or twice 0.4 ms over the others."""
    links = [(0, 1, "10MB/s", 0), (0, 2, "25MB/s", 0), (2, 1, "25MB/s", 0), (1, 0, "25MB/s", 0)]
    topology = tp.from_links(3, links)
    one = milp(topology, co.broadcast(topology, 10**4, chunks=1))
    assert one.time_s == pytest.approx(0.8e-3)
    # Two chunks: 0.4, 0.8 at 2, and 0.8, 1.2 at 1; the slow link brings the second at 1.0.
    two = milp(topology, co.broadcast(topology, 2 * 10**4, chunks=2))
    assert two.time_s == pytest.approx(1.0e-3)
    assert two.provenance["proven"]
    assert tacos.verify(two).ok


@given(topology=quick_topologies(), data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_answer_is_right_and_never_worse_than_greedy(topology, data):
    collective = data.draw(collectives(topology.npus, max_chunks=2))
    best = milp(topology, collective, time_limit=0.3)
    assert tacos.verify(best).violations == ()
    assert best.time_ps <= greedy(topology, collective).time_ps
    assert best.time_ps >= tacos.bound(topology, collective).time_ps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "model", [{}, {"link_model": "blocking"}, {"forwarding": "store_and_forward"}]
)
def test_switches_and_models(kind, model):
    topology = tp.fat_tree(2, 2, **model)
    best = milp(topology, co.named(kind, topology, "4MB", chunks=1), time_limit=1)
    assert tacos.verify(best).violations == ()


def test_groups_share_the_network():
    topology = tp.mesh(3, 3)
    both = co.together(
        co.all_reduce(topology, "1MB", group=[0, 2, 8], chunks=1),
        co.custom(topology, ["1KB"], before=[[4, 6]], after=[[1, 3]], reduces=True),
    )
    assert tacos.verify(milp(topology, both, time_limit=3)).ok


def test_a_program_that_is_too_large_is_not_tried():
    topology = tp.dgx_h100(4, nvls=False)
    collective = co.all_gather(topology, "1GB", chunks=4)
    best = milp(topology, collective, time_limit=30, epoch="4us")
    assert "start variables, more than" in best.provenance["note"]
    assert best.time_ps == greedy(topology, collective).time_ps


def test_the_same_arguments_give_the_same_schedule():
    box = tp.dgx1()
    collective = co.all_gather(box, "8MB", chunks=1)
    assert milp(box, collective) == milp(box, collective)


def test_ctrl_c_ends_the_solver():
    """The next of its reports would come after 50 ms; by itself, the solver notices after 40 s."""
    topology = tp.mesh(3, 3)
    collective = co.all_to_all(topology, "9MB", chunks=3)
    pressed = threading.Event()
    reports = 0

    def press():
        until(solver.running, "HiGHS is running")
        os.kill(os.getpid(), signal.SIGINT)
        pressed.set()

    def heed(_share):
        nonlocal reports
        reports += pressed.is_set()

    finger = threading.Thread(target=press)
    finger.start()
    with pytest.raises(KeyboardInterrupt):
        milp(topology, collective, time_limit=300, progress=heed)
    finger.join()
    assert reports <= 1


@pytest.mark.slow
def test_the_time_limit_of_synthesize_is_the_engines():
    topology = tp.mesh(4, 4)
    collective = co.all_to_all(topology, "16MB", chunks=1)
    found = tacos.synthesize(topology, collective, engine="milp", time_limit=10.0)
    assert found.provenance["cut_short"]
    assert not found.provenance["proven"]
    assert 0 < found.provenance["gap"] < 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit": 0}, "time_limit must be positive; got 0"),
        ({"threads": 0}, "threads must be a positive number; got 0"),
        ({"epoch": "1 fortnight"}, "epoch '1 fortnight' is not understood"),
    ],
)
def test_wrong_arguments(options, message):
    ring = tp.ring(4)
    with pytest.raises(ValueError, match=message):
        milp(ring, co.all_gather(ring, "1MB", chunks=1), **options)


def test_it_has_to_be_asked_for_by_name():
    ring = tp.ring(4)
    collective = co.all_gather(ring, "1MB")
    assert "milp" not in tacos.engines(ring, collective)
    assert obstacle(ring, collective) == ""
    assert tacos.synthesize(ring, collective, engine="milp").provenance["engine"] == "milp"


# --- its parts -------------------------------------------------------------------------------------


def test_hops_are_links_and_shortest_ways_through_fabrics():
    two = tp.dgx_h100(2, nvls=False)
    hops = hops_of(two)
    through = np.bincount(hops.use_hop)
    assert (through == 2).all()
    # In each box over NVSwitch and over the fabric; to the other box over the fabric.
    assert len(hops) == 2 * 56 + 16 * 15
    assert len(hops_of(tp.ndv2(2)).src) == 64 + 16 * 8 + 112  # over shared NICs also in a box


def test_links_of_a_switch_have_clocks_of_their_own():
    """Latency shifts the second link's window: ports are busy for whole epochs, not for parts of two."""
    switch = tp.switch(4, bandwidth="1GB/s", latency="300ns")
    collective = co.all_gather(switch, "4KB", chunks=1)
    problem = in_epochs(switch, collective, hops_of(switch), 10**6)
    assert (problem.begin == 0).all()
    assert (problem.end == 1).all()


def test_epochs_are_fine_where_it_matters():
    """Times of 1 and 10 us: whole microseconds if that is exact, whatever the horizon."""
    links = [(0, 1, 1e9, 0), (1, 0, 1e9, 0), (1, 2, 1e8, 0), (2, 1, 1e8, 0)]
    topology = tp.from_links(3, links)
    collective = co.all_gather(topology, 3000, chunks=1)
    assert epoch_choices(topology, collective, hops_of(topology), 21 * 10**6) == [10**6]


def test_symmetries_leave_no_npu_in_place():
    for topology in (
        tp.dgx1(),
        tp.mesh(4, 4),
        tp.mi250(1),
        tp.dgx_h100(2, nvls=False),
        tp.torus(3, 4),
    ):
        images = [np.array(image)[: topology.npus] for image in automorphisms(topology)]
        assert images
        for image in images:
            assert sorted(image.tolist()) == list(range(topology.npus))
            assert (image != np.arange(topology.npus)).all()


def test_orbits_of_a_torus():
    torus = tp.torus(3, 3)
    hops = hops_of(torus)
    group = own_symmetry(torus, co.all_gather(torus, 9, chunks=1), hops)
    assert group is not None
    assert group.order == 9
    assert group.pair_leads.sum() == 36  # of 9 x 36 pairs
    assert group.link_leads.sum() == 4
    with pytest.raises(ValueError, match="there is no chunk from NPU 1 to"):
        orbits(torus, co.broadcast(torus, 9, chunks=1), hops, automorphisms(torus))


def test_a_flow_of_all_pairs_is_at_its_bound():
    box = tp.dgx1(latency="0s")
    collective = co.all_to_all(box, "8MB", chunks=3)
    found = pairs_by_flow(box, collective, hops_of(box))
    assert found is not None
    assert tacos.verify(found).ok
    assert found.time_ps <= 1.07 * tacos.bound(box, collective).time_ps
    assert pairs_by_flow(box, co.all_gather(box, "8MB", chunks=1), hops_of(box)) is None
