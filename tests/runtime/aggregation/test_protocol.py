"""The protocol of in-network aggregation: state machines of switch and worker, driven through a hostile network."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacos._core import AggregationSwitch, AggregationWorker
from tests.support.hostile import (
    NOTICE,
    RESULT,
    TOKEN,
    Host,
    Network,
    Weather,
    add_host,
    contribution,
    header_of,
    join,
    star,
    words_of,
)

PORT = 1 << 16


class Bench:
    """One switch that is sent hand-made packets, as the tests of the P4 programs do with a packet tester."""

    def __init__(self, workers: int, pool: int = 2) -> None:
        self.workers, self.pool = workers, pool
        self.switch = AggregationSwitch([TOKEN], seed=5)
        for worker in range(workers):
            self.switch.receive(self.port(worker), join(worker, workers, pool=pool), 0)
        self.generation = self.switch.generation("job")
        assert self.generation

    @staticmethod
    def port(worker: int) -> int:
        return (10 + worker) * PORT

    def send(
        self, worker: int, values: list[int], slot: int = 0, use: int = 0
    ) -> dict[int, list[int]]:
        """Send integers for a use of a slot; return the results by port."""
        sequence = slot + use * self.pool
        packet = contribution(self.generation, worker, sequence, slot, use % 2, values)
        answers = self.switch.receive(self.port(worker), packet, 0)
        return {
            port: words_of(answer).tolist()
            for port, answer in answers
            if header_of(answer).kind == RESULT
        }

    def to_all(self, values: list[int]) -> dict[int, list[int]]:
        return {self.port(worker): values for worker in range(self.workers)}


# The switch tests of SwitchML and ATP, by their names, with two and three workers.


@pytest.mark.parametrize("workers", [2, 3])
def test_basic_reduction(workers: int) -> None:
    """BasicReduction: the last contribution completes the sum, which goes to all workers."""
    bench = Bench(workers)
    for worker in range(workers - 1):
        assert bench.send(worker, [worker + 1, 10]) == {}
    total = [workers * (workers + 1) // 2, 10 * workers]
    assert bench.send(workers - 1, [workers, 10]) == bench.to_all(total)


@pytest.mark.parametrize("workers", [2, 3])
def test_retransmit_after_reduction(workers: int) -> None:
    """RetransmitAfterReduction: a worker that retransmits after the sum gets the stored sum; the others get nothing."""
    bench = Bench(workers)
    for worker in range(workers):
        bench.send(worker, [1, 2])
    for worker in range(workers):
        assert bench.send(worker, [1, 2]) == {bench.port(worker): [workers, 2 * workers]}
    assert bench.switch.counters["resent"] == workers
    assert bench.switch.counters["contributions"] == workers


@pytest.mark.parametrize("workers", [2, 3])
def test_other_set_reduction(workers: int) -> None:
    """OtherSetReduction: the second version of a slot adds up like the first."""
    bench = Bench(workers)
    for use in (0, 1):
        for worker in range(workers - 1):
            assert bench.send(worker, [use + 1], use=use) == {}
        assert bench.send(workers - 1, [use + 1], use=use) == bench.to_all([workers * (use + 1)])


@pytest.mark.parametrize("workers", [2, 3])
def test_both_sets_reduction(workers: int) -> None:
    """BothSetsReduction: two slots and their versions, interleaved, do not mix."""
    bench = Bench(workers)
    for slot in (0, 1):
        for worker in range(workers - 1):
            assert bench.send(worker, [1 + slot], slot=slot) == {}
    for slot in (1, 0):
        assert bench.send(workers - 1, [1 + slot], slot=slot) == bench.to_all(
            [workers * (1 + slot)]
        )
    for slot in (0, 1):
        for worker in range(workers - 1):
            assert bench.send(worker, [5 + slot], slot=slot, use=1) == {}
        assert bench.send(workers - 1, [5 + slot], slot=slot, use=1) == bench.to_all(
            [workers * (5 + slot)]
        )


@pytest.mark.parametrize("workers", [2, 3])
def test_slot_reuse(workers: int) -> None:
    """SlotReuse: the third use overwrites the first, of which nothing is left in the sum."""
    bench = Bench(workers)
    for use in range(7):
        for worker in range(workers):
            answers = bench.send(worker, [10**use, -use], use=use)
        assert answers == bench.to_all([workers * 10**use, -workers * use])
    assert bench.switch.counters["early"] == 0


@pytest.mark.parametrize("workers", [2, 3])
def test_ignore_retransmissions(workers: int) -> None:
    """IgnoreRetransmissions: a contribution that is retransmitted before the sum is added once."""
    bench = Bench(workers)
    for _ in range(4):
        assert bench.send(0, [7]) == {}
    for worker in range(1, workers - 1):
        bench.send(worker, [1])
    assert bench.send(workers - 1, [1]) == bench.to_all([7 + workers - 1])
    assert bench.switch.counters["duplicates"] == 3


@pytest.mark.parametrize("workers", [2, 3])
def test_retransmit_from_previous_set(workers: int) -> None:
    """RetransmitFromPreviousSet: a worker that lost a result gets it while others are one use ahead."""
    bench = Bench(workers)
    for worker in range(workers):
        bench.send(worker, [1], use=0)
    for worker in range(1, workers):
        assert bench.send(worker, [2], use=1) == {}
    assert bench.send(0, [1], use=0) == {bench.port(0): [workers]}
    assert bench.send(0, [2], use=1) == bench.to_all([2 * workers])


@pytest.mark.parametrize("workers", [2, 3])
def test_slot_reuse_and_retransmit(workers: int) -> None:
    """SlotReuseAndRetransmit: a packet that is two uses late is dropped, although its bit in `seen` is clear again."""
    bench = Bench(workers)
    for use in (0, 1):
        for worker in range(workers):
            bench.send(worker, [1 + use], use=use)
    for worker in range(1, workers):
        bench.send(worker, [100], use=2)
    # A delayed copy of worker 0's first packet. A switch that compares only versions would add it.
    assert bench.send(0, [1], use=0) == {}
    assert bench.switch.counters["old"] == 1
    assert bench.send(0, [100], use=2) == bench.to_all([100 * workers])
    assert bench.send(0, [100], use=2) == {bench.port(0): [100 * workers]}


@pytest.mark.parametrize("workers", [2, 3])
def test_different_ports_reduction(workers: int) -> None:
    """DifferentPortsReduction: results go to the port from which a worker last sent."""
    bench = Bench(workers)
    for worker in range(workers):
        packet = contribution(bench.generation, worker, 0, 0, 0, [3])
        answers = bench.switch.receive(bench.port(worker) + 77, packet, 0)
    assert sorted(port for port, _ in answers) == [bench.port(w) + 77 for w in range(workers)]


def test_a_use_cannot_begin_early() -> None:
    """The next use of a version is refused until its current use and the other version's are finished."""
    bench = Bench(2)
    bench.send(0, [1], use=0)
    assert bench.send(0, [1], use=2) == {}
    bench.send(1, [1], use=0)
    bench.send(0, [2], use=1)
    assert bench.send(0, [3], use=2) == {}
    assert bench.switch.counters["early"] == 2
    assert bench.send(1, [2], use=1) == bench.to_all([4])


