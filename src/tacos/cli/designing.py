"""The command that designs networks: design."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from tacos import design as networks
from tacos import formats, units
from tacos._core import Topology
from tacos.cli.app import Json, On, Quiet, app, check_folder, workers_on
from tacos.console import print_table, progress, width


@app.command
def design(
    dims: Annotated[
        str | None,
        Parameter(
            help="Dimensions, the innermost first, such as ring:4*fc:8*switch:32, or LIBRA's network file."
        ),
    ] = None,
    /,
    *,
    job: Annotated[
        tuple[str, ...],
        Parameter(
            help="A job file, or the prefix of Chakra traces. May be repeated: times are added up.",
            negative="",
            show_default=False,
        ),
    ] = (),
    libra: Annotated[
        tuple[tuple[Path, Path], ...],
        Parameter(
            help="LIBRA's workload and communicator file. May be repeated.",
            negative="",
            show_default=False,
        ),
    ] = (),
    budget: Annotated[
        str | None,
        Parameter(
            help="Total bandwidth per NPU, such as 1000GB/s, or the largest cost, such as $20M."
        ),
    ] = None,
    objective: Annotated[
        Literal["time", "time*cost"], Parameter(help="What to minimise.")
    ] = "time",
    constraint: Annotated[
        tuple[str, ...],
        Parameter(
            help="Such as 'd0 >= d1', 'd2 + d3 == 200GB/s' or 'cost <= $20M'. May be repeated.",
            negative="",
            show_default=False,
        ),
    ] = (),
    cost: Annotated[
        Path | None, Parameter(help="LIBRA's cost file; by default its published prices.")
    ] = None,
    overlap: Annotated[
        Literal["none", "background", "full"],
        Parameter(
            help="none: one thing after another, as in LIBRA; background: collectives in the background overlap "
            "what follows them; full: everything overlaps."
        ),
    ] = "none",
    npus: Annotated[
        int | None,
        Parameter(
            help="Search the dimensions too: all shapes of this many NPUs, in place of DIMS."
        ),
    ] = None,
    max_dims: Annotated[int, Parameter(help="Shapes have at most this many dimensions.")] = 4,
    kinds: Annotated[
        str, Parameter(help="Kinds of dimensions that shapes may have.")
    ] = "ring,clique,switch",
    ports: Annotated[
        int | None, Parameter(help="Shapes use at most this many links per NPU.")
    ] = None,
    radix: Annotated[
        int | None, Parameter(help="Shapes have at most this many NPUs at a switch.")
    ] = None,
    points: Annotated[int, Parameter(help="Number of budgets on the time-cost front.")] = 13,
    finalists: Annotated[
        int, Parameter(help="Synthesize the collectives of this many of the best shapes.")
    ] = 0,
    latency: Annotated[str, Parameter(help="Latency of a link, for shapes.")] = "500ns",
    upgrade: Annotated[
        str | None,
        Parameter(
            help="Find which links of this network to upgrade first: a spec or a topology file."
        ),
    ] = None,
    spend: Annotated[
        str,
        Parameter(help="What an upgrade may cost: a share of what all links cost, or dollars."),
    ] = "10%",
    price: Annotated[
        tuple[str, ...],
        Parameter(
            help="Dollars per GB/s of links for an upgrade, such as 'npu-switch*=30'; 1 by default. May be repeated.",
            negative="",
            show_default=False,
        ),
    ] = (),
    per: Annotated[
        Literal["kind", "cable"], Parameter(help="Upgrade links of a kind together, or each cable.")
    ] = "kind",
    synthesize: Annotated[
        bool,
        Parameter(
            negative="",
            show_default=False,
            help="Also synthesize the job's collectives before and after an upgrade.",
        ),
    ] = False,
    csv: Annotated[Path | None, Parameter(help="Write the table to this file.")] = None,
    output: Annotated[
        Path | None, Parameter(name=["-o", "--output"], help="Draw a chart as .svg, .png or .pdf.")
    ] = None,
    save: Annotated[
        Path | None,
        Parameter(
            help="Save the network as a topology: the designed one, the last of the front, the upgraded one."
        ),
    ] = None,
    on: On = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Design a network for jobs: bandwidths of dimensions, their sizes and kinds, or links to upgrade.

    Example: tacos design 'ring:4*fc:8*ring:4*switch:32' --job gpt3.yaml --budget 1000GB/s
    """
    from tacos import view

    for option, path in (("--csv", csv), ("--output", output), ("--save", save)):
        if path is not None:
            check_folder(option, path)
    if output is not None:
        view.checked(output, what="--output")
    if on is not None and npus is None:
        raise ValueError("--on is for a search over shapes (--npus); the others take milliseconds")
    if sum(one is not None for one in (dims, npus, upgrade)) != 1:
        raise ValueError("give one of DIMS, --npus or --upgrade")
    jobs: list[Any] = [*job, *(networks.libra(*files) for files in libra)]
    if not jobs:
        raise ValueError(
            "--job is missing: a job file, Chakra traces, or --libra WORKLOAD COMMUNICATOR"
        )
    silent = quiet or as_json
    result: networks.Design | networks.NetworkFront | networks.Upgrade
    if dims is not None:
        with progress("designing", silent) as report:
            result = networks.optimize(
                dims,
                jobs,
                budget=budget,
                objective=objective,
                cost=cost,
                constraints=constraint,
                overlap=overlap,
                progress=report,
            )
        title = dims
    elif npus is not None:
        if budget is None:
            raise ValueError(
                "--budget is missing: a search over shapes needs the largest cost, such as $20M"
            )
        if constraint or objective != "time":
            raise ValueError(
                "--constraint and --objective need DIMS; shapes have --ports, --radix and --budget"
            )
        with workers_on(on) as executor, progress("searching", silent) as report:
            result = networks.shapes(
                npus,
                jobs,
                budget=budget,
                points=points,
                max_dims=max_dims,
                kinds=kinds.split(","),
                ports=ports,
                radix=radix,
                cost=cost,
                latency=latency,
                overlap=overlap,
                finalists=finalists,
                executor=executor,
                progress=report,
            )
        title = f"networks of {npus:,} NPUs"
    else:
        if len(jobs) > 1:
            raise ValueError("--upgrade takes one job")
        assert upgrade is not None
        with progress("upgrading", silent) as report:
            result = networks.upgrade(
                formats.network(upgrade),
                jobs[0],
                spend=spend,
                prices=dict(_price(text) for text in price),
                per=per,
                synthesized=synthesize,
                progress=report,
            )
        title = upgrade
    if save is not None:
        formats.save(_topology(result, latency), save)
    if csv is not None:
        view.rows_csv(result.rows(), csv)
    if output is not None:
        view.save(view.design_picture(result, title), output)
    if as_json:
        print(json.dumps(_facts(result) | {"rows": result.rows()}, indent=2))
    elif not quiet:
        for table in view.design_tables(result, title):
            print_table(table)
        print(*(textwrap.fill(line, width()) for line in _remarks(result)), sep="\n")
    return 0


