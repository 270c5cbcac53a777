from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations, permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacos import topology as tp
from tests.support.strategies import built_topologies, random_topologies, topologies

GB = 10**9


def link_ends(topology):
    return list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))


def speeds(topology):
    columns = topology.link_bandwidth_Bps.tolist(), topology.link_latency_ps.tolist()
    return list(zip(*columns, strict=True))


def graph(topology):
    result = nx.DiGraph()
    result.add_nodes_from(range(topology.nodes))
    result.add_edges_from(link_ends(topology))
    return result


# --- regular networks ---------------------------------------------------------------------------


def test_ring_by_hand():
    assert link_ends(tp.ring(4)) == [
        (0, 1), (1, 2), (2, 3), (3, 0), (0, 3), (1, 0), (2, 1), (3, 2),
    ]  # fmt: skip
    assert link_ends(tp.ring(3, bidirectional=False)) == [(0, 1), (1, 2), (2, 0)]
    assert link_ends(tp.ring(2)) == [(0, 1), (1, 0)]


def test_mesh_by_hand():
    """3 × 2: along the first dimension up, then down; then the same along the second."""
    assert link_ends(tp.mesh(3, 2)) == [
        (0, 1), (1, 2), (3, 4), (4, 5), (1, 0), (2, 1), (4, 3), (5, 4),
        (0, 3), (1, 4), (2, 5), (3, 0), (4, 1), (5, 2),
    ]  # fmt: skip


def test_switches_of_a_product_by_hand():
    """Two boxes of 2 NPUs: switches 4 and 5 in the boxes, 6 and 7 on the rails."""
    two_by_two = tp.product(tp.switch(2, bandwidth="9GB/s"), tp.switch(2, multicast=True))
    assert link_ends(two_by_two) == [
        (0, 4), (1, 4), (2, 5), (3, 5), (4, 0), (4, 1), (5, 2), (5, 3),
        (0, 6), (1, 7), (2, 6), (3, 7), (6, 0), (7, 1), (6, 2), (7, 3),
    ]  # fmt: skip
    assert two_by_two.switch_capabilities.tolist() == [0, 0, 1, 1]
    assert set(two_by_two.link_bandwidth_Bps[:8].tolist()) == {9 * GB}


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.booleans())
def test_grids_are_those_of_networkx(sizes, wraps):
    """networkx makes no difference between a wrap-around link and a link of a dimension of 2."""
    ours = (tp.torus if wraps else tp.mesh)(*sizes)
    theirs = nx.grid_graph(dim=sizes, periodic=[wraps and n > 2 for n in sizes])
    radix = np.cumprod([1, *sizes[:-1]])

    def number(coordinates):
        # grid_graph puts the last dimension first, and leaves 1-D coordinates bare.
        return int(np.dot(np.atleast_1d(coordinates)[::-1], radix))

    expected = {(number(a), number(b)) for a, b in theirs.edges}
    assert sorted(link_ends(ours)) == sorted(expected | {(b, a) for a, b in expected})


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_torus_link_ids_are_dimension_direction_npu(sizes):
    torus = tp.torus(*sizes)
    npus, radix = torus.npus, np.cumprod([1, *sizes])
    v, first = np.arange(npus), 0
    for dim, n in enumerate(sizes):
        for step in [] if n == 1 else [1] if n == 2 else [1, -1]:
            c = v // radix[dim] % n
            block = slice(first, first := first + npus)
            assert (torus.link_src[block] == v).all()
            assert (torus.link_dst[block] == v + ((c + step) % n - c) * radix[dim]).all()
    assert first == torus.links


def test_products_agree_with_the_builders_made_of_them():
    torus, rings = tp.torus(4, 3, 2), tp.product(tp.ring(4), tp.ring(3), tp.ring(2))
    assert link_ends(torus) == link_ends(rings)
    assert (torus.dims, torus.symmetric) == (rings.dims, rings.symmetric)
    assert link_ends(tp.product(tp.torus(4, 3), tp.ring(2))) == link_ends(torus)
    rail = tp.rail(3, 4, bandwidth="9GB/s", rail_bandwidth="8GB/s")
    switches = tp.product(
        tp.switch(4, bandwidth="9GB/s", latency="350ns"),
        tp.switch(3, bandwidth="8GB/s", latency="1.3us"),
    )
    assert (link_ends(rail), speeds(rail)) == (link_ends(switches), speeds(switches))


