"""The exact fidelity: every rank, and every transfer of every collective, over links that are shared.

The graph of a step (``tacos/training/graph.py``) has a node per collective and rank. Here each of these nodes becomes the sends and
receives of its algorithm, and the whole graph runs in ``cpp/simulate/run_workload.cpp``, which determines what overlaps and what waits
for a link.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import run_workload
from tacos.schedule import routes
from tacos.simulate.timeline import Timeline
from tacos.training.communication import LAUNCH_S
from tacos.training.graph import HOST, RING_TAG, TENSOR_TAG
from tacos.workload import COLL, COMMS, COMP, RECV, SEND

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Workload
    from tacos.training.communication import Communication
    from tacos.training.parallelism import Groups
    from tacos.training.step import Step

__all__ = ["MOST_EVENTS", "accounted", "exact", "family_tables"]

MOST_EVENTS = 50_000_000
"""Largest number of nodes of a simulation; more would take minutes and gigabytes."""

_SENDS, _RECEIVES, _COMPUTES, _PAUSES = range(4)
_COMM_NAMES = {number: name for name, number in COMMS.items()}


def exact(step: Step, *, progress: Callable[[float], object] | None = None) -> Step:
    """Return a step with times from a simulation of all ranks and transfers.

    Args:
        step: As :func:`tacos.training.step.step` predicts it.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: There are too many transfers, or a collective has no algorithm that can be simulated.

    >>> import tacos
    >>> from tacos import training
    >>> model = training.Transformer(name="small", layers=2, hidden=2048, heads=16, ffn=8192, vocabulary=32000, sequence=2048)
    >>> split = training.Parallelism(tp=4, pp=2, batch=4)
    >>> rough = training.step(model, split, tacos.topology.dgx_h100(1), collectives="ring")
    >>> fine = exact(rough)
    >>> abs(fine.time_s / rough.time_s - 1) < 0.05
    True
    """
    assert step.folded is not None
    workload, costs = step.workload, step.folded.costs
    lowered = _Lowered(workload, costs, step.folded.groups)
    return accounted(step, Timeline(workload, *lowered.run(progress)))


def family_tables(groups: Groups) -> dict[str, NDArray[np.int32]]:
    """Return all groups of each family by the name that its collectives begin with."""
    ends = np.ascontiguousarray(groups.pp[:, [0, -1]])
    return {one.name: getattr(groups, one.name) for one in fields(groups)} | {"embedding": ends}


@dataclass(frozen=True)
class _Algorithm:
    """The nodes of one collective's program, by place in its group."""

    rank: NDArray[np.int64]
    kind: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    message: NDArray[np.int64]
    waits: NDArray[np.int64]  # per node, how many it waits for, at least one
    dep: NDArray[np.int64]  # nodes, or -1 - r for the launch of rank r
    src: NDArray[np.int64]  # per message
    dst: NDArray[np.int64]
    bytes: NDArray[np.int64]
    leaves: list[NDArray[np.int64]]  # per rank, nodes that nothing within the program waits for


