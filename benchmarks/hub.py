"""The optimizer service: aggregation, loopback throughput, and training steps in a lab network.

``python benchmarks/hub.py`` runs all parts that this machine can; ``hub.py aggregation`` and so on run one:

- ``aggregation``: chunk-owned ("tall") against key-at-a-time ("wide") sums and updates in memory, on all cores.
- ``loopback``: push-pull through a hub of one core, over sockets and shared memory, and through a hub of four cores, against
  plain sockets that move the same bytes in both directions, and against gRPC if grpcio is installed (it is not a dependency).
- ``lab``: 4 workers and a hub whose link is 4 times theirs: a training step that waits for the network, against gloo's
  DDP and against the model max(M/B_w, N*M/B_p). Needs torch and namespaces.
- ``racks``: bytes that cross racks, counted on sockets: servers sharded over the racks, and a hub in each rack.
- ``placements``: one hub, shards beside the workers, and two levels, against the formulas. Needs namespaces.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import socket
import stat
import statistics
import sys
import tempfile
import threading
import time
from concurrent import futures
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import tacos
from tacos._core import hub_aggregate
from tacos.hub import Job, Relay, Server, Tenant, Tenants, connect, optimizer
from tacos.runtime.lab import Lab, unavailable

CHUNK = 32 << 10
TOKEN = "a token of this benchmark"
SECONDS = 1.0
TURNS = 5
LAYERS = 16


def resnet50():
    """Return the sizes of the 161 parameters of ResNet-50: convolutions, batch norms, and one linear layer."""
    sizes = [64 * 3 * 49, 64, 64]
    inside = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            sizes += [inside * width, width, width, width * width * 9, width, width]
            sizes += [width * width * 4, width * 4, width * 4]
            if block == 0:
                sizes += [inside * width * 4, width * 4, width * 4]
            inside = width * 4
    return [*sizes, 2048 * 1000, 1000]


def aggregation(cores):
    sizes = resnet50()
    print(
        f"aggregation of ResNet-50 ({sum(sizes) / 1e6:.1f} M parameters), 8 workers, {cores} cores"
    )
    best: dict[str, float] = {}
    for _ in range(TURNS):  # in turns, so that other work on the machine hits both
        for name, tall in (("tall", True), ("wide", False)):
            taken = hub_aggregate(tall, cores, 8, sizes, 3)
            best[name] = min(best.get(name, taken), taken)
    for name, taken in best.items():
        rate = 8 * 4 * sum(sizes) / taken / 1e9
        print(f"  {name}  {taken * 1e3:7.2f} ms per round, {rate:6.1f} GB/s of gradients")
    print(f"  tall is {best['wide'] / best['tall']:.2f} times as fast")


# --- loopback


def serve(pipe, cores):
    with Server(cores=cores, log=lambda _: None) as server:
        pipe.send(server.address)
        pipe.recv()


def hub_rate(elements, share, cores=1):
    """Return the bytes per second in each direction through a hub."""
    here, there = mp.Pipe()
    process = mp.Process(target=serve, args=(there, cores))
    process.start()
    job = Job("bench", {"w": elements}, "sgd", [optimizer("sgd", lr=0.1)])
    with connect(job, here.recv(), share=share) as worker:
        values = np.ones(elements, np.float32)
        weights = np.empty_like(values)
        worker.put("w", values)
        taken = []
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            begin = time.perf_counter()
            worker.wait(worker.push_pull("w", values, weights))
            taken.append(time.perf_counter() - begin)
    here.send(None)
    process.join()
    return 4 * elements / statistics.median(taken)


def echo(listener):
    """Send back what arrives, chunk by chunk, as a hub does, but without its work."""
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(CHUNK))
    while connection.recv_into(buffer, CHUNK, socket.MSG_WAITALL) == CHUNK:
        connection.sendall(buffer)


def socket_rate(elements):
    listener = socket.create_server(("127.0.0.1", 0))
    process = mp.Process(target=echo, args=(listener,))
    process.start()
    out = np.ones(elements, np.float32)
    back = memoryview(np.empty_like(out)).cast("B")
    taken = []
    with socket.create_connection(listener.getsockname()) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            begin = time.perf_counter()
            sender = threading.Thread(target=connection.sendall, args=(out,))
            sender.start()
            got = 0
            while got < len(back):
                got += connection.recv_into(back[got:], min(len(back) - got, 1 << 20))
            sender.join()
            taken.append(time.perf_counter() - begin)
    process.join()
    listener.close()
    return 4 * elements / statistics.median(taken)


def grpc_serve(pipe):
    import grpc

    def push(request, _):
        return request

    handler = grpc.unary_unary_rpc_method_handler(push)
    service = grpc.method_handlers_generic_handler("hub", {"Push": handler})
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    pipe.send(port)
    pipe.recv()
    server.stop(None)


def grpc_rate(elements):
    try:
        import grpc
    except ImportError:
        return None
    here, there = mp.Pipe()
    process = mp.Process(target=grpc_serve, args=(there,))
    process.start()
    chunks = max(1, 4 * elements // CHUNK)
    data = bytes(CHUNK)
    taken = []
    with grpc.insecure_channel(f"127.0.0.1:{here.recv()}") as channel:
        push = channel.unary_unary("/hub/Push")
        push(data)
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            begin = time.perf_counter()
            waiting = [push.future(data) for _ in range(chunks)]
            for each in waiting:
                each.result()
            taken.append(time.perf_counter() - begin)
    here.send(None)
    process.join()
    return 4 * elements / statistics.median(taken)


def loopback():
    elements = 4 << 20
    print(f"loopback: push-pull of {4 * elements >> 20} MB, one worker")
    ways = {
        "plain sockets": socket_rate,
        "hub, sockets": lambda count: hub_rate(count, False),
        "hub, memory": lambda count: hub_rate(count, True),
        "hub of 4 cores": lambda count: hub_rate(count, False, cores=4),
        "gRPC": grpc_rate,
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS):  # in turns, and the best of each, as above
        for name, measure in ways.items():
            rates[name].append(measure(elements))
    plain = max(rates["plain sockets"])
    for name, found in rates.items():
        if found[0] is None:
            print(f"  {name:<15} not measured: grpcio is not installed")
        else:
            share = f"{max(found) / plain:5.0%} of plain sockets"
            print(f"  {name:<15} {max(found) / 1e9:6.2f} GB/s in each direction, {share}")


# --- lab


def star(links):
    """Return NPUs around a switch, with links of these bandwidths in Mbit/s."""
    rows = []
    for npu, rate in enumerate(links):
        speed = int(rate * 125_000)
        rows += [(npu, len(links), speed, 0), (len(links), npu, speed, 0)]
    return tacos.topology.from_links(len(links), rows, switches=1)


def network_of(width, layers):
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    return torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(layers)])


def lab_rank(kind, width, layers, steps):
    """Run one NPU of the lab; the last one is the hub, or idle."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(os.environ["HUB_FOLDER"])
    if rank == size - 1:
        if kind == "gloo":
            wait_for(folder / "done")
            return
        tenants = Tenants([Tenant("lab", TOKEN)])
        host = os.environ["TACOS_HOST"]
        with Server(host, 7800, cores=1, tenants=tenants, log=lambda _: None):
            (folder / "ready").touch()
            wait_for(folder / "done")
        return
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model = network_of(width, layers)
    inputs = torch.ones(1, width)
    workers = size - 1
    if kind == "gloo":
        dist.init_process_group("gloo", rank=rank, world_size=workers)
        wrapped = DistributedDataParallel(model)
        optimizer_ = torch.optim.SGD(wrapped.parameters(), lr=1e-6)
    else:
        from tacos.hub import Optimizer

        wait_for(folder / "ready")
        wrapped = model
        optimizer_ = Optimizer(
            {"name": "sgd", "lr": 1e-6}, model.named_parameters(), hub=f"npu{size - 1}:7800",
            workers=workers, rank=rank, token=TOKEN, share=False,
        )  # fmt: skip
    taken = []
    for _ in range(steps + 1):
        begin = time.perf_counter()
        optimizer_.zero_grad()
        wrapped(inputs).sum().backward()
        optimizer_.step()
        taken.append(time.perf_counter() - begin)
    if rank == 0:
        print(statistics.median(taken[1:]))
    if kind == "gloo":
        dist.barrier()
        dist.destroy_process_group()
    else:
        optimizer_.worker.meet("end")
        optimizer_.leave()
    if rank == 0:
        (folder / "done").touch()


