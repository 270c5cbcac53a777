"""Compare engines on one problem or over several sizes.

:func:`compare` runs every engine that applies, and the search of all together, which ``synthesize`` runs, under one
model of time. It checks each answer with the verifier and sorts by time. The work is spread over the cores of this machine or over
any executor; the results and their order do not depend on it.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

from tacos._core import Collective, Schedule
from tacos.collective import chunks_per_part
from tacos.errors import (
    LimitError,
    TacosError,
    VerificationError,
    WrongScheduleWarning,
    check_type,
)
from tacos.execution import execution, slowdown
from tacos.nodes import Network, topology_of
from tacos.program import lift, lower
from tacos.schedule import uses_switches
from tacos.search.comparison import Candidate, Comparison, Figures, Sweep
from tacos.search.synthesis import check_engine, check_sizes, obstacles, synthesize
from tacos.search.synthesis import engines as applicable
from tacos.synth import ENGINES, with_unaware
from tacos.synth.sizes import check_fits
from tacos.targets import bound_for, check_held, target_of, usable
from tacos.units import format_size
from tacos.verify import Report, verify
from tacos.workers import Dispatch, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Executor, Future

    from tacos._core import Topology
    from tacos.bound import Bound
    from tacos.program import Program

    Progress: TypeAlias = Callable[[float], object]

__all__ = ["compare"]


@overload
def compare(
    topology: Network,
    collective: Collective,
    *,
    engines: str | Iterable[str] | None = None,
    beside: Mapping[str, Program | Schedule] | None = None,
    seed: int = 0,
    effort: str | int = "normal",
    time_limit: float | None = 60.0,
    consistent: bool = True,
    executor: Executor | None = None,
    target: str | None = None,
    progress: Progress | None = None,
) -> Comparison: ...


@overload
def compare(
    topology: Network,
    collective: Sequence[Collective],
    *,
    engines: str | Iterable[str] | None = None,
    beside: Mapping[str, Program | Schedule] | None = None,
    seed: int = 0,
    effort: str | int = "normal",
    time_limit: float | None = 60.0,
    consistent: bool = True,
    executor: Executor | None = None,
    target: str | None = None,
    progress: Progress | None = None,
) -> Sweep: ...


def compare(
    topology: Network,
    collective: Collective | Sequence[Collective],
    *,
    engines: str | Iterable[str] | None = None,
    beside: Mapping[str, Program | Schedule] | None = None,
    seed: int = 0,
    effort: str | int = "normal",
    time_limit: float | None = 60.0,
    consistent: bool = True,
    executor: Executor | None = None,
    target: str | None = None,
    progress: Progress | None = None,
) -> Comparison | Sweep:
    """Run several engines on one problem, or on several sizes of it, and verify each answer.

    Args:
        topology: The network.
        collective: The collective, or a list with the collective in several sizes.
        engines: Names of engines, or one name; by default all that apply, and ``"auto"``, whose answer is the one that
            :func:`~tacos.search.synthesis.synthesize` returns. On a network with faults, ``"nccl"`` adds ``"nccl-unaware"``.
        beside: Other algorithms, keyed by their names in the comparison: programs, or schedules of other tools.
            They are transferred to this topology and these sizes; their synthesis time is the time of this transfer.
        seed: Random seed of engines that use one.
        effort: As for :func:`~tacos.search.synthesis.synthesize`.
        time_limit: Seconds for each engine and size. An engine that has found nothing by then is not
            tried at the remaining sizes.
        consistent: Whether schedules that may leave NPUs with different bits of a sum are ranked after all others; they
            are marked in any case.
        executor: Where the work is done: what :func:`tacos.workers.opened` opens by name, or any executor, such as a
            process pool; the threads of this machine if none is given. It stays open.
        target: What will execute the schedules, as for :func:`~tacos.search.synthesis.synthesize`. If it cannot express sums in
            switches, only the reference uses them: what users run today uses the machine as it is.
        progress: Called from time to time with the share of the work done.

    Returns:
        A :class:`Comparison`, or a :class:`Sweep` of them for a list.

    Raises:
        ValueError: An engine is unknown, or a collective or an algorithm does not fit the topology
            or the others.

    >>> import tacos
    >>> topo = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(topo, "4MB")
    >>> [c.engine for c in compare(topo, coll, engines=["ring", "bidirectional-ring"]).candidates]
    ['bidirectional-ring', 'ring']
    """
    topology = topology_of(topology)
    if isinstance(collective, str):  # which is a sequence, too
        check_type("collective", collective, Collective)
    check_type("collective", collective, Collective, Sequence)
    single = isinstance(collective, Collective)
    problems = [collective] if isinstance(collective, Collective) else list(collective)
    if isinstance(engines, str):
        engines = engines.split(",")
    names = None if engines is None else with_unaware(dict.fromkeys(engines), topology)
    others = dict(beside or {})
    _check(topology, problems, names, others, time_limit)
    for problem in problems:
        check_held(problem, target)
    network = usable(topology, target)
    if names is None:
        for problem in problems:
            check_fits(network, problem)
    bounds = [bound_for(topology, problem, target) for problem in problems]
    tasks, owner = [], []
    for i, (problem, least) in enumerate(zip(problems, bounds, strict=True)):
        asked = _Task(topology, problem, least, "", seed, effort, time_limit, target, consistent)
        for name in [_AUTO, *applicable(network, problem)] if names is None else names:
            tasks.append(asked._replace(engine=name))
            owner.append(i)
        for name, algorithm in others.items():
            tasks.append(asked._replace(engine=name, time_limit=None, algorithm=algorithm))
            owner.append(i)
    found: list[list[Candidate]] = [[] for _ in problems]
    rank = partial(_rank, consistent=consistent)
    for k, candidate in _results(tasks, executor, progress):
        answers = [*found[owner[k]], candidate]
        found[owner[k]] = answers if single else _best_kept(answers, rank)
    comparisons = tuple(
        Comparison(
            topology,
            problem,
            tuple(sorted(found[i], key=rank)),
            bounds[i].time_s,
            tuple(obstacles(network, problem).items()) if names is None else (),
            None if (best_ps := bounds[i].in_switch_ps) is None else best_ps * 1e-12,
        )
        for i, problem in enumerate(problems)
    )
    return comparisons[0] if single else Sweep(topology, comparisons)


def _check(
    topology: Topology,
    problems: list[Collective],
    names: list[str] | None,
    others: dict[str, Program | Schedule],
    time_limit: float | None,
) -> None:
    if not problems:
        raise ValueError("collective is an empty list; there is nothing to compare")
    for problem in problems:
        check_sizes(topology, problem)
        if problem.kind != problems[0].kind:
            kinds = f"{problems[0].label} and {problem.label}"
            raise ValueError(f"collective has {kinds}; a comparison takes one kind")
    for name in names or ():
        if name != _AUTO:
            check_engine(name, _AUTO)
    for name, algorithm in others.items():
        _check_fits(name, algorithm, problems[0])
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit must be positive; got {time_limit!r}")


def _check_fits(name: str, algorithm: Program | Schedule, wanted: Collective) -> None:
    if name == _AUTO or name in ENGINES:
        raise ValueError(f'beside has an algorithm named "{name}", which is the name of an engine')

    def outline(collective: Collective) -> str:
        parts = [f"{p.kind} of {len(p.group) or 'some'}" for p in collective.parts]
        return f"{' and '.join(parts)} on {collective.npus} NPUs"

    def members(collective: Collective) -> list[Any]:
        return [(p.kind, p.group.tolist(), p.root) for p in collective.parts]

    if (algorithm.collective.npus, members(algorithm.collective)) != (wanted.npus, members(wanted)):
        raise ValueError(
            f"{name} is for {outline(algorithm.collective)}; this comparison is of {outline(wanted)}"
        )


_Rank: TypeAlias = tuple[bool, bool, float, str]


def _rank(candidate: Candidate, *, consistent: bool) -> _Rank:
    seconds = candidate.figures.counted_s if candidate.figures else 0.0
    late = consistent and not candidate.consistent
    return not candidate.ok, late, seconds, candidate.engine


def _best_kept(candidates: list[Candidate], rank: Callable[[Candidate], _Rank]) -> list[Candidate]:
    """Drop schedules that are not needed: each may take megabytes, and a sweep has hundreds."""
    best = min(candidates, key=rank)
    return [c if c is best else replace(c, schedule=None) for c in candidates]


_AUTO = "auto"
_DIFFERENT_BITS = "ranks may end with different bits"

# The work, and its distribution.


class _Task(NamedTuple):
    """One engine on one problem, with everything that another process needs."""

    topology: Topology
    collective: Collective
    bound: Bound
    engine: str
    seed: int
    effort: str | int
    time_limit: float | None
    target: str | None
    consistent: bool
    algorithm: Program | Schedule | None = None  # in the engine's place


def _schedule(task: _Task, report: Progress | None) -> Schedule:
    """Return the engine's schedule, or the given algorithm on this network."""
    if task.algorithm is None:
        # What users run today uses the machine as it is, whatever the target cannot express.
        today = task.engine != _AUTO and ENGINES[task.engine].reference == 1
        as_it_is = today and task.bound.in_switch_ps is not None
        return synthesize(
            task.topology,
            task.collective,
            engine=task.engine,
            seed=task.seed,
            effort=task.effort,
            time_limit=task.time_limit,
            progress=report,
            known_bound=None if as_it_is else task.bound,
            target=None if as_it_is else task.target,
            consistent=task.consistent,
        )
    size, algorithm = task.collective.size_bytes, task.algorithm
    if isinstance(algorithm, Schedule):
        if algorithm.topology == task.topology and algorithm.collective.size_bytes == size:
            return _marked(algorithm, verify(algorithm, progress=partial(_alive, report)))
        algorithm = lower(algorithm)
    # Lifting a program with races would show only one outcome.
    checked = verify(algorithm, progress=partial(_alive, report))
    checked.raise_if_failed()
    lifted = lift(algorithm, task.topology, size, progress=partial(_alive, report))
    verify(lifted, progress=partial(_alive, report)).raise_if_failed()
    return _marked(lifted, checked)


