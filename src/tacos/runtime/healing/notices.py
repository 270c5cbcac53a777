"""Slow links and slow ranks, by name: a line in the log, a callback, and a counter for the metrics."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tacos._support.log import LOG as TACOS
from tacos.units import format_bandwidth

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["COUNTS", "Notice", "Notices", "on_notice", "tell"]

LOG = TACOS.getChild("healing")
COUNTS: dict[str, int] = {}
"""Number of notices of each kind in this process."""
_listeners: list[Callable[[Notice], None]] = []


@dataclass(frozen=True, slots=True)
class Notice:
    """A slow link, a slow rank or another event that a rank has noticed. Ranks are numbered in the whole job."""

    kind: str
    """``slow link``, ``link recovered``, ``slow rank``, ``rank recovered``, ``dead link``, ``adapted`` or ``restored``."""
    text: str
    """A sentence."""
    src: int = -1
    """The rank that sends over the link, or the slow rank."""
    dst: int = -1
    """The rank that receives, or the slow rank."""
    rate_Bps: float = 0.0
    """Present speed of the link."""
    usual_Bps: float = 0.0
    """Usual speed of the link."""
    share: float = 0.0
    """Share of the time that others wait for a slow rank."""


def on_notice(callback: Callable[[Notice], None]) -> Callable[[], None]:
    """Call a function with every notice of this process, in the thread that runs the collective.

    Returns:
        A function that stops the calls.

    >>> heard = []
    >>> stop = on_notice(heard.append)
    >>> tell(Notice("restored", "the network is as it was"), logging.DEBUG)
    >>> stop()
    >>> [notice.kind for notice in heard]
    ['restored']
    """
    global _listeners  # noqa: PLW0603, those of the process
    _listeners = [*_listeners, callback]

    def end() -> None:
        global _listeners  # noqa: PLW0603
        _listeners = [one for one in _listeners if one is not callback]

    return end


def tell(notice: Notice, level: int = logging.WARNING) -> None:
    """Log, count and pass on a notice."""
    COUNTS[notice.kind] = COUNTS.get(notice.kind, 0) + 1
    LOG.log(level, "%s", notice.text)
    for listener in _listeners:
        try:
            listener(notice)
        except Exception:  # a failing listener must not end the job
            LOG.exception("a function that listens to notices failed")


class Notices:
    """The notices of one rank so far, derived from its carrier's counters.

    Args:
        rank: This rank, in its communicator.
        members: The ranks' numbers in the whole job.
    """

    def __init__(self, rank: int, members: Sequence[int]) -> None:
        self._rank, self._members = rank, members
        self._links: dict[tuple[int, int, bool], bool] = {}
        self._ranks: set[int] = set()
        self._self_slow = False

    def observe(self, figures: Mapping[str, Any]) -> list[Notice]:
        """Return the notices that these figures add: links and ranks that have become slow or recovered.

        >>> slow = {"peer": 3, "channel": 0, "outgoing": False, "rate": 1e6, "usual": 1e7, "state": "slow"}
        >>> fine = slow | {"peer": 1, "rate": 1e7, "state": "usual"}
        >>> notices = Notices(0, [0, 1, 2, 3])
        >>> [notice.text for notice in notices.observe({"links": [slow, fine], "peers": []})]
        ['the link from rank 3 to rank 0 is slow: 1 MB/s, 10 % of its usual 10 MB/s']
        >>> [notice.kind for notice in notices.observe({"links": [slow | {"state": "usual"}, fine], "peers": []})]
        ['link recovered']
        >>> [notice.text for notice in Notices(0, [0, 1, 2, 3]).observe({"links": [slow, slow | {"peer": 1}], "peers": []})]
        ['rank 0 is slow: data from all its peers arrive at 10 % of their usual speed']
        """
        links = [link for link in figures["links"] if not link["outgoing"] and link["usual"] > 0]
        found = self._of_ranks(figures["peers"])
        peers = {link["peer"] for link in links}
        slow_self = len(peers) > 1 and all(link["state"] == "slow" for link in links)
        if slow_self != self._self_slow:
            self._self_slow = slow_self
            found.append(self._of_self(links, slow_self))
        if slow_self:
            return found  # the links are not to blame
        sent = [link for link in figures["links"] if link["outgoing"] and link["usual"] > 0]
        for link in links + sent:
            key = link["peer"], link["channel"], link["outgoing"]
            slow = link["state"] == "slow"
            if slow != self._links.get(key, False):
                self._links[key] = slow
                found.append(self._of_link(link, slow))
        return found

    def _of_link(self, link: Mapping[str, Any], slow: bool) -> Notice:
        src, dst = self._members[link["peer"]], self._members[self._rank]
        if link["outgoing"]:
            src, dst = dst, src
        rate, usual = link["rate"], link["usual"]
        name = f"the link from rank {src} to rank {dst}"
        text = f"{name} is slow: {_share(rate, usual)}" if slow else f"{name} is as fast as usual"
        return Notice("slow link" if slow else "link recovered", text, src, dst, rate, usual)

    def _of_self(self, links: Sequence[Mapping[str, Any]], slow: bool) -> Notice:
        me = self._members[self._rank]
        part = max(link["rate"] / link["usual"] for link in links)
        text = (
            f"rank {me} is slow: data from all its peers arrive at {100 * part:.0f} % of their usual speed"
            if slow
            else f"rank {me} is as fast as usual"
        )
        return Notice("slow rank" if slow else "rank recovered", text, me, me, share=1 - part)

    def _of_ranks(self, peers: Sequence[Mapping[str, Any]]) -> list[Notice]:
        found = []
        for peer in peers:
            rank, share = self._members[peer["rank"]], peer["share"]
            if peer["slow"] and rank not in self._ranks:
                self._ranks.add(rank)
                text = f"rank {rank} is slow: others wait for it {100 * share:.0f} % of the time"
                found.append(Notice("slow rank", text, rank, rank, share=share))
            elif not peer["slow"] and rank in self._ranks:
                self._ranks.discard(rank)
                text = f"rank {rank} is as fast as the others again"
                found.append(Notice("rank recovered", text, rank, rank, share=share))
        return found


def _share(rate: float, usual: float) -> str:
    part = f"{100 * rate / usual:.0f} %"
    return f"{format_bandwidth(float(f'{rate:.3g}'))}, {part} of its usual {format_bandwidth(float(f'{usual:.3g}'))}"
