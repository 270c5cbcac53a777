"""The table of carriers: a new carrier, one file and one entry, serves communicators, measurements and torch."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tacos.runtime import Communicator, TcpRendezvous, connect, measure
from tacos.runtime.carriers import CARRIERS, DTYPES, CarrierKind, chosen, tcp
from tacos.runtime.measure.probe import probe
from tacos.targets import targets
from tests.support.conditions import PATIENCE_S
from tests.support.memory_carrier import KIND
from tests.support.rank_jobs import run_cases
from tests.support.ranks import free_port

pytestmark = pytest.mark.unsanitized


@pytest.fixture(autouse=True)
def entry(monkeypatch):
    """What a new carrier adds to the table."""
    monkeypatch.setitem(CARRIERS, KIND.name, KIND)


@pytest.fixture
def no_tcp(monkeypatch):
    """Opening TCP connections for data fails."""
    monkeypatch.setattr(tcp, "Endpoint", None)


def together(count, act, carrier=KIND.name):
    """Ranks as threads; `carrier` may be a function of the rank."""
    port = free_port()

    def rank(number):
        name = carrier(number) if callable(carrier) else carrier
        meet = TcpRendezvous(number, count, "127.0.0.1", port, timeout=PATIENCE_S)
        with Communicator(meet, timeout=PATIENCE_S, carrier=name) as comm:
            return act(comm)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(rank, range(count)))


def schedule(spec, kind="all_reduce"):
    network = tp.parse(spec)
    return tacos.synthesize(network, co.named(kind, network, "1MB", chunks=2))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_carrier_needs_no_order_of_messages(no_tcp, kind):
    algorithm = schedule("mesh:2x2", kind)
    cases = [(count, "float32", "sum", in_place) for count in (0, 1, 999) for in_place in (0, 1)]
    assert together(4, lambda comm: run_cases(comm, algorithm, cases)) == [[]] * 4


def test_a_new_carrier_is_measured(no_tcp):
    algorithm = schedule("ring:3")
    rows = together(3, lambda comm: list(measure(comm, algorithm, [20, 4000], iters=1)))
    for row in rows[0]:
        assert row.out_of_place.wrong == row.in_place.wrong == 0
        assert row.against == "ring"


def test_a_new_carrier_is_probed(no_tcp):
    [wiring, _] = together(2, lambda comm: probe(comm, seconds=0.1))
    assert wiring.topology().npus == 2


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_new_carrier_serves_the_torch_backend(no_tcp, monkeypatch):
    import torch
    import torch.distributed as dist

    from tacos.runtime.torch import TacosGroup

    monkeypatch.setenv("TACOS_CARRIER", KIND.name)
    store = dist.HashStore()

    def rank(number):
        options = SimpleNamespace(
            group_rank=number,
            group_size=3,
            timeout=timedelta(seconds=PATIENCE_S),
            global_ranks_in_group=[],
            store=store,
            group_id="",
        )
        group = TacosGroup(options)
        data = torch.arange(10.0) + number
        group.allreduce([data]).wait()
        group.shutdown()
        return data.tolist()

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(rank, range(3)))
    assert results == [[3.0 * i + 3 for i in range(10)]] * 3


def test_two_carriers_serve_one_communicator():
    algorithm = schedule("ring:2")

    def act(comm):
        ours, usual = comm.prepare(algorithm), comm.prepare(algorithm, carrier="tcp")
        data = np.full(4, comm.rank + 1.0)
        return ours.run(data).tolist(), usual.run(data).tolist(), ours.carrier.name

    assert together(2, act) == [([3.0] * 4, [3.0] * 4, "memory")] * 2


def test_ranks_with_different_carriers_are_told():
    algorithm = schedule("ring:2")

    def act(comm):
        with pytest.raises(ValueError, match="rank 1 has tcp, rank 0 memory"):
            comm.prepare(algorithm)

    together(2, act, lambda rank: ["memory", "tcp"][rank])


def test_names_that_are_unknown_are_errors(monkeypatch, tmp_path, capsys):
    known = "expected one of tcp, mpi, nccl, memory"
    with pytest.raises(ValueError, match=f"unknown carrier 'udp'; {known}"):
        connect(carrier="udp")
    tacos.save(schedule("ring:2"), tmp_path / "ar.tacos")
    assert main(["run", str(tmp_path / "ar.tacos"), "--carrier", "udp"]) == 2
    assert capsys.readouterr().err == f"tacos: unknown carrier 'udp'; {known}\n"
    monkeypatch.setenv("TACOS_CARRIER", "udp")
    with pytest.raises(ValueError, match=f"TACOS_CARRIER is 'udp'; {known}"):
        connect()


def test_options_that_name_two_carriers_are_refused(tmp_path, capsys):
    tacos.save(schedule("ring:2"), tmp_path / "ar.tacos")
    assert main(["run", str(tmp_path / "ar.tacos"), "--mpi", "--carrier", "tcp"]) == 2
    assert "--mpi and --carrier tcp exclude each other" in capsys.readouterr().err


def test_the_environment_names_the_carrier_of_one_memory():
    assert chosen("host", {"TACOS_CARRIER": "memory"}) is KIND
    assert chosen("cuda", {"TACOS_CARRIER": "memory"}).name == "nccl"
    assert chosen("host", {"TACOS_CARRIER": "nccl"}).name == "tcp"


def test_schedules_can_be_made_for_every_carrier():
    assert {kind.target for kind in CARRIERS.values()} <= set(targets())


def test_a_carrier_with_a_launcher_of_its_own_is_not_started_here(monkeypatch, tmp_path, capsys):
    """The command takes its text and behaviour from the record; it does not name carriers itself."""
    odd = CarrierKind("odd", "nowhere", label="Odd", launcher="oddrun", job="nowhere")
    monkeypatch.setitem(CARRIERS, "odd", odd)
    file = tmp_path / "ar.tacos"
    tacos.save(schedule("ring:2"), file)
    assert main(["run", str(file), "--carrier", "odd"]) == 2
    example = f"oddrun -n 2 tacos run {file} --carrier odd"
    assert f"the carrier odd needs the ranks of Odd: {example}" in capsys.readouterr().err


def test_a_carrier_names_the_package_that_it_needs():
    kind = CarrierKind("odd", "nowhere", package="no_such_package", extra="odd")
    with pytest.raises(ValueError, match=r"needs no_such_package: pip install 'tacos-ccl\[odd\]'"):
        kind.open(None)


def test_a_carrier_that_reduces_on_gpus_is_not_measured():
    alone = TcpRendezvous(0, 1, "127.0.0.1", 0)
    with (
        Communicator(alone, carrier="nccl") as comm,
        pytest.raises(ValueError, match="the carrier nccl moves memory of GPUs"),
    ):
        next(measure(comm, schedule("ring:1"), [4096]))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_the_core_reduces_all_types_of_the_table(dtype):
    """On one rank, whose buffers no other rank touches."""
    data = np.ones(4, np.uint64)
    with connect(carrier="memory") as comm:
        comm.prepare(schedule("ring:1")).run_at(data.ctypes.data, data.ctypes.data, 4, dtype, "max")
