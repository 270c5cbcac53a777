"""The command ``tacos``: one function per subcommand, each a thin call of the public functions.

Tables and pictures go to people, ``--json`` to scripts; errors are one sentence on the standard error
stream. Exit codes: 0 done, 1 a schedule that is not valid, 2 a wrong call or a bad file, 130 Ctrl-C.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import CycloptsError, Parameter

import tacos
from tacos import collective as collectives
from tacos import formats, units
from tacos._core import Program, Schedule, Topology
from tacos.cli.app import (
    Algorithm,
    Chunks,
    Format,
    Group,
    Json,
    Kind,
    Network,
    Quiet,
    Root,
    Size,
    app,
    load_algorithm,
)
from tacos.console import (
    front_table,
    print_table,
    progress,
    show,
    show_topology,
    transfer_table,
    width,
)
from tacos.errors import FormatError, TacosError
from tacos.lower import describe
from tacos.simulate.trace_file import format_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code.

    >>> main(["topo", "ring:4", "--quiet"])
    0
    """
    try:
        code = app(
            arguments if arguments is not None else sys.argv[1:],
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
    except CycloptsError as error:
        return _fail(" ".join(str(error).split()) + " See tacos --help, or tacos COMMAND --help.")
    except KeyboardInterrupt:
        return _fail("interrupted, nothing was written", 130)
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _fail("not enough memory for this problem")
    except (TacosError, ValueError, OSError) as error:
        return _fail(" ".join(str(error).split()))
    return code if isinstance(code, int) else 0


def _fail(sentence: str, code: int = 2) -> int:
    print(f"tacos: {sentence}", file=sys.stderr)
    return code


@app.command
def synth(
    topology: Network,
    collective: Kind,
    size: Size,
    /,
    *,
    engine: Annotated[
        str, Parameter(help="auto takes the best; tacos compare shows all.")
    ] = "auto",
    chunks: Chunks = "auto",
    group: Group = None,
    root: Root = None,
    seed: int = 0,
    effort: Annotated[str, Parameter(help="fast, normal, high, or a number of trials.")] = "normal",
    time_limit: Annotated[
        float | None, Parameter(help="Seconds after which the best so far is taken.")
    ] = None,
    sketch: Annotated[
        Path | None, Parameter(help="What the schedule may use: a sketch, ours or TACCL's.")
    ] = None,
    output: Annotated[
        Path | None, Parameter(name=["-o", "--output"], help="A .tacos file, or another format.")
    ] = None,
    plan: Annotated[
        Path | None, Parameter(help="A plan directory to put it into, for TACOS_PLANS.")
    ] = None,
    min_bytes: Annotated[str, Parameter(help="Smallest size that the plan serves.")] = "0B",
    max_bytes: Annotated[
        str | None, Parameter(help="Largest size that the plan serves; none by default.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Synthesize a schedule, verify it, and save it.

    Example: tacos synth torus:8x8 all-reduce 64MB -o ar.tacos
    """
    if output is not None:
        _check_target(output)
    least, most = _served(plan, min_bytes, max_bytes)
    network = formats.network(topology)
    wanted = _collective(network, collective, size, chunks, group, root)
    begin = time.perf_counter()
    with progress("synthesizing", quiet or as_json) as report:
        schedule = tacos.synthesize(
            network,
            wanted,
            engine=engine,
            seed=seed,
            effort=int(effort) if effort.isdecimal() else effort,
            time_limit=time_limit,
            progress=report,
            sketch=sketch,
        )
    took = time.perf_counter() - begin
    with progress("verifying", quiet or as_json) as report:
        check = tacos.verify(schedule, progress=report)
    if output is not None and check.ok:
        formats.save(schedule, output)
    facts = tacos.summary(schedule) | {"synthesis_s": took, "verified": check.ok}
    facts |= {name: schedule.provenance[name] for name in _REMARKS if name in schedule.provenance}
    if output is not None:
        facts["file"] = str(output)
    if plan is not None and check.ok:
        from tacos.runtime import plans

        added = plans.add(plan, schedule, min_bytes=least, max_bytes=most)
        facts["plan"] = str(plan / added.file)
    show(facts, "schedule", as_json, quiet)
    return _verdict(check, quiet)


_REMARKS = ("proven", "gap", "note", "cut_short")


@app.command
def pareto(
    topology: Network,
    collective: Kind,
    /,
    *,
    size: Annotated[str, Parameter(help="Size of the buffer that the times are for.")] = "1MB",
    group: Group = None,
    root: Root = None,
    max_chunks: Annotated[int, Parameter(help="The most pieces per NPU's part.")] = 8,
    max_steps: Annotated[int | None, Parameter(help="The most steps.")] = None,
    time_limit: Annotated[float, Parameter(help="Seconds for the whole search.")] = 60.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Find the algorithms between fewest steps (latency) and fewest rounds per chunk (bandwidth).

    Example: tacos pareto dgx-1 all-gather
    """
    network = formats.network(topology)
    wanted = _collective(network, collective, size, "auto", group, root)
    with progress("solving", quiet or as_json) as report:
        front = tacos.pareto(
            network,
            wanted,
            max_chunks=max_chunks,
            max_steps=max_steps,
            time_limit=time_limit,
            progress=report,
        )
    if as_json:
        print(
            json.dumps({"least_rounds": str(front.least_rounds), "points": front.rows()}, indent=2)
        )
    elif not quiet:
        print_table(front_table(f"{collective} on {topology}, {size}", front.rows()))
        print(f"No algorithm has fewer than {front.least_rounds} rounds per chunk.")
        if front.cut_short:
            print(f"The search was cut short after {time_limit:g} s (--time-limit).")
    return 0


@app.command
def compare(
    topology: Network,
    collective: Kind,
    /,
    *sizes: Size,
    sweep: Annotated[
        str | None, Parameter(help="Sizes from one to another, each twice the last: 1KB:4GB.")
    ] = None,
    engines: Annotated[
        str | None, Parameter(help="Names separated by commas; default: all.")
    ] = None,
    beside: Annotated[
        tuple[Path, ...],
        Parameter(
            name="--with",
            negative="",
            help="An algorithm to put beside ours: MSCCL, MSCCL++, Chakra, SCCL, TE-CCL, …",
        ),
    ] = (),
    chunks: Chunks = "auto",
    group: Group = None,
    root: Root = None,
    seed: int = 0,
    time_limit: Annotated[
        float, Parameter(help="Seconds for each engine and size, as a guard.")
    ] = 60.0,
    csv: Annotated[Path | None, Parameter(help="Write all figures into this file.")] = None,
    output: Annotated[
        Path | None, Parameter(name=["-o", "--output"], help="Draw it: a .svg or .png file.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run all engines that apply side by side and verify each, at one size or over many.

    Example: tacos compare dgx-h100:4 all-reduce --sweep 1KB:4GB -o all-reduce.svg
    """
    from tacos import view

    for option, path in (("--csv", csv), ("--output", output)):
        if path is not None:
            _check_folder(option, path)
    if output is not None:
        view.checked(output)
    network = formats.network(topology)
    asked: list[str | int] = [*sizes]
    if sweep is not None:
        asked += units.size_range(sweep, what="--sweep")
    if not asked:
        raise ValueError("there is no SIZE: give one or more, such as 64MB, or --sweep 1KB:4GB")
    wanted = [_collective(network, collective, size, chunks, group, root) for size in asked]
    names = engines.split(",") if engines else None
    with progress("comparing", quiet or as_json) as report:
        found = tacos.compare(
            network,
            wanted,
            engines=names,
            beside={_short(path, beside): load_algorithm(path) for path in beside},
            seed=seed,
            time_limit=time_limit,
            progress=report,
        )
    result = found if len(wanted) > 1 else found.comparisons[0]
    if csv is not None:
        view.write_csv(result, csv)
    if output is not None:
        view.save(view.picture(result, topology), output)
    if as_json:
        print(json.dumps(result.rows(), indent=2))
    elif not quiet:
        for table in view.comparison_tables(result, topology, width()):
            print_table(table)
        print(*(textwrap.fill(line, width()) for line in view.remarks(result)), sep="\n")
    return 0 if all(one.solved for one in found.comparisons) else 1


@app.command
def bound(
    topology: Network,
    collective: Kind,
    size: Size,
    /,
    *,
    chunks: Chunks = "auto",
    group: Group = None,
    root: Root = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Say how fast a collective can be at best, and why: the time that no schedule beats.

    Example: tacos bound dgx-h100:4 all-reduce 1GB
    """
    network = formats.network(topology)
    wanted = _collective(network, collective, size, chunks, group, root)
    with progress("bounding", quiet or as_json) as report:
        best = tacos.bound(network, wanted, progress=report)
    facts: dict[str, Any] = {"time_s": best.time_s}
    if best.time_ps:
        facts["algbw_Bps"] = wanted.size_bytes / best.time_s
        facts["busbw_Bps"] = facts["algbw_Bps"] * wanted.bus_factor
    facts |= {"latency_s": best.latency_s, "bandwidth_s": best.bandwidth_s}
    facts |= {"exact": best.exact, "why": best.why}
    if as_json:
        facts["cut"] = list(best.cut)
    show(facts, "bound", as_json, quiet)
    return 0


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
        found = {"ok": fine, "checked": check.checked, "found": check.found}
        print(json.dumps(found | {"violations": violations, "limits": limits}, indent=2))
        return 0 if fine else 1
    for sentence in [] if quiet else limits:
        print(f"limit: {sentence}", file=sys.stderr)
    if check.ok and limits:
        return _fail("right, but more than the executor can run", 1)
    if check.ok and not quiet:
        if isinstance(loaded, Program):
            held = f"{loaded.steps:,} steps in {loaded.threads:,} threads of {loaded.ranks:,} ranks"
        else:
            held = f"{loaded.transfers:,} transfers in {units.format_time(loaded.time_s)}"
        print(f"ok: {held}")
    return _verdict(check, quiet)


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
        Literal["dependencies", "order", "schedule"],
        Parameter(help="dependencies: when data are there; order: per link in order; schedule."),
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
            help="The trace (.json for Perfetto, .csv, .parquet) or the heat map (.svg, .png).",
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
    pictured = output is not None and output.suffix.lower() in pictures
    if output is not None:
        view.checked(output) if pictured else format_of(output, pictures=pictures)
        _check_folder("--output", output)
    faults = [tacos.Fault.parse(text) for text in fault]
    stragglers = [tacos.Straggler.parse(text) for text in straggler]
    loaded = load_algorithm(file, format)
    network = None if topology is None else formats.network(topology)
    if isinstance(loaded, Schedule) and size is not None:
        raise ValueError(f"--size is {size}, but {file} holds a schedule, which has its size")
    schedule = _lifted(loaded, network, size, quiet or as_json)
    with progress("simulating", quiet or as_json) as report:
        trace = tacos.simulate(
            schedule,
            network,
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
        view.save(view.heat_picture(trace), output) if pictured else trace.save(output)
    show(trace.summary(), str(file), as_json, quiet)
    if not as_json and not quiet:
        print(view.heat_text(trace, width=width()))
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
    _check_folder("TARGET", target)
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
            return _verdict(check, quiet)
    network = None if topology is None else formats.network(topology)
    taken = [k for k in (Program, Schedule) if formats.takes(k, target, format=to_format)]
    if isinstance(loaded, Program) and taken == [Schedule]:
        loaded = _lifted(loaded, network, size, quiet or as_json)
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
    topology: Network,
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
    network = formats.network(topology)
    if output is not None:
        formats.save(network, output)
    if draw is not None:
        from tacos import view

        view.draw(network, draw)
    show_topology(topology, network, as_json, quiet)
    return 0


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /) -> int:
    """Print the completion script for a shell.

    Example: tacos completion bash > ~/.local/share/bash-completion/completions/tacos
    """
    print(app.generate_completion(shell=shell))
    return 0


# --- reading what people type ------------------------------------------------------------------


def _check_target(path: Path) -> None:
    """What would only fail after the work fails before it."""
    if not formats.takes(Schedule, path):
        raise ValueError(f"--output is {path}, a file that holds no schedule")
    _check_folder("--output", path)


def _served(plan: Path | None, least: str, most: str | None) -> tuple[int, int | None]:
    """The range of sizes of a plan."""
    if plan is None and (least != "0B" or most is not None):
        raise ValueError("--min-bytes and --max-bytes are for a plan: give --plan DIR too")
    if plan is not None and plan.exists() and not plan.is_dir():
        raise ValueError(f"--plan is {plan}, which is no directory")
    low = 0 if least in ("0B", "0") else units.size_bytes(least, what="--min-bytes")
    high = None if most is None else units.size_bytes(most, what="--max-bytes")
    if high is not None and high < low:
        raise ValueError(f"--max-bytes is {most}, below --min-bytes, which is {least}")
    return low, high


def _check_folder(option: str, path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option} is {path}, but there is no folder {path.parent}")


def _short(path: Path, others: tuple[Path, ...]) -> str:
    """A file's name, with its folder where others have the same."""
    return path.name if [other.name for other in others].count(path.name) == 1 else str(path)


def _lifted(
    algorithm: Schedule | Program, network: Topology | None, size: str | None, silent: bool
) -> Schedule:
    """The schedule itself, or that of a program; says what was assumed."""
    if isinstance(algorithm, Schedule):
        return algorithm
    with progress("lifting", silent) as report:
        schedule = tacos.lift(algorithm, network, size, progress=report)
    if not silent:
        assumed = (
            [] if network else [f"{schedule.topology.npus:,} NPUs, fully connected (--topology)"]
        )
        if size is None:
            assumed.append(f"{units.format_size(schedule.collective.size_bytes)} (--size)")
        if assumed:
            print(f"assuming {' and '.join(assumed)}")
    return schedule


def _collective(
    network: Topology, kind: str, size: str | int, chunks: str, group: str | None, root: int | None
) -> tacos.Collective:
    if chunks != "auto" and not chunks.isdecimal():
        raise ValueError(f"--chunks is {chunks!r}, allowed are auto and positive numbers")
    count: int | Literal["auto"] = "auto" if chunks == "auto" else int(chunks)
    members = None if group is None else _members(group, network.npus)
    return collectives.named(kind, network, size, group=members, chunks=count, root=root)


def _members(text: str, npus: int) -> list[int]:
    members: list[int] = []
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--group has {item!r}, allowed are numbers and ranges such as 0-7")
        low, high = int(first), int(last or first)
        if low > high:
            raise ValueError(f"--group has {item!r}, a range goes from the lower to the higher NPU")
        if high >= npus:
            raise ValueError(f"--group names NPU {high}, the NPUs are 0 to {npus - 1}")
        members.extend(range(low, high + 1))
    return members


def _verdict(check: tacos.Report, quiet: bool) -> int:
    if check.ok:
        return 0
    if not quiet:
        for violation in check.violations:
            print(f"{violation.rule}: {violation.message}", file=sys.stderr)
    return _fail(
        f"the {check.subject} is not valid: {check.found:,} violation{'s' if check.found > 1 else ''}",
        1,
    )


# The verbs of this module register at import, and so do these, behind them in the list of commands.
from tacos.cli import running  # noqa: F401
