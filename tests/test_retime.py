"""Retiming: hand-computed starts, and the service rule against the oracle's slow version.

Unless a test says otherwise links have 1 GB/s and 1 us, so that 1000 B take 1 us to send and 2 us
to arrive.
"""

from __future__ import annotations

from collections import Counter
from math import gcd

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import _core
from tacos import collective as co
from tacos import topology as tp
from tacos.errors import InfeasibleError
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE, retime, routes
from tests.support import oracle
from tests.support.strategies import Order, collectives, orders, random_topologies

US = 1_000_000  # picoseconds
SPEED = {"bandwidth": "1GB/s", "latency": "1us"}


def messages_from(topology, ends, size=1000):
    """Independent messages, one chunk each."""
    return co.send_recv(topology, [(src, dst, size) for src, dst in ends], chunks=1)


def starts(schedule):
    """Starts of the legs in microseconds, transfer by transfer in the order of chunks."""
    found = sorted((t.chunk, t.starts) for t in oracle.transfers_of(schedule))
    return [[start / US for start in legs] for _, legs in found]


# --- the model, by hand -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "second", "end"), [("pipelined", 1, 3), ("blocking", 2, 4)], ids=str
)
def test_two_transfers_on_one_link(model, second, end):
    """Pipelined: starts 1 us apart, ends after 1 + 1 + 1 us. Blocking: 2 us apart, after 2 + 2 us."""
    topology = tp.mesh(2, link_model=model, **SPEED)
    collective = messages_from(topology, [(0, 1), (0, 1)])
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=[0, 0], chunk=[0, 1], step=0)
    assert starts(schedule) == [[0], [second]]
    assert schedule.time_ps == end * US


def two_links(**model):
    """NPU 0 -> switch at 1 GB/s and 1 us, switch -> NPU 1 at 0.5 GB/s and 3 us."""
    links = [(0, 2, "1GB/s", "1us"), (2, 1, "0.5GB/s", "3us"), (1, 0, "1GB/s", "1us")]
    return tp.from_links(2, links, switches=1, **model)


def test_cut_through_over_links_of_different_speed():
    """Arrives after 1 + 3 us of latency and 2 us on the slow link, which bounds the second start.

    The slow link is taken from 1 to 3 us. The next head may reach it at 3, so it starts at 2; the
    first link would be free from 1 on.
    """
    topology = two_links()
    collective = messages_from(topology, [(0, 1), (0, 1)])
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=[0, 0], chunk=[0, 1], step=0)
    assert starts(schedule) == [[0], [2]]
    assert schedule.time_ps == (2 + 1 + 3 + 2) * US


def test_cut_through_over_blocking_links():
    """The slow link is taken for 3 + 2 us, from 1 to 6: the second starts at 5."""
    topology = two_links(link_model="blocking")
    collective = messages_from(topology, [(0, 1), (0, 1)])
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=[0, 0], chunk=[0, 1], step=0)
    assert starts(schedule) == [[0], [5]]


def test_store_and_forward():
    """The switch has the first chunk after 2 us and the second after 3; each then takes 3 + 2.

    The second waits in the switch from 3 to 4, when the slow link is free again.
    """
    topology = two_links(forwarding="store_and_forward")
    collective = messages_from(topology, [(0, 1), (0, 1)])
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=[0, 0], chunk=[0, 1], step=0)
    assert starts(schedule) == [[0, 2], [1, 4]]
    assert schedule.time_ps == (4 + 3 + 2) * US


def test_two_routes_share_a_port():
    """0 -> 2 and 1 -> 2 meet on the switch's link down to NPU 2, which is taken for 1 us each."""
    topology = tp.switch(3, **SPEED)
    collective = messages_from(topology, [(0, 2), (1, 2)])
    table = routes(topology, pairs=([0, 1], [2, 2]))
    schedule = retime(collective, table, route=[0, 1], chunk=[0, 1], step=0)
    assert starts(schedule) == [[0], [1]]
    swapped = retime(collective, table, route=[1, 0], chunk=[1, 0], step=0)
    assert starts(swapped) == [[1], [0]]