# Bad packets: dropped and counted, never added.


def test_bad_packets_are_counted_and_not_added() -> None:
    bench = Bench(2)
    good = contribution(bench.generation, 0, 0, 0, 0, [5])
    port = bench.port(0)
    cases = [
        ("malformed", port, b""),
        ("malformed", port, b"\0" * 100),
        ("malformed", port, good[:2] + b"\x09" + good[3:]),  # another version of the protocol
        ("malformed", port, good[:-1]),
        ("malformed", port, good + b"\0\0\0\0"),
        ("malformed", port, good[:3] + b"\x63" + good[4:]),  # an unknown kind
        ("stale", port, contribution(bench.generation + 1, 0, 0, 0, 0, [5])),
        ("stale", port, contribution(bench.generation, 0, 0, 0, 0, [5], job=3)),
        ("stale", port, contribution(0, 0, 0, 0, 0, [5])),
        ("out_of_range", port, contribution(bench.generation, 2, 0, 0, 0, [5])),
        ("out_of_range", port, contribution(bench.generation, 65535, 0, 0, 0, [5])),
        ("out_of_range", port, contribution(bench.generation, 0, 0, 3, 0, [5])),
        ("out_of_range", port, contribution(bench.generation, 0, 0, 0, 0, [5] * 5)),
        ("out_of_range", 99 * PORT, good),  # another machine
        ("early", port, contribution(bench.generation, 0, 40, 0, 0, [5])),
    ]
    for counter, source, packet in cases:
        before = bench.switch.counters[counter]
        answers = bench.switch.receive(source, packet, 0)
        assert bench.switch.counters[counter] == before + 1, (counter, packet)
        assert all(header_of(answer).kind == NOTICE for _, answer in answers)
        assert all(len(answer) <= max(len(packet), 60) for _, answer in answers)
    assert bench.switch.counters["contributions"] == 0
    bench.send(0, [5])
    assert bench.send(1, [6]) == bench.to_all([11])
    counters = bench.switch.counters
    kinds = (
        "contributions", "duplicates", "resent", "old", "early", "stale", "out_of_range",
        "mismatched", "malformed", "control",
    )  # fmt: skip
    assert sum(counters[kind] for kind in kinds) == counters["packets"]


