"""Correct programs with one defect each: the verifier names the rule that is broken and the step."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.program import STEP_OPS, lower
from tests.support import program_oracle
from tests.support.programs import OUTPUT, depending, independent, with_entries, without

CASES = [
    (spec, kind, engine)
    for spec, engine in [
        ("ring:4", "ring"), ("torus:3x3", "greedy"), ("hypercube:3", "halving-doubling"),
    ]
    for kind in ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"]
]  # fmt: skip


@pytest.fixture(params=CASES, ids="-".join)
def program(request):
    spec, kind, engine = request.param
    topology = tp.parse(spec)
    collective = co.named(kind, topology, "1MB", chunks=2)
    right = lower(tacos.synthesize(topology, collective, engine=engine))
    assert tacos.verify(right).ok
    return right


def steps(program, *names):
    return np.flatnonzero(np.isin(program.op, [STEP_OPS.index(name) for name in names]))


def some(candidates):
    """Up to three of the candidates, evenly spaced; skips the test if there are none."""
    if not len(candidates):
        pytest.skip("nothing of this kind in the program")
    chosen = np.linspace(0, len(candidates) - 1, min(3, len(candidates)), dtype=int)
    return candidates[chosen].tolist()


def found(program):
    return tacos.verify(program, limit=10_000).violations


def rank_of(program, step):
    return int(program.thread_rank[np.searchsorted(program.thread_begin, step, "right") - 1])


def test_a_dropped_send(program):
    for step in some(steps(program, "send")):
        receiver = int(np.flatnonzero(program.comes_from == step)[0])
        peer = rank_of(program, step)
        (told,) = (v for v in found(without(program, step)) if v.rule == "unmatched")
        assert told.transfer == receiver - (receiver > step)
        assert told.message == (
            f"{program.describe(receiver)} waits for a message from rank {peer} that is never sent"
        )


def test_a_missing_receive(program):
    for step in some(steps(program, "recv", "recv_reduce")):
        sender = int(program.comes_from[step])
        broken = without(program, step)
        (told,) = (v for v in found(broken) if v.rule == "unmatched")
        assert told.transfer == sender - (sender > step)
        assert told.message.startswith(f"{program.describe(sender)} sends a message to rank ")
        assert told.message.endswith("that is never received")


def test_a_dropped_copy(program):
    for step in some(steps(program, "copy")):
        rules = {v.rule for v in found(without(program, step))}
        assert rules & {"postcondition", "undefined"}


def test_swapped_offsets(program):
    """Two receives of a rank write to each other's slot."""
    into = steps(program, "recv")
    into = into[program.dst_buffer[into] == OUTPUT]
    thread = np.searchsorted(program.thread_begin, into, "right") - 1
    rank = program.thread_rank[thread]
    for a in some(into):
        others = into[(rank == rank[into == a]) & (program.dst_slot[into] != program.dst_slot[a])]
        if not len(others):
            continue
        b = int(others[0])
        broken = with_entries(program, [a, b], dst_slot=program.dst_slot[[b, a]])
        told = found(broken)
        assert {v.rule for v in told} & {"postcondition", "contribution", "race"}
        places = {f"output slot {program.dst_slot[i]} of rank {rank[into == a][0]}" for i in (a, b)}
        assert any(place in v.message for v in told for place in places)


def test_a_cyclic_dependency(program):
    """A step waits for the next step of its thread; of a long cycle, the first steps are named."""
    for thread in some(np.flatnonzero(np.diff(program.thread_begin) > 1)):
        first = int(program.thread_begin[thread])
        broken = depending(program, first, first + 1)
        (told,) = found(broken)
        assert told.rule == "deadlock"
        assert told.message.endswith("wait for each other")
        assert program.describe(first) in told.message
        never = f"{program.describe(told.transfer)} never runs"
        assert never in program_oracle.run(broken, random.Random(0))


def test_a_double_reduce(program):
    """A message that should replace a partial sum is added to it."""
    into = steps(program, "recv")
    into = into[program.dst_buffer[into] == OUTPUT]
    if not len(steps(program, "recv_reduce")):
        pytest.skip("nothing is reduced")
    written = set()  # by the sums: (rank, slot)
    for step in steps(program, "recv_reduce").tolist():
        if program.dst_buffer[step] == OUTPUT:
            written.add((rank_of(program, step), int(program.dst_slot[step])))
    final = [s for s in into.tolist() if (rank_of(program, s), int(program.dst_slot[s])) in written]
    for step in some(np.array(final)):
        slot = int(program.dst_slot[step])
        broken = with_entries(
            program, step, op=STEP_OPS.index("recv_reduce"), src_buffer=OUTPUT, src_slot=slot
        )
        told = [v for v in found(broken) if v.rule == "contribution"]
        place = f"output slot {slot} of rank {rank_of(program, step)}, for chunk "
        assert any(v.message.startswith(place) and "more than once" in v.message for v in told)


@pytest.mark.parametrize("dropped", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_a_missing_dependency(program, dropped):
    """Without it two steps race, unless messages or other dependencies still order them. A dependency may
    imply others; then the race is between other steps of the rank."""
    if not len(program.dep):
        pytest.skip("no dependencies")
    exactly = 0
    for position in range(0, len(program.dep), max(1, len(program.dep) // dropped)):
        step = int(np.searchsorted(program.dep_begin, position, "right")) - 1
        broken = independent(program, position)
        told = found(broken)
        race = [v.message for v in told if v.rule == "race"]
        if not race:
            assert not told
            assert not any(program_oracle.run(broken, random.Random(i)) for i in range(3))
            continue
        both = [program.describe(step), program.describe(int(program.dep[position]))]
        exactly += any(all(name in message for name in both) for message in race)
        assert all(m.startswith(f"rank {rank_of(program, step)}, ") for m in race)
    assert exactly


@pytest.mark.parametrize("one_sided", [False, True])
@pytest.mark.parametrize("share", [0, 0.1, 1])
@pytest.mark.parametrize("spec", ["mesh:3x2", "ring:9"])
def test_races_are_those_of_the_oracle(tmp_path, spec, one_sided, share):
    """Without some or all dependencies, messages order the steps; on the large ring, by way of all other
    ranks."""
    topology = tp.parse(spec)
    goal = co.all_reduce(topology, "1MB", chunks=1)
    program = lower(
        tacos.synthesize(topology, goal, engine="ring" if spec == "ring:9" else "greedy")
    )
    if one_sided:
        tacos.save(program, tmp_path / "p.json", format="mscclpp")
        program = tacos.load(tmp_path / "p.json", kind=tacos.Program)
    drawn = np.random.default_rng(len(program.dep)).random(len(program.dep))
    for position in np.flatnonzero(drawn < share)[::-1].tolist():
        program = independent(program, position)
    told = tacos.verify(program, limit=10**6).violations
    names = {program.describe(i): i for i in range(program.steps)}
    pairs = set()
    for race in (v for v in told if v.rule == "race"):
        (other,) = (i for name, i in names.items() if f"while {name} may be" in race.message)
        pairs.add((min(other, race.transfer), max(other, race.transfer)))
    true = program_oracle.races(program)
    assert pairs <= true
    assert bool(pairs) == bool(true)
    assert share > 0 or not true
