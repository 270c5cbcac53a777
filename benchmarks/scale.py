"""Large schedules: time to find, verify, retime, simulate, save and load one, by number of threads.

    python benchmarks/scale.py [TOPOLOGY …] [--threads 1,2,16] [--kind all-gather] [--only verify,…] [--json]

One chunk per NPU over equal links; ``torus:200x200`` is 40,000 NPUs, 1.6 billion transfers and 13 GB per schedule. Each row is
one operation on one schedule with one number of threads: seconds, nanoseconds per transfer, its additional memory
as a share of the schedule's, and a reference from the same run: for verification, the synthesis with the same number of threads;
for saving and loading, a plain copy of the schedule's bytes to and from the same disk. Retiming and simulating use one
thread; they run for schedules of up to ``--most`` transfers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import tacos
from tacos.synth.greedy import greedy

OPERATIONS = ("synthesize", "verify", "retime", "simulate", "save", "load", "verify-file")


def memory(field):
    """Return VmRSS, or VmHWM, the peak since it was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measured(work):
    """Return the result, the seconds, and the peak growth of the process in bytes, with pages of mapped files."""
    Path("/proc/self/clear_refs").write_text("5")
    before, begin = memory("VmRSS"), time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin, memory("VmHWM") - before


def schedule_bytes(schedule):
    return schedule.chunk.nbytes + schedule.start.nbytes


def retimed(schedule):
    """Time the same order of transfers again."""
    route = np.repeat(schedule.lane_route, np.diff(schedule.lane_begin))
    op = np.repeat(schedule.lane_op, np.diff(schedule.lane_begin))
    order = np.argsort(schedule.start, kind="stable")
    step = schedule.start[order].astype(np.int32)
    columns = {"route": route[order], "chunk": schedule.chunk[order], "step": step, "op": op[order]}
    del route, op, order, step
    return measured(lambda: tacos.retime(schedule.collective, schedule.routes, **columns))


def copied(schedule, path):
    """Return the seconds to write (in pieces of a megabyte) and to read the schedule's bytes, unprocessed."""
    views = [column.view(np.uint8).data for column in (schedule.chunk, schedule.start)]
    piece = 1 << 20
    begin = time.perf_counter()
    with path.open("wb") as out:
        for view in views:
            for at in range(0, len(view), piece):
                out.write(view[at : at + piece])
        out.flush()
        os.fsync(out.fileno())
    wrote = time.perf_counter() - begin
    begin = time.perf_counter()
    with path.open("rb") as file:
        for view in views:
            file.readinto(np.empty(len(view), np.uint8).data)
    read = time.perf_counter() - begin
    path.unlink()
    return wrote, read


def rows_of(spec, kind, threads, only, most, folder):
    topology = tacos.topology.parse(f"{spec}@50GiB/s,500ns", link_model="blocking")
    collective = tacos.collective.named(kind, topology, topology.npus << 20, chunks=1)
    found = {}
    schedule: Any = None
    for count in threads:
        # Two schedules at once would take twice the memory.
        schedule = None
        schedule, seconds, grown = measured(lambda n=count: greedy(topology, collective, threads=n))
        found[count] = seconds
        size = schedule_bytes(schedule)

        def row(operation, seconds, grown, reference="", reference_s=None, n=0, s=schedule, z=size):
            return {
                "network": spec,
                "transfers": s.transfers,
                "operation": operation,
                "threads": n,
                "seconds": seconds,
                "ns": 1e9 * seconds / s.transfers,
                "memory": grown / z,
                "reference": reference,
                "ratio": seconds / reference_s if reference_s else None,
            }

        first = found[threads[0]]
        yield row("synthesize", seconds, grown, f"with {threads[0]}", first, count)
        if "verify" in only:
            report, spent, grown = measured(lambda n=count, s=schedule: tacos.verify(s, threads=n))
            report.raise_if_failed()
            yield row("verify", spent, grown, "synthesis", seconds, count)
    if schedule.transfers <= most:
        if "retime" in only:
            again, seconds, grown = retimed(schedule)
            # Sums may take longer if links serve first what is ready first.
            assert kind != "all-gather" or again.time_ps <= schedule.time_ps, "it got later"
            del again
            yield row("retime", seconds, grown, n=1)
        if "simulate" in only:
            trace, seconds, grown = measured(lambda: tacos.simulate(schedule, record=False))
            assert kind != "all-gather" or trace.time_ps <= schedule.time_ps, "it takes longer"
            yield row("simulate", seconds, grown, n=1)
    if {"save", "load", "verify-file"} & set(only):
        path = Path(folder) / "scale.tacos"
        tiny = tacos.topology.ring(4)
        tacos.save(
            tacos.synthesize(tiny, tacos.collective.all_gather(tiny, "1KB")), path
        )  # imports
        wrote, read = copied(schedule, path)
        _, seconds, grown = measured(lambda: tacos.save(schedule, path))
        yield row("save", seconds, grown, "write and sync", wrote, n=1)
        schedule, expected = None, schedule.transfers
        loaded, seconds, grown = measured(lambda: tacos.load(path))
        assert loaded.transfers == expected, "the file has other transfers"
        yield row("load", seconds, grown, "read", read, n=1, s=loaded)
        again = SimpleNamespace(transfers=loaded.transfers)
        del loaded
        for count in threads:
            checked, seconds, grown = measured(
                lambda n=count: tacos.verify(tacos.load(path, mapped=True), threads=n)
            )
            checked.raise_if_failed()
            yield row("verify-file", seconds, grown, "synthesis", found[count], n=count, s=again)
        path.unlink()


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("topologies", nargs="*", default=["torus:32x32", "torus:64x64"])
    parser.add_argument("--threads", default=f"1,{os.cpu_count()}")
    parser.add_argument("--kind", default="all-gather")
    parser.add_argument("--only", default=",".join(OPERATIONS), help=", ".join(OPERATIONS))
    parser.add_argument("--most", type=float, default=3e7, help="transfers to retime and simulate")
    parser.add_argument("--folder", help="directory for temporary files; default: the system's")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    only, threads = asked.only.split(","), list(dict.fromkeys(map(int, asked.threads.split(","))))
    if wrong := sorted(set(only) - set(OPERATIONS)):
        parser.error(f"unknown operation {wrong[0]}; expected some of {', '.join(OPERATIONS)}")
    print(f"{'network':16}{'transfers':>14}  {'operation':12}{'threads':>8}{'seconds':>9}{'ns each':>9}"
          f"{'memory':>8}  relative to", file=sys.stderr if asked.json else sys.stdout)  # fmt: skip
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for spec in asked.topologies:
            for row in rows_of(spec, asked.kind, threads, only, asked.most, folder):
                if asked.json:
                    print(json.dumps(row), flush=True)
                    continue
                ratio = f"{row['ratio']:.2f} × {row['reference']}" if row["ratio"] else ""
                print(f"{row['network']:16}{row['transfers']:14,}  {row['operation']:12}{row['threads']:8}"
                      f"{row['seconds']:9.2f}{row['ns']:9.1f}{row['memory']:7.2f}×  {ratio}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
