"""Known algorithms, each as one tree per block.

A :data:`~tacos.synth.moves.BlockTrees` function works on places 0 … n-1, independent of networks, chunks and
kinds of collectives. If an algorithm can treat pieces of a block differently, to use more links at once, its
function returns several such functions. Papers and costs are in :mod:`tacos.synth.baselines`.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tacos.synth.moves import Moves, concatenate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos.synth.moves import BlockTrees, Ints

__all__ = [
    "bruck",
    "double_tree",
    "double_tree_parents",
    "grid",
    "halving_doubling",
    "line",
    "one_way_ring",
    "side_by_side",
    "star",
    "swing",
    "tree_parents",
    "two_trees",
    "two_way_ring",
]


def one_way_ring(n: int) -> list[BlockTrees]:
    """Every place forwards to the next what it received from the previous one.

    >>> one_way_ring(4)[0](np.arange(4), False).steps
    3
    """

    # Sums travel forwards too, so trees that will be reversed lead backwards.
    def trees(homes: Ints, inward: bool) -> Moves:
        return _around(n, homes, *((0, n - 1) if inward else (n - 1, 0)))

    return [trees]


def two_way_ring(n: int) -> list[BlockTrees]:
    """Blocks go round in both directions, half of the way in each.

    In an even ring the opposite place is reached from one side only; pieces alternate between the sides.

    >>> [trees(np.arange(4), False).steps for trees in two_way_ring(4)]
    [2, 2]
    """
    far, near = n // 2, (n - 1) // 2

    def trees(homes: Ints, _: bool, ahead: int) -> Moves:
        return _around(n, homes, ahead, n - 1 - ahead)

    return [partial(trees, ahead=ahead) for ahead in dict.fromkeys((far, near))]


def line(n: int) -> list[BlockTrees]:
    """Blocks go up to the last place and down to the first.

    >>> line(4)[0](np.array([1]), False).steps
    2
    """
    return [lambda homes, _: _around(n, homes, n - 1 - homes, homes)]


def star(n: int) -> list[BlockTrees]:
    """Send each block from its home directly to all places, beginning with the next one.

    >>> star(4)[0](np.array([2]), False).pairs[1].tolist()
    [3, 0, 1]
    """

    def trees(homes: Ints, _: bool) -> Moves:
        home, index = np.unique(homes, return_inverse=True)
        offset = np.arange(1, n, dtype=np.int32)[:, None]
        src, dst = np.broadcast_arrays(home, (home + offset) % n)
        route = (offset - 1) * np.int32(len(home)) + index.astype(np.int32)
        return Moves.of((src, dst), route, np.arange(len(homes)), 0)

    return [trees]


def halving_doubling(n: int) -> list[BlockTrees]:
    """Partners exchange all that they have, at distances …, 4, 2, 1; near partners exchange the most.

    Places beyond a power of two give their block to a partner first, and receive all others last.

    >>> halving_doubling(8)[0](np.arange(8), False).steps
    3
    >>> halving_doubling(9)[0](np.arange(9), False).steps
    5
    """
    core = 1 << (n.bit_length() - 1)
    place = np.arange(core, dtype=np.int32)
    partners = [place ^ np.int32(1 << bit) for bit in reversed(range(core.bit_length() - 1))]
    extra = np.arange(core, n, dtype=np.int32)

    def trees(homes: Ints, _: bool) -> Moves:
        moves = _doubled(partners, homes % core)
        if not len(extra):
            return moves
        folded = np.flatnonzero(homes >= core)
        fold = Moves.of((extra, extra - core), homes[folded] - core, folded, 0)
        route, block = np.nonzero(extra[:, None] != homes)
        unfold = Moves.of((extra - core, extra), route, block, moves.steps + 1)
        return concatenate([fold, moves.after(1), unfold])

    return [trees]


def bruck(n: int) -> list[BlockTrees]:
    """In step k every place sends to the place 2^k ahead the blocks that it lacks.

    >>> bruck(5)[0](np.arange(5), False).steps
    3
    """
    place = np.arange(n, dtype=np.int32)

    def trees(homes: Ints, _: bool) -> Moves:
        steps = []
        for step in range((n - 1).bit_length()):
            far = 1 << step
            holders = (homes + np.arange(min(far, n - far), dtype=np.int32)[:, None]) % n
            pairs = place, (place + far) % n
            steps.append(Moves.of(pairs, holders, np.arange(len(homes)), step))
        return concatenate(steps)

    return [trees]


def swing(sizes: Sequence[int]) -> list[BlockTrees]:
    """Partners on a torus of powers of two that swing from side to side: 1, -1, 3, -5, 11, … away.

    Step s of a dimension joins an even coordinate to the one ρ(s) = Σ (-2)^i ahead. Dimensions take
    turns; the results start with each of them, in either direction, to use all links.

    >>> swing([8])[0](np.array([0]), False).pairs[1].tolist()[::8]      # 0 sends to 3, 7, 1
    [3, 7, 1]
    """
    place = np.arange(prod(sizes), dtype=np.int32)
    sides = [(s, int(at)) for s, at in zip(sizes, np.cumprod([1, *sizes]), strict=False) if s > 1]

    def partners(first: int, sign: int) -> list[Ints]:
        turns = [
            (s, side) for s in range(max(sizes).bit_length()) for side in np.roll(sides, -first, 0)
        ]
        found = []
        for s, (size, stride) in turns:
            if 2**s < size:
                at = place // stride % size
                to = (at + sign * (1 - (-2) ** (s + 1)) // 3 * (1 - at % 2 * 2)) % size
                found.append((place + (to - at) * stride).astype(np.int32))
        return found[::-1]  # the nearest partners come last, when the most data is exchanged

    def trees(homes: Ints, _: bool, first: int, sign: int) -> Moves:
        return _doubled(partners(first, sign), homes)

    starts = [(first, sign) for sign in (1, -1) for first in range(len(sides))]
    return [partial(trees, first=first, sign=sign) for first, sign in starts]


def grid(sides: Sequence[tuple[int, int, BlockTrees]]) -> BlockTrees:
    """Combine the trees of several dimensions, one dimension after another.

    Args:
        sides: Size, stride (the difference between neighbouring places) and trees of each dimension, in the order in
            which blocks spread.

    >>> rows, columns = (3, 1, line(3)[0]), (4, 3, two_way_ring(4)[0])
    >>> grid([columns, rows])(np.array([0]), False).steps
    4
    """
    n = prod(size for size, _, _ in sides)

    def trees(homes: Ints, inward: bool) -> Moves:
        holders = homes[None, :]
        phases, step = [], 0
        for size, stride, inside in sides:
            lines = np.arange(n // size, dtype=np.int32)
            first = lines // stride * (stride * size) + lines % stride
            at = (holders // (stride * size) * stride + holders % stride).ravel()
            moves = inside((holders // stride % size).ravel(), inward)
            src, dst = (first + place[:, None] * np.int32(stride) for place in moves.pairs)
            route = moves.route * np.int32(len(lines)) + at[moves.chunk]
            chunk = moves.chunk % np.uint32(len(homes))
            phases.append(Moves.of((src, dst), route, chunk, moves.step + np.int32(step)))
            step += moves.steps
            along = np.arange(size, dtype=np.int32)[:, None] * np.int32(stride)
            holders = (first[at] + along).reshape(-1, len(homes))
        return concatenate(phases)

    return trees


def side_by_side(sides: Sequence[tuple[int, int, BlockTrees]], homes: Ints) -> Moves:
    """All-reduce whole blocks along one dimension after the other, as moves of chunk i for home i.

    In every line of a dimension, each block is summed at the place of its home along the line and spread from
    there. Every line thus reduces all blocks; in the second dimension these are sums over whole lines.

    Args:
        sides: Dimensions as for :func:`grid`. Blocks whose home has coordinates with an odd sum go
            through them in the opposite order.
        homes: The home of each block.

    >>> rows, columns = (3, 1, line(3)[0]), (2, 3, line(2)[0])
    >>> side_by_side([rows, columns], np.arange(6, dtype=np.int32)).steps
    6
    """
    n = prod(size for size, _, _ in sides)
    odd = sum(homes // stride % size for size, stride, _ in sides) % 2
    found = []
    for parity, turn in enumerate((sides, sides[::-1])):
        block, step = np.flatnonzero(odd == parity), 0
        for size, stride, inside in turn:
            lines = np.arange(n // size, dtype=np.int32)
            begin = lines // stride * (stride * size) + lines % stride
            at = homes[block] // stride % size
            for moves in (inside(at, True).turned(), inside(at, False)):
                src, dst = (begin + place[:, None] * np.int32(stride) for place in moves.pairs)
                route = moves.route[:, None] * np.int32(len(lines)) + lines
                chunk, steps = block[moves.chunk][:, None], moves.step[:, None] + np.int32(step)
                op = int(moves.op.max(initial=0))
                found.append(Moves.of((src, dst), route, chunk, steps, op=op))
                step += moves.steps
    return concatenate(found)


def double_tree(n: int, *, rooted: bool) -> list[BlockTrees]:
    """Return two binary trees in which each place is a leaf of one and an inner node of the other.

    Blocks alternate between the trees. As in NCCL, the second tree mirrors the first for even n and is shifted
    by one for odd n. If `rooted`, every block starts at its home, which is the root of the first tree; in the second,
    where it would be a leaf, it is placed above the root. Otherwise homes do not matter, since an all-reduce may sum a
    block anywhere.

    >>> moves = double_tree(4, rooted=True)[0](np.array([0]), False)
    >>> list(zip(*(column.tolist() for column in moves.pairs)))     # the first tree, the second
    [(0, 2), (2, 1), (2, 3), (0, 3), (3, 1), (1, 2)]
    """
    parent, second = double_tree_parents(n)
    if rooted:
        second[second < 0] = 0
        second[0] = -1

    def trees(homes: Ints, _: bool, first: int) -> Moves:
        shift = homes[0] if rooted else 0
        return _down([_shifted(up, shift) for up in (parent, second)], len(homes), first)

    return [partial(trees, first=first) for first in (0, 1)]


def double_tree_parents(n: int) -> list[Ints]:
    """Return the parents of all places (-1: the root) in NCCL's two binary trees.

    >>> [tree.tolist() for tree in double_tree_parents(4)]
    [[-1, 2, 0, 2], [1, 3, 1, -1]]
    """
    place = np.arange(n, dtype=np.int32)
    parent = tree_parents(n)
    other = n - 1 - place if n % 2 == 0 else (place - 1) % n
    second = np.empty_like(parent)
    second[other.argsort()] = np.where(parent < 0, -1, other.argsort()[parent])
    return [parent, second]


def tree_parents(n: int) -> Ints:
    """Return the in-order binary tree of places 1 … n-1, with 0 above it: odd places are leaves.

    The parent of …01000 and of …11000 is …10000, or …00000 where the former is beyond n.

    >>> tree_parents(8).tolist()
    [-1, 2, 4, 2, 0, 6, 4, 6]
    """
    place = np.arange(n, dtype=np.int32)
    bit = place & -place
    up = (place ^ bit) | (bit << 1)
    parent = np.where(up < n, up, place ^ bit)
    parent[0] = -1
    return parent


def two_trees(parents: Sequence[Ints]) -> list[BlockTrees]:
    """Any two trees, given by the parent of each place (-1 for the root); homes do not matter.

    >>> moves = two_trees([np.array([-1, 0, 1]), np.array([-1, 2, 0])])[0](np.array([0, 0]), False)
    >>> list(zip(*(column.tolist() for column in moves.pairs)))     # the first tree, the second
    [(0, 1), (1, 2), (0, 2), (2, 1)]
    """

    def trees(homes: Ints, _: bool, first: int) -> Moves:
        return _down(parents, len(homes), first)

    return [partial(trees, first=first) for first in (0, 1)]


def _down(parents: Sequence[Ints], blocks: int, first: int) -> Moves:
    """Blocks alternate between the trees; block 0 goes down tree `first`."""
    trees = []
    for t, up in enumerate(parents):
        depth = _depths(up)
        below = np.argsort(depth, kind="stable")[1:]
        block = np.arange((t + first) % 2, blocks, 2)
        route = np.arange(len(below))[:, None]
        trees.append(Moves.of((up[below], below), route, block, depth[below][:, None] - 1))
    return concatenate(trees)


def _shifted(parent: Ints, by: int) -> Ints:
    """Return the tree with every place shifted by `by`."""
    return np.roll(np.where(parent < 0, -1, (parent + by) % len(parent)), by)


def _around(n: int, homes: Ints, ahead: Ints | int, behind: Ints | int) -> Moves:
    """Send each block `ahead` places up a ring of n places, and `behind` places down."""
    reach = np.stack([np.broadcast_to(np.int32(far), homes.shape) for far in (ahead, behind)])
    direction = np.flatnonzero(reach.any(axis=1)).astype(np.int32)[:, None]
    sign = 1 - 2 * direction
    step = np.arange(reach.max(initial=0), dtype=np.int32)[:, None, None]
    place = np.arange(n, dtype=np.int32)
    moves = Moves.of(
        (np.tile(place, 2), np.concatenate([(place + 1) % n, (place - 1) % n])),
        (homes + sign * step) % n + direction * n,
        np.arange(len(homes), dtype=np.uint32),
        step,
    )
    moving = step < reach[direction[:, 0]]
    return moves if moving.all() else moves.only(moving.ravel())


def _doubled(partners: Sequence[Ints], homes: Ints) -> Moves:
    """In each step, every place sends all its data to its partner, which doubles the partner's data."""
    place = np.arange(len(partners[0]))
    holders = homes[None, :]
    steps = []
    for step, partner in enumerate(partners):
        steps.append(Moves.of((place, partner), holders, np.arange(len(homes)), step))
        holders = np.concatenate([holders, partner[holders]])
    return concatenate(steps)


def _depths(parent: Ints) -> Ints:
    depth = np.zeros_like(parent)
    at = parent
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, parent[at], -1)
    return depth
