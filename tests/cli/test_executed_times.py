"""Executed times: how long programs take compared with their schedules, and answers that are chosen by them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import tacos
from tacos.bound import bound
from tacos.execution import Execution, execution
from tacos.formats import msccl
from tacos.formats.msccl.dialect import MOST_STEPS, exceeded
from tacos.search.effort import LIMITS
from tacos.targets import RULES, targets
from tests.support.strategies import lowered

pytestmark = pytest.mark.unsanitized

BOXES = tacos.topology.dgx_h100(2, nvls=False)


def test_a_switch_is_shared_unless_the_program_keeps_the_order():
    """NPU 0 of three on a switch sends 2 MB each to NPUs 1 and 2. Ports have 1 GB/s and no latency.

    In order, the first message ends at 2 ms and the second at 4 ms. Sent at once, each gets half of the port, and
    both end at 4 ms.
    """
    topology = tacos.topology.switch(3, bandwidth="1GB/s", latency="0ns")
    collective = tacos.collective.send_recv(topology, [(0, 1, "2MB"), (0, 2, "2MB")])
    schedule = tacos.synthesize(topology, collective, engine="direct")
    assert schedule.time_s == pytest.approx(4e-3)
    for window, first in ((0, 4e-3), (1, 2e-3)):
        program = tacos.lower(schedule, window=window)
        trace = tacos.simulate(program, topology, timing="shared")
        assert trace.time_s == pytest.approx(4e-3)
        ends = sorted(trace.npu_finish_ps.tolist())
        assert ends[0] * 1e-12 == pytest.approx(first)


def test_a_program_has_no_order_on_shared_links_but_that_in_which_messages_come():
    """Any other order, such as a topological order of the steps, would delay messages that are ready."""
    collective = tacos.collective.all_reduce(BOXES, "4MB", chunks=2)
    program = tacos.lower(tacos.synthesize(BOXES, collective, engine="greedy"))
    found = execution(program, BOXES)
    assert found
    assert found.order_ps == found.first_come_ps
    assert found.order_ps < tacos.simulate(program, BOXES, timing="order", record=False).time_ps


def test_networks_without_switches_execute_as_scheduled():
    topology = tacos.topology.drop_links(tacos.topology.mesh(4, 4), (0, 1))
    for kind in ("all_gather", "all_reduce", "all_to_all"):
        collective = tacos.collective.named(kind, topology, "16MB", chunks=2)
        schedule = tacos.synthesize(topology, collective, engine="greedy")
        program = tacos.lower(schedule)
        for rule in ("first-come", "shared"):
            assert tacos.simulate(program, topology, timing=rule).time_ps <= schedule.time_ps
        assert execution(schedule) == Execution(*3 * [schedule.time_ps])


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce"])
def test_lowering_takes_the_window_that_runs_fastest(kind):
    collective = tacos.collective.named(kind, BOXES, "64MB", chunks=2)
    schedule = tacos.synthesize(BOXES, collective, engine="forest")
    times = {
        window: max(
            tacos.simulate(
                tacos.lower(schedule, window=window), BOXES, timing=rule, record=False
            ).time_ps
            for rule in ("first-come", "shared")
        )
        for window in (0, 1)
    }
    found = execution(schedule)
    assert found is not None
    chosen = tacos.lower(schedule)
    assert chosen.provenance["window"] > 0
    assert found.time_ps() <= 1.001 * min(times.values())
    assert times[1] < times[0]


@pytest.mark.slow
def test_auto_prefers_what_executes_fast():
    """Without targets, an answer is as fast as every other engine's when it is executed."""
    collective = tacos.collective.all_gather(BOXES, "64MB")
    best = tacos.synthesize(BOXES, collective)
    found = execution(best)
    assert found is not None
    assert found.time_ps() <= 1.02 * best.time_ps
    for engine in ("forest", "hierarchical", "greedy"):
        other = execution(tacos.synthesize(BOXES, collective, engine=engine))
        assert other is not None, engine
        assert found.time_ps() <= 1.001 * other.time_ps()


@pytest.mark.slow
def test_a_target_decides_what_counts():
    collective = tacos.collective.all_gather(BOXES, "64MB")
    in_order = tacos.synthesize(BOXES, collective, target="schedule")
    enough_ps = bound(BOXES, collective).time_ps / (1 - LIMITS.met)
    assert in_order.time_ps <= max(tacos.synthesize(BOXES, collective).time_ps, enough_ps)
    times = Execution(10, 13, 12)
    assert [times.time_ps(target) for target in targets()] == [10, 13, 12, 12, 12, 12]
    assert times.time_ps() == 13
    with pytest.raises(
        ValueError, match=r"target must be one of schedule, program, tcp, .*; got 'gloo'"
    ):
        tacos.synthesize(BOXES, collective, target="gloo")


