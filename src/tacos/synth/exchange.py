"""The exchange engine: collectives of few bytes in as few rounds as a network allows.

Each member is numbered by one digit per stage. The groups of a stage are the members that differ only in its digit.
In each stage of an all-reduce, all members of a group send each other their partial sums, so after the last stage every
member has the full sum, after one latency per stage. Recursive doubling uses binary digits; a one-shot exchange uses a
single digit. If that sends too many bytes, the first stages scatter instead (each member of a group sums a share of the
buffer) and gather the results at the end, as in halving-doubling. A reduce-scatter is the first half of an all-reduce
in which all stages scatter; an all-gather is the second.

Every factorization of the number of members, and every number of scattering stages, is a staging. Its time is estimated from the
latencies and loads of the fastest routes, and the best stagings are timed. Digits follow the ranks, which usually number boxes
one after the other. Blocks of members are reversed if that brings partners closer, so that a ring of four takes two stages of
one hop each, as in Swing (De Sensi et al., 2024). Every chunk is summed in one order: the members of a group add up the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Meter
from tacos.collective import kind_of
from tacos.errors import InfeasibleError
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE
from tacos.synth import requirements
from tacos.synth.engine import Engine
from tacos.synth.moves import Moves, concatenate, cut, to_schedule
from tacos.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tacos._core import Collective, CollectivePart, Schedule, Topology
    from tacos.synth.moves import Ints

__all__ = ["ENGINE", "exchange"]

_PASSES = 8
"""How often the latencies between members are read to order the members of a staging (benchmarks/work.py)."""
_MOST_MEMBERS = 144
_FEW_TRANSFERS, _MOST_TRANSFERS, _MANY = 100_000, 400_000, 64
"""Largest number of transfers of a staging with one chunk, for up to `_MANY` members and for more. Beyond it, synthesis
takes too long for collectives of few bytes."""
_MOST_BYTES = 1_000_000
"""Largest buffer in bytes; for larger ones, trees that fill all links are better."""
_TIMED, _KEPT = 12, 3
"""Number of stagings that are timed, and of those that are timed again with other chunk counts."""
_MOST_ORDERED = 32
"""Most members for which more than one order is considered."""
_MOST_CUT = 40_000
"""Largest number of transfers of a staging with several chunks; with more, messages are too short to gain by cutting (chosen)."""


@dataclass(frozen=True)
class _Staging:
    """The groups of each stage, and which stages scatter.

    Attributes:
        digits: Size of the groups, stage by stage.
        scattered: Number of stages, from the first, that scatter sums and gather them at the end.
        members: The member at every place; the digits of a place are those of its number, the lowest first.
        ways: The routes of messages.
    """

    digits: tuple[int, ...]
    scattered: int
    members: Ints
    ways: _Ways


def exchange(
    topology: Topology,
    collective: Collective,
    *,
    most_transfers: int = _MOST_TRANSFERS,
    memory: dict[str, Any] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Exchange sums or blocks in small groups, stage by stage.

    Args:
        topology: Any network.
        collective: An all-gather, reduce-scatter or all-reduce of at most 1 MB among at most 144 NPUs.
        most_transfers: The largest number of transfers of a staging with one chunk for each member.
        memory: Plans made before, for this network, group and size; new ones are added.
        progress: Called from time to time with the share of the work done.

    >>> import tacos
    >>> topo = tacos.topology.torus(4, 4, bandwidth="50GB/s", latency="500ns")
    >>> schedule = exchange(topo, tacos.collective.all_reduce(topo, "1600B"))
    >>> schedule.provenance["stages"], schedule.time_ps // 10**4     # four times 500 ns, and 16 times 100 B
    ([2, 2, 2, 2], 201)
    """
    ENGINE.check(topology, collective)
    resolved = collective if collective.resolved else collective.with_chunks(1)
    (part,) = resolved.parts
    known = {} if memory is None else memory
    meter = Meter.of(progress)
    if "stagings" not in known:
        known["stagings"] = _best_stagings(topology, part, most_transfers, meter)
    found: list[tuple[Schedule, _Staging]] = []
    refused = None
    for staging in known["stagings"]:
        provenance = {
            "engine": ENGINE.name,
            "stages": list(staging.digits),
            "scattered": staging.scattered,
        }
        moves = cut([_one_piece(staging, part.kind)], part.chunks).between(part.group)
        meter.spend(len(moves.route) * Meter.TRANSFER)
        try:
            schedule = to_schedule(
                topology,
                resolved,
                [moves],
                provenance=provenance,
                progress=meter,
                links=staging.ways.links,
            )
        except InfeasibleError as error:  # a sum would arrive where another has not been sent yet
            refused = error
        else:
            found.append((schedule, staging))
    if not found and refused:
        raise refused
    found.sort(key=lambda one: one[0].time_ps)
    known["stagings"] = [staging for _, staging in found[:_KEPT]]
    return found[0][0]


