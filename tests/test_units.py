from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tacos
from tacos import topology as tp
from tacos.errors import FormatError
from tacos.units import (
    bandwidth_Bps,
    bandwidth_text,
    format_bandwidth,
    format_size,
    format_time,
    size_bytes,
    time_ps,
    time_text,
)

pytestmark = pytest.mark.unsanitized


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50GB/s", 50 * 10**9),
        ("50 GB/s", 50 * 10**9),
        ("50GBps", 50 * 10**9),
        ("1GiB/s", 2**30),
        ("400Gb/s", 50 * 10**9),
        ("400Gbps", 50 * 10**9),
        ("400Gbit/s", 50 * 10**9),
        ("1.6Tbps", 200 * 10**9),
        ("12.5e9B/s", 12_500_000_000),
        (2.5e10, 25 * 10**9),
        (1, 1),
        (np.float64(1e9), 10**9),
        (np.int32(1000), 1000),
    ],
)
def test_bandwidths(text, expected):
    assert bandwidth_Bps(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ns", 500_000),
        ("0.5us", 500_000),
        ("1.5 µs", 1_500_000),  # the micro sign
        ("1.5 μs", 1_500_000),  # the Greek letter
        ("0.1us", 100_000),
        ("3ps", 3),
        ("0.4ps", 0),
        ("2ms", 2 * 10**9),
        ("1s", 10**12),
        (".5s", 5 * 10**11),
        (1e-7, 100_000),
        (0.7e-6, 700_000),
        (np.int64(2), 2 * 10**12),
        (0, 0),
    ],
)
def test_times(text, expected):
    assert time_ps(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64MiB", 64 << 20),
        ("64MB", 64 * 10**6),
        ("1e6B", 10**6),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("4096", 4096),
        (" 8 B ", 8),
        (8.0, 8),
        (2**62, 2**62),
    ],
)
def test_sizes(text, expected):
    assert size_bytes(text) == expected


@pytest.mark.parametrize("parse", [bandwidth_Bps, time_ps, size_bytes])
@pytest.mark.parametrize(
    "value",
    ["", "fast", "-1B", "-3", -1, math.nan, math.inf, "nan", "inf", "1e99PB/s", "9" * 60, True, None,
     "64mb", "64Mb", "1,5us", "0x10", "١", b"1s", [1], "50GB/s/s", 2.0**200],
)  # fmt: skip
def test_nonsense_is_refused_by_name(parse, value):
    with pytest.raises(ValueError, match=r"write for example|did you mean") as error:
        parse(value, what="links[3].field")
    assert str(error.value).startswith(f"links[3].field {value!r} ")


@pytest.mark.parametrize(
    ("parse", "value"),
    [(bandwidth_Bps, 0), (bandwidth_Bps, "0.2B/s"), (bandwidth_Bps, "50"), (time_ps, "50"),
     (size_bytes, 0), (size_bytes, "0MB"), (time_ps, -1e-20), (time_ps, "-0.1ps")],
)  # fmt: skip
def test_limits_of_each_kind(parse, value):
    with pytest.raises(ValueError, match=r"write for example|needs a unit"):
        parse(value)


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_a_value_error(text):
    for parse in (bandwidth_Bps, time_ps, size_bytes):
        try:
            assert 0 <= parse(text) < 2**63
        except ValueError as error:
            assert repr(text) in str(error)  # noqa: PT017


@given(st.integers(1, 10**12), st.sampled_from(["", "k", "M", "G"]))
def test_decimal_prefixes_are_exact(n, prefix):
    factor = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}[prefix]
    exact = Fraction(n, 1000) * factor
    if exact.denominator == 1:
        assert size_bytes(f"{n // 1000}.{n % 1000:03}{prefix}B") == exact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_time(0), "0 s"),
        (format_time(1.23456e-5), "12.35 us"),
        (format_time(999.96e-9), "1 us"),
        (format_time(90), "90 s"),
        (format_time(1e-12), "1 ps"),
        (format_bandwidth(342.857e9), "342.9 GB/s"),
        (format_bandwidth(0), "0 B/s"),
        (format_size(64 << 20), "64 MiB"),
        (format_size(64_000_000), "64 MB"),
        (format_size(1000), "1 kB"),
        (format_size(1024), "1 KiB"),
        (format_size(1_048_577), "1.049 MB"),
        (format_size(0), "0 B"),
        (format_size(0.5), "0.5 B"),
    ],
)
def test_formats(text, expected):
    assert text == expected


