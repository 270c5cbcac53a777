"""The verifier against the oracle, rule by rule by hand, and on orbits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import _core
from tacos import collective as co
from tacos import topology as tp
from tacos.errors import VerificationError
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE, Schedule, retime, routes
from tests.support import oracle
from tests.support.strategies import orders

US = 1_000_000  # picoseconds


def packed(collective, table, rows, quantum=1):
    """A schedule from rows (route, chunk, op, reads, starts of the legs), not checked by retime.

    Rows that share route, op and reads become one lane where their legs keep one order.
    """
    lanes: dict[tuple[int, ...], list] = {}
    for route, chunk, op, reads, starts in sorted(rows, key=lambda row: row[4]):
        lane = lanes.setdefault((route, op, reads), [])
        if lane and any(a < b for a, b in zip(starts, lane[-1][1], strict=True)):
            lane = lanes.setdefault((route, op, reads, len(lanes)), [])
        lane.append((chunk, starts))
    keys = list(lanes)
    start = [
        row[1][leg] for lane in lanes.values() for leg in range(len(lane[0][1])) for row in lane
    ]
    return Schedule(
        collective=collective,
        routes=table,
        lane_route=np.array([key[0] for key in keys], np.int32),
        lane_op=np.array([key[1] for key in keys], np.uint8),
        lane_reads=np.array([key[2] for key in keys], np.uint8),
        lane_begin=np.cumsum([0, *map(len, lanes.values())], dtype=np.int64),
        chunk=np.array([row[0] for lane in lanes.values() for row in lane], np.uint32),
        start=np.array(start, np.uint32),
        quantum_ps=quantum,
    )


def rows_of(schedule):
    """The rows that `packed` takes."""
    routes_of = np.repeat(schedule.lane_route, np.diff(schedule.lane_begin)).tolist()
    return [
        (route, t.chunk, t.op, t.reads, [start // schedule.quantum_ps for start in t.starts])
        for route, t in zip(routes_of, oracle.transfers_of(schedule), strict=True)
    ]


def broken_rules(schedule, **options):
    return {violation.rule for violation in tacos.verify(schedule, **options).violations}


def messages(schedule, **options):
    return [violation.message for violation in tacos.verify(schedule, **options).violations]


# --- (a) the verifier and the oracle agree ------------------------------------------------------


def mutate(draw, schedule):
    """The schedule with a few rows changed, doubled or left out."""
    rows = rows_of(schedule)
    sizes = schedule.collective.chunk_bytes()
    full = [chunk for chunk in range(schedule.collective.chunks) if sizes[chunk] > 0]
    legs = [
        len(oracle.cross(schedule.topology, int(kind), links, 1).leg_ends)
        for kind, links in zip(
            schedule.routes.kinds, oracle.route_links(schedule.routes), strict=True
        )
    ]
    for _ in range(draw(st.integers(0, 3))):
        if not rows:
            break
        i = draw(st.integers(0, len(rows) - 1))
        route, chunk, op, reads, starts = rows[i]
        shift = draw(st.sampled_from([-(10**7), -1000, -1, 1, 1000, 10**7]))
        what = draw(
            st.sampled_from(["move", "leg", "chunk", "drop", "double", "op", "reads", "route"])
        )
        if what in ("move", "leg"):
            first = 0 if what == "move" else draw(st.integers(0, len(starts) - 1))
            starts = [*starts[:first], *(max(0, t + shift) for t in starts[first:])]
        elif what == "chunk":
            chunk = draw(st.sampled_from(full))
        elif what == "drop":
            del rows[i]
            continue
        elif what == "double":
            rows.append((route, chunk, op, reads, [t + abs(shift) for t in starts]))
        elif what == "op":
            op = 1 - op
        elif what == "reads":
            reads = 1 - reads
        else:
            route = draw(st.sampled_from([r for r, n in enumerate(legs) if n == len(starts)]))
        rows[i] = (route, chunk, op, reads, starts)
    return packed(schedule.collective, schedule.routes, rows, schedule.quantum_ps)


def found_wrongs(schedule, **options):
    """What the verifier finds: (rule, transfer, chunk, link), each -1 where the rule does not name one."""
    found = tacos.verify(schedule, limit=10**6, **options).violations
    return {
        (one.rule, *((-1, -1) if one.rule == "capacity" else (one.transfer, one.chunk)), one.link)
        for one in found
    }


def true_wrongs(schedule, **options):
    """The same as the oracle has it."""
    wrongs = set()
    for rule, first, *_ in oracle.examine(schedule, **options):
        if rule == "capacity":
            wrongs.add((rule, -1, -1, first))
        elif rule in ("causality", "unneeded"):
            wrongs.add((rule, first, int(schedule.chunk[first]), -1))
        else:
            wrongs.add((rule, -1, first, -1))
    return wrongs


def comparable(wrongs):
    """All wrongs but the consequences of broken causality: what a transfer carries that its source does not hold yet is undefined.

    That leaves the sums of this chunk open, and which of its transfers are of use, but nothing about other chunks.
    """
    broken = {chunk for rule, _, chunk, _ in wrongs if rule == "causality"}
    return {
        wrong
        for wrong in wrongs
        if not (wrong[0] in ("contribution", "unneeded") and wrong[2] in broken)
    }


@pytest.mark.parametrize("allow_unneeded", [False, True])
@given(order=orders(), data=st.data())
def test_the_verifier_and_the_oracle_agree(allow_unneeded, order, data):
    schedule = mutate(data.draw, order.retimed())
    found = found_wrongs(schedule, allow_unneeded=allow_unneeded)
    truth = true_wrongs(schedule, allow_unneeded=allow_unneeded)
    assert comparable(found) == comparable(truth)


@given(orders())
def test_a_retimed_order_is_right(order):
    schedule = order.retimed()
    report = tacos.verify(schedule)
    assert report.ok, report.violations
    assert report.checked == schedule.transfers
    assert oracle.rules(oracle.examine(schedule)) == set()


# --- (b) every rule by hand ---------------------------------------------------------------------


def line(n=3, **options):
    """NPU 0 -> 1 -> … -> n-1 and back: 1 GB/s and 1 us, so that 1000 B take 1 us + 1 us."""
    return tp.mesh(n, bandwidth="1GB/s", latency="1us", **options)


def relay(second_start, *, topology=None, kind="broadcast"):
    """A chunk from NPU 0 over NPU 1 to NPU 2; it reaches NPU 1 after 2 us."""
    topology = topology or line()
    if kind == "broadcast":
        collective = co.broadcast(topology, 1000, chunks=1)
    else:
        collective = co.send_recv(topology, [(0, 2, 1000)], chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    return packed(
        collective,
        table,
        [(0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [second_start])],
    )


def test_a_chunk_sent_at_the_moment_it_arrives_is_right():
    assert tacos.verify(relay(2 * US)).ok


def test_a_chunk_sent_before_it_arrives_breaks_causality():
    """What the published TACOS does on heterogeneous links: 1 ps too early is too early."""
    (violation,) = tacos.verify(relay(2 * US - 1)).violations
    assert violation.rule == "causality"
    assert (violation.transfer, violation.time_ps, violation.chunk) == (1, 2 * US - 1, 0)
    assert violation.message == (
        "transfer 1 sends chunk 0 from npu 1 at 1.999 us, where it arrives only at 2.000 us"
    )


def test_a_relayed_message_sent_too_early_is_told_when_it_would_arrive():
    assert messages(relay(2 * US - 1, kind="send_recv"), allow_unneeded=True)[0] == (
        "transfer 1 sends chunk 0 from npu 1 at 1.999 us, where it arrives only at 2.000 us"
    )


def test_a_chunk_that_never_arrives_cannot_be_sent():
    topology = line()
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, pairs=([1], [2]))
    schedule = packed(collective, table, [(0, 0, COPY, READ_ACC, [0])])
    assert messages(schedule) == [
        "transfer 0 sends chunk 0 from npu 1 at 0.000 us, where it never arrives",
        "npu 1 never receives chunk 0",
    ]


def test_broken_causality_of_one_chunk_hides_nothing_of_another():
    """Chunk 0 leaves NPU 1 too early; chunk 1 reaches it twice, and chunk 2 is a sum without the root's share."""
    topology = line()
    collective = co.custom(
        topology,
        [1000] * 3,
        before=[[0], [0], [0, 1]],
        after=[[1, 2], [1], [1]],
        reduces=[False, False, True],
    )
    table = routes(topology, pairs=([0, 1], [1, 2]))
    rows = [
        *((0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [US])),
        *((0, 1, COPY, READ_ACC, [2 * US]), (0, 1, COPY, READ_ACC, [4 * US])),
        (0, 2, COPY, READ_ACC, [6 * US]),
    ]
    found = comparable(found_wrongs(packed(collective, table, rows)))
    assert {(rule, chunk) for rule, _, chunk, _ in found} == {
        ("causality", 0),
        ("unneeded", 1),
        ("contribution", 2),
    }


