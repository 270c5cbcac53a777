"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tacos.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedWriter

__all__ = ["replacing", "replacing_all"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BufferedWriter]:
    """A file to write to, which takes the place of `path` once complete and goes away otherwise.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "notes"
    ...     with replacing(target) as out:
    ...         early = target.exists(), out.write(b"done")
    ...     early, target.read_bytes()
    ((False, 4), b'done')
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    if target.exists() and not target.is_file():
        raise FormatError(f"{path}: this is no file, so it is not replaced")
    temporary = target.with_name(f".tacos-{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as out:  # the permissions of any new file, unlike tempfile's
            yield out
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FormatError(f"{path}: {error.strerror or error}") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_all() -> Iterator[Callable[[str | os.PathLike[str], bytes], None]]:
    """A function that writes files, which take their places once all are complete.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing_all() as put:
    ...         put(Path(folder, "a"), b"1")
    ...         put(Path(folder, "b"), b"2")
    ...         early = Path(folder, "a").exists()
    ...     early, sorted(os.listdir(folder))
    (False, ['a', 'b'])
    """
    waiting: list[tuple[Path, Path]] = []

    def put(path: str | os.PathLike[str], data: bytes) -> None:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            raise FormatError(f"{path}: this is no file, so it is not replaced")
        temporary = target.with_name(f".tacos-{secrets.token_hex(8)}")
        waiting.append((temporary, target))
        try:
            with temporary.open("xb") as out:
                out.write(data)
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror or error}") from None

    try:
        yield put
        for temporary, target in waiting:
            try:
                temporary.replace(target)
            except OSError as error:
                raise FormatError(f"{target}: {error.strerror or error}") from None
    except BaseException:
        for temporary, _ in waiting:
            temporary.unlink(missing_ok=True)
        raise
