"""Runs that follow the schedule need no events and find the event loop's times; others are left to the event loop."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import _core
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import COPY, READ_ACC, routes
from tacos.simulate import _lane_routes
from tests.support.schedules import US, line, mutate, packed, relay
from tests.support.strategies import models, orders

KINDS = ["all_gather", "broadcast", "scatter"]
TORUS = tp.torus(4, 4, link_model="blocking")


def seen(schedule):
    """Return what is found without a run, or None."""
    return _core.unchanged_run(schedule, _lane_routes(schedule, None))


def assert_as_in_a_run(schedule):
    """Compare what is found without a run with runs; return whether it was found."""
    found = seen(schedule)
    if found is None:
        return False
    for timing in ("first-come", "order", "schedule"):
        run = tacos.simulate(schedule, timing=timing)
        assert found["npu_finish_ps"].tolist() == run.npu_finish_ps.tolist()
        assert found["link_busy_ps"].tolist() == run.link_busy_ps.tolist()
    return True


@given(order=orders(), data=st.data())
def test_what_is_seen_is_what_a_run_finds(order, data):
    assert_as_in_a_run(order.retimed())
    changed = mutate(data.draw, order.retimed())
    if tacos.verify(changed, allow_unneeded=True).ok:
        assert_as_in_a_run(changed)


def test_copies_over_single_links_are_mostly_seen():
    found: Counter[bool] = Counter()

    @given(side=st.integers(2, 4), kind=st.sampled_from(KINDS), model=models(), data=st.data())
    @settings(
        max_examples=50, derandomize=True
    )  # the same examples every time, since they are counted
    def look(side, kind, model, data):
        network = tp.mesh(side, 3, **model)
        gather = co.named(kind, network, data.draw(st.sampled_from([997, 10**6])), chunks=1)
        schedule = tacos.synthesize(network, gather, engine="greedy").expand()
        found[assert_as_in_a_run(schedule)] += 1
        changed = mutate(data.draw, schedule)
        if tacos.verify(changed, allow_unneeded=True).ok:
            assert_as_in_a_run(changed)

    look()
    assert found[True] > 0.8 * found.total()


@pytest.mark.parametrize("engine", ["greedy", "ring", "multitree"])
def test_synthesized_schedules_need_no_memory(engine):
    schedule = tacos.synthesize(
        TORUS, co.all_gather(TORUS, "1MB", chunks=1), engine=engine
    ).expand()
    assert seen(schedule) is not None
    assert_as_in_a_run(schedule)
    trace = tacos.simulate(schedule, record=False, memory_limit="1KB")
    assert trace.time_ps == schedule.time_ps


def test_a_transfer_that_could_start_earlier_does_so_in_a_run():
    schedule = relay(3 * US)  # the chunk arrives after 2 us
    assert seen(schedule) is None
    assert tacos.simulate(schedule, record=False).time_ps == 4 * US


def test_a_link_that_keeps_what_came_first_waiting_is_left_to_a_run():
    """NPU 1 has chunk 1 from the start, but sends chunk 0 first, which it has to wait for: a run sends chunk 1 first."""
    topology = line()
    collective = co.custom(topology, [1000, 1000], before=[[0], [1]], after=[[1, 2], [2]])
    table = routes(topology, pairs=([0, 1], [1, 2]))
    # Chunk 0 is at NPU 1 after 2 us; chunk 1, there from the start, leaves only then, behind it.
    rows = [
        (0, 0, COPY, READ_ACC, [0]),
        (1, 0, COPY, READ_ACC, [2 * US]),
        (1, 1, COPY, READ_ACC, [3 * US]),
    ]
    late = packed(collective, table, rows)
    assert tacos.verify(late).ok
    assert seen(late) is None
    run = tacos.simulate(late, record=False)
    assert run.time_ps < late.time_ps
    assert np.array_equal(run.npu_finish_ps, tacos.simulate(late).npu_finish_ps)
