"""Local search over schedules: never slower, always correct."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacos
from tacos.execution import execution
from tests.support.schedules import relay
from tests.support.strategies import topologies

KINDS = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce"]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_it_is_never_longer_and_always_right(data):
    topology = data.draw(topologies())
    kind = data.draw(st.sampled_from(KINDS))
    chunks = data.draw(st.integers(1, 3))
    collective = tacos.collective.named(kind, topology, 997, chunks=chunks)
    engine = data.draw(st.sampled_from(["greedy", "ring", "direct"]))
    before = tacos.synthesize(topology, collective, engine=engine)
    seed = data.draw(st.integers(0, 3))
    after = tacos.refine(before, hops=20_000, seed=seed)
    assert after.time_ps <= before.time_ps
    assert tacos.verify(after).ok
    assert after == tacos.refine(before, hops=20_000, seed=seed)
    assert after.collective == before.collective


def chain(kind):
    """A chunk that goes from 0 over 1 to 2 (or back), though 0 and 2 have a link."""
    clique = tacos.topology.fully_connected(3, bandwidth="1GB/s", latency="1us")
    collective = tacos.collective.named(kind, clique, "1KB", chunks=1)
    hops = ([0, 1], [1, 2]) if kind == "broadcast" else ([2, 1], [1, 0])
    op = 0 if kind == "broadcast" else 1
    table = tacos.routes(clique, pairs=hops)
    return tacos.retime(collective, table, route=[0, 1], chunk=0, step=[0, 1], op=op)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_another_route_is_taken(kind):
    """Two hops of 1 us + 1 us become two at once."""
    before = chain(kind)
    assert before.time_s == 4e-6
    after = tacos.refine(before, effort="fast")
    assert after.time_s == 2e-6
    assert tacos.verify(after).ok
    assert after.provenance["refined_from_s"] == 4e-6


def test_gaps_are_used():
    """Node 0 sends two chunks to 1 and then two to 2, which relays them to 3 at the end.

    Each takes 1 us. In the given order chunks for 3 reach 2 after 3 and 4 us and 3 after 4 and 5 us; with
    those first, they are there after 2 and 3 us, and the others reach 1 after 3 and 4 us.
    """
    links = [(0, 4, 1e9, 0), (4, 1, 1e9, 0), (4, 2, 1e9, 0), (2, 3, 1e9, 0)]
    links += [(1, 0, 1e9, 0), (3, 0, 1e9, 0)]
    topology = tacos.topology.from_links(4, links, switches=1)
    collective = tacos.collective.send_recv(
        topology, [(0, 1, "1KB"), (0, 1, "1KB"), (0, 3, "1KB"), (0, 3, "1KB")], chunks=1
    )
    table = tacos.routes(topology, links=[[0, 1], [0, 2], [3]])
    before = tacos.retime(
        collective,
        table,
        route=[0, 0, 1, 1, 2, 2],
        chunk=[0, 1, 2, 3, 2, 3],
        step=[0, 1, 2, 3, 4, 5],
        reads=[0, 0, 0, 0, 1, 1],
    )
    assert before.time_ps == 5_000_000
    after = tacos.refine(before, effort="fast")
    assert after.time_ps == 4_000_000
    assert tacos.verify(after).ok


@pytest.mark.parametrize("kind", ["all_gather", "all_reduce", "reduce_scatter"])
def test_it_helps_where_links_are_unequal(kind):
    box = tacos.topology.mi250(1)
    collective = tacos.collective.named(kind, box, "16MB", chunks=4)
    before = tacos.synthesize(box, collective, engine="greedy")
    after = tacos.refine(before, effort="fast")
    assert after.time_s < 0.95 * before.time_s
    assert tacos.verify(after).ok


def test_it_helps_where_only_the_order_is_wrong():
    """The trees load all links of the mesh alike, so other trees alone gain nothing; moved in time, transfers make room for them."""
    mesh = tacos.topology.mesh(4, 4, bandwidth="1GB/s", latency="500ns")
    collective = tacos.collective.all_reduce(mesh, "16KB", chunks=16)
    before = tacos.synthesize(mesh, collective, engine="forest")
    after = tacos.refine(before, hops=2_000_000, target="schedule")
    assert after.time_s < 0.93 * before.time_s
    assert tacos.verify(after).ok


def test_it_helps_where_sums_take_time():
    """There the transfers cannot be moved late and early, but chunks can still take other hops."""
    mesh = tacos.topology.mesh(4, 4, reduce_bandwidth="100GB/s")
    gather = tacos.collective.all_gather(mesh, "16KB", chunks=4)
    schedule = tacos.synthesize(mesh, gather, engine="greedy")
    assert tacos.refine(schedule).time_ps < schedule.time_ps


def test_what_meets_the_bound_or_cannot_change_comes_back_as_it_is():
    ring = tacos.topology.ring(4, latency="0s")
    best = tacos.synthesize(ring, tacos.collective.all_gather(ring, "4MB", chunks=2))
    assert tacos.refine(best) is best
    everywhere = tacos.synthesize(ring, tacos.collective.all_reduce(ring, 64), engine="one-shot")
    assert tacos.refine(everywhere) is everywhere
    line = tacos.topology.mesh(4)
    waits = tacos.synthesize(line, tacos.collective.all_gather(line, "4MB"), engine="direct")
    assert tacos.refine(waits) is waits


def test_what_is_too_large_comes_back_at_once():
    many = tacos.topology.switch(1000)
    spread = tacos.synthesize(many, tacos.collective.broadcast(many, "1KB"), engine="direct")
    assert tacos.refine(spread) is spread
    torus = tacos.topology.torus(64, 64)
    orbit = tacos.synthesize(torus, tacos.collective.all_gather(torus, "4096MB", chunks=1))
    assert tacos.refine(orbit) is orbit


def test_auto_refines_what_is_left_to_gain():
    box = tacos.topology.mi250(1)
    collective = tacos.collective.all_gather(box, "16MB", chunks=4)
    plain = tacos.synthesize(box, collective, refine=False)
    better = tacos.synthesize(box, collective)
    assert better.time_ps < plain.time_ps
    assert better.provenance["refined_from_s"] >= better.time_s
    assert better.provenance["best_of"][better.provenance["engine"]] == better.time_s


def test_a_time_limit_ends_the_search():
    """The limit passes during the first third of the work, which is one slice."""
    box = tacos.topology.mi250(1)
    before = tacos.synthesize(
        box, tacos.collective.all_gather(box, "16MB", chunks=4), engine="ring"
    )

    def shares(**options):
        told: list[float] = []

        def progress(share):
            if not told:
                time.sleep(0.02)
            told.append(share)

        after = tacos.refine(before, hops=3_000_000, progress=progress, **options)
        return after.time_ps, max(told, default=0.0)

    whole, cut = shares(), shares(time_limit=0.01)
    assert whole[0] < cut[0] <= before.time_ps
    assert cut[1] <= 1 / 3 < whole[1]
    assert tacos.refine(before, hops=3_000_000, time_limit=1e-9) is before


def test_progress_is_told_and_can_stop_it():
    box = tacos.topology.mi250(1)
    before = tacos.synthesize(
        box, tacos.collective.all_gather(box, "16MB", chunks=4), engine="ring"
    )
    shares: list[float] = []
    tacos.refine(before, effort="fast", progress=shares.append)
    assert shares
    assert shares == sorted(shares)

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tacos.refine(before, progress=stop)


@pytest.mark.parametrize(
    "wrong", [{"effort": "huge"}, {"effort": 0}, {"time_limit": 0}, {"seed": -1}, {"seed": "x"}]
)
def test_wrong_budgets(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} (is|must be)"):
        tacos.refine(chain("broadcast"), **wrong)


def executed(schedule, target=None):
    found = execution(schedule)
    assert found is not None
    return found.time_ps(target)


@pytest.mark.parametrize(
    ("network", "kind", "engine"),
    [
        ("switch:6", "all_gather", "direct"),
        ("switch:6", "all_reduce", "direct"),
        ("fc:3*switch:4", "all_to_all", "greedy"),
        ("dgx-h100-plain:2", "all_gather", "forest"),
    ],
)
def test_the_rule_of_the_target_decides(network, kind, engine):
    """By its own time each of these schedules becomes shorter, but its program becomes slower."""
    topology = tacos.topology.parse(network)
    collective = tacos.collective.named(kind, topology, "8MB", chunks=4)
    before = tacos.synthesize(topology, collective, engine=engine)

    shorter = tacos.refine(before, hops=2_000_000, target="schedule")
    assert shorter.time_ps < before.time_ps
    assert executed(shorter) > executed(before)
    assert executed(tacos.refine(before, hops=2_000_000)) <= executed(before)
    shared = tacos.refine(before, hops=2_000_000, target="tcp")
    assert executed(shared, "tcp") <= executed(before, "tcp")


def test_a_wrong_schedule_is_refused():
    """Among transfers that overlap on a link, a search for gaps might never end."""
    with pytest.raises(tacos.VerificationError, match="the schedule is wrong"):
        tacos.refine(relay(0))


def test_an_unknown_target_is_refused():
    ring = tacos.topology.ring(4)
    schedule = tacos.synthesize(ring, tacos.collective.all_gather(ring, "4MB", chunks=1))
    with pytest.raises(ValueError, match="target must be one of schedule, program, tcp"):
        tacos.refine(schedule, target="gloo")


def test_ports_with_one_peer_keep_it():
    topology = tacos.topology.mi250(2)
    collective = tacos.collective.all_gather(topology, "32MB", chunks=2)
    before = tacos.synthesize(topology, collective, engine="greedy", ports="matched")
    after = tacos.refine(before, hops=3_000_000)
    assert after.time_ps < before.time_ps
    assert executed(after) == after.time_ps
    assert after.provenance["ports"] == "matched"
