"""The balanced engine: detours timed by hand, near the bound for every kind of skew, correct wherever it applies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tacos
from benchmarks.all_to_all_v import matrices
from tacos import collective as co
from tacos import topology as tp
from tacos.synth import ENGINES
from tacos.topology.links import assemble, duplex

balanced = ENGINES["balanced"]
NO_LATENCY: dict[str, Any] = {"latency": 0, "rail_latency": 0}


def checked(topology: tacos.Topology, collective: tacos.Collective) -> tacos.Schedule:
    schedule = balanced(topology, collective)
    tacos.verify(schedule).raise_if_failed()
    return schedule


def test_half_of_a_message_takes_the_neighbours_port():
    """2 MB from box 0 to box 1, ports of 1 GB/s, 4 GB/s inside, no latency.

    In two pieces, the first takes 1 ms straight; the other 0.25 ms to the neighbour, 1 ms over its port, and 0.25 ms inside
    the other box. In eight, the last of four pieces leaves the neighbour 4 x 0.25 ms after the first one got there.
    """
    boxes = tp.rail(2, 2, bandwidth="4GB/s", rail_bandwidth="1GB/s", **NO_LATENCY)
    sizes = np.zeros((4, 4), int)
    sizes[0, 2] = 2_000_000
    for chunks, time_us in ((1, 2000), (2, 1500), (8, 1125)):
        found = checked(boxes, co.all_to_all_v(boxes, sizes, chunks=chunks))
        assert found.time_ps == time_us * 10**6


def test_ports_are_never_idle_in_a_switch():
    """Three NPUs; 0 sends 1 + 3 MB, 2 receives 3 + 1 MB: their ports need 4 ms, and nothing takes longer."""
    switch = tp.switch(3, bandwidth="1GB/s", latency=0)
    sizes = np.array([[0, 1, 3], [1, 0, 1], [2, 0, 0]]) * 1_000_000
    found = checked(switch, co.all_to_all_v(switch, sizes, chunks=1))
    assert found.time_ps == 4 * 10**9
    # Members send nothing to themselves: a program runs, and becomes a schedule again, although those messages are empty.
    program = tacos.lower(found)
    assert (
        tacos.simulate(program, switch).time_ps == tacos.lift(program, switch).time_ps == 4 * 10**9
    )


def test_small_messages_go_straight():
    """A kilobyte is not worth a detour: one transfer each, and the time of the longest direct message."""
    clique = tp.fully_connected(5, bandwidth="50GB/s", latency="1us")
    sizes = np.full((5, 5), 1000)
    sizes[0, 1] = 20_000
    found = checked(clique, co.all_to_all_v(clique, sizes, chunks=1))
    assert found.transfers == 20
    assert found.time_ps == 1_400_000


@pytest.mark.parametrize("spec", ["dgx-a100:2", "mi300x:2", "clique:8", "switch:8", "rail:4x4"])
def test_skewed_sizes_are_near_the_bound(spec):
    topology = tp.parse(spec)
    for name, sizes in matrices(topology.npus, 5_000_000).items():
        collective = co.all_to_all_v(topology, sizes)
        found = checked(topology, collective)
        assert found.time_s <= 1.05 * tacos.bound(topology, collective).time_s, name


@pytest.mark.parametrize(
    "model", [{"link_model": "blocking"}, {"forwarding": "store_and_forward"}, {}]
)
def test_groups_and_messages_under_every_model(model):
    boxes = tp.product(
        tp.switch(3, bandwidth="100GB/s", latency="300ns", **model),
        tp.switch(3, bandwidth="25GB/s", latency="1us", **model),
    )
    group = [7, 1, 3, 2, 8]
    sizes = np.arange(25).reshape(5, 5) * 30_000
    checked(boxes, co.all_to_all_v(boxes, sizes, group=group, chunks=3))
    checked(boxes, co.send_recv(boxes, [(0, 8, "1MB"), (8, 1, 7), (0, 8, "3MB")], chunks=2))


def test_other_networks_are_left_to_other_engines():
    torus = tp.torus(4, 4)
    collective = co.all_to_all_v(torus, np.full((16, 16), 1000))
    assert "balanced" not in tacos.engines(torus, collective)
    with pytest.raises(ValueError, match="balanced needs boxes in which every NPU reaches"):
        tacos.synthesize(torus, collective, engine="balanced")
    with pytest.raises(
        ValueError, match="balanced needs all-to-all-v or send-recv, not all-reduce"
    ):
        tacos.synthesize("switch:4", co.all_reduce(4, "1MB"), engine="balanced")
    with pytest.raises(ValueError, match="balanced needs all-to-all-v or send-recv, not reduce"):
        tacos.synthesize("switch:8", co.reduce(8, "1MB", root=4), engine="balanced")
    alone = tp.from_links(1, [])
    assert tacos.synthesize(alone, co.all_to_all_v(alone, [[5]])).transfers == 0
    islands = assemble(3, duplex([0], [1], "1GB/s", 0))
    pair = co.send_recv(islands, [(0, 1, "1KB")], chunks=1)
    assert tacos.synthesize(islands, pair).transfers == 1


@pytest.mark.unsanitized
def test_auto_is_never_slower_than_it_for_skewed_sizes():
    boxes = tp.dgx_a100(2)
    wanted = co.all_to_all_v(boxes, matrices(16, 2_000_000)["one sends"])
    alone = tacos.synthesize(boxes, wanted, engine="balanced", target="schedule")
    best = tacos.synthesize(boxes, wanted, target="schedule")
    assert best.time_ps <= alone.time_ps
    assert best.provenance["best_of"]["balanced"] <= alone.time_s
