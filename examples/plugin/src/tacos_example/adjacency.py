"""Adjacency lists: a line per NPU with the NPUs that its links lead to, after a line with the speed of all links.

::

    links 50GB/s 500ns
    0: 1 3
    1: 2 0
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import tacos
from tacos.formats import Format, replacing
from tacos.formats.source import about, text_of

if TYPE_CHECKING:
    import os

_LINE = re.compile(r"([0-9]{1,6}):((?: +[0-9]{1,6})*)")


def read(path: str | os.PathLike[str]) -> tacos.Topology:
    """Read a network; errors name the file, the line and what is wrong with it."""
    with about(path):
        first, *lines = text_of(path).splitlines()
        if len(speed := first.split()) != 3:
            raise ValueError(f"line 1 is {first!r}; expected links BANDWIDTH LATENCY")
        links = []
        for number, line in enumerate(lines, 2):
            if not (found := _LINE.fullmatch(line.rstrip())):
                raise ValueError(f"line {number} is {line!r}; expected NPU: NPU NPU …")
            links += [(int(found[1]), int(other), *speed[1:]) for other in found[2].split()]
        npus = 1 + max((max(a, b) for a, b, *_ in links), default=0)
        return tacos.topology.from_links(npus, links)


def write(network: tacos.Topology, path: str | os.PathLike[str]) -> None:
    """Write a network without switches whose links are all equal."""
    columns = (network.link_bandwidth_Bps.tolist(), network.link_latency_ps.tolist())
    speeds = {*zip(*columns, strict=True)}
    if network.switches or len(speeds) != 1:
        raise tacos.FormatError(
            f"{path}: adjacency lists are for networks of equal links without switches"
        )
    ((bandwidth, latency),) = speeds
    rows: list[list[int]] = [[] for _ in range(network.npus)]
    for a, b in zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True):
        rows[a].append(b)
    with replacing(path) as out:
        out.write(f"links {bandwidth}B/s {latency / 1e3:g}ns\n".encode())
        for npu, others in enumerate(rows):
            out.write(f"{npu}: {' '.join(map(str, others))}\n".encode())


FORMAT = Format(
    tacos.Topology,
    read,
    (".adj", ".txt"),
    is_one=lambda head: head.startswith("links "),
    write=write,
    written=(".adj",),
)
