"""The checker of programs: right ones pass, and each way to be wrong has its sentence."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.lower import STEP_OPS, lower
from tests import program_oracle
from tests.programs import INPUT, NONE, OUTPUT, SCRATCH, changed, made
from tests.strategies import collectives, topologies


def rules(program):
    return {violation.rule for violation in tacos.verify(program).violations}


def messages(program):
    return [violation.message for violation in tacos.verify(program).violations]


@given(network=topologies(), data=st.data())
@settings(max_examples=60)
def test_lowered_programs_are_proven(network, data):
    collective = data.draw(collectives(network.npus, max_chunks=3))
    schedule = tacos.synthesize(network, collective, engine="greedy")
    if not all(collective.chunk_bytes()):
        return
    report = tacos.verify(lower(schedule, in_place=data.draw(st.booleans())))
    assert report.violations == ()


@given(seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=150)
def test_the_checker_agrees_with_running_the_program(seed, data):
    """Whatever one change does to a program: what runs wrong in some order is not proven right."""
    topology = data.draw(st.sampled_from([tp.ring(4), tp.mesh(2, 2), tp.fully_connected(3)]))
    kind = data.draw(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]))
    engine = data.draw(st.sampled_from(["greedy", "ring", "direct"]))
    collective = co.named(kind, topology, "12KB", chunks=data.draw(st.integers(1, 2)))
    if engine not in tacos.engines(topology, collective):
        return
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
        values[place] = values[draw.randrange(len(values))]
        columns = {name: values}
    try:
        broken = changed(program, **columns)
    except ValueError:
        return
    runs = [program_oracle.run(broken, random.Random(i)) for i in range(5)]
    if any(runs):
        assert not tacos.verify(broken).ok


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
    assert messages(program) == ["rank 0, thread 0, step 1 sends to rank 1 what is never received"]


def test_a_receive_that_nobody_sends_to():
    assert messages(exchange(recv=("recv", None, None, OUTPUT, 1))) == [
        "rank 0, thread 1, step 0 waits for a message from rank 1 that is never sent",
        "rank 1, thread 0, step 1 sends to rank 0 what is never received",
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


def test_reading_what_nobody_wrote():
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


def one_sided(order):
    """Rank 0 puts its chunk into rank 1's output, signals, and gets rank 1's; rank 1 reads it."""
    send = {
        "put": ("put", INPUT, 0, OUTPUT, 0, None, None, 1),
        "signal": ("signal", None, None, None, None, None, None, 1),
    }
    first = [("copy", INPUT, 0, OUTPUT, 0), *(send[op] for op in order)]
    first.append(("get", INPUT, 0, OUTPUT, 1, None, None, 1))
    second = [
        ("copy", INPUT, 0, OUTPUT, 1),
        ("wait", None, None, None, None, 1 + order.index("signal"), None, 0),
        ("copy", OUTPUT, 0, SCRATCH, 0),
    ]
    return made(GATHER, [(0, -1, -1, first), (1, -1, -1, second)], scratch=1)


def test_one_sided_steps_are_ordered_by_signals():
    assert tacos.verify(one_sided(["put", "signal"])).ok
    assert "race" in rules(one_sided(["signal", "put"]))
