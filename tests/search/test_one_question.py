"""One question, asked in several ways, has one answer, to the last digit, and is searched once."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tacos
from tacos.cli import main
from tacos.search.auto import Auto
from tacos.search.known import KNOWN, Known, key
from tacos.training.communication import LAUNCH_S, Communication

pytestmark = pytest.mark.unsanitized

HEALTHY = tacos.topology.parse("fat-tree:2x2@50GB/s,500ns")
SLOW = tacos.topology.degrade(HEALTHY, (0, 4), factor=0.5)
SIZE = 1 << 20


@pytest.fixture
def searches(monkeypatch):
    """Keep answers, and list the searches that begin."""
    monkeypatch.setattr(KNOWN, "most_bytes", 1 << 24)
    begun, search = [], Auto.answer

    def answer(self, **how):
        begun.append((self.question.topology, self.question.collective))
        return search(self, **how)

    monkeypatch.setattr(Auto, "answer", answer)
    yield begun
    KNOWN.forget()


@pytest.mark.parametrize("network", [HEALTHY, SLOW], ids=["healthy", "slow NIC"])
def test_every_way_to_ask_has_the_same_answer(network, searches, tmp_path, capsys):
    goal = tacos.collective.all_reduce(network, SIZE)
    schedule = tacos.synthesize(network, goal)
    row = next(one for one in tacos.compare(network, goal).candidates if one.engine == "auto")
    assert row.figures.executed_s == schedule.executed_s
    assert row.schedule == schedule
    (tuned,) = tacos.tune(network, "all_reduce", f"{SIZE}B:{SIZE}B").ranges
    assert tuned.schedule == schedule
    bound_s = tacos.bound(network, goal).time_s
    assert tuned.figures == ((SIZE, schedule.executed_s, bound_s),)
    file = tmp_path / "network.json"
    tacos.save(network, file)
    for words in (["synth"], ["compare", "--engines", "auto"]):
        assert main([*words, str(file), "all-reduce", f"{SIZE}B", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        said = told if isinstance(told, dict) else told[0]
        assert said["executed_s"] == schedule.executed_s
    assert searches == [(network, goal)]


def test_training_asks_the_same_search(searches):
    """On the network that a group has to itself, which is slower than its links."""
    family = Communication(HEALTHY, "auto").of(np.arange(HEALTHY.npus, dtype=np.int32)[None])
    (part,) = (family.algorithm("all_reduce", SIZE)[1],)
    network = family._own()
    goal = tacos.collective.all_reduce(network, SIZE)
    assert part.size_bytes == SIZE
    schedule = tacos.synthesize(network, goal, effort="fast")
    assert family.synthesized("all_reduce", SIZE, "auto") == LAUNCH_S + schedule.executed_s
    assert len(searches) <= 1


def test_what_was_not_asked_is_searched(searches):
    ring = tacos.topology.ring(6)
    goal = tacos.collective.all_gather(ring, "1MB")
    first = tacos.synthesize(ring, goal)
    assert tacos.synthesize(ring, goal, time_limit=1000) is first
    others = (
        {"seed": 1},
        {"effort": 2},
        {"target": "tcp"},
        {"consistent": False},
        {"refine": False},
    )
    for count, other in enumerate(others, start=2):
        tacos.synthesize(ring, goal, **other)
        assert len(searches) == count
    named = tacos.topology.renumber(ring, range(6))
    assert tacos.synthesize(named, goal).topology == named
    with pytest.raises(ValueError, match="seed must be"):
        tacos.synthesize(ring, goal, seed=False)
    with pytest.raises(ValueError, match="time_limit must be positive"):
        tacos.synthesize(ring, goal, time_limit=0)


def test_answers_that_were_cut_short_or_rejected_are_not_kept():
    ring = tacos.topology.ring(4)
    goal = tacos.collective.all_gather(ring, "1MB")
    whole, known = tacos.synthesize(ring, goal), Known(1 << 20)
    question = key(ring, goal, {})
    for facts in ({"cut_short": True}, {"rejected": ["the engine x returned a wrong schedule"]}):
        known.keep(question, whole.with_facts(**facts))
        assert known.answer(question) is None
    known.keep(question, whole)
    assert known.answer(question) is whole
    assert key(ring, goal, {"order": np.arange(4)}) is None
    assert key(ring, goal, {"order": [1, 0]}) != key(ring, goal, {"order": [True, 0]})


def test_the_answers_used_last_are_kept():
    ring = tacos.topology.ring(4)
    goals = [tacos.collective.all_gather(ring, size, chunks=1) for size in (1000, 2000, 3000)]
    found = [tacos.synthesize(ring, goal, engine="ring") for goal in goals]
    questions = [key(ring, goal, {}) for goal in goals]
    known = Known(found[0].memory_bytes + found[2].memory_bytes)
    known.keep(questions[0], found[0])
    known.keep(questions[1], found[1])
    assert known.answer(questions[0]) is found[0]
    known.keep(questions[2], found[2])
    assert [known.answer(one) for one in questions] == [found[0], None, found[2]]


def test_threads_may_share_answers(searches):
    ring = tacos.topology.ring(5)
    goals = [tacos.collective.all_gather(ring, size) for size in ("1KB", "64KB")] * 8
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda goal: tacos.synthesize(ring, goal), goals))
    assert found[::2] == [found[0]] * 8
    assert found[1::2] == [found[1]] * 8
