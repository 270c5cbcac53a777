"""MSCCL++ execution plans, the JSON files that its executor runs."""

from __future__ import annotations

from tacos.formats.mscclpp.reader import read
from tacos.formats.mscclpp.writer import write

__all__ = ["read", "write"]
