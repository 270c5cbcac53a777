"""Double binary trees and C-Cube: the layout, and the times of chunks that follow each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos._core import lay_out_trees
from tacos.schedule import routes
from tacos.synth import ENGINES
from tacos.synth.baselines import block_trees

c_cube, double_binary_tree = ENGINES["c-cube"], ENGINES["double-binary-tree"]
BLOCKING: dict[str, Any] = {"bandwidth": "1GB/s", "latency": "1us", "link_model": "blocking"}


def layout(topology, place, *, trials, fixed_root=False):
    """Return the ranks at the places of two trees of all NPUs, and how many edges use each link."""
    n = topology.npus
    everybody = np.arange(n)
    dst = np.tile(everybody, n)
    dst[:: n + 1] = np.roll(everybody, 1)
    table = routes(topology, pairs=(np.repeat(everybody, n), dst))
    parent = block_trees.tree_parents(n)
    weight = np.ones(topology.links, np.int64)
    found = lay_out_trees(
        parent, place.astype(np.int32), table, weight, fixed_root=fixed_root, trials=trials
    )
    load = np.zeros(topology.links, int)
    for ranks in found.reshape(2, n):
        below, above = ranks[1:], ranks[parent[1:]]
        for r in np.concatenate([below * n + above, above * n + below]):
            load[table.links[table.link_begin[r] : table.link_begin[r + 1]]] += 1
    return found.reshape(2, n), load


def test_a_clique_has_a_link_for_every_edge():
    """In rank order with one tree a step behind the other, edges share links; they need not."""
    place = np.concatenate([np.arange(8), [0], np.roll(np.arange(1, 8), -1)])
    _, before = layout(tp.fully_connected(8), place, trials=0)
    _, after = layout(tp.fully_connected(8), place, trials=2**14)
    assert (before.max(), after.max()) == (2, 1)


@given(st.data())
def test_layouts_are_permutations(data):
    sizes = data.draw(st.lists(st.integers(2, 3), min_size=1, max_size=3))
    topology = tp.mesh(*sizes)
    start = [data.draw(st.permutations(range(topology.npus))) for _ in range(2)]
    place = np.array(start).ravel()
    fixed = data.draw(st.booleans())
    found, load = layout(topology, place, trials=data.draw(st.integers(0, 2000)), fixed_root=fixed)
    assert all(sorted(ranks) == list(range(topology.npus)) for ranks in found)
    if fixed:
        assert [ranks[0] for ranks in found] == [ranks[0] for ranks in start]
    again, _ = layout(topology, found.ravel(), trials=0)
    assert (again == found).all()
    _, before = layout(topology, place, trials=0)
    assert (load**3).sum() <= (before**3).sum()  # what the search minimizes


def test_sums_go_down_while_others_come_up():
    """Eight NPUs, trees of three levels, 32 chunks on each; a hop takes 1 us + 1 us.

    The last chunk of 32 leaves its leaf after 31 hops and goes three up and three down. Without
    the overlap a reduction and a broadcast follow each other: 34 hops each.
    """
    topology = tp.fully_connected(8, **BLOCKING)
    schedule = c_cube(topology, co.all_reduce(topology, "64KB", chunks=8))
    assert tacos.verify(schedule).ok
    assert schedule.time_ps == (2 * 3 + 32 - 1) * 2 * 10**6
    for kind in ("reduce", "broadcast"):
        half = c_cube(topology, co.named(kind, topology, "64KB", chunks=64))
        assert tacos.verify(half).ok
        assert half.time_ps == (3 + 32 - 1) * 2 * 10**6


def test_a_dgx1_has_room_for_both_trees():
    """The layout is far better than rank order, and near what one link needs for half the data."""
    topology = tp.dgx1(latency=0)
    collective = co.all_reduce(topology, "64MB", chunks=16)
    found, in_rank_order = c_cube(topology, collective), double_binary_tree(topology, collective)
    assert tacos.verify(found).ok
    assert found.time_ps < 0.55 * in_rank_order.time_ps
    assert found.time_s < 1.1 * 32e6 / 25e9


@pytest.mark.parametrize("name", ["c-cube", "double-binary-tree"])
def test_an_open_number_of_chunks_follows_the_size(name):
    """Depth 8, 1 us: 64 MB at 1 GB/s are best cut into 2·√(8 · 32 ms / 1 us), about 1010 pieces."""
    topology = tp.fully_connected(8, bandwidth="1GB/s", latency="1us")
    sizes = {"8KB": 1, "64MB": 1010 // 8}
    for size, chunks in sizes.items():
        schedule = ENGINES[name](topology, co.all_reduce(topology, size))
        assert schedule.collective.parts[0].chunks == chunks
        assert tacos.verify(schedule).ok


def test_layouts_refuse_what_does_not_fit():
    topology = tp.ring(3)
    with pytest.raises(ValueError, match="a tree layout needs a parent and a rank for each place"):
        layout(topology, np.arange(5), trials=1)
