"""Switches and workers over UDP, on the loopback device only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tacos.cli import main
from tacos.errors import CommunicationError, TacosError
from tacos.runtime import TcpRendezvous
from tacos.runtime.aggregation import Switch, SwitchLost, SwitchWorker, connect, prometheus, stats
from tacos.runtime.aggregation.sums import Place, opened
from tacos.runtime.communicator import Communicator
from tests.support.conditions import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN = "secret of the tests"


def together(count: int, job: Callable[[int], Any]) -> list[Any]:
    """Call a function for each worker, in threads; return what each call returned or raised."""

    def one(worker: int) -> Any:
        try:
            return job(worker)
        except Exception as error:  # noqa: BLE001, the tests look at it
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def worker_of(address: str, worker: int, workers: int, **more: Any) -> SwitchWorker:
    options = {"token": TOKEN, "timeout": PATIENCE_S, "silence": PATIENCE_S, "pool": 8} | more
    return connect(address, worker=worker, workers=workers, **options)


def data_of(worker: int, size: int, dtype: str) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(worker)
    if dtype.startswith("float"):
        return rng.normal(size=size).astype(dtype)
    return rng.integers(-(10**6), 10**6, size).astype(dtype)


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_sums_over_udp(cores: int, loss: float) -> None:
    sizes, workers = [5000, 1, 3000], 3
    with Switch(token=TOKEN, cores=cores, loss=loss, seed=3) as switch:

        def job(worker: int) -> tuple[list[np.ndarray[Any, Any]], dict[str, int], int]:
            with worker_of(switch.address, worker, workers) as mine:
                packets, results = 0, []
                for size in sizes:
                    for dtype in ("int32", "float32"):
                        data = data_of(worker, size, dtype)
                        mine.all_reduce(data, data)  # in place
                        results.append(data)
                        packets += mine.packets
                return results, mine.counters, packets

        answers = together(workers, job)
        figures = switch.stats()
    for i, (size, dtype) in enumerate((s, d) for s in sizes for d in ("int32", "float32")):
        exact = np.sum([data_of(w, size, dtype).astype(np.float64) for w in range(workers)], axis=0)
        for results, _, _ in answers:
            assert np.allclose(results[i], exact, rtol=1e-6, atol=1e-7 * workers)
            assert np.array_equal(results[i], answers[0][0][i])
    for _, counters, packets in answers:
        assert counters["sent"] - counters["retransmitted"] == packets
        assert counters["repeats"] == 0
    assert figures["early"] == figures["stale"] == figures["mismatched"] == 0
    assert (figures["lost_in"] > 0) == (loss > 0)


def test_racks_under_a_core_over_udp() -> None:
    with (
        Switch(token=TOKEN, cores=2) as core,
        Switch(token=TOKEN, parent=core.address, members=[0, 1], cores=2) as left,
        Switch(token=TOKEN, parent=core.address, members=[2, 3]) as right,
    ):

        def job(worker: int) -> Any:
            rack = left if worker < 2 else right
            with worker_of(rack.address, worker, 4) as mine:
                return mine.all_reduce(data_of(worker, 4000, "int32"))

        answers = together(4, job)
        core_packets, rack_packets = core.stats()["contributions"], left.stats()["contributions"]
    exact = np.sum([data_of(w, 4000, "int32") for w in range(4)], axis=0)
    assert all(np.array_equal(answer, exact) for answer in answers)
    assert core_packets == rack_packets  # the core has two racks, each rack two workers


def test_jobs_do_not_mix() -> None:
    with Switch(token=[TOKEN, "another"]) as switch:

        def job(number: int) -> Any:
            name, worker = divmod(number, 2)
            token = TOKEN if name < 2 else "another"
            with worker_of(switch.address, worker, 2, job=f"job{name % 2}", token=token) as mine:
                return [mine.all_reduce(np.full(2000, 10**name, np.int32))[0] for _ in range(3)]

        answers = together(6, job)
    assert answers == [[2] * 3, [2] * 3, [20] * 3, [20] * 3, [200] * 3, [200] * 3]


def test_a_worker_that_is_not_welcome_says_why() -> None:
    data = np.ones(4, np.int32)
    with Switch(token=TOKEN, mtu=1500) as switch:
        with pytest.raises(
            CommunicationError, match=r"no progress for 1\.0 s: worker 1 has not joined"
        ):
            worker_of(switch.address, 0, 2, timeout=1.0).all_reduce(data)
        assert switch.stats()["refused"] == 0
        # On a busy machine a worker may ask again before the answer arrives; each request counts.
        with pytest.raises(CommunicationError, match="does not accept the token"):
            worker_of(switch.address, 0, 2, token="wrong").all_reduce(data)
        assert (once := switch.stats()["refused"]) > 0
        with pytest.raises(CommunicationError, match="the switch takes 1 to 360"):
            worker_of(switch.address, 0, 2, mtu=9000).all_reduce(data)
        assert switch.stats()["refused"] > once
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        worker_of("127.0.0.1:none", 0, 1)
    with pytest.raises(ValueError, match=r"which has no IPv4 address: [^\[\]]+$"):
        worker_of("no-such-host.invalid:1", 0, 1)
    with pytest.raises(ValueError, match="cannot compute the max of int32"):
        worker_of("127.0.0.1:1", 0, 1).all_reduce(data, op="max")


def test_workers_that_disagree_fail_together() -> None:
    with Switch(token=TOKEN) as switch:
        answers = together(
            2, lambda w: worker_of(switch.address, w, 2).all_reduce(np.ones(10 + w, np.int32))
        )
    assert all("runs another operation" in str(answer) for answer in answers)


def test_a_second_switch_cannot_have_the_address() -> None:
    with Switch(token=TOKEN) as switch, pytest.raises(TacosError, match="another switch, uses UDP"):
        Switch(token=TOKEN, port=switch.port)
    for options, word in (
        ({"loss": 1.0}, "loss must be"),
        ({"cores": 0}, "cores must be"),
        ({"parent": "127.0.0.1:9"}, "go together"),
        ({"members": [64], "parent": "127.0.0.1:9"}, "members must be"),
        ({"mtu": 10}, "mtu must be"),
    ):
        with pytest.raises(ValueError, match=word):
            Switch(**options)


def test_a_dead_switch_leaves_the_data_as_they_were() -> None:
    switch = Switch(token=TOKEN)
    switch.start()
    mine = worker_of(switch.address, 0, 1, silence=1.0)
    data = np.arange(5000, dtype=np.float32)
    assert np.array_equal(mine.all_reduce(data), data)
    switch.close()  # the socket stays: nothing answers, and nothing says that the port is closed
    with pytest.raises(SwitchLost, match=r"has not answered for 1\.0 s"):
        mine.all_reduce(data, data)
    assert np.array_equal(data, np.arange(5000, dtype=np.float32))
    with pytest.raises(TacosError, match="has not answered"):
        mine.all_reduce(data, data)


def test_a_restarted_switch_is_found_again() -> None:
    """Two workers run 60 operations without an error, although the switch is replaced twice."""
    first = Switch(token=TOKEN)
    first.start()
    port = first.port
    progress = [0, 0]
    replaced = {10: threading.Event(), 30: threading.Event()}

    def job(worker: int) -> tuple[bool, int]:
        with worker_of(f"127.0.0.1:{port}", worker, 2) as mine:
            right = True
            for i in range(60):
                if i - 10 in replaced:  # at the latest
                    assert replaced[i - 10].wait(PATIENCE_S)
                out = mine.all_reduce(np.full(3000, i + worker, np.int32))
                right &= bool((out == 2 * i + 1).all())
                progress[worker] = i
            return right, mine.counters["joins"]

    def reached(operation: int) -> bool:
        return min(progress) >= operation

    def replace() -> None:
        switch = first
        for at, done in replaced.items():
            until(partial(reached, at - 1), f"both workers have run {at} operations")
            switch.close()
            del switch._core  # closes its sockets
            switch = Switch(token=TOKEN, port=port)
            switch.start()
            done.set()
        kept.append(switch)

    kept: list[Switch] = []
    replacing = threading.Thread(target=replace)
    replacing.start()
    answers = together(2, job)
    replacing.join()
    kept[0].close()
    assert [answer[0] for answer in answers] == [True, True], answers
    assert min(answer[1] for answer in answers) >= 3


def test_counters_from_afar() -> None:
    with Switch(token=TOKEN) as switch:
        with worker_of(switch.address, 0, 1, job="mine") as mine:
            mine.all_reduce(np.ones(100, np.int32))
            figures = stats(switch.address, TOKEN)
        text = prometheus(figures)
        with pytest.raises(CommunicationError, match="does not accept the token"):
            stats(switch.address, "wrong", timeout=1.0)
        free = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        free.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        with pytest.raises(CommunicationError, match="no switch answers"):
            stats(nowhere, TOKEN, timeout=0.2)
    assert figures["contributions"] == 2  # one packet of integers, and the closing one
    assert 'tacos_switch_job_results{job="mine"} 2' in text
    assert [job["name"] for job in figures["jobs"]] == ["mine"]


# When the switch dies, ranks go on without it.


def test_ranks_go_on_without_the_switch() -> None:
    """The switch dies between or within operations: every sum is correct, none is lost or computed twice."""
    switch = Switch(token=TOKEN)
    switch.start()
    listener = socket.create_server(("127.0.0.1", 0))
    host, port = listener.getsockname()[:2]
    listener.close()
    ranks, rounds = 2, 20
    barrier = threading.Barrier(ranks)
    closed = threading.Event()
    shared = np.zeros((ranks, 4000), np.int32)

    def job(rank: int) -> tuple[int, int, str]:
        rendezvous = TcpRendezvous(rank, ranks, host, port, timeout=PATIENCE_S)
        with Communicator(rendezvous, timeout=PATIENCE_S) as comm:
            sums = opened(comm, f"{switch.address},least=1KB,pool=4", TOKEN)
            assert sums is not None
            right = without = 0
            for i in range(rounds):
                if i == 8 and rank == 0:
                    closing.start()
                if i == rounds - 1:  # at the latest
                    closed.wait(PATIENCE_S)
                data = np.full(4000, i + rank, np.int32)

                def otherwise(data: np.ndarray[Any, Any] = data) -> None:
                    nonlocal without
                    without += 1
                    shared[rank] = data
                    barrier.wait(PATIENCE_S)
                    total = shared.sum(axis=0)
                    barrier.wait(PATIENCE_S)
                    data[:] = total

                if sums.serves(data.nbytes, "int32", "sum"):
                    at = data.ctypes.data
                    sums.run_at(at, at, data.size, "int32", "sum", otherwise)
                else:
                    otherwise()
                right += bool((data == 2 * i + 1).all())
            sums.close()
            return right, without, sums.ended

    def close() -> None:
        switch.close()
        del switch._core
        closed.set()

    closing = threading.Timer(0.001, close)
    answers = together(ranks, job)
    assert [answer[0] for answer in answers] == [rounds] * ranks, answers
    assert answers[0][1] == answers[1][1] > 0
    assert all("the switch has ended" in answer[2] for answer in answers)


def test_ranks_return_to_a_switch_that_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch dies in round 3 and is back before round 8; ranks look for it after 2 calls, then after 4."""
    monkeypatch.setattr("tacos.runtime.aggregation.sums._FIRST_LOOK", 2)
    switches = [Switch(token=TOKEN)]
    switches[0].start()
    address, port = switches[0].address, switches[0].port
    listener = socket.create_server(("127.0.0.1", 0))
    host, meeting = listener.getsockname()[:2]
    listener.close()
    ranks = 2

    def job(rank: int) -> tuple[list[bool], int, str]:
        rendezvous = TcpRendezvous(rank, ranks, host, meeting, timeout=PATIENCE_S)
        with Communicator(rendezvous, timeout=PATIENCE_S) as comm:
            sums = opened(comm, f"{address},least=1KB,pool=4", TOKEN)
            assert sums is not None
            through = []
            for i in range(20):
                comm.barrier(f"round {i}")
                if rank == 0 and i == 3:
                    switches[0].close()
                    del switches[0]._core  # closes its port
                if rank == 0 and i == 8:
                    switches.append(Switch(port=port, token=TOKEN))
                    switches[1].start()
                comm.barrier(f"begin {i}")
                data = np.full(4000, i + rank, np.int32)
                before = sums.sums
                if sums.serves(data.nbytes, "int32", "sum"):
                    at = data.ctypes.data
                    sums.run_at(at, at, data.size, "int32", "sum", lambda: None)
                through.append(sums.sums > before)
                assert not through[-1] or (data == 2 * i + 1).all()
            sums.close()
            return through, sums.sums, sums.ended

    answers = together(ranks, job)
    # Round 3 fails. The ranks look for the switch in round 5, in vain, and find it in round 9.
    expected = [True] * 3 + [False] * 6 + [True] * 11
    assert [answer[0] for answer in answers] == [expected] * ranks, answers
    assert all(answer[2] == "" for answer in answers)
    switches[1].close()


