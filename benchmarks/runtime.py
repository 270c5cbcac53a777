"""The executor against gloo: an all-reduce of 4 ranks on this machine.

A ring on our executor and gloo's own all-reduce take turns, in the same processes on the
same data. Times are medians with quartiles. The ratio matters: below 1, our executor is faster.
Needs torch; without it, only the ring is timed.

    python benchmarks/runtime.py [--ranks 4] [--tcp]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time

import numpy as np

import tacos
from tacos import runtime
from tacos.runtime.measure.bench import gloo_group

SIZES = [1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def ranks(sizes, rounds):
    """Run one rank, which times both in turn."""
    with runtime.connect() as comm:
        network = tacos.topology.ring(comm.size)
        wanted = tacos.collective.all_reduce(network, "64MB", chunks=1)
        ring = comm.prepare(tacos.synthesize(network, wanted, engine="ring"))
        ways = {
            "ours": lambda a: ring.run_at(a.ctypes.data, a.ctypes.data, a.size, "float32", "sum")
        }
        if importlib.util.find_spec("torch"):
            import torch

            group = gloo_group(comm)
            ways["gloo"] = lambda a: group.allreduce([torch.from_numpy(a)]).wait()
        if comm.rank == 0:
            print(f"{'size':>10} {'ours ms':>24} {'gloo ms':>24} {'ours/gloo':>10}")
        for size in sizes:
            data = np.ones(size // 4, np.float32)
            times: dict[str, list[float]] = {name: [] for name in ways}
            count = int(max(rounds, min(20 * rounds, rounds * (1 << 20) / size)))
            for turn in range(count + 2):
                for name, run in ways.items():
                    data[:] = 1
                    ring.run(np.zeros(1, np.float32))  # a barrier that costs both the same
                    begin = time.perf_counter()
                    run(data)
                    if turn >= 2:
                        times[name].append(time.perf_counter() - begin)
            shared = comm.exchange(f"times {size}", json.dumps(times).encode())
            if comm.rank == 0:
                show(size, [json.loads(row) for row in shared])


def show(size, rows):
    """Print a line of the table; the slowest rank of each call counts."""
    found = {name: np.max([row[name] for row in rows], axis=0) * 1e3 for name in rows[0]}
    cells = []
    for values in found.values():
        low, middle, high = np.percentile(values, [25, 50, 75])
        cells.append(f"{middle:9.3f} [{low:.3f}, {high:.3f}]".rjust(24))
    ratio = ""
    if "gloo" in found:
        ratio = f"{np.median(found['ours']) / np.median(found['gloo']):10.2f}"
    print(f"{size:>10} {' '.join(cells)} {ratio}", flush=True)


def main():
    """Start the ranks, or run as one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="bytes")
    parser.add_argument("--tcp", action="store_true", help="no Unix sockets within the machine")
    options = parser.parse_args()
    if runtime.in_job():
        ranks([size for size in SIZES if size <= options.largest], options.rounds)
        return 0
    kinds = [True] if options.tcp else [False, True]
    for tcp in kinds:
        print("over TCP" if tcp else "over Unix sockets", flush=True)
        env = {"OMP_NUM_THREADS": "1"} | ({"TACOS_HOST": "127.0.0.1"} if tcp else {})
        with runtime.launch([sys.executable, *sys.argv], options.ranks, env=env) as job:
            if code := job.wait(timeout=600):
                return code
    return 0


if __name__ == "__main__":
    assert "TACOS_HOST" not in os.environ or runtime.in_job()
    sys.exit(main())
