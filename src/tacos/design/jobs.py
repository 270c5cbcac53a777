"""Jobs: the computations and collectives of a training step, in order.

A job is a list of steps: computations, and collectives with their sizes, groups and counts. It is independent of a network.
:meth:`TrainingJob.timing` maps it to the dimensions of a network: a collective moves ``m[d]`` bytes per NPU in dimension d, in all
dimensions at once, and takes ``max_d m[d] / bandwidth[d]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

from tacos.design.convex import Timing
from tacos.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tacos.design.dimensions import Dimension

__all__ = [
    "Call",
    "Compute",
    "Group",
    "Ranks",
    "Timed",
    "TrainingJob",
]

Overlap: TypeAlias = Literal["none", "background", "full"]
OVERLAPS: tuple[Overlap, ...] = ("none", "background", "full")

MESSAGES = {
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
        group: A group; None for all ranks; a list of ranks; or the number of ranks along each dimension.
        count: Number of repetitions, one after another.
        background: Whether later steps do not wait for it, as for gradients.
    """

    collective: str
    size_bytes: int
    group: Group | tuple[int, ...] | Ranks | None = None
    count: float = 1
    background: bool = False

    def __post_init__(self) -> None:
        if self.collective not in MESSAGES:
            close = nearest(self.collective, MESSAGES)
            hint = f"did you mean {close!r}?" if close else f"use one of {', '.join(MESSAGES)}"
            raise ValueError(f"there is no collective {self.collective!r}; {hint}")
        if not self.count > 0:
            raise ValueError(f"count must be positive; got {self.count!r}")


@dataclass(frozen=True, slots=True)
class Ranks:
    """A group given by its ranks."""

    members: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(set(self.members)) < len(self.members):
            raise ValueError("a rank appears twice")


@runtime_checkable
class Timed(Protocol):
    """An object to design for: it returns the time of a step as a function of the bandwidths."""

    def timing(self, dims: Sequence[Dimension], *, overlap: Overlap) -> Timing:
        """Return the step's time on these dimensions."""


@dataclass(frozen=True)
class TrainingJob:
    """The computations and collectives of a training step.

    Attributes:
        steps: Computations and collectives in order.
        name: A name for people.
        npus: Number of ranks that it needs; None for any number.

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
            overlap: ``"none"``: one step after another, as in LIBRA. ``"background"``: background collectives run one after
                another, while later steps run. ``"full"``: everything overlaps. With overlap, no dimension
                is busy for longer than the whole step.

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
    """Return the time of steps that run one after another, except for those that overlap.

    Args:
        steps: Computations and collectives.
        dims: Dimensions of the network.
        overlap: As in :meth:`TrainingJob.timing`.
        name: Name for messages.
        moved: Returns the bytes of a call in each dimension, and its latency in seconds; by default :func:`messages`, without
            latency.
    """
    if overlap not in OVERLAPS:
        raise ValueError(f"overlap must be one of {', '.join(OVERLAPS)}; got {overlap!r}")
    known: dict[bytes, int] = {}  # operations with proportional messages are merged
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
    # Operations have the bytes of the whole step, so that their times have the same order of magnitude as the step's.
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
    """Return the paths through a step: fixed seconds, and bytes of each operation."""
    if overlap == "full":
        computed = sum(piece.seconds for piece in trail if piece.operation < 0)
        waited = max((piece.seconds for piece in trail if piece.operation >= 0), default=0.0)
        return [(max(computed, waited), np.zeros(operations))]
    fixed, counts = 0.0, np.zeros(operations)
    entered: list[tuple[float, NDArray[np.float64]]] = []  # paths that enter the background
    for piece in trail:
        if piece.background and overlap == "background":
            entered.append((fixed, counts.copy()))
            # Earlier background paths continue with this one too.
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

    With overlap, calls run one after another, concurrently with the steps that they overlap.

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

    In a reduce-scatter, each dimension works on the share that the dimension inside it leaves. An all-gather is the
    reverse, an all-reduce is both. An all-to-all sends ``size (n - 1) / n`` in every dimension.
    """
    rule = MESSAGES[call.collective]
    ranks = crossed(call.group, dims) if rule == "pair" else spread(call.group, dims)
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
    """Return the number of ranks of a group along each dimension.

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


def crossed(group: object, dims: Sequence[Dimension]) -> tuple[int, ...]:
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


def strides_of(group: Group | None, sizes: Sequence[int]) -> list[int]:
    """Return the stride of a group's ranks within each dimension."""
    stride, inside, found = 1 if group is None else group.stride, 1, []
    for size in sizes:
        found.append(max(inside, stride) // inside)
        inside *= size
    return found
