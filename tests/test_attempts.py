"""Tests that depend on the machine may fail once in continuous integration, and the run says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = """
from pathlib import Path

def test_fails_once(tmp_path_factory):
    seen = Path("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("a stall")

def test_always_fails():
    assert False
"""


def outcome(folder: Path, name: str, attempts: int) -> str:
    """Return what pytest prints when the file `name` holds TESTS."""
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(TESTS)
    (folder / "seen").unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.attempts",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "--rootdir", str(folder), name],
        env=os.environ | {"TACOS_ATTEMPTS": str(attempts), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    return done.stdout


def test_a_second_attempt(tmp_path):
    said = outcome(tmp_path, "tests/hub/test_it.py", attempts=2)
    assert "1 failed, 1 passed" in said
    assert "test_fails_once passed after a failure" in said
    assert "AssertionError: a stall" in said


def test_what_computes_has_one_attempt(tmp_path):
    for name, attempts in (("tests/test_it.py", 2), ("tests/hub/test_it.py", 1)):
        said = outcome(tmp_path, name, attempts)
        assert "2 failed" in said
        assert "passed after" not in said
