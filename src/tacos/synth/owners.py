"""The engine ``owners``: all-reduces whose sums are formed at unequal shares of the NPUs.

An all-reduce collects each chunk's sum at an owner and spreads it from there. Equal NPUs own equal shares. Where NPUs differ, this is
slow: whatever an NPU does not own must enter it once and leave it once, so an NPU with less bandwidth, such as one whose NIC is dead,
should own *more*. Likewise a box with fewer NICs than others. The shares minimise the time that the cuts of the network allow for both phases,

    minimise s + t  where  share(X) <= s * bandwidth out of X  and  share(X) <= t * bandwidth into X  for every set X without some NPU,

a linear program to which the cuts that it violates are added one after the other. NPUs that look alike get equal shares. Then the greedy
engine collects and spreads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Collective, CollectivePart, narrowest_cut
from tacos._core import greedy as _greedy
from tacos._support.solver import LinearProgram, solve
from tacos.synth import requirements
from tacos.synth.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Schedule, Topology

__all__ = ["ENGINE", "owners", "shares"]

_MOST = 512
"""Largest number of NPUs, since the cuts of larger networks take long (chosen)."""
_ROUNDS = 60
"""Largest number of linear programs (chosen)."""
_LEAST = 1.002
"""A cut is added if it takes this much longer than the program expects (chosen)."""
_EVEN = 1e-3
"""Weight of differences between shares, so that they are as equal as possible at the same time (chosen)."""
_PARTS = 10**6
"""Shares are multiples of this part of the whole (chosen)."""


def owners(
    topology: Topology,
    collective: Collective,
    *,
    seed: int = 0,
    memory: dict[str, Any] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Collect sums at unequal shares of the NPUs, and spread them from there.

    Args:
        topology: Any network.
        collective: An all-reduce, with its number of chunks chosen.
        seed: As of the greedy engine.
        memory: Shares that were found before for this network and group.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(4)
    >>> slow = tacos.topology.degrade(topo, (0, 1), (0, 2), (0, 3), factor=0.5, both=True)
    >>> coll = tacos.collective.all_reduce(slow, "64MB", chunks=16)
    >>> equal = tacos.synthesize(slow, coll, engine="greedy")
    >>> owners(slow, coll).time_s < 0.9 * equal.time_s
    True
    """
    ENGINE.check(topology, collective)
    known = {} if memory is None else memory
    (part,) = collective.parts
    if "shares" not in known:
        known["shares"] = shares(topology, part.group, progress)
    sizes = collective.chunk_bytes()
    holder = part.group[_dealt(known["shares"], len(sizes))]
    gather = _gathering(topology.npus, part.group, holder, sizes)
    provenance = json.dumps({"engine": ENGINE.name, "seed": seed})
    collect, spread = (
        _greedy(
            network,
            gather,
            seed=seed,
            threads=0,
            backwards=backwards,
            provenance=provenance,
            progress=progress,
        )
        for network, backwards in ((topology.reversed(), True), (topology, False))
    )
    return collect.reverse(progress).then(spread, collective, progress)


