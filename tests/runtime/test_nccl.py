"""The carrier of NCCL: ranks are threads on a stand-in for NCCL, and one rank on a real GPU.

benchmarks/gpu.py does the same on a GPU with the torch backend.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos._core import Endpoint
from tacos.runtime import CommunicationError, Communicator, TcpRendezvous, connect
from tacos.runtime.carriers import CARRIERS, Unavailable, named, tcp
from tests.support.conditions import PATIENCE_S, until
from tests.support.rank_jobs import expected
from tests.support.ranks import free_port

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tacos-ccl[torch]'")

from tacos.runtime.carriers import nccl
from tests.support.fake_nccl import KIND

pytestmark = pytest.mark.unsanitized


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setitem(CARRIERS, KIND.name, KIND)


def schedule(spec, kind="all_reduce", **options):
    network = tp.parse(spec)
    return tacos.synthesize(network, co.named(kind, network, "1MB", chunks=1), **options)


def together(count, act, *, timeout=PATIENCE_S):
    """Run ranks as threads, each with a communicator; return what each returned, or its error message."""
    port = free_port()

    def rank(number):
        meet = TcpRendezvous(number, count, "127.0.0.1", port, timeout=timeout)
        with Communicator(meet, timeout=timeout, carrier=KIND.name) as comm:
            try:
                return act(comm)
            except CommunicationError as error:
                return str(error)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(rank, range(count)))


def run(algorithm, data, op="sum"):
    where = data.ctypes.data
    algorithm.run_at(where, where, data.size, data.dtype.name, op)
    return data


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_collective_takes_nccls_messages(kind):
    algorithm = schedule("fc:3", kind)

    def act(comm):
        prepared = comm.prepare(algorithm)
        [part] = prepared.collective.parts
        for count in (0, 10, 1001):
            source, want = expected(part, comm.rank, count, "float32", "sum", 0)
            given, target = source.copy(), np.full_like(want, 77)
            prepared.run_at(given.ctypes.data, target.ctypes.data, count, "float32")
            assert target.tolist() == want.tolist()
            assert given.tolist() == source.tolist()
        return len(comm.open().backend.batches) > 0

    assert together(3, act) == [True] * 3


def test_only_the_connections_for_notes_are_made(monkeypatch):
    """NCCL sends from each of 4 ranks to 3 others; the hosts have only the 2 connections of halving-doubling."""
    algorithm = schedule("fc:4", "all_to_all", engine="direct")
    made = []

    class Counted(Endpoint):
        added = 0

        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

        def add(self, peer, channel, socket):
            self.added += 1
            super().add(peer, channel, socket)

    monkeypatch.setattr(tcp, "Endpoint", Counted)

    def act(comm):
        comm.open()
        comm.barrier("open")
        endpoints = len(made)
        comm.barrier("counted")
        data = np.arange(8, dtype=np.float32)
        run(comm.prepare(algorithm), data)
        return endpoints

    assert together(4, act) == [0] * 4  # nothing before a program needs it
    assert [endpoint.added for endpoint in made] == [2] * 4


def test_one_rank_opens_no_connection_at_all(monkeypatch):
    monkeypatch.setattr(tcp, "Endpoint", None)
    data = np.arange(5.0)
    [result] = together(1, lambda comm: run(comm.prepare(schedule("ring:1")), data).tolist())
    assert result == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("count", "dtype", "op", "what"),
    [
        (41, np.float32, "sum", "41 elements of float32 (sum)"),
        (40, np.int32, "sum", "40 elements of int32 (sum)"),
        (40, np.float32, "max", "40 elements of float32 (max)"),
    ],
)
def test_calls_that_differ_are_refused_before_nccl_hears_of_them(count, dtype, op, what):
    ring = schedule("ring:3")

    def act(comm):
        algorithm = comm.prepare(ring)
        run(algorithm, np.ones(8, np.float32))
        batches = comm.open().backend.batches
        before = len(batches)
        odd = comm.rank == 1
        data = np.ones(count if odd else 40, dtype if odd else np.float32)
        try:
            run(algorithm, data, op if odd else "sum")
        finally:
            assert len(batches) == before

    heard = together(3, act)
    assert heard[0] == heard[1] == heard[2]
    assert f"rank 1 runs all-reduce of {what}, rank 0 runs all-reduce of 40 elements" in heard[0]


def test_a_rank_that_leaves_while_the_gpu_waits_is_named(monkeypatch):
    monkeypatch.setattr(nccl, "_GRACE_S", 0.3)
    ring, heard = schedule("ring:2"), threading.Event()

    def act(comm):
        run(comm.prepare(ring), np.ones(8, np.float32))
        comm.barrier("done")
        if comm.rank == 1:
            comm.close()
            assert heard.wait(PATIENCE_S)  # its place at the rendezvous is still taken
            return ""
        carrier = comm.open()
        carrier.hold.set()
        try:
            carrier.wait_for(carrier.event(None))
        finally:
            heard.set()
        return "it returned"

    assert together(2, act)[0].startswith("rank 1 closed its connection")


def test_what_goes_wrong_in_nccl_is_told_to_all():
    ring = schedule("ring:2")

    def act(comm):
        algorithm = comm.prepare(ring)
        run(algorithm, np.ones(8, np.float32))
        comm.barrier("done")
        carrier = comm.open()
        if comm.rank == 0:
            carrier.backend.send = broken
        else:
            carrier.backend.hangs = True
            carrier.hold.set()
        try:
            run(algorithm, np.ones(8, np.float32))
        finally:
            # Rank 1 may learn of the failure before NCCL is aborted.
            assert carrier.backend.aborted or comm.rank == 1

    def broken(*_):
        raise RuntimeError("unhandled cuda error")

    heard = together(2, act)
    assert heard == ["unhandled cuda error", "rank 0 failed: unhandled cuda error"]


def test_an_interrupted_rank_stops_waiting_for_its_gpu():
    ring = schedule("ring:2")

    def act(comm):
        algorithm = comm.prepare(ring)
        carrier = comm.open()
        carrier.backend.hangs = True
        carrier.hold.set()
        with ThreadPoolExecutor(1) as pool:
            if comm.rank == 0:
                pool.submit(later, comm, carrier)
            run(algorithm, np.ones(8, np.float32))

    def later(comm, carrier):
        until(lambda: carrier.backend.batches, "the call waits for the GPU")
        comm.interrupt("enough")

    why = "rank 0 gave up: enough"
    assert together(2, act) == [why, f"rank 0 failed: {why}"]


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ([["a"], ["b"], ["c"]], ""),  # CUDA_VISIBLE_DEVICES of each rank
        ([["a", "b", "c"]] * 3, ""),
        ([["a", "b"], ["a"]], ""),  # rank 0 has to take the other
        ([["a", "b"]] * 3, "rank 2 has no GPU of its own"),
        ([["a"], []], "rank 1 sees no GPU"),
    ],
)
def test_nccl_needs_a_gpu_for_every_rank(seen, why):
    assert nccl.reason_against([nccl.Visible(ids) for ids in seen]) == why


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_carrier_says_so():
    with pytest.raises(Unavailable, match="rank 0 sees no GPU"):
        connect(carrier="nccl")


def test_arrays_of_the_host_are_refused():
    """Their addresses mean nothing to a GPU."""
    [said] = together(1, lambda comm: refusal(comm.prepare(schedule("ring:1"))))
    assert said.startswith("run takes arrays of the host, and the carrier fake-nccl moves memory")


def refusal(algorithm):
    with pytest.raises(ValueError, match="use run_at") as refused:
        algorithm.run(np.ones(4))
    return str(refused.value)


def test_types_that_a_gpu_cannot_add_up_are_refused():
    """A communicator that has refused a call serves the next."""
    assert not named("nccl").reduces("uint32", "sum")
    ring = schedule("ring:2")

    def act(comm):
        algorithm = comm.prepare(ring)
        with pytest.raises(ValueError, match="cannot reduce uint32 with sum"):
            run(algorithm, np.ones(4, np.uint32))
        return run(algorithm, np.ones(4, np.int32)).tolist()

    assert together(2, act) == [[2] * 4] * 2


# --- the stand-in itself ----------------------------------------------------------------------------


def batches(*ranks):
    """Run each rank's batches of ("to"/"from", peer, elements) in order; return "done" or the error of each rank."""
    from tests.support.fake_nccl import FakeNccl, Switchboard

    board = Switchboard(timeout=0.5)

    def act(rank):
        backend = FakeNccl(board, rank)
        try:
            for batch in ranks[rank]:
                backend._start_coalescing()
                for way, peer, elements in batch:
                    call = backend.send if way == "to" else backend.recv
                    call([torch.zeros(elements)], peer, 0)
                backend._end_coalescing().wait()
        except RuntimeError as error:
            return str(error)
        return "done"

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(act, range(len(ranks))))


