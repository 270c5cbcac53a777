"""What convert says about the time of the file that it wrote, and about a schedule made for the file's executor."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import tacos
from tacos.cli import converting, main
from tacos.execution import execution
from tacos.search.synthesis import with_chunks

pytestmark = pytest.mark.unsanitized

BOXES = tacos.topology.parse("fat-tree:2x2@50GB/s,500ns,first")
"""Two boxes of two NPUs, whose switches are joined: messages between boxes share links."""


@pytest.fixture(scope="module")
def in_order(tmp_path_factory):
    """A file with a schedule for links that keep its order, which no executor of files does.

    48 MB enter each NPU at 50 GB/s, which takes 960 us.
    """
    path = tmp_path_factory.mktemp("converted") / "in order.tacos"
    gather = tacos.collective.all_gather(BOXES, "64MB", chunks=1)
    found = tacos.synthesize(BOXES, gather, target="schedule")
    assert found.time_s == pytest.approx(962e-6)
    tacos.save(found, path)
    return path, found


def run(capsys, *words):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr()


@pytest.mark.parametrize("target", ["msccl", "mscclpp"])
def test_a_file_that_takes_longer_than_its_schedule_says_what_a_target_gains(
    in_order, tmp_path, capsys, monkeypatch, target
):
    path, schedule = in_order
    written = tmp_path / {"msccl": "x.xml", "mscclpp": "x.json"}[target]
    monkeypatch.chdir(tmp_path)
    facts = json.loads(run(capsys, "convert", path, written, "--json").out)
    assert facts["executed_s"] == facts["executed_shared_s"] > 1.3 * schedule.time_s
    gain = facts["with_target"]
    assert set(gain) == {"target", "executed_s", "command"}
    assert gain["target"] == target
    assert gain["executed_s"] == pytest.approx(963e-6, rel=0.01)
    assert run(capsys, "convert", path, written, "--quiet") == ("", "")

    said = run(capsys, "convert", path, written)
    assert len(said.err.splitlines()) == 1
    assert f"x{written.suffix} takes 1.28" in said.err
    assert f"ms when {target} executes it, where its schedule takes 962 us; one made" in said.err
    assert gain["command"] in said.err

    better = f"in order.{target}.tacos"
    assert f"--target {target} -o '{better}'" in gain["command"]
    run(capsys, *shlex.split(gain["command"])[1:], "--quiet")
    facts = json.loads(run(capsys, "convert", better, written, "--json").out)
    assert "with_target" not in facts
    assert facts["executed_s"] <= 1.001 * gain["executed_s"]


def test_a_file_that_keeps_its_promise_costs_no_search(tmp_path, capsys, monkeypatch):
    """All messages of a ring have links of their own, so they take as long in the file as in the schedule."""
    topology = tacos.topology.ring(4)
    gather = tacos.collective.all_gather(topology, "64MB", chunks=1)
    tacos.save(
        tacos.synthesize(topology, gather, engine="ring", target="tcp"), tmp_path / "x.tacos"
    )
    monkeypatch.setattr(tacos, "synthesize", None)
    said = run(capsys, "convert", tmp_path / "x.tacos", tmp_path / "x.xml")
    assert "executed" in said.out
    assert not said.err


def way(src, dst):
    """Return the links between two NPUs; between boxes, through a spine that depends on the source."""
    leaves = 4 + src // 2, 4 + dst // 2
    if leaves[0] == leaves[1]:
        return [(src, leaves[0]), (leaves[0], dst)]
    spine = 6 + src % 2
    return [(src, leaves[0]), (leaves[0], spine), (spine, leaves[1]), (leaves[1], dst)]


def test_a_target_that_gains_nothing_is_not_mentioned(tmp_path, capsys):
    """An all-to-all between boxes shares their links whatever its order is, so no schedule takes less when it is executed."""
    problem = tacos.collective.all_to_all(BOXES, "64MB", chunks=4)
    rows = tacos.synthesize(BOXES, problem, engine="direct").rows()
    pairs = list(zip(rows["src"].tolist(), rows["dst"].tolist(), strict=True))
    over_both_spines = tacos.routes(BOXES, links=[way(*pair) for pair in pairs])
    found = tacos.retime(problem, over_both_spines, route=range(48), chunk=rows["chunk"], step=0)
    tacos.save(found, tmp_path / "x.tacos")
    said = run(capsys, "convert", tmp_path / "x.tacos", tmp_path / "x.xml", "--json")
    facts = json.loads(said.out)
    assert facts["executed_s"] > 1.3 * found.time_s
    assert "with_target" not in facts


def test_a_schedule_cut_into_fewer_chunks_is_compared_with_the_whole_one(
    tmp_path, capsys, monkeypatch
):
    """A broadcast to the other side of a ring is a pipeline of two hops, which one chunk passes one after the other."""
    ring = tacos.topology.ring(4)
    problem = tacos.collective.broadcast(ring, "64MB", chunks=16)
    whole = tacos.synthesize(ring, problem, engine="greedy")
    tacos.save(whole, tmp_path / "x.tacos")

    def cut(loaded, target, *_):
        fewer = with_chunks(loaded, 1)
        tacos.save(fewer, target)
        return fewer

    monkeypatch.setattr(converting, "_saved", cut)
    facts = json.loads(
        run(capsys, "convert", tmp_path / "x.tacos", tmp_path / "x.xml", "--json").out
    )
    assert facts["executed_s"] == facts["ideal_s"] > 1.5 * whole.time_s
    assert facts["with_target"]["executed_s"] <= 1.1 * whole.time_s


def test_a_search_that_fails_does_not_fail_the_conversion(in_order, tmp_path, capsys, monkeypatch):
    path, _ = in_order
    monkeypatch.setattr(converting, "_SEARCH_S", 1e-9)
    facts = json.loads(run(capsys, "convert", path, tmp_path / "x.xml", "--json").out)
    assert "with_target" not in facts
    assert (tmp_path / "x.xml").exists()


def test_the_command_names_the_group_the_root_and_the_exact_size():
    network = tacos.topology.ring(8)
    some = tacos.collective.broadcast(network, 1_000_001, group=[1, 5, 3], root=3, chunks=1)
    found = tacos.synthesize(network, some, engine="greedy")
    assert converting._command(found, "msccl", Path("b.tacos")) == (
        "tacos synth b.tacos broadcast 1000001B --group 1,5,3 --root 3 --target msccl -o b.msccl.tacos"
    )
    sent = tacos.collective.send_recv(network, [(0, 1, "1KB")])
    found = tacos.synthesize(network, sent, engine="greedy")
    assert 'target="msccl")' in converting._command(found, "msccl", Path("b.tacos"))


def test_the_executed_time_is_that_of_the_format(in_order, tmp_path, capsys):
    path, schedule = in_order
    facts = json.loads(run(capsys, "convert", path, tmp_path / "x.json", "--json").out)
    found = execution(schedule, target="mscclpp")
    assert found is not None
    assert facts["executed_s"] == pytest.approx(found.time_ps("mscclpp") * 1e-12)


def test_a_converted_schedule_keeps_the_executed_time_for_its_target(in_order, tmp_path, capsys):
    source, found = in_order
    slower = found.with_executed(None, None).executed_s
    assert slower > 1.3 * found.executed_s  # with another target, the time would be another one
    facts = json.loads(run(capsys, "convert", source, tmp_path / "copy.tacos", "--json").out)
    said = json.loads(run(capsys, "info", tmp_path / "copy.tacos", "--json").out)
    names = ("executed_s", "busbw_Bps", "efficiency", "ideal_s")
    assert [facts[name] for name in names] == [said[name] for name in names]
    assert facts["executed_s"] == found.executed_s
