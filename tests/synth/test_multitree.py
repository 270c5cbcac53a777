"""MultiTree: trees without contention, step by step, and the times that follow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos._core import multitree as grow
from tacos.synth import ENGINES, applicable
from tests.support.strategies import quick_topologies

multitree = ENGINES["multitree"]
KINDS = ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce"]


def steps(topology, kind, *, chunks=1, **options):
    """Time in hops of one chunk of 1 KB over 1 GB/s and 1 us, 2 us each under `blocking`."""
    size = 1000 * chunks * (1 if kind in ("broadcast", "reduce") else topology.npus)
    schedule = multitree(topology, co.named(kind, topology, size, chunks=chunks), **options)
    tacos.verify(schedule).raise_if_failed()
    return schedule.time_ps / (2 * 10**6)


def blocking(build, *sizes):
    return build(*sizes, bandwidth="1GB/s", latency="1us", link_model="blocking")


def forest(topology):
    """Return the trees of an all-gather: routes, and the tree, step and route of each edge."""
    n = topology.npus
    everybody = np.tile(np.arange(n, dtype=np.int32), n)
    return grow(topology, everybody[:n], np.arange(n + 1) * n, everybody)


@given(st.data())
def test_trees_span_without_contention(data):
    """Each NPU joins each tree once, after its parent did; no link is used twice in one step."""
    topology = data.draw(quick_topologies())
    routes, tree, step, route = forest(topology)
    n = topology.npus
    joined = {(root, root): -1 for root in range(n)}
    used = set()
    for t, s, r in zip(tree.tolist(), step.tolist(), route.tolist(), strict=True):
        (src,), (dst,) = routes.sources(r), routes.destinations(r)
        assert joined[t, src] < s
        assert (t, dst) not in joined
        joined[t, dst] = s
        for link in routes.links[routes.link_begin[r] : routes.link_begin[r + 1]].tolist():
            assert (s, link) not in used
            used.add((s, link))
    assert len(joined) == n * n


def test_what_cannot_be_reached_is_named():
    topology = tp.from_links(3, [(0, 1, 1e9, 0), (1, 0, 1e9, 0), (2, 0, 1e9, 0)], connected=False)
    with pytest.raises(tacos.InfeasibleError, match="npu 0 cannot reach npu 2"):
        multitree(topology, co.all_gather(topology, "3KB", chunks=1))


def test_by_hand_on_a_ring_of_four():
    """Step 0: every root reaches both neighbours, all 8 links are taken. Step 1: tree 1 begins; all
    add the NPU opposite through the neighbour that joined first, the next one ahead.
    """
    routes, tree, step, route = forest(tp.ring(4))
    ends = [(routes.sources(r)[0], routes.destinations(r)[0]) for r in route.tolist()]
    edges = list(zip(step.tolist(), tree.tolist(), ends, strict=True))
    assert edges[:4] == [(0, t, (t, (t + 1) % 4)) for t in range(4)]
    assert edges[4:8] == [(0, t, (t, (t + 3) % 4)) for t in range(4)]
    assert edges[8:] == [(1, t, ((t + 1) % 4, (t + 2) % 4)) for t in (1, 2, 3, 0)]


@pytest.mark.parametrize(
    ("topology", "fewest"),
    [
        (blocking(tp.torus, 4, 4), 4),  # 15 chunks over 4 links
        (blocking(tp.torus, 8, 8), 16),
        (blocking(tp.mesh, 4, 4), 8),  # 15 over the 2 links of a corner
        (blocking(tp.hypercube, 4), 4),
        (blocking(tp.fully_connected, 6), 1),
        (blocking(tp.ring, 7), 3),
    ],
)
def test_all_links_work_nearly_all_the_time(topology, fewest):
    for kind in ("all_gather", "reduce_scatter"):
        assert fewest <= steps(topology, kind) <= fewest + 2
    assert 2 * fewest <= steps(topology, "all_reduce") <= 2 * fewest + 4


def test_a_switch_takes_one_message_per_port_and_step():
    """Eight NPUs: seven chunks through each port. Cut through: 1 us more for the second link."""
    assert steps(blocking(tp.switch, 8), "all_gather") == 7.5


def test_broadcasts_are_as_deep_as_the_network():
    """From a corner of 4 x 3 the farthest is 5 hops away, with two chunks one more."""
    topology = blocking(tp.mesh, 4, 3)
    assert steps(topology, "broadcast") == steps(topology, "reduce") == 5
    assert steps(topology, "broadcast", chunks=2) == 6


def test_sums_go_with_the_links_of_a_one_way_ring():
    topology = tp.ring(
        5, bidirectional=False, bandwidth="1GB/s", latency="1us", link_model="blocking"
    )
    assert steps(topology, "all_gather") == steps(topology, "reduce_scatter") == 4


@given(st.data())
def test_right_on_groups_and_uneven_sizes(data):
    topology = tp.mesh(3, 3)
    kind = data.draw(st.sampled_from(KINDS))
    group = data.draw(st.permutations(range(9)))[: data.draw(st.integers(1, 9))]
    size = data.draw(st.sampled_from([1, 7, 1001]))
    collective = co.named(kind, topology, size, group=group, chunks=data.draw(st.integers(1, 3)))
    assert tacos.verify(multitree(topology, collective)).ok


def test_roots_are_where_sums_are_made():
    """With roots 0 and 3 of a ring of four, no other NPU is the first to send a complete sum."""
    topology = blocking(tp.ring, 4)
    collective = co.all_reduce(topology, 4000, chunks=1)
    schedule = multitree(topology, collective, roots=[0, 3])
    assert tacos.verify(schedule).ok
    assert schedule.provenance["roots"] == [0, 3]
    rows = schedule.rows()
    spread = rows["op"] == 0
    sums = {int(c): set(rows["src"][spread & (rows["chunk"] == c)]) for c in range(4)}
    ends = {int(c): set(rows["dst"][spread & (rows["chunk"] == c)]) for c in range(4)}
    assert [sums[c] - ends[c] for c in range(4)] == [{0}, {3}, {0}, {3}]


def test_refusals():
    ring = tp.ring(4)
    coll = co.all_reduce(ring, "1MB", chunks=1)
    for roots in ([], [0, 0], [7]):
        with pytest.raises(ValueError, match=r"^roots is "):
            multitree(ring, coll, roots=roots)
    with pytest.raises(ValueError, match=r"roots are for an all-reduce, not for all-gather"):
        multitree(ring, co.all_gather(ring, "1MB", chunks=1), roots=[0])
    with pytest.raises(ValueError, match=r"multitree needs all-gather or .*, not all-to-all"):
        multitree(ring, co.all_to_all(ring, "1MB"))
    large = tp.ring(1025)
    assert "multitree" not in applicable(large, co.all_gather(large, "1MB"))
    with pytest.raises(ValueError, match="at most 1024 NPUs, not 1025"):
        multitree(large, co.all_gather(large, "1MB"))
