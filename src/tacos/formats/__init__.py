"""Files: `save` and `load` choose the format by the ending of the file's name.

============================  ========================================
``.tacos``                    a schedule with all that belongs to it
``.yaml`` ``.yml`` ``.json``  a topology, as people write it
============================  ========================================

A trace is written too, by its own formats (`tacos.simulate.Trace.save`).

A format is a module with ``read(path)`` and ``write(object, path)``; they do not know each other.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tacos._core import Schedule, Topology
from tacos.errors import FormatError
from tacos.formats import native, topology_file

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["load", "save"]

# A format is called by the ending of its files.
_FORMATS: dict[str, tuple[type, Any]] = {
    "tacos": (Schedule, native),
    "yaml": (Topology, topology_file),
    "yml": (Topology, topology_file),
    "json": (Topology, topology_file),
}


@runtime_checkable
class WritesItself(Protocol):
    """A trace, for one: its formats belong to the layer that made it."""

    def save(self, path: str | os.PathLike[str], *, format: str | None = None) -> None: ...


def save(
    obj: Schedule | Topology | WritesItself,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
) -> None:
    """Write a schedule, a topology or a trace to a file, whole or not at all.

    Args:
        obj: What to write.
        path: Where; a file that is there is replaced.
        format: ``"tacos"``, ``"yaml"`` or ``"json"``, if the name's ending does not say it.

    Raises:
        FormatError: The ending is unknown or does not suit the object, or the disk refuses.

    >>> import tacos
    >>> save(tacos.topology.ring(4), "ring.tacos")
    Traceback (most recent call last):
    tacos.errors.FormatError: ring.tacos: a .tacos file holds a Schedule, not a Topology
    """
    if isinstance(obj, WritesItself):
        obj.save(path, format=format)
        return
    name = _chosen(path, format)
    kind, module = _FORMATS[name]
    if not isinstance(obj, kind):
        found = type(obj).__name__
        raise FormatError(f"{path}: a .{name} file holds a {kind.__name__}, not a {found}")
    with _system_errors(path):
        module.write(obj, path)


def load(path: str | os.PathLike[str], *, format: str | None = None) -> Any:
    """Read what `save` wrote: a Schedule from a ``.tacos`` file, a Topology from the others.

    Args:
        path: The file.
        format: ``"tacos"``, ``"yaml"`` or ``"json"``, if the name's ending does not say it.

    Raises:
        FormatError: The file is missing or not what its name says; the message names it.

    >>> load("missing.tacos")
    Traceback (most recent call last):
    tacos.errors.FormatError: missing.tacos: No such file or directory
    """
    _, module = _FORMATS[_chosen(path, format)]
    with _system_errors(path):
        return module.read(path)


def _chosen(path: str | os.PathLike[str], format: str | None) -> str:
    if format is not None:
        if format not in _FORMATS:
            raise ValueError(f'format is "{format}", allowed are {", ".join(_FORMATS)}')
        return format
    for ending in _FORMATS:
        if Path(path).name.lower().endswith(f".{ending}"):
            return ending
    allowed = ", ".join(f".{ending}" for ending in _FORMATS)
    raise FormatError(f"{path}: the name's ending says no format, allowed are {allowed}")


@contextmanager
def _system_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """What the system refuses, in a sentence about the file that was asked for."""
    try:
        yield
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
