"""Results of SCCL and TACCL (``.sccl.json``; msccl-tools writes the same with other type names)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tacos.formats.peers.results import Result, reading
from tacos.formats.source import bytes_of

if TYPE_CHECKING:
    from tacos._core import Schedule, Topology
    from tacos._support.files import Location
    from tacos.units import Quantity

__all__ = ["read"]

_Whole = Annotated[int, Meta(ge=0, lt=2**31)]


class _Chunk(Struct, gc=False):
    pre: list[_Whole]
    post: list[_Whole]
    addr: _Whole


class _Collective(Struct, gc=False):
    name: str
    nodes: _Whole
    chunks: list[_Chunk]


class _Step(Struct, gc=False):
    sends: list[Annotated[list[int | float | str | None], Meta(min_length=3, max_length=6)]]
    rounds: float = 1


class _Algorithm(Struct, gc=False):
    name: str
    collective: _Collective
    steps: list[_Step]


def read(
    path: Location, *, topology: Topology | None = None, size: Quantity | None = None
) -> Schedule:
    """Read a result of SCCL or TACCL.

    Chunks with the same address travel together; if several ranks contribute to an address, they are summed. Sends are
    ordered by their step and, if the file has it, their time.

    Args:
        path: The file.
        topology: The network; by default one made of the links that the sends use.
        size: Size of the collective; by default 1 MiB per chunk.

    Raises:
        FormatError: The file is not such a result; the message names field, step and send.
        OSError: The file cannot be opened.
    """
    with reading(path):
        content = bytes_of(path)
        try:
            found = msgspec.json.decode(content, type=_Algorithm)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"not a result of SCCL: {error}") from None
        return _result(found, len(content)).schedule(topology, size, engine="sccl", name=found.name)


def _result(found: _Algorithm, file_bytes: int) -> Result:
    npus = found.collective.nodes
    if not 2 <= npus <= file_bytes:
        raise ValueError(f"collective: the field nodes is {npus}; it must be at least 2")
    numbers: dict[int, int] = {}
    result = Result(npus, [], [])
    for c, chunk in enumerate(found.collective.chunks):
        for rank in (*chunk.pre, *chunk.post):
            if rank >= npus:
                raise ValueError(
                    f"chunk {c}: the fields pre and post name node {rank}, but there are {npus} nodes"
                )
        if not chunk.pre or not chunk.post:
            raise ValueError(f"chunk {c}: the fields pre and post must not be empty")
        at = numbers.setdefault(chunk.addr, len(numbers))
        if at == len(result.before):
            result.before.append(set())
            result.after.append(set())
        result.before[at] |= set(chunk.pre)
        result.after[at] |= set(chunk.post)
    for s, step in enumerate(found.steps):
        for i, send in enumerate(step.sends):
            where = f"step {s}, send {i}"
            addr, src, dst = (_number(where, value) for value in send[:3])
            if addr not in numbers:
                raise ValueError(f"{where}: the address {addr} has no chunk")
            if src >= npus or dst >= npus or src == dst:
                raise ValueError(f"{where}: from {src} to {dst}; it must join two of {npus} nodes")
            time = send[3] if len(send) > 3 else 0
            if not isinstance(time, int | float) or not -1e300 < time < 1e300:
                raise ValueError(f"{where}: the time is {time}; it must be a number")
            result.hops.append(((s, time), numbers[addr], src, dst, ()))
    return result


def _number(where: str, value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(f"{where}: {value!r} must be the number of an address or a node")
    return value
