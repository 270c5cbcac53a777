"""Formats that read from and write to binary file objects."""

from __future__ import annotations

import gzip
import io

import pytest

import tacos
from tacos import formats
from tacos.errors import FormatError

pytestmark = pytest.mark.unsanitized

RING = tacos.topology.ring(4, bandwidth="50GiB/s", latency="500ns")


@pytest.fixture(scope="module")
def schedule():
    return tacos.synthesize(RING, tacos.collective.all_gather(RING, "4MB", chunks=1), engine="ring")


def written(obj, name, **options):
    data = io.BytesIO()
    tacos.save(obj, data, format=name, **options)
    return data.getvalue()


SINGLE = [
    name for name, one in formats.FORMATS.items() if one.write is not None and not one.several
]


@pytest.mark.parametrize("name", SINGLE)
def test_streams_hold_what_files_hold(name, schedule, tmp_path):
    """A stream has the same bytes as a file, and reading either gives the same object."""
    held = formats.FORMATS[name].kind
    obj = RING if held is tacos.Topology else schedule
    file = tmp_path / f"x{formats.FORMATS[name].written[0]}"
    tacos.save(obj, file, format=name)
    data = written(obj, name)
    assert data == file.read_bytes()
    assert tacos.load(io.BytesIO(data), format=name) == tacos.load(file)


@pytest.mark.parametrize("name", ["tacos", "msccl", "mscclpp", "graphml", "astra-sim"])
def test_the_content_tells_the_format(name, schedule):
    obj = RING if formats.FORMATS[name].kind is tacos.Topology else schedule
    data = written(obj, name)
    assert tacos.load(io.BytesIO(data)) == tacos.load(io.BytesIO(data), format=name)


def test_the_name_of_a_file_object_tells_the_format(tmp_path):
    with (tmp_path / "ring.yaml").open("wb") as out:
        tacos.save(RING, out)
    with (tmp_path / "ring.yaml").open("rb") as file:
        assert tacos.load(file) == RING


def test_streams_need_not_start_at_their_beginning_or_seek(schedule):
    data = written(schedule, "tacos")
    behind = io.BytesIO(b"head" + data)
    behind.seek(4)
    assert tacos.load(behind, format="tacos") == schedule
    packed = io.BytesIO(gzip.compress(data))
    with gzip.open(packed) as file:
        assert tacos.load(file, format="tacos") == schedule


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            b"npus: 4",
            {},
            "data: cannot recognize the format of the content; give the argument format",
        ),
        (b"npus: 4", {"format": "yaml"}, "data.yaml: the field tacos is missing"),
        (b"hello", {"format": "tacos"}, "data.tacos: not a .tacos file"),
        (b"", {"format": "msccl"}, "data.xml: the file is empty"),
        (b"\xff\xfe", {"format": "yaml"}, "data.yaml: the file is not UTF-8"),
        (
            b"x",
            {"format": "chakra"},
            "the format chakra needs several files, but a file object is one: pass the prefix of their names as a path",
        ),
    ],
)
def test_messages_name_the_stream(data, options, message):
    with pytest.raises(FormatError, match=message):
        tacos.load(io.BytesIO(data), **options)


def test_refuses_what_cannot_be_written(schedule):
    with pytest.raises(FormatError, match="a file object without a name needs the argument format"):
        tacos.save(schedule, io.BytesIO())
    with pytest.raises(FormatError, match="the format chakra needs several files"):
        tacos.save(schedule, io.BytesIO(), format="chakra")
    with pytest.raises(FormatError, match="a Trace is written to a path"):
        tacos.save(tacos.simulate(schedule), io.BytesIO())
    with pytest.raises(TypeError, match="path must be a path or a binary file object; got int"):
        tacos.save(schedule, 3, format="tacos")
    with pytest.raises(FormatError, match="holds a schedule, not a topology"):
        tacos.save(RING, io.BytesIO(), format="tacos")
