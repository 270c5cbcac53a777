"""Programs on a GPU: NCCL's sends and receives, wave by wave, checked and timed.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --torch    # first the backend of torch.distributed, two ranks on one GPU

One process runs all ranks of a program on one GPU: NCCL carries every message from the GPU to itself, so
this measures the driver's overhead (launches, sums) and the memory's bandwidth, not a network's.
Times are medians of several runs, with minimum and maximum.

Two ranks that share a GPU cannot use NCCL, so the backend goes through pinned memory of the host. All
collectives are checked with all types that they take; with two or more GPUs and
``torchrun --nproc-per-node=2 benchmarks/gpu.py --rank`` the same checks go over NCCL.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

import tacos
from tacos.runtime.carriers.waves import GpuAlgorithm

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = [
    ("ring:4", "all-reduce", "ring"),
    ("dgx-h100-plain:1", "all-reduce", "auto"),
    ("dgx-h100-plain:1", "all-gather", "auto"),
    ("torus:4x4", "all-reduce", "auto"),
    ("mesh:3x3", "reduce-scatter", "greedy"),
    ("fc:8", "all-to-all", "auto"),
]
COUNTS = [1_000, 1_000_003, 16_000_000]
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int32": torch.int32}
RUNS = 7


def buffers(program: tacos.Program, count: int, dtype: torch.dtype) -> list[list[torch.Tensor]]:
    """Return every rank's input of small whole numbers, its output, and the expected output."""
    [part] = program.collective.parts
    ranks = program.ranks
    edges = [sum(count // ranks + (i < count % ranks) for i in range(k)) for k in range(ranks + 1)]

    def cut(whole: torch.Tensor, rank: int) -> torch.Tensor:
        return whole[edges[rank] : edges[rank + 1]]

    def numbers(n: int) -> torch.Tensor:
        return torch.randint(0, 3, (n,), device="cuda").to(dtype)

    gathers = part.kind == "all_gather"
    sources = [numbers(edges[r + 1] - edges[r] if gathers else count) for r in range(ranks)]
    if gathers:
        wanted = [torch.cat(sources)] * ranks
    elif part.kind == "all_to_all":
        wanted = [torch.cat([cut(s, r) for s in sources]) for r in range(ranks)]
    else:
        total = torch.stack(sources).sum(0).to(dtype)
        scatters = part.kind == "reduce_scatter"
        wanted = [cut(total, r) if scatters else total for r in range(ranks)]
    return [sources, [torch.zeros_like(want) for want in wanted], wanted]


# The backend of torch.distributed.

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
SIZES = (1, 7, 1000, 100_003)


def given(size: int, dtype: torch.dtype, rank: int, salt: int = 0) -> torch.Tensor:
    """Return small whole numbers that all ranks can compute, so that sums are exact in every type."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.randint(0, 4, (size,), generator=generator).to(dtype).cuda()


def reduced(op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """Return the reduction of all ranks' tensors."""
    stack = torch.stack([part.cpu().double() for part in parts])
    values = {
        "SUM": lambda: stack.sum(0),
        "AVG": lambda: stack.sum(0) / len(parts),
        "PRODUCT": lambda: stack.prod(0),
        "MIN": lambda: stack.amin(0),
        "MAX": lambda: stack.amax(0),
    }[op]()
    if not parts[0].is_floating_point():
        values = values.trunc()
    return values.to(parts[0].dtype).cuda()


def backend_cases(rank: int, ranks: int) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield name, result and expected result, for every collective, type and size."""
    root = ranks - 1
    for dtype, size in itertools.product(FLOATS + INTEGERS, SIZES):
        what = f"{str(dtype)[6:]} {size}"
        parts = [given(size, dtype, r) for r in range(ranks)]
        wholes = [given(size * ranks, dtype, r, 1) for r in range(ranks)]
        mine, whole = parts[rank].clone(), wholes[rank].clone()
        for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
            tensor = mine.clone()
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            yield f"all_reduce {op} {what}", tensor, reduced(op, parts)
        output = mine.new_empty(size * ranks)
        dist.all_gather_into_tensor(output, mine)
        yield f"all_gather {what}", output, torch.cat(parts)
        listed = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(listed, mine)
        yield f"all_gather list {what}", torch.cat(listed), torch.cat(parts)
        output = torch.empty_like(mine)
        dist.reduce_scatter_tensor(output, whole)
        right = reduced("SUM", wholes)[rank * size : (rank + 1) * size]
        yield f"reduce_scatter {what}", output, right
        output = torch.empty_like(whole)
        dist.all_to_all_single(output, whole)
        blocks = [one[rank * size : (rank + 1) * size] for one in wholes]
        yield f"all_to_all {what}", output, torch.cat(blocks)
        tensor = mine.clone()
        dist.broadcast(tensor, root)
        yield f"broadcast {what}", tensor, parts[root]
        tensor = mine.clone()
        dist.reduce(tensor, root)
        yield f"reduce {what}", tensor, reduced("SUM", parts) if rank == root else mine
        listed = [torch.empty_like(mine) for _ in range(ranks)] if rank == 0 else []
        dist.gather(mine, listed or None)
        yield f"gather {what}", torch.cat([mine, *listed]), torch.cat([mine, *parts[: len(listed)]])
        tensor = torch.empty_like(mine)
        dist.scatter(tensor, list(wholes[0].split(size)) if rank == 0 else None)
        yield f"scatter {what}", tensor, wholes[0][rank * size : (rank + 1) * size]
        work = dist.all_reduce(tensor := mine.clone(), async_op=True)
        work.wait()
        yield f"async all_reduce {what}", tensor, reduced("SUM", parts)


def messages(rank: int, ranks: int) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield a large exchange that works only as a batch; needs a GPU for every rank."""
    mine, theirs = torch.full((1 << 24,), float(rank)).cuda(), torch.empty(1 << 24).cuda()
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, theirs, before)]
    )
    for work in works:
        work.wait()
    yield "batch_isend_irecv", theirs, torch.full_like(theirs, float(before))


