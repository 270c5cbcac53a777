"""Links shared fairly: by hand, and against event loops with exact fractions.

Unless a test says otherwise links have 1 GB/s and 1 us, so that 1000 B alone take 1 us to send and
arrive 1 us per link later.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import Fault, Straggler, simulate
from tacos import collective as co
from tacos import topology as tp
from tacos.errors import InfeasibleError
from tacos.schedule import COPY, READ_ACC, REDUCE, retime, routes
from tests.simulate.test_simulate import SPEED, US, messages, troubles
from tests.support import oracle, sharing
from tests.support.simulator import NEVER
from tests.support.strategies import orders, quick_topologies


def sent(topology, sizes):
    """Return a schedule of messages (src, dst, bytes) that may all start at once."""
    collective = co.send_recv(topology, sizes, chunks=1)
    ends = [(src, dst) for src, dst, _ in sizes]
    table = routes(topology, pairs=tuple(zip(*ends, strict=True)))
    return retime(collective, table, route=range(len(ends)), chunk=range(len(ends)), step=0)


def walking(topology, ways, sizes):
    """Return a schedule of chunks that go from NPU to NPU, each in its own order of NPUs."""
    hops = [(c, k, *pair) for c, way in enumerate(ways) for k, pair in enumerate(pairwise(way))]
    table = routes(topology, pairs=([a for *_, a, _ in hops], [b for *_, b in hops]))
    collective = co.custom(topology.npus, sizes, [w[:1] for w in ways], [w[-1:] for w in ways])
    return retime(
        collective, table, route=range(len(hops)), chunk=[c for c, *_ in hops],
        step=[k for _, k, *_ in hops],
    )  # fmt: skip


def arrivals(schedule, **options):
    trace = simulate(schedule, timing="shared", **options)
    by_transfer = dict(zip(trace.arrival_transfer.tolist(), trace.arrival_ps.tolist(), strict=True))
    return [by_transfer[i] for i in sorted(by_transfer)]


# --- by hand ------------------------------------------------------------------------------------


def test_two_messages_share_a_port():
    """0 -> 1 and 0 -> 2 share 0's link at 500 MB/s each: sent at 2 us, there two latencies later.
    Served one after the other they would be there at 3 and 4 us."""
    schedule = sent(tp.switch(3, **SPEED), [(0, 1, 1000), (0, 2, 1000)])
    assert arrivals(schedule) == [4 * US, 4 * US]


def test_what_one_leaves_the_other_gets():
    """1000 B and 3000 B at 500 MB/s: the first is sent at 2 us; then 2000 B are left of the second,
    which take 2 us at 1 GB/s."""
    schedule = sent(tp.switch(3, **SPEED), [(0, 1, 1000), (0, 2, 3000)])
    assert arrivals(schedule) == [4 * US, 6 * US]


def test_the_narrowest_link_is_filled_first():
    """0 sends to 1, 2 and 3 at a third of 1 GB/s each; 4 -> 3 gets the other two thirds of 3's link:
    1000 B in 1.5 us. All thirds come out even: 3 us and 1.5 us, plus 2 us of latency."""
    schedule = sent(tp.switch(5, **SPEED), [(0, 1, 1000), (0, 2, 1000), (0, 3, 1000), (4, 3, 1000)])
    assert arrivals(schedule) == [5 * US, 5 * US, 5 * US, 3_500_000]


def test_a_connection_sends_one_message_at_a_time():
    """Two messages over one link: the second starts when the first has left, at 1 us. On blocking
    links it starts a latency later."""
    for model, second in (("pipelined", 3 * US), ("blocking", 4 * US)):
        topology = tp.mesh(2, link_model=model, **SPEED)
        assert arrivals(messages(topology, [(0, 1), (0, 1)])) == [2 * US, second]


def test_parallel_connections_through_a_relay_share_its_link():
    """0 -> 2 and 1 -> 2 on a line 0 - 1 - 2. The first is whole at 1 after 2 us; 1's own message of
    3000 B has the link 1 -> 2 alone until then, shares it from 2 us to 4 us (1000 B each), and is
    sent at 4 us, as is the other: both are there at 5 us."""
    schedule = sent(tp.mesh(3, **SPEED), [(0, 2, 1000), (1, 2, 3000)])
    assert arrivals(schedule) == [5 * US, 5 * US]


def test_store_and_forward_takes_whole_messages_at_the_switch():
    """Up in 1 us and 1 us of latency, then down: there at 4 us."""
    topology = tp.switch(2, forwarding="store_and_forward", **SPEED)
    assert arrivals(sent(topology, [(0, 1, 1000)])) == [4 * US]


def test_a_tree_sends_at_one_rate():
    """A multicast from 0 to 1 and 2, and a message 3 -> 2: they share 2's link, so the tree sends
    at 500 MB/s on all its links, to 1 as well: sent at 2 us, both there at 4 us."""
    topology = tp.switch(4, multicast=True, **SPEED)
    ends = {
        (int(a), int(b)): k
        for k, (a, b) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))
    }
    table = routes(
        topology,
        links=[[ends[0, 4], ends[4, 1], ends[4, 2]], [ends[3, 4], ends[4, 2]]],
        kinds=["multicast", "path"],
    )
    collective = co.custom(4, [1000, 1000], [[0], [3]], [[1, 2], [2]])
    schedule = retime(collective, table, route=[0, 1], chunk=[0, 1], step=0)
    trace = simulate(schedule, timing="shared")
    assert trace.arrival_ps.tolist() == [4 * US] * 3
    assert simulate(schedule).time_ps == 4 * US


def test_a_sum_takes_its_time():
    """1000 B arrive at 2 us and are added at 1 GB/s."""
    topology = tp.mesh(2, reduce_bandwidth="1GB/s", **SPEED)
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(
        co.reduce(topology, 1000, root=1, chunks=1), table, route=[0], chunk=[0], step=0,
        op=REDUCE, reads=READ_ACC,
    )  # fmt: skip
    assert simulate(schedule, timing="shared").time_ps == 3 * US


def test_faults_change_what_there_is_to_share():
    """0's link is down from 1 us to 2 us: two messages of 1000 B at 500 MB/s are sent at 3 us. Slowed
    down to half from the beginning, they are sent at 4 us."""
    schedule = sent(tp.switch(3, **SPEED), [(0, 1, 1000), (0, 2, 1000)])
    down = Fault(link=(0, 3), begin="1us", end="2us")
    assert arrivals(schedule, faults=[down]) == [5 * US, 5 * US]
    slow = Fault(link=(0, 3), slowdown=2)
    assert arrivals(schedule, faults=[slow]) == [6 * US, 6 * US]
    late = Straggler(npu=0, late="10us", slowdown=2)
    assert arrivals(schedule, stragglers=[late]) == [16 * US, 16 * US]
    with pytest.raises(InfeasibleError, match=r"transfer 0 can never cross link 0 .* from 1 us on"):
        arrivals(schedule, faults=[Fault(link=(0, 3), begin="1us")])


def test_jitter_makes_deliveries_late():
    schedule = sent(tp.switch(3, **SPEED), [(0, 1, 1000), (0, 2, 1000)])
    first, again, other = (arrivals(schedule, jitter="1us", seed=s) for s in (1, 1, 2))
    assert first == again != other
    assert all(4 * US <= time <= 5 * US for time in first + other)


def test_links_are_busy_as_long_as_their_bytes_take():
    schedule = sent(tp.switch(3, **SPEED), [(0, 1, 1000), (0, 2, 1000)])
    trace = simulate(schedule, timing="shared")
    assert trace.busy_ps().tolist() == simulate(schedule).busy_ps().tolist()
    assert trace.begin_ps.tolist() == [0, 0, US, US]
    assert trace.end_ps.tolist() == [2 * US, 2 * US, 3 * US, 3 * US]
    assert trace.critical_path()["transfer"].tolist() in ([0], [1])


def test_congestion_belongs_to_it():
    with pytest.raises(ValueError, match='timing "shared" is about congestion'):
        simulate(messages(tp.mesh(2), [(0, 1)]), timing="shared", congestion=False)


def test_a_ring_takes_what_its_schedule_says():
    for model in ({}, {"link_model": "blocking"}, {"reduce_bandwidth": "100GB/s"}):
        topology = tp.ring(6, **model)
        for kind in ("all_gather", "reduce_scatter", "all_reduce"):
            collective = co.named(kind, topology, "6MB", chunks=2)
            schedule = tacos.synthesize(topology, collective, engine="ring")
            assert simulate(schedule, timing="shared").time_ps == schedule.time_ps


# --- against exact fractions --------------------------------------------------------------------


def agrees(trace, placed, intervals, schedule):
    columns = (trace.begin_ps, trace.end_ps, trace.link, trace.transfer)
    assert sorted(zip(*(c.tolist() for c in columns), strict=True)) == sorted(intervals)
    npus = schedule.topology.npus
    ends = oracle.transfers_of(schedule)
    expected = sorted(
        (when, ends[i].crossing.destinations[end], i)
        for (i, end), when in placed.items()
        if ends[i].crossing.destinations[end] < npus
    )
    found = (trace.arrival_ps, trace.arrival_npu, trace.arrival_transfer)
    assert sorted(zip(*(c.tolist() for c in found), strict=True)) == expected


@given(orders())
def test_every_run_is_what_exact_fractions_say(order):
    schedule = order.retimed()
    agrees(simulate(schedule, timing="shared"), *sharing.run_schedule(schedule), schedule)


@given(st.data(), orders())
@settings(max_examples=50)
def test_faults_are_what_exact_fractions_say(data, order):
    schedule = order.retimed()
    assume(schedule.topology.links)
    faults, windows, late = data.draw(troubles(schedule))
    trace = simulate(
        schedule,
        timing="shared",
        faults=faults,
        stragglers=[Straggler(npu=n, late=f"{t}ps") for n, t in late.items()],
    )
    agrees(trace, *sharing.run_schedule(schedule, faults=windows, late=late), schedule)


@given(st.data(), quick_topologies() | st.sampled_from([
    tp.switch(5), tp.torus(3, 3), tp.product(tp.ring(3), tp.switch(2)), tp.fat_tree(2, 2),
    tp.dgx_h100(1, nvls=False), tp.switch(4, forwarding="store_and_forward"), tp.ring(5, link_model="blocking"),
]))  # fmt: skip
@settings(max_examples=60)
def test_engines_on_networks_are_what_exact_fractions_say(data, topology):
    kind = data.draw(st.sampled_from(
        ["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "broadcast", "gather"]
    ))  # fmt: skip
    collective = co.named(kind, topology, 1001, chunks=data.draw(st.integers(1, 2)))
    engine = data.draw(st.sampled_from(sorted(tacos.engines(topology, collective))))
    schedule = tacos.synthesize(topology, collective, engine=engine).expand()
    trace = simulate(schedule, timing="shared")
    agrees(trace, *sharing.run_schedule(schedule), schedule)
    short = simulate(schedule, timing="shared", record=False)
    assert short.npu_finish_ps.tolist() == trace.npu_finish_ps.tolist()
    assert short.busy_ps().tolist() == trace.busy_ps().tolist()


@given(st.data(), st.integers(2, 12))
@settings(max_examples=30)
def test_many_messages_at_once_are_what_exact_fractions_say(data, npus):
    """All at once through a switch: several levels of filling, and shares that do not come out even."""
    topology = data.draw(st.sampled_from([
        tp.switch(npus, bandwidth="123456789B/s"), tp.fully_connected(npus),
        tp.switch(npus, bandwidth="1GB/s", forwarding="store_and_forward"),
        tp.rail(2, npus, bandwidth="333333333333B/s"),
    ]))  # fmt: skip
    ends = st.permutations(range(topology.npus)).map(lambda order: order[:2])
    size = st.sampled_from([1, 999, 1000, 123_457])
    rows = data.draw(st.lists(st.tuples(ends, size), min_size=1, max_size=30))
    schedule = sent(topology, [(a, b, s) for (a, b), s in rows])
    agrees(simulate(schedule, timing="shared"), *sharing.run_schedule(schedule), schedule)


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_is_what_exact_fractions_say(seed):
    """More links than one repair of rates handles: all are filled first, then repaired."""
    draw = Random(seed)
    topology = tp.switch(40, bandwidth="123456789B/s")
    rows = [(*draw.sample(range(40), 2), draw.randrange(1, 5000)) for _ in range(90)]
    schedule = sent(topology, rows)
    agrees(simulate(schedule, timing="shared"), *sharing.run_schedule(schedule), schedule)


@given(st.data(), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_connections_that_come_and_go_are_what_exact_fractions_say(data, draw):
    """Chunks that go from NPU to NPU at random: rates are repaired over and over."""
    topology = data.draw(st.sampled_from([
        tp.switch(6), tp.fat_tree(3, 2), tp.fat_tree(2, 3, oversubscription=2),
        tp.dragonfly(3, 2), tp.product(tp.switch(3), tp.switch(2)),
    ]))  # fmt: skip
    ways, sizes = [], []
    for _ in range(draw.randint(2, 14)):
        ways.append(draw.sample(range(topology.npus), draw.randint(2, min(5, topology.npus))))
        sizes.append(draw.choice([1, 1000, draw.randrange(1, 100_000)]))
    schedule = walking(topology, ways, sizes)
    agrees(simulate(schedule, timing="shared"), *sharing.run_schedule(schedule), schedule)


@pytest.mark.parametrize(
    ("topology", "chunks"),
    [
        (tp.fat_tree(8, 2, bandwidth="123456789B/s"), 40),
        (tp.fat_tree(6, 3, uplinks=1, oversubscription=1.5), 40),
        (tp.fat_tree(3, 3, 2, oversubscription=2), 30),
        (tp.product(tp.switch(4, bandwidth="333333333333B/s"), tp.switch(3)), 30),
    ],
    ids=["fat-tree", "one-spine", "three-levels", "product"],
)
def test_a_crowd_that_comes_and_goes_is_what_exact_fractions_say(topology, chunks):
    """Dozens of messages at a time over routes of several links: one that begins or ends changes the rates of so many
    others that repairs are given up, filling resumes, and links with capacity to spare run out of it."""
    draw = Random(chunks)
    ways = [draw.sample(range(topology.npus), 4) for _ in range(chunks)]
    sizes = [draw.choice([1000, draw.randrange(1, 100_000)]) for _ in ways]
    schedule = walking(topology, ways, sizes)
    agrees(simulate(schedule, timing="shared"), *sharing.run_schedule(schedule), schedule)


def test_a_crowd_whose_links_change_their_speed_is_what_exact_fractions_say():
    """Links that limit many messages, and links with capacity to spare, become slower, stop and recover."""
    draw = Random(5)
    topology = tp.fat_tree(8, 2, bandwidth="1GB/s")
    ways = [draw.sample(range(topology.npus), 4) for _ in range(40)]
    schedule = walking(topology, ways, [draw.randrange(1, 100_000) for _ in ways])
    faults, windows = [], {}
    for link in draw.sample(range(topology.links), 12):
        begin = draw.randrange(schedule.time_ps)
        end = begin + draw.randrange(1, schedule.time_ps)
        slowdown = draw.choice([2, 4, None])
        ends = (int(topology.link_src[link]), int(topology.link_dst[link]))
        how = {} if slowdown is None else {"slowdown": slowdown}
        faults.append(Fault(link=ends, begin=f"{begin}ps", end=f"{end}ps", **how))
        windows[link] = [(begin, end, NEVER if slowdown is None else slowdown)]
    trace = simulate(schedule, timing="shared", faults=faults)
    agrees(trace, *sharing.run_schedule(schedule, faults=windows), schedule)


def test_a_message_alone_takes_its_schedule_s_time():
    """Whatever the bandwidth: rounded up to a picosecond like every duration of the model."""
    for bandwidth in (700, 123_456_789, 333_333_333_333, 10**15):
        for size in (1, 3, 1000, 12_345_677):
            topology = tp.switch(2, bandwidth=f"{bandwidth}B/s", latency="1ps")
            schedule = sent(topology, [(0, 1, size)])
            assert simulate(schedule, timing="shared").time_ps == schedule.time_ps


def test_results_do_not_depend_on_numbers_of_npus():
    """The same traffic among NPUs with other numbers takes the same time."""
    topology = tp.switch(9, bandwidth="1GB/s")
    rows = [(0, 1, 1000), (0, 2, 700), (3, 2, 900), (4, 2, 800), (4, 1, 1100), (5, 6, 50)]
    moved = [(8 - a, 8 - b, size) for a, b, size in rows]
    assert arrivals(sent(topology, rows)) == arrivals(sent(topology, moved))


def test_copies_and_sums_wait_for_their_turn():
    """An all-reduce over a switch whose messages share ports still ends with the right order of reads
    and writes: every NPU gets as many arrivals as in the schedule."""
    topology = tp.switch(4, **SPEED)
    table = routes(topology, pairs=([1, 2, 3, 0, 0, 0], [0, 0, 0, 1, 2, 3]))
    schedule = retime(
        co.all_reduce(topology, 4000, chunks=1).resized(4000), table,
        route=np.tile(range(6), 4), chunk=np.repeat(range(4), 6),
        step=np.tile([0, 0, 0, 1, 1, 1], 4), op=np.tile([REDUCE] * 3 + [COPY] * 3, 4),
        reads=READ_ACC,
    )  # fmt: skip
    trace = simulate(schedule, timing="shared")
    agrees(trace, *sharing.run_schedule(schedule), schedule)
    assert np.bincount(trace.arrival_npu).tolist() == [12, 4, 4, 4]
