"""The problems still give the figures in ``tests/golden/replay.json``; see ``tests/support/replay.py``."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from tests.support import replay

GOLDEN = replay.golden()
PROBLEMS = replay.problems()


def test_golden_file_has_every_problem():
    assert list(GOLDEN["problems"]) == list(PROBLEMS)


@pytest.mark.parametrize("name", PROBLEMS)
def test_figures_are_unchanged(name):
    now = json.loads(json.dumps(PROBLEMS[name]()))
    same_solver = version(replay.SOLVER) == GOLDEN[replay.SOLVER]
    changed = replay.changes(name, GOLDEN["problems"][name], now, same_solver=same_solver)
    assert not changed, "\n".join(changed)
