"""The command ``tacos``: one function per subcommand, each a thin call of the public functions.

Tables and pictures go to people, ``--json`` to scripts; errors are one sentence on the standard error
stream. Exit codes: 0 done, 1 a schedule that is not valid, 2 a wrong call or a bad file, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING

from cyclopts import (
    CycloptsError,
    Group,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from tacos._support.files import watched
from tacos.cli.app import CALL, app, fail, plain_warnings
from tacos.errors import TacosError, VerificationError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cyclopts import App

__all__ = ["load", "main"]

_GROUPS = {  # title: the module of each verb, all in the order of the help
    "Find algorithms": {
        "synth": "synthesis",
        "compare": "synthesis",
        "tune": "synthesis",
        "bound": "synthesis",
        "pareto": "synthesis",
    },
    "Ask about jobs and networks": {"train": "training", "design": "designing"},
    "Inspect and check": {
        "topo": "reading",
        "info": "reading",
        "view": "viewing",
        "verify": "reading",
        "sim": "simulating",
        "judge": "judging",
    },
    "Export and run": {
        "convert": "converting",
        "run": "running",
        "switch": "switching",
        "hub": "serving",
        "lab": "running",
        "probe": "running",
        "reorder": "ordering",
    },
    "Set up": {"doctor": "setup", "completion": "setup"},
}
_MODULES = {verb: module for group in _GROUPS.values() for verb, module in group.items()}


def load(verb: str | None = None) -> App:
    """Import the module of a verb, or of all verbs, and return the application.

    A verb registers when its module is imported. Importing only the module that a call needs halves the start-up time.

    >>> "synth" in load()
    True
    """
    for module in dict.fromkeys(_MODULES.values() if verb is None else [_MODULES[verb]]):
        import_module(f"tacos.cli.{module}")
    for place, (title, verbs) in enumerate(_GROUPS.items()):
        group = Group(title, sort_key=place)
        for number, name in enumerate(verbs):
            if name in app:
                app[name].group = group
                app[name].sort_key = number
                _name_the_arguments(app[name], name)
    return app


def _name_the_arguments(verb: App, name: str) -> None:
    """Name optional arguments in usage lines, where cyclopts prints [ARGS]."""
    commands = [command for command in verb if not command.startswith("-")]
    for command in commands:
        _name_the_arguments(verb[command], f"{name} {command}")
    function = verb.default_command
    assert function is not None
    words = [f"Usage: tacos {name}{' COMMAND' * bool(commands)} [OPTIONS]"]
    several = False
    for parameter in signature(function).parameters.values():
        word = parameter.name.upper().replace("_", "-")
        if parameter.kind is parameter.VAR_POSITIONAL:
            several, word = True, f"[{word}...]"
        elif parameter.kind is not parameter.POSITIONAL_ONLY:
            continue
        elif parameter.default is not parameter.empty:
            several, word = True, f"[{word}]"
        words.append(word)
    if several:
        verb.usage = " ".join(words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code.

    >>> main(["topo", "ring:4", "--quiet"])
    0
    """
    words = list(arguments if arguments is not None else sys.argv[1:])
    if words[:1] == ["help"]:  # many other commands have this verb
        words = [*words[1:], "--help"]
    first = words[0] if words else None
    load(first if first in _MODULES and first != "completion" else None)
    CALL.set(tuple(words))
    with watched() as written, plain_warnings():
        try:
            code = app(
                words,
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
        except CycloptsError as error:
            return fail(_sentence(error))
        except KeyboardInterrupt:
            return fail(f"interrupted, {_listed(written)} written", 130)
        except BrokenPipeError:  # the reader of our output, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except RecursionError:
            return fail("the input is nested too deeply")
        except MemoryError:
            return fail("not enough memory for this problem")
        except VerificationError as error:
            return fail(str(error), 1)
        except OSError as error:
            named = error.filename is not None and error.strerror
            return fail(f"{error.filename}: {error.strerror}" if named else _line(error))
        except (TacosError, ValueError) as error:
            return fail(_line(error))
    return code if isinstance(code, int) else 0


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _listed(written: list[Path]) -> str:
    """Return the files that were written, with a verb; temporary files are gone by now."""
    there = list(dict.fromkeys(path for path in written if path.exists()))
    if len(there) > 1:
        return f"{len(there)} files were"
    return f"{there[0]} was" if there else "nothing was"


def _sentence(error: CycloptsError) -> str:
    """Return what is wrong with a call, and where to read more."""
    match error:
        case MissingArgumentError(argument=argument) if argument and not error.keyword:
            what = f"{argument.name} is missing."
        case MissingArgumentError(keyword=str(option)):
            what = f"{option} needs a value that does not begin with a dash."
        case UnknownOptionError(token=token) if re.match(r"-\.?\d", token.keyword or token.value):
            what = f"unexpected {token.keyword or token.value}; values must not be negative."
        case UnusedCliTokensError(unused_tokens=[*words]):
            what = f"unexpected argument {' '.join(words)!r}."
        case UnknownCommandError(unused_tokens=[word, *_]):
            meant = nearest(word, _MODULES)
            hint = f"; did you mean {meant}?" if meant else "."
            what = f"unknown command {word!r}{hint} Commands: {', '.join(_MODULES)}."
        case _:
            what = " ".join(str(error).split())
    verb = " ".join(error.command_chain or ())
    return f"{what} See tacos {verb + ' ' if verb else ''}--help."
