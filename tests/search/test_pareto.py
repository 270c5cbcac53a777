"""Pareto fronts, as SCCL defines them, that are known from its paper or by counting."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.cli import main
from tests.support.conditions import PATIENCE_S

pytestmark = pytest.mark.unsanitized


def points(front):
    return [(point.chunks, point.steps, point.rounds) for point in front.points]


@pytest.mark.parametrize(
    ("spec", "kind", "expected"),
    [
        # Two links for n-1 chunks each; half a chunk goes each way, the far one both ways.
        ("ring:4", "all_gather", [(2, 2, 3)]),
        ("ring:8", "all_gather", [(2, 4, 7)]),
        ("ring:4", "reduce_scatter", [(2, 2, 3)]),
        ("ring:4", "all_reduce", [(2, 4, 6)]),
        ("fc:5", "all_gather", [(1, 1, 1)]),
        ("fc:5", "all_to_all", [(1, 1, 1)]),
        ("torus:3x3", "all_gather", [(1, 2, 2)]),
        ("hypercube:3", "all_gather", [(3, 3, 7)]),
        # A pipeline: each step brings another two chunks from either side.
        ("ring:4", "broadcast", [(2, 2, 2), (4, 3, 3), (6, 4, 4), (8, 5, 5)]),
        ("switch:4", "all_gather", [(1, 1, 3)]),
    ],
)
def test_by_hand(spec, kind, expected):
    topology = tp.parse(spec)
    front = tacos.pareto(topology, co.named(kind, topology, "1MB"))
    assert points(front) == expected
    assert all(point.proven for point in front.points)
    assert all(tacos.verify(point.schedule).ok for point in front.points)


def test_the_algorithms_of_sccl_for_a_dgx1():
    """Its paper has (6, 3, 7) as bandwidth-optimal, and (2, 2, 3) with the fewest steps."""
    box = tp.dgx1()
    front = tacos.pareto(box, co.all_gather(box, "48MB"), time_limit=PATIENCE_S)
    assert points(front) == [(2, 2, 3), (6, 3, 7)]
    assert front.least_rounds == Fraction(7, 6)
    assert [row["optimal"] for row in front.rows()] == ["latency", "bandwidth"]
    # 7/6 of 6 MB over links of 25 GB/s, and latencies.
    assert front.points[1].schedule.time_s >= 7 / 6 * 6e6 / 25e9


def test_fewer_steps_may_be_asked_for():
    ring = tp.ring(4)
    front = tacos.pareto(ring, co.broadcast(ring, "1MB"), max_chunks=2, max_steps=3)
    assert points(front) == [(2, 2, 2)]
    with pytest.raises(ValueError, match="max_steps is 1; the collective needs more steps"):
        tacos.pareto(ring, co.broadcast(ring, "1MB"), max_steps=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_chunks": 0}, "max_chunks is 0; it must be a positive number"),
        ({"max_steps": -1}, "max_steps is -1; it must be a positive number"),
        ({"time_limit": 0}, "time_limit must be positive; got 0"),
    ],
)
def test_wrong_arguments(options, message):
    ring = tp.ring(4)
    with pytest.raises(ValueError, match=message):
        tacos.pareto(ring, co.all_gather(ring, "1MB"), **options)


def test_a_time_limit_that_is_too_short():
    torus = tp.torus(3, 3)
    with pytest.raises(tacos.TacosError, match="no algorithm found within time_limit; raise it or"):
        tacos.pareto(torus, co.all_gather(torus, "1MB"), time_limit=1e-9)


def test_chunks_must_be_open():
    ring = tp.ring(4)
    with pytest.raises(ValueError, match="chooses the number of chunks"):
        tacos.pareto(ring, co.all_gather(ring, "1MB", chunks=2))
    with pytest.raises(ValueError, match="the collective is for 4 NPUs, but the topology has 5"):
        tacos.pareto(tp.ring(5), co.all_gather(ring, "1MB"))


def test_the_command(capsys):
    assert main(["pareto", "ring:4", "all-gather", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["least_rounds"] == "3/2"
    assert found["points"][0]["optimal"] == "latency and bandwidth"
    assert main(["pareto", "ring:4", "broadcast", "--max-chunks", "2"]) == 0
    assert "rounds per chunk" in capsys.readouterr().out
    # One step of two rounds would do: both send all they have.
    assert main(["pareto", "ring:2", "all-reduce", "--max-chunks", "1"]) == 0
    assert "No algorithm that first reduces and scatters has fewer" in capsys.readouterr().out
