"""The commands that find algorithms and compare them: synth, pareto, tune, compare, bound."""

from __future__ import annotations

import json
import textwrap
import time
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import tacos
from tacos import collective as collectives
from tacos import formats, units
from tacos._core import Schedule
from tacos._support.files import watched
from tacos.cli.app import (
    app,
    bottleneck,
    executed_rows,
    files_facts,
    load_algorithm,
    warn,
    workers_on,
)
from tacos.cli.options import (
    DIRECTORIES,
    ENGINES,
    PLAIN,
    Chunks,
    Effort,
    Figures,
    Kind,
    Members,
    Network,
    On,
    Output,
    Seed,
    Size,
    Values,
    check_folder,
    effort_of,
    endings,
    offered,
)
from tacos.console import front_table, print_table, progress, ranges_table, width
from tacos.targets import bound_for, check_held, targets


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Aim:
    """What will execute an algorithm."""

    target: Annotated[
        str | None,
        Values(targets),
        Parameter(
            help=f"What will execute it: {', '.join(targets())}. By default, the slowest of three rules for links counts: "
            "schedule order, first come, or shared. All but schedule exclude sums in switches, and so do "
            "plans and files of programs."
        ),
    ] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Wanted(Aim):
    """What an algorithm must be good for."""

    any_order: Annotated[
        bool,
        PLAIN,
        Parameter(
            help="Also accept algorithms that may leave ranks with different bits of a floating-point sum."
        ),
    ] = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a search."""
        return {"target": self.target, "consistent": not self.any_order}

    def by_default(self, target: str | None) -> Wanted:
        """Return the same with another target, if none was given."""
        return self if self.target is not None else replace(self, target=target)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Search:
    """How much to search."""

    seed: Seed = 0
    effort: Effort = "normal"
    time_limit: Annotated[
        float | None, Parameter(help="Return the best found so far after this many seconds.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a search."""
        effort = effort_of(self.effort)
        return {"seed": self.seed, "effort": effort, "time_limit": self.time_limit}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Results:
    """Where a schedule goes: a file, a page, and a plan directory, for some sizes."""

    output: Annotated[
        Path | None,
        Values(files=endings("Schedule", written=True)),
        Parameter(name=["-o", "--output"], help="Save as .tacos, or in another schedule format."),
    ] = None
    html: Annotated[
        Path | None,
        offered(files=(".html",)),
        Parameter(help="Write an animated page of the schedule, as tacos view does."),
    ] = None
    plan: Annotated[
        Path | None,
        DIRECTORIES,
        Parameter(help="Add the schedule to this plan directory, for TACOS_PLANS."),
    ] = None
    min_bytes: Annotated[str, Parameter(help="Smallest size to use the plan for.")] = "0B"
    max_bytes: Annotated[
        str | None, Parameter(help="Largest size to use the plan for; unlimited by default.")
    ] = None

    def __post_init__(self) -> None:
        """Refuse files that cannot be written, and sizes without a plan, before the work."""
        if self.output is not None:
            _check_target(self.output)
        if self.html is not None:
            from tacos.cli.viewing import check_page

            check_page("--html", self.html)
        if self.plan is None and (self.min_bytes != "0B" or self.max_bytes is not None):
            raise ValueError("--min-bytes and --max-bytes need a plan directory: add --plan DIR")
        if self.plan is not None and self.plan.exists() and not self.plan.is_dir():
            raise ValueError(f"--plan is {self.plan}, which is not a directory")
        least, most = self.sizes
        if most is not None and most < least:
            raise ValueError(
                f"--max-bytes is {self.max_bytes}, below --min-bytes, which is {self.min_bytes}"
            )

    @property
    def sizes(self) -> tuple[int, int | None]:
        """The range of sizes in bytes."""
        none = self.min_bytes in ("0B", "0")
        least = 0 if none else units.size_bytes(self.min_bytes, what="--min-bytes")
        most = self.max_bytes
        return least, None if most is None else units.size_bytes(most, what="--max-bytes")

    @property
    def executor(self) -> str | None:
        """The target that executes the file; None if it is for none."""
        return None if self.output is None else formats.executor_of(self.output)

    @property
    def target(self) -> str | None:
        """The target if none is named: a plan and most files hold a program, which cannot express sums in switches."""
        if self.plan is not None:
            return "program"
        return None if self.output is None or formats.holds_switch_sums(self.output) else "program"

    def write(self, schedule: Schedule, title: str, out: Output) -> dict[str, Any]:
        """Write the files; return what to say about them."""
        facts: dict[str, Any] = {}
        if self.output is not None:
            with watched() as written:
                formats.save(schedule, self.output)
            facts |= files_facts(written, self.output, schedule.topology)
        if self.html is not None:
            from tacos.cli.viewing import write_page

            write_page(self.html, [schedule], [title], None, out.silent)
            facts["page"] = str(self.html)
        if self.plan is not None:
            from tacos import library

            least, most = self.sizes
            added = library.add(self.plan, schedule, min_bytes=least, max_bytes=most)
            facts["plan"] = str(self.plan / added.file)
        return facts


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Method:
    """How a schedule is found."""

    engine: Annotated[
        str,
        ENGINES,
        Parameter(help="Engine to use; auto takes the fastest. tacos compare --verbose shows all."),
    ] = "auto"
    sketch: Annotated[
        Path | None,
        Parameter(help="A sketch file that restricts the schedule, in our format or TACCL's."),
    ] = None
    verify: Annotated[
        bool, Parameter(help="Verify the schedule; --no-verify marks it as unverified.")
    ] = True
    device: Annotated[
        str,
        offered("cpu", "cuda", "auto"),
        Parameter(
            help="With --engine greedy: cpu, cuda (an NVIDIA GPU), or auto (a GPU if possible)."
        ),
    ] = "cpu"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a synthesis."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@app.command
