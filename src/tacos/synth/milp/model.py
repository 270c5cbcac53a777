"""The integer program of a problem in epochs, as columns of NumPy arrays.

For chunk c and hop h, ``z[c, h, t]`` is 1 from the epoch in which c starts over h; it exists only for epochs
in which the chunk can be at the hop's source and still be useful at its end. ``has[c, n, t]`` tells whether
NPU n can forward c.

    z[c, h, t-1] <= z[c, h, t]                           a start is not undone
    z[c, h, t]   <= has[c, src(h), t]                    an NPU sends what it has
    has[c, n, t] <= sum of z[c, h, t - delay] into n     a chunk is there once it has arrived
    sum of z[c, h, last] into n  = 1 or <= 1             each NPU receives a required chunk once
    sum of z[c, h, t - begin] - z[c, h, t - end] <= capacity of the link at t

With rounds (SCCL's problem) a step's capacity is multiplied by its whole number of rounds, and the sum
of the rounds is minimized. Symmetry makes pairs (c, h) of an orbit share their columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacos._support.solver import LinearProgram
from tacos.synth.milp.problem import NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos.synth.milp.problem import Bools, Ints, Problem
    from tacos.synth.milp.symmetry import Orbits

    Floats = NDArray[np.float64]

__all__ = ["Model", "Preference", "Windows", "build", "windows"]


@dataclass(frozen=True)
class Preference:
    """What a sketch prefers, besides a short time."""

    connections: int = 0
    """-1: few pairs of NPUs communicate through switches; 1: many."""
    own_first: Bools | None = None
    """[hop]: whether the source's own chunks go before those of others."""


@dataclass(frozen=True)
class Windows:
    """The epochs in which each pair of chunk and hop may start: `first` to `last`, if `open`."""

    first: Ints
    last: Ints
    open: Bools
    feasible: bool

    @property
    def columns(self) -> int:
        """The number of start variables."""
        return int((self.last - self.first + 1)[self.open].sum())


def windows(problem: Problem, epochs: int) -> Windows:
    """Return which starts can be part of a schedule of `epochs` epochs.

    >>> import tacos
    >>> from tacos.synth.milp.problem import hops_of, in_steps
    >>> ring = tacos.topology.ring(4)
    >>> problem = in_steps(ring, tacos.collective.broadcast(ring, 1, chunks=1), hops_of(ring))
    >>> windows(problem, 1).feasible, windows(problem, 2).columns
    (False, 6)
    """
    hops, earliest, tails = problem.hops, problem.earliest(), problem.tails()
    first = earliest[:, hops.src]
    last = epochs - tails[:, hops.dst] - problem.delay[problem.kind]
    useful = problem.allowed & ~problem.holds[:, hops.dst] & (first <= last)
    feasible = not (problem.wants & (earliest > epochs)).any()
    return Windows(first, last, useful, feasible)


@dataclass(frozen=True)
class Model:
    """A program for the solver, and the meaning of its columns."""

    program: LinearProgram
    pair_column: Ints
    """[chunk, hop]: the column of the first start, or -1."""
    window: Windows

    def starts(self, solution: Floats) -> tuple[Ints, Ints, Ints]:
        """Return columns (chunk, hop, epoch) of the transfers in a solution."""
        chunk, hop = np.nonzero(self.pair_column >= 0)
        begin = self.pair_column[chunk, hop]
        count = (self.window.last - self.window.first + 1)[chunk, hop]
        pair, offset = _ragged(count)
        off = solution[begin[pair] + offset] < 0.5
        waited = np.bincount(pair[off], minlength=len(chunk))
        sent = waited < count
        return chunk[sent], hop[sent], (self.window.first[chunk, hop] + waited)[sent]


