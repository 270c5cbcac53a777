"""Regular networks, built by size: their links and their symmetry."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacos import topology as tp
from tacos.topology.links import model_of
from tests.support.links import GB, graph, link_ends, speeds
from tests.support.strategies import built_topologies, random_topologies, topologies

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
    """networkx does not distinguish the wrap-around link of a dimension of 2 from its other link."""
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
    if model_of(a) != model_of(b):
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


def check_symmetry(topology):
    """Check that translating the coordinates maps the links onto themselves.

    A switch is identified by the NPUs around it, since no symmetric network joins switches.
    """
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


def test_what_is_called_symmetric_is():
    done: Counter[bool] = Counter()

    @given(built_topologies())
    @settings(max_examples=60, derandomize=True)  # the same ones every time, since they are counted
    def check(topology):
        done[topology.symmetric] += 1
        if topology.symmetric:
            check_symmetry(topology)

    check()
    assert done[True] > 0.3 * done.total()


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
