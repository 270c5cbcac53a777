"""Tables and charts of training steps: where the time goes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tacos._support.files import replacing
from tacos.units import format_size, format_time
from tacos.view.axes import Axis
from tacos.view.charts import Series, lines, stacked_bars

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from rich.table import Table

    from tacos.training.step import Step

__all__ = [
    "scaling_picture",
    "scaling_table",
    "step_picture",
    "step_table",
    "sweep_table",
    "write_steps",
]


_LEAST = 1e-4
"""Smallest share of a step, in percent, that is labelled with a number."""


_DEGREES = ("tp", "pp", "dp", "cp", "ep", "vp", "microbatch", "recompute", "zero", "schedule")
_MAIN_DEGREES = ("tp", "pp", "dp")
_SHORT = {"microbatch": "micro"}


def step_table(steps: Mapping[str, Step], title: str = "") -> Table:
    """Return a table with a column per step: its time, its parts, and the comparison with the first step.

    >>> import tacos
    >>> from tacos import training
    >>> job = training.model("llama3-8b"), training.Parallelism(tp=8, zero=1, batch=16), tacos.topology.dgx_h100(1)
    >>> table = step_table({name: training.step(*job, collectives=name) for name in ("nccl", "free")})
    >>> [column.header for column in table.columns]
    ['', 'nccl', 'free']
    """
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE)
    table.add_column("", style="bold", no_wrap=True)
    for name in steps:
        table.add_column(name, justify="right")
    found = list(steps.values())
    first = found[0]

    def row(label: str, texts: Sequence[str], end: bool = False) -> None:
        table.add_row(label, *texts, end_section=end)

    row("step", [format_time(one.time_s) for one in found])
    what = "tokens/s" if hasattr(first.model, "sequence") else "samples/s"
    row(what, [f"{one.tokens_per_s:,.0f}" for one in found])
    row("MFU", [f"{100 * one.mfu:.1f} %" for one in found])
    row("memory per NPU", [format_size(one.memory_bytes) for one in found], end=True)
    for name in _part_names(found):
        row(name, [_part(one, name) for one in found])
    if len(found) > 1:
        table.add_section()
        gains = [f"{first.time_s / one.time_s:.3f} x" for one in found[1:]]
        row(f"speedup over {next(iter(steps))}", ["", *gains])
    return table


def _part_names(steps: Sequence[Step]) -> list[str]:
    names: dict[str, None] = {"compute": None}
    for one in steps:
        names |= dict.fromkeys(one.parts)
    for name in ("bubble", "idle"):  # after communication
        del names[name]
        names[name] = None
    return list(names)


def _part(step: Step, name: str) -> str:
    seconds = step.parts.get(name, 0.0)
    share = 100 * seconds / step.time_s
    return f"{format_time(seconds)} {share:5.1f} %" if share >= _LEAST else "-"


def step_picture(steps: Mapping[str, Step], title: str = "") -> str:
    """Draw a bar per step, divided into its parts.

    >>> import tacos
    >>> from tacos import training
    >>> job = training.model("llama3-8b"), training.Parallelism(tp=8, zero=1, batch=16), tacos.topology.dgx_h100(1)
    >>> "compute" in step_picture({name: training.step(*job, collectives=name) for name in ("nccl", "free")})
    True
    """
    found = list(steps.values())
    names = [
        name
        for name in _part_names(found)
        if any(100 * one.parts.get(name, 0) / one.time_s >= _LEAST for one in found)
    ]
    pieces = [Series(name, [one.parts.get(name, 0.0) for one in found]) for name in names]
    notes = [f"MFU {100 * one.mfu:.1f} %" for one in found]
    return stacked_bars(
        list(steps), pieces, Axis("time of a step", "time"), title=title, notes=notes
    )


def sweep_table(
    steps: Sequence[Step], title: str = "", limit: int = 20, width: int | None = None
) -> Table:
    """Return a table with a row per step and the degrees that differ between rows; the title names the others.

    Args:
        steps: The steps to show, such as those of a :class:`~tacos.training.search.Ranking`.
        title: Text above the table.
        limit: Largest number of steps to show.
        width: Omit columns, the least important first, until the table fits into this many characters.

    >>> import tacos
    >>> from tacos import training
    >>> best = training.search(training.model("llama3-8b"), tacos.topology.dgx_h100(1), batch=32, vp=1, recompute="none")
    >>> [column.header for column in sweep_table(best, limit=3).columns][:2]
    ['dp', 'cp']
    """
    from rich import box
    from rich.table import Table

    steps = steps[:limit]
    shared, columns = [], {}
    for name in _DEGREES:
        texts = [str(getattr(one.parallel, name)) for one in steps]
        if len(set(texts)) > 1:
            columns[_SHORT.get(name, name)] = texts
        elif texts and name in _MAIN_DEGREES:
            shared.append(f"{name} {texts[0]}")
    columns["step"] = [format_time(one.time_s) for one in steps]
    columns["MFU\n%"] = [f"{100 * one.mfu:.1f}" for one in steps]
    columns["memory"] = [format_size(one.memory_bytes) for one in steps]
    for part in ("compute", "exposed", "bubble", "idle"):
        shares = (getattr(one, f"{part}_s") / one.time_s for one in steps)
        columns[f"{part}\n%"] = [f"{100 * share:.1f}" for share in shares]
    for part in ("idle", "bubble", "compute", "exposed"):
        if width is not None and _breadth(columns) > width:
            del columns[f"{part}\n%"]
    roomy = width is None or _breadth(columns) + 2 * len(columns) + 2 <= width
    words = ", ".join([title, *shared] if title else shared)
    table = Table(
        title=words or None,
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 1) if roomy else 0,
        show_edge=roomy,
    )
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _breadth(columns: Mapping[str, Sequence[str]]) -> int:
    """Return the characters of a line, with one between columns."""
    widest = (max(map(len, (*name.split("\n"), *texts))) for name, texts in columns.items())
    return len(columns) - 1 + sum(widest)


def scaling_table(
    networks: Sequence[str], curves: Mapping[str, Sequence[Step]], title: str = ""
) -> Table:
    """Return a table with a row per network and a column per curve: the speed, and the efficiency against the first network.

    >>> import tacos
    >>> from tacos import training
    >>> model, split = training.model("llama3-8b"), training.Parallelism(tp=8, zero=1, batch=64)
    >>> found = [training.step(model, split, tacos.topology.dgx_h100(n)) for n in (1, 2)]
    >>> scaling_table(["one box", "two boxes"], {"nccl": found}).row_count
    2
    """
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE)
    table.add_column("network", style="bold", no_wrap=True)
    first = next(iter(curves.values()))
    for name in ("NPUs", "dp", "batch"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in curves:
        table.add_column(name, justify="right")
    for place, network in enumerate(networks):
        split = first[place].parallel
        cells = [
            f"{format_time(steps[place].time_s)} {100 * kept:5.1f} %"
            for steps in curves.values()
            for kept in [_per_npu(steps[place]) / _per_npu(steps[0])]
        ]
        table.add_row(network, f"{split.npus:,}", f"{split.dp:,}", f"{split.batch:,}", *cells)
    return table


def scaling_picture(curves: Mapping[str, Sequence[Step]], title: str = "") -> str:
    """Draw the speed per NPU over the number of NPUs; a horizontal curve means perfect scaling.

    >>> import tacos
    >>> from tacos import training
    >>> model, split = training.model("llama3-8b"), training.Parallelism(tp=8, zero=1, batch=64)
    >>> found = [training.step(model, split, tacos.topology.dgx_h100(n)) for n in (1, 2, 4)]
    >>> "tokens per second of each NPU" in scaling_picture({"nccl": found})
    True
    """
    first = next(iter(curves.values()))[0]
    series = [
        Series(name, [_per_npu(one) for one in found], [one.parallel.npus for one in found])
        for name, found in curves.items()
    ]
    what = "tokens" if hasattr(first.model, "sequence") else "samples"
    return lines(
        series, Axis("NPUs", log=True), Axis(f"{what} per second of each NPU"), title=title
    )


def _per_npu(step: Step) -> float:
    return step.tokens_per_s / step.parallel.npus


def write_steps(path: str | os.PathLike[str], steps: Mapping[str, Step] | Sequence[Step]) -> None:
    """Write the figures of steps as a table with one line per step.

    >>> import tacos, tempfile, pathlib
    >>> from tacos import training
    >>> job = training.model("llama3-8b"), training.Parallelism(tp=8, zero=1, batch=16), tacos.topology.dgx_h100(1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "steps.csv")
    ...     write_steps(file, {"nccl": training.step(*job)})
    ...     file.read_text().splitlines()[1].split(",")[:3]
    ['nccl', 'llama3-8b', '8']
    """
    named = steps if isinstance(steps, Mapping) else {str(i + 1): s for i, s in enumerate(steps)}
    rows = [{"case": name} | _flat(one.summary()) for name, one in named.items()]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    with replacing(path) as out:
        out.write(text.getvalue().encode())


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with nested dictionaries flattened."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": item for inner, item in value.items()}
        else:
            flat[name] = value
    return flat
