"""Ranks that die, hang or disagree: all ranks soon get an error, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import numpy as np
import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.runtime import CommunicationError, TcpRendezvous, connect, from_environment, launch
from tests.support.conditions import PATIENCE_S, ended, until
from tests.support.programs import INPUT, OUTPUT, made
from tests.support.rank_jobs import FAR_S, TIMEOUT_S
from tests.support.ranks import Ranks, free_port


def ring(npus, kind="all_reduce", chunks=1):
    network = tp.ring(npus)
    return tacos.synthesize(network, co.named(kind, network, "1MB", chunks=chunks))


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4, TACOS_HOST="127.0.0.1") as started:  # over TCP
        yield started


# --- ranks that die or hang -------------------------------------------------------------------------


def test_a_killed_rank_is_named_by_all_others():
    """The rank is killed between two calls, and in the middle of one."""
    killed = r"(rank {0} closed its connection|the connection with rank {0} broke).*, call \d"
    with Ranks(5) as own:
        own.start(5, "stop_one", ring(5), 4, signal.SIGKILL, fresh=FAR_S)
        for first, second in own.collect([0, 1, 2, 3]):
            assert first[0] == "CommunicationError"
            assert re.match(killed.format(4), first[1])
            assert second == first  # a failed communicator stays so
        own.start(4, "stop_within", ring(4), 2, signal.SIGKILL, fresh=FAR_S)
        for kind, said in own.collect([0, 1, 3]):
            assert kind == "CommunicationError"
            assert re.match(killed.format(2), said)
    until(lambda: all(map(ended, own.pids)), "all ranks have ended")


@pytest.mark.parametrize(
    ("job", "timeout"),
    [("stop_one", TIMEOUT_S), pytest.param("stop_within", 3 * TIMEOUT_S, marks=pytest.mark.slow)],
)
def test_a_hung_rank_is_named_by_all_others(ranks, job, timeout):
    """Every rank waits for another, but only one does not answer."""
    ranks.start(4, job, ring(4), 1, signal.SIGSTOP, fresh=timeout)
    waited = []
    try:
        for answer in ranks.collect([0, 2, 3]):
            kind, said = answer[0] if job == "stop_one" else answer
            assert kind == "CommunicationError"
            told = re.match(
                r"rank 1 did not answer for (\d+) s in all-reduce: rank \d, thread \d, step \d",
                said,
            )
            assert told is not None
            waited.append(int(told[1]))
        assert job == "stop_one" or timeout <= min(waited) < 2 * timeout
    finally:
        os.kill(ranks.pids[1], signal.SIGCONT)
    ranks.collect([1])


@pytest.mark.slow
def test_ranks_say_at_growing_intervals_for_whom_they_wait(monkeypatch, caplog):
    """Rank 0 waits for rank 1, which is late; rank 2 waits for rank 0, which is there."""
    monkeypatch.setattr("tacos.runtime.carriers.tcp._REPORT_S", 1.1)
    port, algorithm = free_port(), ring(3)

    def reports():
        return [message for message in caplog.messages if "still waiting" in message]

    def act(rank):
        meeting = TcpRendezvous(rank, 3, "127.0.0.1", port, timeout=FAR_S)
        with connect(meeting, timeout=FAR_S) as comm:
            prepared = comm.prepare(algorithm)
            if rank == 1:
                until(lambda: len(reports()) >= 3, "the others have reported, one of them twice")
            return prepared.run(np.ones(3)).tolist()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(act, range(3))) == [[3.0] * 3] * 3
    said = [
        re.fullmatch(r"still waiting for rank 1 in all-reduce, (\d+) s", one) for one in reports()
    ]
    assert None not in said
    seconds = [int(one[1]) for one in said if one]
    # A rank that has reported after 1.1 s waits at least until 2.2 s.
    assert all(sum(s < round(1.1 * 2**k) for s in seconds) <= 2 * k for k in range(1, 8))


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named(ranks, tmp_path):
    ranks.start(4, "stay_away", ring(4), 3, str(tmp_path), fresh=TIMEOUT_S)
    heard = ranks.collect(range(4))
    assert {kind for kind, _ in heard} == {"CommunicationError"}
    assert {text for _, text in heard[:3]} == {text for _, text in heard}
    assert heard[0][1].startswith("rank 3 did not answer for")


def test_a_rank_whose_own_code_fails_tells_why(ranks):
    heard = ranks.run(4, "fail_with", ring(4), 1, fresh=PATIENCE_S)
    assert heard[1] == ("ValueError", "the data are bad")
    for rank in (0, 2, 3):
        assert heard[rank] == ("CommunicationError", "rank 1 failed: ValueError: the data are bad")


def test_a_rank_that_left_is_missed_at_once(ranks, tmp_path):
    """The error does not wait for the timeout."""
    network = tp.fully_connected(3)
    pair = tacos.synthesize(network, co.all_reduce(network, "1MB", group=[0, 1], chunks=1))
    heard = ranks.run(3, "leave_early", ring(3), pair, 2, str(tmp_path), fresh=FAR_S)
    assert heard[2] == ("CommunicationError", "the communicator is closed")
    for kind, said in heard[:2]:
        assert kind == "CommunicationError"
        assert re.match("rank 2 closed its connection|the connection with rank 2 broke", said)


def test_a_rank_may_leave_once_it_has_all_that_has_bytes():
    """Three elements for four ranks: rank 3 gets nothing, and leaves before rank 2 has begun to scatter through rank 1."""
    links = [(a, b, "1GB/s", "1us") for a, b in ((2, 1), (1, 2), (1, 0), (0, 1), (1, 3), (3, 1))]
    star = tp.from_links(4, links)
    schedule = tacos.synthesize(star, co.scatter(star, "1MB", chunks=1, root=2), engine="greedy")
    port, left = free_port(), threading.Event()

    def act(rank):
        meeting = TcpRendezvous(rank, 4, "127.0.0.1", port, timeout=PATIENCE_S, token="x")
        with connect(meeting, timeout=PATIENCE_S) as communicator:
            algorithm = communicator.prepare(schedule)
            communicator.barrier("prepared")
            if rank == 2:
                assert left.wait(PATIENCE_S)
            given = np.arange(3.0 if rank == 2 else 0.0)
            result = np.zeros(algorithm.buffer_elements(3)[1])
            algorithm.run_at(given.ctypes.data, result.ctypes.data, 3, "float64", "sum")
        if rank == 3:
            left.set()
        return result.tolist()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(act, range(4))) == [[0.0], [1.0], [2.0], []]


def test_a_forked_child_leaves_the_connections_alone(ranks):
    heard = ranks.run(3, "fork_before_a_call", ring(3), fresh=PATIENCE_S)
    assert [result for result, _, _ in heard] == [[3.0, 3.0]] * 3
    assert heard[0][1] == "CommunicationError"
    assert re.match(r"the communicator is that of process \d+, which this", heard[0][2])


def test_a_rank_that_has_put_its_data_may_leave(ranks, tmp_path):
    """Rank 1 acknowledges each put, but its peer is gone."""
    puts = [("put", INPUT, i, OUTPUT, i, None, None, 1) for i in range(4)]
    copies = [("copy", INPUT, i, OUTPUT, i) for i in range(4)]
    program = made(
        co.broadcast(2, "4B", chunks=4, root=0),
        [
            (0, -1, -1, [*copies, *puts, ("signal", None, None, None, None, None, None, 1)]),
            (1, -1, -1, [("wait", None, None, None, None, 8, None, 0)]),
        ],
    )
    assert ranks.run(2, "put_and_leave", program, str(tmp_path), fresh=PATIENCE_S) == [True, True]


# --- ranks that disagree ----------------------------------------------------------------------------


def test_different_algorithms_are_refused_on_all_ranks(ranks):
    schedules = [ring(4), ring(4), ring(4, chunks=2), ring(4)]
    message = "the ranks do not have the same algorithm for all-reduce: that of rank 2 is not that of rank 0"
    heard = ranks.run(4, "prepare_each", schedules, fresh=PATIENCE_S)
    assert heard == [("ValueError", message)] * 4
    schedules[2] = ring(4, "all_gather")
    message = "the ranks do not agree: rank 2 prepares all-gather, rank 0 prepares all-reduce"
    heard = ranks.run(4, "prepare_each", schedules, fresh=PATIENCE_S)
    assert heard == [("ValueError", message)] * 4


def test_an_algorithm_for_another_number_of_ranks_is_refused_on_all_ranks(ranks):
    schedules = [ring(4), ring(8), ring(4), ring(4)]
    heard = ranks.run(4, "prepare_each", schedules, fresh=PATIENCE_S)
    message = "the algorithm is for 8 ranks, the communicator has 4"
    assert heard[1] == ("ValueError", message)
    assert {heard[rank] for rank in (0, 2, 3)} == {("ValueError", f"rank 1: {message}")}


def test_a_wrong_program_is_refused_on_all_ranks(ranks):
    wrong = made(
        co.all_gather(2, "2B", chunks=1),
        [
            (0, -1, -1, [("copy", INPUT, 0, OUTPUT, 0)]),
            (1, -1, -1, [("copy", INPUT, 0, OUTPUT, 1)]),
        ],
    )
    heard = ranks.run(2, "prepare_each", [wrong, wrong], fresh=PATIENCE_S)
    assert heard[0] == heard[1]
    assert heard[0][0] == "VerificationError"
    assert heard[0][1].startswith("the program is wrong: output slot 1 of rank 0")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ((41, "float32", "sum"), "runs all-reduce of 41 elements of float32 (sum)"),
        ((40, "int32", "sum"), "runs all-reduce of 40 elements of int32 (sum)"),
        ((40, "float32", "max"), "runs all-reduce of 40 elements of float32 (max)"),
    ],
)
def test_different_calls_are_refused_on_all_ranks(ranks, call, text):
    usual = (40, "float32", "sum")
    heard = ranks.run(4, "call_each", ring(4), [usual, usual, call, usual], fresh=PATIENCE_S)
    assert {kind for kind, _ in heard} == {"CommunicationError"}
    for _, said in heard:
        assert said.startswith("the ranks do not agree on call 2: rank ")
        assert f"rank 2 {text}" in said


def test_calls_of_different_algorithms_are_refused_on_all_ranks(ranks):
    schedules = [ring(4), ring(4, chunks=2)]
    heard = ranks.run(4, "run_each", schedules, [0, 1, 0, 0], fresh=PATIENCE_S)
    assert {kind for kind, _ in heard} == {"CommunicationError"}
    assert all(
        re.match(
            r"the ranks do not agree on call 1: rank \d runs all-reduce of \d+ elements of float\d\d \(sum\) by "
            r"algorithm \d, rank \d runs all-reduce",
            h[1],
        )
        for h in heard
    )


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_a_rank_that_prepares_while_others_call_is_told_at_once(ranks, kind):
    """In an all-reduce it gets data from the others; as the root of a broadcast it is only waited for."""
    network = tp.ring(4)
    root = {"root": 1} if kind == "broadcast" else {}
    first = tacos.synthesize(network, co.named(kind, network, "1MB", chunks=1, **root))
    heard = ranks.run(4, "prepare_instead", first, ring(4, "all_gather"), 1, fresh=FAR_S)
    assert {kind for kind, _ in heard} == {"CommunicationError"}
    for _, said in heard:
        assert re.match(
            r"the ranks do not agree on call 2: rank \d runs (all-reduce|broadcast from rank 1) of 1000 elements of "
            r"float32 \(sum\), rank 1 prepares all-gather",
            said,
        )


@pytest.mark.slow
def test_a_rank_that_leaves_while_others_wait_for_it_is_named_at_once(ranks, tmp_path):
    heard = ranks.run(3, "meet_instead", ring(3), 2, str(tmp_path), fresh=FAR_S)
    for kind, said in heard[:2]:
        assert kind == "CommunicationError"
        assert said.startswith("rank 2 closed its connection: rank ")
        assert said.endswith("waits at barrier after")


@pytest.mark.parametrize("how", ["close", "abort", "signal"])
def test_a_communicator_can_be_ended_within_a_call(ranks, how, tmp_path):
    """From another thread, or by a signal handler; no rank waits for the timeout."""
    heard = ranks.run(2, "close_within", ring(2), how, str(tmp_path), fresh=FAR_S)
    why = "rank 0 gave up: enough" if how == "abort" else "the communicator is closed"
    assert heard == [("CommunicationError", why)] * 2


@pytest.mark.parametrize(
    ("source", "target", "op", "count", "message"),
    [
        (np.ones(3, np.float32), np.ones(4, np.float32), "sum", 4, "source has 3 elements, this rank needs 4"),
        (np.ones(4, np.float32), np.ones(4, np.int32), "sum", None, "source is of float32, but target of int32"),
        (np.ones(4, np.complex64), None, "sum", None, 'dtype is "complex64"; it must be one of float16, bfloat16'),
        (np.ones(4, np.float32), None, "add", None, 'op is "add"; it must be one of sum, product, min'),
        ([1.0, 2.0], None, "sum", None, "source is a list; it must be an array"),
        (np.ones(4), None, "sum", -1, "count is -1; it must not be negative"),
        (None, None, "sum", 4, "source and target are both missing"),
        (None, np.ones(4), "sum", 4, "source is missing, this rank needs 4 elements of it"),
    ],
)  # fmt: skip
def test_calls_that_a_rank_refuses_itself_do_no_harm(ranks, source, target, op, count, message):
    for heard, after in ranks.run(2, "run_wrongly", ring(2), source, target, op, count):
        assert heard[0] == "ValueError"
        assert heard[1].startswith(message)
        assert after == [2.0] * 4


# --- meeting ----------------------------------------------------------------------------------------


def test_ranks_that_do_not_come_are_named():
    with pytest.raises(TimeoutError, match=r"ranks 1, 2 did not come to rank 0 within 0\.2 s"):
        TcpRendezvous(0, 3, "127.0.0.1", free_port(), timeout=0.2)
    with pytest.raises(
        TimeoutError, match=r"rank 0 did not answer at 127\.0\.0\.1:\d+ within 0\.2 s"
    ):
        TcpRendezvous(1, 3, "127.0.0.1", free_port(), timeout=0.2)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TACOS_RANK": "0"}, "TACOS_RENDEZVOUS is not set; it must be host:port"),
        ({"TACOS_RANK": "0", "TACOS_RENDEZVOUS": "here"}, "TACOS_RENDEZVOUS is 'here'; it must be"),
        ({"TACOS_RANK": "x", "TACOS_RENDEZVOUS": "h:1"}, "TACOS_RANK is 'x'; it must be a number"),
        ({"TACOS_RANK": "2", "TACOS_RENDEZVOUS": "h:1", "TACOS_WORLD_SIZE": "2"}, "rank is 2 of 2"),
    ],
)
def test_wrong_variables_are_named(variables, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        from_environment(variables)


def test_wrong_addresses_are_named(monkeypatch):
    monkeypatch.setenv("TACOS_ADDRESSES", '{"1": 5')
    with pytest.raises(ValueError, match=r"TACOS_ADDRESSES is .* it must be JSON such as"):
        connect(TcpRendezvous(0, 1, "", 0))


def test_arrays_must_be_contiguous():
    with connect(TcpRendezvous(0, 1, "", 0)) as comm:
        algorithm = comm.prepare(ring(1))
        with pytest.raises(ValueError, match="source is not contiguous in memory"):
            algorithm.run(np.ones((4, 4))[:, 0])


def test_a_closed_communicator_refuses_calls():
    comm = connect(TcpRendezvous(0, 1, "", 0))
    algorithm = comm.prepare(ring(1))
    comm.close()
    with pytest.raises(CommunicationError, match="the communicator is closed"):
        algorithm.run(np.ones(3))
    with pytest.raises(CommunicationError, match="the communicator is closed"):
        comm.prepare(ring(1))


# --- local ranks ------------------------------------------------------------------------------------


def script(text):
    return [sys.executable, "-c", text]


@pytest.fixture
def impatient(monkeypatch):
    """The remaining ranks have 0.1 s instead of seconds to report why they fail."""
    monkeypatch.setattr(import_module("tacos.runtime.launch"), "_GRACE_S", 0.1)


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_fails_ends_the_job():
    text = "import os, sys, time; os.environ['TACOS_RANK'] == '1' and sys.exit(7); time.sleep(1000)"
    with launch(script(text), 3) as job:
        assert job.wait(timeout=PATIENCE_S) == 7
    assert all(process.poll() is not None for process in job.processes)


@pytest.mark.usefixtures("impatient")
def test_the_code_of_a_killed_rank_is_that_of_shells():
    """As in `tacos lab`: 128 plus the number of the signal."""
    text = "import os, time; os.environ['TACOS_RANK'] == '1' and os.kill(os.getpid(), 9); time.sleep(1000)"
    with launch(script(text), 2) as job:
        assert job.wait(timeout=PATIENCE_S) == 128 + signal.SIGKILL


def test_a_job_can_have_a_time_limit():
    job = launch(script("import time; time.sleep(1000)"), 2)
    with job, pytest.raises(TimeoutError, match=r"ranks \[0, 1\] still run after 0\.5 s"):
        job.wait(timeout=0.5)
    assert all(process.poll() is not None for process in job.processes)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_ranks_do_not_outlive_who_started_them(number, tmp_path):
    rank = f"import os, time; open('{tmp_path}/' + os.environ['TACOS_RANK'], 'w').write(str(os.getpid())); time.sleep(300)"
    parent = f"""
