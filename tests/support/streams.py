"""Sends TCP streams through a lab, run by every rank: streams.py BYTES SRC>DST[@WAY] …

WAY is the position among the addresses that lead to the destination, or npu for its loopback address.
Every destination prints a JSON line per stream: its position, and when it began and ended in seconds.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

RANK, WORLD = int(os.environ["TACOS_RANK"]), int(os.environ["TACOS_WORLD_SIZE"])
REACH = json.loads(os.environ["TACOS_ADDRESSES"])


def barrier(port):
    """Wait for all ranks, over the bridge, which is not measured."""
    host = os.environ["MASTER_ADDR"]
    if RANK == 0:
        with socket.create_server(("", int(port)), backlog=WORLD) as server:
            others = [server.accept()[0] for _ in range(WORLD - 1)]
        for other in others:
            other.sendall(b".")
            other.close()
        return
    waiting = True
    while waiting:
        try:
            with socket.create_connection((host, int(port))) as connection:
                waiting = connection.recv(1) != b"."
        except ConnectionRefusedError:
            time.sleep(0.01)


def say(what):
    os.write(1, json.dumps(what).encode() + b"\n")  # one write, so that lines of threads do not mix


def receive(server, number, size):
    connection, _ = server.accept()
    buffer, got = bytearray(1 << 16), 0
    (begin,) = struct.unpack("d", connection.recv(8, socket.MSG_WAITALL))
    while got < size:
        got += connection.recv_into(buffer)
    end = time.monotonic()  # one clock for the whole machine
    connection.sendall(b".")
    say([number, begin, end])


def send(peer, way, port, size):
    address = f"npu{peer}" if way == "npu" else REACH[str(peer)][int(way or 0)]
    with socket.create_connection((address, port)) as connection:
        connection.sendall(struct.pack("d", time.monotonic()) + bytes(size))
        connection.recv(1)


def main():
    size, jobs = int(sys.argv[1]), []
    for number, text in enumerate(sys.argv[2:]):
        ends, _, way = text.partition("@")
        src, dst = map(int, ends.split(">"))
        port = 7000 + number
        if dst == RANK:
            server = socket.create_server(("", port))
            jobs.append(threading.Thread(target=receive, args=(server, number, size)))
        if src == RANK:
            jobs.append(threading.Thread(target=send, args=(dst, way, port, size)))
    barrier(os.environ["MASTER_PORT"])  # all ranks listen before any connects
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    barrier(os.environ["TACOS_RENDEZVOUS"].split(":")[1])  # all streams have ended
    carried = {}
    for line in Path("/proc/net/dev").read_text().splitlines()[2:]:
        device, _, numbers = line.partition(":")
        carried[device.strip()] = int(numbers.split()[8])
    say(carried)


main()
