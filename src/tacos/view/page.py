"""The viewer: one HTML page of schedules, rings and timelines that needs nothing else.

A page shows one view at a time: runs of schedules (one, or two on one clock), rings on a
network, or timelines of workloads. The page's code is in ``viewer/``: plain JavaScript modules, a style
sheet and a template, which are copied into the page. The columns of :mod:`tacos.view.record` and
:mod:`tacos.view.spans` are stored as gzip in base64. Of a run that resembles another, only the differences are stored.
"""

from __future__ import annotations

import base64
import gzip
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos import nccl
from tacos._support.files import replacing
from tacos.errors import TacosError, check_type
from tacos.execution import executed
from tacos.schedule import Schedule
from tacos.view.record import DETAIL, Record, record
from tacos.view.rings import ring_links

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tacos._core import Topology
    from tacos.simulate import Trace
    from tacos.targets import Rule
    from tacos.units import Quantity

    Rings = Mapping[str, Sequence[Sequence[int]]]

__all__ = ["Page", "page", "write_page"]

_TYPES = {"|u1": "u8", "<u4": "u32", "<i4": "i32", "<f4": "f32", "<f8": "f64"}
_GROWING = {
    "arrival_time", "arrival_transfer", "busy_begin", "busy_transfer", "chunk", "chunk_source",
    "drawn_link", "drawn_node", "lane_link", "link_dst", "link_src", "path_begin", "path_end", "span_begin",
}  # fmt: skip
"""Columns that are stored as differences, because these are small and compress better."""
_LEVEL = 5
_RULES: dict[Rule, str] = {"first-come": "first come, first served", "shared": "links shared"}
"""Titles of the views of executed schedules; the rule "order" gives the schedule's own times."""
_RULED = 20_000
"""Most transfers of a schedule that a page also shows under other rules."""
_RINGED = 256
"""Most NPUs of a network for which NCCL's rings are computed."""


class Page:
    """Collects views and their data, and makes a page of them."""

    def __init__(self) -> None:
        self.views: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []
        self.timelines: list[dict[str, Any]] = []
        self.data: list[str] = []
        self.kept: list[Record] = []

    def add_run(self, one: Record, base: int | None = None) -> int:
        """Add a run; columns that are equal to those of the run `base` are not stored again."""
        facts, columns = one.facts, one.columns
        if base is not None:
            before = self.kept[base]
            facts = {n: v for n, v in facts.items() if before.facts.get(n) != v}
            columns = {n: v for n, v in columns.items() if not np.array_equal(before.columns[n], v)}
        entry = {"facts": facts, "layout": self._pack(f"columns-{len(self.runs)}", columns)}
        self.runs.append(entry | ({} if base is None else {"base": base}))
        self.kept.append(one)
        return len(self.runs) - 1

    def add_timeline(self, one: Record) -> int:
        """Add a timeline."""
        layout = self._pack(f"timeline-{len(self.timelines)}", one.columns)
        self.timelines.append({"facts": one.facts, "layout": layout})
        return len(self.timelines) - 1

    def add_view(self, title: str, **what: object) -> int:
        """Add a view: ``runs=[…]``, with or without ``rings=…``, or ``timeline=…``; return its number."""
        self.views.append({"title": title, **what})
        return len(self.views) - 1

    def _pack(self, name: str, columns: dict[str, NDArray[Any]]) -> list[list[Any]]:
        layout, packed = _packed(columns)
        text = base64.b64encode(packed).decode()
        self.data.append(f'<script type="text/plain" id="{name}">{text}</script>')
        return layout

    def html(self) -> str:
        """Return the page as text."""
        parts = [
            ("runs", self.runs),
            ("timelines", self.timelines),
            ("views", self.views),
        ]
        scripts = []
        for name, value in parts:
            # "</script>" in a name would end the element.
            text = json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
            scripts.append(f'<script type="application/json" id="{name}">{text}</script>')
        template = _source("viewer.html")
        pieces = {
            "style": _source("viewer.css"),
            "modules": _modules(),
            "data": "\n".join([*scripts, *self.data]),
        }
        for name, text in pieces.items():
            before, after = template.split("{{" + name + "}}")
            template = before + text + after
        return template


