"""Baselines compared with the figures of their papers, and the time to construct them.

MultiTree against rings on an 8x8 torus with its paper's settings (150 ns, 16 GB/s, 32 KiB to 64 MiB; published: 2.2
times as fast as a ring, 1.51 times as fast as a 2D ring); Themis on networks of 1,024 NPUs with 64 chunks, with link
speeds of our choice (published: 56 % of the bandwidth in use with one order of dimensions, 88 % first in, first out, 95 %
with the smallest chunk first); C-Cube's overlap and layout on a DGX-1 and a clique.
"""

from __future__ import annotations

import time

import numpy as np

import tacos


def timed(topology, collective, engine, **options):
    begin = time.perf_counter()
    schedule = tacos.synthesize(topology, collective, engine=engine, **options)
    return schedule, time.perf_counter() - begin


def multitree():
    topology = tacos.topology.torus(8, 8, bandwidth="16GB/s", latency="150ns")
    others = ("ring", "bidirectional-ring", "2d-ring", "hierarchical", "swing")
    head = "".join(f"{name:>20}" for name in others)
    print(f"MultiTree on an 8x8 torus, times faster than\n{'':>10}{head}")
    for chunks in (1, 2, 4, 8):
        ratios = []
        for power in range(15, 27):
            collective = tacos.collective.all_reduce(topology, 2**power, chunks=chunks)
            tree, _ = timed(topology, collective, "multitree")
            ratios.append([timed(topology, collective, e)[0].time_s / tree.time_s for e in others])
            if chunks == 1:
                line = "".join(f"{ratio:20.2f}" for ratio in ratios[-1])
                print(f"{2 ** (power - 10):>6} KiB{line}")
        mean = "".join(f"{ratio:20.2f}" for ratio in np.mean(ratios, axis=0))
        print(f"mean, c={chunks:2}{mean}", flush=True)
    print("the paper: 2.2 over its ring, 1.51 over its 2D ring")


def themis():
    networks = (
        "switch:16@200GB/s,700ns*switch:64@100GB/s,1700ns",
        "switch:16@100GB/s,700ns*switch:64@100GB/s,1700ns",
        "switch:16@100GB/s,700ns*switch:8@100GB/s,700ns*switch:8@100GB/s,1700ns",
        "switch:16@200GB/s,700ns*switch:8@100GB/s,700ns*switch:8@50GB/s,1700ns",
        "fc:8@28GB/s,700ns*ring:16@50GB/s,700ns*switch:8@50GB/s,1700ns",
        "ring:4@250GB/s,20ns*switch:4@200GB/s,700ns*switch:8@100GB/s,700ns*switch:8@50GB/s,1700ns",
        "ring:4@250GB/s,20ns*fc:8@28GB/s,700ns*ring:4@50GB/s,700ns*switch:8@50GB/s,1700ns",
    )
    print("\nThemis, all-reduce of 1 GiB by 1,024 NPUs in 64 chunks: bandwidth in use")
    print(f"{'one order':>10}{'fifo':>8}{'scf':>8}{'seconds':>9}{'transfers':>13}")
    rows = []
    for spec in networks:
        topology = tacos.topology.parse(spec)
        both_ways = any(kind == "ring" for kind, _ in topology.dims)
        collective = tacos.collective.all_reduce(topology, 2**30, chunks=128 if both_ways else 64)
        rate = topology.link_bandwidth_Bps[topology.link_src == 0].sum()
        ideal = 2 * 2**30 * 1023 / 1024 / rate
        shares = []
        for options in (
            {"order": list(range(len(topology.dims)))},
            {"scheduling": "fifo"},
            {"scheduling": "scf"},
        ):
            schedule, took = timed(topology, collective, "themis", **options)
            shares.append(ideal / schedule.time_s)
        rows.append(shares)
        print(f"{shares[0]:10.1%}{shares[1]:8.1%}{shares[2]:8.1%}{took:9.3f}{schedule.transfers:13,}"
              f"  {spec.replace('switch', 'sw')}", flush=True)  # fmt: skip
    mean = np.mean(rows, axis=0)
    print(
        f"{mean[0]:10.1%}{mean[1]:8.1%}{mean[2]:8.1%}  mean; the paper has 56.3 %, 87.7 %, 95.1 %"
    )


def c_cube():
    print("\nC-Cube, all-reduce of 64 MB: us, against trees in rank order and without overlap")
    for spec in ("dgx-1:1", "fc:8", "fc:16"):
        topology = tacos.topology.parse(spec)
        collective = tacos.collective.all_reduce(topology, "64MB", chunks=16)
        found, took = timed(topology, collective, "c-cube")
        ranks, _ = timed(topology, collective, "double-binary-tree")
        apart = 0.0
        for kind in ("reduce", "broadcast"):
            half = tacos.collective.named(kind, topology, "64MB", chunks=16 * topology.npus)
            apart += timed(topology, half, "c-cube")[0].time_s
        print(f"  {spec:8}{found.time_s * 1e6:9.0f}{ranks.time_s * 1e6:9.0f}{apart * 1e6:9.0f}"
              f"   {took:.3f} s")  # fmt: skip


def speed():
    names = ("ring", "hierarchical", "swing", "2d-ring", "halving-doubling", "double-binary-tree",
             "c-cube", "themis", "multitree")  # fmt: skip
    print("\nseconds to make an all-reduce with one chunk per NPU\n" + f"{'torus':>8}"
          + "".join(f"{name:>19}" for name in names))  # fmt: skip
    for side in (8, 16, 32):
        topology = tacos.topology.torus(side, side)
        collective = tacos.collective.all_reduce(topology, side**2 * 2**16, chunks=1)
        took = [timed(topology, collective, name)[1] for name in names]
        print(f"{f'{side}x{side}':>8}" + "".join(f"{t:19.3f}" for t in took), flush=True)
    topology = tacos.topology.switch(256)
    collective = tacos.collective.all_reduce(topology, 2**24, chunks=1)
    print(
        f"multitree through a switch, 256 NPUs: {timed(topology, collective, 'multitree')[1]:.3f}"
    )


if __name__ == "__main__":
    multitree()
    themis()
    c_cube()
    speed()
