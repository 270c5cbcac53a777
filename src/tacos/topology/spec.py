"""Short names of topologies: ``torus:4x4x4@50GB/s,500ns``, ``dgx-h100:4``, ``ring:4*fc:8``.

A spec is one factor, or a product of several joined by ``*``. A factor is a name, sizes after a colon and,
for networks of equal links, ``@bandwidth[,latency]``. A routing may come last, as in ``fat-tree:4x4@50GB/s,destination`` or
``fat-tree:4x4@first``; it holds for the whole product. The table `NETWORKS` maps names to builders; installed packages
add theirs with entry points of the group ``tacos.topologies``.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Unpack

from tacos._support.plugins import Table
from tacos.errors import SpecError, keywords, nearest
from tacos.topology import builders, clusters, machines
from tacos.topology.links import ROUTINGS, Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Topology

__all__ = ["NETWORKS", "Spec", "parse", "specs"]


class Spec(NamedTuple):
    """What the name of a spec stands for."""

    build: Callable[..., Topology]
    """Takes the sizes, ``bandwidth`` and ``latency`` if the spec has them, and the keywords of `Model`."""
    sizes: str
    """The form of the sizes, such as ``":AxBx…"``; optional parts are in brackets."""
    fewest: int
    """Smallest number of sizes."""
    most: int
    """Largest number of sizes."""
    what: str
    """A description of a few words."""
    speed: bool = True
    """Whether ``@bandwidth,latency`` is allowed."""


def _machine(
    build: Callable[..., Topology], what: str, boxes: str = "boxes", count: str = "optional"
) -> Spec:
    if count == "required":
        return Spec(build, f":{boxes}", 1, 1, what, speed=False)
    return Spec(build, f"[:{boxes}]", 0, 1, what, speed=False)


def _summing(
    name: str, build: Callable[..., Topology], what: str, boxes: str = "boxes"
) -> dict[str, Spec]:
    """Return a machine whose switches multicast and reduce (NVLS), and its network without that."""
    without = f"{name} without NVLS"
    return {
        name: _machine(build, what, boxes),
        f"{name}-plain": _machine(partial(build, nvls=False), without, boxes),
    }


def _obstacle(name: str, _spec: Spec) -> str:
    """Return what is wrong with a plug-in's name."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        return 'its name must be of small letters, digits, ".", "+" and "-"'
    other = _ALSO.get(name) or _WHOLE.get(name)
    return f"its name is another one of {other}" if other else ""


_BUILT_IN = {
    "ring": Spec(builders.ring, ":N", 1, 1, "a bidirectional ring"),
    "mesh": Spec(builders.mesh, ":AxBx…", 1, 9, "a grid"),
    "torus": Spec(builders.torus, ":AxBx…", 1, 9, "a grid with wrap-around links"),
    "hypercube": Spec(builders.hypercube, ":D", 1, 1, "2^D NPUs"),
    "fc": Spec(builders.fully_connected, ":N", 1, 1, "every NPU linked to every other"),
    "switch": Spec(builders.switch, ":N", 1, 1, "NPUs on one switch"),
    "fat-tree": Spec(
        clusters.fat_tree, ":[PODSx]LEAVESxNPUS", 2, 3, "two or three levels of switches"
    ),
    "rail": Spec(
        clusters.rail, ":BOXESxNPUS", 2, 2, "a switch per box, a switch per rail", speed=False
    ),
    "dragonfly": Spec(clusters.dragonfly, ":GROUPSxNPUS", 2, 2, "cliques with global links"),
    "dragonfly+": Spec(
        clusters.dragonfly_plus, ":GROUPSxLEAVESxNPUS", 3, 3, "two-level trees with global links"
    ),
    "tpu": Spec(machines.tpu, ":X[xY[xZ]]", 1, 3, "a TPU slice, a 3-D torus"),
    "dgx-1": _machine(machines.dgx1, "8 V100 in a cube mesh"),
    "dgx-2": _machine(machines.dgx2, "16 V100 on NVSwitch"),
    "ndv2": _machine(machines.ndv2, "8 V100 in a cube mesh, one NIC"),
    "dgx-a100": _machine(machines.dgx_a100, "8 A100 on NVSwitch"),
    **_summing("dgx-h100", machines.dgx_h100, "8 H100 on NVSwitch, with NVLS"),
    **_summing("dgx-b200", machines.dgx_b200, "8 B200 on NVSwitch, with NVLS"),
    **_summing(
        "dgx-b300",
        partial(machines.dgx_b200, nic_bandwidth="100GB/s"),
        "8 B300 on NVSwitch, with NVLS, NICs of 800 Gb/s",
    ),
    **_summing("nvl72", machines.nvl72, "72 GPUs on one NVLink domain, with NVLS", "racks"),
    **_summing(
        "gb300-nvl72",
        partial(machines.nvl72, nic_bandwidth="100GB/s"),
        "nvl72 with NICs of 800 Gb/s",
        "racks",
    ),
    "dgx-spark": _machine(
        partial(machines.dgx_spark, wiring="switch"), "DGX Spark on one switch", count="required"
    ),
    "dgx-spark-ring": _machine(
        machines.dgx_spark, "DGX Spark in a ring of cables", count="required"
    ),
    "dgx-spark-line": _machine(
        partial(machines.dgx_spark, wiring="line"),
        "DGX Spark in a line of cables",
        count="required",
    ),
    "dgx-spark-mesh": _machine(
        partial(machines.dgx_spark, wiring="mesh"),
        "two or three DGX Spark, all joined by cables",
        count="required",
    ),
    "mi250": _machine(machines.mi250, "16 MI250 dies"),
    "mi300x": _machine(machines.mi300x, "8 fully connected MI300X or MI325X"),
    "mi355x": _machine(machines.mi355x, "8 fully connected MI350X or MI355X"),
    "trn2": _machine(machines.trn2, "16 Trainium2 in a 4x4 torus", "instances"),
    "trn2-ultra": _machine(
        partial(machines.trn2, ultra=True), "64 Trainium2 in a 4x4x4 torus", "servers"
    ),
}
NETWORKS = Table("tacos.topologies", Spec, _BUILT_IN, _obstacle)
"""What specs can name: the networks of this package, and then those of installed plug-ins."""

