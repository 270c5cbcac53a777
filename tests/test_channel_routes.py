"""Hosts with links to several switches: channels take the routes between two NPUs in turn."""

from __future__ import annotations

import numpy as np
import pytest

import tacos
from tacos._core import channel_routes
from tacos.execution import execution
from tacos.runtime.dispatch.placement import rerouted
from tacos.runtime.healing.diagnosis import Pair, links_of
from tacos.simulate.programs import program_routes


def rails(hosts, *bandwidths):
    """Connect hosts to switches: links 2k up and 2k + 1 down, where k = host · switches + switch."""
    switches = range(hosts, hosts + len(bandwidths))
    links = [
        (*ends, bandwidth, "1us")
        for host in range(hosts)
        for switch, bandwidth in zip(switches, bandwidths, strict=True)
        for ends in ((host, switch), (switch, host))
    ]
    return tacos.topology.from_links(hosts, links, switches=len(bandwidths))


def test_routes_of_channels():
    assert channel_routes(rails(3, "1GB/s", "1GB/s"), 0, 2) == [[0, 9], [2, 11]]
    # One rail is the fastest, or there is only one: channels make no difference.
    assert channel_routes(rails(3, "1GB/s", "2GB/s"), 0, 2) == []
    assert channel_routes(tacos.topology.switch(3), 0, 2) == []
    assert channel_routes(rails(3, "2GB/s", "1GB/s", "2GB/s"), 0, 1) == [[0, 7], [4, 11]]
    double = [(0, 1, "1GB/s", "1us")] * 2 + [(1, 0, "1GB/s", "1us")]
    assert channel_routes(tacos.topology.from_links(2, double), 0, 1) == [[0], [1]]
    with pytest.raises(IndexError, match="no NPU 7"):
        channel_routes(tacos.topology.switch(3), 0, 7)


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "all_to_all"])
def test_programs_use_all_rails(kind):
    """Executed, programs take at most 2 % longer than the bound; on one rail, twice as long."""
    topo = rails(4, "1GB/s", "1GB/s")
    wanted = getattr(tacos.collective, kind)(topo, "64MB")
    schedule = tacos.synthesize(topo, wanted)
    run, exported = execution(schedule), execution(schedule, target="msccl")
    assert run.time_ps() <= 1.02e12 * tacos.bound(topo, wanted).time_s
    assert exported.shared_ps <= 1.05e12 * schedule.time_s


def test_lowering_keeps_the_routes_of_a_schedule():
    topo = rails(4, "1GB/s", "1GB/s")
    schedule = tacos.synthesize(topo, tacos.collective.all_gather(topo, "12MB"), target="schedule")
    program = tacos.lower(schedule)
    sends = np.flatnonzero(program.thread_send_peer >= 0)
    exact = program_routes(schedule, program)
    assert len({tuple(exact[thread]) for thread in sends}) > 12  # several per pair
    for thread in sends.tolist():
        src, dst = int(program.thread_rank[thread]), int(program.thread_send_peer[thread])
        ways = channel_routes(topo, src, dst)
        assert ways[int(program.thread_channel[thread]) % 2] == exact[thread]


def test_a_slow_link_is_blamed_on_the_channel_that_takes_it():
    topo = rails(4, "1GB/s", "1GB/s")
    assert links_of(topo, [0, 1, 2, 3], Pair(1, 2, 0)) == [4, 9]
    assert links_of(topo, [3, 2, 1, 0], Pair(2, 1, 3)) == [6, 11]


@pytest.mark.parametrize("dead", [[3], [7], [2, 11]])
def test_what_is_left_keeps_to_living_links(dead):
    """Two hosts with three links each to one switch: any up or down link may die."""
    links = [
        (*ends, "1GB/s", "1us")
        for host in (0, 1)
        for _ in range(3)
        for ends in ((host, 2), (2, host))
    ]
    whole = tacos.topology.from_links(2, links, switches=1)
    kept = [link for link in range(whole.links) if link not in dead]
    left = tacos.topology.drop_links(whole, *dead)
    wanted = tacos.collective.all_to_all(left, "8MB", chunks=4)
    program = rerouted(
        tacos.lower(tacos.synthesize(left, wanted, engine="greedy")), left, whole, kept
    )
    assert tacos.verify(program).ok
    sends = program.thread_send_peer >= 0
    ways = list(
        zip(
            program.thread_rank[sends].tolist(),
            program.thread_send_peer[sends].tolist(),
            program.thread_channel[sends].tolist(),
            strict=True,
        )
    )
    assert len(set(ways)) == len(ways)
    for src, dst, channel in ways:
        routes = channel_routes(whole, src, dst)
        assert set(routes[channel % len(routes)]) <= set(kept)
