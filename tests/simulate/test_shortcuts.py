"""Runs followed in one sweep or in rounds are those of the event loop; others are left to the event loop."""

from __future__ import annotations

from collections import Counter
from importlib import import_module

import pytest
from hypothesis import assume, given, settings
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
from tests.support.strategies import collectives, models, orders

TIMINGS = ["first-come", "order", "schedule"]
SEEDED = settings(max_examples=80, derandomize=True)
"""The same examples in every run, since the tests count how many of them a shortcut follows."""


def run(schedule, shortcut, timing="first-come", faults=(), stragglers=(), **options):
    """Return finish times and busy times from a shortcut (True) or the event loop (False); None if it refuses."""
    settled = {"congestion": True, "record": False, "jitter_ps": 0, "seed": 0} | options
    disturbed = disturbances(schedule.topology, faults, stragglers)
    try:
        found = _core.simulate(
            schedule,
            _lane_routes(schedule, None),
            timing=timing,
            shortcut=shortcut,
            **settled,
            **disturbed,
        )
    except InfeasibleError:
        return None
    return found["npu_finish_ps"].tolist(), found["link_busy_ps"].tolist()


def compare(taken, schedule, timing, **options):
    """Compare a shortcut with the event loop; count in `taken` whether it followed a run that succeeds."""
    expected = run(schedule, False, timing, **options)
    short = run(schedule, True, timing, **options)
    assert short in (None, expected)
    if expected is not None and schedule.transfers:
        taken[short is not None] += 1


def share(taken):
    return taken[True] / taken.total()


def runnable(schedule, data):
    """Yield a schedule, and a changed one if it is still correct."""
    yield schedule
    changed = mutate(data.draw, schedule)
    if tacos.verify(changed, allow_unneeded=True).ok:
        yield changed


@st.composite
def hop_schedules(draw):
    """Schedules whose routes are single links, on networks of every model of links."""
    model = draw(models())
    build = st.sampled_from([
        lambda: tp.ring(draw(st.integers(2, 6)), **model),
        lambda: tp.mesh(draw(st.integers(2, 3)), draw(st.integers(2, 3)), **model),
        lambda: tp.torus(3, draw(st.integers(2, 3)), **model),
        lambda: tp.fully_connected(draw(st.integers(2, 5)), **model),
    ])  # fmt: skip
    return draw(_moved_on(draw(build)(), ["greedy"]))


@st.composite
def switch_schedules(draw):
    """Schedules whose routes cross switches at once, as paths or trees that share links."""
    model = draw(models()) | {"forwarding": "cut_through"}
    trees = {"multicast": draw(st.booleans()), "reduce": draw(st.booleans())}
    build = st.sampled_from([
        lambda: tp.switch(draw(st.integers(2, 5)), **trees, **model),
        lambda: tp.fat_tree(2, draw(st.integers(1, 3)), uplinks=1, **model),
        lambda: tp.rail(2, draw(st.integers(1, 3)), spine=True, **model),
    ])  # fmt: skip
    return draw(_moved_on(draw(build)(), ["greedy", "direct", "ring"]))


@st.composite
def _moved_on(draw, topology, engines):
    collective = draw(collectives(topology.npus))
    assume(all(collective.chunk_bytes()))
    able = [name for name in tacos.engines(topology, collective) if name in engines]
    return tacos.synthesize(topology, collective, engine=draw(st.sampled_from(able))).expand()


def one_leg_schedules():
    return st.one_of(hop_schedules(), switch_schedules())


def test_a_sweep_in_order_finds_what_the_event_loop_finds():
    taken: Counter[bool] = Counter()

    @given(
        given_=one_leg_schedules(), timing=st.sampled_from(["order", "schedule"]), data=st.data()
    )
    @SEEDED
    def sweep(given_, timing, data):
        for schedule in runnable(given_, data):
            compare(taken, schedule, timing)

    sweep()
    assert share(taken) > 0.9


def test_a_sweep_takes_links_without_congestion():
    taken: Counter[bool] = Counter()

    @given(given_=one_leg_schedules(), data=st.data())
    @SEEDED
    def sweep(given_, data):
        for schedule in runnable(given_, data):
            compare(taken, schedule, "schedule", congestion=False)
            assert run(schedule, True, "order", congestion=False) is None  # for the event loop

    sweep()
    assert share(taken) > 0.9


