"""Work that ``auto`` skips: the execution of schedules that have lost, and chunk counts that do not fill the trees."""

from __future__ import annotations

from typing import Any

import pytest

import tacos
from tacos import topology as tp
from tacos.execution import execution
from tacos.search import auto, judging
from tacos.search.budget import Effort
from tacos.search.judging import Judge
from tacos.search.question import Question
from tacos.search.refine import improved
from tacos.search.watch import Watch
from tacos.synth import ENGINES


def boxes_schedule():
    """Messages of every NPU to several others at once, which share ports when they are executed."""
    boxes = tp.parse("dgx-h100:2")
    collective = tacos.collective.all_reduce(boxes, "64MB", chunks=2)
    return tacos.synthesize(boxes, collective, engine="greedy")


def test_a_schedule_that_misses_its_limit_is_run_less():
    schedule = boxes_schedule()
    exact = execution(schedule)
    assert exact is not None
    slowest = exact.time_ps()
    assert slowest > 1.02 * schedule.time_ps
    above = execution(schedule, to_beat_ps=slowest + 1)
    assert above == exact
    for limit in (slowest, (slowest + schedule.time_ps) // 2, schedule.time_ps):
        below = execution(schedule, to_beat_ps=limit)
        assert below is not None
        assert below.time_ps() >= limit


@pytest.mark.parametrize("target", ["tcp", "schedule"])
def test_the_limit_is_for_the_slowest_of_all_rules(target):
    schedule = boxes_schedule()
    exact = execution(schedule)
    assert exact is not None
    found = execution(schedule, target=target, to_beat_ps=1)
    assert found is not None
    assert found.time_ps(target) == exact.time_ps(target)


def test_the_order_of_a_schedule_needs_no_run(monkeypatch):
    def refused(*_args, **_options):
        raise AssertionError

    schedule = boxes_schedule()
    monkeypatch.setattr(judging, "execution", refused)
    question = Question(
        schedule.topology, schedule.collective, seed=0, effort=Effort.of(1), watch=Watch(None, None)
    )
    answer = Judge(question, target="schedule").judged(schedule)
    assert (answer.time_ps, answer.known) == (schedule.time_ps, True)


def test_refinement_does_not_run_again_what_was_run(monkeypatch):
    from tacos.search import refine

    runs = []

    def noted(what, **given):
        runs.append(what)
        return execution(what, **given)

    monkeypatch.setattr(refine, "execution", noted)
    schedule = boxes_schedule()
    found = execution(schedule)
    assert found is not None
    improved(schedule, 50_000, seed=0, target=None, executed_ps=found.time_ps())
    assert schedule not in runs
    improved(schedule, 50_000, seed=0, target=None)
    assert schedule in runs


def test_trees_tell_the_time_that_many_chunks_approach():
    """A DGX-1's trees carry 6 times 25 GB/s into every GPU, which needs seven eighths of the buffer."""
    box, engine = tp.dgx1(), ENGINES["forest"]
    memory: dict[str, Any] = {}
    size = 600_000_000
    whole = tacos.collective.all_gather(box, size)
    assert engine.limit_s(box, whole, memory) == 0
    times = [
        engine(box, whole.with_chunks(chunks), memory=memory).time_s for chunks in (1, 6, 48, 96)
    ]
    limit_s = engine.limit_s(box, whole, memory)
    assert limit_s == pytest.approx(size * 7 / 8 / 150e9)
    assert sorted(times, reverse=True) == times
    assert limit_s < times[-1] < 1.02 * limit_s


def test_large_collectives_skip_chunk_counts_that_do_not_fill_the_trees():
    box = tp.mi250(1)
    schedule = tacos.synthesize(box, tacos.collective.all_gather(box, "64MB"), engine="forest")
    tried = schedule.provenance["chunk_counts_tried"]
    assert tried[:4] == [1, 6, 18, 33]  # for 1, 4, 16 and 32
    few = tacos.synthesize(box, tacos.collective.all_gather(box, "1KB"), engine="forest")
    assert few.provenance["chunk_counts_tried"][:3] == [1, 3, 6]


def test_auto_asks_trees_again_that_were_slow_with_one_chunk():
    box = tp.mi250(1)
    best = tacos.synthesize(
        box, tacos.collective.all_gather(box, "64MB"), effort="fast", refine=False
    )
    assert best.engine == "forest"
    assert best.efficiency is not None
    assert best.efficiency > 0.97


def test_auto_refines_what_gains_most():
    """The trees' schedule is slower at first, but faster once refined."""
    box = tp.mi250(1)
    collective = tacos.collective.all_gather(box, "1100KB", chunks=16)
    trees, greedy = (
        tacos.synthesize(box, collective, engine=name).time_ps for name in ("forest", "greedy")
    )
    assert trees > 1.05 * greedy
    best = tacos.synthesize(box, collective, effort="fast")
    assert best.engine == "forest"
    assert best.time_ps < 0.8 * greedy


def test_auto_matches_no_ports_where_latency_decides(monkeypatch):
    def refused(*_args, **_options):
        raise AssertionError

    boxes = tp.dgx_h100(2)
    monkeypatch.setattr(auto.Auto, "_with_matched_ports", refused)
    small = tacos.collective.all_gather(boxes, "1KB", chunks=1)
    assert tacos.synthesize(boxes, small, refine=False).time_s < 3e-6
    with pytest.raises(AssertionError):
        tacos.synthesize(boxes, tacos.collective.all_gather(boxes, "64MB", chunks=1))
