"""The hosted workflows: one runs all steps of ``.ci/run``, through that script only; one publishes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import fewer_examples

pytestmark = pytest.mark.unsanitized

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / ".ci" / "run"


@pytest.fixture(scope="module")
def steps():
    (line,) = re.findall(r'^steps="(.*)"$', SCRIPT.read_text(), re.MULTILINE)
    return line.split()


def workflow(name):
    import yaml

    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


@pytest.fixture(scope="module")
def jobs():
    return workflow("ci.yml")["jobs"]


def test_the_workflow_has_every_step(steps, jobs):
    matrix = jobs["run"]["strategy"]["matrix"]
    lists = matrix["steps"] + [entry["steps"] for entry in matrix["include"]]
    assert {step for words in lists for step in words.split()} == set(steps)


def test_the_workflow_has_no_commands_of_its_own(jobs):
    commands = [step["run"] for step in jobs["run"]["steps"] if "run" in step]
    assert commands == [".ci/run ${{ matrix.steps }}"]
    assert jobs["pass"]["needs"] == "run"
    assert set(jobs) == {"run", "pass"}


def test_every_step_is_a_target_of_make(steps):
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert set(steps) <= set(re.findall(r"^  make (\w+)", shown.stdout, re.MULTILINE))


def test_only_the_job_that_publishes_may_sign_and_it_needs_all_others():
    wheels = workflow("wheels.yml")
    publish = wheels["jobs"].pop("publish")
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["if"] == "github.event_name == 'push' && github.ref_type == 'tag'"
    assert set(publish["needs"]) == set(wheels["jobs"])
    assert wheels["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in wheels["jobs"].values())


def test_a_quick_run_draws_a_share_of_the_examples():
    seen = []

    @given(st.integers())
    @settings(max_examples=400, database=None)
    def test(number):
        seen.append(number)

    fewer_examples(test, 0.1)
    test()
    assert 8 <= len(seen) <= 60  # some draws are repeated


def test_an_unknown_step_is_refused():
    run = subprocess.run([SCRIPT, "clean"], check=False, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith("unknown step clean; expected some of: torch mpi ")


@pytest.mark.parametrize("extra", ["torch", "mpi"])
def test_an_extra_alone_leaves_a_command_that_works(extra, tmp_path):
    """`make torch mpi` in a new checkout installs the package too."""
    command = ["make", "--dry-run", f"VENV={tmp_path}/venv", extra]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "building the C++ core" in shown.stdout
