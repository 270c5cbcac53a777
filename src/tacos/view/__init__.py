"""Drawings of networks, charts, tables, and the viewer.

:func:`save` writes a picture as SVG or PNG; :func:`write_page` writes an interactive page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacos._support.deferred import gather

if TYPE_CHECKING:
    from tacos.view.axes import Axis
    from tacos.view.charts import Series, bars, heat_map, lines, stack, stacked_bars
    from tacos.view.comparison import comparison_tables, picture, remarks, write_csv
    from tacos.view.design import design_picture, design_tables, rows_csv
    from tacos.view.draw import draw
    from tacos.view.flight_pages import flight_page, write_flight_page
    from tacos.view.heat import heat_picture, heat_text
    from tacos.view.page import page, write_page
    from tacos.view.rings import judgement_picture, ring_picture
    from tacos.view.spans import timeline_page, write_timeline_page
    from tacos.view.step_pages import step_page, step_timeline, write_step_page
    from tacos.view.steps import (
        scaling_picture,
        scaling_table,
        step_picture,
        step_table,
        sweep_table,
        write_steps,
    )
    from tacos.view.svg import checked, darkened, save

__all__ = [
    "Axis",
    "Series",
    "bars",
    "checked",
    "comparison_tables",
    "darkened",
    "design_picture",
    "design_tables",
    "draw",
    "flight_page",
    "heat_map",
    "heat_picture",
    "heat_text",
    "judgement_picture",
    "lines",
    "page",
    "picture",
    "remarks",
    "ring_picture",
    "rows_csv",
    "save",
    "scaling_picture",
    "scaling_table",
    "stack",
    "stacked_bars",
    "step_page",
    "step_picture",
    "step_table",
    "step_timeline",
    "sweep_table",
    "timeline_page",
    "write_csv",
    "write_flight_page",
    "write_page",
    "write_step_page",
    "write_steps",
    "write_timeline_page",
]

gather(
    __name__,
    {
        "axes": ("Axis",),
        "charts": ("Series", "bars", "heat_map", "lines", "stack", "stacked_bars"),
        "comparison": ("comparison_tables", "picture", "remarks", "write_csv"),
        "design": ("design_picture", "design_tables", "rows_csv"),
        "draw": ("draw",),
        "flight_pages": ("flight_page", "write_flight_page"),
        "heat": ("heat_picture", "heat_text"),
        "page": ("page", "write_page"),
        "rings": ("judgement_picture", "ring_picture"),
        "spans": ("timeline_page", "write_timeline_page"),
        "step_pages": ("step_page", "step_timeline", "write_step_page"),
        "steps": (
            "scaling_picture",
            "scaling_table",
            "step_picture",
            "step_table",
            "sweep_table",
            "write_steps",
        ),
        "svg": ("checked", "darkened", "save"),
    },
)
