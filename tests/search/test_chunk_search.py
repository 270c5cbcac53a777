"""When the search for chunk counts of an engine goes on, and when it ends."""

from __future__ import annotations

import tacos
from tacos.search import chunk_search
from tacos.search.budget import Budget, Effort
from tacos.search.chunk_search import ChunkSearch, EngineSearch
from tacos.search.judging import Judge
from tacos.search.question import Question
from tacos.search.watch import Watch
from tacos.synth import ENGINES

LINE = tacos.topology.mesh(6, bandwidth="1GB/s", latency="1ns")
PIPELINE = tacos.collective.broadcast(LINE, "6MB")


def search(engine="nccl", collective=PIPELINE, to_beat=None, total=None):
    """Return a chunk search, with a time to beat and a budget of work if they are given."""
    question = Question(
        LINE, collective, seed=0, effort=Effort.of("normal"), watch=Watch(None, None)
    )
    judge = Judge(question)
    judge.to_beat = judge.to_beat if to_beat is None else to_beat
    budget = Budget(question)
    budget.total = budget.total if total is None else total
    return EngineSearch(ChunkSearch(question, judge, budget), ENGINES[engine], {})


def test_an_engine_that_cannot_become_the_fastest_stops_early():
    """A ring's all-gather takes as long with any number of chunks: the second shows that nothing is left to gain."""
    gather = tacos.collective.all_gather(LINE, "6MB")
    free, hopeless = search("ring", gather), search("ring", gather, to_beat=1)
    for one in (free, hopeless):
        one.go_on()
        assert one.ended
    assert len(hopeless.results) == 1 < len(free.results)


def test_a_pipeline_is_trusted_to_gain_what_its_last_gain_tells():
    """One chunk crosses 5 links in 30 ms, c chunks in 6 ms · (c + 4)/c; 6.1 ms is in reach, 5 ms is not."""
    within, beyond = search(to_beat=6_100_000_000), search(to_beat=5_000_000_000)
    for one in (within, beyond):
        one.go_on(3)
    assert [round(answer.schedule.time_s * 1e3) for answer in within.results] == [30, 18, 12]
    assert not within.ended
    beyond.go_on()
    assert beyond.ended
    assert len(beyond.results) < 7


def test_a_search_goes_on_where_it_was():
    at_once, in_parts = search(), search()
    at_once.go_on()
    while not in_parts.ended:
        in_parts.go_on(1)
    assert in_parts.answers() == at_once.answers()


def test_work_and_transfers_are_limited(monkeypatch):
    poor = search(total=0.0)
    poor.go_on()
    assert len(poor.results) == 1
    monkeypatch.setattr(chunk_search, "_MOST_PER_LINK", 8)
    few = search()
    few.go_on()
    transfers = [answer.schedule.transfers for answer in few.results]
    assert max(transfers) <= 8 * LINE.links < 4 * max(transfers)


def test_more_effort_is_more_work():
    """Fast, normal and high effort; and four times the work for twice the NPUs, beyond 64."""
    totals = []
    for npus, effort in ((64, "fast"), (64, "normal"), (64, "high"), (128, "normal")):
        ring = tacos.topology.ring(npus)
        collective = tacos.collective.all_gather(ring, "1MB")
        question = Question(
            ring, collective, seed=0, effort=Effort.of(effort), watch=Watch(None, None)
        )
        totals.append(Budget(question).total)
    assert totals == [0.8e6, 2e6, 80e6, 8e6]
