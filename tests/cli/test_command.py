"""``tacos`` and ``python -m tacos`` are one command: same output, exit codes and behaviour on Ctrl-C."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.unsanitized

COMMANDS = {
    "tacos": [str(Path(sysconfig.get_path("scripts"), "tacos"))],
    "python -m tacos": [sys.executable, "-m", "tacos"],
}
INTERRUPTED = (130, "", "tacos: interrupted, nothing was written\n")

INTERRUPTER = """
import os, signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_IMPORT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
"""


@pytest.fixture(params=COMMANDS.values(), ids=list(COMMANDS))
def run(request):
    """Run one of the two forms; return its exit code and output."""

    def call(*words, before="", redirected="", **options):
        line = ["sh", "-c", f'{before} exec "$@" {redirected}', "sh", *request.param, *words]
        job = subprocess.run(line, capture_output=True, text=True, check=False, **options)
        return job.returncode, job.stdout, job.stderr

    return call


def test_help_is_that_of_tacos(run):
    code, out, error = run("topo", "--help")
    assert (code, error) == (0, "")
    assert out.startswith("Usage: tacos topo ")
    assert "__main__" not in out


def test_a_wrong_call_is_a_sentence_of_tacos(run):
    assert run("topo", "ring:4", "extra") == (
        2, "", "tacos: unexpected argument 'extra'. See tacos topo --help.\n"
    )  # fmt: skip


def test_an_invalid_file_is_an_error_of_tacos(run, tmp_path):
    code, out, error = run("verify", str(tmp_path / "none.tacos"))
    assert (code, out) == (2, "")
    assert error.startswith("tacos: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("module", ["datetime", "tacos._core", "cyclopts"])
def test_ctrl_c_during_the_import_is_a_sentence(run, module, tmp_path):
    """The process gets SIGINT when it imports a module; numpy, which imports datetime, hides the cause."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "INTERRUPTED_IMPORT": module}
    assert run("topo", "ring:4", env=environment) == INTERRUPTED


def test_an_ignored_ctrl_c_stays_ignored(run, tmp_path):
    """As under nohup, and in jobs that a shell starts in the background."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "INTERRUPTED_IMPORT": "cyclopts"}
    code, out, error = run("topo", "ring:4", "--json", env=environment, before="trap '' INT;")
    assert (code, error) == (0, "")
    assert json.loads(out)["npus"] == 4


def test_files_in_the_current_directory_are_not_imported(run, tmp_path):
    for module in ("numpy", "random", "yaml"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('a file of the user')")
    code, out, error = run("topo", "ring:4", "--json", cwd=tmp_path)
    assert (code, error) == (0, "")
    assert json.loads(out)["npus"] == 4


@pytest.mark.parametrize("closed", [">&-", "<&- 2>&-"])
def test_closed_streams_are_no_error(run, closed):
    code, out, error = run("topo", "ring:4", redirected=closed)
    assert (code, error) == (0, "")
    assert ("ring 4, symmetric" in out) == (closed != ">&-")


def test_an_error_without_an_error_stream_is_not_printed_elsewhere(run):
    assert run("topo", "nowhere", redirected="2>&-") == (2, "", "")
