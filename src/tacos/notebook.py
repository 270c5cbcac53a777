"""HTML for notebooks: a drawing of a network, a schedule in the viewer, tables of figures.

Pictures and tables come from layers above the classes that they show. So ``_repr_html_`` of each class calls
``tacos._core.to_html``, which the package connects to `html`. Drawing modules are imported on first use.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Schedule, Topology, Workload
from tacos._support import frames
from tacos.errors import TacosError
from tacos.program import Program, describe
from tacos.schedule import summary
from tacos.search.comparison import Comparison, Sweep
from tacos.simulate import Trace
from tacos.topology import describe as describe_topology
from tacos.workload import COLL, COMMS, KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pandas import DataFrame
    from rich.table import Table

__all__ = ["frame", "html"]

_DRAWN = 2_000
"""Largest number of nodes for which a network is drawn; a larger one is only described."""
_WIDTH = 560
_VIEWED = 20_000
"""Largest number of transfers for which a schedule is shown in the viewer; a larger one is only described."""
_HEIGHT = 640


def html(item: Topology | Schedule | Program | Trace | Comparison | Sweep) -> str:
    """Return the HTML that a notebook shows for an object.

    >>> import tacos
    >>> shown = html(tacos.topology.torus(4, 4))
    >>> "<svg" in shown and "16 NPUs" in shown
    True
    """
    return next(show(item) for kind, show in _SHOWN.items() if isinstance(item, kind))


def frame(item: Topology | Schedule | Workload) -> DataFrame:
    """Return a pandas DataFrame of a network's links, a schedule's transfers or a workload's nodes.

    Codes are replaced by names, and node numbers are followed by names.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> frame(topo)[["src_name", "dst_name"]].iloc[0].tolist()
    ['npu 0', 'npu 1']
    """
    if isinstance(item, Workload):
        rows = item.rows()
        rows["comm"] = np.where(rows["kind"] == COLL, rows["comm"], len(COMMS))  # others have none
        return frames.to_pandas(rows, {"kind": KINDS, "comm": tuple(COMMS)})
    network = item.topology if isinstance(item, Schedule) else item
    if isinstance(item, Schedule):
        columns = item.rows()
    else:
        columns = {
            "link": np.arange(network.links),
            "src": network.link_src,
            "dst": network.link_dst,
            "latency_ps": network.link_latency_ps,
            "bandwidth_Bps": network.link_bandwidth_Bps,
        }
    names = {"op": ("copy", "reduce"), "reads": ("input", "acc")}
    return frames.to_pandas(columns, names, network)


def _topology(network: Topology) -> str:
    from tacos import view

    if network.nodes <= _DRAWN:
        return view.draw(network, width=_WIDTH)
    facts = describe_topology(network)
    names = ("family", "npus", "switches", "links", "diameter_hops", "link_model")
    return _facts(repr(network), {name: facts[name] for name in names})  # type: ignore[literal-required]


def _schedule(schedule: Schedule) -> str:
    from tacos import view

    facts = _facts("schedule", summary(schedule))
    if schedule.transfers > _VIEWED:
        return facts
    try:
        page = view.page(schedule)
    except TacosError:  # its times contradict each other; tacos.verify explains how
        return facts
    style = f"width:100%;height:{_HEIGHT}px;border:1px solid #9aa5b1"
    return f'{facts}<iframe title="viewer" style="{style}" srcdoc="{escape(page)}"></iframe>'


def _program(program: Program) -> str:
    return _facts("program", describe(program))


def _trace(trace: Trace) -> str:
    from tacos import view

    picture = view.heat_picture(trace) if trace.recorded else ""
    return _facts("trace", trace.summary()) + picture


def _comparison(result: Comparison | Sweep) -> str:
    from tacos import view

    tables = [_table(table) for table in view.comparison_tables(result)]
    return "".join([*tables, f"<p>{escape(result.verdict())}</p>"])


_SHOWN: dict[type, Callable[[Any], str]] = {
    Topology: _topology,
    Schedule: _schedule,
    Program: _program,
    Trace: _trace,
    Comparison: _comparison,
    Sweep: _comparison,
}


def _facts(title: str, facts: Mapping[str, Any]) -> str:
    from tacos.console import human, label

    rows = ([label(name), human(name, value)] for name, value in facts.items())
    return _rows(title, [], rows)


def _table(table: Table) -> str:
    """Convert a table for terminals to HTML."""
    heads = [str(column.header) for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    return _rows(str(table.title or ""), heads, ([str(cell) for cell in row] for row in rows))


def _rows(title: str, heads: list[str], rows: Iterable[list[str]]) -> str:
    def line(tag: str, cells: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{_text(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    head = line("th", heads) if heads else ""
    return f"<table><caption>{_text(title)}</caption>{head}{body}</table>"


def _text(words: str) -> str:
    return escape(words).replace("\n", "<br>")