def test_a_slow_first_hop_delays_the_second():
    """0 -> 1 at 0.5 GB/s takes 1 us + 2 us, though 1 -> 2 would be ready after 2 us."""
    links = [(0, 1, "0.5GB/s", "1us"), (1, 2, "1GB/s", "1us"), (2, 0, "1GB/s", "1us")]
    topology = tp.from_links(3, links)
    assert broken_rules(relay(2 * US, topology=topology)) == {"causality"}
    assert tacos.verify(relay(3 * US, topology=topology)).ok


@pytest.mark.parametrize("slow", [0, 1])
def test_the_slowest_link_of_a_leg_delays_its_tail(slow):
    """0 -> switch -> 1, one link with 0.5 GB/s: 1 + 1 us of latency and 2 us for the tail."""
    speeds = ["0.5GB/s" if i == slow else "1GB/s" for i in range(2)]
    links = [(0, 3, speeds[0], "1us"), (3, 1, speeds[1], "1us")]
    more = [(1, 2, "1GB/s", "1us"), (2, 0, "1GB/s", "1us")]
    topology = tp.from_links(3, links + more, switches=1)
    assert tacos.verify(relay(4 * US, topology=topology)).ok
    assert broken_rules(relay(4 * US - 1, topology=topology)) == {"causality"}


def test_an_npu_without_a_contribution_has_no_input_to_read():
    topology = line()
    collective = co.send_recv(topology, [(0, 2, 1000)], chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    rows = [(0, 0, COPY, READ_INPUT, [0]), (1, 0, COPY, READ_INPUT, [2 * US])]
    assert "causality" in broken_rules(packed(collective, table, rows))


@pytest.mark.parametrize(
    ("model", "busy"), [("pipelined", 1 * US), ("blocking", 2 * US)], ids=["pipelined", "blocking"]
)
def test_a_link_carries_one_transfer_at_a_time(model, busy):
    """1000 B at 1 GB/s: busy for 1 us, under the blocking model for the latency of 1 us too."""
    topology = line(2, link_model=model)
    collective = co.custom(topology, [1000, 1000], [[0], [0]], [[1], [1]])
    table = routes(topology, pairs=([0], [1]))

    def two(second):
        rows = [(0, 0, COPY, READ_ACC, [0]), (0, 1, COPY, READ_ACC, [second])]
        return packed(collective, table, rows)

    assert tacos.verify(two(busy)).ok
    (violation,) = tacos.verify(two(busy - 1)).violations
    assert (violation.rule, violation.link, violation.transfer) == ("capacity", 0, 1)
    assert violation.message == (
        f"transfer 1 enters link 0 (npu 0 -> npu 1) at {(busy - 1) // US}.999 us, "
        f"while transfer 0 keeps it busy until {busy // US}.000 us"
    )


def test_a_long_transfer_hides_no_later_overlap():
    """0 is busy for 10 us; 1 and 2 both fall into it, although 1 is over before 2 begins."""
    topology = line(2)
    collective = co.custom(topology, [10_000, 1000, 1000], [[0]] * 3, [[1]] * 3)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, chunk, COPY, READ_ACC, [start * US]) for chunk, start in [(0, 0), (1, 2), (2, 5)]]
    report = tacos.verify(packed(collective, table, rows))
    assert [v.transfer for v in report.violations] == [1, 2]


