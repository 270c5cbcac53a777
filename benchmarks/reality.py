"""Compare the model of stock NCCL with public measurements: error tables by machine, collective and size.

    TACOS_TEST_DATA=DIRECTORY python -m benchmarks.reality

The directory has ``collectives/``: tables of aiconfigurator (one box of 2 to 8 GPUs), XLA (boxes and NVL72), vidur (older
boxes and pairs of A100, H100 and A40), and logs of nccl-tests on clusters. A curve is all sizes of one
machine, library, collective, type and group. Errors are absolute, relative to the measurement, and averaged over rows.

``--fit`` fits the table in ``tacos.synth.baselines.nccl.software`` on all curves of one box and of NVL72, and prints it. ``--folds 4``
fits on three quarters of the curves, four times, and prints the errors on the curves that were left out; with ``--strict``
all curves of a collective and group size are left out together. Which protocol a row is fitted as is the tuner's choice,
and every search starts from the same values, so nothing of a left-out curve enters the parameters.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import random
import re
from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

import tacos
from tacos.synth.baselines.nccl import software
from tacos.synth.baselines.nccl.channels import network_of
from tacos.synth.baselines.nccl.group import Group

KINDS = {
    "all_gather": "all-gather",
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "all-gather": "all-gather",
    "all-reduce": "all-reduce",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
    "send_recv": "send-recv",
}
BANDS = ((64 << 10, "to 64 KB"), (8 << 20, "to 8 MB"), (1 << 62, "above"))


@dataclass(frozen=True)
class Curve:
    """One measured curve: microseconds by size in bytes."""

    source: str
    machine: str
    library: str
    kind: str
    dtype: str
    npus: int
    groups: int = 1
    boxes: int = 1
    version: str = "2.29"
    points: dict[int, float] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        where = f" on {self.boxes} boxes" if self.boxes > 1 else ""
        times = f" x {self.groups}" if self.groups > 1 else ""
        return f"{self.machine} {self.library} {self.kind} {self.dtype} {self.npus}{times}{where}"


def folder() -> Path:
    return Path(os.environ.get("TACOS_TEST_DATA", "/nonexistent"), "collectives")


def grouped(rows) -> list[Curve]:
    """Return curves of rows (key, size, microseconds); the median where a size was measured several times."""
    times: dict[Any, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, size, time_us in rows:
        times[key][size].append(time_us)
    return [
        replace(Curve(*key), points={size: median(one) for size, one in sorted(sizes.items())})
        for key, sizes in sorted(times.items())
    ]


def boxes_of_one() -> list[Curve]:
    """Read aiconfigurator's runs of nccl-tests: one box, a thread per GPU."""
    with (folder() / "aiconfigurator-nccl.csv").open() as text:
        return grouped(
            (
                (
                    "box",
                    row["system"].removesuffix("_sxm").removesuffix("_server"),
                    row["folder"],
                    KINDS[row["collective"]],
                    row["dtype"],
                    int(row["gpus"]),
                    1,
                    1,
                    row["library_version"] or row["folder"].split("/")[1],
                ),
                int(row["bytes"]),
                float(row["time_us"]),
            )
            for row in csv.DictReader(text)
        )


def compiled() -> list[Curve]:
    """Read XLA's table of compiled programs. Below 16 KB throughputs are rounded too coarsely."""
    machines = {"sm_90": "h100", "sm_100_B200": "b200", "sm_100_GB200": "gb200", "sm_103": "gb300"}
    with (folder() / "xla-collective-perf-table.csv").open() as text:
        return grouped(
            (
                (
                    "compiled",
                    machines[row["device"]],
                    "XLA",
                    KINDS[row["opcode"]],
                    row["element_type"],
                    int(float(row["devices_per_group"])),
                    int(float(row["replica_groups"])),
                    1,
                    "2.27",
                ),
                int(row["bytes"]),
                float(row["time_us"]),
            )
            for row in csv.DictReader(text)
            if row["device"] in machines
            and row["devices_per_group"]
            and row["opcode"] in KINDS
            and int(row["bytes"]) >= 16 << 10
        )