class _Rows:
    """Rows under construction: blocks of entries with consecutive numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.blocks: list[tuple[Ints, Ints, Floats]] = []
        self.bounds: list[tuple[Floats, Floats]] = []

    def add(self, lower: Floats, upper: Floats) -> int:
        first, self.count = self.count, self.count + len(upper)
        self.bounds.append((lower, upper))
        return first

    def at_most(self, count: int, bound: float = 0.0) -> int:
        return self.add(np.full(count, -np.inf), np.full(count, bound))

    def put(self, row: Ints, column: Ints, value: float | Floats) -> None:
        self.blocks.append((row, column, np.broadcast_to(np.asarray(value, float), row.shape)))


def build(
    problem: Problem,
    epochs: int,
    *,
    orbits: Orbits | None = None,
    rounds: int = 0,
    preference: Preference | None = None,
) -> Model | None:
    """Return the integer program whose solutions are the schedules of at most `epochs` epochs; None if there are none.

    Args:
        problem: What to solve.
        epochs: The horizon.
        orbits: Pairs (chunk, hop), pairs (chunk, NPU) and links that must be treated alike.
        rounds: Largest total number of rounds; 0 for links with a fixed capacity.
        preference: Which of the solutions to prefer.

    >>> import tacos
    >>> from tacos.synth.milp.problem import hops_of, in_steps
    >>> ring = tacos.topology.ring(4)
    >>> problem = in_steps(ring, tacos.collective.broadcast(ring, 1, chunks=1), hops_of(ring))
    >>> build(problem, 1), build(problem, 2).program.columns     # 6 starts, and has of two NPUs
    (None, 8)
    """
    window = windows(problem, epochs)
    if not window.feasible:
        return None
    hops, chunks, npus = problem.hops, problem.chunks, problem.npus
    length = np.where(window.open, window.last - window.first + 1, 0)
    leads = np.ones((chunks, len(hops)), bool) if orbits is None else orbits.pair_leads
    lead_chunk, lead_hop = np.nonzero(window.open & leads)
    count = length[lead_chunk, lead_hop]
    begin = np.cumsum(count) - count
    pair_column = np.full((chunks, len(hops)), -1)
    pair_column[lead_chunk, lead_hop] = begin
    if orbits is not None:
        pair_column = pair_column[orbits.pair_chunk, orbits.pair_hop]
    starts = int(count.sum())
    rows = _Rows()

    def z(chunk: Ints, hop: Ints, epoch: Ints) -> tuple[Ints, Bools]:
        """Return the columns of z, and which exist: none before a window; after it, its last column stands in."""
        first, last = window.first[chunk, hop], window.last[chunk, hop]
        there = window.open[chunk, hop] & (epoch >= first)
        return pair_column[chunk, hop] + np.minimum(epoch, last) - first, there

    # A start is not undone.
    pair, offset = _ragged(np.maximum(count - 1, 0))
    row = rows.at_most(len(pair)) + np.arange(len(pair))
    rows.put(row, begin[pair] + offset, 1.0)
    rows.put(row, begin[pair] + offset + 1, -1.0)

    # An NPU sends only what it has: has[c, n, t] for the epochs in which n may forward c.
    npu_leads = np.ones((chunks, npus), bool) if orbits is None else orbits.npu_leads
    out_chunk, out_hop = np.nonzero(window.open)
    source = hops.src[out_hop]
    until = np.full((chunks, npus), -1)
    np.maximum.at(until, (out_chunk, source), window.last[out_chunk, out_hop])
    from_ = np.full((chunks, npus), NEVER)
    np.minimum.at(from_, (out_chunk, source), window.first[out_chunk, out_hop])
    relay_chunk, relay_npu = np.nonzero((until >= 0) & ~problem.holds & npu_leads)
    has_count = (until - from_ + 1)[relay_chunk, relay_npu]
    has_begin = np.full((chunks, npus), -1)
    has_begin[relay_chunk, relay_npu] = starts + np.cumsum(has_count) - has_count
    if orbits is not None:
        has_begin = has_begin[orbits.npu_chunk, orbits.npu_npu]
    columns = starts + int(has_count.sum())

    sent = ~problem.holds[lead_chunk, hops.src[lead_hop]]
    c, h, n = lead_chunk[sent], lead_hop[sent], count[sent]
    pair, offset = _ragged(n)
    row = rows.at_most(len(pair)) + np.arange(len(pair))
    epoch = window.first[c, h][pair] + offset
    rows.put(row, pair_column[c, h][pair] + offset, 1.0)
    at = hops.src[h][pair]
    rows.put(row, has_begin[c[pair], at] + epoch - from_[c[pair], at], -1.0)

    relay, offset = _ragged(has_count)
    row = rows.at_most(len(relay)) + np.arange(len(relay))
    rows.put(row, has_begin[relay_chunk, relay_npu][relay] + offset, 1.0)
    entry, into = _joined(relay_npu[relay], hops.dst, npus)
    c, h = relay_chunk[relay][entry], into
    epoch = (from_[relay_chunk, relay_npu][relay] + offset)[entry] - problem.delay[
        problem.kind[c], h
    ]
    column, there = z(c, h, epoch)
    rows.put(row[entry][there], column[there], -1.0)

    # Each NPU receives each required chunk exactly once.
    end_chunk, end_npu = np.nonzero(npu_leads & ~problem.holds)
    wanted = problem.wants[end_chunk, end_npu]
    row = rows.add(np.where(wanted, 1.0, -np.inf), np.ones(len(wanted))) + np.arange(len(wanted))
    entry, into = _joined(end_npu, hops.dst, npus)
    column, there = z(end_chunk[entry], into, window.last[end_chunk[entry], into])
    rows.put(row[entry][there], column[there], 1.0)

    # A link carries at most its capacity at once; with rounds, its capacity times the step's rounds.
    link_leads = np.ones(len(problem.capacity), bool) if orbits is None else orbits.link_leads
    kept = np.flatnonzero(link_leads[hops.use_link])
    use_hop, use_link = hops.use_hop[kept], hops.use_link[kept]
    c, u = np.nonzero(window.open[:, use_hop])
    h, kinds = use_hop[u], problem.kind[c]
    opens, closes = problem.begin[kinds, kept[u]], problem.end[kinds, kept[u]]
    span = np.where(closes > opens, window.last[c, h] + closes - window.first[c, h] - opens, 0)
    entry, offset = _ragged(span)
    c, h, link = c[entry], h[entry], use_link[u][entry]
    epoch = window.first[c, h] + opens[entry] + offset
    key, row = np.unique(link * (NEVER // 2) + epoch, return_inverse=True)
    row_link, row_epoch = key // (NEVER // 2), key % (NEVER // 2)
    capacity = problem.capacity[row_link].astype(float)
    first_row = rows.at_most(len(key))
    row = first_row + row.ravel()
    column, there = z(c, h, epoch - opens[entry])
    rows.put(row[there], column[there], 1.0)
    column, there = z(c, h, epoch - closes[entry])
    rows.put(row[there], column[there], -1.0)

    cost = np.zeros(columns)
    integer = np.arange(columns) < starts
    upper = np.ones(columns)
    lower = np.zeros(columns)
    if rounds:
        rows.put(first_row + np.arange(len(key)), columns + row_epoch, -capacity)
        cost, lower = (np.append(old, np.ones(epochs)) for old in (cost, lower))
        upper = np.append(upper, np.full(epochs, rounds - epochs + 1.0))
        integer = np.append(integer, np.ones(epochs, bool))
        columns += epochs
        row_total = rows.at_most(1, rounds)
        rows.put(np.full(epochs, row_total), np.arange(columns - epochs, columns), 1.0)
    else:
        rows.bounds[-1] = (rows.bounds[-1][0], capacity)
    if preference is not None:
        if preference.own_first is not None:
            _own_first(problem, preference.own_first, window, rows, z)
        if preference.connections:
            extra = _connections(problem, preference.connections, window, rows, z, columns)
            cost = np.append(cost, np.full(extra, -1.0 * preference.connections))
            lower, upper = np.append(lower, np.zeros(extra)), np.append(upper, np.ones(extra))
            integer = np.append(integer, np.zeros(extra, bool))
    return _assembled(rows, cost, lower, upper, integer, pair_column, window)


def _own_first(problem: Problem, where: Bools, window: Windows, rows: _Rows, z) -> None:  # type: ignore[no-untyped-def]
    """Require on some hops that the source's own chunks start before those of others."""
    hops = problem.hops
    chunk, hop = np.nonzero(window.open & where)
    own = problem.holds[chunk, hops.src[hop]]
    entry, mine = _joined(hop[~own], hop[own], len(hops))
    c, h, o = chunk[~own][entry], hop[~own][entry], chunk[own][mine]
    pair, offset = _ragged((window.last - window.first + 1)[c, h])
    epoch = window.first[c, h][pair] + offset
    row = rows.at_most(len(pair)) + np.arange(len(pair))
    for which, sign in ((c, 1.0), (o, -1.0)):
        column, there = z(which[pair], h[pair], epoch)
        rows.put(row[there], column[there], sign)