def test_an_npu_uses_all_its_links_at_once():
    topology = tp.fully_connected(4, **SPEED)
    collective = messages_from(topology, [(0, 1), (0, 2), (0, 3), (1, 0)])
    table = routes(topology, pairs=([0, 0, 0, 1], [1, 2, 3, 0]))
    schedule = retime(collective, table, route=range(4), chunk=range(4), step=0)
    assert starts(schedule) == [[0]] * 4


def test_latencies_offset_the_windows():
    """Both routes end on switch -> NPU 2. From 0 the head is there after 1 us, from 1 after 5.

    So both start at once and take the link from 1 to 2 and from 5 to 6. The second chunk of 0 may
    not slip into the gap between them: it waits until its head can follow at 6, and starts at 5.
    """
    ends = [(0, 3, "1us"), (1, 3, "5us"), (3, 2, "1us"), (2, 0, "1us"), (0, 1, "1us")]
    topology = tp.from_links(3, [(a, b, "1GB/s", lat) for a, b, lat in ends], switches=1)
    collective = messages_from(topology, [(0, 2), (1, 2), (0, 2)])
    table = routes(topology, pairs=([0, 1], [2, 2]))
    schedule = retime(collective, table, route=[0, 1, 0], chunk=[0, 1, 2], step=0)
    assert starts(schedule) == [[0], [0], [5]]


def test_a_route_through_an_npu_queues_per_hop():
    """0 -> 1 -> 2: NPU 1 has the chunk after 2 us, and sends it on when its own message has left."""
    topology = tp.mesh(3, **SPEED)
    collective = co.custom(topology, [1000, 3000], [[0], [1]], [[2], [2]])
    table = routes(topology, pairs=([0, 1], [2, 2]))
    schedule = retime(collective, table, route=[0, 1], chunk=[0, 1], step=0)
    assert starts(schedule) == [[0, 3], [0]]  # 3000 B keep 1 -> 2 busy until 3 us
    assert schedule.time_ps == 5 * US


def test_served_in_order_of_readiness_then_position():
    """NPU 1 gets chunk 0 after 2 us and chunk 1 after 3, and sends its own 4000 B until 4 us.

    Then they leave in the order in which they became ready, although the list has chunk 1 first.
    """
    topology = tp.mesh(3, **SPEED)
    collective = co.custom(topology, [1000, 1000, 4000], [[0], [0], [1]], [[2], [2], [2]])
    table = routes(topology, pairs=([0, 1], [1, 2]))
    schedule = retime(
        collective, table, route=[0, 0, 1, 1, 1], chunk=[0, 1, 1, 0, 2], step=[0, 0, 1, 1, 0]
    )
    onward = {t.chunk: t.starts[0] // US for t in oracle.transfers_of(schedule) if t.starts[0] > US}
    assert onward == {0: 4, 1: 5}


def test_ties_go_by_position():
    topology = tp.mesh(2, **SPEED)
    collective = messages_from(topology, [(0, 1)] * 3)
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=0 * np.arange(3), chunk=[2, 0, 1], step=0)
    assert schedule.chunk.tolist() == [2, 0, 1]
    steps = retime(collective, table, route=0 * np.arange(3), chunk=[2, 0, 1], step=[1, 0, 0])
    assert steps.chunk.tolist() == [0, 1, 2]


