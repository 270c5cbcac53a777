"""Messages for people who run jobs: the logger ``tacos``, with the levels of :mod:`logging`.

A program that configures logging gets the records as from any library. Otherwise, warnings go to standard error.
``TACOS_DEBUG`` prints more about all topics, and ``TACOS_LOGS`` sets topics one by one, as ``TORCH_LOGS`` does:
``healing,+flight,-dispatch``. A topic is a logger below ``tacos``. Its plain name prints information, ``+`` before it also
prints details, and ``-`` prints errors only. ``all`` means every topic.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

from tacos._support.variables import read

__all__ = ["LOG", "TOPICS", "Once", "levels", "set_level"]

LOG = logging.getLogger("tacos")
TOPICS: Final = {
    "healing": "slow links and ranks, dead links, switching to other algorithms",
    "flight": "the flight recorder",
    "dispatch": "which algorithm serves a call, and why",
    "metrics": "the page of figures for Prometheus",
}
_SIGNS = {"": logging.INFO, "+": logging.DEBUG, "-": logging.ERROR}
_LEVELS = {
    "": logging.WARNING,
    "off": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}


class _StandardError(logging.Handler):
    """Prints one line, unless the program has its own handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or any(h is not self for h in LOG.handlers):
            return
        sys.stderr.write(f"tacos: {' '.join(record.getMessage().split())}\n")


LOG.addHandler(_StandardError())


def levels(text: str) -> dict[str, int]:
    """Return the level of each logger that a text names.

    Raises:
        ValueError: The text names an unknown topic.

    >>> levels("healing,+flight") == {"tacos.healing": logging.INFO, "tacos.flight": logging.DEBUG}
    True
    >>> levels("-all")
    {'tacos': 40}
    >>> levels("heeling")
    Traceback (most recent call last):
    ValueError: TACOS_LOGS names the topic 'heeling'; expected all, healing, flight, dispatch or metrics
    """
    found = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        sign, topic = (word[0], word[1:]) if word[0] in "+-" else ("", word)
        if topic != "all" and topic not in TOPICS:
            *names, end = ("all", *TOPICS)
            raise ValueError(
                f"TACOS_LOGS names the topic {topic!r}; expected {', '.join(names)} or {end}"
            )
        found["tacos" if topic == "all" else f"tacos.{topic}"] = _SIGNS[sign]
    return found


def set_level(debug: str | None = None) -> None:
    """Print what ``TACOS_DEBUG`` and ``TACOS_LOGS`` ask for; a level that the program has set for the logger is kept.

    Raises:
        ValueError: The value is not allowed.
    """
    said = read("TACOS_DEBUG") if debug is None else debug
    if said or LOG.level == logging.NOTSET:
        LOG.setLevel(_LEVELS[said.lower()])
    for name, level in levels(read("TACOS_LOGS")).items():
        logging.getLogger(name).setLevel(level)


class Once:
    """Logs each distinct sentence once.

    >>> once = Once()
    >>> once(logging.DEBUG, "rank 0 waits"), once(logging.DEBUG, "rank 0 waits")
    (True, False)
    """

    _MOST = 4096

    def __init__(self, log: logging.Logger = LOG) -> None:
        self._log, self._said = log, set[str]()

    def __call__(self, level: int, sentence: str) -> bool:
        """Log a sentence; return whether it was new."""
        if sentence in self._said:
            return False
        if len(self._said) < self._MOST:
            self._said.add(sentence)
        self._log.log(level, "%s", sentence)
        return True
