"""Routes: which way topology-unaware algorithms go, and which routes may be given by hand."""

from __future__ import annotations

from itertools import pairwise, permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from tacos import topology as tp
from tacos.errors import InfeasibleError
from tacos.schedule import Routes, paths, routes
from tests.support.oracle import route_links
from tests.support.strategies import random_topologies, topologies


def nodes_on(topology, links):
    """The nodes that a chain of links passes, both ends included."""
    src, dst = topology.link_src.tolist(), topology.link_dst.tolist()
    assert all(dst[a] == src[b] for a, b in pairwise(links))
    return [src[links[0]], *(dst[link] for link in links)]


def way(topology, src, dst):
    """The nodes on the route between two NPUs."""
    return nodes_on(topology, routes(topology, pairs=([src], [dst])).links.tolist())


def graph(topology):
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    network = nx.DiGraph(ends)
    network.add_nodes_from(range(topology.nodes))
    return network


# --- shortest routes ----------------------------------------------------------------------------


@given(topologies())
def test_every_pair_has_a_route_that_starts_and_ends_where_it_should(topology):
    pairs = list(permutations(range(topology.npus), 2))[:200]
    table = paths(topology, ([a for a, _ in pairs], [b for _, b in pairs]))
    assert table.count == len(pairs)
    for r, ((src, dst), links) in enumerate(zip(pairs, route_links(table), strict=True)):
        passed = nodes_on(topology, links)
        assert (passed[0], passed[-1]) == (src, dst)
        assert len(set(passed)) == len(passed)  # no loops
        assert (table.sources(r), table.destinations(r)) == ([src], [dst])


@given(random_topologies())
def test_without_dimensions_routes_have_the_fewest_hops(topology):
    pairs = list(permutations(range(topology.npus), 2))
    table = paths(topology, ([a for a, _ in pairs], [b for _, b in pairs]))
    hops = dict(nx.all_pairs_shortest_path_length(graph(topology)))
    for (src, dst), links in zip(pairs, route_links(table), strict=True):
        assert len(links) == hops[src][dst]


@given(random_topologies())
def test_a_direct_link_is_taken_and_of_parallel_ones_the_first(topology):
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    for src, dst in set(ends):
        if src < topology.npus and dst < topology.npus:
            table = routes(topology, pairs=([src], [dst]))
            assert table.links.tolist() == [ends.index((src, dst))]


def test_among_equal_ways_the_lowest_link_ids_win():
    """0 -> 1 -> 3 and 0 -> 2 -> 3 have two hops each; the link 0 -> 2 has the lower id."""
    ends = [(0, 2), (0, 1), (1, 3), (2, 3), (3, 0)]
    topology = tp.from_links(4, [(a, b, 1e9, 0) for a, b in ends])
    assert way(topology, 0, 3) == [0, 2, 3]


def test_rings_go_the_shorter_way_and_forwards_on_a_tie():
    topology = tp.ring(6)
    assert way(topology, 0, 2) == [0, 1, 2]
    assert way(topology, 0, 4) == [0, 5, 4]
    assert way(topology, 1, 4) == [1, 2, 3, 4]
    assert way(topology, 4, 1) == [4, 5, 0, 1]


def test_one_way_rings_go_the_only_way():
    topology = tp.ring(5, bidirectional=False)
    assert way(topology, 1, 0) == [1, 2, 3, 4, 0]


def test_tori_go_dimension_by_dimension():
    """NPU x + 4·y: first along x, where 0 -> 3 wraps around, then along y."""
    topology = tp.torus(4, 5)
    assert way(topology, 0, 2 + 4 * 2) == [0, 1, 2, 6, 10]
    assert way(topology, 0, 3 + 4 * 4) == [0, 3, 19]


def test_meshes_go_dimension_by_dimension_without_wrapping():
    topology = tp.mesh(4, 3)
    assert way(topology, 0, 3 + 4 * 2) == [0, 1, 2, 3, 7, 11]
    assert way(topology, 11, 0) == [11, 10, 9, 8, 4, 0]


def test_hypercubes_correct_the_lowest_bit_first():
    assert way(tp.hypercube(4), 0b0000, 0b1011) == [0b0000, 0b0001, 0b0011, 0b1011]


def test_products_with_switches_cross_one_switch_per_dimension():
    """Boxes of 4 behind a switch each, 3 boxes behind a rail switch per position."""
    topology = tp.product(tp.switch(4), tp.switch(3))
    passed = way(topology, 0, 2 + 4 * 1)
    assert [node for node in passed if node < topology.npus] == [0, 2, 6]
    assert len(passed) == 5
    mixed = tp.product(tp.ring(4), tp.fully_connected(3), tp.switch(2))
    passed = way(mixed, 0, 2 + 4 * 2 + 12)
    assert [node for node in passed if node < mixed.npus] == [0, 1, 2, 10, 22]


