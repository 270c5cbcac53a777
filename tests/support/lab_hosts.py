"""Hosts of a lab on which unmodified launchers start processes, as they would over ssh.

Every NPU of the lab is a host. The launcher's command runs on host npu0, and the script ``ssh`` in a shared directory
replaces ssh: it passes a command and its own output streams to the named host, and ends with the command's exit code.
It uses sockets in the file system, so that the network namespaces of the hosts do not matter.

    with Lab(topology) as lab, tempfile.TemporaryDirectory() as folder:
        run = launch(lab, folder, mpirun(folder) + ["--hostfile", "hosts", "hostname"])
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos.runtime.lab import Lab, LabRun

_START_S = 180.0
"""Seconds that a host may take to start."""


def launch(
    lab: Lab, folder: str, command: Sequence[str], *, time_limit: float, hosts: int | None = None
) -> LabRun:
    """Run a launcher's command on host npu0, which reaches all hosts through `ssh` in the directory."""
    script = Path(folder, "ssh")
    agent = shlex.join([sys.executable, __file__, "ssh", folder])
    script.write_text(f'#!/bin/sh\nexec {agent} "$@"\n')
    script.chmod(0o755)
    here = [sys.executable, __file__, "host", folder, str(hosts or lab.topology.npus), *command]
    environment = {"PMIX_MCA_ptl_base_if_include": "management"}
    return lab.run(here, environment=environment, output="returned", time_limit=time_limit)


def mpirun(folder: str) -> list[str]:
    """Open MPI's mpirun with the options of a lab: its agent, control over the bridge, and data over the links.

    Ranks yield the processor while they wait, because many of them share a few.
    """
    settings = {
        "btl": "tcp,self",
        "btl_tcp_if_include": "10.0.0.0/17",
        "pml": "ob1",
        "mpi_yield_when_idle": "1",
    }
    control = {"plm_ssh_agent": str(Path(folder, "ssh")), "prte_if_include": "management"}
    control |= {"plm_ssh_no_tree_spawn": "1"}
    words = [str(Path(sys.executable).with_name("mpirun")), "--allow-run-as-root"]
    for name, value in settings.items():
        words += ["--mca", name, value]
    for name, value in control.items():
        words += ["--prtemca", name, value]
    return words


def _connected(folder: str, host: str) -> socket.socket:
    deadline = time.monotonic() + _START_S
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(Path(folder, f"{host}.socket")))
        except OSError:
            line.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return line


def _ssh(folder: str, words: Sequence[str]) -> int:
    """Run a command on another host, with this process's output."""
    while words[0].startswith("-"):  # such as -x
        words = words[1:]
    with _connected(folder, words[0]) as line:
        text = json.dumps(" ".join(words[1:])).encode() + b"\n"
        socket.send_fds(line, [text], [1, 2])
        said = line.makefile().readline()
    return int(said or 255)


def _host(folder: str, hosts: int, command: Sequence[str]) -> int:
    name = socket.gethostname()
    for variable in [one for one in os.environ if one.startswith("TACOS_")]:
        del os.environ[variable]
    # Launchers keep files under their process numbers, which are the same in every lab.
    temporary = Path(folder, f"{name}.tmp")
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = str(temporary)
    if name != "npu0":
        _serve(folder, name)
        return 0
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for other in range(1, hosts):
            with _connected(folder, f"npu{other}") as line:
                socket.send_fds(line, [b"null\n"], [1, 2])


def _serve(folder: str, name: str) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(Path(folder, f"{name}.socket")))
        door.listen()
        while True:
            line, _ = door.accept()
            data, fds, _, _ = socket.recv_fds(line, 1 << 16, 2)
            while not data.endswith(b"\n"):
                data += line.recv(1 << 16)
            command = json.loads(data)
            if command is None:
                return
            threading.Thread(target=_started, args=(line, fds, command), daemon=True).start()


def _started(line: socket.socket, fds: Sequence[int], command: str) -> None:
    code = subprocess.run(command, shell=True, stdout=fds[0], stderr=fds[1], check=False).returncode
    for fd in fds:
        os.close(fd)
    with line, suppress(BrokenPipeError):  # the launcher may be gone
        line.sendall(f"{code}\n".encode())


if __name__ == "__main__":
    _what, _folder, *_words = sys.argv[1:]
    if _what == "ssh":
        sys.exit(_ssh(_folder, _words))
    sys.exit(_host(_folder, int(_words[0]), _words[1:]))
