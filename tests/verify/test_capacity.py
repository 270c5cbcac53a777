"""A link carries one transfer at a time: cases by hand."""

from __future__ import annotations

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import COPY, READ_ACC, routes
from tests.support.schedules import (
    US,
    line,
    packed,
)


@pytest.mark.parametrize(
    ("model", "busy"), [("pipelined", 1 * US), ("blocking", 2 * US)], ids=["pipelined", "blocking"]
)
def test_a_link_carries_one_transfer_at_a_time(model, busy):
    """1000 B at 1 GB/s: busy for 1 us, under the blocking model for the latency of 1 us too."""
    topology = line(2, link_model=model)
    collective = co.custom(topology, [1000, 1000], [[0], [0]], [[1], [1]])
    table = routes(topology, pairs=([0], [1]))

    def two(second):
        rows = [(0, 0, COPY, READ_ACC, [0]), (0, 1, COPY, READ_ACC, [second])]
        return packed(collective, table, rows)

    assert tacos.verify(two(busy)).ok
    (violation,) = tacos.verify(two(busy - 1)).violations
    assert (violation.rule, violation.link, violation.transfer) == ("capacity", 0, 1)
    assert violation.message == (
        f"transfer 1 enters link 0 (npu 0 -> npu 1) at {(busy - 1) // US}.999 us, "
        f"while transfer 0 keeps it busy until {busy // US}.000 us"
    )


def test_a_long_transfer_hides_no_later_overlap():
    """Transfer 0 takes 10 us; 1 and 2 both overlap it, although 1 ends before 2 begins."""
    topology = line(2)
    collective = co.custom(topology, [10_000, 1000, 1000], [[0]] * 3, [[1]] * 3)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, chunk, COPY, READ_ACC, [start * US]) for chunk, start in [(0, 0), (1, 2), (2, 5)]]
    report = tacos.verify(packed(collective, table, rows))
    assert [v.transfer for v in report.violations] == [1, 2]


def test_two_routes_share_a_port_of_a_switch():
    """0 -> 2 and 1 -> 2 meet on the switch's one link to NPU 2, though their routes differ."""
    topology = tp.switch(3, bandwidth="1GB/s", latency="1us")
    collective = co.send_recv(topology, [(0, 2, 1000), (1, 2, 1000)], chunks=1)
    table = routes(topology, pairs=([0, 1], [2, 2]))

    def two(second):
        rows = [(0, 0, COPY, READ_ACC, [0]), (1, 1, COPY, READ_ACC, [second])]
        return packed(collective, table, rows)

    assert tacos.verify(two(1 * US)).ok
    (violation,) = tacos.verify(two(1 * US - 1)).violations
    assert violation.rule == "capacity"
    shared = set(table.links[:2].tolist()) & set(table.links[2:].tolist())
    assert {violation.link} == shared
