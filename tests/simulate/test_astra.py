"""ASTRA-sim's analytical simulation: its own numbers, the laws of its links, bad workloads."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import topology as tp
from tacos._core import hash_set_order
from tacos.schedule import paths
from tacos.simulate.astra import AstraSystem, run
from tacos.workload import (
    COLL,
    COMMS,
    COMP,
    RECV,
    SEND,
    from_nodes,
    from_schedule,
    ring_all_gather,
)
from tests.support.astra_runs import HOP, MIB, SPEED, messages, native, time_of

RECORDED = Path(__file__).parents[1] / "golden" / "astra-sim.json"
BLOCKS = {"ring": tp.ring, "clique": tp.fully_connected, "switch": tp.switch}


# --- numbers of ASTRA-sim ---------------------------------------------------------------------


def in_picoseconds(nodes):
    """Convert recorded nodes, whose durations are in microseconds, as in Chakra."""
    named = {**nodes}
    if "duration_us" in named:
        named["duration_ps"] = [us * 1_000_000 for us in named.pop("duration_us")]
    return named


@pytest.mark.parametrize("case", json.loads(RECORDED.read_text()))
def test_equals_recorded_runs(case):
    """Random workloads that ASTRA-sim's own binaries (commit 518bd51) ran; several dimensions with
    congestion on the branch that has them. Finish times of all ranks."""
    topology = tp.product(
        *(
            BLOCKS[kind](size, bandwidth=int(gib * 2**30), latency=ns * 1e-9)
            for kind, size, gib, ns in case["dims"]
        )
    )
    groups = {int(number): members for number, members in case.get("groups", {}).items()}
    result = run(
        from_nodes(topology.npus, **in_picoseconds(case["nodes"]), groups=groups),
        topology,
        aware=case["aware"],
        as_custom=case["as_custom"],
        system=AstraSystem(**case.get("system", {"policy": "fifo"})),
        rendezvous=case.get("rendezvous", False),
    )
    assert result.npu_finish_ns.tolist() == case["finish_ns"]


@pytest.mark.parametrize("as_custom", [True, False])
@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize(
    ("build", "aware_step", "unaware_step"),
    [(tp.ring, HOP, HOP), (tp.fully_connected, HOP, HOP), (tp.switch, 2 * HOP, 20531)],
)
def test_ring_all_gather(build, aware_step, unaware_step, n, as_custom):
    """n - 1 steps of one hop; a switch costs two serialisations, or two latencies and one."""
    workload, topology = ring_all_gather(n, "1MiB"), build(n, **SPEED)
    for aware, step in ((True, aware_step), (False, unaware_step)):
        finish = run(workload, topology, aware=aware, as_custom=as_custom).npu_finish_ns
        assert finish.tolist() == [(n - 1) * step] * n


def test_rendezvous_delays_each_message_by_a_handshake():
    assert (
        time_of(ring_all_gather(4, MIB), tp.ring(4, **SPEED), aware=True, rendezvous=True) == 60745
    )


@pytest.mark.parametrize(
    ("build", "unaware", "aware"),
    [(tp.ring, 21031, 60093), (tp.fully_connected, 20031, 20031), (tp.switch, 20531, 40062)],
)
def test_one_message_among_sixteen(build, unaware, aware):
    """1 → 4: three hops round the ring, one in the clique, two through the switch."""
    for shared, expected in ((False, unaware), (True, aware)):
        result = run(messages(16, [(1, 4)]), build(16, **SPEED), aware=shared)
        assert result.arrive_ns.tolist() == [expected]


@pytest.mark.parametrize(("pair", "delay"), [((0, 1), 4932), ((37, 41), 10265), ((26, 42), 23531)])
def test_unaware_counts_the_first_dimension_that_differs(pair, delay):
    topology = tp.product(
        tp.ring(2, bandwidth="200GiB/s", latency="50ns"),
        tp.fully_connected(8, bandwidth="100GiB/s", latency="500ns"),
        tp.switch(4, bandwidth="50GiB/s", latency="2us"),
    )
    assert run(messages(64, [pair]), topology, aware=False).arrive_ns.tolist() == [delay]


def test_unaware_ignores_later_dimensions():
    """0 → 5 on a 4×4 torus differs in both dimensions: one hop unaware, two aware."""
    torus = tp.torus(4, 4, **SPEED)
    assert run(messages(16, [(0, 5)]), torus, aware=False).arrive_ns.tolist() == [20031]
    assert run(messages(16, [(0, 5)]), torus, aware=True).arrive_ns.tolist() == [40062]


def test_all_pairs_of_a_ring():
    pairs = [(i, j) for i in range(16) for j in range(16) if i != j]
    assert time_of(messages(16, pairs), tp.ring(16, **SPEED), aware=True) == 704116


@pytest.mark.parametrize(("n", "workload_time"), [(4, 60093), (8, 140217)])
def test_a_workload_sends_one_message_at_a_time(n, workload_time):
    """Direct all-gather in a clique: n - 1 hops one after the other, or all at once."""
    pairs = [(i, (i + k) % n) for i in range(n) for k in range(1, n)]
    clique = tp.fully_connected(n, **SPEED)
    assert time_of(messages(n, pairs), clique, aware=True, as_custom=False) == workload_time
    assert time_of(messages(n, pairs), clique, aware=True) == HOP


@pytest.mark.parametrize(
    ("comm", "n", "expected"),
    [
        ("all_gather", 4, 60133),
        ("all_gather", 8, 140297),
        ("reduce_scatter", 4, 17653),
        ("reduce_scatter", 8, 22368),
        ("all_reduce", 4, 33829),
        ("all_reduce", 8, 43025),
    ],
)
@pytest.mark.parametrize("aware", [True, False])
def test_native_ring_collectives(comm, n, expected, aware):
    """t = floor(α + m/B), e = 10 ns, r = 3·floor(m / 1600 GB/s). All-gather (m = size): (n-1)t + n·e;
    reduce-scatter (m = size/n): (n-1)(t + r) + n·e; all-reduce: 2(n-1)t + (2n-1)e + (n-1)r."""
    size = MIB if comm == "all_gather" else MIB // n
    t, r = int(500 + size / (50 * 2**30 / 1e9)), 3 * int(size / 1600)
    formulas = {
        "all_gather": (n - 1) * t + 10 * n,
        "reduce_scatter": (n - 1) * (t + r) + 10 * n,
        "all_reduce": 2 * (n - 1) * t + 10 * (2 * n - 1) + (n - 1) * r,
    }
    assert native(tp.ring(n, **SPEED), comm, aware=aware) == expected == formulas[comm]


@pytest.mark.parametrize(
    ("implementation", "build", "aware", "unaware"),
    [
        ("direct", tp.fully_connected, 6155, 6155),
        ("direct", tp.ring, 51093, 9155),
        ("direct", tp.switch, 41329, 7155),
        ("halvingDoubling", tp.fully_connected, 37978, 37978),
        ("halvingDoubling", tp.ring, 66388, 41978),
        ("halvingDoubling", tp.switch, 75154, 40978),
        ("doubleBinaryTree", tp.fully_connected, 130081, 130081),
    ],
)
def test_native_all_reduce_of_eight(implementation, build, aware, unaware):
    for shared, expected in ((True, aware), (False, unaware)):
        chosen = {"all_reduce": [implementation]}
        assert (
            native(build(8, **SPEED), "all_reduce", aware=shared, implementations=chosen)
            == expected
        )


def test_shipped_examples():
    """The examples that come with ASTRA-sim: 4 chunks in rings, and the validated HGX box."""
    assert native(tp.ring(16, **SPEED), "all_gather", splits=4) == 323560
    assert native(tp.ring(4, **SPEED), "reduce_scatter", aware=False, splits=4) == 22240
    assert native(tp.torus(4, 4, **SPEED), "all_gather", splits=4) == 256718
    assert native(tp.torus(4, 4, **SPEED), "all_gather", aware=False, splits=4) == 256718
    box = tp.switch(8, bandwidth="400GiB/s", latency="936.25ns")
    system = {"splits": 4, "active_chunks": 2, "memory_bandwidth": "3350GB/s"}
    assert native(box, "all_reduce", implementations={"all_reduce": ["ring"]}, **system) == 57426


def custom_ring_all_reduce(n, size, sum_us):
    """Each rank, 2(n-1) times: send to the next, receive from the one before; in the first half, sum."""
    rows: dict[str, list[int]] = {"rank": [], "kind": [], "peer": [], "tag": [], "duration_ps": []}
    begin, dep = [0], []

    def node(rank, kind, peer=-1, tag=0, duration_ps=0, after=None):
        for name, value in zip(rows, (rank, kind, peer, tag, duration_ps), strict=True):
            rows[name].append(value)
        dep.extend([] if after is None else [after])
        begin.append(len(dep))
        return len(begin) - 2

    for rank in range(n):
        last = None
        for step in range(2 * (n - 1)):
            sent = node(rank, SEND, (rank + 1) % n, step, after=last)
            last = node(rank, RECV, (rank - 1) % n, step, after=sent)
            if step < n - 1:
                last = node(rank, COMP, duration_ps=sum_us * 1_000_000, after=last)
    return from_nodes(n, **rows, bytes=size, dep_begin=begin, dep=dep)


@pytest.mark.parametrize("aware", [True, False])
def test_shipped_custom_all_reduce(aware):
    """14 hops of 128 KiB, 2941 ns each, and 7 sums of 7 us."""
    workload = custom_ring_all_reduce(8, MIB // 8, 7)
    assert time_of(workload, tp.ring(8, **SPEED), aware=aware) == 14 * 2941 + 7 * 7000 == 90174


def test_a_node_may_have_its_own_algorithm():
    """Ring for node 0, direct for node 1, one after the other: 60093 + 20031."""
    two = from_nodes(
        4, rank=np.repeat(range(4), 2), kind=COLL, comm=COMMS["all_gather"], bytes=MIB,
        dep_begin=[0, 0, 1, 1, 2, 2, 3, 3, 4], dep=[0, 2, 4, 6],
    )  # fmt: skip
    pairs = [(i, j) for i in range(4) for j in range(4) if i != j]
    algorithms = {"all_gather": ring_all_gather(4, MIB), 1: messages(4, pairs)}
    system = AstraSystem(algorithms=algorithms)
    clique = tp.fully_connected(4, **SPEED)
    assert time_of(two, clique, aware=True, as_custom=False, system=system) == 80124


# --- the order of ready nodes -------------------------------------------------------------------


def test_sends_leave_in_the_order_of_a_hash_set():
    """Twenty sends over one link: pipelined, 20031 + 19·19531, in the order that was recorded."""
    result = run(messages(2, [(0, 1)] * 20), tp.fully_connected(2, **SPEED), aware=True)
    assert result.time_ns == 391120
    order = result.tag[np.argsort(result.arrive_ns)].tolist()
    assert order[:10] == [12, 11, 10, 9, 8, 7, 6, 19, 18, 5]


def test_sends_in_a_chain_wait_for_arrivals():
    nodes = {"rank": [0] * 20 + [1] * 20, "kind": [SEND] * 20 + [RECV] * 20}
    peer = [1] * 20 + [0] * 20
    chain = {"dep_begin": [0, *range(20), *[19] * 20], "dep": range(19)}
    workload = from_nodes(2, **nodes, peer=peer, tag=[*range(20)] * 2, bytes=MIB, **chain)
    assert time_of(workload, tp.fully_connected(2, **SPEED), aware=True) == 20 * HOP == 400620


@pytest.mark.skipif(sys.platform != "linux", reason="compares with libstdc++")
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), unique=True, max_size=400))
def test_hash_order_is_that_of_the_library(keys):
    array = np.array(keys, np.uint64)
    assert hash_set_order(array).tolist() == hash_set_order(array, reference=True).tolist()


@pytest.mark.skipif(sys.platform != "linux", reason="compares with libstdc++")
def test_hash_order_of_many():
    keys = np.random.default_rng(0).permutation(200_000).astype(np.uint64) * np.uint64(7)
    assert np.array_equal(hash_set_order(keys), hash_set_order(keys, reference=True))


# --- laws ------------------------------------------------------------------------------------------


@st.composite
def workloads(draw, npus):
    """Messages with unique tags in one global order, so that dependencies have no cycle."""
    nodes = []  # rank, kind, peer, bytes, tag, duration_ps
    for tag in range(draw(st.integers(1, 25))):
        src, dst = draw(st.permutations(range(npus)))[:2]
        size = draw(st.sampled_from([1, 1000, MIB]))
        nodes += [(src, SEND, dst, size, tag, 0), (dst, RECV, src, size, tag, 0)]
        if draw(st.booleans()):
            nodes.append((src, COMP, -1, 0, 0, draw(st.integers(0, 3)) * 1_000_000))
    nodes += [(rank, COMP, -1, 0, 0, 0) for rank in range(npus)]
    begin, dep = [0], []
    for row, (rank, kind, *_) in enumerate(nodes):
        past = [i for i in range(row) if nodes[i][0] == rank]
        if past and kind != RECV:
            dep += draw(st.lists(st.sampled_from(past), max_size=2))
        begin.append(len(dep))
    names = ("rank", "kind", "peer", "bytes", "tag", "duration_ps")
    columns = dict(zip(names, zip(*nodes, strict=True), strict=True))
    return from_nodes(npus, **columns, dep_begin=begin, dep=dep)


TOPOLOGIES = [
    tp.ring(5, **SPEED),
    tp.switch(5, bandwidth="3GiB/s", latency="7ns"),
    tp.torus(3, 2, **SPEED),
    tp.drop_links(tp.mesh(3, 2, **SPEED), (0, 1)),
    tp.product(tp.fully_connected(2, **SPEED), tp.switch(3, bandwidth="1GB/s")),
]


@given(st.data())
def test_links_serve_first_come_first_served(data):
    """Every message goes whole over its route; a link carries one at a time, in order of arrival."""
    topology = data.draw(st.sampled_from(TOPOLOGIES))
    workload = data.draw(workloads(topology.npus))
    result = run(workload, topology, aware=True, as_custom=data.draw(st.booleans()))
    pairs = np.unique(np.stack((result.src, result.dst), 1), axis=0)
    table = paths(topology, tuple(pairs.T))
    route = {tuple(pair): i for i, pair in enumerate(pairs.tolist())}
    comes: dict[int, list[tuple[int, int]]] = {}
    for m in range(len(result.src)):
        at = int(result.send_ns[m])
        hops = np.flatnonzero(result.hop_message == m)
        i = route[int(result.src[m]), int(result.dst[m])]
        links = table.links[table.link_begin[i] : table.link_begin[i + 1]].tolist()
        assert result.hop_link[hops].tolist() == links
        for hop, link in zip(hops, links, strict=True):
            serial = int(result.bytes[m]) / (int(topology.link_bandwidth_Bps[link]) / 1e9)
            comes.setdefault(link, []).append((at, hop))
            assert result.hop_begin_ns[hop] >= at
            assert result.hop_end_ns[hop] - result.hop_begin_ns[hop] == int(serial)
            latency = int(topology.link_latency_ps[link]) / 1e3
            at = int(result.hop_begin_ns[hop]) + int(latency + serial)
        assert result.arrive_ns[m] == at
    for served in comes.values():
        begins = [int(result.hop_begin_ns[hop]) for _, hop in sorted(served)]
        ends = [int(result.hop_end_ns[hop]) for _, hop in sorted(served)]
        assert begins == sorted(begins)
        for (came, _), begin, free in zip(sorted(served)[1:], begins[1:], ends, strict=False):
            assert begin == max(came, free)  # never idle while a message waits


@given(st.data())
def test_ranks_finish_with_their_last_node(data):
    """Without congestion, times follow from the graph; they are computed here by walking it."""
    topology = data.draw(st.sampled_from([TOPOLOGIES[0], TOPOLOGIES[2]]))
    workload = data.draw(workloads(topology.npus))
    result = run(workload, topology, aware=False)
    delay = {}
    for m in range(len(result.src)):
        key = int(result.src[m]), int(result.dst[m]), int(result.bytes[m])
        delay[key] = int(result.arrive_ns[m] - result.send_ns[m])
    done = {}

    def ends(row):
        if row not in done:
            waits = workload.dep[workload.dep_begin[row] : workload.dep_begin[row + 1]].tolist()
            begin = max(map(ends, waits), default=0)
            rank, peer, size = (int(getattr(workload, c)[row]) for c in ("rank", "peer", "bytes"))
            if workload.kind[row] == COMP:
                done[row] = begin + (int(workload.duration_ps[row]) // 1000 or 1)
            elif workload.kind[row] == SEND:
                done[row] = begin + delay[rank, peer, size]
            else:
                same = (workload.kind == SEND) & (workload.tag == workload.tag[row])
                done[row] = max(begin, ends(int(np.flatnonzero(same)[0])))
        return done[row]

    for row in range(workload.nodes):
        ends(row)
    for rank in range(topology.npus):
        rows = np.flatnonzero(workload.rank == rank).tolist()
        assert result.npu_finish_ns[rank] == max(done[row] for row in rows)


def test_exposed_communication_is_what_computing_leaves():
    """A rank computes 5 us while a message of 20031 ns is under way."""
    workload = from_nodes(
        2, rank=[0, 0, 1], kind=[SEND, COMP, RECV], peer=[1, -1, 0], bytes=[MIB, 0, MIB],
        duration_ps=[0, 5_000_000, 0],
    )  # fmt: skip
    result = run(workload, tp.fully_connected(2, **SPEED), aware=True, as_custom=False)
    assert result.npu_compute_ns.tolist() == [5000, 0]
    assert result.npu_exposed_ns.tolist() == [15031, 20031]


def test_columns_of_a_trace():
    result = run(messages(4, [(0, 2)]), tp.ring(4, **SPEED), aware=True)
    found = result.trace()
    expected = {
        "link": [0, 1],
        "begin_ps": [0, 20_031_000],
        "end_ps": [19_531_000, 39_562_000],
        "transfer": [0, 0],
        "arrival_npu": [2],
        "arrival_ps": [40_062_000],
        "arrival_bytes": [MIB],
        "arrival_transfer": [0],
        "npu_finish_ps": [40_062_000, 1000, 40_062_000, 1000],
    }
    assert {name: getattr(found, name).tolist() for name in expected} == expected


# --- schedules ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "kind", "engine"),
    [
        (tp.ring(8, forwarding="store_and_forward", **SPEED), "all_gather", "ring"),
        (tp.switch(8, forwarding="store_and_forward", **SPEED), "all_reduce", "direct"),
        (tp.torus(4, 4, **SPEED), "all_reduce", "symmetric"),
        (tp.mesh(3, 3, **SPEED), "all_gather", "greedy"),
    ],
)
def test_fenced_schedules_keep_their_times(topology, kind, engine):
    """Each of at most 30 hops in a row is rounded down by less than 1 ns, and may wait 1 ns."""
    wanted = tacos.collective.named(kind, topology, topology.npus * MIB, chunks=1)
    schedule = tacos.synthesize(topology, wanted, engine=engine)
    time = time_of(from_schedule(schedule), topology, aware=True)
    assert abs(schedule.time_s * 1e9 - time) < 30


def test_schedule_as_workload():
    """A chunk over two hops: the second send waits for the first receive; NPU 3 idles. In place, the
    root does not copy its input."""
    topology = tp.ring(4, **SPEED)
    wanted = tacos.collective.broadcast(topology, MIB, group=[0, 1, 2], chunks=1)
    table = tacos.routes(topology, pairs=([0, 1], [1, 2]))
    schedule = tacos.retime(wanted, table, route=[0, 1], chunk=0, step=[0, 1])
    workload = from_schedule(schedule, in_place=True)
    assert workload.rank.tolist() == [0, 1, 1, 2, 3]
    assert workload.kind.tolist() == [SEND, RECV, SEND, RECV, COMP]
    assert workload.dep_begin.tolist() == [0, 0, 0, 1, 1, 1]
    assert workload.dep.tolist() == [1]


def test_sums_take_time_where_the_topology_says_so():
    """1 MiB at 1 GB/s is 1048.6 us, in a file 1049."""
    topology = tp.ring(2, reduce_bandwidth="1GB/s", **SPEED)
    wanted = tacos.collective.reduce(topology, MIB, chunks=1)
    workload = from_schedule(tacos.synthesize(topology, wanted, engine="direct"))
    assert workload.duration_ps[workload.kind == COMP].tolist().count(1049_000_000) == 1


def test_traces_have_no_trees_through_switches():
    topology = tp.switch(4, multicast=True, **SPEED)
    wanted = tacos.collective.broadcast(topology, MIB, chunks=1)
    table = tacos.routes(topology, links=[[0, 5, 6, 7]], kinds="multicast")
    schedule = tacos.retime(wanted, table, route=[0], chunk=0, step=0)
    for simulated in (from_schedule, lambda s: tacos.simulate(s, profile="astra-sim-aware")):
        with pytest.raises(
            ValueError, match="switches that multicast or reduce, which a program cannot"
        ):
            simulated(schedule)
