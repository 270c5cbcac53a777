"""Collect the pages of the manual as tests; leave out modules whose optional package is missing."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

import pytest

from tests.pages import Page

NEEDED = {
    "torch": [
        "src/tacos/runtime/torch/*",
        "src/tacos/runtime/carriers/waves.py",
        "src/tacos/runtime/carriers/nccl.py",
        "src/tacos/hub/training.py",
    ],
    "mpi4py": ["src/tacos/runtime/mpi.py", "src/tacos/runtime/*/mpi*.py"],
}
collect_ignore_glob = [
    "tests/support/streams.py",  # run by ranks, as the next ones
    "tests/support/torch_*.py",
    "tests/support/fake_nccl.py",  # imports torch
]
collect_ignore_glob += [
    path for package, paths in NEEDED.items() if find_spec(package) is None for path in paths
]

os.environ["COLUMNS"] = "80"  # the width of the output on the pages
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs with SIGINT ignored; the processes that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _searched_anew(monkeypatch):
    """Let each test search anew: two equal answers prove something, and one test does not save another its search."""
    from tacos.search.known import KNOWN

    KNOWN.forget()
    monkeypatch.setattr(KNOWN, "most_bytes", 0)


SLOW_PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/install.md",
    "docs/guide/comparing.md",
    "docs/guide/synthesis.md",
    "docs/guide/tuning.md",
    "docs/howto/choose-a-carrier.md",
    "docs/howto/degraded-torus.md",
    "docs/howto/design-a-network.md",
    "docs/howto/export.md",
    "docs/howto/judge.md",
    "docs/howto/nccl-ring.md",
    "docs/howto/process-groups.md",
)
"""Pages that take many seconds; they run with the slow tests."""


def pytest_collect_file(file_path, parent):
    """Collect each page of the manual as a test."""
    if file_path.suffix != ".md":
        return None
    page = Page.from_parent(parent, path=file_path)
    if file_path.relative_to(parent.config.rootpath).as_posix() in SLOW_PAGES:
        page.add_marker("slow")
    return page