def older() -> list[Curve]:
    """Read vidur's medians: boxes and pairs joined by NVLink.

    Sizes are taken as bytes. As elements of two bytes they would mean 437 GB/s between two A100 and 688 GB/s between two
    H100, whose NVLinks carry 300 and 450.
    """
    with gzip.open(folder() / "vidur-network.csv.gz", "rt") as text:
        return grouped(
            (
                (
                    "vidur",
                    row["machine"],
                    "vidur",
                    KINDS[row["collective"]],
                    "half",
                    int(row["num_workers"]),
                    1,
                    int(row["num_workers"]) // int(row["devices_per_node"]),
                ),
                int(row["size"]),
                float(row["median_us"]),
            )
            for row in csv.DictReader(text)
        )


LOGS = {
    "05-nccl-tests.log": ("h100-sharp", 64, 8),
    "06-nccl-tests.log": ("gb200", 72, 1),
    "07-nccl-tests.log": ("gb200", 144, 2),
    "08-nccl-tests.log": ("gb200", 1440, 20),
    "13-ai-scripts.log": ("mi300x", 16, 2),
    "25-oci-hpc.log": ("h100", 16, 2),
    "26-skypilot.log": ("h100", 16, 2),
    "30-skypilot.log": ("h100", 16, 2),
    "33-skypilot.log": ("h100", 16, 2),
}


def clusters() -> list[Curve]:
    """Read logs of nccl-tests' all_reduce_perf, a process per GPU; racks of GB200 count as boxes."""
    rows: list[Any] = []
    for name, (machine, npus, boxes) in LOGS.items():
        key = ("cluster", machine, name[:2], "all-reduce", "float", npus, 1, boxes)
        for line in (folder() / "logs" / name).read_text().splitlines():
            found = re.match(r"\s*(\d+)\s+\d+\s+float\s+sum\s+-1\s+([\d.]+)", line)
            if found:
                rows.append((key, int(found[1]), float(found[2])))
    return grouped(rows)


def topology_of(curve: Curve) -> tuple[tacos.Topology, str | None]:
    """Return the network of a curve and the name of its device."""
    return _topology(curve.machine, curve.boxes)


@cache
def _topology(machine: str, boxes: int) -> tuple[tacos.Topology, str | None]:
    tp = tacos.topology
    if machine in ("h100", "h200", "h100-sharp", "h100_dgx"):
        return tp.dgx_h100(boxes), "H200" if machine == "h200" else "H100"
    if machine in ("b200", "b300"):
        return tp.dgx_b200(boxes), machine.upper()
    if machine in ("gb200", "gb300"):
        return tp.nvl72(boxes), machine.upper()
    if machine in ("a100", "a100_dgx"):
        return tp.dgx_a100(boxes), "A100"
    if machine == "mi300x":
        return tp.mi300x(boxes), None
    raise KeyError(machine)


@cache
def estimated_us(curve: Curve, size: int) -> tuple[float, str]:
    """Return the model's microseconds and NCCL's choice."""
    topology, device = topology_of(curve)
    per_box = curve.npus // curve.boxes
    stride = topology.npus // curve.boxes
    group = [box * stride + i for box in range(curve.boxes) for i in range(per_box)]
    if curve.kind == "send-recv":
        wanted = tacos.collective.send_recv(topology, [(group[0], group[-1], size)])
    else:
        wanted = tacos.collective.named(curve.kind, topology, size, group=group)
    found = tacos.nccl.estimate(
        topology,
        wanted,
        generation=device,
        version=curve.version,
        dtype="int8" if curve.dtype == "int8" else "float16",
    )
    return found.time_s * 1e6, f"{found.algorithm} {found.protocol}"


SOURCES = {"box": boxes_of_one, "compiled": compiled, "vidur": older, "cluster": clusters}


def errors(curves):
    """Yield (curve, size, measured, estimated, choice)."""
    for curve in curves:
        try:
            topology_of(curve)
        except KeyError:
            continue
        for size, time_us in curve.points.items():
            if size < curve.npus:
                continue
            estimated, choice = estimated_us(curve, size)
            yield curve, size, time_us, estimated, choice


def without(curves) -> None:
    """Print the machines that have no network here, whose rows are in no table."""
    rows: dict[str, int] = defaultdict(int)
    for curve in curves:
        try:
            topology_of(curve)
        except KeyError:
            rows[curve.machine] += len(curve.points)
    for machine, count in sorted(rows.items()):
        print(f"not compared: {machine}, {count} sizes")


def band(size: int) -> str:
    return next(name for most, name in BANDS if size <= most)


