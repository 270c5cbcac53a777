"""Quantities as people write them: ``"50GB/s"``, ``"500ns"``, ``"64MiB"``.

Everything that takes a bandwidth, a time or a size takes a string with a unit or a number, in Python and
in files. It is converted here, once, to the whole number that the core works with. The arithmetic is exact:
``"0.1us"`` is 100000 ps. GB is 10⁹ bytes, GiB is 2³⁰ bytes, and a lowercase b means bits.

A number without a unit is in SI units: bytes per second, seconds, bytes. It is refused if it was probably
meant in another unit, as in ``bandwidth=50`` or ``latency: 400``: a bandwidth below 1 MB/s and a time of
1 ms or more need a unit. Columns of numbers whose unit is documented (`from_links`, CSV, graphs)
take any number. Sizes are whole bytes.
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import isfinite
from numbers import Integral, Real
from typing import NamedTuple

__all__ = [
    "Quantity",
    "bandwidth_Bps",
    "bandwidth_text",
    "format_bandwidth",
    "format_dollars",
    "format_size",
    "format_time",
    "size_bytes",
    "size_range",
    "time_ps",
    "time_text",
]

Quantity = str | float
"""A number in SI units, or a string with a number and its unit."""

_Units = dict[str, Fraction]

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_PREFIXES = {prefix: Fraction(factor) for prefix, factor in (_DECIMAL | _BINARY).items()}
_SIZE_UNITS: _Units = {"": Fraction(1)} | {f"{p}B": factor for p, factor in _PREFIXES.items()}
_BANDWIDTH_UNITS: _Units = {
    f"{prefix}{what}{per}": factor / bits
    for prefix, factor in _PREFIXES.items()
    for what, bits in (("B", 1), ("b", 8), ("bit", 8))
    for per in ("/s", "ps")
}
_TIME_UNITS: _Units = {
    unit: Fraction(10**exponent)
    for exponent, units in {
        0: ["ps"],
        3: ["ns"],
        6: ["us", "µs", "μs"],
        9: ["ms"],
        12: ["s"],
    }.items()
    for unit in units
}


class _Kind(NamedTuple):
    """A kind of quantity: its units, the SI unit in the core's units, and the least value."""

    units: _Units
    si_unit: int
    least: int
    examples: str
    usual: tuple[str, str, str]
    """A usual unit, the SI unit, and the SI unit in words."""
    endings: tuple[str, ...]
    """Endings of units that users may leave out."""


_BANDWIDTH = _Kind(
    _BANDWIDTH_UNITS,
    1,
    1,
    '"50GB/s" or "400Gb/s"',
    ("GB/s", "B/s", "bytes per second"),
    ("B/s", "/s"),
)
_TIME = _Kind(
    _TIME_UNITS,
    10**12,
    0,
    '"500ns" or "1.5us"',
    ("ns", "s", "seconds"),
    ("s",),
)
_SIZE = _Kind(
    _SIZE_UNITS,
    1,
    1,
    '"64MB" (10^6), "64MiB" (2^20) or a number of bytes',
    ("MB", "B", "bytes"),
    ("B",),
)
_SLOWEST_BARE_BPS = 10**6  # chosen: no network is slower
_LONGEST_BARE_PS = 10**9  # chosen: 1 ms, longer than latencies, jitter and delays within a cluster
_LARGEST = 2**63 - 1

# Length and exponent are bounded, so no text is a number that is too large to compute with.
_TEXT = re.compile(
    r"\s*(-?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?)\s*(\S*)\s*"
)


def bandwidth_Bps(value: Quantity, *, what: str = "bandwidth", bare: bool = True) -> int:
    """Convert a bandwidth to whole bytes per second; numbers are bytes per second.

    `what` names the quantity in the ValueError for a wrong value, here and below. Without `bare`, a number
    that was probably meant in another unit is refused.

    >>> bandwidth_Bps("50GB/s"), bandwidth_Bps("400Gbps"), bandwidth_Bps(2.5e10)
    (50000000000, 50000000000, 25000000000)
    >>> bandwidth_Bps(50, bare=False)
    Traceback (most recent call last):
    ValueError: bandwidth 50 needs a unit: "50GB/s", or "50B/s" for 50 bytes per second
    """
    result = _whole(value, _BANDWIDTH, what)
    if not bare and not isinstance(value, str) and result < _SLOWEST_BARE_BPS:
        raise ValueError(_needs_a_unit(value, _BANDWIDTH, what))
    return result


