"""The greedy engine: always correct, at the bound where that is known, the same by steps and by events."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos._core import greedy as core
from tacos._core import greedy_stepwise
from tacos.synth.greedy import greedy
from tests.support.strategies import collectives, topologies

KINDS = [
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
]


def transfers(schedule):
    rows = schedule.rows()
    names = ("start_ps", "src", "dst", "chunk")
    return sorted(zip(*(rows[name].tolist() for name in names), strict=True))


def blocking_steps(topology):
    """All-gather of 1 MiB chunks: the time in steps, and the fewest that the worst NPU needs."""
    collective = co.all_gather(topology, topology.npus * 2**20, chunks=1)
    schedule = greedy(topology, collective)
    assert tacos.verify(schedule).ok
    hop = topology.link_latency_ps[0] + -(-(2**20) * 10**12 // int(topology.link_bandwidth_Bps[0]))
    degree = np.bincount(topology.link_dst, minlength=topology.npus).min()
    return schedule.time_ps / hop, math.ceil((topology.npus - 1) / degree)


@pytest.mark.parametrize(
    "spec",
    [
        "mesh:8x8",
        "mesh:16x16",
        "mesh:4x4x4",
        "torus:4x4",
        "torus:8x8",
        "torus:16x16",
        "torus:4x4x4",
        "hypercube:6",
        "hypercube:8",
        "ring:9",
        "fc:7",
    ],
)
def test_regular_networks_are_solved_at_the_bound(spec):
    time, bound = blocking_steps(tp.parse(f"{spec}@50GiB/s,500ns", link_model="blocking"))
    assert time == bound


@given(network=topologies(), data=st.data())
@settings(max_examples=150)
def test_every_answer_is_right(network, data):
    """On any network and collective, with any seed, schedules pass the verifier; no transfer is unneeded."""
    collective = data.draw(collectives(network.npus, max_chunks=3))
    schedule = greedy(network, collective, seed=data.draw(st.integers(0, 5)))
    assert tacos.verify(schedule).violations == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "spec", ["dgx-h100-plain:2", "ndv2:2", "mi250:1", "fat-tree:2x2x2", "dragonfly:3x4"]
)
def test_machines(spec, kind):
    topology = tp.parse(spec)
    schedule = greedy(topology, co.named(kind, topology, "1MB", chunks=2))
    assert tacos.verify(schedule).ok


@pytest.mark.parametrize("model", [{"forwarding": "store_and_forward"}, {"link_model": "blocking"}])
def test_models(model):
    topology = tp.dgx_h100(2, nvls=False, **model)
    for kind in KINDS:
        assert tacos.verify(greedy(topology, co.named(kind, topology, "1MB", chunks=1))).ok


@pytest.mark.parametrize("build", [tp.ring, tp.mesh])
def test_rounded_starts_wait_for_sums_that_take_time(build):
    """Seconds do not fit 32 bits of picoseconds: starts are rounded, and sums still end before reads."""
    speed = {"bandwidth": "333333333B/s", "latency": "1ns", "reduce_bandwidth": "7777777777B/s"}
    network = build(4, link_model="blocking", **speed)
    coll = co.all_reduce(network, 100_000_003, chunks=1)
    schedule = tacos.synthesize(network, coll, engine="greedy")
    assert schedule.quantum_ps > 1
    assert tacos.verify(schedule).ok


def test_groups_relay_through_others_and_share_the_network():
    topology = tp.torus(4, 4)
    groups = [[0, 2, 8, 10], [1, 3, 9, 11]]
    together = co.together(
        *(co.all_reduce(topology, "1MB", group=g, chunks=2) for g in groups),
        co.broadcast(topology, "1MB", root=5, chunks=3),
        co.custom(topology, ["1KB"], before=[[4, 6, 7]], after=[[12, 13]], reduces=True),
    )
    assert tacos.verify(greedy(topology, together)).ok


@given(
    sides=st.lists(st.integers(2, 5), min_size=1, max_size=3),
    wrap=st.booleans(),
    chunks=st.integers(1, 3),
    seed=st.integers(0, 3),
)
@settings(max_examples=60)
def test_both_ways_give_the_same_schedule(sides, wrap, chunks, seed):
    build = tp.torus if wrap else tp.mesh
    topology = build(*sides, link_model="blocking")
    collective = co.all_gather(topology, topology.npus * chunks * 1000, chunks=chunks)
    by_steps, by_events = (
        core(topology, collective, seed=seed, steps=way) for way in (True, False)
    )
    assert transfers(by_steps) == transfers(by_events)


def test_threads_do_not_change_the_result():
    topology = tp.torus(16, 16, link_model="blocking")
    collective = co.all_gather(topology, "256MiB", chunks=1)
    one, three = (greedy(topology, collective, threads=n, seed=3) for n in (1, 3))
    assert one == three


def test_nvlink_and_nics_are_both_busy():
    """Two H100 boxes, 1 GB: the optimum saturates both."""
    topology = tp.dgx_h100(2, nvls=False)
    schedule = greedy(topology, co.all_gather(topology, "1GB", chunks=64))
    used = schedule.link_utilisation()
    fast = topology.link_bandwidth_Bps == 450e9
    assert used[fast].min() > 0.85
    assert used[~fast].min() > 0.85


@pytest.mark.parametrize(
    ("spec", "chunks", "best_GBps", "share"),
    [
        ("dgx-h100-plain:1", 16, 514.29, 0.99),
        ("dgx-h100-plain:2", 64, 533.33, 0.98),
        ("dgx-h100-plain:4", 64, 516.13, 0.95),
        ("dgx-a100:2", 64, 346.67, 0.97),
        ("dgx-a100:4", 64, 266.67, 0.97),
        ("mi250:1", 64, 342.86, 0.95),
        ("mi250:2", 64, 354.13, 0.92),
        ("ndv2:2", 16, 25.0, 0.98),
        ("dgx-1:1", 64, 171.43, 0.98),
    ],
)
def test_machines_come_close_to_their_exact_optimum(spec, chunks, best_GBps, share):
    topology = tp.parse(spec)
    gather = greedy(topology, co.all_gather(topology, "1GB", chunks=chunks))
    assert share * best_GBps < 1 / gather.time_s < best_GBps
    reduce = greedy(topology, co.all_reduce(topology, "1GB", chunks=chunks))
    assert reduce.time_s < 2 / 0.99 * gather.time_s


@pytest.mark.parametrize(
    ("n", "other", "causal_us"), [(8, 25, 841.31), (8, 75, 513.79), (16, 25, 3402.38)]
)
def test_heterogeneous_meshes_meet_the_bound_of_their_corners(n, other, causal_us):
    """A corner has one link of each speed; both must be busy to the end."""
    topology = tp.mesh(
        n, n, bandwidth=["50GiB/s", f"{other}GiB/s"], latency="500ns", link_model="blocking"
    )
    schedule = greedy(topology, co.all_gather(topology, n * n * 2**20, chunks=1))
    assert schedule.time_s * 1e6 == pytest.approx(causal_us, abs=0.01)


@pytest.mark.parametrize(
    ("spec", "kind", "chunks", "best_us"),
    [
        # 1 MB per pair, limited by all hops over all links, the bisection, or the NICs of a box.
        ("torus:8x8@50GB/s,0ns", "all_to_all", 1, 1280),
        ("torus:4x4x4@50GB/s,0ns", "all_to_all", 1, 640),
        ("mesh:8x8@50GB/s,0ns", "all_to_all", 1, 2560),
        ("dgx-h100-plain:2", "all_to_all", 1, 160),
        ("dgx-h100-plain:4", "all_to_all", 1, 480),
        ("mi250:2", "all_to_all", 1, 1000),
        # 64 MB: into the root over four links, into a corner over two.
        ("torus:8x8@50GB/s,0ns", "gather", 4, 315),
        ("mesh:8x8@50GB/s,0ns", "scatter", 4, 630),
    ],
)
def test_paths_share_the_load(spec, kind, chunks, best_us):
    topology = tp.parse(spec)
    size = 10**6 * (topology.npus if kind == "all_to_all" else 64)
    schedule = greedy(topology, co.named(kind, topology, size, chunks=chunks))
    assert tacos.verify(schedule).ok
    assert best_us <= schedule.time_s * 1e6 < 1.05 * best_us


def test_a_group_uses_what_its_relays_can_carry():
    """Eight NPUs in a row of a torus: with relays, four links of 50 GB/s reach each of them."""
    topology = tp.torus(8, 8, bandwidth="50GB/s", latency="500ns")
    group = list(range(8))
    schedule = greedy(topology, co.all_gather(topology, "1GB", group=group, chunks=32))
    assert tacos.verify(schedule).ok
    assert 7 / 8 / 200 < schedule.time_s < 1.1 * 7 / 8 / 200


@pytest.mark.parametrize(("size", "forwarding"), [(1, "cut_through"), (5, "store_and_forward")])
def test_paths_bring_a_chunk_to_an_npu_once(size, forwarding):
    """A later path may be quicker to an NPU that another one already serves."""
    network = tp.dgx2(2, relay=True, link_model="blocking", forwarding=forwarding)
    schedule = greedy(network, co.all_reduce(network, size, chunks=1))
    assert schedule.transfers == 2 * 31 * size
    assert tacos.verify(schedule).ok


def test_a_tree_reaches_each_of_its_npus_once():
    """NPU 2 gets a chunk over the slow 0 -> 2; when 1 has it, too, 1 -> 2 would be quicker."""
    slow, fast = (1e9, 0), (4e9, 0)
    links = [(0, 1, *fast), (0, 1, *fast), (1, 2, 16e9, 0), (2, 3, *fast), (3, 0, *slow)]
    links += [(1, 3, *fast), (0, 2, *slow), (3, 2, *fast)]
    topology = tp.from_links(4, links)
    schedule = greedy(topology, co.broadcast(topology, 6000, chunks=6))
    assert schedule.transfers == 3 * 6
    assert tacos.verify(schedule).ok


def test_sums_that_take_time_are_awaited_when_times_are_rounded():
    """20 ms are too long for 32 bits of picoseconds; adding a byte takes 10 ps."""
    links = [(0, 1, 1e12, 1e-6), (1, 2, 1e12, 0.02), (2, 0, 1e12, 0)]
    topology = tp.from_links(3, links, reduce_bandwidth="100GB/s")
    schedule = greedy(topology, co.all_reduce(topology, 1, chunks=1))
    assert schedule.quantum_ps > 1
    assert tacos.verify(schedule).ok


def test_a_latency_of_many_transmissions():
    """A byte takes a picosecond and arrives after a second: 4 + 4 hops, found at once."""
    topology = tp.torus(8, 8, bandwidth="1TB/s", latency="1s")
    schedule = greedy(topology, co.all_gather(topology, 64, chunks=1))
    assert schedule.time_s == pytest.approx(8)
    assert tacos.verify(schedule).ok


@pytest.mark.parametrize("latency", ["0ns", "1ns"])
@pytest.mark.parametrize(
    ("kind", "parts"), [("all_gather", 40), ("all_to_all", 40), ("gather", 40), ("broadcast", 1)]
)
@pytest.mark.parametrize("spec", ["ring:40", "mesh:40", "switch:40"])
def test_what_takes_months_is_refused(spec, kind, parts, latency):
    """A chunk takes 39 hours, and at least 19 follow each other somewhere."""
    topology = tp.parse(f"{spec}@1B/s,{latency}")
    collective = co.named(kind, topology, parts * 140_000, chunks=1)
    if (spec, kind) == ("switch:40", "broadcast"):
        assert greedy(topology, collective).time_s < 10 * 140_000  # doubling
        return
    with pytest.raises(ValueError, match="takes over 26 days"):
        greedy(topology, collective)


@pytest.mark.parametrize(("npus", "rounds"), [(2, 1), (8, 3), (40, 6)])
def test_a_broadcast_over_a_switch_doubles(npus, rounds):
    """An NPU that has the chunk passes it on; ports are shared, so none can serve two at once."""
    topology = tp.switch(npus, bandwidth="1GB/s", latency="0ns")
    schedule = greedy(topology, co.broadcast(topology, "1MB", chunks=1))
    assert schedule.time_s == pytest.approx(rounds * 1e-3)


def test_a_slow_link_does_not_take_what_a_fast_way_brings_sooner():
    """0 -> 1 -> 2 at 10 GB/s and 0 -> 2 at 0.1 GB/s: the fast way takes 0.2 ms, the slow one 10."""
    links = [(0, 1, 10e9, 0), (1, 2, 10e9, 0), (0, 2, 0.1e9, 0), (2, 0, 10e9, 0)]
    topology = tp.from_links(3, links)
    schedule = greedy(topology, co.broadcast(topology, "1MB", chunks=1))
    assert schedule.time_s == pytest.approx(2e-4)


def test_trials_keep_the_best():
    topology = tp.mi250(1)
    collective = co.all_gather(topology, "16MB", chunks=4)
    each = [greedy(topology, collective, seed=seed).time_ps for seed in range(4)]
    best = tacos.synthesize(topology, collective, engine="greedy", trials=4)
    assert best.time_ps == min(each)
    assert best.provenance["seed"] == each.index(min(each))
    assert best.provenance["trials"] == 4


def test_an_unreachable_npu_is_named():
    topology = tp.from_links(3, [(0, 1, 1e9, 0), (1, 0, 1e9, 0), (2, 0, 1e9, 0)], connected=False)
    with pytest.raises(tacos.InfeasibleError, match="npu 0 cannot reach npu 2"):
        greedy(topology, co.all_gather(topology, "3KB", chunks=1))
    with pytest.raises(tacos.InfeasibleError, match="npu 1 cannot reach npu 2"):
        greedy(topology, co.send_recv(topology, [(1, 2, "1KB")], chunks=1))


@pytest.mark.parametrize("kind", ["reduce", "reduce_scatter", "all_reduce"])
def test_an_unreachable_sum_is_named_as_it_is(kind):
    """NPU 2 receives from 0, but no NPU receives from 2."""
    topology = tp.from_links(3, [(0, 1, 1e9, 0), (1, 0, 1e9, 0), (0, 2, 1e9, 0)], connected=False)
    with pytest.raises(tacos.InfeasibleError, match="npu 2 cannot reach npu 0"):
        greedy(topology, co.named(kind, topology, "3KB", chunks=1))


def test_a_collective_of_another_network():
    with pytest.raises(ValueError, match="for 16 NPUs, but the topology has 3"):
        greedy(tp.ring(3), co.all_gather(16, "16KB", chunks=1))


@pytest.mark.parametrize(
    "options", [{"trials": 0}, {"trials": 1.5}, {"seed": -1}, {"threads": -1}, {"threads": 1.5}]
)
def test_wrong_options(options):
    topology = tp.ring(3)
    name = next(iter(options))
    with pytest.raises(ValueError, match=f"{name} must"):
        tacos.synthesize(
            topology, co.all_gather(topology, "3KB", chunks=1), engine="greedy", **options
        )


def test_one_npu_and_nothing_to_do():
    alone = tp.ring(1)
    assert greedy(alone, co.all_reduce(alone, "1KB", chunks=1)).transfers == 0
    pair = tp.ring(2)
    assert greedy(pair, co.all_gather(pair, "1KB", group=[1], chunks=2)).transfers == 0


def test_switches_joined_without_latency():
    """Both links between two switches take no time: no path may have a cycle."""
    ends = [(0, 2), (2, 0), (1, 3), (3, 1), (2, 3), (3, 2)]
    topology = tp.from_links(2, [(a, b, "1GB/s", 0) for a, b in ends], switches=2)
    collective = tacos.collective.all_gather(topology, "2MB", chunks=1)
    schedule = tacos.synthesize(topology, collective, engine="greedy")
    assert schedule.time_s == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("torus:1000x1000", "all_gather"),
        ("torus:400x400", "all_gather"),  # pipelined: not step by step, 50 B per transfer
        ("torus:100x100", "all_to_all"),  # 50 hops for each pair
        ("switch:40000", "all_gather"),
        ("torus:300x300", "all_reduce"),
    ],
)
def test_what_cannot_fit_is_refused_at_once(spec, kind, monkeypatch):
    real = os.sysconf
    pages = {"SC_PHYS_PAGES": 64 * 2**30 // real("SC_PAGE_SIZE")}
    monkeypatch.setattr(os, "sysconf", lambda name: pages.get(name) or real(name))
    topology = tp.parse(spec)
    with pytest.raises(tacos.TacosError, match=r"needs about .* GiB .* this machine has 64 GiB"):
        greedy(topology, co.named(kind, topology, "1TB", chunks=1))


@pytest.mark.parametrize("size", ["64MB", "1GB"])
def test_large_problems_are_solved_in_whole_steps(size):
    """4.5 million transfers: chunks arrive within 2 or 3 steps, and sizes do not divide evenly."""
    network = tp.drop_links(tp.torus(46, 46), (0, 1), both=True)
    collective = co.all_gather(network, size, chunks=1)
    assert greedy_stepwise(network, collective)
    schedule = greedy(network, collective)
    assert tacos.verify(schedule).ok
    assert schedule.time_s < 1.02 * tacos.bound(network, collective).time_s