def _connections(  # type: ignore[no-untyped-def]
    problem: Problem, wish: int, window: Windows, rows: _Rows, z, columns: int
) -> int:
    """Add one column per hop through switches for whether the hop is used, and return their number."""
    hops = problem.hops
    through = np.bincount(hops.use_hop, minlength=len(hops)) > 1
    number = np.cumsum(through) - 1
    chunk, hop = np.nonzero(window.open & through)
    column, _ = z(chunk, hop, window.last[chunk, hop])
    used = columns + number[hop]
    if wish < 0:
        row = rows.at_most(len(chunk)) + np.arange(len(chunk))
        rows.put(row, column, 1.0)
        rows.put(row, used, -1.0)
    else:
        total = int(through.sum())
        row = rows.at_most(total) + np.arange(total)
        rows.put(row, columns + np.arange(total), 1.0)
        rows.put(row[number[hop]], column, -1.0)
    return int(through.sum())


def _assembled(
    rows: _Rows,
    cost: Floats,
    lower: Floats,
    upper: Floats,
    integer: Bools,
    pair_column: Ints,
    window: Windows,
) -> Model:
    row, column, value = (np.concatenate(part) for part in zip(*rows.blocks, strict=True))
    row_lower, row_upper = (np.concatenate(part) for part in zip(*rows.bounds, strict=True))
    program = LinearProgram(
        cost=cost,
        # An orbit shares columns, so entries may repeat; the program adds them up.
        entries=(row, column, value),
        row_lower=row_lower,
        row_upper=row_upper,
        lower=lower,
        upper=upper,
        integer=integer,
    )
    return Model(program, pair_column, window)


def _ragged(counts: Ints) -> tuple[Ints, Ints]:
    """Return columns (list, position) of lists with these lengths.

    >>> [column.tolist() for column in _ragged(np.array([2, 0, 1]))]
    [[0, 0, 2], [0, 1, 0]]
    """
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - (np.cumsum(counts) - counts)[which]


def _joined(left: Ints, right: Ints, values: int) -> tuple[Ints, Ints]:
    """Return columns (i, j) of all pairs with ``left[i] == right[j]``.

    >>> [column.tolist() for column in _joined(np.array([1, 0]), np.array([0, 1, 1]), 2)]
    [[0, 0, 1], [1, 2, 0]]
    """
    order = np.argsort(right, kind="stable")
    begin = np.searchsorted(right[order], np.arange(values + 1))
    i, offset = _ragged((begin[1:] - begin[:-1])[left])
    return i, order[begin[left][i] + offset]
