"""Modules that need an optional package have no examples to test where it is missing; tests say so."""

from __future__ import annotations

import os
from importlib.util import find_spec

NEEDED = {
    "torch": ["src/tacos/runtime/torch/*", "src/tacos/runtime/nccl.py"],
    "mpi4py": ["src/tacos/runtime/mpi.py"],
}
sanitized = "libasan" in os.environ.get("LD_PRELOAD", "")  # torch is not built for that
collect_ignore_glob = ["tests/streams.py", "tests/torch_jobs.py"]  # what ranks run
collect_ignore_glob += [
    path
    for package, paths in NEEDED.items()
    if find_spec(package) is None or (sanitized and package == "torch")
    for path in paths
]