def _marked(schedule: Schedule, report: Report) -> Schedule:
    """Return the schedule if it is correct; mark it, as :func:`~tacos.search.synthesis.synthesize` does, if NPUs may get different bits."""
    report.raise_if_failed()
    if report.consistent:
        return schedule
    facts = schedule.provenance | {"consistent": False}
    return schedule.with_provenance(facts).with_facts(consistent=False)


def _candidate(task: _Task, report: Progress | None = None) -> Candidate:
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():  # the candidate's note reports it
            warnings.simplefilter("ignore", WrongScheduleWarning)
            schedule = _schedule(task, report)
    except (TacosError, ValueError, MemoryError) as error:
        took = time.perf_counter() - begin
        wrong = isinstance(error, VerificationError)
        note = str(error) or "not enough memory"
        return Candidate(task.engine, None, False, note, took, wrong=wrong)
    took = time.perf_counter() - begin
    consistent = schedule.consistent
    remarks = [] if consistent else [_DIFFERENT_BITS]
    if needed := schedule.provenance.get("needs"):
        remarks.append(f"it needs {needed}, without which it fails")
    beyond = not target_of(task.target).switch_sums and uses_switches(schedule)
    if beyond:
        remarks.append(f"sums in switches, which the target {task.target} cannot express")
    note = "; ".join([*schedule.rejected, *remarks])
    figures, wrong = _figures(schedule, task.target), bool(schedule.rejected)
    found_by = schedule.engine if task.algorithm is None else task.engine
    return Candidate(
        task.engine, schedule, True, note, took, figures, wrong, consistent, found_by, beyond
    )


