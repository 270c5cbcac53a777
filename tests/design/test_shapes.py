"""Shapes: counts, brute force over all of them, and the model of each kind compared with synthesized collectives."""

from __future__ import annotations

from itertools import pairwise
from math import comb

import numpy as np
import pytest

import tacos
from tacos.design import Call, Compute, Group, TrainingJob, build, dimensions, optimize, shapes
from tacos.design.dimensions import PRICES
from tacos.design.shapes import EXTENTS, _factorizations, _slowdown, _solved, _Space
from tacos.design.upgrade import collective_of
from tests.design.published import JOBS

pytestmark = pytest.mark.unsanitized

SMALL = TrainingJob(
    (Compute(1e-3), Call("all-reduce", 10**9, Group(4)), Call("all-to-all", 10**8)), "small"
)


def test_factorizations():
    """2^n has comb(n - 1, k - 1) ordered products of k factors above 1."""
    found = [*_factorizations(64, 4)]
    assert len(found) == len(set(found)) == sum(comb(5, k - 1) for k in range(1, 5))
    assert all(np.prod(sizes) == 64 for sizes in found)
    assert sorted(_factorizations(12, 2)) == [(2, 6), (3, 4), (4, 3), (6, 2), (12,)]


@pytest.mark.parametrize("overlap", ["none", "background", "full"])
def test_the_best_of_all_shapes(overlap):
    """Every shape is solved by itself: none is better than the one that the bounds leave."""
    limits = {"max_dims": 2, "ports": 6, "radix": 8, "points": 1, "overlap": overlap}
    front = shapes(16, SMALL, budget="$50k", **limits)
    best = front.points[0]
    space = _Space(16, [SMALL], PRICES, dict(EXTENTS), 500e-9)
    space.fill(2, ("ring", "clique", "switch"), 6, 8)
    alone = [_solved(space, s, 50e3, None, overlap) for s in range(len(space.dims))]
    assert len(alone) == front.shapes
    assert best.time_s == pytest.approx(min(one.time_s for one in alone), rel=1e-12)
    lower = space.lower(50e3, None, overlap)
    assert all(low <= one.time_s * (1 + 1e-9) for low, one in zip(lower, alone, strict=True))
    assert best.lower_bound_s <= best.time_s


def test_more_money_is_faster_and_limits_hold():
    front = shapes(
        64, SMALL, budget="$1M", points=4, max_dims=3, ports=6, radix=16, bandwidth="300GB/s"
    )
    times = [point.time_s for point in front.points]
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(times))
    for point in front.points:
        assert sum(point.bandwidths_Bps) <= 300e9 * (1 + 1e-9)
        kinds = {"ring": lambda n: min(2, n - 1), "clique": lambda n: n - 1, "switch": lambda n: 1}
        assert sum(kinds[one.kind](one.size) for one in point.dims) <= 6
        assert all(one.size <= 16 for one in point.dims if one.kind == "switch")
        assert tacos.topology.parse(point.spec).npus == 64


def test_a_shape_agrees_with_its_bandwidths():
    """With switches only and no latency, the best shape takes the time that optimize finds."""
    front = shapes(
        32, SMALL, budget="$1M", points=1, kinds=["switch"], latency=0, extents={"InterPod": 1e9}
    )
    best = front.points[0]
    tiers = {"InterPod": tacos.design.PRICES["InterPod"]}
    dims = [tacos.design.Dimension(one.kind, one.size, tier="InterPod") for one in best.dims]
    alone = optimize(dims, SMALL, budget="$1M", cost=tiers)
    assert best.time_s == pytest.approx(alone.time_s, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "size", "group", "collective"),
    [
        ("ring", 8, None, "all-to-all"),
        ("ring", 8, Group(4), "all-gather"),
        ("ring", 8, Group(4, 2), "all-gather"),
        ("clique", 8, Group(4), "all-gather"),
        ("switch", 8, Group(4), "all-gather"),
    ],
)
def test_slowdowns_are_those_of_the_bound(kind, size, group, collective):
    """For all groups at once on one dimension, the model's time is at least the bound of the network, and near it."""
    call = Call(collective, 8 * 10**9, group)
    dims = [tacos.design.Dimension(kind, size)]
    network = build(dims, [100e9], latency=0)
    used = size if group is None else group.size
    plain = call.size_bytes * (used - 1) / used / 100e9
    slow = _slowdown(
        kind, size, used, 1 if group is None else group.stride, collective == "all-to-all"
    )
    bound = tacos.bound(network, collective_of(network, call, "test")).bandwidth_s
    assert plain * slow >= bound * (1 - 1e-9)
    if group is None or kind == "switch":
        assert plain * slow == pytest.approx(bound)
    else:  # relaying through other NPUs may be faster
        assert plain * slow <= 2.4 * bound


def test_finalists_are_synthesized():
    front = shapes(16, SMALL, budget="$100k", points=1, max_dims=2, finalists=2)
    for one in (*front.points, *front.runners_up):
        assert one.synthesized_s is not None
        assert 0.7 * one.time_s <= one.synthesized_s <= 1.6 * one.time_s


def test_build():
    network = build(dimensions("ring:4*fc:3*switch:2"), [100e9, 60e9, 25e9])
    assert sorted(set(network.link_bandwidth_Bps.tolist())) == [
        25_000_000_000,
        30_000_000_000,
        50_000_000_000,
    ]
    with pytest.raises(ValueError, match="d1 has a bandwidth of 0 B/s"):
        build(dimensions("ring:4*switch:2"), [1e9, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"npus": 1}, "npus must be a whole number of at least 2; got 1"),
        ({"kinds": ["star"]}, "kinds must be among ring, clique, switch; got 'star'"),
        ({"kinds": []}, "kinds is empty"),
        ({"budget": "20GB/s"}, "budget '20GB/s' is not understood"),
        (
            {"ports": 1, "kinds": ["clique"]},
            "no shape of 16 NPUs is within the limits; relax ports or radix",
        ),
        (
            {"npus": 18},
            "no shape of 18 NPUs is within the limits: a group of 4 ranks, 1 apart, does not fit",
        ),
        ({"extents": {"InterRow": 4}}, "extents must be among InterChiplet"),
        ({"cost": {"InterPod": {"Link": 1}}}, "the cost model has no prices for InterChiplet"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        shapes(**({"npus": 16, "workloads": SMALL, "budget": "$1M"} | arguments))


def test_groups_must_have_sizes_and_strides():
    with pytest.raises(ValueError, match="a search over shapes needs its size and stride"):
        shapes(16, TrainingJob((Call("all-reduce", 10**6, (4, 1)),)), budget="$1M")
    with pytest.raises(ValueError, match="needs jobs with groups of sizes and strides"):
        shapes(16, tacos.workload.collective(16, "all_reduce", "1MB"), budget="$1M")


@pytest.mark.slow
def test_thousands_of_shapes():
    front = shapes(
        4096, [JOBS["GPT-3"], JOBS["MSFT-1T"]], budget="$20M", ports=16, radix=64, points=3
    )
    assert front.shapes > 4000
    assert all(1 - point.lower_bound_s / point.time_s < 1e-9 for point in front.points)
