"""Dimensions of a network and what a gigabyte per second in each of them costs.

The bandwidth of a dimension is what one NPU can send in it, over all its links of that dimension. A network costs
``sum_d c[d] * bandwidth[d]``. Links are priced per GB/s; a switch adds its own price and that of a NIC, once for each NPU
below it. These are the rules and the prices of LIBRA (Won et al., ISPASS 2024).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tacos import topology as topologies
from tacos._core import Topology
from tacos.errors import FormatError, nearest
from tacos.formats import markup
from tacos.formats.source import about, quoted

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos.units import Quantity

__all__ = ["PRICES", "TIERS", "Dimension", "Price", "build", "cost_model", "dimensions", "prices"]

TIERS = ("InterChiplet", "InterPackage", "InterNode", "InterPod")
"""Where a dimension lies, from the inside out; a network of fewer dimensions has the outer ones."""

_KINDS = {
    "ring": "ring",
    "fullyconnected": "clique",
    "fully-connected": "clique",
    "fc": "clique",
    "clique": "clique",
    "switch": "switch",
}


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per GB/s of one link, of a switch's port, and of a NIC."""

    link: float
    switch: float | None = None
    nic: float = 0.0


PRICES: Mapping[str, Price] = {
    "InterChiplet": Price(2.0),
    "InterPackage": Price(4.0, 13.0),
    "InterNode": Price(4.0, 13.0),
    "InterPod": Price(7.8, 18.0, 31.6),
}
"""LIBRA's prices, without the 1e-5 by which its files tell equal ones apart."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a network.

    Attributes:
        kind: ``"ring"``, ``"clique"`` or ``"switch"``.
        size: NPUs along it.
        name: What constraints call it, besides d0, d1, …
        tier: Where it lies, a key of the prices.
    """

    kind: str
    size: int
    name: str = ""
    tier: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("ring", "clique", "switch"):
            raise ValueError(f"kind must be ring, clique or switch; got {self.kind!r}")
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"size must be a positive whole number; got {self.size!r}")


Dimensions: TypeAlias = "str | os.PathLike[str] | Topology | Sequence[Dimension | tuple[str, int]]"
Cost: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, Price | Mapping[str, float]] | Sequence[float] | None"
)


def dimensions(given: Dimensions) -> tuple[Dimension, ...]:
    """Return the dimensions of a network, the innermost first.

    Args:
        given: A spec such as ``ring:4*fc:8*switch:32``, LIBRA's network file (``.yml``), a topology that has
            dimensions, or a list of dimensions or of (kind, size).

    Raises:
        ValueError: It is not one of these.
        FormatError: The file is not LIBRA's; the message names field and value.

    >>> [(d.name, d.kind, d.size, d.tier) for d in dimensions("ring:4*switch:32")]
    [('d0', 'ring', 4, 'InterNode'), ('d1', 'switch', 32, 'InterPod')]
    """
    if isinstance(given, str | os.PathLike) and str(given).lower().endswith((".yml", ".yaml")):
        return _named(_network_file(Path(given)))
    if isinstance(given, str):
        given = topologies.parse(given)
    if isinstance(given, Topology):
        if prod(size for _, size in given.dims) != given.npus:
            raise ValueError(
                "the topology has no dimensions to design; write a spec such as ring:4*switch:32"
            )
        return _named([_dimension(kind, size, "the topology") for kind, size in given.dims])
    if not isinstance(given, Sequence) or not given:
        raise ValueError(
            f"dims must be a spec, a file or a list of dimensions; got {quoted(given)}"
        )
    return _named(
        [one if isinstance(one, Dimension) else _dimension(one[0], one[1], "dims") for one in given]
    )


def _dimension(kind: Any, size: Any, place: str) -> Dimension:
    known = _KINDS.get(str(kind).lower())
    if known is None:
        raise ValueError(
            f"{place} has a dimension of kind {kind!r}; use ring, clique (fc) or switch"
        )
    if type(size) is not int or size < 1:
        raise ValueError(f"{place} has a dimension of size {size!r}; it must be a positive number")
    return Dimension(known, size)


