"""All-reduce on networks that are enforced link by link: gloo, rings and synthesized schedules over real TCP.

Every network is built as a lab (namespaces, cables, rate limits) at the speeds this machine can carry. Gloo runs
its own ring, in the order of ranks; hosts forward its data where neighbours have no link. All others go through this
package's executor: the best one-way and two-way ring, the best of the other baselines, and the result of engine auto.
The algorithms take turns, so that other load affects all of them; a time is that of the slowest rank. Each row has the
median, half the distance between the quartiles, and the simulated time of the schedule.

    python benchmarks/lab.py [--size 8MiB] [--rounds 7] [NETWORK …]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import tacos
from tacos import units
from tacos.runtime.lab import Lab

RINGS, OURS = ["ring", "bidirectional-ring"], ["greedy", "symmetric", "auto"]


def links(*groups):
    """Return a network of links in both directions, from (pairs, Mbit/s)."""
    rows = [
        (src, dst, rate * 125_000, 0)
        for pairs, rate in groups
        for a, b in pairs
        for src, dst in ((a, b), (b, a))
    ]
    return tacos.topology.from_links(1 + max(max(row[:2]) for row in rows), rows)


def pairs(*nodes):
    return [(a, b) for a in nodes for b in nodes if a < b]


def networks():
    ring, mesh = tacos.topology.ring(8), tacos.topology.mesh(3, 3)
    boxes = [*pairs(0, 1, 2, 3), *pairs(4, 5, 6, 7)]
    return {
        "ring of 8": ring,
        "ring of 8, one link at a quarter": tacos.topology.degrade(
            ring, (0, 1), factor=0.25, both=True
        ),
        "torus 3x3": tacos.topology.torus(3, 3),
        "torus 2x4": tacos.topology.torus(2, 4),
        "two boxes of 4, thin links between": links(
            (boxes, 200), ([(i, i + 4) for i in range(4)], 50)
        ),
        "mesh 3x3, two links dead": tacos.topology.drop_links(mesh, (0, 1), (4, 5), both=True),
        "4 NPUs, links of 200, 100 and 25": links(
            ([(0, 1), (2, 3)], 200), ([(1, 2), (0, 3)], 100), ([(0, 2), (1, 3)], 25)
        ),
    }


def work(folder, elements, rounds):
    """Run one rank in the lab."""
    from tacos.runtime import connect

    rank, algorithms = int(os.environ["TACOS_RANK"]), dict[str, Callable[[], object]]()
    data, wrong = np.empty(elements, np.float32), 0
    with connect(timeout=60) as comm:
        for path in sorted(folder.glob("*.tacos")):
            algorithm = comm.prepare(tacos.load(path), verify=False)
            algorithms[path.stem] = partial(algorithm.run, data, data)
        try:
            import torch
            from torch import distributed

            distributed.init_process_group("gloo")
            tensor = torch.from_numpy(data)
            algorithms["gloo"] = partial(distributed.all_reduce, tensor)
        except ImportError:
            pass
        times: dict[str, list[float]] = {name: [] for name in algorithms}
        for number in range(rounds + 1):
            for name, run in algorithms.items():
                data[:] = np.arange(elements) % 1000 + rank
                comm.barrier(f"{name} {number}")
                begin = time.perf_counter()
                run()
                if number:  # the first warms up
                    times[name].append(time.perf_counter() - begin)
                expected = np.arange(elements) % 1000 * comm.size + comm.size * (comm.size - 1) // 2
                wrong += int((data != expected).sum())
        everybody = [
            json.loads(t) for t in comm.exchange("times", json.dumps([times, wrong]).encode())
        ]
        if "gloo" in algorithms:
            distributed.destroy_process_group()
    if rank == 0:
        slowest = {
            name: np.max([theirs[name] for theirs, _ in everybody], axis=0).tolist()
            for name in times
        }
        print(json.dumps({"times": slowest, "wrong": sum(count for _, count in everybody)}))


def measure(topology, size, rounds):
    """Return the seconds of each algorithm, round by round, the schedules, and the bound."""
    with Lab(topology) as lab, tempfile.TemporaryDirectory() as folder:
        print(lab.describe(), file=sys.stderr)
        collective = tacos.collective.all_reduce(lab.topology, size)
        others = sorted({*tacos.engines(lab.topology, collective)} - {*RINGS, *OURS})
        made = {
            name: tacos.synthesize(lab.topology, collective, engine=name)
            for name in [*RINGS, *others, "auto"]
        }
        best = min(others, key=lambda name: made[name].time_s)
        made = {name: made[name] for name in [*RINGS, best, "auto"]}
        for name, schedule in made.items():
            tacos.save(schedule, Path(folder, f"{name}.tacos"))
        bound = tacos.bound(lab.topology, collective).time_s
        worker = [sys.executable, __file__, "--worker", folder, str(size // 4), str(rounds)]
        run = lab.run(worker, output="returned", time_limit=300)
    if run.code:
        raise SystemExit(f"{run.why}\n" + "".join(run.stderr))
    return json.loads(run.stdout[0].splitlines()[-1]), made, bound


def report(name, found, made, bound):
    times = found["times"]
    middle = {engine: float(np.median(some)) for engine, some in times.items()}
    print(f"\n{name}: bound {1e3 * bound:.0f} ms" + ("  WRONG RESULTS" if found["wrong"] else ""))
    print(f"  {'':20} measured ms       simulated  ratio  chunks")
    for engine in ["gloo", *made] if "gloo" in times else made:
        low, high = np.percentile(times[engine], [25, 75])
        row = f"  {engine:20} {1e3 * middle[engine]:8.1f} ±{1e3 * (high - low) / 2:5.1f}"
        if engine in made:
            said = tacos.simulate(made[engine], timing="order").time_s
            row += f"   {1e3 * said:8.1f}  {middle[engine] / said:.3f}  {made[engine].collective.chunks:6}"
        print(row + (f"  ({made[engine].engine})" if engine == "auto" else ""))
    ours, ring = middle["auto"], min(middle[engine] for engine in RINGS)
    versus = f"over gloo {middle['gloo'] / ours:.2f}x, " if "gloo" in middle else ""
    print(f"  auto {versus}over the best ring {ring / ours:.2f}x", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", help="beginnings of their names; default: all")
    parser.add_argument("--size", default="8MiB")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    for name, topology in networks().items():
        if not arguments.networks or name.startswith(tuple(arguments.networks)):
            report(name, *measure(topology, units.size_bytes(arguments.size), arguments.rounds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