class _Ways:
    """The fastest routes between members for messages of one size.

    Attributes:
        latency: Latency between every two members, by number, in picoseconds.
    """

    def __init__(self, topology: Topology, group: Ints, bytes_: int, meter: Meter) -> None:
        self.topology = topology
        self._number = {npu: i for i, npu in enumerate(group.tolist())}
        cost = topology.link_latency_ps + bytes_ * 10**12 // topology.link_bandwidth_Bps
        leaving: list[list[tuple[int, int, int]]] = [[] for _ in range(topology.nodes)]
        columns = (topology.link_src, topology.link_dst, cost)
        for link, (start, end, time) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            leaving[start].append((link, end, time))
        paths: list[list[int]] = []
        for npu in self._number:
            paths += self._from(npu, leaving)
            meter(0.0)
        self._begin = np.cumsum([0, *map(len, paths)])
        self._links = np.array([link for path in paths for link in path], np.int64)
        latencies = np.append(0, np.cumsum(topology.link_latency_ps[self._links]))
        n = len(group)
        self.latency = np.diff(latencies[self._begin]).reshape(n, n)

    def _from(self, source: int, leaving: list[list[tuple[int, int, int]]]) -> list[list[int]]:
        """Return the links to every member, in order."""
        into = {source: (-1, source)}
        far = {source: 0}
        queue = [(0, source)]
        while queue:
            time, node = heappop(queue)
            if time > far[node]:
                continue
            for link, end, cost in leaving[node]:
                then = time + cost
                if then < far.get(end, then + 1):
                    far[end], into[end] = then, (link, node)
                    heappush(queue, (then, end))
        paths = []
        for end in self._number:
            if end not in into:
                names = map(self.topology.node_name, (source, end))
                raise InfeasibleError(" cannot reach ".join(names))
            path, node = [], end
            while node != source:
                link, node = into[node]
                path.append(link)
            paths.append(path[::-1])
        return paths

    def links(self, a: int, b: int) -> list[int]:
        """Return the links from one NPU to another."""
        pair = self._number[a] * len(self._number) + self._number[b]
        found: list[int] = self._links[self._begin[pair] : self._begin[pair + 1]].tolist()
        return found

    def loads(self, a: Ints, b: Ints) -> NDArray[np.float64]:
        """Return the number of messages from members `a` to members `b` that each link carries."""
        pair = a.astype(np.int64) * len(self._number) + b
        count = self._begin[pair + 1] - self._begin[pair]
        first = np.repeat(self._begin[pair] - np.append(0, np.cumsum(count)[:-1]), count)
        used = self._links[first + np.arange(len(first))]
        return np.bincount(used, minlength=self.topology.links).astype(float)


