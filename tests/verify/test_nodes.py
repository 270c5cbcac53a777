"""Chunks that are proven node by node: copies to all and sums over all, correct and with a few rows changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import COPY, READ_ACC, REDUCE, routes
from tests.support.schedules import US, broken_rules, line, mutate, packed
from tests.verify.test_oracle import comparable, found_wrongs, true_wrongs

NETWORKS = {
    "ring": tp.ring(4, bandwidth="1GB/s", latency="1us"),
    "torus": tp.torus(3, 3, bandwidth="1GB/s", latency="0ns"),
    "mesh": tp.mesh(2, 3, bandwidth=["1GB/s", "3GB/s"], latency="1us"),
    "slow sums": tp.ring(5, bandwidth="1GB/s", latency="1us", reduce_bandwidth="1GB/s"),
}


@pytest.mark.parametrize("network", NETWORKS)
@given(kind=st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]), data=st.data())
def test_the_oracle_agrees_where_all_nodes_take_part(network, kind, data):
    topology = NETWORKS[network]
    collective = co.named(
        kind, topology, 100 * topology.npus + data.draw(st.sampled_from([0, 1])), chunks=1
    )
    schedule = mutate(
        data.draw, tacos.synthesize(topology, collective, engine="greedy", verify=False)
    )
    assert comparable(found_wrongs(schedule)) == comparable(true_wrongs(schedule))


def summed(back):
    """Parts of NPUs 0 and 2 reach NPU 1 after 2 us; the sum goes back at times `back` and arrives 2 us later."""
    topology = line()
    collective = co.custom(topology, [1000], before=[[0, 1, 2]], after=[[0, 1, 2]], reduces=[True])
    table = routes(topology, pairs=([0, 2, 1, 1], [1, 1, 0, 2]))
    parts = [(route, 0, REDUCE, READ_ACC, [0]) for route in (0, 1)]
    return packed(
        collective, table, [*parts, *((2 + i, 0, COPY, READ_ACC, [t]) for i, t in enumerate(back))]
    )


def test_a_sum_may_leave_the_moment_its_last_part_is_there():
    assert broken_rules(summed([2 * US, 2 * US])) == set()


def test_a_sum_that_leaves_a_moment_too_early_lacks_a_part():
    assert "contribution" in broken_rules(summed([2 * US, 2 * US - 1]))


def test_a_sum_that_arrives_before_the_part_has_left_is_overwritten():
    """NPU 0 sends its part to 1 only after the sum of the others has come back and overwritten it."""
    topology = line(2)
    collective = co.custom(topology, [1000], before=[[0, 1]], after=[[0, 1]], reduces=[True])
    table = routes(topology, pairs=([0, 1], [1, 0]))
    crossing = [(1, 0, COPY, READ_ACC, [0]), (0, 0, REDUCE, READ_ACC, [2 * US])]
    assert "contribution" in broken_rules(packed(collective, table, crossing))


def test_two_that_keep_their_sums_are_not_one_sum():
    """In a line of four, 0 adds to 1 and 3 to 2: two sums of two, neither of which is copied."""
    topology = line(4)
    collective = co.custom(topology, [1000], before=[[0, 1, 2, 3]], after=[[1]], reduces=[True])
    table = routes(topology, pairs=([0, 3], [1, 2]))
    rows = [(route, 0, REDUCE, READ_ACC, [0]) for route in (0, 1)]
    assert "contribution" in broken_rules(packed(collective, table, rows))