def test_another_operation_fails_on_all_workers() -> None:
    """Integers of different operations are never added; all workers are notified."""
    bench = Bench(3)
    bench.send(0, [5])
    packet = contribution(bench.generation, 1, 0, 0, 0, [5], tag=8)
    answers = bench.switch.receive(bench.port(1), packet, 0)
    assert [port for port, _ in answers] == [bench.port(w) for w in range(3)]
    assert all(b"worker 1 runs another operation than worker 0" in a for _, a in answers)
    assert bench.switch.generation("job") == 0
    # A worker that lost the notice gets it again when it retransmits.
    (_, again), *_ = bench.switch.receive(
        bench.port(2), contribution(bench.generation, 2, 0, 0, 0, [5]), 0
    )
    assert b"worker 1 runs another operation" in again


def refusal(switch: AggregationSwitch, packet: bytes) -> str:
    ((_, answer),) = switch.receive(PORT, packet, 0)
    assert header_of(answer).kind == NOTICE
    return str(answer[56:].decode())


def test_joins_are_refused_with_a_reason() -> None:
    switch = AggregationSwitch([TOKEN], 1, slots=100, packet_elements=16, jobs=2)
    assert "does not accept the token" in refusal(switch, join(0, 2, token=b"x" * 16))
    assert "worker 2 is not one of the job's 2 workers" in refusal(switch, join(2, 2))
    assert "a switch serves 1 to 64" in refusal(switch, join(0, 65))
    assert "asks for 0 slots" in refusal(switch, join(0, 2, pool=0))
    assert "the switch takes 1 to 16" in refusal(switch, join(0, 2, elements=17))
    assert "no room" in refusal(switch, join(0, 2, pool=101))
    switch.receive(PORT, join(0, 2), 0)
    why = refusal(switch, join(1, 3))
    assert "has 2 workers, 2 slots and packets of 4 elements; this worker asks for 3" in why
    switch.receive(PORT, join(0, 2, job=b"second"), 0)
    assert "no room" in refusal(switch, join(0, 2, job=b"third"))
    assert switch.counters["refused"] == 8
    assert switch.generation("job") == 0


def test_jobs_with_one_name_and_two_tokens_are_two_jobs() -> None:
    other = b"fedcba9876543210"
    switch = AggregationSwitch([TOKEN, other], 1)
    for token in (TOKEN, other):
        answers = [
            switch.receive((worker + 1) * PORT, join(worker, 2, token=token), 0)
            for worker in range(2)
        ]
        assert len(answers[1]) == 2
    assert switch.counters["generations"] == 2


def test_a_dead_worker_is_forgotten_while_a_job_forms() -> None:
    """A restarted job does not count workers of an earlier run: worker 0 was at operation 9 and died."""
    switch = AggregationSwitch([TOKEN], 1)
    switch.receive(PORT, join(0, 2, operation=9), 0)
    switch.receive(2 * PORT, join(1, 2), 10_000_000)
    assert switch.generation("job") == 0
    switch.receive(PORT, join(0, 2, incarnation=77), 10_000_001)
    assert switch.generation("job") != 0


# Whole operations through a hostile network.


def arrays(seed: int, workers: int, sizes: list[int], dtype: str) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return [[rng.normal(size=n).astype(dtype) for n in sizes] for _ in range(workers)]
    info = np.iinfo(dtype)
    draw = rng.integers
    return [
        [draw(info.min, info.max, n, dtype=dtype, endpoint=True) for n in sizes]
        for _ in range(workers)
    ]


