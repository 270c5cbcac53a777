"""HiGHS: a model in, a solution out, with a limit on time and Ctrl-C.

HiGHS looks for an interrupt when it calls back, which may take it many seconds. So it runs in a thread
that :func:`solve` can leave behind. Such a thread must not come back to Python while the interpreter ends:
Python would unwind the thread's stack, and C++ functions that promise not to throw would abort the process.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tacos.errors import TacosError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos.synth.milp.model import Model

__all__ = ["Answer", "highs", "run", "running", "solve"]

_LOOK = 0.05
_GRACE = 2.0
"""Seconds after the deadline in which HiGHS should notice it by itself."""
_PARTING = 1.0
"""Seconds that the end of the interpreter waits for HiGHS to stop."""
_RETURN = 0.05
"""Seconds for a callback that has begun to return."""
_begun: list[tuple[threading.Event, Any]] = []
"""Whether HiGHS has come back, for each solver that may still run. An event says it, since Python 3.11
takes a thread for ended once Ctrl-C has interrupted its `join`."""


@dataclass(frozen=True)
class Answer:
    """What a solver says: a solution, the proof that there is none, or nothing in time."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    solution: NDArray[np.float64] | None = None
    bound: float = -np.inf
    """No solution costs less."""


def solve(
    model: Model,
    *,
    deadline: float,
    nodes: int | None = None,
    seed: int = 0,
    threads: int = 1,
    warm: NDArray[np.float64] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Answer:
    """Solve a model with HiGHS.

    Args:
        model: What to solve.
        deadline: When to stop, by ``time.monotonic()``.
        nodes: Of the search tree, after which to stop; on any machine the same.
        seed, threads: For HiGHS; the answer may depend on both.
        warm: A solution to begin with.
        progress: Called now and then with the share of the time that is gone; what it raises ends the
            search and is raised here.

    Raises:
        TacosError: HiGHS is not installed.

    >>> import tacos
    >>> from tacos.synth.milp.model import build
    >>> from tacos.synth.milp.problem import hops_of, in_steps
    >>> ring = tacos.topology.ring(4)
    >>> problem = in_steps(ring, tacos.collective.broadcast(ring, 1, chunks=1), hops_of(ring))
    >>> solve(build(problem, 2), deadline=time.monotonic() + 10).status
    'optimal'
    """
    highspy = highs()
    begin = time.monotonic()
    if deadline <= begin:
        return Answer("unknown")
    solver = highspy.Highs()
    for option, value in {
        "output_flag": False,
        "threads": threads,
        "random_seed": seed % 2**31,
        "time_limit": deadline - begin,
        "mip_rel_gap": 0.0,
        **({} if nodes is None else {"mip_max_nodes": nodes}),
    }.items():
        solver.setOptionValue(option, value)
    solver.passModel(
        len(model.cost),
        len(model.row_upper),
        len(model.entry),
        int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        model.cost,
        model.lower,
        model.upper,
        model.row_lower,
        model.row_upper,
        np.searchsorted(model.entry_column, np.arange(len(model.cost) + 1)).astype(np.int32),
        model.entry_row.astype(np.int32),
        model.entry,
        model.integer.astype(np.int32),
    )
    if warm is not None:
        start = highspy.HighsSolution()
        start.col_value = warm
        solver.setSolution(start)
    found: list[NDArray[np.float64]] = []

    def keep(event: Any) -> None:
        found.append(np.array(event.data_out.mip_solution))

    def share(now: float) -> None:
        if progress is not None and now < deadline:
            progress((now - begin) / (deadline - begin))

    solver.cbMipImprovingSolution += keep
    if not run(solver, until=deadline + _GRACE, tick=share):
        return Answer("feasible", found[-1]) if found else Answer("unknown")
    info, status = solver.getInfo(), solver.getModelStatus()
    bound = float(info.mip_dual_bound)
    if status == highspy.HighsModelStatus.kInfeasible:
        return Answer("infeasible")
    if info.primal_solution_status != 2:  # 2: there is a feasible one
        return Answer("unknown", bound=bound)
    solution = np.array(solver.getSolution().col_value)
    proven = status == highspy.HighsModelStatus.kOptimal
    return Answer("optimal" if proven else "feasible", solution, bound)


def run(
    solver: Any, *, until: float = math.inf, tick: Callable[[float], object] | None = None
) -> bool:
    """Run HiGHS so that Ctrl-C gets through at once; returns whether it has ended.

    Args:
        solver: With a model.
        until: When to leave it behind, by ``time.monotonic()``. It stops at its next look.
        tick: Called every 50 ms with the time; what it raises ends the search and is raised here.
    """
    done, stop = threading.Event(), threading.Event()

    def look(event: Any) -> None:
        if stop.is_set():
            event.interrupt()

    def work() -> None:
        try:
            solver.run()
        finally:
            done.set()

    solver.cbMipInterrupt += look
    solver.cbSimplexInterrupt += look
    _begun[:] = [one for one in _begun if not one[0].is_set()]
    _begun.append((done, solver))
    try:
        threading.Thread(target=work, daemon=True).start()
        while not done.wait(_LOOK) and (now := time.monotonic()) < until:
            if tick is not None:
                tick(now)
    finally:
        stop.set()
    return done.is_set()


def running() -> bool:
    """Whether HiGHS is still at work in a thread that was left behind."""
    return not all(done.is_set() for done, _ in _begun)


@atexit.register
def _part() -> None:
    """Wait for threads that were left behind, then keep them from calling back."""
    deadline = time.monotonic() + _PARTING
    for done, _ in _begun:
        done.wait(max(deadline - time.monotonic(), 0.0))
    for done, solver in _begun:
        if not done.is_set():
            solver.clearCallbacks()
    if running():
        time.sleep(_RETURN)


def highs() -> Any:
    """The module of HiGHS, or a TacosError that says how to get it."""
    try:
        import highspy
    except ModuleNotFoundError:
        raise TacosError('the milp engine needs HiGHS: pip install "tacos-ccl[milp]"') from None
    except ImportError as error:  # how a compiled module reports Ctrl-C while it is loaded
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    return highspy