_ALSO = {  # other common names
    "fully-connected": "fc",
    "clique": "fc",
    "a100": "dgx-a100",
    "hgx-a100": "dgx-a100",
    "h100": "dgx-h100",
    "hgx-h100": "dgx-h100",
    "h200": "dgx-h100",
    "dgx-h200": "dgx-h100",
    "hgx-h200": "dgx-h100",
    "b200": "dgx-b200",
    "hgx-b200": "dgx-b200",
    "b300": "dgx-b300",
    "hgx-b300": "dgx-b300",
    "gb200": "nvl72",
    "gb200-nvl72": "nvl72",
    "gb300": "gb300-nvl72",
    "mi325x": "mi300x",
    "mi350x": "mi355x",
    "trainium2": "trn2",
    "trn2u": "trn2-ultra",
}
_ALSO |= {
    f"{also}-plain": f"{name}-plain" for also, name in _ALSO.items() if f"{name}-plain" in _BUILT_IN
}
_WHOLE = {"dgx-spark-triangle": "dgx-spark-mesh:3"}
"""Names that stand for a network with its sizes."""

_SIZES = re.compile(r"[0-9]+(?:x[0-9]+)*")
_LARGEST = 10**9


@keywords(*Model.__annotations__)
def parse(spec: str, **model: Unpack[Model]) -> Topology:
    """Return the topology of a spec; `specs` lists them all.

    Args:
        spec: such as ``torus:4x4x4@50GB/s,500ns``; the speed is that of one link (of one port for
            a switch) and may be left out. Machines take the number of boxes, 1 by default. A routing may come last.
        model: how links, switches and NPUs behave; see `Model`.

    Raises:
        SpecError: the spec is wrong; the message names the part and what is allowed.

    >>> parse("torus:4x4x4@50GB/s,500ns")
    <tacos.Topology torus: 64 NPUs, 0 switches, 384 links>
    >>> parse("ring:4*fc:8*switch:4@25GB/s").npus
    128
    >>> parse("tours:4x4")
    Traceback (most recent call last):
    tacos.errors.SpecError: topology "tours:4x4": there is no "tours"; did you mean torus:4x4?
    >>> parse("torus8,8@50GB/s")
    Traceback (most recent call last):
    tacos.errors.SpecError: topology "torus8,8@50GB/s": there is no "torus8,8"; did you mean torus:8x8@50GB/s?
    """
    try:
        parts = [_factor(text.strip()) for text in spec.split("*")]
        if routing := _common_routing(parts):
            model["routing"] = routing
        factors = [_build(part, model) for part in parts]
        return factors[0] if len(factors) == 1 else builders.product(*factors)
    except ValueError as error:
        raise SpecError(f'topology "{spec}": {error}{_advice(spec)}') from None


def specs() -> dict[str, str]:
    """Return all specs with the form of their sizes, and a description of each.

    >>> specs()["torus:AxBx…"]
    'a grid with wrap-around links'
    """
    return {name + network.sizes: network.what for name, network in NETWORKS.items()}


