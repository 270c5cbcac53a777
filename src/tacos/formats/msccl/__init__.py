"""MSCCL XML, the algorithm files of microsoft/msccl, of Azure's executor and of RCCL."""

from __future__ import annotations

from tacos.formats.msccl.dialect import DIALECTS, exceeded, obstacle
from tacos.formats.msccl.reader import read
from tacos.formats.msccl.writer import write

__all__ = ["DIALECTS", "exceeded", "obstacle", "read", "write"]
