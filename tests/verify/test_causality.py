"""A transfer starts when its source holds what it reads: cases by hand."""

from __future__ import annotations

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import COPY, READ_ACC, READ_INPUT, routes
from tests.support.schedules import (
    US,
    broken_rules,
    line,
    messages,
    packed,
    relay,
)


def test_a_chunk_sent_at_the_moment_it_arrives_is_right():
    assert tacos.verify(relay(2 * US)).ok


def test_a_chunk_sent_before_it_arrives_breaks_causality():
    """What the published TACOS does on heterogeneous links: 1 ps too early is too early."""
    (violation,) = tacos.verify(relay(2 * US - 1)).violations
    assert violation.rule == "causality"
    assert (violation.transfer, violation.time_ps, violation.chunk) == (1, 2 * US - 1, 0)
    assert violation.message == (
        "transfer 1 sends chunk 0 from npu 1 at 1.999 us, where it arrives only at 2.000 us"
    )


def test_a_relayed_message_sent_too_early_is_told_when_it_would_arrive():
    assert messages(relay(2 * US - 1, kind="send_recv"), allow_unneeded=True)[0] == (
        "transfer 1 sends chunk 0 from npu 1 at 1.999 us, where it arrives only at 2.000 us"
    )


def test_a_chunk_that_never_arrives_cannot_be_sent():
    topology = line()
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, pairs=([1], [2]))
    schedule = packed(collective, table, [(0, 0, COPY, READ_ACC, [0])])
    assert messages(schedule) == [
        "transfer 0 sends chunk 0 from npu 1 at 0.000 us, where it never arrives",
        "npu 1 never receives chunk 0",
    ]


def test_a_slow_first_hop_delays_the_second():
    """0 -> 1 at 0.5 GB/s takes 1 us + 2 us, though 1 -> 2 would be ready after 2 us."""
    links = [(0, 1, "0.5GB/s", "1us"), (1, 2, "1GB/s", "1us"), (2, 0, "1GB/s", "1us")]
    topology = tp.from_links(3, links)
    assert broken_rules(relay(2 * US, topology=topology)) == {"causality"}
    assert tacos.verify(relay(3 * US, topology=topology)).ok


@pytest.mark.parametrize("slow", [0, 1])
def test_the_slowest_link_of_a_leg_delays_its_tail(slow):
    """0 -> switch -> 1, one link with 0.5 GB/s: 1 + 1 us of latency and 2 us for the tail."""
    speeds = ["0.5GB/s" if i == slow else "1GB/s" for i in range(2)]
    links = [(0, 3, speeds[0], "1us"), (3, 1, speeds[1], "1us")]
    more = [(1, 2, "1GB/s", "1us"), (2, 0, "1GB/s", "1us")]
    topology = tp.from_links(3, links + more, switches=1)
    assert tacos.verify(relay(4 * US, topology=topology)).ok
    assert broken_rules(relay(4 * US - 1, topology=topology)) == {"causality"}


def test_an_npu_without_a_contribution_has_no_input_to_read():
    topology = line()
    collective = co.send_recv(topology, [(0, 2, 1000)], chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    rows = [(0, 0, COPY, READ_INPUT, [0]), (1, 0, COPY, READ_INPUT, [2 * US])]
    assert "causality" in broken_rules(packed(collective, table, rows))


def test_the_legs_of_a_route_follow_each_other():
    """0 -> 1 -> 2 as one route through NPU 1, where the whole chunk arrives after 2 us."""
    topology = line()
    collective = co.send_recv(topology, [(0, 2, 1000)], chunks=1)
    table = routes(topology, pairs=([0], [2]))
    assert tacos.verify(packed(collective, table, [(0, 0, COPY, READ_ACC, [0, 2 * US])])).ok
    late = packed(collective, table, [(0, 0, COPY, READ_ACC, [0, 2 * US - 1])])
    assert messages(late) == [
        "transfer 0 starts leg 1 at 1.999 us, before the leg before it arrives at 2.000 us"
    ]
