"""Where the command begins: outside the package, so that Ctrl-C during its import is no traceback."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command ``tacos``; returns the exit code.

    >>> import sys
    >>> sys.argv = ["tacos", "topo", "ring:4", "--quiet"]
    >>> main()
    0
    """
    try:
        from tacos.cli import main as command

        return command()
    except KeyboardInterrupt:  # before the command could say it better
        print("tacos: interrupted, nothing was written", file=sys.stderr)  # noqa: T201
        return 130
