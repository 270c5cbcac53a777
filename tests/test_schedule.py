"""Schedules: the validating constructor, queries, and derived schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE, Schedule, retime, routes
from tacos.synth import ENGINES
from tests.support import oracle
from tests.support.strategies import Order, orders, quick_topologies

US = 1_000_000  # picoseconds
SPEED = {"bandwidth": "1GB/s", "latency": "1us"}


def ring_all_gather(n=4, *, size=None, chunks=1, topology=None):
    """Every chunk once around: n-1 steps of 2 us for chunks of 1000 B."""
    topology = topology or tp.ring(n, bidirectional=False, **SPEED)
    collective = co.all_gather(topology, size or n * chunks * 1000, chunks=chunks)
    table = routes(topology, pairs=(range(n), [(i + 1) % n for i in range(n)]))
    rows = [
        ((i + k) % n, i * chunks + c, k, COPY, READ_ACC)
        for k in range(n - 1)
        for i in range(n)
        for c in range(chunks)
    ]
    return Order(collective, table, rows).retimed()


def ring_reduce_scatter(n=4, *, size=None):
    """The sum of chunk i starts at NPU i+1 and ends, once around, at NPU i."""
    topology = tp.ring(n, bidirectional=False, **SPEED)
    collective = co.reduce_scatter(topology, size or n * 1000, chunks=1)
    table = routes(topology, pairs=(range(n), [(i + 1) % n for i in range(n)]))
    rows = [((i + 1 + k) % n, i, k, REDUCE, READ_ACC) for k in range(n - 1) for i in range(n)]
    return Order(collective, table, rows).retimed()


# --- the constructor ----------------------------------------------------------------------------


def columns(**changes):
    """Two lanes: chunks 0 and 1 from NPU 0 to 1, and over two hops from 1 to 3."""
    topology = tp.ring(4, bidirectional=False, **SPEED)
    return {
        "collective": co.broadcast(topology, 3000, chunks=3),
        "routes": routes(topology, links=[[0], [1, 2]]),
        "lane_route": np.array([0, 1], np.int32),
        "lane_op": np.array([COPY, COPY], np.uint8),
        "lane_reads": np.array([READ_ACC, READ_INPUT], np.uint8),
        "lane_begin": np.array([0, 2, 4], np.int64),
        "chunk": np.array([0, 1, 0, 1], np.uint32),
        "start": np.array([0, 1, 2, 3, 4, 5], np.uint32),
        "quantum_ps": US,
    } | changes


def test_the_columns_are_kept():
    schedule = Schedule(**columns())
    assert schedule.form == "packed"
    assert (schedule.transfers, schedule.stored_transfers) == (4, 4)
    for name in ("lane_route", "lane_op", "lane_reads", "lane_begin", "chunk", "start"):
        assert getattr(schedule, name).tolist() == columns()[name].tolist()
    assert schedule.quantum_ps == US
    assert (schedule.orders, schedule.node_image.size, schedule.link_image.size) == ([], 0, 0)
    assert schedule.time_ps == (5 + 2) * US  # the last leg starts at 5 us
    assert schedule.topology is schedule.routes.topology


def ints(*values):
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"collective": co.broadcast(4, 3000)},
            "a schedule needs a collective with a number of chunks",
        ),
        (
            {"collective": co.broadcast(5, 3000, chunks=3)},
            "the collective is for 5 NPUs, but the topology has 4",
        ),
        ({"lane_op": np.zeros(1, np.uint8)}, "lane columns do not fit together"),
        ({"lane_reads": np.zeros(3, np.uint8)}, "lane columns do not fit together"),
        ({"lane_begin": np.array([0, 4])}, "lane columns do not fit together"),
        ({"lane_begin": np.array([1, 2, 4])}, "lane columns do not fit together"),
        ({"lane_begin": np.array([0, 5, 4])}, "lane columns do not fit together"),
        ({"lane_begin": np.array([0, 2, 3])}, "lane columns do not fit together"),
        ({"lane_route": ints(0, 2)}, "lane 1 names route 2, but there are 2"),
        ({"lane_route": ints(-1, 1)}, "lane 0 names route -1, but there are 2"),
        ({"lane_op": np.array([0, 2], np.uint8)}, "lane 1 has an unknown op or reads"),
        ({"lane_reads": np.array([2, 0], np.uint8)}, "lane 0 has an unknown op or reads"),
        ({"start": np.arange(4, dtype=np.uint32)}, "the schedule has 4 starts, its routes need 6"),
        (
            {"start": np.array([1, 0, 2, 3, 4, 5], np.uint32)},
            "the transfers of lane 0 are not ordered by start",
        ),
        (
            {"start": np.array([0, 1, 2, 3, 5, 4], np.uint32)},
            "the transfers of lane 1 are not ordered by start",
        ),
        (
            {"chunk": np.array([0, 1, 0, 3], np.uint32)},
            "a transfer names chunk 3, but there are 3",
        ),
        (
            {"collective": co.broadcast(4, 1, chunks=3)},
            "chunk 1 has no bytes to transfer",
        ),
        ({"quantum_ps": 0}, "the time quantum is 0 ps, not positive"),
        ({"quantum_ps": 2**62}, "the schedule takes over 26 days"),
        ({"provenance": "by hand"}, "the provenance is not JSON: by hand"),
        ({"orders": [4]}, "a symmetry needs node_image and link_image"),
        (
            {"orders": [4], "node_image": ints(1, 2, 3), "link_image": ints(1, 2, 3, 0)},
            "the symmetry's columns do not fit the topology",
        ),
        (
            {"orders": [4], "node_image": ints(1, 2, 3, 0), "link_image": ints(1, 2, 3, 0, 0)},
            "the symmetry's columns do not fit the topology",
        ),
        (
            {"orders": [0], "node_image": ints(1, 2, 3, 0), "link_image": ints(1, 2, 3, 0)},
            "a generator has order 0",
        ),
        (
            {"orders": [5], "node_image": ints(1, 2, 3, 0), "link_image": ints(1, 2, 3, 0)},
            "the symmetry group is larger than the number of NPUs",
        ),
        (
            {"orders": [4], "node_image": ints(1, 2, 4, 0), "link_image": ints(1, 2, 3, 0)},
            "the symmetry leaves the topology",
        ),
        (
            {"orders": [4], "node_image": ints(1, 2, 3, 0), "link_image": ints(1, 2, -3, 0)},
            "the symmetry leaves the topology",
        ),
    ],
)
def test_wrong_columns_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        Schedule(**columns(**change))


def test_the_columns_are_copied_unless_given_away():
    chunk = np.array([0, 1, 0, 1], np.uint32)
    kept = Schedule(**columns(chunk=chunk))
    given_away = Schedule(**columns(chunk=chunk, given_away=True))
    assert np.shares_memory(given_away.chunk, chunk)
    chunk[0] = 2
    assert kept.chunk.tolist() == [0, 1, 0, 1]


def test_schedules_do_not_change():
    schedule = ring_all_gather()
    for name in ("lane_route", "lane_op", "lane_reads", "lane_begin", "chunk", "start"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(schedule, name)[0] = 1
    with pytest.raises(AttributeError):
        schedule.quantum_ps = 5
    assert not hasattr(schedule, "__dict__")


def test_equality_is_by_topology_collective_and_transfers():
    schedule = ring_all_gather()
    assert schedule == ring_all_gather()
    assert hash(schedule) == hash(ring_all_gather())
    assert schedule == schedule.with_provenance({"engine": "hand"})
    slow = tp.ring(4, bidirectional=False, bandwidth="1GB/s", latency="2us")
    others = [ring_all_gather(5), ring_all_gather(size=8000), ring_all_gather(topology=slow), None]
    assert all(schedule != other for other in others)
    assert Schedule(**columns()) != Schedule(**columns(quantum_ps=1))


def test_repr():
    assert repr(ring_all_gather()) == "<tacos.Schedule packed: 12 transfers, ideal 6.000000 us>"


def test_provenance_comes_back_as_it_went_in():
    told = {"engine": "ring", "seed": 3, "options": {"é": [1, 2.5, None, True]}}
    topology = tp.ring(2)
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    schedule = retime(collective, table, route=[0], chunk=[0], step=[0], provenance=told)
    assert schedule.provenance == told
    assert schedule.with_provenance({}).provenance == {}
    assert schedule.provenance == told
    assert schedule.reverse().provenance == told


def test_efficiency_needs_a_bound():
    schedule = ring_all_gather()  # 6 us
    assert schedule.efficiency is None
    assert schedule.with_facts(bound_ps=3 * 10**6).efficiency == 0.5


@given(orders())
def test_a_transfer_takes_eight_bytes(order):
    schedule = order.retimed()
    legs = schedule.start.size - schedule.transfers  # legs beyond the first take one more start
    lanes = schedule.lane_route.size
    assert schedule.memory_bytes <= 8 * schedule.transfers + 4 * legs + 32 * lanes + 32
    assert schedule.memory_bytes >= 8 * schedule.transfers


def test_memory_of_many_chunks():
    schedule = ring_all_gather(4, chunks=500)
    assert schedule.transfers == 4 * 3 * 500
    assert schedule.memory_bytes < 8.1 * schedule.transfers


# --- queries ------------------------------------------------------------------------------------


@given(orders())
def test_rows_say_what_the_oracle_says(order):
    schedule = order.retimed()
    expected = sorted(
        (t.starts[0], i, src, dst, t.chunk, t.op, t.reads, arrival)
        for i, t in enumerate(oracle.transfers_of(schedule))
        for src in t.crossing.sources
        for dst, arrival in zip(t.crossing.destinations, t.arrivals, strict=True)
    )
    rows = schedule.rows()
    names = ("start_ps", "transfer", "src", "dst", "chunk", "op", "reads", "arrival_ps")
    found = list(zip(*(rows[name].tolist() for name in names), strict=True))
    assert sorted(found) == expected
    assert [row[:2] for row in found] == [row[:2] for row in expected]  # ordered by start
    assert rows["bytes"].tolist() == schedule.collective.chunk_bytes()[rows["chunk"]].tolist()
    assert schedule.time_ps == max((row[-1] for row in found), default=0)
    for npu in range(schedule.topology.npus):
        mine = schedule.rows(npu=npu)
        assert list(zip(*(mine[name].tolist() for name in names), strict=True)) == [
            row for row in found if npu in row[2:4]
        ]
    for link in range(schedule.topology.links):
        over = {
            i
            for i, t in enumerate(oracle.transfers_of(schedule))
            if link in [window[0] for window in t.crossing.windows]
        }
        assert set(schedule.rows(link=link)["transfer"].tolist()) == over


def test_rows_of_what_does_not_exist_are_refused():
    schedule = ring_all_gather()
    with pytest.raises(
        ValueError, match="npu is 99, but there is no such NPU; the NPUs are 0 to 3"
    ):
        schedule.rows(npu=99)
    with pytest.raises(ValueError, match="link is -3, but there is no such link"):
        schedule.rows(link=-3)


@given(orders())
def test_links_carry_what_the_oracle_says(order):
    schedule = order.retimed()
    sizes = schedule.collective.chunk_bytes()
    carried = np.zeros(schedule.topology.links, np.int64)
    busy = np.zeros(schedule.topology.links, np.int64)
    for t in oracle.transfers_of(schedule):
        for link, _, enter, leave in t.crossing.windows:
            carried[link] += sizes[t.chunk]
            busy[link] += leave - enter
    assert schedule.link_bytes().tolist() == carried.tolist()
    assert schedule.link_utilisation() == pytest.approx(busy / max(schedule.time_ps, 1))
    assert (schedule.link_utilisation() <= 1 + 1e-9).all()


@pytest.mark.parametrize(
    ("kind", "factor"), [("all_gather", 3 / 4), ("reduce_scatter", 3 / 4), ("broadcast", 1)]
)
def test_bandwidths_are_those_of_nccl_tests(kind, factor):
    """4000 B in 6 us; busbw is algbw times (n-1)/n, and algbw itself for a broadcast."""
    schedule = ring_reduce_scatter() if kind == "reduce_scatter" else ring_all_gather()
    if kind == "broadcast":
        topology = schedule.topology
        table = routes(topology, pairs=([0, 1, 2], [1, 2, 3]))
        collective = co.broadcast(topology, 1000, chunks=1)
        schedule = retime(collective, table, route=[0, 1, 2], chunk=0, step=[0, 1, 2])
    assert schedule.time_ps == 6 * US
    assert schedule.time_s == pytest.approx(6e-6)
    algbw = schedule.collective.size_bytes / 6e-6
    assert schedule.algbw_Bps == pytest.approx(algbw)
    assert schedule.busbw_Bps == pytest.approx(algbw * factor)


def test_dependencies_by_hand():
    """0 -> 1 -> 2 -> 3 of one chunk: each transfer reads what the one before wrote."""
    topology = tp.mesh(4, **SPEED)
    table = routes(topology, pairs=([0, 1, 2], [1, 2, 3]))
    collective = co.broadcast(topology, 1000, chunks=1)
    begin, writer = retime(
        collective, table, route=[0, 1, 2], chunk=0, step=[0, 1, 2]
    ).dependencies()
    assert (begin.tolist(), writer.tolist()) == ([0, 0, 1, 2], [0, 1])


def test_dependencies_of_sums_and_inputs():
    """NPU 2 reads its sum with 0 and 1; an NPU that reads its input depends on nothing."""
    topology = tp.fully_connected(4, **SPEED)
    table = routes(topology, pairs=([0, 1, 2], [2, 2, 3]))
    collective = co.custom(topology, [1000], [[0, 1, 2]], [[3]], reduces=True)
    for reads, expected in ((READ_ACC, [0, 1]), (READ_INPUT, [])):
        schedule = retime(
            collective, table, route=[0, 1, 2], chunk=0, step=[0, 0, 1], op=REDUCE, reads=reads
        )
        begin, writer = schedule.dependencies()
        assert writer[begin[2] : begin[3]].tolist() == expected


def test_a_copy_ends_earlier_dependencies():
    topology = tp.fully_connected(4, **SPEED)
    table = routes(topology, pairs=([0, 1, 2], [2, 2, 3]))
    collective = co.custom(topology, [1000], [[0, 1, 2]], [[3]], reduces=True)
    schedule = retime(
        collective, table, route=[0, 1, 2], chunk=0, step=[0, 1, 2], op=[REDUCE, COPY, REDUCE]
    )
    writers = {
        (int(schedule.lane_route[i]), int(schedule.lane_op[i])): i
        for i in range(schedule.transfers)
    }
    begin, writer = schedule.dependencies()
    last = writers[2, REDUCE]
    assert writer[begin[last] : begin[last + 1]].tolist() == [writers[1, COPY]]


@given(orders())
def test_dependencies_are_writers_that_arrived_in_time(order):
    schedule = order.retimed()
    begin, writer = schedule.dependencies()
    transfers = oracle.transfers_of(schedule)
    for i, reader in enumerate(transfers):
        for w in writer[begin[i] : begin[i + 1]].tolist():
            shared = set(reader.crossing.sources) & set(transfers[w].crossing.destinations)
            assert shared
            assert transfers[w].chunk == reader.chunk
            assert min(transfers[w].arrivals) <= reader.starts[0]
        if reader.reads == READ_INPUT:
            assert begin[i] == begin[i + 1]


# --- derived schedules --------------------------------------------------------------------------


def rotated(n=4):
    """The ring's all-gather as an orbit: chunk 0 once around."""
    topology = tp.ring(n, bidirectional=False, **SPEED)
    image = np.roll(np.arange(n, dtype=np.int32), -1)
    return Schedule(
        collective=co.all_gather(topology, n * 1000, chunks=1),
        routes=routes(topology, links=[[i] for i in range(n)]),
        lane_route=np.arange(n - 1, dtype=np.int32),
        lane_op=np.zeros(n - 1, np.uint8),
        lane_reads=np.ones(n - 1, np.uint8),
        lane_begin=np.arange(n, dtype=np.int64),
        chunk=np.zeros(n - 1, np.uint32),
        start=np.arange(n - 1, dtype=np.uint32),
        quantum_ps=2 * US,
        orders=[n],
        node_image=image,
        link_image=image,
    )


