"""The command that simulates: sim."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

import tacos
from tacos import formats, units
from tacos._core import Program, Schedule, Topology, Workload
from tacos.cli.app import algorithm_in, app, assumed_network, executed_rows, exported, lifted
from tacos.cli.options import PLAIN, Algorithm, Format, Output, Seed, check_folder, chosen, offered
from tacos.cli.viewing import PAGES
from tacos.cli.workloads import Layers, Place, System, check_timeline, figures, save_timeline
from tacos.console import progress, width
from tacos.simulate.trace_export import format_of

_PICTURES = (".svg", ".png", ".pdf")


@Parameter(name="*", group=Group("Disturbances", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class Disturbances:
    """What is slow, late or broken during a run."""

    fault: Annotated[
        tuple[str, ...],
        PLAIN,
        Parameter(
            help="A link that is down, or slow with slowdown=: link=0-1,begin=10us,end=20us,slowdown=4. "
            "Names work too: link=box0/npu0-fabric. both=yes takes both directions, npu=3 all links of "
            "an NPU. May be repeated.",
        ),
    ] = ()
    straggler: Annotated[
        tuple[str, ...],
        PLAIN,
        Parameter(
            help="An NPU that starts late or is slow: npu=3,late=20us,slowdown=1.5. May be repeated.",
        ),
    ] = ()
    jitter: Annotated[str, Parameter(help="Largest random delay of a delivery.")] = "0s"
    seed: Seed = 0

    def disturbing(self) -> dict[str, Any]:
        """Return the arguments of a run."""
        units.time_ps(self.jitter, what="--jitter")
        return {
            "faults": [tacos.Fault.parse(text) for text in self.fault],
            "stragglers": [tacos.Straggler.parse(text) for text in self.straggler],
            "jitter": self.jitter,
            "seed": self.seed,
        }


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Rules(Disturbances):
    """How links serve transfers."""

    timing: Annotated[
        Literal["first-come", "order", "schedule", "shared"],
        Parameter(
            help="How links serve transfers. first-come: each when its data have arrived, first come, first "
            "served; order: every link keeps the schedule's order; schedule: at the "
            "schedule's times; shared: concurrent messages share links fairly, programs run thread by thread."
        ),
    ] = "first-come"
    congestion: Annotated[bool, Parameter(help="Whether transfers wait for busy links.")] = True
    profile: Annotated[
        Literal["astra-sim-aware", "astra-sim-unaware"] | None,
        Parameter(
            help="Run what tacos convert writes for ASTRA-sim, or given Chakra traces, as its "
            "analytical backend does, to the nanosecond. Traces that only send and receive run as one "
            "custom collective without --system, and as a workload with it."
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse other rules beside a profile."""
        others = [option for option in chosen(self) if option not in ("--profile", "--seed")]
        if self.profile is not None and others:
            raise ValueError(
                f"--profile {self.profile} has rules of its own; leave out {', '.join(others)}"
            )


@app.command
def sim(
    file: Algorithm,
    /,
    *,
    format: Format = None,
    place: Place = Place(),
    output: Annotated[
        Path | None,
        offered(files=(".pftrace", ".json", ".csv", ".parquet", *_PICTURES, *PAGES)),
        Parameter(
            name=["-o", "--output"],
            help="Write the trace (.pftrace for Perfetto, .json, .csv, .parquet), a heat map (.svg, .png, .pdf), "
            "or a page as tacos view does (.html).",
        ),
    ] = None,
    rules: Rules = Rules(),
    layers: Layers = Layers(),
    system: System = System(),
    out: Output = Output(),
) -> int:
    """Simulate a schedule, a program or a workload on its own network or another, with faults if you like.

    Example: tacos sim ar.tacos --fault link=0-1,begin=10us,end=1ms -o trace.json
    """
    held = layers.load(file, format, place.network)
    if system.system is not None and not isinstance(held, Workload):
        held = tacos.workload.load(file, groups=layers.groups, format=format)
    if not isinstance(held, Workload):
        system.refuse(file)
        return _sim_algorithm(file, held, format, place, rules, output, out)
    for option in chosen(rules, place):
        if option not in ("--profile", "--topology"):
            raise ValueError(f"{option} is for schedules and programs; {file} holds a workload")
    if output is not None:
        check_timeline("--output", output, PAGES)
    result = system.run(held, place.network, rules.profile, out)
    if output is not None:
        save_timeline(held, result, output, PAGES)
    out.show(figures(held, result, out.as_json), str(file))
    return 0


