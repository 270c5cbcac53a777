"""Ranks switch algorithms together, over loopback; in the lab, training continues when its network changes."""

from __future__ import annotations

import importlib.util
import re

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.runtime.lab import unavailable
from tests.support.conditions import PATIENCE_S
from tests.support.ranks import Ranks


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4, TACOS_HOST="127.0.0.1") as started:
        yield started


RING = tp.ring(4, bandwidth="1GB/s")


def made(kind, **arguments):
    return tacos.synthesize(RING, co.named(kind, RING, "4KB", chunks=1, **arguments))


@pytest.mark.parametrize("who", [0, 2])
def test_all_ranks_know_of_a_meeting_after_the_same_call(ranks, who):
    """A meeting is asked for before a broadcast, in which a rank hears from few others.

    All ranks know of it after the all-gather that follows."""
    calls = ["all_reduce", "broadcast", "all_gather", "all_reduce"]
    schedules = [made(kind, **({"root": 1} if kind == "broadcast" else {})) for kind in calls]
    assert ranks.run(4, "calls_of_a_meeting", schedules, who, 1) == [[2]] * 4


def test_ranks_switch_together_and_back(ranks, tmp_path):
    """They use a slow link less, and return to the first algorithm when the link has recovered."""
    one = next(i for i in range(RING.links) if (RING.link_src[i], RING.link_dst[i]) == (1, 2))
    # Faster than any probe of the loopback can measure.
    well = [(2, 3, 0, 1e18, 1e18, "usual"), (0, 1, 0, 1e18, 1e18, "usual")]
    slow = [*well, (1, 2, 0, 4e17, 1e18, "slow")]
    back = [*well, (1, 2, 0, 1e18, 4e17, "fast")]
    heard = ranks.run(4, "healed", RING, [slow, back], str(tmp_path), fresh=PATIENCE_S)
    assert heard == [heard[0]] * 4
    assert all(values == {10.0} for values, _, _ in heard[0])  # 1 + 2 + 3 + 4
    assert [shares for _, shares, _ in heard[0]] == [{}, {one: 0.4}, {one: 0.4}, {}, {}]
    served = [number for _, _, number in heard[0]]
    assert served[0] == served[1] == served[4]  # kept, not made again
    assert served[2] == served[3] != served[0]


def test_calls_that_cannot_be_repeated_fail_alike_on_all_ranks(ranks, tmp_path):
    """Only the inputs of the last call are kept, but the other ranks still need those of the call before it."""
    heard = ranks.run(4, "ran_ahead", RING, str(tmp_path), fresh=PATIENCE_S)
    assert re.fullmatch(
        r"the link from rank 0 to rank 1 is dead; the calls cannot be repeated: rank 0 has finished ([2-9]|\d\d+) more than rank 1", heard[0]
    )  # fmt: skip
    assert set(heard) == {heard[0]}


@pytest.mark.slow
def test_a_rank_that_comes_late_is_named_by_its_neighbours(ranks):
    # Rank 0 gets no data from rank 2, and a rank does not judge itself.
    named = ranks.run(4, "dawdle", made("all_reduce"), 2, 0.1, 2)
    assert named == [False, True, False, True]


@pytest.mark.slow
@pytest.mark.skipif(bool(unavailable()), reason=unavailable())
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
@pytest.mark.parametrize(
    ("network", "cases"), [("ring", ["back", "dead-back"]), ("torus", ["slow"])]
)
def test_training_outlives_a_slow_and_a_dead_link(network, cases):
    """The losses of unmodified DDP are those of an undisturbed network; it ends at all only if it avoids the dead link.

    ``benchmarks/healing.py`` measures how long steps take.
    On the torus, messages are so short that only their sender can measure their speed.
    """
    from benchmarks import healing

    found = list(healing.run(cases, network))
    assert [one["case"] for one in found] == cases
    for one in found:
        assert one["loss_difference"] < 1e-5
        if one["case"].startswith("dead"):
            assert any("dead" in line for line in one["said"]), one["said"]
