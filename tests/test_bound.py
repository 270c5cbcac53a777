"""The bound: equal to the known optima, to all cuts tried one by one, and never above a schedule."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.bound import binding
from tacos.topology.edits import reweighted
from tests.support import strategies

GB = 10**9

# --- known optima --------------------------------------------------------------------------------

# Machine, all-gather bandwidth in GB/s: the exact optima of ForestColl's theory.
OPTIMA = [
    (tp.dgx_a100(1), 342.86),
    (tp.dgx_a100(2, fabric="rail"), 346.67),
    (tp.dgx_a100(4), 266.67),
    (tp.dgx_h100(1, nvls=False), 514.29),
    (tp.dgx_h100(2, nvls=False), 533.33),
    (tp.dgx_h100(4, nvls=False), 516.13),
    (tp.dgx_h100(8, nvls=False), 457.14),
    (tp.dgx_h100(16, nvls=False), 426.67),
    (tp.dgx_h100(16, nvls=False, fabric="rail"), 426.67),
    (tp.mi250(1), 342.86),
    (tp.mi250(2), 354.13),
    (tp.mi250(4), 341.33),
    (tp.mi300x(1), 512),
    (tp.mi300x(2), 531.2),
    (tp.mi300x(4), 514.06),
    (tp.nvl72(1, nvls=False), 912.68),
    (tp.nvl72(2, nvls=False), 956.64),
    (tp.dgx_a100(4, bandwidth="180GB/s", nic_bandwidth="12.5GB/s"), 133.33),
    (tp.torus(4, 4, bandwidth="1GB/s"), 4.267),
    (tp.torus(4, 4, 4, bandwidth="1GB/s"), 6.095),
    (tp.torus(8, 8, 8, bandwidth="1GB/s"), 6.012),
    (tp.dgx1(1), 171.43),
    (tp.ndv2(2), 25.0),
    (tp.ndv2(4), 16.67),
]


@pytest.mark.parametrize(("network", "optimum"), OPTIMA, ids=lambda x: getattr(x, "family", ""))
def test_known_optima(network, optimum):
    size = 1000 * GB * network.npus
    for kind, share in [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)]:
        best = tacos.bound(network, co.named(kind, network, size))
        assert size / best.bandwidth_s / GB == pytest.approx(optimum / share, rel=1e-3)
        assert best.exact
        assert best.why.endswith("; attainable")


def test_one_way_nics():
    """TE-CCL's DGX-2: besides 125 GB/s, odd GPUs send at 12.5 GB/s and even ones receive at 12.5 GB/s.

    An odd GPU receives 31/32 of the buffer at 125 GB/s: 129.03 GB/s. In an all-reduce, the 32 GPUs
    together send 62 buffers over 32·125 + 16·12.5 = 4200 GB/s. This takes less time than two
    all-gathers, because the GPUs that send need not be those that receive.
    """
    network = tp.dgx2(2, relay=True)
    gathered = tacos.bound(network, co.all_gather(network, 32 * GB))
    assert 32 / gathered.bandwidth_s == pytest.approx(129.03, rel=1e-4)
    assert not gathered.exact
    assert "unbalanced" in gathered.why
    reduced = tacos.bound(network, co.all_reduce(network, 32 * GB))
    assert reduced.bandwidth_s == pytest.approx(32 * 62 / 4200)


def star(*rates, **switch):
    links = [
        (a, b, f"{rate}GB/s", "0ns")
        for npu, rate in enumerate(rates)
        for a, b in ((npu, len(rates)), (len(rates), npu))
    ]
    return tp.from_links(len(rates), links, **({"switches": 1} | switch))


def test_unequal_ports():
    """The slow NPU sends its gigabyte once: 100 ms, where two all-gathers would need 150 ms."""
    network = star(100, 100, 100, 10)
    best = tacos.bound(network, co.all_reduce(network, "1GB"))
    assert best.time_s == best.bandwidth_s == 0.1
    assert best.cut == (3,)
    assert "1 GB must leave npu 3 over one link of 10 GB/s" in best.why
    gathered = tacos.bound(network, co.all_gather(network, "1GB"))
    assert gathered.bandwidth_s == pytest.approx(0.075)


def test_switches_that_add_and_copy():
    """Each of 8 NPUs sends and receives the buffer once with NVLS, 2·7/8 times without."""
    for nvls, share in [(False, 2 * 7 / 8), (True, 1)]:
        network = tp.dgx_h100(1, nvls=nvls)
        best = tacos.bound(network, co.all_reduce(network, "1GB"))
        assert best.bandwidth_s == pytest.approx(share / 450)
        assert best.exact
    # Four such boxes still exchange 2·3/4 of the buffer each, over 400 GB/s.
    four = tp.dgx_h100(4)
    best = tacos.bound(four, co.all_reduce(four, "1GB"))
    assert best.bandwidth_s == pytest.approx(1.5 / 400)
    assert "the 4 boxes (box 0, …) together must send every byte 6 times, over 32 NICs" in best.why


def test_a_switch_that_only_copies():
    """The contributions still have to meet at NPUs, so 1 GB over 450 GB/s is not known to be enough."""
    network = tp.switch(8, bandwidth="450GB/s", multicast=True)
    best = tacos.bound(network, co.all_reduce(network, "1GB"))
    assert best.bandwidth_s == pytest.approx(1 / 450)
    assert not best.exact


@pytest.mark.parametrize(
    "network", [tp.torus(50, 50), tp.switch(4096), tp.torus(16, 16, 16), tp.hypercube(12)]
)
def test_large_symmetric_networks(network):
    """Beyond 2,048 nodes, the bound is that N - 1 of N pieces enter an NPU."""
    size = 1000 * network.npus
    width = int(network.link_bandwidth_Bps[network.link_dst == 0].sum())
    for kind, share in [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)]:
        best = tacos.bound(network, co.named(kind, network, size))
        assert best.bandwidth_s == pytest.approx(share * (size - 1000) / width)
        assert best.exact
    assert best.latency_s == pytest.approx(network.diameter(1) * network.link_latency_ps[0] / 1e12)


def test_large_and_small_say_the_same():
    """A slow dimension that connects 3 fast rings: one fast ring is the narrowest cut, small or large."""
    for n in (8, 800):
        network = tp.product(
            tp.ring(n, bandwidth=f"{10 * n}GB/s", latency="1us"),
            tp.ring(3, bandwidth="1GB/s", latency="5us"),
        )
        best = tacos.bound(network, co.all_gather(network, 3 * n * 1000, chunks=1))
        assert best.bandwidth_s == pytest.approx(2 * n * 1000 / (2 * n * 1e9))
        assert best.cut == tuple(range(n))
        assert best.latency_s == pytest.approx(n // 2 * (1e-6 + 1e-7 / n) + 5e-6 + 1e-6)


CLUSTERS = [
    tp.dgx_h100(4),
    tp.dgx_h100(4, nvls=False, fabric="rail"),
    tp.dgx_a100(3),
    tp.fat_tree(3, 4),
    tp.fat_tree(2, 3, 4),
    tp.from_links(
        4, [(a, b, GB * (1 + (a + b) % 3), "1us") for a in range(4) for b in range(4) if a != b]
    ),
]


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("network", CLUSTERS, ids=lambda x: getattr(x, "family", ""))
def test_equal_parts_are_looked_at_once(network, broken, kind):
    """With bandwidths that all differ by some bytes per second, no part of a network equals another one."""
    if broken:
        first = (int(network.link_src[0]), int(network.link_dst[0]))
        last = (int(network.link_src[-1]), int(network.link_dst[-1]))
        network = tp.degrade(tp.degrade(network, first, factor=0.5), last, factor=0.3)
    bandwidth = network.link_bandwidth_Bps + np.arange(network.links)
    uneven = reweighted(network, bandwidth_Bps=bandwidth, latency_ps=network.link_latency_ps)
    for size in (64_000, 10**9 + 7):
        alike, apart = (tacos.bound(one, co.named(kind, one, size)) for one in (network, uneven))
        assert alike.time_ps == pytest.approx(apart.time_ps, rel=1e-5)
        assert alike.bandwidth_s == pytest.approx(apart.bandwidth_s)


@pytest.mark.parametrize("fabric", ["switch", "rail"])
def test_a_hundred_thousand_gpus(fabric):
    """Boxes can be exchanged. The bytes of the others enter a box through eight NICs of 50 GB/s."""
    network = tp.dgx_h100(16_384, nvls=False, fabric=fabric)
    best = tacos.bound(network, co.all_gather(network, 1000 * network.npus))
    assert best.bandwidth_s == pytest.approx(1000 * (network.npus - 8) / 400e9)
    assert best.cut[:8] == tuple(range(8))
    assert best.exact == (fabric == "switch")  # rails with boxes are a product of large lines


@pytest.mark.parametrize(
    ("kind", "milliseconds"),
    [
        ("all_gather", 6),  # 3/4 of 8 MB enter an NPU through 1 GB/s
        ("reduce_scatter", 6),
        ("all_reduce", 12),
        ("broadcast", 8),
        ("reduce", 8),
        ("gather", 6),
        ("scatter", 6),
        ("all_to_all", 12),  # each NPU sends 2 MB over 1, 2 and 3 hops
    ],
)
def test_a_one_way_ring(kind, milliseconds):
    network = tp.ring(4, bandwidth="1GB/s", latency=0, bidirectional=False)
    best = tacos.bound(network, co.named(kind, network, "8MB"))
    assert best.bandwidth_s * 1e3 == pytest.approx(milliseconds)
    assert best.exact


def test_a_box_in_words():
    network = tp.dgx_h100(16, nvls=False)
    best = tacos.bound(network, co.reduce_scatter(network, "1GB"))
    assert best.cut == (*range(8), 128)
    assert "must leave box 0 over 8 NICs with 400 GB/s in total" in best.why


def test_relays():
    """Two opposite NPUs of a ring use both ways round, 2 GB/s in total."""
    network = tp.ring(4, bandwidth="1GB/s", latency="1us")
    best = tacos.bound(network, co.all_reduce(network, "1GB", group=[0, 2]))
    assert best.bandwidth_s == pytest.approx(0.5)
    assert best.exact
    assert best.latency_s == pytest.approx(2e-6)
    lame = tp.drop_links(network, (1, 2))
    best = tacos.bound(lame, co.all_gather(lame, "1GB", group=[0, 1, 2]))
    assert not best.exact
    assert "relays" in best.why


# --- parts of a bound ----------------------------------------------------------------------------


def line(**model):
    """Two links of 1 GB/s: from 0 to 1 after 1 us, from 1 to 2 after 3 us."""
    rows = [(0, 1, "1GB/s", "1us"), (1, 2, "1GB/s", "3us"), (2, 0, "1GB/s", "0us")]
    return tp.from_links(3, rows, **model)


def test_latency():
    """2 KB in two chunks: the bound is the first chunk's arrival, 1 + 1 + 3 + 1 us."""
    best = tacos.bound(line(), co.broadcast(3, "2KB", chunks=2))
    assert best.latency_s == pytest.approx(6e-6)
    assert best.time_s == pytest.approx(6e-6)
    assert "from npu 0 to npu 2" in best.why
    fluid = tacos.bound(line(), co.broadcast(3, "2KB"))
    assert fluid.latency_s == pytest.approx(4e-6)
    assert fluid.time_s == pytest.approx(6e-6)  # latency of both links, then 2 KB