def check_sums(inputs: list[list[np.ndarray]], outputs: list[list[np.ndarray]], k: int) -> None:
    """Integers are exact modulo their width; floating point is within the bound of the scaling."""
    n = len(inputs)
    for i in range(len(inputs[0])):
        given = [one[i] for one in inputs]
        results = [one[i] for one in outputs]
        assert all(np.array_equal(result, results[0]) for result in results)  # the same bits
        if given[0].dtype.kind in "iu":
            with np.errstate(over="ignore"):
                assert np.array_equal(results[0], np.sum(given, axis=0, dtype=given[0].dtype))
            continue
        exact = np.sum([one.astype(np.float64) for one in given], axis=0)
        for begin in range(0, exact.size, k):
            block = slice(begin, begin + k)
            greatest = max(float(np.abs(one[block]).max()) for one in given)
            e = int(np.floor(np.log2(greatest))) + 1 if greatest else -126
            bound = n * n * 2.0 ** (e - 1) / (2**31 - 1)
            rounding = np.abs(exact[block]) * (
                2.0**-10 if given[0].dtype == np.float16 else 2.0**-23
            )
            tiny = 2.0**-24 if given[0].dtype == np.float16 else 2.0**-149
            error = np.abs(results[0][block].astype(np.float64) - exact[block])
            assert (error <= bound + rounding + tiny).all()


def packets_of(n: int, k: int, pool: int, dtype: str) -> int:
    """Packets of an operation: ⌈N/k⌉, and for floats the leading ones with exponents."""
    words = 3 if dtype in ("int64", "uint64") else 1
    blocks = -(-n // (k // words))
    return blocks + (min(pool, blocks) if dtype.startswith("float") else 0)


def check_ends(hosts: list[Host], inputs: list[list[np.ndarray]], count: int) -> None:
    """Check that all operations ended with the correct sums.

    Exception: if a worker has left after its last operation when a switch restarts, another worker that has all results
    cannot learn that the operation is complete, and fails.
    """
    most = max(host.done for host in hosts)
    assert most == count, [host.machine.failure for host in hosts]
    for host in hosts:
        unsure = host.done == most - 1 and host.machine.has_results and host.machine.failure
        assert host.done == most or unsure, host.machine.failure
    check_sums(inputs, [host.outputs for host in hosts], 8)


SIZES = st.lists(st.integers(0, 200), min_size=1, max_size=4)
DTYPES = st.sampled_from(["int32", "uint8", "int16", "int64", "uint64", "float32", "float16"])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 6),
    sizes=SIZES,
    dtype=DTYPES,
    pool=st.integers(1, 9),
    loss=st.sampled_from([0.0, 0.05, 0.3]),
    duplication=st.sampled_from([0.0, 0.3]),
    straggler=st.sampled_from([0.0, 0.05]),
)
def test_sums_are_right_and_counted_once_in_any_weather(
    seed: int, workers: int, sizes: list[int], dtype: str, pool: int, loss: float,
    duplication: float, straggler: float,
) -> None:  # fmt: skip
    inputs = arrays(seed, workers, sizes, dtype)
    weather = Weather(loss, duplication, (5, 200), straggler)
    network = star(seed, weather, inputs, pool=pool, packet_elements=8)
    network.run()
    switch = network.switches[PORT]
    hosts = list(network.hosts.values())
    assert all(host.done == len(sizes) for host in hosts), [h.machine.failure for h in hosts]
    check_sums(inputs, [host.outputs for host in hosts], 8)
    total = sum(packets_of(n, 8, pool, dtype) for n in sizes)
    for host in hosts:
        counters = host.machine.counters
        assert counters["sent"] - counters["retransmitted"] == total
        assert counters["results"] == total
        assert counters["repeats"] == 0
    assert switch.counters["contributions"] == workers * (total + len(sizes))
    assert switch.counters["results"] == total + len(sizes)
    assert switch.counters["early"] == 0
    assert network.watch.early == []
    assert switch.counters["generations"] == 1


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 120), min_size=2, max_size=4),
    dtype=DTYPES,
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    restarts=st.lists(st.integers(1, 400), min_size=1, max_size=3),
)
def test_a_restarted_switch_never_gives_a_wrong_sum(
    seed: int, workers: int, sizes: list[int], dtype: str, loss: float, restarts: list[int]
) -> None:
    """The interrupted operation is repeated from its inputs in a new generation."""
    inputs = arrays(seed, workers, sizes, dtype)
    network = star(seed, Weather(loss, 0.1, (5, 200), 0.02), inputs, timeout_s=50.0)
    for number, steps in enumerate(restarts):
        for _ in range(steps):
            network.step()
        network.switches[PORT] = AggregationSwitch([TOKEN], seed + 1000 + number)
    network.run()
    hosts = list(network.hosts.values())
    check_ends(hosts, inputs, len(sizes))
    assert network.switches[PORT].counters["early"] == 0
    assert network.watch.early == []


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(2, 4),
    sizes=st.lists(st.integers(1, 120), min_size=2, max_size=4),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    steps=st.integers(1, 600),
)
def test_a_restarted_worker_repeats_the_operation_or_fails_it_on_all(
    seed: int, workers: int, sizes: list[int], loss: float, steps: int
) -> None:
    """A restarted worker begins with operation 0: if others are further, all fail; otherwise all repeat it."""
    inputs = arrays(seed, workers, sizes, "int32")
    network = star(seed, Weather(loss, 0.1, (5, 200)), inputs, timeout_s=50.0)
    for _ in range(steps):
        network.step()
    ended = network.hosts.pop(100 << 16)
    again = add_host(network, 0, workers, inputs[0], PORT, 4, 8, timeout_s=50.0)
    network.run()
    others = [host for host in network.hosts.values() if host is not again]
    for host in [*others, again, ended]:
        for i, output in enumerate(host.outputs[: host.done]):
            expected = np.sum([one[i] for one in inputs], axis=0, dtype=np.int32)
            assert np.array_equal(output, expected)
    # The remaining workers end the same way. Exception: if one has left after its last operation, another that has all
    # results may not learn that the operation is complete.
    most = max(host.done for host in others)
    for host in others:
        unsure = most == len(sizes) and host.done == most - 1 and host.machine.has_results
        assert host.done == most or unsure
    if again.done < len(sizes):
        assert again.machine.failure
        assert all(host.machine.failure or host.done == len(sizes) for host in others)


