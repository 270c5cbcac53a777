"""Sources of costs: :func:`costs_of` accepts matrices, topologies and files, and reads files by :data:`READERS`.

A file format is one entry of that table.
"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacos import units
from tacos._core import Topology
from tacos.errors import FormatError
from tacos.reorder import trees
from tacos.reorder.costs import Costs, grouped, of_topology, refuse, square

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

__all__ = ["READERS", "Reader", "costs_of", "hosts_in"]


def costs_of(given: object, bandwidth: object = None, npus_per_host: int | None = None) -> Costs:
    """Return the costs from a matrix, a topology or a file.

    Args:
        given: A square matrix of latencies in seconds (or any costs), a topology, a path or a spec.
        bandwidth: A matrix of bandwidths in B/s, in addition to a matrix of latencies.
        npus_per_host: Number of NPUs of a topology that form a host, if names do not define hosts.

    Raises:
        ValueError: The matrix is not square or has gaps.
        FormatError: The file cannot be read.
    """
    if isinstance(given, Costs):
        return given
    if isinstance(given, str | Path):
        known = read(given)
        if npus_per_host is None:
            return known
        if known.network is None:
            raise ValueError(f"npus_per_host is {npus_per_host}, but {given} is not a topology")
        return of_topology(known.network, str(given), npus_per_host)
    if isinstance(given, Topology):
        return of_topology(given, "the topology", npus_per_host)
    if npus_per_host is not None:
        raise ValueError(f"npus_per_host is {npus_per_host}, but a matrix has a row for each host")
    latency = square(np.asarray(given, np.float64), None, "the matrix")
    byte_s = None
    if bandwidth is not None:
        rate = square(np.asarray(bandwidth, np.float64), None, "bandwidth")
        if rate.shape != latency.shape:
            raise ValueError(
                f"bandwidth is of {len(rate)} hosts, but the latencies are of {len(latency)}"
            )
        refuse(rate <= 0, [str(i) for i in range(len(rate))], "bandwidth", "is not positive for")
        byte_s = 1 / np.where(np.eye(len(rate), dtype=bool), np.inf, rate)
    return grouped([str(i) for i in range(len(latency))], latency, byte_s, "the matrix")


class Reader(NamedTuple):
    """A file format: how to recognize and read its text."""

    name: str
    fits: Callable[[str, object], bool]
    """Takes the text and its value as JSON or YAML (or None); returns whether it has this format."""
    read: Callable[[str, object, str], Costs]
    """Takes the text, its value, and the file's name for messages; returns the costs."""


def read(path: str | os.PathLike[str]) -> Costs:
    """Read the costs in a file: a matrix, a table of pairs, a probe's output, a scheduler's or cloud's topology.

    All other files are read as topology files, and other texts as specs.
    """
    from tacos import formats
    from tacos.formats.source import about, text_of

    place = Path(path)
    if not place.is_file():
        return of_topology(formats.network(str(path)), str(path))
    with about(str(path)):
        text = text_of(place)
    meaning = _meaning(text, place.suffix.lower())
    for reader in READERS:
        if reader.fits(text, meaning):
            try:
                return reader.read(text, meaning, str(path))
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise FormatError(f"{path}: not a valid {reader.name} file: {error}") from None
            except ValueError as error:
                raise FormatError(
                    str(error) if str(path) in str(error) else f"{path}: {error}"
                ) from None
    try:
        return of_topology(formats.network(str(path)), str(path))
    except formats.UnknownFormatError:
        raise FormatError(
            f"{path}: neither a topology nor times between hosts; write lines such as 'node0 node1 0.50' "
            "(from, to, ms)"
        ) from None


def _meaning(text: str, suffix: str) -> Any:
    import yaml

    try:
        if suffix == ".json" or text.lstrip()[:1] == "{":
            return json.loads(text)
        if suffix in (".yaml", ".yml"):
            return yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return None
    return None


def _keyed(key: str) -> Callable[[str, Any], bool]:
    return lambda _text, meaning: isinstance(meaning, dict) and key in meaning


