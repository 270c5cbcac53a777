"""Jobs among other processes: attacks change no result and end no job, and wrong settings are named."""

from __future__ import annotations

import ast
import contextlib
import errno
import hmac
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos._core import Endpoint
from tacos._support.variables import VARIABLES
from tacos.runtime import CommunicationError, TcpRendezvous, connect, from_environment
from tacos.runtime.rendezvous import environment, handshake
from tacos.runtime.rendezvous import tcp as rendezvous_over_tcp
from tacos.runtime.rendezvous.handshake import Acceptor, Refused, dial
from tests.support import attacker
from tests.support.conditions import PATIENCE_S
from tests.support.ranks import free_port

ROOT = Path(tacos.__file__).parents[2]
NOBODY = 65534


def schedule(kind, npus):
    network = tp.fully_connected(npus)
    return tacos.synthesize(network, co.named(kind, network, "1MB", chunks=1))


def carrier_of(comm) -> Any:
    return comm.open()


def soon():
    return time.monotonic() + PATIENCE_S


@contextlib.contextmanager
def attacked(ports):
    """An attacker that holds its connections, as another user where this process may choose one."""
    user = NOBODY if os.geteuid() == 0 else os.geteuid()
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", attacker.__file__, *map(str, [user, *ports])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        told = process.stdout.readline()
        assert told, process.stderr.read()
        yield told
    finally:
        process.stdin.close()
        process.stdout.close()
        process.stderr.close()
        process.wait(PATIENCE_S)


@pytest.mark.parametrize("carried", ["unix", "tcp"])
def test_an_attacked_job_gets_right_results(monkeypatch, carried):
    """Connections are attacked between two preparations, when no rank waits for one; then the ranks connect again."""
    if carried == "tcp":
        monkeypatch.setenv("TACOS_HOST", "127.0.0.1")
    first, second = schedule("all_reduce", 3), schedule("all_to_all", 3)
    port, line = free_port(), threading.Barrier(4, timeout=PATIENCE_S)
    ports: list[int] = []

    def act(rank):
        meet = TcpRendezvous(rank, 3, "127.0.0.1", port, timeout=PATIENCE_S, token="ours")
        with connect(meet, timeout=PATIENCE_S) as comm:
            ring = comm.prepare(first)
            before = ring.run(np.full(5, rank + 1.0))
            ports.extend(place[1] for place in carrier_of(comm)._places[:1])
            line.wait()
            line.wait()
            blocks = comm.prepare(second).run(np.arange(3.0) + 10 * rank)
            return before.tolist(), blocks.tolist(), ring.run(np.full(5, rank + 1.0)).tolist()

    with ThreadPoolExecutor(3) as pool:
        ranks = [pool.submit(act, rank) for rank in range(3)]
        line.wait()
        # Ranks of one machine do not listen on a network.
        assert bool(ports) == (carried == "tcp")
        with attacked(set(ports)) as told:
            line.wait()
            results = [rank.result() for rank in ranks]
    user, count, table = told.split(maxsplit=2)
    assert int(count) > attacker.EACH / 2
    greeted = ast.literal_eval(table)
    if int(user) != os.geteuid():  # another user is refused before the handshake
        assert not any(many for place, many in greeted.items() if place.startswith("@"))
    for rank, (before, blocks, after) in enumerate(results):
        assert before == after == [6.0] * 5
        assert blocks == [rank, rank + 10.0, rank + 20.0]


def test_names_of_sockets_do_not_tell_the_secret():
    """All users can read the name, so it must not reveal the secret of the handshake."""
    with connect(TcpRendezvous(0, 1, "", 0)) as comm:
        carrier = carrier_of(comm)
        card = carrier._cards[0]
        assert card.name.removeprefix("tacos-") not in (card.salt, carrier._key.hex())


@contextlib.contextmanager
def accepting(key=b"ours"):
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    with Acceptor([listener], key, 4) as acceptor:
        yield acceptor, listener.getsockname()


def test_a_handshake_needs_the_secret_on_both_sides():
    with accepting() as (acceptor, place), socket.create_connection(place) as caller:
        with pytest.raises(Refused, match="the ranks do not have the same TACOS_TOKEN"):
            dial(caller, b"theirs", b"rank", soon())
        assert acceptor.wait(0.1) is None
    # A process that holds the port and echoes what it receives is not taken for a rank.
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def pretend():
            with listener.accept()[0] as end:
                end.sendall(handshake._MAGIC + bytes(16))
                end.sendall(end.recv(200)[-32:])
                end.recv(1)

        other = pool.submit(pretend)
        caller = socket.create_connection(listener.getsockname())
        with caller, pytest.raises(Refused):
            dial(caller, b"ours", b"rank", soon())
        other.result()


