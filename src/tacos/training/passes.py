"""One NPU's passes: the computation of its layers, and its exposed communication."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tacos.training.compute import (
    LayerTimes,
    embedding_times,
    layer_times,
    output_times,
    stack_times,
)
from tacos.training.models import Stack, Transformer

if TYPE_CHECKING:
    from tacos.training.communication import Communication
    from tacos.training.devices import Device, Software
    from tacos.training.models import Model
    from tacos.training.parallelism import Groups, Parallelism

__all__ = ["ModelChunk", "Pass", "Work"]

_COLLECTIVE_OPERATORS = 2.0
"""Operators that the host starts for a collective (chosen)."""


@dataclass
class Pass:
    """The parts of one chunk's forward or backward pass, in seconds."""

    compute: float = 0.0
    weights: float = 0.0
    operators: float = 0.0
    exposed: dict[str, float] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)

    def wait(self, name: str, seconds: float, hidden: float = 0.0) -> None:
        """Add communication that makes the pass `seconds` - `hidden` longer."""
        if seconds > 0:
            self.total[name] = self.total.get(name, 0.0) + seconds
            self.exposed[name] = self.exposed.get(name, 0.0) + seconds - hidden

    @property
    def busy(self) -> float:
        return self.compute + sum(self.exposed.values())


ModelChunk = tuple[Pass, Pass, list[float], list[float]]
"""The passes of a chunk of layers, forward and backward, and the time of each of its layers."""


