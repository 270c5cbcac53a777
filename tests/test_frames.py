"""Schedules and traces as tables of other libraries."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import tacos
from tacos._support import frames

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def schedule():
    mesh = tacos.topology.mesh(2, 3)
    return tacos.synthesize(mesh, tacos.collective.all_reduce(mesh, "1MB", chunks=2), engine="ring")


def test_a_schedule_is_a_table_of_its_rows(schedule):
    table = schedule.to_arrow()
    rows = schedule.rows()
    assert table.column_names == list(rows)
    for name, column in rows.items():
        assert table[name].to_numpy().dtype == column.dtype
        assert np.array_equal(table[name].to_numpy(), column)


def test_a_trace_is_a_table_of_its_busy_intervals(schedule):
    trace = tacos.simulate(schedule)
    table = trace.to_arrow()
    assert table.num_rows == len(trace.link)
    assert np.array_equal(table["end_ps"].to_numpy(), trace.end_ps)
    assert pa.table(trace).equals(table)


def test_long_columns_come_in_batches_without_a_copy():
    """2^20 rows are a batch; its buffer is the column's own memory, shifted by an offset."""
    column = np.arange(2**21 + 5, dtype=np.int32)
    reader = pa.RecordBatchReader.from_stream(frames._Stream({"a": column, "b": column * 2.0}))
    batches = list(reader)
    assert [batch.num_rows for batch in batches] == [2**20, 2**20, 5]
    assert batches[1]["a"].buffers()[1].address == column.ctypes.data
    assert batches[2]["b"].to_pylist() == [2.0 * i for i in range(2**21, 2**21 + 5)]


def test_batches_outlive_what_they_came_from(schedule):
    rows = {name: column.copy() for name, column in schedule.rows().items()}
    table = schedule.to_arrow()
    column = table["start_ps"]
    del schedule, table
    gc.collect()
    assert np.array_equal(column.to_numpy(), rows["start_ps"])


def test_the_last_reference_may_go_in_a_thread_that_does_not_hold_the_lock(schedule):
    held = [schedule.to_arrow().to_batches()[0]]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert held == []


def test_a_stream_may_stay_unread(schedule):
    capsule = schedule.__arrow_c_stream__()
    assert "arrow_array_stream" in repr(capsule)
    del capsule
    gc.collect()


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f8"])
def test_every_type_of_column_arrives_as_it_is(dtype):
    values = np.array([0, 1, 100], dtype)
    found = frames.to_arrow({"x": values})["x"].to_numpy()
    assert found.dtype == values.dtype
    assert found.tolist() == values.tolist()


def test_no_rows_and_no_columns():
    assert frames.to_arrow({"x": np.zeros(0, np.int32)}).num_rows == 0
    assert frames.to_arrow({}).num_columns == 0


def test_columns_that_are_no_table_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        frames.arrow_stream({"x": np.zeros(2), "y": np.zeros(3)})
    with pytest.raises(TypeError, match="whole numbers or float64"):
        frames.arrow_stream({"x": np.zeros(2, np.complex128)})


def test_pandas_has_the_same_columns(schedule):
    pd = pytest.importorskip("pandas")
    frame = schedule.to_pandas()
    assert [name for name in frame if not name.endswith("_name")] == list(schedule.rows())
    assert frame["bytes"].sum() == schedule.rows()["bytes"].sum()
    assert isinstance(tacos.simulate(schedule).to_pandas(), pd.DataFrame)


@pytest.mark.parametrize("name", ["pandas", "pyarrow"])
def test_what_is_missing_is_named(schedule, name, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(tacos.TacosError, match="pip install"):
        schedule.to_pandas() if name == "pandas" else schedule.to_arrow()


def test_polars_reads_a_schedule(schedule):
    polars = pytest.importorskip("polars")
    assert polars.DataFrame(schedule)["chunk"].to_list() == schedule.rows()["chunk"].tolist()