def test_a_recorded_handshake_does_not_serve_again():
    with accepting() as (acceptor, place):
        with socket.create_connection(place) as caller:
            sent = []

            class Recorder:
                def __getattr__(self, name):
                    return getattr(caller, name)

                def sendall(self, data):
                    sent.append(data)
                    caller.sendall(data)

            dial(Recorder(), b"ours", b"rank", soon())
            accepted = acceptor.wait(PATIENCE_S)
            assert accepted.said == b"rank"
            accepted.connection.close()
        with socket.create_connection(place) as again:
            again.settimeout(PATIENCE_S)
            again.recv(20)
            again.sendall(b"".join(sent))
            assert again.recv(100) == handshake._REFUSAL
        assert acceptor.wait(0.1) is None


def test_thousands_of_silent_connections_do_not_keep_a_rank_out():
    with accepting() as (acceptor, place):
        silent = []
        # More than the acceptor keeps, and more descriptors than it needs.
        for _ in range(2 * acceptor._most + 50):
            silent.append(socket.create_connection(place, timeout=PATIENCE_S))
            if len(silent) > 300:
                silent.pop(0).close()
        with socket.create_connection(place, timeout=PATIENCE_S) as caller:
            dial(caller, b"ours", b"rank", soon())
            accepted = acceptor.wait(PATIENCE_S)
            assert accepted.said == b"rank"
            accepted.connection.close()
        assert len(acceptor._pending) <= acceptor._most
        for one in silent:
            one.close()


def test_silent_connections_are_closed_after_some_time(monkeypatch):
    monkeypatch.setattr(handshake, "_PATIENCE_S", 0.1)
    with accepting() as (_, place), socket.create_connection(place, timeout=PATIENCE_S) as silent:
        assert len(silent.recv(100)) == 20
        assert silent.recv(100) == b""


def test_other_processes_neither_stop_a_job_nor_take_a_place_in_it():
    """One is silent, one sends garbage, one belongs to another job, one to a job of another size."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        silent, loud = socket.create_connection(place), socket.create_connection(place)
        loud.sendall(b"GET / HTTP/1.1" + b" " * 100)

        def act(rank, size=2, token="ours"):
            try:
                at = listener.dup() if rank == 0 else None
                meet = TcpRendezvous(
                    rank, size, *place, timeout=PATIENCE_S, token=token, listener=at
                )
            except CommunicationError as error:
                return str(error)
            try:
                return meet.exchange("x", bytes([rank]))
            except CommunicationError as error:
                return str(error)
            finally:
                meet.close()

        with ThreadPoolExecutor(4) as pool:
            wrong = [pool.submit(act, 1, token="theirs"), pool.submit(act, 2, size=5)]
            rank = pool.submit(act, 0)
            assert wrong[1].result() == "rank 2 of 5 came to rank 0 of 2"
            assert re.fullmatch(
                r"rank 0 at 127\.0\.0\.1:\d+ refused rank 1: the ranks do not have the same TACOS_TOKEN",
                wrong[0].result(),
            )
            assert pool.submit(act, 1).result() == rank.result() == [b"\0", b"\1"]
        silent.close()
        loud.close()


def test_running_out_of_descriptors_is_said_at_once(monkeypatch):
    """The limit is lowered to the descriptors that are open: the next connection cannot be accepted."""
    import resource

    done: list[str] = []
    sleep = time.sleep

    def pause(seconds):
        done.append("pause")
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    with accepting() as (acceptor, place):
        make_room = acceptor._make_room

        def counted():
            done.append("try")
            make_room()

        monkeypatch.setattr(acceptor, "_make_room", counted)
        caller = socket.socket()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 1, hard))
        try:
            caller.connect(place)
            with pytest.raises(
                CommunicationError, match=r"no file descriptors left to accept .* ulimit -n"
            ):
                acceptor.wait(PATIENCE_S)
            # An attempt that fails is followed by a pause.
            assert 1 <= done.count("try") <= done.count("pause") + 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            caller.close()


@pytest.mark.parametrize("why", [errno.ENOBUFS, errno.ENOMEM])
def test_a_machine_without_memory_is_given_a_pause(why, monkeypatch):
    """The listener stays readable, so a thread that retried at once would keep a core busy."""

    class Poor:
        tries = 0

        def accept(self):
            self.tries += 1
            raise OSError(why, "no memory")

    listener = Poor()
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with accepting() as (acceptor, _):
        assert not acceptor._accept(listener)
    assert (listener.tries, pauses) == (1, [handshake._PAUSE_S])


# --- Slurm --------------------------------------------------------------------------------------------

JOB = os.getpid()  # a job's number determines its port, so two runs of the tests do not meet
SLURM = {
    "SLURM_NTASKS": "2",
    "SLURM_JOB_ID": str(JOB),
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "localhost",
}


def meet_under_slurm(variables, timeout=PATIENCE_S):
    def act(rank):
        found = from_environment(
            SLURM | {"SLURM_PROCID": str(rank)} | variables[rank], timeout=timeout
        )
        with contextlib.closing(found):
            return found.exchange("x", bytes([rank]))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(act, range(2)))


def test_ranks_of_slurm_share_a_file_that_only_their_user_reads(tmp_path, monkeypatch):
    modes = []
    offer = environment.offer_secret

    def offered(file):
        secret = offer(file)
        modes.append((file.stat().st_mode & 0o777, secret in str(file)))
        return secret

    monkeypatch.setattr(environment, "offer_secret", offered)
    (tmp_path / f".slurm-{JOB}.2-0.token").write_text(
        "of a run before"
    )  # not trusted: others can read it
    cache = {"TACOS_CACHE": str(tmp_path)}
    assert meet_under_slurm([cache, cache]) == [[b"\0", b"\1"]] * 2
    assert modes == [(0o600, False)]
    assert list(tmp_path.iterdir()) == []


def test_the_token_of_slurms_ranks_is_not_their_job(tmp_path, monkeypatch):
    """All users know the job's number, but only a process with its TACOS_TOKEN can join."""
    ours = {"TACOS_TOKEN": "ours", "TACOS_CACHE": str(tmp_path)}
    assert meet_under_slurm([ours, ours]) == [[b"\0", b"\1"]] * 2
    monkeypatch.setattr(rendezvous_over_tcp, "_REFUSED_S", 0.1)
    with pytest.raises(TimeoutError, match=r"rank 1 did not come to rank 0 within 0\.5 s"):
        meet_under_slurm([ours, ours | {"TACOS_TOKEN": f"{JOB}.2"}], timeout=0.5)


