"""Lowering: programs do what their schedules say, in whatever order their threads run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.program import BUFFERS, STEP_OPS, lower
from tests.support import program_oracle
from tests.support.programs import made
from tests.support.strategies import collectives, lowered


@given(order=lowered(), data=st.data())
@settings(max_examples=100)
def test_programs_end_with_the_right_outputs(order, data):
    assert program_oracle.run(order[1], data.draw(st.randoms(use_true_random=False))) == []


@given(npus=st.integers(1, 6), data=st.data())
@settings(max_examples=200)
def test_buffers_hold_the_chunks_of_their_rank_in_order(npus, data):
    """Includes several collectives at once, and chunks without bytes, which no NPU holds."""
    parts = [
        p for _ in range(data.draw(st.integers(1, 3))) for p in data.draw(collectives(npus)).parts
    ]
    collective = tacos.Collective(npus, parts)
    program = made(collective, [])
    chunks = range(collective.chunks)
    for rank in range(npus):
        brought = [chunk for chunk in chunks if rank in collective.inputs(chunk)]
        wanted = [chunk for chunk in chunks if rank in collective.outputs(chunk)]
        assert program.input_chunks(rank).tolist() == brought
        assert program.output_chunks(rank).tolist() == wanted


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"])
@pytest.mark.parametrize("spec", ["torus:3x3", "dgx-h100-plain:1", "ring:5"])
@pytest.mark.parametrize("in_place", [False, True])
def test_named_collectives(spec, kind, in_place):
    import random

    topology = tp.parse(spec)
    collective = co.named(kind, topology, "1MB", chunks=2)
    program = lower(tacos.synthesize(topology, collective, effort="fast"), in_place=in_place)
    assert program_oracle.run(program, random.Random(0)) == []


def test_an_all_gather_around_a_ring_of_three():
    """By hand: rank 0 copies its part, receives chunks 2 and 1, and sends chunks 0 and 2."""
    topology = tp.ring(3, bidirectional=False)
    schedule = tacos.synthesize(topology, co.all_gather(topology, "3KB", chunks=1), engine="greedy")
    program = lower(schedule)
    rows = [
        (
            int(program.thread_rank[t]),
            int(program.thread_send_peer[t]),
            int(program.thread_recv_peer[t]),
            [
                (STEP_OPS[program.op[i]], BUFFERS[program.src_buffer[i]], int(program.src_slot[i]),
                 BUFFERS[program.dst_buffer[i]], int(program.dst_slot[i]))
                for i in range(*program.thread_begin[t : t + 2])
            ],
        )
        for t in range(3)
    ]  # fmt: skip
    assert rows == [
        (0, -1, -1, [("copy", "input", 0, "output", 0)]),
        (0, -1, 2, [("recv", "none", -1, "output", 2), ("recv", "none", -1, "output", 1)]),
        (0, 1, -1, [("send", "input", 0, "none", -1), ("send", "output", 2, "none", -1)]),
    ]
    # The second send passes on what the first receive brought.
    assert program.dep_begin[:6].tolist() == [0, 0, 0, 0, 0, 1]
    assert program.dep[:1].tolist() == [1]
    assert program.comes_from[:5].tolist()[0] == -1


def test_a_reduce_scatter_keeps_partial_sums_in_scratch_and_the_input_as_it_is():
    topology = tp.ring(4, bidirectional=False)
    schedule = tacos.synthesize(
        topology, co.reduce_scatter(topology, "4KB", chunks=1), engine="ring"
    )
    program = lower(schedule)
    written = {BUFFERS[b] for b in program.dst_buffer.tolist()} - {"none"}
    assert written == {"output", "scratch"}
    # Partial sums leave as soon as they are made, so that few slots are enough.
    assert program.scratch_slots.max() <= 2
    assert {STEP_OPS[o] for o in program.op.tolist()} == {"send", "recv_reduce"}


def test_one_rank_of_a_symmetric_schedule():
    topology = tp.torus(4, 4)
    schedule = tacos.synthesize(
        topology, co.all_gather(topology, "16MB", chunks=1), engine="symmetric"
    )
    assert schedule.form == "orbit"
    whole, one = lower(schedule), lower(schedule, rank=5)
    own = whole.thread_rank == 5
    assert np.array_equal(one.thread_send_peer, whole.thread_send_peer[own])
    first, last = (
        whole.thread_begin[np.flatnonzero(own)[0]],
        whole.thread_begin[np.flatnonzero(own)[-1] + 1],
    )
    for name in ("op", "src_slot", "dst_slot", "src_buffer", "dst_buffer", "count"):
        assert np.array_equal(getattr(one, name), getattr(whole, name)[first:last])
    big = tp.torus(200, 200)
    huge = tacos.synthesize(big, co.all_gather(big, "40GB", chunks=1), engine="symmetric")
    assert lower(huge, rank=0).steps == 2 * 39999 + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lower(tacos.synthesize(t := tp.ring(4), co.all_gather(t, "2B", chunks=1))),
         "chunk 2 of 4 has no bytes: choose fewer chunks"),
        (lambda: lower(tacos.synthesize(t := tp.ring(4), co.all_gather(t, "4B", chunks=1)), rank=4),
         "rank must be 0 to 3; got 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def _sends(program):
    return {s for s in range(program.steps) if STEP_OPS[program.op[s]] == "send"}


def test_a_window_orders_what_leaves_over_one_port():
    """Three NPUs on a switch: both messages of an NPU cross its port, so the second waits for the first."""
    topology = tacos.topology.switch(3)
    collective = tacos.collective.all_gather(topology, "3MB", chunks=1)
    schedule = tacos.synthesize(topology, collective, engine="direct")
    free, ordered = (tacos.lower(schedule, window=window) for window in (0, 1))
    assert tacos.verify(ordered).ok
    assert tacos.lift(ordered, topology).time_ps == schedule.time_ps
    rows = schedule.rows()
    for rank in range(3):
        mine = rows["src"] == rank
        first = int(rows["dst"][mine][np.argsort(rows["start_ps"][mine])[0]])
        found = {}
        for program in (free, ordered):
            begin, thread = program.thread_begin, program.thread_rank
            for t in np.flatnonzero((thread == rank) & (program.thread_send_peer >= 0)):
                step = int(begin[t])
                waits = set(program.dep[program.dep_begin[step] : program.dep_begin[step + 1]])
                peer = int(program.thread_send_peer[t])
                found[program is ordered, peer] = len(waits & _sends(program))
        [second] = {0, 1, 2} - {rank, first}
        assert found == {
            (False, first): 0, (False, second): 0, (True, first): 0, (True, second): 1
        }  # fmt: skip


def test_a_window_asks_for_no_order_on_links_of_one_connection():
    topology = tacos.topology.torus(3, 3)
    schedule = tacos.synthesize(topology, tacos.collective.all_reduce(topology, "9MB"))
    assert tacos.lower(schedule, window=1) == tacos.lower(schedule)


def test_a_window_is_not_negative():
    topology = tacos.topology.switch(3)
    schedule = tacos.synthesize(topology, tacos.collective.all_gather(topology, "3MB"))
    with pytest.raises(ValueError, match="window is -1; it must not be negative"):
        tacos.lower(schedule, window=-1)


FILE = {"name": "mine", "protocol": "LL", "min_bytes": 1, "max_bytes": 9, "threads_per_block": 64}


def test_a_program_has_the_fields_of_its_schedule_and_gives_them_back():
    """Nothing is computed from the provenance, which says something else."""
    ring = tp.ring(4)
    schedule = tacos.synthesize(ring, co.all_gather(ring, "4MB", chunks=1), engine="ring")
    told = {"name": "theirs", "protocol": "Simple", "min_bytes": 3, "engine": "greedy"}
    schedule = schedule.with_provenance(told)
    plain = lower(schedule)
    assert (plain.engine, plain.name, plain.protocol, plain.min_bytes) == ("ring", "", "", 0)
    program = lower(schedule.with_facts(dialect="azure", **FILE))
    lifted = tacos.lift(program, ring)
    for name, value in {"engine": "ring", "dialect": "azure", **FILE}.items():
        assert getattr(program, name) == value
        assert getattr(lifted, name) == value
