"""Jobs of the ranks of ``tests/support/torch_ranks.py``: our default group is compared with gloo."""

from __future__ import annotations

import gc
import itertools
import os
import sys
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from tacos.runtime.torch import Options
from tests.support.conditions import PATIENCE_S, data_waits, until

SIZES = (0, 1, 7, 1000, 65_537)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
OPS = ("SUM", "PRODUCT", "MIN", "MAX")
BITS = ("BAND", "BOR", "BXOR")


@cache
def gloo(ranks: tuple[int, ...] | None = None) -> dist.ProcessGroup:
    return dist.new_group(list(ranks) if ranks else None, backend="gloo")


def data(size: int, dtype: torch.dtype = torch.float32, *, same: bool = False, salt: int = 0):
    """Small integers, so that sums and products are exact in every type."""
    generator = torch.Generator().manual_seed(size + 1000 * salt + (0 if same else dist.get_rank()))
    return torch.randint(0, 3, (size,), generator=generator).to(dtype)


def same(ours: torch.Tensor, theirs: torch.Tensor, what: object) -> None:
    assert ours.dtype == theirs.dtype, what
    if ours.dtype == torch.bool:
        ours, theirs = ours.view(torch.uint8) != 0, theirs.view(torch.uint8) != 0
    assert torch.equal(ours, theirs), f"{what}: {ours.flatten()[:8]} is not {theirs.flatten()[:8]}"


# One job per collective.


def all_reduce() -> None:
    cases = [*itertools.product(FLOATS, OPS), *itertools.product(INTEGERS, (*OPS, *BITS))]
    for (dtype, op), size in itertools.product([*cases, (torch.bool, "SUM")], SIZES):
        if size > 1000 and op != "SUM":
            continue
        ours = data(size, dtype)
        theirs = ours.clone()
        dist.all_reduce(ours, getattr(dist.ReduceOp, op))
        if size:  # gloo refuses empty tensors
            dist.all_reduce(theirs, getattr(dist.ReduceOp, op), group=gloo())
        same(ours, theirs, (dtype, op, size))
    for dtype, size in itertools.product(FLOATS, SIZES):
        ours = data(size, dtype)
        total = ours.clone()
        dist.all_reduce(ours, dist.ReduceOp.AVG)
        dist.all_reduce(total)
        same(ours, total / dist.get_world_size(), ("avg", dtype, size))


def shapes() -> None:
    """Scalars, many dimensions, complex numbers, and memory with gaps or in another order."""
    for make in (
        lambda: data(1).reshape(()),
        lambda: data(24).reshape(2, 3, 4),
        lambda: data(24).reshape(4, 6).t(),
        lambda: data(40)[::2],
        lambda: data(48).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last),
        lambda: torch.complex(data(9), data(9, salt=1)),
    ):
        whole = make()
        ours, theirs = make(), whole.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(ours)
        dist.all_reduce(theirs, group=gloo())
        same(ours, theirs, ("all_reduce", tuple(whole.shape), whole.stride()))
        ours, theirs = make(), whole.clone(memory_format=torch.contiguous_format)
        dist.broadcast(ours, 1)
        dist.broadcast(theirs, 1, group=gloo())
        same(ours, theirs, ("broadcast", tuple(whole.shape), whole.stride()))
    with_gaps = torch.zeros(2 * 6 * dist.get_world_size())
    dist.all_gather_into_tensor(with_gaps[::2], data(6))
    right = torch.zeros(6 * dist.get_world_size())
    dist.all_gather_into_tensor(right, data(6), group=gloo())
    same(with_gaps[::2], right, "gaps in the output")
    assert not with_gaps[1::2].any()


