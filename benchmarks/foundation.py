"""Speed and memory of the foundation: building, timing, verifying, saving and loading.

Absolute times depend on the machine, so each row has a reference measured in the same run: an
operation on the same amount of data whose cost is well known. ``make bench`` runs this.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tacos


def best_of(times, work):
    """Return the time of the shortest of several runs, since noise only adds, and the last result."""
    shortest, result = float("inf"), None
    for _ in range(times):
        begin = time.perf_counter()
        result = work()
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest, result


def main():
    rows = []

    def row(what, seconds, reference_name, reference_s, note=""):
        rows.append(
            {
                "what": what,
                "seconds": round(seconds, 4),
                "reference": reference_name,
                "reference_s": round(reference_s, 4),
                "ratio": round(seconds / reference_s, 2),
                "note": note,
            }
        )

    # Building: 160,000 links.
    build_s, torus = best_of(3, lambda: tacos.topology.torus(200, 200))
    ends = torus.link_src, torus.link_dst
    list_s, _ = best_of(3, lambda: list(zip(*(end.tolist() for end in ends), strict=True)))
    row(
        "build torus 200x200",
        build_s,
        "a Python list of its links",
        list_s,
        f"{torus.links:,} links",
    )

    # A ring all-gather of 4,096 NPUs: 16.8 million transfers.
    npus = 4096
    ring = tacos.topology.ring(npus)
    gather = tacos.collective.all_gather(ring, npus * 2**20, chunks=1)
    synth_s, schedule = best_of(
        1, lambda: tacos.synthesize(ring, gather, engine="ring", order="rank")
    )
    count = schedule.transfers
    copy_s, _ = best_of(3, lambda: (schedule.chunk.copy(), schedule.start.copy()))
    row("synthesize ring all-gather, 4096 NPUs", synth_s, "copy its columns", copy_s,
        f"{count:,} transfers, {1e9 * synth_s / count:.0f} ns each")  # fmt: skip
    verify_s, report = best_of(2, lambda: tacos.verify(schedule))
    if not report.ok:
        sys.exit(f"the schedule is wrong: {report.violations[0].message}")
    gather_s, _ = best_of(3, lambda: schedule.start[np.argsort(schedule.chunk, kind="stable")])
    row("verify it", verify_s, "NumPy: sort starts by chunk", gather_s,
        f"{1e9 * verify_s / count:.0f} ns each")  # fmt: skip

    with tempfile.TemporaryDirectory() as folder:
        path, raw = Path(folder) / "ring.tacos", Path(folder) / "raw"
        raw_write_s, _ = best_of(
            3, lambda: schedule.chunk.tofile(raw) or schedule.start.tofile(raw)
        )
        save_s, _ = best_of(3, lambda: tacos.save(schedule, path))
        row("save it", save_s, "ndarray.tofile of its columns", raw_write_s)
        raw_read_s, _ = best_of(3, lambda: np.fromfile(raw, np.uint32) + 0)
        load_s, loaded = best_of(3, lambda: tacos.load(path))
        row("load it", load_s, "fromfile and copy of half of it", raw_read_s)
        if loaded != schedule:
            sys.exit("the loaded schedule differs")
        on_disk = path.stat().st_size / count

    print(f"{'':40}{'seconds':>9}{'ratio':>8}  of the reference")
    for r in rows:
        print(f"{r['what']:40}{r['seconds']:9.3f}{r['ratio']:8.2f}  {r['reference']} "
              f"({r['reference_s']:.3f} s){'; ' + r['note'] if r['note'] else ''}")  # fmt: skip
    in_memory = schedule.memory_bytes / count
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"bytes per transfer: {in_memory:.3f} in memory, {on_disk:.3f} on disk")
    print(f"peak memory of this run: {peak:.2f} GiB")
    if "--json" in sys.argv:
        print(
            json.dumps({"rows": rows, "in_memory": in_memory, "on_disk": on_disk, "peak_GiB": peak})
        )


if __name__ == "__main__":
    main()
