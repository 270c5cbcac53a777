"""Clusters and machines by name: their links and their known speeds."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations, permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacos import topology as tp
from tests.support.links import GB, link_ends, speeds

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
    """Whether all NPUs can broadcast at rate x at once, checked at the given receivers.

    ForestColl's test: a source feeds each NPU at rate x; the whole flow must reach every NPU.
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
        (lambda: tp.dgx_h100(nvls=False), Fraction(450, 7), 514.29),
        (lambda: tp.dgx_h100(2, nvls=False), Fraction(500, 15), 533.33),
        (lambda: tp.dgx_h100(4, nvls=False), Fraction(500, 31), 516.13),
        (lambda: tp.nvl72(nvls=False), Fraction(900, 71), 912.68),
        (tp.mi250, Fraction(300, 14), 342.86),
        (lambda: tp.mi250(2), Fraction(332, 30), 354.13),
        (tp.mi300x, Fraction(448, 7), 512),
        (lambda: tp.mi300x(2), Fraction(498, 15), 531.2),
        (tp.mi355x, Fraction(5376, 70), 614.4),
        (lambda: tp.dgx_b200(nvls=False), Fraction(900, 7), 1028.57),
        (lambda: tp.dgx_b200(2, nvls=False), Fraction(400, 8), 800),
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
    """A machine reaches the optimum that ForestColl states, or finds for TACCL's and TE-CCL's inputs, and no more.

    `x` is the tightest cut by hand, in GB/s: the bandwidth into it, divided by the number of NPUs outside.
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
    """Four to the other die of the package, three to other packages: 300 GB/s leave a package."""
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
    assert tp.dgx_h100(2).switch_capabilities.tolist() == [3, 3, 0]
    assert tp.dgx_b200(2).switch_capabilities.tolist() == [3, 3, 0]
    assert tp.nvl72().switch_capabilities.tolist() == [3]
    assert tp.dgx_h100(2, nvls=False).switch_capabilities.tolist() == [0, 0, 0]