class _Lowered:
    """The columns of a lowered workload: the workload's nodes, then those of its collectives' programs."""

    def __init__(self, workload: Workload, costs: Communication, groups: Groups) -> None:
        self.workload, self.costs = workload, costs
        self.tables = family_tables(groups)
        # Members of a group in the order in which its algorithm numbers them.
        self.rows = {
            (name, tuple(sorted(row))): np.array(row)
            for name, table in self.tables.items()
            for row in table.tolist()
        }
        self.algorithms: dict[tuple[str, int, int], _Algorithm] = {}
        self.blocks: list[dict[str, NDArray[Any]]] = []
        self.nodes, self.messages = len(workload.rank), 0
        self.src: list[NDArray[np.int64]] = []
        self.dst: list[NDArray[np.int64]] = []
        self.bytes: list[NDArray[np.int64]] = []

    def run(
        self, progress: Callable[[float], object] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start and end of the workload's nodes."""
        base = self._base()
        begin, dep = self.workload.dep_begin, self.workload.dep
        own = [dep[a:b] for a, b in pairwise(begin.tolist())]
        for nodes in self._instances():
            self._expand(nodes, own)
        count = self.nodes
        lengths = np.concatenate([[len(one) for one in own], *(b["waits"] for b in self.blocks)])
        whole = {
            name: np.concatenate([base[name], *(block[name] for block in self.blocks)])
            for name in ("rank", "kind", "duration_ps", "message")
        }
        deps = np.concatenate([*own, *(block["dep"] for block in self.blocks)])
        src, dst = np.concatenate(self.src), np.concatenate(self.dst)
        pairs, connection = np.unique(np.stack([src, dst], 1), axis=0, return_inverse=True)
        if not len(pairs):
            pairs = np.array([[0, 1]])
        network = self.costs.physical()
        start, end = run_workload(
            routes(network, pairs=(pairs[:, 0], pairs[:, 1])),
            rank=whole["rank"].astype(np.int32),
            kind=whole["kind"].astype(np.uint8),
            duration_ps=whole["duration_ps"].astype(np.int64),
            message=whole["message"].astype(np.int32),
            dep_begin=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            dep=deps.astype(np.int64),
            bytes=np.concatenate(self.bytes).astype(np.int64),
            connection=connection.ravel().astype(np.int32),
            connection_route=np.arange(len(pairs), dtype=np.int32),
            progress=progress,
        )
        assert count == len(start)
        return start[: len(self.workload.rank)], end[: len(self.workload.rank)]

    def _base(self) -> dict[str, NDArray[Any]]:
        """Return the workload's own nodes, with each collective as a pause that ends when its program does."""
        w = self.workload
        kind = np.full(len(w.rank), _PAUSES)
        for theirs, ours in ((SEND, _SENDS), (RECV, _RECEIVES), (COMP, _COMPUTES)):
            kind[w.kind == theirs] = ours
        message = np.full(len(w.rank), -1, np.int64)
        sends, receives = np.flatnonzero(w.kind == SEND), np.flatnonzero(w.kind == RECV)
        # The n-th send and the n-th receive with the same ends, tag and size belong together.
        order = [
            rows[np.lexsort((rows, w.bytes[rows], w.tag[rows], *ends))]
            for rows, ends in (
                (sends, (w.peer[sends], w.rank[sends])),
                (receives, (w.rank[receives], w.peer[receives])),
            )
        ]
        if len(order[0]) != len(order[1]):
            raise ValueError(f"there are {len(order[0])} sends but {len(order[1])} receives")
        message[order[0]] = message[order[1]] = np.arange(len(order[0]))
        self.messages = len(order[0])
        self.src.append(w.rank[order[0]].astype(np.int64))
        self.dst.append(w.peer[order[0]].astype(np.int64))
        self.bytes.append(w.bytes[order[0]])
        duration = np.where(w.kind == COMP, w.duration_ps, 0)
        return {"rank": w.rank, "kind": kind, "duration_ps": duration, "message": message}

    def _instances(self) -> list[NDArray[np.int64]]:
        """Return the nodes of each collective, one per member of its group; the n-th nodes of all members belong together."""
        w = self.workload
        rows = np.flatnonzero(w.kind == COLL)
        if not len(rows):
            return []
        turn = np.empty(len(rows), np.int64)
        order = np.lexsort((rows, w.rank[rows], w.group[rows]))
        key = np.stack([w.group[rows[order]], w.rank[rows[order]]], 1)
        fresh = np.r_[True, (key[1:] != key[:-1]).any(1)]
        first = np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))
        turn[order] = np.arange(len(order)) - first
        order = np.lexsort((w.rank[rows], turn, w.group[rows]))
        key = np.stack([w.group[rows[order]], turn[order]], 1)
        cuts = np.flatnonzero((key[1:] != key[:-1]).any(1)) + 1
        return list(np.split(rows[order], cuts))

    def _expand(self, nodes: NDArray[np.int64], own: list[NDArray[np.int64]]) -> None:
        """Append the program of a collective, and let its nodes wait for it."""
        w = self.workload
        comm, size = int(w.comm[nodes[0]]), int(w.bytes[nodes[0]])
        family = str(w.names[w.name[nodes[0]]]).partition(" ")[0]
        ranks = w.rank[nodes]
        members = self.rows[family, tuple(ranks.tolist())]
        nodes = nodes[np.searchsorted(ranks, members)]
        one = self._algorithm(family, comm, size)
        launch = self.nodes  # a pause per member, then the program
        first = launch + len(members)
        before = [own[node] for node in nodes.tolist()]
        for place, node in enumerate(nodes.tolist()):
            mine = one.leaves[place] + first
            own[node] = mine if len(mine) else np.array([launch + place])
        count = len(members) + len(one.rank)
        self.nodes += count
        if self.nodes > MOST_EVENTS:
            raise ValueError(
                f"an exact simulation of this step has more than {MOST_EVENTS:,} nodes; use folded, or fewer layers or NPUs"
            )
        self.blocks.append(
            {
                "rank": np.concatenate([members, members[one.rank]]),
                "kind": np.concatenate([np.full(len(members), _PAUSES), one.kind]),
                "duration_ps": np.concatenate(
                    [np.full(len(members), round(LAUNCH_S * 1e12)), one.duration_ps]
                ),
                "message": np.concatenate(
                    [
                        np.full(len(members), -1),
                        np.where(one.message >= 0, one.message + self.messages, -1),
                    ]
                ),
                "waits": np.concatenate([[len(each) for each in before], one.waits]),
                "dep": np.concatenate(
                    [*before, np.where(one.dep >= 0, one.dep + first, launch - 1 - one.dep)]
                ),
            }
        )
        self.messages += len(one.bytes)
        self.src.append(members[one.src])
        self.dst.append(members[one.dst])
        self.bytes.append(one.bytes)

    def _algorithm(self, family: str, comm: int, size: int) -> _Algorithm:
        """Return the program of a collective, which all groups of a family use."""
        key = family, comm, size
        if key not in self.algorithms:
            table, kind = self.tables[family], _COMM_NAMES[comm]
            whole = size * table.shape[1] if kind == "all_gather" else size
            self.algorithms[key] = _columns(self.costs.of(table).algorithm(kind, whole)[0].workload)
        return self.algorithms[key]


