"""Plan directories: which algorithm serves which call.

A plan directory holds schedules and ``plans.json``, which lists the calls that each schedule serves: a
collective, the NPUs that take part, and a range of sizes. :class:`Plans` reads one and chooses;
:func:`add` puts a schedule into one. A schedule serves every size in its range, since the executor
scales its chunks.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import re
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct

from tacos import formats
from tacos._core import Schedule
from tacos._support.files import replacing_all
from tacos.collective import NAMED, kind_of, parse
from tacos.errors import FormatError
from tacos.units import format_size

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tacos._core import Collective, Topology

__all__ = [
    "FILE",
    "VERSION",
    "Choice",
    "Plan",
    "Plans",
    "add",
    "describe",
    "described",
    "difference",
    "fingerprint",
    "packed",
    "replace",
    "schema",
    "unpacked",
]

FILE = "plans.json"
"""The file in a plan directory that lists the plans."""
VERSION = 1
_Npu = Annotated[int, Meta(ge=0)]


class Plan(Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """The calls that one schedule serves."""

    collective: Annotated[str, Meta(description='Such as "all_reduce".')]
    topology: Annotated[str, Meta(description="Fingerprint of the network it was made for.")]
    npus: Annotated[int, Meta(ge=1, description="Number of NPUs of that network.")]
    size_bytes: Annotated[int, Meta(ge=1, description="The size it was made for.")]
    file: Annotated[str, Meta(description="The schedule's file, in the same directory.")]
    members: Annotated[list[_Npu], Meta(description="NPUs in rank order; null: all.")] | None = None
    root: Annotated[int, Meta(ge=0, description="Root NPU of a rooted collective.")] | None = None
    min_bytes: Annotated[int, Meta(ge=0, description="Smallest size it serves.")] = 0
    max_bytes: Annotated[int, Meta(ge=0, description="Largest; null: no limit.")] | None = None
    in_place: (
        Annotated[
            bool,
            Meta(description="Whether it serves in-place or out-of-place calls only; null: both."),
        ]
        | None
    ) = None

    @property
    def group(self) -> tuple[int, ...]:
        """The NPUs that take part, in rank order."""
        return tuple(range(self.npus)) if self.members is None else tuple(self.members)


class File(Struct, forbid_unknown_fields=True):
    """The content of ``plans.json``."""

    tacos_plans: Annotated[int, Meta(ge=1, le=VERSION, description="Version of the format.")]
    plans: list[Plan] = []


class Choice(NamedTuple):
    """A plan and the reason for it, or None and the reason why there is none."""

    plan: Plan | None
    reason: str


def schema() -> dict[str, Any]:
    """Return the JSON Schema of ``plans.json``, for editors and other programs.

    >>> schema()["$ref"]
    '#/$defs/File'
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "TACOS plan directory",
        **msgspec.json.schema(File),
    }


def fingerprint(topology: Topology) -> str:
    """Return a short digest of a network; node names do not affect it.

    >>> import tacos
    >>> fingerprint(tacos.topology.ring(4)) == fingerprint(tacos.topology.torus(4))
    True
    >>> fingerprint(tacos.topology.ring(4)) == fingerprint(tacos.topology.ring(5))
    False
    """
    model = (
        topology.link_model,
        topology.forwarding,
        topology.routing,
        topology.reduce_bandwidth_Bps,
    )
    digest = hashlib.sha256(repr((topology.npus, topology.switches, *model)).encode())
    for column in (
        topology.switch_capabilities,
        topology.link_src,
        topology.link_dst,
        topology.link_latency_ps,
        topology.link_bandwidth_Bps,
    ):
        digest.update(np.asarray(column).astype("<i8").tobytes())
    return digest.hexdigest()[:16]


