"""MSCCL++ execution plans, the JSON files that its executor runs."""

from __future__ import annotations

from tacos.formats.mscclpp.execution_plan import obstacle
from tacos.formats.mscclpp.reader import looks_like, read
from tacos.formats.mscclpp.writer import write

__all__ = ["looks_like", "obstacle", "read", "write"]
