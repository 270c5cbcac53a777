"""Themis: phases timed by hand, correct on every symmetric network, and all dimensions in use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.synth import ENGINES, applicable

themis = ENGINES["themis"]
SPEED: dict[str, Any] = {"bandwidth": "1GB/s", "latency": "1us"}  # 1 KB: 1 us to send, 1 to arrive
NO_LATENCY: dict[str, Any] = {"bandwidth": "1GB/s", "latency": 0}
KINDS = ("all_gather", "reduce_scatter", "all_reduce")


def time_us(topology, kind, *, chunks, **options):
    """Verify the schedule with blocks of 1 KB, and return its time in microseconds."""
    collective = co.named(kind, topology, 1000 * chunks * topology.npus, chunks=chunks)
    schedule = themis(topology, collective, **options)
    tacos.verify(schedule).raise_if_failed()
    return schedule.time_ps / 10**6


def test_two_chunks_take_opposite_orders():
    """2 x 2, two chunks: a reduce-scatter has two blocks in its first phase and one in its second.

    Chunk 0 goes 0, 1 and leaves loads of 2 and 1 us, so chunk 1 goes 1, 0: both first phases take
    0 to 2 us, both second ones 2 to 3 us. In one order, dimension 0 has the first phases from 0 to 2
    and 2 to 4 us, and the second phase of chunk 1 follows on dimension 1.
    """
    topology = tp.hypercube(2, **NO_LATENCY)
    assert time_us(topology, "reduce_scatter", chunks=2) == 3
    assert time_us(topology, "reduce_scatter", chunks=2, order=[0, 1]) == 5
    assert time_us(topology, "all_gather", chunks=2) == 3
    # There and back, phases take 2, 1, 1, 2 us. In one order, dimension 0 is busy from 0 to 8 us.
    assert time_us(topology, "all_reduce", chunks=2) == 6
    assert time_us(topology, "all_reduce", chunks=2, order=[0, 1]) == 8


def test_pieces_go_round_a_ring_both_ways():
    """Five NPUs: 4 steps of 1 us + 1 us for both pieces of a bundle, or for one alone."""
    topology = tp.ring(5, **SPEED)
    assert time_us(topology, "all_gather", chunks=1) == 8
    assert time_us(topology, "all_gather", chunks=2) == 8
    # The second bundle starts when the last blocks of the first have left, at 7 us.
    assert time_us(topology, "all_gather", chunks=4) == 15
    one_way = tp.ring(5, bidirectional=False, **SPEED)
    assert time_us(one_way, "reduce_scatter", chunks=1) == 8


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({}, 4),  # the second block leaves at 1 us and takes two latencies and 1 us
        ({"link_model": "blocking"}, 5),  # it leaves at 2 us
        ({"forwarding": "store_and_forward"}, 5),  # it leaves at 1 us and takes twice 2 us
        ({"reduce_bandwidth": "1GB/s"}, 5),  # adding takes 1 us more
    ],
)
def test_three_npus_on_a_switch(model, expected):
    topology = tp.switch(3, **SPEED, **model)
    assert time_us(topology, "reduce_scatter", chunks=1) == expected


@given(st.data())
def test_right_on_symmetric_networks(data):
    kind = st.sampled_from([tp.ring, tp.fully_connected, tp.switch])
    model = {
        "link_model": data.draw(st.sampled_from(["pipelined", "blocking"])),
        "forwarding": data.draw(st.sampled_from(["cut_through", "store_and_forward"])),
        "reduce_bandwidth": data.draw(st.sampled_from([None, "3GB/s"])),
    }
    factors: list[tacos.Topology] = []
    for build in data.draw(st.lists(kind, min_size=1, max_size=3)):
        speed = data.draw(st.sampled_from([7, 1000, 10**9, 10**11 + 7]))
        latency = data.draw(st.sampled_from([0, 1e-9, 3.3e-6]))
        size = data.draw(st.integers(1, 5 - len(factors)))
        factors.append(build(size, bandwidth=f"{speed}B/s", latency=latency, **model))
    topology = tp.product(*factors)
    collective = co.named(
        data.draw(st.sampled_from(KINDS)),
        topology,
        data.draw(st.sampled_from([1000, 1440, 10**6 + 7])),
        chunks=data.draw(st.integers(1, 5)),
        group=data.draw(st.permutations(range(topology.npus))),
    )
    order = data.draw(st.none() | st.permutations(range(len(factors))))
    scheduling = data.draw(st.sampled_from(["fifo", "scf"]))
    schedule = themis(topology, collective, order=order, scheduling=scheduling)
    assert tacos.verify(schedule).ok
    assert schedule.collective == collective


def test_utilisation_of_three_dimensions():
    """1,024 NPUs, 64 chunks, three dimensions of equal speed. In one order the first carries 15/16 of 2 S,
    where the ideal is a third of 1023/1024 of it. Themis comes close to the ideal.
    """
    topology = tp.product(
        tp.switch(16, **NO_LATENCY), tp.switch(8, **NO_LATENCY), tp.switch(8, **NO_LATENCY)
    )
    size = 64 * 1024 * 1000
    collective = co.all_reduce(topology, size, chunks=64)
    ideal = 2 * size * 1023 / 1024 / 3e9
    used = {
        name: ideal / themis(topology, collective, **options).time_s
        for name, options in {
            "one order": {"order": [0, 1, 2]},
            "fifo": {"scheduling": "fifo"},
            "scf": {"scheduling": "scf"},
        }.items()
    }
    assert 0.34 < used["one order"] < 0.36
    assert 0.80 < used["fifo"] < used["scf"]
    assert used["scf"] > 0.95


def test_an_orbit_stores_one_npu():
    topology = tp.torus(8, 8)
    schedule = themis(topology, co.all_reduce(topology, 64 * 4096, chunks=4))
    assert (schedule.form, schedule.stored_transfers) == ("orbit", 4 * 2 * 63)
    uneven = themis(topology, co.all_reduce(topology, 64 * 4096 + 1, chunks=4))
    assert (uneven.form, uneven.transfers) == ("orbit", schedule.transfers)
    assert tacos.verify(uneven).ok


def test_refusals():
    mesh, torus = tp.mesh(2, 3), tp.torus(3, 3)
    assert "themis" not in applicable(mesh, co.all_reduce(mesh, "1MB"))
    with pytest.raises(ValueError, match="themis needs a network that is the same from every NPU"):
        themis(mesh, co.all_reduce(mesh, "1MB"))
    with pytest.raises(ValueError, match="themis needs a byte for each of 18 chunks, not 17"):
        themis(torus, co.all_reduce(torus, 17, chunks=2))
    both = co.together(co.all_gather(torus, "1MB"), co.all_gather(torus, "1MB"))
    with pytest.raises(ValueError, match="themis needs one collective, not 2 at once"):
        themis(torus, both)
    with pytest.raises(ValueError, match='scheduling must be "fifo" or "scf"; got \'lifo\''):
        themis(torus, co.all_reduce(torus, "1MB"), scheduling="lifo")
    with pytest.raises(
        ValueError, match=r"order is \[0\]; it must name each of the 2 dimensions once"
    ):
        themis(torus, co.all_reduce(torus, "1MB"), order=[0])