def synth(
    topology: Network,
    collective: Kind,
    size: Size,
    /,
    *,
    method: Method = Method(),
    chunks: Chunks = "auto",
    members: Members = Members(),
    search: Search = Search(),
    results: Results = Results(),
    wanted: Wanted = Wanted(),
    verbose: Annotated[
        bool, PLAIN, Parameter(help="Show how the search of each engine ended.")
    ] = False,
    out: Output = Output(),
) -> int:
    """Synthesize a schedule, verify it, and save it.

    Example: tacos synth torus:8x8 all-reduce 64MB -o ar.tacos
    """
    network = formats.network(topology)
    problem = members.collective(network, collective, size, chunks)
    wanted = wanted.by_default(results.target)
    if results.executor is not None:
        check_held(problem, results.executor, f"--output is {results.output}")
    begin = time.perf_counter()
    with progress("synthesizing", out.silent) as report, warnings.catch_warnings():
        warnings.simplefilter("ignore", tacos.errors.WrongScheduleWarning)  # printed below
        schedule = tacos.synthesize(
            network,
            problem,
            progress=report,
            **method.arguments(),
            **search.arguments(),
            **wanted.arguments(),
        )
    took = time.perf_counter() - begin
    for sentence in schedule.rejected:
        warn(sentence)
    if not schedule.consistent:
        warn(f"ranks may end with different bits: {tacos.verify(schedule).difference}")
    facts = tacos.summary(schedule) | {"synthesis_s": took, "verified": method.verify}
    facts |= {name: schedule.provenance[name] for name in _REMARKS if name in schedule.provenance}
    facts |= executed_rows(schedule) | _others(schedule) | bottleneck(schedule)
    facts |= _without_sums(schedule, wanted.target) | _faults(schedule, numbers=out.as_json)
    if (verbose or out.as_json) and "ends" in schedule.provenance:
        facts["ends"] = schedule.provenance["ends"]
    facts |= results.write(schedule, f"{collective} on {topology}", out)
    out.show(facts, "schedule")
    return 0


def _without_sums(schedule: Schedule, target: str | None) -> dict[str, str]:
    """Return what sums in switches would gain, if the target cannot express them."""
    plain_ps, summed_ps = schedule.bound_ps, schedule.in_switch_bound_ps
    if plain_ps is None or summed_ps is None:
        return {}
    plain, summed = (units.format_time(ps * 1e-12) for ps in (plain_ps, summed_ps))
    return {
        "in_switch_sums": f"would lower the bound from {plain} to {summed}; the target {target} cannot express them"
    }


def _faults(schedule: Schedule, *, numbers: bool) -> dict[str, Any]:
    """Return what the network's faults cost, in words and, for scripts, as numbers."""
    from tacos.search.fault_cost import fault_cost

    cost = fault_cost(schedule)
    if cost is None:
        return {}
    figures = {"healthy_bound_s": cost.healthy_bound_s, "nccl_s": cost.nccl_s}
    return {"faults": str(cost)} | (figures if numbers else {})


