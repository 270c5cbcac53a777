"""The torch backend's way over NCCL, with a stand-in for NCCL and for the GPU's streams.

Ranks are threads and tensors lie on the host; benchmarks/gpu.py runs what is real on a GPU.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tacos.runtime import CommunicationError, Communicator, TcpRendezvous
from tacos.runtime.dispatch.algorithms import Algorithms
from tests.support.ranks import free_port

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tacos-ccl[torch]'")

from tacos.runtime.torch import gpus, tensors
from tacos.runtime.torch.work import Joined


class Nccl:
    """Batches of messages between threads; `hangs` makes them never arrive."""

    def __init__(self, mail: Any, rank: int, hangs: bool = False) -> None:
        self._mail, self._rank, self.hangs = mail, rank, hangs
        self.batches: list[list[str]] = []
        self.aborted = False

    def rank(self) -> int:
        return self._rank

    def _start_coalescing(self) -> None:
        self.batches.append([])
        self._wanted: list[Any] = []

    def send(self, some: list[Any], peer: int, _tag: int) -> None:
        self.batches[-1].append(f"to {peer}")
        self._mail[self._rank, peer].put(some[0].clone())

    def recv(self, some: list[Any], peer: int, _tag: int) -> None:
        self.batches[-1].append(f"from {peer}")
        self._wanted.append((some[0], peer))

    def _end_coalescing(self) -> Any:
        if self.hangs:
            return SimpleNamespace(wait=lambda: True)
        for tensor, peer in self._wanted:
            tensor.copy_(self._mail[peer, self._rank].get(timeout=20))
        return SimpleNamespace(wait=lambda *_: True, is_completed=lambda: True)

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def streams(monkeypatch):
    """Streams whose work is done at once, or when `streams.hold` is cleared."""
    hold = threading.Event()
    stream = SimpleNamespace(
        record_event=lambda: SimpleNamespace(query=lambda: not hold.is_set()),
        wait_event=lambda _event: None,
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: stream)
    nothing = memoryview(b"")  # a context that does nothing
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nothing)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nothing)
    return SimpleNamespace(hold=hold)


def together(count, act, *, timeout=30.0):
    """Ranks as threads, each with the collectives of a communicator; what each returned or raised."""
    port = free_port()
    mail: Any = defaultdict(queue.Queue)

    def rank(number):
        meet = TcpRendezvous(number, count, "127.0.0.1", port, timeout=timeout)
        with Communicator(meet, timeout=timeout) as comm:
            nccl = Nccl(mail, number)
            some = tensors.Tensors(Algorithms(comm), nccl)
            try:
                return act(some, nccl)
            except CommunicationError as error:
                return str(error)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(rank, range(count)))


def reduce(some, data, op="sum"):
    algorithm = some.algorithms.get("all_reduce", 4 * data.numel(), True)
    some._on_gpu(algorithm, data, data, data.numel(), op)
    return data


def test_a_collective_takes_nccls_messages(streams):
    def act(some, nccl):
        data = reduce(some, torch.arange(10.0) + some.rank)
        return data.tolist(), len(nccl.batches) > 0

    wanted = (torch.arange(10.0) * 3 + 3).tolist()
    assert together(3, act) == [(wanted, True)] * 3


@pytest.mark.parametrize(
    ("count", "dtype", "op", "what"),
    [
        (41, torch.float32, "sum", "41 elements of float32 (sum)"),
        (40, torch.int32, "sum", "40 elements of int32 (sum)"),
        (40, torch.float32, "max", "40 elements of float32 (max)"),
    ],
)
def test_calls_that_differ_are_refused_before_nccl_hears_of_them(streams, count, dtype, op, what):
    def act(some, nccl):
        reduce(some, torch.ones(8))
        before = len(nccl.batches)
        odd = some.rank == 1
        data = torch.ones(count if odd else 40, dtype=dtype if odd else torch.float32)
        try:
            reduce(some, data, op if odd else "sum")
        finally:
            assert len(nccl.batches) == before

    heard = together(3, act)
    assert heard[0] == heard[1] == heard[2]
    assert f"rank 1 runs algorithm 1 on {what}, rank 0 algorithm 1 on 40 elements" in heard[0]


def test_a_rank_that_leaves_while_the_gpu_waits_is_named(streams, monkeypatch):
    monkeypatch.setattr(tensors, "_GRACE_S", 0.3)

    def act(some, nccl):
        reduce(some, torch.ones(8))
        some._communicator.barrier("done")
        if some.rank == 1:
            some._communicator.close()
            time.sleep(1.0)
            return ""
        streams.hold.set()
        try:
            some._await(torch.cuda.current_stream(None).record_event())
        finally:
            streams.hold.clear()

    assert together(2, act)[0].startswith("rank 1 closed its connection")


def test_what_goes_wrong_in_nccl_is_told_to_all(streams):
    def act(some, nccl):
        reduce(some, torch.ones(8))
        some._communicator.barrier("done")
        if some.rank == 0:
            nccl.send = broken
        else:
            nccl.hangs = True
            streams.hold.set()
        try:
            reduce(some, torch.ones(8))
        finally:
            assert nccl.aborted or some.rank == 1

    def broken(*_):
        raise RuntimeError("unhandled cuda error")

    heard = together(2, act)
    assert heard == ["unhandled cuda error", "rank 0 failed: unhandled cuda error"]


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
    assert gpus.reason_against([gpus.Visible(ids) for ids in seen]) == why


def test_messages_start_together_when_one_is_waited_for(streams):
    mail: Any = defaultdict(queue.Queue)
    pair = [Nccl(mail, 0), Nccl(mail, 1)]

    def act(rank):
        messages = gpus.Messages(pair[rank])
        messages._thread = threading.current_thread()  # nothing starts by itself
        mine, theirs = torch.full((4,), float(rank)), torch.empty(4)
        works = [
            messages.add(True, [mine], 1 - rank, 0),
            messages.add(False, [theirs], 1 - rank, 0),
        ]
        assert pair[rank].batches == []
        Joined(works).wait()
        return theirs.tolist()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(act, range(2))) == [[1.0] * 4, [0.0] * 4]
    assert pair[0].batches == [["to 1", "from 1"]]


def test_a_message_that_nobody_waits_for_starts_all_the_same(streams):
    nccl = Nccl(defaultdict(queue.Queue), 0)
    messages = gpus.Messages(nccl)
    messages.add(True, [torch.ones(3)], 1, 0)
    end = time.monotonic() + 20.0
    while not nccl.batches and time.monotonic() < end:
        time.sleep(0.01)
    messages.close()
    assert nccl.batches == [["to 1"]]
