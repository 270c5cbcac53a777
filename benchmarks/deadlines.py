"""How punctual a search is: the clock time of ``tacos.synthesize`` under a time limit, on up to 2,048 NPUs.

Each row is a network, a collective and a limit: the seconds until the answer is there, verified; the goal, 1.2 times the limit and 0.5 s;
the engine, and the executed time over the bound (a quick one where the limit allows no better), or the ideal time where the limit left
no time to execute the answer. Run it on a quiet machine.

    python -m benchmarks.deadlines [--limit SECONDS …] [--network NAME …]
"""

from __future__ import annotations

import argparse
import time

import tacos
from tacos import topology as tp
from tacos.search.known import KNOWN

NETWORKS = {
    "broken torus:8x8": lambda: tp.drop_links(tp.torus(8, 8), (0, 1), both=True),
    "broken torus:32x32": lambda: tp.drop_links(tp.torus(32, 32), (0, 1), both=True),
    "dgx-h100-plain:16": lambda: tp.dgx_h100(16, nvls=False),
    "dgx-h100-plain:256": lambda: tp.dgx_h100(256, nvls=False),
    "fat-tree:16": lambda: tp.fat_tree(16, 16),
    "fat-tree:32x64": lambda: tp.fat_tree(32, 64),
    "dragonfly:8x8": lambda: tp.dragonfly(8, 8),
    "rails:128": lambda: tp.dgx_h100(128, nvls=False, fabric="rail"),
}
KINDS = ("all_reduce", "all_to_all")
SIZE = "256MB"
LIMITS = (1.0, 3.0, 10.0)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", action="append", type=float, default=[])
    parser.add_argument("--network", action="append", default=[])
    given = parser.parse_args()
    print(
        f"{'network':22}{'NPUs':>6}  {'collective':12}{'limit':>7}{'took':>9}{'goal':>8}{'/bound':>9}  engine"
    )
    late = 0
    for name in given.network or NETWORKS:
        topology = NETWORKS[name]()
        for kind in KINDS:
            collective = tacos.collective.named(kind, topology, SIZE)
            for limit in given.limit or LIMITS:
                KNOWN.forget()
                begin = time.perf_counter()
                try:
                    found = tacos.synthesize(topology, collective, time_limit=limit)
                    took = time.perf_counter() - begin
                    said = f"{found.engine}{', cut short' if found.cut_short else ''}"
                    time_ps = found.executed_ps or found.time_ps
                    over = f"{time_ps / (found.bound_ps or time_ps):9.3f}"
                    over += "" if found.executed_ps else " ideal"
                except tacos.TacosError as error:
                    took = time.perf_counter() - begin
                    said, over = str(error), " " * 9
                goal = 1.2 * limit + 0.5
                late += took > goal
                print(
                    f"{name:22}{topology.npus:6}  {kind:12}{limit:6.1f}s{took:8.2f}s{goal:7.1f}s{over}  {said}",
                    flush=True,
                )
    print(f"{late} answers came after the goal")


if __name__ == "__main__":
    main()