def wait_for(path):
    while not path.exists():
        time.sleep(0.02)


def measured(lab, *words):
    """Return the seconds that rank 0 prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).resolve()), "--rank", *map(str, words)]
        run = lab.run(
            command, environment={"HUB_FOLDER": folder}, time_limit=300.0, output="returned"
        )
    if run.code:
        raise SystemExit(f"{run.why}\n{''.join(run.stderr)}")
    return float(run.stdout[0].split()[-1])


def in_lab():
    reason = unavailable() or ("" if find_spec("torch") else "torch is not installed")
    if reason:
        print(f"lab: not measured, because {reason}")
        return
    width, layers, rate, steps = 512, 4, 100, 5
    size = 4 * width * width * layers
    with Lab(star([rate] * 4 + [4 * rate]), scale=1.0) as lab:
        model = max(size / (rate * 125_000), 4 * size / (4 * rate * 125_000))
        print(
            f"lab: 4 workers at {rate} Mbit/s, a hub at {4 * rate}, {size / 1e6:.1f} MB of gradients"
        )
        taken: dict[str, list[float]] = {"hub": [], "gloo": []}
        for _ in range(2):  # in turns, so that other work on the machine hits both
            for kind, seconds in taken.items():
                seconds.append(measured(lab, kind, width, layers, steps))
    ours, theirs = min(taken["hub"]), min(taken["gloo"])
    print(f"  gloo's DDP {theirs * 1e3:8.1f} ms per step")
    print(f"  hub        {ours * 1e3:8.1f} ms per step, {theirs / ours:.2f} times as fast")
    print(f"  model      {model * 1e3:8.1f} ms; the hub takes {ours / model - 1:+.1%}")


# --- racks


def received_elsewhere(ports):
    """Return the bytes that TCP sockets of this process have received, except from and to these ports."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            copy = os.dup(int(entry.name))
        except OSError:
            continue
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        with socket.socket(fileno=copy) as each:
            if each.family != socket.AF_INET or each.type != socket.SOCK_STREAM:
                continue
            try:
                ends = {each.getsockname()[1], each.getpeername()[1]}
                facts = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            except OSError:  # it listens
                continue
        if not ends & ports:
            total += int.from_bytes(facts[128:136], sys.byteorder)  # tcpi_bytes_received
    return total


