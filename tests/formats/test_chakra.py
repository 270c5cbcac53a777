"""Chakra traces: what is written, what comes back, and one file for each way to be wrong."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.formats import astra_inputs
from tacos.program import STEP_OPS, lower
from tacos.simulate.astra import run
from tacos.workload import from_program
from tacos.workload import load as load_workload
from tests.support import program_oracle
from tests.support.programs import INPUT, NONE, OUTPUT, SCRATCH, changed, made, one_sided
from tests.support.protobuf import fields
from tests.support.strategies import collectives, topologies

METADATA, COMP, SEND, RECV, COLL = 1, 4, 5, 6, 7
NUMBER = {  # attribute kinds that hold a whole number: field, wire type
    "int32": (7, 0), "int64": (9, 0), "uint32": (11, 0), "uint64": (13, 0), "sint32": (15, 0),
    "sint64": (17, 0), "fixed32": (19, 5), "fixed64": (21, 1), "sfixed32": (23, 5),
    "sfixed64": (25, 1), "bool": (27, 0),
}  # fmt: skip
NAMES = {field: name for name, (field, _) in NUMBER.items()}


# --- an own writer and reader of the wire format, as slow and plain as can be ---------------------


def varint(value):
    value &= 2**64 - 1
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def field(number, value):
    if isinstance(value, int):
        return varint(number * 8) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number * 8 + 2) + varint(len(value)) + value


def attribute(name, value, kind="int64"):
    if isinstance(value, str | bytes):
        return field(1, name) + field(29, value)
    number, wire = NUMBER[kind]
    if kind.startswith("sint"):
        value = 2 * value if value >= 0 else -2 * value - 1
    body = varint(value) if wire == 0 else value.to_bytes(8 if wire == 1 else 4, "little")
    return field(1, name) + varint(number * 8 + wire) + body


def node(id=0, type=COMP, deps=(), ctrl=(), kind="int64", extra=b"", **attributes):
    body = field(1, id) if id else b""
    body += field(2, "x") + (field(3, type) if type else b"")
    body += field(4, b"".join(map(varint, ctrl))) if ctrl else b""
    body += b"".join(varint(5 * 8) + varint(dep) for dep in deps)  # not packed, which is allowed
    body += b"".join(field(10, attribute(n, v, kind)) for n, v in attributes.items())
    return body + extra


def message(type, peer, *, id=0, size=8, tag=0, **more):
    end = {"comm_dst" if type == SEND else "comm_src": peer}
    return node(id, type, comm_size=size, comm_tag=tag, **end, **more)


def trace(*nodes):
    return b"".join(varint(len(part)) + part for part in (field(1, "1.0.0"), *nodes))


def put(folder, *files):
    for rank, content in enumerate(files):
        (folder / f"t.{rank}.et").write_bytes(content)
    return folder / "t"


def messages(data):
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield data[at : at + size]
        at += size


def decoded(file):
    """Nodes of a file as dicts, with attributes as (kind, value)."""
    found = []
    for body in list(messages(file.read_bytes()))[1:]:
        here: dict[str, Any] = {"id": 0, "deps": [], "duration": 0, "attrs": {}}
        for number, value in fields(body):
            if number in (1, 3, 7):
                here[{1: "id", 3: "type", 7: "duration"}[number]] = value
            elif number == 5:
                here["deps"] += [v for _, v in fields(_keyed(value))]
            elif number == 10:
                parts = dict(fields(value))
                name = parts.pop(1).decode()
                ((kind, what),) = parts.items()
                here["attrs"][name] = (NAMES.get(kind, kind), what)
        found.append(here)
    return found


def _keyed(packed):
    """A packed list as fields, so that `fields` reads it."""
    out, part = b"", b""
    for byte in packed:
        part += bytes([byte])
        if byte < 128:
            out, part = out + b"\x08" + part, b""
    return out


# --- writing --------------------------------------------------------------------------------------


def ring_all_gather(npus=4, size="4MiB", network=None):
    topology = network or tp.ring(npus, bandwidth="50GiB/s", latency="500ns")
    collective = co.all_gather(topology, size, chunks=1)
    return tacos.synthesize(topology, collective, engine="ring")


def test_an_exchange_of_two_ranks_by_hand(tmp_path):
    """Both send their part and receive the other's: a copy, a send and a receive; no fence, since
    nothing waits for a send."""
    topology = tp.fully_connected(2)
    schedule = tacos.synthesize(topology, co.all_gather(topology, "2KB", chunks=1), engine="greedy")
    tacos.save(schedule, tmp_path / "ag", format="chakra")
    nodes = decoded(tmp_path / "ag.1.et")
    assert [n["type"] for n in nodes] == [COMP, SEND, RECV]
    assert [n["id"] for n in nodes] == [0, 1, 2]
    send, recv = nodes[1]["attrs"], nodes[2]["attrs"]
    for attrs, src, dst, chunk in ((send, 1, 0, 1), (recv, 0, 1, 0)):
        assert attrs["comm_src"] == ("int32", src)
        assert attrs["comm_dst"] == ("int32", dst)
        assert attrs["comm_size"] == ("int64", 1000)
        assert attrs["comm_tag"] == ("int32", 0)
        assert attrs["is_cpu_op"] == ("bool", 0)
        assert attrs["total_chunk_cnt"] == ("int64", 2)
        assert attrs["msg_chunk_cnt"] == ("int64", 1)
        assert attrs["msg_chunk_idx"] == ("int64", chunk)


def test_sends_of_one_thread_leave_in_order_behind_fences(tmp_path):
    """Two chunks to the same peer: the fence has what the first send waits for, and the second send
    waits for the fence and not for the first's arrival."""
    topology = tp.fully_connected(2)
    schedule = tacos.synthesize(
        topology, co.broadcast(topology, "2KB", chunks=2, root=0), engine="greedy"
    )
    tacos.save(schedule, tmp_path / "b", format="chakra")
    nodes = decoded(tmp_path / "b.0.et")
    sends = [n for n in nodes if n["type"] == SEND]
    (fence,) = [n for n in nodes if "tacos_of" in n["attrs"]]
    assert fence["attrs"]["tacos_of"] == ("uint64", sends[0]["id"])
    assert (fence["type"], fence["duration"]) == (COMP, 0)
    assert fence["deps"] == sends[0]["deps"]
    assert sends[1]["deps"] == [fence["id"]]
    assert [n["attrs"]["comm_tag"][1] for n in sends] == [0, 1]