def test_two_routes_share_a_port_of_a_switch():
    """0 -> 2 and 1 -> 2 meet on the switch's one link to NPU 2, though their routes differ."""
    topology = tp.switch(3, bandwidth="1GB/s", latency="1us")
    collective = co.send_recv(topology, [(0, 2, 1000), (1, 2, 1000)], chunks=1)
    table = routes(topology, pairs=([0, 1], [2, 2]))

    def two(second):
        rows = [(0, 0, COPY, READ_ACC, [0]), (1, 1, COPY, READ_ACC, [second])]
        return packed(collective, table, rows)

    assert tacos.verify(two(1 * US)).ok
    (violation,) = tacos.verify(two(1 * US - 1)).violations
    assert violation.rule == "capacity"
    shared = set(table.links[:2].tolist()) & set(table.links[2:].tolist())
    assert {violation.link} == shared


def test_the_legs_of_a_route_follow_each_other():
    """0 -> 1 -> 2 as one route through NPU 1, where the whole chunk must be after 2 us."""
    topology = line()
    collective = co.send_recv(topology, [(0, 2, 1000)], chunks=1)
    table = routes(topology, pairs=([0], [2]))
    assert tacos.verify(packed(collective, table, [(0, 0, COPY, READ_ACC, [0, 2 * US])])).ok
    late = packed(collective, table, [(0, 0, COPY, READ_ACC, [0, 2 * US - 1])])
    assert messages(late) == [
        "transfer 0 starts leg 1 at 1.999 us, before the leg before it arrives at 2.000 us"
    ]


def test_every_destination_must_receive():
    topology = line()
    collective = co.all_gather(topology, 3000, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    report = tacos.verify(packed(collective, table, [(0, 0, COPY, READ_ACC, [0])]))
    assert [violation.rule for violation in report.violations] == ["postcondition"] * 5
    assert "npu 2 never receives chunk 0" in [v.message for v in report.violations]


def test_a_reduction_needs_every_contribution():
    topology = line()
    collective = co.reduce(topology, 1000, root=1, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    schedule = packed(collective, table, [(0, 0, REDUCE, READ_ACC, [0])])
    assert messages(schedule) == ["npu 1 ends with chunk 0 without the contribution of npu 2"]


def test_a_copy_that_should_add_loses_a_contribution():
    topology = line(2)
    collective = co.reduce(topology, 1000, root=1, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    schedule = packed(collective, table, [(0, 0, COPY, READ_ACC, [0])])
    assert messages(schedule) == ["npu 1 ends with chunk 0 without the contribution of npu 1"]


def test_an_input_is_not_the_sum():
    """NPU 1 has got 0's contribution, but sends on its own input."""
    topology = line()
    collective = co.reduce(topology, 1000, root=2, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))

    def chain(reads):
        rows = [(0, 0, REDUCE, READ_ACC, [0]), (1, 0, REDUCE, reads, [2 * US])]
        return packed(collective, table, rows)

    assert tacos.verify(chain(READ_ACC)).ok
    assert messages(chain(READ_INPUT)) == [
        "npu 2 ends with chunk 0 without the contribution of npu 0",
        "transfer 0 of chunk 0 delivers nothing that is read or wanted later",
    ]


def test_a_contribution_must_not_count_twice():
    topology = line(2)
    collective = co.reduce(topology, 1000, root=1, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, 0, REDUCE, READ_ACC, [0]), (0, 0, REDUCE, READ_ACC, [1 * US])]
    schedule = packed(collective, table, rows)
    assert messages(schedule) == ["npu 1 ends with chunk 0 counting npu 0 2 times"]


def test_a_copied_chunk_must_not_be_added_to_itself():
    topology = line(2)
    collective = co.send_recv(topology, [(0, 1, 1000)], chunks=1)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, 0, COPY, READ_ACC, [0]), (0, 0, REDUCE, READ_ACC, [1 * US])]
    schedule = packed(collective, table, rows)
    assert messages(schedule) == ["npu 1 ends with chunk 0 added to itself, 2 times its value"]


def doubling(n, topology, steps_of=lambda step: step):
    """Recursive doubling: in step k all NPUs exchange their sums with the NPU 2^k away."""
    collective = co.custom(topology, [1000], [range(n)], [range(n)], reduces=True)
    pairs = [(i, i ^ 1 << k, k) for k in range(n.bit_length() - 1) for i in range(n)]
    src, dst, step = zip(*pairs, strict=True)
    return retime(
        collective,
        routes(topology, pairs=(src, dst)),
        route=range(len(pairs)),
        chunk=0,
        step=[steps_of(k) for k in step],
        op=REDUCE,
    )


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("build", [tp.fully_connected, tp.switch])
def test_recursive_doubling_is_right(n, build):
    schedule = doubling(n, build(n))
    assert tacos.verify(schedule).ok
    assert oracle.examine(schedule) == set()


def test_recursive_doubling_out_of_step_counts_twice():
    """NPU 0 sends before, NPU 1 after the exchange: NPU 1 returns what it got from NPU 0."""
    topology = line(2)
    collective = co.all_reduce(topology, 2000, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 0]))
    rows = [
        (route, chunk, REDUCE, READ_ACC, [chunk * 3 * US + start])
        for chunk in (0, 1)
        for route, start in ((0, 0), (1, 2 * US))
    ]
    assert messages(packed(collective, table, rows)) == [
        "npu 0 ends with chunk 0 counting npu 0 2 times",
        "npu 0 ends with chunk 1 counting npu 0 2 times",
    ]
    together = [(*row[:4], [row[1] * 3 * US]) for row in rows]
    assert tacos.verify(packed(collective, table, together)).ok


def test_one_shot_all_reduce_is_right():
    """Everybody sends its input to everybody; acc may meanwhile hold anything."""
    topology = tp.fully_connected(4, bandwidth="1GB/s", latency="1us")
    collective = co.all_reduce(topology, 4000, chunks=1)
    src, dst = np.nonzero(~np.eye(4, dtype=bool))
    table = routes(topology, pairs=(src, dst))
    rows = [
        (route, chunk, REDUCE, READ_INPUT, [chunk * 2 * US])
        for chunk in range(4)
        for route in range(12)
    ]
    assert tacos.verify(packed(collective, table, rows)).ok
    rows = [(route, 0, REDUCE, READ_INPUT, [route * US]) for route in range(12)]
    assert broken_rules(packed(collective, table, rows)) == {"contribution"}  # other chunks
    one = co.custom(topology, [1000], [range(4)], [range(4)], reduces=True)
    assert tacos.verify(packed(one, table, rows)).ok
    rows = [(*row[:3], READ_ACC, row[4]) for row in rows]
    assert broken_rules(packed(one, table, rows)) == {"contribution"}