def _named(found: Sequence[Dimension]) -> tuple[Dimension, ...]:
    tiers = TIERS[max(len(TIERS) - len(found), 0) :]
    result: list[Dimension] = []
    for d, one in enumerate(found):
        outer = tiers[max(d - max(len(found) - len(tiers), 0), 0)]
        result.append(Dimension(one.kind, one.size, one.name or f"d{d}", one.tier or outer))
    names = [one.name for one in result]
    for d, name in enumerate(names):
        if name in names[:d] or (name != f"d{d}" and name in (f"d{e}" for e in range(len(names)))):
            raise ValueError(f"two dimensions are called {name!r}")
        if name in ("total", "cost") or not name.isidentifier():
            raise ValueError(f"a dimension cannot be called {name!r}; use letters and digits")
    return tuple(result)


def _network_file(path: Path) -> list[Dimension]:
    with about(path):
        fields = _fields(markup.load(path), ("Topology", "NpusCount", "CostDimension"))
        kinds, sizes, tiers = (
            _list(fields, name) for name in ("Topology", "NpusCount", "CostDimension")
        )
        if not len(kinds) == len(sizes) == len(tiers):
            raise ValueError(
                f"Topology has {len(kinds)} entries, NpusCount {len(sizes)} and CostDimension "
                f"{len(tiers)}; they must have the same number"
            )
        found = []
        for d, (kind, size, tier) in enumerate(zip(kinds, sizes, tiers, strict=True)):
            if not isinstance(kind, str) or kind.lower() not in _KINDS:
                raise ValueError(
                    f"Topology[{d}] is {quoted(kind)}; use Ring, FullyConnected or Switch"
                )
            if type(size) is not int or size < 1:
                raise ValueError(f"NpusCount[{d}] is {quoted(size)}; it must be a positive number")
            if not isinstance(tier, str):
                raise ValueError(f"CostDimension[{d}] is {quoted(tier)}; it must be a name")  # noqa: TRY004
            found.append(Dimension(_KINDS[kind.lower()], size, tier=tier))
        return found


def _fields(data: Any, names: Sequence[str]) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"the file must have the fields {', '.join(names)}")  # noqa: TRY004
    for name in names:
        if name not in data:
            raise ValueError(f"the field {name} is missing")
    for name in data:
        if name not in names:
            raise ValueError(f"there is no field {name!r}; the fields are {', '.join(names)}")
    return data


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields[name]
    if not isinstance(value, list) or not value:
        raise ValueError(
            f"{name} is {quoted(value)}; it must be a list with one entry per dimension"
        )
    return value


# --- prices --------------------------------------------------------------------------------------


def prices(dims: Sequence[Dimension], cost: Cost = None) -> NDArray[np.float64]:
    """Return the dollars that one byte per second more per NPU costs in each dimension, for the whole network.

    Args:
        dims: The dimensions.
        cost: Prices by tier, LIBRA's cost file, or dollars per GB/s for each dimension; LIBRA's prices if not given.

    Raises:
        ValueError: A price is missing or not a number.

    >>> (prices(dimensions("ring:4*fc:8*ring:4*switch:32")) * 1e9).round(1).tolist()
    [8192.0, 16384.0, 16384.0, 235110.4]
    """
    if isinstance(cost, Sequence) and not isinstance(cost, str):
        if len(cost) != len(dims) or not all(_is_price(value) for value in cost):
            raise ValueError(
                f"cost has {len(cost)} entries; it must have one number per dimension ({len(dims)}), "
                "in dollars per GB/s"
            )
        return np.array(cost, float) / 1e9
    table, npus = cost_model(cost), prod(one.size for one in dims)
    return np.array([npus * _per_npu(one, table) for one in dims]) / 1e9