def _alive(report: Progress | None, _: float) -> None:
    """Repeat the last progress while verifying, so that the caller can stop it."""
    if report is not None:
        report(1.0)


def _figures(schedule: Schedule, target: str | None) -> Figures:
    used = schedule.link_utilisation()
    executed_s = _executed_s(schedule, target)
    counted_s = schedule.time_s if executed_s is None else executed_s
    algbw_Bps = schedule.collective.size_bytes / counted_s if counted_s else 0.0
    factor = schedule.busbw_Bps / schedule.algbw_Bps if schedule.algbw_Bps else 0.0
    return Figures(
        executed_s=executed_s,
        ideal_s=schedule.time_s,
        algbw_Bps=algbw_Bps,
        busbw_Bps=factor * algbw_Bps,
        chunks=chunks_per_part(schedule.collective),
        total_chunks=schedule.collective.chunks,
        transfers=schedule.transfers,
        utilisation=float(used.mean()) if len(used) else 0.0,
        cut_short=schedule.cut_short,
        slowdown=slowdown(schedule),
    )


def _executed_s(schedule: Schedule, target: str | None) -> float | None:
    """Return the executed time; None if the schedule has too many transfers, or the target refuses it.

    Where the target cannot express the schedule's sums in switches, the schedule itself is run by the target's rules.
    """
    express = target_of(target).switch_sums or not uses_switches(schedule)
    try:
        found = execution(schedule, target=target if express else None)
    except LimitError:
        return None
    return None if found is None else found.time_ps(target) * 1e-12


