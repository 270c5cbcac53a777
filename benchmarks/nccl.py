"""The model of stock NCCL compared with measurements, point by point.

The measurements are nccl-tests' times of all-reduce in A100 and V100 boxes (VIA-Research/vTrain, sizes in MiB), bandwidths
of 1 GiB and latencies in H100 boxes (meta-pytorch/autoparallel, NCCL 2.27.5), and the share of the NICs' bandwidth
that rings between boxes reach (aliyun/SimAI, ``nic_ratio.csv``), to which nothing was fitted. ``--vtrain FOLDER`` takes
vTrain's ``trace`` directory and adds the error over all its rows; no parameter was fitted to most of them. The last table has
the executed times of the engine ``nccl`` and of what ``auto`` finds, with the estimate.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

import tacos

A100 = {2: (44, 132, 764, 5443), 4: (51, 180, 999, 7259), 8: (93, 232, 1162, 8193)}
V100 = {8: (80, 274, 1777, 13969)}
MEBIBYTES = (1, 16, 128, 1024)
H100_GBps = {
    "all-gather": {2: 537, 4: 434, 8: 394},
    "reduce-scatter": {2: 537, 4: 434, 8: 394},
    "all-reduce": {2: 324, 4: 236, 8: 267},
}
H100_US = {
    "all-gather": {2: 8, 4: 17, 8: 30},
    "reduce-scatter": {2: 8, 4: 17, 8: 30},
    "all-reduce": {2: 10, 4: 15, 8: 31},
}
SIMAI = {
    16: (0.32, 0.67, 0.92, 0.96),
    128: (0.05, 0.38, 0.76, 0.96),
    1024: (0.0087, 0.053, 0.31, 0.92),
}


def estimate(topology, kind, size, gpus):
    wanted = tacos.collective.named(kind, topology, size, group=range(gpus))
    return tacos.nccl.estimate(topology, wanted, launch="loop")


def line(machine, kind, gpus, size, unit, measured, model, found):
    error = model / measured - 1
    choice = f"{found.algorithm} {found.protocol}"
    print(
        f"{machine:<6}{kind:<16}{gpus:>4}{size:>10}{measured:>10}{model:>10.{1 if model < 100 else 0}f}"
        f" {unit:<5}{error:>+8.1%}  {choice}"
    )
    return abs(error)


def points():
    print(
        f"{'':<6}{'':<16}{'GPUs':>4}{'size':>10}{'measured':>10}{'model':>10}{'':<6}{'error':>8}  NCCL's choice"
    )
    errors = []
    for machine, topology, rows in (
        ("A100", tacos.topology.dgx_a100(), A100),
        ("V100", tacos.topology.dgx1(), V100),
    ):
        for gpus, times in rows.items():
            for size, time_us in zip(MEBIBYTES, times, strict=True):
                found = estimate(topology, "all-reduce", size << 20, gpus)
                errors.append(
                    line(
                        machine,
                        "all-reduce",
                        gpus,
                        f"{size} MiB",
                        "us",
                        time_us,
                        found.time_s * 1e6,
                        found,
                    )
                )
    topology = tacos.topology.dgx_h100()
    for kind, speeds in H100_GBps.items():
        for gpus, measured in speeds.items():
            found = estimate(topology, kind, 2**30, gpus)
            errors.append(
                line("H100", kind, gpus, "1 GiB", "GB/s", measured, found.algbw_Bps / 1e9, found)
            )
    for kind, latencies in H100_US.items():
        for gpus, measured in latencies.items():
            found = estimate(topology, kind, 64, gpus)
            errors.append(
                line("H100", kind, gpus, "64 B", "us", measured, found.time_s * 1e6, found)
            )
    print(f"mean error {np.mean(errors):.1%}, largest {max(errors):.1%}\n")


def between_boxes():
    """Compare with SimAI's table, which is for a NIC-bound ring; it does not name the NICs, so 400 Gb/s are assumed."""
    print(
        "rings between H100 boxes, bus bandwidth over that of the NICs: SimAI's table / the model"
    )
    print(
        f"{'GPUs':>6}" + "".join(f"{size:>16}" for size in ("16 MiB", "128 MiB", "1 GiB", "16 GiB"))
    )
    for gpus, published in SIMAI.items():
        topology = tacos.topology.dgx_h100(gpus // 8, nvls=False)
        cells = []
        for power, ratio in zip((24, 27, 30, 34), published, strict=True):
            wanted = tacos.collective.all_reduce(topology, 2**power)
            found = tacos.nccl.estimate(topology, wanted, algorithm="ring", protocol="Simple")
            cells.append(f"{ratio:>8.3f} /{found.busbw_Bps / 400e9:>6.3f}")
        print(f"{gpus:>6}" + "".join(cells))
    print()


def vtrain(folder):
    """Compare with all rows of vTrain's A100 tables and, for V100, with whole boxes, whose wiring is known."""
    print("vTrain's tables, all-reduce of 1 to 1,024 MiB in steps of 1 MiB: mean and largest error")
    for machine, topology, counts in (
        ("a100", tacos.topology.dgx_a100(), range(2, 9)),
        ("v100", tacos.topology.dgx1(), [8]),
    ):
        for gpus in counts:
            with (folder / machine / f"AR_GPU{gpus}_1M_1024M_LUT").open() as text:
                rows = [
                    (int(row[0]), float(row[3]))
                    for row in list(csv.reader(text))[1:]
                    if len(row) > 3
                ]
            errors = [
                estimate(topology, "all-reduce", size, gpus).time_s * 1e9 / measured - 1
                for size, measured in rows
            ]
            print(
                f"{machine} x {gpus}: {np.mean(np.abs(errors)):6.1%}{np.max(np.abs(errors)):8.1%}"
            )


def schedules():
    print("all-reduce in us: executed times on the wire, and what nccl-tests would report for NCCL")
    print(
        f"{'':<18}{'size':>8}{'synthesized':>12}{'nccl':>9}{'factor':>8}{'one ring':>10}{'estimate':>10}  NCCL's choice"
    )
    for spec in (
        "dgx-h100-plain:2",
        "dgx-h100:2",
        "dgx-h100:4",
        "dgx-h100",
        "dgx-a100:2",
        "dgx-1",
        "mi250",
        "torus:8x8",
    ):
        topology = tacos.topology.parse(spec)
        for size in ("1MB", "64MB", "1GB"):
            wanted = tacos.collective.all_reduce(topology, size)
            answers = [
                tacos.synthesize(topology, wanted, engine=engine)
                for engine in ("auto", "nccl", "ring")
            ]
            best_us, nccl_us, ring_us = (answer.executed_s * 1e6 for answer in answers)
            facts = answers[1].provenance
            print(
                f"{spec:<18}{size:>8}{best_us:>12.1f}{nccl_us:>9.1f}"
                f"{nccl_us / best_us:>7.2f}x{ring_us:>10.1f}{facts['estimate_s'] * 1e6:>10.1f}"
                f"  {facts['algorithm']} {facts['protocol']}, {facts['channels']} channels",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vtrain", type=Path)
    options = parser.parse_args()
    points()
    between_boxes()
    if options.vtrain:
        vtrain(options.vtrain)
    schedules()
