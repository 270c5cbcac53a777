"""Find the job of this process in its launcher's environment variables."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
from functools import partial
from typing import TYPE_CHECKING

from tacos._support.log import LOG
from tacos._support.variables import VARIABLES, cache_folder, read
from tacos.runtime.rendezvous.addresses import host_and_port
from tacos.runtime.rendezvous.store import StoreRendezvous
from tacos.runtime.rendezvous.tcp import TcpRendezvous

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tacos.runtime.rendezvous import Rendezvous

__all__ = ["from_environment", "in_job"]

_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SLURM_NO_STEP = 0xFFFFFFF0
"""Slurm's step numbers from here on belong to batch shells and other special steps."""


def from_environment(
    environ: Mapping[str, str] | None = None, *, timeout: float = 300.0
) -> Rendezvous:
    """Return the rendezvous of this process's job.

    It reads, in this order: ``TACOS_RANK``, ``TACOS_WORLD_SIZE`` and ``TACOS_RENDEZVOUS=host:port`` (``tacos
    run``, ``tacos lab``); torchrun's ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``; the variables of
    Open MPI and MPICH; and those of a Slurm step, ``SLURM_PROCID``, ``SLURM_NTASKS`` and ``SLURM_STEP_ID``. Without
    any of them, the process is a job of one rank. ``TACOS_TOKEN`` is the secret of the job. Without it, ranks under Slurm share a
    secret in a file that only their user can read.

    Raises:
        ValueError: A variable is missing or not a number.
        TimeoutError: Some ranks did not connect.

    >>> from_environment({}).size
    1
    """
    env = os.environ if environ is None else environ
    token = read("TACOS_TOKEN", env)
    if "TACOS_RANK" in env:
        host, port = host_and_port(
            _required(env, "TACOS_RENDEZVOUS", "host:port"), "TACOS_RENDEZVOUS"
        )
        rank, size = _number(env, "TACOS_RANK"), _number(env, "TACOS_WORLD_SIZE")
        if not token and size > 1:
            LOG.warning(
                "TACOS_TOKEN is not set: any process that reaches %s port %s can join the job",
                host,
                port,
            )
        listener = None
        if rank == 0 and read("TACOS_RENDEZVOUS_FD", env):
            number = _number(env, "TACOS_RENDEZVOUS_FD")
            try:
                listener = socket.socket(fileno=number)
            except OSError as error:
                raise ValueError(
                    f"TACOS_RENDEZVOUS_FD is {number}, which is not a socket: {error.strerror}"
                ) from None
        return TcpRendezvous(
            rank, size, host, port, timeout=timeout, listener=listener, token=token
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
        return _of_slurm(env, step, token, timeout)
    return TcpRendezvous(0, 1, "localhost", 0, timeout=timeout)


def _of_slurm(env: Mapping[str, str], step: str, token: str, timeout: float) -> TcpRendezvous:
    rank, size = _number(env, "SLURM_PROCID"), _number(env, "SLURM_NTASKS")
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "localhost")
    # Steps of a job run concurrently, so each has its own port. The port is not a secret, the token is.
    place = 20000 + int(hashlib.sha256(step.encode()).hexdigest(), 16) % 20000
    host = _first_host(nodes)
    if token or size == 1:
        return TcpRendezvous(rank, size, host, place, timeout=timeout, token=token)
    restart = env.get("SLURM_RESTART_COUNT", "0")
    file = cache_folder(env) / f".slurm-{step}-{restart}.token"
    if rank == 0:
        secret = offer_secret(file)
        try:
            return TcpRendezvous(rank, size, host, place, timeout=timeout, token=secret)
        finally:
            with contextlib.suppress(OSError):
                file.unlink()
    try:
        return TcpRendezvous(
            rank, size, host, place, timeout=timeout, token=partial(shared_secret, file)
        )
    except TimeoutError as error:
        if file.exists():
            raise
        raise TimeoutError(
            f"{error}; set TACOS_TOKEN to a secret of the job, as in export TACOS_TOKEN=$(openssl rand "
            f"-hex 16) before srun, where nodes do not share {file.parent}"
        ) from None


def offer_secret(file: Path) -> str:
    """Write a new secret into a file that only the user can read, and return it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     secret = offer_secret(Path(folder) / "token")
    ...     shared_secret(Path(folder) / "token") == secret
    True
    """
    secret = secrets.token_hex(16)
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new.touch(mode=0o600, exist_ok=False)
        new.write_text(secret)
        new.replace(file)
    except OSError as error:
        raise ValueError(
            f"the ranks of this Slurm job need a secret: {file} cannot be written "
            f"({error.strerror}); set TACOS_TOKEN, as in export TACOS_TOKEN=$(openssl rand -hex 16) before srun"
        ) from None
    return secret


def shared_secret(file: Path) -> str:
    """Read the secret that rank 0 has written.

    Raises:
        OSError: The file does not exist yet, or other users can read it or have written it.
    """
    found = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        state = os.fstat(found)
        if state.st_uid != os.geteuid() or state.st_mode & 0o077:
            raise PermissionError(f"{file} must belong to this user, with mode 0600")
        return os.read(found, 200).decode()
    finally:
        os.close(found)


def in_job(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a launcher has started this process as a rank of a job.

    >>> in_job({"TACOS_RANK": "0"}), in_job({})
    (True, False)
    """
    env = os.environ if environ is None else environ
    if any(name in env for name in ("TACOS_RANK", *_MPI_RANKS)) or _slurm_step(env) is not None:
        return True
    return "RANK" in env and "MASTER_ADDR" in env


def _slurm_step(env: Mapping[str, str]) -> str | None:
    """Return the Slurm step of which this process is a task, unless MPI's launcher has started it.

    The shell of sbatch has a rank but is not a task. If srun uses PMI, both number the ranks in the same way. Below
    MPI's own launcher, Slurm's numbers belong to the launcher's helpers.

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
    """Return the first host of Slurm's compressed list: ``gpu[007-010,12],login`` begins with gpu007."""
    found = re.match(r"([^\[,]+)(?:\[([0-9]+))?", nodes)
    if found is None:
        raise ValueError(f"the node list is {nodes!r}; it must begin with a host")
    return found.group(1) + (found.group(2) or "")


def _required(env: Mapping[str, str], name: str, what: str) -> str:
    value = read(name, env) if name in VARIABLES else env.get(name, "")
    if not value:
        raise ValueError(f"{name} is not set; it must be {what}")
    return value


def _number(env: Mapping[str, str], name: str) -> int:
    text = _required(env, name, "a number")
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}; it must be a number")
    return int(text)
