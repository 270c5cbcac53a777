"""The .tacos file: round trips, writing, and schedules that stay in their file."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.errors import FormatError
from tacos.formats import load, native, save
from tests.support.native_files import (
    EXAMPLES,
    PROVENANCE,
    empty_schedules,
    files,
    refused,
    ring_orbit,
    same,
    sealed,
    taken_apart,
    written,
)
from tests.support.strategies import Order, orders

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(params=EXAMPLES)
def schedule(request):
    return EXAMPLES[request.param]()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("native") / "x.tacos"


# --- round trips --------------------------------------------------------------------------------


@given(orders().map(Order.retimed) | empty_schedules())
def test_read_gives_back_what_was_written_and_writes_the_same_bytes(scratch, schedule):
    schedule = schedule.with_provenance(PROVENANCE)
    data = written(schedule, scratch)
    again = native.read(scratch)
    assert same(again, schedule)
    assert again.topology == schedule.topology
    assert again.collective == schedule.collective
    assert written(again, scratch) == data


def test_examples_verify_before_and_after(schedule, scratch):
    native.write(schedule, scratch)
    again = native.read(scratch)
    assert same(again, schedule)
    assert again.form == schedule.form
    assert tacos.verify(schedule).ok
    assert tacos.verify(again).ok
    assert again.expand() == schedule.expand()


def test_provenance_may_hold_what_json_does_not(scratch):
    odd = ring_orbit().with_provenance({"bound_s": float("inf"), "n": 10**30})
    native.write(odd, scratch)
    assert native.read(scratch).provenance == odd.provenance


def test_the_file_is_what_its_description_says(schedule, scratch):
    header, columns = taken_apart(written(schedule, scratch))
    assert sealed(header, columns) == sealed(*taken_apart(sealed(header, columns)))
    for noun, owner in (("topology", schedule.topology), ("routes", schedule.routes)):
        for name, column in columns.items():
            if name.startswith(noun) and name != "topology.names":
                assert column.tolist() == getattr(owner, name.partition(".")[2]).tolist()
    assert json.loads(columns["topology.names"].tobytes() or b"[]") == schedule.topology.names
    for name in ("lane_route", "lane_op", "lane_reads", "lane_begin", "chunk", "start"):
        assert columns[f"schedule.{name}"].tolist() == getattr(schedule, name).tolist()
    scratch.write_bytes(sealed(header, columns))
    assert same(native.read(scratch), schedule)


FILE = {
    "name": "allreduce",
    "dialect": "azure",
    "protocol": "LL",
    "min_bytes": 1,
    "max_bytes": 2**64 - 1,
    "threads_per_block": 512,
}


def of_file(schedule):
    return {name: getattr(schedule, name) for name in FILE}


def test_what_a_search_and_a_file_said_survives(scratch):
    schedule = ring_orbit().with_facts(rejected=["ring was wrong"], **FILE)
    native.write(schedule, scratch)
    found = native.read(scratch)
    assert found.rejected == ["ring was wrong"]
    assert of_file(found) == FILE
    header, columns = taken_apart(scratch.read_bytes())
    header["schedule"]["facts"]["file"]["max_bytes"] = 2**64
    message = refused(scratch, sealed(header, columns))
    assert message == "min_bytes and max_bytes must be below 2^64; got 18446744073709551616"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_writer_stays_the_same(name, scratch, monkeypatch):
    golden = GOLDEN / f"v1-{name}.tacos"
    schedule = EXAMPLES[name]()
    assert same(native.read(golden), schedule)
    monkeypatch.setattr(native, "__version__", "0.1.0")
    assert written(schedule, scratch) == golden.read_bytes()


def test_peek_says_what_the_schedule_says(schedule, scratch):
    native.write(schedule, scratch)
    found = native.peek(scratch)
    assert found["version"] == 1
    assert set(found["writer"]) == {"tacos"}
    assert found["file_bytes"] == scratch.stat().st_size
    for field, value in found["topology"].items():
        assert value == getattr(schedule.topology, field)
    for field in ("form", "transfers", "stored_transfers", "time_s", "provenance"):
        assert found[field] == getattr(schedule, field)
    assert found["engine"] is None  # though the provenance names one
    native.write(schedule.with_facts(engine="ring"), scratch)
    assert native.peek(scratch)["engine"] == "ring"
    assert [part["kind"] for part in found["collective"]] == [
        part.kind for part in schedule.collective.parts
    ]


# --- writing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (OSError(28, "No space left on device"), FormatError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
@pytest.mark.parametrize("block", [0, 5])
def test_an_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch, error, seen, block):
    path = tmp_path / "x.tacos"
    path.write_text("before")
    calls, original = [], native._write_block

    def breaks(out, payload):
        calls.append(payload)
        if len(calls) > block:
            raise error
        original(out, payload)

    monkeypatch.setattr(native, "_write_block", breaks)
    with pytest.raises(seen):
        native.write(ring_orbit(), path)
    assert path.read_text() == "before"
    assert files(tmp_path) == ["x.tacos"]


def test_a_new_file_has_the_usual_permissions_and_links_stay_links(tmp_path):
    target, link = tmp_path / "x.tacos", tmp_path / "link.tacos"
    link.symlink_to(target)
    before = os.umask(0o027)
    try:
        native.write(ring_orbit(), link)
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert files(tmp_path) == ["link.tacos", "x.tacos"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe.tacos")
    for path in (tmp_path, tmp_path / "pipe.tacos"):
        with pytest.raises(FormatError, match="not a regular file; refusing to overwrite it"):
            native.write(ring_orbit(), path)


MEMORY = """
import sys
import numpy as np
import tacos
from tacos.formats import native
from tacos.schedule import Schedule, routes

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

