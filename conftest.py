"""Collect the pages of the manual as tests; leave out modules whose optional package is missing."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec

from tests.pages import Page

pytest_plugins = ["tests.support.attempts"]

NEEDED = {
    "torch": [
        "src/tacos/runtime/torch/*",
        "src/tacos/runtime/carriers/waves.py",
        "tests/support/fake_nccl.py",
        "src/tacos/runtime/carriers/nccl.py",
        "src/tacos/hub/training.py",
    ],
    "mpi4py": ["src/tacos/runtime/mpi.py", "src/tacos/runtime/*/mpi*.py"],
}
# torch, MPI, browsers and the programs that a lab starts do not run with the sanitizers' library preloaded.
sanitized = "libasan" in os.environ.get("LD_PRELOAD", "")
collect_ignore_glob = ["tests/support/streams.py", "tests/support/torch_*.py"]  # run by ranks
collect_ignore_glob += [
    path
    for package, paths in NEEDED.items()
    if sanitized or find_spec(package) is None
    for path in paths
]
if sanitized:
    collect_ignore_glob += [
        "tests/runtime/test_lab.py",
        "tests/runtime/test_probe.py",
        "tests/runtime/test_torch.py",
        "tests/runtime/test_nccl.py",
        "tests/hub/test_training.py",
    ]
    # The sanitizers check C++. These test Python, or C++ that other tests run too; many start processes.
    collect_ignore_glob += [
        "README.md",
        "docs/*",
        "src/*",
        "tests/cli/*",
        "tests/view/*",
        "tests/design/*",
    ]
    collect_ignore_glob += [
        f"tests/{name}.py"
        for name in (
            "formats/test_convert", "formats/test_graphml", "formats/test_layer_text", "formats/test_machine_files",
            "formats/test_network_files", "formats/test_streams", "formats/test_topology_file", "formats/test_toy_format",
            "judgement/test_judgement", "reorder/test_costs", "reorder/test_files", "runtime/test_carriers",
            "runtime/test_run", "runtime/test_waves", "runtime/test_wiring", "search/test_compare", "search/test_tune",
            "test_ci", "test_library", "test_nodes", "test_notebook", "test_pages", "test_public_api", "test_solver",
            "test_stub", "test_units",
        )
    ]  # fmt: skip

os.environ["COLUMNS"] = "80"  # the width of the output on the pages
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs with SIGINT ignored; the processes that tests interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
