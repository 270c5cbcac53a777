"""The commands that read a file: verify, info, topo."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import tacos
from tacos import formats, units
from tacos._core import Program, Schedule, Topology, Workload
from tacos.cli.app import (
    algorithm_in,
    app,
    bottleneck,
    executed_rows,
    fail,
    verdict,
    warn,
)
from tacos.cli.options import NETWORKS, PICTURES, Algorithm, Format, Output, Values, endings
from tacos.cli.workloads import Layers, flight_in, show_workload
from tacos.console import print_table, progress, show_topology, transfer_table
from tacos.errors import FormatError
from tacos.nodes import Nodes, link_of
from tacos.program import describe


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
    layers: Layers = Layers(),
    out: Output = Output(),
) -> int:
    """Check a schedule, program or workload for deadlocks, races and wrong results.

    Schedules are also checked for link conflicts, and workloads for messages
    without a partner and collectives that some rank never joins.

    Example: tacos verify ar.tacos
    """
    loaded = layers.load(file, format, mapped=True)
    if not isinstance(loaded, Workload):
        loaded = algorithm_in(file, loaded)
    with progress("verifying", out.silent) as report:
        check = tacos.verify(
            loaded, allow_unneeded=allow_unneeded, limit=limit or _KEPT, progress=report
        )
    limits = formats.exceeded(loaded) if isinstance(loaded, Program) else []
    if out.as_json:
        violations = [
            {name: getattr(v, name) for name in _VIOLATION_FIELDS} for v in check.violations
        ]
        fine = check.ok and not limits
        found: dict[str, Any] = {"ok": fine, "checked": check.checked, "found": check.found}
        found |= {"consistent": check.consistent, "difference": check.difference}
        print(json.dumps(found | {"violations": violations, "limits": limits}, indent=2))
        return 0 if fine else 1
    for sentence in [] if out.quiet else limits:
        print(f"limit: {sentence}", file=sys.stderr)
    if check.ok and limits:
        return fail("the program is correct but exceeds the executor's limits", 1)
    if check.ok and not out.quiet:
        if isinstance(loaded, Program):
            held = f"{loaded.steps:,} steps in {loaded.threads:,} threads of {loaded.ranks:,} ranks"
        elif isinstance(loaded, Workload):
            held = f"{loaded.nodes:,} nodes of {loaded.npus:,} ranks"
        else:
            took, ideal = map(units.format_time, (loaded.executed_s, loaded.time_s))
            held = f"{loaded.transfers:,} transfers, executed in {took}, ideal {ideal}"
        print(f"ok: {held}")
        if not check.consistent:
            warn(f"ranks may end with different bits: {check.difference}")
    return verdict(check, out.quiet, alike=limit or 3)


_KEPT = 1_000
_VIOLATION_FIELDS = ("rule", "transfer", "time_ps", "chunk", "link", "message")


def _show_flight(files: list[Path], out: Output) -> int:
    """Return a summary of flight records."""
    from tacos.formats.flight_record import load
    from tacos.runtime.flight import lines, postmortem

    findings = postmortem([load(file) for file in files])
    if out.as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    elif not out.quiet:
        for finding in findings:
            print("\n".join(lines(finding)))
        if not findings:
            print("no group of ranks: the records were written before any rank had met the others")
    return 0


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Listed:
    """The transfers to list instead of a summary."""

    npu: Annotated[
        str | None, Parameter(help="List the transfers of this NPU: 3, or box0/npu3.")
    ] = None
    link: Annotated[
        str | None,
        Parameter(help="List the transfers over this link: 12, 0-1, or box0/npu0-fabric."),
    ] = None
    rows: Annotated[int, Parameter(help="Largest number of transfers to list.")] = 20

    def __post_init__(self) -> None:
        """Refuse an NPU together with a link, and a table without rows."""
        if self.rows < 1:
            raise ValueError(f"--rows must be positive; got {self.rows}")
        if self.npu is not None and self.link is not None:
            raise ValueError("--npu and --link exclude each other; list one NPU or one link")

    def show(self, schedule: Schedule, out: Output) -> None:
        """Print the transfers."""
        network = schedule.topology
        npu = None if self.npu is None else Nodes(network).npu(self.npu, what="--npu")
        link = None if self.link is None else link_of(network, self.link, what="--link")
        table = schedule.rows(npu=npu, link=link)
        if out.as_json:
            print(json.dumps({name: column.tolist() for name, column in table.items()}))
        elif not out.quiet:
            print_table(transfer_table(schedule, table, self.rows))


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
    listed: Listed = Listed(),
    layers: Layers = Layers(),
    out: Output = Output(),
) -> int:
    """Summarize a file, list its transfers, or name the rank that fell behind.

    A summary has the time, bandwidth and provenance. --npu and --link list the
    transfers of one NPU or link. The flight records of a job's ranks show which
    rank fell behind.

    Example: tacos info ar.tacos --npu 3
    Example: tacos info flight
    """
    if flight := flight_in(file, others):
        return _show_flight(flight, out)
    if others:
        raise ValueError(
            f"info takes one file, or several flight records; {file} is not a flight record"
        )
    loaded = layers.load(file, format)
    if listed.npu is not None or listed.link is not None:
        if not isinstance(loaded, Schedule):
            held = type(loaded).__name__.lower()
            raise FormatError(f"{file} holds a {held}; --npu and --link need a schedule")
        listed.show(loaded, out)
    elif isinstance(loaded, Workload):
        show_workload(file, loaded, out)
    elif isinstance(loaded, Topology):
        show_topology(str(file), loaded, out.as_json, out.quiet)
    elif isinstance(loaded, Program):
        out.show(describe(loaded) | {"provenance": loaded.provenance}, str(file))
    else:
        out.show(_facts(loaded), str(file))
    return 0


def _facts(schedule: Schedule) -> dict[str, Any]:
    """Return what there is to know about a schedule."""
    facts = tacos.summary(schedule)
    facts |= executed_rows(schedule) | bottleneck(schedule)
    return facts | {
        "form": schedule.form,
        "memory_bytes": schedule.memory_bytes,
        "quantum_ps": schedule.quantum_ps,
        "provenance": {k: v for k, v in schedule.provenance.items() if k != "bottleneck"},
    }


@app.command
def topo(
    topology: Annotated[
        str | None,
        NETWORKS,
        Parameter(help="A spec such as torus:4x4, or a file. Without it, all specs are listed."),
    ] = None,
    /,
    *,
    draw: Annotated[
        Path | None, PICTURES, Parameter(help="Draw the network to this .svg, .png or .pdf file.")
    ] = None,
    output: Annotated[
        Path | None,
        Values(files=endings("Topology", written=True)),
        Parameter(
            name=["-o", "--output"],
            help="Write the topology as .yaml, .json, .graphml, .csv or .astra.yml (ASTRA-sim).",
        ),
    ] = None,
    out: Output = Output(),
) -> int:
    """Summarize a topology: counts, degrees, diameter, bandwidths; draw or convert it.

    Example: tacos topo dgx-h100:2 --draw h100.svg
    """
    if topology is None:
        if output is not None or draw is not None:
            raise ValueError("TOPOLOGY is missing: give the one to draw or write")
        out.show(dict(tacos.topology.specs()), "specs of topologies")
        return 0
    if draw is not None:
        from tacos import view

        view.checked(draw, what="--draw")
    network = formats.network(topology)
    if output is not None:
        formats.save(network, output)
        if not out.quiet and (missing := formats.lost(network, output)):
            warn(missing)
    if draw is not None:
        view.draw(network, draw)
    show_topology(topology, network, out.as_json, out.quiet)
    return 0
