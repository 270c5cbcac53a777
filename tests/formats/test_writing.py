"""Writing files atomically, and network names that are too long."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import tacos
from tacos import formats
from tacos._support import files
from tacos.cli import main
from tacos.errors import SpecError
from tests.support.work import calls


def test_files_that_killed_processes_have_left_are_removed(tmp_path):
    """Temporary files that are more than a day old are removed; newer ones and files of other names stay."""
    stale, new, other = (
        tmp_path / name for name in (".tacos-" + "0" * 16, ".tacos-" + "1" * 16, ".tacos-notes")
    )
    for path in (stale, new, other):
        path.write_bytes(b"half")
    for path in (stale, other):
        os.utime(path, (time.time() - 2 * 24 * 3600,) * 2)
    tacos.save(tacos.topology.ring(4), tmp_path / "ring.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, other.name, "ring.yaml"]


def test_files_are_on_the_disk_before_they_take_their_places(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(os, "fdatasync", lambda _: told.append("synced"))
    place = files._place

    def placed(*paths):
        told.append("placed")
        place(*paths)

    monkeypatch.setattr(files, "_place", placed)
    tacos.save(tacos.topology.ring(4), tmp_path / "ring.yaml")
    assert told == ["synced", "placed"]


@pytest.mark.parametrize(
    "text", ["x" * 250_000, "torus:" + "2x" * 100_000 + "2", "ring:" + "9" * 250_000, "(" * 250_000]
)
def test_long_names_of_networks_are_refused(text, capsys):
    def refuse(text, match):
        with pytest.raises(SpecError, match=match):
            formats.network(text)
        return main(["synth", "ring:4", "all-reduce", text])

    refuse("rng:4", "rng")  # imports what is needed
    capsys.readouterr()
    told = f"the network has {len(text)} characters, beginning with"
    work, code = calls(lambda: refuse(text, told))
    assert code == 2
    said = capsys.readouterr().err
    # A name of a few characters is looked at closely; of a long one, only the length.
    assert work < calls(lambda: refuse("rng:4", "rng"))[0]
    assert said.count("\n") == 1
    assert len(said) < 400


def test_the_longest_path_is_still_read(tmp_path):
    folder = Path(tmp_path, *["d" * 200] * 3)
    folder.mkdir(parents=True)
    tacos.save(tacos.topology.ring(4), folder / "ring.yaml")
    assert formats.network(str(folder / "ring.yaml")).npus == 4
