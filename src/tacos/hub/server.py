"""The optimizer service: sessions and their workers, checkpoints, and control over HTTP and JSON.

Gradients do not pass through this module. They go directly to the cores, over one port each. HTTP carries rare requests:
sessions, workers that join and leave, health, metrics and checkpoints.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import ssl
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import unquote

from tacos._core import SocketHub
from tacos.errors import CommunicationError, FormatError, TacosError
from tacos.hub import checkpoint
from tacos.hub.job import Job
from tacos.hub.tenants import Tenant, Tenants

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tacos._core import HubAdmission
    from tacos.hub.relay import Relay

__all__ = ["Server"]

_LARGEST_REQUEST = 16 << 20  # bytes of JSON
_SLOWEST_REQUEST_S = 30.0
_POLL_S = 0.05
_FINAL_CHECKPOINT_S = 5.0
_MOST_REQUESTS = 1024  # most waiting requests of all tenants


class _Refused(TacosError):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def _refuse(status: HTTPStatus, message: str) -> NoReturn:
    raise _Refused(status, message)


@dataclass
class _Member:
    name: str
    rank: int
    admission: HubAdmission
    memory: int = -1
    """Descriptor of memory that it shares with the service, until it has opened it."""

    def forget_memory(self) -> None:
        """Close the descriptor, since the worker has opened its memory or never will."""
        memory, self.memory = self.memory, -1
        if memory >= 0:
            os.close(memory)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "rank": self.rank, "worker": self.admission.serial,
            "first_step": self.admission.first_step,
        }  # fmt: skip


@dataclass
class Session:
    """A job in the service, with its workers."""

    job: Job
    tenant: Tenant
    number: int
    """The job's number in the core."""
    resumed_at: int
    """The step of the checkpoint that it continues; 0 if it is new."""
    initialized: bool = False
    started: bool = False
    workers: dict[int, _Member] = field(default_factory=dict)
    lost: list[dict[str, Any]] = field(default_factory=list)
    checkpoint_step: int | None = None
    meetings: dict[str, set[int]] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    ended: bool = False
    writing: threading.Lock = field(default_factory=threading.Lock)