def test_reducing_takes_its_time():
    """Adding 1000 B at 0.5 GB/s takes 2 us after they arrive; only then does the sum go on."""
    topology = tp.mesh(3, reduce_bandwidth="0.5GB/s", **SPEED)
    collective = co.reduce(topology, 1000, root=2, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    schedule = retime(collective, table, route=[0, 1], chunk=0, step=[0, 1], op=REDUCE)
    assert [t.starts for t in oracle.transfers_of(schedule)] == [[0], [4 * US]]
    assert schedule.time_ps == 8 * US
    copied = co.broadcast(topology, 1000, chunks=1)  # copying costs nothing
    assert retime(copied, table, route=[0, 1], chunk=0, step=[0, 1]).time_ps == 4 * US


def test_a_reduce_tree_waits_for_its_last_input():
    """Heads reach the switch after 1 us and 4 us; it sends on at 4 us, so the latency is 5 us."""
    links = [(0, 3, "1GB/s", "1us"), (1, 3, "1GB/s", "4us"), (3, 2, "1GB/s", "1us")]
    back = [(2, 0, "1GB/s", "1us"), (0, 1, "1GB/s", "1us")]
    topology = tp.from_links(3, links + back, switches=["reduce"])
    collective = co.custom(topology, [1000, 1000], [[0, 1], [0]], [[2], [2]], reduces=True)
    table = routes(topology, links=[[0, 1, 2], [0, 2]], kinds=["reduce", "path"])
    schedule = retime(collective, table, route=[0, 1], chunk=[0, 1], step=0)
    # The path's head would reach the last link at 2 us, but the tree has it from 4 to 5.
    assert starts(schedule) == [[0], [4]]
    assert schedule.time_ps == (4 + 1 + 1 + 1) * US


def test_a_transfer_that_was_overtaken_in_its_line_starts_once():
    """Chunk 0 takes 0 -> 1 for 3 us. Chunks 1 and 2 queue for it as soon as NPU 1 has sent its own copy on.

    NPU 1 sends chunk 1 first, so chunk 1 is in line first; chunk 2 has the lower step and overtakes it.
    Seven more go from 1 to 2: only with many transfers per route does the core keep durations in a table.
    """
    topology = tp.fully_connected(4, **SPEED)
    before = [[0], [0, 1], [0, 1], *[[1]] * 7]
    collective = co.custom(topology, [3000, *[1000] * 9], before, [[1, 2, 3]] * 10, reduces=False)
    table = routes(topology, pairs=([0, 1, 1], [1, 2, 3]))
    schedule = retime(
        collective,
        table,
        route=[0, 1, 2, 0, 0, *[1] * 7],
        chunk=[0, 1, 2, 2, 1, *range(3, 10)],
        step=[0, 0, 0, 1, 2, *[3] * 7],
    )
    assert starts(schedule) == [[0], [0], [4], [0], [3], *[[start] for start in range(1, 8)]]


def test_exchanges_of_one_step_start_together():
    """NPU 0 still sends 3000 B to NPU 1; both halves of the exchange wait for that link."""
    topology = tp.mesh(2, **SPEED)
    collective = co.custom(
        topology, [3000, 1000], [[0], [0, 1]], [[1], [0, 1]], reduces=[False, True]
    )
    table = routes(topology, pairs=([0, 1], [1, 0]))
    schedule = retime(
        collective, table, route=[0, 0, 1], chunk=[0, 1, 1], step=0, op=[COPY, REDUCE, REDUCE]
    )
    assert starts(schedule) == [[0], [3], [3]]
    assert tacos.verify(schedule).ok


def test_exchanges_over_one_port_start_one_after_the_other():
    """Each of three NPUs sends 1000 B to both others through a switch: 1 us a message, 3 us to arrive.

    In rounds, the second message of each leaves 1 us after the first, 2 us before anything arrives.
    """
    topology = tp.switch(3, **SPEED)
    collective = co.custom(topology, [1000], [[0, 1, 2]], [[0, 1, 2]], reduces=True)
    table = routes(topology, pairs=([0, 1, 2, 0, 1, 2], [1, 2, 0, 2, 0, 1]))
    schedule = retime(collective, table, route=list(range(6)), chunk=0, step=0, op=REDUCE)
    assert sorted(starts(schedule)) == [[0], [0], [0], [1], [1], [1]]
    assert schedule.time_ps == 4 * US
    assert tacos.verify(schedule).ok


def test_exchanges_whose_last_part_leaves_too_late_can_never_start():
    """Without latency the first of three messages arrives when the second leaves."""
    topology = tp.switch(4, bandwidth="1GB/s", latency=0)
    collective = co.custom(topology, [1000], [[0, 1, 2, 3]], [[0, 1, 2, 3]], reduces=True)
    pairs = [(i, (i + ahead) % 4) for ahead in (1, 2, 3) for i in range(4)]
    table = routes(topology, pairs=([i for i, _ in pairs], [j for _, j in pairs]))
    with pytest.raises(InfeasibleError, match="one step exchange chunk 0 over shared links: one"):
        retime(collective, table, route=list(range(12)), chunk=0, step=0, op=REDUCE)


def test_a_value_is_read_before_it_is_overwritten():
    """NPU 1 sends its sum to 2 at 3 us, when its link is free; only then may 0 overwrite it.

    Without this rule, 0's copy would start at once and arrive after 2 us.
    """
    topology = tp.mesh(3, **SPEED)
    collective = co.custom(topology, [1000, 3000], [[0, 1], [1]], [[1], [2]], reduces=[True, False])
    table = routes(topology, pairs=([1, 0], [2, 1]))
    schedule = retime(
        collective, table, route=[0, 0, 1], chunk=[1, 0, 0], step=[0, 1, 2], op=[COPY, COPY, COPY]
    )
    found = [(t.chunk, t.crossing.sources, t.starts) for t in oracle.transfers_of(schedule)]
    assert sorted(found) == [(0, [0], [3 * US]), (0, [1], [3 * US]), (1, [1], [0])]


def test_writers_keep_their_order_around_a_copy():
    """0 -> 1 copies (it arrives after 2 us), then 2 -> 1 adds; what is added before the copy is lost."""
    topology = tp.mesh(3, **SPEED)
    collective = co.custom(topology, [1000], [[0, 2]], [[1]], reduces=True)
    table = routes(topology, pairs=([0, 2], [1, 1]))

    def ordered(ops):
        schedule = retime(collective, table, route=[0, 1], chunk=0, step=[0, 1], op=ops)
        return [t.starts for t in oracle.transfers_of(schedule)]

    assert ordered([COPY, REDUCE]) == [[0], [2 * US]]
    assert ordered([REDUCE, COPY]) == [[0], [2 * US]]
    assert ordered([REDUCE, REDUCE]) == [[0], [0]]  # sums may arrive in any order


def test_reading_the_input_waits_for_nothing():
    topology = tp.mesh(3, **SPEED)
    collective = co.custom(topology, [1000], [[0, 1]], [[2]], reduces=True)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    for reads, second in ((READ_ACC, 2 * US), (READ_INPUT, 0)):
        schedule = retime(
            collective, table, route=[0, 1], chunk=0, step=[0, 1], op=REDUCE, reads=reads
        )
        assert max(t.starts[0] for t in oracle.transfers_of(schedule)) == second


def test_steps_need_not_be_sorted_nor_dense():
    topology = tp.mesh(3, **SPEED)
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    schedule = retime(collective, table, route=[1, 0], chunk=0, step=[70, -5])
    assert schedule.time_ps == 4 * US
    assert tacos.verify(schedule).ok


def test_steps_are_no_barriers():
    topology = tp.mesh(3, **SPEED)
    collective = messages_from(topology, [(0, 1), (2, 1)])
    table = routes(topology, pairs=([0, 2], [1, 1]))
    schedule = retime(collective, table, route=[0, 1], chunk=[0, 1], step=[0, 99])
    assert starts(schedule) == [[0], [0]]


def test_chunks_without_bytes_are_left_out():
    topology = tp.mesh(2, **SPEED)
    collective = co.broadcast(topology, 1, chunks=2)
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=[0, 0], chunk=[0, 1], step=0)
    assert schedule.chunk.tolist() == [0]
    assert tacos.verify(schedule).ok