def all_gather() -> None:
    n = dist.get_world_size()
    for dtype, size in itertools.product((*FLOATS, *INTEGERS, torch.bool, torch.int16), SIZES):
        given = data(size, dtype)
        right = [torch.empty(size, dtype=dtype) for _ in range(n)]
        if size:  # as bytes: gloo does not carry int16
            dist.all_gather(
                [one.view(torch.uint8) for one in right], given.view(torch.uint8), group=gloo()
            )
        ours = [torch.empty_like(given) for _ in range(n)]
        dist.all_gather(ours, given)
        for i, (one, other) in enumerate(zip(ours, right, strict=True)):
            same(one, other, ("list", dtype, size, i))
        whole = torch.empty(n * size, dtype=dtype)
        dist.all_gather_into_tensor(whole, given)
        same(whole, torch.cat(right), ("tensor", dtype, size))
        rank = dist.get_rank()
        whole = torch.empty(n * size, dtype=dtype)
        whole[rank * size : (rank + 1) * size] = given
        dist.all_gather_into_tensor(whole, whole[rank * size : (rank + 1) * size])
        same(whole, torch.cat(right), ("in place", dtype, size))
    uneven = [torch.empty(3 * i) for i in range(n)]
    dist.all_gather(uneven, data(3 * dist.get_rank()))
    for rank, part in enumerate(uneven):
        generator = torch.Generator().manual_seed(3 * rank + rank)
        same(part, torch.randint(0, 3, (3 * rank,), generator=generator).float(), "uneven")


def reduce_scatter() -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    for dtype, op, size in itertools.product((torch.float32, torch.int64), OPS, SIZES):
        whole = data(n * size, dtype)
        right = whole.clone()
        if size:
            dist.all_reduce(right, getattr(dist.ReduceOp, op), group=gloo())
        right = right[rank * size : (rank + 1) * size]
        output = torch.empty(size, dtype=dtype)
        dist.reduce_scatter_tensor(output, whole, getattr(dist.ReduceOp, op))
        same(output, right, ("tensor", dtype, op, size))
        output = torch.empty(size, dtype=dtype)
        parts = list(whole.split(size)) if size else [whole] * n
        dist.reduce_scatter(output, parts, getattr(dist.ReduceOp, op))
        same(output, right, ("list", dtype, op, size))
        place = whole[rank * size : (rank + 1) * size]
        dist.reduce_scatter_tensor(place, whole, getattr(dist.ReduceOp, op))
        same(place, right, ("in place", dtype, op, size))


def all_to_all() -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    for dtype, size in itertools.product((torch.float32, torch.int8), SIZES):
        given = data(n * size, dtype)
        ours, theirs = torch.empty_like(given), torch.empty_like(given)
        dist.all_to_all_single(ours, given)
        if size:
            dist.all_to_all_single(theirs, given, group=gloo())
        same(ours, theirs, (dtype, size))
    for split in (lambda i, j: 1 + (i + j) % 2, lambda i, j: 0, lambda i, j: 100 * (i == j == 1)):
        into = [split(i, rank) for i in range(n)]
        out = [split(rank, j) for j in range(n)]
        given = data(3 * sum(out)).reshape(-1, 3)
        ours, theirs = torch.empty(sum(into), 3), torch.empty(sum(into), 3)
        dist.all_to_all_single(ours, given, into, out)
        dist.all_to_all_single(theirs, given, into, out, group=gloo())
        same(ours, theirs, ("splits", into, out))
        outputs = [torch.empty(size) for size in into]
        dist.all_to_all(
            outputs, [torch.full((size,), 10.0 * rank + j) for j, size in enumerate(out)]
        )
        for i, output in enumerate(outputs):
            same(output, torch.full((into[i],), 10.0 * i + rank), ("list", into, out))


SKEWED = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
)


