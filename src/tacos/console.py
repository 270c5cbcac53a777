"""Output of the command: named values, tables, JSON and progress.

The suffix of a field's name gives its unit. People see values with units; scripts get plain numbers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tacos import topology, units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.table import Table

    from tacos._core import Schedule, Topology
    from tacos.doctor import Check
    from tacos.judgement import Judgement
    from tacos.topology import Summary

__all__ = [
    "check_table",
    "front_table",
    "human",
    "judgement_table",
    "label",
    "print_table",
    "progress",
    "ranges_table",
    "show",
    "show_topology",
    "transfer_table",
    "width",
]


_SHARES = ("efficiency", "loss", "gap", "slower_than_ideal")
_LABELS = {
    "efficiency": "of the bound",
    "clean_time_s": "time undisturbed",
    "loss": "lost to disturbances",
    "nccl_tests_s": "time by nccl-tests",
    "in_switch_bound_s": "bound with sums in switches",
    "executed_order_s": "program in order",
    "executed_first_come_s": "program first come",
    "executed_shared_s": "program on shared links",
}


def human(name: str, value: object) -> str:
    """Format a value for people; the field's name gives its unit.

    >>> human("time_s", 1.5e-3), human("size_bytes", 64_000_000), human("efficiency", 0.5)
    ('1.5 ms', '64 MB', '50.0 %')
    >>> human("quantum_ps", 100_000)
    '100 ns'
    >>> human("loss", 0.0), human("loss", 0.0001)
    ('0.0 %', '0.01 %')
    """
    figure: Any = value  # its name tells its type
    if value is None or (name in ("algbw_Bps", "busbw_Bps") and value == 0):
        return "-"
    if name.endswith("_s"):
        return units.format_time(figure)
    if name.endswith("_ps"):
        return units.format_time(figure / 1e12)
    if name.endswith("_Bps"):
        return units.format_bandwidth(figure)
    if name.endswith(("_bytes", "bytes_max", "bytes_total")):
        return units.format_size(figure)
    if name.startswith("utilisation") or name in _SHARES:
        tiny = 0 < abs(figure) < 0.0005  # two times that differ are not "0.0 %" apart
        return f"{100 * figure:.1g} %" if tiny else f"{100 * figure:.1f} %"
    if name == "exact":
        return "yes" if value else "not known"
    if isinstance(value, bool):
        return "yes" if value else "NO" if name == "verified" else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return "\n".join(f"{label(key)}: {_inside(key, item)}" for key, item in value.items())
    return str(value)


def _inside(name: str, value: Any) -> str:
    """Format an entry of a dictionary on one line, or "ends" on a line for each engine; "best_of" holds seconds by engine."""
    if name == "ends":
        return "".join(f"\n  {engine}: {end}" for engine, end in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        unit = "_s" if name == "best_of" else ""
        return ", ".join(f"{key} {human(key + unit, item)}" for key, item in value.items())
    return human(name, value)


def label(name: str) -> str:
    """Format a field's name for people.

    >>> label("synthesis_s")
    'synthesis'
    """
    if name in _LABELS:
        return _LABELS[name]
    for suffix in ("_s", "_ps", "_Bps", "_bytes"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal."""
    from rich.console import Console

    # Names are not markup.
    Console(highlight=False, markup=False, emoji=False, width=width()).print(table)


def width() -> int:
    """Return the number of characters per line: the terminal's, or 120 for a file."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return 120
    from shutil import get_terminal_size

    return get_terminal_size().columns


def show(facts: dict[str, Any], title: str, as_json: bool, quiet: bool) -> None:
    """Print named values for people, or as JSON, or not at all."""
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    if quiet:
        return
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(label(name), human(name, value))
    print_table(table)


def show_topology(title: str, network: Topology, as_json: bool, quiet: bool) -> None:
    """Print the summary of a network for people, or as JSON, or not at all."""
    summary = topology.describe(network)
    if as_json:
        print(json.dumps(summary, indent=2))
    elif not quiet:
        print_table(_topology_table(title, summary))


def _topology_table(name: str, summary: Summary) -> Table:
    from rich import box
    from rich.table import Table

    def spread(what: Any, show: Callable[[float], str]) -> str:
        low, high = show(what["min"]), show(what["max"])
        return low if low == high else f"{low} to {high}"

    diameter = summary["diameter_hops"]
    at_least = "at least " if summary["diameter_sampled"] else ""
    dims = " x ".join(f"{kind} {size}" for kind, size in summary["dims"])
    table = Table(title=name, title_justify="left", box=box.SIMPLE, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("family", summary["family"] or "custom")
    if dims:
        table.add_row("dimensions", dims + (", symmetric" if summary["symmetric"] else ""))
    table.add_row("NPUs", f"{summary['npus']:,}")
    able = summary["multicasting_switches"], summary["reducing_switches"]
    counts = f"{able[0]:,} multicast, {able[1]:,} reduce"
    if able[0] == able[1]:
        counts = f"{able[0]:,} multicast and reduce"
    table.add_row("switches", f"{summary['switches']:,}" + (f" ({counts})" if any(able) else ""))
    table.add_row("links", f"{summary['links']:,}")
    for field, label in (("out_degree", "links out per NPU"), ("in_degree", "links in per NPU")):
        table.add_row(label, spread(summary[field], lambda n: f"{n:,.0f}"))  # type: ignore[literal-required]
    table.add_row("diameter", "disconnected" if diameter is None else f"{at_least}{diameter} hops")
    table.add_row("out per NPU", spread(summary["bandwidth_out_Bps"], units.format_bandwidth))
    table.add_row("in per NPU", spread(summary["bandwidth_in_Bps"], units.format_bandwidth))
    for link in summary["link_classes"][:8]:
        speed = units.format_bandwidth(link["bandwidth_Bps"])
        delay = units.format_time(link["latency_s"])
        table.add_row(f"{link['count']:,} links of", f"{speed}, {delay}")
    if len(summary["link_classes"]) > 8:
        table.add_row("", f"and {len(summary['link_classes']) - 8} more classes of links")
    if summary["faults"]:
        table.add_row("faults", "\n".join(summary["faults"]))
    table.add_row("link model", f"{summary['link_model']}, {summary['forwarding']}")
    if summary["switches"]:
        table.add_row("routing", summary["routing"])
    return table


_SIGNS = {"ok": ("yes", "green"), "missing": ("-", "yellow"), "broken": ("NO", "bold red")}


def check_table(checks: Iterable[Check]) -> Table:
    """Return a table of a checkup's findings and advice."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_column(overflow="fold")
    for check in checks:
        sign, style = _SIGNS[check.state]
        advice = f"\n{check.advice}" if check.advice else ""
        table.add_row(check.name, Text(sign, style), check.found + advice)
    return table


