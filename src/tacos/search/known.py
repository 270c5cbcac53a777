"""Answers that this process found already: a question that is asked again is not searched again.

``compare``, ``tune``, ``judge``, training and the optimizer of networks all ask :func:`tacos.search.synthesis.synthesize`, so the same question
has the same answer everywhere, and is searched once. An answer that a time limit cut short is not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from tacos._core import Collective, Schedule, Topology

    Key: TypeAlias = tuple[Hashable, ...]

__all__ = ["KNOWN", "Known", "key"]

_MOST_BYTES = 128 << 20
"""Bytes of schedules that are kept, the last used (chosen): thousands of small ones, or one of 10 million transfers."""


class Known:
    """The answers used last, up to a number of bytes; threads may share them.

    Attributes:
        most_bytes: Bytes of schedules that are kept; 0 keeps none.

    >>> import tacos
    >>> ring = tacos.topology.ring(4)
    >>> goal = tacos.collective.all_gather(ring, "4MB")
    >>> known = Known(1 << 20)
    >>> known.keep(key(ring, goal, {}), tacos.synthesize(ring, goal))
    >>> known.answer(key(ring, goal, {})).engine, known.answer(key(ring, goal, {"seed": 1}))
    ('symmetric', None)
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._schedules: OrderedDict[Key, Schedule] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def answer(self, question: Key | None) -> Schedule | None:
        """Return the answer to a question; None if it is not kept."""
        with self._lock:
            if question is None or question not in self._schedules:
                return None
            self._schedules.move_to_end(question)
            return self._schedules[question]

    def keep(self, question: Key | None, schedule: Schedule) -> None:
        """Keep an answer, unless it was cut short, or something was rejected, which the next caller must hear of as well."""
        cut = schedule.cut_short or "cut_short" in schedule.provenance
        if question is None or cut or schedule.rejected:
            return
        with self._lock:
            if (old := self._schedules.pop(question, None)) is not None:
                self._bytes -= old.memory_bytes
            self._schedules[question] = schedule
            self._bytes += schedule.memory_bytes
            while self._bytes > self.most_bytes:
                _, oldest = self._schedules.popitem(last=False)
                self._bytes -= oldest.memory_bytes

    def forget(self) -> None:
        """Forget all answers, such as between measurements of the time that a search takes."""
        with self._lock:
            self._schedules.clear()
            self._bytes = 0


KNOWN = Known(_MOST_BYTES)


def key(topology: Topology, collective: Collective, settings: Mapping[str, object]) -> Key | None:
    """Return what identifies a question; None if a setting is not a plain value, so that answers are not kept."""
    try:
        return (topology, collective, _plain(dict(settings)))
    except TypeError:
        return None


def _plain(value: object) -> Hashable:
    """Return a value with its type, since 1 equals True."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple((name, _plain(value[name])) for name in sorted(value))
    if value is None or type(value) in (bool, int, float, str):
        return type(value).__name__, value
    raise TypeError