def test_an_empty_order_takes_no_time():
    topology = tp.mesh(2)
    collective = co.broadcast(topology, 1, group=[0], chunks=1)
    schedule = retime(collective, routes(topology, links=[]), route=[], chunk=[], step=[])
    assert (schedule.transfers, schedule.time_ps, schedule.algbw_Bps) == (0, 0, 0)
    assert tacos.verify(schedule).ok


def test_a_crowd_at_one_link_costs_no_retries():
    """NPU 1's chunk loses the last link again and again to those of NPU 0, whose heads come from farther.

    If every loss doubled its attempts, this would never end.
    """
    ends = [(0, 3), (3, 4), (1, 4), (4, 2), (2, 0), (2, 1)]
    topology = tp.from_links(3, [(a, b, "1GB/s", "1us") for a, b in ends], switches=2)
    many = 3000
    collective = messages_from(topology, [(0, 2)] * many + [(1, 2)])
    table = routes(topology, pairs=([0, 1], [2, 2]))
    schedule = retime(collective, table, route=[0] * many + [1], chunk=np.arange(many + 1), step=0)
    assert schedule.time_ps == (many + 1 + 3) * US


# --- long schedules -----------------------------------------------------------------------------


def test_starts_that_need_more_than_32_bits():
    """Chunks of 1.000003 s: the starts have no large common divisor, and 20 s are 2^44 ps."""
    topology = tp.mesh(2, bandwidth="1MB/s", latency="1ps")
    collective = messages_from(topology, [(0, 1)] * 20, size=1_000_003)
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=[0] * 20, chunk=range(20), step=0)
    exact = 20 * 1_000_003 * US + 1
    assert tacos.verify(schedule).ok
    assert exact <= schedule.time_ps <= exact + 20 * schedule.quantum_ps
    assert schedule.time_ps < exact * 1.000001


