"""Short names of topologies: ``torus:4x4x4@50GB/s,500ns``, ``dgx-h100:4``, ``ring:4*fc:8``.

A spec is one factor or a product of several, joined by ``*``. A factor is a name, sizes behind a
colon and, for networks whose links are all alike, ``@bandwidth[,latency]``.
One table, `_NETWORKS`, gives the names their builders.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Unpack

from tacos.errors import SpecError
from tacos.topology import builders, clusters, machines

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Topology
    from tacos.topology.links import Model

__all__ = ["parse", "specs"]


class _Network(NamedTuple):
    build: Callable[..., Topology]
    sizes: str  # the form of what follows the name; brackets where it may be left out
    fewest: int
    most: int
    what: str
    speed: bool = True  # whether @bandwidth,latency is allowed


def _machine(build: Callable[..., Topology], what: str, boxes: str = "boxes") -> _Network:
    return _Network(build, f"[:{boxes}]", 0, 1, what, speed=False)


_NETWORKS = {
    "ring": _Network(builders.ring, ":N", 1, 1, "a bidirectional ring"),
    "mesh": _Network(builders.mesh, ":AxBx…", 1, 9, "a grid"),
    "torus": _Network(builders.torus, ":AxBx…", 1, 9, "a grid with wrap-around links"),
    "hypercube": _Network(builders.hypercube, ":D", 1, 1, "2^D NPUs"),
    "fc": _Network(builders.fully_connected, ":N", 1, 1, "every NPU linked to every other"),
    "switch": _Network(builders.switch, ":N", 1, 1, "NPUs on one switch"),
    "fat-tree": _Network(
        clusters.fat_tree, ":[PODSx]LEAVESxNPUS", 2, 3, "two or three levels of switches"
    ),
    "rail": _Network(
        clusters.rail, ":BOXESxNPUS", 2, 2, "a switch per box, a switch per rail", speed=False
    ),
    "dragonfly": _Network(clusters.dragonfly, ":GROUPSxNPUS", 2, 2, "cliques with global links"),
    "dragonfly+": _Network(
        clusters.dragonfly_plus, ":GROUPSxLEAVESxNPUS", 3, 3, "two-level trees with global links"
    ),
    "tpu": _Network(machines.tpu, ":X[xY[xZ]]", 1, 3, "a TPU slice, a 3-D torus"),
    "dgx-1": _machine(machines.dgx1, "8 V100 in a cube mesh"),
    "dgx-2": _machine(machines.dgx2, "16 V100 on NVSwitch"),
    "ndv2": _machine(machines.ndv2, "8 V100 in a cube mesh, one NIC"),
    "dgx-a100": _machine(machines.dgx_a100, "8 A100 on NVSwitch"),
    "dgx-h100": _machine(machines.dgx_h100, "8 H100 on NVSwitch"),
    "dgx-h100-nvls": _machine(
        partial(machines.dgx_h100, nvls=True), "the same, NVSwitch multicasts and reduces"
    ),
    "nvl72": _machine(machines.nvl72, "72 GPUs on one NVLink domain", "racks"),
    "nvl72-nvls": _machine(
        partial(machines.nvl72, nvls=True), "the same, its switches multicast and reduce", "racks"
    ),
    "mi250": _machine(machines.mi250, "16 MI250 dies"),
    "mi300x": _machine(machines.mi300x, "8 fully connected MI300X"),
}

_SIZES = re.compile(r"[0-9]+(?:x[0-9]+)*")
_LARGEST = 10**9


def parse(spec: str, **model: Unpack[Model]) -> Topology:
    """The topology with this short name; `specs` lists them all.

    Args:
        spec: such as ``torus:4x4x4@50GB/s,500ns``; the speed is that of one link (of one port for
            a switch) and may be left out. Machines take the number of boxes, 1 by default.
        model: `Model`, as for every builder.

    Raises:
        SpecError: names the part that is wrong and what is allowed.

    >>> parse("torus:4x4x4@50GB/s,500ns")
    <tacos.Topology torus: 64 NPUs, 0 switches, 384 links>
    >>> parse("ring:4*fc:8*switch:4@25GB/s").npus
    128
    >>> parse("tours:4x4")          # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    tacos.errors.SpecError: topology "tours:4x4": there is no "tours", did you mean "torus"? The names are ring, ...
    """
    try:
        factors = [_factor(text.strip(), model) for text in spec.split("*")]
        return factors[0] if len(factors) == 1 else builders.product(*factors)
    except ValueError as error:
        raise SpecError(f'topology "{spec}": {error}') from None


def specs() -> dict[str, str]:
    """All short names with their sizes, and what each stands for.

    >>> specs()["torus:AxBx…"]
    'a grid with wrap-around links'
    """
    return {name + network.sizes: network.what for name, network in _NETWORKS.items()}


def _factor(text: str, model: Model) -> Topology:
    head, at, speed = text.partition("@")
    name, colon, sizes = (part.strip() for part in head.lower().partition(":"))
    name = name.replace("_", "-")
    if not text:
        raise ValueError("a name is missing")
    network = _NETWORKS.get(name)
    if network is None:
        raise ValueError(_unknown(name))
    form = name + network.sizes
    counts = [int(size) for size in sizes.split("x")] if _SIZES.fullmatch(sizes) else []
    if bool(counts) != bool(colon) or not network.fewest <= len(counts) <= network.most:
        raise ValueError(f'"{head.strip()}" does not have the form {form}')
    if max(counts, default=0) > _LARGEST:
        raise ValueError(f'"{head.strip()}" is too large, a size is at most {_LARGEST:,}')
    if at and not network.speed:
        raise ValueError(f'"@{speed}" is not allowed, {name} has its own bandwidths and latencies')
    parts = speed.split(",") if at else []
    if len(parts) > 2:
        raise ValueError(f'"@{speed}" is not @BANDWIDTH or @BANDWIDTH,LATENCY')
    keywords = dict(zip(("bandwidth", "latency"), parts, strict=False))
    return network.build(*counts, **keywords, **model)


def _unknown(name: str) -> str:
    close = [f'"{word}"' for word in get_close_matches(name, _NETWORKS)]
    hint = f", did you mean {' or '.join(close)}?" if close else "."
    return f'there is no "{name}"{hint} The names are {", ".join(_NETWORKS)}'
