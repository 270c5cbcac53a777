"""Job files, LIBRA's files, constraints as text, and the command."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import tacos
from tacos.cli import main
from tacos.design import (
    Call,
    Compute,
    Group,
    Ranks,
    TrainingJob,
    dimensions,
    libra,
    load_job,
    prices,
)
from tacos.design.constraints import limits
from tacos.errors import FormatError

pytestmark = pytest.mark.unsanitized

WORKLOAD = "embed -1 1000 ALLTOALL 4096 300 NONE 0 10 ALLREDUCE 8192 10\nffn -1 40 AllGather 64 80 NONE 0 40 NONE 0 10\n"
COMMUNICATOR = "Forward: [4, -1]\nInputGrad: [4, -1]\nWeightGrad: [-1, 2]\n"
NETWORK = "Topology: [Ring, Switch]\nNpusCount: [4, 2]\nCostDimension: [InterNode, InterPod]\n"
COST = "InterNode: {Link: 4}\nInterPod: {Link: 7.8, Switch: 18, Nic: 31.6}\n"
JOB = """tacos: 1
name: small
npus: 8
steps:
  - {compute: 20us}
  - {collective: all-reduce, size: 8MB, group: 4, count: 2}
  - {collective: all_gather, size: 1MB, group: {size: 2, stride: 4}, background: true}
  - {collective: all-to-all, size: 4MB, group: [0, 1, 2, 3]}
  - {collective: broadcast, size: 1MB}
