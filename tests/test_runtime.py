"""Collectives on real data, over real connections, against NumPy."""

from __future__ import annotations

import pytest

import tacos
from tacos import collective as co
from tacos import topology as tp
from tests.ranks import Ranks

SIZES = [0, 1, 7, 1_000_003]
KINDS = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
]
NETWORKS = {
    "ring": lambda: tp.ring(4),
    "mesh": lambda: tp.mesh(2, 4),
    "torus": lambda: tp.torus(2, 3),
    "switch": lambda: tp.switch(3),
    "pair": lambda: tp.ring(2),
}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(8) as started:
        yield started


def made(kind, network, chunks=1, engine="auto"):
    root = (
        {"root": network.npus - 1} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
    )
    collective = co.named(kind.replace("_", "-"), network, "1MB", chunks=chunks, **root)
    return tacos.synthesize(network, collective, engine=engine)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_gives_what_numpy_gives(ranks, kind, network):
    """On several networks, for all sizes, in place and not."""
    topo = NETWORKS[network]()
    schedule = made(kind, topo, chunks=2 if network == "ring" else 1)
    cases = [(count, "float32", "sum", place) for count in SIZES for place in (False, True)]
    results = ranks.run(topo.npus, "run_cases", schedule, cases)
    assert results == [[]] * topo.npus
