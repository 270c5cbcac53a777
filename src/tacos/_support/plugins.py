"""Tables that installed packages extend: a package declares a record as an entry point, and the table finds it.

Only the group and the class of the records differ between tables. Finding a package's entry points takes
milliseconds and importing it may take seconds, so a table looks for plug-ins only when it is asked for a name that
it does not have, or for all names.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from tacos.errors import PluginWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from importlib.metadata import EntryPoint

__all__ = ["Table"]

_Record = TypeVar("_Record")


class Table(MutableMapping[str, _Record], Generic[_Record]):
    """Records by name: first this package's own, then those of plug-ins, by name.

    A plug-in that cannot be used is left out, and a :class:`~tacos.errors.PluginWarning` says why.

    Args:
        group: The group of the plug-ins' entry points. The name of an entry point is that of its record.
        kind: The class of the records.
        own: The records of this package, whose names no plug-in can take; the table adds to them.
        obstacle: Returns what is wrong with a plug-in's name or record, or an empty string.

    >>> shapes = Table("no.such.group", tuple, {"square": (4, 4)})
    >>> "square" in shapes, "circle" in shapes
    (True, False)
    >>> shapes["line"] = (4,)
    >>> list(shapes)
    ['square', 'line']
    """

    def __init__(
        self,
        group: str,
        kind: type[_Record],
        own: MutableMapping[str, _Record],
        obstacle: Callable[[str, _Record], str] = lambda _name, _record: "",
    ) -> None:
        self._group, self._kind, self._obstacle = group, kind, obstacle
        self._records = own  # may import a record when it is asked for one, so it is not copied
        self._looked = False
        self._lock = threading.RLock()  # a plug-in may use the table while it is imported

    def __getitem__(self, name: str) -> _Record:
        if name not in self._records:
            self._look()
        return self._records[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._records:
            self._look()
        return name in self._records

    def __iter__(self) -> Iterator[str]:
        before = list(self._records)
        yield from before  # a search that ends here needs no plug-in
        self._look()
        yield from [name for name in self._records if name not in before]

    def __len__(self) -> int:
        self._look()
        return len(self._records)

    def __setitem__(self, name: str, record: _Record) -> None:
        self._records[name] = record

    def __delitem__(self, name: str) -> None:
        del self._records[name]

    def _look(self) -> None:
        """Add the records of plug-ins, once."""
        with self._lock:
            if self._looked:
                return
            self._looked = True
            takers = dict.fromkeys(self._records.keys(), "tacos")
            for point in _entry_points(self._group):
                owner = point.dist.name if point.dist else point.module
                if point.name in takers:
                    why = f"its name is taken by {takers[point.name]}"
                else:
                    why = self._add(point)
                if not why:
                    takers[point.name] = owner
                    continue
                warnings.warn(
                    f'the plug-in "{point.name}" of the package {owner} is left out ({self._group}): {why}',
                    PluginWarning,
                    stacklevel=4,
                )

    def _add(self, point: EntryPoint) -> str:
        """Add the record of an entry point, or return why not."""
        try:
            record = point.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001, a plug-in may raise anything
            return f"importing {point.value} raises {_words(error)}"
        if not isinstance(record, self._kind):
            return f"{point.value} is a {type(record).__name__}; it must be a {self._kind.__name__}"
        if why := self._obstacle(point.name, record):
            return why
        self._records[point.name] = record
        return ""


def _words(error: BaseException) -> str:
    """Return the kind and the message of an error on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}{message and ': '}{message}"


def _entry_points(group: str) -> Iterable[EntryPoint]:
    """Return the entry points of a group, in an order that does not depend on directories."""
    if not _declared(group):
        return []
    from importlib.metadata import entry_points

    try:
        found = entry_points(group=group)
    except Exception as error:  # noqa: BLE001, a file of any package may be malformed
        warnings.warn(
            f"plug-ins are left out ({group}), as Python cannot read the entry points of all packages: {_words(error)}",
            PluginWarning,
            stacklevel=5,
        )
        return []
    return sorted(found, key=lambda point: (point.name, point.value))


def _declared(group: str) -> bool:
    """Return whether some installed package declares entry points of a group.

    Most machines have no plug-in, and importing importlib.metadata takes twenty times as long as this look.
    """
    for folder in sys.path:
        try:
            found = [one.path for one in os.scandir(folder or ".") if one.name.endswith(_METADATA)]
        except OSError:
            continue
        for place in found:
            try:
                if f"[{group}]" in Path(place, "entry_points.txt").read_text("utf-8"):
                    return True
            except (OSError, UnicodeDecodeError):
                continue
    return False


_METADATA = (".dist-info", ".egg-info")
