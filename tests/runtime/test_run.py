"""`tacos run`, and how ranks meet: the launchers' variables and the addresses of channels."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.runtime import (
    CommunicationError,
    Communicator,
    StoreRendezvous,
    TcpRendezvous,
    connect,
    in_job,
    measure,
    table,
)
from tacos.runtime.rendezvous.environment import _first_host, _slurm_step
from tests.support.conditions import PATIENCE_S
from tests.support.ranks import free_port

pytestmark = pytest.mark.unsanitized


def schedule(spec, kind="all_reduce", **options):
    network = tp.parse(spec)
    return tacos.synthesize(network, co.named(kind, network, "1MB", chunks=2, **options))


def together(count, act, rendezvous=None):
    """Run ranks as threads of this process; return what each of them returned."""
    port = free_port()
    meet = rendezvous or (
        lambda rank: TcpRendezvous(rank, count, "127.0.0.1", port, timeout=PATIENCE_S)
    )

    def rank(number):
        with Communicator(meet(number), timeout=PATIENCE_S) as comm:
            return act(comm)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(rank, range(count)))


# --- the command ------------------------------------------------------------------------------------


def test_the_command_runs_and_checks_an_algorithm(tmp_path, capfd):
    tacos.save(schedule("ring:2"), tmp_path / "ar.tacos")
    arguments = ["run", str(tmp_path / "ar.tacos"), "--size", "1KB:4KB", "--iters", "2"]
    assert main([*arguments, "--np", "2", "--against", "ring"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [len(line.split()) for line in lines if not line.startswith("#")] == [16] * 3
    sizes = [line.split()[:5] for line in lines if not line.startswith("#")]
    assert sizes[0] == ["1000", "250", "float", "sum", "-1"]
    assert "# Out of bounds values : 0 OK" in lines


def test_the_command_writes_json(tmp_path, capfd):
    tacos.save(schedule("ring:2", "broadcast", root=1), tmp_path / "b.tacos")
    arguments = [
        "run",
        str(tmp_path / "b.tacos"),
        "--size",
        "64B",
        "--dtype",
        "int8",
        "--iters",
        "1",
    ]
    assert main([*arguments, "--json", "--against", "none"]) == 0
    [row] = json.loads(capfd.readouterr().out)
    assert (row["count"], row["op"], row["root"], row["reference"]) == (64, "none", 1, None)
    assert row["out_of_place"]["wrong"] == row["in_place"]["wrong"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--np", "3"], "--np is 3, but ar.tacos is for 1 ranks"),
        (["--size", "big"], "size 'big' is not understood"),
        (["--dtype", "float99"], "dtype is 'float99'; it must be bfloat16 or a type of NumPy"),
        (["--dtype", "complex64", "--against", "none"], 'dtype is "complex64"; it must be one of float16'),
        (["--op", "plus"], "op is 'plus'; it must be one of sum, product"),
        (["--iters", "0"], "iters must be at least 1 and warmup at least 0; got 0 and 5"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(tmp_path, monkeypatch, capfd, options, message):
    monkeypatch.chdir(tmp_path)
    tacos.save(schedule("ring:1"), "ar.tacos")
    assert main(["run", "ar.tacos", *options]) == 2
    error = capfd.readouterr().err
    assert error.startswith("tacos: ")
    assert message in error
    assert error.count("\n") == 1


# --- the table --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                  "broadcast", "reduce", "gather", "scatter"])  # fmt: skip
def test_every_collective_is_measured_and_checked(kind):
    algorithm = schedule("fc:3", kind)
    rows = together(
        3, lambda comm: list(measure(comm, algorithm, [20, 4000], iters=1, against="ring"))
    )
    for row in rows[0]:
        assert row.out_of_place.wrong == 0
        assert row.in_place is None if kind == "all_to_all" else row.in_place.wrong == 0
    text = list(table(rows[0]))
    assert len(text) == 7
    assert len({len(row.split()) for row in text[3:5]}) == 1


@pytest.mark.parametrize("op", ["avg", "min", "max", "product", "bxor"])
def test_every_operation_is_checked(op):
    algorithm = schedule("ring:3")
    dtype = "int32" if op == "bxor" else "float16"
    rows = together(
        3,
        lambda comm: list(
            measure(comm, algorithm, [222], op=op, dtype=dtype, iters=1, against="none")
        ),
    )
    assert rows[0][0].out_of_place.wrong == rows[0][0].in_place.wrong == 0


def test_wrong_results_are_counted(monkeypatch):
    """The executor computes the maximum instead of the sum: all elements of all ranks are wrong."""
    from tacos.runtime.algorithm import Algorithm

    run_at = Algorithm.run_at

    def spoiled(self, source, target, count, dtype, op="sum"):
        run_at(self, source, target, count, dtype, "max")

    monkeypatch.setattr(Algorithm, "run_at", spoiled)
    algorithm = schedule("ring:2")
    rows = together(2, lambda comm: list(measure(comm, algorithm, [400], iters=1, against="none")))
    assert rows[0][0].out_of_place.wrong == rows[0][0].in_place.wrong == 200
    assert "# Out of bounds values : 400 FAILED" in list(table(rows[0]))


SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}

# --- meeting ----------------------------------------------------------------------------------------


class Store:
    """Like torch's store, but without wait(): on a timeout, torch would log two warnings."""

    def __init__(self):
        self.values: dict[str, bytes] = {}
        self.set, self.get = self.values.__setitem__, self.values.__getitem__

    def check(self, keys):
        return all(key in self.values for key in keys)


