"""tacos train: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json

import pytest

from tacos.cli import main
from tests.support.viewer_pages import timelines

JOB = ["train", "llama3-8b", "dgx-h100:2", "--tp", "2", "--batch", "32"]


def test_a_step_with_several_collectives_side_by_side(capsys):
    assert main([*JOB, "--collectives", "nccl,free"]) == 0
    shown = capsys.readouterr()
    assert "tp all-gather" in shown.out
    assert "waits for communication" in shown.out
    assert "assuming h100 (--device)" in shown.err


def test_json_has_all_figures_and_the_parts_add_up(capsys):
    assert main([*JOB, "--collectives", "nccl,free", "--what-if", "nic=2x", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts["steps"]) == ["nccl", "free", "nccl, nic=2x"]
    for one in facts["steps"].values():
        parts = one["compute_s"] + one["exposed_s"] + one["bubble_s"] + one["idle_s"]
        assert parts == pytest.approx(one["time_s"], rel=1e-9)
    assert facts["steps"]["free"]["exposed_s"] == 0
    assert facts["gain"]["nccl"] == 1
    assert facts["gain"]["free"] >= facts["gain"]["nccl, nic=2x"] >= 1


def test_a_sweep_is_ranked(capsys, tmp_path):
    table, picture = tmp_path / "steps.csv", tmp_path / "steps.svg"
    call = ["train", "llama3-8b", "dgx-h100:2", "--batch", "32", "--sweep", "tp=2,4,8", "pp=1,2"]
    call += ["--collectives", "nccl", "--csv", str(table), "--chart", str(picture)]
    assert main([*call, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    times = [row["time_s"] for row in facts["ranking"]]
    assert facts["tried"] == 6
    assert times == sorted(times)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["time_s"]) for row in rows] == times
    assert {row["parallelism.tp"] for row in rows} <= {"2", "4", "8"}
    assert "compute" in picture.read_text()
    assert main([*call]) == 0
    assert "of 6 parallelisms fit into memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--tp", "3"], "does not divide the network's 16 NPUs"),
        (["--batch", "33"], "batch must be a multiple of dp · microbatch"),
        (["--pp", "8", "--vp", "8"], "must be at most the 32 layers"),
        (["--device", "h101"], "unknown device 'h101'"),
        (["--dtype", "fp4"], "dtype must be one of"),
        (["--collectives", "ncll"], "ncll"),
        (["--sweep", "tp=a"], "--sweep tp takes whole numbers; got 'a'"),
        (["--sweep", "tpp=1"], "--sweep takes name=value,value such as tp=1,2,4; got 'tpp=1'"),
        (["--chart", "x.doc"], "must end in .svg or .png"),
        (["--csv", "/nowhere/x.csv"], "there is no directory"),
        (["--zero", "0", "--tp", "1"], "largest terms are"),
        (["--top", "0"], "--top must be a positive number; got 0"),
    ],
)
def test_wrong_calls_get_a_sentence(change, message, capsys):
    words = [*JOB]
    for name, value in zip(change[::2], change[1::2], strict=True):
        if name in words:
            words[words.index(name) + 1] = value
        else:
            words += [name, value]
    assert main([*words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_unknown_models_and_networks_without_a_device(capsys):
    assert main(["train", "lama3-8b", "dgx-h100:2"]) == 2
    assert "llama3-8b" in capsys.readouterr().err
    assert main(["train", "llama3-8b", "ring:16"]) == 2
    assert "--device is missing: ring:16 does not say one" in capsys.readouterr().err


def test_a_step_is_shown_over_time_in_a_page(tmp_path, capsys):
    target = tmp_path / "step.html"
    assert main([*JOB, "--collectives", "nccl", "--html", str(target), "--quiet"]) == 0
    ((facts, columns),) = timelines(target.read_text())
    assert facts["title"] == "step of llama3-8b on dgx-h100:2, nccl"
    assert set(columns["span_rank"]) == set(range(16))
    assert facts["opens"]
    assert main([*JOB, "--html", str(tmp_path / "step.png")]) == 2
    assert "--html must end in .html" in capsys.readouterr().err
