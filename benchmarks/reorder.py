"""Rank orders: planted racks in the model, and unmodified gloo and Open MPI on a lab network in racks.

Model: shuffled costs between hosts in racks, with noise of 10 %. The table shows the gain over the mean of random orders,
the cost compared with the planted order's, the gap to the lower bound, and the time of the search.

Lab: 16 hosts in 4 racks, numbered at random; each rack's uplink is as fast as one host's link. The network is probed, the order is
found from the probe's file, and the ring all-reduces of unmodified gloo (torch.distributed) and Open MPI (coll/tuned)
run in ten random orders, in the order found and in the planted one. Orders take turns; each time is that of the slowest rank.
mpirun starts the ranks with the file openmpi.seq that `tacos reorder -o` writes, with a daemon on each host.

Links are slow on purpose: 16 ranks share a few processors, and on slow links the time that they spend polling does not affect the
result. Each message of a ring has at most 64 KiB, which Open MPI sends at once; for a larger message it first sends an announcement
and waits for the answer.

    python -m benchmarks.reorder [--size 512KiB] [--fastest 16Mbit/s] [--rounds 3] [--model-only]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import socket
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import tacos
from tacos import units
from tacos.reorder.files import write
from tacos.reorder.patterns import PATTERNS
from tacos.reorder.search import OrderingProblem, cost_of
from tacos.reorder.sources import costs_of
from tacos.runtime.lab import Lab
from tests.support.lab_hosts import launch, mpirun

RACKS, HOSTS, RANDOM_ORDERS = 4, 4, 10


def matrix(racks, hosts, cross, seed):
    random = np.random.default_rng(seed)
    rack = random.permutation(np.repeat(np.arange(racks), hosts))
    n = racks * hosts
    plain = np.where(rack[:, None] == rack, 1.0, cross)
    np.fill_diagonal(plain, 0)
    noise = random.uniform(0.9, 1.1, (n, n))
    return plain * noise, plain, np.argsort(rack, kind="stable")


def ring(costs, order):
    n = len(order)
    return 2 * (n - 1) / n * costs[order, np.roll(order, -1)].sum()


def model():
    print("planted racks, hops of 1 and `cross` with 10 % of noise; costs without the noise")
    print("hosts  racks  cross  over random  of the planted  gap      seconds")
    for racks, hosts, cross in ((4, 16, 5.0), (4, 16, 6.1), (16, 64, 5.0)):
        noisy, plain, planted = matrix(racks, hosts, cross, 1)
        begin = time.perf_counter()
        found = tacos.reorder(noisy)
        took = time.perf_counter() - begin
        order = np.array(found.order)
        n = racks * hosts
        random = np.mean([ring(plain, np.random.default_rng(s).permutation(n)) for s in range(100)])
        print(
            f"{n:5}  {racks:5}  {cross:5}  {random / ring(plain, order):11.2f}  "
            f"{ring(plain, order) / ring(plain, planted):14.3f}  {found.gap:7.2%}  {took:7.1f}"
        )
    print("pattern             hosts  gain   gap      seconds")
    for pattern in PATTERNS:
        for hosts in (12, 64):
            noisy, _, _ = matrix(4, hosts // 4, 5.0, 1)
            begin = time.perf_counter()
            found = tacos.reorder(noisy, pattern)
            took = time.perf_counter() - begin
            print(f"{pattern:18}  {hosts:5}  {found.speedup:4.2f}  {found.gap:7.2%}  {took:7.1f}")


def network(seed):
    """Return hosts in racks, numbered at random, and the planted order."""
    n = RACKS * HOSTS
    planted = np.random.default_rng(seed).permutation(n)
    rows = [(int(host), n + place // HOSTS, 1e9, 0) for place, host in enumerate(planted)]
    rows += [(n + rack, n + RACKS, 1e9, 0) for rack in range(RACKS)]
    both = rows + [(b, a, rate, late) for a, b, rate, late in rows]
    return tacos.topology.from_links(n, both, switches=RACKS + 1), planted


def measured(orders, rounds, reduce, slowest, barrier):
    """Return the seconds of an all-reduce in every order, in turns; the first turn only opens connections."""
    times: list[list[float]] = [[] for _ in orders]
    for number in range(rounds + 1):
        for k, some in enumerate(times):
            barrier()
            begin = time.perf_counter()
            reduce(k)
            took = slowest(time.perf_counter() - begin)
            if number:
                some.append(took)
    return times


def gloo(orders, elements, rounds):
    """Run one rank of torch.distributed in the lab."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    groups = [distributed.new_group(order, sort_ranks=False) for order in orders]
    data, wrong = torch.ones(elements), []

    def reduce(k):
        distributed.all_reduce(data, group=groups[k])

    def slowest(seconds):
        wrong.append(int((data != len(orders[0])).sum()))
        data.fill_(1.0)
        took = torch.tensor(seconds)
        distributed.all_reduce(took, distributed.ReduceOp.MAX)
        return float(took)

    times = measured(orders, rounds, reduce, slowest, distributed.barrier)
    if distributed.get_rank() == 0:
        print(json.dumps({"times": times, "wrong": sum(wrong)}))
    distributed.destroy_process_group()


