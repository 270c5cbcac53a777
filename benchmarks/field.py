"""Networks as people operate them: with faults, of mixed generations, oversubscribed.

Each row is a network and a size: the executed time of an all-reduce by ``tacos.synthesize`` over the bound, the ideal time over the bound, the
executed time over that of NCCL's model (which knows of the faults, and which does not), the engine, and what the answer took:
processor seconds, and the memory of its process at most. "–" marks a reference that fails on the network.

The random networks break or slow down some links and NPUs of a machine, drawn with a seed. NPUs that are cut off are dropped and counted.
The rows named "of 8 boxes" and more degrade the NICs of one server to 75, 50 and 25 %, as in OptCC (arXiv 2606.01680).
``--quick`` measures about 20 rows; ``--save`` and ``--against`` write and compare figures.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import resource
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import tacos
from tacos.execution import execution
from tacos.topology import (
    Topology,
    degrade,
    dgx_a100,
    dgx_h100,
    drop_links,
    drop_npus,
    fat_tree,
    from_links,
    mesh,
    rail,
    torus,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SIZES = ("64MB", "1GB")
RANDOM = 100
SAME = 1.01
"""Answers whose executed times differ by less than this factor count as equal."""


class Network(NamedTuple):
    """A network to measure.

    Attributes:
        name, build: What it is called, and how it is made.
        quick: The sizes at which quick runs measure it.
        large: Whether it is left out unless it is named.
    """

    name: str
    build: Callable[[], Topology]
    quick: tuple[str, ...] = ()
    large: bool = False


def nic(topology: Topology, npu: int) -> tuple[int, int]:
    """Return the slowest link of an NPU to a switch, as its ends."""
    out = np.flatnonzero((topology.link_src == npu) & (topology.link_dst >= topology.npus))
    slowest = out[np.argmin(topology.link_bandwidth_Bps[out])]
    return npu, int(topology.link_dst[slowest])


def without_nic(topology: Topology, npu: int = 0) -> Topology:
    """Return the network with a dead NIC."""
    return drop_links(topology, nic(topology, npu), both=True)


def slow_server(topology: Topology, share: float) -> Topology:
    """Return the network with the first eight NPUs' NICs at a share of their speed."""
    return degrade(topology, *(nic(topology, npu) for npu in range(8)), factor=share, both=True)


def joined(boxes: list[tuple[str, str]]) -> Topology:
    """Return boxes of eight NPUs with an NVSwitch and NICs of these bandwidths, on one fabric."""
    links = []
    npus = 8 * len(boxes)
    fabric = npus + len(boxes)
    for box, (inside, outside) in enumerate(boxes):
        for npu in range(8 * box, 8 * box + 8):
            for switch, bandwidth, latency in (
                (npus + box, inside, "350ns"),
                (fabric, outside, "1.3us"),
            ):
                links += [(npu, switch, bandwidth, latency), (switch, npu, bandwidth, latency)]
    return from_links(npus, links, switches=len(boxes) + 1)


