"""Exact solving: times against greedy, the bound and published results, and how long it takes.

TACCL's schedule for two NDv2 (945 us, 1 MB chunks, its costs, links blocking) was made by its own code; the mesh
figures are TE-CCL's, in epochs; the Pareto front of a DGX-1 is SCCL's (66 s with Z3 for its last point). The rows ``sk1`` are
TACCL's sketches as given, with senders, symmetry and order, solved for 1 and for 20 s; TACCL's own code took 38 s, 45 s and
1,526 s for them.
"""

from __future__ import annotations

import time
from typing import Literal

import tacos
from tacos import topology as tp

LIMIT_S = 120.0


def ndv2_of_taccl(link_model: Literal["pipelined", "blocking"] = "blocking") -> tacos.Topology:
    """Return two NDv2 with TACCL's costs; GPU 0 of each sends to GPU 1 of the other."""
    box = tp.dgx1(bandwidth="1B/s")
    rows: list[tuple[int, int, float, float]] = []
    for src, dst, cables in zip(
        box.link_src.tolist(), box.link_dst.tolist(), box.link_bandwidth_Bps.tolist(), strict=True
    ):
        rows += [(src + b, dst + b, 1e12 / (46 if cables == 1 else 23), 0.3e-6) for b in (0, 8)]
    rows += [(a, b, 1e12 / 105, 2.6e-6) for a, b in ((0, 9), (8, 1))]
    return tp.from_links(16, rows, link_model=link_model)


def dgx2_of_taccl(link_model: Literal["pipelined", "blocking"] = "blocking") -> tacos.Topology:
    """Return two DGX-2 with TACCL's costs; odd GPUs send to even ones of the other box."""
    rows: list[tuple[int, int, float, float]] = []
    for box in (0, 16):
        switch = 32 + box // 16
        for gpu in range(box, box + 16):
            rows += [(gpu, switch, 1e12 / 8, 0.15e-6), (switch, gpu, 1e12 / 8, 0.15e-6)]
    rows += [
        (gpu + a, gpu - 1 + b, 1e12 / 105, 2.6e-6)
        for gpu in range(1, 16, 2)
        for a, b in ((0, 16), (16, 0))
    ]
    return tp.from_links(32, rows, switches=2, link_model=link_model)


ODD = range(1, 16, 2)
SKETCHES = [
    ("2 NDv2", ndv2_of_taccl(), "all_gather", "16MB", 945.0,
     tacos.Sketch(box=8, between={0: [1]}, senders={0: range(8)}, symmetry=[(8, 16)], chunks=1, own_first=True)),
    ("2 DGX-2", dgx2_of_taccl(), "all_gather", "64MB", 563.8,
     tacos.Sketch(box=16, between={i: [i - 1] for i in ODD}, senders={i: [i - 1, i] for i in ODD}, symmetry=[(2, 16), (16, 32)],
                  chunks=2, own_first=True, connections="uc-min")),
    ("2 NDv2", ndv2_of_taccl(), "all_to_all", "16MB", 6834.0,
     tacos.Sketch(box=8, between={0: [1]}, senders={0: range(8)}, symmetry=[(8, 16)], chunks=1, own_first=True)),
]  # fmt: skip


CASES = [
    ("DGX-1", tp.dgx1(), "all_gather", "8MB", 1, None),
    ("DGX-1", tp.dgx1(), "all_reduce", "8MB", 1, None),
    ("DGX-1", tp.dgx1(), "all_to_all", "8MB", 3, None),
    ("mesh 3x3", tp.mesh(3, 3, bandwidth="1GB/s", latency="0s"), "all_gather", 9000, 1, 4.0),
    ("mesh 4x4", tp.mesh(4, 4, bandwidth="1GB/s", latency="0s"), "all_gather", 16000, 1, 8.0),
    ("2 NDv2", ndv2_of_taccl(), "all_gather", "16MB", 1, 945.0),
]


def main() -> None:
    """Print the table."""
    print(
        "network   collective   greedy us   milp us  bound us  published  proven     gap  seconds"
    )
    for name, topology, kind, size, chunks, published in CASES:
        collective = tacos.collective.named(kind, topology, size, chunks=chunks)
        quick = tacos.synthesize(topology, collective, engine="greedy")
        begin = time.perf_counter()
        best = tacos.synthesize(topology, collective, engine="milp", time_limit=LIMIT_S)
        took = time.perf_counter() - begin
        assert tacos.verify(best).ok
        bound = tacos.bound(topology, collective).time_s
        known = f"{published:9.1f}" if published else "        -"
        facts = best.provenance
        print(
            f"{name:9s} {kind:11s} {quick.time_s * 1e6:10.2f} {best.time_s * 1e6:9.2f} {bound * 1e6:9.2f} "
            f" {known}  {facts['proven']!s:6s} {facts['gap']:7.2%} {took:8.2f}",
            flush=True,
        )
    print("sk1       collective    1 s, us  20 s, us  bound us  published")
    for name, topology, kind, size, theirs, sketch in SKETCHES:
        collective = tacos.collective.named(kind, topology, size)
        times = []
        for limit_s in (1.0, 20.0):
            best = tacos.synthesize(
                topology, collective, engine="milp", sketch=sketch, time_limit=limit_s
            )
            times.append(best.time_s)
        bound = tacos.bound(topology, best.collective).time_s
        cells = "".join(f"{1e6 * time_s:10.1f}" for time_s in (*times, bound))
        print(f"{name:9s} {kind:11s}{cells} {theirs:10.1f}", flush=True)
    box = tp.dgx1()
    begin = time.perf_counter()
    front = tacos.pareto(box, tacos.collective.all_gather(box, "1MB"), time_limit=LIMIT_S)
    found = ", ".join(f"({p.chunks}, {p.steps}, {p.rounds})" for p in front.points)
    print(
        f"DGX-1 all-gather, chunks, steps, rounds: {found} in {time.perf_counter() - begin:.1f} s"
    )


if __name__ == "__main__":
    main()
