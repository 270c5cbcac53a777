"""Traces: figures against sums in plain Python, files read back."""

from __future__ import annotations

import csv
import gzip
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import FormatError, Trace, simulate
from tacos import collective as co
from tacos import topology as tp
from tacos.simulate import trace_export
from tacos.view import heat_text

US = 1_000_000


def columns(**changes):
    """NPU 0 sends to 1 from 0 to 4 and from 6 to 8 us, arriving at 5 and 10 us; and 1 once to 0."""
    return {
        "link": [0, 1, 0],
        "begin_ps": [0, 5 * US, 6 * US],
        "end_ps": [4 * US, 7 * US, 8 * US],
        "transfer": [0, 1, 2],
        "arrival_npu": [1, 0, 1],
        "arrival_ps": [5 * US, 8 * US, 10 * US],
        "arrival_bytes": [4000, 2000, 2000],
        "arrival_transfer": [0, 1, 2],
        "npu_finish_ps": [8 * US, 10 * US],
        "cause": [-1, 0, -1],
        "clean_time_ps": 8 * US,
        "provenance": {},
    } | changes


def pair():
    return tp.mesh(2, bandwidth="1GB/s", latency="1us")


@pytest.fixture
def trace():
    return Trace(pair(), **columns())


@pytest.fixture(scope="module")
def real():
    topology = tp.mesh(3, 3)
    return simulate(
        tacos.synthesize(topology, co.all_reduce(topology, "1MB", chunks=2), engine="ring")
    )


def test_figures_by_hand(trace):
    assert trace.time_ps == 10 * US
    assert trace.time_s == pytest.approx(1e-5)
    assert trace.loss == 0.25
    assert trace.busy_ps().tolist() == [6 * US, 2 * US]
    assert trace.link_utilisation().tolist() == [0.6, 0.2]
    edges, share = trace.utilisation_over_time(5)
    assert edges.tolist() == pytest.approx([0, 2e-6, 4e-6, 6e-6, 8e-6, 1e-5])
    assert share.tolist() == [[1, 1, 0, 1, 0], [0, 0, 0.5, 0.5, 0]]
    edges, arrived = trace.npu_progress(2)
    assert arrived.tolist() == [[0, 2000], [4000, 6000]]
    path = trace.critical_path()
    assert path["transfer"].tolist() == [2]
    assert trace.summary()["busiest_link"] == "npu 0 -> npu 1"
    assert trace.summary()["last_npu"] == "npu 1"


def test_the_critical_path_ends_with_the_last_arrival_and_has_no_gap(real):
    path = real.critical_path()
    assert path["arrival_ps"][-1] == real.time_ps
    assert path["begin_ps"][0] == 0
    for (_, before), (begin, _) in pairwise(
        zip(path["begin_ps"].tolist(), path["arrival_ps"].tolist(), strict=True)
    ):
        assert begin <= before  # it waited for a link that was freed earlier, or for the arrival


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 99), st.integers(0, 99)), max_size=9),
)
def test_utilisation_over_time_is_the_overlap_with_each_bin(bins, rows):
    rows = sorted((min(a, b), max(a, b), link) for link, a, b in rows)
    finish = max([1, *(end for _, end, _ in rows)])
    made = Trace(pair(), **columns(
        link=[r[2] for r in rows], begin_ps=[r[0] for r in rows], end_ps=[r[1] for r in rows],
        transfer=range(len(rows)), arrival_npu=[], arrival_ps=[], arrival_bytes=[],
        arrival_transfer=[], npu_finish_ps=[finish, 0], cause=None,
    ))  # fmt: skip
    _, share = made.utilisation_over_time(bins)
    edges = [finish * i // bins for i in range(bins + 1)]
    for link in (0, 1):
        for k, (low, high) in enumerate(pairwise(edges)):
            overlap = sum(max(0, min(b, high) - max(a, low)) for a, b, at in rows if at == link)
            assert share[link, k] * max(1, high - low) == pytest.approx(overlap)


def test_what_arrives_adds_up(real):
    _, arrived = real.npu_progress(7)
    assert arrived[:, -1].sum() == real.arrival_bytes.sum()
    assert (np.diff(arrived, axis=1) >= 0).all()
    _, share = real.utilisation_over_time(13)
    assert share.mean() == pytest.approx(real.link_utilisation().mean(), rel=1e-6)


def test_a_trace_is_immutable(trace):
    with pytest.raises(AttributeError, match="immutable"):
        trace.link = np.zeros(3)
    with pytest.raises(ValueError, match="read-only"):
        trace.begin_ps[0] = 1


def test_columns_come_into_the_order_of_time():
    turned = {
        name: values[::-1]
        if isinstance(values, list) and name not in ("npu_finish_ps", "cause")
        else values
        for name, values in columns().items()
    }
    assert Trace(pair(), **turned).begin_ps.tolist() == columns()["begin_ps"]
    assert Trace(pair(), **turned).arrival_npu.tolist() == columns()["arrival_npu"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"link": [0, 1]}, "link has 2 entries, begin_ps has 3"),
        ({"link": [0, 1, 2]}, "link has 2; values must be 0 to 1"),
        ({"arrival_npu": [0, -1, 1]}, "arrival_npu has -1; values must be 0 to 1"),
        ({"npu_finish_ps": [0]}, "npu_finish_ps has 1 entries for 2 NPUs"),
        ({"link_busy_ps": [0]}, "link_busy_ps has 1 entries for 2 links"),
        ({"ended_ps": [0]}, "ended_ps is not a column of a trace"),
        ({"end_ps": [0, 0, 0]}, "ends before it begins"),
        ({"begin_ps": [0.5, 0, 0]}, "begin_ps must be whole numbers, not 0.5"),
    ],
)
def test_columns_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Trace(pair(), **columns(**changes))


