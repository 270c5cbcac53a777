"""Programs run thread by thread: by hand, against a slow event loop, and what is refused.

Unless a test says otherwise links have 1 GB/s and 1 us, and chunks 1000 B, so that a message alone takes
1 us to send and arrives 1 us per link later.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import lower, simulate
from tacos import topology as tp
from tacos.errors import InfeasibleError
from tacos.program import STEP_OPS, filled
from tacos.program_nodes import sized
from tacos.schedule import routes
from tacos.simulate import program_order, program_routes
from tests.simulate.test_simulate import SPEED, US
from tests.support import sharing
from tests.support.programs import INPUT, NONE, OUTPUT, changed, made
from tests.support.strategies import collectives, quick_topologies

RULES = ("first-come", "order", "shared")


def times(program, topology, **options):
    """The time under each rule, in microseconds."""
    return [simulate(program, topology, timing=rule, **options).time_ps / US for rule in RULES]


def messages(npus, ends):
    """One chunk of 1000 B over each pair of ends, each with threads of its own."""
    collective = co.send_recv(npus, [(a, b, 1000) for a, b in ends], chunks=1)
    slots = dict.fromkeys(range(npus), 0)
    taken = dict.fromkeys(range(npus), 0)
    rows = []
    for k, (a, b) in enumerate(ends):
        rows.append((a, b, -1, k, [("send", INPUT, slots[a])]))
        slots[a] += 1
    for k, (a, b) in enumerate(ends):
        rows.append((b, -1, a, k, [("recv", NONE, -1, OUTPUT, taken[b], k)]))
        taken[b] += 1
    rows.sort(key=lambda row: row[0])
    number = {("send", row[3]): i for i, row in enumerate(rows) if row[4][0][0] == "send"}
    fixed = [
        (rank, to, source, [
            step if step[0] == "send" else (*step[:5], number["send", k]) for step in steps
        ])
        for rank, to, source, k, steps in rows
    ]  # fmt: skip
    return made(collective, fixed)


# --- by hand ------------------------------------------------------------------------------------


def test_a_plain_ring_takes_its_schedule_s_time():
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        topology = tp.ring(5)
        schedule = tacos.synthesize(
            topology, co.named(kind, topology, "5MB", chunks=2), engine="ring"
        )
        for in_place in (False, True):
            program = lower(schedule, in_place=in_place)
            for rule in RULES:
                assert simulate(program, topology, timing=rule).time_ps == schedule.time_ps


def test_two_threads_share_one_port():
    """0 -> 1 and 0 -> 2 through a switch. One after the other: there at 3 and 4 us. Shared: both are
    sent at 2 us and there at 4 us."""
    program, topology = messages(3, [(0, 1), (0, 2)]), tp.switch(3, **SPEED)
    traces = {rule: simulate(program, topology, timing=rule) for rule in RULES}
    for rule in RULES:
        assert traces[rule].npu_finish_ps.tolist() == (
            [2 * US, 4 * US, 4 * US] if rule == "shared" else [2 * US, 3 * US, 4 * US]
        )
    assert traces["shared"].arrival_transfer.tolist() == [0, 1]
    assert traces["order"].busy_ps().tolist() == traces["shared"].busy_ps().tolist()
    assert traces["shared"].summary()["transfers"] == 2


def test_a_limit_on_messages_in_flight():
    """With one message at a time 0 sends 1000 B in 1 us each: there at 3 and 4 us. Four messages to
    NPU 0, two at a time: sent at 2 us and 4 us."""
    topology = tp.switch(5, **SPEED)
    program = messages(5, [(0, 1), (0, 2)])
    trace = simulate(program, topology, timing="shared", connections=1)
    assert trace.npu_finish_ps.tolist()[:3] == [2 * US, 3 * US, 4 * US]
    crowd = messages(5, [(1, 0), (2, 0), (3, 0), (4, 0)])
    trace = simulate(crowd, topology, timing="shared", connections=2)
    assert sorted(trace.arrival_ps.tolist()) == [4 * US, 4 * US, 6 * US, 6 * US]
    assert simulate(crowd, topology, timing="shared").arrival_ps.tolist() == [6 * US] * 4


def test_a_fused_step_receives_and_then_sends():
    """0 -> 1 -> 2 in a line: received at 2 us, sent on at once, there at 4 us; the middle rank is done
    when it has sent, at 3 us."""
    collective = co.broadcast(3, 1000, chunks=1)
    program = made(collective, [
        (0, 1, -1, [("send", INPUT, 0), ("copy", INPUT, 0, OUTPUT, 0)]),
        (1, 2, 0, [("recv_send", NONE, -1, OUTPUT, 0, 0)]),
        (2, -1, 1, [("recv", NONE, -1, OUTPUT, 0, 2)]),
    ])  # fmt: skip
    for rule in RULES:
        trace = simulate(program, tp.mesh(3, **SPEED), size=1000, timing=rule)
        assert trace.npu_finish_ps.tolist() == [US, 3 * US, 4 * US]


def test_sums_take_the_receiving_thread_s_time():
    """A chain 0 -> 1 -> 2 that adds at 500 MB/s: 1 receives at 2 us, has added at 4 us, sends until
    5 us; 2 receives at 6 us and has added at 8 us. A local sum takes as long."""
    collective = co.reduce(3, 1000, root=2, chunks=1)
    program = made(collective, [
        (0, 1, -1, [("send", INPUT, 0)]),
        (1, 2, 0, [("recv_reduce_forward", INPUT, 0, NONE, -1, 0)]),
        (2, -1, 1, [("recv_reduce", INPUT, 0, OUTPUT, 0, 1)]),
    ])  # fmt: skip
    topology = tp.mesh(3, reduce_bandwidth="0.5GB/s", **SPEED)
    for rule in RULES:
        trace = simulate(program, topology, size=1000, timing=rule)
        assert trace.npu_finish_ps.tolist() == [US, 5 * US, 8 * US]
    local = made(co.all_reduce(1, 1000, chunks=1), [
        (0, -1, -1, [("copy", INPUT, 0, OUTPUT, 0), ("reduce", INPUT, 0, OUTPUT, 0)])
    ])  # fmt: skip
    assert times(local, tp.from_links(1, [], reduce_bandwidth="0.5GB/s"), size=1000) == [2.0] * 3


def test_one_sided_steps():
    """0 puts 1000 B into 1 (sent at 1 us) and signals, which arrives with the data at 2 us; then 1
    gets 1000 B from 2: there at 4 us."""
    collective = co.send_recv(3, [(0, 1, 1000), (2, 1, 1000)], chunks=1)
    program = made(collective, [
        (0, -1, -1, [
            ("put", INPUT, 0, OUTPUT, 0, None, None, 1),
            ("signal", NONE, -1, NONE, -1, None, None, 1),
        ]),
        (1, -1, -1, [
            ("wait", NONE, -1, NONE, -1, 1, None, 0),
            ("get", INPUT, 0, OUTPUT, 1, None, None, 2),
        ]),
    ])  # fmt: skip
    for rule in RULES:
        trace = simulate(program, tp.fully_connected(3, **SPEED), timing=rule)
        assert trace.npu_finish_ps.tolist() == [US, 4 * US, 0]
        assert trace.arrival_npu.tolist() == [1, 1]
        assert trace.arrival_transfer.tolist() == [0, 3]
        assert trace.summary()["transfers"] == 2


def test_parallel_links_are_taken_in_turn_by_channels():
    """Two threads to one peer over two links of 1 GB/s: both are there at 2 us. Sent over one link
    by a given route they share it."""
    topology = tp.from_links(
        2, [(0, 1, "1GB/s", "1us"), (0, 1, "1GB/s", "1us"), (1, 0, "1GB/s", "1us")]
    )
    program = messages(2, [(0, 1), (0, 1)])
    program = changed(program, thread_channel=np.array([0, 1, 0, 1], np.int32))
    assert times(program, topology) == [2.0, 2.0, 2.0]
    assert times(program, topology, routes=[[1], [1], None, None]) == [3.0, 3.0, 3.0]


def test_links_serve_in_a_given_order():
    """0 -> 1 and 0 -> 2 through a switch in the opposite order: NPU 1 is done at 4 us."""
    program, topology = messages(3, [(0, 1), (0, 2)]), tp.switch(3, **SPEED)
    for rule in ("order", "first-come"):
        trace = simulate(program, topology, timing=rule, order=[1, 0, 0, 0])
        assert trace.npu_finish_ps.tolist() == [2 * US, 4 * US, 3 * US]


def test_different_sizes_are_followed_through_slots():
    """Chunks of 1000 B and 3000 B through scratch: 1 us and 3 us to send, one after the other."""
    collective = co.send_recv(2, [(0, 1, 1000), (0, 1, 3000)], chunks=1)
    scratch = 2
    program = made(collective, [
        (0, 1, -1, [
            ("copy", INPUT, 1, scratch, 0), ("send", scratch, 0), ("send", INPUT, 0),
        ]),
        (1, -1, 0, [
            ("recv", NONE, -1, OUTPUT, 1, 1), ("recv", NONE, -1, OUTPUT, 0, 2),
        ]),
    ], scratch=1)  # fmt: skip
    trace = simulate(program, tp.mesh(2, **SPEED), timing="shared")
    assert trace.arrival_ps.tolist() == [4 * US, 5 * US]
    assert trace.arrival_bytes.tolist() == [3000, 1000]


# --- routes and orders of a lowered schedule ----------------------------------------------------


def test_the_routes_of_a_lowered_schedule():
    """Where a schedule uses several routes between two NPUs, each channel has its own."""
    topology = tp.dgx1(1)
    schedule = tacos.synthesize(topology, co.all_gather(topology, "8MB", chunks=2), engine="forest")
    program = lower(schedule)
    found = program_routes(schedule, program)
    table = schedule.routes
    used = {
        tuple(table.links[a:b].tolist())
        for a, b in zip(table.link_begin[:-1], table.link_begin[1:], strict=True)
    }
    assert {tuple(route) for route in found if route} == used
    for thread, route in enumerate(found):
        assert (route is None) == (program.thread_send_peer[thread] < 0)
        if route is None:
            continue
        assert topology.link_src[route[0]] == program.thread_rank[thread]
        assert topology.link_dst[route[-1]] == program.thread_send_peer[thread]
    order = program_order(schedule, program)
    trace = simulate(program, topology, timing="order", routes=found, order=order)
    assert trace.time_ps <= schedule.time_ps
    other = changed(program, thread_channel=program.thread_channel + 1)
    kept = program_routes(schedule, other)
    assert {tuple(route) for route in kept if route} <= used
    with pytest.raises(ValueError, match="not the schedule's transfers"):
        program_order(schedule, other)


def test_orbits_have_routes_too():
    topology = tp.torus(4, 4)
    schedule = tacos.synthesize(
        topology, co.all_gather(topology, "1MB", chunks=1), engine="symmetric"
    )
    assert schedule.form == "orbit"
    program = lower(schedule)
    order, links = program_order(schedule, program), program_routes(schedule, program)
    for rule in RULES:
        trace = simulate(program, topology, timing=rule, routes=links, order=order)
        assert trace.time_ps == schedule.time_ps


# --- against the slow loops ---------------------------------------------------------------------


def default_path(topology, program):
    """The links between two ranks: the direct ones by channel in turn, else the default route."""
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))

    def path(thread, src, dst):
        direct = [link for link, end in enumerate(ends) if end == (src, dst)]
        if direct:
            return 0, [direct[int(program.thread_channel[thread]) % len(direct)]]
        usual = routes(topology, pairs=([src], [dst]))
        return int(usual.kinds[0]), usual.links.tolist()

    return path


def agrees(program, topology, *, timing, links=None, order=None, connections=None, size=None):
    program = filled(program)
    trace = simulate(
        program, topology, size=size, timing=timing, routes=links, order=order,
        connections=connections,
    )  # fmt: skip
    default = default_path(topology, program)

    def path(thread, src, dst):
        given = links[thread] if links is not None else None
        fits = given and program.thread_rank[thread] == src and topology.link_dst[given[-1]] == dst
        return (0, given) if fits else default(thread, src, dst)

    sizes = sized(program, size).chunk_bytes().tolist()
    done, intervals = sharing.run_program(
        program, topology, sizes, path, timing=timing, order=order, limit=connections or 0
    )
    assert len(done) == program.steps
    rank = np.repeat(program.thread_rank, np.diff(program.thread_begin))
    finish = [0] * program.ranks
    for step, when in done.items():
        finish[rank[step]] = max(finish[rank[step]], when)
    assert trace.npu_finish_ps.tolist() == finish
    kept = [row for row in intervals if STEP_OPS[program.op[row[3]]] != "signal"]
    columns = (trace.begin_ps, trace.end_ps, trace.link, trace.transfer)
    assert sorted(zip(*(c.tolist() for c in columns), strict=True)) == sorted(kept)
    short = simulate(
        program, topology, size=size, timing=timing, routes=links, order=order,
        connections=connections, record=False,
    )  # fmt: skip
    assert short.npu_finish_ps.tolist() == finish
    assert short.busy_ps().tolist() == trace.busy_ps().tolist()


@st.composite
def programs(draw):
    """A schedule of some engine on some network, and its program."""
    network = draw(quick_topologies() | st.sampled_from([
        tp.switch(4), tp.torus(3, 2), tp.fat_tree(2, 2), tp.product(tp.ring(3), tp.switch(2)),
        tp.switch(4, forwarding="store_and_forward"), tp.ring(4, link_model="blocking"),
        tp.fully_connected(4, reduce_bandwidth="10GB/s"),
    ]))  # fmt: skip
    collective = draw(collectives(network.npus, max_chunks=2))
    assume(all(collective.chunk_bytes()))
    engine = draw(st.sampled_from(tacos.engines(network, collective)))
    schedule = tacos.synthesize(network, collective, engine=engine)
    assume(not schedule.routes.kinds.any() and schedule.transfers < 60)
    return schedule, lower(schedule, in_place=draw(st.booleans()))


@given(st.data(), programs(), st.sampled_from(RULES))
@settings(max_examples=100)
def test_lowered_programs_are_what_the_slow_loop_says(data, both, timing):
    schedule, program = both
    links = program_routes(schedule, program) if data.draw(st.booleans()) else None
    order = program_order(schedule, program) if data.draw(st.booleans()) else None
    if timing == "order" and links is None and order is not None:
        order = None  # over other routes the schedule's order may deadlock
    limit = data.draw(st.sampled_from([None, 1, 2])) if timing == "shared" else None
    agrees(program, schedule.topology, timing=timing, links=links, order=order, connections=limit)


@given(st.data(), st.sampled_from([tp.torus(3, 3), tp.mesh(2, 3), tp.ring(5), tp.hypercube(3)]))
@settings(max_examples=40)
def test_programs_in_their_schedule_s_order_are_not_late(data, topology):
    """Single links that serve in the order of the schedule's starts lose no time."""
    kind = data.draw(st.sampled_from(["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]))
    collective = co.named(kind, topology, 7200, chunks=data.draw(st.integers(1, 3)))
    engine = data.draw(st.sampled_from(["greedy", "ring"]))
    schedule = tacos.synthesize(topology, collective, engine=engine)
    program = lower(schedule)
    known = {
        "routes": program_routes(schedule, program),
        "order": program_order(schedule, program),
    }
    trace = simulate(program, topology, timing="order", record=False, **known)
    assert trace.time_ps <= schedule.time_ps


@pytest.mark.parametrize("timing", RULES)
def test_packed_programs_are_what_the_slow_loop_says(tmp_path, timing):
    topology = tp.torus(3, 2, bandwidth="1GB/s")
    schedule = tacos.synthesize(topology, co.all_reduce(topology, "6KB", chunks=1), engine="ring")
    tacos.save(schedule, tmp_path / "a.xml")
    program = tacos.load(tmp_path / "a.xml")
    assert "recv" in {STEP_OPS[op] for op in program.op}
    assert max(program.op) > 5  # with fused steps
    links = program_routes(schedule, program)
    agrees(program, topology, timing=timing, links=links, size=6000)


@pytest.mark.parametrize("timing", RULES)
def test_one_sided_programs_are_what_the_slow_loop_says(tmp_path, timing):
    topology = tp.fully_connected(4, bandwidth="1GB/s")
    schedule = tacos.synthesize(topology, co.all_gather(topology, "4KB", chunks=1), engine="direct")
    tacos.save(schedule, tmp_path / "a.json", format="mscclpp")
    program = tacos.load(tmp_path / "a.json")
    assert {"put", "signal", "wait"} <= {STEP_OPS[op] for op in program.op}
    agrees(program, topology, timing=timing, size=4000)


@pytest.mark.parametrize("rule", RULES)
def test_progress_and_ctrl_c(rule):
    """Reports come every 50 ms, so the program grows until its run takes twice as long."""
    topology = tp.ring(128)
    shares: list[float] = []
    chunks = 8
    while len(shares) < 2 and chunks < 512:
        shares.clear()
        chunks *= 2
        wanted = co.all_gather(topology, "64MB", chunks=chunks)
        program = lower(tacos.synthesize(topology, wanted, engine="ring", verify=False))
        simulate(program, topology, timing=rule, record=False, progress=shares.append)
    assert shares
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1

    def stop(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(program, topology, timing=rule, record=False, progress=stop)


# --- what is refused ----------------------------------------------------------------------------


def test_a_deadlock_names_a_step():
    """Two ranks that each wait for the other's message before they send; a message that is never sent."""
    collective = co.all_gather(2, 2000, chunks=1)
    circle = made(collective, [
        (0, 1, 1, [("recv", NONE, -1, OUTPUT, 1, 3), ("send", INPUT, 0)]),
        (1, 0, 0, [("recv", NONE, -1, OUTPUT, 0, 1), ("send", INPUT, 0)]),
    ])  # fmt: skip
    lost = made(collective, [(0, -1, 1, [("recv", NONE, -1, OUTPUT, 1)])])
    for rule in RULES:
        with pytest.raises(InfeasibleError, match="rank 0, thread 0, step 0 can never"):
            simulate(circle, tp.mesh(2), size=2000, timing=rule)
        with pytest.raises(InfeasibleError, match="rank 0, thread 0, step 0 can never start"):
            simulate(lost, tp.mesh(2), size=2000, timing=rule)


def test_an_order_that_waits_in_a_circle_names_a_step():
    """The order has 0's second message first, but its thread sends the other one before it."""
    collective = co.send_recv(2, [(0, 1, 1000), (0, 1, 1000)], chunks=1)
    program = made(collective, [
        (0, 1, -1, [("send", INPUT, 0), ("send", INPUT, 1)]),
        (1, -1, 0, [("recv", NONE, -1, OUTPUT, 0, 0), ("recv", NONE, -1, OUTPUT, 1, 1)]),
    ])  # fmt: skip
    with pytest.raises(InfeasibleError, match="rank 0, thread 0, step 1 can never start"):
        simulate(program, tp.mesh(2), timing="order", order=[1, 0, 0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"timing": "schedule"}, 'timing of a program must be one of .* got "schedule"'),
        ({"connections": 2}, 'connections is 2, but only timing "shared" has a limit'),
        ({"timing": "shared", "connections": 0}, "connections is 0; it must be a whole number"),
        ({"routes": [[0]]}, "routes has 1 entries for 4 threads"),
        ({"routes": [[9], None, None, None]}, "thread 0 has link 9, the links are 0 to 3"),
        ({"routes": [[1], None, None, None]}, "thread 0 leads from .* sends from NPU 0 to NPU 1"),
        ({"order": [0]}, "order has 1 entries for 4 steps"),
        ({"jitter": "1us"}, "a program does not take faults, stragglers, jitter"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(messages(3, [(0, 1), (1, 2)]), tp.mesh(3), **arguments)


def test_what_a_program_needs():
    program = messages(3, [(0, 1)])
    with pytest.raises(ValueError, match="a program needs a topology"):
        simulate(program)
    with pytest.raises(ValueError, match="the topology has 2 NPUs, the program 3 ranks"):
        simulate(program, tp.mesh(2))
    with pytest.raises(ValueError, match="give the size of the collective"):
        simulate(made(co.all_gather(2, 2, chunks=1), []), tp.mesh(2))
    schedule = tacos.synthesize(tp.ring(3), co.all_gather(3, 3000, chunks=1))
    with pytest.raises(ValueError, match="are for programs without a profile"):
        simulate(schedule, connections=3)
