"""The symmetric engine: equal to the bound, correct for one NPU and for all, refusals."""

from __future__ import annotations

from math import ceil, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.synth.symmetric import symmetric
from tacos.topology.links import Links, assemble
from tests.support import oracle

MIB = 2**20
HOP = 500_000 + 20_971_520  # picoseconds for 1 MiB over 50 GB/s and 500 ns
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
NAMES = ("start_ps", "chunk", "src", "dst", "op", "reads", "arrival_ps", "bytes")


def solved(topology, kind="all_gather", chunks=1, chunk_bytes=MIB, extra=0):
    """Solve a collective whose size is `extra` bytes above one that divides evenly."""
    size = topology.npus * chunks * chunk_bytes + extra
    collective = co.named(kind, topology, size, chunks=chunks)
    return symmetric(topology, collective)


def moves(rows):
    return sorted(zip(*(rows[name].tolist() for name in NAMES), strict=True))


def is_right(schedule):
    """Verify the orbit and its expansion, which must take the same time."""
    whole = schedule.expand()
    assert (schedule.form, whole.form) == ("orbit", "packed")
    assert tacos.verify(schedule).violations == ()
    assert tacos.verify(whole).violations == ()
    assert schedule.time_ps == whole.time_ps
    assert schedule.transfers == whole.transfers
    return True


# --- the bound ------------------------------------------------------------------------------------


def blocking(build, *sizes, **options):
    return build(*sizes, link_model="blocking", **options)


UNIFORM = [
    *(blocking(tp.torus, a, b) for a in range(2, 8) for b in range(a, 8)),
    *(blocking(tp.torus, 3, b, c) for b in (2, 3, 5) for c in (3, 4)),
    blocking(tp.torus, 16, 16),
    blocking(tp.torus, 32, 32),
    blocking(tp.torus, 8, 8, 8),
    *(blocking(tp.hypercube, d) for d in range(1, 9)),
    *(blocking(tp.fully_connected, n) for n in (2, 5, 8)),
    *(blocking(tp.ring, n, bidirectional=both) for n in (2, 3, 8, 9) for both in (True, False)),
    tp.product(blocking(tp.ring, 4), blocking(tp.fully_connected, 5)),
]


@pytest.mark.parametrize("topology", UNIFORM, ids=lambda t: f"{t.family}-{t.dims}")
def test_an_all_gather_takes_as_many_steps_as_the_links_must(topology):
    """Each NPU needs c·(N - 1) chunks, over its own links."""
    links = int(np.count_nonzero(topology.link_dst == 0))
    for chunks in (1, 3):
        steps = ceil(chunks * (topology.npus - 1) / links)
        schedule = solved(topology, chunks=chunks)
        assert schedule.time_ps == steps * HOP
        assert schedule.stored_transfers == chunks * (topology.npus - 1)
        assert tacos.verify(schedule).ok


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_reduce"])
def test_reductions_take_as_long_backwards_and_twice_as_long_in_all(kind):
    times = {"reduce_scatter": 1, "all_reduce": 2}[kind]
    for topology in (blocking(tp.torus, 5, 6), blocking(tp.hypercube, 5)):
        gathered = solved(topology).time_ps
        assert solved(topology, kind).time_ps == times * gathered
        assert is_right(solved(topology, kind))


def test_a_switch_sends_one_chunk_after_the_other():
    """Pipelined over two links: the last of n - 1 chunks starts after n - 2 transmissions."""
    topology = tp.switch(6, bandwidth="1GB/s", latency="1us")
    for kind, rounds in (("all_gather", 1), ("reduce_scatter", 1), ("all_to_all", 1)):
        schedule = solved(topology, kind, chunk_bytes=1000)
        assert schedule.time_ps == rounds * (4 * 1_000_000 + 2_000_000 + 1_000_000)
    whole = tp.switch(6, bandwidth="1GB/s", latency="1us", forwarding="store_and_forward")
    assert solved(whole, chunk_bytes=1000).time_ps == 4 * 1_000_000 + 2 * 2_000_000


