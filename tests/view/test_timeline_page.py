"""Timelines in the viewer's page: of training steps, and of flight records."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

import tacos
from tacos import topology as tp
from tacos import training, view
from tacos.cli import main
from tacos.errors import FormatError
from tacos.workload import COLL, COMP, RECV, SEND, from_nodes
from tests.support.viewer_pages import taken_apart, timelines, views

pytestmark = pytest.mark.unsanitized

# --- timelines ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def step():
    model = training.Transformer(
        name="small", layers=4, hidden=2048, heads=16, ffn=8192, vocabulary=32000, sequence=2048
    )
    split = training.Parallelism(tp=4, pp=2, batch=4)
    return training.step(model, split, tp.dgx_h100(1, nvls=False), collectives="ring")


def test_the_timeline_of_a_step_keeps_every_order(step):
    """Nodes begin after their dependencies; ranks begin and end a collective together; the end is that of the step."""
    line = view.step_timeline(step)
    w = line.workload
    waiting = np.repeat(np.arange(w.nodes), np.diff(w.dep_begin))
    assert (line.begin_ps[waiting] >= line.end_ps[w.dep]).all()
    colls = np.flatnonzero(w.kind == COLL)
    by_group: dict[tuple[int, int], list[int]] = {}
    for row in colls.tolist():
        by_group.setdefault((int(w.group[row]), int(line.begin_ps[row])), []).append(row)
    for (group, _), rows in by_group.items():
        assert len(rows) == len(dict(w.groups)[group])
        assert len(set(line.end_ps[rows].tolist())) == 1
    # The step itself is predicted by stage, not node by node.
    assert line.end_ps.max() * 1e-12 == pytest.approx(step.time_s, rel=0.05)
    sends, receives = np.flatnonzero(w.kind == SEND), np.flatnonzero(w.kind == RECV)
    assert sorted(line.end_ps[sends].tolist()) == sorted(line.end_ps[receives].tolist())


def test_a_page_of_a_step_has_its_timeline_and_its_collectives(step):
    text = view.step_page(step)
    first, *others = views(text)
    assert first["title"] == "step"
    ((facts, columns),) = timelines(text)
    line = view.step_timeline(step)
    assert len(columns["span_begin"]) == line.workload.nodes
    order = list(
        zip(columns["span_rank"], columns["span_stream"], columns["span_begin"], strict=True)
    )
    assert order == sorted(order)
    ends = [b + n for b, n in zip(columns["span_begin"], columns["span_length"], strict=True)]
    assert max(ends) * facts["tick_s"] == pytest.approx(facts["time_s"])
    # Spans of one row do not overlap.
    for (a, end), b in pairwise(zip(order, ends, strict=True)):
        if a[:2] == b[0][:2]:
            assert end <= b[0][2]
    names = [facts["names"][k] for k in columns["span_name"]]
    opens = {name for name, k in zip(names, columns["span_view"], strict=True) if k >= 0}
    assert opens == {"tp all-reduce", "embedding all-reduce"}
    assert [title for _, title in facts["opens"]] == [one["title"] for one in others]
    runs = taken_apart(text)
    assert runs[others[0]["runs"][0]][0]["collective"] == "all-reduce"


def test_a_large_step_is_shown_by_its_passes():
    model = training.model("llama3-8b")
    split = training.Parallelism(tp=8, pp=4, zero=1, batch=128)
    step = training.step(model, split, tp.dgx_h100(8, nvls=False))
    ((facts, columns),) = timelines(view.step_page(step))
    assert step.folded is not None
    assert step.passes is not None
    assert facts["shown"] == step.folded.groups.pp[0].tolist()
    assert len(columns["span_begin"]) == len(step.passes.stage)
    assert "One rank of each pipeline stage" in facts["notes"][0]
    assert len(facts["opens"]) >= 2


def test_view_and_sim_write_pages_of_workloads(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    work = from_nodes(2, rank=[0, 1, 0, 1], kind=[COMP, COMP, COLL, COLL], duration_ps=[5000, 9000, 0, 0],
                      bytes=[0, 0, 4096, 4096], dep_begin=[0, 0, 0, 1, 2], dep=[0, 1])  # fmt: skip
    tacos.workload.save(work, "job")
    assert main(["view", "job.0.et", "--topology", "ring:2", "-o", "job.html", "--quiet"]) == 0
    ((facts, columns),) = timelines((tmp_path / "job.html").read_text())
    assert facts["ranks"] == 2
    assert facts["streams"] == ["compute", "communication"]
    assert len(columns["span_rank"]) == 4
    # Both collectives waited for the computation before them.
    assert sorted(columns["span_after"]) == [-1, -1, 0, 2]
    assert main(["view", "job.0.et", "-o", "job.png"]) == 2
    assert ".html" in capsys.readouterr().err


# --- flight records -------------------------------------------------------------------------------


def call(seq, begin, end, state, **more):
    return {"seq": seq, "kind": "all-reduce", "algorithm": "ring", "bytes": 4_000_000, "dtype": "float32", "op": "sum",
            "begin_s": begin, "end_s": end, "state": state, "error": "", "waited_s": {}, "needs": []} | more  # fmt: skip


def flown(rank, *calls, clock=0.0, host="a", members=(0, 1, 2, 3)):
    group = {"rank": members.index(rank), "members": list(members), "calls": list(calls)}
    return {
        "rank": rank,
        "host": host,
        "why": "the rank got SIGUSR2",
        "clock_offset_s": clock,
        "written_s": 109.0,
        "groups": [group],
    }


def test_a_page_of_flight_records_shows_who_was_where():
    """Rank 1 never entered call 8, in which 0 failed and 2 waits; rank 3 left no record. Rank 2's clock is 100 s behind."""
    dumps = [
        flown(0, call(7, 101.0, 102.0, "done"), call(8, 103.0, 107.0, "failed", needs=[[1, "waits"]])),
        flown(1, call(7, 101.0, 102.5, "done", waited_s={"0": 0.25})),
        flown(2, call(7, 1.5, 2.0, "done"), call(8, 4.0, 0.0, "running", needs=[[1, ""]]), clock=100.0, host="b"),
    ]  # fmt: skip
    ((facts, columns),) = timelines(view.flight_page(dumps))
    begin, length = (np.array(columns[name]) for name in ("span_begin", "span_length"))
    seconds = [np.round(column * facts["tick_s"], 3).tolist() for column in (begin, begin + length)]
    states = [facts["categories"][k] for k in columns["span_category"]]
    assert list(zip(columns["span_rank"], *seconds, states, strict=True)) == [
        (0, 0.0, 1.0, "done"),
        (0, 2.0, 6.0, "failed"),
        (1, 0.0, 1.5, "done"),
        (1, 2.0, 8.0, "never started"),
        (2, 0.5, 1.0, "done"),
        (2, 3.0, 8.0, "under way"),
        (3, 0.0, 8.0, "no record"),
    ]
    # A span that waits points to that of the rank which never entered the call.
    assert columns["span_after"] == [-1, 3, 0, -1, -1, 3, -1]
    assert facts["headline"].startswith("Rank 1 fell behind first: it has not entered call 8")
    assert facts["marked"] == [1]
    said = [dict(facts["details"][k]) for k in columns["span_detail"]]
    assert said[2]["waited"] == "250 ms for rank 0"
    assert said[3]["record written"] == "because the rank got SIGUSR2"
    assert ["rank 3", "left no record"] in facts["summary"]
    assert any("own clock" in note for note in facts["notes"])


def test_groups_with_a_rank_that_fell_behind_come_first():
    done, open_ = call(1, 1.0, 2.0, "done"), call(2, 3.0, 0.0, "running")
    dumps = [flown(rank, done) for rank in range(4)]
    for rank, calls in ((1, [done]), (3, [done, open_])):
        dumps[rank]["groups"] += flown(rank, *calls, members=(1, 3))["groups"]
    assert [one["title"] for one in views(view.flight_page(dumps))] == [
        "ranks 1, 3",
        "ranks 0 to 3",
    ]


def test_flight_records_without_calls_or_of_two_jobs_are_refused(tmp_path, capsys):
    with pytest.raises(FormatError, match="no collective"):
        view.flight_page([flown(0)])
    far = flown(1, call(1, 9e8, 9e8, "done"))
    with pytest.raises(FormatError, match="give those of one job"):
        view.flight_page([flown(0, call(1, 1.0, 2.0, "done")), far])
    (tmp_path / "x.json").write_text(json.dumps({"format": "tacos-flight", "version": 1}))
    assert main(["view", str(tmp_path / "x.json"), "-o", str(tmp_path / "x.html")]) == 2
    assert "not a whole flight record" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
