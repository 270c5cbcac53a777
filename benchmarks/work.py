"""Processor time over counted work, engine by engine: the measurement that chooses the rates of ``cpp/support/work.hpp``.

Every engine, and refining, justifying and executing a schedule, runs with one thread on networks of 16 to 512 NPUs. A row is a
run of more than a few milliseconds: its processor time, its counted work, and the ratio of the two in nanoseconds per unit. The
goal: ratios of 0.5 to 2 on this kind of machine, so that equal allowances are about equal times.

    python -m benchmarks.work [ENGINE …] [--all] [--least MILLISECONDS] [--most SECONDS]

``--all`` lists all runs; otherwise there is one line per engine, with the lowest, the median and the highest ratio.
Runs stop at the work that should take ``--most`` seconds; they are listed as cut.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from functools import partial

import numpy as np

import tacos
from tacos import topology as tp
from tacos._core import Meter, justify, refine
from tacos.errors import TacosError, WorkIsUp
from tacos.execution import execution
from tacos.synth import ENGINES

NETWORKS = {
    "torus:4x4": tp.torus(4, 4),
    "torus:8x8": tp.torus(8, 8),
    "torus:16x16": tp.torus(16, 16),
    "torus:8x8x8": tp.torus(8, 8, 8),
    "broken torus:16x16": tp.drop_links(tp.torus(16, 16), (0, 1), (20, 21), both=True),
    "dgx-h100-plain:2": tp.dgx_h100(2, nvls=False),
    "dgx-h100-plain:16": tp.dgx_h100(16, nvls=False),
    "dgx-h100-plain:64": tp.dgx_h100(64, nvls=False),
    "dgx-a100:4": tp.dgx_a100(4),
    "fat-tree:4": tp.fat_tree(4, 4),
    "fat-tree:16": tp.fat_tree(16, 16),
    "switch:64": tp.switch(64),
    "dragonfly:8x8": tp.dragonfly(8, 8),
}
KINDS = ("all_gather", "all_reduce", "all_to_all", "broadcast")
SIZES = {"64KB": 1, "256MB": 4}


def problems():
    """Yield networks and collectives with their names."""
    for name, topology in NETWORKS.items():
        for kind in KINDS:
            for size, chunks in SIZES.items():
                made = getattr(tacos.collective, kind)(topology, size, chunks=chunks)
                yield f"{name} {kind} {size}", topology, made
        if topology.npus <= 64:
            group = list(range(0, topology.npus, 2))
            made = tacos.collective.all_reduce(topology, "64MB", group=group, chunks=8)
            yield f"{name} group all_reduce 64MB", topology, made
            random = np.random.default_rng(1)
            sizes = random.integers(0, 10**6, (topology.npus, topology.npus))
            np.fill_diagonal(sizes, 0)
            made = tacos.collective.all_to_all_v(topology, sizes, chunks=2)
            yield f"{name} all_to_all_v", topology, made


def measured(run, most_s):
    """Return processor seconds, counted work, the result, and whether the run was cut."""
    meter = Meter(limit=int(most_s * 1e9))
    begin = time.process_time()
    try:
        found = run(progress=meter)
    except WorkIsUp:
        found = None
    return time.process_time() - begin, meter.used, found, meter.wanted > (meter.limit or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("engines", nargs="*", help="engines and tasks; all by default")
    parser.add_argument("--all", action="store_true", help="list all runs")
    parser.add_argument("--least", type=float, default=5.0, help="milliseconds")
    parser.add_argument("--most", type=float, default=5.0, help="seconds")
    parser.add_argument("--network", default="", help="networks whose names contain this")
    given = parser.parse_args()
    ratios = defaultdict(list)
    report = print if given.all else lambda *_, **__: None

    def row(what, problem, seconds, used, cut):
        if seconds * 1e3 < given.least:
            return
        ratio = seconds * 1e9 / max(used, 1)
        ratios[what].append((ratio, problem, seconds))
        mark = " cut" if cut else ""
        report(f"{what:18} {problem:40} {seconds * 1e3:9.1f} ms {ratio:6.2f}{mark}", flush=True)

    for problem, topology, collective in problems():
        if given.network not in problem:
            continue
        schedules = []
        for name, engine in ENGINES.items():
            if given.engines and not {name, "execution", "refine", "justify"} & {*given.engines}:
                continue
            try:
                if engine.obstacle(topology, collective):
                    continue
                options = {"threads": 1} if "threads" in engine.options else {}
                if name == "milp":
                    options |= {"columns": 1500, "nodes": 50}
                seconds, used, found, cut = measured(
                    partial(engine, topology, collective, **options),
                    given.most,
                )
            except TacosError as error:
                report(f"{name:18} {problem:40} {error}")
                continue
            if not given.engines or name in given.engines:
                row(name, problem, seconds, used, cut)
            if found is not None and name in ("greedy", "forest", "direct"):
                schedules.append(found)
        for schedule in schedules:
            if schedule.transfers > 10**6:
                continue
            tasks = {
                "execution": partial(execution, schedule),
                "justify": partial(justify, schedule),
                "refine": partial(refine, schedule, hops=100_000),
                "verify": partial(tacos.verify, schedule),
                "bound": partial(tacos.bound, topology, collective),
            }
            for name, task in tasks.items():
                if given.engines and name not in given.engines:
                    continue
                try:
                    seconds, used, _, cut = measured(task, given.most)
                except TacosError:
                    continue
                row(name, problem, seconds, used, cut)
    print(f"{'':18} {'runs':>5} {'lowest':>7} {'median':>7} {'highest':>7}")
    for name, rows in ratios.items():
        rows.sort()
        middle = statistics.median(ratio for ratio, _, _ in rows)
        print(
            f"{name:18} {len(rows):5} {rows[0][0]:7.2f} {middle:7.2f} {rows[-1][0]:7.2f}"
            f"  lowest: {rows[0][1]}; highest: {rows[-1][1]}"
        )


if __name__ == "__main__":
    main()
