"""Pipelined broadcasts: chunks follow each other along a path through all NPUs, which is as fast as a link for large buffers.

The path is found by depth-first search, which counts every link that it looks at. A search for the best algorithm ends an engine whose
allowance is used up; so an engine that counts its work can be asked on any network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import tacos
from tacos.synth.engine import Engine, Meter

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK = 250
"""Nanoseconds to look at a link in Python: a unit of work is about a nanosecond."""


def pipeline(
    topology: tacos.Topology,
    collective: tacos.Collective,
    *,
    progress: Callable[[float], object] | None = None,
) -> tacos.Schedule:
    """Every NPU of a path passes every chunk on to the next one."""
    PIPELINE.check(topology, collective)
    wanted = collective if collective.resolved else collective.with_chunks(1)
    meter = Meter.of(progress)  # counts work, and raises where the allowance ends
    path = _path(topology, wanted.parts[0].root, meter)
    table = tacos.routes(topology, pairs=(path[:-1], path[1:]))
    hop, chunk = np.divmod(np.arange((topology.npus - 1) * wanted.chunks), wanted.chunks)
    return tacos.retime(wanted, table, route=hop, chunk=chunk, step=hop, progress=meter)


def _path(topology: tacos.Topology, root: int, meter: Meter) -> list[int]:
    """Return a path from the root through all NPUs, over one link each time."""
    links = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    near: dict[int, list[int]] = {}
    for a, b in links:
        if b < topology.npus:
            near.setdefault(a, []).append(b)
    tries, path = [iter(near.get(root, []))], [root]
    while tries and len(path) < topology.npus:
        meter.spend(_LOOK)
        ahead = next(tries[-1], None)
        if ahead is None:
            tries.pop()
            path.pop()
        elif ahead not in path:
            path.append(ahead)
            tries.append(iter(near.get(ahead, [])))
    if not path:
        raise tacos.InfeasibleError(f"no path of single links from NPU {root} passes all NPUs once")
    return path


def _obstacle(topology: tacos.Topology, collective: tacos.Collective) -> str:
    parts = collective.parts
    if [part.kind for part in parts] != ["broadcast"] or len(parts[0].group) < topology.npus:
        return "a broadcast to all NPUs"
    return "" if topology.links else "links"


PIPELINE = Engine(name="pipeline", solve=pipeline, obstacle=_obstacle)
