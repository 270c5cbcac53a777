"""Process groups inside a network of 512 NPUs, one or several at once.

    python benchmarks/groups.py [--small]

The greedy engine with one chunk per part, verified; seconds include neither the bound nor the verification. Published
times for 512 NPUs, on other networks: 701 s for an all-to-all of a synthesizer for process groups, 365 s for an all-reduce
of TACOS. If a group is scattered, the bound ignores that other NPUs must forward its chunks and, for an all-reduce, that
sums must be complete before they are distributed.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import tacos

PUBLISHED_S = {(512, 1, "all_reduce"): 365, (512, 1, "all_to_all"): 701}
"""Seconds by number of NPUs, of groups, and the kind of collective."""


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
    print(
        f"{'groups':30}{'collective':>16}{'transfers':>12}{'seconds':>9}{'published':>11}{'of the bound':>14}{'verified':>10}"
    )
    for name, groups in cases.items():
        for kind in ("all_gather", "all_reduce", "all_to_all"):
            parts = [
                tacos.collective.named(kind, topology, len(one) * 10**6, group=one, chunks=1)
                for one in groups
            ]
            problem = tacos.collective.together(*parts)
            bound = tacos.bound(topology, problem)
            schedule, took = timed(
                lambda p=problem: tacos.synthesize(topology, p, engine="greedy", verify=False)
            )
            ok = tacos.verify(schedule).ok
            known = PUBLISHED_S.get((len(groups[0]), len(groups), kind), "-")
            print(f"{name:30}{parts[0].label:>16}{schedule.transfers:12,}{took:9.2f}{known:>11}"
                  f"{bound.time_s / schedule.time_s:14.1%}{'yes' if ok else 'NO':>10}", flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="at most 64 NPUs")
    asked = parser.parse_args()
    in_a_network(asked.small)
