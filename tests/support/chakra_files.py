"""A separate, slow and simple writer and reader of Chakra's wire format, and a schedule to write."""

from __future__ import annotations

from typing import Any

import tacos
from tacos import collective as co
from tacos import topology as tp
from tests.support.protobuf import fields

METADATA, COMP, SEND, RECV, COLL = 1, 4, 5, 6, 7
NUMBER = {  # attribute kinds that hold a whole number: field, wire type
    "int32": (7, 0), "int64": (9, 0), "uint32": (11, 0), "uint64": (13, 0), "sint32": (15, 0),
    "sint64": (17, 0), "fixed32": (19, 5), "fixed64": (21, 1), "sfixed32": (23, 5),
    "sfixed64": (25, 1), "bool": (27, 0),
}  # fmt: skip
NAMES = {field: name for name, (field, _) in NUMBER.items()}


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


def ring_all_gather(npus=4, size="4MiB", network=None):
    topology = network or tp.ring(npus, bandwidth="50GiB/s", latency="500ns")
    collective = co.all_gather(topology, size, chunks=1)
    return tacos.synthesize(topology, collective, engine="ring")
