"""The commands that find algorithms and compare them: synth, pareto, tune, compare, bound."""

from __future__ import annotations

import json
import textwrap
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import tacos
from tacos import collective as collectives
from tacos import formats, units
from tacos._core import Schedule
from tacos._support.files import watched
from tacos.cli.app import (
    AnyOrder,
    Chunks,
    Group,
    Json,
    Kind,
    Network,
    On,
    Quiet,
    Root,
    Seed,
    Size,
    app,
    asked_collective,
    bottleneck,
    check_folder,
    files_facts,
    load_algorithm,
    warn,
    workers_on,
)
from tacos.cli.viewing import check_page, write_page
from tacos.console import front_table, print_table, progress, ranges_table, show, width
from tacos.execution import execution, targets
from tacos.nodes import Nodes
from tacos.search.tune import check_formats

Target = Annotated[
    str | None,
    Parameter(
        help=f"What will execute it: {', '.join(targets())}. By default, the slowest of three rules for links counts: "
        "schedule order, first come, or shared."
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
        str,
        Parameter(help="Engine to use; auto takes the fastest. tacos compare --verbose shows all."),
    ] = "auto",
    chunks: Chunks = "auto",
    group: Group = None,
    root: Root = None,
    seed: Seed = 0,
    effort: Annotated[
        str,
        Parameter(help="Work to spend: fast, normal (about 2 s), high, or a multiple of normal."),
    ] = "normal",
    time_limit: Annotated[
        float | None, Parameter(help="Return the best schedule found after this many seconds.")
    ] = None,
    sketch: Annotated[
        Path | None,
        Parameter(help="A sketch file that restricts the schedule, in our format or TACCL's."),
    ] = None,
    output: Annotated[
        Path | None,
        Parameter(name=["-o", "--output"], help="Save as .tacos, or in another schedule format."),
    ] = None,
    html: Annotated[
        Path | None,
        Parameter(help="Write an animated page of the schedule, as tacos view does."),
    ] = None,
    plan: Annotated[
        Path | None, Parameter(help="Add the schedule to this plan directory, for TACOS_PLANS.")
    ] = None,
    min_bytes: Annotated[str, Parameter(help="Smallest size to use the plan for.")] = "0B",
    max_bytes: Annotated[
        str | None, Parameter(help="Largest size to use the plan for; unlimited by default.")
    ] = None,
    verify: Annotated[
        bool, Parameter(help="Verify the schedule; --no-verify marks it as unverified.")
    ] = True,
    target: Target = None,
    any_order: AnyOrder = False,
    device: Annotated[
        str,
        Parameter(
            help="With --engine greedy: cpu, cuda (an NVIDIA GPU), or auto (a GPU if possible)."
        ),
    ] = "cpu",
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
            device=device,
        )
    took = time.perf_counter() - begin
    for sentence in schedule.rejected:
        warn(sentence)
    if not schedule.consistent:
        warn(f"ranks may end with different bits: {tacos.verify(schedule).difference}")
    with watched() as written:
        if output is not None:
            formats.save(schedule, output)
    facts = tacos.summary(schedule) | {"synthesis_s": took, "verified": verify}
    facts |= {name: schedule.provenance[name] for name in _REMARKS if name in schedule.provenance}
    if executed := execution(schedule, target=target):
        facts |= executed.rows(target)
    facts |= _others(schedule) | bottleneck(schedule)
    if output is not None:
        facts |= files_facts(written, output, network)
    if html is not None:
        write_page(html, [schedule], [f"{collective} on {topology}"], None, quiet or as_json)
        facts["page"] = str(html)
    if plan is not None:
        from tacos import library

        added = library.add(plan, schedule, min_bytes=least, max_bytes=most)
        facts["plan"] = str(plan / added.file)
    show(facts, "schedule", as_json, quiet)
    return 0


_REMARKS = ("proven", "gap", "note", "cut_short", "consistent")


