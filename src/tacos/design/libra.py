"""LIBRA's files: workloads and communicators. Its networks and prices are in :mod:`tacos.design.dimensions`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacos.design.jobs import Call, Compute, TrainingJob
from tacos.formats import markup
from tacos.formats.source import about, quoted, text_of

if TYPE_CHECKING:
    import os

__all__ = ["libra"]

_TYPES = {
    "NONE": None,
    "ALLREDUCE": "all-reduce",
    "ALLGATHER": "all-gather",
    "REDUCESCATTER": "reduce-scatter",
    "ALLTOALL": "all-to-all",
}
_PHASES = ("Forward", "InputGrad", "WeightGrad")


def libra(workload: str | os.PathLike[str], communicator: str | os.PathLike[str]) -> TrainingJob:
    """Read a workload of LIBRA with its communicators.

    A line of the workload is a layer: its name, a number that is ignored, duration in ns, collective and bytes of the forward,
    input-gradient and weight-gradient phase, and an update time that LIBRA does not count. Bytes of an all-gather
    are one NPU's part. The communicators give the number of ranks of each phase's collectives in each dimension, -1 for none.
    Collectives of weight gradients are in the background.

    Raises:
        FormatError: A file is not LIBRA's; the message names line or field.
        OSError: A file cannot be opened.
    """
    groups = _communicator(Path(communicator))
    path = Path(workload)
    with about(path):
        layers = [
            _layer(line.split(), f"line {number}")
            for number, line in enumerate(text_of(path).splitlines(), 1)
            if line.strip()
        ]
        steps: list[Compute | Call] = []
        for layer in layers:
            steps += _phase(layer[0], groups, 0)
        for layer in reversed(layers):
            steps += [*_phase(layer[1], groups, 1), *_phase(layer[2], groups, 2)]
        return TrainingJob(tuple(steps), path.stem)


def _phase(
    phase: tuple[float, str | None, int], groups: list[tuple[int, ...]], which: int
) -> list[Compute | Call]:
    seconds, collective, size = phase
    found: list[Compute | Call] = [Compute(seconds)]
    if collective is not None and size:
        ranks = 1
        for n in groups[which]:
            ranks *= max(n, 1)
        total = size * (ranks if collective == "all-gather" else 1)
        found.append(Call(collective, total, groups[which], background=which == 2))
    return found


def _layer(words: list[str], place: str) -> list[tuple[float, str | None, int]]:
    if len(words) != 12:
        raise ValueError(
            f"{place} has {len(words)} columns; LIBRA's workloads have 12: name, -1, three times ns, "
            "collective and bytes, and an update time"
        )
    phases = []
    for p, name in enumerate(_PHASES):
        ns, kind, size = words[2 + 3 * p : 5 + 3 * p]
        if kind.upper() not in _TYPES:
            raise ValueError(
                f"{place}: the collective of {name} is {quoted(kind)}; use one of {', '.join(_TYPES)}"
            )
        for what, text in (("duration", ns), ("size", size)):
            if not text.isdecimal():
                raise ValueError(
                    f"{place}: the {what} of {name} is {quoted(text)}; it must be a whole number"
                )
        phases.append((int(ns) / 1e9, _TYPES[kind.upper()], int(size)))
    return phases


def _communicator(path: Path) -> list[tuple[int, ...]]:
    with about(path):
        data: Any = markup.load(path)
        if not isinstance(data, dict) or set(data) != set(_PHASES):
            raise ValueError(f"the fields must be {', '.join(_PHASES)}")
        for name in _PHASES:
            value = data[name]
            if not isinstance(value, list) or not value or not all(type(n) is int for n in value):
                raise ValueError(
                    f"{name} is {quoted(value)}; it must be a list of whole numbers, -1 for a dimension not used"
                )
            if len(value) != len(data[_PHASES[0]]):
                raise ValueError(
                    f"{name} has {len(value)} entries, {_PHASES[0]} {len(data[_PHASES[0]])}"
                )
        return [tuple(n if n > 0 else 1 for n in data[name]) for name in _PHASES]
