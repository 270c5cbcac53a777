"""How much is logged, topic by topic: ``TACOS_LOGS=healing,+flight,-dispatch``, as ``TORCH_LOGS`` has it.

A topic is a logger below ``tacos``: its name prints what it informs about, ``+`` before it prints details too, and ``-`` errors
alone. ``all`` means every topic.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

__all__ = ["TOPICS", "levels", "set_levels"]

TOPICS: Final = {
    "healing": "slow links and ranks, dead links, switching to other algorithms",
    "flight": "the flight recorder",
    "dispatch": "which algorithm serves a call, and why",
    "metrics": "the page of figures",
}
_SIGNS = {"": logging.INFO, "+": logging.DEBUG, "-": logging.ERROR}


def levels(text: str) -> dict[str, int]:
    """The level of each logger that a text asks for.

    Raises:
        ValueError: It names a topic that there is not.

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


def set_levels(text: str) -> None:
    """Log as a text asks for, to standard error unless the program has handlers of its own."""
    wanted = levels(text)
    for name, level in wanted.items():
        logging.getLogger(name).setLevel(level)
    top = logging.getLogger("tacos")
    if wanted and not top.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("tacos: %(message)s"))
        top.addHandler(handler)
