"""In-network aggregation: packets per second of the switch and of a plain UDP echo, and all-reduces in lab networks.

    python benchmarks/aggregation.py [--only packets|kernel|lab] [--packets N] [--rate 20Mbit/s] [--size BYTES]

The echo has the same loop and the same system calls, and sends every datagram back. Both get the same packets from the
same sender, in turns, on the loopback device. As root and with clang, the same packets also go through the XDP program,
between two network namespaces, and the kernel measures its time per packet. The lab builds stars of hosts from network
namespaces; their switch runs ``tacos switch``.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tacos
from tacos import runtime
from tacos._core import AggregationWorker, UdpSwitch, aggregation_pump
from tacos.runtime.aggregation import Switch, estimate, stats, xdp
from tacos.runtime.aggregation.endpoints import digest
from tacos.runtime.aggregation.sums import opened as sums_through
from tacos.runtime.lab import Lab, unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKEN = digest("benchmark")
ROUNDS = 7
POOL = 64
"""Packets in flight in the lab: far more than its links hold, so that a lost packet does not leave them idle."""


def opened(echo: bool) -> UdpSwitch:
    """Return a running switch, or an echo with the same loop."""
    device = UdpSwitch("127.0.0.1", 0, 1, [TOKEN], 8192, 2232, 64, "", 0, 0, 0.0, 0.0, 1, echo)
    device.start()
    return device


def joined(
    sender: socket.socket, at: tuple[str, int], workers: int, pool: int, elements: int, job: str
) -> tuple[int, int]:
    """Join all workers from one socket; return the job's number and generation."""
    data = np.ones(elements, np.int32)
    machines = [
        AggregationWorker(TOKEN, job, worker, workers, pool, elements, 77 + worker)
        for worker in range(workers)
    ]
    for machine in machines:
        for packet in machine.start(data.ctypes.data, data.ctypes.data, 1, "int32", False, 0):
            sender.sendto(packet, at)
    while True:
        answer = sender.recv(9000)
        if answer[3] == 4:  # a welcome
            return int.from_bytes(answer[4:8], "little"), int.from_bytes(answer[8:16], "little")


def pumped(
    at: tuple[str, int], echo: bool, workers: int, elements: int, packets: int, job: str
) -> float:
    """Return the packets per second that arrive and are answered."""
    pool = 32
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        sender.bind(("", 0))
        sender.settimeout(10)
        number, generation = (0, 1) if echo else joined(sender, at, workers, pool, elements, job)
        sender.settimeout(None)
        # The kernel waits at most this long; a lost packet ends the measurement instead of blocking it.
        sender.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, (5).to_bytes(8, "little") + bytes(8)
        )
        uses = packets // workers
        seconds = aggregation_pump(
            sender.fileno(), *at, number, generation, workers, pool, elements, uses
        )
        return uses * workers / seconds


