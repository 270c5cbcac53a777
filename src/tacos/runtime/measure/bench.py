"""Measures an algorithm on real data, in the manner and the layout of nccl-tests.

Every size is run out of place and in place, and beside it the algorithm that people have already:
MPI's all-reduce over MPI, gloo's where torch is installed, else a plain ring through the same executor. Data are small
whole numbers, so that every byte of the result can be checked whatever the order of the sums.
"""

from __future__ import annotations

import datetime as dt
import functools
import importlib.util
import itertools
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacos import collective as collectives
from tacos import topology as topologies
from tacos.runtime.backend import gloo
from tacos.runtime.carriers import named
from tacos.runtime.dispatch.algorithms import order_matters
from tacos.search.synthesis import engines, synthesize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.distributed import ProcessGroupGloo

    from tacos._core import Collective, CollectivePart, Program, Schedule
    from tacos.runtime.aggregation.sums import SwitchedSums
    from tacos.runtime.algorithm import Algorithm
    from tacos.runtime.communicator import Communicator

__all__ = ["Figure", "Row", "gloo_group", "measure", "table"]

_OPS: dict[str, np.ufunc] = {
    "sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
# The names that nccl-tests prints.
_TYPES = {"float16": "half", "float32": "float", "float64": "double"}
_REDOPS = {"product": "prod"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One way of running a size.

    Attributes:
        time_s: Seconds per call, the mean over calls and ranks.
        algbw_Bps: Size over time.
        busbw_Bps: nccl-tests' bus bandwidth.
        wrong: Elements that were not right, on all ranks; None if they were not checked.
    """

    time_s: float
    algbw_Bps: float
    busbw_Bps: float
    wrong: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What was measured at one size.

    Attributes:
        size_bytes: Of the whole buffer.
        count: Its elements.
        dtype: Their type.
        op: The reduction, or "none".
        root: The root, or -1.
        out_of_place: With two buffers.
        in_place: With one, where the collective has such a form.
        reference: The algorithm to compare with, in place if it can be.
        against: Its name, or empty.
    """

    size_bytes: int
    count: int
    dtype: str
    op: str
    root: int
    out_of_place: Figure
    in_place: Figure | None
    reference: Figure | None
    against: str = ""

    def to_json(self) -> dict[str, Any]:
        """The row as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class _Elements:
    """A type of elements: what NumPy computes with, and how the elements lie in memory."""

    name: str
    value: np.dtype[Any]
    memory: np.dtype[Any]

    @classmethod
    def named(cls, name: str) -> _Elements:
        """The type with this name.

        >>> _Elements.named("bfloat16").stored(np.array([1.0, 1.00390625, 1.01171875], np.float32)).tolist()
        [16256, 16256, 16258]
        """
        if name == "bfloat16":  # NumPy does not have it
            return cls(name, np.dtype(np.float32), np.dtype(np.uint16))
        try:
            kind = np.dtype(name)
        except TypeError:
            raise ValueError(
                f"dtype is {name!r}; it must be bfloat16 or a type of NumPy, such as float32"
            ) from None
        return cls(kind.name, kind, kind)

    def stored(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Values as they lie in memory, rounded to the nearest, ties to even."""
        if self.name != "bfloat16":
            return values.astype(self.memory)
        bits = values.astype(np.float32).view(np.uint32)
        half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return ((bits + half) >> np.uint32(16)).astype(np.uint16)

    def rounded(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Values that the type has."""
        if self.name != "bfloat16":
            return values.astype(self.value)
        return (self.stored(values).astype(np.uint32) << np.uint32(16)).view(np.float32)


class _Bench:
    def __init__(
        self,
        comm: Communicator,
        algorithm: Algorithm,
        dtype: str,
        op: str,
        iters: int,
        warmup: int,
        switched: SwitchedSums | None = None,
    ) -> None:
        self.switched = switched
        self.comm, self.algorithm = comm, algorithm
        self.elements, self.op = _Elements.named(dtype), op
        self.iters, self.warmup = iters, warmup
        self._names = itertools.count()

    def layout(self, count: int) -> tuple[np.ndarray[Any, Any], list[int], list[int]]:
        """Elements of each chunk, and the chunks of this rank's buffers."""
        program = self.algorithm.program
        sizes = np.zeros(program.collective.chunks, np.int64)
        if count:
            sizes = program.collective.resized(count).chunk_bytes()
        rank = self.comm.rank
        return sizes, program.input_chunks(rank).tolist(), program.output_chunks(rank).tolist()

    def value(self, chunk: int, length: int, rank: int) -> np.ndarray[Any, Any]:
        """What a rank contributes to a chunk: ones and twos, so that sums and products are exact.

        They are mixed from rank, chunk and place, so that data in a wrong place are not like the right.
        """
        mixed = np.arange(length, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= np.uint64((rank * 0xC2B2AE3D27D4EB4F + chunk * 0x165667B19E3779F9) % 2**64)
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
        return ((mixed >> np.uint64(63)) + np.uint64(1)).astype(self.elements.value)

    def given(
        self, collective: Collective, chunk: int, length: int, rank: int
    ) -> np.ndarray[Any, Any]:
        """Replicas of a chunk that is not reduced are alike."""
        return self.value(chunk, length, rank if collective.reduces(chunk) else 0)

    def buffers(
        self, count: int, in_place: bool
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Source and target, filled; in place, one is part of the other."""
        sizes, inputs, outputs = self.layout(count)
        wanted, got = int(sizes[inputs].sum()), int(sizes[outputs].sum())
        if not in_place:
            source = np.empty(wanted, self.elements.memory)
            target = np.zeros(got, self.elements.memory)
        elif wanted >= got:
            source = np.empty(wanted, self.elements.memory)
            at = _position(inputs, outputs, sizes)
            target = source[at : at + got]
        else:
            target = np.zeros(got, self.elements.memory)
            at = _position(outputs, inputs, sizes)
            source = target[at : at + wanted]
        pieces = [
            self.given(self.algorithm.collective, chunk, int(sizes[chunk]), self.comm.rank)
            for chunk in inputs
        ]
        if pieces:
            source[:] = self.elements.stored(np.concatenate(pieces))
        return source, target

    def wrong(self, count: int, target: np.ndarray[Any, Any]) -> int:
        """Elements of this rank's result that are not what they must be."""
        sizes, _, outputs = self.layout(count)
        collective = self.algorithm.collective
        found, at = 0, 0
        for chunk in outputs:
            length = int(sizes[chunk])
            inputs = collective.inputs(chunk)
            want = self.given(collective, chunk, length, inputs[0])
            for rank in inputs[1:] if collective.reduces(chunk) else ():
                want = self.elements.rounded(_OPS[self.op](want, self.value(chunk, length, rank)))
            if self.op == "avg" and collective.reduces(chunk):
                exact = want.astype(np.float64) / len(inputs)
                want = exact.astype(self.elements.value)
            found += int((target[at : at + length] != self.elements.stored(want)).sum())
            at += length
        return found

    def figure(self, count: int, run: Callable[[], object], wrong: int | None) -> Figure:
        """Times a call; the ranks start together, and their times are averaged."""
        for _ in range(self.warmup):
            run()
        self.comm.barrier(f"bench {next(self._names)}")
        begin = time.perf_counter()
        for _ in range(self.iters):
            run()
        own = (time.perf_counter() - begin) / self.iters
        value = json.dumps([own, wrong]).encode()
        rows = [json.loads(v) for v in self.comm.exchange(f"bench {next(self._names)}", value)]
        mean = float(np.mean([row[0] for row in rows]))
        size = count * self.elements.memory.itemsize
        bandwidth = size / mean
        factor = self.algorithm.collective.bus_factor
        total = None if wrong is None else sum(row[1] for row in rows)
        return Figure(mean, bandwidth, bandwidth * factor, total)

    def own(self, count: int, in_place: bool, check: bool) -> Figure:
        """Times the algorithm itself."""
        source, target = self.buffers(count, in_place)

        call = (source.ctypes.data, target.ctypes.data, count, self.elements.name, self.op)
        switched = self.switched

        def run() -> None:
            if switched is None or not switched.serves(source.nbytes, self.elements.name, self.op):
                self.algorithm.run_at(*call)
            else:
                switched.run_at(*call, lambda: self.algorithm.run_at(*call))

        wrong = None
        if check:
            run()
            wrong = self.wrong(count, target)
        return self.figure(count, run, wrong)


def _position(whole: list[int], part: list[int], sizes: np.ndarray[Any, Any]) -> int:
    """Where the chunks of a part begin among those of the whole."""
    if not part or part[0] not in whole:
        return 0
    return int(sizes[whole[: whole.index(part[0])]].sum())


def measure(
    comm: Communicator,
    algorithm: Schedule | Program,
    sizes: Sequence[int],
    *,
    dtype: str = "float32",
    op: str = "sum",
    iters: int = 20,
    warmup: int = 5,
    check: bool = True,
    against: Literal["auto", "gloo", "mpi", "ring", "none"] = "auto",
    switched: SwitchedSums | None = None,
) -> Iterator[Row]:
    """Measure an algorithm at several sizes; all ranks must call this together.

    Args:
        comm: The ranks.
        algorithm: A schedule or a program for them.
        sizes: In bytes of the whole buffer, as nccl-tests counts; rounded down to whole elements.
        dtype: NumPy's name of the elements' type, or ``bfloat16``.
        op: The reduction, for collectives that reduce.
        iters: Calls that are timed.
        warmup: Calls before.
        check: Whether to compare every element of a result with what it must be.
        against: What to compare with: gloo or MPI (an all-reduce; gloo needs torch, and MPI a
            communicator over it), a ring, or nothing.
        switched: A switch that adds up: all-reduces take it instead of the algorithm, which is compared with.

    >>> import tacos, tacos.runtime
    >>> topo = tacos.topology.ring(1)
    >>> schedule = tacos.synthesize(topo, tacos.collective.all_reduce(topo, "1MB", chunks=1))
    >>> with tacos.runtime.connect() as comm:
    ...     [row] = measure(comm, schedule, [4096], against="none")
    >>> row.count, row.out_of_place.wrong
    (1024, 0)
    """
    if iters < 1 or warmup < 0:
        raise ValueError(
            f"iters must be at least 1 and warmup at least 0; got {iters} and {warmup}"
        )
    elements = _Elements.named(dtype)
    width = elements.memory.itemsize
    if op not in _OPS:
        raise ValueError(f"op is {op!r}; it must be one of {', '.join(_OPS)}")
    if named(comm.carrier).memory != "host":
        raise ValueError(
            f"the carrier {comm.carrier} moves memory of GPUs, and only buffers of the host are "
            "measured; use another carrier"
        )
    prepared = comm.prepare(algorithm)
    if comm.rank == 0 and prepared.difference and order_matters(dtype, op):
        sys.stderr.write(f"tacos: ranks may end with different bits: {prepared.difference}\n")
    collective = prepared.collective
    if switched is not None and collective.kind != "all_reduce":
        raise ValueError(f"a switch serves an all-reduce; the algorithm is a {collective.label}")
    bench = _Bench(comm, prepared, dtype, op, iters, warmup, switched)
    name, time_reference = _reference(comm, prepared, against)
    if switched is not None and against == "auto":
        name, time_reference = "without switch", _without_switch
    part = collective.parts[0]
    root = int(part.group[part.root]) if part.root >= 0 else -1
    reduces = any(collective.reduces(chunk) for chunk in range(min(collective.chunks, 1)))
    for size in sizes:
        count = max(1, size // width)
        out_of_place = bench.own(count, False, check)
        alone = len(collective.parts) == 1
        in_place = bench.own(count, True, check) if alone and _has_in_place(part) else None
        yield Row(
            size_bytes=count * width,
            count=count,
            dtype=elements.name,
            op=op if reduces else "none",
            root=root,
            out_of_place=out_of_place,
            in_place=in_place,
            reference=time_reference(bench, count) if time_reference else None,
            against=name,
        )


def _without_switch(bench: _Bench, count: int) -> Figure:
    other = _Bench(
        bench.comm, bench.algorithm, bench.elements.name, bench.op, bench.iters, bench.warmup
    )
    other._names = bench._names
    return other.own(count, True, check=False)


def _has_in_place(part: CollectivePart) -> bool:
    """Whether input and output may share one buffer."""
    kind = collectives.kind_of(part)
    return kind.even and not kind.per_pair


def _reference(
    comm: Communicator, algorithm: Algorithm, against: str
) -> tuple[str, Callable[[_Bench, int], Figure | None] | None]:
    """Name and timing of what people have already; None if there is nothing of the kind."""
    collective = algorithm.collective
    part = collective.parts[0]
    all_ranks = len(collective.parts) == 1 and part.group.tolist() == list(range(comm.size))
    is_sum = collective.kind == "all_reduce" and all_ranks
    carrier = algorithm.carrier
    usual = carrier.reference if against == "auto" and is_sum else against
    if usual == "gloo" and against == "auto" and not importlib.util.find_spec("torch"):
        usual = "ring"
    if usual == "mpi":
        if not is_sum or carrier.reference != "mpi":
            raise ValueError("MPI can be compared with for an all-reduce of all ranks, over MPI")
        return "MPI_Allreduce", _mpi
    if usual == "gloo":
        if not is_sum:
            raise ValueError("gloo can be compared with for an all-reduce of all ranks alone")
        if carrier.reference != "gloo":
            raise ValueError(
                f"gloo can be compared with over TCP, and the ranks met over {carrier.label}"
            )
        return "gloo", _gloo(comm)
    if against == "none" or not all_ranks or comm.size < 2:
        return "", None
    network = topologies.ring(comm.size)
    if collective.kind not in collectives.NAMED:
        return "", None
    root = int(part.root) if part.root >= 0 else None
    wanted = collectives.named(collective.kind, network, "1MB", chunks=1, root=root)
    if "ring" not in engines(network, wanted):
        return "", None
    ring = comm.prepare(synthesize(network, wanted, engine="ring"))

    def run(bench: _Bench, count: int) -> Figure:
        other = _Bench(comm, ring, bench.elements.name, bench.op, bench.iters, bench.warmup)
        other._names = bench._names
        return other.own(count, _has_in_place(part), check=False)

    return "ring", run


def _mpi(bench: _Bench, count: int) -> Figure | None:
    from tacos.runtime.mpi import all_reduce

    if bench.elements.value != bench.elements.memory:  # MPI does not have bfloat16
        return None
    run = all_reduce(bench.comm, np.ones(count, bench.elements.memory), bench.op)
    return None if run is None else bench.figure(count, run, None)


def gloo_group(comm: Communicator) -> ProcessGroupGloo:
    """A process group of gloo with the ranks of a communicator; needs torch."""
    try:
        from torch import distributed
    except ImportError:
        raise ValueError(
            "comparing with gloo needs torch: pip install 'tacos-ccl[torch]'"
        ) from None
    limit = dt.timedelta(seconds=comm.timeout)
    make = functools.partial(distributed.TCPStore, comm.address(0), timeout=limit)
    store = make(0, is_master=True, wait_for_workers=False) if comm.rank == 0 else None
    port = "" if store is None else str(store.port)
    meeting = int(comm.exchange("gloo's store", port.encode())[0])
    return gloo(store or make(meeting), comm.rank, comm.size, limit)


def _gloo(comm: Communicator) -> Callable[[_Bench, int], Figure]:
    group = gloo_group(comm)
    import torch
    from torch import distributed

    ops = {"avg": "SUM"}

    def run(bench: _Bench, count: int) -> Figure:
        tensor = torch.ones(count, dtype=getattr(torch, bench.elements.name))
        wanted = distributed.AllreduceOptions()
        wanted.reduceOp = getattr(distributed.ReduceOp, ops.get(bench.op, bench.op.upper()))
        return bench.figure(count, lambda: group.allreduce([tensor], wanted).wait(), None)

    return run


def table(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of nccl-tests' table; what is compared with stands to the right.

    >>> figure = Figure(105.9e-6, 9.90e9, 17.33e9, 0)
    >>> row = Row(1048576, 262144, "float32", "sum", -1, figure, None, None)
    >>> print(list(table([row]))[3])
         1048576        262144     float     sum      -1    105.9    9.90   17.33      0      N/A     N/A     N/A    N/A
    """
    coming = iter(rows)
    first = next(coming, None)
    against = "" if first is None else first.against
    group = f"{'time':>9}{'algbw':>8}{'busbw':>8}"
    unit = f"{'(us)':>9}{'(GB/s)':>8}{'(GB/s)':>8}"
    right = (f"{against:>23}", group, unit) if against else ("", "", "")
    yield f"#{'out-of-place':>76}{'in-place':>32}{'':9}{right[0]}".rstrip()
    names = f"{'size':>11}{'count':>14}{'type':>10}{'redop':>8}{'root':>8}"
    yield f"#{names}{group} #wrong{group} #wrong{right[1]}"
    yield f"#{'(B)':>11}{'(elements)':>14}{'':26}{unit}{'':7}{unit}{'':7}{right[2]}".rstrip()
    wrong, buses = 0, []
    for row in itertools.chain([first] if first else [], coming):
        kind, redop = _TYPES.get(row.dtype, row.dtype), _REDOPS.get(row.op, row.op)
        line = f"{row.size_bytes:>12}{row.count:>14}{kind:>10}{redop:>8}{row.root:>8}"
        for figure in (row.out_of_place, row.in_place):
            line += _columns(figure)
            line += f"{'N/A' if figure is None or figure.wrong is None else figure.wrong:>7}"
            if figure is not None:
                wrong += figure.wrong or 0
                buses.append(figure.busbw_Bps)
        yield line + (_columns(row.reference) if row.reference else "")
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"# Avg bus bandwidth    : {np.mean(buses) / 1e9:.6g}"


def _columns(figure: Figure | None) -> str:
    if figure is None:
        return f"{'N/A':>9}{'N/A':>8}{'N/A':>8}"
    micro = figure.time_s * 1e6
    shown = f"{micro:.2f}" if micro < 100 else f"{micro:.1f}" if micro < 1e5 else f"{micro:.0f}"
    return f"{shown:>9}{figure.algbw_Bps / 1e9:>8.2f}{figure.busbw_Bps / 1e9:>8.2f}"
