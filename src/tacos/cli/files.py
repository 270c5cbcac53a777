"""The verbs that read a file: verify, sim, info, convert, topo."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import tacos
from tacos import formats, units
from tacos._core import Program, Schedule, Topology
from tacos.cli.app import (
    Algorithm,
    Format,
    Json,
    Quiet,
    app,
    check_folder,
    fail,
    lifted,
    load_algorithm,
    verdict,
    warn,
)
from tacos.cli.viewing import PAGES
from tacos.console import print_table, progress, show, show_topology, transfer_table, width
from tacos.errors import FormatError
from tacos.lower import describe
from tacos.simulate.trace_file import format_of


@app.command
def verify(
    file: Algorithm,
    /,
    *,
    format: Format = None,
    allow_unneeded: Annotated[
        bool, Parameter(negative="", help="Do not report transfers that nobody needs.")
    ] = False,
    limit: Annotated[int, Parameter(help="How many violations to show.")] = 20,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Check a schedule or a program: who waits for whom, what is shared, what everybody ends with.

    Example: tacos verify ar.tacos
    """
    loaded = load_algorithm(file, format)
    with progress("verifying", quiet or as_json) as report:
        check = tacos.verify(loaded, allow_unneeded=allow_unneeded, limit=limit, progress=report)
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
        return fail("right, but more than the executor can run", 1)
    if check.ok and not quiet:
        if isinstance(loaded, Program):
            held = f"{loaded.steps:,} steps in {loaded.threads:,} threads of {loaded.ranks:,} ranks"
        else:
            held = f"{loaded.transfers:,} transfers in {units.format_time(loaded.time_s)}"
        print(f"ok: {held}")
        if not check.consistent:
            warn(f"ranks may end with different bits: {check.difference}")
    return verdict(check, quiet)


_VIOLATION_FIELDS = ("rule", "transfer", "time_ps", "chunk", "link", "message")


