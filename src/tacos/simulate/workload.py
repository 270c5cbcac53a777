"""Kept for programs that import :mod:`tacos.workload` by its former name."""

from __future__ import annotations

from tacos.workload import (
    COLL,
    COMMS,
    COMP,
    RECV,
    SEND,
    Workload,
    collective,
    from_nodes,
    from_program,
    from_schedule,
    ring_all_gather,
)
from tacos.workload import load as from_chakra

__all__ = [
    "COLL",
    "COMMS",
    "COMP",
    "RECV",
    "SEND",
    "Workload",
    "collective",
    "from_chakra",
    "from_nodes",
    "from_program",
    "from_schedule",
    "ring_all_gather",
]
