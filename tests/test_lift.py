"""Lifting: the transfers of a program, with what they read and do, in an order that can be timed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.program import lift, lower
from tacos.schedule import COPY, READ_ACC, READ_INPUT, REDUCE
from tests.support.programs import INPUT, OUTPUT, SCRATCH, changed, made
from tests.support.strategies import collectives, has_trees, orders, topologies


def transfers(schedule):
    """Count (src, dst, chunk, op). If the destination has no input of its own, adding and copying the
    first arrival are the same, so op is None."""
    inputs = [set(schedule.collective.inputs(c)) for c in range(schedule.collective.chunks)]
    rows = schedule.rows()
    columns = (rows[name].tolist() for name in ("src", "dst", "chunk", "op"))
    return Counter(
        (src, dst, chunk, op if dst in inputs[chunk] else None)
        for src, dst, chunk, op in zip(*columns, strict=True)
    )


def check_round_trip(schedule, in_place):
    if has_trees(schedule) or not all(schedule.collective.chunk_bytes()):
        return  # no program can express it
    program = lower(schedule, in_place=in_place)
    lifted = lift(program, schedule.topology)
    assert lifted.collective == schedule.collective
    assert transfers(lifted) == transfers(
        schedule.expand() if schedule.form == "orbit" else schedule
    )
    assert tacos.verify(lifted).violations == ()
    assert tacos.verify(lift(program)).violations == ()


@given(network=topologies(), data=st.data())
@settings(max_examples=60)
def test_what_engines_make_comes_back(network, data):
    collective = data.draw(collectives(network.npus, max_chunks=3))
    engine = data.draw(st.sampled_from(tacos.engines(network, collective)))
    schedule = tacos.synthesize(network, collective, engine=engine)
    check_round_trip(schedule, data.draw(st.booleans()))


@given(order=orders(), in_place=st.booleans())
@settings(max_examples=100)
def test_any_right_order_comes_back(order, in_place):
    check_round_trip(order.retimed(), in_place)


WITH_TIES = {
    *("symmetric", "forest", "greedy", "exchange", "leaders", "themis", "nccl"),
    *("double-binary-tree", "c-cube", "parameter-server"),
}
"""Engines in whose schedules several transfers are ready for a link at one moment."""


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
@pytest.mark.parametrize("spec", ["ring:8", "torus:4x4", "fc:6", "switch:8", "dgx-1:1"])
def test_times_are_those_of_the_schedule_but_for_ties(spec, kind):
    """A program does not say which of several transfers goes first if they are ready at one moment."""
    topology = tp.parse(spec)
    collective = co.named(kind, topology, "1MB", chunks=2)
    for engine in tacos.engines(topology, collective):
        schedule = tacos.synthesize(topology, collective, engine=engine)
        if has_trees(schedule):
            continue
        again = lift(lower(schedule), topology).time_s
        assert again == pytest.approx(schedule.time_s, rel=0.4 if engine in WITH_TIES else 1e-9)


# --- by hand -------------------------------------------------------------------------------------


def rows_of(schedule):
    rows = schedule.rows()
    names = ("src", "dst", "chunk", "op", "reads")
    return sorted(zip(*(rows[name].tolist() for name in names), strict=True))


def all_pairs():
    """Three NPUs: each sends its parts to their owners' scratch; the owners add them up there, add
    the sum to their own part, and send the result to all."""
    threads = []
    for rank in range(3):
        others = [r for r in range(3) if r != rank]
        first = 11 * rank
        for peer in others:
            send = ("send", INPUT, peer)
            back = ("send", OUTPUT, rank, None, None, None, [first + 10])
            threads.append((rank, peer, -1, [send, back]))
        for peer in others:
            sender = 11 * peer + 2 * [r for r in range(3) if r != peer].index(rank)
            threads.append((rank, -1, peer, [
                ("recv", None, None, SCRATCH, others.index(peer), sender),
                ("recv", None, None, OUTPUT, peer, sender + 1),
            ]))  # fmt: skip
        threads.append((rank, -1, -1, [
            ("reduce", SCRATCH, 1, SCRATCH, 0, None, [first + 4, first + 6]),
            ("copy", INPUT, rank, OUTPUT, rank),
            ("reduce", SCRATCH, 0, OUTPUT, rank),
        ]))  # fmt: skip
    return made(co.all_reduce(3, "3B", chunks=1), threads, scratch=2)


def test_all_pairs_with_local_sums():
    """Each chunk is reduced from two inputs and copied to two NPUs, 1 us + 1 us each time."""
    program = all_pairs()
    assert tacos.verify(program).ok
    network = tp.fully_connected(3, bandwidth="1GB/s", latency="1us")
    schedule = lift(program, network, "3kB")
    assert tacos.verify(schedule).ok
    others = [(a, b) for a in range(3) for b in range(3) if a != b]
    assert rows_of(schedule) == sorted(
        [(a, b, b, REDUCE, READ_INPUT) for a, b in others]
        + [(a, b, a, COPY, READ_ACC) for a, b in others]
    )
    assert schedule.time_s == pytest.approx(4e-6)


def test_a_chain_of_fused_steps():
    """0 -> 1 -> 2 adds up (the middle stores nothing), and the sum goes back 2 -> 1 -> 0."""
    program = made(
        co.all_reduce(3, "3B", chunks=1),
        [
            (0, 1, -1, [("send", INPUT, c) for c in range(3)]),
            (0, -1, 1, [("recv", None, None, OUTPUT, c, 9 + c) for c in range(3)]),
            (1, 2, 0, [("recv_reduce_forward", INPUT, c, None, None, c) for c in range(3)]),
            (1, 0, 2, [("recv_send", None, None, OUTPUT, c, 12 + c) for c in range(3)]),
            (2, 1, 1, [("recv_reduce_send", INPUT, c, OUTPUT, c, 6 + c) for c in range(3)]),
        ],
    )
    assert tacos.verify(program).ok
    schedule = lift(program, tp.ring(3, bandwidth="1GB/s", latency="1us"), "3kB")
    assert tacos.verify(schedule).ok
    assert rows_of(schedule) == sorted(
        row
        for c in range(3)
        for row in [
            (0, 1, c, REDUCE, READ_INPUT),
            (1, 2, c, REDUCE, READ_ACC),
            (2, 1, c, COPY, READ_ACC),
            (1, 0, c, COPY, READ_ACC),
        ]
    )
    # Four hops of 1 us + 1 us; the chunks follow each other 1 us apart.
    assert schedule.time_s == pytest.approx(10e-6)


def test_one_sided_steps():
    """Rank 0 puts its part into rank 1 and signals; rank 1 adds, and 0 gets the sum."""
    program = made(
        co.custom(2, [4], [[0, 1]], [[0, 1]], reduces=[True]),
        [
            (0, -1, -1, [
                ("put", INPUT, 0, SCRATCH, 0, None, None, 1),
                ("signal", None, None, None, None, None, None, 1),
                ("wait", None, None, None, None, 7, None, 1),
                ("get", OUTPUT, 0, OUTPUT, 0, None, None, 1),
            ]),
            (1, -1, -1, [
                ("wait", None, None, None, None, 1, None, 0),
                ("copy", INPUT, 0, OUTPUT, 0),
                ("reduce", SCRATCH, 0, OUTPUT, 0),
                ("signal", None, None, None, None, None, None, 0),
            ]),
        ],
        scratch=1,
    )  # fmt: skip
    assert tacos.verify(program).ok
    assert rows_of(lift(program)) == [(0, 1, 0, REDUCE, READ_INPUT), (1, 0, 0, COPY, READ_ACC)]


def test_partial_sums_are_exchanged_at_one_moment():
    """Recursive doubling of one chunk on four NPUs: in the second round each transfer reads what the
    opposite one overwrites, so they start together."""
    topology = tp.fully_connected(4)
    collective = co.custom(topology, [1000], [[0, 1, 2, 3]], [[0, 1, 2, 3]], reduces=[True])
    threads = []
    for rank in range(4):
        near, far = rank ^ 1, rank ^ 2
        threads += [
            (rank, near, -1, [("send", INPUT, 0)]),
            (rank, far, -1, [("send", SCRATCH, 0, None, None, None, [4 * rank + 2])]),
            (rank, -1, near, [("recv_reduce", INPUT, 0, SCRATCH, 0, 4 * near)]),
            (rank, -1, far, [("recv_reduce", SCRATCH, 0, OUTPUT, 0, 4 * far + 1, [4 * rank + 2])]),
        ]
    program = made(collective, threads, scratch=1)
    assert tacos.verify(program).ok
    schedule = lift(program, topology)
    assert tacos.verify(schedule).ok
    rows = schedule.rows()
    assert len(set(rows["start_ps"][rows["reads"] == READ_ACC].tolist())) == 1


# --- sizes, networks, provenance -------------------------------------------------------------------


def gather_program():
    topology = tp.ring(4)
    collective = co.all_gather(topology, "4000B", chunks=1)
    return lower(tacos.synthesize(topology, collective, engine="ring"))


def test_the_size_is_the_schedule_s_unless_another_is_given():
    program = gather_program()
    assert lift(program).collective.size_bytes == 4000
    assert lift(program, size="1MiB").collective.size_bytes == 1 << 20
    assert lift(program.with_facts(size_bytes=0)).collective.size_bytes == 10**6
    assert lift(program, size=4001).collective.chunk_bytes().tolist() == [1001, 1000, 1000, 1000]


def test_chunks_of_different_sizes_keep_their_proportions():
    topology = tp.ring(3)
    collective = co.custom(topology, [1, 2, 5], [[0], [1], [2]], [[1], [2], [0]])
    program = lower(tacos.synthesize(topology, collective))
    assert lift(program, topology, 800).collective.chunk_bytes().tolist() == [100, 200, 500]


def test_without_a_network_it_is_fully_connected_and_says_so():
    schedule = lift(gather_program())
    assert schedule.topology.family == "fully_connected"
    assert "fully connected" in schedule.provenance["topology"]
    assert schedule.provenance["engine"] == "ring"
    assert schedule.efficiency is None  # the bound was that of the ring
    assert "topology" not in lift(gather_program(), tp.ring(4)).provenance


def test_channels_use_parallel_links():
    """Two links between two NPUs, two channels: both chunks leave at once."""
    links = [(a, 1 - a, "1GB/s", "1us") for a in (0, 1) for _ in range(2)]
    topology = tp.from_links(2, links)
    collective = co.broadcast(topology, "2kB", chunks=2)
    program = made(
        collective,
        [
            (0, 1, -1, [("send", INPUT, 0)]),
            (0, 1, -1, [("send", INPUT, 1)]),
            (0, -1, -1, [("copy", INPUT, c, OUTPUT, c) for c in range(2)]),
            (1, -1, 0, [("recv", None, None, OUTPUT, 0, 0)]),
            (1, -1, 0, [("recv", None, None, OUTPUT, 1, 1)]),
        ],
    )
    assert lift(program, topology, "2kB").time_s == pytest.approx(3e-6)
    channels = np.array([0, 1, 0, 0, 1], np.int32)
    spread = lift(changed(program, thread_channel=channels), topology, "2kB")
    assert spread.time_s == pytest.approx(2e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: lift(p, tp.ring(5)), "the topology has 5 NPUs, the program 4 ranks"),
        (lambda p: lift(p, size="0B"), "size '0B' must be positive"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make(gather_program())


def test_ranks_that_are_not_connected():
    topology = tp.from_links(4, [(0, 1, "1GB/s", "1us")], connected=False)
    with pytest.raises(tacos.InfeasibleError, match=r"^npu 1 cannot reach npu 2$"):
        lift(gather_program(), topology)


# --- programs that no schedule can express ---------------------------------------------------------

SUM = co.custom(3, [4], [[0, 1, 2]], [[0, 1, 2]], reduces=[True])


def all_gathered_sum():
    """Each rank adds up the inputs that go around the ring unchanged: it holds two values at a time."""
    threads = []
    for rank in range(3):
        before, after, first = (rank - 1) % 3, (rank + 1) % 3, 4 * rank
        threads += [
            (rank, after, -1, [("send", INPUT, 0)]),
            (rank, after, before, [("recv_send", None, None, SCRATCH, 0, 4 * before)]),
            (rank, -1, before, [("recv_reduce", INPUT, 0, OUTPUT, 0, 4 * before + 1)]),
            (rank, -1, -1, [("reduce", SCRATCH, 0, OUTPUT, 0, None, [first + 1, first + 2])]),
        ]  # fmt: skip
    return made(SUM, threads, scratch=1)


def late_old_sum():
    """Six ranks, the sum at 5. Rank 1 sends {1, 3} to 0, then relays {4} over 2 to 0; rank 0 sends
    {0, 2, 4} on, and only then receives {1, 3} and sends it on, too. In a schedule, rank 1's sum would
    leave before {4} overwrites it, but reach 0 only after {4} has passed 1, 2 and 0."""
    reduce = co.custom(6, [4], [range(6)], [[5]], reduces=[True])
    return made(
        reduce,
        [
            (0, 5, 2, [("recv_reduce_forward", INPUT, 0, None, None, 8)]),  # 0
            (0, -1, 1, [("recv", None, None, SCRATCH, 0, 4, [0])]),  # 1
            (0, 5, -1, [("send", SCRATCH, 0, None, None, None, [1])]),  # 2
            (1, -1, 3, [("recv_reduce", INPUT, 0, SCRATCH, 0, 9)]),  # 3
            (1, 0, -1, [("send", SCRATCH, 0, None, None, None, [3])]),  # 4
            (1, -1, 4, [("recv", None, None, SCRATCH, 1, 10)]),  # 5
            (1, 2, -1, [("send", SCRATCH, 1, None, None, None, [5])]),  # 6
            (2, -1, 1, [("recv_reduce", INPUT, 0, SCRATCH, 0, 6)]),  # 7
            (2, 0, -1, [("send", SCRATCH, 0, None, None, None, [7])]),  # 8
            (3, 1, -1, [("send", INPUT, 0)]),  # 9
            (4, 1, -1, [("send", INPUT, 0)]),  # 10
            (5, -1, 0, [
                ("recv_reduce", INPUT, 0, OUTPUT, 0, 0),
                ("recv_reduce", OUTPUT, 0, OUTPUT, 0, 2),
            ]),
        ],
        scratch=2,
    )  # fmt: skip


def unused_part():
    """Rank 1 receives rank 0's part twice and adds it once."""
    pair = co.custom(2, [4], [[0, 1]], [[1]], reduces=[True])
    return made(
        pair,
        [
            (0, 1, -1, [("send", INPUT, 0), ("send", INPUT, 0)]),
            (1, -1, 0, [
                ("recv_reduce", INPUT, 0, OUTPUT, 0, 0),
                ("recv", None, None, SCRATCH, 0, 1),
            ]),
        ],
        scratch=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (all_gathered_sum, "output slot 0 of rank 0 ends with a sum of two values of which a rank"),
        (late_old_sum, r"rank \d, thread \d, step 0 sends chunk 0 in an order"),
        (unused_part, "rank 1, thread 0, step 1 takes in a part of chunk 0 that is neither"),
    ],
)  # fmt: skip
def test_right_programs_that_a_schedule_cannot_say(program, message):
    assert tacos.verify(program()).ok
    with pytest.raises(ValueError, match=message):
        lift(program())


