"""Timing in one sweep finds the event loop's times; orders that it would change are left to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import _core
from tacos import collective as co
from tacos import topology as tp
from tacos.errors import InfeasibleError
from tacos.schedule import COPY, READ_ACC, REDUCE, routes
from tests.support import oracle
from tests.support.schedules import US
from tests.support.strategies import Order, orders, random_topologies

SEEDED = settings(max_examples=80, derandomize=True)
"""The same examples in every run, since the tests count how many of them are swept."""
SPEED = {"bandwidth": "1GB/s", "latency": "1us"}


def share(taken):
    return taken[True] / taken.total()


def timed(order, sweep):
    """Time an order in one sweep (True), by the event loop (False) or either (None); None if refused."""
    route, chunk, step, op, reads = np.array(order.rows, np.int64).reshape(-1, 5).T.copy()
    try:
        return _core.retime(
            order.collective,
            order.routes,
            route.astype(np.int32),
            chunk.astype(np.uint32),
            step.astype(np.int32),
            op.astype(np.uint8),
            reads.astype(np.uint8),
            sweep=sweep,
        )
    except InfeasibleError:
        return None


def order_of(schedule):
    """Return the transfers of a schedule in the order of their starts, with one step per start time."""
    route = np.repeat(schedule.lane_route, np.diff(schedule.lane_begin)).tolist()
    rows = [
        (r, t.chunk, t.starts[0] // schedule.quantum_ps, t.op, t.reads)
        for r, t in zip(route, oracle.transfers_of(schedule), strict=True)
    ]
    return Order(schedule.collective, schedule.routes, sorted(rows, key=lambda row: row[2]))


def compare(taken, order):
    """Compare a sweep with the event loop; count in `taken` whether there is one. Return the event loop's schedule."""
    swept, expected = timed(order, True), timed(order, False)
    assert swept in (None, expected)
    assert timed(order, None) == expected
    if expected is not None and expected.transfers:
        taken[swept is not None] += 1
    return expected


def test_a_sweep_finds_what_the_event_loop_finds():
    listed: Counter[bool] = Counter()
    sorted_: Counter[bool] = Counter()

    @given(orders())
    @SEEDED
    def sweep(order):
        expected = compare(listed, order)
        compare(sorted_, order_of(expected))

    sweep()
    assert share(listed) > 0.4
    assert share(sorted_) > 0.4


def test_slow_networks_too():
    """Starts beyond 32 bits are rounded."""
    taken: Counter[bool] = Counter()

    @given(orders(random_topologies(max_npus=4), max_chunks=2))
    @SEEDED
    def sweep(order):
        compare(taken, order)

    sweep()
    assert share(taken) > 0.4


def test_lists_that_are_no_way_to_run_anything():
    """Random steps, operations and sources: sums and copies follow each other in any order."""
    taken: Counter[bool] = Counter()

    @given(order=orders(), seed=st.integers(0, 99))
    @SEEDED
    def sweep(order, seed):
        draw = np.random.default_rng(seed)
        rows = [
            (r, c, int(draw.integers(4)), int(draw.integers(2)), int(draw.integers(2)))
            for r, c, _, _, _ in order.rows
        ]
        compare(taken, replace(order, rows=rows))

    sweep()
    assert share(taken) > 0.2


@pytest.mark.parametrize(
    ("topology", "kind", "engine"),
    [
        (tp.torus(4, 4), "all_gather", "greedy"),
        (tp.fully_connected(5, link_model="blocking"), "all_to_all", "direct"),
        (tp.mesh(3, 3), "all_gather", "greedy"),
        (tp.ring(6), "all_reduce", "ring"),
        (tp.switch(6), "all_gather", "ring"),
        (tp.dgx_a100(2), "all_gather", "ring"),
    ],
    ids=str,
)
@pytest.mark.parametrize("each", [10**4, 10**4 + 7, 10**11 + 3], ids=["even", "odd", "hours"])
def test_synthesized_orders_take_one_sweep(topology, kind, engine, each):
    """Starts with a common unit, without one, and beyond 32 bits."""
    squared = topology.npus**2
    schedule = tacos.synthesize(
        topology, co.named(kind, topology, 10**4 * squared, chunks=1), engine=engine
    ).expand()
    order = order_of(schedule)
    order = replace(order, collective=co.named(kind, topology, each * squared, chunks=1))
    swept = timed(order, True)
    assert swept is not None
    assert swept == timed(order, False)


def test_what_is_ready_first_overtakes():
    """Chunk 0 is listed first on the second link but arrives there after 2 us; chunk 1 is there from the start."""
    topology = tp.mesh(3, **SPEED)
    collective = co.custom(topology, [1000, 1000], before=[[0], [1]], after=[[1, 2], [2]])
    table = routes(topology, pairs=([0, 1], [1, 2]))
    rows = [(0, 0, 0, COPY, READ_ACC), (1, 0, 1, COPY, READ_ACC), (1, 1, 1, COPY, READ_ACC)]
    assert timed(Order(collective, table, rows), True) is None
    assert timed(Order(collective, table, rows), None).time_ps == 4 * US
    in_time = Order(collective, table, [rows[2], *rows[:2]])
    assert timed(in_time, True) == timed(in_time, False)


def test_a_leg_that_waits_for_another_link_is_overtaken():
    """Two messages leave the switch over one link; the one listed first waits for its own first link."""
    topology = tp.switch(3, **SPEED)
    collective = co.send_recv(topology, [(0, 1, 9000), (0, 2, 1000), (1, 2, 1000)], chunks=1)
    table = routes(topology, pairs=([0, 0, 1], [1, 2, 2]))
    rows = [(i, i, 0, COPY, READ_ACC) for i in range(3)]
    assert timed(Order(collective, table, rows), True) is None
    assert timed(Order(collective, table, rows), None).time_ps == 12 * US  # 9 + 1 us of sending


def test_exchanges_of_one_step_are_left_to_the_event_loop():
    topology = tp.fully_connected(2, **SPEED)
    collective = co.all_reduce(topology, 2000, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 0]))
    rows = [(route, 0, 0, REDUCE, READ_ACC) for route in (0, 1)]
    assert timed(Order(collective, table, rows), True) is None
    assert timed(Order(collective, table, rows), None).time_ps == 2 * US