def test_a_coarse_schedule_keeps_its_exact_starts():
    """Starts of 0 and 1.28 ms have a large common divisor, so that nothing is rounded."""
    topology = tp.mesh(2, bandwidth="50GB/s", latency=0)
    collective = messages_from(topology, [(0, 1)] * 2, size=64_000_000)
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=[0, 0], chunk=[0, 1], step=0)
    assert schedule.time_ps == 2 * 1280 * US
    assert tacos.verify(schedule).ok


def test_days():
    """256 chunks of an hour each: 10 days."""
    topology = tp.mesh(2, bandwidth="1B/s", latency="1ps")
    collective = messages_from(topology, [(0, 1)] * 256, size=3600)
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=[0] * 256, chunk=range(256), step=0)
    assert tacos.verify(schedule).ok
    assert schedule.time_ps == pytest.approx(256 * 3600 * 10**12, rel=1e-6)


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"route": [1]}, "a transfer names route 1, but there are 1"),
        ({"route": [-1]}, "a transfer names route -1, but there are 1"),
        ({"chunk": [3]}, "transfer 0 names chunk 3, but there are 3"),
        ({"op": [2]}, "transfer 0 has an unknown op or reads"),
        ({"reads": [2]}, "transfer 0 has an unknown op or reads"),
    ],
)
def test_wrong_orders_are_refused(change, sentence):
    topology = tp.mesh(3)
    collective = co.all_gather(topology, 3000, chunks=1)
    order = {"route": [0], "chunk": [0], "step": [0]} | change
    with pytest.raises(ValueError, match=sentence):
        retime(collective, routes(topology, pairs=([0], [1])), **order)


def test_wrong_arguments_are_refused():
    topology = tp.mesh(3)
    table = routes(topology, pairs=([0], [1]))
    with pytest.raises(ValueError, match="retiming needs a collective with a number of chunks"):
        retime(co.all_gather(topology, 3000), table, route=[0], chunk=[0], step=[0])
    with pytest.raises(ValueError, match="the collective is for 4 NPUs, but the topology has 3"):
        retime(co.all_gather(4, 3000, chunks=1), table, route=[0], chunk=[0], step=[0])
    column = np.zeros(1, np.uint8)
    with pytest.raises(ValueError, match="the order's columns differ in length"):
        _core.retime(
            co.all_gather(topology, 3000, chunks=1),
            table,
            np.zeros(1, np.int32),
            np.zeros(2, np.uint32),
            np.zeros(1, np.int32),
            column,
            column,
        )


