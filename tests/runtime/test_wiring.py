"""The wiring that is inferred from measurements, with simulated measurements of known networks."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tacos
from tacos import topology as tp
from tacos.runtime.measure.wiring import Pair, Spread, Together, find_wiring

pytestmark = pytest.mark.unsanitized


class Known:
    """A known network: messages take the fewest hops and share links fairly, with 5 % of noise."""

    def __init__(self, network, seed=0):
        self.network, self.size = network, network.npus
        self.random = Random(seed)
        self.paths: dict[tuple[int, int], list[int]] = {}
        self.out: list[list[tuple[int, int]]] = [[] for _ in range(network.nodes)]
        for link, (src, dst) in enumerate(zip(network.link_src, network.link_dst, strict=True)):
            self.out[src].append((int(dst), link))

    def noise(self):
        return self.random.uniform(0.95, 1.05)

    def path(self, src, dst):
        if (src, dst) not in self.paths:
            self.paths[src, dst] = self.shortest(src, dst)
        return self.paths[src, dst]

    def shortest(self, src, dst):
        before: dict[int, Any] = {src: None}
        queue = deque([src])
        while dst not in before:
            node = queue.popleft()
            for after, link in self.out[node]:
                if after not in before:
                    before[after] = (node, link)
                    queue.append(after)
        links = []
        while dst != src:
            dst, link = before[dst]
            links.append(link)
        return links

    def one_way(self, src, dst):
        path = self.path(src, dst)
        latency = sum(int(self.network.link_latency_ps[link]) for link in path) * 1e-12
        rate = min(int(self.network.link_bandwidth_Bps[link]) for link in path)
        values = [rate * self.noise() for _ in range(5)]
        return Pair(src, dst, Spread(latency, latency, latency), Spread.of(values))

    def alone(self, a, b):
        return self.one_way(a, b), self.one_way(b, a)

    def together(self, messages):
        load: Counter[int] = Counter()
        for pair in messages:
            for link in self.path(pair.src, pair.dst):
                load[link] += pair.bandwidth_Bps.median
        slow = max(b / int(self.network.link_bandwidth_Bps[link]) for link, b in load.items())
        slow *= self.noise()
        return Together(slow, sum(pair.bandwidth_Bps.median for pair in messages) / slow)

    def each(self, messages):
        load: Counter[int] = Counter()
        for pair in messages:
            for link in self.path(pair.src, pair.dst):
                load[link] += pair.bandwidth_Bps.median
        full = {link: b / int(self.network.link_bandwidth_Bps[link]) for link, b in load.items()}
        return [
            self.noise() * max(full[link] for link in self.path(m.src, m.dst)) for m in messages
        ]


def found(network, seed=0):
    names = [f"host:{i}" for i in range(network.npus)]
    return find_wiring(Known(network, seed), names)


def links(network):
    return sorted(zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True))


def rates(network):
    ends = zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True)
    return dict(zip(ends, network.link_bandwidth_Bps.tolist(), strict=True))


DIRECT = [
    "ring:2",
    "ring:3",
    "ring:4",
    "ring:5",
    "ring:6",
    "mesh:4",
    "mesh:2x3",
    "fc:5",
    "hypercube:3",
]


@given(spec=st.sampled_from(DIRECT), seed=st.integers(0, 1000))
def test_direct_networks_are_found_link_by_link(spec, seed):
    """Pairs whose messages other ranks relay are not taken for links."""
    network = tp.parse(spec)
    wiring = found(network, seed)
    measured = wiring.topology()
    assert links(measured) == links(network)
    assert measured.link_bandwidth_Bps.tolist() == pytest.approx(
        [rates(network)[ends] for ends in zip(measured.link_src.tolist(), measured.link_dst.tolist(), strict=True)],
        rel=0.06,
    )  # fmt: skip
    assert list(measured.names) == [f"host:{i}" for i in range(network.npus)]
    for pair in wiring.pairs:
        assert (pair.relayed_by is None) == ((pair.src, pair.dst) in links(network))


@given(seed=st.integers(0, 1000))
def test_links_of_different_speeds(seed):
    random = Random(seed)
    rows = [
        (a, (a + turn) % 5, random.uniform(1e9, 3e9), 1e-6) for a in range(5) for turn in (1, -1)
    ]
    network = tp.from_links(5, rows)
    measured = found(network, seed).topology()
    for ends, rate in rates(measured).items():
        if ends in rates(network):
            assert rate == pytest.approx(rates(network)[ends], rel=0.06)
    assert set(rates(network)) <= set(rates(measured))


@given(ranks=st.sampled_from([3, 4, 8, 12]), seed=st.integers(0, 1000))
def test_ports_of_a_switch_are_found(ranks, seed):
    network = tp.switch(ranks, bandwidth="10GB/s", latency="1us")
    measured = found(network, seed).topology()
    assert (measured.npus, measured.nodes) == (ranks, ranks + 1)
    assert links(measured) == links(network)
    assert measured.link_bandwidth_Bps.tolist() == pytest.approx([10e9] * 2 * ranks, rel=0.12)
    assert set(measured.link_latency_ps.tolist()) == set(network.link_latency_ps.tolist())


def two_boxes(between):
    """Two ranks at each of two switches, and a link between the switches."""
    rows = []
    for npu in range(4):
        rows += [(npu, 4 + npu // 2, 10e9, 1e-6), (4 + npu // 2, npu, 10e9, 1e-6)]
    rows += [(4, 5, between, 0), (5, 4, between, 0)]
    return tp.from_links(4, rows, switches=2)


@given(seed=st.integers(0, 1000))
def test_a_trunk_between_boxes_is_found(seed):
    """Messages between the boxes share the trunk even if they have no rank in common."""
    wiring = found(two_boxes(2.5e9), seed)
    trunks = [switch for switch in wiring.switches if switch.trunk_Bps is not None]
    assert len(trunks) == 2  # one each way
    for switch in trunks:
        assert switch.trunk_Bps == pytest.approx(2.5e9, rel=0.12)
        outs = {port.rank for port in switch.ports if port.out}
        ins = {port.rank for port in switch.ports if not port.out}
        assert (outs, ins) in [({0, 1}, {2, 3}), ({2, 3}, {0, 1})]
    network = wiring.topology()
    bound = tacos.bound(network, tacos.collective.all_reduce(network, "100MB")).time_s
    truth = tacos.bound(two_boxes(2.5e9), tacos.collective.all_reduce(4, "100MB")).time_s
    assert bound == pytest.approx(truth, rel=0.15)


def boxes(count, ranks, nic):
    """Boxes of some ranks, each with one NIC to a common switch."""
    npus, rows = count * ranks, []
    for box in range(count):
        here = npus + box
        for npu in range(box * ranks, (box + 1) * ranks):
            rows += [(npu, here, 10e9, 1e-6), (here, npu, 10e9, 1e-6)]
        rows += [(here, npus + count, nic, 1e-6), (npus + count, here, nic, 1e-6)]
    return tp.from_links(npus, rows, switches=count + 1)


@settings(max_examples=25)
@given(shape=st.sampled_from([(3, 2), (4, 2), (3, 3), (2, 4)]), seed=st.integers(0, 1000))
def test_the_nics_of_boxes_are_found(shape, seed):
    """Only the ranks of a box share its NIC; the NICs of two boxes are one trunk between them."""
    count, ranks = shape
    network = boxes(count, ranks, 2.5e9)
    wiring = found(network, seed)
    measured = wiring.topology()
    if count > 2:
        [fabric] = [switch for switch in wiring.switches if switch.shared]
        assert fabric.trunk_Bps is None
        groups = [
            (fabric.ports[one.ports[0]].out, sorted(fabric.ports[i].rank for i in one.ports))
            for one in fabric.shared
        ]
        every = [list(range(box * ranks, (box + 1) * ranks)) for box in range(count)]
        assert sorted(groups) == [(out, box) for out in (False, True) for box in every]
        assert [one.bandwidth_Bps for one in fabric.shared] == pytest.approx(
            [2.5e9] * 2 * count, rel=0.15
        )
    wanted = tacos.collective.all_gather(measured, "100MB")
    truth = tacos.bound(network, tacos.collective.all_gather(network, "100MB")).time_s
    assert tacos.bound(measured, wanted).time_s == pytest.approx(truth, rel=0.2)


def test_what_was_measured_is_plain_json():
    plain = found(tp.ring(4)).to_json()
    assert plain["names"][3] == "host:3"
    assert plain["pairs"][0]["bandwidth_Bps"].keys() == {"min", "median", "max"}
    assert [
        pair["relayed_by"] for pair in plain["pairs"] if (pair["src"], pair["dst"]) == (0, 2)
    ] != [None]


@settings(max_examples=5)
@given(seed=st.integers(0, 1000), racks=st.integers(2, 4), hosts=st.integers(2, 4))
def test_racks_are_found_whatever_the_order(seed, racks, hosts):
    """Hosts in racks whose uplinks are as fast as one host."""
    n = racks * hosts
    assume(n >= 6)
    rack = [i // hosts for i in range(n)]
    Random(seed).shuffle(rack)
    rows = [(i, n + rack[i], 1e9, 1e-6) for i in range(n)]
    rows += [(n + r, n + racks, 1e9, 1e-6) for r in range(racks)]
    network = tp.from_links(
        n, rows + [(b, a, rate, late) for a, b, rate, late in rows], switches=racks + 1
    )
    wiring = find_wiring(Known(network, seed), [f"h{i}" for i in range(n)])
    [fabric] = wiring.switches
    expected = {tuple(i for i in range(n) if rack[i] == r) for r in range(racks)}
    assert {one.ranks for one in fabric.racks} == expected
    for one in fabric.racks:
        assert one.up_Bps == pytest.approx(1e9, rel=0.12)
        assert one.down_Bps == pytest.approx(1e9, rel=0.12)
    measured = wiring.topology()
    assert measured.switches == racks + 1
    order = tacos.reorder(measured, effort=0.05).order
    changes = sum(rack[a] != rack[b] for a, b in zip(order, order[1:] + order[:1], strict=True))
    assert changes == racks
