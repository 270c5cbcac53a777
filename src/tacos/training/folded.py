"""The folded fidelity: equivalent ranks are simulated once, one NPU for each pipeline stage.

A pass takes the time of its operators and exposed collectives, and the pipeline is simulated pass by pass. Gradients are summed and
parameters gathered concurrently with the passes if the parallelism allows it. A collective costs as much as when all groups of its
kind communicate at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import pipeline
from tacos.simulate.timeline import Timeline
from tacos.training.compute import optimizer_s
from tacos.training.memory import Memory, memory_of, over_capacity, parameters_of
from tacos.training.models import Stack, Transformer
from tacos.training.passes import Work
from tacos.workload import COLL, COMMS, COMP, from_nodes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tacos._core import PipelineTimes, Topology
    from tacos.training.communication import Communication
    from tacos.training.devices import Device, Software
    from tacos.training.models import Model
    from tacos.training.parallelism import Groups, Parallelism
    from tacos.training.passes import ModelChunk, Pass

__all__ = ["Folded", "MemoryExceededError"]

_RULES = {"gpipe": 0, "1f1b": 1, "interleaved": 1, "zero-bubble": 2}


class MemoryExceededError(ValueError):
    """A step does not fit into the memory of a device; the message names the largest terms."""


class Folded:
    """One step, simulated for one NPU of each stage."""

    def __init__(
        self,
        model: Model,
        parallel: Parallelism,
        topology: Topology,
        device: Device,
        dtype: str,
        software: Software,
        costs: Communication,
    ) -> None:
        self.model, self.parallel, self.topology = model, parallel, topology
        self.device, self.dtype, self.software, self.costs = device, dtype, software, costs
        self.groups: Groups = parallel.groups()
        self.work = Work(model, parallel, self.groups, device, dtype, software, costs)
        self.dp, self.edp = costs.of(self.groups.dp), costs.of(self.groups.edp)
        self.counts, self.starts = self.work.counts, self.work.starts
        self.parts = [parameters_of(model, parallel, stage) for stage in range(parallel.pp)]
        self.stragglers: Mapping[int, float] = {}
        self.jitter, self.seed = 0.0, 0
        # For each stage: when its passes end, when its gradients are summed, and the seconds of the update and of a gather after it.
        self.tails: list[tuple[float, float, float, float]] = []

    # Replicas.

    def replicate(self, kind: str, stage: int, share: float, size: float) -> float:
        """Return the seconds of a collective between replicas over a share of a stage's parameters, `size` bytes each."""
        parts = self.parts[stage]
        seconds = self.dp.seconds(kind, share * parts.dense * size)
        if parts.experts:
            seconds += self.edp.seconds(kind, share * parts.experts * size)
        return seconds

    def sharded_pass(self, times: list[float], gather: float, scatter: float) -> float:
        """Return the seconds of a pass whose layers gather their parameters just before they run, and scatter gradients after."""
        # Two streams: layers compute in order; the network gathers ahead and scatters behind.
        ahead = self.parallel.prefetch
        network = compute = 0.0
        arrived: list[float] = []
        done: list[float] = []
        for i, seconds in enumerate(times):
            while len(arrived) < min(i + 1 + ahead, len(times)):
                j = len(arrived)
                # Memory for layer j is free once layer j - ahead - 1 has been computed.
                begin = max(network, done[j - ahead - 1] if j > ahead else 0.0)
                network = begin + gather
                arrived.append(network)
            compute = max(compute, arrived[i]) + seconds
            done.append(compute)
            if scatter:
                network = max(network, compute) + scatter
        return max(compute, network)

    # The step.

    def run(
        self,
        stragglers: Mapping[int, float],
        jitter: float,
        seed: int,
        oversubscribe: bool,
    ) -> dict[str, Any]:
        parallel, software = self.parallel, self.software
        self.stragglers, self.jitter, self.seed = stragglers, jitter, seed
        stages, chunks = parallel.pp, parallel.vp
        slow = self._slow(stragglers)
        passes = [[self.work.chunk(s, c) for c in range(chunks)] for s in range(stages)]
        for s in range(stages):
            for c in range(chunks):
                self._stretch(passes[s][c], slow[s])
        if parallel.zero == 3 and parallel.dp * parallel.cp > 1:
            for s in range(stages):
                for c in range(chunks):
                    self._shard(passes[s][c], s)

        host_s = software.pass_s + (software.message_s if stages > 1 else 0.0)
        sends = self._sends()
        if not software.blocking_sends and stages > 1:
            # Messages travel while the stage computes.
            for s in range(stages):
                for one in (part for c in range(chunks) for part in passes[s][c][:2]):
                    one.wait("pp send", sends[s, 0], self.work.free(sends[s, 0]))

        def lasting(one: Pass) -> float:
            return max(one.busy, one.operators * software.dispatch_s) + host_s

        forward = np.array(
            [[lasting(passes[s][c][0]) for c in range(chunks)] for s in range(stages)]
        )
        backward = np.array(
            [[lasting(passes[s][c][1]) for c in range(chunks)] for s in range(stages)]
        )
        weight = np.array([[passes[s][c][1].weights for c in range(chunks)] for s in range(stages)])
        ready_start, ready_end = self._ready(forward)
        stretch = np.zeros(0, np.int64)
        if jitter > 0:
            noise = np.random.default_rng(seed).normal(0.0, jitter, stages * parallel.microbatches)
            stretch = np.round(np.maximum(noise, -0.9) * 1e6).astype(np.int64)
        times = pipeline(
            rule=_RULES[parallel.schedule],
            stages=stages,
            chunks=chunks,
            microbatches=parallel.microbatches,
            blocking=software.blocking_sends,
            forward=_ps(forward),
            backward=_ps(backward),
            weight=_ps(weight),
            send_forward=_ps(sends),
            # Messages back use the same links as messages forward.
            send_backward=_ps(np.roll(sends, 1, axis=0)),
            ready_start=_ps(ready_start),
            ready_end=_ps(ready_end),
            stretch_ppm=stretch,
        )
        memory = memory_of(
            self.model, parallel, software, tuple(times.in_flight.tolist()), self.parts
        )
        if not oversubscribe and (problem := over_capacity(memory, self.device)):
            raise MemoryExceededError(
                f"{problem}; split the model further, choose a higher ZeRO stage or more recomputation, or accept it with --oversubscribe"
            )
        return self._finish(times, passes, forward, sends, memory, slow)

    def _slow(self, stragglers: Mapping[int, float]) -> list[float]:
        slow = [1.0] * self.parallel.pp
        for npu, factor in stragglers.items():
            if not 0 <= npu < self.parallel.npus:
                raise ValueError(
                    f"stragglers names NPU {npu}; the network has {self.parallel.npus} NPUs"
                )
            if factor < 1:
                raise ValueError(f"a straggler's factor must be at least 1; got {factor!r}")
            stage = int(np.argwhere(self.groups.pp == npu)[0][1])
            slow[stage] = max(slow[stage], factor)
        return slow

    @staticmethod
    def _stretch(chunk: ModelChunk, factor: float) -> None:
        if factor > 1:
            for one in chunk[:2]:
                one.compute *= factor
                one.weights *= factor
            for times in chunk[2:]:
                times[:] = [seconds * factor for seconds in times]

    def _shard(self, chunk: ModelChunk, stage: int) -> None:
        """Add gathers and scatters of sharded parameters to the passes of a chunk."""
        ahead, back, forward, backward = chunk
        layers = max(
            sum(self.counts[c * self.parallel.pp + stage] for c in range(self.parallel.vp)), 1
        )
        gather = self.replicate("all_gather", stage, 1 / layers, 2.0)
        scatter = self.replicate("reduce_scatter", stage, 1 / layers, self.software.gradient_bytes)
        count = len(forward)
        for one, times, last in ((ahead, forward, 0.0), (back, backward, scatter)):
            # Computation outside of layers counts with the last layer.
            rest = one.busy - sum(times)
            own = [*times[:-1], times[-1] + rest] if times else [rest]
            total = count * (gather + last)
            if not total:
                continue
            hidden = self.work.free(
                max(0.0, total - self.sharded_pass(own, gather, last) + one.busy)
            )
            one.wait("dp all-gather", count * gather, hidden * count * gather / total)
            one.wait("dp reduce-scatter", count * last, hidden * count * last / total)

    def _sends(self) -> NDArray[np.float64]:
        """Return the seconds that a stage's output takes to the next stage."""
        parallel = self.parallel
        shape = (parallel.pp, parallel.vp)
        if parallel.pp == 1:
            return np.zeros(shape)
        line = self.groups.pp
        # With virtual stages, the last stage sends to the first.
        to = np.roll(line, -1, axis=1)
        kept = slice(None) if parallel.vp > 1 else slice(0, -1)
        pairs = line[:, kept].ravel(), to[:, kept].ravel()
        each = self.costs.messages(*pairs, self.message_bytes()).reshape(len(line), -1).max(axis=0)
        seconds = np.zeros(parallel.pp)
        seconds[: len(each)] = each
        if parallel.tp > 1 and parallel.vp > 1 and not parallel.sequence_parallel:
            # The shares that NPUs of a tensor-parallel group received are gathered.
            seconds += self.work.tp.seconds("all_gather", self.message_bytes() * parallel.tp)
        return np.repeat(seconds[:, None], parallel.vp, axis=1)

    def message_bytes(self) -> float:
        """Return the bytes that an NPU sends to the next stage for one micro-batch."""
        parallel, model = self.parallel, self.model
        if isinstance(model, Stack):
            return float(2 * parallel.microbatch * model.layer_list[self.starts[1] - 1].activations)
        size = 2.0 * parallel.microbatch * model.sequence / parallel.cp * model.hidden
        if parallel.sequence_parallel or parallel.vp > 1:
            # Each NPU of a tensor-parallel group sends its share.
            size /= parallel.tp
        return size

    def _buckets(self, stage: int) -> list[list[float]]:
        """Return, for each chunk, the shares of a stage's parameters that are communicated at once, in forward order."""
        parallel = self.parallel
        counts = [self.counts[c * parallel.pp + stage] for c in range(parallel.vp)]
        total = max(sum(counts), 1)
        if parallel.buckets:
            each = max(1, round(parallel.buckets / parallel.vp))
            return [[count / total / each] * each for count in counts]
        return [[1 / total] * count for count in counts]

    @property
    def gathers(self) -> bool:
        """Whether parameters are gathered after the update of an optimizer whose state is divided."""
        return self.parallel.zero in (1, 2) and self.parallel.dp * self.parallel.cp > 1

    def _ready(
        self, forward: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the earliest start and end of the first forward passes while parameters are still being gathered."""
        start, end = np.zeros_like(forward), np.zeros_like(forward)
        if not (self.gathers and self.parallel.overlap_parameters):
            return start, end
        for s in range(self.parallel.pp):
            at = 0.0
            for c, shares in enumerate(self._buckets(s)):
                if not shares:
                    continue
                each = forward[s, c] / len(shares)
                for i, share in enumerate(shares):
                    at += self.replicate("all_gather", s, share, 2.0)
                    start[s, c] = at if i == 0 else start[s, c]
                    end[s, c] = max(end[s, c], at + (len(shares) - i) * each)
        return start, end

    def _finish(
        self,
        times: PipelineTimes,
        passes: list[list[ModelChunk]],
        forward: NDArray[np.float64],
        sends: NDArray[np.float64],
        memory: Memory,
        slow: list[float],
    ) -> dict[str, Any]:
        parallel = self.parallel
        stages = parallel.pp
        # Every stage runs the same number of passes.
        ends = (times.end_ps.reshape(stages, -1).max(axis=1) * 1e-12).tolist()
        own_sums = [self._sum_gradients(s, times, ends[s]) for s in range(stages)]
        summed, tie = list(own_sums), self._tie()
        if tie:
            # The first and the last stage wait for each other, and sum their gradients of the embedding.
            summed[0] = summed[-1] = max(summed[0], summed[-1]) + tie
        update = [self.update_s(s) * slow[s] + self.software.step_s for s in range(stages)]
        gather = [
            0.0
            if not self.gathers or parallel.overlap_parameters
            else self.replicate("all_gather", s, 1.0, 2.0)
            for s in range(stages)
        ]
        slowed = [0.0] * stages
        if self.gathers and parallel.overlap_parameters:
            slowed = [
                self.software.interference * self.replicate("all_gather", s, 1.0, 2.0)
                for s in range(stages)
            ]
        after = max(map(sum, zip(update, gather, slowed, strict=True)))
        time_s = max(summed) + after
        self.tails = list(zip(ends, summed, update, gather, strict=True))

        whole = round(time_s * 1e12)
        sums: dict[str, float] = {}
        total: dict[str, float] = {}
        for s in range(stages):
            parts, sent = self._account(s, times, passes[s], forward, sends, own_sums[s] - ends[s])
            parts["compute"] += update[s] - self.software.step_s
            parts["idle"] += self.software.step_s
            if tie and s in (0, stages - 1):
                parts["embedding all-reduce"] = sent["embedding all-reduce"] = tie
                parts["bubble"] += summed[s] - own_sums[s] - tie
            if gather[s]:
                parts["dp all-gather"] = sent["dp all-gather"] = gather[s]
            if slowed[s]:
                parts["dp all-gather"] += slowed[s]
            # A stage that has finished waits for the others.
            parts["bubble"] += time_s - summed[s] - update[s] - gather[s] - slowed[s]
            for into, found in ((sums, parts), (total, sent)):
                for name, seconds in found.items():
                    into[name] = into.get(name, 0.0) + seconds / stages
        # Rounded to picoseconds, so that the parts add up; the rounding error goes to the largest part.
        rounded = {name: max(0, round(seconds * 1e12)) for name, seconds in sums.items()}
        left = whole - sum(rounded.values())
        assert abs(left) <= 1e-9 * whole + 16, f"{left} ps of the step belong to no part"
        rounded[max(rounded, key=rounded.__getitem__)] += left
        own = ("compute", "bubble", "idle")
        return {
            "time_s": whole * 1e-12,
            "compute_s": rounded["compute"] * 1e-12,
            "exposed": {n: ps * 1e-12 for n, ps in rounded.items() if ps and n not in own},
            "bubble_s": rounded["bubble"] * 1e-12,
            "idle_s": rounded["idle"] * 1e-12,
            "memory": memory,
            "communication_s": total,
            "passes": times,
            "message_bytes": self.message_bytes(),
        }

    def timeline(self, times: PipelineTimes) -> Timeline:
        """Return when one NPU of each stage runs its passes, sums gradients, updates and gathers parameters."""
        parallel = self.parallel
        words = np.array(["forward", "backward", "weights"])[times.kind].tolist()
        labels = [
            f"{word} {batch}" + (f" of chunk {chunk}" if parallel.vp > 1 else "")
            for word, batch, chunk in zip(
                words, times.microbatch.tolist(), times.chunk.tolist(), strict=True
            )
        ]
        rows = [
            (int(stage), COMP, 0, label, int(start), int(stop))
            for stage, label, start, stop in zip(
                times.stage, labels, times.start_ps, times.end_ps, strict=True
            )
        ]
        gathers, sums = (
            COMMS["all_gather"],
            COMMS["reduce_scatter" if parallel.zero else "all_reduce"],
        )
        label = "dp reduce-scatter" if parallel.zero else "dp all-reduce"
        after = max(summed for _, summed, _, _ in self.tails)
        for stage, (done, summed, update, gather) in enumerate(self.tails):
            spans = [
                (COLL, sums, label, done, summed - done),
                (COMP, 0, "optimizer", after, update),
            ]
            spans.append((COLL, gathers, "dp all-gather", after + update, gather))
            if self.gathers and parallel.overlap_parameters:
                spans.append(
                    (
                        COLL,
                        gathers,
                        "dp all-gather",
                        0.0,
                        self.replicate("all_gather", stage, 1.0, 2.0),
                    )
                )
            rows += [
                (stage, kind, comm, name, round(at * 1e12), round((at + seconds) * 1e12))
                for kind, comm, name, at, seconds in spans
                if seconds > 0
            ]
        rows.sort(key=lambda row: (row[0], row[4], row[5]))
        rank, kind, comm, names, first, last = zip(*rows, strict=True)
        begin, end = np.array(first, np.int64), np.array(last, np.int64)
        duration = (end - begin) * (np.array(kind) == COMP)
        made = from_nodes(
            parallel.pp, rank=rank, kind=kind, comm=comm, names=names, duration_ps=duration
        )
        return Timeline(made, begin, end)

    def _account(
        self,
        stage: int,
        times: PipelineTimes,
        passes: list[ModelChunk],
        forward: NDArray[np.float64],
        sends: NDArray[np.float64],
        waits: float,
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Return where the time of a stage goes until its gradients are summed, and what it communicates, in seconds.

        Args:
            stage: Number of the stage.
            times: Times of all passes.
            passes: Passes of each chunk of the stage.
            forward: Durations of the forward passes, by stage and chunk.
            sends: Durations of messages to the next stage.
            waits: Time between the last pass and the sum of the gradients.
        """
        parallel = self.parallel
        count, chunks = parallel.microbatches, parallel.vp
        compute = 0.0
        exposed: dict[str, float] = {}
        total: dict[str, float] = {}
        for c in range(chunks):
            for one in passes[c][:2]:
                compute += count * one.compute
                for name, seconds in one.exposed.items():
                    exposed[name] = exposed.get(name, 0.0) + count * seconds
                for name, seconds in one.total.items():
                    total[name] = total.get(name, 0.0) + count * seconds
        rows = times.stage == stage
        lasted = float((times.end_ps[rows] - times.start_ps[rows]).sum()) * 1e-12
        # Passes take longer than their work if they wait for parameters or for the host.
        beyond = lasted - compute - sum(exposed.values())
        if beyond < 0:  # jitter has made passes shorter than their work
            compute, beyond = compute + beyond, 0.0
        begin = 0.0
        if self.gathers and parallel.overlap_parameters:
            begin = float(times.start_ps[rows].min()) * 1e-12 if stage == 0 else 0.0
            waited = begin
            for c in range(chunks):
                one_row = rows & (times.chunk == c) & (times.microbatch == 0) & (times.kind == 0)
                took = float((times.end_ps[one_row] - times.start_ps[one_row]).sum()) * 1e-12
                extra = min(max(0.0, took - forward[stage, c]), beyond)
                waited += extra
                beyond -= extra
            exposed["dp all-gather"] = exposed.get("dp all-gather", 0.0) + waited
            total["dp all-gather"] = self.replicate("all_gather", stage, 1.0, 2.0)
        sent = 0.0
        if self.software.blocking_sends and parallel.pp > 1:
            sent = self._blocked(stage, sends)
            exposed["pp send"] = total["pp send"] = sent
        if parallel.zero != 3 and parallel.dp * parallel.cp > 1:
            kind = "dp all-reduce" if parallel.zero == 0 else "dp reduce-scatter"
            total[kind] = self._gradient_s(stage)
            exposed[kind] = exposed.get(kind, 0.0) + max(0.0, waits)
        end = float(times.end_ps[rows].max()) * 1e-12
        own = {"compute": compute, "bubble": max(0.0, end - lasted - sent - begin), "idle": beyond}
        return own | exposed, total

    def _blocked(self, stage: int, sends: NDArray[np.float64]) -> float:
        """Return the seconds that a stage waits for its sends."""
        parallel = self.parallel
        last = parallel.pp * parallel.vp - 1
        sent = 0.0
        for place in range(stage, last + 1, parallel.pp):
            sent += float(sends[stage, 0]) if place < last else 0.0
            sent += float(sends[stage - 1, 0]) if place > 0 else 0.0
        return sent * parallel.microbatches

    def _gradient_s(self, stage: int) -> float:
        kind = "all_reduce" if self.parallel.zero == 0 else "reduce_scatter"
        return self.replicate(kind, stage, 1.0, self.software.gradient_bytes)

    def _sum_gradients(self, stage: int, times: PipelineTimes, end: float) -> float:
        """Return when the gradients of a stage are summed over its replicas."""
        parallel = self.parallel
        if parallel.zero == 3 or parallel.dp * parallel.cp == 1:
            return end
        if not parallel.overlap_gradients:
            return end + self._gradient_s(stage)
        kind = "all_reduce" if parallel.zero == 0 else "reduce_scatter"
        size = self.software.gradient_bytes
        shares = self._buckets(stage)
        wanted = 2 if parallel.schedule == "zero-bubble" else 1
        rows = (times.stage == stage) & (times.kind == wanted)
        rows &= times.microbatch == parallel.microbatches - 1
        if parallel.schedule == "gpipe":
            rows = (times.stage == stage) & (times.kind == 1) & (times.microbatch == 0)
        free = total = 0.0
        for row in np.flatnonzero(rows).tolist():
            begin, done = float(times.start_ps[row]) * 1e-12, float(times.end_ps[row]) * 1e-12
            own = shares[int(times.chunk[row])]
            for i, share in enumerate(reversed(own)):
                ready = begin + (done - begin) * (i + 1) / len(own)
                seconds = self.replicate(kind, stage, share, size)
                free = max(free, ready) + seconds
                total += seconds
        after = max(end, free)
        # Hidden communication has slowed the passes down.
        return after + self.software.interference * max(0.0, total - (after - end))

    def _tie(self) -> float:
        """Return the seconds in which the first and the last stage sum the gradients of a shared embedding."""
        model, parallel = self.model, self.parallel
        if not isinstance(model, Transformer) or not model.tied or parallel.pp == 1:
            return 0.0
        ends = np.ascontiguousarray(self.groups.pp[:, [0, -1]])
        size = model.vocabulary * model.hidden / parallel.tp * self.software.gradient_bytes
        return self.costs.of(ends).seconds("all_reduce", size)

    def update_s(self, stage: int) -> float:
        """Return the seconds in which an NPU of a stage updates its parameters."""
        parts, parallel = self.parts[stage], self.parallel
        held = parts.dense + parts.experts
        if parallel.zero:
            replicas = parallel.dp * parallel.cp
            held = parts.dense / replicas + parts.experts / (replicas // parallel.ep)
        return optimizer_s(held, self.device)


def _ps(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.round(seconds.ravel() * 1e12).astype(np.int64)
