"""Justification: the same transfers at other times, never later, and with the same sums."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos._core import justify
from tacos.errors import InfeasibleError
from tests.support.strategies import topologies

KINDS = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"]
ENGINES = ["greedy", "ring", "direct", "one-shot", "exchange", "leaders", "forest"]


def moved(schedule):
    """Count the transfers of a schedule, whatever their times are."""
    rows = schedule.rows()
    names = ("src", "dst", "chunk", "op", "reads")
    return Counter(zip(*(rows[name].tolist() for name in names), strict=True))


def test_the_same_transfers_are_never_later_and_always_right():
    done: Counter[bool] = Counter()

    @settings(max_examples=80, derandomize=True)  # the same ones every time, since they are counted
    @given(st.data())
    def check(data):
        topology = data.draw(topologies())
        kind = data.draw(st.sampled_from(KINDS))
        chunks = data.draw(st.integers(1, 3))
        collective = tacos.collective.named(kind, topology, 997, chunks=chunks)
        engine = data.draw(st.sampled_from(ENGINES))
        try:
            before = tacos.synthesize(topology, collective, engine=engine)
            after = justify(before)
        except (InfeasibleError, ValueError):
            done[False] += 1  # an engine that does not apply, or routes of several legs
            return
        done[True] += 1
        assert after.time_ps < before.time_ps or after == before
        assert tacos.verify(after).ok
        assert moved(after) == moved(before)
        assert after == justify(before)

    check()
    assert done[True] > 0.25 * done.total()


def on_a_line(messages, hops, **order):
    """Messages of 1 KB on a line of three NPUs, over 1 GB/s without latency: 1 us per hop."""
    network = tacos.topology.mesh(3, bandwidth="1GB/s", latency=0)
    collective = tacos.collective.send_recv(
        network, [(*ends, "1KB") for ends in messages], chunks=1
    )
    return tacos.retime(collective, tacos.routes(network, pairs=hops), **order)


def test_what_has_a_long_way_to_go_comes_first():
    """In the given order the message for NPU 2 leaves last: it is at NPU 1 after 3 us, and at NPU 2 after 4 us.

    If it leaves first, it is at NPU 2 after 2 us, and the others are at NPU 1 after 2 and 3 us.
    """
    before = on_a_line(
        [(0, 1), (0, 1), (0, 2)],
        [[0, 1], [1, 2]],
        route=[0, 0, 0, 1],
        chunk=[0, 1, 2, 2],
        step=[0, 1, 2, 3],
        reads=[0, 0, 0, 1],
    )
    assert before.time_ps == 4_000_000
    after = justify(before)
    assert after.time_ps == 3_000_000
    assert tacos.verify(after).ok


@pytest.mark.parametrize("late", [0, 1])
def test_a_sum_that_was_not_read_stays_unread(late):
    """Two NPUs exchange inputs of one byte over 1 MB/s and 1 us, so each must send before the other's input arrives.

    Here one of them sends 1 us after the other, just in time, and the schedule takes 3 us. Both can send at 0, and
    neither may wait for the sum.
    """
    pair = tacos.topology.mesh(2, bandwidth="1MB/s", latency="1us")
    collective = tacos.collective.all_reduce(pair, "1B", chunks=1)
    table = tacos.routes(pair, pairs=[[0, 1], [1, 0]])
    start = np.array([0, 0], np.uint32)
    start[late] = 1
    before = tacos.Schedule(
        collective=collective,
        routes=table,
        lane_route=np.array([0, 1], np.int32),
        lane_op=np.array([1, 1], np.uint8),
        lane_reads=np.array([1, 1], np.uint8),
        lane_begin=np.array([0, 1, 2]),
        chunk=np.array([0, 0], np.uint32),
        start=start,
        quantum_ps=1_000_000,
    )
    assert tacos.verify(before).ok
    assert before.time_ps == 3_000_000
    after = justify(before)
    assert after.time_ps == 2_000_000
    assert tacos.verify(after).ok


def test_trees_of_a_mesh_gain():
    """The trees fill all links, so only the order of transfers is left to improve."""
    mesh = tacos.topology.mesh(4, 4, bandwidth="1GB/s", latency="500ns")
    collective = tacos.collective.all_reduce(mesh, "16KB", chunks=16)
    before = tacos.synthesize(mesh, collective, engine="forest")
    after = justify(before)
    assert after.time_ps < 0.96 * before.time_ps
    assert tacos.verify(after).ok


def test_schedules_without_times_of_their_own_are_refused():
    line_of_four = tacos.topology.mesh(4)
    collective = tacos.collective.all_gather(line_of_four, "4MB")
    waits = tacos.synthesize(line_of_four, collective, engine="direct")
    with pytest.raises(InfeasibleError, match="paths of one leg"):
        justify(waits)
    slow = tacos.topology.ring(4, reduce_bandwidth="1GB/s")
    sums = tacos.synthesize(slow, tacos.collective.reduce_scatter(slow, "4KB"), engine="ring")
    with pytest.raises(InfeasibleError, match="sums that take time"):
        justify(sums)