@app.command
def sim(
    file: Algorithm,
    /,
    *,
    format: Format = None,
    topology: Annotated[
        str | None, Parameter(help="Where to run it, if not on its own network: spec or file.")
    ] = None,
    size: Annotated[str | None, Parameter(help="Of a program's buffer, such as 64MB.")] = None,
    timing: Annotated[
        Literal["dependencies", "order", "schedule", "shared"],
        Parameter(
            help="dependencies: when data are there; order: per link in order; schedule: at its own "
            "times; shared: links shared fairly, a program thread by thread."
        ),
    ] = "dependencies",
    congestion: Annotated[bool, Parameter(help="Whether a busy link keeps others waiting.")] = True,
    fault: Annotated[
        tuple[str, ...],
        Parameter(
            help="link=0-1,begin=10us,end=20us,slowdown=4 (or npu=3; no slowdown: down).",
            negative="",
        ),
    ] = (),
    straggler: Annotated[
        tuple[str, ...],
        Parameter(help="npu=3,late=20us,slowdown=1.5 (one of the two will do).", negative=""),
    ] = (),
    jitter: Annotated[str, Parameter(help="The most by which a delivery may be late.")] = "0s",
    seed: Annotated[int, Parameter(help="Of the jitter.")] = 0,
    profile: Annotated[
        Literal["astra-sim-aware", "astra-sim-unaware"] | None,
        Parameter(help="Count as this simulator does, to the nanosecond."),
    ] = None,
    output: Annotated[
        Path | None,
        Parameter(
            name=["-o", "--output"],
            help="The trace (.pftrace for Perfetto, .json, .csv, .parquet), the heat map (.svg, .png), "
            "or a page as tacos view makes (.html).",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Simulate a schedule or a program: what its network, or another one, makes of it.

    Example: tacos sim ar.tacos --fault link=0-1,begin=10us,end=1ms -o trace.json
    """
    from tacos import view

    pictures = (".svg", ".png")
    ending = "" if output is None else output.suffix.lower()
    if output is not None:
        if ending in pictures:
            view.checked(output)
        elif ending not in PAGES:
            format_of(output, pictures=(*pictures, *PAGES))
        elif topology is not None or profile is not None:
            raise ValueError(
                f"--output is {output}, a page, which shows runs on the schedule's own network and "
                "without --profile"
            )
        check_folder("--output", output)
    faults = [tacos.Fault.parse(text) for text in fault]
    stragglers = [tacos.Straggler.parse(text) for text in straggler]
    loaded = load_algorithm(file, format)
    network = None if topology is None else formats.network(topology)
    if isinstance(loaded, Schedule) and size is not None:
        raise ValueError(f"--size is {size}, but {file} holds a schedule, which has its size")
    as_program = not isinstance(loaded, Schedule) and timing == "shared" and profile is None
    if as_program and network is None:
        raise ValueError("--topology is missing: a program with --timing shared needs a network")
    if as_program and ending in PAGES:
        raise ValueError(f"--output is {output}, but a page shows schedules, not programs")
    schedule = loaded if as_program else lifted(loaded, network, size, quiet or as_json)
    with progress("simulating", quiet or as_json) as report:
        trace = tacos.simulate(
            schedule,
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
        elif ending in PAGES and isinstance(schedule, Schedule):
            view.write_page(output, schedule, names=[file.name], traces=[trace])
        else:
            trace.save(output)
    show(trace.summary(), str(file), as_json, quiet)
    if not as_json and not quiet:
        print(view.heat_text(trace, width=width(), encoding=sys.stdout.encoding or "utf-8"))
    return 0


@app.command
def info(
    file: Annotated[Path, Parameter(help="A schedule, a program or a topology.")],
    /,
    *,
    format: Format = None,
    npu: Annotated[int | None, Parameter(help="List the transfers of this NPU.")] = None,
    link: Annotated[int | None, Parameter(help="List the transfers over this link.")] = None,
    rows: Annotated[int, Parameter(help="How many transfers to list.")] = 20,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Say what a file holds: time, bandwidth, how it was made; or one NPU's or link's transfers.

    Example: tacos info ar.tacos --npu 3
    """
    if rows < 1:
        raise ValueError(f"--rows is {rows}, it must be positive")
    loaded = formats.load(file, format=format)
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
        raise FormatError(f"{file} holds a {held}, not a schedule: --npu and --link list transfers")
    if npu is None and link is None:
        facts = tacos.summary(schedule) | {
            "form": schedule.form,
            "memory_bytes": schedule.memory_bytes,
            "quantum_ps": schedule.quantum_ps,
            "provenance": schedule.provenance,
        }
        show(facts, str(file), as_json, quiet)
        return 0
    for name, value, count in (
        ("npu", npu, schedule.topology.npus),
        ("link", link, schedule.topology.links),
    ):
        if value is not None and not 0 <= value < count:
            raise ValueError(f"--{name} is {value}, allowed are 0 to {count - 1}")
    table = schedule.rows(npu=npu, link=link)
    if as_json:
        print(json.dumps({name: column.tolist() for name, column in table.items()}))
    elif not quiet:
        print_table(transfer_table(schedule, table, rows))
    return 0


@app.command
def convert(
    source: Annotated[Path, Parameter(help="A schedule, a program or a topology.")],
    target: Annotated[Path, Parameter(help="What to write; its ending says the format.")],
    /,
    *,
    from_format: Annotated[
        str | None, Parameter(name="--from", help="Format of SOURCE, if it does not show.")
    ] = None,
    to_format: Annotated[
        str | None, Parameter(name="--to", help="Format of TARGET, if its name does not say it.")
    ] = None,
    dialect: Annotated[str | None, Parameter(help="Of the format, such as msccl or azure.")] = None,
    protocol: Annotated[str | None, Parameter(help="Simple, LL or LL128.")] = None,
    channels: Annotated[int | None, Parameter(help="The most channels to use.")] = None,
    instances: Annotated[int | None, Parameter(help="Copies that run side by side.")] = None,
    channel: Annotated[
        str | None, Parameter(help="What an MSCCL++ plan moves data over: memory or port.")
    ] = None,
    box: Annotated[
        int | None, Parameter(help="GPUs of a box; an MSCCL++ plan uses ports between boxes.")
    ] = None,
    min_bytes: Annotated[
        str | None, Parameter(help="The smallest buffer to use the algorithm for.")
    ] = None,
    max_bytes: Annotated[str | None, Parameter(help="The largest one.")] = None,
    in_place: Annotated[
        bool | None, Parameter(help="Whether input and output are one buffer.")
    ] = None,
    name: Annotated[str | None, Parameter(help="Of the algorithm, in the file.")] = None,
    topology: Annotated[
        str | None, Parameter(help="The network of a program: spec or file.")
    ] = None,
    size: Annotated[str | None, Parameter(help="Of a program's buffer, such as 64MB.")] = None,
    unchecked: Annotated[
        bool, Parameter(negative="", help="Convert without verifying what is read.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Read an algorithm or a topology, verify it, and write it in another format.

    Example: tacos convert ar.tacos ar.xml --protocol LL
    """
    check_folder("TARGET", target)
    loaded = formats.load(source, format=from_format)
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
            check = tacos.verify(loaded, limit=20, progress=report)
        if not check.ok:
            return verdict(check, quiet)
        if not check.consistent and not quiet:
            warn(f"ranks may end with different bits: {check.difference}")
    network = None if topology is None else formats.network(topology)
    taken = [k for k in (Program, Schedule) if formats.takes(k, target, format=to_format)]
    if isinstance(loaded, Program) and taken == [Schedule]:
        loaded = lifted(loaded, network, size, quiet or as_json)
    else:
        given = {"topology": network, "size": size}
        options |= {option: value for option, value in given.items() if value is not None}
    formats.save(loaded, target, format=to_format, **options)
    show({"from": str(source), "to": str(target)} | _outline(loaded), "converted", as_json, quiet)
    return 0


def _outline(loaded: Schedule | Program | Topology) -> dict[str, Any]:
    """What was converted, in a few words."""
    if isinstance(loaded, Topology):
        return {"topology": repr(loaded)[len("<tacos.Topology ") : -1]}
    facts = tacos.summary(loaded) if isinstance(loaded, Schedule) else describe(loaded)
    names = ("collective", "topology", "ranks", "chunks", "steps", "transfers", "time_s")
    return {name: facts[name] for name in names if name in facts}


@app.command
def topo(
    topology: Annotated[
        str | None,
        Parameter(help="A spec such as torus:4x4 or a file, as for synth. Without one: all specs."),
    ] = None,
    /,
    *,
    draw: Annotated[Path | None, Parameter(help="Draw it into this .svg or .png file.")] = None,
    output: Annotated[
        Path | None,
        Parameter(
            name=["-o", "--output"],
            help="Write it as a .yaml, .json, .graphml, .csv or .astra.yml (ASTRA-sim) file.",
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Say what a topology is: counts, degrees, diameter, bandwidths; and draw it.

    Example: tacos topo dgx-h100:2 --draw h100.svg
    """
    if topology is None:
        if output is not None or draw is not None:
            raise ValueError("there is no TOPOLOGY to draw or write")
        show(dict(tacos.topology.specs()), "short names of topologies", as_json, quiet)
        return 0
    network = formats.network(topology)
    if output is not None:
        formats.save(network, output)
    if draw is not None:
        from tacos import view

        view.draw(network, draw)
    show_topology(topology, network, as_json, quiet)
    return 0
