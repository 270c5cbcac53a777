"""Single messages between the GPUs of a process group, which NCCL has to start in batches."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from torch import Tensor
    from torch.distributed import ProcessGroupNCCL
    from torch.futures import Future

__all__ = ["Message", "Messages"]

_SOON_S = 0.005
"""Seconds after which messages start even if no caller waits for them."""


class Messages:
    """Sends and receives between GPUs, which NCCL has to start together if they cross.

    ``batch_isend_irecv`` submits them one by one unless a group has torch's own class. So they are collected
    until the caller waits for one of them, makes another call, or a short time passes.

    Args:
        backend: NCCL, with a communicator that nothing else uses.
    """

    def __init__(self, backend: ProcessGroupNCCL) -> None:
        self.backend = backend
        self._pending: list[Message] = []
        self._lock = threading.RLock()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, sends: bool, tensors: Sequence[Tensor], peer: int, tag: int) -> Message:
        """Add a message; torch passes its tensor in a list."""
        message = Message(self, sends, list(tensors), peer, tag)
        with self._lock:
            self._pending.append(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True)
                self._thread.start()
        self._some.set()
        return message

    def start(self) -> None:
        """Start all added messages; the GPU waits for the work before each of them, the host does not."""
        with self._lock:
            batch, self._pending = self._pending, []
            if not batch:
                return
            device = batch[0].tensors[0].device
            try:
                work = self._launched(batch, device)
            except RuntimeError as error:
                for message in batch:
                    message.error = error
                return
            for message in batch:
                message.work = work

    def close(self) -> None:
        """Start the remaining messages; no more may be added."""
        self.start()
        self._closed = True
        self._some.set()

    def _launched(self, batch: list[Message], device: torch.device) -> dist.Work:
        stream = torch.cuda.Stream(device)
        for message in batch:
            stream.wait_event(message.ready)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            self.backend._start_coalescing()
            for message in batch:
                call = self.backend.send if message.sends else self.backend.recv
                call(message.tensors, message.peer, message.tag)
            work: dist.Work = self.backend._end_coalescing()
        return work

    def _serve(self) -> None:
        while self._some.wait() and not self._closed:
            self._some.clear()
            time.sleep(_SOON_S)
            self.start()


class Message(dist.Work):
    """One send or receive, started or not, and torch's handle for it."""

    def __init__(
        self, messages: Messages, sends: bool, tensors: list[Tensor], peer: int, tag: int
    ) -> None:
        super().__init__()
        self.sends, self.tensors, self.peer, self.tag = sends, tensors, peer, tag
        self.ready = torch.cuda.current_stream(tensors[0].device).record_event()
        self.work: dist.Work | None = None
        self.error: Exception | None = None
        self._messages = messages

    def _started(self) -> dist.Work:
        if self.work is None and self.error is None:
            self._messages.start()
        if self.error is not None:
            raise self.error
        assert self.work is not None
        return self.work

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the current stream wait for the message."""
        work = self._started()
        return bool(work.wait() if timeout is None else work.wait(timeout))

    def get_future(self) -> Future[Any]:
        """Return a future of the tensors."""
        return self._started().get_future()

    def result(self) -> list[Tensor]:
        """Return the tensors."""
        self.wait()
        return self.tensors

    def is_completed(self) -> bool:
        """Return whether it has succeeded or failed."""
        return self.error is not None or self._started().is_completed()

    def is_success(self) -> bool:
        """Return whether it has succeeded."""
        return self.error is None and self._started().is_success()

    def exception(self) -> Exception | None:
        """Return the error, or None."""
        return self.error
