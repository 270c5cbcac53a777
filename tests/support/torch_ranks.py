"""Processes of torch.distributed that wait for jobs, so that they are started only once.

``Ranks(4)`` forks a process that has imported torch four times; each child joins the process group and then runs
functions of ``tests/support/torch_jobs.py`` and ``torch_training.py`` on request.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
import traceback
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

from tests.support.conditions import PATIENCE_S
from tests.support.nursery import end, nursery


class Ranks:
    """Processes of one process group."""

    def __init__(
        self, size: int, backend: str = "tacos", seconds: float = PATIENCE_S, **environment: str
    ):
        self.size = size
        self.broken = False  # whether a job failed, so that the ranks may not be in step
        self._folder = tempfile.TemporaryDirectory(prefix="tacos-ranks-")
        address = str(Path(self._folder.name, "jobs"))
        self._listener = Listener(address, "AF_UNIX", backlog=size)
        reading, writing = os.pipe()
        self._errors = os.fdopen(reading, "rb", buffering=0)
        source = nursery("tests.support.torch_training", OMP_NUM_THREADS="1")
        variables = {"OMP_NUM_THREADS": "1", "TACOS_DEBUG": "off", **environment}
        try:
            started = [
                source.fork(
                    serve, address, rank, size, backend, seconds, env=variables, err=writing
                )
                for rank in range(size)
            ]
        finally:
            os.close(writing)
        self._connections: dict[int, Connection] = {}
        self.pids = dict(enumerate(started))
        try:
            for _ in range(size):
                connection = self._accept()
                self._connections[connection.recv()] = connection
            port = self._ask(0, "port")
            for rank in range(1, size):
                self._connections[rank].send(port)
        except BaseException:
            self.close()
            raise

    def _accept(self) -> Connection:
        self._listener._listener._socket.settimeout(PATIENCE_S)  # type: ignore[attr-defined]
        return self._listener.accept()

    def _ask(self, rank: int, what: object) -> object:
        self._connections[rank].send(what)
        return self._connections[rank].recv()

    def start(self, job: str, *ranks: int, **arguments: object) -> None:
        """Begin a job on some ranks, by default on all."""
        for rank in ranks or range(self.size):
            self._connections[rank].send((job, arguments))

    def finish(self, *ranks: int, seconds: float = PATIENCE_S) -> list[object]:
        """Return what the job returned, rank by rank; a text that begins with ``!`` is an error."""
        waiting: dict[Any, int] = {
            self._connections[rank]: rank for rank in ranks or range(self.size)
        }
        results: dict[int, object] = dict.fromkeys(waiting.values(), f"! no answer in {seconds} s")
        deadline = time.monotonic() + seconds
        while waiting and (ready := wait(list(waiting), max(0.0, deadline - time.monotonic()))):
            connection: Any
            for connection in ready:
                rank = waiting.pop(connection)
                try:
                    results[rank] = connection.recv()
                except EOFError:
                    results[rank] = "! it died"
        return [results[rank] for rank in sorted(results)]

    def run(self, job: str, **arguments: object) -> list[object]:
        """Run a job, which must succeed on all ranks, and return its results."""
        self.start(job, **arguments)
        self.broken = True
        results = self.finish()
        failed = {rank: text for rank, text in enumerate(results) if str(text)[:1] == "!"}
        assert not failed, "\n".join(f"rank {rank}: {text}" for rank, text in failed.items())
        self.broken = False
        return results

    def fail(self, job: str, **arguments: object) -> list[str]:
        """Run a job, which must fail on all ranks, and return the last lines of its errors."""
        self.start(job, **arguments)
        results = self.finish()
        for rank, result in enumerate(results):
            assert isinstance(result, str), f"rank {rank} returned {result!r}"
            assert result[:1] == "!", f"rank {rank} returned {result!r}"
        return [str(result).strip().splitlines()[-1] for result in results]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send one rank a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[rank], number)

    def close(self) -> str:
        """End all ranks; return what they wrote to their error stream."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.send(None)
        said, deadline = b"", time.monotonic() + 20.0
        while wait([self._errors], max(0.0, deadline - time.monotonic())):
            if not (text := self._errors.read(1 << 16)):
                break
            said += text
        end(self.pids.values(), deadline)
        self._errors.close()
        for connection in self._connections.values():
            connection.close()
        self._listener.close()
        self._folder.cleanup()
        return said.decode(errors="replace")

    def alive(self) -> list[int]:
        """Return the ranks whose processes still run."""
        return [rank for rank, pid in self.pids.items() if Path(f"/proc/{pid}").exists()]


def serve(address: str, rank: int, size: int, backend: str, seconds: float) -> None:
    """Join the group as one rank, then run jobs until there are no more."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from tests.support import torch_jobs, torch_training

    jobs = {**vars(torch_jobs), **vars(torch_training)}
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    connection = Client(address, "AF_UNIX")
    connection.send(rank)
    limit = timedelta(seconds=seconds)
    message = connection.recv()
    port = 0 if rank == 0 else int(message)
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0, limit, wait_for_workers=False)
    if rank == 0:
        connection.send(store.port)
    joined = False
    while (message := connection.recv()) is not None:
        job, arguments = message
        try:
            if not joined:
                joined = True
                dist.init_process_group(
                    backend, store=store, rank=rank, world_size=size, timeout=limit
                )
            result = jobs[job](**arguments)
        except BaseException:  # noqa: BLE001, it is the answer
            result = "! " + traceback.format_exc()
        connection.send(result)
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
