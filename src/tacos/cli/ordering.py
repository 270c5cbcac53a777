"""The commands for clusters that run stock software: reorder and judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import tacos
from tacos import formats, units, view
from tacos.cli.app import app
from tacos.cli.options import (
    DIRECTORIES,
    NETWORKS,
    Network,
    Output,
    Seed,
    Values,
    check_folder,
    endings,
)
from tacos.cli.viewing import PAGES
from tacos.console import judgement_table, print_table, progress
from tacos.reorder.patterns import PATTERNS

if TYPE_CHECKING:
    from tacos import Order
    from tacos.judgement import Judgement

__all__ = ["judge", "reorder"]


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


@app.command
def judge(
    log: Annotated[
        Path,
        Parameter(
            help="Output of nccl-tests, rccl-tests (text or JSON), an OSU benchmark or tacos run, or a log of "
            "NCCL_DEBUG=INFO."
        ),
    ],
    network: Network,
    /,
    *,
    collective: Annotated[
        str | None,
        Values(tacos.collective.labels),
        Parameter(help="What was measured, if the log does not say."),
    ] = None,
    nccl_log: Annotated[
        Path | None,
        Parameter(
            help="A log of NCCL_DEBUG=INFO or a file of NCCL_GRAPH_DUMP_FILE, with NCCL's rings."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Parameter(
            alias="-o",
            help="Write a chart, and NCCL's rings if known: judge.svg; or a page with both: judge.html.",
        ),
    ] = None,
    out: Output = Output(),
) -> int:
    """Compare measured bandwidths with what a network allows, and name likely problems.

    For every size: the share of the bound, what stock NCCL and the best
    algorithm should reach, and what limits it. Rank i is NPU i of the network.

    Example: tacos judge all_reduce_perf.log dgx-h100:4 -o judge.svg
    """
    if output is not None:
        check_folder("--output", output)
        if output.suffix.lower() not in PAGES:
            view.checked(output, what="--output", also=PAGES[:1])
    with progress("judging", out.silent) as report:
        found = tacos.judge(log, network, collective=collective, nccl_log=nccl_log, progress=report)
    if output is not None and output.suffix.lower() in PAGES:
        _write_page(output, found, network, out.silent)
    elif output is not None:
        view.save(_picture(found, network), output)
    if out.as_json:
        print(json.dumps(found.to_json(), indent=2))
    elif not out.quiet:
        _print_judgement(found)
    return 0


def _picture(found: Judgement, network: str) -> str:
    pictures = [view.judgement_picture(found)] if found.rows else []
    if found.rings is not None:
        topology = formats.network(network)
        for words, rings in (
            ("NCCL's rings", found.rings.rings),
            ("suggested", found.rings.suggested),
        ):
            pictures.append(view.ring_picture(topology, rings, title=words))
    return view.stack(pictures)


def _write_page(output: Path, found: Judgement, network: str, silent: bool) -> None:
    """What NCCL would do at the largest size, by its model, and its rings."""
    topology = formats.network(network)
    kind = tacos.collective.parse(found.collective if found.rows else "all-reduce")
    size = found.rows[-1].size_bytes if found.rows else 2**30
    with progress("drawing", silent):
        problem = tacos.collective.named(kind.name, topology, size, root=0 if kind.rooted else None)
        schedule = tacos.synthesize(topology, problem, engine="nccl")
        rings: dict[str, Any] = {"NCCL's rings": tacos.nccl.rings(topology)}
        if found.rings is not None:
            rings = {"NCCL's rings": found.rings.rings, "suggested rings": found.rings.suggested}
        view.write_page(output, schedule, names=["NCCL, by its model"], rings=rings)


def _print_judgement(found: Judgement) -> None:
    if found.rows:
        print_table(judgement_table(found))
        best = ", ".join(dict.fromkeys(row.best for row in found.rows if row.best))
        best += ", without sums in switches" if best and found.in_switch_sums else ""
        print(
            "NCCL: what stock NCCL should take, by its model" + (f"; best: {best}" if best else "")
        )
        for row in dict.fromkeys((found.rows[0], found.rows[-1])):
            print(f"limit at {units.format_size(row.size_bytes)}: {row.why}")
    if found.rings is not None:
        has, could = (
            units.format_bandwidth(rate)
            for rate in (found.rings.busbw_Bps, found.rings.suggested_Bps)
        )
        print(f"NCCL's rings: {len(found.rings.rings)}, which can carry {has} over these links")
        print(f"suggested:    {len(found.rings.suggested)}, which can carry {could}")
    if found.causes:
        print("likely causes of a gap:")
        for cause in found.causes:
            print(f"  - {cause}")
    elif found.rows:
        print("nothing looks wrong")
