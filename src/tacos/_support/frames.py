"""Columns as tables of other libraries: pandas, and everything that supports Arrow.

The core produces the stream (`arrow_stream`), so Polars, DuckDB, pyarrow and pandas read schedules and traces
without a copy, and none of them is required.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import arrow_stream as _arrow_stream
from tacos.errors import TacosError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from pandas import DataFrame
    from pyarrow import Table

    from tacos._core import Topology

__all__ = ["arrow_stream", "from_rows", "to_arrow", "to_pandas"]


class _Stream:
    """An object that other libraries can read columns from."""

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self.columns = columns

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return arrow_stream(self.columns)


def arrow_stream(columns: Mapping[str, NDArray[Any]]) -> object:
    """Return the columns as a stream of Arrow record batches, in the capsule of Arrow's PyCapsule interface.

    >>> "arrow_array_stream" in repr(arrow_stream({"chunk": np.arange(3)}))
    True
    """
    arrays = [np.ascontiguousarray(column) for column in columns.values()]
    return _arrow_stream(list(columns), arrays)


def to_arrow(columns: Mapping[str, NDArray[Any]]) -> Table:
    """Return a pyarrow Table over the columns.

    Raises:
        TacosError: pyarrow is not installed.

    >>> to_arrow({"chunk": np.arange(3), "bytes": np.full(3, 8)}).to_pydict()
    {'chunk': [0, 1, 2], 'bytes': [8, 8, 8]}
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise TacosError("an Arrow table needs pyarrow: pip install 'tacos-ccl[arrow]'") from None
    return pa.table(_Stream(columns))


def from_rows(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return a pandas DataFrame with a row per mapping.

    Raises:
        TacosError: pandas is not installed.

    >>> from_rows([{"engine": "ring", "time_s": 0.5}])["time_s"].tolist()
    [0.5]
    """
    return _pandas().DataFrame.from_records(list(rows))


def to_pandas(
    columns: Mapping[str, NDArray[Any]],
    names: Mapping[str, Sequence[str]] | None = None,
    topology: Topology | None = None,
) -> DataFrame:
    """Return a pandas DataFrame of the columns.

    Args:
        columns: The columns by name.
        names: For columns of codes, the name of each code; the frame has the names instead.
        topology: Adds `src_name` and `dst_name`, the names of the nodes that `src` and `dst` number.

    Raises:
        TacosError: pandas is not installed.

    >>> to_pandas({"op": np.array([1, 0], np.uint8)}, {"op": ("copy", "reduce")})["op"].tolist()
    ['reduce', 'copy']
    """
    pd = _pandas()
    frame = pd.DataFrame(dict(columns))
    for name, words in (names or {}).items():
        if name in frame:
            codes = frame[name].to_numpy(np.int64)
            known = np.where(codes < len(words), codes, -1)  # -1 shows as missing
            frame[name] = pd.Categorical.from_codes(known, list(words))
    if topology is not None:
        nodes = [topology.node_name(node) for node in range(topology.nodes)]
        for end in ("dst", "src"):
            place = list(columns).index("dst") + 1
            frame.insert(place, f"{end}_name", pd.Categorical.from_codes(frame[end], nodes))
    return frame


def _pandas() -> Any:
    try:
        import pandas as pd
    except ImportError:
        raise TacosError("a data frame needs pandas: pip install pandas") from None
    return pd
