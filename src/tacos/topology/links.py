"""Links as columns, and the one place where they become a `Topology`.

The builders describe a network as a few `Links`, each a block of directed links with NumPy columns;
`assemble` concatenates the blocks, whose order gives the link ids, and adds how links and switches behave.
`from_links` does the same for links that the caller lists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np

from tacos._core import Topology
from tacos.errors import keywords
from tacos.units import Quantity, bandwidth_Bps, time_ps

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from tacos._core import Faults

__all__ = [
    "ROUTINGS",
    "Links",
    "Model",
    "all_pairs",
    "assemble",
    "check_count",
    "columns_of",
    "duplex",
    "from_links",
    "model_of",
    "raise_if_disconnected",
    "speed",
    "whole_number",
]

MOST_LINKS = 10**8  # 2.4 GB of columns; a larger size is probably a mistake (chosen)
ROUTINGS = ("spread", "destination", "first")
"""What switches may do with a message that has several equal paths; see `Model`."""
_CAPABILITIES = {"multicast": 1, "reduce": 2}
_COLUMNS = ("src", "dst", "bandwidth_Bps", "latency_s")


class Model(TypedDict, total=False):
    """Keywords of every builder: how links, switches and NPUs behave."""

    link_model: str
    """``"pipelined"`` (a link is busy for m/B) or ``"blocking"`` (for latency + m/B)."""
    forwarding: str
    """``"cut_through"`` or ``"store_and_forward"`` switches."""
    routing: str
    """What switches do with a message that has several equal paths: divide it evenly (``"spread"``), choose by its
    destination (``"destination"``), or take the path with the lowest link ids (``"first"``)."""
    reduce_bandwidth: Quantity | None
    """How fast an NPU reduces; None: reducing takes no time."""


class Links(NamedTuple):
    """Directed links: columns of equal length; a scalar stands for a whole column."""

    src: NDArray[np.integer[Any]]
    dst: NDArray[np.integer[Any]]
    bandwidth_Bps: int | NDArray[np.int64]
    latency_ps: int | NDArray[np.int64]


def speed(bandwidth: Quantity, latency: Quantity) -> tuple[int, int]:
    """Parse a bandwidth and a latency into the last two columns of `Links`."""
    return bandwidth_Bps(bandwidth, bare=False), time_ps(latency, what="latency", bare=False)


def duplex(a: ArrayLike, b: ArrayLike, bandwidth: Quantity, latency: Quantity) -> list[Links]:
    """Return links from every `a` to its `b`, then the links back."""
    src, dst = np.broadcast_arrays(np.asarray(a), np.asarray(b))
    src, dst = src.ravel(), dst.ravel()
    fast = speed(bandwidth, latency)
    return [Links(src, dst, *fast), Links(dst, src, *fast)]


def all_pairs(m: int, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return columns of all pairs (i, j) with i below `m` and j below `n`."""
    return np.repeat(np.arange(m), n), np.tile(np.arange(n), m)


def columns_of(topology: Topology) -> Links:
    """Return all links of a topology."""
    return Links(
        topology.link_src,
        topology.link_dst,
        topology.link_bandwidth_Bps,
        topology.link_latency_ps,
    )


