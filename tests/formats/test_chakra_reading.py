"""Chakra traces of other tools: how they are read, and one damaged file for each error message."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.program import STEP_OPS
from tacos.workload import load as load_workload
from tests.support.chakra_files import (
    COLL,
    COMP,
    METADATA,
    RECV,
    SEND,
    attribute,
    field,
    message,
    messages,
    node,
    put,
    ring_all_gather,
    trace,
    varint,
)


def test_a_bare_trace_is_messages_between_ranks(tmp_path):
    """Rank 0 sends, rank 1 computes on the data and replies. Ids of 0 are omitted; attributes have various types."""
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
    assert program.threads == 3  # two of rank 0; rank 1's three nodes are one chain
    tacos.save(program, tmp_path / "again", format="chakra")
    assert tacos.load(tmp_path / "again") == program


def test_metadata_only_keeps_the_order(tmp_path):
    """A metadata node between rank 1's messages orders them; one without dependencies changes nothing."""
    prefix = put(
        tmp_path,
        trace(message(SEND, 1), message(RECV, 1, id=1, tag=1), node(2, METADATA)),
        trace(
            message(RECV, 0),
            node(1, METADATA, deps=[0], extra=field(7, 5)),  # its duration of 5 us is ignored
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
    """Metadata and nodes without a type are dropped; nodes that wait for them inherit their dependencies."""
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
    """Ids 1 to 4 are launches on the CPU, 5 to 9 are kernels. Stream 7 runs 6, 5, 9, 8; stream 20 only 7.

    Kernel 9 has the earliest start time, but depends on 5."""
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
    """Metadata lists the groups; names that are not numbers get one, and a group without ranks has all ranks."""
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
    """Changed, removed or inserted bytes give a program or a FormatError, nothing else."""
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
