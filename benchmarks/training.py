"""Predicted and measured training steps: errors by source, and the rows behind the worst.

    python -m benchmarks.training --data DIRECTORY        # or TACOS_TEST_DATA; add --rows for every row
    python -m benchmarks.training --headline              # what synthesized collectives gain; takes minutes

The directory holds ``training/steps.csv`` and ``training/vtrain-single-node.csv``: published steps, one row each. A
function for each source supplies what the source leaves out: the network, the software, and what overlaps. Nothing is
set for single rows.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import tacos
from tacos import training
from tacos.training import DEVICES, SOFTWARE, Parallelism

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tacos.training import Device, Model, Software

Row = dict[str, str]


@dataclass(frozen=True)
class Case:
    """A measured step and what predicts it."""

    source: str
    name: str
    measured_s: float
    model: Model
    parallel: Parallelism
    network: Callable[[int], tacos.Topology]
    device: str
    dtype: str
    software: str
    adjust: dict[str, Any]

    def predict(
        self, devices: dict[str, Device] | None = None, stacks: dict[str, Software] | None = None
    ) -> training.Step:
        """Return the predicted step, with other constants if they are given."""
        software = (stacks or dict(SOFTWARE))[self.software]
        return training.step(
            self.model,
            self.parallel,
            self.network(self.parallel.npus),
            device=(devices or known_devices())[self.device],
            dtype=self.dtype,
            software=replace(software, **self.adjust),
            oversubscribe=True,
        )


GOALS = {
    "Megatron SC'21": 0.06,
    "sequence parallel": 0.04,
    "vTrain multi-node": 0.08,
    "vTrain single-node": 0.08,
    "MLPerf": 0.05,
    "Megatron-Bridge": 0.12,
    "MPT": 0.10,
    "torchtitan": 0.10,
}
"""The goal for the mean absolute error of each source."""


@lru_cache
def known_devices() -> dict[str, Device]:
    """Return the devices of the package, and one that a cluster runs below its usual power."""
    found = dict(DEVICES)
    h100 = found["h100"]
    # Grand Teton: 96 GB of HBM2e and 500 W instead of 700 W, so that clocks are lower under load.
    slower = {name: value * GRAND_TETON for name, value in h100.share.items()}
    found["h100-500w"] = replace(
        h100,
        name="h100-500w",
        memory_Bps=2.4e12,
        share=slower,
        attention=h100.attention * GRAND_TETON,
        attention_backward=h100.attention_backward * GRAND_TETON,
    )
    return found


GRAND_TETON = 0.72
"""Clock of an H100 at 500 W over that at 700 W under load (fitted on torchtitan's steps)."""


@lru_cache
def selene(npus: int) -> tacos.Topology:
    """DGX A100 with a 200 Gb/s NIC per GPU."""
    return tacos.topology.dgx_a100(max(1, npus // 8))


@lru_cache
def half_rate(npus: int) -> tacos.Topology:
    """vTrain's cluster: 800 Gb/s for 8 GPUs."""
    if npus <= 8:
        return tacos.topology.subset(tacos.topology.dgx_a100(1), range(npus))
    return tacos.topology.dgx_a100(npus // 8, nic_bandwidth="12.5GB/s")


@lru_cache
def hopper(npus: int) -> tacos.Topology:
    """DGX H100 with a 400 Gb/s NIC per GPU."""
    return tacos.topology.dgx_h100(max(1, npus // 8))


@lru_cache
def blackwell(npus: int) -> tacos.Topology:
    """DGX B200 with a 400 Gb/s NIC per GPU."""
    return tacos.topology.dgx_h100(max(1, npus // 8), bandwidth="900GB/s")


@lru_cache
def racks(npus: int) -> tacos.Topology:
    """GB200 NVL72 racks of which jobs use 64 GPUs each."""
    if npus <= 64:
        return tacos.topology.subset(tacos.topology.nvl72(1), range(npus))
    count = -(-npus // 64)
    kept = [72 * rack + place for rack in range(count) for place in range(64)]
    return tacos.topology.subset(tacos.topology.nvl72(count), kept[:npus])


def number(row: Row, name: str, default: int = 1) -> int:
    """Return a whole number of a row, or a default if it is empty."""
    return int(float(row[name])) if row.get(name) else default


def gpt(row: Row) -> Model:
    """Return a GPT of a row's shape."""
    hidden = number(row, "hidden")
    return training.Transformer(
        name=row["model"],
        layers=number(row, "layers"),
        hidden=hidden,
        heads=number(row, "heads"),
        ffn=number(row, "ffn", 4 * hidden),
        vocabulary=number(row, "vocab", 51200),
        sequence=number(row, "seq"),
    )


def named(name: str) -> Callable[[Row], Model]:
    """Return a function that builds a model of the package with a row's sequence length."""

    def build(row: Row) -> Model:
        model = training.model(name)
        assert isinstance(model, training.Transformer)
        return model.at(sequence=number(row, "seq"))

    return build


def split(row: Row, **others: Any) -> Parallelism:
    """Return the degrees of parallelism of a row."""
    gpus, tp = number(row, "gpus"), number(row, "tp")
    pp, cp = number(row, "pp"), number(row, "cp")
    return Parallelism(
        **{
            "tp": tp,
            "pp": pp,
            "cp": cp,
            "vp": number(row, "vp"),
            "dp": gpus // (tp * pp * cp),
            "microbatch": number(row, "mbs"),
            "batch": number(row, "gbs"),
            "recompute": row["recompute"]
            if row["recompute"] in ("none", "selective", "full")
            else "none",
        }
        | others
    )


def cases(data: Path) -> Iterator[Case]:
    """Yield all measured steps that can be predicted."""
    with (data / "training" / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    yield from megatron(rows)
    yield from mlperf(rows)
    yield from bridge(rows)
    yield from mpt(rows)
    yield from torchtitan(rows)
    with (data / "training" / "vtrain-single-node.csv").open() as file:
        lines = csv.reader(line for line in file if not line.startswith("#"))
        for line in lines:
            gpus, batch, micro, hidden, heads, layers, sequence, tp, dp, pp = map(int, line[:10])
            model = training.Transformer(
                name="gpt", layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden,
                vocabulary=51200, sequence=sequence,
            )  # fmt: skip
            parallel = Parallelism(
                tp=tp, pp=pp, dp=dp, microbatch=micro, batch=batch, recompute="full"
            )
            name = f"{gpus} GPUs, h {hidden}, l {layers}, tp {tp}, pp {pp}, dp {dp}, mbs {micro}, batch {batch}"
            yield Case(
                "vTrain single-node", name, float(line[10]) / 1e3, model, parallel, half_rate,
                "a100-80gb", "fp16", "megatron-2021", {},
            )  # fmt: skip


def label(row: Row) -> str:
    """Return the fields that distinguish a row from others."""
    degrees = ", ".join(
        f"{name} {row[name]}" for name in ("tp", "pp", "vp", "cp", "dp", "mbs", "gbs") if row[name]
    )
    return f"{row['model']} seq {row['seq']} on {row['gpus']} × {row['system'][:12]}: {degrees} {row['precision']} {row['recompute']} {row['notes'][:24]}"


def megatron(rows: list[Row]) -> Iterator[Case]:
    """Megatron-LM and DeepSpeed on A100, 2021 and 2022."""
    for row in rows:
        measured = float(row["step_s"] or 0)
        common = ("a100-80gb", "fp16", "megatron-2021")
        if row["source"].startswith("vTrain"):
            yield Case(
                "vTrain multi-node",
                label(row),
                measured,
                gpt(row),
                split(row),
                half_rate,
                *common,
                {},
            )
        elif row["source"].startswith("Megatron SC21"):
            parallel = split(row, overlap_gradients=row["notes"].startswith("torch DDP"))
            yield Case(
                "Megatron SC'21", label(row), measured, gpt(row), parallel, selene, *common, {}
            )
        elif row["source"].startswith("Korthikanti"):
            parallel = split(row, sequence_parallel=row["recompute"] == "selective")
            yield Case(
                "sequence parallel", label(row), measured, gpt(row), parallel, selene, *common, {}
            )


OVERLAPPED: dict[str, Any] = {
    "sequence_parallel": True,
    "overlap_tensor": True,
    "overlap_gradients": True,
    "overlap_parameters": True,
    "zero": 1,
}
"""What NVIDIA's recipes overlap."""


def mlperf(rows: list[Row]) -> Iterator[Case]:
    """MLPerf's logs: Llama 3.1 405B and GPT-3 175B with FP8."""
    for row in rows:
        if not row["source"].startswith("MLPerf"):
            continue
        rack = "GB200" in row["system"]
        llama = row["model"].startswith("Llama")
        parallel = split(row, **OVERLAPPED, count_embedding=llama)
        yield Case(
            "MLPerf", label(row), float(row["step_s"]),
            (named("llama3-405b") if llama else gpt)(row), parallel,
            racks if rack else hopper, "gb200" if rack else "h100", "fp8", "current",
            {"gradient_bytes": 2.0},
        )  # fmt: skip


BRIDGE = {"LLAMA3_8B": "llama3-8b", "LLAMA3_70B": "llama3-70b", "LLAMA3.1_405B": "llama3-405b"}


def bridge(rows: list[Row]) -> Iterator[Case]:
    """Megatron-Bridge: the newest release of each configuration of Llama on H100, B200 and GB200."""
    newest: dict[tuple[str, ...], Row] = {}
    for row in rows:
        if not row["source"].startswith("Megatron-Bridge") or row["model"] not in BRIDGE:
            continue
        if row["notes"] or row["system"] not in ("DGX-H100", "DGX-B200", "DGX-GB200"):
            continue
        key = (
            *tuple(
                row[name]
                for name in ("model", "seq", "system", "gpus", "tp", "pp", "vp", "cp", "mbs", "gbs")
            ),
            row["precision"].split(" ")[0].split("-")[0],
        )
        if key not in newest or newest[key]["source"] < row["source"]:
            newest[key] = row
    networks = {"DGX-H100": hopper, "DGX-B200": blackwell, "DGX-GB200": racks}
    for row in newest.values():
        system = row["system"][4:].lower()
        dtype = {"NVFP4": "fp4", "BF16": "bf16"}.get(row["precision"], "fp8")
        parallel = split(
            row,
            **OVERLAPPED | {"zero": 3 if number(row, "fsdp", 0) > 1 else 1},
            count_embedding=row["model"] == "LLAMA3.1_405B" and number(row, "pp") > 1,
        )
        yield Case(
            "Megatron-Bridge", label(row), float(row["step_s"]), named(BRIDGE[row["model"]])(row),
            parallel, networks[row["system"]], system, dtype, "current", {"gradient_bytes": 2.0},
        )  # fmt: skip


def mpt(rows: list[Row]) -> Iterator[Case]:
    """MosaicML's llm-foundry: FSDP on A100 and H100."""
    for row in rows:
        if not row["source"].startswith("MPT"):
            continue
        device = row["system"].split(" ")[0].replace("_", "-").replace("h100-80gb", "h100")
        name = row["model"].lower().replace(" ", "-")
        full = row["notes"].startswith("FULL_SHARD")
        parallel = split(
            row, zero=3 if full else 2, overlap_gradients=True, overlap_parameters=True
        )
        yield Case(
            "MPT", label(row), float(row["step_s"]), named(name)(row), parallel,
            hopper if device == "h100" else selene, device,
            "fp8" if "fp8" in row["precision"] else "bf16", "eager",
            {"gradient_bytes": 2.0 if "PURE" in row["notes"] else 4.0},
        )  # fmt: skip


def torchtitan(rows: list[Row]) -> Iterator[Case]:
    """torchtitan: FSDP, tensor, context and pipeline parallelism on H100 and H200."""
    for row in rows:
        if not row["source"].startswith("torchtitan"):
            continue
        size = row["model"].split(" ")[-1].lower()
        pipeline = number(row, "pp") > 1
        interleaved = "interleaved" in row["notes"]
        gpus = number(row, "gpus")
        parallel = split(
            row,
            zero=2 if pipeline else 3,
            # By default as many micro-batches as there are stages.
            microbatch=number(row, "mbs") // number(row, "pp"),
            vp=2 if interleaved else 1,
            sequence_parallel=number(row, "tp") > 1,
            overlap_tensor="async" in row["notes"],
            overlap_gradients=True,
            overlap_parameters=True,
            recompute=row["recompute"] if row["recompute"] == "full" else "alternate",
        )  # fmt: skip
        yield Case(
            "torchtitan", label(row), float(row["step_s"]), named(f"llama3-{size}")(row), parallel,
            hopper if gpus >= 8 else half_rate, "h200" if "H200" in row["system"] else "h100-500w",
            "fp8" if "fp8" in row["precision"] else "bf16",
            "eager" if "eager" in row["precision"] else "compiled", {},
        )  # fmt: skip


def errors(found: list[tuple[Case, float]]) -> list[tuple[float, Case, float]]:
    """Return the signed relative errors of predictions, the largest first."""
    listed = [(time_s / case.measured_s - 1, case, time_s) for case, time_s in found]
    return sorted(listed, key=lambda one: -abs(one[0]))


def report(data: Path, *, rows: bool = False, worst: int = 4, only: str = "") -> None:
    """Print a table by source, and the rows behind the worst errors."""
    found: dict[str, list[tuple[Case, float]]] = {}
    for case in cases(data):
        if only in case.source:
            found.setdefault(case.source, []).append((case, case.predict().time_s))
    print(
        f"{'source':20} {'rows':>5} {'mean':>7} {'goal':>7} {'median':>7} {'worst':>7} {'signed':>7}"
    )
    for source, listed in found.items():
        ranked = errors(listed)
        sizes = [abs(one[0]) for one in ranked]
        signed = mean(one[0] for one in ranked)
        print(
            f"{source:20} {len(sizes):5} {mean(sizes):7.1%} {GOALS[source]:7.0%} {median(sizes):7.1%}"
            f" {sizes[0]:7.1%} {signed:+7.1%}"
        )
    for source, listed in found.items():
        ranked = errors(listed)
        print(f"\n{source}:")
        for error, case, time_s in ranked if rows else ranked[:worst]:
            print(
                f"  {error:+7.1%}  {time_s:8.3f} s, measured {case.measured_s:8.3f} s  {case.name}"
            )


HEADLINE: tuple[tuple[str, str, str, str, int, dict[str, Any]], ...] = (
    ("Llama 3.1 405B, MLPerf", "llama3-405b", "h100", "fp8", 64, {"tp": 8, "pp": 8, "vp": 8, "cp": 2, "batch": 1152, "count_embedding": True} | OVERLAPPED),
    ("Llama 3.1 405B, MLPerf", "llama3-405b", "h100", "fp8", 304, {"tp": 8, "pp": 8, "vp": 8, "cp": 2, "batch": 1216, "count_embedding": True} | OVERLAPPED),
    ("GPT-3 175B, MLPerf", "gpt3-175b", "h100", "fp8", 64, {"tp": 4, "pp": 8, "vp": 12, "batch": 2048} | OVERLAPPED),
    ("GPT-3 175B, MLPerf", "gpt3-175b", "h100", "fp8", 1024, {"tp": 4, "pp": 8, "vp": 12, "batch": 4096} | OVERLAPPED),
    ("Llama 3 70B, Megatron-Bridge", "llama3-70b", "h100", "fp8", 8, {"tp": 4, "pp": 8, "vp": 5, "batch": 256} | OVERLAPPED),
    ("Llama 3 8B, torchtitan", "llama3-8b", "h100", "bf16", 16, {"zero": 3, "microbatch": 2, "recompute": "alternate"}),
    ("Llama 3 70B, torchtitan", "llama3-70b", "h100", "bf16", 32, {"tp": 8, "zero": 3, "microbatch": 16, "recompute": "full", "sequence_parallel": True}),
    ("MPT 13B, FSDP", "mpt-13b", "h100", "bf16", 8, {"zero": 3, "microbatch": 2}),
    ("GPT 18B, SC'21", "gpt-18b", "a100-80gb", "fp16", 32, {"tp": 8, "microbatch": 8, "batch": 1024, "recompute": "full"}),
    ("GPT 145B, SC'21", "gpt-145b", "a100-80gb", "fp16", 192, {"tp": 8, "pp": 8, "vp": 2, "microbatch": 2, "batch": 2304, "recompute": "full"}),
)  # fmt: skip
"""Ten published configurations: what, model, device, type, boxes of eight GPUs, parallelism."""


def headline() -> None:
    """Print how much synthesized collectives, and free communication, shorten ten published steps.

    Oversubscribed: NICs have a quarter of their bandwidth. Degraded: the NIC of one GPU has half of it. Algorithms are cached
    between lines; a run takes 10 to 20 minutes on two cores.
    """
    begin = time.perf_counter()
    print(
        f"{'step':30} {'GPUs':>5} {'network':>14} {'NCCL':>9} {'synthesized':>12} {'gain':>6} {'free':>9} {'most':>6}"
    )
    for name, model, device, dtype, boxes, degrees in HEADLINE:
        a100 = device.startswith("a100")
        build = tacos.topology.dgx_a100 if a100 else partial(tacos.topology.dgx_h100, nvls=False)
        healthy = build(boxes)
        nic = healthy.link_bandwidth_Bps.min()
        for network, topology in (
            ("healthy", healthy),
            ("oversubscribed", build(boxes, nic_bandwidth=f"{nic / 4e9}GB/s")),
            ("degraded", training.disturbed(healthy, ["nic=3,slowdown=2"])),
        ):
            times = [
                training.step(
                    training.model(model), Parallelism(**degrees), topology, device=device, dtype=dtype,
                    collectives=collectives, oversubscribe=True,
                    software="megatron-2021" if device.startswith("a100") else "current",
                ).time_s
                for collectives in ("nccl", "auto", "free")
            ]  # fmt: skip
            nccl, auto, free = times
            print(
                f"{name:30} {8 * boxes:5} {network:>14} {nccl:7.3f} s {auto:10.3f} s {1 - auto / nccl:6.1%}"
                f" {free:7.3f} s {1 - free / nccl:6.1%}",
                flush=True,
            )
    print(f"{time.perf_counter() - begin:.0f} s")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("TACOS_TEST_DATA"))
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--only", default="", help="a part of the name of a source")
    parser.add_argument("--headline", action="store_true", help="what better collectives gain")
    arguments = parser.parse_args()
    if arguments.headline:
        return headline()
    if not arguments.data or not (Path(arguments.data) / "training" / "steps.csv").exists():
        sys.exit("name the directory of measured steps with --data or TACOS_TEST_DATA")
    return report(Path(arguments.data), rows=arguments.rows, only=arguments.only)


if __name__ == "__main__":
    main()
