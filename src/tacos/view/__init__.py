"""Pictures of networks and of figures; :func:`save` writes them as SVG or PNG."""

from __future__ import annotations

from tacos.view.axes import Axis
from tacos.view.charts import Series, bars, heat_map, lines, stack
from tacos.view.draw import draw
from tacos.view.svg import save

__all__ = ["Axis", "Series", "bars", "draw", "heat_map", "lines", "save", "stack"]
