"""The flight recorder, the diagnosis from its files, and the metrics."""

from __future__ import annotations

import json
import os
import re
import signal
import weakref

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.formats.flight_record import load
from tacos.runtime import flight
from tacos.runtime.carriers import Call
from tacos.runtime.flight import Recorder, postmortem, record_to
from tests.support.conditions import until
from tests.support.rank_jobs import TIMEOUT_S
from tests.support.ranks import Ranks
from tests.support.viewer_pages import timelines


def call(seq, state="done", kind="all-reduce", size=4_000_000, begin=0.0, needs=(), waited=None):
    return {
        "seq": seq, "kind": kind, "algorithm": "ring", "bytes": size, "dtype": "float32", "op": "sum",
        "begin_s": begin, "end_s": begin + 1 if state != "running" else 0.0, "state": state, "error": "",
        "waited_s": waited or {}, "needs": [list(need) for need in needs],
    }  # fmt: skip


def dumped(rank, *calls, members=(0, 1, 2)):
    group = {"rank": members.index(rank), "members": list(members), "calls": list(calls)}
    return {
        "rank": rank,
        "host": f"node{rank}",
        "why": "",
        "clock_offset_s": 0.0,
        "groups": [group],
    }


def test_the_rank_that_has_entered_the_fewest_calls_fell_behind():
    [found] = postmortem(
        [
            dumped(0, call(7), call(8, "failed", needs=[(1, "waits")])),
            dumped(1, call(7)),
            dumped(2, call(7), call(8, "running", waited={"1": 2.5})),
        ]
    )
    assert found.culprit == 1
    assert found.verdict == (
        "rank 1 fell behind first: it has not entered call 8, all-reduce of 4 MB float32 (sum), which rank 0 has; "
        "its last was call 7, all-reduce of 4 MB float32 (sum), done"
    )
    assert found.waited == [(1, 2.5)]


def test_in_the_same_call_it_is_the_one_that_others_wait_for():
    """Rank 0 waits for 1, 1 for 2, and 2 for no rank."""
    [found] = postmortem(
        [
            dumped(0, call(5, "running", needs=[(1, "")], begin=1.0)),
            dumped(1, call(5, "running", needs=[(2, "")], begin=3.0)),
            dumped(2, call(5, "running", begin=2.0)),
        ]
    )
    assert found.culprit == 2


def test_where_all_wait_in_a_circle_it_is_the_last_that_came():
    [found] = postmortem(
        [
            dumped(0, call(5, "failed", needs=[(1, "")], begin=1.0)),
            dumped(1, call(5, "failed", needs=[(2, "")], begin=3.0)),
            dumped(2, call(5, "failed", needs=[(0, "")], begin=2.0)),
        ]
    )
    assert found.culprit == 1


def test_of_ranks_in_the_earliest_call_it_is_the_one_that_did_not_answer():
    """Rank 2 was stopped in call 5, in which 0 and 1 wait for it; 1 entered last. Rank 3 has ended that call."""
    failed = {"error": "CommunicationError: rank 2 did not answer for 6 s in all-reduce"}
    members = (0, 1, 2, 3)
    [found] = postmortem(
        [
            dumped(0, call(5, "failed", needs=[(2, "")], begin=1.0) | failed, members=members),
            dumped(1, call(5, "failed", needs=[(2, "")], begin=3.0) | failed, members=members),
            dumped(2, call(5, "failed", needs=[(0, ""), (1, "")], begin=2.0), members=members),
            dumped(3, call(6, "failed", needs=[(0, "")], begin=4.0), members=members),
        ]
    )
    assert found.culprit == 2
    assert found.verdict.endswith("it did not answer; rank 3 ended that call")


def test_several_ranks_are_named_in_the_plural():
    """Ranks 0 and 2 have ended call 5; 1 and 3 are still in it. 1 waits for 0 and 2, and 3 for 1."""
    members = (0, 1, 2, 3)
    [found] = postmortem(
        [
            dumped(0, call(5), members=members),
            dumped(1, call(5, "running", needs=[(0, ""), (2, "")], begin=1.0), members=members),
            dumped(2, call(5), members=members),
            dumped(3, call(5, "running", needs=[(1, "")], begin=3.0), members=members),
        ]
    )
    assert found.verdict.endswith("others wait for it; ranks 0, 2 ended that call")
    text = "\n".join(flight.lines(found))
    assert "running, entered 0 s after the first rank, waits for ranks 0, 2" in text
    assert "running, entered 2 s after the first rank, waits for rank 1" in text


