"""Transfers that change nothing that is needed: cases by hand."""

from __future__ import annotations

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE, routes
from tests.support.schedules import (
    US,
    line,
    messages,
    packed,
    rows_of,
)


def test_a_second_delivery_is_unneeded():
    topology = line(2)
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, 0, COPY, READ_ACC, [0]), (0, 0, COPY, READ_ACC, [1 * US])]
    schedule = packed(collective, table, rows)
    assert messages(schedule) == [
        "transfer 1 of chunk 0 reaches npu 1, which has that value already"
    ]
    assert tacos.verify(schedule, allow_unneeded=True).ok


def test_a_delivery_to_the_owner_is_unneeded():
    topology = line(2)
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 0]))
    rows = [(0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [2 * US])]
    assert messages(packed(collective, table, rows)) == [
        "transfer 1 of chunk 0 reaches npu 0, which has that value already"
    ]


def test_a_dead_end_is_unneeded():
    topology = line()
    collective = co.send_recv(topology, [(0, 1, 1000)], chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    rows = [(0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [2 * US])]
    schedule = packed(collective, table, rows)
    assert messages(schedule) == [
        "transfer 1 of chunk 0 delivers nothing that is read or wanted later"
    ]
    assert tacos.verify(schedule, allow_unneeded=True).ok


def test_a_value_that_is_overwritten_unread_is_unneeded():
    topology = line(2)
    collective = co.custom(topology, [1000], [[0, 1]], [[1]], reduces=True)
    table = routes(topology, pairs=([0, 1], [1, 0]))
    rows = [
        (0, 0, COPY, READ_ACC, [0]),  # 1 loses its contribution …
        (1, 0, REDUCE, READ_INPUT, [0]),  # … which 0 has got meanwhile …
        (0, 0, COPY, READ_ACC, [2 * US]),  # … and sends back.
    ]
    assert messages(packed(collective, table, rows)) == [
        "transfer 0 of chunk 0 delivers nothing that is read or wanted later"
    ]


def test_only_the_second_of_two_equal_deliveries_is_unneeded():
    topology = line()
    collective = co.send_recv(topology, [(0, 1, 1000)], chunks=1)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, 0, COPY, READ_ACC, [0]), (0, 0, COPY, READ_ACC, [1 * US])]
    assert messages(packed(collective, table, rows)) == [
        "transfer 1 of chunk 0 reaches npu 1, which has that value already"
    ]


def test_what_an_input_hides_is_unneeded():
    """NPU 1 gets 0's contribution, but sends on only its own input; 2 gets 0's directly."""
    topology = tp.fully_connected(3, bandwidth="1GB/s", latency="1us")
    collective = co.custom(topology, [1000], [[0, 1]], [[2]], reduces=True)
    table = routes(topology, pairs=([0, 1, 0], [2, 2, 1]))
    rows = [
        (0, 0, REDUCE, READ_ACC, [0]),
        (1, 0, REDUCE, READ_INPUT, [2 * US]),
        (2, 0, REDUCE, READ_ACC, [0]),
    ]
    schedule = packed(collective, table, rows)
    idle = rows_of(schedule).index((2, 0, REDUCE, READ_ACC, [0]))
    assert messages(schedule) == [
        f"transfer {idle} of chunk 0 delivers nothing that is read or wanted later"
    ]
