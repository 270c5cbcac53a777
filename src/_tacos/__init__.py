"""The entry point of the command, outside the package so that Ctrl-C during its import prints no traceback.

``tacos`` calls :func:`main`. ``python -m tacos`` imports the package ``tacos`` first, which imports this module
first; the end of this module then prepares the process as :func:`main` would.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["__version__", "main"]

__version__ = "0.1.0"
"""The version of the distribution, as in pyproject.toml; reading an installation's metadata takes longer than starting."""

_INTERRUPTED = "tacos: interrupted, nothing was written"


def main() -> int:
    """Run the command ``tacos`` and return the exit code; the process must end afterwards.

    >>> import subprocess, sys
    >>> words = [sys.executable, "-m", "tacos", "topo", "ring:4", "--quiet"]
    >>> subprocess.run(words).returncode
    0
    """
    _open_missing_streams()
    _end_at_interrupt()
    if sys.argv[1:] == ["--version"]:  # this needs neither the package nor numpy
        print(__version__)  # noqa: T201
        return 0
    gc.disable()  # what is imported stays: looking through it for garbage, also at the end, is a sixth of a quick command
    from tacos.cli import main as command

    gc.freeze()
    gc.enable()
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = command()
    except KeyboardInterrupt:  # before the command could handle it
        print(_INTERRUPTED, file=sys.stderr)  # noqa: T201
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is complete
    solver = sys.modules.get("tacos._support.solver")
    if solver is not None and solver.running():  # it would delay the exit by seconds
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


def _end_at_interrupt() -> None:
    """Let Ctrl-C end the process while it imports.

    An exception does not work: numpy reports a KeyboardInterrupt during its import as an ImportError.
    """
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # nohup ignores SIGINT: keep that
        signal.signal(signal.SIGINT, _end)


def _end(_number: int, _frame: FrameType | None) -> None:
    if "TACOS_RANK" not in os.environ:  # else the process that started this rank prints it
        os.write(2, f"{_INTERRUPTED}\n".encode())
    os._exit(130)


def _open_missing_streams() -> None:
    """Open closed standard streams on the null device, as after ``tacos topo ring:4 >&-``."""
    from pathlib import Path

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115, stays open


def _run_as_module() -> bool:
    """Return whether this is ``python -m tacos``, and Python is about to run ``__main__``."""
    words: list[str] = getattr(sys, "argv", [])  # an embedded interpreter may have none
    return words[:1] == ["-m"] and sys.orig_argv[-len(words)] in ("tacos", "-mtacos")


if _run_as_module():
    _end_at_interrupt()
    with suppress(OSError):  # the current directory is gone
        if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109, a string like the entry
            del sys.path[0]  # or a user's random.py would be imported instead of Python's
