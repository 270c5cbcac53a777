"""Files: `save` and `load` choose the format by the ending of the file's name.

============================  ========================================
``.tacos``                    a schedule with all that belongs to it
``.yaml`` ``.yml`` ``.json``  a topology, as people write it
``.json``                     a program, as MSCCL++'s executor runs it
``.json`` ``.xml``            results of SCCL, TACCL, TE-CCL and ForestColl, as schedules
============================  ========================================

A trace is written too, by its own formats (`tacos.simulate.Trace.save`).

A format is a module with ``read(path)`` and ``write(object, path)``; they do not know each other.
"""

from __future__ import annotations

from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tacos._core import Program, Schedule, Topology
from tacos.errors import FormatError
from tacos.formats import mscclpp, native, topology_file
from tacos.formats.peers import forestcoll, sccl, teccl

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["load", "save"]

# Formats by name: what they hold, and their module.
_FORMATS: dict[str, tuple[tuple[type, ...], Any]] = {
    "tacos": ((Schedule,), native),
    "yaml": ((Topology,), topology_file),
    "yml": ((Topology,), topology_file),
    "json": ((Topology,), topology_file),
    "mscclpp": ((Program, Schedule), mscclpp),
    "sccl": ((), sccl),
    "teccl": ((), teccl),
    "forestcoll": ((), forestcoll),
}
_ENDINGS = {**{name: name for name in ("tacos", "yaml", "yml", "json")}, "xml": "forestcoll"}
# Files of one ending that hold something else have these words in them, near their beginning.
_SIGNS: dict[str, dict[str, tuple[bytes, ...]]] = {
    "json": {
        "mscclpp": (b'"gpus"', b'"collective"', b'"inplace"'),
        "sccl": (b'sccl_type"',),
        "teccl": (b"-Epoch_Duration",),
    },
}
_LOOKED_AT = 1 << 16


@runtime_checkable
class WritesItself(Protocol):
    """A trace, for one: its formats belong to the layer that made it."""

    def save(self, path: str | os.PathLike[str], *, format: str | None = None) -> None: ...


def save(
    obj: Schedule | Program | Topology | WritesItself,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    **options: Any,
) -> None:
    """Write a schedule, a program, a topology or a trace to a file, whole or not at all.

    Args:
        obj: What to write; a schedule is lowered where the format holds programs.
        path: Where; a file that is there is replaced.
        format: ``"tacos"``, ``"yaml"``, ``"json"`` or ``"mscclpp"``, if the name's ending does not
            say it.
        options: What the format's own ``write`` takes, such as :func:`tacos.formats.mscclpp.write`.

    Raises:
        FormatError: The ending is unknown or does not suit the object, or the disk refuses.
        ValueError: The format has no such option, or not that value of it.

    >>> import tacos
    >>> save(tacos.topology.ring(4), "ring.tacos")
    Traceback (most recent call last):
    tacos.errors.FormatError: ring.tacos: a .tacos file holds a Schedule, not a Topology
    """
    if isinstance(obj, WritesItself):
        obj.save(path, format=format)
        return
    name = _chosen(path, format)
    if format is None and not isinstance(obj, _FORMATS[name][0]):
        others = (other for other in _SIGNS.get(name, ()) if isinstance(obj, _FORMATS[other][0]))
        name = next(others, name)
    kinds, module = _FORMATS[name]
    if not kinds:
        raise FormatError(f"{path}: {name} files are read, not written")
    if not isinstance(obj, kinds):
        found = type(obj).__name__
        raise FormatError(f"{path}: a .{name} file holds a {kinds[0].__name__}, not a {found}")
    _check_options(path, module.write, options, 2)
    with _system_errors(path):
        module.write(obj, path, **options)


def load(path: str | os.PathLike[str], *, format: str | None = None, **options: Any) -> Any:
    """Read a file: a Schedule, a Program or a Topology, as the format has it.

    Args:
        path: The file.
        format: ``"tacos"``, ``"yaml"``, ``"json"``, ``"mscclpp"``, ``"sccl"``, ``"teccl"`` or
            ``"forestcoll"``, if neither the name's ending nor the content says it.
        options: What the format's own ``read`` takes: ``topology`` and ``size`` for results of other
            synthesizers.

    Raises:
        FormatError: The file is missing or not what its name says; the message names it.
        ValueError: The format has no such option, or not that value of it.

    >>> load("missing.tacos")
    Traceback (most recent call last):
    tacos.errors.FormatError: missing.tacos: No such file or directory
    """
    name = _chosen(path, format)
    with _system_errors(path):
        if format is None and name in _SIGNS:
            name = _recognized(Path(path), name)
        module = _FORMATS[name][1]
        _check_options(path, module.read, options, 1)
        return module.read(path, **options)


def _check_options(
    path: str | os.PathLike[str], function: Callable[..., Any], options: Iterable[str], first: int
) -> None:
    known = list(signature(function).parameters)[first:]
    for option in options:
        if option not in known:
            allowed = f"allowed are {', '.join(known)}" if known else "the format has none"
            raise ValueError(f"{path}: there is no option {option}, {allowed}")


def _recognized(path: Path, name: str) -> str:
    if not path.is_file():
        return name
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT)
    for other, words in _SIGNS[name].items():
        if all(word in start for word in words):
            return other
    return name


def _chosen(path: str | os.PathLike[str], format: str | None) -> str:
    if format is not None:
        if format not in _FORMATS:
            raise ValueError(f'format is "{format}", allowed are {", ".join(_FORMATS)}')
        return format
    for ending, name in _ENDINGS.items():
        if Path(path).name.lower().endswith(f".{ending}"):
            return name
    allowed = ", ".join(f".{ending}" for ending in _ENDINGS)
    raise FormatError(f"{path}: the name's ending says no format, allowed are {allowed}")


@contextmanager
def _system_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """What the system refuses, in a sentence about the file that was asked for."""
    try:
        yield
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None
