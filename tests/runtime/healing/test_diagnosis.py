"""Conclusions from the ranks' reports, in hand-made cases."""

from __future__ import annotations

import tacos
from tacos.runtime.healing.diagnosis import Belief, Pair, RankReport, diagnosed

RING = tacos.topology.ring(4, bandwidth="1GB/s")  # links 0 to 3 go up, 4 to 7 down
ALL = [0, 1, 2, 3]
STAR = tacos.topology.switch(4, bandwidth="1GB/s")


def link(network, src, dst):
    return next(
        i
        for i, ends in enumerate(zip(network.link_src, network.link_dst, strict=True))
        if ends == (src, dst)
    )


def reports(network, slow=(), rate=1e8, usual=1e9, state="slow", pairs=None):
    """All neighbours (or the given pairs) measure the usual speed, except the slow ones."""
    found = pairs or [
        (int(a), int(b)) for a, b in zip(network.link_src, network.link_dst, strict=True)
    ]
    rows: list[list] = [[] for _ in ALL]
    for a, b in found:
        hit = (a, b) in slow
        rows[b].append((a, b, 0, rate if hit else usual, usual, state if hit else "usual"))
    return [RankReport(speeds=row) for row in rows]


EVERYBODY = [(a, b) for a in ALL for b in ALL if a != b]


def test_a_slow_link_has_what_is_measured():
    diagnosis = diagnosed(RING, ALL, Belief(), reports(RING, slow=[(1, 2)]))
    one = link(RING, 1, 2)
    assert diagnosis.belief.shares == {one: 0.1}
    assert diagnosis.belief.pairs == {one: Pair(1, 2)}
    assert diagnosis.belief.usual == {Pair(1, 2): 1e9}
    assert not diagnosis.slow_ranks


def test_of_both_ends_the_receiver_counts_and_the_sender_where_it_is_silent():
    one = link(RING, 1, 2)
    heard = reports(RING)
    heard[1].speeds.append((1, 2, 0, 1e8, 1e9, "slow"))
    assert not diagnosed(RING, ALL, Belief(), heard).belief.shares
    heard[2].speeds = [row for row in heard[2].speeds if row[0] != 1]
    assert diagnosed(RING, ALL, Belief(), heard).belief.shares == {one: 0.1}


def test_a_rank_whose_pairs_are_all_slow_is_slow_and_its_links_are_not():
    slow = [(1, 2), (2, 1), (2, 3), (3, 2)]
    diagnosis = diagnosed(RING, ALL, Belief(), reports(RING, slow=slow))
    assert diagnosis.slow_ranks == [2]
    assert not diagnosis.belief.shares
    diagnosis = diagnosed(
        RING, ALL, Belief(), reports(RING, slow=[(1, 2), (3, 2)])
    )  # 2 reads slowly
    assert diagnosis.slow_ranks == [2]


def test_through_a_switch_the_link_that_all_slow_pairs_share_is_slow():
    """All pairs from rank 2 are slow, and no others: they share only its link to the switch."""
    slow = [(2, 0), (2, 1), (2, 3)]
    diagnosis = diagnosed(STAR, ALL, Belief(), reports(STAR, slow=slow, pairs=EVERYBODY))
    assert diagnosis.belief.shares == {link(STAR, 2, 4): 0.1}
    assert not diagnosis.slow_ranks


def test_a_pair_whose_links_all_serve_others_is_unexplained():
    diagnosis = diagnosed(STAR, ALL, Belief(), reports(STAR, slow=[(2, 0)], pairs=EVERYBODY))
    assert not diagnosis.belief.shares
    assert diagnosis.unexplained == [Pair(2, 0)]


def test_a_link_that_gets_slower_still_and_one_that_recovers():
    one = link(RING, 1, 2)
    before = Belief({one: 0.5}, {Pair(1, 2): 1e9}, {one: Pair(1, 2)})
    # Slow compared with the 500 MB/s that the link is known to have.
    worse = [RankReport(speeds=[(1, 2, 0, 1e8, 5e8, "slow")])]
    assert diagnosed(RING, ALL, before, worse).belief.shares == {one: 0.1}
    well = [RankReport(speeds=[(1, 2, 0, 9.5e8, 5e8, "fast")])]
    assert diagnosed(RING, ALL, before, well).belief == Belief()
    half = [RankReport(speeds=[(1, 2, 0, 5.5e8, 5e8, "usual")])]
    assert diagnosed(RING, ALL, before, half).belief == before


def test_a_dead_cable_is_dead_both_ways_until_probes_pass():
    there, back = link(RING, 1, 2), link(RING, 2, 1)
    dead = diagnosed(
        RING, ALL, Belief(), [RankReport(broken=[(1, 2)]), RankReport(broken=[(1, 2)])]
    ).belief
    assert dead.shares == {there: 0.0, back: 0.0}
    one_way = diagnosed(RING, ALL, dead, [RankReport(probes=[(1, 2, 0, 1e9)])]).belief
    assert one_way.shares == {back: 0.0}
    assert diagnosed(RING, ALL, one_way, [RankReport(probes=[(2, 1, 0, 1e9)])]).belief == Belief()


def test_a_probe_that_shows_part_of_the_usual_speed_is_a_slow_link():
    there = link(RING, 1, 2)
    before = Belief({there: 0.0}, {Pair(1, 2): 1e9}, {there: Pair(1, 2)})
    found = diagnosed(RING, ALL, before, [RankReport(probes=[(1, 2, 0, 2.53e8)])]).belief
    assert found.shares == {there: 0.25}


def test_the_order_of_reports_within_a_rank_does_not_matter():
    given = reports(RING, slow=[(1, 2), (0, 3)])
    turned = [RankReport(speeds=report.speeds[::-1]) for report in given]
    assert diagnosed(RING, ALL, Belief(), given) == diagnosed(RING, ALL, Belief(), turned)