import sys
from tacos.runtime import launch
with launch([sys.executable, "-c", {rank!r}], 3) as job:
    job.wait()
"""
    process = subprocess.Popen(script(parent), stderr=subprocess.DEVNULL)
    pids = [tmp_path / str(rank) for rank in range(3)]
    until(lambda: all(path.exists() and path.read_text() for path in pids), "all ranks run")
    process.send_signal(number)
    process.wait(timeout=PATIENCE_S)
    until(lambda: all(ended(int(path.read_text())) for path in pids), "all ranks have ended")


def test_ranks_outlive_the_thread_that_started_them(tmp_path):
    go = tmp_path / "go"
    text = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(launch, script(text), 2).result()
    go.touch()  # the thread has ended
    with job:
        assert job.wait(timeout=PATIENCE_S) == 0


def test_a_command_that_does_not_exist_is_named(capfd):
    with launch(["no-such-command"], 1) as job:
        assert job.wait() == 1
    assert "no-such-command: No such file or directory" in capfd.readouterr().err


def test_ranks_are_told_who_they_are(tmp_path):
    names = "TACOS_RANK TACOS_WORLD_SIZE TACOS_LOCAL_RANK"
    text = f"import os; e = os.environ; open('{tmp_path}/' + e['TACOS_RANK'], 'w').write(str([e[n] for n in {names.split()}]))"
    with launch(script(text), 3) as job:
        assert job.wait() == 0
    for rank in range(3):
        assert (tmp_path / str(rank)).read_text() == str([str(rank), "3", str(rank)])
    assert "TACOS_RANK" not in os.environ