def test_workers_that_are_an_operation_apart_meet_again() -> None:
    """Worker 0 knows that operation 0 has ended, worker 1 does not yet, and the switch restarts.

    Worker 0 joins at operation 1, worker 1 at operation 0 with all results: its operation 0 ends without a repeat.
    """
    data = [[np.arange(8, dtype=np.int32), np.ones(8, np.int32)] for _ in range(2)]
    network = star(3, Weather(delay_us=(10, 10)), data)
    first, second = network.hosts.values()
    while first.done == 0 and second.done == 0:
        network.step()
    network.events = [event for event in network.events if event[3] not in network.hosts]
    network.switches[PORT] = AggregationSwitch([TOKEN], 99)
    network.run()
    check_sums(data, [first.outputs, second.outputs], 8)
    assert first.machine.counters["repeats"] + second.machine.counters["repeats"] <= 1


def racks(
    seed: int, weather: Weather, inputs: list[list[np.ndarray]], first: int, **timing: float
) -> Network:
    """A core and two racks, the first with `first` workers."""
    workers = len(inputs)
    network = Network(seed, weather)
    network.switches[PORT] = AggregationSwitch([TOKEN], 1)
    in_first = (1 << first) - 1
    for address, members in ((2 * PORT, in_first), (3 * PORT, (1 << workers) - 1 - in_first)):
        network.switches[address] = AggregationSwitch([TOKEN], address)
        network.switches[address].set_parent(PORT, members)
    for worker in range(workers):
        parent = 2 * PORT if worker < first else 3 * PORT
        add_host(network, worker, workers, inputs[worker], parent, 4, 8, **timing)
    return network


def test_a_rack_under_a_core() -> None:
    """Racks of three and two workers: the core sees two children, and sums are over all five workers."""
    inputs = arrays(4, 5, [100, 33, 8], "float32")
    network = racks(7, Weather(0.1, 0.1, (5, 100), 0.02), inputs, first=3)
    network.run()
    hosts = list(network.hosts.values())
    assert [host.done for host in hosts] == [3] * 5
    check_sums(inputs, [host.outputs for host in hosts], 8)
    total = sum(packets_of(n, 8, 4, "float32") for n in (100, 33, 8)) + 3
    assert network.switches[PORT].counters["contributions"] == 2 * total
    assert network.switches[2 * PORT].counters["contributions"] == 3 * total
    assert network.switches[3 * PORT].counters["results"] == total


