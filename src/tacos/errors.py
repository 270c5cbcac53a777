"""The errors of tacos.

::

    Exception
    ├── TypeError              an argument of the wrong type
    ├── ValueError             an argument with a wrong value
    └── TacosError             all other errors of tacos
        ├── InfeasibleError    no schedule can meet the demand
        ├── VerificationError  a schedule does not do what it claims
        ├── CommunicationError ranks that run together failed (also a RuntimeError)
        ├── FormatError        a file cannot be read (also a ValueError)
        │   └── LimitError     an algorithm exceeds what an executor takes
        ├── LabError           a lab network cannot be built or used on this machine
        └── SpecError          a short name such as ``torus:4x4`` is wrong (also a ValueError)

    UserWarning
    ├── PluginWarning          a plug-in cannot be used and is left out
    ├── WorkerLostWarning      a worker of a sweep or search died, and others do its work
    └── WrongScheduleWarning   an engine failed, or returned a wrong schedule, which was rejected

:class:`WorkIsUp` is not an error, and users never see it: it ends the work of an engine whose allowance
(``tacos._core.Meter``) is used up.
"""

from __future__ import annotations

from functools import wraps
from reprlib import repr as shortened
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from tacos._core import CommunicationError, InfeasibleError, TacosError, WorkIsUp

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

__all__ = [
    "CommunicationError",
    "FormatError",
    "InfeasibleError",
    "LabError",
    "LimitError",
    "PluginWarning",
    "SpecError",
    "TacosError",
    "VerificationError",
    "WorkIsUp",
    "WorkerLostWarning",
    "WrongScheduleWarning",
    "check_keywords",
    "check_type",
    "keywords",
    "nearest",
]


_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class VerificationError(TacosError):
    """A schedule does not do what it claims; the message says where."""


class WrongScheduleWarning(UserWarning):
    """An engine failed, or returned a wrong schedule, which was rejected; the message says how to reproduce it."""


class WorkerLostWarning(UserWarning):
    """A worker of a sweep or search died; the message says what is run again."""


class PluginWarning(UserWarning):
    """A plug-in cannot be used and is left out; the message names its package and says why."""


class FormatError(TacosError, ValueError):
    """A file cannot be read; the message starts with its name."""


class LimitError(FormatError):
    """An algorithm exceeds what an executor takes; the message names the limit. Fewer chunks may help."""


class SpecError(TacosError, ValueError):
    """A short name of a topology is wrong; the message quotes it and says what is allowed."""


class LabError(TacosError):
    """A lab network cannot be built or used; the message says what is missing."""


def check_type(name: str, value: object, *types: type) -> None:
    """Refuse an argument of the wrong type.

    Raises:
        TypeError: One sentence that names the argument, its value and the types that are allowed.

    >>> check_type("topology", "ring:4", dict, list)
    Traceback (most recent call last):
    TypeError: topology must be a dict or list; got 'ring:4'
    """
    if not isinstance(value, types):
        allowed = " or ".join(kind.__name__ for kind in types)
        raise TypeError(f"{name} must be a {allowed}; got {shortened(value)}")


def check_keywords(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse keyword arguments that a function does not take, and suggest those that were meant.

    Raises:
        TypeError: One sentence that names the argument and the nearest one, or all arguments.

    >>> check_keywords("torus", ["bandwith"], ["bandwidth", "latency"])
    Traceback (most recent call last):
    TypeError: torus() has no argument 'bandwith'; did you mean 'bandwidth'?
    """
    for name in given:
        if name in known:
            continue
        close = nearest(name, known)
        allowed = f"did you mean {close!r}?" if close else f"it takes {', '.join(known)}"
        raise TypeError(f"{function}() has no argument {name!r}; {allowed}")


def keywords(*more: str) -> Callable[[Callable[_Args, _Result]], Callable[_Args, _Result]]:
    """Make a function suggest the keyword that was meant; `more` are keywords that it passes on.

    >>> @keywords()
    ... def scaled(size, *, factor=1):
    ...     return size * factor
    >>> scaled(2, factr=3)
    Traceback (most recent call last):
    TypeError: scaled() has no argument 'factr'; did you mean 'factor'?
    """

    def decorate(function: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
        code = cast("FunctionType", function).__code__
        own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known, check, name = dict.fromkeys((*own, *more)), check_keywords, code.co_name

        def checked(*args: Any, **given: Any) -> Any:
            if not given.keys() <= known.keys():
                check(name, given, known)
            return function(*args, **given)

        # Use the globals of the function's module, so that doctest finds the function there.
        there = FunctionType(
            checked.__code__,
            cast("FunctionType", function).__globals__,
            closure=checked.__closure__,
        )
        return cast("Callable[_Args, _Result]", wraps(function)(there))

    return decorate


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant, if there is one.

    >>> nearest("gredy", ["ring", "greedy"])
    'greedy'
    >>> nearest("mercury", ["ring", "greedy"])
    """
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), n=1)), None)
