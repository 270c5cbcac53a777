"""Text tables as NumPy columns, for files with one link per line.

There is no object per line or field: delimiters are found in the bytes, and each column becomes an array of short byte
strings and then of numbers. A wrong field is located afterwards, with its line.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacos.formats.source import quantity, quoted
from tacos.units import bandwidth_Bps

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["Table", "are_whole", "quantities", "split", "whole_numbers"]

_WIDEST = 64
Fields = np.ndarray[Any, np.dtype[np.bytes_]]


class Table(NamedTuple):
    """Columns of byte strings, and the line number of each row."""

    columns: list[Fields]
    lines: NDArray[np.int64]


def split(data: bytes, separator: bytes, columns: int, first_line: int = 1) -> Table:
    r"""Return the fields of a text of equal rows; empty lines and those that begin with # are skipped.

    Args:
        data: The rows.
        separator: One byte; spaces around a field are ignored.
        columns: Number of fields of every row.
        first_line: The number of the first row's line, for messages.

    Raises:
        ValueError: A row has a different number of fields, or a field is longer than 64 bytes.

    >>> table = split(b"0,1\n\n12, 3\n", b",", 2)
    >>> table.columns, table.lines
    ([array([b'0', b'12'], dtype='|S2'), array([b'1', b'3'], dtype='|S1')], array([1, 3]))
    """
    if any(byte in data for byte in (b" ", b"\t", b"\r")):
        # Runs of spaces are merged first, so that each step is linear for any text.
        data = re.sub(rb"[ \t\r]+", b" ", data).strip(b" ")
        for around in (b"\n", separator):
            data = data.replace(b" " + around, around).replace(around + b" ", around)
    text = np.frombuffer(data.rstrip(b"\n") + b"\n", np.uint8)
    line_ends = np.flatnonzero(text == ord("\n"))
    line_starts = np.append(0, line_ends[:-1] + 1)
    counts = (line_starts < line_ends) & (text[line_starts] != ord("#"))
    lines = np.flatnonzero(counts)
    delimiters = np.flatnonzero((text == ord("\n")) | (text == separator[0]))
    # The delimiters of a row are those from its start to its end.
    first, last = (np.searchsorted(delimiters, at[lines]) for at in (line_starts, line_ends))
    wrong = np.flatnonzero(last - first != columns - 1)
    if wrong.size:
        row = wrong[0]
        found = int(last[row] - first[row]) + 1
        raise ValueError(
            f"line {first_line + int(lines[row])}: there are {found} fields, not {columns}"
        )
    result = []
    for k in range(columns):
        ends = delimiters[first + k]
        starts = line_starts[lines] if k == 0 else delimiters[first + k - 1] + 1
        result.append(_gathered(text, starts, ends, lines + first_line))
    return Table(result, lines + first_line)


def _gathered(
    text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], lines: Any
) -> Fields:
    lengths = ends - starts
    width = int(lengths.max(initial=1))
    if width > _WIDEST:
        line = int(lines[int(lengths.argmax())])
        raise ValueError(f"line {line}: a field has {width} bytes; the limit is {_WIDEST}")
    width = max(width, 1)
    out = np.zeros((starts.size, width), np.uint8)
    for k in range(width):  # one byte of every field at a time, which avoids a matrix of positions
        inside = k < lengths
        out[inside, k] = text[starts[inside] + k]
    return out.view(f"S{width}").ravel()


def whole_numbers(fields: Fields, what: str, lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a column of numbers such as node ids.

    >>> whole_numbers(np.array([b"7", b"12"]), "src", np.array([1, 2]))
    array([ 7, 12])
    >>> whole_numbers(np.array([b"7", b"-1"]), "src", np.array([1, 2]))
    Traceback (most recent call last):
    ValueError: line 2: src is '-1'; it must be a whole number
    """
    digits = _bytes(fields)
    used = digits != 0
    is_digit = (digits >= ord("0")) & (digits <= ord("9"))
    wrong = np.flatnonzero(~(is_digit | ~used).all(axis=1) | ~used[:, 0] | (used.sum(axis=1) > 18))
    if wrong.size:
        row = wrong[0]
        given = quoted(fields[row].decode("utf-8", "replace"))
        raise ValueError(f"line {lines[row]}: {what} is {given}; it must be a whole number")
    value = np.zeros(fields.size, np.int64)
    for k in range(digits.shape[1]):
        value = np.where(used[:, k], value * 10 + (digits[:, k].astype(np.int64) - ord("0")), value)
    return value


def are_whole(fields: Fields) -> bool:
    """Return whether a column holds only numbers.

    >>> are_whole(np.array([b"7", b"12"])), are_whole(np.array([b"gpu0"]))
    (True, False)
    """
    digits = _bytes(fields)
    ok = (digits == 0) | ((digits >= ord("0")) & (digits <= ord("9")))
    return bool(ok.all() and (digits[:, 0] != 0).all())


def _bytes(fields: Fields) -> NDArray[np.uint8]:
    return np.ascontiguousarray(fields).view(np.uint8).reshape(fields.size, fields.dtype.itemsize)


def quantities(
    fields: Fields,
    what: str,
    lines: NDArray[np.int64],
    convert: Callable[..., int],
    unit: float | None = None,
) -> NDArray[np.int64]:
    """Return a column of bandwidths or times: plain numbers in one `unit`, or strings with their own units.

    Args:
        fields: The column.
        what: Its name in messages.
        lines: The line of each row.
        convert: `tacos.units.bandwidth_Bps` or `tacos.units.time_ps`.
        unit: Value of a plain 1 in the core's unit; by default as `convert` reads it.

    >>> from tacos.units import time_ps
    >>> quantities(np.array([b"5e-7", b"1"]), "latency", np.array([1, 2]), time_ps)
    array([       500000, 1000000000000])
    >>> quantities(np.array([b"500ns", b"1us"]), "latency", np.array([1, 2]), time_ps)
    array([ 500000, 1000000])
    """
    one = float(convert(1))
    unit = one if unit is None else unit
    with suppress(ValueError), np.errstate(over="ignore"):  # some have units, or are too large
        numbers = np.rint(fields.astype(np.float64) * unit)
        if bool(np.all((numbers >= (convert is bandwidth_Bps)) & (numbers < 2**53))):
            return numbers.astype(np.int64)
    distinct, which = np.unique(fields, return_inverse=True)
    values = np.empty(distinct.size, np.int64)
    for i, text in enumerate(distinct.tolist()):
        value = quantity(text.decode("utf-8", "replace"))
        if unit != one and not isinstance(value, str):
            value *= unit / one  # convert takes SI units
        try:
            values[i] = convert(value)
        except ValueError:
            line = lines[int(np.flatnonzero(which.ravel() == i)[0])]
            convert(value, what=f"line {line}: {what}")  # raises again, with the line
    return values[which.ravel()]