def _probe(_text: str, meaning: Any, source: str) -> Costs:
    names = [str(name) for name in meaning["names"]]
    latency, byte_s = (np.full((len(names), len(names)), np.nan) for _ in range(2))
    for pair in meaning["pairs"]:
        where = int(pair["src"]), int(pair["dst"])
        latency[where] = float(pair["latency_s"]["median"])
        byte_s[where] = 1 / float(pair["bandwidth_Bps"]["median"])
    latency = square(latency, names, source)
    return grouped(names, latency, square(byte_s, names, source), source)


def _cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if any("," in line for line in lines[:2]):
        return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO("\n".join(lines)))]
    return [line.split() for line in lines]


_TIMES = {"latency": 1.0, "latency_s": 1.0, "latency_us": 1e-6, "latency_ms": 1e-3, "cost": 1.0,
          "rtt": 0.5, "rtt_s": 0.5, "rtt_us": 0.5e-6, "rtt_ms": 0.5e-3}  # fmt: skip
_FROM, _TO = ("src", "from", "source"), ("dst", "to", "destination", "target")


def _seconds(cell: str, factor: float) -> float:
    try:
        return float(cell) * factor
    except ValueError:
        rtt = 0.5 if factor in (0.5, 0.5e-3, 0.5e-6) else 1.0
        return units.time_ps(cell, what="latency") / 1e12 * rtt


def _is_table(text: str, meaning: Any) -> bool:
    if meaning is not None:
        return False
    rows = _cells(text)
    heads = _heads(rows[0]) if rows else None
    if heads is not None and heads[-1] is not None:
        # With bandwidths, a line for every pair; a list of some links is a topology.
        pairs = {(row[heads[0]], row[heads[1]]) for row in rows[1:] if len(row) > max(heads[:2])}
        names = {name for pair in pairs for name in pair}
        return len(pairs) >= len(names) * (len(names) - 1) / 2
    return bool(rows) and (heads is not None or ("," not in text and _is_ping(rows)))


def _heads(row: Sequence[str]) -> tuple[int, int, int, float, int | None] | None:
    """Return the columns of source, destination, latency with its unit, and bandwidth, from a heading."""
    names = [cell.lower() for cell in row]
    src = next((i for i, name in enumerate(names) if name in _FROM), None)
    dst = next((i for i, name in enumerate(names) if name in _TO), None)
    time = next((i for i, name in enumerate(names) if name in _TIMES), None)
    rate = next((i for i, name in enumerate(names) if name in ("bandwidth", "bandwidth_bps")), None)
    if src is None or dst is None or time is None:
        return None
    return src, dst, time, _TIMES[names[time]], rate


