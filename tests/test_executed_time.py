"""The executed time of a schedule: computed once, for a target, kept by copies and lost by other transfers."""

from __future__ import annotations

import pickle

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.execution import execution, for_target


@pytest.fixture(scope="module")
def shared():
    """Greedy's all-to-all through a switch takes longer when messages share its ports."""
    topology = tp.fat_tree(2, 2)
    return tacos.synthesize(topology, co.all_to_all(topology, "4MB"), engine="greedy")


def test_an_answer_has_its_executed_time(shared):
    assert shared.executed_ps == execution(shared).time_ps()
    assert shared.executed_s == shared.executed_ps * 1e-12
    assert shared.target is None


@pytest.mark.parametrize("npus", [3, 60, 600])
def test_answers_of_all_sizes_have_it(npus):
    """Each port sends a block of 1 MB at 1 GB/s to every other NPU: npus - 1 ms in any order, one by one or all at once.

    600 NPUs exchange 359,400 blocks, more than are tried with several windows.
    """
    topology = tp.switch(npus, bandwidth="1GB/s", latency="0ns")
    blocks = co.all_to_all(topology, npus * 10**6, chunks=1)
    found = tacos.synthesize(topology, blocks, engine="direct", verify=False)
    assert found.transfers == npus * (npus - 1)
    assert found.executed_ps == (npus - 1) * 10**9
    executed = execution(found)
    assert executed is not None
    assert executed.runs >= 2


@pytest.mark.parametrize("target", ["schedule", "tcp", "nccl", "msccl", "mscclpp"])
def test_the_time_is_for_the_target_that_was_asked(target):
    topology = tp.switch(4)
    found = tacos.synthesize(topology, co.all_gather(topology, "1MB"), target=target, effort="fast")
    assert found.target == target
    assert found.executed_ps == execution(found, target=target).time_ps(target)


def test_bandwidths_and_efficiency_are_of_the_executed_time(shared):
    slow = shared.with_executed(4 * 10**9, None).with_facts(bound_ps=10**9)
    assert slow.efficiency == 0.25
    assert slow.algbw_Bps == pytest.approx(4e6 / 4e-3)
    assert slow.busbw_Bps == pytest.approx(slow.algbw_Bps * 3 / 4)


def test_the_time_is_computed_once(shared, monkeypatch):
    runs = []

    def counted(schedule, **options):
        runs.append(schedule)
        return execution(schedule, **options)

    monkeypatch.setattr("tacos.execution.execution", counted)
    fresh = shared.with_executed(None, None)
    copy = fresh.with_provenance({}).with_facts(engine="mine")
    assert fresh.executed_ps is None
    assert fresh.executed_s == shared.executed_s
    assert copy.executed_ps == fresh.executed_ps == shared.executed_ps
    assert fresh.busbw_Bps == copy.busbw_Bps > 0
    assert len(runs) == 1


def test_other_transfers_have_another_time(shared):
    known = shared.with_executed(1, "tcp")
    assert known.expand().executed_ps == 1
    back = known.reverse()
    assert (back.executed_ps, back.target) == (None, None)
    topology = tp.ring(4)
    gather = tacos.synthesize(topology, co.all_gather(topology, "4MB", chunks=1), engine="ring")
    scatter = tacos.synthesize(
        topology, co.reduce_scatter(topology, "4MB", chunks=1), engine="ring"
    )
    whole = scatter.then(gather, co.all_reduce(topology, "4MB", chunks=1))
    assert whole.executed_ps is None
    assert whole.executed_s == whole.time_s


def test_pickles_keep_it(shared):
    back = pickle.loads(pickle.dumps(shared.with_executed(5, "nccl")))
    assert (back.executed_ps, back.target) == (5, "nccl")


def test_files_keep_it(shared, tmp_path):
    tacos.save(
        shared.with_executed(5, "tcp").with_provenance({"executed_s": 7.0}), tmp_path / "a.tacos"
    )
    back = tacos.load(tmp_path / "a.tacos")
    assert (back.executed_ps, back.executed_s, back.target) == (5, 5e-12, "tcp")


def test_refined_schedules_have_their_own(shared):
    refined = tacos.refine(shared.with_executed(1, None), hops=10_000)
    assert refined == shared or refined.executed_s == execution(refined).time_ps() * 1e-12


def test_another_target_has_another_time(shared):
    assert for_target(shared, None) is shared
    ideal = for_target(shared, "schedule")
    assert (ideal.executed_ps, ideal.target) == (shared.time_ps, "schedule")
    tcp = for_target(shared, "tcp")
    assert tcp.executed_ps == execution(shared).time_ps("tcp")
    assert tcp == shared
    assert for_target(tcp, None).executed_ps == shared.executed_ps


def test_a_negative_time_is_refused(shared):
    with pytest.raises(ValueError, match="executed_ps is -1; it must not be negative"):
        shared.with_executed(-1, None)
