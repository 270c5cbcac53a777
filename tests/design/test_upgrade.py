"""Upgrades: cases by hand, both granularities against each other, and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

import tacos
from tacos.design import Call, Compute, Group, Ranks, TrainingJob, upgrade
from tacos.topology import degrade, dgx_h100, fully_connected, ring, switch, torus

pytestmark = pytest.mark.unsanitized


def test_one_switch():
    """All-gather of S among n on a switch takes S (n - 1) / n / b: 10 % more money, 10 % more bandwidth."""
    star = switch(4, bandwidth="100GB/s", latency=0)
    found = upgrade(
        star,
        TrainingJob(
            (
                Compute(1.0),
                Call("all-gather", 4 * 10**11),
            )
        ),
        spend="10%",
    )
    assert found.bound_before_s == pytest.approx(1 + 3.0)
    assert found.bound_after_s == pytest.approx(1 + 3.0 / 1.1)
    assert found.gap < 1e-9
    assert found.kinds[0].name == "npu-switch 100GB/s"
    # 3 s at 100 GB/s: the first GB/s in each of the 8 links saves 3 / 100 s.
    assert found.kinds[0].saved_s_per_GBps == pytest.approx(0.03)
    assert found.kinds[0].saved_s_per_dollar == pytest.approx(0.03 / 8)


def test_the_slow_cable_comes_first():
    slow = degrade(torus(4, 4), (0, 1), factor=0.25)
    job = TrainingJob((Call("all-gather", 10**9),))
    by_kind, by_cable = (upgrade(slow, job, spend="10%", per=per) for per in ("kind", "cable"))
    assert by_kind.kinds[0].name == "npu-npu 12.5GB/s"
    assert by_cable.kinds[0].name == "npu0-npu1 12.5GB/s"
    assert by_cable.bound_after_s == pytest.approx(by_kind.bound_after_s, rel=1e-6)
    assert by_kind.spent == pytest.approx(0.1 * slow.link_bandwidth_Bps.sum() / 1e9)


def test_prices_decide():
    """Boxes of 8 on a fabric: if NICs cost too much, the money goes into the boxes, which half of the job uses."""
    boxes = dgx_h100(2, nvls=False)
    job = TrainingJob((Call("all-reduce", 10**9, Group(8), 20), Call("all-reduce", 10**8)))
    dear = upgrade(boxes, job, spend="$100", prices={"npu-switch 50*": 1000})
    assert dear.kinds[0].bandwidth_Bps == 450e9
    assert dear.kinds[-1].spent == pytest.approx(0, abs=1e-6)
    assert (
        upgrade(boxes, job, spend="$100", prices={"npu-switch 450*": 1000}).kinds[0].bandwidth_Bps
        == 50e9
    )


def test_worth_matches_finite_differences():
    boxes = dgx_h100(2, nvls=False)
    job = TrainingJob((Call("all-gather", 10**9), Call("all-to-all", 10**8)))
    found = upgrade(boxes, job, spend="1%")
    for kind in found.kinds:
        rates = boxes.link_bandwidth_Bps.astype(float)
        more = rates + 1e7 * (rates == kind.bandwidth_Bps)
        times = []
        for each in (rates, more):
            rows = [
                (int(a), int(b), f"{round(speed)}B/s", int(wait) / 1e12)
                for a, b, speed, wait in zip(
                    boxes.link_src, boxes.link_dst, each, boxes.link_latency_ps, strict=True
                )
            ]
            network = tacos.topology.from_links(boxes.npus, rows, switches=boxes.switches)
            calls = (
                tacos.collective.all_gather(network, 10**9),
                tacos.collective.all_to_all(network, 10**8),
            )
            times.append(sum(tacos.bound(network, call).bandwidth_s for call in calls))
        assert kind.saved_s_per_GBps == pytest.approx(
            (times[0] - times[1]) * 100, rel=1e-2, abs=1e-9
        )


def test_synthesized_times_follow():
    found = upgrade(
        ring(4), TrainingJob((Call("all-gather", 10**9),)), spend="50%", synthesized=True
    )
    assert found.synthesized_before_s
    assert found.synthesized_after_s
    assert found.synthesized_before_s / found.synthesized_after_s == pytest.approx(1.5, rel=1e-2)
    assert found.topology.link_bandwidth_Bps.tolist() == [75_000_000_000] * 8


def test_groups():
    """Lists of ranks, strides and messages; latency limits the gain from bandwidth."""
    clique = fully_connected(4, bandwidth="10GB/s", latency="1ms")
    for group in (Ranks((0, 2)), Group(2, 2), None):
        found = upgrade(clique, TrainingJob((Call("all-gather", 10**6, group),)), spend="100%")
        assert found.bound_after_s >= 1e-3
    sent = upgrade(
        clique, TrainingJob((Call("send", 10**9, Ranks((0, 3))),)), spend="100%", per="cable"
    )
    assert sent.kinds[0].spent > 0
    assert np.isfinite(sent.bound_after_s)


@pytest.mark.parametrize(
    ("job", "arguments", "message"),
    [
        (
            TrainingJob((Call("all-gather", 8),)),
            {"spend": "ten"},
            'spend must be a share such as "10%"',
        ),
        (
            TrainingJob((Call("all-gather", 8),)),
            {"spend": "0%"},
            'spend must be a share such as "10%"',
        ),
        (
            TrainingJob((Call("all-gather", 8),)),
            {"per": "box"},
            'per must be "kind" or "cable"; got \'box\'',
        ),
        (
            TrainingJob((Call("all-gather", 8),)),
            {"prices": {"nic*": 3}},
            "no link matches the price 'nic\\*'; the links are npu-npu 50GB/s",
        ),
        (
            TrainingJob((Call("all-gather", 8),)),
            {"prices": {"npu*": 0}},
            "the price 'npu\\*' must be positive; got 0",
        ),
        (
            TrainingJob((Compute(1.0),), "idle"),
            {},
            "idle has no collectives, so no link makes it faster",
        ),
        (
            TrainingJob((Call("all-gather", 8, Group(3)),), "odd"),
            {},
            "odd: groups of 3 ranks, 1 apart, do not divide 4 NPUs",
        ),
        (
            TrainingJob((Call("all-gather", 8, Ranks((0, 9))),), "far"),
            {},
            "far: a group has rank 9, the network 4 NPUs",
        ),
        (
            TrainingJob((Call("all-gather", 8, (2, 2)),)),
            {},
            "a topology needs its size and stride, or its ranks",
        ),
    ],
)
def test_bad_input(job, arguments, message):
    with pytest.raises(ValueError, match=message):
        upgrade(ring(4), job, **arguments)
