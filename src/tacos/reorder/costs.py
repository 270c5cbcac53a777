"""Costs of messages between hosts, from matrices, measurements, topologies and files of schedulers.

:func:`costs_of` takes what a user has and returns :class:`Costs`. A file format is one entry of :data:`READERS`.
Files of schedulers and clouds name switches but no speeds: there, every switch that a message passes counts 1 us.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacos import units
from tacos._core import Topology
from tacos.errors import FormatError
from tacos.schedule import routes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = ["READERS", "Costs", "Reader", "costs_of", "expanded", "hosts_in"]

_SWITCH_S = 1e-6
"""What passing a switch counts where a file names switches only (chosen; orders depend on the ratios)."""
_SHOWN = 5
_RANK = re.compile(r"(.+):(\d+)")


@dataclass(frozen=True)
class Costs:
    """What messages cost between hosts.

    Attributes:
        names: The hosts.
        ranks: The ranks (or NPUs) of each host, in their order.
        latency_s: Seconds of an empty message, from host to host.
        byte_s: Seconds per byte, or None where only latencies are known.
        network: The topology whose links the messages share, if known.
        npus: The NPU that stands for each host there.
        source: Where the costs come from, for messages.
    """

    names: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    latency_s: NDArray[np.float64]
    byte_s: NDArray[np.float64] | None = None
    network: Topology | None = None
    npus: tuple[int, ...] = ()
    source: str = "the matrix"

    def only(self, hosts: Sequence[str], source: str = "hosts") -> Costs:
        """The costs between some of the hosts, in the order given.

        >>> three = costs_of(np.array([[0, 1, 2], [1, 0, 3], [2, 3, 0]]))
        >>> three.only(["2", "0"]).latency_s.tolist()
        [[0.0, 2.0], [2.0, 0.0]]
        """
        at = {name: i for i, name in enumerate(self.names)}
        unknown = [name for name in hosts if name not in at]
        if unknown:
            raise ValueError(f"{source} names {_list(unknown)}, which {self.source} does not have")
        twice = [name for name, count in Counter(hosts).items() if count > 1]
        if twice:
            raise ValueError(f"{source} names {_list(twice)} more than once")
        chosen = [at[name] for name in hosts]
        if len(chosen) < 2:
            raise ValueError(f"{source} names {len(chosen)} hosts; an order needs at least two")
        both = np.ix_(chosen, chosen)
        return replace(
            self,
            names=tuple(hosts),
            ranks=tuple(self.ranks[i] for i in chosen),
            latency_s=self.latency_s[both],
            byte_s=None if self.byte_s is None else self.byte_s[both],
            npus=tuple(self.npus[i] for i in chosen) if self.npus else (),
        )


def costs_of(given: object, bandwidth: object = None, npus_per_host: int | None = None) -> Costs:
    """The costs that a matrix, a topology or a file says.

    Args:
        given: A square matrix of latencies in seconds (or any costs), a topology, a path or a spec.
        bandwidth: A matrix of bandwidths in B/s, beside a matrix of latencies.
        npus_per_host: How many NPUs of a topology form a host, if their names do not tell.

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
        return _of_topology(known.network, str(given), npus_per_host)
    if isinstance(given, Topology):
        return _of_topology(given, "the topology", npus_per_host)
    if npus_per_host is not None:
        raise ValueError(f"npus_per_host is {npus_per_host}, but a matrix has a row for each host")
    latency = _square(np.asarray(given, np.float64), None, "the matrix")
    byte_s = None
    if bandwidth is not None:
        rate = _square(np.asarray(bandwidth, np.float64), None, "bandwidth")
        if rate.shape != latency.shape:
            raise ValueError(
                f"bandwidth is of {len(rate)} hosts, but the latencies are of {len(latency)}"
            )
        _refuse(rate <= 0, [str(i) for i in range(len(rate))], "bandwidth", "is not positive for")
        byte_s = 1 / np.where(np.eye(len(rate), dtype=bool), np.inf, rate)
    return _grouped([str(i) for i in range(len(latency))], latency, byte_s, "the matrix")


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _refuse(wrong: NDArray[np.bool_], names: Sequence[str], what: str, how: str) -> None:
    """Name the pairs of hosts that are wrong, if there are some."""
    src, dst = np.nonzero(wrong & ~np.eye(len(names), dtype=bool))
    if len(src):
        pairs = [
            f"{names[i]} to {names[j]}" for i, j in zip(src.tolist(), dst.tolist(), strict=True)
        ]
        raise ValueError(f"{what} {how} {_list(pairs)}")


