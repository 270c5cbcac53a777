"""A worker's side of an optimizer service: push, pull and wait, with timestamps."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path  # noqa: TC003, as below
from typing import Any, Self
from urllib.parse import quote, urlsplit

import numpy as np

from tacos._core import HubClient
from tacos._support.variables import read
from tacos.errors import CommunicationError
from tacos.hub.job import Job  # noqa: TC001, the manual links it: the runtime has a Job too

__all__ = ["Control", "Worker", "connect"]

ADDRESS = "TACOS_HUB"
"""Environment variable with the address of the service."""
TOKEN = "TACOS_HUB_TOKEN"
"""Environment variable with the tenant's token."""
_PORT = 7800


class Control:
    """The control plane of a service: HTTP and JSON.

    Args:
        address: ``host:port``, ``http://host:port`` or ``https://host:port``. Default: ``TACOS_HUB``, or this machine.
        token: The tenant's token. Default: ``TACOS_HUB_TOKEN``.
        ca: File with the certificate to trust, for ``https``.
        timeout: Seconds to wait for an answer.

    >>> from tacos.hub import Server
    >>> with Server() as server:
    ...     Control(server.address).ask("GET", "/health")["status"]
    'ok'
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        ca: Path | None = None,
        timeout: float = 90.0,
    ) -> None:
        given = address or read(ADDRESS) or f"127.0.0.1:{_PORT}"
        parts = urlsplit(given if "//" in given else f"http://{given}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"address must be host:port or an http address; got {given!r}")
        self.host, self.port = parts.hostname, parts.port or _PORT
        self._secure, self._ca, self._timeout = parts.scheme == "https", ca, timeout
        self._token = token if token is not None else read(TOKEN) or None

    def ask(self, method: str, path: str, data: object = None) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            CommunicationError: The service cannot be reached, or refuses.
        """
        connection: http.client.HTTPConnection
        if self._secure:
            context = ssl.create_default_context(cafile=self._ca)
            connection = http.client.HTTPSConnection(
                self.host, self.port, timeout=self._timeout, context=context
            )
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=self._timeout)
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(
                method, path, json.dumps(data) if data is not None else None, headers
            )
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CommunicationError(
                f"the hub at {self.host}:{self.port} does not answer: {str(error) or type(error).__name__}; "
                "is `tacos hub` running there?"
            ) from None
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise CommunicationError(f"the hub refuses: {answer.get('error', response.reason)}")
        return answer


def connect(
    job: Job,
    address: str | None = None,
    *,
    rank: int | None = None,
    name: str | None = None,
    wire: str = "float32",
    share: bool | None = None,
    token: str | None = None,
    ca: Path | None = None,
) -> Worker:
    """Join a job as a worker; return when all workers that begin together have joined.

    The first worker opens the session; the others must describe the same job.

    Args:
        job: The job.
        address, token, ca: Where the service is, see :class:`Control`.
        rank: This worker's place in the order of summation. Default: the first that is free.
        name: Name of this worker in messages. Default: host name and process.
        wire: Format of gradients and weights on the wire: ``float32``, ``bfloat16`` or ``float16``.
        share: Move data through shared memory, if service and worker run on one machine. Default: if possible.

    Raises:
        CommunicationError: The service cannot be reached, or refuses.

    >>> from tacos.hub import Job, Server, optimizer
    >>> job = Job("example", {"w": 3}, "sgd", [optimizer("sgd", lr=0.5)])
    >>> with Server() as server, connect(job, server.address) as worker:
    ...     worker.put("w", np.zeros(3, np.float32))
    ...     weights = np.empty(3, np.float32)
    ...     worker.wait(worker.push_pull("w", np.ones(3, np.float32), weights))
    ...     weights
    array([-0.5, -0.5, -0.5], dtype=float32)
    """
    control = Control(address, token=token, ca=ca, timeout=job.timeout_s + 30.0)
    control.ask("POST", "/sessions", job.to_json())
    who = name or f"{socket.gethostname()}:{os.getpid()}"
    place = f"/sessions/{quote(job.name)}/workers"
    given = control.ask("POST", place, {"name": who, "rank": rank, "share": share is not False})
    path = f"{place}/{given['worker']}"
    memory = -1
    if given["memory"] is not None:
        with suppress(OSError):  # another user or container; sockets work too
            memory = os.open(given["memory"], os.O_RDWR | os.O_CLOEXEC)
        control.ask("POST", f"{path}/mapped")
    sockets: list[socket.socket] = []
    why = "the hub does not share memory with this worker" if share and memory < 0 else ""
    hosts = given["hosts"] if len(given["hosts"]) > 1 else [control.host]
    try:
        for core, port in enumerate(given["ports"] if not why else ()):
            to = hosts[core % len(hosts)], port
            sockets.append(socket.create_connection(to, timeout=job.timeout_s))
    except OSError as error:
        why = f"cannot connect to the cores of the hub: {error}"
    if why:
        for one in sockets:
            one.close()
        with suppress(CommunicationError):
            control.ask("DELETE", path)
        raise CommunicationError(why)
    client = HubClient(
        list(job.keys.values()), [one.detach() for one in sockets], given["job"],
        given["slot"], bytes.fromhex(given["key"]), wire, memory,
    )  # fmt: skip
    return Worker(job, control, client, path, given)


