"""A real network on one machine, with the links and relative speeds of a topology.

:class:`Lab` builds a topology from Linux network namespaces, cables (veth pairs) between them and rate
limits, and runs a command once for each NPU, in its namespace. Data between the commands travel over
the topology's links, at the links' speeds, so an algorithm's time can be measured and not only
computed. It works as root, and for other users if the kernel allows them user namespaces.

Nothing outside the lab changes. All namespaces belong to one process; when that process or
the caller ends, even by a crash, the kernel removes everything.
"""

from __future__ import annotations

import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from tacos import formats, units
from tacos import topology as topologies
from tacos.errors import LabError
from tacos.runtime.lab.network import MTU, blueprint, limit
from tacos.topology.edits import chosen_links

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tacos._core import Topology
    from tacos.nodes import LinkChoice
    from tacos.units import Quantity

__all__ = ["Lab", "LabRun", "scaled", "unavailable"]

_KEEPER = Path(__file__).with_name("keeper.py")
_SUM_PER_CORE_BPS = 125_000_000
"""Largest total link bandwidth per core, in bytes per second (1 Gbit/s); above it, processors limit the speed."""
_LATENCY = "150us"
"""Latency of a message between two processes over a cable without a limit (measured)."""
_GRACE_S = 2.0
_START_S = 30.0
_FIRST_PORT = 29500
_PORTS = 1000
_SWITCH_PORT = 48864
_TIMED_OUT = 124  # as the command timeout has it


@dataclass(frozen=True)
class LabRun:
    """The result of a command."""

    code: int
    """0, or the exit code of the first rank that failed (128 + n if signal n killed it; 124 on timeout)."""
    why: str
    """A sentence if it failed, otherwise empty."""
    time_s: float
    """Seconds from the first start to the last end."""
    stdout: list[str]
    """Output of each rank, if it was to be returned."""
    stderr: list[str]


def unavailable() -> str:
    """Return what is missing for a lab on this machine, in one sentence; empty if nothing is.

    >>> unavailable() == "" or "lab" in unavailable()
    True
    """
    try:
        Lab(topologies.ring(2)).__enter__().close()
    except LabError as error:
        return str(error)
    return ""


def scaled(
    topology: Topology,
    *,
    fastest: Quantity | None = None,
    scale: float | None = None,
    delays: bool = True,
) -> Topology:
    """Return a topology slowed down to what one machine can carry, with all proportions preserved.

    Args:
        topology: The network to imitate.
        fastest: Bandwidth of its fastest link.
        scale: Factor for all bandwidths, instead of `fastest`. Default: at most 1, so that all links together carry
            1 Gbit/s per processor core.
        delays: Whether latencies can be enforced. They are stretched as bandwidths shrink, so that everything
            runs in slow motion; otherwise each is the latency of this machine, 150 us.

    >>> import tacos
    >>> slow = scaled(tacos.topology.ring(4, bandwidth="50GB/s", latency="500ns"), fastest="200Mbit/s")
    >>> int(slow.link_bandwidth_Bps[0]), int(slow.link_latency_ps[0])  # 25 MB/s, 1 ms
    (25000000, 1000000000)
    """
    if fastest is not None and scale is not None:
        raise ValueError("fastest and scale exclude each other; give one")
    if not topology.links:
        raise ValueError("the topology has no links, a lab network needs some")
    if fastest is not None:
        top = int(topology.link_bandwidth_Bps.max())
        scale = units.bandwidth_Bps(fastest, what="fastest") / top
    elif scale is None:
        carried = _SUM_PER_CORE_BPS * (os.cpu_count() or 1)
        scale = min(1.0, carried / float(topology.link_bandwidth_Bps.sum(dtype=float)))
    elif not 0 < scale < float("inf"):
        raise ValueError(f"scale is {scale!r}; it must be a positive factor")
    slow = topologies.scale(topology, bandwidth=scale, latency=1 / scale)
    return slow if delays else topologies.degrade(slow, *range(slow.links), latency=_LATENCY)


