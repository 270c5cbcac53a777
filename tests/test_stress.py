"""Tests can be repeated on a busy machine, and those that fail are counted."""

from __future__ import annotations

import pytest

from tests.stress import once, stress

pytestmark = pytest.mark.unsanitized

TESTS = """
from pathlib import Path

def test_that_fails_once():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("a stall")

def test_that_passes():
    pass
"""


def test_failures_are_shown_and_counted(tmp_path, capsys):
    path = tmp_path / "test_it.py"
    path.write_text(TESTS)
    settings = tmp_path / "pytest.ini"
    settings.write_text("[pytest]\n")
    failures = stress(["-c", str(settings), str(path)], times=2, cores=1)
    assert failures == {"test_it::test_that_fails_once": 1}
    said = capsys.readouterr().out
    assert "1 of 2: 2 tests, 1 failed" in said
    assert "a stall" in said
    assert "2 of 2: 2 tests, 0 failed" in said


def test_what_pytest_cannot_run_ends_the_repetitions(tmp_path):
    with pytest.raises(SystemExit, match=r"none\.py"):
        once([str(tmp_path / "none.py")])