_REMARKS = ("proven", "gap", "note", "cut_short", "consistent")


def _others(schedule: Schedule) -> dict[str, Any]:
    """Return the runner-up to auto's answer, and by how much it is slower."""
    times: dict[str, float] = schedule.provenance.get("best_of", {})
    others = [name for name in times if name != schedule.engine]
    if not others:
        return {}
    second = others[0]
    best_s = times[schedule.engine]
    more = times[second] / best_s - 1 if best_s else 0.0
    return {"best_of": len(times), "runner_up": f"{second}, {100 * more:.1f} % more time"}


@app.command
def pareto(
    topology: Network,
    collective: Kind,
    /,
    *,
    size: Annotated[str, Parameter(help="Buffer size to compute times for.")] = "1MB",
    members: Members = Members(),
    max_chunks: Annotated[int, Parameter(help="The largest number of chunks per part to try.")] = 8,
    max_steps: Annotated[int | None, Parameter(help="The largest number of steps to try.")] = None,
    time_limit: Annotated[float, Parameter(help="Stop the search after this many seconds.")] = 60.0,
    out: Output = Output(),
) -> int:
    """Find the algorithms that trade latency (fewest steps) for bandwidth (fewest rounds per chunk).

    Example: tacos pareto dgx-1 all-gather
    """
    network = formats.network(topology)
    problem = members.collective(network, collective, size)
    with progress("solving", out.silent) as report:
        front = tacos.pareto(
            network,
            problem,
            max_chunks=max_chunks,
            max_steps=max_steps,
            time_limit=time_limit,
            progress=report,
        )
    if out.as_json:
        print(
            json.dumps({"least_rounds": str(front.least_rounds), "points": front.rows()}, indent=2)
        )
    elif not out.quiet:
        print_table(front_table(f"{collective} on {topology}, {size}", front.rows()))
        which = " that first reduces and scatters" * all(
            collectives.kind_of(part).two_phases for part in problem.parts
        )
        print(f"No algorithm{which} has fewer than {front.least_rounds} rounds per chunk.")
        if front.cut_short:
            print(f"The search was cut short after {time_limit:g} s (--time-limit).")
    return 0


