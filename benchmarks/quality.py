"""Quality of schedules: one table with the bound in every row, against published results and targets.

Sections (all, or those named as arguments):

- ``machines``: an all-gather, reduce-scatter and all-reduce of 1 GB; trees and schedule in percent of the bound.
- ``small``: 1 to 64 KB against the bound, and what limits it (``--machine dgx-1:2``: only that machine).
- ``te-ccl``: the finish times that TE-CCL published; its all-gathers let switches copy (in its flows one GPU sends a
  chunk to fifteen others within one epoch of four chunks), so ours may, too; its all-to-alls are linear programs
  without copies. Its two-box NDv2 has 15 GPUs by mistake and is left out.
- ``taccl``: schedules that TACCL's own code made, with its costs: free chunks under ``pipelined`` against the bound,
  and its chunks of 1 MB under ``blocking``, beside the integral bound.
- ``auto``: against the best single engine on 12 networks, 5 collectives and 8 sizes (``--every N``: every N-th row).
- ``refine``: what local search gains.

A goal below the bound is shown as ``none``: TE-CCL ignores latencies that are small compared with an epoch, and in TACCL
chunks that are sent together share one latency, which our rule for ``blocking`` does not allow.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import TYPE_CHECKING

import tacos
from benchmarks.forest import OPTIMA
from benchmarks.milp import dgx2_of_taccl, ndv2_of_taccl
from tacos import topology as tp
from tacos.formats import teccl
from tacos.synth.forest import packing

if TYPE_CHECKING:
    from collections.abc import Callable

US = 1e6
GB = 10**9
SMALL_SIZES = ("1KB", "4KB", "16KB", "64KB")
KINDS = ("all_gather", "reduce_scatter", "all_reduce")
SCHEDULED = 144  # NPUs


def solved(topology, kind, size, chunks="auto", **options):
    """Return the best schedule, verified, the bound, and the seconds that synthesis took."""
    collective = tacos.collective.named(kind, topology, size, chunks=chunks)
    begin = time.perf_counter()
    # Published figures are times of schedules, so schedules are compared, and not executed times.
    schedule = tacos.synthesize(topology, collective, target="schedule", **options)
    took = time.perf_counter() - begin
    assert tacos.verify(schedule).ok
    return schedule, tacos.bound(topology, collective), took


def line(section, what, ours, bound, against, limit, took, how):
    """Print a row: our time, the bound, the time to match, and whether we match it, or no schedule can (none)."""
    ratio = ours / against if against else 0.0
    met = "ok" if ratio <= limit else "MISS" if bound <= limit * against else "none"
    goal = f"<= {limit:.3f}"
    print(
        f"{section:9}{what:38}{ours * US:12.3f}{bound * US:12.3f}{100 * bound / ours:8.2f} %"
        f"{against * US:12.3f}{ratio:8.4f} {goal:9}{met:5}{took:7.2f} s  {how}",
        flush=True,
    )


def head():
    print(
        f"{'':9}{'':38}{'ours us':>12}{'bound us':>12}{'of bound':>10}{'against us':>12}"
        f"{'ratio':>8} {'goal':9}{'':5}{'time':>9}  engine"
    )


def machines():
    """Measure 1 GB on the machines of ForestColl's table."""
    for spec, (optimum, _) in OPTIMA.items():
        topology = tp.parse(spec)
        begin = time.perf_counter()
        found = packing(topology)
        took = time.perf_counter() - begin
        rate, best = found.algbw_Bps, optimum * GB
        line("machines", f"{spec} trees", GB / rate, GB / best, GB / best, 1.0001, took, "packing")
        if topology.npus > SCHEDULED:
            continue
        for kind in KINDS:
            schedule, bound, took = solved(topology, kind, "1GB")
            name = f"{spec} {kind}"
            engine = schedule.engine
            against = bound.time_s
            line("machines", name, schedule.time_s, bound.time_s, against, 1 / 0.98, took, engine)


def small(only=()):
    """Measure small sizes, 1 to 64 KB."""
    for spec in OPTIMA:
        topology = tp.parse(spec)
        if topology.npus > SCHEDULED or (only and spec not in only):
            continue
        for kind, size in itertools.product(KINDS, SMALL_SIZES):
            schedule, bound, took = solved(topology, kind, size)
            limit = 1.25 if kind == "all_reduce" else 1.15
            engine = f"{schedule.engine:16} {bound.why.partition(';')[0]}"
            name = f"{spec} {kind} {size}"
            line("small", name, schedule.time_s, bound.time_s, bound.time_s, limit, took, engine)


def copying(topology):
    """Return the same network with switches that multicast."""
    ends = (topology.link_src, topology.link_dst, topology.link_bandwidth_Bps)
    rows = [
        (a, b, float(speed), latency / 1e12)
        for a, b, speed, latency in zip(
            *(end.tolist() for end in ends), topology.link_latency_ps.tolist(), strict=True
        )
    ]
    return tp.from_links(topology.npus, rows, switches=["multicast"] * topology.switches)


