"""Chakra traces against Google's protobuf runtime, with the field numbers of Chakra's schema.

Where mlc-chakra is installed, its message classes, which are the official schema, are tested too.
"""

from __future__ import annotations

import pytest

import tacos
from tacos.workload import COLL, COMMS, COMP, RECV, SEND, from_nodes

pytest.importorskip("google.protobuf")

NODE_TYPES = {SEND: 5, RECV: 6, COMP: 4, COLL: 7}
"""COMM_SEND_NODE, COMM_RECV_NODE, COMP_NODE and COMM_COLL_NODE."""
ATTRIBUTES = {
    "double_val": (3, 1), "float_val": (5, 2), "int32_val": (7, 5), "int64_val": (9, 3), "uint32_val": (11, 13),
    "uint64_val": (13, 4), "bool_val": (27, 8), "string_val": (29, 9),
}  # fmt: skip
"""For each value that an attribute may have: its field number, and protobuf's number of the type."""


def by_numbers():
    """Messages with the numbers and types of Chakra's schema, made at run time."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="chakra_numbers.proto", package="numbers", syntax="proto3"
    )

    def message(name, *rows):
        one = file.message_type.add(name=name)
        for field, number, kind, *more in rows:
            row = one.field.add(name=field, number=number, type=kind, label=1)
            if "repeated" in more:
                row.label = 3
            if kind == 11:
                row.type_name = ".numbers.AttributeProto"
        return one

    attribute = message("AttributeProto", ("name", 1, 9), ("doc_string", 2, 9))
    attribute.oneof_decl.add(name="value")
    for name, (number, kind) in ATTRIBUTES.items():
        attribute.field.add(name=name, number=number, type=kind, label=1, oneof_index=0)
    message("GlobalMetadata", ("version", 1, 9), ("attr", 2, 11, "repeated"))
    message(
        "Node", ("id", 1, 4), ("name", 2, 9), ("type", 3, 13), ("ctrl_deps", 4, 4, "repeated"),
        ("data_deps", 5, 4, "repeated"), ("duration_micros", 7, 4), ("attr", 10, 11, "repeated"),
    )  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = (pool.FindMessageTypeByName(f"numbers.{n}") for n in ("GlobalMetadata", "Node"))
    return [message_factory.GetMessageClass(one) for one in classes]


def official():
    module = pytest.importorskip("chakra.schema.protobuf.et_def_pb2")
    return [module.GlobalMetadata, module.Node]


@pytest.fixture(params=[by_numbers, official], ids=lambda make: make.__name__)
def messages(request):
    return request.param()


def decoded(path, messages):
    """Split a file into its metadata and nodes: messages, each preceded by its length as a varint."""
    data, at = path.read_bytes(), 0
    found: list = []
    while at < len(data):
        size = shift = 0
        while True:
            byte, at = data[at], at + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        one = messages[0 if not found else 1]()
        assert one.ParseFromString(data[at : at + size]) in (None, size)
        found.append(one)
        at += size
    return found[0], found[1:]


def value(node, name):
    (one,) = [attribute for attribute in node.attr if attribute.name == name]
    return getattr(one, one.WhichOneof("value"))


def test_what_is_written_is_what_protobuf_reads(tmp_path, messages):
    """A computation, then a message and a collective that wait for it, with each field checked by hand."""
    work = from_nodes(
        2,
        rank=[0, 0, 0, 1, 1],
        kind=[COMP, SEND, COLL, RECV, COLL],
        peer=[-1, 1, -1, 0, -1],
        bytes=[0, 1000, 2**20, 1000, 2**20],
        tag=[0, 7, 0, 7, 0],
        duration_ps=[5 * 10**6, 0, 0, 0, 0],
        comm=COMMS["all_gather"],
        dep_begin=[0, 0, 1, 2, 2, 3],
        dep=[0, 0, 3],
    )
    tacos.workload.save(work, tmp_path / "w")
    metadata, nodes = decoded(tmp_path / "w.0.et", messages)
    assert metadata.version
    assert [node.type for node in nodes] == [NODE_TYPES[kind] for kind in (COMP, SEND, COLL)]
    assert len({node.id for node in nodes}) == 3
    assert nodes[0].duration_micros == 5
    waits = [sorted({*node.ctrl_deps, *node.data_deps}) for node in nodes]
    assert waits == [[], [nodes[0].id], [nodes[0].id]]
    sent = {
        name: value(nodes[1], name) for name in ("comm_src", "comm_dst", "comm_size", "comm_tag")
    }
    assert sent == {"comm_src": 0, "comm_dst": 1, "comm_size": 1000, "comm_tag": 7}
    assert (value(nodes[2], "comm_type"), value(nodes[2], "comm_size")) == (2, 2**20)
    _, nodes = decoded(tmp_path / "w.1.et", messages)
    got = {name: value(nodes[0], name) for name in ("comm_src", "comm_size", "comm_tag")}
    assert got == {"comm_src": 0, "comm_size": 1000, "comm_tag": 7}


def test_what_protobuf_writes_is_read(tmp_path, messages):
    """Rank 0 sends 64 bytes to rank 1 after a computation of 3 us, with attributes of the kinds that feeders read."""
    metadata, node = messages

    def attributes(one, **values):
        for name, (kind, given) in values.items():
            setattr(one.attr.add(name=name), kind, given)
        return one

    work = node(id=4, name="work", type=4, duration_micros=3)
    send = attributes(
        node(id=9, name="send", type=5, data_deps=[4]),
        comm_dst=("int32_val", 1), comm_size=("int64_val", 64), comm_tag=("int32_val", 3),
    )  # fmt: skip
    recv = attributes(
        node(id=0, name="recv", type=6),
        comm_src=("int32_val", 0), comm_size=("int64_val", 64), comm_tag=("int32_val", 3),
    )  # fmt: skip
    for rank, rows in enumerate([[work, send], [recv]]):
        data = b""
        for one in (metadata(version="0.0.4"), *rows):
            text = one.SerializeToString()
            assert len(text) < 128  # so that a varint is one byte
            data += bytes([len(text)]) + text
        (tmp_path / f"w.{rank}.et").write_bytes(data)
    found = tacos.workload.load(tmp_path / "w").rows()
    assert found["kind"].tolist() == [COMP, SEND, RECV]
    assert found["duration_ps"].tolist()[0] == 3 * 10**6
    assert found["bytes"].tolist()[1:] == [64, 64]
    assert found["peer"].tolist()[1:] == [1, 0]
    assert found["tag"].tolist()[1:] == [3, 3]
