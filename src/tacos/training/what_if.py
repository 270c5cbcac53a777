"""What-if questions: the same step on a changed network or device.

A change is ``WHAT=FACTORx``: ``nic=2x`` doubles the bandwidth between boxes, ``box=2x`` within boxes, ``links=2x``
everywhere; ``latency=0.5x`` halves latencies; ``compute=2x`` and ``memory=2x`` change the device's peak and its memory
bandwidth; ``a-b=0.1x`` changes the link between two named nodes, both ways. ``device=h200`` takes another device.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tacos.errors import SpecError
from tacos.nodes import Network, Nodes, topology_of
from tacos.simulate.faults import Fault
from tacos.synth.baselines.nccl.channels import network_of
from tacos.topology.edits import chosen_links, reweighted
from tacos.topology.faults import broken, parts_of
from tacos.topology.links import raise_if_disconnected
from tacos.training.devices import device as device_named
from tacos.units import time_ps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tacos._core import Topology
    from tacos.training.devices import Device

__all__ = ["changed", "disturbed"]

_FACTOR = re.compile(r"(\d+(?:\.\d+)?|\.\d+)x?")
_EXAMPLES = "nic=2x, box=2x, links=2x, latency=0.5x, compute=2x, memory=2x, a-b=0.1x or device=h200"


def changed(topology: Network, device: str | Device, changes: str) -> tuple[Topology, Device]:
    """Return the network and the device with changes that are separated by commas.

    Raises:
        SpecError: A change is malformed, or changes nothing on this network.

    >>> import tacos
    >>> faster, _ = changed(tacos.topology.dgx_h100(2), "h100", "nic=2x")
    >>> from tacos import training
    >>> job = training.model("llama3-8b"), training.Parallelism(tp=2, zero=1, batch=16)
    >>> training.step(*job, faster).exposed_s < training.step(*job, tacos.topology.dgx_h100(2)).exposed_s
    True
    """
    topology = topology_of(topology)
    table = device_named(device)
    for change in filter(None, (one.strip() for one in changes.split(","))):
        what, sign, value = (part.strip() for part in change.partition("="))
        if not sign or not what or not value:
            raise SpecError(f"a change is {_EXAMPLES}; got {change!r}")
        if what == "device":
            table = device_named(value)
            continue
        factor = _factor(change, value)
        if what == "compute":
            peak = {dtype: flops * factor for dtype, flops in table.peak.items()}
            table = replace(table, peak=peak)
        elif what == "memory":
            table = replace(table, memory_Bps=table.memory_Bps * factor)
        elif what == "latency":
            slower = np.round(topology.link_latency_ps * factor).astype(np.int64)
            topology = reweighted(
                topology, bandwidth_Bps=topology.link_bandwidth_Bps, latency_ps=slower
            )
        else:
            topology = _scaled(topology, what, change, factor)
    return topology, table


def disturbed(topology: Topology, faults: Iterable[Fault | str]) -> Topology:
    """Return the network with slow and dead links, which are its faults, for the whole step.

    Args:
        topology: The healthy network.
        faults: Objects of :class:`~tacos.simulate.faults.Fault`, or text: ``"link=0-1,slowdown=4,both=yes"``, ``"npu=3,slowdown=2"``
            (all links of an NPU), and ``"nic=3"``, which is short for the links of NPU 3 to what is outside of its box. Without a slowdown a
            link is dead, and traffic takes other paths.

    Raises:
        ValueError: A fault begins or ends during the step, names an unknown node or link, or disconnects the network.

    >>> import tacos
    >>> disturbed(tacos.topology.dgx_h100(2), ["nic=3"])
    <tacos.Topology dgx_h100: 16 NPUs, 3 switches, 62 links>
    >>> slow = disturbed(tacos.topology.ring(4, bandwidth="50GB/s"), ["link=0-1,slowdown=4"])
    >>> sorted(set(slow.link_bandwidth_Bps.tolist()))
    [12500000000, 50000000000]
    """
    nodes = Nodes(topology)
    speed = topology.link_bandwidth_Bps.astype(float)
    for given in faults:
        text = given if isinstance(given, str) else ""
        if isinstance(given, str) and not re.search("(^|,)(link|npu|nic)=", given):
            raise ValueError(
                f"a fault of a training step needs link=, npu= or nic=, as in nic=3 or link=0-1,slowdown=4; got {given!r}"
            )
        if text.startswith("nic="):
            where, _, rest = text[4:].partition(",")
            npu = nodes.npu(int(where) if where.isdecimal() else where)
            links = _nic(topology, npu)
            fault = Fault.parse(f"npu={npu}" + (f",{rest}" if rest else ""))
        else:
            fault = Fault.parse(text) if text else given  # type: ignore[assignment]
            if fault.npu is None:
                links = nodes.links(fault.link, both=fault.both)
            else:
                npu = nodes.npu(fault.npu)
                links = np.flatnonzero((topology.link_src == npu) | (topology.link_dst == npu))
        if fault.end is not None or time_ps(fault.begin) > 0:
            raise ValueError(
                f"a fault of a training step lasts for the whole step: leave out begin and end; got {given!r}"
            )
        speed[links] /= fault.slowdown
    alive = speed > 0
    whole, node, link = parts_of(topology)
    return raise_if_disconnected(
        broken(
            whole,
            node,
            link[alive],
            bandwidth_Bps=np.maximum(speed[alive], 1).astype(np.int64),
            latency_ps=topology.link_latency_ps[alive],
        )
    )


def _nic(topology: Topology, npu: int) -> NDArray[np.int64]:
    """Return the links of an NPU that leave its box."""
    label = network_of(topology).label
    src, dst = topology.link_src, topology.link_dst
    found = np.flatnonzero(((src == npu) | (dst == npu)) & (label[src] != label[dst]))
    if not len(found):
        raise ValueError(
            f"{topology.node_name(npu)} has no link of its own that leaves its box; name the link"
        )
    return found


def _factor(change: str, value: str) -> float:
    match = _FACTOR.fullmatch(value)
    if match is None or float(match[1]) <= 0:
        raise SpecError(f"the factor of a change is a positive number such as 2x; got {change!r}")
    return float(match[1])


def _scaled(topology: Topology, what: str, change: str, factor: float) -> Topology:
    chosen = _links(topology, what, change)
    if not chosen.any():
        where = "between boxes" if what == "nic" else "within boxes"
        raise SpecError(f"{change!r} changes nothing: the network has no links {where}")
    bandwidth = topology.link_bandwidth_Bps.copy()
    bandwidth[chosen] = np.maximum(np.round(bandwidth[chosen] * factor), 1)
    return reweighted(topology, bandwidth_Bps=bandwidth, latency_ps=topology.link_latency_ps)


def _links(topology: Topology, what: str, change: str) -> NDArray[np.bool_]:
    if what == "links":
        return np.ones(topology.links, bool)
    if what in ("nic", "box"):
        label = network_of(topology).label
        inside = label[topology.link_src] == label[topology.link_dst]
        return np.asarray(inside if what == "box" else ~inside)
    if "-" not in what:
        raise SpecError(f"a change is {_EXAMPLES}; got {change!r}")
    chosen: NDArray[np.bool_] = chosen_links(topology, [what], both=True)
    return chosen
