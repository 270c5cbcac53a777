"""Jobs of test ranks; see `tests.support.ranks`. Every function gets the rank's communicator first.

`expected` computes the results to compare with, by NumPy from the inputs of all ranks.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import threading
import time
from copy import copy
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np

import tacos
from tacos import collective as co
from tacos.errors import CommunicationError, VerificationError
from tacos.runtime.carriers.tcp import Tcp
from tacos.runtime.dispatch.algorithms import Algorithms, Settings, order_matters
from tacos.runtime.flight import record_to
from tacos.runtime.healing import Notice, on_notice
from tacos.runtime.healing.calls import Healer, Request
from tacos.runtime.healing.diagnosis import RankReport
from tacos.runtime.measure.bench import measure
from tacos.runtime.metrics import prometheus
from tests.support.conditions import PATIENCE_S, data_waits, until

TIMEOUT_S = 2.0
"""Timeout of communicators in tests of the timeout."""
FAR_S = 4 * PATIENCE_S
"""Timeout of communicators whose ranks must learn of a failure long before it: tests wait for `PATIENCE_S`."""
OPS = {
    "sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
}  # fmt: skip
TYPES_AND_OPERATIONS = [
    (101, dtype, op, False)
    for dtype in ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
    for op in OPS
    if not (dtype[0] == "f" and op in ("band", "bor", "bxor")) and (dtype, op) != ("bool", "avg")
]
"""Cases of `run_cases`, one for each type and operation that go together."""


def made(kind, network, *, chunks=1, **options):
    """Return a schedule of 1 MB; the last rank is the root if the collective has one."""
    rooted = kind in ("broadcast", "reduce", "gather", "scatter")
    root = {"root": network.npus - 1} if rooted else {}
    collective = co.named(kind, network, "1MB", chunks=chunks, **root)
    return tacos.synthesize(network, collective, **options)


def numbers(seed, rank, size, dtype):
    """A rank's input: small whole numbers, so that sums are exact in every type."""
    values = np.random.default_rng([seed, rank]).integers(0, 5, size)
    return values.astype(dtype)


