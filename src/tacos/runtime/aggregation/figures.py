"""Counters of switches: query them over the network, and format them for people and for Prometheus."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from tacos.errors import CommunicationError
from tacos.runtime.aggregation.endpoints import digest, resolved

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["lines", "prometheus", "stats"]

_QUESTION = struct.pack("<HBB28x", 0x7AC0, 1, 7)
_ANSWER = struct.pack("<HBB", 0x7AC0, 1, 8)
_TRIES = 4
COUNTERS = {
    "packets": "packets that arrived",
    "contributions": "added",
    "duplicates": "seen before, sum not finished",
    "resent": "seen before, answered with the stored result",
    "old": "for an earlier use of the slot",
    "early": "for a later use of the slot",
    "stale": "from another generation or job",
    "out_of_range": "worker, slot or size that the job does not have",
    "mismatched": "for another operation than the other workers'",
    "malformed": "not of this protocol, or of another version or size",
    "control": "joins, leaves, and packets of the parent",
    "results": "sums finished",
    "forwarded": "sums sent to the parent, with retransmissions",
    "refused": "joins refused",
    "generations": "generations begun",
    "sent": "packets sent",
    "lost_in": "packets dropped on purpose when they arrived",
    "lost_out": "packets dropped on purpose when they left",
    "bytes_in": "bytes that arrived",
    "bytes_out": "bytes sent",
}
"""The counters of a switch, with their meanings."""


def stats(address: str, token: str, *, timeout: float = 2.0) -> dict[str, Any]:
    """Ask a switch for its counters and jobs.

    Args:
        address: ``host:port`` of the switch.
        token: A token that it accepts.
        timeout: Seconds to wait.

    Raises:
        CommunicationError: It does not answer: it is not running, or does not accept the token.

    >>> from tacos.runtime.aggregation import Switch
    >>> with Switch(token="secret") as switch:
    ...     stats(switch.address, "secret")["jobs"]
    []
    """
    place = resolved(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.connect(place)
        end = time.monotonic() + timeout
        for _ in range(_TRIES):
            asker.settimeout(max(0.01, min(timeout / _TRIES, end - time.monotonic())))
            try:
                asker.send(_QUESTION + digest(token))
                answer = asker.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError as error:
                raise CommunicationError(f"no switch answers at {address}: {error}") from None
            if answer[:4] == _ANSWER:
                found: dict[str, Any] = json.loads(answer[32:])
                return found
    raise CommunicationError(
        f"no switch answers at {address} within {timeout:g} s: it is not there, or does not accept the token"
    )


def lines(figures: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the counters as lines of a table, with rates since the last query.

    >>> figures = dict.fromkeys(COUNTERS, 0) | {"packets": 10, "contributions": 10, "uptime_s": 2.0, "busy_s": 0.5, "jobs": []}
    >>> print(*lines(figures), sep="\\n")
    up 2.0 s, busy 25 % of a core
    packets        10  5 /s  packets that arrived
    contributions  10  5 /s  added
    """
    base = before or {}
    seconds = max(figures["uptime_s"] - base.get("uptime_s", 0.0), 1e-9)
    busy = (figures["busy_s"] - base.get("busy_s", 0.0)) / seconds
    yield f"up {figures['uptime_s']:.1f} s, busy {busy:.0%} of a core".replace("%", " %")
    rows = [
        (
            name,
            f"{figures[name]:,}",
            f"{(figures[name] - base.get(name, 0)) / seconds:,.0f} /s",
            text,
        )
        for name, text in COUNTERS.items()
        if figures[name]
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    for name, count, rate, text in rows:
        yield f"{name:<{widths[0]}}  {count:>{widths[1]}}  {rate:>{widths[2]}}  {text}"
    for job in figures["jobs"]:
        state = "runs" if job["running"] else f"waits, {job['joined']} of {job['workers']} are here"
        yield (
            f"job {job['name']}: {job['workers']} workers, {job['pool']} slots of "
            f"{job['packet_elements']} elements, {state}; {job['results']:,} sums"
        )


def prometheus(figures: Mapping[str, Any]) -> str:
    """Return the counters in Prometheus' text format.

    >>> figures = dict.fromkeys(COUNTERS, 3) | {"uptime_s": 2.0, "busy_s": 0.5, "jobs": []}
    >>> print(*prometheus(figures).splitlines()[:3], sep="\\n")
    # HELP tacos_switch_packets_total packets that arrived
    # TYPE tacos_switch_packets_total counter
    tacos_switch_packets_total 3
    """
    rows = []
    for name, text in COUNTERS.items():
        full = f"tacos_switch_{name}_total"
        rows += [f"# HELP {full} {text}", f"# TYPE {full} counter", f"{full} {figures[name]}"]
    for name, text in (("uptime", "since it was started"), ("busy", "of processor time")):
        full = f"tacos_switch_{name}_seconds"
        rows += [
            f"# HELP {full} seconds {text}",
            f"# TYPE {full} gauge",
            f"{full} {figures[f'{name}_s']}",
        ]
    for name, text in (
        ("workers", "workers of the job"),
        ("joined", "workers that have joined"),
        ("results", "sums finished"),
        ("contributions", "contributions added"),
        ("duplicates", "contributions seen before"),
    ):
        if not figures["jobs"]:
            break
        full = f"tacos_switch_job_{name}"
        rows += [f"# HELP {full} {text}", f"# TYPE {full} gauge"]
        for job in figures["jobs"]:
            label = job["name"].replace("\\", "\\\\").replace('"', '\\"')
            rows.append(f'{full}{{job="{label}"}} {job[name]}')
    return "\n".join(rows) + "\n"
