"""One number: every command and function that is asked the same question gives the same answer, to the last digit."""

from __future__ import annotations

import json

import pytest

import tacos
from tacos import units
from tacos.cli import main
from tacos.execution import executed_ps, slowdown
from tacos.nodes import link_of

pytestmark = pytest.mark.unsanitized

SIZE = 1_000_000
SLOW = """\
tacos: 1
base: fat-tree:2x2@50GB/s,500ns
edits:
  - degrade: {links: [[0, 4]], factor: 0.5}
    both: true
"""
"""Two boxes of two NPUs, one of which has half of the bandwidth."""
LOG = f"""\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     {SIZE}       250000     float     sum      -1    80.00  12.50   18.75      0    80.00  12.50   18.75      0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("one")
    (path / "slow.yaml").write_text(SLOW)
    (path / "log.txt").write_text(LOG)
    return path


def asked(capsys, *words):
    """What a command says to scripts."""
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def figures(row):
    return row["executed_s"], row["busbw_Bps"], row["efficiency"], row["ideal_s"]


@pytest.mark.parametrize("kind", ["all-reduce", "all-to-all"])
def test_a_question_has_one_answer(folder, capsys, kind):
    network = tacos.load(folder / "slow.yaml")
    edited = tacos.topology.degrade(
        tacos.topology.parse("fat-tree:2x2@50GB/s,500ns"), (0, 4), factor=0.5, both=True
    )
    assert edited == network
    problem = tacos.collective.named(kind, edited, SIZE)
    found = tacos.synthesize(edited, problem)
    expected = (found.executed_s, found.busbw_Bps, found.efficiency, found.time_s)
    assert found.executed_s >= found.time_s

    asking = (folder / "slow.yaml", kind, SIZE)
    saved = folder / f"{kind}.tacos"
    assert figures(asked(capsys, "synth", *asking)) == expected
    compared = asked(capsys, "compare", *asking, "--csv", folder / "x.csv")
    assert [figures(row) for row in compared if row["engine"] == "auto"] == [expected]
    assert expected[0] == min(row["executed_s"] for row in compared if row["ok"])
    rows = tacos.compare(edited, problem, engines=["auto"]).rows()
    assert [figures(row) for row in rows] == [expected]

    tacos.save(found, saved)
    assert figures(asked(capsys, "info", saved)) == expected
    assert asked(capsys, "view", saved, "-o", folder / "x.html")["executed_s"] == expected[0]
    assert asked(capsys, "sim", saved)["executed_s"] == expected[0]


def test_a_judgement_has_the_executed_time_of_the_answer(folder, capsys):
    network = tacos.load(folder / "slow.yaml")
    found = tacos.synthesize(network, tacos.collective.all_reduce(network, SIZE))
    [row] = asked(capsys, "judge", folder / "log.txt", folder / "slow.yaml")["rows"]
    assert (row["best_s"], row["best"]) == (found.executed_s, found.engine)
    assert found.bound_ps is not None
    assert row["bound_s"] == found.bound_ps / 1e12
    assert row["efficiency"] == pytest.approx(row["bound_s"] / 80e-6)


@pytest.mark.parametrize("target", ["tcp", "msccl", "schedule"])
def test_a_file_keeps_the_time_for_its_target(folder, capsys, target):
    """What info says is for the target that the schedule was made for."""
    asking = (folder / "slow.yaml", "all-to-all", SIZE, "--target", target)
    saved = folder / f"{target}.tacos"
    first = asked(capsys, "synth", *asking, "-o", saved)
    again = asked(capsys, "info", saved)
    assert first["target"] == again["target"] == target
    assert figures(first) == figures(again)


def test_the_screen_says_why_executing_takes_longer(folder, tmp_path, capsys):
    """Two boxes of two: the schedule spreads messages over two spines, and programs send all of them through the first.

    Both NPUs of a box send their 1 MB to both of the other one, 4 MB in all, over one link of 50 GB/s: 80 us.
    """
    call = ["fat-tree:2x2@50GB/s,500ns,first", "all-gather", "4MB", "--engines", "forest"]
    [row] = asked(capsys, "compare", *call)
    why = row["slowdown"]
    assert row["executed_s"] == pytest.approx(80e-6, rel=0.03)
    assert why.startswith("executed 1.3 times as long as ideal: switch ")
    assert "carries 4 MB, which takes 98 % of the time; the schedule sends 3 MB over it" in why
    assert main(["compare", *call]) == 0
    assert why in " ".join(capsys.readouterr().out.split())
    saved = str(tmp_path / "x.tacos")
    assert main(["synth", *call[:3], "--engine", "forest", "-o", saved, "--quiet"]) == 0
    assert asked(capsys, "info", saved)["slowdown"] == why
    assert "slowdown" not in asked(capsys, "synth", "ring:4", "all-gather", "4MB")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("synth fat-tree:2x2 broadcast 1MB --root 0 --target mscclpp", "execution plans hold one"),
        ("compare fat-tree:2x2 broadcast 1MB --root 0 --target mscclpp", "execution plans hold"),
        ("tune fat-tree:2x2 broadcast --root 0 --target mscclpp", "execution plans hold one of"),
        ("judge {log} {slow} --effort huge", "effort must be one of fast, normal, high, or"),
        ("bound fat-tree:2x2 broadcast 1MB --root 0 --target mscclpp", "execution plans hold one"),
        ("synth fat-tree:2x2 all-reduce 1MB --group 0-2 -o x.xml", "--output is x.xml, but MSCCL"),
        ("tune fat-tree:2x2 all-reduce --group 0-2 --to msccl -o plans", "--to is msccl, but MSC"),
        ("synth dragonfly:101x100 all-to-all 1GB", "choose fewer NPUs or"),
        ("compare dragonfly:101x100 all-to-all 1GB", "choose fewer NPUs or a machine"),
        ("pareto dragonfly:101x100 all-to-all", "choose fewer NPUs or a machine"),
    ],
)
def test_what_cannot_work_is_refused_before_the_search(
    folder, tmp_path, monkeypatch, capsys, call, why
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tacos.synth.sizes._present", lambda: 16 << 30)
    for search in ("search.auto.Auto.answer", "search.pareto._Search.front"):
        monkeypatch.setattr(f"tacos.{search}", None)
    call = call.format(log=folder / "log.txt", slow=folder / "slow.yaml")
    assert main(call.split()) > 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert why in said
    assert not list(tmp_path.iterdir())


def test_messages_that_wait_for_each_other_are_told_from_those_on_other_routes():
    """Between boxes with one route for each pair, the busiest link carries what the schedule sends over it."""
    boxes = tacos.topology.dgx_h100(2, nvls=False)
    problem = tacos.collective.all_reduce(boxes, "64MB", chunks=2)
    found = tacos.synthesize(boxes, problem, engine="greedy")
    assert found.executed_s > 1.1 * found.time_s
    why = slowdown(found)
    assert "wait for each other" in why
    assert "default routes" not in why
    link = link_of(boxes, why.split(": ")[1].split(" carries")[0])
    assert f"carries {units.format_size(int(found.link_bytes()[link]))}, which" in why


def test_an_answer_with_matched_ports_has_its_share_of_the_bound():
    boxes = tacos.topology.mi250(2)
    problem = tacos.collective.all_gather(boxes, "32MB", chunks=1)
    found = tacos.synthesize(boxes, problem, engine="forest", ports="matched")
    assert found.matched_ports
    time_ps = executed_ps(found)
    assert time_ps is not None
    assert found.efficiency == tacos.bound(boxes, problem).time_ps / time_ps
