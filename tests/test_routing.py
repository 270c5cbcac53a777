"""Routing: what switches do with a message that has several equal paths."""

from __future__ import annotations

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos import collective as co
from tacos import topology as tp
from tacos.execution import execution
from tacos.schedule import Routes, paths, retime, routed, routes
from tacos.simulate import simulate
from tests.support import oracle, sharing
from tests.support.strategies import switched_topologies

US = 10**6
SPEED = {"bandwidth": "1GB/s", "latency": "1us"}
ROUTINGS = ("spread", "destination", "first")


def pair(topology, src, dst):
    return routes(topology, pairs=([src], [dst]))


def sent(topology, messages):
    """A schedule of messages (src, dst, bytes), one after the other."""
    table = routes(topology, pairs=tuple(np.array([m[:2] for m in messages]).T))
    collective = co.custom(
        topology.npus,
        [m[2] for m in messages],
        [[m[0]] for m in messages],
        [[m[1]] for m in messages],
    )
    count = len(messages)
    return retime(collective, table, route=range(count), chunk=range(count), step=0)


def test_what_each_routing_does():
    """Between the leaves of a tree with three spines: all spines, that of the destination's number, and the first."""
    spread, chosen, first = (pair(tp.fat_tree(2, 3, routing=routing), 0, 5) for routing in ROUTINGS)
    up, down = [0], [11]
    links = spread.topology.link_src.tolist(), spread.topology.link_dst.tolist()
    number = {ends: i for i, ends in enumerate(zip(*links, strict=True))}
    middle = [(number[6, 8 + spine], number[8 + spine, 7]) for spine in range(3)]
    assert spread.links.tolist() == up + [a for a, _ in middle] + [b for _, b in middle] + down
    assert (spread.kinds.tolist(), chosen.kinds.tolist(), first.kinds.tolist()) == ([3], [0], [0])
    assert spread.shares.tolist() == [1.0, *[1 / 3] * 6, 1.0]
    assert chosen.links.tolist() == [*up, *middle[2], *down]
    assert first.links.tolist() == [*up, *middle[0], *down]
    # One switch leaves no choice.
    assert pair(spread.topology, 0, 1).kinds.tolist() == [0]


def test_destinations_take_all_spines_of_all_levels():
    """In a tree of pods, the messages to one pod use each link between upper switches and core switches once."""
    topology = tp.fat_tree(2, 2, 2, routing="destination")
    table = routes(topology, pairs=([0] * 4, [4, 5, 6, 7]))
    used = np.bincount(table.links, minlength=topology.links)
    above = (topology.link_src >= 12) & (topology.link_dst >= 12)  # upper and core switches
    leaving = above & (topology.link_src < 14)
    assert used[leaving].tolist() == [1, 1, 1, 1]


def test_a_message_divides():
    """4000 B over a port of 1 GB/s and two spines whose links have 1 GB/s: the port takes 4 us, each spine's links 2 us,
    and each of four hops 1 us of latency. A second message to another port of the same leaves shares the spines."""
    topology = tp.fat_tree(2, 2, **SPEED)
    one = sent(topology, [(0, 2, 4000)])
    assert one.time_ps == 8 * US
    busy = dict(enumerate(one.link_bytes().tolist()))
    assert sorted(size for size in busy.values() if size) == [2000] * 4 + [4000] * 2
    # One at a time, the second begins when the first has left the uplinks, after 2 us; shared, both go at full speed.
    two = sent(topology, [(0, 2, 4000), (1, 3, 4000)])
    assert two.time_ps == 10 * US
    assert simulate(two, timing="shared").time_ps == 8 * US
    assert tacos.verify(two, allow_unneeded=True).ok


def test_the_slowest_path_holds_up_a_message():
    """Two spines, one with links of a quarter of the speed: half of the 4000 B take 8 us on them."""
    links = [(0, 2, 1e9, 1e-6), (3, 1, 1e9, 1e-6)]
    links += [(2, 4, 1e9, 1e-6), (4, 3, 1e9, 1e-6), (2, 5, 0.25e9, 1e-6), (5, 3, 0.25e9, 1e-6)]
    topology = tp.from_links(2, links, switches=4, connected=False)
    one = sent(topology, [(0, 1, 4000)])
    assert one.time_ps == 12 * US
    assert simulate(one, timing="shared").time_ps == 12 * US


