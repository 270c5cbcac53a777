"""Executions by orbit: the times of the whole program, from the steps of one rank of each orbit of ranks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import execution as ex
from tacos import topology as tp
from tacos._core import Meter, Schedule, folded, lower_paced, paced_by_orbit
from tacos.errors import WorkIsUp

NETWORKS = {
    "switch": lambda n: tp.switch(3 * n, bandwidth="100GB/s", latency="700ns"),
    "rails": lambda n: tp.dgx_h100(n, fabric="rail"),
    "fabric": tp.dgx_h100,
    "nvl72": lambda n: tp.nvl72(1),
    "switches": lambda n: tp.product(tp.switch(n, bandwidth="50GB/s"), tp.switch(4)),
    "rings": lambda n: tp.product(
        tp.ring(n, bandwidth="50GB/s", latency="0ns"), tp.switch(4, latency="2us")
    ),
}
KINDS = [co.all_gather, co.reduce_scatter, co.all_reduce, co.all_to_all]


def orbit_of(name, n, kind, engine, chunks=1, piece=48 * 1024):
    """Return an engine's orbit with links that messages share; None if it makes none."""
    topology = NETWORKS[name](n)
    size = piece * chunks * topology.npus
    try:
        found = tacos.synthesize(
            topology, kind(topology, size, chunks=chunks), engine=engine, target="schedule"
        )
    except ValueError:  # such as an all-to-all for forest
        return None
    return found if found.form == "orbit" and ex.shares_links(found) else None


def whole(schedule):
    """Return the times and the number of runs of the program of all ranks."""
    _, _, first_come, shared, runs = lower_paced(schedule, timed=True)
    return first_come, shared, runs


def with_columns(orbit, **columns):
    """Return an orbit with other columns."""
    names = ["collective", "routes", "lane_route", "lane_op", "lane_reads", "lane_begin", "chunk"]
    names += ["start", "quantum_ps", "orders", "node_image", "link_image"]
    return Schedule(**({name: getattr(orbit, name) for name in names} | columns))


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(NETWORKS)),
    st.integers(2, 8),
    st.sampled_from(KINDS),
    st.sampled_from(["symmetric", "forest"]),
    st.sampled_from([1, 2, 4]),
)
def test_an_orbit_takes_as_long_as_all_its_transfers(name, n, kind, engine, chunks):
    orbit = orbit_of(name, n, kind, engine, chunks)
    if orbit is not None:
        assert paced_by_orbit(orbit) == whole(orbit)


@pytest.mark.parametrize("kind", [co.all_gather, co.reduce_scatter])
@pytest.mark.parametrize("fabric", ["rail", "flat"])
def test_256_npus_take_as_long_by_orbit(kind, fabric):
    topology = tp.dgx_h100(32, fabric="rail") if fabric == "rail" else tp.dgx_h100(32)
    engine = "symmetric" if fabric == "rail" else "forest"
    collective = kind(topology, f"{64 * topology.npus}KiB", chunks=1)
    orbit = tacos.synthesize(topology, collective, engine=engine, target="schedule")
    assert orbit.form == "orbit"
    assert paced_by_orbit(orbit) == whole(orbit)


def sorted_lanes(orbit, start):
    """Return an orbit with other starts, which decide the order in every lane."""
    chunk, start = orbit.chunk.copy(), start.astype(np.uint32)
    for begin, end in pairwise(orbit.lane_begin):
        rank = begin + np.argsort(start[begin:end])
        chunk[begin:end], start[begin:end] = chunk[rank], start[rank]
    return with_columns(orbit, chunk=chunk, start=start)


@settings(max_examples=40)
@given(st.sampled_from(["switch", "nvl72"]), st.integers(2, 8), st.integers(0, 2**32))
def test_blocks_in_any_order_take_as_long_by_orbit(name, n, seed):
    """Every NPU sends its blocks in the same order of distances, and they wait for each other at the receivers."""
    orbit = orbit_of(name, n, co.all_to_all, "symmetric", chunks=2)
    order = np.random.default_rng(seed).permutation(orbit.start.size)
    shuffled = sorted_lanes(orbit, 97 * order)
    assert paced_by_orbit(shuffled) == whole(shuffled)


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(NETWORKS)),
    st.integers(2, 8),
    st.sampled_from(KINDS),
    st.sampled_from(["symmetric", "forest"]),
    st.integers(0, 2**32),
)
def test_an_orbit_at_uneven_times_takes_as_long(name, n, kind, engine, seed):
    """All starts are moved by less than a message takes, and are different, so that no order is left to chance."""
    orbit = orbit_of(name, n, kind, engine)
    if orbit is None or orbit.start.size != orbit.stored_transfers:  # routes of several legs
        return
    count = orbit.start.size
    order = np.random.default_rng(seed).permutation(count)
    start = 2 * orbit.start.astype(np.int64) * count + order
    if start.max() < 2**32:
        moved = sorted_lanes(orbit, start)
        assert paced_by_orbit(moved) == whole(moved)