def test_a_token_file_that_shows_its_old_content_for_a_while_refuses_no_rank(monkeypatch):
    """Network file systems show old content for longer than a rank with a wrong token retries."""
    monkeypatch.setattr(rendezvous_over_tcp, "_REFUSED_S", 0.05)
    port, reads = free_port(), []

    def token():
        """Return the old content for some time after it was first read."""
        reads.append(time.monotonic())
        return "old" if reads[-1] - reads[0] < 0.4 else "new"

    def act(rank):
        secret = token if rank else "new"
        with contextlib.closing(
            TcpRendezvous(rank, 2, "127.0.0.1", port, timeout=PATIENCE_S, token=secret)
        ) as met:
            return met.exchange("x", bytes([rank]))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(act, range(2))) == [[b"\0", b"\1"]] * 2


# --- what comes over connections ----------------------------------------------------------------------


DATA, ABORT = 0, 1


def message(kind, content, *, call=1, algorithm=0, count=0, flags=0):
    """A message as a rank sends it."""
    head = "=BBBBIiiqQII"
    return (
        struct.pack(head, 0xA7, kind, 0, 0, call, -1, algorithm, count, len(content), 0, flags)
        + content
    )


def test_a_rank_hears_why_a_peer_fails_that_is_a_call_ahead():
    """The peer's notice follows data of a call that this rank has not begun, more than a socket buffers."""
    ours, theirs = socket.socketpair()
    endpoint = Endpoint(0, 2, 20.0)
    connected(endpoint, ours)
    said = message(DATA, bytes(8 << 20), call=7) + message(ABORT, b"rank 1 has no memory left")
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(theirs.sendall, said)

        def wait():
            while time.monotonic() < end:
                endpoint.watch(0, "waits")

        end = soon()
        with pytest.raises(CommunicationError, match="rank 1 has no memory left"):
            wait()
        sending.result()
    endpoint.close()
    theirs.close()


@pytest.mark.parametrize("link", [(7, 1), (1, 7), (-1, 0), (0, 1 << 40), (1, 1)])
def test_a_notice_of_a_dead_link_between_ranks_that_do_not_exist_is_malformed(link):
    ours, theirs = socket.socketpair()
    endpoint = Endpoint(0, 2, 20.0)
    connected(endpoint, ours)
    theirs.sendall(message(ABORT, b"the link is dead", algorithm=link[0], count=link[1], flags=2))
    with pytest.raises(CommunicationError, match="rank 0 received a malformed message from rank 1"):
        endpoint.watch(0, "waits")
    assert endpoint.broken == (-1, -1)
    endpoint.close()
    theirs.close()


