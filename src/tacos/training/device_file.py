"""Devices in files: your own table, or measurements of ``tacos probe device``.

A file has the fields of a :class:`~tacos.training.devices.Device` in common units::

    device: my-h200
    base: h200                       # provides missing fields
    peak_TFLOPS: {bf16: 989, fp8: 1979}
    share: {bf16: 0.74, fp8: 0.68}   # of the peak that large products reach
    memory_bandwidth: 4800GB/s
    memory: 141GB
    kernel: 2.1us                    # between two kernels

and ``attention``, ``attention_backward``, ``legacy``, ``memory_share``, ``fill``, ``depth`` and ``source`` as in that class.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from tacos import units
from tacos._support.files import replacing
from tacos.errors import FormatError, nearest
from tacos.formats import markup
from tacos.formats.source import about, fields_of
from tacos.training.devices import DEVICES, DTYPES, Device

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

__all__ = ["Fit", "fitted", "load_device", "save_device"]

_Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
_Amount = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a file."""

    device: str = ""
    base: str = ""
    peak_TFLOPS: dict[str, float] = {}
    share: dict[str, _Share] = {}
    memory_bandwidth: str = ""
    memory: str = ""
    memory_share: _Share | None = None
    attention: _Share | None = None
    attention_backward: _Share | None = None
    legacy: _Share | None = None
    fill: _Amount | None = None
    depth: _Amount | None = None
    kernel: str = ""
    source: str = ""


_NAMES = tuple(one.name for one in msgspec.structs.fields(_File))
_PLAIN = ("attention", "attention_backward", "legacy", "memory_share", "fill", "depth")


def load_device(path: str | os.PathLike[str]) -> Device:
    """Read a device from a YAML or JSON file.

    Raises:
        FormatError: The file is missing, or a field is unknown, missing or has a wrong value; the message names it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "mine.yaml")
    ...     _ = file.write_text("base: h200\\nshare: {bf16: 0.7}\\nmemory_bandwidth: 4.5TB/s")
    ...     found = load_device(file)
    >>> found.name, found.share["bf16"], found.memory_Bps, found.memory_bytes
    ('mine', 0.7, 4500000000000.0, 141000000000)
    """
    try:
        with about(path):
            data = markup.load(path)
            if not isinstance(data, dict):
                raise ValueError("the file must hold the fields of a device")  # noqa: TRY004, about a file
            for key in data:
                if key not in _NAMES:
                    close = nearest(str(key), list(_NAMES))
                    hint = (
                        f"did you mean {close!r}?" if close else f"use one of {', '.join(_NAMES)}"
                    )
                    raise ValueError(f"unknown field {key!r}; {hint}")
            name = re.sub(r".*[/\\]", "", str(path)).rpartition(".")[0]
            return _device(fields_of(data, _File), name)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None


def _device(read: _File, name: str) -> Device:
    base = DEVICES.get(read.base)
    if read.base and base is None:
        close = nearest(read.base, list(DEVICES))
        raise ValueError(
            f"base is {read.base!r}; " + (f"did you mean {close!r}?" if close else f"use one of {', '.join(DEVICES)}")
        )  # fmt: skip
    given: dict[str, Any] = (
        {} if base is None else {one.name: getattr(base, one.name) for one in fields(base)}
    )
    given["name"] = read.device or name
    for field, values in (("peak", read.peak_TFLOPS), ("share", read.share)):
        for dtype, value in values.items():
            if dtype not in DTYPES or value <= 0:
                raise ValueError(
                    f"{field} has {dtype!r}: {value!r}; it takes positive numbers by type: {', '.join(DTYPES)}"
                )
    peak = {dtype: value * 1e12 for dtype, value in read.peak_TFLOPS.items()}
    given["peak"] = dict(given.get("peak", {})) | peak
    given["share"] = dict(given.get("share", {})) | read.share
    if read.memory_bandwidth:
        given["memory_Bps"] = float(
            units.bandwidth_Bps(read.memory_bandwidth, what="memory_bandwidth")
        )
    if read.memory:
        given["memory_bytes"] = units.size_bytes(read.memory, what="memory")
    if read.kernel:
        given["kernel_s"] = units.time_ps(read.kernel, what="kernel") * 1e-12
    given |= {one: value for one in _PLAIN if (value := getattr(read, one)) is not None}
    given["source"] = read.source or given.get("source", "a file")
    said = {"memory_Bps": "memory_bandwidth", "memory_bytes": "memory", "kernel_s": "kernel"}
    missing = [said.get(one.name, one.name) for one in fields(Device) if one.name not in given]
    missing += [one for one in ("peak", "share") if not given[one]]
    if missing:
        raise ValueError(f"{', '.join(missing)} are missing; give them, or a base such as h100")
    lacking = set(given["peak"]) ^ set(given["share"])
    if lacking:
        raise ValueError(
            f"peak_TFLOPS and share must have the same types; one of them lacks {', '.join(sorted(lacking))}"
        )
    return Device(**given)