def crossing(levels, racks, per_rack, elements, steps=3):
    """Return the bytes per step that cross racks, in both directions together, counted on loopback sockets.

    With one level, each rack has a server for an equal part of the parameters, and every worker uses all of them. With two,
    each rack has a hub for its workers, and the hubs exchange sums.
    """
    meeting = f"127.0.0.1:{free_port()}"
    relays = [Relay(r, racks, meeting) if levels == 2 else None for r in range(racks)]
    servers = [Server(cores=1, relay=relay, log=lambda _: None) for relay in relays]
    ports = {port for server in servers for port in (port_of(server), *server.ports)}
    crossed = [0] * (racks * per_rack)
    between = []
    together = threading.Barrier(racks * per_rack, timeout=60)

    def work(rank):
        rack = rank // per_rack
        places = range(racks) if levels == 1 else [rack]
        part = elements // len(places)
        workers = racks * per_rack if levels == 1 else per_rack
        gradient, weights = np.ones(part, np.float32), np.empty(part, np.float32)
        found = {}
        for place in places:
            job = Job("part", {"w": part}, "sgd", [optimizer("sgd", lr=0.1)], workers=workers)
            found[place] = connect(job, servers[place].address, rank=rank, share=False)
        for worker in found.values():
            if worker.initialize:
                worker.put("w", gradient)
            worker.wait(worker.pull("w", weights))
            worker.meet("begin")
        before = sum(sum(w.traffic) for place, w in found.items() if place != rack)
        together.wait()
        if rank == 0 and levels == 2:
            between.append(received_elsewhere(ports))
        together.wait()
        for _ in range(steps):
            for worker in found.values():
                worker.wait(worker.push_pull("w", gradient, weights))
        crossed[rank] = sum(sum(w.traffic) for p, w in found.items() if p != rack) - before
        for worker in found.values():
            worker.meet("end")
        if rank == 0 and levels == 2:  # hubs of other racks may be a little behind
            time.sleep(0.2)
            between.append(received_elsewhere(ports))
        for worker in found.values():
            worker.leave()

    host = os.environ.get("TACOS_HOST")
    os.environ["TACOS_HOST"] = "127.0.0.1"  # or hubs of one machine exchange over Unix sockets
    try:
        with futures.ThreadPoolExecutor(racks * per_rack) as pool:
            list(pool.map(work, range(racks * per_rack)))
    finally:
        for server in servers:
            server.close()
        os.environ.pop("TACOS_HOST")
        os.environ.update({"TACOS_HOST": host} if host else {})
    return (between[1] - between[0] if levels == 2 else sum(crossed)) / steps


