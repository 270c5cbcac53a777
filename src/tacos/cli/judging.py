"""The command that compares measurements with what a network allows: judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

import tacos
from tacos import formats, units, view
from tacos.cli.app import app
from tacos.cli.options import Effort, Network, Output, Values, check_folder, effort_of
from tacos.cli.viewing import PAGES
from tacos.console import judgement_table, print_table, progress

if TYPE_CHECKING:
    from tacos.judgement import Judgement

__all__ = ["judge"]


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
    effort: Effort = "normal",
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
    algorithm (what tacos synth finds) should reach, and what limits it. Rank i is
    NPU i of the network.

    Example: tacos judge all_reduce_perf.log dgx-h100:4 -o judge.svg
    """
    if output is not None:
        check_folder("--output", output)
        if output.suffix.lower() not in PAGES:
            view.checked(output, what="--output", also=PAGES[:1])
    with progress("judging", out.silent) as report:
        found = tacos.judge(
            log,
            network,
            collective=collective,
            nccl_log=nccl_log,
            effort=effort_of(effort),
            progress=report,
        )
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
        reference = tacos.compare(topology, problem, engines="nccl")
        schedule = reference.best
        aware = reference.reference != "nccl-unaware"
        rings: dict[str, Any] = {"NCCL's rings": tacos.nccl.rings(topology, aware=aware)}
        if found.rings is not None:
            rings = {"NCCL's rings": found.rings.rings, "suggested rings": found.rings.suggested}
        view.write_page(output, schedule, names=["NCCL, by its model"], rings=rings)


def _knowledge(found: Judgement) -> str:
    """Return which NCCL is meant on a network with faults."""
    names = {row.nccl for row in found.rows} - {"", "nccl"}
    if not names:
        return ""
    if names == {row.nccl for row in found.rows}:
        return ", without knowledge of the network's faults, which makes it faster"
    return ", with or without knowledge of the network's faults, whichever is faster at a size"


def _print_judgement(found: Judgement) -> None:
    if found.rows:
        print_table(judgement_table(found))
        best = ", ".join(dict.fromkeys(row.best for row in found.rows if row.best))
        print(f"NCCL: what stock NCCL should take, by its model{_knowledge(found)}")
        if best:
            print(f"best: the executed time of what tacos synth finds ({best})")
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
