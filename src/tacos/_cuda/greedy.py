"""The step-synchronous greedy matching on a GPU, which finds the same schedule as the CPU.

The kernels are in ``greedy.cu``. This module checks what fits on the device, launches them and builds the schedule.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import Routes, Schedule, greedy_step_problem, greedy_stepwise
from tacos._cuda import driver
from tacos.errors import TacosError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tacos._core import Collective, Topology

__all__ = ["obstacle", "solve"]

_THREADS = 256
"""Threads per block of the matching kernels, which are compiled for this number."""
_SERVED = (
    "the GPU supports only all-gather, reduce-scatter and all-reduce over equal direct links, with "
    'link_model="blocking" or a latency that is a multiple of a chunk\'s transmission time; use --device cpu'
)
_STEPS = 1024
"""Steps per launch; in between, the host reports progress, notices Ctrl-C and counts missing transfers."""
_MOST_IN_LINKS = 32
"""A team of threads, one per in-link, must fit into a warp."""
_BYTES = 9
"""Device memory per transfer: chunk, start and in-link."""
_SORTERS = 4096
"""Warps that sort at a time; each needs memory for the log of one destination."""


def obstacle(topology: Topology, collective: Collective) -> str:
    """Return why the GPU cannot solve this problem; empty if it can.

    >>> import tacos
    >>> dgx = tacos.topology.dgx_h100(1)
    >>> obstacle(dgx, tacos.collective.all_gather(dgx, "1MB", chunks=1))
    'the GPU supports only all-gather, reduce-scatter and all-reduce over equal direct links, ...'
    """
    if not greedy_stepwise(topology, collective):
        return _SERVED
    degree = int(np.bincount(topology.link_dst, minlength=1).max())
    if degree > _MOST_IN_LINKS:
        return f"the GPU serves NPUs with at most {_MOST_IN_LINKS} in-links; one has {degree}"
    if missing := driver.obstacle():
        return missing
    device = driver.gpu()
    if not device.cooperative:
        return f"the {device.name} cannot run blocks that wait for each other"
    transfers = float(collective.chunks) * (topology.npus - 1)
    sorting = min(_SORTERS, topology.npus) * 8.0 * collective.chunks
    needed = transfers * _BYTES + sorting + topology.npus * (float(collective.chunks) / 8 + 512)
    return driver.too_little_memory(f"matching {transfers:.1e} transfers", needed)


def solve(
    topology: Topology,
    collective: Collective,
    *,
    seed: int = 0,
    provenance: str = "{}",
    progress: Callable[[float], object] | None = None,
    figures: dict[str, float] | None = None,
) -> Schedule | None:
    """Return the schedule that the CPU would find, or None if some NPU cannot be reached.

    Args:
        topology: A network of equal links; :func:`obstacle` must be empty for it.
        collective: A collective in which every NPU needs every chunk.
        seed: As for the greedy engine.
        provenance: Provenance of the schedule, as JSON.
        progress: Called from time to time with the share of the work done.
        figures: Filled with the seconds of each part of the work, for benchmarks.
    """
    begin = time.perf_counter()
    problem = greedy_step_problem(topology, collective, seed)
    device, seconds = driver.gpu(), {} if figures is None else figures
    npus, chunks = topology.npus, collective.chunks
    total = int(problem["log_begin"][-1])
    if not total:
        return None
    with device.current():
        columns = {
            name: device.upload(problem[name])
            for name in ("in_begin", "in_source", "own_begin", "own", "log_begin", "shift")
        }
        log = [device.empty(total * size) for size in (4, 4, 1)]
        seconds["set up"] = time.perf_counter() - begin
        begin = time.perf_counter()
        if not _match(device, problem, columns, log, npus, chunks, progress):
            return None
        lane_size = device.empty(8 * len(problem["in_link"]))
        arguments = (columns["in_begin"], columns["log_begin"])
        device.launch(("greedy", "count_lanes"), npus, 256, *arguments, log[2], lane_size)
        lane_begin = np.zeros(len(problem["in_link"]) + 1, np.int64)
        np.cumsum(lane_size.get(np.int64), out=lane_begin[1:])
        lane_size.put(lane_begin[:-1])
        longest = int(np.diff(problem["log_begin"]).max())
        warps = min(_SORTERS, -(-npus // 4) * 4)
        spare = device.empty(8 * longest * warps)
        device.launch(
            ("greedy", "sort_lanes"),
            *(warps // 4, 128, np.uint32(npus), np.uint64(longest)),
            *(*arguments, log[2], lane_size, log[0], log[1], spare),
        )
        device.wait()
        seconds["synthesis"] = time.perf_counter() - begin
        begin = time.perf_counter()
        chunk, start = (one.get(np.uint32) for one in log[:2])
        seconds["to the host"] = time.perf_counter() - begin
    begin = time.perf_counter()
    lanes, links = len(problem["in_link"]), topology.links
    every_link = np.arange(links, dtype=np.int32)
    schedule = Schedule(
        collective=collective,
        routes=Routes(topology, np.zeros(links, np.uint8), np.arange(links + 1), every_link),
        lane_route=problem["in_link"],
        lane_op=np.zeros(lanes, np.uint8),
        lane_reads=np.ones(lanes, np.uint8),
        lane_begin=lane_begin,
        chunk=chunk,
        start=start,
        quantum_ps=problem["period_ps"],
        provenance=provenance,
        given_away=True,
    )
    seconds["schedule"] = time.perf_counter() - begin
    return schedule


def _match(
    device: driver.Gpu,
    problem: dict[str, Any],
    columns: dict[str, driver.DeviceArray],
    log: list[driver.DeviceArray],
    npus: int,
    chunks: int,
    progress: Callable[[float], object] | None,
) -> bool:
    """Fill the logs; return whether every chunk reaches every NPU."""
    degree = int(np.diff(problem["in_begin"].astype(np.int64)).max())
    team = 1 << max(degree - 1, 0).bit_length()
    words, lag = -(-chunks // 32), problem["lag"]
    cursor = device.empty(4 * len(problem["in_source"])).fill(0)
    have = device.empty(4 * words * npus).fill(0)
    held = (columns["own_begin"], columns["own"], have)
    device.launch(
        ("greedy", "note_inputs"), -(-npus // 256), 256, np.uint32(npus), np.uint64(words), *held
    )
    received = device.empty(4 * (lag + 1) * npus).fill(0)
    total = int(problem["log_begin"][-1])
    missing, arrived = device.upload(np.array([total], np.uint64)), device.empty(4)
    kernel, needed = ("greedy", "match_keeping"), -(-npus * team // _THREADS)
    if device.resident_blocks(kernel, _THREADS) < needed:
        kernel = ("greedy", "match_in_rounds")
    blocks = min(device.resident_blocks(kernel, _THREADS), needed)
    if not blocks:
        raise TacosError(f"the {device.name} cannot run the greedy kernel")
    given = tuple(
        columns[name]
        for name in ("in_begin", "in_source", "own_begin", "own", "log_begin", "shift")
    )
    left, step = total, 0
    while left:
        arrived.fill(0)
        device.launch(
            kernel,
            blocks,
            _THREADS,
            *(np.uint32(npus), np.uint32(team), np.uint32(lag), np.uint64(words), given),
            (cursor, *log, have, received, missing, arrived),
            *(np.uint32(step), np.uint32(_STEPS)),
            together=True,
        )
        before, left = left, int(missing.get(np.uint64)[0])
        if left == before:  # nothing was sent in more steps than a chunk takes to arrive
            return False
        step += _STEPS
        if progress is not None:
            progress(1 - left / total)
    return True
