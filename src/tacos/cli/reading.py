"""The commands that read a file: verify, sim, info, convert, topo."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import tacos
from tacos import formats, units
from tacos._core import Program, Schedule, Topology
from tacos._support.files import watched
from tacos.cli.app import (
    Algorithm,
    Format,
    Json,
    Quiet,
    algorithm_in,
    app,
    assumed_network,
    bottleneck,
    check_folder,
    exported,
    fail,
    files_facts,
    lifted,
    verdict,
    warn,
)
from tacos.cli.viewing import PAGES
from tacos.cli.workloads import (
    Dims,
    Groups,
    Memory,
    Queues,
    Rendezvous,
    System,
    check_timeline,
    figures,
    flight_in,
    loaded_from,
    run_workload,
    save_timeline,
    show_workload,
)
from tacos.console import print_table, progress, show, show_topology, transfer_table, width
from tacos.errors import FormatError, LimitError, TacosError
from tacos.execution import execution
from tacos.nodes import Nodes, link_of
from tacos.program import describe
from tacos.search.synthesis import with_chunks
from tacos.simulate import astra
from tacos.simulate.trace_export import format_of
from tacos.workload import Workload


@app.command
def verify(
    file: Algorithm,
    /,
    *,
    format: Format = None,
    allow_unneeded: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Allow transfers that no NPU needs."),
    ] = False,
    limit: Annotated[
        int | None,
        Parameter(
            help="List this many violations; by default three of each kind, of the first 1,000."
        ),
    ] = None,
    groups: Groups = None,
    dims: Dims = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Check a schedule, program or workload for deadlocks, races and wrong results.

    Schedules are also checked for link conflicts, and workloads for messages
    without a partner and collectives that some rank never joins.

    Example: tacos verify ar.tacos
    """
    loaded = loaded_from(file, format, groups, dims, mapped=True)
    if not isinstance(loaded, Workload):
        loaded = algorithm_in(file, loaded)
    with progress("verifying", quiet or as_json) as report:
        check = tacos.verify(
            loaded, allow_unneeded=allow_unneeded, limit=limit or _KEPT, progress=report
        )
    limits = formats.exceeded(loaded) if isinstance(loaded, Program) else []
    if as_json:
        violations = [
            {name: getattr(v, name) for name in _VIOLATION_FIELDS} for v in check.violations
        ]
        fine = check.ok and not limits
        found: dict[str, Any] = {"ok": fine, "checked": check.checked, "found": check.found}
        found |= {"consistent": check.consistent, "difference": check.difference}
        print(json.dumps(found | {"violations": violations, "limits": limits}, indent=2))
        return 0 if fine else 1
    for sentence in [] if quiet else limits:
        print(f"limit: {sentence}", file=sys.stderr)
    if check.ok and limits:
        return fail("the program is correct but exceeds the executor's limits", 1)
    if check.ok and not quiet:
        if isinstance(loaded, Program):
            held = f"{loaded.steps:,} steps in {loaded.threads:,} threads of {loaded.ranks:,} ranks"
        elif isinstance(loaded, Workload):
            held = f"{loaded.nodes:,} nodes of {loaded.npus:,} ranks"
        else:
            held = f"{loaded.transfers:,} transfers in {units.format_time(loaded.time_s)}"
        print(f"ok: {held}")
        if not check.consistent:
            warn(f"ranks may end with different bits: {check.difference}")
    return verdict(check, quiet, alike=limit or 3)


_KEPT = 1_000
_VIOLATION_FIELDS = ("rule", "transfer", "time_ps", "chunk", "link", "message")


