"""Engines: ways to make a schedule.

``BASELINES`` holds the algorithms everybody knows, by name; :func:`applicable` says which of them
suit a network and a collective.
"""

from __future__ import annotations

from tacos.synth.baselines import BASELINES, applicable

__all__ = ["BASELINES", "applicable"]
