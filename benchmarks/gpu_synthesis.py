"""The greedy engine and the verifier on a GPU: the same schedules as on the CPU, and their speed.

    python benchmarks/gpu_synthesis.py            # all; about 5 minutes, and 40 GiB of memory
    python benchmarks/gpu_synthesis.py --quick    # up to 4,096 NPUs

First random small problems: the GPU's schedule must equal the CPU's, transfer by transfer. Then tori and meshes, each
with the seconds of its parts and, up to 4,096 NPUs, those of the CPU's synthesis. The second run counts, because the first
one loads the kernels.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time

import numpy as np

import tacos
from tacos._cuda import driver
from tacos._cuda import greedy as greedy_on_gpu
from tacos._cuda import verify as verify_on_gpu

tp, co = tacos.topology, tacos.collective


def columns(schedule: tacos.Schedule) -> tuple[bytes, ...]:
    names = ("lane_route", "lane_begin", "chunk", "start", "lane_op", "lane_reads")
    return tuple(getattr(schedule, name).tobytes() for name in names)


def random_problem(number: int) -> tuple[tacos.Topology, tacos.Collective]:
    rng = random.Random(number)
    npus, chunks = rng.randint(2, 90), rng.randint(1, 5)
    model = rng.choice(["blocking", "pipelined"])
    size = npus * chunks * 1000
    # A pipelined link is in step with others if its latency is a multiple of the transmission time.
    latency = (
        rng.choice([0, 1, 3, 7]) * 1_000_000 if model == "pipelined" else rng.randint(0, 10**7)
    )
    cycle = [(v, (v + 1) % npus) for v in range(npus)]
    more = [tuple(rng.sample(range(npus), 2)) for _ in range(rng.randint(0, 4 * npus))]
    links = [(a, b, 1e9, latency / 1e12) for a, b in [*cycle, *more]]
    network = tp.from_links(npus, links, link_model=model)
    make = rng.choice([co.all_gather, co.reduce_scatter, co.all_reduce])
    return network, make(network, size, chunks=chunks)


def check_small(count: int) -> None:
    served = 0
    for number in range(count):
        network, wanted = random_problem(number)
        seed = number % 3
        try:
            there = tacos.synth.ENGINES["greedy"](network, wanted, seed=seed, device="cuda")
        except tacos.errors.TacosError:
            continue
        served += 1
        here = tacos.synth.ENGINES["greedy"](network, wanted, seed=seed)
        assert columns(there) == columns(here), f"problem {number} differs"
        assert verify_on_gpu.shows_right(there), number
        assert tacos.verify(there).ok, number
        broken = there.chunk.copy()
        broken[number % len(broken)] = (broken[number % len(broken)] + 1) % wanted.chunks
        wrong = tacos.Schedule(
            collective=wanted,
            routes=there.routes,
            **{n: getattr(there, n) for n in ("lane_route", "lane_op", "lane_reads", "lane_begin")},
            chunk=broken,
            start=there.start,
            quantum_ps=there.quantum_ps,
        )
        assert not tacos.verify(wrong, device="cuda").ok, number
    print(f"{served} of {count} random problems: the same schedule, and every broken one found\n")


def measure(name: str, network: tacos.Topology, *, beside: bool) -> None:
    wanted = co.all_gather(network, 1000 * network.npus, chunks=1)
    figures: dict[str, float] = {}
    for _ in range(1 if network.npus > 50_000 else 3):
        schedule = None  # the host's memory cannot hold two of the largest
        schedule = greedy_on_gpu.solve(network, wanted, figures=figures)
    assert schedule is not None
    check: dict[str, float] = {}
    if missing := verify_on_gpu.obstacle(schedule):
        sys.exit(missing)
    for _ in range(1 if network.npus > 50_000 else 2):
        assert verify_on_gpu.shows_right(schedule, check)
    bound = tacos.bound(network, wanted)
    cpu = ""
    if beside:
        begin = time.perf_counter()
        here = tacos.synth.ENGINES["greedy"](network, wanted)
        cpu = f"{time.perf_counter() - begin:8.3f}"
        same = columns(here) == columns(schedule)
        assert same, name
    digest = hashlib.sha256(np.ascontiguousarray(schedule.chunk[: 10**7]).tobytes()).hexdigest()[:8]
    print(
        f"{name:18} {network.npus:7,} {schedule.transfers:14,} {figures['set up']:8.3f} "
        f"{figures['synthesis']:9.4f} {figures['to the host']:8.3f} {figures['schedule']:8.3f} "
        f"{check['upload']:8.3f} {check['check']:8.4f} {schedule.time_s / bound.time_s:7.4f} {cpu:>8} {digest}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="up to 4,096 NPUs")
    quick = parser.parse_args().quick
    if missing := driver.obstacle():
        print(f"not measured: {missing}")
        return
    print(f"{driver.gpu().name}\n")
    check_small(40 if quick else 200)
    print(
        "network               NPUs      transfers   set up synthesis  to host schedule   upload    check "
        "/ bound      CPU digest (seconds)"
    )
    blocking = {"link_model": "blocking"}
    sides = [(16, True), (32, True), (64, True)] + ([] if quick else [(128, False), (200, False)])
    for side, beside in sides:
        measure(f"torus {side}x{side}", tp.torus(side, side, **blocking), beside=beside)
        measure(f"mesh {side}x{side}", tp.mesh(side, side, **blocking), beside=beside)
    if not quick:
        measure("torus 316x316", tp.torus(316, 316, **blocking), beside=False)


if __name__ == "__main__":
    main()