def after_the_first_sum(begun: int = 2, **timing: float) -> Network:
    """Two racks of two workers; the first `begun` workers have begun a second sum, the others are late."""
    data = [np.arange(40, dtype=np.int32)]
    inputs = [data * (2 if worker < begun else 1) for worker in range(4)]
    network = racks(5, Weather(), inputs, first=2, **timing)
    while [host.done for host in network.hosts.values()] != [1] * 4:
        network.step()
    return network


def test_a_rack_waits_for_another_that_is_late() -> None:
    """The core answers a rack's retransmissions, and the rack's switch passes the answers on to its workers."""
    network = after_the_first_sum(silence_s=3.0, timeout_s=60.0)
    began = network.now
    while network.now < began + 20_000_000 and network.step():
        pass
    hosts = list(network.hosts.values())
    for host in hosts[2:]:
        host.inputs.append(host.inputs[0])
        network.start(host)
    network.run()
    assert [(host.done, host.machine.failure) for host in hosts] == [(2, "")] * 4
    assert np.array_equal(hosts[0].outputs[1], 4 * np.arange(40, dtype=np.int32))


def test_whom_a_rack_waits_for() -> None:
    """The core names the workers of the late rack; a rack's own switch does not blame those of other racks."""
    network = after_the_first_sum(timeout_s=1.0)
    network.run()
    failures = [host.machine.failure for host in network.hosts.values()]
    assert failures[:2] == ["no progress for 1.0 s: worker 2, 3 has not sent its data"] * 2
    network = after_the_first_sum(begun=1, timeout_s=1.0)
    network.run()
    host = network.hosts[100 << 16]
    assert host.machine.failure == "no progress for 1.0 s: worker 1 has not sent its data"


def test_a_rack_notices_that_the_core_is_gone() -> None:
    network = after_the_first_sum(silence_s=3.0, timeout_s=60.0)
    began = network.now
    del network.switches[PORT]
    network.run()
    failures = [host.machine.failure for host in network.hosts.values()]
    assert failures[:2] == ["the switch has not answered for 3.0 s"] * 2
    assert network.now < began + 4_000_000


