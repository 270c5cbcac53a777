"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tacos.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedWriter

__all__ = ["replacing"]


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
