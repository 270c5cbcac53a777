"""What limits a collective, in words: the cut, the path or the links, and whether the bound is attainable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacos import units

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tacos._core import BoundReport, Collective, Topology
    from tacos.bound.pairs import Pairs

_LATENT = 1.05
"""Latency counts as part of the limit if the bound exceeds the bandwidth time by this factor (chosen)."""
_UNITS = {"nvl72": "rack", "fat_tree": "leaf", "dragonfly": "group", "rail": "box"} | dict.fromkeys(
    (
        "dgx1",
        "dgx2",
        "dgx_a100",
        "dgx_b200",
        "dgx_h100",
        "mi250",
        "mi300x",
        "mi355x",
        "ndv2",
        "trn2",
    ),
    "box",
)
"""Name of the innermost part of a network, by its family."""


def reason(
    topology: Topology,
    report: BoundReport,
    pairs: Pairs,
    time_ps: int,
    doubts: list[str],
    collective: Collective,
) -> str:
    """Return what limits the time, and why it may not be attainable."""
    if time_ps == 0:
        return "nothing has to move"
    binds = pairs.why
    if report.bandwidth_s >= pairs.time_s:
        binds = _bottleneck(topology, report, collective)
    if report.latency_ps == time_ps:
        far = f"{topology.node_name(report.src)} to {topology.node_name(report.dst)}"
        rest = f", longer than the bandwidth limit ({binds})" if binds else ""
        return f"a chunk takes {units.format_time(time_ps / 1e12)} from {far}{rest}"
    bandwidth_s = max(report.bandwidth_s, pairs.time_s)
    if report.timed_ps == time_ps and time_ps > _LATENT * bandwidth_s * 1e12:
        rest = f"; bandwidth alone takes {units.format_time(bandwidth_s)} ({binds})"
        return _in_time(topology, report) + (rest if binds else "")
    if report.in_chunks and time_ps == report.time_ps:
        binds += ", in whole chunks"
    if not report.all_distances:
        doubts = [*doubts, "only some paths were measured"]
    return f"{binds}; " + (
        f"perhaps not attainable: {', '.join(doubts)}" if doubts else "attainable"
    )


def _bottleneck(topology: Topology, report: BoundReport, collective: Collective) -> str:
    cut = report.bottleneck
    if not cut.nodes:
        return ""
    name, links = _named(topology, cut.nodes)
    over = _over(cut.links, links, cut.bandwidth_Bps)
    does = "leave" if cut.leaving else "enter"
    if cut.sets == 1:
        return f"{units.format_size(cut.bytes)} must {does} {name} over {over}"
    times = 2 * (cut.sets - 1)
    sort = "NPUs" if len(cut.nodes) == 1 else _PLURALS.get(name.split()[0], "sets of NPUs")
    which = f"the {cut.sets} {sort} ({name}, …)"
    nodes = np.bincount([index for index in cut.set_of if index >= 0], minlength=1)  # of each set
    if cut.set_of and nodes.max() > 1 and (np.sort(nodes)[:-1] == 1).all():
        others = cut.sets - 2  # without this member and the rest
        more = f" and {others} more member{'s'[: others - 1]}, each alone," if others else ""
        which = f"{name}{more} and the rest of the network"
    if len(collective.parts) > 1:  # each byte passes the sets of its own group
        return f"{units.format_size(cut.bytes)} must {does} {which} in all, over {over}"
    verb = "send" if cut.leaving else "receive"
    return f"{which} together must {verb} every byte {times} times, over {over}"


def _over(count: int, links: str, bandwidth_Bps: float) -> str:
    together = units.format_bandwidth(bandwidth_Bps)
    return (
        f"{count} {links}s with {together} in total" if count > 1 else f"one {links} of {together}"
    )


def _in_time(topology: Topology, report: BoundReport) -> str:
    """Describe the limit if latency and bandwidth bind together."""
    inside = np.zeros(topology.nodes, bool)
    inside[report.timed_nodes] = True
    there, back = (topology.link_src, topology.link_dst)[:: 1 if report.timed_leaving else -1]
    passed = inside[there] & ~inside[back]
    name, links = _named(topology, report.timed_nodes)
    does = "leave" if report.timed_leaving else "enter"
    over = _over(int(passed.sum()), links, float(topology.link_bandwidth_Bps[passed].sum()))
    return f"all data that {does} {name} cross {over}, plus the latency before and after them"


_PLURALS = {"box": "boxes", "rack": "racks", "leaf": "leaves", "group": "groups"}


def _named(topology: Topology, nodes: Sequence[int]) -> tuple[str, str]:
    """Return names of a set of nodes and of the links around it."""
    npus = np.array([node for node in nodes if node < topology.npus])
    if len(npus) <= 1:
        return topology.node_name(int(npus[0]) if len(npus) else nodes[0]), "link"
    first, count = int(npus[0]), len(npus)
    if npus[-1] == first + count - 1:
        unit = _UNITS.get(topology.family)
        if unit and first % count == 0 and _is_unit(topology, count):
            nic = unit in ("box", "rack") and topology.family != "rail"
            return f"{unit} {first // count}", "NIC" if nic else "link"
        return f"NPUs {first} to {first + count - 1}", "link"
    return _slab(topology, npus) or _listed(topology, npus.tolist()), "link"


def _is_unit(topology: Topology, count: int) -> bool:
    """Return whether this many NPUs are one box: all but the outermost dimension, or one leaf's NPUs."""
    sizes = [size for _, size in topology.dims] or [0]
    inner = sizes[0] if topology.family == "fat_tree" else int(np.prod(sizes[:-1]))
    return count == inner < topology.npus


def _slab(topology: Topology, npus: NDArray[np.int64]) -> str:
    """Describe NPUs that form a range in one dimension and span all others; return an empty string for other sets."""
    step, ranges, count = 1, [], 1
    for d, (_, size) in enumerate(topology.dims):
        at = np.unique(npus // step % size)
        step, count = step * size, count * len(at)
        if len(at) < size and at[-1] - at[0] == len(at) - 1:
            ranges.append(f"{at[0]} to {at[-1]} in dimension {d}")
    return f"the NPUs at {ranges[0]}" if len(ranges) == 1 and count == len(npus) else ""


def _listed(topology: Topology, npus: list[int]) -> str:
    some = ", ".join(topology.node_name(npu) for npu in npus[:3])
    return some + (f" and {len(npus) - 3} more NPUs" if len(npus) > 3 else "")
