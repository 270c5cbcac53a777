"""The graph of a training step: what every rank computes and communicates, and what waits for what.

All ranks of a stage do the same, so a stage is described once, as a template, and copied to its ranks with their own peers and
groups. Passes are in the order of the pipeline's schedule. The overlap follows from the graph: only nodes that need summed gradients
or gathered parameters wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tacos.training.compute import embedding_times, output_times
from tacos.training.models import Stack, Transformer
from tacos.workload import COLL, COMMS, COMP, RECV, SEND, from_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacos._core import PipelineTimes, Workload
    from tacos.training.compute import LayerTimes
    from tacos.training.folded import Folded
    from tacos.training.parallelism import Groups

__all__ = ["HOST", "MOST_NODES", "RING_TAG", "TENSOR_TAG", "RankNode", "graph", "rank_nodes"]

MOST_NODES = 20_000_000
"""Largest number of nodes of a graph; more would be gigabytes of traces that no simulator reads."""

HOST = "host"
"""Name of the nodes in which an NPU waits for its host."""
_HOST_TURN = -1

RING_TAG, TENSOR_TAG = 2**30, 2**29
"""Tags of messages within context-parallel and tensor-parallel groups begin here."""

_SUM_PIECES = 4
_FORWARD, _BACKWARD, _WEIGHTS = range(3)


@dataclass
class _Template:
    """The nodes of a stage's ranks; a node is identified by its position."""

    kind: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    size: list[float] = field(default_factory=list)
    comm: list[int] = field(default_factory=list)
    family: list[str] = field(default_factory=list)  # of groups, or of peers
    tag: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    waits: list[list[int]] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)  # number of the pass that it is part of
    now: int = 0
    tail: list[int] = field(default_factory=list)
    """Nodes that the next computation waits for."""

    def add(
        self,
        kind: int,
        name: str,
        waits: list[int],
        *,
        seconds: float = 0.0,
        size: float = 0.0,
        comm: int = 0,
        family: str = "",
        tag: int = 0,
    ) -> int:
        self.kind.append(kind)
        self.seconds.append(seconds)
        self.size.append(size)
        self.comm.append(comm)
        self.family.append(family)
        self.tag.append(tag)
        self.name.append(name)
        self.waits.append(list(dict.fromkeys(waits)))
        self.turn.append(self.now)
        return len(self.kind) - 1

    def compute(self, name: str, seconds: float) -> int:
        """Add a computation that waits for everything before it on the rank."""
        node = self.add(COMP, name, self.tail, seconds=seconds)
        self.tail = [node]
        return node

    def exchange(
        self, kind: str, family: str, size: float, members: int, waits: list[int]
    ) -> list[int]:
        """Add a collective, unless the group has one member. `size` is that of the whole buffer."""
        if members < 2 or size <= 0:
            return []
        part = size / members if kind == "all_gather" else size
        name = f"{family} {kind.replace('_', '-')}"
        return [self.add(COLL, name, waits, size=part, comm=COMMS[kind], family=family)]

    def blocking(self, kind: str, family: str, size: float, members: int) -> None:
        """Add a collective that the next computation waits for."""
        self.tail = self.exchange(kind, family, size, members, self.tail) or self.tail