def save_device(device: Device, path: str | os.PathLike[str]) -> None:
    """Write a device, for :func:`load_device` to read.

    >>> import tempfile
    >>> from tacos.training import DEVICES
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_device(DEVICES["h100"], f"{folder}/h100.yaml")
    ...     load_device(f"{folder}/h100.yaml") == DEVICES["h100"]
    True
    """
    said: dict[str, Any] = {
        "device": device.name,
        "peak_TFLOPS": {dtype: _short(value / 1e12) for dtype, value in device.peak.items()},
        "share": {dtype: _short(value) for dtype, value in device.share.items()},
        "memory_bandwidth": units.bandwidth_text(round(device.memory_Bps)),
        "memory": f"{device.memory_bytes}B",
        **{name: _short(getattr(device, name)) for name in _PLAIN},
        "kernel": units.time_text(round(device.kernel_s * 1e12)),
        "source": device.source,
    }
    ending = str(path).rpartition(".")[2].lower()
    if ending not in ("yaml", "yml", "json"):
        raise FormatError(f"{path}: the extension of a device file must be .yaml, .yml or .json")
    text = markup.as_json(said) if ending == "json" else markup.as_yaml(said)
    try:
        with replacing(path) as out:
            out.write(text.encode())
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None


def _short(value: float) -> float:
    """Round to six digits, more than a measurement has."""
    return float(f"{value:.6g}")


class Fit(msgspec.Struct, frozen=True):
    """A device that fits measurements, and how well.

    Attributes:
        device: The device.
        errors: Mean absolute error over the products of each type, as a share.
        worst: For each type, m, n and k of the product with the largest error, and that error: positive if the model is slower than
            the device.
        dispatch_s: Seconds that the host needs to start a kernel, for a :class:`~tacos.training.devices.Software`.
        skipped: What could not be measured, and why.
    """

    device: Device
    errors: dict[str, float]
    worst: dict[str, tuple[int, int, int, float]]
    dispatch_s: float
    skipped: list[dict[str, Any]]

    def summary(self) -> dict[str, Any]:
        """Return the figures by name, for people."""
        one = self.device
        said: dict[str, Any] = {"device": one.name, "source": one.source}
        for dtype, peak in one.peak.items():
            m, n, k, off = self.worst[dtype]
            said[dtype] = (
                f"{peak / 1e12:,.4g} TFLOP/s, {one.share[dtype]:.1%} reached; "
                f"products {self.errors[dtype]:.1%} off, at worst {off:+.0%} ({m} x {n} x {k})"
            )
        memory = units.format_bandwidth(one.memory_Bps)
        said |= {
            "memory": f"{memory}, {one.memory_share:.1%} reached",
            "attention": f"{one.attention:.1%} of the peak, {one.attention_backward:.1%} backward",
            "legacy": round(one.legacy, 3),
            "fill": round(one.fill),
            "depth": round(one.depth, 1),
            "kernel": units.format_time(one.kernel_s),
            "dispatch": units.format_time(self.dispatch_s),
        }
        for row in self.skipped:
            words = ", ".join(f"{key} {value}" for key, value in row.items() if key != "why")
            said[f"not measured: {words}"] = row["why"]
        return said


