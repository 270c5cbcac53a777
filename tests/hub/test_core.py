"""The cores without a network: a driver that splits, mixes, garbles and drops what workers send."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacos._core import HubGroup, ManualHub, hub_cut
from tests.support import hub_frames as wire
from tests.support.hub_frames import Speaker, frame

SIZES = [5, 8192, 20000, 1]  # 1 + 1 + 3 + 1 chunks
NAG = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}


def hub_with(cores=2, sizes=SIZES, group=None, **options):
    hub = ManualHub(cores)
    rates = HubGroup(lr=0.1, **(NAG if group is None else group))
    options = {"name": "job", "optimizer": "sgd", **options}
    job = hub.create(groups=[rates], sizes=sizes, groups_of=[0] * len(sizes), **options)
    _, core, _, count, _, _ = hub_cut(sizes, cores)
    return hub, job, core, count


def start(hub, job, core, count, workers):
    speakers = [Speaker(hub, job, f"w{rank}", rank, core) for rank in range(workers)]
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal(int(n)).astype(np.float32) for n in count]
    for chunk, values in enumerate(weights):
        speakers[0].put(chunk, values)
    for each in speakers:
        each.answers()
    return speakers, weights


def nesterov(w, m, g, lr=0.1, mu=0.9, decay=0.01):
    """PHub's Nesterov in double precision."""
    g = g + decay * w
    m = g if m is None else mu * m + g
    return w - lr * (g + mu * m), m


