"""A new format needs one module and one table entry; everything else follows.

The functions `read` and `write` below are what a new file in ``src/tacos/formats`` would hold, and the fixture is the
entry in `tacos.formats.FORMATS`.
"""

from __future__ import annotations

import io

import pytest

import tacos
from tacos import formats
from tacos._support.files import replacing
from tacos.cli import main
from tacos.errors import FormatError
from tacos.formats.source import about, text_of
from tacos.search.tune import check_formats
from tacos.targets import targets

pytestmark = pytest.mark.unsanitized


def looks_like(head):
    return head.startswith("# toy")


def read(path, *, latency="1us"):
    """Read lines ``A B BANDWIDTH`` after a first line that identifies the format."""
    with about(path):
        rows = [line.split() for line in text_of(path).splitlines()[1:]]
        links = [(int(a), int(b), speed, latency) for a, b, speed in rows]
        return tacos.topology.from_links(1 + max(max(a, b) for a, b, *_ in links), links)


def write(topology, path):
    with replacing(path) as out:
        out.write(b"# toy\n")
        columns = (topology.link_src, topology.link_dst, topology.link_bandwidth_Bps)
        for a, b, speed in zip(*(column.tolist() for column in columns), strict=True):
            out.write(f"{a} {b} {speed}B/s\n".encode())


@pytest.fixture(autouse=True)
def entry(monkeypatch):
    toy = formats.Format(tacos.Topology, read, (".toy",), looks_like, write, (".toy",))
    monkeypatch.setitem(formats.FORMATS, "toy", toy)


RING = tacos.topology.ring(4, bandwidth="25GB/s", latency="1us")


def same_links(found):
    return (found.link_src == RING.link_src).all() and (found.link_dst == RING.link_dst).all()


def test_files_and_streams(tmp_path):
    tacos.save(RING, tmp_path / "ring.toy")
    assert same_links(tacos.load(tmp_path / "ring.toy"))
    data = io.BytesIO()
    tacos.save(RING, data, format="toy")
    assert data.getvalue() == (tmp_path / "ring.toy").read_bytes()
    assert same_links(tacos.load(io.BytesIO(data.getvalue())))  # by its content
    (tmp_path / "ring.other").write_bytes(data.getvalue())
    assert same_links(tacos.load(tmp_path / "ring.other"))


def test_options_are_those_of_the_module(tmp_path):
    tacos.save(RING, tmp_path / "ring.toy")
    assert tacos.load(tmp_path / "ring.toy", latency="3us").link_latency_ps[0] == 3_000_000
    with pytest.raises(
        ValueError, match='the format toy has no option "size"; its options are latency'
    ):
        tacos.load(tmp_path / "ring.toy", size=1)


def test_an_executor_in_the_record_makes_a_format_a_target(monkeypatch):
    assert "toy" not in targets()
    with pytest.raises(ValueError, match="to must be one of msccl, mscclpp; got"):
        check_formats(["toy"])
    toy = formats.FORMATS["toy"]._replace(executor=formats.Executor())
    monkeypatch.setitem(formats.FORMATS, "toy", toy)
    assert "toy" in targets()
    check_formats(["toy"])


def test_errors_name_the_file(tmp_path):
    (tmp_path / "bad.toy").write_text("# toy\n0 1 fast\n")
    with pytest.raises(FormatError, match=r"bad\.toy: .*fast"):
        tacos.load(tmp_path / "bad.toy")
    with pytest.raises(FormatError, match=r"unknown file extension; use one of .*\.toy"):
        tacos.save(RING, tmp_path / "ring.nothing")


def test_commands_know_it(tmp_path, capsys):
    ring, schedule = tmp_path / "ring.toy", tmp_path / "ag.tacos"
    tacos.save(RING, ring)
    assert main(["topo", str(ring), "-o", str(tmp_path / "again.toy")]) == 0
    assert (tmp_path / "again.toy").read_bytes() == ring.read_bytes()
    assert main(["synth", str(ring), "all-gather", "4MB", "-o", str(schedule), "--quiet"]) == 0
    assert tacos.load(schedule).topology.npus == 4
    capsys.readouterr()
