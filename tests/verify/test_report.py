"""What the report says, and how verification shows progress and is stopped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import _core
from tacos import collective as co
from tacos import topology as tp
from tacos.errors import VerificationError
from tacos.schedule import routes
from tests.support.schedules import (
    US,
    mutate,
    packed,
    relay,
)
from tests.support.strategies import orders


def many_wrong(n=8):
    """An all-gather in which nothing is ever sent: n·(n-1) chunks are missing."""
    topology = tp.ring(n)
    collective = co.all_gather(topology, n * 1000, chunks=1)
    return packed(collective, routes(topology, pairs=([0], [1])), [])


def test_limit_caps_what_is_kept_and_counts_all():
    report = tacos.verify(many_wrong(), limit=3)
    assert (len(report.violations), report.found, report.ok) == (3, 56, False)
    everything = tacos.verify(many_wrong(), limit=1000)
    assert len(everything.violations) == everything.found == 56
    assert [v.message for v in everything.violations[:3]] == [v.message for v in report.violations]
    with pytest.raises(ValueError, match="limit must be 1 to 2\\^31 - 1; got 0"):
        tacos.verify(many_wrong(), limit=0)


def test_raise_if_failed_names_the_first_violation():
    report = tacos.verify(many_wrong())
    with pytest.raises(VerificationError) as error:
        report.raise_if_failed()
    assert str(error.value) == ("the schedule is wrong: npu 1 never receives chunk 0 (and 55 more)")
    tacos.verify(relay(2 * US)).raise_if_failed()


def test_long_work_reports_progress_and_can_be_stopped():
    seen: list[float] = []
    tacos.verify(many_wrong(1500), threads=1, progress=seen.append)
    assert seen == sorted(seen)
    assert all(0 <= share <= 1 for share in seen)
    assert seen

    def stop(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacos.verify(many_wrong(1500), threads=2, progress=stop)


@given(orders(), st.data())
def test_threads_and_blocks_do_not_change_the_report(order, data):
    schedule = mutate(data.draw, order.retimed())

    def told(**options):
        report = _core.verify(schedule, **options)
        return report.checked, report.found, [repr(v) for v in report.violations]

    assert told() == told(threads=1) == told(threads=2) == told(block_transfers=1, threads=2)
