"""Schedules for switches that add up, with headers and pools of packets."""

from __future__ import annotations

import pytest

import tacos
from tacos.synth import applicable
from tacos.synth.baselines.in_network import estimate


def star(hosts, **more):
    options = {"multicast": True, "reduce": True, "bandwidth": "1MB/s", "latency": 0} | more
    return tacos.topology.switch(hosts, **options)


def test_headers_take_their_share():
    """1,000 full packets of int32: 1,440,000 bytes at 1 MB/s, and 74 bytes of headers each, 1.514 s.

    The schedule has 4 * 32 chunks, and the last goes up and down: 1/128 more.
    """
    network = star(4)
    wanted = tacos.collective.all_reduce(network, 1_440_000, chunks=32)
    schedule = tacos.synthesize(network, wanted, engine="in-network", dtype="int32")
    assert tacos.verify(schedule).ok
    assert schedule.time_s == pytest.approx(1.514 * (1 + 1 / 128), rel=1e-3)
    assert tacos.simulate(schedule, timing="schedule").time_ps == schedule.time_ps


def test_a_pool_of_one_waits_for_every_result():
    """Ten packets of 360 int32, one at a time: up and down, 1,514 us each, and 2 * 500 us of latency."""
    network = star(4, latency="500us")
    wanted = tacos.collective.all_reduce(network, 14_400)
    schedule = tacos.synthesize(network, wanted, engine="in-network", dtype="int32", pool=1)
    trips = 10 * (2 * 1514e-6 + 2 * 500e-6)
    # A chunk per packet; the last goes up, down to a member, up again and down to all, where a switch needs half of that.
    assert trips < schedule.time_s < trips * 1.1 + 4 * 500e-6


@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("pool", [1, 8, 128])
def test_schedules_agree_with_the_estimate(mtu, pool):
    """For any number of hosts, and for racks under a core switch."""
    size, latency = 4_000_000, 50e-6
    expected = estimate(size, wire_Bps=1e6, round_trip_s=2 * latency, mtu=mtu, pool=pool)
    up = [(npu, 4 + npu // 2) for npu in range(4)] + [(4, 6), (5, 6)]
    rows = [(a, b, "1MB/s", latency) for x, y in up for a, b in ((x, y), (y, x))]
    racks = tacos.topology.from_links(4, rows, switches=[("multicast", "reduce")] * 3)
    for network in (star(2, latency=latency), star(8, latency=latency), racks):
        wanted = tacos.collective.all_reduce(network, size)
        found = tacos.synthesize(network, wanted, engine="in-network", mtu=mtu, pool=pool)
        assert found.time_s == pytest.approx(expected, rel=0.02)


def test_what_the_engine_needs():
    plain, able = tacos.topology.switch(4), star(4)
    wanted = tacos.collective.all_reduce(plain, "1MB")
    with pytest.raises(
        ValueError, match="in-network needs a tree of switches that reduce and multicast"
    ):
        tacos.synthesize(plain, wanted, engine="in-network")
    with pytest.raises(ValueError, match="in-network needs all-reduce"):
        tacos.synthesize(able, tacos.collective.all_gather(able, "1MB"), engine="in-network")
    with pytest.raises(ValueError, match="pool must be at least 1"):
        tacos.synthesize(able, wanted, engine="in-network", pool=0)
    assert "in-network" not in applicable(able, wanted)  # NVLS has no such packets
