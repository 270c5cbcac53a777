"""All-to-all-v with sizes as in mixtures of experts, on boxes, a switch and cliques.

    python benchmarks/all_to_all_v.py [--small]

Each row has an engine's time over the bound, as scheduled and as executed (the slower of links that serve first come,
first served and links that are shared fairly), and the milliseconds of processor time to synthesize the schedule, the best
of three. Pairs have 1 MB on average. Uniform: all pairs have the same size. Zipf: the popularity of destinations follows a
power law. Hot expert: one NPU gets fifty times as much as the others. Empty rows: a quarter of the NPUs send nothing. One
sends: one NPU sends everything. Pareto: the size of each pair follows its own power law.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import tacos
from tacos.execution import execution
from tacos.synth import ENGINES


def matrices(npus, mean=1_000_000):
    """Return sizes as in mixtures of experts, by name; pairs have about `mean` bytes."""
    rng = np.random.default_rng(0)
    popular = rng.zipf(1.5, npus).clip(max=50).astype(float)
    hot = rng.integers(mean // 10, 3 * mean // 10, (npus, npus))
    hot[:, npus // 3] = rng.integers(5 * mean, 15 * mean, npus)
    rows = rng.integers(mean // 4, 2 * mean, (npus, npus))
    rows[rng.permutation(npus)[: npus // 4]] = 0
    one = np.zeros((npus, npus), int)
    one[1] = rng.integers(mean, 10 * mean, npus)
    found = {
        "uniform": np.full((npus, npus), mean),
        "zipf": (popular / popular.mean() * rng.uniform(0.5, 1.5, (npus, npus)) * mean).astype(int),
        "hot expert": hot,
        "empty rows": rows,
        "one sends": one,
        "pareto": (rng.pareto(1.2, (npus, npus)) * mean / 2).clip(max=25 * mean).astype(int),
    }
    for sizes in found.values():
        np.fill_diagonal(sizes, 0)
    return found


def timed(work):
    begin = time.process_time()
    result = work()
    return result, 1e3 * (time.process_time() - begin)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--small", action="store_true", help="at most 16 NPUs")
    specs = (
        ["dgx-h100-plain:2", "switch:16", "clique:8"]
        if parser.parse_args().small
        else ["dgx-h100-plain:8", "dgx-a100:4", "mi300x:4", "mi300x:8", "rail:4x8", "switch:64", "clique:16", "dgx-h100-plain:1"]
    )  # fmt: skip
    head = f"{'network':18}{'sizes':12}{'engine':>14}{'pieces':>8}{'transfers':>11}"
    print(f"{head}{'scheduled':>11}{'executed':>10}{'ms':>7}")
    for spec in specs:
        topology = tacos.topology.parse(spec)
        for name, sizes in matrices(topology.npus).items():
            problem = tacos.collective.all_to_all_v(topology, sizes)
            bound = tacos.bound(topology, problem)
            for engine in ("balanced", "greedy", "hierarchical", "nccl"):
                if engine not in tacos.engines(topology, problem):
                    continue
                asked = problem if engine == "balanced" else problem.with_chunks(1)
                runs = [
                    timed(lambda t=topology, p=asked, e=engine: ENGINES[e](t, p)) for _ in range(3)
                ]
                schedule, took = runs[0][0], min(ms for _, ms in runs)
                tacos.verify(schedule).raise_if_failed()
                executed = execution(schedule)
                over = (executed.time_ps() if executed else float("nan")) / bound.time_ps
                print(f"{spec:18}{name:12}{engine:>14}{schedule.collective.parts[0].chunks:8}{schedule.transfers:11,}"
                      f"{schedule.time_ps / bound.time_ps:11.3f}{over:10.3f}{took:7.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