def test_sums_take_the_time_that_the_reduce_bandwidth_says(tmp_path):
    """1 MB at 100 GB/s is 10 µs; without a bandwidth a sum is 0, which stands for 1 ns."""
    topology = tp.fully_connected(2)
    schedule = tacos.synthesize(topology, co.reduce(topology, "1MB", chunks=1, root=0))
    for speed, duration in (("100GB/s", 10), (None, 0)):
        tacos.save(schedule, tmp_path / "r", format="chakra", reduce_bandwidth=speed)
        (total,) = [n for n in decoded(tmp_path / "r.0.et") if "tacos_of" in n["attrs"]]
        assert (total["type"], total["duration"]) == (COMP, duration)


def test_idle_ranks_have_something_to_do(tmp_path):
    topology = tp.fully_connected(3)
    schedule = tacos.synthesize(topology, co.send_recv(topology, [(0, 1, "1KB")], chunks=1))
    tacos.save(schedule, tmp_path / "p", format="chakra")
    assert [n["type"] for n in decoded(tmp_path / "p.2.et")] == [COMP]
    assert tacos.load(tmp_path / "p") == lower(schedule)


def test_what_astra_sim_needs_lies_beside(tmp_path):
    tacos.save(ring_all_gather(), tmp_path / "ag", format="chakra")
    system = json.loads((tmp_path / "ag.system.json").read_text())
    assert system["all-gather-implementation-custom"] == [str(tmp_path / "ag")]
    assert system["preferred-dataset-splits"] == 1
    memory = json.loads((tmp_path / "ag.memory.json").read_text())
    assert memory == {"memory-type": "NO_MEMORY_EXPANSION"}
    (only,) = decoded(tmp_path / "ag.workload.3.et")
    assert only["type"] == COLL
    assert only["attrs"]["comm_type"] == ("int64", 2)
    assert only["attrs"]["comm_size"] == ("int64", 2**20)  # of an all-gather, one rank's part
    assert (tmp_path / "ag.network.yml").read_text().startswith("topology: [Ring]\n")


