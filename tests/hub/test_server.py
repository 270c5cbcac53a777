"""The optimizer service on loopback: workers, faults, tenants, checkpoints, control."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from benchmarks.hub import crossing
from tacos.cli import main
from tacos.errors import CommunicationError, FormatError
from tacos.hub import Control, Job, Relay, Server, Tenant, Tenants, connect, optimizer
from tacos.hub import checkpoint as checkpoints
from tests.support import hub_frames as wire
from tests.support.conditions import PATIENCE_S, until
from tests.support.ranks import free_port

KEYS = {"embedding": 20_000, "bias": 7}


def job_of(name="job", rule="sgd", workers=1, **more):
    settings = more.pop("settings", {"lr": 0.1})
    return Job(name, KEYS, rule, [optimizer(rule, **settings)], workers=workers, **more)


def silent(_):
    pass


@pytest.fixture(scope="module")
def server():
    with Server(cores=2, log=silent) as running:
        yield running


def initial():
    rng = np.random.default_rng(3)
    return {key: rng.standard_normal(size).astype(np.float32) for key, size in KEYS.items()}


def gradient(rank, step, key):
    rng = np.random.default_rng([rank, step, KEYS[key]])
    return rng.standard_normal(KEYS[key]).astype(np.float32)


def begin(worker):
    """The first worker sets the weights; a pull of the others waits until they are set."""
    for key, values in initial().items():
        if worker.initialize:
            worker.put(key, values)
        else:
            worker.wait(worker.pull(key, values))


def take_step(worker, step, weights):
    stamps = [worker.push_pull(key, gradient(worker.rank, step, key), weights[key]) for key in KEYS]
    worker.wait(*stamps)


def buffers():
    return {key: np.empty(size, np.float32) for key, size in KEYS.items()}


def run_workers(count, work):
    """Run work(rank) in threads; return results or exceptions by rank."""
    results: list = [None] * count

    def run(rank):
        try:
            results[rank] = work(rank)
        except Exception as error:  # noqa: BLE001, tests look at it
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    return results


def expected_sgd(workers, steps, lr=0.1):
    """In float32, in the order of ranks."""
    weights = initial()
    for step in range(steps):
        for key in KEYS:
            total = gradient(0, step, key)
            for rank in range(1, workers):
                total = total + gradient(rank, step, key)
            weights[key] = weights[key] - np.float32(lr) * (total / np.float32(workers))
    return weights


@pytest.mark.parametrize("share", [True, False])
def test_workers_train_over_sockets_and_shared_memory(server, share):
    job = job_of(f"plain-{share}", workers=3, deterministic=True)

    def work(rank):
        with connect(job, server.address, rank=rank, share=share) as worker:
            assert worker.shares == share
            begin(worker)
            weights = buffers()
            for step in range(4):
                take_step(worker, step, weights)
            worker.meet("end")
            return weights

    for weights in run_workers(3, work):
        for key, values in expected_sgd(3, 4).items():
            np.testing.assert_allclose(weights[key], values, rtol=1e-5, atol=1e-6)


def test_push_pull_and_wait_have_timestamps(server):
    """As in ps-lite: a push is complete when its step is, and a later pull sees its effect."""
    with connect(job_of("stamps"), server.address) as worker:
        begin(worker)
        weights = buffers()
        first = worker.push("bias", gradient(0, 0, "bias"))
        second = worker.push("embedding", gradient(0, 0, "embedding"))
        assert second > first
        worker.wait(second)
        worker.wait(first)
        worker.wait(first)  # again: it stays complete
        worker.wait(worker.pull("bias", weights["bias"]))
        np.testing.assert_allclose(weights["bias"], expected_sgd(1, 1)["bias"], rtol=1e-5)
        with pytest.raises(ValueError, match="no parameter 'none'"):
            worker.push("none", weights["bias"])
        with pytest.raises(ValueError, match="with 7 elements; got 3"):
            worker.push("bias", np.zeros(3, np.float32))
        with pytest.raises(TypeError, match="array of float32; got float64"):
            worker.push("bias", np.zeros(7))


def test_a_worker_that_dies_is_named_to_the_others(server):
    job = job_of("dies", workers=2, timeout_s=PATIENCE_S)

    def work(rank):
        worker = connect(job, server.address, rank=rank, name=f"node{rank}")
        begin(worker)
        worker.meet("begun")
        if rank == 1:
            worker.close()  # without leaving
            return None
        with pytest.raises(CommunicationError) as caught:
            take_step(worker, 0, buffers())
        worker.close()
        return str(caught.value)

    assert "worker 'node1' (rank 1) is lost" in run_workers(2, work)[0]
    state = Control(server.address).ask("GET", "/sessions/dies")
    assert "node1" in state["failure"]
    # The next attempt begins anew: nothing of the failed one is left.
    with connect(job_of("dies", timeout_s=PATIENCE_S), server.address) as worker:
        assert worker.step == 0


def test_an_elastic_job_goes_on_and_takes_newcomers(server):
    job = job_of("elastic", workers=2, elastic=True)

    def work(rank):
        worker = connect(job, server.address, rank=rank, name=f"e{rank}")
        begin(worker)
        weights = buffers()
        take_step(worker, 0, weights)
        worker.meet("one step")
        if rank == 1:
            worker.close()
            return None
        take_step(worker, 1, weights)
        return worker, weights

    worker, weights = run_workers(2, work)[0]
    control = Control(server.address)
    lost = until(lambda: control.ask("GET", "/sessions/elastic")["lost"], "a worker is lost")
    assert lost[0]["name"] == "e1"
    with connect(job, server.address, rank=5) as late:
        assert late.step == 2
        theirs = buffers()
        for key in KEYS:
            late.wait(late.pull(key, theirs[key]))
            np.testing.assert_array_equal(theirs[key], weights[key])
        stamps = [worker.push_pull(key, gradient(0, 2, key), weights[key]) for key in KEYS]
        take_step(late, 2, theirs)
        worker.wait(*stamps)
        np.testing.assert_array_equal(theirs["bias"], weights["bias"])
    take_step(worker, 3, weights)  # alone again
    worker.leave()


def test_workers_that_come_after_all_have_left_begin_together_again(server):
    job = job_of("again", workers=2)

    def work(rank):
        with connect(job, server.address, rank=rank) as worker:
            begin(worker)
            take_step(worker, worker.step, buffers())
            worker.meet(f"after {worker.step}")
            return worker.step

    assert run_workers(2, work) == [0, 0]
    assert run_workers(2, work) == [1, 1]


def test_workers_that_do_not_come_are_counted(server):
    with pytest.raises(CommunicationError, match=r"waits for 3 workers; 2 of them did not\s+come"):
        connect(job_of("lonely", workers=3, timeout_s=0.2), server.address)
    with pytest.raises(CommunicationError, match="other parameters or settings"):
        connect(job_of("lonely", workers=3, timeout_s=PATIENCE_S), server.address)


@pytest.mark.parametrize("mode", ["stale", "async"])
def test_workers_need_not_wait_for_each_other(server, mode):
    more = {"staleness": 3} if mode == "stale" else {}
    job = job_of(f"loose-{mode}", workers=3, mode=mode, **more)

    def work(rank):
        with connect(job, server.address, rank=rank) as worker:
            begin(worker)
            worker.meet("begin")
            weights = buffers()
            for step in range(5):
                take_step(worker, step, weights)
            worker.meet("end")
            for key in KEYS:
                worker.wait(worker.pull(key, weights[key]))
            worker.meet("after")
            return weights

    expected = initial()
    for key in KEYS:
        moved = sum(gradient(rank, step, key) for rank in range(3) for step in range(5))
        expected[key] = expected[key] - 0.1 * moved
    for weights in run_workers(3, work):
        for key in KEYS:
            np.testing.assert_allclose(weights[key], expected[key], rtol=1e-3, atol=1e-4)


# --- tenants


@pytest.fixture
def guarded():
    tenants = Tenants(
        [
            Tenant("alice", "alice-has-a-token", memory_bytes=1_000_000),
            Tenant("bob", "bob-has-a-token-too"),
        ]
    )
    with Server(cores=1, tenants=tenants, log=silent) as running:
        yield running


def test_tenants_do_not_see_each_other(guarded):
    alice = {"token": "alice-has-a-token"}
    with connect(job_of("secret"), guarded.address, **alice) as worker:
        begin(worker)
        assert Control(guarded.address, **alice).ask("GET", "/sessions") == {"sessions": ["secret"]}
        bob = Control(guarded.address, token="bob-has-a-token-too")
        assert bob.ask("GET", "/sessions") == {"sessions": []}
        assert bob.ask("GET", "/metrics")["sessions"] == {}
        with pytest.raises(CommunicationError, match="no session 'secret'"):
            bob.ask("DELETE", "/sessions/secret")
        for token in ("", "wrong", "alice-has-a-toke"):
            with pytest.raises(CommunicationError, match="token is missing or wrong"):
                Control(guarded.address, token=token).ask("GET", "/sessions")
        assert Control(guarded.address, token="").ask("GET", "/health")["status"] == "ok"
        take_step(worker, 0, buffers())


def test_memory_has_a_quota(guarded):
    big = Job("big", {"w": 200_000}, "adam", [optimizer("adam")])
    with pytest.raises(CommunicationError, match=r"needs 3,600,000 bytes; alice has 1,000,000"):
        connect(big, guarded.address, token="alice-has-a-token")
    connect(big, guarded.address, token="bob-has-a-token-too").leave()


@pytest.mark.slow
def test_bandwidth_has_a_quota():
    """800 KB at 400 KB/s, of which 0.1 s is free: more than a second."""
    tenants = Tenants([Tenant("slow", "slow-has-a-token!", rate_Bps=400_000)])
    with Server(cores=1, tenants=tenants, log=silent) as running:
        job = Job("slow", {"w": 100_000}, "sgd", [optimizer("sgd")])
        worker = connect(job, running.address, token="slow-has-a-token!", share=False)
        values = np.zeros(100_000, np.float32)
        worker.put("w", values)
        begun = time.monotonic()
        worker.wait(worker.push_pull("w", values, values))
        assert time.monotonic() - begun > 0.5
        worker.leave()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": -1, "cores": 2}, r"^port must be 0 \(any free ones\) to 65533; got -1$"),
        ({"port": 65534, "cores": 2}, r"^port must be 0 \(any free ones\) to 65533; got 65534$"),
        ({"cores": 0}, r"^cores must be a positive number; got 0$"),
    ],
)
def test_ports_and_cores_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        Server(**options)


def test_other_machines_need_tokens():
    with pytest.raises(ValueError, match="can be reached by other machines"):
        Server("0.0.0.0")
    with pytest.raises(ValueError, match="can be reached by other machines"):
        Server(addresses=["127.0.0.1", "192.0.2.1"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("alice: short", "token of alice must have at least 16"),
        ("alice: {token: 0123456789abcdef, memroy: 1GB}", "unknown field 'memroy'"),
        ("alice: {token: 0123456789abcdef, memory: 1XB}", "alice: memory"),
        ("- 3", "expected a mapping"),
        ("a: [", "while parsing"),
    ],
)
def test_a_wrong_file_of_tenants_is_told(tmp_path, text, sentence):
    path = tmp_path / "tenants.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=sentence):
        Tenants.load(path)


# --- hostile clients


def test_hostile_sockets_do_not_stop_a_job(server):
    """Silence, garbage, half a frame and an HTTP request on the ports of the cores, while a job trains."""
    job = job_of("undisturbed", workers=1)
    strangers = []
    with connect(job, server.address, share=False) as worker:
        begin(worker)
        weights = buffers()
        for port in server.ports:
            for data in (
                b"",
                os.urandom(300),
                wire.frame(wire.PUSH, bytes(64))[:40],
                b"GET / HTTP/1.1\r\n\r\n",
            ):
                stranger = socket.create_connection(("127.0.0.1", port))
                stranger.sendall(data)
                strangers.append(stranger)
        for step in range(3):
            take_step(worker, step, weights)
        np.testing.assert_allclose(weights["bias"], expected_sgd(1, 3)["bias"], rtol=1e-4)
        strangers[1].settimeout(PATIENCE_S)
        (row,), _ = wire.frames(strangers[1].recv(4096))
        assert b"malformed frame" in row[5]
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (("GET", "/nothing", None), "there is no GET /nothing"),
        (("POST", "/sessions", {"name": "x"}), "wrong session"),
        (("POST", "/sessions", [1]), "must be a JSON object"),
        (("POST", "/sessions", {"name": "../x", "keys": {"w": 1}, "optimizer": "sgd", "groups": [{}]}), "session name"),
        (("POST", "/sessions", {"name": "x", "keys": {"w": -1}, "optimizer": "sgd", "groups": [{}]}), "size of parameter 'w'"),
        (("POST", "/sessions", {"name": "x", "keys": {"w": 1}, "optimizer": "sgd", "groups": [{"lr": -1}]}), "lr must be"),
        (("POST", "/sessions/none/workers", {}), "no session 'none'"),
        (("POST", "/sessions/none/checkpoint", None), "no directory for checkpoints"),
    ],
)  # fmt: skip
def test_wrong_requests_are_answered_in_words(server, request_, sentence):
    with pytest.raises(CommunicationError, match=sentence):
        Control(server.address).ask(*request_)


def test_http_that_is_not_json_is_refused(server):
    host, port = server.address.removeprefix("http://").split(":")
    for body, sentence in ((b"{", b"not JSON"), (b"[" * 100_000, b"not JSON")):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(b"POST /sessions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            raw.settimeout(PATIENCE_S)
            answer = b""
            while sentence not in answer:
                part = raw.recv(4096)
                assert part, answer
                answer += part


# --- checkpoints


def test_a_checkpoint_is_complete_or_refused(tmp_path):
    with (
        Server(cores=1, checkpoints=tmp_path, log=silent) as running,
        connect(job_of("kept", "adamw"), running.address) as worker,
    ):
        begin(worker)
        weights = buffers()
        take_step(worker, 0, weights)
        answer = Control(running.address).ask("POST", "/sessions/kept/checkpoint")
        assert answer["step"] == 1
        take_step(worker, 1, weights)
    path = tmp_path / "default.kept.hub"
    _, snapshot = checkpoints.load(path)
    assert snapshot.version == 2  # written when the service ended
    damaged = bytearray(path.read_bytes())
    damaged[-100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(FormatError, match="checksum is wrong"):
        checkpoints.load(path)
    with Server(cores=3, checkpoints=tmp_path, log=silent) as running:
        with pytest.raises(CommunicationError, match="checksum is wrong"):
            connect(job_of("kept", "adamw"), running.address)
        damaged[-100] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CommunicationError, match="other parameters or another"):
            connect(job_of("kept", "sgd"), running.address)
        with connect(job_of("kept", "adamw"), running.address) as worker:  # on more cores
            assert worker.step == 2
            assert not worker.initialize
            again = buffers()
            worker.wait(worker.pull("embedding", again["embedding"]))
            np.testing.assert_array_equal(again["embedding"], weights["embedding"])
            assert worker.updates("bias") == 2


def start_hub(folder, port):
    command = [sys.executable, "-m", "tacos", "hub", "--port", str(port), "--cores", "1"]
    command += ["--checkpoints", str(folder), "--every", "2"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert "hub at http://127.0.0.1" in running.stdout.readline()
    return running


@pytest.mark.slow
def test_training_resumes_after_sigkill_to_the_same_weights(tmp_path):
    """The hub is killed in the middle of training; the workers go on from the last checkpoint."""
    port = free_port()
    job = job_of("resumed", "adam", settings={"lr": 0.01})
    address = f"127.0.0.1:{port}"
    curves: dict[int, list[np.ndarray]] = {}

    def written(version):
        path = tmp_path / "default.resumed.hub"
        until(
            lambda: path.exists() and checkpoints.load(path)[1].version >= version,
            f"version {version} is written",
        )

    def train(until, first=None):
        with connect(job, address) as worker:
            begin(worker)
            weights = buffers()
            assert first is None or worker.step == first
            for step in range(worker.step, until):
                take_step(worker, step, weights)
                curves.setdefault(step, []).append(weights["bias"].copy())
                if step in (1, 3):
                    written(step + 1)

    running = start_hub(tmp_path, port)
    try:
        train(5)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
        running.stdout.close()
    running = start_hub(tmp_path, port)
    try:
        train(8, first=4)
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0
        running.stdout.close()
    assert [len(curves[step]) for step in range(8)] == [1, 1, 1, 1, 2, 1, 1, 1]
    np.testing.assert_array_equal(curves[4][0], curves[4][1])
    assert checkpoints.load(tmp_path / "default.resumed.hub")[1].version == 8  # at SIGTERM


# --- racks


def test_hubs_of_two_racks_train_as_one():
    """Two hubs with one and two workers: the mean over all three."""
    meeting = f"127.0.0.1:{free_port()}"
    hubs = [
        Server(cores=2, relay=Relay(rank, 2, meeting, timeout=PATIENCE_S), log=silent)
        for rank in range(2)
    ]
    places = [0, 1, 1]

    def work(rank):
        job = job_of("racks", workers=places.count(places[rank]), deterministic=True)
        with connect(job, hubs[places[rank]].address, rank=rank) as worker:
            begin(worker)
            weights = buffers()
            for step in range(3):
                take_step(worker, step, weights)
            worker.meet("end")
            return weights

    try:
        found = run_workers(3, work)
    finally:
        for each in hubs:
            each.close()
    for weights in found:
        for key, values in expected_sgd(3, 3).items():
            np.testing.assert_allclose(weights[key], values, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(weights["embedding"], found[0]["embedding"])


def test_two_levels_cut_what_crosses_racks_by_the_workers_per_rack():
    """Bytes counted on sockets, per step and both ways. M = 1 MiB, 2 racks of 3.

    Sharded over the racks, each of 6 workers exchanges half of M with the other rack: 6 * M/2 * 2 = 6 M. Two hubs that
    all-reduce send M each, whatever their workers: 2 M. Frames of 32 bytes per 32 KB come on top.
    """
    elements = 1 << 18
    m = 4 * elements
    flat, two = (crossing(levels, 2, 3, elements, steps=2) for levels in (1, 2))
    assert 6 * m < flat < 6.02 * m
    assert 2 * m < two < 2.1 * m


# --- TLS and the command


@pytest.mark.slow
def test_the_control_plane_speaks_tls(tmp_path):
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no openssl")
    tls = tmp_path / "cert.pem", tmp_path / "key.pem"
    with Server(cores=1, tls=tls, log=silent) as running:
        assert running.address.startswith("https://")
        with connect(job_of("tls"), running.address, ca=tls[0]) as worker:
            begin(worker)
            take_step(worker, 0, buffers())
        with pytest.raises(CommunicationError, match="does not answer"):
            Control(running.address).ask("GET", "/health")  # not trusted
    with pytest.raises(FormatError, match="not a certificate"):
        Server(tls=(tls[1], tls[1]))


def test_the_command_refuses_what_cannot_work(capsys, tmp_path):
    for words, sentence in [
        (["--host", "0.0.0.0"], "give tenants with tokens"),
        (["--rack", "0/2"], "--rack and --meet are needed together"),
        (["--rack", "2", "--meet", "127.0.0.1:1"], "--rack must be like 0/4"),
        (["--rack", "2/2", "--meet", "127.0.0.1:1"], "rack must be 0 to 1"),
        (["--certificate", "x"], "--certificate and --key"),
        (["--checkpoints", str(tmp_path / "none")], "there is no directory"),
        (["--tenants", str(tmp_path / "none")], "none: No such file or directory"),
        (["--every", "-1"], "--every must be at least 0; got -1"),
        (["--every", "5"], "--every 5 needs --checkpoints DIRECTORY"),
    ]:
        assert main(["hub", *words]) == 2
        assert sentence in capsys.readouterr().err


def test_plain_http_shows_health_and_metrics(server):
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        raw.settimeout(PATIENCE_S)
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert {"frames", "bytes_in", "bytes_out", "updates", "errors", "sessions"} <= body.keys()
