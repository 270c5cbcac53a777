"""Where the command begins: outside the package, so that Ctrl-C during its import is no traceback."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

__all__ = ["main"]


def main() -> int:
    """Run the command ``tacos`` as the last thing that this process does; returns the exit code.

    >>> import subprocess, sys
    >>> words = [sys.executable, "-m", "tacos", "topo", "ring:4", "--quiet"]
    >>> subprocess.run(words).returncode
    0
    """
    try:
        from tacos.cli import main as command

        code = command()
    except KeyboardInterrupt:  # before the command could say it better
        print("tacos: interrupted, nothing was written", file=sys.stderr)  # noqa: T201
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done and said
    solver = sys.modules.get("tacos.synth.milp.solver")
    if solver is not None and solver.running():  # it would keep the process for seconds
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code