def test_other_families_take_the_fewest_hops():
    topology = tp.dragonfly(3, 4)
    hops = dict(nx.all_pairs_shortest_path_length(graph(topology)))
    for src, dst in permutations(range(topology.npus), 2):
        assert len(way(topology, src, dst)) - 1 == hops[src][dst]


def test_a_pair_without_a_way_is_named():
    topology = tp.from_links(3, [(0, 1, 1e9, 0), (1, 0, 1e9, 0), (2, 0, 1e9, 0)], connected=False)
    with pytest.raises(InfeasibleError, match="npu 1 cannot reach npu 2"):
        routes(topology, pairs=([0, 1], [1, 2]))


def test_a_dead_link_is_gone_around():
    """A torus without its link 0 -> 1 has another route there, not in the order of dimensions."""
    whole = tp.torus(3, 3)
    ends = zip(whole.link_src.tolist(), whole.link_dst.tolist(), strict=True)
    links = [(a, b, 1e9, 0) for a, b in ends if (a, b) != (0, 1)]
    topology = tp.from_links(9, links, dims=whole.dims)
    assert len(way(topology, 0, 1)) == 3


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (([0], [4]), "NPU 4 is not one of 0 to 3"),  # node 4 is the switch
        (([-1], [0]), "NPU -1 is not one of 0 to 3"),
        (([2], [2]), "a route from NPU 2 to itself"),
        (([0, 1], [2]), "the numbers of sources and destinations must be equal"),
    ],
)
def test_wrong_pairs_are_refused(pairs, sentence):
    with pytest.raises(ValueError, match=sentence):
        routes(tp.switch(4), pairs=pairs)


# --- routes given by their links ----------------------------------------------------------------

UP, DOWN = [0, 1, 2, 3], [4, 5, 6, 7]  # the links of one_switch(): NPU i up and down


def one_switch(capability=""):
    """Four NPUs around one switch."""
    ends = [(i, 4) for i in range(4)] + [(4, i) for i in range(4)]
    return tp.from_links(4, [(a, b, 1e9, 0) for a, b in ends], switches=[capability])


def two_switches(first="", second=""):
    """0 and 1 at switch 4, 2 and 3 at switch 5; links 8 and 9 join the switches."""
    ends = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 0), (4, 1), (5, 2), (5, 3), (4, 5), (5, 4)]
    return tp.from_links(4, [(a, b, 1e9, 0) for a, b in ends], switches=[first, second])


def one(topology, links, kind="path"):
    return routes(topology, links=[links], kinds=kind)


def test_a_path_may_pass_npus_and_come_back():
    topology = tp.ring(3)
    table = one(topology, [0, 1, 2, 0])
    assert (table.sources(0), table.destinations(0)) == ([0], [1])


def test_a_path_must_be_connected():
    with pytest.raises(
        ValueError,
        match=r"route 1 is broken: link 3 \(npu 3 -> npu 0\) does not continue link 1 \(npu 1 -> npu 2\)",
    ):
        routes(tp.ring(4, bidirectional=False), links=[[0], [1, 3]])


def test_a_path_ends_only_at_npus_and_capable_switches():
    with pytest.raises(
        ValueError, match="route 0 ends at switch 0, which neither multicasts nor reduces"
    ):
        one(one_switch(), [UP[0]])
    with pytest.raises(ValueError, match="route 0 ends at switch 0"):
        one(one_switch(), [DOWN[0]])
    for capability in ("multicast", "reduce"):
        assert one(one_switch(capability), [UP[0]]).destinations(0) == [4]
        assert one(one_switch(capability), [DOWN[2]]).sources(0) == [4]


def test_a_multicast_tree():
    table = one(one_switch("multicast"), [UP[1], DOWN[0], DOWN[3]], "multicast")
    assert (table.sources(0), table.destinations(0)) == ([1], [0, 3])
    table = one(one_switch("multicast"), DOWN, "multicast")  # from the switch itself
    assert (table.sources(0), table.destinations(0)) == ([4], [0, 1, 2, 3])
    table = one(two_switches("multicast", "multicast"), [0, 5, 8, 6, 7], "multicast")
    assert (table.sources(0), table.destinations(0)) == ([0], [1, 2, 3])


