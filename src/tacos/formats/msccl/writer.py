"""Writing MSCCL XML: programs in the shape and within the limits of the executors."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos import units
from tacos._core import Schedule
from tacos._support.files import Location, replacing
from tacos.collective import kind_of
from tacos.errors import LimitError
from tacos.formats.msccl.dialect import (
    DIALECTS,
    LONGEST_NAME,
    MOST_CHANNELS,
    PROTOCOLS,
    RECEIVES,
    SENDS,
    TYPES,
    first_thread,
    hangs,
    limits_exceeded,
    obstacle,
)
from tacos.formats.msccl.shape import finished, packed
from tacos.formats.xml_events import attribute
from tacos.program import ONE_SIDED, STEP_OPS, Program, lift, lower

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tacos.units import Quantity

__all__ = ["write"]

_TYPE_OF = {STEP_OPS.index(op): name for name, op in TYPES.items()}
_FUSED = [STEP_OPS.index(op) for op in ("recv_send", "recv_reduce_forward", "recv_reduce_send")]
_NOP = STEP_OPS.index("nop")
_LARGEST_SIZE = 2**63 - 1
_WIDE = 8
"""A wide window (chosen: the best power of two for all-reduces of 72 GPUs)."""


def write(
    obj: Program | Schedule,
    path: Location,
    *,
    dialect: str | None = None,
    protocol: str | None = None,
    channels: int | None = None,
    instances: int = 1,
    in_place: bool | None = None,
    min_bytes: Quantity | None = None,
    max_bytes: Quantity | None = None,
    name: str | None = None,
) -> None:
    """Write an algorithm for MSCCL's executors, atomically.

    A schedule is lowered first; a program with one-sided steps is lifted and lowered. Each connection gets a threadblock
    per direction, which keeps the schedule's order. If that costs no time when the program runs, neighbouring chunks
    travel together, and a receive and the send that forwards it become one step (``rcs``, ``rrs``, ``rrcs``) on up to eight
    channels. A program that already has such steps, or was read from an MSCCL file, keeps its threadblocks. Options that are
    not given come from the file that a program was read from, or else have the defaults below.

    Args:
        obj: One all-reduce, all-gather, reduce-scatter, all-to-all, broadcast or reduce of all NPUs;
            for Azure also gather and scatter.
        path: The file.
        dialect: ``"msccl"`` (default) for microsoft/msccl, ``"azure"`` for Azure's executor and RCCL.
        protocol: ``"Simple"`` (default), ``"LL"`` or ``"LL128"``.
        channels: Largest number of channels of one instance.
        instances: Number of copies of the algorithm that run side by side, each on its own channels with its
            share of every chunk.
        in_place: How to lower a schedule; by default out of place.
        min_bytes: The smallest buffer to use the algorithm for; by default any.
        max_bytes: The file's ``maxBytes``: executors use the algorithm for buffers below it; by default any.
        name: At most 63 characters; by default the collective and its engine.

    Raises:
        ValueError: An option is wrong, or the format cannot express what the program does.
        LimitError: The algorithm exceeds a limit of the executors; the message names it.

    >>> import tempfile, tacos
    >>> from pathlib import Path
    >>> topo = tacos.topology.ring(3, bidirectional=False)
    >>> coll = tacos.collective.all_gather(topo, "3MB", chunks=1)
    >>> schedule = tacos.synthesize(topo, coll, engine="ring")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(schedule, f"{folder}/ag.xml", name="three")
    ...     lines = Path(folder, "ag.xml").read_text().splitlines()
    >>> print(*lines[:8], sep="\\n")  # doctest: +ELLIPSIS
    <algo name="three" proto="Simple" nchannels="1" nchunksperloop="3" ngpus="3" coll="allgather" ...>
      <gpu id="0" i_chunks="1" o_chunks="3" s_chunks="0">
        <tb id="0" send="-1" recv="-1" chan="0">
          <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" .../>
        </tb>
        <tb id="1" send="1" recv="2" chan="0">
          <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" .../>
          <step s="1" type="rcs" srcbuf="o" srcoff="2" dstbuf="o" dstoff="2" cnt="1" depid="-1" .../>
    """
    lowered = _lowered(obj, in_place)
    program = next(lowered)
    network = obj.topology if isinstance(obj, Schedule) else None
    if not 1 <= instances <= MOST_CHANNELS:
        raise ValueError(f"instances must be 1 to {MOST_CHANNELS}; got {instances}")
    most = MOST_CHANNELS // instances
    if channels is not None and not 1 <= channels <= most:
        copies = "" if instances == 1 else f" with {instances} instances"
        raise ValueError(f"channels must be 1 to {most}{copies}; got {channels}")
    dialect = _word("dialect", dialect, program.dialect or None, DIALECTS)
    fields = _fields(program, dialect, protocol, min_bytes, max_bytes, name)
    keeps = program.format == "msccl" or bool(np.isin(program.op, _FUSED).any())
    if keeps and channels is not None:
        raise ValueError(
            f"channels is {channels}, but a program with threadblocks keeps its channels"
        )
    programs = chain([program], lowered)
    shaped = program if keeps else packed(programs, dialect, channels, most, instances, network)
    shaped = finished(shaped, instances)
    _check(path, shaped, dialect, fields["proto"])
    with replacing(path) as out:
        for text in _text(shaped, fields):
            out.write(text.encode())


def _lowered(obj: Program | Schedule, in_place: bool | None) -> Iterator[Program]:
    """Yield the program and, for a schedule, other programs that take more memory or time but may fit the limits better.

    A receive into a reused scratch slot waits for a send, so ranks may wait for each other forever if connections hold few
    messages. Without windows, fewer threadblocks are awaited; if some windows must be dropped, wide windows lose less than
    narrow ones.
    """
    if isinstance(obj, Schedule):
        yield (first := lower(obj, in_place=bool(in_place)))
        window = first.window
        for other in dict.fromkeys((window, _WIDE if window else 0, 0)):
            yield lower(obj, in_place=bool(in_place), window=other, reuse_scratch=False)
        return
    if in_place is not None and in_place != obj.in_place:
        raise ValueError(f"in_place is {in_place}, but the program was made with {obj.in_place}")
    if np.isin(obj.op, ONE_SIDED).any():  # the executors have messages only
        obj = lower(lift(obj), in_place=obj.in_place)
    yield obj


# --- what an executor accepts ---------------------------------------------------------------------


def _check(path: Location, program: Program, dialect: str, protocol: str) -> None:
    for sentence in limits_exceeded(program, DIALECTS[dialect]):
        raise LimitError(f"{path}: {sentence}")
    unknown = ~np.isin(program.op, list(_TYPE_OF))
    if unknown.any():
        step = int(np.flatnonzero(unknown)[0])
        op = STEP_OPS[program.op[step]]
        raise ValueError(f"{program.describe(step)} is a {op}, which MSCCL files cannot express")
    owner = np.repeat(np.arange(program.threads), np.diff(program.thread_begin))
    for peers in (program.thread_send_peer, program.thread_recv_peer):
        talks = peers >= 0
        rows = np.stack([program.thread_rank, peers, program.thread_channel])[:, talks]
        if len(np.unique(rows, axis=1).T) < rows.shape[1]:
            raise ValueError("two threads of a rank share a peer and a channel; MSCCL allows one")
    # The k-th send of a connection is paired with its k-th receive.
    receives = np.flatnonzero(RECEIVES[program.op])
    came = program.comes_from[receives]
    sends = np.count_nonzero(SENDS[program.op])
    if (came < 0).any() or len(np.unique(came)) != sends:
        raise ValueError(
            "not every message has one send and one receive; run tacos verify to see which"
        )
    mine, theirs = owner[receives], owner[came]
    crossed = np.diff(came) <= 0
    crossed &= np.diff(mine) == 0
    wrong = (program.thread_channel[mine] != program.thread_channel[theirs]) | (
        np.concatenate([[False], crossed])
    )
    if wrong.any():
        step = int(receives[wrong][0])
        raise ValueError(f"{program.describe(step)} receives out of the order of the sends")
    if (hanging := hangs(program, protocol)) is not None:
        raise LimitError(f"{path}: {hanging}: use fewer chunks or instances")


def _word(name: str, value: str | None, known: str | None, allowed: Iterable[str]) -> str:
    """Return the given word, else the program's, else the first."""
    words = list(allowed)
    if value is None:
        return known if known in words else words[0]
    if value not in words:
        listed = ", ".join(f'"{word}"' for word in words)
        raise ValueError(f'{name} must be one of {listed}; got "{value}"')
    return value


