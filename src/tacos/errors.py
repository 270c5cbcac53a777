"""The errors of tacos.

::

    Exception
    ├── TypeError              an argument of the wrong type
    ├── ValueError             a wrong argument
    └── TacosError             everything tacos itself has to say
        ├── InfeasibleError    no schedule can meet the demand
        ├── VerificationError  a schedule does not do what it claims
        ├── CommunicationError ranks that run together failed (also a RuntimeError)
        ├── FormatError        a file cannot be read (also a ValueError)
        ├── LabError           this machine does not let a lab network be built or used
        └── SpecError          a short name such as ``torus:4x4`` is wrong (also a ValueError)

    UserWarning
    └── WrongScheduleWarning   an engine returned a wrong schedule, which was rejected
"""

from __future__ import annotations

from reprlib import repr as shortened
from typing import TYPE_CHECKING

from tacos._core import CommunicationError, InfeasibleError, TacosError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CommunicationError",
    "FormatError",
    "InfeasibleError",
    "LabError",
    "SpecError",
    "TacosError",
    "VerificationError",
    "WrongScheduleWarning",
    "check_type",
    "nearest",
]


class VerificationError(TacosError):
    """A schedule does not do what it claims; the message says where."""


class WrongScheduleWarning(UserWarning):
    """An engine returned a wrong schedule, which was rejected; the message says how to reproduce it."""


class FormatError(TacosError, ValueError):
    """A file cannot be read; the message starts with its name."""


class SpecError(TacosError, ValueError):
    """A short name of a topology is wrong; the message quotes it and says what is allowed."""


class LabError(TacosError):
    """A lab network cannot be built or used; the message says what is missing."""


def check_type(name: str, value: object, *types: type) -> None:
    """Refuse an argument of the wrong type, in the words of whoever gave it.

    Raises:
        TypeError: One sentence that names the argument, its value and the types that are allowed.

    >>> check_type("topology", "ring:4", dict, list)
    Traceback (most recent call last):
    TypeError: topology is 'ring:4', it must be a dict or list
    """
    if not isinstance(value, types):
        allowed = " or ".join(kind.__name__ for kind in types)
        raise TypeError(f"{name} is {shortened(value)}, it must be a {allowed}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name that somebody probably meant, if there is one.

    >>> nearest("gredy", ["ring", "greedy"])
    'greedy'
    >>> nearest("mercury", ["ring", "greedy"])
    """
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(known), n=1)), None)
