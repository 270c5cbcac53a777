"""Ctrl-C: one sentence, exit code 130, and files that are complete or absent.

Processes are interrupted while HiGHS works in a thread; such a process used to abort at its exit about
every second time.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tacos
from tacos import topology as tp
from tacos._support.files import replacing_all
from tacos.cli import main
from tests.support.conditions import PATIENCE_S, until

pytestmark = pytest.mark.unsanitized

SLOW = ["mi250:1", "all-gather", "16MB", "--chunks", "1", "--engine", "milp"]  # minutes


def interrupted(words, moment):
    """Send a process Ctrl-C `moment` seconds after it has loaded HiGHS; return its exit code and errors."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        until(lambda: "highspy" in maps.read_text() or process.poll() is not None, "HiGHS is there")
        assert process.returncode is None, process.communicate()
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, said


@pytest.mark.parametrize(
    "moment", [0.0, 1.3, *(pytest.param(later, marks=pytest.mark.slow) for later in (0.4, 2.5))]
)
def test_the_command_ends_with_a_sentence(moment, tmp_path):
    command = [sys.executable, "-m", "tacos", "synth", *SLOW, "-o", str(tmp_path / "x.tacos")]
    said = interrupted(command, moment)
    assert said == (130, "tacos: interrupted, nothing was written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", [1.0])
def test_a_script_ends_like_any_other(moment):
    """With Python's own traceback and status, and without an abort."""
    script = (
        "import tacos; box = tacos.topology.mi250();"
        "coll = tacos.collective.all_gather(box, '16MB', chunks=1);"
        "tacos.synthesize(box, coll, engine='milp')"
    )
    code, said = interrupted([sys.executable, "-c", script], moment)
    assert code == -signal.SIGINT
    assert said.endswith("KeyboardInterrupt\n")


def test_a_solver_that_is_left_behind_does_not_keep_the_command(tmp_path):
    """The time limit ends the search while HiGHS still runs; the best answer so far is written."""
    path = tmp_path / "x.tacos"
    words = [sys.executable, "-m", "tacos", "synth", *SLOW, "-o", str(path), "--quiet"]
    for limit in (2, 8, 32, 128):
        done = subprocess.run(
            [*words, "--time-limit", str(limit)],
            stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        if "too short" not in done.stderr:  # on a machine that stalls before HiGHS has an answer
            break
    assert (done.returncode, done.stderr) == (0, "")
    assert tacos.verify(tacos.load(path)).ok


def stop(*_, **__):
    raise KeyboardInterrupt


def test_what_was_written_before_is_said(tmp_path, monkeypatch, capsys):
    """Ctrl-C between the last file and the end of the command."""
    monkeypatch.setattr("tacos.console.show", stop)
    tacos.save(tp.ring(4), tmp_path / "ring.yaml")
    target = tmp_path / "ring.graphml"
    assert main(["convert", str(tmp_path / "ring.yaml"), str(target)]) == 130
    assert capsys.readouterr().err == f"tacos: interrupted, {target} was written\n"
    coll = tacos.collective.all_gather(4, "4MB", chunks=1)
    tacos.save(tacos.synthesize(tp.ring(4), coll, engine="ring"), tmp_path / "x.tacos")
    assert main(["convert", str(tmp_path / "x.tacos"), str(tmp_path / "x.et")]) == 130
    assert re.search(r"interrupted, \d+ files were written", capsys.readouterr().err)
    monkeypatch.setattr("tacos.formats.save", stop)
    assert main(["convert", str(tmp_path / "ring.yaml"), str(target)]) == 130
    assert capsys.readouterr().err == "tacos: interrupted, nothing was written\n"


def test_of_several_files_all_appear_or_none(tmp_path, monkeypatch):
    """Ctrl-C while the second of three files is moved to its place."""
    replace = Path.replace

    def disturbed(self, target):
        if Path(target).name == "b":
            os.kill(os.getpid(), signal.SIGINT)
        return replace(self, target)

    def write(names, end=lambda: None):
        with replacing_all() as put:
            for name in names:
                put(tmp_path / name, b"new")
            end()

    monkeypatch.setattr(Path, "replace", disturbed)
    with pytest.raises(KeyboardInterrupt):
        write("abc")
    with pytest.raises(KeyboardInterrupt):
        write("de", stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
