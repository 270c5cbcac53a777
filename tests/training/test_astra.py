"""Steps under ASTRA-sim's rules, and the files that are written for ASTRA-sim."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest

import tacos
from tacos import training
from tacos.cli import main
from tacos.formats import astra_network
from tacos.training.astra import AstraJob
from tacos.workload import COLL, COMP

US = 10**6
SWITCH = tacos.topology.switch(8, bandwidth="100GiB/s", latency="1us")


def small(**shape):
    usual = {
        "layers": 4,
        "hidden": 1024,
        "heads": 16,
        "ffn": 4096,
        "vocabulary": 32000,
        "sequence": 1024,
    }
    return training.Transformer(name="small", **usual | shape)


SPLITS = [
    training.Parallelism(tp=2, pp=2, dp=2, batch=8, zero=1, overlap_gradients=True, overlap_parameters=True),
    training.Parallelism(tp=2, pp=2, cp=2, vp=2, batch=4, sequence_parallel=True),
    training.Parallelism(tp=4, dp=2, batch=8, zero=3, recompute="full", sequence_parallel=True, overlap_tensor=True),
]  # fmt: skip


def step(split, network=SWITCH, **how):
    return training.step(small(), split, network, **{"collectives": "ring"} | how)


def test_a_step_by_hand():
    """Two ranks compute and sum in turn. The ring cuts 2 MiB into 8 messages of 256 KiB, which keep the link busy: all but the last take
    floor(256 KiB / 100 GiB/s) = 2441 ns of it, and the last one arrives after floor(1 us + 2441.4 ns)."""
    pair = tacos.topology.fully_connected(2, bandwidth="100GiB/s", latency="1us")
    found = step(training.Parallelism(tp=2, batch=1), pair, fidelity="astra")
    w = found.workload
    sums = (w.kind == COLL) & (w.rank == 0)
    assert set(w.bytes[sums].tolist()) == {2**21}
    computed = AstraJob.of(found).workload.duration_ps[w.rank == 0].sum() // 1000
    assert round(found.time_s * 1e9) == computed + int(sums.sum()) * (7 * 2441 + 3441)


@pytest.mark.parametrize("split", SPLITS)
def test_what_astra_sim_asks_of_a_workload(split):
    found = step(split)
    job, w = AstraJob.of(found), found.workload
    made = job.workload
    assert tacos.verify(made).ok
    # A node's id stands for one algorithm on all ranks, and each group has one algorithm.
    of_group = defaultdict(set)
    for row in np.flatnonzero(made.kind == COLL).tolist():
        name = job.chosen[int(made.id[row])]
        assert name == f"{w.names[w.name[row]].replace(' ', '-')}-{w.bytes[row]}"
        of_group[int(made.group[row])].add(name)
    assert set(map(len, of_group.values())) == {1}
    members = dict(made.groups)
    assert all(ranks == sorted(ranks) for ranks in members.values())
    # Computations are whole microseconds, and no rank computes more or less.
    rows = made.kind == COMP
    assert not (made.duration_ps[rows] % US).any()
    before, after = (np.bincount(one.rank, one.duration_ps) for one in (w, made))
    assert np.abs(before - after).max() <= US // 2
    assert np.abs(w.duration_ps[rows] - made.duration_ps[rows]).max() <= US
    # Tags of messages between stages differ from those of all algorithms.
    messages = made.peer >= 0
    most = max(int(nodes.workload.tag.max()) for nodes, _ in job.algorithms.values())
    assert not messages.any() or most < made.tag[messages].min() <= made.tag.max() < 500_000_000


@pytest.mark.parametrize("split", SPLITS)
def test_what_is_written_runs_as_the_step_does(split, tmp_path, capsys):
    found = step(split, fidelity="astra")
    assert found.fidelity == "astra"
    assert sum(found.parts.values()) == pytest.approx(found.time_s, rel=1e-9)
    prefix = f"{tmp_path}/step"
    assert training.export(found, prefix) == []
    assert main(["info", prefix, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == found.workload.nodes
    assert main(["verify", prefix]) == 0
    for file in tmp_path.glob("step.*-*.0.et"):  # every algorithm does what its name says
        assert main(["verify", str(file)]) == 0
        assert tacos.load(file).collective.parts[0].kind.replace("_", "-") in file.name
    capsys.readouterr()
    call = ["sim", prefix, "--profile", "astra-sim-aware", "--system", f"{prefix}.system.json"]
    call += [
        "--topology",
        f"{prefix}.network.yml",
        "--groups",
        f"{prefix}.json",
        "--memory",
        f"{prefix}.memory.json",
    ]
    assert main([*call, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert max(facts["finish_ns"]) == round(found.time_s * 1e9)
    assert len(facts["exposed_ns"]) == 8


def test_boxes_with_one_fabric_become_two_dimensions(tmp_path):
    boxes = tacos.topology.dgx_h100(2, nvls=False)
    found = step(training.Parallelism(tp=8, dp=2, batch=2), boxes)
    said = training.export(found, tmp_path / "step")
    assert len(said) == 2
    assert "same place in all boxes" in said[0]
    assert "congestion-unaware" in said[1]
    read = astra_network.read(tmp_path / "step.network.yml")
    assert read.dims == boxes.dims
    for name in ("link_bandwidth_Bps", "link_latency_ps"):
        assert sorted(set(getattr(read, name).tolist())) == sorted(
            set(getattr(boxes, name).tolist())
        )


def test_a_step_that_needs_many_open_files_says_so(tmp_path):
    """ASTRA-sim opens a file for each collective of each rank and closes none before its end."""
    found = step(training.Parallelism(tp=8, batch=16))
    calls = int(np.count_nonzero(found.workload.kind == COLL))
    assert calls > 1000
    (said,) = training.export(found, tmp_path / "step")
    assert said.endswith(f"ulimit -n {calls + 8 + 100}")


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    mesh = tacos.topology.mesh(2, 4, bandwidth="100GB/s")
    with pytest.raises(
        ValueError,
        match=r"^ASTRA-sim cannot describe this mesh network .*; export a step on a product of rings",
    ):
        training.export(step(SPLITS[0], mesh), tmp_path / "step")
    broken = training.disturbed(tacos.topology.dgx_h100(2, nvls=False), ["nic=1"])
    with pytest.raises(ValueError, match=r"^ASTRA-sim cannot describe this dgx_h100 network"):
        training.export(step(training.Parallelism(tp=8, dp=2, batch=2), broken), tmp_path / "step")
    with pytest.raises(ValueError, match=r"^collectives is 'free', but ASTRA-sim needs algorithms"):
        training.export(step(SPLITS[0], collectives="free"), tmp_path / "step")
    (tmp_path / "step.8.et").write_bytes(b"")
    with pytest.raises(tacos.errors.FormatError, match="remove it or choose another prefix"):
        training.export(step(SPLITS[0]), tmp_path / "step")
    assert [file.name for file in tmp_path.iterdir()] == ["step.8.et"]
