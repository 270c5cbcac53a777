"""Local ranks: processes on this machine that form a job.

The ranks never outlive the process that started them: the kernel kills them when
it dies. When a rank fails, the others are ended too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

__all__ = ["LocalRanks", "launch"]

# The kernel kills the rank when its parent dies, also after an execve.
_LEASH = """
import ctypes, os, sys
ctypes.CDLL(None, use_errno=True).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""
_GRACE_S = 3.0


def launch(
    command: Sequence[str],
    ranks: int,
    *,
    env: Mapping[str, str] | None = None,
    output: str = "first",
) -> LocalRanks:
    """Start a command once per rank, on this machine.

    The processes get ``TACOS_RANK``, ``TACOS_WORLD_SIZE``, ``TACOS_LOCAL_RANK``, ``TACOS_RENDEZVOUS`` and
    ``TACOS_TOKEN``, which :func:`~tacos.runtime.communicator.connect` understands.

    Args:
        command: The program and its arguments.
        ranks: Number of ranks.
        env: Variables in addition to those of this process.
        output: Whose standard output is shown: ``first`` (rank 0), ``all`` or ``none``. Errors are always shown.

    >>> import sys
    >>> with launch([sys.executable, "-c", "import os; print(os.environ['TACOS_WORLD_SIZE'])"], 2,
    ...             output="none") as job:
    ...     job.wait(timeout=60)
    0
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it must be positive")
    if output not in ("first", "all", "none"):
        raise ValueError(f"output is {output!r}; it must be first, all or none")
    return LocalRanks(command, ranks, env=env, output=output)


@functools.cache
def _spawner(_process: int) -> ThreadPoolExecutor:
    """Return a thread that lives as long as the process.

    The kernel kills a rank when the thread that started it ends, not the process.
    """
    return ThreadPoolExecutor(1, "tacos launch")


def _started(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)

    return _spawner(os.getpid()).submit(start).result()


class LocalRanks:
    """The processes of a job, see :func:`launch`; leaving the context ends them."""

    def __init__(
        self, command: Sequence[str], ranks: int, *, env: Mapping[str, str] | None, output: str
    ) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        token = secrets.token_hex(16)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(4096)
            host, port = listener.getsockname()
            # Rank 0 inherits it, so no other process can take the port.
            listener.set_inheritable(True)
            try:
                for rank in range(ranks):
                    variables = {
                        **os.environ,
                        **(env or {}),
                        "TACOS_RANK": str(rank),
                        "TACOS_WORLD_SIZE": str(ranks),
                        "TACOS_LOCAL_RANK": str(rank),
                        "TACOS_RENDEZVOUS": f"{host}:{port}",
                        "TACOS_TOKEN": token,
                    }
                    if rank == 0:
                        variables["TACOS_RENDEZVOUS_FD"] = str(listener.fileno())
                    seen = output == "all" or (output == "first" and rank == 0)
                    self.processes.append(
                        _started(
                            [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid()), *command],
                            env=variables,
                            stdin=subprocess.DEVNULL,
                            stdout=None if seen else subprocess.DEVNULL,
                            pass_fds=(listener.fileno(),) if rank == 0 else (),
                        )
                    )
            except BaseException:
                self.kill()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for all ranks and return 0, or the code of the first that failed.

        The code of a rank that was killed by signal n is 128 + n, as in shells and ``tacos lab``. When a rank fails, the
        others get a few seconds to report their errors.

        Raises:
            TimeoutError: Some ranks were still running after `timeout` seconds and were killed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        code, failed_at, pause = 0, None, 0.001
        try:
            while True:
                codes = [process.poll() for process in self.processes]
                if failed_at is None and any(codes):
                    code = next(c for c in codes if c)
                    code = code if code > 0 else 128 - code
                    failed_at = time.monotonic()
                if all(c is not None for c in codes):
                    return code
                now = time.monotonic()
                if failed_at is not None and now - failed_at > _GRACE_S:
                    return code
                if deadline is not None and now > deadline:
                    alive = [rank for rank, c in enumerate(codes) if c is None]
                    raise TimeoutError(f"ranks {alive} still run after {timeout:g} s")
                time.sleep(pause)
                pause = min(0.05, pause * 1.2)
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                self._stop(signal.SIGINT)
            raise
        finally:
            self.kill()

    def kill(self) -> None:
        """End all ranks that still run."""
        self._stop(signal.SIGTERM, 0.5)
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _stop(self, number: signal.Signals, patience: float = _GRACE_S) -> None:
        running = [process for process in self.processes if process.poll() is None]
        for process in running:
            process.send_signal(number)
        end = time.monotonic() + patience
        while any(process.poll() is None for process in running) and time.monotonic() < end:
            time.sleep(0.005)