def test_a_sweep_follows_disturbed_runs():
    taken: Counter[bool] = Counter()

    @given(schedule=one_leg_schedules(), data=st.data())
    @SEEDED
    def sweep(schedule, data):
        span = max(4, schedule.time_ps)
        begin, length = data.draw(st.integers(0, span)), data.draw(st.integers(1, span))
        link = data.draw(st.integers(0, schedule.topology.links - 1))
        factor = data.draw(st.sampled_from([2, 16, float("inf")]))
        end = data.draw(st.sampled_from([f"{begin + length}ps", None]))
        late = data.draw(st.sampled_from([[], [Straggler(npu=0, late=f"{length}ps", slowdown=2)]]))
        compare(
            taken,
            schedule,
            "order",
            faults=[Fault(link=link, begin=f"{begin}ps", end=end, slowdown=factor)],
            stragglers=late,
            jitter_ps=data.draw(st.sampled_from([0, 1000, US])),
        )

    sweep()
    assert share(taken) > 0.9


def test_rounds_find_what_the_event_loop_finds():
    """Jitter and late NPUs let transfers overtake each other: then rounds follow the run, over single links."""
    taken: Counter[bool] = Counter()

    @given(schedule=hop_schedules(), congestion=st.booleans(), data=st.data())
    @SEEDED
    def in_rounds(schedule, congestion, data):
        for one in runnable(schedule, data):
            for jitter in (3, US):
                late = data.draw(st.sampled_from([(), (Straggler(npu=0, late="1us", slowdown=2),)]))
                compare(
                    taken,
                    one,
                    "first-come",
                    jitter_ps=jitter,
                    seed=1,
                    stragglers=late,
                    congestion=congestion,
                )

    in_rounds()
    assert share(taken) > 0.4  # a late NPU lets data come before it has read what they replace


def test_whatever_is_chosen_is_the_run_of_the_event_loop():
    """On any network and for routes of any kind, in every rule for links."""

    @given(
        order=orders(), timing=st.sampled_from(TIMINGS), congestion=st.booleans(), data=st.data()
    )
    @settings(max_examples=60)
    def chosen(order, timing, congestion, data):
        for schedule in runnable(order.retimed(), data):
            for jitter in (0, 3, US):
                trouble = {"timing": timing, "jitter_ps": jitter, "congestion": congestion}
                assert run(schedule, None, **trouble) == run(schedule, False, **trouble)

    chosen()


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


@pytest.mark.parametrize(
    ("topology", "kind"),
    [(tp.torus(4, 4), "all_reduce"), (tp.mesh(4, 4), "all_to_all"), (tp.ring(6), "all_gather")],
    ids=str,
)
def test_jitter_takes_rounds_on_networks_without_switches(topology, kind):
    schedule = tacos.synthesize(
        topology, co.named(kind, topology, "1MB", chunks=3), engine="greedy"
    ).expand()
    for seed in range(3):
        trouble = {"jitter_ps": 5 * US, "seed": seed}
        rounds = run(schedule, True, **trouble)
        assert rounds is not None
        assert rounds == run(schedule, False, **trouble)


def test_many_transfers_are_swept_part_by_part():
    """A sweep sorts a few thousand transfers at a time, and rounds use up all lists of their calendar."""
    topology = tp.ring(120)
    gather = co.all_gather(topology, 120 << 16, chunks=1)
    schedule = tacos.synthesize(topology, gather, engine="ring", order="rank").expand()
    assert schedule.transfers > 2 << 12
    for timing in ("order", "schedule", "first-come"):
        trouble = {} if timing == "schedule" else {"jitter_ps": US}
        short = run(schedule, True, timing, **trouble)
        assert short is not None
        assert short == run(schedule, False, timing, **trouble)


def test_what_no_shortcut_follows_is_left_to_the_event_loop():
    """First come, first served without jitter: chunk 1, at NPU 1 from the start, overtakes chunk 0."""
    topology = line()
    collective = co.custom(topology, [1000, 1000], before=[[0], [1]], after=[[1, 2], [2]])
    table = routes(topology, pairs=([0, 1], [1, 2]))
    starts = [(0, 0, 0), (1, 0, 2 * US), (1, 1, 3 * US)]
    late = packed(collective, table, [(r, c, COPY, READ_ACC, [t]) for r, c, t in starts])
    assert run(late, True) is None
    assert run(late, None) == run(late, False)
    assert run(late, True, "order") == run(late, False, "order") is not None
    assert run(late, True, "order", record=True) is None
    assert run(late, True, jitter_ps=1, record=True) is None


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

    monkeypatch.setattr(import_module("tacos.simulate"), "_simulate", counted)
    again = tacos.simulate(schedule, jitter="1us", seed=2, timing="order", record=False)
    assert len(runs) == 1
    assert again.clean_time_ps == first.clean_time_ps
    other = tacos.simulate(make("4MB"), jitter="1us", seed=1, timing="order", record=False)
    assert other.clean_time_ps != first.clean_time_ps
