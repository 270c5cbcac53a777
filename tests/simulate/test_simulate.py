"""Simulation: by hand, against a slow event loop, and what is refused.

Unless a test says otherwise links have 1 GB/s and 1 us, so that 1000 B take 1 us to send and 2 us
to arrive.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import Fault, Straggler, simulate
from tacos import collective as co
from tacos import topology as tp
from tacos.errors import InfeasibleError, TacosError
from tacos.schedule import COPY, READ_ACC, REDUCE, retime, routes
from tests.support import oracle, simulator
from tests.support.strategies import orders, quick_topologies

US = 1_000_000  # picoseconds
SPEED = {"bandwidth": "1GB/s", "latency": "1us"}


def messages(topology, ends, size=1000):
    """Independent messages, one chunk each, all in one step."""
    collective = co.send_recv(topology, [(src, dst, size) for src, dst in ends], chunks=1)
    table = routes(topology, pairs=tuple(zip(*ends, strict=True)))
    return retime(collective, table, route=range(len(ends)), chunk=range(len(ends)), step=0)


def relay(**model):
    """1000 B from 0 over 1 to 2: sent at 0 and at 2 us, there at 4 us."""
    topology = tp.mesh(3, **{**SPEED, **model})
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    return retime(collective, table, route=[0, 1], chunk=0, step=[0, 1])


def agrees(trace, schedule, starts, placed):
    """Whether a trace has exactly the oracle's windows and arrivals."""
    topology = trace.topology
    transfers = oracle.transfers_of(schedule)
    paths, sizes = oracle.route_links(schedule.routes), schedule.collective.chunk_bytes().tolist()
    lane = np.repeat(np.arange(len(schedule.lane_route)), np.diff(schedule.lane_begin))
    expected = []
    for i, t in enumerate(transfers):
        route = int(schedule.lane_route[lane[i]])
        crossing = oracle.cross(
            topology, int(schedule.routes.kinds[route]), paths[route], sizes[t.chunk]
        )
        expected += [(starts[i][leg] + enter, link, i) for link, leg, enter, _ in crossing.windows]
    columns = (trace.begin_ps, trace.link, trace.transfer)
    assert sorted(expected) == sorted(zip(*(c.tolist() for c in columns), strict=True))
    ends = {
        (i, end): n
        for i, t in enumerate(transfers)
        for end, n in enumerate(t.crossing.destinations)
    }
    arrivals = [
        (when, ends[key], key[0]) for key, when in placed.items() if ends[key] < topology.npus
    ]
    columns = (trace.arrival_ps, trace.arrival_npu, trace.arrival_transfer)
    assert sorted(arrivals) == sorted(zip(*(c.tolist() for c in columns), strict=True))


# --- by hand ------------------------------------------------------------------------------------


def test_a_relay_link_by_link():
    schedule = relay()
    trace = simulate(schedule)
    assert trace.begin_ps.tolist() == [0, 2 * US]
    assert trace.end_ps.tolist() == [1 * US, 3 * US]
    assert trace.arrival_npu.tolist() == [1, 2]
    assert trace.arrival_ps.tolist() == [2 * US, 4 * US]
    assert trace.arrival_bytes.tolist() == [1000, 1000]
    assert trace.npu_finish_ps.tolist() == [0, 2 * US, 4 * US]
    assert trace.loss == 0
    assert trace.critical_path()["begin_ps"].tolist() == [0, 2 * US]


def test_without_congestion_links_are_never_busy():
    """Three messages over one link: all at once, there after 2 us; with congestion after 4."""
    schedule = messages(tp.mesh(2, **SPEED), [(0, 1)] * 3)
    assert simulate(schedule).time_ps == 4 * US
    alone = simulate(schedule, congestion=False)
    assert alone.time_ps == 2 * US
    assert alone.begin_ps.tolist() == [0, 0, 0]