def time_ps(value: Quantity, *, what: str = "time", bare: bool = True) -> int:
    """Convert a time to whole picoseconds; numbers are seconds. `bare` is as for :func:`bandwidth_Bps`.

    >>> time_ps("500ns"), time_ps("0.1us"), time_ps(1.5e-6), time_ps(0)
    (500000, 100000, 1500000, 0)
    >>> time_ps(400, what="latency", bare=False)
    Traceback (most recent call last):
    ValueError: latency 400 needs a unit: "400ns", or "400s" for 400 seconds
    """
    result = _whole(value, _TIME, what)
    if not bare and not isinstance(value, str) and result >= _LONGEST_BARE_PS:
        raise ValueError(_needs_a_unit(value, _TIME, what))
    return result


def _needs_a_unit(value: Quantity, kind: _Kind, what: str) -> str:
    number, (usual, si, words) = f"{value}", kind.usual
    return (
        f'{what} {value!r} needs a unit: "{number}{usual}", or "{number}{si}" for {number} {words}'
    )


def size_bytes(value: Quantity, *, what: str = "size") -> int:
    """Convert a size to whole bytes; numbers are bytes, and so are strings without a unit.

    A number of bytes with a fraction is refused; a value with a larger unit, such as ``"0.1KiB"``, is rounded.

    >>> size_bytes("64MB"), size_bytes("64MiB"), size_bytes("1e6B"), size_bytes("4096")
    (64000000, 67108864, 1000000, 4096)
    >>> size_bytes("64M")
    Traceback (most recent call last):
    ValueError: size '64M' is not understood; did you mean "64MB"?
    """
    return _whole(value, _SIZE, what)


def size_range(text: str, *, what: str = "sizes") -> list[int]:
    """Return the sizes in bytes of ``"LOW:HIGH"`` or ``"LOW:HIGH:FACTOR"``, each 2 or FACTOR times the one before.

    The largest is always included.

    >>> size_range("1KB:10KB"), size_range("1KiB:1MiB:32")
    ([1000, 2000, 4000, 8000, 10000], [1024, 32768, 1048576])
    """
    ends = text.split(":")
    if not 2 <= len(ends) <= 3:
        raise ValueError(f"{what} {text!r} is not understood; write for example 1KB:4GB")
    low, high = (size_bytes(end, what=what) for end in ends[:2])
    factor = _parsed(ends[2], {"": Fraction(1)}) if len(ends) == 3 else Fraction(2)
    if factor is None or factor < Fraction(11, 10):
        raise ValueError(f"{what} {text!r} has the factor {ends[2]!r}; it must be at least 1.1")
    if low > high:
        raise ValueError(f"{what} {text!r} must go from the lower to the higher size")
    found, size = [], Fraction(low)
    while size < high:
        found.append(round(size))
        size *= factor
    return list(dict.fromkeys([*found, high]))


def bandwidth_text(value: int) -> str:
    """Format a bandwidth for files: exact, and as short as possible.

    >>> bandwidth_text(50_000_000_000), bandwidth_text(12_500_000), bandwidth_text(1_234_567_891)
    ('50GB/s', '12.5MB/s', '1234567891B/s')
    """
    for factor, unit in ((10**9, "GB/s"), (10**6, "MB/s")):
        if value >= factor and value * 1000 % factor == 0:
            return f"{_decimal(value, factor)}{unit}"
    return f"{value}B/s"


def time_text(value: int) -> str:
    """Format a time in picoseconds for files: exact, and as short as possible.

    >>> time_text(500_000), time_text(1_300_000), time_text(7)
    ('500ns', '1.3us', '7ps')
    """
    for factor, unit in ((10**9, "ms"), (10**6, "us"), (10**3, "ns")):
        if value >= factor and value * 1000 % factor == 0:
            return f"{_decimal(value, factor)}{unit}"
    return f"{value}ps"


