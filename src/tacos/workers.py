"""Where sweeps and searches run: on the cores of this machine, on a Dask cluster, over MPI, or on any executor.

:func:`opened` opens workers by name. :func:`~tacos.search.compare.compare`, :func:`~tacos.search.tune.tune`,
:func:`~tacos.training.search.search` and :func:`~tacos.design.shapes.shapes` take them, or any other
:class:`concurrent.futures.Executor`, as ``executor=``. Results do not depend on where they are computed.

>>> import tacos
>>> ring = tacos.topology.ring(4)
>>> sizes = [tacos.collective.all_gather(ring, size) for size in ("4KB", "4MB")]
>>> with opened("processes:2") as executor:
...     sweep = tacos.compare(ring, sizes, engines=["ring", "direct"], executor=executor)
>>> [one.solved[0].engine for one in sweep.comparisons]
['direct', 'ring']
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import signal
import time
import warnings
import zlib
from collections import deque
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tacos.errors import TacosError, WorkerLostWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import ProcessPoolExecutor

__all__ = ["Dispatch", "WorkerLostError", "opened"]

_BATCH_S = 0.25
"""Seconds of work in a batch (chosen: a hundred times the cost of handing it out)."""
_AHEAD = 2
"""Batches per worker that are handed out: one that runs and one that waits, so that workers are never idle."""
_WAKE_S = 0.1
"""Longest time in seconds before the dispatcher notices Ctrl-C."""
_LOOK_S = 2.0
"""Seconds between checks of which workers of a cluster are alive."""


class WorkerLostError(TacosError):
    """The worker that ran a task died, and so did the worker that then ran it alone."""


# --- workers by name -----------------------------------------------------------------------------


@contextmanager
def opened(name: str) -> Iterator[Executor]:
    """Open workers by name and release them when the block ends, at once if an exception or Ctrl-C ends it.

    - ``"processes"``: a process for each core of this machine; ``"processes:8"``: eight.
    - ``"dask://scheduler:8786"``: the workers of a Dask cluster, by the address of its scheduler (extra ``dask``).
    - ``"mpi"``: the ranks of an MPI job except the first (extra ``mpi``). Start the same script or command on all ranks,
      as in ``mpiexec -n 9 tacos compare … --on mpi``. The first rank runs the block; the others work for it and then
      exit, without running the code that follows.

    Raises:
        TacosError: A package is missing, or the cluster cannot be reached.
        ValueError: The name is not one of the above.
    """
    kind, _, rest = name.partition(":")
    if kind == "processes":
        if rest and not (rest.isdecimal() and 0 < int(rest) < 10_000):
            raise ValueError(
                f"processes must be a number from 1 to 9,999, as in processes:8; got {name!r}"
            )
        workers: Executor = _Processes(int(rest) if rest else os.cpu_count() or 1)
    elif kind == "dask" and rest.startswith("//") and len(rest) > 2:
        workers = _Dask("tcp:" + rest)
    elif name == "mpi":
        with _ranks() as ranks:
            yield ranks
        return
    else:
        raise ValueError(
            f"--on must be processes, processes:N, dask://HOST:PORT or mpi; got {name!r}"
        )
    try:
        yield workers
    except BaseException:
        workers.shutdown(wait=False, cancel_futures=True)
        raise
    workers.shutdown()


class _Processes(Executor):
    """A pool of processes that is replaced when one of them dies, since that breaks the whole pool."""

    def __init__(self, count: int) -> None:
        self._max_workers = count
        self._pool = self._new()

    def _new(self) -> ProcessPoolExecutor:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        # Threads of this process may hold locks, so workers are spawned and not forked.
        return ProcessPoolExecutor(
            self._max_workers, get_context("spawn"), initializer=_ignore_interrupts
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenExecutor:
            self._pool.shutdown(wait=False)
            self._pool = self._new()
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        running = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait, cancel_futures=cancel_futures)
        if not wait:  # running tasks are no longer needed
            for process in running:
                process.terminate()


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which reaches all processes of a terminal: the process that waits for the workers ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Dask(Executor):
    """The workers of a Dask cluster, however many it has at the time."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ModuleNotFoundError:
            raise TacosError(
                "--on dask needs the extra dask: pip install 'tacos-ccl[dask]'"
            ) from None
        try:
            self._client: Any = Client(address, timeout=10, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise TacosError(f"cannot reach a Dask scheduler at {address}: {error}") from None
        self._executor = self._client.get_executor(pure=False)
        self._addresses: set[str] = set()
        self._looked, self._max_workers = -_LOOK_S, 1
        self.lost()

    def lost(self) -> int:
        """Return how many workers have left since the last call; Dask replaces them silently."""
        if time.monotonic() < self._looked + _LOOK_S:
            return 0
        threads = self._client.nthreads()
        self._looked, self._max_workers = time.monotonic(), max(sum(threads.values()), 1)
        before, self._addresses = self._addresses, set(threads)
        return len(before - self._addresses)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._executor.submit(fn, *args, **kwargs)  # type: ignore[no-any-return]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait=wait and not cancel_futures)
        self._client.close()


@contextmanager
def _ranks() -> Iterator[Executor]:
    try:
        from mpi4py import MPI
        from mpi4py.futures import MPICommExecutor
    except ModuleNotFoundError:
        raise TacosError("--on mpi needs the extra mpi: pip install 'tacos-ccl[mpi]'") from None
    if MPI.COMM_WORLD.size < 2:
        raise TacosError(
            "--on mpi needs at least two ranks, the first of which hands out the work: mpiexec -n 9 tacos … --on mpi"
        )
    executor: Any
    with MPICommExecutor(MPI.COMM_WORLD) as executor:
        if executor is not None:
            yield executor
            return
    raise SystemExit(0)  # this rank was a worker until the first rank finished


# --- handing out ---------------------------------------------------------------------------------


class Dispatch:
    """Hand out tasks to the workers of an executor; iterate for the number and result of each task as it completes.

    Short tasks are sent in batches, so that workers do not wait for the next task, and long tasks one by one. Objects that
    tasks share, such as a topology, are sent compressed, once per batch and not once per task. In results, they are the
    caller's own objects.

    A worker that dies is reported as a :class:`~tacos.errors.WorkerLostWarning`, and its tasks run again. Each runs
    alone, so that a task that kills its worker is identified and affects no other task.

    Args:
        executor: Where the work is done. It stays open.
        work: A function of a module, called with one task.
        tasks: Arguments for `work`; they must be picklable.
        shared: Objects that tasks and results refer to.
        progress: Called from time to time with the share of tasks done; an exception that it raises ends the work.

    The result of a task that raises is its exception. The result of a task that kills its worker twice is a :class:`WorkerLostError`.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as pool:
    ...     sorted(Dispatch(pool, abs, [3, -4, -5]))
    [(0, 3), (1, 4), (2, 5)]
    """

    def __init__(
        self,
        executor: Executor,
        work: Callable[[Any], Any],
        tasks: Sequence[Any],
        *,
        shared: Sequence[object] = (),
        progress: Callable[[float], object] | None = None,
    ) -> None:
        self._executor, self._work, self._tasks = executor, work, tasks
        self._shared, self._progress = tuple(shared), progress
        self._packed = zlib.compress(pickle.dumps(self._shared, 5), 1)
        self._digest = hashlib.sha256(self._packed).digest()
        self._waiting = deque(range(len(tasks)))
        self._suspects: deque[list[int]] = deque()  # batches that were lost with their workers
        self._running: dict[Future[bytes], list[int]] = {}
        self._alone = False  # whether the running batch is a suspect
        self._done = 0
        self._worked_s, self._worked_tasks = 0.0, 0

    def drop(self, unwanted: Callable[[Any], bool]) -> list[int]:
        """Cancel the unwanted tasks that have not been handed out, and return their numbers."""
        dropped = [k for k in self._waiting if unwanted(self._tasks[k])]
        gone = set(dropped)
        self._waiting = deque(k for k in self._waiting if k not in gone)
        self._done += len(dropped)
        return dropped

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each task."""
        try:
            while self._waiting or self._suspects or self._running:
                self._hand_out()
                # Wake up regularly to report progress and notice Ctrl-C.
                done, _ = wait(self._running, timeout=_WAKE_S, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=self._running.__getitem__):
                    yield from self._taken(future, self._running.pop(future))
                if gone := getattr(self._executor, "lost", int)():
                    _warn(
                        f"{gone} worker{'s' * (gone > 1)} of the cluster left; other workers take over"
                    )
                if self._progress is not None:
                    self._progress(self._done / max(len(self._tasks), 1))
        finally:
            for future in self._running:
                future.cancel()

    def in_order(self) -> list[Any]:
        """Return all results in the order of the tasks.

        Raises:
            Exception: The exception of the first task that raised one.
        """
        found: dict[int, Any] = dict(self)
        for k in sorted(found):
            if isinstance(found[k], BaseException):
                raise found[k]
        return [found[k] for k in sorted(found)]

    def _hand_out(self) -> None:
        if self._suspects and not self._waiting:
            # A task that runs alone is to blame if its worker dies.
            if not self._running:
                self._alone = True
                self._submit(self._suspects.popleft())
            return
        workers = getattr(self._executor, "_max_workers", None) or os.cpu_count() or 1
        while self._waiting and len(self._running) < _AHEAD * workers:
            # Batches are small at the beginning and towards the end, so that all workers have some.
            size = len(self._waiting) // (_AHEAD * workers)
            if self._worked_s > 0:
                size = min(size, int(_BATCH_S * self._worked_tasks / self._worked_s))
            elif self._worked_tasks == 0:
                size = 1
            self._submit([self._waiting.popleft() for _ in range(max(size, 1))])

    def _submit(self, batch: list[int]) -> None:
        tasks = _dumped([self._tasks[k] for k in batch], self._shared)
        try:
            future = self._executor.submit(_work_off, self._packed, self._digest, self._work, tasks)
        except BrokenExecutor:
            raise TacosError(
                "a worker of the executor died, which broke the executor; executors of tacos.workers.opened survive this"
            ) from None
        self._running[future] = batch

    def _taken(self, future: Future[bytes], batch: list[int]) -> Iterator[tuple[int, Any]]:
        try:
            seconds, results = _loaded(future.result(), self._shared)
        except (BrokenExecutor, CancelledError) as error:
            yield from self._lost(batch, error)
            return
        except Exception as error:
            if type(error).__name__ != "KilledWorker":  # Dask's, which may not be installed
                raise
            yield from self._lost(batch, error)
            return
        self._worked_s += seconds
        self._worked_tasks += len(batch)
        for k, result in zip(batch, results, strict=True):
            self._done += 1
            yield k, result

    def _lost(self, batch: list[int], error: BaseException) -> Iterator[tuple[int, Any]]:
        if self._alone and len(batch) == 1:
            self._done += 1
            yield (
                batch[0],
                WorkerLostError(f"this task killed its worker: {str(error) or 'unknown reason'}"),
            )
            return
        _warn(f"a worker died; its work ({len(batch)} task{'s' * (len(batch) > 1)}) is run again")
        middle = (len(batch) + 1) // 2 if self._alone else len(batch)
        self._suspects.extend(part for part in (batch[:middle], batch[middle:]) if part)


def _warn(sentence: str) -> None:
    warnings.warn(sentence, WorkerLostWarning, stacklevel=4)


class _Pickler(pickle.Pickler):
    """A pickler that replaces shared objects by their numbers."""

    def __init__(self, file: io.BytesIO, shared: Sequence[object]) -> None:
        super().__init__(file, 5)
        self._numbers = {id(one): number for number, one in enumerate(shared)}

    def persistent_id(self, obj: object) -> int | None:
        return self._numbers.get(id(obj))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[object]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: int) -> object:
        return self._shared[pid]


def _dumped(item: object, shared: Sequence[object]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, shared).dump(item)
    return zlib.compress(file.getbuffer(), 1)


def _loaded(data: bytes, shared: Sequence[object]) -> Any:
    return _Unpickler(io.BytesIO(zlib.decompress(data)), shared).load()


class _Packed:
    """Bytes that are compared by their digest, so that lookups are fast."""

    __slots__ = ("data", "digest")

    def __init__(self, data: bytes, digest: bytes) -> None:
        self.data, self.digest = data, digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Packed) and self.digest == other.digest


@lru_cache(maxsize=4)
def _unpacked(packed: _Packed) -> tuple[object, ...]:
    return pickle.loads(zlib.decompress(packed.data))  # type: ignore[no-any-return]


def _portable(error: Exception) -> Exception:
    """Return an exception that can be pickled: some exceptions of other libraries cannot."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  # pickling may raise anything
        return TacosError(f"{type(error).__name__}: {error}")
    return error


def _work_off(packed: bytes, digest: bytes, work: Callable[[Any], Any], tasks: bytes) -> bytes:
    """Run a batch of tasks on a worker; return the seconds that they took, and their results."""
    shared = _unpacked(_Packed(packed, digest))
    begin, results = time.perf_counter(), []
    for task in _loaded(tasks, shared):
        try:
            result = work(task)
        except Exception as error:  # noqa: BLE001  # it belongs to the task, not to the batch
            result = _portable(error)
        results.append(result)
    return _dumped((time.perf_counter() - begin, results), shared)
