"""The search for one phase: increase the number of epochs until a schedule exists, first with coarse epochs."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacos._core import Schedule, bound
from tacos._support.solver import solve
from tacos.errors import InfeasibleError
from tacos.schedule import COPY, READ_ACC, retime, routes
from tacos.synth.greedy import greedy
from tacos.synth.milp.flows import pairs_by_flow
from tacos.synth.milp.model import Preference, build, windows
from tacos.synth.milp.problem import epoch_choices, hops_of, in_epochs
from tacos.synth.milp.symmetric_start import symmetric_start
from tacos.synth.milp.symmetry import automorphisms, extended, orbits, rotation

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Topology
    from tacos.sketch import Sketch
    from tacos.synth.milp.problem import Bools, Hops, Ints, Problem
    from tacos.synth.milp.symmetry import Orbits

__all__ = ["Search", "needed", "own_symmetry"]

_SYMMETRIC_SHARE = 0.5
"""Share of the time for the search among symmetric schedules."""
_COARSE_SHARE = 0.7
"""Share of the time for coarse epochs."""
_FIRST_SHARE = 0.25
"""Share of the remaining time for each number of epochs that is undecided."""


@dataclass
class _Stage:
    """One problem in epochs, and what is known about it."""

    problem: Problem
    low: int
    """No schedule has fewer epochs."""
    epochs: int = 0
    """Epochs of the schedule found; 0: none."""
    reach: int = 0
    """Number of epochs to try while there is no schedule."""
    cut_short: bool = False
    too_large: int = 0


@dataclass
class Search:
    """The search for one phase, which only copies."""

    topology: Topology
    collective: Collective
    backwards: bool
    end: float
    columns: int
    nodes: int | None
    epoch_ps: int | None
    symmetry: bool
    sketch: Sketch | None
    seed: int
    threads: int
    progress: Callable[[float], object] | None

    def run(self) -> tuple[Schedule, dict[str, Any]]:
        """Return the best schedule found, and facts about the search for its provenance."""
        self.hops = hops_of(self.topology)
        self.allowed, self.preference = self._asked()
        self.bound_ps = bound(self.topology, self.collective).time_ps
        warm = self._warm()
        wishes = self.preference is not None or self._required
        self.best = None if wishes else warm
        self.horizon_ps = 2 * self.bound_ps + 1 if warm is None else warm.time_ps
        groups = self._groups()
        if self._required and groups is not None:
            self._start(groups)
        stages = []
        for choice, epoch_ps in enumerate(choices := self._epochs()):
            begin = time.monotonic()
            last = choice + 1 == len(choices)
            end = self.end if last else begin + (self.end - begin) * _COARSE_SHARE
            stages.append(self._stage(epoch_ps, groups, begin, end))
        # The finest stage that finished proves most; otherwise the coarsest one, which got furthest.
        ended = [stage for stage in stages if stage.low > self._top(stage)]
        stage = [*stages[:1], *ended][-1]
        if self.best is not None:
            return self.best, self._facts(stage, self.best)
        if warm is None:
            raise InfeasibleError(
                f"no schedule of {self.collective!r} within the sketch was found in time"
            )
        note = (
            "no schedule that meets the whole sketch was found in time; this is the greedy engine's"
        )
        return warm, self._facts(stage, warm) | {"proven": False, "note": note}

    def _start(self, groups: Orbits) -> None:
        """Start from a schedule with the sketch's symmetry, if one can be built from the allowed transfers."""
        problem = in_epochs(self.topology, self.collective, self.hops, 1)
        if self.allowed is not None:
            problem = replace(problem, allowed=self.allowed)
        found = symmetric_start(self.topology, self.collective, problem, groups)
        if found is not None:
            self._offer(found)
            self.horizon_ps = min(self.horizon_ps, found.time_ps)

    @property
    def _required(self) -> bool:
        """Whether the sketch asks for symmetry."""
        return self.sketch is not None and bool(self.sketch.symmetry)

    def _asked(self) -> tuple[Bools | None, Preference | None]:
        """Return the transfers that the sketch allows, and those that it prefers."""
        if self.sketch is None:
            return None, None
        hops, npus = self.hops, self.topology.npus
        holds = np.zeros((self.collective.chunks, npus), bool)
        holds[self.collective.precondition()] = True
        allowed = self.sketch.allowed(
            self.collective, holds, hops.src, hops.dst, backwards=self.backwards
        )
        own_first = None
        if self.sketch.own_first and not self.backwards:
            own_first = self.sketch.crosses(npus, hops.src, hops.dst)
        wish = {"uc-min": -1, "uc-max": 1, None: 0}[self.sketch.connections]
        preference = Preference(wish, own_first) if wish or own_first is not None else None
        return allowed, preference

    def _warm(self) -> Schedule | None:
        """Return an initial schedule: the greedy engine's or a flow's, if it obeys the sketch."""
        network, collective = self.topology, self.collective
        found: list[Schedule] = [
            greedy(network, collective, seed=self.seed, progress=self.progress)
        ]
        if flow := pairs_by_flow(network, collective, self.hops):
            found.append(flow)
        if self.sketch is not None:
            if self.backwards and self.sketch.relays is not None:
                return None  # a schedule does not show which NPUs relay sums
            found = [
                schedule
                for schedule in found
                if not self.sketch.violation(schedule.reverse() if self.backwards else schedule)
            ]
        return min(found, key=lambda schedule: schedule.time_ps, default=None)

    def _epochs(self) -> list[int]:
        if self.epoch_ps is not None:
            return [self.epoch_ps]
        return epoch_choices(self.topology, self.collective, self.hops, self.horizon_ps)

    def _stage(self, epoch_ps: int, groups: Orbits | None, begin: float, end: float) -> _Stage:
        """Search for schedules in epochs of one length."""
        problem = in_epochs(self.topology, self.collective, self.hops, epoch_ps)
        if self.allowed is not None:
            problem = replace(problem, allowed=self.allowed)
        self._check_reachable(problem)
        least = int(problem.earliest()[problem.wants].max(initial=0))
        stage = _Stage(problem, max(-(-self.bound_ps // epoch_ps), least))
        stage.reach = max(stage.low, self.horizon_ps // epoch_ps + 1)
        if groups is not None:
            share = 1.0 if self._required else _SYMMETRIC_SHARE
            self._climb(stage, groups, begin + (end - begin) * share, proves=self._required)
        if not self._required:
            self._climb(stage, None, end, proves=True)
        return stage

    def _offer(self, found: Schedule) -> None:
        if self.best is None or found.time_ps < self.best.time_ps:
            self.best = found

    def _top(self, stage: _Stage) -> int:
        """Return the largest number of epochs that would be an improvement; a few more if there is no schedule yet."""
        epoch_ps = stage.problem.epoch_ps
        epochs = [stage.epochs - 1] if stage.epochs else []
        if self.best is not None:
            epochs.append((self.best.time_ps - 1) // epoch_ps)
        return min(epochs, default=stage.reach)

    def _facts(self, stage: _Stage, best: Schedule) -> dict[str, Any]:
        epoch_ps, reached_ps = stage.problem.epoch_ps, best.time_ps
        proven = stage.low > self._top(stage)
        facts: dict[str, Any] = {
            "epoch_s": epoch_ps / 1e12,
            "epochs": stage.epochs or -(-reached_ps // epoch_ps),
            "epochs_bound": stage.low,
            "exact_epochs": stage.problem.exact,
            "proven": proven or reached_ps <= self.bound_ps,
            "bound_ps": self.bound_ps,
        }
        # Through switches, schedules may use longer paths than the hops, and multicast.
        if stage.problem.exact and self.sketch is None and not self.topology.switches:
            facts["bound_ps"] = max(self.bound_ps, min(stage.low * epoch_ps, reached_ps))
        if stage.too_large:
            facts["note"] = (
                f"the program has {stage.too_large:,} start variables, more than "
                f"{self.columns:,}; it was not solved"
            )
        if stage.cut_short and not facts["proven"]:
            facts["cut_short"] = True
        return facts

    def _climb(self, stage: _Stage, group: Orbits | None, end: float, *, proves: bool) -> None:
        """Increase the number of epochs until there is a schedule, or no better one can exist.

        A number that is undecided after its share of the time is skipped. Then the largest number of epochs that is an
        improvement is tried, and then numbers in between.
        """
        low, undecided = stage.low, False
        while low <= (top := self._top(stage)):
            now = time.monotonic()
            if now >= end:
                stage.cut_short = stage.cut_short or proves
                return
            epochs = (
                (low + top + 1) // 2 if undecided and stage.epochs else top if undecided else low
            )
            size = windows(stage.problem, epochs).columns // (group.order if group else 1)
            if size > self.columns:
                stage.too_large = size if proves else 0
                return
            share = 1.0 if undecided or low == top else _FIRST_SHARE
            if self.best is None and share == 1.0:
                share = 0.6  # more epochs may follow
            status = self._attempt(stage, epochs, group, now + (end - now) * share)
            if status == "found":
                continue
            if self.best is None and epochs == top:
                stage.reach += stage.reach // 2 + 1
            if status == "none":
                low = epochs + 1
                stage.low = max(stage.low, low) if proves else stage.low
            elif undecided and not stage.epochs and self.best is not None:
                stage.cut_short = stage.cut_short or proves
                return
            else:
                stage.cut_short = stage.cut_short or proves
                low, undecided = (epochs + 1 if undecided else low + 1), True

    def _attempt(
        self, stage: _Stage, epochs: int, group: Orbits | None, deadline: float
    ) -> Literal["found", "none", "late"]:
        model = build(stage.problem, epochs, orbits=group, preference=self.preference)
        if model is None:
            return "none"
        answer = solve(
            model.program,
            deadline=deadline,
            nodes=self.nodes,
            seed=self.seed,
            threads=self.threads,
            progress=self.progress,
        )
        if answer.values is None:
            return "none" if answer.status == "infeasible" else "late"
        self._offer(self._schedule(stage.problem, *model.starts(answer.values)))
        stage.epochs = epochs
        return "found"

    def _schedule(self, problem: Problem, chunk: Ints, hop: Ints, epoch: Ints) -> Schedule:
        """Return the better of two schedules: with the epochs' times, and with the earliest times in the same order."""
        chunk, hop, epoch = needed(problem, chunk, hop, epoch)
        order = np.lexsort((chunk, epoch, hop))
        chunk, hop, epoch = chunk[order], hop[order], epoch[order]
        used, lane = np.unique(hop, return_inverse=True)
        table = routes(self.topology, links=[self.hops.links(int(h)) for h in used])
        legs = 1
        if self.topology.forwarding == "store_and_forward":
            legs = int(np.bincount(self.hops.use_hop, minlength=1).max(initial=1))
        by_time = np.argsort(epoch, kind="stable")
        retimed = retime(
            self.collective,
            table,
            route=lane.ravel()[by_time].astype(np.int32),
            chunk=chunk[by_time],
            step=epoch[by_time],
            progress=self.progress,
        )
        if legs > 1 or not len(chunk):
            return retimed
        timed = Schedule(
            collective=self.collective,
            routes=table,
            lane_route=np.arange(len(used), dtype=np.int32),
            lane_op=np.full(len(used), COPY, np.uint8),
            lane_reads=np.full(len(used), READ_ACC, np.uint8),
            lane_begin=np.searchsorted(hop, np.append(used, used[-1] + 1)).astype(np.int64),
            chunk=chunk.astype(np.uint32),
            start=epoch.astype(np.uint32),
            quantum_ps=problem.epoch_ps,
        )
        return min(retimed, timed, key=lambda schedule: schedule.time_ps)

    def _groups(self) -> Orbits | None:
        """Return the symmetries to use: a sketch's must hold, the network's own are optional."""
        network, collective = self.topology, self.collective
        if self.sketch is None:
            return own_symmetry(network, collective, self.hops) if self.symmetry else None
        images, found = [], None
        for offset, size in self.sketch.symmetry:
            turned = rotation(network.npus, offset, size)
            images.append(
                extended(network, turned) or [*turned, *range(network.npus, network.nodes)]
            )
            try:
                found = orbits(network, collective, self.hops, images)
            except ValueError as error:
                raise ValueError(f"symmetry [{offset}, {size}] does not hold: {error}") from None
            assert self.allowed is not None
            if (self.allowed != self.allowed[found.pair_chunk, found.pair_hop]).any():
                raise ValueError(
                    f"symmetry [{offset}, {size}] contradicts the relays or senders of the sketch"
                )
        return found

    def _check_reachable(self, problem: Problem) -> None:
        lost = problem.unreachable()
        if lost is not None:
            chunk, npu = lost
            ends = [int(np.flatnonzero(problem.holds[chunk])[0]), npu]
            src, dst = (
                self.topology.node_name(n) for n in (ends[::-1] if self.backwards else ends)
            )
            allowed = "" if self.sketch is None else " over the hops that the sketch allows"
            raise InfeasibleError(f"{src} cannot reach {dst}, which needs its chunk{allowed}")


def own_symmetry(topology: Topology, collective: Collective, hops: Hops) -> Orbits | None:
    """Return the orbits under symmetries of both the network and the collective, or None.

    >>> import tacos
    >>> from tacos.synth.milp.problem import hops_of
    >>> box = tacos.topology.dgx1()
    >>> own_symmetry(box, tacos.collective.all_gather(box, "1MB", chunks=1), hops_of(box)).order
    4
    >>> own_symmetry(box, tacos.collective.broadcast(box, "1MB", chunks=1), hops_of(box))
    """
    kept: list[list[int]] = []
    found = None
    for image in automorphisms(topology):
        with suppress(ValueError):
            found = orbits(topology, collective, hops, [*kept, image])
            kept.append(image)
    return found


def needed(problem: Problem, chunk: Ints, hop: Ints, epoch: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the transfers that lead to an NPU that needs the chunk, without useless ones.

    >>> import tacos
    >>> from tacos.synth.milp.problem import hops_of, in_steps
    >>> ring = tacos.topology.ring(4)                     # hops 0 and 1: 0 to 1, 1 to 2
    >>> problem = in_steps(ring, tacos.collective.send_recv(ring, [(0, 1, 1)], chunks=1), hops_of(ring))
    >>> needed(problem, np.array([0, 0]), np.array([0, 1]), np.array([0, 1]))[1].tolist()
    [0]
    """
    needed = problem.wants.copy()
    kept = np.zeros(len(chunk), bool)
    src, dst = problem.hops.src[hop], problem.hops.dst[hop]
    for moment in np.unique(epoch)[::-1]:
        now = (epoch == moment) & needed[chunk, dst]
        kept |= now
        needed[chunk[now], src[now]] = True
    return chunk[kept], hop[kept], epoch[kept]