def _columns(w: Workload) -> _Algorithm:
    kind = np.full(len(w.rank), _PAUSES)
    kind[w.kind == SEND], kind[w.kind == RECV] = _SENDS, _RECEIVES
    message = np.full(len(w.rank), -1, np.int64)
    sends, receives = np.flatnonzero(w.kind == SEND), np.flatnonzero(w.kind == RECV)
    out = sends[np.lexsort((sends, w.bytes[sends], w.tag[sends], w.peer[sends], w.rank[sends]))]
    came = receives[
        np.lexsort(
            (receives, w.bytes[receives], w.tag[receives], w.rank[receives], w.peer[receives])
        )
    ]
    message[out] = message[came] = np.arange(len(out))
    counts = np.diff(w.dep_begin)
    roots = np.flatnonzero(counts == 0)
    dep = np.insert(w.dep.astype(np.int64), w.dep_begin[roots], -1 - w.rank[roots].astype(np.int64))
    waited = np.zeros(len(w.rank), bool)
    waited[w.dep] = True
    return _Algorithm(
        rank=w.rank.astype(np.int64),
        kind=kind,
        duration_ps=np.where(w.kind == COMP, w.duration_ps, 0),
        message=message,
        waits=np.maximum(counts, 1),
        dep=dep,
        src=w.rank[out].astype(np.int64),
        dst=w.peer[out].astype(np.int64),
        bytes=w.bytes[out],
        leaves=[np.flatnonzero(~waited & (w.rank == rank)) for rank in range(w.npus)],
    )


def accounted(step: Step, line: Timeline) -> Step:
    """Return the step with simulated times. A gap before a computation is attributed to what it waited for last."""
    workload, start, end = line.workload, line.begin_ps, line.end_ps
    ranks = workload.npus
    whole = int(end.max())
    computes = np.flatnonzero(workload.kind == COMP)
    order = computes[np.lexsort((start[computes], workload.rank[computes]))]
    rank = workload.rank[order]
    first = np.r_[True, rank[1:] != rank[:-1]]
    before = np.where(first, 0, np.r_[0, end[order[:-1]]])
    gaps = start[order] - before
    lasted = end[order] - start[order]
    host = np.array([name == HOST for name in workload.names])[workload.name[order]]
    sums: dict[str, float] = {
        "compute": float(lasted[~host].sum()),
        "idle": float(lasted[host].sum()),
        "bubble": 0.0,
    }
    for place in np.flatnonzero(gaps > 0).tolist():
        node, since, until = int(order[place]), int(before[place]), int(start[order[place]])
        # The cause is the node that ended last, from when it could begin; before that, what it waited for.
        while until > since:
            deps = workload.dep[workload.dep_begin[node] : workload.dep_begin[node + 1]]
            cause = int(deps[np.argmax(end[deps])]) if len(deps) else -1
            begin = since
            if cause >= 0 and (workload.kind[cause] == COLL or workload.tag[cause] >= TENSOR_TAG):
                its = workload.dep[workload.dep_begin[cause] : workload.dep_begin[cause + 1]]
                begin = max(since, int(end[its].max()) if len(its) else 0)
            name = "bubble" if cause < 0 else _cause(workload, cause)
            sums[name] = sums.get(name, 0.0) + float(until - begin)
            node, until = cause, begin
    last = np.zeros(ranks, np.int64)
    np.maximum.at(last, workload.rank, end)
    computed = np.zeros(ranks, np.int64)
    np.maximum.at(computed, workload.rank[computes], end[computes])
    # After its last computation a rank gathers parameters, or waits for the others.
    after = float((last - computed).sum())
    if after:
        sums["dp all-gather"] = sums.get("dp all-gather", 0.0) + after
    sums["bubble"] += float((whole - last).sum())
    own = ("compute", "idle", "bubble")
    return replace(
        step,
        time_s=whole * 1e-12,
        compute_s=sums["compute"] / ranks * 1e-12,
        exposed={n: ps / ranks * 1e-12 for n, ps in sums.items() if ps and n not in own},
        bubble_s=sums["bubble"] / ranks * 1e-12,
        idle_s=sums["idle"] / ranks * 1e-12,
        fidelity="exact",
        ran=line,
    )


def _cause(workload: Workload, node: int) -> str:
    if workload.kind[node] == COLL:
        return str(workload.names[workload.name[node]])
    if workload.kind[node] == RECV and workload.tag[node] >= RING_TAG:
        return "cp send"
    if workload.kind[node] == RECV and workload.tag[node] >= TENSOR_TAG:
        return str(workload.names[workload.name[node]])
    return "bubble"