def test_expand_writes_out_what_the_ring_does():
    orbit = rotated()
    whole = orbit.expand()
    assert (orbit.form, whole.form) == ("orbit", "packed")
    assert (orbit.stored_transfers, orbit.transfers, whole.transfers) == (3, 12, 12)
    assert whole.time_ps == orbit.time_ps == ring_all_gather().time_ps

    def moves(schedule):
        rows = schedule.rows()
        names = ("start_ps", "chunk", "src", "dst", "op", "reads", "arrival_ps")
        return sorted(zip(*(rows[name].tolist() for name in names), strict=True))

    assert moves(whole) == moves(ring_all_gather())
    assert len(moves(orbit)) == 3  # rows are those of the representatives
    assert whole.expand() == whole


def test_an_orbit_answers_for_the_whole_schedule():
    orbit, whole = rotated(5), ring_all_gather(5)
    assert orbit.link_bytes().tolist() == whole.link_bytes().tolist() == [4000] * 5
    assert orbit.link_utilisation() == pytest.approx(whole.link_utilisation())
    assert orbit.algbw_Bps == whole.algbw_Bps
    assert orbit.expanded_bytes >= orbit.expand().memory_bytes * 0.9
    assert whole.expanded_bytes == whole.memory_bytes
    assert orbit.orders == [5]
    assert orbit.node_image.tolist() == [1, 2, 3, 4, 0]
    with pytest.raises(ValueError, match="dependencies are derived from packed schedules"):
        orbit.dependencies()
    assert orbit != orbit.expand()