def assemble(
    npus: int,
    blocks: Iterable[Links],
    *,
    capabilities: NDArray[np.uint8] | Sequence[int] = (),
    family: str = "",
    dims: Sequence[tuple[str, int]] = (),
    symmetric: bool = False,
    names: Sequence[str] = (),
    faults: Faults | None = None,
    link_model: str = "pipelined",
    forwarding: str = "cut_through",
    routing: str = "spread",
    reduce_bandwidth: Quantity | None = None,
) -> Topology:
    """Return the topology of the given blocks of links; their order gives the link ids."""
    blocks = list(blocks)

    def column(i: int, dtype: type[np.integer[Any]]) -> NDArray[Any]:
        parts = [np.broadcast_to(np.asarray(block[i]), block.src.shape) for block in blocks]
        return np.concatenate([np.empty(0, dtype), *parts], dtype=dtype, casting="same_kind")

    return Topology(
        npus=npus,
        switch_capabilities=np.asarray(capabilities, np.uint8),
        link_src=column(0, np.int32),
        link_dst=column(1, np.int32),
        link_bandwidth_Bps=column(2, np.int64),
        link_latency_ps=column(3, np.int64),
        link_model=link_model,
        forwarding=forwarding,
        routing=routing,
        reduce_bandwidth_Bps=0
        if reduce_bandwidth is None
        else bandwidth_Bps(reduce_bandwidth, what="reduce_bandwidth", bare=False),
        family=family,
        dims=list(dims),
        symmetric=symmetric,
        names=list(names),
        faults=faults,
        given_away=True,
    )


def model_of(topology: Topology) -> Model:
    """Return the `Model` keywords that the topology was built with."""
    return Model(
        link_model=topology.link_model,
        forwarding=topology.forwarding,
        routing=topology.routing,
        reduce_bandwidth=f"{topology.reduce_bandwidth_Bps}B/s"
        if topology.reduce_bandwidth_Bps
        else None,
    )