def _others(schedule: Schedule) -> dict[str, Any]:
    """Return the runner-up to auto's answer, and by how much it is slower."""
    times: dict[str, float] = schedule.provenance.get("best_of", {})
    others = [name for name in times if name != schedule.engine]
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
    size: Annotated[str, Parameter(help="Buffer size to compute times for.")] = "1MB",
    group: Group = None,
    root: Root = None,
    max_chunks: Annotated[int, Parameter(help="The largest number of chunks per part to try.")] = 8,
    max_steps: Annotated[int | None, Parameter(help="The largest number of steps to try.")] = None,
    time_limit: Annotated[float, Parameter(help="Stop the search after this many seconds.")] = 60.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Find the algorithms that trade latency (fewest steps) for bandwidth (fewest rounds per chunk).

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
        which = " that first reduces and scatters" * all(
            collectives.kind_of(part).two_phases for part in wanted.parts
        )
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
        str,
        Parameter(help="Range of sizes LOW:HIGH, sampled by a factor of 4, or LOW:HIGH:FACTOR."),
    ] = "1KB:4GB",
    group: Group = None,
    root: Root = None,
    tolerance: Annotated[
        float,
        Parameter(help="How much slower than the fastest an algorithm may be; 0.02 is 2 %."),
    ] = 0.02,
    seed: Seed = 0,
    effort: Annotated[
        str, Parameter(help="Work for each sampled size: fast, normal, high, or a number.")
    ] = "normal",
    time_limit: Annotated[
        float | None,
        Parameter(help="Stop after this many seconds and return the sizes done so far."),
    ] = None,
    output: Annotated[
        Path | None,
        Parameter(name=["-o", "--output"], help="Write a plan directory, for TACOS_PLANS."),
    ] = None,
    to: Annotated[
        str,
        Parameter(
            show_default=False,
            help="Also write files of these formats: msccl, mscclpp, or msccl,mscclpp.",
        ),
    ] = "",
    target: Target = None,
    any_order: AnyOrder = False,
    on: On = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Find the best algorithm for each size of a range, and write them all to a plan directory.

    Example: tacos tune dgx-h100:2 all-reduce --sizes 1KB:4GB -o plans --to msccl,mscclpp
    """
    from tacos import library

    others = [name for name in to.split(",") if name]
    if others and output is None:
        raise ValueError("--to needs a directory to write to: add --output DIR")
    if output is not None:
        check_folder("--output", output, directory=True)
        if (output / library.FILE).exists():
            library.Plans.load(output)  # what would only fail after the work fails before it
    check_formats(others)
    network = formats.network(topology)
    wanted = asked_collective(network, collective, 1 << 20, "auto", group, root)
    with workers_on(on) as executor, progress("tuning", quiet or as_json) as report:
        table = tacos.tune(
            network,
            collective,
            sizes,
            group=None if group is None else wanted.parts[0].group.tolist(),
            root=None if root is None else Nodes(network).npu(root, what="--root"),
            tolerance=tolerance,
            seed=seed,
            effort=int(effort) if effort.isdecimal() else effort,
            time_limit=time_limit,
            consistent=not any_order,
            target=target,
            executor=executor,
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
        str | None,
        Parameter(help="Sizes from LOW to HIGH, doubling: 1KB:4GB; or by a factor: 1KB:4GB:4."),
    ] = None,
    engines: Annotated[
        str | None, Parameter(help="Names separated by commas; all that apply by default.")
    ] = None,
    beside: Annotated[
        tuple[Path, ...],
        Parameter(
            name="--with",
            negative="",
            show_default=False,
            help="Also compare an algorithm from a file: MSCCL, MSCCL++, Chakra, SCCL, TE-CCL, …",
        ),
    ] = (),
    chunks: Chunks = "auto",
    group: Group = None,
    root: Root = None,
    seed: Seed = 0,
    time_limit: Annotated[
        float, Parameter(help="Stop an engine after this many seconds per size.")
    ] = 60.0,
    csv: Annotated[Path | None, Parameter(help="Write all figures to this file.")] = None,
    output: Annotated[
        Path | None, Parameter(name=["-o", "--output"], help="Draw a chart as .svg, .png or .pdf.")
    ] = None,
    target: Target = None,
    any_order: AnyOrder = False,
    verbose: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Show all engines, and why some do not apply.",
        ),
    ] = False,
    on: On = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compare all engines that apply, at one size or many, and verify every schedule.

    Prints the fastest engines; --verbose prints all of them, and why some do not apply.

    Example: tacos compare dgx-h100:4 all-reduce --sweep 1KB:4GB -o all-reduce.svg
    """
    from tacos import view

    for option, path in (("--csv", csv), ("--output", output)):
        if path is not None:
            check_folder(option, path)
    if output is not None:
        view.checked(output, what="--output")
    network = formats.network(topology)
    asked = [units.size_bytes(size) for size in sizes]
    if sweep is not None:
        asked += units.size_range(sweep, what="--sweep")
    if not asked:
        raise ValueError("SIZE is missing: give one or more, such as 64MB, or --sweep 1KB:4GB")
    wanted = [
        asked_collective(network, collective, size, chunks, group, root)
        for size in sorted(set(asked))
    ]
    names = engines.split(",") if engines else None
    with workers_on(on) as executor, progress("comparing", quiet or as_json) as report:
        found = tacos.compare(
            network,
            wanted,
            engines=names,
            beside={_short(path, beside): load_algorithm(path) for path in beside},
            seed=seed,
            time_limit=time_limit,
            consistent=not any_order,
            target=target,
            executor=executor,
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
        for table in view.comparison_tables(result, topology, width(), brief=not verbose):
            print_table(table)
        words = view.remarks(result, brief=not verbose)
        print(*(textwrap.fill(line, width(), break_on_hyphens=False) for line in words), sep="\n")
    wrong = any(candidate.wrong for one in found.comparisons for candidate in one.candidates)
    return 0 if all(one.solved for one in found.comparisons) and not wrong else 1


@app.command
def bound(
    topology: Network,
    collective: Kind,
    size: Size,
    /,
    *,
    chunks: Annotated[
        str, Parameter(help="Number of chunks per part; auto allows arbitrarily small chunks.")
    ] = "auto",
    group: Group = None,
    root: Root = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compute a time that no schedule can beat, and explain what limits it.

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
    """Check the output path before the work instead of after it."""
    if not formats.takes(Schedule, path):
        raise ValueError(
            f"--output is {path}, but this format cannot hold a schedule; use .tacos, .xml or .json"
        )
    check_folder("--output", path)


def _served(plan: Path | None, least: str, most: str | None) -> tuple[int, int | None]:
    """Return the range of sizes of a plan."""
    if plan is None and (least != "0B" or most is not None):
        raise ValueError("--min-bytes and --max-bytes need a plan directory: add --plan DIR")
    if plan is not None and plan.exists() and not plan.is_dir():
        raise ValueError(f"--plan is {plan}, which is not a directory")
    low = 0 if least in ("0B", "0") else units.size_bytes(least, what="--min-bytes")
    high = None if most is None else units.size_bytes(most, what="--max-bytes")
    if high is not None and high < low:
        raise ValueError(f"--max-bytes is {most}, below --min-bytes, which is {least}")
    return low, high


def _short(path: Path, others: tuple[Path, ...]) -> str:
    """Return a file's name, with its directory if another file has the same name."""
    return path.name if [other.name for other in others].count(path.name) == 1 else str(path)