def test_unequal_shares_of_a_link():
    """Leaf 3 has lost the cable to one of two spines, so what goes there takes the other spine alone: of the uplink of
    leaf 0 to that spine, 0 -> 2 takes all it can and 1 -> 4 half of its rate. Rates x + y/2 = 1 with x = y are 2/3."""
    links = []
    for npu, leaf in ((0, 5), (1, 5), (2, 6), (3, 6), (4, 7)):
        links += [(npu, leaf, 1e9, 0), (leaf, npu, 1e9, 0)]
    for leaf, spine in ((5, 8), (5, 9), (6, 8), (7, 8), (7, 9)):
        links += [(leaf, spine, 1e9, 0), (spine, leaf, 1e9, 0)]
    topology = tp.from_links(5, links, switches=5)
    trace = simulate(sent(topology, [(0, 2, 2000), (1, 4, 2000)]), timing="shared")
    assert trace.arrival_ps.tolist() == [3 * US, 3 * US]
    # The same with a message that has the port of its destination to itself: it keeps its rate.
    trace = simulate(sent(topology, [(0, 2, 2000), (1, 4, 4000)]), timing="shared")
    assert sorted(trace.arrival_ps.tolist()) == [3 * US, 5 * US]


@settings(max_examples=60, deadline=None)
@given(topology=switched_topologies(), size=st.integers(1, 10**6))
def test_shares_conserve_bytes(topology, size):
    """Every node passes on what it gets, and the shares are those of the oracle."""
    src, dst = np.nonzero(~np.eye(topology.npus, dtype=bool))
    table = routes(topology, pairs=(src, dst))
    for r, links in enumerate(oracle.route_links(table)):
        shares = oracle.shares(topology, int(table.kinds[r]), links)
        given_ = table.shares[table.link_begin[r] : table.link_begin[r + 1]]
        assert np.allclose(given_, [float(share) for share in shares])
        balance: dict[int, Fraction] = {int(src[r]): Fraction(1), int(dst[r]): Fraction(-1)}
        for link, share in zip(links, shares, strict=True):
            a, b = int(topology.link_src[link]), int(topology.link_dst[link])
            balance[a] = balance.get(a, Fraction(0)) - share
            balance[b] = balance.get(b, Fraction(0)) + share
        assert not any(balance.values())
    one = sent(topology, [(int(src[0]), int(dst[0]), size)])
    assert tacos.verify(one).ok == (not oracle.examine(one))


@settings(max_examples=80, deadline=None)
@given(topology=switched_topologies(), data=st.data())
def test_messages_take_as_long_as_the_slow_loops_say(topology, data):
    """All messages at once, one at a time on links and with fair rates."""
    ends = st.tuples(*[st.integers(0, topology.npus - 1)] * 2).filter(lambda e: e[0] != e[1])
    listed = data.draw(
        st.lists(st.tuples(ends, st.sampled_from([1, 999, 4096])), min_size=1, max_size=5)
    )
    schedule = sent(topology, [(*e, size) for e, size in listed])
    assert not oracle.examine(schedule, allow_unneeded=True)
    assert tacos.verify(schedule, allow_unneeded=True).ok
    placed, intervals = sharing.run_schedule(schedule)
    trace = simulate(schedule, timing="shared")
    assert trace.time_ps == max(placed.values())
    assert sorted(trace.end_ps.tolist()) == sorted(end for _, end, _, _ in intervals)


@settings(max_examples=40, deadline=None)
@given(topology=switched_topologies(), data=st.data())
def test_the_bound_holds_for_every_routing(topology, data):
    kind = data.draw(st.sampled_from(["all_gather", "all_to_all", "all_reduce"]))
    collective = getattr(co, kind)(topology, data.draw(st.sampled_from([64, 10**6])), chunks=1)
    engine = "direct" if kind == "all_to_all" else "ring"
    least = tacos.bound(topology, collective).time_ps
    for routing in ROUTINGS:
        network = tp.from_links(
            topology.npus,
            (topology.link_src, topology.link_dst, topology.link_bandwidth_Bps, topology.link_latency_ps * 1e-12),
            switches=topology.switches, link_model=topology.link_model, forwarding=topology.forwarding,
            routing=routing,
        )  # fmt: skip
        found = tacos.synthesize(network, collective, engine=engine)
        assert found.time_ps >= tacos.bound(network, collective).time_ps
        times = execution(found)
        assert times is not None
        assert times.order_ps == found.time_ps  # its routes are those of messages
    assert least == tacos.bound(network, collective).time_ps or topology.reduce_bandwidth_Bps