def front_table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Return a table of the points of a Pareto front."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name in ("chunks", "steps", "rounds", "rounds\nper chunk", "executed", "ideal"):
        table.add_column(name, justify="right")
    table.add_column("optimal")
    table.add_column("proven")
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("chunks", "steps", "rounds")]
        table.add_row(
            *counts,
            f"{row['rounds_per_chunk']:.4g}",
            units.format_time(row["executed_s"]),
            units.format_time(row["ideal_s"]),
            row["optimal"],
            "yes" if row["proven"] else "no",
        )
    return table


def ranges_table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Return a table of the size ranges of a tuning."""
    from rich import box
    from rich.table import Table

    roomy = width() >= 100  # 80 columns hold the longest names only without padding
    padding = (0, 1) if roomy else 0
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=padding)
    for name in ("from", "to"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("engine", overflow="fold")
    for name in ("chunks", "at", "executed", "busbw\nGB/s", "of the\nbound", "at\nleast"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            units.format_size(row["min_bytes"]),
            units.format_size(row["max_bytes"]),
            row["engine"],
            f"{row['chunks']:,}",
            units.format_size(row["size_bytes"]),
            units.format_time(row["executed_s"]),
            f"{row['busbw_Bps'] / 1e9:.2f}" if row["busbw_Bps"] else "-",
            human("efficiency", row["efficiency"]),
            human("efficiency", row["least_efficiency"]),
        )
    return table


def judgement_table(found: Judgement) -> Table:
    """Return a table of measured times and what the network allows, by size."""
    from rich import box
    from rich.table import Table

    title = f"{found.collective} of {found.ranks} ranks ({found.tool}, {found.source})"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in ("size", "measured", "busbw", "of the\nbound", "bound", "NCCL", "best"):
        table.add_column(name, justify="right")
    for row in found.rows:
        table.add_row(
            units.format_size(row.size_bytes),
            units.format_time(row.time_s),
            human("busbw_Bps", row.busbw_Bps),
            human("efficiency", row.efficiency),
            units.format_time(row.bound_s),
            "" if row.nccl_s is None else units.format_time(row.nccl_s),
            "" if row.best_s is None else units.format_time(row.best_s),
        )
    return table


def transfer_table(schedule: Schedule, rows: dict[str, Any], limit: int) -> Table:
    """Return a table of a schedule's first rows."""
    from rich import box
    from rich.table import Table

    total = len(rows["transfer"])
    title = f"{min(limit, total):,} of {total:,} transfers"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in ("start", "arrival", "chunk", "bytes"):
        table.add_column(name, justify="right")
    for name in ("from", "to", "does"):
        table.add_column(name)
    name_of = schedule.topology.node_name
    for i in range(min(limit, total)):
        does = ("copies", "adds")[rows["op"][i]] + (" its input", "")[rows["reads"][i]]
        table.add_row(
            units.format_time(rows["start_ps"][i] / 1e12),
            units.format_time(rows["arrival_ps"][i] / 1e12),
            f"{rows['chunk'][i]:,}",
            units.format_size(rows["bytes"][i]),
            name_of(int(rows["src"][i])),
            name_of(int(rows["dst"][i])),
            does,
        )
    return table


@contextmanager
def progress(what: str, silent: bool) -> Iterator[Callable[[float], None]]:
    """Show a bar with rate and remaining time on standard error, for work that takes more than a second."""
    if silent or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    begin = time.monotonic()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=1.0, rate="")

    def report(share: float) -> None:
        passed = time.monotonic() - begin
        if passed > 1 and not bar.live.is_started:
            bar.start()
        bar.update(task, completed=share, rate=f"{100 * share / max(passed, 1e-9):.3g} %/s")

    try:
        yield report
    finally:
        bar.stop()