@pytest.mark.parametrize(
    ("topology", "first_line"),
    [
        (tp.switch(4), "topology: [Switch]"),
        (tp.ring(2), "topology: [FullyConnected]"),
        # Neighbours with equal links: exact on a clique, which the congestion-aware backend takes.
        (tp.torus(3, 3), "topology: [FullyConnected]"),
        (tp.mesh(3, 2), "topology: [FullyConnected]"),
        (tp.product(tp.ring(3), tp.switch(2, bandwidth="10GB/s")), "topology: [Ring, Switch]"),
        (tp.dgx1(), None),
    ],
)
def test_networks_that_astra_sim_can_say(topology, first_line):
    schedule = tacos.synthesize(topology, co.all_gather(topology, "1MB", chunks=1))
    text = astra_inputs.network(topology, lower(schedule))
    assert (text and text.splitlines()[0]) == first_line


def test_all_files_appear_or_none(tmp_path):
    (tmp_path / "ag.network.yml").mkdir()  # the last file cannot take its place
    with pytest.raises(tacos.FormatError, match="not a regular file; refusing to overwrite it"):
        tacos.save(ring_all_gather(), tmp_path / "ag", format="chakra")
    assert [p.name for p in tmp_path.iterdir()] == ["ag.network.yml"]


def test_files_of_more_ranks_are_not_mixed_up(tmp_path):
    tacos.save(ring_all_gather(5), tmp_path / "ag", format="chakra")
    with pytest.raises(
        tacos.FormatError, match=r"ag\.4\.et: the file exists, but there are only 4"
    ):
        tacos.save(ring_all_gather(4), tmp_path / "ag", format="chakra")


def test_a_program_needs_a_size(tmp_path):
    program = lower(ring_all_gather()).with_facts(size_bytes=0)
    with pytest.raises(ValueError, match="does not know its size; give the size"):
        tacos.save(program, tmp_path / "ag", format="chakra")
    with pytest.raises(ValueError, match="size is 3 B, which is too small for 4 chunks"):
        tacos.save(program, tmp_path / "ag", format="chakra", size=3)
    tacos.save(program, tmp_path / "ag", format="chakra", size="8MiB")
    again = tacos.load(tmp_path / "ag.2.et")
    assert again == program
    assert again.size_bytes == again.provenance["size_bytes"] == 8 * 2**20
    tacos.save(again, tmp_path / "again", format="chakra")  # knows its size by now
    assert (tmp_path / "ag.1.et").read_bytes() == (tmp_path / "again.1.et").read_bytes()


def pair(*threads, collective=None):
    return made(collective or co.broadcast(2, 1, chunks=1, root=0), list(threads), scratch=1)


@pytest.mark.parametrize(
    ("threads", "sentence"),
    [
        ([(0, 1, -1, [("send", INPUT, 0)])], "sends a message that no rank receives"),
        ([(1, -1, 0, [("recv", NONE, -1, OUTPUT, 0)])], "receives a message that no rank sends"),
        (
            [(0, 1, -1, [("send", SCRATCH, 0)]), (1, -1, 0, [("recv", NONE, -1, OUTPUT, 0, 0)])],
            "reads a slot that nothing has been written to",
        ),
        (
            [
                (0, 1, 1, [("recv", NONE, -1, SCRATCH, 0, 3), ("send", INPUT, 0)]),
                (1, 0, 0, [("recv", NONE, -1, OUTPUT, 0, 1), ("send", OUTPUT, 0)]),
            ],
            "the program deadlocks: rank 0, thread 0, step 0 never starts",
        ),
    ],
)
def test_programs_that_a_trace_cannot_say(tmp_path, threads, sentence):
    with pytest.raises(ValueError, match=sentence):
        tacos.save(pair(*threads), tmp_path / "x", format="chakra", size=8)
    assert list(tmp_path.iterdir()) == []


def test_one_sided_steps_become_messages(tmp_path):
    program = one_sided(["put", "signal"])
    tacos.save(program, tmp_path / "x", format="chakra", size="1KB")
    assert from_program(program, "1KB").kind.tolist() == load_workload(tmp_path / "x").kind.tolist()
    again = tacos.load(tmp_path / "x")
    assert {STEP_OPS[op] for op in again.op} == {"copy", "recv", "send"}
    assert tacos.verify(again).ok
    assert again.collective == program.collective


