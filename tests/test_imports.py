"""What a command or an import does not use is not loaded, counted in modules; `python -m benchmarks.startup` measures times."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import tacos

pytestmark = pytest.mark.unsanitized

ROOMS = {
    *("design", "doctor", "hub", "judgement", "library", "nccl", "notebook", "reorder", "runtime"),
    *("search", "synth", "training", "view", "workers"),
}
"""Packages and modules of tacos that many programs do without."""
OTHERS = {
    *(
        "asyncio",
        "email",
        "highspy",
        "http.client",
        "importlib.metadata",
        "matplotlib",
        "multiprocessing",
    ),
    *("pandas", "pyarrow", "resvg_py", "rich", "ssl", "torch", "yaml"),
}
"""Packages of others that take long to import."""


def loaded(code, folder):
    """Return the modules that a program has loaded when it ends."""
    code += "\nimport json, sys; print(json.dumps(list(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


def rooms_of(modules):
    return {name.split(".")[1] for name in modules if name.startswith("tacos.")} & ROOMS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("imports")
    ring = tacos.topology.ring(4)
    wanted = tacos.collective.all_reduce(ring, "4KB", chunks=1)
    tacos.save(tacos.synthesize(ring, wanted, engine="ring"), made / "ar.tacos")
    return made


@pytest.mark.parametrize(
    ("words", "rooms", "others"),
    [
        ("topo ring:4 --quiet", "", ""),
        ("topo ring:4", "", "rich"),
        ("bound ring:4 all-reduce 4KB --quiet", "", ""),
        ("synth ring:4 all-reduce 4KB --engine ring --quiet", "search synth", ""),
        ("info ar.tacos --quiet", "", ""),
        ("verify ar.tacos --quiet", "", ""),
        ("sim ar.tacos --quiet", "view", ""),
        ("view ar.tacos -o ar.html --quiet", "nccl synth view", ""),
        ("convert ar.tacos ar.xml --quiet", "", ""),
        ("train --help", "training", "rich"),
        ("design --help", "design", "rich"),
        ("run --help", "", "rich"),
        ("hub --help", "", "rich"),
        ("switch --help", "", "rich"),
        ("judge --help", "view", "rich"),
        ("reorder --help", "reorder synth", "rich"),
    ],
)
def test_a_verb_loads_what_it_uses(words, rooms, others, folder):
    """The exit code is checked too, as a verb that fails early loads little."""
    code = f"from tacos.cli import main; assert main({words.split()!r}) == 0"
    found = loaded(code, folder)
    assert rooms_of(found) == set(rooms.split())
    assert found & OTHERS == set(others.split())
    formats = {name for name in found if name.startswith("tacos.formats.")}
    files = [word for word in words.split() if "." in word]
    assert bool(files) == ("tacos.formats.native" in formats)
    assert bool(files) or formats == {"tacos.formats.source"}


def test_the_version_needs_neither_the_package_nor_numpy(folder):
    code = "import sys; sys.argv = ['tacos', '--version']; from _tacos import main; main()"
    names = {name.split(".")[0] for name in loaded(code, folder)}
    assert "_tacos" in names
    assert names & {"tacos", "numpy", "cyclopts", "importlib_metadata", "email"} == set()


def test_what_the_command_imports_is_not_looked_through_for_garbage(folder):
    code = (
        "import gc, sys; sys.argv = ['tacos', 'topo', 'ring:4', '--quiet']; from _tacos import main"
    )
    loaded(
        f"{code}; assert main() == 0 and gc.isenabled() and gc.get_freeze_count() > 10_000", folder
    )


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("tacos", 0),
        ("tacos.view", 1),
        ("tacos.design", 1),
        ("tacos.training", 1),
        ("tacos.hub", 1),
        ("tacos.runtime", 2),  # with the errors
    ],
)
def test_a_package_loads_when_a_name_of_it_is_used(name, own, folder):
    found = loaded(f"import {name}", folder)
    own_modules = {"tacos", "tacos._core", "tacos._support", "tacos._support.deferred"}
    assert own_modules <= found
    assert len({one for one in found if one.split(".")[0] == "tacos"} - own_modules) == own
    assert found & (OTHERS | {"numpy", "cyclopts", "msgspec"}) == set()
