"""Topologies from lists of links, their edits, and their descriptions."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacos import topology as tp
from tests.support.links import GB, graph, link_ends, speeds
from tests.support.strategies import random_topologies, topologies

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
        routing=topology.routing,
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
    """Exactly the links on paths between two of the NPUs that pass only through switches."""
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
    """From one box of two, the rails lead nowhere; from a single NPU, neither does its leaf nor the spine."""
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
    fast = tp.scale(tp.dgx_h100(2, nvls=False), bandwidth=2, latency=0.5)
    assert fast == tp.dgx_h100(
        2,
        nvls=False,
        bandwidth="900GB/s",
        nic_bandwidth="100GB/s",
        latency="175ns",
        nic_latency="650ns",
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
        (lambda t: tp.drop_npus(t, 0, 1, 2, 3), "npus names all NPUs"),
        (lambda t: tp.drop_npus(t, 0, 2), "cannot reach"),
        (lambda t: tp.degrade(t, (0, 1), factor=0), "factor must be above 0 and at most 1; got 0"),
        (lambda t: tp.degrade(t, (0, 1), factor=1.5), "factor must be .* got 1.5"),
        (lambda t: tp.degrade(t, (0, 1), factor=float("nan")), "factor must be .* got nan"),
        (lambda t: tp.degrade(t, (0, 1), latency="slow"), "latency 'slow'"),
        (lambda t: tp.scale(t, bandwidth=0), "the factor of bandwidth must be positive; got 0"),
        (lambda t: tp.scale(t, latency=-1), "the factor of latency must be 0 or more; got -1"),
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
    summary = tp.describe(tp.dgx_h100(2, nvls=False))
    each = {"min": 500 * GB, "max": 500 * GB, "total": 8000 * GB}
    assert summary["bandwidth_out_Bps"] == summary["bandwidth_in_Bps"] == each
    assert summary["out_degree"] == {"min": 2, "max": 2, "total": 32}
    assert summary["link_classes"] == [
        {"bandwidth_Bps": 450 * GB, "latency_s": 3.5e-7, "count": 32},
        {"bandwidth_Bps": 50 * GB, "latency_s": 1.3e-6, "count": 32},
    ]
    assert (summary["diameter_hops"], summary["diameter_sampled"]) == (2, False)


def test_describe_counts_the_switches_that_copy_and_add():
    for network, counts in [
        (tp.dgx_h100(2), (3, 2, 2)),
        (tp.dgx_h100(2, nvls=False), (3, 0, 0)),
        (tp.switch(4, multicast=True), (1, 1, 0)),
        (tp.switch(4, reduce=True), (1, 0, 1)),
    ]:
        found = tp.describe(network)
        able = found["multicasting_switches"], found["reducing_switches"]
        assert (found["switches"], *able) == counts


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
