"""Counted work: meters, and engines that stop when their allowance is used up."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tacos
from tacos import topology
from tacos._core import Meter
from tacos.errors import WorkIsUp
from tacos.synth import ENGINES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tacos import Collective, Schedule, Topology
    from tacos.synth.engine import Engine

SPARE, BATCH = 1.25, 1_000_000
"""How far work may go beyond its limit before it stops: a share, and a batch of about a millisecond."""


def test_a_meter_counts_until_its_limit() -> None:
    meter = Meter(limit=100)
    meter.spend(70)
    meter.part(0.5, 1.0).spend(30)
    assert (meter.used, meter.left, meter.wanted) == (100, 0, 100)
    with pytest.raises(WorkIsUp):
        meter.spend(1)
    assert meter.used == 101


def test_reserved_work_that_does_not_fit_is_not_counted() -> None:
    meter = Meter(limit=100)
    meter.reserve(60)
    with pytest.raises(WorkIsUp):
        meter.reserve(60)
    assert (meter.used, meter.wanted) == (60, 120)


def test_a_meter_of_a_callback_has_no_limit() -> None:
    meter = Meter.of(None)
    meter.spend(1e15)
    assert meter.limit is None
    assert meter.left is None
    assert Meter.of(meter) is meter


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="limit must be at least 0; got -1"):
        Meter(limit=-1)


def test_an_exception_of_the_report_ends_the_work() -> None:
    def stop(_share: float) -> None:
        raise KeyboardInterrupt

    torus = topology.torus(20, 20)
    collective = tacos.collective.all_to_all(torus, "64MB", chunks=4)
    with pytest.raises(KeyboardInterrupt):
        ENGINES["greedy"](torus, collective, progress=Meter(report=stop))


def test_a_cycle_through_a_meter_is_collected() -> None:
    class Owner:
        def report(self, share: float) -> None: ...

    owner = Owner()
    vars(owner)["meter"] = Meter(report=owner.report).part(0, 1)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def _problems() -> Iterator[tuple[str, Topology, Collective]]:
    collective = tacos.collective
    networks = {
        "torus": topology.torus(4, 4, 4),
        "mesh": topology.mesh(5, 5),
        "boxes": topology.dgx_h100(2, nvls=False),
        "tree": topology.fat_tree(4, 4),
        "aggregation": topology.switch(16, multicast=True, reduce=True),
        "broken": topology.drop_links(topology.torus(6, 6), (0, 1), both=True),
    }
    for name, network in networks.items():
        n = network.npus
        yield f"{name} all-gather", network, collective.all_gather(network, n * 4096, chunks=2)
        yield f"{name} all-reduce", network, collective.all_reduce(network, n * 4096, chunks=2)
        yield f"{name} all-to-all", network, collective.all_to_all(network, n * 4096, chunks=2)
        half = list(range(0, n, 2))
        some = collective.all_reduce(network, "1MB", group=half, chunks=16)
        yield f"{name} group", network, some
        sizes = np.random.default_rng(7).integers(0, 10**6, (n, n))
        np.fill_diagonal(sizes, 0)
        yield f"{name} uneven", network, collective.all_to_all_v(network, sizes, chunks=2)


PROBLEMS = list(_problems())
WORN = topology.degrade(topology.dgx_h100(2), (3, 18), factor=0.5, both=True)
SLOW = [("slow all-reduce", WORN, tacos.collective.all_reduce(WORN, "16MB", chunks=8))]
"""For engines that do not know of faults, which fail where they need a dead link."""
OPTIONS: dict[str, dict[str, Any]] = {"milp": {"columns": 1000, "nodes": 5}}
"""What keeps an engine quick: of the integer programs, only those that are solved at once."""
MOST_PROBLEMS = 4


def _cases() -> Iterator[Any]:
    for name, engine in ENGINES.items():
        problems = SLOW if engine.unaware else PROBLEMS
        fitting = [p for p in problems if not engine.obstacle(*p[1:])]
        assert fitting, f"no problem here suits {name}; add one"
        kept = fitting[:: -(-len(fitting) // MOST_PROBLEMS)]
        for problem in kept if name != "milp" else fitting[:1]:
            yield pytest.param(engine, *problem[1:], id=f"{name} on {problem[0]}")


def _run(
    engine: Engine, network: Topology, collective: Collective, meter: Meter | None, threads: int = 1
) -> Schedule:
    options = dict(OPTIONS.get(engine.name, {}))
    if "threads" in engine.options:
        options["threads"] = threads
    return engine(network, collective, progress=meter, **options)


@pytest.mark.parametrize(("engine", "network", "collective"), list(_cases()))
def test_an_engine_counts_its_work(
    engine: Engine, network: Topology, collective: Collective
) -> None:
    plain = _run(engine, network, collective, None)
    meters = [Meter(), Meter(), Meter()]
    for meter, threads in zip(meters, (1, 1, 4), strict=True):
        found = _run(engine, network, collective, meter, threads)
        assert (found.time_ps, found.transfers) == (plain.time_ps, plain.transfers)
    used = {meter.used for meter in meters}
    assert len(used) == 1, "the count depends on the run or on the threads"
    assert used.pop() > 0

    enough = Meter(limit=meters[0].used)
    assert _run(engine, network, collective, enough).time_ps == plain.time_ps

    half = Meter(limit=meters[0].used // 2)
    assert half.limit is not None
    with pytest.raises(WorkIsUp):
        _run(engine, network, collective, half)
    assert half.used <= SPARE * half.limit + BATCH
    assert half.limit < half.wanted <= meters[0].used
    again = Meter(limit=half.limit)
    with pytest.raises(WorkIsUp):
        _run(engine, network, collective, again, threads=4)
    assert again.used == half.used
