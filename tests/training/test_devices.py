"""Devices: roofline times, and names."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import tacos
from tacos import training
from tacos.errors import FormatError, SpecError
from tacos.runtime.measure.device import SHAPES, measure
from tacos.training import DEVICES, DTYPES, SOFTWARE
from tacos.training.device_file import fitted, save_device
from tacos.training.devices import device, software


@pytest.mark.parametrize("name", DEVICES)
def test_no_product_is_faster_than_the_peak(name):
    table = DEVICES[name]
    for dtype, peak in table.peak.items():
        for m, n, k in ((64, 64, 64), (4096, 4096, 4096), (16384, 53248, 16384)):
            assert 2 * m * n * k / table.gemm_s(m, n, k, dtype) < peak


@pytest.mark.parametrize("name", DEVICES)
def test_every_type_has_a_share_and_every_constant_a_source(name):
    table = DEVICES[name]
    assert set(table.share) == set(table.peak) <= set(DTYPES)
    assert all(0 < share <= 1 for share in table.share.values())
    assert 0 < table.memory_share <= 1
    assert table.source


def test_a_product_by_hand():
    """2 (m n + fill) (k + depth) FLOPs at the peak's share, and the time between two kernels."""
    a100 = device("a100-80gb")
    flops = 2 * (4096 * 4096 + a100.fill) * (4096 + a100.depth)
    assert a100.gemm_s(4096, 4096, 4096, "fp16") == pytest.approx(
        flops / (312e12 * a100.share["fp16"]) + a100.kernel_s
    )


def test_a_thin_product_is_limited_by_memory():
    """A row times a matrix moves the matrix: k n elements of two bytes, and little else."""
    h100 = device("h100")
    moved = 2 * (1 * 65536 + 65536 * 65536 + 65536)
    assert h100.gemm_s(1, 65536, 65536, "bf16") == pytest.approx(
        moved / (h100.memory_Bps * h100.memory_share) + h100.kernel_s
    )


def test_larger_products_reach_more_of_the_peak():
    h100 = device("h100")
    reached = [2 * n**3 / h100.gemm_s(n, n, n, "bf16") for n in (512, 1024, 2048, 4096, 8192)]
    assert reached == sorted(reached)


def test_unknown_names_suggest_the_one_that_was_meant():
    with pytest.raises(SpecError, match="unknown device 'h1000'; did you mean 'h100'"):
        device("h1000")
    with pytest.raises(SpecError, match="unknown software 'curent'; did you mean 'current'"):
        software("curent")
    assert software(SOFTWARE["current"]) is SOFTWARE["current"]


def recorded(table, shapes=SHAPES, noise=0.0):
    """What a probe would record of a device that matches a table exactly."""
    rng = np.random.default_rng(1)

    def seen(seconds):
        return seconds * float(np.exp(rng.normal(0.0, noise)))

    rows = {
        "name": "NVIDIA H200",
        "memory": 141 * 10**9,
        "torch": "2.9",
        "kernel_s": table.kernel_s,
        "dispatch_s": 5e-6,
        "stream": [
            {"kind": "copy", "bytes": size, "seconds": seen(size / (table.memory_Bps * table.memory_share))}
            for size in (2**28, 2**30, 2**31)
        ],
        "gemm": [
            {"dtype": dtype, "m": m, "n": n, "k": k, "seconds": seen(table.gemm_s(m, n, k, dtype))}
            for dtype in ("tf32", "bf16", "fp8")
            for m, n, k in shapes
        ],
        "attention": [],
    }  # fmt: skip
    for kernel, part in (("best", 1.0), ("flash", 0.6)):
        # Causal: 2 · 1 · 32 · 8192² · 128 FLOPs forward, and 2.5 times that backward.
        flops = 2 * 32 * 8192**2 * 128
        rate = table.peak["bf16"] * part
        rows["attention"].append(
            {
                "kernel": kernel, "sequences": 1, "heads": 32, "length": 8192, "head": 128,
                "forward": table.kernel_s + flops / (rate * table.attention),
                "backward": 2 * table.kernel_s + 2.5 * flops / (rate * table.attention_backward),
            }
        )  # fmt: skip
    return rows


