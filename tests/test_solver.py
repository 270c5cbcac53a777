"""Linear and integer programs: small ones with answers computed by hand."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tacos._support.solver import IncrementalSolver, LinearProgram, running, solve

pytestmark = pytest.mark.unsanitized


def test_duals_say_what_one_more_unit_of_a_limit_is_worth():
    """Products worth 5 and 4 from machines with 24 and 6 hours: 6x + 4y <= 24, x + 2y <= 6 gives x = 3, y = 1.5."""
    program = LinearProgram(
        cost=[-5, -4], entries=([0, 0, 1, 1], [0, 1, 0, 1], [6, 4, 1, 2]), row_upper=[24, 6]
    )
    found = solve(program)
    assert found.status == "optimal"
    assert found.values == pytest.approx([3, 1.5])
    assert found.objective == found.bound == pytest.approx(-21)
    assert found.duals == pytest.approx([-0.75, -0.5])
    assert found.reduced_costs == pytest.approx([0, 0])
    more = LinearProgram(
        cost=[-5, -4], entries=([0, 0, 1, 1], [0, 1, 0, 1], [6, 4, 1, 2]), row_upper=[25, 6]
    )
    assert solve(more).objective == pytest.approx(-21.75)


def test_a_column_at_its_limit_has_a_reduced_cost():
    found = solve(LinearProgram(cost=[1, -2], entries=([], [], []), row_upper=[], upper=[5, 5]))
    assert found.values == pytest.approx([0, 5])
    assert found.reduced_costs == pytest.approx([1, -2])


def test_entries_at_one_place_add_up_in_any_order():
    scattered = LinearProgram(
        cost=[-1], entries=([1, 0, 0], [0, 0, 0], [1, 1, 1]), row_upper=[6, 10]
    )
    assert scattered.value.tolist() == [2, 1]
    assert solve(scattered).values == pytest.approx([3])


def test_integer_columns_take_whole_values():
    """x + y <= 1.5 for two columns of weight one."""
    entries = [0, 0], [0, 1], [1, 1]
    relaxed = solve(LinearProgram(cost=[-1, -1], entries=entries, row_upper=[1.5]))
    whole = solve(LinearProgram(cost=[-1, -1], entries=entries, row_upper=[1.5], integer=True))
    assert (relaxed.objective, whole.objective) == pytest.approx((-1.5, -1))
    assert whole.duals is None
    assert whole.bound == pytest.approx(-1)


@pytest.mark.parametrize(
    ("limits", "status"),
    [({"row_upper": [1], "row_lower": [2]}, "infeasible"), ({"row_lower": [0]}, "unbounded")],
)
def test_programs_without_an_optimum_say_why(limits, status):
    found = solve(LinearProgram(cost=[-1], entries=([0], [0], [1]), **limits))
    assert found.status == status
    assert found.values is None


def test_cuts_close_in_on_a_convex_optimum():
    """The least x + 4/x is 4 at x = 2: tangents of 4/x bound it from below, and meet there."""
    solver = IncrementalSolver(
        LinearProgram(cost=[1, 1], entries=([], [], []), row_lower=[], lower=[0.1, 0])
    )
    below, x = 0.0, 0.1
    for _ in range(40):
        # y >= 8/x0 - 4/x0^2 x
        solver.add_rows(([0, 0], [0, 1], [4 / x**2, 1]), row_lower=[8 / x])
        found = solver.solve()
        assert found.objective >= below - 1e-9
        assert found.values is not None
        below, x = found.objective, float(found.values[0])
        if x + 4 / x - below < 1e-6:
            break
    assert below == pytest.approx(4, abs=1e-5)
    assert x == pytest.approx(2, abs=1e-2)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((0, 0, np.nan), r"^an entry is nan; it must be finite$"),
        ((1, 0, 1), r"^an entry has row 1; the linear program has 1$"),
        ((0, -1, 1), r"^an entry has column -1; the linear program has 1$"),
    ],
)
def test_wrong_entries_are_errors(entry, message):
    with pytest.raises(ValueError, match=message):
        LinearProgram(cost=[1], entries=tuple([one] for one in entry), row_upper=[1])


def test_a_deadline_in_the_past_asks_nothing(monkeypatch):
    # A separate list, because another test in this process may have left a thread behind.
    begun: list[object] = []
    monkeypatch.setattr("tacos._support.solver._begun", begun)
    program = LinearProgram(cost=[1], entries=([0], [0], [1]), row_lower=[1])
    assert solve(program, deadline=time.monotonic() - 1).status == "unknown"
    assert not begun
    assert solve(program).status == "optimal"
    assert len(begun) == 1
    assert not running()