def _is_ping(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether there are three columns: from, to, and the milliseconds of a round trip."""

    def number(cell: str) -> bool:
        return re.fullmatch(r"[\d.]+(e[+-]?\d+)?", cell) is not None

    return all(len(row) == 3 and number(row[2]) for row in rows) and not all(
        number(cell) for row in rows for cell in row
    )


def _table(text: str, _meaning: Any, source: str) -> Costs:
    """Read one line per pair, in any order; a pair that occurs several times gets the median."""
    rows = _cells(text)
    heads = _heads(rows[0])
    src, dst, time, factor, rate = heads or (0, 1, 2, 0.5e-3, None)
    rows = rows[1:] if heads else rows
    for number, row in enumerate(rows, 1 + bool(heads)):
        if len(row) <= max(src, dst, time, rate or 0):
            raise ValueError(f"{source}: row {number} has {len(row)} columns, too few")
    names = list(dict.fromkeys(row[column] for row in rows for column in (src, dst)))
    at = {name: i for i, name in enumerate(names)}
    seen: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for row in rows:
        speed = float(units.bandwidth_Bps(row[rate], what="bandwidth")) if rate is not None else 0.0
        seen.setdefault((at[row[src]], at[row[dst]]), []).append(
            (_seconds(row[time], factor), speed)
        )
    latency, speeds = (np.full((len(names), len(names)), np.nan) for _ in range(2))
    for where, values in seen.items():
        latency[where], speeds[where] = np.median(np.array(values), axis=0)
    # Pings measure round trips, so one direction stands for both if the other is missing.
    latency, speeds = (np.where(np.isnan(m), m.T, m) for m in (latency, speeds))
    latency = square(latency, names, source)
    if rate is None:
        return grouped(names, latency, None, source)
    return grouped(
        names, latency, 1 / np.where(square(speeds, names, source) > 0, speeds, np.inf), source
    )


def _is_matrix(text: str, meaning: Any) -> bool:
    if meaning is not None:
        return False
    rows = _cells(text)
    last = rows[-1] if rows else []
    return len(last) > 1 and all(
        re.match(r"^[\d.+-]|^$|^nan$|^inf$|^-$", cell) for cell in last[1:]
    )


def _matrix(text: str, _meaning: Any, source: str) -> Costs:
    """Read rows of latencies, with or without the hosts' names above and to the left."""
    rows = _cells(text)
    named = not _numeric(rows[0][-1])
    heads = [cell for cell in rows[0] if cell] if named else [str(i) for i in range(len(rows[0]))]
    body = rows[1:] if named else rows
    left = named and any(not _numeric(row[0]) for row in body)
    if left and len(heads) == len(body) + 1:
        heads = heads[1:]  # a word in the corner
    names = [row[0] for row in body] if left else heads
    if left and names != heads[: len(names)] and set(names) == set(heads):
        raise ValueError(f"{source} names the hosts of its rows and columns in different orders")
    cells = [row[1:] if left else row for row in body]
    widths = sorted({len(row) for row in cells})
    if widths != [len(cells)] or len(heads) != len(cells):
        wide = " or ".join(map(str, widths))
        raise ValueError(
            f"{source} has {len(cells)} rows of {wide} values; the matrix must be square, a row and "
            "a column for every host"
        )
    values = [
        [_seconds(c, 1.0) if c not in ("", "-", "nan") else np.nan for c in row] for row in cells
    ]
    return grouped(names, square(np.array(values), names, source), None, source)


def _numeric(cell: str) -> bool:
    return cell in {"", "-"} or re.match(r"^[+-]?(\d|\.\d|nan|inf)", cell) is not None


READERS: tuple[Reader, ...] = (
    Reader("tacos probe --json", _keyed("pairs"), _probe),
    Reader("EC2 instance topology", _keyed("Instances"), trees.ec2),
    Reader("kubectl get nodes", _keyed("items"), trees.kubernetes),
    Reader(
        "topograph",
        lambda _t, m: (
            isinstance(m, dict)
            and "switches" in m
            and "links" not in m
            and "npus" not in m
            and "nodes" in m
        ),
        trees.topograph,
    ),
    Reader(
        "Slurm topology.yaml",
        lambda _t, m: (
            isinstance(m, list) and bool(m) and isinstance(m[0], dict) and "topology" in m[0]
        ),
        trees.slurm_yaml,
    ),
    Reader(
        "Slurm topology.conf",
        lambda text, m: m is None and trees.SLURM_LINE.search(text) is not None,
        trees.slurm_conf,
    ),
    Reader("table of pairs", _is_table, _table),
    Reader("matrix", _is_matrix, _matrix),
)
"""The kinds of files, in the order in which they are tried."""


def hosts_in(path: str | os.PathLike[str]) -> list[str]:
    """Return the hosts of a hostfile in order: the first word of every line, without duplicates.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "hosts"
    ...     _ = file.write_text("b slots=8  # the second rack\\nb\\na:8\\n")
    ...     hosts_in(file)
    ['b', 'a']
    """
    from tacos.formats.source import about, text_of

    with about(str(path)):
        lines = [line.split("#")[0].split() for line in text_of(Path(path)).splitlines()]
    hosts = list(dict.fromkeys(words[0].split(":")[0] for words in lines if words))
    if not hosts:
        raise FormatError(f"{path} names no host")
    return hosts