def summed(comm):
    return comm.prepare(schedule("ring:3")).run(np.full(5, comm.rank + 1.0)).tolist()


def test_ranks_can_meet_at_a_store():
    store = Store()
    assert together(3, summed, lambda rank: StoreRendezvous(store, rank, 3)) == [[6.0] * 5] * 3


def test_meetings_under_torchrun_share_a_store_whatever_their_timeouts(monkeypatch):
    """With two counters, ranks would read what the others exchanged in an earlier meeting."""
    opened, shared = [], Store()

    def rendezvous(_url, rank, size, *, timeout):
        opened.append((rank, timeout.total_seconds()))
        yield shared, rank, size

    library = SimpleNamespace(rendezvous=rendezvous)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=library))
    monkeypatch.setitem(sys.modules, "torch.distributed", library)
    monkeypatch.setattr("tacos.runtime.rendezvous.store._OPENED", {})

    def act(rank, value, timeout):
        return StoreRendezvous.of_torchrun(rank, 2, timeout=timeout).exchange("x", value)

    for number, timeout in enumerate((PATIENCE_S, 2 * PATIENCE_S, PATIENCE_S)):
        values = [bytes([number, rank]) for rank in range(2)]
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(act, range(2), values, [timeout] * 2)) == [values] * 2
    assert sorted(opened) == [(0, PATIENCE_S), (1, PATIENCE_S)]


def test_a_store_names_who_did_not_come():
    with pytest.raises(TimeoutError, match=r"rank 1 did not come to exchange 'x' within 0\.1 s"):
        StoreRendezvous(Store(), 0, 2, timeout=0.1).exchange("x", b"")


@pytest.mark.parametrize("where", ["port", "store"])
def test_ranks_that_exchange_different_things_are_named(where):
    port, store = free_port(), Store()

    def act(rank):
        meet = (
            StoreRendezvous(store, rank, 2, timeout=PATIENCE_S)
            if where == "store"
            else TcpRendezvous(rank, 2, "127.0.0.1", port, timeout=PATIENCE_S)
        )
        with pytest.raises(CommunicationError, match="rank 1 exchanges 'b', rank 0 'a'"):
            meet.exchange("ab"[rank], b"")
        meet.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(act, range(2)))


def test_a_time_that_never_comes_is_allowed():
    for timeout in (1e30, float("inf")):
        with connect(TcpRendezvous(0, 1, "", 0, timeout=timeout), timeout=timeout) as comm:
            assert comm.prepare(schedule("ring:1")).run(np.ones(2)).tolist() == [1.0, 1.0]


