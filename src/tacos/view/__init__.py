"""Pictures of networks and of figures, and tables; :func:`save` writes a picture as SVG or PNG."""

from __future__ import annotations

from tacos.view.axes import Axis
from tacos.view.charts import Series, bars, heat_map, lines, stack
from tacos.view.comparison import comparison_tables, picture, remarks, write_csv
from tacos.view.draw import draw
from tacos.view.heat import heat_picture, heat_text
from tacos.view.svg import checked, save

__all__ = [
    "Axis",
    "Series",
    "bars",
    "checked",
    "comparison_tables",
    "draw",
    "heat_map",
    "heat_picture",
    "heat_text",
    "lines",
    "picture",
    "remarks",
    "save",
    "stack",
    "write_csv",
]
