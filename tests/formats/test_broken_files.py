"""Damaged files of every format give a topology or a FormatError, and nothing else happens."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos.cli import main
from tacos.errors import FormatError

FILES = sorted((Path(__file__).parents[1] / "files").iterdir())
IDS = [file.name for file in FILES]
TOPOLOGY = Path(__file__).parents[1] / "files" / "ndv2.json"
OPTIONS = {"h100.xml": {"boxes": 2}, "nvidia_smi.txt": {"boxes": 2, "nic_bandwidth": "25GB/s"}}


def load(file, name):
    """Load the file, or a topology with the file as its sketch."""
    if name == "ndv2_sketch.json":
        return tacos.load(TOPOLOGY, sketch=file)
    return tacos.load(file, **OPTIONS.get(name, {}))


def read_or_refuse(file, name):
    try:
        assert isinstance(load(file, name), tacos.Topology)
    except FormatError as error:
        assert str(error).startswith((f"{file}: ", f"{TOPOLOGY}: "))  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017


WORDS = st.sampled_from(
    [b"", b"-1", b"0", b"1e308", b"nan", b"9" * 20, b"999999999", b"<", b"&x;", b'"', b",", b"\n",
     b"\x00", b"\xff", b"null", b"[", b"{}", b"*a", b"NV9999", b"0x068000", b"switch", b"<!DOCTYPE a>"]
)  # fmt: skip


@st.composite
def damaged(draw, data):
    """Bytes with parts replaced, removed, repeated, moved or cut off."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.sampled_from([0, 1, 3, 20, 200])))
        way = draw(st.integers(0, 3))
        if way == 0:
            data = data[:at] + draw(WORDS | st.binary(max_size=3)) + data[end:]
        elif way == 1:
            data = data[:end] + data[at:]
        elif way == 2:
            data = data[:at]
        else:
            lines = data.split(b"\n")
            lines.insert(
                draw(st.integers(0, len(lines))), lines.pop(draw(st.integers(0, len(lines) - 1)))
            )
            data = b"\n".join(lines)
    return data


@pytest.mark.parametrize("original", FILES, ids=IDS)
@settings(max_examples=60)
@given(data=st.data())
def test_damaged_files(tmp_path_factory, original, data):
    file = tmp_path_factory.getbasetemp() / original.name
    file.write_bytes(data.draw(damaged(original.read_bytes())))
    read_or_refuse(file, original.name)


