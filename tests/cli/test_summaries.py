"""What people see by default: short summaries, the bottleneck, names, and no internal notation."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

import tacos
from tacos import training
from tacos.cli import load, main

pytestmark = pytest.mark.unsanitized


@pytest.fixture(scope="module")
def torus():
    network = tacos.topology.torus(4, 4)
    return network, tacos.collective.all_reduce(network, "1MB", chunks=1)


def run(capsys, *words, code=0):
    assert main(list(words)) == code
    said = capsys.readouterr()
    return said.out + said.err


def test_compare_is_brief_unless_asked(capsys):
    call = ["compare", "torus:4x4", "all-reduce", "64KB", "--chunks", "1"]
    brief, whole = run(capsys, *call), run(capsys, *call, "--verbose")
    assert "parameter-server" not in brief
    assert "nccl" in brief
    assert "slower engines are not shown" in brief
    assert "parameter-server" in whole
    gather = ["compare", "mesh:2x3", "all-gather", "64KB", "--chunks", "1"]
    brief, whole = run(capsys, *gather), run(capsys, *gather, "--verbose")
    assert "not apply (--verbose)" in " ".join(brief.split())
    assert "it needs" not in brief
    assert "one-shot does not apply: it needs all-reduce" in " ".join(whole.split())


def test_synth_and_info_name_the_link_and_the_cut_that_limit(tmp_path, capsys):
    path = str(tmp_path / "ag.tacos")
    call = ["synth", "switch:4@1GB/s,0ns", "all-gather", "4MB", "--chunks", "1", "-o", path]
    facts = json.loads(run(capsys, *call, "--json"))
    assert facts["bottleneck"].startswith("3 MB must enter npu 0 over one link of 1 GB/s")
    assert facts["busiest_link"] == "npu 0 -> switch 0"
    assert facts["file"] == path
    again = json.loads(run(capsys, "info", path, "--json"))
    assert again["bottleneck"] == facts["bottleneck"]
    assert "bottleneck" not in again["provenance"]


def test_traces_are_named_and_a_missing_network_file_is_explained(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call = [
        "synth",
        "ring:4@50GiB/s,500ns",
        "all-gather",
        "4MiB",
        "--engine",
        "ring",
        "--chunks",
        "1",
    ]
    facts = json.loads(run(capsys, *call, "-o", "ag.et", "--json"))
    assert "file" not in facts
    for name in ("ag.0.et to ag.3.et", "ag.workload.0.et to ag.workload.3.et", "ag.network.yml"):
        assert name in facts["files"]
    assert "network_file" not in facts
    run(capsys, "synth", "mesh:2x3", "all-gather", "6KB", "--engine", "greedy", "-o", "m.tacos")
    said = " ".join(run(capsys, "convert", "m.tacos", "m.et").split())
    assert "m.0.et to m.5.et" in said
    facts = json.loads(run(capsys, "synth", "dgx-h100-plain:2", "all-gather", "16KB", "--engine", "nccl",
                           "-o", "d.et", "--json"))  # fmt: skip
    assert facts["network_file"].startswith("not written: ASTRA-sim's format cannot")
    assert not (tmp_path / "d.network.yml").exists()


def test_a_prefix_without_extension_says_what_to_write(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run(capsys, "synth", "ring:4", "all-gather", "4KB", "-o", "traces", code=2)
    assert 'such as traces.et for the prefix "traces" of Chakra traces' in said


def test_many_violations_of_one_kind_are_a_few_lines(torus):
    network, collective = torus
    good = tacos.synthesize(network, collective, engine="ring")
    names = ("lane_route", "lane_op", "lane_reads", "lane_begin", "chunk")
    at_once = tacos.Schedule(
        collective=collective,
        routes=good.routes,
        **{name: getattr(good, name) for name in names},
        start=good.start * 0,
        quantum_ps=good.quantum_ps,
    )
    report = tacos.verify(at_once)
    lines = report.lines()
    assert report.found > 100
    assert len(lines) < 12
    assert any("more of this kind" in line for line in lines)
    assert str(report).splitlines()[0] == f"the schedule is not valid: {report.found:,} violations"
    assert len(report.lines(alike=100)) > 20


def test_a_straggler_that_changes_nothing_is_refused(capsys, tmp_path):
    path = str(tmp_path / "ag.tacos")
    run(capsys, "synth", "ring:4", "all-gather", "4KB", "--engine", "ring", "-o", path)
    said = run(capsys, "sim", path, "--straggler", "npu=3", code=2)
    assert said == (
        "tacos: straggler 'npu=3' changes nothing; add late= or slowdown=, as in npu=3,late=20us\n"
    )


@pytest.mark.parametrize("verb", [name for name in load() if not name.startswith("-")])
def test_usage_lines_name_their_arguments(verb, capsys):
    said = run(capsys, verb, "--help")
    assert "[ARGS" not in said
    assert not re.search(r"default: (\(\)|\"\"|False\])|--empty-", said)


@pytest.mark.parametrize("verb", [name for name in load() if not name.startswith("-")])
def test_the_list_of_commands_has_one_sentence_for_each(verb):
    first = load()[verb].help.split("\n\n")[0].strip()
    assert "\n" not in first
    assert len(first) <= 100


def test_doctor_does_not_claim_a_backend_without_torch(monkeypatch):
    from tacos import doctor

    real = importlib.util.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "torch" else real(name))
    found = doctor._backend()
    assert (found.state, found.advice) == ("missing", "pip install torch")


def test_counts_of_one_and_times_read_as_people_write_them(torus):
    assert repr(tacos.topology.switch(4)) == "<tacos.Topology switch: 4 NPUs, 1 switch, 8 links>"
    assert "1 NPU, 0 switches, 0 links" in repr(tacos.topology.ring(1))
    network, collective = torus
    schedule = tacos.synthesize(network, collective, engine="ring")
    assert repr(tacos.simulate(schedule)) == "<tacos.Trace: 480 busy intervals in 52.5 us>"
    cut = tacos.Fault(link=(0, 1), begin="1ms")
    late = tacos.Straggler(npu=0, late="2ms")
    with pytest.raises(tacos.InfeasibleError, match="which is down, or nearly so, from 1 ms on"):
        tacos.simulate(schedule, faults=[cut], stragglers=[late])


def test_objects_print_as_sentences(torus):
    network, collective = torus
    result = tacos.compare(network, collective, engines=["ring", "greedy"])
    lines = str(result).splitlines()
    assert lines[0] == "all-reduce of 1 MB on torus: 16 NPUs, 0 switches, 64 links"
    assert lines[1].split()[0] == result.candidates[0].engine
    assert lines[-1] == result.verdict()
    assert str(tacos.bound(network, collective)).startswith(
        "at least 10.5 us: the 16 NPUs (npu 0, …) together must send every byte 30 times"
    )
    report = tacos.verify(result.best)
    assert str(report) == "the schedule is correct"
    sweep = tacos.compare(network, [collective], engines=["ring"])
    assert "ring, " in str(sweep)


def test_frames_have_names(torus):
    pd = pytest.importorskip("pandas")
    network, collective = torus
    result = tacos.compare(network, collective, engines=["ring", "greedy"])
    assert result.to_pandas()["engine"].tolist() == [c.engine for c in result.candidates]
    sweep = tacos.compare(network, [collective], engines=["ring"])
    assert len(sweep.to_pandas()) == 1
    links = tacos.topology.dgx_h100(1, nvls=False).to_pandas()
    assert links[["src_name", "dst_name"]].iloc[0].tolist() == ["npu 0", "switch 0"]
    assert links["bandwidth_Bps"].tolist() == [450 * 10**9] * 16
    frame = result.best.to_pandas()
    assert set(frame["op"]) == {"copy", "reduce"}
    assert set(frame["reads"]) <= {"input", "acc"}
    assert (frame["src_name"].cat.codes == frame["src"]).all()
    traced = tacos.simulate(result.best).to_pandas()
    assert (traced["dst_name"].cat.codes == traced["dst"]).all()
    nodes = tacos.workload.from_nodes(2, rank=[0, 1], kind=[0, 1], peer=[1, 0], bytes=8).to_pandas()
    assert nodes["kind"].tolist() == ["send", "recv"]
    assert nodes["comm"].isna().all()
    joint = tacos.workload.collective(2, "all_gather", "8B").to_pandas()
    assert joint["comm"].tolist() == ["all_gather", "all_gather"]
    split = training.Parallelism(tp=8, zero=1, batch=16)
    step = training.step(training.model("llama3-8b"), split, "dgx-h100-plain:1")
    parts = step.to_pandas()
    assert isinstance(parts, pd.DataFrame)
    assert abs(parts["time_s"].sum() - step.time_s) < 1e-9 * step.time_s


def test_a_spec_stands_for_a_topology_everywhere(tmp_path):
    network = tacos.topology.ring(4)
    collective = tacos.collective.all_gather("ring:4", "4KB", chunks=1)
    assert collective == tacos.collective.all_gather(network, "4KB", chunks=1)
    assert tacos.bound("ring:4", collective) == tacos.bound(network, collective)
    schedule = tacos.synthesize("ring:4", collective, engine="ring")
    assert schedule == tacos.synthesize(network, collective, engine="ring")
    assert "ring" in tacos.engines("ring:4", collective)
    assert tacos.compare("ring:4", collective, engines="ring").best == schedule
    assert tacos.simulate(schedule, "ring:4").time_ps == schedule.time_ps
    assert tacos.lift(tacos.lower(schedule), "ring:4", "4KB").time_ps == schedule.time_ps
    assert tacos.topology.drop_links("ring:4", (0, 1)).links == 7
    assert tacos.topology.describe("ring:4")["npus"] == 4
    tacos.save(network, tmp_path / "ring.yaml")
    assert tacos.bound(tmp_path / "ring.yaml", collective) == tacos.bound(network, collective)
    with pytest.raises(tacos.SpecError, match="rng"):
        tacos.bound("rng:4", collective)


def test_submodules_come_without_an_import():
    import subprocess
    import sys

    words = "import tacos; print(tacos.view.draw('ring:4')[:4], tacos.runtime.__name__, tacos.library.FILE)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<svg tacos.runtime ")