def _topology(
    result: networks.Design | networks.NetworkFront | networks.Upgrade, latency: str
) -> Topology:
    """Return the network that was found."""
    if isinstance(result, networks.Upgrade):
        return result.topology
    best = result.points[-1] if isinstance(result, networks.NetworkFront) else result
    return networks.build(best.dims, best.bandwidths_Bps, latency=latency)


def _price(text: str) -> tuple[str, float]:
    pattern, _, number = text.rpartition("=")
    try:
        return pattern, float(number)
    except ValueError:
        raise ValueError(
            f"--price must be PATTERN=DOLLARS, such as 'npu-switch*=30'; got {text!r}"
        ) from None


def _facts(result: networks.Design | networks.NetworkFront | networks.Upgrade) -> dict[str, Any]:
    """Figures of the whole result, for scripts."""
    if isinstance(result, networks.NetworkFront):
        return {
            "shapes": result.shapes,
            "solved": result.solved,
            "runners_up": networks.NetworkFront(result.runners_up, 0, 0).rows(),
        }
    if isinstance(result, networks.Upgrade):
        names = ["spent", "bound_before_s", "bound_after_s", "lower_bound_s", "gap"]
        names += ["synthesized_before_s", "synthesized_after_s"]
        return {name: getattr(result, name) for name in names}
    names = ["objective", "time_s", "cost", "lower_bound", "gap", "times", "speed_up", "gain"]
    even = None if result.even is None else {"time_s": result.even[0], "cost": result.even[1]}
    return {name: getattr(result, name) for name in names} | {
        "even": even,
        "constraints": result.sensitivity.constraints,
    }


def _remarks(result: networks.Design | networks.NetworkFront | networks.Upgrade) -> list[str]:
    """Return notes that do not fit into the table."""
    if isinstance(result, networks.NetworkFront):
        notes = [
            f"The best of {result.shapes:,} shapes at each cost; {result.solved:,} were solved, bounds exclude the others."
        ]
        notes += [
            f"{one.label} was not synthesized: {one.note}."
            for one in (result.points[-1], *result.runners_up)
            if one.note
        ]
        return [*notes, f"Gap: {_gap(max(row['gap'] for row in result.rows()))}."]
    if isinstance(result, networks.Upgrade):
        faster = result.bound_before_s / result.bound_after_s
        before, after = (
            units.format_time(s) for s in (result.bound_before_s, result.bound_after_s)
        )
        notes = [
            f"{units.format_dollars(result.spent)} more: bound {before} to {after}, {faster:.3g} times as fast; gap {_gap(result.gap)}."
        ]
        if result.synthesized_before_s is not None and result.synthesized_after_s is not None:
            before, after = (
                units.format_time(s)
                for s in (result.synthesized_before_s, result.synthesized_after_s)
            )
            notes.append(f"With synthesized collectives: {before} to {after}.")
        return notes
    notes = [
        f"time {units.format_time(result.time_s)}, cost {units.format_dollars(result.cost)}, gap {_gap(result.gap)}"
    ]
    if len(result.times) > 1:
        notes.append(
            ", ".join(f"{name} {units.format_time(s)}" for name, s in result.times.items())
        )
    if result.even is not None and result.speed_up is not None and result.gain is not None:
        even = f"{units.format_time(result.even[0])} and {units.format_dollars(result.even[1])}"
        notes.append(
            f"The same bandwidth spread evenly: {even}; this is {result.speed_up:.3f} times as fast, "
            f"and time times cost is {result.gain:.3f} times lower."
        )
    for text, value in result.sensitivity.constraints.items():
        if value:
            what = "dollar" if "cost" in text else "GB/s"
            verb = "saves" if value > 0 else "costs"
            notes.append(
                f"Raising the limit of {text} by one {what} {verb} {units.format_time(abs(value))}."
            )
    return notes


def _gap(share: float) -> str:
    """Format the gap between a design and its bound; the solver's rounding errors are not a gap."""
    return f"{share:.1g}" if share > 1e-9 else "0"
