"""Programs on a GPU: NCCL's sends and receives, wave by wave, checked and timed.

    python benchmarks/gpu.py

One process plays all ranks of a program on one GPU: NCCL carries every message from the GPU to itself, so
what is measured is the cost of the driver (launches, sums) and the memory's bandwidth, not a network's.
Times are medians of several runs, with the least and the most.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

import tacos
from tacos.runtime.nccl import GpuAlgorithm

CASES = [
    ("ring:4", "all-reduce", "ring"),
    ("dgx-h100:1", "all-reduce", "auto"),
    ("dgx-h100:1", "all-gather", "auto"),
    ("torus:4x4", "all-reduce", "auto"),
    ("mesh:3x3", "reduce-scatter", "greedy"),
    ("fc:8", "all-to-all", "auto"),
]
COUNTS = [1_000, 1_000_003, 16_000_000]
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int32": torch.int32}
RUNS = 7


def buffers(program: tacos.Program, count: int, dtype: torch.dtype) -> list[list[torch.Tensor]]:
    """Every rank's input of small whole numbers, its output, and what must be there."""
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


def main() -> int:
    """Print a table; 1 if a result is wrong."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    backend = dist.group.WORLD._get_backend(torch.device("cuda", 0))
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {torch.cuda.nccl.version()}"
    )
    print(
        f"{'network':12}{'collective':16}{'type':10}{'count':>12}{'ms':>9}{'least':>9}{'most':>9}{'wrong':>7}"
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
                print(f"{network:12}{kind:16}{name:10}{count:12,}{row}")
    dist.destroy_process_group()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
