"""Probes of links that are avoided."""

from __future__ import annotations

import math
import socket
import struct
import threading
import time
from types import SimpleNamespace

import pytest

from tacos import topology as tp
from tacos.runtime.healing.calls import Healer
from tacos.runtime.healing.judgement import Belief, Pair, Report
from tacos.runtime.healing.probes import Prober, _tried

_SIZE = 64 << 10


@pytest.fixture
def prober():
    one = Prober("127.0.0.1", lambda: None)
    one.start()
    yield one
    one.close()


def slow_probe(prober: Prober, seconds: float) -> tuple[float, float]:
    """Return the speed reported for a probe that takes this many seconds, and the seconds measured here."""
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", prober.port), timeout=60.0) as way:
        way.sendall(prober.token + struct.pack("!I", _SIZE))
        for _ in range(16):
            time.sleep(seconds / 16)
            way.sendall(bytes(_SIZE // 16))
        (speed,) = struct.unpack("!d", way.recv(8))
        return float(speed), time.monotonic() - begin


def test_what_probes_have_shown_is_told_once(prober):
    """Otherwise an old speed would count again at every later meeting, even if it had changed nothing."""
    healer = object.__new__(Healer)
    network = tp.ring(2)
    vars(healer).update(_network=network, _prober=prober, belief=Belief(), _slow_ranks=[])
    vars(healer)["_algorithms"] = SimpleNamespace(npus=[0, 1])
    prober.news[Pair(0, 1)] = 1e9
    healer._follow([Report(), Report()])
    assert prober.news == {}


def test_a_probe_that_comes_with_others_is_not_taken_for_a_quick_one(prober):
    """64 KiB in 0.4 s are 160 kB/s. If it were read after the other probes, all of its data would already be there.

    A busy machine takes longer, and the speed is that of the last five eighths of the data.
    """
    silent = [socket.create_connection(("127.0.0.1", prober.port)) for _ in range(3)]
    try:
        speed, elapsed = slow_probe(prober, 0.4)
        assert 5 / 8 * _SIZE / elapsed < speed < 300e3
    finally:
        for one in silent:
            one.close()


def test_without_the_token_there_is_no_answer(prober):
    assert _tried("127.0.0.1", prober.port, bytes(16), _SIZE) == 0.0
    assert _tried("127.0.0.1", prober.port, prober.token, _SIZE) > 0.0


@pytest.mark.parametrize("said", [math.inf, math.nan])
def test_a_speed_that_is_not_finite_is_ignored(said):
    """Another process may listen where a rank did; its answer must not reach the ranks' reports."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            guest, _ = listener.accept()
            with guest:
                left = 20 + _SIZE
                while left:
                    left -= len(guest.recv(left))
                guest.sendall(struct.pack("!d", said))

        thread = threading.Thread(target=answer)
        thread.start()
        assert _tried("127.0.0.1", listener.getsockname()[1], bytes(16), _SIZE) == 0.0
        thread.join()


def test_a_link_that_is_quick_again_is_news(prober):
    found = threading.Event()
    trying = Prober("127.0.0.1", found.set)
    trying.aim([(Pair(0, 1), "127.0.0.1", prober.port, prober.token, 1e3, 1.5e3)])
    trying.start()
    try:
        assert found.wait(60.0)
        assert trying.news[Pair(0, 1)] > 1e3
    finally:
        trying.close()
