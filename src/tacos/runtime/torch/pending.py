"""Pending collectives of a process group: when they run, and how callers wait for them."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from datetime import timedelta

    from torch import Tensor
    from torch.futures import Future

__all__ = ["Joined", "Task", "TaskThread", "profiled"]


def profiled(name: str, inputs: Sequence[Tensor]) -> AbstractContextManager[object] | None:
    """Begin a profiler record of a collective, with its name and the shapes of its inputs; None without a profiler.

    Any thread may end the record.
    """
    if not torch.autograd._profiler_enabled():
        return None
    seen: AbstractContextManager[object] = torch._C._profiler._RecordFunctionFast(
        f"tacos:{name}", list(inputs)
    )
    seen.__enter__()
    return seen


class Task(dist.Work):
    """One collective, and torch's handle for it.

    Args:
        run: Function that runs it.
        result: The tensors that it fills.
        profiled: Its profiler record, see :func:`profiled`, which ends with the collective.
    """

    def __init__(
        self,
        run: Callable[[], None],
        result: Sequence[Tensor],
        profiled: AbstractContextManager[object] | None = None,
    ) -> None:
        super().__init__()
        self._run: Callable[[], None] | None = run
        self._tensors = list(result)
        self._profiled = profiled
        self._error: Exception | None = None
        self._done = False
        self._lock = threading.Lock()
        self._running = threading.Lock()
        self._running.acquire()  # until it is done
        self._source: Future[Any] | None = None
        self._future: Future[Any] | None = None

    def carry_out(self) -> None:
        """Run the collective; errors are raised in the threads that wait for it."""
        try:
            if self._run is not None:
                with torch.no_grad():
                    self._run()
        except Exception as error:  # noqa: BLE001, wait() raises it
            self._error = error
        except BaseException:  # Ctrl-C, in a call that runs in the caller's thread
            self._error = RuntimeError("the collective was interrupted")
            raise
        finally:
            self._run = None  # releases the objects that it holds
            if self._profiled is not None:
                self._profiled.__exit__(None, None, None)
            with self._lock:
                self._done = True
                source = self._source
            self._running.release()
            if source is not None:
                source.set_result(None)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until it is done; raise its error, if any."""
        seconds = timeout.total_seconds() if timeout else 0.0
        if not self._running.acquire(timeout=seconds if seconds > 0 else -1):
            raise RuntimeError(f"the collective is not complete after {seconds} s")
        self._running.release()
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Future[Any]:
        """Return a future of the tensors, for DDP and callbacks."""
        with self._lock:
            if self._future is None:
                gpu = [one.device for one in self._tensors if one.is_cuda][:1]
                source = self._source = torch.futures.Future(devices=gpu)
                # Waiting C++ code sees a failure only if a callback raises it.
                self._future = source.then(self._outcome)
                late = self._done
            else:
                late = False
        if late:
            source.set_result(None)
        return self._future

    def _outcome(self, _source: Future[Any]) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors

    def result(self) -> list[Tensor]:
        """Return the tensors, once it is done."""
        self.wait()
        return self._tensors

    def is_completed(self) -> bool:
        """Return whether it has succeeded or failed."""
        return self._done

    def is_success(self) -> bool:
        """Return whether it has succeeded."""
        return self._done and self._error is None

    def exception(self) -> Exception | None:
        """Return the error, or None."""
        return self._error if self._done else None


class Joined(Task):
    """Several pieces of work as one, which is done when all of them are."""

    def __init__(self, parts: Sequence[dist.Work], result: Sequence[Tensor] = ()) -> None:
        super().__init__(lambda: None, result)
        self._parts = parts
        self.carry_out()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until all are done; raise the first error, if any."""
        for part in self._parts:
            part.wait() if timeout is None else part.wait(timeout)
        return True

    def get_future(self) -> Future[Any]:
        """Return a future of the tensors, which fails with the first part that fails."""
        parts = torch.futures.collect_all([part.get_future() for part in self._parts])

        def outcome(done: Future[Any]) -> list[Tensor]:
            for part in done.value():
                part.wait()
            return self._tensors

        return parts.then(outcome)

    def is_completed(self) -> bool:
        """Return whether all are done."""
        return all(part.is_completed() for part in self._parts)

    def is_success(self) -> bool:
        """Return whether all have succeeded."""
        return self.is_completed() and all(part.is_success() for part in self._parts)

    def exception(self) -> Exception | None:
        """Return the first error if all are done, or None."""
        if not self.is_completed():
            return None
        return next((e for part in self._parts if (e := part.exception()) is not None), None)


class TaskThread:
    """Runs tasks one after another, in the order of submission.

    It uses its own thread, so that collectives run while the program computes. If the caller waits for a task
    anyway and no other task is queued, the task runs in the caller's thread, which avoids waking a thread
    twice. A task that is submitted by a callback of a finished one, as by DDP's hooks, runs at once.

    Args:
        name: Name of the thread.
        at_end: Called once, when the thread is closed and no task is running.
    """

    def __init__(self, name: str, at_end: Callable[[], None]) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._at_end: Callable[[], None] | None = at_end
        self._turn = threading.Lock()
        self._owner = 0  # the thread whose turn it is
        self._waiting = 0  # tasks submitted to the thread that are not done
        self._state = threading.Lock()
        self._closed = ""
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, task: Task, *, now: bool = False) -> Task:
        """Submit a task; with `now`, run it in this thread if possible.

        Raises:
            RuntimeError: The thread was closed.
        """
        if self._owner == threading.get_ident():
            self._check_open()
            task.carry_out()
            return task
        if now and not self._waiting and self._turn.acquire(blocking=False):
            try:
                self._check_open()
                self._carry_out(task)
            finally:
                self._turn.release()
            return task
        with self._state:  # no task may follow the end
            self._check_open()
            self._waiting += 1
            self._tasks.put(task)
        return task

    def close(self, why: str, timeout: float | None = None) -> bool:
        """Accept no more tasks and end after those submitted; return whether the end was reached."""
        with self._state:
            if not self._closed:
                self._closed = why
                self._tasks.put(None)
        if threading.get_ident() not in (self._owner, self._thread.ident):
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(self._closed)

    def _carry_out(self, task: Task) -> None:
        self._owner = threading.get_ident()
        try:
            task.carry_out()
        finally:
            self._owner = 0

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            with self._turn:
                self._carry_out(task)
            with self._state:
                self._waiting -= 1
            del task  # it holds tensors
        with self._turn:  # after a call that runs in another thread
            at_end, self._at_end = self._at_end, None
            assert at_end is not None
            at_end()