def test_in_place_or_not(tmp_path):
    tacos.save(ring_all_gather(), tmp_path / "x", format="chakra", in_place=True)
    program = tacos.load(tmp_path / "x")
    assert program == lower(ring_all_gather(), in_place=True)
    with pytest.raises(ValueError, match="in_place is False, but the program's is True"):
        tacos.save(program, tmp_path / "y", format="chakra", in_place=False)


def test_the_command_converts_and_verifies_traces(tmp_path):
    tacos.save(ring_all_gather(), tmp_path / "ag.tacos")
    prefix = str(tmp_path / "ag")
    assert main(["convert", str(tmp_path / "ag.tacos"), prefix, "--to", "chakra", "--quiet"]) == 0
    assert main(["verify", prefix, "--quiet"]) == 0
    assert main(["convert", f"{prefix}.0.et", f"{prefix}.xml", "--quiet"]) == 0
    assert main(["convert", f"{prefix}.xml", f"{prefix}2.et", "--size", "4MiB", "--quiet"]) == 0
    assert tacos.verify(tacos.load(f"{prefix}2")).ok


def test_fused_steps_come_back(tmp_path):
    """A chain 0 -> 1 -> 2 of an all-reduce in fused steps, and back again."""
    collective = co.all_reduce(3, 3, chunks=1)
    send = ("send", INPUT, 0)
    program = made(
        collective,
        [
            (0, 1, 1, [send, ("recv", NONE, -1, OUTPUT, 0, 3)]),
            (1, 2, 0, [("recv_reduce_forward", INPUT, 0, NONE, -1, 0)]),
            (1, 0, 2, [("recv_send", NONE, -1, OUTPUT, 0, 4)]),
            (2, 1, 1, [("recv_reduce_send", INPUT, 0, OUTPUT, 0, 2)]),
        ],
    )
    tacos.save(program, tmp_path / "f", format="chakra", size="3KB")
    assert tacos.load(tmp_path / "f") == program
    assert [n["type"] for n in decoded(tmp_path / "f.2.et")] == [RECV, COMP, SEND]
    assert [n["type"] for n in decoded(tmp_path / "f.1.et")] == [RECV, COMP, SEND, RECV, SEND]


@given(network=topologies(), data=st.data())
@settings(max_examples=60)
def test_programs_come_back_as_they_were(network, data, tmp_path_factory):
    collective = data.draw(collectives(network.npus, max_chunks=3))
    engine = data.draw(st.sampled_from(tacos.engines(network, collective)))
    schedule = tacos.synthesize(network, collective, engine=engine)
    if schedule.routes.kinds.any() or not all(schedule.collective.chunk_bytes()):
        return
    folder = tmp_path_factory.mktemp("round")
    tacos.save(schedule, folder / "x", format="chakra")
    program = tacos.load(folder / "x")
    assert program == lower(schedule)
    assert program_oracle.run(program, random.Random(0)) == []
    if data.draw(st.booleans()):
        in_place = lower(schedule, in_place=True)
        sized = in_place.with_provenance(program.provenance)
        tacos.save(sized, folder / "y", format="chakra")
        assert tacos.load(folder / "y") == in_place


@given(network=topologies(), data=st.data())
@settings(max_examples=30)
def test_messages_have_the_sizes_of_their_chunks(network, data, tmp_path_factory):
    """Bytes that arrive are those of the schedule's transfers, also where chunks differ in size."""
    collective = data.draw(collectives(network.npus, max_chunks=3))
    schedule = tacos.synthesize(network, collective, engine="auto")
    if schedule.routes.kinds.any() or not all(schedule.collective.chunk_bytes()):
        return
    folder = tmp_path_factory.mktemp("sizes")
    tacos.save(schedule, folder / "x", format="chakra")
    workload = load_workload(folder / "x")
    rows = schedule.expand().rows()
    for kind, end, other in ((0, "src", "dst"), (1, "dst", "src")):
        mine = workload.kind == kind
        found = sorted(zip(workload.rank[mine], workload.peer[mine], workload.bytes[mine],
                           strict=True))  # fmt: skip
        assert found == sorted(zip(rows[end], rows[other], rows["bytes"], strict=True))


# --- reading other people's traces ----------------------------------------------------------------


