"""Ranks for tests: processes that are started once and sent jobs.

``Ranks(8)`` starts them; ``ranks.run(size, job, *arguments)`` runs a function of `tests.rank_jobs` on the first
`size` of them and returns what each returned, or the exception it raised. Run as a script, this
file is such a rank.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Self

from tacos.runtime import Communicator, TcpRendezvous, launch

ROOT = Path(__file__).parents[1]
_PATIENCE_S = 60.0


class Ranks:
    """Some ranks that wait for jobs."""

    def __init__(self, count: int, **env: str) -> None:
        self.count = count
        key = os.urandom(16)
        with Listener(("127.0.0.1", 0), backlog=count, authkey=key) as listener:
            command = [sys.executable, "-m", "tests.ranks", str(listener.address[1]), key.hex()]
            path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            self.job = launch(command, count, env={"PYTHONPATH": path, **env}, output="all")
            self.peers: list[Connection] = [None] * count
            for _ in range(count):
                peer = listener.accept()
                self.peers[peer.recv()] = peer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for peer in self.peers:
            with contextlib.suppress(OSError):
                peer.send(None)
            peer.close()
        self.job.kill()

    def start(self, size: int, job: str, *arguments: Any, fresh: bool = False) -> None:
        """Send a job to the first `size` ranks; `fresh`: with a communicator of its own."""
        port = free_port()
        for peer in self.peers[:size]:
            peer.send((size, port, fresh, job, arguments))

    def collect(self, ranks: range | list[int], patience: float = _PATIENCE_S) -> list[Any]:
        """What these ranks returned or raised."""
        results = []
        for rank in ranks:
            if not self.peers[rank].poll(patience):
                raise AssertionError(f"rank {rank} gave no answer within {patience} s")
            results.append(self.peers[rank].recv())
        return results

    def run(self, size: int, job: str, *arguments: Any, fresh: bool = False) -> list[Any]:
        """Run a job and return the results; an exception of a rank is raised here."""
        self.start(size, job, *arguments, fresh=fresh)
        results = self.collect(range(size))
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(port: int, key: bytes) -> None:
    from tests import rank_jobs

    rank = int(os.environ["TACOS_RANK"])
    communicators: dict[int, Communicator] = {}
    with Client(("127.0.0.1", port), authkey=key) as parent:
        parent.send(rank)
        while (job := parent.recv()) is not None:
            size, meeting, fresh, name, arguments = job
            try:
                timeout = rank_jobs.TIMEOUT_S if fresh else _PATIENCE_S
                comm = None if fresh else communicators.get(size)
                if comm is None:
                    meet = TcpRendezvous(rank, size, "127.0.0.1", meeting, timeout=timeout)
                    comm = Communicator(meet, timeout=timeout)
                    if not fresh:
                        communicators[size] = comm
                result = getattr(rank_jobs, name)(comm, *arguments)
            except Exception as error:  # noqa: BLE001, the test looks at it
                result = error
            if fresh and comm is not None:
                comm.close()
            parent.send(result)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), bytes.fromhex(sys.argv[2]))
