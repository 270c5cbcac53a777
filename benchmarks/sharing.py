"""Speed of the simulator of shared links, and of programs: transfers and steps per second of one core.

Targets: a million transfers per second over routes of one link, 50,000 with about a thousand messages in
flight that share several links each; a program of 100,000 steps in 0.2 s over single links, in 1 s
through switches. Times are processor time, the best of three runs, without a trace.
"""

from __future__ import annotations

import json
import random
import sys
import time
from itertools import pairwise

import tacos
from tacos.schedule import retime, routes
from tacos.simulate import program_order, program_routes


def best(call):
    """Return the processor seconds of the fastest of three calls, and the last result."""
    least, result = float("inf"), None
    for _ in range(3):
        begin = time.process_time()
        result = call()
        least = min(least, time.process_time() - begin)
    return least, result


def ring(npus, chunks):
    topology = tacos.topology.ring(npus)
    collective = tacos.collective.all_reduce(topology, npus << 20, chunks=chunks)
    return tacos.synthesize(topology, collective, engine="ring")


def mesh(side):
    topology = tacos.topology.mesh(side, side)
    collective = tacos.collective.all_gather(topology, side * side << 16, chunks=1)
    return tacos.synthesize(topology, collective, engine="greedy")


def messages(topology, pairs, each, seed=0):
    """Send `each` messages of random sizes over each of `pairs` random connections; no two end at the same time."""
    draw = random.Random(seed)
    ends: set[tuple[int, int]] = set()
    while len(ends) < pairs:
        a, b = draw.sample(range(topology.npus), 2)
        ends.add((a, b))
    rows = [(a, b, draw.randrange(10_000, 1_000_000)) for _ in range(each) for a, b in sorted(ends)]
    collective = tacos.collective.send_recv(topology, rows, chunks=1)
    table = routes(topology, pairs=tuple(zip(*sorted(ends), strict=True)))
    return retime(
        collective,
        table,
        route=[i % pairs for i in range(len(rows))],
        chunk=range(len(rows)),
        step=0,
    )


def walks(topology, chunks, hops, seed=0):
    """Move chunks of random sizes from NPU to NPU at random, so that connections come and go."""
    draw = random.Random(seed)
    sizes = [draw.randrange(10_000, 1_000_000) for _ in range(chunks)]
    ways = []
    for _ in sizes:
        way = [draw.randrange(topology.npus)]
        for _ in range(hops):
            way.append(draw.choice([npu for npu in range(topology.npus) if npu not in way[-8:]]))
        ways.append(way)
    pairs = sorted({pair for way in ways for pair in pairwise(way)})
    number = {pair: i for i, pair in enumerate(pairs)}
    table = routes(topology, pairs=tuple(zip(*pairs, strict=True)))
    rows = [
        (number[pair], c, k) for c, way in enumerate(ways) for k, pair in enumerate(pairwise(way))
    ]
    collective = tacos.collective.custom(
        topology.npus, sizes, [way[:1] for way in ways], [way[-1:] for way in ways]
    )
    route, chunk, step = zip(*rows, strict=True)
    return retime(collective, table, route=route, chunk=chunk, step=step)


SCHEDULES = {
    "ring 256, 4 chunks": (lambda: ring(256, 4), 10**6),
    "mesh 32x32 greedy": (lambda: mesh(32), 10**6),
    "switch 128, 1000 random connections, store and forward": (
        lambda: messages(tacos.topology.switch(128, forwarding="store_and_forward"), 1000, 50),
        10**6,
    ),
    "switch 128, 1000 random connections": (
        lambda: messages(tacos.topology.switch(128), 1000, 50),
        50_000,
    ),
    "fat tree 16x8, 1000 random connections": (
        lambda: messages(tacos.topology.fat_tree(16, 8), 1000, 50),
        50_000,
    ),
    "torus of switches 4x4x8, 1000 random connections": (
        lambda: messages(
            tacos.topology.product(
                tacos.topology.switch(4), tacos.topology.switch(4), tacos.topology.switch(8)
            ),
            1000,
            20,
        ),
        50_000,
    ),
    "switch 256, 1000 chunks walk": (lambda: walks(tacos.topology.switch(256), 1000, 20), 50_000),
    "fat tree 32x8, 1000 chunks walk": (
        lambda: walks(tacos.topology.fat_tree(32, 8), 1000, 20),
        50_000,
    ),
    "fully connected 64, 1000 chunks walk": (
        lambda: walks(tacos.topology.fully_connected(64), 1000, 50),
        10**6,
    ),
}


def of(topology, kind, chunks, engine="auto"):
    collective = tacos.collective.named(kind, topology, 3 << 26, chunks=chunks)
    return tacos.synthesize(topology, collective, engine=engine)


PROGRAMS = {
    "ring 96": (lambda: ring(96, 3), 0.2),
    "torus 8x8 all-gather": (
        lambda: of(tacos.topology.torus(8, 8), "all_gather", 12, "symmetric"),
        0.2,
    ),
    "dgx_h100 x8 all-gather": (
        lambda: of(tacos.topology.dgx_h100(8, nvls=False), "all_gather", 12, "forest"),
        1,
    ),
    "dgx_a100 x4 all-reduce": (
        lambda: of(tacos.topology.dgx_a100(4), "all_reduce", 24, "forest"),
        1,
    ),
    "switch 128 all-to-all": (
        lambda: of(tacos.topology.switch(128), "all_to_all", 3, "direct"),
        1,
    ),
}


def main():
    rows = []
    print(f"{'schedule':58}{'transfers':>11}{'per second':>13}{'target':>11}")
    for name, (make, target) in SCHEDULES.items():
        schedule = make()
        took, _ = best(lambda s=schedule: tacos.simulate(s, timing="shared", record=False))
        rate = schedule.transfers / took
        rows.append(
            {"what": name, "transfers": schedule.transfers, "per_s": rate, "target": target}
        )
        print(f"{name:58}{schedule.transfers:11,}{rate:13,.0f}{target:11,}", flush=True)
    print(
        f"\n{'program':26}{'timing':>14}{'steps':>11}{'s':>9}{'s per 100,000':>15}{'target':>8}"
        f"{'of schedule':>13}"
    )
    for name, (make, seconds) in PROGRAMS.items():
        schedule = make()
        program = tacos.lower(schedule)
        known = {
            "routes": program_routes(schedule, program),
            "order": program_order(schedule, program),
        }
        for timing in ("first-come", "order", "shared"):
            took, trace = best(
                lambda p=program, s=schedule, t=timing, k=known: tacos.simulate(
                    p, s.topology, timing=t, record=False, **k
                )
            )
            each = took / program.steps * 1e5
            ratio = trace.time_ps / schedule.time_ps
            rows.append({"what": name, "timing": timing, "steps": program.steps, "s": took})
            print(
                f"{name:26}{timing:>14}{program.steps:11,}{took:9.3f}{each:15.3f}{seconds:8}"
                f"{ratio:13.3f}",
                flush=True,
            )
    if "--json" in sys.argv:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