def skewed() -> None:
    """Rank i sends 100 elements to one rank and one to each other: too uneven for padding, in types unknown to gloo."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def block(i: int, j: int, dtype: torch.dtype) -> torch.Tensor:
        return (torch.arange(100 if (i + j) % ranks == 0 else 1) % 2 + (i + j) % 3).to(dtype)

    for dtype in SKEWED:
        parts = [block(rank, j, dtype) for j in range(ranks)]
        wanted = [block(i, rank, dtype) for i in range(ranks)]
        output = torch.zeros(sum(map(len, wanted))).to(dtype)
        splits = list(map(len, wanted)), list(map(len, parts))
        given = torch.cat([part.view(torch.uint8) for part in parts]).view(dtype)
        dist.all_to_all_single(output, given, *splits)
        right = torch.cat([part.view(torch.uint8) for part in wanted])
        assert torch.equal(output.view(torch.uint8), right), dtype


def profiled() -> None:
    """A profiler sees each collective with the shapes of its inputs, even if another thread runs it."""
    ranks = dist.get_world_size()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(8, 4))
        dist.all_reduce(torch.ones(5), async_op=True).wait()
        dist.all_gather_single(torch.empty(2 * ranks), torch.ones(2))
        dist.all_to_all_single(torch.empty(ranks), torch.ones(ranks))
        dist.barrier()
    seen = [(e.name, e.input_shapes) for e in profiler.events() if e.name.startswith("tacos:")]
    assert seen == [
        ("tacos:all_reduce", [[8, 4]]),
        ("tacos:all_reduce", [[5]]),
        ("tacos:all_gather", [[2]]),
        ("tacos:all_to_all", [[ranks]]),
        ("tacos:barrier", []),
    ], seen


def rooted() -> None:
    n, rank = dist.get_world_size(), dist.get_rank()
    for root, size in itertools.product((0, n - 1, 1), SIZES):
        for dtype in (torch.float32, torch.bool, torch.complex64):
            ours = data(size, dtype)
            theirs = ours.clone()
            dist.broadcast(ours, root)
            if size:
                dist.broadcast(theirs, root, group=gloo())
                same(ours, theirs, ("broadcast", root, size, dtype))
        ours = data(size)
        theirs = ours.clone()
        dist.reduce(ours, root)
        if size:
            dist.reduce(theirs, root, group=gloo())
        if rank == root:
            same(ours, theirs, ("reduce", root, size))
        outputs = [torch.empty(size) for _ in range(n)] if rank == root else None
        dist.gather(data(size), outputs, root)
        right = [torch.empty(size) for _ in range(n)]
        if size:
            dist.all_gather(right, data(size), group=gloo())
        for one, other in zip(outputs or [], right, strict=rank == root):
            same(one, other, ("gather", root, size))
        output = torch.empty(size)
        dist.scatter(output, list(data(n * size).reshape(n, size)) if rank == root else None, root)
        generator = torch.Generator().manual_seed(n * size + root)
        parts = torch.randint(0, 3, (n * size,), generator=generator).float().reshape(n, size)
        same(output, parts[rank], ("scatter", root, size))


def everything_else() -> None:
    """Objects, messages, barriers and sparse tensors, which gloo carries, alone or with our calls."""
    n, rank = dist.get_world_size(), dist.get_rank()
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": i, "text": "x" * i} for i in range(n)]
    listed = [{"from": rank}] if rank == 1 else [None]
    dist.broadcast_object_list(listed, 1)
    assert listed == [{"from": 1}]
    around(dist.group.WORLD)
    token = torch.full((5,), float(rank))
    into = torch.empty(5)
    others = [
        dist.P2POp(dist.isend, token, (rank + 1) % n),
        dist.P2POp(dist.irecv, into, (rank - 1) % n),
    ]
    for one in dist.batch_isend_irecv(others):
        one.wait()
    dist.barrier()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=PATIENCE_S), wait_all_ranks=True)


def asynchronous() -> None:
    """Many calls at once, in one order; waits, futures, callbacks, coalescing."""
    n = dist.get_world_size()
    given = [data(1000 + 100 * i, salt=i) for i in range(20)]
    right = [one.clone() for one in given]
    works = [dist.all_reduce(one, async_op=True) for one in given]
    for work in reversed(works):
        work.wait()
        assert work.is_completed()
    for one in right:
        dist.all_reduce(one, group=gloo())
    for ours, theirs in zip(given, right, strict=True):
        same(ours, theirs, "async")
    one = data(10)
    doubled = dist.all_reduce(one, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    total = data(10)
    dist.all_reduce(total, group=gloo())
    same(doubled.wait(), total * 2, "future")
    works = [dist.barrier(async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    some = [
        data(size, dtype, salt=size)
        for size in (1, 50, 3)
        for dtype in (torch.float32, torch.int64)
    ]
    right = [tensor.clone() for tensor in some]
    with dist._coalescing_manager():
        for tensor in some:
            dist.all_reduce(tensor)
    for tensor in right:
        dist.all_reduce(tensor, group=gloo())
    for ours, theirs in zip(some, right, strict=True):
        same(ours, theirs, "coalesced all-reduce")
    parts = [data(size) for size in (4, 9)]
    wholes = [torch.empty(n * part.numel()) for part in parts]
    with dist._coalescing_manager(async_ops=True) as together:
        for whole, part in zip(wholes, parts, strict=True):
            dist.all_gather_into_tensor(whole, part)
    together.wait()
    for whole, part in zip(wholes, parts, strict=True):
        right = torch.empty_like(whole)
        dist.all_gather_into_tensor(right, part, group=gloo())
        same(whole, right, "coalesced all-gather")
    gathered = dist.group.WORLD.allgather_coalesced(
        [[torch.empty(4), torch.empty(9)] for _ in range(n)], parts
    )
    assert [one.numel() for one in gathered.get_future().wait()] == [4, 9] * n
    odd = [torch.full((3,), 2, dtype=torch.int32), torch.sparse_coo_tensor([[0]], [1.0], (2,))]
    dist.group.WORLD.allreduce_coalesced(odd).get_future().wait()
    assert odd[0].eq(2 * n).all()
    assert odd[1].to_dense()[0] == n
    with dist._coalescing_manager(device=torch.device("cpu")):
        for whole, part in zip(wholes, parts, strict=True):
            dist.reduce_scatter_tensor(part, whole)
    import torch.distributed._functional_collectives as functional

    moved = functional.all_reduce(data(33), "sum", dist.group.WORLD)
    right = data(33)
    dist.all_reduce(right, group=gloo())
    same(functional.wait_tensor(moved), right, "functional all-reduce")
    moved = functional.all_gather_tensor(data(6), 0, dist.group.WORLD)
    right = torch.empty(6 * n)
    dist.all_gather_into_tensor(right, data(6), group=gloo())
    same(functional.wait_tensor(moved), right, "functional all-gather")


def sub_groups() -> None:
    """Halves, overlapping groups and a group in another order, alongside the whole group."""
    n, rank = dist.get_world_size(), dist.get_rank()
    groups = [list(range(n // 2)), list(range(n // 2, n)), list(range(0, n, 2)), [n - 1, 0]]
    ours = [dist.new_group(members, backend="tacos") for members in groups]
    for members, group in zip(groups, ours, strict=True):
        theirs = gloo(tuple(members))
        if rank not in members:
            continue
        mine, right = data(1001), data(1001)
        dist.all_reduce(mine, group=group)
        dist.all_reduce(right, group=theirs)
        same(mine, right, ("group", members))
        parts = torch.empty(5 * len(members))
        right = torch.empty_like(parts)
        dist.all_gather_into_tensor(parts, data(5), group=group)
        dist.all_gather_into_tensor(right, data(5), group=theirs)
        same(parts, right, ("group", members))
        dist.broadcast(mine, members[-1], group=group)
    everybody = data(99)
    dist.all_reduce(everybody)
    for members, group in zip(groups, ours, strict=True):
        if rank in members:
            dist.destroy_process_group(group)
    single = dist.new_group([0], backend="tacos")
    if rank == 0:
        mine = data(10)
        dist.all_reduce(mine, group=single)
        same(mine, data(10), "alone")
        parts = torch.empty(10)
        dist.all_gather_into_tensor(parts, mine, group=single)
        same(parts, mine, "alone")


# Small jobs that tests combine.


def order_of_sums(sizes: list[int]) -> None:
    """Random floats: equal to the last bit only if they are added in the same order."""
    for size in sizes:
        generator = torch.Generator().manual_seed(size + dist.get_rank())
        ours = torch.randn(size, generator=generator)
        theirs = ours.clone()
        dist.all_reduce(ours)
        dist.all_reduce(theirs, group=gloo())
        assert torch.equal(ours, theirs), f"{size}: {(ours - theirs).abs().max()}"


def everybodys(tensor: torch.Tensor) -> list[bytes]:
    """The bytes of all ranks' tensors."""
    mine = tensor.detach().contiguous().flatten().view(torch.uint8)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine, group=gloo())
    return [bytes(part.tolist()) for part in parts]


