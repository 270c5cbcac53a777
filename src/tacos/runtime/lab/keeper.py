"""The process that owns a lab's namespaces; they disappear when it ends.

This script imports only the standard library, because only a process with one thread can enter a user
namespace, and NumPy starts several threads. It becomes two processes. The *watcher* leaves
the machine's namespaces and forks the *keeper*, which is process 1 of a process namespace. When
the caller, the watcher or the keeper ends, the kernel kills every process of the lab. With
the last process, the network namespaces, their devices and mounts disappear, so there is nothing to clean up.

The caller communicates with the keeper over a socket, with one JSON object per line:

    {"script": [[namespace, program, lines], …], "namespaces", "settings", "hosts"}  →  {"done": true}
    {"spawn": rank, "run", "command", "environment", "folder", "hostname"} and two descriptors for its
    output  →  {"exit": rank, "run", "code"} at its end
    {"signal": number}, for every process of the lab
    {"change": [[namespace, program, lines], …]}, which gets no answer

The keeper first sends ``{"ready": true, "netem": …}``, and ``{"error": sentence}`` if it cannot continue.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_NEW_MOUNTS, _NEW_HOSTNAME, _NEW_USER = 0x00020000, 0x04000000, 0x10000000
_NEW_PROCESSES, _NEW_NETWORK = 0x20000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_DIE_WITH_PARENT = 1

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The machine does not allow a lab; the message is for the user."""