def table(title: str, found, by) -> None:
    """Print mean absolute errors by a key and size."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for curve, size, measured, estimated, _ in found:
        for key in (by(curve), "all"):
            cells[key][band(size)].append(abs(estimated / measured - 1))
    print(f"{title:<24}" + "".join(f"{name:>12}" for _, name in BANDS) + f"{'rows':>8}")
    for key in sorted(cells, key=lambda one: (one == "all", one)):
        row = cells[key]
        text = "".join(f"{mean(row[n]):>12.1%}" if row[n] else f"{'':>12}" for _, n in BANDS)
        print(f"{key:<24}{text}{sum(map(len, row.values())):>8}")
    print()


def report(found, worst_rows: int) -> None:
    """Print the errors by machine, collective and group, and the worst rows."""
    table("machine", found, lambda curve: curve.machine)
    table("collective", found, lambda curve: curve.kind)
    table("group", found, lambda curve: f"{curve.npus:>5} in {curve.boxes}")
    print("worst rows: measured, estimated, choice")
    worst = sorted(found, key=lambda one: -abs(one[3] / one[2] - 1))[:worst_rows]
    for curve, size, measured, estimated, choice in worst:
        print(f"  {curve.name:<50}{size:>12}{measured:>10.1f}{estimated:>10.1f}  {choice}")


MECHANISMS = {
    "ring LL": "ll",
    "ring LL128": "ll128",
    "ring Simple": "simple",
    "nvls Simple": "switched",
    "direct Simple": "pairs",
}


STARTS = {
    "ll": software.Packets(7.0, 1.0, 0.4, 1e5, 0.45),
    "ll128": software.Packets(6.0, 1.0, 0.4, 1e4, 0.8),
    "simple": software.Stages(13.0, 8.0, 0.95, 0.45, 40.0, 6e7),
    "switched": software.Switched(40.0, 0.2, 0.6, 0.4, 0.9, 6.0, 2e7),
    "pairs": software.Pairs(6.0, 0.3, 0.01, 6.0, 2e4, 0.75, 0.3, 300.0, 40.0, 6e7),
}
"""Where each search starts, the same for all devices: the fitted table would carry over curves that are left out."""

RACKS = [("GB200", "2.27"), ("GB300", "2.27")]
POOLED = dict.fromkeys(RACKS, RACKS)
"""Records that are fitted together: racks differ by a few per cent, and few curves have the same group."""


def label(curve: Curve) -> tuple[str, str]:
    """Return the device and the oldest version of the record that prices a curve."""
    _, device = topology_of(curve)
    one = software.of(device or "", curve.version, curve.npus)
    assert one is not None, curve
    return one.device, one.version


def fitted(curves) -> dict[tuple[str, str, str], tuple]:
    """Fit each mechanism of each device and library to the rows for which NCCL chooses it."""
    rows = defaultdict(list)
    for curve, size, time_us, _, choice in errors(curves):
        if choice in MECHANISMS:
            for one in POOLED.get(label(curve), [label(curve)]):
                rows[(*one, MECHANISMS[choice])].append((curve, size, time_us))
    found = {}
    for key, points in rows.items():
        name = key[2]
        start = STARTS[name]
        found[key] = search(
            start,
            [arguments(curve, size, name) for curve, size, _ in points],
            np.array([t for *_, t in points]),
        )
    return found


def arguments(curve: Curve, size: int, mechanism: str) -> tuple[float, ...]:
    """Return the arguments of a mechanism's `us` for a row."""
    rate = ring_rate(curve.machine, curve.npus)
    phases = 2 if curve.kind == "all-reduce" else 1
    if mechanism == "pairs":
        peers = curve.npus - 1
        port = topology_of(curve)[0].link_bandwidth_Bps.max() * 1e-6
        return peers, size / curve.npus, size * peers / curve.npus / port, 0.7
    if mechanism == "switched":
        return curve.npus, phases, size, rate
    return curve.npus, phases * (curve.npus - 1), size, rate, 0.7


@cache
def ring_rate(machine: str, npus: int) -> float:
    topology, device = _topology(machine, 1)
    part = tacos.collective.all_gather(topology, 1 << 20, group=range(npus)).parts[0]
    return Group(network_of(topology), part, tacos.nccl.GENERATIONS[device or ""]).ring_Bps * 1e-6