@pytest.mark.parametrize("verb", ["info", "view"])
def test_a_damaged_record_in_a_directory_is_named(verb, tmp_path, capsys):
    (tmp_path / "a.0.flight.json").write_text('{"for')
    assert main([verb, str(tmp_path)]) == 2
    assert "a.0.flight.json is not a whole flight record" in capsys.readouterr().err


def test_without_errors_it_is_the_one_that_most_ranks_wait_for():
    """Ranks 0 and 1 wait for 2, and 2 for 0; 1 entered last."""
    [found] = postmortem(
        [
            dumped(0, call(5, "running", needs=[(2, "")], begin=1.0)),
            dumped(1, call(5, "running", needs=[(2, "")], begin=3.0)),
            dumped(2, call(5, "running", needs=[(0, "")], begin=2.0)),
        ]
    )
    assert found.culprit == 2


def test_a_rank_that_died_is_to_blame_though_others_are_in_different_calls():
    [found] = postmortem(
        [dumped(0, call(6, "failed", needs=[(1, "")])), dumped(2, call(7, "failed"))]
    )
    assert found.culprit == 1
    assert found.missing == [1]


def test_ranks_that_make_different_calls_disagree():
    [found] = postmortem(
        [
            dumped(0, call(5), call(6, "failed")),
            dumped(1, call(5), call(6, "failed")),
            dumped(2, call(5), call(6, "failed", size=8_000_000)),
        ]
    )
    assert found.culprit == 2
    assert found.verdict.startswith("the ranks disagree on call 6: rank 2 makes all-reduce of 8 MB")


def test_a_rank_without_a_record_may_have_died():
    found = postmortem([dumped(0, call(6, "failed")), dumped(2, call(6, "failed"))])[0]
    assert found.culprit == 1
    assert found.missing == [1]
    assert "rank 1 left no record and may have died" in found.verdict


def test_groups_are_told_apart():
    found = postmortem(
        [
            dumped(3, call(1), members=(3, 5)),
            dumped(5, call(1), call(2, "running"), members=(3, 5)),
            dumped(0, call(4)),
            dumped(1, call(4)),
            dumped(2, call(4)),
        ]
    )
    assert [(one.members, one.culprit) for one in found] == [([0, 1, 2], None), ([3, 5], 3)]


@pytest.fixture(scope="module")
def ranks():
    with Ranks(3, TACOS_HOST="127.0.0.1") as started:
        yield started


def ring(npus):
    network = tp.ring(npus)
    return tacos.synthesize(network, co.all_reduce(network, "1MB", chunks=1))


