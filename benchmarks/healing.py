"""Training that heals: unmodified DDP in a lab network in which a link slows down to a tenth, fails, or recovers.

The ranks train a small model on a ring, a torus, or a star of hosts with a link to each of two switches. During training,
the lab changes a link of rank 1: to its neighbour, or to the first switch. With ``TACOS_ADAPT=1`` the ranks notice, agree,
and continue with an algorithm for the remaining network. The table has the time of a step before and after the change,
and the prediction for the changed network: the time before, minus the all-reduce of the whole network, plus that of the
changed network. The final loss equals that of a run without a change, which shows that no data were lost.

    python -m benchmarks.healing [slow] [dead] [back] [dead-back] [never] [--network ring] [--json]

It needs torch, and a Linux that allows network namespaces.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos import Topology

WIDTH = 480
SPEED = "20Mbit/s"
BEFORE, AFTER = 12, 30  # steps before the change, and after each
CASES = {
    # The share of the link's bandwidth after each change.
    "slow": [0.1],
    "dead": [0.0],
    "back": [0.1, 1.0],
    "dead-back": [0.0, 1.0],
    "never": [],
}
WITHIN = 1.15


def _star():
    """Return hosts 0 to 3, each with a link to switch 4 and one to switch 5."""
    from tacos import topology

    ways = [(host, switch) for host in range(4) for switch in (4, 5)]
    both = [*ways, *((switch, host) for host, switch in ways)]
    return topology.from_links(4, [(*way, "50GB/s", "500ns") for way in both], switches=2)


def _named(spec):
    import tacos

    return tacos.topology.parse(spec)


NETWORKS: dict[str, tuple[Callable[[], Topology], tuple[int, int]]] = {
    # A function that builds the network, and the link that changes.
    "ring": (partial(_named, "ring:4"), (1, 2)),
    "ring8": (partial(_named, "ring:8"), (1, 2)),
    "torus": (partial(_named, "torus:2x4"), (1, 3)),
    "star": (_star, (1, 4)),
}


def train(folder, steps, pauses):
    """Run one rank of a plain DDP training loop; before some steps it creates a file, which the lab waits for."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("tacos")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    x, y = torch.randn(64, WIDTH), torch.randn(64, WIDTH)
    rows = []
    for step in range(steps):
        if rank == 0 and step in pauses:
            (folder / f"change{pauses.index(step)}").touch()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        rows.append((time.perf_counter() - begin, float(loss.detach())))
    if rank == 0:
        print(json.dumps(rows), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measured(lab, link, shares, adapt, flight=None):
    """Return seconds and loss of each step with these changes of the link, and the messages of rank 0."""
    pauses = [BEFORE + AFTER * i for i in range(len(shares))]
    steps = BEFORE + AFTER * max(1, len(shares))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        over = threading.Event()

        def follow():
            for i, share in enumerate(shares):
                while not (folder / f"change{i}").exists():
                    if over.wait(0.005):
                        return
                lab.change(link, share, both=share == 0 or 0.0 in shares)

        watcher = threading.Thread(target=follow)
        watcher.start()
        command = [sys.executable, "-m", "benchmarks.healing", "--train", name, str(steps)]
        environment = {"TACOS_ADAPT": str(int(adapt)), "TACOS_CACHE": str(folder / "cache")}
        if flight:
            environment["TACOS_FLIGHT"] = str(flight)
        try:
            run = lab.run(
                [*command, *map(str, pauses)],
                environment=environment,
                time_limit=600,
                output="returned",
            )
        finally:
            over.set()
            watcher.join()
            lab.change(link, 1.0, both=True)
    if run.code:
        raise RuntimeError(f"{run.why}\n{''.join(run.stderr)}")
    return json.loads(run.stdout[0].splitlines()[-1]), run.stderr[0]


def all_reduce_s(network):
    """Return the predicted time of the gradients' all-reduce."""
    import tacos

    size = 4 * (WIDTH * WIDTH + WIDTH)
    wanted = tacos.collective.all_reduce(network, size)
    return tacos.synthesize(network, wanted, effort="fast", target="tcp").time_s


def judged(lab, ends, case, rows, reference):
    """Return the figures of a case: each change, its prediction, and when the step time reached it."""
    from tacos import topology

    shares = CASES[case]
    seconds = [row[0] for row in rows]
    before = statistics.median(seconds[2:BEFORE])
    whole = all_reduce_s(lab.topology)
    (link,) = [
        i
        for i, one in enumerate(zip(lab.topology.link_src, lab.topology.link_dst, strict=True))
        if one == ends
    ]
    found = {"case": case, "before_s": before, "changes": []}
    for i, share in enumerate(shares):
        changed = lab.topology
        if share == 0:
            changed = topology.drop_links(changed, link, both=True)
        elif share < 1:
            changed = topology.degrade(changed, link, factor=share)
        predicted = before - whole + all_reduce_s(changed)
        part = seconds[BEFORE + AFTER * i : BEFORE + AFTER * (i + 1)]
        # The first step from which the median is as predicted.
        steps = next(
            (
                k
                for k in range(len(part))
                if statistics.median(part[k : k + 5]) <= WITHIN * predicted
                and part[k] <= WITHIN * predicted
            ),
            len(part),
        )
        settled = statistics.median(part[len(part) // 2 :])
        found["changes"].append(
            {
                "share": share,
                "predicted_s": predicted,
                "settled_s": settled,
                "ratio": settled / predicted,
                "steps": steps,
                "after_s": sum(part[:steps]),
                "worst_s": max(part),
            }
        )
    if not shares:
        found["after_s"] = statistics.median(seconds[BEFORE:])
    found["loss_difference"] = max(
        abs(a[1] - b[1]) / abs(b[1]) for a, b in zip(rows, reference[: len(rows)], strict=True)
    )
    return found


def run(cases, network="ring", speed=SPEED):
    """Yield the figures of some cases, in one lab."""
    from tacos.runtime.lab import Lab

    made, link = NETWORKS[network]
    with Lab(made(), fastest=speed) as lab:
        # As many steps as the longest case, whose losses are compared with these.
        reference, _ = measured(
            lab, link, [1.0] * max(len(CASES[case]) for case in cases), adapt=False
        )
        for case in cases:
            rows, said = measured(lab, link, CASES[case], adapt=True)
            found = judged(lab, link, case, rows, reference)
            if case == "never":
                found["without_s"] = statistics.median(row[0] for row in reference[BEFORE:])
            found["said"] = [line for line in said.splitlines() if "link" in line]
            yield found


def main():
    """Run the cases, or run as a rank."""
    if "--train" in sys.argv:
        folder, steps, *pauses = sys.argv[sys.argv.index("--train") + 1 :]
        train(Path(folder), int(steps), [int(step) for step in pauses])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=[], choices=[[], *CASES])
    parser.add_argument("--network", default="ring", choices=NETWORKS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from tacos.runtime.lab import unavailable

    if importlib.util.find_spec("torch") is None:
        sys.exit("benchmarks/healing.py needs torch: pip install 'tacos-ccl[torch]'")
    if why := unavailable():
        sys.exit(f"benchmarks/healing.py needs a lab network: {why}")
    for found in run(options.cases or list(CASES), options.network):
        if options.json:
            print(json.dumps(found), flush=True)
            continue
        print(f"{found['case']}: a step takes {1e3 * found['before_s']:.0f} ms", flush=True)
        for change in found["changes"]:
            print(
                f"  link at {100 * change['share']:.0f} %: {1e3 * change['settled_s']:.0f} ms, predicted "
                f"{1e3 * change['predicted_s']:.0f} ms, ratio {change['ratio']:.2f}; there after {change['steps']} steps, "
                f"{change['after_s']:.2f} s; the longest step {1e3 * change['worst_s']:.0f} ms"
            )
        if "without_s" in found:
            print(
                f"  with TACOS_ADAPT {1e3 * found['after_s']:.0f} ms, without {1e3 * found['without_s']:.0f} ms"
            )
        print(f"  loss: largest relative difference {found['loss_difference']:.1e}", flush=True)
        for line in found["said"]:
            print(f"  {line}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
