"""A cache of schedules on disk: they are made once and checked whenever they are used.

A file of the cache is not trusted. It may be truncated, overwritten, written by another
program or made for another call. Its contents are compared with the call and verified before
they are used. A bad file is reported on standard error and replaced. If the cache cannot be
read or written, the schedule is made for this run only; this costs time but is not an error. A cache holds at most 4096
schedules and 1 GiB.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from tacos._support.files import replacing
from tacos._support.log import LOG
from tacos.errors import TacosError
from tacos.library import Plan, difference, locked, packed, unpacked
from tacos.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tacos._core import Schedule

__all__ = ["checked", "kept"]

_said: set[tuple[Path, str]] = set()
"""Directories that cannot be written to, and why."""
_MOST_FILES = 4096
_MOST_BYTES = 1 << 30
"""Limits of a cache; the least recently used schedules are removed first."""


def kept(folder: Path, plan: Plan, make: Callable[[], Schedule]) -> bytes:
    """Return the file of a schedule for a plan: from the cache, or made now and stored.

    Processes that need the same schedule take turns, so only one of them makes it.

    Args:
        folder: Directory of the cache; created if it does not exist.
        plan: What the schedule must do, and the name of its file.
        make: Function that makes the schedule.

    Raises:
        TacosError: A schedule that was made now is wrong, or does not match the plan.

    >>> import tempfile, tacos
    >>> from pathlib import Path
    >>> from tacos.library import described
    >>> topo = tacos.topology.ring(4)
    >>> coll = tacos.collective.all_gather(topo, "1MB")
    >>> plan = described(coll, topo, "ag.tacos")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = kept(Path(folder), plan, lambda: tacos.synthesize(topo, coll))
    ...     made == kept(Path(folder), plan, lambda: 1 / 0)
    True
    """
    file = folder / plan.file
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(folder / f".{plan.file}.lock"))
        except (OSError, TacosError):
            # Reading needs no lock, since files are replaced atomically; writing reports why it fails.
            pass
        data = _found(file, plan)
        if data is None:
            schedule = make()
            checked(schedule, plan)
            data = packed(schedule)
            _keep(file, data)
        else:
            with suppress(OSError):  # the oldest are removed first
                os.utime(file)
    return data


def _keep_within_bounds(folder: Path) -> None:
    """Remove the least recently used schedules until the cache is within its limits."""
    found = []
    with suppress(OSError):
        for path in folder.glob("*.tacos"):
            with suppress(OSError):  # another process has removed it
                state = path.stat()
                found.append((state.st_mtime, state.st_size, path))
    found.sort(reverse=True)
    total = 0
    for number, (_, size, path) in enumerate(found, 1):
        total += size
        if number > 1 and (number > _MOST_FILES or total > _MOST_BYTES):
            for one in (path, path.with_name(f".{path.name}.lock")):
                with suppress(OSError):
                    one.unlink()


def checked(schedule: Schedule, plan: Plan) -> Schedule:
    """Return the schedule if it matches a plan and is correct.

    Raises:
        TacosError: It does not match the plan, or is wrong.
    """
    if other := difference(schedule, plan):
        raise TacosError(other)
    verify(schedule, limit=1).raise_if_failed()
    return schedule


def _found(file: Path, plan: Plan) -> bytes | None:
    """Return the contents of a file if it may be used; otherwise log the reason."""
    try:
        data = _content(file)
        checked(unpacked(data, str(file)), plan)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (TacosError, ValueError, OSError, MemoryError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        LOG.warning(
            "%s", f"{file}: {why.removeprefix(f'{file}: ')}; the schedule is synthesized again"
        )
        return None
    return data


def _content(file: Path) -> bytes:
    if file.exists() and not file.is_file():  # opening a pipe would block forever
        raise TacosError("not a regular file")
    return file.read_bytes()


def _keep(file: Path, data: bytes) -> None:
    try:
        with replacing(file) as out:
            out.write(data)
        _keep_within_bounds(file.parent)
    except (TacosError, OSError) as error:
        with suppress(OSError):  # a file that cannot be replaced may be removable
            file.unlink()
        place = (file.parent, str(error).removeprefix(f"{file}: "))
        if place not in _said:  # report it once, not for every schedule
            _said.add(place)
            LOG.warning("the schedule is not kept: %s", error)
