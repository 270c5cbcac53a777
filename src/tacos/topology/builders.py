"""Regular networks: rings, meshes, tori, cliques, switches and their products.

All of them are products of one-dimensional pieces. NPU ids are mixed-radix coordinates, and the first
dimension varies fastest: id = c0 + n0·(c1 + n1·(c2 + …)). Every cable is two directed links.

Link ids are regular too: dimension by dimension, and within a dimension of size n (N is the total number
of NPUs, `at(v)` the NPU at coordinate v of the same line):

===========  ==========================================================================
ring         N links v → at(v + 1), then N links v → at(v - 1) (not if n = 2)
line         v → at(v + 1) where it exists, then v → at(v - 1) (as a ring if n = 2)
clique       N links v → at(v + 1), N links v → at(v + 2), …, N links v → at(v + n - 1)
switch       N links v → its switch, then N links from the switch → v
===========  ==========================================================================

Each block is in the order of v, so a translation of the NPUs moves links within their block.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Unpack

import numpy as np

from tacos.errors import keywords
from tacos.topology.links import (
    Links,
    Model,
    assemble,
    check_count,
    duplex,
    model_of,
    speed,
    whole_number,
)
from tacos.units import Quantity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Topology

__all__ = ["fully_connected", "hypercube", "mesh", "product", "ring", "switch", "torus"]

BANDWIDTH: Quantity = "50GB/s"
LATENCY: Quantity = "500ns"
PerDimension = Quantity | Sequence[Quantity]
"""One value for all dimensions, or one for each."""


@keywords(*Model.__annotations__)
def ring(
    n: int,
    *,
    bidirectional: bool = True,
    bandwidth: Quantity = BANDWIDTH,
    latency: Quantity = LATENCY,
    **model: Unpack[Model],
) -> Topology:
    """Return a ring of `n` NPUs; a ring of two has one link each way.

    Args:
        n: number of NPUs.
        bidirectional: whether each NPU also has a link to the NPU before it.
        bandwidth, latency: bandwidth and latency of each link.
        model: how links, switches and NPUs behave; see `Model`.

    >>> ring(8).links, ring(8, bidirectional=False).links, ring(2).links, ring(1).links
    (16, 8, 2, 0)
    """
    check_count(2 * whole_number("n", n))
    v = np.arange(n)
    steps = [] if n == 1 else [1] if n == 2 or not bidirectional else [1, -1]
    blocks = [Links(v, (v + step) % n, *speed(bandwidth, latency)) for step in steps]
    return assemble(n, blocks, family="ring", dims=[("ring", n)], symmetric=True, **model)


@keywords(*Model.__annotations__)
def mesh(
    *sizes: int,
    bandwidth: PerDimension = BANDWIDTH,
    latency: PerDimension = LATENCY,
    **model: Unpack[Model],
) -> Topology:
    """Return a grid without wrap-around links, of any number of dimensions.

    Args:
        sizes: NPUs along each dimension; the first dimension varies fastest in NPU ids.
        bandwidth, latency: bandwidth and latency of each link; one value, or one per dimension.
        model: how links, switches and NPUs behave; see `Model`.

    >>> mesh(4, 3).links, mesh(5).dims
    (34, [('line', 5)])
    """
    speeds = _per_dimension(sizes, bandwidth, latency)
    return _cartesian([_line(n, *s) for n, s in zip(sizes, speeds, strict=True)], "mesh", **model)


@keywords(*Model.__annotations__)
def torus(
    *sizes: int,
    bandwidth: PerDimension = BANDWIDTH,
    latency: PerDimension = LATENCY,
    **model: Unpack[Model],
) -> Topology:
    """Return a grid with wrap-around links; a dimension of size 2 has one link each way.

    Args:
        sizes: NPUs along each dimension; the first dimension varies fastest in NPU ids.
        bandwidth, latency: bandwidth and latency of each link; one value, or one per dimension.
        model: how links, switches and NPUs behave; see `Model`.

    >>> torus(4, 4).links, torus(8, 2, bandwidth=("50GB/s", "25GB/s")).links
    (64, 48)
    """
    speeds = _per_dimension(sizes, bandwidth, latency)
    rings = [ring(n, bandwidth=b, latency=a) for n, (b, a) in zip(sizes, speeds, strict=True)]
    return _cartesian(rings, "torus", **model)


@keywords(*Model.__annotations__)
def hypercube(
    d: int,
    *,
    bandwidth: PerDimension = BANDWIDTH,
    latency: PerDimension = LATENCY,
    **model: Unpack[Model],
) -> Topology:
    """Return a hypercube of 2^d NPUs, each joined to the `d` NPUs whose numbers differ in one bit.

    >>> hypercube(4)
    <tacos.Topology hypercube: 16 NPUs, 0 switches, 64 links>
    """
    sizes = [2] * min(whole_number("d", d), 64)
    speeds = _per_dimension(sizes, bandwidth, latency)
    return _cartesian([ring(2, bandwidth=b, latency=a) for b, a in speeds], "hypercube", **model)


@keywords(*Model.__annotations__)
def fully_connected(
    n: int,
    *,
    bandwidth: Quantity = BANDWIDTH,
    latency: Quantity = LATENCY,
    **model: Unpack[Model],
) -> Topology:
    """Return `n` NPUs with a link from each to every other; `bandwidth` is that of one link.

    >>> fully_connected(8).links
    56
    """
    check_count(whole_number("n", n) * (n - 1))
    v, offset = np.arange(n), np.arange(1, n)[:, None]
    src, dst = np.broadcast_arrays(v, (v + offset) % n)
    block = Links(src.ravel(), dst.ravel(), *speed(bandwidth, latency))
    dims = [("clique", n)]
    return assemble(n, [block], family="fully_connected", dims=dims, symmetric=True, **model)


@keywords(*Model.__annotations__)
def switch(
    n: int,
    *,
    multicast: bool = False,
    reduce: bool = False,
    bandwidth: Quantity = BANDWIDTH,
    latency: Quantity = LATENCY,
    **model: Unpack[Model],
) -> Topology:
    """Return `n` NPUs on one non-blocking switch, which may multicast or reduce.

    Args:
        n: number of NPUs.
        multicast, reduce: whether the switch can multicast and reduce.
        bandwidth, latency: of each NPU's link to the switch and of the link back; a path between two NPUs
            has two links, and so twice the latency.
        model: how links, switches and NPUs behave; see `Model`.

    >>> switch(8)
    <tacos.Topology switch: 8 NPUs, 1 switch, 16 links>
    """
    check_count(2 * whole_number("n", n))
    return assemble(
        n,
        duplex(np.arange(n), n, bandwidth, latency),
        capabilities=[multicast + 2 * reduce],
        family="switch",
        dims=[("switch", n)],
        symmetric=True,
        **model,
    )


def product(*factors: Topology) -> Topology:
    """Return the Cartesian product: NPUs that differ in one factor's coordinate only are joined as in that factor.

    Every factor keeps its own bandwidths, latencies and switches; a factor with a switch contributes one
    switch per line of its dimension. The factors must have the same `Model`.

    >>> product(ring(4), fully_connected(8), switch(4, bandwidth="25GB/s")).dims
    [('ring', 4), ('clique', 8), ('switch', 4)]
    >>> product(switch(8, bandwidth="450GB/s"), switch(4))       # boxes of 8, and 8 rails
    <tacos.Topology product: 32 NPUs, 12 switches, 128 links>
    """
    if not factors:
        raise ValueError("product needs at least one factor")
    model = model_of(factors[0])
    for i, factor in enumerate(factors):
        if model_of(factor) != model:
            raise ValueError(
                f"the factors of a product must agree: factor {i} has "
                f"{model_of(factor)}, factor 0 has {model}"
            )
    return _cartesian(factors, "product", **model)


def _per_dimension(
    sizes: Sequence[int], bandwidth: PerDimension, latency: PerDimension
) -> list[tuple[Quantity, Quantity]]:
    if not sizes:
        raise ValueError("a mesh or torus needs at least one dimension")
    for size in sizes:
        whole_number("size", size)

    def spread(what: str, value: PerDimension) -> Sequence[Quantity]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            return [value] * len(sizes)
        if len(value) != len(sizes):
            raise ValueError(f"{what} has {len(value)} values for {len(sizes)} dimensions")
        return value

    return list(zip(spread("bandwidth", bandwidth), spread("latency", latency), strict=True))


def _line(n: int, bandwidth: Quantity, latency: Quantity) -> Topology:
    check_count(2 * n)
    v = np.arange(n)
    return assemble(n, duplex(v[:-1], v[1:], bandwidth, latency), dims=[("line", n)])


def _cartesian(factors: Sequence[Topology], family: str, **model: Unpack[Model]) -> Topology:
    npus = prod(factor.npus for factor in factors)
    check_count(max(npus, sum(npus // factor.npus * factor.links for factor in factors)))
    blocks: list[Links] = []
    capabilities: list[NDArray[np.uint8]] = []
    inner, switches = 1, 0
    for factor in factors:
        outer = npus // factor.npus // inner
        blocks += copies(factor, inner, outer, first_switch=npus + switches)
        capabilities.append(np.tile(factor.switch_capabilities, inner * outer))
        inner, switches = inner * factor.npus, switches + capabilities[-1].size
    return assemble(
        npus,
        blocks,
        capabilities=np.concatenate(capabilities),
        family=family,
        dims=[dim for factor in factors for dim in factor.dims or [("box", factor.npus)]],
        symmetric=all(factor.symmetric for factor in factors),
        **model,
    )


def copies(factor: Topology, inner: int, outer: int, *, first_switch: int) -> list[Links]:
    """Return the factor's links for each of inner × outer lines, in the order that the module's docstring gives.

    NPU v of the line (i, o) is i + inner·(v + npus·o) in the product. A run of links with ascending NPUs,
    such as all links v → v + 1 of a ring, becomes one block.
    """
    i = np.arange(
        inner, dtype=np.int32
    )  # half the memory of the default; the caller has checked the range
    o = np.arange(outer, dtype=np.int32)[:, None, None]

    def numbered(node: NDArray[np.int32]) -> NDArray[np.int32]:
        npu = i + inner * (node + factor.npus * o)
        if not factor.switches:
            return npu.ravel()
        switch = first_switch + (i + inner * o) * factor.switches + node - factor.npus
        return np.where(node < factor.npus, npu, switch).ravel()

    def repeated(values: NDArray[np.int64], run: NDArray[np.int64]) -> int | NDArray[np.int64]:
        if values[run].min() == values[run].max():
            return int(values[run[0]])
        return np.broadcast_to(values[run][:, None], (outer, run.size, inner)).ravel()

    src, dst = factor.link_src, factor.link_dst
    npu = np.where(src < factor.npus, src, dst)
    runs = np.split(np.arange(factor.links), np.flatnonzero(np.diff(npu) <= 0) + 1)
    blocks = []
    for run in runs if factor.links else []:
        bandwidth = repeated(factor.link_bandwidth_Bps, run)
        latency = repeated(factor.link_latency_ps, run)
        ends = numbered(src[run][:, None]), numbered(dst[run][:, None])
        blocks.append(Links(*ends, bandwidth, latency))
    return blocks
