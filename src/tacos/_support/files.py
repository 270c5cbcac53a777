"""Atomic writes: files appear whole or not at all; streams work too."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from tacos.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Location", "Stream", "location", "replacing", "replacing_all", "watched"]

_watchers: list[list[Path]] = []
_STALE_S = 24 * 3600.0
"""Age in seconds from which a temporary file counts as abandoned: no file takes a day to write."""
_TEMPORARY = re.compile(r"\.tacos-[0-9a-f]{16}")
_tidied: set[Path] = set()
"""Directories in which this process has looked for abandoned files."""


class Stream:
    """A binary file object in place of a path.

    Its name appears in messages, and the extension of the name gives the format.

    >>> import io
    >>> stream = Stream(io.BytesIO(), "ring.yaml")
    >>> str(stream), stream.suffix
    ('ring.yaml', '.yaml')
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file = file
        self.name = name

    @property
    def suffix(self) -> str:
        """The extension of the name."""
        return Path(self.name).suffix

    @property
    def parent(self) -> Path:
        """The directory that relative names within the data refer to: the current one."""
        return Path()

    def __str__(self) -> str:
        return self.name


Location: TypeAlias = "str | os.PathLike[str] | Stream"
"""A source or destination of data."""


def location(path: Location) -> Path | Stream:
    """Return a path as a Path object; streams have their own name and suffix."""
    return path if isinstance(path, Stream) else Path(path)


@contextmanager
def watched() -> Iterator[list[Path]]:
    """Collect the files that are written within the block.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, watched() as written:
    ...     with replacing(Path(folder) / "notes") as out:
    ...         early = list(written)
    ...     early, [path.name for path in written]
    ([], ['notes'])
    """
    written: list[Path] = []
    _watchers.append(written)
    try:
        yield written
    finally:
        _watchers[:] = [one for one in _watchers if one is not written]


@contextmanager
def replacing(path: Location) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block completes, and is removed otherwise.

    For a stream, yield its file object.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "notes"
    ...     with replacing(target) as out:
    ...         early = target.exists(), out.write(b"done")
    ...     early, target.read_bytes()
    ((False, 4), b'done')
    """
    if isinstance(path, Stream):
        yield path.file
        return
    target = Path(os.path.realpath(path))  # symbolic links are kept
    if target.exists() and not target.is_file():
        raise FormatError(f"{path}: not a regular file; refusing to overwrite it")
    temporary = _temporary(target)
    try:
        with temporary.open("xb") as out:  # with default permissions, unlike tempfile's
            yield out
            _sync(out)
        with _undisturbed():
            _place(temporary, target)
    except OSError as error:
        with suppress(OSError):  # for example if the directory is not a directory
            temporary.unlink()
        raise FormatError(f"{path}: {error.strerror or error}") from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def replacing_all() -> Iterator[Callable[[str | os.PathLike[str], bytes], None]]:
    """Yield a function that writes files, which replace their targets when all are complete.

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
            raise FormatError(f"{path}: not a regular file; refusing to overwrite it")
        temporary = _temporary(target)
        waiting.append((temporary, target))
        try:
            with temporary.open("xb") as out:
                out.write(data)
                _sync(out)
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror or error}") from None

    try:
        yield put
        with _undisturbed():
            for temporary, target in waiting:
                try:
                    _place(temporary, target)
                except OSError as error:
                    raise FormatError(f"{target}: {error.strerror or error}") from None
    except BaseException:
        for temporary, _ in waiting:
            temporary.unlink(missing_ok=True)
        raise


def _temporary(target: Path) -> Path:
    """Return a temporary name beside the target, and remove old temporary files that killed processes left there."""
    folder = target.parent
    if folder not in _tidied:
        _tidied.add(folder)
        latest = time.time() - _STALE_S
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if _TEMPORARY.fullmatch(entry.name):
                    with suppress(OSError):  # another process has removed it
                        if entry.stat(follow_symlinks=False).st_mtime < latest:
                            os.unlink(entry.path)  # noqa: PTH108, entries are not paths
    return target.with_name(f".tacos-{os.urandom(8).hex()}")


def _sync(out: BinaryIO) -> None:
    """Wait until a file's data are on the disk, so that a power failure does not leave an empty file."""
    out.flush()
    with suppress(OSError):  # some file systems do not support it
        os.fdatasync(out.fileno())


def _place(temporary: Path, target: Path) -> None:
    temporary.replace(target)
    for written in _watchers:
        written.append(target)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, so that either all files are replaced or none."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # only the main thread handles signals
        return
    came: list[tuple[Any, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        handler(*came[-1])
