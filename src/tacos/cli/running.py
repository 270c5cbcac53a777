"""The commands that run something: on real networks, or on one that a lab builds."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from tacos import formats
from tacos.cli.app import Network, Quiet, app


@app.command
def lab(
    topology: Network,
    /,
    *command: Annotated[str, Parameter(help="What to run once for each NPU, behind a --.")],
    fastest: Annotated[
        str | None, Parameter(help="Speed of the fastest link, such as 200Mbit/s.")
    ] = None,
    scale: Annotated[
        float | None, Parameter(help="What to multiply all speeds by, instead.")
    ] = None,
    time_limit: Annotated[float | None, Parameter(help="Seconds after which all is ended.")] = None,
    output: Annotated[
        Literal["prefixed", "first"],
        Parameter(help="Every line behind its rank, or what rank 0 says."),
    ] = "prefixed",
    quiet: Quiet = False,
) -> int:
    """Build a topology from network namespaces and rate limits, and run a command on every NPU.

    All speeds are scaled down to what this machine can carry, unless --fastest or --scale say
    otherwise. The commands find the network that is enforced in the file TACOS_TOPOLOGY, and each
    other by the variables of torchrun. The exit code is that of the first to fail.

    Example: tacos lab torus:2x4 --fastest 100Mbit/s -- python train.py
    """
    from tacos.runtime.lab import Lab

    network = formats.network(topology)
    if not command:
        raise ValueError("there is no COMMAND: write it behind a --, as in tacos lab ring:4 -- env")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"--time-limit is {time_limit:g}, it must be positive")
    with Lab(network, fastest=fastest, scale=scale) as built:
        if not quiet:
            print(built.describe(), file=sys.stderr)
        run = built.run(command, time_limit=time_limit, output=output)
    if run.why:
        print(f"tacos: {run.why}", file=sys.stderr)
    return run.code