class Lab:
    """A network on this machine with the links, speeds and (if the kernel has netem) delays of a topology.

    Args:
        topology: The network to imitate, with its NPUs as ranks.
        fastest, scale: See :func:`scaled`.
        mtu: Largest packet of all cables, in bytes.
        loss: Probability that aggregating switches drop a packet, on arrival and on departure.

    If the switches of a topology reduce, as one star or as racks under a core, each of them runs ``tacos switch``, and the ranks
    get ``TACOS_SWITCH``.

    Attributes:
        topology: The network as it is enforced, available after entering the lab.
        delays: Whether latencies are enforced.

    Raises:
        LabError: The machine does not allow a lab; raised on entering, and the message names what is missing.

    >>> import tacos
    >>> with Lab(tacos.topology.ring(3), fastest="100Mbit/s") as lab:  # doctest: +SKIP
    ...     lab.run(["ping", "-c1", "npu2"]).code
    0
    """

    def __init__(
        self,
        topology: Topology,
        *,
        fastest: Quantity | None = None,
        scale: float | None = None,
        mtu: int = MTU,
        loss: float = 0.0,
    ) -> None:
        if not 0 <= loss < 1:
            raise ValueError(f"loss must be a probability below 1; got {loss:g}")
        if not 576 <= mtu <= 65_000:
            raise ValueError(f"mtu must be 576 to 65,000 bytes; got {mtu}")
        self.mtu, self._loss = mtu, loss
        self._speeds: dict[str, Any] = {"fastest": fastest, "scale": scale}
        self._given = topology
        scaled(topology, **self._speeds)  # report wrong arguments now
        self._runs = 0
        self._token = secrets.token_hex(16)
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if sys.platform != "linux":
            raise LabError(f"the lab needs the network namespaces of Linux, this is {sys.platform}")
        self._folder = Path(tempfile.mkdtemp(prefix="tacos-lab-"))
        self._control, theirs = socket.socketpair()
        self._unread = b""
        self._keeper = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(_KEEPER)),
                *(str(os.getpid()), str(self._folder), str(theirs.fileno())),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Ctrl-C reaches the caller only, which then closes the lab in order.
            start_new_session=True,
        )
        theirs.close()
        try:
            self.delays = bool(self._answer()["netem"])
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the lab: kill all its processes and remove all its devices before returning."""
        if self._keeper is None:
            return
        self._control.close()
        self._keeper.wait()
        self._keeper = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _build(self) -> None:
        self.topology = scaled(self._given, **self._speeds, delays=self.delays)
        self._network = blueprint(self.topology, delays=self.delays, mtu=self.mtu)
        self._topology_file = self._folder / "topology.json"
        formats.save(self.topology, self._topology_file)
        hosts = ["127.0.0.1 localhost"]
        for npu, address in enumerate(self._network.npu):
            bridge, name = self._network.management[npu], _hostname(npu)
            hosts += [f"{address} {name}", f"{bridge} {name}.management"]
            hosts += [f"::ffff:{bridge} {name}.management"]  # as sockets for both IPs see it
        hosts_file = self._folder / "hosts"
        hosts_file.write_text("\n".join(hosts) + "\n")
        self._tell(
            {
                "script": self._network.script,
                "namespaces": self._network.namespaces,
                "settings": self._network.settings,
                "hosts": str(hosts_file) if Path("/etc/hosts").exists() else "",
            }
        )
        self._answer()

    def describe(self) -> str:
        """Describe the lab in one line: its size, its speeds, and what is not enforced.

        >>> import tacos
        >>> with Lab(tacos.topology.ring(4)) as lab:  # doctest: +SKIP
        ...     lab.describe()
        'lab of 4 NPUs: 8 links of 250 Mbit/s, 1/1600 of the given speeds; ...'
        """
        slow, given = self.topology.link_bandwidth_Bps, self._given.link_bandwidth_Bps
        low, high = (float(limit(slow)) for limit in (np.min, np.max))
        speeds = _megabits(high) if low == high else f"{_megabits(low)} to {_megabits(high)}"
        factor = float(given.max()) / high
        pace = f", 1/{factor:.4g} of the given speeds" if factor > 1.0001 else ""
        latency = "" if self.delays else "; latency is not enforced, this kernel has no netem"
        return f"lab of {self.topology.npus} NPUs: {len(slow)} links of {speeds}{pace}{latency}"

    def change(self, link: LinkChoice, share: float, *, both: bool = False) -> None:
        """Slow a link down, disconnect its cable, or restore it, even while a command runs in another thread.

        Args:
            link: Its number, or a pair (src, dst) of nodes.
            share: Remaining share of its bandwidth; 0 disconnects the cable, in both directions.
            both: Whether to change the opposite link too.

        >>> import tacos
        >>> with Lab(tacos.topology.ring(4)) as lab:  # doctest: +SKIP
        ...     lab.change((0, 1), 0.1)
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share must be 0 to 1; got {share!r}")
        if self._keeper is None:
            raise LabError("the lab is not open: use it as 'with Lab(topology) as lab'")
        script: list[tuple[int, str, list[str]]] = []
        for number in chosen_links(self.topology, [link], both).nonzero()[0].tolist():
            node, device = self._network.devices[number]
            if share == 0:
                script.append((node + 1, "ip", [f"link set {device} down"]))
                continue
            rate = float(self.topology.link_bandwidth_Bps[number]) * share
            script.append((node + 1, "tc", [limit("change", device, rate, self.mtu)]))
            # A device that goes down loses its routes.
            routes = [
                line.replace("route add", "route replace", 1)
                for space, program, lines in self._network.script
                if (space, program) == (node + 1, "ip")
                for line in lines
                if line.startswith("route add") and f" dev {device} " in f"{line} "
            ]
            script.append((node + 1, "ip", [f"link set {device} up", *routes]))
        self._tell({"change": script})

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment variables of a rank: its number, and how to reach the other ranks.

        They are those of the package's own launcher and of torchrun, so that scripts for torchrun run unchanged.
        The rendezvous uses the bridge without limits, data use the topology's links.
        """
        port = _FIRST_PORT + 2 * (self._runs % _PORTS)
        rank_, size = str(rank), str(self.topology.npus)
        return {
            "TACOS_RANK": rank_,
            "TACOS_WORLD_SIZE": size,
            "TACOS_LOCAL_RANK": "0",
            "TACOS_RENDEZVOUS": f"{self._network.management[0]}:{port}",
            "TACOS_TOKEN": self._token,
            "TACOS_HOST": self._network.npu[rank],
            "TACOS_ADDRESSES": json.dumps(self._network.reach[rank]),
            "TACOS_TOPOLOGY": str(self._topology_file),
            "TACOS_PLACEMENT": json.dumps(list(range(self.topology.npus))),
            "RANK": rank_,
            "WORLD_SIZE": size,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": self._network.management[0],
            "MASTER_PORT": str(port + 1),
            **self._switch_variables(rank),
        }

    def _switch_variables(self, rank: int) -> dict[str, str]:
        if not self._network.aggregators:
            return {}
        place = f"{self._network.aggregator[rank]}:{_SWITCH_PORT},mtu={self.mtu}"
        return {"TACOS_SWITCH": place, "TACOS_SWITCH_TOKEN": self._token}

    def _start_switches(self, base: Mapping[str, str]) -> None:
        """Start a process in each aggregating switch; it ends with the ranks."""
        for node, members, parent in self._network.aggregators:
            command = [sys.executable, "-m", "tacos", "switch", "--host", "0.0.0.0", "--quiet"]
            command += ["--port", str(_SWITCH_PORT), "--loss", str(self._loss)]
            if parent:
                numbers = ",".join(map(str, members))
                command += ["--parent", f"{parent}:{_SWITCH_PORT}", "--members", numbers]
            request = {
                "spawn": node,
                "run": self._runs,
                "command": command,
                "environment": {**base, "TACOS_SWITCH_TOKEN": self._token},
                "folder": str(Path.cwd()),
                "hostname": f"switch{node}",
            }
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                self._tell(request, [nowhere, nowhere])
            finally:
                os.close(nowhere)

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        time_limit: float | None = None,
        output: Literal["prefixed", "first", "returned"] = "prefixed",
    ) -> LabRun:
        """Run a command once for each NPU and wait for all; if one fails, end the others.

        No process of the command is left afterwards. A lab can run any number of commands, one
        after the other.

        Args:
            command: Program and arguments; :meth:`environment` gives it its rank.
            environment: Variables in addition to those of this process.
            time_limit: Seconds after which all ranks are ended.
            output: ``"prefixed"``: every line after its rank; ``"first"``: the output of rank 0, and the errors of
                the others; ``"returned"``: not printed.

        Raises:
            LabError: The lab is closed or has been killed.
        """
        if self._keeper is None:
            raise LabError("the lab is not open: use it as 'with Lab(topology) as lab'")
        if not command:
            raise ValueError("command is empty; it must name a program")
        with _Outputs(self.topology.npus, output) as outputs:
            begin = time.perf_counter()
            base = {"OMP_NUM_THREADS": "1"} | dict(os.environ) | dict(environment or {})
            self._start_switches(base)
            for rank in range(self.topology.npus):
                request = {
                    "spawn": rank,
                    "run": self._runs,
                    "command": list(command),
                    "environment": base | self.environment(rank),
                    "folder": str(Path.cwd()),
                    "hostname": _hostname(rank),
                }
                self._tell(request, outputs.ends(rank))
            try:
                code, why = self._wait(outputs, time_limit)
            finally:
                self._runs += 1
            took = time.perf_counter() - begin
            outputs.drain()
        return LabRun(code, why, took, outputs.text(0), outputs.text(1))

    def _wait(self, outputs: _Outputs, time_limit: float | None) -> tuple[int, str]:
        """Wait for the ranks to end; return the exit code and the reason."""
        running = set(range(self.topology.npus))
        code, why = 0, ""
        begin = time.monotonic()
        deadline = begin + time_limit if time_limit is not None else float("inf")
        ending = False
        with selectors.DefaultSelector() as ready:
            ready.register(self._control, selectors.EVENT_READ)
            outputs.register(ready)
            try:
                while running:
                    left = deadline - time.monotonic()
                    if left <= 0 and not ending:
                        names = ", ".join(map(str, sorted(running)))
                        code, why = _TIMED_OUT, f"ranks {names} took more than {time_limit:g} s"
                    if left <= 0:
                        self._tell({"signal": signal.SIGTERM if not ending else signal.SIGKILL})
                        deadline, ending = time.monotonic() + _GRACE_S, True
                        continue
                    for key, _ in ready.select(min(left, 3600.0)):
                        if key.fileobj is not self._control:
                            outputs.read(key, ready)
                            continue
                        for message in self._exits():
                            running.discard(message["exit"])
                            if message["code"] != 0 and not code and not ending:
                                code, why = _verdict(message["exit"], message["code"])
                                deadline, ending = time.monotonic() + _GRACE_S, True
                                self._tell({"signal": signal.SIGTERM})
            except KeyboardInterrupt:
                self._interrupted(running)
                raise
            finally:
                with suppress(LabError):
                    # Processes that the ranks have left behind.
                    self._tell({"signal": signal.SIGKILL})
        return code, why

    def _interrupted(self, running: set[int]) -> None:
        """Pass Ctrl-C on and give the ranks a moment; a second Ctrl-C ends them."""
        self._tell({"signal": signal.SIGINT})
        deadline = time.monotonic() + _GRACE_S
        while running and (left := deadline - time.monotonic()) > 0:
            self._control.settimeout(left)
            try:
                for message in self._exits():
                    running.discard(message["exit"])
            except TimeoutError:
                break
        self._control.settimeout(None)

    def _tell(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            sent = socket.send_fds(self._control, [data], fds) if fds else 0
            self._control.sendall(data[sent:])
        except OSError:
            raise LabError("the lab has ended: its process was killed") from None

    def _messages(self) -> list[dict[str, Any]]:
        try:
            data = self._control.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            raise LabError("the lab has ended: its process was killed")
        *lines, self._unread = (self._unread + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if "error" in message:
                raise LabError(message["error"])
        return messages

    def _exits(self) -> list[dict[str, Any]]:
        """Return the ranks that have ended, ignoring those of an earlier run."""
        npus = (
            self.topology.npus
        )  # nodes after them are switches, whose end is not the end of the run
        return [m for m in self._messages() if m["run"] == self._runs and m["exit"] < npus]

    def _answer(self) -> dict[str, Any]:
        self._control.settimeout(_START_S)
        try:
            while not (messages := self._messages()):
                pass
        except TimeoutError:
            raise LabError(f"the lab was not ready after {_START_S:g} s") from None
        self._control.settimeout(None)
        return messages[0]


@dataclass
class _Stream:
    rank: int
    error: bool
    source: int  # the ends of a pipe
    sink: int
    kept: bytearray = field(default_factory=bytearray)  # all that came, or the beginning of a line


class _Outputs:
    """The pipes that the ranks write to, and the handling of their output."""

    def __init__(self, ranks: int, mode: str) -> None:
        if mode not in ("prefixed", "first", "returned"):
            raise ValueError(f"output is {mode!r}; it must be prefixed, first or returned")
        self.mode = mode
        self.streams = [_Stream(r, e, *os.pipe()) for r in range(ranks) for e in (False, True)]
        self.open = {stream.source for stream in self.streams}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            os.close(stream.source)
            if stream.sink >= 0:
                os.close(stream.sink)

    def ends(self, rank: int) -> list[int]:
        return [stream.sink for stream in self.streams if stream.rank == rank]

    def register(self, ready: selectors.BaseSelector) -> None:
        for stream in self.streams:
            os.close(stream.sink)
            stream.sink = -1
            ready.register(stream.source, selectors.EVENT_READ, stream)

    def read(self, key: selectors.SelectorKey, ready: selectors.BaseSelector) -> None:
        if not self._take(key.data):
            ready.unregister(key.fileobj)

    def drain(self) -> None:
        """Read what is left in the pipes; a process that outlives its rank may hold them open."""
        for stream in self.streams:
            os.set_blocking(stream.source, False)
            with suppress(BlockingIOError):
                while self._take(stream):
                    pass
            if stream.kept and self.mode != "returned":
                self._show(stream, bytes(stream.kept))

    def _take(self, stream: _Stream) -> bool:
        data = os.read(stream.source, 1 << 16)
        stream.kept += data
        if self.mode != "returned" and b"\n" in data:
            lines, _, rest = bytes(stream.kept).rpartition(b"\n")
            self._show(stream, lines)
            stream.kept = bytearray(rest)
        return bool(data)

    def _show(self, stream: _Stream, lines: bytes) -> None:
        plain = self.mode == "first" and stream.rank == 0
        if self.mode == "first" and not plain and not stream.error:
            return
        target = sys.stderr if stream.error else sys.stdout
        for line in lines.decode(errors="replace").split("\n"):
            target.write(line + "\n" if plain else f"[{stream.rank}] {line}\n")
        target.flush()

    def text(self, error: int) -> list[str]:
        if self.mode != "returned":
            return []
        return [s.kept.decode(errors="replace") for s in self.streams if s.error == bool(error)]


def _verdict(rank: int, code: int) -> tuple[int, str]:
    if code > 0:
        return code, f"rank {rank} ended with exit code {code}"
    return 128 - code, f"rank {rank} was killed by {signal.Signals(-code).name}"


def _hostname(npu: int) -> str:
    return f"npu{npu}"


def _megabits(bytes_per_second: float) -> str:
    return f"{bytes_per_second * 8 / 1e6:.4g} Mbit/s"
