"""Speed and memory of the simulator: nanoseconds and bytes per transfer, against 120 ns.

``--large`` adds 4,096 NPUs; ``--json`` prints the rows for scripts. Times are processor time of one core, the best of
three runs. Memory is what a run adds to the process at its peak: with a trace, without one, and without one but with
jitter, which gives every transfer its own time. Runs with jitter after the first one share the undisturbed run that their
loss is measured against.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import tacos

TARGET_NS = 120


def ring(npus):
    topology = tacos.topology.ring(npus)
    collective = tacos.collective.all_gather(topology, npus << 20, chunks=1)
    return tacos.synthesize(topology, collective, engine="ring", order="rank")


def mesh(side):
    topology = tacos.topology.mesh(side, side)
    collective = tacos.collective.all_gather(topology, side * side << 16, chunks=1)
    return tacos.synthesize(topology, collective, engine="greedy")


def sums(side):
    topology = tacos.topology.torus(side, side)
    collective = tacos.collective.all_reduce(topology, side * side << 16, chunks=1)
    return tacos.synthesize(topology, collective, engine="greedy")


CASES = {
    "ring 1024": lambda: ring(1024),
    "ring 2048": lambda: ring(2048),
    "mesh 16x16 greedy": lambda: mesh(16),
    "mesh 32x32 greedy": lambda: mesh(32),
    "torus 24x24 sums": lambda: sums(24),
}
LARGE = {"ring 4096": lambda: ring(4096)}


def memory(field):
    """Return VmRSS, or VmHWM, the peak since it was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(path, timing, record):
    """Return nanoseconds (the best of some runs) and bytes per transfer, in this process."""
    schedule = tacos.load(path)
    jitter = "1ns" if record == "jitter" else 0
    Path("/proc/self/clear_refs").write_text("5")
    before, best = memory("VmRSS"), float("inf")
    for _ in range(3 if schedule.transfers < 10**7 else 1):
        begin = time.process_time()
        trace = tacos.simulate(
            schedule, timing=timing, record=record == "recorded", jitter=jitter, seed=1
        )
        best = min(best, time.process_time() - begin)
        grown = memory("VmHWM") - before
        ok = trace.time_ps <= schedule.time_ps or jitter
        del trace
    return {
        "transfers": schedule.transfers,
        "ns": best / schedule.transfers * 1e9,
        "bytes": grown / schedule.transfers,
        "ok": bool(ok),
    }


def main():
    if "--one" in sys.argv:
        print(json.dumps(measure(*sys.argv[sys.argv.index("--one") + 1 :])))
        return
    cases = CASES | (LARGE if "--large" in sys.argv else {})
    rows = []
    columns = ("timing", "trace", "transfers", "ns each", "of 120", "bytes each")
    print(f"{'':20}" + "".join(f"{column:>13}" for column in columns))
    for name, make in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "s.tacos"
            tacos.save(make(), path)
            for timing, record in product(
                ("first-come", "order", "schedule"), ("recorded", "none", "jitter")
            ):
                if (timing, record) == ("schedule", "jitter"):
                    continue  # a late transfer cannot start at its scheduled time
                command = [sys.executable, __file__, "--one", str(path), timing, record]
                run = subprocess.run(command, check=True, capture_output=True, text=True)
                row = {"what": name, "timing": timing, "trace": record, **json.loads(run.stdout)}
                rows.append(row)
                print(f"{name:20}{timing:>13}{record:>13}{row['transfers']:13,}{row['ns']:13.0f}"
                      f"{row['ns'] / TARGET_NS:13.2f}{row['bytes']:13.0f}", flush=True)  # fmt: skip
    # Writing a million intervals for Perfetto.
    trace = tacos.simulate(mesh(32))
    arrow = ["t.parquet"] if importlib.util.find_spec("pyarrow") else []
    for name in ("t.json", "t.json.gz", "t.csv", *arrow):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.process_time()
            trace.save(Path(folder) / name)
            took = time.process_time() - begin
            size = (Path(folder) / name).stat().st_size
            print(f"{len(trace.link):,} intervals to {name}: {took:.1f} s, {size / 2**20:.0f} MiB")
    if "--json" in sys.argv:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
