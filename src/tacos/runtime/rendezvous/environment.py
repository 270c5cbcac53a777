"""Find the job of this process in its launcher's environment variables."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from typing import TYPE_CHECKING

from tacos.runtime.rendezvous.store import StoreRendezvous
from tacos.runtime.rendezvous.tcp import TcpRendezvous

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tacos.runtime.rendezvous import Rendezvous

__all__ = ["from_environment", "in_job"]

_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SLURM_NO_STEP = 0xFFFFFFF0
"""From here on, Slurm's numbers of steps are those of batch shells and other special steps."""


def from_environment(
    environ: Mapping[str, str] | None = None, *, timeout: float = 300.0
) -> Rendezvous:
    """The rendezvous of the job that this process is part of.

    Looked at, in this order: ``TACOS_RANK``, ``TACOS_WORLD_SIZE`` and ``TACOS_RENDEZVOUS=host:port`` (``tacos
    run``, ``tacos lab``); torchrun's ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``; the variables of
    Open MPI and MPICH; those of a step of Slurm, ``SLURM_PROCID``, ``SLURM_NTASKS`` and ``SLURM_STEP_ID``. Without
    any of them the process is a job of one rank. ``TACOS_TOKEN`` is a text that tells the ranks of a
    job from other processes.

    Raises:
        ValueError: A variable is missing or not a number.
        TimeoutError: Some ranks did not come.

    >>> from_environment({}).size
    1
    """
    env = os.environ if environ is None else environ
    if "TACOS_RANK" in env:
        host, _, port = _required(env, "TACOS_RENDEZVOUS", "host:port").rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(
                f"TACOS_RENDEZVOUS is {env['TACOS_RENDEZVOUS']!r}; it must be host:port"
            )
        listener = None
        rank = _number(env, "TACOS_RANK")
        if rank == 0 and "TACOS_RENDEZVOUS_FD" in env:
            listener = socket.socket(fileno=_number(env, "TACOS_RENDEZVOUS_FD"))
        size, token = _number(env, "TACOS_WORLD_SIZE"), env.get("TACOS_TOKEN", "")
        return TcpRendezvous(
            rank, size, host, int(port), timeout=timeout, listener=listener, token=token
        )
    if "RANK" in env and "MASTER_ADDR" in env:
        restarts = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
        return StoreRendezvous.of_torchrun(rank, size, restarts=restarts, timeout=timeout)
    step = _slurm_step(env)
    if step is None and any(name in env for name in _MPI_RANKS):
        from tacos.runtime.rendezvous.mpi import MpiRendezvous

        return MpiRendezvous(timeout=timeout)
    if step is not None:
        rank, size = _number(env, "SLURM_PROCID"), _number(env, "SLURM_NTASKS")
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "localhost")
        # Steps of a job run beside each other.
        place = 20000 + int(hashlib.sha256(step.encode()).hexdigest(), 16) % 20000
        return TcpRendezvous(rank, size, _first_host(nodes), place, timeout=timeout, token=step)
    return TcpRendezvous(0, 1, "localhost", 0, timeout=timeout)


def in_job(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a launcher has started this process as one of the ranks of a job.

    >>> in_job({"TACOS_RANK": "0"}), in_job({})
    (True, False)
    """
    env = os.environ if environ is None else environ
    if any(name in env for name in ("TACOS_RANK", *_MPI_RANKS)) or _slurm_step(env) is not None:
        return True
    return "RANK" in env and "MASTER_ADDR" in env


def _slurm_step(env: Mapping[str, str]) -> str | None:
    """The step of a Slurm job that this process is a task of, unless MPI's launcher has started it.

    The shell of sbatch has a rank but is not a task. srun may speak PMI, then both count the ranks alike; below
    MPI's own launcher, Slurm's numbers are those of the launcher's helpers.

    >>> _slurm_step({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"})
    >>> _slurm_step({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"})
    '7.2'
    """
    step = env.get("SLURM_STEP_ID", env.get("SLURM_STEPID", ""))
    if "SLURM_PROCID" not in env or "SLURM_NTASKS" not in env or not step.isdecimal():
        return None
    if int(step) >= _SLURM_NO_STEP or "OMPI_COMM_WORLD_RANK" in env:
        return None
    numbers = {"PMI_RANK": "SLURM_PROCID", "PMIX_RANK": "SLURM_PROCID", "PMI_SIZE": "SLURM_NTASKS"}
    if any(name in env and env[name] != env[slurms] for name, slurms in numbers.items()):
        return None
    return f"{env.get('SLURM_JOB_ID', '')}.{step}"


def _first_host(nodes: str) -> str:
    """The first host of Slurm's compressed list: ``gpu[007-010,12],login`` begins with gpu007."""
    found = re.match(r"([^\[,]+)(?:\[([0-9]+))?", nodes)
    if found is None:
        raise ValueError(f"the node list is {nodes!r}; it must begin with a host")
    return found.group(1) + (found.group(2) or "")


def _required(env: Mapping[str, str], name: str, what: str) -> str:
    if name not in env:
        raise ValueError(f"{name} is not set; it must be {what}")
    return env[name]


def _number(env: Mapping[str, str], name: str) -> int:
    text = _required(env, name, "a number")
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}; it must be a number")
    return int(text)