# --- properties ---------------------------------------------------------------------------------


def service(order):
    """Return each transfer with its starts, from retime and from the oracle; None beyond 32 bits."""
    rows = sorted(order.rows, key=lambda row: row[2])
    rows = [row for row in rows if order.collective.chunk_bytes()[row[1]] > 0]
    slow = oracle.earliest_starts(order.collective, order.routes, rows)
    flat = [start for legs in slow for start in legs]
    if max(flat, default=0) // (gcd(*flat) or 1) >= 2**32:
        return None
    schedule = order.retimed()
    lane_routes = np.repeat(schedule.lane_route, np.diff(schedule.lane_begin)).tolist()
    fast = [
        (route, t.chunk, t.op, t.reads, t.starts)
        for route, t in zip(lane_routes, oracle.transfers_of(schedule), strict=True)
    ]
    expected = [
        (route, chunk, op, reads, legs)
        for (route, chunk, _, op, reads), legs in zip(rows, slow, strict=True)
    ]
    return sorted(fast), sorted(expected)


@given(orders())
def test_every_leg_starts_when_the_service_rule_says(order):
    fast, slow = service(order)
    assert fast == slow


def test_slow_networks_too():
    done: Counter[bool] = Counter()

    @given(orders(random_topologies(max_npus=4), max_chunks=2))
    @settings(
        max_examples=100, derandomize=True
    )  # the same ones every time, since they are counted
    def check(order):
        both = service(order)
        done[both is not None] += 1
        assert both is None or both[0] == both[1]
        assert tacos.verify(order.retimed()).ok

    check()
    assert done[True] > 0.5 * done.total()


@st.composite
def exchanges(draw):
    """Recursive doubling of several chunks on networks where partners share ports or links."""
    n = draw(st.sampled_from([2, 4, 8]))
    build = draw(st.sampled_from([tp.fully_connected, tp.switch]))
    model = draw(st.sampled_from(["pipelined", "blocking"]))
    topology = build(n, link_model=model, **SPEED)
    collective = co.all_reduce(topology, n * draw(st.sampled_from([999, 1000])) + 1, chunks=1)
    hops = [(i, i ^ 1 << k, k) for k in range(n.bit_length() - 1) for i in range(n)]
    table = routes(topology, pairs=([i for i, _, _ in hops], [j for _, j, _ in hops]))
    chunks = draw(st.permutations(range(n)))[:3]
    rows = [
        (route, chunk, step, REDUCE, READ_ACC)
        for chunk in chunks
        for route, (_, _, step) in enumerate(hops)
    ]
    return Order(collective, table, rows)


@given(exchanges())
def test_exchanges_start_when_the_service_rule_says(order):
    fast, slow = service(order)
    assert fast == slow


