"""Process groups inside a network of 512 NPUs, one or several at once.

    python benchmarks/groups.py [--small]

What users get: the greedy engine alone, and `auto`, which tries the engines that apply and refines the best schedules, both with the
number of chunks that they choose. All schedules are verified; seconds include neither the bound nor the verification.
Published times for 512 NPUs, on other networks: 701 s for an all-to-all of a synthesizer for process groups, 365 s for an
all-reduce of TACOS. The bounds of scattered groups are loose: for all-gathers and all-reduces of several groups they ignore that trees
between members need links to other NPUs, and for an all-to-all of a part of the NPUs they come from a limited number of rounds.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import tacos

PUBLISHED_S = {(512, 1, "all_reduce"): 365, (512, 1, "all_to_all"): 701}
"""Seconds by number of NPUs, of groups, and the kind of collective."""


HEADER = (
    f"{'groups':24}{'collective':>12}{'asked for':>11}{'found by':>20}{'chunks':>8}{'transfers':>12}"
    f"{'seconds':>9}{'published':>11}{'of the bound':>14}{'verified':>10}"
)


def timed(work):
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def in_a_network(small):
    spec, side = ("torus:4x4x4", 4) if small else ("torus:8x8x8", 8)
    topology = tacos.topology.parse(spec)
    npus = topology.npus
    rng = np.random.default_rng(0)
    scattered = sorted(rng.permutation(npus)[: npus // 8].tolist())
    rows = [list(range(side * i, side * (i + 1))) for i in range(npus // side)]
    planes = [list(range(i, npus, side)) for i in range(side)]
    drawn = np.split(rng.permutation(npus), side)
    several = {
        f"{len(rows)} rows of {side}": rows,
        f"{len(planes)} planes of {npus // side}": planes,
        f"{side} random groups of {npus // side}": [sorted(one.tolist()) for one in drawn],
    }
    cases = {
        "all NPUs": [list(range(npus))],
        f"{len(scattered)} scattered NPUs": [scattered],
    } | several
    print(f"{spec}, 1 MB per member or pair")
    print(HEADER)
    for name, groups in cases.items():
        for kind in ("all_gather", "all_reduce", "all_to_all"):
            parts = [
                tacos.collective.named(kind, topology, len(one) * 10**6, group=one)
                for one in groups
            ]
            problem = tacos.collective.together(*parts)
            known = PUBLISHED_S.get((len(groups[0]), len(groups), kind), "-")
            for engine in ("greedy", "auto"):
                show(name, parts[0].label, known, topology, problem, engine)


def show(name, label, known, topology, problem, engine):
    """Print what one engine finds."""
    schedule, took = timed(lambda: tacos.synthesize(topology, problem, engine=engine, verify=False))
    share = tacos.bound(topology, schedule.collective).time_s / schedule.time_s
    ok = "yes" if tacos.verify(schedule).ok else "NO"
    chunks = schedule.collective.parts[0].chunks
    print(
        f"{name:24}{label:>12}{engine:>11}{schedule.engine:>20}{chunks:8}{schedule.transfers:12,}"
        f"{took:9.2f}{known:>11}{share:14.1%}{ok:>10}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="at most 64 NPUs")
    asked = parser.parse_args()
    in_a_network(asked.small)