class Plans:
    """The plans of a directory.

    >>> import tempfile, tacos
    >>> topo = tacos.topology.ring(4)
    >>> ring = tacos.synthesize(topo, tacos.collective.all_reduce(topo, "1MB"), engine="ring")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = add(folder, ring, min_bytes=1000)
    ...     plans = Plans.load(folder)
    ...     plans.choose("all_reduce", range(4), 4096).reason
    ...     plans.choose("all_reduce", range(4), 64).reason
    'all_reduce-1MB-711f14f4.tacos, made for 1 MB'
    'no plan for all-reduce of 64 B among 4 NPUs: there are plans for 1000 B or more'
    """

    def __init__(self, folder: Path, plans: Sequence[Plan]) -> None:
        self.folder = folder
        self.plans = tuple(plans)
        self._schedules: dict[str, Schedule] = {}

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Plans:
        """Read ``plans.json``; schedules are read on demand.

        Raises:
            FormatError: ``plans.json`` is missing or malformed, or names a file that does not exist.
        """
        directory = Path(folder)
        plans = _read(directory / FILE).plans
        for plan in plans:
            if not (directory / plan.file).is_file():
                raise FormatError(f"{directory / FILE}: file is {plan.file}, which does not exist")
        return cls(directory, plans)

    def for_npus(self, npus: int) -> Plans:
        """Return the plans for the only network with this number of NPUs.

        Raises:
            FormatError: No network in the directory, or more than one, has this number of NPUs.
        """
        fitting = [plan for plan in self.plans if plan.npus == npus]
        if self.plans and not fitting:
            others = sorted({plan.npus for plan in self.plans})
            raise FormatError(
                f"{self.folder / FILE}: the plans are for {_listed(others)} NPUs, not for {npus}"
            )
        networks = sorted({plan.topology for plan in fitting})
        if len(networks) > 1:
            raise FormatError(
                f"{self.folder / FILE}: the plans are for {len(networks)} networks of {npus} NPUs "
                f"({', '.join(networks)}); set TACOS_TOPOLOGY to the network of this job"
            )
        return Plans(self.folder, fitting)

    def on(self, topology: Topology) -> Plans:
        """Return the plans for one network.

        Raises:
            FormatError: All plans are for other networks.
        """
        wanted = fingerprint(topology)
        fitting = [plan for plan in self.plans if plan.topology == wanted]
        if self.plans and not fitting:
            raise FormatError(
                f"{self.folder / FILE}: the plans are for the network "
                f"{_listed(sorted({plan.topology for plan in self.plans}))}, not for {wanted}"
            )
        return Plans(self.folder, fitting)

    @cached_property
    def digest(self) -> str:
        """A short digest of the bytes of all files."""
        digest = hashlib.sha256(msgspec.json.encode(self.plans))
        for name in sorted({plan.file for plan in self.plans}):
            with (self.folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()[:16]

    def check(self) -> None:
        """Read every schedule, so that a broken file is found now and not in the middle of a run.

        Raises:
            FormatError: A file is corrupt, or contradicts ``plans.json``.
        """
        for plan in self.plans:
            self.schedule(plan)

    def schedule(self, plan: Plan) -> Schedule:
        """Return the schedule of a plan, read once.

        Raises:
            FormatError: The file is corrupt, or contradicts ``plans.json``.
        """
        if plan.file not in self._schedules:
            self._schedules[plan.file] = self._read(plan)
        return self._schedules[plan.file]

    def _read(self, plan: Plan) -> Schedule:
        path = self.folder / plan.file
        loaded = formats.load(path)
        if not isinstance(loaded, Schedule):
            raise FormatError(f"{path}: not a schedule; a plan needs one")
        if other := difference(loaded, plan):
            raise FormatError(f"{path}: {other} as {FILE} says")
        return loaded

    def choose(
        self,
        collective: str,
        members: Sequence[int],
        size_bytes: int,
        in_place: bool = False,
        root: int | None = None,
    ) -> Choice:
        """Return the plan for a call, or why there is none.

        If several ranges contain the size, the plan made for the nearest size (by ratio) is chosen; on a tie,
        the last.

        Args:
            collective: Such as ``"all_reduce"``.
            members: NPUs that take part, in rank order.
            size_bytes: Size of the buffer, as nccl-tests counts it.
            in_place: Whether input and output are the same memory.
            root: The root NPU, if the collective has one.
        """
        group, wanted = tuple(members), parse(collective)
        kind = [plan for plan in self.plans if plan.collective == wanted.name]
        mine = [plan for plan in kind if sorted(plan.group) == sorted(group)]
        mine = [plan for plan in mine if plan.group == group] or mine
        what = f"no plan for {wanted.label} of {size_bytes} B among {len(group)} NPUs"
        if not mine:
            known = "another group" if kind else "other collectives"
            return Choice(None, f"{what}: there are only plans for {known}")
        rooted = [plan for plan in mine if plan.root == root]
        if not rooted:
            return Choice(None, f"{what} with root {root}: there are plans with other roots")
        placed = [plan for plan in rooted if plan.in_place in (None, in_place)]
        if not placed:
            return Choice(
                None, f"{what}: there are only plans {'out of' if in_place else 'in'} place"
            )
        fitting = [plan for plan in placed if _holds(plan, size_bytes)]
        if not fitting:
            ranges = ", ".join(dict.fromkeys(_range(plan) for plan in placed))
            return Choice(None, f"{what}: there are plans for {ranges}")
        best = min(
            reversed(fitting),
            key=lambda plan: abs(math.log(plan.size_bytes) - math.log(max(size_bytes, 1))),
        )
        return Choice(best, f"{best.file}, made for {format_size(best.size_bytes)}")


def add(
    folder: str | os.PathLike[str],
    schedule: Schedule,
    *,
    min_bytes: int = 0,
    max_bytes: int | None = None,
    in_place: bool | None = None,
) -> Plan:
    """Add a schedule to a plan directory, which is created if necessary.

    A plan for the same collective, group, network and size is replaced. A process that reads the directory
    at the same time sees either the old plans or the new ones.

    Raises:
        FormatError: The directory's ``plans.json`` is broken, or cannot be written.
        ValueError: The schedule is for several collectives or a custom one, or a range is empty.
    """
    plan, data = _entry(schedule, min_bytes, max_bytes, in_place)
    _change(folder, lambda old: [*(one for one in old if one.file != plan.file), plan], data)
    return plan


def replace(
    folder: str | os.PathLike[str],
    served: Sequence[tuple[Schedule, int, int | None]],
    *,
    in_place: bool | None = None,
    beside: Mapping[str, bytes] | None = None,
) -> list[Plan]:
    """Replace all plans for the same calls by new schedules.

    These are the plans for the same collective, group, root and network, of any size. Either all files are
    written or none.

    Args:
        folder: The plan directory, which is created if necessary.
        served: Schedules, each with the smallest and largest size that it serves.
        in_place: As for :func:`add`.
        beside: Other files to write to the directory, by name.

    Raises:
        FormatError: The directory's ``plans.json`` is broken, or cannot be written.
        ValueError: A schedule is for several collectives or a custom one, or a range is empty.
    """
    plans: list[Plan] = []
    files = dict(beside or {})
    for schedule, low, high in served:
        plan, data = _entry(schedule, low, high, in_place)
        plans.append(plan)
        files |= data

    def served_calls(plan: Plan) -> Any:
        return plan.collective, plan.topology, plan.group, plan.root, plan.in_place

    calls = {served_calls(plan) for plan in plans}
    _change(folder, lambda old: [*(p for p in old if served_calls(p) not in calls), *plans], files)
    return plans


def _entry(
    schedule: Schedule, min_bytes: int, max_bytes: int | None, in_place: bool | None
) -> tuple[Plan, dict[str, bytes]]:
    """Return a plan and the file that it names."""
    if min_bytes < 0:
        raise ValueError(f"min_bytes is {min_bytes}; it must not be negative")
    if max_bytes is not None and max_bytes < min_bytes:
        raise ValueError(f"max_bytes is {max_bytes}, below min_bytes, which is {min_bytes}")
    bare = describe(schedule, "")
    key = msgspec.json.encode((bare, in_place))
    size = format_size(bare.size_bytes).replace(" ", "")
    name = f"{bare.collective}-{size}-{hashlib.sha256(key).hexdigest()[:8]}.tacos"
    plan = msgspec.structs.replace(
        bare, file=name, min_bytes=min_bytes, max_bytes=max_bytes, in_place=in_place
    )
    return plan, {name: packed(schedule)}


def _change(
    folder: str | os.PathLike[str],
    change: Callable[[list[Plan]], list[Plan]],
    files: Mapping[str, bytes],
) -> None:
    """Write files, then the new list of plans."""
    directory = Path(folder)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(f"{directory}: {error.strerror}") from None
    with locked(directory / f".{FILE}.lock"):
        path = directory / FILE
        old = _read(path).plans if path.exists() else []
        text = json.dumps(msgspec.to_builtins(File(VERSION, change(old))), indent=2)
        with replacing_all() as put:
            for name, data in files.items():
                put(directory / name, data)
            put(path, f"{text}\n".encode())


def packed(schedule: Schedule) -> bytes:
    """Return a schedule as the bytes of its file."""
    data = BytesIO()
    formats.save(schedule, data, format="tacos")
    return data.getvalue()


def unpacked(data: bytes, name: str = "schedule.tacos") -> Schedule:
    """Return the schedule in a file's bytes; errors refer to the file by `name`.

    Raises:
        FormatError: The bytes are not a schedule.

    >>> unpacked(b"hello")
    Traceback (most recent call last):
    tacos.errors.FormatError: schedule.tacos: not a .tacos file: it lacks the signature
    """
    source = BytesIO(data)
    source.name = name
    return formats.load(source, kind=Schedule, format="tacos")


def difference(schedule: Schedule, plan: Plan) -> str:
    """Return the first difference between a plan and its schedule in words; empty if there is none.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> ring = tacos.synthesize(topo, tacos.collective.all_gather(topo, "1MB"), engine="ring")
    >>> difference(ring, described(tacos.collective.all_reduce(topo, "1MB"), topo, ""))
    "collective is 'all_gather', not 'all_reduce'"
    """
    try:
        held = describe(schedule, plan.file)
    except ValueError as error:
        return str(error)
    for field in ("collective", "topology", "npus", "size_bytes", "group", "root"):
        found, said = getattr(held, field), getattr(plan, field)
        if found != said:
            return f"{field} is {found!r}, not {said!r}"
    return ""


def describe(schedule: Schedule, file: str) -> Plan:
    """Return the plan of a schedule, without a size range.

    Raises:
        ValueError: The schedule is not for one named collective.
    """
    return described(schedule.collective, schedule.topology, file)


def described(collective: Collective, topology: Topology, file: str) -> Plan:
    """Return the plan of a schedule for a collective, without a size range.

    Raises:
        ValueError: It is not a single named collective.
    """
    parts = collective.parts
    if len(parts) != 1 or not kind_of(parts[0]).even:
        raise ValueError(f"a plan must be for one of {', '.join(NAMED)}; got {collective!r}")
    part = parts[0]
    group = part.group.tolist()
    return Plan(
        collective=part.kind,
        topology=fingerprint(topology),
        npus=topology.npus,
        size_bytes=part.size,
        file=file,
        members=None if group == list(range(topology.npus)) else group,
        root=None if part.root < 0 else group[part.root],
    )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes; it is released if the process dies.

    Raises:
        FormatError: The lock file cannot be created.
    """
    try:
        file = path.open("wb")
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(path: Path) -> File:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from None
    try:
        data = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{path}: not JSON: {error}") from None
    except RecursionError:
        raise FormatError(f"{path}: the file is nested too deeply") from None
    version = data.get("tacos_plans") if isinstance(data, dict) else None
    if version is None:
        raise FormatError(f"{path}: the field tacos_plans is missing; it must be {VERSION}")
    if version != VERSION:
        raise FormatError(
            f"{path}: tacos_plans is {version!r}; this version of tacos reads {VERSION}"
        )
    try:
        file = msgspec.convert(data, File)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        raise FormatError(f"{path}: {place.rstrip('`')}: {message}") from None
    for plan in file.plans:
        if plan.collective not in NAMED:
            allowed = ", ".join(NAMED)
            raise FormatError(
                f"{path}: collective is {plan.collective!r}; it must be one of {allowed}"
            )
        if not re.fullmatch(r"[^/\\]+", plan.file) or plan.file in (".", ".."):
            raise FormatError(
                f"{path}: file is {plan.file!r}; it must be a name in the same directory"
            )
    return file


def _holds(plan: Plan, size_bytes: int) -> bool:
    return plan.min_bytes <= size_bytes and (plan.max_bytes is None or size_bytes <= plan.max_bytes)


def _range(plan: Plan) -> str:
    if plan.max_bytes is None:
        return f"{plan.min_bytes} B or more"
    return f"{plan.min_bytes} B to {plan.max_bytes} B"


def _listed(values: Sequence[object]) -> str:
    return " or ".join(str(value) for value in values)
