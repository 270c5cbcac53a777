"""The kernel's part of a switch: compiles ``switch.bpf.c``, loads it through bpf(2), and attaches it to an interface.

A program at the interface (XDP) adds contributions, and another one behind it (tc) sends each sum to all workers. Both are
detached when the process ends, even if it crashes.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import shutil
import socket
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tacos.errors import TacosError

__all__ = ["XdpProgram", "address_of", "compiled", "unavailable"]

SOURCE = Path(__file__).with_name("switch.bpf.c")
MOST_ELEMENTS = 360
"""Most integers per packet that the kernel program handles; larger packets are added in user space."""
KERNEL = (6, 6)
"""The first Linux version that can attach the program that sends sums to all workers."""
_SYSCALL = {"x86_64": 321, "aarch64": 280}
_MAP_CREATE, _MAP_UPDATE, _PROG_LOAD, _BTF_LOAD, _LINK_CREATE = 0, 2, 5, 18, 28
_TYPES = {"xdp": 6, "tc": 3}
_XDP, _TCX_INGRESS = 37, 46
_GENERIC, _NATIVE = 2, 4
_LOG_BYTES = 1 << 20
_INSTEAD = "or start the switch without XDP"


class Maps(NamedTuple):
    """Descriptors of the tables that user space shares with the kernel's programs."""

    jobs: int
    slots: int
    counters: int
    tallies: int


