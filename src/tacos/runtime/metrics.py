"""Metrics of a running rank in Prometheus' text format, and the HTTP server that provides them.

``TACOS_METRICS=9400`` serves ``http://127.0.0.1:9400/metrics`` on the first rank of a host, 9401 on the second and so on;
``TACOS_METRICS=0.0.0.0:9400`` serves other machines too.
"""

from __future__ import annotations

import http.server
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from tacos._support.log import LOG as TACOS
from tacos._support.variables import read
from tacos.runtime.healing.notices import COUNTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tacos.runtime.flight import Recorder

__all__ = ["Source", "local_rank", "prometheus", "serve", "watched"]

LOG = TACOS.getChild("metrics")
PREFIX = "tacos_rank"


class Source(Protocol):
    """The source of metrics: a communicator."""

    flight: Recorder

    def figures(self) -> list[dict[str, Any]]:
        """Return the counters of each open carrier."""


_sources: weakref.WeakSet[Source] = weakref.WeakSet()
_page: http.server.ThreadingHTTPServer | None = None

_LINK = {
    "bytes": ("bytes_total", "counter", "bytes of data that went over the connection"),
    "messages": ("messages_total", "counter", "messages of data that went over the connection"),
    "waited_s": ("waited_seconds_total", "counter", "seconds that this rank waited for data of the peer"),
    "rate": ("rate_bytes_per_second", "gauge", "speed of the latest messages that tell it"),
    "usual": ("usual_bytes_per_second", "gauge", "their usual speed"),
    "slow": ("slow", "gauge", "1 if the link is slower than usual"),
}  # fmt: skip
_PEER = {
    "away_s": ("away_seconds_total", "counter", "seconds that the peer was away from collectives"),
    "slow": ("slow", "gauge", "1 if the others wait for the peer"),
}


def watched(source: Source) -> None:
    """Include a communicator's figures in the metrics while it exists."""
    _sources.add(source)


def prometheus() -> str:
    """Return the figures of all communicators of this process.

    >>> prometheus().splitlines()[-1].startswith("tacos_rank_")
    True
    """
    rows: dict[str, tuple[str, str, list[str]]] = {}

    def add(name: str, type_: str, text: str, value: float, /, **labels: object) -> None:
        inside = ",".join(f'{key}="{_quoted(str(label))}"' for key, label in labels.items())
        entry = rows.setdefault(f"{PREFIX}_{name}", (type_, text, []))
        entry[2].append(f"{PREFIX}_{name}{{{inside}}} {value!r}")

    for source in list(_sources):
        recorder = source.flight
        members = recorder.members
        common = {"rank": members[recorder.rank], "group": _group(members)}
        add("calls_total", "counter", "collectives begun", recorder.count, **common)
        add("failures_total", "counter", "collectives that failed", recorder.failures, **common)
        for figures in source.figures():
            for link, way in _links(figures):
                labels = common | {
                    "peer": members[link["peer"]],
                    "channel": link["channel"],
                    "way": way,
                }
                for key, (name, kind, text) in _LINK.items():
                    if key in link and (way == "in" or key in ("bytes", "messages")):
                        add(f"link_{name}", kind, text, link[key], **labels)
            for peer in figures.get("peers", ()):
                for key, (name, kind, text) in _PEER.items():
                    value = int(peer[key]) if key == "slow" else peer[key]
                    add(f"peer_{name}", kind, text, value, **common, peer=members[peer["rank"]])
            if "away_s" in figures:
                text = "seconds that this rank was away from collectives"
                add("away_seconds_total", "counter", text, figures["away_s"], **common)
    for kind_of_notice in ("slow link", "slow rank", "dead link", "adapted", "restored"):
        text = "what was noticed or done, by kind"
        add("notices_total", "counter", text, COUNTS.get(kind_of_notice, 0), kind=kind_of_notice)
    lines = []
    for full, (kind, text, values) in rows.items():
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", *values]
    return "\n".join(lines) + "\n"


def _links(figures: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for link in figures.get("links", ()):
        yield link | {"slow": int(link["state"] == "slow")}, "out" if link["outgoing"] else "in"


def _group(members: list[int]) -> str:
    """Return a short name of a group, which is the same on all its ranks.

    >>> _group([0, 1, 2, 3]), _group([1, 3])
    ('0-3', '1,3')
    """
    whole = members == list(range(members[0], members[0] + len(members)))
    return f"{members[0]}-{members[-1]}" if whole else ",".join(map(str, members))


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 10.0  # a silent connection must not keep a thread and a descriptor of the rank

    def do_GET(self) -> None:
        """Return the metrics, at any path."""
        text = prometheus().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


def local_rank(environ: Mapping[str, str] | None = None) -> int:
    """Return the number of this process on its host, from its launcher's variables; 0 if there are none.

    Raises:
        ValueError: The launcher's variable is not a number.

    >>> local_rank({"LOCAL_RANK": "3"}), local_rank({})
    (3, 0)
    """
    env = os.environ if environ is None else environ
    name = "LOCAL_RANK" if env.get("LOCAL_RANK") else "TACOS_LOCAL_RANK"
    text = (read(name, env) if name.startswith("TACOS_") else env[name]) or "0"
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name} is {text!r}; it must be this rank's number on its host, from 0")
    return int(text)


def serve(where: str, local_rank: int = 0) -> int:
    """Serve the metrics at a port, or ``host:port``, plus the rank's number on its host; once per process.

    Returns:
        The port.

    Raises:
        ValueError: It is not a valid address, or the port is in use.
    """
    global _page  # noqa: PLW0603, one page for the process
    if _page is not None:
        return int(_page.server_address[1])
    host, _, port = where.rpartition(":")
    if not port.isdecimal() or int(port) + local_rank >= 1 << 16:
        raise ValueError(
            f"TACOS_METRICS is {where!r}; it must be a port or host:port, such as 9400"
        )
    number = int(port) + local_rank if int(port) else 0
    try:
        _page = http.server.ThreadingHTTPServer((host or "127.0.0.1", number), _Handler)
    except OSError as error:
        raise ValueError(
            f"TACOS_METRICS is {where!r}, and port {number} cannot be used: {error}"
        ) from None
    _page.daemon_threads = True
    threading.Thread(target=_page.serve_forever, name="tacos metrics", daemon=True).start()
    LOG.info("metrics at http://%s:%d/metrics", host or "127.0.0.1", _page.server_address[1])
    return int(_page.server_address[1])