class Server:
    """An optimizer service on this machine.

    Args:
        host: Address to listen on. Any but loopback needs tenants with tokens.
        port: Port of the control plane; the cores take the next ones. 0: any free ports.
        cores: Number of cores; by default those that this process may use.
        addresses: Addresses of several network cards. Cores take them in turn, so that chunks, which are
            balanced over cores, are balanced over cards too. Default: `host`.
        tenants: The tenants that may use the service, see :class:`tacos.hub.tenants.Tenants`.
        checkpoints: Directory for checkpoints; sessions that have one there continue it.
        every: Steps between checkpoints.
        tls: Files of a certificate and its key, for the control plane.
        pin: Bind each core's thread to a processor.
        relay: The exchange of sums with hubs of other racks, see :class:`tacos.hub.relay.Relay`.
        log: Called with one line for each event. Default: standard error.

    Raises:
        ValueError: The address is not loopback and there are no tenants.

    >>> with Server() as server:
    ...     server.address.startswith("http://127.0.0.1:")
    True
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        cores: int | None = None,
        addresses: Sequence[str] = (),
        tenants: Tenants | None = None,
        checkpoints: Path | None = None,
        every: int = 0,
        tls: tuple[Path, Path] | None = None,
        pin: bool = False,
        relay: Relay | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.tenants = tenants or Tenants([])
        for address in (host, *addresses):
            if not self.tenants and not _is_loopback(address):
                raise ValueError(
                    f"{address} can be reached by other machines; give tenants with tokens (--tenants)"
                )
        if checkpoints is not None and not checkpoints.is_dir():
            raise ValueError(f"there is no directory {checkpoints} for checkpoints")
        if every < 0:
            raise ValueError(f"--every must be at least 0; got {every}")
        if every and checkpoints is None:
            raise ValueError(f"--every {every} needs --checkpoints DIRECTORY")
        if cores is not None and cores < 1:
            raise ValueError(f"cores must be a positive number; got {cores}")
        self.cores = cores or len(os.sched_getaffinity(0))
        # Each core takes one of the next ports.
        if not 0 <= port < 2**16 - (self.cores if port else 0):
            raise ValueError(
                f"port must be 0 (any free ones) to {2**16 - 1 - self.cores}; got {port}"
            )
        self._hosts = list(addresses or [host])
        self._checkpoints, self._every = checkpoints, every
        self._log = log or (lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
        self._relay = relay
        self._lock = threading.Condition()
        self._sessions: dict[tuple[str, str], Session] = {}
        self._began = time.monotonic()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._waiting = 0
        context = _context(tls) if tls else None
        self._http = _Http((host, port), _handler(self), context)
        try:
            self._listening = self._listen(self._http.server_port if port else 0)
        except OSError as error:
            self._http.server_close()
            raise ValueError(f"cannot listen for {self.cores} cores: {error}") from None
        self.ports = [one.getsockname()[1] for one in self._listening]
        scheme = "https" if tls else "http"
        self.address = f"{scheme}://{host}:{self._http.server_port}"
        self._hub = SocketHub([one.detach() for one in self._listening], pin=pin)
        self._start(self._http.serve_forever, _POLL_S)
        self._start(self._watch)

    def _listen(self, port: int) -> list[socket.socket]:
        found: list[socket.socket] = []
        try:
            for core in range(self.cores):
                host = self._hosts[core % len(self._hosts)]
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                one = socket.create_server(
                    (host, port + 1 + core if port else 0), family=family, backlog=512
                )
                found.append(one)
        except OSError:
            for one in found:
                one.close()
            raise
        return found

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        self._threads.append(thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write last checkpoints, end all sessions and close all sockets."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        with self._lock:
            sessions = list(self._sessions.values())
            self._lock.notify_all()
        for session in sessions:
            if self._checkpoints is not None:
                with suppress(TacosError, ValueError, OSError):
                    self._write(session, None, _FINAL_CHECKPOINT_S)
            self._drop(session, "the hub was stopped")
        self._http.shutdown()
        self._http.server_close()
        self._hub.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(10.0)

    # --- background work

    def _watch(self) -> None:
        """Report workers that the cores have lost."""
        while not self._stopping.wait(_POLL_S):
            self.look()

    def look(self) -> None:
        """Record workers that were lost."""
        for number, _, serial, why in self._hub.take_losses():
            with self._lock:
                session = next((s for s in self._sessions.values() if s.number == number), None)
                worker = session.workers.pop(serial, None) if session else None
                if session is None or worker is None:
                    continue
                worker.forget_memory()
                session.lost.append({"name": worker.name, "rank": worker.rank, "why": why})
                self._lock.notify_all()
            outcome = "goes on without it" if session.job.elastic else "fails"
            self._log(
                f"session {session.job.name}: worker '{worker.name}' (rank {worker.rank}) is lost: "
                f"{why}; the session {outcome}"
            )

    def _checkpoint_often(self, session: Session) -> None:
        """Write a checkpoint whenever a multiple of `every` steps is complete."""
        due = (session.resumed_at // self._every + 1) * self._every
        while not self._stopping.is_set() and not session.ended:
            try:
                if self._write(session, due, 0.5):
                    due += self._every
                elif (step := self._hub.next_step(session.number)) > due:
                    due = (step // self._every + 1) * self._every
            except (TacosError, ValueError, OSError) as error:
                if not session.ended:
                    self._log(f"session {session.job.name}: no checkpoint: {error}")
                return

    def _path(self, tenant: Tenant, name: str) -> Path:
        assert self._checkpoints is not None
        return self._checkpoints / f"{tenant.name}.{name}.hub"

    def _write(self, session: Session, version: int | None, patience_s: float) -> bool:
        snapshot = self._hub.snapshot(session.number, version, patience_s)
        if snapshot is None:
            return False
        with session.writing:  # an older checkpoint that took longer must not replace a newer one
            if session.checkpoint_step is None or session.checkpoint_step <= snapshot.version:
                path = self._path(session.tenant, session.job.name)
                checkpoint.save(path, session.job, snapshot)
                session.checkpoint_step = snapshot.version
        return True

    def _exchange(self, session: Session) -> None:
        assert self._relay is not None
        try:
            self._relay.run(self._hub, session.number, lambda: session.ended)
        except (CommunicationError, TimeoutError, ValueError) as error:
            if not session.ended:
                self._log(f"session {session.job.name}: {error}")
                self._drop(session, f"the exchange with other hubs failed: {error}")

    def _drop(self, session: Session, why: str) -> None:
        with self._lock:
            if session.ended:
                return
            session.ended = True
            for worker in session.workers.values():
                worker.forget_memory()
            self._sessions.pop((session.tenant.name, session.job.name), None)
            self._lock.notify_all()
        self._hub.drop(session.number, why)

    # --- requests over HTTP

    def health(self) -> dict[str, Any]:
        """Return the status of the service, its cores, uptime and number of sessions."""
        return {
            "status": "ok", "cores": self.cores, "uptime_s": time.monotonic() - self._began,
            "sessions": len(self._sessions),
        }  # fmt: skip

    def metrics(self, tenant: Tenant) -> dict[str, Any]:
        """Return counters of the whole service, and the tenant's sessions."""
        return {
            **self._hub.counters(),
            "sessions": {name: self.state(tenant, name) for name in self.names(tenant)},
        }

    def names(self, tenant: Tenant) -> list[str]:
        """Return the tenant's sessions."""
        with self._lock:
            return sorted(name for owner, name in self._sessions if owner == tenant.name)

    def _session(self, tenant: Tenant, name: str) -> Session:
        session = self._sessions.get((tenant.name, name))
        if session is None:
            _refuse(HTTPStatus.NOT_FOUND, f"there is no session {name!r}")
        return session

    def state(self, tenant: Tenant, name: str) -> dict[str, Any]:
        """Return the state of a session."""
        with self._lock:
            session = self._session(tenant, name)
            workers = [worker.to_json() for worker in session.workers.values()]
        return {
            "name": name, "step": self._hub.next_step(session.number),
            "started": session.started, "workers": workers, "lost": list(session.lost),
            "failure": self._hub.failure(session.number), "mode": session.job.mode,
            "resumed_at": session.resumed_at, "checkpoint_step": session.checkpoint_step,
            "memory_bytes": session.job.memory_bytes, "optimizer": session.job.optimizer,
        }  # fmt: skip

    def create(self, tenant: Tenant, data: object) -> dict[str, Any]:
        """Open a session, or find the one that another worker of the job has opened."""
        job = Job.from_json(data)
        place = tenant.name, job.name
        with self._lock:
            found = self._sessions.get(place)
            gone = found is not None and not found.workers and found.started
            failed = found is not None and self._hub.failure(found.number)
        if found is not None and (failed or (gone and found.job != job)):
            self._drop(found, failed or "another job takes its place")
        with self._lock:
            found = self._sessions.get(place)
            if found is None:
                found = self._open(tenant, job)
            elif found.job != job:
                _refuse(
                    HTTPStatus.CONFLICT,
                    f"session {job.name!r} exists with other parameters or settings; use another name",
                )
        return {"session": job.name, "step": found.resumed_at}

    def _open(self, tenant: Tenant, job: Job) -> Session:
        used = sum(
            s.job.memory_bytes for s in self._sessions.values() if s.tenant.name == tenant.name
        )
        if tenant.memory_bytes and used + job.memory_bytes > tenant.memory_bytes:
            _refuse(
                HTTPStatus.INSUFFICIENT_STORAGE,
                f"session {job.name!r} needs {job.memory_bytes:,} bytes; {tenant.name} has "
                f"{max(0, tenant.memory_bytes - used):,} of its {tenant.memory_bytes:,} left",
            )
        if self._relay is not None and self._sessions:
            _refuse(HTTPStatus.CONFLICT, "a hub that exchanges with others serves one session")
        resumed = None
        if self._checkpoints is not None and self._path(tenant, job.name).exists():
            before, resumed = checkpoint.load(self._path(tenant, job.name))
            if (before.keys, before.optimizer) != (job.keys, job.optimizer):
                _refuse(
                    HTTPStatus.CONFLICT,
                    f"the checkpoint of session {job.name!r} has other parameters or another "
                    "optimizer; remove it or use another name",
                )
        number = self._hub.create(
            name=job.name, tenant=self.tenants.number(tenant), optimizer=job.optimizer, mode=job.mode,
            deterministic=job.deterministic, average=job.average, elastic=job.elastic,
            relay=self._relay is not None, staleness=job.staleness, timeout_s=job.timeout_s,
            rate_Bps=tenant.rate_Bps / self.cores, groups=job.rates(),
            sizes=list(job.keys.values()), groups_of=list(job.group_of), resumed=resumed,
        )  # fmt: skip
        session = Session(job, tenant, number, resumed.version if resumed else 0)
        session.initialized = resumed is not None
        self._sessions[tenant.name, job.name] = session
        if self._every:
            self._start(self._checkpoint_often, session)
        if self._relay is not None:
            self._start(self._exchange, session)
        step = f" at step {resumed.version}" if resumed else ""
        self._log(f"session {job.name}: {'resumed' if resumed else 'opened'}{step}")
        return session

    def join(self, tenant: Tenant, name: str, data: object, local: bool) -> dict[str, Any]:
        """Admit a worker; return once all workers that begin together have joined."""
        if not isinstance(data, dict):
            _refuse(HTTPStatus.BAD_REQUEST, "a worker must be a JSON object")
        rank, worker_name = data.get("rank"), data.get("name")
        if rank is not None and (not isinstance(rank, int) or rank < 0):
            _refuse(HTTPStatus.BAD_REQUEST, f"rank must be a number from 0; got {rank!r}")
        with self._lock:
            session = self._session(tenant, name)
            if not session.workers:  # all have left, so the next workers begin together again
                session.started = False
            ranks = {worker.rank for worker in session.workers.values()}
            if rank is None:
                rank = next(i for i in range(len(ranks) + 1) if i not in ranks)
            if rank in ranks:
                _refuse(HTTPStatus.CONFLICT, f"session {name!r} has a worker with rank {rank}")
            worker_name = str(worker_name or f"worker{rank}")[:128]
            share = local and data.get("share") is True
            admission = self._hub.join(session.number, worker_name, rank, share)
            worker = _Member(worker_name, rank, admission, admission.memory)
            session.workers[admission.serial] = worker
            if len(session.workers) >= session.job.workers:
                session.started = True
            first = not session.initialized
            session.initialized = True
            self._lock.notify_all()
        memory = None
        if admission.memory >= 0:
            memory = f"/proc/{os.getpid()}/fd/{admission.memory}"
        if not self._wait(lambda: session.started or session.ended, session.job.timeout_s):
            missing = session.job.workers - len(session.workers)
            self._leave(session, worker)
            if first:
                session.initialized = False
            _refuse(
                HTTPStatus.REQUEST_TIMEOUT,
                f"session {name!r} waits for {session.job.workers} workers; {missing} of them did not "
                f"come within {session.job.timeout_s:g} s",
            )
        return {
            "job": session.number, "slot": admission.slot, "worker": admission.serial,
            "key": admission.key.hex(), "step": admission.first_step, "rank": rank,
            "ports": self.ports, "hosts": self._hosts, "initialize": first, "memory": memory,
            "name": worker_name,
        }  # fmt: skip

    def _wait(self, condition: Callable[[], bool], patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        with self._lock:
            self._waiting += 1
            try:
                if self._waiting > _MOST_REQUESTS:
                    _refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests wait; try again")
                while not condition():
                    left = deadline - time.monotonic()
                    if left <= 0 or self._stopping.is_set():
                        return False
                    self._lock.wait(min(left, 1.0))
            finally:
                self._waiting -= 1
        return True

    def _worker(self, tenant: Tenant, name: str, serial: str) -> tuple[Session, _Member]:
        session = self._session(tenant, name)
        worker = session.workers.get(int(serial) if serial.isdecimal() else -1)
        if worker is None:
            _refuse(HTTPStatus.NOT_FOUND, f"session {name!r} has no worker {serial!r}")
        return session, worker

    def _leave(self, session: Session, worker: _Member) -> None:
        with self._lock:
            session.workers.pop(worker.admission.serial, None)
            self._lock.notify_all()
            worker.forget_memory()
        self._hub.leave(session.number, worker.admission.slot, worker.admission.serial)

    def leave(self, tenant: Tenant, name: str, serial: str) -> dict[str, Any]:
        """Remove a worker between steps."""
        with self._lock:
            session, worker = self._worker(tenant, name, serial)
        self._leave(session, worker)
        return {"left": worker.name}

    def meet(self, tenant: Tenant, name: str, serial: str, data: object) -> dict[str, Any]:
        """Wait until all workers of a session have reached the named point."""
        point = str(data.get("point", "")) if isinstance(data, dict) else ""
        with self._lock:
            session, worker = self._worker(tenant, name, serial)
            session.meetings.setdefault(point, set()).add(worker.admission.serial)
            self._lock.notify_all()

        def all_there() -> bool:
            there = session.meetings.get(point, set())
            return session.ended or there >= session.workers.keys()

        if not self._wait(all_there, session.job.timeout_s):
            _refuse(HTTPStatus.REQUEST_TIMEOUT, f"not all workers of {name!r} came to {point!r}")
        return {"met": point}

    def save(self, tenant: Tenant, name: str) -> dict[str, Any]:
        """Write a checkpoint of the next step that is complete."""
        if self._checkpoints is None:
            _refuse(HTTPStatus.CONFLICT, "the hub has no directory for checkpoints (--checkpoints)")
        with self._lock:
            session = self._session(tenant, name)
        if not self._write(session, None, session.job.timeout_s):
            _refuse(HTTPStatus.REQUEST_TIMEOUT, "no step was completed in time for a checkpoint")
        return {"step": session.checkpoint_step, "file": str(self._path(tenant, name))}

    def end(self, tenant: Tenant, name: str) -> dict[str, Any]:
        """End a session; its checkpoint stays."""
        with self._lock:
            session = self._session(tenant, name)
        self._drop(session, "the session was ended")
        return {"ended": name}

    def answer(
        self, method: str, path: str, tenant: Tenant, data: object, local: bool
    ) -> dict[str, Any]:
        """Carry out a request."""
        match method, [unquote(part) for part in path.strip("/").split("/")]:
            case "GET", ["metrics"]:
                return self.metrics(tenant)
            case "GET", ["sessions"]:
                return {"sessions": self.names(tenant)}
            case "POST", ["sessions"]:
                return self.create(tenant, data)
            case "GET", ["sessions", name]:
                return self.state(tenant, name)
            case "DELETE", ["sessions", name]:
                return self.end(tenant, name)
            case "POST", ["sessions", name, "workers"]:
                return self.join(tenant, name, data, local)
            case "DELETE", ["sessions", name, "workers", worker]:
                return self.leave(tenant, name, worker)
            case "POST", ["sessions", name, "workers", worker, "meet"]:
                return self.meet(tenant, name, worker, data)
            case "POST", ["sessions", name, "workers", worker, "mapped"]:
                with self._lock:
                    self._worker(tenant, name, worker)[1].forget_memory()
                return {}
            case "POST", ["sessions", name, "checkpoint"]:
                return self.save(tenant, name)
            case _:
                _refuse(HTTPStatus.NOT_FOUND, f"there is no {method} {path}")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _context(tls: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(*tls)
    except (OSError, ssl.SSLError) as error:
        raise FormatError(f"{tls[0]}, {tls[1]}: not a certificate and its key: {error}") from None
    return context


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        context: ssl.SSLContext | None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            super().__init__(address, handler)
        except OSError as error:
            raise ValueError(
                f"cannot listen on {address[0]}:{address[1]}: {error.strerror}"
            ) from None
        self._context = context

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake in the request's thread, so that a silent client does not block others."""
        request.settimeout(_SLOWEST_REQUEST_S)
        if self._context is None:
            super().finish_request(request, client_address)
            return
        with self._context.wrap_socket(request, server_side=True) as secure:
            super().finish_request(secure, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect in the middle of a request."""


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "tacos-hub"
        sys_version = ""

        def _reply(self, status: HTTPStatus, content: Any) -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _handle(self) -> None:
            try:
                content = self._content()
                self._reply(HTTPStatus.OK, content)
            except _Refused as error:
                self.close_connection = True
                self._reply(error.status, {"error": str(error)})
            except FormatError as error:
                self._reply(HTTPStatus.CONFLICT, {"error": str(error)})
            except ValueError as error:
                self._reply(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            except (OSError, TacosError, MemoryError) as error:
                if isinstance(error, TimeoutError | ConnectionError):
                    raise
                self._reply(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error) or "no memory"})

        def _content(self) -> Any:
            if self.command == "GET" and self.path == "/health":
                return server.health()
            kind, _, token = self.headers.get("Authorization", "").partition(" ")
            tenant = server.tenants.named(token.strip() if kind == "Bearer" else None)
            if tenant is None:
                _refuse(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
            length = self.headers.get("Content-Length", "0")
            if not length.isdecimal() or int(length) > _LARGEST_REQUEST:
                _refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too large")
            text = self.rfile.read(int(length))
            try:
                data = json.loads(text) if text else None
            except (ValueError, RecursionError):
                _refuse(HTTPStatus.BAD_REQUEST, "the request is not JSON")
            # Shared memory needs the same machine, and the user that runs the hub.
            local = self.client_address[0] == self.connection.getsockname()[0]
            return server.answer(self.command, self.path, tenant, data, local)

        do_GET = do_POST = do_DELETE = _handle

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing; events of workers are logged elsewhere."""

    return Handler