def fitted(rows: Mapping[str, Any], name: str = "") -> Fit:
    """Return the device that fits measurements best.

    Peaks and memory bandwidth come from the data sheet if the device is a known one, so that MFU is comparable with other
    publications; otherwise they are the measured maximum. The time between kernels and the share of the memory's bandwidth are medians.
    `fill` and `depth` are the same for all types, and a share belongs to a type; they have the smallest sum of logarithmic errors
    over all products.

    Args:
        rows: What :func:`tacos.runtime.measure.device.measure` returns.
        name: Name of the device; by default that of the known device.

    Raises:
        ValueError: There are no products of a type, or nothing was streamed.
    """
    known = _known(str(rows.get("name", "")), int(rows.get("memory", 0)))
    streams = [row["bytes"] / row["seconds"] for row in rows["stream"]]
    if not streams or not rows["gemm"]:
        raise ValueError("the measurements have no streams or no products: nothing can be fitted")
    reached = float(np.median(streams))
    kernel_s = float(rows["kernel_s"])
    base = known or replace(
        DEVICES["h100"],
        name="device",
        memory_Bps=reached,
        memory_bytes=int(rows.get("memory") or 2**40),
        legacy=1.0,
    )
    memory_share = min(reached / base.memory_Bps, 1.0)
    table = _Products(rows["gemm"], base, kernel_s, memory_share)
    fill, depth = table.best()
    rates = table.rates(fill, depth)
    peak = {
        t: max(base.peak[t] if known and t in base.peak else rate, rate)
        for t, rate in rates.items()
    }
    device = replace(
        base,
        name=name or (base.name if known else _slug(str(rows.get("name", "")) or "device")),
        peak=peak,
        share={t: rate / peak[t] for t, rate in rates.items()},
        memory_share=memory_share,
        fill=fill,
        depth=depth,
        kernel_s=kernel_s,
        source=f"measured on {rows.get('name', '?')}, torch {rows.get('torch', '?')}",
    )
    device = replace(device, **_attention(rows["attention"], device))
    errors, worst = {}, {}
    for dtype in rates:
        off = {
            (m, n, k): device.gemm_s(m, n, k, dtype) / seconds - 1
            for m, n, k, seconds in (
                (row["m"], row["n"], row["k"], row["seconds"])
                for row in rows["gemm"]
                if row["dtype"] == dtype
            )
        }
        errors[dtype] = float(np.mean([abs(one) for one in off.values()]))
        shape = max(off, key=lambda one: abs(off[one]))
        worst[dtype] = (*shape, off[shape])
    skipped = list(rows.get("skipped", []))
    return Fit(device, errors, worst, float(rows.get("dispatch_s", 0.0)), skipped)


