"""The command that runs an optimizer service."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tacos import formats
from tacos.cli.app import Json, Quiet, app, stopped


@app.command
def hub(
    *,
    host: Annotated[
        str, Parameter(help="Address to listen on; any but loopback needs --tenants.")
    ] = "127.0.0.1",
    port: Annotated[
        int, Parameter(help="Control-plane port; the cores use the ports after it.")
    ] = 7800,
    cores: Annotated[
        int | None, Parameter(help="Cores that sum and optimize. Default: all of this machine.")
    ] = None,
    address: Annotated[
        list[str] | None,
        Parameter(help="Address of a network card; give several to use several.", negative=""),
    ] = None,
    tenants: Annotated[
        Path | None, Parameter(help="YAML file with tenants, their tokens and quotas.")
    ] = None,
    checkpoints: Annotated[
        Path | None, Parameter(help="Directory for checkpoints; sessions resume from there.")
    ] = None,
    every: Annotated[int, Parameter(help="Steps between checkpoints; 0: on request only.")] = 0,
    certificate: Annotated[
        Path | None, Parameter(help="TLS certificate for the control plane, with --key.")
    ] = None,
    key: Annotated[Path | None, Parameter(help="Private key of the certificate.")] = None,
    pin: Annotated[
        bool,
        Parameter(help="Bind each core's thread to a processor.", negative="", show_default=False),
    ] = False,
    rack: Annotated[
        str | None,
        Parameter(help="Number of this hub and of all hubs, as in 0/4: they exchange sums."),
    ] = None,
    meet: Annotated[
        str | None, Parameter(help="host:port at which hub 0 listens for the others.")
    ] = None,
    network: Annotated[
        str | None,
        Parameter(help="Network between the hubs; by default all pairs have equal links."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run an optimizer service: workers push gradients, it sums and optimizes, and sends weights back.

    Listens on this machine alone unless --host says otherwise. Ends on Ctrl-C
    or SIGTERM, after a last checkpoint. TACOS_HUB tells workers where it is.

    Example: tacos hub --checkpoints ckpt --every 100
    Example: tacos hub --host 10.0.0.1 --tenants tenants.yaml --cores 16
    """
    from tacos.hub import Relay, Server, Tenants

    if (certificate is None) != (key is None):
        raise ValueError("--certificate and --key are needed together")
    if (rack is None) != (meet is None):
        raise ValueError("--rack and --meet are needed together")
    relay = None
    known = Tenants.load(tenants) if tenants else None
    if rack is not None and meet is not None:
        number, _, racks = rack.partition("/")
        if not number.isdecimal() or not racks.isdecimal():
            raise ValueError(f"--rack must be like 0/4; got {rack!r}")
        between = formats.network(network) if network else None
        relay = Relay(int(number), int(racks), meet, network=between)
    log = None if not quiet else (lambda _: None)
    tls = (certificate, key) if certificate and key else None
    with stopped() as stop, Server(
        host, port, cores=cores, addresses=address or (), tenants=known, checkpoints=checkpoints,
        every=every, tls=tls, pin=pin, relay=relay, log=log,
    ) as server:  # fmt: skip
        if as_json:
            facts = {"address": server.address, "cores": server.cores, "ports": list(server.ports)}
            print(json.dumps(facts), flush=True)
        elif not quiet:
            first, *more = server.ports
            threads = f"{server.cores} cores" if server.cores > 1 else "1 core"
            ports = f"ports {first} to {more[-1]}" if more else f"port {first}"
            print(
                f"hub at {server.address} with {threads} on {ports}; TACOS_HUB={server.address}",
                flush=True,
            )
        while not stop.wait(1.0):
            pass
    if not (quiet or as_json):
        print("hub stopped", file=sys.stderr)
    return 0
