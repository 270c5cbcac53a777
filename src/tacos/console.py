"""What the command prints: named values, tables, JSON and progress.

People read the values with their units, which the fields' names say; scripts get them as they are.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tacos import topology, units

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.table import Table

    from tacos._core import Schedule, Topology
    from tacos.topology import Summary

__all__ = [
    "front_table",
    "print_table",
    "progress",
    "ranges_table",
    "show",
    "show_topology",
    "transfer_table",
    "width",
]


def _human(name: str, value: Any) -> str:
    """A value as people read it; the field's name says its unit."""
    if value is None or (name == "busbw_Bps" and value == 0):
        return "-"
    if name.endswith("_s"):
        return units.format_time(value)
    if name.endswith("_Bps"):
        return units.format_bandwidth(value)
    if name.endswith(("_bytes", "bytes_max", "bytes_total")):
        return units.format_size(value)
    if name.startswith("utilisation") or name in ("efficiency", "loss", "gap"):
        return f"{100 * value:.1f} %"
    if name == "exact":
        return "yes" if value else "not known"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return "\n".join(f"{_label(key)}: {item}" for key, item in value.items())
    return str(value)


def _label(name: str) -> str:
    for suffix in ("_s", "_Bps", "_bytes"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal."""
    from rich.console import Console

    # Names are no markup.
    Console(highlight=False, markup=False, emoji=False, width=width()).print(table)


def width() -> int:
    """Characters in a line; a file has no width."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if known else 120


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
        table.add_row(_label(name), _human(name, value))
    print_table(table)


def show_topology(title: str, network: Topology, as_json: bool, quiet: bool) -> None:
    """Print what a network is like for people, or as JSON, or not at all."""
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
    table.add_row("switches", f"{summary['switches']:,}")
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
    table.add_row("link model", f"{summary['link_model']}, {summary['forwarding']}")
    return table


def front_table(title: str, rows: list[dict[str, Any]]) -> Table:
    """The points of a Pareto front, one line each."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in ("chunks", "steps", "rounds", "rounds per chunk", "time"):
        table.add_column(name, justify="right")
    table.add_column("optimal")
    table.add_column("proven")
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("chunks", "steps", "rounds")]
        table.add_row(
            *counts,
            f"{row['rounds_per_chunk']:.4g}",
            units.format_time(row["time_s"]),
            row["optimal"],
            "yes" if row["proven"] else "no",
        )
    return table


def ranges_table(title: str, rows: list[dict[str, Any]]) -> Table:
    """The ranges of a tuning, one line each."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in ("from", "to"):
        table.add_column(name, justify="right")
    table.add_column("engine")
    for name in ("chunks", "at", "time", "busbw", "efficiency"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            units.format_size(row["min_bytes"]),
            units.format_size(row["max_bytes"]),
            row["engine"],
            f"{row['chunks']:,}",
            units.format_size(row["size_bytes"]),
            units.format_time(row["time_s"]),
            _human("busbw_Bps", row["busbw_Bps"]),
            _human("efficiency", row["efficiency"]),
        )
    return table


def transfer_table(schedule: Schedule, rows: dict[str, Any], limit: int) -> Table:
    """The first of a schedule's rows, one line each."""
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
    """A progress bar on the standard error stream for work that takes over a second."""
    if silent or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    begin = time.monotonic()
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=1.0)

    def report(share: float) -> None:
        if time.monotonic() - begin > 1 and not bar.live.is_started:
            bar.start()
        bar.update(task, completed=share)

    try:
        yield report
    finally:
        bar.stop()