def whole_number(what: str, value: object, least: int = 1) -> int:
    """Return `value`; raise a ValueError that names `what` if it is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{what} must be a whole number of at least {least}; got {value!r}")
    return int(value)


def check_count(links: int) -> None:
    """Refuse a network that is too large, before its columns fill the memory."""
    if links > MOST_LINKS:
        raise ValueError(f"the network would have {links} links; at most {MOST_LINKS} can be built")


def raise_if_disconnected(topology: Topology) -> Topology:
    """Return the topology; raise a ValueError that names two NPUs if one cannot reach the other."""
    pair = topology.unreachable_pair()
    if pair is not None:
        src, dst = map(topology.node_name, pair)
        raise ValueError(f"the topology is not connected: {src} cannot reach {dst}")
    return topology


@keywords()
def from_links(
    npus: int,
    links: Mapping[str, ArrayLike] | tuple[NDArray[Any], ...] | Iterable[Sequence[Any]],
    *,
    switches: int | Sequence[str | Collection[str]] = 0,
    names: Sequence[str] = (),
    connected: bool = True,
    family: str = "",
    dims: Sequence[tuple[str, int]] = (),
    link_model: str = "pipelined",
    forwarding: str = "cut_through",
    routing: str = "spread",
    reduce_bandwidth: Quantity | None = None,
) -> Topology:
    """Return a topology from its directed links; a link's id is its position in the list.

    Args:
        npus: number of NPUs, nodes 0 … npus-1; the nodes that follow are switches.
        links: rows (src, dst, bandwidth, latency), or columns: a mapping with the keys ``src``,
            ``dst``, ``bandwidth_Bps`` and ``latency_s``, or a tuple of four NumPy arrays in this
            order. Bandwidths and latencies are numbers in B/s and s, or strings with a unit.
        switches: their number, or what each one can do: ``""``, ``"multicast"``, ``"reduce"``,
            ``"multicast+reduce"``, or a set of these words.
        names: names of all nodes, in order; none by default.
        connected: whether every NPU must be able to reach every other.
        family, dims: hints for drawings and hierarchical algorithms.
        link_model, forwarding, routing, reduce_bandwidth: as in `Model`.

    Raises:
        ValueError: a wrong link, or a network that is not connected.

    >>> from_links(3, [(0, 1, "50GB/s", "500ns"), (1, 2, 5e10, 5e-7), (2, 0, "25GB/s", "1us")])
    <tacos.Topology custom: 3 NPUs, 0 switches, 3 links>
    >>> from_links(2, [(0, 2, 1e9, 0), (2, 1, 1e9, 0)], switches=["multicast"])
    Traceback (most recent call last):
    ...
    ValueError: the topology is not connected: npu 1 cannot reach npu 0
    """
    topology = assemble(
        whole_number("npus", npus),
        [_columns(links)],
        capabilities=_capability_bits(switches),
        family=family,
        dims=dims,
        names=names,
        link_model=link_model,
        forwarding=forwarding,
        routing=routing,
        reduce_bandwidth=reduce_bandwidth,
    )
    return raise_if_disconnected(topology) if connected else topology


def _columns(
    links: Mapping[str, ArrayLike] | tuple[NDArray[Any], ...] | Iterable[Sequence[Any]],
) -> Links:
    columns: Sequence[Any]
    if isinstance(links, Mapping):
        if set(links) != set(_COLUMNS):
            raise ValueError(
                f"links has the columns {sorted(links)}; they must be {sorted(_COLUMNS)}"
            )
        columns = [links[name] for name in _COLUMNS]
    elif isinstance(links, tuple) and links and all(isinstance(c, np.ndarray) for c in links):
        columns = links
    else:
        rows = [tuple(row) for row in links]
        wrong = next((i for i, row in enumerate(rows) if len(row) != 4), None)
        if wrong is not None:
            raise ValueError(
                f"links[{wrong}] is {rows[wrong]!r}; it must be (src, dst, bandwidth, latency)"
            )
        columns = list(zip(*rows, strict=True)) or [()] * 4
    shapes = {np.shape(column) for column in columns}
    if len(columns) != 4 or len(shapes) > 1 or len(shapes.pop()) != 1:
        raise ValueError(f"links needs four columns of one length: {', '.join(_COLUMNS)}")
    src, dst, bandwidth, latency = columns
    return Links(
        _node_ids("src", src),
        _node_ids("dst", dst),
        _quantities(
            bandwidth, 1, lambda value, i: bandwidth_Bps(value, what=f"links[{i}].bandwidth")
        ),
        _quantities(latency, 10**12, lambda value, i: time_ps(value, what=f"links[{i}].latency")),
    )


def _node_ids(what: str, column: Any) -> NDArray[np.int64]:
    ids = np.asarray(column)
    if ids.dtype.kind in "iu" and not (ids.size and (ids.min() < 0 or ids.max() >= 2**31)):
        return ids.astype(np.int64)
    for i, given in enumerate(ids.tolist()):
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or given != given // 1 or not 0 <= given < 2**31:
            raise ValueError(f"links[{i}].{what} is {given!r}; it must be a node's number")
    return ids.astype(np.int64)


def _quantities(
    column: Any, per_si_unit: int, parse: Callable[[Quantity, int], int]
) -> NDArray[np.int64]:
    values = np.asarray(column)
    if np.issubdtype(values.dtype, np.number):
        scaled = np.rint(values.astype(np.float64) * per_si_unit)
        # Zero, negative numbers and NaN get their messages below; from 2^53 on, floats miss some whole numbers.
        if bool(np.all((scaled >= 1) & (scaled < 2**53))):
            return scaled.astype(np.int64)
    known: dict[Quantity, int] = {}
    for i, value in enumerate(column):
        if value not in known:
            known[value] = parse(value, i)
    return np.array([known[value] for value in column], np.int64)


def _capability_bits(switches: int | Sequence[str | Collection[str]]) -> list[int]:
    if isinstance(switches, int | np.integer):
        return [0] * whole_number("switches", switches, least=0)
    bits = []
    for i, words in enumerate(switches):
        if isinstance(words, str):
            words = words.split("+") if words else ()  # noqa: PLW2901
        if unknown := set(words) - set(_CAPABILITIES):
            raise ValueError(
                f'switches[{i}] must be one of "", "multicast", "reduce", "multicast+reduce"; '
                f"got {min(unknown)!r}"
            )
        bits.append(sum(_CAPABILITIES[word] for word in set(words)))
    return bits