class Work:
    """The layers of a model on one NPU."""

    def __init__(
        self,
        model: Model,
        parallel: Parallelism,
        groups: Groups,
        device: Device,
        dtype: str,
        software: Software,
        costs: Communication,
    ) -> None:
        self.model, self.parallel, self.groups = model, parallel, groups
        self.device, self.dtype, self.software, self.costs = device, dtype, software, costs
        self.tp, self.ep, self.dp = (costs.of(one) for one in (groups.tp, groups.ep, groups.dp))
        self.counts = parallel.stage_layers(model.layers)
        self.starts = np.concatenate([[0], np.cumsum(self.counts)]).tolist()
        self._layers: dict[bool, tuple[LayerTimes, Pass, Pass]] = {}

    def layer(self, number: int) -> tuple[LayerTimes, Pass, Pass]:
        """Return the times of a layer, and its forward and backward pass with tensor, context and expert parallelism."""
        model, parallel = self.model, self.parallel
        if isinstance(model, Stack):
            times = stack_times(
                model.layer_list[number], parallel.microbatch, self.device, self.dtype
            )
            ahead = Pass(times.forward, 0.0, times.operators)
            back = Pass(times.backward, times.weights, 2 * times.operators)
            self._exchange_stack(model, number, ahead, back)
            return times, ahead, back
        sparse = model.experts is not None and number >= model.experts.dense
        if sparse not in self._layers:
            times = layer_times(
                model, parallel, self.device, self.software, self.dtype, experts=sparse
            )
            ahead = Pass(times.forward, 0.0, times.operators)
            self._communicate(ahead, times, 1.0, sparse)
            back = Pass(times.backward, times.weights, 2 * times.operators)
            self._communicate(back, times, 2.0, sparse)
            if parallel.recompute == "full":
                back.compute += times.forward
                back.operators += times.operators
                self._communicate(back, times, 1.0, sparse)
            elif parallel.recompute == "selective":
                back.compute += times.attention
                back.operators += 0.2 * times.operators
            elif parallel.recompute == "alternate":
                back.compute += times.forward - times.attention - 0.5 * times.products
                back.operators += 0.8 * times.operators
            self._layers[sparse] = times, ahead, back
        return self._layers[sparse]

    def _exchange_stack(self, model: Stack, number: int, ahead: Pass, back: Pass) -> None:
        exchanged = model.layer_list[number].exchanged * self.parallel.microbatch * 2.0
        if exchanged:
            seconds = self.dp.seconds("all_to_all", exchanged)
            ahead.wait("dp all-to-all", seconds)
            back.wait("dp all-to-all", seconds)

    def _communicate(self, into: Pass, times: LayerTimes, factor: float, sparse: bool) -> None:
        """Add the communication of tensor, context and expert parallelism in one pass; `factor` 2 is the backward pass."""
        model, parallel, costs = self.model, self.parallel, self.costs
        assert isinstance(model, Transformer)
        tokens = parallel.microbatch * model.sequence / parallel.cp
        size = 2.0 * tokens * model.hidden
        if parallel.tp > 1:
            if parallel.sequence_parallel:
                gather = self.tp.seconds("all_gather", size)
                scatter = self.tp.seconds("reduce_scatter", size)
                # In the backward pass, gathers precede the products of inputs and of weights, which take twice as long.
                for product in times.enter:
                    into.wait("tp all-gather", gather, self._hidden(gather, product * factor))
                for product in times.leave:
                    into.wait("tp reduce-scatter", scatter, self._hidden(scatter, product * factor))
                if factor > 1:
                    # The gathered input is not kept, so gradients of weights need it again; the product of inputs hides the gather.
                    for product in times.enter:
                        into.wait("tp all-gather", gather, self.free(min(gather, product)))
                into.operators += 4 * _COLLECTIVE_OPERATORS
            else:
                both = self.tp.seconds("all_reduce", size)
                for product in times.leave:
                    into.wait("tp all-reduce", both, self._hidden(both, product * factor))
                into.operators += 2 * _COLLECTIVE_OPERATORS
        if parallel.cp > 1:
            heads = max(model.kv_heads / parallel.tp, 1.0)
            part = 2.0 * 2.0 * tokens * heads * model.head * factor
            ring = self.groups.cp
            one = float(costs.messages(ring.ravel(), np.roll(ring, -1, axis=1).ravel(), part).max())
            # A block of keys and values is forwarded while attention works on the previous one.
            piece = times.attention * (2.5 if factor > 1 else 1.0) / parallel.cp
            seconds = (parallel.cp - 1) * one
            into.wait("cp send", seconds, self.free((parallel.cp - 1) * min(one, piece)))
        if sparse and parallel.ep > 1 and model.experts is not None:
            shared = parallel.tp if parallel.sequence_parallel else 1
            sent = 2.0 * tokens * model.experts.active * model.hidden / shared
            seconds = 2 * self.ep.seconds("all_to_all", sent)
            hidden = min(seconds, into.compute) if parallel.overlap_experts else 0.0
            into.wait("ep all-to-all", seconds, self.free(hidden))
            into.operators += 2 * _COLLECTIVE_OPERATORS

    def _hidden(self, seconds: float, product: float) -> float:
        """Return how much of a collective is hidden behind a product that is cut into one piece per NPU."""
        if not self.parallel.overlap_tensor or seconds <= 0:
            return 0.0
        pieces = self.parallel.tp
        return self.free(min(seconds, product) * (1 - 1 / pieces))

    def free(self, hidden: float) -> float:
        """Return how much shorter a pass is if `seconds` of communication are hidden."""
        return hidden * (1 - self.software.interference)

    def chunk(self, stage: int, chunk: int) -> ModelChunk:
        """Return the passes of a chunk, and the time of each of its layers forward and backward."""
        place = chunk * self.parallel.pp + stage
        ahead, back = Pass(), Pass()
        forward: list[float] = []
        backward: list[float] = []

        def add(one: Pass, other: Pass, count: int = 1) -> None:
            for into, part in ((ahead, one), (back, other)):
                into.compute += count * part.compute
                into.weights += count * part.weights
                into.operators += count * part.operators
                for name, seconds in part.total.items():
                    into.wait(name, count * seconds, count * (seconds - part.exposed[name]))

        for first, count in self._alike(self.starts[place], self.starts[place + 1]):
            _, one, other = self.layer(first)
            add(one, other, count)
            forward += [one.busy] * count
            backward += [other.busy] * count
        if isinstance(self.model, Transformer):
            if place == 0:
                times = embedding_times(self.model, self.parallel, self.device)
                add(*self._outer(times, first=True))
            if place == self.parallel.pp * self.parallel.vp - 1:
                times = output_times(self.model, self.parallel, self.device)
                add(*self._outer(times, first=False))
        return ahead, back, forward, backward

    def _alike(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return runs of equal layers as (first layer, number of layers)."""
        model = self.model
        if isinstance(model, Stack):
            return [(number, 1) for number in range(begin, end)]
        middle = end if model.experts is None else min(max(model.experts.dense, begin), end)
        runs = [(begin, middle - begin), (middle, end - middle)]
        return [(first, count) for first, count in runs if count]

    def _outer(self, times: LayerTimes, *, first: bool) -> tuple[Pass, Pass]:
        """Return the passes of the embedding or the output layer."""
        model, parallel = self.model, self.parallel
        assert isinstance(model, Transformer)
        ahead = Pass(times.forward, 0.0, times.operators)
        back = Pass(times.backward, times.weights, 2 * times.operators)
        if parallel.tp > 1:
            size = 2.0 * parallel.microbatch * model.sequence / parallel.cp * model.hidden
            # The embedding is summed forward; the gradient of the output layer's input backward.
            one = self.tp.seconds(
                "reduce_scatter" if parallel.sequence_parallel else "all_reduce", size
            )
            kind = "reduce-scatter" if parallel.sequence_parallel else "all-reduce"
            (ahead if first else back).wait(f"tp {kind}", one)
            if parallel.sequence_parallel:
                gather = self.tp.seconds("all_gather", size)
                (back if first else ahead).wait("tp all-gather", gather)
        return ahead, back