def _fields(
    program: Program,
    dialect: str,
    protocol: str | None,
    min_bytes: Quantity | None,
    max_bytes: Quantity | None,
    name: str | None,
) -> dict[str, Any]:
    """Return the fields of the file's first element that do not depend on the steps."""
    limits = DIALECTS[dialect]
    parts = program.collective.parts
    kind = parts[0].kind
    if why := obstacle(program.collective, dialect):
        raise ValueError(why)
    if program.in_place and kind_of(parts[0]).per_pair:
        raise ValueError("the program is an all_to_all in place, which MSCCL files cannot express")
    chosen = name if name is not None else program.name
    if name is None and not chosen and program.format not in ("msccl", "mscclpp"):
        chosen = f"{kind}_{program.engine}" if program.engine else kind
    if len(chosen.encode()) > LONGEST_NAME or not chosen.isprintable():
        raise ValueError(
            f'name must be at most {LONGEST_NAME} bytes of printable characters; got "{chosen}"'
        )
    smallest = _bytes("min_bytes", min_bytes, program.min_bytes)
    most = program.max_bytes
    if most > _LARGEST_SIZE:  # how other formats store "no limit"
        most = 0
    largest = _bytes("max_bytes", max_bytes, most) or limits.unlimited
    if largest and smallest > largest:
        raise ValueError(f"min_bytes is {smallest}, but max_bytes is {largest}")
    places = {"inplace": int(program.in_place), "outofplace": int(not program.in_place)}
    if dialect == "msccl":
        del places["outofplace"]
    elif program.either_place:
        places = dict.fromkeys(places, 1)  # the file that was read can run both ways
    fields = {
        "name": chosen,
        "proto": _word("protocol", protocol, program.protocol or None, PROTOCOLS),
        "coll": limits.collectives[kind],
        **places,
        "minBytes": smallest,
        "maxBytes": largest,
    }
    return fields | ({"root": int(parts[0].group[parts[0].root])} if parts[0].root >= 0 else {})