def test_a_reduction_takes_its_time():
    """At 1 GB/s an NPU needs 1 us to add 1000 B: NPU 1 has the sum after 3 us, not 2."""
    topology = line(reduce_bandwidth="1GB/s")
    collective = co.reduce(topology, 1000, root=2, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))

    def chain(second):
        rows = [(0, 0, REDUCE, READ_ACC, [0]), (1, 0, REDUCE, READ_ACC, [second])]
        return packed(collective, table, rows)

    assert tacos.verify(chain(3 * US)).ok
    assert chain(3 * US).time_ps == 6 * US
    assert broken_rules(chain(3 * US - 1)) == {"contribution", "unneeded"}


# --- unneeded transfers


def test_a_second_delivery_is_unneeded():
    topology = line(2)
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, 0, COPY, READ_ACC, [0]), (0, 0, COPY, READ_ACC, [1 * US])]
    schedule = packed(collective, table, rows)
    assert messages(schedule) == [
        "transfer 1 of chunk 0 reaches npu 1, which has that value already"
    ]
    assert tacos.verify(schedule, allow_unneeded=True).ok


def test_a_delivery_to_the_owner_is_unneeded():
    topology = line(2)
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 0]))
    rows = [(0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [2 * US])]
    assert messages(packed(collective, table, rows)) == [
        "transfer 1 of chunk 0 reaches npu 0, which has that value already"
    ]


def test_a_dead_end_is_unneeded():
    topology = line()
    collective = co.send_recv(topology, [(0, 1, 1000)], chunks=1)
    table = routes(topology, pairs=([0, 1], [1, 2]))
    rows = [(0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [2 * US])]
    schedule = packed(collective, table, rows)
    assert messages(schedule) == [
        "transfer 1 of chunk 0 delivers nothing that is read or wanted later"
    ]
    assert tacos.verify(schedule, allow_unneeded=True).ok


def test_a_value_that_is_overwritten_unread_is_unneeded():
    topology = line(2)
    collective = co.custom(topology, [1000], [[0, 1]], [[1]], reduces=True)
    table = routes(topology, pairs=([0, 1], [1, 0]))
    rows = [
        (0, 0, COPY, READ_ACC, [0]),  # 1 loses its contribution …
        (1, 0, REDUCE, READ_INPUT, [0]),  # … which 0 has got meanwhile …
        (0, 0, COPY, READ_ACC, [2 * US]),  # … and sends back.
    ]
    assert messages(packed(collective, table, rows)) == [
        "transfer 0 of chunk 0 delivers nothing that is read or wanted later"
    ]


def test_only_the_second_of_two_equal_deliveries_is_unneeded():
    topology = line()
    collective = co.send_recv(topology, [(0, 1, 1000)], chunks=1)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, 0, COPY, READ_ACC, [0]), (0, 0, COPY, READ_ACC, [1 * US])]
    assert messages(packed(collective, table, rows)) == [
        "transfer 1 of chunk 0 reaches npu 1, which has that value already"
    ]


def test_what_an_input_hides_is_unneeded():
    """NPU 1 gets 0's contribution, but only its own input is sent on; 2 hears from 0 directly."""
    topology = tp.fully_connected(3, bandwidth="1GB/s", latency="1us")
    collective = co.custom(topology, [1000], [[0, 1]], [[2]], reduces=True)
    table = routes(topology, pairs=([0, 1, 0], [2, 2, 1]))
    rows = [
        (0, 0, REDUCE, READ_ACC, [0]),
        (1, 0, REDUCE, READ_INPUT, [2 * US]),
        (2, 0, REDUCE, READ_ACC, [0]),
    ]
    schedule = packed(collective, table, rows)
    idle = rows_of(schedule).index((2, 0, REDUCE, READ_ACC, [0]))
    assert messages(schedule) == [
        f"transfer {idle} of chunk 0 delivers nothing that is read or wanted later"
    ]


# --- trees

SHARP = {"multicast": True, "reduce": True, "bandwidth": "1GB/s", "latency": "1us"}


def ports(topology):
    """Per NPU of a single switch its link up and its link down."""
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    hub = topology.npus
    return (
        [ends.index((npu, hub)) for npu in range(topology.npus)],
        [ends.index((hub, npu)) for npu in range(topology.npus)],
    )


@pytest.mark.parametrize("model", ["pipelined", "blocking"])
@pytest.mark.parametrize("forwarding", ["cut_through", "store_and_forward"])
def test_all_reduce_in_the_switch_is_right(model, forwarding):
    """Up to the switch, where all inputs join, and from there to everybody."""
    topology = tp.switch(4, link_model=model, forwarding=forwarding, **SHARP)
    up, down = ports(topology)
    collective = co.all_reduce(topology, 4000, chunks=1)
    table = routes(topology, links=[up, down], kinds=["reduce", "multicast"])
    schedule = retime(
        collective,
        table,
        route=[0] * 4 + [1] * 4,
        chunk=[*range(4)] * 2,
        step=[0] * 4 + [1] * 4,
        op=[REDUCE] * 4 + [COPY] * 4,
    )
    assert tacos.verify(schedule).ok
    assert oracle.examine(schedule) == set()
    # Up and down 1 us + 1 us each for the first chunk, then a link's busy time per chunk.
    busy = {"pipelined": 1, "blocking": 2}[model]
    assert schedule.time_ps == (4 + 3 * busy) * US


@pytest.mark.parametrize("owner", [0, 2])
def test_all_reduce_through_an_npu_is_right(owner):
    """The others' inputs join in the switch on their way to the owner, who multicasts the sum."""
    topology = tp.switch(4, **SHARP)
    up, down = ports(topology)
    others = [npu for npu in range(4) if npu != owner]
    collective = co.custom(topology, [1000], [range(4)], [range(4)], reduces=True)
    trees = [[*(up[i] for i in others), down[owner]], [up[owner], *(down[i] for i in others)]]
    table = routes(topology, links=trees, kinds=["reduce", "multicast"])
    schedule = retime(collective, table, route=[0, 1], chunk=0, step=[0, 1], op=[REDUCE, COPY])
    assert tacos.verify(schedule).ok
    assert schedule.time_ps == 6 * US  # twice 2 us of latency and 1 us of sending
    early = [(0, 0, REDUCE, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [3 * US - 1])]
    assert broken_rules(packed(collective, table, early)) == {"contribution"}