def identical_bits(
    variables: dict[str, str], calls: int = 50, sizes: tuple[int, ...] = (500, 4000)
):
    """Sums and averages of random numbers have the same bits on all ranks, whatever the type."""
    with variables_set(**variables):
        group = dist.new_group(backend="tacos")
    generator = torch.Generator().manual_seed(dist.get_rank())
    for call, dtype in itertools.product(
        range(calls), (torch.bfloat16, torch.float16, torch.float32)
    ):
        size = sizes[call % len(sizes)]
        scale = 2.0 ** torch.randint(-6, 7, (size,), generator=generator)
        tensor = (torch.randn(size, generator=generator) * scale).to(dtype)
        op = dist.ReduceOp.AVG if call % 5 == 4 else dist.ReduceOp.SUM
        dist.all_reduce(tensor, op, group=group)
        assert len(set(everybodys(tensor))) == 1, f"call {call} of {size} elements of {dtype}"
    dist.destroy_process_group(group)


def one_call(size: int = 1000):
    tensor = torch.ones(size)
    dist.all_reduce(tensor)
    return tensor[:2].tolist()


def different(what: str) -> None:
    rank = dist.get_rank()
    if what == "size":
        dist.all_reduce(torch.ones(100 + (rank == 1)))
    elif what == "size class":
        dist.all_reduce(torch.ones(10 if rank == 1 else 1_000_000))
    elif what == "dtype":
        dist.all_reduce(torch.ones(100, dtype=torch.int32 if rank == 1 else torch.float32))
    elif what == "op":
        dist.all_reduce(torch.ones(100), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)
    elif what == "collective":
        if rank == 1:
            dist.broadcast(torch.ones(100), 0)
        else:
            dist.all_reduce(torch.ones(100))
    elif what == "root":
        dist.broadcast(torch.ones(100), 1 if rank == 1 else 0)
    elif what == "first use":  # ranks prepare different algorithms
        if rank == 1:
            dist.all_gather_into_tensor(torch.ones(400), torch.ones(100))
        else:
            dist.all_to_all_single(torch.ones(400), torch.ones(400))
    else:
        raise AssertionError(what)