def test_places_are_checked() -> None:
    for text, word in (
        ("host", "no IPv4 address"),
        ("127.0.0.1:70000", "HOST:PORT"),
        ("127.0.0.1:1,mtu", "expected mtu=, pool= or least="),
        ("127.0.0.1:1,pool=x", "pool=x"),
    ):
        with pytest.raises(ValueError, match=word):
            Place.parse(text.replace("host", "no-such-host.invalid"))


# The command.


@pytest.mark.slow
def test_the_command_serves_until_it_is_ended() -> None:
    command = [sys.executable, "-m", "tacos", "switch", "--port", "0", "--metrics", "0", "--json"]
    environment = os.environ | {"TACOS_SWITCH_TOKEN": TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            facts = json.loads(process.stdout.readline())
            assert "token" not in facts  # it was given
            with worker_of(facts["address"], 0, 1) as mine:
                assert mine.all_reduce(np.ones(10, np.int32)).sum() == 10
            page = f"http://127.0.0.1:{facts['metrics']}/metrics"
            with urllib.request.urlopen(page, timeout=PATIENCE_S) as answer:
                assert b"tacos_switch_contributions_total 2" in answer.read()
            process.send_signal(signal.SIGINT)
            assert json.loads(process.stdout.read())["contributions"] == 2
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


def test_the_command_says_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TACOS_SWITCH_TOKEN", raising=False)
    for words, word in (
        (["stats", "127.0.0.1:1"], "the switch's token is missing"),
        (["--prometheus"], "--prometheus"),
        (["stats"], "ADDRESS is missing"),
        (["--metrics", "70000"], "--metrics must be a port"),
        (["--members", "a-b", "--parent", "127.0.0.1:9"], "--members must be numbers"),
        (["--members", "0-3"], "go together"),
        (["--loss", "2"], "loss must be"),
        (["--port", "-1"], "port must be 0"),
        (["--host", "192.0.2.1", "--port", "0"], "cannot listen at 192.0.2.1"),
    ):
        assert main(["switch", *words]) == 2
        assert word in capsys.readouterr().err


def test_the_command_prints_counters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TACOS_SWITCH_TOKEN", TOKEN)
    with Switch(token=TOKEN) as switch:
        with worker_of(switch.address, 0, 1) as mine:
            mine.all_reduce(np.ones(10, np.int32))
        assert main(["switch", "stats", switch.address]) == 0
        assert "contributions" in capsys.readouterr().out
        assert main(["switch", "stats", switch.address, "--prometheus"]) == 0
        assert "# TYPE tacos_switch_packets_total counter" in capsys.readouterr().out
        assert main(["switch", "stats", switch.address, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["results"] == 2