"""


@pytest.fixture
def folder(tmp_path):
    for name, text in {
        "workload.txt": WORKLOAD,
        "communicator.yml": COMMUNICATOR,
        "network.yml": NETWORK,
        "cost.yml": COST,
        "job.yaml": JOB,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_job_file(folder):
    found = load_job(folder / "job.yaml")
    assert found == TrainingJob(
        (
            Compute(20e-6),
            Call("all-reduce", 8_000_000, Group(4), 2),
            Call("all-gather", 1_000_000, Group(2, 4), 1, True),
            Call("all-to-all", 4_000_000, Ranks((0, 1, 2, 3))),
            Call("broadcast", 1_000_000),
        ),
        "small",
        8,
    )
    moved = [
        tacos.design.jobs.messages(call, dimensions("ring:4*switch:2")).tolist()
        for call in found.calls
    ]
    assert moved == [[12e6, 0], [0, 0.5e6], [3e6, 0], [1e6, 1e6]]


BAD_JOBS = {
    "steps: []": "steps is empty; a job computes or communicates something",
    "npus: 8": "a job needs the field steps",
    "steps: [{size: 1MB}]": "steps[0] must have either compute or collective",
    "steps: [{compute: 1ms, collective: reduce}]": "steps[0] must have either compute or collective",
    "steps: [{compute: 5}]": 'steps[0].compute 5 needs a unit: "5ns"',
    "steps: [{collective: all-reduce}]": "steps[0] has no size",
    "steps: [{collective: allreduce, size: 1MB}]": "steps[0].collective is 'allreduce'; did you mean all-reduce?",
    "steps: [{collective: all-reduce, size: 1M}]": "steps[0].size '1M' is not understood; did you mean \"1MB\"?",
    "steps: [{collective: reduce, size: 1MB, group: 0}]": "steps[0].group: size of a group must be a positive whole number; got 0",
    "steps: [{collective: reduce, size: 1MB, group: x}]": "steps[0].group is 'x'; use a number of ranks",
    "steps: [{collective: reduce, size: 1MB, group: [1, 1]}]": "steps[0].group: a rank appears twice",
    "steps: [{collective: reduce, size: 1MB, count: 0}]": "steps[0].count: expected float > 0",
    "steps: [{collective: reduce, size: 1MB, often: 2}]": "steps[0]: object contains unknown field often",
    "tacos: 2\nsteps: [{compute: 1ms}]": "tacos is 2; this program understands version 1",
}


@pytest.mark.parametrize("text", BAD_JOBS)
def test_bad_jobs(text, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(FormatError) as caught:
        load_job(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert BAD_JOBS[text] in str(caught.value)


def test_files_of_libra(folder):
    found = libra(folder / "workload.txt", folder / "communicator.yml")
    assert found.compute_s == pytest.approx((1000 + 300 + 10 + 40 + 80 + 40) * 1e-9)
    assert found.calls == (
        Call("all-to-all", 4096, (4, 1)),
        Call("all-gather", 256, (4, 1)),
        Call("all-reduce", 8192, (1, 2), 1, True),
    )
    dims = dimensions(folder / "network.yml")
    assert [(one.kind, one.size, one.tier) for one in dims] == [
        ("ring", 4, "InterNode"),
        ("switch", 2, "InterPod"),
    ]
    assert (prices(dims, folder / "cost.yml") * 1e9).tolist() == pytest.approx([32, 8 * 57.4])


BAD_LIBRA = {
    "columns": (
        "workload.txt",
        "a -1 1 NONE 0\n",
        "line 1 has 5 columns; LIBRA's workloads have 12",
    ),
    "type": (
        "workload.txt",
        WORKLOAD.replace("ALLTOALL", "A2A"),
        "line 1: the collective of Forward is 'A2A'; use one of NONE",
    ),
    "bytes": (
        "workload.txt",
        WORKLOAD.replace("4096", "4k"),
        "line 1: the size of Forward is '4k'; it must be a whole number",
    ),
    "empty": ("workload.txt", "", "the file is empty"),
    "fields": (
        "communicator.yml",
        "Forward: [1, 2]\n",
        "the fields must be Forward, InputGrad, WeightGrad",
    ),
    "list": (
        "communicator.yml",
        COMMUNICATOR.replace("[-1, 2]", "4"),
        "WeightGrad is 4; it must be a list of whole numbers",
    ),
    "lengths": (
        "communicator.yml",
        COMMUNICATOR.replace("[-1, 2]", "[2]"),
        "WeightGrad has 1 entries, Forward 2",
    ),
    "kind": (
        "network.yml",
        NETWORK.replace("Ring", "Star"),
        "Topology[0] is 'Star'; use Ring, FullyConnected or Switch",
    ),
    "sizes": (
        "network.yml",
        NETWORK.replace("[4, 2]", "[4, 0]"),
        "NpusCount[1] is 0; it must be a positive number",
    ),
    "count": (
        "network.yml",
        NETWORK.replace("[4, 2]", "[4]"),
        "Topology has 2 entries, NpusCount 1 and CostDimension 2",
    ),
    "missing": ("network.yml", "Topology: [Ring]\n", "the field NpusCount is missing"),
    "more": (
        "network.yml",
        NETWORK + "Speed: 3\n",
        "there is no field 'Speed'; the fields are Topology, NpusCount, CostDimension",
    ),
    "price": (
        "cost.yml",
        COST.replace("Link: 4", "Link: cheap"),
        "InterNode.Link is 'cheap'; it must be dollars per GB/s",
    ),
    "link": ("cost.yml", COST.replace("Link: 4", "Switch: 4"), "InterNode has no price Link"),
    "unknown price": (
        "cost.yml",
        COST.replace("Nic", "Nics"),
        "InterPod has a price 'nics'; the prices are Link, Switch and Nic",
    ),
    "no switch": (
        "cost.yml",
        COST.replace("Switch: 18, ", ""),
        "no price of a switch for InterPod, where d1 is a switch",
    ),
    "tier": (
        "cost.yml",
        COST.replace("InterPod", "InterPods"),
        "no prices for InterPod; did you mean InterPods?",
    ),
    "prices": ("cost.yml", "[1, 2]", "the file must have prices for each tier"),
}


@pytest.mark.parametrize("case", BAD_LIBRA)
def test_bad_files_of_libra(case, folder, capsys):
    name, text, message = BAD_LIBRA[case]
    (folder / name).write_text(text)
    words = [
        "design",
        str(folder / "network.yml"),
        "--libra",
        str(folder / "workload.txt"),
        str(folder / "communicator.yml"),
    ]
    assert main([*words, "--cost", str(folder / "cost.yml"), "--budget", "100GB/s"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_command_writes_what_it_found(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    words = [
        "design",
        "ring:4*switch:2",
        "--job",
        "job.yaml",
        "--budget",
        "100GB/s",
        "--constraint",
        "d0 >= 2 * d1",
    ]
    assert main([*words, "--csv", "d.csv", "-o", "d.svg", "--save", "net.yaml"]) == 0
    shown = capsys.readouterr().out
    assert "InterPod" in shown
    assert "gap" in shown
    rows = [*csv.DictReader((folder / "d.csv").read_text().splitlines())]
    assert [row["dimension"] for row in rows] == ["d0", "d1"]
    assert sum(float(row["bandwidth_Bps"]) for row in rows) == pytest.approx(100e9)
    assert (folder / "d.svg").read_text().startswith("<svg")
    assert tacos.load(folder / "net.yaml").npus == 8
    assert main([*words, "--objective", "time*cost", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gap"] < 1e-9
    assert found["lower_bound"] <= found["time_s"] * found["cost"] * (1 + 1e-12)


def test_the_command_searches_shapes_and_upgrades(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "job.yaml").write_text(JOB.replace("[0, 1, 2, 3]", "4"))
    words = ["design", "shapes", "8", "--job", "job.yaml", "--budget", "$50k", "--points", "2"]
    assert main([*words, "--csv", "f.csv", "-o", "f.svg"]) == 0
    assert "The best of" in capsys.readouterr().out
    assert len([*csv.DictReader((folder / "f.csv").read_text().splitlines())]) == 2
    assert main([*words, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2
    words = [
        "design",
        "upgrade",
        "ring:8",
        "--job",
        "job.yaml",
        "--spend",
        "20%",
        "--price",
        "npu-npu=2",
    ]
    assert main([*words, "--csv", "u.csv", "-o", "u.svg", "--save", "up.yaml"]) == 0
    assert "times as fast" in capsys.readouterr().out
    assert tacos.load(folder / "up.yaml").link_bandwidth_Bps[0] == pytest.approx(60e9, rel=1e-6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ring:8"], "--job is missing"),
        (["--job", "job.yaml"], "DIMS is missing. See tacos design --help."),
        (
            ["shapes", "8", "--job", "job.yaml"],
            "--budget is missing. See tacos design shapes --help.",
        ),
        (["shapes", "8", "--budget", "$1M"], "--job is missing"),
        (["shapes", "8", "--budget", "$1M", "--constraint", "d0 > d1"], "--constraint"),
        (["upgrade", "ring:8", "--job", "a", "--job", "b"], "an upgrade is for one job; got 2"),
        (["ring:8", "--job", "none.yaml", "--budget", "1GB/s"], "none.yaml"),
        (["ring:8", "--job", "job.yaml", "--budget", "0GB/s"], "budget '0GB/s' must be positive"),
        (
            ["mesh:4x2", "--job", "job.yaml", "--budget", "1GB/s"],
            "a dimension of kind 'line'; use ring, clique (fc) or switch",
        ),
        (
            ["ring:8", "--job", "job.yaml", "--budget", "1GB/s", "--csv", "no/x.csv"],
            "there is no directory no",
        ),
        (
            ["upgrade", "ring:8", "--job", "job.yaml", "--price", "npu"],
            "--price must be PATTERN=DOLLARS",
        ),
    ],
)
def test_bad_calls(words, message, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["design", *words]) == 2
    assert message in capsys.readouterr().err


def test_constraints_as_people_write_them():
    network = dimensions("ring:4*switch:2")
    found = limits(
        [
            "d0>=d1",
            "2 d0 - d1 / 2 <= 1.5 * 100GB/s",
            "d0 == d1 == 5GB/s",
            "cost <= $2M",
            "total >= 0.5Tb/s",
            "-d0 <= 0",
        ],
        network,
        np.array([2e-9, 5e-9]),
    )
    assert found.rows.tolist() == [
        [1, -1],
        [2, -0.5],
        [1, -1],
        [0, 1],
        [2e-9, 5e-9],
        [1, 1],
        [-1, 0],
    ]
    assert found.lower.tolist() == [0, -np.inf, 0, 5e9, -np.inf, 62.5e9, -np.inf]
    assert found.upper.tolist() == [np.inf, 150e9, 0, 5e9, 2e6, np.inf, 0]
