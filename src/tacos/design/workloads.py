"""Where jobs come from: job files, workloads and traces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias

import numpy as np
from msgspec import Meta, Struct, field

from tacos import units
from tacos._core import Workload
from tacos.design.convex import Timing
from tacos.design.jobs import (
    MESSAGES,
    Call,
    Compute,
    Group,
    Ranks,
    Timed,
    TrainingJob,
    serial_timing,
)
from tacos.design.models import ModelJob
from tacos.errors import FormatError, nearest
from tacos.formats import markup
from tacos.formats.source import about, fields_of, quoted
from tacos.workload import COLL, COMMS, COMP, EVERY_DIM, RECV

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tacos.design.dimensions import Dimension
    from tacos.design.jobs import Overlap

__all__ = ["from_workload", "job", "jobs_of", "load_job"]


class HasWorkload(Protocol):
    """An object with a workload, such as a training step."""

    @property
    def workload(self) -> Workload:
        """The workload."""


Work: TypeAlias = "Timed | HasWorkload | Workload | str | os.PathLike[str]"
"""What can be designed for; see `job`."""


def job(work: Work) -> Timed:
    """Return what can be designed for: a job, a workload, something that has one, or a file.

    Args:
        work: A job or anything with :meth:`~tacos.design.jobs.Timed.timing`, a `tacos.Workload`, an object whose ``workload`` is one (a training
            step), a job file (``.yaml``, ``.json``), or the prefix of Chakra traces.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(work, Timed):
        return work
    inner = getattr(work, "workload", work)
    if isinstance(inner, Workload):
        return from_workload(inner)
    if isinstance(work, str | Path):
        if str(work).lower().endswith((".yaml", ".yml", ".json")):
            return load_job(work)
        if Path(work).is_dir() and not Path(f"{work}.0.et").exists():
            raise FormatError(
                f"{work}: is a directory; expected a job file (.yaml, .json) or the prefix of Chakra traces"
            )
        from tacos.workload import load

        return from_workload(load(work), name=Path(work).name)
    raise ValueError(f"a workload must be a job, a tacos.Workload or a file; got {quoted(work)}")


def jobs_of(workloads: Work | Iterable[Work]) -> list[Timed]:
    """Return what :func:`job` makes of one workload or of each of several."""
    if isinstance(workloads, Iterable) and not isinstance(workloads, Timed | Workload | str):
        found = [job(one) for one in workloads]
    else:
        found = [job(workloads)]
    if not found:
        raise ValueError("workloads is empty; give at least one job")
    return found


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


class _ModelFields(Struct, forbid_unknown_fields=True):
    model: str
    parallel: dict[str, Any] = field(default_factory=dict)
    device: str = "h100"
    dtype: str = "bf16"
    tacos: int = 1


def load_job(path: str | os.PathLike[str]) -> TrainingJob | ModelJob:
    """Read a job file.

    ::

        tacos: 1
        name: gpt3
        steps:
          - {compute: 20ms}
          - {collective: all-reduce, size: 805MB, group: 16, count: 8}
          - {collective: all-reduce, size: 453MB, group: {size: 256, stride: 16}, background: true}

    A group is a number of neighbouring ranks, a size with a stride, or a list of ranks; without one it is all ranks.

    A file may name a model instead, with the fields of :class:`~tacos.training.parallelism.Parallelism`; a model of your own is a file beside it::

        tacos: 1
        model: llama3-8b
        parallel: {tp: 8, zero: 1, batch: 64}
        device: h100
        dtype: bf16

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
        if isinstance(data, dict) and "model" in data:
            return _model_job(fields_of(data, _ModelFields), Path(path).parent)
        if not isinstance(data, dict) or "steps" not in data:
            raise ValueError(
                "a job needs the field steps, a list of computations and collectives, or the field model"
            )
        asked = fields_of(data, _JobFields)
        if asked.tacos != 1:
            raise ValueError(f"tacos is {asked.tacos}; this program understands version 1")
        if not asked.steps:
            raise ValueError("steps is empty; a job computes or communicates something")
        steps = tuple(_step(step, f"steps[{i}]") for i, step in enumerate(asked.steps))
        return TrainingJob(steps, asked.name or Path(path).stem, asked.npus)


def _model_job(given: _ModelFields, folder: Path) -> ModelJob:
    from tacos.training import Parallelism, model
    from tacos.training.devices import device

    if given.tacos != 1:
        raise ValueError(f"tacos is {given.tacos}; this program understands version 1")
    known = [one.name for one in fields(Parallelism)]
    for name in given.parallel:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close}?" if close else f"use {', '.join(known)}"
            raise ValueError(f"parallel.{name} is unknown; {hint}")
    beside = folder / given.model
    found = model(beside if beside.is_file() else given.model)
    table = device(given.device)
    if given.dtype not in table.peak:
        raise ValueError(f"dtype is {given.dtype!r}; a {table.name} has {', '.join(table.peak)}")
    try:
        parallel = fields_of(given.parallel, Parallelism)
    except ValueError as error:
        raise ValueError(f"parallel: {error}") from None
    return ModelJob(found, parallel, given.device, given.dtype)


def _step(given: Any, place: str) -> Compute | Call:
    if (given.compute is None) == (given.collective is None):
        raise ValueError(f"{place} must have either compute or collective")
    if given.compute is not None:
        return Compute(units.time_ps(given.compute, what=f"{place}.compute", bare=False) / 1e12)
    if given.size is None:
        raise ValueError(f"{place} has no size")
    name = str(given.collective).lower().replace("_", "-")
    if name not in MESSAGES:
        close = nearest(name, MESSAGES)
        hint = f"did you mean {close}?" if close else f"use one of {', '.join(MESSAGES)}"
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
class _RankJobs:
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
    return _RankJobs(tuple(seen.values()), name, workload.npus)


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
