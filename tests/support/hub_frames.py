"""Frames of the optimizer service, written independently of the core, and a worker that speaks them without a network."""

from __future__ import annotations

import struct

import numpy as np

HEADER = struct.Struct("<BBBBIIIQd")
HELLO, WELCOME, PUSH, PULL, PUT, VALUES, DONE, ERROR = range(1, 9)
QUIET, EMPTY, SHARED, FATAL = 1, 2, 4, 8
CHUNK = 8192


def frame(kind, payload=b"", *, flags=0, wire=0, chunk=0, tag=0, step=0, rate=0.0, magic=0xB5):
    """A frame as it is on the wire, padded to 8 bytes."""
    head = HEADER.pack(magic, kind, flags, wire, len(payload), chunk, tag, step, rate)
    return head + payload + bytes(-len(payload) % 8)


def frames(data):
    """Split what a service sent: (kind, flags, chunk, tag, step, payload) of each whole frame, and the rest."""
    found = []
    while len(data) >= HEADER.size:
        _, kind, flags, _, size, chunk, tag, step, _ = HEADER.unpack_from(data)
        whole = HEADER.size + size + -size % 8
        if len(data) < whole:
            break
        found.append((kind, flags, chunk, tag, step, bytes(data[HEADER.size : HEADER.size + size])))
        data = data[whole:]
    return found, data


class Speaker:
    """A worker of a hub: connected to every core, it sends what it is told and collects the answers."""

    def __init__(self, hub, job, name="w", rank=0, chunks_on=()):
        self.hub, self.job = hub, job
        self.admission = hub.join(job, name, rank)
        self.connections = [hub.open(core) for core in range(hub.cores)]
        self.cores = chunks_on
        self.unread = [b""] * hub.cores
        for core, connection in enumerate(self.connections):
            key = self.admission.key
            hello = struct.pack("<QII", job, self.admission.slot, core) + key
            hub.feed(core, connection, frame(HELLO, hello))

    def send(self, chunk, data):
        core = int(self.cores[chunk])
        return self.hub.feed(core, self.connections[core], data)

    def push(self, chunk, values, step, rate=0.1, **more):
        payload = np.asarray(values, np.float32).tobytes()
        self.send(chunk, frame(PUSH, payload, chunk=chunk, step=step, rate=rate, tag=chunk, **more))

    def put(self, chunk, values):
        self.send(
            chunk, frame(PUT, np.asarray(values, np.float32).tobytes(), chunk=chunk, tag=chunk)
        )

    def answers(self, most=1 << 40):
        """Return all frames that have arrived, from all cores."""
        found = []
        for core, connection in enumerate(self.connections):
            data = self.unread[core] + self.hub.take(core, connection, most)
            rows, self.unread[core] = frames(data)
            found += rows
        return found

    def weights(self):
        """The last values of every chunk among the answers."""
        return {
            row[2]: np.frombuffer(row[5], np.float32) for row in self.answers() if row[0] == VALUES
        }

    def errors(self):
        return [row[5].decode() for row in self.answers() if row[0] == ERROR]

    def vanish(self, why="it closed its connection"):
        for core, connection in enumerate(self.connections):
            self.hub.close(core, connection, why)