class Worker:
    """A worker of a job; made by :func:`connect`.

    Every request returns a timestamp at once. Its arrays must not change until :meth:`wait` has returned.

    Attributes:
        job: The job.
        rank: Place in the order of summation.
        step: The first step that this worker takes part in: 0, or the current step of a job that it joins or resumes.
        initialize: Whether this worker is the one that must :meth:`put` the first weights.
        shares: Whether data go through shared memory.
    """

    def __init__(
        self, job: Job, control: Control, client: HubClient, path: str, given: dict[str, Any]
    ) -> None:
        self.job, self.control = job, control
        self.rank: int = given["rank"]
        self.name: str = given["name"]
        self.step: int = given["step"]
        self.initialize: bool = given["initialize"]
        self.shares = client.shares
        self._client, self._path = client, path
        self._numbers = {key: number for number, key in enumerate(job.keys)}
        self._sizes = list(job.keys.values())
        self._steps = [self.step] * len(self._sizes)
        self._kept: dict[int, tuple[Any, ...]] = {}
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.leave()
        else:
            self.close()

    def _key(self, key: str) -> int:
        number = self._numbers.get(key)
        if number is None:
            raise ValueError(f"the job has no parameter {key!r}")
        return number

    def _checked(self, key: str, array: np.ndarray, what: str) -> int:
        number = self._key(key)
        if array.dtype != np.float32:
            raise TypeError(f"{what} of {key!r} must be an array of float32; got {array.dtype}")
        if array.size != self._sizes[number] or not array.flags.c_contiguous:
            raise ValueError(
                f"{what} of {key!r} must be contiguous with {self._sizes[number]} elements; got "
                f"{array.size}"
            )
        return number

    def push_at(self, number: int, source: int, target: int, lr: float) -> int:
        """Push from and pull into memory addresses; for callers that check what they pass."""
        with self._lock:
            step = self._steps[number]
            self._steps[number] += 1
        return self._client.push(number, source, target, step, lr)

    def _rate(self, number: int, lr: float | None) -> float:
        return float(self.job.groups[self.job.group_of[number]]["lr"] if lr is None else lr)

    def push(self, key: str, gradient: np.ndarray | None, *, lr: float | None = None) -> int:
        """Push a gradient, or None for no gradient; complete when the step of this parameter is.

        Args:
            lr: The learning rate of this step; by default that of the group.
        """
        number = self._key(key) if gradient is None else self._checked(key, gradient, "gradient")
        source = 0 if gradient is None else gradient.ctypes.data
        stamp = self.push_at(number, source, 0, self._rate(number, lr))
        self._kept[stamp] = (gradient,)
        return stamp

    def push_pull(
        self, key: str, gradient: np.ndarray | None, weights: np.ndarray, *, lr: float | None = None
    ) -> int:
        """Push a gradient and receive the new weights of the same step."""
        number = self._checked(key, weights, "weights")
        source = 0
        if gradient is not None:
            self._checked(key, gradient, "gradient")
            source = gradient.ctypes.data
        stamp = self.push_at(number, source, weights.ctypes.data, self._rate(number, lr))
        self._kept[stamp] = (gradient, weights)
        return stamp

    def pull(self, key: str, values: np.ndarray, *, state: int = 0) -> int:
        """Receive weights that include this worker's pushes, or an array of optimizer state (from 1)."""
        number = self._checked(key, values, "values")
        stamp = self._client.pull(number, values.ctypes.data, self._steps[number], state)
        self._kept[stamp] = (values,)
        return stamp

    def put(
        self, key: str, values: np.ndarray, *, state: int = 0, updates: int | None = None
    ) -> None:
        """Set weights or optimizer state between steps, and the number of updates."""
        number = self._checked(key, values, "values")
        count = -1.0 if updates is None else float(updates)
        self.wait(self._client.put(number, values.ctypes.data, count, state))

    def updates(self, key: str) -> int:
        """Return how often a parameter was updated, as of its first chunk."""
        values = np.empty(self._sizes[self._key(key)], np.float32)
        self.wait(self.pull(key, values))
        return self._client.updates

    def wait(self, *timestamps: int, timeout: float | None = None) -> None:
        """Wait until requests are complete.

        Raises:
            CommunicationError: A request failed; the message says why, and names workers that were lost.
            TimeoutError: The timeout has passed; by default, it is twice the job's timeout.
        """
        limit = 2 * self.job.timeout_s if timeout is None else timeout
        for stamp in timestamps:
            try:
                done = self._client.wait(stamp, limit)
            finally:
                self._kept.pop(stamp, None)
            if not done:
                raise TimeoutError(f"the hub has not answered within {limit:g} s")

    @property
    def traffic(self) -> tuple[int, int]:
        """Return the bytes sent and received over sockets so far, including frames but not shared memory."""
        return self._client.sent, self._client.received

    def meet(self, point: str) -> None:
        """Wait until all workers have reached the named point; each name can be used once."""
        self.control.ask("POST", f"{self._path}/meet", {"point": point})

    def leave(self) -> None:
        """Leave the job between steps; the other workers continue."""
        if self._closed:
            return
        with suppress(CommunicationError):
            self.control.ask("DELETE", self._path)
        self.close()

    def close(self) -> None:
        """Close the connections. Without :meth:`leave`, the service treats the worker as lost."""
        self._closed = True
        self._client.close()
        self._kept.clear()
