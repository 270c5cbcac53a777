"""The estimate of NCCL against public measurements, which are read from the directory that TACOS_TEST_DATA names."""

from __future__ import annotations

from statistics import mean

import pytest

from benchmarks import reality
from tacos.synth.baselines.nccl import software

needs_data = pytest.mark.skipif(
    not reality.folder().is_dir(), reason="TACOS_TEST_DATA has no collectives"
)


@needs_data
@pytest.mark.parametrize(
    ("source", "machines", "goals"),
    [
        ("box", ("a100", "h100", "h200", "b200", "b300", "gb200", "gb300"), (0.12, 0.12, 0.08)),
        ("compiled", ("gb200", "gb300"), (0.15, 0.15, 0.15)),
    ],
)
def test_curves_of_measurements_are_met(source, machines, goals):
    """These curves served to fit the table, so this checks the table, not the model: left-out errors are in the manual."""
    curves = [one for one in reality.SOURCES[source]() if one.machine in machines]
    off: dict[str, list[float]] = {name: [] for _, name in reality.BANDS}
    for _, size, measured, estimated, _ in reality.errors(curves):
        off[reality.band(size)].append(abs(estimated / measured - 1))
    for goal, found in zip(goals, off.values(), strict=True):
        assert found
        assert mean(found) < goal


def test_a_search_finds_the_parameters_that_made_the_times():
    """Times are made from known parameters, and the search starts from others."""
    known = software.Packets(base_us=5.0, hop_us=1.2, fill_us=0.3, window_bytes=6e4, share=0.5)
    given = [
        (float(npus), float(npus - 1), float(1 << power), 3e5, 0.0)
        for npus in (2, 4, 8)
        for power in range(9, 24)
    ]
    times = [sum(known.us(*row)) for row in given]
    found = reality.search(reality.STARTS["ll"], given, times)
    for row, time_us in zip(given, times, strict=True):
        assert sum(found.us(*row)) == pytest.approx(time_us, rel=0.05)


def test_records_are_in_the_order_of_their_versions():
    by_device: dict[str, list[tuple[int, ...]]] = {}
    for one in software.SOFTWARE:
        by_device.setdefault(one.device, []).append(software.numbers(one.version))
    assert all(versions == sorted(set(versions)) for versions in by_device.values())


def test_a_record_serves_newer_versions_and_larger_groups():
    assert software.of("H200", "2.30").version == "2.29"
    assert software.of("H200", "2.19").version == "2.23"
    assert software.of("GB200", "2.29", 4).version == "2.29"
    assert software.of("GB200", "2.29", 16).version == "2.27"
    assert software.of("GB200", "2.29", 144).version == "2.27"
    assert software.of("V100", "2.29") is None
