"""Columns as the tables of other libraries: pandas, and whatever knows Arrow.

The stream is made by the core (`arrow_stream`), so that Polars, DuckDB, pyarrow and pandas read
schedules and traces without a copy, and none of them has to be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import arrow_stream as _arrow_stream
from tacos.errors import TacosError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["arrow_stream", "to_arrow", "to_pandas"]


class _Stream:
    """What a library asks for its columns."""

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self.columns = columns

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return arrow_stream(self.columns)


def arrow_stream(columns: Mapping[str, NDArray[Any]]) -> Any:
    """The columns as a stream of Arrow record batches, in the capsule of Arrow's PyCapsule interface.

    >>> "arrow_array_stream" in repr(arrow_stream({"chunk": np.arange(3)}))
    True
    """
    arrays = [np.ascontiguousarray(column) for column in columns.values()]
    return _arrow_stream(list(columns), arrays)


def to_arrow(columns: Mapping[str, NDArray[Any]]) -> Any:
    """A pyarrow Table over the columns.

    Raises:
        TacosError: There is no pyarrow.

    >>> to_arrow({"chunk": np.arange(3), "bytes": np.full(3, 8)}).to_pydict()
    {'chunk': [0, 1, 2], 'bytes': [8, 8, 8]}
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise TacosError("an Arrow table needs pyarrow: pip install 'tacos-ccl[arrow]'") from None
    return pa.table(_Stream(columns))


def to_pandas(columns: Mapping[str, NDArray[Any]]) -> Any:
    """A pandas DataFrame of the columns.

    Raises:
        TacosError: There is no pandas.
    """
    try:
        import pandas as pd
    except ImportError:
        raise TacosError("a data frame needs pandas: pip install pandas") from None
    return pd.DataFrame(dict(columns))
