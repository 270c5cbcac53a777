"""Topologies of TE-CCL, which ``TopologyParams`` in its input JSON gives by name.

The networks are those that TE-CCL describes, with its constants: NVLinks of 25 and 50 GB/s, 12.5 GB/s
between NDv2 and DGX-2 boxes, xGMI of 50 GB/s, meshes of 100 GB/s. Where its code differs from its
description (GPU 0 taken for a switch in two NDv2 boxes, switches of several AMD boxes off by one), this module
follows the description. Its mesh joins i and i + 1 also where a row ends; so does this one, so that published
schedules fit.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from tacos.formats import markup
from tacos.formats.source import about, fields_of, quoted
from tacos.topology import builders, machines
from tacos.topology.links import (
    Links,
    assemble,
    check_count,
    columns_of,
    duplex,
    speed,
    whole_number,
)
from tacos.units import time_ps

if TYPE_CHECKING:
    from tacos._core import Topology
    from tacos._support.files import Location

__all__ = ["looks_like", "network", "read"]

_NAMES = ("DGX1", "DGX2", "NDv2", "AMD", "Mesh")


class _Params(Struct):
    name: str
    chassis: int = 1
    alpha: tuple[float, float] = (0.0, 0.0)
    side_length: int = 4


class _Input(Struct):
    TopologyParams: _Params


def looks_like(head: str) -> bool:
    """Return whether a JSON text is an input of TE-CCL.

    >>> looks_like('{"TopologyParams": {"name": "DGX2"}}')
    True
    """
    return re.search(r'"TopologyParams"\s*:', head) is not None


def read(path: Location) -> Topology:
    """Read the topology that an input file of TE-CCL names.

    Raises:
        FormatError: The file does not name a known topology; the message names the field.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "input.json")
    ...     _ = file.write_text('{"TopologyParams": {"name": "NDv2", "chassis": 2}}')
    ...     read(file)
    <tacos.Topology NDv2: 16 NPUs, 0 switches, 66 links>
    """
    with about(path):
        params = fields_of(markup.load(path), _Input).TopologyParams
        return network(
            params.name, params.chassis, alpha=params.alpha, side_length=params.side_length
        )


def network(
    name: str,
    chassis: int = 1,
    *,
    alpha: tuple[float, float] = (0.0, 0.0),
    side_length: int = 4,
) -> Topology:
    """Return a topology of TE-CCL by its name.

    Args:
        name: ``"DGX1"``, ``"DGX2"`` (always two boxes), ``"NDv2"``, ``"AMD"`` or ``"Mesh"``.
        chassis: Number of boxes.
        alpha: Latencies in seconds of links and of links to switches, for DGX1, AMD and Mesh; the other topologies
            have fixed latencies.
        side_length: Side length of a mesh.

    >>> network("Mesh", side_length=4)
    <tacos.Topology Mesh: 16 NPUs, 0 switches, 54 links>
    """
    if name not in _NAMES:
        raise ValueError(f"name is {quoted(name)}; it must be one of {', '.join(_NAMES)}")
    whole_number("chassis", chassis)
    whole_number("side_length", side_length)
    link, switch = (time_ps(one, what="alpha") for one in alpha)
    check_count(100 * chassis + (4 * side_length**2 if name == "Mesh" else 0))
    if name == "Mesh":
        n = side_length**2
        v = np.arange(n)
        cables = duplex(v[:-1], v[1:], "100GB/s", f"{link}ps")
        cables += duplex(v[:-side_length], v[side_length:], "100GB/s", f"{link}ps")
        return assemble(n, cables if side_length > 1 else [], family=name)
    if name == "DGX1":
        if chassis != 1:
            raise ValueError(f"chassis is {chassis}; it must be 1 for a DGX1")
        return _boxes(name, machines.dgx1(latency=f"{link}ps"), 1, [], 0)
    if name == "DGX2":
        box = builders.switch(16, bandwidth="125GB/s", latency="350ns")
        odd = np.arange(1, 16, 2)  # an odd GPU sends to the even one before it
        across = [
            Links(odd + a, odd - 1 + b, *speed("12.5GB/s", "2.6us")) for a, b in ((0, 16), (16, 0))
        ]
        return _boxes(name, box, 2, across, 0)
    if name == "NDv2":
        return _ndv2(chassis)
    return _amd(chassis, link, switch)


def _ndv2(chassis: int) -> Topology:
    """Join boxes: GPU 0 of a box sends, GPU 1 receives; more than two boxes share a switch."""
    box, fast = machines.dgx1(), speed("12.5GB/s", "1.3us")
    first = 8 * np.arange(chassis)
    if chassis == 1:
        return _boxes("NDv2", box, 1, [], 0)
    if chassis == 2:
        return _boxes("NDv2", box, 2, [Links(first, first[::-1] + 1, *fast)], 0)
    fabric = np.full(chassis, 8 * chassis)
    across = [Links(first, fabric, *fast), Links(fabric, first + 1, *fast)]
    return _boxes("NDv2", box, chassis, across, 1)


def _amd(chassis: int, link: int, switch: int) -> Topology:
    """Join two dies to a switch, which leads to the switch between boxes."""
    box = machines.mi250(latency=f"{link}ps")
    if chassis == 1:
        return _boxes("AMD", box, 1, [], 0)
    n = 16 * chassis
    v, pair = np.arange(n), n + np.arange(n // 2)
    across = duplex(v, n + v // 2, "25GB/s", f"{switch}ps")
    across += duplex(pair, n + n // 2, "25GB/s", f"{switch}ps")
    return _boxes("AMD", box, chassis, across, n // 2 + 1)


def _boxes(name: str, box: Topology, count: int, across: list[Links], switches: int) -> Topology:
    """Return copies of a box, and links between them whose switches come after those of the boxes."""
    n = count * box.npus
    blocks = builders.copies(box, 1, count, first_switch=n) if count > 1 else [columns_of(box)]
    return assemble(
        n,
        [*blocks, *across],
        capabilities=[0] * (count * box.switches + switches),
        family=name,
        dims=[("box", box.npus), *([("switch", count)] if count > 1 else [])],
    )
