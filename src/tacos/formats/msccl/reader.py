"""Reading MSCCL XML: the file's elements become the columns of a program.

Expat calls back for each element; a step adds ten numbers to one array. Rules that concern several elements are
checked on these columns.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tacos import collective as collectives
from tacos.errors import FormatError
from tacos.formats import xml_events
from tacos.formats.msccl.dialect import DIALECTS, LAST_OFFSET, PROTOCOLS, RECEIVES, SENDS, TYPES
from tacos.formats.source import about, bytes_of
from tacos.program import STEP_OPS, Program, facts_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Collective
    from tacos._support.files import Location

__all__ = ["read"]

_OPS = {name: STEP_OPS.index(op) for name, op in TYPES.items()}
_NOP = _OPS["nop"]
_BUFFERS = {"i": 0, "o": 1, "s": 2}
_NONE = 3
_USES_SRC = np.array(
    [op in {"copy", "reduce", "send"} or op.startswith("recv_reduce") for op in STEP_OPS]
)
_USES_DST = np.array([op not in {"nop", "send", "recv_reduce_forward"} for op in STEP_OPS])
_KINDS = {name: kind for d in DIALECTS.values() for kind, name in d.collectives.items()}
_KINDS["alltoallv"] = "all_to_all"  # the file can describe equal blocks only
_LEVELS = ("algo", "gpu", "tb", "step")
_FIELDS = ("srcoff", "dstoff", "cnt", "depid", "deps", "hasdep")
_COLUMNS = ("type", "srcbuf", "dstbuf", *_FIELDS, "line")


class _Numbers(dict[str, int]):
    """Numbers by their texts, each parsed once; raises ValueError for a text that is not a number."""

    _number = re.compile(r"-?[0-9]{1,18}", re.ASCII)

    def __missing__(self, text: str) -> int:
        if not self._number.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
            raise ValueError(text)
        if len(self) < 1 << 16:
            self[text] = int(text)
        return int(text)


class _Elements:
    """Collects the elements of one file."""

    def __init__(self, path: Location) -> None:
        self.path = path
        self.algo: dict[str, str] = {}
        self.gpus: list[list[int]] = []  # i_chunks, o_chunks, s_chunks
        self.tbs = array("i")  # gpu, send, recv, chan, line
        self.begin = array("q", [0])
        self.steps = array("i")
        self.number = _Numbers()
        self.open: list[str] = []
        self.line = 0

    def parse(self) -> None:
        with about(self.path):
            xml_events.parse(bytes_of(self.path), self.start, self.end)
        if len(self.gpus) != self.ngpus:
            self.fail(
                f"there are {len(self.gpus)} gpu elements; ngpus is {self.ngpus}, so there must be {self.ngpus}",
                "",
            )

    def fail(self, what: str, where: str | None = None) -> NoReturn:
        where = f"line {self.line}: " if where is None else where
        raise FormatError(f"{self.path}: {where}{what}") from None

    def start(self, name: str, fields: dict[str, str], line: int) -> None:
        self.line = line
        if name == "step" and len(self.open) == 3:
            self.step(fields)
        else:
            level = len(self.open)
            if name == "copy" and self.open == ["algo", "gpu"]:
                pass  # TACCL's note that an input is already in place; executors skip it
            elif level >= len(_LEVELS) or name != _LEVELS[level]:
                place = f"inside {self.open[-1]}" if self.open else "as the root"
                wanted = f"; it must be {_LEVELS[level]}" if level < len(_LEVELS) else ""
                self.fail(f"unexpected element {name} {place}{wanted}")
            else:
                {"algo": self.algo_element, "gpu": self.gpu_element, "tb": self.tb_element}[name](
                    fields
                )
        self.open.append(name)

    def end(self, name: str) -> None:
        self.open.pop()
        if name == "tb":
            self.begin.append(len(self.steps) // len(_COLUMNS))

    def whole(
        self, element: str, fields: dict[str, str], name: str, low: int, high: int = 2**31 - 1
    ) -> int:
        """Return a field's number; raise an error if it is missing or out of range."""
        try:
            value = self.number[fields[name]]
        except KeyError:
            self.fail(f'the {element} has no field "{name}"')
        except ValueError:
            self.fail(
                f'the {element}\'s field {name} is "{fields[name][:40]}"; it must be a number'
            )
        if not low <= value <= high:
            self.fail(f"the {element}'s field {name} is {value}; it must be {low} to {high}")
        return value

    def algo_word(self, name: str, allowed: Any) -> str:
        if name not in self.algo:
            self.fail(f'the algo has no field "{name}"')
        if (word := self.algo[name]) not in allowed:
            known = ", ".join(allowed)
            self.fail(f'the algo\'s field {name} is "{word[:40]}"; it must be one of {known}')
        return word

    def algo_element(self, fields: dict[str, str]) -> None:
        self.algo = fields
        self.ngpus = self.whole("algo", fields, "ngpus", 1)
        self.nchunks = self.whole("algo", fields, "nchunksperloop", 1, LAST_OFFSET + 1)
        self.nchannels = self.whole("algo", fields, "nchannels", 1)
        self.proto = self.algo_word("proto", PROTOCOLS)
        if fields.get("coll") in ("custom", "send", "recv"):
            self.fail(
                f"the algo's field coll is {fields['coll']}, which does not define a result; use one of {', '.join(_KINDS)}"
            )
        self.coll = self.algo_word("coll", _KINDS)
        flags = [
            self.whole("algo", fields, name, 0, 1) if name in fields else 0
            for name in ("inplace", "outofplace")
        ]
        if "inplace" not in fields:
            self.fail('the algo has no field "inplace"')
        self.in_place, self.out_of_place = bool(flags[0]), bool(flags[1]) or not flags[0]
        for name in ("minBytes", "maxBytes"):
            if name in fields and not re.fullmatch(r"[0-9]{1,19}", fields[name], re.ASCII):
                self.fail(f'the algo\'s field {name} is "{fields[name][:40]}"; it must be a number')

    def gpu_element(self, fields: dict[str, str]) -> None:
        self.ordered("gpu", fields, "id", len(self.gpus))
        if len(self.gpus) == self.ngpus:
            self.fail(f"there are more gpu elements than ngpus, which is {self.ngpus}")
        chunks = [
            self.whole("gpu", fields, name, 0, LAST_OFFSET + 1)
            for name in ("i_chunks", "o_chunks", "s_chunks")
        ]
        kind = collectives.KINDS[_KINDS[self.coll]]
        buffers = (("i_chunks", kind.whole_input), ("o_chunks", kind.whole_output))
        for index, (name, whole) in enumerate(buffers):
            each = self.nchunks if whole else self.nchunks // self.ngpus
            if not whole and self.nchunks % self.ngpus:
                self.fail(
                    f"the algo's field nchunksperloop is {self.nchunks}, "
                    f"but {self.coll} needs a multiple of the {self.ngpus} GPUs"
                )
            if chunks[index] not in (0, each):
                self.fail(f"the gpu's field {name} is {chunks[index]}; it must be 0 or {each}")
        self.gpus.append(chunks)
        self.blocks = 0

    def tb_element(self, fields: dict[str, str]) -> None:
        self.ordered("tb", fields, "id", self.blocks)
        self.blocks += 1
        gpu = len(self.gpus) - 1
        self.tbs.append(gpu)
        for name in ("send", "recv"):
            peer = self.whole("tb", fields, name, -1, self.ngpus - 1)
            if peer == gpu:
                self.fail(
                    f"the tb's field {name} is {peer}, its own gpu; it must be another gpu or -1"
                )
            self.tbs.append(peer)
        self.tbs.append(self.whole("tb", fields, "chan", 0, self.nchannels - 1))
        self.tbs.append(self.line)

    def ordered(self, element: str, fields: dict[str, str], name: str, expected: int) -> None:
        if (found := self.whole(element, fields, name, 0)) != expected:
            self.fail(f"the {element}'s field {name} is {found}; it must be {expected}")

    def step(self, fields: dict[str, str]) -> None:
        number, steps = self.number, self.steps
        try:
            values = (
                _OPS[fields["type"]],
                _BUFFERS[fields["srcbuf"]],
                _BUFFERS[fields["dstbuf"]],
                number[fields["srcoff"]],
                number[fields["dstoff"]],
                number[fields["cnt"]],
                number[fields["depid"]],
                number[fields["deps"]],
                number[fields["hasdep"]],
                self.line,
            )
            right = number[fields["s"]] == len(steps) // len(_COLUMNS) - self.begin[-1]
        except (KeyError, ValueError):
            right = False
        if not right:
            self.explain(fields)
        steps.extend(values)

    def explain(self, fields: dict[str, str]) -> NoReturn:
        self.ordered("step", fields, "s", len(self.steps) // len(_COLUMNS) - self.begin[-1])
        for name, allowed in (("type", _OPS), ("srcbuf", _BUFFERS), ("dstbuf", _BUFFERS)):
            if name not in fields:
                self.fail(f'the step has no field "{name}"')
            if fields[name] not in allowed:
                known = ", ".join(allowed)
                self.fail(
                    f'the step\'s field {name} is "{fields[name][:40]}"; it must be one of {known}'
                )
        for name in _FIELDS:
            self.whole("step", fields, name, -(2**31))
        raise AssertionError


def read(path: Location) -> Program:
    """Read an algorithm; provenance keeps its name, protocol, dialect and range of sizes.

    Messages are paired as executors pair them: the k-th send with the k-th receive on each connection. A
    message without a partner stays unpaired, and :func:`tacos.verify` reports it. A file that can run both in
    place and out of place is read as in place if it writes to the input.

    Raises:
        FormatError: The file is not an MSCCL algorithm; the message names line, field and value.
    """
    elements = _Elements(path)
    elements.parse()
    return _Columns(elements).program()


class _Columns:
    """The elements as columns, and the rules that concern several of them."""

    def __init__(self, elements: _Elements) -> None:
        self.elements = elements
        self.gpus = np.array(elements.gpus, np.int32).reshape(-1, 3)
        tbs = np.frombuffer(elements.tbs, np.int32).reshape(-1, 5)
        self.rank, self.send, self.recv, self.channel, self.tb_line = np.ascontiguousarray(tbs.T)
        self.begin = np.frombuffer(elements.begin, np.int64)
        steps = np.frombuffer(elements.steps, np.int32).reshape(-1, len(_COLUMNS))
        self.steps = dict(zip(_COLUMNS, np.ascontiguousarray(steps.T), strict=True))
        self.op = self.steps["type"].astype(np.uint8)
        self.owner = np.repeat(np.arange(len(self.rank)), np.diff(self.begin))
        self.first_tb = np.searchsorted(self.rank, np.arange(len(self.gpus) + 1))

    def refuse(self, wrong: NDArray[np.bool_], field: str, why: str) -> None:
        """Raise an error for the first wrong step, if any; ``why`` may quote values of its fields."""
        if not wrong.any():
            return
        i = int(np.flatnonzero(wrong)[0])
        values = {name: int(column[i]) for name, column in self.steps.items()}
        what = f"the field {field} is {values[field]}{why.format(**values)}"
        raise FormatError(
            f"{self.elements.path}: line {values['line']}: {self.describe(i)}: {what}"
        )

    def describe(self, step: int) -> str:
        tb = int(self.owner[step])
        gpu = int(self.rank[tb])
        return f"gpu {gpu}, tb {tb - self.first_tb[gpu]}, step {step - self.begin[tb]}"

    def program(self) -> Program:
        elements = self.elements
        # A large number in a small file must not fill the memory; a step uses at most 71 chunks of each buffer.
        chunks, most = int(self.gpus.sum(dtype=np.int64)), (1 << 20) + 300 * len(self.op)
        if chunks > most:
            raise FormatError(
                f"{elements.path}: the gpus' fields i_chunks, o_chunks and s_chunks add up to {chunks}, "
                f"but {len(self.op)} steps can use at most {most}"
            )
        self.check_peers()
        dep_begin, dep = self.dependencies()
        in_place = self.is_in_place()
        goal = self.collective()
        src, dst = self.sides(goal, in_place)
        algo = elements.algo
        azure = "outofplace" in algo or elements.coll in ("reducescatter", "gather", "scatter")
        provenance: dict[str, Any] = {
            "format": "msccl",
            "dialect": "azure" if azure else "msccl",
            "name": algo.get("name", ""),
            "protocol": elements.proto,
            "inplace": elements.in_place,
            "outofplace": elements.out_of_place,
        }
        provenance |= {
            key: int(algo[name])
            for key, name in (("min_bytes", "minBytes"), ("max_bytes", "maxBytes"))
            if name in algo
        }
        try:
            return Program(
                collective=goal,
                in_place=in_place,
                scratch_slots=np.ascontiguousarray(self.gpus[:, 2]),
                thread_rank=self.rank,
                thread_channel=self.channel,
                thread_send_peer=self.send,
                thread_recv_peer=self.recv,
                thread_begin=self.begin,
                op=self.op,
                src_buffer=src[0],
                src_slot=src[1],
                dst_buffer=dst[0],
                dst_slot=dst[1],
                count=np.where(self.op == _NOP, 0, self.steps["cnt"]).astype(np.int32),
                peer=np.full(len(self.op), -1, np.int32),
                comes_from=self.comes_from(),
                dep_begin=dep_begin,
                dep=dep,
                provenance=json.dumps(provenance),
                **facts_in(provenance),
            )
        except ValueError as error:
            raise FormatError(f"{elements.path}: {error}") from None

    def check_peers(self) -> None:
        for peers, uses, word in (
            (self.send, SENDS, "send"),
            (self.recv, RECEIVES, "recv"),
        ):
            alone = uses[self.op] & (peers[self.owner] < 0)
            if alone.any():
                i = int(np.flatnonzero(alone)[0])
                kind = next(name for name, op in _OPS.items() if op == self.op[i])
                line = int(self.steps["line"][i])
                raise FormatError(
                    f"{self.elements.path}: line {line}: {self.describe(i)}: the type is {kind}, "
                    f"but the tb's field {word} is -1; it must name the other gpu"
                )
            # A connection is one peer, direction and channel.
            talks = np.flatnonzero(peers >= 0)
            key = self.connection(self.rank[talks], peers[talks], self.channel[talks])
            order = np.argsort(key, kind="stable")
            again = np.flatnonzero(np.diff(key[order]) == 0)
            if len(again):
                one, other = (int(talks[order[again[0] + k]]) for k in (0, 1))
                gpu = int(self.rank[one])
                raise FormatError(
                    f"{self.elements.path}: line {int(self.tb_line[other])}: gpu {gpu}: the tbs "
                    f"{one - self.first_tb[gpu]} and {other - self.first_tb[gpu]} both have {word} "
                    f"{int(peers[one])} on channel {int(self.channel[one])}; only one may"
                )

    def connection(
        self, a: NDArray[np.int32], b: NDArray[np.int32], channel: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        count = self.elements.ngpus
        dense = np.unique(self.channel)  # channels may have any numbers
        return (a.astype(np.int64) * count + b) * len(dense) + np.searchsorted(dense, channel)

    def comes_from(self) -> NDArray[np.int32]:
        """Pair the k-th send of each connection with its k-th receive."""
        owner = self.owner
        numbered = []
        for uses, sources, targets in (
            (SENDS, self.rank, self.send),
            (RECEIVES, self.recv, self.rank),
        ):
            steps = np.flatnonzero(uses[self.op])
            of = owner[steps]
            key = self.connection(sources[of], targets[of], self.channel[of])
            order = np.argsort(key, kind="stable")
            steps, key = steps[order], key[order]
            first = np.searchsorted(key, key)
            numbered.append((steps, key, np.arange(len(key)) - first))
        (sends, sent, _), (receives, wanted, wanted_k) = numbered
        result = np.full(len(self.op), -1, np.int32)
        position = np.searchsorted(sent, wanted) + wanted_k
        there = np.flatnonzero(position < len(sent))
        there = there[sent[position[there]] == wanted[there]]
        result[receives[there]] = sends[position[there]]
        return result

    def dependencies(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        block, number, hasdep = self.steps["depid"], self.steps["deps"], self.steps["hasdep"]
        self.refuse((hasdep < 0) | (hasdep > 1), "hasdep", "; it must be 0 or 1")
        self.refuse(block < -1, "depid", "; it must be a tb of the gpu, or -1 for none")
        waits = block >= 0
        rank = self.rank[self.owner]
        target = self.first_tb[rank] + block
        outside = waits & (target >= self.first_tb[rank + 1])
        self.refuse(outside, "depid", "; it must be a tb of the gpu, or -1 for none")
        target = np.where(waits, target, 0)
        many = np.diff(self.begin)[target] if len(self.rank) else target
        self.refuse(
            waits & ((number < 0) | (number >= many)), "deps", "; it must be a step of tb {depid}"
        )
        awaited = (self.begin[target] + number).astype(np.int32)
        own = waits & (awaited == np.arange(len(self.op)))
        self.refuse(own, "deps", ", the step itself; it must be another step")
        silent = np.zeros(len(self.op), bool)
        silent[awaited[waits]] = True
        self.refuse(
            silent & (hasdep == 0),
            "hasdep",
            "; it must be 1, since another step waits for this one",
        )
        begin = np.zeros(len(self.op) + 1, np.int64)
        np.cumsum(waits, out=begin[1:])
        return begin, awaited[waits]

    def is_in_place(self) -> bool:
        elements = self.elements
        if elements.in_place != elements.out_of_place:
            return elements.in_place
        writes = _USES_DST[self.op] & (self.steps["dstbuf"] == _BUFFERS["i"])
        return bool(writes.any()) or bool((self.gpus[:, :2] == 0).any())

    def collective(self) -> Collective:
        elements = self.elements
        kind, n, chunks = _KINDS[elements.coll], elements.ngpus, elements.nchunks
        traits = collectives.KINDS[kind]
        if traits.per_pair and elements.in_place:
            raise FormatError(
                f"{elements.path}: the algo's field inplace is 1, "
                "but programs cannot express an alltoall in place"
            )
        if traits.unit == "buffer":
            return collectives.named(kind, n, chunks, chunks=chunks, root=self.root(kind))
        if traits.unit == "share":
            # Pieces beyond nchunksperloop have no bytes, so no rank needs them.
            return collectives.named(kind, n, chunks, chunks=-(-chunks // n))
        if chunks % n:
            raise FormatError(
                f"{elements.path}: the algo's field nchunksperloop is {chunks}, "
                f"but {elements.coll} needs a multiple of the {n} GPUs"
            )
        root = self.root(kind) if traits.rooted else None
        return collectives.named(kind, n, chunks, chunks=chunks // n, root=root)

    def root(self, kind: str) -> int:
        """Return the root: the GPU that never receives, or never sends. Executors get it from the call."""
        elements = self.elements
        if "root" in elements.algo:
            return elements.whole("algo", elements.algo, "root", 0, elements.ngpus - 1)
        busy = np.zeros(elements.ngpus, bool)
        traits = collectives.KINDS[kind]
        to_root = traits.reduces or not traits.whole_input
        moves = (SENDS if to_root else RECEIVES)[self.op]
        busy[self.rank[self.owner[moves]]] = True
        if np.count_nonzero(~busy) != 1:
            verb = "sends" if to_root else "receives"
            raise FormatError(
                f"{elements.path}: {np.count_nonzero(~busy)} GPUs never {verb[:-1]}, "
                f"so the root of the {elements.coll} is unclear; add the field root to the algo"
            )
        return int(np.flatnonzero(~busy)[0])

    def sides(self, goal: Collective, in_place: bool) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the buffers and slots that steps read and write, without those that a type ignores."""
        moves = self.op != _NOP
        self.refuse(moves & (self.steps["cnt"] < 1), "cnt", "; it must be positive")
        rank = self.rank[self.owner]
        result = []
        for name, uses in (("src", _USES_SRC), ("dst", _USES_DST)):
            used = uses[self.op]
            buffer, slot = self.steps[f"{name}buf"], self.steps[f"{name}off"]
            there = self.gpus[rank, buffer]
            beyond = (slot < 0) | (slot.astype(np.int64) + self.steps["cnt"] > there)
            self.refuse(
                used & beyond, f"{name}off", "; with cnt {cnt}, that is outside of the buffer"
            )
            kind = collectives.kind_of(goal.parts[0])
            if in_place and kind.spreads and kind.rooted:
                # The two names stand for the same memory, and only the root has both.
                root = int(goal.parts[0].root)
                missing = _BUFFERS["o"] if kind.reduces else _BUFFERS["i"]
                other = (rank != root) & (buffer == missing)
                buffer = np.where(other, 1 - missing, buffer)
            result.append(
                (
                    np.where(used, buffer, _NONE).astype(np.uint8),
                    np.where(used, slot, -1).astype(np.int32),
                )
            )
        return result
