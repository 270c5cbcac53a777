"""How long algorithms take to go to a format and back: a row for each format.

Run: python benchmarks/formats.py
"""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import tacos


def mscclpp(folder: Path) -> None:
    """A 128-NPU all-reduce around a ring to an MSCCL++ plan, back, and checked."""
    topology = tacos.topology.ring(128)
    collective = tacos.collective.all_reduce(topology, "128MB", chunks=1)
    program = tacos.lower(tacos.synthesize(topology, collective, engine="ring"))
    path = folder / "plan.json"
    start = [time.process_time()]
    tacos.save(program, path)
    start.append(time.process_time())
    read = tacos.load(path)
    start.append(time.process_time())
    tacos.verify(read).raise_if_failed()
    start.append(time.process_time())
    _row("mscclpp", start, steps=read.steps, MB=path.stat().st_size / 1e6)


def _row(name: str, times: list[float], **facts: Any) -> None:
    write, read, check = (b - a for a, b in pairwise(times))
    what = ", ".join(f"{key} {value:.4g}" for key, value in facts.items())
    print(f"{name:10} write {write:6.3f} s  read {read:6.3f} s  verify {check:6.3f} s  ({what})")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mscclpp(Path(folder))
