"""Addresses: of this machine, of its interfaces, and of a rank that others reach. IPv4 and IPv6."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacos._support.variables import read

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["host_and_port", "interface_address", "listening", "machine", "own_address", "resolve"]

_SIOCGIFADDR = 0x8915
_GLOBAL = "00"  # the scope of IPv6 addresses that other machines reach, in /proc/net/if_inet6


def host_and_port(text: str, what: str) -> tuple[str, int]:
    """Split an address; IPv6 addresses stand in brackets.

    >>> host_and_port("node7:29500", "TACOS_RENDEZVOUS"), host_and_port("[::1]:80", "TACOS_RENDEZVOUS")
    (('node7', 29500), ('::1', 80))
    >>> host_and_port("::1:80", "TACOS_RENDEZVOUS")
    Traceback (most recent call last):
    ValueError: TACOS_RENDEZVOUS is '::1:80'; it must be host:port or [address]:port
    """
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = len(host) == len(bare) + 2
    if not bare or not port.isdecimal() or int(port) > 65535 or (":" in bare) != bracketed:
        raise ValueError(f"{what} is {text!r}; it must be host:port or [address]:port")
    return bare, int(port)


def resolve(host: str, port: int = 0) -> tuple[socket.AddressFamily, Any]:
    """Return the family and the address of a socket for a host.

    Raises:
        OSError: The name is not known.

    >>> resolve("127.0.0.1", 80)
    (<AddressFamily.AF_INET: 2>, ('127.0.0.1', 80))
    >>> resolve("::1", 80)[1][:2]
    ('::1', 80)
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # Hosts with both families are reached over IPv4.
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    return family, address


def own_address(environ: Mapping[str, str] | None = None) -> str:
    """Return the address at which other machines reach this one: that of ``TACOS_HOST``, or of the host name.

    Raises:
        ValueError: ``TACOS_HOST`` is not an address or interface of this machine.

    >>> own_address({"TACOS_HOST": "lo"}), own_address({"TACOS_HOST": "::1"})
    ('127.0.0.1', '::1')
    """
    given = read("TACOS_HOST", environ)
    if not given:
        return _usual_address()
    if given in _interfaces():
        address = interface_address(given)
        if not address:
            raise ValueError(f"TACOS_HOST is the interface {given}, which has no address")
        return address
    try:
        family, address = resolve(given)
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind(address)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ValueError(
            f"TACOS_HOST is {given!r}, which is not an address of this machine ({why}); use an address, "
            f"a host name or one of the interfaces {', '.join(_interfaces())}"
        ) from None
    return given


def is_interface(name: str) -> bool:
    """Tell whether this machine has a network interface with this name.

    >>> is_interface("lo"), is_interface("127.0.0.1")
    (True, False)
    """
    return name in _interfaces()


def interface_address(name: str) -> str:
    """Return the IPv4 address of an interface, otherwise a global IPv6 address, otherwise an empty string.

    >>> interface_address("lo")
    '127.0.0.1'
    """
    import fcntl

    request = struct.pack("256s", name.encode()[:15])
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
    ):
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    rows = []
    with contextlib.suppress(OSError):
        rows = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
    own = [row for row in rows if row[5] == name and (row[3] == _GLOBAL or name == "lo")]
    return str(ipaddress.IPv6Address(bytes.fromhex(own[0][0]))) if own else ""


def listening(host: str, port: int = 0) -> socket.socket:
    """Return a TCP socket that listens at an address of this machine; an empty host means all addresses.

    Raises:
        OSError: The address does not belong to this machine, or the port is in use.
    """
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be disabled although the kernel supports it
            return _listening(socket.AF_INET6, ("::", port), both=True)
    return _listening(*(resolve(host, port) if host else (socket.AF_INET, ("", port))))


def _listening(family: socket.AddressFamily, address: Any, *, both: bool = False) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both else 1)
        listener.bind(address)
        listener.listen(4096)
    except BaseException:
        listener.close()
        raise
    return listener


@functools.cache
def machine() -> str:
    """Return a text that is equal for processes that can use Unix sockets and see each other's user id.

    It is empty if that cannot be determined.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("net", "user")]
    except OSError:
        return ""
    return f"{boot} {spaces[0]} {spaces[1]} {os.geteuid()}"


def _interfaces() -> list[str]:
    with contextlib.suppress(OSError):
        return [name for _, name in socket.if_nameindex()]
    return []


def _usual_address() -> str:
    with contextlib.suppress(OSError):
        found = resolve(socket.gethostname())[1][0]
        if not ipaddress.ip_address(found.partition("%")[0]).is_loopback:
            return str(found)
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # sends nothing; asks for the route
            return str(probe.getsockname()[0])
    return "127.0.0.1"
