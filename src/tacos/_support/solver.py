"""Linear and integer programs, solved by HiGHS. All programs of this package go through this module.

A program is columns (variables) and rows (constraints): minimise ``cost @ x`` where ``row_lower <= A @ x <= row_upper`` and
``lower <= x <= upper``. :func:`solve` takes one program; a :class:`Session` keeps one and adds rows to it, as cutting
planes do. HiGHS is imported when it is first used.

HiGHS looks for an interrupt when it calls back, which may take it many seconds. So it runs in a thread that can be left
behind: Ctrl-C and time limits get through at once. Such a thread must not come back to Python while the
interpreter ends: Python would unwind the thread's stack, and C++ functions that promise not to throw would abort the process.
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

__all__ = ["LinearProgram", "Session", "Solution", "highs", "running", "solve"]

_LOOK_S = 0.05
"""Seconds between looks at the clock and at what the caller wants."""
_GRACE_S = 2.0
"""Seconds after the deadline in which HiGHS should notice it by itself."""
_PARTING_S = 10.0
"""Seconds that the end of the interpreter waits for HiGHS to call back or to stop; it calls every few milliseconds, but not
while it simplifies a program, nor often on a busy machine."""
_RETURN_S = 0.5
"""Seconds for a callback that has begun to return, also on a busy machine."""
_TOLERANCES = ("primal_feasibility_tolerance", "dual_feasibility_tolerance")
_FEASIBLE = 2
"""HiGHS's ``primal_solution_status`` where there is a feasible solution."""
_parting = threading.Event()
"""Whether the interpreter is about to end."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """What is known of a run of HiGHS that may go on. Events say it, since Python 3.11 takes a thread for ended once
    Ctrl-C has interrupted its `join`.

    Attributes:
        solver: HiGHS.
        stop: Whether it should stop.
        done: Whether it has come back.
        quiet: Whether it has come back, or stays in a callback for good.
    """

    solver: Any
    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    quiet: threading.Event = field(default_factory=threading.Event)

    def look(self, event: Any) -> None:
        """What HiGHS calls now and then."""
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
    """A linear program, or an integer program where `integer` says so.

    Attributes:
        cost: What each column costs; the sum is minimised.
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
        """Put a program together.

        Args:
            cost: One number per column.
            entries: Rows, columns and values of the matrix, in any order. Entries at one place are added up.
            row_lower, row_upper: Limits of the rows, at least one of them an array of their number.
            lower, upper: Limits of the columns; not negative if not given.
            integer: Which columns take whole values only; none if not given.

        Raises:
            ValueError: An array has another length than the columns or rows, an entry is outside the matrix, or not finite.
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
        """How many columns it has."""
        return len(self.cost)


@dataclass(frozen=True, slots=True)
class Solution:
    """What the solver says of a program.

    Attributes:
        status: ``"optimal"``, ``"feasible"`` (it stopped before it could prove more), ``"infeasible"``, ``"unbounded"``, or
            ``"unknown"`` (it stopped without a solution).
        objective: What the solution costs.
        values: Value of each column; None without a solution.
        duals: For each row of a linear program, how much the optimum grows per unit of the row's active limit; None for an
            integer program.
        reduced_costs: The same for the columns and their limits.
        bound: No solution costs less.
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
        nodes: How many nodes of the search tree to look at, at most; on any machine the same.
        seed, threads: For HiGHS; the answer may depend on both.
        tolerance: By how much rows and reduced costs of a linear program may be off; 1e-7 if not given, 1e-10 at best.
        start: Values of the columns to begin with.
        progress: Called now and then with the share of the time that is gone; what it raises ends the
            search and is raised here.

    >>> line = LinearProgram(cost=[3, 1], entries=([0, 0], [0, 1], [1, 1]), row_lower=[2], upper=[9, 1.5])
    >>> found = solve(line)
    >>> found.objective, found.duals.tolist(), found.reduced_costs.tolist()
    (3.0, [3.0], [0.0, -2.0])
    """
    session = Session(program, nodes=nodes, seed=seed, threads=threads, tolerance=tolerance)
    return session.solve(deadline=deadline, start=start, progress=progress)


class Session:
    """A program that is solved again and again, with rows added in between; HiGHS goes on from the last solution.

    >>> below = Session(LinearProgram(cost=[-1], entries=([], [], []), upper=[10], row_upper=[]))
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
        """Give a row other limits.

        >>> below = Session(LinearProgram(cost=[-1], entries=([0], [0], [1]), row_upper=[4]))
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
    """Return whether HiGHS is still at work in a thread that was left behind, by any caller in this process."""
    return not all(run.done.is_set() for run in _begun)


def highs() -> Any:
    """Import HiGHS, which takes a while, and return its module."""
    try:
        import highspy
    except ImportError as error:  # how a compiled module reports Ctrl-C while it is loaded
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    return highspy


def _run(solver: Any, *, until: float, tick: Callable[[float], object]) -> bool:
    """Run HiGHS so that Ctrl-C gets through at once, and return whether it has ended.

    Args:
        solver: With a program.
        until: When to leave it behind, by ``time.monotonic()``. It stops at its next look.
        tick: Called every 50 ms with the time; what it raises ends the search and is raised here.
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
    """Never return: a thread of HiGHS that asks for the interpreter when it ends would be unwound, and abort the process."""
    lock = threading.Lock()
    while True:
        lock.acquire()


@atexit.register
def _part() -> None:
    """Wait until threads that were left behind have ended or stay where they are; keep others from calling back."""
    _parting.set()
    deadline = time.monotonic() + _PARTING_S
    for run in _begun:
        run.quiet.wait(max(deadline - time.monotonic(), 0.0))
    left = [run for run in _begun if not run.done.is_set()]
    for run in left:  # HiGHS may have threads of its own that call back
        run.solver.clearCallbacks()
    if left:
        time.sleep(_RETURN_S)


def _merged(
    row: ArrayLike, column: ArrayLike, value: ArrayLike, *, rows: int, columns: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """Sort the entries by column and row, and add up those at one place; zeros are left out."""
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
    """Refuse what HiGHS refuses, which is a mistake of the caller."""
    if status == highspy.HighsStatus.kError:
        raise ValueError("HiGHS refuses the linear program: a limit or a cost is not a number")