def relay_and_own():
    """NPU 1 relays chunk 0 at 2 us, when it has arrived, and sends its own chunk 1 only after it."""
    topology = tp.mesh(3, **SPEED)
    return tacos.Schedule(
        collective=co.custom(topology, [1000, 1000], [[0], [1]], [[2], [2]]),
        routes=routes(topology, pairs=([0, 1], [1, 2])),
        lane_route=np.array([0, 1], np.int32),
        lane_op=np.array([COPY, COPY], np.uint8),
        lane_reads=np.array([READ_ACC, READ_ACC], np.uint8),
        lane_begin=np.array([0, 1, 3]),
        chunk=np.array([0, 0, 1], np.uint32),
        start=np.array([0, 2, 3], np.uint32),
        quantum_ps=US,
    )


@pytest.mark.parametrize(
    ("timing", "late", "begins"),
    [
        ("schedule", "0us", [0, 2, 3]),
        ("order", "0us", [0, 2, 3]),
        ("order", "5us", [5, 7, 8]),  # a transfer that waits for data holds up the next
        ("first-come", "0us", [0, 2, 0]),  # chunk 1 is ready at once
        ("first-come", "5us", [5, 7, 0]),
    ],
)
def test_how_start_times_count(timing, late, begins):
    schedule = relay_and_own()
    assert tacos.verify(schedule).ok
    trace = simulate(schedule, timing=timing, stragglers=[Straggler(npu=0, late=late)])
    rows = sorted(zip(trace.transfer.tolist(), (trace.begin_ps // US).tolist(), strict=True))
    assert [begin for _, begin in rows] == begins


def test_a_sum_that_comes_early_waits_beside_its_place():
    """In the schedule, NPU 1 sends its acc to 2 at 0, and 0's sum reaches NPU 1 at 2 us.

    If NPU 1 is 5 us late, the sum must not disturb what it still has to send: it is added at 5.
    """
    topology = tp.mesh(3, **SPEED)
    collective = co.custom(topology, [1000], [[0, 1]], [[1]], reduces=True)
    table = routes(topology, pairs=([1, 0], [2, 1]))
    schedule = retime(collective, table, route=[0, 1], chunk=0, step=[0, 1], op=[COPY, REDUCE])
    assert simulate(schedule).npu_finish_ps.tolist() == [0, 2 * US, 2 * US]
    trace = simulate(schedule, stragglers=[Straggler(npu=1, late="5us")])
    assert trace.npu_finish_ps.tolist() == [0, 5 * US, 7 * US]


def test_reducing_takes_its_time_and_longer_on_a_slow_npu():
    """1000 B at 0.5 GB/s take 2 us to add; at NPU 1, three times slower, 6 us."""
    topology = tp.mesh(2, reduce_bandwidth="0.5GB/s", **SPEED)
    collective = co.reduce(topology, 1000, root=1, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=[0], chunk=0, step=0, op=REDUCE)
    assert simulate(schedule).time_ps == 4 * US
    assert simulate(schedule, stragglers=[Straggler(npu=1, slowdown=3)]).time_ps == 8 * US
    assert simulate(schedule, stragglers=[Straggler(npu=0, slowdown=3)]).time_ps == 6 * US


# --- faults by hand -----------------------------------------------------------------------------


def test_a_link_that_goes_down_pauses_what_is_on_it():
    """Half of 1000 B is sent after 0.5 us; then nothing for 10 us, and the rest until 11."""
    schedule = messages(tp.mesh(2, **SPEED), [(0, 1), (0, 1)])
    trace = simulate(schedule, faults=[Fault(link=0, begin="0.5us", end="10.5us")])
    assert trace.end_ps.tolist() == [11 * US, 12 * US]
    assert trace.arrival_ps.tolist() == [12 * US, 13 * US]
    assert trace.clean_time_ps == 3 * US
    assert trace.loss == pytest.approx(10 / 3)


def test_a_slow_link_and_overlapping_faults():
    """Twice as slow from 0 on: 2 us. From 1 us on six times: the second half takes 3 us."""
    schedule = messages(tp.mesh(2, **SPEED), [(0, 1)])
    slow = Fault(link=(0, 1), slowdown=2)
    assert simulate(schedule, faults=[slow]).end_ps.tolist() == [2 * US]
    slower = Fault(npu=1, begin="1us", end="1ms", slowdown=3)
    assert simulate(schedule, faults=[slow, slower]).end_ps.tolist() == [4 * US]


def test_a_fault_on_one_link_of_a_route_delays_the_arrival_once():
    """Through a switch: links are taken from 0 and from 1 us. Both lose the same 2 us: 5 us in all."""
    topology = tp.switch(2, **SPEED)
    schedule = messages(topology, [(0, 1)])
    clean = simulate(schedule).time_ps
    down = [Fault(npu=n, begin="1.5us", end="3.5us") for n in (0, 1)]
    trace = simulate(schedule, faults=down)
    assert trace.time_ps == clean + 2 * US
    assert (
        simulate(schedule, faults=[Fault(npu=1, begin=0, end="1.5us")]).time_ps == clean + US // 2
    )


def test_a_slow_branch_of_a_multicast_delays_its_own_end_only():
    topology = tp.switch(3, multicast=True, **SPEED)
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    tree = [ends.index(e) for e in ((0, 3), (3, 1), (3, 2))]
    collective = co.broadcast(topology, 1000, chunks=1)
    schedule = retime(
        collective, routes(topology, links=[tree], kinds="multicast"), route=[0], chunk=0, step=0
    )
    trace = simulate(schedule, faults=[Fault(link=(3, 2), slowdown=4)])
    assert trace.npu_finish_ps.tolist() == [0, 3 * US, 6 * US]


def test_a_link_down_for_ever_is_an_error_that_names_it():
    schedule = relay()
    with pytest.raises(
        InfeasibleError, match=r"transfer 1 can never cross link \d+ \(npu 1 -> npu 2\)"
    ):
        simulate(schedule, faults=[Fault(link=(1, 2), begin="1us")])
    # A fault after the last byte does not matter, nor one on a link that is not used.
    assert simulate(schedule, faults=[Fault(link=(1, 2), begin="3us")]).loss == 0
    assert simulate(schedule, faults=[Fault(link=(2, 1))]).loss == 0


def test_jitter_is_bounded_and_a_function_of_the_seed():
    topology = tp.torus(4, 4)
    schedule = tacos.synthesize(topology, co.all_reduce(topology, "1MB", chunks=2), engine="ring")
    first = simulate(schedule, jitter="200ns", seed=1)
    again = simulate(schedule, jitter="200ns", seed=1)
    other = simulate(schedule, jitter="200ns", seed=2)
    assert (first.begin_ps == again.begin_ps).all()
    assert (first.arrival_ps == again.arrival_ps).all()
    assert first.time_ps != other.time_ps
    assert first.time_ps > schedule.time_ps
    alone = messages(tp.fully_connected(30, **SPEED), [(0, i) for i in range(1, 30)])
    delays = simulate(alone, jitter="1us", seed=3).arrival_ps - 2 * US
    assert delays.min() >= 0
    assert delays.max() <= US
    assert len(set(delays.tolist())) > 20


# --- another network ----------------------------------------------------------------------------


def test_another_topology_shows_what_a_schedule_loses_there():
    topology = tp.ring(4, **SPEED)
    schedule = tacos.synthesize(topology, co.all_gather(topology, 4000, chunks=1), engine="ring")
    assert simulate(schedule, topology).loss == 0
    slow = simulate(schedule, tp.degrade(topology, (0, 1), factor=0.5))
    assert slow.time_ps > schedule.time_ps
    unused = np.flatnonzero(schedule.link_bytes() == 0).tolist()
    assert unused
    assert simulate(schedule, tp.drop_links(topology, *unused)).loss == 0
    used = int(np.flatnonzero(schedule.link_bytes())[0])
    with pytest.raises(
        InfeasibleError, match=rf"transfer \d+ can never finish: it crosses link {used} "
    ):
        simulate(schedule, tp.drop_links(topology, used))


def test_parallel_links_are_matched_in_order():
    two = tp.from_links(2, [(0, 1, "1GB/s", "1us"), (0, 1, "2GB/s", "1us"), (1, 0, "1GB/s", "1us")])
    collective = co.send_recv(two, [(0, 1, 1000)], chunks=1)
    schedule = retime(collective, routes(two, links=[[1]]), route=[0], chunk=[0], step=[0])
    assert schedule.time_ps == US + US // 2
    turned = tp.from_links(
        2, [(1, 0, "1GB/s", "1us"), (0, 1, "1GB/s", "1us"), (0, 1, "4GB/s", "1us")]
    )
    assert simulate(schedule, turned).time_ps == US + US // 4


def test_a_topology_with_other_nodes_is_refused():
    with pytest.raises(
        ValueError, match="topology has 4 NPUs and 0 switches, but the schedule's has 3"
    ):
        simulate(relay(), tp.mesh(4, **SPEED))


def test_other_forwarding_makes_sense_only_without_the_schedule_s_starts():
    """Cut-through arrives after 3 us, store-and-forward after 4."""
    schedule = messages(tp.switch(2, **SPEED), [(0, 1)])
    stored = tp.switch(2, forwarding="store_and_forward", **SPEED)
    assert simulate(schedule, stored).time_ps == 4 * US
    with pytest.raises(ValueError, match='timing must be "first-come"'):
        simulate(schedule, stored, timing="order")


def test_transfers_whose_legs_wait_for_each_other_have_a_critical_path():
    """Transfer 1 waits for 0 on the link 0 -> 3. It reaches NPU 1 at 8 us, over a faster link than
    transfer 0, which comes at 12 us and waits there until transfer 1 has left at 13 us."""
    slow, fast = ("1GB/s", "10us"), ("1GB/s", "1us")
    topology = tp.from_links(
        3,
        [(0, 3, *fast), (3, 1, *slow), (3, 1, *fast), (1, 2, *fast), (2, 0, *fast)],
        switches=[""],
    )
    collective = co.send_recv(topology, [(0, 2, 1000), (0, 2, 5000)], chunks=1)
    table = routes(topology, links=[[0, 1, 3], [0, 2, 3]])
    schedule = retime(collective, table, route=[0, 1], chunk=[0, 1], step=[0, 0])
    trace = simulate(schedule)
    assert trace.time_ps == 15 * US
    assert trace.critical_path()["transfer"].tolist() == [1, 0]


# --- against the slow event loop ----------------------------------------------------------------


@given(orders(), st.sampled_from(["first-come", "order", "schedule"]), st.booleans())
def test_every_timing_is_what_the_slow_loop_says(order, timing, congestion):
    schedule = order.retimed()
    trace = simulate(schedule, timing=timing, congestion=congestion)
    agrees(trace, schedule, *simulator.run(schedule, timing=timing, congestion=congestion))


@given(orders(), st.sampled_from(["first-come", "order", "schedule"]), st.booleans())
def test_a_run_that_is_not_recorded_has_the_same_figures(order, timing, congestion):
    schedule = order.retimed()
    whole = simulate(schedule, timing=timing, congestion=congestion)
    short = simulate(schedule, timing=timing, congestion=congestion, record=False)
    assert short.npu_finish_ps.tolist() == whole.npu_finish_ps.tolist()
    busy = np.zeros(schedule.topology.links, np.int64)
    np.add.at(busy, whole.link, whole.end_ps - whole.begin_ps)
    assert short.busy_ps().tolist() == whole.busy_ps().tolist() == busy.tolist()
    assert short.summary().items() <= whole.summary().items()


@st.composite
def troubles(draw, schedule):
    """Faults of the links and late NPUs, as the library and as the oracle take them."""
    topology, span = schedule.topology, max(4, schedule.time_ps)
    windows: dict[int, list] = {}
    faults = []
    for _ in range(draw(st.integers(0, 3))):
        link = draw(st.integers(0, topology.links - 1))
        begin = draw(st.integers(0, span))
        end = begin + draw(st.integers(1, span))
        factor = draw(st.sampled_from([1, 2, 4, 16, float("inf")]))
        faults.append(Fault(link=link, begin=f"{begin}ps", end=f"{end}ps", slowdown=factor))
        windows.setdefault(link, []).append((begin, end, factor))
    late = draw(
        st.dictionaries(st.integers(0, topology.npus - 1), st.integers(1, span), max_size=2)
    )
    return faults, windows, late


@given(st.data(), orders(), st.sampled_from(["first-come", "order"]))
def test_faults_are_what_the_slow_loop_says(data, order, timing):
    schedule = order.retimed()
    assume(schedule.topology.links)
    faults, windows, late = data.draw(troubles(schedule))
    trace = simulate(
        schedule,
        faults=faults,
        stragglers=[Straggler(npu=n, late=f"{t}ps") for n, t in late.items()],
        timing=timing,
    )
    agrees(trace, schedule, *simulator.run(schedule, timing=timing, faults=windows, late=late))
    assert trace.clean_time_ps == simulate(schedule, timing=timing).time_ps


def speeds(topology, data):
    """The same network with other speeds."""
    return tacos.Topology(
        npus=topology.npus,
        switch_capabilities=topology.switch_capabilities,
        link_src=topology.link_src,
        link_dst=topology.link_dst,
        link_latency_ps=np.array(
            [data.draw(st.sampled_from([0, 1, 700_000])) for _ in range(topology.links)]
        ),
        link_bandwidth_Bps=np.array(
            [
                data.draw(st.sampled_from([123_456_789, 10**9, 10**11]))
                for _ in range(topology.links)
            ]
        ),
        link_model=topology.link_model,
        forwarding=topology.forwarding,
        reduce_bandwidth_Bps=topology.reduce_bandwidth_Bps,
    )


@given(st.data(), orders())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_other_speeds_are_what_the_slow_loop_says(data, order):
    schedule = order.retimed()
    other = speeds(schedule.topology, data)
    agrees(simulate(schedule, other), schedule, *simulator.run(schedule, other))


# --- the schedule's own times -------------------------------------------------------------------


@given(
    st.data(),
    quick_topologies(),
    st.sampled_from(["all_gather", "all_reduce", "all_to_all", "broadcast"]),
)
def test_every_engine_s_times_are_reproduced_exactly(data, topology, kind):
    collective = co.named(kind, topology, 1000, chunks=data.draw(st.integers(1, 2)))
    names = tacos.engines(topology, collective)
    engine = data.draw(st.sampled_from(sorted(names)))
    schedule = tacos.synthesize(topology, collective, engine=engine)
    trace = simulate(schedule, timing="schedule")
    assert trace.time_ps == schedule.time_ps
    packed = schedule.expand()
    starts = [t.starts for t in oracle.transfers_of(packed)]
    placed = {
        (i, end): when
        for i, t in enumerate(oracle.transfers_of(packed))
        for end, when in enumerate(t.arrivals)
    }
    agrees(trace, packed, starts, placed)
    assert simulate(schedule).time_ps > 0 or not packed.transfers


def test_orbits_are_expanded():
    topology = tp.torus(4, 4)
    schedule = tacos.synthesize(
        topology, co.all_gather(topology, "1MB", chunks=1), engine="symmetric"
    )
    assert schedule.form == "orbit"
    trace = simulate(schedule)
    assert trace.time_ps == schedule.time_ps
    assert len(np.unique(trace.transfer)) == schedule.transfers
    assert trace.link_utilisation().tolist() == schedule.link_utilisation().tolist()
    with pytest.raises(TacosError, match=r"240 transfers takes about .* memory_limit is 1 kB"):
        simulate(schedule, memory_limit="1kB")


def broken(schedule, start):
    return tacos.Schedule(
        collective=schedule.collective,
        routes=schedule.routes,
        lane_route=schedule.lane_route,
        lane_op=schedule.lane_op,
        lane_reads=schedule.lane_reads,
        lane_begin=schedule.lane_begin,
        chunk=schedule.chunk,
        start=np.array(start, np.uint32),
        quantum_ps=schedule.quantum_ps,
    )


def test_own_starts_that_are_impossible_are_named():
    """A relay that starts before it has the chunk; two transfers at once on one link."""
    with pytest.raises(
        InfeasibleError, match="transfer 1 can never start: npu 1 has nothing of chunk 0"
    ):
        simulate(broken(relay(), [0, 0]), timing="schedule")
    crowd = messages(tp.mesh(2, **SPEED), [(0, 1), (0, 1)])
    together = broken(crowd, [0, 0])
    for record in (True, False):
        with pytest.raises(InfeasibleError, match=r"transfers 0 and 1 both use link 0 .* at 0 s"):
            simulate(together, timing="schedule", record=record)
    assert simulate(together).time_ps == 3 * US
    with pytest.raises(InfeasibleError, match="transfer 1 cannot start at 2 us"):
        simulate(relay(), timing="schedule", faults=[Fault(link=(0, 1), begin="0.5us", end="1us")])


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"timing": "now"},
            'timing is "now"; it must be one of first-come, order, schedule, shared',
        ),
        ({"jitter": "fast"}, "jitter 'fast' is not understood"),
        ({"seed": -1}, "seed must be 0 to 2\\^64 - 1; got -1"),
        ({"profile": "ns-3"}, "profile must be one of .*; got 'ns-3'"),
        (
            {"profile": "astra-sim-aware", "record": False},
            "does not take timing, congestion, record",
        ),
        (
            {"faults": [Fault(link=99)]},
            "link is 99, but there is no such link; the links are 0 to 3",
        ),
        ({"faults": [Fault(link=(0, 2))]}, "there is no link from npu 0 to npu 2"),
        ({"faults": [Fault(npu=7)]}, "npu is 7, but there is no such NPU; the NPUs are 0 to 2"),
        (
            {"stragglers": [Straggler(npu=3)]},
            "npu is 3, but there is no such NPU; the NPUs are 0 to 2",
        ),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(relay(), **arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Fault(link=0, begin="2us", end="1us"),
            "begins at '2us' and ends at '1us'; it must end later",
        ),
        (lambda: Fault(link=0, begin="1us", end="1us"), "it must end later"),
        (
            lambda: Fault(link=0, slowdown=0.5),
            "slowdown must be between 1 and 10\\^9, or inf; got 0.5",
        ),
        (lambda: Fault(link=0, slowdown=float("nan")), "slowdown must be .*; got nan"),
        (Fault, "either a link or an npu"),
        (lambda: Fault(link=0, npu=0), "either a link or an npu"),
        (lambda: Fault(link=0, begin="soon"), "begin 'soon' is not understood"),
        (lambda: Straggler(npu=0, slowdown=float("inf")), "never send"),
        (lambda: Straggler(npu=0, late=-1), "late -1 must not be negative"),
        (lambda: Fault.parse("link=0,both=maybe"), "both must be one of yes, no; got 'maybe'"),
        (lambda: Fault(npu=0, both=True), "both is for a link"),
        (
            lambda: Fault.parse("link=0,speed=3"),
            "unexpected 'speed=3'; use name=value with each of link, npu",
        ),
        (lambda: Straggler.parse("late=3us"), "needs an npu"),
        (lambda: Straggler.parse("npu=0,slowdown=x"), "slowdown is 'x'; it must be a number"),
    ],
)
def test_wrong_faults_get_one_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_ctrl_c_and_progress():
    # The run must take longer than the 50 ms between two reports.
    topology = tp.ring(512)
    schedule = tacos.synthesize(topology, co.all_gather(topology, "256MB", chunks=8), engine="ring")
    shares: list[float] = []
    simulate(schedule, progress=shares.append)
    assert shares == sorted(shares)

    def stop(share):
        raise KeyboardInterrupt

    if shares:
        with pytest.raises(KeyboardInterrupt):
            simulate(schedule, progress=stop)


def test_an_imitated_run_says_by_whom_it_was_made():
    schedule = tacos.synthesize(tp.ring(4), co.all_gather(4, "4KB", chunks=1), engine="ring")
    own, imitated = (
        tacos.simulate(schedule, profile=p).summary() for p in (None, "astra-sim-aware")
    )
    assert (own["simulator"], own["timing"], own["congestion"]) == ("tacos", "first-come", True)
    assert imitated["simulator"] == "astra-sim-aware"
    assert not {"timing", "congestion"} & imitated.keys()


@pytest.mark.parametrize("engine", ["ring", "direct", "parameter-server"])
def test_a_start_that_lets_the_next_of_its_line_wait_does_not_drop_it(engine):
    """In a link's order each start makes the next transfer ready, which mostly takes the same route."""
    pair = tp.fully_connected(2, bandwidth="100GB/s", latency="1.2us")
    topology = tp.product(pair, tp.ring(3, bandwidth="25GB/s", latency="350ns"))
    schedule = tacos.synthesize(topology, co.all_reduce(6, 21751, chunks=3), engine=engine)
    for timing in ("order", "schedule"):
        assert tacos.simulate(schedule, timing=timing).time_s == schedule.time_s
