"""Messages for people who run jobs: the logger ``tacos``, with the levels of :mod:`logging`.

A program that sets up logging gets the records as those of any library. Where none does, warnings, and what ``TACOS_DEBUG`` asks for,
go to standard error.
"""

from __future__ import annotations

import logging
import sys

from tacos._support.variables import read

__all__ = ["LOG", "Once", "set_level"]

LOG = logging.getLogger("tacos")
_LEVELS = {
    "": logging.WARNING,
    "off": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}


class _StandardError(logging.Handler):
    """Prints one line, unless the program has handlers of its own, which get the record too."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or any(h is not self for h in LOG.handlers):
            return
        sys.stderr.write(f"tacos: {' '.join(record.getMessage().split())}\n")


LOG.addHandler(_StandardError())


def set_level(debug: str | None = None) -> None:
    """Print what ``TACOS_DEBUG`` asks for; a level that the program has chosen for the logger stays.

    Raises:
        ValueError: It is not one of the values that are allowed.
    """
    said = read("TACOS_DEBUG") if debug is None else debug
    if said or LOG.level == logging.NOTSET:
        LOG.setLevel(_LEVELS[said.lower()])


class Once:
    """Logs each distinct sentence once.

    >>> once = Once()
    >>> once(logging.DEBUG, "rank 0 waits"), once(logging.DEBUG, "rank 0 waits")
    (True, False)
    """

    _MOST = 4096

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, level: int, sentence: str) -> bool:
        """Log a sentence; says whether it was new."""
        if sentence in self._said:
            return False
        if len(self._said) < self._MOST:
            self._said.add(sentence)
        LOG.log(level, "%s", sentence)
        return True