@given(st.integers(1, 2**60))
def test_what_is_printed_can_be_read(n):
    for text in (format_size(n), format_bandwidth(n).removesuffix("/s")):
        assert size_bytes(text) == pytest.approx(n, rel=1e-3)
    assert time_ps(format_time(n / 10**12)) == pytest.approx(n, rel=1e-3)


@pytest.mark.parametrize(
    ("parse", "value", "meant"),
    [
        (size_bytes, "64M", "64MB"), (size_bytes, "64mb", "64MB"), (size_bytes, "1.5 gib", "1.5GiB"),
        (size_bytes, "4K", "4KB"), (bandwidth_Bps, "50GB", "50GB/s"), (bandwidth_Bps, "50G", "50GB/s"),
        (bandwidth_Bps, "400gb/s", "400GB/s"), (time_ps, "5u", "5us"), (time_ps, "5NS", "5ns"),
    ],
)  # fmt: skip
def test_a_unit_that_is_nearly_right_is_suggested(parse, value, meant):
    with pytest.raises(ValueError, match=f'is not understood; did you mean "{meant}"\\?$'):
        parse(value)
    assert parse(meant) > 0


@pytest.mark.parametrize("value", [64.5, "64.5", "1.5B", 0.5, np.float64(1.25)])
def test_a_size_is_a_whole_number_of_bytes(value):
    with pytest.raises(ValueError, match="must be a whole number of bytes; write for example"):
        size_bytes(value)
    assert size_bytes("64.5MB") == 64_500_000
    assert (size_bytes("1.5KB"), size_bytes("2.0B")) == (1500, 2)


def test_examples_of_text_have_units():
    with pytest.raises(ValueError, match=r'; write for example "50GB/s" or "400Gb/s"$'):
        bandwidth_Bps("fast")
    with pytest.raises(ValueError, match=r'; write for example "500ns" or "1\.5us"$'):
        time_ps("soon")


BARE = {
    "bandwidth": lambda: tp.torus(2, 2, bandwidth=50),
    "one of several": lambda: tp.torus(2, 2, bandwidth=("50GB/s", 50)),
    "reduce_bandwidth": lambda: tp.ring(4, reduce_bandwidth=100),
    "latency": lambda: tp.switch(4, latency=500),
    "a machine": lambda: tp.dgx_h100(2, nvls=False, nic_bandwidth=400),
    "a cluster": lambda: tp.fat_tree(4, 8, bandwidth=400),
    "an edit": lambda: tp.degrade(tp.ring(4), (0, 1), latency=2),
    "a fault": lambda: tacos.Fault(link=0, begin=10, end=20),
    "a straggler": lambda: tacos.Straggler(npu=0, late=20),
}


@pytest.mark.parametrize("build", BARE.values(), ids=BARE)
def test_a_number_that_was_meant_in_another_unit_is_refused_in_python(build):
    with pytest.raises(
        ValueError, match=r'needs a unit: "[0-9]+(GB/s|ns)", or "[0-9]+(B/s|s)" for'
    ):
        build()


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("bandwidth: 50, latency: 500ns", 'links\\[0\\].bandwidth 50 needs a unit: "50GB/s"'),
        ("bandwidth: 50GB/s, latency: 400", 'links\\[0\\].latency 400 needs a unit: "400ns"'),
        ("bandwidth: 50GB/s, latency: 0.5", 'latency 0.5 needs a unit: "0.5ns", or "0.5s" for'),
    ],
)
def test_and_in_files(tmp_path, field, message):
    file = tmp_path / "net.yaml"
    file.write_text(f"tacos: 1\nnpus: 2\nlinks: [{{src: 0, dst: 1, {field}}}]\n")
    with pytest.raises(FormatError, match=message):
        tacos.load(file)


def test_numbers_in_si_units_mean_the_same_in_python_and_in_files(tmp_path):
    file = tmp_path / "net.yaml"
    file.write_text(
        "tacos: 1\nnpus: 2\nlinks: [{src: 0, dst: 1, bandwidth: 5.0e+10, latency: 0}]\n"
    )
    read, built = tacos.load(file), tp.ring(2, bandwidth=5e10, latency=0)
    assert (read.link_bandwidth_Bps == built.link_bandwidth_Bps).all()
    assert (read.link_latency_ps == built.link_latency_ps).all()


@given(st.integers(1, 10**7), st.integers(0, 10**12))
def test_what_is_written_can_be_read_however_slow_it_is(speed, delay):
    """Files state every unit, so they keep links too slow to be given as a bare number."""
    assert bandwidth_Bps(bandwidth_text(speed), bare=False) == speed
    assert time_ps(time_text(delay), bare=False) == delay