def wrong_argument(what: str) -> None:
    n = dist.get_world_size()
    if what == "gathered size":
        dist.all_gather_into_tensor(torch.empty(n * 4 + 1), torch.ones(4))
    elif what == "types":
        dist.all_gather_into_tensor(torch.empty(n * 4, dtype=torch.int32), torch.ones(4))
    elif what == "blocks":
        dist.all_to_all_single(torch.empty(n + 1), torch.ones(n + 1))
    elif what == "splits":
        dist.all_to_all_single(torch.empty(n), torch.ones(n), [1] * n, [2] * n)
    elif what == "splits of two":
        rank = dist.get_rank()
        sizes = [1] * (n - 1) + [2 if rank == 0 else 1]
        dist.all_to_all_single(torch.empty(n), torch.ones(sum(sizes)), [1] * n, sizes)
    elif what == "list":
        dist.all_gather([torch.empty(4)] * (n + 1), torch.ones(4))
    else:
        raise AssertionError(what)


def abort() -> None:
    if dist.get_rank() == 1:
        until(data_waits, "another rank is in the call")
        dist.group.WORLD.abort()
    dist.all_reduce(torch.ones(3))


def abort_in(where: str, aborted: str) -> None:
    """Rank 0 aborts while another of its threads waits for rank 1, which joins no call, and then creates a file."""
    group = dist.new_group(backend="tacos")
    dist.all_reduce(torch.ones(3), group=group)
    if dist.get_rank() == 1:
        until(Path(aborted).exists, "rank 0 has aborted")
        return
    # Each call, and the function in which it waits.
    call, place = {
        "gloo": (
            lambda: dist.all_reduce(torch.ones(3).to_sparse(), group=group),
            "group.py:<lambda>",
        ),
        "rendezvous": (lambda: dist.broadcast(torch.ones(3), 0, group=group), "store.py:_wait"),
        "thread": (lambda: dist.all_reduce(torch.ones(3), group=group), "tcp.py:run"),
    }[where]
    heard: list[str] = []

    def failing() -> None:
        try:
            call()
        except RuntimeError as error:
            heard.append(str(error))

    thread = threading.Thread(target=failing)
    thread.start()
    until(lambda: place in _places(), f"a thread waits in {place}")
    group.abort()
    if where != "gloo":  # which notices when rank 1 leaves
        thread.join(PATIENCE_S)
        assert "the process group was aborted" in heard[0], heard
    Path(aborted).touch()


def _places() -> set[str]:
    """Return the file and the function in which each thread is; a call may be made by another thread than its caller."""
    codes = [frame.f_code for frame in sys._current_frames().values()]
    return {f"{Path(code.co_filename).name}:{code.co_name}" for code in codes}