def test_reverse_of_an_all_gather_is_a_reduce_scatter():
    schedule = ring_all_gather()
    back = schedule.reverse()
    assert back.collective.kind == "reduce_scatter"
    assert back.topology == schedule.topology.reversed()
    assert back.time_ps == schedule.time_ps
    assert back.transfers == schedule.transfers
    assert tacos.verify(back).ok
    again = back.reverse()
    assert again.topology == schedule.topology
    assert again.collective == schedule.collective
    assert again.time_ps == schedule.time_ps
    assert tacos.verify(again).ok
    assert tacos.verify(rotated().reverse()).ok


def test_reverse_of_an_all_reduce_is_one():
    whole = ring_reduce_scatter().then(ring_all_gather(), co.all_reduce(4, 4000, chunks=1))
    assert tacos.verify(whole).ok
    assert tacos.verify(whole.reverse()).ok


KINDS = ["all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all"]


@st.composite
def reversible(draw):
    topology = draw(quick_topologies())
    group = draw(st.permutations(range(topology.npus)))[: draw(st.integers(1, topology.npus))]
    chunks = draw(st.integers(1, 2))
    size = 1000 * chunks * len(group)
    collective = co.named(draw(st.sampled_from(KINDS)), topology, size, group=group, chunks=chunks)
    return draw(orders(st.just(topology), collective=collective))