def test_the_stand_in_pairs_messages_of_a_batch_in_any_order():
    both = [[("to", 1, 4), ("from", 1, 4)]], [[("from", 0, 4), ("to", 0, 4)]]
    assert batches(*both) == ["done", "done"]


def test_the_stand_in_waits_for_ever_where_nccl_would():
    """Both send in their first batch and receive in the second; NCCL buffers nothing."""
    heard = batches([[("to", 1, 4)], [("from", 1, 4)]], [[("to", 0, 4)], [("from", 0, 4)]])
    assert heard == [
        "deadlock: messages of rank 0 wait: to 1",
        "deadlock: messages of rank 1 wait: to 0",
    ]


def test_the_stand_in_refuses_messages_of_two_sizes():
    heard = batches([[("to", 1, 4), ("to", 1, 2)]], [[("from", 0, 2), ("from", 0, 4)]])
    assert heard == ["rank 0 sends 16 bytes to rank 1, which expects 8"] * 2


# --- a real GPU -------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
def test_one_rank_on_a_gpu_copies_its_data(dtype):
    wide = getattr(torch, dtype)
    with connect(carrier="nccl") as comm:
        algorithm = comm.prepare(schedule("ring:1", "all_reduce"))
        source = torch.arange(100, device="cuda").to(wide)
        target = torch.zeros(100, device="cuda", dtype=wide)
        algorithm.run_at(source.data_ptr(), target.data_ptr(), 100, dtype)
        assert torch.equal(source, target)
        assert list(comm._open) == ["nccl"]
