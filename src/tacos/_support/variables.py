"""The environment variables that users and launchers set: one table, and the one way to read them.

All code reads them through :func:`read`, which reports a value that is not allowed in one sentence. The manual's page on
operation lists this table.

>>> read("TACOS_CARRIER", {"TACOS_CARRIER": "mpi"})
'mpi'
>>> read("TACOS_PROBE", {"TACOS_PROBE": "yes"})
Traceback (most recent call last):
ValueError: TACOS_PROBE must be one of 0, 1; got 'yes'
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VARIABLES", "Variable", "cache_folder", "read"]


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable."""

    name: str
    meaning: str
    """For the manual."""
    default: str = ""
    """The default, in words; empty: none."""
    values: tuple[str, ...] = ()
    """The values that are allowed, in lower case; empty: any text."""
    secret: bool = False
    """Whether its value must not appear in messages or files."""


VARIABLES: dict[str, Variable] = {
    variable.name: variable
    for variable in (
        # The identity of this process; set by launchers.
        Variable("TACOS_RANK", "number of this rank, from 0"),
        Variable("TACOS_WORLD_SIZE", "number of ranks"),
        Variable("TACOS_LOCAL_RANK", "number of this rank on its host", "0"),
        Variable("TACOS_RENDEZVOUS", "`host:port` or `[address]:port` at which rank 0 listens"),
        Variable("TACOS_RENDEZVOUS_FD", "descriptor of a socket that listens there, for rank 0"),
        Variable(
            "TACOS_TOKEN",
            "secret of the job; only processes that know it can join",
            "under Slurm a file that only the user can read, else none",
            secret=True,
        ),
        # Networks.
        Variable(
            "TACOS_HOST",
            "address, host name or interface (`eth0`) at which this rank listens and is reached",
            "Unix sockets within a machine, else the address of the host name",
        ),
        Variable(
            "TACOS_ADDRESSES",
            'where this rank reaches its peers, by channel: `{"1": ["10.0.0.2"]}`, or a file that holds this',
        ),
        Variable("TACOS_CARRIER", "what moves the data: `tcp`, `mpi` or `nccl`", "`tcp`"),
        # Algorithms.
        Variable("TACOS_PLANS", "directory of plans"),
        Variable("TACOS_TOPOLOGY", "topology; calls without a plan get an algorithm that is synthesized for it"),
        Variable("TACOS_ENGINE", "engine that synthesizes them", "`auto`"),
        Variable("TACOS_CACHE", "directory in which these schedules are kept", "`~/.cache/tacos`"),
        Variable(
            "TACOS_PLACEMENT", "NPU of each rank: a list, or a file with one", "by name or number"
        ),
        Variable(
            "TACOS_ORDER", "hosts or ranks in the order that default algorithms follow", "by rank"
        ),
        Variable(
            "TACOS_PROBE", "`1`: measure the network at the start, and find that order", "`0`",
            ("0", "1"),
        ),
        Variable(
            "TACOS_DEBUG",
            "`info`: print each distinct choice of an algorithm; `debug`: also print each call",
            "`off`",
            ("off", "info", "debug"),
        ),
        # Trouble.
        Variable(
            "TACOS_ADAPT", "`1`: go around links that become slow or dead, and back", "`0`",
            ("0", "1"),
        ),
        Variable(
            "TACOS_LOGS", "what to print, topic by topic: `healing,+flight,-dispatch`", "warnings"
        ),
        Variable("TACOS_FLIGHT", "directory for the records of the last calls, written when one fails"),
        Variable("TACOS_METRICS", "`[host:]port` at which Prometheus finds figures"),
        # Services.
        Variable("TACOS_SWITCH", "`host:port` of a switch that adds up"),
        Variable("TACOS_SWITCH_TOKEN", "secret of that switch", secret=True),
        Variable("TACOS_HUB", "`host:port` of an optimizer service", "`127.0.0.1:7800`"),
        Variable("TACOS_HUB_TOKEN", "secret of the tenant there", secret=True),
    )
}  # fmt: skip
"""All variables, in the order of the manual."""


def read(name: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the value of a variable, or an empty string if it is not set.

    Args:
        name: One of :data:`VARIABLES`.
        environ: The environment; the process's by default.

    Raises:
        ValueError: The variable has a value that is not allowed.
    """
    variable = VARIABLES[name]
    value = (os.environ if environ is None else environ).get(name, "")
    if value and variable.values and value.lower() not in variable.values:
        raise ValueError(f"{name} must be one of {', '.join(variable.values)}; got {value!r}")
    return value


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory in which synthesized schedules are cached.

    >>> cache_folder({"XDG_CACHE_HOME": "/var/cache"})
    PosixPath('/var/cache/tacos')
    """
    given = read("TACOS_CACHE", environ)
    if given:
        return Path(given)
    variables = os.environ if environ is None else environ
    try:
        return Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacos"
    except RuntimeError:  # the user has no home directory
        raise ValueError(
            "set TACOS_CACHE to a directory: there is no home directory for ~/.cache/tacos"
        ) from None