def test_wrong_bins_and_a_missing_cause_are_refused(trace):
    with pytest.raises(ValueError, match="bins must be 1 to 2\\^20; got 0"):
        trace.utilisation_over_time(0)
    with pytest.raises(ValueError, match="does not record which transfer waited"):
        Trace(pair(), **columns(cause=None)).critical_path()


def test_a_trace_without_a_record_says_what_it_lacks():
    trace = Trace(pair(), npu_finish_ps=[0, 2], link_busy_ps=[1, 0], provenance={})
    assert not trace.recorded
    assert (trace.time_ps, trace.link_utilisation().tolist()) == (2, [0.5, 0])
    assert trace.summary()["utilisation_max"] == 0.5
    assert "not recorded" in repr(trace)
    for asked in (lambda: trace.begin_ps, trace.rows, trace.utilisation_over_time):
        with pytest.raises(AttributeError, match=r"has no \w+: the run was not recorded"):
            asked()
    with pytest.raises(ValueError, match="arrival_bytes is missing"):
        Trace(pair(), npu_finish_ps=[0, 2], link=[0], provenance={})


# --- files --------------------------------------------------------------------------------------


def events_of(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]


def test_perfetto_has_a_track_per_link_and_npu(trace, tmp_path):
    tacos.save(trace, tmp_path / "t.perfetto.json")
    events = events_of(tmp_path / "t.perfetto.json")
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[1, 0] == "link 0: npu 0 -> npu 1"
    assert names[2, 1] == "npu 1"
    slices = [(e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [(0, 0, 4), (1, 5, 2), (0, 6, 2)]
    assert [(e["tid"], e["args"]["bytes"]) for e in events if e["ph"] == "i"] == [
        (1, 4000),
        (0, 2000),
        (1, 2000),
    ]
    assert [(e["tid"], e["ts"]) for e in events if e["ph"] == "s"] == [(0, 0)]
    assert [(e["tid"], e["ts"]) for e in events if e["ph"] == "f"] == [(1, 5)]
    assert max(e["args"]["links"] for e in events if e["ph"] == "C") == 2


def test_the_same_trace_makes_the_same_compressed_file(real, tmp_path):
    real.save(tmp_path / "a.json.gz")
    real.save(tmp_path / "b.json.gz")
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    real.save(tmp_path / "a.json")
    assert events_of(tmp_path / "a.json.gz") == events_of(tmp_path / "a.json")


def test_long_traces_show_the_critical_path_only(real, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_export, "_ALL_FLOWS", 0)
    real.save(tmp_path / "t.json")
    arrows = [e["id"] for e in events_of(tmp_path / "t.json") if e["ph"] == "s"]
    assert arrows == real.critical_path()["transfer"][1:].tolist()


def test_csv_has_every_interval_and_arrival(real, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_export, "_BATCH", 7)
    tacos.save(real, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    busy = [row for row in rows if row["event"] == "busy"]
    assert [int(row["begin_ps"]) for row in busy] == real.begin_ps.tolist()
    assert [int(row["src"]) for row in busy] == real.rows()["src"].tolist()
    arrived = [row for row in rows if row["event"] == "arrival"]
    assert [int(row["bytes"]) for row in arrived] == real.arrival_bytes.tolist()
    assert [int(row["dst"]) for row in arrived] == real.arrival_npu.tolist()
    assert {row["link"] for row in arrived} == {""}


def test_parquet_has_the_same_rows(real, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    real.save(tmp_path / "t.parquet")
    table = parquet.read_table(tmp_path / "t.parquet").to_pydict()
    assert table["event"] == ["busy"] * len(real.link) + ["arrival"] * len(real.arrival_npu)
    assert table["end_ps"] == [*real.end_ps.tolist(), *real.arrival_ps.tolist()]
    assert table["bytes"][0] is None


def test_an_unknown_ending_writes_nothing(trace, tmp_path):
    with pytest.raises(
        FormatError, match=r"t\.png: a trace must have one of the extensions \.pftrace"
    ):
        tacos.save(trace, tmp_path / "t.png")
    with pytest.raises(FormatError, match=r"nowhere/t\.csv: No such file or directory"):
        trace.save(tmp_path / "nowhere" / "t.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_transfers_has_figures_and_files(tmp_path):
    topology = tp.mesh(2)
    schedule = tacos.synthesize(
        topology, co.broadcast(topology, 1, group=[0], chunks=1), engine="ring"
    )
    empty = simulate(schedule)
    assert (empty.time_ps, empty.loss, empty.critical_path()["transfer"].tolist()) == (0, None, [])
    assert empty.utilisation_over_time(3)[1].sum() == 0
    for name in ("t.json", "t.csv", "t.parquet"):
        empty.save(tmp_path / name)
    assert heat_text(empty)


def test_a_terminal_without_blocks_gets_a_heat_map_too(real):
    text = heat_text(real, width=60, encoding="ascii")
    assert text.isascii()
    assert text.count("#") == heat_text(real, width=60).count("█") > 0


def test_the_heat_map_has_a_line_per_group_of_links(real):
    text = heat_text(real, width=60, height=6).splitlines()
    assert len(text) == 7
    assert {len(line) for line in text[:-1]} == {60}
    assert "▓" in "".join(text)