@pytest.mark.parametrize("original", FILES, ids=IDS)
def test_files_cut_short_anywhere(tmp_path, original):
    whole = original.read_bytes()
    file = tmp_path / original.name
    for length in range(0, len(whole), max(1, len(whole) // 40)):
        file.write_bytes(whole[:length])
        read_or_refuse(file, original.name)


@given(
    text=st.binary(max_size=200), ending=st.sampled_from([".xml", ".csv", ".txt", ".json", ".yml"])
)
def test_garbage(tmp_path_factory, text, ending):
    file = tmp_path_factory.getbasetemp() / f"garbage{ending}"
    file.write_bytes(text)
    read_or_refuse(file, file.name)


@pytest.mark.parametrize("ending", [".xml", ".csv", ".txt", ".json", ".yml", ".topo", ".graphml"])
@pytest.mark.parametrize("filler", [" ", "\n", "\t\n", "9", "<a>", "[", ",", "GPU0 ", "0 0 0\n"])
def test_long_runs_of_anything_take_no_time(tmp_path, ending, filler):
    """A quadratic step would take minutes here."""
    file = tmp_path / f"long{ending}"
    file.write_text("0,1" + filler * 300_000 + "x")
    read_or_refuse(file, file.name)
    file.write_text(filler * 300_000)
    read_or_refuse(file, file.name)


def test_machines_of_absurd_size(tmp_path):
    file = tmp_path / "big.xml"
    for inside, says in (
        ("<cpu/>" * 300, "<system> has 300 <cpu>; it must have 1 to 256"),
        (
            "<cpu>" + "<pci/>" * 20_000 + "</cpu>",
            "more than 16384 elements, too many for a machine",
        ),
    ):
        file.write_text(f"<system>{inside}</system>")
        with pytest.raises(FormatError, match=says):
            tacos.load(file)


ENTITIES = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "bomb"}">' for i in range(12))
EVIL = {
    "bomb": f'<!DOCTYPE graphml [{ENTITIES}]><{{root}}>&e11;</{{root}}>',
    "file": '<!DOCTYPE graphml [<!ENTITY x SYSTEM "file:///etc/passwd">]><{root}>&x;</{root}>',
    "address": '<!DOCTYPE graphml SYSTEM "http://localhost:1/x.dtd"><{root}/>',
    "parameter": '<!DOCTYPE graphml [<!ENTITY % p SYSTEM "file:///dev/zero">%p;]><{root}/>',
}  # fmt: skip


@pytest.mark.parametrize("root", ["system", "graphml"])
@pytest.mark.parametrize("text", EVIL.values(), ids=EVIL)
def test_entities_do_nothing(tmp_path, text, root):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    file = tmp_path / "evil.xml"
    file.write_text(text.format(root=root))
    format = {"system": "nccl", "graphml": "graphml"}[root]
    with pytest.raises(FormatError, match="a document type declaration is not supported"):
        tacos.load(file, format=format)
    with pytest.raises(FormatError, match="the content does not match any of the formats"):
        tacos.load(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize(
    "name", ["net.xml", "net.csv", "net.txt", "net.json", "net.yml", "net.topo"]
)
def test_what_is_no_file_is_not_read(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(FormatError, match="is a directory; expected a file"):
        tacos.load(tmp_path / name)
    (tmp_path / name).rmdir()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(FormatError, match="not a regular file"):
        tacos.load(tmp_path / name)


@pytest.mark.parametrize("name", ["net.xml", "net.txt", "net.tacos", "net.yaml"])
def test_an_empty_file_is_called_empty(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(FormatError, match="the file is empty"):
        tacos.load(tmp_path / name)


@pytest.mark.parametrize("format", ["tacos", "msccl", "mscclpp", "sccl", "te-ccl", "forestcoll"])
def test_a_pipe_is_not_waited_for(tmp_path, format):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(FormatError, match="not a regular file"):
            tacos.load(path, format=format)


def test_the_content_decides_where_endings_are_shared(tmp_path):
    for original in FILES:
        if original.name != "ndv2_sketch.json":
            copy = tmp_path / "unnamed"
            copy.write_bytes(original.read_bytes())
            if original.suffix in (".xml", ".graphml", ".txt"):
                assert tacos.load(copy) == tacos.load(original)
    renamed = tmp_path / "pod.xml"
    renamed.write_bytes((TOPOLOGY.parent / "pod.graphml").read_bytes())
    assert tacos.load(renamed).names == ["a", "b", "leaf"]
    with pytest.raises(FormatError, match="this is a sketch; load the topology with sketch="):
        tacos.load(TOPOLOGY.parent / "ndv2_sketch.json")
    with pytest.raises(FormatError, match="files of the format nccl can only be read"):
        tacos.save(tacos.topology.ring(3), tmp_path / "x.xml", format="nccl")


# The command.


def test_info_and_topo_take_every_format(capsys, tmp_path):
    for original in FILES:
        if original.name == "ndv2_sketch.json":
            continue
        for command in ("info", "topo"):
            assert main([command, str(original), "--json"]) == 0
            assert '"npus"' in capsys.readouterr().out
    target = tmp_path / "two.graphml"
    assert (
        main(["topo", f"{TOPOLOGY.parent / 'h100.xml'}:2:rail", "-o", str(target), "--quiet"]) == 0
    )
    assert tacos.load(target).npus == 8
    assert main(["topo", "torus:4x4", "-o", str(tmp_path / "net.astra.yml"), "--quiet"]) == 0
    assert tacos.load(tmp_path / "net.astra.yml").npus == 16


def test_the_command_says_what_is_wrong_in_one_sentence(capsys, tmp_path):
    file = tmp_path / "box.xml"
    file.write_text("<system><cpu>")
    assert main(["info", str(file)]) == 2
    assert main(["topo", f"{file}:3"]) == 2
    assert main(["topo", "mesh:3x3", "-o", str(tmp_path / "m.astra.yml")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.startswith("tacos: ") for line in errors] == [True] * 3
    assert "line 1: not XML: no element found" in errors[0]
    assert main(["info", str(TOPOLOGY), "--npu", "0"]) == 2
    assert "holds a topology; --npu and --link need a schedule" in capsys.readouterr().err
