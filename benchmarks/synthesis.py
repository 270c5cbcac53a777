"""Quality and speed of the synthesizers, compared with the published system and the theory.

All-gather of 1 MiB chunks over links of 50 GiB/s and 500 ns under the blocking model, as the
published TACOS was measured: collective time in steps against the fewest steps that the worst NPU
needs, the public code's figure, and the seconds to synthesize. Then machines against their exact
all-gather and all-reduce optima, heterogeneous networks, all-to-all, and how time grows with N.
``--large`` adds 200x200 (40,000 NPUs, 1.6 billion transfers; 16 GiB, some minutes).
"""

from __future__ import annotations

import math
import resource
import sys
import time

import numpy as np

import tacos

SPEED = {"bandwidth": "50GiB/s", "latency": "500ns", "link_model": "blocking"}


def timed(work):
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def gather(topology, engine, chunks=1):
    collective = tacos.collective.all_gather(
        topology, topology.npus * chunks * 2**20, chunks=chunks
    )
    return timed(lambda: tacos.synthesize(topology, collective, engine=engine))


def regular(large):
    # Steps and seconds of the public code (v1.3.0) on a machine like this one; None: did not finish.
    published = {
        "mesh:8x8": (32, 0.014), "mesh:16x16": (128, 1.30), "mesh:32x32": (512, 113.5),
        "mesh:4x4x4": (21, 0.009), "mesh:8x8x8": (171, 7.8), "torus:8x8": (17, 0.011),
        "torus:16x16": (65, 0.99), "torus:32x32": (258, 100.7), "torus:64x64": (None, None),
        "torus:4x4x4": (11, 0.006), "torus:8x8x8": (86, 7.6), "hypercube:6": (11, 0.006),
        "hypercube:8": (32, 0.59), "hypercube:9": (57, 4.9), "hypercube:10": (103, 46.9),
    }  # fmt: skip
    hop_ps = 500_000 + -(-(2**20) * 10**12 // (50 * 2**30))
    print(f"{'problem':14}{'engine':>11}{'steps':>8}{'bound':>8}{'public':>8}{'seconds':>10}"
          f"{'public':>9}{'ns each':>9}")  # fmt: skip
    specs = list(published) + (["mesh:200x200", "torus:200x200"] if large else [])
    for spec in specs:
        topology = tacos.topology.parse(f"{spec}@50GiB/s,500ns", link_model="blocking")
        degree = np.bincount(topology.link_dst, minlength=topology.npus).min()
        bound = math.ceil((topology.npus - 1) / degree)
        steps, seconds = published.get(spec, (None, None))
        for engine in ("greedy", "symmetric"):
            if engine == "symmetric" and not topology.symmetric:
                continue
            schedule, took = gather(topology, engine)
            each = 1e9 * took / schedule.stored_transfers
            print(f"{spec:14}{engine:>11}{schedule.time_ps / hop_ps:8.0f}{bound:8}{steps or '-':>8}"
                  f"{took:10.4f}{seconds or '-':>9}{each:9.0f}", flush=True)  # fmt: skip
            if topology.npus > 10_000 and engine == "greedy":
                check, spent = timed(lambda s=schedule: tacos.verify(s))
                print(f"{'':14}verified {check.ok} in {spent:.0f} s, peak memory {peak():.1f} GiB")
            del schedule


def heterogeneous():
    print(f"\n{'heterogeneous mesh':28}{'us':>10}{'causal TACOS':>14}{'seconds':>10}")
    for n, other, honest in ((8, 25, 841.3), (8, 75, 513.8), (16, 25, 3402.4), (16, 75, 2063.2)):
        topology = tacos.topology.mesh(
            n, n, bandwidth=["50GiB/s", f"{other}GiB/s"], latency="500ns", link_model="blocking"
        )
        schedule, took = gather(topology, "greedy")
        print(f"{f'{n}x{n}, x 50, y {other} GiB/s':28}{schedule.time_s * 1e6:10.1f}{honest:14}"
              f"{took:10.4f}")  # fmt: skip


def machines():
    specs = [
        "dgx-h100-plain:1", "dgx-h100-plain:2", "dgx-h100-plain:4", "dgx-h100-plain:8", "dgx-a100:2", "dgx-a100:4", "mi250:1",
        "mi250:2", "ndv2:2", "ndv2:4", "dgx-2:2 relay", "dragonfly:9x4", "dgx-1:1", "mi300x:1", "nvl72-plain:1",
    ]  # fmt: skip
    print("\ngreedy with chunk search; share of the bound (exact: *), and for 1 MB the time over "
          "latency + bandwidth of the bound, which is not a bound")  # fmt: skip
    print(f"{'machine':17}{'all-gather, 1 GB':>22}{'all-reduce, 1 GB':>22}{'all-gather, 1 MB':>20}"
          f"{'all-reduce, 1 MB':>20}")  # fmt: skip
    for spec in specs:
        # The published optimum of two DGX-2 is for odd GPUs that send and even ones that receive.
        relay = spec.endswith("relay")
        topology = tacos.topology.dgx2(2, relay=True) if relay else tacos.topology.parse(spec)
        row = f"{spec:17}"
        for size in ("1GB", "1MB"):
            for kind in ("all_gather", "all_reduce"):
                collective = tacos.collective.named(kind, topology, size)
                bound = tacos.bound(topology, collective)
                schedule, took = timed(
                    lambda t=topology, c=collective, b=bound: tacos.synthesize(
                        t, c, engine="greedy", known_bound=b
                    )
                )
                if size == "1GB":
                    mark = "*" if bound.exact else " "
                    row += f"{bound.time_s / schedule.time_s:13.1%}{mark}{took:6.2f} s"
                else:
                    both = bound.latency_s + bound.bandwidth_s
                    row += f"{schedule.time_s / both:12.2f}{took:6.2f} s"
        print(row, flush=True)


def hundred_and_twenty_eight():
    spec = "ring:2@200GB/s,500ns*fc:4@100GB/s,500ns*switch:16@50GB/s,500ns"
    topology = tacos.topology.parse(spec)
    # The 8 NPUs that share a place on the switches take in 120/128 of 1 GB through 8 ports, twice.
    bound = 2 * 1e9 * 120 / 128 / 400e9
    print(f"\nall-reduce of 1 GB on {spec}; published TACOS: 128 NPUs in 1.08 s")
    for engine in ("greedy", "symmetric"):
        for chunks in (1, 2, 4, 8):
            size = 128 * chunks * (10**9 // (128 * chunks))
            collective = tacos.collective.all_reduce(topology, size, chunks=chunks)
            schedule, took = timed(
                lambda c=collective, e=engine: tacos.synthesize(topology, c, engine=e)
            )
            print(f"  {engine:10} {chunks} chunks per NPU: {bound / schedule.time_s:6.1%} of the cut, "
                  f"{took:.3f} s")  # fmt: skip


def all_to_all():
    print("\nall-to-all, 1 MB per pair, against the sum of distances; published PCCL: 512 in 701 s")
    for spec in ("torus:8x8", "torus:4x4x4", "torus:8x8x8"):
        topology = tacos.topology.parse(spec)
        side = topology.dims[0][1]
        hops = (
            len(topology.dims) * side // 4 * topology.npus
        )  # a ring of even side: side/4 on average
        bound = hops * 1e6 / (topology.links / topology.npus * 50e9)
        collective = tacos.collective.all_to_all(topology, topology.npus * 10**6, chunks=1)
        for engine in ("greedy", "symmetric"):
            schedule, took = timed(
                lambda t=topology, c=collective, e=engine: tacos.synthesize(t, c, engine=e)
            )
            print(f"  {spec:12} {engine:10} {bound / schedule.time_s:6.1%}  {took:.3f} s")


def scaling():
    sides = (32, 64, 128)
    times = []
    for side in sides:
        topology = tacos.topology.torus(side, side, **SPEED)
        times.append(gather(topology, "greedy")[1])
    exponent = np.polyfit(np.log([side**2 for side in sides]), np.log(times), 1)[0]
    print(f"\ngreedy all-gather, 1,024 to 16,384 NPUs: time grows as N^{exponent:.2f} "
          f"({', '.join(f'{t:.2f} s' for t in times)})")  # fmt: skip


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    regular("--large" in sys.argv)
    heterogeneous()
    machines()
    hundred_and_twenty_eight()
    all_to_all()
    scaling()
    print(f"peak memory {peak():.2f} GiB")
