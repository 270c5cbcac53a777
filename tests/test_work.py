"""Counted work: meters, and engines that stop when their allowance is used up."""

from __future__ import annotations

import gc
import weakref

import pytest

import tacos
from tacos._core import Meter
from tacos.errors import WorkIsUp
from tacos.synth import ENGINES


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

    topology = tacos.topology.torus(20, 20)
    collective = tacos.collective.all_to_all(topology, "64MB", chunks=4)
    with pytest.raises(KeyboardInterrupt):
        ENGINES["greedy"](topology, collective, progress=Meter(report=stop))


def test_a_cycle_through_a_meter_is_collected() -> None:
    class Owner:
        def report(self, share: float) -> None: ...

    owner = Owner()
    vars(owner)["meter"] = Meter(report=owner.report).part(0, 1)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None