def te_ccl():
    """Compare with published finish times, in microseconds."""
    dgx2, ndv2 = teccl.network("DGX2", 2), teccl.network("NDv2", 4)
    cases = [
        ("2 DGX-2", copying(dgx2), "all_gather", "1KB", 4.006),
        ("2 DGX-2", copying(dgx2), "all_gather", "256KB", 5.376),
        ("2 DGX-2", copying(dgx2), "all_gather", "1MB", 10.75),
        ("2 DGX-2", copying(dgx2), "all_gather", "16MB", 124.0),
        ("2 DGX-2", copying(dgx2), "all_gather", "1GB", 7750.0),
        ("2 DGX-2", dgx2, "all_to_all", "1MB", 84.25),
        ("2 DGX-2", dgx2, "all_to_all", "1GB", 80_500.0),
        ("4 NDv2", copying(ndv2), "all_gather", "1KB", 5.45),
        ("4 NDv2", copying(ndv2), "all_gather", "1MB", 69.4),
        ("4 NDv2", copying(ndv2), "all_gather", "1GB", 65_000.0),
    ]
    for name, topology, kind, size, published in cases:
        schedule, bound, took = solved(topology, kind, size, effort=2 if size == "1GB" else "fast")
        engine = schedule.engine
        what = f"{name} {kind} {size}"
        line("te-ccl", what, schedule.time_s, bound.time_s, published / US, 1.002, took, engine)


def taccl():
    """Compare with TACCL's schedules, with the same bytes, latencies and speeds."""
    cases = [
        ("2 NDv2", ndv2_of_taccl, "all_gather", "16MB", 1, 945.0),
        ("2 DGX-2", dgx2_of_taccl, "all_gather", "64MB", 2, 563.8),
        ("2 NDv2", ndv2_of_taccl, "all_reduce", "16MB", 1, 1944.0),
        ("2 NDv2", ndv2_of_taccl, "all_to_all", "16MB", 1, 6834.0),
    ]
    for name, network, kind, size, chunks, theirs in cases:
        for model, cut in (("pipelined", "auto"), ("blocking", chunks)):
            schedule, bound, took = solved(network(model), kind, size, cut)
            engine = schedule.engine
            free = model == "pipelined"
            against, limit = (bound.time_s, 1.02) if free else (theirs / US, 1.0)
            what = f"{name} {kind} {size} {model}"
            line("taccl", what, schedule.time_s, bound.time_s, against, limit, took, engine)


NETWORKS = (
    *("ring:8", "torus:4x4", "mesh:4x4", "hypercube:4", "switch:16", "fc:8"),
    *("dgx-1", "ndv2:2", "dgx-a100:2", "dgx-h100-plain:2", "mi250:1", "fc:4*switch:4"),
)
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")
SIZES = ("1KB", "8KB", "64KB", "512KB", "4MB", "32MB", "256MB", "1GB")


def auto(every=1):
    """Check that auto is never worse than the best single engine."""
    worst, longest, rows = 0.0, 0.0, 0
    problems = list(itertools.product(NETWORKS, COLLECTIVES, SIZES))
    for spec, kind, size in problems[::every]:
        topology = tp.parse(spec)
        schedule, bound, took = solved(topology, kind, size)
        each = tacos.compare(topology, tacos.collective.named(kind, topology, size))
        rows += 1
        worst = max(worst, schedule.time_ps / each.best.time_ps)
        longest = max(longest, took)
        if schedule.time_ps > 1.001 * each.best.time_ps:
            best = each.best
            engine = f"{schedule.engine}, not {best.engine}"
            what = f"{spec} {kind} {size}"
            line("auto", what, schedule.time_s, bound.time_s, best.time_s, 1.001, took, engine)
    print(
        f"auto     {rows} rows: at most {worst:.4f} times the best single engine, {longest:.1f} s"
    )


def refinement():
    """Measure what local search gains over greedy, in a second or two."""
    cases = [
        ("mi250:1", "all_gather", "16MB", 4),
        ("mi250:1", "all_reduce", "16MB", 4),
        ("dgx-1", "all_gather", "1MB", 8),
        ("dgx-1", "all_reduce", "1MB", 8),
        ("ndv2:2", "all_gather", "16MB", 1),
        ("dgx-a100:2", "all_gather", "16MB", 1),
        ("mesh:4x4", "broadcast", "1MB", 64),
        ("switch:16", "broadcast", "1MB", 512),
    ]
    for spec, kind, size, chunks in cases:
        topology = tp.parse(spec)
        first, bound, _ = solved(topology, kind, size, chunks, engine="greedy")
        begin = time.perf_counter()
        better = tacos.refine(first, effort="fast")
        took = time.perf_counter() - begin
        assert tacos.verify(better).ok
        what = f"{spec} {kind} {size}, {chunks} chunks"
        line("refine", what, better.time_s, bound.time_s, first.time_s, 1.0, took, "greedy")


def sections(every, machines_of_small) -> dict[str, Callable[[], None]]:
    return {
        "machines": machines,
        "small": lambda: small(machines_of_small),
        "te-ccl": te_ccl,
        "taccl": taccl,
        "refine": refinement,
        "auto": lambda: auto(every),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("section", nargs="*", help=f"{', '.join(sections(1, ()))}; default: all")
    parser.add_argument("--every", type=int, default=1, help="every N-th row of auto")
    parser.add_argument("--machine", action="append", default=[], help="only this machine in small")
    asked = parser.parse_args()
    runs = sections(asked.every, asked.machine)
    head()
    for name in asked.section or runs:
        runs[name]()


if __name__ == "__main__":
    main()
