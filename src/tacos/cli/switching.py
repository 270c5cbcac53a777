"""The commands of an aggregating switch: switch, which starts one, and switch stats."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tacos._support.variables import read
from tacos.cli.app import stopped, verb
from tacos.cli.options import PLAIN, Output

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

    from tacos.runtime.aggregation import Switch

_LOOK_S = 0.2


switch = verb("switch")

_TokenFile = Annotated[
    Path | None,
    Parameter(help="File with one token per line. Default: TACOS_SWITCH_TOKEN, or a new token."),
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Device:
    """What the switch is made of."""

    host: Annotated[str, Parameter(help="Address to listen at; by default this machine only.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Parameter(help="First UDP port; each further core takes the next.")] = (
        48864
    )
    cores: Annotated[int, Parameter(help="Threads, each with a range of every job's slots.")] = 1
    slots: Annotated[int, Parameter(help="Slots for all jobs together.")] = 8192
    mtu: Annotated[int, Parameter(help="Largest packet in bytes.")] = 9000
    loss: Annotated[
        float,
        Parameter(help="Probability that the switch drops a packet on purpose, in each direction."),
    ] = 0.0
    seed: Annotated[int, Parameter(help="Random seed of the losses; 0 for a new one.")] = 0
    xdp: Annotated[
        str | None,
        Parameter(
            help="Interface at which the kernel adds packets of up to 360 integers; needs root and clang."
        ),
    ] = None
    parent: Annotated[
        str | None, Parameter(help="HOST:PORT of the switch above, for the switch of a rack.")
    ] = None
    members: Annotated[
        str | None, Parameter(help="Workers below this switch, such as 0-7; needs --parent.")
    ] = None

    def built(self, tokens: list[str]) -> Switch:
        """Return the switch."""
        from tacos.runtime import aggregation

        more = {one.name: getattr(self, one.name) for one in fields(self)}
        more["members"] = _workers(self.members) if self.members else ()
        return aggregation.Switch(more.pop("host"), more.pop("port"), token=tokens, **more)


@switch.default
def serve(
    *,
    device: Device = Device(),
    token_file: _TokenFile = None,
    metrics: Annotated[
        int | None, Parameter(help="TCP port of this machine at which Prometheus reads counters.")
    ] = None,
    out: Output = Output(),
) -> int:
    """Run a software switch that sums all-reduces until Ctrl-C, and print its counters.

    Workers find it by TACOS_SWITCH=HOST:PORT and need its token in
    TACOS_SWITCH_TOKEN. Without one, a token is made and printed. With --xdp
    and no --host, it listens at the interface's address.

    Example: tacos switch --host 10.0.0.9 --cores 4
    Example: sudo tacos switch --xdp eth0
    """
    if metrics is not None and not 0 <= metrics < 1 << 16:
        raise ValueError(f"--metrics must be a port of 0 to 65535; got {metrics}")
    import secrets

    known = _tokens(token_file)
    built = device.built(known or [secrets.token_hex(16)])
    page = None
    try:
        with stopped() as stop, built:
            page = _metrics_page(built, metrics) if metrics is not None else None
            facts: dict[str, Any] = {"address": built.address, "cores": device.cores}
            facts |= {"xdp": device.xdp, "mode": built.mode} if device.xdp else {}
            facts |= {} if known else {"token": built.token}
            facts |= {"metrics": page.server_address[1]} if page else {}
            if out.as_json:
                print(json.dumps(facts), flush=True)
            elif not out.quiet:
                _announce(facts)
            while not stop.wait(_LOOK_S):
                if built.failure:
                    raise ValueError(f"the switch at {built.address} ended: {built.failure}")
            final = built.stats()
    finally:
        if page:
            page.shutdown()
            page.server_close()
    _show(final, out)
    return 0


def _announce(facts: dict[str, Any]) -> None:
    """Print where the switch is, and what workers need."""
    cores = facts["cores"]
    where = "1 core" if cores == 1 else f"{cores} cores"
    if "xdp" in facts:
        where = f"XDP at {facts['xdp']} ({facts['mode']})"
    print(f"switch listens at {facts['address']}, {where}", flush=True)
    if "token" in facts:
        print(f"workers need TACOS_SWITCH_TOKEN={facts['token']}", flush=True)
    if "metrics" in facts:
        print(f"metrics at http://127.0.0.1:{facts['metrics']}/metrics", flush=True)


@switch.command
def stats(
    address: Annotated[str, Parameter(help="HOST:PORT of the switch.")],
    /,
    *,
    token_file: _TokenFile = None,
    prometheus: Annotated[bool, PLAIN, Parameter(help="Print Prometheus' format.")] = False,
    out: Output = Output(),
) -> int:
    """Print the counters of a running switch.

    Example: tacos switch stats 10.0.0.9:48864
    """
    from tacos.runtime import aggregation

    tokens = _tokens(token_file)
    if not tokens:
        raise ValueError("the switch's token is missing: set TACOS_SWITCH_TOKEN, or --token-file")
    figures = aggregation.stats(address, tokens[0])
    if prometheus and not out.as_json:
        print(aggregation.prometheus(figures), end="")
    else:
        _show(figures, out)
    return 0


def _tokens(file: Path | None) -> list[str]:
    if file is not None:
        found = [line.strip() for line in file.read_text().splitlines() if line.strip()]
        if not found:
            raise ValueError(f"--token-file {file} has no token; write one per line")
        return found
    token = read("TACOS_SWITCH_TOKEN")
    return [token] if token else []


def _workers(text: str) -> list[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--members must be numbers such as 0-3,8; got {text!r}")
        found |= set(range(int(first), int(last if dash else first) + 1))
    return sorted(found)


def _show(figures: dict[str, Any], out: Output) -> None:
    """Print the counters."""
    from tacos.runtime.aggregation.figures import lines

    if out.as_json:
        print(json.dumps(figures, indent=2))
    elif not out.quiet:
        for line in lines(figures):
            print(line)


def _metrics_page(device: Any, port: int) -> ThreadingHTTPServer:
    import http.server

    from tacos.runtime import aggregation

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that http.server calls
            text = aggregation.prometheus(device.stats()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    try:
        page = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    except OSError as error:
        raise ValueError(f"--metrics {port} cannot be used: {error.strerror}") from None
    page.daemon_threads = True
    threading.Thread(target=page.serve_forever, daemon=True).start()
    return page
