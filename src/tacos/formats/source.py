"""Read the bytes or the text of a file or a stream, with one-sentence errors.

Every reader of text starts here: the size is limited before anything is read, and text must be UTF-8. A reader raises
a ValueError about the text, and `about` adds the file's name.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tacos._support.files import Location, Stream
from tacos.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacos.units import Quantity

__all__ = ["about", "beginning", "bytes_of", "fields_of", "quantity", "quoted", "text_of"]

MOST_BYTES = 1 << 29
_HEAD = 1 << 16
_Record = TypeVar("_Record")


@contextmanager
def about(path: Location) -> Iterator[None]:
    """Turn a ValueError into a FormatError that starts with the file's name.

    >>> with about("net.csv"):
    ...     raise ValueError("line 3: latency is -1")
    Traceback (most recent call last):
    tacos.errors.FormatError: net.csv: line 3: latency is -1
    """
    try:
        yield
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None


def bytes_of(path: Location, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file; raise a ValueError if it is not a regular file, or larger than `most`.

    >>> bytes_of("/dev/zero")
    Traceback (most recent call last):
    ValueError: not a regular file
    """
    if isinstance(path, Stream):
        data = path.file.read(most + 1)
        if len(data) > most:
            raise ValueError(f"the stream has more than {most} bytes")
    else:
        file = Path(path)
        if file.exists() and not file.is_file():
            raise ValueError("not a regular file")
        size = file.stat().st_size
        if size > most:
            raise ValueError(f"the file has {size} bytes; the limit is {most}")
        data = file.read_bytes()
    if not data.strip():
        raise ValueError("the file is empty")
    return data


def text_of(path: Location, most: int = MOST_BYTES) -> str:
    """Return the text of a file; raise a ValueError if it is not UTF-8."""
    try:
        return bytes_of(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the file is not UTF-8 text (byte {error.start})") from None


def beginning(path: Location) -> str:
    """Return the first 64 KiB of a file as text, to identify its format; empty if it is not a regular file.

    A stream is read from its position, and then set back to it.
    """
    if isinstance(path, Stream):
        here = path.file.tell()
        head = path.file.read(_HEAD)
        path.file.seek(here)
        return head.decode("utf-8-sig", "replace")
    file = Path(path)
    if not file.is_file():
        return ""
    with file.open("rb") as stream:
        return stream.read(_HEAD).decode("utf-8-sig", "replace")


def quoted(value: object) -> str:
    """Return a value for a message: short, and on one line.

    >>> quoted("a" * 80), quoted("two\\nlines")
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…", "'two\\\\nlines'")
    """
    text = repr(value)
    return text if len(text) <= 60 else text[:40] + "…"


def quantity(text: str) -> Quantity:
    """Return a field of a text as a number, or else as a string that should have a unit.

    >>> quantity("50000000000"), quantity("5e-7"), quantity("500ns")
    (50000000000, 5e-07, '500ns')
    """
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    with suppress(ValueError):
        if re.fullmatch(r"[-+0-9.eE]{1,60}", text):
            return float(text)
    return text


def fields_of(data: object, kind: type[_Record]) -> _Record:
    """Convert decoded JSON or YAML to an instance of a msgspec `kind`; a ValueError names the field.

    >>> import msgspec
    >>> class Box(msgspec.Struct):
    ...     gpus: int
    >>> fields_of({"gpus": "8"}, Box)
    Traceback (most recent call last):
    ValueError: gpus: expected int, got str
    """
    import msgspec

    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `")
        place = place.removesuffix("`").removeprefix("key in ").removeprefix("$").removeprefix(".")
        what = (what[0].lower() + what[1:]).replace("`", "")
        raise ValueError(f"{place}: {what}" if place else what) from None
