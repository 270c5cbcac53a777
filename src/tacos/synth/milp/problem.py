"""The problem in whole epochs: hops between NPUs, their durations, and which NPU needs which chunk.

A hop is a link between two NPUs or a path of the fewest links through one fabric of switches. Time is cut
into epochs; every duration is rounded up to epochs, so a solution of the rounded problem is a schedule.
If the epoch divides all durations, nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import Topology, bound

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Collective

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

__all__ = ["NEVER", "Hops", "Problem", "epoch_choices", "hops_of", "in_epochs", "in_steps"]

NEVER = 2**40
"""An epoch that no schedule reaches."""
_PATHS = 4  # largest number of paths between two NPUs through one fabric
_FEW_EPOCHS, _MANY_EPOCHS = 48, 160
_SOME_LOSS, _LITTLE_LOSS = 1.06, 1.01


@dataclass(frozen=True)
class Hops:
    """Paths from NPU to NPU that one transfer may take; `use_*` lists their links in order."""

    src: Ints
    dst: Ints
    use_hop: Ints
    use_link: Ints

    def __len__(self) -> int:
        return len(self.src)

    def links(self, hop: int) -> list[int]:
        """Return the links of a hop."""
        begin, end = np.searchsorted(self.use_hop, [hop, hop + 1])
        return [int(link) for link in self.use_link[begin:end]]

    def only(self, keep: Bools) -> Hops:
        """Return the hops of a mask, renumbered."""
        number = np.cumsum(keep) - 1
        used = keep[self.use_hop]
        return Hops(self.src[keep], self.dst[keep], number[self.use_hop[used]], self.use_link[used])


def hops_of(topology: Topology) -> Hops:
    """Return all hops of a network: its links between NPUs, and shortest paths through each fabric.

    >>> import tacos
    >>> len(hops_of(tacos.topology.switch(4))), hops_of(tacos.topology.switch(4)).links(0)
    (12, [0, 5])
    """
    leaving: list[list[tuple[int, int]]] = [[] for _ in range(topology.nodes)]
    for link, (src, dst) in enumerate(
        zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    ):
        leaving[src].append((link, dst))
    rows = [
        (npu, end, path)
        for npu in range(topology.npus)
        for end, path in _paths(topology, leaving, npu)
    ]
    return Hops(
        np.array([src for src, _, _ in rows], np.int64),
        np.array([dst for _, dst, _ in rows], np.int64),
        np.array([i for i, (_, _, path) in enumerate(rows) for _ in path], np.int64),
        np.array([link for _, _, path in rows for link in path], np.int64),
    )


def _paths(
    topology: Topology, leaving: list[list[tuple[int, int]]], npu: int
) -> list[tuple[int, list[int]]]:
    """Return (end, links) of the hops from an NPU, level by level through the switches behind each port."""
    found: list[tuple[int, list[int]]] = []
    layer: list[tuple[int, list[int]]] = []
    for link, node in leaving[npu]:
        (found if node < topology.npus else layer).append((node, [link]))
    # The switch behind a port identifies the fabric. Within it, only paths of the fewest links are kept.
    depth: dict[tuple[int, int], int] = {}
    count: dict[tuple[int, int], int] = {}
    while layer:
        following: list[tuple[int, list[int]]] = []
        for node, path in layer:
            fabric = int(topology.link_dst[path[0]])
            for link, end in leaving[node]:
                key, length = (fabric, end), len(path) + 1
                if end == npu or depth.setdefault(key, length) < length:
                    continue
                count[key] = count.get(key, 0) + 1
                if count[key] <= _PATHS:
                    (found if end < topology.npus else following).append((end, [*path, link]))
        layer = following
    return found


@dataclass(frozen=True)
class Problem:
    """A collective that only copies, in epochs.

    A chunk of size class k that starts hop h at t arrives at ``t + delay[k, h]``. It occupies the link of
    use u from ``t + begin[k, u]`` until ``t + end[k, u]``, exclusive. Links carry `capacity` chunks at once.
    """

    hops: Hops
    holds: Bools
    wants: Bools
    kind: Ints
    delay: Ints
    begin: Ints
    end: Ints
    capacity: Ints
    allowed: Bools
    epoch_ps: int = 1
    exact: bool = True

    @property
    def npus(self) -> int:
        """Number of NPUs."""
        return int(self.holds.shape[1])

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return int(self.holds.shape[0])

    def earliest(self) -> Ints:
        """Return the matrix [chunk, NPU] of when each chunk can reach each NPU if all links are free."""
        first = np.where(self.holds, 0, NEVER).astype(np.int64)
        return self._spread(first, forwards=True)

    def tails(self) -> Ints:
        """Return the matrix [chunk, NPU] of how long before the end each chunk must be at each NPU to be useful."""
        last = np.where(self.wants, 0, NEVER).astype(np.int64)
        return self._spread(last, forwards=False)

    def _spread(self, time: Ints, *, forwards: bool) -> Ints:
        hops = self.hops
        here, there = (hops.src, hops.dst) if forwards else (hops.dst, hops.src)
        cost = np.where(self.allowed, self.delay[self.kind], NEVER)
        while True:
            before = time.copy()
            np.minimum.at(time.T, there, np.minimum(time[:, here] + cost, NEVER).T)
            if np.array_equal(time, before):
                return time

    def unreachable(self) -> tuple[int, int] | None:
        """Return a chunk and an NPU that needs it but cannot get it, or None."""
        lost = np.argwhere(self.wants & (self.earliest() >= NEVER))
        return (int(lost[0][0]), int(lost[0][1])) if len(lost) else None


def in_epochs(topology: Topology, collective: Collective, hops: Hops, epoch_ps: int) -> Problem:
    """Return the problem under the topology's model of time.

    >>> import tacos
    >>> ring = tacos.topology.ring(4, bandwidth="1GB/s", latency="500ns")
    >>> coll = tacos.collective.all_gather(ring, "4KB", chunks=1)
    >>> problem = in_epochs(ring, coll, hops_of(ring), 500_000)
    >>> problem.delay.max(), problem.end.max()     # 1 us on the link, 1.5 us until it is there
    (np.int64(3), np.int64(2))
    """
    arrival, offset, busy = _durations(topology, collective, hops)
    holds = np.zeros((collective.chunks, topology.npus), bool)
    wants = holds.copy()
    holds[collective.precondition()] = True
    wants[collective.postcondition()] = True
    return Problem(
        hops=hops,
        holds=holds,
        wants=wants & ~holds,
        kind=np.unique(collective.chunk_bytes(), return_inverse=True)[1].ravel(),
        delay=np.maximum(-(-arrival // epoch_ps), 1),
        begin=offset // epoch_ps,
        end=-(-(offset + busy) // epoch_ps),
        capacity=np.ones(topology.links, np.int64),
        allowed=np.ones((collective.chunks, len(hops)), bool),
        epoch_ps=epoch_ps,
        exact=not any((times % epoch_ps).any() for times in (arrival, offset, busy)),
    )


def _durations(topology: Topology, collective: Collective, hops: Hops) -> tuple[Ints, Ints, Ints]:
    """Return, by size class and in ps, when a hop's chunk arrives, when its links become busy, and for how long."""
    sizes = np.unique(collective.chunk_bytes())
    speed = topology.link_bandwidth_Bps[hops.use_link]
    latency = topology.link_latency_ps[hops.use_link]
    # Python's integers, since bytes times 10^12 need more than 64 bits.
    send = np.array(
        [[-(-size * 10**12 // rate) for rate in speed.tolist()] for size in sizes.tolist()],
        np.int64,
    ).reshape(len(sizes), len(speed))
    first = np.searchsorted(hops.use_hop, np.arange(len(hops)))
    last = np.append(first[1:], len(hops.use_hop))[: len(hops)] - 1
    stored = topology.forwarding == "store_and_forward"
    step = latency + send if stored else np.broadcast_to(latency, send.shape)
    total = np.add.accumulate(step, axis=1) - step
    offset = total - total[:, first][:, hops.use_hop]
    arrival = offset[:, last] + step[:, last]
    if not stored and len(hops):
        arrival = arrival + np.maximum.reduceat(send, first, axis=1)
    # Each link has its own clock, which starts when the earliest head would arrive.
    clock = np.full(topology.links, np.iinfo(np.int64).max)
    for row in offset:
        np.minimum.at(clock, hops.use_link, row)
    busy = send + latency if topology.link_model == "blocking" else send
    return arrival, offset - clock[hops.use_link], busy


def epoch_choices(
    topology: Topology, collective: Collective, hops: Hops, horizon_ps: int
) -> list[int]:
    """Return the epoch lengths in picoseconds that are worth trying, coarsest first.

    These are the greatest common divisor of all durations, if it divides the horizon into few epochs. Otherwise, two
    fractions of a duration: the coarsest for which rounding raises the latency and bandwidth bounds a little, and the
    coarsest for which it hardly raises them.

    >>> import tacos
    >>> ring = tacos.topology.ring(4, bandwidth="1GB/s", latency="300ns")
    >>> coll = tacos.collective.all_gather(ring, "400KB", chunks=1)
    >>> epoch_choices(ring, coll, hops_of(ring), 200_600_000)     # 100 us on a link, 100.3 to arrive
    [100300000]
    """
    durations = np.concatenate([times.ravel() for times in _durations(topology, collective, hops)])
    values = np.unique(durations[durations > 0])
    if not len(values):
        return [1]
    common = gcd(*values.tolist())
    if horizon_ps <= common * _FEW_EPOCHS:
        return [common]
    epochs = np.unique([-(-values // part) for part in range(1, 9)])[::-1]
    epochs = epochs[epochs * _MANY_EPOCHS >= horizon_ps]
    if not len(epochs):
        return [max(1, -(-horizon_ps // _MANY_EPOCHS))]

    def estimate(network: Topology) -> float:
        found = bound(network, collective)
        return found.latency_ps + found.bandwidth_s * 1e12

    least = estimate(topology)
    loss = np.array([estimate(_rounded(topology, collective, e)) / least for e in epochs.tolist()])
    choices = []
    for limit in (_SOME_LOSS, _LITTLE_LOSS):
        good = np.flatnonzero(loss <= limit)
        choices.append(int(epochs[good[0]] if len(good) else epochs[np.argmin(loss)]))
    return sorted(set(choices), reverse=True)


def _rounded(topology: Topology, collective: Collective, epoch_ps: int) -> Topology:
    """Return the network with the durations of the largest chunk rounded up to epochs."""
    size = max(int(collective.chunk_bytes().max(initial=0)), 1)
    rates = topology.link_bandwidth_Bps.tolist()
    send = np.array([-(-size * 10**12 // rate) for rate in rates], np.int64)
    blocks = topology.link_model == "blocking"
    latency = topology.link_latency_ps
    busy = -(-(send + (latency if blocks else 0)) // epoch_ps) * epoch_ps
    arrival = -(-(send + latency) // epoch_ps) * epoch_ps
    return Topology(
        npus=topology.npus,
        switch_capabilities=topology.switch_capabilities,
        link_src=topology.link_src,
        link_dst=topology.link_dst,
        link_latency_ps=arrival - busy,
        link_bandwidth_Bps=np.array(
            [max(size * 10**12 // time, 1) for time in busy.tolist()], np.int64
        ),
        forwarding=topology.forwarding,
    )


def in_steps(topology: Topology, collective: Collective, hops: Hops) -> Problem:
    """Return the problem in SCCL's steps: in one round of a step, a link passes chunks in proportion to its bandwidth.

    The greatest common divisor of all bandwidths counts as one chunk per round.

    >>> import tacos
    >>> box = tacos.topology.dgx1()
    >>> problem = in_steps(box, tacos.collective.all_gather(box, 8, chunks=1), hops_of(box))
    >>> sorted(set(problem.capacity.tolist()))
    [1, 2]
    """
    problem = in_epochs(topology, collective, hops, 1)
    unit = gcd(*topology.link_bandwidth_Bps.tolist()) if topology.links else 1
    uses = np.zeros((1, len(hops.use_hop)), np.int64)
    return replace(
        problem,
        kind=np.zeros_like(problem.kind),
        delay=np.ones((1, len(hops)), np.int64),
        begin=uses,
        end=uses + 1,
        capacity=topology.link_bandwidth_Bps // unit,
    )
