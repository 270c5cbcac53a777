"""The exchange engine: times by hand, few rounds on real machines, one order of sums."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.synth import ENGINES
from tests.support import strategies

exchange = ENGINES["exchange"]


def checked(network, coll):
    schedule = exchange(network, coll)
    report = tacos.verify(schedule)
    assert report.ok, report.lines()
    assert report.consistent
    return schedule


def test_recursive_doubling_on_a_ring():
    """A ring of four, 1 us and 1 GB/s: 0 and 1, 2 and 3 exchange, then 1 and 2, 3 and 0: two hops of 1 us.

    Two of the four blocks of 1 KB begin with the other pairs, so that every link sends two in each round: the first
    of them arrives after 2 us and 4 us, the second 1 us later.
    """
    ring = tp.ring(4, bandwidth="1GB/s", latency="1us")
    schedule = checked(ring, co.all_reduce(ring, "4KB", chunks=1))
    assert schedule.provenance["stages"] == [2, 2]
    assert schedule.time_ps == 5_000_000


def test_a_switch_takes_one_round_or_two():
    """Eight NPUs on a switch, 2·100 ns, 1 GB/s: 7·16 B enter each, and 200 ns.

    Of 8 KB, one round would carry 56 KB into an NPU; scattered it is 14 KB, and no port waits after the first 200 ns.
    """
    switch = tp.switch(8, bandwidth="1GB/s", latency="100ns")
    one = checked(switch, co.all_reduce(switch, "16B", chunks=1))
    assert one.provenance["stages"] == [8]
    assert one.time_ps == 200_000 + 7 * 16_000
    two = checked(switch, co.all_reduce(switch, "8KB", chunks=1))
    assert two.provenance["scattered"] == 1
    assert two.time_ps == 200_000 + 14 * 1_000_000


def test_the_quickest_route_for_the_size():
    """Two NPUs: a slow link of no latency carries 100 B in 100 ns, a fast one of 1 us 100 KB in 1.1 us."""
    links = [(a, b, rate, t) for a, b in [(0, 1), (1, 0)] for rate, t in [("1GB/s", 0), ("1000GB/s", "1us")]]  # fmt: skip
    pair = tp.from_links(2, links)
    assert checked(pair, co.all_gather(pair, "200B", chunks=1)).time_ps == 100_000
    assert checked(pair, co.all_gather(pair, "200KB", chunks=1)).time_ps == 1_100_000


@pytest.mark.parametrize(
    ("spec", "kind", "size", "ratio"),
    [
        ("dgx-1", "all_reduce", "16KB", 1.10),
        ("torus:4x4", "all_reduce", "16KB", 1.03),
        ("mi250", "all_reduce", "4KB", 1.05),
        ("ndv2:2", "all_reduce", "1KB", 1.06),
        ("dgx-1:2", "all_gather", "4KB", 1.06),
        ("dgx-a100:2", "reduce_scatter", "4KB", 1.001),
    ],
)
def test_few_bytes_on_machines(spec, kind, size, ratio):
    network = tp.parse(spec)
    schedule = checked(network, co.named(kind, network, size, chunks=1))
    best = tacos.bound(network, co.named(kind, network, size))
    assert best.time_ps <= schedule.time_ps <= ratio * best.time_ps


@settings(max_examples=60)
@given(strategies.random_topologies(max_npus=6), st.data())
def test_any_network_and_group(network, data):
    assume(network.npus > 1)
    group = data.draw(st.permutations(range(network.npus)))[: data.draw(st.integers(2, 6))]
    kind = data.draw(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]))
    chunks = data.draw(st.integers(1, 3))
    checked(network, co.named(kind, network, 1000, group=group, chunks=chunks))


def test_one_round_among_many():
    """72 NPUs on a switch, 700 ns, 900 GB/s: 71 KB enter each in 79 ns; 72 chunks need 368,064 transfers."""
    rack = tp.nvl72(1, nvls=False)
    schedule = exchange(rack, co.all_reduce(rack, "1KB", chunks=1))
    assert schedule.provenance["stages"] == [72]
    assert schedule.time_s == pytest.approx(0.779e-6, rel=0.01)
    fewer = exchange(rack, co.all_reduce(rack, "1KB", chunks=1), most_transfers=100_000)
    assert fewer.transfers <= 100_000


def test_refusals():
    with pytest.raises(ValueError, match="2 to 144 members, not 145"):
        exchange(tp.ring(145), co.all_reduce(145, "1KB"))
    with pytest.raises(ValueError, match="at most 1 MB, not 2 MB"):
        exchange(tp.ring(4), co.all_reduce(4, "2MB"))
    with pytest.raises(ValueError, match="not broadcast"):
        exchange(tp.ring(4), co.broadcast(4, "1KB"))


def test_stagings_of_many_transfers_are_dropped_before_the_search_ends():
    """Three stagings have 9,216, 8,064 and 11,264 transfers; four chunks leave the first two below 40,000, eight none."""
    torus = tp.torus(8, 8, bandwidth="50GB/s", latency="500ns")
    coll = co.all_reduce(torus, "256KB")
    memory: dict[str, list[object]] = {}
    exchange(torus, coll.with_chunks(1), memory=memory)
    kept = len(memory["stagings"])
    assert list(exchange.chunk_counts(torus, coll, (1, 2, 4, 8, 16), memory)) == [1, 2, 4]
    assert 0 < len(memory["stagings"]) < kept