def _bytes(name: str, value: Quantity | None, default: int) -> int:
    size = default
    if value is not None:
        size = 0 if value in (0, "0") else units.size_bytes(value, what=name)
    if not 0 <= size <= _LARGEST_SIZE:
        raise ValueError(f"{name} must be 0 to 2^63 - 1; got {size}")
    return size


# --- text -----------------------------------------------------------------------------------------


def _text(program: Program, fields: dict[str, Any]) -> Iterator[str]:
    part = program.collective.parts[0]
    whole = int(max(len(program.output_chunks(r)) for r in {0, max(part.root, 0)}))
    if not kind_of(part).whole_output:
        whole *= program.ranks
    channels = int(program.thread_channel.max(initial=0)) + 1
    head = {
        "name": fields.pop("name"),
        "proto": fields.pop("proto"),
        "nchannels": channels,
        "nchunksperloop": whole,
        "ngpus": program.ranks,
        **fields,
    }
    yield (
        "<algo " + " ".join(f"{key}={attribute(str(value))}" for key, value in head.items()) + ">\n"
    )
    first = [*first_thread(program).tolist(), program.threads]
    small = whole // program.ranks
    inputs = whole if kind_of(part).whole_input else small
    outputs = whole if kind_of(part).whole_output else small
    rows = _rows(program)
    threads = np.stack(
        [program.thread_send_peer, program.thread_recv_peer, program.thread_channel], axis=1
    ).tolist()
    begin = program.thread_begin.tolist()
    for rank in range(program.ranks):
        scratch = int(program.scratch_slots[rank])
        yield f'  <gpu id="{rank}" i_chunks="{inputs}" o_chunks="{outputs}" s_chunks="{scratch}">\n'
        for thread in range(first[rank], first[rank + 1]):
            send, recv, channel = threads[thread]
            number = thread - first[rank]
            yield f'    <tb id="{number}" send="{send}" recv="{recv}" chan="{channel}">\n'
            yield "".join(rows[begin[thread] : begin[thread + 1]])
            yield "    </tb>\n"
        yield "  </gpu>\n"
    yield "</algo>\n"


def _rows(program: Program) -> list[str]:
    """Return one line per step. A side that the type does not use repeats the other side."""
    buffers, types = (
        np.array(["i", "o", "s", "i"]),
        np.array([_TYPE_OF.get(i, "") for i in range(14)]),
    )
    owner = np.repeat(np.arange(program.threads), np.diff(program.thread_begin))
    idle = program.op == _NOP
    no_src, no_dst = (program.src_slot < 0) & ~idle, (program.dst_slot < 0) & ~idle
    src_buffer = np.where(no_src, program.dst_buffer, program.src_buffer)
    src_slot = np.where(no_src, program.dst_slot, program.src_slot)
    dst_buffer = np.where(no_dst, program.src_buffer, program.dst_buffer)
    dst_slot = np.where(no_dst, program.src_slot, program.dst_slot)
    awaited = np.zeros(program.steps, int)
    awaited[program.dep] = 1
    waits = np.diff(program.dep_begin) > 0
    block, step = np.full(program.steps, -1), np.full(program.steps, -1)
    target = owner[program.dep]
    block[waits] = target - first_thread(program)[program.thread_rank[target]]
    step[waits] = program.dep - program.thread_begin[target]
    columns = (
        np.arange(program.steps) - program.thread_begin[owner],
        types[program.op],
        buffers[src_buffer],
        src_slot,
        buffers[dst_buffer],
        dst_slot,
        program.count,
        block,
        step,
        awaited,
    )
    line = (
        '      <step s="%d" type="%s" srcbuf="%s" srcoff="%d" dstbuf="%s" dstoff="%d" cnt="%d"'
        ' depid="%d" deps="%d" hasdep="%d"/>\n'
    )
    return [line % row for row in zip(*(column.tolist() for column in columns), strict=True)]