def test_sums_need_a_place_to_meet():
    """Eight NPUs on a switch: 100 ns to it and from it, 1 GB/s; an all-reduce of m bytes.

    The first sum arrives after 400 ns. Until then every input arrives alone: 7m bytes enter an NPU from 200 ns on.
    From 400 ns on each byte may be the sum of seven. 20 B: 200 ns + 140 ns.
    100 B: 200 of the 700 B arrive by 400 ns, the others in sums of seven: 400 ns + 500/7 ns.
    """
    network = tp.switch(8, bandwidth="1GB/s", latency="100ns")
    assert tacos.bound(network, co.all_reduce(network, "20B")).time_ps == 340_000
    assert tacos.bound(network, co.all_reduce(network, "100B")).time_ps == 400_000 + 500_000 // 7
    # Nothing is added up in an all-gather: 7/8 of the bytes after 200 ns.
    assert tacos.bound(network, co.all_gather(network, "80B")).time_ps == 270_000
    # Through a switch that adds up and copies, the inputs arrive as one sum.
    adding = tp.switch(8, bandwidth="1GB/s", latency="100ns", reduce=True, multicast=True)
    assert tacos.bound(adding, co.all_reduce(adding, "100B")).time_ps == 300_000


def test_boxes_sum_and_spread_around_their_ports():
    """Two boxes of 2 NPUs, with fast links of 100 ns inside; one port each, 1 GB/s and 1 us, between them.

    An all-reduce of 1 KB: both NPUs of a box need both inputs of the other box, 4 KB in total. A byte that arrives
    at t counts twice if t >= 1.1 us, when both inputs may have met, and twice again if 100 ns are left to copy it.
    By T = 1.2 us + x: 1·(0.2 + x) + 1·(0.1 + x) + 1·(0.1 + x) + 1·x = 4 us, so x = 0.9 us. With all weight on the pair
    without a port, NPUs 1 and 3, only bytes that have met both latencies count: x = 1 us. The rounds come near that.
    An all-gather of 4 KB: 2 KB for each of 2 NPUs, and no sums: (0.1 + x) + x = 4 us from 1.1 us on, x = 1.95 us.
    A reduce-scatter is an all-gather backwards.
    """
    fast = [(a, b, "1000GB/s", "100ns") for a, b in [(0, 1), (1, 0), (2, 3), (3, 2)]]
    network = tp.from_links(4, [*fast, (0, 2, "1GB/s", "1us"), (2, 0, "1GB/s", "1us")])
    reduced = tacos.bound(network, co.all_reduce(network, "1KB"))
    assert 2.19e-6 < reduced.time_s <= 2.2e-6
    assert "plus the latency before and after them" in reduced.why
    assert tacos.bound(network, co.all_gather(network, "4KB")).time_s == pytest.approx(3.05e-6)
    assert tacos.bound(network, co.reduce_scatter(network, "4KB")).time_s == pytest.approx(3.05e-6)