def _best_stagings(
    topology: Topology, part: CollectivePart, most: int, meter: Meter
) -> list[_Staging]:
    """Return the stagings with the lowest estimated time: a latency per stage, and the load of the busiest link.

    The last staging only scatters and gathers, so that no sum can arrive too early.
    """
    n, size, both = len(part.group), part.size, kind_of(part).two_phases
    most = min(most, _FEW_TRANSFERS if n <= _MANY else _MOST_TRANSFERS)
    # Plans with equal costs are nearly the same.
    found: dict[tuple[float, float], _Staging] = {}
    scattering: dict[tuple[float, float], _Staging] = {}
    messages, orders, products = {size, size // n}, list(_orders(n)), list(_products(n))
    each = sum(_planning(digits, topology.links) for digits in products)
    ways_each = n * (topology.links + topology.nodes) * Meter.STEP
    # Planning cannot be continued, so it begins only if it can be ended.
    meter.reserve(len(messages) * (ways_each + len(orders) * each))
    for bytes_ in sorted(messages, reverse=True):
        ways = _Ways(topology, part.group, bytes_, meter)
        for order in orders:
            for digits in products:
                meter(0.0)
                members = _mirrored(order, digits, ways)
                costs = _stage_costs(digits, members, ways)
                for scattered in range(0 if both else len(digits), len(digits) + 1):
                    cost = _cost_ps(costs, digits, scattered, size, 2 if both else 1)
                    staging = _Staging(digits, scattered, members, ways)
                    if _transfers(digits, scattered) <= most:
                        found.setdefault(cost, staging)
                scattering.setdefault(cost, staging)
    timed = _TIMED if n <= _MOST_ORDERED else _KEPT
    best = [found[cost] for cost in sorted(found, key=sum)[:timed]]
    if all(staging.scattered < len(staging.digits) for staging in best):
        best.append(scattering[min(scattering, key=sum)])
    return best


def _planning(digits: tuple[int, ...], links: int) -> float:
    """Return the work to order the members for a staging, and to find its costs."""
    members = prod(digits)
    mirrored = sum(members * prod(digits[:stage]) * 2**stage for stage in range(len(digits)))
    sent = members * sum(digits)
    cells = _PASSES * (mirrored + sent + links * len(digits))
    work: float = cells * Meter.CELL + 100 * len(digits) * Meter.STEP
    return work


def _transfers(digits: tuple[int, ...], scattered: int) -> int:
    """Return the number of transfers of an all-reduce with one chunk per member."""
    members = left = prod(digits)
    count = 0
    for stage, digit in enumerate(digits):
        if stage < scattered:
            left //= digit
            count += 2 * left * (digit - 1)
        else:
            count += left * (digit - 1)
    return members * count


def _products(n: int) -> Iterator[tuple[int, ...]]:
    """Yield all ordered factorizations of a number."""
    if n == 1:
        yield ()
    for first in range(2, n + 1):
        if n % first == 0:
            for others in _products(n // first):
                yield (first, *others)


def _orders(n: int) -> Iterator[Ints]:
    """Yield the members in rank order, and orders in which one of the ranks' prime digits is the highest."""
    yield np.arange(n, dtype=np.int32)
    if n > _MOST_ORDERED:
        return
    primes, rest = [], n
    while rest > 1:
        prime = next(k for k in range(2, rest + 1) if rest % k == 0)
        primes.append(prime)
        rest //= prime
    ranks = np.arange(n, dtype=np.int32).reshape(primes[::-1])  # the first digit is the last axis
    for axis in range(1, len(primes)):
        yield np.moveaxis(ranks, axis, 0).ravel()


def _mirrored(order: Ints, digits: tuple[int, ...], ways: _Ways) -> Ints:
    """Return the members with blocks reversed in some digits, if that brings partners closer."""
    place, inner = order.copy(), 1
    for stage, digit in enumerate(digits):
        mirrors, step = [np.arange(inner)], 1
        for size in digits[:stage]:
            mirrors += [one + step * (size - 1 - 2 * (one // step % size)) for one in mirrors]
            step *= size
        every = np.array(mirrors)
        for first in range(0, len(place) if len(mirrors) > 1 else 0, inner * digit):
            blocks = place[first : first + inner * digit].reshape(digit, inner)
            for k in range(1, digit):
                turned = blocks[k][every]
                there = ways.latency[turned[:, None, :], blocks[None, :k, :]]
                length = there.max(axis=(1, 2)) * float(there.size) + there.sum(axis=(1, 2))
                blocks[k] = turned[int(length.argmin())]
        inner *= digit
    return place


def _stage_costs(
    digits: tuple[int, ...], members: Ints, ways: _Ways
) -> list[tuple[float, NDArray[np.float64]]]:
    """Return, per stage, the longest latency, and the seconds per byte on every link if all members send everything."""
    index, inner, costs = np.arange(len(members)), 1, []
    for digit in digits:
        at = index // inner % digit
        ahead = np.arange(1, digit)[:, None]
        partner = (index + ((at + ahead) % digit - at) * inner).ravel()
        a, b = np.tile(members, digit - 1), members[partner]
        load = ways.loads(a, b) / ways.topology.link_bandwidth_Bps
        costs.append((float(ways.latency[a, b].max()), load))
        inner *= digit
    return costs


def _cost_ps(
    costs: list[tuple[float, NDArray[np.float64]]],
    digits: tuple[int, ...],
    scattered: int,
    size: int,
    times: int,
) -> tuple[float, float]:
    """Return a staging's latencies, and how long its busiest link is busy; scattered data move `times` times."""
    latency, left, load = 0.0, float(size), np.zeros_like(costs[0][1])
    for stage, (longest, per_byte) in enumerate(costs):
        scatters = stage < scattered
        left = left / digits[stage] if scatters else left  # each member has a share
        latency += longest * (times if scatters else 1)
        load += per_byte * left * (times if scatters else 1)
    return latency, float(load.max()) * 1e12


def _one_piece(staging: _Staging, kind: str) -> Moves:
    """Return the moves of one chunk per member's block, between members by number."""
    place, n = staging.members, len(staging.members)
    strides = np.cumprod([1, *staging.digits]).tolist()
    index = np.arange(n)
    home = np.empty(n, np.int64)
    home[place] = index  # the place of every block's member
    parts = []

    def digit(where: NDArray[Any], stage: int) -> NDArray[Any]:
        found: NDArray[Any] = where // strides[stage] % staging.digits[stage]
        return found

    def add(
        where: NDArray[Any],
        partner: NDArray[Any],
        block: NDArray[Any],
        step: int,
        *,
        op: int,
        reads: int = READ_ACC,
    ) -> None:
        pairs, route = np.unique(
            place[where].astype(np.int64) * n + place[partner], return_inverse=True
        )
        parts.append(
            Moves.of((pairs // n, pairs % n), route.ravel(), block, step, op=op, reads=reads)
        )

    block, where = (one.ravel() for one in np.meshgrid(index, index, indexing="ij"))
    alike = np.ones(len(block), bool)  # members that still take part in a block's sum
    step = 0
    hand_out = []
    for stage in range(staging.scattered):
        wanted, own = digit(home[block], stage), digit(where, stage)
        gives = alike & (own != wanted)
        target = where + (wanted - own) * strides[stage]
        if kind != "all_gather":
            reads = READ_INPUT if step == 0 else READ_ACC
            add(where[gives], target[gives], block[gives], step, op=REDUCE, reads=reads)
            step += 1
        hand_out.append((target[gives], where[gives], block[gives]))
        alike = alike & (own == wanted)
    stages = list(range(staging.scattered, len(staging.digits)))
    block, where = block[alike], where[alike]
    for turn in range(len(stages)):
        for first in range(len(stages)):
            # Blocks start with different stages in turn, so that the links of all stages are in use.
            stage = stages[(first + turn) % len(stages)]
            mine = block % len(stages) == first
            size = staging.digits[stage]
            for ahead in range(1, size):
                own = digit(where[mine], stage)
                partner = where[mine] + ((own + ahead) % size - own) * strides[stage]
                reads = READ_INPUT if step == 0 else READ_ACC
                add(where[mine], partner, block[mine], step, op=REDUCE, reads=reads)
        step += 1
    for source, target, given in reversed(hand_out if kind != "reduce_scatter" else []):
        add(source, target, given, step, op=COPY)
        step += 1
    return concatenate(parts)


def _chunk_counts(
    _topology: Topology, _collective: Collective, counts: tuple[int, ...], memory: dict[str, Any]
) -> Iterator[int]:
    """Yield the chunk counts, as long as the stagings that are left have few transfers."""
    for chunks in counts:
        if chunks > 1 and "stagings" in memory:
            few = [
                p
                for p in memory["stagings"]
                if _transfers(p.digits, p.scattered) * chunks <= _MOST_CUT
            ]
            if not few:
                return
            memory["stagings"] = few
        yield chunks


def _obstacle(_topology: Topology, collective: Collective) -> str:
    if needed := requirements.one_part(collective):
        return needed
    (part,) = collective.parts
    if needed := requirements.listed_kinds(part, lambda kind: kind.spreads and not kind.rooted):
        return needed
    if not 2 <= len(part.group) <= _MOST_MEMBERS:
        return f"2 to {_MOST_MEMBERS} members, not {len(part.group)}"
    if part.size > _MOST_BYTES:
        return f"at most {format_size(_MOST_BYTES)}, not {format_size(part.size)}"
    return ""


ENGINE = Engine(name="exchange", solve=exchange, obstacle=_obstacle, chunk_counts=_chunk_counts)
