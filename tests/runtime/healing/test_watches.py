"""How an endpoint judges speeds and the time that ranks are away, without a network or a clock."""

from __future__ import annotations

from tacos._core import LinkWatch, RankWatch

MB = 1e6


def fed(watch, rate, times, *, begin=0.0, size=1 * MB, algorithm=0):
    """Feed messages of one speed, one after the other; return when the last ended, and which changed the state."""
    now, changes = begin, []
    for i in range(times):
        now += size / rate
        if watch.add(algorithm, size, size / rate, now):
            changes.append((i, watch.state))
    return now, changes


def test_a_link_is_slow_when_all_messages_of_some_time_are():
    watch = LinkWatch()
    now, changes = fed(watch, 10 * MB, 20)
    assert not changes
    assert watch.usual == 10 * MB
    # At a tenth of the speed, a message takes a second: the second message decides.
    now, changes = fed(watch, 1 * MB, 4, begin=now)
    assert changes == [(1, "slow")]
    assert watch.rate == 1 * MB
    assert watch.usual == 10 * MB
    _, changes = fed(watch, 9 * MB, 10, begin=now)
    assert changes == [(4, "usual")]  # five messages of 0.11 s are the first to span half a second


def test_one_quick_message_shows_that_a_link_is_well():
    watch = LinkWatch()
    now, _ = fed(watch, 10 * MB, 20)
    for _ in range(50):  # one in two is slow, as on a busy machine
        now, slow = fed(watch, 1 * MB, 1, begin=now)
        now, fine = fed(watch, 10 * MB, 1, begin=now)
        assert not slow
        assert not fine


def test_messages_that_were_there_already_do_not_make_a_link_slow():
    """If data usually wait for this rank, the messages that do not wait are exceptions and prove nothing."""
    watch = LinkWatch()
    now, _ = fed(watch, 10 * MB, 20)
    for _ in range(10):
        now, changes = fed(watch, 1 * MB, 1, begin=now)
        assert not changes
        watch.doubt()


def test_less_than_half_is_slow_and_half_is_not():
    watch = LinkWatch()
    now, _ = fed(watch, 10 * MB, 20)
    now, changes = fed(watch, 5.1 * MB, 20, begin=now)
    assert not changes
    _, changes = fed(watch, 0.49 * watch.usual, 20, begin=now)
    assert [state for _, state in changes] == ["slow"]


def test_each_algorithm_has_its_own_usual_speed():
    """If an algorithm sends two messages over a link at once, it is usual that each gets half of it or less."""
    watch = LinkWatch()
    now, _ = fed(watch, 10 * MB, 20, algorithm=0)
    now, changes = fed(watch, 3 * MB, 20, begin=now, algorithm=1)
    assert not changes
    _, changes = fed(watch, 1 * MB, 20, begin=now, algorithm=1)
    assert [state for _, state in changes] == ["slow"]


def test_a_link_known_to_be_slow_that_is_fast_again_is_news():
    watch = LinkWatch()
    watch.expect(1 * MB, True)
    now, changes = fed(watch, 1.5 * MB, 20)
    assert not changes
    _, changes = fed(watch, 10 * MB, 20, begin=now)
    assert [state for _, state in changes] == ["fast"]


def rounds(watch, away, others, count, begin=0.0):
    """Calls of 10 ms, before which this rank and others were away for these seconds; returns the slow ranks found."""
    now, verdicts = begin, []
    for _ in range(count):
        now += max(away, *others.values())
        watch.start(away, now)
        for peer, theirs in others.items():
            watch.hear(peer, theirs)
        now += 0.01
        if watch.judge(now):
            verdicts.append(watch.slow)
    return now, verdicts


def test_a_rank_that_is_away_longer_than_the_others_is_slow():
    watch = RankWatch()
    now, verdicts = rounds(watch, 0.1, {1: 0.1, 3: 0.11}, 30)
    assert not verdicts
    now, verdicts = rounds(watch, 0.1, {1: 0.3, 3: 0.1}, 30, begin=now)
    assert verdicts == [[1]]
    now, verdicts = rounds(watch, 0.1, {1: 0.1, 3: 0.1}, 30, begin=now)
    assert verdicts == [[]]


def test_a_rank_does_not_call_others_slow_because_it_has_less_to_do():
    watch = RankWatch()
    assert not rounds(watch, 0.01, {1: 0.3, 3: 0.3}, 30)[1]


def test_all_ranks_that_take_long_are_not_slow():
    watch = RankWatch()
    assert not rounds(watch, 1.0, {1: 1.0, 3: 1.0}, 30)[1]