class _Stopped(Exception):
    """Not an error: it ends a thread whose result is no longer needed."""


def _results(
    tasks: list[_Task], executor: Executor | None, progress: Progress | None
) -> Iterator[tuple[int, Candidate]]:
    """Yield the number and the result of every task as it completes."""
    if executor is None:
        yield from _results_here(tasks, progress)
        return
    bounds = {id(task.bound): task.bound for task in tasks}
    shared = [tasks[0].topology, *bounds.values()] if tasks else []
    work = Dispatch(executor, _candidate, tasks, shared=shared, progress=progress)
    for k, candidate in work:
        if isinstance(candidate, WorkerLostError):
            yield k, Candidate(tasks[k].engine, None, False, str(candidate), 0.0)
        elif isinstance(candidate, BaseException):
            raise candidate
        else:
            yield k, candidate
            if _too_slow(tasks[k], candidate):
                same = tasks[k].engine
                for other in work.drop(lambda task, same=same: task.engine == same):  # type: ignore[misc]
                    yield other, _not_tried(tasks[k])


def _results_here(tasks: list[_Task], progress: Progress | None) -> Iterator[tuple[int, Candidate]]:
    """Yield the number and the result of every task, run on this machine's cores, with progress and cancellation."""
    stop, shares = Event(), [0.0] * len(tasks)

    def report(k: int, share: float) -> None:
        if stop.is_set():
            raise _Stopped
        shares[k] = share

    futures: dict[Future[Candidate], int] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            for k, task in enumerate(tasks):
                futures[pool.submit(_candidate, task, partial(report, k))] = k
            pending = set(futures)
            while pending:
                # Wake up regularly to report progress and notice Ctrl-C.
                done, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=futures.__getitem__):
                    k, candidate = futures[future], future.result()
                    shares[k] = 1.0
                    yield k, candidate
                    if _too_slow(tasks[k], candidate):
                        for other in [
                            f for f in pending if tasks[futures[f]].engine == tasks[k].engine
                        ]:
                            if other.cancel():
                                pending.discard(other)
                                shares[futures[other]] = 1.0
                                yield futures[other], _not_tried(tasks[k])
                if progress is not None:
                    progress(sum(shares) / len(tasks))
        finally:
            stop.set()
            for future in futures:
                future.cancel()


def _too_slow(task: _Task, candidate: Candidate) -> bool:
    limit = task.time_limit
    return candidate.figures is None and limit is not None and candidate.seconds >= limit


def _not_tried(task: _Task) -> Candidate:
    size = format_size(task.collective.size_bytes)
    note = f"not tried: found nothing in {task.time_limit:g} s at {size}"
    return Candidate(task.engine, None, False, note, 0.0)
