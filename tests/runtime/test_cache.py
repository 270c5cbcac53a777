"""The cache of schedules: a bad entry is never used, always reported, and made again."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.errors import TacosError, VerificationError
from tacos.library import described, packed, unpacked
from tacos.runtime.dispatch.cache import kept
from tests.support.ranks import Ranks

RING = tp.ring(4, bandwidth="1GB/s", latency="20us")
SUM = co.all_reduce(RING, 4096, chunks=1)
PLAN = described(SUM, RING, "sum.tacos")


def made(collective=SUM, network=RING):
    return tacos.synthesize(network, collective, engine="ring", order="rank")


def unfinished():
    """One transfer of an all-reduce: well-formed, but wrong."""
    table = tacos.routes(RING, pairs=([0], [1]))
    return tacos.retime(SUM, table, route=[0], chunk=0, step=0)


def never():
    raise AssertionError("the cache has it")


GOOD = packed(made())


def put(folder, content):
    file = folder / PLAN.file
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content == "directory":
        file.mkdir()
    else:
        os.mkfifo(file)
    return file


def heard(caplog):
    """The warnings since the last call."""
    said = list(caplog.messages)
    caplog.clear()
    return said


def test_a_schedule_is_made_once(tmp_path, caplog):
    first = kept(tmp_path / "new" / "cache", PLAN, made)
    assert kept(tmp_path / "new" / "cache", PLAN, never) == first == GOOD
    assert (tmp_path / "new" / "cache" / PLAN.file).read_bytes() == GOOD
    assert heard(caplog) == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (packed(made(co.all_gather(RING, 4096, chunks=1))), "collective is 'all_gather', not 'all_reduce'"),
        (packed(made(co.all_reduce(RING, 8192, chunks=1))), "size_bytes is 8192, not 4096"),
        (packed(made(co.all_reduce(RING, 4096, group=[0, 2, 1, 3], chunks=1))),
         "group is (0, 2, 1, 3), not (0, 1, 2, 3)"),
        (packed(made(network=tp.ring(4))), "topology is "),
        (packed(made(co.all_reduce(5, 4096, chunks=1), tp.ring(5))), "topology is "),
        (packed(unfinished()), "the schedule is wrong: "),
        (GOOD[:-9], f"the file has {len(GOOD) - 9} bytes of {len(GOOD)}: it is cut short"),
        (GOOD[: len(GOOD) - 999], f"the file has {len(GOOD) - 999} bytes of {len(GOOD)}: it is cut short"),
        (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "section schedule.start is damaged"),
        (b"", "the file is empty"),
        (b"<algo name='sum'/>", "not a .tacos file"),
        ("directory", "not a regular file"),
        ("pipe", "not a regular file"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_named_and_made_again(tmp_path, caplog, content, why):
    file = put(tmp_path, content)
    assert kept(tmp_path, PLAN, made) == GOOD
    said = heard(caplog)
    assert said[0].startswith(f"{file}: {why}")
    assert said[0].endswith("; the schedule is synthesized again")
    if isinstance(content, bytes):
        assert len(said) == 1
        assert kept(tmp_path, PLAN, never) == GOOD == file.read_bytes()
        assert heard(caplog) == []
    else:  # what is not a file is left alone
        assert len(said) == 2
        assert said[1].startswith(f"the schedule is not kept: {file}: ")


def test_another_root_is_another_schedule(tmp_path, caplog):
    wanted = co.broadcast(RING, 4096, root=2, chunks=1)
    other = tacos.synthesize(RING, co.broadcast(RING, 4096, root=1, chunks=1), engine="greedy")
    put(tmp_path, packed(other))
    plan = described(wanted, RING, PLAN.file)
    data = kept(tmp_path, plan, lambda: tacos.synthesize(RING, wanted, engine="greedy"))
    assert unpacked(data).collective.parts[0].root == 2
    assert "root is 1, not 2" in heard(caplog)[0]


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_bytes_are_the_schedule_is_right(data, tmp_path):
    """A few bytes are changed, removed or inserted anywhere."""
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        at, cut = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 3))
        content[at : at + cut] = data.draw(st.binary(max_size=3))
    put(tmp_path, bytes(content))
    again = unpacked(kept(tmp_path, PLAN, made))
    assert tacos.verify(again).ok
    assert again.collective == made().collective


def test_a_link_to_nowhere_is_an_empty_place(tmp_path, caplog):
    (tmp_path / PLAN.file).symlink_to(tmp_path / "elsewhere")
    assert kept(tmp_path, PLAN, made) == GOOD
    assert (tmp_path / "elsewhere").read_bytes() == GOOD
    assert heard(caplog) == []


def test_without_a_folder_there_are_schedules(tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    for name in ("sum.tacos", "same.tacos"):
        plan = msgspec.structs.replace(PLAN, file=name)
        assert kept(tmp_path / "file" / "cache", plan, made) == GOOD
    (said,) = heard(caplog)  # once, not for each schedule
    assert said.startswith(
        f"the schedule is not kept: {tmp_path}/file/cache/sum.tacos: Not a directory"
    )


@pytest.fixture
def folder_of_a_user():
    """A directory of a user without root's rights."""
    nobody = 65534
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() != 0:
            yield Path(name)
            return
        os.chown(name, nobody, -1)
        os.seteuid(nobody)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)