def _decimal(value: int, factor: int) -> str:
    whole, rest = divmod(value * 1000 // factor, 1000)
    return f"{whole}.{rest:03}".rstrip("0").rstrip(".") if rest else str(whole)


def _whole(value: Quantity, kind: _Kind, what: str) -> int:
    exact = _parsed(value, kind.units) if isinstance(value, str) else _number(value, kind.si_unit)
    if exact is None:
        fault = "is not understood"
        if meant := _meant(value, kind):
            raise ValueError(f'{what} {value!r} {fault}; did you mean "{meant}"?')
        if isinstance(value, str) and (_parsed(value, {"": Fraction(1)}) or 0) > 0:
            raise ValueError(_needs_a_unit(value, kind, what))
    elif kind is _SIZE and exact.denominator > 1 and exact > 0 and _in_bytes(value):
        fault = "must be a whole number of bytes"
    elif exact < 0 or round(exact) < kind.least:
        fault = "must be positive" if kind.least else "must not be negative"
    elif exact > _LARGEST:
        fault = "is too large"
    else:
        return round(exact)
    raise ValueError(f"{what} {value!r} {fault}; write for example {kind.examples}")


def _parsed(text: str, units: _Units) -> Fraction | None:
    match = _TEXT.fullmatch(text)
    return Fraction(match[1]) * units[match[2]] if match and match[2] in units else None


def _meant(value: object, kind: _Kind) -> str | None:
    """Return a text with the unit that was probably meant, if there is one."""
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if match is None or not match[2]:
        return None
    for ending in ("", *kind.endings):
        unit = match[2] + ending
        if unit in kind.units:
            return f"{match[1]}{unit}"
    alike = {name.lower(): name for name in reversed(kind.units)}  # MB before mb, GB/s before Gb/s
    for ending in ("", *kind.endings):
        unit = (match[2] + ending).lower()
        if unit in alike:
            return f"{match[1]}{alike[unit]}"
    return None


def _in_bytes(value: object) -> bool:
    """Return whether a size is a number of bytes, without a larger unit."""
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    return match is None or match[2] in ("", "B")


def _number(value: object, si_unit: int) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        return None
    if isinstance(value, Integral):
        return Fraction(int(value) * si_unit)
    # The shortest decimal of the float is used, so 1e-7 s is exactly 100000 ps.
    return Fraction(repr(float(value))) * si_unit


def format_time(seconds: float) -> str:
    """Format a time for people, to four digits.

    >>> format_time(1.23456e-5), format_time(5e-7), format_time(0)
    ('12.35 us', '500 ns', '0 s')
    """
    return _scaled(seconds, {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "ps": 1e-12}, "s")


def format_bandwidth(bytes_per_second: float) -> str:
    """Format a bandwidth for people, to four digits.

    >>> format_bandwidth(5e10), format_bandwidth(342.857e9)
    ('50 GB/s', '342.9 GB/s')
    """
    return _scaled(bytes_per_second, _DECIMAL_BYTES, "B") + "/s"


def format_dollars(amount: float) -> str:
    """Format an amount of money for people, to five digits.

    >>> format_dollars(22_966_123), format_dollars(1500), format_dollars(0)
    ('$22.966M', '$1.5k', '$0')
    """
    for factor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(amount) >= 0.999995 * factor:
            return f"${amount / factor:.5g}{letter}"
    return f"${amount:.5g}"


def format_size(size: float) -> str:
    """Format a size for people, to four digits; in KiB, MiB, … if that is exact and shorter.

    >>> format_size(64_000_000), format_size(64 << 20), format_size(123_456_789)
    ('64 MB', '64 MiB', '123.5 MB')
    """
    texts = [_scaled(size, units, "B") for units in (_DECIMAL_BYTES, _BINARY_BYTES)]
    exact = [text for text in texts if _parsed(text, _SIZE_UNITS) == size]
    return min(exact, key=len, default=texts[0])


_DECIMAL_BYTES = {f"{p}B": factor for p, factor in reversed(_DECIMAL.items()) if p != "K"}
_BINARY_BYTES = {f"{p}B": factor for p, factor in reversed(_BINARY.items())} | {"B": 1}


def _scaled(value: float, units: dict[str, float] | dict[str, int], of_zero: str) -> str:
    """Format a value in the largest unit that does not exceed it; units are ordered from large to small."""
    value = float(f"{value:.4g}")  # round first, so that 999.96 ns does not become 1000 ns
    fitting = (unit for unit, factor in units.items() if abs(value) >= factor)
    unit = next(fitting, list(units)[-1]) if value else of_zero
    return f"{value / units[unit]:.4g} {unit}"
