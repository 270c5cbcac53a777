"""Run the benchmarks and write a page of their output, with a description of the machine.

    python -m benchmarks.report [NAME …] [-o PAGE.md] [--limit SECONDS] [--jobs N]
    python -m benchmarks.report NAME … --into PAGE.md
    python -m benchmarks.report --charts PAGE.md

Without names, all benchmarks run, in the order below. Each runs in its own process; if one fails, or takes longer than the
limit, its section says so, and the others continue. ``--jobs`` is for machines with cores to spare. The page begins with
charts of the output (``benchmarks/charts.py``), which go into ``_static/benchmarks`` beside it; ``--charts`` only redraws the
charts of a page. ``--into`` puts sections into an existing page, each with its own machine.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import tacos
from benchmarks.charts import CHARTS
from tacos._support.files import replacing
from tacos.units import format_size
from tacos.view import save

HERE = Path(__file__).parent
NAMES = (
    "startup", "foundation", "synthesis", "symmetric", "forest", "quality", "answers", "field", "deadlines", "milp", "bound", "baselines", "nccl", "paper_tacos",
    "simulate", "sharing", "execution", "astra", "workloads", "lift", "formats", "view", "training", "design", "reorder", "scale",
    "gpu_synthesis", "dispatch", "groups", "all_to_all_v", "work",
    "runtime", "notice", "ddp", "lab", "healing", "aggregation", "hub",
)  # fmt: skip
MORE = {"paper_tacos": ["-o", "out/paper_tacos"], "quality": ["--every", "4"]}


class Result(NamedTuple):
    """The output of a benchmark, and how it failed; empty if it succeeded."""

    name: str
    printed: str
    ended: str


def main() -> int:
    """Run the benchmarks; return the exit code, which is 1 if one failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("-o", "--output", type=Path, help="the page to write")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="put sections into this page")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each")
    parser.add_argument("--jobs", type=int, default=1, help="benchmarks that run at once")
    parser.add_argument("--charts", type=Path, metavar="PAGE", help="draw a page's charts again")
    asked = parser.parse_args()
    if asked.charts:
        text = with_charts(asked.charts.read_text(encoding="utf-8"), asked.charts.parent)
        with replacing(asked.charts) as out:
            out.write(text.encode())
        return 0
    if asked.into and not asked.names:
        parser.error("--into needs the names of benchmarks")
    if wrong := sorted(set(asked.names) - set(NAMES)):
        parser.error(f"unknown benchmark {wrong[0]}; expected some of {', '.join(NAMES)}")
    with ThreadPoolExecutor(asked.jobs) as pool:
        results = list(
            pool.map(
                partial(measured, limit=asked.limit, shown=asked.jobs == 1), asked.names or NAMES
            )
        )
    if asked.into:
        text = asked.into.read_text(encoding="utf-8")
        for result in results:
            text = with_section(text, result)
        with replacing(asked.into) as out:
            out.write(with_charts(text, asked.into.parent).encode())
    if asked.output:
        with replacing(asked.output) as out:
            out.write(with_charts(page(results, asked.jobs), asked.output.parent).encode())
    return 1 if any(result.ended for result in results) else 0


def measured(name: str, limit: float, *, shown: bool) -> Result:
    """Run one benchmark; print its output meanwhile if `shown`."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *MORE.get(name, [])]
    print(f"--- {name}", flush=True)
    with subprocess.Popen(
        command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as job:
        clock = threading.Timer(limit, job.kill)
        clock.start()
        lines = []
        for line in job.stdout or ():
            if shown:
                print(line, end="", flush=True)
            lines.append(line)
        code = job.wait()
        late = not clock.is_alive()
        clock.cancel()
    ended = f"ended after {limit:g} s, before it was done" if late else f"failed with code {code}"
    return Result(name, "".join(lines), ended if code else "")


def page(results: list[Result], jobs: int = 1) -> str:
    """Return the page, in Markdown."""
    made = f"{datetime.now(UTC):%-d %B %Y}"
    together = "one after the other" if jobs == 1 else f"{jobs} at a time"
    where = (
        f"What `make bench` printed on {machine()}, for tacos {tacos.__version__}, on {made}, "
        f"{together}. The load was {os.getloadavg()[2]:.1f}: if that exceeds the number of cores, other work slowed it down, and "
        "ratios within a table say more than seconds. A section that names another machine was measured there.\n"
    )
    parts = ["# Benchmarks\n\n<!-- written by benchmarks/report.py -->\n", where]
    return "\n".join([*parts, *map(section, results)])


def section(result: Result, where: str = "") -> str:
    """Return the section of one benchmark; `where` describes the machine, if it is not the page's."""
    name, printed, ended = result
    title, _, rest = about(name).partition("\n\n")
    parts = [f"## {title.rstrip('.')}\n\n{rest}\n", f"`benchmarks/{name}.py`{where}\n"]
    parts.append("```text\n" + printed.strip("\n") + "\n```\n" if printed.strip() else "")
    parts.append(f"It {ended}.\n" if ended else "")
    return "\n".join(part for part in parts if part)


def with_section(text: str, result: Result) -> str:
    """Return a page with the section of one benchmark in its place, which replaces an earlier one."""
    made = f"{datetime.now(UTC):%-d %B %Y}"
    where = f", measured on {machine()}, on {made}, at a load of {os.getloadavg()[2]:.1f}"
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    found = {}
    for one in sections:
        name = re.search(r"^`benchmarks/(\w+)\.py`", one, re.MULTILINE)
        found[name[1] if name else one] = one.rstrip("\n") + "\n"
    found[result.name] = section(result, where)
    order = sorted(found, key=lambda name: NAMES.index(name) if name in NAMES else len(NAMES))
    return "\n".join([head.rstrip("\n") + "\n", *(found[name] for name in order)])


def with_charts(text: str, folder: Path) -> str:
    """Return a page with charts of its tables before its first section; the pictures go into `folder`."""
    pictures = []
    target = folder / "_static" / "benchmarks"
    for name, chart in CHARTS.items():
        printed = re.search(
            rf"^`benchmarks/{chart.benchmark}\.py`.*?^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
        )  # fmt: skip
        drawn = chart.draw(printed[1]) if printed else None
        if drawn is None:
            continue
        target.mkdir(parents=True, exist_ok=True)
        save(drawn, target / f"{name}.svg")
        file = f"/_static/benchmarks/{name}.svg"
        pictures.append(f"```{{image}} {file}\n:alt: {chart.words}\n:width: 100%\n```\n")
    head, sign, rest = text.partition("\n## ")
    head = re.sub(r"^```\{image\}.*?^```\n+", "", head, flags=re.DOTALL | re.MULTILINE).rstrip("\n")
    return "\n".join([f"{head}\n", *pictures]) + sign + rest


def about(name: str) -> str:
    """Return the docstring of a benchmark without its usage."""
    text = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or name
    kept = [part for part in text.split("\n\n") if not part.startswith("    ")]
    return "\n\n".join(kept)


def machine() -> str:
    """Describe processor, cores, memory and software."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
        model = next(
            (row.partition(": ")[2] for row in lines if row.startswith("model name")), model
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = format_size(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    system = f"{platform.system()} {platform.release().partition('-')[0]}"
    return f"{cores} cores of {model}, {memory} of memory, {system}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
