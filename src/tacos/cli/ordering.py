"""The command that finds the order of hosts in which stock software is fastest: reorder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

import tacos
from tacos import units
from tacos.cli.app import app
from tacos.cli.options import (
    DIRECTORIES,
    NETWORKS,
    Output,
    Seed,
    Values,
    check_folder,
    endings,
)
from tacos.console import progress
from tacos.reorder.patterns import PATTERNS

if TYPE_CHECKING:
    from tacos import Order

__all__ = ["reorder"]


_PATTERNS = Values(lambda: PATTERNS, endings("Schedule", "Program"))


@app.command
def reorder(
    costs: Annotated[
        str,
        Values(NETWORKS.words, lambda: ("*",)),
        Parameter(
            help="A matrix or table of pairs (CSV), the output of tacos probe, a topology of Slurm, topograph or "
            "EC2, or any topology file or spec."
        ),
    ],
    /,
    *,
    pattern: Annotated[
        str,
        _PATTERNS,
        Parameter(help=f"What to make fast: {', '.join(PATTERNS)}, or a file with a program."),
    ] = "ring",
    size: Annotated[
        str | None,
        Parameter(
            help="Buffer size such as 64MB, or latency or bandwidth to count only that term. Default: 64MB; latency if the input "
            "has no bandwidths."
        ),
    ] = None,
    hosts: Annotated[
        Path | None, Parameter(help="Host file of the job: its hosts in their present order.")
    ] = None,
    npus_per_host: Annotated[
        int | None,
        Parameter(help="NPUs of a topology that form a host, unless its names are host:number."),
    ] = None,
    slots: Annotated[
        int | None, Parameter(help="Ranks to start on each host, for the files.")
    ] = None,
    output: Annotated[
        Path | None,
        DIRECTORIES,
        Parameter(alias="-o", help="Write files for launchers and NCCL into this directory."),
    ] = None,
    seed: Seed = 0,
    effort: Annotated[float, Parameter(help="How much to search; 2 searches twice as long.")] = 1.0,
    out: Output = Output(),
) -> int:
    """Find the order of ranks that makes unmodified jobs fastest, and write the files that launchers need.

    NCCL, gloo and MPI lay rings and trees along rank numbers. The order printed
    makes them follow the network. It is never slower than the order given.

    Example: tacos reorder cluster.yaml --size 64MB -o order
    Example: tacos reorder ping.txt --pattern nccl --hosts hostfile
    """
    from tacos.reorder.files import write
    from tacos.reorder.sources import costs_of, hosts_in

    if output is not None:
        check_folder("--output", output, directory=True)
    if slots is not None and slots < 1:
        raise ValueError(f"--slots must be at least 1; got {slots}")
    known = costs_of(costs, npus_per_host=npus_per_host)
    if hosts is not None:
        known = known.only(hosts_in(hosts), str(hosts))
    wanted: str | tacos.Program = pattern
    if pattern not in PATTERNS and Path(pattern).is_file():
        loaded = tacos.load(Path(pattern))
        if isinstance(loaded, tacos.Topology | tacos.Workload):
            held = type(loaded).__name__.lower()
            raise ValueError(
                f"{pattern} holds a {held}; a pattern is a name, a schedule or a program"
            )
        wanted = tacos.lower(loaded) if isinstance(loaded, tacos.Schedule) else loaded
    with progress("searching", out.silent) as report:
        found = tacos.reorder(known, wanted, size=size, seed=seed, effort=effort, progress=report)
    paths = [] if output is None else write(found, output, slots=slots, costs=known)
    if out.as_json:
        print(json.dumps(found.to_json() | {"files": [str(path) for path in paths]}, indent=2))
    elif not out.quiet:
        _print(found)
        if output is not None:
            print(
                f"{len(paths)} files written to {output}; {output / 'README.md'} says how to use them"
            )
    return 0


def _print(found: Order) -> None:
    before, after = units.format_time(found.cost_before), units.format_time(found.cost)
    counted = (
        f"{found.size} only" if found.size in ("latency", "bandwidth") else f"size {found.size}"
    )
    print(f"{found.pattern} of {len(found.hosts)} hosts, {counted}:")
    print(f"  before {before}, after {after}: {found.speedup:.2f} times as fast")
    proof = "no order is faster"
    if not found.exact:
        bound = units.format_time(found.lower_bound)
        proof = (
            f"no order takes less than {bound}, so at most {100 * found.gap:.1f} % could be gained"
        )
    print(f"  {proof}")
    print("order:")
    for host in found.hosts:
        print(f"  {host}")