EXCHANGE = [
    (0, 1, -1, [("copy", INPUT, 0, OUTPUT, 0), ("send", INPUT, 0)]),
    (0, -1, 1, [("recv", None, None, OUTPUT, 1, 4)]),
    (1, 0, -1, [("copy", INPUT, 0, OUTPUT, 1), ("send", INPUT, 0)]),
    (1, -1, 0, [("recv", None, None, OUTPUT, 0, 1)]),
]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"comes_from": [-1, -1, -1, -1, -1, 1]},
         "rank 0, thread 1, step 0 waits for a message that is never sent"),
        ({"comes_from": [-1, -1, 1, -1, -1, 1]}, "rank 0, thread 0, step 1, which does not send"),
        ({"src_buffer": [0, 1, 3, 0, 0, 3], "src_slot": [0, 1, -1, 0, 0, -1]},
         "rank 0, thread 0, step 1 reads a slot to which nothing has been written"),
        ({"dst_slot": [1, -1, 1, 1, -1, 0]}, "output slot 0 of rank 0 ends with nothing"),
        ({"dst_slot": [0, -1, 1, 0, -1, 1]},
         "output slot 0 of rank 1 ends with chunk 1 instead of chunk 0"),
        ({"dep": [2], "dep_begin": [0, 0, 1, 1, 1, 1, 1], "comes_from": [-1, -1, 4, -1, -1, 1],
          }, None),
    ],
)  # fmt: skip
def test_wrong_programs_are_refused_in_one_sentence(columns, message):
    program = made(co.all_gather(2, "2B", chunks=1), EXCHANGE)
    typed = {name: np.array(v, getattr(program, name).dtype) for name, v in columns.items()}
    if message is None:
        assert lift(changed(program, **typed)).transfers == 2  # one more dependency, no circle
        return
    with pytest.raises(ValueError, match=message):
        lift(changed(program, **typed))


