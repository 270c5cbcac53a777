"""The verbs that make algorithms and compare them: synth, pareto, tune, compare, bound."""

from __future__ import annotations

import json
import textwrap
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import tacos
from tacos import formats, units
from tacos._core import Schedule
from tacos.cli.app import (
    AnyOrder,
    Chunks,
    Group,
    Json,
    Kind,
    Network,
    Quiet,
    Root,
    Seed,
    Size,
    app,
    asked_collective,
    check_folder,
    load_algorithm,
    warn,
)
from tacos.cli.viewing import check_page, write_page
from tacos.console import front_table, print_table, progress, ranges_table, show, width
from tacos.execution import TARGETS, execution
from tacos.tune import check_formats

Target = Annotated[
    str | None,
    Parameter(
        help=f"What will execute it: {', '.join(TARGETS)}; by default the slowest rule counts."
    ),
]


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
    seed: Seed = 0,
    effort: Annotated[
        str, Parameter(help="fast, normal, high, or a number: times 10 s of work.")
    ] = "normal",
    time_limit: Annotated[
        float | None, Parameter(help="Seconds after which the best so far is taken.")
    ] = None,
    sketch: Annotated[
        Path | None, Parameter(help="What the schedule may use: a sketch, ours or TACCL's.")
    ] = None,
    output: Annotated[
        Path | None, Parameter(name=["-o", "--output"], help="A .tacos file, or another format.")
    ] = None,
    html: Annotated[
        Path | None,
        Parameter(help="Show it in this page: chunks on their way, as tacos view does."),
    ] = None,
    plan: Annotated[
        Path | None, Parameter(help="A plan directory to put it into, for TACOS_PLANS.")
    ] = None,
    min_bytes: Annotated[str, Parameter(help="Smallest size that the plan serves.")] = "0B",
    max_bytes: Annotated[
        str | None, Parameter(help="Largest size that the plan serves; none by default.")
    ] = None,
    verify: Annotated[
        bool, Parameter(help="Verify the schedule; without, it is marked as unverified.")
    ] = True,
    target: Target = None,
    any_order: AnyOrder = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Synthesize a schedule, verify it, and save it.

    Example: tacos synth torus:8x8 all-reduce 64MB -o ar.tacos
    """
    if output is not None:
        _check_target(output)
    if html is not None:
        check_page("--html", html)
    least, most = _served(plan, min_bytes, max_bytes)
    network = formats.network(topology)
    wanted = asked_collective(network, collective, size, chunks, group, root)
    begin = time.perf_counter()
    with progress("synthesizing", quiet or as_json) as report, warnings.catch_warnings():
        warnings.simplefilter("ignore", tacos.errors.WrongScheduleWarning)  # printed below
        schedule = tacos.synthesize(
            network,
            wanted,
            engine=engine,
            seed=seed,
            effort=int(effort) if effort.isdecimal() else effort,
            time_limit=time_limit,
            progress=report,
            sketch=sketch,
            verify=verify,
            target=target,
            consistent=not any_order,
        )
    took = time.perf_counter() - begin
    for sentence in schedule.provenance.get("rejected", []):
        warn(sentence)
    if schedule.provenance.get("consistent") is False:
        warn(f"ranks may end with different bits: {tacos.verify(schedule).difference}")
    if output is not None:
        formats.save(schedule, output)
    facts = tacos.summary(schedule) | {"synthesis_s": took, "verified": verify}
    facts |= {name: schedule.provenance[name] for name in _REMARKS if name in schedule.provenance}
    facts |= executed.rows(target) if (executed := execution(schedule)) else {}
    facts |= _others(schedule)
    if output is not None:
        facts["file"] = str(output)
    if html is not None:
        write_page(html, [schedule], [f"{collective} on {topology}"], None, quiet or as_json)
        facts["page"] = str(html)
    if plan is not None:
        from tacos.runtime import plans

        added = plans.add(plan, schedule, min_bytes=least, max_bytes=most)
        facts["plan"] = str(plan / added.file)
    show(facts, "schedule", as_json, quiet)
    return 0


_REMARKS = ("proven", "gap", "note", "cut_short", "consistent")


def _others(schedule: Schedule) -> dict[str, Any]:
    """Whom auto's winner has beaten, and by how much."""
    times: dict[str, float] = schedule.provenance.get("best_of", {})
    others = [name for name in times if name != schedule.provenance["engine"]]
    if not others:
        return {}
    second = others[0]
    more = times[second] / schedule.time_s - 1 if schedule.time_s else 0.0
    return {"best_of": len(times), "runner_up": f"{second}, {100 * more:.1f} % more time"}


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
    wanted = asked_collective(network, collective, size, "auto", group, root)
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
        which = " that first reduces and scatters" * (wanted.kind == "all_reduce")
        print(f"No algorithm{which} has fewer than {front.least_rounds} rounds per chunk.")
        if front.cut_short:
            print(f"The search was cut short after {time_limit:g} s (--time-limit).")
    return 0


