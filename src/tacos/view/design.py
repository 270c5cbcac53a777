"""Tables, charts and CSV of a network design."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from tacos._support.files import replacing
from tacos.design import Design, NetworkFront, Upgrade
from tacos.units import format_bandwidth, format_dollars, format_time
from tacos.view.axes import Axis
from tacos.view.charts import Series, bars, lines

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from rich.table import Table

__all__ = ["design_picture", "design_tables", "rows_csv"]


def design_tables(result: Design | NetworkFront | Upgrade, title: str) -> list[Table]:
    """Return the tables of a result."""
    if isinstance(result, Design):
        return [_bandwidths(result, title)]
    if isinstance(result, Upgrade):
        return [_kinds(result, title)]
    return [_front(result, title)]


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table


def saved(seconds: float) -> str:
    """Format a saving of time.

    >>> saved(1.5e-6), saved(0.0)
    ('1.5 us', '-')
    """
    return format_time(seconds) if seconds > 0 else "-"


def _bandwidths(result: Design, title: str) -> Table:
    table = _table(title, ("dim", "kind", "tier"), ("bandwidth", "1 GB/s saves", "$1k saves"))
    for row in result.rows():
        table.add_row(
            row["dimension"],
            f"{row['kind']} of {row['size']:,}",
            row["tier"],
            format_bandwidth(row["bandwidth_Bps"]),
            saved(row["saved_s_per_GBps"]),
            saved(1000 * (row["saved_s_per_dollar"] or 0.0)),
        )
    return table


def _front(result: NetworkFront, title: str) -> Table:
    all_points = (*result.points, *result.runners_up)
    judged = [
        (heading, name)
        for heading, name in (("with NCCL", "nccl_s"), ("synthesized", "synthesized_s"))
        if any(getattr(point, name) is not None for point in all_points)
    ]
    table = _table(title, (), ("cost", "time", *(heading for heading, _ in judged)))
    table.add_column("network, with the bandwidth of a link", overflow="fold")
    for i, point in enumerate(all_points):
        if i == len(result.points):
            table.add_section()
        times = [getattr(point, name) for _, name in judged]
        table.add_row(
            format_dollars(point.cost),
            format_time(point.time_s),
            *("-" if seconds is None else format_time(seconds) for seconds in times),
            point.spec.replace("*", " * "),
        )
    return table


def _kinds(result: Upgrade, title: str) -> Table:
    table = _table(
        title, ("links",), ("number", "now", "upgraded", "spent", "1 GB/s saves", "$1k saves")
    )
    for kind in result.kinds:
        more = kind.upgraded_Bps > kind.bandwidth_Bps * (1 + 1e-9)
        table.add_row(
            kind.name.rpartition(" ")[0],
            f"{kind.links:,}",
            format_bandwidth(kind.bandwidth_Bps),
            format_bandwidth(kind.upgraded_Bps) if more else "-",
            format_dollars(kind.spent) if more else "-",
            saved(kind.saved_s_per_GBps),
            saved(1000 * kind.saved_s_per_dollar),
        )
    return table


def design_picture(result: Design | NetworkFront | Upgrade, title: str) -> str:
    """Return a chart: bandwidths of dimensions or links, or time over cost.

    >>> from tacos.design import Call, TrainingJob, optimize
    >>> best = optimize("ring:4*switch:8", TrainingJob((Call("all-reduce", 10**9),)), budget="100GB/s")
    >>> "77.42 GB/s" in design_picture(best, "two dimensions")
    True
    """
    bandwidth = Axis("bandwidth", "bandwidth")
    if isinstance(result, Design):
        names = [f"{one.name} ({one.kind} of {one.size})" for one in result.dims]
        return bars(
            names, [Series("bandwidth per NPU", result.bandwidths_Bps)], bandwidth, title=title
        )
    if isinstance(result, Upgrade):
        kinds = result.kinds[:24]
        return bars(
            [kind.name for kind in kinds],
            [
                Series("now", [kind.bandwidth_Bps for kind in kinds]),
                Series("upgraded", [kind.upgraded_Bps for kind in kinds]),
            ],
            bandwidth,
            title=title,
        )
    cost = [point.cost for point in result.points]
    series = [Series("model", [point.time_s for point in result.points], cost, "strong")]
    judged = [
        point for point in (*result.points, *result.runners_up) if point.synthesized_s is not None
    ]
    for point in judged:
        for words, seconds in (("NCCL", point.nccl_s), ("synthesized", point.synthesized_s)):
            if seconds is not None:
                series.append(Series(f"{words}, {point.label}", [seconds], [point.cost]))
    return lines(series, Axis("cost", "dollars", log=True), Axis("time", "time"), title=title)


def rows_csv(rows: Sequence[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write rows of plain values as CSV, with their names as the first line; lists are joined by spaces."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {
                name: " ".join(map(str, value)) if isinstance(value, list) else value
                for name, value in row.items()
            }
        )
    with replacing(path) as out:
        out.write(text.getvalue().encode())