def test_a_rank_that_stays_away_is_named_from_the_records(ranks, tmp_path, capsys):
    """Two ranks fail in call 6, which writes their records; the third writes its record when it gets a signal."""
    ready = tmp_path / "ready"
    ranks.start(3, "fall_behind", ring(3), 1, 5, str(tmp_path), str(ready), fresh=TIMEOUT_S)
    failed = ranks.collect([0, 2])
    assert all(said.startswith("rank 1 did not answer") for said in failed)
    os.kill(ranks.pids[1], signal.SIGUSR2)
    until((tmp_path / "rank1.flight.json").exists, "rank 1 has written its record")
    ready.touch()
    assert ranks.collect([1]) == ["stayed away"]
    files = sorted(map(str, tmp_path.glob("*.flight.json")))
    assert main(["info", *files]) == 0
    said = capsys.readouterr().out
    assert (
        "rank 1 fell behind first: it has not entered call 6, all-reduce of 64 KiB float32 (sum)"
        in said
    )
    assert main(["info", "--json", *files]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["culprit"] == 1
    assert [row["call"] for row in found["rows"]] == [6, 5, 6]
    page = tmp_path / "flight.html"
    assert main(["view", "--json", str(tmp_path), "-o", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["culprit"] == 1
    [(facts, columns)] = timelines(page.read_text())
    assert facts["headline"] == found["verdict"].replace("rank", "Rank", 1)
    states = [facts["categories"][k] for k in columns["span_category"]]
    assert states == ["done"] * 5 + ["failed"] + ["done"] * 5 + ["never started"] + ["done"] * 5 + [
        "failed"
    ]
    waiting = load(tmp_path / "rank2.flight.json")["groups"][0]["calls"][-1]
    assert waiting["state"] == "failed"
    assert any(text.endswith("waits to receive from rank 1") for _, text in waiting["needs"])


def test_a_file_that_is_no_whole_record_is_named(tmp_path, capsys):
    broken = tmp_path / "x.flight.json"
    broken.write_text('{"format": "tacos-flight", "version": 1, "groups": [{}]}')
    assert main(["info", str(broken)]) == 2
    assert re.match(
        r"tacos: .*x\.flight\.json is not a whole flight record", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("rank", 9),
        ("members", 5),
        ("members", [[0], [1], [2]]),
        ("kind", None),
        ("bytes", "4 MB"),
        ("needs", [5]),
        ("needs", [[7, "waits"]]),
        ("waited_s", {"x": 1.0}),
        ("waited_s", {"3": 1.0}),
        ("clock_offset_s", "now"),
    ],
)
def test_a_record_with_a_wrong_value_is_refused(tmp_path, capsys, place, value):
    record = dumped(0, call(1)) | {"format": "tacos-flight", "version": 1}
    group = record["groups"][0]
    next(part for part in (group, group["calls"][0], record) if place in part)[place] = value
    wrong = tmp_path / "x.flight.json"
    wrong.write_text(json.dumps({"format": "tacos-flight", **record}))
    assert main(["info", str(wrong)]) == 2
    assert "x.flight.json is not a whole flight record" in capsys.readouterr().err


def test_a_record_of_no_group_says_so(tmp_path, capsys):
    file = tmp_path / "rank0.flight.json"
    file.write_text(json.dumps({"format": "tacos-flight", "version": 1, **dumped(0), "groups": []}))
    assert main(["info", str(file)]) == 0
    assert "no group of ranks" in capsys.readouterr().out


@pytest.fixture
def recorder(monkeypatch):
    """The only recorder that this process sees; other tests may have left some."""
    monkeypatch.setattr(flight, "_OPEN", weakref.WeakSet())
    yield Recorder(0, [0, 1], list)
    record_to(None)


def test_a_record_that_cannot_be_written_does_not_hide_the_error(recorder, tmp_path, caplog):
    folder = tmp_path / "flight"
    record_to(str(folder))
    folder.rmdir()
    call = Call(0, 0, 4, "float32", "sum")
    recorder.fail(0, call, RuntimeError("the network is out"), None)  # raises nothing
    [row] = recorder.content()["calls"]
    assert (row["seq"], row["state"]) == (1, "failed")
    assert row["error"] == "RuntimeError: the network is out"
    assert "cannot write its flight record" in caplog.text


def test_a_signal_while_a_record_is_written_does_not_wait_for_it(recorder, tmp_path):
    """The handler runs in the thread that is writing."""
    handler = signal.getsignal(signal.SIGUSR2)
    try:
        record_to(str(tmp_path))
        with flight._lock:
            signal.raise_signal(signal.SIGUSR2)
        assert load(tmp_path / "rank0.flight.json")["why"] == "the rank got SIGUSR2"
    finally:
        signal.signal(signal.SIGUSR2, handler)
        flight._heeds_signal = False


def test_figures_and_metrics_count_what_was_sent(ranks):
    """A ring of 3 sends 2/3 of 1 MiB twice, over both directions or one, in each of 4 calls."""
    for rank, (found, text) in enumerate(ranks.run(3, "figures", ring(3), 4)):
        for outgoing in (True, False):
            moved = sum(link["bytes"] for link in found["links"] if link["outgoing"] == outgoing)
            assert moved == pytest.approx(4 * 2 * 2 / 3 * (1 << 20), rel=1e-3)
        assert {peer["rank"] for peer in found["peers"]} <= {0, 1, 2} - {rank}
        assert f'tacos_rank_calls_total{{rank="{rank}",group="0-2"}} 4\n' in text
        assert re.search(
            rf'tacos_rank_link_bytes_total{{rank="{rank}",group="0-2",peer="\d",channel="0",way="in"}} \d+',
            text,
        )
        assert "# TYPE tacos_rank_link_waited_seconds_total counter" in text
