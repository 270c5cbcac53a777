"""Steps under ASTRA-sim's rules, and the files with which ASTRA-sim itself runs them.

The graph of a step (``tacos/training/graph.py``) becomes what ASTRA-sim can run:

- Every collective is a custom collective: the algorithm that the step uses, with its own size. ASTRA-sim selects it by the node's
  number, which is the same on all ranks, so numbers are unique across pipeline stages. It keeps one algorithm per kind and group,
  so every algorithm has separate groups with the same members.
- Computations last whole microseconds, as traces require; the remainder of one is added to the next.
- Messages between stages have tags that no algorithm uses.

A rank of ASTRA-sim has one send or collective in flight at a time, so less overlaps than in the other fidelities.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tacos._core import Workload
from tacos.formats import chakra
from tacos.formats.astra_network import Dimensions, dimensions
from tacos.simulate import astra as simulator
from tacos.simulate.timeline import Timeline
from tacos.training.exact import accounted, family_tables
from tacos.training.graph import RING_TAG, TENSOR_TAG
from tacos.workload import COLL, COMMS, COMP, RECV, SEND

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tacos._core import Collective, ProgramNodes, Topology
    from tacos.training.step import Step

__all__ = ["AstraJob", "astra", "described", "export"]

_MICROSECOND = 10**6
_COMM_NAMES = {number: name for name, number in COMMS.items()}
_BASES = (200_000_000, 300_000_000, 400_000_000)
"""First tags of messages between stages, of parts of tensors, and of keys and values. Algorithms number their messages from 0,
and ASTRA-sim counts tags modulo 500,000,000."""

_USUAL_FILES = 1000
"""As many files a process may have open on most machines, less a few of its own."""


@dataclass(frozen=True)
class AstraJob:
    """A step in the form that ASTRA-sim runs: a workload, and an algorithm for each of its collectives.

    Attributes:
        workload: The step's workload, row by row, with other numbers, groups and tags.
        algorithms: Nodes and collective of each algorithm by its name, such as ``"tp-all-reduce-33554432"``.
        chosen: The algorithm of each collective, by the number of its nodes.
    """

    workload: Workload
    algorithms: dict[str, tuple[ProgramNodes, Collective]]
    chosen: dict[int, str]

    @staticmethod
    def of(step: Step) -> AstraJob:
        """Convert a step to the form that ASTRA-sim runs.

        Raises:
            ValueError: Collectives take no time, so there is no algorithm.

        >>> import tacos
        >>> from tacos import training
        >>> network = tacos.topology.switch(4, bandwidth="100GB/s")
        >>> split = training.Parallelism(tp=2, batch=2)
        >>> job = AstraJob.of(training.step(training.model("mpt-125m"), split, network, collectives="ring"))
        >>> [name.rpartition("-")[0] for name in job.algorithms]
        ['tp-all-reduce', 'dp-all-reduce']
        """
        assert step.folded is not None
        if step.collectives == "free":
            raise ValueError(
                "collectives is 'free', but ASTRA-sim needs algorithms; use nccl, auto or an engine"
            )
        w, parallel = step.workload, step.parallel
        stage = np.empty(parallel.npus, np.int64)
        stage[step.folded.groups.pp] = np.arange(parallel.pp)
        number = w.id * parallel.pp + stage[w.rank]
        rows = np.flatnonzero(w.kind == COLL)
        kinds, which = np.unique(
            np.stack([w.name[rows], w.comm[rows], w.bytes[rows]]), axis=1, return_inverse=True
        )
        which = which.ravel()
        labels, algorithms = [], {}
        for name, comm, size in kinds.T.tolist():
            label = f"{w.names[name].replace(' ', '-')}-{size}"
            labels.append(label)
            algorithms[label] = _algorithm(step, w.names[name].partition(" ")[0], comm, size)
        chosen = dict(
            sorted((int(node), labels[one]) for node, one in set(zip(number[rows].tolist(), which.tolist(), strict=True)))
        )  # fmt: skip
        pairs, own = np.unique(np.stack([w.group[rows], which]), axis=1, return_inverse=True)
        members = dict(w.groups)
        group = np.zeros(len(w.rank), np.int32)
        group[rows] = own.ravel() + 1
        tag = w.tag.astype(np.int64)
        messages = (w.kind == SEND) | (w.kind == RECV)
        of, base = tag[messages], np.full(int(messages.sum()), _BASES[0])
        for first, moved in ((TENSOR_TAG, _BASES[1]), (RING_TAG, _BASES[2])):
            base[of >= first] = moved - first
        tag[messages] = of + base
        made = Workload(
            npus=w.npus,
            rank=w.rank,
            kind=w.kind,
            peer=w.peer,
            bytes=w.bytes,
            tag=tag.astype(np.int32),
            duration_ps=_whole(w),
            flops=w.flops,
            comm=w.comm,
            id=number,
            on_cpu=w.on_cpu,
            group=group,
            priority=w.priority,
            dims=w.dims,
            name=w.name,
            names=list(w.names),
            dep_begin=w.dep_begin,
            dep=w.dep,
            groups=[(i + 1, members[int(old)]) for i, old in enumerate(pairs[0])],
        )
        return AstraJob(made, algorithms, chosen)

    def system(self) -> simulator.AstraSystem:
        """Return the system that runs the collectives."""
        known = {name: nodes.workload for name, (nodes, _) in self.algorithms.items()}
        return simulator.AstraSystem(
            policy="fifo", algorithms={node: known[name] for node, name in self.chosen.items()}
        )

    def files(self, prefix: str, network: Dimensions) -> dict[str, bytes]:
        """Return the files that ASTRA-sim needs besides the traces, keyed by the part of their names after the prefix and a dot.

        Args:
            prefix: The absolute prefix of all files; ASTRA-sim resolves a relative one from its working directory.
            network: The network.
        """
        lines = [f"{node}: {prefix}.{name}\n" for node, name in self.chosen.items()]
        system = {
            "scheduling-policy": "FIFO",
            "preferred-dataset-splits": 1,  # ASTRA-sim never completes a custom collective in pieces
            "per-node-custom-implementation": f"{prefix}.algorithms.yml",
        }
        found = {
            "algorithms.yml": "".join(lines).encode(),
            "system.json": json.dumps(system, indent=2).encode() + b"\n",
            "memory.json": b'{"memory-type": "NO_MEMORY_EXPANSION"}\n',
            "network.yml": network.text.encode(),
        }
        if not lines:
            del found["algorithms.yml"], system["per-node-custom-implementation"]
            found["system.json"] = json.dumps(system, indent=2).encode() + b"\n"
        for name, (nodes, collective) in self.algorithms.items():
            file = chakra.algorithm_files(nodes, collective)
            for rank in range(nodes.program.ranks):
                found[f"{name}.{rank}.et"] = file(rank)
        return found


def _algorithm(step: Step, family: str, comm: int, size: int) -> tuple[ProgramNodes, Collective]:
    assert step.folded is not None
    table, kind = family_tables(step.folded.groups)[family], _COMM_NAMES[comm]
    whole = size * table.shape[1] if kind == "all_gather" else size
    return step.folded.costs.of(table).algorithm(kind, whole)


def _whole(w: Workload) -> NDArray[np.int64]:
    """Round durations to whole microseconds; the total of a rank's computations is preserved."""
    found = np.zeros(len(w.rank), np.int64)
    rows = np.flatnonzero(w.kind == COMP)
    until = np.cumsum(w.duration_ps[rows])
    first = np.searchsorted(w.rank[rows], w.rank[rows])  # of the same rank
    until -= (until - w.duration_ps[rows])[first]
    rounded = (until + _MICROSECOND // 2) // _MICROSECOND
    before = np.where(np.arange(len(rows)) == first, 0, np.r_[0, rounded[:-1]])
    found[rows] = (rounded - before) * _MICROSECOND
    return found


def astra(step: Step, *, progress: Callable[[float], object] | None = None) -> Step:
    """Return a step with the times that ASTRA-sim's congestion-aware backend would report.

    Args:
        step: As :func:`tacos.training.step.step` predicts it.
        progress: Called from time to time with the share of the work done.

    Raises:
        ValueError: ASTRA-sim cannot run the step, or never finishes it; the message names the nodes.

    >>> import tacos
    >>> from tacos import training
    >>> network = tacos.topology.switch(4, bandwidth="100GB/s")
    >>> split = training.Parallelism(tp=2, batch=2)
    >>> found = astra(training.step(training.model("mpt-125m"), split, network, collectives="ring"))
    >>> found.fidelity, found.exposed_s > 0
    ('astra', True)
    """
    assert step.folded is not None
    job = AstraJob.of(step)
    result = simulator.run(
        job.workload,
        step.folded.topology,
        aware=True,
        as_custom=False,
        system=job.system(),
        record=False,
        progress=progress,
    )
    line = Timeline(step.workload, result.node_begin_ns * 1000, result.node_end_ns * 1000)
    return replace(accounted(step, line), fidelity="astra")


def export(step: Step, prefix: str | os.PathLike[str]) -> list[str]:
    """Write a step for ASTRA-sim: all files or none.

    ====================================  ============================================================================
    ``<prefix>.<rank>.et``                what each rank does
    ``<prefix>.json``                     groups of ranks
    ``<prefix>.system.json``              the system, which names the file of algorithms
    ``<prefix>.memory.json``              no memory beyond the NPU's own
    ``<prefix>.network.yml``              the network
    ``<prefix>.algorithms.yml``           the algorithm of each collective, by the number of its nodes
    ``<prefix>.<algorithm>.<member>.et``  the algorithms: what each member of a group does
    ====================================  ============================================================================

    Files name each other by absolute paths. ASTRA-sim describes networks as products of rings, cliques and switches with one
    bandwidth and latency per dimension. A cluster of boxes with one fabric between them is written as such a product, with a switch
    for the NPUs of the same place in all boxes; any other network is refused.

    Args:
        step: What :func:`tacos.training.step.step` returned.
        prefix: Where to write.

    Returns:
        Notes for readers of the files, as sentences.

    Raises:
        ValueError: ASTRA-sim cannot describe the network, or collectives take no time.
        FormatError: A file cannot be written.

    >>> import os, tempfile, tacos
    >>> from tacos import training
    >>> network = tacos.topology.switch(4, bandwidth="100GB/s")
    >>> split = training.Parallelism(tp=2, batch=2)
    >>> step = training.step(training.model("mpt-125m"), split, network, collectives="ring")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = export(step, f"{folder}/step")
    ...     [name for name in sorted(os.listdir(folder)) if not name.endswith(".et")]
    ['step.algorithms.yml', 'step.json', 'step.memory.json', 'step.network.yml', 'step.system.json']
    """
    if step.folded is None:
        raise ValueError("a step of a search cannot be exported: predict it again with step()")
    network, said = described(step.folded.topology)
    job = AstraJob.of(step)
    opened = job.workload.npus + int(np.count_nonzero(job.workload.kind == COLL))
    if opened > _USUAL_FILES:
        said.append(
            f"ASTRA-sim keeps a file open for each rank and for each collective of each rank: run it after ulimit -n {opened + 100}"
        )
    where = chakra.prefix_of(prefix)
    chakra.write_workload(job.workload, where, job.files(str(where.absolute()), network))
    return said


def described(topology: Topology) -> tuple[Dimensions, list[str]]:
    """Return ASTRA-sim's description of a network, and notes for its readers, as sentences.

    Raises:
        ValueError: ASTRA-sim cannot describe the network.

    >>> import tacos
    >>> described(tacos.topology.dgx_h100(2))[0].npus_count
    [8, 2]
    """
    said: list[str] = []
    try:
        found = dimensions(topology)
    except ValueError as error:
        rails = _rails(topology)
        if rails is None:
            raise ValueError(
                f"ASTRA-sim cannot describe this {topology.family or 'custom'} network ({error}); export a step on a product of "
                "rings, cliques and switches such as switch:8*switch:4, or on boxes with one fabric"
            ) from None
        found = rails
        said.append(
            "ASTRA-sim has no fabric that all boxes share: the network file has a switch for the NPUs of the same place in all boxes"
        )
    if len(found.topology) > 1:
        said.append(
            "ASTRA-sim's congestion-aware backend takes one dimension only: run this network with the congestion-unaware one"
        )
    return found, said


def _rails(topology: Topology) -> Dimensions | None:
    """Return boxes with a switch each and one fabric between them as two dimensions of switches."""
    dims = [(kind, size) for kind, size in topology.dims if size > 1]
    if len(dims) != 2 or any(kind != "switch" for kind, _ in dims):
        return None
    inside, boxes = dims[0][1], dims[1][1]
    if topology.npus != inside * boxes or topology.switches != boxes + 1:
        return None
    fields = Dimensions(["Switch", "Switch"], [inside, boxes], [], [])
    src, dst = topology.link_src, topology.link_dst
    places = np.bincount(np.r_[src, dst], minlength=topology.nodes)[topology.npus :]
    fabric = topology.npus + int(np.argmax(places))
    for ours in ((src != fabric) & (dst != fabric), (src == fabric) | (dst == fabric)):
        rows = np.flatnonzero(ours)
        ends = np.minimum(src[rows], dst[rows])  # an NPU's number is below a switch's
        speeds = topology.link_bandwidth_Bps[rows], topology.link_latency_ps[rows]
        alike = all((one == one[0]).all() for one in speeds) if len(rows) else False
        if not alike or not np.array_equal(
            np.bincount(ends, minlength=topology.npus), np.full(topology.npus, 2)
        ):
            return None
        fields.bandwidth.append(int(speeds[0][0]) / 2**30)
        fields.latency.append(int(speeds[1][0]) / 1000)
    return fields
