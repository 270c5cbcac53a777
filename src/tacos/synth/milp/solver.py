"""HiGHS: a model in, a solution out, with a limit on time and Ctrl-C."""

from __future__ import annotations

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

__all__ = ["Answer", "highs", "solve"]

_LOOK = 0.05
_GRACE = 2.0
"""Seconds after the deadline in which HiGHS should notice it by itself."""


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
    stop = threading.Event()
    found: list[NDArray[np.float64]] = []

    def look(event: Any) -> None:
        if stop.is_set():
            event.interrupt()

    def keep(event: Any) -> None:
        found.append(np.array(event.data_out.mip_solution))

    solver.cbMipInterrupt += look
    solver.cbSimplexInterrupt += look
    solver.cbMipImprovingSolution += keep
    # HiGHS may not look up for many seconds. Whoever waits for a thread can leave it behind: it ends at
    # its next look, and keeps nothing that is needed here.
    worker = threading.Thread(target=solver.run, daemon=True)
    worker.start()
    try:
        while worker.is_alive() and time.monotonic() < deadline + _GRACE:
            worker.join(_LOOK)
            now = time.monotonic()
            if progress is not None and now < deadline:
                progress((now - begin) / (deadline - begin))
    finally:
        stop.set()
    if worker.is_alive():
        return Answer("feasible", found[-1]) if found else Answer("unknown")
    info, status = solver.getInfo(), solver.getModelStatus()
    bound = float(info.mip_dual_bound)
    if status == highspy.HighsModelStatus.kInfeasible:
        return Answer("infeasible")
    if info.primal_solution_status != 2:  # 2: there is a feasible one
        return Answer("unknown", bound=bound)
    solution = np.array(solver.getSolution().col_value)
    done = status == highspy.HighsModelStatus.kOptimal
    return Answer("optimal" if done else "feasible", solution, bound)


def highs() -> Any:
    """The module of HiGHS, or a TacosError that says how to get it."""
    try:
        import highspy
    except ImportError:
        raise TacosError('the milp engine needs HiGHS: pip install "tacos-ccl[milp]"') from None
    return highspy