def _sim_algorithm(
    file: Path,
    held: Schedule | Program | Topology,
    format: str | None,
    place: Place,
    rules: Rules,
    output: Path | None,
    out: Output,
) -> int:
    from tacos import view

    if output is not None:
        _check_output(output, place, rules)
    more = rules.disturbing()
    what = _as_run(file, held, format, place, rules, out)
    if isinstance(what, Program) and output is not None and output.suffix.lower() in PAGES:
        raise ValueError(f"--output is {output}, but a page shows schedules, not programs")
    with progress("simulating", out.silent) as report:
        if isinstance(what, Workload):
            network = place.network or assumed_network(what.npus, out.silent)
            from tacos.simulate import astra

            trace = astra.trace(what, network, profile=rules.profile or "", progress=report)
        else:
            trace = tacos.simulate(
                what,
                place.network,
                size=place.size if isinstance(what, Program) else None,
                timing=rules.timing,
                congestion=rules.congestion,
                profile=rules.profile,
                progress=report,
                **more,
            )
    if output is not None:
        if output.suffix.lower() in _PICTURES:
            view.save(view.heat_picture(trace), output)
        elif output.suffix.lower() in PAGES and isinstance(what, Schedule):
            view.write_page(output, what, names=[file.name], traces=[trace])
        else:
            trace.save(output)
    facts = trace.summary()
    if isinstance(held, Schedule) and place.network is None:
        facts = _with_executed(facts, held, rules.timing)
    out.show(facts, str(file))
    if not out.silent:
        if words := _program_differs(facts, rules.timing):
            print(words)
        slower = facts.get("slower_than_ideal", 0) > 0 and "loss" not in facts
        if slower and rules.timing == "first-come":
            print(
                "The ideal time holds where every link keeps the schedule's order: --timing order."
            )
        print(view.heat_text(trace, width=width(), encoding=sys.stdout.encoding or "utf-8"))
    return 0


def _with_executed(facts: dict[str, Any], schedule: Schedule, timing: str) -> dict[str, Any]:
    """Return the facts of a trace with the executed time after the simulated one, and that of the program under the same rule."""
    program = f"executed_{timing.replace('-', '_')}_s"
    more = {"executed_s": schedule.executed_s}
    rows = {} if "loss" in facts else executed_rows(schedule)
    more |= {name: rows[name] for name in (program,) if name in rows}
    return {
        name: value
        for key, fact in facts.items()
        for name, value in ({key: fact} | (more if key == "time_s" else {})).items()
    }


def _program_differs(facts: dict[str, Any], timing: str) -> str:
    """Return why a schedule's transfers and its program differ under one rule; empty if they hardly do, or if one is disturbed."""
    program_s = facts.get(f"executed_{timing.replace('-', '_')}_s")
    if program_s is None or abs(facts["time_s"] - program_s) <= 0.01 * program_s:
        return ""
    return (
        f"time is of the transfers, on their own routes; the program takes {units.format_time(program_s)} under the same "
        "rule: its messages take the network's default routes, and steps of a thread keep their order."
    )


def _check_output(output: Path, place: Place, rules: Rules) -> None:
    """Refuse a file that the trace of a schedule or program does not go into."""
    ending = output.suffix.lower()
    if ending in _PICTURES:
        from tacos import view

        view.checked(output, what="--output")
    elif ending not in PAGES:
        format_of(output, pictures=(*_PICTURES, *PAGES))
    elif place.topology is not None or rules.profile is not None:
        raise ValueError(
            f"--output is {output}, but a page shows runs on the schedule's own network only, "
            "without --topology and --profile"
        )
    check_folder("--output", output)


def _as_run(
    file: Path,
    held: Schedule | Program | Topology,
    format: str | None,
    place: Place,
    rules: Rules,
    out: Output,
) -> Schedule | Program | Workload:
    """Return what is simulated: a program as it is, lifted to a schedule, or as the traces that ASTRA-sim runs."""
    as_traces = rules.profile is not None
    if as_traces and place.size is None and formats.name_of(file, format=format) == "chakra":
        return tacos.workload.load(file)
    loaded = algorithm_in(file, held)
    if isinstance(loaded, Schedule):
        if place.size is not None:
            raise ValueError(
                f"--size is {place.size}, but {file} holds a schedule, whose size is fixed"
            )
        return loaded
    if as_traces:
        return exported(loaded, place.network, place.size, out.silent)
    if rules.timing != "shared":
        return lifted(loaded, place.network, place.size, out.silent)
    if place.network is None:
        raise ValueError("--topology is missing: a program with --timing shared needs a network")
    return loaded