def test_a_node_near_all_others_has_only_its_own_port():
    """Two boxes, each a line of 3 NPUs with 1 us, and a port of 1 GB/s and 10 us to a switch for each NPU.

    From the middle of a line both ends are 1 us away, so most bytes should enter a box there; but the middle has only one of
    its three ports. If all bytes could enter there, an all-reduce of 3 KB would take 22.478 us at least.
    """
    line = [(a, b, "1000GB/s", "1us") for a, b in [(0, 1), (1, 0), (1, 2), (2, 1)]]
    links = [(a + 3 * box, b + 3 * box, *rest) for box in (0, 1) for a, b, *rest in line]
    ports = [pair for npu in range(6) for pair in ((npu, 6), (6, npu))]
    network = tp.from_links(6, [*links, *((*pair, "1GB/s", "10us") for pair in ports)], switches=1)
    coll = co.all_reduce(network, "3KB", chunks=3)
    time_s = tacos.bound(network, co.all_reduce(network, "3KB")).time_s
    assert 22.7e-6 < time_s <= tacos.synthesize(network, coll).time_s


def test_a_switch_that_adds_merges_what_crosses_it():
    """Four NPUs, 1 GB/s and 1 us to a switch that adds: each NPU gets the sum of all after 2 us and 1 kB.

    Each NPU sends its 1 kB once and receives one sum, so its ports do not limit how many inputs arrive in a byte.
    """
    network = tp.switch(4, bandwidth="1GB/s", latency="1us", reduce=True)
    coll = co.all_reduce(network, "1KB")
    assert tacos.bound(network, coll).time_ps <= tacos.synthesize(network, coll).time_ps


