"""The command that starts an aggregating switch, or asks one for its counters: switch."""

from __future__ import annotations

import http.server
import json
import secrets
import threading
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tacos._support.variables import read
from tacos.cli.app import Json, Quiet, app, stopped

_LOOK_S = 0.2


@app.command
def switch(
    *,
    host: Annotated[
        str, Parameter(help="Address to listen at; by default this machine only.")
    ] = "127.0.0.1",
    port: Annotated[
        int, Parameter(help="First UDP port; each further core takes the next.")
    ] = 48864,
    token_file: Annotated[
        Path | None,
        Parameter(
            help="File with one token per line. Default: TACOS_SWITCH_TOKEN, or a new token."
        ),
    ] = None,
    cores: Annotated[int, Parameter(help="Threads, each with a range of every job's slots.")] = 1,
    slots: Annotated[int, Parameter(help="Slots for all jobs together.")] = 8192,
    mtu: Annotated[int, Parameter(help="Largest packet in bytes.")] = 9000,
    parent: Annotated[
        str | None, Parameter(help="HOST:PORT of the switch above, for the switch of a rack.")
    ] = None,
    members: Annotated[
        str | None, Parameter(help="Workers below this switch, such as 0-7; needs --parent.")
    ] = None,
    loss: Annotated[
        float,
        Parameter(help="Probability that the switch drops a packet on purpose, in each direction."),
    ] = 0.0,
    seed: Annotated[int, Parameter(help="Random seed of the losses; 0 for a new one.")] = 0,
    xdp: Annotated[
        str | None,
        Parameter(
            help="Interface at which the kernel adds packets of up to 360 integers; needs root and clang."
        ),
    ] = None,
    metrics: Annotated[
        int | None, Parameter(help="TCP port of this machine at which Prometheus reads counters.")
    ] = None,
    stats: Annotated[
        str | None, Parameter(help="Print the counters of the switch at HOST:PORT and exit.")
    ] = None,
    prometheus: Annotated[
        bool,
        Parameter(negative="", show_default=False, help="With --stats: print Prometheus' format."),
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run a software switch that sums all-reduces until Ctrl-C, or print its counters.

    Workers find it by TACOS_SWITCH=HOST:PORT and need its token in
    TACOS_SWITCH_TOKEN. Without one, a token is made and printed. With --xdp
    and no --host, it listens at the interface's address.

    Example: tacos switch --host 10.0.0.9 --cores 4
    Example: sudo tacos switch --xdp eth0
    Example: tacos switch --stats 10.0.0.9:48864
    """
    from tacos.runtime import aggregation
    from tacos.runtime.aggregation.figures import lines

    tokens = _tokens(token_file)
    if stats is not None:
        if not tokens:
            raise ValueError(
                "--stats needs the switch's token in TACOS_SWITCH_TOKEN or --token-file"
            )
        figures = aggregation.stats(stats, tokens[0])
        _show(figures, as_json, prometheus, quiet, lines)
        return 0
    if prometheus:
        raise ValueError("--prometheus goes with --stats; a switch has --metrics PORT")
    if metrics is not None and not 0 <= metrics < 1 << 16:
        raise ValueError(f"--metrics must be a port of 0 to 65535; got {metrics}")
    made = not tokens
    tokens = tokens or [secrets.token_hex(16)]
    below = _workers(members) if members else ()
    device = aggregation.Switch(
        host, port, token=tokens, cores=cores, slots=slots, mtu=mtu, parent=parent, members=below,
        loss=loss, seed=seed, xdp=xdp,
    )  # fmt: skip
    page = None
    try:
        with stopped() as stop, device:
            page = _metrics_page(device, metrics) if metrics is not None else None
            facts: dict[str, Any] = {"address": device.address, "cores": cores}
            facts |= {"xdp": xdp, "mode": device.mode} if xdp else {}
            facts |= {"token": device.token} if made else {}
            facts |= {"metrics": page.server_address[1]} if page else {}
            if as_json:
                print(json.dumps(facts), flush=True)
            elif not quiet:
                threads = "1 core" if cores == 1 else f"{cores} cores"
                where = threads if not xdp else f"XDP at {xdp} ({device.mode})"
                print(f"switch listens at {device.address}, {where}", flush=True)
                if made:
                    print(f"workers need TACOS_SWITCH_TOKEN={device.token}", flush=True)
                if page:
                    print(
                        f"metrics at http://127.0.0.1:{page.server_address[1]}/metrics", flush=True
                    )
            while not stop.wait(_LOOK_S):
                if device.failure:
                    raise ValueError(f"the switch at {device.address} ended: {device.failure}")
            final = device.stats()
    finally:
        if page:
            page.shutdown()
            page.server_close()
    _show(final, as_json, False, quiet, lines)
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


def _show(
    figures: dict[str, Any], as_json: bool, prometheus: bool, quiet: bool, lines: Any
) -> None:
    from tacos.runtime import aggregation

    if as_json:
        print(json.dumps(figures, indent=2))
    elif prometheus:
        print(aggregation.prometheus(figures), end="")
    elif not quiet:
        for line in lines(figures):
            print(line)


def _metrics_page(device: Any, port: int) -> http.server.ThreadingHTTPServer:
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