def test_what_may_not_be_read_or_written(folder_of_a_user, caplog):
    """An unreadable file is replaced. Good files in a read-only directory are used."""
    file = put(folder_of_a_user, GOOD)
    file.chmod(0)
    assert kept(folder_of_a_user, PLAN, made) == GOOD
    assert f"{file}: Permission denied" in heard(caplog)[0]
    assert kept(folder_of_a_user, PLAN, never) == GOOD
    (folder_of_a_user / f".{PLAN.file}.lock").unlink()
    folder_of_a_user.chmod(0o500)
    assert kept(folder_of_a_user, PLAN, never) == GOOD
    assert heard(caplog) == []
    file.chmod(0)
    assert kept(folder_of_a_user, PLAN, made) == GOOD
    assert "Permission denied" in heard(caplog)[0]
    folder_of_a_user.chmod(0o700)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (unfinished, VerificationError, "the schedule is wrong: npu 0 ends with chunk 0 without"),
        (
            lambda: made(co.all_gather(RING, 4096, chunks=1)),
            TacosError,
            "collective is 'all_gather', not 'all_reduce'",
        ),
    ],
)
def test_what_an_engine_does_wrong_is_neither_kept_nor_used(tmp_path, make, error, message):
    with pytest.raises(error, match=message):
        kept(tmp_path, PLAN, make)
    assert not (tmp_path / PLAN.file).exists()


# --- real ranks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4) as started:
        yield started


def test_ranks_never_sum_with_what_gathers(ranks, tmp_path):
    """A cached all-gather is copied over the all-reduce of the same size, and two more files are damaged:
    the ranks compute the same as before, and rank 0 names the bad files."""
    variables = {
        "TACOS_TOPOLOGY": "ring:4@1GB/s,20us",
        "TACOS_CACHE": str(tmp_path),
        "TACOS_ENGINE": "greedy",
    }
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    calls = [(kind, 1000) for kind in kinds]
    assert ranks.run(4, "call_cached", variables, calls, fresh=30.0) == [([], "")] * 4
    files = {file.name.split("-")[1]: file for file in tmp_path.glob("*.tacos")}
    assert sorted(files) == sorted(kinds)
    before = {kind: file.read_bytes() for kind, file in files.items()}
    shutil.copy(files["all_gather"], files["all_reduce"])
    files["reduce_scatter"].write_bytes(before["reduce_scatter"][:-9])
    files["all_to_all"].write_text("nothing")

    results = ranks.run(4, "call_cached", variables, calls, fresh=30.0)
    assert [wrong for wrong, _ in results] == [[]] * 4
    said = results[0][1].splitlines()
    assert f"{files['all_reduce']}: collective is 'all_gather', not 'all_reduce'" in said[0]
    assert [str(files[kind]) in line for kind, line in zip(kinds[2:], said[1:], strict=True)] == [
        True,
        True,
    ]
    assert [log for _, log in results[1:]] == [""] * 3
    assert {kind: file.read_bytes() for kind, file in files.items()} == before
    assert ranks.run(4, "call_cached", variables, calls, fresh=30.0) == [([], "")] * 4


def test_the_cache_is_bounded(tmp_path, monkeypatch):
    """The files that were used last stay; a file is removed together with its lock."""
    monkeypatch.setattr("tacos.runtime.dispatch.cache._MOST_FILES", 2)
    for number, name in enumerate(("a", "b", "c")):
        plan = msgspec.structs.replace(PLAN, file=f"{name}.tacos")
        kept(tmp_path, plan, made)
        os.utime(tmp_path / plan.file, (number, number))
        kept(
            tmp_path, msgspec.structs.replace(PLAN, file="a.tacos"), made
        )  # used again, so not the oldest
    kept(tmp_path, msgspec.structs.replace(PLAN, file="d.tacos"), made)
    assert sorted(path.name for path in tmp_path.glob("*.tacos")) == ["a.tacos", "d.tacos"]
    assert sorted(path.name for path in tmp_path.glob(".*")) == [".a.tacos.lock", ".d.tacos.lock"]


def test_ranks_work_without_a_place_for_the_cache(ranks, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    variables = {"TACOS_TOPOLOGY": "ring:4", "TACOS_CACHE": str(tmp_path / "file" / "cache")}
    results = ranks.run(4, "call_cached", variables, [("all_reduce", 100)], fresh=30.0)
    assert [wrong for wrong, _ in results] == [[]] * 4
    assert "the schedule is not kept" in results[0][1]