class _Products:
    """Measured products as columns."""

    def __init__(
        self, rows: list[dict[str, Any]], base: Device, kernel_s: float, share: float
    ) -> None:
        self.dtype = np.array([row["dtype"] for row in rows])
        self.m, self.n, self.k, seconds = (
            np.array([row[name] for row in rows], float) for name in ("m", "n", "k", "seconds")
        )
        self.seconds = np.maximum(seconds - kernel_s, 1e-9)
        size = np.array([DTYPES[dtype] for dtype in self.dtype])
        moved = (self.m * self.k + self.k * self.n) * size + self.m * self.n * np.maximum(size, 2.0)
        self.memory_s = moved / (base.memory_Bps * share)
        # Products that memory limits do not tell how fast products are.
        self.bound = self.seconds < 1.3 * self.memory_s

    def rates(self, fill: float, depth: float) -> dict[str, float]:
        """Return, for each type, the FLOP/s with the smallest sum of errors."""
        work = 2.0 * (self.m * self.n + fill) * (self.k + depth) / self.seconds
        found = {}
        for dtype in dict.fromkeys(self.dtype.tolist()):
            mine = self.dtype == dtype
            free = mine & ~self.bound
            found[dtype] = float(np.median(work[free if free.any() else mine]))
        return found

    def error(self, fill: float, depth: float) -> float:
        """Return the sum of the logarithms of errors."""
        rates = self.rates(fill, depth)
        rate = np.array([rates[dtype] for dtype in self.dtype])
        work = 2.0 * (self.m * self.n + fill) * (self.k + depth)
        said = np.maximum(work / rate, self.memory_s)
        return float(np.abs(np.log(said / self.seconds)).sum())

    def best(self) -> tuple[float, float]:
        """Return `fill` and `depth`, by a search on a grid that becomes finer."""
        fills = np.r_[0.0, np.geomspace(1e4, 1e8, 33)]
        depths = np.r_[0.0, np.geomspace(8, 4096, 28)]
        for _ in range(3):
            fill, depth = min(
                ((f, d) for f in fills.tolist() for d in depths.tolist()),
                key=lambda pair: self.error(*pair),
            )
            fills, depths = _around(fills, fill), _around(depths, depth)
        return fill, depth


def _around(grid: NDArray[np.float64], at: float) -> NDArray[np.float64]:
    place = int(np.searchsorted(grid, at))
    low, high = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
    return np.unique(np.r_[np.linspace(low, high, 13), at])


def _attention(rows: list[dict[str, Any]], device: Device) -> dict[str, Any]:
    """Return the shares of the 16-bit peak that attention reaches; nothing if it was not measured."""
    peak = device.peak.get("bf16") or device.peak.get("fp16")
    if peak is None:
        return {}

    def share(kernel: str, way: Callable[[dict[str, Any]], float]) -> float | None:
        found = [way(row) for row in rows if row["kernel"] == kernel]
        return min(float(np.median(found)), 1.0) if found else None

    def flops(row: dict[str, Any]) -> float:  # causal: half of two products
        rows, heads, length, head = (
            float(row[n]) for n in ("sequences", "heads", "length", "head")
        )
        return 2.0 * rows * heads * length**2 * head

    def ahead(row: dict[str, Any]) -> float:
        return flops(row) / (max(float(row["forward"]) - device.kernel_s, 1e-9) * peak)

    def back(row: dict[str, Any]) -> float:
        return 2.5 * flops(row) / (max(float(row["backward"]) - 2 * device.kernel_s, 1e-9) * peak)

    pairs = {kernel: (share(kernel, ahead), share(kernel, back)) for kernel in ("best", "flash")}
    found = {kernel: (a, b) for kernel, (a, b) in pairs.items() if a is not None and b is not None}
    if not found:
        return {}
    # One forward and one backward pass with each kernel; the faster kernel counts.
    times = {kernel: 1 / a + 2.5 / b for kernel, (a, b) in found.items()}
    first = min(times, key=times.__getitem__)
    legacy = times[first] / times["flash"] if "flash" in times else 1.0
    return {"attention": found[first][0], "attention_backward": found[first][1], "legacy": legacy}


def _known(name: str, memory: int) -> Device | None:
    """Return the known device for a name that torch reports."""
    text = name.lower()
    if any(word in text for word in ("pcie", "nvl", "h100l")):
        return None  # their peaks differ from those of DGX modules
    stems = {known: known.partition("-")[0] for known in DEVICES}
    fitting = [known for known, stem in stems.items() if re.search(rf"\b{stem}\b", text)]
    if not fitting:
        return None
    return min(
        (DEVICES[known] for known in fitting), key=lambda one: abs(one.memory_bytes - memory)
    )


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