def search(start, given, measured, rounds: int = 80):
    """Return the parameters with the smallest mean absolute logarithm of estimated over measured times."""
    columns = [np.array(column, float) for column in zip(*given, strict=True)]
    names = [one.name for one in fields(start)]

    def loss(one) -> float:
        return float(np.mean(np.abs(np.log(sum(one.us(*columns)) / measured))))

    best, lowest = start, loss(start)
    factors = dict.fromkeys(names, 1.5)
    for _ in range(rounds):
        for name in names:
            moved = False
            for factor in (factors[name], 1 / factors[name]):
                other = replace(best, **{name: getattr(best, name) * factor})
                if (value := loss(other)) < lowest - 1e-7:
                    best, lowest, moved = other, value, True
                    break
            factors[name] = max(factors[name] ** (1.3 if moved else 0.6), 1.0005)
    return replace(best, **{name: float(f"{getattr(best, name):.3g}") for name in names})


def written(found) -> list[software.Software]:
    """Return the table with fitted mechanisms.

    A mechanism that NCCL chose on no row of a record is that of another record: of the same device, of a device for which
    the tuner has the same constants, or of any other, in this order.
    """
    table = []
    for one in software.SOFTWARE:
        mechanisms = {}
        for name, start in STARTS.items():
            if getattr(one, name) is not None:
                near = sorted(
                    (key for key in found if key[2] == name),
                    key=lambda key: (
                        key[:2] != (one.device, one.version),
                        key[0] != one.device,
                        family(key[0]) != family(one.device),
                        key,
                    ),
                )
                mechanisms[name] = found[near[0]] if near else start
        own = {
            name
            for device, version, name in found
            if (device, version) == (one.device, one.version)
        }
        lent = tuple(name for name in mechanisms if name not in own)
        table.append(replace(one, **mechanisms, lent=lent))
    return table


def family(device: str) -> float:
    """Return the bandwidth for which NCCL's tuner has constants."""
    return tacos.nccl.GENERATIONS[device].port_GBps


def crossed(curves, folds: int, strict: bool):
    """Yield the errors on curves that were left out of the fit, a fold at a time.

    With `strict`, a fold leaves out all curves of a collective and group size, on all machines and libraries and in all types.
    """
    before = software.SOFTWARE
    kinds = sorted({(curve.kind, curve.npus) for curve in curves})
    random.Random(0).shuffle(kinds)
    place = [kinds.index((c.kind, c.npus)) if strict else i for i, c in enumerate(curves)]
    for fold in range(folds):
        kept = [curve for i, curve in zip(place, curves, strict=True) if i % folds != fold]
        software.SOFTWARE = written(fitted(kept))
        estimated_us.cache_clear()
        yield from errors(
            [curve for i, curve in zip(place, curves, strict=True) if i % folds == fold]
        )
        software.SOFTWARE = before
        estimated_us.cache_clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", choices=SOURCES, action="append")
    parser.add_argument("--worst", type=int, default=12)
    parser.add_argument(
        "--curves", action="store_true", help="print each curve beside its estimate"
    )
    parser.add_argument("--fit", action="store_true", help="fit the table of software and print it")
    parser.add_argument(
        "--folds", type=int, default=0, help="fit, and print the errors on curves left out"
    )
    parser.add_argument(
        "--strict", action="store_true", help="leave out whole pairs of collective and group size"
    )
    options = parser.parse_args()
    if options.fit or options.folds:
        curves = boxes_of_one() + [one for one in compiled() if one.machine.startswith("gb")]
        random.Random(0).shuffle(curves)
        if options.folds:
            found = list(crossed(curves, options.folds, options.strict))
            for source in ("box", "compiled"):
                print(f"== {source}, curves left out of the fit")
                report([one for one in found if one[0].source == source], options.worst)
        if options.fit:
            for one in written(fitted(curves)):
                print(f"{one!r},")
        return
    for source in options.source or SOURCES:
        curves = SOURCES[source]()
        found = list(errors(curves))
        print(f"== {source}")
        without(curves)
        report(found, options.worst)
        if options.curves:
            last = None
            for curve, size, measured, estimated, choice in found:
                if curve != last:
                    print(f"\n{curve.name}", end="")
                    last = curve
                print(
                    f"\n  {size:>12}{measured:>10.1f}{estimated:>10.1f} {estimated / measured - 1:>+8.1%} {choice}",
                    end="",
                )
            print()
        print()


if __name__ == "__main__":
    main()
