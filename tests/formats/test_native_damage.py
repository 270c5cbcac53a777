"""Damaged .tacos files, and intact ones whose content is wrong: all are refused."""

from __future__ import annotations

import contextlib
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tacos.errors import FormatError
from tacos.formats import native
from tacos.schedule import Schedule
from tests.support.native_files import (
    refused,
    ring_orbit,
    sealed,
    switch_trees,
    taken_apart,
    written,
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("native") / "x.tacos"


# --- damage -------------------------------------------------------------------------------------


some_or_all = pytest.mark.parametrize(
    "stride", [pytest.param(5, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
)


@some_or_all
def test_a_file_cut_anywhere_is_refused(scratch, stride):
    data = written(ring_orbit(), scratch)
    for length in {*range(0, len(data), stride), *range(64), *range(len(data) - 64, len(data))}:
        refused(scratch, data[:length])


@some_or_all
def test_any_changed_byte_is_refused(scratch, stride):
    data = bytearray(written(ring_orbit(), scratch))
    for place in range(0, len(data), stride):
        data[place] ^= 1 << place % 8
        refused(scratch, data)
        data[place] ^= 1 << place % 8


@given(st.data())
def test_any_run_of_changed_bytes_is_refused(scratch, data):
    good = written(switch_trees(), scratch)
    place = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.binary(min_size=1, max_size=64))
    bad = good[:place] + other + good[place + len(other) :]
    assume(bad != good)
    refused(scratch, bad)


def test_what_is_no_file_of_ours(scratch, tmp_path):
    data = written(ring_orbit(), scratch)
    assert refused(scratch, b"") == "the file is empty"
    assert refused(scratch, b"tacos: 1\n") == "not a .tacos file: it lacks the signature"
    assert "text mode" in refused(scratch, data.replace(b"\r\n", b"\n"))
    assert refused(scratch, data + b"123") == "3 bytes follow the end of the schedule"
    assert refused(scratch, data[:-64]).endswith(f"of {len(data)}: it is cut short")
    assert refused(scratch, data[:12]) == "the file has 12 bytes: it is cut short"
    assert "checksum" in refused(scratch, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FormatError, match="not a regular file"):
        native.read(tmp_path)
    os.mkfifo(tmp_path / "pipe.tacos")
    with pytest.raises(FormatError, match="not a regular file"):
        native.read(tmp_path / "pipe.tacos")


def test_other_versions_are_refused(scratch):
    parts = taken_apart(written(ring_orbit(), scratch))
    newer = refused(scratch, sealed(*parts, version=7))
    assert newer == "version is 7, but this version of tacos reads up to 1; upgrade it"
    assert refused(scratch, sealed(*parts, version=0)) == "version is 0; it must be 1"


# --- files that are intact but wrong --------------------------------------------------------------


def change(header, path, value):
    *steps, last = path
    for step in steps:
        header = header[step]
    header[last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["new"], 1, "unknown field `new`"),
        (["topology", "npus"], 2**31, "Expected `int` <= 2147483647 - at `$.topology.npus`"),
        (["topology", "npus"], 2**31 - 1, "npus is 2147483647, more than the file has bytes"),
        (["topology", "npus"], 0, "at least one NPU"),
        (["topology", "npus"], 2**70, "Expected `int` <= 2147483647 - at `$.topology.npus`"),
        (["topology", "link_model"], "magic", 'link_model is "magic"; it must be '),
        (["topology", "dims"], [["ring", 3]], "do not multiply to 4 NPUs"),
        (["collective", 0, "kind"], "all_sorts", 'unknown collective "all_sorts"'),
        (["collective", 0, "chunks"], 0, "needs a collective with a number of chunks"),
        (["collective", 0, "size_bytes"], 0, "size is 0 B"),
        (["collective", 0, "entries", "group"], 3, "collective.group has 4 entries, but the parts"),
        (["collective", 0, "entries", "group"], 2**65, "the parts have 36893488147419103232"),
        (["collective", 0, "entries", "more"], 3, "unknown field `more`"),
        (["schedule", "time_ps"], 1, "time_ps is 1, but the transfers end at 6000000 ps"),
        (["schedule", "quantum_ps"], 0, "the time quantum is 0 ps"),
        (["schedule", "orders"], [5], "larger than the number of NPUs"),
        (["schedule", "orders"], [2, 2], "do not fit the topology"),
        (["schedule", "provenance"], "[]", "provenance must be the text of a JSON object"),
        (["schedule", "provenance"], "[" * 10**5, "provenance must be the text of a JSON object"),
        (["sections"], [], "there are 0 sections; version 1 has 24"),
        (["sections", 1, "dtype"], "<i8", '"topology.link_src" with dtype "<i8"; it must be'),
        (["sections", 1, "name"], "topology.source", '"topology.source" with dtype "<i4"'),
        (["sections", 1, "count"], 3, "section topology.link_src has fewer entries"),
        (["sections", 1, "count"], -1, "Expected `int` >= 0 - at `$.sections[1].count`"),
        (["sections", 2, "count"], 3, "the link columns differ in length"),
        (["sections", 22, "count"], 2**40, "bytes of 4398046514880: it is cut short"),
        (["sections", 22, "count"], 2**62, "bytes of 18446744073709555392: it is cut short"),
    ],
)
def test_a_wrong_header_is_refused_before_anything_large_is_allocated(
    scratch, path, value, message
):
    header, columns = taken_apart(written(ring_orbit(), scratch))
    change(header, path, value)
    data = sealed(header, columns)
    tracemalloc.start()
    try:
        assert message in refused(scratch, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("topology.link_src", [0, 1, 2, 9], "names node 9, but the nodes are 0 to 3"),
        ("topology.link_bandwidth_Bps", [1, 1, 1, 0], "has bandwidth 0 B/s"),
        ("collective.group", [0, 1, 1, 3], "NPU 1 is twice in the group"),
        ("routes.links", [0, 1, 4], "a route names link 4"),
        ("schedule.lane_route", [0, 1, 3], "lane 2 names route 3"),
        ("schedule.lane_begin", [0, 1, 2, 2], "lane columns do not fit together"),
        ("schedule.chunk", [0, 4, 0], "a transfer names chunk 4, but there are 4"),
        ("schedule.node_image", [1, 2, 3, -1], "the symmetry leaves the topology"),
    ],
)
def test_columns_that_the_constructors_refuse(scratch, name, values, message):
    header, columns = taken_apart(written(ring_orbit(), scratch))
    columns[name] = np.array(values, columns[name].dtype)
    assert message in refused(scratch, sealed(header, columns))


def test_names_that_are_no_names(scratch):
    header, columns = taken_apart(written(switch_trees(), scratch))
    for bad in (b"[1, 2]", b'["a"', b'["\xff"]', b"{}"):
        columns["topology.names"] = np.frombuffer(bad, np.uint8)
        header["sections"][5]["count"] = len(bad)
        assert refused(scratch, sealed(header, columns)).startswith("topology.names: ")


@given(st.data())
def test_any_value_in_any_column_is_read_or_refused(scratch, data):
    header, columns = taken_apart(written(switch_trees(), scratch))
    name = data.draw(st.sampled_from([name for name, column in columns.items() if len(column)]))
    column = columns[name].copy()
    limits = np.iinfo(column.dtype)
    place = data.draw(st.integers(0, len(column) - 1))
    column[place] = data.draw(st.integers(limits.min, limits.max) | st.integers(0, 8))
    columns[name] = column
    scratch.write_bytes(sealed(header, columns))
    with contextlib.suppress(FormatError):
        assert isinstance(native.read(scratch), Schedule)