def test_losses_delay_sums_but_do_not_slow_down_their_own_discovery() -> None:
    """Round trips that a loss made long must not lengthen the timers, or each loss would take longer to detect."""
    inputs = arrays(1, 4, [900], "float32")
    for seed in range(8):
        network = racks(seed, Weather(0.1, 0.0, (100, 2000)), inputs, first=2, silence_s=3.0)
        network.run()
        assert [host.machine.failure for host in network.hosts.values()] == [""] * 4
        assert network.now < 8_000_000


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), which=st.integers(0, 2), steps=st.integers(1, 500))
def test_a_restart_in_a_hierarchy(seed: int, which: int, steps: int) -> None:
    """Whichever switch restarts, core or rack, the sums are correct."""
    inputs = arrays(seed, 4, [100, 33], "int32")
    network = Network(seed, Weather(0.1, 0.1, (5, 100)))
    places = [PORT, 2 * PORT, 3 * PORT]
    members = {2 * PORT: 0b0011, 3 * PORT: 0b1100}

    def switch_on(address: int, number: int) -> None:
        network.switches[address] = AggregationSwitch([TOKEN], number)
        if address in members:
            network.switches[address].set_parent(PORT, members[address])

    for place in places:
        switch_on(place, place)
    for worker in range(4):
        add_host(network, worker, 4, inputs[worker], places[1 + worker // 2], 4, 8, timeout_s=50.0)
    for _ in range(steps):
        network.step()
    switch_on(places[which], 5)
    network.run()
    hosts = list(network.hosts.values())
    check_ends(hosts, inputs, 2)


# Values that floating-point types have and integers do not.


def reduced(values: list[np.ndarray], k: int = 8) -> tuple[np.ndarray, AggregationWorker]:
    network = star(1, Weather(), [[one] for one in values], packet_elements=k)
    network.run()
    host = next(iter(network.hosts.values()))
    assert host.done == 1
    return host.outputs[0], host.machine


def test_blocks_that_are_not_finite_become_nan_and_are_reported() -> None:
    data = [np.ones(24, np.float32) for _ in range(3)]
    data[1][9] = np.inf
    data[2][20] = np.nan
    result, machine = reduced(data)
    assert machine.non_finite
    assert np.array_equal(result[:8], np.full(8, 3, np.float32))
    assert np.isnan(result[8:]).all()
    _, machine = reduced([np.ones(24, np.float32)] * 2)
    assert not machine.non_finite


def test_extreme_values() -> None:
    """The largest numbers overflow to inf as in any sum; sums of subnormal numbers and of zeros are exact."""
    most = np.finfo(np.float32).max
    result, _ = reduced([np.full(8, most, np.float32)] * 4)
    assert np.isposinf(result).all()
    result, _ = reduced([np.full(8, 2.0**-149, np.float32)] * 4)
    assert np.array_equal(result, np.full(8, 2.0**-147, np.float32))
    result, _ = reduced([np.zeros(8, np.float32)] * 2)
    assert not result.any()
    result, _ = reduced([np.full(8, 30000, np.float16)] * 4)
    assert np.isposinf(result).all()


@pytest.mark.parametrize("workers", [2, 64])
def test_the_scale_cannot_overflow(workers: int) -> None:
    """All workers send the largest number below a power of two, of both signs: the sums just fit into 32 bits."""
    values = np.array([np.nextafter(np.float32(2), np.float32(0)), -2], np.float32)
    values[1] = -values[0]
    result, _ = reduced([values] * workers)
    assert np.allclose(result, workers * values.astype(np.float64), rtol=1e-6)


def test_settings_that_cannot_be() -> None:
    for arguments, word in (
        ((TOKEN, "job", 2, 2, 4, 8, 1), "worker must be below 2"),
        ((TOKEN, "job", 0, 0, 4, 8, 1), "workers must be 1 to 64"),
        ((TOKEN, "job", 0, 2, 0, 8, 1), "pool must be 1"),
        ((TOKEN, "job", 0, 2, 4, 2, 1), "packet_elements must be 3"),
        ((TOKEN, "", 0, 2, 4, 8, 1), "job must be a name"),
        ((b"short", "job", 0, 2, 4, 8, 1), "16 bytes"),
    ):
        with pytest.raises(ValueError, match=word):
            AggregationWorker(*arguments)
    worker = AggregationWorker(TOKEN, "job", 0, 1, 4, 8, 1)
    data = np.zeros(4)
    with pytest.raises(ValueError, match="cannot add float64"):
        worker.start(data.ctypes.data, data.ctypes.data, 4, "float64", False, 0)
    with pytest.raises(ValueError, match="cannot average int32"):
        worker.start(data.ctypes.data, data.ctypes.data, 4, "int32", True, 0)


def test_a_worker_says_why_it_cannot_go_on() -> None:
    data = np.ones(8, np.int32)

    def failure(network: Network) -> str:
        network.run()
        return next(iter(network.hosts.values())).machine.failure

    alone = star(1, Weather(loss=1.0), [[data]], silence_s=0.5)
    assert failure(alone) == "the switch has not answered for 0.5 s"
    late = star(1, Weather(), [[data], [data], [data]], timeout_s=0.5)
    del late.hosts[102 << 16]
    late.events = [event for event in late.events if event[2] != 102 << 16]
    assert failure(late) == "no progress for 0.5 s: worker 2 has not joined"
    silent = star(1, Weather(), [[data], [data]], timeout_s=0.5)
    for _ in range(5):
        silent.step()
    del silent.hosts[101 << 16]
    assert "worker 1 has not" in failure(silent)


def test_the_format_of_packets_is_as_documented() -> None:
    """The header has 32 bytes; a join has 96 more."""
    worker = AggregationWorker(TOKEN, "job", 1, 2, 4, 8, 42)
    data = np.ones(8, np.int32)
    out = np.zeros(8, np.int32)
    (packet,) = worker.start(data.ctypes.data, out.ctypes.data, 8, "int32", False, 0)
    assert packet == join(1, 2, pool=4, elements=8, incarnation=42)
    assert len(packet) == 128
    assert struct.unpack_from("<16s32s", packet, 32)[0] == TOKEN