@pytest.fixture(scope="module")
def trunk():
    """Two leaf switches with two NPUs each, and one cable between them, as slow as an NPU's.

    The symmetry exchanges the NPUs of each leaf. NPU 0 sends a block to 1, 2 and 3, NPU 2 to 3, 0 and 1; both images of a
    block that leaves its leaf cross the cable.
    """
    links = [(npu, 4 + npu // 2) for npu in range(4)] + [(4, 5)]
    ends = links + [(b, a) for a, b in links]
    topology = tp.from_links(4, [(a, b, "1GB/s", "0ns") for a, b in ends], switches=["", ""])
    collective = co.all_to_all(topology, "4MB", chunks=1)
    number = {end: link for link, end in enumerate(ends)}
    image = {0: 1, 1: 0, 2: 3, 3: 2, 4: 4, 5: 5}

    def path(src, dst):
        nodes = [src, *dict.fromkeys([4 + src // 2, 4 + dst // 2]), dst]
        return [number[hop] for hop in pairwise(nodes)]

    stored = [(0, 2, 0), (2, 0, 0), (0, 3, 2), (2, 1, 2), (0, 1, 4), (2, 3, 4)]
    return Schedule(
        collective=collective,
        routes=tacos.schedule.routes(topology, links=[path(src, dst) for src, dst, _ in stored]),
        lane_route=np.arange(6, dtype=np.int32),
        lane_op=np.zeros(6, np.uint8),
        lane_reads=np.zeros(6, np.uint8),
        lane_begin=np.arange(7),
        chunk=np.array([4 * src + dst for src, dst, _ in stored], np.uint32),
        start=np.array([start for *_, start in stored], np.uint32),
        quantum_ps=10**9,
        orders=[2],
        node_image=np.array([image[node] for node in range(6)], np.int32),
        link_image=np.array([number[image[a], image[b]] for a, b in ends], np.int32),
    )


def test_images_of_a_message_may_not_share_a_link(trunk):
    """Nor is such an orbit valid: both would cross the cable at the same time."""
    assert not tacos.verify(trunk).ok
    assert paced_by_orbit(trunk) is None
    assert ex.execution(trunk) == ex.execution(trunk.expand())


def test_sums_at_all_ranks_are_left_to_the_whole_program():
    """Their operands are added in an order that depends on the numbers of ranks."""
    orbit = orbit_of("switch", 2, co.all_reduce, "symmetric")
    assert paced_by_orbit(orbit) is not None
    row = {"collective": co.all_reduce(orbit.topology, orbit.collective.size_bytes, chunks=1)}
    copies = with_columns(orbit, lane_op=np.zeros_like(orbit.lane_op), **row)
    assert paced_by_orbit(copies) is not None
    sums = with_columns(orbit, lane_op=np.ones_like(orbit.lane_op), **row)
    assert paced_by_orbit(sums) is None


def test_8192_npus_are_executed():
    """The ideal time of such a schedule is its executed time, since each port of an NPU keeps its order."""
    topology = tp.dgx_h100(1024, fabric="rail")
    collective = co.all_reduce(topology, "1GiB")
    found = tacos.synthesize(topology, collective, engine="symmetric", target="schedule")
    assert found.transfers == 134_201_344
    executed = ex.execution(found)
    assert executed is not None
    assert executed.runs == 2
    assert executed.time_ps() == found.time_ps


def test_work_is_counted():
    orbit = orbit_of("rails", 8, co.all_gather, "symmetric")
    counted = Meter()
    times = paced_by_orbit(orbit, progress=counted)
    assert counted.used > 0
    with pytest.raises(WorkIsUp):
        paced_by_orbit(orbit, progress=Meter(limit=counted.used // 2))
    assert paced_by_orbit(orbit, progress=Meter(limit=2 * counted.used)) == times


# --- folding


@settings(max_examples=40)
@given(
    st.sampled_from(["rails", "fabric", "switches"]),
    st.integers(2, 8),
    st.sampled_from(KINDS),
    st.sampled_from(["symmetric", "forest"]),
)
def test_an_expanded_orbit_is_folded(name, n, kind, engine):
    orbit = orbit_of(name, n, kind, engine)
    if orbit is None:
        return
    found = folded(orbit.expand())
    assert found is not None
    assert found.transfers == orbit.transfers
    assert found.stored_transfers <= 4 * orbit.stored_transfers  # its symmetry may be smaller
    assert tacos.verify(found).ok
    assert paced_by_orbit(found) == paced_by_orbit(orbit)


def test_chunks_that_differ_by_a_byte_count_as_the_largest():
    """That makes a millionth."""
    topology = tp.dgx_h100(4, nvls=False)
    uneven = co.all_gather(topology, "1GB")
    orbit = tacos.synthesize(topology, uneven, engine="forest", target="schedule")
    assert orbit.form == "orbit"
    one_by_one = whole(orbit)[:2]
    for found in (orbit, folded(orbit.expand())):
        times = paced_by_orbit(found)
        assert times is not None
        by_orbit = times[:2]
        assert one_by_one <= by_orbit <= tuple(time * (1 + 1e-4) for time in one_by_one)


def test_a_schedule_with_one_other_start_is_not_folded():
    orbit = orbit_of("rails", 4, co.all_gather, "symmetric")
    rows = orbit.expand()
    start = rows.start.copy()
    last = start.argmax()
    start[last] += 1
    names = ("collective", "routes", "lane_route", "lane_op", "lane_reads", "lane_begin", "chunk")
    columns = {name: getattr(rows, name) for name in names}
    assert folded(Schedule(**columns, start=rows.start, quantum_ps=rows.quantum_ps)) is not None
    assert folded(Schedule(**columns, start=start, quantum_ps=rows.quantum_ps)) is None


def test_large_schedules_without_a_symmetry_have_no_executed_time(monkeypatch):
    topology = tp.fat_tree(2, 2)
    found = tacos.synthesize(topology, co.all_to_all(topology, "4MB"), engine="greedy")
    assert ex.execution(found) is not None
    monkeypatch.setattr(ex, "MOST_RUN", 1)
    assert ex.execution(found) is None