def _square(matrix: NDArray[np.float64], names: Sequence[str] | None, what: str) -> Any:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        shape = " x ".join(map(str, matrix.shape)) or "a single number"
        raise ValueError(f"{what} is {shape}; it must be square, a row and a column for every host")
    if len(matrix) < 2:
        raise ValueError(f"{what} has {len(matrix)} hosts; an order needs at least two")
    names = names or [str(i) for i in range(len(matrix))]
    _refuse(~np.isfinite(matrix), names, what, "has no value for")
    _refuse(matrix < 0, names, what, "is negative for")
    return np.where(np.eye(len(matrix), dtype=bool), 0.0, matrix)


def _grouped(
    names: Sequence[str],
    latency: NDArray[np.float64],
    byte_s: NDArray[np.float64] | None,
    source: str,
) -> Costs:
    """Costs between ranks as costs between their hosts: the median over the pairs of ranks."""
    matches = [_RANK.fullmatch(name) for name in names]
    if not all(matches):
        alone = tuple((i,) for i in range(len(names)))
        return Costs(tuple(names), alone, latency, byte_s, source=source)
    members: dict[str, list[int]] = {}
    for rank, match in enumerate(matches):
        assert match is not None
        members.setdefault(match[1], []).append(rank)
    hosts = list(members)
    if len(hosts) < 2:
        raise ValueError(f"{source} has one host only, {hosts[0]}; an order needs at least two")

    def between(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        result = np.zeros((len(hosts), len(hosts)))
        for i, a in enumerate(hosts):
            for j, b in enumerate(hosts):
                if i != j:
                    result[i, j] = np.median(matrix[np.ix_(members[a], members[b])])
        return result

    ranks = tuple(tuple(some) for some in members.values())
    return Costs(
        tuple(hosts),
        ranks,
        between(latency),
        None if byte_s is None else between(byte_s),
        source=source,
    )


def _of_topology(network: Topology, source: str, npus_per_host: int | None = None) -> Costs:
    """Routes between the first NPUs of all hosts; names host:number tell which NPUs are of one host."""
    names = list(network.names[: network.npus]) or [str(i) for i in range(network.npus)]
    if npus_per_host is not None:
        if npus_per_host < 1 or network.npus % npus_per_host:
            raise ValueError(
                f"npus_per_host is {npus_per_host}, but {source} has {network.npus} NPUs"
            )
        names = [f"host{i // npus_per_host}:{i % npus_per_host}" for i in range(network.npus)]
    if network.npus < 2:
        raise ValueError(f"{source} has {network.npus} NPUs; an order needs at least two")
    zero = np.zeros((network.npus, network.npus))
    hosts = _grouped(names, zero, None, source)
    npus = np.array([some[0] for some in hosts.ranks], np.int32)
    n = len(npus)
    i, j = np.nonzero(~np.eye(n, dtype=bool))
    table = routes(network, pairs=(npus[i], npus[j]))
    first = table.link_begin[:-1]
    latency, byte_s = np.zeros((n, n)), np.zeros((n, n))
    latency[i, j] = np.add.reduceat(network.link_latency_ps[table.links], first) / 1e12
    byte_s[i, j] = np.maximum.reduceat(
        1 / network.link_bandwidth_Bps[table.links].astype(float), first
    )
    return Costs(hosts.names, hosts.ranks, latency, byte_s, network, tuple(npus.tolist()), source)


# --- files ----------------------------------------------------------------------------------------


class Reader(NamedTuple):
    """A kind of file: how its text is recognized and read."""

    name: str
    fits: Callable[[str, Any], bool]
    """Of the text, and of what it means as JSON or YAML (None if nothing)."""
    read: Callable[[str, Any, str], Costs]
    """The costs in a text, what it means, and the file's name for messages."""


def read(path: str | os.PathLike[str]) -> Costs:
    """The costs in a file: a matrix, a table of pairs, a probe's output, a scheduler's or cloud's topology.

    Everything else is read as a topology file or spec.
    """
    from tacos import formats
    from tacos.formats.source import text_of

    place = Path(path)
    if not place.is_file():
        return _of_topology(formats.network(str(path)), str(path))
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
    return _of_topology(formats.network(str(path)), str(path))


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
    latency = _square(latency, names, source)
    return _grouped(names, latency, _square(byte_s, names, source), source)


# A tree: of every host the switches above it, from the top down.
Paths = dict[str, tuple[str, ...]]


def _of_paths(paths: Mapping[str, Sequence[str]], source: str) -> Costs:
    """Every switch between two hosts counts; a common one counts once."""
    hosts = list(paths)
    if len(hosts) < 2:
        raise ValueError(f"{source} has {len(hosts)} hosts; an order needs at least two")
    latency = np.zeros((len(hosts), len(hosts)))
    for i, a in enumerate(hosts):
        for j, b in enumerate(hosts):
            common = 0
            for one, other in zip(paths[a], paths[b], strict=False):
                if one != other:
                    break
                common += 1
            if i != j:
                passed = len(paths[a]) + len(paths[b]) - 2 * common + 1
                latency[i, j] = passed * _SWITCH_S
    return _grouped(hosts, latency, None, source)


def _climb(parents: Mapping[str, str], leaf: str, source: str) -> tuple[str, ...]:
    path = [leaf]
    while path[-1] in parents:
        if len(path) > len(parents) + 1:
            raise ValueError(f"{source}: switch {leaf} is above itself")
        path.append(parents[path[-1]])
    return tuple(reversed(path))


def _tree(
    members: Mapping[str, Sequence[str]], below: Mapping[str, Sequence[str]], source: str
) -> Paths:
    """Paths from the hosts under each switch and the switches under each switch."""
    parents = {one: switch for switch, some in below.items() for one in some}
    paths: Paths = {}
    for switch, hosts in members.items():
        path = _climb(parents, switch, source)
        for host in hosts:
            # A host may be listed under several levels: the lowest counts.
            if len(path) > len(paths.get(host, ())):
                paths[host] = path
    return paths


def _ec2(_text: str, meaning: Any, source: str) -> Costs:
    return _of_paths(
        {
            str(one["InstanceId"]): [str(n) for n in one["NetworkNodes"]]
            for one in meaning["Instances"]
        },
        source,
    )


_TIERS = (
    re.compile(r"fabric\.topograph\.run/tier-(\d+)"),  # tier 1 is nearest to the node
    re.compile(r"topology\.k8s\.aws/network-node-layer-(\d+)"),  # layer 1 is the top
)
_NAMED_TIERS = ("core", "spine", "leaf")


def _kubernetes(_text: str, meaning: Any, source: str) -> Costs:
    """`kubectl get nodes -o json` of a cluster that topograph or EKS has labelled."""
    paths: Paths = {}
    for item in meaning["items"]:
        labels = item["metadata"].get("labels", {})
        found: list[str] = []
        for order, pattern in zip((-1, 1), _TIERS, strict=True):
            tiers = sorted(
                (order * int(m[1]), str(value))
                for key, value in labels.items()
                if (m := pattern.fullmatch(key))
            )
            found = found or [value for _, value in tiers]
        prefix = "network.topology.nvidia.com/"
        found = found or [
            str(labels[prefix + tier]) for tier in _NAMED_TIERS if prefix + tier in labels
        ]
        name = str(item["metadata"]["name"])
        if not found:
            raise ValueError(f"{source}: node {name} has no label that says where it is")
        paths[name] = tuple(found)
    return _of_paths(paths, source)


def _topograph(_text: str, meaning: Any, source: str) -> Costs:
    """topograph's model of a cluster: switches with switches or nodes under them."""
    switches = meaning["switches"]
    rows = switches.items() if isinstance(switches, dict) else ((s["name"], s) for s in switches)
    members: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for name, row in rows:
        members[str(name)] = [h for one in row.get("nodes") or [] for h in expanded(str(one))]
        below[str(name)] = [s for one in row.get("switches") or [] for s in expanded(str(one))]
    return _of_paths(_tree(members, below, source), source)


def _slurm_yaml(_text: str, meaning: Any, source: str) -> Costs:
    """The default topology of a topology.yaml, or the first one that has switches or blocks."""
    fitting = [one for one in meaning if "tree" in one or "block" in one]
    if not fitting:
        raise ValueError(f"{source} has no tree and no block topology")
    chosen = next((one for one in fitting if one.get("cluster_default")), fitting[0])
    members: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for row in chosen.get("tree", {}).get("switches", []):
        members[row["switch"]] = expanded(row.get("nodes") or "")
        below[row["switch"]] = expanded(row.get("children") or "")
    for row in chosen.get("block", {}).get("blocks", []):
        members[row["block"]] = expanded(row.get("nodes") or "")
    return _of_paths(_tree(members, below, source), source)


_SLURM_LINE = re.compile(
    r"^\s*(SwitchName|BlockName)\s*=\s*(\S+)(.*)$", re.IGNORECASE | re.MULTILINE
)
_SLURM_FIELD = re.compile(r"(\w+)\s*=\s*(\S+)")


def _slurm_conf(text: str, _meaning: Any, source: str) -> Costs:
    """topology.conf: trees of switches, or blocks."""
    members: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    plain = re.sub(r"#.*", "", text.replace("\\\n", " "))
    for match in _SLURM_LINE.finditer(plain):
        fields = {name.lower(): value for name, value in _SLURM_FIELD.findall(match[3])}
        members[match[2]] = expanded(fields.get("nodes", ""))
        below[match[2]] = expanded(fields.get("switches", ""))
    return _of_paths(_tree(members, below, source), source)


def expanded(text: str) -> list[str]:
    """The names that a host list of Slurm stands for.

    >>> expanded("node[1-2,08-10],login")
    ['node1', 'node2', 'node08', 'node09', 'node10', 'login']
    >>> expanded("r[0-1]n[0-1]")
    ['r0n0', 'r0n1', 'r1n0', 'r1n1']
    """
    return [name for part in _split(text) for name in _names(part)]


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are not inside brackets."""
    depth, part = 0, ""
    for letter in text.strip():
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            yield part
            part = ""
        else:
            part += letter
    if depth:
        raise ValueError(f"the host list {text!r} has a bracket without its other half")
    if part:
        yield part


def _names(part: str) -> list[str]:
    match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
    if match is None:
        return [part]
    head, ranges, tail = match.groups()
    numbers = []
    for one in ranges.split(","):
        low, _, high = one.partition("-")
        if not low.isdecimal() or (high and not high.isdecimal()):
            raise ValueError(f"the host list {part!r} has the range {one!r}; use numbers")
        numbers += [str(k).zfill(len(low)) for k in range(int(low), int(high or low) + 1)]
    return [f"{head}{number}{rest}" for number in numbers for rest in _names(tail)]


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
    """Columns of source, destination, latency with its factor, and bandwidth, as a heading says."""
    names = [cell.lower() for cell in row]
    src = next((i for i, name in enumerate(names) if name in _FROM), None)
    dst = next((i for i, name in enumerate(names) if name in _TO), None)
    time = next((i for i, name in enumerate(names) if name in _TIMES), None)
    rate = next((i for i, name in enumerate(names) if name in ("bandwidth", "bandwidth_bps")), None)
    if src is None or dst is None or time is None:
        return None
    return src, dst, time, _TIMES[names[time]], rate


def _is_ping(rows: Sequence[Sequence[str]]) -> bool:
    """Three columns: from, to, and the milliseconds of a round trip."""

    def number(cell: str) -> bool:
        return re.fullmatch(r"[\d.]+(e[+-]?\d+)?", cell) is not None

    return all(len(row) == 3 and number(row[2]) for row in rows) and not all(
        number(cell) for row in rows for cell in row
    )


def _table(text: str, _meaning: Any, source: str) -> Costs:
    """A line for every pair, in any order; what pairs occur several times with counts with the median."""
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
    # Pings measure round trips: one direction stands for both where the other is missing.
    latency, speeds = (np.where(np.isnan(m), m.T, m) for m in (latency, speeds))
    latency = _square(latency, names, source)
    if rate is None:
        return _grouped(names, latency, None, source)
    return _grouped(
        names, latency, 1 / np.where(_square(speeds, names, source) > 0, speeds, np.inf), source
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
    """Rows of latencies, with the hosts' names above and to the left, or without."""
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
    return _grouped(names, _square(np.array(values), names, source), None, source)


def _numeric(cell: str) -> bool:
    return cell in {"", "-"} or re.match(r"^[+-]?(\d|\.\d|nan|inf)", cell) is not None


READERS: tuple[Reader, ...] = (
    Reader("tacos probe --json", _keyed("pairs"), _probe),
    Reader("EC2 instance topology", _keyed("Instances"), _ec2),
    Reader("kubectl get nodes", _keyed("items"), _kubernetes),
    Reader(
        "topograph",
        lambda _t, m: (
            isinstance(m, dict)
            and "switches" in m
            and "links" not in m
            and "npus" not in m
            and "nodes" in m
        ),
        _topograph,
    ),
    Reader(
        "Slurm topology.yaml",
        lambda _t, m: (
            isinstance(m, list) and bool(m) and isinstance(m[0], dict) and "topology" in m[0]
        ),
        _slurm_yaml,
    ),
    Reader(
        "Slurm topology.conf",
        lambda text, m: m is None and _SLURM_LINE.search(text) is not None,
        _slurm_conf,
    ),
    Reader("table of pairs", _is_table, _table),
    Reader("matrix", _is_matrix, _matrix),
)
"""The kinds of files, in the order in which they are tried."""


def hosts_in(path: str | os.PathLike[str]) -> list[str]:
    """The hosts of a hostfile in their order: the first word of every line, each host once.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "hosts"
    ...     _ = file.write_text("b slots=8  # the second rack\\nb\\na:8\\n")
    ...     hosts_in(file)
    ['b', 'a']
    """
    from tacos.formats.source import text_of

    lines = [line.split("#")[0].split() for line in text_of(Path(path)).splitlines()]
    hosts = list(dict.fromkeys(words[0].split(":")[0] for words in lines if words))
    if not hosts:
        raise FormatError(f"{path} names no host")
    return hosts