def shares(
    topology: Topology,
    group: NDArray[np.int32],
    progress: Callable[[float], object] | None = None,
) -> NDArray[np.float64]:
    """Return the share of an all-reduce that each member of a group should own.

    >>> import tacos
    >>> topo = tacos.topology.fully_connected(4)
    >>> slow = tacos.topology.degrade(topo, (0, 1), (0, 2), (0, 3), factor=0.5, both=True)
    >>> shares(slow, np.arange(4)).round(3).tolist()       # 0.6 must enter NPU 0, and 0.8 each other one
    [0.5, 0.167, 0.167, 0.167]
    """
    kind = alike(topology, group)
    count = np.bincount(kind)
    kinds = len(count)
    scale = float(topology.link_bandwidth_Bps.max())
    members = np.asarray(group, np.int32)
    # Columns: the share of each kind's NPUs, the two times, how much each kind's share differs from an equal one, and the largest
    # differences upwards and downwards.
    ways, apart, most = kinds, kinds + 2, 2 * kinds + 2
    rows: list[dict[int, float]] = [dict(enumerate(count.astype(float).tolist()))]
    limits = [(1.0, 1.0)]
    equal = 1.0 / len(members)
    for one in range(kinds):
        for side, sign in enumerate((1.0, -1.0)):
            rows += [{one: sign, apart + one: -1.0}, {one: sign, most + side: -1.0}]
            limits += [(-np.inf, sign * equal)] * 2
    cost = [0.0] * kinds + [1.0, 1.0] + (_EVEN * count).tolist() + [_EVEN, _EVEN]
    networks = (topology, topology.reversed())
    found = np.full(kinds, equal)
    times = [0.0, 0.0]
    for _ in range(_ROUNDS):
        amounts = np.maximum((found[kind] * _PARTS).round().astype(np.int64), 1)
        done = True
        for way, network in enumerate(networks):
            inside, amount, bandwidth = narrowest_cut(network, members, members, amounts, progress)
            needed = amount / _PARTS * scale / bandwidth
            if needed > _LEAST * times[way]:
                done = False
                held = np.bincount(kind[inside[members] != 0], minlength=kinds)
                row = {k: float(n) for k, n in enumerate(held.tolist()) if n}
                rows.append(row | {ways + way: -bandwidth / scale})
                limits.append((-np.inf, 0.0))
        if done:
            break
        entries = [(i, k, value) for i, row in enumerate(rows) for k, value in row.items()]
        answer = solve(
            LinearProgram(
                cost=cost,
                entries=tuple(zip(*entries, strict=True)),  # type: ignore[arg-type]
                row_lower=[low for low, _ in limits],
                row_upper=[high for _, high in limits],
            )
        )
        if answer.values is None:
            break
        found = np.maximum(answer.values[:kinds], 0.0)
        times = answer.values[ways:apart].tolist()
    each: NDArray[np.float64] = found[kind] / found[kind].sum()
    return each


def alike(topology: Topology, group: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return a number for each member, the same for those whose surroundings look alike.

    >>> import tacos
    >>> alike(tacos.topology.mesh(3, 3), np.arange(9)).tolist()
    [0, 1, 0, 1, 2, 1, 0, 1, 0]
    """
    nodes = np.arange(topology.nodes)
    colour = np.where(nodes < topology.npus, 0, 1)
    colour[group] = 2
    link = np.stack([topology.link_bandwidth_Bps, topology.link_latency_ps])
    link_kind = np.unique(link, axis=1, return_inverse=True)[1].ravel()
    while True:
        around: list[list[tuple[int, int, int]]] = [[] for _ in range(topology.nodes)]
        for way, (here, there) in enumerate(
            ((topology.link_src, topology.link_dst), (topology.link_dst, topology.link_src))
        ):
            ends = zip(here.tolist(), link_kind.tolist(), colour[there].tolist(), strict=True)
            for node, kind, other in ends:
                around[node].append((way, kind, other))
        keys = [(int(colour[node]), tuple(sorted(around[node]))) for node in nodes.tolist()]
        number = {key: k for k, key in enumerate(sorted(set(keys)))}
        finer = np.array([number[key] for key in keys])
        if len(number) == len(np.unique(colour)):
            break
        colour = finer
    _, first, place = np.unique(finer[group], return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return rank[place.ravel()].astype(np.int64)


def _dealt(share: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return which member owns each chunk, in proportion to shares, as evenly over the chunks as possible."""
    given = np.zeros(len(share))
    found = np.empty(count, np.int64)
    for k in range(count):
        found[k] = one = int(np.argmax(share * (k + 1) - given))
        given[one] += 1
    return found


def _gathering(
    npus: int, group: NDArray[np.int32], holder: NDArray[np.int32], sizes: NDArray[np.int64]
) -> Collective:
    """Return the collective in which each chunk goes from its holder to the whole group."""
    count = len(holder)
    part = CollectivePart(
        "custom",
        int(sizes.sum()),
        chunks=1,
        bytes=sizes,
        inputs=holder,
        input_begin=np.arange(count + 1),
        outputs=np.tile(group, count),
        output_begin=np.arange(count + 1) * len(group),
        reduces=np.zeros(count, np.uint8),
    )
    return Collective(npus, [part])


def _obstacle(topology: Topology, collective: Collective) -> str:
    if needed := requirements.one_part(collective):
        return needed
    part = collective.parts[0]
    if part.kind != "all_reduce":
        return f"an all-reduce, not {part.kind.replace('_', '-')}"
    if topology.npus > _MOST:
        return f"at most {_MOST} NPUs, not {topology.npus}"
    if topology.symmetric or len(set(alike(topology, part.group).tolist())) == 1:
        return "NPUs that differ, so that shares do"
    return ""


ENGINE = Engine(name="owners", solve=owners, obstacle=_obstacle, patience=4)
