"""What a search promises on any network: no engine alone is faster, more effort never hurts, and a deadline changes nothing until it ends."""

from __future__ import annotations

import contextlib
import json
import warnings

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import tacos
from tacos.cli import main
from tacos.errors import TacosError
from tacos.search import judging, watch
from tacos.search.effort import LIMITS
from tacos.search.task import Task
from tacos.search.watch import TimeIsUp
from tacos.synth import ENGINES
from tests.support.problems import problem
from tests.support.work import Clock

pytestmark = pytest.mark.unsanitized

BROKEN = tacos.topology.drop_links(
    tacos.topology.torus(4, 4, bandwidth="25GB/s", latency="700ns"), (0, 1), (5, 9), both=True
)
MIXED = tacos.topology.dgx_a100(2)
BLOCKING = tacos.topology.from_links(
    5,
    [(a, b, 1e9 * (1 + a), 1e-6) for a in range(5) for b in range(5) if (b - a) % 5 in (1, 2)],
    link_model="blocking",
)


def known(time_ps: int | None) -> int:
    """Return a time that an answer has."""
    assert time_ps is not None
    return time_ps


def answered(one, **options):
    """Return auto's answer; None if there cannot be one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", tacos.errors.WrongScheduleWarning)
        try:
            return tacos.synthesize(one.topology, one.collective, seed=1, **options)
        except TacosError:
            return None


seeds = st.integers(0, 10**6)


targets = st.sampled_from([None, "schedule", "program", "tcp", "msccl"])


@given(seed=seeds, target=targets, consistent=st.booleans())
@settings(max_examples=30)
@example(
    seed=102, target="tcp", consistent=True
)  # shared links are faster than schedules that block them
@example(seed=284, target="tcp", consistent=True)
@example(seed=296, target="tcp", consistent=True)
def test_no_engine_that_finishes_is_faster_than_auto(seed, target, consistent):
    """Unless auto is so near to the bound that it did not go on."""
    one = problem(seed, tiny=seed % 3 != 0)
    how = {"effort": "fast", "target": target, "consistent": consistent}
    try:
        best = answered(one, **how)
    except ValueError:  # what the target cannot hold
        assume(False)
    assume(best is not None)
    ends = best.provenance["ends"]
    bound_ps = known(best.bound_ps)
    enough_ps = bound_ps / (1 - LIMITS.met) if known(best.executed_ps) >= bound_ps else 0
    for name in tacos.engines(one.topology, one.collective):
        if "found nothing" in ends[name] or ends[name].startswith("failed"):
            continue  # its answer takes more work than this effort allows
        try:
            alone = tacos.synthesize(
                one.topology, one.collective, engine=name, seed=1, effort="fast", target=target
            )
        except TacosError:
            continue
        if alone.consistent or not consistent:
            assert known(best.executed_ps) <= max(known(alone.executed_ps), enough_ps), name


@pytest.mark.parametrize("name", ["broken", "mixed", "blocking"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "broadcast", "reduce"])
def test_no_engine_is_faster_on_networks_of_several_speeds(name, kind):
    network = {"broken": BROKEN, "mixed": MIXED, "blocking": BLOCKING}[name]
    goal = tacos.collective.named(kind, network, "256KB")
    best = tacos.synthesize(network, goal, effort="fast")
    enough_ps = known(best.bound_ps) / (1 - LIMITS.met)
    for engine in best.provenance["best_of"]:
        alone = tacos.synthesize(network, goal, engine=engine, effort="fast")
        if alone.consistent:
            assert known(best.executed_ps) <= max(known(alone.executed_ps), enough_ps), engine


LARGE = {
    "torus": lambda boxes: tacos.topology.torus(boxes, 8),
    "mesh": lambda boxes: tacos.topology.mesh(boxes, 8),
    "boxes": tacos.topology.dgx_a100,
    "tree": lambda boxes: tacos.topology.fat_tree(boxes, 8),
}


@pytest.mark.slow
@given(
    family=st.sampled_from(sorted(LARGE)),
    boxes=st.integers(12, 20),
    broken=st.sampled_from(["", "dead", "slow"]),
    kind=st.sampled_from(["all_reduce", "all_gather", "all_to_all"]),
    size=st.sampled_from(["64KB", "4MB", "256MB"]),
    link=st.integers(0, 100),
)
@settings(max_examples=5)
def test_no_engine_is_faster_on_larger_networks(family, boxes, broken, kind, size, link):
    """On 96 to 160 NPUs, where auto stops sooner."""
    network = LARGE[family](boxes)
    if broken == "dead" and not network.switches:
        network = tacos.topology.drop_links(network, link)
    elif broken:
        network = tacos.topology.degrade(network, link, factor=0.5)
    goal = tacos.collective.named(kind, network, size)
    best = tacos.synthesize(network, goal, effort="fast")
    enough_ps = known(best.bound_ps) / (1 - LIMITS.near)
    for engine, ended in best.provenance["ends"].items():
        if "found nothing" in ended or ended.startswith(("failed", "does not apply")):
            continue
        alone = tacos.synthesize(network, goal, engine=engine, effort="fast")
        if alone.consistent and alone.executed_ps is not None:
            assert known(best.executed_ps) <= max(alone.executed_ps, enough_ps), engine


@given(seed=seeds, target=targets)
@settings(max_examples=15)
def test_more_effort_is_never_slower_and_a_late_deadline_changes_nothing(seed, target):
    one = problem(seed, tiny=True)
    try:
        fast = answered(one, effort="fast", target=target)
    except ValueError:  # what the target cannot hold
        assume(False)
    assume(fast is not None)
    normal, more = (answered(one, effort=effort, target=target) for effort in ("normal", 2))
    assert known(fast.executed_ps) >= known(normal.executed_ps) >= known(more.executed_ps)
    late = answered(one, target=target, time_limit=10_000)
    assert late == normal
    assert late.executed_ps == normal.executed_ps
    assert not late.cut_short


@pytest.mark.parametrize(
    "network",
    [
        tacos.topology.drop_links(tacos.topology.mesh(2, 3), (0, 1), both=True),
        tacos.topology.degrade(
            tacos.topology.parse("fat-tree:2x2@50GB/s,500ns"), (0, 4), factor=0.5, both=True
        ),
    ],
    ids=["broken", "mixed"],
)
def test_a_deadline_returns_the_best_so_far(network, monkeypatch):
    """Later deadlines never give slower answers, from the first that gives one to one that does not end anything."""
    goal = tacos.collective.all_reduce(network, "1MB")
    whole = tacos.synthesize(network, goal)
    found, started = [], 0
    for looks in (1, 3, 10, 30, 100, 300, 10**9):
        monkeypatch.setattr(watch, "time", Clock())
        with contextlib.suppress(TacosError):  # too short to find a schedule
            found.append(tacos.synthesize(network, goal, time_limit=looks))
        started += bool(found)
    assert len(found) == started > 3
    assert found[0].cut_short
    assert all(tacos.verify(one).ok for one in found)
    times = [one.executed_s for one in found]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
    assert found[-1] == whole


@pytest.mark.parametrize("engine", ["auto", "ring"])
def test_verifying_ends_soon_after_the_deadline(engine, monkeypatch):
    """An answer that takes too long to verify is not returned, unless there is an earlier one that has been verified."""
    goal = tacos.collective.all_reduce(BROKEN, "1MB")
    clock, looks = Clock(), []

    def verified(_schedule, *, progress, **_options):
        while True:
            looks.append(clock.monotonic())
            progress(0.5)

    monkeypatch.setattr(watch, "time", clock)
    monkeypatch.setattr(judging, "verify_schedule", verified)
    with pytest.raises(TacosError, match="time_limit is 100 s, which is too short"):
        tacos.synthesize(BROKEN, goal, engine=engine, time_limit=100)
    assert 0 < looks[-1] <= 1.2 * 100 + 0.5


def test_an_answer_that_was_verified_outlives_one_that_was_not(monkeypatch):
    goal = tacos.collective.all_reduce(BROKEN, "1MB")
    right, seen = tacos.verify, []

    def verified(schedule, *, progress, **options):
        seen.append(schedule)
        while len(seen) == 2:
            progress(0.5)
        return right(schedule, **options)

    monkeypatch.setattr(watch, "time", Clock())
    monkeypatch.setattr(judging, "verify_schedule", verified)
    found = tacos.synthesize(BROKEN, goal, time_limit=1000)
    assert found.cut_short
    assert len(seen) >= 2
    assert found.time_ps == seen[0].time_ps


@pytest.mark.parametrize(
    ("network", "kind", "some"),
    [
        (tacos.topology.dgx_h100(16, nvls=False), "all_reduce", "forest"),
        (tacos.topology.drop_links(tacos.topology.torus(12, 12), (0, 1)), "all_to_all", "direct"),
    ],
    ids=["boxes", "broken"],
)
def test_a_large_problem_is_first_given_to_engines_that_need_little_work(
    network, kind, some, monkeypatch
):
    """Those that need not list all transfers come before known algorithms, and these before all others."""
    asked = []

    def go_on(task, *_limits):
        asked.append(task.engine)
        if not task.engine.baseline and task.engine.lists:
            raise TimeIsUp
        return False

    monkeypatch.setattr(Task, "go_on", go_on)
    with pytest.raises(TacosError, match="too short"):
        tacos.synthesize(network, tacos.collective.named(kind, network, "64MB"), time_limit=10_000)
    first = [ENGINES[name] for name in dict.fromkeys(one.name for one in asked[:-1])]
    assert some in [one.name for one in first]
    assert [one.lists for one in first] == sorted(one.lists for one in first)
    assert all(one.baseline or not one.lists for one in first)


def test_every_engine_says_how_it_ended(tmp_path, capsys):
    """In a line each, which ``tacos synth --verbose``, its JSON and ``tacos info`` show."""
    goal = tacos.collective.all_reduce(BROKEN, "64KB")
    ends = tacos.synthesize(BROKEN, goal).provenance["ends"]
    assert list(ends) == list(ENGINES)
    ways = ("finished, ", "lost, ", "cut, ", "failed: ", "not needed", "does not apply: it needs ")
    for name, said in ends.items():
        assert any(way in said for way in ways), name
        assert "\n" not in said, name
    assert ends["symmetric"].startswith("does not apply: it needs ")
    network, file = tmp_path / "broken.json", tmp_path / "found.tacos"
    tacos.save(BROKEN, network)
    call = ["synth", str(network), "all-reduce", "64KB", "-o", str(file)]
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ends"] == ends
    for words in ([*call, "--verbose"], ["info", str(file)]):
        assert main(words) == 0
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        for name in ("greedy", "ring", "milp"):
            assert any(f"{name}: {ends[name]}"[:30] in line for line in lines), name


@pytest.mark.slow
def test_trees_of_both_ways_may_still_win_where_one_way_trees_have_lost():
    """Four boxes with a dead NVLink: the engine's first trees are slower than what greedy finds, those of more chunks are not."""
    boxes = tacos.topology.dgx_h100(4, nvls=False)
    network = tacos.topology.drop_links(boxes, 1, both=True)
    goal = tacos.collective.all_reduce(network, "64MB")
    alone = tacos.synthesize(network, goal, engine="forest")
    assert tacos.synthesize(network, goal).executed_s <= alone.executed_s
