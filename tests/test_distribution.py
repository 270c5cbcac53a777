"""A source archive made without git holds what the build and the package need."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NEEDED = ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "cpp", "src")
SOURCES = (".py", ".pyi", ".cpp", ".hpp", ".json", ".js", ".css", ".html")


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
    assert "PKG-INFO" in held
