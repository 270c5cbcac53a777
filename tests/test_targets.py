"""Targets: what they can express restricts the search, and what they cannot hold is refused before it."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.schedule import uses_switches
from tacos.search.compare import compare
from tacos.targets import bound_for, check_held, target_of, targets, usable
from tests.support.strategies import random_topologies

PLAIN = [name for name in targets() if not target_of(name).switch_sums]


def summing(npus=4, **options):
    return tp.switch(npus, multicast=True, reduce=True, **options)


@given(random_topologies())
def test_a_forwarding_network_has_the_same_nodes_and_links(topology):
    plain = tp.forwarding_only(topology)
    assert not plain.switch_capabilities.any()
    assert plain.names == topology.names
    assert plain.dims == topology.dims
    for column in ("link_src", "link_dst", "link_bandwidth_Bps", "link_latency_ps"):
        assert getattr(plain, column).tolist() == getattr(topology, column).tolist()
    assert (plain is topology) == (not topology.switch_capabilities.any())
    assert tp.forwarding_only(plain) is plain


def test_the_targets_that_can_sum_in_switches():
    assert [name for name in targets() if name not in PLAIN] == ["schedule"]
    box = summing()
    assert usable(box, None) is box
    assert usable(box, "mscclpp") == tp.switch(4)


@settings(max_examples=15)
@given(
    random_topologies(max_npus=5),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]),
    st.sampled_from(["program", "tcp", "nccl"]),
)
def test_a_target_restricts_the_search(topology, kind, target):
    wanted = co.named(kind, topology, 4096 * topology.npus)
    found = tacos.synthesize(topology, wanted, target=target, effort="fast", consistent=False)
    plain = tp.forwarding_only(topology)
    assert found.topology == topology
    assert not uses_switches(found)
    assert tacos.verify(found).ok
    assert found.bound_ps == tacos.bound(plain, wanted).time_ps <= found.time_ps
    whole = tacos.bound(topology, wanted).time_ps
    assert found.in_switch_bound_ps == (whole if whole < found.bound_ps else None)
    assert tacos.verify(tacos.lower(found)).ok


def test_two_h100_boxes_by_hand():
    """Without sums in switches 16 GPUs move each byte 30 times over 450 GB/s and a NIC of 50 GB/s each; with them, the NICs
    alone limit it: 2 · 8/16 GB leave and enter each box over 400 GB/s, 2.5 ms."""
    boxes = tp.dgx_h100(2)
    wanted = co.all_reduce(boxes, "1GB")
    found = bound_for(boxes, wanted, "mscclpp")
    assert found.in_switch_ps is not None
    assert (round(found.time_s, 6), round(found.in_switch_ps * 1e-12, 6)) == (0.003751, 0.002504)
    free = bound_for(boxes, wanted, "schedule")
    assert (free.time_ps, free.in_switch_ps) == (found.in_switch_ps, None)


@pytest.mark.parametrize("target", PLAIN)
def test_every_target_has_an_answer_on_a_box_that_sums(target, tmp_path):
    box = summing(4, bandwidth="100GB/s")
    wanted = co.all_reduce(box, "16MB")
    found = tacos.synthesize(box, wanted, target=target, effort="fast")
    assert not uses_switches(found)
    assert found.topology == box
    assert found.bound_ps == tacos.bound(tp.switch(4, bandwidth="100GB/s"), wanted).time_ps
    assert found.in_switch_bound_ps == tacos.bound(box, wanted).time_ps < found.bound_ps
    path = tmp_path / "found.tacos"
    tacos.save(found, path)
    assert tacos.load(path) == found == pickle.loads(pickle.dumps(found))
    assert tacos.load(path).in_switch_bound_ps == found.in_switch_bound_ps
    assert tacos.summary(found)["in_switch_bound_s"] == found.in_switch_bound_ps * 1e-12


@pytest.mark.parametrize("network", ["switch:4", "dgx-a100:2", "torus:2x3"])
def test_programs_in_general_change_nothing_where_switches_only_forward(network):
    wanted = co.all_reduce(tp.parse(network), "4MB")
    free, program = (
        tacos.synthesize(network, wanted, effort="fast", target=target)
        for target in (None, "program")
    )
    assert free == program
    assert program.in_switch_bound_ps is None


def test_an_orbit_stays_one():
    box = summing(8)
    found = tacos.synthesize(
        box, co.all_gather(box, "8MB", chunks=1), engine="symmetric", target="tcp"
    )
    assert (found.form, found.topology) == ("orbit", box)
    assert tacos.verify(found).ok


def test_refinement_has_the_goal_of_its_target():
    box = summing(4)
    first = tacos.synthesize(box, co.all_gather(box, "4MB"), engine="ring", target="tcp")
    better = tacos.refine(first, effort="fast", target="tcp")
    assert not uses_switches(better)
    assert better.time_ps <= first.time_ps


def test_the_reference_of_a_comparison_uses_the_machine_as_it_is():
    boxes = tp.dgx_h100(2)
    found = compare(
        boxes, co.all_reduce(boxes, "64MB"), engines=["nccl", "ring", "forest"], target="tcp"
    )
    of = {one.engine: one for one in found.candidates}
    assert uses_switches(of["nccl"].schedule)
    assert not any(uses_switches(of[name].schedule) for name in ("ring", "forest"))
    assert of["nccl"].note == "sums in switches, which the target tcp cannot express"
    assert found.in_switch_bound_s is not None
    assert found.bound_s > found.in_switch_bound_s
    share = found.efficiency(of["nccl"])
    assert share is not None
    assert 0.9 < share <= 1
    assert [one.beyond_target for one in found.solved] == [True, False, False]
    rows = {row["engine"]: row["bound_s"] for row in found.rows()}
    assert rows == {"nccl": found.in_switch_bound_s} | dict.fromkeys(
        ("ring", "forest"), found.bound_s
    )
    first, second = found.verdict().split(". ")
    assert first.startswith("nccl is the fastest: ")
    assert first.endswith("of the bound with sums in switches")
    assert second.startswith("forest is the fastest for the target: ")
    assert second.endswith(" of the bound.")
    free = compare(boxes, co.all_reduce(boxes, "64MB"), engines=["nccl"])
    assert of["nccl"].schedule.time_ps == free.candidates[0].schedule.time_ps
    assert free.in_switch_bound_s is None


# --- what targets hold ----------------------------------------------------------------------------

COLLECTIVES = {
    "all-reduce": lambda: co.all_reduce(4, "4MB"),
    "all-reduce of a group": lambda: co.all_reduce(4, "3MB", group=[2, 0, 1]),
    "all-reduce in another order": lambda: co.all_reduce(4, "4MB", group=[3, 1, 0, 2]),
    "all-gather": lambda: co.all_gather(4, "4MB"),
    "uneven all-gather": lambda: co.all_gather(4, 4_000_003),
    "all-gather of a group": lambda: co.all_gather(4, "2MB", group=[1, 3]),
    "all-gather in another order": lambda: co.all_gather(4, "4MB", group=[3, 2, 1, 0]),
    "reduce-scatter": lambda: co.reduce_scatter(4, "4MB"),
    "reduce-scatter of a group": lambda: co.reduce_scatter(4, "2MB", group=[0, 2]),
    "all-to-all": lambda: co.all_to_all(4, "4MB"),
    "all-to-all of a group": lambda: co.all_to_all(4, "3MB", group=[0, 1, 3]),
    "all-to-all-v": lambda: co.all_to_all_v(4, [[0, 7, 100, 3], [5, 0, 1, 0], [9, 9, 0, 4096], [1, 2, 3, 0]]),
    "broadcast": lambda: co.broadcast(4, "4MB", root=1),
    "broadcast to a group": lambda: co.broadcast(4, "4MB", root=1, group=[1, 2]),
    "reduce": lambda: co.reduce(4, "4MB", root=3),
    "gather": lambda: co.gather(4, "4MB", root=2),
    "scatter": lambda: co.scatter(4, "4MB"),
    "send-recv": lambda: co.send_recv(4, [(0, 1, "1MB"), (2, 3, "2MB")]),
    "two at once": lambda: co.together(co.all_gather(4, "4MB", group=[0, 1]), co.all_gather(4, "4MB", group=[2, 3])),
}  # fmt: skip
HELD = {
    "msccl": {"all-reduce", "all-reduce in another order", "all-gather", "uneven all-gather", "reduce-scatter", "all-to-all",
              "broadcast", "reduce"},
    "mscclpp": {"all-reduce", "all-gather", "uneven all-gather", "reduce-scatter", "all-to-all"},
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("target", targets())
def test_a_target_holds_a_collective_or_refuses_it_before_the_search(target, name, tmp_path):
    wanted, topology = COLLECTIVES[name](), tp.fully_connected(4)
    if name not in HELD.get(target, COLLECTIVES):
        began: list[float] = []
        with pytest.raises(ValueError, match=f'^target is "{target}", but ') as refused:
            tacos.synthesize(topology, wanted, target=target, progress=began.append)
        assert not began
        _, others = str(refused.value).split("use another target: ")
        for other in re.split(", | or ", others):
            check_held(wanted, other)
        with pytest.raises(ValueError, match=f'^target is "{target}", but '):
            compare(topology, wanted, target=target)
        return
    found = tacos.synthesize(topology, wanted, target=target, effort="fast")
    format = target_of(target).format or "tacos"
    path = tmp_path / f"found.{format}"
    tacos.save(found, path, format=format)
    back = tacos.load(path, format=format)
    report = tacos.verify(back)
    assert report.ok, report.violations[0].message
    if target != "schedule":
        assert tacos.verify(tacos.lower(found)).ok


def test_refinement_and_tuning_refuse_it_too():
    ring = tp.ring(4)
    with pytest.raises(ValueError, match='target is "mscclpp", but execution plans hold one of'):
        tacos.tune(ring, "broadcast", "1KB:4KB", target="mscclpp")
    schedule = tacos.synthesize(ring, co.broadcast(ring, "4MB"), engine="greedy")
    with pytest.raises(ValueError, match='target is "mscclpp", but execution plans hold one of'):
        tacos.refine(schedule, target="mscclpp")


# --- the command ----------------------------------------------------------------------------------


def test_files_of_programs_need_no_target(tmp_path, capsys):
    for name in ("ar.xml", "ar.json"):
        path = tmp_path / name
        command = ["synth", "dgx-h100", "all-reduce", "1MB", "--effort", "fast"]
        assert main([*command, "-o", str(path)]) == 0
        assert "the target program cannot express them" in " ".join(capsys.readouterr().out.split())
        assert tacos.verify(tacos.load(path)).ok


def test_a_plan_needs_no_target(tmp_path):
    command = ["synth", "dgx-h100", "all-reduce", "1MB", "--effort", "fast"]
    assert main([*command, "--plan", str(tmp_path / "plans")]) == 0
    (found,) = (tmp_path / "plans").glob("*.tacos")
    assert not uses_switches(tacos.load(found))


def test_converting_sums_in_switches_names_the_command_that_helps(tmp_path, capsys):
    box, path = summing(), tmp_path / "ar.tacos"
    tacos.save(tacos.synthesize(box, co.all_reduce(box, "4MB"), effort="fast"), path)
    for name, target in (("ar.xml", "msccl"), ("ar.json", "mscclpp"), ("ar.et", "program")):
        assert main(["convert", str(path), str(tmp_path / name)]) != 0
        said = " ".join(capsys.readouterr().err.split())
        assert "multicasts or reduces in switches" in said
        assert said.endswith(f"tacos synth --target {target}")


def test_the_bound_beside_a_target(capsys):
    command = ["bound", "dgx-h100:2", "all-reduce", "1GB"]
    assert main(command) == 0
    assert "2.504 ms" in (free := capsys.readouterr().out)
    assert "bound with sums in switches" not in free
    assert main([*command, "--target", "mscclpp"]) == 0
    said = capsys.readouterr().out
    assert "3.751 ms" in said
    assert "2.504 ms" in said
