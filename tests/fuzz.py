"""The fuzzer: run every engine on random problems, and check its answers in every way.

A run is an engine on a problem (`tests/support/problems.py`). It passes if the engine reports that it does not apply,
or if all of this holds: the schedule passes the verifier, has one order of summation and is not faster than the bound;
simulated at its own times, it takes its own time; its program passes the verifier, and so does the schedule lifted
from it; the refined schedule passes and is not slower; a file holds the schedule that was saved in it.
Everything else is a failure: another exception, a wrong schedule, a crash.

::

    python -m tests.fuzz --runs 100000 --jobs 2                 # the fast engines
    python -m tests.fuzz --runs 1000 --engines auto,milp
    python -m tests.fuzz --seed 4711 --problems 1 --engines forest   # one case again

Problems run in separate processes, so that a crash of the compiled core loses neither the case nor the other results.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import multiprocessing.connection
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from random import Random
from typing import Any

import tacos
from tacos import synth
from tacos.errors import InfeasibleError
from tests.support.problems import problem

FAST = [name for name, engine in synth.ENGINES.items() if not engine.only_if_named]
# Limits for the engines that have such options.
LIMITS: dict[str, Any] = {"columns": 600, "nodes": 5, "time_limit": 20.0}
# Check the engine's own answer, not the one with which `synthesize` replaces a wrong one.
RAW = {"verify": False} if "verify" in inspect.signature(tacos.synthesize).parameters else {}
SHARE_INAPPLICABLE, SHARE_SAVED, SHARE_REFINED, SHARE_OPEN = 0.03, 0.05, 0.03, 0.02
SHARES = {"c-cube": 0.1}  # share of the problems that a slow engine gets
REFINING = 20_000  # hops
TOLERANCE = 1e-9  # relative error of a simulated time: starts are multiples of a quantum


class Wrong(Exception):
    """An answer is wrong; the message says why."""


class Case:
    """A problem and its bound, which all engines share."""

    def __init__(self, seed: int, tiny: bool) -> None:
        self.problem = problem(seed, tiny=tiny)

    @cached_property
    def bound(self) -> tacos.Bound:
        return tacos.bound(self.problem.topology, self.problem.collective)


def check(case: Case, engine: str, random: Random, folder: Path) -> str:
    """Run an engine on a problem and check its answer. Return the outcome, or raise."""
    topology, collective = case.problem.topology, case.problem.collective
    applies = not obstacle(engine, topology, collective)
    if random.random() >= (SHARES.get(engine, 1.0) if applies else SHARE_INAPPLICABLE):
        return "left out"
    limit: tacos.Bound | None = case.bound
    if random.random() < SHARE_OPEN and topology.npus <= 8:
        collective, limit = opened(collective), None
    options: dict[str, Any] = {**RAW, **chosen(engine)}
    try:
        schedule = tacos.synthesize(
            topology, collective, engine=engine, known_bound=limit, **options
        )
    except (ValueError, tacos.TacosError) as error:
        if applies and not (unaware(engine) and isinstance(error, InfeasibleError)):
            raise
        return "refused"
    if rejected := schedule.rejected:
        raise Wrong("; ".join(rejected))
    examine(schedule)
    if limit is None:
        limit = tacos.bound(topology, schedule.collective)
    if schedule.time_ps < limit.time_ps:
        raise Wrong(f"takes {schedule.time_ps} ps, the bound is {limit.time_ps} ps")
    simulated(schedule)
    lowered(schedule, random)
    if random.random() < SHARE_REFINED:
        better = tacos.refine(schedule, hops=REFINING)
        examine(better, "refined, it")
        if better.time_ps > schedule.time_ps:
            raise Wrong(f"refined, it takes {better.time_ps} ps instead of {schedule.time_ps} ps")
    if random.random() < SHARE_SAVED:
        saved(schedule, folder / "schedule.tacos")
    return "right"


def obstacle(engine: str, topology: tacos.Topology, collective: tacos.Collective) -> str:
    return "" if engine == "auto" else synth.ENGINES[engine].obstacle(topology, collective)


def unaware(engine: str) -> bool:
    """Whether an engine does not know of a network's faults, so that it may send over a dead link and fail."""
    return engine != "auto" and bool(synth.ENGINES[engine].unaware)


def chosen(engine: str) -> dict[str, Any]:
    """Options that keep a run short."""
    if engine == "auto":
        return {"effort": "fast"}
    known = synth.ENGINES[engine].options
    return {name: value for name, value in LIMITS.items() if name in known}


