"""Compare the classic collective algorithms on a torus and on two DGX H100; ``make demo`` runs this.

Every schedule is synthesized, timed under the network's model and checked by the independent
verifier. Tables go to the terminal, schedules and pictures to the directory given as argument.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

import tacos
from tacos import view

PROBLEMS = [
    ("torus:8x8@50GB/s,500ns", "all-reduce", "64MB"),
    ("torus:8x8@50GB/s,500ns", "all-gather", "64MB"),
    ("dgx-h100:2", "all-reduce", "1GB"),
    ("dgx-h100:2", "all-gather", "1GB"),
    ("dgx-h100-plain:2", "all-reduce", "1GB"),
    ("dgx-h100:2", "all-to-all", "64MB"),
]


def main(out: Path) -> int:
    console = Console(highlight=False, markup=False)
    failures, faster = 0, []
    for spec, kind, size in PROBLEMS:
        topology = tacos.topology.parse(spec)
        collective = tacos.collective.named(kind, topology, size)
        folder = out / spec.partition("@")[0].replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        view.draw(topology, folder / "topology.svg")
        view.draw(topology, folder / "topology.png")
        result = tacos.compare(topology, collective)
        for candidate in result.candidates:
            failures += not candidate.ok
            if candidate.schedule is not None:
                tacos.save(candidate.schedule, folder / f"{kind}-{candidate.engine}.tacos")
        view.save(view.picture(result, spec), folder / f"{kind}.svg")
        console.print(*view.comparison_tables(result, spec), result.verdict() + "\n")
        if (gain := result.speed_up()) and gain > 1.005:
            faster.append(f"{gain:.2f} times for {kind} on {spec.partition('@')[0]}")
    # NCCL sums in the switches of DGX H100 (NVLS); dgx-h100-plain is the same network without that.
    console.print(f"As fast as NCCL at least; faster: {', '.join(faster)}")
    files = sorted(path for path in out.rglob("*") if path.is_file())
    console.print(f"{len(files)} files in {out}: schedules (tacos info FILE) and pictures")
    if failures:
        console.print(f"{failures} schedules are not valid", style="bold red")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "out")))
