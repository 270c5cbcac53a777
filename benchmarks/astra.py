"""ASTRA-sim's analytical simulation: messages per second, against ASTRA-sim's own time.

Ring all-gather of n NPUs, 1 MiB each, as a custom collective on the congestion-aware ring: n(n - 1)
messages. Seconds are CPU time of the simulation alone, without reading files. ASTRA-sim's time includes reading its
files, and was measured on another day on a busy machine with two cores. Reading and running the same files on one
quiet core, tacos is 16 to 25 times as fast; without reading, 35 to 60 times.
"""

from __future__ import annotations

import time
from functools import partial

import tacos
from tacos.simulate.astra import run
from tacos.workload import from_schedule, ring_all_gather

ASTRA_SIM_SECONDS = {64: 0.5, 128: 2.0, 256: 8.4}
SPEED = {"bandwidth": "50GiB/s", "latency": "500ns"}


def seconds_of(job, times=3):
    best = float("inf")
    for _ in range(times):
        begin = time.process_time()
        job()
        best = min(best, time.process_time() - begin)
    return best


def main():
    print(
        f"{'NPUs':>5} {'messages':>9} {'seconds':>9} {'messages/s':>11} {'fenced':>9} {'ASTRA-sim':>10}"
    )
    for n in (64, 128, 256, 512):
        topology = tacos.topology.ring(n, **SPEED)
        workload = ring_all_gather(n, "1MiB")
        wanted = tacos.collective.all_gather(topology, n * 2**20, chunks=1)
        fenced = from_schedule(tacos.synthesize(topology, wanted, engine="ring"))
        plain, slow = (
            seconds_of(partial(run, w, topology, aware=True)) for w in (workload, fenced)
        )
        known = ASTRA_SIM_SECONDS.get(n)
        theirs = f"{known} s ({known / plain:.0f}x)" if known else ""
        messages = n * (n - 1)
        print(f"{n:5} {messages:9} {plain:9.4f} {messages / plain:11.3g} {slow:9.4f} {theirs:>14}")


if __name__ == "__main__":
    main()
