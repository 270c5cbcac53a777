"""All rules on routes that multicast or reduce in switches: cases by hand."""

from __future__ import annotations

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import COPY, READ_ACC, REDUCE, retime, routes
from tests.support import oracle
from tests.support.schedules import (
    US,
    broken_rules,
    packed,
)

SHARP = {"multicast": True, "reduce": True, "bandwidth": "1GB/s", "latency": "1us"}


def ports(topology):
    """Per NPU of a single switch its link up and its link down."""
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    switch = topology.npus
    return (
        [ends.index((npu, switch)) for npu in range(topology.npus)],
        [ends.index((switch, npu)) for npu in range(topology.npus)],
    )


@pytest.mark.parametrize("model", ["pipelined", "blocking"])
@pytest.mark.parametrize("forwarding", ["cut_through", "store_and_forward"])
def test_all_reduce_in_the_switch_is_right(model, forwarding):
    """Up to the switch, where all inputs join, and from there to all NPUs."""
    topology = tp.switch(4, link_model=model, forwarding=forwarding, **SHARP)
    up, down = ports(topology)
    collective = co.all_reduce(topology, 4000, chunks=1)
    table = routes(topology, links=[up, down], kinds=["reduce", "multicast"])
    schedule = retime(
        collective,
        table,
        route=[0] * 4 + [1] * 4,
        chunk=[*range(4)] * 2,
        step=[0] * 4 + [1] * 4,
        op=[REDUCE] * 4 + [COPY] * 4,
    )
    assert tacos.verify(schedule).ok
    assert oracle.examine(schedule) == set()
    # Up and down 1 us + 1 us each for the first chunk, then a link's busy time per chunk.
    busy = {"pipelined": 1, "blocking": 2}[model]
    assert schedule.time_ps == (4 + 3 * busy) * US


@pytest.mark.parametrize("owner", [0, 2])
def test_all_reduce_through_an_npu_is_right(owner):
    """The others' inputs join in the switch on their way to the owner, which multicasts the sum."""
    topology = tp.switch(4, **SHARP)
    up, down = ports(topology)
    others = [npu for npu in range(4) if npu != owner]
    collective = co.custom(topology, [1000], [range(4)], [range(4)], reduces=True)
    trees = [[*(up[i] for i in others), down[owner]], [up[owner], *(down[i] for i in others)]]
    table = routes(topology, links=trees, kinds=["reduce", "multicast"])
    schedule = retime(collective, table, route=[0, 1], chunk=0, step=[0, 1], op=[REDUCE, COPY])
    assert tacos.verify(schedule).ok
    assert schedule.time_ps == 6 * US  # twice 2 us of latency and 1 us of sending
    early = [(0, 0, REDUCE, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [3 * US - 1])]
    assert broken_rules(packed(collective, table, early)) == {"contribution"}


def test_a_switch_that_stores_passes_on_whole_chunks():
    """Up 1 + 1 us and down 1 + 1 us, so that the tree takes 4 us, not the 3 of cut-through."""
    topology = tp.switch(3, forwarding="store_and_forward", **SHARP)
    up, down = ports(topology)
    collective = co.custom(topology, [1000], [range(3)], [range(3)], reduces=True)
    table = routes(
        topology,
        links=[[up[1], up[2], down[0]], [up[0], down[1], down[2]]],
        kinds=["reduce", "multicast"],
    )

    def down_at(start):
        rows = [(0, 0, REDUCE, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [start])]
        return packed(collective, table, rows)

    assert tacos.verify(down_at(4 * US)).ok
    assert down_at(4 * US).time_ps == 8 * US
    assert broken_rules(down_at(4 * US - 1)) == {"contribution"}


def test_each_end_of_a_multicast_has_its_own_arrival():
    """Switch to NPU 1 takes 1 us, to NPU 2 it takes 5 us; both then send on as soon as they can."""
    up = [(0, 4, "1GB/s", "1us"), (4, 1, "1GB/s", "1us"), (4, 2, "1GB/s", "5us")]
    more = [(1, 3, "1GB/s", "1us"), (2, 3, "1GB/s", "1us"), (3, 0, "1GB/s", "1us")]
    topology = tp.from_links(4, up + more, switches=["multicast"])
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, links=[[0, 1, 2], [3], [4]], kinds=["multicast", "path", "path"])

    def then(route, start):
        rows = [(0, 0, COPY, READ_ACC, [0]), (route, 0, COPY, READ_ACC, [start])]
        return packed(collective, table, rows)

    assert tacos.verify(then(1, 3 * US)).ok
    assert broken_rules(then(1, 3 * US - 1)) == {"causality"}
    assert tacos.verify(then(2, 7 * US)).ok
    assert broken_rules(then(2, 7 * US - 1)) == {"causality"}


def test_a_link_of_a_tree_is_busy_once_and_shared_with_paths():
    topology = tp.switch(3, **SHARP)
    up, down = ports(topology)
    collective = co.custom(topology, [1000, 1000], [[0], [1]], [[1, 2], [2]])
    table = routes(
        topology, links=[[up[0], down[1], down[2]], [up[1], down[2]]], kinds=["multicast", "path"]
    )

    def both(second):
        rows = [(0, 0, COPY, READ_ACC, [0]), (1, 1, COPY, READ_ACC, [second])]
        return packed(collective, table, rows)

    assert tacos.verify(both(1 * US)).ok
    (violation,) = tacos.verify(both(1 * US - 1)).violations
    assert (violation.rule, violation.link) == ("capacity", down[2])


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_sum_in_the_switch_waits_for_its_last_input(slow):
    """One of three links up takes 5 us: the sum is there after 6 us, whichever it is."""
    ups = [(i, 3, "1GB/s", "5us" if i == slow else "1us") for i in range(3)]
    downs = [(3, i, "1GB/s", "1us") for i in range(3)]
    topology = tp.from_links(3, ups + downs, switches=["multicast+reduce"])
    collective = co.custom(topology, [1000], [range(3)], [range(3)], reduces=True)
    table = routes(topology, links=[[0, 1, 2], [3, 4, 5]], kinds=["reduce", "multicast"])

    def down_at(start):
        rows = [(0, 0, REDUCE, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [start])]
        return packed(collective, table, rows)

    early = broken_rules(down_at(6 * US - 1))
    on_time = broken_rules(down_at(6 * US))
    retimed = retime(collective, table, route=[0, 1], chunk=0, step=[0, 1], op=[REDUCE, COPY])
    assert "causality" in early
    assert on_time == set()
    assert retimed.time_ps == 8 * US


def test_a_copy_left_in_a_switch_is_unneeded():
    topology = tp.switch(2, **SHARP)
    up, down = ports(topology)
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, links=[[up[0], down[1]], [up[0]]])
    rows = [(0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [1 * US])]
    assert broken_rules(packed(collective, table, rows)) == {"unneeded"}


@pytest.mark.parametrize("wanted", [[0, 1, 2], [1, 2]])
def test_a_multicast_is_needed_if_one_of_its_ends_needs_it(wanted):
    topology = tp.switch(3, **SHARP)
    up, down = ports(topology)
    collective = co.custom(topology, [1000], [[0]], [wanted])
    table = routes(
        topology, links=[[up[0], down[1]], [up[0], down[1], down[2]]], kinds=["path", "multicast"]
    )
    rows = [(0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [1 * US])]
    assert tacos.verify(packed(collective, table, rows)).ok