def _call(name: str, *arguments: int | bytes | None) -> None:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if getattr(_libc, name)(*words) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _limit(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


def leave_the_machine() -> None:
    """Enter new namespaces: directly if permitted, otherwise as root of a user namespace."""
    spaces = _NEW_MOUNTS | _NEW_HOSTNAME | _NEW_PROCESSES | _NEW_NETWORK
    try:
        _call("unshare", spaces)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise Refused(f"the lab needs namespaces of Linux: {error.strerror}") from None
        user, group = os.geteuid(), os.getegid()
        try:
            _call("unshare", spaces | _NEW_USER)
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"0 {user} 1")
            Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        except OSError as inner:
            raise Refused(_why_refused(inner)) from None
    try:
        _call("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    except OSError as error:
        raise Refused(_why_refused(error)) from None


def _why_refused(error: OSError) -> str:
    hints = {
        "user/max_user_namespaces": "0",
        "kernel/unprivileged_userns_clone": "0",
        "kernel/apparmor_restrict_unprivileged_userns": "1",
    }
    causes = [
        f"{name.replace('/', '.')} is {bad}" for name, bad in hints.items() if _limit(name) == bad
    ]
    cause = " and ".join(causes) or error.strerror
    return f"the lab needs root with CAP_SYS_ADMIN, or user namespaces, which are refused: {cause}"


def watch(caller: int, folder: str, control: socket.socket) -> int:
    """Fork the keeper, wait until it ends or the caller dies, then make sure that all processes are gone."""
    leave_the_machine()
    caller_fd = os.pidfd_open(caller)
    if os.getppid() != caller:
        return 1
    child = os.fork()
    if child == 0:
        os.close(caller_fd)
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        try:
            Keeper(control).serve()
        except (Refused, OSError) as error:
            _give_up(control, error)
        os._exit(0)
    control.close()
    child_fd = os.pidfd_open(child)
    select.select([caller_fd, child_fd], [], [])
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)  # returns when every process of the lab is gone
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _tell(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def _give_up(control: socket.socket, error: Exception) -> None:
    with suppress(OSError):  # the caller may be gone
        _tell(control, {"error": str(error)})


class Keeper:
    """Process 1 of the lab."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.ranks: dict[int, dict[str, int]] = {}  # what to report when a process ends
        self.spaces: list[int] = [os.open("/proc/self/ns/net", os.O_RDONLY)]
        # Some containers forbid it; then the old /proc is used, with other process numbers.
        with suppress(OSError):
            _call("mount", b"proc", b"/proc", b"proc", 0, None)
        # Processes find themselves through /proc/self, others find them through their number.
        self.fds = f"/proc/{Path('/proc/self').readlink()}/fd"

    def serve(self) -> None:
        """Serve the caller's requests until it closes the socket."""
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        _tell(self.control, {"ready": True, "netem": self._has_netem()})
        text, passed = b"", list[int]()
        while True:
            ready, _, _ = select.select([self.control.fileno(), wake], [], [])
            if wake in ready:
                os.read(wake, 4096)
                self._reap()
            if self.control.fileno() in ready:
                data, fds, _, _ = socket.recv_fds(self.control, 1 << 16, 16)
                if not data:
                    return
                for fd in fds:
                    os.set_inheritable(fd, False)
                passed += fds
                *lines, text = (text + data).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line), passed)

    def _obey(self, request: dict[str, Any], passed: list[int]) -> None:
        if "script" in request:
            for _ in range(request["namespaces"]):
                self._new_namespace(request["settings"])
            for space, program, lines in request["script"]:
                self._run_script(space, program, lines)
            if request["hosts"]:
                _call("mount", request["hosts"].encode(), b"/etc/hosts", None, _BIND, None)
            _tell(self.control, {"done": True})
        elif "change" in request:
            for space, program, lines in request["change"]:
                self._run_script(space, program, lines)
        elif "spawn" in request:
            self._spawn(request, passed)
        elif self.ranks or request["signal"] == signal.SIGKILL:
            with suppress(ProcessLookupError):
                os.kill(-1, request["signal"])  # all but process 1, which is this one
            if request["signal"] == signal.SIGKILL:
                self._reap(0)  # the next run finds none of them

    def _enter(self, space: int) -> None:
        _call("setns", self.spaces[space], _NEW_NETWORK)

    def _new_namespace(self, settings: dict[str, str]) -> None:
        _call("unshare", _NEW_NETWORK)
        self.spaces.append(os.open("/proc/self/ns/net", os.O_RDONLY))
        for name, value in settings.items():
            with suppress(FileNotFoundError):  # a kernel without IPv6, or an older one
                Path("/proc/sys/net", name).write_text(value)
        self._enter(0)

    def _run_script(self, space: int, program: str, lines: list[str]) -> None:
        paths = [f"{self.fds}/{fd}" for fd in self.spaces]
        text = "\n".join(line.format(ns=paths) for line in lines)
        # The PATH of many users lacks the directories of administration tools.
        found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if found is None:
            raise Refused(f"there is no command {program}: install iproute2")
        self._enter(space)
        done = subprocess.run(
            [found, "-batch", "-"], input=text, text=True, capture_output=True, check=False
        )
        self._enter(0)
        if done.returncode != 0:
            where = done.stderr.rpartition("Command failed -:")[2].strip()
            line = lines[int(where) - 1] if where.isdecimal() else ""
            what = done.stderr.strip().partition("\n")[0]
            raise Refused(f"the kernel refuses '{program} {line}': {what}")

    def _has_netem(self) -> bool:
        """Return whether the kernel can delay packets; also tests whether it can create devices."""
        self._run_script(0, "ip", ["link set lo up", "link add name try0 type veth peer name try1"])
        self._run_script(0, "tc", ["qdisc add dev try0 root tbf rate 1mbit burst 16kb limit 1mb"])
        try:
            self._run_script(0, "tc", ["qdisc add dev try1 root netem delay 1ms"])
            found = True
        except Refused:
            found = False
        self._run_script(0, "ip", ["link del try0"])
        return found

    def _spawn(self, request: dict[str, Any], passed: list[int]) -> None:
        rank, outputs = request["spawn"], [passed.pop(0), passed.pop(0)]
        said = {"exit": rank, "run": request["run"]}
        self._enter(rank + 1)
        try:
            _call("unshare", _NEW_HOSTNAME)  # the child's, since the next one gets another
            socket.sethostname(request["hostname"])
            os.chdir(request["folder"])
            pid = os.posix_spawnp(
                request["command"][0],
                request["command"],
                request["environment"],
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, outputs[0], 1),
                    (os.POSIX_SPAWN_DUP2, outputs[1], 2),
                ],
                setsid=True,
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
            )
            self.ranks[pid] = said
        except OSError as error:
            message = f"{request['command'][0]}: {error.strerror}\n"
            os.write(outputs[1], message.encode())
            missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            _tell(self.control, said | {"code": 127 if missing else 126})
        finally:
            self._enter(0)
            for fd in outputs:
                os.close(fd)

    def _reap(self, options: int = os.WNOHANG) -> None:
        """Reap ended processes, including orphans, which process 1 inherits."""
        while True:
            try:
                pid, status = os.waitpid(-1, options)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.ranks:
                code = os.waitstatus_to_exitcode(status)
                _tell(self.control, self.ranks.pop(pid) | {"code": code})


if __name__ == "__main__":
    _caller, _folder, _fd = sys.argv[1:]
    _control = socket.socket(fileno=int(_fd))
    _control.set_inheritable(False)
    try:
        sys.exit(watch(int(_caller), _folder, _control))
    except (Refused, OSError) as _error:
        _give_up(_control, _error)
        shutil.rmtree(_folder, ignore_errors=True)