def page(
    schedule: Schedule,
    other: Schedule | None = None,
    *,
    names: Sequence[str] = (),
    traces: Sequence[Trace] = (),
    rules: bool = True,
    rings: Rings | None = None,
    detail: int = DETAIL,
    memory_limit: Quantity = "16GiB",
    progress: Callable[[float], object] | None = None,
) -> str:
    """Return the viewer's page for a schedule, or for two side by side on one clock, as HTML text.

    Args:
        schedule: The schedule to show. An orbit is expanded.
        other: A second schedule, on any network.
        names: Names of the schedules, such as those of their files.
        traces: Traces of simulations, which are shown instead of the schedules' own times.
        rules: Whether to add views of the schedules executed under other rules for links. Schedules of more than
            20,000 transfers, and those that take the same time under every rule, are shown once.
        rings: Rings through the NPUs of the first network to draw on it, by title. By default, the rings that NCCL
            would build, on networks of up to 256 NPUs.
        detail: The largest number of transfers that can be inspected one by one. A longer schedule shows only every
            n-th chunk in detail; overviews count all transfers, and the page says so.
        memory_limit: Raise an error if making the page would take more memory.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: A schedule's own times contradict each other.
        TacosError: A schedule is too long for the memory.
        ValueError: `detail` is not positive, the number of names or traces is wrong, or
            a trace belongs to another network or another simulator.

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
    made = Page()
    firsts = []
    for k, one in enumerate(schedules):
        firsts.append(
            made.add_run(
                record(
                    one,
                    traces[k] if traces else None,
                    name=names[k] if names else "",
                    detail=detail,
                    memory_limit=memory_limit,
                    progress=_part(progress, k / len(schedules), len(schedules)),
                )
            )
        )
    made.add_view("simulated" if traces else "schedule", runs=firsts)
    if rules and not traces:
        add_rules(made, schedules, firsts, detail=detail)
    add_rings(made, schedule.topology, firsts[0], rings)
    return made.html()


def add_rules(
    made: Page, schedules: Sequence[Schedule], runs: Sequence[int], *, detail: int
) -> None:
    """Add views of schedules under other rules for links, if these change the time."""
    times = [made.kept[run].facts["executed"] for run in runs]
    if any(one is None for one in times) or any(s.transfers > _RULED for s in schedules):
        return
    for rule, title in _RULES.items():
        took = [one[f"executed_{rule.replace('-', '_')}_s"] for one in times]
        if all(abs(t - s.time_s) < 1e-12 for t, s in zip(took, schedules, strict=True)):
            continue
        found = []
        for run, schedule in zip(runs, schedules, strict=True):
            like = made.kept[run]
            name = like.facts["name"]
            trace = executed(schedule, rule)
            found.append(
                made.add_run(record(schedule, trace, name=name, detail=detail, like=like), base=run)
            )
        made.add_view(title, runs=found)


def add_rings(made: Page, topology: Topology, run: int, rings: Rings | None) -> None:
    """Add views of rings on a run's network."""
    if rings is None:
        rings = {}
        if 2 < topology.npus <= _RINGED:
            try:
                rings = {"NCCL's rings": nccl.rings(topology)}
                if topology.faults is not None:
                    rings["NCCL's rings, unaware of the faults"] = nccl.rings(topology, aware=False)
            except (TacosError, ValueError):  # NCCL finds no ring through this network
                return
    for title, given in rings.items():
        ways = [
            {"npus": list(map(int, ring)), "links": ring_links(topology, ring)} for ring in given
        ]
        made.add_view(title, runs=[run], rings=ways)


def write_page(
    path: str | os.PathLike[str],
    schedule: Schedule,
    other: Schedule | None = None,
    *,
    names: Sequence[str] = (),
    traces: Sequence[Trace] = (),
    rules: bool = True,
    rings: Rings | None = None,
    detail: int = DETAIL,
    memory_limit: Quantity = "16GiB",
    progress: Callable[[float], object] | None = None,
) -> None:
    """Write the viewer's page to a file, atomically; the options are those of `page`.

    >>> import tacos, tempfile, pathlib
    >>> topo = tacos.topology.ring(4)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = pathlib.Path(folder, "ring.html")
    ...     write_page(target, schedule)
    ...     target.stat().st_size < 250_000
    True
    """
    text = page(
        schedule,
        other,
        names=names,
        traces=traces,
        rules=rules,
        rings=rings,
        detail=detail,
        memory_limit=memory_limit,
        progress=progress,
    )
    with replacing(path) as out:
        out.write(text.encode())


def _part(
    progress: Callable[[float], object] | None, begin: float, parts: int
) -> Callable[[float], object] | None:
    return None if progress is None else lambda share: progress(begin + share / parts)


def _packed(columns: dict[str, NDArray[Any]]) -> tuple[list[list[Any]], bytes]:
    """Return the name, type, length and encoding of every column, and the compressed data."""
    layout, planes = [], []
    for name, values in columns.items():
        growing = name in _GROWING
        array = np.ascontiguousarray(values)
        layout.append([name, _TYPES[array.dtype.newbyteorder("<").str], len(array), growing])
        if growing:  # modulo 2^32, which decoding reverses
            array = np.diff(array.view(np.uint32), prepend=np.uint32(0))
        size = array.dtype.itemsize
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        planes.append(array.view(np.uint8).reshape(-1, size).T.tobytes())
    return layout, gzip.compress(b"".join(planes), _LEVEL, mtime=0)


def _source(name: str) -> str:
    return (files("tacos.view") / "viewer" / name).read_text(encoding="utf-8")


def _modules() -> str:
    """Return an import map, with every module as a data URL."""
    names = sorted(_scripts(item.name for item in (files("tacos.view") / "viewer").iterdir()))
    imports = {}
    for name in names:
        code = _source(name).replace('from "./', 'from "tacos/')
        text = base64.b64encode(code.encode()).decode()
        imports[f"tacos/{name}"] = f"data:text/javascript;charset=utf-8;base64,{text}"
    return json.dumps({"imports": imports})


def _scripts(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(".js")]