def test_long_routes_that_share_no_link_have_executed_times():
    """One message over a switch: 1 MB at 1 GB/s and two latencies of 1 us, under every rule."""
    topology = tacos.topology.switch(2, bandwidth="1GB/s", latency="1us")
    collective = tacos.collective.send_recv(topology, [(0, 1, "1MB")])
    schedule = tacos.synthesize(topology, collective, engine="direct", target="tcp")
    assert execution(schedule) == Execution(*3 * [1_002_000_000])


@pytest.mark.parametrize(
    ("engine", "least", "most"), [("ring", 0, 0), ("direct", 2, 2), ("greedy", 3, 10)]
)
def test_simulations_are_counted(engine, least, most):
    """None where no link is shared; two rules for one window if it loses nothing, and up to five windows otherwise."""
    collective = tacos.collective.all_gather(BOXES, "1MB", chunks=1)
    found = execution(tacos.synthesize(BOXES, collective, engine=engine))
    assert found
    assert least <= found.runs <= most


def test_a_program_is_run_on_a_topology():
    topology = tacos.topology.ring(4)
    schedule = tacos.synthesize(
        topology, tacos.collective.all_reduce(topology, "4MB", chunks=1), engine="ring"
    )
    program = execution(tacos.lower(schedule), topology)
    time_ps = schedule.time_ps
    assert program == Execution(time_ps, time_ps, time_ps, ordered=False)
    with pytest.raises(ValueError, match="a program needs a topology"):
        execution(tacos.lower(schedule))
    with pytest.raises(ValueError, match="a schedule has its own topology"):
        execution(schedule, topology)
    names = {
        "executed_s",
        *(f"executed_{rule.replace('-', '_')}_s" for rule in RULES),
    }
    found = execution(schedule)
    assert found is not None
    assert set(found.rows()) == names
    assert set(program.rows()) == names - {"executed_order_s"}  # a program has no order on links


# MSCCL files.


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("mesh:4x4", "all_gather"),
        ("torus:4x4", "all_reduce"),
        ("dgx-h100-plain:2", "all_gather"),
        pytest.param("dgx-a100:2", "all_reduce", marks=pytest.mark.slow),
    ],
)
def test_an_exported_file_executes_as_scheduled(tmp_path, spec, kind):
    topology = tacos.topology.parse(spec)
    schedule = tacos.synthesize(topology, tacos.collective.named(kind, topology, "64MB"))
    tacos.save(schedule, tmp_path / "it.xml")
    program = tacos.load(tmp_path / "it.xml")
    assert tacos.verify(program).ok
    for rule in ("first-come", "shared"):
        time = tacos.simulate(program, topology, size="64MB", timing=rule, record=False).time_ps
        assert time <= 1.02 * schedule.time_ps


def test_a_thread_with_too_many_steps_goes_on_in_another(tmp_path):
    """600 chunks over one link: three threadblocks per direction, which take turns."""
    topology = tacos.topology.ring(2)
    collective = tacos.collective.broadcast(topology, "600MB", chunks=600)
    schedule = tacos.synthesize(topology, collective, engine="greedy")
    msccl.write(schedule, tmp_path / "it.xml", channels=32)
    program = tacos.load(tmp_path / "it.xml")
    assert tacos.verify(program).ok
    assert exceeded(program) == []
    assert np.diff(program.thread_begin).max() <= MOST_STEPS
    time = tacos.simulate(program, topology, size="600MB", timing="shared").time_ps
    assert time <= 1.01 * schedule.time_ps


@given(order=lowered())
@settings(max_examples=60, deadline=None)
def test_kept_order_is_right_and_drops_only_what_follows(order):
    """The same steps under the limits of an executor with threads of at most eight steps."""
    from tacos._core import keep_order

    _, program = order
    kept, refused = None, ""
    try:
        kept = keep_order(program, channels=10_000, steps=8, peers=2)
    except ValueError as error:
        refused = str(error)
    if kept is None:
        assert "waits for more than 8 others" in refused
        assert np.diff(program.dep_begin).max() >= 8
        return
    assert sorted(kept.op.tolist()) == sorted(program.op.tolist())
    assert len(kept.dep) <= len(program.dep) + 2 * kept.threads
    assert tacos.verify(kept).ok == tacos.verify(program).ok
    lengths = np.maximum(1, np.diff(kept.dep_begin))
    sums = np.add.reduceat(lengths, kept.thread_begin[:-1]) if kept.threads else lengths
    # A step with more than eight dependencies has its own thread.
    assert ((sums <= 8) | (np.diff(kept.thread_begin) == 1)).all()
    for peers in (kept.thread_send_peer, kept.thread_recv_peer):
        talks = peers >= 0
        keys = list(zip(kept.thread_rank[talks], kept.thread_channel[talks], strict=True))
        assert all(keys.count(key) <= 2 for key in set(keys))
