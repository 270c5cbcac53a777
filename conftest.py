"""Modules that need an optional package have no examples to test where it is missing."""

from __future__ import annotations

from importlib.util import find_spec

NEEDED = {
    "torch": ["src/tacos/runtime/torch/*", "src/tacos/runtime/nccl.py"],
    "mpi4py": ["src/tacos/runtime/mpi.py"],
}
collect_ignore_glob = [
    path for package, paths in NEEDED.items() if find_spec(package) is None for path in paths
]
