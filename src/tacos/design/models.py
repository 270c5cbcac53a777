"""Jobs that train a model: the search uses the work of one rank, finalists use whole training steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tacos import topology as topologies
from tacos.design.jobs import Call, Compute, Group, Ranks, TrainingJob
from tacos.workload import COLL, COMP

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tacos._core import Topology
    from tacos.design.convex import Timing
    from tacos.design.dimensions import Dimension
    from tacos.design.jobs import Overlap
    from tacos.training import Parallelism
    from tacos.training.devices import Device
    from tacos.training.graph import RankNode
    from tacos.training.models import Model

__all__ = ["ModelJob"]


@dataclass(frozen=True)
class ModelJob:
    """A model to train, with the arguments of :func:`tacos.training.step`.

    A design counts the rank of the stage that computes longest, and the time of a step without communication:
    computation, waiting for other stages, and the host.

    Attributes:
        model: The model.
        parallel: How it is split over NPUs.
        device: Name of a device, or a device.
        dtype: Type of matrix products.

    >>> from tacos import training
    >>> job = ModelJob(training.model("llama3-8b"), training.Parallelism(tp=8, zero=1, batch=16))
    >>> sorted({call.collective for call in job.on(16).calls}), job.on(16).calls[0].group
    (['all-gather', 'all-reduce', 'reduce-scatter'], Group(size=8, stride=1))
    """

    model: Model
    parallel: Parallelism
    device: str | Device = "h100"
    dtype: str = "bf16"

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name

    def on(self, npus: int) -> TrainingJob:
        """Return the computations and collectives of a step on this many NPUs.

        Raises:
            ValueError: The parallelism does not fit the model or the number of NPUs, or the step does not fit into memory.
        """
        from tacos.training import step
        from tacos.training.graph import rank_nodes

        free = step(
            self.model,
            self.parallel,
            topologies.switch(npus),
            device=self.device,
            dtype=self.dtype,
            collectives="free",
        )
        assert free.folded is not None
        assert free.passes is not None
        stages = [rank_nodes(free.folded, free.passes, stage) for stage in range(free.parallel.pp)]
        computed = [sum(node.seconds for node in nodes) for nodes in stages]
        busiest = int(np.argmax(computed))
        steps = [Compute(max(free.time_s - computed[busiest], 0.0)), *_merged(stages[busiest])]
        return TrainingJob(tuple(steps), self.name, npus)

    def timing(self, dims: Sequence[Dimension], *, overlap: Overlap = "none") -> Timing:
        """Return the step's time as a function of the bandwidths of these dimensions."""
        return self.on(prod(one.size for one in dims)).timing(dims, overlap=overlap)

    def step_s(self, network: Topology, collectives: str) -> float:
        """Return the duration of a training step on a network, in seconds.

        >>> import tacos
        >>> from tacos import training
        >>> job = ModelJob(training.model("llama3-8b"), training.Parallelism(tp=8, zero=1, batch=16))
        >>> job.step_s(tacos.topology.dgx_h100(2), "free") < job.step_s(tacos.topology.dgx_h100(2), "nccl")
        True
        """
        from tacos.training import step

        return step(
            self.model,
            self.parallel,
            network,
            device=self.device,
            dtype=self.dtype,
            collectives=collectives,
        ).time_s


def _merged(nodes: Iterable[RankNode]) -> list[Compute | Call]:
    """Merge equal nodes; nodes that no other node waits for keep their position."""
    found: list[Compute | Call] = []
    seconds, calls = 0.0, Counter[Call]()

    def close() -> None:
        nonlocal seconds
        found.extend([Compute(seconds)] if seconds else [])
        found.extend(Call(c.collective, c.size_bytes, c.group, n) for c, n in calls.items())
        seconds = 0.0
        calls.clear()

    for node in nodes:
        if node.kind == COMP:
            seconds += node.seconds
            continue
        label, group = node.collective.replace("_", "-"), _group(node.members)
        if node.kind != COLL or (label == "all-reduce" and len(node.members) == 2):
            label = "send"  # in an all-reduce of two ranks, each sends its whole buffer
        call = Call(label, round(node.bytes), group, 1, not node.awaited)
        if call.background:
            close()
            found.append(call)
        else:
            calls[call] += 1
    close()
    return found


def _group(members: tuple[int, ...]) -> Group | Ranks:
    strides = np.unique(np.diff(members))
    if len(strides) == 1 and strides[0] > 0:
        return Group(len(members), int(strides[0]))
    return Ranks(members)