@settings(max_examples=15)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 1 << 32), st.booleans())
def test_any_order_and_any_split_gives_the_mean(workers, cores, seed, deterministic):
    """Pushes of all workers and chunks in any order, each in pieces of any size, for three steps."""
    order = random.Random(seed)
    hub, job, core, count = hub_with(cores, deterministic=deterministic)
    speakers, weights = start(hub, job, core, count, workers)
    state = [(w.astype(np.float64), None) for w in weights]
    rng = np.random.default_rng(order.getrandbits(32))
    for step in range(3):
        grads = [[rng.standard_normal(int(n)).astype(np.float32) for n in count] for _ in speakers]
        # For each connection, the bytes in the order in which the worker sends them.
        queues: dict[tuple[int, int], bytearray] = {}
        for rank in range(workers):
            chunks = list(range(len(count)))
            order.shuffle(chunks)
            for chunk in chunks:
                data = frame(
                    wire.PUSH, grads[rank][chunk].tobytes(), chunk=chunk, step=step, rate=0.1
                )
                queues.setdefault((rank, int(core[chunk])), bytearray()).extend(data)
        while queues:
            place = order.choice(sorted(queues))
            size = order.choice([1, 7, 31, 33, 1000, 40000, 1 << 20])
            part, queues[place] = bytes(queues[place][:size]), queues[place][size:]
            rank, on = place
            assert hub.feed(on, speakers[rank].connections[on], part)
            if not queues[place]:
                del queues[place]
        for chunk, (w, m) in enumerate(state):
            mean = np.mean([g[chunk].astype(np.float64) for g in grads], axis=0)
            state[chunk] = nesterov(w, m, mean)
        got = [each.weights() for each in speakers]
        for chunk in range(len(count)):
            for rows in got:
                np.testing.assert_allclose(rows[chunk], state[chunk][0], rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(rows[chunk], got[0][chunk])


@settings(max_examples=20)
@given(st.binary(max_size=200), st.integers(0, 3), st.randoms(use_true_random=False))
def test_garbage_ends_its_connection_and_no_other(garbage, place, order):
    """An attacker sends anything, alone or after a valid beginning; a job on another connection completes its step."""
    hub, job, core, count = hub_with(1, sizes=[10])
    speakers, weights = start(hub, job, core, count, 1)
    victim = hub.open(0)
    starts = [
        b"",
        frame(wire.HELLO, bytes(32)),
        frame(wire.PUSH, bytes(40))[: order.randrange(72)],
        frame(9, b"", magic=0xB5),
    ]
    hub.feed(0, victim, starts[place] + garbage)
    speakers[0].push(0, np.ones(10), 0)
    (answer,) = speakers[0].weights().values()
    np.testing.assert_allclose(
        answer, nesterov(weights[0].astype(float), None, np.ones(10))[0], rtol=1e-5
    )
    hub.tick(10_000)  # a connection without a hello ends by itself
    assert hub.ended(0, victim)


def test_wrong_requests_get_a_sentence_and_the_step_still_completes():
    hub, job, core, count = hub_with(1, sizes=[10])
    (worker,), _ = start(hub, job, core, count, 1)
    for wrong, sentence in [
        (frame(wire.PUSH, bytes(40), chunk=7), "chunk 7 does not exist on this core"),
        (frame(wire.PUSH, bytes(36)), "chunk 0 takes 40 bytes; got 36"),
        (frame(wire.PUSH, bytes(40), step=3), "is at step 0; got a push for step 3"),
        (frame(wire.PUSH, b"", flags=wire.SHARED), "shares no memory"),
        (frame(wire.PULL, bytes(8)), "a pull has no payload"),
        (frame(wire.PULL, flags=9 << 4), "a slot from 0 to 1"),
        (frame(wire.PUT, bytes(40), flags=5 << 4), "in slot 5"),
        (frame(wire.PUT, bytes(40), rate=1e300), "number of updates is too large"),
        (frame(wire.PUT, bytes(40), rate=float("nan")), "number of updates is too large"),
    ]:
        assert hub.feed(0, worker.connections[0], wrong)
        (found,) = worker.errors()
        assert sentence in found
    worker.push(0, np.ones(10), 0)
    assert 0 in worker.weights()


@pytest.mark.parametrize(
    "bad",
    [
        frame(wire.PUSH, bytes(8), magic=0),
        frame(0),
        frame(200),
        frame(wire.VALUES),
        frame(wire.HELLO, bytes(32)),
        frame(wire.PUSH, wire=9),
        wire.HEADER.pack(0xB5, wire.PUSH, 0, 0, 1 << 31, 0, 0, 0, 0.0),
    ],
)
def test_malformed_frames_end_the_connection_with_a_reason(bad):
    hub, job, core, count = hub_with(1, sizes=[10], elastic=True)
    (one, other), _ = start(hub, job, core, count, 2)
    assert not hub.feed(0, one.connections[0], bad + bytes(64))
    (why,) = one.errors()
    assert "the connection ends" in why
    hub.close(0, one.connections[0], "it broke the protocol")
    other.push(0, np.ones(10), 0)
    assert 0 in other.weights()


def test_a_wrong_key_and_an_unknown_job_get_the_same_answer():
    hub, job, core, count = hub_with(1, sizes=[10])
    (worker,), _ = start(hub, job, core, count, 1)
    answers = set()
    for number, slot in ((job, 0), (job, 5), (job + 9, 0), (job, 10_000)):
        stranger = hub.open(0)
        hello = struct.pack("<QII", number, slot, 0) + bytes(16)
        assert not hub.feed(0, stranger, frame(wire.HELLO, hello))
        answers.add(hub.take(0, stranger))
    assert len(answers) == 1
    twice = hub.open(0)
    hello = struct.pack("<QII", job, worker.admission.slot, 0) + worker.admission.key
    assert not hub.feed(0, twice, frame(wire.HELLO, hello))
    assert b"connected already" in hub.take(0, twice)


@pytest.mark.parametrize("deterministic", [False, True])
def test_elastic_steps_complete_without_a_lost_worker(deterministic):
    """Three workers; one dies after it has pushed one of two chunks. With buffered contributions, its part is dropped."""
    hub, job, core, count = hub_with(
        2, sizes=[8, 8], elastic=True, deterministic=deterministic, group={}
    )
    (a, b, c), weights = start(hub, job, core, count, 3)
    for chunk in (0, 1):
        a.push(chunk, np.full(8, 1.0), 0)
        b.push(chunk, np.full(8, 3.0), 0)
    assert a.weights() == {}
    c.push(0, np.full(8, 8.0), 0)  # completes chunk 0 with all three
    c.vanish()
    ((number, _, _, why),) = hub.take_losses()  # once, though both its connections ended
    assert (number, why) == (job, "it closed its connection")
    got = a.weights()
    np.testing.assert_allclose(got[0], weights[0] - 0.1 * 4.0, rtol=1e-5)
    np.testing.assert_allclose(got[1], weights[1] - 0.1 * 2.0, rtol=1e-5)
    assert hub.failure(job) == ""
    for chunk in (0, 1):  # the next step needs two workers
        a.push(chunk, np.ones(8), 1)
        b.push(chunk, np.ones(8), 1)
    assert len(a.weights()) == 2


def test_a_contribution_of_a_lost_worker_is_dropped_where_it_is_apart():
    hub, job, core, count = hub_with(1, sizes=[8], elastic=True, deterministic=True, group={})
    (a, b), weights = start(hub, job, core, count, 2)
    b.push(0, np.full(8, 100.0), 0)
    b.vanish()
    a.push(0, np.ones(8), 0)
    np.testing.assert_allclose(a.weights()[0], weights[0] - 0.1, rtol=1e-5)


def test_a_loss_fails_all_and_names_the_worker():
    hub, job, core, count = hub_with(2)
    (a, b), _ = start(hub, job, core, count, 2)
    a.push(0, np.ones(5), 0)
    b.vanish("it closed its connection")
    reasons = a.errors()
    assert reasons
    assert set(reasons) == {"worker 'w1' (rank 1) is lost: it closed its connection"}
    assert hub.failure(job) == reasons[0]
    a.push(1, np.ones(8192), 0)
    assert a.errors() == reasons[:1]


def test_a_worker_that_keeps_a_step_waiting_is_named_after_the_timeout():
    hub, job, core, count = hub_with(1, sizes=[8], timeout_s=2.0)
    (a, _), _ = start(hub, job, core, count, 2)
    hub.tick(1000)
    a.push(0, np.ones(8), 0)
    hub.tick(2900)
    assert hub.failure(job) == ""
    hub.tick(3001)
    assert "worker 'w1' (rank 1) is lost: it has not pushed step 0 within 2000 ms" in hub.failure(
        job
    )


def test_workers_join_and_leave_between_steps():
    """A worker that joins while step 0 is half done takes part from step 1 on, with the weights of step 1."""
    hub, job, core, count = hub_with(1, sizes=[8, 8], group={})
    (a, b), weights = start(hub, job, core, count, 2)
    a.push(0, np.ones(8), 0)
    late = Speaker(hub, job, "late", 2, core)
    assert late.admission.first_step == 1
    late.answers()
    for chunk in (0, 1):
        late.send(chunk, frame(wire.PULL, chunk=chunk, step=1, tag=chunk))
    late.push(0, np.ones(8), 0)
    assert "got a push for step 0" in late.errors()[0]
    a.push(1, np.ones(8), 0)
    assert late.weights() == {}
    for chunk in (0, 1):
        b.push(chunk, np.ones(8), 0)
    got = late.weights()
    np.testing.assert_allclose(got[1], weights[1] - 0.1, rtol=1e-5)
    for each, value in ((a, 1.0), (b, 2.0), (late, 6.0)):
        for chunk in (0, 1):
            each.push(chunk, np.full(8, value), 1)
    after = a.weights()
    np.testing.assert_allclose(after[0], got[0] - 0.1 * 3.0, rtol=1e-5)
    a.push(0, np.ones(8), 2)
    late.push(0, np.ones(8), 2)
    hub.leave(job, b.admission.slot, b.admission.serial)  # the others wait for it
    assert 0 in a.weights()
    assert hub.failure(job) == ""


def test_a_slot_that_is_used_again_is_not_lost_with_its_last_member():
    hub, job, core, count = hub_with(2, elastic=True)
    (a, b), _ = start(hub, job, core, count, 2)
    b.vanish()
    again = Speaker(hub, job, "again", 1, core)
    assert again.admission.slot == b.admission.slot
    hub.lose(job, b.admission.slot, b.admission.serial, "late news")
    for each in (a, again):
        each.push(0, np.ones(5), again.admission.first_step)
    assert 0 in a.weights()


def test_a_snapshot_is_of_one_step_though_chunks_are_at_several():
    hub, job, core, count = hub_with(1, sizes=[8, 8], group={})
    (a,), weights = start(hub, job, core, count, 1)
    a.push(0, np.ones(8), 0)
    assert hub.snapshot(job, 0, 0.0) is None  # chunk 0 is past it
    assert hub.snapshot(job, 1, 0.0) is None  # chunk 1 is not there yet; the request is kept
    a.push(1, np.ones(8), 0)
    snapshot = hub.snapshot(job, None, 0.0)
    assert snapshot.version == 1
    assert list(snapshot.versions) == [1, 1]
    _, _, _, _, offset, _ = hub_cut([8, 8], 1)
    for chunk in (0, 1):
        begin = int(offset[chunk])
        np.testing.assert_allclose(
            snapshot.arrays[0][begin : begin + 8], weights[chunk] - 0.1, rtol=1e-5
        )


def test_a_step_without_any_gradient_changes_nothing():
    hub, job, core, count = hub_with(1, sizes=[8])
    (a, b), weights = start(hub, job, core, count, 2)
    for each in (a, b):
        each.send(0, frame(wire.PUSH, flags=wire.EMPTY, rate=0.1))
    np.testing.assert_array_equal(a.weights()[0], weights[0])
    a.push(0, np.full(8, 4.0), 1)
    b.send(0, frame(wire.PUSH, flags=wire.EMPTY, step=1, rate=0.1))
    expected, _ = nesterov(weights[0].astype(float), None, np.full(8, 2.0))  # a mean over both
    np.testing.assert_allclose(a.weights()[0], expected, rtol=1e-5)


def test_workers_must_agree_on_the_rate():
    hub, job, core, count = hub_with(1, sizes=[8])
    (a, b), _ = start(hub, job, core, count, 2)
    a.push(0, np.ones(8), 0, rate=0.1)
    b.push(0, np.ones(8), 0, rate=0.2)
    assert "learning rate of step 0" in b.errors()[0]


def test_quiet_pushes_are_only_acknowledged():
    hub, job, core, count = hub_with(1, sizes=[8], group={})
    (a,), weights = start(hub, job, core, count, 1)
    a.push(0, np.ones(8), 0, flags=wire.QUIET)
    ((kind, *_, payload),) = a.answers()
    assert (kind, payload) == (wire.DONE, b"")
    a.send(0, frame(wire.PULL))
    np.testing.assert_allclose(a.weights()[0], weights[0] - 0.1, rtol=1e-5)


def test_asynchronous_pushes_are_answered_at_once():
    hub, job, core, count = hub_with(1, sizes=[8], mode="async", group={})
    (a, b), weights = start(hub, job, core, count, 2)
    for step in range(3):
        a.push(0, np.ones(8), step)
        np.testing.assert_allclose(a.weights()[0], weights[0] - 0.1 * (step + 1), rtol=1e-5)
    b.push(0, np.ones(8), 0)
    np.testing.assert_allclose(b.weights()[0], weights[0] - 0.4, rtol=1e-5)


def test_bounded_staleness_holds_the_fastest_back():
    """With staleness 2, a worker gets its third answer only once the other has pushed a step."""
    hub, job, core, count = hub_with(1, sizes=[8], mode="stale", staleness=2, group={})
    (a, b), weights = start(hub, job, core, count, 2)
    for step in range(2):
        a.push(0, np.ones(8), step)
        assert 0 in a.weights()
    a.push(0, np.ones(8), 2)
    assert a.weights() == {}
    b.push(0, np.ones(8), 0)
    np.testing.assert_allclose(a.weights()[0], weights[0] - 0.4, rtol=1e-5)
    assert 0 in b.weights()
    a.push(0, np.ones(8), 3)
    assert a.weights() == {}
    b.vanish()
    assert hub.failure(job) != ""


def test_a_client_that_asks_and_never_reads_is_cut_off():
    hub, job, core, count = hub_with(1, sizes=[8192], elastic=True)
    (a, b), _ = start(hub, job, core, count, 2)
    pull = frame(wire.PULL)
    sent = 0
    while hub.feed(0, a.connections[0], pull * 16):
        sent += 16
        assert sent < 10_000
    hub.close(0, a.connections[0], "it did not read its answers")
    b.push(0, np.ones(8192), 0)
    assert 0 in b.weights()


def test_jobs_do_not_disturb_each_other():
    hub, job, core, count = hub_with(1, sizes=[8], group={})
    other = hub.create(
        name="other", optimizer="adam", groups=[HubGroup(lr=0.1)], sizes=[8], groups_of=[0]
    )
    (a,), weights = start(hub, job, core, count, 1)
    b = Speaker(hub, other, "b", 0, core)
    b.put(0, np.zeros(8))
    b.answers()
    b.push(0, np.ones(8), 0)
    b.vanish()
    assert hub.failure(other) != ""
    a.push(0, np.ones(8), 0)
    np.testing.assert_allclose(a.weights()[0], weights[0] - 0.1, rtol=1e-5)
    hub.drop(other, "over")
    a.push(0, np.ones(8), 1)
    assert 0 in a.weights()


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=12),
    st.integers(1, 16),
)
def test_chunks_cover_every_parameter_once_and_are_balanced(sizes, cores):
    key, core, first, count, offset, load = hub_cut(sizes, cores)
    for number, size in enumerate(sizes):
        mine = key == number
        assert first[mine].tolist() == list(range(0, size, wire.CHUNK))
        assert int(count[mine].sum()) == size
    assert (np.diff(offset) >= count[:-1]).all()
    assert not (offset % 16).any()
    sums = [int(count[core == each].sum()) for each in range(cores)]
    assert sums == load
    assert max(sums) - min(sums) <= wire.CHUNK  # longest first leaves at most one chunk
    if sum(sizes) >= 100 * cores * wire.CHUNK:
        assert max(sums) <= 1.01 * sum(sizes) / cores


