"""In-network aggregation: packets per second of the switch beside a plain UDP echo, and all-reduces in lab networks.

    python benchmarks/aggregation.py [--packets N] [--skip-lab] [--rate 50Mbit/s] [--size 4MB]

The echo has the same loop and the same system calls, and sends every datagram back. Both get the same packets from the
same sender, in turns, on the loopback device. The lab builds stars of hosts from network namespaces; their switch runs
the program that adds up.
"""

from __future__ import annotations

import argparse
import socket
import statistics

import numpy as np

from tacos._core import AggregationWorker, UdpSwitch, aggregation_pump
from tacos.runtime.aggregation.endpoints import digest

TOKEN = digest("benchmark")
ROUNDS = 7


def opened(echo: bool) -> UdpSwitch:
    """A switch, or an echo with its loop."""
    device = UdpSwitch("127.0.0.1", 0, 1, [TOKEN], 8192, 2232, 64, "", 0, 0, 0.0, 0.0, 1, echo)
    device.start()
    return device


def joined(
    sender: socket.socket, port: int, workers: int, pool: int, elements: int, job: str
) -> tuple[int, int]:
    """Job and generation after all workers have joined from one socket."""
    data = np.ones(elements, np.int32)
    machines = [
        AggregationWorker(TOKEN, job, worker, workers, pool, elements, 77 + worker)
        for worker in range(workers)
    ]
    for machine in machines:
        for packet in machine.start(data.ctypes.data, data.ctypes.data, 1, "int32", False, 0):
            sender.sendto(packet, ("127.0.0.1", port))
    while True:
        answer = sender.recv(9000)
        if answer[3] == 4:  # a welcome
            return int.from_bytes(answer[4:8], "little"), int.from_bytes(answer[8:16], "little")


def rate(
    device: UdpSwitch, echo: bool, workers: int, elements: int, packets: int, job: str
) -> tuple[float, float]:
    """Packets per second that arrive and are answered, and processor time per packet in ns."""
    pool = 32
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        sender.bind(("127.0.0.1", 0))
        sender.settimeout(10)
        number, generation = (
            (0, 1) if echo else joined(sender, device.port, workers, pool, elements, job)
        )
        sender.settimeout(None)
        # The kernel waits at most this long; a lost packet ends the measurement instead of blocking it.
        sender.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, (5).to_bytes(8, "little") + bytes(8)
        )
        before = device.busy_s
        uses = packets // workers
        seconds = aggregation_pump(
            sender.fileno(),
            "127.0.0.1",
            device.port,
            number,
            generation,
            workers,
            pool,
            elements,
            uses,
        )
        return uses * workers / seconds, (device.busy_s - before) / (uses * workers) * 1e9


def packet_rates(packets: int) -> None:
    """The table of packet rates, the median of interleaved rounds."""
    print(
        "| workers | integers | echo, packets/s | switch, packets/s | ratio | echo, ns | switch, ns |"
    )
    print("|---|---|---|---|---|---|---|")
    for workers in (1, 2, 4, 8):
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


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--packets", type=int, default=20_000, help="packets per round")
    asked = parser.parse_args()
    packet_rates(asked.packets)


if __name__ == "__main__":
    main()
