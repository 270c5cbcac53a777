"""The forest engine: time to find trees, their heights, and the quality of their schedules.

Optima (GB/s of an all-gather) are ForestColl's, computed once with another solver. The column ``peer`` is the time that
its public code took for its trees on one slow core, where measured.
"""

from __future__ import annotations

import time

import tacos
from tacos import topology as tp
from tacos.synth.forest import packing

GB = 10**9
OPTIMA = {
    "dgx-a100:1": (342.857, 0.8),
    "dgx-a100:2": (346.667, 39.8),
    "dgx-a100:4": (266.667, 198.7),
    "dgx-h100-plain:1": (514.286, None),
    "dgx-h100-plain:2": (533.333, 14.9),
    "dgx-h100-plain:4": (516.129, None),
    "dgx-h100-plain:8": (457.143, None),
    "dgx-h100-plain:16": (426.667, None),
    "dgx-h100-plain:128": (403.150, None),
    "mi250:1": (342.857, 3.0),
    "mi250:2": (354.133, None),
    "mi250:4": (341.333, None),
    "mi300x:1": (512.0, None),
    "mi300x:2": (531.2, None),
    "mi300x:4": (514.065, None),
    "nvl72-plain:1": (912.676, None),
    "nvl72-plain:2": (956.643, None),
    "switch:16@900GB/s": (960.0, 5.4),
    "torus:4x4@1GB/s": (4.26667, 4.7),
    "torus:4x4x4@1GB/s": (6.09524, 230.5),
    "torus:8x8x8@1GB/s": (6.01174, None),
    "mesh:4x4@1GB/s": (2.13333, 2.1),
    "dgx-1:1": (171.429, 0.55),
    "dgx-1:2": (100.0, None),
    "dgx-2:2": (141.935, None),
    "ndv2:2": (25.0, 1.1),
    "ndv2:4": (16.6667, 13.6),
}
SMALL = (
    "dgx-a100:2",
    "dgx-h100-plain:2",
    "dgx-h100-plain:4",
    "mi300x:2",
    "nvl72-plain:1",
    "dgx-2:2",
    "ndv2:2",
)
KINDS = ("all_gather", "reduce_scatter", "all_reduce")
SCHEDULED = 128  # NPUs


def trees(topology):
    begin = time.perf_counter()
    found = packing(topology)
    return found, time.perf_counter() - begin


def reached(topology, kind, size):
    begin = time.perf_counter()
    collective = tacos.collective.named(kind, topology, size)
    schedule = tacos.synthesize(topology, collective, engine="forest")
    seconds = time.perf_counter() - begin
    assert tacos.verify(schedule).ok
    assert schedule.efficiency is not None
    return f"{100 * schedule.efficiency:8.2f} % {seconds:6.2f} s"


def small(topology, kind, size):
    """Return the time over the bound, and over the sum of latency and bandwidth bound."""
    collective = tacos.collective.named(kind, topology, size)
    best = tacos.bound(topology, collective)
    schedule = tacos.synthesize(topology, collective, engine="forest")
    assert tacos.verify(schedule).ok
    over = schedule.time_s / (best.latency_s + best.bandwidth_s)
    return f"{schedule.time_s / best.time_s:8.3f}{over:8.3f}"


def main():
    kinds = "".join(f"{kind.replace('_', '-'):>19}" for kind in KINDS)
    print(
        f"{'network':20}{'optimum':>9}{'trees':>9}{'height':>7}{'time':>9}{'peer':>9}  1 GB:{kinds}"
    )
    for spec, (optimum, peer) in OPTIMA.items():
        topology = tp.parse(spec)
        found, seconds = trees(topology)
        theirs = f"{peer:8.1f}s" if peer else f"{'':9}"
        line = f"{spec:20}{optimum:9.2f}{found.algbw_Bps / GB:9.2f}{found.height:7}"
        line += f"{1000 * seconds:7.0f}ms{theirs}       "
        if topology.npus <= SCHEDULED:
            line += "".join(f"{reached(topology, kind, '1GB'):>19}" for kind in KINDS)
        print(line, flush=True)
    print(f"\n{'small sizes':20}" + "".join(f"{k}, 1 KB / 64 KB".rjust(34) for k in KINDS))
    for spec in SMALL:
        topology = tp.parse(spec)
        row = "".join(f"  {small(topology, k, '1KB')}{small(topology, k, '64KB')}" for k in KINDS)
        print(f"{spec:20}{row}", flush=True)


if __name__ == "__main__":
    main()