@given(random_topologies(4, 2), random_topologies(3, 2))
def test_product_copies_each_factor_along_its_dimension(a, b):
    if (a.link_model, a.forwarding, a.reduce_bandwidth_Bps) != (
        b.link_model, b.forwarding, b.reduce_bandwidth_Bps,
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must agree"):
            tp.product(a, b)
        return
    both = tp.product(a, b)
    assert both.npus == a.npus * b.npus
    assert both.switches == a.switches * b.npus + b.switches * a.npus
    assert Counter(speeds(both)) == Counter(speeds(a) * b.npus + speeds(b) * a.npus)
    direct = Counter((s, d) for s, d in link_ends(both) if max(s, d) < both.npus)
    assert direct == Counter(
        [
            (s + a.npus * i, d + a.npus * i)
            for s, d in link_ends(a) if max(s, d) < a.npus
            for i in range(b.npus)
        ]
        + [
            (i + a.npus * s, i + a.npus * d)
            for s, d in link_ends(b) if max(s, d) < b.npus
            for i in range(a.npus)
        ]
    )  # fmt: skip


def test_speed_per_dimension():
    torus = tp.torus(4, 3, bandwidth=("50GB/s", "25GB/s"), latency=["1us", 0])
    assert speeds(torus) == [(50 * GB, 10**6)] * 24 + [(25 * GB, 0)] * 24


def test_hypercube_neighbours_differ_in_one_bit():
    cube = tp.hypercube(5)
    assert (cube.npus, cube.links, cube.dims) == (32, 160, [("ring", 2)] * 5)
    assert all((a ^ b).bit_count() == 1 for a, b in link_ends(cube))


def test_fully_connected_blocks_are_offsets():
    clique = tp.fully_connected(5)
    offsets = (clique.link_dst - clique.link_src) % 5
    assert offsets.tolist() == [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5


@given(built_topologies())
@settings(max_examples=60)
def test_what_is_called_symmetric_is(topology):
    """Translating the coordinates maps the links onto themselves.

    A switch is known by the NPUs around it: none of these networks has switches behind switches.
    """
    if not topology.symmetric:
        return
    ends = link_ends(topology)
    around: list[set[int]] = [set() for _ in range(topology.nodes)]
    for a, b in ends:
        around[a].add(b)
        around[b].add(a)
    v, radix = np.arange(topology.npus), 1
    for _, n in topology.dims:
        c = v // radix % n
        moved = v + ((c + 1) % n - c) * radix
        radix *= n

        def seen(node, name):
            if node < topology.npus:
                return name[node]
            return frozenset(name[npu] for npu in around[node])

        def links(name):
            return Counter(
                (seen(a, name), seen(b, name), *speed)
                for (a, b), speed in zip(ends, speeds(topology), strict=True)
            )

        assert links(v.tolist()) == links(moved.tolist())


@given(topologies())
def test_everything_built_is_connected(topology):
    reachable = nx.transitive_closure(graph(topology), reflexive=True)
    assert all(reachable.has_edge(a, b) for a in range(topology.npus) for b in range(topology.npus))
    assert topology.unreachable_pair() is None


def test_the_model_is_passed_on():
    for build in (tp.ring, tp.mesh, tp.torus, tp.hypercube, tp.fully_connected, tp.switch, tp.tpu):
        topology = build(3, link_model="blocking", reduce_bandwidth="1GB/s")
        assert (topology.link_model, topology.reduce_bandwidth_Bps) == ("blocking", GB)
    for machine in (tp.dgx_a100, tp.ndv2, tp.mi250, tp.mi300x, tp.nvl72, tp.dgx1, tp.dgx2):
        assert machine(2, forwarding="store_and_forward").forwarding == "store_and_forward"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tp.ring(0), "n must be a whole number of at least [01]; got 0"),
        (lambda: tp.ring(2.5), "n must be a whole number of at least [01]; got 2.5"),
        (lambda: tp.ring(True), "n must be a whole number of at least [01]; got True"),
        (tp.torus, "at least one dimension"),
        (lambda: tp.torus(4, -1), "size must be a whole number of at least 1; got -1"),
        (lambda: tp.torus(4, 4, bandwidth=[1, 2, 3]), "bandwidth has 3 values for 2 dimensions"),
        (lambda: tp.ring(4, bandwidth="fast"), "bandwidth 'fast' is not understood"),
        (lambda: tp.ring(4, latency="5"), "latency '5' needs a unit"),
        (
            lambda: tp.ring(4, link_model="fluid"),
            '^link_model is "fluid"; it must be "pipelined" or "blocking"$',
        ),
        (
            lambda: tp.ring(4, forwarding="wormhole"),
            '^forwarding is "wormhole"; it must be "cut_through" or "store_and_forward"$',
        ),
        (lambda: tp.ring(4, reduce_bandwidth=-1), "reduce_bandwidth -1 must be positive"),
        (lambda: tp.fully_connected(10**6), "999999000000 links; at most 100000000"),
        (lambda: tp.torus(10**5, 10**5), "links; at most"),
        (lambda: tp.hypercube(70), "links; at most"),
        (tp.product, "at least one factor"),
        (lambda: tp.fat_tree(4), r"not \(4,\)"),
        (
            lambda: tp.fat_tree(4, 4, uplinks=0),
            "uplinks must be a whole number of at least [01]; got 0",
        ),
        (
            lambda: tp.fat_tree(4, 4, uplinks=(1, 0)),
            "uplinks must be a whole number of at least [01]; got 0",
        ),
        (lambda: tp.fat_tree(4, 4, oversubscription=0), "oversubscription must be positive; got 0"),
        (
            lambda: tp.rail(2, 2, spine=True, oversubscription=-1),
            "oversubscription must be positive; got -1",
        ),
        (
            lambda: tp.dragonfly(4, 0),
            "npus_per_group must be a whole number of at least [01]; got 0",
        ),
        (lambda: tp.dragonfly(9, 4, global_links=0), "npu 0 cannot reach npu 4"),
        (
            lambda: tp.dragonfly_plus(2, 1, 0),
            "npus_per_leaf must be a whole number of at least [01]; got 0",
        ),
        (lambda: tp.dgx_h100(0), "boxes must be a whole number of at least [01]; got 0"),
        (lambda: tp.nvl72(0), "racks must be a whole number of at least [01]; got 0"),
        (lambda: tp.dgx_h100(2, fabric="ring"), "fabric must be .* got 'ring'"),
    ],
)
def test_wrong_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# --- clusters -----------------------------------------------------------------------------------


