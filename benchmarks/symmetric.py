"""The symmetric engine: steps against the bound, seconds, memory, and seconds to verify.

Each row runs in its own process, so that its memory can be measured: the memory with the
topology, and the peak that synthesis adds. 1 MiB chunks, 50 GiB/s, 0.5 us, blocking, one chunk
per NPU.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from math import ceil
from pathlib import Path

import numpy as np

import tacos

BYTES = 2**20
SPEED = {"bandwidth": 50 * 2**30, "latency": "500ns", "link_model": "blocking"}
PROBLEMS = [
    *(("all_gather", "torus", [n, n]) for n in (16, 32, 64, 200, 1000)),
    ("all_gather", "torus", [64, 64, 64]),
    ("all_gather", "hypercube", [10]),
    ("reduce_scatter", "torus", [200, 200]),
    ("all_reduce", "torus", [200, 200]),
    ("all_reduce", "torus", [1000, 1000]),
    ("all_to_all", "torus", [8, 8]),
    ("all_to_all", "torus", [8, 8, 8]),
    ("all_to_all", "torus", [64, 64]),
]


def memory_MB(field):
    """Return VmRSS, the memory of this process, or VmHWM, its peak (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(field)]
    return int(line.split()[1]) / 1024


def bound_steps(kind, topology, links):
    """Return the chunks that every NPU must receive, or the hops that its chunks must make, per link."""
    if kind != "all_to_all":
        return ceil((topology.npus - 1) / links) * (2 if kind == "all_reduce" else 1)
    hops = sum(n * n // 4 * (topology.npus // n) for _, n in topology.dims)
    return ceil(hops / links)


def measure(kind, family, sizes):
    topology = getattr(tacos.topology, family)(*sizes, **SPEED)
    collective = tacos.collective.named(kind, topology, topology.npus * BYTES, chunks=1)
    ctypes.CDLL(None).malloc_trim(0)  # else reuse of freed memory would not be counted
    before = memory_MB("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak that building reached
    seconds = []
    for _ in range(3 if topology.npus < 100_000 else 1):
        begin = time.perf_counter()
        schedule = tacos.synthesize(topology, collective, engine="symmetric")
        seconds.append(time.perf_counter() - begin)
    added = memory_MB("VmHWM") - before
    begin = time.perf_counter()
    tacos.verify(schedule).raise_if_failed()
    verify_s = time.perf_counter() - begin
    hop_ps = int(topology.link_latency_ps[0]) - BYTES * 10**12 // -(50 * 2**30)
    return {
        "problem": f"{kind.replace('_', '-')} {family} {'x'.join(map(str, sizes))}",
        "transfers": schedule.transfers,
        "steps": schedule.time_ps / hop_ps,
        "bound": bound_steps(kind, topology, int(np.count_nonzero(topology.link_src == 0))),
        "seconds": min(seconds),
        "verify_s": verify_s,
        "topology_MB": before,
        "added_MB": added,
        "schedule_MB": schedule.memory_bytes / 2**20,
    }


def main():
    if len(sys.argv) > 1 and sys.argv[1] != "--json":
        print(json.dumps(measure(*json.loads(sys.argv[1]))))
        return
    rows = []
    if "--json" not in sys.argv:
        print(f"{'':32}{'transfers':>15}{'steps':>11}{'bound':>8}{'seconds':>10}{'verify':>9}"
              f"{'MB before':>11}{'added':>7}{'schedule':>10}")  # fmt: skip
    for problem in PROBLEMS:
        command = [sys.executable, __file__, json.dumps(problem)]
        r = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        rows.append(r)
        if "--json" not in sys.argv:
            print(f"{r['problem']:32}{r['transfers']:15,}{r['steps']:11.2f}{r['bound']:8}"
                  f"{r['seconds']:10.4f}{r['verify_s']:9.4f}{r['topology_MB']:11.0f}"
                  f"{r['added_MB']:7.0f}{r['schedule_MB']:10.2f}")  # fmt: skip
    if "--json" in sys.argv:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
