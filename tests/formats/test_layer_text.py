"""Workloads by layers, from files of ASTRA-sim 1.0 and LIBRA: their dependencies, and malformed files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import tacos
from tacos.cli import main
from tacos.errors import FormatError
from tacos.simulate.astra import run
from tacos.workload import COLL, COMP, load

pytestmark = pytest.mark.unsanitized

LAYER = "{} -1 {} {} {} {} {} {} {} {} {} {}"


def layer(name, forward=(1, "NONE", 0), ig=(2, "NONE", 0), wg=(4, "NONE", 0), update=0):
    return LAYER.format(name, *forward, *ig, *wg, update)


def put(folder, *lines, name="w.txt"):
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def graph(workload):
    """Names of rank 0's nodes, with a star for collectives, and what each waits for."""
    label = []
    for row in range(workload.nodes):
        if workload.rank[row]:
            break
        star = "*" if workload.kind[row] == COLL else ""
        label.append(workload.names[workload.name[row]] + star)
    begin = workload.dep_begin.tolist()
    return {
        name: {label[d] for d in workload.dep[begin[i] : begin[i + 1]]}
        for i, name in enumerate(label)
    }


SUM = (4, "ALLREDUCE", 64)


def test_data_parallel(tmp_path):
    """Gradients are computed from the last layer to the first; their sums overlap with this and block the next pass."""
    file = put(tmp_path, "DATA", "2", layer("a", wg=SUM, update=9), layer("b", wg=SUM))
    once = graph(load(file, dims=[4]))
    assert once == {
        "a forward": set(),
        "b forward": {"a forward"},
        "b weight grad": {"b forward"},
        "b weight grad*": {"b weight grad"},
        "b input grad": {"b weight grad"},
        "a weight grad": {"b input grad"},
        "a weight grad*": {"a weight grad"},
        "a update": {"a weight grad*"},
    }
    workload = load(file, dims=[4], passes=2)
    assert workload.nodes == 2 * 4 * len(once)
    second = [i for i in range(16) if workload.names[workload.name[i]] == "a forward"][1]
    waits = workload.dep[workload.dep_begin[second] : workload.dep_begin[second + 1]]
    assert sorted(workload.names[workload.name[d]] for d in waits) == ["a update", "a weight grad"]
    assert workload.duration_ps[:3].tolist() == [1000, 1000, 4000]
    assert (workload.group[workload.kind == COLL] == 0).all()


def test_model_parallel_blocks_forward(tmp_path):
    steps = {"forward": (1, "ALLGATHER", 8), "ig": (2, "ALLREDUCE", 8)}
    file = put(tmp_path, "MODEL", "2", layer("a", **steps), layer("b", **steps, wg=SUM))
    assert graph(load(file, dims=[2, 2])) == {
        "a forward": set(),
        "a forward*": {"a forward"},
        "b forward": {"a forward*"},
        "b forward*": {"b forward"},
        "b input grad": {"b forward*"},
        "b input grad*": {"b input grad"},
        "b weight grad": {"b input grad"},
        "a input grad": {"b weight grad", "b input grad*"},
        "a weight grad": {"a input grad"},
    }


@pytest.mark.parametrize(
    ("parallelism", "model", "data"),
    [
        # Of 2 x 4 NPUs, dimension 0 joins consecutive ranks.
        ("HYBRID_DATA_MODEL", [0, 1], [0, 2, 4, 6]),
        ("HYBRID_MODEL_DATA", [0, 2, 4, 6], [0, 1]),
        ("HYBRID_TRANSFORMER model_parallel_NPU_group: 4", [0, 1, 2, 3], [0, 4]),
    ],
)
def test_hybrid_parallelism_uses_dimensions(parallelism, model, data, tmp_path):
    file = put(tmp_path, parallelism, "1",
               layer("a", forward=(1, "ALLGATHER", 8), ig=(2, "alltoall", 8), wg=SUM))  # fmt: skip
    workload = load(file, dims=[2, 4])
    members = dict(workload.groups)
    used = [members[g] for g in workload.group[:6].tolist() if g]
    assert used == [model, model, data]
    assert sum(len(ranks) for ranks in members.values()) == 16
    assert tacos.verify(workload).ok