def test_fat_tree_of_two_levels_by_hand():
    """2 leaves (4, 5) of 2 NPUs and 1 spine (6), whose links carry 2 × 50 / (1 × 4) GB/s."""
    tree = tp.fat_tree(2, 2, uplinks=1, oversubscription=4)
    assert link_ends(tree) == [
        (0, 4), (1, 4), (2, 5), (3, 5), (4, 0), (4, 1), (5, 2), (5, 3),
        (4, 6), (5, 6), (6, 4), (6, 5),
    ]  # fmt: skip
    assert tree.link_bandwidth_Bps.tolist() == [50 * GB] * 8 + [25 * GB] * 4


def test_k_ary_fat_tree_is_made_of_equal_switches():
    """k = 6: 54 NPUs, 18 + 18 + 9 switches with 6 ports each."""
    tree = tp.fat_tree(6, 3, 3)
    assert (tree.npus, tree.switches) == (54, 45)
    degrees = np.bincount(tree.link_src, minlength=tree.nodes)
    assert set(degrees[:54]) == {1}
    assert set(degrees[54:]) == {6}
    assert set(tree.link_bandwidth_Bps.tolist()) == {50 * GB}
    assert tree.diameter() == 6


@given(
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)
)
def test_fat_tree_levels_keep_their_bandwidth(pods, leaves, per_leaf, up, core_up):
    tree = tp.fat_tree(pods, leaves, per_leaf, uplinks=(up, core_up), bandwidth="60GB/s")
    level = np.repeat([0, 1, 2, 3], [tree.npus, pods * leaves, pods * up, up * core_up])
    between: Counter[tuple[int, int]] = Counter()
    for (a, b), (bandwidth, _) in zip(link_ends(tree), speeds(tree), strict=True):
        assert abs(level[a] - level[b]) == 1
        between[(level[a], level[b])] += bandwidth
    assert len(between) == 6
    assert all(abs(total - 60 * GB * tree.npus) < 1000 for total in between.values())


