"""tacos train: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json

import pytest

from tacos.cli import main
from tests.support.viewer_pages import timelines

pytestmark = pytest.mark.unsanitized

JOB = ["train", "llama3-8b", "dgx-h100-plain:2", "--tp", "2", "--batch", "32"]


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
    call = [
        "train",
        "sweep",
        "llama3-8b",
        "dgx-h100-plain:2",
        "tp=2,4,8",
        "pp=1,2",
        "--batch",
        "32",
    ]
    call += ["--collectives", "nccl", "--csv", str(table), "-o", str(picture)]
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


def test_a_ranking_fits_into_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    swept = ["tp=2,4", "pp=1,2", "cp=1,2", "vp=1,2", "microbatch=1,2", "recompute=none,selective"]
    call = ["train", "sweep", "llama3-8b", "dgx-h100-plain:2", *swept, "--batch", "32"]
    assert main([*call, "--collectives", "nccl", "--top", "64"]) == 0
    table = capsys.readouterr().out.partition("parallelisms fit")[0]
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= 80
    assert "tp pp dp cp vp micro recompute" in table
    assert "exposed" in table


def test_a_degree_that_all_rows_share_is_in_the_title(capsys):
    call = ["train", "sweep", "llama3-8b", "dgx-h100-plain:2", "tp=2", "pp=1,2", "--batch", "32"]
    assert main([*call, "--collectives", "nccl"]) == 0
    title, _, rows = capsys.readouterr().out.partition("\n")
    assert title.strip() == "llama3-8b on dgx-h100-plain:2, tp 2"
    assert "pp   dp      step" in rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--tp", "3"], "does not divide the network's 16 NPUs"),
        (["--batch", "33"], "batch must be a multiple of dp · microbatch"),
        (["--pp", "8", "--vp", "8"], "must be at most the 32 layers"),
        (["--device", "h101"], "unknown device 'h101'"),
        (["--dtype", "fp4"], "dtype must be one of"),
        (["--collectives", "ncll"], "ncll"),
        (["--output", "x.doc"], "must end in .svg, .png or .pdf"),
        (["--csv", "/nowhere/x.csv"], "there is no directory"),
        (["--zero", "0", "--tp", "1"], "largest terms are"),
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep", "tp=a"], "VALUES takes whole numbers for tp; got 'a'"),
        (["sweep", "tpp=1"], "VALUES has the unknown name 'tpp'; use one of tp, pp, dp"),
        (["sweep", "tp"], "VALUES takes name=value,value such as tp=1,2,4; got 'tp'"),
        (["sweep", "overlap_tensor=1"], "VALUES takes yes or no for overlap_tensor; got '1'"),
        (["sweep"], "VALUES is missing: list what to try"),
        (["sweep", "tp=1,2", "--dp", "3"], "dp would be"),
        (["sweep", "tp=1", "--top", "0"], "--top must be a positive number; got 0"),
        (["search", "zero=a"], "VALUES takes whole numbers for zero; got 'a'"),
        (["search", "--html", "x.html"], "--html"),
        (["scaling", "--tp", "2"], "OTHERS is missing: give at least two networks"),
        (["scaling", "dgx-h100-plain:4", "--fault", "nic=3"], "--fault"),
    ],
)
def test_wrong_searches_get_a_sentence(words, message, capsys):
    command, *more = words
    call = ["train", command, "llama3-8b", "dgx-h100-plain:2", *more, "--batch", "32"]
    assert main(call) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_search_keeps_what_is_given(capsys):
    job = ["llama3-8b", "dgx-h100-plain:2", "--batch", "16", "--collectives", "nccl", "--json"]
    words = ["--pp", "1", "--cp", "1", "--vp", "1", "--recompute", "none", "--microbatch", "1"]
    assert main(["train", "search", *job, *words, "tp=2,4", "overlap_tensor=no,yes"]) == 0
    facts = json.loads(capsys.readouterr().out)
    split = [row["parallelism"] for row in facts["ranking"]]
    assert {one["tp"] for one in split} <= {2, 4}
    assert {one["zero"] for one in split} == {1, 3}  # neither listed nor given
    assert facts["tried"] == len(split) + facts["too_large"] == 2 * 2 * 2
    assert main(["train", "sweep", *job, *words, "tp=2,4", "--zero", "3"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {row["parallelism"]["zero"] for row in facts["ranking"]} == {3}


def test_unknown_models_and_networks_without_a_device(capsys):
    assert main(["train", "lama3-8b", "dgx-h100-plain:2"]) == 2
    assert "llama3-8b" in capsys.readouterr().err
    assert main(["train", "llama3-8b", "ring:16"]) == 2
    assert "--device is missing, and ring:16 does not imply one" in capsys.readouterr().err


def test_a_step_with_trouble_as_timeline_and_for_astra_sim(capsys, tmp_path):
    job = ["train", "mpt-125m", "switch:4@100GB/s", "--device", "h100", "--tp", "2", "--batch", "4"]
    files = ["--export", str(tmp_path / "step"), "--timeline", str(tmp_path / "step.csv")]
    assert main([*job, "--collectives", "ring", *files, "--json"]) == 0
    usual = json.loads(capsys.readouterr().out)["steps"]["ring"]
    assert (tmp_path / "step.system.json").exists()
    assert (tmp_path / "step.3.et").exists()
    rows = (tmp_path / "step.csv").read_text().splitlines()
    assert rows[0].startswith("rank,stream,id,kind,begin_ps,end_ps")
    for trouble in (["--straggler", "npu=3,slowdown=1.5"], ["--fault", "link=0-4,slowdown=20,both=yes"]):  # fmt: skip
        for fidelity in ("folded", "exact", "astra"):
            call = [*job, "--collectives", "ring", "--fidelity", fidelity, "--json"]
            assert main(call) == main([*call, *trouble]) == 0
            text = capsys.readouterr().out
            first, _, second = text.partition("}\n{")
            times = [
                json.loads(one)["steps"]["ring"]["time_s"] for one in (first + "}", "{" + second)
            ]
            assert times[1] > 1.01 * times[0], (trouble, fidelity)
    assert usual["time_s"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--straggler", "npu=3,late=1ms"], "--straggler takes npu and slowdown in a training step"),
        (["--straggler", "npu=99,slowdown=2"], "99"),
        (["--fault", "link=0-16,begin=1ms"], "lasts for the whole step"),
        (["--fault", "foo"], "needs link=, npu= or nic=, as in nic=3"),
        (["--jitter", "-1"], "jitter must be a number of at least 0; got -1.0"),
        (["--jitter", "nan"], "jitter must be a number of at least 0; got nan"),
        (["--timeline", "step.png"], "--timeline is step.png; the timeline of a workload goes into"),
        (["--fidelity", "fine"], "fidelity must be one of folded, exact, astra; got 'fine'"),
    ],
)  # fmt: skip
def test_wrong_trouble_is_one_sentence(words, message, capsys):
    assert main([*JOB, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_network_that_astra_sim_cannot_describe_is_refused_before_the_work(capsys, tmp_path):
    files = ["--export", str(tmp_path / "step"), "--timeline", str(tmp_path / "step.json")]
    assert main([*JOB, "--fault", "nic=1", *files]) == 2
    assert "ASTRA-sim cannot describe this dgx_h100 network" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_scaling_over_networks(capsys, tmp_path):
    networks = ["dgx-h100-plain:1", "dgx-h100-plain:2", "dgx-h100-plain:4"]
    job = ["train", "scaling", "mpt-125m", *networks]
    job += ["--batch", "64", "--collectives", "nccl,free"]
    picture, table = tmp_path / "scaling.svg", tmp_path / "scaling.csv"
    assert main([*job, "-o", str(picture), "--csv", str(table), "--json"]) == 0
    strong = json.loads(capsys.readouterr().out)["scaling"]
    assert [one["npus"] for one in strong.values()] == [8, 16, 32] * 2
    assert {one["parallelism"]["batch"] for one in strong.values()} == {64}
    times = [strong[f"nccl, dgx-h100-plain:{boxes}"]["time_s"] for boxes in (1, 2, 4)]
    assert times == sorted(times, reverse=True)
    assert "tokens per second of each NPU" in picture.read_text()
    assert len(table.read_text().splitlines()) == 7
    assert main([*job, "--weak"]) == 0
    shown = capsys.readouterr()
    assert "256" in shown.out  # sequences on 32 NPUs
    assert "100.0 %" in shown.out
    assert "assuming h100 (--device)" in shown.err
    odd = ["train", "scaling", "mpt-125m", "dgx-h100-plain:1", "dgx-h100-plain:5", "--batch", "64"]
    assert main(odd) == 2
    assert "dgx-h100-plain:5: batch must be a multiple of" in capsys.readouterr().err


def test_a_step_is_shown_over_time_in_a_page(tmp_path, capsys):
    target = tmp_path / "step.html"
    assert main([*JOB, "--collectives", "nccl", "--html", str(target), "--quiet"]) == 0
    ((facts, columns),) = timelines(target.read_text())
    assert facts["title"] == "step of llama3-8b on dgx-h100-plain:2, nccl"
    assert set(columns["span_rank"]) == set(range(16))
    assert facts["opens"]
    assert main([*JOB, "--html", str(tmp_path / "step.png")]) == 2
    assert "--html must end in .html" in capsys.readouterr().err
