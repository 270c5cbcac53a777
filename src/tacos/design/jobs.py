"""Jobs: what a training step computes and communicates, one thing after another.

A job is a list of steps: computations, and collectives with their sizes, groups and counts. It knows nothing of a network.
:meth:`TrainingJob.timing` maps it to the dimensions of one: a collective moves ``m[d]`` bytes per NPU in dimension d, in all
dimensions at once, and takes ``max_d m[d] / bandwidth[d]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from msgspec import Meta, Struct

from tacos import units
from tacos._core import Workload
from tacos.design.convex import Timing
from tacos.errors import nearest
from tacos.formats import markup
from tacos.formats.source import about, fields_of, quoted
from tacos.workload import COLL, COMMS, COMP, EVERY_DIM, RECV

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from tacos.design.dimensions import Dimension

__all__ = [
    "Call",
    "Compute",
    "Group",
    "Ranks",
    "Timed",
    "TrainingJob",
    "from_workload",
    "job",
    "load_job",
]

Overlap: TypeAlias = Literal["none", "background", "full"]
OVERLAPS: tuple[Overlap, ...] = ("none", "background", "full")

_MESSAGES = {
    "all-reduce": "two passes",
    "all-gather": "one pass",
    "reduce-scatter": "one pass",
    "gather": "one pass",
    "scatter": "one pass",
    "all-to-all": "pairs",
    "broadcast": "whole",
    "reduce": "whole",
    "send": "pair",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that communicate: `size` of them, `stride` apart; all such groups of a network run at once.

    >>> Group(4, 2).ranks().tolist()
    [0, 2, 4, 6]
    """

    size: int
    stride: int = 1

    def __post_init__(self) -> None:
        for name in ("size", "stride"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(
                    f"{name} of a group must be a positive whole number; got {value!r}"
                )

    def ranks(self) -> NDArray[np.int64]:
        """Return the ranks of the first group."""
        return np.arange(self.size) * self.stride


@dataclass(frozen=True, slots=True)
class Compute:
    """A computation that takes this long on every NPU."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """A collective, or messages between two ranks.

    Attributes:
        collective: Such as ``"all-reduce"``; ``"send"`` is a message to another rank.
        size_bytes: Buffer size as nccl-tests counts it.
        group: The ranks, None for all; a list of ranks; or how many ranks it has along each dimension.
        count: How many times it runs, one after another.
        background: Whether what follows does not wait for it, as for gradients.
    """

    collective: str
    size_bytes: int
    group: Group | tuple[int, ...] | Ranks | None = None
    count: float = 1
    background: bool = False

    def __post_init__(self) -> None:
        if self.collective not in _MESSAGES:
            close = nearest(self.collective, _MESSAGES)
            hint = f"did you mean {close!r}?" if close else f"use one of {', '.join(_MESSAGES)}"
            raise ValueError(f"there is no collective {self.collective!r}; {hint}")
        if not self.count > 0:
            raise ValueError(f"count must be positive; got {self.count!r}")


@dataclass(frozen=True, slots=True)
class Ranks:
    """A group as its ranks."""

    members: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.members)) < len(self.members):
            raise ValueError("a rank appears twice")


@runtime_checkable
class Timed(Protocol):
    """What can be designed for: it says how long a step takes as a function of the bandwidths."""

    def timing(self, dims: Sequence[Dimension], *, overlap: Overlap) -> Timing:
        """Return the step's time on these dimensions."""


@dataclass(frozen=True)
class TrainingJob:
    """What a step computes and communicates.

    Attributes:
        steps: One thing after another.
        name: For people.
        npus: How many ranks it needs; None if any number will do.

    >>> from tacos.design import dimensions
    >>> step = TrainingJob((Compute(1e-3), Call("all-reduce", 8_000_000)))
    >>> step.timing(dimensions("ring:4*switch:2")).messages.tolist()   # 2 S 3/4, then 2 S/4 1/2
    [[12000000.0, 2000000.0]]
    """

    steps: tuple[Compute | Call, ...]
    name: str = "job"
    npus: int | None = None

    @property
    def compute_s(self) -> float:
        """Seconds of computation."""
        return sum(step.seconds for step in self.steps if isinstance(step, Compute))

    @property
    def calls(self) -> tuple[Call, ...]:
        """The collectives in order."""
        return tuple(step for step in self.steps if isinstance(step, Call))

    def timing(self, dims: Sequence[Dimension], *, overlap: Overlap = "none") -> Timing:
        """Return the step's time as a function of the bandwidths of these dimensions.

        Args:
            dims: Dimensions of a network.
            overlap: ``"none"``: one thing after another, as in LIBRA. ``"background"``: background collectives run one after
                another beside what follows them. ``"full"``: everything overlaps. With overlap no dimension
                is busy for longer than the step takes.

        Raises:
            ValueError: A group does not fit the dimensions.
        """
        npus = prod(one.size for one in dims)
        if self.npus is not None and self.npus != npus:
            raise ValueError(f"{self.name} is for {self.npus} NPUs, the dimensions have {npus}")
        return serial_timing(self.steps, dims, overlap, self.name)


def serial_timing(
    steps: Sequence[Compute | Call],
    dims: Sequence[Dimension],
    overlap: Overlap,
    name: str,
    moved: Callable[[Call], tuple[NDArray[np.float64], float]] | None = None,
) -> Timing:
    """Return the time of steps that run one after another, but for what overlaps.

    Args:
        steps: What runs.
        dims: Dimensions of the network.
        overlap: As in :meth:`TrainingJob.timing`.
        name: For messages.
        moved: Gives the bytes of a call in each dimension, and its latency in seconds; by default :func:`messages`, and none.
    """
    if overlap not in OVERLAPS:
        raise ValueError(f"overlap must be one of {', '.join(OVERLAPS)}; got {overlap!r}")
    known: dict[bytes, int] = {}  # operations whose messages are in the same proportions are one
    rows: list[NDArray[np.float64]] = []
    loads = np.zeros(len(dims))
    trail: list[_Piece] = []
    for step in steps:
        if isinstance(step, Compute):
            trail.append(_Piece(step.seconds))
            continue
        try:
            bytes_, latency = (messages(step, dims), 0.0) if moved is None else moved(step)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        size = float(bytes_.max(initial=0.0))
        if size == 0.0:
            continue
        loads += step.count * bytes_
        unit = bytes_ / size
        k = known.setdefault(unit.round(12).tobytes(), len(rows))
        if k == len(rows):
            rows.append(unit)
        trail.append(_Piece(step.count * latency, k, step.count * size, step.background))
    paths = _paths(trail, len(rows), overlap)
    if overlap != "none":  # no dimension is busy for longer than the step takes
        for d in np.flatnonzero(loads).tolist():
            rows.append(np.eye(len(dims))[d])
            paths.append((0.0, np.append(np.zeros(len(rows) - 1), loads[d])))
    counts = np.zeros((len(paths), len(rows)))
    for row, (_, bytes_) in zip(counts, paths, strict=True):
        row[: len(bytes_)] = bytes_
    # Operations are in bytes of the whole step, so that their times have the size of the step's.
    total = counts.max(axis=0, initial=0.0)
    return Timing(
        np.array(rows).reshape(len(rows), len(dims)) * total[:, None],
        np.array([fixed for fixed, _ in paths]),
        counts / np.maximum(total, 1e-300),
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """Seconds that no bandwidth changes, then `bytes` of an operation."""

    seconds: float
    operation: int = -1
    bytes: float = 0.0
    background: bool = False


def _paths(
    trail: Sequence[_Piece], operations: int, overlap: Overlap
) -> list[tuple[float, NDArray[np.float64]]]:
    """Paths through a step: fixed seconds, and bytes of each operation."""
    if overlap == "full":
        computed = sum(piece.seconds for piece in trail if piece.operation < 0)
        waited = max((piece.seconds for piece in trail if piece.operation >= 0), default=0.0)
        return [(max(computed, waited), np.zeros(operations))]
    fixed, counts = 0.0, np.zeros(operations)
    entered: list[tuple[float, NDArray[np.float64]]] = []  # paths that enter the background
    for piece in trail:
        if piece.background and overlap == "background":
            entered.append((fixed, counts.copy()))
            # Those that are there already wait for this one too.
            for i, (seconds, behind) in enumerate(entered):
                behind[piece.operation] += piece.bytes
                entered[i] = (seconds + piece.seconds, behind)
            continue
        fixed += piece.seconds
        if piece.operation >= 0:
            counts[piece.operation] += piece.bytes
    return [(fixed, counts), *entered]


def elapsed(steps: Sequence[Compute | Call], seconds: Sequence[float], overlap: Overlap) -> float:
    """Return the time of steps whose calls take `seconds` each, in order.

    With overlap, calls run one after another beside what they overlap.

    >>> elapsed([Compute(1.0), Call("all-gather", 8, background=True), Compute(1.0)], [0.5], "background")
    2.0
    """
    times, trail = iter(seconds), []
    for step in steps:
        if isinstance(step, Compute):
            trail.append(_Piece(step.seconds))
        else:
            trail.append(_Piece(0.0, 0, next(times) * step.count, step.background))
    if overlap == "full":
        computed = sum(piece.seconds for piece in trail)
        return max(computed, sum(piece.bytes for piece in trail))
    return max(fixed + float(spent.sum()) for fixed, spent in _paths(trail, 1, overlap))


def messages(call: Call, dims: Sequence[Dimension]) -> NDArray[np.float64]:
    """Return the bytes that one NPU sends in each dimension during a call.

    A reduce-scatter leaves each dimension with the share of what the one inside it was left with; an all-gather is its
    reverse, an all-reduce both. An all-to-all sends ``size (n - 1) / n`` in every dimension.
    """
    rule = _MESSAGES[call.collective]
    ranks = _crossed(call.group, dims) if rule == "pair" else spread(call.group, dims)
    left, found = float(call.size_bytes), np.zeros(len(dims))
    for d, n in enumerate(ranks):
        if n == 1:
            continue
        if rule in ("whole", "pair"):
            found[d] = call.size_bytes
        elif rule == "pairs":
            found[d] = call.size_bytes * (n - 1) / n
        else:
            found[d] = left * (n - 1) / n * (2 if rule == "two passes" else 1)
            left /= n
    return found


def spread(
    group: Group | tuple[int, ...] | Ranks | None, dims: Sequence[Dimension]
) -> tuple[int, ...]:
    """Return how many ranks a group has along each dimension.

    Raises:
        ValueError: The group is not a product of such numbers.

    >>> from tacos.design import dimensions
    >>> network = dimensions("ring:4*fc:8*ring:4*switch:32")
    >>> spread(Group(16), network), spread(Group(256, 16), network)
    ((4, 4, 1, 1), (1, 2, 4, 32))
    """
    sizes = tuple(one.size for one in dims)
    shape = " x ".join(map(str, sizes))
    if group is None:
        return sizes
    if isinstance(group, Ranks):
        return _spread_ranks(group.members, sizes, shape)
    if isinstance(group, tuple):
        if len(group) != len(sizes):
            raise ValueError(
                f"a group has {len(group)} entries, the network {len(sizes)} dimensions"
            )
        for d, (n, size) in enumerate(zip(group, sizes, strict=True)):
            if n > size:
                raise ValueError(f"a group has {n} ranks in dimension {d}, which has {size} NPUs")
        return tuple(max(n, 1) for n in group)
    found, inside, begin, end = [], 1, group.stride, group.stride * group.size
    for size in sizes:
        low, high = max(inside, begin), min(inside * size, end)
        n = high // low if high > low else 1
        if high > low and (high % low or low % inside or (inside * size) % high):
            break
        found.append(n)
        inside *= size
    if prod(found) != group.size or len(found) != len(sizes):
        raise ValueError(
            f"a group of {group.size:,} ranks, {group.stride:,} apart, does not fit dimensions of {shape} NPUs"
        )
    return tuple(found)


def _crossed(group: object, dims: Sequence[Dimension]) -> tuple[int, ...]:
    """Return 2 for the dimensions that a message between two ranks crosses."""
    if isinstance(group, Group):
        group = Ranks((0, group.stride))
    if not isinstance(group, Ranks) or len(group.members) != 2:
        raise ValueError("a send needs a group of two ranks")
    inside, found = 1, []
    for one in dims:
        here, there = (rank // inside % one.size for rank in group.members)
        found.append(1 if here == there else 2)
        inside *= one.size
    return tuple(found)


def _spread_ranks(members: tuple[int, ...], sizes: tuple[int, ...], shape: str) -> tuple[int, ...]:
    ranks, found, inside = np.array(members), [], 1
    for size in sizes:
        found.append(len(np.unique(ranks // inside % size)))
        inside *= size
    if ranks.min() < 0 or ranks.max() >= inside:
        raise ValueError(f"a group has rank {ranks.max()}, the dimensions have {inside} NPUs")
    if prod(found) != len(members):
        raise ValueError(
            f"the group {_shortly(members)} does not fit dimensions of {shape} NPUs: it is not a grid in them"
        )
    return tuple(found)


def _shortly(members: tuple[int, ...]) -> str:
    some = ", ".join(map(str, members[:4]))
    return some + (f", … ({len(members)} ranks)" if len(members) > 4 else "")


# --- where jobs come from ------------------------------------------------------------------------

Work: TypeAlias = "Timed | Workload | str | os.PathLike[str]"


def job(work: Any) -> Timed:
    """Return what can be designed for: a job, a workload, something that has one, or a file.

    Args:
        work: A job or anything with :meth:`Timed.timing`, a `tacos.Workload`, an object whose ``workload`` is one (a training
            step), a job file (``.yaml``, ``.json``), or the prefix of Chakra traces.

    Raises:
        ValueError: It is not one of these.
    """
    if isinstance(work, Timed):
        return work
    inner = getattr(work, "workload", work)
    if isinstance(inner, Workload):
        return from_workload(inner)
    if isinstance(work, str | Path):
        if str(work).lower().endswith((".yaml", ".yml", ".json")):
            return load_job(work)
        from tacos.workload import load

        return from_workload(load(work), name=Path(work).name)
    raise ValueError(f"a workload must be a job, a tacos.Workload or a file; got {quoted(work)}")


class _GroupFields(Struct, forbid_unknown_fields=True):
    size: int
    stride: int = 1


class _StepFields(Struct, forbid_unknown_fields=True):
    compute: int | float | str | None = None
    collective: str | None = None
    size: int | float | str | None = None
    group: Any = None
    count: Annotated[float, Meta(gt=0)] = 1
    background: bool = False


class _JobFields(Struct, forbid_unknown_fields=True):
    steps: list[_StepFields]
    tacos: int = 1
    name: str | None = None
    npus: Annotated[int, Meta(ge=1)] | None = None


def load_job(path: str | os.PathLike[str]) -> TrainingJob:
    """Read a job file.

    ::

        tacos: 1
        name: gpt3
        steps:
          - {compute: 20ms}
          - {collective: all-reduce, size: 805MB, group: 16, count: 8}
          - {collective: all-reduce, size: 453MB, group: {size: 256, stride: 16}, background: true}

    A group is a number of neighbouring ranks, a size with a stride, or a list of ranks; without one it is all ranks.

    Raises:
        FormatError: The file is not a job; the message names field and value.
        OSError: The file cannot be opened.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "job.yaml")
    ...     _ = file.write_text("tacos: 1\\nsteps: [{collective: all-reduce, size: 64MB, count: 3}]")
    ...     load_job(file).calls
    (Call(collective='all-reduce', size_bytes=64000000, group=None, count=3, background=False),)
    """
    with about(str(path)):
        data = markup.load(path)
        if not isinstance(data, dict) or "steps" not in data:
            raise ValueError("a job needs the field steps, a list of computations and collectives")
        fields = fields_of(data, _JobFields)
        if fields.tacos != 1:
            raise ValueError(f"tacos is {fields.tacos}; this program understands version 1")
        if not fields.steps:
            raise ValueError("steps is empty; a job computes or communicates something")
        steps = tuple(_step(step, f"steps[{i}]") for i, step in enumerate(fields.steps))
        return TrainingJob(steps, fields.name or Path(path).stem, fields.npus)


def _step(given: Any, place: str) -> Compute | Call:
    if (given.compute is None) == (given.collective is None):
        raise ValueError(f"{place} must have either compute or collective")
    if given.compute is not None:
        return Compute(units.time_ps(given.compute, what=f"{place}.compute", bare=False) / 1e12)
    if given.size is None:
        raise ValueError(f"{place} has no size")
    name = str(given.collective).lower().replace("_", "-")
    if name not in _MESSAGES:
        close = nearest(name, _MESSAGES)
        hint = f"did you mean {close}?" if close else f"use one of {', '.join(_MESSAGES)}"
        raise ValueError(f"{place}.collective is {given.collective!r}; {hint}")
    count = int(given.count) if float(given.count).is_integer() else given.count
    size = units.size_bytes(given.size, what=f"{place}.size")
    return Call(name, size, _group(given.group, f"{place}.group"), count, given.background)


def _group(given: Any, place: str) -> Group | Ranks | None:
    try:
        if given is None or given == "all":
            return None
        if isinstance(given, int) and not isinstance(given, bool):
            return Group(given)
        if isinstance(given, dict):
            fields = fields_of(given, _GroupFields)
            return Group(fields.size, fields.stride)
        if isinstance(given, list) and given and all(type(rank) is int for rank in given):
            return Ranks(tuple(given))
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    raise ValueError(
        f"{place} is {quoted(given)}; use a number of ranks, {{size: 8, stride: 16}} or a list of ranks"
    )


_LABELS = {
    COMMS["all_reduce"]: "all-reduce",
    COMMS["reduce"]: "reduce",
    COMMS["all_gather"]: "all-gather",
    COMMS["gather"]: "gather",
    COMMS["scatter"]: "scatter",
    COMMS["broadcast"]: "broadcast",
    COMMS["all_to_all"]: "all-to-all",
    COMMS["reduce_scatter"]: "reduce-scatter",
    COMMS["reduce_scatter_block"]: "reduce-scatter",
}


@dataclass(frozen=True)
class _Ranks:
    """A workload: what each rank does. The slowest rank counts."""

    jobs: tuple[TrainingJob, ...]
    name: str
    npus: int

    def timing(self, dims: Sequence[Dimension], *, overlap: Overlap = "none") -> Timing:
        if prod(one.size for one in dims) != self.npus:
            total = prod(one.size for one in dims)
            raise ValueError(f"{self.name} is for {self.npus} NPUs, the dimensions have {total}")
        parts = [serial_timing(one.steps, dims, overlap, self.name) for one in self.jobs]
        rows = sum(len(part.messages) for part in parts)
        counts, first = np.zeros((sum(len(part.fixed) for part in parts), rows)), [0, 0]
        for part in parts:
            high, wide = part.counts.shape
            counts[first[0] : first[0] + high, first[1] : first[1] + wide] = part.counts
            first = [first[0] + high, first[1] + wide]
        return Timing(
            np.concatenate([part.messages for part in parts]),
            np.concatenate([part.fixed for part in parts]),
            counts,
        )


def from_workload(workload: Workload, *, name: str = "workload") -> Timed:
    """Return the time of a workload as a function of bandwidths: each rank does its nodes in order, the slowest counts.

    Computations count with their durations. Ranks that do the same are counted once. A collective of a group that no other
    node of the rank waits for runs in the background.

    Raises:
        ValueError: A computation has no duration.

    >>> import tacos
    >>> from tacos.design import dimensions
    >>> step = from_workload(tacos.workload.collective(8, "all_reduce", "8MB"))
    >>> step.timing(dimensions("ring:4*switch:2"), overlap="none").messages.tolist()
    [[12000000.0, 2000000.0]]
    """
    kinds, rank = workload.kind, workload.rank
    lacking = (kinds == COMP) & (workload.duration_ps == 0) & (workload.flops > 0)
    if lacking.any():
        node = int(np.flatnonzero(lacking)[0])
        raise ValueError(
            f"{name}: node {int(workload.id[node])} of rank {int(rank[node])} has operations but no duration; "
            "give computations their durations first"
        )
    groups = {number: tuple(members) for number, members in workload.groups}
    awaited = np.zeros(workload.nodes, bool)
    awaited[np.asarray(workload.dep)] = True
    begin = np.searchsorted(rank, np.arange(workload.npus + 1))
    seen: dict[Any, TrainingJob] = {}
    columns = {
        column: getattr(workload, column).tolist()
        for column in ("kind", "bytes", "duration_ps", "comm", "group", "peer")
    }
    if (workload.dims[kinds == COLL] != EVERY_DIM).any():
        raise ValueError(
            f"{name}: a collective names the dimensions it uses; give it a group instead"
        )
    for r in range(workload.npus):
        steps: list[Compute | Call] = []
        for node in range(begin[r], begin[r + 1]):
            kind, size = columns["kind"][node], columns["bytes"][node]
            if kind == COMP:
                steps.append(Compute(columns["duration_ps"][node] / 1e12))
            elif kind == COLL and columns["comm"][node] in _LABELS:
                label, group = _LABELS[columns["comm"][node]], columns["group"][node]
                ranks = groups[group] if group else None
                members = len(ranks) if ranks else workload.npus
                total = size * (members if label == "all-gather" else 1)
                shape = None if ranks is None else Ranks(ranks)
                steps.append(Call(label, total, shape, 1, not awaited[node]))
            elif kind == RECV:  # a message takes its time where it is waited for
                pair = Ranks(tuple(sorted((r, columns["peer"][node]))))
                steps.append(Call("send", size, pair))
        key = tuple(_folded(step) for step in steps)
        seen.setdefault(key, TrainingJob(tuple(_joined(steps)), name))
    return _Ranks(tuple(seen.values()), name, workload.npus)


def _folded(step: Compute | Call) -> Any:
    """Return a key that is equal for equivalent steps of different ranks: groups count by the distances between members."""
    if isinstance(step, Compute):
        return step.seconds
    members = step.group.members if isinstance(step.group, Ranks) else ()
    shape = tuple(np.diff(members).tolist())
    return step.collective, step.size_bytes, len(members), shape, step.background


def _joined(steps: Iterable[Compute | Call]) -> list[Compute | Call]:
    """Merge consecutive computations."""
    found: list[Compute | Call] = []
    for step in steps:
        if isinstance(step, Compute) and found and isinstance(found[-1], Compute):
            found[-1] = Compute(found[-1].seconds + step.seconds)
        else:
            found.append(step)
    return found
