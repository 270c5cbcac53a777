"""SCCL's problem: what are the fewest steps, and the fewest rounds for a given number of chunks?

An algorithm has C chunks per part, S steps and R rounds, of which step s has r_s: r_1 + … + r_S = R. In a step, a
link carries at most the chunks that its bandwidth allows in the step's rounds; they can be forwarded in the next
step. Small buffers need few steps (S latencies), large ones few rounds per chunk (R/C transmissions of a part).
:func:`pareto` returns the algorithms that no other beats in both. SCCL (Cai et al., PPoPP 2021) uses an SMT
solver; here an integer program minimises the rounds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Collective, CollectivePart
from tacos._support.solver import highs, solve
from tacos.bound import bound
from tacos.collective import kind_of
from tacos.errors import InfeasibleError, TacosError
from tacos.nodes import Network, topology_of
from tacos.schedule import retime, routes
from tacos.synth.phases import in_phases, only_collects, sums
from tacos.synth.sizes import check_fits

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Schedule, Topology
    from tacos.synth.milp.model import Model
    from tacos.synth.milp.problem import Problem

__all__ = ["Front", "Point", "pareto"]

_MORE_STEPS = 8
_MOST_COLUMNS = 60_000


@dataclass(frozen=True)
class Point:
    """An algorithm that no other beats in both steps and rounds per chunk."""

    chunks: int
    """Per part, as ``chunks=`` of the collective."""
    steps: int
    rounds: int
    proven: bool
    """Whether no algorithm of this many steps, with any number of chunks that was tried, has fewer rounds per
    chunk."""
    schedule: Schedule

    @property
    def rounds_per_chunk(self) -> Fraction:
        """Rounds per chunk: the cost for large buffers."""
        return Fraction(self.rounds, self.chunks)


@dataclass(frozen=True)
class Front:
    """The result of :func:`pareto`, fewest steps first."""

    points: tuple[Point, ...]
    least_rounds: Fraction
    """Lower bound on the rounds per chunk; for an all-reduce, of algorithms that reduce-scatter first."""
    cut_short: bool
    """Whether the time limit ended the search."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the points as plain values that can go into JSON.

        >>> import tacos
        >>> ring = tacos.topology.ring(4)
        >>> tacos.pareto(ring, tacos.collective.all_gather(ring, "1MB")).rows()[0]["optimal"]
        'latency and bandwidth'
        """
        found = []
        for i, point in enumerate(self.points):
            words = ["latency"] * (i == 0)
            words += ["bandwidth"] * (point.rounds_per_chunk == self.least_rounds)
            found.append(
                {
                    "chunks": point.chunks,
                    "steps": point.steps,
                    "rounds": point.rounds,
                    "rounds_per_chunk": float(point.rounds_per_chunk),
                    "optimal": " and ".join(words),
                    "proven": point.proven,
                    "executed_s": point.schedule.executed_s,
                    "ideal_s": point.schedule.time_s,
                }
            )
        return found


def pareto(
    topology: Network,
    collective: Collective,
    *,
    max_chunks: int = 8,
    max_steps: int | None = None,
    time_limit: float = 60.0,
    progress: Callable[[float], object] | None = None,
) -> Front:
    """Find the algorithms between the fewest steps and the fewest rounds per chunk.

    Args:
        topology: A network of up to a few dozen NPUs.
        collective: A collective with ``chunks="auto"``; an all-reduce is a reduce-scatter and an all-gather.
        max_chunks: The largest number of chunks per part to try.
        max_steps: The largest number of steps; by default eight more than the fewest.
        time_limit: Seconds after which the search ends.
        progress: Called from time to time with the share of the time limit that has passed.

    Raises:
        TacosError: The time passed before there was any algorithm.
        ValueError: The number of chunks is chosen already, or an argument is wrong.

    >>> import tacos
    >>> box = tacos.topology.dgx1()
    >>> front = pareto(box, tacos.collective.all_gather(box, "1MB"), time_limit=600)
    >>> [(p.chunks, p.steps, p.rounds) for p in front.points]
    [(2, 2, 3), (6, 3, 7)]
    """
    topology = topology_of(topology)
    if collective.resolved:
        raise ValueError(
            'pareto() chooses the number of chunks; make the collective with chunks="auto"'
        )
    if collective.npus != topology.npus:
        raise ValueError(
            f"the collective is for {collective.npus} NPUs, but the topology has {topology.npus}"
        )
    for name, value in (("max_chunks", max_chunks), ("max_steps", max_steps)):
        if value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{name} is {value!r}; it must be a positive number")
    if not time_limit > 0:
        raise ValueError(f"time_limit must be positive; got {time_limit!r}")
    check_fits(topology, collective, "greedy")  # a front lists transfers, as greedy does
    highs()
    search = _Search(topology, collective, time_limit, progress)
    return search.front(max_chunks, max_steps)


class _Late(Exception):
    """Not an error: the time is up."""


class _Search:
    def __init__(
        self,
        topology: Topology,
        collective: Collective,
        time_limit: float,
        progress: Callable[[float], object] | None,
    ) -> None:
        self.topology, self.collective, self.progress = topology, collective, progress
        self.begin = time.monotonic()
        self.end = self.begin + time_limit
        self.late = False
        self.halves = 2 if sums(collective) and not only_collects(collective) else 1
        each = [self._least_rounds(topology, collective)]
        if all(kind_of(part).two_phases for part in collective.parts):
            parts = [CollectivePart("all_gather", p.size, group=p.group) for p in collective.parts]
            gather = Collective(collective.npus, parts)
            each = [self._least_rounds(t, gather) for t in (topology.reversed(), topology)]
        self.least = sum(each, Fraction(0))
        self.least_half = min(each) if len(each) == self.halves else Fraction(0)

    def _least_rounds(self, topology: Topology, collective: Collective) -> Fraction:
        """Return the rounds per chunk of the fluid bound."""
        if not topology.links:
            return Fraction(0)
        unit = gcd(*topology.link_bandwidth_Bps.tolist())
        part = int(collective.with_chunks(1).chunk_bytes().max(initial=1))
        fluid = bound(topology, collective).bandwidth_s * unit / max(part, 1)
        return Fraction(fluid).limit_denominator(1000)

    def front(self, max_chunks: int, max_steps: int | None) -> Front:
        points: list[Point] = []
        steps, last = 0, self.topology.npus
        if max_steps is not None:
            last = max_steps // self.halves
        while steps < last and not self.late:
            steps += 1
            best = self._best(steps, max_chunks, points[-1] if points else None)
            if best is not None:
                if not points and max_steps is None:
                    last = steps + _MORE_STEPS
                points.append(best)
                if best.rounds_per_chunk <= self.least:
                    break
        if not points and self.late:
            raise TacosError(
                "no algorithm found within time_limit; raise it or use a smaller network"
            )
        if not points:
            raise ValueError(f"max_steps is {max_steps}; the collective needs more steps")
        return Front(tuple(points), self.least, self.late)

    def _best(self, steps: int, max_chunks: int, before: Point | None) -> Point | None:
        """Return the algorithm with the fewest rounds per chunk, if it has fewer than the one with fewer steps.

        Symmetric algorithms are tried first: they are found quickly, and leave less to search. Numbers of chunks are
        tried in the order of how close to the bound they could come.
        """
        best, undecided = before, False

        def fewest(chunks: int) -> int:
            return max(steps * self.halves, ceil(self.least * chunks))

        counts = sorted(range(1, max_chunks + 1), key=lambda c: (Fraction(fewest(c), c), c))
        for symmetric in (True, False):
            for chunks in counts:
                most = self._most_rounds(chunks, best, before)
                if most < fewest(chunks):
                    continue
                try:
                    found, certain = self._fewest_rounds(chunks, steps, most, symmetric)
                except _Late:
                    self.late = undecided = True
                    break
                if found is not None:
                    schedule, rounds = found
                    best = Point(chunks, steps * self.halves, rounds, True, schedule)
                if not symmetric and not certain:
                    undecided = True
        if best is before or best is None:
            return None
        return replace(best, proven=not undecided or best.rounds_per_chunk == self.least)

    def _most_rounds(self, chunks: int, best: Point | None, before: Point | None) -> int:
        """Return the largest number of rounds with which this many chunks improve on the last point; equal is enough for fewer chunks."""
        if best is None:
            return self.halves * chunks * self.topology.npus**2
        if best is not before and chunks < best.chunks:
            return floor(best.rounds_per_chunk * chunks)
        return ceil(best.rounds_per_chunk * chunks) - 1

    def _fewest_rounds(
        self, chunks: int, steps: int, most: int, symmetric: bool
    ) -> tuple[tuple[Schedule, int] | None, bool]:
        """Return the schedule with the fewest rounds, at most `most`, and whether the answer is proven."""
        certain, rounds = True, 0

        def half(network: Topology, problem: Collective) -> Schedule:
            nonlocal certain, rounds
            share = most
            if self.halves == 2:  # the other half needs rounds, too
                share -= max(steps, ceil(self.least_half * chunks))
            found, answer = self._half(network, problem, steps, share, symmetric)
            certain = certain and answer in ("optimal", "infeasible")
            if found is None:
                raise _Nothing
            rounds += found[1]
            return found[0]

        try:
            schedule = in_phases(
                self.topology, self.collective.with_chunks(chunks), half, progress=self.progress
            )
        except _Nothing:
            return None, certain
        if rounds > most:
            return None, certain
        facts = {"engine": "pareto", "steps": steps * self.halves, "rounds": rounds}
        return (schedule.with_provenance(facts).with_facts(engine="pareto"), rounds), certain

    def _half(
        self, network: Topology, problem: Collective, steps: int, most: int, symmetric: bool
    ) -> tuple[tuple[Schedule, int] | None, str]:
        """Return a schedule and its rounds, if there is one, and the solver's verdict."""
        from tacos.synth.milp.model import build
        from tacos.synth.milp.problem import hops_of, in_steps
        from tacos.synth.milp.search import own_symmetry

        hops = hops_of(network)
        stepped = in_steps(network, problem, hops)
        lost = stepped.unreachable()
        if lost is not None:
            raise InfeasibleError(f"{network.node_name(lost[1])} cannot get a chunk that it needs")
        group = own_symmetry(network, problem, hops) if symmetric else None
        if symmetric and group is None:
            return None, "unknown"
        now = time.monotonic()
        if now >= self.end:
            raise _Late
        model = build(stepped, steps, orbits=group, rounds=most)
        if model is None:
            return None, "infeasible"
        if model.program.columns > _MOST_COLUMNS:
            return None, "unknown"
        # A search that may prove nothing must not use up the time of one that does.
        deadline = now + (self.end - now) / (4 if symmetric else 2)
        answer = solve(model.program, deadline=deadline, progress=self.progress)
        if answer.values is None:
            return None, answer.status
        rounds = round(float(model.program.cost @ answer.values))
        return (self._schedule(network, problem, stepped, model, answer.values), rounds), (
            answer.status
        )

    def _schedule(
        self,
        network: Topology,
        collective: Collective,
        problem: Problem,
        model: Model,
        solution: NDArray[np.float64],
    ) -> Schedule:
        from tacos.synth.milp.search import needed

        chunk, hop, step = needed(problem, *model.starts(solution))
        order = np.argsort(step, kind="stable")
        used, route = np.unique(hop[order], return_inverse=True)
        table = routes(network, links=[problem.hops.links(int(h)) for h in used])
        return retime(collective, table, route=route.ravel(), chunk=chunk[order], step=step[order])


class _Nothing(Exception):
    """Not an error: no schedule has this few rounds."""