def test_the_order_of_a_schedule_follows_the_routing():
    """A schedule over its own paths takes the paths of messages when it is executed."""
    topology = tp.fat_tree(2, 2, routing="first", **SPEED)
    ends = [[(0, 4), (4, 6), (6, 5), (5, 2)], [(1, 4), (4, 7), (7, 5), (5, 3)]]
    table = routes(topology, links=ends)
    collective = co.custom(4, [4000, 4000], [[0], [1]], [[2], [3]])
    schedule = retime(collective, table, route=[0, 1], chunk=[0, 1], step=0)
    times = execution(schedule)
    assert schedule.time_ps == 8 * US  # over both spines
    assert times is not None
    assert times.order_ps == 12 * US  # over the first, one after the other
    assert execution(schedule, target="schedule").order_ps == 8 * US
    spread = Routes(tp.fat_tree(2, 2, **SPEED), table.kinds, table.link_begin, table.links)
    assert routed(spread).kinds.tolist() == [3, 3]


def test_routing_is_part_of_a_network(tmp_path):
    topology = tp.fat_tree(2, 2, routing="destination")
    assert topology != tp.fat_tree(2, 2)
    assert pickle.loads(pickle.dumps(topology)) == topology
    for name in ("a.yaml", "a.json", "a.graphml"):
        tacos.save(topology, tmp_path / name)
        assert tacos.load(tmp_path / name).routing == "destination"
    schedule = tacos.synthesize(topology, co.all_to_all(topology, "1MB"), engine="direct")
    tacos.save(schedule, tmp_path / "a.tacos")
    assert tacos.load(tmp_path / "a.tacos") == schedule
    assert tp.drop_links(topology, (4, 6), both=True).routing == "destination"
    assert tp.drop_links(topology, (4, 6), both=True).healthy() == topology
    assert tp.parse("fat-tree:2x2@destination").routing == "destination"
    assert tp.parse("fat-tree:2x2@50GB/s,1us,first").routing == "first"
    assert tp.parse("dgx-h100:2@destination").routing == "destination"
    assert tp.describe(topology)["routing"] == "destination"


def test_a_spread_schedule_survives_its_file(tmp_path):
    topology = tp.fat_tree(2, 2)
    schedule = tacos.synthesize(topology, co.all_to_all(topology, "1MB"), engine="direct")
    assert 3 in schedule.routes.kinds
    tacos.save(schedule, tmp_path / "a.tacos")
    assert tacos.load(tmp_path / "a.tacos") == schedule


def test_an_unknown_routing_is_refused():
    with pytest.raises(
        ValueError, match='routing is "hash"; it must be "spread", "destination" or "first"'
    ):
        tp.fat_tree(2, 2, routing="hash")
    with pytest.raises(tacos.errors.SpecError, match="hash"):
        tp.parse("fat-tree:2x2@1GB/s,1us,hash")


@pytest.mark.parametrize(
    ("links", "wrong"),
    [
        ([(0, 4), (4, 6), (6, 5)], "ends at switch 1, which neither multicasts nor reduces"),
        ([(0, 4), (4, 6), (4, 7), (6, 5), (5, 2)], "does not lead on from switch 3 to its end"),
        ([(0, 4), (6, 5), (4, 6), (5, 2)], "is not fed by an earlier link"),
        ([(0, 4), (4, 6), (6, 5), (4, 6), (5, 2)], "twice"),
        ([(0, 4), (4, 6), (6, 5), (5, 2), (4, 7), (7, 5), (5, 2)], "after links that it feeds"),
        ([(0, 4), (4, 1), (1, 4), (4, 6)], "passes through npu 1"),
    ],
)
def test_wrong_spread_routes_are_refused(links, wrong):
    with pytest.raises(ValueError, match=wrong):
        routes(tp.fat_tree(2, 2), links=[links], kinds="spread")


def test_one_path_per_pair():
    topology = tp.fat_tree(2, 2)
    assert paths(topology, ([0], [3])).kinds.tolist() == [0]
    assert len(paths(topology, ([0], [3])).links) == 4


@pytest.mark.parametrize("kind", ["all_to_all", "all_gather", "all_reduce"])
@pytest.mark.parametrize(
    "topology",
    [tp.fat_tree(4, 4), tp.fat_tree(2, 2, 2), tp.fat_tree(4, 6, uplinks=2, oversubscription=3)],
    ids=["two levels", "three levels", "oversubscribed"],
)
def test_trees_are_filled(topology, kind):
    """Executed times are within 5 % of the bound."""
    found = tacos.synthesize(topology, getattr(co, kind)(topology, "64MB"))
    assert (found.efficiency or 0) > 1 / 1.05