def fluid_bound_ps(topology, chunks, chunk_bytes):
    """Chunks must enter every coset of every set of dimensions over links of the other dimensions.

    Over links of all dimensions, it is c·(N - 1) over the sum of rates.
    """
    sizes = [size for _, size in topology.dims]
    strides = [prod(sizes[:d]) for d in range(len(sizes))]
    rate = [0.0] * len(sizes)
    for link in np.flatnonzero(topology.link_src == 0).tolist():
        end = int(topology.link_dst[link])
        if end >= topology.npus:
            others = topology.link_dst[topology.link_src == end]
            end = int(others[others != 0][0])
        period = chunk_bytes * 1e12 / int(topology.link_bandwidth_Bps[link])
        along = [d for d in range(len(sizes)) if end // strides[d] % sizes[d]]
        rate[along[0]] += 1 / period
    bounds = []
    for chosen in range(2 ** len(sizes) - 1):
        inside = prod(size for d, size in enumerate(sizes) if chosen >> d & 1)
        outside = sum(r for d, r in enumerate(rate) if not chosen >> d & 1)
        bounds.append(chunks * (topology.npus // inside - 1) / outside)
    return max(bounds)


@pytest.mark.parametrize(
    ("spec", "chunks", "share"),
    [
        ("ring:16@100GB/s,500ns*ring:16@50GB/s,500ns", 2, 0.98),
        ("ring:8@200GB/s,500ns*ring:8@25GB/s,500ns", 8, 0.95),
        ("ring:2@400GB/s,500ns*ring:64@25GB/s,500ns", 4, 0.97),
        ("ring:2@200GB/s,500ns*fc:4@100GB/s,500ns*switch:16@50GB/s,500ns", 8, 0.98),
        ("switch:8@450GB/s,500ns*switch:4@50GB/s,1us", 8, 0.97),
        ("fc:8@100GB/s,500ns*ring:8@25GB/s,500ns", 8, 0.95),
        ("ring:16@100GB/s,500ns*ring:16@33GB/s,500ns*ring:4@60GB/s,500ns", 1, 0.98),
    ],
)
def test_unequal_speeds_come_close_to_the_bound(spec, chunks, share):
    topology = tp.parse(spec)
    schedule = solved(topology, chunks=chunks)
    assert fluid_bound_ps(topology, chunks, MIB) >= share * schedule.time_ps
    assert tacos.verify(schedule).ok
    reduced = solved(topology, "all_reduce", chunks=chunks)
    assert reduced.time_ps <= 2.02 * schedule.time_ps
    assert tacos.verify(reduced).ok


def test_a_slow_link_leaves_the_last_chunk_to_a_fast_one():
    """Two by two, x ten times as fast as y: 1 us for y, then 0.1 us over x for x + y; over y, 2 us in all."""
    speeds = ("10GB/s", "1GB/s")
    topology = tp.torus(2, 2, bandwidth=speeds, latency=0, link_model="blocking")
    schedule = solved(topology, chunk_bytes=1000)
    assert schedule.time_ps == 1_000_000 + 100_000


@pytest.mark.parametrize(
    ("spec", "chunks"),
    [("torus:8x8", 1), ("torus:5x5", 1), ("torus:4x4x4", 1), ("hypercube:6", 1), ("ring:8", 4),
     ("fc:6", 1), ("ring:4*fc:8*switch:4", 1), ("ring:8@200GB/s,500ns*ring:4@25GB/s,500ns", 2)],
)  # fmt: skip
def test_an_all_to_all_keeps_the_busiest_link_busy(spec, chunks):
    """Shortest routes: a ring of n carries n²/8 hops each way for every position in other dimensions."""
    topology = tp.parse(spec)
    schedule = solved(topology, "all_to_all", chunks)
    periods = {}
    for d, (kind, n) in enumerate(topology.dims):
        far = n * n // 4 if n > 2 else 1
        hops = {"ring": far / (2 if n > 2 else 1), "clique": 1, "switch": n - 1}[kind]
        stride = prod(size for _, size in topology.dims[:d])
        to = topology.npus if kind == "switch" else stride
        (link, *_) = np.flatnonzero((topology.link_src == 0) & (topology.link_dst >= to))
        period = MIB * 1e12 / int(topology.link_bandwidth_Bps[link])
        periods[d] = chunks * hops * (topology.npus // n) * period
    assert max(periods.values()) >= 0.95 * schedule.time_ps
    assert tacos.verify(schedule).ok


def test_what_sums_nothing_needs_no_time_to_sum():
    """At 1 B/s a sum of 1 MB would take 11 days."""
    topology = tp.ring(4, reduce_bandwidth="1B/s")
    for kind in ("all_gather", "all_to_all"):
        collective = co.named(kind, topology, "4MB", chunks=1)
        assert tacos.verify(tacos.synthesize(topology, collective, engine="symmetric")).ok


# --- right ----------------------------------------------------------------------------------------


@st.composite
def symmetric_topologies(draw, most=24):
    """Products of up to three rings, cliques and switches of any speeds, under any model."""
    model = {
        "link_model": draw(st.sampled_from(["pipelined", "blocking"])),
        "forwarding": draw(st.sampled_from(["cut_through", "store_and_forward"])),
        "reduce_bandwidth": draw(st.sampled_from([None, "100GB/s"])),
    }
    factors, npus = [], 1
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, max(1, min(6, most // npus))))
        npus *= n
        speed = {
            "bandwidth": draw(st.sampled_from(["50GB/s", "25GB/s", "33GB/s", "400GB/s"])),
            "latency": draw(st.sampled_from([0, "500ns", "3us"])),
        }
        build = draw(st.sampled_from([
            lambda n, **o: tp.ring(n, bidirectional=False, **o),
            tp.ring, tp.fully_connected, tp.switch,
        ]))  # fmt: skip
        factors.append(build(n, **speed, **model))
    return tp.product(*factors)


@given(
    symmetric_topologies(),
    st.sampled_from(KINDS),
    st.integers(1, 3),
    st.sampled_from([1, 1000, 12_345, MIB]),
    st.sampled_from([0, 1, 7, 50]),
)
@settings(max_examples=150, deadline=None)
def test_every_orbit_is_right(topology, kind, chunks, chunk_bytes, extra):
    schedule = solved(topology, kind, chunks, chunk_bytes, extra)
    assert is_right(schedule)
    assert all(schedule.routes.sources(r) == [0] for r in schedule.lane_route.tolist())
    assert solved(topology, kind, chunks, chunk_bytes, extra) == schedule


@given(symmetric_topologies(most=8), st.sampled_from(KINDS), st.integers(1, 2), st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_the_oracle_agrees(topology, kind, chunks, extra):
    assert not oracle.examine(solved(topology, kind, chunks, 1000, extra).expand())


@given(symmetric_topologies(most=12), st.sampled_from(KINDS), st.data())
@settings(max_examples=40, deadline=None)
def test_rows_of_an_npu_or_link_are_those_of_the_whole(topology, kind, data):
    orbit = solved(topology, kind, 2, 1000, data.draw(st.integers(0, 30)))
    whole = orbit.expand()
    npu = data.draw(st.integers(0, topology.npus - 1))
    assert moves(orbit.rows(npu=npu)) == moves(whole.rows(npu=npu))
    if topology.links:
        link = data.draw(st.integers(0, topology.links - 1))
        assert moves(orbit.rows(link=link)) == moves(whole.rows(link=link))
    assert len(orbit.rows()["chunk"]) == orbit.stored_transfers


def test_members_may_have_any_rank():
    topology = tp.torus(3, 4)
    group = [5, 0, 11, 2, 3, 4, 1, 6, 7, 8, 9, 10]
    for kind in KINDS:
        collective = co.named(kind, topology, 12_000, group=group, chunks=1)
        assert is_right(symmetric(topology, collective))


def test_links_may_come_in_any_order():
    """As from a file: the same links in random order, switches numbered backwards."""
    product = tp.parse("ring:3*switch:4*fc:2")
    rng = np.random.default_rng(0)
    order = rng.permutation(product.links)

    def renamed(nodes):
        return np.where(nodes < 24, nodes, 24 + product.nodes - 1 - nodes)[order]

    links = Links(
        renamed(product.link_src),
        renamed(product.link_dst),
        product.link_bandwidth_Bps[order],
        product.link_latency_ps[order],
    )
    shuffled = assemble(
        24, [links], capabilities=[0] * 6, dims=product.dims, symmetric=True, family="file"
    )
    for kind in KINDS:
        assert is_right(solved(shuffled, kind))
        assert solved(shuffled, kind).time_ps == solved(product, kind).time_ps


def test_chunks_with_many_hops_go_first():
    """An all-gather of 250 B per NPU in ten pieces, over links of 1 GB/s and 0.5 us: 25 ns and 525 ns per hop.

    57 of the 63 other NPUs are two or more hops away. Their pieces can leave the first NPU after 525 ns, and occupy the
    six links of an NPU for 57 / 6 · 250 ns = 2,375 ns. The last of them arrives 500 ns after it has been sent.
    """
    topology = tp.torus(4, 4, 4, bandwidth="1GB/s", latency="500ns")
    schedule = solved(topology, "all_gather", chunks=10, chunk_bytes=25)
    assert is_right(schedule)
    assert schedule.time_ps == 525_000 + 2_375_000 + 500_000


@pytest.mark.parametrize("latency", ["0ns", "20ns", "2us"])
@pytest.mark.parametrize(
    "spec", ["ring:7", "torus:3x5", "torus:4x2x3", "hypercube:5", "switch:6", "ring:3*switch:4"]
)
def test_it_is_right_whether_latency_or_bandwidth_dominates(spec, latency):
    topology = tp.parse(f"{spec}@10GB/s,{latency}")
    for kind in KINDS:
        for chunks in (1, 3):
            schedule = solved(topology, kind, chunks=chunks, chunk_bytes=1000)
            assert is_right(schedule)
            assert schedule.time_ps >= tacos.bound(topology, schedule.collective).time_ps


def test_parallel_links_are_machines_of_their_own():
    """Two cables each way between neighbours of a ring of five: four chunks at one time."""
    v = np.arange(5)
    once = [Links(v, (v + step) % 5, 10**9, 0) for step in (1, -1)]
    topology = assemble(5, once + once, dims=[("ring", 5)], symmetric=True)
    assert solved(topology, chunks=2, chunk_bytes=1000).time_ps == 2_000_000
    assert all(is_right(solved(topology, kind, 2)) for kind in KINDS)


def test_starts_that_do_not_fit_the_quantum_are_rounded():
    """1024 steps of a prime number of picoseconds are more than 2^32 of them."""
    topology = tp.torus(64, 64, bandwidth="7GB/s", latency="11ps", link_model="blocking")
    for kind in ("all_gather", "all_reduce"):
        schedule = solved(topology, kind, chunk_bytes=1_000_003)
        step = -(-1_000_003 * 10**12 // (7 * 10**9)) + 11
        steps = 1024 * (2 if kind == "all_reduce" else 1)
        assert schedule.quantum_ps > 1
        assert steps * step <= schedule.time_ps <= 1.0001 * steps * step
        assert tacos.verify(schedule).ok


def test_an_orbit_is_saved_and_loaded(tmp_path):
    schedule = solved(tp.parse("ring:4*switch:3"), "all_reduce", 2)
    tacos.save(schedule, tmp_path / "orbit.tacos")
    loaded = tacos.load(tmp_path / "orbit.tacos")
    assert loaded == schedule
    assert loaded.provenance == {"engine": "symmetric"}


def test_a_large_orbit_stays_small():
    schedule = solved(tp.torus(100, 100), "all_reduce")
    assert schedule.transfers == 2 * 10_000 * 9_999
    assert schedule.memory_bytes < 1_000_000
    rows = schedule.rows(npu=1234)
    assert np.count_nonzero(rows["src"] == 1234) == np.count_nonzero(rows["dst"] == 1234) == 19_998
    assert tacos.verify(schedule).ok


# --- planning and refusals ------------------------------------------------------------------------


def test_auto_and_compare_use_it():
    topology = tp.torus(4, 4)
    collective = co.all_gather(topology, "16MB", chunks=1)
    assert tacos.engines(topology, collective)[0] == "symmetric"
    assert tacos.synthesize(topology, collective).provenance["engine"] == "symmetric"
    candidates = tacos.compare(topology, collective, engines=["symmetric", "ring"]).candidates
    assert [(c.engine, c.ok) for c in candidates] == [("symmetric", True), ("ring", True)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_does_not_divide_takes_at_most_a_byte_per_chunk_longer(kind):
    topology = tp.torus(4, 4, latency=0)
    size = 16 * 16 * 60
    even, uneven, next_ = (
        symmetric(topology, co.named(kind, topology, one, chunks=4)).time_ps
        for one in (size, size + 1, size + 64)
    )
    assert even < uneven == next_
    found = tacos.synthesize(topology, co.named(kind, topology, 10**6))
    assert (found.engine, found.form) == ("symmetric", "orbit")
    assert found.time_s < 1.02 * tacos.bound(topology, found.collective).time_s


@pytest.mark.parametrize(
    ("topology", "collective", "message"),
    [
        (tp.mesh(3, 3), co.all_gather(9, 9, chunks=1), "which this mesh topology does not claim"),
        (
            tp.from_links(2, [(0, 1, 1e9, 0), (1, 0, 1e9, 0)]),
            co.all_gather(2, 2, chunks=1),
            "which this custom topology does not claim",
        ),
        (tp.ring(4), co.broadcast(4, 4, chunks=1), "all-reduce or all-to-all, not broadcast"),
        (tp.ring(4), co.all_gather(4, 4, group=[0, 1], chunks=1), "all 4 NPUs, not a group of 2"),
        (
            tp.ring(4),
            co.together(*[co.all_gather(4, 4, chunks=1)] * 2),
            "one collective, not 2 at once",
        ),
        (tp.ring(4), co.all_gather(4, 7, chunks=2), "a byte for each of 8 chunks, not 7"),
        (tp.ring(4), co.all_gather(4, 3), "a byte for each of 4 chunks, not 3"),
    ],
)
def test_what_it_needs_is_said_in_a_sentence(topology, collective, message):
    with pytest.raises(ValueError, match=r"^symmetric needs ") as caught:
        tacos.synthesize(topology, collective, engine="symmetric")
    assert message in str(caught.value)


def test_false_claims_of_symmetry_are_refused():
    line = Links(np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0]), 10**9, np.array([1, 1, 1, 2]))
    claimed = assemble(4, [line], dims=[("ring", 4)], symmetric=True)
    with pytest.raises(
        ValueError, match=r"but link 2 \(npu 2 -> npu 3\) has no image under a move"
    ):
        solved(claimed)
    without = assemble(4, [line], symmetric=True)
    with pytest.raises(ValueError, match="the same from every NPU"):
        solved(without)


@pytest.mark.parametrize("kind", KINDS)
def test_unreachable_npus_are_named(kind):
    """Two rings without a link between them."""
    v = np.arange(6)
    rings = Links(v, v // 3 * 3 + (v + 1) % 3, 10**9, 0)
    topology = assemble(6, [rings], dims=[("ring", 3), ("ring", 2)], symmetric=True)
    with pytest.raises(tacos.InfeasibleError, match="npu 0 cannot reach npu 3"):
        solved(topology, kind)


def test_too_many_hops_are_refused_before_they_are_made():
    topology = tp.ring(60_000)
    wanted = "60000 NPUs sends about 900000000 chunks needs 26 GiB"
    with pytest.raises(tacos.TacosError, match=wanted):
        solved(topology, "all_to_all", chunk_bytes=1)


def test_a_large_switch_takes_no_time_to_speak_of():
    schedule = solved(tp.switch(30_000), "all_to_all", chunk_bytes=1)
    assert schedule.transfers == 30_000 * 29_999


def test_progress_may_end_it():
    class Enough(Exception):
        pass

    def report(share):
        assert 0 <= share <= 1
        raise Enough

    topology = tp.torus(200, 200)
    with pytest.raises(Enough):
        symmetric(topology, co.all_to_all(topology, 40_000, chunks=1), progress=report)
