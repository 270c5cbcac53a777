"""Finalists: what the best shapes take with collectives that are synthesized for them, and with NCCL's."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tacos.collective import named, together
from tacos.design.dimensions import build
from tacos.design.jobs import Group, elapsed, spread, strides_of
from tacos.design.models import ModelJob
from tacos.search.synthesis import synthesize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacos.design.dimensions import Dimension
    from tacos.design.jobs import Overlap, TrainingJob
    from tacos.design.shapes import Shape

__all__ = ["Finalist", "evaluated"]

_MOST_NPUS = 1024
"""Finalists with groups over more NPUs than this are not synthesized (chosen: a minute)."""


class Finalist(NamedTuple):
    """One of the best shapes: all that another process needs to know."""

    shape: Shape
    jobs: Sequence[TrainingJob | ModelJob]
    latency_s: float
    overlap: Overlap


def evaluated(finalist: Finalist) -> Shape:
    """Return the shape with the times of synthesized collectives, and of NCCL's where all jobs train models."""
    shape, jobs, latency_s, overlap = finalist
    network = None
    if any(isinstance(job, ModelJob) for job in jobs):
        if (npus := prod(one.size for one in shape.dims)) > _MOST_NPUS:
            return replace(shape, note=f"it has {npus:,} NPUs, more than {_MOST_NPUS:,}")
        network = build(shape.dims, shape.bandwidths_Bps, latency=latency_s)
    total, stock = 0.0, 0.0
    for job in jobs:
        if isinstance(job, ModelJob):
            assert network is not None
            stock += job.step_s(network, "nccl")
            total += job.step_s(network, "auto")
            continue
        took = _serial_s(shape, job, latency_s, overlap)
        if isinstance(took, str):
            return replace(shape, note=took)
        total += took
    trained = all(isinstance(job, ModelJob) for job in jobs)
    return replace(shape, synthesized_s=total, nccl_s=stock if trained else None)


def _serial_s(shape: Shape, job: TrainingJob, latency_s: float, overlap: Overlap) -> float | str:
    """Return the seconds of a job whose collectives are synthesized, each on the dimensions that its group spans; or why there are none."""
    seconds, sizes = [], [one.size for one in shape.dims]
    for call in job.calls:
        if call.collective == "send":
            return "it sends messages"
        used = spread(call.group, shape.dims)
        at = [d for d, n in enumerate(used) if n > 1]
        if (inner := prod(sizes[d] for d in at)) > _MOST_NPUS:
            return f"a group spans {inner:,} NPUs"
        strides = strides_of(call.group if isinstance(call.group, Group) else None, sizes)
        columns = (shape.dims, shape.bandwidths_Bps, used, strides)
        chosen = [tuple(column[d] for d in at) for column in columns]
        known = (call.collective, call.size_bytes, latency_s)
        seconds.append(_call_s(*chosen, *known) if at else 0.0)
    return elapsed(job.steps, seconds, overlap)


@lru_cache(maxsize=256)
def _call_s(
    dims: tuple[Dimension, ...],
    bandwidths: tuple[float, ...],
    used: tuple[int, ...],
    strides: tuple[int, ...],
    collective: str,
    size: int,
    latency_s: float,
) -> float:
    """Return the executed time of a synthesized collective, all groups at once."""
    network = build(dims, bandwidths, latency=latency_s)
    ranks = np.arange(network.npus)
    inside, label = 1, np.zeros(network.npus, np.int64)
    for one, n, stride in zip(dims, used, strides, strict=True):
        place = ranks // inside % one.size
        # Ranks of one group differ by multiples of the stride, n of them.
        label = label * one.size + place // (stride * n) * stride + place % stride
        inside *= one.size
    parts = [
        named(collective, network, size, group=np.flatnonzero(label == one).tolist())
        for one in np.unique(label)
    ]
    return synthesize(network, together(*parts), effort="fast").executed_s
