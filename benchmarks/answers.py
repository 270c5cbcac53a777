"""What an answer takes: processor seconds until it is there, and its executed time over the bound, for 1,152 questions.

Each row is a machine and an effort, over four collectives and six sizes: the median and the longest processor time of
``tacos.synthesize``, the problem that took longest, the answers beyond the goal, the longest time by the clock, and the executed time
over the bound: its geometric mean, and the worst with its problem. For up to 64 NPUs the goals are 2 s by default and 1 s with
``effort="fast"``, for up to 128 NPUs 10 s. ``--machine dgx-1:2`` measures only that machine. ``--save`` writes every answer to a
file, and ``--against`` compares with such a file: which answers became slower or faster when executed, and the ratio of processor
times, in the sum and of each answer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import tacos
from benchmarks.forest import OPTIMA

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
SIZES = ("1KB", "16KB", "64KB", "1MB", "64MB", "1GB")
EFFORTS = {"normal": 2.0, "fast": 1.0}
FEW, GOAL_IF_MORE = 64, 10.0
MOST = 128  # NPUs
SAME = 1.01
"""Answers whose executed times differ by less than this factor count as equal."""


def answer(problem):
    """Return the figures of one answer, under the name of its problem."""
    spec, effort, kind, size = problem
    topology = tacos.topology.parse(spec)
    collective = tacos.collective.named(kind, topology, size)
    begin = time.process_time(), time.perf_counter()
    schedule = tacos.synthesize(topology, collective, effort=effort)
    used, passed = time.process_time() - begin[0], time.perf_counter() - begin[1]
    executed_s = tacos.execution.execution(schedule).time_ps() * 1e-12
    return " ".join(problem), {
        "processor_s": used,
        "clock_s": passed,
        "executed_s": executed_s,
        "over_bound": executed_s / tacos.bound(topology, collective).time_s,
        "engine": schedule.engine,
        "chunks": schedule.collective.parts[0].chunks,
    }


def rows(specs, found):
    """Print a row for each machine and effort."""
    print(
        f"{'machine':20}{'NPUs':>5}  {'effort':8}{'median':>8}{'longest':>9}{'goal':>7}{'beyond':>8}{'clock':>8}"
        f"{'/bound':>8}{'worst':>8}  worst of, longest for"
    )
    beyond = 0
    for spec, (effort, least) in itertools.product(specs, EFFORTS.items()):
        npus = tacos.topology.parse(spec).npus
        goal = least if npus <= FEW else GOAL_IF_MORE
        taken = {
            f"{kind} {size}": found[f"{spec} {effort} {kind} {size}"]
            for kind, size in itertools.product(KINDS, SIZES)
        }
        used = {problem: one["processor_s"] for problem, one in taken.items()}
        over = {problem: one["over_bound"] for problem, one in taken.items()}
        longest, worst = max(used, key=used.__getitem__), max(over, key=over.__getitem__)
        late = sum(seconds > goal for seconds in used.values())
        beyond += late
        clock = max(one["clock_s"] for one in taken.values())
        print(
            f"{spec:20}{npus:5}  {effort:8}{statistics.median(used.values()):7.2f}s{used[longest]:8.2f}s{goal:6.0f}s{late:8}"
            f"{clock:7.2f}s{geometric(over.values()):8.4f}{over[worst]:8.3f}  {worst}, {longest}"
        )
    print(f"{beyond} of {len(found)} answers took longer than the goal")
    overall = geometric(one["over_bound"] for one in found.values())
    total = sum(one["processor_s"] for one in found.values())
    print(
        f"executed over bound: {overall:.4f} in the geometric mean; {total:.1f} processor seconds"
    )


def geometric(ratios):
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def compared(found, before):
    """Print how answers differ from those of another run."""
    ratios = {
        name: one["executed_s"] / before[name]["executed_s"]
        for name, one in found.items()
        if name in before
    }
    used = {name: found[name]["processor_s"] / before[name]["processor_s"] for name in ratios}
    slower = sorted(
        (name for name in ratios if ratios[name] > SAME), key=lambda name: -ratios[name]
    )
    faster = [name for name in ratios if ratios[name] < 1 / SAME]
    total = sum(found[name]["processor_s"] for name in ratios)
    whole = total / sum(before[name]["processor_s"] for name in ratios)
    print(
        f"{len(ratios)} answers compared: executed times {geometric(ratios.values()):.4f} in the geometric mean, {len(faster)} more than 1 % "
        f"faster, {len(slower)} more than 1 % slower; processor time {whole:.3f} in the sum, {geometric(used.values()):.3f} in the "
        f"geometric mean, {sum(ratio > 1.5 for ratio in used.values())} answers above 1.5"
    )
    for name in slower:
        print(
            f"slower {ratios[name]:.4f}  {name}: {before[name]['engine']}, now {found[name]['engine']}"
        )
    for name in sorted(faster, key=lambda name: ratios[name])[:20]:
        print(
            f"faster {ratios[name]:.4f}  {name}: {before[name]['engine']}, now {found[name]['engine']}"
        )
    for name in sorted(used, key=lambda name: -used[name])[:20]:
        seconds = f"{before[name]['processor_s']:.2f} s, now {found[name]['processor_s']:.2f} s"
        print(f"longer {used[name]:.2f}  {name}: {seconds}")


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--machine", action="append", default=[], help="only this machine")
    parser.add_argument("--jobs", type=int, default=1, help="answers at the same time")
    parser.add_argument(
        "--every", type=int, default=1, help="only every so many problems, without the table"
    )
    parser.add_argument("--save", type=Path, help="write every answer to this JSON file")
    parser.add_argument("--against", type=Path, help="compare with such a file")
    given = parser.parse_args()
    specs = [
        spec
        for spec in given.machine or OPTIMA
        if given.machine or tacos.topology.parse(spec).npus <= MOST
    ]
    problems = list(itertools.product(specs, EFFORTS, KINDS, SIZES))[:: given.every]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(given.jobs) as pool:
        found = dict(pool.map(answer, problems))
    if given.every == 1:
        rows(specs, found)
    if given.save:
        given.save.write_text(json.dumps(found, indent=1))
    if given.against:
        compared(found, json.loads(given.against.read_text()))


if __name__ == "__main__":
    main()
