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
from tacos.runtime.healing import probes
from tacos.runtime.healing.calls import Healer
from tacos.runtime.healing.diagnosis import Belief, Pair, RankReport
from tacos.runtime.healing.probes import Prober, _tried
from tests.support.conditions import PATIENCE_S, until

_SIZE = 64 << 10


@pytest.fixture
def prober():
    one = Prober("127.0.0.1", lambda: None)
    one.start()
    yield one
    one.close()


def test_what_probes_have_shown_is_told_once(prober):
    """Otherwise an old speed would count again at every later meeting, even if it had changed nothing."""
    healer = object.__new__(Healer)
    network = tp.ring(2)
    vars(healer).update(_network=network, _prober=prober, belief=Belief(), _slow_ranks=[])
    vars(healer)["_algorithms"] = SimpleNamespace(npus=[0, 1])
    prober.news[Pair(0, 1)] = 1e9
    healer._follow([RankReport(), RankReport()])
    assert prober.news == {}


def test_a_probe_that_comes_with_others_is_not_taken_for_a_quick_one(prober, monkeypatch):
    """40 KiB in 0.25 s. If the probe were read after the others, all of its data would already be there.

    The clock begins when the first 24 KiB have been read, which the sender awaits before it sends the rest.
    """
    looks: list[float] = []

    def clock():
        looks.append(0.25 * len(looks))
        return looks[-1]

    silent = [socket.create_connection(("127.0.0.1", prober.port)) for _ in range(3)]
    monkeypatch.setattr(probes, "_PATIENCE_S", 2 * PATIENCE_S)  # of the silent ones
    monkeypatch.setattr(
        probes, "time", SimpleNamespace(monotonic=time.monotonic, perf_counter=clock)
    )
    try:
        with socket.create_connection(("127.0.0.1", prober.port), timeout=PATIENCE_S) as way:
            way.sendall(prober.token + struct.pack("!I", _SIZE) + bytes(_SIZE * 3 // 8))
            until(lambda: looks, "the prober has read the beginning")
            way.sendall(bytes(_SIZE * 5 // 8))
            assert struct.unpack("!d", way.recv(8)) == (_SIZE * 5 / 8 / 0.25,)
    finally:
        for one in silent:
            one.close()


def test_without_the_token_there_is_no_answer(prober, monkeypatch):
    monkeypatch.setattr(probes, "_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(probes, "_PAUSE_S", PATIENCE_S)  # to connect
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
        assert found.wait(PATIENCE_S)
        assert trying.news[Pair(0, 1)] > 1e3
    finally:
        trying.close()
