"""The command that writes algorithms and topologies in other formats: convert."""

from __future__ import annotations

import io
import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

import tacos
from tacos import formats, units
from tacos._core import Collective, Program, Schedule, Topology, Workload
from tacos._support.files import watched
from tacos.cli.app import app, executed_rows, files_facts, lifted, verdict, warn
from tacos.cli.options import FORMATS, PLAIN, Output, Values, check_folder, endings, offered
from tacos.cli.workloads import Layers, Place
from tacos.collective import kind_of
from tacos.console import progress
from tacos.errors import LimitError, TacosError
from tacos.execution import Execution, execution
from tacos.program import describe

_HELD = ("Schedule", "Program", "Workload", "Topology")
_KEPT = 1_000
"""Violations to count before a conversion is refused."""
_MATTERS = 1.03
"""Ratio of two executed times from which on the difference is reported (chosen)."""
_SEARCH_S = 5.0
"""Seconds for a search for what a target would gain (chosen)."""


@Parameter(name="*", group=Group("What the format can say", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class Details:
    """What some formats can say about an algorithm."""

    dialect: Annotated[
        str | None,
        offered("msccl", "azure"),
        Parameter(help="Dialect of the format, such as msccl or azure."),
    ] = None
    protocol: Annotated[
        str | None,
        offered("Simple", "LL", "LL128"),
        Parameter(help="NCCL protocol: Simple, LL or LL128."),
    ] = None
    channels: Annotated[int | None, Parameter(help="Largest number of channels.")] = None
    instances: Annotated[int | None, Parameter(help="Number of copies that run in parallel.")] = (
        None
    )
    channel: Annotated[
        str | None,
        offered("memory", "port"),
        Parameter(help="Channel type of an MSCCL++ plan: memory or port."),
    ] = None
    box: Annotated[
        int | None, Parameter(help="GPUs per box; an MSCCL++ plan uses ports between boxes.")
    ] = None
    min_bytes: Annotated[
        str | None, Parameter(help="Smallest buffer to use the algorithm for.")
    ] = None
    max_bytes: Annotated[str | None, Parameter(help="Largest buffer to use the algorithm for.")] = (
        None
    )
    in_place: Annotated[
        bool | None, Parameter(help="Whether input and output share one buffer.")
    ] = None
    name: Annotated[str | None, Parameter(help="Name of the algorithm in the file.")] = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


@app.command
def convert(
    source: Annotated[
        Path,
        Values(files=endings(*_HELD)),
        Parameter(help="A schedule, a program, a workload or a topology."),
    ],
    target: Annotated[
        Path,
        Values(files=endings(*_HELD, written=True)),
        Parameter(help="File to write; its extension chooses the format."),
    ],
    /,
    *,
    from_format: Annotated[
        str | None,
        FORMATS,
        Parameter(name="--from", help="Format of SOURCE; recognized by default."),
    ] = None,
    to_format: Annotated[
        str | None,
        FORMATS,
        Parameter(name="--to", help="Format of TARGET; by its extension by default."),
    ] = None,
    place: Place = Place(),
    layers: Layers = Layers(),
    unchecked: Annotated[bool, PLAIN, Parameter(help="Do not verify SOURCE first.")] = False,
    details: Details = Details(),
    out: Output = Output(),
) -> int:
    """Read an algorithm or a topology, verify it, and write it in another format.

    Example: tacos convert ar.tacos ar.xml --protocol LL
    """
    check_folder("TARGET", target)
    loaded = layers.load(source, from_format, place.network)
    if isinstance(loaded, Workload):
        tacos.workload.save(loaded, target)
        held = {"from": str(source), "to": str(target), "ranks": loaded.npus, "nodes": loaded.nodes}
        out.show(held, "converted")
        return 0
    if not isinstance(loaded, Topology) and not unchecked:
        with progress("verifying", out.silent) as report:
            check = tacos.verify(loaded, limit=_KEPT, progress=report)
        if not check.ok:
            return verdict(check, out.quiet)
        if not check.consistent and not out.quiet:
            warn(f"ranks may end with different bits: {check.difference}")
    taken = [k for k in (Program, Schedule) if formats.takes(k, target, format=to_format)]
    options = details.given()
    if isinstance(loaded, Program) and taken == [Schedule]:
        loaded = lifted(loaded, place.network, place.size, out.silent)
    else:
        given = {"topology": place.network, "size": place.size}
        options |= {option: value for option, value in given.items() if value is not None}
    whole = loaded  # before it was cut into fewer chunks
    with watched() as written:
        loaded = _saved(loaded, target, to_format, options)
    missing = formats.lost(loaded, target, format=to_format) if isinstance(loaded, Topology) else ""
    if missing and not out.quiet:
        warn(missing)
    facts = {"from": str(source), "to": str(target)} | _outline(loaded)
    there = loaded.topology if isinstance(loaded, Schedule) else place.network
    facts |= {k: v for k, v in files_facts(written, target, there).items() if k != "file"}
    if isinstance(loaded, Schedule):
        executor = formats.executor_of(target, format=to_format)
        read = formats.load(target, format=to_format)
        if isinstance(read, Program):
            ran = _execution(loaded, read)
            counted, rows = (
                loaded.with_executed(ran.time_ps(executor), executor),
                ran.rows(executor),
            )
        else:  # the file keeps the schedule, with what it is for
            counted, rows = loaded, executed_rows(loaded)
        facts |= {
            "executed_s": rows.pop("executed_s"),
            "busbw_Bps": counted.busbw_Bps,
            "efficiency": counted.efficiency,
            "ideal_s": loaded.time_s,
            **rows,
        }
        if executor and not out.quiet and isinstance(whole, Schedule):
            ran_ps = ran.time_ps(executor)
            if gain := _gain(whole, executor, ran_ps, options, out):
                command = _command(whole, executor, source)
                facts |= _told(target, executor, _own_ps(whole), ran_ps, gain, command, out)
    out.show(facts, "converted")
    return 0


def _saved(
    loaded: Schedule | Program | Topology,
    target: Path,
    format: str | None,
    options: dict[str, Any],
) -> Schedule | Program | Topology:
    """Write a file; a schedule that exceeds the limits of its format is cut into fewer chunks, which is said."""
    try:
        formats.save(loaded, target, format=format, **options)
    except LimitError as error:
        if not isinstance(loaded, Schedule):
            raise
        chunks = loaded.collective.parts[0].chunks
        while chunks > 1:
            chunks //= 2
            try:
                from tacos.search.synthesis import with_chunks

                fewer = with_chunks(loaded, chunks)
                formats.save(fewer, target, format=format, **options)
            except TacosError:
                continue
            warn(
                f"{error}; written in {chunks} chunks per part instead of "
                f"{loaded.collective.parts[0].chunks}, which takes {units.format_time(fewer.executed_s)} instead of "
                f"{units.format_time(loaded.executed_s)}"
            )
            return fewer
        raise
    return loaded


def _execution(schedule: Schedule, program: Program) -> Execution:
    """Return the executed times of the program that a schedule was written as."""
    found = execution(program, schedule.topology, size=schedule.collective.size_bytes)
    assert found is not None  # which only large schedules lack
    return found


def _gain(
    schedule: Schedule, target: str, executed_ps: int, options: dict[str, Any], out: Output
) -> int | None:
    """Return the executed time of a file made for its target, if the written file takes clearly longer.

    Only a file that takes longer than its schedule promises is worth a search.
    """
    if schedule.target == target or executed_ps <= _MATTERS * _own_ps(schedule):
        return None
    try:
        with progress(f"searching for {target}", out.silent) as report:
            found = tacos.synthesize(
                schedule.topology,
                _in_any_chunks(schedule.collective),
                target=target,
                effort="fast",
                time_limit=_SEARCH_S,
                consistent=schedule.consistent,
                progress=report,
            )
        data = io.BytesIO()
        formats.save(found, data, format=target, **options)
        data.seek(0)
        program = formats.load(data, format=target)
        assert isinstance(program, Program)
        made = _execution(found, program)
    except (TacosError, ValueError):  # the file is written, and this is only advice
        return None
    if executed_ps <= _MATTERS * made.time_ps(target):
        return None
    return made.time_ps(target)


def _own_ps(schedule: Schedule) -> int:
    """Return the time that a schedule promises: its executed time."""
    return round(schedule.executed_s * 1e12)


def _in_any_chunks(collective: Collective) -> Collective:
    """Return the collective with an open number of chunks, if it is a named one."""
    part = collective.parts[0]
    if len(collective.parts) > 1 or kind_of(part).listed:
        return collective
    return Collective(
        collective.npus, [type(part)(part.kind, part.size, group=part.group, root=part.root)]
    )


def _command(schedule: Schedule, target: str, source: Path) -> str:
    """Return the command that synthesizes the collective of a schedule for a target, on the network that its file holds."""
    collective = schedule.collective
    part, kind = collective.parts[0], kind_of(collective.parts[0])
    if len(collective.parts) > 1 or kind.listed:
        return f'tacos.synthesize(schedule.topology, schedule.collective, target="{target}")'
    words = ["tacos", "synth", str(source), kind.label, _exact(part.size)]
    group = part.group.tolist()
    if group != list(range(collective.npus)):
        words += ["--group", ",".join(map(str, group))]
    if kind.rooted:
        words += ["--root", str(group[part.root])]
    if not schedule.consistent:
        words.append("--any-order")
    return shlex.join([*words, "--target", target, "-o", f"{source.stem}.{target}.tacos"])


def _exact(size: int) -> str:
    """Return a size as the command takes it, without rounding it."""
    short = units.format_size(size).replace(" ", "")
    return short if units.size_bytes(short) == size else f"{size}B"


def _told(
    path: Path, target: str, own_ps: int, executed_ps: int, made_ps: int, command: str, out: Output
) -> dict[str, Any]:
    """Say what a schedule made for its target would take; scripts get fields instead."""
    if out.as_json:
        return {
            "with_target": {"target": target, "executed_s": made_ps * 1e-12, "command": command}
        }
    own, takes, made = (units.format_time(ps * 1e-12) for ps in (own_ps, executed_ps, made_ps))
    warn(
        f"{path} takes {takes} when {target} executes it, where its schedule takes {own}; "
        f"one made for {target} takes {made}: {command}"
    )
    return {}


def _outline(loaded: Schedule | Program | Topology) -> dict[str, Any]:
    """Return what was converted, in a few words."""
    if isinstance(loaded, Topology):
        return {"topology": repr(loaded)[len("<tacos.Topology ") : -1]}
    facts = tacos.summary(loaded) if isinstance(loaded, Schedule) else describe(loaded)
    names = (
        "collective",
        "topology",
        "ranks",
        "chunks",
        "total_chunks",
        "steps",
        "transfers",
    )
    return {name: facts[name] for name in names if name in facts}
