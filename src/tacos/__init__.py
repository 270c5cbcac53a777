"""TACOS: collective communication algorithms that fit the network they run on."""

from __future__ import annotations

from tacos import collective, topology
from tacos._core import Collective, Schedule, Topology
from tacos.schedule import retime
from tacos.verify import verify

__all__ = ["Collective", "Schedule", "Topology", "collective", "retime", "topology", "verify"]


def __dir__() -> list[str]:
    return __all__