@app.command
def sim(
    file: Algorithm,
    /,
    *,
    format: Format = None,
    topology: Annotated[
        str | None,
        Parameter(
            name=["--topology", "--network"], help="Run on another network: a spec or a file."
        ),
    ] = None,
    size: Annotated[str | None, Parameter(help="Buffer size of a program, such as 64MB.")] = None,
    timing: Annotated[
        Literal["first-come", "order", "schedule", "shared", "dependencies"],
        Parameter(
            help="How links serve transfers. first-come: each when its data have arrived, first come, first "
            "served (formerly dependencies); order: every link keeps the schedule's order; schedule: at the "
            "schedule's times; shared: concurrent messages share links fairly, programs run thread by thread."
        ),
    ] = "first-come",
    congestion: Annotated[bool, Parameter(help="Whether transfers wait for busy links.")] = True,
    fault: Annotated[
        tuple[str, ...],
        Parameter(
            help="A link that is down, or slow with slowdown=: link=0-1,begin=10us,end=20us,slowdown=4. "
            "Names work too: link=box0/npu0-fabric. both=yes takes both directions, npu=3 all links of "
            "an NPU. May be repeated.",
            negative="",
            show_default=False,
        ),
    ] = (),
    straggler: Annotated[
        tuple[str, ...],
        Parameter(
            help="An NPU that starts late or is slow: npu=3,late=20us,slowdown=1.5. May be repeated.",
            negative="",
            show_default=False,
        ),
    ] = (),
    jitter: Annotated[str, Parameter(help="Largest random delay of a delivery.")] = "0s",
    seed: Annotated[int, Parameter(help="Random seed of the jitter.")] = 0,
    profile: Annotated[
        Literal["astra-sim-aware", "astra-sim-unaware"] | None,
        Parameter(
            help="Run what tacos convert writes for ASTRA-sim, or given Chakra traces, as its "
            "analytical backend does, to the nanosecond. Traces that only send and receive run as one "
            "custom collective without --system, and as a workload with it."
        ),
    ] = None,
    system: System = None,
    memory: Memory = None,
    groups: Groups = None,
    dims: Dims = None,
    queues: Queues = None,
    rendezvous: Rendezvous = False,
    output: Annotated[
        Path | None,
        Parameter(
            name=["-o", "--output"],
            help="Write the trace (.pftrace for Perfetto, .json, .csv, .parquet), a heat map (.svg, .png, .pdf), "
            "or a page as tacos view does (.html).",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Simulate a schedule, a program or a workload on its own network or another, with faults if you like.

    Example: tacos sim ar.tacos --fault link=0-1,begin=10us,end=1ms -o trace.json
    """
    from tacos import view

    if timing == "dependencies":
        timing = "first-come"
    network = None if topology is None else formats.network(topology)
    held = loaded_from(file, format, groups, dims, network)
    if system is not None and not isinstance(held, Workload):
        held = tacos.workload.load(file, groups=groups, format=format)
    if isinstance(held, Workload):
        given = {
            "--fault": fault,
            "--straggler": straggler,
            "--jitter": units.time_ps(jitter, what="--jitter"),
            "--size": size,
            "--timing": timing != "first-come",
            "--no-congestion": not congestion,
        }
        for option, value in given.items():
            if value:
                raise ValueError(f"{option} is for schedules and programs; {file} holds a workload")
        if output is not None:
            check_timeline("--output", output, PAGES)
        result = run_workload(
            held,
            network,
            profile=profile,
            system=system,
            memory=memory,
            queues=queues,
            rendezvous=rendezvous,
            silent=quiet or as_json,
        )
        if output is not None:
            save_timeline(held, result, output, PAGES)
        show(figures(held, result, as_json), str(file), as_json, quiet)
        return 0
    for option, found in (
        ("--memory", memory),
        ("--num-queues-per-dim", queues),
        ("--rendezvous-protocol", rendezvous),
    ):
        if found:
            raise ValueError(f"{option} is for workloads; {file} holds a schedule or a program")
    pictures = (".svg", ".png", ".pdf")
    ending = "" if output is None else output.suffix.lower()
    if output is not None:
        if ending in pictures:
            view.checked(output, what="--output")
        elif ending not in PAGES:
            format_of(output, pictures=(*pictures, *PAGES))
        elif topology is not None or profile is not None:
            raise ValueError(
                f"--output is {output}, but a page shows runs on the schedule's own network only, "
                "without --topology and --profile"
            )
        check_folder("--output", output)
    faults = [tacos.Fault.parse(text) for text in fault]
    stragglers = [tacos.Straggler.parse(text) for text in straggler]
    what: Schedule | Workload | Program
    as_program = False
    disturbed = bool(fault or straggler or units.time_ps(jitter, what="--jitter"))
    if profile is not None and (disturbed or timing != "first-come" or not congestion):
        raise ValueError(
            f"--profile {profile} takes no --fault, --straggler, --jitter, --timing or --no-congestion"
        )
    if profile is not None and size is None and formats.name_of(file, format=format) == "chakra":
        what = tacos.workload.load(file)
    else:
        loaded = algorithm_in(file, held)
        as_program = isinstance(loaded, Program) and timing == "shared" and profile is None
        if isinstance(loaded, Schedule) and size is not None:
            raise ValueError(f"--size is {size}, but {file} holds a schedule, whose size is fixed")
        if as_program and network is None:
            raise ValueError(
                "--topology is missing: a program with --timing shared needs a network"
            )
        if as_program and ending in PAGES:
            raise ValueError(f"--output is {output}, but a page shows schedules, not programs")
        if profile is not None and isinstance(loaded, Program):
            what = exported(loaded, network, size, quiet or as_json)
        elif as_program:
            what = loaded
        else:
            what = lifted(loaded, network, size, quiet or as_json)
    if isinstance(what, Workload) and network is None:
        network = assumed_network(what.npus, quiet or as_json)
    with progress("simulating", quiet or as_json) as report:
        if isinstance(what, Workload):
            trace = astra.trace(what, network, profile=profile or "", progress=report)
        else:
            trace = tacos.simulate(
                what,
                network,
                size=size if as_program else None,
                timing=timing,
                congestion=congestion,
                faults=faults,
                stragglers=stragglers,
                jitter=jitter,
                seed=seed,
                profile=profile,
                progress=report,
            )
    if output is not None:
        if ending in pictures:
            view.save(view.heat_picture(trace), output)
        elif ending in PAGES and isinstance(what, Schedule):  # without a profile it is
            view.write_page(output, what, names=[file.name], traces=[trace])
        else:
            trace.save(output)
    facts = trace.summary()
    show(facts, str(file), as_json, quiet)
    if not as_json and not quiet:
        if (
            facts.get("slower_than_schedule", 0) > 0
            and "loss" not in facts
            and timing == "first-come"
        ):
            print(
                "The schedule's time holds where every link keeps the schedule's order: "
                "--timing order."
            )
        print(view.heat_text(trace, width=width(), encoding=sys.stdout.encoding or "utf-8"))
    return 0


def _show_flight(files: list[Path], as_json: bool, quiet: bool) -> int:
    """Return a summary of flight records."""
    from tacos.runtime import flight

    findings = flight.postmortem([flight.load(file) for file in files])
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    elif not quiet:
        for finding in findings:
            print("\n".join(flight.lines(finding)))
        if not findings:
            print("no group of ranks: the records were written before any rank had met the others")
    return 0


@app.command
def info(
    file: Annotated[
        Path,
        Parameter(
            help="A schedule, a program, a workload, a topology or a flight record (or a directory of them)."
        ),
    ],
    /,
    *others: Annotated[Path, Parameter(help="Flight records of other ranks.")],
    format: Format = None,
    groups: Groups = None,
    dims: Dims = None,
    npu: Annotated[
        str | None, Parameter(help="List the transfers of this NPU: 3, or box0/npu3.")
    ] = None,
    link: Annotated[
        str | None,
        Parameter(help="List the transfers over this link: 12, 0-1, or box0/npu0-fabric."),
    ] = None,
    rows: Annotated[int, Parameter(help="Largest number of transfers to list.")] = 20,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Summarize a file, list its transfers, or name the rank that fell behind.

    A summary has the time, bandwidth and provenance. --npu and --link list the
    transfers of one NPU or link. The flight records of a job's ranks show which
    rank fell behind.

    Example: tacos info ar.tacos --npu 3
    Example: tacos info flight
    """
    if rows < 1:
        raise ValueError(f"--rows must be positive; got {rows}")
    if npu is not None and link is not None:
        raise ValueError("--npu and --link exclude each other; list one NPU or one link")
    if flight := flight_in(file, others):
        return _show_flight(flight, as_json, quiet)
    if others:
        raise ValueError(
            f"info takes one file, or several flight records; {file} is not a flight record"
        )
    loaded = loaded_from(file, format, groups, dims)
    if isinstance(loaded, Workload) and npu is None and link is None:
        show_workload(file, loaded, as_json, quiet)
        return 0
    if isinstance(loaded, Topology) and npu is None and link is None:
        show_topology(str(file), loaded, as_json, quiet)
        return 0
    if isinstance(loaded, Program) and npu is None and link is None:
        facts = describe(loaded) | {"provenance": loaded.provenance}
        show(facts, str(file), as_json, quiet)
        return 0
    schedule = loaded
    if not isinstance(schedule, Schedule):
        held = type(loaded).__name__.lower()
        raise FormatError(f"{file} holds a {held}; --npu and --link need a schedule")
    if npu is None and link is None:
        facts = tacos.summary(schedule)
        if executed := execution(schedule):
            facts |= executed.rows()
        facts |= bottleneck(schedule)
        facts |= {
            "form": schedule.form,
            "memory_bytes": schedule.memory_bytes,
            "quantum_ps": schedule.quantum_ps,
            "provenance": {k: v for k, v in schedule.provenance.items() if k != "bottleneck"},
        }
        show(facts, str(file), as_json, quiet)
        return 0
    one_npu = None if npu is None else Nodes(schedule.topology).npu(npu, what="--npu")
    one_link = None if link is None else link_of(schedule.topology, link, what="--link")
    table = schedule.rows(npu=one_npu, link=one_link)
    if as_json:
        print(json.dumps({name: column.tolist() for name, column in table.items()}))
    elif not quiet:
        print_table(transfer_table(schedule, table, rows))
    return 0


@app.command
def convert(
    source: Annotated[Path, Parameter(help="A schedule, a program, a workload or a topology.")],
    target: Annotated[Path, Parameter(help="File to write; its extension chooses the format.")],
    /,
    *,
    from_format: Annotated[
        str | None, Parameter(name="--from", help="Format of SOURCE; recognized by default.")
    ] = None,
    to_format: Annotated[
        str | None, Parameter(name="--to", help="Format of TARGET; by its extension by default.")
    ] = None,
    dialect: Annotated[
        str | None, Parameter(help="Dialect of the format, such as msccl or azure.")
    ] = None,
    protocol: Annotated[str | None, Parameter(help="NCCL protocol: Simple, LL or LL128.")] = None,
    channels: Annotated[int | None, Parameter(help="Largest number of channels.")] = None,
    instances: Annotated[
        int | None, Parameter(help="Number of copies that run in parallel.")
    ] = None,
    channel: Annotated[
        str | None, Parameter(help="Channel type of an MSCCL++ plan: memory or port.")
    ] = None,
    box: Annotated[
        int | None, Parameter(help="GPUs per box; an MSCCL++ plan uses ports between boxes.")
    ] = None,
    min_bytes: Annotated[
        str | None, Parameter(help="Smallest buffer to use the algorithm for.")
    ] = None,
    max_bytes: Annotated[
        str | None, Parameter(help="Largest buffer to use the algorithm for.")
    ] = None,
    in_place: Annotated[
        bool | None, Parameter(help="Whether input and output share one buffer.")
    ] = None,
    name: Annotated[str | None, Parameter(help="Name of the algorithm in the file.")] = None,
    topology: Annotated[
        str | None, Parameter(help="Network of a program: a spec or a file.")
    ] = None,
    size: Annotated[str | None, Parameter(help="Buffer size of a program, such as 64MB.")] = None,
    dims: Dims = None,
    unchecked: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="Do not verify SOURCE first."),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Read an algorithm or a topology, verify it, and write it in another format.

    Example: tacos convert ar.tacos ar.xml --protocol LL
    """
    check_folder("TARGET", target)
    network = None if topology is None else formats.network(topology)
    loaded = loaded_from(source, from_format, None, dims, network)
    if isinstance(loaded, Workload):
        tacos.workload.save(loaded, target)
        held = {"from": str(source), "to": str(target), "ranks": loaded.npus, "nodes": loaded.nodes}
        show(held, "converted", as_json, quiet)
        return 0
    options: dict[str, Any] = {
        "dialect": dialect,
        "protocol": protocol,
        "channels": channels,
        "instances": instances,
        "channel": channel,
        "box": box,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "in_place": in_place,
        "name": name,
    }
    options = {option: value for option, value in options.items() if value is not None}
    if not isinstance(loaded, Topology) and not unchecked:
        with progress("verifying", quiet or as_json) as report:
            check = tacos.verify(loaded, limit=_KEPT, progress=report)
        if not check.ok:
            return verdict(check, quiet)
        if not check.consistent and not quiet:
            warn(f"ranks may end with different bits: {check.difference}")
    taken = [k for k in (Program, Schedule) if formats.takes(k, target, format=to_format)]
    if isinstance(loaded, Program) and taken == [Schedule]:
        loaded = lifted(loaded, network, size, quiet or as_json)
    else:
        given = {"topology": network, "size": size}
        options |= {option: value for option, value in given.items() if value is not None}
    with watched() as written:
        loaded = _saved(loaded, target, to_format, options)
    facts = {"from": str(source), "to": str(target)} | _outline(loaded)
    there = loaded.topology if isinstance(loaded, Schedule) else network
    facts |= {k: v for k, v in files_facts(written, target, there).items() if k != "file"}
    if isinstance(loaded, Schedule):
        facts |= _executed(loaded, target, to_format)
    show(facts, "converted", as_json, quiet)
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
                fewer = with_chunks(loaded, chunks)
                formats.save(fewer, target, format=format, **options)
            except TacosError:
                continue
            warn(
                f"{error}; written in {chunks} chunks per part instead of "
                f"{loaded.collective.parts[0].chunks}, which takes {units.format_time(fewer.time_s)} instead of "
                f"{units.format_time(loaded.time_s)}"
            )
            return fewer
        raise
    return loaded


def _executed(schedule: Schedule, path: Path, format: str | None) -> dict[str, float]:
    """Return the executed times of the program that a schedule was written as."""
    written = formats.load(path, format=format)
    if isinstance(written, Program):
        size = schedule.collective.size_bytes
        found = execution(written, schedule.topology, size=size)
    else:
        found = execution(schedule)
    return found.rows() if found else {}


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
        "time_s",
    )
    return {name: facts[name] for name in names if name in facts}


@app.command
def topo(
    topology: Annotated[
        str | None,
        Parameter(help="A spec such as torus:4x4, or a file. Without it, all specs are listed."),
    ] = None,
    /,
    *,
    draw: Annotated[
        Path | None, Parameter(help="Draw the network to this .svg, .png or .pdf file.")
    ] = None,
    output: Annotated[
        Path | None,
        Parameter(
            name=["-o", "--output"],
            help="Write the topology as .yaml, .json, .graphml, .csv or .astra.yml (ASTRA-sim).",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Summarize a topology: counts, degrees, diameter, bandwidths; draw or convert it.

    Example: tacos topo dgx-h100:2 --draw h100.svg
    """
    if topology is None:
        if output is not None or draw is not None:
            raise ValueError("TOPOLOGY is missing: give the one to draw or write")
        show(dict(tacos.topology.specs()), "specs of topologies", as_json, quiet)
        return 0
    if draw is not None:
        from tacos import view

        view.checked(draw, what="--draw")
    network = formats.network(topology)
    if output is not None:
        formats.save(network, output)
    if draw is not None:
        view.draw(network, draw)
    show_topology(topology, network, as_json, quiet)
    return 0