def test_a_reduce_tree():
    table = one(one_switch("reduce"), [UP[0], UP[3], DOWN[1]], "reduce")
    assert (table.sources(0), table.destinations(0)) == ([0, 3], [1])
    table = one(one_switch("reduce"), UP, "reduce")  # into the switch itself
    assert (table.sources(0), table.destinations(0)) == ([0, 1, 2, 3], [4])
    table = one(two_switches("reduce", "reduce"), [2, 3, 9, 1, 4], "reduce")
    assert (sorted(table.sources(0)), table.destinations(0)) == ([1, 2, 3], [0])


@pytest.mark.parametrize("capability", ["", "reduce"])
def test_a_tree_branches_only_where_it_can(capability):
    with pytest.raises(ValueError, match="route 0 branches at switch 0, which cannot multicast"):
        one(one_switch(capability), [UP[0], DOWN[1], DOWN[2]], "multicast")
    assert one(one_switch(capability), [UP[0], DOWN[1]], "multicast").destinations(0) == [1]


@pytest.mark.parametrize("capability", ["", "multicast"])
def test_a_tree_joins_only_where_it_can(capability):
    with pytest.raises(ValueError, match="route 0 joins at switch 0, which cannot reduce"):
        one(one_switch(capability), [UP[0], UP[1], DOWN[2]], "reduce")


def test_each_switch_of_a_tree_needs_the_capability():
    with pytest.raises(ValueError, match="branches at switch 1, which cannot multicast"):
        one(two_switches("multicast", ""), [0, 5, 8, 6, 7], "multicast")
    # A switch that only forwards needs no capability.
    assert one(two_switches("multicast", ""), [0, 5, 8, 6], "multicast").destinations(0) == [1, 2]


def test_an_npu_neither_branches_nor_passes_a_tree_on():
    topology = tp.ring(4)
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    both_ways = [ends.index((0, 1)), ends.index((0, 3))]
    with pytest.raises(ValueError, match="route 0 branches at npu 0, which cannot multicast"):
        one(topology, both_ways, "multicast")
    chain = [ends.index((0, 1)), ends.index((1, 2))]
    with pytest.raises(
        ValueError, match="route 0 passes through npu 1; a tree passes only switches"
    ):
        one(topology, chain, "multicast")


def test_a_tree_must_be_a_tree():
    topology = two_switches("multicast+reduce", "multicast+reduce")
    with pytest.raises(ValueError, match=r"is not a tree: link 6 .* is not fed by an earlier link"):
        one(topology, [0, 6], "multicast")
    with pytest.raises(ValueError, match=r"is not a tree: link 6 .* is not fed by an earlier link"):
        one(topology, [0, 6, 8], "multicast")  # in the wrong order
    with pytest.raises(ValueError, match="is not a tree: it reaches switch 0 twice"):
        one(topology, [0, 8, 9], "multicast")
    with pytest.raises(ValueError, match="is not a tree: it reaches npu 0 twice"):
        one(topology, [0, 4], "multicast")
    with pytest.raises(ValueError, match="is not a tree"):
        one(topology, [2, 1, 4], "reduce")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"links": [[]]}, "route 0 has no link"),
        ({"links": [[8]]}, "a route names link 8, but the topology has 8 links"),
        ({"links": [[-1]]}, "a route names link -1"),
        (
            {"links": [[0, 4]], "kinds": "tree"},
            "kinds must be one of path, multicast, reduce",
        ),
        ({"links": [[0, 4]], "kinds": ["path"] * 2}, "for all routes or for each"),
        ({}, "routes\\(\\) takes either pairs or links"),
        ({"links": [[0, 4]], "pairs": ([0], [1])}, "routes\\(\\) takes either pairs or links"),
    ],
)
def test_wrong_tables_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        routes(one_switch("multicast"), **options)


@pytest.mark.parametrize(
    ("kinds", "begin", "sentence"),
    [
        ([0], [0, 1], "link_begin does not delimit their links"),
        ([0], [0], "link_begin does not delimit their links"),
        ([0], [1, 2], "link_begin does not delimit their links"),
        ([0, 0, 0], [0, 2, 1, 2], "link_begin does not delimit their links"),
        ([4], [0, 2], "route 0 has no known kind"),
    ],
)
def test_wrong_columns_are_refused(kinds, begin, sentence):
    with pytest.raises(ValueError, match=sentence):
        Routes(
            one_switch("multicast"),
            np.array(kinds, np.uint8),
            np.array(begin, np.int64),
            np.array([0, 4], np.int32),
        )


def test_no_such_route():
    table = one(one_switch(), [UP[0], DOWN[1]])
    for route in (-1, 1):
        with pytest.raises(IndexError, match="no such route"):
            table.sources(route)


def test_columns_are_read_only():
    table = routes(tp.ring(3), pairs=([0], [2]))
    with pytest.raises(ValueError, match="read-only"):
        table.links[0] = 0