@app.command
def tune(
    topology: Network,
    collective: Kind,
    /,
    *,
    sizes: Annotated[
        str, Parameter(help="From one to another, sampled every 4 times: 1KB:4GB, 1KB:4GB:2.")
    ] = "1KB:4GB",
    group: Group = None,
    root: Root = None,
    tolerance: Annotated[
        float, Parameter(help="How much slower than the best an algorithm may be at a size.")
    ] = 0.02,
    seed: Seed = 0,
    effort: Annotated[
        str, Parameter(help="fast, normal, high, or a number, for each sampled size.")
    ] = "normal",
    time_limit: Annotated[
        float | None, Parameter(help="Seconds after which the sizes so far are the result.")
    ] = None,
    output: Annotated[
        Path | None,
        Parameter(name=["-o", "--output"], help="A plan directory, for TACOS_PLANS."),
    ] = None,
    to: Annotated[
        str, Parameter(help="Files of other formats beside: msccl, mscclpp or both.")
    ] = "",
    any_order: AnyOrder = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Find the best algorithm for each size, and write files that serve all of them.

    Example: tacos tune dgx-h100:2 all-reduce --sizes 1KB:4GB -o plans --to msccl,mscclpp
    """
    from tacos.runtime import plans

    others = [name for name in to.split(",") if name]
    if others and output is None:
        raise ValueError("--to is for files: give a directory with --output DIR too")
    if output is not None:
        if output.exists() and not output.is_dir():
            raise ValueError(f"--output is {output}, which is no directory")
        check_folder("--output", output)
        if (output / plans.FILE).exists():
            plans.Plans.load(output)  # what would only fail after the work fails before it
    check_formats(others)
    network = formats.network(topology)
    wanted = asked_collective(network, collective, 1 << 20, "auto", group, root)
    with progress("tuning", quiet or as_json) as report:
        table = tacos.tune(
            network,
            collective,
            sizes,
            group=None if group is None else wanted.parts[0].group.tolist(),
            root=root,
            tolerance=tolerance,
            seed=seed,
            effort=int(effort) if effort.isdecimal() else effort,
            time_limit=time_limit,
            consistent=not any_order,
            progress=report,
        )
    left_out = [] if output is None else table.save(output, to=others)
    if as_json:
        print(json.dumps({"ranges": table.rows(), "left_out": left_out}, indent=2))
    elif not quiet:
        print_table(ranges_table(f"{collective} on {topology}", table.rows()))
        for line in left_out:
            print(textwrap.fill(line, width()))
        if table.cut_short:
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
    seed: Seed = 0,
    time_limit: Annotated[
        float, Parameter(help="Seconds for each engine and size, as a guard.")
    ] = 60.0,
    csv: Annotated[Path | None, Parameter(help="Write all figures into this file.")] = None,
    output: Annotated[
        Path | None, Parameter(name=["-o", "--output"], help="Draw it: a .svg or .png file.")
    ] = None,
    any_order: AnyOrder = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run all engines that apply side by side and verify each, at one size or over many.

    Example: tacos compare dgx-h100:4 all-reduce --sweep 1KB:4GB -o all-reduce.svg
    """
    from tacos import view

    for option, path in (("--csv", csv), ("--output", output)):
        if path is not None:
            check_folder(option, path)
    if output is not None:
        view.checked(output)
    network = formats.network(topology)
    asked: list[str | int] = [*sizes]
    if sweep is not None:
        asked += units.size_range(sweep, what="--sweep")
    if not asked:
        raise ValueError("there is no SIZE: give one or more, such as 64MB, or --sweep 1KB:4GB")
    wanted = [asked_collective(network, collective, size, chunks, group, root) for size in asked]
    names = engines.split(",") if engines else None
    with progress("comparing", quiet or as_json) as report:
        found = tacos.compare(
            network,
            wanted,
            engines=names,
            beside={_short(path, beside): load_algorithm(path) for path in beside},
            seed=seed,
            time_limit=time_limit,
            consistent=not any_order,
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
    wrong = any(candidate.wrong for one in found.comparisons for candidate in one.candidates)
    return 0 if all(one.solved for one in found.comparisons) and not wrong else 1


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
    wanted = asked_collective(network, collective, size, chunks, group, root)
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


def _check_target(path: Path) -> None:
    """What would only fail after the work fails before it."""
    if not formats.takes(Schedule, path):
        raise ValueError(f"--output is {path}, a file that holds no schedule")
    check_folder("--output", path)


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


def _short(path: Path, others: tuple[Path, ...]) -> str:
    """A file's name, with its folder where others have the same."""
    return path.name if [other.name for other in others].count(path.name) == 1 else str(path)
