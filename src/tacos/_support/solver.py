"""Linear and integer programs, solved by HiGHS. All programs of this package go through this module.

A program is columns (variables) and rows (constraints): minimise ``cost @ x`` where ``row_lower <= A @ x <= row_upper`` and
``lower <= x <= upper``. :func:`solve` takes one program; a :class:`IncrementalSolver` keeps one and adds rows to it, as cutting
planes do. HiGHS is imported when it is first used.

HiGHS can be interrupted only when it calls back, which may take many seconds. So it runs in a thread that can be abandoned:
Ctrl-C and time limits take effect at once. An abandoned thread must not return to Python while the interpreter exits:
Python would unwind the thread's stack, and C++ functions marked noexcept would abort the process.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Progress: TypeAlias = Callable[[float], object]

__all__ = ["IncrementalSolver", "LinearProgram", "Solution", "highs", "running", "solve"]

_LOOK_S = 0.05
"""Seconds between checks of the clock and of the caller's progress function."""
_GRACE_S = 2.0
"""Seconds after the deadline in which HiGHS should notice it by itself."""
_PARTING_S = 10.0
"""Seconds that the exit of the interpreter waits for HiGHS to call back or to stop. It calls back every few milliseconds,
but not while it presolves, and less often on a busy machine."""
_RETURN_S = 0.5
"""Seconds for a callback that has begun to return, also on a busy machine."""
_TOLERANCES = ("primal_feasibility_tolerance", "dual_feasibility_tolerance")
_FEASIBLE = 2
"""HiGHS's ``primal_solution_status`` of a feasible solution."""
_parting = threading.Event()
"""Whether the interpreter is about to exit."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """The state of a run of HiGHS that may have been abandoned. It uses events, since Python 3.11 considers a thread
    ended once Ctrl-C has interrupted its `join`.

    Attributes:
        solver: HiGHS.
        stop: Whether it should stop.
        done: Whether it has returned.
        quiet: Whether it has returned, or stays in a callback forever.
    """

    solver: Any
    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    quiet: threading.Event = field(default_factory=threading.Event)

    def look(self, event: Any) -> None:
        """The callback of HiGHS."""
        if _parting.is_set():
            self.quiet.set()
            _stay()
        if self.stop.is_set():
            event.interrupt()

    def go(self) -> None:
        """Run HiGHS."""
        try:
            self.solver.run()
        finally:
            self.done.set()
            self.quiet.set()


_begun: list[_Run] = []


class LinearProgram:
    """A linear program, or an integer program in the columns of `integer`.

    Attributes:
        cost: Cost of each column; the total is minimised.
        lower, upper: The limits of each column.
        integer: Whether each column takes whole values only.
        row_lower, row_upper: The limits of each row.
        begin, row, value: The matrix column by column: the entries of column j are ``begin[j]:begin[j + 1]``.

    >>> most = LinearProgram(cost=[-1, -2], entries=([0, 0, 1], [0, 1, 1], [1, 1, 1]), row_upper=[4, 3])
    >>> solve(most).values.tolist()              # x + y <= 4, y <= 3
    [1.0, 3.0]
    """

    __slots__ = (
        "begin",
        "cost",
        "integer",
        "lower",
        "row",
        "row_lower",
        "row_upper",
        "upper",
        "value",
    )

    def __init__(
        self,
        *,
        cost: ArrayLike,
        entries: tuple[ArrayLike, ArrayLike, ArrayLike],
        row_lower: ArrayLike = -np.inf,
        row_upper: ArrayLike = np.inf,
        lower: ArrayLike = 0.0,
        upper: ArrayLike = np.inf,
        integer: ArrayLike = False,
    ) -> None:
        """Build a program.

        Args:
            cost: One number per column.
            entries: Rows, columns and values of the matrix, in any order. Entries at the same position are added.
            row_lower, row_upper: Limits of the rows; at least one of them is an array with an entry per row.
            lower, upper: Limits of the columns; by default columns are not negative.
            integer: Which columns take whole values only; none if not given.

        Raises:
            ValueError: The length of an array does not match the columns or rows, or an entry is outside the matrix or not finite.
        """
        self.cost = np.asarray(cost, np.float64)
        columns = len(self.cost)
        self.lower = np.broadcast_to(np.asarray(lower, np.float64), columns)
        self.upper = np.broadcast_to(np.asarray(upper, np.float64), columns)
        self.integer = np.broadcast_to(np.asarray(integer, bool), columns)
        self.row_lower, self.row_upper = np.broadcast_arrays(
            np.atleast_1d(np.asarray(row_lower, np.float64)),
            np.atleast_1d(np.asarray(row_upper, np.float64)),
        )
        self.row, column, self.value = _merged(*entries, rows=len(self.row_upper), columns=columns)
        self.begin = np.searchsorted(column, np.arange(columns + 1)).astype(np.int32)

    @property
    def columns(self) -> int:
        """The number of columns."""
        return len(self.cost)


@dataclass(frozen=True, slots=True)
class Solution:
    """The result of the solver.

    Attributes:
        status: ``"optimal"``, ``"feasible"`` (it stopped before it could prove more), ``"infeasible"``, ``"unbounded"``, or
            ``"unknown"`` (it stopped without a solution).
        objective: Cost of the solution.
        values: Value of each column; None without a solution.
        duals: For each row of a linear program, how much the optimum grows per unit of the row's active limit; None for an
            integer program.
        reduced_costs: The same for the columns and their limits.
        bound: Lower bound on the cost of any solution.
    """

    status: Literal["optimal", "feasible", "infeasible", "unbounded", "unknown"]
    objective: float = math.nan
    values: Floats | None = None
    duals: Floats | None = None
    reduced_costs: Floats | None = None
    bound: float = -math.inf


def solve(
    program: LinearProgram,
    *,
    deadline: float | None = None,
    nodes: int | None = None,
    seed: int = 0,
    threads: int = 1,
    tolerance: float | None = None,
    start: Floats | None = None,
    progress: Progress | None = None,
) -> Solution:
    """Solve a program.

    Args:
        program: What to solve.
        deadline: When to stop, by ``time.monotonic()``.
        nodes: Largest number of nodes of the search tree, independent of the machine.
        seed, threads: Options of HiGHS; the answer may depend on both.
        tolerance: Allowed error of rows and reduced costs of a linear program; 1e-7 by default, at least 1e-10.
        start: Values of the columns to begin with.
        progress: Called from time to time with the share of the time that has passed; an exception that it raises ends
            the search and is raised here.

    >>> line = LinearProgram(cost=[3, 1], entries=([0, 0], [0, 1], [1, 1]), row_lower=[2], upper=[9, 1.5])
    >>> found = solve(line)
    >>> found.objective, found.duals.tolist(), found.reduced_costs.tolist()
    (3.0, [3.0], [0.0, -2.0])
    """
    solver = IncrementalSolver(
        program, nodes=nodes, seed=seed, threads=threads, tolerance=tolerance
    )
    return solver.solve(deadline=deadline, start=start, progress=progress)


class IncrementalSolver:
    """A program that is solved repeatedly, with rows added in between; HiGHS continues from the last solution.

    >>> below = IncrementalSolver(LinearProgram(cost=[-1], entries=([], [], []), upper=[10], row_upper=[]))
    >>> below.solve().values.tolist()
    [10.0]
    >>> below.add_rows(([0], [0], [2]), row_upper=[7])           # 2 x <= 7
    >>> below.solve().values.tolist()
    [3.5]
    """

    def __init__(
        self,
        program: LinearProgram,
        *,
        nodes: int | None = None,
        seed: int = 0,
        threads: int = 1,
        tolerance: float | None = None,
    ) -> None:
        """Pass a program to HiGHS; the arguments are those of :func:`solve`."""
        highspy = highs()
        self._columns, self._integer = program.columns, bool(program.integer.any())
        self._solver = solver = highspy.Highs()
        self._found: list[Floats] = []
        for option, value in {
            "output_flag": False,
            "threads": threads,
            "random_seed": seed % 2**31,
            "mip_rel_gap": 0.0,
            **({} if nodes is None else {"mip_max_nodes": nodes}),
            **({} if tolerance is None else dict.fromkeys(_TOLERANCES, tolerance)),
        }.items():
            solver.setOptionValue(option, value)
        status = solver.passModel(
            program.columns,
            len(program.row_upper),
            len(program.value),
            int(highspy.MatrixFormat.kColwise),
            int(highspy.ObjSense.kMinimize),
            0.0,
            program.cost,
            program.lower,
            program.upper,
            program.row_lower,
            program.row_upper,
            program.begin,
            program.row,
            program.value,
            program.integer.astype(np.int32),
        )
        _check(highspy, status)
        solver.cbMipImprovingSolution += self._keep

    def add_rows(
        self,
        entries: tuple[ArrayLike, ArrayLike, ArrayLike],
        *,
        row_lower: ArrayLike = -np.inf,
        row_upper: ArrayLike = np.inf,
    ) -> None:
        """Add rows, such as cuts; the arguments are those of :class:`LinearProgram`, rows counted from 0."""
        lower, upper = np.broadcast_arrays(
            np.atleast_1d(np.asarray(row_lower, np.float64)),
            np.atleast_1d(np.asarray(row_upper, np.float64)),
        )
        # HiGHS takes new rows row by row.
        column, row, value = _merged(
            entries[1], entries[0], entries[2], rows=self._columns, columns=len(upper)
        )
        begin = np.searchsorted(row, np.arange(len(upper))).astype(np.int32)
        status = self._solver.addRows(len(upper), lower, upper, len(value), begin, column, value)
        _check(highs(), status)

    def limit_row(self, row: int, lower: float, upper: float) -> None:
        """Change the limits of a row.

        >>> below = IncrementalSolver(LinearProgram(cost=[-1], entries=([0], [0], [1]), row_upper=[4]))
        >>> below.solve().objective
        -4.0
        >>> below.limit_row(0, 0.0, 3.0)
        >>> below.solve().objective
        -3.0
        """
        _check(highs(), self._solver.changeRowBounds(row, lower, upper))

    def solve(
        self,
        *,
        deadline: float | None = None,
        start: Floats | None = None,
        progress: Progress | None = None,
    ) -> Solution:
        """Solve the program as it is now; the arguments are those of :func:`solve`."""
        highspy, solver, begin = highs(), self._solver, time.monotonic()
        if deadline is not None:
            if deadline <= begin:
                return Solution("unknown")
            # HiGHS counts the time of all runs.
            solver.setOptionValue("time_limit", solver.getRunTime() + deadline - begin)
        if start is not None:
            first = highspy.HighsSolution()
            first.col_value = start
            solver.setSolution(first)
        self._found.clear()

        def tick(now: float) -> None:
            if progress is not None and (deadline is None or now < deadline):
                progress(0.0 if deadline is None else (now - begin) / (deadline - begin))

        until = math.inf if deadline is None else deadline + _GRACE_S
        if not _run(solver, until=until, tick=tick):
            return (
                Solution("feasible", values=self._found[-1]) if self._found else Solution("unknown")
            )
        return self._solution(highspy)

    def _keep(self, event: Any) -> None:
        self._found.append(np.array(event.data_out.mip_solution))

    def _solution(self, highspy: Any) -> Solution:
        solver, statuses = self._solver, highspy.HighsModelStatus
        info, status = solver.getInfo(), solver.getModelStatus()
        bound = float(info.mip_dual_bound) if self._integer else -math.inf
        if status == statuses.kInfeasible:
            return Solution("infeasible")
        if status == statuses.kUnbounded:
            return Solution("unbounded")
        if info.primal_solution_status != _FEASIBLE:
            return Solution("unknown", bound=bound)
        found, proven = solver.getSolution(), status == statuses.kOptimal
        objective = float(info.objective_function_value)
        return Solution(
            "optimal" if proven else "feasible",
            objective,
            np.array(found.col_value),
            None if self._integer else np.array(found.row_dual),
            None if self._integer else np.array(found.col_dual),
            objective if proven and not self._integer else bound,
        )


def running() -> bool:
    """Return whether HiGHS is still running in an abandoned thread of this process."""
    return not all(run.done.is_set() for run in _begun)


def highs() -> Any:
    """Import HiGHS, which takes a while, and return its module."""
    try:
        import highspy
    except ImportError as error:  # a compiled module reports Ctrl-C during its import in this way
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    return highspy


def _run(solver: Any, *, until: float, tick: Callable[[float], object]) -> bool:
    """Run HiGHS so that Ctrl-C takes effect at once, and return whether it has ended.

    Args:
        solver: HiGHS with a program.
        until: When to abandon it, by ``time.monotonic()``. It stops at its next callback.
        tick: Called every 50 ms with the time; an exception that it raises ends the search and is raised here.
    """
    run = _Run(solver)
    look = run.look
    solver.cbMipInterrupt += look
    solver.cbSimplexInterrupt += look
    _begun[:] = [one for one in _begun if not one.done.is_set()]
    _begun.append(run)
    try:
        threading.Thread(target=run.go, daemon=True).start()
        while not run.done.wait(_LOOK_S) and (now := time.monotonic()) < until:
            tick(now)
    finally:
        run.stop.set()
    if run.done.is_set():
        solver.cbMipInterrupt -= look
        solver.cbSimplexInterrupt -= look
    return run.done.is_set()


def _stay() -> None:
    """Never return: entering the interpreter during its exit would unwind the thread and abort the process."""
    lock = threading.Lock()
    while True:
        lock.acquire()


@atexit.register
def _part() -> None:
    """Wait until abandoned threads have ended or are parked in a callback; prevent others from calling back."""
    _parting.set()
    deadline = time.monotonic() + _PARTING_S
    for run in _begun:
        run.quiet.wait(max(deadline - time.monotonic(), 0.0))
    left = [run for run in _begun if not run.done.is_set()]
    for run in left:  # HiGHS may have its own threads that call back
        run.solver.clearCallbacks()
    if left:
        time.sleep(_RETURN_S)


def _merged(
    row: ArrayLike, column: ArrayLike, value: ArrayLike, *, rows: int, columns: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """Sort the entries by column and row, and add up those at the same position; zeros are left out."""
    at = np.asarray(row, np.int64), np.asarray(column, np.int64)
    values = np.broadcast_to(np.asarray(value, np.float64), len(at[0]))
    for name, places, count in (("row", at[0], rows), ("column", at[1], columns)):
        if len(places) and not 0 <= places.min() <= places.max() < count:
            worst = places[(places < 0) | (places >= count)][0]
            raise ValueError(f"an entry has {name} {worst}; the linear program has {count}")
    if not np.isfinite(values).all():
        raise ValueError(f"an entry is {values[~np.isfinite(values)][0]}; it must be finite")
    order = np.lexsort(at)
    r, c, v = at[0][order], at[1][order], values[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (r[1:] != r[:-1]) | (c[1:] != c[:-1])
    first = np.flatnonzero(fresh)
    total = np.add.reduceat(v, first) if len(first) else v
    kept = total != 0
    return r[first][kept].astype(np.int32), c[first][kept].astype(np.int32), total[kept]


def _check(highspy: Any, status: Any) -> None:
    """Raise an error if HiGHS refuses a call, which is a mistake of the caller."""
    if status == highspy.HighsStatus.kError:
        raise ValueError("HiGHS refuses the linear program: a limit or a cost is not a number")
