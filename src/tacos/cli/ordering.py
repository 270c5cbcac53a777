"""The command that finds a faster order of ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import tacos
from tacos import units
from tacos.cli.app import Json, Quiet, Seed, app, check_folder
from tacos.console import progress
from tacos.reorder import Order
from tacos.reorder.costs import costs_of, hosts_in
from tacos.reorder.files import write
from tacos.reorder.patterns import PATTERNS

__all__ = ["reorder"]


@app.command
def reorder(
    costs: Annotated[
        str,
        Parameter(
            help="A matrix or table of pairs (CSV), the output of tacos probe, a topology of Slurm, topograph or "
            "EC2, or any topology file or spec."
        ),
    ],
    /,
    *,
    pattern: Annotated[
        str,
        Parameter(help=f"What to make fast: {', '.join(PATTERNS)}, or a file with a program."),
    ] = "ring",
    size: Annotated[
        str | None,
        Parameter(
            help="Buffer size such as 64MB; latency or bandwidth count these only. Default: 64MB, or latency."
        ),
    ] = None,
    hosts: Annotated[
        Path | None, Parameter(help="Host file of the job: its hosts in their present order.")
    ] = None,
    npus_per_host: Annotated[
        int | None, Parameter(help="NPUs of a topology that form a host, if names do not tell.")
    ] = None,
    slots: Annotated[
        int | None, Parameter(help="Ranks to start on each host, for the files.")
    ] = None,
    output: Annotated[
        Path | None,
        Parameter(alias="-o", help="Write files for launchers and NCCL into this directory."),
    ] = None,
    seed: Seed = 0,
    effort: Annotated[float, Parameter(help="How much to search; 2 searches twice as long.")] = 1.0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Find the order of ranks that makes unmodified jobs fastest, and write the files that launchers need.

    NCCL, gloo and MPI lay rings and trees along rank numbers. The order printed
    makes them follow the network. It is never slower than the order given.

    Example: tacos reorder cluster.yaml --size 64MB -o order
    Example: tacos reorder ping.txt --pattern nccl --hosts hostfile
    """
    if output is not None:
        check_folder("--output", output)
    known = costs_of(costs, npus_per_host=npus_per_host)
    if hosts is not None:
        known = known.only(hosts_in(hosts), str(hosts))
    wanted: str | tacos.Program = pattern
    if pattern not in PATTERNS and Path(pattern).is_file():
        loaded = tacos.load(Path(pattern))
        wanted = tacos.lower(loaded) if isinstance(loaded, tacos.Schedule) else loaded
    with progress("searching", as_json or quiet) as report:
        found = tacos.reorder(known, wanted, size=size, seed=seed, effort=effort, progress=report)
    paths = [] if output is None else write(found, output, slots=slots, costs=known)
    if as_json:
        print(json.dumps(found.to_json() | {"files": [str(path) for path in paths]}, indent=2))
    elif not quiet:
        _print(found)
        if output is not None:
            print(
                f"{len(paths)} files written to {output}; {output / 'README.md'} says how to use them"
            )
    return 0


def _print(found: Order) -> None:
    before, after = units.format_time(found.cost_before), units.format_time(found.cost)
    print(f"{found.pattern} of {len(found.hosts)} hosts, size {found.size}:")
    print(f"  before {before}, after {after}: {found.speedup:.2f} times as fast")
    proof = "no order is faster"
    if not found.exact:
        bound = units.format_time(found.lower_bound)
        proof = f"no order takes less than {bound}, so at most {found.gap:.1%} could be gained"
    print(f"  {proof}")
    print("order:")
    for host in found.hosts:
        print(f"  {host}")