@st.composite
def exchanges_among_many(draw):
    """In each step, all NPUs of a group of three to five exchange their sums."""
    radix, rounds = draw(st.sampled_from([(3, 1), (3, 2), (4, 1), (4, 2), (5, 1)]))
    n = radix**rounds

    def build(n, **model):
        return tp.fat_tree(3, n // 3, **model) if n % 3 == 0 else tp.switch(n, **model)

    build = draw(st.sampled_from([tp.fully_connected, tp.switch, build]))
    model = draw(st.sampled_from(["pipelined", "blocking"]))
    latency = draw(st.sampled_from(["1us", "100us"]))
    topology = build(n, link_model=model, bandwidth="1GB/s", latency=latency)
    collective = co.all_reduce(topology, n * draw(st.sampled_from([999, 1000])) + 1, chunks=1)
    hops = [
        (i, i // (radix * far) * (radix * far) + (i + ahead * far) % (radix * far), step)
        for step, far in enumerate(radix**k for k in range(rounds))
        for ahead in range(1, radix)
        for i in range(n)
    ]
    table = routes(topology, pairs=([i for i, _, _ in hops], [j for _, j, _ in hops]))
    chunks = draw(st.permutations(range(n)))[:2]
    rows = [
        (route, chunk, step, REDUCE, READ_ACC)
        for chunk in chunks
        for route, (_, _, step) in enumerate(hops)
    ]
    return Order(collective, table, rows)


@given(exchanges_among_many())
@settings(max_examples=25)
def test_exchanges_among_many_start_when_the_service_rule_says(order):
    try:
        schedule = order.retimed()
    except InfeasibleError:
        topology = order.routes.topology
        assert topology.link_model == "blocking" or topology.link_latency_ps.max() == US
        return
    moved = {row[1] for row in order.rows}
    wrong = [v for v in tacos.verify(schedule, limit=10**6).violations if v.chunk in moved]
    assert not wrong
    fast, slow = service(order)
    assert fast == slow


@given(orders())
def test_the_result_is_a_function_of_the_order(order):
    assert order.retimed() == order.retimed()


@given(st.data())
def test_time_scales_with_latency_and_size(data):
    """Twice the latencies and half the bandwidths: everything takes twice as long."""
    npus = data.draw(st.integers(2, 5))
    steps = [(i, (i + hop) % npus) for i in range(npus) for hop in {1, npus - 1}]
    rates = data.draw(
        st.lists(st.sampled_from([2, 4, 8]), min_size=len(steps), max_size=len(steps))
    )
    delays = data.draw(st.lists(st.integers(0, 900), min_size=len(steps), max_size=len(steps)))

    def network(factor):
        links = [
            (a, b, rate * 10**9 // factor, f"{delay * factor}ns")
            for (a, b), rate, delay in zip(steps, rates, delays, strict=True)
        ]
        return tp.from_links(npus, links)

    order = data.draw(orders(st.just(network(1)), max_chunks=2))
    stretched = routes(network(2), links=oracle.route_links(order.routes))
    twice = Order(order.collective, stretched, order.rows).retimed()
    assert twice.time_ps == 2 * order.retimed().time_ps


@given(st.integers(2, 6), st.data())
def test_the_order_of_a_list_matters_only_where_links_are_shared(n, data):
    """Each NPU sends to the next: no two transfers of a step share a link, so any list gives equal times."""
    topology = tp.ring(n, bidirectional=False, **SPEED)
    collective = co.all_gather(topology, n * 1000, chunks=1)
    table = routes(topology, links=[[i] for i in range(n)])
    rows = [((i + k) % n, i, k, COPY, READ_ACC) for k in range(n - 1) for i in range(n)]
    shuffled = Order(collective, table, data.draw(st.permutations(rows)))
    assert shuffled.retimed() == Order(collective, table, rows).retimed()
    assert shuffled.retimed().time_ps == (n - 1) * 2 * US


@given(st.integers(2, 5).flatmap(lambda n: st.tuples(st.just(n), collectives(n))))
def test_direct_messages_run_back_to_back(drawn):
    """Direct messages on a clique: each NPU pair's link serves its messages back to back."""
    npus, collective = drawn
    topology = tp.fully_connected(npus, **SPEED)
    ends = [
        (chunk, collective.inputs(chunk)[0], out)
        for chunk in range(collective.chunks)
        for out in collective.outputs(chunk)
        if collective.inputs(chunk)[0] != out and not collective.reduces(chunk)
    ]
    assume(ends)
    chunk, src, dst = zip(*ends, strict=True)
    table = routes(topology, pairs=(src, dst))
    schedule = retime(collective, table, route=range(len(ends)), chunk=chunk, step=0)
    per_link: dict[tuple[int, int], int] = {}
    for c, a, b in ends:
        sending = oracle.sending_time(int(collective.chunk_bytes()[c]), 10**9)
        per_link[a, b] = per_link.get((a, b), 0) + sending
    assert schedule.time_ps == max(per_link.values()) + US