def test_a_bare_trace_is_messages_between_ranks(tmp_path):
    """Rank 0 sends, rank 1 computes on it and answers; ids 0 are left out and kinds vary."""
    prefix = put(
        tmp_path,
        trace(message(SEND, 1, size=100, kind="uint32"), message(RECV, 1, id=1, size=7, tag=3)),
        trace(
            message(SEND, 0, id=9, size=7, tag=3, ctrl=[4], kind="sint64"),  # forward reference
            message(RECV, 0, size=100, kind="fixed64"),
            node(4, COMP, deps=[0]),
        ),
    )
    program = tacos.load(prefix)
    assert tacos.verify(program).ok
    assert program.collective.chunk_bytes().tolist() == [100, 7]
    assert program.provenance == {"format": "chakra"}
    ops = [STEP_OPS[op] for op in program.op]
    assert ops == ["send", "recv", "recv", "nop", "send"]
    assert program.threads == 3  # of rank 1, all three in one chain
    tacos.save(program, tmp_path / "again", format="chakra")
    assert tacos.load(tmp_path / "again") == program


def test_metadata_only_keeps_the_order(tmp_path):
    """Rank 1 answers when a note between its two messages says so; a stray note changes nothing."""
    prefix = put(
        tmp_path,
        trace(message(SEND, 1), message(RECV, 1, id=1, tag=1), node(2, METADATA)),
        trace(
            message(RECV, 0),
            node(1, METADATA, deps=[0], extra=field(7, 5)),  # five microseconds of nothing
            message(SEND, 0, id=2, tag=1, deps=[1]),
        ),
    )
    program = tacos.load(prefix)
    assert tacos.verify(program).ok
    ops = [STEP_OPS[op] for op in program.op]
    assert ops == ["send", "recv", "nop", "recv", "nop", "send"]
    assert load_workload(prefix).id.tolist() == [0, 1, 0, 2]


def test_a_converter_that_says_only_chunks(tmp_path):
    chunks = {"msg_chunk_cnt": 3, "comm_tag": 0}
    prefix = put(
        tmp_path,
        trace(node(0, SEND, comm_dst=1, **chunks)),
        trace(node(0, RECV, comm_src=0, **chunks)),
    )
    assert tacos.load(prefix).collective.chunk_bytes().tolist() == [3]


def test_messages_with_one_key_meet_in_order(tmp_path):
    prefix = put(
        tmp_path,
        trace(message(SEND, 1), message(SEND, 1, id=1, deps=[0])),
        trace(message(RECV, 0, id=5), message(RECV, 0, id=6, deps=[5])),
    )
    program = tacos.load(prefix)
    assert program.comes_from.tolist() == [-1, -1, 0, 1]


def test_collectives_are_for_the_simulator(tmp_path):
    prefix = put(tmp_path, *[trace(node(0, COLL, comm_type=0, comm_size=2**20))] * 4)
    assert tacos.load(prefix) == load_workload(prefix)
    assert load_workload(prefix).comm.tolist() == [0] * 4


def test_a_workload_has_no_notes(tmp_path):
    """What waits for metadata, or for a node without a type, waits for what these wait for."""
    nodes = (
        node(0, METADATA), node(1, deps=[0]), node(2, METADATA, deps=[1]), node(3, 0, deps=[2]),
        node(4, deps=[3, 1]), node(5, 0, deps=[4]),
    )  # fmt: skip
    workload = load_workload(put(tmp_path, trace(*nodes), trace(node(8, METADATA))))
    assert workload.rank.tolist() == [0, 0, 1]
    assert workload.id.tolist() == [1, 4, 8]
    assert workload.dep_begin.tolist() == [0, 0, 1, 1]
    assert workload.dep.tolist() == [0]


def kernel(id, stream, start=0, type=COMP, deps=(), cpu=0, **more):
    extra = field(6, start) + field(10, attribute("is_cpu_op", cpu, "bool"))
    return node(id, type, deps=deps, extra=extra, stream=stream, **more)