def test_layers_may_have_a_parallelism_of_their_own(tmp_path):
    file = put(tmp_path, "HYBRID_CUSTOMIZED", "2", layer("a", wg=SUM) + " HYBRID_DATA_MODEL",
               layer("b", wg=SUM) + " DATA")  # fmt: skip
    workload = load(file, dims=[2, 2])
    sizes = [
        len(dict(workload.groups).get(g, range(4))) for g in workload.group[workload.kind == COLL]
    ]
    assert sizes[:2] == [4, 2]


def test_dlrm_exchanges_embeddings(tmp_path):
    """Layer 0 is the embedding: its exchanges overlap with the bottom layers, forward and backward."""
    exchange = {"forward": (1, "ALLTOALL", 8), "ig": (2, "ALLTOALL", 8)}
    file = put(tmp_path, "HYBRID_DLRM 1", "3", layer("emb", **exchange), layer("bottom", wg=SUM),
               layer("top", wg=SUM))  # fmt: skip
    found = graph(load(file, dims=[4]))
    assert found["bottom forward"] == {"emb forward"}
    assert found["top forward"] == {"bottom forward", "emb forward*"}
    assert found["emb input grad*"] == {"top input grad"}
    assert found["bottom weight grad"] == {"top input grad"}


def test_recomputes_from_checkpoints(tmp_path):
    header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 checkpoints: 1 0 checkpoint_initiates: 1 2"
    file = put(tmp_path, header, "3", *(layer(name) for name in "abc"))
    found = graph(load(file, dims=[4]))
    assert [name for name in found if "again" in name] == ["a again", "b again"]
    assert found["a again"] == {"c forward"}
    assert found["c input grad"] == {"b again"}


def test_micro_benchmarks_and_inference(tmp_path):
    micro = load(put(tmp_path, "MICRO", "2", layer("a", wg=SUM), layer("b", wg=SUM)), dims=[4])
    assert graph(micro) == {"a*": set(), "b*": set()}
    file = put(
        tmp_path, "DISTRIBUTED_INFERENCE", "1", layer("a", forward=(1, "ALLREDUCE", 8), wg=SUM)
    )
    assert graph(load(file, dims=[4])) == {"a forward": set(), "a forward*": {"a forward"}}