def test_a_circle_is_refused():
    program = made(
        co.all_gather(2, "2B", chunks=1),
        [
            (0, 1, 1, [("recv", None, None, OUTPUT, 1, 3), ("send", INPUT, 0)]),
            (1, 0, 0, [("recv", None, None, OUTPUT, 0, 1), ("send", INPUT, 0)]),
        ],
    )
    with pytest.raises(ValueError, match="rank 0, thread 0, step 0 can never run"):
        lift(program)


def test_whatever_a_program_holds_it_is_lifted_or_refused():
    """With one entry changed, a program becomes a schedule or an error that names a rank."""
    done: Counter[str] = Counter()

    @given(st.data())
    @settings(
        max_examples=150, derandomize=True
    )  # the same ones every time, since they are counted
    def check(data):
        topology = data.draw(st.sampled_from([tp.ring(4), tp.fully_connected(3)]))
        kind = data.draw(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]))
        schedule = tacos.synthesize(topology, co.named(kind, topology, "12KB", chunks=1))
        program = lower(schedule, in_place=data.draw(st.booleans()))
        columns = ["src_buffer", "src_slot", "dst_slot", "comes_from", "thread_channel"]
        name = data.draw(st.sampled_from(columns))
        values = getattr(program, name).copy()
        at = data.draw(st.integers(0, len(values) - 1))
        others = {*range(values.min(), values.max() + 2)} - {values[at]}
        values[at] = data.draw(st.sampled_from(sorted(others)))
        try:
            broken = changed(program, **{name: values})
        except ValueError:
            done["not a program"] += 1
            return
        right = tacos.verify(broken).ok
        try:
            lifted = lift(broken)
        except ValueError as refused:
            lifted, sentence = None, str(refused)
        if lifted is None:
            done["refused"] += not right
            assert "rank" in sentence
        elif right:
            done["lifted"] += 1
            assert tacos.verify(lifted, allow_unneeded=True).ok

    check()
    assert done["refused"] > 0.15 * done.total()
    assert done["lifted"] > 0.15 * done.total()
