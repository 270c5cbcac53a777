"""Runs followed in one sweep or in rounds are those of the event loop; others are left to the event loop."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import _core
from tacos import collective as co
from tacos import topology as tp
from tacos.errors import InfeasibleError
from tacos.schedule import COPY, READ_ACC, routes
from tacos.simulate import Fault, Straggler, _lane_routes
from tacos.simulate.faults import disturbances
from tests.support.schedules import US, line, mutate, packed
from tests.support.strategies import orders

TIMINGS = ["first-come", "order", "schedule"]


def run(schedule, in_turn, timing="first-come", faults=(), stragglers=(), **options):
    """Return finish times and busy times from one sweep or the event loop; None if it refuses."""
    settled = {"congestion": True, "record": False, "jitter_ps": 0, "seed": 0} | options
    disturbed = disturbances(schedule.topology, faults, stragglers)
    try:
        found = _core.simulate(
            schedule,
            _lane_routes(schedule, None),
            timing=timing,
            in_turn=in_turn,
            **settled,
            **disturbed,
        )
    except InfeasibleError:
        return None
    return found["npu_finish_ps"].tolist(), found["link_busy_ps"].tolist()


def runnable(schedule, data):
    """Yield a schedule, and a changed one if it is still correct."""
    yield schedule
    changed = mutate(data.draw, schedule)
    if tacos.verify(changed, allow_unneeded=True).ok:
        yield changed


@given(order=orders(), timing=st.sampled_from(TIMINGS), congestion=st.booleans(), data=st.data())
@settings(max_examples=60)
def test_a_sweep_finds_what_the_event_loop_finds(order, timing, congestion, data):
    for given_ in runnable(order.retimed(), data):
        swept = run(given_, True, timing, congestion=congestion)
        assert swept is None or swept == run(given_, False, timing, congestion=congestion)


@given(order=orders(), timing=st.sampled_from(TIMINGS), data=st.data())
@settings(max_examples=60)
def test_disturbances_too(order, timing, data):
    schedule = order.retimed()
    if not schedule.topology.links:
        return
    span = max(4, schedule.time_ps)
    begin, length = data.draw(st.integers(0, span)), data.draw(st.integers(1, span))
    link = data.draw(st.integers(0, schedule.topology.links - 1))
    factor = data.draw(st.sampled_from([2, 16, float("inf")]))
    end = data.draw(st.sampled_from([f"{begin + length}ps", None]))
    late = data.draw(st.sampled_from([[], [Straggler(npu=0, late=f"{length}ps", slowdown=2)]]))
    trouble = {
        "faults": [Fault(link=link, begin=f"{begin}ps", end=end, slowdown=factor)],
        "stragglers": late,
        "jitter_ps": data.draw(st.sampled_from([0, 1000, US])),
    }
    swept = run(schedule, True, timing, **trouble)
    assert swept is None or swept == run(schedule, False, timing, **trouble)


@given(order=orders(), congestion=st.booleans(), data=st.data())
@settings(max_examples=60)
def test_rounds_find_what_the_event_loop_finds(order, congestion, data):
    """Jitter and late NPUs let transfers overtake each other: then rounds follow the run, over single links."""
    for given_ in runnable(order.retimed(), data):
        for jitter in (0, 3, US):
            late = data.draw(st.sampled_from([[], [Straggler(npu=0, late="1us", slowdown=2)]]))
            trouble = {"jitter_ps": jitter, "stragglers": late, "congestion": congestion}
            assert run(given_, None, **trouble) == run(given_, False, **trouble)


@given(order=orders(), timing=st.sampled_from(TIMINGS), congestion=st.booleans(), data=st.data())
@settings(max_examples=60)
def test_a_record_is_the_same_however_a_run_is_followed(order, timing, congestion, data):
    """Every column of the record: intervals, arrivals and causes, in their order, also with a slow link or NPU."""
    for given_ in runnable(order.retimed(), data):
        slow = Fault(link=0, begin="1us", slowdown=2)
        late = Straggler(npu=0, late="1us", slowdown=2)
        faults = data.draw(st.sampled_from([(), (slow,)])) if given_.topology.links else ()
        stragglers = data.draw(st.sampled_from([(), (late,)]))
        for jitter in (0, 3, US):
            chosen, expected = (
                record(given_, in_turn, timing, congestion, jitter, faults, stragglers)
                for in_turn in (None, False)
            )
            assert chosen == expected


def record(schedule, in_turn, timing, congestion, jitter, faults=(), stragglers=()):
    """Return the record of a run, or its error."""
    try:
        found = _core.simulate(
            schedule,
            _lane_routes(schedule, None),
            timing=timing,
            in_turn=in_turn,
            congestion=congestion,
            record=True,
            jitter_ps=jitter,
            seed=1,
            **disturbances(schedule.topology, faults, stragglers),
        )
    except InfeasibleError as error:
        return str(error)
    return {name: column.tolist() for name, column in found.items()}


@pytest.mark.parametrize(
    ("topology", "kind", "engine"),
    [
        (tp.torus(4, 4), "all_reduce", "greedy"),
        (tp.mesh(4, 4), "all_to_all", "greedy"),
        (tp.ring(6, reduce_bandwidth="100GB/s"), "all_reduce", "ring"),
        (tp.fully_connected(5), "all_gather", "direct"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("timing", "jitter"), [("first-come", 0), ("order", 0), ("order", 5 * US), ("schedule", 0)]
)
def test_a_sweep_records_runs_over_single_links(topology, kind, engine, timing, jitter):
    schedule = tacos.synthesize(
        topology, co.named(kind, topology, "1MB", chunks=3), engine=engine
    ).expand()
    # First come, first served, sums and chunks that the schedule sends late may overtake others.
    sweep = None if timing == "first-come" and kind != "all_gather" else True
    swept, expected = (record(schedule, turn, timing, True, jitter) for turn in (sweep, False))
    assert swept == expected


def test_a_transfer_that_starts_before_what_was_recorded_is_in_its_place():
    """Link 1 -> 2 is scheduled last, but its chunk is ready at 0; by then a record of link 0 -> 1 is written."""
    topology, many = line(), 40_000
    collective = co.custom(
        topology,
        [1000] * (many + 1),
        before=[[0]] * many + [[1]],
        after=[[1]] * many + [[2]],
    )
    table = routes(topology, pairs=([0, 1], [1, 2]))
    transfers = [(0, chunk, COPY, READ_ACC, [chunk]) for chunk in range(many)]
    late = packed(collective, table, [*transfers, (1, many, COPY, READ_ACC, [many])], US)
    swept = record(late, True, "first-come", True, 0)
    assert swept == record(late, False, "first-come", True, 0)
    assert swept["transfer"][:3] == [0, many, 1]


@pytest.mark.parametrize(
    ("topology", "kind", "engine"),
    [
        (tp.torus(4, 4), "all_reduce", "greedy"),
        (tp.mesh(4, 4), "all_to_all", "greedy"),
        (tp.ring(6, reduce_bandwidth="100GB/s"), "all_reduce", "ring"),
        (tp.fully_connected(5), "reduce_scatter", "direct"),
        (tp.switch(5), "all_gather", "ring"),
    ],
    ids=str,
)
def test_runs_in_order_take_one_sweep_whatever_disturbs_them(topology, kind, engine):
    schedule = tacos.synthesize(
        topology, co.named(kind, topology, "1MB", chunks=2), engine=engine
    ).expand()
    half = f"{schedule.time_ps // 2}ps"
    troubles = [
        {},
        {"jitter_ps": 1000, "seed": 1},
        {"faults": [Fault(link=0, begin="1us", end=half, slowdown=float("inf"))]},
        {"stragglers": [Straggler(npu=1, late="3us", slowdown=3)]},
    ]
    for trouble in troubles:
        swept = run(schedule, True, "order", **trouble)
        assert swept is not None
        assert swept == run(schedule, False, "order", **trouble)
    assert run(schedule, True, "schedule") == run(schedule, False, "schedule") is not None


def test_what_is_ready_first_is_left_to_the_event_loop():
    """NPU 1 has chunk 1 from the start but sends chunk 0 first; first come, first served, chunk 1 would go first."""
    topology = line()
    collective = co.custom(topology, [1000, 1000], before=[[0], [1]], after=[[1, 2], [2]])
    table = routes(topology, pairs=([0, 1], [1, 2]))
    starts = [(0, 0, 0), (1, 0, 2 * US), (1, 1, 3 * US)]
    late = packed(collective, table, [(r, c, COPY, READ_ACC, [t]) for r, c, t in starts])
    assert run(late, True) is None
    assert run(late, None) == run(late, False)
    assert run(late, True, "order") == run(late, False, "order") is not None


def test_what_fails_is_told_by_the_event_loop():
    topology = line()
    schedule = tacos.synthesize(topology, co.broadcast(topology, 1000, chunks=1), engine="greedy")
    down = [Fault(link=0, begin="0s", end=None, slowdown=float("inf"))]
    with pytest.raises(InfeasibleError, match="can never cross"):
        tacos.simulate(schedule, faults=down, timing="order", record=False)


def test_disturbed_runs_share_the_undisturbed_one(monkeypatch):
    topology = line()

    def make(size):
        reduced = co.all_reduce(topology, size, chunks=2)
        return tacos.synthesize(topology, reduced, engine="greedy").expand()

    schedule = make("1MB")
    first = tacos.simulate(schedule, jitter="1us", seed=1, timing="order", record=False)
    runs = []

    def counted(*args, **options):
        runs.append(options)
        return _core.simulate(*args, **options)

    monkeypatch.setattr(sys.modules["tacos.simulate"], "_simulate", counted)
    again = tacos.simulate(schedule, jitter="1us", seed=2, timing="order", record=False)
    assert len(runs) == 1
    assert again.clean_time_ps == first.clean_time_ps
    other = tacos.simulate(make("4MB"), jitter="1us", seed=1, timing="order", record=False)
    assert other.clean_time_ps != first.clean_time_ps
