"""Schedules for .tacos files, and a separate reader and writer of such files.

`taken_apart` and `sealed` follow docs/guide/file-format.md, not the module.
"""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest
from hypothesis import strategies as st

from tacos import collective as co
from tacos import topology as tp
from tacos.errors import FormatError
from tacos.formats import native
from tacos.schedule import READ_INPUT, REDUCE, Schedule, retime, routes
from tests.support.strategies import collectives, topologies

PROVENANCE = {
    "engine": "hand",
    "seed": 7,
    "bound_s": 1e-6,
    "note": "α\ud800",
    "deep": [{"a": None}],
}


@st.composite
def empty_schedules(draw):
    """Any topology, several collectives of any kind at once, and no transfers."""
    topology = draw(topologies())
    parts = draw(st.lists(collectives(topology.npus), min_size=1, max_size=3))
    table = routes(topology, links=[])
    return retime(co.together(*parts), table, route=[], chunk=[], step=[])


def ring_orbit():
    """All-gather on a one-way ring of 4: chunk 0 goes 0 -> 1 -> 2 -> 3, the others likewise."""
    ring = tp.ring(4, bandwidth="1GB/s", latency="1us", bidirectional=False)
    turn = np.array([1, 2, 3, 0], np.int32)
    return Schedule(
        collective=co.all_gather(ring, 4000, chunks=1),
        routes=routes(ring, links=[[0], [1], [2]]),
        lane_route=np.arange(3, dtype=np.int32),
        lane_op=np.zeros(3, np.uint8),
        lane_reads=np.array([0, 1, 1], np.uint8),
        lane_begin=np.arange(4),
        chunk=np.zeros(3, np.uint32),
        start=np.arange(3, dtype=np.uint32),
        quantum_ps=2_000_000,
        orders=[4],
        node_image=turn,
        link_image=turn,
        provenance=json.dumps({"engine": "symmetric"}),
    )


def switch_trees():
    """All-reduce and a custom copy on a switch that reduces and multicasts; named nodes."""
    links = [(i, 4, "1GB/s", "1us") for i in range(4)] + [(4, i, "1GB/s", "1us") for i in range(4)]
    names = ["a", "b", "c", "δ\n", "star"]
    star = tp.from_links(
        4,
        links,
        switches=["multicast+reduce"],
        names=names,
        link_model="blocking",
        forwarding="store_and_forward",
        reduce_bandwidth="100GB/s",
    )
    collective = co.together(
        co.all_reduce(star, 1000, group=[0, 1, 2], chunks=1),
        co.custom(star, [500], before=[[3]], after=[[0]]),
    )
    table = routes(
        star,
        links=[[1, 2, 4], [0, 2, 5], [0, 1, 6], [0, 5, 6], [1, 4, 6], [2, 4, 5], [3, 4]],
        kinds=["reduce"] * 3 + ["multicast"] * 3 + ["path"],
    )
    return retime(
        collective,
        table,
        route=np.arange(7),
        chunk=[0, 1, 2, 0, 1, 2, 3],
        step=[0, 0, 0, 1, 1, 1, 0],
        op=[REDUCE] * 3 + [0] * 4,
        reads=[READ_INPUT] * 3 + [1] * 4,
        provenance={"engine": "hand", "bound_s": 1e-6},
    )


EXAMPLES = {"orbit": ring_orbit, "trees": switch_trees}


def blocks_of(data, payloads):
    """The payloads of the blocks, after checking padding and checksums."""
    at, found = 0, []
    for payload in payloads:
        end = at + payload + (-(payload + 4) % 64)
        assert not any(data[at + payload : end])
        assert struct.unpack_from("<I", data, end) == (zlib.crc32(data[at:end]),)
        found.append(data[at : at + payload])
        at = end + 4
        assert at % 64 == 0
    assert at == len(data)
    return found


def taken_apart(data):
    magic, version, length = struct.unpack_from("<8sII", data)
    assert (magic, version) == (b"\x89TCS\r\n\x1a\n", 1)
    header = json.loads(data[16 : 16 + length])
    payloads = [int(s["dtype"][2:]) * s["count"] for s in header["sections"]]
    _, *columns = blocks_of(data, [16 + length, *payloads])
    return header, {
        section["name"]: np.frombuffer(column, section["dtype"])
        for section, column in zip(header["sections"], columns, strict=True)
    }


def sealed(header, columns, *, version=1):
    text = json.dumps(header).encode()
    payloads = [struct.pack("<8sII", b"\x89TCS\r\n\x1a\n", version, len(text)) + text]
    payloads += [np.asarray(column).tobytes() for column in columns.values()]
    out = b""
    for payload in payloads:
        padded = payload + bytes(-(len(payload) + 4) % 64)
        out += padded + struct.pack("<I", zlib.crc32(padded))
    return out


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def written(schedule, path):
    native.write(schedule, path)
    return path.read_bytes()


def refused(path, data):
    """Read bytes that must be refused; return the message without the file's name."""
    path.write_bytes(data)
    with pytest.raises(FormatError) as error:
        native.read(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def same(a, b):
    return a == b and a.provenance == b.provenance and a.time_ps == b.time_ps
