"""Verification on a GPU, for schedules over equal, direct links.

The kernels are in ``verify.cu``, written from the rules of the model. They only tell whether anything is wrong; the
verifier on the CPU then finds and describes the violations.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from tacos._cuda import driver

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import Schedule

__all__ = ["obstacle", "shows_right"]

_THREADS = 256
_KINDS = ("all_gather", "reduce_scatter", "all_reduce")
_SUM, _ACC = 1, 1  # values of a lane's operation and of its source buffer


def obstacle(schedule: Schedule) -> str:
    """Return why the GPU cannot check this schedule; empty if it can.

    >>> import tacos
    >>> dgx = tacos.topology.dgx_h100(1)
    >>> obstacle(tacos.synthesize(dgx, tacos.collective.all_gather(dgx, "1MB", chunks=1), engine="ring"))
    'the GPU checks all-gathers, reduce-scatters and all-reduces over direct links that are all alike'
    """
    topology, routes, collective = schedule.topology, schedule.routes, schedule.collective
    kinds = {part.kind for part in collective.parts}
    alike = (
        schedule.form == "packed"
        and topology.nodes == topology.npus
        and not topology.reduce_bandwidth_Bps
        and len(np.unique(topology.link_latency_ps)) == 1
        and len(np.unique(topology.link_bandwidth_Bps)) == 1
        and len(np.unique(collective.chunk_bytes())) == 1
        and not routes.kinds.any()
        and bool((np.diff(routes.link_begin) == 1).all())
        and bool((schedule.lane_reads == _ACC).all())
        and len(kinds) == 1
        and kinds <= set(_KINDS)
        and all(len(part.group) == topology.npus for part in collective.parts)
        and int(np.bincount(routes.links[schedule.lane_route], minlength=1).max()) <= 2
    )
    if not alike:
        return "the GPU checks all-gathers, reduce-scatters and all-reduces over direct links that are all alike"
    if missing := driver.obstacle():
        return missing
    pairs = topology.npus * collective.chunks
    needed = 8 * schedule.transfers + (pairs * 8.2 if schedule.lane_op.any() else pairs * 4)
    return driver.too_little_memory("the check", needed)


def shows_right(schedule: Schedule, figures: dict[str, float] | None = None) -> bool:
    """Return whether the kernels find nothing wrong.

    Args:
        schedule: A schedule for which :func:`obstacle` is empty.
        figures: Filled with the seconds of the upload and of the check, for benchmarks.
    """
    topology, collective = schedule.topology, schedule.collective
    npus, chunks, kind = topology.npus, collective.chunks, collective.parts[0].kind
    lane_sums = (schedule.lane_op == _SUM).astype(np.uint8)
    sizes = np.diff(schedule.lane_begin)
    everywhere = chunks * (npus - 1)
    if sizes[lane_sums == 0].sum() != (everywhere if kind != "reduce_scatter" else 0):
        return False
    if sizes[lane_sums == 1].sum() != (everywhere if kind != "all_gather" else 0):
        return False
    seconds = {} if figures is None else figures
    link = schedule.routes.links[schedule.lane_route]
    bandwidth, latency = int(topology.link_bandwidth_Bps[0]), int(topology.link_latency_ps[0])
    sending = -(-int(collective.chunk_bytes()[0]) * 10**12 // bandwidth)
    busy = np.uint64(sending + (latency if topology.link_model == "blocking" else 0))
    step, count, any_sums = np.uint64(schedule.quantum_ps), np.uint32(chunks), kind != "all_gather"
    device, begin = driver.gpu(), time.perf_counter()
    with device.current():
        lanes = tuple(
            device.upload(column)
            for column in (
                schedule.lane_begin,
                topology.link_src[link].astype(np.uint32),
                topology.link_dst[link].astype(np.uint32),
                _partners(link),
                lane_sums,
                schedule.chunk,
                schedule.start,
            )
        )
        seconds["upload"], begin = time.perf_counter() - begin, time.perf_counter()
        pairs = npus * chunks
        first = device.empty(4 * pairs if kind != "reduce_scatter" else 0).fill(0xFF)
        last = device.empty(4 * pairs if any_sums else 0).fill(0)
        sent = device.empty(-(-pairs // 32) * 4 if any_sums else 0).fill(0)
        wrong, blocks = device.empty(8).fill(0), len(link)
        owner = device.empty(4 * chunks).fill(0xFF)
        device.launch(
            ("verify", "note_transfers"),
            *(blocks, _THREADS),
            *(lanes, count, step, busy, first, last, sent, wrong),
        )
        if any_sums:
            device.launch(
                ("verify", "find_roots"),
                *(-(-chunks // _THREADS), _THREADS),
                *(np.uint32(npus), count, sent, owner, wrong),
            )
        if kind == "all_gather":
            owner.put(_by_chunk(*collective.precondition()))
        elif kind == "reduce_scatter":
            ends = _by_chunk(*collective.postcondition())
            if not np.array_equal(owner.get(np.uint32), ends):
                return False
        device.launch(
            ("verify", "check_sources"),
            *(blocks, _THREADS),
            *(lanes, count, step, np.uint64(latency + sending), np.uint32(any_sums)),
            *(owner, first, last, wrong),
        )
        if kind != "reduce_scatter":
            device.launch(("verify", "check_copies"), npus, _THREADS, count, owner, first, wrong)
        found = int(wrong.get(np.uint64)[0])
        seconds["check"] = time.perf_counter() - begin
    return found == 0


def _partners(link: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Return, for each lane, the other lane over the same link, or 2^32 - 1."""
    partner = np.full(len(link), 0xFFFFFFFF, np.uint32)
    order = np.argsort(link, kind="stable")
    same = np.flatnonzero(np.diff(link[order]) == 0)
    one, other = order[same], order[same + 1]
    partner[one], partner[other] = other, one
    return partner


def _by_chunk(chunk: NDArray[np.uint32], npu: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Return the only NPU of each chunk."""
    owner = np.empty(len(chunk), np.uint32)
    owner[chunk] = npu
    return owner