def test_a_switch_that_stores_passes_on_whole_chunks():
    """Up 1 + 1 us and down 1 + 1 us, so that the tree takes 4 us, not the 3 of cut-through."""
    topology = tp.switch(3, forwarding="store_and_forward", **SHARP)
    up, down = ports(topology)
    collective = co.custom(topology, [1000], [range(3)], [range(3)], reduces=True)
    table = routes(
        topology,
        links=[[up[1], up[2], down[0]], [up[0], down[1], down[2]]],
        kinds=["reduce", "multicast"],
    )

    def down_at(start):
        rows = [(0, 0, REDUCE, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [start])]
        return packed(collective, table, rows)

    assert tacos.verify(down_at(4 * US)).ok
    assert down_at(4 * US).time_ps == 8 * US
    assert broken_rules(down_at(4 * US - 1)) == {"contribution"}


def test_each_end_of_a_multicast_has_its_own_arrival():
    """Switch to NPU 1 takes 1 us, to NPU 2 it takes 5 us; both then send on as soon as they can."""
    up = [(0, 4, "1GB/s", "1us"), (4, 1, "1GB/s", "1us"), (4, 2, "1GB/s", "5us")]
    more = [(1, 3, "1GB/s", "1us"), (2, 3, "1GB/s", "1us"), (3, 0, "1GB/s", "1us")]
    topology = tp.from_links(4, up + more, switches=["multicast"])
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, links=[[0, 1, 2], [3], [4]], kinds=["multicast", "path", "path"])

    def then(route, start):
        rows = [(0, 0, COPY, READ_ACC, [0]), (route, 0, COPY, READ_ACC, [start])]
        return packed(collective, table, rows)

    assert tacos.verify(then(1, 3 * US)).ok
    assert broken_rules(then(1, 3 * US - 1)) == {"causality"}
    assert tacos.verify(then(2, 7 * US)).ok
    assert broken_rules(then(2, 7 * US - 1)) == {"causality"}


def test_a_link_of_a_tree_is_busy_once_and_shared_with_paths():
    topology = tp.switch(3, **SHARP)
    up, down = ports(topology)
    collective = co.custom(topology, [1000, 1000], [[0], [1]], [[1, 2], [2]])
    table = routes(
        topology, links=[[up[0], down[1], down[2]], [up[1], down[2]]], kinds=["multicast", "path"]
    )

    def both(second):
        rows = [(0, 0, COPY, READ_ACC, [0]), (1, 1, COPY, READ_ACC, [second])]
        return packed(collective, table, rows)

    assert tacos.verify(both(1 * US)).ok
    (violation,) = tacos.verify(both(1 * US - 1)).violations
    assert (violation.rule, violation.link) == ("capacity", down[2])


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_sum_in_the_switch_waits_for_its_last_input(slow):
    """One of three links up takes 5 us: the sum is there after 6 us, whichever it is."""
    ups = [(i, 3, "1GB/s", "5us" if i == slow else "1us") for i in range(3)]
    downs = [(3, i, "1GB/s", "1us") for i in range(3)]
    topology = tp.from_links(3, ups + downs, switches=["multicast+reduce"])
    collective = co.custom(topology, [1000], [range(3)], [range(3)], reduces=True)
    table = routes(topology, links=[[0, 1, 2], [3, 4, 5]], kinds=["reduce", "multicast"])

    def down_at(start):
        rows = [(0, 0, REDUCE, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [start])]
        return packed(collective, table, rows)

    early = broken_rules(down_at(6 * US - 1))
    on_time = broken_rules(down_at(6 * US))
    retimed = retime(collective, table, route=[0, 1], chunk=0, step=[0, 1], op=[REDUCE, COPY])
    assert "causality" in early
    assert on_time == set()
    assert retimed.time_ps == 8 * US


def test_a_copy_left_in_a_switch_is_unneeded():
    topology = tp.switch(2, **SHARP)
    up, down = ports(topology)
    collective = co.broadcast(topology, 1000, chunks=1)
    table = routes(topology, links=[[up[0], down[1]], [up[0]]])
    rows = [(0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [1 * US])]
    assert broken_rules(packed(collective, table, rows)) == {"unneeded"}


@pytest.mark.parametrize("wanted", [[0, 1, 2], [1, 2]])
def test_a_multicast_is_needed_if_one_of_its_ends_needs_it(wanted):
    topology = tp.switch(3, **SHARP)
    up, down = ports(topology)
    collective = co.custom(topology, [1000], [[0]], [wanted])
    table = routes(
        topology, links=[[up[0], down[1]], [up[0], down[1], down[2]]], kinds=["path", "multicast"]
    )
    rows = [(0, 0, COPY, READ_ACC, [0]), (1, 0, COPY, READ_ACC, [1 * US])]
    assert tacos.verify(packed(collective, table, rows)).ok


# --- the report


def many_wrong(n=8):
    """An all-gather in which nothing is ever sent: n·(n-1) things are missing."""
    topology = tp.ring(n)
    collective = co.all_gather(topology, n * 1000, chunks=1)
    return packed(collective, routes(topology, pairs=([0], [1])), [])


def test_limit_caps_what_is_kept_and_counts_all():
    report = tacos.verify(many_wrong(), limit=3)
    assert (len(report.violations), report.found, report.ok) == (3, 56, False)
    everything = tacos.verify(many_wrong(), limit=1000)
    assert len(everything.violations) == everything.found == 56
    assert [v.message for v in everything.violations[:3]] == [v.message for v in report.violations]
    with pytest.raises(ValueError, match="limit must be 1 to 2\\^31 - 1; got 0"):
        tacos.verify(many_wrong(), limit=0)


def test_raise_if_failed_names_the_first_violation():
    report = tacos.verify(many_wrong())
    with pytest.raises(VerificationError) as error:
        report.raise_if_failed()
    assert str(error.value) == ("the schedule is wrong: npu 1 never receives chunk 0 (and 55 more)")
    tacos.verify(relay(2 * US)).raise_if_failed()


