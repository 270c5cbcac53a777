"""Run the fuzzer on a bounded number of problems, and check that it finds faults."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

import tacos
from tests import fuzz
from tests.support import problems

SANITIZED = os.environ.get("HYPOTHESIS_PROFILE") == "sanitize"


def no_failures(result, *, all_engines=False):
    assert not result.failures, "\n".join(map(str, result.failures))
    engines = {engine for engine, _ in result.counts}
    right = {engine for engine, how in result.counts if how == "right"}
    # A few problems need not suit every engine; many must.
    assert right == engines if all_engines else right, engines - right


def test_engines_are_right_on_random_problems():
    no_failures(fuzz.hunt(seed=0, problems=8 if SANITIZED else 32))


def test_auto_and_the_exact_engine_are_right_on_random_problems():
    no_failures(fuzz.hunt(seed=0, problems=3 if SANITIZED else 12, engines=["auto", "milp"]))


@pytest.mark.slow
def test_engines_are_right_on_many_random_problems():
    no_failures(fuzz.hunt(seed=10_000, problems=900, jobs=2), all_engines=True)


@pytest.mark.slow
def test_auto_and_the_exact_engine_are_right_on_many_random_problems():
    no_failures(fuzz.hunt(seed=10_000, problems=150, engines=["auto", "milp"], jobs=2))


def test_a_problem_is_a_function_of_its_number_and_can_be_built_from_its_text():
    for seed in range(40):
        for tiny in (False, True):
            one, same = (problems.problem(seed, tiny=tiny) for _ in range(2))
            assert one == same
            names: dict[str, object] = {"tp": tacos.topology, "co": tacos.collective}
            exec(one.text, names)  # noqa: S102
            assert names["topology"] == one.topology
            assert names["collective"] == one.collective


def test_a_wrong_schedule_is_a_failure(monkeypatch, tmp_path):
    """One engine leaves out its last transfer; another raises an exception that none may raise."""

    def incomplete(topology, collective, **_):
        schedule = tacos.synth.ENGINES["direct"](topology, collective)
        rows = schedule.rows()
        last = max(range(schedule.transfers), key=lambda i: rows["arrival_ps"][i])
        kept = [i for i in range(schedule.transfers) if i != last]
        columns = {n: rows[n][kept] for n in ("route", "chunk", "op", "reads")}
        return tacos.retime(
            schedule.collective, schedule.routes, step=list(range(len(kept))), **columns
        )

    def broken(*_, **__):
        raise ZeroDivisionError("one over nothing")

    engines = tacos.synth.ENGINES
    monkeypatch.setitem(engines, "direct", replace(engines["direct"], solve=incomplete))
    monkeypatch.setitem(engines, "greedy", replace(engines["greedy"], solve=broken))
    result = fuzz.Result()
    for seed in range(8):
        result.add(fuzz.run_problem(seed, ["direct", "greedy"], tmp_path))
    found = {failure.engine for failure in result.failures}
    assert found == {"direct", "greedy"}
    text = str(next(f for f in result.failures if f.engine == "greedy"))
    assert "ZeroDivisionError" in text
    assert "one over nothing" in text
    assert "topology = tp." in text
    assert "--problems 1 --engines greedy" in text


def _dies(seed, engines, folder, running=None):
    if seed == 3:
        os._exit(7)
    return fuzz.Result()


def _work_that_dies(pipe, engines, running):
    fuzz.run_problem = _dies
    fuzz._work(pipe, engines, running)


def test_a_crash_loses_neither_its_case_nor_the_rest(monkeypatch):
    monkeypatch.setattr(fuzz, "_TARGET", _work_that_dies)
    result = fuzz.hunt(seed=0, problems=16, engines=["ring"])
    (failure,) = result.failures
    assert (failure.seed, failure.engine) == (3, "ring")
    assert "exit code 7" in failure.what
