"""The verbs on workloads: what they print, write and refuse."""

from __future__ import annotations

import json

import pytest

import tacos
from tacos.cli import main
from tacos.workload import COLL, COMP, RECV, SEND, from_nodes

pytestmark = pytest.mark.unsanitized

GROUPS = {1: [0, 1], 2: [2, 3]}


@pytest.fixture
def step(tmp_path, monkeypatch):
    """Four ranks that compute and sum in pairs, in the current directory."""
    monkeypatch.chdir(tmp_path)
    tacos.workload.save(
        from_nodes(
            4, rank=[0, 0, 1, 1, 2, 2, 3, 3], kind=[COMP, COLL] * 4, bytes=2**20, flops=10**9,
            group=[0, 1, 0, 1, 0, 2, 0, 2], groups=GROUPS,
            dep_begin=[0, 0, 1, 1, 2, 2, 3, 3, 4], dep=[0, 2, 4, 6],
        ),
        "step",
    )  # fmt: skip
    return tmp_path


def printed(capsys, *words):
    assert main([*words]) == 0
    return capsys.readouterr().out


def refusal(capsys, *words):
    assert main([*words]) not in (0, None)
    error = capsys.readouterr().err
    assert error.startswith("tacos: ")
    assert "Traceback" not in error
    return error


def test_info(step, capsys):
    facts = json.loads(printed(capsys, "info", "step", "--json"))
    assert (facts["ranks"], facts["nodes"], facts["computations"]) == (4, 8, 4)
    assert facts["flops"] == 4 * 10**9
    assert facts["collectives"] == [
        {"kind": "all_reduce", "ranks": 2, "groups": 2, "nodes": 4, "bytes": 4 * 2**20}
    ]
    text = printed(capsys, "info", "step.0.et")
    assert "all-reduce of 2 ranks" in text
    assert "4 nodes in 2 groups, 1 MiB each" in text


def test_verify(step, capsys):
    assert printed(capsys, "verify", "step") == "ok: 8 nodes of 4 ranks\n"
    (step / "other.json").write_text('{"1": [0, 1], "2": [2]}')
    assert "group 2 does not hold this rank" in refusal(
        capsys, "verify", "step", "--groups", "other.json"
    )
    tacos.workload.save(from_nodes(2, rank=[0, 1], kind=[COLL, COMP], bytes=8), "lone")
    assert "missing: coll node 0 of rank 0" in _failed(capsys, "verify", "lone")
    assert main(["verify", "lone", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["violations"][0]["rule"] == "missing"


def _failed(capsys, *words):
    assert main([*words]) == 1
    return capsys.readouterr().err


def test_sim(step, capsys):
    facts = json.loads(
        printed(capsys, "sim", "step", "--topology", "ring:4@50GiB/s,500ns", "--json")
    )
    assert facts["simulator"] == "astra-sim-aware"
    assert len(facts["finish_ns"]) == len(facts["exposed_ns"]) == 4
    assert facts["compute_ns"] == [1] * 4
    assert main(["sim", "step", "-o", "line.csv"]) == 0
    shown = capsys.readouterr()
    assert "assuming" not in shown.out
    text = shown.err
    assert "assuming a fully connected network of 4 NPUs; set it with --topology" in text
    assert "assuming ASTRA-sim's rules (--profile astra-sim-aware)" in text
    assert "4 computations say what they compute but not how long it takes" in text
    assert (step / "line.csv").read_text().count("\n") == 9


def test_sim_with_a_system(step, capsys):
    keys = {"local-mem-bw": 100, "peak-perf": 1, "roofline-enabled": 1, "preferred-dataset-splits": 1,
            "all-reduce-implementation": ["ring"]}  # fmt: skip
    (step / "s.json").write_text(json.dumps(keys))
    words = ["sim", "step", "--system", "s.json", "--topology", "ring:4", "--json"]
    facts = json.loads(printed(capsys, *words))
    assert facts["compute_ns"] == [1_000_000] * 4
    slower = json.loads(printed(capsys, *words, "--rendezvous-protocol=true"))
    assert slower["finish_ns"][0] > facts["finish_ns"][0]


def test_messages_run_as_a_workload_with_a_system(tmp_path, monkeypatch, capsys):
    """Two sends at once: together as one algorithm, one after the other as a workload."""
    monkeypatch.chdir(tmp_path)
    nodes = {"rank": [0, 0, 1, 2], "kind": [SEND, SEND, RECV, RECV], "peer": [1, 2, 0, 0]}
    tacos.workload.save(from_nodes(3, **nodes, bytes=2**20), "m")
    (tmp_path / "s.json").write_text("{}")
    words = [
        "sim",
        "m",
        "--profile",
        "astra-sim-aware",
        "--topology",
        "fc:3@50GiB/s,500ns",
        "--json",
    ]
    alone = json.loads(printed(capsys, *words))
    assert round(alone["time_s"] * 1e9) == 20031
    facts = json.loads(printed(capsys, *words, "--system", "s.json"))
    assert facts["finish_ns"] == [40062, 20031, 40062]


def test_view(step, capsys):
    assert "step.timeline.json" in printed(capsys, "view", "step")
    events = json.loads((step / "step.timeline.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sim", "step", "--fault", "link=0-1,begin=0s,end=1us"], "--fault is for schedules and programs"),
        (["sim", "step", "--size", "1MB"], "--size is for schedules and programs"),
        (["sim", "step", "-o", "x.svg"], "the timeline of a workload goes into .json"),
        (["sim", "step", "--memory", "m.json"], "--memory is m.json, but it needs --system"),
        (["sim", "step", "--num-queues-per-dim", "0"], "--num-queues-per-dim must be positive"),
        (["sim", "step", "--system", "no.json"], "no.json: No such file or directory"),
        (["sim", "step", "--topology", "ring:8"], "the workload has 4 ranks, but the topology has 8 NPUs"),
        (["sim", "step", "--groups", "no.json"], "no.json: No such file or directory"),
        (["sim", "step", "--dims", "4"], "dims is for text files"),
        (["info", "step", "--dims", "4,4"], "--dims must be numbers of NPUs such as 16 or 4x2x8"),
        (["info", "step", "--npu", "1"], "step holds a workload; --npu and --link need a schedule"),
        (["view", "step", "--serve"], "--serve shows schedules and programs"),
        (["view", "step", "step"], "step holds a workload, which is shown alone; omit step"),
        (["sim", "none"], "none: No such file or directory"),
    ],
)  # fmt: skip
def test_refusals(step, capsys, words, message):
    assert message in refusal(capsys, *words)


def test_a_missing_rank(step, capsys):
    (step / "step.2.et").unlink()
    assert "step.2.et: No such file or directory" in refusal(capsys, "sim", "step")
    (step / "step.2.et").write_bytes((step / "step.1.et").read_bytes()[:-3])
    assert "step.2.et: byte" in refusal(capsys, "sim", "step")


def test_what_never_finishes_is_named(step, capsys):
    nodes = {"rank": [0, 1], "kind": [COMP, RECV], "peer": [-1, 0], "bytes": 8, "flops": 1}
    tacos.workload.save(from_nodes(2, **nodes), "stuck")
    assert "never finishes: no partner comes for recv node 0 of rank 1" in refusal(
        capsys, "sim", "stuck"
    )