def is_exact(engine: str) -> bool:
    """Whether an engine takes seconds for more than a tiny problem."""
    return engine != "auto" and synth.ENGINES[engine].exact is not None


def opened(collective: tacos.Collective) -> tacos.Collective:
    """Return a small collective with its number of chunks left open, others unchanged."""
    if collective.chunks > 64 or any(part.kind == "custom" for part in collective.parts):
        return collective
    parts = [
        tacos._core.CollectivePart(part.kind, part.size, chunks=0, group=part.group, root=part.root)
        if len(part.group) and not part.kind.endswith("_v")
        else part
        for part in collective.parts
    ]
    return tacos.Collective(collective.npus, parts)


def examine(subject: Any, name: str = "it") -> None:
    report = tacos.verify(subject, threads=1)
    if not report.ok:
        shown = "; ".join(map(str, report.violations[:3]))
        raise Wrong(f"{name} has {report.found} violations: {shown}")
    if not report.consistent:
        raise Wrong(f"{name} may leave NPUs with different bits: {report.difference}")


def simulated(schedule: tacos.Schedule) -> None:
    """Check that a schedule, simulated at its own times, takes its own time."""
    exact = tacos.simulate(schedule, timing="schedule", record=False)
    if abs(exact.time_s - schedule.time_s) > TOLERANCE * schedule.time_s:
        raise Wrong(f"simulated at its own times, it takes {exact.time_s}, not {schedule.time_s} s")


def lowered(schedule: tacos.Schedule, random: Random) -> None:
    """Lower a schedule and lift it again; only what no program can express may be refused."""
    collective = schedule.collective
    unequal = {"all_to_all_v", "send_recv", "custom"}
    named = any(part.kind not in unequal for part in collective.parts)
    trees = {1, 2} & set(schedule.routes.kinds[schedule.lane_route].tolist())
    sayable = not trees and not (named and (collective.chunk_bytes() == 0).any())
    try:
        program = tacos.lower(schedule, in_place=random.random() < 0.5)
    except ValueError:
        if sayable:
            raise
        return
    examine(program, "its program")
    if any(part.kind not in unequal for part in collective.parts) and not sayable:
        raise Wrong("was lowered although no program can say it")
    if (collective.chunk_bytes() == 0).any():
        return
    again = tacos.lift(program, schedule.topology)
    examine(again, "lifted again, it")


def saved(schedule: tacos.Schedule, path: Path) -> None:
    tacos.save(schedule, path)
    if tacos.load(path) != schedule:
        raise Wrong("a file holds another schedule than was saved")


# --- many runs ----------------------------------------------------------------------------------


@dataclass
class Failure:
    """A case to run again."""

    seed: int
    engine: str
    what: str

    def __str__(self) -> str:
        case = problem(self.seed, tiny=is_exact(self.engine))
        again = f"python -m tests.fuzz --seed {self.seed} --problems 1 --engines {self.engine}"
        return f"FAILURE: {self.engine}, seed {self.seed}: {self.what}\n  {again}\n{case.text}"