class _Stage:
    """Writes the template of one pipeline stage."""

    def __init__(self, folded: Folded, stage: int) -> None:
        self.folded, self.stage = folded, stage
        self.model, self.parallel = folded.model, folded.parallel
        self.out = _Template()
        self.summed: list[int] = []  # sums of gradients, in order
        self.history: list[list[int]] = []  # what each layer that gathers its parameters waited for
        self.gathers: list[int] = []  # the last of these gathers
        self.gathered: dict[int, list[int]] = {}  # parameters of each layer that is gathered ahead
        parts = folded.parts[stage]
        layers = [folded.counts[c * self.parallel.pp + stage] for c in range(self.parallel.vp)]
        total = max(sum(layers), 1)
        self.dense, self.experts = parts.dense / total, parts.experts / total

    def write(self, times: PipelineTimes) -> _Template:
        parallel, out = self.parallel, self.out
        rows = np.flatnonzero(times.stage == self.stage)
        rows = rows[np.argsort(times.start_ps[rows], kind="stable")]
        if self.folded.gathers and parallel.overlap_parameters:
            self._gather_ahead()
        last = parallel.microbatches - 1
        split = parallel.schedule == "zero-bubble"
        for row in rows.tolist():
            chunk, batch = int(times.chunk[row]), int(times.microbatch[row])
            kind = int(times.kind[row])
            final = batch == (0 if parallel.schedule == "gpipe" else last)
            self._one_pass(kind, chunk, batch, final, split)
            out.now += 1
        self._finish()
        return out

    def _one_pass(self, kind: int, chunk: int, batch: int, final: bool, split: bool) -> None:
        folded, parallel, out = self.folded, self.parallel, self.out
        stages = parallel.pp
        place, places = chunk * stages + self.stage, stages * parallel.vp
        label = ("forward", "backward", "weights")[kind]
        source = place - 1 if kind == _FORWARD else place + 1
        if kind != _WEIGHTS and stages > 1 and 0 <= source < places:
            tag = (2 * source + kind) * parallel.microbatches + batch
            came = out.add(
                RECV, f"{label} in {batch}", [], size=folded.message_bytes(), tag=tag,
                family="before" if kind == _FORWARD else "after",
            )  # fmt: skip
            out.tail = [*out.tail, came]
            if parallel.tp > 1 and parallel.vp > 1 and not parallel.sequence_parallel:
                # Each rank of a tensor-parallel group has received its share.
                out.blocking("all_gather", "tp", folded.message_bytes() * parallel.tp, parallel.tp)
        first, end = folded.starts[place], folded.starts[place + 1]
        layers = range(first, end) if kind == _FORWARD else range(end - 1, first - 1, -1)
        if place == 0 and kind == _FORWARD:
            self._outer("embedding", kind, split)
        if place == places - 1 and kind != _FORWARD:
            self._outer("output", kind, split)
        for layer in layers:
            if kind == _WEIGHTS:
                times, _, _ = folded.work.layer(layer)
                out.compute(f"weights {layer}", times.weights)
            else:
                self._layer(kind, layer, split)
            sums = parallel.overlap_gradients and parallel.zero != 3
            if final and sums and kind == (_WEIGHTS if split else _BACKWARD):
                self._sum()
        if place == places - 1 and kind == _FORWARD:
            self._outer("output", kind, split)
        if place == 0 and kind != _FORWARD:
            self._outer("embedding", kind, split)
        target = place + 1 if kind == _FORWARD else place - 1
        if kind != _WEIGHTS and stages > 1 and 0 <= target < places:
            tag = (2 * place + kind) * parallel.microbatches + batch
            out.add(
                SEND, f"{label} out {batch}", out.tail, size=folded.message_bytes(), tag=tag,
                family="after" if kind == _FORWARD else "before",
            )  # fmt: skip

    # Layers.

    def _layer(self, kind: int, layer: int, split: bool) -> None:
        folded, parallel, model = self.folded, self.parallel, self.model
        times, ahead, back = folded.work.layer(layer)
        sharded = parallel.zero == 3 and parallel.dp * parallel.cp > 1
        if sharded:
            self._gather_layer()
        elif kind == _FORWARD and layer in self.gathered:
            self.out.tail = [*self.out.tail, *self.gathered.pop(layer)]
        if isinstance(model, Stack):
            self._stack_layer(kind, layer, ahead.compute, back.compute)
        elif kind == _FORWARD:
            self._passed(layer, "forward", times, times.forward)
        else:
            if parallel.recompute == "full":
                self._passed(layer, "again", times, times.forward)
            elif parallel.recompute == "selective":
                self.out.compute(f"attention again {layer}", times.attention)
            self._passed(layer, "backward", times, times.inputs if split else times.backward)
        if sharded and kind == _BACKWARD:
            self._sum()

    def _passed(self, layer: int, label: str, times: LayerTimes, seconds: float) -> None:
        """Add one pass through a layer: attention, then the feed-forward network, each between its exchanges."""
        parallel, model, out = self.parallel, self.model, self.out
        assert isinstance(model, Transformer)
        backward = label == "backward"
        tokens = parallel.microbatch * model.sequence / parallel.cp
        size = 2.0 * tokens * model.hidden
        sparse = model.experts is not None and layer >= model.experts.dense
        beside: list[int] = []
        if sparse and parallel.overlap_experts:
            # The exchanges of one micro-batch run concurrently with the computation of another.
            beside = self._to_experts(tokens, self._to_experts(tokens, out.tail))
        for half in ("network", "attention") if backward else ("attention", "network"):
            name = f"{label} {half} {layer}"
            place = 0 if half == "attention" else 1
            share = seconds / 2
            # Gradients of inputs and of weights are two products.
            enter = min(times.enter[place] * (2 if backward else 1), share) if times.enter else 0.0
            leave = (
                min(times.leave[place] * (2 if backward else 1), share - enter)
                if times.leave
                else 0.0
            )
            pieces = parallel.tp if parallel.overlap_tensor else 1
            enter, leave = (enter, leave) if pieces > 1 else (0.0, 0.0)
            if parallel.tp > 1 and parallel.sequence_parallel:
                before = self._gathered(f"{name} enter", size, enter, pieces)
            else:
                enter, before = 0.0, list(out.tail)
            if half == "network" and sparse and not parallel.overlap_experts:
                out.tail = self._to_experts(tokens, out.tail)
                before = list(out.tail)
            rest = share - enter - leave
            if half == "attention" and parallel.cp > 1:
                attention = times.attention * (2.5 if backward else 1.0)
                self._ring(name, rest, min(attention, rest), tokens, 2.0 if backward else 1.0)
            else:
                out.compute(name, rest)
            again: list[int] = []
            if backward and parallel.tp > 1 and parallel.sequence_parallel:
                # Gradients of weights need the gathered input again, which is gathered during the computation.
                again = out.exchange("all_gather", "tp", size, parallel.tp, before)
            if half == "network" and sparse and not parallel.overlap_experts:
                out.tail = self._to_experts(tokens, [*out.tail, *again])
                again = []
            if parallel.tp > 1:
                self._reduced(f"{name} leave", size, leave, pieces, again)
        out.tail += beside

    def _gathered(self, name: str, size: float, seconds: float, pieces: int) -> list[int]:
        """Add a gather and the product that follows; return the node that a second gather may wait for.

        With pieces, parts go round the group, and the product with one part runs while the next part arrives.
        """
        out, before = self.out, list(self.out.tail)
        if pieces == 1:
            out.blocking("all_gather", "tp", size, self.parallel.tp)
            return list(out.tail)
        coming = before
        for piece in range(pieces - 1):
            coming = self._turn("tp all-gather", size / pieces, coming)
            out.tail = [*out.tail, *coming] if piece else list(coming)
            out.compute(f"{name} {piece}", seconds / pieces)
        out.compute(f"{name} {pieces - 1}", seconds / pieces)  # with its own part
        return before

    def _reduced(
        self, name: str, size: float, seconds: float, pieces: int, also: list[int]
    ) -> None:
        """Add a product and the sum of its results over the group; the next computation waits for the sum."""
        out, tp = self.out, self.parallel.tp
        if not self.parallel.sequence_parallel:
            # An all-reduce cannot be cut into ring steps; few pieces limit the number of latencies.
            pieces = min(pieces, _SUM_PIECES)
        elif pieces > 1:
            out.compute(f"{name} 0", seconds / pieces)  # its own part
            came: list[int] = []
            for piece in range(1, pieces):
                out.compute(f"{name} {piece}", seconds / pieces)
                came = self._turn("tp reduce-scatter", size / pieces, [*out.tail, *came])
            out.tail = [*out.tail, *came, *also]
            return
        kind = "reduce_scatter" if self.parallel.sequence_parallel else "all_reduce"
        done: list[int] = []
        for piece in range(pieces):
            if seconds:
                out.compute(f"{name} {piece}", seconds / pieces)
            waits = [*out.tail, *done, *(also if piece + 1 == pieces else [])]
            done = out.exchange(kind, "tp", size / pieces, tp, waits)
        out.tail = done

    def _turn(self, name: str, size: float, waits: list[int]) -> list[int]:
        """Add a send to the next rank of the tensor-parallel group and a receive from the previous one."""
        self.out.add(SEND, name, waits, size=size, family="tp next")
        return [self.out.add(RECV, name, waits, size=size, family="tp last")]

    def _ring(
        self, name: str, seconds: float, attention: float, tokens: float, factor: float
    ) -> None:
        """Add attention over a sequence of which each rank has a part: keys and values go round while it computes."""
        parallel, model, out = self.parallel, self.model, self.out
        assert isinstance(model, Transformer)
        heads = max(model.kv_heads / parallel.tp, 1.0)
        part = 4.0 * tokens * heads * model.head * factor
        out.compute(name, seconds - attention)
        there = list(out.tail)
        for turn in range(parallel.cp):
            coming: list[int] = []
            if turn + 1 < parallel.cp:
                out.add(SEND, f"{name} keys {turn}", there, size=part, family="next", tag=-1)
                coming = [
                    out.add(RECV, f"{name} keys {turn}", there, size=part, family="last", tag=-1)
                ]
            out.compute(f"{name} part {turn}", attention / parallel.cp)
            there = coming
            out.tail = [*out.tail, *coming]

    def _to_experts(self, tokens: float, waits: list[int]) -> list[int]:
        """Add the exchange of tokens with experts; return the nodes to wait for, unchanged if all experts are local."""
        parallel, model = self.parallel, self.model
        assert isinstance(model, Transformer)
        assert model.experts is not None
        shared = parallel.tp if parallel.sequence_parallel else 1
        sent = 2.0 * tokens * model.experts.active * model.hidden / shared
        return self.out.exchange("all_to_all", "ep", sent, parallel.ep, waits) or waits

    def _stack_layer(self, kind: int, layer: int, forward: float, backward: float) -> None:
        model = self.model
        assert isinstance(model, Stack)
        label = "forward" if kind == _FORWARD else "backward"
        self.out.compute(f"{label} {layer}", forward if kind == _FORWARD else backward)
        exchanged = model.layer_list[layer].exchanged * self.parallel.microbatch * 2.0
        self.out.blocking("all_to_all", "dp", exchanged, self.parallel.dp * self.parallel.cp)

    def _outer(self, what: str, kind: int, split: bool) -> None:
        """Add the embedding, or the output layer with the loss."""
        folded, parallel, out = self.folded, self.parallel, self.out
        if isinstance(self.model, Stack):
            return
        first = what == "embedding"
        build = embedding_times if first else output_times
        times = build(self.model, parallel, folded.device)
        if kind == _WEIGHTS:
            if times.weights:
                out.compute(f"{what} weights", times.weights)
            return
        back = times.inputs if split else times.backward
        size = 2.0 * parallel.microbatch * self.model.sequence / parallel.cp * self.model.hidden
        sums = (kind == _FORWARD) == first
        gathers = parallel.sequence_parallel and not sums
        if parallel.tp > 1 and gathers:
            out.blocking("all_gather", "tp", size, parallel.tp)
        out.compute(what, times.forward if kind == _FORWARD else back)
        if parallel.tp > 1 and sums:
            name = "reduce_scatter" if parallel.sequence_parallel else "all_reduce"
            out.blocking(name, "tp", size, parallel.tp)

    # Parameters and gradients.

    def _replicated(self, kind: str, each: float, waits: list[int], layers: int = 1) -> list[int]:
        """Add a collective between replicas over the parameters of layers, `each` bytes per parameter."""
        each *= layers
        parallel, out = self.parallel, self.out
        replicas = parallel.dp * parallel.cp
        found = out.exchange(kind, "dp", self.dense * each, replicas, waits)
        if self.experts:
            after = found or waits
            found += out.exchange(kind, "edp", self.experts * each, replicas // parallel.ep, after)
        return found[-1:]

    def _gather_ahead(self) -> None:
        """Gather the updated parameters while the first passes run."""
        before: list[int] = []
        for chunk in range(self.parallel.vp):
            place = chunk * self.parallel.pp + self.stage
            for layer in range(self.folded.starts[place], self.folded.starts[place + 1]):
                before = self._replicated("all_gather", 2.0, before) or before
                self.gathered[layer] = before

    def _gather_layer(self) -> None:
        """Let a layer wait for its sharded parameters, which are gathered some layers ahead."""
        ahead, out = self.parallel.prefetch, self.out
        waits = [*self.gathers, *self.summed[-1:]]
        # Memory is free once the layer that many positions earlier has been computed.
        if len(self.history) > ahead:
            waits += self.history[-ahead]
        found = self._replicated("all_gather", 2.0, waits)
        self.gathers = found or self.gathers
        self.history.append(list(out.tail))
        out.tail = [*out.tail, *found]

    def _sum(self, layers: int = 1) -> None:
        """Sum the gradients of layers over replicas, one sum after another."""
        parallel, folded = self.parallel, self.folded
        kind = "all_reduce" if parallel.zero == 0 else "reduce_scatter"
        waits = [*self.out.tail, *self.summed[-1:]]
        self.summed += self._replicated(kind, folded.software.gradient_bytes, waits, layers)

    def _finish(self) -> None:
        """Add the optimizer, after all gradients, and the gather of new parameters."""
        folded, parallel, out = self.folded, self.parallel, self.out
        chunks = range(parallel.vp)
        layers = sum(folded.counts[c * parallel.pp + self.stage] for c in chunks)
        if not parallel.overlap_gradients and parallel.zero != 3:
            self._sum(layers)
        out.tail = [*out.tail, *self.summed[-1:]]
        model = self.model
        ends = parallel.pp > 1 and self.stage in (0, parallel.pp - 1)
        if ends and isinstance(model, Transformer) and model.tied:
            weights = model.vocabulary * model.hidden / parallel.tp
            out.blocking("all_reduce", "embedding", weights * folded.software.gradient_bytes, 2)
        out.compute("optimizer", folded.update_s(self.stage))
        if folded.software.step_s:
            out.now = _HOST_TURN
            out.compute(HOST, folded.software.step_s)
        if folded.gathers and not parallel.overlap_parameters:
            self._replicated("all_gather", 2.0, out.tail, layers)


class RankNode(NamedTuple):
    """What a rank computes, or exchanges with others.

    Attributes:
        kind: ``COMP``, ``COLL`` or ``RECV``, as in :mod:`tacos.workload`.
        seconds: Of a computation.
        bytes: Of a message, or of the whole buffer of a collective.
        collective: Such as ``"all_reduce"``.
        members: The ranks of the first group of its kind, or two ranks that a message of its kind goes between.
        awaited: Whether another node of the rank waits for it.
    """

    kind: int
    seconds: float
    bytes: float
    collective: str
    members: tuple[int, ...]
    awaited: bool


def rank_nodes(folded: Folded, times: PipelineTimes, stage: int) -> list[RankNode]:
    """Return what a rank of a stage does, in order; what it sends is what others receive.

    >>> import tacos
    >>> from tacos import training
    >>> found = training.step(training.model("mpt-125m"), training.Parallelism(tp=4, pp=2, batch=4), "dgx-h100:1")
    >>> {node.members for node in rank_nodes(found.folded, found.passes, 1) if node.members}
    {(0, 1, 2, 3), (0, 4)}
    """
    groups = folded.groups
    rows = {name: table[0] for name, table in _families(groups, folded.parallel.pp).items()}
    lines = {"before": groups.pp, "after": groups.pp, "last": groups.cp, "next": groups.cp}
    lines |= {"tp last": groups.tp, "tp next": groups.tp}
    rows |= {name: table[0, :2] for name, table in lines.items()}
    names = {code: name for name, code in COMMS.items()}
    template = _Stage(folded, stage).write(times)
    awaited = {node for waits in template.waits for node in waits}
    found = []
    for i, kind in enumerate(template.kind):
        members = () if kind == COMP else tuple(rows[template.family[i]].tolist())
        collective = names[template.comm[i]] if kind == COLL else ""
        size = template.size[i] * (len(members) if collective == "all_gather" else 1)
        if kind != SEND:
            found.append(
                RankNode(kind, template.seconds[i], size, collective, members, i in awaited)
            )
    return found


def _families(groups: Groups, stages: int) -> dict[str, NDArray[np.int32]]:
    """Return the groups of each kind of collective."""
    ends = np.ascontiguousarray(groups.pp[:, [0, -1]]) if stages > 1 else groups.pp
    return {
        "tp": groups.tp,
        "cp": groups.cp,
        "ep": groups.ep,
        "dp": groups.dp,
        "edp": groups.edp,
        "embedding": ends,
    }


def graph(folded: Folded, times: PipelineTimes) -> Workload:
    """Return the workload of all ranks of a step.

    Args:
        folded: The step.
        times: When its passes run; only their order matters.

    Raises:
        ValueError: There are too many nodes.
    """
    parallel, groups = folded.parallel, folded.groups
    number, members = _numbered(_families(groups, parallel.pp), parallel.npus)
    stage_of = np.empty(parallel.npus, np.int64)
    stage_of[groups.pp] = np.arange(parallel.pp)
    peers = _peers(groups.pp, groups.cp, groups.tp, parallel.npus)
    columns: dict[str, list[NDArray[Any]]] = {
        name: []
        for name in (
            "rank",
            "kind",
            "peer",
            "bytes",
            "tag",
            "duration_ps",
            "comm",
            "group",
            "name",
            "turn",
            "waits",
            "dep",
        )
    }
    names: dict[str, int] = {}
    rows = 0
    for stage in range(parallel.pp):
        template = _Stage(folded, stage).write(times)
        ranks = np.flatnonzero(stage_of == stage)
        count = len(template.kind)
        rows += count * len(ranks)
        if rows > MOST_NODES:
            raise ValueError(
                f"the graph of this step has more than {MOST_NODES:,} nodes; use fewer NPUs or micro-batches"
            )
        _copy(template, ranks, number, peers, names, columns)
    starts = np.cumsum([0, *(len(block) for block in columns["rank"])])
    waits = np.concatenate(columns["waits"])
    dep = np.concatenate(
        [block + start for block, start in zip(columns["dep"], starts, strict=False)]
    )
    named = list(names)
    given = {
        name: np.concatenate(columns[name])
        for name in ("rank", "kind", "peer", "bytes", "tag", "duration_ps", "comm", "group")
    }
    _disturb(folded, given["rank"], np.concatenate(columns["turn"]), given["duration_ps"])
    return from_nodes(
        parallel.npus,
        **given,
        names=[named[i] for i in np.concatenate(columns["name"]).tolist()],
        dep_begin=np.concatenate([[0], np.cumsum(waits)]),
        dep=dep,
        groups=members,
    )


def _disturb(
    folded: Folded, rank: NDArray[np.int64], turn: NDArray[np.int64], duration: NDArray[np.int64]
) -> None:
    """Slow stragglers down, and vary every pass of a rank by a random share."""
    factor = np.ones(folded.parallel.npus)
    for npu, slower in folded.stragglers.items():
        factor[npu] = slower
    stretch = factor[rank]
    if folded.jitter > 0:
        shape = folded.parallel.npus, int(turn.max()) + 1
        noise = np.random.default_rng(folded.seed).normal(0.0, folded.jitter, shape)
        stretch *= 1.0 + np.maximum(noise, -0.9)[rank, turn]
    stretch[turn == _HOST_TURN] = 1.0
    if folded.stragglers or folded.jitter > 0:
        duration[:] = np.rint(duration * stretch).astype(np.int64)


def _numbered(
    tables: dict[str, NDArray[np.int32]], npus: int
) -> tuple[dict[str, NDArray[np.int64]], dict[int, list[int]]]:
    """Return the group of each rank in each family; groups with the same members share a number."""
    known: dict[tuple[int, ...], int] = {}
    number = {}
    for family, table in tables.items():
        mine = np.zeros(npus, np.int64)
        if table.shape[1] > 1:
            for row in table.tolist():
                key = tuple(sorted(row))
                mine[row] = known.setdefault(key, len(known) + 1)
        number[family] = mine
    return number, {place: list(key) for key, place in known.items()}


def _peers(
    line: NDArray[np.int32], ring: NDArray[np.int32], tensor: NDArray[np.int32], npus: int
) -> dict[str, NDArray[np.int64]]:
    """Return each rank's neighbours in its pipeline, its context-parallel ring and its tensor-parallel group."""
    found = {}
    for name, table, shift in (
        ("before", line, 1),
        ("after", line, -1),
        ("last", ring, 1),
        ("next", ring, -1),
        ("tp last", tensor, 1),
        ("tp next", tensor, -1),
    ):
        found[name] = np.empty(npus, np.int64)
        found[name][table] = np.roll(table, shift, axis=1)
    return found


def _copy(
    template: _Template,
    ranks: NDArray[np.int64],
    number: dict[str, NDArray[np.int64]],
    peers: dict[str, NDArray[np.int64]],
    names: dict[str, int],
    columns: dict[str, list[NDArray[Any]]],
) -> None:
    """Append the nodes of all ranks of a stage."""
    count, many = len(template.kind), len(ranks)
    kind = np.array(template.kind, np.int64)
    # Messages round a group are identified by their order among the messages to a peer.
    tag = np.array(template.tag, np.int64)
    family = np.array(template.family)
    for name, first in (
        ("next", RING_TAG),
        ("last", RING_TAG),
        ("tp next", TENSOR_TAG),
        ("tp last", TENSOR_TAG),
    ):
        here = np.flatnonzero(family == name)
        tag[here] = first + np.arange(len(here))
    peer = np.full((many, count), -1, np.int64)
    group = np.zeros((many, count), np.int64)
    for name, table in peers.items():
        here = np.flatnonzero(family == name)
        peer[:, here] = table[ranks][:, None]
    for name, table in number.items():
        here = np.flatnonzero((family == name) & (kind == COLL))
        group[:, here] = table[ranks][:, None]
    waits = np.array([len(one) for one in template.waits], np.int64)
    dep = np.array([place for one in template.waits for place in one], np.int64)
    block = np.arange(many)[:, None] * count
    size = np.maximum(np.rint(template.size), (np.array(template.size) > 0).astype(float))
    place = np.array([names.setdefault(name, len(names)) for name in template.name], np.int64)
    duration = np.maximum(np.rint(np.array(template.seconds) * 1e12), 0).astype(np.int64)
    for name, values in {
        "kind": kind,
        "bytes": size.astype(np.int64),
        "tag": tag,
        "duration_ps": duration,
        "comm": np.array(template.comm, np.int64),
        "name": place,
        "turn": np.array(template.turn, np.int64),
        "waits": waits,
    }.items():
        columns[name].append(np.tile(values, many))
    columns["rank"].append(np.repeat(ranks, count))
    columns["peer"].append(peer.ravel())
    columns["group"].append(group.ravel())
    columns["dep"].append((block + dep[None, :]).ravel())
