"""The balanced engine: uneven messages between pairs of NPUs, in boxes joined by slower ports.

The experts of an MoE model are not equally popular, and every step of a training job sends different sizes. The core
(``cpp/synth/balanced.hpp`` has the theory) balances the traffic of a box over all of its ports, and orders the
messages so that the ports stay busy. This takes milliseconds, so every step can have its own schedule.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacos._core import Meter
from tacos._core import balanced as _balanced
from tacos.collective import kind_of
from tacos.errors import InfeasibleError
from tacos.schedule import routes
from tacos.synth import requirements
from tacos.synth.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from tacos._core import Collective, Routes, Schedule, Topology
    from tacos.collective import Kind

__all__ = ["ENGINE", "balanced"]

_MOST_NPUS = 512
"""Most NPUs (chosen): computing a route for each pair of them takes a tenth of a second."""
_SMALL = 0.01
"""Largest share of the total time that a piece should take (chosen)."""
_MOST_PIECES = 24_000
"""Most pieces if their number is chosen here: 50 ms of work."""


def balanced(
    topology: Topology,
    collective: Collective,
    *,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Send every message directly, or through NPUs of the two boxes whose ports are less loaded.

    Args:
        topology: Boxes, or one box, in which every NPU reaches every other without passing a third.
        collective: Uneven all-to-alls and send-recvs.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: The engine does not support the network or the collective.

    >>> import tacos
    >>> topo = tacos.topology.dgx_h100(2, nic_bandwidth="50GB/s")
    >>> sizes = np.zeros((16, 16), int)
    >>> sizes[0, 8:] = 50_000_000             # 400 MB leave one NPU, over eight NICs with 400 GB/s
    >>> coll = tacos.collective.all_to_all_v(topo, sizes)
    >>> round(balanced(topo, coll).time_s, 5), round(tacos.bound(topo, coll).time_s, 5)
    (0.00101, 0.001)
    """
    ENGINE.check(topology, collective)
    hops = _Hops.of(topology)
    if not collective.resolved:
        collective = collective.with_chunks(_pieces(topology, collective, hops))
    chunk, src, dst = _messages(collective)
    meter = Meter.of(progress)
    meter.reserve((topology.npus**2 + len(chunk)) * Meter.TRANSFER)
    return _balanced(
        collective,
        hops.routes,
        hop=hops.hop.ravel(),
        box=hops.box,
        chunk=chunk,
        src=src,
        dst=dst,
        least_s=hops.least_s(topology, src, dst, collective.chunk_bytes()[chunk]),
        provenance=json.dumps({"engine": ENGINE.name}),
        progress=meter,
    )


class _Hops(NamedTuple):
    """The hops of a network: routes between NPUs that pass no other NPU.

    Messages of programs take the same routes.

    Attributes:
        routes: A route for each pair of NPUs.
        hop: The route from each NPU to each other; -1 if it passes a third NPU.
        box: The box of each NPU.
    """

    routes: Routes
    hop: NDArray[np.int32]
    box: NDArray[np.int32]

    @classmethod
    def of(cls, topology: Topology) -> _Hops:
        npus = topology.npus
        src, dst = np.nonzero(~np.eye(npus, dtype=bool))
        table = routes(topology, pairs=(src, dst))
        inner = topology.link_dst[table.links] < npus
        inner[table.link_begin[1:] - 1] = False
        passed = np.concatenate([[0], np.cumsum(inner)])[table.link_begin]
        hop = np.full((npus, npus), -1, np.int32)
        hop[src, dst] = np.where(np.diff(passed) == 0, np.arange(len(src)), -1)
        box = np.arange(npus) // _box_size(topology)
        return cls(table, hop, box.astype(np.int32))

    def least_s(
        self,
        topology: Topology,
        src: NDArray[np.int32],
        dst: NDArray[np.int32],
        sizes: NDArray[np.int64],
    ) -> float:
        """Return the least time that the links of NPUs, and the ports of boxes, need for messages."""
        rates, boxes = topology.link_bandwidth_Bps.astype(float), int(self.box.max()) + 1
        from_, to = np.nonzero((self.hop >= 0) & (self.box[:, None] != self.box))
        between, least = self.hop[from_, to], 0.0
        crosses = self.box[src] != self.box[dst]
        for ends, links, side, port, owner in (
            (src, topology.link_src, crosses, self.routes.link_begin[between], from_),
            (dst, topology.link_dst, crosses, self.routes.link_begin[between + 1] - 1, to),
        ):
            room = np.bincount(links, rates, topology.nodes)[: topology.npus]
            load = np.bincount(ends, sizes, topology.npus)
            used, first = np.unique(self.routes.links[port], return_index=True)
            wide = np.bincount(self.box[owner[first]], rates[used], boxes)
            full = np.bincount(self.box[ends[side]], sizes[side], boxes)
            for bytes_, width in ((load, room), (full, wide)):
                some = (bytes_ > 0) & (width > 0)
                least = max(least, float((bytes_[some] / width[some]).max(initial=0)))
        return least