@given(reversible())
def test_reversing_twice_is_right_both_times(order):
    schedule = order.retimed()
    back = schedule.reverse()
    assert back.collective == schedule.collective.reversed()
    assert tacos.verify(back).ok, tacos.verify(back).violations
    assert oracle.examine(back) == set()
    again = back.reverse()
    assert again.collective == schedule.collective
    assert tacos.verify(again).ok


def test_reverse_of_a_multicast_with_late_ends():
    """NPU 1 has the chunk after 3 us and sends it on, long before NPU 2 has it."""
    speeds = [
        (0, 4, "1us"),
        (4, 1, "1us"),
        (4, 2, "9us"),
        (1, 3, "1us"),
        (3, 0, "1us"),
        (2, 0, "1us"),
    ]
    topology = tp.from_links(
        4, [(a, b, "1GB/s", latency) for a, b, latency in speeds], switches=["multicast"]
    )
    table = routes(topology, links=[[0, 1, 2], [3]], kinds=["multicast", "path"])
    collective = co.broadcast(topology, 1000, chunks=1)
    schedule = retime(collective, table, route=[0, 1], chunk=0, step=[0, 1])
    assert tacos.verify(schedule).ok
    assert tacos.verify(schedule.reverse()).ok


def test_reverse_of_a_copy_into_an_empty_switch():
    topology = tp.switch(3, multicast=True, reduce=True)
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    up, down = ([ends.index(e(i)) for i in range(3)] for e in (lambda i: (i, 3), lambda i: (3, i)))
    table = routes(topology, links=[up, down], kinds=["reduce", "multicast"])
    collective = co.all_reduce(topology, 3000, chunks=1)
    schedule = retime(
        collective, table, route=[0] * 3 + [1] * 3, chunk=[*range(3)] * 2, step=[0] * 3 + [1] * 3
    )
    assert tacos.verify(schedule).ok
    assert tacos.verify(schedule.reverse()).ok