def test_half_precision_gradients_are_summed_in_float32():
    """1 and 2^-9 in bfloat16: their sum needs more bits than bfloat16 has."""
    hub, job, core, count = hub_with(1, sizes=[4], average=False, group={})
    (a, b), _ = start(hub, job, core, count, 2)
    a.put(0, np.zeros(4))
    a.answers()
    for each, value in ((a, 0x3F80), (b, 0x3B00)):
        bits = np.full(4, value, np.uint16).tobytes()
        each.send(0, frame(wire.PUSH, bits, wire=1, rate=1.0))
    a.answers()
    a.send(0, frame(wire.PULL))
    np.testing.assert_array_equal(a.weights()[0], np.full(4, -(1 + 2.0**-9), np.float32))


def test_random_losses_never_leave_a_step_hanging():
    """Workers of an elastic job push, die and join at random; those that are left complete every step."""
    for seed in range(20):
        dice = random.Random(seed)
        hub, job, core, count = hub_with(2, sizes=[9000, 3], elastic=True, group={})
        speakers, _ = start(hub, job, core, count, 3)
        for step in range(6):
            pushes = [(each, chunk) for each in speakers for chunk in range(len(count))
                      if each.admission.first_step <= step]  # fmt: skip
            dice.shuffle(pushes)
            dead = dice.choice(speakers) if len(speakers) > 1 and dice.random() < 0.5 else None
            until = dice.randrange(len(pushes))
            for number, (each, chunk) in enumerate(pushes):
                if each is dead and number >= until:
                    continue
                each.push(chunk, np.ones(int(count[chunk])), step)
            if dead is not None:
                speakers.remove(dead)
                dead.vanish()
            for each in speakers:
                if each.admission.first_step <= step:
                    assert len(each.weights()) == len(count)
            if dice.random() < 0.5:
                speakers.append(Speaker(hub, job, "new", 10 + step, core))
                assert speakers[-1].admission.first_step == step + 1
                speakers[-1].answers()