path, n = sys.argv[1], 2048
if sys.argv[2:] == ["make"]:
    ring = tacos.topology.ring(n, bidirectional=False)
    npu, step = np.arange(n, dtype=np.int32), np.arange(n - 1, dtype=np.uint32)
    native.write(Schedule(
        collective=tacos.collective.all_gather(ring, n, chunks=1),
        routes=routes(ring, pairs=(npu, (npu + 1) % n)),
        lane_route=npu, lane_op=np.zeros(n, np.uint8), lane_reads=np.ones(n, np.uint8),
        lane_begin=np.arange(n + 1) * (n - 1),
        chunk=((npu[:, None].astype(np.int64) - step) % n).astype(np.uint32).ravel(),
        start=np.tile(step, n), quantum_ps=500_020,
    ), path)
else:
    native.peek(path)
    marks = [peak()]
    schedule = native.read(path)
    marks.append(peak())
    native.write(schedule, path)
    marks.append(peak())
    print(schedule.transfers, marks[1] - marks[0], marks[2] - marks[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts pages as Linux does")
def test_columns_are_read_and_written_without_a_copy(tmp_path):
    path = tmp_path / "large.tacos"
    for extra in (["make"], []):
        run = subprocess.run(
            [sys.executable, "-c", MEMORY, path, *extra], capture_output=True, text=True, check=True
        )
    transfers, reading, writing = map(int, run.stdout.split())
    assert transfers == 2048 * 2047
    assert reading < 1.1 * path.stat().st_size
    assert writing < 0.1 * path.stat().st_size


# --- save and load ------------------------------------------------------------------------------


def test_the_ending_chooses_the_format(tmp_path):
    ring = tp.ring(4)
    for name in ("ring.yaml", "ring.yml", "ring.JSON"):
        save(ring, tmp_path / name)
        assert load(tmp_path / name) == ring
    save(ring_orbit(), str(tmp_path / "Orbit.TACOS"))
    assert load(str(tmp_path / "Orbit.TACOS")) == ring_orbit()
    save(ring_orbit(), tmp_path / "orbit.bin", format="tacos")
    assert load(tmp_path / "orbit.bin", format="tacos") == ring_orbit()


def test_endings_and_formats_that_do_not_exist(tmp_path):
    for name in ("x.bin", "x", "tacos", ".hidden"):
        (tmp_path / name).write_bytes(b"\0")
        with pytest.raises(FormatError, match=r"use one of \.tacos, \.yaml, \.yml, \.json"):
            load(tmp_path / name)
        with pytest.raises(FormatError, match=r"use one of \.tacos, .*\.xml"):
            save(ring_orbit(), tmp_path / name)
    with pytest.raises(
        ValueError, match=r'format must be one of tacos, astra-sim, mscclpp.*; got "xml"'
    ):
        load(tmp_path / "x.tacos", format="xml")


def test_a_caller_can_ask_for_a_class_of_objects(tmp_path):
    file = tmp_path / "ring.yaml"
    save(tp.ring(4), file)
    assert load(file, kind=tacos.Topology).npus == 4
    with pytest.raises(FormatError, match=r"ring\.yaml: holds a topology, not a schedule$"):
        load(file, kind=tacos.Schedule)


@pytest.mark.parametrize(("thing", "name"), [(ring_orbit(), "x.yaml"), (tp.ring(4), "x.tacos")])
def test_a_format_that_does_not_suit_the_object(tmp_path, thing, name):
    with pytest.raises(FormatError, match=r"file holds a \w+, not a \w+$"):
        save(thing, tmp_path / name)
    assert not files(tmp_path)


@pytest.mark.parametrize("ending", ["tacos", "yaml"])
def test_what_the_system_refuses_is_one_sentence(tmp_path, ending):
    thing = ring_orbit() if ending == "tacos" else tp.ring(4)
    missing, inside = tmp_path / f"missing.{ending}", tmp_path / "no" / f"x.{ending}"
    with pytest.raises(FormatError) as error:
        load(missing)
    assert str(error.value) == f"{missing}: No such file or directory"
    with pytest.raises(FormatError) as error:
        save(thing, inside)
    assert str(error.value) == f"{inside}: No such file or directory"
    folder = tmp_path / f"folder.{ending}"
    folder.mkdir()
    for attempt in (lambda: load(folder), lambda: save(thing, folder)):
        with pytest.raises(FormatError, match=f"^{folder}: "):
            attempt()
    assert files(tmp_path) == [folder.name]


def test_fields_survive_files_and_pickles(scratch):
    schedule = ring_orbit().with_facts(
        engine="mine", bound_ps=7, consistent=False, cut_short=True, matched_ports=True
    )
    schedule = schedule.with_executed(9, "tcp").with_facts(in_switch_bound_ps=5)
    native.write(schedule, scratch)
    for back in (native.read(scratch), pickle.loads(pickle.dumps(schedule)), schedule.expand()):
        fields = back.engine, back.bound_ps, back.consistent, back.cut_short, back.matched_ports
        assert fields == ("mine", 7, False, True, True)
        assert back.in_switch_bound_ps == 5
        assert (back.executed_ps, back.target, back.executed_s) == (9, "tcp", 9e-12)


@pytest.mark.parametrize("wrong", [-1, 2**63])
def test_an_executed_time_out_of_range_is_refused(wrong, scratch):
    native.write(ring_orbit(), scratch)
    header, columns = taken_apart(scratch.read_bytes())
    header["schedule"]["facts"]["executed_ps"] = wrong
    assert "facts.executed_ps" in refused(scratch, sealed(header, columns))


# --- schedules that stay in their file -----------------------------------------------------------


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    """All-gather on a torus of 1,024: 1 million transfers in 8 MB."""
    torus = tp.torus(32, 32, link_model="blocking")
    schedule = tacos.synthesize(
        torus, co.all_gather(torus, "1GB", chunks=1), engine="greedy", verify=False
    )
    path = tmp_path_factory.mktemp("large") / "large.tacos"
    save(schedule, path)
    return path, schedule


def test_a_mapped_schedule_is_the_same_and_outlives_its_place(large_file, tmp_path):
    path, schedule = large_file
    copy = tmp_path / "copy.tacos"
    copy.write_bytes(path.read_bytes())
    mapped = load(copy, mapped=True)
    save(ring_orbit(), copy)  # another file takes its place
    copy.unlink()
    assert mapped == schedule
    assert tacos.verify(mapped).ok


def test_a_mapped_schedule_takes_next_to_no_memory(large_file, tmp_path):
    """Only anonymous memory counts: the kernel can drop pages of the file at any time."""
    code = """if True:
        import sys, tacos
        from pathlib import Path
        def anonymous():
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
        assert tacos.verify(tacos.load(sys.argv[2], mapped=True), threads=1).ok  # imports what it needs
        before = anonymous()
        schedule = tacos.load(sys.argv[1], mapped=True)
        assert tacos.verify(schedule, threads=1).ok
        print(anonymous() - before)
    """
    ring = tp.ring(4)
    small = tmp_path / "small.tacos"
    save(tacos.synthesize(ring, co.all_gather(ring, "1KB"), engine="ring"), small)
    words = [sys.executable, "-c", code, str(large_file[0]), str(small)]
    done = subprocess.run(words, capture_output=True, check=True, text=True)
    assert int(done.stdout) < 5000, "kilobytes, of a file of 8400"


@pytest.mark.parametrize("place", [-100, -4_500_000])
def test_damage_of_a_mapped_file_is_found(large_file, tmp_path, place):
    data = bytearray(large_file[0].read_bytes())
    data[place] ^= 1
    path = tmp_path / "damaged.tacos"
    path.write_bytes(data)
    with pytest.raises(
        FormatError, match=r"section schedule\.(chunk|start) is damaged: its checksum"
    ):
        load(path, mapped=True)
