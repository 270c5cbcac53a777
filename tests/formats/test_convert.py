"""`tacos convert`, and `verify`, `info` and `sim` on programs in files of any format."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import tacos
from tacos import collective as co
from tacos import formats
from tacos.cli import main
from tacos.program import Program, describe, facts_in
from tests.support.programs import COLUMNS, changed, without

pytestmark = pytest.mark.unsanitized


def read(path):
    collective, in_place, columns, provenance = pickle.loads(Path(path).read_bytes())
    program = Program(collective=collective, in_place=in_place, **columns)
    return program.with_provenance(provenance).with_facts(**facts_in(provenance))


def write(obj, path, *, protocol="Simple", in_place=False):
    program = tacos.lower(obj, in_place=in_place) if isinstance(obj, tacos.Schedule) else obj
    columns = {name: getattr(program, name).copy() for name in COLUMNS}
    provenance = program.provenance | {"protocol": protocol}
    Path(path).write_bytes(
        pickle.dumps((program.collective, program.in_place, columns, provenance))
    )


@pytest.fixture(autouse=True)
def steps_format(monkeypatch):
    """A minimal format of programs: files that end in .steps."""
    entry = formats.Format((Program, tacos.Schedule), read, (".steps",), None, write, (".steps",))
    monkeypatch.setitem(formats.FORMATS, "steps", entry)


@pytest.fixture
def schedule():
    topology = tacos.topology.ring(4)
    collective = tacos.collective.all_reduce(topology, "4MB", chunks=1)
    return tacos.synthesize(topology, collective, engine="ring")


@pytest.fixture
def saved(tmp_path, schedule):
    path = tmp_path / "ar.tacos"
    tacos.save(schedule, path)
    return path


def test_there_and_back(saved, schedule, tmp_path, capsys):
    steps, back = tmp_path / "ar.steps", tmp_path / "back.tacos"
    call = ["convert", str(saved), str(steps), "--protocol", "LL", "--in-place", "--json"]
    assert main(call) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["collective"] == "all-reduce"
    assert facts["to"] == str(steps)
    program = tacos.load(steps)
    assert program.in_place
    assert program.provenance["protocol"] == "LL"
    call = ["convert", str(steps), str(back), "--topology", "ring:4", "--size", "4MB"]
    assert main(call) == 0
    assert "assuming" not in capsys.readouterr().err
    assert tacos.verify(tacos.load(back)).ok
    assert tacos.load(back).collective == schedule.collective
    assert tacos.load(back).time_s == schedule.time_s


def test_without_a_topology_it_says_what_it_assumes(saved, tmp_path, capsys):
    steps, back = tmp_path / "ar.steps", tmp_path / "back.tacos"
    assert main(["convert", str(saved), str(steps), "--quiet"]) == 0
    assert main(["convert", str(steps), str(back)]) == 0
    shown = capsys.readouterr()
    assumed = "a fully connected network of 4 NPUs and 4 MB; set them with --topology and --size"
    assert f"tacos: assuming {assumed}\n" in shown.err
    assert "assuming" not in shown.out
    assert tacos.load(back).topology.family == "fully_connected"


CHAIN = ["one.xml", "two.json", "three.tacos", "four.json", "five.xml"]


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_a_chain_of_formats(kind, tmp_path, monkeypatch):
    """Schedule to MSCCL, MSCCL++, schedule, MSCCL++, MSCCL: the collective stays, and every file verifies."""
    monkeypatch.chdir(tmp_path)
    ring = tacos.topology.ring(4)
    tacos.save(tacos.synthesize(ring, co.named(kind, ring, "4MB", chunks=1)), "start.tacos")
    for source, target in zip(["start.tacos", *CHAIN], CHAIN, strict=False):
        assert main(["convert", source, target, "--quiet"]) == 0
        assert main(["verify", target, "--quiet"]) == 0
        loaded = tacos.load(target)
        assert (loaded.collective.kind, loaded.collective.npus) == (kind, 4)


def test_no_limit_in_one_format_is_no_limit_in_another(tmp_path, schedule):
    program = tacos.lower(schedule).with_facts(max_bytes=2**64 - 1)
    tacos.save(program, tmp_path / "x.xml")
    assert 'maxBytes="1099511627776"' in (tmp_path / "x.xml").read_text()


def test_a_topology_is_converted(tmp_path, capsys):
    yaml, csv = tmp_path / "ring.yaml", tmp_path / "ring.csv"
    tacos.save(tacos.topology.ring(4), yaml)
    assert main(["convert", str(yaml), str(csv)]) == 0
    assert tacos.load(csv).links == 8
    assert "4 NPUs" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["convert", "topo"])
def test_what_a_file_does_not_keep_is_said(verb, tmp_path, capsys):
    worn = tmp_path / "worn.yaml"
    worn.write_text("tacos: 1\nbase: ring:4\nfaults: {dead: [0]}\n")
    for ending, keeps in ((".graphml", False), (".csv", False), (".json", True)):
        target = tmp_path / f"net{ending}"
        call = ["convert", worn, target] if verb == "convert" else ["topo", worn, "-o", target]
        assert main(list(map(str, call))) == 0
        said = capsys.readouterr().err
        assert (tacos.load(target).faults is not None) == keeps
        assert ("does not keep faults (link npu 0-npu 1 dead)" in said) != keeps
        assert said.count("\n") == (not keeps)


def test_what_executors_are_told_can_be_given(tmp_path):
    """Message sizes for both executors; for MSCCL++ also the channels within a box and between boxes."""
    source, xml, plan = (str(tmp_path / name) for name in ("ag.tacos", "ag.xml", "ag.json"))
    topo = tacos.topology.fully_connected(4)
    tacos.save(tacos.synthesize(topo, tacos.collective.all_gather(topo, "4MB", chunks=1)), source)
    sizes = ["--min-bytes", "1KB", "--max-bytes", "1MB"]
    assert main(["convert", source, xml, *sizes]) == 0
    assert 'minBytes="1000" maxBytes="1000000"' in Path(xml).read_text()
    assert main(["convert", source, plan, *sizes]) == 0
    text = Path(plan).read_text()
    assert '"min_message_size": 1000, "max_message_size": 1000000' in text
    assert '"port"' not in text
    assert main(["convert", xml, plan, "--box", "2", "--min-bytes", "0"]) == 0
    text = Path(plan).read_text()
    assert '"port"' in text
    assert '"memory"' in text
    assert '"min_message_size": 0, "max_message_size": 1000000' in text
    assert main(["convert", source, plan, "--channel", "port"]) == 0
    assert '"memory"' not in Path(plan).read_text()


def test_what_is_wrong_is_not_written(schedule, tmp_path, capsys):
    program = tacos.lower(schedule)
    wrong, target = tmp_path / "wrong.steps", tmp_path / "out.steps"
    tacos.save(without(program, 0), wrong)
    assert main(["convert", str(wrong), str(target)]) == 1
    assert "unmatched: rank" in capsys.readouterr().err
    assert not target.exists()
    assert main(["convert", str(wrong), str(target), "--unchecked"]) == 0
    assert target.exists()


def test_verify_and_info_and_sim_take_programs(schedule, tmp_path, capsys):
    program, path = tacos.lower(schedule), tmp_path / "ar.steps"
    tacos.save(program.with_provenance({"name": "ring"}), path)
    assert main(["verify", str(path)]) == 0
    assert capsys.readouterr().out == "ok: 48 steps in 8 threads of 4 ranks\n"
    assert main(["info", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["provenance"].pop("protocol") == "Simple"
    assert facts == describe(program) | {"name": "ring", "provenance": {"name": "ring"}}
    assert main(["info", str(path)]) == 0
    assert "recv reduce: 12" in capsys.readouterr().out
    assert main(["sim", str(path), "--topology", "ring:4", "--size", "4MB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["time_s"] == pytest.approx(schedule.time_s)
    tacos.save(changed(program, dep=program.dep[:0], dep_begin=program.dep_begin * 0), path)
    assert main(["verify", str(path)]) == 1
    assert "undefined: rank 0, thread 1, step 1 reads output slot 2" in capsys.readouterr().err


BAD_CALLS = {
    "unknown option": (["convert", "ar.tacos", "ar.steps", "--channels", "2"],
                       'the format steps has no option "channels"; its options are protocol, in_place'),
    "an option without use": (["convert", "ar.tacos", "b.tacos", "--protocol", "LL"],
                              'the format tacos has no option "protocol"; it takes none'),
    "a size for a schedule": (["convert", "ar.tacos", "b.tacos", "--size", "1MB"],
                              'the format tacos has no option "size"'),
    "no such format": (["convert", "ar.tacos", "x", "--to", "mscl"], 'format must be one of'),
    "no prefix": (["verify", "traces/ar"], "traces/ar: No such file or directory, nor ar.0.et"),
    "no ending": (["convert", "ar.tacos", "x"], "x: unknown file extension; use one of"),
    "a schedule as a topology": (["convert", "ar.tacos", "x.yaml"],
                                 "x.yaml: a .yaml file holds a topology, not a schedule"),
    "no folder": (["convert", "ar.tacos", "no/x.steps"], "there is no directory no"),
    "a program's NPU": (["info", "ar.steps", "--npu", "0"], "ar.steps holds a program"),
    "a program as a network": (["topo", "ar.steps"], "ar.steps: holds a program, which has no topology"),
    "too few NPUs": (["sim", "ar.steps", "--topology", "ring:3"],
                     "the topology has 3 NPUs, the program 4 ranks"),
    "a schedule has a size": (["sim", "ar.tacos", "--size", "1MB"], "whose size is fixed"),
    "a topology to verify": (["verify", "ring.yaml"], "ring.yaml holds a topology"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_wrong_call_is_one_sentence(call, message, schedule, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tacos.save(schedule, "ar.tacos")
    tacos.save(schedule, "ar.steps")
    tacos.save(tacos.topology.ring(4), "ring.yaml")
    before = sorted(tmp_path.iterdir())
    assert main(call) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_synth_writes_any_format_of_algorithms(tmp_path):
    path = tmp_path / "ag.steps"
    assert main(["synth", "ring:4", "all-gather", "1MB", "-o", str(path), "--quiet"]) == 0
    assert tacos.verify(tacos.load(path)).ok