def test_reduce_scatter_then_all_gather_is_an_all_reduce():
    """3 + 3 steps of 2 us; the chunks go on without waiting for each other."""
    first, second = ring_reduce_scatter(), ring_all_gather()
    collective = co.all_reduce(4, 4000, chunks=1)
    whole = first.then(second, collective)
    assert whole.collective == collective
    assert whole.transfers == first.transfers + second.transfers
    assert whole.time_ps == 12 * US
    assert tacos.verify(whole).ok
    assert oracle.examine(whole) == set()
    assert tacos.verify(first.then(rotated(), collective)).ok


@pytest.mark.parametrize(("size", "chunks"), [(1_000_003, 4), (64_000_007, 8)])
@pytest.mark.parametrize("engine", ["forest", "greedy"])
def test_halves_whose_chunks_differ_by_a_byte_keep_their_order(engine, size, chunks):
    """First come, first served would take up to a fifth longer than one half after the other."""
    topology = tp.mi250(1)
    gather = ENGINES[engine](topology, co.all_gather(topology, size, chunks=chunks))
    backwards = ENGINES[engine](topology.reversed(), gather.collective).reverse()
    collective = co.all_reduce(topology, size, chunks=chunks)
    assert not np.array_equal(collective.chunk_bytes(), gather.collective.chunk_bytes())
    whole = backwards.then(gather, collective)
    assert tacos.verify(whole).ok
    assert whole.collective == collective
    assert whole.time_ps <= backwards.time_ps + gather.time_ps + 1000