def test_kernels_of_a_stream_run_one_after_the_other(tmp_path):
    """Launches on the CPU (ids 1 to 4), kernels 5 to 8: by start times 6, 5 on stream 7; 8 after 5, and 7 alone.

    Kernel 9 starts first by its clock, but depends on 5."""
    nodes = (
        *(kernel(id, 7, cpu=1) for id in (1, 2, 3, 4)),
        kernel(5, 7, 20, deps=[1]), kernel(6, 7, 10, deps=[2]), kernel(7, 20, 5, deps=[3]),
        kernel(8, 7, 30, COLL, deps=[4], comm_type=0, comm_size=8), kernel(9, 7, 1, deps=[5]),
    )  # fmt: skip
    prefix = put(tmp_path, trace(*nodes))
    workload = load_workload(prefix)

    def waits(found):
        ids = found.id.tolist()
        begin = found.dep_begin.tolist()
        return {
            id: [ids[row] for row in found.dep[begin[i] : begin[i + 1]]] for i, id in enumerate(ids)
        }

    assert waits(workload) == {
        1: [], 2: [], 3: [], 4: [], 5: [1, 6], 6: [2], 7: [3], 8: [4, 9], 9: [5]
    }  # fmt: skip
    plain = load_workload(prefix, chain_streams=False)
    assert waits(plain) == {1: [], 2: [], 3: [], 4: [], 5: [1], 6: [2], 7: [3], 8: [4], 9: [5]}


def listing(text):
    """The inputs of a metadata node."""
    return field(8, field(1, text))


def test_process_groups_of_pytorch(tmp_path):
    """Metadata lists the groups; names that are not numbers get one, and a group without ranks is all."""
    groups = (
        b"""['[{"pg_name": "0", "ranks": []}, {"pg_name": "2", "ranks": [1, 0]}, """
        b"""{"pg_name": "mesh_tp", "ranks": [2, 3]}, {"pg_name": "dp", "ranks": []}]']"""
    )
    names = [("2", 2), ("2", 2), ("mesh_tp", 3), ("mesh_tp", 3)]

    def rank(name):
        coll = node(1, COLL, comm_type=0, comm_size=8, pg_name=name)
        whole = node(2, COLL, comm_type=2, comm_size=8, pg_name="dp")
        return trace(node(0, METADATA, extra=listing(groups)), coll, whole)

    workload = load_workload(put(tmp_path, *(rank(name) for name, _ in names)))
    assert workload.groups == [(2, [0, 1]), (3, [2, 3])]
    assert workload.group.tolist() == [2, 0, 2, 0, 3, 0, 3, 0]
    assert tacos.verify(workload).ok


def test_groups_that_are_not_listed(tmp_path):
    coll = node(0, COLL, comm_type=0, comm_size=8, pg_name="x")
    with pytest.raises(tacos.FormatError, match="pg_name is 'x', which is neither a number nor"):
        load_workload(put(tmp_path, trace(coll)))
    coll = node(0, COLL, comm_type=0, comm_size=8, pg_name="4")
    with pytest.raises(tacos.FormatError, match="group 4 is not defined; name the file that lists"):
        load_workload(put(tmp_path, trace(coll)))
    one, two = (
        trace(node(0, METADATA, extra=listing(b"""['[{"pg_name": "1", "ranks": [%d]}]']""" % r)))
        for r in (0, 1)
    )
    with pytest.raises(tacos.FormatError, match="process group '1' has different ranks"):
        load_workload(put(tmp_path, one, two))


def refused(folder, *files):
    with pytest.raises(tacos.FormatError) as error:
        tacos.load(put(folder, *files))
    return str(error.value)


IDLE = trace(node())