@pytest.mark.parametrize(
    ("listens", "dials"),
    [("127.0.0.1", "127.9.9.9"), ("::1", "::1"), ("127.0.0.1", "::ffff:127.0.0.1")],
)
def test_connections_within_a_machine_are_no_links(listens, dials):
    """Their speed is not watched."""
    family = socket.AF_INET6 if ":" in listens else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind(("0.0.0.0" if family == socket.AF_INET else listens, 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        listener.listen()
        caller = socket.socket(socket.AF_INET6 if ":" in dials else socket.AF_INET)
        try:
            caller.connect((dials, listener.getsockname()[1]))
        except OSError:
            pytest.skip("this machine has no IPv6")
        endpoint = Endpoint(0, 2, 20.0)
        connected(endpoint, caller)
        assert all(link["local"] for link in endpoint.links())
        endpoint.close()


def connected(endpoint, connection):
    endpoint.add(1, 0, connection.detach())


# --- variables ----------------------------------------------------------------------------------------


def test_a_launcher_that_does_not_number_ranks_is_named(monkeypatch):
    monkeypatch.setenv("TACOS_METRICS", "9400")
    monkeypatch.setenv("LOCAL_RANK", "x")
    with pytest.raises(ValueError, match=r"LOCAL_RANK is 'x'; it must be this rank's number"):
        connect()


def test_connections_of_data_need_the_secret_of_the_rendezvous():
    """Under Slurm it is in a file, not in TACOS_TOKEN; messages at the rendezvous can be read on the network."""
    port = free_port()

    def key(rank):
        meeting = TcpRendezvous(rank, 2, "127.0.0.1", port, timeout=PATIENCE_S, token="from a file")
        with connect(meeting, timeout=PATIENCE_S) as comm:
            tcp: Any = comm._open["tcp"]
            salts = "".join(card.salt for card in tcp._cards)
            return tcp._key, hmac.digest(b"from a file", salts.encode(), "sha256")

    with ThreadPoolExecutor(2) as pool:
        for used, expected in pool.map(key, range(2)):
            assert used == expected


def test_the_manual_lists_every_variable():
    """Each variable is in the table, none is read elsewhere, and the page repeats the table's text."""
    names, readers = set(), []
    for path in (ROOT / "src" / "tacos").rglob("*.py"):
        text = path.read_text()
        names |= set(re.findall(r'"(TACOS_[A-Z_]+)"', text))
        read = r'(?:environ|env|variables)(?:\.get\("TACOS_|\["TACOS_[A-Z_]+"\](?! = ))'
        readers += [(path.name, found) for found in re.findall(read, text)]
    assert readers == []
    assert names == set(VARIABLES)
    page = (ROOT / "docs" / "guide" / "operating.md").read_text()
    rows = re.findall(r"^\| `(TACOS_[A-Z_]+)` \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    assert rows == [(one.name, one.meaning, one.default) for one in VARIABLES.values()]


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.7", "2001:db8::7", "nic0"])
def test_a_wrong_host_is_named_on_all_ranks(monkeypatch, host):
    monkeypatch.setenv("TACOS_HOST", host)
    port = free_port()

    def act(rank):
        meet = TcpRendezvous(rank, 2, "127.0.0.1", port, timeout=PATIENCE_S)
        with pytest.raises(
            ValueError, match=f"TACOS_HOST is '{host}', which is not an address of this machine"
        ):
            connect(meet, timeout=PATIENCE_S)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(act, range(2)))


@pytest.mark.parametrize("host", ["::1", "lo"])
def test_ranks_meet_over_ipv6_and_by_interface(monkeypatch, host):
    monkeypatch.setenv("TACOS_HOST", host)
    where = "[::1]" if host == "::1" else "127.0.0.1"
    port = free_port()
    algorithm = schedule("all_reduce", 2)

    def act(rank):
        variables = {
            "TACOS_RANK": str(rank),
            "TACOS_WORLD_SIZE": "2",
            "TACOS_RENDEZVOUS": f"{where}:{port}",
        }
        with connect(
            from_environment(variables | {"TACOS_TOKEN": "x"}, timeout=PATIENCE_S),
            timeout=PATIENCE_S,
        ) as comm:
            return comm.prepare(algorithm).run(np.ones(3)).tolist(), comm.address(1 - rank)

    with ThreadPoolExecutor(2) as pool:
        for total, address in pool.map(act, range(2)):
            assert total == [2.0] * 3
            assert address == ("::1" if host == "::1" else "127.0.0.1")


@pytest.mark.parametrize("bytes_", [2**64 - 40, 2**64 - 4096, 2**60 + 1])
def test_data_of_an_impossible_size_are_malformed(bytes_):
    """Sizes wrap around: 40 bytes of header and 2^64 - 40 of data are 0 bytes, and this message would be read again."""
    ours, theirs = socket.socketpair()
    endpoint = Endpoint(0, 2, 20.0)
    connected(endpoint, ours)
    head = bytearray(message(DATA, b"", call=7))
    struct.pack_into("=Q", head, struct.calcsize("=BBBBIiiq"), bytes_)
    theirs.sendall(head)
    with pytest.raises(CommunicationError, match="rank 0 received a malformed message from rank 1"):
        endpoint.watch(0, "waits")
    endpoint.close()
    theirs.close()