@dataclass
class Result:
    """The outcome of many runs.

    Attributes:
        counts: Runs per engine and outcome.
        failures: The cases that failed.
        slowest: Seconds, engine and seed of the slowest run.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    slowest: tuple[float, str, int] = (0.0, "", -1)

    @property
    def runs(self) -> int:
        return sum(n for (_, how), n in self.counts.items() if how != "left out")

    def add(self, other: Result) -> None:
        self.counts += other.counts
        self.failures += other.failures
        self.slowest = max(self.slowest, other.slowest)

    def __str__(self) -> str:
        engines = sorted({engine for engine, _ in self.counts})
        rows = [
            f"  {engine:20} {self.counts[engine, 'right']:8} right {self.counts[engine, 'refused']:6} "
            f"refused {sum(f.engine == engine for f in self.failures):4} failures"
            for engine in engines
        ]
        seconds, engine, seed = self.slowest
        head = f"{self.runs} runs, {len(self.failures)} failures; the slowest took {seconds:.1f} s"
        return "\n".join([f"{head} ({engine}, seed {seed})", *rows])


def run_problem(seed: int, engines: list[str], folder: Path, running: Any = None) -> Result:
    """Run all engines on the problem with this seed."""
    result = Result()
    cases = cache(lambda tiny: Case(seed, tiny))
    for engine in engines:
        if running is not None:
            running.value = engines.index(engine)
        begin = time.monotonic()
        try:
            how = check(cases(is_exact(engine)), engine, Random(f"{engine} {seed}"), folder)
        except Exception as error:  # noqa: BLE001, any exception is a finding
            how = "failure"
            what = str(error) if isinstance(error, Wrong) else _last_lines(error)
            result.failures.append(Failure(seed, engine, what))
        result.counts[engine, how] += 1
        result.slowest = max(result.slowest, (time.monotonic() - begin, engine, seed))
    return result


def _last_lines(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} in {where}: {error}"


class _Worker:
    """A process that runs problems; if it dies, its current problem and engine are known."""

    def __init__(self, context: Any, engines: list[str]) -> None:
        self.engines = engines
        self.ours, theirs = context.Pipe()
        self.running = context.Value("i", 0, lock=False)
        self.process = context.Process(target=_TARGET, args=(theirs, engines, self.running))
        self.process.daemon = True
        self.process.start()
        theirs.close()
        self.seeds = range(0)
        self.dead = False

    def give(self, seeds: range) -> None:
        self.seeds = seeds
        self.ours.send(seeds)

    def take(self) -> Result:
        """Return the result of the next problem, or a failure if it killed the process."""
        seed, self.seeds = self.seeds[0], self.seeds[1:]
        try:
            found: Result = self.ours.recv()
        except EOFError:
            self.dead = True
            self.process.join()
            engine = self.engines[self.running.value]
            what = f"the process died with exit code {self.process.exitcode}"
            return Result(Counter({(engine, "failure"): 1}), [Failure(seed, engine, what)])
        return found


def _work(pipe: Any, engines: list[str], running: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        while True:
            try:
                seeds = pipe.recv()
            except (EOFError, KeyboardInterrupt):
                return
            for seed in seeds:
                pipe.send(run_problem(seed, engines, Path(folder), running))


_TARGET = _work


def hunt(
    *,
    seed: int = 0,
    runs: int | None = None,
    problems: int | None = None,
    seconds: float | None = None,
    jobs: int = 1,
    engines: list[str] | None = None,
    report: Any = None,
) -> Result:
    """Run engines on the problems `seed`, `seed` + 1, …

    Args:
        seed: The first problem.
        runs, problems, seconds: Limits; stop at the first one reached.
        jobs: Number of processes.
        engines: Names of engines; all fast ones if not given.
        report: Called with each failure, and every 30 s with the number of runs so far.
    """
    names = FAST if engines is None else engines
    context = multiprocessing.get_context("spawn")
    result, block = Result(), 1 if problems == 1 else 8
    end = None if seconds is None else time.monotonic() + seconds
    workers = [_Worker(context, names) for _ in range(jobs)]
    following = seed
    last = None if problems is None else seed + problems
    told = time.monotonic()

    def over() -> bool:
        return (
            (last is not None and following >= last)
            or (runs is not None and result.runs >= runs)
            or (end is not None and time.monotonic() > end)
        )

    while True:
        for i in range(jobs):
            if workers[i].dead:
                rest = workers[i].seeds
                workers[i] = _Worker(context, names)
                if len(rest):
                    workers[i].give(rest)
            if not len(workers[i].seeds) and not over():
                upto = following + block if last is None else min(following + block, last)
                workers[i].give(range(following, upto))
                following = upto
        busy = {worker.ours: worker for worker in workers if len(worker.seeds)}
        if not busy:
            break
        for pipe in multiprocessing.connection.wait(list(busy)):
            found = busy[pipe].take()
            result.add(found)
            for failure in found.failures:
                if report:
                    report(failure)
        if report and time.monotonic() - told > 30:
            told = time.monotonic()
            report(f"{result.runs} runs, up to problem {following}")
    for worker in workers:
        worker.ours.close()
        worker.process.join()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=0, help="the first problem")
    parser.add_argument("--runs", type=int, help="stop after this many runs of engines")
    parser.add_argument("--problems", type=int, help="stop after this many problems")
    parser.add_argument("--seconds", type=float, help="stop after this many seconds")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--engines", default=",".join(FAST), help="names, separated by commas")
    given = parser.parse_args()
    engines = given.engines.split(",")
    for name in engines:
        if name not in (*synth.ENGINES, "auto"):
            parser.error(
                f"unknown engine {name!r}; expected auto or one of {', '.join(synth.ENGINES)}"
            )
    if given.runs is given.problems is given.seconds is None:
        given.runs = 10_000
    result = hunt(
        seed=given.seed,
        runs=given.runs,
        problems=given.problems,
        seconds=given.seconds,
        jobs=given.jobs,
        engines=engines,
        report=lambda what: print(what, flush=True),  # noqa: T201
    )
    print(result)  # noqa: T201
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