def _box_size(topology: Topology) -> int:
    """Return the size of the innermost dimension; a network without dimensions is one box."""
    dims = requirements.boxed(topology)
    return dims[0][1] if dims else topology.npus


def _messages(
    collective: Collective,
) -> tuple[NDArray[np.uint32], NDArray[np.int32], NDArray[np.int32]]:
    """Return the chunks that must move, with their sources and destinations."""
    chunk, src = collective.precondition()
    wanted, dst = collective.postcondition()
    assert np.array_equal(chunk, wanted)
    moves = (src != dst) & (collective.chunk_bytes()[chunk] > 0)
    return chunk[moves], src[moves], dst[moves]


def _pieces(topology: Topology, collective: Collective, hops: _Hops) -> int:
    """Return the number of pieces per message, so that no piece occupies a port for long."""
    whole = collective.with_chunks(1)
    chunk, src, dst = _messages(whole)
    if not len(chunk):
        return 1
    sizes = whole.chunk_bytes()[chunk]
    least_s = (
        hops.least_s(topology, src, dst, sizes) + float(topology.link_latency_ps.max()) * 1e-12
    )
    longest_s = float(sizes.max()) / float(topology.link_bandwidth_Bps.min())
    wanted = longest_s / (_SMALL * least_s)
    straight = np.count_nonzero(hops.hop < 0) == topology.npus
    moves = len(chunk) if straight else 2 * len(chunk)  # otherwise, most messages have a relay
    return max(1, min(int(wanted), _MOST_PIECES // moves))


def _chunk_counts(
    topology: Topology,
    collective: Collective,
    _counts: tuple[int, ...],
    _memory: dict[str, Any],
) -> Iterable[int]:
    ENGINE.check(topology, collective)
    return [_pieces(topology, collective, _Hops.of(topology))]


def _uneven_pairs(kind: Kind) -> bool:
    return (kind.per_pair and not kind.even) or kind.name == "send_recv"


def _obstacle(topology: Topology, collective: Collective) -> str:
    for part in collective.parts:
        if not _uneven_pairs(kind_of(part)):
            return f"all-to-all-v or send-recv, not {part.label}"
    npus, size = topology.npus, _box_size(topology)
    if npus < 2:
        return "at least 2 NPUs"
    if npus > _MOST_NPUS:
        return f"at most {_MOST_NPUS} NPUs, not {npus}"
    if npus % size:
        return f"equal boxes, not {npus} NPUs in boxes of {size}"
    try:
        hops = _Hops.of(topology)
    except InfeasibleError:
        return "a network in which every NPU reaches every other"
    boxes = npus // size
    reached = ((hops.hop >= 0) | np.eye(npus, dtype=bool)).reshape(boxes, size, boxes, size)
    if not all(reached[box, :, box].all() for box in range(boxes)):
        return "boxes in which every NPU reaches every other without passing a third"
    alike = np.arange(size)
    if not reached.all() and not reached[:, alike, :, alike].any(axis=0).all():
        return "boxes in which some NPU i reaches NPU i of every other box"
    return ""


ENGINE = Engine(
    name="balanced",
    solve=balanced,
    obstacle=_obstacle,
    chunk_counts=_chunk_counts,
)
