"""The checker of programs: correct ones pass, and each kind of fault has its own message."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.program import STEP_OPS, lower
from tests.support import program_oracle
from tests.support.programs import (
    INPUT,
    NONE,
    OUTPUT,
    SCRATCH,
    changed,
    independent,
    made,
    one_sided,
)
from tests.support.strategies import collectives, topologies


def rules(program):
    return {violation.rule for violation in tacos.verify(program).violations}


def messages(program):
    return [violation.message for violation in tacos.verify(program).violations]


@given(network=topologies(), data=st.data())
@settings(max_examples=60)
def test_lowered_programs_are_proven(network, data):
    collective = data.draw(collectives(network.npus, max_chunks=3))
    schedule = tacos.synthesize(network, collective, engine="greedy")
    assume(all(collective.chunk_bytes()))
    report = tacos.verify(lower(schedule, in_place=data.draw(st.booleans())))
    assert report.violations == ()


def test_the_checker_agrees_with_running_the_program():
    """A program with one change that runs wrong in some order is not proven correct."""
    done: Counter[str] = Counter()

    @given(seed=st.integers(0, 2**32), data=st.data())
    @settings(
        max_examples=150, derandomize=True
    )  # the same ones every time, since they are counted
    def check(seed, data):
        topology = data.draw(st.sampled_from([tp.ring(4), tp.mesh(2, 2), tp.fully_connected(3)]))
        kinds = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
        kind = data.draw(st.sampled_from(kinds))
        collective = co.named(kind, topology, "12KB", chunks=data.draw(st.integers(1, 2)))
        able = [e for e in ("greedy", "ring", "direct") if e in tacos.engines(topology, collective)]
        engine = data.draw(st.sampled_from(able))
        program = lower(tacos.synthesize(topology, collective, engine=engine))
        draw = random.Random(seed)
        name = draw.choice(["dep", "src_slot", "dst_slot", "comes_from", "op"])
        values = getattr(program, name).copy()
        if not len(values):
            return
        place = draw.randrange(len(values))
        if name == "dep":
            begin = program.dep_begin.copy()
            begin[np.searchsorted(begin, place, side="right") :] -= 1
            columns = {"dep": np.delete(values, place), "dep_begin": begin}
        else:
            values[place] = draw.choice(sorted({*values.tolist()} - {values[place]}))
            columns = {name: values}
        try:
            broken = changed(program, **columns)
        except ValueError:
            done["not a program"] += 1
            return
        runs = [program_oracle.run(broken, random.Random(i)) for i in range(5)]
        if any(runs):
            done["wrong"] += 1
            assert not tacos.verify(broken).ok
        else:
            done["right"] += 1

    check()
    assert done["wrong"] > 0.2 * done.total()


def touched(program, step, rank):
    """Return the slots that a step reads, and those it writes: (rank, buffer, slot)."""
    op = STEP_OPS[program.op[step]]
    reader = int(program.peer[step]) if op in ("get", "get_reduce") else rank
    writer = int(program.peer[step]) if op == "put" else rank
    src, dst = int(program.src_slot[step]), int(program.dst_slot[step])
    span = range(int(program.count[step]))
    reads = {(reader, int(program.src_buffer[step]), src + i) for i in span if src >= 0}
    writes = {(writer, int(program.dst_buffer[step]), dst + i) for i in span if dst >= 0}
    return reads | (writes if op in ("reduce", "get_reduce") else set()), writes


def has_race(program):
    """Return whether two steps that use a slot, one of them writing, are unordered: all pairs, by force."""
    begin = set(program.thread_begin.tolist())
    rank = np.repeat(program.thread_rank, np.diff(program.thread_begin)).tolist()
    waits = []
    for i in range(program.steps):
        waits.append(program.dep[program.dep_begin[i] : program.dep_begin[i + 1]].tolist())
        waits[i] += [] if i in begin else [i - 1]
        waits[i] += [] if program.comes_from[i] < 0 else [int(program.comes_from[i])]
    before: dict[int, set[int]] = {}
    while len(before) < program.steps:
        for i in range(program.steps):
            if i not in before and all(w in before for w in waits[i]):
                before[i] = set(waits[i]).union(*(before[w] for w in waits[i]))
    places = [touched(program, i, rank[i]) for i in range(program.steps)]
    return any(
        (places[i][1] & (places[j][0] | places[j][1])) or (places[j][1] & places[i][0])
        for i in range(program.steps)
        for j in range(i)
        if i not in before[j] and j not in before[i]
    )


@given(seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=100)
def test_races_are_what_nothing_orders(seed, data, tmp_path_factory):
    """Some dependencies are left out; messages through other ranks often still order the steps."""
    topology = data.draw(st.sampled_from([tp.ring(4), tp.mesh(2, 3), tp.fully_connected(3)]))
    kind = data.draw(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]))
    collective = co.named(kind, topology, "12KB", chunks=1)
    schedule = tacos.synthesize(topology, collective, engine="greedy", seed=seed)
    program = lower(schedule)
    if data.draw(st.booleans()):  # one-sided steps
        path = tmp_path_factory.mktemp("plans") / "plan.json"
        tacos.save(schedule, path)
        program = tacos.load(path, kind=tacos.Program)
    draw = random.Random(seed)
    for _ in range(draw.randrange(1, 4)):
        if len(program.dep):
            program = independent(program, draw.randrange(len(program.dep)))
    assert ("race" in rules(program)) == has_race(program)


RING = tp.ring(2)
GATHER = co.all_gather(RING, "2B", chunks=1)
SUM = co.all_reduce(RING, "2B", chunks=1)


def exchange(**wrong):
    """Two ranks copy their own part and send it to each other; steps 0-2 and 3-5."""
    own = wrong.get("own", ("copy", INPUT, 0, OUTPUT, 0))
    recv = wrong.get("recv", ("recv", None, None, OUTPUT, 1, 4))
    return made(
        GATHER,
        [
            (0, 1, -1, [own, ("send", INPUT, 0)]),
            (0, -1, 1, [recv]),
            (1, 0, -1, [("copy", INPUT, 0, OUTPUT, 1), ("send", INPUT, 0)]),
            (1, -1, 0, [("recv", None, None, OUTPUT, 0, 1)]),
        ],
    )


def test_a_right_one_and_its_figures():
    report = tacos.verify(exchange())
    assert report.ok
    assert report.checked == 6


def test_a_missing_receive():
    program = made(
        GATHER,
        [
            (0, 1, -1, [("copy", INPUT, 0, OUTPUT, 0), ("send", INPUT, 0)]),
            (1, 0, -1, [("copy", INPUT, 0, OUTPUT, 1)]),
        ],
    )
    assert messages(program) == [
        "rank 0, thread 0, step 1 sends a message to rank 1 that is never received"
    ]


def test_a_receive_without_a_send():
    assert messages(exchange(recv=("recv", None, None, OUTPUT, 1))) == [
        "rank 0, thread 1, step 0 waits for a message from rank 1 that is never sent",
        "rank 1, thread 0, step 1 sends a message to rank 0 that is never received",
    ]


def test_a_message_received_twice_and_one_from_elsewhere():
    program = changed(exchange(), comes_from=np.array([-1, -1, 1, -1, -1, 1], np.int32))
    assert any("which does not send to it" in text for text in messages(program))
    assert any("received twice" in text for text in messages(program))


def test_a_wrong_place():
    assert messages(exchange(own=("copy", INPUT, 0, OUTPUT, 1)))[:1] == [
        "output slot 0 of rank 0, for chunk 0, ends undefined"
    ]


def test_a_circle_is_named():
    program = made(
        GATHER,
        [
            (0, 1, 1, [("recv", None, None, OUTPUT, 1, 3), ("send", INPUT, 0)]),
            (1, 0, 0, [("recv", None, None, OUTPUT, 0, 1), ("send", INPUT, 0)]),
        ],
    )
    assert rules(program) == {"deadlock"}
    (message,) = messages(program)
    assert "rank 0, thread 0, step 0" in message
    assert "rank 1, thread 0, step 1" in message


def test_reading_what_was_never_written():
    program = exchange()
    program = changed(program, src_buffer=lambda b: np.where(np.arange(6) == 1, OUTPUT, b).astype(np.uint8),
                      src_slot=lambda s: np.where(np.arange(6) == 1, 1, s).astype(np.int32))  # fmt: skip
    assert "undefined" in rules(program)
    assert any("reads output slot 1 of rank 0" in text for text in messages(program))


def two_sums(*, deps, twice=False):
    """Each rank sends its buffer of two chunks; the other adds it to its own in its output."""
    steps = []
    for rank in (0, 1):
        first = 6 * rank
        other = 6 * (1 - rank)
        again = 2 if not twice else 3
        steps += [
            (rank, 1 - rank, -1, [("send", INPUT, 0), ("send", INPUT, 1)]),
            (rank, -1, 1 - rank, [
                ("recv_reduce", INPUT, 0, OUTPUT, 0, other),
                ("recv_reduce", INPUT, 1, OUTPUT, 1, other + 1),
            ]),
            (rank, -1, -1, [
                ("copy", OUTPUT, 0, SCRATCH, 0, None, [first + 2] if deps else []),
                ("reduce" if twice and rank == 0 else "copy", SCRATCH, 0, OUTPUT, 0, None,
                 [first + again] if twice else []),
            ]),
        ]  # fmt: skip
    return made(SUM, steps, scratch=1)


def test_a_race_names_both_steps():
    assert tacos.verify(two_sums(deps=True)).ok
    program = two_sums(deps=False)
    assert "race" in rules(program)
    text = next(m for m in messages(program) if "may be" in m)
    assert "output slot 0 of rank" in text
    assert "thread 1, step 0" in text
    assert "thread 2, step" in text


def alone(kind, steps, counts):
    """One rank, one thread, some scratch."""
    goal = co.named(kind, 1, 4, chunks=4)
    return changed(made(goal, [(0, -1, -1, steps)], scratch=8), count=np.array(counts, np.int32))


def test_slots_of_one_step_that_overlap():
    """A step moves its slots in no particular order, so it cannot shift them by one."""
    steps = [
        ("copy", INPUT, 0, SCRATCH, 1),
        ("copy", SCRATCH, 1, SCRATCH, 0),
        ("copy", SCRATCH, 0, OUTPUT, 0),
    ]
    (message,) = messages(alone("all_gather", steps, [4, 4, 4]))
    assert message == (
        "rank 0, thread 0, step 1 writes scratch slot 1 of rank 0 while it may still have to read it, "
        "since its src and dst overlap"
    )
    apart = [steps[0], ("copy", SCRATCH, 1, SCRATCH, 5), ("copy", SCRATCH, 5, OUTPUT, 0)]
    assert (
        tacos.verify(alone("all_gather", apart, [4, 3, 3])).found == 1
    )  # chunk 3 alone is missing
    onto_itself = [steps[0], ("copy", SCRATCH, 1, SCRATCH, 1), ("copy", SCRATCH, 1, OUTPUT, 0)]
    assert tacos.verify(alone("all_gather", onto_itself, [4, 4, 4])).ok


def test_a_sum_added_to_itself_over_and_over():
    """2^64 times a contribution and once more, which is once in arithmetic modulo 2^64."""
    steps = [
        ("copy", INPUT, 0, SCRATCH, 0),
        *[("reduce", SCRATCH, 0, SCRATCH, 0)] * 64,
        ("reduce", INPUT, 0, SCRATCH, 0),
        ("copy", SCRATCH, 0, OUTPUT, 0),
        ("copy", INPUT, 1, OUTPUT, 1),
    ]
    counts = [1] * 67 + [3]
    assert messages(alone("all_reduce", steps, counts)) == [
        "output slot 0 of rank 0, for chunk 0, counts rank 0 more than once"
    ]


def test_order_by_way_of_another_rank_costs_no_square():
    """40,000 slots are read only after a message that came back; a search for each would take minutes."""
    many = 40_000
    first = [("copy", INPUT, 0, SCRATCH, i) for i in range(many)]
    back = many + 1 + 1 + many + 1 + 2 * many + 2
    program = made(
        GATHER,
        [
            (0, 1, -1, [*first, ("send", INPUT, 0)]),
            (0, -1, 1, [("recv", None, None, OUTPUT, 1, back)]
                + [("copy", SCRATCH, i, SCRATCH, many + i) for i in range(many)]),
            (0, -1, -1, [("copy", INPUT, 0, OUTPUT, 0)]),
            (1, 0, 0, [("recv", None, None, OUTPUT, 0, many)]
                + [("nop",)] * (2 * many) + [("copy", INPUT, 0, OUTPUT, 1), ("send", INPUT, 0)]),
        ],
        scratch=2 * many,
    )  # fmt: skip
    assert tacos.verify(program).ok


def test_a_contribution_counted_twice_and_one_that_lacks():
    assert "output slot 0 of rank 0, for chunk 0, counts ranks 0, 1 more than once" in messages(
        two_sums(deps=True, twice=True)
    )
    program = changed(
        two_sums(deps=True),
        op=lambda op: np.where(np.arange(12) == 2, STEP_OPS.index("recv"), op).astype(np.uint8),
        src_buffer=lambda b: np.where(np.arange(12) == 2, NONE, b).astype(np.uint8),
        src_slot=lambda s: np.where(np.arange(12) == 2, -1, s).astype(np.int32),
    )
    assert messages(program) == [
        "output slot 0 of rank 0, for chunk 0, lacks the contribution of rank 0"
    ]


def test_the_input_is_not_to_be_written_out_of_place():
    steps = [
        (0, 1, -1, [("send", INPUT, 0), ("send", INPUT, 1)]),
        (0, -1, 1, [("recv_reduce", INPUT, 0, INPUT, 0, 4, [0]),
                    ("recv_reduce", INPUT, 1, INPUT, 1, 5, [1])]),
        (1, 0, -1, [("send", INPUT, 0), ("send", INPUT, 1)]),
        (1, -1, 0, [("recv_reduce", INPUT, 0, INPUT, 0, 0, [4]),
                    ("recv_reduce", INPUT, 1, INPUT, 1, 1, [5])]),
    ]  # fmt: skip
    assert tacos.verify(made(SUM, steps, in_place=True)).ok
    assert rules(made(SUM, steps)) == {"input", "postcondition"}


def test_one_sided_steps_are_ordered_by_signals():
    assert tacos.verify(one_sided(["put", "signal"])).ok
    assert "race" in rules(one_sided(["signal", "put"]))