def unavailable() -> str:
    """Return why the kernel programs cannot run here, in one sentence, or an empty string."""
    if platform.machine() not in _SYSCALL or platform.system() != "Linux":
        return "XDP programs run on Linux, on x86-64 and 64-bit ARM"
    if shutil.which("clang") is None:
        return f"clang, which compiles the XDP program, is not installed; install it, {_INSTEAD}"
    if os.geteuid() != 0:
        return f"an XDP program needs root; start the switch as root, {_INSTEAD}"
    try:
        os.close(_bpf(_MAP_CREATE, struct.pack("<IIII28x48x", 2, 4, 8, 1)))
    except OSError as error:
        return (
            f"this kernel does not let bpf programs in ({error.strerror}); use another, {_INSTEAD}"
        )
    return ""


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface.

    Raises:
        ValueError: There is no such interface, or it has no address.

    >>> address_of("lo")
    '127.0.0.1'
    """
    if interface not in {name for _, name in socket.if_nameindex()}:
        known = ", ".join(name for _, name in socket.if_nameindex())
        raise ValueError(f"there is no interface {interface!r}; this machine has {known}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        try:
            found = fcntl.ioctl(asker, 0x8915, struct.pack("16s24x", interface.encode()))
        except OSError:
            raise ValueError(
                f"interface {interface} has no IPv4 address; give it one, as workers need it"
            ) from None
    return socket.inet_ntoa(found[20:24])


@cache
def compiled() -> bytes:
    """Compile the programs with clang and return the object file.

    Raises:
        TacosError: clang is missing or fails.
    """
    clang = shutil.which("clang")
    if clang is None:
        raise TacosError("clang, which compiles the XDP program, is not installed")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "switch.o"
        command = [clang, "-O2", "-target", "bpf", "-mcpu=v3", "-c", str(SOURCE), "-o", str(target)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            lines = run.stderr.strip().splitlines() or ["no message"]
            raise TacosError(f"{clang} cannot compile the XDP program: {lines[0]}")
        return target.read_bytes()


class XdpProgram:
    """The kernel's programs and tables for one switch.

    Args:
        slots: Total number of slots of all jobs.
        jobs: Largest number of jobs.

    Attributes:
        maps: The tables.
        mode: ``native``, in the driver, or ``generic``, once attached.

    Raises:
        TacosError: The machine lacks something; the message names it.
    """

    def __init__(self, slots: int, jobs: int) -> None:
        if why := unavailable():
            raise TacosError(why)
        self.mode = ""
        self._open: list[int] = []
        try:
            self._load(
                compiled(), {"slots_map": 2 * (slots + jobs), "jobs_map": jobs, "tallies_map": jobs}
            )
        except BaseException:
            self.close()
            raise

    def _load(self, binary: bytes, entries: dict[str, int]) -> None:
        file = _Object(binary)
        maps: dict[str, int] = {}
        for name, (kind, value_bytes) in file.maps.items():
            types = (
                self._keep(_bpf(_BTF_LOAD, *_described(value_bytes))) if name == "slots_map" else 0
            )
            # Type 1 describes a key and type 3 a slot; the kernel needs them to find the lock.
            attributes = struct.pack(
                "<7I16sIIII", kind, 4, value_bytes, entries.get(name, 1), 0, 0, 0, name.encode(), 0, types, *((1, 3) if types else (0, 0)),
            )  # fmt: skip
            try:
                maps[name] = self._keep(_bpf(_MAP_CREATE, attributes))
            except OSError as error:
                size = entries.get(name, 1) * value_bytes
                raise TacosError(
                    f"the kernel does not grant {size:,} bytes for {name} ({error.strerror}); ask for fewer slots"
                ) from None
        self._settings = maps["settings_map"]
        self.maps = Maps(*(maps[f"{name}_map"] for name in Maps._fields))
        self._programs = {name: self._keep(_loaded(name, file.code(name, maps))) for name in _TYPES}

    def attach(self, interface: str, address: str, port: int, loss: float = 0.0) -> None:
        """Attach the programs to an interface, for packets to an address and port.

        Raises:
            TacosError: The interface has an XDP program already, or the kernel cannot attach one.
        """
        settings = struct.pack(
            "<4sIH6x", socket.inet_aton(address), int(loss * (2**32 - 1)), socket.htons(port)
        )
        _update(self._settings, 0, settings)
        number = socket.if_nametoindex(interface)
        # Drivers of real network cards run programs natively; virtual interfaces do so only in pairs.
        real = Path(f"/sys/class/net/{interface}/device").exists()
        for mode, flag in (("native", _NATIVE), ("generic", _GENERIC)):
            if mode == "native" and not real:
                continue
            try:
                attributes = struct.pack("<IIII48x", self._programs["xdp"], number, _XDP, flag)
                self._keep(_bpf(_LINK_CREATE, attributes))
            except OSError as error:
                if error.errno in (errno.EBUSY, errno.EEXIST):
                    raise TacosError(
                        f"interface {interface} has an XDP program already; detach it first"
                    ) from None
                if mode == "native":
                    continue
                raise TacosError(
                    f"the kernel cannot attach an XDP program to {interface}: {error.strerror}"
                ) from None
            self.mode = mode
            break
        try:
            attributes = struct.pack("<IIII48x", self._programs["tc"], number, _TCX_INGRESS, 0)
            self._keep(_bpf(_LINK_CREATE, attributes))
        except OSError as error:
            raise TacosError(
                f"Linux {platform.release()} cannot send sums to all workers from the kernel ({error.strerror}); "
                f"{KERNEL[0]}.{KERNEL[1]} or newer is needed, {_INSTEAD}"
            ) from None

    def time_per_packet_ns(self) -> float:
        """Return the mean time of the XDP program per frame; 0 unless ``kernel.bpf_stats_enabled`` is 1."""
        rows = Path(f"/proc/self/fdinfo/{self._programs['xdp']}").read_text().splitlines()
        facts = dict(row.split(":\t", 1) for row in rows if ":\t" in row)
        return int(facts.get("run_time_ns", 0)) / max(int(facts.get("run_cnt", 0)), 1)

    def _keep(self, descriptor: int) -> int:
        self._open.append(descriptor)
        return descriptor

    def close(self) -> None:
        """Detach the programs and free the tables."""
        while self._open:
            os.close(self._open.pop())


def possible_cpus() -> int:
    """Return the number of processors for which the kernel keeps counters.

    >>> possible_cpus() >= 1
    True
    """
    text = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return int(text.replace(",", "-").rpartition("-")[2]) + 1


def _bpf(command: int, attributes: bytes, *keep: object) -> int:
    """Make the system call; ``keep`` holds the objects that the attributes point to."""
    libc = ctypes.CDLL(None, use_errno=True)
    block = ctypes.create_string_buffer(attributes, len(attributes))
    result = libc.syscall(_SYSCALL[platform.machine()], command, block, len(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    del keep
    return int(result)


def _update(table: int, key: int, value: bytes) -> None:
    where, what = ctypes.c_uint32(key), ctypes.create_string_buffer(value, len(value))
    attributes = struct.pack("<I4xQQQ", table, ctypes.addressof(where), ctypes.addressof(what), 0)
    _bpf(_MAP_UPDATE, attributes, where, what)


def _loaded(name: str, code: bytes) -> int:
    """Load a program and return its descriptor, after the kernel's verifier has accepted it."""
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"MIT")

    def attempt(level: int, size: int, log: int) -> int:
        attributes = struct.pack(
            "<IIQQIIQII16sII", _TYPES[name], len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(licence),
            level, size, log, 0, 0, f"tacos_{name}".encode(), 0, _XDP if name == "xdp" else 0,
        )  # fmt: skip
        return _bpf(_PROG_LOAD, attributes, instructions, licence)

    try:
        return attempt(0, 0, 0)
    except OSError as error:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        try:
            return attempt(1, _LOG_BYTES, ctypes.addressof(log))
        except OSError:
            said = log.value.decode(errors="replace").strip().splitlines()
        why = next(
            (line for line in reversed(said) if not line.startswith("processed")), error.strerror
        )
        raise TacosError(
            f"Linux {platform.release()} does not accept the {name} program ({why}); use a newer kernel, {_INSTEAD}"
        ) from None


