"""Topologies, collectives, schedules, programs and workloads travel between processes: `pickle` takes them apart.

They are owned by C++, so Python is told here which arguments of its constructor make an object
again. Whoever unpickles passes the same validating constructors as everybody else.
"""

from __future__ import annotations

import copyreg
import json
from typing import Any

from tacos._core import Collective, CollectivePart, Program, Routes, Schedule, Topology, Workload

__all__ = ["FIELDS"]

FIELDS: dict[type, tuple[str, ...]] = {
    Topology: (
        "npus", "switch_capabilities", "link_src", "link_dst", "link_latency_ps",
        "link_bandwidth_Bps", "link_model", "forwarding", "reduce_bandwidth_Bps", "family", "dims",
        "symmetric", "names",
    ),
    CollectivePart: (
        "kind", "size", "chunks", "root", "group", "bytes", "inputs", "outputs", "input_begin",
        "output_begin", "reduces",
    ),
    Collective: ("npus", "parts"),
    Routes: ("topology", "kinds", "link_begin", "links"),
    Schedule: (
        "collective", "routes", "lane_route", "lane_op", "lane_reads", "lane_begin", "chunk",
        "start", "quantum_ps", "orders", "node_image", "link_image", "provenance",
    ),
    Program: (
        "collective", "in_place", "scratch_slots", "thread_rank", "thread_channel",
        "thread_send_peer", "thread_recv_peer", "thread_begin", "op", "src_buffer", "src_slot",
        "dst_buffer", "dst_slot", "count", "peer", "comes_from", "dep_begin", "dep", "provenance",
    ),
    Workload: (
        "npus", "rank", "kind", "peer", "bytes", "tag", "duration_ps", "flops", "comm", "id", "on_cpu",
        "group", "priority", "dims", "name", "dep_begin", "dep", "groups", "names",
    ),
}  # fmt: skip
"""The arguments of each class's constructor, which are also attributes of its objects."""


def _apart(item: Any) -> tuple[Any, tuple[type, dict[str, Any]]]:
    fields = {name: getattr(item, name) for name in FIELDS[type(item)]}
    if type(item) in (Schedule, Program):
        fields["provenance"] = json.dumps(item.provenance)  # the core keeps it as text
    return _together, (type(item), fields)


def _together(kind: type, fields: dict[str, Any]) -> Any:
    return kind(**fields)


for _kind in FIELDS:
    copyreg.pickle(_kind, _apart)