def test_runs_on_a_network_by_hand(tmp_path, capsys):
    """13 + 32 us of computing, then a ring all-reduce of 1 MiB by four, which takes 33,829 ns."""
    file = put(
        tmp_path,
        "DATA",
        "1",
        layer("a", forward=(13_000, "NONE", 0), wg=(32_000, "ALLREDUCE", 2**20)),
    )
    network = tacos.topology.ring(4, bandwidth="50GiB/s", latency="500ns")
    result = run(load(file, dims=[4]), network, aware=True, as_custom=False)
    assert result.npu_finish_ns.tolist() == [45_000 + 33_829] * 4
    assert main(["sim", str(file), "--topology", "ring:4@50GiB/s,500ns", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["finish_ns"] == [78_829] * 4
    assert main(["convert", str(file), str(tmp_path / "out"), "--dims", "4", "--quiet"]) == 0
    assert load(tmp_path / "out") == load(file, dims=[4])


def test_libra_does_not_overlap(tmp_path):
    put(
        tmp_path,
        "Forward: [2, -1]",
        "InputGrad: [-1, -1]",
        "WeightGrad: [-1, 3]",
        name="communicator.yml",
    )
    file = put(tmp_path, layer("a", (1, "ALLGATHER", 8), (2, "ALLREDUCE", 8), SUM, 99), layer("b"))
    workload = load(file)
    assert workload.npus == 6
    assert graph(workload) == {
        "a forward": set(),
        "a forward*": {"a forward"},
        "b forward": {"a forward*"},
        "b input grad": {"b forward"},
        "b weight grad": {"b input grad"},
        "a input grad": {"b weight grad"},
        "a weight grad": {"a input grad"},
        "a weight grad*": {"a weight grad"},
    }
    assert [len(ranks) for _, ranks in workload.groups] == [2, 2, 2, 3, 3]
    everyone = put(tmp_path, "Forward: [2]", "InputGrad: [2]", "WeightGrad: [2]", name="all.yml")
    assert load(file, groups=everyone).groups == []


DATA = Path(os.environ.get("TACOS_TEST_DATA", "missing"), "astra-golden", "libra_small")


@pytest.mark.skipif(not DATA.is_dir(), reason="TACOS_TEST_DATA has no astra-golden")
def test_reads_libra_s_own_file():
    workload = load(DATA / "workload.txt")
    assert workload.npus == 64
    comps = (workload.kind == COMP) & (workload.rank == 0)
    # The sum of the file's compute times.
    assert workload.duration_ps[comps].sum() == 2_601_310_000
    assert sorted({len(ranks) for _, ranks in workload.groups}) == [8, 16]
    assert tacos.verify(workload).ok


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["DATA", "1"], "there are 0 layers, but line 2 says 1"),
        (["DATA", "x"], "line 2: the number of layers is 'x'; it must be a whole number"),
        (["DATA", "1", "a -1 1 NONE"], "line 3: there are 4 columns; a layer has 12"),
        (["DATA", "1", layer("a", (1, "SUM", 0))], "line 3, column 3: the collective is 'SUM'; it must"),
        (["DATA", "1", layer("a", (-1, "NONE", 0))], "line 3, column 3: the time is '-1'"),
        (["DATA", "1", layer("a", ig=(1, "NONE", "?"))], "line 3, column 6: the size is '?'"),
        (["DATA", "1", layer("a", (0, "NONE", 0), (0, "NONE", 0), (0, "NONE", 0))], "no layer computes"),
        (["HYBRID_DLRM 9", "1", layer("a")], "line 1: the last bottom layer is '9'"),
        (["HYBRID_TRANSFORMER x: 3", "1", layer("a")], "model_parallel_NPU_group is 0, which does not"),
        (["HYBRID_CUSTOMIZED", "1", layer("a", wg=SUM) + " ODD"], "unknown parallelism 'ODD'"),
        (["HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 checkpoint_initiates: 1 0", "1",
          layer("a")], "layer 0 is recomputed, but there is no checkpoint"),
    ],
)  # fmt: skip
def test_refuses_files(lines, message, tmp_path):
    with pytest.raises(FormatError, match=r"w.txt: ") as error:
        load(put(tmp_path, *lines), dims=[4])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_refuses_arguments(tmp_path):
    file = put(tmp_path, "DATA", "1", layer("a"))
    with pytest.raises(FormatError, match="does not say how many NPUs there are; give dims"):
        load(file)
    with pytest.raises(FormatError, match=r"dims is \[0\]"):
        load(file, dims=[0])
    with pytest.raises(ValueError, match='the format astra-layers has no option "groups"'):
        load(file, dims=[4], groups="g.json")
    tacos.save(tacos.topology.ring(4), tmp_path / "ring.yaml")
    with pytest.raises(FormatError, match=r"ring.yaml is not a workload; its format is yaml"):
        load(tmp_path / "ring.yaml")
    with pytest.raises(ValueError, match="dims is for text files"):
        load(tmp_path / "missing", dims=[4])
    put(tmp_path, "Forward: [2, 3]", "InputGrad: [2]", "WeightGrad: [2]", name="communicator.yml")
    other = put(tmp_path, layer("a"), name="l.txt")
    with pytest.raises(
        FormatError, match=r"communicator.yml: InputGrad has 1 dimensions, but Forward has 2"
    ):
        load(other)
    put(tmp_path, "Forward: [2]", "InputGrad: [3]", "WeightGrad: [2]", name="communicator.yml")
    with pytest.raises(FormatError, match=r"InputGrad\[0\] is 3, but another communicator has 2"):
        load(other)
    put(tmp_path, "Forward: [-1]", "InputGrad: [-1]", "WeightGrad: [-1]", name="communicator.yml")
    with pytest.raises(FormatError, match="no communicator says how many NPUs dimension 0 has"):
        load(other)
    with pytest.raises(
        FormatError, match=r"the communicators are for \[0\] NPUs, but the network has \[2, 2\]"
    ):
        load(other, dims=[2, 2])
