"""The messages of algorithms between the places of an order: one record per pattern.

A pattern lists *terms*: messages between places that run at once, all of one size, repeated some times. A ring's term
takes the mean of its hops, or the time of its slowest hop's bytes if that is longer: each chunk passes all hops, and
each hop carries one chunk at a time. Every other term is a step and takes as long as its slowest message.

A pattern is one entry of :data:`PATTERNS`; :func:`of_program` makes the terms of any program.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos.program import ONE_SIDED
from tacos.program_nodes import sized
from tacos.synth.baselines.block_trees import double_tree_parents

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Program

__all__ = ["PATTERNS", "Pattern", "Term", "of_program"]

_TREE_CHUNKS = 16
"""Chunks of a double binary tree (chosen: more change its time by less than a tenth)."""
_BCUBE_BASE = 4


@dataclass(frozen=True, slots=True)
class Term:
    """Messages between places that run at once."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    bytes: float
    weight: int = 1
    """Number of repetitions, one after the other."""
    ring: bool = False
    latency: bool = True
    """Whether latencies count; false if other messages hide them."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """An algorithm as messages between places.

    Attributes:
        name: As users write it.
        terms: The messages among some places, for a buffer of some bytes.
        turns: Whether rotating an order does not change its time.
        choices: Instead of terms: patterns, the fastest of which runs.
        obstacle: Why it does not suit a number of hosts; empty if it does.
    """

    name: str
    terms: Callable[[int, float], list[Term]] = lambda _hosts, _size: []
    turns: bool = False
    choices: tuple[str, ...] = ()
    obstacle: Callable[[int], str] = lambda _hosts: ""


def _ring(n: int, size: float) -> list[Term]:
    place = np.arange(n, dtype=np.int32)
    return [Term(place, np.roll(place, -1), size / n, 2 * (n - 1), ring=True)]


def _two_way_ring(n: int, size: float) -> list[Term]:
    """Send blocks half of the way around in each direction."""
    place, after = np.arange(n, dtype=np.int32), np.roll(np.arange(n, dtype=np.int32), -1)
    ends = np.concatenate([place, after]), np.concatenate([after, place])
    return [Term(*ends, size / n, n - 1, ring=True)]


def _halving_doubling(n: int, size: float) -> list[Term]:
    """Exchange half of the buffer at distance 1, then a quarter at distance 2, and so on; then the same backwards."""
    core = 1 << (n.bit_length() - 1)
    place = np.arange(core, dtype=np.int32)
    terms = [
        Term(place, place ^ np.int32(1 << step), size / 2 ** (step + 1), 2)
        for step in range(core.bit_length() - 1)
    ]
    if n > core:  # places beyond a power of two send their buffer first and receive the result last
        extra = np.arange(core, n, dtype=np.int32)
        terms += [Term(extra, extra - core, size), Term(extra - core, extra, size)]
    return terms


def _double_binary_tree(n: int, size: float) -> list[Term]:
    """Go up and down two trees, with half of the buffer in each, in chunks.

    The first chunk goes up level by level. The others follow at the pace of the busiest edge, which carries a chunk
    of each half on the way up and on the way down.
    """
    ends: dict[int, list[tuple[int, int]]] = {}
    for parents in double_tree_parents(n):
        depth = _depths(parents)
        for child, parent in enumerate(parents.tolist()):
            if parent >= 0:
                ends.setdefault(int(depth[child]), []).append((child, parent))
    chunk = size / 2 / _TREE_CHUNKS
    terms, up, down = [], [], []
    for level in sorted(ends):
        children, above = np.array(ends[level], np.int32).T
        terms += [Term(children, above, chunk), Term(above, children, chunk)]
        up.append(children)
        down.append(above)
    every = np.concatenate(up), np.concatenate(down)
    return [
        *terms,
        Term(*every, 2 * chunk, _TREE_CHUNKS - 1, latency=False),
        Term(*every[::-1], 2 * chunk, _TREE_CHUNKS - 1, latency=False),
    ]


def _depths(parents: NDArray[np.int32]) -> NDArray[np.int64]:
    depth = np.zeros(len(parents), np.int64)
    above = parents.copy()
    while (above >= 0).any():
        depth += above >= 0
        above = np.where(above >= 0, parents[above], -1)
    return depth


def _bcube(n: int, size: float) -> list[Term]:
    """In each step, groups of up to four exchange all to all; a port sends to its peers one after the other."""
    terms, stride, share = [], 1, size
    for factor in _factors(n, _BCUBE_BASE):
        place = np.arange(n, dtype=np.int32)
        digit = place // stride % factor
        peers = [
            place + ((digit + turn) % factor - digit) * np.int32(stride)
            for turn in range(1, factor)
        ]
        share /= factor
        ends = np.tile(place, factor - 1), np.concatenate(peers).astype(np.int32)
        terms.append(Term(*ends, (factor - 1) * share, 2))
        stride *= factor
    return terms


def _factors(n: int, base: int) -> list[int]:
    """Return `n` as a product of factors up to `base`, large ones first; empty if there is no such product."""
    factors = []
    for factor in range(base, 1, -1):
        while n % factor == 0:
            factors.append(factor)
            n //= factor
    return factors if n == 1 else []


def _hierarchical(n: int, size: float) -> list[Term]:
    """Run rings within groups of neighbours, and rings between members with the same number in their groups."""
    group = _group_size(n)
    place = np.arange(n, dtype=np.int32)
    inner = place // group * group + (place + 1) % group
    outer = (place + group) % n
    terms = [Term(place, inner.astype(np.int32), size / group, 2 * (group - 1))]
    return [*terms, Term(place, outer.astype(np.int32), size / n, 2 * (n // group - 1))]


def _group_size(n: int) -> int:
    """Return the divisor nearest to the square root; of two, the larger one."""
    divisors = [d for d in range(2, n) if n % d == 0]
    return min(divisors, key=lambda d: (abs(math.log(d * d / n)), -d), default=n)


PATTERNS: dict[str, Pattern] = {
    one.name: one
    for one in (
        Pattern("ring", _ring, turns=True),
        Pattern("two-way-ring", _two_way_ring, turns=True),
        Pattern("halving-doubling", _halving_doubling),
        Pattern("double-binary-tree", _double_binary_tree),
        Pattern(
            "bcube",
            _bcube,
            obstacle=lambda n: (
                "" if _factors(n, _BCUBE_BASE) else "needs a product of twos, threes and fours"
            ),
        ),
        Pattern(
            "hierarchical",
            _hierarchical,
            obstacle=lambda n: "" if 1 < _group_size(n) < n else "needs equal groups",
        ),
        # NCCL visits nodes in rank order, with rings for large buffers and double binary trees for small ones.
        Pattern("nccl", choices=("ring", "double-binary-tree")),
    )
}
"""The patterns by name."""


def of_program(program: Program, size: float) -> list[Term]:
    """Return the messages of a program, with those that can run at once in one term.

    The step of a message is the length of the longest chain of messages before it. All messages of a step count as
    large as the largest, and equal steps become one step with repetitions.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> whole = tacos.collective.all_reduce(ring, "4MB", chunks=1)
    >>> program = tacos.lower(tacos.synthesize(ring, whole, engine="ring", order="rank"))
    >>> [(term.src.tolist(), term.dst.tolist(), term.weight) for term in of_program(program, 4e6)]
    [([0, 1, 2, 3], [1, 2, 3, 0], 6)]
    """
    if np.isin(program.op, ONE_SIDED).any():
        raise ValueError("the program has one-sided steps; reorder needs one of sends and receives")
    rank = np.repeat(program.thread_rank, np.diff(program.thread_begin))
    level = _levels(program)
    received = np.flatnonzero(program.comes_from >= 0)
    largest = float(sized(program, round(size)).chunk_bytes().max()) if size else 0.0
    steps: dict[int, dict[tuple[int, int], int]] = {}
    for step in received.tolist():
        ends = int(rank[program.comes_from[step]]), int(rank[step])
        carried = steps.setdefault(int(level[step]), {})
        carried[ends] = carried.get(ends, 0) + int(program.count[step])
    found: dict[tuple[tuple[tuple[int, int], ...], float], int] = {}
    for number in sorted(steps):
        key = tuple(sorted(steps[number])), max(steps[number].values()) * largest
        found[key] = found.get(key, 0) + 1
    terms = []
    for (pairs, carried_bytes), weight in found.items():
        src, dst = np.array(pairs, np.int32).T
        terms.append(Term(src, dst, carried_bytes, weight))
    return terms


def _levels(program: Program) -> NDArray[np.int64]:
    """Return, per step, the length of the longest chain of messages before its own."""
    steps = program.steps
    before: list[list[int]] = [
        program.dep[program.dep_begin[i] : program.dep_begin[i + 1]].tolist() for i in range(steps)
    ]
    first = set(program.thread_begin.tolist())
    for i in range(steps):
        if i not in first:
            before[i].append(i - 1)
    source = program.comes_from.tolist()
    after: list[list[int]] = [[] for _ in range(steps)]
    waiting = np.zeros(steps, np.int64)
    for i in range(steps):
        for one in {*before[i], *([source[i]] if source[i] >= 0 else [])}:
            after[one].append(i)
            waiting[i] += 1
    level = np.zeros(steps, np.int64)
    ready = deque(np.flatnonzero(waiting == 0).tolist())
    while ready:
        i = ready.popleft()
        level[i] = max((int(level[one]) for one in before[i]), default=0)
        if source[i] >= 0:
            level[i] = max(int(level[i]), int(level[source[i]])) + 1
        for one in after[i]:
            waiting[one] -= 1
            if not waiting[one]:
                ready.append(one)
    return level