def open_mpi(orders, elements, rounds):
    """Run one rank of MPI in the lab; the launcher has placed the ranks in the order found, which comes first."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    host = int(socket.gethostname().removeprefix("npu"))
    if world.allgather(host) != orders[0]:
        raise SystemExit("the ranks are not on the hosts that openmpi.seq names")
    groups = [world, *(world.Split(0, order.index(host)) for order in orders[1:])]
    data, result, wrong = np.ones(elements, np.float32), np.empty(elements, np.float32), []

    def slowest(seconds):
        wrong.append(int((result != len(orders[0])).sum()))
        return world.allreduce(seconds, MPI.MAX)

    times = measured(
        orders, rounds, lambda k: groups[k].Allreduce(data, result), slowest, world.Barrier
    )
    if world.rank == 0:
        print(json.dumps({"times": times, "wrong": sum(wrong)}))


WORKERS = {"gloo": gloo, "open_mpi": open_mpi}
RING = {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_allreduce_algorithm": "4"}
"""Open MPI's ring for any size; without han, which would take over between hosts."""


def from_first(order):
    """Return the same ring, beginning at host 0, where the rendezvous is."""
    order = [int(host) for host in order]
    at = order.index(0)
    return order[at:] + order[:at]


def run_gloo(built, worker, _found):
    return built.run(worker, output="returned", time_limit=900)


def run_open_mpi(built, worker, found):
    with tempfile.TemporaryDirectory() as folder:
        write(found, folder)
        file = f"{folder}/openmpi.seq"
        rules = [word for name, value in RING.items() for word in ("--mca", name, value)]
        rules += ["--mca", "coll", "^han", "--hostfile", file, "--map-by", f"seq:file={file}"]
        return launch(built, folder, [*mpirun(folder), *rules, *worker], time_limit=900)


def lab(size, fastest, rounds, seed):
    topology, planted = network(seed)
    n = topology.npus
    with Lab(topology, fastest=fastest) as built, tempfile.TemporaryDirectory() as folder:
        print(f"\n{built.describe()}")
        file = Path(folder, "found.yaml")
        command = [sys.executable, "-m", "tacos", "probe", "--seconds", "40", "-o", str(file)]
        begin = time.perf_counter()
        run = built.run(command, output="returned", time_limit=500)
        if run.code:
            raise SystemExit(f"{run.why}\n" + "".join(run.stderr))
        probed = tacos.load(file)
        print(f"probed in {time.perf_counter() - begin:.0f} s: {probed!r}")
        found = named(tacos.reorder(probed, size=size))
        random = [np.random.default_rng(100 + s).permutation(n) for s in range(RANDOM_ORDERS)]
        orders = [from_first(o) for o in (found.order, planted, *random)]
        terms = PATTERNS["ring"].terms(n, float(size))
        problem = OrderingProblem(costs_of(probed), terms, latency=True, turns=True)
        predicted = [cost_of(problem, order) for order in orders]
        for name, package, run_all in (
            ("gloo", "torch", run_gloo),
            ("open_mpi", "mpi4py", run_open_mpi),
        ):
            if importlib.util.find_spec(package) is None:
                print(f"\n{name}: not measured, {package} is not installed")
                continue
            task = [name, json.dumps(orders), str(size // 4), str(rounds)]
            run = run_all(
                built, [sys.executable, "-m", "benchmarks.reorder", "--worker", *task], found
            )
            if run.code:
                raise SystemExit(f"{run.why}\n" + "".join(run.stderr))
            result = json.loads(run.stdout[0].splitlines()[-1])
            report(f"{name}, all-reduce of {units.format_size(size)}", result, predicted)


def named(found):
    """Return the order with the lab's names of hosts, from host 0 on."""
    order = tuple(from_first(found.order))
    hosts = tuple(f"npu{host}" for host in order)
    return replace(found, order=order, hosts=hosts, ranks=tuple((host,) for host in order))


def report(title, result, predicted):
    middle = [float(np.median(times)) for times in result["times"]]
    print(f"\n{title}" + ("  WRONG" if result["wrong"] else ""))
    print("order      measured ms  predicted ms  ratio")
    names = ["found", "planted", *(f"random {s}" for s in range(RANDOM_ORDERS))]
    for name, took, said in zip(names, middle, predicted, strict=True):
        print(f"{name:10} {1e3 * took:11.1f}  {1e3 * said:12.1f}  {took / said:5.3f}")
    print(f"over the mean of random orders: {np.mean(middle[2:]) / middle[0]:.2f}")
    print(f"of the planted order's speed:   {middle[1] / middle[0]:.1%}")
    print(f"predicted over measured:        {predicted[0] / middle[0]:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="512KiB")
    parser.add_argument("--fastest", default="16Mbit/s", help="speed of the links")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model-only", action="store_true")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, orders, elements, rounds = options.worker
        WORKERS[name](json.loads(orders), int(elements), int(rounds))
        return
    model()
    if not options.model_only:
        lab(units.size_bytes(options.size), options.fastest, options.rounds, options.seed)


if __name__ == "__main__":
    main()
