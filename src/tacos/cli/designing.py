"""The commands that design networks: design, and its commands shapes and upgrade."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from tacos import design as networks
from tacos import formats, units
from tacos._core import Topology
from tacos.cli.app import verb, workers_on
from tacos.cli.options import NETWORKS, PLAIN, Figures, Network, On, Output, check_folder, offered
from tacos.console import print_table, progress, width

design = verb("design")

_Cost = Annotated[
    Path | None, Parameter(help="LIBRA's cost file; by default its published prices.")
]
_Overlap = Annotated[
    Literal["none", "background", "full"],
    Parameter(
        help="none: one thing after another, as in LIBRA; background: collectives in the background overlap "
        "what follows them; full: everything overlaps."
    ),
]
_Latency = Annotated[str, Parameter(help="Latency of a link of the network that was found.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Jobs:
    """What the network is for."""

    job: Annotated[
        tuple[str, ...],
        offered(files=(".yaml", ".yml", ".json")),
        PLAIN,
        Parameter(
            help="A job file, or the prefix of Chakra traces. May be repeated: times are added up."
        ),
    ] = ()
    libra: Annotated[
        tuple[tuple[Path, Path], ...],
        PLAIN,
        Parameter(help="LIBRA's workload and communicator file. May be repeated."),
    ] = ()

    def read(self) -> list[Any]:
        """Return the jobs."""
        found: list[Any] = [*self.job, *(networks.libra(*files) for files in self.libra)]
        if not found:
            raise ValueError(
                "--job is missing: a job file, Chakra traces, or --libra WORKLOAD COMMUNICATOR"
            )
        return found


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Files(Figures):
    """Files with what was found."""

    save: Annotated[
        Path | None,
        Parameter(help="Save the network as a topology; of several, the most expensive one."),
    ] = None

    def __post_init__(self) -> None:
        """Refuse files that cannot be written, before the work."""
        super().__post_init__()
        if self.save is not None:
            check_folder("--save", self.save)


@design.default
def bandwidths(
    dims: Annotated[
        str,
        NETWORKS,
        Parameter(
            help="Dimensions, the innermost first, such as ring:4*fc:8*switch:32, or LIBRA's network file."
        ),
    ],
    /,
    *,
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
        PLAIN,
        Parameter(
            help="Such as 'd0 >= d1', 'd2 + d3 == 200GB/s' or 'cost <= $20M'. May be repeated."
        ),
    ] = (),
    cost: _Cost = None,
    overlap: _Overlap = "none",
    latency: _Latency = "500ns",
    jobs: Jobs = Jobs(),
    files: Files = Files(),
    out: Output = Output(),
) -> int:
    """Design a network for jobs: bandwidths of dimensions, their sizes and kinds, or links to upgrade.

    Example: tacos design 'ring:4*fc:8*ring:4*switch:32' --job gpt3.yaml --budget 1000GB/s
    """
    wanted = jobs.read()
    with progress("designing", out.silent) as report:
        found = networks.optimize(
            dims,
            wanted,
            budget=budget,
            objective=objective,
            cost=cost,
            constraints=constraint,
            overlap=overlap,
            progress=report,
        )
    return _show(found, dims, latency, files, out)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Space:
    """The shapes that are tried."""

    max_dims: Annotated[int, Parameter(help="The largest number of dimensions.")] = 4
    kinds: Annotated[
        str,
        offered("ring", "clique", "switch", separator=","),
        Parameter(help="Kinds of dimensions, separated by commas."),
    ] = "ring,clique,switch"
    ports: Annotated[int | None, Parameter(help="The largest number of links per NPU.")] = None
    radix: Annotated[int | None, Parameter(help="The largest number of NPUs at a switch.")] = None


@design.command
def shapes(
    npus: Annotated[int, Parameter(help="Number of NPUs of the network.")],
    /,
    *,
    budget: Annotated[str, Parameter(help="The largest cost, such as $20M.")],
    space: Space = Space(),
    points: Annotated[int, Parameter(help="Number of budgets on the time-cost front.")] = 13,
    finalists: Annotated[
        int, Parameter(help="Synthesize the collectives of this many of the best shapes.")
    ] = 0,
    cost: _Cost = None,
    overlap: _Overlap = "none",
    latency: _Latency = "500ns",
    on: On = None,
    jobs: Jobs = Jobs(),
    files: Files = Files(),
    out: Output = Output(),
) -> int:
    """Search the sizes and kinds of dimensions too: all shapes of this many NPUs.

    Example: tacos design shapes 256 --job moe.yaml --budget '$1M' --ports 8
    """
    wanted = jobs.read()
    with workers_on(on) as executor, progress("searching", out.silent) as report:
        found = networks.shapes(
            npus,
            wanted,
            budget=budget,
            points=points,
            max_dims=space.max_dims,
            kinds=space.kinds.split(","),
            ports=space.ports,
            radix=space.radix,
            cost=cost,
            latency=latency,
            overlap=overlap,
            finalists=finalists,
            executor=executor,
            progress=report,
        )
    return _show(found, f"networks of {npus:,} NPUs", latency, files, out)


@design.command
def upgrade(
    topology: Network,
    /,
    *,
    spend: Annotated[
        str,
        Parameter(help="What the upgrade may cost: a share of what all links cost, or dollars."),
    ] = "10%",
    price: Annotated[
        tuple[str, ...],
        PLAIN,
        Parameter(
            help="Dollars per GB/s of links, such as 'npu-switch*=30'; 1 by default. May be repeated."
        ),
    ] = (),
    per: Annotated[
        Literal["kind", "cable"], Parameter(help="Upgrade links of a kind together, or each cable.")
    ] = "kind",
    synthesize: Annotated[
        bool, PLAIN, Parameter(help="Also synthesize the job's collectives before and after.")
    ] = False,
    jobs: Jobs = Jobs(),
    files: Files = Files(),
    out: Output = Output(),
) -> int:
    """Find which links of a network to upgrade first.

    Example: tacos design upgrade dgx-h100:4 --job job.yaml --spend 10%
    """
    wanted = jobs.read()
    if len(wanted) > 1:
        raise ValueError(f"an upgrade is for one job; got {len(wanted)}")
    with progress("upgrading", out.silent) as report:
        found = networks.upgrade(
            formats.network(topology),
            wanted[0],
            spend=spend,
            prices=dict(_price(text) for text in price),
            per=per,
            synthesized=synthesize,
            progress=report,
        )
    return _show(found, topology, "", files, out)


if TYPE_CHECKING:
    _Found = networks.Design | networks.NetworkFront | networks.Upgrade


def _show(found: _Found, title: str, latency: str, files: Files, out: Output) -> int:
    """Write and print what was found."""
    from tacos import view

    if files.save is not None:
        formats.save(_topology(found, latency), files.save)
    if files.csv is not None:
        view.rows_csv(found.rows(), files.csv)
    if files.output is not None:
        view.save(view.design_picture(found, title), files.output)
    if out.as_json:
        print(json.dumps(_facts(found) | {"rows": found.rows()}, indent=2))
    elif not out.quiet:
        for table in view.design_tables(found, title):
            print_table(table)
        print(*(textwrap.fill(line, width()) for line in _remarks(found)), sep="\n")
    return 0


def _topology(found: _Found, latency: str) -> Topology:
    """Return the network that was found."""
    if isinstance(found, networks.Upgrade):
        return found.topology
    best = found.points[-1] if isinstance(found, networks.NetworkFront) else found
    return networks.build(best.dims, best.bandwidths_Bps, latency=latency)


def _price(text: str) -> tuple[str, float]:
    pattern, _, number = text.rpartition("=")
    try:
        return pattern, float(number)
    except ValueError:
        raise ValueError(
            f"--price must be PATTERN=DOLLARS, such as 'npu-switch*=30'; got {text!r}"
        ) from None


def _facts(result: _Found) -> dict[str, Any]:
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


def _remarks(result: _Found) -> list[str]:
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