def _described(slot_bytes: int) -> tuple[bytes, object]:
    """Return attributes that load the type of a slot: a structure of this size that begins with a lock."""
    names = b"\0u32\0bpf_spin_lock\0slot\0"
    word, lock, slot = (
        names.index(b"\0" + name + b"\0") + 1 for name in (b"u32", b"bpf_spin_lock", b"slot")
    )
    integer, structure = 1 << 24, 4 << 24
    types = struct.pack("<IIII", word, integer, 4, 32)
    types += struct.pack("<IIIIII", lock, structure | 1, 4, word, 1, 0)
    types += struct.pack("<IIIIII", slot, structure | 1, slot_bytes, lock, 2, 0)
    data = (
        struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
        + types
        + names
    )
    memory = ctypes.create_string_buffer(data, len(data))
    return struct.pack("<QQIII4x", ctypes.addressof(memory), 0, len(data), 0, 0), memory


class _Object:
    """The parts of an ELF object file that a loader needs: code, its references to maps, and the maps."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        start, _, _, _, _, size, count, names = struct.unpack_from("<QIHHHHHH", data, 40)
        rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + i * size) for i in range(count)]
        strings = self._bytes(rows[names])
        self._sections = {_text(strings, row[0]): (i, row) for i, row in enumerate(rows)}
        symbols, text = (
            self._bytes(self._sections[".symtab"][1]),
            self._bytes(self._sections[".strtab"][1]),
        )
        self._symbols = [
            struct.unpack_from("<IBBHQQ", symbols, at) for at in range(0, len(symbols), 24)
        ]
        place, row = self._sections["maps"]
        table = self._bytes(row)
        self.maps = {
            _text(text, name): struct.unpack_from("<II", table, value)
            for name, _, _, section, value, _ in self._symbols
            if section == place and name and _text(text, name).endswith("_map")
        }
        self._map_at = {
            value: _text(text, name)
            for name, _, _, section, value, _ in self._symbols
            if section == place and name
        }

    def _bytes(self, row: tuple[int, ...]) -> bytes:
        return self._data[row[4] : row[4] + row[5]]

    def code(self, section: str, maps: dict[str, int]) -> bytes:
        """Return the instructions of a section, with descriptors in place of maps."""
        code = bytearray(self._bytes(self._sections[section][1]))
        changes = self._bytes(self._sections[f".rel{section}"][1])
        for at in range(0, len(changes), 16):
            offset, info = struct.unpack_from("<QQ", changes, at)
            name = self._map_at[self._symbols[info >> 32][4]]
            code[offset + 1] = (
                code[offset + 1] & 0x0F
            ) | 1 << 4  # the source is a map's descriptor
            struct.pack_into("<I", code, offset + 4, maps[name])
        return bytes(code)


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode()