def cuts(count, pieces):
    """Where a buffer is cut; the first pieces take the remainder."""
    return np.cumsum([0] + [count // pieces + (i < count % pieces) for i in range(pieces)])


def expected(part, rank, count, dtype, op, seed):
    """Input and output of a rank, for one named collective over `part.group`."""
    group = part.group.tolist()
    n, kind = len(group), part.kind
    here = group.index(rank) if rank in group else -1
    root = group[part.root] if part.root >= 0 else -1
    at = cuts(count, n)
    lengths = {
        "all_gather": lambda i: at[i + 1] - at[i],
        "gather": lambda i: at[i + 1] - at[i],
        "broadcast": lambda i: count if i == part.root else 0,
        "scatter": lambda i: count if i == part.root else 0,
    }
    length = lengths.get(kind, lambda i: count)
    if here < 0:
        return np.empty(0, dtype), np.empty(0, dtype)
    source = numbers(seed, rank, length(here), dtype)
    if kind == "all_to_all":
        blocks = [numbers(seed, r, count, dtype)[at[here] : at[here + 1]] for r in group]
        return source, np.concatenate(blocks)
    if kind in ("all_gather", "gather"):
        whole = np.concatenate([numbers(seed, r, length(i), dtype) for i, r in enumerate(group)])
        return source, whole if kind == "all_gather" or rank == root else whole[:0]
    if kind in ("broadcast", "scatter"):
        whole = numbers(seed, root, count, dtype)
        return source, whole if kind == "broadcast" else whole[at[here] : at[here + 1]]
    total = numbers(seed, group[0], count, dtype)
    for member in group[1:]:
        total = OPS[op](total, numbers(seed, member, count, dtype)).astype(dtype)
    if op == "avg":
        total = (total / n).astype(dtype) if total.dtype.kind == "f" else total // n
    if kind == "reduce_scatter":
        return source, total[at[here] : at[here + 1]]
    return source, total if kind == "all_reduce" or rank == root else total[:0]


def run_cases(comm, algorithm, cases):
    """Run (count, dtype, op, in place) one after the other; return what is wrong, as sentences."""
    prepared = comm.prepare(algorithm)
    [part] = prepared.collective.parts
    wrong = []
    for seed, (count, dtype, op, in_place) in enumerate(cases):
        source, want = expected(part, comm.rank, count, dtype, op, seed)
        given = source.copy()
        target = np.full(len(want), 77).astype(dtype)
        if in_place:
            given, target = shared(part, comm.rank, count, given, target)
        try:
            prepared.run(given, target, op, count=count)
        except Exception as error:
            error.add_note(f"{part.kind} {count} {dtype} {op} {in_place}")
            raise
        if not np.array_equal(target, want):
            bad = int((target != want).sum())
            wrong.append(
                f"rank {comm.rank}: {count} {dtype} {op} {in_place}: {bad} wrong of {len(want)}"
            )
        if not in_place and not np.array_equal(given, source):
            wrong.append(f"rank {comm.rank}: {count} {dtype} {op}: the source was changed")
    return wrong


def shared(part, rank, count, source, target):
    """Return the buffers in one piece of memory, placed as for NCCL's in-place calls."""
    group = part.group.tolist()
    if rank not in group:
        return source, target
    at, here = cuts(count, len(group)), group.index(rank)
    if len(source) >= len(target):
        whole = source
        inside = part.kind in ("reduce_scatter", "scatter")
        return whole, whole[at[here] : at[here + 1]] if inside and len(target) else whole[
            : len(target)
        ]
    whole = target
    inside = part.kind in ("all_gather", "gather") and len(source) > 0
    view = whole[at[here] : at[here + 1]] if inside else whole[: len(source)]
    view[:] = source
    return view, whole


def run_many(comm, schedules, calls):
    """Make many small calls; return how many were wrong."""
    algorithms = [comm.prepare(schedule) for schedule in schedules]
    wrong = 0
    for call in range(calls):
        algorithm = algorithms[call % len(algorithms)]
        [part] = algorithm.collective.parts
        count = call % 13
        source, want = expected(part, comm.rank, count, "int32", "sum", call)
        got = algorithm.run(source, np.empty(len(want), np.int32), count=count)
        wrong += not np.array_equal(got, want)
    return wrong


def call_cached(comm, variables, calls):
    """Make calls (kind, count) with the algorithms that environment variables choose; return what is
    wrong, and the log."""
    settings = Settings.from_environment(comm.size, variables)
    algorithms = Algorithms(comm, settings)
    wrong, log = [], io.StringIO()
    with contextlib.redirect_stderr(log):
        for kind, count in calls:
            algorithm = algorithms.get(kind, 4 * count)
            [part] = algorithm.collective.parts
            source, want = expected(part, comm.rank, count, "float32", "sum", count)
            if part.kind != kind:
                wrong.append(f"{part.kind} serves {kind}")
                continue
            got = algorithm.run(source, np.full(len(want), 77, np.float32), count=count)
            if not np.array_equal(got, want):
                wrong.append(f"rank {comm.rank}: {kind} {count}")
    return wrong, log.getvalue()


# --- failures: each returns the error that a rank gets, or raises it ---------------------------------


def _heard(action, *arguments, **options):
    """Return the error of an action: the name of its class, and its text."""
    try:
        action(*arguments, **options)
    except (CommunicationError, ValueError, TimeoutError, VerificationError) as error:
        return type(error).__name__, str(error)
    return "", ""


def stop_one(comm, schedule, who, number):
    """Send one rank a signal between two calls; return the error, and that of a further call."""
    algorithm = comm.prepare(schedule)
    data = np.ones(1000, np.float32)
    algorithm.run(data, data)
    comm.exchange("all are through with the first", b"")
    if comm.rank == who:
        os.kill(os.getpid(), number)
    return _heard(algorithm.run, data, data), _heard(algorithm.run, data, data)


def stay_away(comm, schedule, who, folder):
    """One rank makes the second call only when the others have given up."""
    algorithm = comm.prepare(schedule)
    data = np.ones(1000, np.float32)
    algorithm.run(data, data)
    if comm.rank == who:
        _wait_for_files(folder, comm.size - 1)
    heard = _heard(algorithm.run, data, data)
    Path(folder, str(comm.rank)).touch()
    return heard


def _wait_for_files(folder, count):
    """Wait for as many ranks as have created a file each."""
    until(
        lambda: sum(1 for _ in Path(folder).iterdir()) == count,
        f"{count} ranks have created their files",
    )


def stop_within(comm, schedule, who, number):
    """Send one rank a signal in the middle of a large call."""
    algorithm = comm.prepare(schedule)
    data = np.ones(1 << 24, np.float32)
    if comm.rank == who:
        threading.Timer(0.02, os.kill, [os.getpid(), number]).start()
    return _heard(lambda: [algorithm.run(data, data) for _ in range(200)])


def prepare_each(comm, schedules):
    """Every rank prepares its own schedule."""
    return _heard(comm.prepare, schedules[comm.rank])


def call_each(comm, schedule, calls):
    """Every rank makes its own call (count, dtype, op), after one that is the same for all."""
    algorithm = comm.prepare(schedule)
    count, dtype, op = calls[comm.rank]

    def both():
        algorithm.run(np.ones(4, np.float32))
        algorithm.run(np.ones(count, dtype), op=op)

    return _heard(both)  # a rank still in the first call may get the error of the second


def run_each(comm, schedules, numbers):
    """All ranks prepare the same algorithms, and each runs the one with its own number."""

    def use():  # others may still prepare when one fails
        algorithms = [comm.prepare(schedule) for schedule in schedules]
        algorithms[numbers[comm.rank]].run(np.ones(40, np.float32))

    return _heard(use)


def fail_with(comm, schedule, who):
    """One rank's own code fails within the context of the communicator."""
    data = np.ones(1000, np.float32)

    def use():
        with comm:
            algorithm = comm.prepare(schedule)  # others may still be here when one fails
            if comm.rank == who:
                raise ValueError("the data are bad")
            algorithm.run(data, data)

    return _heard(use)


def run_wrongly(comm, schedule, source, target, op, count):
    """Make a call that this rank itself refuses; the communicator remains usable."""
    algorithm = comm.prepare(schedule)
    heard = _heard(algorithm.run, source, target, op, count=count)
    return heard, algorithm.run(np.ones(4, np.float32)).tolist()


def leave_early(comm, everybody, pair, who, folder):
    """One rank closes its communicator; the others learn of it in a call without it, then need it."""
    first, second = comm.prepare(everybody), comm.prepare(pair)
    data = np.ones(100_000, np.float32)
    first.run(data)
    if comm.rank == who:
        comm.close()
        Path(folder, "closed").touch()
        return _heard(first.run, data)
    _wait_for_files(folder, 1)
    return _heard(lambda: (second.run(data), first.run(data)))


def fork_before_a_call(comm, schedule):
    """A child of rank 0 uses and closes the communicator it inherited, while data for rank 0 wait."""
    algorithm = comm.prepare(schedule)
    data = np.ones(1000, np.float32)
    algorithm.run(data.copy())
    heard = ["", ""]
    if comm.rank == 0:
        until(data_waits, "another rank has sent data")
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            kind, said = _heard(algorithm.run, data.copy())
            comm.open().abort("the child gives up")
            comm.close()
            os.write(writer, f"{kind}: {said}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        heard = os.read(reader, 1000).decode().split(": ", 1)
        os.close(reader)
        os.close(writer)
    return algorithm.run(data)[:2].tolist(), *heard


def put_and_leave(comm, program, folder):
    """Rank 0 puts its data at rank 1 and leaves before rank 1 receives them."""
    algorithm = comm.prepare(program)
    data = np.full(1000, 7.0, np.float32)
    if comm.rank == 0:
        algorithm.run(data, np.empty_like(data), count=1000)
        comm.close()
        Path(folder, "closed").touch()
        return True
    _wait_for_files(folder, 1)
    result = algorithm.run(None, np.empty_like(data), count=1000)
    return bool((result == 7.0).all())


def prepare_instead(comm, schedule, other, who):
    """One rank prepares another algorithm while the others run the one they have."""
    algorithm = comm.prepare(schedule)
    data = np.ones(1000, np.float32)

    def both():
        algorithm.run(data, data, count=1000)
        if comm.rank == who:
            comm.prepare(other)
        else:
            algorithm.run(data, data, count=1000)

    return _heard(both)  # a rank still in the first call may get the error of the second


def meet_instead(comm, schedule, who, folder):
    """One rank leaves while the others wait for it at a barrier; its place at the rendezvous is still taken."""
    algorithm = comm.prepare(schedule)
    algorithm.run(np.ones(1000, np.float32))
    comm.barrier("before")
    if comm.rank == who:
        comm.open().close()
        _wait_for_files(folder, comm.size - 1)
        return _heard(algorithm.run, np.ones(3))
    heard = _heard(comm.barrier, "after")
    Path(folder, str(comm.rank)).touch()
    return heard


def close_within(comm, schedule, how, folder):
    """Rank 0 closes or aborts its communicator while its call waits for rank 1, which makes its call later.

    Rank 1 knows that rank 0 is in its call when data from there wait.
    """
    began, ended = Path(folder, "began"), Path(folder, "ended")
    algorithm = comm.prepare(schedule)
    data = np.ones(1000, np.float32)
    algorithm.run(data, data)
    heard = []
    if comm.rank:
        until(data_waits, "rank 0 has begun its call")
        began.touch()
        until(ended.exists, "rank 0 has ended its communicator")
        return _heard(algorithm.run, data, data)
    if how == "signal":

        def end(*_):
            comm.close()
            ended.touch()

        def ring():
            until(began.exists, "rank 1 has got data")
            os.kill(os.getpid(), signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, end)
        bell = threading.Thread(target=ring)
        bell.start()
        try:
            return _heard(algorithm.run, data, data)
        finally:
            bell.join()
            signal.signal(signal.SIGUSR1, before)
    thread = threading.Thread(target=lambda: heard.append(_heard(algorithm.run, data, data)))
    thread.start()
    until(began.exists, "rank 1 has got data")
    comm.close() if how == "close" else comm.abort("enough")
    ended.touch()
    thread.join()
    return heard[0]


def not_a_number(comm, schedule, dtype, op):
    """Return the minima or maxima where each rank has a NaN at a different place."""
    data = np.arange(comm.size + 2).astype(dtype)
    data[comm.rank] = np.nan
    return comm.prepare(schedule).run(data, op=op).tolist()


def choose_algorithms(comm, folder):
    """Return which ranks add up differently in the algorithms for floats and for integers, and the log."""
    settings = Settings.from_environment(comm.size, {"TACOS_PLANS": folder})
    algorithms = Algorithms(comm, settings)
    log = io.StringIO()
    with contextlib.redirect_stderr(log):
        for size in (1000, 2000):
            integers = algorithms.get(
                "all_reduce", size, True, ordered=order_matters("int32", "sum")
            )
            floats = algorithms.get(
                "all_reduce", size, True, ordered=order_matters("bfloat16", "sum")
            )
            maximum = algorithms.get(
                "all_reduce", size, True, ordered=order_matters("float32", "max")
            )
    assert maximum is integers
    source = np.random.default_rng(comm.rank).standard_normal(999).astype(np.float32)
    result = floats.run(source)
    assert len(set(comm.exchange("bits", result.tobytes()))) == 1
    return floats.difference, integers.difference, log.getvalue()


def measure_and_log(comm, program):
    """Return what a measurement of sums of floats, then of integers, writes to standard error."""
    log = io.StringIO()
    with contextlib.redirect_stderr(log):
        for dtype in ("float32", "int32"):
            list(measure(comm, program, [4096], dtype=dtype, iters=1, warmup=0, against="none"))
    return log.getvalue()


def fall_behind(comm, schedule, who, calls, folder, ready):
    """Make some calls; then one rank makes no more, and writes its record when it gets the signal."""
    record_to(folder)
    algorithm = comm.prepare(schedule)
    data = np.ones(1 << 14, np.float32)
    for _ in range(calls):
        algorithm.run(data, data)
    if comm.rank == who:
        until(Path(ready).exists, "the test has seen the record")
        return "stayed away"
    try:
        algorithm.run(data, data)
    except CommunicationError as error:
        return str(error)
    return "ended"


def figures(comm, schedule, calls):
    """Make some calls; return the figures and the metrics."""
    algorithm = comm.prepare(schedule)
    data = np.ones(1 << 18, np.float32)
    for _ in range(calls):
        algorithm.run(data, data)
    comm.barrier("the end")
    return comm.figures()[0], prometheus()


def calls_of_a_meeting(comm, schedules, who, at):
    """Return after which calls this rank knows that all are to meet; one rank calls the meeting before a call."""
    heard = []
    for i, schedule in enumerate(schedules):
        algorithm = comm.prepare(schedule)
        if comm.rank == who and i == at:
            comm.open("tcp").endpoint.call_meeting()
        inputs, _ = algorithm.buffer_elements(1 << 10)
        algorithm.run(np.ones(inputs, np.float32), np.empty(1 << 10, np.float32), count=1 << 10)
        if comm.meeting:
            comm.meeting = False
            heard.append(i)
    return heard


def healed(comm, network, reports, folder):
    """Run all-reduces around meetings at which ranks report these speeds; return sums, shares and algorithms."""
    settings = Settings(topology=network, cache=Path(folder))
    healer = Healer(Algorithms(comm, settings))
    results = []
    try:
        for speeds in (None, *reports):
            if speeds is not None:
                here = RankReport([row for row in speeds if row[1] == comm.rank])
                vars(healer)["_report"] = partial(copy, here)  # instead of what it measures
                if comm.rank == 0:
                    comm.open("tcp").endpoint.call_meeting()
                results.append(_summed(comm, healer))
            results.append(_summed(comm, healer))
        return results
    finally:
        healer.close()


def ran_ahead(comm, network, folder):
    """Let the root of broadcasts be two or more calls ahead when a link is found dead; return the rank's error."""
    healer = Healer(Algorithms(comm, Settings(topology=network, cache=Path(folder))))
    data = np.full(1 << 10, comm.rank, np.float32)
    address = data.ctypes.data
    request = Request(
        "broadcast", data.nbytes, True, 0, True, address, address, data.size, "float32", "sum"
    )
    endpoint = comm.open("tcp").endpoint
    dead = property(lambda carrier: (0, 1) if carrier.failure else None)  # as the kernel finds it
    try:
        healer.run(request)
        for _ in range(2 * (comm.rank == 0)):
            healer.run(request)
        comm.barrier("the root is ahead")
        with mock.patch.object(Tcp, "broken", dead):
            if comm.rank == 1:
                endpoint.abort("the link from rank 0 to rank 1 is dead")
            try:
                healer.run(request)
                if comm.rank == 0:  # a root may end before the error
                    until(lambda: healer.run(request), "rank 0 has learned of the dead link")
            except CommunicationError as error:
                return str(error)
        return ""
    finally:
        healer.close()


def _summed(comm, healer):
    data = np.full(1 << 12, comm.rank + 1, np.float32)
    address = data.ctypes.data
    healer.run(
        Request(
            "all_reduce", data.nbytes, True, -1, True, address, address, data.size, "float32", "sum"
        )
    )
    served = comm.open("tcp").figures()["calls"][-1]["algorithm"]
    return set(data.tolist()), dict(healer.belief.shares), served


def dawdle(comm, schedule, who, pause, enough):
    """Make calls, with a pause of one rank before each, until `enough` ranks have noticed it; return which did."""
    algorithm = comm.prepare(schedule)
    heard: list[Notice] = []
    stop = on_notice(heard.append)

    def noticed():
        return any((notice.kind, notice.src) == ("slow rank", who) for notice in heard)

    def call():
        """Return how many ranks had noticed when they began the call, on all ranks."""
        if comm.rank == who:
            time.sleep(pause)
        data = np.full(1 << 12, noticed(), np.float32)
        algorithm.run(data, data)
        return data[0]

    until(lambda: call() == enough, f"{enough} ranks have noticed that rank {who} is slow")
    stop()
    return noticed()