@pytest.mark.parametrize(
    ("first", "sentence"),
    [
        (b"", "t.0.et: the file is empty"),
        (trace(), "t.0.et: the trace has no nodes"),
        (IDLE[:-1], "byte 8: a length of 5 where 4 are left"),
        (b"\xff" * 11, "byte 0: a number has more than 64 bits"),
        (trace(node(7, 8)), "node 7: its type is 8; it must be 0 (INVALID_NODE) to 7"),
        (trace(node(7, 2)), "node 7: it has no tensor_size"),
        (trace(node(7, 99)), "node 7: its type is 99"),
        (trace(node(1), node(1)), "t.0.et: node 1 is there twice"),
        (trace(node(1, deps=[3])), "node 1 depends on node 3, which is not there"),
        (trace(node(1, deps=[2]), node(2, deps=[1])), "waits for itself: the dependencies form"),
        (trace(node(2, deps=[2])), "node 2 waits for itself"),
        (trace(node(3, SEND, comm_dst=1, comm_tag=0)), "node 3: it has no comm_size"),
        (trace(node(3, SEND, comm_size=1, comm_tag=0)), "node 3: it has no comm_dst"),
        (trace(node(3, RECV, comm_size=1, comm_src=1)), "node 3: it has no comm_tag"),
        (trace(message(SEND, 1, size=0)), "node 0: the send of 0 bytes to rank 1 with tag 0: a message of a program has bytes"),
        (trace(message(SEND, 0, id=4)), "node 4: it talks to its own rank"),
        (trace(message(SEND, 5, id=4)), "node 4: the send of 8 bytes to rank 5 with tag 0: the ranks"),
        (trace(message(SEND, 1, comm_src=1)), "comm_src is 1, but the file is that of rank 0"),
        (trace(message(SEND, 1, comm_src="0")), "comm_src is not a whole number"),
        (trace(message(SEND, 1, is_cpu_op=1)), "is_cpu_op is true, but only a COMP_NODE"),
        (trace(node(extra=b"\x0b")), "field 1 has the unknown wire type 3"),
        (trace(node(extra=b"\x00")), "a field has the number 0"),
        (trace(message(SEND, 1, id=6)), "rank 0, node 6: the send of 8 bytes to rank 1 with tag 0 has no"),
        (trace(message(RECV, 1, id=6)), "rank 0, node 6: the recv of 8 bytes from rank 1 with tag 0 has"),
    ],
)  # fmt: skip
def test_one_damaged_trace_for_each_sentence(tmp_path, first, sentence):
    assert sentence in refused(tmp_path, first, IDLE)


@pytest.mark.parametrize("difference", [{"size": 9}, {"tag": 1}])
def test_what_does_not_match_is_refused(tmp_path, difference):
    text = refused(tmp_path, trace(message(SEND, 1, id=6)), trace(message(RECV, 0, **difference)))
    assert "rank 0, node 6: the send of 8 bytes to rank 1 with tag 0 has no receive" in text


def test_a_rank_between_is_missing(tmp_path):
    prefix = put(tmp_path, IDLE, IDLE, IDLE)
    (tmp_path / "t.1.et").unlink()
    with pytest.raises(tacos.FormatError, match=r"t\.1\.et: No such file"):
        tacos.load(prefix)


def test_notes_that_contradict_the_file(tmp_path):
    tacos.save(ring_all_gather(), tmp_path / "ag", format="chakra")
    swapped = (tmp_path / "ag.2.et").read_bytes()
    (tmp_path / "ag.1.et").write_bytes(swapped)
    with pytest.raises(tacos.FormatError, match=r"comm_(src|dst) is 2, but"):
        tacos.load(tmp_path / "ag")


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"chunks":1', b'"chunks":9'), (b'"scratch_slots":0', b'"scratch_slots":2')],
)
def test_a_few_digits_do_not_fill_the_memory(tmp_path, old, new):
    tacos.save(ring_all_gather(2, "1KB"), tmp_path / "ag", format="chakra")
    _, *nodes = messages((tmp_path / "ag.0.et").read_bytes())
    note = tacos.formats.chakra._traces(tmp_path / "ag").about[0].replace(old, new + b"00000000")
    metadata = field(1, "0.0.4") + field(2, attribute("tacos", note))
    content = b"".join(varint(len(part)) + part for part in (metadata, *nodes))
    (tmp_path / "ag.0.et").write_bytes(content)
    with pytest.raises(tacos.FormatError, match=r"00000000 chunks or scratch slots; \d+ nodes can"):
        tacos.load(tmp_path / "ag")


def test_a_missing_rank_at_the_end_is_noticed(tmp_path):
    schedule = tacos.synthesize(tp.ring(3), co.send_recv(3, [(0, 1, "1KB")], chunks=1))
    tacos.save(schedule, tmp_path / "p", format="chakra")
    (tmp_path / "p.2.et").unlink()
    with pytest.raises(tacos.FormatError, match="traces of 2 ranks, but ranks is 3"):
        tacos.load(tmp_path / "p")


def test_a_file_cut_between_nodes_is_noticed(tmp_path):
    tacos.save(ring_all_gather(), tmp_path / "ag", format="chakra")
    file = tmp_path / "ag.3.et"
    last = list(messages(file.read_bytes()))[-1]
    file.write_bytes(file.read_bytes()[: -len(last) - 2])
    with pytest.raises(tacos.FormatError, match=r"rank 3: there are|ag\.3\.et: node"):
        tacos.load(tmp_path / "ag")