def _executed() -> list[str]:
    """Return the formats whose files an executor runs."""
    return [name for name, one in formats.FORMATS.items() if one.executor is not None]


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
    members: Members = Members(),
    tolerance: Annotated[
        float,
        Parameter(help="How much slower than the fastest an algorithm may be; 0.02 is 2 %."),
    ] = 0.02,
    search: Search = Search(),
    output: Annotated[
        Path | None,
        DIRECTORIES,
        Parameter(name=["-o", "--output"], help="Write a plan directory, for TACOS_PLANS."),
    ] = None,
    to: Annotated[
        str,
        Values(_executed, separator=","),
        Parameter(
            show_default=False,
            help="Also write files of these formats: msccl, mscclpp, or msccl,mscclpp.",
        ),
    ] = "",
    wanted: Wanted = Wanted(),
    on: On = None,
    out: Output = Output(),
) -> int:
    """Find the best algorithm for each size of a range, and write them all to a plan directory.

    Example: tacos tune dgx-h100:2 all-reduce --sizes 1KB:4GB -o plans --to msccl,mscclpp
    """
    from tacos import library
    from tacos.search.tune import check_formats

    others = [name for name in to.split(",") if name]
    if others and output is None:
        raise ValueError("--to needs a directory to write to: add --output DIR")
    if output is not None:
        check_folder("--output", output, directory=True)
        if (output / library.FILE).exists():
            library.Plans.load(output)  # what would only fail after the work fails before it
    check_formats(others)
    if output is not None:
        wanted = wanted.by_default("program")
    network = formats.network(topology)
    # What would only fail after the work fails before it.
    problem = members.collective(network, collective, 1 << 20)
    for name in others:
        check_held(problem, name, f"--to is {name}")
    with workers_on(on) as executor, progress("tuning", out.silent) as report:
        table = tacos.tune(
            network,
            collective,
            sizes,
            group=members.members(network),
            root=members.head(network),
            tolerance=tolerance,
            executor=executor,
            progress=report,
            **search.arguments(),
            **wanted.arguments(),
        )
    left_out = [] if output is None else table.save(output, to=others)
    if out.as_json:
        print(json.dumps({"ranges": table.rows(), "left_out": left_out}, indent=2))
    elif not out.quiet:
        print_table(ranges_table(f"{collective} on {topology}", table.rows()))
        for line in left_out:
            print(textwrap.fill(line, width()))
        if table.cut_short:
            print(f"The search was cut short after {search.time_limit:g} s (--time-limit).")
    return 0


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Candidates:
    """What is compared, and how long it may take."""

    engines: Annotated[
        str | None,
        replace(ENGINES, separator=","),
        Parameter(help="Names separated by commas; all that apply by default."),
    ] = None
    beside: Annotated[
        tuple[Path, ...],
        Values(files=endings("Schedule", "Program")),
        PLAIN,
        Parameter(
            name="--with",
            help="Also compare an algorithm from a file: MSCCL, MSCCL++, Chakra, SCCL, TE-CCL, …",
        ),
    ] = ()
    seed: Seed = 0
    time_limit: Annotated[
        float, Parameter(help="Stop an engine after this many seconds per size.")
    ] = 60.0

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a comparison."""
        return {
            "engines": self.engines.split(",") if self.engines else None,
            "beside": {_short(path, self.beside): load_algorithm(path) for path in self.beside},
            "seed": self.seed,
            "time_limit": self.time_limit,
        }


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
    candidates: Candidates = Candidates(),
    chunks: Chunks = "auto",
    members: Members = Members(),
    figures: Figures = Figures(),
    wanted: Wanted = Wanted(),
    verbose: Annotated[
        bool, PLAIN, Parameter(help="Show all engines, and why some do not apply.")
    ] = False,
    on: On = None,
    out: Output = Output(),
) -> int:
    """Compare all engines that apply, at one size or many, and verify every schedule.

    Prints the fastest engines; --verbose prints all of them, and why some do not apply.

    Example: tacos compare dgx-h100:4 all-reduce --sweep 1KB:4GB -o all-reduce.svg
    """
    from tacos import view

    network = formats.network(topology)
    asked = [units.size_bytes(size) for size in sizes]
    if sweep is not None:
        asked += units.size_range(sweep, what="--sweep")
    if not asked:
        raise ValueError("SIZE is missing: give one or more, such as 64MB, or --sweep 1KB:4GB")
    problems = [
        members.collective(network, collective, size, chunks) for size in sorted(set(asked))
    ]
    with workers_on(on) as executor, progress("comparing", out.silent) as report:
        found = tacos.compare(
            network,
            problems,
            executor=executor,
            progress=report,
            **candidates.arguments(),
            **wanted.arguments(),
        )
    result = found if len(problems) > 1 else found.comparisons[0]
    if figures.csv is not None:
        view.write_csv(result, figures.csv)
    if figures.output is not None:
        view.save(view.picture(result, topology), figures.output)
    if out.as_json:
        print(json.dumps(result.rows(), indent=2))
    elif not out.quiet:
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
    members: Members = Members(),
    wanted: Aim = Aim(),
    out: Output = Output(),
) -> int:
    """Compute a time that no schedule can beat, and explain what limits it.

    Example: tacos bound dgx-h100:4 all-reduce 1GB
    """
    network = formats.network(topology)
    problem = members.collective(network, collective, size, chunks)
    with progress("bounding", out.silent) as report:
        check_held(problem, wanted.target)
        best = bound_for(network, problem, wanted.target, progress=report)
    facts: dict[str, Any] = {"time_s": best.time_s}
    if best.in_switch_ps is not None:
        facts["in_switch_bound_s"] = best.in_switch_ps * 1e-12
    if best.time_ps:
        facts["algbw_Bps"] = problem.size_bytes / best.time_s
        facts["busbw_Bps"] = facts["algbw_Bps"] * problem.bus_factor
    facts |= {"latency_s": best.latency_s, "bandwidth_s": best.bandwidth_s}
    facts |= {"exact": best.exact, "why": best.why}
    if out.as_json:
        facts["cut"] = list(best.cut)
    out.show(facts, "bound")
    return 0


def _check_target(path: Path) -> None:
    """Check the output path before the work instead of after it."""
    if not formats.takes(Schedule, path):
        raise ValueError(
            f"--output is {path}, but this format cannot hold a schedule; use .tacos, .xml or .json"
        )
    check_folder("--output", path)


def _short(path: Path, others: tuple[Path, ...]) -> str:
    """Return a file's name, with its directory if another file has the same name."""
    return path.name if [other.name for other in others].count(path.name) == 1 else str(path)
