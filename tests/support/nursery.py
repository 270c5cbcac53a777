"""Processes that have already imported a module: the import takes far longer than the work of most ranks.

``Nursery("tests.support.rank_jobs")`` is a process that has imported it; ``fork(call, …)`` forks it. The child runs
the call with the environment and the output streams of its caller, and dies with the process that started the nursery.
Run as a script, this file is such a process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ROOT = Path(__file__).parents[2]
_LARGEST = 1 << 16  # bytes of a request


class Nursery:
    """A process that has imported `module` with these environment variables."""

    def __init__(self, module: str, **environment: str) -> None:
        self._way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.nursery", module, str(number)],
                cwd=ROOT,
                env={**os.environ, **environment},
                pass_fds=[number],
            )

    def fork(
        self, call: Callable[..., object], *arguments: Any, env: Mapping[str, str], err: int = 2
    ) -> int:
        """Return the number of a new process, which calls a function that can be imported."""
        request = pickle.dumps((call, arguments, {**os.environ, **env}))
        socket.send_fds(self._way, [request], [1, err])
        return int(self._way.recv(_LARGEST))


@cache
def nursery(module: str, **environment: str) -> Nursery:
    """Return the nursery of a module, which is started on first use."""
    return Nursery(module, **environment)


def die_with_parent() -> None:
    """Let this process be killed when the process that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def end(pids: Iterable[int], deadline: float) -> None:
    """Wait for processes of nurseries to end, and kill those that still run at a time of the monotonic clock."""
    while alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > deadline:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _run(request: bytes, streams: list[int]) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
            os.close(stream)
        call, arguments, environment = pickle.loads(request)
        os.environ.clear()
        os.environ.update(environment)
        call(*arguments)
        code = 0
    except BaseException:  # noqa: BLE001, a child must not become a second nursery
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(module: str, number: int) -> None:
    """Import the module, then fork for each request."""
    die_with_parent()
    importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children need no wait()
    with socket.socket(fileno=number) as way:
        while True:
            request, streams, _, _ = socket.recv_fds(way, _LARGEST, 2)
            if not request:
                return
            if (pid := os.fork()) == 0:
                die_with_parent()
                way.close()
                _run(request, streams)
            for stream in streams:
                os.close(stream)
            way.send(str(pid).encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
