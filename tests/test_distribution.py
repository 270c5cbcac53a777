"""What is published: a source archive made without git, and a core for the stable ABI of Python."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import tacos

ROOT = Path(__file__).parent.parent
NEEDED = ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "cpp", "src")
SOURCES = (".py", ".pyi", ".typed", ".cpp", ".hpp", ".json", ".js", ".css", ".html")


def test_the_version_is_the_same_in_all_places():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert tacos.__version__ == project["version"]
    assert f"version: {tacos.__version__}" in (ROOT / "CITATION.cff").read_text().splitlines()
    described = re.findall(r"^## \[(\d.*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert described[0] == tacos.__version__


@pytest.mark.slow
def test_a_source_archive_made_without_git_is_complete(tmp_path):
    pytest.importorskip("scikit_build_core")
    here = tmp_path / "tree"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.d.ts")
    here.mkdir()
    for name in NEEDED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, here / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, here / name)
    (here / "src" / "tacos" / "_core.abi3.so").write_bytes(b"compiled in place")
    build = "import scikit_build_core.build as b; print(b.build_sdist('out'))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=here, check=True, capture_output=True, text=True
    )
    archive = here / "out" / done.stdout.split()[-1]
    with tarfile.open(archive) as packed:
        held = {"/".join(Path(name).parts[1:]) for name in packed.getnames()}
    there = {
        path.relative_to(here).as_posix()
        for name in NEEDED
        for path in [here / name, *(here / name).rglob("*")]
        if path.is_file() and (path.suffix in SOURCES or path.parent == here)
    }
    assert there - held == set()
    assert not [name for name in held if name.endswith(".so")]
    assert "PKG-INFO" in held


def later_python() -> str | None:
    """Return a Python of 3.12 or newer that has headers, if the machine has one."""
    begins = (
        "import sys, sysconfig; print(sys.version_info >= (3, 12), sysconfig.get_path('include'))"
    )
    found = (shutil.which(f"python3.{minor}") for minor in range(12, 20))
    others = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    for python in [path for path in found if path] + [str(path) for path in others]:
        done = subprocess.run([python, "-c", begins], capture_output=True, text=True, check=False)
        new, _, include = done.stdout.strip().partition(" ")
        if new == "True" and (Path(include) / "Python.h").exists():
            return python
    return None


@pytest.mark.slow
def test_the_bindings_need_only_the_stable_abi(tmp_path):
    """nanobind builds for one version without a word if CMake does not look for the stable ABI."""
    nanobind, python = pytest.importorskip("nanobind"), later_python()
    if python is None:
        pytest.skip("needs Python 3.12 or newer with its headers")
    tools = Path(sys.executable).parent
    configure = [
        tools / "cmake",
        "-S",
        ROOT,
        "-B",
        tmp_path,
        "-G",
        "Ninja",
        "-DTACOS_BATCH=1000000",
    ]
    configure += [f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", f"-DPython_EXECUTABLE={python}"]
    configure += [f"-DCMAKE_PREFIX_PATH={nanobind.cmake_dir()}"]
    # What scikit-build-core passes for wheel.py-api.
    configure += ["-DSKBUILD_SABI_COMPONENT=Development.SABIModule", "-DSKBUILD_SABI_VERSION=3.12"]
    done = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    (bindings,) = [c for c in commands if Path(c["file"]).name.startswith("unity_cpp_bindings")]
    assert "Py_LIMITED_API=0x030C0000" in bindings["command"]
    assert "_core.abi3.so" in (tmp_path / "build.ninja").read_text()
    words = [*shlex.split(bindings["command"]), "-fsyntax-only"]
    done = subprocess.run(
        words, cwd=bindings["directory"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
