"""The viewer: one HTML page that shows a schedule, or two on one clock, and needs nothing else.

The page's own code is in ``viewer/``: plain JavaScript modules, a style sheet and a template, put into
the page as they are. The columns of :mod:`tacos.view.record` go into it as gzip in base64.
"""

from __future__ import annotations

import base64
import gzip
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._support.files import replacing
from tacos.errors import check_type
from tacos.schedule import Schedule
from tacos.view.record import DETAIL, Record, record

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from tacos.simulate import Trace
    from tacos.units import Quantity

__all__ = ["page", "write_page"]

_TYPES = {"|u1": "u8", "<u4": "u32", "<i4": "i32", "<f4": "f32", "<f8": "f64"}
_GROWING = {
    "arrival_time", "arrival_transfer", "busy_begin", "busy_transfer", "chunk", "chunk_source",
    "drawn_link", "drawn_node", "lane_link", "link_dst", "link_src", "path_begin", "path_end",
}  # fmt: skip
"""Columns whose differences are small, and compress better."""
_LEVEL = 5


def page(
    schedule: Schedule,
    other: Schedule | None = None,
    *,
    names: Sequence[str] = (),
    traces: Sequence[Trace] = (),
    detail: int = DETAIL,
    memory_limit: Quantity = "16GiB",
    progress: Callable[[float], object] | None = None,
) -> str:
    """The viewer's page for a schedule, or for two side by side on one clock, as HTML text.

    Args:
        schedule: What to show. An orbit is expanded.
        other: A second schedule, on any network.
        names: What to call them, such as their files' names.
        traces: What simulations made of them, to be shown instead of the schedules' own times.
        detail: The largest number of transfers that can be inspected one by one. Of a longer schedule some chunks
            are chosen, evenly; overviews count all transfers, and the page says so.
        memory_limit: A page that would take more memory to make is refused.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: A schedule's own times contradict each other.
        TacosError: A schedule is too long for the memory.
        ValueError: `detail` is not positive, there are not as many names or traces as schedules, or
            a trace is one of another network or another simulator.

    >>> import tacos
    >>> topo = tacos.topology.torus(4, 4)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "64MB"))
    >>> text = page(schedule)
    >>> text.startswith("<!doctype html>"), "http://" in text or "https://" in text
    (True, False)
    """
    schedules = [schedule] if other is None else [schedule, other]
    for name, one in zip(("schedule", "other"), schedules, strict=False):
        check_type(name, one, Schedule)
    if detail < 1:
        raise ValueError(f"detail is {detail}; it must be positive")
    for what, given in (("names", names), ("traces", traces)):
        if len(given) not in (0, len(schedules)):
            raise ValueError(f"{what} has {len(given)} entries for {len(schedules)} schedules")
    for one, trace in zip(schedules, traces, strict=False):
        if trace.simulator != "tacos" or trace.topology != one.topology:
            raise ValueError("a page shows our own simulation on the schedule's own network")
    records = []
    for k, one in enumerate(schedules):
        records.append(
            record(
                one,
                traces[k] if traces else None,
                name=names[k] if names else "",
                detail=detail,
                memory_limit=memory_limit,
                progress=_part(progress, k / len(schedules), len(schedules)),
            )
        )
    return _html(records)


def write_page(
    path: str | os.PathLike[str],
    schedule: Schedule,
    other: Schedule | None = None,
    **options: Any,
) -> None:
    """Write the viewer's page to a file, whole or not at all; the options are those of `page`.

    >>> import tacos, tempfile, pathlib
    >>> topo = tacos.topology.ring(4)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = pathlib.Path(folder, "ring.html")
    ...     write_page(target, schedule)
    ...     target.stat().st_size < 200_000
    True
    """
    text = page(schedule, other, **options)
    with replacing(path) as out:
        out.write(text.encode())


def _part(
    progress: Callable[[float], object] | None, begin: float, parts: int
) -> Callable[[float], object] | None:
    return None if progress is None else lambda share: progress(begin + share / parts)


def _html(records: Iterable[Record]) -> str:
    runs, data = [], []
    for k, one in enumerate(records):
        layout, packed = _packed(one.columns)
        runs.append({"facts": one.facts, "layout": layout})
        text = base64.b64encode(packed).decode()
        data.append(f'<script type="text/plain" id="columns-{k}">{text}</script>')
    # "</script>" in a name would end the element.
    facts = json.dumps(runs, separators=(",", ":")).replace("<", "\\u003c")
    data.insert(0, f'<script type="application/json" id="runs">{facts}</script>')
    template = _source("viewer.html")
    parts = {"style": _source("viewer.css"), "modules": _modules(), "data": "\n".join(data)}
    for name, text in parts.items():
        before, after = template.split("{{" + name + "}}")
        template = before + text + after
    return template


def _packed(columns: dict[str, NDArray[Any]]) -> tuple[list[list[Any]], bytes]:
    """Name, type, length and coding of every column, and all of them compressed."""
    layout, planes = [], []
    for name, values in columns.items():
        growing = name in _GROWING
        array = np.ascontiguousarray(values)
        layout.append([name, _TYPES[array.dtype.newbyteorder("<").str], len(array), growing])
        if growing:  # modulo 2^32, which undoes itself
            array = np.diff(array.view(np.uint32), prepend=np.uint32(0))
        size = array.dtype.itemsize
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        planes.append(array.view(np.uint8).reshape(-1, size).T.tobytes())
    return layout, gzip.compress(b"".join(planes), _LEVEL, mtime=0)


def _source(name: str) -> str:
    return (files("tacos.view") / "viewer" / name).read_text(encoding="utf-8")


def _modules() -> str:
    """An import map: every module as a data address under a name of its own."""
    names = sorted(
        item.name
        for item in (files("tacos.view") / "viewer").iterdir()
        if item.name.endswith(".js")
    )
    imports = {}
    for name in names:
        code = _source(name).replace('from "./', 'from "tacos/')
        text = base64.b64encode(code.encode()).decode()
        imports[f"tacos/{name}"] = f"data:text/javascript;charset=utf-8;base64,{text}"
    return json.dumps({"imports": imports})
