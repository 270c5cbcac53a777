"""Single messages of the torch backend between GPUs, with a stand-in for NCCL and for streams."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tacos-ccl[torch]'")

from tacos.runtime.torch.messages import Messages
from tacos.runtime.torch.pending import Joined
from tests.support.conditions import until
from tests.support.fake_nccl import FakeNccl, Switchboard


@pytest.fixture(autouse=True)
def streams(monkeypatch):
    """Streams whose work is done at once."""
    stream = SimpleNamespace(record_event=lambda: None, wait_event=lambda _event: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: stream)
    nothing = contextlib.nullcontext()
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nothing)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nothing)


def test_messages_start_together_when_one_is_waited_for():
    board = Switchboard()
    pair = [FakeNccl(board, 0), FakeNccl(board, 1)]

    def act(rank):
        messages = Messages(pair[rank])
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


def test_a_message_that_no_caller_waits_for_starts_all_the_same():
    nccl = FakeNccl(Switchboard(), 0)
    messages = Messages(nccl)
    messages.add(True, [torch.ones(3)], 1, 0)
    until(lambda: nccl.batches, "the message has started")
    messages.close()
    assert nccl.batches == [["to 1"]]
