"""Process groups inside a network of 512 NPUs, one or several at once, and all-to-alls with skewed sizes.

    python benchmarks/groups.py [--small]

The greedy engine with one chunk per part, verified; seconds include neither the bound nor the verification. A published
synthesizer for process groups reports 701 s for the all-to-all among 512 NPUs. Experts of a mixture are not equally popular, so the
last table has sizes that follow a power law; each engine's best time over the bound, and how long it takes to find.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import tacos


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
        f"{'groups':30}{'collective':>16}{'transfers':>12}{'seconds':>9}{'of the bound':>14}{'verified':>10}"
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
            print(f"{name:30}{parts[0].label:>16}{schedule.transfers:12,}{took:9.2f}"
                  f"{bound.time_s / schedule.time_s:14.1%}{'yes' if ok else 'NO':>10}", flush=True)  # fmt: skip


def skewed(small):
    rng = np.random.default_rng(0)
    specs = (
        ["dgx-h100:1", "switch:16"]
        if small
        else ["dgx-h100:8", "dgx-a100:8", "torus:8x8", "switch:64"]
    )
    print(f"\n{'all-to-all-v, skewed':22}{'engine':>16}{'over the bound':>16}{'ms':>9}")
    for spec in specs:
        topology = tacos.topology.parse(spec)
        n = topology.npus
        popular = rng.zipf(1.5, size=n).clip(max=50).astype(float)
        sizes = (popular / popular.sum() * rng.uniform(0.5, 1.5, (n, n)) * n * 200_000).astype(int)
        np.fill_diagonal(sizes, 0)
        problem = tacos.collective.all_to_all_v(topology, sizes.tolist(), chunks=1)
        bound = tacos.bound(topology, problem)
        for engine in ("greedy", "direct", "hierarchical"):
            if engine not in tacos.engines(topology, problem):
                continue
            schedule, took = timed(
                lambda t=topology, p=problem, e=engine: tacos.synthesize(
                    t, p, engine=e, verify=False
                )
            )
            print(
                f"{spec:22}{engine:>16}{schedule.time_s / bound.time_s:16.3f}{1e3 * took:9.0f}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="64 NPUs and less")
    asked = parser.parse_args()
    in_a_network(asked.small)
    skewed(asked.small)
