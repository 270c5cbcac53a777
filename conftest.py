"""What pytest leaves out where an optional package is missing; its tests say so."""

from __future__ import annotations

import importlib.util
import os

collect_ignore = ["tests/torch_jobs.py"]  # it has no examples, and imports torch
sanitized = "libasan" in os.environ.get("LD_PRELOAD", "")  # torch is not built for that
if importlib.util.find_spec("torch") is None or sanitized:
    collect_ignore += ["src/tacos/runtime/torch", "src/tacos/runtime/nccl.py"]