def test_rail_with_a_spine():
    rail = tp.rail(4, 2, rail_bandwidth="50GB/s", spine=True, oversubscription=2)
    assert link_ends(rail)[-4:] == [(12, 14), (13, 14), (14, 12), (14, 13)]
    assert rail.link_bandwidth_Bps[-4:].tolist() == [100 * GB] * 4
    assert not rail.symmetric
    assert tp.rail(4, 2).symmetric


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4))
def test_dragonfly_spreads_its_global_links(groups, per_group, global_links):
    try:
        fly = tp.dragonfly(groups, per_group, global_links=global_links, global_latency="2us")
    except ValueError:
        assert per_group * global_links < groups - 1  # some groups have no direct link
        return
    far = [(a, b) for a, b in link_ends(fly) if a // per_group != b // per_group]
    assert Counter(far) == Counter((b, a) for a, b in far)
    assert all(n <= global_links for n in Counter(a for a, _ in far).values())
    ports = per_group * global_links if groups > 1 else 0
    per_pair = Counter((a // per_group, b // per_group) for a, b in far)
    counts = [per_pair[pair] for pair in permutations(range(groups), 2)]
    assert not counts or max(counts) - min(counts) <= 1
    # At most one port of a group has no partner.
    assert groups * (ports - 1) <= len(far) <= groups * ports


def test_dragonfly_of_full_size_joins_every_two_groups_once():
    fly = tp.dragonfly(9, 4, global_links=2)
    pairs = [tuple(sorted((a // 4, b // 4))) for a, b in link_ends(fly) if a // 4 != b // 4]
    assert Counter(pairs) == dict.fromkeys(combinations(range(9), 2), 2)


def test_dragonfly_plus_by_hand():
    """Groups of one leaf and one spine: leaves 2, 3, spines 4, 5, one cable between them."""
    fly = tp.dragonfly_plus(2, 1, 1, global_bandwidth="9GB/s")
    assert link_ends(fly) == [
        (0, 2), (1, 3), (2, 0), (3, 1), (2, 4), (3, 5), (4, 2), (5, 3), (4, 5), (5, 4),
    ]  # fmt: skip
    assert fly.link_bandwidth_Bps[-2:].tolist() == [9 * GB] * 2


# --- machines -----------------------------------------------------------------------------------


def gathers_at(topology, x_Bps, npus):
    """Whether every NPU can broadcast at rate x at once, seen from the given NPUs.

    The test of ForestColl: a source feeds each NPU at rate x; all of it must reach every NPU.
    """
    scale = x_Bps.denominator
    flow = nx.DiGraph()
    for (a, b), bandwidth in zip(link_ends(topology), topology.link_bandwidth_Bps, strict=True):
        joint = flow.get_edge_data(a, b, {"capacity": 0})["capacity"]
        flow.add_edge(a, b, capacity=joint + int(bandwidth) * scale)
    for npu in range(topology.npus):
        flow.add_edge("source", npu, capacity=x_Bps.numerator)
    need = x_Bps.numerator * topology.npus
    return all(nx.maximum_flow_value(flow, "source", npu) >= need for npu in npus)


@pytest.mark.parametrize(
    ("build", "x", "algbw"),
    [
        (tp.dgx1, Fraction(150, 7), 171.43),
        (tp.dgx_a100, Fraction(300, 7), 342.86),
        (lambda: tp.dgx_a100(2), Fraction(325, 15), 346.67),
        (lambda: tp.dgx_a100(4), Fraction(200, 24), 266.67),
        (tp.dgx_h100, Fraction(450, 7), 514.29),
        (lambda: tp.dgx_h100(2), Fraction(500, 15), 533.33),
        (lambda: tp.dgx_h100(4), Fraction(500, 31), 516.13),
        (tp.nvl72, Fraction(900, 71), 912.68),
        (tp.mi250, Fraction(300, 14), 342.86),
        (lambda: tp.mi250(2), Fraction(332, 30), 354.13),
        (tp.mi300x, Fraction(448, 7), 512),
        (lambda: tp.mi300x(2), Fraction(498, 15), 531.2),
        (tp.mi355x, Fraction(5376, 70), 614.4),
        (tp.dgx_b200, Fraction(900, 7), 1028.57),
        (lambda: tp.dgx_b200(2), Fraction(400, 8), 800),
        (tp.trn2, Fraction(512, 15), 546.13),
        (lambda: tp.dgx_spark(4), Fraction(25, 3), 33.33),
        (lambda: tp.dgx_spark(3, wiring="mesh"), Fraction(25, 2), 37.5),
        (lambda: tp.dgx_spark(4, wiring="line"), Fraction(125, 30), 16.67),
        (lambda: tp.dgx2(2, relay=True), Fraction(125, 31), 129.03),
        (lambda: tp.ndv2(2), Fraction(25, 16), 25),
        (lambda: tp.ndv2(4), Fraction(25, 48), 16.67),
    ],
)
def test_all_gather_optimum_of_machines(build, x, algbw):
    """The optimum ForestColl states, or finds for TACCL's and TE-CCL's inputs, and no more.

    `x` is the tightest cut by hand in GB/s: bandwidth into it over the NPUs outside.
    """
    topology = build()
    assert float(x * topology.npus) == pytest.approx(algbw, abs=0.005)
    # A few NPUs of every kind are enough: boxes are alike.
    seen = range(16) if topology.npus < 72 else range(2)
    assert gathers_at(topology, x * GB, [npu for npu in seen if npu < topology.npus])
    assert not gathers_at(topology, x * GB * Fraction(101, 100), range(topology.npus))


def test_an_ultraserver_has_what_a_chip_of_trainium2_has():
    """1.28 TB/s for both directions: four links of 128 GB/s and two of 64 GB/s, each way."""
    chips = tp.trn2(ultra=True)
    assert np.bincount(chips.link_src, chips.link_bandwidth_Bps).tolist() == [640e9] * 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"boxes": 4, "wiring": "mesh"},
            "a mesh of 4 boxes needs 3 ports per box, but a DGX Spark has 2; use a ring",
        ),
        ({"boxes": 4, "wiring": "star"}, "wiring must be ring, line, mesh or switch; got 'star'"),
    ],
)
def test_wirings_that_a_spark_does_not_have(arguments, message):
    with pytest.raises(ValueError, match=message):
        tp.dgx_spark(**arguments)


def test_dgx2_without_relay_receives_everywhere():
    """Every GPU has 125 GB/s from NVSwitch and 12.5 GB/s from its NIC."""
    x = Fraction(1375, 310) * GB
    assert gathers_at(tp.dgx2(2), x, [0, 1])
    assert not gathers_at(tp.dgx2(2), x * Fraction(101, 100), [0])


def test_mi250_dies_have_seven_links():
    """Four to the other die of the package, three away: 300 GB/s leave a package."""
    box = tp.mi250(bandwidth="1GB/s")
    out = np.zeros(16)
    np.add.at(out, box.link_src, box.link_bandwidth_Bps)
    assert out.tolist() == [7 * GB] * 16
    inside = [(a, b) for a, b in link_ends(box) if a // 2 == b // 2]
    assert len(inside) == 16


@pytest.mark.parametrize("build", [tp.dgx1, tp.dgx2, tp.ndv2, tp.dgx_a100, tp.dgx_h100, tp.mi250])
def test_one_box_has_no_network(build):
    one, two = build(), build(2)
    box_switches = one.switches
    assert one.dims == two.dims[:1]
    assert two.dims[1] == ("switch", 2)
    inside = [
        (a, b)
        for a, b in link_ends(two)
        if max(a, b) < two.npus + 2 * box_switches
    ]  # fmt: skip
    assert len(inside) == 2 * one.links
    assert all(_box(a, one) == _box(b, one) for a, b in inside)


def _box(node, one):
    return node // one.npus if node < 2 * one.npus else (node - 2 * one.npus) // one.switches


def test_fabrics():
    by_switch, by_rail = tp.dgx_h100(3), tp.dgx_h100(3, fabric="rail")
    assert (by_switch.switches, by_rail.switches) == (4, 11)
    assert by_switch.links == by_rail.links
    rails = tp.rail(3, 8)
    assert (link_ends(by_rail), speeds(by_rail)) == (link_ends(rails), speeds(rails))
    assert by_rail.symmetric
    # Rail 2 of DGX-2s joins the NICs of GPUs 4 and 5: NIC 2 (37) of box 0 and NIC 2 (45) of box 1.
    rail_2 = 32 + 2 + 16 + 2
    dgx2 = tp.dgx2(2, fabric="rail")
    assert {a for a, b in link_ends(dgx2) if b == rail_2} == {32 + 2 + 2, 32 + 2 + 10}


def test_nvls_switches_multicast_and_reduce_the_fabric_does_not():
    assert tp.dgx_h100(2, nvls=True).switch_capabilities.tolist() == [3, 3, 0]
    assert tp.nvl72(nvls=True).switch_capabilities.tolist() == [3]


# --- from_links ---------------------------------------------------------------------------------


def test_rows_and_columns_are_the_same():
    rows = [(0, 1, "50GB/s", "500ns"), (1, 2, 5e10, 5e-7), (2, 0, 25 * GB, 0)]
    src, dst = np.array([0, 1, 2]), np.array([1, 2, 0])
    bandwidth, latency = np.array([5e10, 5e10, 2.5e10]), np.array([5e-7, 5e-7, 0])
    columns = {"src": src, "dst": dst, "bandwidth_Bps": bandwidth, "latency_s": latency}
    a = tp.from_links(3, rows)
    assert a == tp.from_links(3, columns) == tp.from_links(3, (src, dst, bandwidth, latency))
    assert a == tp.from_links(3, iter(rows))
    assert a == tp.from_links(3, np.stack([src, dst, bandwidth, latency], axis=1))
    assert speeds(a) == [(50 * GB, 500_000), (50 * GB, 500_000), (25 * GB, 0)]


@given(random_topologies())
def test_a_topology_can_be_rebuilt_from_its_columns(topology):
    words = ["", "multicast", "reduce", {"reduce", "multicast"}]
    again = tp.from_links(
        topology.npus,
        [
            (a, b, bandwidth, f"{latency}ps")
            for (a, b), (bandwidth, latency) in zip(
                link_ends(topology), speeds(topology), strict=True
            )
        ],
        switches=[words[bits] for bits in topology.switch_capabilities],
        names=topology.names,
        link_model=topology.link_model,
        forwarding=topology.forwarding,
        reduce_bandwidth=topology.reduce_bandwidth_Bps or None,
    )
    assert again == topology


def test_one_npu_needs_no_links():
    assert tp.from_links(1, []).links == 0
    assert tp.from_links(2, [], connected=False).unreachable_pair() == (0, 1)


@pytest.mark.parametrize(
    ("links", "keywords", "message"),
    [
        ([(0, 1, 1, 0)], {}, "npu 1 cannot reach npu 0"),
        ([(0, 1, 1, 0)], {"names": ["a", "b"]}, "b cannot reach a"),
        ([(0, 1, 1)], {}, r"links\[0\] is \(0, 1, 1\)"),
        ([(0, 5, 1, 0)], {}, "link 0 .* names node 5"),
        ([(0, 2**40, 1, 0)], {}, "dst is 1099511627776"),
        ([(0, -(2**40), 1, 0)], {}, "dst is -1099511627776"),
        ([(0, 1.5, 1, 0)], {}, r"links\[0\].dst is 1.5"),
        ([("a", 1, 1, 0)], {}, r"links\[0\].src is 'a'"),
        ([(0, 1, 1, 0), (1, 0, -5, 0)], {}, r"links\[1\].bandwidth -5 must be positive"),
        ([(0, 1, 1, -1e-9)], {}, r"links\[0\].latency -1e-09 must not be negative"),
        ([(0, 1, float("nan"), 0)], {}, r"links\[0\].bandwidth nan"),
        ([(0, 1, None, 0)], {}, r"links\[0\].bandwidth None"),
        ({"src": [0], "dst": [1]}, {}, r"columns \['dst', 'src'\]"),
        ((np.array([0]), np.array([1])), {}, "four columns"),
        ([], {"switches": ["mulitcast"]}, r"switches\[0\] must be one of .*; got 'mulitcast\'"),
        ([], {"switches": -1}, "switches must be a whole number of at least [01]; got -1"),
        ({"src": [0], "dst": [1], "bandwidth_Bps": 1, "latency_s": 0}, {}, "four columns"),
        ([], {"names": ["a"]}, "1 names for 2 nodes"),
    ],
)
def test_wrong_links_are_named(links, keywords, message):
    with pytest.raises(ValueError, match=message):
        tp.from_links(2, links, **keywords)


# --- edits --------------------------------------------------------------------------------------


def test_edits_chain_by_hand():
    broken = tp.degrade(tp.drop_links(tp.ring(4), (0, 1), 1), (2, 3), factor=0.5, latency="2us")
    assert link_ends(broken) == [(2, 3), (3, 0), (0, 3), (1, 0), (2, 1), (3, 2)]
    assert speeds(broken)[0] == (25 * GB, 2_000_000)
    assert set(speeds(broken)[1:]) == {(50 * GB, 500_000)}
    assert (broken.dims, broken.symmetric) == ([("ring", 4)], False)


def test_both_means_there_and_back():
    assert tp.drop_links(tp.ring(4), (0, 1), both=True).links == 6
    slow = tp.degrade(tp.ring(4), (0, 1), factor=0.1, both=True)
    assert np.flatnonzero(slow.link_bandwidth_Bps == 5 * GB).tolist() == [0, 5]


def test_parallel_links_go_together_or_by_id():
    twice = tp.from_links(2, [(0, 1, 1, 0), (0, 1, 1, 0), (1, 0, 1, 0)])
    assert tp.drop_links(twice, 1).links == 2
    with pytest.raises(ValueError, match="npu 0 cannot reach npu 1"):
        tp.drop_links(twice, (0, 1))


@given(topologies())
def test_edits_of_nothing_change_nothing(topology):
    npus = range(topology.npus)
    assert tp.drop_links(topology) == topology
    assert tp.degrade(topology, factor=0.5) == topology
    assert tp.degrade(topology, *range(topology.links), factor=1) == topology
    assert tp.scale(topology) == topology
    assert tp.renumber(topology, npus).link_src.tolist() == topology.link_src.tolist()


@given(topologies(), st.randoms(use_true_random=False))
def test_renumbering_there_and_back(topology, random):
    there = list(range(topology.npus))
    random.shuffle(there)
    back = np.argsort(there).tolist()
    moved = tp.renumber(topology, there)
    again = tp.renumber(moved, back)
    assert (link_ends(again), speeds(again)) == (link_ends(topology), speeds(topology))
    assert again.names == topology.names
    number = [*there, *range(topology.npus, topology.nodes)]
    assert link_ends(moved) == [(number[a], number[b]) for a, b in link_ends(topology)]
    assert (moved.dims, moved.symmetric) == ([], False)


@given(topologies(), st.data())
def test_subset_keeps_the_ways_between_its_npus(topology, data):
    """Exactly the links on a way between two of the NPUs that passes only switches."""
    npus = data.draw(st.permutations(range(topology.npus)))
    npus = npus[: data.draw(st.integers(1, topology.npus))]
    kept = graph(topology).subgraph([*npus, *range(topology.npus, topology.nodes)])
    ends = nx.transitive_closure(kept)
    connected = all(ends.has_edge(a, b) for a, b in combinations(npus, 2)) and all(
        ends.has_edge(b, a) for a, b in combinations(npus, 2)
    )
    if not connected:
        with pytest.raises(ValueError, match="cannot reach"):
            tp.subset(topology, npus)
        return
    small = tp.subset(topology, npus)
    assert small.npus == len(npus)
    number = {npu: i for i, npu in enumerate(npus)}
    between = [(number[a], number[b]) for a, b in link_ends(topology) if {a, b} <= number.keys()]
    assert [(a, b) for a, b in link_ends(small) if max(a, b) < small.npus] == between
    if topology.names:
        assert small.names[: small.npus] == [topology.names[npu] for npu in npus]
    for switch in range(small.npus, small.nodes):
        neighbours = {b for a, b in link_ends(small) if a == switch}
        assert neighbours
        assert len(neighbours | {a for a, b in link_ends(small) if b == switch}) > 1


def test_subset_forgets_switches_that_lead_nowhere():
    """Box 0 of two: its rails, and with a spine above them the spine too, joined it to box 1."""
    cluster = tp.rail(2, 4)
    assert (cluster.switches, tp.subset(cluster, range(4)).switches) == (6, 1)
    assert link_ends(tp.subset(cluster, [1, 0])) == [(1, 2), (0, 2), (2, 1), (2, 0)]
    assert tp.subset(tp.fat_tree(1, 2, 1, uplinks=1), [0]).switches == 0


def test_dropping_npus_closes_the_gap():
    hole = tp.drop_npus(tp.mesh(3, 3), 4)
    assert hole.npus == 8
    assert hole.links == 24 - 8
    assert hole.diameter() == 4
    assert set(link_ends(hole)) >= {(0, 1), (3, 0), (4, 7), (7, 6)}


def test_scale():
    fast = tp.scale(tp.dgx_h100(2), bandwidth=2, latency=0.5)
    assert fast == tp.dgx_h100(
        2, bandwidth="900GB/s", nic_bandwidth="100GB/s", latency="175ns", nic_latency="650ns"
    )


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: tp.drop_links(t, (0, 2)), "no link from npu 0 to npu 2"),
        (
            lambda t: tp.drop_links(t, 99),
            "link is 99, but there is no such link; the links are 0 to 7",
        ),
        (lambda t: tp.drop_links(t, -1), "link is -1, but there is no such link"),
        (lambda t: tp.drop_links(t, (0, 1, 2)), r"link is \(0, 1, 2\); it must be a link's number"),
        (lambda t: tp.drop_npus(t, "a"), "is 'a', but there is no such NPU"),
        (lambda t: tp.drop_npus(t, 1, 1), "npus has NPU 1 twice"),
        (lambda t: tp.subset(t, [0.5]), "is 0.5; it must be a node's number or name"),
        (lambda t: tp.drop_links(t, (0, 1), (0, 3)), "npu 0 cannot reach npu 1"),
        (lambda t: tp.drop_npus(t, 4), "is 4, but there is no such NPU; the NPUs are 0 to 3"),
        (lambda t: tp.drop_npus(t, 0, 1, 2, 3), "npus is empty"),
        (lambda t: tp.drop_npus(t, 0, 2), "cannot reach"),
        (lambda t: tp.degrade(t, (0, 1), factor=0), "factor must be above 0 and at most 1; got 0"),
        (lambda t: tp.degrade(t, (0, 1), factor=1.5), "factor must be .* got 1.5"),
        (lambda t: tp.degrade(t, (0, 1), factor=float("nan")), "factor must be .* got nan"),
        (lambda t: tp.degrade(t, (0, 1), latency="slow"), "latency 'slow'"),
        (lambda t: tp.scale(t, bandwidth=0), "the factor of bandwidth must be positive; got 0"),
        (lambda t: tp.scale(t, latency=-1), "the factor of latency must be positive; got -1"),
        (lambda t: tp.scale(t, bandwidth=1e30), "too large"),
        (lambda t: tp.subset(t, []), "npus is empty"),
        (lambda t: tp.subset(t, [0, 0]), "npus has NPU 0 twice"),
        (lambda t: tp.subset(t, [0, -1]), "is -1, but there is no such NPU"),
        (lambda t: tp.renumber(t, [0, 1, 2]), "3 numbers for 4 NPUs"),
        (lambda t: tp.renumber(t, [0, 1, 2, 2]), "permutation has NPU 2 twice"),
    ],
)
def test_wrong_edits_are_named(edit, message):
    with pytest.raises(ValueError, match=message):
        edit(tp.ring(4))


# --- describe -----------------------------------------------------------------------------------


def test_describe_by_hand():
    """Two DGX H100: every GPU has 450 + 50 GB/s each way on two links."""
    summary = tp.describe(tp.dgx_h100(2))
    each = {"min": 500 * GB, "max": 500 * GB, "total": 8000 * GB}
    assert summary["bandwidth_out_Bps"] == summary["bandwidth_in_Bps"] == each
    assert summary["out_degree"] == {"min": 2, "max": 2, "total": 32}
    assert summary["link_classes"] == [
        {"bandwidth_Bps": 450 * GB, "latency_s": 3.5e-7, "count": 32},
        {"bandwidth_Bps": 50 * GB, "latency_s": 1.3e-6, "count": 32},
    ]
    assert (summary["diameter_hops"], summary["diameter_sampled"]) == (2, False)


def test_describe_says_what_is_sampled_and_what_is_cut_off():
    assert tp.describe(tp.mesh(300))["diameter_sampled"]
    assert not tp.describe(tp.ring(300))["diameter_sampled"]
    assert tp.describe(tp.from_links(2, [], connected=False))["diameter_hops"] is None


@given(topologies())
def test_describe_agrees_with_networkx(topology):
    summary = tp.describe(topology)
    lengths = dict(nx.all_pairs_shortest_path_length(graph(topology)))
    npus = range(topology.npus)
    assert summary["diameter_hops"] == max(lengths[a][b] for a in npus for b in npus)
    assert sum(row["count"] for row in summary["link_classes"]) == topology.links
    degrees = Counter(b for _, b in link_ends(topology))
    assert summary["in_degree"]["max"] == max(degrees[npu] for npu in npus)