def cost_model(cost: Cost) -> Mapping[str, Price]:
    """Return prices by tier.

    Raises:
        ValueError: They are given by dimension, or one is not a number.
    """
    if cost is None:
        return PRICES
    if isinstance(cost, str | os.PathLike):
        return _cost_file(Path(cost))
    if not isinstance(cost, Mapping):
        raise ValueError(f"cost must be prices by tier or a file; got {quoted(cost)}")  # noqa: TRY004
    return {
        tier: price if isinstance(price, Price) else _price(price, tier)
        for tier, price in cost.items()
    }


def _per_npu(one: Dimension, cost: Mapping[str, Price]) -> float:
    if one.tier not in cost:
        close = nearest(one.tier, cost)
        hint = f"; did you mean {close}?" if close else f"; it has {', '.join(cost)}"
        raise ValueError(f"the cost model has no prices for {one.tier}{hint}")
    price = cost[one.tier]
    if one.kind != "switch":
        return price.link
    if price.switch is None:
        raise ValueError(
            f"the cost model has no price of a switch for {one.tier}, where {one.name} is a switch"
        )
    return price.link + price.switch + price.nic


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < np.inf


def _price(given: Any, tier: str) -> Price:
    if not isinstance(given, Mapping):
        what = "it must have a price Link, and may have Switch and Nic"
        raise ValueError(f"{tier} is {quoted(given)}; {what}")  # noqa: TRY004
    found = {str(name).lower(): value for name, value in given.items()}
    for name, value in found.items():
        if name not in ("link", "switch", "nic"):
            raise ValueError(f"{tier} has a price {name!r}; the prices are Link, Switch and Nic")
        if not _is_price(value):
            raise ValueError(
                f"{tier}.{name.capitalize()} is {quoted(value)}; it must be dollars per GB/s"
            )
    if "link" not in found:
        raise ValueError(f"{tier} has no price Link")
    return Price(found["link"], found.get("switch"), found.get("nic", 0.0))


def _cost_file(path: Path) -> dict[str, Price]:
    with about(path):
        data = markup.load(path)
        if not isinstance(data, dict) or not data:
            raise FormatError(
                f"{path}: the file must have prices for each tier, such as InterPod: {{Link: 7.8}}"
            )
        return {str(tier): _price(value, str(tier)) for tier, value in data.items()}


def ports_of(kind: str, size: int) -> int:
    """Return how many links of a dimension an NPU has."""
    return {"ring": min(2, size - 1), "clique": size - 1, "switch": 1}[kind]


def link_speeds(dims: Sequence[Dimension], bandwidths: Sequence[float]) -> list[float]:
    """Return the bandwidth of one link of each dimension."""
    return [
        x / (1 if one.kind == "switch" else ports_of(one.kind, one.size))
        for one, x in zip(dims, bandwidths, strict=True)
    ]


def build(
    dims: Sequence[Dimension], bandwidths_Bps: Sequence[float], *, latency: Quantity = "500ns"
) -> Topology:
    """Return the topology that has these dimensions and bandwidths per NPU.

    >>> from tacos.design import dimensions
    >>> build(dimensions("ring:4*switch:2"), [50e9, 25e9]).link_bandwidth_Bps[[0, -1]].tolist()
    [25000000000, 25000000000]
    """
    makers: dict[str, Callable[..., Topology]] = {
        "ring": topologies.ring,
        "clique": topologies.fully_connected,
        "switch": topologies.switch,
    }
    factors = []
    for one, speed in zip(dims, link_speeds(dims, bandwidths_Bps), strict=True):
        if round(speed) < 1:
            raise ValueError(f"{one.name} has a bandwidth of {speed:g} B/s; it must be positive")
        factors.append(makers[one.kind](one.size, bandwidth=f"{round(speed)}B/s", latency=latency))
    return factors[0] if len(factors) == 1 else topologies.product(*factors)
