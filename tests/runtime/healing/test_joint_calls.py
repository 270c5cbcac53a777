"""Calls after which all ranks know whether a meeting was asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import tacos
from tacos._core import RankExecutor
from tacos.runtime.carriers import Call
from tacos.runtime.carriers.tcp import _Connected


@pytest.mark.parametrize(
    ("kind", "elements", "joint"),
    [
        ("all_reduce", 1, True),
        ("all_reduce", 0, False),  # nothing is sent
        ("all_gather", 8, True),
        ("all_gather", 3, False),
        ("all_gather", 0, False),
    ],
)
def test_only_calls_in_which_all_hear_of_all_call_a_meeting(kind, elements, joint):
    ring = tacos.topology.ring(4)
    wanted = getattr(tacos.collective, kind)(ring, "1MB", chunks=1)
    program = tacos.lower(tacos.synthesize(ring, wanted, engine="ring"))
    told = []

    def run(*call):
        told.append(call[-1])
        return 0

    carrier = SimpleNamespace(endpoint=SimpleNamespace(run=run), on_news=None)
    _Connected(carrier, RankExecutor(program, 0), 0).run(Call(0, 0, elements, "float32", "sum"))
    assert told == [joint]
