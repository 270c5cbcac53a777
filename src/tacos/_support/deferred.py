"""Imports that wait until what they bring is used, so that a program loads only what it needs.

`gather` is for packages that offer the names of their modules, :class:`Later` and :class:`Records` are for tables of
functions and of records.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Later", "Records", "gather"]


def gather(package: str, names: Mapping[str, tuple[str, ...]]) -> None:
    """Let a package offer names of its modules, each of which is imported when one of its names is first used.

    A function keeps its name when the module of the same name is imported, before or after: the class of the package
    refuses the module that the import system puts there. Modules with other names are attributes too, imported on first
    use. The package repeats the names under ``TYPE_CHECKING`` for type checkers, and in ``__all__``.

    Args:
        package: The package's ``__name__``.
        names: For each module, relative to the package, the names to offer.

    >>> import tacos.bound
    >>> tacos.bound is sys.modules["tacos.bound"].bound
    True
    """
    module = sys.modules[package]
    module.__dict__["_homes"] = {
        name: f"{package}.{home}" for home, offered in names.items() for name in offered
    }
    module.__class__ = _Package


class _Package(ModuleType):
    """A package whose names `gather` listed."""

    _homes: dict[str, str]
    __all__: list[str]

    def __dir__(self) -> list[str]:
        return self.__all__

    def __getattr__(self, name: str) -> Any:
        if name in self._homes:
            value = getattr(import_module(self._homes[name]), name)
            setattr(self, name, value)
            return value
        missing = f"module {self.__name__!r} has no attribute {name!r}"
        if name.startswith("_"):
            raise AttributeError(missing)
        try:
            return import_module(f"{self.__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{self.__name__}.{name}":
                raise
            raise AttributeError(missing) from None

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in self._homes):
            super().__setattr__(name, value)


class Later:
    """A function that is imported when it is first called, or when its signature is asked for.

    Args:
        path: The module and the name of the function in it.

    >>> from inspect import signature
    >>> decode = Later("json.loads")
    >>> decode("[1]"), list(signature(decode).parameters)[0]
    ([1], 's')
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Later({self.path!r})"

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.__wrapped__(*arguments, **options)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The function, where `inspect.signature` looks for it."""
        function: Callable[..., Any] = _found(self.path)
        return function


_Record = TypeVar("_Record")


class Records(MutableMapping[str, _Record], Generic[_Record]):
    """A table of records by name; each is imported when it is first used, and listing the names imports none.

    Args:
        paths: For each name, the module and the name of the record in it.

    >>> table = Records({"pi": "math.pi", "e": "math.e"})
    >>> list(table), table["pi"] > 3
    (['pi', 'e'], True)
    >>> table["one"] = 1.0
    >>> len(table)
    3
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths: dict[str, str | None] = dict(paths)
        self._records: dict[str, _Record] = {}

    def __getitem__(self, name: str) -> _Record:
        if name not in self._records and (path := self._paths[name]):
            self._records[name] = _found(path)
        return self._records[name]

    def __setitem__(self, name: str, record: _Record) -> None:
        self._paths.setdefault(name, None)
        self._records[name] = record

    def __delitem__(self, name: str) -> None:
        del self._paths[name]
        self._records.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def _found(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)
