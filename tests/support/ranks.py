"""Ranks for tests: processes that are started once and sent jobs.

``Ranks(8)`` starts them; ``ranks.run(size, job, *arguments)`` runs a function of `tests.support.rank_jobs` on the first
`size` of them and returns what each returned, or the exception it raised. ``MpiRanks(8)`` does the same
over MPI. Run as a script, this file is such a rank.

The processes of ``Ranks`` are forked from one (`tests.support.nursery`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Self

from tacos.runtime import Communicator, TcpRendezvous
from tests.support.conditions import PATIENCE_S
from tests.support.nursery import ROOT, end, nursery


class Ranks:
    """Some ranks that wait for jobs."""

    def __init__(self, count: int, **env: str) -> None:
        self.count = count
        key = os.urandom(16)
        with Listener(("127.0.0.1", 0), backlog=count, authkey=key) as listener:
            self._launch(listener.address[1], key, env)
            self.peers: list[Connection] = [None] * count
            self.pids = [0] * count
            for _ in range(count):
                peer = listener.accept()
                rank, self.pids[rank] = peer.recv()
                self.peers[rank] = peer

    def _launch(self, port: int, key: bytes, env: dict[str, str]) -> None:
        token = os.urandom(16).hex()
        for rank in range(self.count):
            own = {"TACOS_RANK": str(rank), "TACOS_TOKEN": token, **env}
            nursery("tests.support.rank_jobs").fork(serve, port, key, env=own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.send(None)
            peer.close()
        end(self.pids, time.monotonic() + 5.0)

    def start(self, size: int, job: str, *arguments: Any, fresh: float = 0.0) -> None:
        """Send a job to the first `size` ranks; `fresh` is the timeout of a communicator for this job only."""
        port = free_port()
        for peer in self.peers[:size]:
            peer.send((size, port, fresh, job, arguments))

    def collect(self, ranks: range | list[int], patience: float = PATIENCE_S) -> list[Any]:
        """Return what these ranks returned or raised."""
        results = []
        for rank in ranks:
            if not self.peers[rank].poll(patience):
                raise AssertionError(f"rank {rank} gave no answer within {patience} s")
            results.append(self.peers[rank].recv())
        return results

    def run(self, size: int, job: str, *arguments: Any, fresh: float = 0.0) -> list[Any]:
        """Run a job and return the results; an exception of a rank is raised here."""
        self.start(size, job, *arguments, fresh=fresh)
        results = self.collect(range(size))
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


class MpiRanks(Ranks):
    """Ranks that mpiexec starts; they end when this process closes their connections."""

    def _launch(self, port: int, key: bytes, env: dict[str, str]) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.job = subprocess.Popen(
            [
                *mpiexec(self.count),
                sys.executable,
                "-m",
                "tests.support.ranks",
                str(port),
                key.hex(),
            ],
            env={**os.environ, **MPI_SETTINGS, "PYTHONPATH": path, **env},
        )

    def close(self) -> None:
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.send(None)
            peer.close()
        try:
            self.job.wait(20.0)
        except subprocess.TimeoutExpired:  # after a failure, MPI may never finalize
            self.job.terminate()
            self.job.wait(20.0)


def mpiexec(ranks: int) -> list[str]:
    """Return the command that starts this many ranks of MPI; empty where MPI is missing."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    return [found, "-n", str(ranks)] if found else []


MPI_SETTINGS = {  # Open MPI: allow more ranks than cores, and root
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _meet_over_tcp(size: int, port: int, timeout: float) -> Communicator:
    rank = int(os.environ["TACOS_RANK"])
    return Communicator(
        TcpRendezvous(rank, size, "127.0.0.1", port, timeout=timeout), timeout=timeout
    )


def _meet_over_mpi(size: int, port: int, timeout: float) -> Communicator:
    from mpi4py import MPI

    from tacos.runtime.mpi import connect

    world = MPI.COMM_WORLD
    return connect(world.Create_group(world.Get_group().Incl(range(size))), timeout=timeout)


def serve(port: int, key: bytes) -> None:
    """Run jobs as one rank until there are no more."""
    from tests.support import rank_jobs

    rank, meet = int(os.environ.get("TACOS_RANK", "-1")), _meet_over_tcp
    if rank < 0:
        from mpi4py import MPI

        rank, meet = MPI.COMM_WORLD.Get_rank(), _meet_over_mpi
    communicators: dict[int, Communicator] = {}
    with Client(("127.0.0.1", port), authkey=key) as parent:
        parent.send((rank, os.getpid()))
        while (job := parent.recv()) is not None:
            size, meeting, fresh, name, arguments = job
            comm = None if fresh else communicators.get(size)
            try:
                if comm is None:
                    comm = meet(size, meeting, fresh or PATIENCE_S)
                    if not fresh:
                        communicators[size] = comm
                result = getattr(rank_jobs, name)(comm, *arguments)
            except Exception as error:  # noqa: BLE001, the test checks it
                result = error
            if fresh and comm is not None:
                comm.close()
            parent.send(result)


if __name__ == "__main__":
    serve(int(sys.argv[1]), bytes.fromhex(sys.argv[2]))
