"""Pictures of networks."""

from __future__ import annotations

from tacos.view.draw import draw

__all__ = ["draw"]
