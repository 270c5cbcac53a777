"""The bound: exact optima of machines against the computed bounds, and the time to compute them.

The optima (GB/s of an all-gather) are ForestColl's, computed once with another solver; an all-reduce has
half of each. Times are the best of five.
"""

from __future__ import annotations

import time

import tacos
from tacos import topology as tp

GB = 10**9
OPTIMA = {
    "dgx-a100:1": 342.86,
    "dgx-a100:2": 346.67,
    "dgx-a100:4": 266.67,
    "dgx-h100-plain:1": 514.29,
    "dgx-h100-plain:2": 533.33,
    "dgx-h100-plain:4": 516.13,
    "dgx-h100-plain:8": 457.14,
    "dgx-h100-plain:16": 426.67,
    "mi250:1": 342.86,
    "mi250:2": 354.13,
    "mi250:4": 341.33,
    "mi300x:1": 512.0,
    "mi300x:2": 531.2,
    "mi300x:4": 514.06,
    "nvl72-plain:1": 912.68,
    "nvl72-plain:2": 956.64,
    "torus:4x4@1GB/s": 4.267,
    "torus:4x4x4@1GB/s": 6.095,
    "torus:8x8x8@1GB/s": 6.012,
    "dgx-1:1": 171.43,
    "ndv2:2": 25.0,
    "ndv2:4": 16.67,
}
KINDS = ("all_gather", "reduce_scatter", "all_reduce")


def timed(topology, kind, size, chunks="auto", repeats=5):
    collective = tacos.collective.named(kind, topology, size, chunks=chunks)
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        best = tacos.bound(topology, collective)
        seconds.append(time.perf_counter() - begin)
    return best, min(seconds)


def optima():
    print(f"{'machine':20}{'NPUs':>6}{'optimum':>10}" + "".join(f"{kind:>16}" for kind in KINDS))
    for spec, optimum in OPTIMA.items():
        topology = tp.parse(spec)
        size = 1000 * GB * topology.npus
        bounds = [timed(topology, kind, size, repeats=1)[0] for kind in KINDS]
        shown = "".join(
            f"{size / b.bandwidth_s / GB:14.2f}{' =' if b.exact else ' ?'}" for b in bounds
        )
        print(f"{spec:20}{topology.npus:6}{optimum:10.2f}{shown}")


def speed():
    torus = tp.torus(8, 8, 8)
    networks = {
        "128 H100": tp.dgx_h100(16, nvls=False),
        "torus 8x8x8": torus,
        "torus 8x8x8, one link dead": tp.drop_links(torus, 0, both=True),
        "fat tree 64x64": tp.fat_tree(64, 64),
        "fat tree 16x16x16": tp.fat_tree(16, 16, 16),
        "torus 200x200": tp.torus(200, 200),
        "torus 1000x1000": tp.torus(1000, 1000),
    }
    print(f"\n{'milliseconds':28}{'NPUs':>9}" + "".join(f"{kind:>16}" for kind in KINDS))
    for name, topology in networks.items():
        times = [timed(topology, kind, 1024 * topology.npus, 1, 3)[1] for kind in KINDS]
        print(f"{name:28}{topology.npus:9,}" + "".join(f"{1e3 * t:16.2f}" for t in times))


def pairs():
    print(f"\n{'all-to-all':20}{'time':>12}{'exact':>8}{'ms':>10}  why")
    for spec in (
        "dgx-h100-plain:2",
        "mi250:1",
        "mesh:4x4",
        "mesh:6x6",
        "ndv2:2",
        "torus:8x8",
        "dgx-h100-plain:16",
    ):
        topology = tp.parse(spec)
        best, seconds = timed(topology, "all_to_all", 10**6 * topology.npus, repeats=2)
        shown = tacos.units.format_time(best.bandwidth_s)
        print(f"{spec:20}{shown:>12}{best.exact!s:>8}{1e3 * seconds:10.1f}  {best.why}")


if __name__ == "__main__":
    optima()
    speed()
    pairs()