def check_backend() -> int:
    """Run one rank of the backend's checks; return 1 if a result is wrong."""
    gpus = torch.cuda.device_count()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
    dist.init_process_group("tacos")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    cases: Iterator[tuple[str, torch.Tensor, torch.Tensor]] = backend_cases(rank, ranks)
    if gpus >= ranks:
        cases = itertools.chain(cases, messages(rank, ranks))
    checked = bad = 0
    for what, result, right in cases:
        checked += 1
        if not torch.equal(result, right):
            bad += 1
            print(f"rank {rank}: {what} is wrong in {int((result != right).sum())} places")
    way = "NCCL" if gpus >= ranks else "the host's memory"
    print(f"rank {rank} of {ranks}, over {way}: {checked} results checked, {bad} wrong", flush=True)
    dist.destroy_process_group()
    return 1 if bad else 0


def main() -> int:
    """Print a table; return 1 if a result is wrong."""
    if "--rank" in sys.argv:
        return check_backend()
    if "--torch" in sys.argv:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
        subprocess.run([*torchrun, __file__, "--rank"], check=True, timeout=400)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    backend = dist.group.WORLD._get_backend(torch.device("cuda", 0))
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}"
    )
    print(
        f"{'network':17}{'collective':16}{'type':10}{'count':>12}{'ms':>9}{'least':>9}{'most':>9}{'wrong':>7}"
    )
    bad = 0
    for network, kind, engine in CASES:
        topo = tacos.topology.parse(network)
        wanted = tacos.collective.named(kind, topo, "64MB", chunks=2)
        program = tacos.lower(tacos.synthesize(topo, wanted, engine=engine))
        ranks = range(program.ranks)
        algorithm = GpuAlgorithm(program, backend, ranks=ranks, peers=dict.fromkeys(ranks, 0))
        for name, dtype in TYPES.items():
            for count in COUNTS:
                sources, targets, right = buffers(program, count, dtype)
                times = []
                for _ in range(RUNS):
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    algorithm.run(sources, targets, count)
                    torch.cuda.synchronize()
                    times.append(1e3 * (time.perf_counter() - begin))
                wrong = sum(int((t != w).sum()) for t, w in zip(targets, right, strict=True))
                bad += wrong
                row = f"{statistics.median(times):9.2f}{min(times):9.2f}{max(times):9.2f}{wrong:7d}"
                print(f"{network:17}{kind:16}{name:10}{count:12,}{row}")
    dist.destroy_process_group()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
