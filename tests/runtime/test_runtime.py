"""Collectives on real data, over real connections, compared with NumPy.

Real files are read from the directory that TACOS_TEST_DATA names; without it, that test is skipped.
"""

from __future__ import annotations

import itertools

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tests.support.rank_jobs import TYPES_AND_OPERATIONS, made
from tests.support.ranks import Ranks
from tests.support.real_files import real_files

KINDS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather",
         "scatter"]  # fmt: skip
NETWORKS = {  # with the largest number of elements
    "ring:4": 1_000_003,
    "mesh:2x4": 100_003,
    "torus:2x3": 1000,
    "switch:3": 1000,
    "ring:2": 1_000_003,
}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(8) as started:
        yield started


@pytest.mark.parametrize("spec", NETWORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_gives_what_numpy_gives(ranks, kind, spec):
    """For several sizes, in place and out of place."""
    network = tp.parse(spec)
    schedule = made(kind, network, chunks=2 if spec == "ring:4" else 1)
    sizes = [0, 1, 7, NETWORKS[spec]]
    cases = list(itertools.product(sizes, ["float32"], ["sum"], [False, True]))
    assert ranks.run(network.npus, "run_cases", schedule, cases) == [[]] * network.npus


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_what_is_not_a_number_stays_so_on_whatever_rank(ranks, dtype, op):
    for engine in ("ring", "double-binary-tree"):
        schedule = made("all_reduce", tp.fully_connected(4), engine=engine)
        for result in ranks.run(4, "not_a_number", schedule, dtype, op):
            assert all(value != value for value in result[:4])
            assert result[4:] == [4.0, 5.0]


@pytest.mark.parametrize("engine", ["ring", "direct", "greedy", "double-binary-tree"])
def test_every_type_and_operation(ranks, engine):
    network = tp.fully_connected(4)
    schedule = made("all_reduce", network, engine=engine)
    assert ranks.run(4, "run_cases", schedule, TYPES_AND_OPERATIONS) == [[]] * 4


def test_a_group_of_ranks_with_others_that_relay(ranks):
    """The ends of a line reduce; their messages go through ranks that contribute nothing."""
    network = tp.mesh(4)
    schedule = tacos.synthesize(network, co.all_reduce(network, "1MB", group=[0, 3], chunks=3))
    cases = [(1001, "int32", "sum", in_place) for in_place in (False, True)]
    assert ranks.run(4, "run_cases", schedule, cases) == [[]] * 4


@pytest.mark.parametrize("path", real_files("msccl-xml/*.xml", "mscclpp-json/*.json"))
def test_programs_of_other_tools(ranks, path):
    program = tacos.load(path)
    if program.ranks > 8:
        pytest.skip(f"for {program.ranks} ranks")
    sizes = [1, 1001, 50 * program.collective.chunks]
    cases = list(itertools.product(sizes, ["int32"], ["sum"], [False, True]))
    assert ranks.run(program.ranks, "run_cases", program, cases) == [[]] * program.ranks


def test_many_calls_of_several_algorithms_keep_their_order(ranks):
    """Fast ranks run ahead of slow ones, and messages of later calls wait."""
    network = tp.ring(4)
    schedules = [
        made("all_reduce", network),
        made("broadcast", network),
        made("all_to_all", network),
    ]
    assert ranks.run(4, "run_many", schedules, 300) == [0] * 4
