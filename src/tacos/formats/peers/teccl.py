"""Results of TE-CCL: flows of chunks over links, epoch by epoch, as sentences in JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from tacos.formats.peers.results import Result, reading
from tacos.formats.source import bytes_of

if TYPE_CHECKING:
    from tacos._core import Schedule, Topology
    from tacos._support.files import Location
    from tacos.units import Quantity

__all__ = ["read"]

_FLOW = re.compile(
    r"Chunk (\d{1,9}) from (\d{1,9}) traveled over (\d{1,9})->(\d{1,9})(?: with volume ([\d.e+-]{1,30}))? "
    r"in epoch (\d{1,9})(?: via switches ((?:\d{1,9}[ ,]*)+))?",
    re.ASCII,
)
_DEMAND = re.compile(
    r"Demand at (\d{1,9}) for chunk (\d{1,9}) from (\d{1,9}) met by epoch \d{1,9}", re.ASCII
)


def read(
    path: Location, *, topology: Topology | None = None, size: Quantity | None = None
) -> Schedule:
    """Read a result of TE-CCL for an all-gather or an all-to-all.

    Its node numbers include switches. GPUs are renumbered in the same order, and ``provenance["gpus"]`` has their
    numbers in the file.

    Args:
        path: The file.
        topology: The network; by default one made of the links that the flows use.
        size: Size of the collective; by default 1 MiB per chunk.

    Raises:
        FormatError: The file is not such a result, or splits chunks; the message names the entry.
        OSError: The file cannot be opened.
    """
    with reading(path):
        content = bytes_of(path)
        try:
            found = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"not JSON: {error}") from None
        flows, demands = _field(found, "Flows", list), _field(found, "Chunk paths", dict)
        result, gpus = _result(flows, demands)
        about: dict[str, Any] = {"gpus": gpus}
        for key, name in (("4-Collective_Finish_Time", "claimed_s"), ("Solver_Time", "solver_s")):
            if isinstance(found.get(key), int | float):
                about[name] = found[key]
        return result.schedule(topology, size, engine="te-ccl", **about)


def _field(found: Any, name: str, kind: type) -> Any:
    """Return a field whose name begins with a number that differs between versions."""
    for key, value in found.items() if isinstance(found, dict) else ():
        if re.fullmatch(rf"\d-{name}", key):
            if not isinstance(value, kind):
                raise ValueError(f"the field {key} must be a {kind.__name__}")
            return value
    raise ValueError(f'not a result of TE-CCL: there is no field "{name}"')


def _result(flows: list[Any], demands: dict[Any, Any]) -> tuple[Result, list[int]]:
    rows = []
    switches: set[int] = set()
    nodes: set[int] = set()
    for i, text in enumerate(flows):
        match = _FLOW.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"flow {i}: {str(text)[:80]!r} is not a sentence of TE-CCL")
        chunk, origin, src, dst, volume, epoch, via = match.groups()
        if volume is not None and volume != "1.0":
            raise ValueError(f"flow {i}: the volume is {volume}, but a chunk moves whole")
        through = tuple(int(node) for node in re.findall(r"\d+", via or ""))
        switches |= set(through)
        nodes |= {int(src), int(dst), int(origin)}
        rows.append((int(epoch), (int(origin), int(chunk)), int(src), int(dst), through))
    wants: dict[tuple[int, int], set[int]] = {row[1]: set() for row in rows}
    for key in demands:
        match = _DEMAND.fullmatch(key)
        if match is None:
            raise ValueError(f"chunk paths: {key[:80]!r} is not a sentence of TE-CCL")
        dst, chunk, origin = map(int, match.groups())
        wants.setdefault((origin, chunk), set()).add(dst)
        nodes |= {dst, origin}
    # A node can be both a GPU and a switch in TE-CCL's model; one that sends or needs a chunk is a GPU.
    gpus = sorted(nodes)
    number = {node: i for i, node in enumerate(gpus)}
    switch = {node: i for i, node in enumerate(sorted(switches))}
    chunks = sorted(wants)
    at = {chunk: i for i, chunk in enumerate(chunks)}
    result = Result(
        len(gpus),
        [{number[origin]} for origin, _ in chunks],
        [{number[dst] for dst in wants[chunk]} or {number[chunk[0]]} for chunk in chunks],
    )
    for i, (epoch, chunk, src, dst, through) in enumerate(rows):
        if src == dst:
            raise ValueError(f"flow {i}: from {src} to itself")
        via = tuple(switch[node] for node in through)
        result.hops.append((epoch, at[chunk], number[src], number[dst], via))
    return result, gpus
