"""Every NPU ends with what it must have, each contribution once: cases by hand."""

from __future__ import annotations

import numpy as np
import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE, retime, routes
from tests.support import oracle
from tests.support.schedules import (
    US,
    broken_rules,
    line,
    messages,
    packed,
)


def test_every_destination_must_receive():
    topology = line()
    collective = co.all_gather(topology, 3000, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    report = tacos.verify(packed(collective, table, [(0, 0, COPY, READ_ACC, [0])]))
    assert [violation.rule for violation in report.violations] == ["postcondition"] * 5
    assert "npu 2 never receives chunk 0" in [v.message for v in report.violations]


def test_a_reduction_needs_every_contribution():
    topology = line()
    collective = co.reduce(topology, 1000, root=1, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    schedule = packed(collective, table, [(0, 0, REDUCE, READ_ACC, [0])])
    assert messages(schedule) == ["npu 1 ends with chunk 0 without the contribution of npu 2"]


def test_a_copy_that_should_add_loses_a_contribution():
    topology = line(2)
    collective = co.reduce(topology, 1000, root=1, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    schedule = packed(collective, table, [(0, 0, COPY, READ_ACC, [0])])
    assert messages(schedule) == ["npu 1 ends with chunk 0 without the contribution of npu 1"]


def test_an_input_is_not_the_sum():
    """NPU 1 has got 0's contribution, but sends on its own input."""
    topology = line()
    collective = co.reduce(topology, 1000, root=2, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))

    def chain(reads):
        rows = [(0, 0, REDUCE, READ_ACC, [0]), (1, 0, REDUCE, reads, [2 * US])]
        return packed(collective, table, rows)

    assert tacos.verify(chain(READ_ACC)).ok
    assert messages(chain(READ_INPUT)) == [
        "npu 2 ends with chunk 0 without the contribution of npu 0",
        "transfer 0 of chunk 0 delivers nothing that is read or wanted later",
    ]


def test_a_contribution_must_not_count_twice():
    topology = line(2)
    collective = co.reduce(topology, 1000, root=1, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, 0, REDUCE, READ_ACC, [0]), (0, 0, REDUCE, READ_ACC, [1 * US])]
    schedule = packed(collective, table, rows)
    assert messages(schedule) == ["npu 1 ends with chunk 0 counting npu 0 2 times"]


def test_a_copied_chunk_must_not_be_added_to_itself():
    topology = line(2)
    collective = co.send_recv(topology, [(0, 1, 1000)], chunks=1)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, 0, COPY, READ_ACC, [0]), (0, 0, REDUCE, READ_ACC, [1 * US])]
    schedule = packed(collective, table, rows)
    assert messages(schedule) == ["npu 1 ends with chunk 0 added to itself, 2 times its value"]


def doubling(n, topology, steps_of=lambda step: step):
    """Recursive doubling: in step k all NPUs exchange their sums with the NPU 2^k away."""
    collective = co.custom(topology, [1000], [range(n)], [range(n)], reduces=True)
    pairs = [(i, i ^ 1 << k, k) for k in range(n.bit_length() - 1) for i in range(n)]
    src, dst, step = zip(*pairs, strict=True)
    return retime(
        collective,
        routes(topology, pairs=(src, dst)),
        route=range(len(pairs)),
        chunk=0,
        step=[steps_of(k) for k in step],
        op=REDUCE,
    )


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("build", [tp.fully_connected, tp.switch])
def test_recursive_doubling_is_right(n, build):
    schedule = doubling(n, build(n))
    assert tacos.verify(schedule).ok
    assert oracle.examine(schedule) == set()


def test_recursive_doubling_out_of_step_counts_twice():
    """NPU 0 sends before, NPU 1 after the exchange: NPU 1 returns what it got from NPU 0."""
    topology = line(2)
    collective = co.all_reduce(topology, 2000, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 0]))
    rows = [
        (route, chunk, REDUCE, READ_ACC, [chunk * 3 * US + start])
        for chunk in (0, 1)
        for route, start in ((0, 0), (1, 2 * US))
    ]
    assert messages(packed(collective, table, rows)) == [
        "npu 0 ends with chunk 0 counting npu 0 2 times",
        "npu 0 ends with chunk 1 counting npu 0 2 times",
    ]
    together = [(*row[:4], [row[1] * 3 * US]) for row in rows]
    assert tacos.verify(packed(collective, table, together)).ok


def test_one_shot_all_reduce_is_right():
    """Every NPU sends its input to all others; meanwhile acc may hold anything."""
    topology = tp.fully_connected(4, bandwidth="1GB/s", latency="1us")
    collective = co.all_reduce(topology, 4000, chunks=1)
    src, dst = np.nonzero(~np.eye(4, dtype=bool))
    table = routes(topology, pairs=(src, dst))
    rows = [
        (route, chunk, REDUCE, READ_INPUT, [chunk * 2 * US])
        for chunk in range(4)
        for route in range(12)
    ]
    assert tacos.verify(packed(collective, table, rows)).ok
    rows = [(route, 0, REDUCE, READ_INPUT, [route * US]) for route in range(12)]
    assert broken_rules(packed(collective, table, rows)) == {"contribution"}  # other chunks
    one = co.custom(topology, [1000], [range(4)], [range(4)], reduces=True)
    assert tacos.verify(packed(one, table, rows)).ok
    rows = [(*row[:3], READ_ACC, row[4]) for row in rows]
    assert broken_rules(packed(one, table, rows)) == {"contribution"}


def test_a_reduction_takes_its_time():
    """At 1 GB/s an NPU needs 1 us to add 1000 B: NPU 1 has the sum after 3 us, not 2."""
    topology = line(reduce_bandwidth="1GB/s")
    collective = co.reduce(topology, 1000, root=2, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))

    def chain(second):
        rows = [(0, 0, REDUCE, READ_ACC, [0]), (1, 0, REDUCE, READ_ACC, [second])]
        return packed(collective, table, rows)

    assert tacos.verify(chain(3 * US)).ok
    assert chain(3 * US).time_ps == 6 * US
    assert broken_rules(chain(3 * US - 1)) == {"contribution", "unneeded"}
