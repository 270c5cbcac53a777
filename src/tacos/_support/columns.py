"""Columns of whole numbers as the core takes them: checked, never silently cut or wrapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["column"]


def column(name: str, values: ArrayLike, dtype: type[np.integer[Any]]) -> NDArray[Any]:
    """Return `values` as a contiguous column of `dtype`.

    Raises:
        ValueError: They are not whole numbers, do not fit, or are not one-dimensional; the message
            starts with `name`.

    >>> column("route", [0, 2, 1], np.int32)
    array([0, 2, 1], dtype=int32)
    >>> column("route", [0.5], np.int32)
    Traceback (most recent call last):
    ValueError: route must be whole numbers, not 0.5
    >>> column("route", [2**40], np.int32)
    Traceback (most recent call last):
    ValueError: route has 1099511627776; values must be -2147483648 to 2147483647
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional; it has {array.ndim} dimensions")
    if array.dtype == dtype or not array.size:
        return np.ascontiguousarray(array, dtype)
    if array.dtype.kind not in "iu":
        for value in array.tolist():
            if type(value) is not int:
                raise ValueError(f"{name} must be whole numbers, not {value!r}")
    limits = np.iinfo(dtype)
    for value in (int(array.min()), int(array.max())):
        if not limits.min <= value <= limits.max:
            raise ValueError(f"{name} has {value}; values must be {limits.min} to {limits.max}")
    return np.ascontiguousarray(array.astype(dtype))
