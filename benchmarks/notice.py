"""The cost of observation: an all-reduce of 4 ranks with all statistics and the flight recorder, and without.

The core keeps both, and can be told not to. The two variants take turns, in the same processes on the same data, over TCP.
The ratio is 1 plus the median of the differences, call by call for the slowest rank, over the median without observation,
with a 95 % interval from resampling.

    python -m benchmarks.notice [--ranks 4] [--rounds 400]
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np

import tacos
from tacos import runtime
from tacos.runtime.carriers import Call
from tacos.runtime.carriers.tcp import Tcp

SIZES = [64 << 10, 1 << 20, 4 << 20]


def ranks(rounds):
    """Run one rank, which times both variants in turn."""
    with runtime.connect() as comm:
        network = tacos.topology.ring(comm.size)
        wanted = tacos.collective.all_reduce(network, "64MB", chunks=1)
        ring = comm.prepare(tacos.synthesize(network, wanted, engine="ring"))
        carrier = comm.open("tcp")
        assert isinstance(carrier, Tcp)
        endpoint = carrier.endpoint
        for size in SIZES:
            data = np.ones(size // 4, np.float32)
            call = Call(data.ctypes.data, data.ctypes.data, data.size, "float32", "sum")
            times: dict[str, list[float]] = {"on": [], "off": []}
            for turn in range(rounds + 10):
                # The order alternates, so that neither variant always follows the other.
                for name in ("on", "off") if turn % 2 else ("off", "on"):
                    data[:] = 1
                    endpoint.watch_links(name == "on")
                    ring.prepared.run(Call(*call[:2], 1, "float32", "sum"))  # a barrier
                    begin = time.perf_counter()
                    ring.run_at(*call)
                    if turn >= 10:
                        times[name].append(time.perf_counter() - begin)
            shared = comm.exchange(f"times {size}", json.dumps(times).encode())
            if comm.rank == 0:
                show(size, [json.loads(row) for row in shared])


def show(size, rows):
    """Print a line; the slowest rank of each call counts."""
    on, off = (np.max([row[name] for row in rows], axis=0) * 1e3 for name in ("on", "off"))
    chance = np.random.default_rng(0)
    picks = chance.integers(0, len(on), (1000, len(on)))
    more = np.median((on - off)[picks], axis=1) / np.median(
        off
    )  # call by call, so that other load affects both
    low, high = 1 + np.percentile(more, [2.5, 97.5])
    print(
        f"{size >> 10:>6} KiB  noticing {np.median(on):8.3f} ms  without {np.median(off):8.3f} ms  "
        f"ratio {1 + np.median(on - off) / np.median(off):.4f} [{low:.4f}, {high:.4f}]",
        flush=True,
    )


def main():
    """Start the ranks, or run as one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    if runtime.in_job():
        ranks(options.rounds)
        return 0
    command = [sys.executable, "-m", "benchmarks.notice", *sys.argv[1:]]
    with runtime.launch(command, options.ranks, env={"TACOS_HOST": "127.0.0.1"}) as job:
        return job.wait(timeout=600)


if __name__ == "__main__":
    sys.exit(main())
