"""Seconds until an answer: the default effort and effort="fast", machine by machine, against 2 s and 1 s.

Each row is a machine and an effort, over four collectives and six sizes: the median and the longest processor time of
``tacos.synthesize``, which ranks by executed time and verifies, the problem that took longest, the answers beyond the goal, and
the longest time by the clock. For up to 64 NPUs the goals are 2 s by default and 1 s with ``effort="fast"``, for up to
128 NPUs 10 s. ``--machine dgx-1:2`` measures only that machine.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import tacos
from benchmarks.forest import OPTIMA

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
SIZES = ("1KB", "16KB", "64KB", "1MB", "64MB", "1GB")
EFFORTS = {"normal": 2.0, "fast": 1.0}
FEW, GOAL_IF_MORE = 64, 10.0
MOST = 128  # NPUs


def seconds(topology, kind, size, effort):
    """Return the processor time and the time of an answer."""
    collective = tacos.collective.named(kind, topology, size)
    begin = time.process_time(), time.perf_counter()
    tacos.synthesize(topology, collective, effort=effort)
    return time.process_time() - begin[0], time.perf_counter() - begin[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--machine", action="append", default=[], help="only this machine")
    only = parser.parse_args().machine
    print(
        f"{'machine':20}{'NPUs':>5}  {'effort':8}{'median':>8}{'longest':>9}{'goal':>7}{'beyond':>8}{'clock':>8}  longest for"
    )
    total = beyond = 0
    for spec in OPTIMA:
        topology = tacos.topology.parse(spec)
        if topology.npus > MOST or (only and spec not in only):
            continue
        for effort, least in EFFORTS.items():
            goal = least if topology.npus <= FEW else GOAL_IF_MORE
            taken = {
                (kind, size): seconds(topology, kind, size, effort)
                for kind, size in itertools.product(KINDS, SIZES)
            }
            worst = max(taken, key=lambda problem: taken[problem])
            late = sum(used > goal for used, _ in taken.values())
            total, beyond = total + len(taken), beyond + late
            clock = max(passed for _, passed in taken.values())
            print(
                f"{spec:20}{topology.npus:5}  {effort:8}{statistics.median(one for one, _ in taken.values()):7.2f}s"
                f"{taken[worst][0]:8.2f}s{goal:6.0f}s{late:8}{clock:7.2f}s  {' '.join(worst)}",
                flush=True,
            )
    print(f"{beyond} of {total} answers took longer than the goal")


if __name__ == "__main__":
    main()
