"""Orders: hand-computed costs, brute force as the oracle, planted racks."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos.reorder.patterns import PATTERNS
from tacos.reorder.search import OrderingProblem, cost_of
from tacos.reorder.sources import costs_of


def racks(count, hosts, cross, *, noise=0.0, seed=0):
    """Costs between shuffled hosts in racks, the shuffle, and the costs without noise."""
    random = np.random.default_rng(seed)
    n = count * hosts
    rack = random.permutation(np.repeat(np.arange(count), hosts))
    plain = np.where(rack[:, None] == rack, 1.0, cross)
    np.fill_diagonal(plain, 0)
    return plain * random.uniform(1 - noise, 1 + noise, (n, n)), rack, plain


def ring_seconds(costs, order):
    """2(n - 1) steps of the mean hop."""
    n = len(order)
    return 2 * (n - 1) / n * costs[order, np.roll(order, -1)].sum()


def step_seconds(pattern, latency, byte_s, size, order):
    """An independent evaluation of patterns without rings: the slowest message of every step."""
    total = 0.0
    for term in PATTERNS[pattern].terms(len(order), size):
        times = [
            latency[order[a], order[b]] * term.latency + byte_s[order[a], order[b]] * term.bytes
            for a, b in zip(term.src, term.dst, strict=True)
        ]
        total += term.weight * max(times)
    return total


def test_ring_of_two_racks_by_hand():
    """Racks {0, 2} and {1, 3}, hops of 1 and 5: 0 1 2 3 takes 6/4 · 20, 0 2 1 3 takes 6/4 · 12."""
    near = np.array([[1, 5, 1, 5], [5, 1, 5, 1], [1, 5, 1, 5], [5, 1, 5, 1]], float)
    found = tacos.reorder(near)
    assert (found.order[0], found.cost, found.cost_before) == (0, 18.0, 30.0)
    assert found.exact
    assert found.lower_bound == 18.0
    assert found.gap == 0


def test_halving_doubling_by_hand():
    """Of 1 GB, neighbours exchange 500 MB twice and opposites 250 MB twice, at 1 GB/s or 0.1 GB/s.

    Pairs {0, 2} and {1, 3} are fast: 0 2 1 3 takes 2 · 0.5 + 2 · 2.5 s, rank order 2 · 5 + 2 · 0.25 s.
    """
    rate = np.full((4, 4), 1e8)
    rate[[0, 2, 1, 3], [2, 0, 3, 1]] = 1e9
    found = tacos.reorder(np.zeros((4, 4)), "halving-doubling", bandwidth=rate, size="1GB")
    assert found.cost == pytest.approx(6.0)
    assert found.cost_before == pytest.approx(10.5)
    assert {frozenset(found.order[:2]), frozenset(found.order[2:])} == {
        frozenset({0, 2}),
        frozenset({1, 3}),
    }


def test_shared_uplinks_by_hand():
    """Two racks of 2 with uplinks as fast as a host: in 0 2 1 3 every hop crosses, so uplinks carry two messages."""
    rows = [(host, 4 + host // 2, 1e9, 0) for host in range(4)]
    rows += [(4, 6, 1e9, 0), (5, 6, 1e9, 0)]
    network = tacos.topology.from_links(
        4, rows + [(b, a, rate, late) for a, b, rate, late in rows], switches=3
    )
    terms = PATTERNS["ring"].terms(4, 4e9)
    problem = OrderingProblem(costs_of(network), terms, latency=True, turns=True)
    assert cost_of(problem, [0, 1, 2, 3]) == pytest.approx(6.0)
    assert cost_of(problem, [0, 2, 1, 3]) == pytest.approx(12.0)
    shuffled = tacos.topology.renumber(network, [0, 2, 1, 3])
    found = tacos.reorder(shuffled, size=4 * 10**9)
    assert (found.cost_before, found.cost, found.exact) == pytest.approx((12.0, 6.0, True))


@given(
    seed=st.integers(0, 10**6),
    hosts=st.integers(2, 6),
    pattern=st.sampled_from(sorted(PATTERNS.keys() - {"nccl", "hierarchical"})),
)
def test_small_orders_are_the_best_of_all(seed, hosts, pattern):
    assume(not PATTERNS[pattern].obstacle(hosts))
    random = np.random.default_rng(seed)
    latency, byte_s = random.uniform(1, 2, (hosts, hosts)), random.uniform(0, 2, (hosts, hosts))
    for matrix in (latency, byte_s):
        np.fill_diagonal(matrix, 0)
    rate = 1 / np.where(np.eye(hosts, dtype=bool), 1, byte_s)
    found = tacos.reorder(latency, pattern, bandwidth=rate, size=4)
    terms = PATTERNS[pattern].terms(hosts, 4)
    problem = OrderingProblem(costs_of(latency, rate), terms, latency=True, turns=False)
    costs = [cost_of(problem, order) for order in itertools.permutations(range(hosts))]
    assert found.cost == pytest.approx(min(costs), rel=1e-9)
    assert found.cost_before == pytest.approx(costs[0], rel=1e-9)
    assert found.lower_bound <= found.cost * (1 + 1e-12)
    if not terms[0].ring:
        assert found.cost == pytest.approx(
            step_seconds(pattern, latency, byte_s, 4, list(found.order)), rel=1e-9
        )


@pytest.mark.parametrize(("cross", "gain"), [(5.0, 3.24), (6.1, 3.7)])
def test_planted_racks_are_recovered_under_noise(cross, gain):
    """64 hosts in 4 racks: 60 hops inside racks and 4 across, against 47.2 across in a random order."""
    noisy, _, plain = racks(4, 16, cross, noise=0.1, seed=3)
    found = tacos.reorder(noisy, effort=0.2)
    planted = 2 * 63 / 64 * (60 + 4 * cross)
    assert ring_seconds(plain, np.array(found.order)) <= 1.01 * planted
    random = np.mean(
        [ring_seconds(plain, np.random.default_rng(s).permutation(64)) for s in range(200)]
    )
    assert random / ring_seconds(plain, np.array(found.order)) == pytest.approx(gain, rel=0.02)
    assert found.gap < 0.03


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), hosts=st.integers(13, 20))
def test_bounds_are_below_and_orders_never_worse(seed, hosts):
    random = np.random.default_rng(seed)
    costs = random.uniform(0.1, 2, (hosts, hosts))
    for pattern in ("ring", "two-way-ring", "halving-doubling", "double-binary-tree"):
        found = tacos.reorder(costs, pattern, effort=0.001)
        assert 0 < found.lower_bound <= found.cost <= found.cost_before
        assert sorted(found.order) == list(range(hosts))


def test_one_tree_bound_is_below_the_best_tour():
    """Brute force over all tours of 7 hosts."""
    from tacos._core import assignment_bound, one_tree_bound

    hop = np.random.default_rng(1).integers(1, 1000, (7, 7))
    best = min(
        sum(hop[a, b] for a, b in itertools.pairwise((0, *rest, 0)))
        for rest in itertools.permutations(range(1, 7))
    )
    flat = np.ascontiguousarray(hop, np.int64).ravel()
    assert one_tree_bound(flat, 7, upper=int(best), rounds=500) <= best
    successors = min(
        sum(hop[i, p[i]] for i in range(7))
        for p in itertools.permutations(range(7))
        if all(p[i] != i for i in range(7))
    )
    assert assignment_bound(flat, 7) == successors <= best


def test_a_program_is_a_pattern():
    """The program of a ring in rank order gains what the ring gains."""
    ring = tacos.topology.ring(8)
    whole = tacos.collective.all_reduce(ring, "8MB", chunks=1)
    program = tacos.lower(tacos.synthesize(ring, whole, engine="ring", order="rank"))
    costs, _, _ = racks(2, 4, 5.0, seed=2)
    found = tacos.reorder(costs, program)
    assert found.cost == 14 * 5.0  # each of 14 steps waits for a hop between the racks
    shuffled = tacos.topology.renumber(
        tacos.topology.fat_tree(2, 4, uplinks=1, oversubscription=4), [0, 2, 4, 6, 1, 3, 5, 7]
    )
    assert tacos.reorder(shuffled, program, size="8MB").speedup == pytest.approx(3.72, rel=0.01)


def test_ranks_of_a_host_stay_together():
    """Four hosts of two ranks; the hosts are in two racks, alternating."""
    names = [f"{host}:{number}" for host in "abcd" for number in range(2)]
    rows = [(i, 8 + i // 2 % 2, 1e9, 1e-6) for i in range(8)]
    rows += [(8, 10, 1e9, 1e-6), (9, 10, 1e9, 1e-6)]
    network = tacos.topology.from_links(
        8,
        rows + [(b, a, rate, late) for a, b, rate, late in rows],
        switches=3,
        names=[*names, "left", "right", "core"],
    )
    found = tacos.reorder(network, size="latency")
    first = found.hosts.index("a")
    assert "c" in (found.hosts[first - 1], found.hosts[(first + 1) % 4])
    assert found.order == tuple(2 * "abcd".index(host) + k for host in found.hosts for k in (0, 1))


def test_the_same_seed_gives_the_same_order_in_threads():
    costs, _, _ = racks(4, 8, 5.0, noise=0.1)
    orders = []

    def work():
        orders.append(tacos.reorder(costs, "halving-doubling", seed=5, effort=0.02).order)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert orders[0] == orders[1] == tacos.reorder(
        costs, "halving-doubling", seed=5, effort=0.02
    ).order  # fmt: skip


def test_an_interrupt_ends_the_search():
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacos.reorder(racks(4, 64, 5.0, noise=0.1)[0], progress=interrupt)


def test_nccl_takes_the_faster_of_ring_and_tree():
    costs, _, _ = racks(4, 4, 5.0)
    both = [tacos.reorder(costs, name, effort=0.1) for name in ("ring", "double-binary-tree")]
    found = tacos.reorder(costs, "nccl", effort=0.1)
    assert found.cost == min(one.cost for one in both)
    assert found.cost_before == min(one.cost_before for one in both)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ([np.ones((2, 3))], {}, r"the matrix is 2 x 3; it must be square"),
        ([np.ones((1, 1))], {}, r"an order needs at least two hosts; the matrix has 1"),
        (
            [np.array([[0, np.nan, 1], [1, 0, np.nan], [1, 1, 0]])],
            {},
            r"the matrix has no value for 0 to 1, 1 to 2$",
        ),
        ([np.array([[0, -1], [1, 0]])], {}, r"the matrix is negative for 0 to 1"),
        (
            [np.ones((4, 4)), "rng"],
            {},
            r"unknown pattern 'rng' \(did you mean ring\?\); expected one of",
        ),
        (
            [np.ones((5, 5)), "bcube"],
            {},
            r"pattern bcube does not suit 5 hosts: it needs a product",
        ),
        ([np.ones((4, 4))], {"size": "foo"}, r"size 'foo' is not understood"),
        (
            [np.ones((4, 4))],
            {"size": "1MB"},
            r"size 1MB needs bandwidths, but the matrix has only latencies",
        ),
        (
            [np.ones((3, 3))],
            {"hosts": ["0", "7"]},
            r"hosts names 7, which the matrix does not have",
        ),
        ([np.ones((3, 3))], {"hosts": ["0", "0"]}, r"hosts names 0 more than once"),
        (
            [np.ones((3, 3))],
            {"bandwidth": np.ones((2, 2)), "size": 5},
            r"bandwidth is of 2 hosts, but the latencies are of 3",
        ),
    ],
)
def test_mistakes_get_one_sentence(arguments, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        tacos.reorder(*arguments, **options)
