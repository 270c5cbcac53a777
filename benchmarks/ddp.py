"""A training step with DDP through our backend and through gloo's, on one machine.

Both train the same model in turns, step by step, so that other load on the machine affects both.
Medians of a step in milliseconds with their quartiles, and the ratio of the medians; then the
all-reduces alone. Needs torch: pip install 'tacos-ccl[torch]'.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

STEPS = 30
WIDTHS = (64, 512, 1024)
SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20)


def model(width):
    import torch

    layers = [layer for _ in range(5) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers)


def times(work, barrier, turns):
    """Return the seconds of each turn, by name. Steps take turns, and ranks start together."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns + 3):
        for name, step in work.items():
            barrier()
            begin = time.perf_counter()
            step()
            if turn >= 3:
                taken[name].append(time.perf_counter() - begin)
    return taken


def line(what, taken):
    cells = []
    for name, seconds in taken.items():
        low, middle, high = (1e3 * q for q in statistics.quantiles(seconds, n=4))
        cells.append(f"{name} {middle:8.2f} ms [{low:7.2f} {high:7.2f}]")
    ours, theirs = (statistics.median(seconds) for seconds in taken.values())
    return f"{what:>28}  {'  '.join(cells)}  ratio {ours / theirs:.2f}"


def rank_main(rank, size, folder):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group(
        "tacos",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=120),
    )
    groups = {"tacos": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}

    def barrier():
        dist.barrier(group=groups["gloo"])

    def report(what, taken):
        if rank == 0:
            print(line(what, taken), flush=True)

    for width in WIDTHS:
        torch.manual_seed(0)
        start = model(width)
        megabytes = sum(p.numel() for p in start.parameters()) * 4 / 1e6
        steps = {}
        for name, group in groups.items():
            trained = DistributedDataParallel(model(width), process_group=group, bucket_cap_mb=2)
            optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
            x = torch.randn(16, width)

            def step(trained=trained, optimizer=optimizer, x=x):
                optimizer.zero_grad()
                trained(x).pow(2).mean().backward()
                optimizer.step()

            steps[name] = step
        report(f"DDP, {megabytes:.1f} MB of gradients", times(steps, barrier, STEPS))
    for size_bytes in SIZES:
        data = torch.ones(size_bytes // 4)
        work = {
            name: lambda group=group, data=data: dist.all_reduce(data, group=group)
            for name, group in groups.items()
        }
        report(f"all-reduce of {size_bytes >> 10} KiB", times(work, barrier, STEPS))
    barrier()
    dist.destroy_process_group()


def main():
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        import torch  # noqa: F401, once for all ranks
    except ImportError:
        sys.exit("benchmarks/ddp.py needs torch: pip install 'tacos-ccl[torch]'")
    print(f"{size} ranks on one machine", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(size):
            if (pid := os.fork()) == 0:
                try:
                    rank_main(rank, size, Path(folder))
                except BaseException:  # noqa: BLE001, a child must not go on as the parent
                    traceback.print_exc()
                finally:
                    os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