class _Factor(NamedTuple):
    name: str
    counts: list[int]
    speed: dict[str, str]
    routing: str


def _factor(text: str) -> _Factor:
    """Parse a factor; raise a ValueError if it is malformed."""
    head, at, speed = text.partition("@")
    head = _WHOLE.get(head.strip().lower().replace("_", "-"), head)
    name, colon, sizes = (part.strip() for part in head.lower().partition(":"))
    name = name.replace("_", "-")
    name = _ALSO.get(name, name)
    if not text.strip():
        raise ValueError("a name is missing")
    network = NETWORKS.get(name)
    if network is None:
        raise ValueError(f'there is no "{name}"')
    counts = [int(size) for size in sizes.split("x")] if _SIZES.fullmatch(sizes) else []
    if bool(counts) != bool(colon) or not network.fewest <= len(counts) <= network.most:
        raise ValueError(f'expected {name + network.sizes}; got "{head.strip()}"')
    if max(counts, default=0) > _LARGEST:
        raise ValueError(f'"{head.strip()}" is too large; a size is at most {_LARGEST:,}')
    parts = speed.split(",") if at else []
    routing = parts.pop().strip() if parts and parts[-1].strip() in ROUTINGS else ""
    if parts and not network.speed:
        raise ValueError(f'"@{speed}" is not allowed: {name} has its own bandwidths and latencies')
    if len(parts) > 2:
        raise ValueError(
            f'"@{speed}" is not @BANDWIDTH[,LATENCY][,ROUTING] with a routing of {", ".join(ROUTINGS)}'
        )
    return _Factor(name, counts, dict(zip(("bandwidth", "latency"), parts, strict=False)), routing)


def _common_routing(factors: list[_Factor]) -> str:
    """Return the routing that the factors name; empty if none does."""
    named = sorted({factor.routing for factor in factors if factor.routing})
    if len(named) > 1:
        raise ValueError(f"a network has one routing; got {' and '.join(named)}")
    return named[0] if named else ""


def _build(factor: _Factor, model: Model) -> Topology:
    return NETWORKS[factor.name].build(*factor.counts, **factor.speed, **model)


# --- suggestions ---------------------------------------------------------------------------------

_TIMES = re.compile(r"(?<=[0-9])\s*[*×]\s*(?=[0-9])")  # as in torus:4*4
_JOINT = re.compile(r"(?<=[0-9])[a-zA-Z;/-](?=[0-9])")  # as in torus:4y4
_NAME_AND_SIZES = re.compile(r"(.*?)[\s:=]*([0-9]+(?:[x×,][0-9]+)*)?", re.DOTALL)


def _advice(spec: str) -> str:
    """Suggest what to write instead, or list all names if the name is wrong."""
    meant = "*".join(_meant(factor.strip()) for factor in _TIMES.sub("x", spec).split("*"))
    if meant != spec and all(_is_one(factor) for factor in meant.split("*")):
        return f"; did you mean {meant}?"
    names = [factor.partition("@")[0].partition(":")[0] for factor in spec.lower().split("*")]
    known = all(name.strip().replace("_", "-") in NETWORKS for name in names)
    return "" if known else f"; use one of {', '.join(NETWORKS)}, or a file such as net.yaml"


def _meant(text: str) -> str:
    """Return the nearest known factor: ``torus:4x4`` for ``tours 4,4``; a known factor is returned unchanged."""
    head, at, speed = text.partition("@")
    if not head or _is_one(text):
        return text
    kind, colon, sizes = head.partition(":")
    head = kind + colon + _JOINT.sub("x", sizes)
    found = _NAME_AND_SIZES.fullmatch(head.lower())
    assert found  # matches any text: both parts may be empty
    if ":" in found[1]:  # a part of the sizes would be left out
        return text
    ways = [(found[1], found[2] or ""), (head.lower(), "")]  # a name may end with a number
    guesses = [(nearest(name, NETWORKS), name, sizes) for name, sizes in ways]
    near = [(_alike(name, close), close, sizes) for close, name, sizes in guesses if close]
    if not near:
        return text
    _, name, sizes = max(near, key=lambda guess: guess[0])
    counts = re.findall(r"[0-9]+", sizes)
    return name + (":" + "x".join(counts) if counts else "") + at + speed


def _alike(one: str, other: str) -> float:
    from difflib import SequenceMatcher

    return SequenceMatcher(None, one, other).ratio()


def _is_one(text: str) -> bool:
    try:
        _factor(text)
    except ValueError:
        return False
    return True