def rate(
    device: UdpSwitch, echo: bool, workers: int, elements: int, packets: int, job: str
) -> tuple[float, float]:
    """Return the packets per second that arrive and are answered, and the processor time per packet in ns."""
    before = device.busy_s
    speed = pumped(("127.0.0.1", device.port), echo, workers, elements, packets, job)
    return speed, (device.busy_s - before) / (packets // workers * workers) * 1e9


def packet_rates(packets: int) -> None:
    """Print the table of packet rates: medians of interleaved rounds."""
    print(
        "| workers | integers | echo, packets/s | switch, packets/s | ratio | echo, ns | switch, ns |"
    )
    print("|---|---|---|---|---|---|---|")
    for workers in (1, 4, 8):
        for elements in (64, 256, 360):
            devices = {True: opened(True), False: opened(False)}
            found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
            for turn in range(ROUNDS):
                for echo, device in devices.items():
                    found[echo].append(rate(device, echo, workers, elements, packets, f"job{turn}"))
            for device in devices.values():
                device.stop()
            speed = {
                echo: statistics.median(row[0] for row in rows) for echo, rows in found.items()
            }
            busy = {echo: statistics.median(row[1] for row in rows) for echo, rows in found.items()}
            print(
                f"| {workers} | {elements} | {speed[True]:,.0f} | {speed[False]:,.0f} "
                f"| {speed[False] / speed[True]:.2f} | {busy[True]:,.0f} | {busy[False]:,.0f} |",
                flush=True,
            )


@contextmanager
def cable() -> Iterator[tuple[str, str]]:
    """Create two namespaces with an interface each, `sums0` at 10.78.0.1 and its peer at 10.78.0.2."""
    here, there = (f"tacos-{side}{os.getpid()}" for side in "ab")
    try:
        for command in (
            f"netns add {here}",
            f"netns add {there}",
            f"link add sums0 netns {here} type veth peer name sums1 netns {there}",
            f"-n {here} addr add 10.78.0.1/24 dev sums0",
            f"-n {there} addr add 10.78.0.2/24 dev sums1",
            f"-n {here} link set sums0 up",
            f"-n {there} link set sums1 up",
        ):
            subprocess.run(["ip", *command.split()], check=True)
        yield here, there
    finally:
        for name in (here, there):
            subprocess.run(["ip", "netns", "del", name], check=False)


def within(namespace: str, call: Callable[[], Any]) -> Any:
    """Call a function in a thread of a namespace, and return its result."""

    def enter() -> Any:
        with Path(f"/run/netns/{namespace}").open() as file:
            assert ctypes.CDLL(None).setns(file.fileno(), 0) == 0
        return call()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(enter).result()


def kernel_rates(packets: int) -> None:
    """Print the table of the XDP program: the kernel's time per packet, and packets per second end to end."""
    print("| workers | integers | XDP, packets/s | XDP program, ns | user space, packets/s |")
    print("|---|---|---|---|---|")
    counting = Path("/proc/sys/kernel/bpf_stats_enabled")
    old = counting.read_text()
    counting.write_text("1")
    try:
        with cable() as (here, there):
            for workers in (1, 4, 8):
                for elements in (64, 256, 360):
                    found: dict[str, list[float]] = {"xdp": [], "": [], "ns": []}
                    for xdp_at in ("sums0", None):
                        device = within(
                            here, partial(Switch, "10.78.0.1", token="benchmark", xdp=xdp_at)
                        )
                        at = device.host, device.port
                        with device:
                            for turn in range(ROUNDS):
                                call = partial(
                                    pumped, at, False, workers, elements, packets, f"job{turn}"
                                )
                                found["xdp" if xdp_at else ""].append(within(there, call))
                            if device._kernel:
                                found["ns"].append(device._kernel.time_per_packet_ns())
                    middle = {name: statistics.median(rows) for name, rows in found.items()}
                    print(
                        f"| {workers} | {elements} | {middle['xdp']:,.0f} | {middle['ns']:,.0f} | {middle['']:,.0f} |",
                        flush=True,
                    )
    finally:
        counting.write_text(old)


WIRE_SHARE = 1.012
"""The lab's links carry this many bytes of frames per byte of the topology's bandwidth."""


def core_times() -> list[tuple[int, int]]:
    """Return the busy time and the total time of each core, in ticks."""
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    found = []
    for name, *ticks in lines:
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, waiting, *rest = map(int, ticks)
            busy = user + nice + system + sum(rest[:3])
            found.append((busy, busy + idle + waiting))
    return found


def busiest(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> float:
    """Return the share of the time that the busiest core was busy."""
    spans = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]
    return max(busy / max(run, 1) for busy, run in spans)


def rank(size: int, rounds: int) -> None:
    """Run one host of the lab: sum through the switch and over two rings, in turns."""
    place = os.environ["TACOS_SWITCH"]
    with runtime.connect(timeout=300) as comm:
        network = tacos.topology.switch(comm.size)
        wanted = tacos.collective.all_reduce(network, size, chunks=1)
        rings = {
            name: comm.prepare(tacos.synthesize(network, wanted, engine=name))
            for name in ("ring", "bidirectional-ring")
        }
        sums = sums_through(
            comm, f"{place},least=1KB,pool={POOL}", os.environ["TACOS_SWITCH_TOKEN"]
        )
        assert sums is not None
        data = np.ones(size // 4, np.float32)
        target = np.zeros_like(data)
        calls = {name: ring.run_at for name, ring in rings.items()}
        times: dict[str, list[float]] = {name: [] for name in (*calls, "switch")}
        cores = 0.0

        def failed() -> None:
            raise RuntimeError("the switch failed")

        for turn in range(rounds + 1):
            for name, taken in times.items():
                comm.barrier(f"{name} {turn}")
                before, begin = core_times(), time.perf_counter()
                if name == "switch":
                    sums.run_at(
                        data.ctypes.data, target.ctypes.data, data.size, "float32", "sum", failed
                    )
                    cores = max(cores, busiest(before, core_times()))
                    assert (target == comm.size).all()
                else:
                    calls[name](data.ctypes.data, target.ctypes.data, data.size, "float32", "sum")
                own = time.perf_counter() - begin
                slowest = max(map(float, comm.exchange(f"{name} time {turn}", str(own).encode())))
                if turn:  # the first warms up
                    taken.append(slowest)
        counters = sums.worker.counters
        address = place.partition(",")[0]
        if comm.rank == 0:
            figures = stats(address, os.environ["TACOS_SWITCH_TOKEN"])
            figures = {"times": times, "counters": counters, "switch": figures, "cores": cores}
            print(json.dumps(figures))
        comm.barrier("end")


def lab_times(rate: str, size: int, rounds: int) -> None:
    """Print the table of lab networks."""
    print(
        "| hosts | MTU | loss | switch, s | predicted, s | best ring, s | ring / switch | sent again | busiest core |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for hosts, mtu, loss in (
        (4, 1500, 0.0), (8, 1500, 0.0), (4, 9000, 0.0), (8, 9000, 0.0), (8, 1500, 0.001), (8, 1500, 0.01),
    ):  # fmt: skip
        star = tacos.topology.switch(hosts, multicast=True, reduce=True, bandwidth=rate)
        with Lab(star, scale=1.0, mtu=mtu, loss=loss) as lab:
            command = [
                sys.executable,
                __file__,
                "--rank",
                "--size",
                str(size),
                "--rounds",
                str(rounds),
            ]
            done = lab.run(command, time_limit=600, output="returned")
            if done.code:
                print(
                    f"| {hosts} | {mtu} | {loss:.1%} | failed: {done.why} {done.stderr[0][-300:]} |"
                )
                continue
            bandwidth = float(lab.topology.link_bandwidth_Bps[0])
            latency = float(lab.topology.link_latency_ps[0]) * 1e-12
        found = json.loads(done.stdout[0].splitlines()[-1])
        medians = {name: statistics.median(times) for name, times in found["times"].items()}
        best = min(medians["ring"], medians["bidirectional-ring"])
        expected = estimate(
            size, wire_Bps=bandwidth * WIRE_SHARE, round_trip_s=2 * latency, mtu=mtu, pool=POOL
        )
        again = found["counters"]["retransmitted"] / found["counters"]["sent"]
        print(
            f"| {hosts} | {mtu} | {loss:.1%} | {medians['switch']:.3f} | {expected:.3f} | {best:.3f} "
            f"| {best / medians['switch']:.2f} | {again:.1%} | {found['cores']:.0%} |",
            flush=True,
        )
    print(
        f"\nlinks of {rate}, {size:,} bytes of float32 per host, median of {rounds} rounds, load {os.getloadavg()[0]:.1f}"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--packets", type=int, default=20_000, help="packets per round")
    parser.add_argument("--rate", default="20Mbit/s", help="rate of the lab's links")
    parser.add_argument("--size", type=int, default=2_000_000, help="bytes per host in the lab")
    parser.add_argument("--rounds", type=int, default=3, help="rounds in the lab")
    parser.add_argument("--only", choices=("packets", "kernel", "lab"), help="only this table")
    parser.add_argument("--rank", action="store_true", help="run as a host of the lab")
    asked = parser.parse_args()
    if asked.rank:
        rank(asked.size, asked.rounds)
        return
    if asked.only in (None, "packets"):
        packet_rates(asked.packets)
        print()
    if asked.only in (None, "kernel"):
        if why := xdp.unavailable():
            print(f"no XDP here: {why}")
        else:
            kernel_rates(asked.packets)
        print()
    if asked.only in (None, "lab"):
        if why := unavailable():
            print(f"no lab here: {why}")
        else:
            lab_times(asked.rate, asked.size, asked.rounds)


if __name__ == "__main__":
    main()