def mixed(boxes: int) -> Topology:
    """Return boxes of which half are A100 and half are H100."""
    return joined([("300GB/s", "25GB/s")] * (boxes // 2) + [("450GB/s", "50GB/s")] * (boxes // 2))


def sharing(boxes: int) -> Topology:
    """Return boxes of eight NPUs on NVSwitch in which four share a NIC."""
    npus = 8 * boxes
    nics = npus + boxes
    fabric = nics + 2 * boxes
    links = []
    for npu in range(npus):
        for switch, bandwidth, latency in (
            (npus + npu // 8, "450GB/s", "350ns"),
            (nics + npu // 4, "50GB/s", 0),
        ):
            links += [(npu, switch, bandwidth, latency), (switch, npu, bandwidth, latency)]
    for one in range(nics, fabric):
        links += [(one, fabric, "50GB/s", "1.3us"), (fabric, one, "50GB/s", "1.3us")]
    return from_links(npus, links, switches=3 * boxes + 1)


def pcie(boxes: int) -> Topology:
    """Return boxes of eight GPUs on two PCIe switches, which are joined over the processors and have a NIC each."""
    npus = 8 * boxes
    fabric = npus + 2 * boxes
    links = []
    for npu in range(npus):
        bridge = npus + npu // 4
        links += [(npu, bridge, "25GB/s", "250ns"), (bridge, npu, "25GB/s", "250ns")]
    for bridge in range(npus, fabric):
        other = bridge ^ 1
        links += [(bridge, other, "20GB/s", "500ns")]
        links += [(bridge, fabric, "12.5GB/s", "1.3us"), (fabric, bridge, "12.5GB/s", "1.3us")]
    return from_links(npus, links, switches=2 * boxes + 1)


def plain(boxes: int) -> Topology:
    """Return H100 boxes without in-switch sums."""
    return dgx_h100(boxes, nvls=False)


NETWORKS = (
    Network("2 boxes, dead NIC", lambda: without_nic(plain(2)), SIZES),
    Network("4 boxes on rails, dead NIC", lambda: without_nic(rail(4, 8)), SIZES),
    Network("2 boxes, NIC at 50 %", lambda: degrade(plain(2), nic(plain(2), 0), factor=0.5, both=True), SIZES),
    Network("2 boxes, GPU missing", lambda: drop_npus(plain(2), 3), SIZES),
    Network("2 boxes, NVLink at 50 %", lambda: degrade(plain(2), (0, 16), factor=0.5, both=True), SIZES),
    Network("2 boxes with NVLS, dead NIC", lambda: without_nic(dgx_h100(2)), ("1GB",)),
    Network("A100 and H100, 16 GPUs", lambda: mixed(2), SIZES),
    Network("A100 and H100, 64 GPUs", lambda: mixed(8), ("1GB",)),
    Network("A100 and H100, 512 GPUs", lambda: mixed(64), large=True),
    Network("2 NICs for 8 GPUs", lambda: sharing(2), SIZES),
    Network("PCIe boxes", lambda: pcie(2), SIZES),
    Network("wafer 8x8, 4 dead cores", lambda: drop_npus(mesh(8, 8), 11, 29, 36, 50), ("1GB",)),
    Network("torus 8x8, dead cable", lambda: drop_links(torus(8, 8), (9, 10), both=True)),
    Network("fat tree 3:1", lambda: fat_tree(4, 8, uplinks=1, oversubscription=3)),
    Network("one of 8 boxes at 75 %", lambda: slow_server(plain(8), 0.75)),
    Network("one of 8 boxes at 50 %", lambda: slow_server(plain(8), 0.5), ("1GB",)),
    Network("one of 8 boxes at 25 %", lambda: slow_server(plain(8), 0.25)),
    Network("one of 64 boxes at 50 %", lambda: slow_server(plain(64), 0.5), large=True),
    Network("32 boxes, dead NIC", lambda: without_nic(plain(32)), large=True),
)  # fmt: skip


def drawn(seed: int) -> tuple[str, Topology, int]:
    """Return a random network, in words, and how many NPUs were cut off and dropped."""
    dice = random.Random(seed)
    boxes = dice.choice((2, 2, 3, 4, 4, 6, 8, 12, 16))
    kind = dice.choice(("boxes", "rails", "a100", "mixed", "sharing", "pcie", "mesh", "torus"))
    side = dice.choice((4, 6, 8, 10))
    builders: dict[str, Callable[[], Topology]] = {
        "boxes": lambda: plain(boxes),
        "rails": lambda: rail(boxes, 8),
        "a100": lambda: dgx_a100(boxes),
        "mixed": lambda: joined(
            [dice.choice((("300GB/s", "25GB/s"), ("450GB/s", "50GB/s"))) for _ in range(boxes)]
        ),
        "sharing": lambda: sharing(boxes),
        "pcie": lambda: pcie(boxes),
        "mesh": lambda: mesh(side, side),
        "torus": lambda: torus(side, side),
    }
    topology = builders[kind]()
    name, cut_off = f"#{seed} {kind} {topology.npus}", 0
    for _ in range(dice.choice((1, 1, 2, 3))):
        change = dice.choice(("dead", "slow", "slow", "npu"))
        link = dice.randrange(topology.links)
        ends = int(topology.link_src[link]), int(topology.link_dst[link])
        name += f", {change}"
        if change == "slow":
            factor = dice.choice((0.25, 0.5, 0.75))
            topology = degrade(topology, ends, factor=factor, both=True)
            continue
        lost = dice.randrange(topology.npus)
        if change == "dead":
            try:
                topology = drop_links(topology, ends, both=True)
                continue
            except ValueError:  # it was the last link of an NPU
                lost = min(ends)
                cut_off += 1
        topology = drop_npus(topology, lost)
    return name, topology, cut_off


def answer(problem: tuple[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the figures of one row."""
    name, size = problem
    cut_off = 0
    if name.startswith("#"):
        named, topology, cut_off = drawn(int(name[1:].split()[0]))
        assert named == name
    else:
        topology = next(one for one in NETWORKS if one.name == name).build()
    collective = tacos.collective.all_reduce(topology, size)
    begin = time.process_time()
    schedule = tacos.synthesize(topology, collective)
    used = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bound_s = tacos.bound(topology, collective).time_s
    found = execution(schedule)
    executed_s = schedule.time_s if found is None else found.time_ps() * 1e-12
    figures: dict[str, Any] = {
        "npus": topology.npus,
        "cut_off": cut_off,
        "executed_s": executed_s,
        "over_bound": executed_s / bound_s,
        "ideal": schedule.time_s / bound_s,
        "engine": schedule.engine + " " + str(schedule.provenance.get("ports", "")),
        "processor_s": used,
        "memory_MB": peak / 1024,
    }
    for engine in ("nccl", "nccl-unaware"):
        try:
            reference = tacos.synthesize(topology, collective, engine=engine)
            figures[engine] = executed_s / reference.executed_s
        except (tacos.TacosError, ValueError):
            figures[engine] = None
    return f"{name} {size}", figures


def table(
    answers: Iterable[tuple[str, dict[str, Any]]], before: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Print a row for each answer, and the figures of all; return the answers."""
    found = {}
    print(
        f"{'network':42}{'NPUs':>5}{'/bound':>8}{'ideal':>7}{'before':>8}{'/NCCL':>7}{'unaware':>8}{'seconds':>9}{'MB':>6}  engine"
    )
    for name, one in answers:
        found[name] = one
        over = [f"{one[e]:.2f}" if one[e] else "–" for e in ("nccl", "nccl-unaware")]
        was = f"{before[name]['over_bound']:.3f}" if name in before else ""
        print(
            f"{name:42}{one['npus']:5}{one['over_bound']:8.3f}{one['ideal']:7.3f}{was:>8}{over[0]:>7}{over[1]:>8}"
            f"{one['processor_s']:9.2f}{one['memory_MB']:6.0f}  {one['engine']}",
            flush=True,
        )
    ratios = [one["over_bound"] for one in found.values()]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    far = sum(ratio > 1.1 for ratio in ratios)
    cut_off = sum(one["cut_off"] for one in found.values())
    print(
        f"{len(found)} rows: executed over bound {mean:.3f} in the geometric mean, {max(ratios):.3f} at most, {far} rows above 1.10; "
        f"{cut_off} NPUs were cut off and dropped"
    )
    return found


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="about 20 rows")
    parser.add_argument("--random", type=int, default=RANDOM, help="number of random networks")
    parser.add_argument("--only", help="only networks whose names contain this")
    parser.add_argument("--jobs", type=int, default=1, help="answers at the same time")
    parser.add_argument("--save", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--against", type=Path, help="compare with such a file")
    given = parser.parse_args()
    if given.quick:
        problems = [(one.name, size) for one in NETWORKS for size in one.quick]
    else:
        names = [one.name for one in NETWORKS if not one.large or given.only]
        names += [drawn(seed)[0] for seed in range(given.random)]
        problems = [(n, size) for n in names for size in SIZES if (given.only or "") in n]
    # Each row has a process of its own, so that its memory is its own.
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        before = json.loads(given.against.read_text()) if given.against else {}
        found = table(pool.imap(answer, problems, chunksize=1), before)
    if given.save:
        given.save.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