@given(data=st.data())
@settings(max_examples=200)
def test_damaged_files_are_refused_or_read(data, tmp_path_factory):
    """Bytes changed, cut or put in: a program or a FormatError, nothing else."""
    folder = tmp_path_factory.mktemp("damaged")
    ours = data.draw(st.booleans())
    if ours:
        tacos.save(ring_all_gather(2, "1KB"), folder / "t", format="chakra")
    else:
        put(folder, trace(message(SEND, 1), node(1, deps=[0])), trace(message(RECV, 0)))
    file = folder / f"t.{data.draw(st.integers(0, 1))}.et"
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.integers(0, 3))
        content[at : at + cut] = data.draw(st.binary(max_size=3))
    file.write_bytes(content)
    for reader in (tacos.load, load_workload):
        with suppress(tacos.FormatError):
            reader(folder / "t")


# --- simulating -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("npus", "build", "aware_ns", "unaware_ns"),
    [
        (4, tp.ring, 60093, 60093),
        (4, tp.fully_connected, 60093, 60093),
        (4, tp.switch, 120186, 61593),
        (8, tp.ring, 140217, 140217),
        (8, tp.fully_connected, 140217, 140217),
        (8, tp.switch, 280434, 143717),
    ],
)
def test_an_exported_ring_takes_as_long_as_astra_sim_says(
    tmp_path, npus, build, aware_ns, unaware_ns
):
    """Recorded runs of ASTRA-sim: 1 MiB from each rank, 50 GiB/s, 500 ns."""
    path = tp.ring(npus, bidirectional=False, bandwidth="50GiB/s", latency="500ns")
    schedule = tacos.synthesize(path, co.all_gather(path, npus * 2**20, chunks=1), engine="ring")
    tacos.save(schedule, tmp_path / "ag", format="chakra")
    network = build(npus, bandwidth="50GiB/s", latency="500ns")
    for profile, expected in (("astra-sim-aware", aware_ns), ("astra-sim-unaware", unaware_ns)):
        for what in (str(tmp_path / "ag"), tacos.load(tmp_path / "ag")):
            trace = tacos.simulate(what, network, profile=profile)
            assert round(trace.time_s * 1e9) == expected


def test_a_program_is_simulated_with_the_size_that_is_given():
    program = lower(ring_all_gather())
    network = tp.ring(4, bandwidth="50GiB/s", latency="500ns")
    workload = from_program(program, "8MiB")
    assert set(workload.bytes[workload.kind < 2].tolist()) == {2 * 2**20}
    trace = tacos.simulate(program, network, size="4MiB", profile="astra-sim-aware")
    assert trace.time_s > 0


def test_a_wrong_program_stays_wrong_in_the_same_way(tmp_path):
    """The last receive of rank 0 overwrites what the first brought: the file is written, and the
    checker objects."""
    program = lower(ring_all_gather())
    first, _, last = np.flatnonzero(program.op == STEP_OPS.index("recv"))[:3]

    def overwrite(slots):
        slots[last] = slots[first]
        return slots

    broken = changed(program, dst_slot=overwrite)
    tacos.save(broken, tmp_path / "x", format="chakra", size="4MiB")
    again = tacos.load(tmp_path / "x")
    assert again == broken
    assert not tacos.verify(again).ok


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "all_reduce"])
def test_sends_into_a_switch_keep_the_order_of_the_schedule(tmp_path, kind):
    """An NPU has one port for all peers; ASTRA-sim itself would start them in a hash set's order."""
    network = tp.switch(8, bandwidth="50GiB/s", latency="500ns")
    schedule = tacos.synthesize(network, co.named(kind, network, "8MiB", chunks=2), effort="fast")
    tacos.save(schedule, tmp_path / "x", format="chakra")
    assert tacos.load(tmp_path / "x") == lower(schedule)
    result = run(load_workload(tmp_path / "x"), network, aware=True)
    rows = schedule.expand().rows()
    for npu in range(8):
        mine, sent = rows["src"] == npu, result.src == npu
        planned = rows["dst"][mine][np.argsort(rows["start_ps"][mine])]
        assert result.dst[sent][np.argsort(result.send_ns[sent])].tolist() == planned.tolist()
