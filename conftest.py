"""Modules that need an optional package have no examples to test where it is missing; tests say so."""

from __future__ import annotations

import os
from importlib.util import find_spec

NEEDED = {
    "torch": ["src/tacos/runtime/torch/*", "src/tacos/runtime/nccl.py"],
    "mpi4py": ["src/tacos/runtime/mpi.py"],
}
# torch, MPI and the programs that a lab starts do not run with the sanitizers' library in their way.
sanitized = "libasan" in os.environ.get("LD_PRELOAD", "")
collect_ignore_glob = ["tests/streams.py", "tests/torch_jobs.py"]  # what ranks run
collect_ignore_glob += [
    path
    for package, paths in NEEDED.items()
    if sanitized or find_spec(package) is None
    for path in paths
]
if sanitized:
    collect_ignore_glob += ["tests/test_lab.py", "tests/test_probe.py", "tests/test_torch.py"]