def test_what_rank_0_refused_is_told_when_the_time_is_over():
    port = free_port()

    def act(rank):
        size = 3 if rank == 0 else 4
        try:
            with closing(TcpRendezvous(rank, size, "127.0.0.1", port, timeout=2.0)) as meet:
                return meet.exchange("x", b"")
        except (TimeoutError, CommunicationError) as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        heard = list(pool.map(act, range(2)))
    assert heard[1] == "rank 1 of 4 came to rank 0 of 3"
    assert heard[0] == f"ranks 1, 2 did not come to rank 0 within 2 s; {heard[1]}"


@pytest.mark.parametrize(
    ("nodes", "host"),
    [("gpu[007-010,12],login", "gpu007"), ("a,b", "a"), ("node1", "node1"), ("n[3]", "n3")],
)
def test_the_first_host_of_slurm(nodes, host):
    assert _first_host(nodes) == host


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "0", "MASTER_ADDR": "here"}, True),
        ({"RANK": "0"}, False),
        ({"PMI_RANK": "1"}, True),
        (SLURM, True),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, False),  # the shell of sbatch
        (SLURM | {"SLURM_STEP_ID": "4294967291"}, False),  # Slurm may give that shell this number
    ],
)
def test_launchers_are_recognized(variables, expected):
    assert in_job(variables) is expected


@pytest.mark.parametrize(
    ("others", "step"),
    [
        ({}, "7.2"),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, "7.2"),  # srun --mpi=pmi2
        ({"PMIX_RANK": "1"}, "7.2"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, None),  # mpirun within a job
        ({"PMI_RANK": "5", "PMI_SIZE": "8"}, None),
    ],
)
def test_slurms_tasks_are_told_from_mpis(others, step):
    assert _slurm_step(SLURM | others) == step


@pytest.mark.parametrize("variable", ["TACOS_HOST", "TACOS_ADDRESSES"])
def test_ranks_reach_each_other_where_they_are_told(monkeypatch, variable):
    """Loopback has many addresses; channels of one pair take them in turn."""
    monkeypatch.setenv("TACOS_HOST", "127.0.0.9")
    if variable == "TACOS_ADDRESSES":
        hosts = {str(peer): ["127.0.0.7", "127.0.0.8"] for peer in range(3)}
        monkeypatch.setenv("TACOS_ADDRESSES", json.dumps(hosts))

    def act(comm):
        return summed(comm), [comm.address(1, channel) for channel in range(3)]

    for result, addresses in together(3, act):
        assert result == [6.0] * 5
        own = ["127.0.0.9"] * 3
        assert addresses == (
            own if variable == "TACOS_HOST" else ["127.0.0.7", "127.0.0.8", "127.0.0.7"]
        )


@pytest.mark.parametrize("op", ["sum", "avg"])
def test_bfloat16_is_measured_and_checked(op):
    """NumPy does not have the type, but sums of ones and twos are exact in it."""

    def act(comm):
        return list(
            measure(
                comm, schedule("ring:3"), [4096], dtype="bfloat16", op=op, iters=1, against="none"
            )
        )

    for [row] in together(3, act):
        assert (row.count, row.dtype, row.out_of_place.wrong) == (2048, "bfloat16", 0)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/net.yaml", "there is no directory"),
        ("net.bad", "unknown file extension"),
        ("net.tacos", "this format cannot hold a topology"),
        ("", r"is a directory; name a file, such as .*net\.yaml"),
    ],
)
def test_probe_looks_at_its_output_before_it_measures(monkeypatch, tmp_path, capsys, name, why):
    monkeypatch.setattr("tacos.runtime.launch", None)  # so that measuring would fail
    assert main(["probe", "--np", "2", "-o", str(tmp_path / name)]) == 2
    assert re.search(why, capsys.readouterr().err)


def test_buffers_of_other_libraries_are_taken():
    """Anything with the buffer protocol, in place."""
    data = bytearray(b"\x01\x02")
    with connect(TcpRendezvous(0, 1, "", 0)) as comm:
        result = comm.prepare(schedule("ring:1")).run(data, data)
    assert result.dtype == np.uint8
    assert data == b"\x01\x02"
