"""Charts of what benchmarks printed, for the beginning of the page that ``benchmarks/report.py`` writes.

Each chart is drawn from the table that its benchmark printed. If the table is missing or has a different form, the chart is
left out.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from tacos.view import Axis, Series, bars, lines

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CHARTS", "Chart"]

_NAN = float("nan")


class Chart(NamedTuple):
    """A picture of one benchmark.

    Attributes:
        benchmark: The benchmark whose output it reads.
        words: What it shows, for people who cannot see it.
        draw: Returns the SVG text for an output, or None if the output does not have the table.
    """

    benchmark: str
    words: str
    draw: Callable[[str], str | None]


def _quality(printed: str) -> str | None:
    rows = re.findall(r"^machines (\S+) all_reduce +\S+ +\S+ +([\d.]+) %", printed, re.MULTILINE)
    if not rows:
        return None
    return bars(
        [machine for machine, _ in rows],
        [Series("share", [float(share) / 100 for _, share in rows])],
        Axis("share of the bound that the best schedule reaches", "share"),
        title="All-reduce of 1 GB: how close schedules are to the bound",
        mark=(1.0, "bound"),
    )


def _speed(printed: str) -> str | None:
    """Draw the seconds to synthesize an all-gather over the number of NPUs."""
    found: dict[str, dict[int, float]] = {}
    pattern = r"^(?:torus|mesh):(\d+(?:x\d+)*) +(\w+) +\d+ +\d+ +\S+ +([\d.]+) +(\S+)"
    for sizes, engine, seconds, public in re.findall(pattern, printed, re.MULTILINE):
        npus = math.prod(map(int, sizes.split("x")))
        for name, took in ((engine, seconds), ("published TACOS 1.3", public)):
            if took != "-":
                least = found.setdefault(name, {})
                least[npus] = max(least.get(npus, 0.0), float(took))
    if not found:
        return None
    curves = []
    for name, times in found.items():
        places = sorted(times)
        role = "plain" if name.startswith("published") else "strong"
        curves.append(Series(name, [times[n] for n in places], places, role))
    return lines(
        curves,
        Axis("NPUs", log=True),
        Axis("time to synthesize", "time", log=True),
        title="All-gathers on grids: the slowest of each size",
    )


def _algorithms(printed: str) -> str | None:
    """Draw the speed-ups over a ring, on regular networks."""
    head = "Regular networks: all-reduce of 256 MiB, times as fast as ring\n"
    if head not in printed:
        return None
    names, *rows = printed.partition(head)[2].partition("\n\n")[0].splitlines()
    columns = re.split(r"\s{2,}", re.sub("two-way ring", "two-way-ring", names).strip())
    columns = [part for word in columns for part in word.split(" ")]
    table = [
        (row[:20].strip(), [_NAN if v == "-" else float(v) for v in row[20:].split()])
        for row in rows
    ]
    kept = [name for name in ("greedy", "MultiTree", "Themis", "two-way-ring") if name in columns]
    series = [Series(name, [values[columns.index(name)] for _, values in table]) for name in kept]
    return bars(
        [name for name, _ in table],
        series,
        Axis("times as fast as a ring"),
        title="All-reduce of 256 MiB: synthesized (greedy) beside known algorithms",
    )


def _nccl(printed: str) -> str | None:
    pattern = r"^(\S+) +all-reduce +8 +(\d+) MiB +([\d.]+) +([\d.]+) us"
    rows = re.findall(pattern, printed, re.MULTILINE)
    if not rows:
        return None
    curves = []
    for device in dict.fromkeys(row[0] for row in rows):
        mine = [row for row in rows if row[0] == device]
        sizes = [int(row[1]) * 2**20 for row in mine]
        for name, column, role in (("measured", 2, "strong"), ("model", 3, "plain")):
            times = [float(row[column]) * 1e-6 for row in mine]
            curves.append(Series(f"8 {device}, {name}", times, sizes, role))
    return lines(
        curves,
        Axis("size", "size", log=True),
        Axis("time", "time", log=True),
        title="Stock NCCL's all-reduce: what was measured, and the model",
    )


def _executor(printed: str) -> str | None:
    curves = []
    for part in re.split(r"^over ", printed, flags=re.MULTILINE)[1:]:
        name = part.partition("\n")[0]
        rows = re.findall(r"^ +(\d+) .*?([\d.]+)$", part, re.MULTILINE)
        if rows:
            sizes = [int(size) for size, _ in rows]
            curves.append(Series(f"over {name}", [float(ratio) for _, ratio in rows], sizes))
    if not curves:
        return None
    even = [float(size) for size in curves[0].x]
    curves.append(Series("gloo", [1.0] * len(even), even, "strong"))
    return lines(
        curves,
        Axis("size", "size", log=True),
        Axis("time over gloo's"),
        title="All-reduce of 4 ranks on one machine: our executor over gloo, lower is faster",
    )


def _training(printed: str) -> str | None:
    rows = re.findall(r"^(\S.*?) +(\d+) +([\d.]+)% +\d+% +([\d.]+)%", printed, re.MULTILINE)
    if not rows:
        return None
    return bars(
        [f"{source}, {count} steps" for source, count, _, _ in rows],
        [
            Series("mean", [float(mean) for _, _, mean, _ in rows]),
            Series("median", [float(median) for _, _, _, median in rows]),
        ],
        Axis("error of the predicted step time, %"),
        title="Training steps: predicted beside published times",
    )


CHARTS: dict[str, Chart] = {
    "quality": Chart(
        "quality", "A bar for each machine: the share of the bound that its all-reduce reaches.", _quality
    ),
    "speed": Chart(
        "synthesis", "Seconds to synthesize over the number of NPUs, beside published TACOS.", _speed
    ),
    "algorithms": Chart(
        "paper_tacos", "How many times as fast as a ring algorithms are, network by network.", _algorithms
    ),
    "nccl": Chart("nccl", "Measured times of NCCL's all-reduce over size, and the model's.", _nccl),
    "training": Chart(
        "training", "Errors of predicted training steps, by source: mean and median.", _training
    ),
    "executor": Chart("runtime", "Times of the executor over gloo's, by size.", _executor),
}  # fmt: skip