def test_long_work_reports_progress_and_can_be_stopped():
    seen: list[float] = []
    tacos.verify(many_wrong(1500), threads=1, progress=seen.append)
    assert seen == sorted(seen)
    assert all(0 <= share <= 1 for share in seen)
    assert seen

    def stop(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacos.verify(many_wrong(1500), threads=2, progress=stop)


@given(orders(), st.data())
def test_threads_and_blocks_do_not_change_the_report(order, data):
    schedule = mutate(data.draw, order.retimed())

    def told(**options):
        report = _core.verify(schedule, **options)
        return report.checked, report.found, [repr(v) for v in report.violations]

    assert told() == told(threads=1) == told(threads=2) == told(block_transfers=1, threads=2)


# --- (c) orbits ---------------------------------------------------------------------------------


def orbit(collective, table, rows, orders, node_image, link_image):
    """An orbit from the rows (route, chunk, op, reads, start) of its representatives."""
    plain = packed(collective, table, [(*row[:4], [row[4]]) for row in rows])
    return Schedule(
        collective=collective,
        routes=table,
        lane_route=plain.lane_route,
        lane_op=plain.lane_op,
        lane_reads=plain.lane_reads,
        lane_begin=plain.lane_begin,
        chunk=plain.chunk,
        start=plain.start,
        quantum_ps=1,
        orders=orders,
        node_image=np.ravel(node_image).astype(np.int32),
        link_image=np.ravel(link_image).astype(np.int32),
    )


def links_under(topology, node_image):
    """Where the links go if the nodes go as given; all links must have an image."""
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    return [ends.index((int(node_image[a]), int(node_image[b]))) for a, b in ends]


def ring_all_gather(n, *, size=None, gap=2 * US, topology=None, chunks=1, **changes):
    """Chunk 0 travels once around; rotating NPUs and chunks gives the others."""
    topology = topology or tp.ring(n, bidirectional=False, bandwidth="1GB/s", latency="1us")
    collective = co.all_gather(topology, size or n * 1000, chunks=chunks)
    table = routes(topology, links=[[i] for i in range(n)])
    image = [(i + 1) % n for i in range(n)]
    values = {
        "rows": [(i, 0, COPY, READ_ACC, i * gap) for i in range(n - 1)],
        "orders": [n],
        "node_image": image,
        "link_image": image,
    } | changes
    return orbit(collective, table, **values)


def agrees_with_expansion(schedule):
    """Both verdicts, which must be the same."""
    whole = schedule.expand()
    assert whole.form == "packed"
    assert whole.transfers == schedule.transfers
    short, long = tacos.verify(schedule).ok, tacos.verify(whole).ok
    assert long == (not oracle.examine(whole))
    assert short == long
    return short


@pytest.mark.parametrize("n", [4, 5, 6])
def test_a_rotated_ring_is_right(n):
    schedule = ring_all_gather(n)
    assert schedule.form == "orbit"
    assert (schedule.stored_transfers, schedule.transfers) == (n - 1, n * (n - 1))
    assert agrees_with_expansion(schedule)


@pytest.mark.parametrize("n", [4, 6])
def test_half_a_rotation_needs_two_representatives(n):
    """The rotation by two has two orbits of NPUs; 0 and 1 represent them."""
    image = [(i + 2) % n for i in range(n)]
    both = [((i + c) % n, c, COPY, READ_ACC, i * 2 * US) for c in (0, 1) for i in range(n - 1)]
    options = {"orders": [n // 2], "node_image": image, "link_image": image}
    assert agrees_with_expansion(ring_all_gather(n, rows=both, **options))
    missing = ring_all_gather(n, rows=both[: n - 1], **options)
    assert broken_rules(missing) == {"postcondition"}
    assert not agrees_with_expansion(missing)


def test_a_bidirectional_ring_in_both_directions_is_right():
    topology = tp.ring(5, bandwidth="1GB/s", latency="1us")
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    image = [(i + 1) % 5 for i in range(5)]
    hops = [(0, 1), (1, 2), (0, 4), (4, 3)]
    table = routes(topology, links=[[ends.index(hop)] for hop in hops])
    rows = [(i, 0, COPY, READ_ACC, i % 2 * 2 * US) for i in range(4)]
    collective = co.all_gather(topology, 5000, chunks=1)
    schedule = orbit(collective, table, rows, [5], image, links_under(topology, image))
    assert agrees_with_expansion(schedule)


def torus_3x4(**changes):
    """Chunk 0 along x in all rows of y: first around y from the owner, then around every x."""
    topology = tp.torus(3, 4, bandwidth="1GB/s", latency="1us")
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    right = [(v + 1) % 3 + v // 3 * 3 for v in range(12)]
    up = [(v + 3) % 12 for v in range(12)]
    hops, starts = [], []
    for y in range(3):
        hops.append((3 * y, 3 * y + 3))
        starts.append(2 * y * US)
    for y in range(4):
        for x in range(2):
            hops.append((3 * y + x, 3 * y + x + 1))
            starts.append((6 + 2 * y + 10 * x) * US)
    table = routes(topology, links=[[ends.index(hop)] for hop in hops])
    rows = [(i, 0, COPY, READ_ACC, start) for i, start in enumerate(starts)]
    values = {
        "orders": [3, 4],
        "node_image": [right, up],
        "link_image": [links_under(topology, right), links_under(topology, up)],
    } | changes
    return orbit(co.all_gather(topology, 12_000, chunks=1), table, rows, **values)


def test_translations_of_a_torus_are_right():
    schedule = torus_3x4()
    assert schedule.transfers == 12 * 11
    assert agrees_with_expansion(schedule)


def test_rotations_of_a_switch_are_right():
    """All-to-all: NPU 0 sends to 1, 2, 3 one after the other, so no port is used twice."""
    topology = tp.switch(4, bandwidth="1GB/s", latency="1us")
    image = [1, 2, 3, 0, 4]
    collective = co.all_to_all(topology, 4000, chunks=1)
    table = routes(topology, pairs=([0, 0, 0], [1, 2, 3]))

    def sent_at(starts):
        rows = [(i, i + 1, COPY, READ_ACC, start * US) for i, start in enumerate(starts)]
        return orbit(collective, table, rows, [4], image, links_under(topology, image))

    assert agrees_with_expansion(sent_at([0, 1, 2]))
    assert broken_rules(sent_at([0, 1, 1])) == {"capacity"}
    assert not agrees_with_expansion(sent_at([0, 1, 1]))


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_reduce"])
def test_rotated_reductions_are_right(kind):
    n = 4
    topology = tp.ring(n, bidirectional=False, bandwidth="1GB/s", latency="1us")
    collective = co.named(kind, topology, n * 1000, chunks=1)
    table = routes(topology, links=[[i] for i in range(n)])
    image = [(i + 1) % n for i in range(n)]
    rows = [((i + 1) % n, 0, REDUCE, READ_ACC, i * 2 * US) for i in range(n - 1)]
    if kind == "all_reduce":
        rows += [(i, 0, COPY, READ_ACC, (n - 1 + i) * 2 * US) for i in range(n - 1)]
    schedule = orbit(collective, table, rows, [n], image, image)
    assert agrees_with_expansion(schedule)
    rows[0] = (*rows[0][:4], 1)
    assert not agrees_with_expansion(orbit(collective, table, rows, [n], image, image))


def test_images_must_not_overlap_on_a_link():
    """1.5 us apart would do for one chunk; but each image also crosses every link within 1 us."""
    assert broken_rules(ring_all_gather(4, gap=2 * US)) == set()
    rows = [(0, 0, COPY, READ_ACC, 0), (1, 0, COPY, READ_ACC, 2 * US), (2, 0, COPY, READ_ACC, 0)]
    found = tacos.verify(ring_all_gather(4, rows=rows))
    assert "capacity" in {v.rule for v in found.violations}
    assert broken_rules(ring_all_gather(4, gap=1 * US - 1)) == {"causality", "capacity"}


def test_a_link_that_the_symmetry_fixes_is_used_by_all_images_at_once():
    """Two switches in a row: exchanging the NPUs of each side leaves the link between them."""
    links = [(0, 4, 1e9, 0), (1, 4, 1e9, 0), (4, 5, 1e9, 0), (5, 2, 1e9, 0), (5, 3, 1e9, 0)]
    back = [(b, a, bw, lat) for a, b, bw, lat in links]
    topology = tp.from_links(4, links + back, switches=2)
    image = [1, 0, 3, 2, 4, 5]
    collective = co.all_to_all(topology, 4000, chunks=1)
    table = routes(topology, pairs=([0], [2]))
    schedule = orbit(
        collective, table, [(0, 2, COPY, READ_ACC, 0)], [2], image, links_under(topology, image)
    )
    assert (
        "the symmetry fixes link 2 (switch 0 -> switch 1), "
        "so images of one transfer use it at one time"
    ) in messages(schedule)


def refused(schedule):
    (violation,) = tacos.verify(schedule).violations
    assert violation.rule == "symmetry"
    return violation.message


def test_a_link_must_go_where_its_ends_go():
    image = [1, 2, 3, 0]
    assert refused(ring_all_gather(4, link_image=[2, 3, 0, 1])) == (
        "generator 0 takes link 0 (npu 0 -> npu 1) to link 2 (npu 2 -> npu 3), "
        "which is not its image"
    )
    assert tacos.verify(ring_all_gather(4, link_image=image)).ok


def test_a_generator_must_have_its_order():
    two = [2, 3, 0, 1]
    assert refused(ring_all_gather(4, orders=[3])) == "generator 0 has not the order 3"
    # A rotation by two has order 2, which divides 4: then it does not act freely.
    assert refused(ring_all_gather(4, node_image=two, link_image=two)) == (
        "the group does not act freely on the orbit of npu 0 within the process group"
    )


def test_a_generator_must_be_a_permutation():
    links = [(0, 1, 1e9, 0), (1, 0, 1e9, 0)]
    topology = tp.from_links(2, links)
    collective = co.all_gather(topology, 2000, chunks=1)
    table = routes(topology, links=[[0]])
    same = orbit(collective, table, [(0, 0, COPY, READ_ACC, 0)], [2], [0, 0], [0, 0])
    assert "is not its image" in refused(same)
    double = tp.from_links(2, [*links, *links])
    table = routes(double, links=[[0]])
    rows = [(0, 0, COPY, READ_ACC, 0)]
    folded = orbit(collective, table, rows, [2], [1, 0], [1, 0, 1, 0])
    assert refused(folded) == "generator 0 has not the order 2"


def test_a_generator_must_preserve_speeds():
    """On a ring with one slow link no rotation is a symmetry."""
    links = [(i, (i + 1) % 4, "1GB/s" if i else "0.5GB/s", "1us") for i in range(4)]
    schedule = ring_all_gather(4, topology=tp.from_links(4, links), gap=3 * US)
    assert refused(schedule) == (
        "generator 0 takes link 0 (npu 0 -> npu 1) to link 1 (npu 1 -> npu 2), "
        "which is not its image"
    )
    links = [(i, (i + 1) % 4, "1GB/s", "1us" if i else "2us") for i in range(4)]
    schedule = ring_all_gather(4, topology=tp.from_links(4, links), gap=3 * US)
    assert "is not its image" in refused(schedule)


@pytest.mark.parametrize("can", [["multicast", ""], ["reduce", ""], ["multicast", "reduce"]])
def test_a_generator_must_preserve_what_nodes_can_do(can):
    links = [(a, b, 1e9, 0) for i in (2, 3) for j in (0, 1) for a, b in ((j, i), (i, j))]
    topology = tp.from_links(2, links, switches=can)
    collective = co.all_gather(topology, 2000, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    rows = [(0, 0, COPY, READ_ACC, 0)]
    image = [1, 0, 3, 2]
    schedule = orbit(collective, table, rows, [2], image, links_under(topology, image))
    assert refused(schedule) == "generator 0 takes switch 0 to a node of another kind"
    image = [1, 0, 2, 3]
    assert agrees_with_expansion(
        orbit(collective, table, rows, [2], image, links_under(topology, image))
    )


def test_a_generator_must_not_take_npus_to_switches():
    """Around a ring of two NPUs and two switches: 0 and 1 change places with their neighbours."""
    ends = [(0, 2), (2, 1), (1, 3), (3, 0), (2, 0), (1, 2), (3, 1), (0, 3)]
    topology = tp.from_links(2, [(a, b, 1e9, 0) for a, b in ends], switches=2)
    collective = co.all_gather(topology, 2000, chunks=1)
    table = routes(topology, pairs=([0], [1]))
    image = [2, 3, 0, 1]
    rows = [(0, 0, COPY, READ_ACC, 0)]
    schedule = orbit(collective, table, rows, [2], image, links_under(topology, image))
    assert refused(schedule) == "generator 0 takes npu 0 to a node of another kind"


def test_both_ends_of_a_link_must_go_with_it():
    """Two links into one node exchange their images: their ends fit, their beginnings do not."""
    topology = tp.fully_connected(4)
    ends = list(zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True))
    image = [1, 2, 3, 0]
    links = links_under(topology, image)
    a, b = ends.index((0, 2)), ends.index((1, 2))
    links[a], links[b] = links[b], links[a]
    table = routes(topology, pairs=([0, 0, 0], [1, 2, 3]))
    rows = [(i, 0, COPY, READ_ACC, 0) for i in range(3)]
    collective = co.all_gather(topology, 4000, chunks=1)
    message = refused(orbit(collective, table, rows, [4], image, links))
    assert message.endswith("(npu 1 -> npu 3), which is not its image")


def test_generators_must_commute():
    """A clique has all permutations: a rotation of three of six NPUs and a swap do not commute."""
    topology = tp.fully_connected(6)
    turn, swap = [1, 2, 0, 4, 5, 3], [3, 5, 4, 0, 2, 1]
    collective = co.all_gather(topology, 6000, chunks=1)
    table = routes(topology, pairs=([0] * 5, [1, 2, 3, 4, 5]))
    rows = [(i, 0, COPY, READ_ACC, 0) for i in range(5)]

    def under(second):
        images = [turn, second]
        return orbit(
            collective, table, rows, [3, 2], images, [links_under(topology, i) for i in images]
        )

    assert refused(under(swap)) == "generator 1 and generator 0 do not commute"
    assert agrees_with_expansion(under([3, 4, 5, 0, 1, 2]))


def test_the_group_must_act_freely_on_the_members():
    topology = tp.ring(4, bidirectional=False, bandwidth="1GB/s", latency="1us")
    collective = co.all_gather(topology, 3000, chunks=1, group=[0, 1, 2])
    table = routes(topology, links=[[0], [1]])
    rows = [(0, 0, COPY, READ_ACC, 0), (1, 0, COPY, READ_ACC, 2 * US)]
    image = [1, 2, 3, 0]
    assert "does not act freely" in refused(orbit(collective, table, rows, [4], image, image))


def test_any_image_of_a_transfer_may_be_stored():
    """One NPU's program: NPU 0 sends what came from NPUs 0, 3 and 2; or a mixture of images."""
    sent_by_0 = [(0, (4 - i) % 4, COPY, READ_ACC, i * 2 * US) for i in range(3)]
    assert agrees_with_expansion(ring_all_gather(4, rows=sent_by_0))
    mixed = [(0, 0, COPY, READ_ACC, 0), (3, 2, COPY, READ_ACC, 2 * US), sent_by_0[2]]
    assert agrees_with_expansion(ring_all_gather(4, rows=mixed))
    early = [*sent_by_0[:2], (*sent_by_0[2][:4], 4 * US - 1)]
    assert not agrees_with_expansion(ring_all_gather(4, rows=early))
    assert messages(ring_all_gather(4, rows=early)) == [
        "transfer 2 sends chunk 0 from npu 2 at 3.999 us, where it arrives only at 4.000 us"
    ]


def test_a_transfer_and_its_image_are_one_too_many():
    """Chunk 0 from 0 to 1 and chunk 1 from 1 to 2 are images: both stored, each link is hit twice."""
    rows = [(i, 0, COPY, READ_ACC, i * 2 * US) for i in range(3)]
    twice = ring_all_gather(4, rows=[*rows, (1, 1, COPY, READ_ACC, 0)])
    assert broken_rules(twice) == {"capacity", "unneeded"}
    assert not agrees_with_expansion(twice)
    later = ring_all_gather(4, rows=[*rows, (1, 1, COPY, READ_ACC, 6 * US)])
    assert broken_rules(later) == {"unneeded"}
    assert not agrees_with_expansion(later)


def test_a_stored_transfer_may_end_at_a_switch_that_the_group_fixes():
    """NPU 1 sends to the switch, which sends on to 0, then to 2: the switch is no free orbit."""
    topology = tp.switch(3, multicast=True, bandwidth="1GB/s", latency="1us")
    collective = co.all_gather(topology, 3000, chunks=1)
    table = routes(topology, links=[[1], [3], [5]])
    image = [1, 2, 0, 3]

    def sent_on_at(first, second):
        starts = [0, first, second]
        rows = [(i, 1, COPY, READ_ACC, start) for i, start in enumerate(starts)]
        return orbit(collective, table, rows, [3], image, links_under(topology, image))

    assert agrees_with_expansion(sent_on_at(2 * US, 3 * US))
    assert not agrees_with_expansion(sent_on_at(2 * US - 1, 3 * US))
    assert "causality" in broken_rules(sent_on_at(2 * US - 1, 3 * US))
    assert broken_rules(sent_on_at(2 * US, 3 * US - 1)) == {"capacity"}


def test_the_chunks_of_an_orbit_have_one_size():
    assert refused(ring_all_gather(4, size=4001)) == (
        "the chunks differ in size (4001 B over 4), which no translation preserves"
    )


def test_an_orbit_needs_a_symmetric_collective():
    topology = tp.ring(4, bidirectional=False)
    table = routes(topology, links=[[0]])
    image = [1, 2, 3, 0]
    wanted = "an orbit describes an all-gather, reduce-scatter, all-reduce or all-to-all"
    for collective in (
        co.broadcast(topology, 1000, chunks=1),
        co.together(*[co.all_gather(topology, 4000, chunks=1)] * 2),
    ):
        schedule = orbit(collective, table, [(0, 0, COPY, READ_ACC, 0)], [4], image, image)
        assert refused(schedule) == wanted