def test_what_cannot_follow_is_refused():
    first = ring_reduce_scatter()
    collective = co.all_reduce(4, 4000, chunks=1)
    other = tp.ring(4, bidirectional=False, bandwidth="2GB/s", latency="1us")
    with pytest.raises(ValueError, match="on different topologies cannot be concatenated"):
        first.then(ring_all_gather(topology=other), collective)
    with pytest.raises(ValueError, match="different numbers of chunks cannot be concatenated"):
        first.then(ring_all_gather(chunks=2), collective)
    with pytest.raises(ValueError, match="different numbers of chunks cannot be concatenated"):
        first.then(ring_all_gather(), co.all_reduce(4, 4000, chunks=2))


def test_chunks_that_are_empty_in_one_part_only_are_refused():
    """4 B over 3 NPUs and 2 pieces: 1 1, 1 0, 1 0 as parts, but 1 1 1 1 0 0 as a whole."""
    topology = tp.fully_connected(3)
    src, dst = np.nonzero(~np.eye(3, dtype=bool))
    table = routes(topology, pairs=(src, dst))
    pieces = [(route, int(to) * 2 + k) for route, to in enumerate(dst) for k in (0, 1)]
    route, chunk = zip(*pieces, strict=True)
    scattered = retime(
        co.reduce_scatter(topology, 4, chunks=2),
        table,
        route=route,
        chunk=chunk,
        step=0,
        op=REDUCE,
        reads=READ_INPUT,
    )
    gathered = retime(
        co.all_gather(topology, 4, chunks=2),
        table,
        route=route,
        chunk=[int(src[r]) * 2 + c % 2 for r, c in pieces],
        step=0,
    )
    assert tacos.verify(scattered).ok
    assert tacos.verify(gathered).ok
    with pytest.raises(ValueError, match="chunk 3 has no bytes in one collective only"):
        scattered.then(gathered, co.all_reduce(topology, 4, chunks=2))