def across_racks():
    elements = 1 << 20
    m = 4 * elements
    print(
        f"racks: bytes that cross racks per step, {m / 1e6:.1f} MB of gradients, counted on sockets"
    )
    for racks, per_rack in ((2, 2), (2, 4), (3, 3)):
        flat = crossing(1, racks, per_rack, elements)
        two = crossing(2, racks, per_rack, elements)
        formula = 2 * per_rack * m * (racks - 1), 2 * m * (racks - 1)
        print(
            f"  {racks} racks of {per_rack}: sharded {flat / 1e6:6.1f} MB (formula {formula[0] / 1e6:6.1f}), two levels "
            f"{two / 1e6:6.1f} MB ({formula[1] / 1e6:6.1f}), {flat / two:.2f} times less"
        )


def port_of(server):
    return int(server.address.rpartition(":")[2])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


# --- placements


def placement_rank(kind, elements, steps):
    """Run one NPU without torch: with a central hub, with a shard beside each worker, or with two levels of hubs."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(os.environ["HUB_FOLDER"])
    tenants = Tenants([Tenant("lab", TOKEN)])
    host = os.environ["TACOS_HOST"]
    racks = 2
    per_rack = size // racks  # two levels: the first NPU of each rack is its hub
    relay = None
    if kind == "two-level" and rank % per_rack == 0:
        meeting = f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT'])}"
        hubs = range(0, size, per_rack)
        relay = Relay(rank // per_rack, racks, meeting, token=TOKEN, members=hubs)
    serves = {
        "central": rank == size - 1,
        "sharded": True,
        "two-level": rank % per_rack == 0,
    }[kind]
    works = kind == "sharded" or not serves
    server = None
    if serves:
        server = Server(host, 7800, cores=1, tenants=tenants, relay=relay, log=lambda _: None)
    (folder / f"ready{rank}").touch()
    for each in range(size):
        wait_for(folder / f"ready{each}")
    if works:
        seconds = exchanges(kind, rank, size, per_rack, elements, steps)
        first = next(r for r in range(size) if kind != "two-level" or r % per_rack)
        if rank == first:
            (folder / "seconds").write_text(str(seconds))
    (folder / f"done{rank}").touch()
    for each in range(size):
        wait_for(folder / f"done{each}")
    if rank == 0:
        print((folder / "seconds").read_text())
    if server is not None:
        server.close()


def exchanges(kind, rank, size, per_rack, elements, steps):
    if kind == "sharded":
        places, workers = list(range(size)), size
    elif kind == "central":
        places, workers = [size - 1], size - 1
    else:
        places, workers = [rank // per_rack * per_rack], per_rack - 1
    part = elements // len(places) // LAYERS
    keys = {f"layer{i}": part for i in range(LAYERS)}
    found = []
    for place in places:
        job = Job(f"part{place}", keys, "sgd", [optimizer("sgd", lr=0.1)], workers=workers)
        found.append(connect(job, f"npu{place}:7800", rank=rank, token=TOKEN, share=False))
    gradient = np.ones(part, np.float32)
    weights = [{key: np.empty(part, np.float32) for key in keys} for _ in places]
    for worker in found:
        if worker.initialize:
            for key in keys:
                worker.put(key, gradient)
    for worker, mine in zip(found, weights, strict=True):
        worker.wait(*[worker.pull(key, mine[key]) for key in keys])
    taken = []
    for _ in range(steps + 1):
        begin = time.perf_counter()
        stamps = [
            (worker, worker.push_pull(key, gradient, mine[key]))
            for key in reversed(keys)  # the last layer's gradient comes first
            for worker, mine in zip(found, weights, strict=True)
        ]
        for worker, stamp in stamps:
            worker.wait(stamp)
        taken.append(time.perf_counter() - begin)
    for worker in found:
        worker.meet("end")
        worker.leave()
    return statistics.median(taken[1:])


def placements():
    if reason := unavailable():
        print(f"placements: not measured, because {reason}")
        return
    elements, rate, steps = 1 << 20, 100, 3
    m, b = 4 * elements, rate * 125_000
    print(f"placements: {m / 1e6:.1f} MB, workers at {rate} Mbit/s")
    with Lab(star([rate] * 5), scale=1.0) as lab:
        taken = measured(lab, "central", elements, 0, steps)
        report("central, 4 workers, a hub at 100 Mbit/s", taken, max(m / b, 4 * m / b))
    with Lab(star([rate] * 4), scale=1.0) as lab:
        taken = measured(lab, "sharded", elements, 0, steps)
        report("a shard beside each of 4 workers", taken, 2 * m * 3 / 4 / b)
    links = [2 * rate, rate, rate, 2 * rate, rate, rate]
    rows = []
    for npu, speed in enumerate(links):
        switch = 6 if npu < 3 else 7
        rows += [(npu, switch, speed * 125_000, 0), (switch, npu, speed * 125_000, 0)]
    rows += [(6, 7, rate * 125_000, 0), (7, 6, rate * 125_000, 0)]
    with Lab(tacos.topology.from_links(6, rows, switches=2), scale=1.0) as lab:
        taken = measured(lab, "two-level", elements, 0, steps)
        rack, between = m / b, 2 * (2 - 1) / 2 * m / b
        report("2 racks of 2 workers and a hub: sum of both levels", taken, rack + between)


def report(what, taken, model):
    print(
        f"  {what:<52} {taken * 1e3:7.1f} ms; formula {model * 1e3:7.1f} ms, {taken / model - 1:+.1%}"
    )


def main():
    if sys.argv[1:2] == ["--rank"]:
        kind, *numbers = sys.argv[2:]
        if kind in ("hub", "gloo"):
            lab_rank(kind, *map(int, numbers))
        else:
            placement_rank(kind, int(numbers[0]), int(numbers[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    known = ["aggregation", "loopback", "racks", "lab", "placements"]
    parser.add_argument("parts", nargs="*", default=[], help=", ".join(known))
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    for part in given.parts or known:
        if part == "aggregation":
            aggregation(given.cores)
        elif part == "loopback":
            loopback()
        elif part == "racks":
            across_racks()
        elif part == "lab":
            in_lab()
        elif part == "placements":
            placements()
        else:
            parser.error(f"unknown part {part!r}; use {', '.join(known)}")


if __name__ == "__main__":
    main()
