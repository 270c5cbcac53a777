"""Distributing work: how busy the workers of a sweep are, with tasks that only sleep.

    python benchmarks/dispatch.py [--workers 8] [--tasks 10000] [--ms 10]

Busy is the total time of all tasks divided by the total time of all workers. The first row submits each task separately, as
executors do; the last one is a Dask cluster on this machine, if Dask is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import tacos
from tacos.workers import Dispatch, opened


def nap(task):
    topology, seconds = task
    begin = time.perf_counter()
    time.sleep(seconds)
    return topology.npus, time.perf_counter() - begin


@contextmanager
def dask(count):
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=count, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address.replace("tcp://", "dask://")


def measured(name, workers, tasks, run):
    run(tasks[: 4 * workers])  # all workers have started
    begin = time.perf_counter()
    slept = run(tasks)
    took = time.perf_counter() - begin
    assert len(slept) == len(tasks), "results are missing"
    print(f"{name:34}{len(tasks):8,}{took:9.1f} s{sum(slept) / took / workers:9.1%}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--ms", type=float, default=10.0)
    asked = parser.parse_args()
    topology = tacos.topology.torus(100, 100)
    tasks = [(topology, asked.ms / 1000)] * asked.tasks
    print(
        f"{asked.workers} workers, tasks of {asked.ms:g} ms on a network of {topology.npus:,} NPUs"
    )
    print(f"{'workers':34}{'tasks':>8}{'time':>11}{'busy':>9}")

    def handed_out(executor):
        return lambda some: [
            result[1] for result in Dispatch(executor, nap, some, shared=[topology]).in_order()
        ]

    with ProcessPoolExecutor(asked.workers, get_context("spawn")) as pool:
        few = tasks[: max(len(tasks) // 20, 4 * asked.workers)]
        measured("processes, one task at a time", asked.workers, few,
                 lambda some: [result[1] for result in pool.map(nap, some)])  # fmt: skip
    with opened(f"processes:{asked.workers}") as executor:
        measured("processes", asked.workers, tasks, handed_out(executor))
    if importlib.util.find_spec("distributed") is not None:
        with dask(asked.workers) as address, opened(address) as executor:
            measured("dask", asked.workers, tasks, handed_out(executor))


if __name__ == "__main__":
    main()
