"""All-reduces whose sums are formed at unequal shares of the NPUs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import topology as tp
from tacos.synth.owners import alike, shares


@st.composite
def slow_links(draw):
    topology = tp.mesh(3, 3) if draw(st.booleans()) else tp.fully_connected(5)
    for _ in range(draw(st.integers(1, 3))):
        link = draw(st.integers(0, topology.links - 1))
        ends = int(topology.link_src[link]), int(topology.link_dst[link])
        factor = draw(st.sampled_from([0.25, 0.5]))
        topology = tp.degrade(topology, ends, factor=factor, both=draw(st.booleans()))
    return topology


def longest(topology, share):
    """How long all NPUs send and receive what they do not own; all sets of NPUs, one by one."""
    times = [0.0, 0.0]
    for number in range(1, 2**topology.npus - 1):
        inside = (number >> np.arange(topology.npus)) & 1 == 1
        out = inside[topology.link_src] & ~inside[topology.link_dst]
        into = ~inside[topology.link_src] & inside[topology.link_dst]
        for way, links in enumerate((out, into)):
            bandwidth = topology.link_bandwidth_Bps[links].sum()
            times[way] = max(times[way], share[inside].sum() / bandwidth)
    return sum(times)


@settings(max_examples=25, deadline=None)
@given(topology=slow_links(), seed=st.integers(0, 100))
def test_no_other_shares_are_faster(topology, seed):
    group = np.arange(topology.npus, dtype=np.int32)
    share = shares(topology, group)
    assert share.sum() == pytest.approx(1)
    best = longest(topology, share)
    other = np.random.default_rng(seed).dirichlet(np.ones(topology.npus))
    for weight in (0.05, 1.0):
        assert best <= 1.01 * longest(topology, (1 - weight) * share + weight * other)


@settings(max_examples=15, deadline=None)
@given(topology=slow_links(), size=st.integers(100, 10**8), chunks=st.integers(1, 5))
def test_schedules_are_right(topology, size, chunks):
    collective = tacos.collective.all_reduce(topology, size, chunks=chunks)
    schedule = tacos.synthesize(topology, collective, engine="owners")
    assert tacos.verify(schedule).ok
    assert schedule.engine == "owners"


def test_a_group_owns_what_it_adds_up():
    topology = tp.degrade(tp.mesh(3, 3), (0, 1), factor=0.5)
    collective = tacos.collective.all_reduce(topology, "9MB", group=[0, 1, 4, 8], chunks=4)
    assert tacos.verify(tacos.synthesize(topology, collective, engine="owners")).ok


def test_npus_that_look_alike_own_equal_shares():
    """The NPU whose links are half as fast owns more than each other one, since the rest must enter it."""
    topology = tp.degrade(
        tp.fully_connected(5), *((0, other) for other in range(1, 5)), factor=0.5, both=True
    )
    assert alike(topology, np.arange(5, dtype=np.int32)).tolist() == [0, 1, 1, 1, 1]
    share = shares(topology, np.arange(5, dtype=np.int32))
    assert len(set(share[1:].tolist())) == 1
    assert share[0] > 2 * share[1]


def test_equal_npus_need_no_shares():
    topology = tp.switch(8)
    with pytest.raises(ValueError, match="owners needs NPUs that differ"):
        tacos.synthesize(topology, tacos.collective.all_reduce(topology, "1MB"), engine="owners")
