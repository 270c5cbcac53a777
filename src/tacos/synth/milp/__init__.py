"""The milp engine: schedules of the fewest epochs, by integer programming with HiGHS.

Time is divided into epochs (:mod:`~tacos.synth.milp.problem`); whether a schedule of T epochs exists is an integer
program (:mod:`~tacos.synth.milp.model`). T grows from a lower bound until a schedule exists, or until the greedy
engine's schedule is reached, which is returned if nothing better is found in time. For each T, schedules that are
invariant under the network's symmetry are tried first: their program is smaller by the order of the group. Reductions
are built from copies (:mod:`tacos.synth.phases`).

The time-expanded program follows TE-CCL (Liu et al., SIGCOMM 2024) and TACCL (Shah et al., NSDI 2023). Cumulative
start variables, windows, the search from below and orbits are new here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tacos._core import bound
from tacos._support import solver
from tacos.synth.engine import Engine, Exact
from tacos.synth.greedy import ENGINE as GREEDY
from tacos.synth.greedy import greedy
from tacos.synth.phases import in_phases, only_collects, sums
from tacos.units import Quantity, time_ps

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Schedule, Topology
    from tacos.sketch import Sketch

__all__ = ["ENGINE", "milp", "obstacle"]

_ASKED_PAIRS = 600
"""Largest product of chunks and links for which "auto" uses this engine (chosen)."""
_ASKED_COLUMNS, _ASKED_NODES = 1500, 50
"""Columns of a program, and nodes of a search tree, for "auto" at normal effort: about a second."""
_MOST_PAIRS = 10**6
"""Largest product of chunks and links; beyond it, even counting the variables takes long."""


def obstacle(topology: Topology, collective: Collective) -> str:
    """Return the requirement of the engine that is not met; empty if all are met.

    >>> import tacos
    >>> torus = tacos.topology.torus(32, 32)
    >>> obstacle(torus, tacos.collective.all_gather(torus, "1MB"))
    'fewer NPUs and chunks: 1,024 chunks and 4,096 links make a program of millions'
    """
    size = collective if collective.resolved else collective.with_chunks(1)
    if size.chunks * topology.links > _MOST_PAIRS:
        return (
            f"fewer NPUs and chunks: {size.chunks:,} chunks and {topology.links:,} links "
            "make a program of millions"
        )
    return ""


def milp(
    topology: Topology,
    collective: Collective,
    *,
    time_limit: float = 60.0,
    columns: int = 150_000,
    nodes: int | None = None,
    epoch: Quantity | None = None,
    symmetry: bool = True,
    within: Sketch | None = None,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Find a schedule of the fewest epochs, and prove that it is optimal.

    The provenance tells what is proven: ``"proven"`` is true if no schedule of fewer epochs exists (for each
    half of a collective that reduces and then spreads). With ``"exact_epochs"`` the epoch divides all
    durations, so the schedule is optimal for these chunks and hops, and not only for the rounded problem.
    ``"gap"`` is the distance to the best proven bound. A program that is too large is not solved: ``"note"``
    gives its size, and the greedy engine's schedule is returned.

    Args:
        topology: Up to a few dozen NPUs.
        collective: Any collective, with its number of chunks chosen.
        time_limit: In seconds. Results that it does not cut short are the same on every machine.
        columns: Largest number of start variables; larger programs are not solved. Programs of millions do not
            finish within minutes.
        nodes: Largest number of nodes of each search tree, independent of the machine.
        epoch: Length of an epoch; the default is a compromise between little rounding and few epochs.
        symmetry: Whether to look for symmetric schedules first.
        within: A sketch; its symmetries are required, not only tried. The network must have only links that
            it allows.
        seed, threads: For HiGHS and the greedy engine.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: An NPU that needs a chunk cannot be reached; the message names the pair.
        ValueError: An argument is wrong, or the network or collective lacks a sketch's symmetry.

    >>> import tacos
    >>> box = tacos.topology.dgx1(latency="0s")
    >>> coll = tacos.collective.all_gather(box, "8MB", chunks=1)
    >>> best = milp(box, coll)
    >>> best.time_s, best.provenance["proven"]     # 3 epochs; greedy needs 4
    (6e-05, True)
    """
    if not time_limit > 0:
        raise ValueError(f"time_limit must be positive; got {time_limit!r}")
    if type(threads) is not int or threads < 1:
        raise ValueError(f"threads must be a positive number; got {threads!r}")
    from tacos.synth.milp.search import (
        Search,
    )  # few problems need it, and it would slow every import

    epoch_ps = None if epoch is None else max(time_ps(epoch, what="epoch"), 1)
    solver.highs()
    begin = time.monotonic()
    phases = 2 if _halves(collective) else 1
    ends = iter([begin + time_limit * (k + 1) / phases for k in range(phases)])
    done: list[dict[str, Any]] = []

    def solve_phase(network: Topology, problem: Collective) -> Schedule:
        search = Search(
            network,
            problem,
            backwards=network is not topology,
            end=next(ends),
            columns=columns,
            nodes=nodes,
            epoch_ps=epoch_ps,
            symmetry=symmetry,
            sketch=within,
            seed=seed,
            threads=threads,
            progress=progress,
        )
        schedule, facts = search.run()
        done.append(facts)
        return schedule

    schedule = in_phases(topology, collective, solve_phase, progress=progress)
    facts = _together(done) | {"engine": ENGINE.name, "seed": seed}
    if within is None:
        warm = greedy(topology, collective, seed=seed, progress=progress)
        if warm.time_ps < schedule.time_ps:  # its halves overlap better
            schedule, facts["proven"] = warm, False
            facts["from"] = GREEDY.name
    bound_ps = max(facts.pop("bound_ps"), bound(topology, collective).time_ps)
    facts["gap"] = round(max(1 - bound_ps / schedule.time_ps, 0.0), 6) if schedule.time_ps else 0.0
    return schedule.with_provenance(facts)


def _halves(collective: Collective) -> bool:
    """Return whether the collective collects and then spreads."""
    return sums(collective) and not only_collects(collective)


def _together(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine the provenance of two halves."""
    facts = dict(done[0])
    for other in done[1:]:
        facts["epochs"] += other["epochs"]
        facts["epochs_bound"] += other["epochs_bound"]
        facts["bound_ps"] = 0  # halves may overlap
        for name in ("proven", "exact_epochs"):
            facts[name] = facts[name] and other[name]
        facts |= {name: other[name] for name in ("note", "cut_short") if name in other}
    return facts


def _limits(effort: float) -> dict[str, Any]:
    return {"columns": int(_ASKED_COLUMNS * effort), "nodes": _ASKED_NODES}


def _is_small(topology: Topology, collective: Collective) -> bool:
    return collective.chunks * topology.links <= _ASKED_PAIRS


ENGINE = Engine(
    name="milp",
    solve=milp,
    obstacle=obstacle,
    only_if_named="to be named: it uses all the time it is given",
    exact=Exact(fits=_is_small, limits=_limits),
)
