"""The verifier against the oracle: random schedules, correct and with a few rows changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos.schedule import COPY, READ_ACC, routes
from tests.support import oracle
from tests.support.schedules import US, line, mutate, packed
from tests.support.strategies import orders


def found_wrongs(schedule, **options):
    """What the verifier finds: (rule, transfer, chunk, link), each -1 where the rule does not name one."""
    found = tacos.verify(schedule, limit=10**6, **options).violations
    return {
        (one.rule, *((-1, -1) if one.rule == "capacity" else (one.transfer, one.chunk)), one.link)
        for one in found
    }


def true_wrongs(schedule, **options):
    """What the oracle finds, in the same form."""
    wrongs = set()
    for rule, first, *_ in oracle.examine(schedule, **options):
        if rule == "capacity":
            wrongs.add((rule, -1, -1, first))
        elif rule in ("causality", "unneeded"):
            wrongs.add((rule, first, int(schedule.chunk[first]), -1))
        else:
            wrongs.add((rule, -1, first, -1))
    return wrongs


def comparable(wrongs):
    """Leave out the consequences of broken causality.

    A transfer whose source does not hold the chunk yet carries an undefined value. So the sums of this chunk are
    undefined, and which of its transfers are needed; other chunks are not affected.
    """
    broken = {chunk for rule, _, chunk, _ in wrongs if rule == "causality"}
    return {
        wrong
        for wrong in wrongs
        if not (wrong[0] in ("contribution", "unneeded") and wrong[2] in broken)
    }


@pytest.mark.parametrize("allow_unneeded", [False, True])
@given(order=orders(), data=st.data())
def test_the_verifier_and_the_oracle_agree(allow_unneeded, order, data):
    schedule = mutate(data.draw, order.retimed())
    found = found_wrongs(schedule, allow_unneeded=allow_unneeded)
    truth = true_wrongs(schedule, allow_unneeded=allow_unneeded)
    assert comparable(found) == comparable(truth)


def test_broken_causality_of_one_chunk_hides_nothing_of_another():
    """Chunk 0 leaves NPU 1 too early; chunk 1 reaches it twice, and chunk 2 is a sum without the root's share."""
    topology = line()
    collective = co.custom(
        topology,
        [1000] * 3,
        before=[[0], [0], [0, 1]],
        after=[[1, 2], [1], [1]],
        reduces=[False, False, True],
    )
    table = routes(topology, pairs=([0, 1], [1, 2]))
    rows = [
        *((0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [US])),
        *((0, 1, COPY, READ_ACC, [2 * US]), (0, 1, COPY, READ_ACC, [4 * US])),
        (0, 2, COPY, READ_ACC, [6 * US]),
    ]
    found = comparable(found_wrongs(packed(collective, table, rows)))
    assert {(rule, chunk) for rule, _, chunk, _ in found} == {
        ("causality", 0),
        ("unneeded", 1),
        ("contribution", 2),
    }


@given(orders())
def test_a_retimed_order_is_right(order):
    schedule = order.retimed()
    report = tacos.verify(schedule)
    assert report.ok, report.violations
    assert report.checked == schedule.transfers
    assert oracle.rules(oracle.examine(schedule)) == set()
