"""MultiTree: spanning trees that grow together, so that no two of them use a link in the same step.

J. Huang et al., ISCA 2021. The core (``cpp/synth/multitree.hpp``) grows the trees; here every chunk
goes down the tree of its holder, step by step. Sums go up trees that were grown on the reversed
network (:mod:`tacos.synth.phases`). On tori and meshes all links are in use nearly all of the time;
the speeds of links are ignored.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tacos._core import multitree as _multitree
from tacos.nodes import Node, Nodes
from tacos.schedule import retime
from tacos.synth import requirements
from tacos.synth.engine import Engine
from tacos.synth.moves import check_memory
from tacos.synth.phases import in_phases

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tacos._core import Collective, CollectivePart, Schedule, Topology

    Forest = tuple[NDArray[Any], list[NDArray[Any]], NDArray[Any]]

__all__ = ["MULTITREE", "multitree"]

_MOST_TREES = 1024
"""Largest number of trees: two seconds on a torus, ten through a switch (measured)."""


def multitree(
    topology: Topology,
    collective: Collective,
    *,
    roots: Sequence[Node] | None = None,
    progress: Callable[[float], object] | None = None,
) -> Schedule:
    """Grow one tree per root, in turn; chunks go up and down the trees.

    Args:
        topology: Any network.
        collective: All-gathers, reduce-scatters, all-reduces, broadcasts and reduces.
        roots: The NPUs at which an all-reduce forms its sums; all members by default. Fewer roots mean fewer
            trees, which may be shallower.
        progress: Called from time to time with the share of the work done.

    Raises:
        InfeasibleError: A root cannot reach a member; the message names them.
        ValueError: The collective is of a different kind, or the roots are not members.

    >>> import tacos
    >>> topo = tacos.topology.torus(8, 8, bandwidth="50GB/s", latency="500ns", link_model="blocking")
    >>> coll = tacos.collective.all_gather(topo, "64MB", chunks=1)
    >>> round(multitree(topo, coll).time_s / 20.5e-6)  # steps; 63 chunks over 4 links need 16
    17
    """
    MULTITREE.check(topology, collective)
    resolved = collective if collective.resolved else collective.with_chunks(1)
    owners = _owners(topology, resolved, roots)
    solve = partial(_spread, progress=progress)
    schedule = in_phases(topology, resolved, solve, owners=owners, progress=progress)
    options = {"roots": owners} if owners else {}
    return schedule.with_provenance({"engine": MULTITREE.name, **options})


def _obstacle(_topology: Topology, collective: Collective) -> str:
    for part in collective.parts:
        if needed := requirements.kind(part, lambda kind: kind.spreads):
            return needed
        if (members := len(part.group)) > _MOST_TREES:
            return f"a group of at most {_MOST_TREES} NPUs, not {members}"
    return ""


def _owners(topology: Topology, collective: Collective, roots: Sequence[Node] | None) -> list[int]:
    if roots is None:
        return []
    nodes = Nodes(topology)
    owners = [nodes.npu(root, what="roots") for root in roots]
    for part in collective.parts:
        members = set(part.group.tolist())
        if part.kind != "all_reduce":
            raise ValueError(f"roots are for an all-reduce, not for {part.label}")
        if not owners or len(set(owners)) < len(owners) or not members.issuperset(owners):
            raise ValueError(f"roots is {owners}; it must name members of the group, each once")
    return owners


def _spread(
    network: Topology, problem: Collective, progress: Callable[[float], object] | None
) -> Schedule:
    """Return a schedule that sends every chunk from its holder down a tree to the NPUs that need it."""
    roots: list[NDArray[Any]] = []
    members: list[NDArray[Any]] = []
    tree_of_chunk: list[NDArray[Any]] = []
    for part in problem.parts:
        root, reached, of_chunk = _forest(part)
        tree_of_chunk.append(of_chunk + sum(map(len, roots)))
        roots.append(root)
        members += reached
    begin = np.cumsum([0, *(len(row) for row in members)]).astype(np.int64)
    table, tree, step, route = _multitree(
        network,
        np.concatenate(roots).astype(np.int32),
        begin,
        np.concatenate([*members, np.zeros(0, np.int32)]).astype(np.int32),
        progress=progress,
    )
    edge, chunk = _carried(tree, np.concatenate(tree_of_chunk), len(begin) - 1)
    return retime(
        problem, table, route=route[edge], chunk=chunk, step=step[edge], progress=progress
    )


def _forest(part: CollectivePart) -> Forest:
    """Return the roots of the part's trees, the members of each, and which tree each chunk goes down."""
    if part.kind == "all_gather":
        trees = np.arange(len(part.group))
        return part.group, [part.group] * len(trees), np.repeat(trees, part.chunks)
    if part.kind == "broadcast":
        return part.group[part.root :][:1], [part.group], np.zeros(part.chunks, np.int64)
    # The second half of an all-reduce: each chunk spreads from its only holder.
    numbers: dict[tuple[int, bytes], int] = {}
    members, of_chunk = [], []
    for chunk in range(len(part.bytes)):
        root = int(part.inputs[part.input_begin[chunk]])
        needed = part.outputs[part.output_begin[chunk] : part.output_begin[chunk + 1]]
        key = root, needed.tobytes()
        if key not in numbers:
            numbers[key] = len(numbers)
            members.append(needed)
        of_chunk.append(numbers[key])
    roots = np.array([root for root, _ in numbers], np.int32)
    return roots, members, np.array(of_chunk, np.int64)


def _carried(
    tree: NDArray[Any], tree_of_chunk: NDArray[Any], trees: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return pairs of a tree's edge and a chunk that goes down the tree, ordered by edge and by chunk."""
    by_tree = np.argsort(tree_of_chunk, kind="stable")
    count = np.bincount(tree_of_chunk, minlength=trees)
    first = np.cumsum(count) - count
    copies = count[tree]
    check_memory(int(copies.sum()))
    edge = np.repeat(np.arange(len(tree)), copies)
    nth = np.arange(len(edge)) - np.repeat(np.cumsum(copies) - copies, copies)
    return edge, by_tree[first[tree[edge]] + nth].astype(np.uint32)


MULTITREE = Engine(
    name="multitree",
    solve=multitree,
    baseline=True,
    obstacle=_obstacle,
)