def test_a_fit_finds_the_table_that_was_measured():
    """The data sheet gives the peaks; shares, fill and depth follow from times alone."""
    meant = replace(
        DEVICES["h200"],
        share={"tf32": 0.7, "bf16": 0.74, "fp8": 0.61},
        fill=4.0e6, depth=200.0, attention=0.58, attention_backward=0.47, legacy=0.6, memory_share=0.91, kernel_s=2.4e-6,
    )  # fmt: skip
    found = fitted(recorded(meant))
    one = found.device
    assert one.name == "h200"
    assert one.peak["bf16"] == 989e12
    for name, value in meant.share.items():
        assert one.share[name] == pytest.approx(value, rel=0.01)
    for name in ("attention", "attention_backward", "legacy", "memory_share", "kernel_s"):
        assert getattr(one, name) == pytest.approx(getattr(meant, name), rel=1e-6)
    assert one.fill == pytest.approx(4.0e6, rel=0.1)
    assert one.depth == pytest.approx(200.0, rel=0.1)
    assert max(found.errors.values()) < 0.005

    noisy = fitted(recorded(meant, noise=0.05))
    assert noisy.device.share["bf16"] == pytest.approx(0.74, rel=0.06)
    assert max(noisy.errors.values()) < 0.06
    assert "products" in noisy.summary()["bf16"]


def test_a_device_without_a_data_sheet_has_the_peaks_that_it_reached():
    rows = recorded(DEVICES["h200"]) | {"name": "Some GPU 3000"}
    one = fitted(rows).device
    assert one.name == "some-gpu-3000"
    assert one.share == {"tf32": 1.0, "bf16": 1.0, "fp8": 1.0}
    h200 = DEVICES["h200"]
    assert one.peak["bf16"] == pytest.approx(h200.peak["bf16"] * h200.share["bf16"], rel=0.02)


def test_a_device_in_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    one = fitted(recorded(DEVICES["h200"])).device
    save_device(one, file)
    again = device(str(file))
    assert again.name == one.name
    for name in ("fill", "depth", "kernel_s", "memory_Bps", "attention"):
        assert getattr(again, name) == pytest.approx(getattr(one, name), rel=1e-5)
    job = training.model("llama3-8b"), training.Parallelism(tp=8, zero=1, batch=16)
    network = tacos.topology.dgx_h100(1, nvls=False)
    assert training.step(*job, network, device=str(file)).device == again
    file.write_text("base: h100\nshare: {bf16: 0.39}\n")  # half of the usual share
    slow = training.step(*job, network, device=str(file))
    assert slow.compute_s > 1.4 * training.step(*job, network, device="h100").compute_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: h1000", "base is 'h1000'; did you mean 'h100'"),
        ("shares: {bf16: 0.5}", "unknown field 'shares'; did you mean 'share'"),
        ("base: h100\nshare: {bf16: 1.5}", "share"),
        ("base: h100\nshare: {int4: 0.5}", "int4"),
        ("base: mi250\npeak_TFLOPS: {fp8: 100}", "must have the same types; one of them lacks fp8"),
        ("memory: 80GB", "memory_bandwidth"),
        ("[1, 2]", "the file must hold the fields of a device"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, text, message):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(FormatError, match=message) as caught:
        device(str(file))
    assert "mine.yaml" in str(caught.value)
    with pytest.raises(FormatError, match="No such file"):
        device(str(tmp_path / "none.yaml"))


def test_measuring_needs_a_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="torch finds no GPU"):
            measure()


def test_measuring_gives_rows_that_can_be_fitted():
    """On the CPU, with shapes that take microseconds: the code that runs on a GPU, except for its clock."""
    pytest.importorskip("torch")
    rows = measure(
        "cpu",
        seconds=0.1,
        shapes=[(64, 64, 64), (128, 64, 32)],
        attention=[(1, 2, 32, 16)],
        streamed=[1 << 16],
    )
    assert [(row["dtype"], row["m"]) for row in rows["gemm"]] == [("fp32", 64), ("fp32", 128)]
    assert len(rows["stream"]) == 2
    assert all(row["forward"] > 0 and row["backward"] > 0 for row in rows["attention"])
    assert set(fitted(json.loads(json.dumps(rows))).device.peak) == {"fp32"}
