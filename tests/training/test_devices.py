"""Devices: roofline times, and names."""

from __future__ import annotations

import pytest

from tacos.errors import SpecError
from tacos.training import DEVICES, DTYPES, SOFTWARE
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