def test_irregular_latencies_take_no_longer():
    """Every distance differs, so each pair of NPUs has a moment of its own: counted work ends the search."""
    random = np.random.default_rng(3)
    latency = random.integers(500_000, 900_000, 64).tolist()
    links = [(npu, 64 + npu // 32, "50GB/s", f"{latency[npu]}ps") for npu in range(64)]
    links += [(b, a, speed, time) for a, b, speed, time in links]
    links += [(64, 65, "20GB/s", "600ns"), (65, 64, "20GB/s", "600ns")]
    network = tp.from_links(64, links, switches=2)
    coll = co.all_reduce(network, "100KB")
    assert (
        tacos.bound(network, coll).time_ps
        <= tacos.synthesize(network, coll, engine="exchange").time_ps
    )


def test_what_limits_sets_holds_for_other_bandwidths():
    """Nine NPUs in the middle of a 5×5 mesh: corners, sides and the centre have different borders, and all of them count.

    Links that do not count are made ten times as fast: the limit still holds for a schedule of that network.
    """
    mesh = tp.mesh(5, 5, bandwidth="50GB/s", latency="0ns")
    group = [6, 7, 8, 11, 12, 13, 16, 17, 18]
    coll = co.all_reduce(mesh, "100MB", group=group, chunks=8)
    found = binding(mesh, coll)
    rates = np.where(found.weights == 0, 500, 50)
    ends = zip(mesh.link_src.tolist(), mesh.link_dst.tolist(), rates.tolist(), strict=True)
    faster = tp.from_links(25, [(a, b, f"{rate}GB/s", 0) for a, b, rate in ends])
    least_s = found.bytes / float(found.weights @ faster.link_bandwidth_Bps)
    assert tacos.synthesize(faster, coll, engine="greedy").time_s >= least_s


def test_sets_behind_a_switch():
    """Four NPUs, 1 GB/s and 1 us to a switch: they send every byte 6 times over 4 links, and a message takes 2 us."""
    network = tp.switch(4, bandwidth="1GB/s", latency="1us")
    assert tacos.bound(network, co.all_reduce(network, "1MB")).time_s == pytest.approx(1502e-6)
    blocking = tp.switch(4, bandwidth="1GB/s", latency="1us", link_model="blocking")
    coll = co.all_reduce(
        blocking, "1MB", chunks=1
    )  # 6 chunks of 250 kB per link, 1 us each, and 1 us behind it
    assert tacos.bound(blocking, coll).time_s == pytest.approx(1507e-6)


def test_whole_chunks():
    """Three chunks of 1 KB on two links need two turns of 1 us, or of 1.5 us on blocking links."""
    rows = [(0, 1, "1GB/s", "500ns")] * 2 + [(1, 0, "1GB/s", "500ns")]
    pipelined, blocking = (
        tp.from_links(2, rows, link_model=model) for model in ("pipelined", "blocking")
    )
    coll = co.broadcast(2, "3KB", chunks=3)
    assert tacos.bound(pipelined, coll).time_ps == 2_500_000
    assert tacos.bound(blocking, coll).time_ps == 3_000_000
    assert "in whole chunks" in tacos.bound(blocking, coll).why
    assert tacos.bound(blocking, co.broadcast(2, "3KB")).time_ps == 2_000_000


def test_nothing_to_do():
    network = tp.ring(4)
    for coll in (
        co.all_reduce(network, "1GB", group=[2]),
        co.custom(4, ["1MB"], before=[[0, 1]], after=[[1]]),
    ):
        best = tacos.bound(network, coll)
        assert (best.time_ps, best.exact, best.why) == (0, True, "nothing has to move")


def test_several_at_once():
    """Two broadcasts from one NPU share its link; each alone would take half as long."""
    network = tp.switch(4, bandwidth="1GB/s", latency=0)
    both = co.together(*(co.broadcast(network, "1GB", root=0, chunks=1) for _ in range(2)))
    best = tacos.bound(network, both)
    assert best.bandwidth_s == pytest.approx(2)
    assert "several collectives" in best.why


def test_replicas_are_asked_of_both():
    """A chunk at 0 and 1 reaches 3 over both their links."""
    rows = [(a, b, "1GB/s", 0) for a, b in [(0, 3), (1, 3), (0, 1), (1, 0), (3, 0), (2, 0), (0, 2)]]
    network = tp.from_links(4, rows)
    coll = co.custom(network, ["1GB"], before=[[0, 1]], after=[[3]])
    assert tacos.bound(network, coll).bandwidth_s == pytest.approx(0.5)


def test_what_cannot_be_reached():
    network = tacos.Topology(
        npus=3,
        switch_capabilities=np.zeros(0, np.uint8),
        link_src=np.array([0, 1], np.int32),
        link_dst=np.array([1, 0], np.int32),
        link_latency_ps=np.zeros(2, np.int64),
        link_bandwidth_Bps=np.full(2, GB),
    )
    assert tacos.bound(network, co.all_gather(network, "1GB", group=[0, 1])).bandwidth_s == 0.5
    for kind in ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce"):
        with pytest.raises(tacos.InfeasibleError, match=r"npu \d cannot reach npu \d"):
            tacos.bound(network, co.named(kind, network, "1GB"))


def test_wrong_size():
    with pytest.raises(ValueError, match="the collective is for 5 NPUs, but the topology has 4"):
        tacos.bound(tp.ring(4), co.all_gather(5, "1MB"))


# --- laws ----------------------------------------------------------------------------------------


def needed(collective, inside):
    """Bytes that must leave a set of nodes, chunk by chunk."""
    sizes = collective.chunk_bytes().tolist()
    total = 0
    for chunk, size in enumerate(sizes):
        held = [npu in inside for npu in collective.inputs(chunk)]
        leaves = any(held) if collective.reduces(chunk) else bool(held) and all(held)
        if leaves and any(npu not in inside for npu in collective.outputs(chunk)):
            total += size
    return total


def narrowest_cut(topology, collective):
    """Try all cuts, one by one."""
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    rates = topology.link_bandwidth_Bps.tolist()
    worst = 0.0
    for count in range(1, topology.nodes):
        for chosen in combinations(range(topology.nodes), count):
            inside = set(chosen)
            out = sum(
                r for (a, b), r in zip(ends, rates, strict=True) if a in inside and b not in inside
            )
            worst = max(worst, needed(collective, inside) / out)
    return worst


def best_sets(topology, collective):
    """Try all families of disjoint sets that hold a member; every node that can add or copy is in one."""
    (part,) = collective.parts
    members = set(part.group.tolist())
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    rates = topology.link_bandwidth_Bps.tolist()
    able = topology.switch_capabilities != 0
    worst = 0.0
    for labels in product(range(-1, len(members)), repeat=topology.nodes):
        if any(
            labels[v] < 0 and (v < topology.npus or able[v - topology.npus])
            for v in range(topology.nodes)
        ):
            continue
        sets = {label for label in labels if label >= 0}
        if len(sets) < 2 or {labels[v] for v in members} != sets:
            continue
        out = sum(
            r
            for (a, b), r in zip(ends, rates, strict=True)
            if labels[a] >= 0 and labels[a] != labels[b]
        )
        into = sum(
            r
            for (a, b), r in zip(ends, rates, strict=True)
            if labels[b] >= 0 and labels[a] != labels[b]
        )
        worst = max(worst, 2 * (len(sets) - 1) * part.size / min(out, into))
    return worst


@settings(max_examples=150)
@given(strategies.random_topologies(max_npus=5, max_switches=2), st.data())
def test_all_cuts_one_by_one(network, data):
    """The search finds the narrowest cut of every collective whose sums have one destination."""
    kinds = [
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "all_reduce",
    ]
    group = data.draw(st.permutations(range(network.npus)))[
        : data.draw(st.integers(1, network.npus))
    ]
    kind, size = (
        data.draw(st.sampled_from(kinds)),
        data.draw(st.sampled_from([1, 7, 1000, 1001, 12000])),
    )
    coll = co.named(kind, network, size, group=group, chunks=1)
    found, cuts = tacos.bound(network, coll), narrowest_cut(network, coll)
    if kind == "all_reduce":
        assert found.bandwidth_s >= cuts * (1 - 1e-9)
        if network.nodes <= 5:
            assert found.bandwidth_s <= max(cuts, best_sets(network, coll)) * (1 + 1e-9)
    else:
        assert found.bandwidth_s == pytest.approx(cuts, rel=1e-9)


@settings(max_examples=80)
@given(strategies.random_topologies(max_npus=4, max_switches=2), st.data())
def test_custom_conditions_use_true_cuts(network, data):
    coll = data.draw(strategies.collectives(network.npus, max_chunks=2))
    pairs = coll.kind in ("all_to_all", "all_to_all_v", "send_recv")
    found, cuts = tacos.bound(network, coll), narrowest_cut(network, coll)
    if pairs:  # the linear program may know more than any cut
        assert found.bandwidth_s >= cuts * (1 - 1e-6)
    elif coll.kind == "custom":  # each cut is found for one chunk, then evaluated for all
        alone = max(narrowest_cut(network, single(coll, chunk)) for chunk in range(coll.chunks))
        assert alone * (1 - 1e-9) <= found.bandwidth_s <= cuts * (1 + 1e-9)
    elif coll.kind != "all_reduce":
        assert found.bandwidth_s == pytest.approx(cuts, rel=1e-9)


def single(collective, chunk):
    """One chunk of a collective."""
    return co.custom(
        collective.npus,
        [int(collective.chunk_bytes()[chunk])],
        [collective.inputs(chunk)],
        [collective.outputs(chunk)],
        reduces=[collective.reduces(chunk)],
    )


@settings(max_examples=150)
@given(strategies.orders())
def test_no_schedule_is_faster(order):
    """Random correct schedules, with relays, multicast and reduce trees."""
    schedule = order.retimed()
    assert tacos.bound(schedule.topology, order.collective).time_ps <= schedule.time_ps


@settings(max_examples=40)
@given(strategies.topologies(), st.data())
def test_no_engine_is_faster(network, data):
    coll = data.draw(strategies.collectives(network.npus))
    best = tacos.bound(network, coll)
    for engine in tacos.engines(network, coll):
        schedule = tacos.synthesize(network, coll, engine=engine)
        assert best.time_ps <= schedule.time_ps, engine


@given(strategies.quick_topologies(), st.data())
def test_fluid_is_no_later_than_chunks(network, data):
    kind = data.draw(st.sampled_from(strategies.UNROOTED + strategies.ROOTED))
    fluid = tacos.bound(network, co.named(kind, network, 1001))
    cut = tacos.bound(network, co.named(kind, network, 1001, chunks=data.draw(st.integers(1, 5))))
    assert fluid.time_ps <= cut.time_ps
    assert fluid.bandwidth_s == cut.bandwidth_s


@given(strategies.random_topologies(max_npus=5), st.data())
def test_one_more_link_never_hurts(network, data):
    assume(network.npus > 1)
    a, b = data.draw(st.permutations(range(network.npus)))[:2]
    links = [*columns(network), (a, b, 10**9, 0)]
    more = tp.from_links(
        network.npus,
        [(src, dst, f"{rate}B/s", f"{latency}ps") for src, dst, rate, latency in links],
        switches=[[name for bit, name in ((1, "multicast"), (2, "reduce")) if bits & bit]
                  for bits in network.switch_capabilities.tolist()],
        link_model=network.link_model,
        forwarding=network.forwarding,
    )  # fmt: skip
    kind = data.draw(st.sampled_from(["all_gather", "reduce_scatter", "broadcast", "gather"]))
    coll = co.named(kind, network, 1000)
    assert tacos.bound(more, coll).bandwidth_s <= tacos.bound(network, coll).bandwidth_s * (
        1 + 1e-9
    )


def columns(network):
    return zip(
        network.link_src.tolist(),
        network.link_dst.tolist(),
        network.link_bandwidth_Bps.tolist(),
        network.link_latency_ps.tolist(),
        strict=True,
    )


def test_all_reduces_of_several_groups_add_up():
    """All-reduces in three rows of a 4 x 3 torus: each crosses the four columns' borders 2·3 times, over 24 links.

    A row by itself would cross them 6 times over the same links, and a cut in two counts each buffer once.
    """
    torus = tp.torus(4, 3, bandwidth="1GB/s", latency=0)
    rows = [co.all_reduce(torus, GB, group=range(4 * i, 4 * i + 4)) for i in range(3)]
    best = tacos.bound(torus, co.together(*rows))
    assert best.bandwidth_s == pytest.approx(18 / 24)
    assert best.why.startswith("18 GB must leave the 4 sets of NPUs")
    found = tacos.synthesize(torus, co.together(*rows).with_chunks(2), engine="greedy")
    assert best.time_s <= found.time_s <= 1.4 * best.time_s


def test_members_that_are_neighbours_hinder_each_other():
    """A row of four members of a torus of 4x4x4, and one more member: 8 sizes over 40 links of 50 GB/s.

    The four have 24 links out and 24 in, of which 8 connect them. Each byte crosses these 40 links 2 · 4 times. Alone, each of the
    four members has to send its bytes over 6 links, which takes less time: 1/6 and not 1/5 of 20 us.
    """
    torus = tp.torus(4, 4, 4, bandwidth="50GB/s", latency=0)
    coll = co.all_reduce(torus, "1MB", group=[0, 1, 2, 3, 42])
    found = tacos.bound(torus, coll)
    assert found.bandwidth_s == pytest.approx(20e-6 * 8 / 40)


def test_boxes_of_two_generations_are_found_by_their_fast_links():
    """Eight boxes, named by nothing: each byte leaves boxes 14 times, over 4 times 200 and 4 times 400 GB/s."""
    links = []
    for box in range(8):
        inside, outside = (300e9, 25e9) if box < 4 else (450e9, 50e9)
        for npu in range(8 * box, 8 * box + 8):
            for switch, speed in ((64 + box, inside), (72, outside)):
                links += [(npu, switch, speed, 0), (switch, npu, speed, 0)]
    network = tacos.topology.from_links(64, links, switches=9)
    found = tacos.bound(network, tacos.collective.all_reduce(network, "1GB"))
    assert found.time_s == pytest.approx(14e9 / 2400e9, rel=1e-6)
    assert "the 8 sets of NPUs" in found.why
