"""A process that attacks a job with what any user can see, as another user where the test may start one.

Run as a script with a user id and TCP ports as arguments. It becomes that user and opens silent, half-open and wrong
connections to these ports and to every Unix socket of TACOS that the kernel lists. It prints how many it has, and how
many were greeted at each place, and keeps them open until its standard input ends. It imports nothing of the package.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

EACH = 400


def sockets() -> list[str]:
    # Names that other programs gave need not be text.
    lines = Path("/proc/net/unix").read_bytes().split(b"\n")
    return [line.split()[-1].decode() for line in lines if b"@tacos-" in line]


def opened(place: str | int) -> socket.socket | None:
    family = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
    try:
        connection = socket.socket(family, socket.SOCK_STREAM)
    except OSError:  # with the sockets of other jobs, too many for one process
        return None
    connection.settimeout(5.0)
    try:
        connection.connect("\0" + place[1:] if isinstance(place, str) else ("127.0.0.1", place))
    except OSError:
        connection.close()
        return None
    return connection


def answer(connection: socket.socket) -> bytes:
    """Return the challenge, or nothing if the rank has closed the connection."""
    try:
        return connection.recv(20)
    except OSError:
        return b""


def main() -> None:
    user, *ports = map(int, sys.argv[1:])
    if user != os.geteuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    places = [*ports, *sockets()]
    kept, told = [], {}
    for place in places:
        greeted = 0
        for i in range(EACH):
            connection = opened(place)
            if connection is None:
                continue
            kept.append(connection)
            try:
                if i % 4 == 1:  # half-open: the beginning of an answer
                    connection.sendall(b"tcs2" + bytes(7))
                elif i % 4 == 2:  # an answer of the right length, without the token
                    greeted += bool(answer(connection))
                    connection.sendall(b"tcs2" + bytes(16 + 12 + 32))
                elif i % 4 == 3:
                    connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
            except OSError:
                pass
        told[str(place)] = greeted
    sys.stdout.write(f"{os.geteuid()} {len(kept)} {told}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
