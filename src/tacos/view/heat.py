"""Heat maps of the links of a trace over time: as characters for a terminal, or as a picture."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tacos.units import format_time
from tacos.view.axes import Axis
from tacos.view.charts import heat_map

if TYPE_CHECKING:
    from tacos.simulate.trace import Trace

__all__ = ["heat_picture", "heat_text"]

_SHADES = " ░▒▓█"
_ASCII_SHADES = " .:*#"


def heat_text(trace: Trace, *, width: int = 80, height: int = 16, encoding: str = "utf-8") -> str:
    """Draw links from top to bottom and time from left to right, with darker characters for busier links.

    If there are more links than lines, a line is the mean of several links. If the `encoding` lacks block
    characters, ASCII is used.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(topo, "4MB", chunks=1)
    >>> trace = tacos.simulate(tacos.synthesize(topo, coll, engine="ring"))
    >>> print(heat_text(trace, width=32, height=2))
    links 0-3 |██████▓██████▓█████▓|
    links 4-7 |                    |
              0              61.5 us
    """
    links = trace.topology.links
    lines = min(height, links)
    groups = list(pairwise(links * i // max(lines, 1) for i in range(lines + 1)))
    labels = [_label(trace, *group) for group in groups]
    margin = max(map(len, labels), default=0)
    bins = max(1, width - margin - 3)
    share = trace.utilisation_over_time(bins)[1]
    signs = _SHADES if _encodes(encoding, _SHADES) else _ASCII_SHADES
    rows = []
    for label, (first, last) in zip(labels, groups, strict=True):
        mean = np.clip(share[first:last].mean(axis=0), 0, 1)
        shades = np.rint(mean * (len(signs) - 1)).astype(int)
        rows.append(f"{label:>{margin}} |{''.join(signs[i] for i in shades)}|")
    end = format_time(trace.time_s)
    rows.append(f"{'':{margin}} 0{end:>{bins + 1}}")
    return "\n".join(rows)


def heat_picture(trace: Trace) -> str:
    """Draw the heat map as an SVG picture with one row per link.

    Raises:
        ValueError: Nothing happens in the trace.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(topo, "4MB", chunks=1)
    >>> trace = tacos.simulate(tacos.synthesize(topo, coll, engine="ring"))
    >>> "npu 0 -&gt; npu 1" in heat_picture(trace)
    True
    """
    if trace.time_ps == 0:
        raise ValueError("the trace takes no time, there is nothing to draw")
    return heat_map(
        np.clip(trace.utilisation_over_time(600)[1], 0, 1),
        Axis("time", "time"),
        (0, trace.time_s),
        row_labels=[_label(trace, link, link + 1) for link in range(trace.topology.links)],
        title=f"How busy the links are, {format_time(trace.time_s)} in all",
    )


def _encodes(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _label(trace: Trace, begin: int, end: int) -> str:
    if end - begin > 1:
        return f"links {begin}-{end - 1}"
    topology = trace.topology
    ends = (int(topology.link_src[begin]), int(topology.link_dst[begin]))
    return " -> ".join(topology.node_name(node) for node in ends)