def around(group: dist.ProcessGroup) -> None:
    """Pass a message from each rank to the next over gloo, and add up sparse tensors."""
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    members = dist.get_process_group_ranks(group)
    mine, theirs = torch.full((5,), float(rank)), torch.empty(5)
    request = dist.isend(mine, members[(rank + 1) % n], group=group)
    dist.recv(theirs, members[(rank - 1) % n], group=group)
    assert request is not None
    request.wait()
    assert theirs.eq((rank - 1) % n).all()
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (n,))
    dist.all_reduce(sparse, group=group)
    assert sparse.to_dense().eq(1).all()


def messages_in_groups() -> None:
    """Messages in several groups in turn, also after some of them were destroyed."""
    some = [0, dist.get_world_size() - 1]
    part, *others = (dist.new_group(members, backend="tacos") for members in (some, None, None))
    for group in (*others, dist.group.WORLD, *others):
        around(group)
    if dist.get_rank() in some:
        around(part)
        dist.destroy_process_group(part)
    dist.destroy_process_group(others.pop())
    for group in (dist.group.WORLD, *others):
        around(group)
    dist.destroy_process_group(others.pop())
    around(dist.group.WORLD)


def open_files() -> Counter[str]:
    """Count the open files of this process; each socket and each pipe has a name of its own."""
    gc.collect()
    found: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            found[str(entry.readlink())] += 1
    return found


def leaves_nothing_open() -> None:
    """A leak grows with each group; a file that another thread opens for a moment does not."""

    def use_a_group() -> None:
        group = dist.new_group(backend="tacos")
        dist.all_reduce(torch.ones(3), group=group)
        around(group)
        dist.destroy_process_group(group)

    def use_groups(count: int) -> Counter[str]:
        for _ in range(count):
            use_a_group()
        dist.barrier()
        return open_files()

    before = use_groups(1)  # it also connects the ranks in the default group
    left = use_groups(5) - before
    assert left.total() < 5, left


def after_destruction() -> None:
    group = dist.new_group(backend="tacos")
    group.shutdown()
    dist.all_reduce(torch.ones(3), group=group)


def environment(**variables: str) -> None:
    os.environ.update(variables)


@contextmanager
def variables_set(**variables: str):
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def adaptive(variables: dict[str, str]) -> tuple[bool, bool, bool]:
    """Return which groups heal: with adapt=True, without options, and with adapt=False in a job that adapts."""
    with variables_set(**variables):
        told = dist.new_group(backend="tacos", pg_options=Options(adapt=True))
        plain = dist.new_group(backend="tacos")
        with variables_set(TACOS_ADAPT="1"):
            not_told = dist.new_group(backend="tacos", pg_options=Options(adapt=False))
    n = dist.get_world_size()
    for group in (told, plain, not_told):
        mine = torch.arange(1000) + dist.get_rank()
        dist.all_reduce(mine, group=group)
        same(mine, torch.arange(1000) * n + n * (n - 1) // 2, "all_reduce")
    found = tuple(group._healer is not None for group in (told, plain, not_told))
    for group in (told, plain, not_told):
        dist.destroy_process_group(group)
    return found  # type: ignore[return-value]


def planned(variables: dict[str, str], members: list[int] | None = None) -> None:
    """Run all collectives that a plan may serve, in a new group that reads the environment again."""
    with variables_set(**variables):
        group = dist.new_group(members, backend="tacos")
    if members is not None and dist.get_rank() not in members:
        return
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    for size in (1, 1000, 30_000):
        mine = torch.arange(size) + rank
        dist.all_reduce(mine, group=group)
        same(mine, torch.arange(size) * n + n * (n - 1) // 2, ("all_reduce", size))
        parts = torch.empty(n * size)
        dist.all_gather_into_tensor(parts, torch.full((size,), float(rank)), group=group)
        same(parts, torch.arange(n).float().repeat_interleave(size), ("all_gather", size))
        part = torch.empty(size, dtype=torch.int64)
        dist.reduce_scatter_tensor(part, torch.arange(n * size), group=group)
        same(part, torch.arange(rank * size, (rank + 1) * size) * n, ("reduce_scatter", size))
        blocks = torch.empty(n * size)
        given = (torch.arange(n) + 100.0 * rank).repeat_interleave(size)
        dist.all_to_all_single(blocks, given, group=group)
        right = (torch.arange(n) * 100.0 + rank).repeat_interleave(size)
        same(blocks, right, ("all_to_all", size))
    dist.destroy_process_group(group)
