"""The command that runs an optimizer service."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from tacos import formats
from tacos.cli.app import app, stopped
from tacos.cli.options import NETWORKS, PLAIN, Output

if TYPE_CHECKING:
    from tacos.hub import Relay


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Encryption:
    """The certificate of the control plane."""

    certificate: Annotated[
        Path | None, Parameter(help="TLS certificate for the control plane, with --key.")
    ] = None
    key: Annotated[Path | None, Parameter(help="Private key of the certificate.")] = None

    def __post_init__(self) -> None:
        """Refuse a certificate without its key, and the reverse."""
        if (self.certificate is None) != (self.key is None):
            raise ValueError("--certificate and --key are needed together")

    @property
    def files(self) -> tuple[Path, Path] | None:
        """The certificate and its key, if any."""
        return (self.certificate, self.key) if self.certificate and self.key else None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Racks:
    """Other hubs with which this one exchanges sums."""

    rack: Annotated[
        str | None,
        Parameter(help="Number of this hub and of all hubs, as in 0/4: they exchange sums."),
    ] = None
    meet: Annotated[
        str | None, Parameter(help="host:port at which hub 0 listens for the others.")
    ] = None
    network: Annotated[
        str | None,
        NETWORKS,
        Parameter(help="Network between the hubs; by default all pairs have equal links."),
    ] = None

    def __post_init__(self) -> None:
        """Refuse a number without a place to meet, and the reverse."""
        if (self.rack is None) != (self.meet is None):
            raise ValueError("--rack and --meet are needed together")

    @property
    def relay(self) -> Relay | None:
        """The exchange with the other hubs, if there are any."""
        from tacos.hub import Relay

        if self.rack is None or self.meet is None:
            return None
        number, _, racks = self.rack.partition("/")
        if not number.isdecimal() or not racks.isdecimal():
            raise ValueError(f"--rack must be like 0/4; got {self.rack!r}")
        between = formats.network(self.network) if self.network else None
        return Relay(int(number), int(racks), self.meet, network=between)


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
    pin: Annotated[bool, PLAIN, Parameter(help="Bind each core's thread to a processor.")] = False,
    encryption: Encryption = Encryption(),
    racks: Racks = Racks(),
    out: Output = Output(),
) -> int:
    """Run an optimizer service: workers push gradients, it sums and optimizes, and sends weights back.

    Listens on this machine alone unless --host says otherwise. Ends on Ctrl-C
    or SIGTERM, after a last checkpoint. TACOS_HUB tells workers where it is.

    Example: tacos hub --checkpoints ckpt --every 100
    Example: tacos hub --host 10.0.0.1 --tenants tenants.yaml --cores 16
    """
    from tacos.hub import Server, Tenants

    known = Tenants.load(tenants) if tenants else None
    log = None if not out.quiet else (lambda _: None)
    with stopped() as stop, Server(
        host, port, cores=cores, addresses=address or (), tenants=known, checkpoints=checkpoints,
        every=every, tls=encryption.files, pin=pin, relay=racks.relay, log=log,
    ) as server:  # fmt: skip
        if out.as_json:
            facts = {"address": server.address, "cores": server.cores, "ports": list(server.ports)}
            print(json.dumps(facts), flush=True)
        elif not out.quiet:
            first, *more = server.ports
            threads = f"{server.cores} cores" if server.cores > 1 else "1 core"
            ports = f"ports {first} to {more[-1]}" if more else f"port {first}"
            print(
                f"hub at {server.address} with {threads} on {ports}; TACOS_HUB={server.address}",
                flush=True,
            )
        while not stop.wait(1.0):
            pass
    if not out.silent:
        print("hub stopped", file=sys.stderr)
    return 0
